//! Sums of elements: y_i = Σ c x_j over a list of terms (i, j, c). The derivative has the same terms: dx_j = Σ c dy_i.
//!
//! An element that no term names is not read: a mask leaves terms out, and does not multiply with 0.

use crate::{
    autograd::{Grad, In},
    ops::{
        cast::Cast,
        cumsum::Cumsum,
        embed::{Embedding, Gather},
        movement::{Concat, Narrow, Tril},
        permute::Permute,
        reduce::{MaxAxis, SumAxis},
    },
    tensor::{Real, Shape, Tensor},
    with_real,
};

/// An op whose output is linear in its inputs, or in the elements that it selects.
pub(super) trait Linear {
    /// Calls `term(i, n, j, c)` for every term: element i of the output has c times element j of input n in its sum.
    fn terms(&self, x: In, y: Shape, term: impl FnMut(usize, usize, usize, f64));
}

pub(super) fn value(op: &impl Linear, x: In, y: &mut Tensor) {
    let shape = y.shape();
    with_real!(y.dtype(), Y => with_real!(x[0].dtype(), X => {
        let y = y.host_mut::<Y>();
        y.fill(Y::ZERO);
        op.terms(x, shape, |i, n, j, c| y[i] += Y::of(c) * Y::of(x[n].host::<X>()[j].to_f64()));
    }));
}

pub(super) fn derivative(op: &impl Linear, x: In, dy: &Tensor, dx: &mut [Grad]) {
    with_real!(dy.dtype(), Y => with_real!(x[0].dtype(), X => {
        for (m, dx) in dx.iter_mut().enumerate() {
            dx.add::<X>(|dx| op.terms(x, dy.shape(), |i, n, j, c| if n == m {
                dx[j] += X::of(c) * X::of(dy.host::<Y>()[i].to_f64());
            }));
        }
    }));
}

/// y = x, in another type.
impl Linear for Cast {
    fn terms(&self, _: In, y: Shape, mut term: impl FnMut(usize, usize, usize, f64)) {
        (0..y.len()).for_each(|i| term(i, 0, i, 1.0));
    }
}

/// y[o, i] = Σ_k x[o, k, i], or the mean over k.
impl Linear for SumAxis {
    fn terms(&self, x: In, y: Shape, mut term: impl FnMut(usize, usize, usize, f64)) {
        let (_, n, inner) = x[0].shape().split(self.axis);
        let c = if self.mean { 1.0 / n as f64 } else { 1.0 };
        for i in 0..y.len() {
            (0..n).for_each(|k| term(i, 0, (i / inner * n + k) * inner + i % inner, c));
        }
    }
}

/// y[o, i] = x[o, k, i] with the first k at which it is largest; a NaN counts as larger than any number.
impl Linear for MaxAxis {
    fn terms(&self, x: In, y: Shape, mut term: impl FnMut(usize, usize, usize, f64)) {
        let (_, n, inner) = x[0].shape().split(self.axis);
        let x = x[0].to_f64();
        for i in 0..y.len() {
            let places = (0..n).map(|k| (i / inner * n + k) * inner + i % inner);
            let larger = |best: usize, j: usize| if x[best] >= x[j] || x[best].is_nan() { best } else { j };
            if let Some(j) = places.reduce(larger) {
                term(i, 0, j, 1.0);
            }
        }
    }
}

/// y[o, t, i] = Σ x[o, s, i] over s ≤ t.
impl Linear for Cumsum {
    fn terms(&self, _: In, y: Shape, mut term: impl FnMut(usize, usize, usize, f64)) {
        let (_, n, inner) = y.split(self.axis);
        for i in 0..y.len() {
            let t = i / inner % n;
            (0..=t).for_each(|s| term(i, 0, i - (t - s) * inner, 1.0));
        }
    }
}

/// y[o, k, i] = x[o, start + k, i]
impl Linear for Narrow {
    fn terms(&self, x: In, y: Shape, mut term: impl FnMut(usize, usize, usize, f64)) {
        let (_, n, inner) = x[0].shape().split(self.axis);
        for i in 0..y.len() {
            let (outer, k) = (i / (self.len * inner), i / inner % self.len);
            term(i, 0, (outer * n + self.start + k) * inner + i % inner, 1.0);
        }
    }
}

/// The inputs one after another along an axis.
impl Linear for Concat {
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

/// The axes in another order.
impl Linear for Permute {
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

/// The entries of a matrix up to a diagonal; the others are 0.
impl Linear for Tril {
    fn terms(&self, _: In, y: Shape, mut term: impl FnMut(usize, usize, usize, f64)) {
        let (rows, cols) = (y.at(-2), y.at(-1));
        for i in 0..y.len() {
            if i % cols < self.kept(i / cols % rows, cols) {
                term(i, 0, i, 1.0);
            }
        }
    }
}

/// Row i of y is row id_i of the table.
impl Linear for Embedding {
    fn terms(&self, x: In, y: Shape, mut term: impl FnMut(usize, usize, usize, f64)) {
        let (ids, n) = (x[1].host::<i32>(), y.last());
        (0..y.len()).for_each(|i| term(i, 0, ids[i / n] as usize * n + i % n, 1.0));
    }
}

/// y_i = x[i, id_i]
impl Linear for Gather {
    fn terms(&self, x: In, _: Shape, mut term: impl FnMut(usize, usize, usize, f64)) {
        let n = x[0].shape().last();
        x[1].host::<i32>().iter().enumerate().for_each(|(i, &id)| term(i, 0, i * n + id as usize, 1.0));
    }
}
