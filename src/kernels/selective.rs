//! The kernel of [`SelectiveScan`].

mod device;
mod lanes;
mod layout;

use crate::{
    autograd::{In, Kernel, Outs},
    kernels::{lane_sums::LANES as L, scan::by_device},
    ops::selective::SelectiveScan,
    tensor::Shape,
};

/// Batch, steps, channels and states.
#[derive(Clone, Copy)]
struct Size {
    b: usize,
    t: usize,
    e: usize,
    n: usize,
}

impl Size {
    fn of(x: In) -> Size {
        let ((b, t, e), n) = (x[0].shape().split(1), x[3].shape().last());
        Size { b, t, e, n }
    }
}

impl Kernel for SelectiveScan {
    fn saves(&self, x: In) -> Outs {
        let (batch, t, e) = x[0].shape().split(1);
        let n = x[2].shape().last();
        Shape::from([batch, t.div_ceil(self.chunk), n, e.next_multiple_of(L)]).into()
    }

    by_device!();
}
