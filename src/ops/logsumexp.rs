//! ln Σ e^(x_i) over the last axis, with the largest x taken out of the sum so that nothing overflows.

use crate::{
    autograd::{Candidates, Gen, In, Op, Outs, Var},
    ops::{
        reduce::reduced,
        words::{finite, insert_axis, maximum},
    },
    tensor::Tensor,
};

/// y = ln Σ eˣ over the last axis, without overflow, whose gradient is softmax(x).
///
/// A row of no entries, or of nothing but −∞, gives −∞ and a gradient of 0. A row with an entry of +∞ gives +∞; the
/// gradient is NaN at that entry, and 0 at the finite ones. A row with a NaN gives NaN.
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
        let (x, axis) = (x[0], x[0].shape().rank() - 1);
        // The result does not depend on m, so no gradient flows through it.
        let m = x.tape().detached(x.max_axis(axis, false));
        let sum = (x - insert_axis(finite(m), axis)).exp().sum_axis(axis, false);
        // The sum is at least 1, as the largest entry adds 1, or it is 0, where m is −∞ and the logarithm has no slope.
        let sum = maximum(&[sum, x.tape().full(sum.shape(), sum.dtype(), 0.5)]);
        Some(vec![sum.log() + m])
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
