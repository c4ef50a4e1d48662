//! Panels of b, next to each other in memory, for the kernels of [`super::tile`].

use super::tile::{W, lanes, panels};
use crate::kernels::gemm::{operand::View, tile::each};
use std::arch::x86_64::*;

/// The transpose of eight vectors.
#[inline]
#[target_feature(enable = "avx2")]
pub fn transpose(r: [__m256; W]) -> [__m256; W] {
    let pd = |x| _mm256_castps_pd(x);
    // Half l of the q-th of each four: number 4 l + q of their four rows.
    let four = |a, b, c, d| {
        let (ab, ab2) = (pd(_mm256_unpacklo_ps(a, b)), pd(_mm256_unpackhi_ps(a, b)));
        let (cd, cd2) = (pd(_mm256_unpacklo_ps(c, d)), pd(_mm256_unpackhi_ps(c, d)));
        [
            _mm256_castpd_ps(_mm256_unpacklo_pd(ab, cd)),
            _mm256_castpd_ps(_mm256_unpackhi_pd(ab, cd)),
            _mm256_castpd_ps(_mm256_unpacklo_pd(ab2, cd2)),
            _mm256_castpd_ps(_mm256_unpackhi_pd(ab2, cd2)),
        ]
    };
    let (x, y) = (four(r[0], r[1], r[2], r[3]), four(r[4], r[5], r[6], r[7]));
    let low = |x, y| _mm256_permute2f128_ps::<0x20>(x, y);
    let high = |x, y| _mm256_permute2f128_ps::<0x31>(x, y);
    [
        low(x[0], y[0]),
        low(x[1], y[1]),
        low(x[2], y[2]),
        low(x[3], y[3]),
        high(x[0], y[0]),
        high(x[1], y[1]),
        high(x[2], y[2]),
        high(x[3], y[3]),
    ]
}

/// Panels of b [k, n], each [k, 8 C], one after the other: the panel from column j on starts at element j k. Lanes beyond
/// the last column are zero.
///
/// # Safety
/// AVX2; b [k, n] is memory to read, and `to` has k times n, rounded up to vectors, numbers to write.
#[target_feature(enable = "avx2")]
pub unsafe fn pack(k: usize, n: usize, b: View, to: *mut f32) {
    if b.cs == 1 {
        // SAFETY: this function's contract.
        return unsafe { across(k, n, b, to) };
    }
    for (j, cols, c) in panels(n) {
        // SAFETY: columns j..j + cols of n, and as many vectors.
        unsafe {
            let (b, to) = (b.from(0, j), to.add(j * k));
            if b.rs == 1 {
                along(k, cols, c, b, to);
            } else {
                for p in 0..k {
                    for l in 0..c * W {
                        *to.add(p * c * W + l) = if l < cols { *b.from(p, l).at } else { 0.0 };
                    }
                }
            }
        }
    }
}

/// Rows that go to all panels before the next ones do, which are fetched into the cache meanwhile.
const ROWS: usize = 8;

/// All panels from rows of b, some rows at a time: b is read as it lies, and each panel written by whole lines.
///
/// # Safety
/// As of [`pack`], with b's columns next to each other.
#[target_feature(enable = "avx2")]
unsafe fn across(k: usize, n: usize, b: View, to: *mut f32) {
    for p in (0..k).step_by(ROWS) {
        let rows = ROWS.min(k - p);
        for (j, cols, c) in panels(n) {
            // SAFETY: rows p.. of k and columns j.. of n; `to` has whole vectors.
            unsafe {
                let (b, to) = (b.from(p, j), to.add(j * k + p * c * W));
                match (c, cols == c * W) {
                    (1, true) => copy::<1>(rows, b, to),
                    (2, true) => copy::<2>(rows, b, to),
                    (3, true) => copy::<3>(rows, b, to),
                    _ => part(rows, c, cols, b, to),
                }
            }
        }
    }
}

/// Rows of C vectors, next to each other.
///
/// # Safety
/// AVX2; b [rows, 8 C], its columns next to each other, is memory to read, `to` to write.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn copy<const C: usize>(rows: usize, b: View, to: *mut f32) {
    for r in 0..rows {
        each!(v < C, {
            let next = b.at.wrapping_add((r + ROWS) * b.rs + v * W);
            // SAFETY: this function's contract; what is fetched is not read, and may be past the end.
            unsafe {
                _mm_prefetch::<_MM_HINT_T0>(next.cast());
                _mm256_storeu_ps(to.add((r * C + v) * W), _mm256_loadu_ps(b.at.add(r * b.rs + v * W)));
            }
        });
    }
}

/// The same where the last vector is not full.
///
/// # Safety
/// AVX2; b [rows, cols], its columns next to each other, is memory to read, `to` [rows, 8 c] to write.
#[target_feature(enable = "avx2")]
unsafe fn part(rows: usize, c: usize, cols: usize, b: View, to: *mut f32) {
    for r in 0..rows {
        for v in 0..c {
            // SAFETY: the elements of b are those of the mask, and `to` has whole vectors.
            unsafe {
                let x = _mm256_maskload_ps(b.from(r, v * W).at, lanes(cols - v * W));
                _mm256_storeu_ps(to.add((r * c + v) * W), x);
            }
        }
    }
}

/// One panel from columns of b.
///
/// # Safety
/// As of [`pack`], with n columns that fill c vectors, and b's rows next to each other.
#[target_feature(enable = "avx2")]
unsafe fn along(k: usize, n: usize, c: usize, b: View, to: *mut f32) {
    for v in 0..c {
        for p in (0..k).step_by(W) {
            let steps = (k - p).min(W);
            let mut columns = [_mm256_setzero_ps(); W];
            for (l, column) in columns.iter_mut().enumerate().take((n - v * W).min(W)) {
                // SAFETY: column v W + l of n, and as many of its elements from p on as there are.
                *column = unsafe { _mm256_maskload_ps(b.from(p, v * W + l).at, lanes(steps)) };
            }
            for (q, &row) in transpose(columns).iter().enumerate().take(steps) {
                // SAFETY: `to` has k rows of c vectors.
                unsafe { _mm256_storeu_ps(to.add(((p + q) * c + v) * W), row) };
            }
        }
    }
}
