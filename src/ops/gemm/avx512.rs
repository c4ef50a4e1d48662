//! The product in single precision with AVX-512: which operand is walked how, in blocks that stay in caches.

use super::{
    Mat, Start, narrow,
    pack::pack,
    tile::{Out, View, W, f32s, panels},
};
use std::{mem::MaybeUninit, ptr::null};

/// The most steps of k at once.
const KC: usize = 256;

/// How many numbers of b are packed together: they stay in the second-level cache.
const PACKED: usize = 1 << 15;

/// Fewer are packed in less memory: the stack is touched page by page.
const FEW: usize = 1 << 10;

/// From how many rows of a on a b is packed that need not be.
const TALL: usize = 1024;

/// As many numbers of a and b fit in that cache as they are.
const WHOLE: usize = 1 << 17;

/// Rows of y that go over all columns of b before the next ones: their part of a stays in the first-level cache.
const MC: usize = 24;

/// Whether this processor can.
#[inline]
pub fn available() -> bool {
    is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512vl")
}

/// y [m, n] = alpha a [m, k] b [k, n] + start, in the orientation that fills vectors.
#[derive(Clone, Copy)]
pub struct Product {
    pub m: usize,
    pub k: usize,
    pub n: usize,
    pub a: View,
    pub b: View,
    pub out: Out,
}

impl Product {
    /// Of matrices in slices, or the transpose: yᵀ = bᵀ aᵀ. A row to start from needs the columns of y next to each
    /// other.
    pub fn new(alpha: f32, a: (&[f32], Mat), b: (&[f32], Mat), y: (&mut [f32], Mat), start: Start<f32>) -> Product {
        let view = |m: (&[f32], Mat)| View { at: m.0.as_ptr(), rs: m.1.rs, cs: m.1.cs };
        let (m, k, n) = (y.1.rows, a.1.cols, y.1.cols);
        let at = y.0.as_mut_ptr();
        let (init, init_rs) = match start {
            Start::Zero => (null(), 0),
            Start::Y => (at.cast_const(), y.1.rs),
            Start::Row(row) => (row.as_ptr(), 0),
        };
        let (a, b, out) = (view(a), view(b), Out { at, rs: y.1.rs, cs: y.1.cs, alpha, init, init_rs });
        // Vectors lie along the rows of y, or along its columns where more of their lanes are filled so.
        let sparse = a.rs == 1 && k >= 32 && 2 * n * m.div_ceil(W) <= m * n.div_ceil(W);
        if matches!(start, Start::Row(_)) || (out.cs == 1 && !sparse) {
            return Product { m, k, n, a, b, out };
        }
        let t = |v: View| View { rs: v.cs, cs: v.rs, ..v };
        let init_rs = if init.is_null() { 0 } else { out.cs };
        Product { m: n, k, n: m, a: t(b), b: t(a), out: Out { rs: out.cs, cs: out.rs, init_rs, ..out } }
    }
}

/// Whether the `gemm` crate is faster: it packs a as well, which pays where b does not fit in the cache; and few rows
/// do not pay for packing b.
fn leave(m: usize, k: usize, n: usize, b: View) -> bool {
    (m > 512 && k > 512 && n > 512) || (m < 8 && b.cs != 1 && k * n > 256)
}

/// y [m, n] of one block of k, from b in place or in panels.
///
/// # Safety
/// AVX-512F and VL; a [m, k], b [k, n] or its panels, and `out` [m, n] are memory to read or write.
#[target_feature(enable = "avx512f,avx512vl")]
unsafe fn block(m: usize, k: usize, n: usize, a: View, b: View, packed: bool, out: Out) {
    for i in (0..m).step_by(MC) {
        for (j, cols, c) in panels(n) {
            let b = if packed { View { at: b.at.wrapping_add(j * k), rs: c * W, cs: 1 } } else { b.from(0, j) };
            // SAFETY: rows i.. of m and columns j.. of n, no more than are left.
            unsafe { f32s::columns(MC.min(m - i), k, cols, a.from(i, 0), b, out.from(i, j)) };
        }
    }
}

/// y [m, n], with b in panels if there is memory for them.
///
/// # Safety
/// AVX-512F and VL; a [m, k], b [k, n] and `out` [m, n] are memory to read or write; `packed`, if not empty, has room
/// for KC rows of a vector, or for all of b with its columns rounded up to vectors; if empty, b's columns are next to
/// each other.
#[target_feature(enable = "avx512f,avx512vl")]
unsafe fn blocks(m: usize, k: usize, n: usize, a: View, b: View, out: Out, packed: &mut [MaybeUninit<f32>]) {
    let whole = packed.is_empty() && (m + n) * k <= WHOLE;
    let parts = if whole { 1 } else { k.div_ceil(KC) };
    let kc = k.div_ceil(parts.max(1)).max(1);
    let nc = if packed.is_empty() { n } else { packed.len() / kc / W * W };
    for p in (0..k.max(1)).step_by(kc) {
        let steps = kc.min(k - p);
        for j in (0..n).step_by(nc) {
            let (cols, a, b, mut out) = (nc.min(n - j), a.from(0, p), b.from(p, j), out.from(0, j));
            if p > 0 {
                (out.init, out.init_rs) = (out.at, out.rs);
            }
            // SAFETY: rows p.. of k and columns j.. of n, no more than are left; `packed` has room for them.
            unsafe {
                if packed.is_empty() {
                    block(m, steps, cols, a, b, false, out);
                } else {
                    pack(steps, cols, b, packed.as_mut_ptr().cast());
                    let panels = View { at: packed.as_ptr().cast(), rs: 0, cs: 1 };
                    block(m, steps, cols, a, panels, true, out);
                }
            }
        }
    }
}

/// [`blocks`] with N numbers on the stack for panels.
///
/// # Safety
/// As of [`blocks`].
#[inline(never)]
#[target_feature(enable = "avx512f,avx512vl")]
unsafe fn packing<const N: usize>(m: usize, k: usize, n: usize, a: View, b: View, out: Out) {
    // SAFETY: this function's contract.
    unsafe { blocks(m, k, n, a, b, out, &mut [const { MaybeUninit::uninit() }; N]) }
}

/// The product; false, and nothing done, where the `gemm` crate is faster.
///
/// # Safety
/// [`available`] says so; a [m, k], b [k, n], `out` [m, n] and what it starts from are memory to read or write, and
/// `out` overlaps neither a nor b.
pub unsafe fn product(Product { m, k, n, a, b, out }: Product) -> bool {
    if leave(m, k, n, b) {
        return false;
    }
    // SAFETY: this function's contract. Panels have room: all of b has, or it comes in parts that have.
    unsafe {
        if narrow::product(m, k, n, a, b, out) {
            return true;
        }
        if b.cs == 1 && (m < TALL || k * n < PACKED / 2) {
            blocks(m, k, n, a, b, out, &mut []);
        } else if k * n.next_multiple_of(W) <= FEW {
            packing::<FEW>(m, k, n, a, b, out);
        } else {
            packing::<PACKED>(m, k, n, a, b, out);
        }
    }
    true
}
