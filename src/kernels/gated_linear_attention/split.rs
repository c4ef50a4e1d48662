//! Sequences in runs of steps that are computed side by side (LASP-2, Sun et al. 2025, arXiv 2502.07563).
//!
//! With A_j what all gates of run j leave of a state, E_j its last state from a start of zeros, and F_j the cotangent
//! of its first state if that of the last one is zero:
//!
//! ```text
//! S_j = A_{j-1} S_{j-1} + E_{j-1}       before run j          dS_j = A_{j+1} dS_{j+1} + F_{j+1}       after run j
//! ```
//!
//! E and F are one product of each run, and all of them are computed side by side. Then each run goes from its own
//! start as if it were a sequence, by the kernel `fused` or `chunked`. The starts are saved for the backward pass.
//!
//! If there are as many sequences as parts, these are groups of whole sequences, and their bits are those of the other
//! kernels.

use super::{
    Grads, Inputs, Memory, Outputs, Plan, Results,
    chunk::{self, Carried, first_cotangent, last_state},
    grads, inputs, outputs, plan, recurrent, results,
};
use crate::{
    autograd::{Grad, In, Kernel, Outs, Value},
    kernels::{
        heads::Slot,
        math::Math,
        rows::{add, times_rows},
    },
    ops::{gated_linear_attention::GatedLinearAttention, heads::Dims, linear_attn::LinearAttention},
    tensor::{Cpu, Cx, Real, Shape, Tensor},
    with_real,
};
use bytemuck::TransparentWrapper;
use std::ops::Range;

/// Steps to a product of small heads.
const MANY: usize = 64;

/// The kernel in parts.
#[derive(TransparentWrapper)]
#[repr(transparent)]
pub struct Split<O>(pub O);

/// Which part: the number of its group of sequences, and that of its run of steps.
type At = (usize, usize);

/// The plan of the whole, the parts it is cut into, and how these are computed.
#[derive(Clone, Copy)]
struct Cut<T> {
    p: Plan<T>,
    groups: usize,
    /// Of each group, which is one sequence if they are several.
    runs: usize,
    fused: bool,
}

impl<T: Real> Cut<T> {
    fn new<O: Memory>(op: &O, x: In) -> Option<Cut<T>> {
        let (dims @ Dims { b, t, h, k, v }, parts) = (Dims::of(x).ok()?, op.parts());
        if parts < 2 || t == 0 || b * h * k * v == 0 {
            return None;
        }
        let (fused, runs) = (dims.small(), parts.div_ceil(b).min(t));
        Some(Cut { p: plan(op, fused, x)?, groups: parts.min(b), runs, fused })
    }

    /// Every part, in the order of their rows in memory.
    fn all(&self) -> impl Iterator<Item = At> + use<T> {
        let runs = self.runs;
        (0..self.groups).flat_map(move |g| (0..runs).map(move |j| (g, j)))
    }

    fn sequences(&self, g: usize) -> Range<usize> {
        g * self.p.dims.b / self.groups..(g + 1) * self.p.dims.b / self.groups
    }

    fn steps(&self, j: usize) -> Range<usize> {
        j * self.p.dims.t / self.runs..(j + 1) * self.p.dims.t / self.runs
    }

    fn plan(&self, (g, j): At) -> Plan<T> {
        let dims = Dims { b: self.sequences(g).len(), t: self.steps(j).len(), ..self.p.dims };
        Plan { dims, chunk: self.p.chunk.min(dims.t), ..self.p }
    }

    /// The same for one product of a run, in chunks of many steps where heads are small.
    fn by_products(&self, at: At) -> Plan<T> {
        let p = self.plan(at);
        Plan { chunk: if self.fused { MANY.min(p.dims.t) } else { p.chunk }, ..p }
    }

    /// A part's rows of a tensor [B, T, H, W].
    fn rows(&self, (g, j): At, w: usize) -> Range<usize> {
        let (b, steps, row) = (self.sequences(g), self.steps(j), self.p.dims.h * w);
        (b.start * self.p.dims.t + steps.start) * row..((b.end - 1) * self.p.dims.t + steps.end) * row
    }

    /// A part's states of tensors [B, runs, H, K, V] and [B, runs, H, K]; the second are none without a normaliser.
    fn states<'a>(&self, (g, j): At, [s, z]: [&'a [T]; 2]) -> [&'a [T]; 2] {
        let b = self.sequences(g);
        [s, z].map(|all| {
            let (at, n) = (b.start * self.runs + j, all.len() / (self.p.dims.b * self.runs));
            &all[at * n..(at + b.len()) * n]
        })
    }

    /// Whether states are saved before each chunk.
    fn keeps(&self) -> bool {
        self.fused && self.p.gates > 0
    }

    /// The sizes of S and z of a sequence.
    fn sizes(&self) -> [usize; 2] {
        let Dims { h, k, v, .. } = self.p.dims;
        [h * k * v, h * k * (self.p.width() - v)]
    }

    fn inputs<'a>(&self, x: &Inputs<'a, T>, at: At, [s0, z0]: [&'a [T]; 2]) -> Inputs<'a, T> {
        let [k, v, g] = [self.p.dims.k, self.p.dims.v, self.p.gates].map(|w| self.rows(at, w));
        Inputs { q: &x.q[k.clone()], k: &x.k[k], v: &x.v[v], g: &x.g[g], s0, z0: x.z0.map(|_| z0) }
    }

    /// The outputs of a part and their cotangents, with the saved states before its chunks.
    fn outputs<'a>(&self, y: &Outputs<'a, T>, at: At, states: Option<&'a [T]>, end: [&'a [T]; 2]) -> Outputs<'a, T> {
        let ([v, one], [ds, dz]) = ([self.p.dims.v, 1].map(|w| self.rows(at, w)), end);
        let (o, den, d_o) = (&y.o[v.clone()], y.den.map(|den| &den[one]), y.d_o.map(|d| &d[v]));
        Outputs { o, den, states, d_o, ds: Some(ds), dz: y.den.map(|_| dz) }
    }

    /// Put the states of all sequences, if they are given, at the start of their runs, or at the end.
    fn put(&self, given: Option<&[T]>, back: bool, states: &mut [T]) {
        let Some(given) = given else { return };
        let (n, place) = (given.len() / self.p.dims.b, if back { self.runs - 1 } else { 0 });
        for (given, states) in given.chunks_exact(n).zip(states.chunks_exact_mut(self.runs * n)) {
            states[place * n..(place + 1) * n].copy_from_slice(given);
        }
    }

    /// The states at the start of every run, or the cotangents at its end, from those that were [`put`](Self::put)
    /// there. `local` computes what head i of a run hands on if it is handed zeros, and what its gates leave.
    fn hand_on(
        &self,
        cpu: &Cpu,
        [s, z]: [&mut [T]; 2],
        back: bool,
        local: impl Fn(&Cpu, At, usize, Carried<T>) + Sync,
    ) {
        let (Dims { k, v, .. }, [ns, nz], runs) = (self.p.dims, self.sizes(), self.runs);
        if runs == 1 {
            return;
        }
        let (keys, norm) = (ns / v, nz > 0);
        let (mut left, mut jobs) = (cpu.temp::<T>(self.groups * runs * keys), vec![]);
        let (mut rest, places) = (&mut *z, s.chunks_exact_mut(ns).zip(left.chunks_exact_mut(keys)));
        for ((g, j), (s, left)) in self.all().zip(places) {
            let before = if back { Some(j + 1).filter(|&j| j < runs) } else { j.checked_sub(1) };
            for (i, (s, left)) in s.chunks_exact_mut(k * v).zip(left.chunks_exact_mut(k)).enumerate() {
                let z = take(&mut rest, if norm { k } else { 0 });
                jobs.extend(before.map(|j| ((g, j), i, Carried { s, z, left })));
            }
        }
        cpu.side_by_side(jobs, |cpu, (at, i, to)| local(cpu, at, i, to));
        let mut faded = cpu.temp::<T>(ns);
        for g in 0..self.groups {
            for i in 1..runs {
                let (from, to) = if back { (runs - i, runs - i - 1) } else { (i - 1, i) };
                let ([from, to], left) = ([from, to].map(|j| g * runs + j), &*left);
                for (n, states) in [(ns, &mut *s), (nz, &mut *z)].into_iter().filter(|(n, _)| *n > 0) {
                    let (faded, left) = (&mut faded[..n], &left[to * keys..(to + 1) * keys]);
                    faded.copy_from_slice(&states[from * n..(from + 1) * n]);
                    times_rows(n / keys, left, faded);
                    add(&mut states[to * n..(to + 1) * n], faded);
                }
            }
        }
    }
}

/// The next elements of a slice.
fn take<'a, T>(rest: &mut &'a mut [T], n: usize) -> &'a mut [T] {
    rest.split_off_mut(..n).unwrap_or_default()
}

/// The same, of a slot.
fn take_slot<'a, T>(rest: &mut Slot<'a, T>, n: usize) -> Slot<'a, T> {
    (take(&mut rest.0, n), rest.1)
}

impl<O: Memory> Split<O> {
    /// Denominators or states as of the other kernels, and the start of each run.
    fn saved(&self, x: In) -> Outs {
        let Some(cut) = Cut::<f64>::new(&self.0, x) else { return Outs::default() };
        let Dims { b, t, h, k, v } = cut.p.dims;
        let starts = Shape::from([b, cut.runs, h, k, v]);
        if cut.p.eps.is_some() {
            [Shape::from([b, t, h]), starts, Shape::from([b, cut.runs, h, k])].into()
        } else if cut.keeps() {
            let chunks = (0..cut.runs).map(|j| cut.plan((0, j)).chunks()).sum();
            [Shape::from([b, chunks, h, k, v]), starts].into()
        } else {
            starts.into()
        }
    }

    fn forward_cpu<T: Math>(&self, cpu: &Cpu, x: In, y: &mut [Value]) {
        let Some(cut) = Cut::<T>::new(&self.0, x) else { return };
        let (norm, x) = (cut.p.eps.is_some(), inputs::<O, T>(&x));
        let Some((mut y, [s, z @ ..])) = results(norm, cut.keeps(), y) else { return };
        let (s, z) = (s.host_mut::<T>(), z.first_mut().map_or(&mut [][..], |z| z.host_mut()));
        cut.put(Some(x.s0), false, s);
        cut.put(x.z0, false, z);
        cut.hand_on(cpu, [&mut *s, &mut *z], false, |cpu, at, i, to| {
            last_state(cpu, &cut.by_products(at), &cut.inputs(&x, at, [&[]; 2]), i, to);
        });
        let (mut jobs, run) = (vec![], if cut.fused { recurrent::forward } else { chunk::forward });
        for at in cut.all() {
            let (p, [ns, nz], last) = (cut.plan(at), cut.sizes(), at.1 + 1 == cut.runs);
            let (b, rows) = (p.dims.b, p.dims.b * p.dims.t * p.dims.h);
            let (o, den) = (take(&mut y.o, rows * p.dims.v), y.den.as_mut().map(|den| take(den, rows)));
            let states = y.states.as_mut().map(|states| take(states, p.chunks() * b * ns));
            let s = last.then(|| take(&mut y.s, b * ns));
            let z = y.z.as_mut().filter(|_| last).map(|z| take(z, b * nz));
            jobs.push((at, o, den, states, s, z));
        }
        let starts = [&*s, &*z];
        cpu.side_by_side(jobs, |cpu, (at, o, den, states, s, z)| {
            // Of the other runs the last state is the next one's start, which is there already.
            let mut unread = cpu.temp(if s.is_none() { cut.sizes()[0] } else { 0 });
            let y = Results { o, s: s.unwrap_or(&mut unread), z, den, states };
            run(cpu, cut.plan(at), &cut.inputs(&x, at, cut.states(at, starts)), y);
        });
    }

    fn backward_cpu<T: Math>(&self, cpu: &Cpu, x: In, y: &[Value], dy: &[Option<Tensor>], dx: &mut [Grad]) {
        let Some(cut) = Cut::<T>::new(&self.0, x) else { return };
        let (norm, [ns, nz], all) = (cut.p.eps.is_some(), cut.sizes(), cut.p.dims.b * cut.runs);
        let Some(mut d) = grads::<O, T>(cpu, x, dx) else { return };
        let at = y.len() - if norm { 2 } else { 1 };
        let starts = [y[at].host(), if norm { y[at + 1].host() } else { &[] }];
        let (x, y) = (inputs::<O, T>(&x), outputs::<T>(norm, cut.keeps(), y, dy));
        let (mut ds, mut dz) = (cpu.zeros::<T>(all * ns), cpu.zeros::<T>(all * nz));
        cut.put(y.ds, true, &mut ds);
        cut.put(y.dz, true, &mut dz);
        cut.hand_on(cpu, [&mut ds, &mut dz], true, |cpu, at, i, to| {
            let (x, y) = (cut.inputs(&x, at, [&[]; 2]), cut.outputs(&y, at, None, [&[]; 2]));
            first_cotangent(cpu, &cut.by_products(at), &x, &y, i, to);
        });
        let (mut jobs, mut kept) = (vec![], y.states);
        for at in cut.all() {
            let (p, first) = (cut.plan(at), at.1 == 0 && d.state);
            let (b, rows) = (p.dims.b, p.dims.b * p.dims.t * p.dims.h);
            let grads = Grads {
                dq: take_slot(&mut d.dq, rows * p.dims.k),
                dk: take_slot(&mut d.dk, rows * p.dims.k),
                dv: take_slot(&mut d.dv, rows * p.dims.v),
                dg: take_slot(&mut d.dg, rows * p.gates),
                state: first,
                ds0: take_slot(&mut d.ds0, if first { b * ns } else { 0 }),
                dz0: d.dz0.as_mut().filter(|_| first).map(|dz0| take_slot(dz0, b * nz)),
            };
            jobs.push((at, kept.as_mut().and_then(|kept| kept.split_off(..p.chunks() * b * ns)), grads));
        }
        let (ends, run) = ([&*ds, &*dz], if cut.fused { recurrent::backward } else { chunk::backward });
        cpu.side_by_side(jobs, |cpu, (at, kept, grads)| {
            let y = cut.outputs(&y, at, kept, cut.states(at, ends));
            run(cpu, cut.plan(at), &cut.inputs(&x, at, cut.states(at, starts)), &y, grads);
        });
    }
}

macro_rules! kernel {
    ($op:ty, $name:literal) => {
        impl Kernel for Split<$op> {
            fn name(&self) -> Option<&'static str> {
                Some($name)
            }

            fn accepts(&self, x: In, cx: &Cx) -> bool {
                matches!(cx, Cx::Cpu(_)) && Cut::<f64>::new(&self.0, x).is_some()
            }

            fn saves(&self, x: In) -> Outs {
                self.saved(x)
            }

            fn forward(&self, cx: &Cx, x: In, y: &mut [Value]) {
                if let Cx::Cpu(cpu) = cx {
                    with_real!(x[0].dtype(), T => self.forward_cpu::<T>(cpu, x, y));
                }
            }

            fn backward(&self, cx: &Cx, x: In, y: &[Value], dy: &[Option<Tensor>], dx: &mut [Grad]) {
                if let Cx::Cpu(cpu) = cx {
                    with_real!(x[0].dtype(), T => self.backward_cpu::<T>(cpu, x, y, dy, dx));
                }
            }
        }
    };
}
kernel!(LinearAttention, "linear_attention.split");
kernel!(GatedLinearAttention, "gated_linear_attention.split");
