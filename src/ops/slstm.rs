//! The sLSTM's recurrence over a whole sequence (Beck et al. 2024, "xLSTM", arXiv 2405.04517, section 2.2): an LSTM
//! with exponential gates, a normaliser n, a stabiliser m, and heads that do not see one another. x_t holds the input's
//! share of the gates in the order i, f, z, o; R is one [K, K] matrix a gate and head.
//!
//! ```text
//! ĩ, f̃, z̃, õ = x_t + R h_{t-1}
//! l = ln σ(f̃) + m_{t-1}      m_t = max(l, ĩ)      i = exp(ĩ − m_t)      f = exp(l − m_t)
//! c_t = f c_{t-1} + i tanh z̃      n_t = f n_{t-1} + i      h_t = σ(õ) c_t / n_t
//! ```
//!
//! m₀ is given as m₀ + ln w₀: w₀ = 0 is m₀ = −∞, nothing seen yet. As long as ĩ is −∞ too, nothing is written: i and f
//! are 0, and so is h.

use crate::{
    autograd::{Candidates, Gen, In, Op, Outs, Var},
    ops::{
        same_dtype,
        words::{LEAST, log_sigmoid, maximum, over_time, reference, split, token},
    },
    tensor::Tensor,
};

/// x [B, T, 4D] (gates i, f, z, o before the recurrent share), R [4, H, K, K] with H K = D, and h0, c0, n0, m0, w0
/// [B, D] to h [B, T, D] and the last h, c, n, m [B, D].
pub struct SlstmSequence;

impl Op for SlstmSequence {
    fn name(&self) -> &'static str {
        "slstm_sequence"
    }

    fn infer(&self, x: In) -> Result<Outs, String> {
        let (v, r) = (x[0].shape(), x[1].shape());
        let [b, t, d4] = v.array()?;
        let [four, h, k, k2] = r.array()?;
        let d = h * k;
        if four != 4 || k != k2 || d4 != 4 * d {
            return Err(format!("x {v} and r {r} do not fit: expected [B, T, 4 H K] and [4, H, K, K]"));
        }
        for (i, name) in ["h0", "c0", "n0", "m0", "w0"].into_iter().enumerate() {
            if x[2 + i].shape().dims() != [b, d] {
                return Err(format!("{name} {} should be {:?} for x {v} and r {r}", x[2 + i].shape(), [b, d]));
            }
        }
        same_dtype(self.name(), x)?;
        let state = x[2].shape();
        Ok([[b, t, d].into(), state, state, state, state].into())
    }

    fn formula<'t>(&self, x: &[Var<'t>]) -> Option<Vec<Var<'t>>> {
        let ([_, h, k, _], [b, t, d4]) = (x[1].dims(), x[0].dims());
        let r = x[1].permute([1, 2, 0, 3]).reshape([h, k, 4 * k]); // [H, K, 4 K]
        let [mut y, mut c, mut n, mut m] = [2, 3, 4, 5].map(|i| x[i]);
        let mut before = x[6].log(); // what m₀ = −∞ needs
        let all = over_time(t, x[0].narrow(2, 0, d4 / 4), |t| {
            let share = y.reshape([b, h, k]).permute([1, 0, 2]).matmul(r); // [H, B, 4 K]
            let share = share.reshape([h, b, 4, k]).permute([1, 2, 0, 3]).reshape([b, d4]);
            let [i, f, z, o] = split(token(x[0], t) + share); // (ĩ, f̃, z̃, õ)
            let l = log_sigmoid(f) + (m + before); // (l)
            m = maximum(&[l, i]); // (m_t)
            let from = reference(m);
            let (i, f) = ((i - from).exp(), (l - from).exp()); // (i) (f)
            (c, n) = (f * c + i * z.tanh(), f * n + i); // (c_t) (n_t)
            // 0 and not 0 / 0 where m = −∞ and nothing was written: the last exponential is 1 there, else 0.
            y = o.sigmoid() * c / (n + (LEAST - from).exp()); // (h_t)
            before = x[0].tape().full(m.shape(), m.dtype(), 0.0);
            y
        });
        Some(vec![all, y, c, n, m])
    }

    fn kernels(&self) -> Candidates<'_> {
        self.into()
    }

    fn sample(g: &mut Gen) -> (Self, Vec<Tensor>) {
        let (b, t, h, k) = (g.size(3), g.size(5), g.size(2), g.size(5));
        let state = [b, h * k];
        let mut x = vec![g.normal([b, t, 4 * h * k]), g.normal([4, h, k, k]), g.normal(state), g.normal(state)];
        // The normaliser is at least 1 from the first token on.
        x.extend([g.range(state, 1.0, 3.0), g.normal(state), g.range(state, 0.5, 1.5)]);
        (SlstmSequence, x)
    }
}

/// h [B, T, D] and the last [h, c, n, m] of [`SlstmSequence`]: x [B, T, 4D], r [4, H, K, K], state = [h, c, n, m, w]
/// before the first step, [B, D] each.
#[track_caller]
pub fn slstm_sequence<'t>(x: Var<'t>, r: Var<'t>, state: [Var<'t>; 5]) -> (Var<'t>, [Var<'t>; 4]) {
    let [h0, c0, n0, m0, w0] = state;
    let [h, last @ ..]: [Var<'t>; 5] = x.tape().apply_many(SlstmSequence, [x, r, h0, c0, n0, m0, w0]);
    (h, last)
}
