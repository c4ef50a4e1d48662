//! A product as our kernels walk it.

use super::{Epilogue, KC, Mat};
use std::{mem::MaybeUninit, ptr::null};

/// The number of elements of b that are packed together: they stay in the second-level cache.
pub const PACKED: usize = 1 << 15;

/// Up to so many elements are packed in less memory, because the stack is touched page by page.
pub const FEW: usize = 1 << 10;

/// Room on the stack for N numbers, or pairs of bf16 ones, in panels. Aligned: a vector that crosses a line is read
/// twice.
#[repr(align(64))]
pub struct Room<const N: usize>(pub [MaybeUninit<f32>; N]);

impl<const N: usize> Room<N> {
    /// Nothing in it is written.
    #[inline(always)]
    pub fn new() -> Room<N> {
        Room([const { MaybeUninit::uninit() }; N])
    }
}

/// From this many rows of a on, b is packed even if it need not be.
const TALL: usize = 1024;

/// So many elements of a and b fit in that cache unpacked.
const WHOLE: usize = 1 << 17;

/// Rows of y that go over all columns of b before the next ones: their part of a stays in the first-level cache.
pub const MC: usize = 24;

/// The most columns, the fewest rows and the most steps of k of a tall, skinny product.
const MOST: usize = 8;
pub const FEWEST: usize = 16;
pub const LONGEST: usize = 512;

/// Numbers in a vector of AVX-512, for which the orientation is chosen.
const W: usize = 16;

/// An operand as the kernels walk it: its first element, and the distances between rows and columns.
#[derive(Clone, Copy)]
pub struct View {
    pub at: *const f32,
    pub rs: usize,
    pub cs: usize,
}

impl View {
    /// The part from row i and column j on. Nothing is read, so the address may be one past the end.
    pub fn from(self, i: usize, j: usize) -> View {
        View { at: self.at.wrapping_add(i * self.rs + j * self.cs), ..self }
    }
}

/// Where sums go: y = alpha sum + init.
#[derive(Clone, Copy)]
pub struct Out {
    pub at: *mut f32,
    pub rs: usize,
    pub cs: usize,
    pub alpha: f32,
    /// The matrix that is added; 0 if null. Its rows are `init_rs` apart, its columns as far as those of y.
    pub init: *const f32,
    pub init_rs: usize,
}

impl Out {
    /// The part from row i and column j on.
    pub fn from(self, i: usize, j: usize) -> Out {
        let init = self.init;
        let init = if init.is_null() { init } else { init.wrapping_add(i * self.init_rs + j * self.cs) };
        Out { at: self.at.wrapping_add(i * self.rs + j * self.cs), init, ..self }
    }
}

/// y [m, n] = alpha a [m, k] b [k, n] + init, in the orientation that fills vectors.
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
    /// Of matrices in slices, or the transpose: yᵀ = bᵀ aᵀ. A row to add needs the columns of y next to each
    /// other.
    pub fn new(
        alpha: f32,
        a: (&[f32], Mat),
        b: (&[f32], Mat),
        y: (&mut [f32], Mat),
        epilogue: Epilogue<f32>,
    ) -> Product {
        let view = |m: (&[f32], Mat)| View { at: m.0.as_ptr(), rs: m.1.rs, cs: m.1.cs };
        let (m, k, n) = (y.1.rows, a.1.cols, y.1.cols);
        let at = y.0.as_mut_ptr();
        let (init, init_rs) = match epilogue {
            Epilogue::Set => (null(), 0),
            Epilogue::Add => (at.cast_const(), y.1.rs),
            Epilogue::Bias(row) => (row.as_ptr(), 0),
        };
        let (a, b, out) = (view(a), view(b), Out { at, rs: y.1.rs, cs: y.1.cs, alpha, init, init_rs });
        // Vectors lie along the rows of y, or along its columns where more of their lanes are filled so.
        let sparse = a.rs == 1 && k >= 32 && 2 * n * m.div_ceil(W) <= m * n.div_ceil(W);
        if matches!(epilogue, Epilogue::Bias(_)) || (out.cs == 1 && !sparse) {
            return Product { m, k, n, a, b, out };
        }
        let t = |v: View| View { rs: v.cs, cs: v.rs, ..v };
        let init_rs = if init.is_null() { 0 } else { out.cs };
        Product { m: n, k, n: m, a: t(b), b: t(a), out: Out { rs: out.cs, cs: out.rs, init_rs, ..out } }
    }

    /// Whether the `gemm` crate is faster: few rows do not pay for packing b.
    pub fn leave(&self) -> bool {
        let Product { m, k, n, b, .. } = *self;
        self.large() || (m < 8 && b.cs != 1 && k * n > 256)
    }

    /// Whether b does not fit in the cache: that crate packs a as well.
    pub fn large(&self) -> bool {
        self.m > 512 && self.k > 512 && self.n > 512
    }

    /// Whether AVX-512 takes b as it lies.
    pub fn in_place(&self) -> bool {
        self.b.cs == 1 && (self.m < TALL || self.k * self.n < PACKED / 2)
    }

    /// Whether y has so few columns that its rows would leave most of a vector empty, a lies in rows, and y has no
    /// gaps.
    pub fn few_columns(&self) -> bool {
        let Product { m, n, a, out, .. } = *self;
        n <= MOST && m >= FEWEST && a.cs == 1 && out.cs == 1 && out.rs == n
    }

    /// Whether this is a product with few columns and as many steps of k as AVX2 transposes rows for. AVX2 sums these
    /// steps at once if there are at most four columns, and so does AVX-512.
    pub fn tall_skinny(&self) -> bool {
        self.few_columns() && (4..=LONGEST).contains(&self.k)
    }

    /// How many steps of k are summed at once, from the sizes and strides alone: with AVX2 as many as with AVX-512, so
    /// that both sum in the same order.
    pub fn steps(&self) -> usize {
        if self.tall_skinny() && self.n <= 4 {
            return self.k;
        }
        let whole = self.in_place() && (self.m + self.n) * self.k <= WHOLE;
        let parts = if whole { 1 } else { self.k.div_ceil(KC) };
        self.k.div_ceil(parts.max(1)).max(1)
    }

    /// The products of those steps of k, each with its first step; all but the first add to what y has become.
    pub fn blocks(self) -> impl Iterator<Item = (usize, Product)> {
        let steps = self.steps();
        (0..self.k.max(1)).step_by(steps).map(move |p| {
            let Product { k, a, b, mut out, .. } = self;
            if p > 0 {
                (out.init, out.init_rs) = (out.at, out.rs);
            }
            (p, Product { k: steps.min(k - p), a: a.from(0, p), b: b.from(p, 0), out, ..self })
        })
    }

    /// The product for columns j.. of y, n of them or as many as are left.
    pub fn columns(self, j: usize, n: usize) -> Product {
        Product { n: n.min(self.n - j), b: self.b.from(0, j), out: self.out.from(0, j), ..self }
    }
}
