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
//! Powers of a transition with real eigenvalues in [0, 1] converge instead: after enough ones, an odd and an even
//! number of them look alike in finite precision (theorem 1 there).
//!
//! The chunked form (section 3.2; UT transform), for a chunk with rows Q (times 1/√K), K, V and b = diag(β):
//!
//! ```text
//! A = stril(b K Kᵀ),   X = (I + A)⁻¹                                     X b is the paper's T    (3)
//! U = X (b V − b K S)         what is written, β_t (v_t − S_{t-1}ᵀ k_t), of all steps at once   (4)
//! O = Q S + tril(Q Kᵀ) U,     S ← S + Kᵀ U                                                      (5)
//! ```
//!
//! `ops/delta.rs` has the gradient and names the kernels.
//!
//! Shapes, per head: q, k [B, T, H, K], v, o [B, T, H, V], β [B, T, H], S [B, H, K, V], y [B, T, D].
//!
//! | form | work |
//! |---|---|
//! | recurrent | O(T K V), T steps |
//! | parallel | (3) to (5) with the whole sequence as one chunk: O(T² (K + V)) |
//! | chunked | O(T (C (K + V) + K V)); with X written out, as on a device, C² more |
//! | chunked, on a CPU with K V ≤ 256 | O(T K V), T steps inside the fused kernel |

use super::prelude::*;
use crate::ops::delta::delta_rule;

pub use super::memories::read;

/// Equation (1): k [B, H, K], v [B, H, V], beta [B, H], S [B, H, K, V] to the next S.
pub fn write<'t>(k: Var<'t>, v: Var<'t>, beta: Var<'t>, s: Var<'t>) -> Var<'t> {
    let [b, h, n, value] = s.dims();
    let k = k.named("k").reshape([b, h, n, 1]);
    let error = v.named("v").reshape([b, h, value, 1]) - s.t_matmul(k); // (1) [B, H, V, 1]
    s + k.matmul_t(beta.named("beta").reshape([b, h, 1, 1]) * error.named("error")) // (1)
}

/// Equations (1) and (2) for one token: q, k [B, H, K], v [B, H, V], beta [B, H], S [B, H, K, V] to o and the next S.
pub fn step<'t>(q: Var<'t>, k: Var<'t>, v: Var<'t>, beta: Var<'t>, s: Var<'t>, scale: f64) -> (Var<'t>, Var<'t>) {
    let s = write(k, v, beta, s);
    (read(q, s, scale), s) // (2)
}

/// Equations (3) to (5) with the whole sequence as one chunk.
pub fn parallel<'t>(q: Var<'t>, k: Var<'t>, v: Var<'t>, beta: Var<'t>, s: Var<'t>, scale: f64) -> (Var<'t>, Var<'t>) {
    let (q, k, v) = (head_first(scale * q), head_first(k), head_first(v)); // [B, H, T, ..]
    let [b, h, t, _] = k.dims();
    let beta = beta.permute([0, 2, 1]).reshape([b, h, t, 1]);
    let bk = beta * k;
    let u = bk.matmul_t(k).unit_lower_solve(beta * v - bk.matmul(s)); // (3) (4)
    let o = q.matmul(s) + q.matmul_t(k).tril_matmul(u); // (5)
    (head_first(o), s + k.t_matmul(u)) // (5)
}

/// All forms over a sequence: q, k [B, T, H, K], v [B, T, H, V], beta [B, T, H] to o [B, T, H, V] and the last S.
pub fn sequence<'t>([q, k, v, beta]: [Var<'t>; 4], s: Var<'t>, scale: f64, form: Form) -> (Var<'t>, Var<'t>) {
    match form {
        Form::Recurrent => {
            over_time_with(q.shape().at(1), v, s, |i, s| step(at(q, i), at(k, i), at(v, i), at(beta, i), s, scale))
        }
        Form::Chunked(chunk) => delta_rule(q, k, v, beta, s, scale, chunk),
        _ => parallel(q, k, v, beta, s, scale),
    }
}

/// See [`About`].
pub(crate) const ABOUT: About = About {
    family: Family::DeltaRules,
    line: "DeltaNet: corrects the value under a key",
    parent: Some(("linear_transformer", "erases before it writes")),
    transition: "I − β_t k_t k_tᵀ",
    state: "H K V",
    eigenvalues: "1, 1 − β: (0, 1) or (−1, 1)",
    cost: "H K V",
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
            w_beta: init.uniform("w_beta", [c.heads, width], xavier(c.heads, width, SMALL_GAIN)),
            norm: init.full("norm", [c.head_dim], 1.0),
            w_o: init.uniform("w_o", [width, inner], xavier(width, inner, SMALL_GAIN)),
            rope: Rope::new(c),
            stretch: c.eigenvalues.stretch(),
        })
    }

    /// q, k, v [B, T, H, K] and beta [B, T, H] from x [B, T, D]; updates the convolutions' windows (states 1 to 3).
    fn project<'t>(&self, p: &Bound<'t>, x: Var<'t>, state: &mut State<'t>) -> [Var<'t>; 4] {
        let [q, k, v] = std::array::from_fn(|j| heads(self.qkv[j].apply(p, x, state, 1 + j), self.h)); // (q_t)
        let unit = |x: Var<'t>| rotate(&self.rope, x.l2_norm_smooth(1e-6), state.t); // (q, k)
        let beta = self.stretch * x.linear(p[self.w_beta], None).sigmoid(); // (β_t)
        [unit(q), unit(k), v, beta]
    }
}

impl Mixer for Layer {
    fn capabilities(&self) -> Capabilities {
        Capabilities { rope: true, eigenvalues: true }
    }

    fn state(&self, b: usize) -> Vec<(&'static str, Shape)> {
        let s = ("S", [b, self.h, self.k, self.k].into());
        [s].into_iter().chain(Projection::windows(&self.qkv, b)).collect()
    }

    fn sequence<'t>(&self, p: &Bound<'t>, x: Var<'t>, state: &mut State<'t>, form: Form) -> Var<'t> {
        let inputs = self.project(p, x, state);
        let (o, s) = sequence(inputs, state.s[0], inverse_root(self.k), form);
        state.s[0] = s;
        normed_output(o, p[self.norm], None, p[self.w_o]) // (y_t)
    }
}
