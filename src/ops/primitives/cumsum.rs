//! The running sum along an axis, from its start or from its end:
//!
//! ```text
//! yₜ = x₀ + … + xₜ        dxₜ = Σ dyᵢ over i ≥ t
//! ```
//!
//! A shape is seen as [outer, n, inner] around its axis of n entries, as in [`super::reduce`].

use super::terms::Terms;
use crate::{
    autograd::{Gen, In, Op, Outs, Var},
    ops::reduce::check_axis,
    tensor::{Shape, Tensor},
};

/// yₜ = x₀ + … + xₜ along an axis.
pub struct Cumsum {
    /// Which axis.
    pub axis: usize,
    /// Whether it is the sum of xₜ and all after it instead.
    pub from_end: bool,
}

impl Op for Cumsum {
    fn name(&self) -> &'static str {
        "cumsum"
    }

    fn infer(&self, x: In) -> Result<Outs, String> {
        check_axis(&x[0], self.axis)?;
        Ok(x[0].shape().into())
    }

    primitive!();

    fn sample(g: &mut Gen) -> (Self, Vec<Tensor>) {
        let rank = g.below(3) + 1;
        let shape = g.shape(rank, 9);
        (Cumsum { axis: g.below(rank), from_end: g.coin() }, vec![g.normal(shape)])
    }
}

/// y[o, t, i] = Σ x[o, s, i] over s ≤ t, or over s ≥ t.
impl Terms for Cumsum {
    fn terms(&self, _: In, y: Shape, mut term: impl FnMut(usize, usize, usize, f64)) {
        let (_, n, inner) = y.split(self.axis);
        for i in 0..y.len() {
            let (t, first) = (i / inner % n, i - i / inner % n * inner);
            let summed = if self.from_end { t..n } else { 0..t + 1 };
            summed.for_each(|s| term(i, 0, first + s * inner, 1.0));
        }
    }
}

impl<'t> Var<'t> {
    /// The running sum along an axis.
    #[track_caller]
    pub fn cumsum(self, axis: usize) -> Var<'t> {
        self.tape().apply(Cumsum { axis, from_end: false }, [self])
    }

    /// The sum of each entry and all after it along an axis.
    #[track_caller]
    pub fn cumsum_from_end(self, axis: usize) -> Var<'t> {
        self.tape().apply(Cumsum { axis, from_end: true }, [self])
    }
}
