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

use super::{
    About, Bound, Family, Form, Init, Mixer, ModelConfig, P, State, at, head_first, heads,
    memories::{narrow_normal, nothing, one_token, pieces, turn},
    merge_heads, over_time, remembered,
};
use crate::{
    autograd::{Gen, Var},
    error::Result,
    ops::words::{insert_axis, maximum},
    tensor::Shape,
};

/// R, the tokens in a mini-batch.
const MINI_BATCH: usize = 16;

/// The layer norm that state and outputs share.
#[derive(Clone, Copy)]
pub struct Norm<'t> {
    /// Weight [H, K]
    pub w: Var<'t>,
    /// Bias [H, K]
    pub b: Var<'t>,
    /// ε
    pub eps: f64,
}

impl<'t> Norm<'t> {
    /// x [B, H, T, K] normalised, and the root that it was divided by.
    fn parts(&self, x: Var<'t>) -> (Var<'t>, Var<'t>) {
        let x = x - x.mean_axis(3, true);
        let root = (x.square().mean_axis(3, true) + self.eps).sqrt();
        (x / root, root)
    }

    fn rows(&self) -> [Var<'t>; 2] {
        let [h, k] = self.w.dims();
        [self.w, self.b].map(|x| x.reshape([h, 1, k]))
    }

    /// LN(x)
    fn apply(&self, x: Var<'t>) -> Var<'t> {
        let [w, b] = self.rows();
        w * self.parts(x).0 + b
    }

    /// ℓ d of keys and values in rows, at z = S'ᵀ k + c'.
    fn gradient(&self, z: Var<'t>, [k, v, lr]: [Var<'t>; 3]) -> Var<'t> {
        let ((z, root), [w, b]) = (self.parts(z), self.rows());
        let e = w * (w * z + b - (v - k));
        lr * (e - e.mean_axis(3, true) - z * (e * z).mean_axis(3, true)) / root
    }
}

/// S' [B, H, K, K] and c' [B, H, 1, K], and the sums of ℓ k dᵀ and ℓ d since the mini-batch began.
#[derive(Clone, Copy)]
pub struct Memory<'t> {
    /// S'
    pub s: Var<'t>,
    /// c'
    pub c: Var<'t>,
    /// Σ ℓ k dᵀ
    pub ds: Var<'t>,
    /// Σ ℓ d
    pub dc: Var<'t>,
}

impl<'t> Memory<'t> {
    /// S and c after a step of this rate, of which nothing is left over.
    pub fn taken(self, rate: Var<'t>) -> Memory<'t> {
        let Memory { s, c, ds, dc } = self;
        Memory { s: s - rate * ds, c: c - rate * dc, ds: nothing(ds), dc: nothing(dc) }
    }
}

/// (1) and (2) for some tokens of one mini-batch, q, k, v [B, H, N, K], ℓ [B, H, N, 1] and their ρ [N, 1], by the dual
/// form.
fn dual<'t>([q, k, v, lr]: [Var<'t>; 4], row: Var<'t>, norm: Norm<'t>, m: &mut Memory<'t>) -> Var<'t> {
    let d = norm.gradient(k.matmul(m.s) + m.c, [k, v, lr]);
    let moved = q.matmul_t(k).tril_matmul(d) + q.matmul(m.ds) + d.cumsum(2) + m.dc;
    let o = q + norm.apply(q.matmul(m.s) + m.c - row * moved);
    (m.ds, m.dc) = (m.ds + k.t_matmul(d), m.dc + d.sum_axis(2, true));
    o
}

/// The same for one token, with names.
fn step<'t>([q, k, v, lr]: [Var<'t>; 4], row: Var<'t>, norm: Norm<'t>, m: &mut Memory<'t>) -> Var<'t> {
    let (q, k, v) = (q.named("q"), k.named("k"), v.named("v"));
    let _shown = (row * lr).named("rate");
    let d = norm.gradient(k.matmul(m.s) + m.c, [k, v, lr]).named("l d");
    (m.ds, m.dc) = (m.ds + k.t_matmul(d), m.dc + d);
    let s = (m.s - row * m.ds).named("S_t");
    (q + norm.apply(q.matmul(s) + m.c - row * m.dc)).named("o")
}

/// o [B, T, H, K] of q, k, v [B, T, H, K], ℓ [B, T, H] and ρ `[R]`, from the place of the mini-batch that this many
/// tokens lead to.
pub fn read<'t>(
    [q, k, v, lr]: [Var<'t>; 4],
    row: Var<'t>,
    norm: Norm<'t>,
    m: &mut Memory<'t>,
    seen: usize,
    form: Form,
) -> Var<'t> {
    let (t, r) = (q.shape().at(1), row.shape().at(0).max(1));
    let x = [q, k, v, insert_axis(lr, 3)].map(head_first);
    let mut place = seen % r;
    let mut of = |from: usize, n: usize| {
        let (x, row) = (x.map(|x| x.narrow(2, from, n)), row.narrow(0, place, n).reshape([n, 1]));
        let o = if form == Form::Recurrent { step(x, row, norm, m) } else { dual(x, row, norm, m) };
        place = (place + n) % r;
        if place == 0 {
            *m = m.taken(row.narrow(0, n - 1, 1));
        }
        head_first(o)
    };
    if form == Form::Recurrent {
        return over_time(t, q, |i| at(of(i, 1), 0));
    }
    let first = if seen.is_multiple_of(r) { 0 } else { t.min(r - seen % r) };
    let parts = std::iter::once((0, first)).filter(|part| part.1 > 0);
    let parts = parts.chain(pieces(t - first, r).map(|(from, n)| (first + from, n)));
    let all: Vec<Var<'t>> = parts.map(|(from, n)| of(from, n)).collect();
    if all.is_empty() { q } else { Var::concat(&all, 1) }
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
    scan: true,
    source: "arXiv 2407.04620",
};

/// The mixer.
pub struct Layer {
    h: usize,
    k: usize,
    conv: usize, // W
    w_qk: P,
    convs: Option<[(P, P); 2]>,
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
        let bound = (c.conv.max(1) as f64).powf(-0.5);
        let mut filter = |name: &str| {
            let draw = |g: &mut Gen, _| g.uniform(-bound, bound);
            let w = init.custom(&format!("conv_{name}"), [inner, c.conv], draw);
            (w, init.custom(&format!("conv_{name}_bias"), [inner], draw))
        };
        let convs = (c.conv > 0).then(|| ["q", "k"].map(&mut filter));
        Ok(Layer {
            h,
            k,
            conv: c.conv,
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

    /// cos and sin [T, 1, K/2] of the places in the mini-batch times 10000^(−2j / K).
    fn angles<'t>(&self, x: Var<'t>, seen: usize) -> [Var<'t>; 2] {
        let (t, pairs) = (x.shape().at(1), self.k / 2);
        let full = |shape: &[usize], value: f64| x.tape().full(shape, x.dtype(), value);
        let whole = t + MINI_BATCH;
        // Places 0 … R − 1, over and over, from the one that the sequence begins at.
        let place = full(&[MINI_BATCH, 1, 1], 1.0).cumsum(0) - 1.0;
        let repeated = Var::concat(&vec![place; whole.div_ceil(MINI_BATCH)], 0).narrow(0, seen % MINI_BATCH, t);
        let rate = -2.0 * 10_000f64.ln() / self.k.max(1) as f64;
        let angles = repeated * (rate * (full(&[pairs], 1.0).cumsum(0) - 1.0)).exp();
        [angles.cos(), angles.sin()]
    }

    /// q, k, v [B, T, H, K] and ℓ [B, T, H] of x [B, T, D]; the convolutions' window (state 4) moves on.
    fn project<'t>(&self, p: &Bound<'t>, x: Var<'t>, state: &mut State<'t>) -> [Var<'t>; 4] {
        let u = x.linear(p[self.w_qk], None);
        let [q, k] = match self.convs {
            None => [u, u],
            Some(convs) => {
                let past = state.s[4];
                state.s[4] = remembered(past, u);
                convs.map(|(w, b)| u.causal_conv1d(p[w], Some(p[b]), past))
            }
        };
        let [q, k, v] = [q, k, x.linear(p[self.w_v], None)].map(|x| heads(x, self.h));
        let angles = self.angles(x, state.t);
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
        let window = ("past u", [b, self.conv.saturating_sub(1), self.h * self.k].into());
        let memory = [("S", s), ("c", c), ("sum of l k d", s), ("sum of l d", c)];
        memory.into_iter().chain((self.conv > 0).then_some(window)).collect()
    }

    fn step<'t>(&self, p: &Bound<'t>, x: Var<'t>, state: &mut State<'t>) -> Var<'t> {
        one_token(x, |x| self.sequence(p, x, state, Form::Recurrent))
    }

    fn sequence<'t>(&self, p: &Bound<'t>, x: Var<'t>, state: &mut State<'t>, form: Form) -> Var<'t> {
        let inputs = self.project(p, x, state);
        let place = x.tape().full([MINI_BATCH], x.dtype(), 1.0).cumsum(0);
        let row = nothing(place) + 1.0;
        let row = row / place + p[self.r];
        let row = maximum(&[row, nothing(row)]);
        let norm = Norm { w: p[self.head_norm[0]], b: p[self.head_norm[1]], eps: 1e-6 };
        let (s0, c0) = (p[self.s0], p[self.c0].reshape([self.h, 1, self.k]));
        let mut m = Memory { s: state.s[0] + s0, c: state.s[1] + c0, ds: state.s[2], dc: state.s[3] };
        let o = read(inputs, row, norm, &mut m, state.t, form);
        state.s[..4].copy_from_slice(&[m.s - s0, m.c - c0, m.ds, m.dc]);
        let o = merge_heads(o).layer_norm(p[self.norm[0]], Some(p[self.norm[1]]), 1e-6);
        (x.linear(p[self.w_g], None).gelu_tanh() * o).linear(p[self.w_o], None)
    }
}
