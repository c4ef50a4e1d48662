//! The kernel of [`L2Norm`].

use crate::{
    args,
    autograd::{Grad, In, Kernel, Outs, Value},
    kernels::{
        lane_sums::{parts, parts3, rows_at_once, sums},
        lanes::{L, avx512_here},
        norm::{MODULE, far, packed, rows_in_packs, width4},
    },
    ops::norm::L2Norm,
    tensor::{Cx, Real, Shape, Tensor},
    with_real, with_width,
};

#[versions::versions]
pub(super) fn l2_forward<T: Real>(n: usize, smooth: bool, eps: T, x: &[T], y: &mut [T], r: &mut [T]) {
    let here = avx512_here!();
    let done = if n == 4 { width4::l2_forward(smooth, eps, x, y, r) } else { 0 };
    let (x, y, r) = (&x[done * n..], &mut y[done * n..], &mut r[done..]);
    let c = rows_at_once(n);
    with_width!(n => for ((x, y), r) in x.chunks(c * n).zip(y.chunks_mut(c * n)).zip(r.chunks_mut(c)) {
        let row = |l: usize| &x[l * n..(l + 1) * n];
        let square = sums(here, r.len(), |l, to| parts(row(l), to, |x| x * x));
        let mut s = [T::ZERO; L];
        for l in 0..L {
            let length = if smooth { (square[l] + eps).sqrt() } else { square[l].sqrt() };
            s[l] = T::ONE / if !smooth && length < eps { eps } else { length };
        }
        for ((l, y), &s) in y.chunks_exact_mut(n).enumerate().zip(&s) {
            y.iter_mut().zip(row(l)).for_each(|(y, &x)| *y = x * s);
        }
        r.copy_from_slice(&s[..r.len()]);
    });
}

#[versions::versions]
fn l2_backward<T: Real>(n: usize, constant: T, y: &[T], r: &[T], g: &[T], d: &mut [T], acc: bool) {
    let here = avx512_here!();
    let done = if n == 4 { width4::l2_backward(constant, y, r, g, d, acc) } else { 0 };
    let (y, r, g, d) = (&y[done * n..], &r[done..], &g[done * n..], &mut d[done * n..]);
    let c = rows_at_once(n);
    with_width!(n => {
        for (((y, g), d), r) in y.chunks(c * n).zip(g.chunks(c * n)).zip(d.chunks_mut(c * n)).zip(r.chunks(c)) {
            let row = |l: usize| l * n..(l + 1) * n;
            let dots = sums(here, r.len(), |l, to| parts3(&g[row(l)], &y[row(l)], &y[row(l)], to, |g, y, _| g * y));
            for (((l, d), &r), &dot) in d.chunks_exact_mut(n).enumerate().zip(r).zip(&dots) {
                let (dot, entries) =
                    (if r == constant { T::ZERO } else { dot }, d.iter_mut().zip(&y[row(l)]).zip(&g[row(l)]));
                if acc {
                    entries.for_each(|((d, &y), &g)| *d += r * (g - y * dot));
                } else {
                    entries.for_each(|((d, &y), &g)| *d = r * (g - y * dot));
                }
            }
        }
    });
}

impl Kernel for L2Norm {
    fn saves(&self, x: In) -> Outs {
        Shape::from([x[0].shape().rows()]).into()
    }

    fn forward(&self, cx: &Cx, x: In, y: &mut [Value]) {
        let [y, r] = y else { return };
        if x[0].is_empty() {
            r.fill(0.0);
            return;
        }
        match cx {
            Cx::Cpu(_) => with_real!(x[0].dtype(), T => {
                let eps = T::of(self.eps);
                let (n, x, y, r) = (x[0].shape().last(), x[0].host::<T>(), y.host_mut(), r.host_mut());
                l2_forward(n, self.smooth, eps, x, y, r);
                far::l2_forward(n, self.smooth, self.eps, x, y, r);
            }),
            Cx::Cuda(cu) => {
                let (rows, n) = (r.len(), x[0].shape().last());
                let (dtype, [x, y]) = (x[0].dtype(), [(&x[0]).into(), (&mut **y).into()]);
                let packed = packed(n, dtype, [x, y]);
                let (launch, lanes) = rows_in_packs(cu, rows, n, packed, dtype);
                let kernel = if packed { "l2_forward_packed" } else { "l2_forward_single" };
                cu.launch(&MODULE, kernel, dtype, launch, args![x, y, &mut **r, rows, n, lanes, self.eps, self.smooth]);
            }
        }
    }

    fn backward(&self, cx: &Cx, x: In, y: &[Value], dy: &[Option<Tensor>], dx: &mut [Grad]) {
        let Some(g) = &dy[0] else { return };
        if x[0].is_empty() {
            return;
        }
        match cx {
            Cx::Cpu(_) => with_real!(g.dtype(), T => if let Some((d, acc)) = dx[0].slot::<[T]>() {
                // The r of a row that is shorter than eps; no row's if smooth.
                let constant = if self.smooth { T::ZERO } else { T::ONE / T::of(self.eps) };
                l2_backward(x[0].shape().last(), constant, y[0].host(), y[1].host(), g.host(), d, acc);
            }),
            Cx::Cuda(cu) => {
                let Some((d, acc)) = dx[0].slot::<Tensor>() else { return };
                let (rows, n, dtype) = (y[1].len(), x[0].shape().last(), g.dtype());
                let [x, g, d] = [(&x[0]).into(), g.into(), d.into()];
                let packed = packed(n, dtype, [x, g, d]);
                let (launch, lanes) = rows_in_packs(cu, rows, n, packed, dtype);
                let kernel = if packed { "l2_backward_packed" } else { "l2_backward_single" };
                cu.launch(&MODULE, kernel, dtype, launch, args![x, g, d, acc, rows, n, lanes, self.eps, self.smooth]);
            }
        }
    }
}
