//! Linear transformer (Katharopoulos et al. 2020, arXiv 2006.16236): attention with a feature map in place of the
//! softmax, which makes it a recurrence over a matrix.
//!
//! ```text
//! q_t, k_t, v_t = W_q x_t + b_q, W_k x_t + b_k, W_v x_t + b_v             per head
//! φ(x) = elu(x) + 1                                       feature map                                (eq. 7)
//! S_t = S_{t-1} + φ(k_t) v_tᵀ                             memory,      S_0 = 0                        (eq. 18)
//! z_t = z_{t-1} + φ(k_t)                                  normaliser,  z_0 = 0                        (eq. 19)
//! o_t = S_tᵀ φ(q_t) / (φ(q_t) · z_t + ε)                                                             (eq. 20)
//! y_t = W_o o_t + b_o
//! ```
//!
//! The transition is the identity: the memory only adds; it can neither forget nor correct.
//!
//! Shapes, per head: q, k, φ [B, T, H, K], v, o [B, T, H, V], S [B, H, K, V], z [B, H, K], y [B, T, D].
//!
//! | form | work |
//! |---|---|
//! | recurrent | O(T K V), T steps |
//! | parallel | O(T² (K + V)): o = (tril(φ(Q) φ(K)ᵀ) V + φ(Q) S_0) / (row sums + φ(Q) z_0) |
//! | chunked | O(T (C (K + V) + K V)): the quadratic form within C steps, the recurrence between them |

use super::prelude::*;
use crate::ops::linear_attn::LinearAttention;

/// ε in the denominator, as in the authors' fast-transformers.
pub const EPS: f64 = 1e-6;

/// Memory and, where the output is normalised, the normaliser.
#[derive(Clone, Copy)]
pub struct Memory<'t> {
    /// S [B, H, K, V]
    pub s: Var<'t>,
    /// z [B, H, K], and ε.
    pub z: Option<(Var<'t>, f64)>,
}

/// Equations 18 to 20 for one token: q, k [B, H, K] (after φ), v [B, H, V] to o [B, H, V].
pub(crate) fn step<'t>(q: Var<'t>, k: Var<'t>, v: Var<'t>, m: &mut Memory<'t>, scale: f64) -> Var<'t> {
    let q = scale * q.named("q");
    m.s = m.s + outer(k.named("k"), v.named("v")); // (eq. 18)
    let o = recall(m.s, q); // (eq. 20)
    let Some((z, eps)) = &mut m.z else { return o };
    *z = *z + k; // (eq. 19)
    (o / ((q * *z).sum_axis(2, true) + *eps).named("den")).named("o") // (eq. 20)
}

/// [`step`] over a sequence: q, k [B, T, H, K], v [B, T, H, V] to o [B, T, H, V].
pub fn recurrent<'t>(q: Var<'t>, k: Var<'t>, v: Var<'t>, m: &mut Memory<'t>, scale: f64) -> Var<'t> {
    let [_, t, _, _] = q.dims();
    over_time(t, v, |i| step(at(q, i), at(k, i), at(v, i), m, scale))
}

/// The masked quadratic form over the whole sequence.
pub(crate) fn parallel<'t>(q: Var<'t>, k: Var<'t>, v: Var<'t>, m: &mut Memory<'t>, scale: f64) -> Var<'t> {
    let (q, k, v) = (head_first(scale * q), head_first(k), head_first(v)); // [B, H, T, ..]
    let [b, h, _, n] = k.dims();
    let p = q.matmul_t(k).tril(0); // [B, H, T, T]
    let mut o = p.tril_matmul(v) + q.matmul(m.s); // (eq. 20)
    m.s = m.s + k.t_matmul(v); // (eq. 18)
    if let Some((z, eps)) = &mut m.z {
        let carried = q.matmul(z.reshape([b, h, n, 1])); // [B, H, T, 1]
        o = o / (p.sum_axis(3, true) + carried + *eps); // (eq. 20)
        *z = *z + k.sum_axis(2, false); // (eq. 19)
    }
    head_first(o)
}

/// The hand-written chunked form, in chunks of so many steps and in so many parts.
pub(crate) fn chunked<'t>([q, k, v]: [Var<'t>; 3], m: &mut Memory<'t>, scale: f64, cut: (usize, usize)) -> Var<'t> {
    let op = LinearAttention { chunk: cut.0, parts: cut.1, scale, normalize: m.z.map(|z| z.1) };
    let o;
    match &mut m.z {
        None => [o, m.s] = q.tape().apply_many(op, [q, k, v, m.s]),
        Some((z, _)) => [o, m.s, *z] = q.tape().apply_many(op, [q, k, v, m.s, *z]),
    }
    o
}

/// All forms over a sequence.
pub fn attention<'t>([q, k, v]: [Var<'t>; 3], m: &mut Memory<'t>, scale: f64, form: Form) -> Var<'t> {
    match form {
        Form::Recurrent => recurrent(q, k, v, m, scale),
        Form::Chunked(_) | Form::Split(_) => chunked([q, k, v], m, scale, form.cut()),
        _ => parallel(q, k, v, m, scale),
    }
}

/// See [`About`].
pub(crate) const ABOUT: About = About {
    family: Family::Memories,
    line: "Linear transformer: linear attention with a normaliser",
    parent: Some(("gpt", "features for exp: a state of fixed size")),
    transition: "I",
    state: "H K (V + 1)",
    eigenvalues: "1",
    cost: "H K V",
    source: "arXiv 2006.16236",
};

/// The mixer.
pub struct Layer(AttentionMaps);

impl Layer {
    /// H heads of width K over the model's width.
    pub fn new(c: &ModelConfig, init: &mut Init) -> Result<Layer> {
        Ok(Layer(AttentionMaps::new(c, init)))
    }
}

impl Mixer for Layer {
    fn forms(&self) -> Vec<Form> {
        FORMS.to_vec()
    }

    fn state(&self, b: usize) -> Vec<(&'static str, Shape)> {
        let AttentionMaps { h, k, .. } = self.0;
        vec![("S", [b, h, k, k].into()), ("z", [b, h, k].into())]
    }

    fn sequence<'t>(&self, p: &Bound<'t>, x: Var<'t>, state: &mut State<'t>, form: Form) -> Var<'t> {
        let [q, k, v] = self.0.project(p, x); // (q_t)
        let mut m = Memory { s: state.s[0], z: Some((state.s[1], EPS)) };
        let o = attention([q.elu1(), k.elu1(), v], &mut m, 1.0, form); // (φ(x))
        state.s = vec![m.s, m.z.map_or(state.s[1], |z| z.0)];
        self.0.output(p, o) // (y_t)
    }
}
