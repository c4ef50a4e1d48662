//! The kernel of [`LinearScan`].
//!
//! The CPU goes through the steps one after another, the state in registers. On a device batch and channels alone do not
//! keep it busy; there a block has a group of steps at a time, in slices side by side (`groups.cuh`). Maps h ↦ a h + b
//! compose into maps of the same form: (a₁, b₁) then (a₂, b₂) is (a₁ a₂, a₂ b₁ + b₂). That makes the recurrence parallel
//! (Blelloch 1990; Martin and Cundy, "Parallelizing Linear Recurrent Neural Nets Over Sequence Length", 2018):
//!
//! 1. every slice on its own: its map, (∏ a, end state from a zero start);
//! 2. from slice to slice: start_{k+1} = (∏ a)_k start_k + end_k;
//! 3. every slice on its own: the recurrence from its true start.
//!
//! The gradient is the same recurrence backwards in time. With g_t the gradient of h_t and G_t = a_t g_t what step t
//! passes to step t − 1: g_t = dh_t + G_{t+1}; db_t = g_t; da_t = g_t h_{t-1}; dh_0 = G_1.

mod device;

use crate::{
    autograd::{Grad, In, Kernel, Value},
    ops::scan::LinearScan,
    tensor::{Cpu, Real, Tensor},
};

pub(super) use device::{SLICES, groups};

/// `forward` and `backward` of a kernel that has each for both devices, as `forward_cpu` and so on.
macro_rules! by_device {
    () => {
        fn forward(&self, cx: &$crate::tensor::Cx, x: $crate::autograd::In, y: &mut [$crate::autograd::Value]) {
            match cx {
                $crate::tensor::Cx::Cpu(cpu) => $crate::with_real!(x[0].dtype(), T => self.forward_cpu::<T>(cpu, x, y)),
                $crate::tensor::Cx::Cuda(cu) => self.forward_cuda(cu, x, y),
            }
        }

        fn backward(
            &self,
            cx: &$crate::tensor::Cx,
            x: $crate::autograd::In,
            y: &[$crate::autograd::Value],
            dy: &[Option<$crate::tensor::Tensor>],
            dx: &mut [$crate::autograd::Grad],
        ) {
            match cx {
                $crate::tensor::Cx::Cpu(cpu) => $crate::with_real!(x[0].dtype(), T => self.backward_cpu::<T>(cpu, x, y, dy, dx)),
                $crate::tensor::Cx::Cuda(cu) => self.backward_cuda(cu, x, y, dy, dx),
            }
        }
    };
}
pub(super) use by_device;

/// Calls `$f::<T, W>(i, d, …)` for runs of W channels i..i + W that together cover 0..d: W is a constant, so that the
/// state of a run stays in registers. `wide` also has runs of 64, for kernels that need few registers.
macro_rules! by_lanes {
    (wide $d:expr, $f:ident::<$T:ident>($($arg:expr),*)) => {{
        let mut i = 0;
        while i + 64 <= $d { $f::<$T, 64>(i, $d, $($arg),*); i += 64; }
        by_lanes!(from i, $d, $f::<$T>($($arg),*));
    }};
    ($d:expr, $f:ident::<$T:ident>($($arg:expr),*)) => {{
        let mut i = 0;
        by_lanes!(from i, $d, $f::<$T>($($arg),*));
    }};
    (from $i:ident, $d:expr, $f:ident::<$T:ident>($($arg:expr),*)) => {
        while $i + 16 <= $d { $f::<$T, 16>($i, $d, $($arg),*); $i += 16; }
        while $i + 8 <= $d { $f::<$T, 8>($i, $d, $($arg),*); $i += 8; }
        while $i < $d { $f::<$T, 1>($i, $d, $($arg),*); $i += 1; }
    };
}
pub(super) use by_lanes;

/// W channels of row `row` of a [·, d] matrix.
#[inline(always)]
pub(super) fn at<T: Real, const W: usize>(x: &[T], row: usize, d: usize, i: usize) -> [T; W] {
    let mut out = [T::ZERO; W];
    out.copy_from_slice(&x[row * d + i..][..W]);
    out
}

/// Write W channels of a row, or add to them.
#[inline(always)]
pub(super) fn put<T: Real, const W: usize>(x: &mut [T], row: usize, d: usize, i: usize, v: [T; W], acc: bool) {
    let x = &mut x[row * d + i..][..W];
    if acc {
        for l in 0..W {
            x[l] += v[l];
        }
    } else {
        x.copy_from_slice(&v);
    }
}

/// Fetches numbers that are needed soon into the cache. Where a kernel goes through the sequences of a batch at one
/// step, its rows lie a sequence apart, and no processor fetches them by itself.
#[inline(always)]
#[cfg_attr(not(target_arch = "x86_64"), expect(unused_variables))]
pub(super) fn fetch<T>(x: &[T]) {
    #[cfg(target_arch = "x86_64")]
    for at in (0..size_of_val(x)).step_by(64) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: every processor of this kind has the instruction, and it neither reads nor writes what a program
        // sees.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(x.as_ptr().cast::<i8>().wrapping_add(at)) };
    }
}

/// The cotangent of an output, or zeros.
pub(super) fn cotangent<'a, T: Real>(dy: &'a Option<Tensor>, zeros: &'a [T]) -> &'a [T] {
    dy.as_ref().map_or(zeros, |g| g.host())
}

/// Zeros for [`cotangent`], if it needs them.
pub(super) fn zeros<'a, T: Real>(cpu: &'a Cpu, dy: &Option<Tensor>, like: &Tensor) -> crate::tensor::Temp<'a, T> {
    cpu.zeros(if dy.is_some() { 0 } else { like.len() })
}

/// The driver of the diagonal scans on the CPU: one run of sequences after another, whose N states [D] each begin as
/// h0. `run(i, states)` moves those of run i on to the last.
pub(super) fn sequences<T: Real, const N: usize>(
    d: usize,
    h0: [&[T]; N],
    mut last: [&mut [T]; N],
    mut run: impl FnMut(usize, [&mut [T]; N]),
) {
    last.iter_mut().zip(h0).for_each(|(last, h0)| last.copy_from_slice(h0));
    let len = h0.first().map_or(0, |h0| h0.len());
    for (i, first) in (0..len).step_by(d.max(1)).enumerate() {
        run(i, last.each_mut().map(|state| &mut state[first..(first + d).min(len)]));
    }
}

/// The same backwards: `run(i, g)` gets the gradients of the last states of run i and leaves those of h0. All states have
/// the shape of `like`.
pub(super) fn sequences_back<T: Real, const N: usize>(
    cpu: &Cpu,
    (d, like): (usize, &Tensor),
    dlast: [&Option<Tensor>; N],
    dh0: [&mut Grad; N],
    mut run: impl FnMut(usize, [&mut [T]; N]),
) {
    let (mut g, mut dh0, len) = ([(); N].map(|()| cpu.temp::<T>(d)), dh0.map(|d| d.slot::<[T]>()), like.len());
    for (i, first) in (0..len).step_by(d.max(1)).enumerate() {
        let r = first..(first + d).min(len);
        for (g, dlast) in g.iter_mut().zip(dlast) {
            match dlast {
                Some(dlast) => g[..r.len()].copy_from_slice(&dlast.host()[r.clone()]),
                None => g.fill(T::ZERO),
            }
        }
        run(i, g.each_mut().map(|g| &mut g[..r.len()]));
        for (dh0, g) in dh0.iter_mut().zip(&g) {
            if let Some((dh0, acc)) = dh0 {
                put_all(&mut dh0[r.clone()], &g[..r.len()], *acc);
            }
        }
    }
}

/// The recurrence over all rows, from `state` on, which moves on.
#[inline(always)]
fn run<T: Real, const W: usize>(i: usize, d: usize, a: &[T], b: &[T], state: &mut [T], h: &mut [T]) {
    let mut s: [T; W] = at(state, 0, d, i);
    for t in 0..a.len() / d {
        let (a, b) = (at::<T, W>(a, t, d, i), at::<T, W>(b, t, d, i));
        for l in 0..W {
            s[l] = a[l] * s[l] + b[l];
        }
        put(h, t, d, i, s, false);
    }
    put(state, 0, d, i, s, false);
}

/// The gradients of a and b over some rows, each with whether to add.
struct Rows<'a, T> {
    da: (&'a mut [T], bool),
    db: (&'a mut [T], bool),
}

/// The recurrence backwards: `g` comes in as G from behind the rows and leaves as G of the first; `before` is the state
/// before the rows.
#[inline(always)]
fn run_back<T: Real, const W: usize>(
    i: usize,
    d: usize,
    a: &[T],
    h: &[T],
    before: &[T],
    dh: &[T],
    g: &mut [T],
    out: &mut Rows<T>,
) {
    let mut s: [T; W] = at(g, 0, d, i);
    for t in (0..a.len() / d).rev() {
        let (a, dh) = (at::<T, W>(a, t, d, i), at::<T, W>(dh, t, d, i));
        let before: [T; W] = if t == 0 { at(before, 0, d, i) } else { at(h, t - 1, d, i) };
        let mut da = [T::ZERO; W];
        for l in 0..W {
            s[l] += dh[l];
            da[l] = s[l] * before[l];
        }
        put(out.db.0, t, d, i, s, out.db.1);
        put(out.da.0, t, d, i, da, out.da.1);
        for l in 0..W {
            s[l] = a[l] * s[l];
        }
    }
    put(g, 0, d, i, s, false);
}

/// One sequence.
#[versions::versions]
fn forward<T: Real>(d: usize, a: &[T], b: &[T], state: &mut [T], h: &mut [T]) {
    by_lanes!(wide d, run::<T>(a, b, state, h));
}

/// One sequence; `g` comes in as the cotangent of the last state and leaves as dh0.
#[versions::versions]
fn backward<T: Real>(d: usize, (a, h, h0, dh): (&[T], &[T], &[T], &[T]), g: &mut [T], out: &mut Rows<T>) {
    by_lanes!(wide d, run_back::<T>(a, h, h0, dh, g, out));
}

impl LinearScan {
    fn forward_cpu<T: Real>(&self, _: &Cpu, x: In, y: &mut [Value]) {
        let [h, last] = y else { return };
        let (_, t, d) = x[0].shape().split(1);
        let (a, b, h) = (x[0].host::<T>(), x[1].host::<T>(), h.host_mut::<T>());
        sequences(d, [x[2].host::<T>()], [last.host_mut()], |i, [state]| {
            let s = i * t * d..(i + 1) * t * d;
            forward(d, &a[s.clone()], &b[s.clone()], state, &mut h[s]);
        });
    }

    fn backward_cpu<T: Real>(&self, cpu: &Cpu, x: In, y: &[Value], dy: &[Option<Tensor>], dx: &mut [Grad]) {
        let ([ga, gb, gh0], [dh, dlast]) = (dx, dy) else { return };
        let (_, t, d) = x[0].shape().split(1);
        let z = zeros::<T>(cpu, dh, &y[0]);
        let (a, h0, h, dh) = (x[0].host::<T>(), x[2].host::<T>(), y[0].host::<T>(), cotangent(dh, &z));
        let [da, db] = [(ga, 0), (gb, 1)].map(|(d, i)| d.slot_or_scratch::<[T]>(cpu, &x[i]));
        sequences_back(cpu, (d, &x[2]), [dlast], [gh0], |i, [g]| {
            let s = i * t * d..(i + 1) * t * d;
            let mut out = Rows { da: (&mut da.0[s.clone()], da.1), db: (&mut db.0[s.clone()], db.1) };
            backward(d, (&a[s.clone()], &h[s.clone()], &h0[i * d..(i + 1) * d], &dh[s]), g, &mut out);
        });
    }
}

/// Write or add a slice.
pub(super) fn put_all<T: Real>(d: &mut [T], g: &[T], acc: bool) {
    if acc {
        d.iter_mut().zip(g).for_each(|(d, &g)| *d += g);
    } else {
        d.copy_from_slice(g);
    }
}

impl Kernel for LinearScan {
    by_device!();
}
