//! Products of narrow matrices: with at most four columns ([`few`](super::few)), and those whose rows of a are four
//! numbers.

use super::{
    few::few,
    tile::{W, lanes, put},
};
use crate::kernels::gemm::operand::{FEWEST, LONGEST, Product};
use std::arch::x86_64::*;

/// C vectors of columns of [`low`], of which LAST fill the last vector; if ADD, y is added to. The compiler knows all three,
/// so that nothing is asked again for each row.
///
/// # Safety
/// As of [`low`], for 8 (C - 1) + LAST columns.
#[inline(never)]
#[target_feature(enable = "avx2,fma")]
unsafe fn low_panel<const C: usize, const LAST: usize, const ADD: bool>(Product { m, n, a, b, out, .. }: Product) {
    let mut numbers = [[[0f32; W]; C]; 5];
    let bias = !out.init.is_null() && out.init_rs == 0;
    for (p, numbers) in numbers.iter_mut().enumerate().take(if bias { 5 } else { 4 }) {
        for (l, x) in numbers.as_flattened_mut().iter_mut().enumerate().take(n) {
            // SAFETY: b is [4, n], and a bias as long as a row.
            *x = unsafe { if p < 4 { *b.from(p, l).at } else { *out.from(0, l).init } };
        }
    }
    let mut b = [[_mm256_setzero_ps(); C]; 5];
    for (b, numbers) in b.as_flattened_mut().iter_mut().zip(numbers.as_flattened()) {
        // SAFETY: a vector's numbers.
        *b = unsafe { _mm256_loadu_ps(numbers.as_ptr()) };
    }
    let alpha = _mm256_set1_ps(out.alpha);
    for i in 0..m {
        let (at, y) = (a.from(i, 0).at, out.from(i, 0).at);
        let mut sums = [_mm256_setzero_ps(); C];
        for (p, b) in b.iter().take(4).enumerate() {
            // SAFETY: number p of the four of row i.
            let x = _mm256_set1_ps(unsafe { *at.add(p) });
            for (sum, &b) in sums.iter_mut().zip(b) {
                *sum = _mm256_fmadd_ps(x, b, *sum);
            }
        }
        for (v, (&sum, &bias)) in sums.iter().zip(&b[4]).enumerate() {
            let (y, n) = (y.wrapping_add(v * W), if v + 1 < C { W } else { LAST });
            // SAFETY: n numbers of row i of y, of which no more are read or written; what is added to is y itself.
            unsafe {
                let start = match (ADD, n == W) {
                    (false, _) => bias,
                    (true, true) => _mm256_loadu_ps(y),
                    (true, false) => _mm256_maskload_ps(y, lanes(n)),
                };
                put(y, n, _mm256_fmadd_ps(alpha, sum, start));
            }
        }
    }
}

/// All rows of a b where a row of a is four numbers: two vectors of b's columns stay in registers, and rows go by.
///
/// # Safety
/// As of [`product`], with k = 4, and the columns of a and of `out` next to each other.
#[target_feature(enable = "avx2,fma")]
unsafe fn low(p: Product) {
    let mut j = 0;
    while j < p.n {
        let width = match p.n - j {
            left if left >= 2 * W => 2 * W,
            left => left.min(W),
        };
        let panel = Product { n: width, b: p.b.from(0, j), out: p.out.from(0, j), ..p };
        macro_rules! columns {
            ($vectors:literal, $last:literal) => {
                // SAFETY: columns j.. of y, no more than are left, as many as are said here.
                match p.out.init_rs > 0 {
                    true => unsafe { low_panel::<$vectors, $last, true>(panel) },
                    false => unsafe { low_panel::<$vectors, $last, false>(panel) },
                }
            };
        }
        match width {
            16 => columns!(2, 8),
            8 => columns!(1, 8),
            7 => columns!(1, 7),
            6 => columns!(1, 6),
            5 => columns!(1, 5),
            4 => columns!(1, 4),
            3 => columns!(1, 3),
            2 => columns!(1, 2),
            _ => columns!(1, 1),
        }
        j += width;
    }
}

/// The product, if this is the way to compute it.
///
/// # Safety
/// AVX2 and FMA; a [m, k], b [k, n] and `out` [m, n] are memory to read or write.
#[target_feature(enable = "avx2,fma")]
pub unsafe fn product(p: Product) -> bool {
    const SHORT: usize = 32;
    let Product { m, k, n, a, out, .. } = p;
    // SAFETY: this function's contract, and the sizes seen to.
    unsafe {
        match (p.narrow() && n <= 4, k) {
            (true, ..=SHORT) => few::<SHORT>(p),
            (true, _) => few::<LONGEST>(p),
            (false, 4) if m >= FEWEST && a.cs == 1 && out.cs == 1 => low(p),
            _ => return false,
        }
    }
    true
}
