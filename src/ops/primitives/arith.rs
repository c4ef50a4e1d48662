//! Sums, differences, products and quotients of two tensors with broadcasting, and `a x + b` with constants.
//!
//! Shapes are aligned at their innermost axes; an axis of size 1, or a missing one, is repeated. The gradient of a
//! repeated input is summed over its repetitions.

use super::{binary::Function, pointwise};
use crate::{
    autograd::{Gen, In, Op, Outs, Var},
    ops::check_real,
    tensor::{MAX_RANK, Real, Shape, Tensor},
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
    ($Op:ident, $name:literal, $Trait:ident, $method:ident) => {
        impl Op for $Op {
            fn name(&self) -> &'static str {
                $name
            }

            fn infer(&self, x: In) -> Result<Outs, String> {
                check_real(&x[0])?;
                if x[0].dtype() != x[1].dtype() {
                    return Err(format!("dtypes {} and {} differ", x[0].dtype(), x[1].dtype()));
                }
                Ok(broadcast(x[0].shape(), x[1].shape())?.into())
            }

            primitive!();

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

binary!(Add, "add", Add, add);

binary!(Sub, "sub", Sub, sub);

binary!(Mul, "mul", Mul, mul);

binary!(Div, "div", Div, div);

macro_rules! definitions {
    ($($Op:ident: |$g:ident, $a:ident, $b:ident| $f:expr, $da:expr, $db:expr;)*) => { $(
        #[allow(unused)]
        impl Function for $Op {
            fn f<T: Real>($a: T, $b: T) -> T {
                $f
            }
            fn da<T: Real>($g: T, $a: T, $b: T) -> T {
                $da
            }
            fn db<T: Real>($g: T, $a: T, $b: T) -> T {
                $db
            }
        }
    )* };
}

// Op: f(a, b), and g ∂f/∂a and g ∂f/∂b for the cotangent g of f.
definitions! {
    Add: |g, a, b| a + b, g, g;
    Sub: |g, a, b| a - b, g, -g;
    Mul: |g, a, b| a * b, g * b, g * a;
    Div: |g, a, b| a / b, g / b, -(g / b) * (a / b);
}

impl Op for Affine {
    fn name(&self) -> &'static str {
        "affine"
    }

    fn infer(&self, x: In) -> Result<Outs, String> {
        check_real(&x[0])?;
        Ok(x[0].shape().into())
    }

    primitive!();

    fn sample(g: &mut Gen) -> (Self, Vec<Tensor>) {
        let shape = g.shape(2, 5);
        (Affine { mul: g.uniform(-2.0, 2.0), add: g.uniform(-2.0, 2.0) }, vec![g.normal(shape)])
    }
}

/// a x + b
impl pointwise::Function for Affine {
    fn f(&self, x: f64) -> f64 {
        self.mul * x + self.add
    }
    fn slope(&self, _: f64) -> f64 {
        self.mul
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

impl<'t> ops::Div<f64> for Var<'t> {
    type Output = Var<'t>;
    #[track_caller]
    fn div(self, c: f64) -> Var<'t> {
        self / self.tape().full([], self.dtype().real(), c).cast(self.dtype())
    }
}

impl<'t> ops::Div<Var<'t>> for f64 {
    type Output = Var<'t>;
    #[track_caller]
    fn div(self, x: Var<'t>) -> Var<'t> {
        x.tape().full([], x.dtype().real(), self).cast(x.dtype()) / x
    }
}

impl<'t> ops::Neg for Var<'t> {
    type Output = Var<'t>;
    #[track_caller]
    fn neg(self) -> Var<'t> {
        -1.0 * self
    }
}
