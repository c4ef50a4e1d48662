//! HGRN2 (Qin et al. 2024, arXiv 2404.07904): linear attention whose key is what its gate lets go.
//!
//! ```text
//! q_t = SiLU(W_q x_t),  i_t = W_i x_t                                    per head
//! γ_l = p_1 + … + p_l,  p = softmax over blocks of Γ                     for each channel; block l of L, from 0
//! α_t = γ_l + (1 − γ_l) σ(W_f x_t),  k_t = 1 − α_t                       one for each channel of the key
//! S_t = diag(α_t) S_{t-1} + k_t i_tᵀ                                     a weighted mean of the inputs and 0       (1)
//! o_t = S_tᵀ q_t / √K                                                                                              (2)
//! y_t = W_o RMSNorm(o_t)                                                 norm over all heads together
//! ```
//!
//! As k = 1 − α, each row of S is a convex average of the inputs and of the zero it starts from. The lower bound γ_l of
//! the forget gate rises with the depth: it is 0 in the first block, and Γ, which all blocks share, is learned from 0,
//! where γ_l = l / L. The transition has its eigenvalues α in (γ_l, 1): no row can flip.
//!
//! In logarithms g = ln α = ln(e^(ln γ) + e^(ln(1 − γ) + ln σ(f))), and γ and 1 − γ are sums of exponentials of ln p.
//! Weights start normal, of deviation 0.02.
//!
//! Shapes, per head: q, k, α [B, T, H, K], i, o [B, T, H, V], γ `[H K]`, S [B, H, K, V], y [B, T, D]; forms and their
//! work as in [`gla`](super::gla).

use super::{memories::gated, prelude::*};

/// k and g = ln α, of f and ln γ and ln(1 − γ), if γ is not 0.
pub(crate) fn gates<'t>(f: Var<'t>, bound: Option<[Var<'t>; 2]>) -> [Var<'t>; 2] {
    match bound {
        None => [(-f).sigmoid(), log_sigmoid(f)], // (α_t)
        // (α_t)
        Some([low, rest]) => [rest.exp() * (-f).sigmoid(), log_add(zeros_like(f) + low, rest + log_sigmoid(f))],
    }
}

/// See [`About`].
pub(crate) const ABOUT: About = About {
    family: Family::Memories,
    line: "HGRN2: the key is what the gate lets go",
    parent: Some(("gla", "the key is one minus the gate")),
    transition: "diag(α_t)",
    state: "H K V",
    eigenvalues: "(γ_l, 1)",
    cost: "H K V",
    source: "arXiv 2404.07904",
};

/// The mixer.
pub struct Layer {
    h: usize,
    k: usize,
    layer: usize, // l
    gamma: P,     // Γ [H K, L]
    w_qfi: P,
    norm: P,
    w_o: P,
}

impl Layer {
    /// H heads of width K over the model's width.
    pub fn new(c: &ModelConfig, init: &mut Init) -> Result<Layer> {
        let (layer, layers) = (init.layer, c.layers.max(init.layer + 1));
        Ok(Layer {
            h: c.heads,
            k: c.head_dim,
            layer,
            gamma: init.shared("bounds", |init, name| init.full(name, [c.inner(), layers], 0.0)),
            w_qfi: narrow_normal(init, "w_qfi", 3 * c.inner(), c.width),
            norm: init.full("norm", [c.inner()], 1.0),
            w_o: narrow_normal(init, "w_o", c.width, c.inner()),
        })
    }

    /// ln γ_l and ln(1 − γ_l) `[H K]`; none in the first block, where γ is 0.
    fn bound<'t>(&self, p: &Bound<'t>) -> Option<[Var<'t>; 2]> {
        let (p, l) = (p[self.gamma].log_softmax(), self.layer); // (γ_l)
        let (first, later) = (p.narrow(1, 0, 1), p.narrow(1, l + 1, p.shape().last() - l - 1));
        (l > 0).then(|| [p.narrow(1, 1, l).logsumexp(), Var::concat(&[first, later], 1).logsumexp()]) // (γ_l)
    }

    /// q, k, i and g [B, T, H, K] of x [B, T, D].
    fn project<'t>(&self, p: &Bound<'t>, x: Var<'t>) -> [Var<'t>; 4] {
        let [q, f, i] = linear_parts(x, p[self.w_qfi], None); // (q_t)
        let [k, g] = gates(f, self.bound(p));
        [q.silu(), k, i, g].map(|x| heads(x, self.h)) // (q_t)
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
        normed_output(o, p[self.norm], None, p[self.w_o]) // (y_t)
    }
}
