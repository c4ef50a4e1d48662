//! Gated DeltaNet (Yang, Kautz and Hatamizadeh 2025, arXiv 2412.06464): DeltaNet with a gate that can clear the whole
//! memory at once, as in Mamba-2.
//!
//! ```text
//! q_t, k_t, v_t = SiLU(conv(W_{q,k,v} x_t)),  q, k ← q/‖q‖, k/‖k‖        per head, as in DeltaNet
//! β_t = s σ(W_β x_t)                                                     one per head; s = 1, or 2 (see below)
//! g_t = −exp(A_log) softplus(W_g x_t + b_dt),  α_t = exp(g_t)            one per head, in (0, 1)
//! S_t = α_t (I − β_t k_t k_tᵀ) S_{t-1} + β_t k_t v_tᵀ                    the gated delta rule                (1)
//!     = S' + k_t β_t (v_t − S'ᵀ k_t)ᵀ  with  S' = α_t S_{t-1}
//! o_t = S_tᵀ q_t / √K                                                                                        (2)
//! y_t = W_o (RMSNorm(o_t) ⊙ SiLU(W_z x_t))                               norm per head
//! ```
//!
//! The transition has the eigenvalue α (1 − β) along k and α orthogonal to k: the delta rule replaces the value stored
//! under one key, and the gate clears the rest. With `eigenvalues = "-1..1"`, s = 2 and α (1 − β) comes close to −1, as
//! parity needs.
//!
//! The chunked form is DeltaNet's, with every stored value decayed by the gates since it was written. With G_t = g_1 +
//! … + g_t in the chunk, D_ts = exp(G_t − G_s) for s ≤ t, γ_t = exp(G_t), r_s = D_Cs and b = diag(β),
//!
//! ```text
//! A = stril(b K Kᵀ ⊙ D),   U = (I + A)⁻¹ (b V − b γ K S)                                                     (3)
//! O = γ Q S + tril(Q Kᵀ ⊙ D) U,     S ← γ_C S + (r K)ᵀ U                                                    (4)
//! ```
//!
//! Every exponent is a [segment sum](crate::ops::segsum) of g over the steps after s up to t, never positive.
//!
//! Initially exp(A_log) is uniform in (0, 16), and b_dt makes the softplus log-uniform in [0.001, 0.1], the latter as
//! in Mamba-2. Heads are square here; flash-linear-attention's have V = 2 K by default.
//!
//! Shapes, per head: q, k [B, T, H, K], v, o [B, T, H, V], β, g [B, T, H], S [B, H, K, V], y [B, T, D].
//!
//! | form | work |
//! |---|---|
//! | recurrent | O(T K V), T steps |
//! | parallel | (3) and (4) with the whole sequence as one chunk: O(T² (K + V)) |
//! | chunked | O(T (C (K + V) + K V)); with the inverse written out, as on a device, C² more |

use super::{delta_net, prelude::*};
use crate::ops::delta::gated_delta_rule;

/// q, k [.., H, K], v [.., H, V], β and g = ln α [.., H] of one token or of a sequence.
pub(crate) type Inputs<'t> = [Var<'t>; 5];

/// Equations (1) and (2) for one token: S [B, H, K, V] to o [B, H, V] and the next S.
pub(crate) fn step<'t>([q, k, v, beta, g]: Inputs<'t>, s: Var<'t>, scale: f64) -> (Var<'t>, Var<'t>) {
    let alpha = insert_axis(insert_axis(g.exp().named("alpha"), 2), 3); // (α_t)
    delta_net::step(q, k, v, beta, alpha * s, scale) // (1) (2)
}

/// Equations (3) and (4) with the whole sequence as one chunk.
pub(crate) fn parallel<'t>([q, k, v, beta, g]: Inputs<'t>, s: Var<'t>, scale: f64) -> (Var<'t>, Var<'t>) {
    let [b, t, h, _] = k.dims();
    if t == 0 {
        return (v, s);
    }
    let (q, k, v) = (head_first(scale * q), head_first(k), head_first(v)); // [B, H, T, ..]
    let column = |x: Var<'t>| x.reshape([b, h, t, 1]);
    let [beta, g] = [beta, g].map(|x| x.permute([0, 2, 1])); // [B, H, T]
    let beta = column(beta);
    let decay = g.segsum().exp(); // D [B, H, T, T]
    let from_start = column(g.narrow(2, 0, 1).exp() * decay.narrow(3, 0, 1).reshape([b, h, t])); // γ
    let (to_end, all) = (column(decay.narrow(2, t - 1, 1)), from_start.narrow(2, t - 1, 1)); // r and γ_T
    let bk = beta * k;
    let u = (bk.matmul_t(k) * decay).unit_lower_solve(beta * v - (from_start * bk).matmul(s)); // (3)
    let o = (from_start * q).matmul(s) + (q.matmul_t(k) * decay).tril_matmul(u); // (4)
    (head_first(o), all * s + (to_end * k).t_matmul(u)) // (4)
}

/// All forms over a sequence: to o [B, T, H, V] and the last S.
pub fn sequence<'t>(x: Inputs<'t>, s: Var<'t>, scale: f64, form: Form) -> (Var<'t>, Var<'t>) {
    let [q, k, v, beta, g] = x;
    match form {
        Form::Recurrent => over_time_with(q.shape().at(1), v, s, |i, s| step(x.map(|x| at(x, i)), s, scale)),
        Form::Chunked(chunk) => gated_delta_rule(q, k, v, beta, g, s, scale, chunk),
        _ => parallel(x, s, scale),
    }
}

/// See [`About`].
pub(crate) const ABOUT: About = About {
    family: Family::DeltaRules,
    line: "Gated DeltaNet: with a gate that clears the whole",
    parent: Some(("delta_net", "a gate for the whole")),
    transition: "α_t (I − β_t k_t k_tᵀ)",
    state: "H K V",
    eigenvalues: "α, α (1 − β): (0, 1) or (−1, 1)",
    cost: "H K V",
    source: "arXiv 2412.06464",
};

/// The mixer.
pub struct Layer {
    h: usize,
    k: usize,
    qkv: [Projection; 3],
    w_beta: P,
    w_g: P,
    a_log: P,
    b_dt: P,
    w_z: P,
    norm: P,
    w_o: P,
    rope: Option<Rope>,
    stretch: f64, // s
}

impl Layer {
    /// H heads of width K over the model's width. Projections start as DeltaNet's.
    pub fn new(c: &ModelConfig, init: &mut Init) -> Result<Layer> {
        let (width, inner, h) = (c.width, c.inner(), c.heads);
        Ok(Layer {
            h,
            k: c.head_dim,
            qkv: ["q", "k", "v"].map(|name| Projection::new(name, 1, c, init)),
            w_beta: init.uniform("w_beta", [h, width], xavier(h, width, SMALL_GAIN)),
            w_g: init.uniform("w_g", [h, width], xavier(h, width, SMALL_GAIN)),
            a_log: init.in_f32("A_log", [h], |g, _| g.uniform(1e-4, 16.0).ln()),
            b_dt: init.in_f32("b_dt", [h], |g, _| step_size_bias(g)),
            w_z: init.uniform("w_z", [inner, width], xavier(inner, width, SMALL_GAIN)),
            norm: init.full("norm", [c.head_dim], 1.0),
            w_o: init.uniform("w_o", [width, inner], xavier(width, inner, SMALL_GAIN)),
            rope: Rope::new(c),
            stretch: c.eigenvalues.stretch(),
        })
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
        let [q, k, v] = std::array::from_fn(|j| heads(self.qkv[j].apply(p, x, state, 1 + j), self.h)); // (q_t)
        let [q, k] = [q, k].map(|x| rotate(&self.rope, x.l2_norm_smooth(1e-6), state.t)); // (q, k)
        let beta = self.stretch * x.linear(p[self.w_beta], None).sigmoid(); // (β_t)
        let g = p[self.a_log].decay_rate() * x.linear(p[self.w_g], Some(p[self.b_dt])).softplus(); // (g_t)
        let (o, s) = sequence([q, k, v, beta, g], state.s[0], inverse_root(self.k), form);
        state.s[0] = s;
        normed_output(o, p[self.norm], Some(x.linear(p[self.w_z], None).silu()), p[self.w_o]) // (y_t)
    }
}
