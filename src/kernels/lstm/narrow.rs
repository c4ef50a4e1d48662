//! Steps of narrow LSTMs. Up to four sequences go through all their steps side by side: each number of W_hh is read
//! once for their products, whose sums stay in registers, and one function is computed for all of them before the next:
//! while one sequence waits for its result, the others compute.
//!
//! The saved values lie in the order in which they are computed: group after group, and of each step the numbers of all
//! R sequences [6, R, D]. In rows of [B, T, ..] the sequences are often a power of two apart, and a cache has few
//! places for such addresses.

use crate::{
    kernels::{
        lstm::{
            Size,
            cell::{SAVED, back, read, write},
        },
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

/// The place of the saved values of step t, for the group of `r` sequences from `first` on.
fn saved(s: Size, first: usize, r: usize, t: usize) -> Range<usize> {
    let (at, q) = (first * s.t + t * r, SAVED * s.d);
    at * q..(at + r) * q
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
    // Four numbers of each row at once: to count them one by one would take a fifth more time.
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

/// The first half for W of all cells of a group at one step: from the pre-activations, which are the first four rows of
/// saved [6, R D], to the saved values, and from c [R D] of the step before to that of the step.
#[inline(always)]
fn write_cells<T: Math, const W: usize>(i: usize, q: usize, saved: &mut [T], c: &mut [T]) {
    let z = [at(saved, 0, q, i), at(saved, 1, q, i), at(saved, 2, q, i)];
    let ([to_i, to_f, to_g, keep], next) = write::<T, W>(z, at(c, 0, q, i));
    put(saved, 0, q, i, to_i, false);
    put(saved, 1, q, i, to_f, false);
    put(saved, 2, q, i, to_g, false);
    put(saved, 4, q, i, keep, false);
    put(c, 0, q, i, next, false);
}

/// The second half: from c and the sum of o to the other saved values, and h [R D].
#[inline(always)]
fn read_cells<T: Math, const W: usize>(i: usize, q: usize, saved: &mut [T], c: &[T], h: &mut [T]) {
    let ([to_o, through_u], y) = read::<T, W>(at(saved, 3, q, i), at(c, 0, q, i));
    put(saved, 3, q, i, to_o, false);
    put(saved, 5, q, i, through_u, false);
    put(h, 0, q, i, y, false);
}

/// All steps of the R sequences `b`, with W_hhᵀ [D, 4D]: the saved values, and h; h and c [R, D] move on.
#[versions::versions]
fn group<T: Math>(s: Size, b: Range<usize>, inputs: [&[T]; 2], to: [&mut [T]; 2], states: [&mut [T]; 2]) {
    let (d, r) = (s.d, b.len());
    with_width!(d => match r {
        GROUP => group_of(Size { d, ..s }, b.start, GROUP, inputs, to, states),
        _ => group_of(Size { d, ..s }, b.start, r, inputs, to, states),
    });
}

#[inline(always)]
fn group_of<T: Math>(
    s: Size,
    first: usize,
    r: usize,
    [x, w]: [&[T]; 2],
    [save, h]: [&mut [T]; 2],
    [h_state, c_state]: [&mut [T]; 2],
) {
    let (d, q) = (s.d, r * s.d);
    let (h_state, c_state) = (&mut h_state[..q], &mut c_state[..q]);
    for t in 0..s.t {
        let save = &mut save[saved(s, first, r, t)];
        let (mut xs, mut hs) = ([&x[..0]; GROUP], [&h_state[..0]; GROUP]);
        for l in 0..r {
            xs[l] = &x[s.row(first + l, t, 4 * d)];
            hs[l] = &h_state[s.state(l, d)];
        }
        for (g, y) in save.chunks_exact_mut(q).take(4).enumerate() {
            if r == GROUP {
                by_lanes!(d, rows::<T>((4 * d, g * d), Some(xs), hs, w, &mut *y));
            } else {
                for ((x, h), y) in xs.iter().zip(hs).zip(y.chunks_exact_mut(d)) {
                    by_lanes!(d, row_of::<T>((4 * d, g * d), Some(x), h, w, &mut *y));
                }
            }
        }
        by_lanes!(q, write_cells::<T>(&mut *save, &mut *c_state));
        by_lanes!(q, read_cells::<T>(&mut *save, &*c_state, &mut *h_state));
        for l in 0..r {
            h[s.row(first + l, t, d)].copy_from_slice(&h_state[s.state(l, d)]);
        }
    }
}

/// x [B, T, 4D] and W_hh [4D, D] to the saved values, and h [B, T, D]; h and c [B, D] come in as before the first step
/// and leave as after the last.
pub(super) fn forward<T: Math>(
    cpu: &Cpu,
    s: Size,
    [x, w]: [&[T]; 2],
    [saved, h]: [&mut [T]; 2],
    [h_state, c_state]: [&mut [T]; 2],
) {
    let mut w_t = cpu.temp::<T>(w.len());
    for (j, w_t) in w_t.chunks_exact_mut(4 * s.d).enumerate() {
        w_t.iter_mut().zip(w[j..].iter().step_by(s.d)).for_each(|(y, &x)| *y = x);
    }
    for b in groups(s) {
        let states = [&mut h_state[b.start * s.d..], &mut c_state[b.start * s.d..]];
        group(s, b, [x, &w_t], [&mut *saved, &mut *h], states);
    }
}

/// W channels of the gradients of the pre-activations, of a sequence that begins at `l` in saved [6, q], and dh and dc
/// [q]: to dz [4D], and dc to step t − 1.
#[inline(always)]
fn step_back<T: Math, const W: usize>(
    i: usize,
    d: usize,
    (l, q): (usize, usize),
    [saved, dh, dy]: [&[T]; 3],
    dc: &mut [T],
    dz: &mut [T],
) {
    let mut of = [[T::ZERO; W]; SAVED];
    for (k, of) in of.iter_mut().enumerate() {
        *of = at(saved, k, q, l + i);
    }
    let (mut whole, above): ([T; W], [T; W]) = (at(dh, 0, q, l + i), at(dy, 0, d, i));
    for l in 0..W {
        whole[l] += above[l];
    }
    let (out, next) = back(of, whole, at(dc, 0, q, l + i));
    put(dc, 0, q, l + i, next, false);
    for (k, &out) in out.iter().enumerate() {
        put(dz, k, d, i, out, false);
    }
}

/// All steps of the sequences `b` backwards.
#[versions::versions]
fn group_back<T: Math>(s: Size, b: Range<usize>, inputs: [&[T]; 3], to: [&mut [T]; 3]) {
    let (d, r) = (s.d, b.len());
    with_width!(d => match r {
        GROUP => group_back_of(Size { d, ..s }, b.start, GROUP, inputs, to),
        _ => group_back_of(Size { d, ..s }, b.start, r, inputs, to),
    });
}

#[inline(always)]
fn group_back_of<T: Math>(s: Size, first: usize, r: usize, [w, save, dy]: [&[T]; 3], [dh, dc, dz]: [&mut [T]; 3]) {
    let (d, q) = (s.d, r * s.d);
    let (dh, dc) = (&mut dh[first * d..][..q], &mut dc[first * d..][..q]);
    for t in (0..s.t).rev() {
        let save = &save[saved(s, first, r, t)];
        for l in 0..r {
            let (dy, dz) = (&dy[s.row(first + l, t, d)], &mut dz[s.row(first + l, t, 4 * d)]);
            by_lanes!(d, step_back::<T>((l * d, q), [save, &*dh, dy], &mut *dc, &mut *dz));
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

/// From W_hh [4D, D], the saved values, and dy [B, T, D] to dz [B, T, 4D], the gradients of the pre-activations; dh and
/// dc [B, D] come in as those of the last h and c and leave as those of the first.
pub(super) fn backward<T: Math>(s: Size, inputs: [&[T]; 3], [dh, dc, dz]: [&mut [T]; 3]) {
    for b in groups(s) {
        group_back(s, b, inputs, [&mut *dh, &mut *dc, &mut *dz]);
    }
}
