//! The linear memory of Titans (Behrouz et al. 2025, arXiv 2501.00663): the delta rule as gradient descent with momentum.
//!
//! ```text
//! M_t = η_t M_{t-1} + θ_t k_t (v_t − S_{t-1}ᵀ k_t)ᵀ                      momentum: past surprise and momentary surprise
//! S_t = (1 − α_t) S_{t-1} + M_t                                          α forgets
//! o_t = scale S_tᵀ q_t
//! ```
//!
//! Along k the transition of (S, M) is [[1 − α − θ, η], [−θ, η]], whose eigenvalues may be complex: momentum turns the state
//! while it fades.

use super::{at, over_time};
use crate::{
    autograd::Var,
    ops::words::{insert_axis, outer, recall},
};

/// o [B, T, H, V], moving S and M [B, H, K, V] on: q, k [B, T, H, K], v [B, T, H, V], theta, eta, alpha [B, T, H].
pub fn read<'t>(x: [Var<'t>; 6], memory: &mut [Var<'t>; 2], scale: f64) -> Var<'t> {
    over_time(x[0].shape().at(1), x[2], |i| {
        let [q, k, v, theta, eta, alpha] = x.map(|x| at(x, i));
        let number = |x: Var<'t>| insert_axis(insert_axis(x, 2), 3);
        let [s, m] = *memory;
        let m = number(eta) * m + outer(insert_axis(theta, 2) * k, v - recall(s, k));
        *memory = [number(1.0 - alpha) * s + m, m];
        scale * recall(memory[0], q)
    })
}
