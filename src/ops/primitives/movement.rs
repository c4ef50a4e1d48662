//! Moving elements about: cutting and joining along an axis, and zeroing above a diagonal. Axes are permuted in
//! [`super::permute`].
//!
//! None of them computes: each output element is one input element, or 0, and its gradient goes back to that element.

use super::terms::Terms;
use crate::{
    autograd::{Gen, In, Op, Outs, Var},
    ops::check_real,
    tensor::{Shape, Tensor},
};

/// Indices `start..start + len` of one axis.
pub struct Narrow {
    /// Which axis.
    pub axis: usize,
    /// The first index.
    pub start: usize,
    /// How many.
    pub len: usize,
}

/// The inputs one after another along an axis.
pub struct Concat {
    /// Which axis.
    pub axis: usize,
}

/// The lower triangle of the last two axes: zero where j > i + `diag`.
pub struct Tril {
    /// How many diagonals above the main one are kept; negative removes some below.
    pub diag: isize,
}

impl Op for Narrow {
    fn name(&self) -> &'static str {
        "narrow"
    }

    fn infer(&self, x: In) -> Result<Outs, String> {
        let (shape, &Narrow { axis, start, len }) = (x[0].shape(), self);
        match shape.dims().get(axis) {
            Some(&n) if start <= n && len <= n - start => Ok(shape.with(axis, len).into()),
            Some(_) => Err(format!("{len} indices from {start} on of axis {axis} of shape {shape}")),
            None => Err(format!("shape {shape} has no axis {axis}")),
        }
    }

    primitive!();

    fn sample(g: &mut Gen) -> (Self, Vec<Tensor>) {
        let rank = g.below(3) + 1;
        let shape = g.shape(rank, 9);
        let axis = g.below(rank);
        let start = g.below(shape.dims()[axis] + 1);
        let len = g.below(shape.dims()[axis] - start + 1);
        (Narrow { axis, start, len }, vec![g.normal(shape)])
    }
}

/// y[o, k, i] = x[o, start + k, i]
impl Terms for Narrow {
    fn terms(&self, x: In, y: Shape, mut term: impl FnMut(usize, usize, usize, f64)) {
        let (_, n, inner) = x[0].shape().split(self.axis);
        for i in 0..y.len() {
            let (outer, k) = (i / (self.len * inner), i / inner % self.len);
            term(i, 0, (outer * n + self.start + k) * inner + i % inner, 1.0);
        }
    }
}

impl Op for Concat {
    fn name(&self) -> &'static str {
        "concat"
    }

    fn infer(&self, x: In) -> Result<Outs, String> {
        let first = x[0].shape();
        if self.axis >= first.rank() {
            return Err(format!("shape {first} has no axis {}", self.axis));
        }
        let mut n = 0;
        for i in 0..x.len() {
            let (shape, dtype) = (x[i].shape(), x[i].dtype());
            if shape.rank() != first.rank() || shape.with(self.axis, 0) != first.with(self.axis, 0) {
                return Err(format!("shapes {first} and {shape} differ beyond axis {}", self.axis));
            }
            if dtype != x[0].dtype() {
                return Err(format!("dtypes {} and {dtype} differ", x[0].dtype()));
            }
            n += shape.dims()[self.axis];
        }
        Ok(first.with(self.axis, n).into())
    }

    primitive!();

    fn sample(g: &mut Gen) -> (Self, Vec<Tensor>) {
        let rank = g.below(3) + 1;
        let shape = g.shape(rank, 9);
        let axis = g.below(rank);
        let parts = g.size(4);
        let part = |g: &mut Gen| {
            let n = g.below(5);
            g.normal(shape.with(axis, n))
        };
        (Concat { axis }, (0..parts).map(|_| part(g)).collect())
    }
}

/// The inputs one after another along an axis.
impl Terms for Concat {
    fn terms(&self, x: In, y: Shape, mut term: impl FnMut(usize, usize, usize, f64)) {
        let (outer, n, inner) = y.split(self.axis);
        let mut start = 0;
        for m in 0..x.len() {
            let run = x[m].shape().split(self.axis).1 * inner;
            for o in 0..outer {
                (0..run).for_each(|j| term(o * n * inner + start + j, m, o * run + j, 1.0));
            }
            start += run;
        }
    }
}

impl Tril {
    /// How many of the `cols` entries of row `i` are kept.
    pub(crate) fn kept(&self, i: usize, cols: usize) -> usize {
        (i + 1).saturating_add_signed(self.diag).min(cols)
    }
}

impl Op for Tril {
    fn name(&self) -> &'static str {
        "tril"
    }

    fn infer(&self, x: In) -> Result<Outs, String> {
        check_real(&x[0])?;
        if x[0].shape().rank() < 2 {
            return Err(format!("needs two axes at least, got shape {}", x[0].shape()));
        }
        Ok(x[0].shape().into())
    }

    primitive!();

    fn sample(g: &mut Gen) -> (Self, Vec<Tensor>) {
        let rank = g.below(2) + 2;
        let shape = g.shape(rank, 5);
        (Tril { diag: g.below(7) as isize - 3 }, vec![g.normal(shape)])
    }
}

/// The entries of a matrix up to a diagonal; the others are 0.
impl Terms for Tril {
    fn terms(&self, _: In, y: Shape, mut term: impl FnMut(usize, usize, usize, f64)) {
        let (rows, cols) = (y.at(-2), y.at(-1));
        for i in 0..y.len() {
            if i % cols < self.kept(i / cols % rows, cols) {
                term(i, 0, i, 1.0);
            }
        }
    }
}

impl<'t> Var<'t> {
    /// Indices `start..start + len` of an axis.
    #[track_caller]
    pub fn narrow(self, axis: usize, start: usize, len: usize) -> Var<'t> {
        self.tape().apply(Narrow { axis, start, len }, [self])
    }

    /// The parts, at least one, one after another along an axis. No copy if all but one are empty.
    #[track_caller]
    pub fn concat(parts: &[Var<'t>], axis: usize) -> Var<'t> {
        assert!(!parts.is_empty(), "concat: needs one part at least");
        let size = |x: &Var| x.shape().dims().get(axis).copied();
        if let Some(&x) = parts.iter().find(|x| size(x).is_some_and(|n| n > 0)) {
            let adds_nothing = |y: &Var| {
                let alike = y.shape() == x.shape().with(axis, 0) && y.dtype() == x.dtype();
                alike && std::ptr::eq(y.tape(), x.tape())
            };
            if parts.iter().filter(|y| adds_nothing(y)).count() == parts.len() - 1 {
                return x;
            }
        }
        parts[0].tape().apply_dyn(Box::new(Concat { axis }), parts)[0]
    }

    /// Zero where j > i + `diag`, for i and j the indices of the last two axes.
    #[track_caller]
    pub fn tril(self, diag: isize) -> Var<'t> {
        self.tape().apply(Tril { diag }, [self])
    }
}
