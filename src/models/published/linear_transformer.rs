//! The published linear transformer:
//!
//! ```text
//! q, k, v = W_{q,k,v} x + b,  φ = elu + 1
//! S_t = Σ_{s≤t} φ(k_s) v_sᵀ,  z_t = Σ_{s≤t} φ(k_s)                          per head
//! o_t = diag(S_t) ⊙ φ(q_t) / (φ(q_t)·z_t + 1e-6)                            (should be S_tᵀ φ(q_t))
//! y_t = W_o o_t + b_o
//! ```

use super::{Config, Defect, Init, Part, decoder::Decoder};
use crate::{
    autograd::Var,
    models::{
        Form, Positions, Rope, State, heads,
        linear_transformer::{EPS, Memory, chunked},
        merge_heads,
    },
};

pub(super) const DECODER: Decoder = Decoder { positions: true, mlp: true, mixer: "attn" };

/// W_q, W_k, W_v, W_o with biases, for the three models with queries and keys.
pub(super) fn projections(c: &Config, init: &mut Init) {
    for name in ["linear_Q", "linear_K", "linear_V"] {
        init.linear_std(name, c.inner(), c.h_dim, c.std);
    }
    init.linear_std("linear_O", c.h_dim, c.inner(), c.std);
}

/// q, k, v [B, T, H, d] from x [B, T, h]; q and k are rotated if positions are rotary.
#[track_caller]
pub(super) fn qkv<'t>(c: &Config, p: &Part<'_, 't>, x: Var<'t>) -> [Var<'t>; 3] {
    let [q, k, v] = ["linear_Q", "linear_K", "linear_V"].map(|name| heads(p.linear(name, x), c.n_heads));
    if c.positions != Some(Positions::Rope) {
        return [q, k, v];
    }
    let rope = Rope::tables(x.shape().at(1), c.head_dim);
    [rope.rotate(q, 0), rope.rotate(k, 0), v]
}

pub(super) fn init(c: &Config, init: &mut Init) {
    DECODER.init(c, init, projections);
}

/// φ(q), φ(k), v [B, T, H, d] to o [B, T, H, d].
///
/// DEFECT: the published `einsum("bhid,bhidd->bhid", φ(q), S)` repeats an index, which takes the diagonal of S: only
/// products of a key's channel with the *same* channel of its value are ever read. This function computes just these:
/// there is no matrix, and no association of keys with values. The clean mixer reads Sᵀ φ(q).
#[track_caller]
pub fn memory<'t>(phi_q: Var<'t>, phi_k: Var<'t>, v: Var<'t>) -> Var<'t> {
    let diagonal = (phi_k * v).cumsum(1); // S_dd of every step, [B, T, H, d]
    let z = phi_k.cumsum(1);
    phi_q * diagonal / ((phi_q * z).sum_axis(3, true) + 1e-6)
}

/// x [B, T, h] to y [B, T, h].
#[track_caller]
pub fn mixer<'t>(c: &Config, p: &Part<'_, 't>, x: Var<'t>, _: &mut State<'t>, _: Form) -> Var<'t> {
    let [q, k, v] = qkv(c, p, x);
    let (q, k) = (q.elu1(), k.elu1());
    let o = if c.has(Defect::Diagonal) { memory(q, k, v) } else { whole_memory(q, k, v) };
    p.linear("linear_O", merge_heads(o))
}

/// Without the defect: o_t = S_tᵀ φ(q_t) / (φ(q_t)·z_t + 1e-6), by the kernel of the clean mixer.
#[track_caller]
pub fn whole_memory<'t>(phi_q: Var<'t>, phi_k: Var<'t>, v: Var<'t>) -> Var<'t> {
    let [b, _, h, d] = v.dims();
    let zeros = |shape: &[usize]| v.tape().full(shape, v.dtype(), 0.0);
    let mut m = Memory { s: zeros(&[b, h, d, d]), z: Some((zeros(&[b, h, d]), EPS)) };
    chunked([phi_q, phi_k, v], &mut m, 1.0, (Form::CHUNK, 1))
}
