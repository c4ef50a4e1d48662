//! Sums and maxima over a slice in sixteen interleaved parts.
//!
//! Floating-point addition is not associative, so a compiler must not reorder a plain sum, and one long chain of
//! additions runs at a fraction of the speed of vectors. Sixteen chains fill a vector; their number is fixed, so
//! that every processor adds in the same order and gets the same bits. The functions are inlined into kernels that
//! choose their instruction set.

use super::math::Math;
use crate::tensor::Real;

/// How many partial results run side by side.
pub const LANES: usize = 16;

/// Runs `$body` with `$n` replaced by the same number as a constant if it is a common width of a narrow row: loops
/// over a row are then unrolled. In single precision only (of the enclosing function's element type `T`): double is
/// there to check by, and five copies of every loop take long to compile.
#[macro_export]
macro_rules! with_width {
    ($n:ident => $body:expr) => {
        match $n {
            4 if const { size_of::<T>() == 4 } => {
                let $n = 4;
                $body
            }
            8 if const { size_of::<T>() == 4 } => {
                let $n = 8;
                $body
            }
            16 if const { size_of::<T>() == 4 } => {
                let $n = 16;
                $body
            }
            32 if const { size_of::<T>() == 4 } => {
                let $n = 32;
                $body
            }
            $n => $body,
        }
    };
}

/// Merges the lanes pairwise.
#[inline(always)]
fn fold<T: Real>(mut lanes: [T; LANES], f: impl Fn(T, T) -> T) -> T {
    let mut half = LANES / 2;
    while half > 0 {
        for i in 0..half {
            lanes[i] = f(lanes[i], lanes[i + half]);
        }
        half /= 2;
    }
    lanes[0]
}

/// Σ f(x)
#[inline(always)]
pub fn sum<T: Real>(x: &[T], f: impl Fn(T) -> T) -> T {
    sum2(x, x, |x, _| f(x))
}

/// Σ f(a, b) over the elements of two slices of equal length.
#[inline(always)]
pub fn sum2<T: Real>(a: &[T], b: &[T], f: impl Fn(T, T) -> T) -> T {
    sum3(a, b, b, |a, b, _| f(a, b))
}

/// Σ f(a, b, c) over the elements of three slices of equal length.
#[inline(always)]
pub fn sum3<T: Real>(a: &[T], b: &[T], c: &[T], f: impl Fn(T, T, T) -> T) -> T {
    let (b, c) = (&b[..a.len()], &c[..a.len()]);
    if a.len() < LANES {
        return a.iter().zip(b).zip(c).fold(T::ZERO, |s, ((&a, &b), &c)| s + f(a, b, c));
    }
    // A length that the compiler takes for unknown keeps the loop, and with it the vectors: unrolled for a constant
    // length, as `with_width` makes it, LLVM turns the lanes into scalars.
    let n = std::hint::black_box(a.len());
    let (a, b, c) = (&a[..n], &b[..n], &c[..n]);
    let mut lanes = [T::ZERO; LANES];
    let ((a, a_tail), (b, b_tail), (c, c_tail)) =
        (a.as_chunks::<LANES>(), b.as_chunks::<LANES>(), c.as_chunks::<LANES>());
    for ((a, b), c) in a.iter().zip(b).zip(c) {
        for i in 0..LANES {
            lanes[i] += f(a[i], b[i], c[i]);
        }
    }
    for (((s, &a), &b), &c) in lanes.iter_mut().zip(a_tail).zip(b_tail).zip(c_tail) {
        *s += f(a, b, c);
    }
    // Seen together with the loop, the merging has LLVM keep halves and quarters of vectors all through it.
    fold(std::hint::black_box(lanes), |a, b| a + b)
}

/// The widest row whose sums over many rows are held in registers: a sum in memory waits for its own store.
pub const NARROW: usize = 32;

/// Sums of narrow rows side by side.
const BLOCK: usize = 64;

/// d += Σ g over the rows of g.
#[multiversion::multiversion(targets("x86_64+avx512f+avx512vl+avx512dq+avx512bw", "x86_64+avx2+fma"))]
pub fn columns<T: Real>(g: &[T], d: &mut [T]) {
    let n = d.len();
    if n == 0 {
        return;
    }
    // Of narrow rows, as many as fill four vectors at once: their sums do not wait for one another.
    let mut sums = [T::ZERO; BLOCK];
    if n > NARROW {
        return g.chunks_exact(n).for_each(|g| d.iter_mut().zip(g).for_each(|(sum, &g)| *sum += g));
    }
    let width = BLOCK / n * n;
    if width == BLOCK {
        for g in g.as_chunks::<BLOCK>().0 {
            for l in 0..BLOCK {
                sums[l] += g[l];
            }
        }
    } else {
        g.chunks_exact(width).for_each(|g| sums[..width].iter_mut().zip(g).for_each(|(sum, &g)| *sum += g));
    }
    let rest = g.len() / width * width;
    sums.iter_mut().zip(&g[rest..]).for_each(|(sum, &g)| *sum += g);
    sums[..width].chunks_exact(n).for_each(|sums| d.iter_mut().zip(sums).for_each(|(d, &sum)| *d += sum));
}

/// The largest element; −∞ of none. NaN loses.
#[inline(always)]
pub fn max<T: Math>(x: &[T]) -> T {
    let least = T::of(f64::NEG_INFINITY);
    // `Math::max` keeps its second argument unless the first is larger.
    let larger = |m: T, x: T| T::max(x, m);
    if x.len() < LANES {
        return x.iter().fold(least, |m, &x| larger(m, x));
    }
    let x = &x[..std::hint::black_box(x.len())]; // as in `sum3`
    let mut lanes = [least; LANES];
    let (x, tail) = x.as_chunks::<LANES>();
    for x in x {
        for i in 0..LANES {
            lanes[i] = larger(lanes[i], x[i]);
        }
    }
    for (m, &x) in lanes.iter_mut().zip(tail) {
        *m = larger(*m, x);
    }
    fold(lanes, larger)
}
