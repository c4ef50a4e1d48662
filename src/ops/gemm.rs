//! One matrix product on slices: y = α a b, or y += α a b.
//!
//! The `gemm` crate does the work, at 100 GFLOP/s a core. Only products of a few numbers, such as one head's 4 × 4
//! memory times a vector, are plain loops: there the crate's packing and dispatch take longer than the arithmetic
//! (`cargo bench --bench gemm` shows where it starts to pay).

use crate::tensor::Real;

/// A matrix in a slice: rows, columns and the distances between them.
#[derive(Clone, Copy, Debug)]
pub struct Mat {
    /// Number of rows.
    pub rows: usize,
    /// Number of columns.
    pub cols: usize,
    /// Distance between rows.
    pub rs: usize,
    /// Distance between columns.
    pub cs: usize,
}

impl Mat {
    /// A row-major matrix whose rows are `rs` apart.
    pub fn new(rows: usize, cols: usize, rs: usize) -> Mat {
        Mat { rows, cols, rs, cs: 1 }
    }

    /// The transpose of the same elements.
    pub fn t(self) -> Mat {
        Mat { rows: self.cols, cols: self.rows, rs: self.cs, cs: self.rs }
    }

    /// One past the last element.
    fn span(self) -> usize {
        if self.rows == 0 || self.cols == 0 { 0 } else { (self.rows - 1) * self.rs + (self.cols - 1) * self.cs + 1 }
    }
}

/// y = alpha a b, or y += alpha a b when `acc`.
///
/// # Panics
/// When the sizes do not fit, or a slice is shorter than its matrix.
#[track_caller]
pub fn gemm<T: Real>(alpha: T, a: (&[T], Mat), b: (&[T], Mat), y: (&mut [T], Mat), acc: bool) {
    check(&a, &b, (y.0.len(), y.1));
    let (m, k, n) = (a.1.rows, a.1.cols, b.1.cols);
    if m == 0 || n == 0 {
        return;
    }
    if m * k * n <= TINY {
        return loops(alpha, a, b, y, acc);
    }
    library(alpha, a, b, y, acc);
}

/// The most multiplications that plain loops are faster at.
const TINY: usize = 256;

/// Element after element of y.
fn loops<T: Real>(alpha: T, a: (&[T], Mat), b: (&[T], Mat), y: (&mut [T], Mat), acc: bool) {
    let ((a, ma), (b, mb), (y, my)) = (a, b, y);
    for i in 0..my.rows {
        for j in 0..my.cols {
            let mut sum = T::ZERO;
            for p in 0..ma.cols {
                sum += a[i * ma.rs + p * ma.cs] * b[p * mb.rs + j * mb.cs];
            }
            let y = &mut y[i * my.rs + j * my.cs];
            *y = alpha * sum + if acc { *y } else { T::ZERO };
        }
    }
}

#[track_caller]
fn check<T>(a: &(&[T], Mat), b: &(&[T], Mat), y: (usize, Mat)) {
    let (ma, mb, my) = (a.1, b.1, y.1);
    assert!(ma.rows == my.rows && mb.cols == my.cols && ma.cols == mb.rows, "gemm: {ma:?} times {mb:?} into {my:?}");
    assert!(a.0.len() >= ma.span() && b.0.len() >= mb.span() && y.0 >= my.span(), "gemm: a slice is too short");
}

/// The `gemm` crate.
#[track_caller]
pub fn library<T: Real>(alpha: T, a: (&[T], Mat), b: (&[T], Mat), y: (&mut [T], Mat), acc: bool) {
    check(&a, &b, (y.0.len(), y.1));
    let ((a, ma), (b, mb), (y, my)) = (a, b, y);
    // SAFETY: `check` has compared all three spans with their slices, strides are non-negative, and `y` is borrowed
    // mutably, so it overlaps neither `a` nor `b`. The element types are f32 and f64, which the crate dispatches on.
    unsafe {
        gemm::gemm(
            my.rows,
            my.cols,
            ma.cols,
            y.as_mut_ptr(),
            my.cs as isize,
            my.rs as isize,
            acc,
            a.as_ptr(),
            ma.cs as isize,
            ma.rs as isize,
            b.as_ptr(),
            mb.cs as isize,
            mb.rs as isize,
            T::ONE,
            alpha,
            false,
            false,
            false,
            gemm::Parallelism::None,
        );
    }
}
