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
    math::Math,
    same_dtype,
    scan::{Pieces, at, by_device, by_lanes, chunk_of, cotangent, each, put, put_all, some_steps, zeros},
};
use crate::{
    args,
    autograd::{Gen, Grad, In, Op, Outs, Value, Var},
    cuda::{Cuda, Module},
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

/// W channels of gate `k` (f, i, z, o) at step t.
#[inline(always)]
fn gate<T: Math, const W: usize>(g: &[T], t: usize, k: usize, d: usize, i: usize) -> [T; W] {
    at(g, 4 * t + k, d, i)
}

/// Steps so few that their rows stay in the fastest cache while all runs of channels pass over them.
fn tile(d: usize) -> usize {
    (512 / d).max(1)
}

/// The gates from their sums.
#[inline(always)]
fn activate<T: Math, const W: usize>(i: usize, d: usize, bias: T, x: &[T], g: &mut [T]) {
    for t in 0..x.len() / (4 * d) {
        let f: [T; W] = each(gate(x, t, 0, d, i), |x| (x + bias).sigmoid());
        put(g, 4 * t, d, i, f, false);
        put(g, 4 * t + 1, d, i, each::<T, W>(gate(x, t, 1, d, i), T::sigmoid), false);
        put(g, 4 * t + 2, d, i, each::<T, W>(gate(x, t, 2, d, i), T::tanh), false);
        put(g, 4 * t + 3, d, i, each::<T, W>(gate(x, t, 3, d, i), T::sigmoid), false);
    }
}

/// Phase 1 forward: the map of one chunk, as (∏ f, end from zero).
#[inline(always)]
fn total<T: Math, const W: usize>(i: usize, d: usize, g: &[T], prod: &mut [T], end: &mut [T]) {
    let (mut p, mut c) = ([T::ONE; W], [T::ZERO; W]);
    for t in 0..g.len() / (4 * d) {
        let [f, ig, z]: [[T; W]; 3] = std::array::from_fn(|k| gate(g, t, k, d, i));
        for l in 0..W {
            p[l] = f[l] * p[l];
            c[l] = f[l].fma(c[l], ig[l] * z[l]);
        }
    }
    put(prod, 0, d, i, p, false);
    put(end, 0, d, i, c, false);
}

/// Phase 3 forward: c and h over some rows; `state` comes in as c before them and leaves as the last.
#[inline(always)]
fn run<T: Math, const W: usize>(i: usize, d: usize, g: &[T], state: &mut [T], c: &mut [T], h: &mut [T]) {
    let mut s: [T; W] = at(state, 0, d, i);
    for t in 0..g.len() / (4 * d) {
        let [f, ig, z, o]: [[T; W]; 4] = std::array::from_fn(|k| gate(g, t, k, d, i));
        for l in 0..W {
            s[l] = f[l].fma(s[l], ig[l] * z[l]);
        }
        let mut u = each(s, T::tanh);
        for l in 0..W {
            u[l] = o[l] * u[l];
        }
        put(c, t, d, i, s, false);
        put(h, t, d, i, u, false);
    }
    put(state, 0, d, i, s, false);
}

/// One sequence. `starts` and `prods` are scratch rows, one a chunk, the first start given.
#[multiversion::multiversion(targets("x86_64+avx512f+avx512vl+avx512dq+avx512bw", "x86_64+avx2+fma"))]
fn forward<T: Math>(
    (chunk, d, bias): (usize, usize, T),
    x: &[T],
    g: &mut [T],
    (starts, prods): (&mut [T], &mut [T]),
    c: &mut [T],
    h: &mut [T],
) {
    let tile = tile(d);
    for (x, g) in x.chunks(tile * 4 * d).zip(g.chunks_mut(tile * 4 * d)) {
        by_lanes!(d, activate::<T>(bias, x, g));
    }
    let n = starts.len() / d;
    for k in 1..n {
        let g = &g[chunk_of(k - 1, chunk, 4 * d, x.len())];
        by_lanes!(d, total::<T>(g, &mut prods[k * d..], &mut starts[k * d..]));
    }
    for k in 1..n {
        let (start, end) = starts[(k - 1) * d..].split_at_mut(d);
        for ((end, &p), &start) in end.iter_mut().zip(&prods[k * d..]).zip(&*start) {
            *end += p * start;
        }
    }
    for k in 0..n {
        let (r, g) = (chunk_of(k, chunk, d, h.len()), &g[chunk_of(k, chunk, 4 * d, x.len())]);
        let (c, h) = (c[r.clone()].chunks_mut(tile * d), h[r].chunks_mut(tile * d));
        for ((g, c), h) in g.chunks(tile * 4 * d).zip(c).zip(h) {
            by_lanes!(d, run::<T>(g, &mut starts[k * d..], c, h));
        }
    }
}

/// Phase 1 backward: G at a chunk's first step as a map of G from behind it.
#[inline(always)]
fn total_back<T: Math, const W: usize>(
    i: usize,
    d: usize,
    (g, c, dh): (&[T], &[T], &[T]),
    prod: &mut [T],
    end: &mut [T],
) {
    let (mut p, mut s) = ([T::ONE; W], [T::ZERO; W]);
    for t in (0..c.len() / d).rev() {
        let (f, o): ([T; W], [T; W]) = (gate(g, t, 0, d, i), gate(g, t, 3, d, i));
        let (u, dh) = (each::<T, W>(at(c, t, d, i), T::tanh), at::<T, W>(dh, t, d, i));
        for l in 0..W {
            p[l] = f[l] * p[l];
            s[l] = f[l] * (s[l] + dh[l] * o[l] * (T::ONE - u[l] * u[l]));
        }
    }
    put(prod, 0, d, i, p, false);
    put(end, 0, d, i, s, false);
}

/// Phase 3 backward: `s` comes in as G from behind the rows and leaves as G of the first; `before` is c before them.
#[inline(always)]
fn run_back<T: Math, const W: usize>(
    i: usize,
    d: usize,
    (g, c, before, dh): (&[T], &[T], &[T], &[T]),
    s: &mut [T],
    dx: &mut [T],
    acc: bool,
) {
    let mut back: [T; W] = at(s, 0, d, i);
    for t in (0..c.len() / d).rev() {
        let [f, ig, z, o]: [[T; W]; 4] = std::array::from_fn(|k| gate(g, t, k, d, i));
        let (u, dh) = (each::<T, W>(at(c, t, d, i), T::tanh), at::<T, W>(dh, t, d, i));
        let before: [T; W] = if t == 0 { at(before, 0, d, i) } else { at(c, t - 1, d, i) };
        let mut out = [[T::ZERO; W]; 4];
        for l in 0..W {
            let dc = back[l] + dh[l] * o[l] * (T::ONE - u[l] * u[l]);
            out[0][l] = dc * before[l] * f[l] * (T::ONE - f[l]);
            out[1][l] = dc * z[l] * ig[l] * (T::ONE - ig[l]);
            out[2][l] = dc * ig[l] * (T::ONE - z[l] * z[l]);
            out[3][l] = dh[l] * u[l] * o[l] * (T::ONE - o[l]);
            back[l] = f[l] * dc;
        }
        for (k, &out) in out.iter().enumerate() {
            put(dx, 4 * t + k, d, i, out, acc);
        }
    }
    put(s, 0, d, i, back, false);
}

/// One sequence. `ends` and `prods` are scratch rows, one a chunk: G from behind each chunk, of which the last is
/// given; afterwards `ends[0]` is dc0.
#[multiversion::multiversion(targets("x86_64+avx512f+avx512vl+avx512dq+avx512bw", "x86_64+avx2+fma"))]
fn backward<T: Math>(
    (chunk, d): (usize, usize),
    (g, c, c0, dh): (&[T], &[T], &[T], &[T]),
    (ends, prods): (&mut [T], &mut [T]),
    (dx, acc): (&mut [T], bool),
) {
    let (n, len) = (ends.len() / d, c.len());
    let rows = |k: usize| (chunk_of(k, chunk, 4 * d, 4 * len), chunk_of(k, chunk, d, len));
    for k in 1..n {
        let (r4, r) = rows(k);
        let inputs = (&g[r4], &c[r.clone()], &dh[r]);
        by_lanes!(d, total_back::<T>(inputs, &mut prods[k * d..], &mut ends[(k - 1) * d..]));
    }
    for k in (1..n).rev() {
        let (end, behind) = ends[(k - 1) * d..].split_at_mut(d);
        for ((end, &p), &behind) in end.iter_mut().zip(&prods[k * d..]).zip(&*behind) {
            *end += p * behind;
        }
    }
    for k in 0..n {
        let (all, tile) = (rows(k).1, tile(d) * d);
        for start in all.clone().step_by(tile).rev() {
            let r = start..(start + tile).min(all.end);
            let before = if start == 0 { c0 } else { &c[start - d..start] };
            let inputs = (&g[4 * start..4 * r.end], &c[r.clone()], before, &dh[r.clone()]);
            by_lanes!(d, run_back::<T>(inputs, &mut ends[k * d..], &mut dx[4 * start..4 * r.end], acc));
        }
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
        let v = x[0].host::<T>();
        let n = t.div_ceil(self.chunk);
        let (mut starts, mut prods) = (cpu.temp::<T>(n * d), cpu.temp::<T>(n * d));
        for (b, (last, c0)) in last.chunks_exact_mut(d).zip(c0.chunks_exact(d)).enumerate() {
            let s = b * t * d..(b + 1) * t * d;
            starts[..d].copy_from_slice(c0);
            let scratch = (&mut starts[..], &mut prods[..]);
            let (s4, c) = (4 * s.start..4 * s.end, &mut c[s.clone()]);
            let sizes = (self.chunk, d, T::of(self.forget_bias));
            forward(sizes, &v[s4.clone()], &mut g[s4], scratch, c, &mut h[s]);
            last.copy_from_slice(&c[(t - 1) * d..]);
        }
    }

    fn backward_cpu<T: Math>(&self, cpu: &Cpu, x: In, y: &[Value], dy: &[Option<Tensor>], dx: &mut [Grad]) {
        let ([gx, gc0], [dh, dlast, ..]) = (dx, dy) else { return };
        let (_, t, d) = y[0].shape().split(1);
        let (zh, zl) = (zeros::<T>(cpu, dh, &y[0]), zeros::<T>(cpu, dlast, &y[1]));
        let (dh, dlast) = (cotangent(dh, &zh), cotangent(dlast, &zl));
        let (dx, dc0) = (gx.merged::<T>(cpu, &x[0]), gc0.merged::<T>(cpu, &x[1]));
        if t == 0 || d == 0 {
            return put_all(dc0.0, dlast, dc0.1);
        }
        let (g, c, c0) = (y[2].host::<T>(), y[3].host::<T>(), x[1].host::<T>());
        let n = t.div_ceil(self.chunk);
        let (mut ends, mut prods) = (cpu.temp::<T>(n * d), cpu.temp::<T>(n * d));
        for b in 0..c0.len() / d {
            let (s, s4, r) = (b * t * d..(b + 1) * t * d, b * t * 4 * d..(b + 1) * t * 4 * d, b * d..(b + 1) * d);
            ends[(n - 1) * d..].copy_from_slice(&dlast[r.clone()]);
            let inputs = (&g[s4.clone()], &c[s.clone()], &c0[r.clone()], &dh[s]);
            backward((self.chunk, d), inputs, (&mut ends, &mut prods), (&mut dx.0[s4], dx.1));
            put_all(&mut dc0.0[r], &ends[..d], dc0.1);
        }
    }
}

static MODULE: Module = Module::new("ops/quasi_lstm.cu", &[include_str!("quasi_lstm.cu")]);

impl QuasiLstm {
    fn forward_cuda(&self, cu: &Cuda, x: In, y: &mut [Value]) {
        let [h, last, _, c] = y else { return };
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
        let ([gx, gc0], [dh, dlast, ..]) = (dx, dy) else { return };
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
        same_dtype(x, self.in_f32()).and(some_steps(self.chunk))?;
        let h = [b, t, d4 / 4].into();
        // A device computes the gates again, which is less work than moving them.
        let gates = if x[0].gpu().is_some() { [0].into() } else { v };
        Ok(Outs::from([h, c0]).saving([gates, h]))
    }

    by_device!();

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
