//! Functions of one number: y = f(x), dx = f′(x) dy.
//!
//! f and f′ are computed in double precision and rounded to the type; f′(x) dy is a product in that type.

use crate::{
    autograd::{Grad, In, zeroed},
    tensor::{DType, Real, Tensor},
    with_real,
};

/// A function and its derivative at x.
pub(super) trait Function {
    fn f(&self, x: f64) -> f64;
    fn slope(&self, x: f64) -> f64;
    /// The bound that |f| and |f′| are clamped to.
    fn most(&self, _: DType) -> f64 {
        f64::INFINITY
    }
}

pub(super) fn value(op: &impl Function, x: In, y: &mut Tensor) {
    let most = op.most(x[0].dtype());
    with_real!(x[0].dtype(), T => for (y, &x) in y.host_mut::<T>().iter_mut().zip(x[0].host::<T>()) {
        *y = T::of(op.f(x.to_f64()).clamp(-most, most));
    });
}

pub(super) fn derivative(op: &impl Function, x: In, dy: &Tensor, dx: &mut [Grad]) {
    let most = op.most(x[0].dtype());
    with_real!(x[0].dtype(), T => if let Some(dx) = dx[0].slot::<[T]>().map(zeroed) {
        for ((dx, &x), &dy) in dx.iter_mut().zip(x[0].host::<T>()).zip(dy.host::<T>()) {
            *dx += T::of(op.slope(x.to_f64()).clamp(-most, most)) * dy;
        }
    });
}
