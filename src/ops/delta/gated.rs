//! The delta rule with a gate as an op. Its kernels are those of the delta rule.

use crate::{
    autograd::{Candidates, Gen, In, Op, Outs, Var},
    kernels::heads::schedules,
    ops::{
        delta::DeltaRule,
        erase_write,
        gated_linear_attention::{expect_gate, sample_gate},
        heads::Dims,
        same_dtype,
        words::{insert_axis, outer, over_time, recall, token},
    },
    tensor::{Cx, Tensor},
};

/// The inputs of [`DeltaRule`] and g ≤ 0, [B, T, H] or [B, T, H, 1] for the whole memory, or [B, T, H, K] for each of its
/// rows: before step t they are multiplied by exp(g_t).
///
/// ```text
/// S' = diag(exp(g_t)) S_{t-1}      e_t = β_t (v_t − S'ᵀ k_t)      S_t = S' + k_t e_tᵀ      o_t = scale S_tᵀ q_t
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

    fn formula<'t>(&self, x: &[Var<'t>]) -> Option<Vec<Var<'t>>> {
        let ([b, t, h, _], mut s) = (x[0].dims(), x[4]);
        let gates = if x[5].shape().rank() == 3 { 1 } else { x[5].shape().last() };
        let o = over_time(t, x[2], |t| {
            let [q, k, v, beta, g] = [0, 1, 2, 3, 5].map(|i| token(x[i], t));
            let faded = g.exp().cast(s.dtype()).reshape([b, h, gates, 1]) * s;
            let error = insert_axis(beta, 2) * (v - recall(faded, k));
            s = faded + outer(k, error);
            self.0.scale * recall(s, q)
        });
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

/// o_t = scale S_tᵀ q_t with S' = diag(exp(g_t)) S_{t-1} and S_t = S' + β_t k_t (v_t − S'ᵀ k_t)ᵀ: the outputs [B, T, H, V]
/// and the last state [B, H, K, V].
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
    // On a device a gate for each row is for the kernel of keys to erase by of their own.
    if matches!(q.tape().cx(), Cx::Cuda(_)) && g.shape() == k.shape() {
        let beta = insert_axis(beta, 3);
        return erase_write::chunked([q, k, beta * v, beta * k, g], s0, scale, chunk);
    }
    let op = GatedDeltaRule(DeltaRule { chunk, scale });
    let [o, s] = q.tape().apply_many(op, [q, k, v, beta, s0, g.cast(g.dtype().real())]);
    (o, s)
}
