//! The feature map of Based (Arora et al. 2024, arXiv 2402.18668), which is the exponential's Taylor series up to the
//! square, and JRT's reading of a prefix (Arora et al. 2024, "Just read twice", arXiv 2407.05483).
//!
//! ```text
//! φ(q)·φ(k) = 1 + x + x²/2,  x = scale q·k                               positive for every x
//! o_t = Σ_{s ≤ t} φ(q_t)·φ(k_s) v_s / (Σ_{s ≤ t} φ(q_t)·φ(k_s) + ε)
//! ```
//!
//! JRT adds to both sums those over all of a prefix, with keys and values of its own: every token sees the whole of it.

use super::head_first;
use crate::autograd::Var;

fn weights<'t>(q: Var<'t>, k: Var<'t>, scale: f64) -> Var<'t> {
    let x = (scale * q).matmul_t(k);
    0.5 * x.square() + x + 1.0
}

/// o [B, T, H, V] of q, k [B, T, H, K], v [B, T, H, V] and a prefix k [B, E, H, K], v [B, E, H, V] or none.
pub fn attention<'t>([q, k, v]: [Var<'t>; 3], prefix: Option<[Var<'t>; 2]>, scale: f64, eps: f64) -> Var<'t> {
    let [q, k, v] = [q, k, v].map(head_first);
    let a = weights(q, k, scale).tril(0);
    let (mut sum, mut read) = (a.sum_axis(3, true), a.tril_matmul(v));
    if let Some([k, v]) = prefix {
        let a = weights(q, head_first(k), scale);
        (sum, read) = (sum + a.sum_axis(3, true), read + a.matmul(head_first(v)));
    }
    head_first(read / (sum + eps))
}
