//! The kernel of [`Matmul`].

use crate::{
    autograd::{Grad, In, Kernel, Value, zeroed},
    cuda::View,
    kernels::gemm::{Epilogue, gemm_as},
    ops::matmul::Matmul,
    tensor::{Cx, Real, Shape, Tensor},
    with_real,
};

pub use super::gemm::{Mat, gemm};

struct Plan {
    batch: usize,
    a: Mat,
    b: Mat,
    y: Mat,
    /// How far to move in b from batch to batch; 0 when one matrix serves all.
    step_b: usize,
}

impl Matmul {
    fn plan(&self, a: Shape, b: Shape) -> Plan {
        let mat = |s: Shape, t: bool| {
            let m = Mat::new(s.at(-2), s.at(-1), s.at(-1));
            if t { m.t() } else { m }
        };
        let (ma, mb, batch) = (mat(a, self.ta), mat(b, self.tb), a.dims()[..a.rank() - 2].iter().product());
        let (y, shared) = (Mat::new(ma.rows, mb.cols, mb.cols), b.rank() == 2);
        let plan = Plan { batch, a: ma, b: mb, y, step_b: if shared { 0 } else { mb.rows * mb.cols } };
        if shared && !self.ta {
            // One matrix for all batches: a tall product.
            let tall = |m: Mat| Mat { rows: m.rows * batch, ..m };
            return Plan { batch: 1, a: tall(ma), y: tall(y), ..plan };
        }
        plan
    }
}

impl Kernel for Matmul {
    fn forward(&self, cx: &Cx, x: In, y: &mut [Value]) {
        let p = self.plan(x[0].shape(), x[1].shape());
        match cx {
            Cx::Cpu(cpu) => with_real!(x[0].dtype(), T => {
                let products = cpu.products();
                let (a, b, y) = (x[0].host::<T>(), x[1].host::<T>(), y[0].host_mut::<T>());
                for i in 0..p.batch {
                    let (a, b) = ((&a[i * p.a.rows * p.a.cols..], p.a), (&b[i * p.step_b..], p.b));
                    let y = (&mut y[i * p.y.rows * p.y.cols..], p.y);
                    gemm_as(products, Epilogue::Set, T::ONE, a, b, y);
                }
            }),
            Cx::Cuda(cu) => {
                let (a, b) = (View::new(&x[0], p.a), View::new(&x[1], p.b));
                let y = View::out(&mut y[0], p.y);
                let (na, ny) = (p.a.rows * p.a.cols, p.y.rows * p.y.cols);
                cu.gemm(1.0, a.every(na), b.every(p.step_b), y.every(ny), false, p.batch);
            }
        }
    }

    /// dA = dY Bᵀ, dB = Aᵀ dY; a transposed operand gets the transpose.
    fn backward(&self, cx: &Cx, x: In, _: &[Value], dy: &[Option<Tensor>], dx: &mut [Grad]) {
        let Some(g) = &dy[0] else { return };
        let p = self.plan(x[0].shape(), x[1].shape());
        match cx {
            Cx::Cpu(cpu) => with_real!(g.dtype(), T => {
                let products = cpu.products();
                let (a, b, g) = (x[0].host::<T>(), x[1].host::<T>(), g.host::<T>());
                let (na, ny) = (p.a.rows * p.a.cols, p.y.rows * p.y.cols);
                if let Some((d, acc)) = dx[0].slot::<[T]>() {
                    for i in 0..p.batch {
                        let (g, b) = ((&g[i * ny..], p.y), (&b[i * p.step_b..], p.b.t()));
                        gemm_as(products, Epilogue::of(acc), T::ONE, g, b, (&mut d[i * na..], p.a));
                    }
                }
                if let Some((d, acc)) = dx[1].slot::<[T]>() {
                    if p.batch == 0 && !acc {
                        d.fill(T::ZERO);
                    }
                    for i in 0..p.batch {
                        let acc = acc || (p.step_b == 0 && i > 0);
                        let (a, g) = ((&a[i * na..], p.a.t()), (&g[i * ny..], p.y));
                        gemm_as(products, Epilogue::of(acc), T::ONE, a, g, (&mut d[i * p.step_b..], p.b));
                    }
                }
            }),
            Cx::Cuda(cu) => {
                let (na, ny) = (p.a.rows * p.a.cols, p.y.rows * p.y.cols);
                let (a, g) = (View::new(&x[0], p.a).every(na), View::new(g, p.y).every(ny));
                let b = View::new(&x[1], p.b).every(p.step_b);
                if let Some((d, acc)) = dx[0].slot::<Tensor>() {
                    cu.gemm(1.0, g, b.t(), View::out(d, p.a).every(na), acc, p.batch);
                }
                // One matrix for all batches gets their sum: one product after the other.
                if p.step_b > 0 || p.batch == 1 {
                    if let Some((d, acc)) = dx[1].slot::<Tensor>() {
                        cu.gemm(1.0, a.t(), g, View::out(d, p.b).every(p.step_b), acc, p.batch);
                    }
                } else if let Some(d) = dx[1].slot::<Tensor>().map(zeroed) {
                    for i in 0..p.batch {
                        cu.gemm(1.0, a.at(i * na).t(), g.at(i * ny), View::out(d, p.b), true, 1);
                    }
                }
            }
        }
    }
}
