//! The innermost loops: a tile of y, R rows of C vectors of eight columns, stays in registers while k runs, as in the
//! tile of AVX-512. Twelve sums, two vectors of b and a number of a are what sixteen registers hold with room to spare:
//! with three vectors of b the compiler keeps one of twelve sums in memory.

use crate::kernels::gemm::{
    operand::{self, Out, View},
    tile::each,
};
use std::{arch::x86_64::*, ptr::null};

/// Numbers in a vector.
pub const W: usize = 8;

/// From how many steps on a tile of y is fetched into the cache meanwhile.
const LONG: usize = 16;

/// The lanes that n ≤ 8 columns fill.
#[inline]
#[target_feature(enable = "avx2")]
pub fn lanes(n: usize) -> __m256i {
    static MASKS: [i32; 2 * W] = [-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0];
    // SAFETY: eight of sixteen numbers.
    unsafe { _mm256_loadu_si256(MASKS.as_ptr().add(W - n.min(W)).cast()) }
}

/// How many vectors of columns a panel takes where n > 0 are left: two, or three where the number left is odd, and the
/// last one alone only where there is but one.
fn panel(n: usize) -> usize {
    match n.div_ceil(W) {
        1 => 1,
        vectors if vectors % 2 == 1 => 3,
        _ => 2,
    }
}

/// The panels of n columns.
pub fn panels(n: usize) -> impl Iterator<Item = (usize, usize, usize)> {
    operand::panels(n, W, panel)
}

/// Write the first n ≤ 8 lanes. Stores with a mask are very slow on some processors, and short rows common.
///
/// # Safety
/// AVX2; y has n numbers.
#[inline]
#[target_feature(enable = "avx2")]
pub unsafe fn put(mut y: *mut f32, n: usize, v: __m256) {
    // SAFETY: four numbers, two and one, as the bits of n say: n in all, at any address.
    unsafe {
        if n >= W {
            return _mm256_storeu_ps(y, v);
        }
        let mut rest = _mm256_castps256_ps128(v);
        if n & 4 != 0 {
            _mm_storeu_ps(y, rest);
            (y, rest) = (y.add(4), _mm256_extractf128_ps::<1>(v));
        }
        if n & 2 != 0 {
            y.cast::<f64>().write_unaligned(_mm_cvtsd_f64(_mm_castps_pd(rest)));
            (y, rest) = (y.add(2), _mm_movehl_ps(rest, rest));
        }
        if n & 1 != 0 {
            _mm_store_ss(y, rest);
        }
    }
}

/// How the numbers of a lie, known to the compiler: an address is then a register and a constant, which is what makes
/// the loop over k as fast as the multiplications.
const ROWS: u8 = 0;
const COLUMNS: u8 = 1;
const ANYHOW: u8 = 2;

/// sums += column q of a [R, ..] times C vectors of b, or the lanes of `mask` of one.
///
/// # Safety
/// AVX2 and FMA; a and b have these elements.
#[inline]
#[target_feature(enable = "avx2,fma")]
unsafe fn step<const R: usize, const C: usize, const A: u8, const M: bool>(
    sums: &mut [[__m256; C]; R],
    (a, q): (View, usize),
    (b, mask): (*const f32, __m256i),
) {
    let mut row = [_mm256_setzero_ps(); C];
    // SAFETY: this function's contract; lanes without a mask bit are not read.
    each!(c < C, { row[c] = unsafe { if M { _mm256_maskload_ps(b, mask) } else { _mm256_loadu_ps(b.add(c * W)) } } });
    each!(r < R, {
        let at = match A {
            ROWS => r * a.rs + q,
            COLUMNS => r + q * a.cs,
            _ => r * a.rs + q * a.cs,
        };
        // SAFETY: this function's contract.
        let a = _mm256_set1_ps(unsafe { *a.at.add(at) });
        each!(c < C, { sums[r][c] = _mm256_fmadd_ps(a, row[c], sums[r][c]) });
    });
}

/// R rows and C vectors of columns next to each other, of which `last` of the last vector are wanted; if M, C is 1 and no
/// more are there.
///
/// # Safety
/// AVX2 and FMA; a [R, k], which lies as A says, b [k, 8 C], or the wanted columns of it if M, and those of `out` are
/// memory to read or write.
#[inline(never)]
#[target_feature(enable = "avx2,fma")]
unsafe fn tile<const R: usize, const C: usize, const A: u8, const M: bool>(
    k: usize,
    mut a: View,
    b: View,
    out: &Out,
    last: usize,
) {
    let mut sums = [[_mm256_setzero_ps(); C]; R];
    let (mut bp, mask) = (b.at, lanes(last));
    // SAFETY: k steps in all, each inside of a and b; the addresses past the end are not read.
    unsafe {
        if k >= LONG {
            for r in 0..R {
                _mm_prefetch::<_MM_HINT_ET0>(out.from(r, 0).at.cast());
            }
        }
        // Four steps at once, so that the end of even a short loop is foreseen.
        for _ in 0..k / 4 {
            for q in 0..4 {
                step::<R, C, A, M>(&mut sums, (a, q), (bp.add(q * b.rs), mask));
            }
            (a, bp) = (a.from(0, 4), bp.wrapping_add(4 * b.rs));
        }
        for _ in 0..k % 4 {
            step::<R, C, A, M>(&mut sums, (a, 0), (bp, mask));
            (a, bp) = (a.from(0, 1), bp.wrapping_add(b.rs));
        }
        // y = alpha sums + init: here, and not in a function, to which the sums would go through memory; and whole vectors
        // without a question between them.
        static ZEROS: [f32; 3 * W] = [0.0; 3 * W];
        let alpha = _mm256_set1_ps(out.alpha);
        let (init, init_rs) = if out.init.is_null() { (ZEROS.as_ptr(), 0) } else { (out.init, out.init_rs) };
        if last == W {
            each!(r < R, {
                each!(c < C, {
                    let init = _mm256_loadu_ps(init.add(r * init_rs + c * W));
                    _mm256_storeu_ps(out.at.add(r * out.rs + c * W), _mm256_fmadd_ps(alpha, sums[r][c], init));
                });
            });
        } else {
            each!(r < R, {
                each!(c < C, {
                    let n = if c + 1 < C { W } else { last };
                    let init = init.wrapping_add(r * init_rs + c * W);
                    let init = if c + 1 < C { _mm256_loadu_ps(init) } else { _mm256_maskload_ps(init, mask) };
                    put(out.at.add(r * out.rs + c * W), n, _mm256_fmadd_ps(alpha, sums[r][c], init));
                });
            });
        }
    }
}

/// m rows and C vectors of columns.
///
/// # Safety
/// As of `tile`, with m for R.
#[target_feature(enable = "avx2,fma")]
unsafe fn rows<const C: usize, const A: u8, const M: bool>(
    m: usize,
    k: usize,
    a: View,
    b: View,
    out: Out,
    last: usize,
) {
    let mut i = 0;
    while i < m {
        let (a, out) = (a.from(i, 0), &out.from(i, 0));
        // SAFETY: rows i.. of m, no more than are left.
        i += unsafe {
            match m - i {
                8.. if C == 1 => (tile::<8, C, A, M>(k, a, b, out, last), 8),
                6.. if C == 2 && m - i != 8 => (tile::<6, C, A, M>(k, a, b, out, last), 6),
                4.. if C < 3 => (tile::<4, C, A, M>(k, a, b, out, last), 4),
                3.. if C == 3 => (tile::<3, C, A, M>(k, a, b, out, last), 3),
                2.. => (tile::<2, C, A, M>(k, a, b, out, last), 2),
                _ => (tile::<1, C, A, M>(k, a, b, out, last), 1),
            }
        }
        .1;
    }
}

/// y [m, n ≤ 24], whose columns are anywhere, from `sums`, which computes so many rows from one on, without gaps.
///
/// # Safety
/// `out` [m, n] is memory to read and write; `sums` writes n columns of as many rows as it is told.
#[inline]
#[target_feature(enable = "avx2,fma")]
unsafe fn scattered(m: usize, n: usize, out: Out, sums: impl Fn(usize, usize, Out)) {
    const R: usize = 6;
    let mut packed = [0f32; R * 3 * W];
    for i in (0..m).step_by(R) {
        let rows = R.min(m - i);
        let to = Out { at: packed.as_mut_ptr(), rs: 3 * W, cs: 1, alpha: 1.0, init: null(), init_rs: 0 };
        sums(i, rows, to);
        for r in 0..rows {
            for j in 0..n {
                let out = out.from(i + r, j);
                // SAFETY: `out` has the element, by this function's contract.
                unsafe {
                    let init = if out.init.is_null() { 0.0 } else { *out.init };
                    *out.at = out.alpha.mul_add(packed[r * 3 * W + j], init);
                }
            }
        }
    }
}

/// A panel with n columns: b is [k, 8 C], its columns next to each other.
///
/// # Safety
/// AVX2 and FMA; a [m, k], b and `out` [m, n] are memory to read or write.
#[target_feature(enable = "avx2,fma")]
pub unsafe fn columns(m: usize, k: usize, n: usize, a: View, b: View, out: Out) {
    if out.cs != 1 {
        // SAFETY: this function's contract; rows i.. of m, no more than are left.
        return unsafe { scattered(m, n, out, |i, m, out| columns(m, k, n, a.from(i, 0), b, out)) };
    }
    let c = panel(n);
    let last = n - (c - 1) * W;
    // SAFETY: this function's contract.
    unsafe {
        match (c, a.rs, a.cs) {
            (1, _, 1) => rows::<1, ROWS, false>(m, k, a, b, out, last),
            (1, 1, _) => rows::<1, COLUMNS, false>(m, k, a, b, out, last),
            (1, ..) => rows::<1, ANYHOW, false>(m, k, a, b, out, last),
            (2, _, 1) => rows::<2, ROWS, false>(m, k, a, b, out, last),
            (2, 1, _) => rows::<2, COLUMNS, false>(m, k, a, b, out, last),
            (2, ..) => rows::<2, ANYHOW, false>(m, k, a, b, out, last),
            (_, _, 1) => rows::<3, ROWS, false>(m, k, a, b, out, last),
            (_, 1, _) => rows::<3, COLUMNS, false>(m, k, a, b, out, last),
            _ => rows::<3, ANYHOW, false>(m, k, a, b, out, last),
        }
    }
}

/// The last n < 8 columns, where b [k, n] has no more.
///
/// # Safety
/// AVX2 and FMA; a [m, k], b and `out` [m, n] are memory to read or write.
#[target_feature(enable = "avx2,fma")]
pub unsafe fn rest(m: usize, k: usize, n: usize, a: View, b: View, out: Out) {
    if out.cs != 1 {
        // SAFETY: this function's contract; rows i.. of m, no more than are left.
        return unsafe { scattered(m, n, out, |i, m, out| rest(m, k, n, a.from(i, 0), b, out)) };
    }
    // SAFETY: this function's contract.
    unsafe {
        match (a.rs, a.cs) {
            (_, 1) => rows::<1, ROWS, true>(m, k, a, b, out, n),
            (1, _) => rows::<1, COLUMNS, true>(m, k, a, b, out, n),
            _ => rows::<1, ANYHOW, true>(m, k, a, b, out, n),
        }
    }
}
