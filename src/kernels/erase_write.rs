//! The kernels of [`EraseWrite`].
//!
//! ```text
//! S' = diag(exp(g_t)) S_{t-1}      u_t = v_t − S'ᵀ p_t      S_t = S' + k_t u_tᵀ      o_t = scale S_tᵀ q_t
//! ```
//!
//! The kernel `fused` runs step by step, many heads side by side (`erase_write/recurrent.rs`), and accepts small memories;
//! `chunked` runs matrix products of chunks, one head at a time (`erase_write/chunk.rs`). What gates do inside a chunk is in
//! `erase_write/fade.rs`, and for a gate for each row of the memory in `erase_write/channels.rs`.

mod channels;
mod chunk;
mod fade;
mod recurrent;

use crate::{
    autograd::{Grad, In, Kernel, Outs, Value},
    kernels::{
        heads::{Heads, Merged, Schedule, seed},
        math::Math,
    },
    ops::{erase_write::EraseWrite, heads::Dims},
    tensor::{Cpu, Cx, Real, Shape, Tensor},
    with_real,
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

    /// Gates of a step.
    fn width(self, k: usize) -> usize {
        match self {
            Gates::None => 0,
            Gates::Head => 1,
            Gates::Channel => k,
        }
    }
}

#[derive(Clone, Copy)]
struct Plan<T> {
    dims: Dims,
    gates: Gates,
    /// Steps to a chunk; the last may be shorter.
    chunk: usize,
    /// How many chunks there are.
    chunks: usize,
    scale: T,
}

impl<T> Plan<T> {
    /// Rows of g and its gradient.
    fn rates(&self) -> Heads {
        Heads { k: self.gates.width(self.dims.k), ..self.dims.keys() }
    }
}

/// The longest chunk with a gate for each row: what it keeps grows with the square of its steps.
const LONGEST: usize = 128;

impl EraseWrite {
    fn plan<T: Real>(&self, dims: Dims, x: In) -> Plan<T> {
        let gates = Gates::of(x);
        let longest = if gates == Gates::Channel { LONGEST } else { usize::MAX };
        let chunk = self.chunk.min(dims.t).clamp(1, longest);
        Plan { dims, gates, chunk, chunks: dims.t.div_ceil(chunk), scale: T::of(self.scale) }
    }
}

struct Inputs<'a, T> {
    q: &'a [T],
    k: &'a [T],
    v: &'a [T],
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

fn forward<T: Math, const FUSED: bool>(cpu: &Cpu, p: Plan<T>, x: In, y: &mut [Value]) {
    if let [o, s, u, states] = y {
        let y = Outputs { o: o.host_mut(), s: s.host_mut(), u: u.host_mut(), states: states.host_mut() };
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
        let run = if FUSED { recurrent::backward } else { chunk::backward };
        run(cpu, p, &inputs(&x), &y, d);
    }
}

impl<const FUSED: bool> Kernel for Schedule<EraseWrite, FUSED> {
    fn name(&self) -> Option<&'static str> {
        Some(if FUSED { "erase_write.fused" } else { "erase_write.chunked" })
    }

    fn accepts(&self, x: In, cx: &Cx) -> bool {
        matches!(cx, Cx::Cpu(_)) && Self::fits(x, cx)
    }

    /// u, where chunks are products, and the states before each chunk.
    fn saves(&self, x: In) -> Outs {
        let Ok(dims) = Dims::of(x) else { return Outs::default() };
        let Dims { b, h, k, v, .. } = dims;
        let u = if FUSED { [0].into() } else { x[2].shape() };
        [u, Shape::from([b, h, self.0.plan::<f64>(dims, x).chunks, k, v])].into()
    }

    fn forward(&self, cx: &Cx, x: In, y: &mut [Value]) {
        if let (Ok(dims), Cx::Cpu(cpu)) = (Dims::of(x), cx) {
            with_real!(x[0].dtype(), T => forward::<T, FUSED>(cpu, self.0.plan(dims, x), x, y));
        }
    }

    fn backward(&self, cx: &Cx, x: In, y: &[Value], dy: &[Option<Tensor>], dx: &mut [Grad]) {
        if let (Ok(dims), Cx::Cpu(cpu)) = (Dims::of(x), cx) {
            with_real!(x[0].dtype(), T => backward::<T, FUSED>(cpu, self.0.plan(dims, x), x, y, dy, dx));
        }
    }
}
