//! The delta rule: a matrix memory that writes the difference between a value and what the key recalls
//! (Schlag et al. 2021; in chunks: Yang et al. 2024, arXiv 2406.06484, section 3).
//!
//! ```text
//! e_t = β_t (v_t − S_{t-1}ᵀ k_t)      S_t = S_{t-1} + k_t e_tᵀ      o_t = scale S_tᵀ q_t
//! ```
//!
//! The state is multiplied by I − β k kᵀ, which has the eigenvalue 1 − β |k|²: with unit keys it is in (0, 1) for
//! β < 1, and down to −1 for β < 2, which is what parity needs.
//!
//! With a gate g_t ≤ 0 (Yang, Kautz and Hatamizadeh 2025, arXiv 2412.06464) exp(g_t) S_{t-1} stands for S_{t-1}.

mod chunk;
mod cuda;
mod decay;
mod gated;
mod recurrent;

pub use gated::{GatedDeltaRule, gated_delta_rule};

use super::same_dtype;
use crate::ops::words::{insert, outer, over_time, recall, token};
use crate::{
    autograd::{Gen, Grad, In, Op, Outs, Value, Var},
    ops::{
        heads::{Dims, Merged, seed},
        math::Math,
    },
    tensor::{Cpu, Cx, Real, Tensor},
    with_real,
};

/// q, k [B, T, H, K], v [B, T, H, V], beta [B, T, H], s0 [B, H, K, V] → o [B, T, H, V], s [B, H, K, V].
///
/// Saves the states before each chunk [B, H, T / C, K, V] and, when chunks are products, e [B, T, H, V].
pub struct DeltaRule {
    /// Steps to a chunk.
    pub chunk: usize,
    /// Factor of the queries.
    pub scale: f64,
}

#[derive(Clone, Copy)]
struct Plan<T> {
    dims: Dims,
    /// Steps to a chunk; the last may be shorter.
    chunk: usize,
    /// How many chunks there are.
    chunks: usize,
    scale: T,
    /// Step by step rather than by products of chunks.
    recurrent: bool,
}

struct Inputs<'a, T> {
    q: &'a [T],
    k: &'a [T],
    v: &'a [T],
    beta: &'a [T],
    s0: &'a [T],
    /// The gate, if there is one.
    g: Option<&'a [T]>,
}

struct Outputs<'a, T> {
    o: &'a mut [T],
    s: &'a mut [T],
    e: &'a mut [T],
    states: &'a mut [T],
}

/// What the forward pass saved, and the cotangents of o and s.
struct Saved<'a, T> {
    e: &'a [T],
    states: &'a [T],
    d_o: Option<&'a [T]>,
    ds: Option<&'a [T]>,
}

struct Grads<'a, T> {
    dq: Merged<'a, T>,
    dk: Merged<'a, T>,
    dv: Merged<'a, T>,
    dbeta: Merged<'a, T>,
    /// Whether the gradient of the first state is wanted; if not, there is no memory for it.
    state: bool,
    ds0: Merged<'a, T>,
    /// Empty without a gate.
    dg: Merged<'a, T>,
}

impl DeltaRule {
    fn plan<T: Real>(&self, dims: Dims) -> Plan<T> {
        let chunk = self.chunk.min(dims.t).max(1);
        Plan { dims, chunk, chunks: dims.t.div_ceil(chunk), scale: T::of(self.scale), recurrent: dims.small() }
    }

    /// That beta and s0 fit, and the outputs.
    fn outs(&self, x: In, dims: Dims) -> Result<Outs, String> {
        let Dims { b, t, h, k, v } = dims;
        if self.chunk == 0 {
            return Err("a chunk needs at least one step".into());
        }
        Dims::expect(x, 3, "beta", &[b, t, h])?;
        Dims::expect(x, 4, "s0", &[b, h, k, v])?;
        let (o, s, plan) = (x[2].shape(), x[4].shape(), self.plan::<f64>(dims));
        let e = if plan.recurrent { [0].into() } else { o };
        Ok(Outs::from([o, s]).saving([e, [b, h, plan.chunks, k, v].into()]))
    }
}

fn inputs<'a, T: Real>(x: &'a In) -> Inputs<'a, T> {
    let g = (x.len() > 5).then(|| x[5].host());
    Inputs { q: x[0].host(), k: x[1].host(), v: x[2].host(), beta: x[3].host(), s0: x[4].host(), g }
}

fn forward<T: Math>(cpu: &Cpu, p: Plan<T>, x: In, y: &mut [Value]) {
    if let [o, s, e, states] = y {
        let y = Outputs { o: o.host_mut(), s: s.host_mut(), e: e.host_mut(), states: states.host_mut() };
        let run = if p.recurrent { recurrent::forward } else { chunk::forward };
        run(cpu, p, &inputs(&x), y);
    }
}

fn backward<T: Math>(cpu: &Cpu, p: Plan<T>, x: In, y: &[Value], dy: &[Option<Tensor>], dx: &mut [Grad]) {
    let y = Saved { e: y[2].host(), states: y[3].host(), d_o: seed(&dy[0]), ds: seed(&dy[1]) };
    if let [dq, dk, dv, dbeta, ds0, gate @ ..] = dx {
        let d = Grads {
            dq: dq.merged(cpu, &x[0]),
            dk: dk.merged(cpu, &x[1]),
            dv: dv.merged(cpu, &x[2]),
            dbeta: dbeta.merged(cpu, &x[3]),
            state: ds0.wanted(),
            ds0: if ds0.wanted() { ds0.merged(cpu, &x[4]) } else { (&mut [], false) },
            dg: gate.first_mut().map_or((&mut [], false), |dg| dg.merged(cpu, &x[5])),
        };
        let run = if p.recurrent { recurrent::backward } else { chunk::backward };
        run(cpu, p, &inputs(&x), &y, d);
    }
}

impl Op for DeltaRule {
    fn name(&self) -> &'static str {
        "delta_rule"
    }

    fn infer(&self, x: In) -> Result<Outs, String> {
        same_dtype(x, &[])?;
        self.outs(x, Dims::of(x)?)
    }

    fn forward(&self, cx: &Cx, x: In, y: &mut [Value]) {
        let Ok(dims) = Dims::of(x) else { return };
        match cx {
            Cx::Cpu(cpu) => with_real!(x[0].dtype(), T => forward::<T>(cpu, self.plan(dims), x, y)),
            Cx::Cuda(cu) => cuda::forward(self, cu, dims, x, y),
        }
    }

    fn backward(&self, cx: &Cx, x: In, y: &[Value], dy: &[Option<Tensor>], dx: &mut [Grad]) {
        let Ok(dims) = Dims::of(x) else { return };
        match cx {
            Cx::Cpu(cpu) => with_real!(x[0].dtype(), T => backward::<T>(cpu, self.plan(dims), x, y, dy, dx)),
            Cx::Cuda(cu) => cuda::backward(self, cu, dims, x, y, dy, dx),
        }
    }

    fn formula<'t>(&self, x: &[Var<'t>]) -> Option<Vec<Var<'t>>> {
        let ([_, t, _, _], mut s) = (x[0].dims(), x[4]);
        let o = over_time(t, x[2], |t| {
            let [q, k, v, beta] = [0, 1, 2, 3].map(|i| token(x[i], t));
            let error = insert(beta, 2) * (v - recall(s, k));
            s = s + outer(k, error);
            self.scale * recall(s, q)
        });
        Some(vec![o, s])
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
