//! mLSTM (Beck et al. 2024, "xLSTM", arXiv 2405.04517, section 2.3 and figure 11): a matrix memory with an exponential
//! input gate, a forget gate and a normaliser, in the block that xLSTM puts around it (pre up-projection).
//!
//! ```text
//! [x, z] = W_up u                                        two branches of width H K
//! c = SiLU(conv(x))                                      causal, with bias
//! q, k = W_{q,k} c,  v = W_v x                           block-diagonal, blocks of 4 × 4
//! ĩ, f̃ = W_{i,f} [q, k, v] + b_{i,f}                     one of each per head
//! l = ln σ(f̃_t) + m_{t-1},  m_t = max(l, ĩ_t)            stabiliser                                 (eq. 15)
//! i_t = exp(ĩ_t − m_t),  f_t = exp(l − m_t)              gates                                      (eq. 16, 17)
//! C_t = f_t C_{t-1} + i_t k'_t v_tᵀ,  k' = k / √K        memory                                     (eq. 19)
//! n_t = f_t n_{t-1} + i_t k'_t                           normaliser                                 (eq. 20)
//! h_t = C_tᵀ q_t / (max(|n_t·q_t|, e^(−m_t)) + ε)        read                                       (eq. 21)
//! y = W_down ((HeadNorm(h) + s ⊙ c) ⊙ SiLU(z))           s: a learned skip
//! ```
//!
//! This is the whole published block, so it is used without the decoder's MLP (`mlp` 0). H K is the inner width, 2 D in
//! the paper.
//!
//! The transition is a scalar σ(f̃) in (0, 1) times the identity (f_t is this, stabilised): the memory can forget but
//! not flip or permute. The gates do not depend on the state, so the mixer can be parallel in time, but it cannot track
//! state as the sLSTM does.
//!
//! **The state before the first token.** m starts at −∞, so that m_1 = ĩ_1. In this crate a state starts as zeros, so
//! the state has a fourth member w, the weight of the past, and m + ln w takes the place of m_{t-1}: w is 0 before the
//! first token and 1 from then on. n = 0 would not mark the start: n can be 0 later as well. Starting from m = 0
//! instead, as the recurrent reference code does, gives the same h only for ε = 0.
//!
//! Let F_t = Σ_{s≤t} ln σ(f̃_s). Before stabilisation, step s has the weight e^(F_t − F_s + ĩ_s) at step t, and the
//! initial state has e^(F_t + m_0); m_t is the largest of these exponents (eqs. 74, 75). A difference of two of them
//! loses its digits where f̃ = −10⁹ is in both, and F_t − F_s is NaN after f̃ = −∞. The parallel form
//! takes segment sums of the logarithms of the gates instead, log i_s + log f_{s+1} + … + log f_t, which are at most 0;
//! these logarithms are recurrent ([`stabiliser`]), but cheap. The chunked form multiplies gates.
//!
//! An input gate of 0, ĩ = −∞, writes nothing, as for padding on the left: m stays −∞ and h stays 0 until the first
//! write.
//!
//! Shapes, per head: x, z, c [B, T, H K], q, k [B, T, H, K], v, h [B, T, H, V], ĩ, f̃ [B, T, H], l, i, f, m, w [B, H],
//! C [B, H, K, V], n [B, H, K], y [B, T, D].
//!
//! | form | work |
//! |---|---|
//! | recurrent | O(T K V), T steps |
//! | parallel | O(T² (K + V)) |
//! | chunked | O(T (C (K + V) + K V)) |

use super::{
    memories::constant,
    prelude::*,
    xlstm::{BlockDiagonal, head_norm},
};
use crate::ops::{mlstm::mlstm, stabiliser::stabiliser};

pub use crate::ops::mlstm::{Memory, read};

/// ε in the denominator, as in the authors' code.
pub const EPS: f64 = 1e-6;

/// Equations 15 to 21 for one token: q, k [B, H, K], v [B, H, V], i, f [B, H] to h [B, H, V].
pub(crate) fn step<'t>([q, k, v]: [Var<'t>; 3], [i, f]: [Var<'t>; 2], s: &mut Memory<'t>, eps: f64) -> Var<'t> {
    let ([b, h, n], [c, norm, m, w]) = (k.dims(), *s);
    let k = inverse_root(n) * k; // (eq. 19)
    let l = log_sigmoid(f) + m + w.log(); // (eq. 15)
    let m = maximum(&[l, i]); // (eq. 15)
    let from = reference(m);
    let gate = |x: Var<'t>, name| insert_axis((x - from).exp().named(name), 2); // (i_t)
    let (i, f) = (gate(i, "i"), gate(l, "f")); // (i_t)
    let (q, k, v) = (q.named("q"), k.named("k'"), v.named("v"));
    let (c, norm) = (insert_axis(f, 3) * c + outer(i * k, v), f * norm + i * k); // (eq. 19) (eq. 20)
    *s = [c, norm, m, q.tape().full([b, h], q.dtype(), 1.0)];
    let den = (norm * q).sum_axis(2, true); // (eq. 21) [B, H, 1]
    let (h, den) = read(recall(c, q), den, insert_axis(m, 2), eps); // (eq. 21)
    let _shown = den.named("den");
    h.named("h")
}

/// All positions at once; the initial state is an additional first column of the weights, as of a step before the
/// first.
pub(crate) fn parallel<'t>([q, k, v]: [Var<'t>; 3], [i, f]: [Var<'t>; 2], s: &mut Memory<'t>, eps: f64) -> Var<'t> {
    let [b, t, h, n] = k.dims();
    if t == 0 {
        return v;
    }
    let [c0, n0, m0, w0] = *s;
    let (q, k, v) = (head_first(q), inverse_root(n) * head_first(k), head_first(v)); // [B, H, T, ..]
    let gates = [log_sigmoid(f), i].map(|x| x.permute([0, 2, 1])); // [B, H, T]
    let [log_f, log_i, m] = stabiliser(gates[0], gates[1], m0 + w0.log()); // (eq. 15)
    // Σ log f of the steps after s up to t, and log i_s. `tril` drops the future: its gates may be NaN.
    let none = q.tape().full([b, h, 1], log_f.dtype(), 0.0);
    let decay = Var::concat(&[none, log_f], 2).segsum().narrow(2, 1, t); // [B, H, T, 1 + T]
    let exponents = decay + Var::concat(&[none, log_i], 2).reshape([b, h, 1, t + 1]);
    let later = |j: usize| if j % (t + 1) > j / (t + 1) + 1 { f64::NEG_INFINITY } else { 0.0 };
    let causal = constant(exponents, (0..t * (t + 1)).map(later).collect(), &[t, t + 1]);
    let weights = (exponents.tril(1) + causal).exp();
    let (r, d) = (weights.narrow(3, 0, 1), weights.narrow(3, 1, t));
    let p = (q.matmul_t(k) * d).tril(0);
    let rq = r * q;
    let den = p.sum_axis(3, true) + rq.matmul(insert_axis(n0, 3)); // [B, H, T, 1]
    let (o, _) = read(p.tril_matmul(v) + rq.matmul(c0), den, m.reshape([b, h, t, 1]), eps); // (eq. 21)
    // The last row of weights gives the final state.
    let end = |x: Var<'t>| x.narrow(2, t - 1, 1);
    let ek = end(d).reshape([b, h, t, 1]) * k;
    let c = end(r) * c0 + ek.t_matmul(v); // (eq. 19)
    let n = end(r).reshape([b, h, 1]) * n0 + ek.sum_axis(2, false); // (eq. 20)
    *s = [c, n, m.narrow(2, t - 1, 1).reshape([b, h]), q.tape().full([b, h], q.dtype(), 1.0)];
    head_first(o)
}

/// All forms over a sequence: q, k [B, T, H, K], v [B, T, H, V], i, f [B, T, H] to h [B, T, H, V].
pub fn sequence<'t>(qkv: [Var<'t>; 3], gates: [Var<'t>; 2], s: &mut Memory<'t>, eps: f64, form: Form) -> Var<'t> {
    match form {
        Form::Recurrent => {
            over_time(qkv[0].shape().at(1), qkv[2], |j| step(qkv.map(|x| at(x, j)), gates.map(|x| at(x, j)), s, eps))
        }
        Form::Chunked(chunk) => mlstm(qkv, gates, s, eps, chunk),
        _ => parallel(qkv, gates, s, eps),
    }
}

/// See [`About`].
pub(crate) const ABOUT: About = About {
    family: Family::Memories,
    line: "mLSTM: exponential gates, one a head",
    parent: Some(("linear_transformer", "exponential gates, one a head")),
    transition: "σ(f̃_t) I",
    state: "H (K (V + 1) + 1)",
    eigenvalues: "(0, 1)",
    cost: "H K V",
    source: "arXiv 2405.04517",
};

/// The mixer.
pub struct Layer {
    h: usize,
    k: usize,
    w_up: P,
    conv: Conv,
    qkv: [BlockDiagonal; 3],
    w_if: P,
    b_if: P,
    norm: P,
    skip: P,
    w_down: P,
}

impl Layer {
    /// H heads of width K, each with a memory of K × K. The gates start without weights, with forget biases from 3 to 6
    /// over the heads: the memory forgets little at first.
    pub fn new(c: &ModelConfig, init: &mut Init) -> Result<Layer> {
        let (width, h, k, inner) = (c.width, c.heads, c.head_dim, c.inner());
        let small = (0.4 / width as f64).sqrt();
        let std = |own: f64| init.std.unwrap_or(own);
        let (up, down) = (std(small), std(2.0 / (c.layers as f64 * (width as f64).sqrt())));
        let w_up = init.normal("w_up", [2 * inner, width], up);
        let conv = Conv::new(init, "conv", Some("conv_bias"), inner, c.conv);
        // Blocks of 4 × 4 as in the authors' code; one block per head where 4 does not divide the width.
        let blocks = if inner % 4 == 0 { inner / 4 } else { h };
        let qkv = ["w_q", "w_k", "w_v"].map(|name| BlockDiagonal::new(init, name, blocks, inner, inner, small));
        let w_if = init.custom("w_if", [2 * h, 3 * inner], |_, _| 0.0);
        let b_if = init.in_f32("b_if", [2 * h], |g, j| {
            if j < h { 0.1 * g.gauss() } else { 3.0 + 3.0 * (j - h) as f64 / (h.max(2) - 1) as f64 }
        });
        let (norm, skip) = (init.full("norm", [inner], 1.0), init.full("skip", [inner], 1.0));
        Ok(Layer { h, k, w_up, conv, qkv, w_if, b_if, norm, skip, w_down: init.normal("w_down", [width, inner], down) })
    }

    /// q, k, v [B, T, H, K], the gates' pre-activations [B, T, H], c and z [B, T, H K], from u [B, T, D].
    fn project<'t>(
        &self,
        p: &Bound<'t>,
        u: Var<'t>,
        state: &mut State<'t>,
    ) -> ([Var<'t>; 3], [Var<'t>; 2], [Var<'t>; 2]) {
        let [x, z] = linear_parts(u, p[self.w_up], None); // (x, z)
        let c = self.conv.apply(p, x, state, 4); // (c)
        let [q, k, v] = std::array::from_fn(|j| self.qkv[j].apply(p, if j < 2 { c } else { x })); // (q, k)
        let gates = split(self.gates(p, [q, k, v]));
        ([q, k, v].map(|y| heads(y, self.h)), gates, [c, z])
    }

    /// W_if [q, k, v] + b_if. Over a sequence it is three products, because concatenating q, k and v copies them, and
    /// in the backward pass their gradients. Each product has a bias, two of them zero, so that each result has the
    /// bias's precision.
    fn gates<'t>(&self, p: &Bound<'t>, qkv: [Var<'t>; 3]) -> Var<'t> {
        let ([_, t, inner], w, bias) = (qkv[0].dims(), p[self.w_if], p[self.b_if]);
        if t == 1 {
            return Var::concat(&qkv, 2).named("qkv").linear(w, Some(bias)); // (ĩ, f̃)
        }
        let zero = bias.tape().full([2 * self.h], bias.dtype(), 0.0);
        let part = |j: usize, b| qkv[j].linear(w.narrow(1, j * inner, inner), Some(b));
        part(0, bias) + part(1, zero) + part(2, zero) // (ĩ, f̃)
    }
}

impl Mixer for Layer {
    fn tokens_at_once(&self) -> usize {
        512
    }

    fn state(&self, b: usize) -> Vec<(&'static str, Shape)> {
        let (h, k, gate) = (self.h, self.k, Shape::from([b, self.h]));
        let memory = [("C", [b, h, k, k].into()), ("n", [b, h, k].into()), ("m", gate), ("w", gate)];
        memory.into_iter().chain(self.conv.window("past x", b)).collect()
    }

    fn sequence<'t>(&self, p: &Bound<'t>, x: Var<'t>, state: &mut State<'t>, form: Form) -> Var<'t> {
        let (qkv, gates, [c, z]) = self.project(p, x, state);
        let mut memory = std::array::from_fn(|i| state.s[i]);
        let h = sequence(qkv, gates, &mut memory, EPS, form);
        state.s[..4].copy_from_slice(&memory);
        head_norm(h, p[self.norm]).gated_skip(p[self.skip], c, z).linear(p[self.w_down], None) // (y)
    }
}
