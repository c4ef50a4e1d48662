//! Sums and maxima over a slice in sixteen interleaved parts.
//!
//! Floating-point addition is not associative, so a compiler must not reorder a plain sum, and one long chain of
//! additions runs at a fraction of the speed of vectors. Sixteen chains fill a vector; their number is fixed, so
//! that every processor adds in the same order and gets the same bits. The functions are inlined into kernels that
//! choose their instruction set.

use crate::{
    kernels::{
        lanes::{Avx512, Lane, merged},
        math::Math,
    },
    tensor::Real,
};

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
    if a.len() < LANES {
        return plain(a, b, c, f);
    }
    let mut lanes = [T::ZERO; LANES];
    parts3(a, b, c, &mut lanes, f);
    // The black box hides the merging from the loop: seen together, LLVM keeps halves and quarters of vectors all
    // through it.
    fold(std::hint::black_box(lanes), |a, b| a + b)
}

/// Σ f(a, b, c) of few numbers, one after another.
#[inline(always)]
fn plain<T: Real>(a: &[T], b: &[T], c: &[T], f: impl Fn(T, T, T) -> T) -> T {
    a.iter().zip(b).zip(c).fold(T::ZERO, |s, ((&a, &b), &c)| s + f(a, b, c))
}

/// The sixteen parts of Σ f(a, b, c); of fewer than sixteen numbers, their sum and zeros. Parts that are written are
/// read again only for a rest: a vector that has just been written is read slowly.
#[inline(always)]
pub fn parts3<T: Real>(a: &[T], b: &[T], c: &[T], to: &mut [T; LANES], f: impl Fn(T, T, T) -> T) {
    let (b, c) = (&b[..a.len()], &c[..a.len()]);
    let mut lanes = [T::ZERO; LANES];
    if a.len() < LANES {
        *to = lanes;
        to[0] = plain(a, b, c, f);
        return;
    }
    if let (Ok(a), Ok(b), Ok(c)) = (<&[T; LANES]>::try_from(a), b.try_into(), c.try_into()) {
        let (b, c): (&[T; LANES], &[T; LANES]) = (b, c);
        (0..LANES).for_each(|i| lanes[i] = f(a[i], b[i], c[i]));
        *to = lanes;
        return;
    }
    // A length that the compiler takes for unknown keeps the loop, and with it the vectors: unrolled for a constant
    // length, as `with_width` makes it, LLVM turns the lanes into scalars.
    let n = std::hint::black_box(a.len());
    let (a, b, c) = (&a[..n], &b[..n], &c[..n]);
    let ((a, a_tail), (b, b_tail), (c, c_tail)) =
        (a.as_chunks::<LANES>(), b.as_chunks::<LANES>(), c.as_chunks::<LANES>());
    for ((a, b), c) in a.iter().zip(b).zip(c) {
        for i in 0..LANES {
            lanes[i] += f(a[i], b[i], c[i]);
        }
    }
    *to = lanes;
    for (((s, &a), &b), &c) in to.iter_mut().zip(a_tail).zip(b_tail).zip(c_tail) {
        *s += f(a, b, c);
    }
}

/// The parts of Σ f(x).
#[inline(always)]
pub fn parts<T: Real>(x: &[T], to: &mut [T; LANES], f: impl Fn(T) -> T) {
    parts3(x, x, x, to, |x, _, _| f(x));
}

/// How many rows of n numbers to take side by side in [`sums`]: sixteen, or as many as stay in the first cache.
pub fn rows_at_once(n: usize) -> usize {
    const NUMBERS: usize = 4096;
    (NUMBERS / n.max(1)).clamp(1, LANES)
}

/// Sixteen times sixteen parts, each sixteen in a cache line.
#[repr(align(64))]
struct Parts<T>([Lane<T>; LANES]);

/// The sums of sixteen rows, or of `rows` rows, whose parts `parts` gives. Each is the number that `sum` would give.
/// The parts of all rows are merged side by side: one by one, each merging would wait for the vector that was just
/// summed.
#[inline(always)]
pub fn sums<T: Real>(here: Option<Avx512>, rows: usize, parts: impl Fn(usize, &mut Lane<T>)) -> Lane<T> {
    let mut all = Parts([[T::ZERO; LANES]; LANES]);
    all.0.iter_mut().take(rows).enumerate().for_each(|(l, to)| parts(l, to));
    merged(here, &all.0).unwrap_or_else(|| std::array::from_fn(|l| fold(std::hint::black_box(all.0[l]), |a, b| a + b)))
}

/// The widest row whose sums, one to an entry, an op holds in registers: a sum in memory waits for its own store.
pub const NARROW: usize = 32;

/// Sums of narrow rows side by side: as many as fill four vectors.
const BLOCK: usize = 64;

/// How many wide rows are added at once, so that a sum in memory is read and written once for them.
const ROWS: usize = 4;

/// d += Σ g over the rows of g.
#[versions::versions]
pub fn columns<T: Real>(g: &[T], d: &mut [T]) {
    let n = d.len();
    if n == 0 {
        return;
    }
    if n > BLOCK {
        let mut rows = g.chunks_exact(ROWS * n);
        for g in &mut rows {
            let [a, b, c, e] = [0, 1, 2, 3].map(|i| &g[i * n..][..n]);
            for ((((sum, &a), &b), &c), &e) in d.iter_mut().zip(a).zip(b).zip(c).zip(e) {
                *sum = *sum + a + b + c + e;
            }
        }
        return rows.remainder().chunks_exact(n).for_each(|g| d.iter_mut().zip(g).for_each(|(sum, &g)| *sum += g));
    }
    // Of narrow rows, as many as there is room for in four vectors at once: the sums of each do not wait for those of
    // others.
    let mut sums = [T::ZERO; BLOCK];
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
    let x = &x[..std::hint::black_box(x.len())]; // as in `parts3`
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
