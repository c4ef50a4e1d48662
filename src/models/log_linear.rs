//! Log-linear attention (Guo et al. 2025, arXiv 2506.04761): gated linear attention with a weight of its own for each
//! of log T stretches of the past.
//!
//! ```text
//! o_t = scale Σ_{s ≤ t} λ_{t, level(t, s)} e^{g_{s+1} + … + g_t} (q_t·k_s) v_s
//! ```
//!
//! Level 0 is the token itself. The tokens before it,
//! [0, t), are cut as a Fenwick tree cuts them: the last 2^j of them, where 2^j is the lowest bit of t, are level j + 1, and so on with what is left.

use super::{head_first, memories::constant};
use crate::autograd::Var;

/// The level of token s at token t ≥ s.
fn level(mut t: usize, s: usize) -> usize {
    if s == t {
        return 0;
    }
    while t & (t - 1) > s {
        t &= t - 1;
    }
    1 + t.trailing_zeros() as usize
}

/// How many levels T tokens have.
pub fn levels(t: usize) -> usize {
    t.max(1).next_power_of_two().trailing_zeros() as usize + 1
}

/// o [B, T, H, V] of q, k [B, T, H, K], v [B, T, H, V], g [B, T, H] and λ [B, T, H, L].
pub fn attention<'t>([q, k, v, g, lambda]: [Var<'t>; 5], scale: f64) -> Var<'t> {
    let (t, lambda) = (q.shape().at(1), head_first(lambda));
    let levels: Vec<Var<'t>> = (0..lambda.shape().last())
        .map(|l| {
            let here = |i: usize| if i % t <= i / t && level(i / t, i % t) == l { 1.0 } else { 0.0 };
            lambda.narrow(3, l, 1) * constant(q, (0..t * t).map(here).collect(), &[t, t])
        })
        .collect();
    let Some(weight) = levels.into_iter().reduce(|a, b| a + b) else { return v };
    let decay = g.permute([0, 2, 1]).segsum().exp();
    let scores = (scale * head_first(q)).matmul_t(head_first(k)) * decay * weight;
    head_first(scores.tril_matmul(head_first(v)))
}
