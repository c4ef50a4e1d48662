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
//! The carried state is S' and c', less the learned S_0 that they start from, and the sums in (1) so far. They are
//! taken into S' and c' after the last token of a mini-batch.
//!
//! At the start S_0 and all matrices are normal, of deviation 0.02; r and biases are 0.
//!
//! Shapes, per head: q, k, v [B, T, H, K], ℓ [B, T, H], ρ `[R]`, S [B, H, K, K], c [B, H, K].
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
pub type Memory<'t> = [Var<'t>; 4];

/// S and c after a step of this rate, of which nothing is left over.
pub fn taken<'t>([s, c, ds, dc]: Memory<'t>, rate: Var<'t>) -> Memory<'t> {
    [s - rate * ds, c - rate * dc, zeros_like(ds), zeros_like(dc)]
}

/// (1) and (2) for some tokens of one mini-batch, q, k, v [B, H, N, K], ℓ [B, H, N, 1] and their ρ [N, 1], by the dual
/// form.
fn dual<'t>([q, k, v, lr]: [Var<'t>; 4], row: Var<'t>, norm: HeadNorm<'t>, m: &mut Memory<'t>) -> Var<'t> {
    let [s, c, ds, dc] = *m;
    let d = norm.slope(k.matmul(s) + c, v - k, lr);
    let moved = q.matmul_t(k).tril_matmul(d) + q.matmul(ds) + d.cumsum(2) + dc;
    *m = [s, c, ds + k.t_matmul(d), dc + d.sum_axis(2, true)];
    q + norm.apply(q.matmul(s) + c - row * moved)
}

/// The same for one token, with names.
fn step<'t>([q, k, v, lr]: [Var<'t>; 4], row: Var<'t>, norm: HeadNorm<'t>, m: &mut Memory<'t>) -> Var<'t> {
    let ([s, c, ds, dc], _shown) = (*m, (row * lr).named("rate"));
    let (q, k, v) = (q.named("q"), k.named("k"), v.named("v"));
    let d = norm.slope(k.matmul(s) + c, v - k, lr).named("l d");
    *m = [s, c, ds + k.t_matmul(d), dc + d];
    let s_t = (s - row * m[2]).named("S_t");
    (q + norm.apply(q.matmul(s_t) + c - row * m[3])).named("o")
}

/// o [B, T, H, K] of q, k, v [B, T, H, K], ℓ [B, T, H] and ρ `[R]`, from the place of the mini-batch that this many
/// tokens lead to.
pub fn read<'t>(
    [q, k, v, lr]: [Var<'t>; 4],
    row: Var<'t>,
    norm: HeadNorm<'t>,
    m: &mut Memory<'t>,
    seen: usize,
    form: Form,
) -> Var<'t> {
    let (t, r, x) = (q.shape().at(1), row.shape().at(0).max(1), [q, k, v, insert_axis(lr, 3)].map(head_first));
    let (mut from, mut all) = (0, vec![]);
    while from < t {
        let place = (seen + from) % r;
        let n = if form == Form::Recurrent { 1 } else { (r - place).min(t - from) };
        let (x, row) = (x.map(|x| x.narrow(2, from, n)), row.narrow(0, place, n).reshape([n, 1]));
        all.push(if form == Form::Recurrent { step(x, row, norm, m) } else { dual(x, row, norm, m) });
        if place + n == r {
            *m = taken(*m, row.narrow(0, n - 1, 1));
        }
        from += n;
    }
    if all.is_empty() { q } else { head_first(Var::concat(&all, 2)) }
}

/// See [`About`].
pub const ABOUT: About = About {
    family: Family::Learners,
    line: "TTT-linear: a layer that gradient descent trains, 16 tokens at a time",
    parent: Some(("delta_net", "a layer trained in batches of 16 tokens")),
    transition: "I, nonlinear from 16 to 16 tokens",
    state: "2 H K (K + 1)",
    eigenvalues: "1 within 16 tokens",
    cost: "3 H K²",
    source: "arXiv 2407.04620",
};

/// The mixer.
pub struct Layer {
    h: usize,
    k: usize,
    w_qk: P,
    convs: [Conv; 2], // of q and k
    w_v: P,
    w_lr: P,
    b_lr: P,
    r: P,
    s0: P,
    c0: P,
    head_norm: [P; 2],
    w_g: P,
    norm: [P; 2],
    w_o: P,
}

impl Layer {
    /// H heads of width K over the model's width.
    pub fn new(c: &ModelConfig, init: &mut Init) -> Result<Layer> {
        let (width, inner, h, k) = (c.width, c.inner(), c.heads, c.head_dim);
        let convs = ["q", "k"].map(|name| {
            let [w, bias] = ["", "_bias"].map(|end| format!("conv_{name}{end}"));
            Conv::new(init, &w, Some(&bias), inner, c.conv)
        });
        Ok(Layer {
            h,
            k,
            w_qk: narrow_normal(init, "w_qk", inner, width),
            convs,
            w_v: narrow_normal(init, "w_v", inner, width),
            w_lr: narrow_normal(init, "w_lr", h, width),
            b_lr: init.full("b_lr", [h], 0.0),
            r: init.full("r", [MINI_BATCH], 0.0),
            s0: init.normal("S0", [h, k, k], init.std.unwrap_or(0.02)),
            c0: init.full("c0", [h, k], 0.0),
            head_norm: [init.full("head_norm", [h, k], 1.0), init.full("b_head_norm", [h, k], 0.0)],
            w_g: narrow_normal(init, "w_g", inner, width),
            norm: [init.full("norm", [inner], 1.0), init.full("b_norm", [inner], 0.0)],
            w_o: narrow_normal(init, "w_o", width, inner),
        })
    }

    /// q, k, v [B, T, H, K] and ℓ [B, T, H] of x [B, T, D]; the convolutions' window (state 4) moves on.
    fn project<'t>(&self, p: &Bound<'t>, x: Var<'t>, state: &mut State<'t>) -> [Var<'t>; 4] {
        let u = x.linear(p[self.w_qk], None);
        let past = self.convs[0].remember(u, state, 4);
        let [q, k] = self.convs.each_ref().map(|conv| conv.filtered(p, u, past));
        let [q, k, v] = [q, k, x.linear(p[self.w_v], None)].map(|x| heads(x, self.h));
        let angles = places(x, state.t, MINI_BATCH, self.k);
        let lr = 1.0 / self.k as f64 * x.linear(p[self.w_lr], Some(p[self.b_lr])).sigmoid();
        [turn(q, angles), turn(k, angles), v, lr]
    }
}

impl Mixer for Layer {
    fn forms(&self) -> Vec<Form> {
        vec![Form::Recurrent, Form::Parallel]
    }

    fn state(&self, b: usize) -> Vec<(&'static str, Shape)> {
        let (s, c) = (Shape::from([b, self.h, self.k, self.k]), Shape::from([b, self.h, 1, self.k]));
        let memory = [("S", s), ("c", c), ("sum of l k d", s), ("sum of l d", c)];
        memory.into_iter().chain(self.convs[0].window("past u", b)).collect()
    }

    fn sequence<'t>(&self, p: &Bound<'t>, x: Var<'t>, state: &mut State<'t>, form: Form) -> Var<'t> {
        let inputs = self.project(p, x, state);
        let place = x.tape().full([MINI_BATCH], x.dtype(), 1.0).cumsum(0);
        let row = relu((zeros_like(place) + 1.0) / place + p[self.r]);
        let norm = HeadNorm { w: p[self.head_norm[0]], b: p[self.head_norm[1]], eps: 1e-6 };
        // The learned start is not part of the carried state.
        let start = [p[self.s0], p[self.c0].reshape([self.h, 1, self.k])];
        let mut m = [state.s[0] + start[0], state.s[1] + start[1], state.s[2], state.s[3]];
        let o = read(inputs, row, norm, &mut m, state.t, form);
        state.s[..4].copy_from_slice(&[m[0] - start[0], m[1] - start[1], m[2], m[3]]);
        let o = merge_heads(o).layer_norm(p[self.norm[0]], Some(p[self.norm[1]]), 1e-6);
        (x.linear(p[self.w_g], None).gelu_tanh() * o).linear(p[self.w_o], None)
    }
}
