//! The delta rules on the device: which kernels of `chunk.cu` run, over what.

use super::Rule;
use crate::{
    args,
    autograd::{Grad, In, Value},
    cuda::{Arg, Launch, Module, Tiles},
    ops::heads::Dims,
    sized,
    tensor::{Cuda, CudaTemp, DType, Tensor},
};

static MODULE: Module = Module::new("kernels/erase_write/chunk.cu", &[include_str!("chunk.cu")]);

/// The sizes and settings of all launches.
struct Plan<'a> {
    cu: &'a Cuda,
    dtype: DType,
    heads: usize,
    k: usize,
    v: usize,
    chunks: usize,
    tiles: Tiles,
    scale: f64,
    /// Whether the saved states are those before the device's chunks.
    saved: bool,
    /// As the kernels get them.
    dims: [usize; 7],
}

/// For ops with their own erase keys: q, k and p with the gates applied; the scores M of q and A of p; and Γ, the
/// products of all gates of a chunk, [B, H, chunks, K].
struct Faded<'a> {
    q: CudaTemp<'a>,
    k: CudaTemp<'a>,
    erase: CudaTemp<'a>,
    reads: CudaTemp<'a>,
    erases: CudaTemp<'a>,
    all: CudaTemp<'a>,
}

/// The inputs as the products take them.
struct Inputs<'a> {
    q: &'a Tensor,
    k: &'a Tensor,
    v: &'a Tensor,
    /// The keys to erase by, times β if there is one.
    erase: &'a Tensor,
    beta: Option<&'a Tensor>,
    s0: &'a Tensor,
    /// One gate a head.
    g: Option<&'a Tensor>,
    faded: Option<&'a Faded<'a>>,
}

impl<'a> Inputs<'a> {
    fn new(x: &'a In, faded: Option<&'a Faded<'a>>) -> Inputs<'a> {
        let (v, s0) = (&x[2], &x[4]);
        match faded {
            Some(f) => Inputs { q: &f.q, k: &f.k, v, erase: &f.erase, beta: None, s0, g: None, faded },
            None => Inputs { q: &x[0], k: &x[1], v, erase: &x[1], beta: Some(&x[3]), s0, g: gate(x), faded },
        }
    }

    fn reads(&self) -> Option<&CudaTemp<'a>> {
        self.faded.map(|f| &f.reads)
    }

    fn all(&self) -> Option<&CudaTemp<'a>> {
        self.faded.map(|f| &f.all)
    }
}

impl<'a> Plan<'a> {
    fn new<O: Rule>(op: &O, cu: &'a Cuda, x: In, Dims { b, t, h, k, v }: Dims) -> Plan<'a> {
        let ((longest, scale), dtype) = (op.settings(), x[0].dtype());
        // A chunk is a tile. Erase keys of their own, and double precision, need more memory than many devices have.
        let side = if O::DELTA && dtype != DType::F64 { 64 } else { Tiles::for_gates(cu.gpu(), dtype).side() };
        let chunk = longest.min(t).clamp(1, side);
        let (chunks, tiles) = (t.div_ceil(chunk), Tiles::of(chunk));
        let saved = longest <= side || chunks <= 1;
        Plan { cu, dtype, heads: b * h, k, v, chunks, tiles, scale, saved, dims: [t, h, k, v, v, chunk, chunks] }
    }

    fn launch(&self, kernel: &'static str, over: Launch, args: &[Arg]) {
        self.cu.launch(&MODULE, kernel, self.dtype, over, args);
    }

    fn faded<O: Rule>(&self, x: &In) -> Option<Faded<'a>> {
        if O::DELTA {
            return None;
        }
        let scores = || self.padded(self.dtype.real(), self.tiles.side());
        let (rows, all) = (x[1].shape().len(), self.cu.temp(self.dtype.real(), self.heads * self.chunks * self.k));
        let [q, k, erase] = [rows; 3].map(|n| self.cu.temp(self.dtype, n));
        let mut f = Faded { q, k, erase, reads: scores(), erases: scores(), all };
        let (none, over) = (None::<&Tensor>, self.over(1, 2, 9 * self.tiles.side()));
        let (kernel, g) = (sized!("fade_channels", self.tiles), gate(x));
        let args = args![&x[0], &x[1], g, &mut f.q, &mut f.k, &mut f.all, &mut f.reads, self.scale, self.dims];
        self.launch(kernel, over, args);
        let args = args![&x[3], &x[1], g, &mut f.erase, none, none, &mut f.erases, 1.0, self.dims];
        self.launch(kernel, over, args);
        Some(f)
    }

    /// Elements of every step of the chunks, padded to tiles.
    fn padded(&self, dtype: DType, width: usize) -> CudaTemp<'a> {
        self.cu.temp(dtype, self.heads * self.chunks * self.tiles.side() * width)
    }

    /// A block for each of so many tiles of each chunk.
    fn over(&self, tiles: usize, matrices: usize, more: usize) -> Launch {
        self.tiles.launch(self.heads * self.chunks * tiles, self.dtype, matrices, more + 3 * self.tiles.side())
    }

    /// X (if wanted), W, and U or, where the states are known, E.
    fn prepare(
        &self,
        x: &Inputs,
        states: Option<&Tensor>,
        inverse: Option<&mut CudaTemp>,
    ) -> (CudaTemp<'a>, CudaTemp<'a>) {
        let (mut w, mut u) = (self.padded(self.dtype, self.k), self.padded(self.dtype, self.v));
        let (side, a) = (self.tiles.side(), x.faded.map(|f| &f.erases));
        let args = args![x.erase, x.v, x.beta, x.g, a, states, inverse, &mut w, &mut u, self.dims];
        self.launch(sized!("prepare", self.tiles), self.over(1, 2, side * side / 4), args);
        (w, u)
    }

    /// A block for every 32 columns of S of each head, in rows of 40; and the memory that those need that are too long to share.
    fn along(&self) -> (Launch, Option<CudaTemp<'a>>) {
        let (c, blocks) = (self.tiles.side(), self.heads * self.v.div_ceil(32));
        let own = self.tiles.slices(self.dtype, 2) + 40 * c + 3 * c;
        let (state, size) = (40 * self.k, if self.dtype == DType::F64 { 8 } else { 4 });
        let shared = size * (own + state);
        if shared <= self.cu.gpu().shared() {
            return (Launch::blocks(blocks, 256).shared(shared), None);
        }
        (Launch::blocks(blocks, 256).shared(size * own), Some(self.cu.temp(self.dtype.real(), blocks * state)))
    }

    /// States before each chunk, the last state, and E in place of U.
    fn states(&self, x: &Inputs, w: &CudaTemp, u: &mut CudaTemp, states: &mut Tensor, last: &mut Tensor) {
        let (over, mut room) = self.along();
        let args = args![x.k, x.g, x.all(), x.s0, w, u, states, last, room.as_mut(), self.dims];
        self.launch(sized!("states", self.tiles), over, args);
    }

    /// Room for the states before the device's chunks.
    fn room(&self) -> CudaTemp<'a> {
        self.cu.temp(self.dtype, self.heads * self.chunks * self.k * self.v)
    }
}

fn gate<'a>(x: &'a In) -> Option<&'a Tensor> {
    (x.len() > 5).then(|| &x[5])
}

pub fn forward<O: Rule>(op: &O, cu: &Cuda, dims: Dims, x: In, y: &mut [Value]) {
    let p = Plan::new(op, cu, x, dims);
    let faded = p.faded::<O>(&x);
    let x = Inputs::new(&x, faded.as_ref());
    if let [o, s, _, states] = y {
        let (w, mut u) = p.prepare(&x, None, None);
        // Longer chunks than a tile are several; their states are computed again when they are needed.
        let mut others = (!p.saved).then(|| p.room());
        if others.is_some() {
            states.fill(0.0);
        }
        let states = others.as_deref_mut().unwrap_or(states);
        p.states(&x, &w, &mut u, states, s);
        let args = args![x.q, x.k, x.g, x.reads(), &*states, &u, o, p.scale, p.dims];
        p.launch(sized!("outputs", p.tiles), p.over(p.tiles.over(p.v), 1, 0), args);
    }
}

pub fn backward<O: Rule>(
    op: &O,
    cu: &Cuda,
    dims: Dims,
    inputs: In,
    y: &[Value],
    dy: &[Option<Tensor>],
    dx: &mut [Grad],
) {
    let (p, d_o) = (Plan::new(op, cu, inputs, dims), &dy[0]);
    let faded = p.faded::<O>(&inputs);
    let x = Inputs::new(&inputs, faded.as_ref());
    let others = (!p.saved).then(|| {
        let (w, mut u) = p.prepare(&x, None, None);
        let (mut states, mut last) = (p.room(), cu.temp(p.dtype, p.heads * p.k * p.v));
        p.states(&x, &w, &mut u, &mut states, &mut last);
        states
    });
    let states = others.as_deref().unwrap_or(&y[3]);
    let [dq, dk, dv, dp, ds0, dg @ ..] = dx else { return };
    let mut inverse = p.padded(p.dtype, p.tiles.side());
    let (w, e) = p.prepare(&x, Some(states), Some(&mut inverse));
    let mut de = p.padded(p.dtype, p.v);
    let columns = p.over(p.tiles.over(p.v), 1, 0);
    let args = args![x.q, x.k, x.g, x.reads(), d_o, &mut de, p.scale, p.dims];
    p.launch(sized!("through_outputs", p.tiles), columns, args);
    let mut after = p.room();
    let ((over, mut room), (ds0, acc)) = (p.along(), ds0.target());
    let products: &[Arg] = args![x.q, x.k, x.g, x.all(), d_o, &dy[1], &w];
    let to = args![&mut de, &mut after, ds0, acc, room.as_mut(), p.scale, p.dims];
    p.launch(sized!("states_backward", p.tiles), over, &[products, to].concat());
    let (dv, acc) = dv.target();
    let args = args![x.beta, &inverse, &mut de, dv, acc, p.dims];
    p.launch(sized!("through_solve", p.tiles), columns, args);

    let ((dq, q_acc), (dk, k_acc), (dp, p_acc)) = (dq.target(), dk.target(), dp.target());
    let (dg, g_acc) = dg.first_mut().map_or((None::<&Tensor>.into(), false.into()), Grad::target);
    let [q, k, v, g] = [Some(&inputs[0]), Some(&inputs[1]), Some(&inputs[2]), gate(&inputs)];
    if O::DELTA {
        let products: &[Arg] = args![q, k, v, &inputs[3], g, d_o, states, &after, &e, &de];
        let to = args![dq, q_acc, dk, k_acc, dp, p_acc, dg, g_acc, p.scale, p.dims];
        let over = p.over(1, 2, 3 * p.tiles.side() + 32);
        return p.launch(sized!("gradients", p.tiles), over, &[products, to].concat());
    }
    let over = p.over(p.tiles.over(p.k), 4, 0);
    let args = args![q, k, d_o, g, states, &after, &e, dq, q_acc, dk, k_acc, dg, g_acc, p.scale, p.dims];
    p.launch(sized!("through_reads_channels", p.tiles), over, args);
    let args = args![&inputs[3], k, g, states, &e, &de, dp, p_acc, dk, true, dg, true, p.dims];
    p.launch(sized!("through_erasing_channels", p.tiles), over, args);
}
