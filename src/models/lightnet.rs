//! LightNet's memory (Qin et al. 2024, arXiv 2405.21022; as in flash-linear-attention, fla/ops/lightnet): a gate that comes
//! from the keys themselves.
//!
//! ```text
//! z_t = ln(e^{z_{t-1}} + e^{k_t})                                        for each channel of the key; z_0 = −∞
//! S_t = diag(e^{z_{t-1} − z_t}) S_{t-1} + e^{k_t − z_t} v_tᵀ             gated linear attention, S_0 = 0
//! o_t = scale S_tᵀ q_t
//! ```
//!
//! Channel c reads a softmax over time: o_t = scale Σ_c q_tc Σ_{s ≤ t} softmax_s(k_sc) v_s. Nothing decays by itself: an early
//! large key stays.

use super::{Form, at, memories::gated, over_time};
use crate::{autograd::Var, ops::words::insert_axis};

/// e^{k_t − z_t} and z_{t-1} − z_t, [B, T, H, K], of k [B, T, H, K] with T ≥ 1. There is nothing before the first step to
/// forget: its gate is 0.
pub fn over_the_past(k: Var<'_>) -> (Var<'_>, Var<'_>) {
    let [b, t, h, n] = k.dims();
    let mut z = at(k, 0);
    let all = over_time(t, k, |i| {
        if i > 0 {
            z = Var::concat(&[insert_axis(z, 3), insert_axis(at(k, i), 3)], 3).logsumexp().reshape([b, h, n]);
        }
        z
    });
    ((k - all).exp(), Var::concat(&[all.narrow(1, 0, 1), all.narrow(1, 0, t - 1)], 1) - all)
}

/// o [B, T, H, V] of q, k [B, T, H, K], v [B, T, H, V].
pub fn attention<'t>(q: Var<'t>, k: Var<'t>, v: Var<'t>, scale: f64, form: Form) -> Var<'t> {
    let [b, t, h, n] = k.dims();
    if t == 0 {
        return v;
    }
    let (key, g) = over_the_past(k);
    let s = k.tape().full([b, h, n, v.shape().last()], k.dtype(), 0.0);
    gated([q, key, v, g], s, scale, form).0
}
