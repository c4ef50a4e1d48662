//! The Rust types that elements of tensors in host memory have.

use super::{Buf, DType, Host, Pool, pool::Bin};
use bytemuck::Pod;
use std::{fmt, ops, sync::Arc};

/// Kernels rely on what these traits say of a type, so that no other has them.
mod sealed {
    pub trait Sealed {}
    impl Sealed for f32 {}
    impl Sealed for f64 {}
    impl Sealed for i32 {}
}

/// A type that can be the element of a tensor: `f32`, `f64` or `i32`.
pub trait Element: sealed::Sealed + Pod + Default + PartialEq + fmt::Debug + Send + Sync + 'static {
    /// The run-time name of this type.
    const DTYPE: DType;
    /// The host buffer of this element type, if `buf` is one.
    fn buffer(buf: &Buf) -> Option<&Arc<Host<Self>>>;
    /// The same, mutable.
    fn buffer_mut(buf: &mut Buf) -> Option<&mut Arc<Host<Self>>>;
    /// Wrap a host buffer.
    fn wrap(v: Arc<Host<Self>>) -> Buf;
    /// The free buffers of this type in a pool.
    fn bin(pool: &mut Pool) -> &mut Bin<Host<Self>>;
    /// The value that marks memory nobody has written: NaN, or the least integer.
    const POISON: Self;
}

/// `f32` or `f64`: what CPU kernels are generic over.
pub trait Real:
    Element
    + PartialOrd
    + ops::Add<Output = Self>
    + ops::Sub<Output = Self>
    + ops::Mul<Output = Self>
    + ops::Div<Output = Self>
    + ops::Neg<Output = Self>
    + ops::AddAssign
    + ops::SubAssign
    + ops::MulAssign
    + std::iter::Sum
{
    /// Zero.
    const ZERO: Self;
    /// One.
    const ONE: Self;
    /// The nearest value to `x`.
    fn of(x: f64) -> Self;
    /// The value as `f64`, exactly.
    fn to_f64(self) -> f64;
    /// self · a + b: rounded once in single precision, one instruction of nearly every processor of today (others get
    /// the same bits, slowly); in double, which is there to check by, two operations.
    fn fma(self, a: Self, b: Self) -> Self;
    /// Square root.
    fn sqrt(self) -> Self;
    /// Absolute value.
    fn abs(self) -> Self;
    /// Neither infinite nor NaN.
    fn is_finite(self) -> bool;
    /// The same numbers, if they are `f32`: for kernels that are written for one type.
    fn f32s(x: &[Self]) -> Option<&[f32]>;
    /// The same, to write.
    fn f32s_mut(x: &mut [Self]) -> Option<&mut [f32]>;
}

macro_rules! element {
    ($t:ty, $variant:ident, $bin:ident, $poison:expr) => {
        impl Element for $t {
            const DTYPE: DType = DType::$variant;
            fn buffer(buf: &Buf) -> Option<&Arc<Host<Self>>> {
                if let Buf::$variant(v) = buf { Some(v) } else { None }
            }
            fn buffer_mut(buf: &mut Buf) -> Option<&mut Arc<Host<Self>>> {
                if let Buf::$variant(v) = buf { Some(v) } else { None }
            }
            fn wrap(v: Arc<Host<Self>>) -> Buf {
                Buf::$variant(v)
            }
            fn bin(pool: &mut Pool) -> &mut Bin<Host<Self>> {
                &mut pool.$bin
            }
            const POISON: Self = $poison;
        }
    };
}
element!(f32, F32, f32, f32::NAN);
element!(f64, F64, f64, f64::NAN);
element!(i32, I32, i32, i32::MIN);

macro_rules! real {
    ($t:ty, fma: $fma:expr, $x:ident => $f32s:expr) => {
        impl Real for $t {
            const ZERO: Self = 0.0;
            const ONE: Self = 1.0;
            #[inline(always)]
            fn of(x: f64) -> Self {
                x as $t
            }
            #[inline(always)]
            fn to_f64(self) -> f64 {
                self as f64
            }
            #[inline(always)]
            fn fma(self, a: Self, b: Self) -> Self {
                let fma: fn(Self, Self, Self) -> Self = $fma;
                fma(self, a, b)
            }
            #[inline(always)]
            fn sqrt(self) -> Self {
                <$t>::sqrt(self)
            }
            #[inline(always)]
            fn abs(self) -> Self {
                <$t>::abs(self)
            }
            #[inline(always)]
            fn is_finite(self) -> bool {
                <$t>::is_finite(self)
            }
            #[inline(always)]
            fn f32s($x: &[Self]) -> Option<&[f32]> {
                $f32s
            }
            #[inline(always)]
            fn f32s_mut($x: &mut [Self]) -> Option<&mut [f32]> {
                $f32s
            }
        }
    };
}
real!(f32, fma: f32::mul_add, x => Some(x));
real!(f64, fma: |x, a, b| x * a + b, _x => None);

/// Run an expression with `$T` bound to the floating-point type that a [`DType`] names.
///
/// Integers have no arithmetic here: reaching this with `I32` is a programming error.
#[macro_export]
macro_rules! with_real {
    ($dtype:expr, $T:ident => $body:expr) => {
        match $dtype {
            $crate::tensor::DType::F32 => {
                type $T = f32;
                $body
            }
            $crate::tensor::DType::F64 => {
                type $T = f64;
                $body
            }
            $crate::tensor::DType::BF16 => panic!("bf16 lives on CUDA devices only"),
            $crate::tensor::DType::I32 => panic!("integers take no part in arithmetic: expected f32 or f64"),
        }
    };
}
