//! Hedgehog (Zhang et al. 2024, arXiv 2402.04347; the feature map is that of the authors' lolcats): the linear
//! transformer with features that are learned, and as spiky as attention's weights.
//!
//! ```text
//! q_t, k_t, v_t = W_q x_t + b_q, W_k x_t + b_k, W_v x_t + b_v            per head
//! φ(x) = [softmax(x W), softmax(−x W)]                                   2 K features; a W for queries, one for keys
//! S_t = S_{t-1} + φ(k_t) v_tᵀ,  z_t = z_{t-1} + φ(k_t)                   as in the linear transformer
//! o_t = S_tᵀ φ(q_t) / (φ(q_t)·z_t + ε)
//! y_t = W_o o_t + b_o
//! ```
//!
//! The paper has exponentials; the authors' code divides them by their sum, and so bounds them. The transition is the
//! identity: the memory only adds. Trained here from end to end, and not to match an attention's weights.
//!
//! At the start W is the identity; other weights as the linear transformer's.
//!
//! Shapes, per head: q, k [B, T, H, K], φ [B, T, H, 2 K], v, o [B, T, H, V], S [B, H, 2 K, V], z [B, H, 2 K],
//! y [B, T, D]; forms and their work as in [`linear_transformer`] with 2 K for K.

use super::{
    linear_transformer::{self, Memory},
    prelude::*,
};

/// ε in the denominator.
const EPS: f64 = 1e-12;

/// φ [B, T, H, 2 Q] of x [B, T, H, K] and w [H, K, Q].
pub(crate) fn features<'t>(x: Var<'t>, w: Var<'t>) -> Var<'t> {
    let ([b, t, h, k], q) = (x.dims(), w.shape().last());
    let y = x.permute([2, 0, 1, 3]).reshape([h, b * t, k]).matmul(w); // (φ(x))
    let y = y.reshape([h, b, t, q]).permute([1, 2, 0, 3]);
    Var::concat(&[y.softmax(), (-y).softmax()], 3) // (φ(x))
}

/// See [`About`].
pub(crate) const ABOUT: About = About {
    family: Family::Memories,
    line: "Hedgehog: linear attention with learned, spiky features",
    parent: Some(("linear_transformer", "learned, spiky features")),
    transition: "I",
    state: "2 H K (V + 1)",
    eigenvalues: "1",
    cost: "2 H K V",
    source: "arXiv 2402.04347",
};

/// The mixer.
pub struct Layer {
    maps: AttentionMaps,
    features: [P; 2],
}

impl Layer {
    /// H heads of width K over the model's width.
    pub fn new(c: &ModelConfig, init: &mut Init) -> Result<Layer> {
        let (h, k) = (c.heads, c.head_dim);
        let identity = |i: usize| if i / k % k == i % k { 1.0 } else { 0.0 };
        let features =
            |init: &mut Init| ["map_q", "map_k"].map(|name| init.custom(name, [h, k, k], |_, i| identity(i)));
        let (maps, features) = AttentionMaps::around(c, init, features);
        Ok(Layer { maps, features })
    }
}

impl Mixer for Layer {
    fn forms(&self) -> Vec<Form> {
        FORMS.to_vec()
    }

    fn state(&self, b: usize) -> Vec<(&'static str, Shape)> {
        let AttentionMaps { h, k, .. } = self.maps;
        vec![("S", [b, h, 2 * k, k].into()), ("z", [b, h, 2 * k].into())]
    }

    fn sequence<'t>(&self, p: &Bound<'t>, x: Var<'t>, state: &mut State<'t>, form: Form) -> Var<'t> {
        let [q, k, v] = self.maps.project(p, x); // (q_t)
        let (q, k) = (features(q, p[self.features[0]]), features(k, p[self.features[1]]));
        let mut m = Memory { s: state.s[0], z: Some((state.s[1], EPS)) };
        let o = linear_transformer::attention([q, k, v], &mut m, 1.0, form); // (S_t) (o_t)
        state.s = vec![m.s, m.z.map_or(state.s[1], |z| z.0)];
        self.maps.output(p, o) // (y_t)
    }
}
