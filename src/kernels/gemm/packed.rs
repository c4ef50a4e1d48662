//! One matrix in many products: a recurrence multiplies by the same weights at every step.

use super::{KC, Mat, gemm};
use crate::{
    kernels::scan::{at, by_lanes, put},
    tensor::{Cpu, Real, Temp},
};

#[cfg(target_arch = "x86_64")]
use {
    super::{
        Epilogue,
        operand::{Out, Product, View},
        product::{from_packed, pack_all, packed_len},
    },
    crate::kernels::vector::{Avx2, Avx512},
};

/// The b of products a b in which every a has the same number of rows; the rows of a and of y lie next to each other.
/// With AVX2, and where b is small, it is brought into the order in which it is read, once.
pub struct Packed<'a, T: Real> {
    b: (&'a [T], Mat),
    rows: usize,
    way: Way<'a, T>,
}

/// How a product with the packed matrix is computed.
enum Way<'a, T: Real> {
    /// From panels, as the kernels for AVX2 read them: [`gemm`] would pack them again for each product. From eight rows
    /// on both give the same bits.
    #[cfg(target_arch = "x86_64")]
    Panels(Temp<'a, T>),
    /// By loops over the rows of a small b, copied without gaps: [`gemm`] would spend its time on preparations.
    Rows(Temp<'a, T>),
    /// By [`gemm`], from b itself.
    Gemm,
}

/// A b with at most so many rows or columns is small.
const SMALL: usize = 32;

impl<'a, T: Real> Packed<'a, T> {
    /// For products of `rows` rows.
    ///
    /// # Panics
    /// When the slice is shorter than its matrix.
    #[track_caller]
    pub fn new(cpu: &'a Cpu, rows: usize, b: (&'a [T], Mat)) -> Packed<'a, T> {
        let (x, mat) = b;
        assert!(x.len() >= mat.span(), "gemm: a slice is too short");
        #[cfg(target_arch = "x86_64")]
        if let Some(panels) = panels(cpu, rows, b) {
            return Packed { b, rows, way: Way::Panels(panels) };
        }
        // Long sums go in blocks, which is more exact; loops over rows do not.
        if mat.rows.min(mat.cols) > SMALL || mat.rows > KC {
            return Packed { b, rows, way: Way::Gemm };
        }
        let mut packed = cpu.temp::<T>(mat.rows * mat.cols);
        for (i, row) in packed.chunks_exact_mut(mat.cols.max(1)).enumerate() {
            row.iter_mut().enumerate().for_each(|(j, y)| *y = x[i * mat.rs + j * mat.cs]);
        }
        Packed { b, rows, way: Way::Rows(packed) }
    }

    /// y = a b, for a [rows, k] and y [rows, n].
    ///
    /// # Panics
    /// When a or y has another size.
    #[track_caller]
    pub fn times(&self, a: &[T], y: &mut [T]) {
        let (m, k, n) = (self.rows, self.b.1.rows, self.b.1.cols);
        let sizes = [m.checked_mul(k), m.checked_mul(n)];
        assert!([Some(a.len()), Some(y.len())] == sizes, "gemm: {} times {:?} into {}", a.len(), self.b.1, y.len());
        match &self.way {
            #[cfg(target_arch = "x86_64")]
            Way::Panels(panels) => {
                if let (Some(v), Some(a), Some(b)) = (Avx2::here(), T::f32s(a), T::f32s(self.b.0))
                    && let (Some(panels), Some(y)) = (T::f32s(panels), T::f32s_mut(y))
                {
                    let (b, y) = ((b, self.b.1), (y, Mat::new(m, n, n)));
                    let p = Product::new(1.0, (a, Mat::new(m, k, k)), b, y, Epilogue::Set);
                    // SAFETY: a and y have their sizes, and the panels are of this b for as many rows.
                    unsafe { from_packed(v, p, panels.as_ptr()) };
                }
            }
            Way::Rows(_) if k * n == 0 => y.fill(T::ZERO),
            Way::Rows(packed) => by_rows(k, n, a, packed, y),
            Way::Gemm => gemm(T::ONE, (a, Mat::new(m, k, k)), self.b, (y, Mat::new(m, n, n)), false),
        }
    }
}

/// b in panels for products of `rows` rows; none for tall, skinny or large ones, in double precision, with AVX-512 or
/// without AVX2.
#[cfg(target_arch = "x86_64")]
fn panels<'a, T: Real>(cpu: &'a Cpu, rows: usize, b: (&[T], Mat)) -> Option<Temp<'a, T>> {
    let (single, v) = (T::f32s(b.0)?, Avx2::here().filter(|_| Avx512::here().is_none())?);
    let p = like(rows, (single, b.1));
    if p.large() || p.tall_skinny() {
        return None;
    }
    let room = packed_len::<Avx2>(p);
    let mut packed = cpu.temp::<T>(room);
    let to = T::f32s_mut(&mut packed)?;
    assert!(to.len() == room, "gemm: {} numbers of room for panels of {room}", to.len());
    // SAFETY: b is as long as its sizes say, and there is room for its panels.
    unsafe { pack_all(v, p, to.as_mut_ptr()) };
    Some(packed)
}

/// W columns of R rows of y = a b, for a [R, k], b [k, n] and y [R, n].
#[inline(always)]
fn columns<T: Real, const W: usize, const R: usize>(i: usize, n: usize, a: &[T], b: &[T], y: &mut [T]) {
    let k = a.len() / R;
    let mut sums = [[T::ZERO; W]; R];
    for j in 0..k {
        let b: [T; W] = at(b, j, n, i);
        for (r, sum) in sums.iter_mut().enumerate() {
            let a = a[r * k + j];
            for l in 0..W {
                sum[l] = a.fma(b[l], sum[l]);
            }
        }
    }
    for (r, &sum) in sums.iter().enumerate() {
        put(y, r, n, i, sum, false);
    }
}

#[inline(always)]
fn four_rows<T: Real, const W: usize>(i: usize, n: usize, a: &[T], b: &[T], y: &mut [T]) {
    columns::<T, W, 4>(i, n, a, b, y);
}

/// W columns of y = a b, for a [k], b [k, n] and y [n].
#[inline(always)]
fn one_row<T: Real, const W: usize>(i: usize, n: usize, a: &[T], b: &[T], y: &mut [T]) {
    columns::<T, W, 1>(i, n, a, b, y);
}

/// y = a b, for a [rows, k], b [k, n] and y [rows, n], neither k nor n 0.
#[versions::versions]
fn by_rows<T: Real>(k: usize, n: usize, a: &[T], b: &[T], y: &mut [T]) {
    let ((a4, a), (y4, y)) = (a.split_at(a.len() / k / 4 * 4 * k), y.split_at_mut(y.len() / n / 4 * 4 * n));
    for (a, y) in a4.chunks_exact(4 * k).zip(y4.chunks_exact_mut(4 * n)) {
        by_lanes!(n, four_rows::<T>(a, b, y));
    }
    for (a, y) in a.chunks_exact(k).zip(y.chunks_exact_mut(n)) {
        by_lanes!(n, one_row::<T>(a, b, y));
    }
}

/// The sizes of such a product, without its a and y.
#[cfg(target_arch = "x86_64")]
fn like(m: usize, b: (&[f32], Mat)) -> Product {
    let (k, n) = (b.1.rows, b.1.cols);
    let a = View { at: std::ptr::null(), rs: k, cs: 1 };
    let out = Out { at: std::ptr::null_mut(), rs: n, cs: 1, alpha: 1.0, init: std::ptr::null(), init_rs: 0 };
    Product { m, k, n, a, b: View { at: b.0.as_ptr(), rs: b.1.rs, cs: b.1.cs }, out }
}
