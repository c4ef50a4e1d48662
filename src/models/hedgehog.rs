//! Hedgehog (Zhang et al. 2024, arXiv 2402.04347; the feature map is that of the authors' lolcats): the linear
//! transformer with features that are learned, and as spiky as attention's weights.
//!
//! ```text
//! q_t, k_t, v_t = W_q x_t, W_k x_t, W_v x_t                              per head
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
//! Shapes, per head: q, k [B, T, H, K], φ [B, T, H, 2 K], v [B, T, H, V], S [B, H, 2 K, V], z [B, H, 2 K]; forms and
//! their work as in [`linear_transformer`] with 2 K for K.

use super::{
    About, Bound, Family, Form, Init, Mixer, ModelConfig, P, State, heads, linear_parts,
    linear_transformer::{self, Memory},
    memories::one_token,
    merge_heads,
};
use crate::{autograd::Var, error::Result, tensor::Shape};

/// ε in the denominator.
const EPS: f64 = 1e-12;

/// φ [B, T, H, 2 Q] of x [B, T, H, K] and w [H, K, Q].
pub fn features<'t>(x: Var<'t>, w: Var<'t>) -> Var<'t> {
    let ([b, t, h, k], q) = (x.dims(), w.shape().last());
    let y = x.permute([2, 0, 1, 3]).reshape([h, b * t, k]).matmul(w);
    let y = y.reshape([h, b, t, q]).permute([1, 2, 0, 3]);
    Var::concat(&[y.softmax(), (-y).softmax()], 3)
}

/// See [`About`].
pub const ABOUT: About = About {
    family: Family::Memories,
    line: "Hedgehog: linear attention with learned, spiky features",
    parent: Some(("linear_transformer", "learned, spiky features")),
    transition: "I",
    state: "2 H K (V + 1)",
    eigenvalues: "1",
    cost: "2 H K V",
    scan: false,
    source: "arXiv 2402.04347",
};

/// The mixer.
pub struct Layer {
    h: usize,
    k: usize,
    qkv: P,
    qkv_bias: P,
    maps: [P; 2],
    w_o: P,
    b_o: P,
}

impl Layer {
    /// H heads of width K over the model's width.
    pub fn new(c: &ModelConfig, init: &mut Init) -> Result<Layer> {
        let (width, inner, k) = (c.width, c.inner(), c.head_dim);
        let identity = |i: usize| if i / k % k == i % k { 1.0 } else { 0.0 };
        Ok(Layer {
            h: c.heads,
            k,
            qkv: init.linear("w_qkv", 3 * inner, width),
            qkv_bias: init.full("b_qkv", [3 * inner], 0.0),
            maps: ["map_q", "map_k"].map(|name| init.custom(name, [c.heads, k, k], |_, i| identity(i))),
            w_o: init.linear("w_o", width, inner),
            b_o: init.full("b_o", [width], 0.0),
        })
    }
}

impl Mixer for Layer {
    fn forms(&self) -> Vec<Form> {
        vec![Form::Recurrent, Form::Parallel, Form::Chunked(Form::CHUNK)]
    }

    fn state(&self, b: usize) -> Vec<(&'static str, Shape)> {
        vec![("S", [b, self.h, 2 * self.k, self.k].into()), ("z", [b, self.h, 2 * self.k].into())]
    }

    fn step<'t>(&self, p: &Bound<'t>, x: Var<'t>, state: &mut State<'t>) -> Var<'t> {
        one_token(x, |x| self.sequence(p, x, state, Form::Recurrent))
    }

    fn sequence<'t>(&self, p: &Bound<'t>, x: Var<'t>, state: &mut State<'t>, form: Form) -> Var<'t> {
        let [q, k, v] = linear_parts(x, p[self.qkv], Some(p[self.qkv_bias])).map(|x| heads(x, self.h));
        let (q, k) = (features(q, p[self.maps[0]]), features(k, p[self.maps[1]]));
        let mut m = Memory { s: state.s[0], z: Some((state.s[1], EPS)) };
        let o = match form {
            Form::Recurrent => linear_transformer::recurrent(q, k, v, &mut m, 1.0),
            Form::Chunked(chunk) => linear_transformer::chunked(q, k, v, &mut m, 1.0, chunk),
            _ => linear_transformer::parallel(q, k, v, &mut m, 1.0),
        };
        state.s = vec![m.s, m.z.map_or(state.s[1], |z| z.0)];
        merge_heads(o).linear(p[self.w_o], Some(p[self.b_o]))
    }
}
