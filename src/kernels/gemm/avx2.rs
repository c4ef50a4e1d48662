//! The product in single precision with AVX2 and FMA, for processors without AVX-512: vectors of eight numbers, sixteen
//! registers. Sums go over k in the order of [`super::avx512`].

mod few;
mod narrow;
mod pack;
mod tile;

use super::operand::{FEW, MC, Out, PACKED, Product, Room, View};
use crate::tensor::simd::{self, Level};
use pack::pack;
use std::mem::MaybeUninit;
use tile::{W, columns, panels, rest};

/// From how many rows of a on b is packed that need not be: rows of b that are far apart share few places of the
/// first-level cache.
const TALL: usize = 64;

/// Whether this processor can.
#[inline]
pub fn available() -> bool {
    simd::allows(Level::Avx2) && is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma")
}

/// y [m, n] of one block of k, from panels of b.
///
/// # Safety
/// AVX2 and FMA; a [m, k], the panels of b and `out` [m, n] are memory to read or write.
#[target_feature(enable = "avx2,fma")]
unsafe fn from_panels(m: usize, k: usize, n: usize, a: View, b: *const f32, out: Out) {
    for i in (0..m).step_by(MC) {
        for (j, cols, c) in panels(n) {
            let b = View { at: b.wrapping_add(j * k), rs: c * W, cs: 1 };
            // SAFETY: rows i.. of m and columns j.. of n, no more than are left.
            unsafe { columns(MC.min(m - i), k, cols, a.from(i, 0), b, out.from(i, j)) };
        }
    }
}

/// The same from b [k, n] as it lies, its columns next to each other.
///
/// # Safety
/// AVX2 and FMA; a [m, k], b and `out` [m, n] are memory to read or write.
#[target_feature(enable = "avx2,fma")]
unsafe fn in_place(m: usize, k: usize, n: usize, a: View, b: View, out: Out) {
    let whole = n / W * W;
    for i in (0..m).step_by(MC) {
        let (m, a, out) = (MC.min(m - i), a.from(i, 0), out.from(i, 0));
        // SAFETY: rows i.. of m and columns j.. of n, no more than are left.
        unsafe {
            for (j, cols, _) in panels(whole) {
                columns(m, k, cols, a, b.from(0, j), out.from(0, j));
            }
            if whole < n {
                rest(m, k, n - whole, a, b.from(0, whole), out.from(0, whole));
            }
        }
    }
}

/// y [m, n], with b in panels if there is memory for them.
///
/// # Safety
/// AVX2 and FMA; a [m, k], b [k, n] and `out` [m, n] are memory to read or write; `packed`, if not empty, has room for as
/// many rows of two vectors as are summed at once; if it is, b's columns are next to each other.
#[target_feature(enable = "avx2,fma")]
unsafe fn blocks(product: Product, packed: &mut [MaybeUninit<f32>]) {
    let nc = if packed.is_empty() { product.n } else { packed.len() / product.steps() / W * W };
    for (_, part) in product.blocks() {
        for j in (0..part.n).step_by(nc) {
            let Product { m, k, n, a, b, out } = part.columns(j, nc);
            // SAFETY: some rows of k and columns j.. of n, no more than are left; `packed` has room for them.
            unsafe {
                if packed.is_empty() {
                    in_place(m, k, n, a, b, out);
                } else {
                    pack(k, n, b, packed.as_mut_ptr().cast());
                    from_panels(m, k, n, a, packed.as_ptr().cast(), out);
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
#[target_feature(enable = "avx2,fma")]
unsafe fn packing<const N: usize>(product: Product) {
    // SAFETY: this function's contract.
    unsafe { blocks(product, &mut Room::<N>::new().0) }
}

/// How many numbers all of b takes in panels.
pub fn packed_len(p: Product) -> usize {
    p.k * p.n.next_multiple_of(W)
}

/// All of b in panels, for [`from_packed`].
///
/// # Safety
/// [`available`] says so; b [k, n] is memory to read, and `to` has room for [`packed_len`] numbers.
pub unsafe fn pack_all(p: Product, to: *mut f32) {
    for (q, part) in p.blocks() {
        // SAFETY: this function's contract; rows q.. of k, no more than are left.
        unsafe { pack(part.k, p.n, part.b, to.add(q * p.n.next_multiple_of(W))) };
    }
}

/// The product with the panels of b that [`pack_all`] made for as many rows of a; b itself is not read.
///
/// # Safety
/// [`available`] says so; a [m, k], the panels, `out` [m, n] and what it starts from are memory to read or write.
pub unsafe fn from_packed(p: Product, panels: *const f32) {
    for (q, Product { m, k, n, a, out, .. }) in p.blocks() {
        let panels = panels.wrapping_add(q * n.next_multiple_of(W));
        // SAFETY: this function's contract; rows q.. of k, no more than are left.
        unsafe { from_panels(m, k, n, a, panels, out) };
    }
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
    let steps = p.steps();
    // SAFETY: this function's contract. Panels have room for two vectors of as many rows as are summed at once: a and b
    // fit in the cache where those are more than 256, and a has TALL rows at least.
    unsafe {
        if narrow::product(p) {
            return true;
        }
        debug_assert!(p.m < TALL || steps * 2 * W <= PACKED);
        if p.b.cs == 1 && p.m < TALL {
            blocks(p, &mut []);
        } else if steps * p.n.next_multiple_of(W) <= FEW {
            packing::<FEW>(p);
        } else {
            packing::<PACKED>(p);
        }
    }
    true
}
