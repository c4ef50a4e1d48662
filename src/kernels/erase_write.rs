//! The kernels of the delta rules: [`EraseWrite`], and [`DeltaRule`] and [`GatedDeltaRule`].
//!
//! ```text
//! S' = diag(exp(g_t)) S_{t-1}      u_t = v_t − S'ᵀ p_t      S_t = S' + k_t u_tᵀ      o_t = scale S_tᵀ q_t
//! ```
//!
//! The delta rule has β k for p and β v for v, and no gate or one for the whole memory.
//!
//! The kernel `fused` runs step by step, many heads side by side (`erase_write/recurrent.rs`), and accepts small memories;
//! `chunked` runs matrix products of chunks, one head at a time (`erase_write/chunk.rs`). What gates do inside a chunk is in
//! `erase_write/fade.rs`, and for a gate for each row of the memory in `erase_write/channels.rs`. `erase_write/cuda.rs`
//! runs those of devices.

mod channels;
mod chunk;
mod cuda;
mod fade;
mod recurrent;

use crate::{
    autograd::{Grad, In, Outs, Value},
    cuda::Cuda,
    kernels::{
        heads::{Heads, Merged, Scheduled, seed},
        math::Math,
    },
    ops::{
        delta::{DeltaRule, GatedDeltaRule},
        erase_write::EraseWrite,
        heads::Dims,
    },
    tensor::{Cpu, Real, Shape, Tensor},
};

/// By how many gates the memory of a head fades at each step.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Gates {
    /// It keeps everything.
    None,
    /// One for the whole memory.
    Head,
    /// One for each row.
    Channel,
}

impl Gates {
    /// Those of the input after `s0`, if there is one.
    fn of(x: In) -> Gates {
        match x.len() > 5 {
            false => Gates::None,
            true if x[5].shape().rank() < 4 || x[5].shape().last() == 1 => Gates::Head,
            true => Gates::Channel,
        }
    }
}

#[derive(Clone, Copy)]
struct Plan<T> {
    dims: Dims,
    /// Whether keys to erase by are β k, and β v stands for v.
    delta: bool,
    gates: Gates,
    /// Steps to a chunk; the last may be shorter.
    chunk: usize,
    /// How many chunks there are.
    chunks: usize,
    scale: T,
}

/// The longest chunk with a gate for each row: what it keeps grows with the square of its steps.
const LONGEST: usize = 128;

impl<T: Real> Plan<T> {
    fn new<O: Rule>(op: &O, dims: Dims, x: In) -> Plan<T> {
        let ((chunk, scale), gates) = (op.settings(), Gates::of(x));
        let longest = if gates == Gates::Channel { LONGEST } else { usize::MAX };
        let chunk = chunk.min(dims.t).clamp(1, longest);
        Plan { dims, delta: O::DELTA, gates, chunk, chunks: dims.t.div_ceil(chunk), scale: T::of(scale) }
    }

    /// Rows of g and its gradient.
    fn rates(&self) -> Heads {
        let width = match self.gates {
            Gates::None => 0,
            Gates::Head => 1,
            Gates::Channel => self.dims.k,
        };
        Heads { k: width, ..self.dims.keys() }
    }

    /// Rows of p, or of β, and its gradient.
    fn erasing(&self) -> Heads {
        if self.delta { self.dims.scalars() } else { self.dims.keys() }
    }
}

struct Inputs<'a, T> {
    q: &'a [T],
    k: &'a [T],
    v: &'a [T],
    /// p, or β of a delta rule.
    p: &'a [T],
    s0: &'a [T],
    /// Empty without gates.
    g: &'a [T],
}

struct Outputs<'a, T> {
    o: &'a mut [T],
    s: &'a mut [T],
    /// The u_t, where chunks are products.
    u: &'a mut [T],
    /// The states before each chunk.
    states: &'a mut [T],
}

/// What the forward pass saved, and the cotangents of o and s.
struct Saved<'a, T> {
    u: &'a [T],
    states: &'a [T],
    d_o: Option<&'a [T]>,
    ds: Option<&'a [T]>,
}

struct Grads<'a, T> {
    dq: Merged<'a, T>,
    dk: Merged<'a, T>,
    dv: Merged<'a, T>,
    dp: Merged<'a, T>,
    /// Whether the gradient of the first state is wanted; if not, there is no memory for it.
    state: bool,
    ds0: Merged<'a, T>,
    /// Empty without gates.
    dg: Merged<'a, T>,
}

fn inputs<'a, T: Real>(x: &'a In) -> Inputs<'a, T> {
    let [q, k, v, p, s0] = std::array::from_fn(|i| x[i].host());
    Inputs { q, k, v, p, s0, g: if x.len() > 5 { x[5].host() } else { &[] } }
}

/// A delta rule: an op with the inputs q, k, v, p or β, s0 and, if it has gates, g.
pub trait Rule {
    /// The names of its kernels, the fused one first.
    const NAMES: [&'static str; 2];
    /// Whether it has β for p.
    const DELTA: bool;
    /// Steps to a chunk, and the factor of the queries.
    fn settings(&self) -> (usize, f64);
}

impl Rule for EraseWrite {
    const NAMES: [&'static str; 2] = ["erase_write.fused", "erase_write.chunked"];
    const DELTA: bool = false;
    fn settings(&self) -> (usize, f64) {
        (self.chunk, self.scale)
    }
}

impl Rule for DeltaRule {
    const NAMES: [&'static str; 2] = ["delta_rule.fused", "delta_rule.chunked"];
    const DELTA: bool = true;
    fn settings(&self) -> (usize, f64) {
        (self.chunk, self.scale)
    }
}

impl Rule for GatedDeltaRule {
    const NAMES: [&'static str; 2] = ["gated_delta_rule.fused", "gated_delta_rule.chunked"];
    const DELTA: bool = true;
    fn settings(&self) -> (usize, f64) {
        self.0.settings()
    }
}

impl<O: Rule> Scheduled for O {
    const NAMES: [&'static str; 2] = O::NAMES;

    /// Keys to erase by of their own have no gates there, or one for each channel.
    fn on_devices(&self, x: In) -> bool {
        O::DELTA || x.len() <= 5 || x[5].shape().last() == x[0].shape().last()
    }

    /// u, where chunks are products on the CPU, and the states before each chunk.
    fn saves(&self, dims: Dims, x: In, fused: bool) -> Outs {
        let Dims { b, h, k, v, .. } = dims;
        let u = if fused || x[0].gpu().is_some() { [0].into() } else { x[2].shape() };
        [u, Shape::from([b, h, Plan::<f64>::new(self, dims, x).chunks, k, v])].into()
    }

    fn forward<T: Math>(&self, cpu: &Cpu, dims: Dims, fused: bool, x: In, y: &mut [Value]) {
        if let [o, s, u, states] = y {
            let y = Outputs { o: o.host_mut(), s: s.host_mut(), u: u.host_mut(), states: states.host_mut() };
            let run = if fused { recurrent::forward } else { chunk::forward };
            run(cpu, Plan::<T>::new(self, dims, x), &inputs(&x), y);
        }
    }

    fn backward<T: Math>(
        &self,
        cpu: &Cpu,
        dims: Dims,
        fused: bool,
        x: In,
        y: &[Value],
        dy: &[Option<Tensor>],
        dx: &mut [Grad],
    ) {
        let y = Saved { u: y[2].host(), states: y[3].host(), d_o: seed(&dy[0]), ds: seed(&dy[1]) };
        if let [dq, dk, dv, dp, ds0, dg @ ..] = dx {
            let d = Grads {
                dq: dq.slot_or_scratch(cpu, &x[0]),
                dk: dk.slot_or_scratch(cpu, &x[1]),
                dv: dv.slot_or_scratch(cpu, &x[2]),
                dp: dp.slot_or_scratch(cpu, &x[3]),
                state: ds0.wanted(),
                ds0: if ds0.wanted() { ds0.slot_or_scratch(cpu, &x[4]) } else { (&mut [], false) },
                dg: dg.first_mut().map_or((&mut [], false), |dg| dg.slot_or_scratch(cpu, &x[5])),
            };
            let run = if fused { recurrent::backward } else { chunk::backward };
            run(cpu, Plan::<T>::new(self, dims, x), &inputs(&x), &y, d);
        }
    }

    fn forward_on_device(&self, cu: &Cuda, dims: Dims, x: In, y: &mut [Value]) {
        cuda::forward(self, cu, dims, x, y);
    }

    fn backward_on_device(&self, cu: &Cuda, dims: Dims, x: In, y: &[Value], dy: &[Option<Tensor>], dx: &mut [Grad]) {
        cuda::backward(self, cu, dims, x, y, dy, dx);
    }
}
