//! The linear state-space layer, LSSL (Gu et al. 2021, arXiv 2110.13985; as in the authors' lssl.py): a dense transition that
//! keeps the coefficients of the input in Legendre polynomials (HiPPO-LegS).
//!
//! ```text
//! A_nm = −√(2n+1) √(2m+1) (n > m), −(n + 1) (n = m), 0 (n < m),  B_n = √(2n+1)
//! Ā = (I − aΔA)⁻¹ (I + (1 − a)ΔA),  B̄ = (I − aΔA)⁻¹ ΔB                    generalised bilinear; Δ = exp(log_dt) a channel
//! h_t = Ā h_{t-1} + B̄ u_t,  y_t = c·h_t + d u_t
//! ```

use super::{at, memories::constant, over_time};
use crate::autograd::Var;

/// y [B, T, D] of u [B, T, D], log_dt, d `[D]`, c [D, N]; a = `gbt`.
pub fn filter<'t>(u: Var<'t>, log_dt: Var<'t>, d: Var<'t>, c: Var<'t>, gbt: f64) -> Var<'t> {
    let ([b, t, channels], n) = (u.dims(), c.shape().last());
    let root = |n: usize| (2.0 * n as f64 + 1.0).sqrt();
    let entry = |i: usize| match (i / n, i % n) {
        (n, m) if n > m => -root(n) * root(m),
        (n, m) if n == m => -(n as f64 + 1.0),
        _ => 0.0,
    };
    let a = constant(u, (0..n * n).map(entry).collect(), &[n, n]);
    let input = constant(u, (0..n).map(root).collect(), &[n, 1]);
    let one = constant(u, (0..n * n).map(|i| if i % (n + 1) == 0 { 1.0 } else { 0.0 }).collect(), &[n, n]);
    let dt = log_dt.exp().reshape([channels, 1, 1]);
    let (implicit, explicit) = (one - gbt * dt * a, one + (1.0 - gbt) * dt * a);
    // A is triangular: its rows divided by the diagonal make a unit triangular system.
    let diagonal = (implicit * one).sum_axis(2, true);
    let right = Var::concat(&[explicit, dt * input], 2) / diagonal;
    let solved = (implicit / diagonal).unit_lower_solve(right);
    let (a, input) = (solved.narrow(2, 0, n), solved.narrow(2, n, 1).reshape([channels, 1, n]));
    let mut h = u.tape().full([channels, b, n], u.dtype(), 0.0);
    over_time(t, u, |i| {
        let u = at(u, i);
        h = h.matmul_t(a) + u.transpose(0, 1).reshape([channels, b, 1]) * input;
        (h * c.reshape([channels, 1, n])).sum_axis(2, false).transpose(0, 1) + d * u
    })
}
