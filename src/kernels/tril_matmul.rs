//! The kernel of [`TrilMatmul`].

use crate::{
    args,
    autograd::{Grad, In, Kernel, Value},
    cuda::{Module, View},
    kernels::{
        gemm::{Epilogue, Products, gemm_as},
        matmul::Mat,
    },
    ops::{movement::Tril, tril_matmul::TrilMatmul},
    tensor::{Cpu, Cuda, Cx, Real, Shape, Tensor},
    with_real,
};
use std::ops::Range;

static MODULE: Module = Module::new("kernels/tril_matmul.cu", &[include_str!("tril_matmul.cu")]);

/// Neither NaN nor so large that it would be infinite when rounded to bf16.
#[inline(always)]
fn ordinary<T: Real>(x: T) -> bool {
    (x + x) * T::ZERO == T::ZERO
}

/// Whether all are finite, and none so large that bf16 would round it to infinity.
#[versions::versions]
pub fn all_finite<T: Real>(x: &[T]) -> bool {
    x.chunks(64).all(|x| x.iter().fold(true, |all, &x| all & ordinary(x)))
}

/// y (+)= a b for a triangular `a` that holds zeros where row i does not see column j, i.e. outside of `sees(j)`;
/// neither b nor y has gaps. Row j of b reaches only the rows that see it, even if it is NaN.
pub fn masked_gemm<T: Real>(
    cpu: &Cpu,
    products: Products,
    (a, ma): (&[T], Mat),
    (b, mb): (&[T], Mat),
    (y, my): (&mut [T], Mat),
    acc: bool,
    sees: impl Fn(usize) -> Range<usize>,
) {
    let size = mb.rows * mb.cols;
    if all_finite(&b[..size]) {
        return gemm_as(products, Epilogue::of(acc), T::ONE, (a, ma), (b, mb), (y, my));
    }
    let mut rest = cpu.temp::<T>(size);
    rest.iter_mut().zip(b).for_each(|(y, &x)| *y = if ordinary(x) { x } else { T::ZERO });
    gemm_as(products, Epilogue::of(acc), T::ONE, (a, ma), (&rest, mb), (&mut *y, my));
    for (at, &x) in b[..size].iter().enumerate().filter(|(_, x)| !ordinary(**x)) {
        let (j, column) = (at / mb.cols, at % mb.cols);
        for i in sees(j) {
            y[i * my.rs + column] += a[i * ma.rs + j * ma.cs] * x;
        }
    }
}

/// The same for a square `a` [n, n] with zeros above the diagonal and b, y [n, cols].
pub fn lower_gemm<T: Real>(cpu: &Cpu, n: usize, cols: usize, a: &[T], b: &[T], y: &mut [T], acc: bool) {
    let (m, full) = (Mat::new(n, cols, cols), Mat::new(n, n, n));
    masked_gemm(cpu, Products::F32, (a, full), (b, m), (y, m), acc, |j| j..n);
}

/// Sizes of one product, and how many there are.
#[derive(Clone, Copy)]
struct Plan {
    batch: usize,
    a: Mat,
    b: Mat,
    y: Mat,
    past: usize,
}

impl Plan {
    fn of(op: &TrilMatmul, a: Shape, b: Shape) -> Plan {
        let [rows, cols, width] = [a.at(-2), a.at(-1), b.at(-1)];
        let batch = Shape::new(&a.dims()[..a.rank() - 2]).len();
        let (a, b, y) = (Mat::new(rows, cols, cols), Mat::new(cols, width, width), Mat::new(rows, width, width));
        Plan { batch, a, b, y, past: op.past }
    }

    /// The numbers of one a, b and y.
    fn sizes(&self) -> [usize; 3] {
        [self.a, self.b, self.y].map(|m| m.rows * m.cols)
    }

    /// The rows that see column j.
    fn rows_of(&self, j: usize) -> Range<usize> {
        j.saturating_sub(self.past).min(self.a.rows)..self.a.rows
    }

    /// How many columns row i sees.
    fn seen(&self, i: usize) -> usize {
        (i + 1).saturating_add(self.past).min(self.a.cols)
    }

    /// y (+)= x where it is seen, else 0.
    fn mask<T: Real>(&self, x: &[T], y: &mut [T], acc: bool) {
        let cols = self.a.cols.max(1);
        for (i, (x, y)) in x.chunks_exact(cols).zip(y.chunks_exact_mut(cols)).enumerate().take(self.a.rows) {
            let (y, hidden) = y.split_at_mut(self.seen(i));
            if acc {
                y.iter_mut().zip(x).for_each(|(y, &x)| *y += x);
            } else {
                y.copy_from_slice(&x[..y.len()]);
                hidden.fill(T::ZERO);
            }
        }
    }

    /// y (+)= a b on the device, or aᵀ b with `back`. Entries of b that are not finite are left out, and added
    /// afterwards.
    fn cuda(&self, cu: &Cuda, a: &Tensor, b: &Tensor, y: &mut Tensor, acc: bool, back: bool) {
        let ([na, nb, ny], dtype) = (self.sizes(), a.dtype());
        let (mut shown, mut rest) = (cu.temp(dtype, a.len()), cu.temp(dtype, b.len()));
        Tril { diag: self.past as isize }.cuda(cu, a, &mut shown, false);
        cu.launch(&MODULE, "finite_part", dtype, cu.elements(b.len()), args![b, &mut rest, b.len()]);
        let all = View::new(&shown, self.a).every(na);
        let (from, to) = if back { ((self.y, ny), (self.b, nb)) } else { ((self.b, nb), (self.y, ny)) };
        let (rest, y_view) = (View::new(&rest, from.0).every(from.1), View::out(y, to.0).every(to.1));
        cu.gemm(1.0, if back { all.t() } else { all }, rest, y_view, acc, self.batch);
        let (columns, width) = (self.batch * from.0.cols, from.0.cols);
        let args = args![&shown, b, y, columns, width, self.a.rows, self.a.cols, self.past.min(self.a.cols), back];
        cu.launch(&MODULE, "add_not_finite", dtype, cu.elements(columns), args);
    }
}

impl Kernel for TrilMatmul {
    fn forward(&self, cx: &Cx, x: In, y: &mut [Value]) {
        let p = Plan::of(self, x[0].shape(), x[1].shape());
        let [na, nb, ny] = p.sizes();
        match cx {
            Cx::Cpu(cpu) => with_real!(x[0].dtype(), T => {
                let (a, b, y) = (x[0].host::<T>(), x[1].host::<T>(), y[0].host_mut::<T>());
                let mut shown = cpu.temp::<T>(na);
                for i in 0..p.batch {
                    p.mask(&a[i * na..], &mut shown, false);
                    let y = (&mut y[i * ny..], p.y);
                    masked_gemm(cpu, cpu.products(), (&shown, p.a), (&b[i * nb..], p.b), y, false, |j| p.rows_of(j));
                }
            }),
            Cx::Cuda(cu) => p.cuda(cu, &x[0], &x[1], &mut y[0], false, false),
        }
    }

    fn backward(&self, cx: &Cx, x: In, _: &[Value], dy: &[Option<Tensor>], dx: &mut [Grad]) {
        let Some(g) = &dy[0] else { return };
        let p = Plan::of(self, x[0].shape(), x[1].shape());
        let [na, nb, ny] = p.sizes();
        match cx {
            Cx::Cpu(cpu) => with_real!(g.dtype(), T => {
                let (a, b, g) = (x[0].host::<T>(), x[1].host::<T>(), g.host::<T>());
                let mut temp = cpu.temp::<T>(na);
                if let Some((d, acc)) = dx[0].slot::<[T]>() {
                    for i in 0..p.batch {
                        let (g, b) = ((&g[i * ny..], p.y), (&b[i * nb..], p.b.t()));
                        gemm_as(cpu.products(), Epilogue::Set, T::ONE, g, b, (&mut temp, p.a));
                        p.mask(&temp, &mut d[i * na..], acc);
                    }
                }
                if let Some((d, acc)) = dx[1].slot::<[T]>() {
                    for i in 0..p.batch {
                        p.mask(&a[i * na..], &mut temp, false);
                        let (g, d) = ((&g[i * ny..], p.y), (&mut d[i * nb..], p.b));
                        masked_gemm(cpu, cpu.products(), (&temp, p.a.t()), g, d, acc, |i| 0..p.seen(i));
                    }
                }
            }),
            Cx::Cuda(cu) => {
                if let Some((d, acc)) = dx[0].slot::<Tensor>() {
                    let mut temp = cu.temp(g.dtype(), d.len());
                    let (g, b) = (View::new(g, p.y).every(ny), View::new(&x[1], p.b).every(nb).t());
                    cu.gemm(1.0, g, b, View::out(&mut temp, p.a).every(na), false, p.batch);
                    let mask = Tril { diag: self.past as isize };
                    mask.cuda(cu, &temp.reshape(x[0].shape()), d, acc);
                }
                if let Some((d, acc)) = dx[1].slot::<Tensor>() {
                    p.cuda(cu, &x[0], g, d, acc, true);
                }
            }
        }
    }
}
