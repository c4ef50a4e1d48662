//! Panels of b, next to each other in memory, for the tiles.

use super::{operand::View, tile::panels};
use crate::kernels::vector::{Job, Vector};
use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};

/// Panels of b [k, n], each [k, C vectors], one after the other: the panel from column j on starts at element j k.
/// Lanes beyond the last column are zero.
///
/// To run it, b must be memory to read, and `to` that of k times n, rounded up to vectors, elements to write.
pub struct Pack {
    pub k: usize,
    pub n: usize,
    pub b: View,
    pub to: *mut f32,
}

impl Job for Pack {
    #[inline(always)]
    unsafe fn run<V: Vector>(self, v: V) {
        let Pack { k, n, b, to } = self;
        // SAFETY: the contract; columns j..j + cols of n, and as many vectors.
        unsafe {
            if b.cs == 1 {
                return by_rows(v, k, n, b, to);
            }
            for (j, cols, c) in panels::<V>(n) {
                let (b, to) = (b.from(0, j), to.add(j * k));
                if b.rs == 1 {
                    along(v, k, (cols, c), b, to);
                } else {
                    for p in 0..k {
                        for l in 0..c * V::W {
                            *to.add(p * c * V::W + l) = if l < cols { *b.from(p, l).at } else { 0.0 };
                        }
                    }
                }
            }
        }
    }
}

/// Rows that go to all panels before the next rows, which are fetched into the cache meanwhile.
const ROWS: usize = 8;

/// All panels from rows of b, some rows at a time: b is read as it lies, and each panel written by whole lines.
///
/// # Safety
/// As of [`Pack`], with b's columns next to each other.
#[inline(always)]
unsafe fn by_rows<V: Vector>(v: V, k: usize, n: usize, b: View, to: *mut f32) {
    for p in (0..k).step_by(ROWS) {
        let rows = ROWS.min(k - p);
        for (j, cols, c) in panels::<V>(n) {
            // SAFETY: rows p.. of k and columns j.. of n; `to` has whole vectors.
            unsafe {
                let (b, to) = (b.from(p, j), to.add(j * k + p * c * V::W));
                match (c, cols == c * V::W) {
                    (1, true) => copy::<V, 1>(v, rows, b, to),
                    (2, true) => copy::<V, 2>(v, rows, b, to),
                    (3, true) => copy::<V, 3>(v, rows, b, to),
                    (4, true) if const { V::REGISTERS == 32 } => copy::<V, 4>(v, rows, b, to),
                    _ => part(v, rows, (cols, c), b, to),
                }
            }
        }
    }
}

/// Rows of C vectors, next to each other.
///
/// # Safety
/// b [rows, C vectors], its columns next to each other, is memory to read, `to` to write.
#[inline(always)]
unsafe fn copy<V: Vector, const C: usize>(v: V, rows: usize, b: View, to: *mut f32) {
    for r in 0..rows {
        for i in 0..C {
            // SAFETY: this function's contract; what is fetched is not read, and may be past the end.
            unsafe {
                let from = b.from(r, i * V::W).at;
                _mm_prefetch::<_MM_HINT_T0>(from.wrapping_add(ROWS * b.rs).cast());
                v.store(to.add((r * C + i) * V::W), v.load(from));
            }
        }
    }
}

/// The same of c vectors, the last of which is not full.
///
/// # Safety
/// b [rows, n], its columns next to each other, is memory to read, `to` [rows, c vectors] to write.
#[inline(always)]
unsafe fn part<V: Vector>(v: V, rows: usize, (n, c): (usize, usize), b: View, to: *mut f32) {
    for r in 0..rows {
        for i in 0..c {
            // SAFETY: the elements of b are those of the mask, and `to` has whole vectors.
            unsafe {
                let x = v.load_first(b.from(r, i * V::W).at, v.first(V::W.min(n - i * V::W)));
                v.store(to.add((r * c + i) * V::W), x);
            }
        }
    }
}

/// One panel from columns of b.
///
/// # Safety
/// As of [`Pack`], with n columns that fill c vectors, and b's rows next to each other.
#[inline(always)]
unsafe fn along<V: Vector>(v: V, k: usize, (n, c): (usize, usize), b: View, to: *mut f32) {
    for i in 0..c {
        for p in (0..k).step_by(V::W) {
            let steps = (k - p).min(V::W);
            let mut columns = v.square();
            for (l, column) in columns.as_mut().iter_mut().enumerate().take(n - i * V::W) {
                // SAFETY: column i W + l of n, and as many of its elements from p on as there are.
                *column = unsafe { v.load_first(b.from(p, i * V::W + l).at, v.first(steps)) };
            }
            v.transpose(&mut columns);
            for (q, &row) in columns.as_ref().iter().enumerate().take(steps) {
                // SAFETY: `to` has k rows of c vectors.
                unsafe { v.store(to.add(((p + q) * c + i) * V::W), row) };
            }
        }
    }
}
