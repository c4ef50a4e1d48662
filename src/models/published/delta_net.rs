//! The published DeltaNet:
//!
//! ```text
//! q, k, v = W_{q,k,v} x + b,  β = σ(W_β x + b_β) one per head,  φ = elu + 1
//! v̄_t = diag(S_{t-1}) ⊙ φ(k_t)                                              (should be S_{t-1}ᵀ φ(k_t))
//! S_t = S_{t-1} + β_t φ(k_t) (v_t − v̄_t)ᵀ
//! o_t = diag(S_t) ⊙ φ(q_t)                                                  (should be S_tᵀ φ(q_t))
//! y_t = W_o o_t + b_o
//! ```

use super::{
    Config, Defect, Init, Part,
    linear_transformer::{projections, qkv},
};
use crate::{
    autograd::Var,
    models::{Form, State, at, merge_heads, over_time},
    ops::{delta::delta_rule, scan::linear_scan},
};

pub(super) use super::linear_transformer::DECODER;

pub(super) fn init(c: &Config, init: &mut Init) {
    DECODER.init(c, init, |c, init| {
        projections(c, init);
        init.linear_std("linear_beta", c.n_heads, c.h_dim, c.std);
    });
}

/// φ(q), φ(k), v [B, T, H, d] and β [B, T, H] to o [B, T, H, d].
///
/// DEFECT: the published `einsum("bhdd,bhd->bhd", S, k)` repeats an index, which takes the diagonal of S, both in the
/// correction and in the read. Elements off the diagonal are written but never read. Only w = diag(S) matters:
///
/// ```text
/// w_t = (1 − β_t φ(k_t)²) ⊙ w_{t-1} + β_t φ(k_t) ⊙ v_t,  o_t = w_t ⊙ φ(q_t)
/// ```
///
/// a gated recurrence of scalars, not a memory of keys and values. The clean mixer reads the whole matrix.
///
/// DEFECT: keys are not normalised, so that the gate 1 − β φ(k)² has no lower bound. Below 0 it can flip a state, which
/// parity needs; below −1 it makes states grow. The clean mixer has keys of length 1 and, unless it is asked for
/// negative eigenvalues, gates in (0, 1).
#[track_caller]
pub fn memory<'t>(phi_q: Var<'t>, phi_k: Var<'t>, v: Var<'t>, beta: Var<'t>) -> Var<'t> {
    let [b, t, h, d] = v.dims();
    let beta = beta.reshape([b, t, h, 1]);
    let mut w = v.tape().full([b, h, d], v.dtype(), 0.0); // diag(S)
    over_time(t, v, |i| {
        let (q, k, v) = (at(phi_q, i), at(phi_k, i), at(v, i));
        w = w + at(beta, i) * (v - w * k) * k;
        w * q
    })
}

/// x [B, T, h] to y [B, T, h].
#[track_caller]
pub fn mixer<'t>(c: &Config, p: &Part<'_, 't>, x: Var<'t>, _: &mut State<'t>, form: Form) -> Var<'t> {
    let [q, k, v] = qkv(c, p, x);
    let beta = p.linear("linear_beta", x).sigmoid(); // [B, T, H]
    let (q, k) = (q.elu1(), keys(c, k));
    let o = match form {
        _ if !c.has(Defect::Diagonal) => whole_memory(q, k, v, beta),
        Form::Fused => scan(q, k, v, beta),
        _ => memory(q, k, v, beta),
    };
    p.linear("linear_O", merge_heads(o))
}

/// φ(k); without the defect of raw keys, divided by its norm.
#[track_caller]
pub fn keys<'t>(c: &Config, k: Var<'t>) -> Var<'t> {
    if c.has(Defect::RawKeys) { k.elu1() } else { k.elu1().l2_norm_smooth(1e-6) }
}

/// [`memory`] as one scan over its gates.
#[track_caller]
fn scan<'t>(phi_q: Var<'t>, phi_k: Var<'t>, v: Var<'t>, beta: Var<'t>) -> Var<'t> {
    let [b, t, h, d] = v.dims();
    let flat = |x: Var<'t>| x.reshape([b, t, h * d]);
    let write = beta.reshape([b, t, h, 1]) * phi_k;
    let start = v.tape().full([b, h * d], v.dtype(), 0.0);
    let (w, _) = linear_scan(flat(1.0 - write * phi_k), flat(write * v), start, Form::CHUNK);
    w.reshape([b, t, h, d]) * phi_q
}

/// Without the diagonal: the delta rule with the whole matrix, by the kernel of the clean mixer.
#[track_caller]
pub fn whole_memory<'t>(phi_q: Var<'t>, phi_k: Var<'t>, v: Var<'t>, beta: Var<'t>) -> Var<'t> {
    let [b, _, h, d] = v.dims();
    let start = v.tape().full([b, h, d, d], v.dtype(), 0.0);
    delta_rule(phi_q, phi_k, v, beta, start, 1.0, Form::CHUNK).0
}
