//! Moving elements about: cutting and joining along an axis, and zeroing above a diagonal. Axes are permuted in
//! [`super::permute`].
//!
//! None of them computes: values are copied in runs that are contiguous on both sides, gradients are copied or
//! added back along the same runs.

use super::{
    check_real,
    movement_cuda::{MODULE, runs_cuda},
};
use crate::{
    args,
    autograd::{Gen, Grad, In, Op, Outs, Value, Var},
    tensor::{Cx, DType, Element, Real, Tensor},
    with_real, with_width,
};

/// Indices `start..start + len` of one axis.
pub struct Narrow {
    /// Which axis.
    pub axis: usize,
    /// The first index.
    pub start: usize,
    /// How many.
    pub len: usize,
}

/// The inputs one after another along an axis.
pub struct Concat {
    /// Which axis.
    pub axis: usize,
}

/// The lower triangle of the last two axes: zero where j > i + `diag`.
pub struct Tril {
    /// How many diagonals above the main one are kept; negative removes some below.
    pub diag: isize,
}

/// As [`with_real!`], with integers too: copying needs no arithmetic.
macro_rules! with_element {
    ($dtype:expr, $T:ident => $body:expr) => {
        match $dtype {
            DType::I32 => {
                type $T = i32;
                $body
            }
            real => with_real!(real, $T => $body),
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

impl Op for Narrow {
    fn name(&self) -> &'static str {
        "narrow"
    }

    fn infer(&self, x: In) -> Result<Outs, String> {
        let (shape, &Narrow { axis, start, len }) = (x[0].shape(), self);
        match shape.dims().get(axis) {
            Some(&n) if start + len <= n => Ok(shape.with(axis, len).into()),
            Some(_) => Err(format!("indices {start}..{} of axis {axis} of shape {shape}", start + len)),
            None => Err(format!("shape {shape} has no axis {axis}")),
        }
    }

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
                runs_cuda(cu, &x[0], self.start * inner, n * inner, &mut y[0], 0, run, false, [outer, run]);
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
            Cx::Cpu(_) => with_real!(g.dtype(), T => dx[0].write::<T>(|d, acc| {
                if !acc && self.len < n {
                    d.fill(T::ZERO);
                }
                if outer * run > 0 {
                    move_runs(outer, run, g.host(), run, &mut d[self.start * inner..], n * inner, acc);
                }
            })),
            Cx::Cuda(cu) => match dx[0].parts() {
                Some((d, true)) => {
                    runs_cuda(cu, g, 0, run, d, self.start * inner, n * inner, true, [outer, run]);
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

    fn sample(g: &mut Gen) -> (Self, Vec<Tensor>) {
        let rank = g.below(3) + 1;
        let shape = g.shape(rank, 9);
        let axis = g.below(rank);
        let start = g.below(shape.dims()[axis] + 1);
        let len = g.below(shape.dims()[axis] - start + 1);
        (Narrow { axis, start, len }, vec![g.normal(shape)])
    }
}

impl Op for Concat {
    fn name(&self) -> &'static str {
        "concat"
    }

    fn infer(&self, x: In) -> Result<Outs, String> {
        let first = x[0].shape();
        if self.axis >= first.rank() {
            return Err(format!("shape {first} has no axis {}", self.axis));
        }
        let mut n = 0;
        for i in 0..x.len() {
            let (shape, dtype) = (x[i].shape(), x[i].dtype());
            if shape.rank() != first.rank() || shape.with(self.axis, 0) != first.with(self.axis, 0) {
                return Err(format!("shapes {first} and {shape} differ beyond axis {}", self.axis));
            }
            if dtype != x[0].dtype() {
                return Err(format!("dtypes {} and {dtype} differ", x[0].dtype()));
            }
            n += shape.dims()[self.axis];
        }
        Ok(first.with(self.axis, n).into())
    }

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
                    runs_cuda(cu, &x[i], 0, run, &mut y[0], at, n * inner, false, [outer, run]);
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
                    dx.write::<T>(|d, acc| if outer * run > 0 {
                        move_runs(outer, run, &g.host()[at..], n * inner, d, run, acc);
                    });
                    at += run;
                }
            }),
            Cx::Cuda(cu) => {
                let mut at = 0;
                for (i, dx) in dx.iter_mut().enumerate() {
                    let run = x[i].shape().dims()[self.axis] * inner;
                    if let Some((d, acc)) = dx.parts() {
                        runs_cuda(cu, g, at, n * inner, d, 0, run, acc, [outer, run]);
                    }
                    at += run;
                }
            }
        }
    }

    fn sample(g: &mut Gen) -> (Self, Vec<Tensor>) {
        let rank = g.below(3) + 1;
        let shape = g.shape(rank, 9);
        let axis = g.below(rank);
        let parts = g.size(4);
        let part = |g: &mut Gen| {
            let n = g.below(5);
            g.normal(shape.with(axis, n))
        };
        (Concat { axis }, (0..parts).map(|_| part(g)).collect())
    }
}

impl Tril {
    /// How many of the `cols` entries of row `i` are kept.
    fn kept(&self, i: usize, cols: usize) -> usize {
        (i + 1).saturating_add_signed(self.diag).min(cols)
    }
}

impl Op for Tril {
    fn name(&self) -> &'static str {
        "tril"
    }

    fn infer(&self, x: In) -> Result<Outs, String> {
        check_real(&x[0])?;
        if x[0].shape().rank() < 2 {
            return Err(format!("needs two axes at least, got shape {}", x[0].shape()));
        }
        Ok(x[0].shape().into())
    }

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
            Cx::Cpu(_) => with_real!(g.dtype(), T => dx[0].add::<T>(|d| {
                for (i, (d, g)) in d.chunks_exact_mut(cols).zip(g.host::<T>().chunks_exact(cols)).enumerate() {
                    let kept = self.kept(i % rows, cols);
                    d[..kept].iter_mut().zip(&g[..kept]).for_each(|(d, &g)| *d += g);
                }
            })),
            Cx::Cuda(cu) => {
                if let Some((d, acc)) = dx[0].parts() {
                    self.cuda(cu, g, d, acc);
                }
            }
        }
    }

    fn sample(g: &mut Gen) -> (Self, Vec<Tensor>) {
        let rank = g.below(2) + 2;
        let shape = g.shape(rank, 5);
        (Tril { diag: g.below(7) as isize - 3 }, vec![g.normal(shape)])
    }
}

impl<'t> Var<'t> {
    /// Indices `start..start + len` of an axis.
    #[track_caller]
    pub fn narrow(self, axis: usize, start: usize, len: usize) -> Var<'t> {
        self.tape().apply(Narrow { axis, start, len }, [self])
    }

    /// The parts, at least one, one after another along an axis. No copy if all but one are empty.
    #[track_caller]
    pub fn concat(parts: &[Var<'t>], axis: usize) -> Var<'t> {
        assert!(!parts.is_empty(), "concat: needs one part at least");
        let size = |x: &Var| x.shape().dims().get(axis).copied();
        if let Some(&x) = parts.iter().find(|x| size(x).is_some_and(|n| n > 0)) {
            let adds_nothing = |y: &Var| {
                let alike = y.shape() == x.shape().with(axis, 0) && y.dtype() == x.dtype();
                alike && std::ptr::eq(y.tape(), x.tape())
            };
            if parts.iter().filter(|y| adds_nothing(y)).count() == parts.len() - 1 {
                return x;
            }
        }
        parts[0].tape().apply_dyn(Box::new(Concat { axis }), parts)[0]
    }

    /// Zero where j > i + `diag`, for i and j the indices of the last two axes.
    #[track_caller]
    pub fn tril(self, diag: isize) -> Var<'t> {
        self.tape().apply(Tril { diag }, [self])
    }
}
