//! Steps of wide LSTMs: all sequences at one step together, for one product with W_hh.

use crate::{
    kernels::{
        gemm::Packed,
        lstm::{
            Size,
            cell::{SAVED, back, read, write},
        },
        math::Math,
        matmul::Mat,
        recurrent,
        scan::{at, by_lanes, fetch, put},
    },
    tensor::Cpu,
};

/// W channels of the sum of a gate from x [4D] and z = W_hh h_{t-1} [4D].
#[inline(always)]
fn pre_activation<T: Math, const W: usize>(gate: usize, d: usize, i: usize, [x, z]: [&[T]; 2]) -> [T; W] {
    let (mut x, z): ([T; W], [T; W]) = (at(x, gate, d, i), at(z, gate, d, i));
    for l in 0..W {
        x[l] += z[l];
    }
    x
}

/// The first half of a step of W cells: the saved values [6, D], and from c [D] of the step before to that of the step.
#[inline(always)]
fn write_cells<T: Math, const W: usize>(i: usize, d: usize, from: [&[T]; 2], saved: &mut [T], c: &mut [T]) {
    let z = [pre_activation(0, d, i, from), pre_activation(1, d, i, from), pre_activation(2, d, i, from)];
    let ([to_i, to_f, to_g, keep], next) = write::<T, W>(z, at(c, 0, d, i));
    put(saved, 0, d, i, to_i, false);
    put(saved, 1, d, i, to_f, false);
    put(saved, 2, d, i, to_g, false);
    put(saved, 4, d, i, keep, false);
    put(c, 0, d, i, next, false);
}

/// The second half: the other saved values, and h [D].
#[inline(always)]
fn read_cells<T: Math, const W: usize>(i: usize, d: usize, from: [&[T]; 2], c: &[T], saved: &mut [T], h: &mut [T]) {
    let ([to_o, through_u], y) = read::<T, W>(pre_activation(3, d, i, from), at(c, 0, d, i));
    put(saved, 3, d, i, to_o, false);
    put(saved, 5, d, i, through_u, false);
    put(h, 0, d, i, y, false);
}

/// Step t of all sequences: from x [B, T, 4D] and z [B, 4D] to rows of the saved values and of h [B, T, ..]; h and c
/// [B, D] move on.
#[versions::versions]
fn step<T: Math>(s: Size, t: usize, [x, z]: [&[T]; 2], [saved, h]: [&mut [T]; 2], [h_state, c_state]: [&mut [T]; 2]) {
    let d = s.d;
    for b in 0..s.b {
        let (row4, row, own) = (s.row(b, t, 4 * d), s.row(b, t, d), s.state(b, d));
        if b + 1 < s.b {
            for x in [&x[s.row(b + 1, t, 4 * d)], &saved[s.row(b + 1, t, SAVED * d)], &h[s.row(b + 1, t, d)]] {
                fetch(x);
            }
        }
        let (from, saved) = ([&x[row4], &z[s.state(b, 4 * d)]], &mut saved[s.row(b, t, SAVED * d)]);
        let (c, h_state) = (&mut c_state[own.clone()], &mut h_state[own]);
        by_lanes!(d, write_cells::<T>(from, &mut *saved, &mut *c));
        by_lanes!(d, read_cells::<T>(from, &*c, &mut *saved, &mut *h_state));
        h[row].copy_from_slice(h_state);
    }
}

/// From x [B, T, 4D] and W_hh [4D, D] to the saved values [B, T, 6, D], and h [B, T, D]; h and c [B, D] come in as
/// before the first step and leave as after the last.
pub(super) fn forward<T: Math>(
    cpu: &Cpu,
    s: Size,
    [x, w]: [&[T]; 2],
    [saved, h]: [&mut [T]; 2],
    [h_state, c_state]: [&mut [T]; 2],
) {
    let w_t = Packed::new(cpu, s.b, (w, Mat::new(4 * s.d, s.d, s.d).t()));
    recurrent::forward(cpu, s.t, &[w_t], h_state, |t, z, h_state| {
        step(s, t, [x, z], [&mut *saved, &mut *h], [h_state, &mut *c_state]);
    });
}

/// W channels of the gradients of the pre-activations, to dz and, for the product with W_hh, to dz_t.
#[inline(always)]
fn cells_back<T: Math, const W: usize>(
    i: usize,
    d: usize,
    [saved, dy, dh]: [&[T]; 3],
    dc: &mut [T],
    [dz, dz_t]: &mut [&mut [T]; 2],
) {
    let mut of = [[T::ZERO; W]; SAVED];
    for (k, of) in of.iter_mut().enumerate() {
        *of = at(saved, k, d, i);
    }
    let (mut whole, above): ([T; W], [T; W]) = (at(dh, 0, d, i), at(dy, 0, d, i));
    for l in 0..W {
        whole[l] += above[l];
    }
    let (out, next) = back(of, whole, at(dc, 0, d, i));
    put(dc, 0, d, i, next, false);
    for (k, &out) in out.iter().enumerate() {
        put(dz, k, d, i, out, false);
        put(dz_t, k, d, i, out, false);
    }
}

/// Step t of all sequences backwards: dh and dc [B, D] come in from step t + 1; dc leaves for t − 1. The gradients of
/// the pre-activations go to dz [B, T, 4D] and to dz_t [B, 4D].
#[versions::versions]
fn step_back<T: Math>(
    s: Size,
    t: usize,
    [saved, dy]: [&[T]; 2],
    (dh, dc): (&[T], &mut [T]),
    [dz, dz_t]: [&mut [T]; 2],
) {
    let d = s.d;
    for b in 0..s.b {
        let (row4, own) = (s.row(b, t, 4 * d), s.state(b, d));
        if b + 1 < s.b {
            for x in [&saved[s.row(b + 1, t, SAVED * d)], &dz[s.row(b + 1, t, 4 * d)], &dy[s.row(b + 1, t, d)]] {
                fetch(x);
            }
        }
        let from = [&saved[s.row(b, t, SAVED * d)], &dy[s.row(b, t, d)], &dh[own.clone()]];
        let (dc, mut to) = (&mut dc[own], [&mut dz[row4], &mut dz_t[s.state(b, 4 * d)]]);
        by_lanes!(d, cells_back::<T>(from, &mut *dc, &mut to));
    }
}

/// From W_hh [4D, D], the saved values, and dy [B, T, D] to dz [B, T, 4D], the gradients of the pre-activations; dh and
/// dc [B, D] come in as those of the last h and c and leave as those of the first.
pub(super) fn backward<T: Math>(cpu: &Cpu, s: Size, [w, saved, dy]: [&[T]; 3], [dh, dc, dz]: [&mut [T]; 3]) {
    let w = Packed::new(cpu, s.b, (w, Mat::new(4 * s.d, s.d, s.d)));
    recurrent::backward(cpu, s.t, &[w], dh, |t, dh, dz_t| {
        step_back(s, t, [saved, dy], (dh, &mut *dc), [&mut *dz, dz_t]);
    });
}
