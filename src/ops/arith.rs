//! Sums, differences, products and quotients of two tensors with broadcasting, and `a x + b` with constants.
//!
//! Shapes are aligned at their innermost axes; an axis of size 1, or a missing one, is repeated. The gradient of a
//! repeated input is summed over its repetitions.

use super::{
    arith_cpu::{Scalar, backward, forward},
    arith_cuda::{self, MODULE, sums},
};
use crate::{
    args,
    autograd::{Gen, Grad, In, Op, Outs, Rows, Value, Var},
    tensor::{Cx, MAX_RANK, Real, Shape, Tensor},
    with_real,
};
use std::ops;

/// x + y
pub struct Add;
/// x − y
pub struct Sub;
/// x y, element by element
pub struct Mul;
/// x / y, element by element
pub struct Div;
/// `mul` x + `add`
pub struct Affine {
    /// Factor.
    pub mul: f64,
    /// Summand.
    pub add: f64,
}

/// The shape that two shapes broadcast to.
fn broadcast(a: Shape, b: Shape) -> Result<Shape, String> {
    let rank = a.rank().max(b.rank());
    let mut dims = [1; MAX_RANK];
    for (i, size) in dims[..rank].iter_mut().enumerate() {
        let at = |s: Shape| (i + s.rank()).checked_sub(rank).map_or(1, |j| s.dims()[j]);
        *size = match (at(a), at(b)) {
            (x, y) if x == y => x,
            (1, y) => y,
            (x, 1) => x,
            _ => return Err(format!("shapes {a} and {b} do not broadcast")),
        };
    }
    Ok(Shape::new(&dims[..rank]))
}

macro_rules! binary {
    (
        $Op:ident, $name:literal, $Trait:ident, $method:ident, f: $f:expr, da: $da:expr, db: $db:expr,
        passes on: $passes:expr
    ) => {
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

        impl Op for $Op {
            fn name(&self) -> &'static str {
                $name
            }

            fn infer(&self, x: In) -> Result<Outs, String> {
                if x[0].dtype() != x[1].dtype() {
                    return Err(format!("dtypes {} and {} differ", x[0].dtype(), x[1].dtype()));
                }
                Ok(broadcast(x[0].shape(), x[1].shape())?.into())
            }

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

            fn passes_on(&self) -> &'static [usize] {
                &$passes
            }

            fn sample(g: &mut Gen) -> (Self, Vec<Tensor>) {
                let full = g.shape(3, 4);
                // Each axis of each input is as long as the output's, or 1, or (at the front) missing.
                let part = |g: &mut Gen| {
                    let dims: Vec<usize> = full.dims().iter().map(|&n| if g.coin() { n } else { 1 }).collect();
                    let skip = g.below(3);
                    let shape = Shape::new(&dims[skip..]);
                    g.tensor(shape, |g| g.uniform(0.5, 2.0) * if g.coin() { 1.0 } else { -1.0 })
                };
                ($Op, vec![part(g), part(g)])
            }
        }

        impl<'t> ops::$Trait for Var<'t> {
            type Output = Var<'t>;
            #[track_caller]
            fn $method(self, other: Var<'t>) -> Var<'t> {
                self.tape().apply($Op, [self, other])
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

binary!(Add, "add", Add, add, f: |a, b| a + b, da: |g, _, _| g, db: |g, _, _| g, passes on: [0, 1]);
binary!(Sub, "sub", Sub, sub, f: |a, b| a - b, da: |g, _, _| g, db: |g, _, _| -g, passes on: [0]);
binary!(Mul, "mul", Mul, mul, f: |a, b| a * b, da: |g, _, b| g * b, db: |g, a, _| g * a, passes on: []);
binary!(Div, "div", Div, div, f: |a, b| a / b, da: |g, _, b| g / b, db: over_square, passes on: []);

#[multiversion::multiversion(targets("x86_64+avx512f+avx512vl+avx512dq+avx512bw", "x86_64+avx2+fma"))]
fn affine<T: Real>(mul: T, add: T, x: &[T], y: &mut [T], acc: bool) {
    if acc {
        y.iter_mut().zip(x).for_each(|(y, &x)| *y += mul * x + add);
    } else {
        y.iter_mut().zip(x).for_each(|(y, &x)| *y = mul * x + add);
    }
}

impl Op for Affine {
    fn name(&self) -> &'static str {
        "affine"
    }

    fn infer(&self, x: In) -> Result<Outs, String> {
        Ok(x[0].shape().into())
    }

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
                dx[0].write(|d, acc| affine(T::of(self.mul), T::ZERO, g.host::<T>(), d, acc));
            }),
            Cx::Cuda(cu) => {
                if let Some((d, acc)) = dx[0].parts() {
                    let args = args![g, d, self.mul, 0.0, acc, g.len()];
                    cu.launch(&MODULE, "affine", g.dtype(), cu.elements(g.len()), args);
                }
            }
        }
    }

    fn rows(&self) -> Rows {
        Rows::Alone
    }

    fn sample(g: &mut Gen) -> (Self, Vec<Tensor>) {
        let shape = g.shape(2, 5);
        (Affine { mul: g.uniform(-2.0, 2.0), add: g.uniform(-2.0, 2.0) }, vec![g.normal(shape)])
    }
}

macro_rules! scalar {
    ($Trait:ident, $method:ident, |$c:ident| right: $right:expr, left: $left:expr) => {
        impl<'t> ops::$Trait<f64> for Var<'t> {
            type Output = Var<'t>;
            #[track_caller]
            fn $method(self, $c: f64) -> Var<'t> {
                let (x, op) = $right(self);
                x.tape().apply(op, [x])
            }
        }
        impl<'t> ops::$Trait<Var<'t>> for f64 {
            type Output = Var<'t>;
            #[track_caller]
            fn $method(self, x: Var<'t>) -> Var<'t> {
                let $c = self;
                let (x, op) = $left(x);
                x.tape().apply(op, [x])
            }
        }
    };
}
scalar!(Add, add, |c| right: |x| (x, Affine { mul: 1.0, add: c }), left: |x| (x, Affine { mul: 1.0, add: c }));
scalar!(Sub, sub, |c| right: |x| (x, Affine { mul: 1.0, add: -c }), left: |x| (x, Affine { mul: -1.0, add: c }));
scalar!(Mul, mul, |c| right: |x| (x, Affine { mul: c, add: 0.0 }), left: |x| (x, Affine { mul: c, add: 0.0 }));

impl<'t> ops::Neg for Var<'t> {
    type Output = Var<'t>;
    #[track_caller]
    fn neg(self) -> Var<'t> {
        -1.0 * self
    }
}
