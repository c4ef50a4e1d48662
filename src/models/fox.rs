//! FoX, the Forgetting Transformer (Lin et al. 2025, arXiv 2503.02130; the layer is the "Pro" block of the authors'
//! modeling_forgetting_transformer.py): softmax attention in which a token counts for less with every gate since.
//! Here all heads share the K weights of a norm; theirs has by default a weight for each channel of each head, and for
//! q and k an ε of 1e-5, here 1e-6.
//!
//! ```text
//! q_t = RMSNorm(W_q x_t)                                                 per head, as k and v below
//! k_t = RMSNorm(a_t κ_{t-1} + (1 − a_t) κ_t),  κ_t = W_k x_t             a_t = σ(w_a x_t), one per head
//! v_t = b_t ν_{t-1} + (1 − b_t) ν_t,  ν_t = W_v x_t                      b_t = σ(w_b x_t), one per head
//! f_t = σ(w_f x_t + b_f)                                                 one per head
//! p_ts = softmax_s(q_t·k_s / √K + ln f_{s+1} + … + ln f_t),  s ≤ t
//! o_t = Σ_s p_ts v_s
//! y_t = W_o (RMSNorm(o_t) ⊙ σ(W_g x_t))                                  norm per head
//! ```
//!
//! There is no other sense of position. Attention has no transition from state to state; the gates let it attend to
//! what is recent, and reach any length.
//!
//! The carried state is a cache of keys, values and ln f of every token so far; and the last κ and ν. Each sum of gates
//! is taken over its own tokens, and is no difference of two running sums: nothing is lost behind a closed gate.
//!
//! At the start b_f = 0; other weights are normal, of deviation 0.02.
//!
//! Shapes, per head: q [B, T, H, K], k and v [B, S, H, K], f [B, S, H], p [B, H, T, S], o [B, T, H, V], y [B, T, D]
//! where S counts the cached tokens and the T new ones.
//!
//! | form | work | memory |
//! |---|---|---|
//! | recurrent | O(S K) a token | the cache |
//! | parallel | O(T S K) | the whole matrix, [B, H, T, S] |
//! | fused | O(T S K), by tiles with an online softmax | O(S) |

use super::{memories::shifted, prelude::*};
use crate::ops::attention::{fading_attention, since};

/// One token: q [B, H, K] against the keys and values so far, [B, S, H, ..], and their g = ln f [B, S, H], to o
/// [B, H, V].
pub(crate) fn step<'t>(q: Var<'t>, [k, v, g]: [Var<'t>; 3], scale: f64) -> Var<'t> {
    let [b, h, n] = q.named("q").dims();
    let _shown = at(g, g.shape().at(1) - 1).exp().named("f");
    let query = q.reshape([b, h, 1, n]);
    let a = (scale * query.matmul_t(head_first(k)) + since(g, 1)).softmax().named("a"); // (p_ts)
    a.matmul(head_first(v)).reshape([b, h, v.shape().last()]).named("o") // (o_t)
}

/// o [B, T, H, V] of q [B, T, H, K], k [B, S, H, K], v [B, S, H, V], g [B, S, H].
pub fn attention<'t>([q, k, v, g]: [Var<'t>; 4], scale: f64, form: Form) -> Var<'t> {
    let (t, past) = (q.shape().at(1), k.shape().at(1) - q.shape().at(1));
    match form {
        Form::Recurrent => {
            over_time(t, v.narrow(1, 0, 0), |i| step(at(q, i), [k, v, g].map(|x| x.narrow(1, 0, past + i + 1)), scale))
        }
        Form::Parallel => {
            let [q, k, v] = [q, k, v].map(head_first);
            let a = ((scale * q).matmul_t(k) + since(g, t)).causal_softmax(past); // (p_ts) [B, H, T, S]
            head_first(a.tril_matmul_after(past, v)) // (o_t)
        }
        _ => fading_attention([q, k, v, g], scale),
    }
}

/// See [`About`].
pub(crate) const ABOUT: About = About {
    family: Family::Attention,
    line: "FoX: softmax attention with a forget gate a head",
    parent: Some(("gpt", "a forget gate a head")),
    transition: "none",
    state: "H (2 K + 1) t",
    eigenvalues: "none",
    cost: "H K t",
    source: "arXiv 2503.02130",
};

/// The mixer.
pub struct Layer {
    h: usize,
    k: usize,
    w_qkv: P,
    w_shift: P,
    w_f: P,
    b_f: P,
    norms: [P; 3],
    w_g: P,
    w_o: P,
}

impl Layer {
    /// H heads of width K over the model's width.
    pub fn new(c: &ModelConfig, init: &mut Init) -> Result<Layer> {
        let (width, inner) = (c.width, c.inner());
        Ok(Layer {
            h: c.heads,
            k: c.head_dim,
            w_qkv: narrow_normal(init, "w_qkv", 3 * inner, width),
            w_shift: narrow_normal(init, "w_shift", 2 * c.heads, width),
            w_f: narrow_normal(init, "w_f", c.heads, width),
            b_f: init.full("b_f", [c.heads], 0.0),
            norms: ["q_norm", "k_norm", "norm"].map(|name| init.full(name, [c.head_dim], 1.0)),
            w_g: narrow_normal(init, "w_g", inner, width),
            w_o: narrow_normal(init, "w_o", width, inner),
        })
    }

    /// q, k, v [B, T, H, K] and ln f [B, T, H] of x [B, T, D]; the last κ and ν (states 3 and 4) move on.
    fn project<'t>(&self, p: &Bound<'t>, x: Var<'t>, state: &mut State<'t>) -> [Var<'t>; 4] {
        let [q, k, v] = linear_parts(x, p[self.w_qkv], None); // (q_t) (κ_t) (ν_t)
        let [a, b] = linear_parts(x, p[self.w_shift], None); // (k_t) (v_t)
        let mut mixed = |now: Var<'t>, share: Var<'t>, last: usize| {
            let before = heads(shifted(state.s[last], now), self.h);
            state.s[last] = remembered(state.s[last], now);
            let now = heads(now, self.h);
            now + insert_axis(share.sigmoid(), 3) * (before - now) // (k_t) (v_t)
        };
        let (k, v) = (mixed(k, a, 3), mixed(v, b, 4));
        let normed = |x: Var<'t>, norm: P| x.rms_norm(p[norm], 1e-6);
        let g = log_sigmoid(x.linear(p[self.w_f], Some(p[self.b_f]))); // (f_t)
        [normed(heads(q, self.h), self.norms[0]), normed(k, self.norms[1]), v, g] // (q_t) (k_t)
    }
}

impl Mixer for Layer {
    fn forms(&self) -> Vec<Form> {
        vec![Form::Recurrent, Form::Parallel, Form::Fused]
    }

    fn state(&self, b: usize) -> Vec<(&'static str, Shape)> {
        let (h, k) = (self.h, self.k);
        let (empty, last) = (Shape::from([b, 0, h, k]), Shape::from([b, 1, h * k]));
        let gates = ("past gates", [b, 0, h, 1].into());
        vec![("keys", empty), ("values", empty), gates, ("past k", last), ("past v", last)]
    }

    fn sequence<'t>(&self, p: &Bound<'t>, x: Var<'t>, state: &mut State<'t>, form: Form) -> Var<'t> {
        let [q, k, v, g] = self.project(p, x, state);
        for (cache, new) in state.s.iter_mut().zip([k.named("k"), v.named("v"), insert_axis(g, 3)]) {
            *cache = Var::concat(&[*cache, new], 1);
        }
        let [b, s, h, _] = state.s[2].dims();
        let g = state.s[2].reshape([b, s, h]);
        let o = attention([q, state.s[0], state.s[1], g], inverse_root(self.k), form);
        normed_output(o, p[self.norms[2]], Some(x.linear(p[self.w_g], None).sigmoid()), p[self.w_o]) // (y_t)
    }
}
