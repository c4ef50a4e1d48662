//! Forgetting attention (Lin et al. 2025, "Forgetting Transformer", arXiv 2503.02130): softmax attention that counts a token
//! for less with every gate since.
//!
//! ```text
//! o_t = Σ_{s ≤ t} softmax_s(scale q_t·k_s + g_{s+1} + … + g_t) v_s       g = ln of a forget gate, one per head
//! ```

use super::head_first;
use crate::autograd::Var;

/// o [B, T, H, V] of q, k [B, T, H, K], v [B, T, H, V], g [B, T, H].
pub fn attention<'t>(q: Var<'t>, k: Var<'t>, v: Var<'t>, g: Var<'t>, scale: f64) -> Var<'t> {
    let scores = (scale * head_first(q)).matmul_t(head_first(k)) + since(g);
    head_first(scores.causal_softmax(0).tril_matmul(head_first(v)))
}

/// The sum of the gates after s up to t, [B, H, T, T], of g [B, T, H].
pub fn since(g: Var<'_>) -> Var<'_> {
    g.permute([0, 2, 1]).segsum()
}
