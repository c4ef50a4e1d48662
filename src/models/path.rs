//! PaTH attention (Yang et al. 2025, arXiv 2505.16381; as in flash-linear-attention, fla/ops/path_attn/naive.py): between a key
//! and the token that reads it every token applies a transition of the delta rule to the key.
//!
//! ```text
//! x_ts = q_tᵀ (I − β_t w_t w_tᵀ) … (I − β_{s+1} w_{s+1} w_{s+1}ᵀ) k_s + g_{s+1} + … + g_t
//! o_t = Σ_{s ≤ t} softmax_s(scale x_ts) v_s                              the gate inside the scale
//! ```
//!
//! Step by step: every cached key is rewritten, k_s ← k_s − β_t w_t (w_tᵀ k_s), and then attended to. With β in (0, 2) these are
//! reflections, and attention can track what swaps do.

use super::{at, fox::since, over_time};
use crate::{autograd::Var, ops::words::insert_axis};

/// o [B, T, H, V] of q, k, w [B, T, H, K], v [B, T, H, V], beta, g [B, T, H].
pub fn attention<'t>([q, k, v, w, beta, g]: [Var<'t>; 6], scale: f64) -> Var<'t> {
    let [b, t, h, _] = k.dims();
    let (since, row) = (since(g), |x: Var<'t>, i| insert_axis(at(x, i), 2)); // [B, H, 1, K]
    let mut keys = k.permute([0, 2, 1, 3]).narrow(2, 0, 0);
    let values = v.permute([0, 2, 1, 3]);
    over_time(t, v, |i| {
        let (w, beta) = (row(w, i), at(beta, i).reshape([b, h, 1, 1]));
        keys = Var::concat(&[keys - keys.matmul_t(w) * (beta * w), row(k, i)], 2);
        let gates = since.narrow(2, i, 1).narrow(3, 0, i + 1);
        let a = (scale * (row(q, i).matmul_t(keys) + gates)).softmax();
        a.matmul(values.narrow(2, 0, i + 1)).reshape([b, h, v.shape().last()])
    })
}
