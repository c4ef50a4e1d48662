//! Rows to lanes and back in single precision with the vectors of four numbers that every x86-64 processor has, as
//! [`super::avx512`] does with sixteen; and sums that use vectors of four on any processor.

use crate::kernels::lanes::{L, Table};
use std::arch::x86_64::*;

/// The transpose of four vectors of four.
#[inline(always)]
fn transpose([a, b, c, d]: [__m128; 4]) -> [__m128; 4] {
    // SAFETY: every processor of this kind has the instructions.
    unsafe {
        let (ab, ab2) = (_mm_unpacklo_ps(a, b), _mm_unpackhi_ps(a, b));
        let (cd, cd2) = (_mm_unpacklo_ps(c, d), _mm_unpackhi_ps(c, d));
        [_mm_movelh_ps(ab, cd), _mm_movehl_ps(cd, ab), _mm_movelh_ps(ab2, cd2), _mm_movehl_ps(cd2, ab2)]
    }
}

/// Lanes 4 g to 4 g + 3.
#[inline(always)]
fn quarter(x: &[f32; L], g: usize) -> __m128 {
    let x = &x[4 * g..][..4];
    // SAFETY: four numbers.
    unsafe { _mm_loadu_ps(x.as_ptr()) }
}

/// From lanes to rows.
#[inline(always)]
fn put(y: &mut [f32; L], g: usize, v: __m128) {
    let y = &mut y[4 * g..][..4];
    // SAFETY: four numbers.
    unsafe { _mm_storeu_ps(y.as_mut_ptr(), v) };
}

/// [`super::transposed`].
#[inline(always)]
pub fn transposed(x: &[[f32; L]; 4]) -> [[f32; L]; 4] {
    let mut y = [[0.0; L]; 4];
    for g in 0..4 {
        let rows = transpose([quarter(&x[0], g), quarter(&x[1], g), quarter(&x[2], g), quarter(&x[3], g)]);
        for (y, row) in y.iter_mut().zip(rows) {
            put(y, g, row);
        }
    }
    y
}

/// [`super::horizontal_sums`].
#[inline(always)]
pub fn horizontal_sums<const F: usize>(x: &[[f32; L]; 4], from: usize) -> [f32; 4] {
    let groups = |x: &[f32; L]| {
        let mut sum = quarter(x, from);
        for g in from + 1..from + F {
            // SAFETY: every processor of this kind has the instruction.
            sum = unsafe { _mm_add_ps(sum, quarter(x, g)) };
        }
        sum
    };
    let [a, b, c, d] = transpose([groups(&x[0]), groups(&x[1]), groups(&x[2]), groups(&x[3])]);
    let mut y = [0.0; 4];
    // SAFETY: every processor of this kind has the instructions; four numbers.
    unsafe { _mm_storeu_ps(y.as_mut_ptr(), _mm_add_ps(_mm_add_ps(a, b), _mm_add_ps(c, d))) };
    y
}

/// [`super::order`].
#[inline(always)]
pub fn order(x: &[f32; L]) -> [f32; L] {
    let mut y = [0.0; L];
    let rows = transpose([quarter(x, 0), quarter(x, 1), quarter(x, 2), quarter(x, 3)]);
    for (g, row) in rows.into_iter().enumerate() {
        put(&mut y, g, row);
    }
    y
}

/// Lane l: the sum of the l-th sixteen numbers, i and i + 8 added first, then i and i + 4, i and i + 2, the last two.
#[inline(always)]
pub fn merged(x: &[[f32; L]; L]) -> [f32; L] {
    let mut y = [0.0; L];
    for g in 0..4 {
        // SAFETY: every processor of this kind has the instructions.
        unsafe {
            let four = |l: usize| {
                let x = &x[4 * g + l];
                let (even, odd) = (_mm_add_ps(quarter(x, 0), quarter(x, 2)), _mm_add_ps(quarter(x, 1), quarter(x, 3)));
                _mm_add_ps(even, odd)
            };
            let two = |a, b| _mm_add_ps(_mm_movelh_ps(a, b), _mm_movehl_ps(b, a));
            let (ab, cd) = (two(four(0), four(1)), two(four(2), four(3)));
            let sums = _mm_add_ps(_mm_shuffle_ps::<0b10_00_10_00>(ab, cd), _mm_shuffle_ps::<0b11_01_11_01>(ab, cd));
            put(&mut y, g, sums);
        }
    }
    y
}

/// The elements of rows `step` apart from `at[l]` on, times `scale[l]`, to lane l of y as the table says; of each row
/// the first k / 4 * 4.
///
/// # Safety
/// x has every such row, and y every such lane.
pub unsafe fn gather(
    x: &[f32],
    at: &[usize; L],
    step: usize,
    scale: &[f32; L],
    y: &mut [[f32; L]],
    Table { n, k, rs, cs }: Table,
) {
    let (x, y) = (x.as_ptr(), y.as_mut_ptr());
    for t in 0..n {
        for j in (0..k / 4 * 4).step_by(4) {
            for (g, at) in at.as_chunks::<4>().0.iter().enumerate() {
                // SAFETY: the four numbers from j on of row t of each lane, and their lanes of y.
                unsafe {
                    let x = x.add(t * step + j);
                    let rows = transpose(at.map(|at| _mm_loadu_ps(x.add(at))));
                    let (y, scale) = (y.add(t * rs + j * cs), quarter(scale, g));
                    for (m, row) in rows.into_iter().enumerate() {
                        _mm_storeu_ps(y.add(m * cs).cast::<f32>().add(4 * g), _mm_mul_ps(scale, row));
                    }
                }
            }
        }
    }
}

/// From lanes to rows for the first lanes, as many as `at` has: y's rows become lanes times `scale`, or get them added.
///
/// # Safety
/// As [`gather`], the other way round.
pub unsafe fn scatter(
    x: &[[f32; L]],
    Table { n, k, rs, cs }: Table,
    scale: f32,
    at: &[usize],
    step: usize,
    y: &mut [f32],
    add: bool,
) {
    let (x, y) = (x.as_ptr(), y.as_mut_ptr());
    for t in 0..n {
        for j in (0..k / 4 * 4).step_by(4) {
            for (g, at) in at.chunks(4).enumerate() {
                // SAFETY: four lanes of the four numbers from j on of row t, and these numbers of each lane's row.
                unsafe {
                    let x = x.add(t * rs + j * cs);
                    let rows = transpose([0, 1, 2, 3].map(|m| _mm_loadu_ps(x.add(m * cs).cast::<f32>().add(4 * g))));
                    for (at, row) in at.iter().zip(rows) {
                        let (y, row) = (y.add(at + t * step + j), _mm_mul_ps(_mm_set1_ps(scale), row));
                        _mm_storeu_ps(y, if add { _mm_add_ps(_mm_loadu_ps(y), row) } else { row });
                    }
                }
            }
        }
    }
}
