//! Products with at most four columns with AVX2, y [m, n] = a [m, k] b [k, n], for a in rows and y without gaps.
//!
//! One row of y would leave half of a vector empty. So eight rows of a are transposed, four steps of k at a time, and
//! each column of y is one vector of eight rows, which gets elements of a times one element of b; the columns are
//! turned back into rows at the end.
//!
//! The AVX-512 path shares no loop with this one. Sixteen registers do not hold the transposed steps beside the sums:
//! they go through memory, by blocks of [`STEPS`]. There are no cheap masks and no `vcompressps`: each n up to four has
//! its own sums and its own shuffles within halves ([`to_rows`]).
//!
//! No closure here takes or returns vectors: what `from_fn` or `map` call is compiled without AVX2 unless they
//! themselves are inlined first, and the vectors then go through memory.

#![expect(clippy::needless_range_loop, reason = "iterators over arrays of vectors go through memory as well")]

use super::operand::{LONGEST, Out, Product};
use crate::kernels::vector::{first_of_eight, put_eight, transpose_halves};
use std::{arch::x86_64::*, array::from_fn, mem::MaybeUninit};

/// Numbers in a vector.
const W: usize = 8;

/// Steps of k that are transposed at once: 2 KiB for sixteen rows, 4 KiB for 32.
const STEPS: usize = 32;

/// Which of eight rows each lane holds, so that N columns of y turn into its rows within halves of vectors: see
/// [`to_rows`].
const fn order(n: usize) -> [usize; W] {
    match n {
        4 => [0, 2, 4, 6, 1, 3, 5, 7],
        2 => [0, 1, 4, 5, 2, 3, 6, 7],
        _ => [0, 1, 2, 3, 4, 5, 6, 7],
    }
}

/// N columns of eight rows, in lanes as [`order`] says, to the same 8 N elements as they follow each other in y.
#[inline]
#[target_feature(enable = "avx2")]
fn to_rows<const N: usize>(y: [__m256; N]) -> [__m256; N] {
    let mut to = y;
    match N {
        4 => to.copy_from_slice(&transpose_halves([y[0], y[1 % N], y[2 % N], y[3 % N]])),
        3 => {
            let (a, b, c) = (y[0], y[1 % N], y[2 % N]);
            // In each half a0 a2 b0 b2, b1 b3 c1 c3 and c0 c2 a1 a3, then its twelve elements in their order.
            let (ab, bc) = (_mm256_shuffle_ps::<0x88>(a, b), _mm256_shuffle_ps::<0xdd>(b, c));
            let ca = _mm256_shuffle_ps::<0xd8>(c, a);
            let (x, y) = (_mm256_shuffle_ps::<0x88>(ab, ca), _mm256_shuffle_ps::<0xd8>(bc, ab));
            let z = _mm256_shuffle_ps::<0xdd>(ca, bc);
            to[0] = _mm256_permute2f128_ps::<0x20>(x, y);
            to[1 % N] = _mm256_blend_ps::<0xf0>(z, x);
            to[2 % N] = _mm256_permute2f128_ps::<0x31>(y, z);
        }
        2 => {
            to[0] = _mm256_unpacklo_ps(y[0], y[1 % N]);
            to[1 % N] = _mm256_unpackhi_ps(y[0], y[1 % N]);
        }
        _ => {}
    }
    to
}

/// The place of N columns of eight rows of y.
struct Eights<const N: usize> {
    y: *mut f32,
    add: bool,
    alpha: __m256,
    bias: [__m256; N],
}

impl<const N: usize> Eights<N> {
    /// # Safety
    /// AVX2 and FMA; `out` [.., N] is memory, without gaps.
    #[target_feature(enable = "avx2,fma")]
    unsafe fn new(out: Out) -> Eights<N> {
        let mut numbers = [[0f32; W]; N];
        if !out.init.is_null() && out.init_rs == 0 {
            for (l, x) in numbers.as_flattened_mut().iter_mut().enumerate() {
                // SAFETY: a bias is as long as a row.
                *x = unsafe { *out.init.add(l % N) };
            }
        }
        let mut bias = [_mm256_setzero_ps(); N];
        for (bias, numbers) in bias.iter_mut().zip(&numbers) {
            // SAFETY: a vector's elements.
            *bias = unsafe { _mm256_loadu_ps(numbers.as_ptr()) };
        }
        Eights { y: out.at, add: out.init_rs > 0, alpha: _mm256_set1_ps(out.alpha), bias }
    }

    /// Write the first `rows` ≤ 8 rows of `sums`, in the order of y, to it from row i on.
    ///
    /// # Safety
    /// AVX2 and FMA; y has these rows.
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    unsafe fn write(&self, i: usize, rows: usize, sums: [__m256; N]) {
        for v in 0..N {
            let (y, n) = (self.y.wrapping_add(i * N + v * W), (rows * N).saturating_sub(v * W));
            // SAFETY: the first n elements are of these rows, and no more are read or written; what is added to, if its
            // rows differ, is y itself.
            unsafe {
                let init = if self.add { _mm256_maskload_ps(y, first_of_eight(n)) } else { self.bias[v] };
                put_eight(y, n, _mm256_fmadd_ps(self.alpha, sums[v], init));
            }
        }
    }
}

/// Steps of k of G times eight rows of a, each step G vectors, in lanes as [`order`] says. There is room for three
/// steps before the first. Aligned: a vector that crosses a line is slow to store and to load again.
#[repr(align(64))]
struct Steps<const G: usize>(MaybeUninit<[[[f32; W]; G]; 3 + STEPS]>);

/// Numbers p.. p + 4 of eight rows of a, to vector g of four steps from `to` on.
///
/// # Safety
/// AVX2; the rows have these elements, and `to` is that of four steps of G vectors to write, aligned to vectors; g < G.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn turn<const N: usize, const G: usize>(rows: &[*const f32; W], p: usize, to: *mut f32, g: usize) {
    let lanes = const { order(N) };
    let mut x = [_mm256_setzero_ps(); 4];
    for (v, x) in x.iter_mut().enumerate() {
        let (low, high) = (rows[lanes[v]].wrapping_add(p), rows[lanes[v + 4]].wrapping_add(p));
        // SAFETY: four elements from p on of two rows.
        *x = unsafe { _mm256_loadu2_m128(high, low) };
    }
    for (q, &x) in transpose_halves(x).iter().enumerate() {
        // SAFETY: vector g of step q of four.
        unsafe { _mm256_store_ps(to.wrapping_add((q * G + g) * W), x) };
    }
}

/// sums += one step of k: the G vectors of elements of a at `x`, each times N elements of b.
///
/// # Safety
/// AVX2 and FMA; `x` has G vectors, aligned, and `b` N elements.
#[inline]
#[target_feature(enable = "avx2,fma")]
unsafe fn step<const N: usize, const G: usize>(sums: &mut [[__m256; N]; G], x: *const f32, b: *const f32) {
    let mut numbers = [_mm256_setzero_ps(); G];
    for (g, numbers) in numbers.iter_mut().enumerate() {
        // SAFETY: vector g of G.
        *numbers = unsafe { _mm256_load_ps(x.wrapping_add(g * W)) };
    }
    for j in 0..N {
        // SAFETY: element j of N.
        let b = _mm256_set1_ps(unsafe { *b.add(j) });
        for g in 0..G {
            sums[g][j] = _mm256_fmadd_ps(numbers[g], b, sums[g][j]);
        }
    }
}

/// G times eight rows of a b, in the order of y; `table` is b with zeros beyond its columns.
///
/// The transposed steps go through memory, each loop of its own: in one loop the compiler moves loads ahead of what
/// they need, and keeps sums in memory instead.
///
/// # Safety
/// AVX2 and FMA; `table` has k rows, 4 or more; `rows`, and those `apart` elements from them, G in all, have k
/// elements.
#[inline]
#[target_feature(enable = "avx2,fma")]
unsafe fn eights<const N: usize, const G: usize>(
    rows: &[*const f32; W],
    apart: usize,
    table: &[[f32; 4]],
) -> [[__m256; N]; G] {
    let mut sums = [[_mm256_setzero_ps(); N]; G];
    let mut steps = Steps::<G>(MaybeUninit::uninit());
    let first = steps.0.as_mut_ptr().cast::<f32>().wrapping_add(3 * G * W);
    let k = table.len();
    for p in (0..k).step_by(STEPS) {
        let count = STEPS.min(k - p);
        for q in (p..p + count).step_by(4) {
            // The last four end where the rows do: up to three of them are written once more, or are before the first.
            let q = q.min(k - 4);
            let to = first.wrapping_add(q * G * W).wrapping_sub(p * G * W);
            for g in 0..G {
                // SAFETY: four elements of k; their steps are from 3 before the first to the last there is room for.
                unsafe { turn::<N, G>(rows, g * apart + q, to, g) };
            }
        }
        for l in 0..count {
            // SAFETY: step p + l of k, one of those just written.
            unsafe { step(&mut sums, first.wrapping_add(l * G * W), table.as_ptr().add(p + l).cast()) };
        }
    }
    for sums in &mut sums {
        *sums = to_rows(*sums);
    }
    sums
}

/// All rows of a b with N ≤ 4 columns, 4 ≤ k ≤ K, by G times eight.
///
/// # Safety
/// As of [`tall_skinny`], with N for n.
#[inline(never)]
#[target_feature(enable = "avx2,fma")]
unsafe fn by_eights<const K: usize, const N: usize, const G: usize>(Product { m, k, a, b, out, .. }: Product) {
    let mut table = [const { MaybeUninit::<[f32; 4]>::uninit() }; K];
    for (p, row) in table[..k].iter_mut().enumerate() {
        // SAFETY: b is [k, N].
        row.write(from_fn(|j| if j < N { unsafe { *b.from(p, j).at } } else { 0.0 }));
    }
    // SAFETY: this function's contract; the rows of `table` were just written; rows beyond the last are the last once
    // more, and not written.
    unsafe {
        let table = std::slice::from_raw_parts(table.as_ptr().cast::<[f32; 4]>(), k);
        let end = Eights::<N>::new(out);
        let mut rows: [*const f32; W] = from_fn(|r| a.from(r, 0).at);
        let mut i = 0;
        while m - i >= G * W {
            let sums = eights::<N, G>(&rows, W * a.rs, table);
            for g in 0..G {
                end.write(i + g * W, W, sums[g]);
            }
            for row in &mut rows {
                *row = row.wrapping_add(G * W * a.rs);
            }
            i += G * W;
        }
        while i < m {
            let left = (m - i).min(W);
            let rows = from_fn(|r| a.from(i + r.min(left - 1), 0).at);
            let [sums] = eights::<N, 1>(&rows, 0, table);
            end.write(i, left, sums);
            i += left;
        }
    }
}

/// [`product`] for k ≤ K. Sixteen rows at once: with four columns these are eight sums, as many as hide the latency of
/// a multiplication, and with fewer the transposition takes as long. One column takes 32, but where that many rows, far
/// apart, share few places of the first-level cache.
///
/// # Safety
/// As of [`product`], and that it takes the product; k ≤ K.
#[inline]
#[target_feature(enable = "avx2,fma")]
unsafe fn tall_skinny<const K: usize>(p: Product) {
    // SAFETY: this function's contract.
    unsafe {
        match p.n {
            4 => by_eights::<K, 4, 2>(p),
            3 => by_eights::<K, 3, 2>(p),
            2 => by_eights::<K, 2, 2>(p),
            1 if p.a.rs.is_multiple_of(512) => by_eights::<K, 1, 2>(p),
            1 => by_eights::<K, 1, 4>(p),
            _ => {}
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
    if !p.tall_skinny() || p.n > 4 {
        return false;
    }
    // SAFETY: this function's contract, and the sizes seen to.
    unsafe { if p.k <= SHORT { tall_skinny::<SHORT>(p) } else { tall_skinny::<LONGEST>(p) } }
    true
}
