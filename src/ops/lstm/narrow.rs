//! Steps of narrow LSTMs: the product of one sequence's h with W_hh stays in registers until it is the gates.
//!
//! A few sequences go through all their steps side by side, so that while one waits for its own last step the others
//! are computed; each is read and written from one end to the other.

use super::{Size, lanes, lanes_back};
use crate::{
    ops::{
        gemm::one_row,
        math::Math,
        scan::{at, by_lanes, four_at, put},
    },
    tensor::Cpu,
    with_width,
};
use std::ops::Range;

/// How many sequences go side by side.
const GROUP: usize = 4;

/// The sequences, a group at a time.
fn groups(s: Size) -> impl Iterator<Item = Range<usize>> {
    (0..s.b).step_by(GROUP).map(move |first| first..(first + GROUP).min(s.b))
}

/// W channels of x + W_hh h_{t-1}, for x [4D], h_{t-1} [D] and W_hhᵀ [D, 4D], to gates, c, u and h.
#[inline(always)]
fn step<T: Math, const W: usize>(i: usize, d: usize, [x, h, w, before]: [&[T]; 4], to: &mut [&mut [T]; 4]) {
    let mut gates: [[T; W]; 4] = four_at(x, 0, d, i);
    for (&h, w) in h.iter().zip(w.chunks_exact(4 * d)) {
        for (k, gate) in gates.iter_mut().enumerate() {
            let w: [T; W] = at(w, k, d, i);
            for l in 0..W {
                gate[l] = h.fma(w[l], gate[l]);
            }
        }
    }
    let [gates_to, c, u_to, h] = to;
    let u = lanes(i, d, gates, before, [gates_to, c, h]);
    put(u_to, 0, d, i, u, false);
}

/// All steps of the sequences `b`; W_hhᵀ is [D, 4D].
#[multiversion::multiversion(targets("x86_64+avx512f+avx512vl+avx512dq+avx512bw", "x86_64+avx2+fma"))]
fn group<T: Math>(s: Size, b: Range<usize>, inputs: [&[T]; 4], kinds: Option<&[i32]>, to: [&mut [T]; 4]) {
    let d = s.d;
    with_width!(d => group_of(Size { d, ..s }, b, inputs, kinds, to));
}

#[inline(always)]
fn group_of<T: Math>(
    s: Size,
    b: Range<usize>,
    [x, w, h0, c0]: [&[T]; 4],
    kinds: Option<&[i32]>,
    [gates, c, u, h]: [&mut [T]; 4],
) {
    let d = s.d;
    for t in 0..s.t {
        for b in b.clone() {
            let (row, row4, own) = (s.row(b, t, d), s.row(b, t, 4 * d), s.state(b, d));
            let ((c_done, c), (h_done, h)) = (c.split_at_mut(row.start), h.split_at_mut(row.start));
            let [c_before, h_before] = match t {
                0 => [&c0[own.clone()], &h0[own]],
                _ => [&c_done[row.start - d..], &h_done[row.start - d..]],
            };
            let x = &x[kinds.map_or(row4.start, |kinds| kinds[b * s.t + t] as usize * 4 * d)..][..4 * d];
            let mut to = [&mut gates[row4], &mut c[..d], &mut u[row], &mut h[..d]];
            by_lanes!(d, step::<T>([x, h_before, w, c_before], &mut to));
        }
    }
}

/// x [B, T, 4D], or a table and the `kinds` of the steps, W_hh [4D, D], h0 and c0 [B, D] to gates [B, T, 4D], c, u and
/// h [B, T, D].
pub(super) fn forward<T: Math>(
    cpu: &Cpu,
    s: Size,
    [x, w, h0, c0]: [&[T]; 4],
    kinds: Option<&[i32]>,
    [gates, c, u, h]: [&mut [T]; 4],
) {
    let mut w_t = cpu.temp::<T>(w.len());
    for (j, w_t) in w_t.chunks_exact_mut(4 * s.d).enumerate() {
        w_t.iter_mut().zip(w[j..].iter().step_by(s.d)).for_each(|(y, &x)| *y = x);
    }
    for b in groups(s) {
        group(s, b, [x, &w_t, h0, c0], kinds, [&mut *gates, &mut *c, &mut *u, &mut *h]);
    }
}

/// W channels of the gradients of the gates' sums.
#[inline(always)]
fn step_back<T: Math, const W: usize>(
    i: usize,
    d: usize,
    [gates, before, u]: [&[T]; 3],
    grads: (&[T], &[T], &mut [T]),
    dz: &mut [T],
) {
    for (k, out) in lanes_back::<T, W>(i, d, [gates, before], at(u, 0, d, i), grads).into_iter().enumerate() {
        put(dz, k, d, i, out, false);
    }
}

/// W channels of dz W_hh for a group of rows dz [4D] and W_hh [4D, D].
#[inline(always)]
fn product<T: Math, const W: usize>(i: usize, d: usize, dz: [&[T]; GROUP], w: &[T], dh: &mut [T]) {
    let (mut sums, [z0, z1, z2, z3]) = ([[T::ZERO; W]; GROUP], dz);
    for ((((w, &z0), &z1), &z2), &z3) in w.chunks_exact(d).zip(z0).zip(z1).zip(z2).zip(z3) {
        let w: [T; W] = at(w, 0, d, i);
        for (z, sum) in [z0, z1, z2, z3].into_iter().zip(&mut sums) {
            for l in 0..W {
                sum[l] = z.fma(w[l], sum[l]);
            }
        }
    }
    for (r, &sum) in sums.iter().enumerate() {
        put(dh, r, d, i, sum, false);
    }
}

/// All steps of the sequences `b` backwards.
#[multiversion::multiversion(targets("x86_64+avx512f+avx512vl+avx512dq+avx512bw", "x86_64+avx2+fma"))]
fn group_back<T: Math>(s: Size, b: Range<usize>, inputs: [&[T]; 6], to: [&mut [T]; 3]) {
    let d = s.d;
    with_width!(d => group_back_of(Size { d, ..s }, b, inputs, to));
}

#[inline(always)]
fn group_back_of<T: Math>(s: Size, b: Range<usize>, [w, c0, gates, c, u, dy]: [&[T]; 6], [dh, dc, dz]: [&mut [T]; 3]) {
    let d = s.d;
    for t in (0..s.t).rev() {
        for b in b.clone() {
            let (row, row4, own) = (s.row(b, t, d), s.row(b, t, 4 * d), s.state(b, d));
            let before = if t == 0 { &c0[own.clone()] } else { &c[row.start - d..row.start] };
            let kept = [&gates[row4.clone()], before, &u[row.clone()]];
            let (dy, dh, dc, dz) = (&dy[row], &dh[own.clone()], &mut dc[own], &mut dz[row4]);
            by_lanes!(d, step_back::<T>(kept, (dy, dh, &mut *dc), &mut *dz));
        }
        let dh = &mut dh[b.start * d..b.end * d];
        if b.len() == GROUP {
            let mut rows = [&dz[..0]; GROUP];
            rows.iter_mut().zip(b.clone()).for_each(|(row, b)| *row = &dz[s.row(b, t, 4 * d)]);
            by_lanes!(d, product::<T>(rows, w, &mut *dh));
        } else {
            for (b, dh) in b.clone().zip(dh.chunks_exact_mut(d)) {
                by_lanes!(d, one_row::<T>(&dz[s.row(b, t, 4 * d)], w, &mut *dh));
            }
        }
    }
}

/// W_hh [4D, D], c0 [B, D], gates, c, u and dy [B, T, ..] to dz [B, T, 4D], the gradients of the gates' sums; dh and dc
/// [B, D] come in as those of the last h and c and leave as those of the first.
pub(super) fn backward<T: Math>(s: Size, inputs: [&[T]; 6], [dh, dc, dz]: [&mut [T]; 3]) {
    for b in groups(s) {
        group_back(s, b, inputs, [&mut *dh, &mut *dc, &mut *dz]);
    }
}
