//! The kernels of [`norm`](crate::kernels::norm).
//!
//! Backward, with ĝ = g w: dx = r (ĝ − mean ĝ − x̂ mean(ĝ x̂)) for layer norm, the same without the mean of ĝ for
//! RMS norm, and dx = r (g − y Σ g y) for the L2 norm (where ε rules, r is constant: dx = r g).

mod far;
mod l2;
mod width4;

use crate::{
    args,
    autograd::{Grad, In, Kernel, Outs, Value, zeroed},
    cuda::{Arg, Launch, Module, in_packs},
    kernels::{
        lane_sums::{self, NARROW, parts, parts3, rows_at_once, sums},
        lanes::{L, avx512_here},
        linear::total_cuda,
    },
    ops::norm::{LayerNorm, RmsNorm},
    tensor::{Cuda, Cx, DType, Real, Shape, Tensor},
    with_real, with_width,
};
use std::ops::Range;

/// Threads of a block of the backward kernels.
const THREADS: usize = 128;

static MODULE: Module = Module::new("kernels/norm.cu", &[include_str!("norm.cu")]);

/// x [rows, n] -> y; keeps mean and r [rows] for the backward pass. With `centre` it is layer norm.
#[versions::versions]
fn forward<T: Real>(centre: bool, eps: T, x: &[T], (w, b): (&[T], Option<&[T]>), [y, mean, r]: [&mut [T]; 3]) {
    let (here, n) = (avx512_here!(), w.len());
    let over_n = T::ONE / T::of(n as f64);
    let four = b.and_then(|b| b.try_into().ok()).unwrap_or([T::ZERO; 4]);
    let done = w.try_into().map_or(0, |w| width4::forward(centre, eps, x, [w, &four], [y, mean, r]));
    let (x, y, mean, r) = (&x[done * n..], &mut y[done * n..], &mut mean[done..], &mut r[done..]);
    with_width!(n => {
        let (c, w) = (rows_at_once(n), &w[..n]);
        let blocks = x.chunks(c * n).zip(y.chunks_mut(c * n)).zip(mean.chunks_mut(c)).zip(r.chunks_mut(c));
        for (((x, y), mean), r) in blocks {
            let (rows, row) = (r.len(), |l: usize| &x[l * n..(l + 1) * n]);
            let (mut m, mut s) = ([T::ZERO; L], [T::ZERO; L]);
            if centre {
                m = sums(here, rows, |l, to| parts(row(l), to, |x| x));
                m.iter_mut().for_each(|m| *m *= over_n);
            }
            let square = sums(here, rows, |l, to| { let m = m[l]; parts(row(l), to, |x| (x - m) * (x - m)) });
            for l in 0..L {
                s[l] = T::ONE / (square[l] * over_n + eps).sqrt();
            }
            for (l, y) in y.chunks_exact_mut(n).enumerate() {
                let (m, s, entries) = (m[l], s[l], y.iter_mut().zip(row(l)).zip(w));
                match b {
                    Some(b) => entries.zip(&b[..n]).for_each(|(((y, &x), &w), &b)| *y = ((x - m) * s).fma(w, b)),
                    None => entries.for_each(|((y, &x), &w)| *y = (x - m) * s * w),
                }
            }
            mean.copy_from_slice(&m[..rows]);
            r.copy_from_slice(&s[..rows]);
        }
    });
}

/// dx = r (ĝ − mean ĝ − x̂ mean(ĝ x̂))
#[versions::versions]
fn backward_x<T: Real>(centre: bool, [x, g]: [&[T]; 2], w: &[T], [mean, r]: [&[T]; 2], (d, acc): (&mut [T], bool)) {
    let (here, n) = (avx512_here!(), w.len());
    let over_n = T::ONE / T::of(n as f64);
    let done = w.try_into().map_or(0, |w| width4::backward_x(centre, [x, g], w, [mean, r], (d, acc)));
    let (x, g, d, mean, r) = (&x[done * n..], &g[done * n..], &mut d[done * n..], &mean[done..], &r[done..]);
    with_width!(n => {
        let (c, w) = (rows_at_once(n), &w[..n]);
        let blocks = x.chunks(c * n).zip(g.chunks(c * n)).zip(d.chunks_mut(c * n)).zip(mean.chunks(c)).zip(r.chunks(c));
        for ((((x, g), d), mean), r) in blocks {
            let row = |l: usize| l * n..(l + 1) * n;
            let of_gx = sums(here, r.len(), |l, to| {
                let m = mean[l];
                parts3(&g[row(l)], w, &x[row(l)], to, |g, w, x| g * w * (x - m))
            });
            let of_g = match centre {
                true => sums(here, r.len(), |l, to| parts3(&g[row(l)], w, w, to, |g, w, _| g * w)),
                false => [T::ZERO; L],
            };
            for (l, d) in d.chunks_exact_mut(n).enumerate() {
                let (m, r, of_g) = (mean[l], r[l], of_g[l] * over_n);
                let of_gx = of_gx[l] * r * over_n * r;
                let entries = d.iter_mut().zip(&x[row(l)]).zip(&g[row(l)]).zip(w);
                if acc {
                    entries.for_each(|(((d, &x), &g), &w)| *d += r * (m - x).fma(of_gx, g * w - of_g));
                } else {
                    entries.for_each(|(((d, &x), &g), &w)| *d = r * (m - x).fma(of_gx, g * w - of_g));
                }
            }
        }
    });
}

/// dw += Σ g x̂ over the rows
#[versions::versions]
fn backward_w<T: Real>(x: &[T], mean: &[T], r: &[T], g: &[T], dw: &mut [T]) {
    let n = dw.len();
    let done = (&mut *dw).try_into().map_or(0, |dw| width4::backward_w(x, mean, r, g, dw));
    let (x, g, mean, r) = (&x[done * n..], &g[done * n..], &mean[done..], &r[done..]);
    // Sums of narrow rows stay in registers: a sum in memory waits for its own store.
    let mut sums = [T::ZERO; NARROW];
    with_width!(n => {
        let sums = if n <= NARROW { &mut sums[..n] } else { &mut dw[..n] };
        for (((x, g), &m), &r) in x.chunks_exact(n).zip(g.chunks_exact(n)).zip(mean).zip(r) {
            sums.iter_mut().zip(g).zip(x).for_each(|((dw, &g), &x)| *dw += g * ((x - m) * r));
        }
    });
    if n <= NARROW {
        dw.iter_mut().zip(sums).for_each(|(dw, sum)| *dw += sum);
    }
}

fn norm_forward(centre: bool, eps: f64, cx: &Cx, x: In, y: &mut [Value]) {
    let [y, mean, r] = y else { return };
    if x[0].is_empty() {
        mean.fill(0.0);
        r.fill(0.0);
        return;
    }
    match cx {
        Cx::Cpu(_) => with_real!(x[0].dtype(), T => {
            let b = if x.len() > 2 { Some(x[2].host::<T>()) } else { None };
            let (mean, r) = (mean.host_mut(), r.host_mut());
            let (x, w, y) = (x[0].host::<T>(), x[1].host(), y.host_mut());
            forward(centre, T::of(eps), x, (w, b), [y, mean, r]);
            far::forward(centre, eps, x, (w, b), [y, mean, r]);
        }),
        Cx::Cuda(cu) => {
            let (rows, n) = (mean.len(), x[1].len());
            let b = (x.len() > 2).then(|| &x[2]);
            let (y, mean, r) = (&mut **y, &mut **mean, &mut **r);
            let (dtype, [x, w, b, y]) = (x[0].dtype(), [(&x[0]).into(), (&x[1]).into(), b.into(), y.into()]);
            let packed = packed(n, dtype, [x, w, b, y]);
            let (launch, lanes) = rows_in_packs(cu, rows, n, packed, dtype);
            let kernel = if packed { "norm_forward_packed" } else { "norm_forward_single" };
            cu.launch(&MODULE, kernel, dtype, launch, args![x, w, b, y, mean, r, rows, n, lanes, eps, centre]);
        }
    }
}

fn norm_backward(centre: bool, eps: f64, cx: &Cx, x: In, y: &[Value], dy: &[Option<Tensor>], dx: &mut [Grad]) {
    let Some(g) = &dy[0] else { return };
    match cx {
        Cx::Cpu(_) => with_real!(g.dtype(), T => {
            let (a, w, g) = (x[0].host::<T>(), x[1].host::<T>(), g.host::<T>());
            let (mean, r, n) = (y[1].host::<T>(), y[2].host::<T>(), w.len());
            let stretches = if g.is_empty() { vec![] } else { far::stretches(mean, r) };
            let part = |rows: &Range<usize>| rows.start * n..rows.end * n;
            if let Some((d, acc)) = dx[0].slot::<[T]>() {
                for (rows, far) in &stretches {
                    let (a, g, d) = (&a[part(rows)], &g[part(rows)], &mut d[part(rows)]);
                    if *far {
                        far::backward_x(centre, eps, [a, g], w, (d, acc));
                    } else {
                        backward_x(centre, [a, g], w, [&mean[rows.clone()], &r[rows.clone()]], (d, acc));
                    }
                }
            }
            if let Some(d) = dx[1].slot::<[T]>().map(zeroed) {
                for (rows, far) in &stretches {
                    let (a, g) = (&a[part(rows)], &g[part(rows)]);
                    if *far {
                        far::backward_w(centre, eps, a, g, d);
                    } else {
                        backward_w(a, &mean[rows.clone()], &r[rows.clone()], g, d);
                    }
                }
            }
            if let Some(d) = dx.get_mut(2).and_then(Grad::slot::<[T]>).map(zeroed) && !g.is_empty() {
                lane_sums::columns(g, d);
            }
        }),
        Cx::Cuda(cu) => norm_backward_cuda(cu, centre, eps, x, g, dx),
    }
}

/// Whether rows are [`in_packs`], and short enough for a block that has four packs a thread.
fn packed<const N: usize>(n: usize, dtype: DType, tensors: [Arg; N]) -> bool {
    n * dtype.bytes() <= 16 * 4 * THREADS && in_packs(n, dtype, tensors)
}

/// A launch in which groups of threads share rows, and how many share one. A thread has up to four packs of a row.
fn rows_in_packs(cu: &Cuda, rows: usize, n: usize, packed: bool, dtype: DType) -> (Launch, i32) {
    if !packed {
        return cu.rows(rows, n);
    }
    let packs = n * dtype.bytes() / 16;
    let lanes = if packs <= 4 * 32 { packs.next_power_of_two().min(32) } else { 256 };
    (cu.elements(rows * lanes), lanes as i32)
}

fn norm_backward_cuda(cu: &Cuda, centre: bool, eps: f64, x: In, g: &Tensor, dx: &mut [Grad]) {
    let [dx, dws @ ..] = dx else { return };
    if g.is_empty() {
        return dws.iter_mut().filter_map(Grad::slot::<Tensor>).for_each(|d| _ = zeroed(d));
    }
    let (n, rows, dtype) = (x[1].len(), g.len() / x[1].len(), g.dtype());
    let (d, acc) = dx.target();
    let packed = packed(n, dtype, [(&x[0]).into(), (&x[1]).into(), g.into(), d]);
    let (_, lanes) = rows_in_packs(cu, rows, n, packed, dtype);
    // A long row has a whole block.
    let lanes = lanes.min(THREADS as i32);
    let groups = THREADS / lanes as usize;
    // Depends on sizes alone, so that every device adds in the same order. A large one runs two blocks on each of 132
    // multiprocessors.
    let chunk = rows.div_ceil(264).max(2 * groups).next_multiple_of(groups);
    let blocks = rows.div_ceil(chunk);
    let parts = match dws {
        [w] => usize::from(w.wanted()),
        [_, b, ..] if b.wanted() => 2,
        [w, ..] => usize::from(w.wanted()),
        [] => 0,
    };
    let in_shared = groups > 1;
    let mut sums = (parts > 0).then(|| cu.temp(dtype.real(), parts * blocks * n));
    let shared = if in_shared { groups * parts * n * dtype.real().bytes() } else { 0 };
    let into = sums.as_deref_mut();
    let args = args![&x[0], &x[1], g, d, acc, into, parts as i32, in_shared, rows, chunk, n, lanes, eps, centre];
    let kernel = if packed { "norm_backward_packed" } else { "norm_backward_single" };
    cu.launch(&MODULE, kernel, dtype, Launch::blocks(blocks, THREADS).shared(shared), args);
    if let Some(sums) = sums {
        for (i, dw) in dws.iter_mut().enumerate() {
            if let Some((d, acc)) = dw.slot::<Tensor>() {
                total_cuda(cu, &sums.window(i * blocks * n, [blocks * n]), blocks, d, acc);
            }
        }
    }
}

macro_rules! norm {
    ($Op:ident, centre: $centre:literal) => {
        impl Kernel for $Op {
            fn saves(&self, x: In) -> Outs {
                [Shape::from([x[0].shape().rows()]); 2].into()
            }

            fn forward(&self, cx: &Cx, x: In, y: &mut [Value]) {
                norm_forward($centre, self.eps, cx, x, y);
            }

            fn backward(&self, cx: &Cx, x: In, y: &[Value], dy: &[Option<Tensor>], dx: &mut [Grad]) {
                norm_backward($centre, self.eps, cx, x, y, dy, dx);
            }
        }
    };
}

norm!(LayerNorm, centre: true);

norm!(RmsNorm, centre: false);
