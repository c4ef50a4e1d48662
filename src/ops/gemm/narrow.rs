//! Products with at most eight columns, y [m, n] = a [m, k] b [k, n], for a in rows and y without gaps.
//!
//! One row of y would leave most of a vector empty. So sixteen rows of a are transposed, sixteen steps of k at a time,
//! and each column of y is one vector of sixteen rows, which gets numbers of a times one number of b; the columns are
//! turned back into rows at the end. Rows of four numbers are left as they are: see [`quarters`].

use super::{
    operand::{LONGEST, Out, Product, View},
    pack::{self, transpose},
    tile::{W, put, tail},
};
use std::{arch::x86_64::*, array::from_fn, mem::MaybeUninit};

/// What becomes of a vector that holds 4 / Q rows of y, each in Q quarters.
struct End {
    out: Out,
    n: usize,
    alpha: __m512,
    bias: __m512,
    /// The lanes that are columns of y.
    keep: __mmask16,
}

impl End {
    /// # Safety
    /// AVX-512F and VL; `out` [.., n] is memory, without gaps; n ≤ 4 Q.
    #[target_feature(enable = "avx512f,avx512vl")]
    unsafe fn new<const Q: usize>(n: usize, out: Out) -> End {
        let mut bias = [0f32; W];
        if !out.init.is_null() && out.init_rs == 0 {
            // SAFETY: a bias is as long as a row.
            (0..W).filter(|l| l % (4 * Q) < n).for_each(|l| bias[l] = unsafe { *out.init.add(l % (4 * Q)) });
        }
        let keep = (0..W).filter(|l| l % (4 * Q) < n).fold(0, |mask, l| mask | 1 << l);
        // SAFETY: a vector's numbers.
        let bias = unsafe { _mm512_loadu_ps(bias.as_ptr()) };
        End { out, n, alpha: _mm512_set1_ps(out.alpha), bias, keep }
    }

    /// Write the first `rows` rows of `sums` to y from row i on.
    ///
    /// # Safety
    /// AVX-512F and VL; y has these rows.
    #[inline]
    #[target_feature(enable = "avx512f,avx512vl")]
    unsafe fn write(&self, i: usize, rows: usize, sums: __m512) {
        let v = _mm512_fmadd_ps(self.alpha, sums, self.bias);
        let v = if self.keep == !0 { v } else { _mm512_maskz_compress_ps(self.keep, v) };
        let (mask, y) = (tail(rows * self.n), self.out.at.wrapping_add(i * self.n));
        // SAFETY: as many numbers as these rows have; what is added to, if its rows differ, is y itself.
        unsafe {
            let v = if self.out.init_rs > 0 { _mm512_add_ps(v, _mm512_maskz_loadu_ps(mask, y)) } else { v };
            put(y, mask, v);
        }
    }
}

/// Sixteen rows of four columns of a b, four rows to a vector; `table` is b with zeros beyond its columns.
///
/// # Safety
/// AVX-512F and VL; `rows` are numbers of each row of a, as many as `table` has rows. The same rows are fetched into the
/// cache from `ahead` on.
#[inline]
#[target_feature(enable = "avx512f,avx512vl")]
unsafe fn sixteen(mut rows: [*const f32; W], ahead: usize, table: &[[f32; 4]]) -> [__m512; 4] {
    let mut sums = [_mm512_setzero_ps(); 4];
    let mut chunks = table.chunks_exact(W);
    for table in &mut chunks {
        let mut steps = [_mm512_setzero_ps(); W];
        for (step, row) in steps.iter_mut().zip(&mut rows) {
            // SAFETY: this function's contract. What is fetched ahead is not read.
            *step = unsafe {
                _mm_prefetch::<_MM_HINT_T0>(row.wrapping_add(ahead).cast());
                _mm512_loadu_ps(*row)
            };
            *row = row.wrapping_add(W);
        }
        let steps = transpose(steps);
        for q in 0..W {
            for (sum, &b) in sums.iter_mut().zip(&table[q]) {
                *sum = _mm512_fmadd_ps(steps[q], _mm512_set1_ps(b), *sum);
            }
        }
    }
    let table = chunks.remainder();
    if !table.is_empty() {
        let mut steps = [_mm512_setzero_ps(); W];
        for (step, &row) in steps.iter_mut().zip(&rows) {
            // SAFETY: this function's contract; lanes without a mask bit are not read.
            *step = unsafe { _mm512_maskz_loadu_ps(tail(table.len()), row) };
        }
        let steps = transpose(steps);
        for (q, &step) in steps.iter().enumerate() {
            let Some(b) = table.get(q) else { break };
            for (sum, &b) in sums.iter_mut().zip(b) {
                *sum = _mm512_fmadd_ps(step, _mm512_set1_ps(b), *sum);
            }
        }
    }
    to_rows(sums)
}

/// Four columns of sixteen rows to four vectors of four rows.
#[inline]
#[target_feature(enable = "avx512f")]
fn to_rows([a, b, c, d]: [__m512; 4]) -> [__m512; 4] {
    let pd = |x| _mm512_castps_pd(x);
    let (ab, ab2) = (pd(_mm512_unpacklo_ps(a, b)), pd(_mm512_unpackhi_ps(a, b)));
    let (cd, cd2) = (pd(_mm512_unpacklo_ps(c, d)), pd(_mm512_unpackhi_ps(c, d)));
    // Quarter i of the q-th of these is row 4 i + q.
    pack::quarters([
        _mm512_castpd_ps(_mm512_unpacklo_pd(ab, cd)),
        _mm512_castpd_ps(_mm512_unpackhi_pd(ab, cd)),
        _mm512_castpd_ps(_mm512_unpacklo_pd(ab2, cd2)),
        _mm512_castpd_ps(_mm512_unpackhi_pd(ab2, cd2)),
    ])
}

/// All rows of a b, n ≤ 4, by sixteens.
///
/// # Safety
/// As of [`product`].
#[inline(never)]
#[target_feature(enable = "avx512f,avx512vl")]
unsafe fn by_sixteen<const K: usize>(m: usize, k: usize, n: usize, a: View, b: View, out: Out) {
    let mut table = [const { MaybeUninit::<[f32; 4]>::uninit() }; K];
    for (p, row) in table[..k].iter_mut().enumerate() {
        // SAFETY: b is [k, n].
        row.write(from_fn(|j| if j < n { unsafe { *b.from(p, j).at } } else { 0.0 }));
    }
    // SAFETY: this function's contract; the rows of `table` were just written; rows beyond the last are the last once
    // more, and not written.
    unsafe {
        let table = std::slice::from_raw_parts(table.as_ptr().cast::<[f32; 4]>(), k);
        let end = End::new::<1>(n, out);
        let mut rows = [a.at; W];
        for i in (0..m / W * W).step_by(W) {
            let mut at = a.from(i, 0).at;
            for row in &mut rows {
                *row = at;
                at = at.wrapping_add(a.rs);
            }
            for (v, sums) in sixteen(rows, W * a.rs, table).into_iter().enumerate() {
                end.write(i + 4 * v, 4, sums);
            }
        }
        let left = m % W;
        if left > 0 {
            for (r, row) in rows.iter_mut().enumerate() {
                *row = a.from(m - left + r.min(left - 1), 0).at;
            }
            for (v, sums) in sixteen(rows, W * a.rs, table).into_iter().enumerate().take(left.div_ceil(4)) {
                end.write(m - left + 4 * v, (left - 4 * v).min(4), sums);
            }
        }
    }
}

/// All rows of a b, n ≤ 4 Q, where rows of a are four numbers without gaps: a vector holds the rows of a that a vector
/// of y needs, each in Q quarters. Each number of a row is spread over its quarters and multiplied by the row of b.
///
/// # Safety
/// As of [`product`].
#[inline(never)]
#[target_feature(enable = "avx512f,avx512vl")]
unsafe fn quarters<const Q: usize>(m: usize, n: usize, a: View, b: View, out: Out) {
    // SAFETY: this function's contract; lanes without a mask bit are not read.
    unsafe {
        let end = End::new::<Q>(n, out);
        let b: [__m512; 4] = from_fn(|p| {
            let row: [f32; W] = from_fn(|l| if l % (4 * Q) < n { *b.from(p, l % (4 * Q)).at } else { 0.0 });
            _mm512_loadu_ps(row.as_ptr())
        });
        for i in (0..m).step_by(4 / Q) {
            let rows = (m - i).min(4 / Q);
            let x = _mm512_maskz_loadu_ps(tail(4 * rows), a.from(i, 0).at);
            let x = if Q == 1 { x } else { _mm512_shuffle_f32x4::<0x50>(x, x) };
            let s = _mm512_mul_ps(_mm512_permute_ps::<0x00>(x), b[0]);
            let s = _mm512_fmadd_ps(_mm512_permute_ps::<0x55>(x), b[1], s);
            let s = _mm512_fmadd_ps(_mm512_permute_ps::<0xaa>(x), b[2], s);
            end.write(i, rows, _mm512_fmadd_ps(_mm512_permute_ps::<0xff>(x), b[3], s));
        }
    }
}

/// The product, if this is the way to compute it.
///
/// # Safety
/// AVX-512F and VL; a [m, k], b [k, n] and `out` [m, n] are memory to read or write.
#[target_feature(enable = "avx512f,avx512vl")]
pub unsafe fn product(p: Product) -> bool {
    const SHORT: usize = 32;
    let Product { m, k, n, a, b, out } = p;
    if !p.narrow() {
        return false;
    }
    // SAFETY: this function's contract, and the sizes seen to.
    unsafe {
        match (n <= 4, k) {
            (true, 4) if a.rs == 4 => quarters::<1>(m, n, a, b, out),
            (false, 4) if a.rs == 4 => quarters::<2>(m, n, a, b, out),
            (true, ..=SHORT) => by_sixteen::<SHORT>(m, k, n, a, b, out),
            (true, _) => by_sixteen::<LONGEST>(m, k, n, a, b, out),
            (false, _) => return false,
        }
    }
    true
}
