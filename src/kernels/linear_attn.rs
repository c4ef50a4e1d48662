//! The kernels of [`LinearAttention`].
//!
//! The normaliser is one more column of values that are all 1: with v̂ = [v, 1] and Ŝ = [S, z], numerator and denominator are
//! the columns of scale Ŝ_tᵀ q_t. In the backward pass the cotangent of these columns is
//!
//! ```text
//! dô = [do / den, −(do·o) / den]             den = scale q·z + eps
//! ```
//!
//! and from there on both variants are the same. The kernel `fused` runs step by step, many heads side by
//! side (`linear_attn/recurrent.rs`), and accepts small memories; `chunked` runs matrix products of chunks (`linear_attn/chunk.rs`).

mod chunk;
mod cuda;
mod recurrent;

use crate::{
    autograd::{Grad, In, Kernel, Outs, Value},
    kernels::heads::{Merged, Schedule, seed},
    ops::{heads::Dims, linear_attn::LinearAttention},
    tensor::{Cpu, Cx, Real, Shape, Tensor},
    with_real,
};

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

fn forward<T: Real, const FUSED: bool>(cpu: &Cpu, p: Plan<T>, x: In, y: &mut [Value]) {
    let x = inputs::<T>(&x);
    if let [o, s, rest @ ..] = y {
        let (o, s) = (o.host_mut(), s.host_mut());
        let (z, den) = match rest {
            [z, den] => (Some(z.host_mut()), Some(den.host_mut())),
            _ => (None, None),
        };
        let run = if FUSED { recurrent::forward } else { chunk::forward };
        run(cpu, p, &x, o, s, z, den);
    }
}

fn backward<T: Real, const FUSED: bool>(
    cpu: &Cpu,
    p: Plan<T>,
    x: In,
    y: &[Value],
    dy: &[Option<Tensor>],
    dx: &mut [Grad],
) {
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
            dq: dq.slot_or_scratch(cpu, &x[0]),
            dk: dk.slot_or_scratch(cpu, &x[1]),
            dv: dv.slot_or_scratch(cpu, &x[2]),
            state,
            ds0: if state { ds0.slot_or_scratch(cpu, &x[3]) } else { (&mut [], false) },
            dz0: rest.first_mut().filter(|_| state).map(|d| d.slot_or_scratch(cpu, &x[4])),
        };
        let run = if FUSED { recurrent::backward } else { chunk::backward };
        run(cpu, p, &inputs(&x), &y, d);
    }
}

impl<const FUSED: bool> Kernel for Schedule<LinearAttention, FUSED> {
    fn name(&self) -> Option<&'static str> {
        Some(if FUSED { "linear_attention.fused" } else { "linear_attention.chunked" })
    }

    fn accepts(&self, x: In, cx: &Cx) -> bool {
        Self::fits(x, cx)
    }

    fn saves(&self, x: In) -> Outs {
        let [b, t, h, _] = x[0].shape().array().unwrap_or_default();
        // The denominators, if it divides.
        if self.0.normalize.is_some() { Shape::from([b, t, h]).into() } else { Outs::default() }
    }

    fn forward(&self, cx: &Cx, x: In, y: &mut [Value]) {
        let Ok(dims) = Dims::of(x) else { return };
        match cx {
            Cx::Cpu(cpu) => with_real!(x[0].dtype(), T => forward::<T, FUSED>(cpu, self.0.plan(dims), x, y)),
            Cx::Cuda(cu) => cuda::forward(&self.0, cu, dims, x, y),
        }
    }

    fn backward(&self, cx: &Cx, x: In, y: &[Value], dy: &[Option<Tensor>], dx: &mut [Grad]) {
        let Ok(dims) = Dims::of(x) else { return };
        match cx {
            Cx::Cpu(cpu) => with_real!(x[0].dtype(), T => backward::<T, FUSED>(cpu, self.0.plan(dims), x, y, dy, dx)),
            Cx::Cuda(cu) => cuda::backward(&self.0, cu, dims, x, y, dy, dx),
        }
    }
}
