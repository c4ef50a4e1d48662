//! The kernel of [`Linear`]: dx = dy w, dw = dyᵀ x, db = Σ dy over the rows. The product adds the bias while it is
//! written, so the bias needs no pass of its own.

use crate::{
    args,
    autograd::{Grad, In, Kernel, Value},
    cuda::{Launch, Module, View},
    kernels::{
        gemm::{Epilogue, Mat, gemm_as},
        lane_sums::columns,
    },
    ops::linear::Linear,
    tensor::{Cpu, Cuda, Cx, Real, Shape, Tensor},
    with_real,
};

/// Rows, inputs and outputs.
type Sizes = (usize, usize, usize);

/// The sizes of the product of x and w.
fn sizes(x: Shape, w: Shape) -> Sizes {
    (x.rows(), w.at(1), w.at(0))
}

/// How many rows of x and y stay in the second-level cache.
fn rows_cached((_, i, o): Sizes) -> usize {
    const CACHED: usize = 1 << 16;
    (CACHED / (i + o).max(1)).max(256)
}

/// y = x wᵀ + b, if there is a third input.
fn forward_cpu<T: Real>(cpu: &Cpu, x: In, y: &mut [T]) {
    let (rows, i, o) = sizes(x[0].shape(), x[1].shape());
    let epilogue = if x.len() > 2 { Epilogue::Bias(x[2].host::<T>()) } else { Epilogue::Set };
    let (a, w) = ((x[0].host(), Mat::new(rows, i, i)), (x[1].host(), Mat::new(o, i, i).t()));
    gemm_as(cpu.products(), epilogue, T::ONE, a, w, (y, Mat::new(rows, o, o)));
}

/// dx, dw and db from g = dy. Some rows at a time, so that g is read from memory once and not three times.
fn backward_cpu<T: Real>(cpu: &Cpu, x: In, g: &[T], d: &mut [Grad]) {
    let sizes = sizes(x[0].shape(), x[1].shape());
    let ((rows, i, o), chunk, products) = (sizes, rows_cached(sizes), cpu.products());
    let (all_x, w, all_g) = (x[0].host::<T>(), x[1].host::<T>(), g);
    let mut targets = d.iter_mut().map(Grad::slot::<[T]>);
    let [mut dx, mut dw, mut db] = std::array::from_fn(|_| targets.next().flatten());
    for start in (0..rows.max(1)).step_by(chunk) {
        let n = chunk.min(rows - start);
        let (x, g) = (&all_x[start * i..][..n * i], &all_g[start * o..][..n * o]);
        let (mx, mw, mg, first) = (Mat::new(n, i, i), Mat::new(o, i, i), Mat::new(n, o, o), start == 0);
        if let Some((d, acc)) = &mut dx {
            gemm_as(products, Epilogue::of(*acc), T::ONE, (g, mg), (w, mw), (&mut d[start * i..][..n * i], mx));
        }
        if let Some((d, acc)) = &mut dw {
            gemm_as(products, Epilogue::of(*acc || !first), T::ONE, (g, mg.t()), (x, mx), (d, mw));
        }
        if let Some((d, acc)) = &mut db {
            if first && !*acc {
                d.fill(T::ZERO);
            }
            columns(g, d);
        }
    }
}

static MODULE: Module = Module::new("kernels/linear.cu", &[include_str!("linear.cu")]);

/// d (+)= the sums of the columns of g [rows, len of d], in an order that sizes alone decide: many rows by sums over
/// chunks of 256 or more, and the sum of those.
pub(super) fn column_sums_cuda(cu: &Cuda, g: &Tensor, rows: usize, d: &mut Tensor, acc: bool) {
    let (dtype, cols) = (g.dtype(), d.len());
    if rows <= 1024 && dtype == dtype.real() {
        return total_cuda(cu, g, rows, d, acc);
    }
    let chunk = rows.div_ceil(64).max(256);
    let chunks = rows.div_ceil(chunk);
    let mut sums = cu.temp(dtype.real(), chunks * cols);
    let launch = Launch::grid([cols.div_ceil(32), chunks, 1], [32, 8, 1]);
    cu.launch(&MODULE, "column_sums_partial", dtype, launch, args![g, &mut sums, rows, cols, chunk]);
    total_cuda(cu, &sums, chunks, d, acc);
}

/// Every row of y becomes the bias.
pub(super) fn bias_rows_cuda(cu: &Cuda, b: &Tensor, y: &mut Tensor) {
    let (n, o) = (y.len(), b.len());
    cu.launch(&MODULE, "bias_rows", y.dtype(), cu.elements(n), args![b, y, n / o.max(1), o]);
}

/// The last pass of a sum in a fixed order: the rows of `sums` [rows, len of d], which is in d's `real`, added up.
pub(super) fn total_cuda(cu: &Cuda, sums: &Tensor, rows: usize, d: &mut Tensor, acc: bool) {
    let cols = d.len();
    // The more columns, the fewer threads to one: 2^18 threads fill a device. No thread adds up many rows alone.
    let threads = ((1 << 18) / cols.max(1)).max(rows / 128).max(1);
    let high = rows.min(32).min(threads).next_power_of_two();
    let launch = Launch::grid([cols.div_ceil(32), 1, 1], [32, high, 1]);
    cu.launch(&MODULE, "column_sums_total", d.dtype(), launch, args![sums, d, rows, cols, acc]);
}

/// [`forward_cpu`] on a device.
fn forward_cuda(cu: &Cuda, x: In, y: &mut Tensor) {
    let (rows, i, o) = sizes(x[0].shape(), x[1].shape());
    let (a, w) = (View::new(&x[0], Mat::new(rows, i, i)), View::new(&x[1], Mat::new(o, i, i).t()));
    let bias = x.len() > 2;
    if bias {
        bias_rows_cuda(cu, &x[2], y);
    }
    cu.gemm(1.0, a, w, View::out(y, Mat::new(rows, o, o)), bias, 1);
}

/// dx, dw and db from g = dy.
fn backward_cuda(cu: &Cuda, x: In, g: &Tensor, dx: &mut [Grad]) {
    let (rows, i, o) = sizes(x[0].shape(), x[1].shape());
    let (mx, mw, mg) = (Mat::new(rows, i, i), Mat::new(o, i, i), Mat::new(rows, o, o));
    let dtype = x[0].dtype();
    let rounded = (g.dtype() != dtype).then(|| {
        let mut rounded = cu.temp(dtype, g.len());
        cu.gpu().convert(g, &mut rounded, false);
        rounded
    });
    let gv = View::new(rounded.as_deref().unwrap_or(g), mg);
    let (x, w) = (View::new(&x[0], mx), View::new(&x[1], mw));
    if let Some((d, acc)) = dx[0].slot::<Tensor>() {
        cu.gemm(1.0, gv, w, View::out(d, mx), acc, 1);
    }
    if let Some((d, acc)) = dx[1].slot::<Tensor>() {
        cu.gemm(1.0, gv.t(), x, View::out(d, mw), acc, 1);
    }
    if let Some((d, acc)) = dx.get_mut(2).and_then(Grad::slot::<Tensor>) {
        column_sums_cuda(cu, g, rows, d, acc);
    }
}

impl Kernel for Linear {
    fn forward(&self, cx: &Cx, x: In, y: &mut [Value]) {
        match cx {
            Cx::Cpu(cpu) => with_real!(x[0].dtype(), T => forward_cpu::<T>(cpu, x, y[0].host_mut())),
            Cx::Cuda(cu) => forward_cuda(cu, x, &mut y[0]),
        }
    }

    fn backward(&self, cx: &Cx, x: In, _: &[Value], dy: &[Option<Tensor>], dx: &mut [Grad]) {
        let Some(g) = &dy[0] else { return };
        match cx {
            Cx::Cpu(cpu) => with_real!(g.dtype(), T => backward_cpu::<T>(cpu, x, g.host(), dx)),
            Cx::Cuda(cu) => backward_cuda(cu, x, g, dx),
        }
    }
}
