//! The delta rule with a gate as an op. Its kernels are those of the delta rule.

use crate::{
    autograd::{Candidates, Gen, In, Op, Outs, Var},
    kernels::heads::schedules,
    ops::{
        delta::DeltaRule,
        erase_write::EraseWrite,
        gated_linear_attention::{expect_gate, sample_gate},
        heads::Dims,
        same_dtype,
        words::insert_axis,
    },
    tensor::Tensor,
};

/// The inputs of [`DeltaRule`] and g ≤ 0, [B, T, H] or [B, T, H, 1] for the whole memory, or [B, T, H, K] for each of
/// its rows: before step t they are multiplied by exp(g_t).
///
/// ```text
/// S' = diag(exp(g_t)) S_{t-1}      u_t = β_t (v_t − S'ᵀ k_t)      S_t = S' + k_t u_tᵀ      o_t = scale S_tᵀ q_t
/// ```
pub struct GatedDeltaRule(pub DeltaRule);

impl Op for GatedDeltaRule {
    fn name(&self) -> &'static str {
        "gated_delta_rule"
    }

    fn infer(&self, x: In) -> Result<Outs, String> {
        same_dtype(self.name(), x)?;
        let dims @ Dims { b, t, h, .. } = Dims::of(x)?;
        Dims::expect(x, 5, "g", &[b, t, h]).or_else(|_| expect_gate(x, 5, dims))?;
        self.0.outs(x)
    }

    /// The step that erases what β k recalls and writes β v under k.
    fn formula<'t>(&self, x: &[Var<'t>]) -> Option<Vec<Var<'t>>> {
        let [q, k, v, beta, s0, g] = std::array::from_fn(|i| x[i]);
        let (beta, g) = (insert_axis(beta, 3), g.cast(q.dtype()));
        let g = if g.shape().rank() == 3 { insert_axis(g, 3) } else { g };
        let op = EraseWrite { chunk: self.0.chunk, scale: self.0.scale };
        let [o, s] = q.tape().apply_many(op, [q, k, beta * v, beta * k, s0, g]);
        Some(vec![o, s])
    }

    fn kernels(&self) -> Candidates<'_> {
        schedules(self)
    }

    fn sample(g: &mut Gen) -> (Self, Vec<Tensor>) {
        let (op, mut x) = DeltaRule::sample(g);
        let key = [0, 1, 2, 3].map(|i| x[1].shape().at(i));
        x.push(if g.coin() { g.range(x[3].shape(), -2.0, 0.0) } else { sample_gate(g, key) });
        (GatedDeltaRule(op), x)
    }
}

/// o_t = scale S_tᵀ q_t with S' = diag(exp(g_t)) S_{t-1} and S_t = S' + β_t k_t (v_t − S'ᵀ k_t)ᵀ: the outputs
/// [B, T, H, V] and the last state [B, H, K, V].
#[track_caller]
pub fn gated_delta_rule<'t>(
    q: Var<'t>,
    k: Var<'t>,
    v: Var<'t>,
    beta: Var<'t>,
    g: Var<'t>,
    s0: Var<'t>,
    scale: f64,
    chunk: usize,
) -> (Var<'t>, Var<'t>) {
    let op = GatedDeltaRule(DeltaRule { chunk, scale });
    let [o, s] = q.tape().apply_many(op, [q, k, v, beta, s0, g.cast(g.dtype().real())]);
    (o, s)
}
