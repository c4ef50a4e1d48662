//! The kernels of [`LinearAttention`] and [`GatedLinearAttention`]: a matrix memory that adds k vᵀ, with a gate for
//! each channel of the key, with one for each head, or with none.
//!
//! ```text
//! S_t = α_t S_{t-1} + k_t v_tᵀ      o_t = scale S_tᵀ q_t      α_t = diag(exp(g_t)), exp(g_t) or 1
//! ```
//!
//! The normaliser is one more column of values that are all 1: with v̂ = [v, 1] and Ŝ = [S, z], numerator and
//! denominator are the columns of scale Ŝ_tᵀ q_t. In the backward pass the cotangent of these columns is
//!
//! ```text
//! dô = [do / den, −(do·o) / den]             den = scale q·z + eps
//! ```
//!
//! and from there on both variants are the same:
//!
//! ```text
//! dS_t = α_{t+1} dS_{t+1} + q_t do_tᵀ        (from the last step to the first)
//! dq_t = S_t do_t      dk_t = dS_t v_t      dv_t = dS_tᵀ k_t      dg_t = α_t rowsum(S_{t-1} ⊙ dS_t)      dS_0 = α_1 dS_1
//! ```
//!
//! One gate for all channels has the sum over these of dg_t. Each term of dg_t has the factor of its gate in it: there
//! is also dg_t = Σ_{u≥t} (q_u ⊙ dq_u − k_u ⊙ dk_u) + rowsum(S_T ⊙ dS_T), but its terms cancel where a gate lets little
//! through.
//!
//! The kernel `fused` runs step by step, many heads side by side (`recurrent.rs`), and accepts small memories;
//! `chunked` runs matrix products of chunks (`chunk.rs`, with [`Decay`](crate::kernels::decay::Decay) for the gates),
//! as does a device (`cuda.rs`). `split` has either of them at work on several runs of steps, side by side (`split.rs`).

mod chunk;
mod cuda;
mod recurrent;
mod split;

pub(super) use chunk::{Chunk, Work};

use crate::{
    autograd::{Candidates, Grad, In, Kernel, Op, Outs, Value},
    kernels::{
        heads::{Heads, Schedule, Slot, cotangent_of},
        math::Math,
        scan::by_device,
    },
    ops::{gated_linear_attention::GatedLinearAttention, heads::Dims, linear_attn::LinearAttention},
    tensor::{Cpu, Cuda, Cx, Real, Shape, Tensor},
};
use bytemuck::TransparentWrapper;
use split::Split;

/// The sizes and settings of both schedules.
#[derive(Clone, Copy)]
pub struct Plan<T> {
    pub(super) dims: Dims,
    /// Steps to a chunk, at least one; the last chunk may be shorter.
    pub(super) chunk: usize,
    pub(super) scale: T,
    /// The number added to a denominator, if there is one.
    pub(super) eps: Option<T>,
    /// Gates of a step: none, one, or K.
    pub(super) gates: usize,
}

impl<T: Real> Plan<T> {
    /// Columns of v̂: V, and one more for the normaliser.
    fn width(&self) -> usize {
        self.dims.v + usize::from(self.eps.is_some())
    }

    /// How many chunks there are.
    fn chunks(&self) -> usize {
        self.dims.t.div_ceil(self.chunk)
    }

    /// Rows of g and its gradient.
    fn gates(&self) -> Heads {
        Heads { k: self.gates, ..self.dims.scalars() }
    }
}

/// The inputs as slices.
struct Inputs<'a, T> {
    q: &'a [T],
    k: &'a [T],
    v: &'a [T],
    /// Empty without a gate.
    g: &'a [T],
    s0: &'a [T],
    z0: Option<&'a [T]>,
}

/// The results, and what the forward pass saves.
struct Results<'a, T> {
    o: &'a mut [T],
    s: &'a mut [T],
    z: Option<&'a mut [T]>,
    den: Option<&'a mut [T]>,
    /// The states before each chunk, of the fused kernel with a gate.
    states: Option<&'a mut [T]>,
}

/// The results of the forward pass, and their cotangents.
struct Outputs<'a, T> {
    o: &'a [T],
    den: Option<&'a [T]>,
    states: Option<&'a [T]>,
    d_o: Option<&'a [T]>,
    ds: Option<&'a [T]>,
    dz: Option<&'a [T]>,
}

/// Where gradients of the inputs of the same name go.
struct Grads<'a, T> {
    dq: Slot<'a, T>,
    dk: Slot<'a, T>,
    dv: Slot<'a, T>,
    /// Empty without a gate.
    dg: Slot<'a, T>,
    /// Whether the gradient of the first state is wanted; if not, there is no memory for it.
    state: bool,
    ds0: Slot<'a, T>,
    dz0: Option<Slot<'a, T>>,
}

/// The properties of an op that the kernels need.
pub trait Memory {
    /// Steps to a chunk, the factor of the queries, and ε.
    fn settings(&self) -> (usize, f64, Option<f64>);
    /// In how many parts it is computed side by side.
    fn parts(&self) -> usize;
    /// Whether input 3 is a gate; s0 is the next input.
    const GATED: bool;
}

impl Memory for LinearAttention {
    const GATED: bool = false;
    fn settings(&self) -> (usize, f64, Option<f64>) {
        (self.chunk, self.scale, self.normalize)
    }

    fn parts(&self) -> usize {
        self.parts
    }
}

impl Memory for GatedLinearAttention {
    const GATED: bool = true;
    fn settings(&self) -> (usize, f64, Option<f64>) {
        (self.chunk, self.scale, None)
    }

    fn parts(&self) -> usize {
        self.parts
    }
}

/// The kernels of a memory: in parts, step by step, and in chunks.
pub fn candidates<O: Memory + Op>(op: &O) -> Candidates<'_>
where
    Split<O>: Kernel,
    Schedule<O, true>: Kernel,
    Schedule<O, false>: Kernel,
{
    let (fused, chunked) = (Schedule::<O, true>::wrap_ref(op), Schedule::<O, false>::wrap_ref(op));
    [Split::wrap_ref(op) as &dyn Kernel, fused, chunked].into()
}

/// The plan of one of both schedules.
fn plan<O: Memory, T: Real>(op: &O, fused: bool, x: In) -> Option<Plan<T>> {
    let (dims, (chunk, scale, eps)) = (Dims::of(x).ok()?, op.settings());
    // The fused kernel keeps all states of a chunk for the gates' gradients.
    let chunk = if fused && O::GATED { recurrent::STEPS } else { chunk };
    let (chunk, gates) = (chunk.min(dims.t).max(1), if O::GATED { x[3].shape().last() } else { 0 });
    Some(Plan { dims, chunk, scale: T::of(scale), eps: eps.map(T::of), gates })
}

fn inputs<'a, O: Memory, T: Real>(x: &'a In) -> Inputs<'a, T> {
    let at = |i: usize| x[i].host::<T>();
    let (g, s) = if O::GATED { (at(3), 4) } else { (&[][..], 3) };
    Inputs { q: at(0), k: at(1), v: at(2), g, s0: at(s), z0: (x.len() > s + 1).then(|| at(s + 1)) }
}

/// The results of the forward pass, with the saved states or without, and the values behind.
fn results<'a, T: Real>(norm: bool, states: bool, y: &'a mut [Value]) -> Option<(Results<'a, T>, &'a mut [Value])> {
    let [o, s, rest @ ..] = y else { return None };
    let mut y = Results { o: o.host_mut(), s: s.host_mut(), z: None, den: None, states: None };
    let (own, behind) = rest.split_at_mut_checked(if norm { 2 } else { usize::from(states) })?;
    match own {
        [z, den] => (y.z, y.den) = (Some(z.host_mut()), Some(den.host_mut())),
        [all] => y.states = Some(all.host_mut()),
        _ => {}
    }
    Some((y, behind))
}

fn outputs<'a, T: Real>(norm: bool, states: bool, y: &'a [Value], dy: &'a [Option<Tensor>]) -> Outputs<'a, T> {
    Outputs {
        o: y[0].host(),
        den: norm.then(|| y[3].host()),
        states: states.then(|| y[2].host()),
        d_o: cotangent_of(&dy[0]),
        ds: cotangent_of(&dy[1]),
        dz: if norm { cotangent_of(&dy[2]) } else { None },
    }
}

fn grads<'a, O: Memory, T: Real>(cpu: &Cpu, x: In, dx: &'a mut [Grad]) -> Option<Grads<'a, T>> {
    let [dq, dk, dv, rest @ ..] = dx else { return None };
    let (gate, rest) = rest.split_at_mut(usize::from(O::GATED));
    let (at, (ds0, rest)) = (3 + gate.len(), rest.split_first_mut()?);
    let state = ds0.wanted() || rest.iter().any(Grad::wanted);
    Some(Grads {
        dq: dq.slot_or_scratch(cpu, &x[0]),
        dk: dk.slot_or_scratch(cpu, &x[1]),
        dv: dv.slot_or_scratch(cpu, &x[2]),
        dg: gate.first_mut().map_or((&mut [], false), |dg| dg.slot_or_scratch(cpu, &x[3])),
        state,
        ds0: if state { ds0.slot_or_scratch(cpu, &x[at]) } else { (&mut [], false) },
        dz0: rest.first_mut().filter(|_| state).map(|d| d.slot_or_scratch(cpu, &x[at + 1])),
    })
}

impl<O: Memory, const FUSED: bool> Schedule<O, FUSED> {
    const STATES: bool = FUSED && O::GATED;

    /// The saved values: the denominators of a normalised op, or the states before each chunk.
    fn saved(&self, x: In) -> Outs {
        let Some(p) = plan::<O, f64>(&self.0, FUSED, x) else { return Outs::default() };
        let Dims { b, t, h, k, v } = p.dims;
        if p.eps.is_some() {
            Shape::from([b, t, h]).into()
        } else if Self::STATES {
            Shape::from([b, h, p.chunks(), k, v]).into()
        } else {
            Outs::default()
        }
    }

    fn forward_cpu<T: Math>(&self, cpu: &Cpu, x: In, y: &mut [Value]) {
        let Some(p) = plan::<O, T>(&self.0, FUSED, x) else { return };
        let Some((y, _)) = results(p.eps.is_some(), Self::STATES, y) else { return };
        let run = if FUSED { recurrent::forward } else { chunk::forward };
        run(cpu, p, &inputs::<O, T>(&x), y);
    }

    fn backward_cpu<T: Math>(&self, cpu: &Cpu, x: In, y: &[Value], dy: &[Option<Tensor>], dx: &mut [Grad]) {
        let (Some(p), Some(d)) = (plan::<O, T>(&self.0, FUSED, x), grads::<O, T>(cpu, x, dx)) else { return };
        let run = if FUSED { recurrent::backward } else { chunk::backward };
        run(cpu, p, &inputs::<O, T>(&x), &outputs(p.eps.is_some(), Self::STATES, y, dy), d);
    }
}

impl<O: Memory, const FUSED: bool> Schedule<O, FUSED> {
    fn forward_cuda(&self, cu: &Cuda, x: In, y: &mut [Value]) {
        Dims::of(x).into_iter().for_each(|dims| cuda::forward(&self.0, cu, dims, x, y));
    }

    fn backward_cuda(&self, cu: &Cuda, x: In, y: &[Value], dy: &[Option<Tensor>], dx: &mut [Grad]) {
        Dims::of(x).into_iter().for_each(|dims| cuda::backward(&self.0, cu, dims, x, y, dy, dx));
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
        self.saved(x)
    }

    by_device!();
}

impl<const FUSED: bool> Kernel for Schedule<GatedLinearAttention, FUSED> {
    fn name(&self) -> Option<&'static str> {
        Some(if FUSED { "gated_linear_attention.fused" } else { "gated_linear_attention.chunked" })
    }

    fn accepts(&self, x: In, cx: &Cx) -> bool {
        Self::fits(x, cx)
    }

    fn saves(&self, x: In) -> Outs {
        self.saved(x)
    }

    by_device!();
}
