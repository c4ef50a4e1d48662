//! The kernel of [`LinearScan`].
//!
//! Maps h ↦ a h + b compose into maps of the same form: (a₁, b₁) then (a₂, b₂) is (a₁ a₂, a₂ b₁ + b₂). That makes the
//! recurrence parallel (Blelloch 1990; Martin and Cundy, "Parallelizing Linear Recurrent Neural Nets Over Sequence Length",
//! 2018), over chunks and in three phases:
//!
//! 1. every chunk on its own: its map, (∏ a, end state from a zero start);
//! 2. from chunk to chunk: start_{k+1} = (∏ a)_k start_k + end_k;
//! 3. every chunk on its own: the recurrence from its true start.
//!
//! The gradient is the same recurrence backwards in time. With g_t the gradient of h_t and G_t = a_t g_t what step t passes to
//! step t − 1: g_t = dh_t + G_{t+1}; db_t = g_t; da_t = g_t h_{t-1}; dh_0 = G_1.
//!
//! On one CPU thread a single chunk is fastest: phases 1 and 2 vanish and the state stays in registers. On a device a single
//! chunk is fastest too where batch and channels alone keep it busy; elsewhere neighbouring chunks are joined until the device is
//! just busy (`Pieces`).

mod device;

use crate::{
    autograd::{Grad, In, Kernel, Value},
    ops::scan::LinearScan,
    tensor::{Cpu, Real, Tensor},
};

pub(super) use device::Pieces;

/// `forward` and `backward` of an op that has each for both devices, as `forward_cpu` and so on.
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

/// Fetches numbers that are needed soon into the cache. Where a kernel goes through the sequences of a batch at one step,
/// its rows lie a sequence apart, which no processor foresees.
#[inline(always)]
#[cfg_attr(not(target_arch = "x86_64"), expect(unused_variables))]
pub(super) fn fetch<T>(x: &[T]) {
    #[cfg(target_arch = "x86_64")]
    for at in (0..size_of_val(x)).step_by(64) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: every processor of this kind has the instruction, and it neither reads nor writes what a program sees.
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

/// Phase 1 forward: the map of one chunk, as (∏ a, end from zero).
#[inline(always)]
fn total<T: Real, const W: usize>(i: usize, d: usize, a: &[T], b: &[T], prod: &mut [T], end: &mut [T]) {
    let (mut p, mut h) = ([T::ONE; W], [T::ZERO; W]);
    for t in 0..a.len() / d {
        let (a, b) = (at::<T, W>(a, t, d, i), at::<T, W>(b, t, d, i));
        for l in 0..W {
            p[l] = a[l] * p[l];
            h[l] = a[l] * h[l] + b[l];
        }
    }
    put(prod, 0, d, i, p, false);
    put(end, 0, d, i, h, false);
}

/// Phase 1 backward: G at a chunk's first step as a map of G from behind it.
#[inline(always)]
fn total_back<T: Real, const W: usize>(i: usize, d: usize, a: &[T], dh: &[T], prod: &mut [T], end: &mut [T]) {
    let (mut p, mut g) = ([T::ONE; W], [T::ZERO; W]);
    for t in (0..a.len() / d).rev() {
        let (a, dh) = (at::<T, W>(a, t, d, i), at::<T, W>(dh, t, d, i));
        for l in 0..W {
            p[l] = a[l] * p[l];
            g[l] = a[l] * (g[l] + dh[l]);
        }
    }
    put(prod, 0, d, i, p, false);
    put(end, 0, d, i, g, false);
}

/// Phase 3 forward: the recurrence from `start` over some rows.
#[inline(always)]
fn run<T: Real, const W: usize>(i: usize, d: usize, a: &[T], b: &[T], start: &[T], h: &mut [T]) {
    let mut s: [T; W] = at(start, 0, d, i);
    for t in 0..a.len() / d {
        let (a, b) = (at::<T, W>(a, t, d, i), at::<T, W>(b, t, d, i));
        for l in 0..W {
            s[l] = a[l] * s[l] + b[l];
        }
        put(h, t, d, i, s, false);
    }
}

/// The gradients of a and b over some rows, each with whether to add.
struct Rows<'a, T> {
    da: (&'a mut [T], bool),
    db: (&'a mut [T], bool),
}

/// Phase 3 backward: `g` comes in as G from behind the rows and leaves as G of the first; `before` is the state before
/// the rows.
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

/// The bounds of chunk k in a [T, D] slice of `len` elements.
pub(super) fn chunk_of(k: usize, chunk: usize, d: usize, len: usize) -> std::ops::Range<usize> {
    k * chunk * d..(k + 1).saturating_mul(chunk).saturating_mul(d).min(len)
}

/// One sequence. `starts` and `prods` are scratch rows, one a chunk.
#[versions::versions]
fn forward<T: Real>(chunk: usize, d: usize, a: &[T], b: &[T], starts: &mut [T], prods: &mut [T], h: &mut [T]) {
    let n = starts.len() / d;
    for k in 1..n {
        let c = chunk_of(k - 1, chunk, d, a.len());
        let (prod, end) = (&mut prods[k * d..][..d], &mut starts[k * d..][..d]);
        by_lanes!(wide d, total::<T>(&a[c.clone()], &b[c.clone()], prod, end));
    }
    for k in 1..n {
        let (start, end) = starts[(k - 1) * d..].split_at_mut(d);
        for ((end, &p), &start) in end.iter_mut().zip(&prods[k * d..]).zip(&*start) {
            *end += p * start;
        }
    }
    for k in 0..n {
        let c = chunk_of(k, chunk, d, a.len());
        by_lanes!(wide d, run::<T>(&a[c.clone()], &b[c.clone()], &starts[k * d..], &mut h[c.clone()]));
    }
}

/// One sequence. `ends` and `prods` are scratch rows, one a chunk: G from behind each chunk, of which the last is
/// given; afterwards `ends[0]` is dh0.
#[versions::versions]
fn backward<T: Real>(
    chunk: usize,
    d: usize,
    (a, h, h0, dh): (&[T], &[T], &[T], &[T]),
    ends: &mut [T],
    prods: &mut [T],
    out: &mut Rows<T>,
) {
    let n = ends.len() / d;
    for k in 1..n {
        let c = chunk_of(k, chunk, d, a.len());
        let (prod, end) = (&mut prods[k * d..][..d], &mut ends[(k - 1) * d..][..d]);
        by_lanes!(wide d, total_back::<T>(&a[c.clone()], &dh[c.clone()], prod, end));
    }
    for k in (1..n).rev() {
        let (end, behind) = ends[(k - 1) * d..].split_at_mut(d);
        for ((end, &p), &behind) in end.iter_mut().zip(&prods[k * d..]).zip(&*behind) {
            *end += p * behind;
        }
    }
    for k in 0..n {
        let c = chunk_of(k, chunk, d, a.len());
        let before = if k == 0 { h0 } else { &h[c.start - d..] };
        let mut out = Rows { da: (&mut out.da.0[c.clone()], out.da.1), db: (&mut out.db.0[c.clone()], out.db.1) };
        by_lanes!(wide d, run_back::<T>(&a[c.clone()], &h[c.clone()], before, &dh[c.clone()], &mut ends[k * d..], &mut out));
    }
}

impl LinearScan {
    fn forward_cpu<T: Real>(&self, cpu: &Cpu, x: In, y: &mut [Value]) {
        let [h, last] = y else { return };
        let (_, t, d) = x[0].shape().split(1);
        let (a, b, h0) = (x[0].host::<T>(), x[1].host::<T>(), x[2].host::<T>());
        let (h, last) = (h.host_mut::<T>(), last.host_mut::<T>());
        if t == 0 || d == 0 {
            return last.copy_from_slice(h0);
        }
        let n = t.div_ceil(self.chunk);
        let (mut starts, mut prods) = (cpu.temp::<T>(n * d), cpu.temp::<T>(n * d));
        for (i, (last, h0)) in last.chunks_exact_mut(d).zip(h0.chunks_exact(d)).enumerate() {
            let s = i * t * d..(i + 1) * t * d;
            starts[..d].copy_from_slice(h0);
            forward(self.chunk, d, &a[s.clone()], &b[s.clone()], &mut starts, &mut prods, &mut h[s.clone()]);
            last.copy_from_slice(&h[s.end - d..s.end]);
        }
    }

    fn backward_cpu<T: Real>(&self, cpu: &Cpu, x: In, y: &[Value], dy: &[Option<Tensor>], dx: &mut [Grad]) {
        let ([ga, gb, gh0], [dh, dlast]) = (dx, dy) else { return };
        let (_, t, d) = x[0].shape().split(1);
        let (zh, zl) = (zeros::<T>(cpu, dh, &y[0]), zeros::<T>(cpu, dlast, &y[1]));
        let (dh, dlast) = (cotangent(dh, &zh), cotangent(dlast, &zl));
        let [da, db, dh0] = [(ga, 0), (gb, 1), (gh0, 2)].map(|(d, i)| d.slot_or_scratch::<[T]>(cpu, &x[i]));
        let (a, h0, h) = (x[0].host::<T>(), x[2].host::<T>(), y[0].host::<T>());
        if t == 0 || d == 0 {
            return put_all(dh0.0, dlast, dh0.1);
        }
        let n = t.div_ceil(self.chunk);
        let (mut ends, mut prods) = (cpu.temp::<T>(n * d), cpu.temp::<T>(n * d));
        for i in 0..h0.len() / d {
            let (s, r) = (i * t * d..(i + 1) * t * d, i * d..(i + 1) * d);
            ends[(n - 1) * d..].copy_from_slice(&dlast[r.clone()]);
            let mut out = Rows { da: (&mut da.0[s.clone()], da.1), db: (&mut db.0[s.clone()], db.1) };
            let inputs = (&a[s.clone()], &h[s.clone()], &h0[r.clone()], &dh[s.clone()]);
            backward(self.chunk, d, inputs, &mut ends, &mut prods, &mut out);
            put_all(&mut dh0.0[r.clone()], &ends[..d], dh0.1);
        }
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
