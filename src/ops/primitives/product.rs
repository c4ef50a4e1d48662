//! Products of matrices over the last two axes, and the inverse of a unit lower-triangular one.

use crate::{
    autograd::{Grad, In, Primitive},
    ops::{matmul::Matmul, triangular::UnitLowerInverse},
    tensor::{Real, Shape, Tensor},
    with_real,
};

impl Matmul {
    /// Calls `term(i, j, k)` for every product: y_i has a_j b_k in its sum.
    fn terms(&self, a: Shape, b: Shape, y: Shape, mut term: impl FnMut(usize, usize, usize)) {
        let (rows, cols) = (y.at(-2), y.at(-1));
        let inner = a.at(if self.ta { -2 } else { -1 });
        // One matrix b serves every batch, or each has its own.
        let step_b = if b.rank() == 2 { 0 } else { inner * cols };
        for i in 0..y.len() {
            let (batch, row, col) = (i / (rows * cols), i / cols % rows, i % cols);
            for k in 0..inner {
                let in_a = if self.ta { k * rows + row } else { row * inner + k };
                let in_b = if self.tb { col * inner + k } else { k * cols + col };
                term(i, batch * rows * inner + in_a, batch * step_b + in_b);
            }
        }
    }
}

/// y = a b; da = dy bᵀ, db = aᵀ dy
impl Primitive for Matmul {
    fn value(&self, x: In, y: &mut Tensor) {
        let shape = y.shape();
        with_real!(y.dtype(), T => {
            let (a, b, y) = (x[0].host::<T>(), x[1].host::<T>(), y.host_mut::<T>());
            y.fill(T::ZERO);
            self.terms(x[0].shape(), x[1].shape(), shape, |i, j, k| y[i] += a[j] * b[k]);
        });
    }

    fn derivative(&self, x: In, dy: &Tensor, dx: &mut [Grad]) {
        let (a_shape, b_shape, shape) = (x[0].shape(), x[1].shape(), dy.shape());
        with_real!(dy.dtype(), T => {
            let (a, b, dy) = (x[0].host::<T>(), x[1].host::<T>(), dy.host::<T>());
            dx[0].add::<T>(|da| self.terms(a_shape, b_shape, shape, |i, j, k| da[j] += dy[i] * b[k]));
            dx[1].add::<T>(|db| self.terms(a_shape, b_shape, shape, |i, j, k| db[k] += a[j] * dy[i]));
        });
    }
}

/// The columns of (I + L)⁻¹ for a matrix L [n, n] of which only the part below the diagonal is read, by substitution:
/// t_ij = δ_ij − Σ_{j ≤ k < i} l_ik t_kj.
fn inverse<T: Real>(l: &[T], t: &mut [T], n: usize) {
    t.fill(T::ZERO);
    for i in 0..n {
        t[i * n + i] = T::ONE;
        for j in 0..i {
            let sum: T = (j..i).map(|k| l[i * n + k] * t[k * n + j]).sum();
            t[i * n + j] = -sum;
        }
    }
}

/// T = (I + L)⁻¹. From T (I + L) = I follows dL = −Tᵀ dT Tᵀ, below the diagonal:
/// dL_ij = −Σ T_ai dT_ab T_jb over a ≥ i and b ≤ j, as T is lower triangular.
impl Primitive for UnitLowerInverse {
    fn value(&self, x: In, y: &mut Tensor) {
        let n = y.shape().last();
        with_real!(y.dtype(), T => {
            let size = (n * n).max(1);
            let matrices = x[0].host::<T>().chunks_exact(size).zip(y.host_mut::<T>().chunks_exact_mut(size));
            matrices.for_each(|(l, t)| inverse(l, t, n));
        });
    }

    fn derivative(&self, x: In, dy: &Tensor, dx: &mut [Grad]) {
        let n = dy.shape().last();
        with_real!(dy.dtype(), T => dx[0].add::<T>(|dl| {
            let size = (n * n).max(1);
            let mut t = vec![T::ZERO; n * n];
            let matrices = x[0].host::<T>().chunks_exact(size).zip(dy.host::<T>().chunks_exact(size));
            for ((l, dt), dl) in matrices.zip(dl.chunks_exact_mut(size)) {
                inverse(l, &mut t, n);
                // (dT Tᵀ)_aj, then Tᵀ times it.
                let mut right = vec![T::ZERO; n * n];
                for a in 0..n {
                    for j in 0..n {
                        right[a * n + j] = (0..=j).map(|b| dt[a * n + b] * t[j * n + b]).sum();
                    }
                }
                for i in 0..n {
                    for j in 0..i {
                        let sum: T = (i..n).map(|a| t[a * n + i] * right[a * n + j]).sum();
                        dl[i * n + j] += -sum;
                    }
                }
            }
        }));
    }
}
