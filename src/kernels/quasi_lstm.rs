//! The kernel of [`QuasiLstm`].
//!
//! c is the linear scan ([`scan`](super::scan)) of f and i z. Backwards in time, with G the gradient that step t + 1 passes on:
//!
//! ```text
//! dc = dh o (1 − tanh² c_t) + G;  dx_f = dc c_{t-1} f (1 − f);  dx_i = dc z i (1 − i);  dx_z = dc i (1 − z²);
//! dx_o = dh tanh c_t o (1 − o);  G = f dc to step t − 1
//! ```
//!
//! Where channels are few, the CPU keeps u = tanh c_t for the backward pass; elsewhere it computes u once more, which is as fast as
//! reading it. Gates are kept as in [`lstm`](super::lstm).

use crate::{
    args,
    autograd::{Grad, In, Kernel, Outs, Value},
    cuda::{Cuda, Module},
    kernels::{
        math::Math,
        scan::{Pieces, at, by_device, by_lanes, chunk_of, cotangent, each, four_at, put, put_all, zeros},
    },
    ops::quasi_lstm::QuasiLstm,
    tensor::{Cpu, Shape, Tensor},
    with_width,
};
use std::ops::Range;

/// Up to so many channels u is kept.
const FEW: usize = 32;

/// Steps so few that their rows stay in the fastest cache while all runs of channels pass over them.
fn tile(d: usize) -> usize {
    (512 / d).max(1)
}

/// W channels of the gates of a row as they are kept, from their sums.
#[inline(always)]
fn activate<T: Math, const W: usize>(i: usize, d: usize, bias: T, x: &[T], g: &mut [T]) {
    let [mut f, ig, z, o]: [[T; W]; 4] = four_at(x, d, i);
    for f in &mut f {
        *f += bias;
    }
    put(g, 0, d, i, each(f, T::keep_sigmoid), false);
    put(g, 1, d, i, each(ig, T::keep_sigmoid), false);
    put(g, 2, d, i, each(z, T::keep_tanh), false);
    put(g, 3, d, i, each(o, T::keep_sigmoid), false);
}

/// The gates of all rows.
#[versions::versions]
fn gates<T: Math>(d: usize, bias: T, x: &[T], g: &mut [T]) {
    with_width!(d => for (x, g) in x.chunks_exact(4 * d).zip(g.chunks_exact_mut(4 * d)) {
        by_lanes!(d, activate::<T>(bias, x, &mut *g));
    });
}

/// Phase 1 forward: the map of the steps `r`, as (∏ f, end from zero).
#[inline(always)]
fn total<T: Math, const W: usize>(i: usize, d: usize, r: Range<usize>, g: &[T], prod: &mut [T], end: &mut [T]) {
    let (mut p, mut c) = ([T::ONE; W], [T::ZERO; W]);
    for t in r {
        let [f, ig, z, _]: [[T; W]; 4] = four_at(&g[4 * t * d..][..4 * d], d, i);
        for l in 0..W {
            let f = f[l].kept_sigmoid().0;
            p[l] = f * p[l];
            c[l] = f.fma(c[l], ig[l].kept_sigmoid().0 * z[l].kept_tanh().0);
        }
    }
    put(prod, 0, d, i, p, false);
    put(end, 0, d, i, c, false);
}

/// Phase 3 forward: c, u if there is room for it, and h of the steps `r`; `state` comes in as c before them and leaves as
/// the last.
#[inline(always)]
fn run<T: Math, const W: usize>(
    i: usize,
    d: usize,
    r: Range<usize>,
    g: &[T],
    state: &mut [T],
    [c, u, h]: &mut [&mut [T]; 3],
) {
    let all = r.start * d..r.end * d;
    let (mut s, kept): ([T; W], _) = (at(state, 0, d, i), if u.is_empty() { 0..0 } else { all.clone() });
    let rows = c[all.clone()].chunks_exact_mut(d).zip(h[all].chunks_exact_mut(d));
    let mut kept = u[kept].chunks_exact_mut(d);
    for (t, (c, h)) in r.zip(rows) {
        let [f, ig, z, o]: [[T; W]; 4] = four_at(&g[4 * t * d..][..4 * d], d, i);
        for l in 0..W {
            s[l] = f[l].kept_sigmoid().0.fma(s[l], ig[l].kept_sigmoid().0 * z[l].kept_tanh().0);
        }
        let mut y = each(s, T::keep_tanh);
        put(c, 0, d, i, s, false);
        if let Some(u) = kept.next() {
            put(u, 0, d, i, y, false);
        }
        for l in 0..W {
            y[l] = o[l].kept_sigmoid().0 * y[l].kept_tanh().0;
        }
        put(h, 0, d, i, y, false);
    }
    put(state, 0, d, i, s, false);
}

/// One sequence. `starts` and `prods` are scratch rows, one a chunk, the first start given.
#[versions::versions]
fn forward<T: Math>((chunk, d): (usize, usize), g: &[T], (starts, prods): (&mut [T], &mut [T]), mut to: [&mut [T]; 3]) {
    let (n, steps) = (starts.len() / d, to[0].len() / d);
    for k in 1..n {
        let r = chunk_of(k - 1, chunk, 1, steps);
        by_lanes!(d, total::<T>(r.clone(), g, &mut prods[k * d..], &mut starts[k * d..]));
    }
    for k in 1..n {
        let (start, end) = starts[(k - 1) * d..].split_at_mut(d);
        for ((end, &p), &start) in end.iter_mut().zip(&prods[k * d..]).zip(&*start) {
            *end += p * start;
        }
    }
    for k in 0..n {
        let all = chunk_of(k, chunk, 1, steps);
        for t in all.clone().step_by(tile(d)) {
            let r = t..(t + tile(d)).min(all.end);
            with_width!(d => by_lanes!(d, run::<T>(r.clone(), g, &mut starts[k * d..], &mut to)));
        }
    }
}

/// W channels of u, as it is kept, from a row of it, or if there is none of c.
#[inline(always)]
fn tanh_c<T: Math, const W: usize>(row: &[T], kept: bool, i: usize) -> [T; W] {
    let x = at(row, 0, 0, i);
    if kept { x } else { each(x, T::keep_tanh) }
}

/// Phase 1 backward: G at the first of the steps `r` as a map of G from behind them.
#[inline(always)]
fn total_back<T: Math, const W: usize>(
    i: usize,
    d: usize,
    r: Range<usize>,
    g: &[T],
    [c, u, _, dh]: [&[T]; 4],
    prod: &mut [T],
    end: &mut [T],
) {
    let (mut p, mut s) = ([T::ONE; W], [T::ZERO; W]);
    let (kept, rows) = (d <= FEW, if d <= FEW { u } else { c });
    for t in r.rev() {
        let [f, _, _, o]: [[T; W]; 4] = four_at(&g[4 * t * d..][..4 * d], d, i);
        let (u, dh): ([T; W], [T; W]) = (tanh_c(&rows[t * d..][..d], kept, i), at(dh, t, d, i));
        for l in 0..W {
            let f = f[l].kept_sigmoid().0;
            p[l] = f * p[l];
            s[l] = f * (dh[l] * o[l].kept_sigmoid().0).fma(u[l].kept_tanh().1, s[l]);
        }
    }
    put(prod, 0, d, i, p, false);
    put(end, 0, d, i, s, false);
}

/// One step of W channels backwards, from its gates [4D] and the rows c_{t-1}, u (or c, if u was not kept) and dh [D]: to
/// the gradients of the gates' sums [4D]. `back` comes in as G from behind the step and leaves as that of the step.
#[inline(always)]
fn step_back<T: Math, const W: usize>(
    i: usize,
    d: usize,
    g: &[T],
    [before, u, dh]: [&[T]; 3],
    back: &mut [T; W],
    dx: &mut [T],
    acc: bool,
) {
    let [f, ig, z, o]: [[T; W]; 4] = four_at(g, d, i);
    let (before, u, dh): ([T; W], [T; W], [T; W]) = (at(before, 0, d, i), tanh_c(u, d <= FEW, i), at(dh, 0, d, i));
    let mut out = [[T::ZERO; W]; 4];
    for l in 0..W {
        let [(f, less_f), (i, less_i), (o, less_o)] = [f[l], ig[l], o[l]].map(T::kept_sigmoid);
        let [(z, slope_z), (u, slope_u)] = [z[l], u[l]].map(T::kept_tanh);
        let through_o = dh[l] * o;
        let dc = through_o.fma(slope_u, back[l]);
        let through_i = dc * i;
        back[l] = dc * f;
        out[0][l] = back[l] * before[l] * less_f;
        out[1][l] = through_i * z * less_i;
        out[2][l] = through_i * slope_z;
        out[3][l] = through_o * u * less_o;
    }
    for (k, &out) in out.iter().enumerate() {
        put(dx, k, d, i, out, acc);
    }
}

/// Phase 3 backward: `s` comes in as G from behind the steps `r` and leaves as G of the first.
#[inline(always)]
fn run_back<T: Math, const W: usize>(
    i: usize,
    d: usize,
    r: Range<usize>,
    g: &[T],
    [c, u, c0, dh]: [&[T]; 4],
    s: &mut [T],
    (dx, acc): (&mut [T], bool),
) {
    let (mut back, u): ([T; W], _) = (at(s, 0, d, i), if d <= FEW { u } else { c });
    // Before the very first step is no row of c, but c0.
    let later = r.start.max(1)..r.end;
    let before = &c[(later.start - 1) * d..(later.end - 1) * d];
    let rows = [before, &u[later.start * d..later.end * d], &dh[later.start * d..later.end * d]];
    let [before, us, dhs] = rows.map(|x| x.chunks_exact(d));
    let rows = before.zip(us).zip(dhs);
    let r4 = 4 * later.start * d..4 * later.end * d;
    let of_x = g[r4.clone()].chunks_exact(4 * d).zip(dx[r4].chunks_exact_mut(4 * d));
    for (((before, u), dh), (g, dx)) in rows.zip(of_x).rev() {
        step_back::<T, W>(i, d, g, [before, u, dh], &mut back, dx, acc);
    }
    if r.start == 0 {
        step_back::<T, W>(i, d, &g[..4 * d], [c0, u, dh], &mut back, &mut dx[..4 * d], acc);
    }
    put(s, 0, d, i, back, false);
}

/// One sequence. `ends` and `prods` are scratch rows, one a chunk: G from behind each chunk, of which the last is
/// given; afterwards `ends[0]` is dc0.
#[versions::versions]
fn backward<T: Math>(
    (chunk, d): (usize, usize),
    g: &[T],
    inputs: [&[T]; 4],
    (ends, prods): (&mut [T], &mut [T]),
    (dx, acc): (&mut [T], bool),
) {
    let (n, steps) = (ends.len() / d, inputs[0].len() / d);
    for k in 1..n {
        let r = chunk_of(k, chunk, 1, steps);
        by_lanes!(d, total_back::<T>(r.clone(), g, inputs, &mut prods[k * d..], &mut ends[(k - 1) * d..]));
    }
    for k in (1..n).rev() {
        let (end, behind) = ends[(k - 1) * d..].split_at_mut(d);
        for ((end, &p), &behind) in end.iter_mut().zip(&prods[k * d..]).zip(&*behind) {
            *end += p * behind;
        }
    }
    for k in 0..n {
        let all = chunk_of(k, chunk, 1, steps);
        for t in all.clone().step_by(tile(d)).rev() {
            let r = t..(t + tile(d)).min(all.end);
            with_width!(d => by_lanes!(d, run_back::<T>(r.clone(), g, inputs, &mut ends[k * d..], (&mut *dx, acc))));
        }
    }
}

impl QuasiLstm {
    fn forward_cpu<T: Math>(&self, cpu: &Cpu, x: In, y: &mut [Value]) {
        let [h, last, g, c, u] = y else { return };
        let (_, t, d) = h.shape().split(1);
        let [h, last, g, c, u] = [h, last, g, c, u].map(|y| y.host_mut::<T>());
        let c0 = x[1].host::<T>();
        if t == 0 || d == 0 {
            return last.copy_from_slice(c0);
        }
        let (n, bias) = (t.div_ceil(self.chunk), T::of(self.forget_bias));
        let (mut starts, mut prods) = (cpu.temp::<T>(n * d), cpu.temp::<T>(n * d));
        for (b, (last, c0)) in last.chunks_exact_mut(d).zip(c0.chunks_exact(d)).enumerate() {
            let s = b * t * d..(b + 1) * t * d;
            let g = &mut g[4 * s.start..4 * s.end];
            // A sequence at a time: its gates are still in the cache when they are read.
            gates(d, bias, &x[0].host()[4 * s.start..4 * s.end], g);
            starts[..d].copy_from_slice(c0);
            let kept = if u.is_empty() { 0..0 } else { s.clone() };
            let to = [&mut c[s.clone()], &mut u[kept], &mut h[s.clone()]];
            forward((self.chunk, d), g, (&mut starts, &mut prods), to);
            last.copy_from_slice(&c[s.end - d..s.end]);
        }
    }

    fn backward_cpu<T: Math>(&self, cpu: &Cpu, x: In, y: &[Value], dy: &[Option<Tensor>], dx: &mut [Grad]) {
        let ([gx, gc0, ..], [dh, dlast, ..]) = (dx, dy) else { return };
        let (_, t, d) = y[0].shape().split(1);
        let (zh, zl) = (zeros::<T>(cpu, dh, &y[0]), zeros::<T>(cpu, dlast, &y[1]));
        let (dh, dlast) = (cotangent(dh, &zh), cotangent(dlast, &zl));
        let dc0 = gc0.slot_or_scratch::<[T]>(cpu, &x[1]);
        let (dx, acc) = gx.slot_or_scratch::<[T]>(cpu, &x[0]);
        if t == 0 || d == 0 {
            return put_all(dc0.0, dlast, dc0.1);
        }
        let ([g, c, u], c0) = ([2, 3, 4].map(|i| y[i].host::<T>()), x[1].host::<T>());
        let (n, batch) = (t.div_ceil(self.chunk), c0.len() / d);
        let (mut ends, mut prods) = (cpu.temp::<T>(n * d), cpu.temp::<T>(n * d));
        for b in 0..batch {
            let (s, s4, r) = (b * t * d..(b + 1) * t * d, b * t * 4 * d..(b + 1) * t * 4 * d, b * d..(b + 1) * d);
            ends[(n - 1) * d..].copy_from_slice(&dlast[r.clone()]);
            let kept = if u.is_empty() { 0..0 } else { s.clone() };
            let inputs = [&c[s.clone()], &u[kept], &c0[r.clone()], &dh[s]];
            backward((self.chunk, d), &g[s4.clone()], inputs, (&mut ends, &mut prods), (&mut dx[s4], acc));
            put_all(&mut dc0.0[r], &ends[..d], dc0.1);
        }
    }
}

static MODULE: Module = Module::new("kernels/quasi_lstm.cu", &[include_str!("quasi_lstm.cu")]);

impl QuasiLstm {
    fn forward_cuda(&self, cu: &Cuda, x: In, y: &mut [Value]) {
        let [h, last, _, c, _] = y else { return };
        let (p, dtype) = (Pieces::of(cu, h.shape(), self.chunk), x[0].dtype());
        let Pieces { n, pieces, t, d, steps } = p;
        let (mut starts, prods) = (p.scratch(cu, dtype), p.scratch(cu, dtype));
        if let (Some(starts), Some(mut prods)) = (&mut starts, prods) {
            let args = args![&x[0], &mut prods, &mut *starts, n, pieces, t, d, steps, self.forget_bias];
            cu.launch(&MODULE, "quasi_total", dtype, p.launch(), args);
            p.carry(cu, Some(&x[1]), &prods, starts, false, dtype);
        }
        let args = args![&x[0], &x[1], starts.as_ref(), c, h, last, n, pieces, t, d, steps, self.forget_bias];
        cu.launch(&MODULE, "quasi_run", dtype, p.launch(), args);
    }

    fn backward_cuda(&self, cu: &Cuda, x: In, y: &[Value], dy: &[Option<Tensor>], dx: &mut [Grad]) {
        let ([gx, gc0, ..], [dh, dlast, ..]) = (dx, dy) else { return };
        let (p, dtype) = (Pieces::of(cu, y[0].shape(), self.chunk), x[0].dtype());
        let Pieces { n, pieces, t, d, steps } = p;
        let (mut ends, prods) = (p.scratch(cu, dtype), p.scratch(cu, dtype));
        if let (Some(ends), Some(mut prods)) = (&mut ends, prods) {
            let args = args![&x[0], &y[3], dh, &mut prods, &mut *ends, n, pieces, t, d, steps, self.forget_bias];
            cu.launch(&MODULE, "quasi_total_back", dtype, p.launch(), args);
            p.carry(cu, dlast.as_ref(), &prods, ends, true, dtype);
        }
        let ((d4, acc), (dc0, acc_0)) = (gx.target(), gc0.target());
        let (ends, bias) = (ends.as_ref(), self.forget_bias);
        let args = args![&x[0], &y[3], &x[1], dh, dlast, ends, d4, acc, dc0, acc_0, n, pieces, t, d, steps, bias];
        cu.launch(&MODULE, "quasi_run_back", dtype, p.launch(), args);
    }
}

impl Kernel for QuasiLstm {
    fn saves(&self, x: In) -> Outs {
        let (b, t, d4) = x[0].shape().split(1);
        let (d, nothing, h) = (d4 / 4, Shape::from([0]), Shape::from([b, t, d4 / 4]));
        // A device computes the gates and u again, which is less work than moving them.
        let [gates, u] = match x[0].gpu() {
            Some(_) => [nothing; 2],
            None => [x[0].shape(), if d > FEW { nothing } else { h }],
        };
        [gates, h, u].into()
    }

    by_device!();
}
