//! The innermost loops of [`super::avx512`]: a tile of y, R rows of C vectors of sixteen columns, stays in registers
//! while k runs. Each step loads C vectors of a row of b and multiplies them by R numbers of a, so that an element
//! loaded is used R or C times. R C ≥ 4 hides the latency of a multiplication; 24 is what the registers hold.
//!
//! The loops are written once and made twice, for numbers and for pairs of bf16 numbers that fill the same 32 bits:
//! a function may only be inlined into another of the same instruction set, so a type parameter would not do.

use super::operand::{self, Out, View};
use std::{arch::x86_64::*, array::from_fn};

/// Numbers in a vector.
pub const W: usize = 16;

/// From how many steps on a tile of y is fetched into the cache meanwhile.
const LONG: usize = 16;

/// The lanes of the last of the vectors that hold n > 0 columns.
pub fn tail(n: usize) -> __mmask16 {
    !0 >> ((W - n % W) % W)
}

/// How many vectors of columns a panel takes where n > 0 are left: four, but none alone if that can be helped.
fn panel(n: usize) -> usize {
    let vectors = n.div_ceil(W);
    if vectors == 5 { 3 } else { vectors.min(4) }
}

/// The panels of n columns.
pub fn panels(n: usize) -> impl Iterator<Item = (usize, usize, usize)> {
    operand::panels(n, W, panel)
}

/// Write the lanes of `mask`, which are the first ones. Stores with a mask are slow, and short rows common.
///
/// # Safety
/// AVX-512F and VL; y has that many numbers.
#[inline]
#[target_feature(enable = "avx512f,avx512vl")]
pub unsafe fn put(y: *mut f32, mask: __mmask16, v: __m512) {
    // SAFETY: as many numbers as the mask has lanes, at any address.
    unsafe {
        match mask {
            0xffff => _mm512_storeu_ps(y, v),
            0xff => _mm256_storeu_ps(y, _mm512_castps512_ps256(v)),
            0xf => _mm_storeu_ps(y, _mm512_castps512_ps128(v)),
            1 => *y = _mm512_cvtss_f32(v),
            _ => _mm512_mask_storeu_ps(y, mask, v),
        }
    }
}

/// `sums` to y, whose columns are anywhere.
///
/// # Safety
/// AVX-512F; `out` has this row with this many columns.
#[inline(never)]
#[target_feature(enable = "avx512f")]
unsafe fn scatter(sums: &[__m512], cols: usize, row: usize, out: &Out) {
    for j in 0..cols {
        let mut lanes = [0f32; W];
        // SAFETY: there are 16 lanes; `out` has the element, by this function's contract.
        unsafe {
            _mm512_storeu_ps(lanes.as_mut_ptr(), sums[j / W]);
            let out = out.from(row, j);
            let init = if out.init.is_null() { 0.0 } else { *out.init };
            *out.at = out.alpha.mul_add(lanes[j % W], init);
        }
    }
}

/// The block for i = 0, 1, … below n ≤ 12, written out: an index that is no constant, and be it after the loop over k,
/// would have all sums written to memory at every step of it: 13.9 ms for 6.3 ms a step of the LRU
/// (`parity --preset published --models lru --profile`).
macro_rules! each {
    ($i:ident < $n:expr, $block:block) => { each!($i < $n, $block, 0 1 2 3 4 5 6 7 8 9 10 11) };
    ($i:ident < $n:expr, $block:block, $($k:literal)*) => { $(if $k < $n { let $i = $k; $block })* };
}

/// The end of a tile: y = alpha sums + init. The sums come by value: see `each`.
///
/// # Safety
/// AVX-512F and VL; `out` has R rows of C vectors of columns, the last with the lanes of `tail`.
#[inline]
#[target_feature(enable = "avx512f,avx512vl")]
unsafe fn finish<const R: usize, const C: usize>(sums: [[__m512; C]; R], out: &Out, tail: __mmask16) {
    if out.cs != 1 {
        let cols = (C - 1) * W + tail.count_ones() as usize;
        for (r, sums) in sums.iter().enumerate() {
            // SAFETY: this function's contract.
            unsafe { scatter(sums, cols, r, out) };
        }
        return;
    }
    let alpha = _mm512_set1_ps(out.alpha);
    for (r, sums) in sums.iter().enumerate() {
        for (c, &sum) in sums.iter().enumerate() {
            let mask = if c + 1 == C { tail } else { !0 };
            // SAFETY: this function's contract; lanes without a mask bit are neither read nor written.
            unsafe {
                let init = out.init.wrapping_add(r * out.init_rs + c * W);
                let init = if out.init.is_null() { _mm512_setzero_ps() } else { _mm512_maskz_loadu_ps(mask, init) };
                put(out.at.add(r * out.rs + c * W), mask, _mm512_fmadd_ps(alpha, sum, init));
            }
        }
    }
}

pub(super) use each;

/// The loops with one instruction set and one multiplication.
macro_rules! kernel {
    ($(#[$doc:meta])* $name:ident, $features:literal, $multiply_add:expr) => {
        $(#[$doc])*
        pub mod $name {
            use super::*;

            /// sums += R elements of a, `rs` apart, times C vectors of b.
            ///
            /// # Safety
            /// The instruction set; a and b have these elements.
            #[inline]
            #[target_feature(enable = $features)]
            unsafe fn step<const R: usize, const C: usize>(
                sums: &mut [[__m512; C]; R],
                (a, rs): (*const f32, usize),
                b: *const f32,
                tail: __mmask16,
            ) {
                // SAFETY: this function's contract; lanes without a mask bit are not read.
                let b: [__m512; C] = from_fn(|c| unsafe {
                    let b = b.add(c * W);
                    if c + 1 == C { _mm512_maskz_loadu_ps(tail, b) } else { _mm512_loadu_ps(b) }
                });
                each!(r < R, {
                    // SAFETY: this function's contract.
                    let a = _mm512_set1_ps(unsafe { *a.add(r * rs) });
                    each!(c < C, { sums[r][c] = $multiply_add(sums[r][c], a, b[c]) });
                });
            }

            /// R rows and C vectors of columns, of which the last has the lanes of `tail`.
            ///
            /// # Safety
            /// The instruction set; a [R, k], b [k, columns] and `out` [R, columns] are memory to read or write.
            #[inline(never)]
            #[target_feature(enable = $features)]
            unsafe fn tile<const R: usize, const C: usize>(k: usize, a: View, b: View, out: &Out, tail: __mmask16) {
                let mut sums = [[_mm512_setzero_ps(); C]; R];
                let (mut ap, mut bp) = (a.at, b.at);
                // SAFETY: k steps in all, each inside of a and b; the addresses past the end are not read.
                unsafe {
                    if k >= LONG && out.cs == 1 {
                        for i in 0..R * C {
                            _mm_prefetch::<_MM_HINT_ET0>(out.from(i / C, i % C * W).at.cast());
                        }
                    }
                    // Four steps at once, so that the end of even a short loop is foreseen.
                    for _ in 0..k / 4 {
                        for q in 0..4 {
                            step(&mut sums, (ap.add(q * a.cs), a.rs), bp.add(q * b.rs), tail);
                        }
                        (ap, bp) = (ap.wrapping_add(4 * a.cs), bp.wrapping_add(4 * b.rs));
                    }
                    for _ in 0..k % 4 {
                        step(&mut sums, (ap, a.rs), bp, tail);
                        (ap, bp) = (ap.wrapping_add(a.cs), bp.wrapping_add(b.rs));
                    }
                    finish(sums, out, tail);
                }
            }

            /// m rows and C vectors of columns.
            ///
            /// # Safety
            /// As of `tile`, with m for R.
            #[target_feature(enable = $features)]
            unsafe fn rows<const C: usize>(m: usize, k: usize, a: View, b: View, out: Out, tail: __mmask16) {
                let mut i = 0;
                while i < m {
                    let (a, out) = (a.from(i, 0), &out.from(i, 0));
                    // SAFETY: rows i.. of m, no more than are left.
                    i += unsafe {
                        match m - i {
                            12.. if C < 3 => (tile::<12, C>(k, a, b, out, tail), 12),
                            8.. if C < 4 => (tile::<8, C>(k, a, b, out, tail), 8),
                            6.. if C == 4 => (tile::<6, C>(k, a, b, out, tail), 6),
                            4.. => (tile::<4, C>(k, a, b, out, tail), 4),
                            2.. => (tile::<2, C>(k, a, b, out, tail), 2),
                            _ => (tile::<1, C>(k, a, b, out, tail), 1),
                        }
                    }
                    .1;
                }
            }

            /// The panel of C vectors with n columns: b is [k, n], its columns next to each other.
            ///
            /// # Safety
            /// The instruction set; 16 (C − 1) < n ≤ 16 C; a [m, k], b [k, n] and `out` [m, n] are memory to read or
            /// write.
            #[target_feature(enable = $features)]
            pub unsafe fn columns(m: usize, k: usize, n: usize, a: View, b: View, out: Out) {
                // SAFETY: this function's contract.
                unsafe {
                    match panel(n) {
                        1 => rows::<1>(m, k, a, b, out, tail(n)),
                        2 => rows::<2>(m, k, a, b, out, tail(n)),
                        3 => rows::<3>(m, k, a, b, out, tail(n)),
                        _ => rows::<4>(m, k, a, b, out, tail(n)),
                    }
                }
            }
        }
    };
}

kernel! {
    /// Elements are numbers.
    f32s, "avx512f,avx512vl", |sum, a, b| _mm512_fmadd_ps(a, b, sum)
}

kernel! {
    /// Elements are pairs of bf16 numbers, of which each step multiplies both: k counts pairs.
    pairs, "avx512f,avx512vl,avx512bf16", |sum, a, b| {
        // SAFETY: a vector is 512 bits, whatever they mean.
        let (a, b) = unsafe { (std::mem::transmute::<__m512, __m512bh>(a), std::mem::transmute::<__m512, __m512bh>(b)) };
        _mm512_dpbf16_ps(sum, a, b)
    }
}
