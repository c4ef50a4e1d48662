//! Linear attention on the device: which kernels of `chunk.cu` run, over what.

use crate::{
    args,
    autograd::{Grad, In, Value},
    cuda::{Cuda, Launch, Module, Temp, Tiles},
    ops::{heads::Dims, linear_attn::LinearAttention},
    sized,
    tensor::{DType, Tensor},
};

static MODULE: Module = Module::new("kernels/gated_linear_attention/chunk.cu", &[include_str!("chunk.cu")]);

/// What all launches need to know.
struct Plan<'a> {
    cu: &'a Cuda,
    dtype: DType,
    heads: usize,
    k: usize,
    v: usize,
    w: usize,
    chunks: usize,
    tiles: Tiles,
    /// As the kernels get them.
    dims: [usize; 7],
}

impl<'a> Plan<'a> {
    fn new(op: &LinearAttention, cu: &'a Cuda, x: In, Dims { b, t, h, k, v }: Dims) -> Plan<'a> {
        // A chunk is a tile, so that longer ones gain nothing.
        let (chunk, w) = (op.chunk.min(t).clamp(1, 64), v + usize::from(op.normalize.is_some()));
        let (chunks, tiles) = (t.div_ceil(chunk), Tiles::of(chunk));
        Plan { cu, dtype: x[0].dtype(), heads: b * h, k, v, w, chunks, tiles, dims: [t, h, k, v, w, chunk, chunks] }
    }

    /// A state for each chunk of each head.
    fn states(&self) -> Temp<'a> {
        self.cu.temp(self.dtype.real(), self.heads * self.chunks * self.k * self.w)
    }

    /// A block for each of so many tiles of each chunk.
    fn over(&self, tiles: usize, matrices: usize, more: usize) -> Launch {
        self.tiles.launch(self.heads * self.chunks * tiles, self.dtype, matrices, more)
    }

    /// What the chunks add to the state, and the state before each.
    fn forward_states(&self, x: In, end: Option<(&mut Tensor, Option<&mut Tensor>)>) -> Temp<'a> {
        let mut states = self.states();
        let over = self.over(self.tiles.over(self.k) * self.tiles.over(self.w), 0, 0);
        let kernel = sized!("values_states", self.tiles);
        self.cu.launch(&MODULE, kernel, self.dtype, over, args![&x[1], &x[2], &mut states, self.dims]);
        let (s, z) = end.map_or((None, None), |(s, z)| (Some(s), z));
        let z0 = (x.len() > 4).then(|| &x[4]);
        let over = self.cu.elements(self.heads * self.k * self.w);
        let args = args![&mut states, &x[3], z0, s, z, self.heads, self.dims];
        self.cu.launch(&MODULE, "scan_forward", self.dtype, over, args);
        states
    }
}

pub fn forward(op: &LinearAttention, cu: &Cuda, dims: Dims, x: In, y: &mut [Value]) {
    let p = Plan::new(op, cu, x, dims);
    if let [o, s, rest @ ..] = y {
        let (z, den) = match rest {
            [z, den] => (Some(&mut **z), Some(&mut **den)),
            _ => (None, None),
        };
        let states = p.forward_states(x, Some((&mut **s, z)));
        let over = p.over(p.tiles.over(p.v.max(1)), 1, 2 * p.tiles.side());
        match (den, op.normalize) {
            (Some(den), Some(eps)) => {
                let args = args![&x[0], &x[1], &x[2], &states, o, den, op.scale, eps, p.dims];
                cu.launch(&MODULE, sized!("normalised", p.tiles), p.dtype, over, args);
            }
            _ => {
                let args = args![&x[0], &x[1], &x[2], &states, o, op.scale, p.dims];
                cu.launch(&MODULE, sized!("outputs", p.tiles), p.dtype, over, args);
            }
        }
    }
}

pub fn backward(
    op: &LinearAttention,
    cu: &Cuda,
    dims: Dims,
    x: In,
    y: &[Value],
    dy: &[Option<Tensor>],
    dx: &mut [Grad],
) {
    let p = Plan::new(op, cu, x, dims);
    let (rows, norm, g) = (dims.b * dims.t * dims.h, op.normalize.is_some(), &dy[0]);
    let [mut by, mut last] = std::array::from_fn(|_| cu.temp(p.dtype.real(), if norm { rows } else { 0 }));
    if norm {
        let args = args![&y[0], g, &y[3], &mut by, &mut last, rows, p.v];
        cu.launch(&MODULE, "through_norm", p.dtype, cu.elements(32 * rows), args);
    }
    let (by, last) = (norm.then_some(&by), norm.then_some(&last));
    if let [dq, dk, dv, ds0, rest @ ..] = dx {
        let ((dq, q_acc), (dk, k_acc), (dv, v_acc), (ds, s_acc)) =
            (dq.target(), dk.target(), dv.target(), ds0.target());
        let (dz, z_acc) = rest.first_mut().map_or((None::<&Tensor>.into(), false.into()), Grad::target);
        // The states before each chunk, again: one product in ten.
        let states = p.forward_states(x, None);
        let mut after = p.states();
        let over = p.over(p.tiles.over(p.k) * p.tiles.over(p.w), 0, 0);
        let args = args![&x[0], g, by, last, &mut after, op.scale, p.dims];
        cu.launch(&MODULE, sized!("cotangents_states", p.tiles), p.dtype, over, args);
        let (ds1, dz1) = (&dy[1], if norm { dy[2].as_ref() } else { None });
        let over = cu.elements(p.heads * p.k * p.w);
        let args = args![&mut after, ds1, dz1, ds, s_acc, dz, z_acc, p.heads, p.dims];
        cu.launch(&MODULE, "scan_backward", p.dtype, over, args);
        let args = args![&x[0], &x[1], &x[2], g, by, last, &states, &after, dq, q_acc, dk, k_acc, op.scale, p.dims];
        cu.launch(&MODULE, sized!("keys", p.tiles), p.dtype, p.over(p.tiles.over(p.k), 1, 0), args);
        let args = args![&x[0], &x[1], g, by, last, &after, dv, v_acc, op.scale, p.dims];
        cu.launch(&MODULE, sized!("values", p.tiles), p.dtype, p.over(p.tiles.over(p.v), 1, 0), args);
    }
}
