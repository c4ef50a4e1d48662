//! The delta rule on the device: which kernels of `chunk.cu` run, over what.

use crate::{
    args,
    autograd::{Grad, In, Value},
    cuda::{Cuda, Launch, Module, Temp, Tiles},
    ops::heads::Dims,
    sized,
    tensor::{DType, Tensor},
};

static MODULE: Module = Module::new("kernels/erase_write/chunk.cu", &[include_str!("chunk.cu")]);

/// The longest chunk: a tile.
const LONGEST: usize = 64;

/// What all launches need to know.
struct Plan<'a> {
    cu: &'a Cuda,
    dtype: DType,
    heads: usize,
    k: usize,
    v: usize,
    chunks: usize,
    tiles: Tiles,
    /// As the kernels get them.
    dims: [usize; 7],
}

impl<'a> Plan<'a> {
    fn new(chunk: usize, cu: &'a Cuda, x: In, Dims { b, t, h, k, v }: Dims) -> Plan<'a> {
        let chunk = chunk.min(t).clamp(1, LONGEST);
        let (chunks, tiles) = (t.div_ceil(chunk), Tiles::of(chunk));
        Plan { cu, dtype: x[0].dtype(), heads: b * h, k, v, chunks, tiles, dims: [t, h, k, v, v, chunk, chunks] }
    }

    /// Numbers of every step of the chunks, padded to tiles.
    fn padded(&self, width: usize) -> Temp<'a> {
        self.cu.temp(self.dtype.real(), self.heads * self.chunks * self.tiles.side() * width)
    }

    /// A block for each of so many tiles of each chunk.
    fn over(&self, tiles: usize, matrices: usize, more: usize) -> Launch {
        self.tiles.launch(self.heads * self.chunks * tiles, self.dtype, matrices, more + 7 * self.tiles.side())
    }

    /// X (if wanted), W, and U or, where the states are known, E.
    fn prepare(&self, x: In, states: Option<&Tensor>, inverse: Option<&mut Temp>) -> (Temp<'a>, Temp<'a>) {
        let (mut w, mut u) = (self.padded(self.k), self.padded(self.v));
        let side = self.tiles.side();
        let args = args![&x[1], &x[2], &x[3], gate(&x), states, inverse, &mut w, &mut u, self.dims];
        self.cu.launch(&MODULE, sized!("prepare", self.tiles), self.dtype, self.over(1, 2, side * side / 4), args);
        (w, u)
    }

    /// A block for every 16 columns of S of each head; and the memory that those need that are too long to share.
    fn along(&self) -> (Launch, Option<Temp<'a>>) {
        let (c, blocks) = (self.tiles.side(), self.heads * self.v.div_ceil(16));
        let own = 32 * (c + 4 + 20) + 16 * c + 7 * c;
        let (state, size) = (16 * self.k, if self.dtype == DType::F64 { 8 } else { 4 });
        let shared = size * (own + state);
        if shared <= self.cu.gpu().shared() {
            return (Launch::blocks(blocks, 256).shared(shared), None);
        }
        (Launch::blocks(blocks, 256).shared(size * own), Some(self.cu.temp(self.dtype.real(), blocks * state)))
    }

    /// States before each chunk, the last state, and E in place of U.
    fn states(&self, x: In, w: &Temp, u: &mut Temp, states: &mut Tensor, last: &mut Tensor) {
        let (over, mut room) = self.along();
        let args = args![&x[1], gate(&x), &x[4], w, u, states, last, room.as_mut(), self.dims];
        self.cu.launch(&MODULE, sized!("states", self.tiles), self.dtype, over, args);
    }

    /// Whether the saved states are those before the device's chunks.
    fn saved(&self, chunk: usize) -> bool {
        chunk <= LONGEST || self.chunks <= 1
    }

    /// Room for the states before the device's chunks.
    fn room(&self) -> Temp<'a> {
        self.cu.temp(self.dtype, self.heads * self.chunks * self.k * self.v)
    }
}

fn gate<'a>(x: &'a In) -> Option<&'a Tensor> {
    (x.len() > 5).then(|| &x[5])
}

pub fn forward((chunk, scale): (usize, f64), cu: &Cuda, dims: Dims, x: In, y: &mut [Value]) {
    let p = Plan::new(chunk, cu, x, dims);
    if let [o, s, _, states] = y {
        let (w, mut u) = p.prepare(x, None, None);
        // Longer chunks than a tile are several; their states are computed again when they are needed.
        let mut others = (!p.saved(chunk)).then(|| p.room());
        if others.is_some() {
            states.fill(0.0);
        }
        let states = others.as_deref_mut().unwrap_or(states);
        p.states(x, &w, &mut u, states, s);
        let args = args![&x[0], &x[1], gate(&x), &*states, &u, o, scale, p.dims];
        cu.launch(&MODULE, sized!("outputs", p.tiles), p.dtype, p.over(p.tiles.over(p.v), 1, 0), args);
    }
}

pub fn backward(
    (chunk, scale): (usize, f64),
    cu: &Cuda,
    dims: Dims,
    x: In,
    y: &[Value],
    dy: &[Option<Tensor>],
    dx: &mut [Grad],
) {
    let p = Plan::new(chunk, cu, x, dims);
    let others = (!p.saved(chunk)).then(|| {
        let (w, mut u) = p.prepare(x, None, None);
        let (mut states, mut last) = (p.room(), cu.temp(p.dtype, p.heads * p.k * p.v));
        p.states(x, &w, &mut u, &mut states, &mut last);
        states
    });
    let states = others.as_deref().unwrap_or(&y[3]);
    if let [dq, dk, dv, dbeta, ds0, dg @ ..] = dx {
        let mut inverse = p.padded(p.tiles.side());
        let (w, e) = p.prepare(x, Some(states), Some(&mut inverse));
        let mut de = p.padded(p.v);
        let columns = p.over(p.tiles.over(p.v), 1, 0);
        let args = args![&x[0], &x[1], gate(&x), &dy[0], &mut de, scale, p.dims];
        cu.launch(&MODULE, sized!("through_outputs", p.tiles), p.dtype, columns, args);
        let mut after = cu.temp(p.dtype.real(), p.heads * p.chunks * p.k * p.v);
        let ((over, mut room), (ds0, acc)) = (p.along(), ds0.target());
        let args = args![
            &x[0],
            &x[1],
            gate(&x),
            &dy[0],
            &dy[1],
            &w,
            &mut de,
            &mut after,
            ds0,
            acc,
            room.as_mut(),
            scale,
            p.dims
        ];
        cu.launch(&MODULE, sized!("states_backward", p.tiles), p.dtype, over, args);
        let (dv, acc) = dv.target();
        let args = args![&x[3], &inverse, &mut de, dv, acc, p.dims];
        cu.launch(&MODULE, sized!("through_solve", p.tiles), p.dtype, columns, args);
        let ((dq, q_acc), (dk, k_acc), (dbeta, b_acc)) = (dq.target(), dk.target(), dbeta.target());
        let (dg, g_acc) = dg.first_mut().map_or((None::<&Tensor>.into(), false.into()), Grad::target);
        let args = args![
            &x[0],
            &x[1],
            &x[2],
            &x[3],
            gate(&x),
            &dy[0],
            states,
            &after,
            &e,
            &de,
            dq,
            q_acc,
            dk,
            k_acc,
            dbeta,
            b_acc,
            dg,
            g_acc,
            scale,
            p.dims
        ];
        let over = p.over(1, 2, 3 * p.tiles.side() + 32);
        cu.launch(&MODULE, sized!("gradients", p.tiles), p.dtype, over, args);
    }
}
