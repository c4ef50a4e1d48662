//! KDA, Kimi Delta Attention (Kimi Team 2025, arXiv 2510.26692; the layer is that of flash-linear-attention,
//! fla/layers/kda.py): gated DeltaNet with a gate for each channel of the key.
//!
//! ```text
//! q_t, k_t, v_t = SiLU(conv(W_{q,k,v} x_t)),  q, k ← q/‖q‖, k/‖k‖        per head, as in DeltaNet
//! β_t = s σ(W_β x_t)                                                     one per head; s = 1, or 2 (see below)
//! g_t = −exp(A_log) softplus(W_2 W_1 x_t + b_dt),  α_t = exp(g_t)        one for each channel of the key, in (0, 1)
//! S' = diag(α_t) S_{t-1}                                                 the gate clears rows
//! S_t = S' + k_t β_t (v_t − S'ᵀ k_t)ᵀ                                    the delta rule replaces under one key     (1)
//! o_t = S_tᵀ q_t / √K                                                                                              (2)
//! y_t = W_o (RMSNorm(o_t) ⊙ σ(W_4 W_3 x_t + b_z))                        norm per head
//! ```
//!
//! The transition (I − β k kᵀ) diag(α) is similar to the symmetric A^½ (I − β k kᵀ) A^½, A = diag(α): its eigenvalues
//! are real, between 0 and 1 for s = 1. With `eigenvalues = "-1..1"`, s = 2 and they reach down to −1, which is what
//! parity needs: a one reflects the state, and two of them cancel.
//!
//! The low-rank maps go through K channels. A_log = ln U(1, 16) for each head, and b_dt makes the softplus log-uniform
//! in [0.001, 0.1] for each channel; other weights start normal, of deviation 0.02, those of q, k and v as DeltaNet's.
//!
//! Shapes, per head: q, k, g, α [B, T, H, K], v, o [B, T, H, V], β [B, T, H], S and S' [B, H, K, V], y [B, T, D]. The
//! chunked form is that of [`erase_write`] with p = β k and β v for v.
//!
//! | form | work |
//! |---|---|
//! | recurrent | O(T K V), T steps |
//! | parallel | the whole sequence as one chunk: O(T² (K + V)) |
//! | chunked | O(T (C (K + V) + K V)); with the inverse written out, as on a device, C² more |

use super::{delta_net, memories::fade, prelude::*};
use crate::ops::{delta::gated_delta_rule, erase_write};

/// Equations (1) and (2) for one token: q, k, g [B, H, K], v [B, H, V], beta [B, H], S [B, H, K, V] to o and the next
/// S.
pub(crate) fn step<'t>([q, k, v, beta, g]: [Var<'t>; 5], s: Var<'t>, scale: f64) -> (Var<'t>, Var<'t>) {
    delta_net::step(q, k, v, beta, fade(g, s), scale) // (S') (1) (2)
}

/// The forms over a sequence: q, k, g [B, T, H, K] (or g [B, T, H, 1]), v [B, T, H, V], beta [B, T, H] to o
/// [B, T, H, V] and the last S.
pub fn sequence<'t>(x: [Var<'t>; 5], s: Var<'t>, scale: f64, form: Form) -> (Var<'t>, Var<'t>) {
    let [q, k, v, beta, g] = x;
    match form {
        Form::Recurrent => over_time_with(q.shape().at(1), v, s, |i, s| step(x.map(|x| at(x, i)), s, scale)),
        Form::Chunked(chunk) => gated_delta_rule(q, k, v, beta, g, s, scale, chunk),
        _ => {
            let beta = insert_axis(beta, 3);
            erase_write::parallel([q, k, beta * v, beta * k, g], s, scale)
        }
    }
}

/// See [`About`].
pub(crate) const ABOUT: About = About {
    family: Family::DeltaRules,
    line: "KDA: gated DeltaNet with a gate for each key channel",
    parent: Some(("gated_delta_net", "a gate for each channel of the key")),
    transition: "(I − β_t k_t k_tᵀ) diag(α_t)",
    state: "H K V",
    eigenvalues: "(0, 1) or (−1, 1)",
    cost: "H K V",
    source: "arXiv 2510.26692",
};

/// The mixer.
pub struct Layer {
    h: usize,
    k: usize,
    qkv: [Projection; 3],
    w_beta: P,
    w_g: LowRank,
    a_log: P,
    b_dt: P,
    w_z: LowRank,
    b_z: P,
    norm: P,
    w_o: P,
    stretch: f64, // s
}

impl Layer {
    /// H heads of width K over the model's width.
    pub fn new(c: &ModelConfig, init: &mut Init) -> Result<Layer> {
        let (width, inner, h, k) = (c.width, c.inner(), c.heads, c.head_dim);
        Ok(Layer {
            h,
            k,
            qkv: ["q", "k", "v"].map(|name| Projection::new(name, 1, c, init)),
            w_beta: narrow_normal(init, "w_beta", h, width),
            w_g: LowRank::new(init, "w_g", inner, k, width),
            a_log: init.in_f32("A_log", [h, 1], |g, _| g.uniform(1.0, 16.0).ln()),
            b_dt: init.in_f32("b_dt", [inner], |g, _| step_size_bias(g)),
            w_z: LowRank::new(init, "w_z", inner, k, width),
            b_z: init.full("b_z", [inner], 0.0),
            norm: init.full("norm", [k], 1.0),
            w_o: narrow_normal(init, "w_o", width, inner),
            stretch: c.eigenvalues.stretch(),
        })
    }

    /// q, k, v, beta and g of x [B, T, D]; the convolutions' windows (states 1 to 3) move on.
    fn project<'t>(&self, p: &Bound<'t>, x: Var<'t>, state: &mut State<'t>) -> [Var<'t>; 5] {
        let [q, k, v] = std::array::from_fn(|j| heads(self.qkv[j].apply(p, x, state, 1 + j), self.h)); // (q_t)
        let beta = self.stretch * x.linear(p[self.w_beta], None).sigmoid(); // (β_t)
        let step = self.w_g.around(p, x, |x| x.named("low"), Some(p[self.b_dt])).softplus(); // (g_t)
        let g = (p[self.a_log].decay_rate() * heads(step, self.h)).cast(x.dtype()); // (g_t)
        [q.l2_norm_smooth(1e-6), k.l2_norm_smooth(1e-6), v, beta, g] // (q, k)
    }
}

impl Mixer for Layer {
    fn capabilities(&self) -> Capabilities {
        Capabilities { eigenvalues: true, ..Capabilities::default() }
    }

    fn state(&self, b: usize) -> Vec<(&'static str, Shape)> {
        let s = ("S", [b, self.h, self.k, self.k].into());
        [s].into_iter().chain(Projection::windows(&self.qkv, b)).collect()
    }

    fn sequence<'t>(&self, p: &Bound<'t>, x: Var<'t>, state: &mut State<'t>, form: Form) -> Var<'t> {
        let inputs = self.project(p, x, state);
        let (o, s) = sequence(inputs, state.s[0], inverse_root(self.k), form);
        state.s[0] = s;
        normed_output(o, p[self.norm], Some(self.w_z.apply(p, x, Some(self.b_z)).sigmoid()), p[self.w_o]) // (y_t)
    }
}
