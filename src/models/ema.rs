//! The moving average of MEGA (Ma et al. 2023, arXiv 2209.10655; as in SeqBoat's code): several exponential averages of
//! each channel, damped.
//!
//! ```text
//! p = σ(δ),  h_t = (1 − p σ(α)) ⊙ h_{t-1} + p ⊙ β x_t                    N averages a channel
//! y_t = γ·h_t / √N + ω x_t
//! ```

use crate::{autograd::Var, ops::scan::linear_scan};

/// y [B, T, D] of x [B, T, D], delta, alpha, beta, gamma [D, N], omega `[D]`; in chunks of so many steps. The last h
/// [B, D N] moves on.
pub fn average<'t>(
    x: Var<'t>,
    [delta, alpha, beta, gamma]: [Var<'t>; 4],
    omega: Var<'t>,
    last: &mut Var<'t>,
    chunk: usize,
) -> Var<'t> {
    let ([b, t, d], n, dtype) = (x.dims(), delta.shape().last(), x.dtype());
    let (p, flat) = (delta.sigmoid(), [b, t, d * n]);
    let keep = x.tape().full([b, t, 1, 1], dtype, 1.0) * (1.0 - p * alpha.sigmoid()).cast(dtype);
    let take = x.reshape([b, t, d, 1]) * (p.cast(dtype) * beta);
    let h;
    (h, *last) = linear_scan(keep.reshape(flat), take.reshape(flat), *last, chunk);
    let read = (h.reshape([b, t, d, n]) * gamma).sum_axis(3, false);
    (n.max(1) as f64).powf(-0.5) * read + omega * x
}
