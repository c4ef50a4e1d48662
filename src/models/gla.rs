//! Gated linear attention, GLA (Yang et al. 2024, arXiv 2312.06635; the layer is that of flash-linear-attention,
//! fla/layers/gla.py).
//!
//! ```text
//! q_t, k_t, v_t = W_q x_t, W_k x_t, W_v x_t                              per head
//! g_t = ln σ(W_2 W_1 x_t + b) / 16,  α_t = exp(g_t)                      one for each channel of the key, in (0, 1)
//! S_t = diag(α_t) S_{t-1} + k_t v_tᵀ                                     the gate clears rows of the memory        (1)
//! o_t = S_tᵀ q_t / √K                                                                                              (2)
//! y_t = W_o (RMSNorm(o_t) ⊙ SiLU(W_r x_t))                               norm per head
//! ```
//!
//! The 16 keeps α near 1 at the start: σ(0)^(1/16) = 0.958. W_1 goes through 16 channels. The transition diag(α) has
//! eigenvalues in (0, 1): each row decays at its own, input-dependent rate, and none can flip.
//!
//! The chunked form is that of [`gated_linear_attention`](crate::ops::gated_linear_attention). Weights start normal, of
//! deviation 0.02. Heads are square here; the published ones have V = 2 K.
//!
//! Shapes, per head: q, k, g, α [B, T, H, K], v, o [B, T, H, V], S [B, H, K, V], y [B, T, D].
//!
//! | form | work |
//! |---|---|
//! | recurrent | O(T K V), T steps |
//! | parallel | the whole sequence as one chunk: O(T² (K + V)) |
//! | chunked | O(T (C (K + V) + K V)) |

use super::{
    memories::{add, fade, gated, read},
    prelude::*,
};

/// The channels that the gate's weights go through, and the root that is taken of it.
const RANK: usize = 16;

/// Equations (1) and (2) for one token: q, k, g [B, H, K], v [B, H, V], S [B, H, K, V] to o and the next S.
pub(crate) fn step<'t>([q, k, v, g]: [Var<'t>; 4], s: Var<'t>, scale: f64) -> (Var<'t>, Var<'t>) {
    let s = add(k, v, fade(g, s)); // (1)
    (read(q, s, scale), s) // (2)
}

/// See [`About`].
pub(crate) const ABOUT: About = About {
    family: Family::Memories,
    line: "GLA: a gate for each channel of the key",
    parent: Some(("retnet", "a gate for each channel of the key")),
    transition: "diag(α_t)",
    state: "H K V",
    eigenvalues: "(0, 1)",
    cost: "H K V",
    source: "arXiv 2312.06635",
};

/// The mixer.
pub struct Layer {
    h: usize,
    k: usize,
    w_qkv: P,
    w_g: LowRank,
    b_g: P,
    w_r: P,
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
            w_qkv: narrow_normal(init, "w_qkv", 3 * inner, width),
            w_g: LowRank::new(init, "w_g", inner, RANK, width),
            b_g: init.full("b_g", [inner], 0.0),
            w_r: narrow_normal(init, "w_r", inner, width),
            norm: init.full("norm", [c.head_dim], 1.0),
            w_o: narrow_normal(init, "w_o", width, inner),
        })
    }

    /// q, k, v and g [B, T, H, K] of x [B, T, D].
    fn project<'t>(&self, p: &Bound<'t>, x: Var<'t>) -> [Var<'t>; 4] {
        let [q, k, v] = linear_parts(x, p[self.w_qkv], None); // (q_t)
        let g = self.w_g.around(p, x, |x| x.named("low"), Some(p[self.b_g])); // (g_t)
        [q, k, v, 1.0 / RANK as f64 * log_sigmoid(g)].map(|x| heads(x, self.h)) // (g_t)
    }
}

impl Mixer for Layer {
    fn forms(&self) -> Vec<Form> {
        FORMS.to_vec()
    }

    fn state(&self, b: usize) -> Vec<(&'static str, Shape)> {
        vec![("S", [b, self.h, self.k, self.k].into())]
    }

    fn sequence<'t>(&self, p: &Bound<'t>, x: Var<'t>, state: &mut State<'t>, form: Form) -> Var<'t> {
        let (o, s) = gated(self.project(p, x), state.s[0], inverse_root(self.k), form); // (1) (2)
        state.s[0] = s;
        normed_output(o, p[self.norm], Some(x.linear(p[self.w_r], None).silu()), p[self.w_o]) // (y_t)
    }
}
