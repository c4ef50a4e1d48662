//! The kernels of [`softmax`](crate::kernels::softmax).

use crate::{
    args,
    autograd::{Grad, In, Kernel, Value},
    cuda::Module,
    kernels::{lane_sums, math::Math},
    ops::softmax::{CausalSoftmax, Softmax},
    tensor::{Cx, Tensor},
    with_real, with_width,
};

static MODULE: Module = Module::new("kernels/softmax.cu", &[include_str!("softmax.cu")]);

/// Rows of `n` entries; row i shows the first `seen(i)` of them, the others become 0.
///
/// Loops run over whole vectors, in which hidden entries are −∞ until the end: nothing of the hidden input reaches the
/// result. Several short rows have their exponentials computed together, so that they fill vectors too.
#[inline(always)]
fn rows_forward<T: Math>(n: usize, seen: impl Fn(usize) -> usize, x: &[T], y: &mut [T]) {
    let least = T::of(f64::NEG_INFINITY);
    let rows = (512 / n).max(1);
    for (block, (x, y)) in x.chunks(rows * n).zip(y.chunks_mut(rows * n)).enumerate() {
        for (i, (x, y)) in x.chunks_exact(n).zip(y.chunks_exact_mut(n)).enumerate() {
            let seen = seen(block * rows + i);
            let (shown, hidden) = y.split_at_mut(vectors(seen, n));
            for ((y, &x), j) in shown.iter_mut().zip(x).zip(0..) {
                *y = if j < seen as u32 { x } else { least };
            }
            hidden.fill(T::ZERO);
            let m = lane_sums::max(shown);
            shown.iter_mut().for_each(|y| *y -= m);
        }
        if n < 64 {
            y.iter_mut().for_each(|y| *y = y.decay());
        } else {
            for (i, y) in y.chunks_exact_mut(n).enumerate() {
                let shown = vectors(seen(block * rows + i), n);
                y[..shown].iter_mut().for_each(|y| *y = y.decay());
            }
        }
        for (i, y) in y.chunks_exact_mut(n).enumerate() {
            let seen = seen(block * rows + i);
            let (shown, hidden) = y.split_at_mut(vectors(seen, n));
            let scale = T::ONE / lane_sums::sum(shown, |y| y);
            for (y, j) in shown.iter_mut().zip(0..) {
                *y = if j < seen as u32 { *y * scale } else { T::ZERO };
            }
            hidden.fill(T::ZERO);
        }
    }
}

/// `seen` rounded up to whole vectors within a row of `n`.
#[inline(always)]
fn vectors(seen: usize, n: usize) -> usize {
    seen.next_multiple_of(lane_sums::LANES).min(n)
}

/// y is 0 in hidden entries. Where y is 0 its cotangent, which may be NaN, is left out.
#[inline(always)]
fn rows_backward<T: Math>(n: usize, seen: impl Fn(usize) -> usize, y: &[T], g: &[T], d: &mut [T], acc: bool) {
    for (i, ((y, g), d)) in y.chunks_exact(n).zip(g.chunks_exact(n)).zip(d.chunks_exact_mut(n)).enumerate() {
        let shown = vectors(seen(i), n);
        let (y, g, (d, hidden)) = (&y[..shown], &g[..shown], d.split_at_mut(shown));
        let weighed = |y: T, g: T| if y == T::ZERO { T::ZERO } else { y * g };
        let mean = lane_sums::sum2(y, g, weighed);
        if acc {
            d.iter_mut().zip(y).zip(g).for_each(|((d, &y), &g)| *d += weighed(y, g - mean));
        } else {
            d.iter_mut().zip(y).zip(g).for_each(|((d, &y), &g)| *d = weighed(y, g - mean));
            hidden.fill(T::ZERO);
        }
    }
}

#[versions::versions]
fn softmax_forward<T: Math>(n: usize, x: &[T], y: &mut [T]) {
    with_width!(n => rows_forward(n, |_| n, x, y));
}

#[versions::versions]
fn softmax_backward<T: Math>(n: usize, y: &[T], g: &[T], d: &mut [T], acc: bool) {
    with_width!(n => rows_backward(n, |_| n, y, g, d, acc));
}

#[versions::versions]
fn causal_forward<T: Math>(t: usize, s: usize, offset: usize, x: &[T], y: &mut [T]) {
    for (x, y) in x.chunks_exact(t * s).zip(y.chunks_exact_mut(t * s)) {
        with_width!(s => rows_forward(s, |i| s.min(i + offset + 1), x, y));
    }
}

#[versions::versions]
fn causal_backward<T: Math>(t: usize, s: usize, offset: usize, y: &[T], g: &[T], d: &mut [T], acc: bool) {
    for ((y, g), d) in y.chunks_exact(t * s).zip(g.chunks_exact(t * s)).zip(d.chunks_exact_mut(t * s)) {
        with_width!(s => rows_backward(s, |i| s.min(i + offset + 1), y, g, d, acc));
    }
}

macro_rules! softmax {
    ($Op:ident $forward:ident $backward:ident, |$op:ident, $shape:ident| ($($size:expr),*),
        cuda: ($t:expr, $offset:expr)) => {
        impl Kernel for $Op {
            fn forward(&self, cx: &Cx, x: In, y: &mut [Value]) {
                let ($op, $shape) = (self, x[0].shape());
                if x[0].is_empty() {
                    return;
                }
                match cx {
                    Cx::Cpu(_) => with_real!(x[0].dtype(), T => {
                        $forward($($size,)* x[0].host::<T>(), y[0].host_mut());
                    }),
                    Cx::Cuda(cu) => {
                        let (rows, n) = ($shape.rows(), $shape.last());
                        let (launch, lanes) = cu.rows(rows, n);
                        let args = args![&x[0], &mut y[0], rows, n, lanes, $t, $offset];
                        cu.launch(&MODULE, "softmax_forward", x[0].dtype(), launch, args);
                    }
                }
            }

            fn backward(&self, cx: &Cx, x: In, y: &[Value], dy: &[Option<Tensor>], dx: &mut [Grad]) {
                let Some(g) = &dy[0] else { return };
                let ($op, $shape) = (self, x[0].shape());
                if x[0].is_empty() {
                    return;
                }
                match cx {
                    Cx::Cpu(_) => with_real!(g.dtype(), T => if let Some((d, acc)) = dx[0].slot::<[T]>() {
                        $backward($($size,)* y[0].host(), g.host(), d, acc);
                    }),
                    Cx::Cuda(cu) => {
                        let Some((d, acc)) = dx[0].slot::<Tensor>() else { return };
                        let (rows, n) = ($shape.rows(), $shape.last());
                        let (launch, lanes) = cu.rows(rows, n);
                        let args = args![&y[0], g, d, acc, rows, n, lanes, $t, $offset];
                        cu.launch(&MODULE, "softmax_backward", g.dtype(), launch, args);
                    }
                }
            }
        }
    };
}

softmax!(Softmax softmax_forward softmax_backward, |_op, x| (x.last()), cuda: (1usize, x.last()));

softmax!(CausalSoftmax causal_forward causal_backward, |op, x| (x.at(-2), x.at(-1), op.offset),
    cuda: (x.at(-2), op.offset.min(x.last())));
