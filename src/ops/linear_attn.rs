//! Linear attention: a matrix memory that adds up k vᵀ (Katharopoulos et al. 2020, "Transformers are RNNs").
//!
//! ```text
//! S_t = S_{t-1} + k_t v_tᵀ     [K, V]        o_t = scale S_tᵀ q_t
//! z_t = z_{t-1} + k_t          [K]           o_t = scale S_tᵀ q_t / (scale q_t·z_t + eps)    (normalised)
//! ```
//!
//! The feature map was applied to q and k before. The normaliser is nothing but one more column of values that are
//! all 1: with v̂ = [v, 1] and Ŝ = [S, z], numerator and denominator are the columns of scale Ŝ_tᵀ q_t, and in the
//! backward pass the cotangent of those columns is
//!
//! ```text
//! dô = [do / den, −(do·o) / den]             den = scale q·z + eps
//! ```
//!
//! after which both variants are the same. Two schedules compute it: step by step with many heads side by side
//! (`linear_attn/recurrent.rs`) for small K V, and in chunks by matrix products (`linear_attn/chunk.rs`).

mod chunk;
mod cuda;
mod recurrent;

use super::same_dtype;
use crate::ops::words::{outer, over_time, recall, token};
use crate::{
    autograd::{Gen, Grad, In, Op, Outs, Value, Var},
    ops::heads::{Dims, Merged, seed},
    tensor::{Cpu, Cx, Real, Tensor},
    with_real,
};

/// q, k [B, T, H, K], v [B, T, H, V], s0 [B, H, K, V] (, z0 [B, H, K]) → o [B, T, H, V], s [B, H, K, V] (, z).
pub struct LinearAttention {
    /// Steps to a chunk.
    pub chunk: usize,
    /// Factor of the queries.
    pub scale: f64,
    /// What is added to the denominator when outputs are normalised; `None` when they are not.
    pub normalize: Option<f64>,
}

/// What both schedules need to know.
#[derive(Clone, Copy)]
struct Plan<T> {
    dims: Dims,
    chunk: usize,
    scale: T,
    eps: Option<T>,
}

impl<T: Real> Plan<T> {
    /// Columns of v̂: V, and one more for the normaliser.
    fn width(&self) -> usize {
        self.dims.v + usize::from(self.eps.is_some())
    }
}

/// The inputs as slices.
struct Inputs<'a, T> {
    q: &'a [T],
    k: &'a [T],
    v: &'a [T],
    s0: &'a [T],
    z0: Option<&'a [T]>,
}

/// Outputs and their cotangents as slices.
struct Outputs<'a, T> {
    o: &'a [T],
    den: Option<&'a [T]>,
    d_o: Option<&'a [T]>,
    ds: Option<&'a [T]>,
    dz: Option<&'a [T]>,
}

/// Where results, or gradients of the inputs of the same name, go.
struct Grads<'a, T> {
    dq: Merged<'a, T>,
    dk: Merged<'a, T>,
    dv: Merged<'a, T>,
    /// Whether the gradient of the first state is wanted; if not, there is no memory for it.
    state: bool,
    ds0: Merged<'a, T>,
    dz0: Option<Merged<'a, T>>,
}

impl LinearAttention {
    fn plan<T: Real>(&self, dims: Dims) -> Plan<T> {
        Plan { dims, chunk: self.chunk, scale: T::of(self.scale), eps: self.normalize.map(T::of) }
    }
}

fn inputs<'a, T: Real>(x: &'a In) -> Inputs<'a, T> {
    let at = |i: usize| x[i].host::<T>();
    Inputs { q: at(0), k: at(1), v: at(2), s0: at(3), z0: (x.len() > 4).then(|| at(4)) }
}

fn forward<T: Real>(cpu: &Cpu, p: Plan<T>, x: In, y: &mut [Value]) {
    let x = inputs::<T>(&x);
    if let [o, s, rest @ ..] = y {
        let (o, s) = (o.host_mut(), s.host_mut());
        let (z, den) = match rest {
            [z, den] => (Some(z.host_mut()), Some(den.host_mut())),
            _ => (None, None),
        };
        let run = if p.dims.small() { recurrent::forward } else { chunk::forward };
        run(cpu, p, &x, o, s, z, den);
    }
}

fn backward<T: Real>(cpu: &Cpu, p: Plan<T>, x: In, y: &[Value], dy: &[Option<Tensor>], dx: &mut [Grad]) {
    let norm = p.eps.is_some();
    let y = Outputs {
        o: y[0].host(),
        den: norm.then(|| y[3].host()),
        d_o: seed(&dy[0]),
        ds: seed(&dy[1]),
        dz: if norm { seed(&dy[2]) } else { None },
    };
    if let [dq, dk, dv, ds0, rest @ ..] = dx {
        let state = ds0.wanted() || rest.iter().any(Grad::wanted);
        let d = Grads {
            dq: dq.merged(cpu, &x[0]),
            dk: dk.merged(cpu, &x[1]),
            dv: dv.merged(cpu, &x[2]),
            state,
            ds0: if state { ds0.merged(cpu, &x[3]) } else { (&mut [], false) },
            dz0: rest.first_mut().filter(|_| state).map(|d| d.merged(cpu, &x[4])),
        };
        let run = if p.dims.small() { recurrent::backward } else { chunk::backward };
        run(cpu, p, &inputs(&x), &y, d);
    }
}

impl Op for LinearAttention {
    fn name(&self) -> &'static str {
        "linear_attention"
    }

    fn infer(&self, x: In) -> Result<Outs, String> {
        same_dtype(x, &[])?;
        let Dims { b, t, h, k, v } = Dims::of(x)?;
        if self.chunk == 0 {
            return Err("a chunk needs at least one step".into());
        }
        Dims::expect(x, 3, "s0", &[b, h, k, v])?;
        let (o, s) = (x[2].shape(), x[3].shape());
        if self.normalize.is_none() {
            return Ok([o, s].into());
        }
        Dims::expect(x, 4, "z0", &[b, h, k])?;
        Ok(Outs::from([o, s, x[4].shape()]).saving([[b, t, h].into()]))
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
        let ([_, t, _, _], mut s, mut z) = (x[0].dims(), x[3], x.get(4).copied());
        let o = over_time(t, x[2], |t| {
            let [q, k, v] = [0, 1, 2].map(|i| token(x[i], t));
            s = s + outer(k, v);
            z = z.map(|z| z + k);
            let o = self.scale * recall(s, q);
            let Some((z, eps)) = z.zip(self.normalize) else { return o };
            o / (self.scale * (q * z).sum_axis(2, true) + eps)
        });
        Some([o, s].into_iter().chain(z).collect())
    }

    fn sample(g: &mut Gen) -> (Self, Vec<Tensor>) {
        let (b, t, h) = (g.size(2), g.size(7), g.size(3));
        let (k, v) = Dims::sample(g);
        let normalize = g.coin().then_some(0.1);
        let op = LinearAttention { chunk: g.size(4), scale: g.uniform(0.3, 1.5), normalize };
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
    let [o, s] = q.tape().apply_many(LinearAttention { chunk, scale, normalize: None }, [q, k, v, s0]);
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
    let [o, s, z] = q.tape().apply_many(LinearAttention { chunk, scale, normalize: Some(eps) }, [q, k, v, s0, z0]);
    (o, (s, z))
}
