//! Functions of one number, applied to every element.
//!
//! In single precision a kernel may have 0 for a result below 1.2e-38, the least normal number, and GELU's for one
//! below 1e-37.

use super::pointwise::{self, Function};
use crate::{
    autograd::{Gen, Grad, In, Op, Outs, Primitive, Var},
    ops::{Entry, check_real},
    tensor::{DType, Tensor},
};
use std::f64::consts::{PI, TAU};

/// The bound on a rate of decay: 0 times it is 0, and any longer step forgets everything.
pub fn fastest(dtype: DType) -> f64 {
    if dtype == DType::F64 { 1e300 } else { 1e37 }
}

// name = Op in the range of its samples: f(x), f′(x), and a bound on both, if they need one.
macro_rules! functions {
    ($(
        $(#[$doc:meta])*
        $name:ident = $Op:ident in $lo:literal..$hi:literal: |$x:ident| $f:expr, $slope:expr $(, at most $most:ident)?;
    )*) => {
        /// The ops of this file.
        pub const OPS: &[Entry] = &[$((stringify!($Op), |g| {
            let (op, x) = $Op::sample(g);
            (Box::new(op), x)
        })),*];

        $(
        $(#[$doc])*
        pub struct $Op;

        impl Function for $Op {
            fn f(&self, $x: f64) -> f64 {
                $f
            }
            fn slope(&self, $x: f64) -> f64 {
                $slope
            }
            $(fn most(&self, dtype: DType) -> f64 {
                $most(dtype)
            })?
        }

        impl Primitive for $Op {
            fn value(&self, x: In, y: &mut Tensor) {
                pointwise::value(self, x, y);
            }
            fn derivative(&self, x: In, dy: &Tensor, dx: &mut [Grad]) {
                pointwise::derivative(self, x, dy, dx);
            }
        }

        impl Op for $Op {
            fn name(&self) -> &'static str {
                stringify!($name)
            }

            fn infer(&self, x: In) -> Result<Outs, String> {
                check_real(&x[0])?;
                Ok(x[0].shape().into())
            }

            primitive!();

            fn sample(g: &mut Gen) -> (Self, Vec<Tensor>) {
                let shape = g.shape(3, 5);
                ($Op, vec![g.range(shape, $lo, $hi)])
            }
        }

        impl<'t> Var<'t> {
            $(#[$doc])*
            #[track_caller]
            pub fn $name(self) -> Var<'t> {
                self.tape().apply($Op, [self])
            }
        }
        )*
    };
}

functions! {
    /// eˣ
    exp = Exp in -3.0..3.0: |x| x.exp(), x.exp();
    /// ln x
    log = Log in 0.5..3.0: |x| x.ln(), 1.0 / x;
    /// eˣ − 1, exact near zero
    expm1 = Expm1 in -2.0..2.0: |x| x.exp_m1(), x.exp();
    /// −eˣ as a rate of decay, bounded, so that 0 times it is 0
    decay_rate = DecayRate in -3.0..3.0: |x| -x.exp(), -x.exp(), at most fastest;
    /// √x
    sqrt = Sqrt in 0.5..3.0: |x| x.sqrt(), 0.5 / x.sqrt();
    /// x²
    square = Square in -3.0..3.0: |x| x * x, 2.0 * x;
    /// An angle less whole turns: x − 2π n, between −π and π
    wrap = Wrap in 3.5..9.0: |x| half_a_turn(x - (x / TAU).round_ties_even() * TAU), { let _ = x; 1.0 };
    /// sin x
    sin = Sin in -7.0..7.0: |x| x.sin(), x.cos();
    /// cos x
    cos = Cos in -7.0..7.0: |x| x.cos(), -x.sin();
    /// σ(x) = 1 / (1 + e⁻ˣ)
    sigmoid = Sigmoid in -6.0..6.0: |x| sigmoid(x), sigmoid(x) * sigmoid(-x);
    /// tanh x
    tanh = Tanh in -4.0..4.0: |x| x.tanh(), 1.0 / x.cosh().powi(2);
    /// SiLU (swish): x σ(x)
    silu = Silu in -6.0..6.0: |x| vanishing(x, sigmoid(x)), sigmoid(x) + vanishing(x, sigmoid(x) * sigmoid(-x));
    /// ln(1 + eˣ), without overflow
    softplus = Softplus in -6.0..6.0: |x| x.max(0.0) + (-x.abs()).exp().ln_1p(), sigmoid(x);
    /// elu(x) = x for x > 0, eˣ − 1 otherwise
    elu = Elu in -3.0..3.0: |x| if x > 0.0 { x } else { x.exp_m1() }, if x > 0.0 { 1.0 } else { x.exp() };
    /// φ(x) = elu(x) + 1, the positive feature map of linear attention
    elu1 = Elu1 in -3.0..3.0: |x| if x > 0.0 { x + 1.0 } else { x.exp() }, if x > 0.0 { 1.0 } else { x.exp() };
    /// GELU by its tanh approximation: ½ x (1 + tanh(√(2/π) (x + 0.044715 x³)))
    gelu_tanh = GeluTanh in -3.0..3.0: |x| vanishing(x, sigmoid(gelu_argument(x).0)), {
        let (u, du) = gelu_argument(x);
        sigmoid(u) + vanishing(x * du, sigmoid(u) * sigmoid(-u))
    };
    /// GELU itself: x Φ(x) = ½ x (1 + erf(x / √2))
    gelu = Gelu in -3.0..3.0: |x| vanishing(x, normal_cdf(x)), normal_cdf(x) + vanishing(x, normal_pdf(x));
}

/// σ(x) = 1 / (1 + e^(−x))
fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// x y, and 0 where y is 0, even if x is −∞.
fn vanishing(x: f64, y: f64) -> f64 {
    if y == 0.0 { y } else { x * y }
}

/// Φ(x), the standard normal distribution.
fn normal_cdf(x: f64) -> f64 {
    0.5 * libm::erfc(-x / std::f64::consts::SQRT_2)
}

/// φ(x) = Φ′(x), its density.
fn normal_pdf(x: f64) -> f64 {
    (-0.5 * x * x).exp() / (2.0 * PI).sqrt()
}

/// √(8/π) (x + 0.044715 x³), such that the tanh approximation of GELU is x σ of it; and its derivative.
fn gelu_argument(x: f64) -> (f64, f64) {
    let c = (8.0 / PI).sqrt();
    (c * (x + 0.044715 * x * x * x), c * (1.0 + 3.0 * 0.044715 * x * x))
}

/// An angle within π of 0, also where it was so large that it has no digits for turns.
fn half_a_turn(x: f64) -> f64 {
    x.clamp(-PI, PI)
}
