//! The kernel of [`QuasiLstm`].
//!
//! c is the linear scan ([`scan`](super::scan)) of f and i z. Backwards in time, with G the gradient that step t + 1
//! passes on:
//!
//! ```text
//! dc = dh o (1 − tanh² c_t) + G;  dx_f = dc c_{t-1} f (1 − f);  dx_i = dc z i (1 − i);  dx_z = dc i (1 − z²);
//! dx_o = dh tanh c_t o (1 − o);  G = f dc to step t − 1
//! ```
//!
//! The CPU goes through the steps one after another, with no chunks, and saves the factors of dc and dh ([`cell`]). A
//! device saves c alone: computing the gates again is less work than moving them.

use crate::{
    args,
    autograd::{Grad, In, Kernel, Outs, Value},
    cuda::Module,
    kernels::{
        lstm::cell::{SAVED, back, read, write},
        math::Math,
        scan::{at, by_device, by_lanes, cotangent, groups, put, sequences, sequences_back, zeros},
    },
    ops::quasi_lstm::QuasiLstm,
    tensor::{Cpu, Cuda, Shape, Tensor},
    with_width,
};
use std::ops::Range;

/// Steps so few that their rows stay in the fastest cache while all runs of channels pass over them.
fn tile(d: usize) -> usize {
    (512 / d).max(1)
}

/// The first half for W channels of the steps `r`: from the pre-activations x [T, 4, D] to the saved values [T, 6, D],
/// with c in the place of the factor of dõ. c [D] comes in as before the steps and leaves as after the last.
#[inline(always)]
fn write_cells<T: Math, const W: usize>(
    i: usize,
    d: usize,
    r: Range<usize>,
    bias: T,
    x: &[T],
    saved: &mut [T],
    c: &mut [T],
) {
    let mut state: [T; W] = at(c, 0, d, i);
    for t in r {
        let (x, saved) = (&x[4 * t * d..][..4 * d], &mut saved[SAVED * t * d..][..SAVED * d]);
        let mut f: [T; W] = at(x, 0, d, i);
        for f in &mut f {
            *f += bias;
        }
        let ([to_i, to_f, to_z, keep], c) = write([at(x, 1, d, i), f, at(x, 2, d, i)], state);
        put(saved, 0, d, i, to_i, false);
        put(saved, 1, d, i, to_f, false);
        put(saved, 2, d, i, to_z, false);
        put(saved, 3, d, i, c, false);
        put(saved, 4, d, i, keep, false);
        state = c;
    }
    put(c, 0, d, i, state, false);
}

/// The second half: the other saved values, and h [T, D].
#[inline(always)]
fn read_cells<T: Math, const W: usize>(i: usize, d: usize, r: Range<usize>, x: &[T], saved: &mut [T], h: &mut [T]) {
    for t in r {
        let saved = &mut saved[SAVED * t * d..][..SAVED * d];
        let ([to_o, through_u], y) = read::<T, W>(at(x, 4 * t + 3, d, i), at(saved, 3, d, i));
        put(saved, 3, d, i, to_o, false);
        put(saved, 5, d, i, through_u, false);
        put(h, t, d, i, y, false);
    }
}

/// One sequence.
#[versions::versions]
fn forward<T: Math>(d: usize, bias: T, x: &[T], [saved, h, c]: [&mut [T]; 3]) {
    let steps = h.len() / d;
    for t in (0..steps).step_by(tile(d)) {
        let r = t..(t + tile(d)).min(steps);
        with_width!(d => {
            by_lanes!(d, write_cells::<T>(r.clone(), bias, x, &mut *saved, &mut *c));
            by_lanes!(d, read_cells::<T>(r.clone(), x, &mut *saved, &mut *h));
        });
    }
}

/// W channels of the steps `r` backwards, from the saved values and dh [T, D] to the gradients of the pre-activations
/// [T, 4, D]. `behind` [D] comes in as G from behind the steps and leaves as that of the first.
#[inline(always)]
fn run_back<T: Math, const W: usize>(
    i: usize,
    d: usize,
    r: Range<usize>,
    [saved, dh]: [&[T]; 2],
    behind: &mut [T],
    (dx, acc): (&mut [T], bool),
) {
    let mut state: [T; W] = at(behind, 0, d, i);
    for t in r.rev() {
        let saved = &saved[SAVED * t * d..][..SAVED * d];
        let mut of = [[T::ZERO; W]; SAVED];
        for (k, of) in of.iter_mut().enumerate() {
            *of = at(saved, k, d, i);
        }
        let ([di, df, dz, d_o], next) = back(of, at(dh, t, d, i), state);
        let dx = &mut dx[4 * t * d..][..4 * d];
        put(dx, 0, d, i, df, acc);
        put(dx, 1, d, i, di, acc);
        put(dx, 2, d, i, dz, acc);
        put(dx, 3, d, i, d_o, acc);
        state = next;
    }
    put(behind, 0, d, i, state, false);
}

/// One sequence.
#[versions::versions]
fn backward<T: Math>(d: usize, inputs: [&[T]; 2], behind: &mut [T], (dx, acc): (&mut [T], bool)) {
    let steps = inputs[1].len() / d;
    for t in (0..steps).step_by(tile(d)).rev() {
        let r = t..(t + tile(d)).min(steps);
        with_width!(d => by_lanes!(d, run_back::<T>(r.clone(), inputs, &mut *behind, (&mut *dx, acc))));
    }
}

impl QuasiLstm {
    fn forward_cpu<T: Math>(&self, _: &Cpu, x: In, y: &mut [Value]) {
        let [h, last, saved] = y else { return };
        let (_, t, d) = h.shape().split(1);
        let [h, last, saved] = [h, last, saved].map(|y| y.host_mut::<T>());
        let (v, bias, row) = (x[0].host::<T>(), T::of(self.forget_bias), t * d);
        sequences(d, [x[1].host()], [last], |i, [c]| {
            let part = |n: usize| n * i * row..n * (i + 1) * row;
            forward(d, bias, &v[part(4)], [&mut saved[part(SAVED)], &mut h[part(1)], c]);
        });
    }

    fn backward_cpu<T: Math>(&self, cpu: &Cpu, x: In, y: &[Value], dy: &[Option<Tensor>], dx: &mut [Grad]) {
        let ([gx, gc0, ..], [dh, dlast, ..]) = (dx, dy) else { return };
        let (_, t, d) = y[0].shape().split(1);
        let z = zeros::<T>(cpu, dh, &y[0]);
        let (saved, dh, row) = (y[2].host::<T>(), cotangent(dh, &z), t * d);
        let (dx, acc) = gx.slot_or_scratch::<[T]>(cpu, &x[0]);
        sequences_back(cpu, (d, &x[1]), [dlast], [gc0], |i, [g]| {
            let part = |n: usize| n * i * row..n * (i + 1) * row;
            backward(d, [&saved[part(SAVED)], &dh[part(1)]], g, (&mut dx[part(4)], acc));
        });
    }
}

static MODULE: Module =
    Module::new("kernels/quasi_lstm.cu", &[include_str!("scan/groups.cuh"), include_str!("quasi_lstm.cu")]);

impl QuasiLstm {
    fn forward_cuda(&self, cu: &Cuda, x: In, y: &mut [Value]) {
        let [h, last, c] = y else { return };
        let ((n, t, d), dtype) = (h.shape().split(1), x[0].dtype());
        let args = args![&x[0], &x[1], c, h, last, n, t, d, self.forget_bias];
        cu.launch(&MODULE, "quasi_run", dtype, groups(n * d), args);
    }

    fn backward_cuda(&self, cu: &Cuda, x: In, y: &[Value], dy: &[Option<Tensor>], dx: &mut [Grad]) {
        let ([gx, gc0, ..], [dh, dlast, ..]) = (dx, dy) else { return };
        let (n, t, d) = y[0].shape().split(1);
        let ((d4, acc), (dc0, acc_0)) = (gx.target(), gc0.target());
        let args = args![&x[0], &y[2], &x[1], dh, dlast, d4, acc, dc0, acc_0, n, t, d, self.forget_bias];
        cu.launch(&MODULE, "quasi_run_back", x[0].dtype(), groups(n * d), args);
    }
}

impl Kernel for QuasiLstm {
    fn saves(&self, x: In) -> Outs {
        let (b, t, d4) = x[0].shape().split(1);
        match x[0].gpu() {
            Some(_) => Shape::from([b, t, d4 / 4]).into(),
            None => Shape::from([b, t, SAVED, d4 / 4]).into(),
        }
    }

    by_device!();
}
