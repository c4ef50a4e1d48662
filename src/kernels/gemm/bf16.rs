//! The product with operands rounded to bf16, by the instruction of AVX512-BF16 that multiplies 32 pairs of them and
//! adds to sixteen sums in single precision: twice the arithmetic of those in single precision in the same time.
//!
//! bf16 has the exponent of f32 and eight bits of significand. Rounding to nearest (even) moves a number by at most 2⁻⁸
//! of itself, so a product of two by at most 2⁻⁷ and a little, and mostly by less. The instruction takes numbers below
//! 2⁻¹²⁶ for zero.
//!
//! What a step costs with it is in `docs/kernels.md`. Products of width 4 have no kernels such as
//! [`super::tall_skinny_avx512`].
//!
//! Both operands are packed, which is when they are rounded: as pairs of numbers that follow each other along k.

use super::{
    operand::{FEW, MC, PACKED, Product, Room, View},
    tile::{columns, panels},
};
use crate::kernels::vector::{Avx512, first_of_sixteen, transpose_sixteen};
use std::arch::x86_64::*;

/// Numbers, or pairs of bf16 ones, in a vector.
const W: usize = 16;

/// The most steps of k at once.
const KC: usize = 512;

/// The room for MC rows of a, rounded together: pairs are walked along rows or along columns.
const ROOM: usize = KC / 2 * 2 * W;

/// Sixteen pairs: the lanes of `low` rounded, each followed by that of `high`.
#[inline]
#[target_feature(enable = "avx512f,avx512bf16")]
fn pair(low: __m512, high: __m512) -> __m512 {
    // SAFETY: 256 bits, whatever they mean.
    let bits = |x| _mm512_cvtepu16_epi32(unsafe { std::mem::transmute::<__m256bh, __m256i>(_mm512_cvtneps_pbh(x)) });
    _mm512_castsi512_ps(_mm512_or_si512(bits(low), _mm512_slli_epi32::<16>(bits(high))))
}

/// Sixteen pairs of 32 numbers in a row: n of them from `at` on, then zeros.
///
/// # Safety
/// AVX-512 with BF16; n > 0 numbers can be read.
#[inline]
#[target_feature(enable = "avx512f,avx512vl,avx512bf16")]
unsafe fn in_a_row(at: *const f32, n: usize) -> __m512 {
    // SAFETY: this function's contract; lanes without a mask bit are not read. 512 bits, whatever they mean.
    unsafe {
        let low = _mm512_maskz_loadu_ps(first_of_sixteen(n.min(W)), at);
        let high = if n > W {
            _mm512_maskz_loadu_ps(first_of_sixteen(n.min(2 * W) - W), at.add(W))
        } else {
            _mm512_setzero_ps()
        };
        std::mem::transmute::<__m512bh, __m512>(_mm512_cvtne2ps_pbh(high, low))
    }
}

/// The row of b [2, n] that is its first row and its second, or zeros: to c vectors.
///
/// # Safety
/// AVX-512 with BF16; b [1 or 2, n] is memory to read, its columns next to each other, `to` has c vectors.
#[inline]
#[target_feature(enable = "avx512f,avx512vl,avx512bf16")]
unsafe fn two_rows(rows: usize, n: usize, c: usize, b: View, to: *mut f32) {
    for v in 0..c {
        let mask = first_of_sixteen((n - v * W).min(W));
        // SAFETY: this function's contract; lanes without a mask bit are not read.
        unsafe {
            let low = _mm512_maskz_loadu_ps(mask, b.from(0, v * W).at);
            let high = if rows > 1 { _mm512_maskz_loadu_ps(mask, b.from(1, v * W).at) } else { _mm512_setzero_ps() };
            _mm512_storeu_ps(to.add(v * W), pair(low, high));
        }
    }
}

/// One panel of pairs of b [k, n], whose n columns fill c vectors.
///
/// # Safety
/// AVX-512 with BF16; b is memory to read, and `to` has ⌈k / 2⌉ rows of c vectors.
#[target_feature(enable = "avx512f,avx512vl,avx512bf16")]
unsafe fn pack_panel(k: usize, n: usize, c: usize, b: View, to: *mut f32) {
    if b.cs == 1 {
        for p in (0..k).step_by(2) {
            // SAFETY: rows p and p + 1 of k.
            unsafe { two_rows((k - p).min(2), n, c, b.from(p, 0), to.add(p / 2 * c * W)) };
        }
        return;
    }
    for v in 0..c {
        for p in (0..k).step_by(2 * W) {
            let steps = (k - p).min(2 * W);
            let mut columns = [_mm512_setzero_ps(); W];
            for (l, column) in columns.iter_mut().enumerate().take((n - v * W).min(W)) {
                let b = b.from(p, v * W + l);
                let mut numbers = [0f32; 2 * W];
                // SAFETY: column v W + l of n, and as many of its elements from p on as there are.
                *column = unsafe {
                    if b.rs == 1 {
                        in_a_row(b.at, steps)
                    } else {
                        (0..steps).for_each(|q| numbers[q] = *b.from(q, 0).at);
                        in_a_row(numbers.as_ptr(), steps)
                    }
                };
            }
            transpose_sixteen(&mut columns);
            for (q, &row) in columns.iter().enumerate().take(steps.div_ceil(2)) {
                // SAFETY: `to` has these rows of c vectors.
                unsafe { _mm512_storeu_ps(to.add(((p / 2 + q) * c + v) * W), row) };
            }
        }
    }
}

/// m ≤ MC rows of a [m, k] as pairs, and how they lie.
///
/// # Safety
/// AVX-512 with BF16; a is memory to read, and `to` has ROOM.
#[target_feature(enable = "avx512f,avx512vl,avx512bf16")]
unsafe fn pack_rows(m: usize, k: usize, a: View, to: *mut f32) -> View {
    if a.cs != 1 {
        let c = m.div_ceil(W);
        // SAFETY: the transpose of a has m columns, which fill c ≤ 2 vectors, and k ≤ KC rows.
        unsafe { pack_panel(k, m, c, View { rs: a.cs, cs: a.rs, ..a }, to) };
        return View { at: to, rs: 1, cs: c * W };
    }
    let rs = k.div_ceil(2).next_multiple_of(W);
    for i in 0..m {
        for p in (0..k).step_by(2 * W) {
            // SAFETY: elements p.. of k in row i of m ≤ MC; as many vectors as fill a row of `to`.
            unsafe { _mm512_storeu_ps(to.add(i * rs + p / 2), in_a_row(a.from(i, p).at, k - p)) };
        }
    }
    View { at: to, rs, cs: 1 }
}

/// The product, with N pairs on the stack for panels of b.
///
/// # Safety
/// As of [`product`]; N is room for KC / 2 rows of a vector, or for all of b with its columns rounded up to vectors.
#[inline(never)]
#[target_feature(enable = "avx512f,avx512vl,avx512bf16")]
unsafe fn packing<const N: usize>(v: Avx512<true>, Product { m, k, n, a, b, out }: Product) {
    let mut packed = Room::<N>::new();
    let mut rows = Room::<ROOM>::new();
    let (packed, rows) = (packed.0.as_mut_ptr().cast::<f32>(), &mut rows.0);
    let kc = k.div_ceil(k.div_ceil(KC).max(1)).max(2).next_multiple_of(2);
    let nc = N / (kc / 2) / W * W;
    for p in (0..k.max(1)).step_by(kc) {
        let steps = kc.min(k - p);
        let half = steps.div_ceil(2);
        for first in (0..n).step_by(nc) {
            let (cols, b, mut out) = (nc.min(n - first), b.from(p, first), out.from(0, first));
            if p > 0 {
                (out.init, out.init_rs) = (out.at, out.rs);
            }
            // SAFETY: rows p.. of k, i.. of m and columns first.. of n, no more than are left; each panel is where
            // it was packed.
            unsafe {
                for (j, cols, c) in panels::<Avx512>(cols) {
                    pack_panel(steps, cols, c, b.from(0, j), packed.add(j * half));
                }
                for i in (0..m).step_by(MC) {
                    let m = MC.min(m - i);
                    let a = pack_rows(m, steps, a.from(i, p), rows.as_mut_ptr().cast());
                    for (j, cols, c) in panels::<Avx512>(cols) {
                        let b = View { at: packed.add(j * half), rs: c * W, cs: 1 };
                        columns::<_, false>(v, (m, half, cols), a, b, out.from(i, j));
                    }
                }
            }
        }
    }
}

/// The product.
///
/// # Safety
/// a [m, k], b [k, n], `out` [m, n] and what it starts from are memory to read or write, and
/// `out` overlaps neither a nor b.
pub unsafe fn product(v: Avx512<true>, p: Product) {
    // SAFETY: this function's contract.
    unsafe {
        if p.k.div_ceil(2) * p.n.next_multiple_of(W) <= FEW { packing::<FEW>(v, p) } else { packing::<PACKED>(v, p) }
    }
}
