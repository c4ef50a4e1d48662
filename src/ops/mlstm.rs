//! The mLSTM's memory (Beck et al. 2024, "xLSTM", arXiv 2405.04517, section 2.3): linear attention with an exponential
//! input gate, a forget gate, a normaliser n and a stabiliser m.
//!
//! ```text
//! l = ln σ(f̃_t) + m_{t-1}      m_t = max(l, ĩ_t)      i_t = exp(ĩ_t − m_t)      f_t = exp(l − m_t)
//! C_t = f_t C_{t-1} + i_t k'_t v_tᵀ      n_t = f_t n_{t-1} + i_t k'_t           k' = k / √K
//! h_t = C_tᵀ q_t / N_t      N_t = max(|n_t·q_t|, exp(−m_t)) + ε
//! ```
//!
//! m₀ is given as m₀ + ln w₀: w₀ = 0 is m₀ = −∞, nothing seen yet. As long as ĩ is −∞ too, nothing is written: i and f
//! are 0, and so is h.

use crate::{
    autograd::{Candidates, Gen, In, Op, Outs, Var},
    ops::{
        heads::Dims,
        same_dtype, some_steps,
        words::{insert_axis, log_sigmoid, maximum, outer, over_time, recall, reference, token},
    },
    tensor::Tensor,
};

/// q, k [B, T, H, K], v [B, T, H, V], i, f [B, T, H] (before their activations), C0 [B, H, K, V], n0 [B, H, K],
/// m0, w0 [B, H] → h [B, T, H, V] and the last C, n, m.
pub struct Mlstm {
    /// How many steps the kernel takes at a time. The results do not depend on it, and the formula does not use it.
    pub chunk: usize,
    /// ε.
    pub eps: f64,
}

/// The read Cᵀq / (max(|n·q|, e^(−m)) + ε) from Cᵀq, and n·q and m of one shape; and its divisor.
///
/// Where m is negative, numerator and divisor are multiplied by eᵐ: e^(−m) may be infinite, and the backward pass would
/// have 0 · ∞. The factor is applied as e^(m/2) twice, because eᵐ may be too small for its type where Cᵀq is large.
pub fn read<'t>(num: Var<'t>, den: Var<'t>, m: Var<'t>, eps: f64) -> (Var<'t>, Var<'t>) {
    let positive = maximum(&[m, m.tape().full(m.shape(), m.dtype(), 0.0)]);
    let half = (0.5 * (m - positive)).exp(); // e^(m/2) where m is negative, else 1
    let den = half * (half * den);
    let floor = (-positive).exp();
    let by = maximum(&[den, -den, floor]) + eps * half.square();
    (half * (half * num) / by, by / half / half)
}

impl Op for Mlstm {
    fn name(&self) -> &'static str {
        "mlstm"
    }

    fn infer(&self, x: In) -> Result<Outs, String> {
        same_dtype(self.name(), x)?;
        let Dims { b, t, h, k, v } = Dims::of(x)?;
        some_steps(self.chunk)?;
        Dims::expect(x, 3, "i", &[b, t, h])?;
        Dims::expect(x, 4, "f", &[b, t, h])?;
        Dims::expect(x, 5, "C0", &[b, h, k, v])?;
        Dims::expect(x, 6, "n0", &[b, h, k])?;
        Dims::expect(x, 7, "m0", &[b, h])?;
        Dims::expect(x, 8, "w0", &[b, h])?;
        Ok([2, 5, 6, 7].map(|i| x[i].shape()).into())
    }

    fn formula<'t>(&self, x: &[Var<'t>]) -> Option<Vec<Var<'t>>> {
        let ([_, t, _, k_width], dtype) = (x[1].dims(), x[0].dtype());
        let [mut c, mut n, mut m] = [5, 6, 7].map(|i| x[i]);
        let mut before = x[8].log(); // what m₀ = −∞ needs
        let h = over_time(t, x[2], |t| {
            let [q, k, v] = [0, 1, 2].map(|i| token(x[i], t));
            let [i, f] = [3, 4].map(|i| token(x[i], t).cast(dtype));
            let k = (k_width as f64).powf(-0.5) * k; // (k')
            let l = log_sigmoid(f) + (m + before); // (l)
            m = maximum(&[l, i]); // (m_t)
            let from = reference(m);
            let [i, f] = [i, l].map(|gate| insert_axis((gate - from).exp(), 2)); // (i_t) (f_t)
            c = insert_axis(f, 3) * c + outer(i * k, v); // (C_t)
            n = f * n + i * k; // (n_t)
            before = m.tape().full(m.shape(), dtype, 0.0);
            read(recall(c, q), (n * q).sum_axis(2, true), insert_axis(m, 2), self.eps).0 // (h_t) (N_t)
        });
        Some(vec![h, c, n, m])
    }

    fn kernels(&self) -> Candidates<'_> {
        self.into()
    }

    fn sample(g: &mut Gen) -> (Self, Vec<Tensor>) {
        let (b, t, h) = (g.size(2), g.size(7), g.size(3));
        let (k, v) = Dims::sample(g);
        let op = Mlstm { chunk: g.size(4), eps: g.uniform(0.05, 0.2) };
        let (key, gate) = ([b, t, h, k], [b, t, h]);
        let mut x = vec![g.normal(key), g.normal(key), g.normal([b, t, h, v]), g.normal(gate), g.normal(gate)];
        x.extend([g.normal([b, h, k, v]), g.normal([b, h, k]), g.normal([b, h]), g.range([b, h], 0.5, 1.5)]);
        (op, x)
    }
}

/// The memory C [B, H, K, V], n [B, H, K], m [B, H], and the weight of the past w [B, H], which is 0 before the first
/// token and then 1.
pub type Memory<'t> = [Var<'t>; 4];

/// h [B, T, H, V] of [`Mlstm`], moving the memory on: q, k [B, T, H, K], v [B, T, H, V], i, f [B, T, H].
#[track_caller]
pub fn mlstm<'t>(
    [q, k, v]: [Var<'t>; 3],
    [i, f]: [Var<'t>; 2],
    memory: &mut Memory<'t>,
    eps: f64,
    chunk: usize,
) -> Var<'t> {
    let [c, n, m, w] = *memory;
    let [h, c, n, m] = q.tape().apply_many(Mlstm { chunk, eps }, [q, k, v, i, f, c, n, m, w]);
    if i.shape().at(1) > 0 {
        *memory = [c, n, m, q.tape().full(w.shape(), w.dtype(), 1.0)];
    }
    h
}
