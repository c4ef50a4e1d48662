//! Mixture of memories, MoM (Du et al. 2025, arXiv 2502.13685; as in flash-linear-attention): each token is routed to a few of
//! several memories, each a gated delta rule.
//!
//! ```text
//! ω_t = softmax(router_t), the largest `topk` kept and divided by their sum
//! memory m: the gated delta rule over the tokens that are routed to it, from zero; others leave it as it is
//! o_t = Σ_m ω_tm S_tmᵀ q_t scale
//! ```
//!
//! A token that is not routed to a memory has β = 0 and g = 0 there.

use super::{
    Form,
    memories::{constant, erasing},
};
use crate::{autograd::Var, ops::words::insert_axis};

/// 1 at the `topk` largest of each row, else 0; of equal ones the first.
fn largest(rows: &[f64], width: usize, topk: usize) -> Vec<f64> {
    let row = |row: &[f64]| {
        let rank = |i: usize| (0..width).filter(|&j| row[j] > row[i] || row[j] == row[i] && j < i).count();
        (0..width).map(|i| if rank(i) < topk { 1.0 } else { 0.0 }).collect::<Vec<f64>>()
    };
    rows.chunks(width.max(1)).flat_map(row).collect()
}

/// o [B, T, H, V] of q [B, T, H, K], k [B, T, M, H, K], v [B, T, M, H, V], beta, g [B, T, M, H], router [B, T, M].
pub fn read<'t>([q, k, v, beta, g, router]: [Var<'t>; 6], topk: usize, scale: f64, form: Form) -> Var<'t> {
    let ([b, t, m, h, n], width) = (k.dims(), v.shape().last());
    let kept = constant(router, largest(&router.value().to_f64(), m, topk), &[b, t, m, 1]);
    let weight = router.softmax().reshape([b, t, m, 1]) * kept;
    let weight = weight / weight.sum_axis(2, true);
    // A memory's heads are heads of one memory.
    let gate = |x: Var<'t>| (kept * x).reshape([b, t, m * h, 1]);
    let q = (insert_axis(q, 2) + q.tape().full([m, 1, 1], q.dtype(), 0.0)).reshape([b, t, m * h, n]);
    let (k, v, beta) = (k.reshape([b, t, m * h, n]), v.reshape([b, t, m * h, width]), gate(beta));
    let s = q.tape().full([b, m * h, n, width], q.dtype(), 0.0);
    let (o, _) = erasing([q, k, beta * v, beta * k, gate(g)], s, scale, form);
    (insert_axis(weight, 4) * o.reshape([b, t, m, h, width])).sum_axis(2, false)
}
