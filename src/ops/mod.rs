//! Operations, one family a file, forward and backward side by side.
//!
//! To add one: a file with a struct that implements [`Op`](crate::autograd::Op), and its name in the list below,
//! over which the gradient check and the other tests of all ops run.

pub mod arith;
pub mod attention;
pub mod delta;
pub mod elementwise;
pub mod heads;
pub mod lanes;
pub mod linear_attn;
pub mod math;
pub mod matmul;
pub mod triangular;

use crate::{
    autograd::{Gen, Op},
    tensor::Tensor,
};

/// A random instance of an op with inputs for it.
pub type Sample = (Box<dyn Op>, Vec<Tensor>);

/// A registered op: the name of its type, and a source of samples.
pub type Entry = (&'static str, fn(&mut Gen) -> Sample);

macro_rules! ops {
    ($($module:ident: $($Op:ident),+ $(,)?;)*) => {
        /// Every op of the crate.
        pub const OPS: &[Entry] = &[$($((stringify!($Op), |g| {
            let (op, x) = <$module::$Op as Op>::sample(g);
            (Box::new(op), x)
        })),+),*];
    };
}

ops! {
    elementwise: Exp, Log, Expm1, Sqrt, Square, Sin, Cos, Sigmoid, Tanh, Silu, Softplus, Elu, Elu1, GeluTanh;
    arith: Add, Sub, Mul, Div, Affine;
    matmul: Matmul;
    linear_attn: LinearAttention;
    delta: DeltaRule;
    triangular: UnitLowerInverse;
    attention: CausalAttention;
}
