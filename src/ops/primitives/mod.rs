//! The autodiff engine in plain loops: every primitive operation and its derivative.
//!
//! All other ops are formulas over these ([`Op::formula`](crate::autograd::Op::formula)), so that the tape knows their
//! derivatives too. The loops here are what the fast kernels are held against, and what `--kernels plain` runs. There are
//! four kinds of primitives:
//!
//! | kind | value | derivative | primitives |
//! |---|---|---|---|
//! | [`pointwise`] | y_i = f(x_i) | dx_i = f′(x_i) dy_i | exp, log, tanh, sigmoid, … |
//! | [`binary`] | y_i = f(a_j, b_k), broadcast | da_j = Σ ∂f/∂a dy_i | add, sub, mul, div |
//! | [`linear`] | y_i = Σ c x_j over terms (i, j, c) | dx_j = Σ c dy_i over the same terms | sum, max, cumsum, narrow, concat, permute, tril, embedding, gather, cast |
//! | [`product`] | y = a b for matrices | da = dy bᵀ, db = aᵀ dy | matmul, unit_lower_inverse |
//!
//! A gradient is added to the one that is there ([`Grad::add`]).

pub mod arith;
pub mod cast;
pub mod cumsum;
pub mod elementwise;
pub mod embed;
pub mod matmul;
pub mod movement;
pub mod permute;
pub mod reduce;
pub mod triangular;

mod binary;
mod linear;
mod pointwise;

use arith::{Add, Affine, Div, Mul, Sub};
use cast::Cast;
use cumsum::Cumsum;
use elementwise::{Cos, Elu, Elu1, Exp, Expm1, Gelu, GeluTanh, Log, Sigmoid, Silu, Sin, Softplus, Sqrt, Square, Tanh};
use embed::{Embedding, Gather};
use movement::{Concat, Narrow, Tril};
use permute::Permute;
use reduce::{MaxAxis, SumAxis};

use crate::{
    autograd::{Grad, In, Primitive},
    tensor::Tensor,
};

macro_rules! primitives {
    ($($kind:ident: $($Op:ty),+;)*) => { $($(
        impl Primitive for $Op {
            fn value(&self, x: In, y: &mut Tensor) {
                $kind::value(self, x, y);
            }
            fn derivative(&self, x: In, dy: &Tensor, dx: &mut [Grad]) {
                $kind::derivative(self, x, dy, dx);
            }
        }
    )+)* };
}

primitives! {
    pointwise: Exp, Log, Expm1, Sqrt, Square, Sin, Cos, Sigmoid, Tanh, Silu, Softplus, Elu, Elu1, GeluTanh, Gelu, Affine;
    binary: Add, Sub, Mul, Div;
    linear: Cast, SumAxis, MaxAxis, Cumsum, Narrow, Concat, Permute, Tril, Embedding, Gather;
}
