//! The innermost loops: a tile of y, R rows of C vectors of columns, stays in registers while k runs. Each step loads C
//! vectors of a row of b and multiplies them by R elements of a, so that an element loaded is used R or C times. R C ≥
//! 4 hides the latency of a multiplication, and 32 registers hold 24 sums. Sixteen registers hold twelve sums, two
//! vectors of b and an element of a; with three vectors of b the compiler keeps one of the twelve sums in memory.

use super::operand::{Out, View};
use crate::kernels::vector::{Avx2, Avx512, Vector};
use std::{
    arch::x86_64::{_MM_HINT_ET0, _mm_prefetch},
    mem::MaybeUninit,
    ptr::null,
};

/// From how many steps on a tile of y is fetched into the cache meanwhile.
const LONG: usize = 16;

/// The most vectors in a row of a panel.
pub const WIDEST: usize = 4;

/// How many vectors of columns a panel takes where n > 0 are left. With 32 registers it takes four, and avoids leaving
/// a single vector for the last panel. With sixteen it takes two, or three where the number left is odd; a panel has
/// one vector only if that is all there is.
fn panel<V: Vector>(n: usize) -> usize {
    match n.div_ceil(V::W) {
        5 if V::REGISTERS == 32 => 3,
        vectors if V::REGISTERS == 32 => vectors.min(WIDEST),
        1 => 1,
        vectors if vectors % 2 == 1 => 3,
        _ => 2,
    }
}

/// The panels of n columns: where each starts, how many columns it has, and how many vectors.
#[inline]
pub fn panels<V: Vector>(n: usize) -> impl Iterator<Item = (usize, usize, usize)> {
    let mut next = 0;
    std::iter::from_fn(move || {
        let (j, left) = (next, n - next);
        (left > 0).then(|| {
            let c = panel::<V>(left);
            next += left.min(c * V::W);
            (j, next - j, c)
        })
    })
}

/// The block for i = 0, 1, … below n ≤ 12, written out. With an index that is no constant, even after the loop over k,
/// all sums would be written to memory at every step of that loop: 13.9 ms instead of 6.3 ms for a step of the LRU
/// (`parity --preset published --models lru --profile`). The condition on i is a constant, so that the compiler leaves
/// out the other blocks early: they were half of all that it optimised in this crate.
macro_rules! each {
    ($i:ident < $n:expr, $block:block) => { each!($i < $n, $block, 0 1 2 3 4 5 6 7 8 9 10 11) };
    ($i:ident < $n:expr, $block:block, $($k:literal)*) => { $(if const { $k < $n } { let $i = $k; $block })* };
}

/// How the elements of a lie. The compiler is told so that an address is a register and a constant. With sixteen
/// registers this makes the loop over k as fast as its multiplications.
const ROWS: u8 = 0;
const COLUMNS: u8 = 1;
const ANYHOW: u8 = 2;

/// sums += column q of a times the row of b at `at`.
///
/// # Safety
/// Both have these elements.
#[inline(always)]
unsafe fn step<V: Vector, const R: usize, const C: usize, const A: u8, const M: bool>(
    v: V,
    sums: &mut [[V::V; C]; R],
    (a, q): (View, usize),
    (at, mask): (*const f32, V::Mask),
) {
    let mut b = [v.zero(); C];
    // SAFETY: this function's contract; lanes beyond a mask are not read.
    unsafe {
        each!(c < C, {
            let at = at.add(c * V::W);
            b[c] = if M && c + 1 == C { v.load_first(at, mask) } else { v.load(at) };
        });
        each!(r < R, {
            let at = match A {
                ROWS => r * a.rs + q,
                COLUMNS => r + q * a.cs,
                _ => r * a.rs + q * a.cs,
            };
            let a = v.splat(*a.at.add(at));
            each!(c < C, { sums[r][c] = v.dot(a, b[c], sums[r][c]) });
        });
    }
}

/// R rows and C vectors of columns next to each other, of which `last` of the last vector are wanted; if M, no more are
/// there.
///
/// # Safety
/// a [R, k], which lies as A says, b [k, C vectors], or the wanted columns of it if M, and those of `out` are memory to
/// read or write.
#[inline(always)]
unsafe fn tile<V: Vector, const R: usize, const C: usize, const A: u8, const M: bool>(
    v: V,
    k: usize,
    mut a: View,
    (mut bp, b_rs): (*const f32, usize),
    out: &Out,
    last: usize,
) {
    let mut sums = [[v.zero(); C]; R];
    let mask = v.first(last);
    // SAFETY: k steps in all, each inside of a and b; the addresses past the end are not read.
    unsafe {
        if k >= LONG {
            for r in 0..R {
                for line in (0..C * V::W).step_by(16) {
                    _mm_prefetch::<_MM_HINT_ET0>(out.from(r, line).at.cast());
                }
            }
        }
        // Four steps at once, so that the end of even a short loop is foreseen.
        for _ in 0..k / 4 {
            for q in 0..4 {
                step::<V, R, C, A, M>(v, &mut sums, (a, q), (bp.add(q * b_rs), mask));
            }
            (a, bp) = (a.from(0, 4), bp.wrapping_add(4 * b_rs));
        }
        for _ in 0..k % 4 {
            step::<V, R, C, A, M>(v, &mut sums, (a, 0), (bp, mask));
            (a, bp) = (a.from(0, 1), bp.wrapping_add(b_rs));
        }
        // y = alpha sums + init: here, and not in a function, to which the sums would go through memory; and whole
        // vectors without a question between them.
        static ZEROS: [f32; WIDEST * 16] = [0.0; WIDEST * 16];
        let alpha = v.splat(out.alpha);
        let (init, init_rs) = if out.init.is_null() { (ZEROS.as_ptr(), 0) } else { (out.init, out.init_rs) };
        if last == V::W {
            each!(r < R, {
                each!(c < C, {
                    let init = v.load(init.add(r * init_rs + c * V::W));
                    v.store(out.at.add(r * out.rs + c * V::W), v.mul_add(alpha, sums[r][c], init));
                });
            });
        } else {
            each!(r < R, {
                each!(c < C, {
                    let (to, init) = (out.at.add(r * out.rs + c * V::W), init.add(r * init_rs + c * V::W));
                    if c + 1 < C {
                        v.store(to, v.mul_add(alpha, sums[r][c], v.load(init)));
                    } else {
                        v.store_first(to, last, v.mul_add(alpha, sums[r][c], v.load_first(init, mask)));
                    }
                });
            });
        }
    }
}

/// [`tile`] compiled for an instruction set. It is not a [`Job`](crate::kernels::vector::Job), because the arguments of
/// a job go through memory.
pub trait Tiles: Vector {
    /// # Safety
    /// As of [`tile`].
    unsafe fn tile<const R: usize, const C: usize, const A: u8, const M: bool>(
        self,
        k: usize,
        a: *const f32,
        apart: (usize, usize),
        b: (*const f32, usize),
        out: &Out,
        last: usize,
    );
}

macro_rules! tiles {
    ($($vector:ty: $features:literal),*) => {
        $(impl Tiles for $vector {
            #[inline(never)]
            #[target_feature(enable = $features)]
            unsafe fn tile<const R: usize, const C: usize, const A: u8, const M: bool>(
                self,
                k: usize,
                a: *const f32,
                apart: (usize, usize),
                b: (*const f32, usize),
                out: &Out,
                last: usize,
            ) {
                // SAFETY: this function's contract.
                unsafe { tile::<Self, R, C, A, M>(self, k, View { at: a, rs: apart.0, cs: apart.1 }, b, out, last) }
            }
        })*
    };
}

tiles!(Avx2: "avx2,fma", Avx512: "avx512f,avx512vl", Avx512<true>: "avx512f,avx512vl,avx512bf16");

/// m rows and C vectors of columns.
///
/// # Safety
/// As of [`tile`], with m for R.
unsafe fn rows<V: Tiles, const C: usize, const A: u8, const M: bool>(
    v: V,
    (m, k): (usize, usize),
    a: View,
    b: View,
    out: Out,
    last: usize,
) {
    let mut i = 0;
    while i < m {
        let (a, out) = (a.from(i, 0), &out.from(i, 0));
        macro_rules! tile {
            ($r:literal) => {{
                // SAFETY: rows i.. of m, no more than are left.
                unsafe { v.tile::<$r, C, A, M>(k, a.at, (a.rs, a.cs), (b.at, b.rs), out, last) };
                $r
            }};
        }
        // Constants in blocks: a tile that is not of these registers is not compiled.
        i += match m - i {
            12.. if const { V::REGISTERS == 32 && C < 3 } => tile!(12),
            8.. if const { if V::REGISTERS == 32 { C < 4 } else { C == 1 } } => tile!(8),
            6.. if const { V::REGISTERS == 32 && C == 4 } => tile!(6),
            left @ 6.. if const { V::REGISTERS == 16 && C == 2 } && left != 8 => tile!(6),
            4.. if const { V::REGISTERS == 32 || C < 3 } => tile!(4),
            3.. if const { V::REGISTERS == 16 && C == 3 } => tile!(3),
            2.. => tile!(2),
            _ => tile!(1),
        }
    }
}

/// y [m, n], whose columns are anywhere, from `sums`, which computes so many rows from one on, without gaps.
///
/// # Safety
/// `out` [m, n] is memory to read and write; `sums` writes n columns of as many rows as it is told.
unsafe fn scattered(m: usize, n: usize, out: Out, sums: impl Fn(usize, usize, Out)) {
    const R: usize = 12;
    const N: usize = WIDEST * 16;
    let mut packed = [const { MaybeUninit::<f32>::uninit() }; R * N];
    for i in (0..m).step_by(R) {
        let rows = R.min(m - i);
        let to = Out { at: packed.as_mut_ptr().cast(), rs: N, cs: 1, alpha: 1.0, init: null(), init_rs: 0 };
        sums(i, rows, to);
        for r in 0..rows {
            for j in 0..n {
                let out = out.from(i + r, j);
                // SAFETY: `out` has the element, by this function's contract, and the sum was just written.
                unsafe {
                    let init = if out.init.is_null() { 0.0 } else { *out.init };
                    *out.at = out.alpha.mul_add(packed[r * N + j].assume_init(), init);
                }
            }
        }
    }
}

/// A panel with n columns: b is [k, vectors], its columns next to each other, or [k, n] if M.
///
/// # Safety
/// a [m, k], b and `out` [m, n] are memory to read or write.
pub unsafe fn columns<V: Tiles, const M: bool>(v: V, (m, k, n): (usize, usize, usize), a: View, b: View, out: Out) {
    if out.cs != 1 {
        // SAFETY: this function's contract; rows i.. of m, no more than are left.
        return unsafe {
            scattered(m, n, out, |i, m, out| columns::<V, M>(v, (m, k, n), a.from(i, 0), b, out));
        };
    }
    let c = panel::<V>(n);
    let last = n - (c - 1) * V::W;
    macro_rules! rows {
        ($c:literal) => {
            // SAFETY: this function's contract; a lies so.
            unsafe {
                match (a.rs, a.cs) {
                    (_, 1) if const { V::REGISTERS == 16 } => rows::<V, $c, ROWS, M>(v, (m, k), a, b, out, last),
                    (1, _) if const { V::REGISTERS == 16 } => rows::<V, $c, COLUMNS, M>(v, (m, k), a, b, out, last),
                    _ => rows::<V, $c, ANYHOW, M>(v, (m, k), a, b, out, last),
                }
            }
        };
    }
    match c {
        2 if const { V::MASKS || !M } => rows!(2),
        3 if const { V::MASKS || !M } => rows!(3),
        4 if const { V::REGISTERS == 32 } => rows!(4),
        _ => rows!(1),
    }
}
