//! Products with at most eight columns with AVX-512, y [m, n] = a [m, k] b [k, n], for a in rows and y without gaps.
//!
//! One row of y would leave most of a vector empty. So sixteen rows of a are transposed, four steps of k at a time, and
//! each column of y is one vector of sixteen rows, which gets elements of a times one element of b; the columns are
//! turned back into rows at the end. A vector to transpose is put together from four elements of four rows, a quarter
//! each: loads do half of the work that shuffles would. Rows of one, two or four elements are left as they are: see
//! [`spread`].
//!
//! This and the AVX2 path are two algorithms, not one over [`Vector`](crate::kernels::vector::Vector): 32 registers hold
//! the transposed steps beside all sums, so that they need not go through memory; masks leave out rows and columns;
//! `vcompressps` packs rows of any n, and `vpermps` spreads elements over sixteen lanes.

use super::operand::{LONGEST, Out, Product, View};
use crate::kernels::vector::{first_of_sixteen, put_sixteen, quarters, transpose_quarters};
use std::{arch::x86_64::*, array::from_fn, mem::MaybeUninit};

/// Numbers in a vector.
const W: usize = 16;

/// The last step for a vector that holds 4 / Q rows of y, each in Q quarters.
struct End {
    out: Out,
    n: usize,
    alpha: __m512,
    /// The numbers that are added to these rows as they follow each other in y, unless y itself is.
    bias: __m512,
    /// The lanes that are columns of y.
    keep: __mmask16,
}

/// The n elements of row p of b and zeros.
///
/// # Safety
/// AVX-512F and VL; b has this row of n elements, 1 to 16.
#[inline]
#[target_feature(enable = "avx512f,avx512vl")]
unsafe fn row(b: View, p: usize, n: usize) -> __m512 {
    // SAFETY: this function's contract; lanes without a mask bit are not read.
    unsafe {
        if b.cs == 1 {
            return _mm512_maskz_loadu_ps(first_of_sixteen(n), b.from(p, 0).at);
        }
        let mut row = [0f32; W];
        row[..n].iter_mut().enumerate().for_each(|(j, x)| *x = *b.from(p, j).at);
        _mm512_loadu_ps(row.as_ptr())
    }
}

/// The first 4 Q elements of a vector in all of its quarters.
#[inline]
#[target_feature(enable = "avx512f")]
fn repeated<const Q: usize>(v: __m512) -> __m512 {
    let lanes: [i32; W] = from_fn(|l| (l % (4 * Q)) as i32);
    // SAFETY: a vector's elements.
    _mm512_permutexvar_ps(unsafe { _mm512_loadu_si512(lanes.as_ptr().cast()) }, v)
}

impl End {
    /// # Safety
    /// AVX-512F and VL; `out` [.., n] is memory, without gaps; 0 < n ≤ 4 Q.
    #[target_feature(enable = "avx512f,avx512vl")]
    unsafe fn new<const Q: usize>(n: usize, out: Out) -> End {
        let keep = (0..W).step_by(4 * Q).fold(0, |mask, l| mask | first_of_sixteen(n) << l);
        let mut bias = _mm512_setzero_ps();
        if !out.init.is_null() && out.init_rs == 0 {
            // SAFETY: a bias is as long as a row.
            let row = unsafe { row(View { at: out.init, rs: 0, cs: 1 }, 0, n) };
            bias = _mm512_maskz_compress_ps(keep, repeated::<Q>(row));
        }
        End { out, n, alpha: _mm512_set1_ps(out.alpha), bias, keep }
    }

    /// Write the first `rows` rows of `sums` to y from row i on.
    ///
    /// # Safety
    /// AVX-512F and VL; y has these rows, one or more.
    #[inline]
    #[target_feature(enable = "avx512f,avx512vl")]
    unsafe fn write(&self, i: usize, rows: usize, sums: __m512) {
        let sums = if self.fills() { sums } else { _mm512_maskz_compress_ps(self.keep, sums) };
        let (mask, y) = (first_of_sixteen(rows * self.n), self.out.at.wrapping_add(i * self.n));
        // SAFETY: as many elements as these rows have; what is added to, if its rows differ, is y itself.
        unsafe {
            let init = if self.out.init_rs > 0 { _mm512_maskz_loadu_ps(mask, y) } else { self.bias };
            put_sixteen(y, mask, _mm512_fmadd_ps(self.alpha, sums, init));
        }
    }

    /// [`End::write`] for a whole vector of rows, of as many columns as it has room for.
    ///
    /// # Safety
    /// The same; [`End::fills`] says so.
    #[inline]
    #[target_feature(enable = "avx512f,avx512vl")]
    unsafe fn write_whole(&self, i: usize, sums: __m512) {
        let y = self.out.at.wrapping_add(i * self.n);
        // SAFETY: the same.
        unsafe {
            let init = if self.out.init_rs > 0 { _mm512_loadu_ps(y) } else { self.bias };
            _mm512_storeu_ps(y, _mm512_fmadd_ps(self.alpha, sums, init));
        }
    }

    /// Whether rows of y fill a vector.
    fn fills(&self) -> bool {
        self.keep == !0
    }
}

/// Four steps of sixteen rows, a vector each, or as many as `mask` says and zeros. If LAST, only the first `left` rows,
/// one or more, are there; the others are the last of them once more.
///
/// # Safety
/// AVX-512F and VL; these rows have these elements.
#[inline]
#[target_feature(enable = "avx512f,avx512vl")]
unsafe fn steps<const LAST: bool>(a: View, left: usize, mask: __mmask8) -> [__m512; 4] {
    // SAFETY: this function's contract; lanes without a mask bit are not read.
    let four = |r: usize| unsafe {
        let row = a.from(if LAST { r.min(left - 1) } else { r }, 0).at;
        if mask == 0xf { _mm_loadu_ps(row) } else { _mm_maskz_loadu_ps(mask, row) }
    };
    let mut x = [_mm512_setzero_ps(); 4];
    for (r, x) in x.iter_mut().enumerate() {
        *x = _mm512_castps128_ps512(four(r));
        *x = _mm512_insertf32x4::<1>(*x, four(4 + r));
        *x = _mm512_insertf32x4::<2>(*x, four(8 + r));
        *x = _mm512_insertf32x4::<3>(*x, four(12 + r));
    }
    transpose_quarters(x)
}

/// `rows` rows of a b from i on, sixteen at a time; `table` is b with zeros beyond its columns. If LAST they are fewer
/// than sixteen, else a multiple of it.
///
/// # Safety
/// AVX-512F and VL; a has these rows, of as many elements as `table` has rows, and y has them.
#[inline]
#[target_feature(enable = "avx512f,avx512vl")]
unsafe fn sixteens<const Q: usize, const LAST: bool>(
    mut i: usize,
    rows: usize,
    a: View,
    table: &[[[f32; 4]; Q]],
    end: &End,
) {
    let (blocks, rest) = table.as_chunks::<4>();
    for _ in 0..rows.div_ceil(W) {
        let (mut a, mut sums) = (a.from(i, 0), [[_mm512_setzero_ps(); 4]; Q]);
        for table in blocks {
            // SAFETY: this function's contract.
            let steps = unsafe { steps::<LAST>(a, rows, 0xf) };
            for (&step, b) in steps.iter().zip(table) {
                for (sum, &b) in sums.as_flattened_mut().iter_mut().zip(b.as_flattened()) {
                    *sum = _mm512_fmadd_ps(step, _mm512_set1_ps(b), *sum);
                }
            }
            a = a.from(0, 4);
        }
        if !rest.is_empty() {
            // SAFETY: the same.
            let steps = unsafe { steps::<LAST>(a, rows, 0xf >> (4 - rest.len())) };
            // Not two iterators side by side: the steps would be written to memory for one of them.
            for (q, &step) in steps.iter().enumerate() {
                let Some(b) = rest.get(q) else { break };
                for (sum, &b) in sums.as_flattened_mut().iter_mut().zip(b.as_flattened()) {
                    *sum = _mm512_fmadd_ps(step, _mm512_set1_ps(b), *sum);
                }
            }
        }
        let (each, left) = (4 / Q, if LAST { rows } else { W });
        for (v, &sums) in in_rows(sums).as_flattened().iter().enumerate().take(left.div_ceil(each)) {
            // SAFETY: the same.
            unsafe {
                if !LAST && end.fills() {
                    end.write_whole(i + each * v, sums);
                } else {
                    end.write(i + each * v, (left - each * v).min(each), sums);
                }
            }
        }
        i += W;
    }
}

/// 4 Q columns of sixteen rows to vectors of 4 / Q rows.
#[inline]
#[target_feature(enable = "avx512f")]
fn in_rows<const Q: usize>(mut sums: [[__m512; 4]; Q]) -> [[__m512; 4]; Q] {
    for sums in &mut sums {
        *sums = quarters(transpose_quarters(*sums));
    }
    if Q == 2 {
        // Of each row both halves: four rows' first halves are in one vector, their second ones in another.
        let low = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
        let high = _mm512_add_epi32(low, _mm512_set1_epi32(8));
        let (first, second) = (sums[0], sums[Q - 1]);
        for v in 0..4 {
            sums[v / 2][v % 2 * 2] = _mm512_permutex2var_ps(first[v], low, second[v]);
            sums[v / 2][v % 2 * 2 + 1] = _mm512_permutex2var_ps(first[v], high, second[v]);
        }
    }
    sums
}

/// All rows of a b, n ≤ 4 Q, by sixteens.
///
/// # Safety
/// As of [`product`]; [`Product::few_columns`]; k ≤ K.
#[inline(never)]
#[target_feature(enable = "avx512f,avx512vl")]
unsafe fn by_sixteen<const Q: usize, const K: usize>(m: usize, k: usize, n: usize, a: View, b: View, out: Out) {
    let mut table = [const { MaybeUninit::<[[f32; 4]; Q]>::uninit() }; K];
    for (p, to) in table[..k].iter_mut().enumerate() {
        let mut numbers = [0f32; W];
        // SAFETY: b is [k, n].
        unsafe { _mm512_storeu_ps(numbers.as_mut_ptr(), row(b, p, n)) };
        to.write(from_fn(|q| from_fn(|j| numbers[4 * q + j])));
    }
    // SAFETY: this function's contract; the rows of `table` were just written.
    unsafe {
        let table = std::slice::from_raw_parts(table.as_ptr().cast::<[[f32; 4]; Q]>(), k);
        let (end, left) = (End::new::<Q>(n, out), m % W);
        sixteens::<Q, false>(0, m - left, a, table, &end);
        if left > 0 {
            sixteens::<Q, true>(m - left, left, a, table, &end);
        }
    }
}

/// All rows of a b, n ≤ 4 Q, where rows of a are K elements without gaps, one, two or four: of the rows of a that a
/// vector of y needs, each element is spread over the Q quarters of its row and multiplied by the row of b.
///
/// # Safety
/// As of [`product`]; [`Product::few_columns`]; k and the distance of a's rows are K.
#[inline(never)]
#[target_feature(enable = "avx512f,avx512vl")]
unsafe fn spread<const Q: usize, const K: usize>(m: usize, n: usize, a: View, b: View, out: Out) {
    // SAFETY: this function's contract; lanes without a mask bit are not read.
    unsafe {
        let (end, each) = (End::new::<Q>(n, out), 4 / Q);
        let (mut b_rows, mut from) = ([_mm512_setzero_ps(); K], [_mm512_setzero_si512(); K]);
        for p in 0..K {
            let place: [i32; W] = from_fn(|l| (l / (4 * Q) * K + p) as i32);
            (b_rows[p], from[p]) = (repeated::<Q>(row(b, p, n)), _mm512_loadu_si512(place.as_ptr().cast()));
        }
        for i in (0..m).step_by(each) {
            let rows = (m - i).min(each);
            let x = _mm512_maskz_loadu_ps(first_of_sixteen(K * rows), a.from(i, 0).at);
            let mut sum = _mm512_mul_ps(_mm512_permutexvar_ps(from[0], x), b_rows[0]);
            for p in 1..K {
                sum = _mm512_fmadd_ps(_mm512_permutexvar_ps(from[p], x), b_rows[p], sum);
            }
            if end.fills() && rows == each {
                end.write_whole(i, sum);
            } else {
                end.write(i, rows, sum);
            }
        }
    }
}

/// The product, if this is the way to compute it.
///
/// # Safety
/// AVX-512F and VL; a [m, k], b [k, n] and what `out` [m, n] starts from are memory to read, y to write, which overlaps
/// no other; none of the sizes but k is 0.
#[target_feature(enable = "avx512f,avx512vl")]
pub unsafe fn product(p: Product) -> bool {
    const SHORT: usize = 32;
    let Product { m, k, n, a, b, out } = p;
    if !p.few_columns() {
        return false;
    }
    // SAFETY: this function's contract, and the sizes seen to.
    unsafe {
        match (n <= 4, k) {
            (true, 1) if a.rs == 1 => spread::<1, 1>(m, n, a, b, out),
            (true, 2) if a.rs == 2 => spread::<1, 2>(m, n, a, b, out),
            (true, 4) if a.rs == 4 => spread::<1, 4>(m, n, a, b, out),
            (false, 1) if a.rs == 1 => spread::<2, 1>(m, n, a, b, out),
            (false, 2) if a.rs == 2 => spread::<2, 2>(m, n, a, b, out),
            (false, 4) if a.rs == 4 => spread::<2, 4>(m, n, a, b, out),
            _ if k > LONGEST || p.steps() < k => return false,
            (true, ..=SHORT) => by_sixteen::<1, SHORT>(m, k, n, a, b, out),
            (true, _) => by_sixteen::<1, LONGEST>(m, k, n, a, b, out),
            (false, ..=SHORT) => by_sixteen::<2, SHORT>(m, k, n, a, b, out),
            (false, _) => by_sixteen::<2, LONGEST>(m, k, n, a, b, out),
        }
    }
    true
}
