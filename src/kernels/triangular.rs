//! The kernel of [`UnitLowerInverse`].

use crate::{
    args,
    autograd::{Grad, In, Kernel, Value},
    cuda::{Launch, Module, View},
    kernels::{
        heads::lower,
        matmul::{Mat, gemm},
    },
    ops::triangular::UnitLowerInverse,
    tensor::{Cpu, Cx, Real, Tensor},
    with_real,
};

static MODULE: Module = Module::new("kernels/triangular.cu", &[include_str!("triangular.cu")]);

/// How much shared memory an inverse may take; larger ones lie in global memory.
const SHARED: usize = 96 << 10;

/// y −= a x
#[inline(always)]
fn axpy<T: Real>(a: T, x: &[T], y: &mut [T]) {
    y.iter_mut().zip(x).for_each(|(y, &x)| *y -= a * x);
}

/// X ← (I + L)⁻¹ X for X [n, cols]: row by row, x_i −= Σ_{j<i} L_ij x_j.
#[versions::versions]
pub fn solve_lower<T: Real>(l: &[T], x: &mut [T], n: usize, cols: usize) {
    for i in 1..n {
        let (done, rest) = x.split_at_mut(i * cols);
        let row = &mut rest[..cols];
        for (j, &a) in l[i * n..i * n + i].iter().enumerate() {
            axpy(a, &done[j * cols..(j + 1) * cols], row);
        }
    }
}

/// X ← (I + L)⁻ᵀ X for X [n, cols]: from the last row up, x_j −= Σ_{i>j} L_ij x_i.
#[versions::versions]
pub fn solve_lower_transposed<T: Real>(l: &[T], x: &mut [T], n: usize, cols: usize) {
    for i in (1..n).rev() {
        let (rest, done) = x.split_at_mut(i * cols);
        let row = &done[..cols];
        for (j, &a) in l[i * n..i * n + i].iter().enumerate() {
            axpy(a, row, &mut rest[j * cols..(j + 1) * cols]);
        }
    }
}

fn forward<T: Real>(l: &[T], y: &mut [T], n: usize) {
    for (l, y) in l.chunks_exact((n * n).max(1)).zip(y.chunks_exact_mut((n * n).max(1))) {
        y.fill(T::ZERO);
        (0..n).for_each(|i| y[i * n + i] = T::ONE);
        solve_lower(l, y, n, n);
    }
}

fn backward<T: Real>(cpu: &Cpu, y: &[T], g: &[T], d: &mut [T], n: usize) {
    let m = Mat::new(n, n, n);
    let (mut gt, mut dl) = (cpu.temp::<T>(n * n), cpu.temp::<T>(n * n));
    let size = (n * n).max(1);
    for ((y, g), d) in y.chunks_exact(size).zip(g.chunks_exact(size)).zip(d.chunks_exact_mut(size)) {
        gemm(T::ONE, (g, m), (y, m.t()), (&mut gt, m), false);
        gemm(-T::ONE, (y, m.t()), (&gt, m), (&mut dl, m), false);
        lower(&mut dl, n, true);
        d.iter_mut().zip(dl.iter()).for_each(|(d, &x)| *d += x);
    }
}

impl Kernel for UnitLowerInverse {
    fn forward(&self, cx: &Cx, x: In, y: &mut [Value]) {
        match cx {
            Cx::Cpu(_) => with_real!(x[0].dtype(), T => {
                forward(x[0].host::<T>(), y[0].host_mut(), x[0].shape().last());
            }),
            Cx::Cuda(cu) => {
                let (n, dtype) = (x[0].shape().last(), x[0].dtype());
                let matrices = x[0].len() / (n * n).max(1);
                let bytes = n * n * dtype.real().bytes();
                let mut memory = (bytes > SHARED).then(|| cu.temp(dtype.real(), matrices * n * n));
                let launch = Launch::blocks(matrices, n.next_multiple_of(32).clamp(32, 256));
                let launch = launch.shared(if bytes > SHARED { 0 } else { bytes });
                let args = args![&x[0], &mut y[0], memory.as_deref_mut(), n];
                cu.launch(&MODULE, "unit_lower_inverse", dtype, launch, args);
            }
        }
    }

    fn backward(&self, cx: &Cx, x: In, y: &[Value], dy: &[Option<Tensor>], dx: &mut [Grad]) {
        let Some(g) = &dy[0] else { return };
        match cx {
            Cx::Cpu(cpu) => with_real!(g.dtype(), T => {
                dx[0].add(|d| backward::<T>(cpu, y[0].host(), g.host(), d, x[0].shape().last()));
            }),
            Cx::Cuda(cu) => {
                let Some((d, acc)) = dx[0].parts() else { return };
                let (n, size, dtype) = (x[0].shape().last(), d.len(), g.dtype());
                let (batch, mat, step) = (size / (n * n).max(1), Mat::new(n, n, n), n * n);
                let (mut gt, mut dl) = (cu.temp(dtype, size), cu.temp(dtype, size));
                let t = View::new(&y[0], mat).t().every(step);
                cu.gemm(1.0, View::new(g, mat).every(step), t, View::out(&mut gt, mat).every(step), false, batch);
                cu.gemm(1.0, t, View::new(&gt, mat).every(step), View::out(&mut dl, mat).every(step), false, batch);
                cu.launch(&MODULE, "minus_stril", dtype, cu.elements(size), args![&dl, d, acc, size, n]);
            }
        }
    }
}
