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
//! parity needs: two ones must cancel, a² = 1 with a ≠ 1. In (0, 1) the state converges instead.
//!
//! The chunked form is DeltaNet's, with every stored value decayed by the gates since it was written. With G_t = g_1 +
//! … + g_t in the chunk, D_ts = exp(G_t − G_s) for s ≤ t, γ_t = exp(G_t), r_s = D_Cs and b = diag(β),
//!
//! ```text
//! A = stril(b K Kᵀ ⊙ D),   U = (I + A)⁻¹ (b V − b γ K S)                                                     (3)
//! O = γ Q S + tril(Q Kᵀ ⊙ D) U,     S' = γ_C S + (r K)ᵀ U                                                    (4)
//! ```
//!
//! Every exponent is a sum of g over the steps after s up to t, never positive, and is computed as that sum (a segment
//! sum). The difference G_t − G_s would lose its digits after a gate that forgets nearly everything, and would be NaN
//! after g = −∞.
//!
//! Initially exp(A_log) is uniform in (0, 16), and b_dt makes the softplus log-uniform in [0.001, 0.1], as in Mamba-2.
//!
//! Shapes, per head: q, k [B, T, H, K], v [B, T, H, V], β and g [B, T, H], S [B, H, K, V].
//!
//! | form | work |
//! |---|---|
//! | recurrent | O(T K V), T steps |
//! | parallel | (3) and (4) with the whole sequence as one chunk: O(T² (K + V)) |
//! | chunked | O(T (C (K + V) + C² + K V)) |

use super::{
    About, Bound, Capabilities, Family, Form, Init, Mixer, ModelConfig, P, Rope, State, at,
    delta_net::{self, Projection, xavier},
    head_first, heads, mamba, merge_heads, over_time, positions,
};
use crate::{autograd::Var, error::Result, tensor::Shape};

pub use crate::ops::delta::gated_delta_rule as chunked;

/// q, k [.., H, K], v [.., H, V], β and g [.., H] of one token or of a sequence.
#[derive(Clone, Copy)]
pub struct Inputs<'t> {
    /// Queries
    pub q: Var<'t>,
    /// Keys
    pub k: Var<'t>,
    /// Values
    pub v: Var<'t>,
    /// β, the step sizes of the delta rule
    pub beta: Var<'t>,
    /// ln α, the logarithms of the gates
    pub g: Var<'t>,
}

impl<'t> Inputs<'t> {
    /// The inputs of token i.
    fn at(self, i: usize) -> Inputs<'t> {
        let Inputs { q, k, v, beta, g } = self;
        Inputs { q: at(q, i), k: at(k, i), v: at(v, i), beta: at(beta, i), g: at(g, i) }
    }
}

/// Equations (1) and (2) for one token: S [B, H, K, V] to o [B, H, V] and the next S.
pub fn step<'t>(x: Inputs<'t>, s: Var<'t>, scale: f64) -> (Var<'t>, Var<'t>) {
    let [b, h, _] = x.k.dims();
    let alpha = x.g.exp().named("alpha").reshape([b, h, 1, 1]);
    delta_net::step(x.q, x.k, x.v, x.beta, alpha * s, scale)
}

/// [`step`] over a sequence, to o [B, T, H, V] and the last S.
pub fn recurrent<'t>(x: Inputs<'t>, mut s: Var<'t>, scale: f64) -> (Var<'t>, Var<'t>) {
    let [_, t, _, _] = x.q.dims();
    let o = over_time(t, x.v, |i| {
        let o;
        (o, s) = step(x.at(i), s, scale);
        o
    });
    (o, s)
}

/// Equations (3) and (4) with the whole sequence as one chunk.
pub fn parallel<'t>(x: Inputs<'t>, s: Var<'t>, scale: f64) -> (Var<'t>, Var<'t>) {
    let [b, t, h, _] = x.k.dims();
    if t == 0 {
        return (x.v, s);
    }
    let (q, k, v) = (head_first(scale * x.q), head_first(x.k), head_first(x.v)); // [B, H, T, ..]
    let row = |x: Var<'t>| x.permute([0, 2, 1]); // [B, H, T]
    let column = |x: Var<'t>| x.reshape([b, h, t, 1]);
    let (beta, g) = (column(row(x.beta)), row(x.g));
    let decay = g.segsum().exp(); // D [B, H, T, T]
    let from_start = column(g.narrow(2, 0, 1).exp() * decay.narrow(3, 0, 1).reshape([b, h, t])); // γ
    let (to_end, all) = (column(decay.narrow(2, t - 1, 1)), from_start.narrow(2, t - 1, 1)); // r and γ_T
    let bk = beta * k;
    let u = (bk.matmul_t(k) * decay).unit_lower_solve(beta * v - (from_start * bk).matmul(s));
    let o = (from_start * q).matmul(s) + (q.matmul_t(k) * decay).tril_matmul(u);
    (head_first(o), all * s + (to_end * k).t_matmul(u))
}

/// See [`About`].
pub const ABOUT: About = About {
    family: Family::DeltaRules,
    line: "Gated DeltaNet: DeltaNet with a gate that clears the whole",
    parent: Some(("delta_net", "a gate for the whole")),
    transition: "α_t (I − β_t k_t k_tᵀ)",
    state: "H K V",
    eigenvalues: "α, α (1 − β)",
    cost: "H K V",
    scan: false,
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
        let mix = Layer {
            h,
            k: c.head_dim,
            qkv: ["q", "k", "v"].map(|name| Projection::new(name, 1, c, init)),
            w_beta: init.uniform("w_beta", [h, width], xavier(h, width)),
            w_g: init.uniform("w_g", [h, width], xavier(h, width)),
            a_log: init.custom("A_log", [h], |g, _| g.uniform(1e-4, 16.0).ln()),
            b_dt: init.custom("b_dt", [h], |g, _| mamba::step_size_bias(g)),
            w_z: init.uniform("w_z", [inner, width], xavier(inner, width)),
            norm: init.full("norm", [c.head_dim], 1.0),
            w_o: init.uniform("w_o", [width, inner], xavier(width, inner)),
            rope: Rope::new(c),
            stretch: c.eigenvalues.stretch(),
        };
        init.keep_in_f32([mix.a_log, mix.b_dt]);
        Ok(mix)
    }

    fn scale(&self) -> f64 {
        (self.k as f64).powf(-0.5)
    }

    /// The inputs of the gated delta rule from x [B, T, D]; updates the convolutions' windows (states 1 to 3).
    fn project<'t>(&self, p: &Bound<'t>, x: Var<'t>, state: &mut State<'t>) -> Inputs<'t> {
        let [q, k, v] = std::array::from_fn(|j| heads(self.qkv[j].apply(p, x, state, 1 + j), self.h));
        let unit = |x: Var<'t>| positions::rotate(&self.rope, x.l2_norm_smooth(1e-6), state.t);
        let beta = self.stretch * x.linear(p[self.w_beta], None).sigmoid();
        let g = p[self.a_log].decay_rate() * x.linear(p[self.w_g], Some(p[self.b_dt])).softplus();
        Inputs { q: unit(q), k: unit(k), v, beta, g }
    }

    fn output<'t>(&self, p: &Bound<'t>, o: Var<'t>, x: Var<'t>) -> Var<'t> {
        let z = x.linear(p[self.w_z], None).silu();
        (merge_heads(o.rms_norm(p[self.norm], 1e-6)) * z).linear(p[self.w_o], None)
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
        let x = x.reshape([b, 1, d]);
        let (o, s) = step(self.project(p, x, state).at(0), state.s[0], self.scale());
        state.s[0] = s;
        self.output(p, o.reshape([b, 1, self.h, self.k]), x).reshape([b, d])
    }

    fn sequence<'t>(&self, p: &Bound<'t>, x: Var<'t>, state: &mut State<'t>, form: Form) -> Var<'t> {
        let i = self.project(p, x, state);
        let (o, s) = match form {
            Form::Chunked(chunk) => chunked(i.q, i.k, i.v, i.beta, i.g, state.s[0], self.scale(), chunk),
            _ => parallel(i, state.s[0], self.scale()),
        };
        state.s[0] = s;
        self.output(p, o, x)
    }
}
