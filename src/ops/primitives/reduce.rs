//! Reductions along an axis: sum, mean and maximum. A shape is seen as [outer, n, inner] around its axis of n entries.

use super::terms::{self, Terms};
use crate::{
    autograd::{Gen, Grad, In, Op, Outs, Primitive, Var},
    ops::check_real,
    tensor::{Real, Shape, Tensor},
    with_real,
};

/// y = Σ x over an axis, or its mean.
pub struct SumAxis {
    /// Which axis.
    pub axis: usize,
    /// Keep it, with size 1.
    pub keep: bool,
    /// Divide by its size; the mean of nothing is 0.
    pub mean: bool,
}

/// y = max x over an axis; −∞ over an empty one. Two equal maxima get half of the gradient each. A third equal one gets
/// half, and the first two share the other half, and so on.
pub struct MaxAxis {
    /// Which axis.
    pub axis: usize,
    /// Keep it, with size 1.
    pub keep: bool,
}

/// `x` is real and has this axis.
pub(crate) fn check_axis(x: &Tensor, axis: usize) -> Result<(), String> {
    check_real(x)?;
    if axis < x.shape().rank() { Ok(()) } else { Err(format!("shape {} has no axis {axis}", x.shape())) }
}

/// `x` with `axis` of size 1, or without it.
pub(crate) fn reduced(x: &Tensor, axis: usize, keep: bool) -> Result<Outs, String> {
    check_axis(x, axis)?;
    let x = x.shape();
    if keep {
        return Ok(x.with(axis, 1).into());
    }
    let mut dims = [0; crate::tensor::MAX_RANK];
    let rest = x.dims().iter().enumerate().filter(|&(i, _)| i != axis);
    dims.iter_mut().zip(rest).for_each(|(to, (_, &n))| *to = n);
    Ok(Shape::new(&dims[..x.rank() - 1]).into())
}

impl Op for SumAxis {
    fn name(&self) -> &'static str {
        if self.mean { "mean_axis" } else { "sum_axis" }
    }

    fn infer(&self, x: In) -> Result<Outs, String> {
        reduced(&x[0], self.axis, self.keep)
    }

    primitive!();

    fn sample(g: &mut Gen) -> (Self, Vec<Tensor>) {
        let rank = g.below(3) + 1;
        let shape = g.shape(rank, 20);
        (SumAxis { axis: g.below(rank), keep: g.coin(), mean: g.coin() }, vec![g.normal(shape)])
    }
}

/// y[o, i] = Σ_k x[o, k, i], or the mean over k.
impl Terms for SumAxis {
    fn terms(&self, x: In, y: Shape, mut term: impl FnMut(usize, usize, usize, f64)) {
        let (_, n, inner) = x[0].shape().split(self.axis);
        let c = if self.mean { 1.0 / n as f64 } else { 1.0 };
        for i in 0..y.len() {
            (0..n).for_each(|k| term(i, 0, (i / inner * n + k) * inner + i % inner, c));
        }
    }
}

impl Op for MaxAxis {
    fn name(&self) -> &'static str {
        "max_axis"
    }

    fn infer(&self, x: In) -> Result<Outs, String> {
        reduced(&x[0], self.axis, self.keep)
    }

    primitive!();

    fn sample(g: &mut Gen) -> (Self, Vec<Tensor>) {
        let rank = g.below(3) + 1;
        let shape = g.shape(rank, 5);
        // Distinct values, so that a finite difference does not change which one is the largest.
        let step = g.uniform(0.1, 0.2);
        let mut values: Vec<f64> = (0..shape.len()).map(|i| i as f64 * step - 1.0).collect();
        (1..values.len()).for_each(|i| values.swap(i, g.below(i + 1)));
        (MaxAxis { axis: g.below(rank), keep: g.coin() }, vec![Tensor::from_vec(values, shape)])
    }
}

impl Primitive for MaxAxis {
    /// Any of the largest entries. A weighted sum of equal entries would be rounded: of three it is a little less than
    /// each.
    fn value(&self, x: In, y: &mut Tensor) {
        let shape = y.shape();
        with_real!(y.dtype(), T => {
            let (x0, y) = (x[0].host::<T>(), y.host_mut::<T>());
            y.fill(T::of(f64::NEG_INFINITY));
            self.terms(x, shape, |i, _, j, _| y[i] = x0[j]);
        });
    }

    fn derivative(&self, x: In, dy: &Tensor, dx: &mut [Grad]) {
        terms::derivative(self, x, dy, dx);
    }
}

/// y[o, i] = x[o, k, i] with the k at which it is largest, shared as above; a NaN counts as larger than any number.
impl Terms for MaxAxis {
    fn terms(&self, x: In, y: Shape, mut term: impl FnMut(usize, usize, usize, f64)) {
        let (_, n, inner) = x[0].shape().split(self.axis);
        let x = x[0].to_f64();
        for i in 0..y.len() {
            let places = (0..n).map(|k| (i / inner * n + k) * inner + i % inner);
            let larger = |best: usize, j: usize| if x[best] >= x[j] || x[best].is_nan() { best } else { j };
            let Some(first) = places.clone().reduce(larger) else { continue };
            let mut left = 1.0;
            for j in places.rev().filter(|&j| j > first && x[j] == x[first]) {
                // Below 1e-300 the remaining ties are skipped.
                if left < 1e-300 {
                    break;
                }
                left *= 0.5;
                term(i, 0, j, left);
            }
            term(i, 0, first, left);
        }
    }
}

impl<'t> Var<'t> {
    /// The sum of all elements, a scalar.
    #[track_caller]
    pub fn sum(self) -> Var<'t> {
        self.reshape([self.shape().len()]).sum_axis(0, false)
    }

    /// The mean of all elements, a scalar; 0 if there are none.
    #[track_caller]
    pub fn mean(self) -> Var<'t> {
        self.reshape([self.shape().len()]).mean_axis(0, false)
    }

    /// The sum over an axis, which stays with size 1 if `keep`.
    #[track_caller]
    pub fn sum_axis(self, axis: usize, keep: bool) -> Var<'t> {
        self.tape().apply(SumAxis { axis, keep, mean: false }, [self])
    }

    /// The mean over an axis, which stays with size 1 if `keep`; 0 over an empty one.
    #[track_caller]
    pub fn mean_axis(self, axis: usize, keep: bool) -> Var<'t> {
        self.tape().apply(SumAxis { axis, keep, mean: true }, [self])
    }

    /// The maximum over an axis, which stays with size 1 if `keep`. [`MaxAxis`] says which of several that are equal
    /// get its gradient.
    #[track_caller]
    pub fn max_axis(self, axis: usize, keep: bool) -> Var<'t> {
        self.tape().apply(MaxAxis { axis, keep }, [self])
    }
}
