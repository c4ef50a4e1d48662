//! The delta rule: a matrix memory that writes the difference between a value and what the key recalls
//! (Schlag et al. 2021; in chunks: Yang et al. 2024, arXiv 2406.06484, section 3).
//!
//! ```text
//! u_t = β_t (v_t − S_{t-1}ᵀ k_t)      S_t = S_{t-1} + k_t u_tᵀ      o_t = scale S_tᵀ q_t
//! ```
//!
//! A step multiplies the state by I − β k kᵀ, along a unit key by 1 − β: in (0, 1) for 0 < β < 1, and in (−1, 0) for
//! 1 < β < 2. Without negative factors the memory could not track the parity of a sequence of bits.
//!
//! With the logarithm of a gate, g_t ≤ 0 (Yang, Kautz and Hatamizadeh 2025, arXiv 2412.06464), exp(g_t) S_{t-1} takes
//! the place of S_{t-1}.
//!
//! The gradient is the tape's. From the last step to the first, with δ_t = v_t − S_{t-1}ᵀ k_t and dS the gradient of
//! S_t from the steps after t:
//!
//! ```text
//! dq_t = scale S_t do_t                dS ← dS + scale q_t do_tᵀ
//! du_t = dSᵀ k_t      dβ_t = du_t·δ_t  dv_t = β_t du_t
//! dk_t = dS u_t − S_{t-1} dv_t         dS_{t-1} = dS − k_t dv_tᵀ = (I − β_t k_t k_tᵀ) dS
//! ```
//!
//! The kernels are in `kernels/erase_write.rs`: `erase_write/recurrent.rs` for small heads (K V ≤ 256),
//! `erase_write/chunk.rs` for others, `erase_write/chunk.cu` on a device.

mod gated;

use crate::{
    autograd::{Candidates, Gen, In, Op, Outs, Var},
    kernels::heads::schedules,
    ops::{
        heads::Dims,
        same_dtype, some_steps,
        words::{insert_axis, outer, over_time, recall, token},
    },
    tensor::Tensor,
};

pub use gated::{GatedDeltaRule, gated_delta_rule};

/// q, k [B, T, H, K], v [B, T, H, V], beta [B, T, H], s0 [B, H, K, V] → o [B, T, H, V], s [B, H, K, V].
pub struct DeltaRule {
    /// How many steps the kernel takes at a time. For small heads it goes step by step, and this is how often it saves
    /// a state. The results do not depend on it, and the formula does not use it.
    pub chunk: usize,
    /// Factor of the queries.
    pub scale: f64,
}

impl DeltaRule {
    /// Check that all inputs fit and that a chunk has steps; the shapes of o and of the last state.
    fn outs(&self, x: In) -> Result<Outs, String> {
        let Dims { b, t, h, k, v } = Dims::of(x)?;
        some_steps(self.chunk)?;
        Dims::expect(x, 3, "beta", &[b, t, h])?;
        Dims::expect(x, 4, "s0", &[b, h, k, v])?;
        Ok([x[2].shape(), x[4].shape()].into())
    }
}

impl Op for DeltaRule {
    fn name(&self) -> &'static str {
        "delta_rule"
    }

    fn infer(&self, x: In) -> Result<Outs, String> {
        same_dtype(self.name(), x)?;
        self.outs(x)
    }

    fn formula<'t>(&self, x: &[Var<'t>]) -> Option<Vec<Var<'t>>> {
        let ([_, t, _, _], mut s) = (x[0].dims(), x[4]);
        // v has the shape of o: of no steps both are [B, 0, H, V].
        let o = over_time(t, x[2], |t| {
            let [q, k, v, beta] = [0, 1, 2, 3].map(|i| token(x[i], t));
            let written = insert_axis(beta, 2) * (v - recall(s, k)); // (u_t)
            s = s + outer(k, written); // (S_t)
            self.scale * recall(s, q) // (o_t)
        });
        Some(vec![o, s])
    }

    fn kernels(&self) -> Candidates<'_> {
        schedules(self)
    }

    fn sample(g: &mut Gen) -> (Self, Vec<Tensor>) {
        let (b, t, h) = (g.size(2), g.size(7), g.size(3));
        let (k, v) = Dims::sample(g);
        let op = DeltaRule { chunk: g.size(4), scale: g.uniform(0.3, 1.5) };
        let a = 1.6 / (k as f64).sqrt();
        let keys = |g: &mut Gen| g.range([b, t, h, k], -a, a);
        let x = vec![keys(g), keys(g), g.normal([b, t, h, v]), g.range([b, t, h], 0.0, 2.0), g.normal([b, h, k, v])];
        (op, x)
    }
}

/// o_t = scale S_tᵀ q_t with S_t = S_{t-1} + β_t k_t (v_t − S_{t-1}ᵀ k_t)ᵀ: the outputs [B, T, H, V] and the last
/// state [B, H, K, V].
#[track_caller]
pub fn delta_rule<'t>(
    q: Var<'t>,
    k: Var<'t>,
    v: Var<'t>,
    beta: Var<'t>,
    s0: Var<'t>,
    scale: f64,
    chunk: usize,
) -> (Var<'t>, Var<'t>) {
    let [o, s] = q.tape().apply_many(DeltaRule { chunk, scale }, [q, k, v, beta, s0]);
    (o, s)
}
