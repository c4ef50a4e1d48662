//! The affine layer, as torch's `nn.Linear`:
//!
//! ```text
//! y[.., O] = x[.., I] w[O, I]ᵀ + b[O]
//! ```
//!
//! Where x and w are bf16 and the bias is f32, y is f32.

use crate::{
    autograd::{Candidates, Gen, In, Op, Outs, Var},
    ops::check_real,
    tensor::Tensor,
};

/// x `[.., I]`, w `[O, I]` and, if `bias`, b `[O]`, to `[.., O]`.
pub struct Linear {
    /// Whether there is a third input.
    pub bias: bool,
}

impl Op for Linear {
    fn name(&self) -> &'static str {
        "linear"
    }

    fn infer(&self, x: In) -> Result<Outs, String> {
        check_real(&x[0])?;
        let (input, w) = (x[0].shape(), x[1].shape());
        let fits = input.rank() >= 1 && w.rank() == 2 && w.at(1) == input.last() && x[1].dtype() == x[0].dtype();
        if !fits {
            return Err(format!("x {input} of {} and w {w} of {} do not fit", x[0].dtype(), x[1].dtype()));
        }
        let y = input.with(input.rank() - 1, w.at(0));
        if !self.bias {
            return Ok(y.into());
        }
        let (b, dtype) = (x[2].shape(), x[2].dtype());
        if b.dims() != [w.at(0)] || ![x[0].dtype(), x[0].dtype().real()].contains(&dtype) {
            return Err(format!("w {w} and bias {b} of {dtype} do not fit"));
        }
        Ok([(y, dtype)].into())
    }

    fn formula<'t>(&self, x: &[Var<'t>]) -> Option<Vec<Var<'t>>> {
        let (y, [o, i], rows) = (x[0].shape(), x[1].dims(), x[0].shape().rows());
        let product = x[0].reshape([rows, i]).matmul_t(x[1]);
        let sum = x.get(2).map_or(product, |&b| (product.cast(b.dtype()) + b).cast(product.dtype()));
        Some(vec![sum.reshape(y.with(y.rank() - 1, o))])
    }

    fn kernels(&self) -> Candidates<'_> {
        self.into()
    }

    fn sample(g: &mut Gen) -> (Self, Vec<Tensor>) {
        let (i, o, bias) = (g.size(5), g.size(5), g.coin());
        let outer = g.shape(2, 4);
        let mut x = vec![g.normal([outer.at(0), outer.at(1), i]), g.normal([o, i])];
        if bias {
            x.push(g.normal([o]));
        }
        (Linear { bias }, x)
    }
}

impl<'t> Var<'t> {
    /// x wᵀ (+ bias): x `[.., I]`, w `[O, I]`, bias `[O]`, as in torch's `nn.Linear`.
    #[track_caller]
    pub fn linear(self, w: Var<'t>, bias: Option<Var<'t>>) -> Var<'t> {
        match bias {
            Some(b) => self.tape().apply(Linear { bias: true }, [self, w, b]),
            None => self.tape().apply(Linear { bias: false }, [self, w]),
        }
    }
}
