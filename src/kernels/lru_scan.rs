//! The kernel of [`LruScan`].
//!
//! λ does not change in time, so the map of a chunk of c steps from its start to its end is known beforehand:
//! end = λᶜ start + Σ_j λ^{c-1-j} x_j. The powers are tabulated in double precision, where c roundings do not show.
//!
//! Gradients are dRe + i dIm. With G_t = λ̄ g_t the gradient that step t passes to step t − 1: g_t = dh_t + G_{t+1};
//! dx_t = g_t; dλ = Σ_t g_t conj(h_{t-1}); dh_0 = G_1.

use crate::{
    args,
    autograd::{Grad, In, Kernel, Value, zeroed},
    cuda::{Cuda, Module},
    kernels::{
        lanes::avx512_here,
        linear,
        scan::{Pieces, at, by_device, by_lanes, chunk_of, cotangent, put, put_all, zeros},
    },
    ops::lru_scan::LruScan,
    tensor::{Cpu, Real, Shape, Tensor},
};

/// A complex array: real and imaginary part.
type C<'a, T> = (&'a [T], &'a [T]);

type CMut<'a, T> = (&'a mut [T], &'a mut [T]);

/// Rows λ⁰ … λᶜ of a table, [c + 1, D] twice.
fn powers<T: Real>(lambda: C<T>, c: usize, table: CMut<T>) {
    let d = lambda.0.len();
    for i in 0..d {
        let (lr, li) = (lambda.0[i].to_f64(), lambda.1[i].to_f64());
        let (mut re, mut im) = (1.0, 0.0);
        for k in 0..=c {
            (table.0[k * d + i], table.1[k * d + i]) = (T::of(re), T::of(im));
            (re, im) = (re * lr - im * li, re * li + im * lr);
        }
    }
}

/// Phase 1: Σ_t w_t x_t over some rows, where w_t is row t of a table of powers, from its first row forwards (`back`,
/// conjugated) or from its last row backwards (forward in time, the last step has the lowest power).
#[inline(always)]
fn weighted<T: Real, const W: usize>(i: usize, d: usize, back: bool, w: C<T>, x: &[T], end: &mut CMut<T>) {
    let (mut re, mut im) = ([T::ZERO; W], [T::ZERO; W]);
    let n = x.len() / (2 * d);
    for t in 0..n {
        let (xr, xi): ([T; W], [T; W]) = (at(x, 2 * t, d, i), at(x, 2 * t + 1, d, i));
        let k = if back { t + 1 } else { n - 1 - t };
        let (wr, wi): ([T; W], [T; W]) = (at(w.0, k, d, i), at(w.1, k, d, i));
        for l in 0..W {
            let wi = if back { -wi[l] } else { wi[l] };
            re[l] += wr[l] * xr[l] - wi * xi[l];
            im[l] += wr[l] * xi[l] + wi * xr[l];
        }
    }
    put(end.0, 0, d, i, re, false);
    put(end.1, 0, d, i, im, false);
}

/// Phase 3 forward: the recurrence from `start` over some rows.
#[inline(always)]
fn run<T: Real, const W: usize>(i: usize, d: usize, lambda: C<T>, x: &[T], start: C<T>, h: &mut [T]) {
    let (lr, li): ([T; W], [T; W]) = (at(lambda.0, 0, d, i), at(lambda.1, 0, d, i));
    let (mut re, mut im): ([T; W], [T; W]) = (at(start.0, 0, d, i), at(start.1, 0, d, i));
    for t in 0..x.len() / (2 * d) {
        let (xr, xi): ([T; W], [T; W]) = (at(x, 2 * t, d, i), at(x, 2 * t + 1, d, i));
        for l in 0..W {
            (re[l], im[l]) = (lr[l] * re[l] - li[l] * im[l] + xr[l], lr[l] * im[l] + li[l] * re[l] + xi[l]);
        }
        put(h, 2 * t, d, i, re, false);
        put(h, 2 * t + 1, d, i, im, false);
    }
}

/// What phase 3 writes: dλ, added to, and the rows of dx, with whether to add.
struct Out<'a, T> {
    dlambda: CMut<'a, T>,
    dx: &'a mut [T],
    acc: bool,
}

/// Phase 3 backward: `g` comes in as G from behind the rows and leaves as G of the first; `before` is the state before
/// the rows.
#[inline(always)]
fn run_back<T: Real, const W: usize>(
    i: usize,
    d: usize,
    lambda: C<T>,
    h: &[T],
    before: C<T>,
    dh: &[T],
    g: &mut CMut<T>,
    out: &mut Out<T>,
) {
    let (lr, li): ([T; W], [T; W]) = (at(lambda.0, 0, d, i), at(lambda.1, 0, d, i));
    let (mut re, mut im): ([T; W], [T; W]) = (at(g.0, 0, d, i), at(g.1, 0, d, i));
    let (mut dr, mut di) = ([T::ZERO; W], [T::ZERO; W]);
    for t in (0..dh.len() / (2 * d)).rev() {
        let (gr, gi): ([T; W], [T; W]) = (at(dh, 2 * t, d, i), at(dh, 2 * t + 1, d, i));
        let (hr, hi): ([T; W], [T; W]) = match t {
            0 => (at(before.0, 0, d, i), at(before.1, 0, d, i)),
            _ => (at(h, 2 * t - 2, d, i), at(h, 2 * t - 1, d, i)),
        };
        for l in 0..W {
            re[l] += gr[l];
            im[l] += gi[l];
            dr[l] += re[l] * hr[l] + im[l] * hi[l];
            di[l] += im[l] * hr[l] - re[l] * hi[l];
        }
        put(out.dx, 2 * t, d, i, re, out.acc);
        put(out.dx, 2 * t + 1, d, i, im, out.acc);
        for l in 0..W {
            (re[l], im[l]) = (lr[l] * re[l] + li[l] * im[l], lr[l] * im[l] - li[l] * re[l]);
        }
    }
    put(g.0, 0, d, i, re, false);
    put(g.1, 0, d, i, im, false);
    put(out.dlambda.0, 0, d, i, dr, true);
    put(out.dlambda.1, 0, d, i, di, true);
}

/// end += w start, or w̄ start if `back`.
#[inline(always)]
fn carry<T: Real>(back: bool, w: C<T>, start: C<T>, end: CMut<T>) {
    for i in 0..start.0.len() {
        let (wr, wi) = (w.0[i], if back { -w.1[i] } else { w.1[i] });
        let (sr, si) = (start.0[i], start.1[i]);
        end.0[i] += wr * sr - wi * si;
        end.1[i] += wr * si + wi * sr;
    }
}

/// Part of both halves.
fn cut<'a, T>(x: C<'a, T>, r: &std::ops::Range<usize>) -> C<'a, T> {
    (&x.0[r.clone()], &x.1[r.clone()])
}

fn cut_mut<'a, T>(x: &'a mut CMut<T>, r: &std::ops::Range<usize>) -> CMut<'a, T> {
    (&mut x.0[r.clone()], &mut x.1[r.clone()])
}

/// One sequence; `starts` has a row for every chunk, the first given.
#[versions::versions]
fn forward<T: Real>(chunk: usize, lambda: C<T>, table: C<T>, x: &[T], starts: &mut CMut<T>, h: &mut [T]) {
    let (d, len) = (lambda.0.len(), x.len());
    let n = starts.0.len() / d;
    for k in 1..n {
        let x = &x[chunk_of(k - 1, chunk, 2 * d, len)];
        by_lanes!(wide d, weighted::<T>(false, table, x, &mut cut_mut(starts, &(k * d..(k + 1) * d))));
    }
    for k in 1..n {
        let (s0, s1) = (starts.0[(k - 1) * d..].split_at_mut(d), starts.1[(k - 1) * d..].split_at_mut(d));
        carry(false, cut(table, &(chunk * d..(chunk + 1) * d)), (&*s0.0, &*s1.0), (s0.1, s1.1));
    }
    for k in 0..n {
        let c = chunk_of(k, chunk, 2 * d, len);
        let start = (&starts.0[k * d..], &starts.1[k * d..]);
        by_lanes!(wide d, run::<T>(lambda, &x[c.clone()], start, &mut h[c.clone()]));
    }
}

/// One sequence; `ends` has G from behind every chunk, the last given; afterwards its first row is dh0.
#[versions::versions]
fn backward<T: Real>(
    chunk: usize,
    (lambda, table): (C<T>, C<T>),
    (h, h0, dh): (&[T], C<T>, &[T]),
    ends: &mut CMut<T>,
    out: &mut Out<T>,
) {
    let (d, len) = (lambda.0.len(), h.len());
    let n = ends.0.len() / d;
    for k in 1..n {
        let dh = &dh[chunk_of(k, chunk, 2 * d, len)];
        by_lanes!(wide d, weighted::<T>(true, table, dh, &mut cut_mut(ends, &((k - 1) * d..k * d))));
    }
    for k in (1..n).rev() {
        let (e0, e1) = (ends.0[(k - 1) * d..].split_at_mut(d), ends.1[(k - 1) * d..].split_at_mut(d));
        let steps = chunk_of(k, chunk, 2 * d, len).len() / 2;
        carry(true, cut(table, &(steps..steps + d)), (&e0.1[..d], &e1.1[..d]), (e0.0, e1.0));
    }
    for k in 0..n {
        let c = chunk_of(k, chunk, 2 * d, len);
        let before = if k == 0 { h0 } else { h[c.start - 2 * d..c.start].split_at(d) };
        let dlambda = (&mut *out.dlambda.0, &mut *out.dlambda.1);
        let mut out = Out { dlambda, dx: &mut out.dx[c.clone()], acc: out.acc };
        let mut end = cut_mut(ends, &(k * d..(k + 1) * d));
        // Sixty-four channels take three quarters of the registers of AVX-512, and three times those of AVX2.
        if avx512_here!().is_some() {
            by_lanes!(wide d, run_back::<T>(lambda, &h[c.clone()], before, &dh[c.clone()], &mut end, &mut out));
        } else {
            by_lanes!(d, run_back::<T>(lambda, &h[c.clone()], before, &dh[c.clone()], &mut end, &mut out));
        }
    }
}

impl LruScan {
    /// The table of powers, empty if there is only one chunk.
    fn table<'a, T: Real>(&self, cpu: &'a Cpu, lambda: C<T>, n: usize) -> [crate::tensor::Temp<'a, T>; 2] {
        let rows = if n > 1 { self.chunk + 1 } else { 0 };
        let mut table = [cpu.temp(rows * lambda.0.len()), cpu.temp(rows * lambda.0.len())];
        if let ([re, im], true) = (&mut table, n > 1) {
            powers(lambda, self.chunk, (re, im));
        }
        table
    }

    fn forward_cpu<T: Real>(&self, cpu: &Cpu, x: In, y: &mut [Value]) {
        let [h, last_r, last_i] = y else { return };
        let (t, d) = (x[2].shape().at(1), x[0].len());
        let [lambda, h0] = [0, 3].map(|i| (x[i].host::<T>(), x[i + 1].host::<T>()));
        let (v, h) = (x[2].host::<T>(), h.host_mut::<T>());
        let last = (last_r.host_mut::<T>(), last_i.host_mut::<T>());
        if t == 0 || d == 0 {
            last.0.copy_from_slice(h0.0);
            return last.1.copy_from_slice(h0.1);
        }
        let n = t.div_ceil(self.chunk);
        let table = self.table(cpu, lambda, n);
        let (mut sr, mut si) = (cpu.temp::<T>(n * d), cpu.temp::<T>(n * d));
        for i in 0..h0.0.len() / d {
            let (s, r) = (2 * i * t * d..2 * (i + 1) * t * d, i * d..(i + 1) * d);
            sr[..d].copy_from_slice(&h0.0[r.clone()]);
            si[..d].copy_from_slice(&h0.1[r.clone()]);
            let mut starts = (&mut sr[..], &mut si[..]);
            forward(self.chunk, lambda, (&table[0], &table[1]), &v[s.clone()], &mut starts, &mut h[s.clone()]);
            last.0[r.clone()].copy_from_slice(&h[s.end - 2 * d..s.end - d]);
            last.1[r].copy_from_slice(&h[s.end - d..s.end]);
        }
    }

    fn backward_cpu<T: Real>(&self, cpu: &Cpu, x: In, y: &[Value], dy: &[Option<Tensor>], dx: &mut [Grad]) {
        let ([glr, gli, gx, ghr, ghi], [dh, dlr, dli]) = (dx, dy) else { return };
        let (t, d) = (x[2].shape().at(1), x[0].len());
        let z = zeros::<T>(cpu, dh, &y[0]);
        let zl = cpu.zeros::<T>(if dlr.is_some() && dli.is_some() { 0 } else { y[1].len() });
        let (dh, dlast) = (cotangent(dh, &z), (cotangent(dlr, &zl), cotangent(dli, &zl)));
        let dlambda = (zeroed(glr.slot_or_scratch::<[T]>(cpu, &x[0])), zeroed(gli.slot_or_scratch::<[T]>(cpu, &x[1])));
        let (dv, acc) = gx.slot_or_scratch::<[T]>(cpu, &x[2]);
        let (dh0r, dh0i) = (ghr.slot_or_scratch::<[T]>(cpu, &x[3]), ghi.slot_or_scratch::<[T]>(cpu, &x[4]));
        if t == 0 || d == 0 {
            put_all(dh0r.0, dlast.0, dh0r.1);
            return put_all(dh0i.0, dlast.1, dh0i.1);
        }
        let [lambda, h0] = [0, 3].map(|i| (x[i].host::<T>(), x[i + 1].host::<T>()));
        let h = y[0].host::<T>();
        let n = t.div_ceil(self.chunk);
        let table = self.table(cpu, lambda, n);
        let (mut er, mut ei) = (cpu.temp::<T>(n * d), cpu.temp::<T>(n * d));
        let out = Out { dlambda, dx: dv, acc };
        for i in 0..h0.0.len() / d {
            let (s, r) = (2 * i * t * d..2 * (i + 1) * t * d, i * d..(i + 1) * d);
            er[(n - 1) * d..].copy_from_slice(&dlast.0[r.clone()]);
            ei[(n - 1) * d..].copy_from_slice(&dlast.1[r.clone()]);
            let dlambda = (&mut *out.dlambda.0, &mut *out.dlambda.1);
            let mut out = Out { dlambda, dx: &mut out.dx[s.clone()], acc };
            let powers = (&table[0][..], &table[1][..]);
            let mut ends = (&mut er[..], &mut ei[..]);
            let states = (&h[s.clone()], cut(h0, &r), &dh[s]);
            backward(self.chunk, (lambda, powers), states, &mut ends, &mut out);
            put_all(&mut dh0r.0[r.clone()], &er[..d], dh0r.1);
            put_all(&mut dh0i.0[r.clone()], &ei[..d], dh0i.1);
        }
    }
}

/// The shape [B, T, D] of one part of x.
fn one_part(x: In) -> Shape {
    x[2].shape().with(2, x[0].len())
}

static MODULE: Module = Module::new("kernels/lru_scan.cu", &[include_str!("lru_scan.cu")]);

impl LruScan {
    fn forward_cuda(&self, cu: &Cuda, x: In, y: &mut [Value]) {
        let [h, last_r, last_i] = y else { return };
        let (p, dtype) = (Pieces::of(cu, one_part(x), self.chunk), x[2].dtype());
        let Pieces { n, pieces, t, d, steps } = p;
        let (mut sr, mut si) = (p.scratch(cu, dtype), p.scratch(cu, dtype));
        if let (Some(sr), Some(si)) = (&mut sr, &mut si) {
            let args = args![&x[0], &x[1], &x[2], &mut *sr, &mut *si, n, pieces, t, d, steps];
            cu.launch(&MODULE, "lru_total", dtype, p.launch(), args);
            let args = args![&x[0], &x[1], &x[3], &x[4], sr, si, n, pieces, t, d, steps, false];
            cu.launch(&MODULE, "lru_carry", dtype, p.across(), args);
        }
        let (sr, si) = (sr.as_ref(), si.as_ref());
        let args = args![&x[0], &x[1], &x[2], &x[3], &x[4], sr, si, h, last_r, last_i, n, pieces, t, d, steps];
        cu.launch(&MODULE, "lru_run", dtype, p.launch(), args);
    }

    fn backward_cuda(&self, cu: &Cuda, x: In, y: &[Value], dy: &[Option<Tensor>], dx: &mut [Grad]) {
        let ([glr, gli, gx, ghr, ghi], [dh, dlr, dli]) = (dx, dy) else { return };
        let (p, dtype) = (Pieces::of(cu, one_part(x), self.chunk), x[2].dtype());
        let Pieces { n, pieces, t, d, steps } = p;
        let (mut er, mut ei) = (p.scratch(cu, dtype), p.scratch(cu, dtype));
        if let (Some(er), Some(ei)) = (&mut er, &mut ei) {
            let args = args![&x[0], &x[1], dh, &mut *er, &mut *ei, n, pieces, t, d, steps];
            cu.launch(&MODULE, "lru_total_back", dtype, p.launch(), args);
            let args = args![&x[0], &x[1], dlr, dli, er, ei, n, pieces, t, d, steps, true];
            cu.launch(&MODULE, "lru_carry", dtype, p.across(), args);
        }
        let rows = n * pieces;
        let mut sums = (glr.wanted() || gli.wanted()).then(|| cu.temp(dtype.real(), 2 * rows * d));
        let (er, ei) = (er.as_ref(), ei.as_ref());
        let ((dv, acc), (d0r, acc_0r), (d0i, acc_0i)) = (gx.target(), ghr.target(), ghi.target());
        #[rustfmt::skip]
        let args = args![
            &x[0], &x[1], &y[0], &x[3], &x[4], dh, dlr, dli, er, ei, dv, acc, d0r, acc_0r, d0i, acc_0i,
            sums.as_mut(), n, pieces, t, d, steps
        ];
        cu.launch(&MODULE, "lru_run_back", dtype, p.launch(), args);
        let Some(sums) = sums else { return };
        for (i, grad) in [glr, gli].into_iter().enumerate() {
            if let Some((to, acc)) = grad.slot::<Tensor>() {
                linear::total_cuda(cu, &sums.window(i * rows * d, [rows, d]), rows, to, acc);
            }
        }
    }
}

impl Kernel for LruScan {
    by_device!();
}
