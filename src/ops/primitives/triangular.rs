//! Unit lower-triangular systems: (I + L) X = R by substitution, and (I + L)⁻¹ as an op.

use crate::{
    autograd::{Gen, Grad, In, Kernel, Op, Outs, Primitive, Var},
    tensor::{Real, Tensor},
    with_real,
};

/// (I + stril(L))⁻¹ over the last two axes of a tensor [.., C, C]; only what lies below the diagonal is read.
///
/// With T the inverse, T (I + L) = I gives dL = −stril(Tᵀ dT Tᵀ).
pub struct UnitLowerInverse;

impl Op for UnitLowerInverse {
    fn name(&self) -> &'static str {
        "unit_lower_inverse"
    }

    fn infer(&self, x: In) -> Result<Outs, String> {
        let s = x[0].shape();
        if s.rank() < 2 || s.at(-1) != s.at(-2) {
            return Err(format!("needs square matrices in the last two axes, got shape {s}"));
        }
        Ok(s.into())
    }

    fn primitive(&self) -> Option<&dyn Primitive> {
        Some(self)
    }

    fn kernel(&self) -> Option<&dyn Kernel> {
        Some(self)
    }

    fn sample(g: &mut Gen) -> (Self, Vec<Tensor>) {
        let (outer, n) = (g.size(3), g.size(6));
        (UnitLowerInverse, vec![g.range([outer, n, n], -1.0, 1.0)])
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

impl<'t> Var<'t> {
    /// (I + stril(self))⁻¹ over the last two axes.
    #[track_caller]
    pub fn unit_lower_inverse(self) -> Var<'t> {
        self.tape().apply(UnitLowerInverse, [self])
    }
}
