//! The scan on a device, and the pieces that all scans cut their sequences into there.

use crate::{
    args,
    autograd::{Grad, In, Value},
    cuda::{Launch, Module},
    ops::scan::LinearScan,
    tensor::{Cuda, CudaTemp, DType, Device, Shape, Tensor},
};

/// How a device cuts sequences: into pieces of `steps` steps, a thread each for every channel.
#[derive(Clone, Copy)]
pub(in crate::kernels) struct Pieces {
    pub n: usize,
    pub pieces: usize,
    pub t: usize,
    pub d: usize,
    pub steps: usize,
}

impl Pieces {
    /// Whole chunks, no more of them apart than keep a large device busy; one piece at least, so that somebody writes
    /// the last state when there are no steps.
    pub fn new(cu: &Cuda, n: usize, t: usize, d: usize, chunk: usize) -> Pieces {
        // Few in emulation, so that chunks are run together there too.
        let threads: usize = if cu.gpu().device() == Device::Emulated { 1 << 7 } else { 1 << 16 };
        let chunks = t.div_ceil(chunk).max(1);
        let apart = threads.div_ceil((n * d).max(1)).min(chunks);
        let steps = chunks.div_ceil(apart) * chunk.min(t.max(1));
        Pieces { n, pieces: t.div_ceil(steps).max(1), t, d, steps }
    }

    /// The pieces of x [B, T, D].
    pub fn of(cu: &Cuda, x: Shape, chunk: usize) -> Pieces {
        let (n, t, d) = x.split(1);
        Pieces::new(cu, n, t, d, chunk)
    }

    /// A thread for every channel of every piece.
    pub fn launch(&self) -> Launch {
        Launch::blocks((self.n * self.pieces * self.d).div_ceil(128), 128)
    }

    /// A thread for every channel of every sequence.
    pub fn across(&self) -> Launch {
        Launch::blocks((self.n * self.d).div_ceil(128), 128)
    }

    /// A number for every channel of every piece, or none where phases 1 and 2 have nothing to do.
    pub fn scratch<'a>(&self, cu: &'a Cuda, dtype: DType) -> Option<CudaTemp<'a>> {
        (self.pieces > 1).then(|| cu.temp(dtype.real(), self.n * self.pieces * self.d))
    }

    /// Phase 2: `ends` from zero become true starts, from `first` (zeros if there is none) on.
    pub fn carry(
        &self,
        cu: &Cuda,
        first: Option<&Tensor>,
        prod: &CudaTemp,
        ends: &mut CudaTemp,
        back: bool,
        dtype: DType,
    ) {
        let args = args![first, prod, ends, self.n, self.pieces, self.d, back];
        cu.launch(&MODULE, "scan_carry", dtype, self.across(), args);
    }
}

static MODULE: Module = Module::new("kernels/scan.cu", &[include_str!("../scan.cu")]);

impl LinearScan {
    pub(super) fn forward_cuda(&self, cu: &Cuda, x: In, y: &mut [Value]) {
        let [h, last] = y else { return };
        let (p, dtype) = (Pieces::of(cu, x[0].shape(), self.chunk), x[0].dtype());
        let Pieces { n, pieces, t, d, steps } = p;
        let (mut starts, prods) = (p.scratch(cu, dtype), p.scratch(cu, dtype));
        if let (Some(starts), Some(mut prods)) = (&mut starts, prods) {
            let args = args![&x[0], &x[1], &mut prods, &mut *starts, n, pieces, t, d, steps];
            cu.launch(&MODULE, "scan_total", dtype, p.launch(), args);
            p.carry(cu, Some(&x[2]), &prods, starts, false, dtype);
        }
        let args = args![&x[0], &x[1], &x[2], starts.as_ref(), h, last, n, pieces, t, d, steps];
        cu.launch(&MODULE, "scan_run", dtype, p.launch(), args);
    }

    pub(super) fn backward_cuda(&self, cu: &Cuda, x: In, y: &[Value], dy: &[Option<Tensor>], dx: &mut [Grad]) {
        let ([ga, gb, gh0], [dh, dlast]) = (dx, dy) else { return };
        let (p, dtype) = (Pieces::of(cu, x[0].shape(), self.chunk), x[0].dtype());
        let Pieces { n, pieces, t, d, steps } = p;
        let (mut ends, prods) = (p.scratch(cu, dtype), p.scratch(cu, dtype));
        if let (Some(ends), Some(mut prods)) = (&mut ends, prods) {
            let args = args![&x[0], dh, &mut prods, &mut *ends, n, pieces, t, d, steps];
            cu.launch(&MODULE, "scan_total_back", dtype, p.launch(), args);
            p.carry(cu, dlast.as_ref(), &prods, ends, true, dtype);
        }
        let ((da, acc_a), (db, acc_b), (dh0, acc_0)) = (ga.target(), gb.target(), gh0.target());
        let ends = ends.as_ref();
        #[rustfmt::skip]
        let args = args![&x[0], &y[0], &x[2], dh, dlast, ends, da, acc_a, db, acc_b, dh0, acc_0, n, pieces, t, d, steps];
        cu.launch(&MODULE, "scan_run_back", dtype, p.launch(), args);
    }
}
