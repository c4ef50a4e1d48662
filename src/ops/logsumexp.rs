//! ln Σ e^(x_i) over the last axis, with the largest x taken out of the sum so that nothing overflows.

use crate::{
    autograd::{Candidates, Gen, In, Op, Outs, Var},
    ops::reduce::reduced,
    tensor::Tensor,
};

/// y = ln Σ eˣ over the last axis, without overflow: −∞ of no entries, or of nothing but −∞, of which the gradient is
/// 0.
pub struct Logsumexp;

impl Op for Logsumexp {
    fn name(&self) -> &'static str {
        "logsumexp"
    }

    fn infer(&self, x: In) -> Result<Outs, String> {
        match x[0].shape().rank() {
            0 => Err("needs one axis at least, got shape []".into()),
            rank => reduced(&x[0], rank - 1, false),
        }
    }

    fn formula<'t>(&self, x: &[Var<'t>]) -> Option<Vec<Var<'t>>> {
        let axis = x[0].shape().rank() - 1;
        let m = x[0].max_axis(axis, true);
        let sum = (x[0] - m).exp().sum_axis(axis, true);
        Some(vec![(sum.log() + m).sum_axis(axis, false)])
    }

    fn kernels(&self) -> Candidates<'_> {
        self.into()
    }

    fn sample(g: &mut Gen) -> (Self, Vec<Tensor>) {
        let rank = g.below(3) + 1;
        let shape = g.shape(rank, 20);
        (Logsumexp, vec![g.normal(shape)])
    }
}

impl<'t> Var<'t> {
    /// ln Σ eˣ over the last axis, which is gone.
    #[track_caller]
    pub fn logsumexp(self) -> Var<'t> {
        self.tape().apply(Logsumexp, [self])
    }
}
