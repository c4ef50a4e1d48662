//! The gated linear unit (Dauphin et al. 2017, arXiv 1612.08083, eq. 1), of a product that holds both halves:
//!
//! ```text
//! y = a ⊙ σ(b),  x = [a, b] along the last axis
//! ```

use crate::{
    autograd::{Candidates, Gen, In, Op, Outs, Var},
    ops::{check_real, words::split},
    tensor::Tensor,
};

/// x [.., 2 N] to [.., N].
pub struct Glu;

impl Op for Glu {
    fn name(&self) -> &'static str {
        "glu"
    }

    fn infer(&self, x: In) -> Result<Outs, String> {
        check_real(&x[0])?;
        let shape = x[0].shape();
        if shape.rank() == 0 || !shape.last().is_multiple_of(2) {
            return Err(format!("the last axis holds two halves, got shape {shape}"));
        }
        Ok(shape.with(shape.rank() - 1, shape.last() / 2).into())
    }

    fn formula<'t>(&self, x: &[Var<'t>]) -> Option<Vec<Var<'t>>> {
        let [a, b] = split(x[0]);
        Some(vec![a * b.sigmoid()])
    }

    fn kernels(&self) -> Candidates<'_> {
        self.into()
    }

    fn sample(g: &mut Gen) -> (Self, Vec<Tensor>) {
        let (b, t, n) = (g.size(3), g.size(5), g.size(20));
        (Glu, vec![g.normal([b, t, 2 * n])])
    }
}

impl<'t> Var<'t> {
    /// a ⊙ σ(b) of the halves [a, b] of the last axis: [.., 2 N] to [.., N].
    #[track_caller]
    pub fn glu(self) -> Var<'t> {
        self.tape().apply(Glu, [self])
    }
}
