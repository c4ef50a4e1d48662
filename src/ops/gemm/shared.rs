//! One matrix in many products: a recurrence multiplies by the same weights at every step.

use super::{Mat, gemm};
use crate::tensor::{Cpu, Real, Temp};

#[cfg(target_arch = "x86_64")]
use super::{
    avx2, avx512,
    operand::{Out, Product, View},
};

/// The b of products a b in which every a has the same number of rows; the rows of a and of y lie next to each other.
/// With AVX2 b is brought into the order in which the kernels read it, once.
pub struct Shared<'a, T: Real> {
    b: (&'a [T], Mat),
    rows: usize,
    /// b in that order, or empty.
    #[cfg_attr(not(target_arch = "x86_64"), expect(dead_code))]
    panels: Temp<'a, T>,
}

impl<'a, T: Real> Shared<'a, T> {
    /// For products of `rows` rows.
    ///
    /// # Panics
    /// When the slice is shorter than its matrix.
    #[track_caller]
    pub fn new(cpu: &'a Cpu, rows: usize, b: (&'a [T], Mat)) -> Shared<'a, T> {
        assert!(b.0.len() >= b.1.span(), "gemm: a slice is too short");
        #[cfg(target_arch = "x86_64")]
        if let (Some(x), true) = (T::f32s(b.0), avx2::available() && !avx512::available()) {
            let p = like(rows, (x, b.1));
            if !p.leave() && !p.narrow() {
                let mut panels = cpu.temp::<T>(avx2::packed_len(p));
                if let Some(to) = T::f32s_mut(&mut panels) {
                    // SAFETY: the processor can; b and its panels are as long as it takes.
                    unsafe { avx2::pack_all(p, to.as_mut_ptr()) };
                }
                return Shared { b, rows, panels };
            }
        }
        Shared { b, rows, panels: cpu.temp(0) }
    }

    /// y = a b, for a [rows, k] and y [rows, n].
    ///
    /// # Panics
    /// When a or y has another size.
    #[track_caller]
    pub fn times(&self, a: &[T], y: &mut [T]) {
        let (m, k, n) = (self.rows, self.b.1.rows, self.b.1.cols);
        assert!(a.len() == m * k && y.len() == m * n, "gemm: {} times {:?} into {}", a.len(), self.b.1, y.len());
        #[cfg(target_arch = "x86_64")]
        if let (false, Some(a), Some(panels)) = (self.panels.is_empty(), T::f32s(a), T::f32s(&self.panels))
            && let (Some(b), Some(y)) = (T::f32s(self.b.0), T::f32s_mut(y))
        {
            let p = like(m, (b, self.b.1));
            let a = View { at: a.as_ptr(), ..p.a };
            let out = Out { at: y.as_mut_ptr(), ..p.out };
            // SAFETY: there are panels, so the processor can; a and y have their sizes, as was just seen, and the panels
            // are of this b for as many rows.
            return unsafe { avx2::from_packed(Product { a, out, ..p }, panels.as_ptr()) };
        }
        gemm(T::ONE, (a, Mat::new(m, k, k)), self.b, (y, Mat::new(m, n, n)), false);
    }
}

/// Such a product, of no a and to no y yet.
#[cfg(target_arch = "x86_64")]
fn like(m: usize, b: (&[f32], Mat)) -> Product {
    let (k, n) = (b.1.rows, b.1.cols);
    let a = View { at: std::ptr::null(), rs: k, cs: 1 };
    let out = Out { at: std::ptr::null_mut(), rs: n, cs: 1, alpha: 1.0, init: std::ptr::null(), init_rs: 0 };
    Product { m, k, n, a, b: View { at: b.0.as_ptr(), rs: b.1.rs, cs: b.1.cs }, out }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shared_matrix_gives_the_same_products_to_the_bit() {
        let cpu = Cpu::default();
        for (m, k, n) in
            [(1, 3, 5), (7, 40, 64), (32, 64, 256), (32, 128, 512), (33, 512, 128), (70, 300, 9), (5, 700, 300)]
        {
            for mat in [Mat::new(k, n, n), Mat::new(n, k, k).t()] {
                let numbers =
                    |n: usize, by: usize| (0..n).map(|i| ((i * by) % 17) as f32 / 7.0 - 1.0).collect::<Vec<_>>();
                let (a, b) = (numbers(m * k, 5), numbers(k * n, 3));
                let (mut y, mut want) = (vec![0f32; m * n], vec![0f32; m * n]);
                Shared::new(&cpu, m, (&b, mat)).times(&a, &mut y);
                gemm(1.0, (&a, Mat::new(m, k, k)), (&b, mat), (&mut want, Mat::new(m, n, n)), false);
                assert_eq!(y, want, "{m} x {k} x {n}");
            }
        }
    }
}
