//! Gated linear attention: a matrix memory that fades before it is written to, by a gate for each row or one for all
//! (Yang et al. 2024, arXiv 2312.06635).
//!
//! ```text
//! S_t = diag(exp(g_t)) S_{t-1} + k_t v_tᵀ      o_t = scale S_tᵀ q_t      g_t ≤ 0
//! ```
//!
//! For a chunk with rows Q, K, V, with the scores M and the factors that [`decay`] makes of its gates,
//!
//! ```text
//! O = (Q ⊙ from_start) S + tril(M) V      S ← all ⊙ S + (K ⊙ to_end)ᵀ V
//! ```

use crate::{
    autograd::{Candidates, Gen, In, Op, Outs, Var},
    kernels::gated_linear_attention::candidates,
    ops::{
        decay::decay,
        heads::Dims,
        same_dtype, some_steps,
        words::{self, insert_axis, outer, over_time, recall, token},
    },
    tensor::Tensor,
};

/// q, k [B, T, H, K], v [B, T, H, V], g [B, T, H, K] or [B, T, H, 1], s0 [B, H, K, V] → o [B, T, H, V], s [B, H, K, V].
pub struct GatedLinearAttention {
    /// Steps to a chunk. The results do not depend on it, and the formula does not use it.
    pub chunk: usize,
    /// In how many parts it is computed side by side, by a kernel on the CPU: sequences, or runs of their steps.
    pub parts: usize,
    /// Factor of the queries.
    pub scale: f64,
}

/// Check that input `i` is a gate for each row, or one for all.
pub(in crate::ops) fn expect_gate(x: In, i: usize, Dims { b, t, h, k, .. }: Dims) -> Result<(), String> {
    Dims::expect(x, i, "g", &[b, t, h, 1]).or_else(|_| Dims::expect(x, i, "g", &[b, t, h, k]))
}

/// Gates for a sample.
pub(in crate::ops) fn sample_gate(g: &mut Gen, [b, t, h, k]: [usize; 4]) -> Tensor {
    let gates = if g.coin() { k } else { 1 };
    g.range([b, t, h, gates], -2.0, 0.0)
}

impl Op for GatedLinearAttention {
    fn name(&self) -> &'static str {
        "gated_linear_attention"
    }

    fn infer(&self, x: In) -> Result<Outs, String> {
        same_dtype(self.name(), x)?;
        let dims = Dims::of(x)?;
        some_steps(self.chunk)?;
        expect_gate(x, 3, dims)?;
        Dims::expect(x, 4, "s0", &[dims.b, dims.h, dims.k, dims.v])?;
        Ok([x[2].shape(), x[4].shape()].into())
    }

    fn formula<'t>(&self, x: &[Var<'t>]) -> Option<Vec<Var<'t>>> {
        let ([_, t, _, _], mut s) = (x[0].dims(), x[4]);
        let o = over_time(t, x[2], |t| {
            let [q, k, v, g] = [0, 1, 2, 3].map(|i| token(x[i], t));
            s = insert_axis(g.exp(), 3) * s + outer(k, v); // (S_t)
            self.scale * recall(s, q) // (o_t)
        });
        Some(vec![o, s])
    }

    fn kernels(&self) -> Candidates<'_> {
        candidates(self)
    }

    fn sample(g: &mut Gen) -> (Self, Vec<Tensor>) {
        let (b, t, h) = (g.size(2), g.size(7), g.size(3));
        let (k, v) = Dims::sample(g);
        let op = GatedLinearAttention { chunk: g.size(4), parts: g.size(4), scale: g.uniform(0.3, 1.5) };
        let key = [b, t, h, k];
        let mut x = vec![g.normal(key), g.normal(key), g.normal([b, t, h, v])];
        x.extend([sample_gate(g, key), g.normal([b, h, k, v])]);
        (op, x)
    }
}

/// The outputs [B, T, H, V] and the last state [B, H, K, V]: q, k [B, T, H, K], v [B, T, H, V], g [B, T, H, K] or
/// [B, T, H, 1].
#[track_caller]
pub fn gated_linear_attention<'t>(x: [Var<'t>; 4], s0: Var<'t>, scale: f64, chunk: usize) -> (Var<'t>, Var<'t>) {
    in_parts(x, s0, scale, (chunk, 1))
}

/// The same in chunks of so many steps and in so many parts.
#[track_caller]
pub(crate) fn in_parts<'t>(
    [q, k, v, g]: [Var<'t>; 4],
    s0: Var<'t>,
    scale: f64,
    (chunk, parts): (usize, usize),
) -> (Var<'t>, Var<'t>) {
    let [o, s] = q.tape().apply_many(GatedLinearAttention { chunk, parts, scale }, [q, k, v, g, s0]);
    (o, s)
}

/// The same by products over chunks of so many steps, in tape ops.
#[track_caller]
pub(crate) fn by_products<'t>([q, k, v, g]: [Var<'t>; 4], s0: Var<'t>, scale: f64, chunk: usize) -> (Var<'t>, Var<'t>) {
    by_chunks([scale * q, k, v, g], s0, chunk, |[q, k, v, g], s| {
        let d = decay([q], k, g);
        let o = (q * d.from_start).matmul(s) + d.scores[0].tril_matmul(v);
        (o, d.all * s + (k * d.to_end).t_matmul(v))
    })
}

/// Outputs and the last state of `step`, which takes a chunk [N, C, ..] of each x [B, T, H, ..] (x[2] like the outputs)
/// and the state [N, K, V] before it, N = B H.
#[track_caller]
pub(super) fn by_chunks<'t, const R: usize>(
    x: [Var<'t>; R],
    s0: Var<'t>,
    chunk: usize,
    step: impl Fn([Var<'t>; R], Var<'t>) -> (Var<'t>, Var<'t>),
) -> (Var<'t>, Var<'t>) {
    assert!(chunk > 0, "a chunk needs one step at least, got chunk = 0");
    let ([b, t, h, v], [_, _, k, _]) = (x[2].dims(), s0.dims());
    if t == 0 {
        return (x[2], s0);
    }
    let rows = x.map(|x| {
        let width = x.shape().last();
        x.permute([0, 2, 1, 3]).reshape([b * h, t, width])
    });
    let mut s = s0.reshape([b * h, k, v]);
    let o = words::by_chunks(t, chunk, rows[2], |i, n| {
        let o;
        (o, s) = step(rows.map(|x| x.narrow(1, i, n)), s);
        o
    });
    let o = o.reshape([b, h, t, v]).permute([0, 2, 1, 3]);
    (o, s.reshape([b, h, k, v]))
}
