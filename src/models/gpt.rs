//! GPT: causal softmax attention (Vaswani et al. 2017, arXiv 1706.03762, section 3.2; Radford et al. 2019).
//!
//! ```text
//! q_t, k_t, v_t = W_q x_t + b_q, W_k x_t + b_k, W_v x_t + b_v             per head                    (section 3.2.2)
//! a_ts = softmax_s(q_t · k_s / √K),  s ≤ t                                                           (eq. 1)
//! o_t = Σ_s a_ts v_s
//! y_t = W_o o_t + b_o                                     heads side by side                         (section 3.2.2)
//! ```
//!
//! The carried state is a cache of the keys and values of every token so far; it grows with the sequence.
//!
//! Shapes, per head: q, o [B, T, H, K], k and v [B, S, H, K], a [B, H, T, S], y [B, T, D] where S counts the
//! cached tokens and the T new ones.
//!
//! | form | work | memory |
//! |---|---|---|
//! | recurrent | O(S K) a token: one row of the attention matrix | the cache |
//! | parallel | O(T S K) | the whole matrix, [B, H, T, S] |
//! | fused | O(T S K), by tiles with an online softmax (Dao et al. 2022) | O(T) |

use super::prelude::*;
use crate::ops::attention::causal_attention;

/// One row of (eq. 1): q [B, H, K] against the keys and values so far, [B, S, H, K], to o [B, H, K].
pub(crate) fn step<'t>(q: Var<'t>, k: Var<'t>, v: Var<'t>, scale: f64) -> Var<'t> {
    let [b, h, n] = q.named("q").dims();
    let (k, v) = (head_first(k), head_first(v)); // [B, H, S, K]
    let scores = scale * k.matmul(q.reshape([b, h, n, 1])); // (a_ts) [B, H, S, 1]
    let a = scores.reshape([b, h, 1, k.shape().at(2)]).softmax(); // (a_ts)
    a.named("a").matmul(v).reshape([b, h, v.shape().last()]).named("o") // (o_t)
}

/// [`step`] over a sequence: token t sees the first S − T + t + 1 keys.
pub fn recurrent<'t>(q: Var<'t>, k: Var<'t>, v: Var<'t>, scale: f64) -> Var<'t> {
    let ([_, t, _, _], [_, s, _, _]) = (q.dims(), k.dims());
    over_time(t, v.narrow(1, 0, 0), |i| {
        let seen = s - t + i + 1;
        step(at(q, i), k.narrow(1, 0, seen), v.narrow(1, 0, seen), scale)
    })
}

/// All rows at once, with the future masked. The product with v is masked too: 0 times a NaN in the future would be
/// NaN.
pub fn parallel<'t>(q: Var<'t>, k: Var<'t>, v: Var<'t>, scale: f64) -> Var<'t> {
    let (q, k, v) = (head_first(q), head_first(k), head_first(v));
    let past = k.shape().at(2) - q.shape().at(2);
    let a = (scale * q.matmul_t(k)).causal_softmax(past); // (a_ts) [B, H, T, S]
    head_first(a.tril_matmul_after(past, v)) // (o_t)
}

/// See [`About`].
pub(crate) const ABOUT: About = About {
    family: Family::Attention,
    line: "GPT: softmax attention",
    parent: None,
    transition: "none",
    state: "2 H K t",
    eigenvalues: "none",
    cost: "H K t",
    source: "arXiv 1706.03762",
};

/// The mixer.
pub struct Layer {
    maps: AttentionMaps,
    rope: Option<Rope>,
}

impl Layer {
    /// H heads of width K over the model's width.
    pub fn new(c: &ModelConfig, init: &mut Init) -> Result<Layer> {
        Ok(Layer { maps: AttentionMaps::new(c, init), rope: Rope::new(c) })
    }

    /// From x [B, T, D]: q of the new tokens, and k and v of all tokens so far, which it appends to the cache.
    fn project<'t>(&self, p: &Bound<'t>, x: Var<'t>, state: &mut State<'t>) -> [Var<'t>; 3] {
        let [q, k, v] = self.maps.project(p, x); // (q_t)
        let q = rotate(&self.rope, q, state.t);
        let (k, v) = (rotate(&self.rope, k, state.t).named("k"), v.named("v"));
        state.s = vec![Var::concat(&[state.s[0], k], 1), Var::concat(&[state.s[1], v], 1)];
        [q, state.s[0], state.s[1]]
    }
}

impl Mixer for Layer {
    fn forms(&self) -> Vec<Form> {
        vec![Form::Recurrent, Form::Parallel, Form::Fused]
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { rope: true, ..Capabilities::default() }
    }

    fn state(&self, b: usize) -> Vec<(&'static str, Shape)> {
        let empty = Shape::from([b, 0, self.maps.h, self.maps.k]);
        vec![("keys", empty), ("values", empty)]
    }

    fn step<'t>(&self, p: &Bound<'t>, x: Var<'t>, state: &mut State<'t>) -> Var<'t> {
        let [b, d] = x.dims();
        let [q, k, v] = self.project(p, x.reshape([b, 1, d]), state);
        let o = step(at(q, 0), k, v, inverse_root(self.maps.k));
        self.maps.output(p, insert_axis(o, 1)).reshape([b, d]) // (y_t)
    }

    fn sequence<'t>(&self, p: &Bound<'t>, x: Var<'t>, state: &mut State<'t>, form: Form) -> Var<'t> {
        let [q, k, v] = self.project(p, x, state);
        let o = match form {
            Form::Fused => causal_attention(q, k, v, inverse_root(self.maps.k)),
            _ => parallel(q, k, v, inverse_root(self.maps.k)),
        };
        self.maps.output(p, o) // (y_t)
    }
}
