//! The kernels of [`DeltaRule`] and [`GatedDeltaRule`].

mod chunk;
mod cuda;
mod decay;
mod recurrent;

use crate::{
    autograd::{Grad, In, Kernel, Outs, Value},
    kernels::{
        heads::{Merged, Schedule, seed},
        math::Math,
    },
    ops::{
        delta::{DeltaRule, GatedDeltaRule},
        heads::Dims,
    },
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

/// What the delta rule has in common with and without a gate.
pub trait Rule {
    /// The names of its kernels, the fused one first.
    const NAMES: [&'static str; 2];
    /// Without the gate.
    fn rule(&self) -> &DeltaRule;
}

impl Rule for DeltaRule {
    const NAMES: [&'static str; 2] = ["delta_rule.fused", "delta_rule.chunked"];
    fn rule(&self) -> &DeltaRule {
        self
    }
}

impl Rule for GatedDeltaRule {
    const NAMES: [&'static str; 2] = ["gated_delta_rule.fused", "gated_delta_rule.chunked"];
    fn rule(&self) -> &DeltaRule {
        &self.0
    }
}

impl DeltaRule {
    fn plan<T: Real>(&self, dims: Dims) -> Plan<T> {
        let chunk = self.chunk.min(dims.t).max(1);
        Plan { dims, chunk, chunks: dims.t.div_ceil(chunk), scale: T::of(self.scale) }
    }
}

fn inputs<'a, T: Real>(x: &'a In) -> Inputs<'a, T> {
    let g = (x.len() > 5).then(|| x[5].host());
    Inputs { q: x[0].host(), k: x[1].host(), v: x[2].host(), beta: x[3].host(), s0: x[4].host(), g }
}

fn forward<T: Math, const FUSED: bool>(cpu: &Cpu, p: Plan<T>, x: In, y: &mut [Value]) {
    if let [o, s, e, states] = y {
        let y = Outputs { o: o.host_mut(), s: s.host_mut(), e: e.host_mut(), states: states.host_mut() };
        let run = if FUSED { recurrent::forward } else { chunk::forward };
        run(cpu, p, &inputs(&x), y);
    }
}

fn backward<T: Math, const FUSED: bool>(
    cpu: &Cpu,
    p: Plan<T>,
    x: In,
    y: &[Value],
    dy: &[Option<Tensor>],
    dx: &mut [Grad],
) {
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
        let run = if FUSED { recurrent::backward } else { chunk::backward };
        run(cpu, p, &inputs(&x), &y, d);
    }
}

impl<O: Rule, const FUSED: bool> Kernel for Schedule<O, FUSED> {
    fn name(&self) -> Option<&'static str> {
        Some(O::NAMES[usize::from(!FUSED)])
    }

    fn accepts(&self, x: In, cx: &Cx) -> bool {
        Self::fits(x, cx)
    }

    /// e, where chunks are products on the CPU, and the states before each chunk.
    fn saves(&self, x: In) -> Outs {
        let Ok(dims) = Dims::of(x) else { return Outs::default() };
        let Dims { b, h, k, v, .. } = dims;
        let e = if FUSED || x[0].gpu().is_some() { [0].into() } else { x[2].shape() };
        [e, Shape::from([b, h, self.0.rule().plan::<f64>(dims).chunks, k, v])].into()
    }

    fn forward(&self, cx: &Cx, x: In, y: &mut [Value]) {
        let (Ok(dims), rule) = (Dims::of(x), self.0.rule()) else { return };
        match cx {
            Cx::Cpu(cpu) => with_real!(x[0].dtype(), T => forward::<T, FUSED>(cpu, rule.plan(dims), x, y)),
            Cx::Cuda(cu) => cuda::forward(rule, cu, dims, x, y),
        }
    }

    fn backward(&self, cx: &Cx, x: In, y: &[Value], dy: &[Option<Tensor>], dx: &mut [Grad]) {
        let (Ok(dims), rule) = (Dims::of(x), self.0.rule()) else { return };
        match cx {
            Cx::Cpu(cpu) => with_real!(x[0].dtype(), T => backward::<T, FUSED>(cpu, rule.plan(dims), x, y, dy, dx)),
            Cx::Cuda(cu) => cuda::backward(rule, cu, dims, x, y, dy, dx),
        }
    }
}
