//! The kernel of [`Cumsum`].

use crate::{
    args,
    autograd::{Grad, In, Kernel, Value},
    cuda::{Cuda, Launch, Module},
    ops::cumsum::Cumsum,
    tensor::{Cx, Real, Tensor},
    with_real,
};

static MODULE: Module = Module::new("kernels/cumsum.cu", &[include_str!("cumsum.cu")]);

/// Adds up rows of `inner` elements: y₀ = x₀, yₜ = yₜ₋₁ + xₜ.
#[versions::versions]
fn cumsum_forward<T: Real>(n: usize, inner: usize, x: &[T], y: &mut [T]) {
    for (x, y) in x.chunks_exact(n * inner).zip(y.chunks_exact_mut(n * inner)) {
        y[..inner].copy_from_slice(&x[..inner]);
        for t in 1..n {
            let (before, y) = y.split_at_mut(t * inner);
            let (before, x) = (&before[(t - 1) * inner..], &x[t * inner..][..inner]);
            y[..inner].iter_mut().zip(before).zip(x).for_each(|((y, &b), &x)| *y = b + x);
        }
    }
}

/// dₜ (+)= Σ gᵢ over i ≥ t, kept in `sum` [inner], from the last i to the first.
#[versions::versions]
fn cumsum_backward<T: Real>(n: usize, inner: usize, g: &[T], d: &mut [T], sum: &mut [T], acc: bool) {
    for (g, d) in g.chunks_exact(n * inner).zip(d.chunks_exact_mut(n * inner)) {
        sum.fill(T::ZERO);
        for (g, d) in g.chunks_exact(inner).zip(d.chunks_exact_mut(inner)).rev() {
            for ((d, s), &g) in d.iter_mut().zip(&mut *sum).zip(g) {
                *s += g;
                *d = if acc { *d + *s } else { *s };
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
            Cx::Cpu(_) => {
                with_real!(x[0].dtype(), T => cumsum_forward(n, inner, x[0].host::<T>(), y[0].host_mut()))
            }
            Cx::Cuda(cu) => cumsum_cuda(cu, &x[0], &mut y[0], false, n, inner, false),
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
                cumsum_backward(n, inner, g.host(), d, &mut cpu.temp::<T>(inner), acc);
            }),
            Cx::Cuda(cu) => {
                if let Some((d, acc)) = dx[0].slot::<Tensor>() {
                    cumsum_cuda(cu, g, d, acc, n, inner, true);
                }
            }
        }
    }
}
