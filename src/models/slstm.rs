//! sLSTM (Beck et al. 2024, "xLSTM", arXiv 2405.04517, section 2.2): an LSTM with exponential gates and a normaliser,
//! in which a unit sees only the units of its own head.
//!
//! ```text
//! x' = SiLU(conv(x)) where there is a convolution, else x
//! ĩ, f̃ = W_{i,f} x',  z̃, õ = W_{z,o} x                    block-diagonal, one block per head
//! (ĩ, f̃, z̃, õ)_t += R h_{t-1} + b                        R block-diagonal, one block per head
//! l = ln σ(f̃_t) + m_{t-1},  m_t = max(l, ĩ_t)             stabiliser                                (eq. 15)
//! i_t = exp(ĩ_t − m_t),  f_t = exp(l − m_t)               gates                                     (eq. 16, 17)
//! c_t = f_t c_{t-1} + i_t tanh z̃_t                        cell                                      (eq. 8)
//! n_t = f_t n_{t-1} + i_t                                 normaliser                                (eq. 9)
//! h_t = σ(õ_t) c_t / n_t                                  hidden state                              (eq. 10)
//! y_t = HeadNorm(h_t)                                     group norm, one group per head
//! ```
//!
//! As long as all ĩ are −∞, as in padding on the left, nothing is written and h is 0.
//!
//! Without the stabiliser, i = e^ĩ overflows. With it, c and n are both scaled by e⁻ᵐ, and c / n is unchanged. So h
//! does not depend on m, which is differentiated like any other intermediate value.
//!
//! **The state before the first token.** m starts at −∞, so that m_1 = ĩ_1. In this crate a state starts as zeros, so
//! the state has a fifth member w, the weight of the past, and m + ln w takes the place of m_{t-1}: w is 0 before the
//! first token and then 1. (n = 0 would mark a fresh state too, but no formula can branch on it; ln 0 = −∞ has no branch.)
//!
//! c / n is a weighted average of tanh z̃, and an exponential gate can shift all the weight to one step: an LSTM can
//! keep or forget, this unit can also revise. The gates depend on h_{t-1}, so as in the LSTM no form is parallel in
//! time, and one unit can compute parity. In the published block a gated MLP follows, W_d (gelu(g) ⊙ u) with [g, u] =
//! W_u LayerNorm(x) (post up-projection); here the decoder's MLP takes its place.
//!
//! The published layer has H K = D and no output projection. Where H K ≠ D, W_o maps h to the model's width, and where
//! H does not divide D the input projections have a single block. Shapes: x, y [B, T, D], ĩ, f̃, z̃, õ, l, m, i, f,
//! c, n, h [B, T, H K].
//!
//! | form | cost a step | memory |
//! |---|---|---|
//! | recurrent | O(D² / H), some 40 small ops | every intermediate |
//! | fused | the same, one kernel over all steps | six values per unit |

use super::{
    prelude::*,
    xlstm::{BlockDiagonal, head_norm},
};
use crate::ops::slstm::slstm_sequence;

/// Hidden state h, cell c, normaliser n, stabiliser m and the weight of the past w, which is 0 before the first token and
/// then 1: [B, H K] each.
pub(crate) type Cell<'t> = [Var<'t>; 5];

/// One token: x [B, 4 H K], the input's part of the pre-activations of i, f, z, o with the bias, and r [4, H, K, K] to
/// h [B, H K].
pub(crate) fn step<'t>(x: Var<'t>, r: Var<'t>, s: &mut Cell<'t>) -> Var<'t> {
    let ([h, c, n, m, w], [_, heads, k, _], [b, d]) = (*s, r.dims(), s[0].dims());
    let r = r.permute([1, 2, 0, 3]).reshape([heads, k, 4 * k]);
    let y = h.reshape([b, heads, k]).permute([1, 0, 2]).matmul(r); // (ĩ, f̃, z̃, õ) [H, B, 4K]
    let y = y.reshape([heads, b, 4, k]).permute([1, 2, 0, 3]); // [B, 4, H, K]
    let [i, f, z, o] = split(x + y.reshape([b, 4 * d])); // (ĩ, f̃, z̃, õ)
    let l = log_sigmoid(f) + m + w.log(); // (eq. 15)
    let m = maximum(&[l, i]); // (eq. 15)
    let from = reference(m);
    let (i, f) = ((i - from).exp(), (l - from).exp()); // (i_t)
    let (i, f, z, o) = (i.named("i"), f.named("f"), z.tanh().named("z"), o.sigmoid().named("o")); // (c_t) (h_t)
    let (c, n) = (f * c + i * z, f * n + i); // (c_t) (n_t)
    // While nothing was written, m = −∞ and the last exponential is 1, so that h is 0 and not 0 / 0; later it is 0.
    let h = o * c / (n + (LEAST - from).exp()); // (h_t)
    *s = [h, c, n, m, x.tape().full([b, d], x.dtype(), 1.0)];
    h
}

/// All forms over a sequence: x [B, T, 4 H K] to h [B, T, H K].
pub fn sequence<'t>(x: Var<'t>, r: Var<'t>, s: &mut Cell<'t>, form: Form) -> Var<'t> {
    if form == Form::Recurrent || x.shape().at(1) == 0 {
        return over_time(x.shape().at(1), no_steps(s[0]), |i| step(at(x, i), r, s));
    }
    let (y, [h, c, n, m]) = slstm_sequence(x, r, *s);
    *s = [h, c, n, m, x.tape().full(s[4].shape(), x.dtype(), 1.0)];
    y
}

/// See [`About`].
pub(crate) const ABOUT: About = About {
    family: Family::Cells,
    line: "sLSTM: exponential gates and a normaliser",
    parent: Some(("lstm", "exponential gates, a normaliser")),
    transition: "nonlinear: f_t beside gates of h",
    state: "4 H K",
    eigenvalues: "any",
    cost: "4 H K²",
    source: "arXiv 2405.04517",
};

/// The mixer.
pub struct Layer {
    h: usize,
    k: usize,
    conv: Conv,
    w: [BlockDiagonal; 2], // of i and f, and of z and o
    r: P,
    bias: P,
    norm: P,
    w_o: Option<P>,
}

impl Layer {
    /// H heads of K units over inputs of the model's width. R starts at zero. The forget gates' biases start between 5
    /// (long memory) and −7 (short memory); the later the block, the more units have a long memory.
    pub fn new(c: &ModelConfig, init: &mut Init) -> Result<Layer> {
        let (width, h, k, d) = (c.width, c.heads, c.head_dim, c.inner());
        let (blocks, std) = (if width % h == 0 { h } else { 1 }, (0.4 / width as f64).sqrt());
        let conv = Conv::new(init, "conv", Some("conv_bias"), width, c.conv);
        let w = ["w_if", "w_zo"].map(|name| BlockDiagonal::new(init, name, blocks, 2 * d, width, std));
        let r = match init.std {
            Some(std) => init.normal("r", [4, h, k, k], std),
            None => init.full("r", [4, h, k, k], 0.0),
        };
        let depth = init.layer as f64 / (c.layers.max(2) - 1) as f64;
        let bias = init.custom("bias", [4, d], |_, i| {
            let unit = (i % k) as f64 / (k.max(2) - 1) as f64;
            if i / d == 1 { 5.0 - 12.0 * unit.powf(0.3 + 1.3 * depth) } else { 0.0 }
        });
        let norm = init.full("norm", [d], 1.0);
        let w_o = (d != width).then(|| init.linear("w_o", width, d));
        Ok(Layer { h, k, conv, w, r, bias, norm, w_o })
    }
}

impl Mixer for Layer {
    fn forms(&self) -> Vec<Form> {
        vec![Form::Recurrent, Form::Fused]
    }

    fn tokens_at_once(&self) -> usize {
        512
    }

    fn state(&self, b: usize) -> Vec<(&'static str, Shape)> {
        let unit = Shape::from([b, self.h * self.k]);
        let cell = [("h", unit), ("c", unit), ("n", unit), ("m", unit), ("w", unit)];
        cell.into_iter().chain(self.conv.window("past x", b)).collect()
    }

    fn sequence<'t>(&self, p: &Bound<'t>, x: Var<'t>, state: &mut State<'t>, form: Form) -> Var<'t> {
        let short = if self.conv.exists() { self.conv.apply(p, x, state, 5) } else { x }; // (x')
        let z = [(&self.w[0], short.named("x'")), (&self.w[1], x)]; // (ĩ, f̃ =)
        let z = BlockDiagonal::together(p, &z, 2, Some(p[self.bias])); // (ĩ, f̃ =) [B, T, 4 H K]
        let mut s = std::array::from_fn(|i| state.s[i]);
        let y = head_norm(heads(sequence(z, p[self.r], &mut s, form), self.h), p[self.norm]); // (y_t)
        state.s[..5].copy_from_slice(&s);
        self.w_o.map_or(y, |w| y.linear(p[w], None))
    }
}
