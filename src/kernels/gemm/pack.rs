//! Panels of b, next to each other in memory, for the kernels of [`super::tile`].

use super::{
    operand::View,
    tile::{W, panels, tail},
};
use crate::kernels::lanes::avx512::transpose_quarters;
use std::arch::x86_64::*;

/// The transpose of sixteen vectors. (Loops, not `from_fn`: a closure of this instruction set may not be inlined into
/// a function without it.)
#[inline]
#[target_feature(enable = "avx512f")]
pub fn transpose(mut r: [__m512; W]) -> [__m512; W] {
    for i in (0..W).step_by(4) {
        // Quarter l of the q-th of these is column 4 l + q of the four rows.
        let columns = transpose_quarters([r[i], r[i + 1], r[i + 2], r[i + 3]]);
        (r[i], r[i + 1], r[i + 2], r[i + 3]) = (columns[0], columns[1], columns[2], columns[3]);
    }
    for q in 0..4 {
        let columns = quarters([r[q], r[4 + q], r[8 + q], r[12 + q]]);
        (r[q], r[4 + q], r[8 + q], r[12 + q]) = (columns[0], columns[1], columns[2], columns[3]);
    }
    r
}

/// The transpose of four vectors of four quarters.
#[inline]
#[target_feature(enable = "avx512f")]
pub fn quarters([a, b, c, d]: [__m512; 4]) -> [__m512; 4] {
    let (even, odd) = (_mm512_shuffle_f32x4::<0x88>(a, b), _mm512_shuffle_f32x4::<0xdd>(a, b));
    let (even2, odd2) = (_mm512_shuffle_f32x4::<0x88>(c, d), _mm512_shuffle_f32x4::<0xdd>(c, d));
    [
        _mm512_shuffle_f32x4::<0x88>(even, even2),
        _mm512_shuffle_f32x4::<0x88>(odd, odd2),
        _mm512_shuffle_f32x4::<0xdd>(even, even2),
        _mm512_shuffle_f32x4::<0xdd>(odd, odd2),
    ]
}

/// Panels of b [k, n], each [k, 16 C], one after the other: the panel from column j on starts at element j k. Lanes
/// beyond the last column are left as they are, or zero.
///
/// # Safety
/// AVX-512F; b [k, n] is memory to read, and `to` has k times n, rounded up to vectors, numbers to write.
#[target_feature(enable = "avx512f,avx512vl")]
pub unsafe fn pack(k: usize, n: usize, b: View, to: *mut f32) {
    for (j, cols, c) in panels(n) {
        // SAFETY: columns j..j + cols of n, and as many vectors.
        unsafe {
            let (b, to) = (b.from(0, j), to.add(j * k));
            match (b.rs, b.cs) {
                (_, 1) => across(k, cols, c, b, to),
                (1, _) => along(k, cols, c, b, to),
                _ => (0..k * cols).for_each(|i| *to.add(i / cols * c * W + i % cols) = *b.from(i / cols, i % cols).at),
            }
        }
    }
}

/// One panel from rows of b.
///
/// # Safety
/// As of [`pack`], with n columns that fill C vectors, and b's columns next to each other.
#[target_feature(enable = "avx512f,avx512vl")]
unsafe fn across(k: usize, n: usize, c: usize, b: View, to: *mut f32) {
    for p in 0..k {
        for v in 0..c {
            let mask = if v + 1 == c { tail(n) } else { !0 };
            // SAFETY: the elements of b are those of the mask, and `to` has whole vectors.
            unsafe { _mm512_storeu_ps(to.add((p * c + v) * W), _mm512_maskz_loadu_ps(mask, b.from(p, v * W).at)) };
        }
    }
}

/// One panel from columns of b.
///
/// # Safety
/// As of [`pack`], with n columns that fill C vectors, and b's rows next to each other.
#[target_feature(enable = "avx512f,avx512vl")]
unsafe fn along(k: usize, n: usize, c: usize, b: View, to: *mut f32) {
    for v in 0..c {
        for p in (0..k).step_by(W) {
            let steps = (k - p).min(W);
            let mut columns = [_mm512_setzero_ps(); W];
            for (l, column) in columns.iter_mut().enumerate() {
                let j = v * W + l;
                if j < n {
                    // SAFETY: column j of n, and as many of its elements from p on as there are.
                    *column = unsafe { _mm512_maskz_loadu_ps(tail(steps), b.from(p, j).at) };
                }
            }
            for (q, &row) in transpose(columns).iter().enumerate().take(steps) {
                // SAFETY: `to` has k rows of c vectors.
                unsafe { _mm512_storeu_ps(to.add(((p + q) * c + v) * W), row) };
            }
        }
    }
}
