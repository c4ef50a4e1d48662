//! Sums, differences, products and quotients of two tensors with broadcasting, and `a x + b` with constants.
//!
//! Shapes are aligned at their innermost axes; an axis of size 1, or a missing one, is repeated. The gradient of a
//! repeated input is summed over its repetitions.

use super::arith_cuda::{self, MODULE, sums};
use crate::{
    args,
    autograd::{Gen, Grad, In, Op, Outs, Value, Var},
    tensor::{Cx, MAX_RANK, Real, Shape, Tensor},
    with_real,
};
use std::ops;

/// x + y
pub struct Add;
/// x − y
pub struct Sub;
/// x y, element by element
pub struct Mul;
/// x / y, element by element
pub struct Div;
/// `mul` x + `add`
pub struct Affine {
    /// Factor.
    pub mul: f64,
    /// Summand.
    pub add: f64,
}

/// The shape that two shapes broadcast to.
fn broadcast(a: Shape, b: Shape) -> Result<Shape, String> {
    let rank = a.rank().max(b.rank());
    let mut dims = [1; MAX_RANK];
    for (i, size) in dims[..rank].iter_mut().enumerate() {
        let at = |s: Shape| (i + s.rank()).checked_sub(rank).map_or(1, |j| s.dims()[j]);
        *size = match (at(a), at(b)) {
            (x, y) if x == y => x,
            (1, y) => y,
            (x, 1) => x,
            _ => return Err(format!("shapes {a} and {b} do not broadcast")),
        };
    }
    Ok(Shape::new(&dims[..rank]))
}

/// How one input is laid out in the output's index space, cut into rows along the output's innermost axis.
pub(super) struct Rows {
    pub outer: Vec<(usize, usize, usize)>, // (size, stride of a, stride of b) of each outer axis
    pub inner: usize,
    pub da: usize, // 1, or 0 where a repeats along the innermost axis
    pub db: usize,
}

impl Rows {
    pub fn new(out: Shape, a: Shape, b: Shape) -> Rows {
        let strides = |s: Shape| {
            let mut strides = [0; MAX_RANK];
            let mut step = 1;
            for (i, &n) in s.dims().iter().enumerate().rev() {
                strides[out.rank() - s.rank() + i] = if n == 1 { 0 } else { step };
                step *= n;
            }
            strides
        };
        let (sa, sb) = (strides(a), strides(b));
        let mut axes: Vec<(usize, usize, usize)> =
            out.dims().iter().enumerate().map(|(i, &n)| (n, sa[i], sb[i])).collect();
        // Merge neighbouring axes that either both advance together or both repeat: rows get longer.
        let mut i = axes.len();
        while i > 1 {
            i -= 1;
            let ((n0, a0, b0), (n1, a1, b1)) = (axes[i - 1], axes[i]);
            if a0 == a1 * n1 && b0 == b1 * n1 {
                axes[i - 1] = (n0 * n1, a1, b1);
                axes.remove(i);
            }
        }
        let (inner, da, db) = axes.pop().unwrap_or((1, 0, 0));
        Rows { outer: axes, inner, da, db }
    }

    /// Calls `f(offset in out, in a, in b)` once a row.
    fn each(&self, mut f: impl FnMut(usize, usize, usize)) {
        let rows: usize = self.outer.iter().map(|x| x.0).product();
        let mut index = [0; MAX_RANK];
        let (mut a, mut b) = (0, 0);
        for row in 0..rows {
            f(row * self.inner, a, b);
            for (i, &(n, sa, sb)) in self.outer.iter().enumerate().rev() {
                index[i] += 1;
                a += sa;
                b += sb;
                if index[i] < n {
                    break;
                }
                a -= sa * n;
                b -= sb * n;
                index[i] = 0;
            }
        }
    }
}

/// The scalar function of a binary op and its two partial derivatives times the cotangent g.
trait Scalar {
    fn f<T: Real>(a: T, b: T) -> T;
    fn da<T: Real>(g: T, a: T, b: T) -> T;
    fn db<T: Real>(g: T, a: T, b: T) -> T;
}

#[multiversion::multiversion(targets("x86_64+avx512f+avx512vl+avx512dq+avx512bw", "x86_64+avx2"))]
fn row_forward<S: Scalar, T: Real>(a: &[T], b: &[T], da: usize, db: usize, y: &mut [T]) {
    match (da, db) {
        (1, 1) => y.iter_mut().zip(a).zip(b).for_each(|((y, &a), &b)| *y = S::f(a, b)),
        (1, _) => y.iter_mut().zip(a).for_each(|(y, &a)| *y = S::f(a, b[0])),
        (_, 1) => y.iter_mut().zip(b).for_each(|(y, &b)| *y = S::f(a[0], b)),
        _ => y.fill(S::f(a[0], b[0])),
    }
}

/// The gradient of one row of the input that `first` says, `a` or `b`: where it does not repeat, overwriting or adding.
#[multiversion::multiversion(targets("x86_64+avx512f+avx512vl+avx512dq+avx512bw", "x86_64+avx2"))]
fn row_whole<S: Scalar, T: Real>(first: bool, acc: bool, g: &[T], a: &[T], b: &[T], da: usize, db: usize, d: &mut [T]) {
    let partial = |g: T, a: T, b: T| if first { S::da(g, a, b) } else { S::db(g, a, b) };
    match (da, db, acc) {
        (1, 1, true) => d.iter_mut().zip(g).zip(a).zip(b).for_each(|(((d, &g), &a), &b)| *d += partial(g, a, b)),
        (1, 1, false) => d.iter_mut().zip(g).zip(a).zip(b).for_each(|(((d, &g), &a), &b)| *d = partial(g, a, b)),
        (1, _, true) => d.iter_mut().zip(g).zip(a).for_each(|((d, &g), &a)| *d += partial(g, a, b[0])),
        (1, _, false) => d.iter_mut().zip(g).zip(a).for_each(|((d, &g), &a)| *d = partial(g, a, b[0])),
        (_, _, true) => d.iter_mut().zip(g).zip(b).for_each(|((d, &g), &b)| *d += partial(g, a[0], b)),
        (_, _, false) => d.iter_mut().zip(g).zip(b).for_each(|((d, &g), &b)| *d = partial(g, a[0], b)),
    }
}

/// The same where the row is one number, repeated: the sum over the row, added.
#[multiversion::multiversion(targets("x86_64+avx512f+avx512vl+avx512dq+avx512bw", "x86_64+avx2"))]
fn row_sum<S: Scalar, T: Real>(first: bool, g: &[T], a: &[T], b: &[T], da: usize, db: usize) -> T {
    let partial = |g: T, a: T, b: T| if first { S::da(g, a, b) } else { S::db(g, a, b) };
    g.iter().enumerate().map(|(i, &g)| partial(g, a[i * da], b[i * db])).sum()
}

fn forward<S: Scalar, T: Real>(x: In, y: &mut Tensor) {
    let rows = Rows::new(y.shape(), x[0].shape(), x[1].shape());
    let (a, b, y) = (x[0].host::<T>(), x[1].host::<T>(), y.host_mut::<T>());
    let n = rows.inner;
    if y.is_empty() {
        return;
    }
    let span = |d: usize| if d == 1 { n } else { 1 };
    rows.each(|i, ia, ib| {
        row_forward::<S, T>(&a[ia..ia + span(rows.da)], &b[ib..ib + span(rows.db)], rows.da, rows.db, &mut y[i..i + n]);
    });
}

fn backward<S: Scalar, T: Real>(x: In, g: &Tensor, dx: &mut [Grad]) {
    let rows = Rows::new(g.shape(), x[0].shape(), x[1].shape());
    let (a, b, g) = (x[0].host::<T>(), x[1].host::<T>(), g.host::<T>());
    let n = rows.inner;
    let span = |d: usize| if d == 1 { n } else { 1 };
    for (which, grad) in dx.iter_mut().enumerate() {
        let first = which == 0;
        grad.write::<T>(|d, acc| {
            // What does not repeat is written once; the rest is summed up from zero.
            let whole = d.len() == g.len();
            if !acc && !whole {
                d.fill(T::ZERO);
            }
            if g.is_empty() {
                return;
            }
            rows.each(|i, ia, ib| {
                let (g, a, b) = (&g[i..i + n], &a[ia..ia + span(rows.da)], &b[ib..ib + span(rows.db)]);
                let (at, step) = if first { (ia, rows.da) } else { (ib, rows.db) };
                if step == 1 {
                    row_whole::<S, T>(first, acc || !whole, g, a, b, rows.da, rows.db, &mut d[at..at + n]);
                } else {
                    let sum = row_sum::<S, T>(first, g, a, b, rows.da, rows.db);
                    d[at] = sum + if acc || !whole { d[at] } else { T::ZERO };
                }
            });
        });
    }
}

macro_rules! binary {
    ($Op:ident, $name:literal, $Trait:ident, $method:ident, f: $f:expr, da: $da:expr, db: $db:expr) => {
        impl Scalar for $Op {
            #[inline(always)]
            fn f<T: Real>(a: T, b: T) -> T {
                let f: fn(T, T) -> T = $f;
                f(a, b)
            }
            #[inline(always)]
            fn da<T: Real>(g: T, a: T, b: T) -> T {
                let f: fn(T, T, T) -> T = $da;
                f(g, a, b)
            }
            #[inline(always)]
            fn db<T: Real>(g: T, a: T, b: T) -> T {
                let f: fn(T, T, T) -> T = $db;
                f(g, a, b)
            }
        }

        impl Op for $Op {
            fn name(&self) -> &'static str {
                $name
            }

            fn infer(&self, x: In) -> Result<Outs, String> {
                if x[0].dtype() != x[1].dtype() {
                    return Err(format!("dtypes {} and {} differ", x[0].dtype(), x[1].dtype()));
                }
                Ok(broadcast(x[0].shape(), x[1].shape())?.into())
            }

            fn forward(&self, cx: &Cx, x: In, y: &mut [Value]) {
                match cx {
                    Cx::Cpu(_) => with_real!(x[0].dtype(), T => forward::<$Op, T>(x, &mut y[0])),
                    Cx::Cuda(cu) => arith_cuda::forward(cu, concat!($name, "_forward"), x, &mut y[0]),
                }
            }

            fn backward(&self, cx: &Cx, x: In, _: &[Value], dy: &[Option<Tensor>], dx: &mut [Grad]) {
                let Some(g) = &dy[0] else { return };
                match cx {
                    Cx::Cpu(_) => with_real!(g.dtype(), T => backward::<$Op, T>(x, g, dx)),
                    Cx::Cuda(cu) => arith_cuda::backward(cu, sums!($name), x, g, dx),
                }
            }

            fn sample(g: &mut Gen) -> (Self, Vec<Tensor>) {
                let full = g.shape(3, 4);
                // Each axis of each input is as long as the output's, or 1, or (at the front) missing.
                let part = |g: &mut Gen| {
                    let dims: Vec<usize> = full.dims().iter().map(|&n| if g.coin() { n } else { 1 }).collect();
                    let skip = g.below(3);
                    let shape = Shape::new(&dims[skip..]);
                    g.tensor(shape, |g| g.uniform(0.5, 2.0) * if g.coin() { 1.0 } else { -1.0 })
                };
                ($Op, vec![part(g), part(g)])
            }
        }

        impl<'t> ops::$Trait for Var<'t> {
            type Output = Var<'t>;
            #[track_caller]
            fn $method(self, other: Var<'t>) -> Var<'t> {
                self.tape().apply($Op, [self, other])
            }
        }
    };
}
binary!(Add, "add", Add, add, f: |a, b| a + b, da: |g, _, _| g, db: |g, _, _| g);
binary!(Sub, "sub", Sub, sub, f: |a, b| a - b, da: |g, _, _| g, db: |g, _, _| -g);
binary!(Mul, "mul", Mul, mul, f: |a, b| a * b, da: |g, _, b| g * b, db: |g, a, _| g * a);
binary!(Div, "div", Div, div, f: |a, b| a / b, da: |g, _, b| g / b, db: |g, a, b| -(g * a) / (b * b));

#[multiversion::multiversion(targets("x86_64+avx512f+avx512vl+avx512dq+avx512bw", "x86_64+avx2"))]
fn affine<T: Real>(mul: T, add: T, x: &[T], y: &mut [T], acc: bool) {
    if acc {
        y.iter_mut().zip(x).for_each(|(y, &x)| *y += mul * x + add);
    } else {
        y.iter_mut().zip(x).for_each(|(y, &x)| *y = mul * x + add);
    }
}

impl Op for Affine {
    fn name(&self) -> &'static str {
        "affine"
    }

    fn infer(&self, x: In) -> Result<Outs, String> {
        Ok(x[0].shape().into())
    }

    fn forward(&self, cx: &Cx, x: In, y: &mut [Value]) {
        match cx {
            Cx::Cpu(_) => with_real!(x[0].dtype(), T => {
                affine(T::of(self.mul), T::of(self.add), x[0].host::<T>(), y[0].host_mut(), false);
            }),
            Cx::Cuda(cu) => {
                let n = x[0].len();
                let args = args![&x[0], &mut y[0], self.mul, self.add, false, n];
                cu.launch(&MODULE, "affine", x[0].dtype(), cu.elements(n), args);
            }
        }
    }

    fn backward(&self, cx: &Cx, _: In, _: &[Value], dy: &[Option<Tensor>], dx: &mut [Grad]) {
        let Some(g) = &dy[0] else { return };
        match cx {
            Cx::Cpu(_) => with_real!(g.dtype(), T => {
                dx[0].write(|d, acc| affine(T::of(self.mul), T::ZERO, g.host::<T>(), d, acc));
            }),
            Cx::Cuda(cu) => {
                if let Some((d, acc)) = dx[0].parts() {
                    let args = args![g, d, self.mul, 0.0, acc, g.len()];
                    cu.launch(&MODULE, "affine", g.dtype(), cu.elements(g.len()), args);
                }
            }
        }
    }

    fn sample(g: &mut Gen) -> (Self, Vec<Tensor>) {
        let shape = g.shape(2, 5);
        (Affine { mul: g.uniform(-2.0, 2.0), add: g.uniform(-2.0, 2.0) }, vec![g.normal(shape)])
    }
}

macro_rules! scalar {
    ($Trait:ident, $method:ident, |$c:ident| right: $right:expr, left: $left:expr) => {
        impl<'t> ops::$Trait<f64> for Var<'t> {
            type Output = Var<'t>;
            #[track_caller]
            fn $method(self, $c: f64) -> Var<'t> {
                let (x, op) = $right(self);
                x.tape().apply(op, [x])
            }
        }
        impl<'t> ops::$Trait<Var<'t>> for f64 {
            type Output = Var<'t>;
            #[track_caller]
            fn $method(self, x: Var<'t>) -> Var<'t> {
                let $c = self;
                let (x, op) = $left(x);
                x.tape().apply(op, [x])
            }
        }
    };
}
scalar!(Add, add, |c| right: |x| (x, Affine { mul: 1.0, add: c }), left: |x| (x, Affine { mul: 1.0, add: c }));
scalar!(Sub, sub, |c| right: |x| (x, Affine { mul: 1.0, add: -c }), left: |x| (x, Affine { mul: -1.0, add: c }));
scalar!(Mul, mul, |c| right: |x| (x, Affine { mul: c, add: 0.0 }), left: |x| (x, Affine { mul: c, add: 0.0 }));

impl<'t> ops::Neg for Var<'t> {
    type Output = Var<'t>;
    #[track_caller]
    fn neg(self) -> Var<'t> {
        -1.0 * self
    }
}
