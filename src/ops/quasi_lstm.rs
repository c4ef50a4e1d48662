//! The quasi-LSTM: an LSTM whose gates see the input alone, so that only c is recurrent, and linearly (Bradbury et al.
//! 2017, "Quasi-Recurrent Neural Networks", ifo-pooling; in this form in the Languini baselines). Gates in the order
//! f, i, z, o:
//!
//! f = σ(x_f + forget_bias);  i = σ(x_i);  z = tanh(x_z);  o = σ(x_o)
//! c_t = f c_{t-1} + i z;  h_t = o tanh c_t
//!
//! c is the linear scan of f and i z, in chunks as [`scan`](super::scan) explains. Backwards in time, with G the
//! gradient that step t + 1 hands back: dc = dh o (1 − tanh² c_t) + G;  dx_f = dc c_{t-1} f (1 − f);
//! dx_i = dc z i (1 − i);  dx_z = dc i (1 − z²);  dx_o = dh tanh c_t o (1 − o);  G = f dc to step t − 1.

use super::{
    lstm::each,
    math::Math,
    scan::{chunk_of, cotangent, put_all, same_dtype, some_steps, spare, target, zeros},
};
use crate::{
    autograd::{Gen, Grad, In, Op, Outs, Value, Var},
    tensor::{Cpu, Cx, Tensor},
    with_real,
};

/// x [B, T, 4D] (gates f, i, z, o before their nonlinearities) and c0 [B, D] to h [B, T, D] and the last c [B, D].
pub struct QuasiLstm {
    /// Steps a chunk; one chunk when it is T or more.
    pub chunk: usize,
    /// Added to x_f: 1 makes a fresh model remember.
    pub forget_bias: f64,
}

/// The four gates in a row of 4 D.
#[inline(always)]
fn gates<T>(row: &[T], d: usize) -> [&[T]; 4] {
    [&row[..d], &row[d..2 * d], &row[2 * d..3 * d], &row[3 * d..4 * d]]
}

/// Phase 1 forward: the map of one chunk, as (∏ f, end from zero).
#[inline(always)]
fn total<T: Math>(d: usize, g: &[T], prod: &mut [T], end: &mut [T]) {
    let (prod, end) = (&mut prod[..d], &mut end[..d]);
    prod.fill(T::ONE);
    end.fill(T::ZERO);
    for row in g.chunks_exact(4 * d) {
        let [f, i, z, _] = gates(row, d);
        for j in 0..d {
            prod[j] = f[j] * prod[j];
            end[j] = f[j] * end[j] + i[j] * z[j];
        }
    }
}

/// One sequence. `starts` and `prods` are scratch rows, one a chunk, the first start given.
#[multiversion::multiversion(targets("x86_64+avx512f+avx512vl+avx512dq+avx512bw", "x86_64+avx2"))]
fn forward<T: Math>(
    chunk: usize,
    d: usize,
    bias: T,
    g: &mut [T],
    (starts, prods): (&mut [T], &mut [T]),
    c: &mut [T],
    h: &mut [T],
) {
    for row in g.chunks_exact_mut(4 * d) {
        each(&mut row[..d], |x| (x + bias).sigmoid());
        each(&mut row[d..2 * d], T::sigmoid);
        each(&mut row[2 * d..3 * d], T::tanh);
        each(&mut row[3 * d..], T::sigmoid);
    }
    let n = starts.len() / d;
    for k in 1..n {
        total(d, &g[chunk_of(k - 1, chunk, 4 * d, g.len())], &mut prods[k * d..], &mut starts[k * d..]);
    }
    for k in 1..n {
        let (start, end) = starts[(k - 1) * d..].split_at_mut(d);
        for ((end, &p), &start) in end.iter_mut().zip(&prods[k * d..]).zip(&*start) {
            *end += p * start;
        }
    }
    for (t, (row, h)) in g.chunks_exact(4 * d).zip(h.chunks_exact_mut(d)).enumerate() {
        let [f, i, z, o] = gates(row, d);
        let (past, now) = c.split_at_mut(t * d);
        let before = if t % chunk == 0 { &starts[t / chunk * d..][..d] } else { &past[(t - 1) * d..][..d] };
        let c = &mut now[..d];
        for j in 0..d {
            c[j] = f[j] * before[j] + i[j] * z[j];
        }
        h.copy_from_slice(c);
        each(h, T::tanh);
        for j in 0..d {
            h[j] = o[j] * h[j];
        }
    }
}

/// Phase 1 backward: G at a chunk's first step as a map of G from behind it. `u` is tanh c.
#[inline(always)]
fn total_back<T: Math>(d: usize, g: &[T], u: &[T], dh: &[T], prod: &mut [T], end: &mut [T]) {
    let (prod, end) = (&mut prod[..d], &mut end[..d]);
    prod.fill(T::ONE);
    end.fill(T::ZERO);
    for ((row, u), dh) in g.chunks_exact(4 * d).zip(u.chunks_exact(d)).zip(dh.chunks_exact(d)).rev() {
        let [f, _, _, o] = gates(row, d);
        for j in 0..d {
            prod[j] = f[j] * prod[j];
            end[j] = f[j] * (end[j] + dh[j] * o[j] * (T::ONE - u[j] * u[j]));
        }
    }
}

/// One step backwards: `s` comes in as G from step t + 1 and leaves as G for t − 1.
#[inline(always)]
fn step_back<T: Math>(d: usize, (row, u, dh, before): (&[T], &[T], &[T], &[T]), s: &mut [T], out: &mut [T], acc: bool) {
    let [f, i, z, o] = gates(row, d);
    let (df, out) = out.split_at_mut(d);
    let (di, out) = out.split_at_mut(d);
    let (dz, d_o) = out.split_at_mut(d);
    let (u, dh, before, s, d_o) = (&u[..d], &dh[..d], &before[..d], &mut s[..d], &mut d_o[..d]);
    for j in 0..d {
        let dc = s[j] + dh[j] * o[j] * (T::ONE - u[j] * u[j]);
        let keep = |x: T| if acc { x } else { T::ZERO };
        df[j] = keep(df[j]) + dc * before[j] * f[j] * (T::ONE - f[j]);
        di[j] = keep(di[j]) + dc * z[j] * i[j] * (T::ONE - i[j]);
        dz[j] = keep(dz[j]) + dc * i[j] * (T::ONE - z[j] * z[j]);
        d_o[j] = keep(d_o[j]) + dh[j] * u[j] * o[j] * (T::ONE - o[j]);
        s[j] = f[j] * dc;
    }
}

/// One sequence. `ends` and `prods` are scratch rows, one a chunk: G from behind each chunk, of which the last is
/// given; afterwards `ends[0]` is dc0. `u` is scratch memory as large as c.
#[multiversion::multiversion(targets("x86_64+avx512f+avx512vl+avx512dq+avx512bw", "x86_64+avx2"))]
fn backward<T: Math>(
    chunk: usize,
    d: usize,
    (g, c, c0, dh): (&[T], &[T], &[T], &[T]),
    (ends, prods, u): (&mut [T], &mut [T], &mut [T]),
    (dx, acc): (&mut [T], bool),
) {
    u.copy_from_slice(c);
    each(u, T::tanh);
    let (n, len) = (ends.len() / d, c.len());
    for k in 1..n {
        let (r, r4) = (chunk_of(k, chunk, d, len), chunk_of(k, chunk, 4 * d, 4 * len));
        total_back(d, &g[r4], &u[r.clone()], &dh[r], &mut prods[k * d..], &mut ends[(k - 1) * d..]);
    }
    for k in (1..n).rev() {
        let (end, behind) = ends[(k - 1) * d..].split_at_mut(d);
        for ((end, &p), &behind) in end.iter_mut().zip(&prods[k * d..]).zip(&*behind) {
            *end += p * behind;
        }
    }
    for t in (0..len / d).rev() {
        let (r, r4) = (t * d..(t + 1) * d, t * 4 * d..(t + 1) * 4 * d);
        let before = if t == 0 { c0 } else { &c[r.start - d..r.start] };
        let s = &mut ends[t / chunk * d..][..d];
        step_back(d, (&g[r4.clone()], &u[r.clone()], &dh[r.clone()], before), s, &mut dx[r4], acc);
    }
}

impl QuasiLstm {
    fn forward_cpu<T: Math>(&self, cpu: &Cpu, x: In, y: &mut [Value]) {
        let [h, last, g, c] = y else { return };
        let (_, t, d) = h.shape().split(1);
        let (h, last, c) = (h.host_mut::<T>(), last.host_mut::<T>(), c.host_mut::<T>());
        let (g, c0) = (g.host_mut::<T>(), x[1].host::<T>());
        if t == 0 || d == 0 {
            return last.copy_from_slice(c0);
        }
        g.copy_from_slice(x[0].host());
        let n = t.div_ceil(self.chunk);
        let (mut starts, mut prods) = (cpu.temp::<T>(n * d), cpu.temp::<T>(n * d));
        for (b, (last, c0)) in last.chunks_exact_mut(d).zip(c0.chunks_exact(d)).enumerate() {
            let s = b * t * d..(b + 1) * t * d;
            starts[..d].copy_from_slice(c0);
            let scratch = (&mut starts[..], &mut prods[..]);
            let (g, c) = (&mut g[4 * s.start..4 * s.end], &mut c[s.clone()]);
            forward(self.chunk, d, T::of(self.forget_bias), g, scratch, c, &mut h[s]);
            last.copy_from_slice(&c[(t - 1) * d..]);
        }
    }

    fn backward_cpu<T: Math>(&self, cpu: &Cpu, x: In, y: &[Value], dy: &[Option<Tensor>], dx: &mut [Grad]) {
        let ([gx, gc0], [dh, dlast, ..]) = (dx, dy) else { return };
        let (_, t, d) = y[0].shape().split(1);
        let (zh, zl) = (zeros::<T>(cpu, dh, &y[0]), zeros::<T>(cpu, dlast, &y[1]));
        let (dh, dlast) = (cotangent(dh, &zh), cotangent(dlast, &zl));
        let (mut sx, mut s0) = (spare(cpu, gx, &x[0]), spare(cpu, gc0, &x[1]));
        let (dx, dc0) = (target::<T>(gx, &mut sx), target::<T>(gc0, &mut s0));
        if t == 0 || d == 0 {
            return put_all(dc0.0, dlast, dc0.1);
        }
        let (g, c, c0) = (y[2].host::<T>(), y[3].host::<T>(), x[1].host::<T>());
        let n = t.div_ceil(self.chunk);
        let (mut ends, mut prods, mut u) = (cpu.temp::<T>(n * d), cpu.temp::<T>(n * d), cpu.temp::<T>(t * d));
        for b in 0..c0.len() / d {
            let (s, s4, r) = (b * t * d..(b + 1) * t * d, b * t * 4 * d..(b + 1) * t * 4 * d, b * d..(b + 1) * d);
            ends[(n - 1) * d..].copy_from_slice(&dlast[r.clone()]);
            let inputs = (&g[s4.clone()], &c[s.clone()], &c0[r.clone()], &dh[s]);
            backward(self.chunk, d, inputs, (&mut ends, &mut prods, &mut u), (&mut dx.0[s4], dx.1));
            put_all(&mut dc0.0[r], &ends[..d], dc0.1);
        }
    }
}

impl Op for QuasiLstm {
    fn name(&self) -> &'static str {
        "quasi_lstm"
    }

    fn infer(&self, x: In) -> Result<Outs, String> {
        let (v, c0) = (x[0].shape(), x[1].shape());
        let [b, t, d4] = v.array()?;
        if d4 % 4 != 0 || c0 != [b, d4 / 4].into() {
            return Err(format!("x {v} and c0 {c0} do not fit: expected [B, T, 4D] and [B, D]"));
        }
        same_dtype(x).and(some_steps(self.chunk))?;
        let h = [b, t, d4 / 4].into();
        Ok(Outs::from([h, c0]).saving([v, h]))
    }

    fn forward(&self, cx: &Cx, x: In, y: &mut [Value]) {
        match cx {
            Cx::Cpu(cpu) => with_real!(x[0].dtype(), T => self.forward_cpu::<T>(cpu, x, y)),
        }
    }

    fn backward(&self, cx: &Cx, x: In, y: &[Value], dy: &[Option<Tensor>], dx: &mut [Grad]) {
        match cx {
            Cx::Cpu(cpu) => with_real!(x[0].dtype(), T => self.backward_cpu::<T>(cpu, x, y, dy, dx)),
        }
    }

    fn sample(g: &mut Gen) -> (Self, Vec<Tensor>) {
        let (b, t, d) = (g.size(3), g.size(7), g.size(5));
        let op = QuasiLstm { chunk: g.size(5), forget_bias: g.uniform(-1.0, 1.0) };
        (op, vec![g.normal([b, t, 4 * d]), g.normal([b, d])])
    }
}

/// (h, c_last) of [`QuasiLstm`]: x [B, T, 4D], c0 [B, D] to h [B, T, D] and the last c [B, D] (c0 when T = 0).
#[track_caller]
pub fn quasi_lstm<'t>(x: Var<'t>, c0: Var<'t>, forget_bias: f64, chunk: usize) -> (Var<'t>, Var<'t>) {
    let [h, last] = x.tape().apply_many(QuasiLstm { chunk, forget_bias }, [x, c0]);
    (h, last)
}
