//! Functions of two numbers with broadcasting: y_i = f(a_j, b_k), where j and k are i with the index of every repeated
//! axis set to 0. The gradient of a repeated element is the sum over its repetitions.

use crate::{
    autograd::{Grad, In, zeroed},
    tensor::{Real, Shape, Tensor},
    with_real,
};

/// A function with its derivatives, each times the cotangent g.
pub(super) trait Function {
    fn f<T: Real>(a: T, b: T) -> T;
    fn da<T: Real>(g: T, a: T, b: T) -> T;
    fn db<T: Real>(g: T, a: T, b: T) -> T;
}

/// The index, in a tensor of shape `x`, of the element that is broadcast to element `i` of shape `y`.
fn source(x: Shape, y: Shape, mut i: usize) -> usize {
    let (mut at, mut stride) = (0, 1);
    for axis in 0..x.rank() {
        let (n, size) = (y.at(-1 - axis as isize), x.at(-1 - axis as isize));
        at += if size == 1 { 0 } else { i % n * stride };
        stride *= size;
        i /= n;
    }
    at
}

pub(super) fn value<F: Function>(_: &F, x: In, y: &mut Tensor) {
    let [a_shape, b_shape] = [0, 1].map(|n| x[n].shape());
    let shape = y.shape();
    with_real!(x[0].dtype(), T => {
        let (a, b) = (x[0].host::<T>(), x[1].host::<T>());
        for (i, y) in y.host_mut::<T>().iter_mut().enumerate() {
            *y = F::f(a[source(a_shape, shape, i)], b[source(b_shape, shape, i)]);
        }
    });
}

pub(super) fn derivative<F: Function>(_: &F, x: In, dy: &Tensor, dx: &mut [Grad]) {
    let places = |i| [0, 1].map(|n| source(x[n].shape(), dy.shape(), i));
    with_real!(dy.dtype(), T => {
        let (a, b, dy) = (x[0].host::<T>(), x[1].host::<T>(), dy.host::<T>());
        if let Some(da) = dx[0].slot::<[T]>().map(zeroed) {
            for (i, &g) in dy.iter().enumerate() {
                let [j, k] = places(i);
                da[j] += F::da(g, a[j], b[k]);
            }
        }
        if let Some(db) = dx[1].slot::<[T]>().map(zeroed) {
            for (i, &g) in dy.iter().enumerate() {
                let [j, k] = places(i);
                db[k] += F::db(g, a[j], b[k]);
            }
        }
    });
}
