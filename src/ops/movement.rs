//! Moving elements about: permuting axes, cutting and joining along one, and zeroing above a diagonal.
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
    tensor::{Cx, DType, Element, MAX_RANK, Real, Shape, Tensor},
    with_real, with_width,
};

/// y[i₀, i₁, …] = x with its axes in the order `axes`: axis k of y is axis `axes[k]` of x.
pub struct Permute {
    axes: [usize; MAX_RANK],
    rank: usize,
}

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

/// Copies `rows` runs of `n` elements, `xs` apart in x and `ys` apart in y.
#[multiversion::multiversion(targets("x86_64+avx512f+avx512vl+avx512dq+avx512bw", "x86_64+avx2+fma"))]
fn copy_runs<T: Element>(rows: usize, n: usize, x: &[T], xs: usize, y: &mut [T], ys: usize) {
    with_width!(n => for i in 0..rows {
        y[i * ys..][..n].copy_from_slice(&x[i * xs..][..n]);
    });
}

/// The same, adding.
#[multiversion::multiversion(targets("x86_64+avx512f+avx512vl+avx512dq+avx512bw", "x86_64+avx2+fma"))]
fn add_runs<T: Real>(rows: usize, n: usize, x: &[T], xs: usize, y: &mut [T], ys: usize) {
    with_width!(n => for i in 0..rows {
        y[i * ys..][..n].iter_mut().zip(&x[i * xs..][..n]).for_each(|(y, &x)| *y += x);
    });
}

fn move_runs<T: Real>(rows: usize, n: usize, x: &[T], xs: usize, y: &mut [T], ys: usize, acc: bool) {
    if rows * n == 0 {
    } else if acc {
        add_runs(rows, n, x, xs, y, ys);
    } else {
        copy_runs(rows, n, x, xs, y, ys);
    }
}

/// The order in which a permutation walks through x: (size, stride in x) of the axes of y, the inner two apart.
pub(super) struct Walk {
    pub outer: [(usize, usize); MAX_RANK],
    pub rows: (usize, usize),
    pub inner: (usize, usize),
}

impl Permute {
    /// The axes in this order.
    pub fn new<const N: usize>(order: [usize; N]) -> Permute {
        let mut axes = [0; MAX_RANK];
        axes[..N].copy_from_slice(&order);
        Permute { axes, rank: N }
    }

    fn walk(&self, x: Shape) -> Walk {
        let mut axes = [(1, 0); MAX_RANK + 2];
        let mut last = 0; // axes[..=last] are in use; axes[0] is a dummy of size 1
        for &axis in &self.axes[..self.rank] {
            let (_, n, stride) = x.split(axis);
            if n == 1 {
                continue;
            }
            // Neighbours in y that are neighbours in x are one longer axis.
            if last > 0 && axes[last].1 == n * stride {
                axes[last] = (axes[last].0 * n, stride);
            } else {
                last += 1;
                axes[last] = (n, stride);
            }
        }
        axes.rotate_right(MAX_RANK + 1 - last);
        let [outer @ .., rows, inner] = axes;
        Walk { outer, rows, inner }
    }
}

impl Walk {
    /// Calls `f(offset in y, offset in x)` for every block of `rows` times `inner` elements.
    fn each(&self, mut f: impl FnMut(usize, usize)) {
        let blocks: usize = self.outer.iter().map(|a| a.0).product();
        let size = self.rows.0 * self.inner.0;
        if blocks * size == 0 {
            return;
        }
        let (mut index, mut at) = ([0; MAX_RANK], 0);
        for block in 0..blocks {
            f(block * size, at);
            for (i, &(n, stride)) in index.iter_mut().zip(&self.outer).rev() {
                *i += 1;
                at += stride;
                if *i < n {
                    break;
                }
                at -= stride * n;
                *i = 0;
            }
        }
    }

    /// Calls `f(offset in y, offset in x)` for every element of a block, in tiles: each cache line that either side
    /// touches serves several elements before it is dropped.
    #[inline(always)]
    fn tiled(&self, mut f: impl FnMut(usize, usize)) {
        const TILE: usize = 16;
        let ((rows, rs), (n, s)) = (self.rows, self.inner);
        for i0 in (0..rows).step_by(TILE) {
            for j0 in (0..n).step_by(TILE) {
                for i in i0..rows.min(i0 + TILE) {
                    for j in j0..n.min(j0 + TILE) {
                        f(i * n + j, i * rs + j * s);
                    }
                }
            }
        }
    }
}

impl Op for Permute {
    fn name(&self) -> &'static str {
        "permute"
    }

    fn infer(&self, x: In) -> Result<Outs, String> {
        let (shape, axes) = (x[0].shape(), &self.axes[..self.rank]);
        if shape.rank() != self.rank || (0..self.rank).any(|i| !axes.contains(&i)) {
            return Err(format!("{axes:?} is no order of the axes of shape {shape}"));
        }
        let mut y = shape;
        for (i, &axis) in axes.iter().enumerate() {
            y = y.with(i, shape.dims()[axis]);
        }
        Ok(y.into())
    }

    fn forward(&self, cx: &Cx, x: In, y: &mut [Value]) {
        let walk = self.walk(x[0].shape());
        let (rows, n, s) = (walk.rows, walk.inner.0, walk.inner.1);
        match cx {
            Cx::Cpu(_) => with_element!(x[0].dtype(), T => {
                let (x, y) = (x[0].host::<T>(), y[0].host_mut::<T>());
                walk.each(|at_y, at_x| {
                    let (x, y) = (&x[at_x..], &mut y[at_y..]);
                    if s <= 1 {
                        copy_runs(rows.0, n, x, rows.1, y, n);
                    } else {
                        walk.tiled(|i, j| y[i] = x[j]);
                    }
                });
            }),
            Cx::Cuda(cu) => walk.cuda(cu, &x[0], &mut y[0], false, false),
        }
    }

    fn backward(&self, cx: &Cx, x: In, _: &[Value], dy: &[Option<Tensor>], dx: &mut [Grad]) {
        let Some(g) = &dy[0] else { return };
        let walk = self.walk(x[0].shape());
        let (rows, n, s) = (walk.rows, walk.inner.0, walk.inner.1);
        match cx {
            Cx::Cpu(_) => with_real!(g.dtype(), T => dx[0].write::<T>(|d, acc| {
                let g = g.host::<T>();
                walk.each(|at_y, at_x| {
                    let (d, g) = (&mut d[at_x..], &g[at_y..]);
                    match (s <= 1, acc) {
                        (true, _) => move_runs(rows.0, n, g, n, d, rows.1, acc),
                        (false, true) => walk.tiled(|i, j| d[j] += g[i]),
                        (false, false) => walk.tiled(|i, j| d[j] = g[i]),
                    }
                });
            })),
            Cx::Cuda(cu) => {
                if let Some((d, acc)) = dx[0].parts() {
                    walk.cuda(cu, g, d, acc, true);
                }
            }
        }
    }

    fn sample(g: &mut Gen) -> (Self, Vec<Tensor>) {
        let rank = g.below(MAX_RANK) + 1;
        let mut axes = [0, 1, 2, 3, 4];
        for i in 1..rank {
            axes.swap(i, g.below(i + 1));
        }
        let big = if g.coin() { 20 } else { 3 };
        let shape = g.shape(rank, if rank <= 3 { big } else { 3 });
        (Permute { axes, rank }, vec![g.normal(shape)])
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
    /// The axes in another order: axis k of the result is axis `axes[k]` of this value.
    #[track_caller]
    pub fn permute<const N: usize>(self, axes: [usize; N]) -> Var<'t> {
        assert!(N <= MAX_RANK, "permute: a shape has at most {MAX_RANK} axes, got {axes:?}");
        self.tape().apply(Permute::new(axes), [self])
    }

    /// Axes `a` and `b` swapped.
    #[track_caller]
    pub fn transpose(self, a: usize, b: usize) -> Var<'t> {
        let (shape, mut axes) = (self.shape(), [0, 1, 2, 3, 4]);
        assert!(a < shape.rank() && b < shape.rank(), "transpose: shape {shape} has no axes {a} and {b}");
        axes.swap(a, b);
        self.tape().apply(Permute { axes, rank: shape.rank() }, [self])
    }

    /// Indices `start..start + len` of an axis.
    #[track_caller]
    pub fn narrow(self, axis: usize, start: usize, len: usize) -> Var<'t> {
        self.tape().apply(Narrow { axis, start, len }, [self])
    }

    /// The parts, at least one, one after another along an axis.
    #[track_caller]
    pub fn concat(parts: &[Var<'t>], axis: usize) -> Var<'t> {
        assert!(!parts.is_empty(), "concat: needs one part at least");
        parts[0].tape().apply_dyn(Box::new(Concat { axis }), parts)[0]
    }

    /// Zero where j > i + `diag`, for i and j the indices of the last two axes.
    #[track_caller]
    pub fn tril(self, diag: isize) -> Var<'t> {
        self.tape().apply(Tril { diag }, [self])
    }
}
