//! N-gram heads (Akyürek et al. 2024, arXiv 2401.12973; as in the authors' ngram.py): what followed the last n tokens,
//! each time that they were there before. They go into a model of any mixer.
//!
//! ```text
//! o_t = mean of h_s over s < t with x_{s−1−j} = x_{t−j} for j = 0 … n − 1        0 if there is no such s
//! y_t = W_0 o_t + W_1 h_t + b                                                    b: both biases of the paper
//! ```
//!
//! A head compares tokens and learns nothing: the tokens are equal or not. `ngram = N` in the configuration puts a
//! layer for each n = 1 … N behind the mixer of the first block, one after another, as in the authors' hybrid models.
//! There h is a LayerNorm of the stream, and y is added to the stream; the block's MLP comes after them.
//!
//! The carried state is the ids and the h of every token so far; it grows with the sequence as GPT's cache does.
//!
//! Shapes: x [B, S], h [B, S, D] of the cached tokens and the T new ones, o and y [B, T, D].
//!
//! | form | work of a head |
//! |---|---|
//! | recurrent | O(S (n + D)) a token |
//! | all others | O(T S (n + D)), all tokens at once |

use super::{Bound, Form, Init, P, at, decoder::LayerNorm};
use crate::{
    autograd::Var,
    ops::words::{insert_axis, maximum, over_time},
    tensor::Shape,
};

/// o [B, T, D] of the last T tokens, of the ids of all tokens so far, as whole numbers [B, S], and h [B, S, D].
pub fn read<'t>(ids: Var<'t>, h: Var<'t>, n: usize, t: usize, form: Form) -> Var<'t> {
    let s = ids.shape().at(1);
    if form != Form::Recurrent {
        return at_once(ids, h, n, t);
    }
    over_time(t, h.narrow(1, 0, 0), |i| {
        let [ids, h] = [ids, h].map(|x| x.narrow(1, 0, s - t + i + 1));
        at(at_once(ids, h, n, 1), 0)
    })
}

fn at_once<'t>(ids: Var<'t>, h: Var<'t>, n: usize, t: usize) -> Var<'t> {
    let [b, s] = ids.dims();
    // Before the first token stands no token, and none is found there.
    let before = |id: f64| Var::concat(&[ids.tape().full([b, n], ids.dtype(), id), ids], 1);
    let (asked, there) = (before(-1.0), before(-2.0));
    let gap = |j: usize| {
        let (now, then) = (asked.narrow(1, n + s - t - j, t), there.narrow(1, n - 1 - j, s));
        let gap = insert_axis(now, 2) - insert_axis(then, 1); // [B, T, S]
        gap * gap
    };
    let gaps = (1..n).fold(gap(0), |sum, j| sum + gap(j));
    // 1 where all n are equal; else e^−10000 or less, which is 0 in every type. Only s < t counts.
    let same = (-1e4 * gaps).exp().tril((s - t) as isize - 1);
    let found = same.sum_axis(2, true);
    let found = maximum(&[found, ids.tape().full([b, t, 1], ids.dtype(), 1.0)]);
    same.cast(h.dtype()).tril_matmul_after(s - t, h) / found.cast(h.dtype())
}

/// A head and the maps around it.
struct Layer {
    norm: LayerNorm,
    w_o: P,
    w_h: P,
    b: P,
}

/// The layers n = 1 … N of a model.
pub(super) struct Heads(Vec<Layer>);

impl Heads {
    /// N layers of a model of width D.
    pub fn new(n: usize, d: usize, init: &mut Init) -> Heads {
        let layer = |init: &mut Init| Layer {
            norm: init.scope("norm", |i| LayerNorm::new(d, i)),
            w_o: init.linear("w_o", d, d),
            w_h: init.linear("w_h", d, d),
            b: init.full("b", [d], 0.0),
        };
        Heads((1..=n).map(|n| init.scope(&format!("ngram.{n}"), layer)).collect())
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The shapes of the carried h of each layer, before the first token; the ids [B, 0] come before them.
    pub fn state(&self, b: usize, d: usize) -> Vec<Shape> {
        self.0.iter().map(|_| [b, 0, d].into()).collect()
    }

    /// The stream x [B, T, D] after all layers, of the new tokens' ids as numbers [B, T] and the state: ids, then each
    /// h.
    pub fn run<'t>(&self, p: &Bound<'t>, ids: Var<'t>, x: Var<'t>, state: &mut [Var<'t>], form: Form) -> Var<'t> {
        state[0] = Var::concat(&[state[0], ids], 1);
        let (ids, caches) = (state[0], &mut state[1..]);
        self.0.iter().zip(caches).enumerate().fold(x, |x, (i, (layer, cache))| {
            let h = layer.norm.apply(p, x);
            *cache = Var::concat(&[*cache, h], 1);
            let o = read(ids, *cache, i + 1, x.shape().at(1), form);
            x + o.linear(p[layer.w_o], Some(p[layer.b])) + h.linear(p[layer.w_h], None)
        })
    }
}
