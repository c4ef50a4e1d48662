//! The kernel of [`Linear`]: dx = dy w, dw = dyᵀ x, db = Σ dy over the rows. The product adds the bias as it is written, which so costs
//! no pass of its own.

use crate::{
    args,
    autograd::{Grad, In, Kernel, Value},
    cuda::{Cuda, Launch, Module, View},
    kernels::{
        gemm::{Epilogue, Mat, gemm_as},
        lane_sums::columns,
    },
    ops::linear::Linear,
    tensor::{Cpu, Cx, Real, Shape, Tensor},
    with_real,
};

/// Rows, inputs and outputs.
pub(super) type Sizes = (usize, usize, usize);

/// The sizes of the product of x and w.
pub(super) fn sizes(x: Shape, w: Shape) -> Sizes {
    (x.rows(), w.at(1), w.at(0))
}

/// How many rows of x and y stay in the second-level cache.
fn rows_cached((_, i, o): Sizes) -> usize {
    const CACHED: usize = 1 << 16;
    (CACHED / (i + o).max(1)).max(256)
}

/// y = x wᵀ + b, if there is a third input.
pub(super) fn forward_cpu<T: Real>(cpu: &Cpu, x: In, y: &mut [T]) {
    let (rows, i, o) = sizes(x[0].shape(), x[1].shape());
    let epilogue = if x.len() > 2 { Epilogue::Bias(x[2].host::<T>()) } else { Epilogue::Set };
    let (a, w) = ((x[0].host(), Mat::new(rows, i, i)), (x[1].host(), Mat::new(o, i, i).t()));
    gemm_as(cpu.products(), epilogue, T::ONE, a, w, (y, Mat::new(rows, o, o)));
}

/// What the backward pass reads: x, w and g [rows, O]. With a slope [rows, P, O / P], g is [rows, O / P] and multiplied by
/// each of its P parts first.
pub(super) struct Seen<'a, T> {
    pub x: &'a [T],
    pub w: &'a [T],
    pub g: &'a [T],
    pub slope: Option<&'a [T]>,
}

/// y = a ⊙ slope for rows of n numbers of a; where the slope is longer, a row of it has several parts, each times that of a.
#[versions::versions]
fn multiply<T: Real>(n: usize, a: &[T], slope: &[T], y: &mut [T]) {
    if a.len() == slope.len() {
        return y.iter_mut().zip(a).zip(slope).for_each(|((y, &a), &b)| *y = a * b);
    }
    let row = n * (slope.len() / a.len());
    for ((y, slope), a) in y.chunks_exact_mut(row).zip(slope.chunks_exact(row)).zip(a.chunks_exact(n)) {
        for (y, slope) in y.chunks_exact_mut(n).zip(slope.chunks_exact(n)) {
            y.iter_mut().zip(a).zip(slope).for_each(|((y, &a), &b)| *y = a * b);
        }
    }
}

/// Where dx, dw and db go, as far as they are wanted: each with whether it is added to.
pub(super) type Targets<'a, T> = [Option<(&'a mut [T], bool)>; 3];

/// dx, dw and db. Some rows at a time, so that g is read from memory once and not three times.
pub(super) fn backward_cpu<T: Real>(cpu: &Cpu, sizes: Sizes, seen: Seen<T>, [mut dx, mut dw, mut db]: Targets<T>) {
    let ((rows, i, o), chunk, products) = (sizes, rows_cached(sizes), cpu.products());
    let width = seen.g.len() / rows.max(1);
    let mut scaled = cpu.temp::<T>(seen.slope.map_or(0, |_| chunk.min(rows) * o));
    for start in (0..rows.max(1)).step_by(chunk) {
        let n = chunk.min(rows - start);
        let (x, mut g) = (&seen.x[start * i..][..n * i], &seen.g[start * width..][..n * width]);
        if let Some(slope) = seen.slope {
            let scaled = &mut scaled[..n * o];
            multiply(width, g, &slope[start * o..][..n * o], scaled);
            g = scaled;
        }
        let (mx, mw, mg, first) = (Mat::new(n, i, i), Mat::new(o, i, i), Mat::new(n, o, o), start == 0);
        if let Some((d, acc)) = &mut dx {
            gemm_as(products, Epilogue::of(*acc), T::ONE, (g, mg), (seen.w, mw), (&mut d[start * i..][..n * i], mx));
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

/// The gradients that are wanted, for [`backward_cpu`].
pub(super) fn targets<T: Real>(dx: &mut [Grad]) -> Targets<'_, T> {
    let mut d = dx.iter_mut().map(Grad::slot::<[T]>);
    std::array::from_fn(|_| d.next().flatten())
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
    let launch = Launch::grid([cols.div_ceil(32), 1, 1], [32, rows.next_power_of_two().min(32), 1]);
    cu.launch(&MODULE, "column_sums_total", d.dtype(), launch, args![sums, d, rows, cols, acc]);
}

/// [`forward_cpu`] on a device.
pub(super) fn forward_cuda(cu: &Cuda, x: In, y: &mut Tensor) {
    let (rows, i, o) = sizes(x[0].shape(), x[1].shape());
    let (a, w) = (View::new(&x[0], Mat::new(rows, i, i)), View::new(&x[1], Mat::new(o, i, i).t()));
    let bias = x.len() > 2;
    if bias {
        bias_rows_cuda(cu, &x[2], y);
    }
    cu.gemm(1.0, a, w, View::out(y, Mat::new(rows, o, o)), bias, 1);
}

/// dx, dw and db from g = dy.
pub(super) fn backward_cuda(cu: &Cuda, x: In, g: &Tensor, dx: &mut [Grad]) {
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
            Cx::Cpu(cpu) => with_real!(g.dtype(), T => {
                let seen = Seen { x: x[0].host(), w: x[1].host(), g: g.host(), slope: None };
                backward_cpu::<T>(cpu, sizes(x[0].shape(), x[1].shape()), seen, targets(dx));
            }),
            Cx::Cuda(cu) => backward_cuda(cu, x, g, dx),
        }
    }
}
