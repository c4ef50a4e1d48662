//! Products with at most four columns, y [m, n] = a [m, k] b [k, n], for a in rows and y without gaps; and with any, where
//! rows of a are four numbers.
//!
//! One row of y would leave half of a vector empty, so a vector holds two: the numbers of two rows of a side by side,
//! each spread over its half and multiplied by a row of b. Where y has up to eight columns, it holds one.

use super::tile::{lanes, put};
use crate::ops::gemm::operand::{FEWEST, LONGEST, Out, Product, View};
use std::{arch::x86_64::*, array::from_fn, mem::MaybeUninit};

/// Vectors of two rows that are summed at once: so many hide the latency of a multiplication.
const V: usize = 8;

/// What becomes of a vector that holds one or two rows of y.
struct End {
    out: Out,
    n: usize,
    alpha: __m256,
    bias: __m256,
}

impl End {
    /// Of vectors with `width` lanes a row.
    ///
    /// # Safety
    /// AVX2 and FMA; `out` [.., n] is memory, without gaps; n ≤ `width`.
    #[target_feature(enable = "avx2,fma")]
    unsafe fn new(width: usize, n: usize, out: Out) -> End {
        let mut bias = [0f32; 8];
        if !out.init.is_null() && out.init_rs == 0 {
            // SAFETY: a bias is as long as a row.
            (0..8).filter(|l| l % width < n).for_each(|l| bias[l] = unsafe { *out.init.add(l % width) });
        }
        // SAFETY: a vector's numbers.
        End { out, n, alpha: _mm256_set1_ps(out.alpha), bias: unsafe { _mm256_loadu_ps(bias.as_ptr()) } }
    }

    /// Write `rows` rows of `sums` to y from row i on: one, or two of four lanes each.
    ///
    /// # Safety
    /// AVX2 and FMA; y has these rows.
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    unsafe fn write(&self, i: usize, rows: usize, sums: __m256) {
        let v = _mm256_fmadd_ps(self.alpha, sums, self.bias);
        let (n, y) = (self.n, self.out.at.wrapping_add(i * self.n));
        // SAFETY: as many numbers as these rows have; what is added to, if its rows differ, is y itself.
        unsafe {
            if n == 4 || rows == 1 {
                let v = if self.out.init_rs > 0 { _mm256_add_ps(v, _mm256_maskload_ps(y, lanes(rows * n))) } else { v };
                return put(y, rows * n, v);
            }
            let mut numbers = [0f32; 8];
            _mm256_storeu_ps(numbers.as_mut_ptr(), v);
            for l in 0..2 * n {
                let x = numbers[l / n * 4 + l % n];
                *y.add(l) = if self.out.init_rs > 0 { x + *y.add(l) } else { x };
            }
        }
    }
}

/// The first number of each half in all of it; the second, third and fourth likewise.
#[inline]
#[target_feature(enable = "avx2")]
fn spread(x: __m256) -> [__m256; 4] {
    [
        _mm256_permute_ps::<0x00>(x),
        _mm256_permute_ps::<0x55>(x),
        _mm256_permute_ps::<0xaa>(x),
        _mm256_permute_ps::<0xff>(x),
    ]
}

/// Sixteen rows of a b, two to a vector; `table` is b with zeros beyond its columns, each row twice.
///
/// # Safety
/// AVX2 and FMA; `rows` are numbers of each row of a, as many as `table` has rows.
#[inline]
#[target_feature(enable = "avx2,fma")]
unsafe fn sixteen(rows: &[*const f32; 2 * V], table: &[[f32; 8]]) -> [__m256; V] {
    let mut sums = [_mm256_setzero_ps(); V];
    let mut fours = table.chunks_exact(4);
    let mut p = 0;
    for b in &mut fours {
        // SAFETY: rows of eight numbers.
        let b: [__m256; 4] = from_fn(|q| unsafe { _mm256_loadu_ps(b[q].as_ptr()) });
        for (v, sum) in sums.iter_mut().enumerate() {
            // SAFETY: four numbers from p on of two rows of a.
            let x = spread(unsafe { _mm256_loadu2_m128(rows[2 * v + 1].add(p), rows[2 * v].add(p)) });
            for q in 0..4 {
                *sum = _mm256_fmadd_ps(x[q], b[q], *sum);
            }
        }
        p += 4;
    }
    for b in fours.remainder() {
        for (v, sum) in sums.iter_mut().enumerate() {
            // SAFETY: number p of two rows of a, and a row of eight numbers.
            unsafe {
                let x = _mm256_set_m128(_mm_set1_ps(*rows[2 * v + 1].add(p)), _mm_set1_ps(*rows[2 * v].add(p)));
                *sum = _mm256_fmadd_ps(x, _mm256_loadu_ps(b.as_ptr()), *sum);
            }
        }
        p += 1;
    }
    sums
}

/// All rows of a b, n ≤ 4, by sixteens.
///
/// # Safety
/// As of [`product`], and k ≤ K.
#[inline(never)]
#[target_feature(enable = "avx2,fma")]
unsafe fn by_sixteen<const K: usize>(Product { m, k, n, a, b, out }: Product) {
    let mut table = [const { MaybeUninit::<[f32; 8]>::uninit() }; K];
    for (p, row) in table[..k].iter_mut().enumerate() {
        // SAFETY: b is [k, n].
        row.write(from_fn(|l| if l % 4 < n { unsafe { *b.from(p, l % 4).at } } else { 0.0 }));
    }
    // SAFETY: this function's contract; the rows of `table` were just written; rows beyond the last are the last once
    // more, and not written.
    unsafe {
        let table = std::slice::from_raw_parts(table.as_ptr().cast::<[f32; 8]>(), k);
        let end = End::new(4, n, out);
        for i in (0..m).step_by(2 * V) {
            let left = (m - i).min(2 * V);
            let rows = from_fn(|r| a.from(i + r.min(left - 1), 0).at);
            for (v, sums) in sixteen(&rows, table).into_iter().enumerate().take(left.div_ceil(2)) {
                end.write(i + 2 * v, (left - 2 * v).min(2), sums);
            }
        }
    }
}

/// All rows of a b where rows of a are four numbers without gaps, two rows to a vector if TWO (n ≤ 4), else one (n ≤ 8).
///
/// # Safety
/// As of [`product`].
#[inline(never)]
#[target_feature(enable = "avx2,fma")]
unsafe fn fours<const TWO: bool>(m: usize, n: usize, a: View, b: View, out: Out) {
    let (width, step) = if TWO { (4, 2) } else { (8, 1) };
    // SAFETY: this function's contract; lanes without a mask bit are not read.
    unsafe {
        let end = End::new(width, n, out);
        let b: [__m256; 4] = from_fn(|p| {
            let row: [f32; 8] = from_fn(|l| if l % width < n { *b.from(p, l % width).at } else { 0.0 });
            _mm256_loadu_ps(row.as_ptr())
        });
        for i in (0..m).step_by(step) {
            let (rows, at) = ((m - i).min(step), a.from(i, 0).at);
            let x = match (TWO, rows) {
                (false, _) => _mm256_set_m128(_mm_loadu_ps(at), _mm_loadu_ps(at)),
                (true, 2) => _mm256_loadu_ps(at),
                _ => _mm256_zextps128_ps256(_mm_loadu_ps(at)),
            };
            let x = spread(x);
            let s = _mm256_mul_ps(x[0], b[0]);
            let s = _mm256_fmadd_ps(x[1], b[1], s);
            let s = _mm256_fmadd_ps(x[2], b[2], s);
            end.write(i, rows, _mm256_fmadd_ps(x[3], b[3], s));
        }
    }
}

/// All rows of a b where a row of a is four numbers: two vectors of b's columns stay in registers, and rows go by.
///
/// # Safety
/// As of [`product`], with k = 4, and the columns of a and of `out` next to each other.
#[inline(never)]
#[target_feature(enable = "avx2,fma")]
unsafe fn low(Product { m, n, a, b, out, .. }: Product) {
    let alpha = _mm256_set1_ps(out.alpha);
    for j in (0..n).step_by(16) {
        let width = [(n - j).min(8), (n - j).saturating_sub(8).min(8)];
        let mut rows = [[0f32; 16]; 5];
        let bias = !out.init.is_null() && out.init_rs == 0;
        for (p, row) in rows.iter_mut().enumerate().take(if bias { 5 } else { 4 }) {
            for (l, x) in row.iter_mut().enumerate().take(width[0] + width[1]) {
                // SAFETY: b is [4, n], and a bias as long as a row.
                *x = unsafe { if p < 4 { *b.from(p, j + l).at } else { *out.from(0, j + l).init } };
            }
        }
        // SAFETY: eight of sixteen numbers.
        let load = |p: usize, v: usize| unsafe { _mm256_loadu_ps(rows[p].as_ptr().add(8 * v)) };
        let b: [[__m256; 2]; 4] = from_fn(|p| [load(p, 0), load(p, 1)]);
        let bias = [load(4, 0), load(4, 1)];
        for i in 0..m {
            // SAFETY: four numbers of row i of a, and row i of y; what is added to, if its rows differ, is y itself.
            unsafe {
                let at = a.from(i, 0).at;
                let x: [__m256; 4] = from_fn(|p| _mm256_set1_ps(*at.add(p)));
                let y = out.from(i, j).at;
                for v in 0..if width[1] > 0 { 2 } else { 1 } {
                    let s = _mm256_fmadd_ps(x[0], b[0][v], _mm256_setzero_ps());
                    let s = _mm256_fmadd_ps(x[1], b[1][v], s);
                    let s = _mm256_fmadd_ps(x[2], b[2][v], s);
                    let (s, y, n) = (_mm256_fmadd_ps(x[3], b[3][v], s), y.add(8 * v), width[v]);
                    let start = if out.init_rs > 0 { _mm256_maskload_ps(y, lanes(n)) } else { bias[v] };
                    put(y, n, _mm256_fmadd_ps(alpha, s, start));
                }
            }
        }
    }
}

/// The product, if this is the way to compute it.
///
/// # Safety
/// AVX2 and FMA; a [m, k], b [k, n] and `out` [m, n] are memory to read or write.
#[target_feature(enable = "avx2,fma")]
pub unsafe fn product(p: Product) -> bool {
    const SHORT: usize = 32;
    let Product { m, k, n, a, b, out } = p;
    // SAFETY: this function's contract, and the sizes seen to.
    unsafe {
        match (p.narrow(), n <= 4, k) {
            (true, true, 4) if a.rs == 4 => fours::<true>(m, n, a, b, out),
            (true, false, 4) if a.rs == 4 => fours::<false>(m, n, a, b, out),
            (true, true, ..=SHORT) => by_sixteen::<SHORT>(p),
            (true, true, _) => by_sixteen::<LONGEST>(p),
            (false, false, 4) if m >= FEWEST && a.cs == 1 && out.cs == 1 => low(p),
            _ => return false,
        }
    }
    true
}
