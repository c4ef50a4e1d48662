//! Rows to lanes and back, and products of lanes, in single precision with AVX-512: sixteen rows of four numbers are
//! four vectors of four quarters, which eight shuffles transpose. Left to itself, the compiler moves every number
//! alone. [`super::sse`] has the same functions for four rows at a time and shares no code: here vectors are put
//! together and taken apart by quarters (`vinsertf32x4`, `vextractf32x4`, `vshuff32x4`), for which vectors of four have
//! no instructions.

use crate::kernels::{
    lanes::{L, Table},
    vector::transpose_quarters,
};
use std::arch::{asm, x86_64::*};

/// The same vector, hidden from the compiler. It turns shuffles between loads and stores that it sees into moves of
/// single numbers, by tens.
#[inline]
#[target_feature(enable = "avx512f")]
fn opaque(mut v: __m512) -> __m512 {
    // SAFETY: no instruction at all.
    unsafe { asm!("/* {0} */", inout(zmm_reg) v, options(pure, nomem, nostack, preserves_flags)) };
    v
}

#[inline]
#[target_feature(enable = "avx512f")]
fn load(x: &[f32; L]) -> __m512 {
    // SAFETY: sixteen numbers.
    unsafe { _mm512_loadu_ps(x.as_ptr()) }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn store(v: __m512) -> [f32; L] {
    let mut y = [0.0; L];
    // SAFETY: sixteen numbers.
    unsafe { _mm512_storeu_ps(y.as_mut_ptr(), v) };
    y
}

/// [`super::transposed`].
#[inline]
#[target_feature(enable = "avx512f")]
pub fn transposed([a, b, c, d]: &[[f32; L]; 4]) -> [[f32; L]; 4] {
    let [a, b, c, d] = transpose_quarters([opaque(load(a)), opaque(load(b)), opaque(load(c)), opaque(load(d))]);
    [store(opaque(a)), store(opaque(b)), store(opaque(c)), store(opaque(d))]
}

/// [`super::order`].
#[inline]
#[target_feature(enable = "avx512f")]
pub fn order(x: &[f32; L]) -> [f32; L] {
    let from = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    store(_mm512_permutexvar_ps(from, load(x)))
}

/// [`super::fma`].
#[inline]
#[target_feature(enable = "avx512f")]
pub fn fma(y: &[f32; L], a: &[f32; L], x: &[f32; L]) -> [f32; L] {
    store(_mm512_fmadd_ps(load(a), load(x), load(y)))
}

/// Lane l: the sum of the l-th sixteen numbers, i and i + 8 added first, then i and i + 4, i and i + 2, the last two.
#[inline]
#[target_feature(enable = "avx512f")]
pub fn merged(x: &[[f32; L]; L]) -> [f32; L] {
    let mut of = [_mm512_setzero_ps(); 4];
    for (m, of) in of.iter_mut().enumerate() {
        // Halves of two rows: [m, m, 4 + m, 4 + m] by quarters, and so on.
        let [a, b] = [m, 8 + m].map(|l| {
            let (a, b) = (load(&x[l]), load(&x[l + 4]));
            _mm512_add_ps(_mm512_shuffle_f32x4::<0b01_00_01_00>(a, b), _mm512_shuffle_f32x4::<0b11_10_11_10>(a, b))
        });
        // Quarter g is of row 4 g + m.
        *of = _mm512_add_ps(_mm512_shuffle_f32x4::<0b10_00_10_00>(a, b), _mm512_shuffle_f32x4::<0b11_01_11_01>(a, b));
    }
    let pairs =
        |a, b| _mm512_add_ps(_mm512_shuffle_ps::<0b01_00_01_00>(a, b), _mm512_shuffle_ps::<0b11_10_11_10>(a, b));
    let (a, b) = (pairs(of[0], of[1]), pairs(of[2], of[3]));
    store(_mm512_add_ps(_mm512_shuffle_ps::<0b10_00_10_00>(a, b), _mm512_shuffle_ps::<0b11_01_11_01>(a, b)))
}

/// Four elements from each of the places m, 4 + m, 8 + m and 12 + m, one after another.
///
/// # Safety
/// AVX-512F; there are four numbers at each place, and m < 4.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn load_quarters(x: *const f32, at: &[usize; L], m: usize) -> __m512 {
    // SAFETY: the caller's.
    unsafe {
        let v = _mm512_castps128_ps512(_mm_loadu_ps(x.add(at[m])));
        let v = _mm512_insertf32x4::<1>(v, _mm_loadu_ps(x.add(at[4 + m])));
        let v = _mm512_insertf32x4::<2>(v, _mm_loadu_ps(x.add(at[8 + m])));
        _mm512_insertf32x4::<3>(v, _mm_loadu_ps(x.add(at[12 + m])))
    }
}

/// The elements of rows `step` apart from `at[l]` on, times `scale[l]`, to lane l of y as the table says; of each row
/// the first k / 4 * 4.
///
/// # Safety
/// AVX-512F; x has every such row, and y every such lane.
#[target_feature(enable = "avx512f")]
pub unsafe fn gather(
    x: &[f32],
    at: &[usize; L],
    step: usize,
    scale: &[f32; L],
    y: &mut [[f32; L]],
    Table { n, k, rs, cs }: Table,
) {
    let (x, y, scale) = (x.as_ptr(), y.as_mut_ptr(), load(scale));
    for t in 0..n {
        for j in (0..k / 4 * 4).step_by(4) {
            // SAFETY: the four numbers from j on of row t of each lane, and their lanes of y.
            unsafe {
                let x = x.add(t * step + j);
                let [a, b, c, d] = transpose_quarters([
                    load_quarters(x, at, 0),
                    load_quarters(x, at, 1),
                    load_quarters(x, at, 2),
                    load_quarters(x, at, 3),
                ]);
                let y = y.add(t * rs + j * cs);
                _mm512_storeu_ps(y.cast(), _mm512_mul_ps(scale, a));
                _mm512_storeu_ps(y.add(cs).cast(), _mm512_mul_ps(scale, b));
                _mm512_storeu_ps(y.add(2 * cs).cast(), _mm512_mul_ps(scale, c));
                _mm512_storeu_ps(y.add(3 * cs).cast(), _mm512_mul_ps(scale, d));
            }
        }
    }
}

/// From lanes to rows for the first lanes, as many as `at` has: y's rows become lanes times `scale`, or get them added.
///
/// # Safety
/// As [`gather`], the other way round.
#[target_feature(enable = "avx512f")]
pub unsafe fn scatter(
    x: &[[f32; L]],
    Table { n, k, rs, cs }: Table,
    scale: f32,
    at: &[usize],
    step: usize,
    y: &mut [f32],
    add: bool,
) {
    let (x, y, scale) = (x.as_ptr(), y.as_mut_ptr(), _mm512_set1_ps(scale));
    for t in 0..n {
        for j in (0..k / 4 * 4).step_by(4) {
            let mut quarters = [_mm_setzero_ps(); L];
            // SAFETY: the lanes of four numbers from j on of row t.
            let rows = unsafe {
                let x = x.add(t * rs + j * cs);
                let (a, b) = (_mm512_loadu_ps(x.cast()), _mm512_loadu_ps(x.add(cs).cast()));
                let (c, d) = (_mm512_loadu_ps(x.add(2 * cs).cast()), _mm512_loadu_ps(x.add(3 * cs).cast()));
                transpose_quarters([a, b, c, d])
            };
            for (m, row) in rows.into_iter().enumerate() {
                let row = _mm512_mul_ps(scale, row);
                quarters[m] = _mm512_castps512_ps128(row);
                quarters[4 + m] = _mm512_extractf32x4_ps::<1>(row);
                quarters[8 + m] = _mm512_extractf32x4_ps::<2>(row);
                quarters[12 + m] = _mm512_extractf32x4_ps::<3>(row);
            }
            for (at, quarter) in at.iter().zip(quarters) {
                // SAFETY: the four numbers from j on of row t of this lane.
                unsafe {
                    let y = y.add(at + t * step + j);
                    _mm_storeu_ps(y, if add { _mm_add_ps(_mm_loadu_ps(y), quarter) } else { quarter });
                }
            }
        }
    }
}
