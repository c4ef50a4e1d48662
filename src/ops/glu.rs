//! The gated linear unit (Dauphin et al. 2017, arXiv 1612.08083, eq. 1), of a product that holds both its halves:
//!
//! ```text
//! y = a ⊙ σ(b),  x = [a, b] along the last axis        da = dy σ(b),   db = dy y (1 − σ(b))
//! ```
//!
//! One op, so that a gate on a wide layer costs one pass over memory each way and keeps nothing but its input.

use super::{check_real, math::Math};
use crate::{
    args,
    autograd::{Gen, Grad, In, Op, Outs, Value, Var},
    cuda::Module,
    tensor::{Cx, Tensor},
    with_real,
};

/// x [.., 2 N] to [.., N].
pub struct Glu;

pub(super) static MODULE: Module = Module::new("ops/glu.cu", &[include_str!("glu.cu")]);

#[multiversion::multiversion(targets("x86_64+avx512f+avx512vl+avx512dq+avx512bw", "x86_64+avx2+fma"))]
fn forward<T: Math>(n: usize, x: &[T], y: &mut [T]) {
    for (x, y) in x.chunks_exact(2 * n).zip(y.chunks_exact_mut(n)) {
        let (a, b) = x.split_at(n);
        for ((y, &a), &b) in y.iter_mut().zip(a).zip(b) {
            *y = a * b.sigmoid();
        }
    }
}

#[multiversion::multiversion(targets("x86_64+avx512f+avx512vl+avx512dq+avx512bw", "x86_64+avx2+fma"))]
fn backward<T: Math>(n: usize, x: &[T], y: &[T], g: &[T], d: &mut [T], acc: bool) {
    let rows = x.chunks_exact(2 * n).zip(d.chunks_exact_mut(2 * n));
    for (((x, d), y), g) in rows.zip(y.chunks_exact(n)).zip(g.chunks_exact(n)) {
        let (b, (da, db)) = (&x[n..], d.split_at_mut(n));
        if !acc {
            da.fill(T::ZERO);
            db.fill(T::ZERO);
        }
        let (da, db, b, y, g) = (&mut da[..n], &mut db[..n], &b[..n], &y[..n], &g[..n]);
        for i in 0..n {
            let (gate, rest) = b[i].sigmoid_and_rest();
            da[i] += g[i] * gate;
            db[i] += g[i] * y[i] * rest;
        }
    }
}

impl Op for Glu {
    fn name(&self) -> &'static str {
        "glu"
    }

    fn infer(&self, x: In) -> Result<Outs, String> {
        check_real(&x[0])?;
        let shape = x[0].shape();
        if shape.rank() == 0 || !shape.last().is_multiple_of(2) {
            return Err(format!("the last axis holds two halves, got shape {shape}"));
        }
        Ok(shape.with(shape.rank() - 1, shape.last() / 2).into())
    }

    fn forward(&self, cx: &Cx, x: In, y: &mut [Value]) {
        let n = y[0].shape().last();
        if x[0].is_empty() {
            return;
        }
        match cx {
            Cx::Cpu(_) => with_real!(x[0].dtype(), T => forward(n, x[0].host::<T>(), y[0].host_mut())),
            Cx::Cuda(cu) => {
                let over = cu.elements(y[0].len());
                cu.launch(&MODULE, "glu_forward", x[0].dtype(), over, args![&x[0], &mut y[0], y[0].len(), n]);
            }
        }
    }

    fn backward(&self, cx: &Cx, x: In, y: &[Value], dy: &[Option<Tensor>], dx: &mut [Grad]) {
        let Some(g) = &dy[0] else { return };
        let n = g.shape().last();
        if x[0].is_empty() {
            return;
        }
        match cx {
            Cx::Cpu(_) => with_real!(g.dtype(), T => {
                dx[0].write::<T>(|d, acc| backward(n, x[0].host(), y[0].host(), g.host(), d, acc));
            }),
            Cx::Cuda(cu) => {
                let (dtype, (d, acc)) = (g.dtype(), dx[0].target());
                let over = cu.elements(g.len());
                cu.launch(&MODULE, "glu_backward", dtype, over, args![&x[0], &y[0], g, d, acc, g.len(), n]);
            }
        }
    }

    fn sample(g: &mut Gen) -> (Self, Vec<Tensor>) {
        let (b, t, n) = (g.size(3), g.size(5), g.size(20));
        (Glu, vec![g.normal([b, t, 2 * n])])
    }
}

impl<'t> Var<'t> {
    /// a ⊙ σ(b) of the halves [a, b] of the last axis: [.., 2 N] to [.., N].
    #[track_caller]
    pub fn glu(self) -> Var<'t> {
        self.tape().apply(Glu, [self])
    }
}
