//! The kernel of [`LruScan`].
//!
//! The CPU goes through the steps one after another, the state in registers. A device runs slices side by side: λ does
//! not change in time, so the map of c steps is known beforehand, end = λᶜ start + Σ_j λ^{c-1-j} x_j.
//!
//! Gradients are dRe + i dIm. With G_t = λ̄ g_t the gradient that step t passes to step t − 1: g_t = dh_t + G_{t+1};
//! dx_t = g_t; dλ = Σ_t g_t conj(h_{t-1}); dh_0 = G_1.

use crate::{
    args,
    autograd::{Grad, In, Kernel, Value, zeroed},
    cuda::Module,
    kernels::{
        lanes::avx512_here,
        linear,
        scan::{SLICES, at, by_device, by_lanes, cotangent, groups, put, sequences, sequences_back, zeros},
    },
    ops::lru_scan::LruScan,
    tensor::{Cpu, Cuda, Real, Tensor},
};

/// A complex array: real and imaginary part.
type C<'a, T> = (&'a [T], &'a [T]);

type CMut<'a, T> = (&'a mut [T], &'a mut [T]);

/// The recurrence over all rows, from `state` on, which moves on.
#[inline(always)]
fn run<T: Real, const W: usize>(i: usize, d: usize, lambda: C<T>, x: &[T], state: &mut CMut<T>, h: &mut [T]) {
    let (lr, li): ([T; W], [T; W]) = (at(lambda.0, 0, d, i), at(lambda.1, 0, d, i));
    let (mut re, mut im): ([T; W], [T; W]) = (at(state.0, 0, d, i), at(state.1, 0, d, i));
    for t in 0..x.len() / (2 * d) {
        let (xr, xi): ([T; W], [T; W]) = (at(x, 2 * t, d, i), at(x, 2 * t + 1, d, i));
        for l in 0..W {
            (re[l], im[l]) = (lr[l] * re[l] - li[l] * im[l] + xr[l], lr[l] * im[l] + li[l] * re[l] + xi[l]);
        }
        put(h, 2 * t, d, i, re, false);
        put(h, 2 * t + 1, d, i, im, false);
    }
    put(state.0, 0, d, i, re, false);
    put(state.1, 0, d, i, im, false);
}

/// The results of the backward pass: dλ, added to, and the rows of dx, with whether to add.
struct Out<'a, T> {
    dlambda: CMut<'a, T>,
    dx: &'a mut [T],
    acc: bool,
}

/// The recurrence backwards: `g` comes in as G from behind the rows and leaves as G of the first; `before` is the state
/// before the rows.
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

/// One sequence.
#[versions::versions]
fn forward<T: Real>(lambda: C<T>, x: &[T], state: &mut CMut<T>, h: &mut [T]) {
    let d = lambda.0.len();
    by_lanes!(wide d, run::<T>(lambda, x, state, h));
}

/// One sequence; `g` comes in as the cotangent of the last state and leaves as dh0.
#[versions::versions]
fn backward<T: Real>(lambda: C<T>, (h, h0, dh): (&[T], C<T>, &[T]), g: &mut CMut<T>, out: &mut Out<T>) {
    let d = lambda.0.len();
    // Sixty-four channels take three quarters of the registers of AVX-512, and three times those of AVX2.
    if avx512_here!().is_some() {
        by_lanes!(wide d, run_back::<T>(lambda, h, h0, dh, g, out));
    } else {
        by_lanes!(d, run_back::<T>(lambda, h, h0, dh, g, out));
    }
}

impl LruScan {
    fn forward_cpu<T: Real>(&self, _: &Cpu, x: In, y: &mut [Value]) {
        let [h, last_r, last_i] = y else { return };
        let (t, d) = (x[2].shape().at(1), x[0].len());
        let (lambda, h0) = ((x[0].host(), x[1].host()), [x[3].host::<T>(), x[4].host()]);
        let (v, h) = (x[2].host(), h.host_mut());
        sequences(d, h0, [last_r.host_mut(), last_i.host_mut()], |i, [re, im]| {
            let s = 2 * i * t * d..2 * (i + 1) * t * d;
            forward(lambda, &v[s.clone()], &mut (re, im), &mut h[s]);
        });
    }

    fn backward_cpu<T: Real>(&self, cpu: &Cpu, x: In, y: &[Value], dy: &[Option<Tensor>], dx: &mut [Grad]) {
        let ([glr, gli, gx, ghr, ghi], [dh, last_r, last_i]) = (dx, dy) else { return };
        let (t, d) = (x[2].shape().at(1), x[0].len());
        let z = zeros::<T>(cpu, dh, &y[0]);
        let (lambda, h0, h) = ((x[0].host(), x[1].host()), [x[3].host(), x[4].host()], y[0].host());
        let dh = cotangent(dh, &z);
        let (dlr, dli) = (zeroed(glr.slot_or_scratch::<[T]>(cpu, &x[0])), zeroed(gli.slot_or_scratch(cpu, &x[1])));
        let (dv, acc) = gx.slot_or_scratch::<[T]>(cpu, &x[2]);
        sequences_back(cpu, (d, &x[3]), [last_r, last_i], [ghr, ghi], |i, [re, im]| {
            let (s, r) = (2 * i * t * d..2 * (i + 1) * t * d, i * d..(i + 1) * d);
            let mut out = Out { dlambda: (&mut *dlr, &mut *dli), dx: &mut dv[s.clone()], acc };
            let h0 = (&h0[0][r.clone()], &h0[1][r]);
            backward(lambda, (&h[s.clone()], h0, &dh[s]), &mut (re, im), &mut out);
        });
    }
}

static MODULE: Module =
    Module::new("kernels/lru_scan.cu", &[include_str!("scan/groups.cuh"), include_str!("lru_scan.cu")]);

impl LruScan {
    fn forward_cuda(&self, cu: &Cuda, x: In, y: &mut [Value]) {
        let [h, last_r, last_i] = y else { return };
        let ((n, t, _), d) = (x[2].shape().split(1), x[0].len());
        let args = args![&x[0], &x[1], &x[2], &x[3], &x[4], h, last_r, last_i, n, t, d];
        cu.launch(&MODULE, "lru_run", x[2].dtype(), groups(n * d), args);
    }

    fn backward_cuda(&self, cu: &Cuda, x: In, y: &[Value], dy: &[Option<Tensor>], dx: &mut [Grad]) {
        let ([glr, gli, gx, ghr, ghi], [dh, dlr, dli]) = (dx, dy) else { return };
        let ((n, t, _), d, dtype) = (x[2].shape().split(1), x[0].len(), x[2].dtype());
        let rows = n * SLICES;
        let mut sums = (glr.wanted() || gli.wanted()).then(|| cu.temp(dtype.real(), 2 * rows * d));
        let ((dv, acc), (d0r, acc_0r), (d0i, acc_0i)) = (gx.target(), ghr.target(), ghi.target());
        #[rustfmt::skip]
        let args = args![
            &x[0], &x[1], &y[0], &x[3], &x[4], dh, dlr, dli, dv, acc, d0r, acc_0r, d0i, acc_0i, sums.as_mut(), n, t, d
        ];
        cu.launch(&MODULE, "lru_run_back", dtype, groups(n * d), args);
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
