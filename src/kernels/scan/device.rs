//! The scan on a device, and the launch that it shares with the other scans over channels.

use crate::{
    args,
    autograd::{Grad, In, Value},
    cuda::{Launch, Module},
    ops::scan::LinearScan,
    tensor::{Cuda, Tensor},
};

/// Slices of steps that a block has side by side: `SLICES` of `groups.cuh`.
pub(in crate::kernels) const SLICES: usize = 8;

/// A block for every 32 of these channels, of all sequences.
pub(in crate::kernels) fn groups(channels: usize) -> Launch {
    Launch::blocks(channels.div_ceil(32), 32 * SLICES)
}

static MODULE: Module = Module::new("kernels/scan.cu", &[include_str!("groups.cuh"), include_str!("../scan.cu")]);

impl LinearScan {
    pub(super) fn forward_cuda(&self, cu: &Cuda, x: In, y: &mut [Value]) {
        let [h, last] = y else { return };
        let (n, t, d) = x[0].shape().split(1);
        let args = args![&x[0], &x[1], &x[2], h, last, n, t, d];
        cu.launch(&MODULE, "scan_run", x[0].dtype(), groups(n * d), args);
    }

    pub(super) fn backward_cuda(&self, cu: &Cuda, x: In, y: &[Value], dy: &[Option<Tensor>], dx: &mut [Grad]) {
        let ([ga, gb, gh0], [dh, dlast]) = (dx, dy) else { return };
        let (n, t, d) = x[0].shape().split(1);
        let ((da, acc_a), (db, acc_b), (dh0, acc_0)) = (ga.target(), gb.target(), gh0.target());
        let args = args![&x[0], &y[0], &x[2], dh, dlast, da, acc_a, db, acc_b, dh0, acc_0, n, t, d];
        cu.launch(&MODULE, "scan_run_back", x[0].dtype(), groups(n * d), args);
    }
}
