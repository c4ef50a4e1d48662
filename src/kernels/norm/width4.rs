//! The norms of rows of four entries, sixteen rows side by side. Row by row, a vector would hold four numbers, and
//! every row would wait for a square root. Values and dx are those of [`super`] to the bit; dw is added up in another
//! order. Each function gives the number of rows that it has done: rows beyond the last sixteen are left.
//!
//! Without them a training step at the published sizes takes 1.2 to 1.65 times as long, that of GPT at T256 1.07 times.

use crate::{
    kernels::lanes::{Avx512, L, Lane, avx512_here, fma, order, transposed},
    tensor::Real,
};

/// Sixteen rows, four to a vector; transposed, a column is a vector, whose lanes are the rows in the order of
/// [`order`].
type Rows<T> = [Lane<T>; 4];

/// Sixteen rows at a time.
fn blocks<T>(x: &[T]) -> &[Rows<T>] {
    x.as_chunks().0.as_chunks().0
}

/// The same to write.
fn blocks_mut<T>(x: &mut [T]) -> &mut [Rows<T>] {
    x.as_chunks_mut().0.as_chunks_mut().0
}

/// Write a block, or add to it.
#[inline(always)]
fn put<T: Real>(here: Option<Avx512>, d: &mut Rows<T>, x: &[Lane<T>; 4], acc: bool) {
    let x = transposed(here, x);
    if acc {
        d.as_flattened_mut().iter_mut().zip(x.as_flattened()).for_each(|(d, &x)| *d += x);
    } else {
        *d = x;
    }
}

/// The sum of four numbers, one after another.
#[inline(always)]
fn sum<T: Real>(x: impl Fn(usize) -> T) -> T {
    x(0) + x(1) + x(2) + x(3)
}

/// Layer norm or, without `centre`, RMS norm.
#[versions::versions]
pub fn forward<T: Real>(centre: bool, eps: T, x: &[T], [w, b]: [&[T; 4]; 2], [y, mean, r]: [&mut [T]; 3]) -> usize {
    let here = avx512_here!();
    let (quarter, mean, r) = (T::of(0.25), mean.as_chunks_mut::<L>().0, r.as_chunks_mut::<L>().0);
    let done = r.len() * L;
    for (((x, to), mean), r) in blocks(x).iter().zip(blocks_mut(y)).zip(mean).zip(r) {
        let (x, mut y, mut ms, mut rs) = (transposed(here, x), [[T::ZERO; L]; 4], [T::ZERO; L], [T::ZERO; L]);
        for l in 0..L {
            let m = if centre { sum(|j| x[j][l]) * quarter } else { T::ZERO };
            let square = sum(|j| (x[j][l] - m) * (x[j][l] - m));
            let s = T::ONE / (square * quarter + eps).sqrt();
            for j in 0..4 {
                y[j][l] = ((x[j][l] - m) * s).fma(w[j], b[j]);
            }
            (ms[l], rs[l]) = (m, s);
        }
        (*mean, *r) = (order(here, &ms), order(here, &rs));
        put(here, to, &y, false);
    }
    done
}

/// dx of either.
#[versions::versions]
pub fn backward_x<T: Real>(
    centre: bool,
    [x, g]: [&[T]; 2],
    w: &[T; 4],
    [mean, r]: [&[T]; 2],
    (d, acc): (&mut [T], bool),
) -> usize {
    let here = avx512_here!();
    let (quarter, mean, r) = (T::of(0.25), mean.as_chunks::<L>().0, r.as_chunks::<L>().0);
    for ((((x, g), to), mean), r) in blocks(x).iter().zip(blocks(g)).zip(blocks_mut(d)).zip(mean).zip(r) {
        let (x, g, mut d, mean, r) =
            (transposed(here, x), transposed(here, g), [[T::ZERO; L]; 4], order(here, mean), order(here, r));
        for l in 0..L {
            let (m, r) = (mean[l], r[l]);
            let of_g = if centre { sum(|j| g[j][l] * w[j]) * quarter } else { T::ZERO };
            let of_gx = sum(|j| g[j][l] * w[j] * (x[j][l] - m)) * r * quarter * r;
            for j in 0..4 {
                d[j][l] = r * (m - x[j][l]).fma(of_gx, g[j][l] * w[j] - of_g);
            }
        }
        put(here, to, &d, acc);
    }
    r.len() * L
}

/// Each of four numbers four times, in the order of their rows' entries.
#[inline(always)]
fn spread<T: Real>(x: &[T; 4]) -> Lane<T> {
    let mut y = [T::ZERO; L];
    for (y, &x) in y.as_chunks_mut::<4>().0.iter_mut().zip(x) {
        *y = [x; 4];
    }
    y
}

/// dw += Σ g x̂ over the rows: sixteen rows' sums side by side, then the sum of those.
#[versions::versions]
pub fn backward_w<T: Real>(x: &[T], mean: &[T], r: &[T], g: &[T], dw: &mut [T; 4]) -> usize {
    let here = avx512_here!();
    let (mean, r, mut sums) = (mean.as_chunks::<L>().0, r.as_chunks::<L>().0, [[T::ZERO; L]; 4]);
    for (((x, g), mean), r) in blocks(x).iter().zip(blocks(g)).zip(mean).zip(r) {
        for j in 0..4 {
            let (mut x, mean, r) = (x[j], spread(&mean.as_chunks().0[j]), spread(&r.as_chunks().0[j]));
            for l in 0..L {
                x[l] = (x[l] - mean[l]) * r[l];
            }
            sums[j] = fma(here, &sums[j], &g[j], &x);
        }
    }
    for row in sums.as_flattened().as_chunks::<4>().0 {
        dw.iter_mut().zip(row).for_each(|(dw, sum)| *dw += *sum);
    }
    r.len() * L
}

/// L2 norm.
#[versions::versions]
pub fn l2_forward<T: Real>(smooth: bool, eps: T, x: &[T], y: &mut [T], r: &mut [T]) -> usize {
    let (here, r) = (avx512_here!(), r.as_chunks_mut::<L>().0);
    let done = r.len() * L;
    for ((x, to), r) in blocks(x).iter().zip(blocks_mut(y)).zip(r) {
        let (x, mut y, mut rs) = (transposed(here, x), [[T::ZERO; L]; 4], [T::ZERO; L]);
        for l in 0..L {
            let square = sum(|j| x[j][l] * x[j][l]);
            let length = if smooth { (square + eps).sqrt() } else { square.sqrt() };
            rs[l] = T::ONE / if !smooth && length < eps { eps } else { length };
            for j in 0..4 {
                y[j][l] = x[j][l] * rs[l];
            }
        }
        *r = order(here, &rs);
        put(here, to, &y, false);
    }
    done
}

/// Its dx.
#[versions::versions]
pub fn l2_backward<T: Real>(constant: T, y: &[T], r: &[T], g: &[T], d: &mut [T], acc: bool) -> usize {
    let (here, r) = (avx512_here!(), r.as_chunks::<L>().0);
    for (((y, g), to), r) in blocks(y).iter().zip(blocks(g)).zip(blocks_mut(d)).zip(r) {
        let (y, g, mut d, r) = (transposed(here, y), transposed(here, g), [[T::ZERO; L]; 4], order(here, r));
        for l in 0..L {
            let dot = sum(|j| g[j][l] * y[j][l]);
            let dot = if r[l] == constant { T::ZERO } else { dot };
            for j in 0..4 {
                d[j][l] = r[l] * (g[j][l] - y[j][l] * dot);
            }
        }
        put(here, to, &d, acc);
    }
    r.len() * L
}
