//! The product in single precision with AVX-512: which operand is walked how, in blocks that stay in caches.

use super::{
    narrow,
    operand::{FEW, MC, Out, PACKED, Product, Room, View},
    pack::pack,
    short,
    tile::{W, f32s, panels},
};
use crate::tensor::simd::{self, Level};
use std::mem::MaybeUninit;

/// Whether this processor can.
#[inline]
pub fn available() -> bool {
    simd::allows(Level::Avx512) && is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512vl")
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
/// for as many rows of a vector as are summed at once, or for all of b with its columns rounded up to vectors; it is empty
/// just if b is to be taken in place, and then b's columns are next to each other.
#[target_feature(enable = "avx512f,avx512vl")]
unsafe fn blocks(product: Product, packed: &mut [MaybeUninit<f32>]) {
    let nc = if packed.is_empty() { product.n } else { packed.len() / product.steps() / W * W };
    for (_, part) in product.blocks() {
        for j in (0..part.n).step_by(nc) {
            let Product { m, k, n, a, b, out } = part.columns(j, nc);
            // SAFETY: some rows of k and columns j.. of n, no more than are left; `packed` has room for them.
            unsafe {
                if packed.is_empty() {
                    block(m, k, n, a, b, false, out);
                } else {
                    pack(k, n, b, packed.as_mut_ptr().cast());
                    let panels = View { at: packed.as_ptr().cast(), rs: 0, cs: 1 };
                    block(m, k, n, a, panels, true, out);
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
unsafe fn packing<const N: usize>(product: Product) {
    // SAFETY: this function's contract.
    unsafe { blocks(product, &mut Room::<N>::new().0) }
}

/// The product; false, and nothing done, where the `gemm` crate is faster.
///
/// # Safety
/// [`available`] says so; a [m, k], b [k, n], `out` [m, n] and what it starts from are memory to read or write, and
/// `out` overlaps neither a nor b.
pub unsafe fn product(p: Product) -> bool {
    if p.leave() {
        return false;
    }
    // SAFETY: this function's contract. Panels have room: all of b has, or it comes in parts that have.
    unsafe {
        if short::product(p) || narrow::product(p) {
            return true;
        }
        if p.in_place() {
            blocks(p, &mut []);
        } else if p.k * p.n.next_multiple_of(W) <= FEW {
            packing::<FEW>(p);
        } else {
            packing::<PACKED>(p);
        }
    }
    true
}
