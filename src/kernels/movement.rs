//! The kernels of [`Narrow`], [`Concat`], [`Tril`].

use crate::{
    args,
    autograd::{Grad, In, Kernel, Value, zeroed},
    kernels::movement_cuda::{MODULE, runs_cuda},
    ops::movement::{Concat, Narrow, Tril},
    tensor::{Cx, Element, Real, Tensor},
    with_real, with_width,
};

/// As [`with_real!`], with integers too: copying needs no arithmetic.
macro_rules! with_element {
    ($dtype:expr, $T:ident => $body:expr) => {
        match $dtype {
            $crate::tensor::DType::I32 => {
                type $T = i32;
                $body
            }
            real => $crate::with_real!(real, $T => $body),
        }
    };
}
pub(super) use with_element;

/// Copies `rows` runs of `n` elements, `xs` apart in x and `ys` apart in y.
#[versions::versions]
pub(super) fn copy_runs<T: Element>(rows: usize, n: usize, x: &[T], xs: usize, y: &mut [T], ys: usize) {
    with_width!(n => for i in 0..rows {
        y[i * ys..][..n].copy_from_slice(&x[i * xs..][..n]);
    });
}

/// Adds such runs.
#[versions::versions]
fn add_runs<T: Real>(rows: usize, n: usize, x: &[T], xs: usize, y: &mut [T], ys: usize) {
    with_width!(n => for i in 0..rows {
        y[i * ys..][..n].iter_mut().zip(&x[i * xs..][..n]).for_each(|(y, &x)| *y += x);
    });
}

/// Copies such runs, or adds them if `acc`.
pub(super) fn move_runs<T: Real>(rows: usize, n: usize, x: &[T], xs: usize, y: &mut [T], ys: usize, acc: bool) {
    if rows * n == 0 {
    } else if acc {
        add_runs(rows, n, x, xs, y, ys);
    } else {
        copy_runs(rows, n, x, xs, y, ys);
    }
}

impl Kernel for Narrow {
    fn forward(&self, cx: &Cx, x: In, y: &mut [Value]) {
        let (outer, n, inner) = x[0].shape().split(self.axis);
        let run = self.len * inner;
        if outer * run == 0 {
            return;
        }
        match cx {
            Cx::Cpu(_) => with_element!(x[0].dtype(), T => {
                let x = &x[0].host::<T>()[self.start * inner..];
                copy_runs(outer, run, x, n * inner, y[0].host_mut(), run);
            }),
            Cx::Cuda(cu) => {
                runs_cuda(cu, (&x[0], self.start * inner, n * inner), (&mut y[0], 0, run), false, [outer, run]);
            }
        }
    }

    /// Once the gradient exists, only the indices `start..start + len` are touched: cutting a sequence step by step
    /// costs one pass over it, not one a step.
    fn backward(&self, cx: &Cx, x: In, _: &[Value], dy: &[Option<Tensor>], dx: &mut [Grad]) {
        let Some(g) = &dy[0] else { return };
        let (outer, n, inner) = x[0].shape().split(self.axis);
        let run = self.len * inner;
        match cx {
            Cx::Cpu(_) => with_real!(g.dtype(), T => if let Some((d, acc)) = dx[0].slot::<[T]>() {
                if !acc && self.len < n {
                    d.fill(T::ZERO);
                }
                if outer * run > 0 {
                    move_runs(outer, run, g.host(), run, &mut d[self.start * inner..], n * inner, acc);
                }
            }),
            Cx::Cuda(cu) => match dx[0].slot::<Tensor>() {
                Some((d, true)) => {
                    runs_cuda(cu, (g, 0, run), (d, self.start * inner, n * inner), true, [outer, run]);
                }
                Some((d, false)) => {
                    let size = d.len();
                    let args = args![g, d, size, n * inner, self.start * inner, run];
                    cu.launch(&MODULE, "framed", g.dtype(), cu.elements(size), args);
                }
                None => {}
            },
        }
    }
}

impl Kernel for Concat {
    fn forward(&self, cx: &Cx, x: In, y: &mut [Value]) {
        let (outer, n, inner) = y[0].shape().split(self.axis);
        match cx {
            Cx::Cpu(_) => with_element!(x[0].dtype(), T => {
                let y = y[0].host_mut::<T>();
                let mut at = 0;
                for i in 0..x.len() {
                    let run = x[i].shape().dims()[self.axis] * inner;
                    if outer * run > 0 {
                        copy_runs(outer, run, x[i].host::<T>(), run, &mut y[at..], n * inner);
                    }
                    at += run;
                }
            }),
            Cx::Cuda(cu) => {
                let mut at = 0;
                for i in 0..x.len() {
                    let run = x[i].shape().dims()[self.axis] * inner;
                    runs_cuda(cu, (&x[i], 0, run), (&mut y[0], at, n * inner), false, [outer, run]);
                    at += run;
                }
            }
        }
    }

    fn backward(&self, cx: &Cx, x: In, y: &[Value], dy: &[Option<Tensor>], dx: &mut [Grad]) {
        let Some(g) = &dy[0] else { return };
        let (outer, n, inner) = y[0].shape().split(self.axis);
        match cx {
            Cx::Cpu(_) => with_real!(g.dtype(), T => {
                let mut at = 0;
                for (i, dx) in dx.iter_mut().enumerate() {
                    let run = x[i].shape().dims()[self.axis] * inner;
                    if let Some((d, acc)) = dx.slot::<[T]>() && outer * run > 0 {
                        move_runs(outer, run, &g.host()[at..], n * inner, d, run, acc);
                    }
                    at += run;
                }
            }),
            Cx::Cuda(cu) => {
                let mut at = 0;
                for (i, dx) in dx.iter_mut().enumerate() {
                    let run = x[i].shape().dims()[self.axis] * inner;
                    if let Some((d, acc)) = dx.slot::<Tensor>() {
                        runs_cuda(cu, (g, at, n * inner), (d, 0, run), acc, [outer, run]);
                    }
                    at += run;
                }
            }
        }
    }
}

impl Kernel for Tril {
    fn forward(&self, cx: &Cx, x: In, y: &mut [Value]) {
        let (rows, cols) = (x[0].shape().at(-2), x[0].shape().at(-1).max(1));
        match cx {
            Cx::Cpu(_) => with_real!(x[0].dtype(), T => {
                let (x, y) = (x[0].host::<T>().chunks_exact(cols), y[0].host_mut::<T>().chunks_exact_mut(cols));
                for (i, (x, y)) in x.zip(y).enumerate() {
                    let kept = self.kept(i % rows, cols);
                    y[..kept].copy_from_slice(&x[..kept]);
                    y[kept..].fill(T::ZERO);
                }
            }),
            Cx::Cuda(cu) => self.cuda(cu, &x[0], &mut y[0], false),
        }
    }

    fn backward(&self, cx: &Cx, x: In, _: &[Value], dy: &[Option<Tensor>], dx: &mut [Grad]) {
        let Some(g) = &dy[0] else { return };
        let (rows, cols) = (x[0].shape().at(-2), x[0].shape().at(-1).max(1));
        match cx {
            Cx::Cpu(_) => with_real!(g.dtype(), T => if let Some(d) = dx[0].slot::<[T]>().map(zeroed) {
                for (i, (d, g)) in d.chunks_exact_mut(cols).zip(g.host::<T>().chunks_exact(cols)).enumerate() {
                    let kept = self.kept(i % rows, cols);
                    d[..kept].iter_mut().zip(&g[..kept]).for_each(|(d, &g)| *d += g);
                }
            }),
            Cx::Cuda(cu) => {
                if let Some((d, acc)) = dx[0].slot::<Tensor>() {
                    self.cuda(cu, g, d, acc);
                }
            }
        }
    }
}
