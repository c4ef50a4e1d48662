//! The kernel of [`Cumsum`].

use crate::{
    args,
    autograd::{Grad, In, Kernel, Value},
    cuda::{Launch, Module},
    ops::cumsum::Cumsum,
    tensor::{Cuda, Cx, Real, Tensor},
    with_real,
};

static MODULE: Module = Module::new("kernels/cumsum.cu", &[include_str!("cumsum.cu")]);

/// y (+)= the running sum of rows of `inner` elements, n of them, from the last if `back`, kept in `sum` [inner].
#[versions::versions]
fn cumsum<T: Real>(n: usize, inner: usize, back: bool, x: &[T], y: &mut [T], sum: &mut [T], acc: bool) {
    for (x, y) in x.chunks_exact(n * inner).zip(y.chunks_exact_mut(n * inner)) {
        sum.fill(T::ZERO);
        for i in 0..n {
            let row = if back { n - 1 - i } else { i } * inner;
            for ((y, s), &x) in y[row..row + inner].iter_mut().zip(&mut *sum).zip(&x[row..row + inner]) {
                *s += x;
                *y = if acc { *y + *s } else { *s };
            }
        }
    }
}

/// y (+)= the running sum of x over an axis of n entries, from its end if `back`.
fn cumsum_cuda(cu: &Cuda, x: &Tensor, y: &mut Tensor, acc: bool, n: usize, inner: usize, back: bool) {
    let (dtype, columns) = (x.dtype(), x.len() / n);
    if inner == 1 {
        cu.launch(&MODULE, "cumsum_rows", dtype, cu.elements(32 * columns), args![x, y, acc, columns, n, back]);
    } else {
        let wide = inner.next_power_of_two().min(32);
        let launch = Launch::grid([columns.div_ceil(wide), 1, 1], [wide, 256 / wide, 1]);
        cu.launch(&MODULE, "cumsum_columns", dtype, launch, args![x, y, acc, columns, n, inner, back]);
    }
}

impl Kernel for Cumsum {
    fn forward(&self, cx: &Cx, x: In, y: &mut [Value]) {
        let (_, n, inner) = x[0].shape().split(self.axis);
        if x[0].is_empty() {
            return;
        }
        match cx {
            Cx::Cpu(cpu) => with_real!(x[0].dtype(), T => {
                let (x, y, sum) = (x[0].host::<T>(), y[0].host_mut(), &mut cpu.temp::<T>(inner));
                cumsum(n, inner, self.from_end, x, y, sum, false);
            }),
            Cx::Cuda(cu) => cumsum_cuda(cu, &x[0], &mut y[0], false, n, inner, self.from_end),
        }
    }

    fn backward(&self, cx: &Cx, x: In, _: &[Value], dy: &[Option<Tensor>], dx: &mut [Grad]) {
        let Some(g) = &dy[0] else { return };
        let (_, n, inner) = x[0].shape().split(self.axis);
        if x[0].is_empty() {
            return;
        }
        match cx {
            Cx::Cpu(cpu) => with_real!(g.dtype(), T => if let Some((d, acc)) = dx[0].slot::<[T]>() {
                cumsum(n, inner, !self.from_end, g.host(), d, &mut cpu.temp::<T>(inner), acc);
            }),
            Cx::Cuda(cu) => {
                if let Some((d, acc)) = dx[0].slot::<Tensor>() {
                    cumsum_cuda(cu, g, d, acc, n, inner, !self.from_end);
                }
            }
        }
    }
}
