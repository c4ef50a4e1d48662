//! The kernel of [`UnitLowerSolve`].

use crate::{
    args,
    autograd::{Grad, In, Kernel, Value, zeroed},
    cuda::{Launch, Module, View},
    kernels::{
        heads::zero_above_diagonal,
        matmul::{Mat, gemm},
        rows::add,
    },
    ops::triangular::UnitLowerSolve,
    tensor::{Cpu, Cx, Real, Tensor},
    with_real,
};

static MODULE: Module = Module::new("kernels/triangular.cu", &[include_str!("triangular.cu")]);

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

/// Sizes of a system, and how many there are.
#[derive(Clone, Copy)]
struct Plan {
    systems: usize,
    n: usize,
    cols: usize,
}

impl Plan {
    fn of(x: In) -> Plan {
        let (l, r) = (x[0].shape(), x[1].shape());
        Plan { systems: l.dims()[..l.rank() - 2].iter().product(), n: l.at(-1), cols: r.at(-1) }
    }

    /// The numbers of one L, and of one R.
    fn sizes(self) -> [usize; 2] {
        [self.n * self.n, self.n * self.cols]
    }

    fn forward<T: Real>(self, l: &[T], r: &[T], x: &mut [T]) {
        let ([nl, nr], Plan { n, cols, .. }) = (self.sizes(), self);
        x.copy_from_slice(r);
        (0..self.systems).for_each(|i| solve_lower(&l[i * nl..], &mut x[i * nr..(i + 1) * nr], n, cols));
    }

    fn backward<T: Real>(self, cpu: &Cpu, [l, x, g]: [&[T]; 3], dl: &mut Grad, dr: &mut Grad) {
        let ([nl, nr], Plan { n, cols, .. }) = (self.sizes(), self);
        let (mut solved, mut product) = (cpu.temp::<T>(nr), cpu.temp::<T>(nl));
        let (m, full) = (Mat::new(n, cols, cols), Mat::new(n, n, n));
        let mut dl = dl.slot::<[T]>().map(zeroed);
        let mut dr = dr.slot::<[T]>().map(zeroed);
        for i in 0..self.systems {
            let at = i * nr..(i + 1) * nr;
            solved.copy_from_slice(&g[at.clone()]);
            solve_lower_transposed(&l[i * nl..], &mut solved, n, cols);
            if let Some(dl) = &mut dl {
                gemm(-T::ONE, (&solved, m), (&x[at.clone()], m.t()), (&mut product, full), false);
                zero_above_diagonal(&mut product, n, true);
                add(&mut dl[i * nl..(i + 1) * nl], &product);
            }
            if let Some(dr) = &mut dr {
                add(&mut dr[at], &solved);
            }
        }
    }
}

impl Kernel for UnitLowerSolve {
    fn forward(&self, cx: &Cx, x: In, y: &mut [Value]) {
        let p = Plan::of(x);
        match cx {
            Cx::Cpu(_) => with_real!(x[0].dtype(), T => p.forward(x[0].host::<T>(), x[1].host(), y[0].host_mut())),
            Cx::Cuda(cu) => {
                let (dtype, blocks) = (x[0].dtype(), p.systems * p.cols.div_ceil(32));
                let mut room = cu.temp(dtype.real(), x[1].len());
                let args = args![&x[0], &x[1], &mut room, &mut y[0], None::<&Tensor>, false, p.n, p.cols, false];
                cu.launch(&MODULE, "unit_lower_solve", dtype, Launch::blocks(blocks, 32), args);
            }
        }
    }

    fn backward(&self, cx: &Cx, x: In, y: &[Value], dy: &[Option<Tensor>], dx: &mut [Grad]) {
        let (Some(g), [dl, dr]) = (&dy[0], dx) else { return };
        let p = Plan::of(x);
        match cx {
            Cx::Cpu(cpu) => with_real!(g.dtype(), T => {
                p.backward::<T>(cpu, [x[0].host(), y[0].host(), g.host()], dl, dr);
            }),
            Cx::Cuda(cu) => {
                let (dtype, blocks, [nl, nr]) = (g.dtype(), p.systems * p.cols.div_ceil(32), p.sizes());
                let (mut room, mut solved) = (cu.temp(dtype.real(), g.len()), cu.temp(dtype, g.len()));
                let (dr, acc) = dr.target();
                let args = args![&x[0], g, &mut room, &mut solved, dr, acc, p.n, p.cols, true];
                cu.launch(&MODULE, "unit_lower_solve", dtype, Launch::blocks(blocks, 32), args);
                let Some((dl, acc)) = dl.slot::<Tensor>() else { return };
                let (m, full, size) = (Mat::new(p.n, p.cols, p.cols), Mat::new(p.n, p.n, p.n), dl.len());
                let mut product = cu.temp(dtype, size);
                let (a, b) = (View::new(&solved, m).every(nr), View::new(&y[0], m).t().every(nr));
                cu.gemm(1.0, a, b, View::out(&mut product, full).every(nl), false, p.systems);
                cu.launch(&MODULE, "minus_stril", dtype, cu.elements(size), args![&product, dl, acc, size, p.n]);
            }
        }
    }
}
