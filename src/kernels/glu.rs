//! The kernel of [`Glu`]: da = dy σ(b), db = dy y (1 − σ(b)). It passes over memory once each way and saves nothing.

use crate::{
    args,
    autograd::{Grad, In, Kernel, Value},
    cuda::Module,
    kernels::math::Math,
    ops::glu::Glu,
    tensor::{Cx, Tensor},
    with_real,
};

pub(super) static MODULE: Module = Module::new("kernels/glu.cu", &[include_str!("glu.cu")]);

#[versions::versions]
fn forward<T: Math>(n: usize, x: &[T], y: &mut [T]) {
    for (x, y) in x.chunks_exact(2 * n).zip(y.chunks_exact_mut(n)) {
        let (a, b) = x.split_at(n);
        for ((y, &a), &b) in y.iter_mut().zip(a).zip(b) {
            *y = a * b.sigmoid();
        }
    }
}

#[versions::versions]
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

impl Kernel for Glu {
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
                if let Some((d, acc)) = dx[0].slot::<[T]>() {
                    backward(n, x[0].host(), y[0].host(), g.host(), d, acc);
                }
            }),
            Cx::Cuda(cu) => {
                let (dtype, (d, acc)) = (g.dtype(), dx[0].target());
                let over = cu.elements(g.len());
                cu.launch(&MODULE, "glu_backward", dtype, over, args![&x[0], &y[0], g, d, acc, g.len(), n]);
            }
        }
    }
}
