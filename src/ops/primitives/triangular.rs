//! Unit lower-triangular systems, (I + L) X = R, by substitution.

use crate::{
    autograd::{Gen, Grad, In, Op, Outs, Primitive, Var, zeroed},
    ops::{check_real, same_dtype},
    tensor::{Real, Shape, Tensor},
    with_real,
};

/// X = (I + stril(L))⁻¹ R over the last two axes of L [.., C, C] and R [.., C, N]. Only the entries of L below the
/// diagonal are read. Row i of X depends on row i of L and on the rows of R up to i, even if later rows are NaN.
///
/// ```text
/// dR = (I + L)⁻ᵀ dX        dL = −stril(dR Xᵀ)
/// ```
pub struct UnitLowerSolve;

impl Op for UnitLowerSolve {
    fn name(&self) -> &'static str {
        "unit_lower_solve"
    }

    fn infer(&self, x: In) -> Result<Outs, String> {
        same_dtype(self.name(), x).and(check_real(&x[0]))?;
        let (l, r) = (x[0].shape(), x[1].shape());
        let rows = l.rank().saturating_sub(1);
        if rows < 1 || l.rank() != r.rank() || l.dims()[..rows] != r.dims()[..rows] || l.at(-1) != l.at(-2) {
            return Err(format!("shapes {l} and {r} do not fit [.., C, C] and [.., C, N]"));
        }
        Ok(r.into())
    }

    primitive!();

    fn sample(g: &mut Gen) -> (Self, Vec<Tensor>) {
        let (outer, n, cols) = (g.size(3), g.size(6), g.size(5));
        (UnitLowerSolve, vec![g.range([outer, n, n], -1.0, 1.0), g.normal([outer, n, cols])])
    }
}

/// Calls `f(i, j, at)` for every column of R of every system and every entry of L below the diagonal. The rows of L
/// come in order, or with `back` from the last one up. i and j are indices in R, in the entry's row and column, and
/// `at` is the index of the entry in L.
fn entries(r: Shape, back: bool, mut f: impl FnMut(usize, usize, usize)) {
    let (n, cols) = (r.at(-2), r.at(-1));
    let systems: usize = r.dims()[..r.rank() - 2].iter().product();
    for s in 0..systems {
        let rows = 0..n;
        let rows: Box<dyn Iterator<Item = usize>> = if back { Box::new(rows.rev()) } else { Box::new(rows) };
        for i in rows {
            for j in 0..i {
                (0..cols).for_each(|c| f((s * n + i) * cols + c, (s * n + j) * cols + c, (s * n + i) * n + j));
            }
        }
    }
}

/// x_i = r_i − Σ L_ij x_j over j < i
fn solve<T: Real>(l: &[T], r: &[T], shape: Shape) -> Vec<T> {
    let mut x = r.to_vec();
    entries(shape, false, |i, j, at| {
        let term = l[at] * x[j];
        x[i] -= term;
    });
    x
}

impl Primitive for UnitLowerSolve {
    fn value(&self, x: In, y: &mut Tensor) {
        let shape = y.shape();
        with_real!(y.dtype(), T => y.host_mut::<T>().copy_from_slice(&solve(x[0].host::<T>(), x[1].host(), shape)));
    }

    fn derivative(&self, x: In, dy: &Tensor, dx: &mut [Grad]) {
        with_real!(dy.dtype(), T => {
            let (l, shape) = (x[0].host::<T>(), dy.shape());
            let solution = solve(l, x[1].host(), shape);
            // dr_j = dx_j − Σ L_ij dr_i over i > j
            let mut dr = dy.host::<T>().to_vec();
            entries(shape, true, |i, j, at| {
                let term = l[at] * dr[i];
                dr[j] -= term;
            });
            if let Some(dl) = dx[0].slot::<[T]>().map(zeroed) {
                entries(shape, false, |i, j, at| dl[at] += -dr[i] * solution[j]);
            }
            if let Some(d) = dx[1].slot::<[T]>().map(zeroed) {
                d.iter_mut().zip(&dr).for_each(|(d, &g)| *d += g);
            }
        });
    }
}

impl<'t> Var<'t> {
    /// (I + stril(self))⁻¹ r over the last two axes.
    #[track_caller]
    pub fn unit_lower_solve(self, r: Var<'t>) -> Var<'t> {
        self.tape().apply(UnitLowerSolve, [self, r])
    }
}
