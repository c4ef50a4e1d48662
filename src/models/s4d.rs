//! S4D (Gu et al. 2022, arXiv 2206.11893; as in the authors' s4d.py): a fixed, diagonal, complex state-space model for each
//! channel.
//!
//! ```text
//! A = −exp(log_a_real) + i a_imag,  Δ = exp(log_dt),  λ = e^{ΔA}         zero-order hold
//! h_t = λ h_{t-1} + (λ − 1)/A u_t                                        N states a channel, of conjugate pairs one each
//! y_t = 2 Re Σ_n c_n h_tn + d u_t
//! ```
//!
//! The states are an LRU's. The transition does not depend on the input.

use crate::{autograd::Var, ops::lru_scan::lru_scan};

/// The parameters: log_dt, d `[D]`; the others [D, N].
pub struct Weights<'t> {
    /// ln Δ
    pub log_dt: Var<'t>,
    /// d
    pub d: Var<'t>,
    /// ln −Re A
    pub log_a_real: Var<'t>,
    /// Im A
    pub a_imag: Var<'t>,
    /// Re c
    pub c_re: Var<'t>,
    /// Im c
    pub c_im: Var<'t>,
}

/// y [B, T, D] of u [B, T, D], in chunks of so many steps.
pub fn filter<'t>(u: Var<'t>, w: Weights<'t>, chunk: usize) -> Var<'t> {
    let ([b, t, d], n) = (u.dims(), w.c_re.shape().last());
    let (dt, a_re, a_im) = (w.log_dt.exp().reshape([d, 1]), -w.log_a_real.exp(), w.a_imag);
    let (growth, angle) = (dt * a_re, dt * a_im);
    let lambda = (growth.exp() * angle.cos(), growth.exp() * angle.sin());
    // λ − 1, whose real part is small where the steps are.
    let less = (growth.expm1() * angle.cos() - 2.0 * (0.5 * angle).sin().square(), lambda.1);
    let size = a_re.square() + a_im.square();
    let input = ((less.0 * a_re + less.1 * a_im) / size, (less.1 * a_re - less.0 * a_im) / size);
    let (u_column, flat) = (u.reshape([b, t, d, 1]), |x: Var<'t>| x.reshape([b, t, d * n]));
    let x = (flat(u_column * input.0), flat(u_column * input.1));
    let zero = u.tape().full([b, d * n], u.dtype(), 0.0);
    let ((re, im), _) = lru_scan((lambda.0.reshape([d * n]), lambda.1.reshape([d * n])), x, (zero, zero), chunk);
    let states = |x: Var<'t>| x.reshape([b, t, d, n]);
    2.0 * (states(re) * w.c_re - states(im) * w.c_im).sum_axis(3, false) + w.d * u
}
