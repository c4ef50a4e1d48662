//! Loops over vectors, and over the rows of small matrices, that the matrix memories need beside their products. Each
//! is compiled for the widest vectors of the processor; inside its callers it would be compiled for the oldest.

use crate::{
    kernels::{
        lane_sums::{self, parts3, sums},
        lanes::{L, avx512_here},
        math::Math,
    },
    tensor::Real,
};

/// x ⊙ y in place of x.
#[versions::versions]
pub fn times<T: Real>(x: &mut [T], y: &[T]) {
    x.iter_mut().zip(y).for_each(|(x, &y)| *x *= y);
}

/// z = x ⊙ y
#[versions::versions]
pub fn product<T: Real>(x: &[T], y: &[T], z: &mut [T]) {
    z.iter_mut().zip(x).zip(y).for_each(|((z, &x), &y)| *z = x * y);
}

/// z += x ⊙ y
#[versions::versions]
pub fn add_product<T: Real>(x: &[T], y: &[T], z: &mut [T]) {
    z.iter_mut().zip(x).zip(y).for_each(|((z, &x), &y)| *z += x * y);
}

/// x ← eˣ
#[versions::versions]
pub fn exp<T: Math>(x: &mut [T]) {
    x.iter_mut().for_each(|x| *x = x.exp());
}

/// x times a number.
#[versions::versions]
pub fn scale<T: Real>(x: &mut [T], by: T) {
    x.iter_mut().for_each(|x| *x = by * *x);
}

/// Rows of k numbers, each times its number.
#[versions::versions]
pub fn times_rows<T: Real>(k: usize, by: &[T], x: &mut [T]) {
    for (x, &by) in x.chunks_exact_mut(k.max(1)).zip(by) {
        x.iter_mut().for_each(|x| *x = by * *x);
    }
}

/// x·y, over the elements of x.
#[versions::versions]
pub fn dot<T: Real>(x: &[T], y: &[T]) -> T {
    lane_sums::sum2(x, y, |x, y| x * y)
}

/// x += y
#[versions::versions]
pub fn add<T: Real>(x: &mut [T], y: &[T]) {
    x.iter_mut().zip(y).for_each(|(x, &y)| *x += y);
}

/// y_t += x_t·z, for rows x_t of k numbers.
#[versions::versions]
pub fn add_dots<T: Real>(k: usize, x: &[T], z: &[T], y: &mut [T]) {
    let here = avx512_here!();
    for (x, y) in x.chunks(L * k.max(1)).zip(y.chunks_mut(L)) {
        let rows = x.len() / k.max(1);
        let dots = sums(here, rows, |l, to| parts3(&x[l * k..(l + 1) * k], z, z, to, |x, z, _| x * z));
        y.iter_mut().zip(dots).for_each(|(y, dot)| *y += dot);
    }
}

/// y_t += x_t·z_t, for rows of k numbers.
#[versions::versions]
pub fn add_row_dots<T: Real>(k: usize, x: &[T], z: &[T], y: &mut [T]) {
    let here = avx512_here!();
    for ((x, z), y) in x.chunks(L * k.max(1)).zip(z.chunks(L * k.max(1))).zip(y.chunks_mut(L)) {
        let (rows, row) = (x.len() / k.max(1), |l: usize| l * k..(l + 1) * k);
        let dots = sums(here, rows, |l, to| parts3(&x[row(l)], &z[row(l)], &z[row(l)], to, |x, z, _| x * z));
        y.iter_mut().zip(dots).for_each(|(y, dot)| *y += dot);
    }
}

/// y_t += x_t z, for rows y_t of k numbers.
#[versions::versions]
pub fn add_outer<T: Real>(k: usize, x: &[T], z: &[T], y: &mut [T]) {
    for (y, &x) in y.chunks_exact_mut(k.max(1)).zip(x) {
        y.iter_mut().zip(z).for_each(|(y, &z)| *y += x * z);
    }
}

/// y += Σ x_t z_t, for rows z_t of as many numbers as y has.
#[versions::versions]
pub fn add_weighted<T: Real>(x: &[T], z: &[T], y: &mut [T]) {
    for (z, &x) in z.chunks_exact(y.len().max(1)).zip(x) {
        y.iter_mut().zip(z).for_each(|(y, &z)| *y += x * z);
    }
}

/// Rows of k numbers to rows of `y`, each times its factor.
#[versions::versions]
pub fn scale_rows<T: Real>(k: usize, by: &[T], x: &[T], y: &mut [T]) {
    for ((x, y), &by) in x.chunks_exact(k.max(1)).zip(y.chunks_exact_mut(k.max(1))).zip(by) {
        y.iter_mut().zip(x).for_each(|(y, &x)| *y = by * x);
    }
}

/// Rows of k numbers, each divided by its number.
#[versions::versions]
pub fn divide_rows<T: Real>(k: usize, by: &[T], x: &mut [T]) {
    for (x, &by) in x.chunks_exact_mut(k.max(1)).zip(by) {
        x.iter_mut().for_each(|x| *x = *x / by);
    }
}
