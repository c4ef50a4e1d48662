//! The product of a lower-triangular matrix and another: the sum over the past in the parallel form of a causal mixer.
//!
//! ```text
//! y_t = Σ a_ts b_s over s ≤ t + past          da = dy bᵀ, below and on that diagonal          db_s = Σ a_ts dy_t over t ≥ s − past
//! ```
//!
//! For finite numbers a matrix product with zeros above the diagonal gives the same. But 0 · ∞ and 0 · NaN are NaN, so
//! one infinity in b would reach every row before it. The formula therefore multiplies each row by the steps of b that
//! it sees, and by no others. The kernel multiplies whole matrices: it leaves out the entries of b that are not finite,
//! and adds them afterwards to the rows that see them.

use crate::{
    autograd::{Candidates, Gen, In, Op, Outs, Var},
    ops::{check_real, same_dtype},
    tensor::{Shape, Tensor},
};

/// a [.., R, C] and b [.., C, D] → [.., R, D]. Row i of a shows columns 0..=i + `past`; the others are not read, and
/// their gradient is 0.
pub struct TrilMatmul {
    /// How many columns before the first belong to the past of row 0.
    pub past: usize,
}

impl Op for TrilMatmul {
    fn name(&self) -> &'static str {
        "tril_matmul"
    }

    fn infer(&self, x: In) -> Result<Outs, String> {
        same_dtype(self.name(), x).and(check_real(&x[0]))?;
        let (a, b) = (x[0].shape(), x[1].shape());
        let outer = |s: Shape| Shape::new(&s.dims()[..s.rank() - 2]);
        if a.rank() < 2 || a.rank() != b.rank() || outer(a) != outer(b) || a.at(-1) != b.at(-2) {
            return Err(format!("shapes {a} and {b} do not fit [.., R, C] and [.., C, D]"));
        }
        Ok(b.with(b.rank() - 2, a.at(-2)).into())
    }

    fn formula<'t>(&self, x: &[Var<'t>]) -> Option<Vec<Var<'t>>> {
        let ([a, b], axis) = ([x[0], x[1]], x[0].shape().rank() - 2);
        let (rows, cols) = (a.shape().at(-2), a.shape().at(-1));
        let row = |i: usize| {
            let seen = (i + 1).saturating_add(self.past).min(cols);
            a.narrow(axis, i, 1).narrow(axis + 1, 0, seen).matmul(b.narrow(axis, 0, seen))
        };
        let none = b.narrow(axis, 0, 0);
        let all: Vec<Var<'t>> = std::iter::once(none).chain((0..rows).map(row)).collect();
        Some(vec![Var::concat(&all, axis)])
    }

    fn kernels(&self) -> Candidates<'_> {
        self.into()
    }

    fn sample(g: &mut Gen) -> (Self, Vec<Tensor>) {
        let (rows, past, width) = (g.size(6), g.below(3), g.size(5));
        let (outer, cols) = (g.shape(2, 3), rows + if g.coin() { past } else { g.below(3) });
        let mat = |g: &mut Gen, r: usize, c: usize| g.normal(&[outer.dims(), &[r, c]].concat()[..]);
        let (a, b) = (mat(g, rows, cols), mat(g, cols, width));
        (TrilMatmul { past }, vec![a, b])
    }
}

impl<'t> Var<'t> {
    /// self · b over the last two axes for a square, lower-triangular self, whose entries above the diagonal are not
    /// read. Step s of b reaches no row before s, even if it is NaN or ∞.
    #[track_caller]
    pub fn tril_matmul(self, b: Var<'t>) -> Var<'t> {
        self.tape().apply(TrilMatmul { past: 0 }, [self, b])
    }

    /// The same where row i sees `past` columns more.
    #[track_caller]
    pub fn tril_matmul_after(self, past: usize, b: Var<'t>) -> Var<'t> {
        self.tape().apply(TrilMatmul { past }, [self, b])
    }
}
