//! A modern Hopfield network's retrieval (Ramsauer et al. 2021, arXiv 2008.02217, equation 3; as in the authors' hflayers):
//! attention whose query first moves towards the keys that it attends to.
//!
//! ```text
//! ξ_0 = q_t,  p_i = softmax_{s ≤ t}(scale ξ_i·k_s),  ξ_{i+1} = Σ_s p_is k_s      so many updates
//! o_t = Σ_s p_s v_s                                                              with the last p
//! ```
//!
//! No update is attention. There is no early stop: it would depend on the other sequences of a batch.

use super::head_first;
use crate::autograd::Var;

/// o [B, T, H, V] of q, k [B, T, H, K], v [B, T, H, V].
pub fn attention<'t>(q: Var<'t>, k: Var<'t>, v: Var<'t>, scale: f64, updates: usize) -> Var<'t> {
    let (k, mut state) = (head_first(k), head_first(q));
    for _ in 0..updates {
        state = (scale * state).matmul_t(k).causal_softmax(0).tril_matmul(k);
    }
    head_first((scale * state).matmul_t(k).causal_softmax(0).tril_matmul(head_first(v)))
}
