//! Sums over segments (Mamba-2, arXiv 2405.21060, listing 1), the exponents of a decay between two steps:
//!
//! ```text
//! y_ts = x_{s+1} + … + x_t  for s ≤ t (0 for s = t),  −∞ above the diagonal
//! dx_u = Σ dy_ts over s < u ≤ t
//! ```
//!
//! Each entry is its own sum, one term longer than the entry above it. A difference of two running sums from the start
//! would lose the digits of a short segment behind a long or strongly decaying past, and be NaN behind −∞.

use crate::{
    autograd::{Candidates, Gen, In, Op, Outs, Var},
    ops::{check_real, words::insert_axis},
    tensor::{Shape, Tensor},
};

/// x [.., T] → y [.., T, T]
pub struct Segsum {
    /// The value above the diagonal.
    pub above: f64,
}

impl Op for Segsum {
    fn name(&self) -> &'static str {
        "segsum"
    }

    fn infer(&self, x: In) -> Result<Outs, String> {
        check_real(&x[0])?;
        let shape = x[0].shape();
        match shape.dims().last() {
            Some(&n) => Ok(Shape::new(&[shape.dims(), &[n]].concat()).into()),
            None => Err("needs one axis at least".into()),
        }
    }

    fn formula<'t>(&self, x: &[Var<'t>]) -> Option<Vec<Var<'t>>> {
        let (x, tape, shape) = (x[0], x[0].tape(), x[0].shape());
        let (axis, n) = (shape.rank() - 1, shape.last());
        if n == 0 {
            return Some(vec![x.reshape(&[shape.dims(), &[0]].concat()[..])]);
        }
        let full = |n: usize, value: f64| tape.full(shape.with(axis, n), x.dtype(), value);
        let mut sums = full(0, 0.0);
        let rows = (0..n).map(|t| {
            // Each sum gets one more term, and a new, empty sum begins.
            sums = Var::concat(&[sums + x.narrow(axis, t, 1), full(1, 0.0)], axis);
            insert_axis(Var::concat(&[sums, full(n - t - 1, self.above)], axis), axis)
        });
        Some(vec![Var::concat(&rows.collect::<Vec<_>>(), axis)])
    }

    fn kernels(&self) -> Candidates<'_> {
        self.into()
    }

    /// A sample has a finite number above the diagonal, so that a weighted sum of all entries is finite.
    fn sample(g: &mut Gen) -> (Self, Vec<Tensor>) {
        let rank = g.below(3) + 1;
        let shape = g.shape(rank, 9);
        (Segsum { above: 0.5 }, vec![g.normal(shape)])
    }
}

impl<'t> Var<'t> {
    /// [.., T] to [.., T, T]: entry (t, s) is the sum over the steps after s up to t; −∞ above the diagonal. The
    /// gradient of a step is the sum of the cotangents of all segments that contain it, whatever their values.
    #[track_caller]
    pub fn segsum(self) -> Var<'t> {
        self.tape().apply(Segsum { above: f64::NEG_INFINITY }, [self])
    }
}
