//! The selective scan on a device.

use crate::{
    args,
    autograd::{Grad, In, Value, zeroed},
    cuda::{Arg, Launch, Module},
    kernels::{
        linear,
        selective::{L, Size},
    },
    ops::selective::SelectiveScan,
    tensor::{Cuda, CudaTemp, DType, Device, Tensor},
};

static MODULE: Module = Module::new("kernels/selective.cu", &[include_str!("../selective.cu")]);

/// Channels of a block on a device, states of a thread, and the most states of a block.
const BLOCK: (usize, usize, usize) = (32, 4, 32);

/// How a device runs it: sequences in pieces, states in ranges that a block can hold.
struct Plan {
    z: Size,
    chunk: usize,
    s: f64,
    /// Pieces of a sequence, and their steps.
    pieces: usize,
    steps: usize,
    /// Blocks of channels.
    tiles: usize,
}

impl Plan {
    /// The first states of the ranges.
    fn ranges(&self) -> impl Iterator<Item = usize> {
        (0..self.z.n).step_by(BLOCK.2)
    }

    /// Threads of a block for the states from `n0` on.
    fn threads(&self, n0: usize) -> usize {
        BLOCK.0 * (self.z.n - n0).min(BLOCK.2).div_ceil(BLOCK.1)
    }

    fn launch(&self, n0: usize) -> Launch {
        Launch::blocks(self.z.b * self.pieces * self.tiles, self.threads(n0))
    }

    /// The arguments that every kernel takes last, behind `args`.
    fn args(&self, args: &[Arg], n0: usize) -> Vec<Arg> {
        let z = &self.z;
        let padded = z.e.next_multiple_of(L);
        [args, args![z.b, z.t, z.e, z.n, n0, self.pieces, self.steps, self.chunk, padded, self.s]].concat()
    }

    /// States of a sequence.
    fn states(&self) -> usize {
        self.z.e * self.z.n
    }

    /// A number for every state of every piece, or none where phases 1 and 2 have nothing to do.
    fn scratch<'a>(&self, cu: &'a Cuda, dtype: DType) -> Option<CudaTemp<'a>> {
        (self.pieces > 1).then(|| cu.temp(dtype.real(), self.z.b * self.pieces * self.states()))
    }

    /// Phase 2: `ends` from zero become true starts, from `first` (zeros if there is none) on.
    fn carry(&self, cu: &Cuda, first: Option<&Tensor>, prod: &CudaTemp, ends: &mut CudaTemp, back: bool, dtype: DType) {
        let (n, states) = (self.z.b, self.states());
        let args = args![first, prod, ends, n, self.pieces, states, back];
        cu.launch(&MODULE, "selective_carry", dtype, Launch::blocks((n * states).div_ceil(128), 128), args);
    }
}

impl SelectiveScan {
    fn plan(&self, cu: &Cuda, x: In) -> Plan {
        let (z, chunk) = (Size::of(x), self.chunk.min(x[0].shape().at(1)).max(1));
        // Few threads in emulation, so that chunks are run together there too. A thread of four states has as much to do as
        // two of one, and a second piece costs phase 1.
        let threads: usize = if cu.gpu().device() == Device::Emulated { 1 << 7 } else { 1 << 16 };
        let busy = z.b * 2 * z.e * z.n.div_ceil(BLOCK.1);
        // Whole chunks; one piece at least, so that somebody writes the last state when there are no steps.
        let chunks = z.t.div_ceil(chunk).max(1);
        let apart = threads.div_ceil(busy.max(1)).min(chunks);
        let steps = chunks.div_ceil(apart) * chunk.min(z.t.max(1));
        let tiles = z.e.next_multiple_of(L).div_ceil(BLOCK.0);
        Plan { chunk, s: self.s, pieces: z.t.div_ceil(steps).max(1), steps, tiles, z }
    }

    pub(super) fn forward_cuda(&self, cu: &Cuda, x: In, y: &mut [Value]) {
        let [y, last, saved] = y else { return };
        let (p, dtype) = (self.plan(cu, x), x[0].dtype());
        if p.z.b * p.z.e * p.z.n == 0 {
            return y.fill(0.0);
        }
        let (mut starts, prods) = (p.scratch(cu, dtype), p.scratch(cu, dtype));
        if let (Some(starts), Some(mut prods)) = (&mut starts, prods) {
            for n0 in p.ranges() {
                let args = p.args(args![&x[0], &x[1], &x[2], &x[3], &mut prods, &mut *starts], n0);
                cu.launch(&MODULE, "selective_total", dtype, p.launch(n0), &args);
            }
            p.carry(cu, Some(&x[5]), &prods, starts, false, dtype);
        }
        for n0 in p.ranges() {
            let (starts, y, last, saved) = (starts.as_ref(), &mut *y, &mut *last, &mut *saved);
            let args = p.args(args![&x[0], &x[1], &x[2], &x[3], &x[4], &x[5], starts, y, last, saved], n0);
            cu.launch(&MODULE, "selective_run", dtype, p.launch(n0), &args);
        }
    }

    pub(super) fn backward_cuda(&self, cu: &Cuda, x: In, y: &[Value], dy: &[Option<Tensor>], dx: &mut [Grad]) {
        let ([dy, dlast, ..], (p, dtype)) = (dy, (self.plan(cu, x), x[0].dtype())) else { return };
        let (rows, narrow) = (p.z.b * p.pieces, p.z.b * p.z.t * p.z.n);
        if p.z.b * p.z.e * p.z.n == 0 {
            return dx.iter_mut().filter_map(Grad::slot::<Tensor>).for_each(|d| _ = zeroed(d));
        }
        let [gu, gdelta, ga, gb, gc, gh0] = dx else { return };
        let (mut ends, prods) = (p.scratch(cu, dtype), p.scratch(cu, dtype));
        if let (Some(ends), Some(mut prods)) = (&mut ends, prods) {
            for n0 in p.ranges() {
                let args = p.args(args![dy, &x[1], &x[2], &x[4], &mut prods, &mut *ends], n0);
                cu.launch(&MODULE, "selective_total_back", dtype, p.launch(n0), &args);
            }
            p.carry(cu, dlast.as_ref(), &prods, ends, true, dtype);
        }
        let sums = |wanted: bool, len: usize| wanted.then(|| cu.temp(dtype.real(), len));
        let mut dbc = sums(gb.wanted() || gc.wanted(), 2 * p.tiles * narrow);
        let mut da = sums(ga.wanted(), rows * p.states());
        let ((du, acc_u), (ddelta, acc_d), (dh0, acc_0)) = (gu.target(), gdelta.target(), gh0.target());
        for n0 in p.ranges() {
            // States at 8 places of a chunk, in doubles at 4.
            let places = if dtype == DType::F64 { 4 } else { 8 };
            let shared = places * BLOCK.1 * p.threads(n0) * dtype.real().bytes();
            #[rustfmt::skip]
            let args = p.args(args![
                &x[0], &x[1], &x[2], &x[3], &x[4], &y[2], dy, dlast, ends.as_ref(), du, acc_u, ddelta, acc_d,
                dbc.as_mut(), da.as_mut(), dh0, acc_0
            ], n0);
            cu.launch(&MODULE, "selective_run_back", dtype, p.launch(n0).shared(shared), &args);
        }
        if let (Some(sums), Some((to, acc))) = (&da, ga.slot::<Tensor>()) {
            linear::total_cuda(cu, &sums.window(0, [rows, p.states()]), rows, to, acc);
        }
        for (i, grad) in [gb, gc].into_iter().enumerate() {
            if let (Some(sums), Some((to, acc))) = (&dbc, grad.slot::<Tensor>()) {
                linear::total_cuda(cu, &sums.window(i * p.tiles * narrow, [p.tiles, narrow]), p.tiles, to, acc);
            }
        }
    }
}
