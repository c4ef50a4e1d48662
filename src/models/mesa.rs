//! The Mesa layer (von Oswald et al. 2025, arXiv 2506.05233): what the best linear map from the keys so far to their
//! values says of the query.
//!
//! ```text
//! A_t = e^{g_t} A_{t-1} + β_t k_t k_tᵀ      B_t = e^{g_t} B_{t-1} + β_t k_t v_tᵀ
//! o_t = B_tᵀ (A_t + diag(λ))⁻¹ q_t
//! ```

use super::{at, over_time};
use crate::{
    autograd::Var,
    ops::words::{insert_axis, outer, recall},
};

/// o [B, T, H, V], moving A [B, H, K, K] and B [B, H, K, V] on: q, k [B, T, H, K], v [B, T, H, V], g, beta [B, T, H],
/// lambda [H, K].
pub fn read<'t>([q, k, v, g, beta]: [Var<'t>; 5], lambda: Var<'t>, memory: &mut [Var<'t>; 2]) -> Var<'t> {
    let (t, [h, n]) = (q.shape().at(1), lambda.dims());
    let identity = (0..n * n).map(|i| if i % (n + 1) == 0 { 1.0 } else { 0.0 }).collect();
    let ridge = super::memories::constant(q, identity, &[1, n, n]) * lambda.reshape([h, n, 1]);
    over_time(t, v, |i| {
        let [q, k, v, g, beta] = [q, k, v, g, beta].map(|x| at(x, i));
        let (fade, k_beta) = (insert_axis(insert_axis(g, 2), 3).exp(), insert_axis(beta, 2) * k);
        *memory = [fade * memory[0] + outer(k_beta, k), fade * memory[1] + outer(k_beta, v)];
        recall(memory[1], solve(memory[0] + ridge, q))
    })
}

/// A⁻¹ q for positive definite A [B, H, K, K] and q [B, H, K], by elimination.
fn solve<'t>(a: Var<'t>, q: Var<'t>) -> Var<'t> {
    let [b, h, n] = q.dims();
    let mut rows = Var::concat(&[a, insert_axis(q, 3)], 3); // [B, H, K, K + 1]
    for i in 0..n {
        let row = rows.narrow(2, i, 1);
        let row = row / row.narrow(3, i, 1);
        let rest = rows - rows.narrow(3, i, 1) * row;
        rows = Var::concat(&[rest.narrow(2, 0, i), row, rest.narrow(2, i + 1, n - i - 1)], 2);
    }
    rows.narrow(3, n, 1).reshape([b, h, n])
}
