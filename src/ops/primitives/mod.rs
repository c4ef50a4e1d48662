//! The primitives: some thirty operations, each with its derivative in plain loops over host memory.
//!
//! Every other op is a formula over these ([`Op::formula`](crate::autograd::Op::formula)), so the tape knows its
//! derivative too. The fast kernels are held against these loops, and `--kernels plain` runs them. Beside them there is
//! the reshape ([`Var::reshape`](crate::autograd::Var::reshape)): it computes nothing, so the tape does it itself, and
//! its gradient is dy in the old shape. There are four kinds; the loops of the first three are in the private modules
//! `pointwise`, `binary` and `terms`:
//!
//! | kind | value | derivative | primitives |
//! |---|---|---|---|
//! | pointwise | y_i = f(x_i) | dx_i = f′(x_i) dy_i | exp, log, tanh, sigmoid, … ([`elementwise`]), affine |
//! | binary | y_i = f(a_j, b_k), broadcast | da_j = Σ ∂f/∂a dy_i | add, sub, mul, div ([`arith`]) |
//! | terms, linear | y_i = Σ c x_j over terms (i, j, c) | dx_j = Σ c dy_i over the same terms | sum, mean, max ([`reduce`]), cumsum, narrow, concat, tril ([`movement`]), permute, embedding, gather ([`embed`]), cast |
//! | products | y = a b for matrices | da = dy bᵀ, db = aᵀ dy | [`matmul`] |
//! | | x = (I + L)⁻¹ r | dr = (I + L)⁻ᵀ dx, dL = −dr xᵀ below the diagonal | [`triangular`] |
//!
//! A maximum has one term, the element that it selects, or several that share the 1 where entries are equal. A
//! derivative adds to the buffer that it is lent, zeroed first if it holds no gradient yet ([`Grad::slot`]). Gradients
//! that come in buffers of their own, as through a reshape, the tape adds up itself (`add_to` in
//! `autograd/tape/backward.rs`). Nothing here is fast.

// The two answers of every primitive to the tape: it is defined by its own loops, and has one kernel.
macro_rules! primitive {
    () => {
        fn primitive(&self) -> Option<&dyn crate::autograd::Primitive> {
            Some(self)
        }

        fn kernels(&self) -> crate::autograd::Candidates<'_> {
            self.into()
        }
    };
}

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
mod pointwise;
mod terms;

use arith::{Add, Affine, Div, Mul, Sub};
use cast::Cast;
use cumsum::Cumsum;
use embed::{Embedding, Gather};
use movement::{Concat, Narrow, Tril};
use permute::Permute;
use reduce::SumAxis;

use crate::{
    autograd::{Grad, In, Primitive},
    tensor::Tensor,
};

// For each op of a kind: its value and derivative are the functions of these names in the kind's module.
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
    pointwise: Affine;
    binary: Add, Sub, Mul, Div;
    terms: Cast, SumAxis, Cumsum, Narrow, Concat, Permute, Tril, Embedding, Gather;
}
