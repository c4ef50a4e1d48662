//! y = f(x wᵀ + b), an affine layer and the activation behind it. f is one of
//!
//! ```text
//! silu(z) = z σ(z)
//! glu([a, b]) = a ⊙ σ(b), z = [a, b]
//! ```
//!
//! SiLU is of Hendrycks and Gimpel 2016 (arXiv 1606.08415, section 2); the gated linear unit is of Dauphin et al. 2017 (arXiv 1612.08083, eq. 1).

use crate::{
    autograd::{Candidates, Gen, In, Op, Outs, Var},
    ops::{check_real, same_dtype},
    tensor::{Shape, Tensor},
};

/// x `[.., I]`, w `[O, I]` and, if `bias`, b `[O]`, to `[.., O]`, or to `[.., O / 2]` where two numbers make one.
pub struct LinearActivated {
    /// Whether there is a third input.
    pub bias: bool,
    /// f
    pub activation: Activation,
}

/// What is made of the product.
#[derive(Clone, Copy, PartialEq)]
pub enum Activation {
    /// SiLU, also called swish.
    Silu,
    /// The gated linear unit: the first half of a row is gated by the second.
    Glu,
}

impl Activation {
    fn output(self, z: Shape) -> Shape {
        if self == Activation::Glu { z.with(z.rank() - 1, z.last() / 2) } else { z }
    }
}

impl Op for LinearActivated {
    fn name(&self) -> &'static str {
        match self.activation {
            Activation::Silu => "linear_silu",
            Activation::Glu => "linear_glu",
        }
    }

    fn infer(&self, x: In) -> Result<Outs, String> {
        check_real(&x[0])?;
        let (input, w) = (x[0].shape(), x[1].shape());
        if input.rank() < 1 || w.rank() != 2 || w.at(1) != input.last() {
            return Err(format!("x {input} and w {w} do not fit: expected [.., I] and [O, I]"));
        }
        if self.bias && x[2].shape().dims() != [w.at(0)] {
            return Err(format!("w {w} and bias {} do not fit: expected [O, I] and [O]", x[2].shape()));
        }
        if self.activation == Activation::Glu && !w.at(0).is_multiple_of(2) {
            return Err(format!("w {w} gives an odd number of outputs, expected two halves"));
        }
        same_dtype(self.name(), x)?;
        let z = input.with(input.rank() - 1, w.at(0));
        Ok(self.activation.output(z).into())
    }

    fn formula<'t>(&self, x: &[Var<'t>]) -> Option<Vec<Var<'t>>> {
        let z = x[0].linear(x[1], x.get(2).copied());
        Some(vec![match self.activation {
            Activation::Silu => z.silu(),
            Activation::Glu => z.glu(),
        }])
    }

    fn kernels(&self) -> Candidates<'_> {
        self.into()
    }

    fn sample(g: &mut Gen) -> (Self, Vec<Tensor>) {
        let activation = [Activation::Silu, Activation::Glu][g.below(2)];
        let (i, o, outer, bias) = (g.size(5), g.size(5), g.shape(2, 4), g.coin());
        let o = if activation == Activation::Glu { 2 * o } else { o };
        let mut x = vec![g.normal([outer.at(0), outer.at(1), i]), g.normal([o, i])];
        if bias {
            x.push(g.normal([o]));
        }
        (LinearActivated { bias, activation }, x)
    }
}

impl<'t> Var<'t> {
    /// silu(x wᵀ): x `[.., I]`, w `[O, I]`, to `[.., O]`.
    #[track_caller]
    pub fn linear_silu(self, w: Var<'t>) -> Var<'t> {
        self.tape().apply(LinearActivated { bias: false, activation: Activation::Silu }, [self, w])
    }

    /// a ⊙ σ(b) of the halves [a, b] of x wᵀ + bias: x `[.., I]`, w `[2 O, I]`, bias `[2 O]`, to `[.., O]`.
    #[track_caller]
    pub fn linear_glu(self, w: Var<'t>, bias: Var<'t>) -> Var<'t> {
        self.tape().apply(LinearActivated { bias: true, activation: Activation::Glu }, [self, w, bias])
    }
}
