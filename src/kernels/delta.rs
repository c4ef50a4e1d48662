//! The kernel of [`DeltaRule`].

mod chunk;
mod cuda;
mod decay;
mod gated;
mod recurrent;

use crate::{
    autograd::{Grad, In, Kernel, Outs, Value},
    kernels::{
        heads::{Merged, seed},
        math::Math,
    },
    ops::{delta::DeltaRule, heads::Dims},
    tensor::{Cpu, Cx, Real, Shape, Tensor},
    with_real,
};

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

    fn kept(&self, dims: Dims) -> Outs {
        let Dims { b, t, h, k, v } = dims;
        let plan = self.plan::<f64>(dims);
        let e: Shape = if plan.recurrent { [0].into() } else { [b, t, h, v].into() };
        [e, Shape::from([b, h, plan.chunks, k, v])].into()
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
            dq: dq.slot_or_scratch(cpu, &x[0]),
            dk: dk.slot_or_scratch(cpu, &x[1]),
            dv: dv.slot_or_scratch(cpu, &x[2]),
            dbeta: dbeta.slot_or_scratch(cpu, &x[3]),
            state: ds0.wanted(),
            ds0: if ds0.wanted() { ds0.slot_or_scratch(cpu, &x[4]) } else { (&mut [], false) },
            dg: gate.first_mut().map_or((&mut [], false), |dg| dg.slot_or_scratch(cpu, &x[5])),
        };
        let run = if p.recurrent { recurrent::backward } else { chunk::backward };
        run(cpu, p, &inputs(&x), &y, d);
    }
}

impl Kernel for DeltaRule {
    fn saves(&self, x: In) -> Outs {
        Dims::of(x).map_or_else(|_| Outs::default(), |dims| self.kept(dims))
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
}
