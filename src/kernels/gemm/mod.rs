//! One matrix product on slices: y = α a b, or y += α a b.
//!
//! In single precision on a processor with AVX-512 or AVX2 it is our own, in `product.rs`: the products of small models
//! are narrow (1024 rows of 4 numbers), and over before a library has prepared itself. In double precision, for large
//! matrices and on other processors it is the `gemm` crate's, except that products of a few numbers are plain loops.
//! `cargo bench --bench gemm` shows ours beside the crate's at the shapes of our models.
//!
//! Sums go over k in blocks that depend on the sizes and strides alone, so that the same product has the same bits
//! every time, and our own the same on either kind of processor.

#[cfg(target_arch = "x86_64")]
mod bf16;
#[cfg(target_arch = "x86_64")]
mod operand;
#[cfg(target_arch = "x86_64")]
mod pack;
mod packed;
#[cfg(target_arch = "x86_64")]
mod product;
#[cfg(target_arch = "x86_64")]
mod small_k;
#[cfg(target_arch = "x86_64")]
mod tall_skinny_avx2;
#[cfg(target_arch = "x86_64")]
mod tall_skinny_avx512;
#[cfg(target_arch = "x86_64")]
mod tile;

pub use packed::Packed;

#[cfg(target_arch = "x86_64")]
use crate::kernels::vector::{Avx2, Avx512};
#[cfg(not(target_arch = "x86_64"))]
use crate::tensor::DType;
pub use crate::tensor::{Mat, Products};
use crate::tensor::{
    Real,
    simd::{self, Level},
};

/// The most steps of k that our own kernels sum at once.
const KC: usize = 256;

/// How a product gets into y.
#[derive(Clone, Copy, Debug)]
pub enum Epilogue<'a, T> {
    /// It is written to y.
    Set,
    /// It is added to y.
    Add,
    /// It is written to y with this row added to each row.
    Bias(&'a [T]),
}

impl<'a, T: Real> Epilogue<'a, T> {
    /// Adding if `acc`, else writing.
    pub fn of(acc: bool) -> Epilogue<'a, T> {
        if acc { Epilogue::Add } else { Epilogue::Set }
    }

    /// The same of type `f32`, if that is what it is.
    #[cfg(target_arch = "x86_64")]
    fn f32s(self) -> Option<Epilogue<'a, f32>> {
        Some(match self {
            Epilogue::Set => Epilogue::Set,
            Epilogue::Add => Epilogue::Add,
            Epilogue::Bias(row) => Epilogue::Bias(T::f32s(row)?),
        })
    }
}

/// y = alpha a b, or y += alpha a b when `acc`.
///
/// # Panics
/// When the sizes do not fit, or a slice is shorter than its matrix.
#[track_caller]
pub fn gemm<T: Real>(alpha: T, a: (&[T], Mat), b: (&[T], Mat), y: (&mut [T], Mat), acc: bool) {
    gemm_as(Products::F32, Epilogue::of(acc), alpha, a, b, y);
}

/// alpha a b into y, as `epilogue` says, with the operands rounded to what `products` says if they are `f32`.
///
/// # Panics
/// When the sizes do not fit, a slice is shorter than its matrix, or this processor has no such products.
#[track_caller]
pub fn gemm_as<T: Real>(
    products: Products,
    mut epilogue: Epilogue<T>,
    alpha: T,
    a: (&[T], Mat),
    b: (&[T], Mat),
    y: (&mut [T], Mat),
) {
    check(&a, &b, (y.0.len(), y.1));
    let (m, k, n) = (a.1.rows, a.1.cols, b.1.cols);
    if let Epilogue::Bias(row) = epilogue {
        assert!(row.len() == n, "gemm: a row of {} numbers for {n} columns", row.len());
        if y.1.cs != 1 {
            fill(row, (&mut *y.0, y.1));
            epilogue = Epilogue::Add;
        }
    }
    if m == 0 || n == 0 || singly(products, epilogue, alpha, a, b, (&mut *y.0, y.1)) {
        return;
    }
    if let Epilogue::Bias(row) = epilogue {
        fill(row, (&mut *y.0, y.1));
    }
    let acc = !matches!(epilogue, Epilogue::Set);
    // The library asks the processor alone what it has.
    let plain = cfg!(target_arch = "x86_64") && simd::level() == Level::Plain;
    if plain || m * k * n <= TINY { loops(alpha, a, b, y, acc) } else { library(alpha, a, b, y, acc) }
}

/// Every row of y becomes `row`.
fn fill<T: Real>(row: &[T], y: (&mut [T], Mat)) {
    for i in 0..y.1.rows {
        row.iter().enumerate().for_each(|(j, &x)| y.0[i * y.1.rs + j * y.1.cs] = x);
    }
}

/// The product in single precision by kernels of our own; false where there are none, or the `gemm` crate is faster.
#[cfg(target_arch = "x86_64")]
fn singly<T: Real>(
    products: Products,
    epilogue: Epilogue<T>,
    alpha: T,
    a: (&[T], Mat),
    b: (&[T], Mat),
    y: (&mut [T], Mat),
) -> bool {
    let (Some(x), Some(w), Some(epilogue)) = (T::f32s(a.0), T::f32s(b.0), epilogue.f32s()) else { return false };
    let Some(out) = T::f32s_mut(y.0) else { return false };
    let product = operand::Product::new(alpha.to_f64() as f32, (x, a.1), (w, b.1), (out, y.1), epilogue);
    // SAFETY: the caller has checked the sizes and the lengths; y is borrowed mutably.
    unsafe {
        match products {
            Products::F32 => match Avx512::here() {
                Some(v) => product::product(v, product),
                None => Avx2::here().is_some_and(|v| product::product(v, product)),
            },
            Products::Bf16 => {
                bf16::product(Avx512::pairs().expect("products bf16 on a processor without them"), product);
                true
            }
        }
    }
}

/// The product by the kernels for a set of instructions: gives the number of steps of k that they sum at once, or none,
/// with nothing done, where the process may not use the instructions or the `gemm` crate is faster.
#[cfg(target_arch = "x86_64")]
#[doc(hidden)]
pub fn at_level(
    level: Level,
    epilogue: Epilogue<f32>,
    alpha: f32,
    a: (&[f32], Mat),
    b: (&[f32], Mat),
    y: (&mut [f32], Mat),
) -> Option<usize> {
    check(&a, &b, (y.0.len(), y.1));
    assert!(y.1.rows > 0 && y.1.cols > 0, "gemm: y has no element, expected one at least");
    if let Epilogue::Bias(row) = epilogue {
        assert!(row.len() == y.1.cols && y.1.cs == 1, "gemm: a row of {} numbers for {:?}", row.len(), y.1);
    }
    let product = operand::Product::new(alpha, a, b, y, epilogue);
    // SAFETY: the sizes and the lengths are checked; y is borrowed mutably.
    let done = unsafe {
        match level {
            Level::Plain => false,
            Level::Avx2 => Avx2::here().is_some_and(|v| product::product(v, product)),
            Level::Avx512 => Avx512::here().is_some_and(|v| product::product(v, product)),
        }
    };
    done.then(|| product.steps())
}

/// Other processors have no kernels of ours.
#[cfg(not(target_arch = "x86_64"))]
fn singly<T: Real>(
    products: Products,
    _: Epilogue<T>,
    _: T,
    _: (&[T], Mat),
    _: (&[T], Mat),
    _: (&mut [T], Mat),
) -> bool {
    assert!(products == Products::F32 || T::DTYPE != DType::F32, "products bf16 on a processor without them");
    false
}

/// The most multiplications that plain loops are faster at.
const TINY: usize = 256;

/// Element after element of y.
fn loops<T: Real>(alpha: T, a: (&[T], Mat), b: (&[T], Mat), y: (&mut [T], Mat), acc: bool) {
    let ((a, ma), (b, mb), (y, my)) = (a, b, y);
    for i in 0..my.rows {
        for j in 0..my.cols {
            let mut sum = T::ZERO;
            for p in 0..ma.cols {
                sum += a[i * ma.rs + p * ma.cs] * b[p * mb.rs + j * mb.cs];
            }
            let y = &mut y[i * my.rs + j * my.cs];
            *y = alpha * sum + if acc { *y } else { T::ZERO };
        }
    }
}

#[track_caller]
fn check<T>(a: &(&[T], Mat), b: &(&[T], Mat), y: (usize, Mat)) {
    let (ma, mb, my) = (a.1, b.1, y.1);
    assert!(ma.rows == my.rows && mb.cols == my.cols && ma.cols == mb.rows, "gemm: {ma:?} times {mb:?} into {my:?}");
    assert!(a.0.len() >= ma.span() && b.0.len() >= mb.span() && y.0 >= my.span(), "gemm: a slice is too short");
}

/// The `gemm` crate.
#[track_caller]
pub fn library<T: Real>(alpha: T, a: (&[T], Mat), b: (&[T], Mat), y: (&mut [T], Mat), acc: bool) {
    check(&a, &b, (y.0.len(), y.1));
    let ((a, ma), (b, mb), (y, my)) = (a, b, y);
    // SAFETY: `check` has compared all three spans with their slices, strides are non-negative, and `y` is borrowed
    // mutably, so it overlaps neither `a` nor `b`. The element types are f32 and f64, which the crate dispatches on.
    unsafe {
        gemm::gemm(
            my.rows,
            my.cols,
            ma.cols,
            y.as_mut_ptr(),
            my.cs as isize,
            my.rs as isize,
            acc,
            a.as_ptr(),
            ma.cs as isize,
            ma.rs as isize,
            b.as_ptr(),
            mb.cs as isize,
            mb.rs as isize,
            T::ONE,
            alpha,
            false,
            false,
            false,
            gemm::Parallelism::None,
        );
    }
}
