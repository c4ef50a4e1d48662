//! The scores of reading rows with keys that fade by a gate for each channel: they are no product of two matrices.
//!
//! The steps are halved (secondary chunking, Yang et al. 2024, arXiv 2312.06635, section 4). The scores of the second
//! half, from step h on, with the first are
//!
//! ```text
//! M_ts = Σ_c (q_t ⊙ x_t)_c (k_s ⊙ y_s)_c       x_t = α_h … α_t      y_s = α_{s+1} … α_{h−1}
//! ```
//!
//! and each half is treated likewise, down to a few steps that are taken one by one. Backwards, with G the quadrant
//! of dM,
//!
//! ```text
//! dq_t += x_t ⊙ (G (K ⊙ y))_t      dk_s += y_s ⊙ (Gᵀ (Q ⊙ x))_s
//! ```
//!
//! The gradients of the gates in x and y follow from these terms of dq and dk as in [`super`].

use super::{Rows, Sums, mat, products, products_after, through, through_after};
use crate::{
    kernels::{
        lane_sums::{parts3, sums},
        lanes::{L, avx512_here},
        math::Math,
        matmul::{Mat, gemm},
        rows::{add, product},
    },
    tensor::{Cpu, Real, Temp},
};

/// Up to so many steps are taken one by one.
const FEW: usize = 8;

/// Scratch memory for the scores.
pub struct ChannelScores<'a, T: Math> {
    k: usize,
    /// A key as each of a few steps meets it.
    near: Temp<'a, T>,
    far: Far<'a, T>,
    /// Sums over rows [K].
    sums: Temp<'a, T>,
}

/// The factors of a quadrant: x and the reading rows ⊙ x, y and K ⊙ y, and a part of a gradient.
struct Far<'a, T: Math> {
    x: Temp<'a, T>,
    reads: Temp<'a, T>,
    y: Temp<'a, T>,
    keys: Temp<'a, T>,
    part: Temp<'a, T>,
}

/// Calls `f(lo, h, hi)` for the steps lo..hi and their halves, each cut at h; and with h = hi for a few steps.
fn halves(lo: usize, hi: usize, f: &mut impl FnMut(usize, usize, usize)) {
    let n = hi - lo;
    if n <= FEW {
        return f(lo, hi, hi);
    }
    let h = lo + n.div_ceil(2).next_multiple_of(FEW);
    halves(lo, h, f);
    halves(h, hi, f);
    f(lo, h, hi);
}

impl<'a, T: Math> ChannelScores<'a, T> {
    /// Room for chunks of up to `c` steps and so many kinds of reading rows.
    pub fn new(cpu: &'a Cpu, c: usize, k: usize, reads: usize) -> ChannelScores<'a, T> {
        let [x, y, keys, part] = std::array::from_fn(|_| cpu.temp(c * k));
        let far = Far { x, reads: cpu.temp(reads * c * k), y, keys, part };
        ChannelScores { k, near: cpu.temp(FEW.min(c) * k), far, sums: cpu.temp(k) }
    }

    /// As [`Decay::scores`](super::Decay::scores), with rows α.
    pub fn scores<const KINDS: usize>(&mut self, x: Rows<T, KINDS>, alpha: &[T], mut m: [&mut [T]; KINDS]) {
        let (n, k, f) = (x.n, self.k, &mut self.far);
        m.iter_mut().for_each(|m| m[..n * n].fill(T::ZERO));
        halves(0, n, &mut |lo, h, hi| {
            let (x, alpha) = (x.steps(k, lo, hi), &alpha[lo * k..hi * k]);
            if h == hi {
                return near(k, n, (x, alpha), &mut self.near, m.each_mut().map(|m| &mut m[lo * n + lo..]));
            }
            let (past, now) = (h - lo, hi - h);
            f.load(k, x, alpha, past);
            for (read, m) in f.reads.chunks_exact(now * k).zip(&mut m) {
                let to = (&mut m[h * n + lo..], Mat::new(now, past, n));
                gemm(T::ONE, (read, mat(now, k)), (&f.keys, mat(past, k).t()), to, false);
            }
        });
    }

    /// Add the gradients that come through the scores, from their cotangents, which are zero above the diagonal.
    pub fn backward<const KINDS: usize>(
        &mut self,
        x: Rows<T, KINDS>,
        alpha: &[T],
        dm: [&mut [T]; KINDS],
        mut to: Sums<T, KINDS>,
    ) {
        let (n, k, f, sums) = (x.n, self.k, &mut self.far, &mut self.sums);
        halves(0, n, &mut |lo, h, hi| {
            let (x, alpha, mut to) = (x.steps(k, lo, hi), &alpha[lo * k..hi * k], to.steps(k, lo, hi));
            if h == hi {
                let dm = dm.each_ref().map(|dm| &dm[lo * n + lo..]);
                return near_back(k, n, (x, alpha), dm, &mut self.near, to);
            }
            let (past, now) = (h - lo, hi - h);
            f.load(k, x, alpha, past);
            let (dg_first, dg_second) = to.gates.split_at_mut(past * k);
            for (r, dx) in to.reads.iter_mut().enumerate() {
                let q = (&dm[r][h * n + lo..], Mat::new(now, past, n));
                gemm(T::ONE, q, (&f.keys, mat(past, k)), (&mut f.part, mat(now, k)), false);
                through(k, &f.x, &x.reads[r][past * k..], &mut f.part, dg_second, sums);
                add(&mut dx[past * k..], &f.part);
            }
            for (r, read) in f.reads.chunks_exact(now * k).take(KINDS).enumerate() {
                let q = (&dm[r][h * n + lo..], Mat::new(now, past, n).t());
                gemm(T::ONE, q, (read, mat(now, k)), (&mut f.part, mat(past, k)), r > 0);
            }
            through_after(k, &f.y, &x.keys[..past * k], &mut f.part, dg_first, sums);
            add(&mut to.keys[..past * k], &f.part);
        });
    }
}

impl<T: Math> Far<'_, T> {
    /// Load all factors of some steps, of which the first `past` are the first half.
    fn load<const KINDS: usize>(&mut self, k: usize, x: Rows<T, KINDS>, alpha: &[T], past: usize) {
        let (first, second) = alpha.split_at(past * k);
        products(k, second, &mut self.x);
        for (x, y) in x.reads.iter().zip(self.reads.chunks_exact_mut(second.len())) {
            product(&x[past * k..], &self.x, y);
        }
        products_after(k, first, &mut self.y);
        product(&x.keys[..past * k], &self.y, &mut self.keys);
    }
}

/// The key of step s as each of the m steps from there on meets it: row t − s for step t.
#[inline(always)]
fn fade_key<T: Real>(k: usize, s: usize, m: usize, keys: &[T], alpha: &[T], w: &mut [T]) {
    w[..k].copy_from_slice(&keys[s * k..(s + 1) * k]);
    for t in 1..m {
        let (before, after) = w[(t - 1) * k..].split_at_mut(k);
        let a = &alpha[(s + t) * k..(s + t + 1) * k];
        after[..k].iter_mut().zip(&*before).zip(a).for_each(|((y, &x), &a)| *y = a * x);
    }
}

/// The scores of a few steps with each other, to rows of m that are `stride` apart.
#[versions::versions]
fn near<T: Math, const KINDS: usize>(
    k: usize,
    stride: usize,
    (x, alpha): (Rows<T, KINDS>, &[T]),
    w: &mut [T],
    mut m: [&mut [T]; KINDS],
) {
    let (here, row) = (avx512_here!(), |l: usize| l * k..(l + 1) * k);
    for s in 0..x.n {
        fade_key(k, s, x.n - s, x.keys, alpha, w);
        for (q, m) in x.reads.iter().zip(&mut m) {
            let dots = sums(here, x.n - s, |l, to| parts3(&q[row(s + l)], &w[row(l)], &w[row(l)], to, |x, w, _| x * w));
            (s..x.n).zip(dots).for_each(|(t, dot)| m[t * stride + s] = dot);
        }
    }
}

/// The gradients of a few steps, from the cotangents dm of such scores.
#[versions::versions]
fn near_back<T: Math, const KINDS: usize>(
    k: usize,
    stride: usize,
    (x, alpha): (Rows<T, KINDS>, &[T]),
    dm: [&[T]; KINDS],
    w: &mut [T],
    mut to: Sums<T, KINDS>,
) {
    for s in 0..x.n {
        fade_key(k, s, x.n - s, x.keys, alpha, w);
        for c in (0..k).step_by(L) {
            if c + L <= k {
                channels_back(k, (s, c, L), stride, (x, alpha), dm, w, &mut to);
            } else {
                channels_back(k, (s, c, k - c), stride, (x, alpha), dm, w, &mut to);
            }
        }
    }
}

/// The part of the key of step s alone, for as many channels from c on. The cotangent of the key as step t meets it
/// becomes that of the key itself in the end.
#[inline(always)]
fn channels_back<T: Math, const KINDS: usize>(
    k: usize,
    (s, c, width): (usize, usize, usize),
    stride: usize,
    (x, alpha): (Rows<T, KINDS>, &[T]),
    dm: [&[T]; KINDS],
    w: &[T],
    to: &mut Sums<T, KINDS>,
) {
    let mut sum = [T::ZERO; L];
    for t in (s..x.n).rev() {
        let at = t * k + c;
        let (row, w, alpha) = (at..at + width, &w[(t - s) * k + c..][..width], &alpha[at..at + width]);
        for ((dm, x), dx) in dm.iter().zip(&x.reads).zip(&mut to.reads) {
            let (by, x, dx) = (dm[t * stride + s], &x[row.clone()], &mut dx[row.clone()]);
            for i in 0..width {
                dx[i] += by * w[i];
                sum[i] += by * x[i];
            }
        }
        if t > s {
            let dg = &mut to.gates[row];
            for i in 0..width {
                dg[i] += sum[i] * w[i];
                sum[i] *= alpha[i];
            }
        }
    }
    to.keys[s * k + c..][..width].iter_mut().zip(sum).for_each(|(y, x)| *y += x);
}
