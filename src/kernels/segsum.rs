//! The kernel of [`Segsum`].

use crate::{
    args,
    autograd::{Grad, In, Kernel, Value},
    cuda::Module,
    kernels::lane_sums,
    ops::segsum::Segsum,
    tensor::{Cuda, Cx, Real, Tensor},
    with_real,
};

static MODULE: Module = Module::new("kernels/segsum.cu", &[include_str!("segsum.cu")]);

/// `sums` [T] holds the sums of the columns so far. They are doubles: equal gates are rounded alike, and thousands of
/// roundings in one direction cost digits.
#[versions::versions]
fn forward<T: Real>(n: usize, x: &[T], y: &mut [T], above: T, sums: &mut [f64]) {
    for (x, y) in x.chunks_exact(n).zip(y.chunks_exact_mut(n * n)) {
        for (t, (x, row)) in x.iter().zip(y.chunks_exact_mut(n)).enumerate() {
            let x = x.to_f64();
            for (y, sum) in row.iter_mut().zip(&mut sums[..t]) {
                *sum += x;
                *y = T::of(*sum);
            }
            (row[t], sums[t]) = (T::ZERO, 0.0);
            row[t + 1..].fill(above);
        }
    }
}

/// Writes or adds dx, from dy [.., T, T], whose entries above the diagonal are not read. `sums` [T] holds Σ dy_ts over
/// the rows so far, for each column.
#[versions::versions]
pub fn backward<T: Real>(n: usize, g: &[T], d: &mut [T], acc: bool, sums: &mut [T]) {
    for (g, d) in g.chunks_exact(n * n).zip(d.chunks_exact_mut(n)) {
        sums[..n].fill(T::ZERO);
        for (t, (g, d)) in g.chunks_exact(n).zip(d).enumerate().rev() {
            let sums = &mut sums[..t];
            sums.iter_mut().zip(g).for_each(|(sum, &g)| *sum += g);
            let sum = lane_sums::sum(sums, |x| x);
            *d = if acc { *d + sum } else { sum };
        }
    }
}

/// Sums along the columns from below, then along the rows left of the diagonal.
fn backward_cuda(cu: &Cuda, g: &Tensor, d: &mut Tensor, acc: bool, n: usize) {
    let (rows, dtype) = (d.len(), d.dtype());
    let mut sums = cu.temp(dtype.real(), g.len());
    cu.launch(&MODULE, "sums_from_below", dtype, cu.elements(rows), args![g, &mut sums, rows, n]);
    cu.launch(&MODULE, "sums_left", dtype, cu.elements(32 * rows), args![&sums, d, acc, rows, n]);
}

impl Kernel for Segsum {
    fn forward(&self, cx: &Cx, x: In, y: &mut [Value]) {
        let n = x[0].shape().last();
        if x[0].is_empty() {
            return;
        }
        match cx {
            Cx::Cpu(cpu) => with_real!(x[0].dtype(), T => {
                let sums = &mut cpu.temp::<f64>(n);
                forward(n, x[0].host::<T>(), y[0].host_mut(), T::of(self.above), sums);
            }),
            Cx::Cuda(cu) => {
                let columns = x[0].len();
                let args = args![&x[0], &mut y[0], self.above, columns, n];
                cu.launch(&MODULE, "segsum", x[0].dtype(), cu.elements(columns), args);
            }
        }
    }

    fn backward(&self, cx: &Cx, x: In, _: &[Value], dy: &[Option<Tensor>], dx: &mut [Grad]) {
        let Some(g) = &dy[0] else { return };
        let n = x[0].shape().last();
        if x[0].is_empty() {
            return;
        }
        match cx {
            Cx::Cpu(cpu) => with_real!(g.dtype(), T => {
                if let Some((d, acc)) = dx[0].slot::<[T]>() {
                    backward(n, g.host(), d, acc, &mut cpu.temp::<T>(n));
                }
            }),
            Cx::Cuda(cu) => {
                if let Some((d, acc)) = dx[0].slot::<Tensor>() {
                    backward_cuda(cu, g, d, acc, n);
                }
            }
        }
    }
}
