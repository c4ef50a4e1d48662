//! GSA, gated slot attention (Zhang et al. 2024, arXiv 2409.07146; the layer is that of flash-linear-attention,
//! fla/layers/gsa.py): attention to a few slots of memory.
//!
//! ```text
//! q_t, k_t, v_t = SiLU(W_q x_t), SiLU(W_k x_t), SiLU(W_v x_t)            per head
//! α_t = σ(W_f x_t)^(1/8),  s_t = 1 − α_t                                 for each of M slots of a head
//! K̃_t = diag(α_t) K̃_{t-1} + s_t k_tᵀ                                    keys of the slots, [M, K]                  (1)
//! Ṽ_t = diag(α_t) Ṽ_{t-1} + s_t v_tᵀ                                    their values, [M, V]                       (2)
//! o_t = Ṽ_tᵀ softmax(K̃_t q_t)                                           softmax over slots
//! y_t = W_o RMSNorm(SiLU(o_t))                                           norm over all heads together
//! ```
//!
//! Each slot is a weighted mean of the keys and values so far and of 0, as in HGRN2; the read is attention's. The
//! transition diag(α) has its eigenvalues in (0, 1): no slot can flip. M is the `state`.
//!
//! (2) is [`gated_linear_attention`](crate::ops::gated_linear_attention) with the weights of the slots as queries. In
//! (1) the gate belongs to what is read: the scores q·k fade differently for every slot, and are summed by halves as
//! [`decay`](crate::ops::decay) has them, in tape ops.
//!
//! ABC (Peng et al. 2022, arXiv 2110.02488), [`bounded`], weighs all tokens so far by a softmax over time in each slot.
//! GSA computes this if its gate is LightNet's.
//!
//! Weights start normal, of deviation 0.02. Shapes, per head: q, k [B, T, H, K], v, o [B, T, H, V], α, s [B, T, H, M],
//! K̃ transposed, [B, H, K, M], Ṽ [B, H, M, V], y [B, T, D]; forms and their work as in [`gla`](super::gla), with M beside V and
//! beside K.

use super::{lightnet, memories::gated, prelude::*};
use crate::ops::decay::fading_columns;

/// The root that is taken of the gates.
const ROOT: f64 = 8.0;

/// q, k [.., H, K], v [.., H, V], s and g = ln α [.., H, M].
pub type Inputs<'t> = [Var<'t>; 5];

/// One token, from K̃ [B, H, K, M] and Ṽ [B, H, M, V], to o [B, H, V].
pub(crate) fn step<'t>([q, k, v, s, g]: Inputs<'t>, slots: &mut [Var<'t>; 2], scale: f64) -> Var<'t> {
    let (alpha, s, [keys, values]) = (g.exp().named("alpha"), s.named("s"), *slots);
    let keys = insert_axis(alpha, 2) * keys + outer(k.named("k"), s); // (1)
    let values = insert_axis(alpha, 3) * values + outer(s, v.named("v")); // (2)
    *slots = [keys, values];
    let a = (scale * recall(keys, q.named("q"))).softmax().named("a"); // (o_t)
    recall(values, a).named("o") // (o_t)
}

/// o [B, T, H, V] of a sequence.
pub fn attention<'t>(x: Inputs<'t>, slots: &mut [Var<'t>; 2], scale: f64, form: Form) -> Var<'t> {
    let [b, t, h, _] = x[0].dims();
    if form == Form::Recurrent || t == 0 {
        return over_time(t, x[2], |i| step(x.map(|x| at(x, i)), slots, scale));
    }
    let [q, k, v, s, g] = x;
    let ([_, _, key, m], mut keys) = (slots[0].dims(), slots[0]);
    let a = by_pieces(t, form.chunk(t), 1, |from, n| {
        let rows = [q, k, s, g].map(|x| head_first(x.narrow(1, from, n)).reshape([b * h, n, x.shape().last()]));
        let (scores, last) = fading_columns(rows, keys.reshape([b * h, key, m]));
        keys = last.reshape([b, h, key, m]);
        head_first((scale * scores).softmax().reshape([b, h, n, m]))
    });
    let (o, values) = gated([a, s, v, g], slots[1], 1.0, form);
    *slots = [keys, values];
    o
}

/// ABC: o [B, T, H, V] of q, k [B, T, H, K], v [B, T, H, V], s [B, T, H, M].
pub(crate) fn bounded<'t>([q, k, v, s]: [Var<'t>; 4], scale: f64, form: Form) -> Var<'t> {
    let ([b, _, h, n], m) = (k.dims(), s.shape().last());
    let zero = |shape: [usize; 4]| k.tape().full(shape, k.dtype(), 0.0);
    let (strength, g, _) = lightnet::over_the_past(s, None);
    let mut slots = [zero([b, h, n, m]), zero([b, h, m, v.shape().last()])];
    attention([q, k, v, strength, g], &mut slots, scale, form)
}

/// See [`About`].
pub(crate) const ABOUT: About = About {
    family: Family::Memories,
    line: "GSA: softmax attention to a few slots that fade",
    parent: Some(("gla", "two memories over slots, a softmax between")),
    transition: "diag(α_t) on N slots",
    state: "2 H N K",
    eigenvalues: "(0, 1)",
    cost: "2 H N K",
    source: "arXiv 2409.07146",
};

/// The mixer.
pub struct Layer {
    h: usize,
    k: usize,
    m: usize,
    w_qkv: P,
    w_f: P,
    norm: P,
    w_o: P,
}

impl Layer {
    /// H heads of width K with M = `state` slots over the model's width.
    pub fn new(c: &ModelConfig, init: &mut Init) -> Result<Layer> {
        let (width, inner) = (c.width, c.inner());
        Ok(Layer {
            h: c.heads,
            k: c.head_dim,
            m: c.state,
            w_qkv: narrow_normal(init, "w_qkv", 3 * inner, width),
            w_f: narrow_normal(init, "w_f", c.heads * c.state, width),
            norm: init.full("norm", [inner], 1.0),
            w_o: narrow_normal(init, "w_o", width, inner),
        })
    }
}

impl Mixer for Layer {
    fn state(&self, b: usize) -> Vec<(&'static str, Shape)> {
        let Layer { h, k, m, .. } = *self;
        vec![("slot keys", [b, h, k, m].into()), ("slot values", [b, h, m, k].into())]
    }

    fn sequence<'t>(&self, p: &Bound<'t>, x: Var<'t>, state: &mut State<'t>, form: Form) -> Var<'t> {
        let [q, k, v] = linear_heads(x, p[self.w_qkv], self.h).map(Var::silu); // (q_t)
        let f = x.linear(p[self.w_f], None); // (α_t)
        let g = heads(1.0 / ROOT * log_sigmoid(f), self.h); // (α_t)
        let mut slots = [state.s[0], state.s[1]];
        // 1 − α by expm1, which keeps the digits of a small one.
        let o = attention([q, k, v, -g.expm1(), g], &mut slots, 1.0, form); // (s_t)
        state.s = slots.to_vec();
        normed_output(o.silu(), p[self.norm], None, p[self.w_o]) // (y_t)
    }
}
