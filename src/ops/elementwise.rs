//! Functions of one number, applied to every element.

use crate::{
    autograd::{Gen, In, Kernel, Op, Outs, Primitive, Var},
    tensor::Tensor,
};

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

            fn primitive(&self) -> Option<&dyn Primitive> {
                Some(self)
            }

            fn kernel(&self) -> Option<&dyn Kernel> {
                Some(self)
            }

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
    /// √x
    sqrt = Sqrt in 0.5..3.0;
    /// x²
    square = Square in -3.0..3.0;
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
