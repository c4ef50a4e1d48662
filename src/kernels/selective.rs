//! The kernel of [`SelectiveScan`].
//!
//! Backwards in time, with G_t = ā_t g_t the gradient that step t passes to step t − 1, and w_t = exp(Δ_t a):
//!
//! ```text
//! g_t = c_t dy_t + G_{t+1}             G behind the last step is the gradient of the last h; dh_0 = G_1
//! q_t = g_t h_{t-1} s w_t              the gradient of Δ_t a
//! da = Σ_{b,t} q_t Δ_t                 dΔ_t = u_t Σ_n g_t b_t + Σ_n q_t a
//! du_t = Δ_t Σ_n g_t b_t               db_t = Σ_e g_t Δ_t u_t              dc_t = Σ_e dy_t h_t
//! ```
//!
//! The states [B, T, E, N] are never stored: the forward pass keeps one at the start of every chunk of steps, and the
//! backward pass computes the states inside a chunk again. A state is kept as [N, E], the number of channels rounded up
//! to whole blocks.

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
