//! TransNormer (Qin et al. 2022, "The Devil in Linear Transformer", arXiv 2210.10340; as in the authors'
//! norm_linear_attention.py and norm_local_attention.py): linear attention with a norm in place of the denominator,
//! behind blocks that attend within short stretches.
//!
//! ```text
//! q_t, k_t, v_t = W_q x_t, W_k x_t, W_v x_t                              per head
//! the first half of the blocks, DiagAttention: stretches of C = 32 tokens, one after another
//!   a_ts = ReLU(q_t·k_s / √K),  s ≤ t in one stretch                     per head
//! the other half, NormAttention:
//!   a_ts = φ(q_t)·φ(k_s),  s ≤ t,  φ(x) = elu(x) + 1                     S_t = S_{t-1} + φ(k_t) v_tᵀ,  o_t = S_tᵀ φ(q_t)
//! both: o_t = Σ_s a_ts v_s,  y_t = W_o RMSNorm(o_t)                      norm over all heads together
//! ```
//!
//! The slope of a quotient has no bound where its denominator comes near 0, and that of the norm has one. Attention
//! within stretches returns the sharp weights on neighbours that sums over everything dilute. The transition is the
//! identity, or nothing is carried from one stretch to the next: neither half tracks a state.
//!
//! The root in the norm holds its ε = 1e-6; the authors add 1e-8 to the root. W_q, W_k and W_v start Xavier-uniform
//! with gain 1/√2, W_o with gain 1. The authors' maps have biases, their norms are LayerNorm and a gated RMSNorm by
//! default, and their DiagAttention's gains are all 1.
//!
//! Shapes, per head: q, k [B, T, H, K], v, o [B, T, H, V], a [B, H, T, T], y [B, T, D], S [B, H, K, V]; the stretch so
//! far [B, S, H, K], S ≤ C.
//!
//! | form | DiagAttention | NormAttention |
//! |---|---|---|
//! | recurrent | O(C K) a token | O(T K V), T steps |
//! | parallel | O(T C K) | O(T² (K + V)) |
//! | chunked | as parallel | O(T (C (K + V) + K V)) |

use super::{
    linear_transformer::{self, Memory},
    prelude::*,
};

/// C, the tokens in a stretch.
const STRETCH: usize = 32;

/// Keys and values of the stretch so far, [B, S, H, ..].
type Stretch<'t> = [Var<'t>; 2];

/// Some tokens of one stretch after those so far: q, k [B, N, H, K], v [B, N, H, V] to o [B, N, H, V].
fn within<'t>([q, k, v]: [Var<'t>; 3], so_far: &mut Stretch<'t>, scale: f64) -> Var<'t> {
    let past = so_far[0].shape().at(1);
    *so_far = [Var::concat(&[so_far[0], k], 1), Var::concat(&[so_far[1], v], 1)];
    let [q, k, v] = [q, so_far[0], so_far[1]].map(head_first);
    let scores = scale * q.matmul_t(k); // (a_ts = ReLU) [B, H, N, S]
    let a = relu(scores); // (a_ts = ReLU)
    head_first(a.tril_matmul_after(past, v)) // (both)
}

/// o [B, T, H, V] of a sequence, stretch by stretch.
pub(crate) fn diagonal<'t>(x: [Var<'t>; 3], so_far: &mut Stretch<'t>, scale: f64, form: Form) -> Var<'t> {
    let t = x[0].shape().at(1);
    let (mut from, mut all) = (0, vec![]);
    while from < t {
        let place = so_far[0].shape().at(1);
        if place >= STRETCH {
            *so_far = so_far.map(|x| x.narrow(1, 0, 0));
            continue;
        }
        let n = if form == Form::Recurrent { 1 } else { (STRETCH - place).min(t - from) };
        all.push(within(x.map(|x| x.narrow(1, from, n)), so_far, scale));
        from += n;
    }
    if all.is_empty() { x[2] } else { Var::concat(&all, 1) }
}

/// See [`About`].
pub(crate) const ABOUT: About = About {
    family: Family::Memories,
    line: "TransNormer: linear attention, a norm as denominator",
    parent: Some(("linear_transformer", "a norm for the denominator")),
    transition: "I; none between stretches",
    state: "H K V; 2 H K C",
    eigenvalues: "1",
    cost: "H K V; 2 H K C",
    source: "arXiv 2210.10340",
};

/// The mixer.
pub struct Layer {
    h: usize,
    k: usize,
    diagonal: bool,
    w_qkv: P,
    norm: P,
    w_o: P,
}

impl Layer {
    /// H heads of width K over the model's width.
    pub fn new(c: &ModelConfig, init: &mut Init) -> Result<Layer> {
        let (width, inner) = (c.width, c.inner());
        Ok(Layer {
            h: c.heads,
            k: c.head_dim,
            diagonal: init.layer < c.layers / 2,
            w_qkv: init.uniform("w_qkv", [3 * inner, width], xavier(inner, width, 0.5f64.sqrt())),
            norm: init.full("norm", [inner], 1.0),
            w_o: init.uniform("w_o", [width, inner], xavier(width, inner, 1.0)),
        })
    }
}

impl Mixer for Layer {
    fn state(&self, b: usize) -> Vec<(&'static str, Shape)> {
        let Layer { h, k, .. } = *self;
        // The half that a block does not have is empty.
        let memory = if self.diagonal { 0 } else { k };
        let stretch = Shape::from([b, 0, h, k]);
        vec![("S", [b, h, memory, k].into()), ("keys", stretch), ("values", stretch)]
    }

    fn sequence<'t>(&self, p: &Bound<'t>, x: Var<'t>, state: &mut State<'t>, form: Form) -> Var<'t> {
        let [q, k, v] = linear_heads(x, p[self.w_qkv], self.h); // (q_t)
        let o = if self.diagonal {
            // (the first half)
            let mut so_far = [state.s[1], state.s[2]];
            let named = [q.named("q"), k.named("k"), v.named("v")];
            let o = diagonal(named, &mut so_far, inverse_root(self.k), form);
            state.s[1..].copy_from_slice(&so_far);
            o
        } else {
            // (the other half)
            let mut m = Memory { s: state.s[0], z: None };
            let o = linear_transformer::attention([q.elu1(), k.elu1(), v], &mut m, 1.0, form); // (a_ts = φ)
            state.s[0] = m.s;
            o
        };
        normed_output(o.named("o"), p[self.norm], None, p[self.w_o]) // (y_t)
    }
}
