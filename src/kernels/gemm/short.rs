//! Products of few steps, y [m, n] = a [m, k] b [k, n] with k = 1, 2, 4 or 8, for a and y in rows: all of b, or as many of
//! its columns as fit, stays in registers while the rows of a go by. A tile of [`super::tile`] would load b anew for every
//! few rows and be over before it has begun.

use super::{
    narrow::row,
    operand::{FEWEST, Out, Product, View},
    tile::{W, put, tail},
};
use std::arch::x86_64::*;

/// The most vectors of b that stay in registers, and the most of a row.
const WIDEST: usize = 4;
const HELD: usize = 16;

/// K steps, C vectors of columns of which the last has the lanes of `mask`.
///
/// # Safety
/// As of [`product`], and that it takes the product: alpha is 1, and a and y are in rows. So many columns there are.
#[inline(never)]
#[target_feature(enable = "avx512f,avx512vl")]
unsafe fn rows<const K: usize, const C: usize>(m: usize, a: View, b: View, out: Out, mask: __mmask16) {
    let (mut held, mut init) = ([[_mm512_setzero_ps(); C]; K], [_mm512_setzero_ps(); C]);
    let mask_of = |c: usize| if c + 1 == C { mask } else { !0 };
    for c in 0..C {
        let columns = mask_of(c).count_ones() as usize;
        // SAFETY: b has a number for each lane of a mask, what is added too.
        unsafe {
            if !out.init.is_null() && out.init_rs == 0 {
                init[c] = _mm512_maskz_loadu_ps(mask_of(c), out.init.add(c * W));
            }
            for (p, held) in held.iter_mut().enumerate() {
                held[c] = row(b.from(0, c * W), p, columns);
            }
        }
    }
    let (mut at, mut to) = (a.at, out.at);
    for _ in 0..m {
        let mut sums = [_mm512_setzero_ps(); C];
        for (p, b) in held.iter().enumerate() {
            // SAFETY: a row of K numbers.
            let x = _mm512_set1_ps(unsafe { *at.add(p) });
            for c in 0..C {
                sums[c] = if p == 0 { _mm512_mul_ps(x, b[c]) } else { _mm512_fmadd_ps(x, b[c], sums[c]) };
            }
        }
        for c in 0..C {
            // SAFETY: a row of y; lanes without a mask bit are neither read nor written. What is added to, if its rows
            // differ, is y itself.
            unsafe {
                let to = to.add(c * W);
                let init = if out.init_rs > 0 { _mm512_maskz_loadu_ps(mask_of(c), to) } else { init[c] };
                put(to, mask_of(c), _mm512_add_ps(sums[c], init));
            }
        }
        (at, to) = (at.wrapping_add(a.rs), to.wrapping_add(out.rs));
    }
}

/// K steps and eight columns, half a vector.
///
/// # Safety
/// As of `rows`.
#[inline(never)]
#[target_feature(enable = "avx512f,avx512vl")]
unsafe fn eight<const K: usize>(m: usize, a: View, b: View, out: Out) {
    let (mut held, mut init) = ([_mm256_setzero_ps(); K], _mm256_setzero_ps());
    // SAFETY: b has K rows of eight numbers, what is added one.
    unsafe {
        if !out.init.is_null() && out.init_rs == 0 {
            init = _mm256_loadu_ps(out.init);
        }
        for (p, held) in held.iter_mut().enumerate() {
            let row: [f32; 8] = std::array::from_fn(|j| *b.from(p, j).at);
            *held = _mm256_loadu_ps(row.as_ptr());
        }
    }
    let (mut at, mut to) = (a.at, out.at);
    for _ in 0..m {
        let mut sum = _mm256_setzero_ps();
        for (p, &b) in held.iter().enumerate() {
            // SAFETY: a row of K numbers.
            let x = _mm256_set1_ps(unsafe { *at.add(p) });
            sum = if p == 0 { _mm256_mul_ps(x, b) } else { _mm256_fmadd_ps(x, b, sum) };
        }
        // SAFETY: a row of y. What is added to, if its rows differ, is y itself.
        unsafe {
            let init = if out.init_rs > 0 { _mm256_loadu_ps(to) } else { init };
            _mm256_storeu_ps(to, _mm256_add_ps(sum, init));
        }
        (at, to) = (at.wrapping_add(a.rs), to.wrapping_add(out.rs));
    }
}

/// The product, if this is the way to compute it.
///
/// # Safety
/// AVX-512F and VL; a [m, k], b [k, n] and what `out` [m, n] starts from are memory to read, y to write, which overlaps no
/// other; none of the sizes is 0.
#[target_feature(enable = "avx512f,avx512vl")]
pub unsafe fn product(p: Product) -> bool {
    let Product { m, k, n, a, out, .. } = p;
    if !matches!(k, 1 | 2 | 4 | 8) || m < FEWEST || a.cs != 1 || out.cs != 1 || out.alpha != 1.0 {
        return false;
    }
    if n == 8 {
        // SAFETY: this function's contract.
        unsafe {
            match k {
                1 => eight::<1>(m, a, p.b, out),
                2 => eight::<2>(m, a, p.b, out),
                4 => eight::<4>(m, a, p.b, out),
                _ => eight::<8>(m, a, p.b, out),
            }
        }
        return true;
    }
    if n < 8 {
        return false;
    }
    let most = (HELD / k).min(WIDEST) * W;
    for j in (0..n).step_by(most) {
        let Product { n, b, out, .. } = p.columns(j, most);
        // SAFETY: this function's contract; columns j.. of n, no more than are left.
        unsafe {
            match (k, n.div_ceil(W)) {
                (1, 1) => rows::<1, 1>(m, a, b, out, tail(n)),
                (1, 2) => rows::<1, 2>(m, a, b, out, tail(n)),
                (1, 3) => rows::<1, 3>(m, a, b, out, tail(n)),
                (1, _) => rows::<1, 4>(m, a, b, out, tail(n)),
                (2, 1) => rows::<2, 1>(m, a, b, out, tail(n)),
                (2, 2) => rows::<2, 2>(m, a, b, out, tail(n)),
                (2, 3) => rows::<2, 3>(m, a, b, out, tail(n)),
                (2, _) => rows::<2, 4>(m, a, b, out, tail(n)),
                (4, 1) => rows::<4, 1>(m, a, b, out, tail(n)),
                (4, 2) => rows::<4, 2>(m, a, b, out, tail(n)),
                (4, 3) => rows::<4, 3>(m, a, b, out, tail(n)),
                (4, _) => rows::<4, 4>(m, a, b, out, tail(n)),
                (_, 1) => rows::<8, 1>(m, a, b, out, tail(n)),
                (..) => rows::<8, 2>(m, a, b, out, tail(n)),
            }
        }
    }
    true
}
