//! DeltaNet: a linear transformer that corrects its memory instead of adding to it (Schlag et al. 2021, arXiv
//! 2102.11174; the layer and the chunked form are those of Yang et al. 2024, arXiv 2406.06484).
//!
//! ```text
//! q_t, k_t, v_t = SiLU(conv(W_{q,k,v} x_t)),  q, k ← q/‖q‖, k/‖k‖        per head            (2406.06484, section 3.3)
//! β_t = s σ(W_β x_t)                                                     one per head; s = 1, or 2 (see below)
//! S_t = S_{t-1} + k_t β_t (v_t − S_{t-1}ᵀ k_t)ᵀ                          the delta rule       (1)
//!     = (I − β_t k_t k_tᵀ) S_{t-1} + β_t k_t v_tᵀ
//! o_t = S_tᵀ q_t / √K                                                                        (2)
//! y_t = W_o RMSNorm(o_t)                                                 norm per head
//! ```
//!
//! S [K, V] is the transpose of the paper's. v_t − S_{t-1}ᵀ k_t is the memory's error at key k_t. The transition I − β
//! k kᵀ has the eigenvalue 1 − β along k and 1 orthogonal to k. With s = 1, 1 − β lies in (0, 1): a step can erase but
//! not flip. With `eigenvalues = "-1..1"`, s = 2 and 1 − β lies in (−1, 1): with β = 2 a step reflects the state, S ← S
//! − 2 k kᵀ S (Grazzi et al. 2025, arXiv 2411.12537).
//!
//! Parity needs this. Every one applies the same transition a, and two ones must cancel: a² = 1 with a ≠ 1, so a = −1.
//! Products of transitions with real, non-negative eigenvalues converge instead: after enough ones, an odd and an even
//! number of them look alike in finite precision (theorem 1 there).
//!
//! The chunked form (section 3.2; WY representation, UT transform) has, for a chunk with rows Q (times 1/√K), K, V and
//! b = diag(β),
//!
//! ```text
//! A = stril(b K Kᵀ),   X = (I + A)⁻¹                                     X b is the paper's T    (3)
//! U = X (b V − b K S)         what is written, β_t (v_t − S_{t-1}ᵀ k_t), of all steps at once   (4)
//! O = Q S + tril(Q Kᵀ) U,     S ← S + Kᵀ U                                                      (5)
//! ```
//!
//! `ops/delta.rs` has the gradient and names the kernels.
//!
//! Shapes, per head: q, k [B, T, H, K], v [B, T, H, V], β [B, T, H], S [B, H, K, V].
//!
//! | form | work |
//! |---|---|
//! | recurrent | O(T K V), T steps |
//! | parallel | (3) to (5) with the whole sequence as one chunk: O(T² (K + V)) |
//! | chunked | O(T (C (K + V) + K V)); with X written out, as on a device, C² more |
//! | chunked, on a CPU with K V ≤ 256 | O(T K V), T steps inside the fused kernel |

use super::{
    About, Bound, Capabilities, Family, Form, Init, Mixer, ModelConfig, P, Rope, State, at, head_first, heads,
    merge_heads, over_time, positions, remembered,
};
use crate::{autograd::Var, error::Result, tensor::Shape};

pub use crate::ops::delta::delta_rule as chunked;

/// Equation (1): k [B, H, K], v [B, H, V], beta [B, H], S [B, H, K, V] to the next S.
pub fn write<'t>(k: Var<'t>, v: Var<'t>, beta: Var<'t>, s: Var<'t>) -> Var<'t> {
    let [b, h, n, value] = s.dims();
    let k = k.named("k").reshape([b, h, n, 1]);
    let error = v.named("v").reshape([b, h, value, 1]) - s.t_matmul(k); // [B, H, V, 1]
    s + k.matmul_t(beta.named("beta").reshape([b, h, 1, 1]) * error.named("error"))
}

/// Equation (2): q [B, H, K], S [B, H, K, V] to o [B, H, V].
pub fn read<'t>(q: Var<'t>, s: Var<'t>, scale: f64) -> Var<'t> {
    let [b, h, n, value] = s.dims();
    (scale * s.t_matmul(q.named("q").reshape([b, h, n, 1]))).reshape([b, h, value]).named("o")
}

/// Equations (1) and (2) for one token: q, k [B, H, K], v [B, H, V], beta [B, H], S [B, H, K, V] to o and the next S.
pub fn step<'t>(q: Var<'t>, k: Var<'t>, v: Var<'t>, beta: Var<'t>, s: Var<'t>, scale: f64) -> (Var<'t>, Var<'t>) {
    let s = write(k, v, beta, s);
    (read(q, s, scale), s)
}

/// [`step`] over a sequence: q, k [B, T, H, K], v [B, T, H, V], beta [B, T, H] to o [B, T, H, V] and the last S.
pub fn recurrent<'t>(q: Var<'t>, k: Var<'t>, v: Var<'t>, beta: Var<'t>, s: Var<'t>, scale: f64) -> (Var<'t>, Var<'t>) {
    let ([_, t, _, _], mut s) = (q.dims(), s);
    let o = over_time(t, v, |i| {
        let o;
        (o, s) = step(at(q, i), at(k, i), at(v, i), at(beta, i), s, scale);
        o
    });
    (o, s)
}

/// Equations (3) to (5) with the whole sequence as one chunk.
pub fn parallel<'t>(q: Var<'t>, k: Var<'t>, v: Var<'t>, beta: Var<'t>, s: Var<'t>, scale: f64) -> (Var<'t>, Var<'t>) {
    let (q, k, v) = (head_first(scale * q), head_first(k), head_first(v)); // [B, H, T, ..]
    let [b, h, t, _] = k.dims();
    let beta = beta.permute([0, 2, 1]).reshape([b, h, t, 1]);
    let bk = beta * k;
    let u = bk.matmul_t(k).unit_lower_solve(beta * v - bk.matmul(s));
    let o = q.matmul(s) + q.matmul_t(k).tril_matmul(u);
    (head_first(o), s + k.t_matmul(u))
}

/// The bound of a uniform weight matrix [out, in]: Xavier's, times the gain 2^-2.5.
pub(super) fn xavier(out: usize, inp: usize) -> f64 {
    2f64.powf(-2.5) * (6.0 / (out + inp) as f64).sqrt()
}

/// A projection, its short convolution (if any) and SiLU.
pub(super) struct Projection {
    w: P,
    conv: Option<P>, // [out, W]
    out: usize,
    past: usize, // W − 1
}

impl Projection {
    /// `parts` matrices [H K, D], stacked.
    pub(super) fn new(name: &str, parts: usize, c: &ModelConfig, init: &mut Init) -> Projection {
        let (out, w) = (parts * c.inner(), c.conv);
        let bound = (w.max(1) as f64).powf(-0.5);
        Projection {
            w: init.uniform(&format!("w_{name}"), [out, c.width], xavier(c.inner(), c.width)),
            conv: (w > 0).then(|| init.custom(&format!("conv_{name}"), [out, w], |g, _| g.uniform(-bound, bound))),
            out,
            past: w.saturating_sub(1),
        }
    }

    /// x [B, T, D] to [B, T, out]; updates the convolution's window [B, W − 1, out], entry `at` of the state.
    pub(super) fn apply<'t>(&self, p: &Bound<'t>, x: Var<'t>, state: &mut State<'t>, at: usize) -> Var<'t> {
        let Some(conv) = self.conv else { return x.linear(p[self.w], None).silu() };
        let y = x.linear(p[self.w], None);
        let past = state.s[at];
        state.s[at] = remembered(past, y);
        y.causal_conv1d(p[conv], None, past).silu()
    }

    /// The windows of the convolutions for q, k and v, if there are any: entries of the state.
    pub(super) fn windows<'a>(
        qkv: impl IntoIterator<Item = &'a Projection>,
        b: usize,
    ) -> impl Iterator<Item = (&'static str, Shape)> {
        let named = ["past q", "past k", "past v"].into_iter().zip(qkv).filter(|(_, x)| x.conv.is_some());
        named.map(move |(name, x)| (name, [b, x.past, x.out].into()))
    }
}

/// See [`About`].
pub const ABOUT: About = About {
    family: Family::DeltaRules,
    line: "DeltaNet: corrects the value under a key",
    parent: Some(("linear_transformer", "erases before it writes")),
    transition: "I − β_t k_t k_tᵀ",
    state: "H K V",
    eigenvalues: "1, 1 − β: (0, 1) or (−1, 1)",
    cost: "H K V",
    scan: false,
    source: "arXiv 2406.06484",
};

/// The mixer.
pub struct Layer {
    h: usize,
    k: usize,
    qkv: [Projection; 3],
    w_beta: P,
    norm: P,
    w_o: P,
    rope: Option<Rope>,
    stretch: f64, // s
}

impl Layer {
    /// H heads of width K over the model's width. Projections start Xavier-uniform with gain 2^-2.5.
    pub fn new(c: &ModelConfig, init: &mut Init) -> Result<Layer> {
        let (width, inner) = (c.width, c.inner());
        Ok(Layer {
            h: c.heads,
            k: c.head_dim,
            qkv: ["q", "k", "v"].map(|name| Projection::new(name, 1, c, init)),
            w_beta: init.uniform("w_beta", [c.heads, width], xavier(c.heads, width)),
            norm: init.full("norm", [c.head_dim], 1.0),
            w_o: init.uniform("w_o", [width, inner], xavier(width, inner)),
            rope: Rope::new(c),
            stretch: c.eigenvalues.stretch(),
        })
    }

    fn scale(&self) -> f64 {
        (self.k as f64).powf(-0.5)
    }

    /// q, k, v [B, T, H, K] and beta [B, T, H] from x [B, T, D]; updates the convolutions' windows (states 1 to 3).
    fn project<'t>(&self, p: &Bound<'t>, x: Var<'t>, state: &mut State<'t>) -> ([Var<'t>; 3], Var<'t>) {
        let [q, k, v] = std::array::from_fn(|j| heads(self.qkv[j].apply(p, x, state, 1 + j), self.h));
        let unit = |x: Var<'t>| positions::rotate(&self.rope, x.l2_norm_smooth(1e-6), state.t);
        let beta = self.stretch * x.linear(p[self.w_beta], None).sigmoid();
        ([unit(q), unit(k), v], beta)
    }

    fn output<'t>(&self, p: &Bound<'t>, o: Var<'t>) -> Var<'t> {
        merge_heads(o.rms_norm(p[self.norm], 1e-6)).linear(p[self.w_o], None)
    }
}

impl Mixer for Layer {
    fn forms(&self) -> Vec<Form> {
        vec![Form::Recurrent, Form::Parallel, Form::Chunked(Form::CHUNK)]
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { rope: true, eigenvalues: true }
    }

    fn state(&self, b: usize) -> Vec<(&'static str, Shape)> {
        let s = ("S", [b, self.h, self.k, self.k].into());
        [s].into_iter().chain(Projection::windows(&self.qkv, b)).collect()
    }

    fn step<'t>(&self, p: &Bound<'t>, x: Var<'t>, state: &mut State<'t>) -> Var<'t> {
        let [b, d] = x.dims();
        let ([q, k, v], beta) = self.project(p, x.reshape([b, 1, d]), state);
        let (o, s) = step(at(q, 0), at(k, 0), at(v, 0), at(beta, 0), state.s[0], self.scale());
        state.s[0] = s;
        self.output(p, o.reshape([b, 1, self.h, self.k])).reshape([b, d])
    }

    fn sequence<'t>(&self, p: &Bound<'t>, x: Var<'t>, state: &mut State<'t>, form: Form) -> Var<'t> {
        let ([q, k, v], beta) = self.project(p, x, state);
        let (o, s) = match form {
            Form::Chunked(chunk) => chunked(q, k, v, beta, state.s[0], self.scale(), chunk),
            _ => parallel(q, k, v, beta, state.s[0], self.scale()),
        };
        state.s[0] = s;
        self.output(p, o)
    }
}
