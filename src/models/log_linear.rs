//! Log-linear attention (Guo et al. 2025, arXiv 2506.04761): gated linear attention with a weight of its own for each
//! of log T stretches of the past.
//!
//! ```text
//! o_t = scale Σ_{s ≤ t} λ_{t, level(t, s)} e^{g_{s+1} + … + g_t} (q_t·k_s) v_s
//! ```
//!
//! Level 0 is the token itself. The tokens before it, [0, t), are cut as a Fenwick tree cuts them: the last 2^j of them,
//! where 2^j is the lowest bit of t, are level j + 1, and so on with what is left. Hence log T states, which go from
//! token to token by
//!
//! ```text
//! S^{j+1} ← S^0 + … + S^j,  S^0 … S^j ← 0                                where 2^j is the lowest bit of t > 0       (1)
//! S^l ← e^{g_t} S^l for l > 0,  S^0 ← k_t v_tᵀ                                                                      (2)
//! o_t = scale Σ_l λ_tl S^lᵀ q_t                                                                                     (3)
//! ```

use super::{at, head_first, memories::constant, over_time};
use crate::{
    autograd::Var,
    ops::words::{insert_axis, outer, recall},
};

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

/// The same step by step from the states S^l [B, H, K, V] of L levels behind `before` tokens, which move on. Tokens
/// further back than L levels reach are forgotten, as they are in [`attention`].
pub fn recurrent<'t>([q, k, v, g, lambda]: [Var<'t>; 5], levels: &mut [Var<'t>], before: usize, scale: f64) -> Var<'t> {
    over_time(q.shape().at(1), v, |i| {
        let [q, k, v, g, lambda] = [q, k, v, g, lambda].map(|x| at(x, i));
        let bit = (before + i).trailing_zeros() as usize;
        if before + i > 0 {
            let sum = levels.iter().take(bit + 1).copied().reduce(|a, b| a + b); // (1)
            if let (Some(level), Some(sum)) = (levels.get_mut(bit + 1), sum) {
                *level = sum;
            }
            for level in levels.iter_mut().skip(1).take(bit) {
                // A product with 0 would keep what is not finite.
                *level = level.tape().full(level.shape(), level.dtype(), 0.0);
            }
        }
        let alpha = insert_axis(insert_axis(g.exp(), 2), 3);
        for level in levels.iter_mut().skip(1) {
            *level = alpha * *level; // (2)
        }
        if let Some(level) = levels.first_mut() {
            *level = outer(k, v); // (2)
        }
        let reads = levels.iter().enumerate().map(|(l, &s)| lambda.narrow(2, l, 1) * recall(s, q));
        scale * reads.reduce(|a, b| a + b).unwrap_or(v) // (3)
    })
}

/// The states of `levels` levels behind T tokens, of k [B, T, H, K], v [B, T, H, V] and g [B, T, H].
pub fn states<'t>(k: Var<'t>, v: Var<'t>, g: Var<'t>, levels: usize) -> Vec<Var<'t>> {
    let [b, t, h, n] = k.dims();
    if t == 0 {
        return vec![k.tape().full([b, h, n, v.shape().last()], k.dtype(), 0.0); levels];
    }
    let left = g.permute([0, 2, 1]).segsum().narrow(2, t - 1, 1).exp().reshape([b, h, t, 1]);
    let of_level = |l: usize| {
        let here = constant(k, (0..t).map(|s| f64::from(u8::from(level(t - 1, s) == l))).collect(), &[t, 1]);
        (left * here * head_first(k)).t_matmul(head_first(v))
    };
    (0..levels).map(of_level).collect()
}
