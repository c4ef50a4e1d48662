//! The published GPT: causal softmax attention in heads.
//!
//! ```text
//! q, k, v = W_{q,k,v} x + b
//! o_t = Σ_{s≤t} softmax_s(q_t·k_s / √d) v_s                                  per head
//! y_t = W_o o_t + b_o
//! ```
//!
//! The attention has no defect. Its learned positions past the training length do: see the decoder.

use super::{
    Config, Init, Part,
    linear_transformer::{projections, qkv},
};
use crate::{
    autograd::Var,
    models::{Form, State, head_first, merge_heads},
    ops::attention::causal_attention,
};

pub(super) use super::linear_transformer::DECODER;

pub(super) fn init(c: &Config, init: &mut Init) {
    DECODER.init(c, init, projections);
}

/// x [B, T, h] to y [B, T, h].
#[track_caller]
pub fn mixer<'t>(c: &Config, p: &Part<'_, 't>, x: Var<'t>, _: &mut State<'t>, form: Form) -> Var<'t> {
    let (qkv, scale) = (qkv(c, p, x), (c.head_dim as f64).powf(-0.5));
    let o = if form == Form::Fused {
        let [q, k, v] = qkv;
        causal_attention(q, k, v, scale)
    } else {
        let [q, k, v] = qkv.map(head_first); // [B, H, T, d]
        let scores = scale * q.matmul_t(k); // [B, H, T, T]
        head_first(scores.causal_softmax(0).tril_matmul(v))
    };
    p.linear("linear_O", merge_heads(o))
}
