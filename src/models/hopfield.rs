//! A modern Hopfield network's retrieval (Ramsauer et al. 2021, arXiv 2008.02217, equation 3; the read is that of the
//! authors' hflayers): attention whose query first moves towards the keys that it attends to.
//!
//! ```text
//! q_t, k_t = LN(W_q x_t + b_q), LN(W_k x_t + b_k);  v_t = W_v x_t + b_v  per head; LN without weights
//! ξ_0 = q_t,  p_i = softmax_{s ≤ t}(ξ_i·k_s / √K),  ξ_{i+1} = Σ_s p_is k_s      so many updates (1 here)
//! o_t = Σ_s p_s v_s                                                      with the last p
//! y_t = W_o o_t + b_o
//! ```
//!
//! Without an update this is attention. Each one lowers the energy −√K lse_s(ξ·k_s / √K) + ½ ξ·ξ: the query settles on
//! a stored key, or on the mean of several that are alike. There is no early stop: it would depend on the other
//! sequences of a batch.
//!
//! The carried state is a cache of keys and values, as GPT's. There is no transition.
//!
//! Shapes, per head: q, ξ, o [B, T, H, K], k and v [B, S, H, K], p [B, H, T, S], y [B, T, D] where S counts the cached
//! tokens and the T new ones.
//!
//! | form | work, for n updates | memory |
//! |---|---|---|
//! | recurrent | O(n S K) a token | the cache |
//! | parallel | O(n T S K) | n + 1 matrices [B, H, T, S] |

use super::{gpt, prelude::*};

/// How often the query moves before the read.
const UPDATES: usize = 1;

/// One row: q [B, H, K] against the keys and values so far, [B, S, H, ..], to o [B, H, V].
pub(crate) fn step<'t>(q: Var<'t>, k: Var<'t>, v: Var<'t>, scale: f64, updates: usize) -> Var<'t> {
    let (keys, mut state) = (head_first(k), insert_axis(q, 2)); // (ξ_0) [B, H, S, K] and [B, H, 1, K]
    for _ in 0..updates {
        state = (scale * state).matmul_t(keys).softmax().matmul(keys); // (ξ_{i+1})
    }
    gpt::step(state.reshape(q.shape()), k, v, scale) // (o_t)
}

/// o [B, T, H, V] of q [B, T, H, K], k [B, S, H, K], v [B, S, H, V].
pub(crate) fn attention<'t>([q, k, v]: [Var<'t>; 3], scale: f64, updates: usize, form: Form) -> Var<'t> {
    let ([_, t, ..], [_, s, ..]): ([_; 4], [_; 4]) = (q.dims(), k.dims());
    let past = s - t;
    if form == Form::Recurrent || t == 0 {
        return over_time(t, v.narrow(1, 0, 0), |i| {
            let [k, v] = [k, v].map(|x| x.narrow(1, 0, past + i + 1));
            step(at(q, i), k, v, scale, updates)
        });
    }
    let (k, mut state) = (head_first(k), head_first(q));
    let weights = |state: Var<'t>| (scale * state).matmul_t(k).causal_softmax(past); // (p_i) [B, H, T, S]
    for _ in 0..updates {
        state = weights(state).tril_matmul_after(past, k); // (ξ_{i+1})
    }
    head_first(weights(state).tril_matmul_after(past, head_first(v))) // (o_t)
}

/// See [`About`].
pub(crate) const ABOUT: About = About {
    family: Family::Attention,
    line: "Hopfield retrieval: the query moves, then reads",
    parent: Some(("gpt", "the query moves before it reads")),
    transition: "none",
    state: "2 H K t",
    eigenvalues: "none",
    cost: "2 H K t",
    source: "arXiv 2008.02217",
};

/// The mixer.
pub struct Layer(AttentionMaps);

impl Layer {
    /// H heads of width K over the model's width.
    pub fn new(c: &ModelConfig, init: &mut Init) -> Result<Layer> {
        Ok(Layer(AttentionMaps::new(c, init)))
    }
}

impl Mixer for Layer {
    fn forms(&self) -> Vec<Form> {
        vec![Form::Recurrent, Form::Parallel]
    }

    fn state(&self, b: usize) -> Vec<(&'static str, Shape)> {
        let empty = Shape::from([b, 0, self.0.h, self.0.k]);
        vec![("keys", empty), ("values", empty)]
    }

    fn sequence<'t>(&self, p: &Bound<'t>, x: Var<'t>, state: &mut State<'t>, form: Form) -> Var<'t> {
        let [q, k, v] = self.0.project(p, x); // (q_t)
        let one = x.tape().full([self.0.k], x.dtype(), 1.0);
        let [q, k] = [q, k].map(|x| x.layer_norm(one, None, 1e-5)); // (q_t)
        state.s = vec![Var::concat(&[state.s[0], k.named("k")], 1), Var::concat(&[state.s[1], v.named("v")], 1)];
        let o = attention([q, state.s[0], state.s[1]], inverse_root(self.0.k), UPDATES, form);
        self.0.output(p, o) // (y_t)
    }
}
