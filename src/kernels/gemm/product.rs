//! The product in single precision with vectors: the choice of kernel, and blocks that stay in caches. All kernels sum
//! over k in the same order.

use super::{
    operand::{FEW, MC, Out, PACKED, Product, Room, View},
    pack::Pack,
    small_k, tall_skinny_avx2, tall_skinny_avx512,
    tile::{Tiles, columns, panels},
};
use crate::kernels::vector::{Avx2, Avx512, Vector};
use std::mem::MaybeUninit;

/// The choices of a product that depend on the instruction set.
pub trait Kernels: Tiles {
    /// Whether b is taken as it lies.
    fn in_place(p: &Product) -> bool;

    /// The product by loops for a shape; false, and nothing done, where there are none.
    ///
    /// # Safety
    /// As of [`product`].
    unsafe fn shaped(self, p: &Product) -> bool;
}

impl Kernels for Avx512 {
    fn in_place(p: &Product) -> bool {
        p.in_place()
    }

    unsafe fn shaped(self, p: &Product) -> bool {
        // SAFETY: this function's contract; eight columns fill half a vector. The processor has the instructions.
        unsafe {
            (if p.n == 8 { small_k::product(self.halves(), p) } else { small_k::product(self, p) })
                || tall_skinny_avx512::product(*p)
        }
    }
}

impl Kernels for Avx2 {
    /// Rows of b that are far apart share few places of the first-level cache.
    fn in_place(p: &Product) -> bool {
        p.b.cs == 1 && p.m < 64
    }

    unsafe fn shaped(self, p: &Product) -> bool {
        // SAFETY: this function's contract. The processor has the instructions.
        unsafe { tall_skinny_avx2::product(*p) || small_k::product(self, p) }
    }
}

/// y [m, n] of one block of k, from panels of b.
///
/// # Safety
/// a [m, k], the panels of b and `out` [m, n] are memory to read or write.
unsafe fn from_panels<V: Tiles>(v: V, (m, k, n): (usize, usize, usize), a: View, b: *const f32, out: Out) {
    for i in (0..m).step_by(MC) {
        for (j, cols, c) in panels::<V>(n) {
            let b = View { at: b.wrapping_add(j * k), rs: c * V::W, cs: 1 };
            // SAFETY: rows i.. of m and columns j.. of n, no more than are left.
            unsafe { columns::<V, false>(v, (MC.min(m - i), k, cols), a.from(i, 0), b, out.from(i, j)) };
        }
    }
}

/// The same from b [k, n] as it lies, its columns next to each other.
///
/// # Safety
/// a [m, k], b and `out` [m, n] are memory to read or write.
unsafe fn in_place<V: Tiles>(v: V, Product { m, k, n, a, b, out }: Product) {
    let whole = if V::MASKS { 0 } else { n / V::W * V::W };
    for i in (0..m).step_by(MC) {
        let (m, a, out) = (MC.min(m - i), a.from(i, 0), out.from(i, 0));
        // SAFETY: rows i.. of m and columns j.. of n, no more than are left.
        unsafe {
            for (j, cols, _) in panels::<V>(whole) {
                columns::<V, false>(v, (m, k, cols), a, b.from(0, j), out.from(0, j));
            }
            for (j, cols, _) in panels::<V>(n - whole) {
                columns::<V, true>(v, (m, k, cols), a, b.from(0, whole + j), out.from(0, whole + j));
            }
        }
    }
}

/// y [m, n] with b in panels, for which there is room for N numbers on the stack.
///
/// # Safety
/// As of [`product`]; N is room for all of b with its columns rounded up to vectors, or for as many rows of a vector as
/// are summed at once.
#[inline(never)]
unsafe fn packing<V: Tiles, const N: usize>(v: V, product: &Product) {
    let packed: &mut [MaybeUninit<f32>] = &mut Room::<N>::new().0;
    let nc = N / product.steps() / V::W * V::W;
    for (_, part) in product.blocks() {
        for j in (0..part.n).step_by(nc) {
            let Product { m, k, n, a, b, out } = part.columns(j, nc);
            // SAFETY: some rows of k and columns j.. of n, no more than are left; `packed` has room for them.
            unsafe {
                v.enter(Pack { k, n, b, to: packed.as_mut_ptr().cast() });
                from_panels(v, (m, k, n), a, packed.as_ptr().cast(), out);
            }
        }
    }
}

/// How many elements all of b takes in panels; if there is no such number, more than any memory has.
pub fn packed_len<V: Vector>(p: Product) -> usize {
    p.n.checked_next_multiple_of(V::W).and_then(|n| n.checked_mul(p.k)).unwrap_or(usize::MAX)
}

/// All of b in panels, for [`from_packed`].
///
/// # Safety
/// b [k, n] is memory to read, and `to` has room for [`packed_len`] numbers.
pub unsafe fn pack_all<V: Vector>(v: V, p: Product, to: *mut f32) {
    for (q, Product { k, n, b, .. }) in p.blocks() {
        // SAFETY: this function's contract; rows q.. of k, no more than are left.
        unsafe { v.enter(Pack { k, n, b, to: to.add(q * n.next_multiple_of(V::W)) }) };
    }
}

/// The product with the panels of b that [`pack_all`] made for as many rows of a; b itself is not read.
///
/// # Safety
/// a [m, k], the panels, `out` [m, n] and what it starts from are memory to read or write.
pub unsafe fn from_packed<V: Tiles>(v: V, p: Product, panels: *const f32) {
    for (q, Product { m, k, n, a, out, .. }) in p.blocks() {
        // SAFETY: this function's contract; rows q.. of k, no more than are left.
        unsafe { from_panels(v, (m, k, n), a, panels.add(q * n.next_multiple_of(V::W)), out) };
    }
}

/// The product; false, and nothing done, where the `gemm` crate is faster.
///
/// # Safety
/// a [m, k], b [k, n], `out` [m, n] and what it starts from are memory to read or write, and `out` overlaps neither a
/// nor b; neither m nor n is 0.
pub unsafe fn product<V: Kernels>(v: V, p: Product) -> bool {
    if p.leave() {
        return false;
    }
    // SAFETY: this function's contract. Panels have room for two vectors of as many rows as are summed at once: where
    // these are more than 256, a and b fit in the cache.
    unsafe {
        if v.shaped(&p) {
            return true;
        }
        if V::in_place(&p) {
            p.blocks().for_each(|(_, part)| in_place(v, part));
        } else if p.steps() * p.n.next_multiple_of(V::W) <= FEW {
            packing::<V, FEW>(v, &p);
        } else {
            packing::<V, PACKED>(v, &p);
        }
    }
    true
}
