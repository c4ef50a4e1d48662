//! Unit lower-triangular systems: (I + L) X = R by substitution, and (I + L)⁻¹ as an op.

use crate::{
    autograd::{Gen, In, Kernel, Op, Outs, Primitive, Var},
    tensor::Tensor,
};

/// (I + stril(L))⁻¹ over the last two axes of a tensor [.., C, C]; only what lies below the diagonal is read.
///
/// With T the inverse, T (I + L) = I gives dL = −stril(Tᵀ dT Tᵀ).
pub struct UnitLowerInverse;

impl Op for UnitLowerInverse {
    fn name(&self) -> &'static str {
        "unit_lower_inverse"
    }

    fn infer(&self, x: In) -> Result<Outs, String> {
        let s = x[0].shape();
        if s.rank() < 2 || s.at(-1) != s.at(-2) {
            return Err(format!("needs square matrices in the last two axes, got shape {s}"));
        }
        Ok(s.into())
    }

    fn primitive(&self) -> Option<&dyn Primitive> {
        Some(self)
    }

    fn kernel(&self) -> Option<&dyn Kernel> {
        Some(self)
    }

    fn sample(g: &mut Gen) -> (Self, Vec<Tensor>) {
        let (outer, n) = (g.size(3), g.size(6));
        (UnitLowerInverse, vec![g.range([outer, n, n], -1.0, 1.0)])
    }
}

impl<'t> Var<'t> {
    /// (I + stril(self))⁻¹ over the last two axes.
    #[track_caller]
    pub fn unit_lower_inverse(self) -> Var<'t> {
        self.tape().apply(UnitLowerInverse, [self])
    }
}
