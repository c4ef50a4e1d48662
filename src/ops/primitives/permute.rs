//! The axes of a tensor in another order.
//!
//! Each element of y is one element of x, and its gradient goes back to that element.

use super::terms::Terms;
use crate::{
    autograd::{Gen, In, Op, Outs, Var},
    tensor::{MAX_RANK, Shape, Tensor},
};

/// y[i₀, i₁, …] = x with its axes in the order `axes`: axis k of y is axis `axes[k]` of x.
pub struct Permute {
    axes: [usize; MAX_RANK],
    rank: usize,
}

impl Permute {
    /// The axes in this order.
    pub fn new<const N: usize>(order: [usize; N]) -> Permute {
        let mut axes = [0; MAX_RANK];
        axes[..N].copy_from_slice(&order);
        Permute { axes, rank: N }
    }

    /// Axis k of y is axis `axes()[k]` of x.
    pub fn axes(&self) -> &[usize] {
        &self.axes[..self.rank]
    }
}

impl Op for Permute {
    fn name(&self) -> &'static str {
        "permute"
    }

    fn infer(&self, x: In) -> Result<Outs, String> {
        let (shape, axes) = (x[0].shape(), &self.axes[..self.rank]);
        if shape.rank() != self.rank || (0..self.rank).any(|i| !axes.contains(&i)) {
            return Err(format!("{axes:?} is no order of the axes of shape {shape}"));
        }
        let mut y = shape;
        for (i, &axis) in axes.iter().enumerate() {
            y = y.with(i, shape.dims()[axis]);
        }
        Ok(y.into())
    }

    primitive!();

    fn sample(g: &mut Gen) -> (Self, Vec<Tensor>) {
        let rank = g.below(MAX_RANK) + 1;
        let mut axes = [0, 1, 2, 3, 4];
        for i in 1..rank {
            axes.swap(i, g.below(i + 1));
        }
        let big = if g.coin() { 20 } else { 3 };
        let shape = g.shape(rank, if rank <= 3 { big } else { 3 });
        (Permute { axes, rank }, vec![g.normal(shape)])
    }
}

/// The axes in another order.
impl Terms for Permute {
    fn terms(&self, x: In, y: Shape, mut term: impl FnMut(usize, usize, usize, f64)) {
        for i in 0..y.len() {
            let (mut rest, mut j) = (i, 0);
            for (&size, &axis) in y.dims().iter().zip(self.axes()).rev() {
                let (_, _, stride) = x[0].shape().split(axis);
                j += rest % size * stride;
                rest /= size;
            }
            term(i, 0, j, 1.0);
        }
    }
}

impl<'t> Var<'t> {
    /// The axes in another order: axis k of the result is axis `axes[k]` of this value.
    #[track_caller]
    pub fn permute<const N: usize>(self, axes: [usize; N]) -> Var<'t> {
        assert!(N <= MAX_RANK, "permute: a shape has at most {MAX_RANK} axes, got {axes:?}");
        self.tape().apply(Permute::new(axes), [self])
    }

    /// Axes `a` and `b` swapped.
    #[track_caller]
    pub fn transpose(self, a: usize, b: usize) -> Var<'t> {
        let (shape, mut axes) = (self.shape(), [0, 1, 2, 3, 4]);
        assert!(a < shape.rank() && b < shape.rank(), "transpose: shape {shape} has no axes {a} and {b}");
        axes.swap(a, b);
        self.tape().apply(Permute { axes, rank: shape.rank() }, [self])
    }
}
