//! The mLSTM on a device: which kernels of `chunk.cu` run, over what.

use crate::{
    args,
    autograd::{Grad, In, Value},
    cuda::{Arg, Launch, Module, Tiles},
    ops::{heads::Dims, mlstm::Mlstm},
    sized,
    tensor::{Cuda, CudaTemp, DType, Tensor},
};

static MODULE: Module = Module::new("kernels/mlstm/chunk.cu", &[include_str!("chunk.cu")]);

/// The longest chunk: a tile.
const LONGEST: usize = 64;

/// The sizes and settings of all launches.
struct Plan<'a> {
    cu: &'a Cuda,
    dtype: DType,
    heads: usize,
    /// Steps of all heads.
    rows: usize,
    k: usize,
    v: usize,
    chunks: usize,
    tiles: Tiles,
    scale: f64,
    /// Whether the states that the forward pass saves are those before the device's chunks.
    saved: bool,
    /// As the kernels get them.
    dims: [usize; 7],
}

/// The values of the gates at every step: ln f … since the chunk's first step, ln i, m, slope and the past's share in
/// the maximum, [B, T, H] each.
struct Gates<'a> {
    c: CudaTemp<'a>,
    i: CudaTemp<'a>,
    m: CudaTemp<'a>,
    slope: CudaTemp<'a>,
    share: CudaTemp<'a>,
}

impl<'a> Plan<'a> {
    fn new(op: &Mlstm, cu: &'a Cuda, x: In, Dims { b, t, h, k, v }: Dims) -> Plan<'a> {
        let chunk = op.chunk.min(t).clamp(1, LONGEST);
        let (chunks, tiles, heads) = (t.div_ceil(chunk), Tiles::of(chunk), b * h);
        Plan {
            cu,
            dtype: x[0].dtype(),
            heads,
            rows: heads * t,
            k,
            v,
            chunks,
            tiles,
            scale: (k.max(1) as f64).powf(-0.5),
            saved: op.chunk <= LONGEST || chunks <= 1,
            dims: [t, h, k, v, v + 1, chunk, chunks],
        }
    }

    fn temp(&self, len: usize) -> CudaTemp<'a> {
        self.cu.temp(self.dtype.real(), len)
    }

    /// Elements of [C, n].
    fn state(&self) -> usize {
        self.k * (self.v + 1)
    }

    /// The weights of a step: three numbers, and a double counted by the numbers that it takes.
    fn weights(&self) -> usize {
        3 + 8 / self.dtype.real().bytes()
    }

    /// A block for each of so many tiles of each chunk, with the weights of its steps.
    fn over(&self, tiles: usize, matrices: usize, more: usize) -> Launch {
        let weights = self.weights() * self.tiles.side();
        self.tiles.launch(self.heads * self.chunks * tiles, self.dtype, matrices, more + weights)
    }

    /// A block for each tile of each chunk's share of the state.
    fn outer(&self) -> Launch {
        self.over(self.tiles.over(self.k) * self.tiles.over(self.v.max(1)), 0, 0)
    }

    /// Blocks that go along a head, if they fill a device: with the weights of a step, and two ratios.
    fn along(&self) -> Option<Launch> {
        // Without a step there is none before the first to read.
        self.tiles.along(self.heads, [self.k, self.v], self.dtype, self.weights() + 2).filter(|_| self.chunks > 0)
    }

    fn gates(&self, x: In, m_last: Option<&mut Value>) -> Gates<'a> {
        let [mut i, mut m, mut slope, mut share] = std::array::from_fn(|_| self.temp(self.rows));
        let mut c = self.cu.temp(DType::F64, self.rows);
        let inputs: &[Arg] = args![&x[3], &x[4], &x[7], &x[8]];
        let outputs = args![&mut c, &mut i, &mut m, &mut slope, &mut share, m_last, self.heads, self.dims];
        let launch = Launch::blocks(self.heads, 64);
        self.cu.launch(&MODULE, "gates", self.dtype, launch, &[inputs, &outputs[..]].concat());
        Gates { c, i, m, slope, share }
    }

    /// The states before each chunk, and the last one.
    fn states(&self, x: In, g: &Gates, states: &mut Tensor, last: Option<(&mut Value, &mut Value)>) {
        if let Some(over) = self.along() {
            let (c, n) = last.unzip();
            let args = args![&x[5], &x[6], &x[1], &x[2], &g.c, &g.i, states, c, n, self.scale, self.dims];
            return self.cu.launch(&MODULE, sized!("states", self.tiles), self.dtype, over, args);
        }
        let mut added = self.temp(self.heads * self.chunks * self.state());
        let args = args![&x[1], &x[2], &g.c, &g.i, &mut added, self.scale, self.dims];
        self.cu.launch(&MODULE, sized!("values_states", self.tiles), self.dtype, self.outer(), args);
        let (c, n) = last.unzip();
        let args = args![&x[5], &x[6], &added, &g.c, states, c, n, self.heads, self.dims];
        let over = self.cu.elements(self.heads * self.state());
        self.cu.launch(&MODULE, "scan_forward", self.dtype, over, args);
    }

    /// Room for the states before the device's chunks, where those saved are others.
    fn others(&self) -> Option<CudaTemp<'a>> {
        (!self.saved).then(|| self.cu.temp(self.dtype, self.heads * self.chunks * self.state()))
    }
}

impl Mlstm {
    pub(super) fn forward_cuda(&self, cu: &Cuda, x: In, y: &mut [Value]) {
        let (Ok(dims), [h, c_last, n_last, m_last, den, states]) = (Dims::of(x), y) else { return };
        let p = Plan::new(self, cu, x, dims);
        let g = p.gates(x, Some(m_last));
        // Longer chunks than a tile are several; their states are computed again when they are needed.
        let mut others = p.others();
        if others.is_some() {
            states.fill(0.0);
        }
        let states = others.as_deref_mut().unwrap_or(states);
        p.states(x, &g, states, Some((c_last, n_last)));
        let over = p.over(p.tiles.over(p.v.max(1)), 1, 2 * p.tiles.side());
        let args = args![&x[0], &x[1], &x[2], &*states, &g.c, &g.i, &g.m, h, den, p.scale, self.eps, p.dims];
        cu.launch(&MODULE, sized!("outputs", p.tiles), p.dtype, over, args);
    }

    pub(super) fn backward_cuda(&self, cu: &Cuda, x: In, y: &[Value], dy: &[Option<Tensor>], dx: &mut [Grad]) {
        let ([h, c_last, n_last, _, den, states], [dh, dc, dn, dm, ..]) = (y, dy) else { return };
        let (Ok(dims), [dq, dk, dv, di, df, dc0, dn0, dm0, dw0]) = (Dims::of(x), dx) else { return };
        let p = Plan::new(self, cu, x, dims);
        let g = p.gates(x, None);
        let mut others = p.others();
        if let Some(others) = &mut others {
            p.states(x, &g, others, None);
        }
        let states = others.as_deref().unwrap_or(states);
        let [mut by, mut last, mut fixed, mut scaled] = std::array::from_fn(|_| p.temp(p.rows));
        let args = args![h, dh, den, &g.m, &mut by, &mut last, &mut fixed, &mut scaled, p.rows, p.v, self.eps];
        cu.launch(&MODULE, "through_norm", p.dtype, cu.elements(8 * p.rows), args);

        let (mut after, mut first) = (p.temp(p.heads * p.chunks * p.state()), p.temp(p.heads * p.state()));
        let ((to_c, acc_c), (to_n, acc_n)) = (dc0.target(), dn0.target());
        if let Some(over) = p.along() {
            let inputs: &[Arg] = args![dc, dn, &x[0], dh, &by, &last, &g.c, &g.i];
            let outputs = args![&mut after, to_c, acc_c, to_n, acc_n, &mut first, p.dims];
            cu.launch(&MODULE, sized!("states_backward", p.tiles), p.dtype, over, &[inputs, &outputs[..]].concat());
        } else {
            let args = args![&x[0], dh, &by, &last, &g.c, &g.i, &mut after, p.dims];
            cu.launch(&MODULE, sized!("cotangents_states", p.tiles), p.dtype, p.outer(), args);
            let args = args![dc, dn, &mut after, &g.c, to_c, acc_c, to_n, acc_n, &mut first, p.heads, p.dims];
            cu.launch(&MODULE, "scan_backward", p.dtype, cu.elements(p.heads * p.state()), args);
        }
        let bounds = p.heads * (p.chunks + 1);
        let mut dots = p.temp(bounds);
        let args = args![states, c_last, n_last, &first, &after, &mut dots, p.dims];
        cu.launch(&MODULE, "dots", p.dtype, Launch::blocks(bounds, 128), args);

        if let Some((to, acc)) = dv.slot::<Tensor>() {
            let args = args![&x[0], &x[1], dh, &by, &last, &after, &g.c, &g.i, to, acc, p.scale, p.dims];
            cu.launch(&MODULE, sized!("values", p.tiles), p.dtype, p.over(p.tiles.over(p.v), 1, 0), args);
        }
        let parts = p.tiles.over(p.k);
        let [mut qdq, mut kdk] = std::array::from_fn(|_| p.temp(parts * p.rows));
        let ((to_q, q_acc), (to_k, k_acc)) = (dq.target(), dk.target());
        let inputs: &[Arg] = args![&x[0], &x[1], &x[2], dh, &by, &last, states, &after, &g.c, &g.i];
        let outputs = args![to_q, q_acc, to_k, k_acc, &mut qdq, &mut kdk, p.rows, p.scale, p.dims];
        cu.launch(&MODULE, sized!("keys", p.tiles), p.dtype, p.over(parts, 1, 0), &[inputs, &outputs[..]].concat());

        let ((i, acc_i), (f, acc_f), (m, acc_m), (w, acc_w)) = (di.target(), df.target(), dm0.target(), dw0.target());
        let inputs: &[Arg] = args![&x[8], dm, &dots, &qdq, &kdk, parts, &g.c, &g.slope, &g.share, &fixed, &scaled];
        let outputs = args![i, acc_i, f, acc_f, m, acc_m, w, acc_w, p.heads, p.dims];
        let launch = Launch::blocks(p.heads, 64);
        cu.launch(&MODULE, "gates_backward", p.dtype, launch, &[inputs, &outputs[..]].concat());
    }
}
