//! Steps of narrow LSTMs. Up to four sequences go through all their steps side by side: each number of W_hh is read once for
//! their products, whose sums stay in registers, and one function is computed for all of them before the next, so that
//! where one waits for itself the others go on.
//!
//! What is kept for the backward pass lies as it is computed, a group after another, of each step the four gates of all R
//! sequences [4, R, D] and their c and u [R, D]. In rows of [B, T, ..] the sequences are often a power of two apart, for
//! which a cache has few places.

use crate::{
    kernels::{
        lstm::{Size, lanes_back},
        math::Math,
        scan::{at, by_lanes, put},
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

/// Where c and u of sequence b at step t are.
pub(super) fn kept(s: Size, b: usize, t: usize) -> Range<usize> {
    let first = b / GROUP * GROUP;
    let at = first * s.t + t * GROUP.min(s.b - first) + (b - first);
    at * s.d..(at + 1) * s.d
}

/// W columns of x + a w, or without x of a w alone, from column j + i on, for rows x [N] and a [K], and w [K, N]: to
/// column i of y [D].
#[inline(always)]
fn row_of<T: Math, const W: usize>(
    i: usize,
    d: usize,
    (n, j): (usize, usize),
    x: Option<&[T]>,
    a: &[T],
    w: &[T],
    y: &mut [T],
) {
    let mut sum = [T::ZERO; W];
    if let Some(x) = x {
        sum = at(x, 0, n, j + i);
    }
    for (w, a) in w.chunks_exact(n).zip(a) {
        let w: [T; W] = at(w, 0, n, j + i);
        for l in 0..W {
            sum[l] = a.fma(w[l], sum[l]);
        }
    }
    put(y, 0, d, i, sum, false);
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

/// [`row_of`] for the four rows of a group, to y [4, D].
#[inline(always)]
fn rows<T: Math, const W: usize>(
    i: usize,
    d: usize,
    (n, j): (usize, usize),
    x: Option<[&[T]; GROUP]>,
    [a0, a1, a2, a3]: [&[T]; GROUP],
    w: &[T],
    y: &mut [T],
) {
    let mut sums = [[T::ZERO; W]; GROUP];
    if let Some(x) = x {
        for (sum, x) in sums.iter_mut().zip(x) {
            *sum = at(x, 0, n, j + i);
        }
    }
    // Four numbers of each row at once: to count them is a fifth of the work for one.
    let ((a0, rest0), (a1, rest1)) = (a0.as_chunks::<4>(), a1.as_chunks::<4>());
    let ((a2, rest2), (a3, rest3)) = (a2.as_chunks::<4>(), a3.as_chunks::<4>());
    let (w4, w) = w.split_at(4 * a0.len() * n);
    for ((((w, a0), a1), a2), a3) in w4.chunks_exact(4 * n).zip(a0).zip(a1).zip(a2).zip(a3) {
        for k in 0..4 {
            add(at(w, k, n, j + i), [a0[k], a1[k], a2[k], a3[k]], &mut sums);
        }
    }
    for ((((w, &a0), &a1), &a2), &a3) in w.chunks_exact(n).zip(rest0).zip(rest1).zip(rest2).zip(rest3) {
        add(at(w, 0, n, j + i), [a0, a1, a2, a3], &mut sums);
    }
    for (r, &sum) in sums.iter().enumerate() {
        put(y, r, d, i, sum, false);
    }
}

/// The gates' sums [4, R D] to gates as they are kept; c, u (kept) and h [R D], from c of the step before.
#[inline(always)]
fn cells<T: Math>(gates: &mut [T], before: &[T], [c, u, h]: [&mut [T]; 3]) {
    let q = c.len();
    let (ig, rest) = gates.split_at_mut(q);
    let (f, rest) = rest.split_at_mut(q);
    let (g, o) = rest.split_at_mut(q);
    for i in &mut *ig {
        *i = i.keep_sigmoid();
    }
    for f in &mut *f {
        *f = f.keep_sigmoid();
    }
    for g in &mut *g {
        *g = g.keep_tanh();
    }
    for o in &mut *o {
        *o = o.keep_sigmoid();
    }
    let (before, u, h) = (&before[..q], &mut u[..q], &mut h[..q]);
    for l in 0..q {
        c[l] = f[l].kept_sigmoid().0.fma(before[l], ig[l].kept_sigmoid().0 * g[l].kept_tanh().0);
    }
    for l in 0..q {
        u[l] = c[l].keep_tanh();
    }
    for l in 0..q {
        h[l] = o[l].kept_sigmoid().0 * u[l].kept_tanh().0;
    }
}

/// All steps of the R sequences `b`, with W_hhᵀ [D, 4D], to gates, c, u and h; and room for h of a step, [R, D].
#[versions::versions]
fn group<T: Math>(s: Size, b: Range<usize>, inputs: [&[T]; 4], to: [&mut [T]; 4], h_step: &mut [T]) {
    let (d, r) = (s.d, b.len());
    with_width!(d => match r {
        GROUP => group_of(Size { d, ..s }, b.start, GROUP, inputs, to, h_step),
        _ => group_of(Size { d, ..s }, b.start, r, inputs, to, h_step),
    });
}

#[inline(always)]
fn group_of<T: Math>(
    s: Size,
    first: usize,
    r: usize,
    [x, w, h0, c0]: [&[T]; 4],
    [gates, c, u, h]: [&mut [T]; 4],
    h_step: &mut [T],
) {
    let (d, q) = (s.d, r * s.d);
    for t in 0..s.t {
        let start = kept(s, first, t).start;
        let gates = &mut gates[4 * start..][..4 * q];
        let (mut xs, mut hs) = ([&x[..0]; GROUP], [&h0[..0]; GROUP]);
        for l in 0..r {
            xs[l] = &x[s.row(first + l, t, 4 * d)];
            hs[l] = if t == 0 { &h0[s.state(first + l, d)] } else { &h[s.row(first + l, t - 1, d)] };
        }
        for (g, y) in gates.chunks_exact_mut(q).enumerate() {
            if r == GROUP {
                by_lanes!(d, rows::<T>((4 * d, g * d), Some(xs), hs, w, &mut *y));
            } else {
                for ((x, h), y) in xs.iter().zip(hs).zip(y.chunks_exact_mut(d)) {
                    by_lanes!(d, row_of::<T>((4 * d, g * d), Some(x), h, w, &mut *y));
                }
            }
        }
        let (done, c) = c.split_at_mut(start);
        let before = if t == 0 { &c0[first * d..][..q] } else { &done[start - q..] };
        cells(gates, before, [&mut c[..q], &mut u[start..][..q], &mut *h_step]);
        for l in 0..r {
            h[s.row(first + l, t, d)].copy_from_slice(&h_step[s.state(l, d)]);
        }
    }
}

/// x [B, T, 4D], W_hh [4D, D], h0 and c0 [B, D] to h [B, T, D], and to gates, c and u as they are kept.
pub(super) fn forward<T: Math>(cpu: &Cpu, s: Size, [x, w, h0, c0]: [&[T]; 4], [gates, c, u, h]: [&mut [T]; 4]) {
    let (mut w_t, mut h_step) = (cpu.temp::<T>(w.len()), cpu.temp::<T>(GROUP * s.d));
    for (j, w_t) in w_t.chunks_exact_mut(4 * s.d).enumerate() {
        w_t.iter_mut().zip(w[j..].iter().step_by(s.d)).for_each(|(y, &x)| *y = x);
    }
    for b in groups(s) {
        group(s, b, [x, &w_t, h0, c0], [&mut *gates, &mut *c, &mut *u, &mut *h], &mut h_step);
    }
}

/// W channels of the gradients of the gates' sums, of a sequence that begins at `l` in gates [4, q] and c_{t-1}, u, dh and
/// dc [q]: to dz [4D], and dc to step t − 1.
#[inline(always)]
fn step_back<T: Math, const W: usize>(
    i: usize,
    d: usize,
    (l, q): (usize, usize),
    [gates, before, u, dh, dy]: [&[T]; 5],
    dc: &mut [T],
    dz: &mut [T],
) {
    let mut of = [[T::ZERO; W]; 4];
    for (k, of) in of.iter_mut().enumerate() {
        *of = at(gates, k, q, l + i);
    }
    let own = |x: &[T]| at::<T, W>(x, 0, q, l + i);
    let (out, next) = lanes_back(of, own(before), own(u), at(dy, 0, d, i), own(dh), own(dc));
    put(dc, 0, q, l + i, next, false);
    for (k, &out) in out.iter().enumerate() {
        put(dz, k, d, i, out, false);
    }
}

/// All steps of the sequences `b` backwards.
#[versions::versions]
fn group_back<T: Math>(s: Size, b: Range<usize>, inputs: [&[T]; 6], to: [&mut [T]; 3]) {
    let (d, r) = (s.d, b.len());
    with_width!(d => match r {
        GROUP => group_back_of(Size { d, ..s }, b.start, GROUP, inputs, to),
        _ => group_back_of(Size { d, ..s }, b.start, r, inputs, to),
    });
}

#[inline(always)]
fn group_back_of<T: Math>(
    s: Size,
    first: usize,
    r: usize,
    [w, c0, gates, c, u, dy]: [&[T]; 6],
    [dh, dc, dz]: [&mut [T]; 3],
) {
    let (d, q) = (s.d, r * s.d);
    let (c0, dh, dc) = (&c0[first * d..][..q], &mut dh[first * d..][..q], &mut dc[first * d..][..q]);
    for t in (0..s.t).rev() {
        let start = kept(s, first, t).start;
        let (gates, u) = (&gates[4 * start..][..4 * q], &u[start..][..q]);
        let before = if t == 0 { c0 } else { &c[start - q..][..q] };
        for l in 0..r {
            let (dy, dz) = (&dy[s.row(first + l, t, d)], &mut dz[s.row(first + l, t, 4 * d)]);
            by_lanes!(d, step_back::<T>((l * d, q), [gates, before, u, &*dh, dy], &mut *dc, &mut *dz));
        }
        let own = |l: usize| &dz[s.row(first + l, t, 4 * d)];
        if r == GROUP {
            by_lanes!(d, rows::<T>((d, 0), None, [own(0), own(1), own(2), own(3)], w, &mut *dh));
        } else {
            for (l, dh) in dh.chunks_exact_mut(d).enumerate() {
                by_lanes!(d, row_of::<T>((d, 0), None, own(l), w, &mut *dh));
            }
        }
    }
}

/// W_hh [4D, D], c0 [B, D], what was kept of gates, c and u, and dy [B, T, D] to dz [B, T, 4D], the gradients of the gates'
/// sums; dh and dc [B, D] come in as those of the last h and c and leave as those of the first.
pub(super) fn backward<T: Math>(s: Size, inputs: [&[T]; 6], [dh, dc, dz]: [&mut [T]; 3]) {
    for b in groups(s) {
        group_back(s, b, inputs, [&mut *dh, &mut *dc, &mut *dz]);
    }
}
