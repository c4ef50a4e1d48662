//! Attention to a few slots of memory: gated slot attention, GSA (Zhang et al. 2024, arXiv 2409.07146), and attention with
//! bounded-memory control, ABC (Peng et al. 2022, arXiv 2110.02488); both as in flash-linear-attention.
//!
//! ```text
//! K̃_t = diag(e^{g_t}) K̃_{t-1} + s_t k_tᵀ                                keys of M slots, [M, K]
//! Ṽ_t = diag(e^{g_t}) Ṽ_{t-1} + s_t v_tᵀ                                their values, [M, V]
//! o_t = Ṽ_tᵀ softmax(scale K̃_t q_t)                                     softmax over slots
//! ```
//!
//! GSA has gates g and strengths s from the input, s = 1 − e^g. ABC weighs all tokens so far by a softmax over time in each
//! slot, which is the same with LightNet's gate.

use super::{at, lightnet, over_time};
use crate::{
    autograd::Var,
    ops::words::{insert_axis, outer, recall},
};

/// o [B, T, H, V], moving the slots' keys [B, H, K, M] and values [B, H, M, V] on: q, k [B, T, H, K], v [B, T, H, V], s, g
/// [B, T, H, M].
pub fn attention<'t>([q, k, v, s, g]: [Var<'t>; 5], slots: &mut [Var<'t>; 2], scale: f64) -> Var<'t> {
    over_time(q.shape().at(1), v, |i| {
        let [q, k, v, s, g] = [q, k, v, s, g].map(|x| at(x, i));
        let fade = g.exp();
        let [keys, values] = *slots;
        *slots = [insert_axis(fade, 2) * keys + outer(k, s), insert_axis(fade, 3) * values + outer(s, v)];
        recall(slots[1], (scale * recall(slots[0], q)).softmax())
    })
}

/// ABC: o [B, T, H, V] of q, k [B, T, H, K], v [B, T, H, V], s [B, T, H, M].
pub fn bounded<'t>(q: Var<'t>, k: Var<'t>, v: Var<'t>, s: Var<'t>, scale: f64) -> Var<'t> {
    let [b, t, h, n] = k.dims();
    if t == 0 {
        return v;
    }
    let zero = |shape: [usize; 4]| k.tape().full(shape, k.dtype(), 0.0);
    let (strength, g) = lightnet::over_the_past(s);
    let slots = s.shape().last();
    let mut memory = [zero([b, h, n, slots]), zero([b, h, slots, v.shape().last()])];
    attention([q, k, v, strength, g], &mut memory, scale)
}
