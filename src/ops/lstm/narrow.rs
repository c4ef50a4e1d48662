//! Steps of narrow LSTMs: each number of W_hh is read once for the products of four sequences, whose sums stay in registers.
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

/// W channels of gates, c, u and h, from the gates' sums z [4D].
#[inline(always)]
fn step<T: Math, const W: usize>(i: usize, d: usize, [z, before]: [&[T]; 2], to: &mut [&mut [T]; 4]) {
    let [gates, c, u_to, h] = to;
    let u: [T; W] = lanes(i, d, four_at(z, d, i), before, [gates, c, h]);
    put(u_to, 0, d, i, u, false);
}

/// W columns of x + a w for a row x [N] and a [K], and w [K, N].
#[inline(always)]
fn row<T: Math, const W: usize>(i: usize, n: usize, [x, a]: [&[T]; 2], w: &[T], y: &mut [T]) {
    let mut sum: [T; W] = at(x, 0, n, i);
    for (w, a) in w.chunks_exact(n).zip(a) {
        let w: [T; W] = at(w, 0, n, i);
        for l in 0..W {
            sum[l] = a.fma(w[l], sum[l]);
        }
    }
    put(y, 0, n, i, sum, false);
}

/// sums += a w, for each row its a.
#[inline(always)]
fn add<T: Math, const W: usize>(w: [T; W], a: [T; GROUP], sums: &mut [[T; W]; GROUP]) {
    for (a, sum) in a.into_iter().zip(sums) {
        for l in 0..W {
            sum[l] = a.fma(w[l], sum[l]);
        }
    }
}

/// [`row`] for the rows of a group, to y [4, N]; without x, a w alone.
#[inline(always)]
fn rows<T: Math, const W: usize>(
    i: usize,
    n: usize,
    x: Option<[&[T]; GROUP]>,
    [a0, a1, a2, a3]: [&[T]; GROUP],
    w: &[T],
    y: &mut [T],
) {
    let mut sums = [[T::ZERO; W]; GROUP];
    if let Some(x) = x {
        for (sum, x) in sums.iter_mut().zip(x) {
            *sum = at(x, 0, n, i);
        }
    }
    // Four numbers of each row at once: to count them is a fifth of the work for one.
    let ((a0, rest0), (a1, rest1)) = (a0.as_chunks::<4>(), a1.as_chunks::<4>());
    let ((a2, rest2), (a3, rest3)) = (a2.as_chunks::<4>(), a3.as_chunks::<4>());
    let (w4, w) = w.split_at(4 * a0.len() * n);
    for ((((w, a0), a1), a2), a3) in w4.chunks_exact(4 * n).zip(a0).zip(a1).zip(a2).zip(a3) {
        for j in 0..4 {
            add(at(w, j, n, i), [a0[j], a1[j], a2[j], a3[j]], &mut sums);
        }
    }
    for ((((w, &a0), &a1), &a2), &a3) in w.chunks_exact(n).zip(rest0).zip(rest1).zip(rest2).zip(rest3) {
        add(at(w, 0, n, i), [a0, a1, a2, a3], &mut sums);
    }
    for (r, &sum) in sums.iter().enumerate() {
        put(y, r, n, i, sum, false);
    }
}

/// All steps of the sequences `b`, with W_hhᵀ [D, 4D], to gates, c, u and h; and room for the gates' sums of a step, [4, 4D].
#[multiversion::multiversion(targets("x86_64+avx512f+avx512vl+avx512dq+avx512bw", "x86_64+avx2+fma"))]
fn group<T: Math>(s: Size, b: Range<usize>, inputs: [&[T]; 4], kinds: Option<&[i32]>, to: ([&mut [T]; 4], &mut [T])) {
    let d = s.d;
    with_width!(d => group_of(Size { d, ..s }, b, inputs, kinds, to));
}

#[inline(always)]
fn group_of<T: Math>(
    s: Size,
    b: Range<usize>,
    [x, w, h0, c0]: [&[T]; 4],
    kinds: Option<&[i32]>,
    ([gates, c, u, h], z): ([&mut [T]; 4], &mut [T]),
) {
    let d = s.d;
    for t in 0..s.t {
        let (mut xs, mut before) = ([&x[..0]; GROUP], [&h0[..0]; GROUP]);
        for ((b, x_row), h_row) in b.clone().zip(&mut xs).zip(&mut before) {
            let from = if let Some(kinds) = kinds { kinds[b * s.t + t] as usize } else { b * s.t + t };
            *x_row = &x[from * 4 * d..][..4 * d];
            *h_row = if t == 0 { &h0[s.state(b, d)] } else { &h[s.row(b, t - 1, d)] };
        }
        if b.len() == GROUP {
            by_lanes!(4 * d, rows::<T>(Some(xs), before, w, &mut *z));
        } else {
            for ((x, h), z) in xs.into_iter().zip(before).zip(z.chunks_exact_mut(4 * d)).take(b.len()) {
                by_lanes!(4 * d, row::<T>([x, h], w, &mut *z));
            }
        }
        for (b, z) in b.clone().zip(z.chunks_exact(4 * d)) {
            let (row, row4) = (s.row(b, t, d), s.row(b, t, 4 * d));
            let (c_done, c) = c.split_at_mut(row.start);
            let before = if t == 0 { &c0[s.state(b, d)] } else { &c_done[row.start - d..] };
            let mut to = [&mut gates[row4], &mut c[..d], &mut u[row.clone()], &mut h[row]];
            by_lanes!(d, step::<T>([z, before], &mut to));
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
    let (mut w_t, mut z) = (cpu.temp::<T>(w.len()), cpu.temp::<T>(GROUP * 4 * s.d));
    for (j, w_t) in w_t.chunks_exact_mut(4 * s.d).enumerate() {
        w_t.iter_mut().zip(w[j..].iter().step_by(s.d)).for_each(|(y, &x)| *y = x);
    }
    for b in groups(s) {
        group(s, b, [x, &w_t, h0, c0], kinds, ([&mut *gates, &mut *c, &mut *u, &mut *h], &mut z));
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
    for (k, &out) in lanes_back::<T, W>(i, d, [gates, before], at(u, 0, d, i), grads).iter().enumerate() {
        put(dz, k, d, i, out, false);
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
            let mut own = [&dz[..0]; GROUP];
            for (own, b) in own.iter_mut().zip(b.clone()) {
                *own = &dz[s.row(b, t, 4 * d)];
            }
            by_lanes!(d, rows::<T>(None, own, w, &mut *dh));
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
