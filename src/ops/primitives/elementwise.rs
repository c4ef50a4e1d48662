//! Functions of one number, applied to every element.
//!
//! In single precision a kernel may have 0 for a result below 1.2e-38, the least normal number, and GELU's for one below 1e-37.

use super::pointwise::Function;
use crate::{
    autograd::{Gen, In, Op, Outs, Var},
    tensor::{DType, Tensor},
};
use std::f64::consts::{PI, TAU};

/// The fastest rate of decay: a step of length 0 times it is 0, and any other step that counts forgets everything.
pub fn fastest(dtype: DType) -> f64 {
    if dtype == DType::F64 { 1e300 } else { 1e37 }
}

macro_rules! functions {
    ($($(#[$doc:meta])* $name:ident = $Op:ident in $lo:literal..$hi:literal;)*) => { $(
        $(#[$doc])*
        pub struct $Op;

        impl Op for $Op {
            fn name(&self) -> &'static str {
                stringify!($name)
            }

            fn infer(&self, x: In) -> Result<Outs, String> {
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
    )* };
}

functions! {
    /// eˣ
    exp = Exp in -3.0..3.0;
    /// ln x
    log = Log in 0.5..3.0;
    /// eˣ − 1, exact near zero
    expm1 = Expm1 in -2.0..2.0;
    /// −eˣ as a rate of decay: no faster than what a step of no length leaves alone, instead of −∞
    decay_rate = DecayRate in -3.0..3.0;
    /// √x
    sqrt = Sqrt in 0.5..3.0;
    /// x²
    square = Square in -3.0..3.0;
    /// An angle less whole turns: x − 2π n, between −π and π
    wrap = Wrap in 3.5..9.0;
    /// sin x
    sin = Sin in -7.0..7.0;
    /// cos x
    cos = Cos in -7.0..7.0;
    /// σ(x) = 1 / (1 + e⁻ˣ)
    sigmoid = Sigmoid in -6.0..6.0;
    /// tanh x
    tanh = Tanh in -4.0..4.0;
    /// SiLU (swish): x σ(x)
    silu = Silu in -6.0..6.0;
    /// ln(1 + eˣ), without overflow
    softplus = Softplus in -6.0..6.0;
    /// elu(x) = x for x > 0, eˣ − 1 otherwise
    elu = Elu in -3.0..3.0;
    /// φ(x) = elu(x) + 1, the positive feature map of linear attention
    elu1 = Elu1 in -3.0..3.0;
    /// GELU by its tanh approximation: ½ x (1 + tanh(√(2/π) (x + 0.044715 x³)))
    gelu_tanh = GeluTanh in -3.0..3.0;
    /// GELU itself: x Φ(x) = ½ x (1 + erf(x / √2))
    gelu = Gelu in -3.0..3.0;
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

macro_rules! definitions {
    ($($Op:ident: |$x:ident| $f:expr, $slope:expr;)*) => { $(
        impl Function for $Op {
            fn f(&self, $x: f64) -> f64 {
                $f
            }
            fn slope(&self, $x: f64) -> f64 {
                $slope
            }
        }
    )* };
}

definitions! {
    Exp: |x| x.exp(), x.exp();
    Log: |x| x.ln(), 1.0 / x;
    Expm1: |x| x.exp_m1(), x.exp();
    Sqrt: |x| x.sqrt(), 0.5 / x.sqrt();
    Square: |x| x * x, 2.0 * x;
    Wrap: |x| half_a_turn(x - (x / TAU).round_ties_even() * TAU), { let _ = x; 1.0 };
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

impl Function for DecayRate {
    fn f(&self, x: f64) -> f64 {
        -x.exp()
    }
    fn slope(&self, x: f64) -> f64 {
        -x.exp()
    }
    fn most(&self, dtype: DType) -> f64 {
        fastest(dtype)
    }
}
