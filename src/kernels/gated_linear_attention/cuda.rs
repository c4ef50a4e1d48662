//! Linear attention on the device: which kernels of `chunk.cu` run, over what.

use super::Memory;
use crate::{
    args,
    autograd::{Grad, In, Value},
    cuda::{Arg, Launch, Module, Tiles},
    ops::heads::Dims,
    sized,
    tensor::{Cuda, CudaTemp, DType, Tensor},
};

static MODULE: Module = Module::new("kernels/gated_linear_attention/chunk.cu", &[include_str!("chunk.cu")]);

/// The sizes and settings of all launches.
struct Plan<'a> {
    cu: &'a Cuda,
    dtype: DType,
    heads: usize,
    /// Steps of all heads.
    rows: usize,
    k: usize,
    v: usize,
    w: usize,
    chunks: usize,
    tiles: Tiles,
    scale: f64,
    /// As the kernels get them.
    dims: [usize; 7],
}

/// The factors that the gates of each chunk leave.
#[derive(Default)]
struct Fading<'a> {
    /// The product of all gates of a chunk: [B, H, chunks, 1 or K].
    all: Option<CudaTemp<'a>>,
    /// With a gate for each channel: queries and keys as they come from the state and go to it, and the scores.
    channels: Option<[CudaTemp<'a>; 3]>,
}

/// The inputs as the products take them.
struct Inputs<'a> {
    q: &'a Tensor,
    k: &'a Tensor,
    v: &'a Tensor,
    /// One gate a head.
    g: Option<&'a Tensor>,
    all: Option<&'a CudaTemp<'a>>,
    scores: Option<&'a CudaTemp<'a>>,
    s: &'a Tensor,
    z: Option<&'a Tensor>,
}

impl<'a> Inputs<'a> {
    fn new<O: Memory>(x: &'a In, fading: &'a Fading<'a>) -> Inputs<'a> {
        let at = 3 + usize::from(O::GATED);
        let (s, z) = (&x[at], (x.len() > at + 1).then(|| &x[at + 1]));
        let (all, v) = (fading.all.as_ref(), &x[2]);
        match &fading.channels {
            Some([q, k, scores]) => Inputs { q, k, v, g: None, all, scores: Some(scores), s, z },
            None => Inputs { q: &x[0], k: &x[1], v, g: O::GATED.then(|| &x[3]), all, scores: None, s, z },
        }
    }
}

impl<'a> Plan<'a> {
    fn new<O: Memory>(op: &O, cu: &'a Cuda, x: In, Dims { b, t, h, k, v }: Dims) -> Plan<'a> {
        let (longest, scale, eps) = op.settings();
        let (dtype, w) = (x[0].dtype(), v + usize::from(eps.is_some()));
        // A chunk is a tile, so that longer ones gain nothing.
        let side = if O::GATED { Tiles::for_gates(cu.gpu(), dtype).side() } else { 64 };
        let chunk = longest.min(t).clamp(1, side);
        let (chunks, tiles, heads) = (t.div_ceil(chunk), Tiles::of(chunk), b * h);
        let dims = [t, h, k, v, w, chunk, chunks];
        Plan { cu, dtype, heads, rows: heads * t, k, v, w, chunks, tiles, scale, dims }
    }

    fn temp(&self, len: usize) -> CudaTemp<'a> {
        self.cu.temp(self.dtype.real(), len)
    }

    /// A state for each chunk of each head.
    fn states(&self, dtype: DType) -> CudaTemp<'a> {
        self.cu.temp(dtype, self.heads * self.chunks * self.k * self.w)
    }

    /// A block for each of so many tiles of each chunk, with three numbers for each of its steps.
    fn over(&self, tiles: usize, matrices: usize, more: usize) -> Launch {
        let more = more + 3 * self.tiles.side();
        self.tiles.launch(self.heads * self.chunks * tiles, self.dtype, matrices, more)
    }

    /// The same with room for the scores and, with one gate a head, for the gates' sums.
    fn scored(&self, tiles: usize, gates: Option<&Tensor>, more: usize) -> Launch {
        self.over(tiles, 1 + usize::from(gates.is_some()), more)
    }

    /// A block for each tile of each chunk's share of the state.
    fn outer(&self) -> Launch {
        self.over(self.tiles.over(self.k) * self.tiles.over(self.v.max(1)), 0, 0)
    }

    fn launch(&self, kernel: &'static str, over: Launch, args: &[Arg]) {
        self.cu.launch(&MODULE, kernel, self.dtype, over, args);
    }

    /// The factors of the gates, if there are any.
    fn fading<O: Memory>(&self, x: In) -> Fading<'a> {
        let (chunks, side) = (self.heads * self.chunks, self.tiles.side());
        if !O::GATED {
            return Fading::default();
        }
        let mut all = self.temp(chunks * x[3].shape().last());
        if x[3].shape().last() == 1 {
            self.launch("whole", self.cu.elements(chunks), args![&x[3], &mut all, chunks, self.dims]);
            return Fading { all: Some(all), channels: None };
        }
        let sizes = [self.rows * self.k, self.rows * self.k, chunks * side * side];
        let [mut q, mut k, mut p] = sizes.map(|n| self.cu.temp(self.dtype, n));
        let args = args![&x[0], &x[1], &x[3], &mut q, &mut k, &mut all, &mut p, self.scale, self.dims];
        self.launch(sized!("fade_channels", self.tiles), self.over(1, 2, 9 * side), args);
        Fading { all: Some(all), channels: Some([q, k, p]) }
    }

    /// Blocks that go along a head, if they fill a device.
    fn along(&self) -> Option<Launch> {
        self.tiles.along(self.heads, [self.k, self.v], self.dtype, 3).filter(|_| self.w == self.v)
    }

    /// The chunks' additions to the state, and the state before each chunk.
    fn forward_states(&self, x: &Inputs, last: Option<(&mut Tensor, Option<&mut Tensor>)>) -> CudaTemp<'a> {
        let mut states = self.states(self.dtype);
        if let Some(over) = self.along() {
            let last = last.map(|(s, _)| s);
            let args = args![x.k, x.v, x.g, x.all, x.s, &mut states, last, self.dims];
            self.launch(sized!("states", self.tiles), over, args);
            return states;
        }
        let mut added = self.states(self.dtype.real());
        let args = args![x.k, x.v, x.g, &mut added, self.dims];
        self.launch(sized!("values_states", self.tiles), self.outer(), args);
        let (s, z) = last.map_or((None, None), |(s, z)| (Some(s), z));
        let args = args![&added, &mut states, x.s, x.z, x.g, x.all, s, z, self.heads, self.dims];
        self.launch("scan_forward", self.cu.elements(self.heads * self.k * self.w), args);
        states
    }
}

pub fn forward<O: Memory>(op: &O, cu: &Cuda, dims: Dims, x: In, y: &mut [Value]) {
    let (p, (_, scale, eps)) = (Plan::new(op, cu, x, dims), op.settings());
    let fading = p.fading::<O>(x);
    let x = Inputs::new::<O>(&x, &fading);
    if let [o, s, rest @ ..] = y {
        let (z, den) = match rest {
            [z, den] => (Some(&mut **z), Some(&mut **den)),
            _ => (None, None),
        };
        let states = p.forward_states(&x, Some((&mut **s, z)));
        let over = p.scored(p.tiles.over(p.v.max(1)), x.g, 2 * p.tiles.side());
        match (den, eps) {
            (Some(den), Some(eps)) => {
                let args = args![x.q, x.k, x.v, &states, o, den, scale, eps, p.dims];
                p.launch(sized!("normalised", p.tiles), over, args);
            }
            _ => {
                let args = args![x.q, x.k, x.v, &states, x.g, x.scores, o, scale, p.dims];
                p.launch(sized!("outputs", p.tiles), over, args);
            }
        }
    }
}

pub fn backward<O: Memory>(
    op: &O,
    cu: &Cuda,
    dims: Dims,
    inputs: In,
    y: &[Value],
    dy: &[Option<Tensor>],
    dx: &mut [Grad],
) {
    let (p, scale, norm, d_o) = (Plan::new(op, cu, inputs, dims), op.settings().1, op.settings().2.is_some(), &dy[0]);
    let dtype = p.dtype;
    let fading = p.fading::<O>(inputs);
    let x = Inputs::new::<O>(&inputs, &fading);
    let [mut by, mut last] = std::array::from_fn(|_| p.temp(if norm { p.rows } else { 0 }));
    if norm {
        let args = args![&y[0], d_o, &y[3], &mut by, &mut last, p.rows, p.v];
        p.launch("through_norm", cu.elements(32 * p.rows), args);
    }
    let (by, last) = (norm.then_some(&by), norm.then_some(&last));
    let [dq, dk, dv, rest @ ..] = dx else { return };
    let (dg, rest) = rest.split_at_mut(usize::from(O::GATED));
    let [ds, rest @ ..] = rest else { return };
    let ((dq, q_acc), (dk, k_acc), (dv, v_acc), (ds, s_acc)) = (dq.target(), dk.target(), dv.target(), ds.target());
    let none = || (None::<&Tensor>.into(), false.into());
    let (dz, z_acc) = rest.first_mut().map_or_else(none, Grad::target);

    // The states before each chunk, again: one product in ten.
    let states = p.forward_states(&x, None);
    let mut after = p.states(dtype);
    let (ds1, dz1) = (&dy[1], if norm { dy[2].as_ref() } else { None });
    if let Some(over) = p.along() {
        let args = args![x.q, d_o, x.g, x.all, ds1, &mut after, ds, s_acc, scale, p.dims];
        p.launch(sized!("states_backward", p.tiles), over, args);
    } else {
        let mut added = p.states(dtype.real());
        let args = args![x.q, d_o, by, last, x.g, &mut added, scale, p.dims];
        p.launch(sized!("cotangents_states", p.tiles), p.outer(), args);
        let args = args![&added, &mut after, ds1, dz1, x.g, x.all, ds, s_acc, dz, z_acc, p.heads, p.dims];
        p.launch("scan_backward", cu.elements(p.heads * p.k * p.w), args);
    }
    let args = args![x.q, x.k, d_o, by, last, &after, x.g, x.scores, dv, v_acc, scale, p.dims];
    p.launch(sized!("values", p.tiles), p.scored(p.tiles.over(p.v), x.g, 0), args);

    let (side, parts) = (p.tiles.side(), p.tiles.over(p.k));
    let gates = x.g.filter(|_| dg.first().is_some_and(Grad::wanted));
    let (dg, g_acc) = dg.first_mut().map_or_else(none, Grad::target);
    if x.scores.is_some() {
        let [q, k, v, g] = [0, 1, 2, 3].map(|i| &inputs[i]);
        let args = args![q, k, v, d_o, g, &states, &after, dq, q_acc, dk, k_acc, dg, g_acc, scale, p.dims];
        return p.launch(sized!("keys_channels", p.tiles), p.over(parts, 4, side), args);
    }
    // For each step, the shares of q·dq and k·dk that come through the states.
    let sums = || gates.map(|_| p.temp(parts * p.rows));
    let [mut starts, mut ends] = [sums(), sums()];
    let products: &[Arg] = args![x.q, x.k, x.v, d_o, by, last, &states, &after, x.g];
    let to = args![dq, q_acc, starts.as_mut(), dk, k_acc, ends.as_mut(), p.rows, scale, p.dims];
    p.launch(sized!("keys", p.tiles), p.scored(parts, x.g, 0), &[products, to].concat());
    if gates.is_some() {
        let products: &[Arg] = args![x.q, x.k, x.v, d_o, x.g, x.all, &states, &after];
        let to = args![starts.as_ref(), ends.as_ref(), parts, p.rows, dg, g_acc, scale, p.dims];
        p.launch(sized!("gates", p.tiles), p.scored(1, x.g, 2 * side + 32), &[products, to].concat());
    }
}
