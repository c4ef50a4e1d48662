//! TTT-linear (Sun et al. 2024, arXiv 2407.04620; the layer is that of the authors' ttt.py with the backbone of Mamba):
//! the state is a linear layer that is trained, by gradient descent in mini-batches, to reconstruct values from keys.
//!
//! ```text
//! u_t = W_qk x_t,  q_t = conv(u_t),  k_t = conv(u_t),  v_t = W_v x_t     per head; q, k turned by their place in the mini-batch
//! ℓ_t = σ(w_ℓ x_t + b_ℓ) / K,  ρ_i = max(0, 1/i + r_i)                   learning rate of a head, and of place i = 1 … R
//! z_s = S'ᵀ k_s + c'                                                     S', c' from before the mini-batch
//! d_s = ∂/∂z_s ½ ‖LN(z_s) − (v_s − k_s)‖²                                LN with weights of the head
//! S_t = S' − ρ_t Σ_{s ≤ t} ℓ_s k_s d_sᵀ,  c_t = c' − ρ_t Σ_{s ≤ t} ℓ_s d_s       s and t in one mini-batch          (1)
//! o_t = q_t + LN(S_tᵀ q_t + c_t)                                                                                   (2)
//! y_t = W_o (GELU(W_g x_t) ⊙ LN(o_t))                                    norm over all heads together
//! ```
//!
//! In a mini-batch of R = 16 tokens this is linear attention with values −d (the dual form of the paper): S moves by
//! the identity. From one mini-batch to the next it is nonlinear, as d depends on S'.
//!
//! The carried state is S' and c', less the learned S_0 and c_0 that they start from, and the sums in (1) so far. They
//! are taken into S' and c' after the last token of a mini-batch.
//!
//! At the start S_0 and all matrices are normal, of deviation 0.02; r, c_0 and biases are 0; convolutions as torch's.
//!
//! Shapes, per head: q, k, v, z, d, o [B, T, H, K], ℓ [B, T, H], ρ `[R]`, S [B, H, K, K], c [B, H, 1, K], y [B, T, D].
//!
//! | form | work |
//! |---|---|
//! | recurrent | O(T K²), T steps |
//! | parallel | the dual form: O(T (R K + K²)), T / R steps |

use super::{positions::places, prelude::*};
use crate::ops::norm::HeadNorm;

/// R, the tokens in a mini-batch.
const MINI_BATCH: usize = 16;

/// S' [B, H, K, K] and c' [B, H, 1, K], and the sums of ℓ k dᵀ and ℓ d since the mini-batch began.
pub(crate) type Memory<'t> = [Var<'t>; 4];

/// ρ `[R]` and LN.
pub(crate) type Rule<'t> = (Var<'t>, HeadNorm<'t>);

/// S and c after a step of this rate, of which nothing is left over.
pub(crate) fn taken<'t>([s, c, ds, dc]: Memory<'t>, rate: Var<'t>) -> Memory<'t> {
    [s - rate * ds, c - rate * dc, zeros_like(ds), zeros_like(dc)]
}

/// (1) and (2) for N tokens of one mini-batch, by the dual form: q, k, v [B, H, N, K], ℓ [B, H, N, 1] and ρ [N, 1].
fn dual<'t>([q, k, v, lr]: [Var<'t>; 4], (row, norm): Rule<'t>, m: &mut Memory<'t>) -> Var<'t> {
    let [s, c, ds, dc] = *m;
    let d = norm.slope(k.matmul(s) + c, v - k, lr); // (z_s) (d_s)
    let moved = q.matmul_t(k).tril_matmul(d) + q.matmul(ds) + d.cumsum(2) + dc; // (1)
    *m = [s, c, ds + k.t_matmul(d), dc + d.sum_axis(2, true)];
    q + norm.apply(q.matmul(s) + c - row * moved) // (2)
}

/// The same for one token, with names.
fn step<'t>([q, k, v, lr]: [Var<'t>; 4], (row, norm): Rule<'t>, m: &mut Memory<'t>) -> Var<'t> {
    let ([s, c, ds, dc], _shown) = (*m, (row.named("rho") * lr).named("rate"));
    let (q, k, v) = (q.named("q"), k.named("k"), v.named("v"));
    let d = norm.slope(k.matmul(s) + c, v - k, lr).named("l d"); // (z_s) (d_s)
    *m = [s, c, ds + k.t_matmul(d), dc + d]; // (1)
    let s_t = (s - row * m[2]).named("S_t"); // (1)
    (q + norm.apply(q.matmul(s_t) + c - row * m[3])).named("o") // (2)
}

/// (1) and (2) over T tokens behind `seen` others: o [B, T, H, K] of q, k, v [B, T, H, K] and ℓ [B, T, H].
pub(crate) fn read<'t>(x: [Var<'t>; 4], rule: Rule<'t>, m: &mut Memory<'t>, seen: usize, form: Form) -> Var<'t> {
    let ([q, k, v, lr], (row, norm), one) = (x, rule, form == Form::Recurrent);
    let (x, r) = ([q, k, v, insert_axis(lr, 3)].map(head_first), row.shape().at(0).max(1));
    head_first(by_rows(seen, x[0], r, one, |from, place, n| {
        let (x, row) = (x.map(|x| x.narrow(2, from, n)), row.narrow(0, place, n).reshape([n, 1]));
        let o = if one { step(x, (row, norm), m) } else { dual(x, (row, norm), m) };
        if place + n == r {
            *m = taken(*m, row.narrow(0, n - 1, 1));
        }
        o
    }))
}

/// See [`About`].
pub(crate) const ABOUT: About = About {
    family: Family::Learners,
    line: "TTT-linear: a layer trained in batches of 16 tokens",
    parent: Some(("delta_net", "a layer trained in batches of 16 tokens")),
    transition: "I, nonlinear from 16 to 16 tokens",
    state: "2 H K (K + 1)",
    eigenvalues: "1 within 16 tokens",
    cost: "H K²",
    source: "arXiv 2407.04620",
};

/// The mixer.
pub struct Layer {
    h: usize,
    k: usize,
    convs: Convs<2>, // of q and k
    maps: [P; 3],    // W_qk, W_v, w_ℓ
    b_lr: P,
    r: P,
    start: [P; 2], // S_0 and c_0
    head_norm: [P; 2],
    output: GatedOutput,
}

impl Layer {
    /// H heads of width K over the model's width.
    pub fn new(c: &ModelConfig, init: &mut Init) -> Result<Layer> {
        let (width, inner, h, k) = (c.width, c.inner(), c.heads, c.head_dim);
        let convs = Convs::new(init, ["conv_q", "conv_k"], inner, c.conv);
        let maps = [("w_qk", inner), ("w_v", inner), ("w_lr", h)].map(|(name, n)| narrow_normal(init, name, n, width));
        let (b_lr, r) = (init.full("b_lr", [h], 0.0), init.full("r", [MINI_BATCH], 0.0));
        let start = [init.normal("S0", [h, k, k], init.std.unwrap_or(0.02)), init.full("c0", [h, k], 0.0)];
        let head_norm = [init.full("head_norm", [h, k], 1.0), init.full("b_head_norm", [h, k], 0.0)];
        let output = GatedOutput::new(init, width, inner);
        Ok(Layer { h, k, convs, maps, b_lr, r, start, head_norm, output })
    }

    /// q, k, v [B, T, H, K] and ℓ [B, T, H] of x [B, T, D]; the convolutions' window (state 4) moves on.
    fn project<'t>(&self, p: &Bound<'t>, x: Var<'t>, state: &mut State<'t>) -> [Var<'t>; 4] {
        let [w_qk, w_v, w_lr] = self.maps.map(|w| p[w]);
        let [q, k] = self.convs.filtered(p, x.linear(w_qk, None), state, 4); // (u_t)
        let [q, k, v] = [q, k, x.linear(w_v, None)].map(|x| heads(x, self.h)); // (u_t)
        let angles = places(x, state.t, MINI_BATCH, self.k);
        let lr = 1.0 / self.k as f64 * x.linear(w_lr, Some(p[self.b_lr])).sigmoid(); // (ℓ_t)
        [turn(q, angles), turn(k, angles), v, lr] // (u_t)
    }
}

impl Mixer for Layer {
    fn forms(&self) -> Vec<Form> {
        vec![Form::Recurrent, Form::Parallel]
    }

    fn state(&self, b: usize) -> Vec<(&'static str, Shape)> {
        let (s, c) = (Shape::from([b, self.h, self.k, self.k]), Shape::from([b, self.h, 1, self.k]));
        let memory = [("S", s), ("c", c), ("sum of l k d", s), ("sum of l d", c)];
        memory.into_iter().chain(self.convs.window("past u", b)).collect()
    }

    fn sequence<'t>(&self, p: &Bound<'t>, x: Var<'t>, state: &mut State<'t>, form: Form) -> Var<'t> {
        let place = x.tape().full([MINI_BATCH], x.dtype(), 1.0).cumsum(0);
        let row = relu((zeros_like(place) + 1.0) / place + p[self.r]); // (ρ_i)
        let norm = HeadNorm { w: p[self.head_norm[0]], b: p[self.head_norm[1]], eps: 1e-6 };
        // The learned start is not part of the carried state.
        let [s0, c0] = [p[self.start[0]], p[self.start[1]].reshape([self.h, 1, self.k])];
        let mut m = [state.s[0] + s0, state.s[1] + c0, state.s[2], state.s[3]];
        let o = read(self.project(p, x, state), (row, norm), &mut m, state.t, form);
        state.s[..4].copy_from_slice(&[m[0] - s0, m[1] - c0, m[2], m[3]]);
        self.output.apply(p, x, o) // (y_t)
    }
}
