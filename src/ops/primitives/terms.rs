//! Sums of elements: y_i = Σ c x_j over a list of terms (i, j, c). The derivative has the same terms: dx_j = Σ c dy_i.
//!
//! An element that no term names is not read: a mask leaves terms out, and does not multiply with 0.

use crate::{
    autograd::{Grad, In, zeroed},
    tensor::{Real, Shape, Tensor},
    with_real,
};

/// An op that adds up terms: it is linear in its inputs, or in the elements that it selects.
pub(super) trait Terms {
    /// Calls `term(i, n, j, c)` for every term: element i of the output has c times element j of input n in its sum.
    fn terms(&self, x: In, y: Shape, term: impl FnMut(usize, usize, usize, f64));
}

pub(super) fn value(op: &impl Terms, x: In, y: &mut Tensor) {
    let shape = y.shape();
    with_real!(y.dtype(), Y => with_real!(x[0].dtype(), X => {
        let y = y.host_mut::<Y>();
        y.fill(Y::ZERO);
        op.terms(x, shape, |i, n, j, c| y[i] += Y::of(c) * Y::of(x[n].host::<X>()[j].to_f64()));
    }));
}

pub(super) fn derivative(op: &impl Terms, x: In, dy: &Tensor, dx: &mut [Grad]) {
    with_real!(dy.dtype(), Y => with_real!(x[0].dtype(), X => {
        for (m, dx) in dx.iter_mut().enumerate() {
            if let Some(dx) = dx.slot::<[X]>().map(zeroed) {
                op.terms(x, dy.shape(), |i, n, j, c| if n == m {
                    dx[j] += X::of(c) * X::of(dy.host::<Y>()[i].to_f64());
                });
            }
        }
    }));
}
