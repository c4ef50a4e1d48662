//! The kernels of [`SumAxis`], [`MaxAxis`], [`Logsumexp`].

use crate::{
    args,
    autograd::{Grad, In, Kernel, Value, zeroed},
    cuda::Module,
    kernels::{
        arith_cuda::{self, Axis, sums},
        lane_sums,
        math::Math,
    },
    ops::{
        logsumexp::Logsumexp,
        reduce::{MaxAxis, SumAxis},
    },
    tensor::{Cx, Real, Tensor},
    with_real, with_width,
};

static MODULE: Module = Module::new("kernels/reduce.cu", &[include_str!("reduce.cu")]);

impl SumAxis {
    fn scale(&self, n: usize) -> f64 {
        if self.mean && n > 0 { 1.0 / n as f64 } else { 1.0 }
    }
}

/// x [outer, n, inner] -> y [outer, inner]
#[versions::versions]
fn sum_forward<T: Real>(n: usize, inner: usize, scale: T, x: &[T], y: &mut [T]) {
    if n == 0 || y.is_empty() {
        y.fill(T::ZERO);
    } else if inner == 1 {
        with_width!(n => for (y, x) in y.iter_mut().zip(x.chunks_exact(n)) {
            *y = scale * lane_sums::sum(x, |x| x);
        });
    } else {
        for (y, x) in y.chunks_exact_mut(inner).zip(x.chunks_exact(n * inner)) {
            y.copy_from_slice(&x[..inner]);
            for x in x[inner..].chunks_exact(inner) {
                y.iter_mut().zip(x).for_each(|(y, &x)| *y += x);
            }
            y.iter_mut().for_each(|y| *y = scale * *y);
        }
    }
}

/// d [outer, n, inner] (+)= scale g [outer, inner]
#[versions::versions]
fn sum_backward<T: Real>(n: usize, inner: usize, scale: T, g: &[T], d: &mut [T], acc: bool) {
    if d.is_empty() {
    } else if inner == 1 {
        for (&g, d) in g.iter().zip(d.chunks_exact_mut(n)) {
            let g = scale * g;
            if acc {
                d.iter_mut().for_each(|d| *d += g);
            } else {
                d.fill(g);
            }
        }
    } else {
        for (g, d) in g.chunks_exact(inner).zip(d.chunks_exact_mut(n * inner)) {
            for d in d.chunks_exact_mut(inner) {
                if acc {
                    d.iter_mut().zip(g).for_each(|(d, &g)| *d += scale * g);
                } else {
                    d.iter_mut().zip(g).for_each(|(d, &g)| *d = scale * g);
                }
            }
        }
    }
}

impl Kernel for SumAxis {
    fn forward(&self, cx: &Cx, x: In, y: &mut [Value]) {
        let (outer, n, inner) = x[0].shape().split(self.axis);
        match cx {
            Cx::Cpu(_) => with_real!(x[0].dtype(), T => {
                sum_forward(n, inner, T::of(self.scale(n)), x[0].host::<T>(), y[0].host_mut());
            }),
            Cx::Cuda(cu) => {
                // Axes [outer, n, inner] of x, of which y keeps two.
                let axes = [(1, 0, 0), (1, 0, 0), (outer, n * inner, inner), (n, inner, 0), (inner, 1, 1)];
                let axes = axes.map(|(n, x, y)| Axis { n, steps: [x, y, 0] });
                let x = [&x[0]; 3];
                arith_cuda::sum(cu, sums!("sum"), x, (axes, 1), self.scale(n), (&mut y[0], false));
            }
        }
    }

    fn backward(&self, cx: &Cx, x: In, _: &[Value], dy: &[Option<Tensor>], dx: &mut [Grad]) {
        let Some(g) = &dy[0] else { return };
        let (_, n, inner) = x[0].shape().split(self.axis);
        match cx {
            Cx::Cpu(_) => with_real!(g.dtype(), T => if let Some((d, acc)) = dx[0].slot::<[T]>() {
                sum_backward(n, inner, T::of(self.scale(n)), g.host(), d, acc);
            }),
            Cx::Cuda(cu) => {
                if let Some((d, acc)) = dx[0].slot::<Tensor>() {
                    let size = d.len();
                    let args = args![g, d, acc, self.scale(n), size, n, inner];
                    cu.launch(&arith_cuda::MODULE, "repeat", g.dtype(), cu.elements(size), args);
                }
            }
        }
    }
}

/// x [outer, n, inner] -> y [outer, inner]. A NaN anywhere is the result.
#[versions::versions]
fn max_forward<T: Real>(n: usize, inner: usize, x: &[T], y: &mut [T]) {
    y.fill(T::of(f64::NEG_INFINITY));
    if n == 0 || inner == 0 {
        return;
    }
    for (y, x) in y.chunks_exact_mut(inner).zip(x.chunks_exact(n * inner)) {
        for x in x.chunks_exact(inner) {
            y.iter_mut().zip(x).for_each(|(y, &x)| *y = if x <= *y || y.to_f64().is_nan() { *y } else { x });
        }
    }
}

impl Kernel for MaxAxis {
    fn forward(&self, cx: &Cx, x: In, y: &mut [Value]) {
        let (_, n, inner) = x[0].shape().split(self.axis);
        match cx {
            Cx::Cpu(_) => with_real!(x[0].dtype(), T => max_forward(n, inner, x[0].host::<T>(), y[0].host_mut())),
            Cx::Cuda(cu) => {
                let (x, y) = (&x[0], &mut *y[0]);
                let (dtype, size) = (x.dtype(), y.len());
                if inner == 1 {
                    let (launch, lanes) = cu.rows(size, n);
                    cu.launch(&MODULE, "max_rows", dtype, launch, args![x, y, size, n, lanes]);
                } else {
                    cu.launch(&MODULE, "max_columns", dtype, cu.elements(size), args![x, y, size, n, inner]);
                }
            }
        }
    }

    fn backward(&self, cx: &Cx, x: In, y: &[Value], dy: &[Option<Tensor>], dx: &mut [Grad]) {
        let Some(g) = &dy[0] else { return };
        let (outer, n, inner) = x[0].shape().split(self.axis);
        match cx {
            Cx::Cpu(_) => with_real!(g.dtype(), T => if let Some(d) = dx[0].slot::<[T]>().map(zeroed) {
                let (x, y, g) = (x[0].host::<T>(), y[0].host::<T>(), g.host::<T>());
                for at in 0..outer * inner {
                    let start = at / inner * n * inner + at % inner;
                    let mut equal = (0..n).map(|i| start + i * inner).filter(|&i| x[i] == y[at]);
                    let Some(first) = equal.next() else { continue };
                    let mut left = g[at];
                    for i in equal.rev() {
                        left *= T::of(0.5);
                        d[i] += left;
                    }
                    d[first] += left;
                }
            }),
            Cx::Cuda(cu) => {
                let Some((d, acc)) = dx[0].slot::<Tensor>() else { return };
                let (dtype, size) = (g.dtype(), g.len());
                if inner == 1 {
                    let (launch, lanes) = cu.rows(size, n);
                    let args = args![&x[0], &y[0], g, d, acc, size, n, lanes];
                    cu.launch(&MODULE, "max_rows_backward", dtype, launch, args);
                } else {
                    let args = args![&x[0], &y[0], g, d, acc, size, n, inner];
                    cu.launch(&MODULE, "max_columns_backward", dtype, cu.elements(size), args);
                }
            }
        }
    }
}

/// x [rows, n] -> y [rows]
#[versions::versions]
fn logsumexp_forward<T: Math>(n: usize, x: &[T], y: &mut [T]) {
    y.fill(T::of(f64::NEG_INFINITY));
    for (y, x) in y.iter_mut().zip(x.chunks_exact(n.max(1))) {
        let m = lane_sums::max(x);
        *y = m + if m.is_finite() {
            lane_sums::sum(x, |x| (x - m).decay()).ln()
        } else {
            // An infinite sum is the result, unless there is a NaN.
            lane_sums::sum(x, |x| if x.to_f64().is_nan() { x } else { T::ZERO })
        };
    }
}

/// d = g e^(x − y) = g softmax(x)
#[versions::versions]
fn logsumexp_backward<T: Math>(n: usize, x: &[T], y: &[T], g: &[T], d: &mut [T], acc: bool) {
    let rows = d.chunks_exact_mut(n.max(1)).zip(x.chunks_exact(n.max(1)));
    for (((d, x), &y), &g) in rows.zip(y).zip(g) {
        // Without this, −∞ − (−∞) would be NaN.
        let y = if y == T::of(f64::NEG_INFINITY) { T::ZERO } else { y };
        if acc {
            d.iter_mut().zip(x).for_each(|(d, &x)| *d += g * (x - y).decay());
        } else {
            d.iter_mut().zip(x).for_each(|(d, &x)| *d = g * (x - y).decay());
        }
    }
}

impl Kernel for Logsumexp {
    fn forward(&self, cx: &Cx, x: In, y: &mut [Value]) {
        match cx {
            Cx::Cpu(_) => with_real!(x[0].dtype(), T => {
                logsumexp_forward(x[0].shape().last(), x[0].host::<T>(), y[0].host_mut());
            }),
            Cx::Cuda(cu) => {
                let (rows, n) = (y[0].len(), x[0].shape().last());
                let (launch, lanes) = cu.rows(rows, n);
                cu.launch(&MODULE, "logsumexp", x[0].dtype(), launch, args![&x[0], &mut y[0], rows, n, lanes]);
            }
        }
    }

    fn backward(&self, cx: &Cx, x: In, y: &[Value], dy: &[Option<Tensor>], dx: &mut [Grad]) {
        let Some(g) = &dy[0] else { return };
        match cx {
            Cx::Cpu(_) => with_real!(g.dtype(), T => if let Some((d, acc)) = dx[0].slot::<[T]>() {
                logsumexp_backward(x[0].shape().last(), x[0].host(), y[0].host(), g.host(), d, acc);
            }),
            Cx::Cuda(cu) => {
                if let Some((d, acc)) = dx[0].slot::<Tensor>() {
                    let (size, n) = (x[0].len(), x[0].shape().last());
                    let args = args![&x[0], &y[0], g, d, acc, size, n];
                    cu.launch(&MODULE, "logsumexp_backward", g.dtype(), cu.elements(size), args);
                }
            }
        }
    }
}
