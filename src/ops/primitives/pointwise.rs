//! Functions of one number: y = f(x), dx = f′(x) dy.
//!
//! Both are computed in double precision and rounded once. Where a product of factors is 0 · ∞ in the limit, the limit
//! is written out.

use crate::{
    autograd::{Grad, In},
    ops::{arith::Affine, elementwise as op},
    tensor::{Real, Tensor},
    with_real,
};

/// A function and its derivative at x.
pub(super) trait Function {
    fn f(&self, x: f64) -> f64;
    fn slope(&self, x: f64) -> f64;
}

pub(super) fn value(op: &impl Function, x: In, y: &mut Tensor) {
    with_real!(x[0].dtype(), T => for (y, &x) in y.host_mut::<T>().iter_mut().zip(x[0].host::<T>()) {
        *y = T::of(op.f(x.to_f64()));
    });
}

pub(super) fn derivative(op: &impl Function, x: In, dy: &Tensor, dx: &mut [Grad]) {
    with_real!(x[0].dtype(), T => dx[0].add::<T>(|dx| {
        for ((dx, &x), &dy) in dx.iter_mut().zip(x[0].host::<T>()).zip(dy.host::<T>()) {
            *dx += T::of(op.slope(x.to_f64())) * dy;
        }
    }));
}

/// σ(x) = 1 / (1 + e^(−x))
fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// x y, and 0 where x is −∞ and y has come to 0 faster.
fn vanishing(x: f64, y: f64) -> f64 {
    if y == 0.0 { y } else { x * y }
}

/// Φ(x), the standard normal distribution.
fn normal_cdf(x: f64) -> f64 {
    0.5 * libm::erfc(-x / std::f64::consts::SQRT_2)
}

/// φ(x) = Φ′(x), its density.
fn normal_pdf(x: f64) -> f64 {
    (-0.5 * x * x).exp() / (2.0 * std::f64::consts::PI).sqrt()
}

/// √(8/π) (x + 0.044715 x³), such that the tanh approximation of GELU is x σ of it; and its derivative.
fn gelu_argument(x: f64) -> (f64, f64) {
    let c = (8.0 / std::f64::consts::PI).sqrt();
    (c * (x + 0.044715 * x * x * x), c * (1.0 + 3.0 * 0.044715 * x * x))
}

macro_rules! functions {
    ($($Op:ident: |$x:ident| $f:expr, $slope:expr;)*) => { $(
        impl Function for op::$Op {
            fn f(&self, $x: f64) -> f64 {
                $f
            }
            fn slope(&self, $x: f64) -> f64 {
                $slope
            }
        }
    )* };
}

functions! {
    Exp: |x| x.exp(), x.exp();
    Log: |x| x.ln(), 1.0 / x;
    Expm1: |x| x.exp_m1(), x.exp();
    Sqrt: |x| x.sqrt(), 0.5 / x.sqrt();
    Square: |x| x * x, 2.0 * x;
    Sin: |x| x.sin(), x.cos();
    Cos: |x| x.cos(), -x.sin();
    Sigmoid: |x| sigmoid(x), sigmoid(x) * sigmoid(-x);
    Tanh: |x| x.tanh(), 1.0 / x.cosh().powi(2);
    Silu: |x| vanishing(x, sigmoid(x)), sigmoid(x) + vanishing(x, sigmoid(x) * sigmoid(-x));
    Softplus: |x| x.max(0.0) + (-x.abs()).exp().ln_1p(), sigmoid(x);
    Elu: |x| if x > 0.0 { x } else { x.exp_m1() }, if x > 0.0 { 1.0 } else { x.exp() };
    Elu1: |x| if x > 0.0 { x + 1.0 } else { x.exp() }, if x > 0.0 { 1.0 } else { x.exp() };
    GeluTanh: |x| vanishing(x, sigmoid(gelu_argument(x).0)), {
        let (u, du) = gelu_argument(x);
        sigmoid(u) + vanishing(x * du, sigmoid(u) * sigmoid(-u))
    };
    Gelu: |x| vanishing(x, normal_cdf(x)), normal_cdf(x) + vanishing(x, normal_pdf(x));
}

/// a x + b
impl Function for Affine {
    fn f(&self, x: f64) -> f64 {
        self.mul * x + self.add
    }
    fn slope(&self, _: f64) -> f64 {
        self.mul
    }
}
