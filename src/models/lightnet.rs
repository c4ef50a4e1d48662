//! LightNet (Qin et al. 2024, arXiv 2405.21022; the layer is that of flash-linear-attention, fla/layers/lightnet.py):
//! gated linear attention whose gate comes from the keys themselves.
//!
//! ```text
//! q_t, k_t, v_t = SiLU(W_q x_t), W_k x_t, W_v x_t                        per head
//! z_t = ln(e^{z_{t-1}} + e^{k_t})                                        for each channel of the key; z_0 = −∞
//! α_t = e^{z_{t-1} − z_t},  k̂_t = e^{k_t − z_t} = 1 − α_t
//! S_t = diag(α_t) S_{t-1} + k̂_t v_tᵀ                                     gated linear attention                    (1)
//! o_t = S_tᵀ q_t / √K                                                                                              (2)
//! y_t = W_o (RMSNorm(o_t) ⊙ SiLU(W_2 W_1 x_t))                           norm over all heads together
//! ```
//!
//! Channel c reads a softmax over time: o_t = Σ_c q_tc Σ_{s ≤ t} softmax_s(k_sc) v_s / √K. Nothing decays by itself: an
//! early large key stays. The transition diag(α) has its eigenvalues in [0, 1): no row can flip.
//!
//! The carried state is S, z and w, which is 0 before the first token and 1 after it: the z before is z + ln w. W_1
//! goes through K channels. Weights start normal, of deviation 0.02.
//!
//! Shapes, per head: q, k, z, α [B, T, H, K], v, o [B, T, H, V], S [B, H, K, V], y [B, T, D]; forms and their work as
//! in [`gla`]. In sequence all z are found in log T rounds.

use super::{gla, memories::gated, prelude::*};

/// k̂_t, ln α_t and z_t [B, T, H, K] of k [B, T, H, K] and the z before it [B, H, K], or none before the first token.
pub(crate) fn over_the_past<'t>(k: Var<'t>, before: Option<Var<'t>>) -> (Var<'t>, Var<'t>, Var<'t>) {
    let [b, t, h, n] = k.dims();
    if t == 0 {
        return (k, k, k);
    }
    let none = |t: usize| k.tape().full([b, t, h, n], k.dtype(), f64::NEG_INFINITY);
    // A finite number: padding has keys of −∞, and −∞ − (−∞) is NaN.
    let first = reference(before.map_or_else(|| none(1), |z| insert_axis(z, 1)));
    let mut z = Var::concat(&[log_add(first, k.narrow(1, 0, 1)), k.narrow(1, 1, t - 1)], 1); // (z_t)
    // After a round each z is the sum over twice as many tokens.
    let mut reach = 1;
    while reach < t {
        z = log_add(z, Var::concat(&[none(reach), z.narrow(1, 0, t - reach)], 1)); // (z_t)
        reach *= 2;
    }
    ((k - z).exp(), Var::concat(&[first, z.narrow(1, 0, t - 1)], 1) - z, z) // (α_t)
}

/// o [B, T, H, V] and the last S of q, k [B, T, H, K], v [B, T, H, V], the z before (or none) and S; z moves on.
pub(crate) fn attention<'t>(
    [q, k, v]: [Var<'t>; 3],
    before: &mut Option<Var<'t>>,
    mut s: Var<'t>,
    scale: f64,
    form: Form,
) -> (Var<'t>, Var<'t>) {
    let t = k.shape().at(1);
    if form == Form::Recurrent || t == 0 {
        let o = over_time(t, v, |i| {
            let (key, g, z) = over_the_past(k.narrow(1, i, 1), *before);
            let o;
            (o, s) = gla::step([at(q, i), at(key, 0), at(v, i), at(g, 0)], s, scale); // (1) (2)
            *before = Some(at(z, 0));
            o
        });
        return (o, s);
    }
    let (key, g, z) = over_the_past(k, *before);
    *before = Some(at(z, t - 1));
    gated([q, key, v, g], s, scale, form) // (1) (2)
}

/// See [`About`].
pub(crate) const ABOUT: About = About {
    family: Family::Memories,
    line: "LightNet: the gate is a running softmax over the keys",
    parent: Some(("gla", "the gate is a running softmax")),
    transition: "diag(e^(z_{t-1} − z_t))",
    state: "H K (V + 1)",
    eigenvalues: "[0, 1)",
    cost: "H K V",
    source: "arXiv 2405.21022",
};

/// The mixer.
pub struct Layer {
    h: usize,
    k: usize,
    w_qkv: P,
    norm: P,
    w_g: LowRank,
    w_o: P,
}

impl Layer {
    /// H heads of width K over the model's width.
    pub fn new(c: &ModelConfig, init: &mut Init) -> Result<Layer> {
        let (width, inner, k) = (c.width, c.inner(), c.head_dim);
        Ok(Layer {
            h: c.heads,
            k,
            w_qkv: narrow_normal(init, "w_qkv", 3 * inner, width),
            norm: init.full("norm", [inner], 1.0),
            w_g: LowRank::new(init, "w_g", inner, k, width),
            w_o: narrow_normal(init, "w_o", width, inner),
        })
    }
}

impl Mixer for Layer {
    fn forms(&self) -> Vec<Form> {
        FORMS.to_vec()
    }

    fn state(&self, b: usize) -> Vec<(&'static str, Shape)> {
        let Layer { h, k, .. } = *self;
        vec![("S", [b, h, k, k].into()), ("z", [b, h, k].into()), ("w", [b, h, 1].into())]
    }

    fn sequence<'t>(&self, p: &Bound<'t>, x: Var<'t>, state: &mut State<'t>, form: Form) -> Var<'t> {
        let [q, k, v] = linear_heads(x, p[self.w_qkv], self.h); // (q_t)
        let [s, z, w] = [state.s[0], state.s[1], state.s[2]];
        let mut before = Some(z + w.log());
        let (o, s) = attention([q.silu(), k, v], &mut before, s, inverse_root(self.k), form); // (q_t)
        if let Some(z) = before.filter(|_| x.shape().at(1) > 0) {
            state.s = vec![s, z, x.tape().full(w.shape(), w.dtype(), 1.0)];
        }
        normed_output(o, p[self.norm], Some(self.w_g.apply(p, x, None).silu()), p[self.w_o]) // (y_t)
    }
}
