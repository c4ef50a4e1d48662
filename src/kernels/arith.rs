//! The kernels of [`arith`](crate::kernels::arith).

use crate::{
    args,
    autograd::{Grad, In, Kernel, Value},
    kernels::{
        arith_cpu::{Scalar, backward, forward},
        arith_cuda::{self, MODULE, sums},
    },
    ops::arith::{Add, Affine, Div, Mul, Sub},
    tensor::{Cx, Real, Tensor},
    with_real,
};

macro_rules! binary {
    ($Op:ident, $name:literal, f: $f:expr, da: $da:expr, db: $db:expr) => {
        impl Scalar for $Op {
            #[inline(always)]
            fn f<T: Real>(a: T, b: T) -> T {
                let f: fn(T, T) -> T = $f;
                f(a, b)
            }
            #[inline(always)]
            fn da<T: Real>(g: T, a: T, b: T) -> T {
                let f: fn(T, T, T) -> T = $da;
                f(g, a, b)
            }
            #[inline(always)]
            fn db<T: Real>(g: T, a: T, b: T) -> T {
                let f: fn(T, T, T) -> T = $db;
                f(g, a, b)
            }
        }

        impl Kernel for $Op {
            fn forward(&self, cx: &Cx, x: In, y: &mut [Value]) {
                match cx {
                    Cx::Cpu(_) => with_real!(x[0].dtype(), T => forward::<$Op, T>(x, &mut y[0])),
                    Cx::Cuda(cu) => arith_cuda::forward(cu, concat!($name, "_forward"), x, &mut y[0]),
                }
            }

            fn backward(&self, cx: &Cx, x: In, _: &[Value], dy: &[Option<Tensor>], dx: &mut [Grad]) {
                let Some(g) = &dy[0] else { return };
                match cx {
                    Cx::Cpu(_) => with_real!(g.dtype(), T => backward::<$Op, T>(x, g, dx)),
                    Cx::Cuda(cu) => arith_cuda::backward(cu, sums!($name), x, g, dx),
                }
            }
        }
    };
}

/// −g a / b², also where b² or g a is beyond the ends of the type.
#[inline(always)]
fn over_square<T: Real>(g: T, a: T, b: T) -> T {
    let (product, square) = (g * a, b * b);
    let plain = square > T::of(f64::from(f32::MIN_POSITIVE)) && square.is_finite() && product.is_finite();
    if plain { -product / square } else { -g * (a / b / b) }
}

binary!(Add, "add", f: |a, b| a + b, da: |g, _, _| g, db: |g, _, _| g);

binary!(Sub, "sub", f: |a, b| a - b, da: |g, _, _| g, db: |g, _, _| -g);

binary!(Mul, "mul", f: |a, b| a * b, da: |g, _, b| g * b, db: |g, a, _| g * a);

binary!(Div, "div", f: |a, b| a / b, da: |g, _, b| g / b, db: over_square);

#[versions::versions]
fn affine<T: Real>(mul: T, add: T, x: &[T], y: &mut [T], acc: bool) {
    if acc {
        y.iter_mut().zip(x).for_each(|(y, &x)| *y += mul * x + add);
    } else {
        y.iter_mut().zip(x).for_each(|(y, &x)| *y = mul * x + add);
    }
}

impl Kernel for Affine {
    fn forward(&self, cx: &Cx, x: In, y: &mut [Value]) {
        match cx {
            Cx::Cpu(_) => with_real!(x[0].dtype(), T => {
                affine(T::of(self.mul), T::of(self.add), x[0].host::<T>(), y[0].host_mut(), false);
            }),
            Cx::Cuda(cu) => {
                let n = x[0].len();
                let args = args![&x[0], &mut y[0], self.mul, self.add, false, n];
                cu.launch(&MODULE, "affine", x[0].dtype(), cu.elements(n), args);
            }
        }
    }

    fn backward(&self, cx: &Cx, _: In, _: &[Value], dy: &[Option<Tensor>], dx: &mut [Grad]) {
        let Some(g) = &dy[0] else { return };
        match cx {
            Cx::Cpu(_) => with_real!(g.dtype(), T => {
                if let Some((d, acc)) = dx[0].slot() {
                    affine(T::of(self.mul), T::ZERO, g.host::<T>(), d, acc);
                }
            }),
            Cx::Cuda(cu) => {
                if let Some((d, acc)) = dx[0].slot::<Tensor>() {
                    let args = args![g, d, self.mul, 0.0, acc, g.len()];
                    cu.launch(&MODULE, "affine", g.dtype(), cu.elements(g.len()), args);
                }
            }
        }
    }
}
