//! The kernels of the delta rules: [`EraseWrite`], and [`DeltaRule`] and [`GatedDeltaRule`].
//!
//! ```text
//! S' = diag(exp(g_t)) S_{t-1}      u_t = v_t − S'ᵀ p_t      S_t = S' + k_t u_tᵀ      o_t = scale S_tᵀ q_t
//! ```
//!
//! The delta rule has β k for p and β v for v. With two keys S_t = S' − e_t (S'ᵀ p_t)ᵀ + k_t v_tᵀ.
//!
//! Chunks have these matrices, for the delta rule without gates. The paper is Yang et al. 2024, arXiv 2406.06484; the
//! state there is the transpose of ours.
//!
//! | | paper | `chunk.rs` | `chunk.cu` |
//! |---|---|---|---|
//! | what each step's key recalls of earlier writes in the chunk | A = stril(diag(β) K Kᵀ) | A = stril(P Kᵀ), P = diag(β) K | A |
//! | its inverse | T = (I + A)⁻¹ diag(β) | none, but substitution | X = (I + A)⁻¹ |
//! | keys and values as all steps see them | W = T K, U = T V | none | W = X P, U = X diag(β) V |
//! | what is written | U − W S | U = (I + A)⁻¹ (diag(β) V − P S) | E = U − W S |
//! | scores | tril(Q Kᵀ) | M | M |
//! | dV' = (I + A)⁻ᵀ dU, with V' = diag(β) V | | dV | G |
//!
//! The kernel `fused` runs step by step, many heads side by side (`erase_write/recurrent.rs`), and accepts small
//! memories; `chunked` runs matrix products of chunks, one head at a time (`erase_write/chunk.rs`, with
//! [`Decay`](crate::kernels::decay::Decay) for the gates). `erase_write/cuda.rs` runs the kernels of devices.

mod chunk;
mod cuda;
mod recurrent;

use crate::{
    autograd::{Grad, In, Outs, Value},
    kernels::{
        heads::{Heads, Scheduled, Slot, cotangent_of},
        math::Math,
    },
    ops::{
        delta::{DeltaRule, GatedDeltaRule},
        erase_write::EraseWrite,
        heads::Dims,
    },
    tensor::{Cpu, Cuda, Real, Shape, Tensor},
};

#[derive(Clone, Copy)]
struct Plan<T> {
    dims: Dims,
    /// Whether there is a β: the keys to erase by are β k, and β v stands for v.
    has_beta: bool,
    /// Whether there are two keys, e and k.
    two: bool,
    /// Gates of a step: none, one for the whole memory, or one for each row.
    gates: usize,
    /// Steps to a chunk; the last may be shorter.
    chunk: usize,
    /// How many chunks there are.
    chunks: usize,
    scale: T,
}

/// Gates of a step.
fn gates(x: In) -> usize {
    let per_head = |g: Shape| if g.rank() == 3 { 1 } else { g.last() };
    if x.len() > 5 { per_head(x[5].shape()) } else { 0 }
}

impl<T: Real> Plan<T> {
    fn new<O: Rule>(op: &O, dims: Dims, x: In) -> Plan<T> {
        let (chunk, scale) = op.settings();
        let chunk = chunk.min(dims.t).max(1);
        Plan {
            dims,
            has_beta: O::DELTA,
            two: x.len() > 6,
            gates: gates(x),
            chunk,
            chunks: dims.t.div_ceil(chunk),
            scale: T::of(scale),
        }
    }

    /// Rows of g and its gradient.
    fn gates(&self) -> Heads {
        Heads { k: self.gates, ..self.dims.keys() }
    }

    /// Steps of a token in the chunked kernel: with two keys, one that erases and one that writes.
    fn steps(&self) -> usize {
        1 + usize::from(self.two)
    }

    /// Where the row of the step that writes begins, the last of a token's, in rows of `width` elements.
    fn late(&self, width: usize) -> usize {
        (self.steps() - 1) * width
    }

    /// Elements of a row of e, the second key; 0 if there is none.
    fn second_key_width(&self) -> usize {
        if self.two { self.dims.k } else { 0 }
    }

    /// Rows of p, or of β, and its gradient.
    fn p_rows(&self) -> Heads {
        if self.has_beta { self.dims.scalars() } else { self.dims.keys() }
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
    /// Empty, unless there are two keys.
    e: &'a [T],
}

struct Outputs<'a, T> {
    o: &'a mut [T],
    s: &'a mut [T],
    /// The u_t, in the chunked kernel.
    u: &'a mut [T],
    /// The states before each chunk.
    states: &'a mut [T],
}

/// The saved values of the forward pass, and the cotangents of o and s.
struct Saved<'a, T> {
    u: &'a [T],
    states: &'a [T],
    d_o: Option<&'a [T]>,
    ds: Option<&'a [T]>,
}

struct Grads<'a, T> {
    dq: Slot<'a, T>,
    dk: Slot<'a, T>,
    dv: Slot<'a, T>,
    dp: Slot<'a, T>,
    /// Whether the gradient of the first state is wanted; if not, there is no memory for it.
    state: bool,
    ds0: Slot<'a, T>,
    /// Empty without gates.
    dg: Slot<'a, T>,
    /// Empty, unless there are two keys.
    de: Slot<'a, T>,
}

fn inputs<'a, T: Real>(x: &'a In) -> Inputs<'a, T> {
    let [q, k, v, p, s0, g, e] = std::array::from_fn(|i| if i < x.len() { x[i].host() } else { &[] });
    Inputs { q, k, v, p, s0, g, e }
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

    /// Delta rules have no gates there, or one for the whole memory; others none, or one for each channel, and no
    /// second key.
    fn on_devices(&self, x: In) -> bool {
        if O::DELTA { gates(x) <= 1 } else { x.len() <= 6 && [0, x[0].shape().last()].contains(&gates(x)) }
    }

    /// u, in the chunked kernel on the CPU, and the states before each chunk.
    fn saves(&self, dims: Dims, x: In, fused: bool) -> Outs {
        let Dims { b, t, h, k, v } = dims;
        let p = Plan::<f64>::new(self, dims, x);
        let u = if fused || x[0].gpu().is_some() { [0].into() } else { Shape::from([b, p.steps() * t, h, v]) };
        [u, Shape::from([b, h, p.chunks, k, v])].into()
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
        let y = Saved { u: y[2].host(), states: y[3].host(), d_o: cotangent_of(&dy[0]), ds: cotangent_of(&dy[1]) };
        if let [dq, dk, dv, dp, ds0, rest @ ..] = dx {
            let mut rest = rest.iter_mut().zip(5..);
            let mut next = || rest.next().map_or((&mut [][..], false), |(dx, i)| dx.slot_or_scratch(cpu, &x[i]));
            let d = Grads {
                dq: dq.slot_or_scratch(cpu, &x[0]),
                dk: dk.slot_or_scratch(cpu, &x[1]),
                dv: dv.slot_or_scratch(cpu, &x[2]),
                dp: dp.slot_or_scratch(cpu, &x[3]),
                state: ds0.wanted(),
                ds0: if ds0.wanted() { ds0.slot_or_scratch(cpu, &x[4]) } else { (&mut [], false) },
                dg: next(),
                de: next(),
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
