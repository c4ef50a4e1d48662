//! Linear attention: a matrix memory that adds up k vᵀ (Katharopoulos et al. 2020, "Transformers are RNNs").
//!
//! ```text
//! S_t = S_{t-1} + k_t v_tᵀ     [K, V]        o_t = scale S_tᵀ q_t
//! z_t = z_{t-1} + k_t          [K]           o_t = scale S_tᵀ q_t / (scale q_t·z_t + eps)    (normalised)
//! ```
//!
//! The feature map was applied to q and k before.

use crate::{
    autograd::{Candidates, Gen, In, Op, Outs, Var},
    kernels::gated_linear_attention::candidates,
    ops::{
        heads::Dims,
        same_dtype, some_steps,
        words::{outer, over_time, recall, token},
    },
    tensor::Tensor,
};

/// q, k [B, T, H, K], v [B, T, H, V], s0 [B, H, K, V] (, z0 [B, H, K]) → o [B, T, H, V], s [B, H, K, V] (, z).
pub struct LinearAttention {
    /// Steps to a chunk.
    pub chunk: usize,
    /// In how many parts it is computed side by side, by a kernel on the CPU: sequences, or runs of their steps.
    pub parts: usize,
    /// Factor of the queries.
    pub scale: f64,
    /// The number added to the denominator when outputs are normalised; `None` when they are not.
    pub normalize: Option<f64>,
}

impl Op for LinearAttention {
    fn name(&self) -> &'static str {
        "linear_attention"
    }

    fn infer(&self, x: In) -> Result<Outs, String> {
        same_dtype(self.name(), x)?;
        let Dims { b, h, k, v, .. } = Dims::of(x)?;
        some_steps(self.chunk)?;
        Dims::expect(x, 3, "s0", &[b, h, k, v])?;
        let (o, s) = (x[2].shape(), x[3].shape());
        if self.normalize.is_none() {
            return Ok([o, s].into());
        }
        Dims::expect(x, 4, "z0", &[b, h, k])?;
        Ok([o, s, x[4].shape()].into())
    }

    fn formula<'t>(&self, x: &[Var<'t>]) -> Option<Vec<Var<'t>>> {
        let ([_, t, _, _], mut s, mut z) = (x[0].dims(), x[3], x.get(4).copied());
        let o = over_time(t, x[2], |t| {
            let [q, k, v] = [0, 1, 2].map(|i| token(x[i], t));
            s = s + outer(k, v); // (S_t)
            z = z.map(|z| z + k); // (z_t)
            let o = self.scale * recall(s, q); // (o_t)
            let Some((z, eps)) = z.zip(self.normalize) else { return o };
            o / (self.scale * (q * z).sum_axis(2, true) + eps) // (o_t)
        });
        Some([o, s].into_iter().chain(z).collect())
    }

    fn kernels(&self) -> Candidates<'_> {
        candidates(self)
    }

    fn sample(g: &mut Gen) -> (Self, Vec<Tensor>) {
        let (b, t, h) = (g.size(2), g.size(7), g.size(3));
        let (k, v) = Dims::sample(g);
        let normalize = g.coin().then_some(0.1);
        let op = LinearAttention { chunk: g.size(4), parts: g.size(4), scale: g.uniform(0.3, 1.5), normalize };
        // Features are positive where they are normalised, or denominators would come near zero.
        let feature =
            |g: &mut Gen| if normalize.is_some() { g.range([b, t, h, k], 0.1, 2.0) } else { g.normal([b, t, h, k]) };
        let mut x = vec![feature(g), feature(g), g.normal([b, t, h, v]), g.normal([b, h, k, v])];
        if normalize.is_some() {
            x.push(g.range([b, h, k], 0.1, 2.0));
        }
        (op, x)
    }
}

/// o_t = scale S_tᵀ q_t with S_t = S_{t-1} + k_t v_tᵀ: the outputs [B, T, H, V] and the last state [B, H, K, V].
#[track_caller]
pub fn linear_attention<'t>(
    q: Var<'t>,
    k: Var<'t>,
    v: Var<'t>,
    s0: Var<'t>,
    scale: f64,
    chunk: usize,
) -> (Var<'t>, Var<'t>) {
    let op = LinearAttention { chunk, parts: 1, scale, normalize: None };
    let [o, s] = q.tape().apply_many(op, [q, k, v, s0]);
    (o, s)
}

/// The same divided by scale q_t·z_t + eps with z_t = z_{t-1} + k_t: the outputs and the last state (S, z).
#[track_caller]
pub fn linear_attention_normalized<'t>(
    q: Var<'t>,
    k: Var<'t>,
    v: Var<'t>,
    (s0, z0): (Var<'t>, Var<'t>),
    scale: f64,
    eps: f64,
    chunk: usize,
) -> (Var<'t>, (Var<'t>, Var<'t>)) {
    let op = LinearAttention { chunk, parts: 1, scale, normalize: Some(eps) };
    let [o, s, z] = q.tape().apply_many(op, [q, k, v, s0, z0]);
    (o, (s, z))
}
