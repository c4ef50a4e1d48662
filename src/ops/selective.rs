//! The selective scan of Mamba (Gu & Dao 2023, "Mamba: Linear-Time Sequence Modeling with Selective State Spaces",
//! algorithm 2). Channel e has a state of N numbers; step size Δ, input map b and output map c depend on the input:
//!
//! h_t = ā_t h_{t-1} + Δ_t b_t u_t;  y_t = Σ_n c_t h_t;  ā_t = s exp(Δ_t a) − (s − 1)
//!
//! s = 1 is Mamba. s = 2 stretches the transitions from (0, 1) to (−1, 1), which lets the state change sign: what state
//! tracking needs (Grazzi et al. 2025, "Unlocking State-Tracking in Linear RNNs Through Negative Eigenvalues").
//!
//! Backwards in time, with G_t = ā_t g_t what step t hands to step t − 1 and w_t = exp(Δ_t a):
//! g_t = c_t dy_t + G_{t+1};  q_t = g_t h_{t-1} s w_t, the gradient of Δ_t a;  da = Σ_{b,t} q_t Δ_t;
//! dΔ_t = u_t Σ_n g_t b_t + Σ_n q_t a;  du_t = Δ_t Σ_n g_t b_t;  db_t = Σ_e g_t Δ_t u_t;  dc_t = Σ_e dy_t h_t.
//!
//! The states [B, T, E, N] are never stored: forward keeps one at the start of every chunk of steps, and backward
//! computes those inside a chunk again. In here a state is [N, E], so that loops run along the channels, whose number
//! is rounded up to whole blocks.

mod device;

use super::{
    lane_sums::LANES as L,
    math::Math,
    same_dtype,
    scan::{by_device, cotangent, put_all, some_steps, spare, target, zeros},
};
use crate::{
    autograd::{Gen, Grad, In, Op, Outs, Value, Var},
    tensor::{Cpu, Cx, Element, Real, Shape, Temp, Tensor},
    with_real,
};

/// u and Δ > 0 [B, T, E], a [E, N], b and c [B, T, N], h0 [B, E, N] to y [B, T, E] and the last state [B, E, N].
pub struct SelectiveScan {
    /// Steps between the states that are kept for the backward pass.
    pub chunk: usize,
    /// ā = s exp(Δ a) − (s − 1): 1 for transitions in (0, 1), 2 for (−1, 1).
    pub s: f64,
}

/// Channels in blocks: a row of a state or of an input. A state is N such rows after one another.
type Blocks<T> = [[T; L]];

/// Scratch memory in blocks, `n` of them.
struct Scratch<'a, T: Element>(Temp<'a, T>);

impl<'a, T: Real> Scratch<'a, T> {
    fn new(cpu: &'a Cpu, n: usize) -> Scratch<'a, T> {
        Scratch(cpu.zeros(n * L))
    }

    fn get(&mut self) -> &mut Blocks<T> {
        self.0.as_chunks_mut().0
    }
}

/// From [E, N] to a state.
fn load<T: Real>(n: usize, x: &[T], state: &mut Blocks<T>) {
    let m = state.len() / n;
    for (e, x) in x.chunks_exact(n).enumerate() {
        for (k, &x) in x.iter().enumerate() {
            state[k * m + e / L][e % L] = x;
        }
    }
}

/// From a state to [E, N], written or added.
fn store<T: Real>(n: usize, state: &Blocks<T>, x: &mut [T], acc: bool) {
    let m = state.len() / n;
    for (e, x) in x.chunks_exact_mut(n).enumerate() {
        for (k, x) in x.iter_mut().enumerate() {
            let v = state[k * m + e / L][e % L];
            *x = if acc { *x + v } else { v };
        }
    }
}

/// The inputs of one sequence: u, Δ [T, E] and b, c [T, N], and a as a state.
#[derive(Clone, Copy)]
struct Sequence<'a, T> {
    n: usize,
    e: usize,
    s: T,
    u: &'a [T],
    delta: &'a [T],
    b: &'a [T],
    c: &'a [T],
    a: &'a Blocks<T>,
}

impl<T: Math> Sequence<'_, T> {
    /// Δ_t and Δ_t u_t.
    #[inline(always)]
    fn step(&self, t: usize, delta: &mut Blocks<T>, write: &mut Blocks<T>) {
        let (u, dt) = (&self.u[t * self.e..][..self.e], &self.delta[t * self.e..][..self.e]);
        delta.as_flattened_mut()[..self.e].copy_from_slice(dt);
        for ((w, &u), &dt) in write.as_flattened_mut().iter_mut().zip(u).zip(dt) {
            *w = dt * u;
        }
    }
}

/// One sequence forwards: `h` is h0 and becomes the last state; `saved` gets the state before every chunk.
/// `rows` is scratch memory for three rows.
#[multiversion::multiversion(targets("x86_64+avx512f+avx512vl+avx512dq+avx512bw", "x86_64+avx2"))]
fn forward<T: Math>(
    x: Sequence<T>,
    chunk: usize,
    rows: &mut Blocks<T>,
    h: &mut Blocks<T>,
    saved: &mut Blocks<T>,
    y: &mut [T],
) {
    let m = h.len() / x.n;
    let (delta, rows) = rows.split_at_mut(m);
    let (write, sum) = rows.split_at_mut(m);
    for (t, y) in y.chunks_exact_mut(x.e).enumerate() {
        if t % chunk == 0 {
            saved[t / chunk * h.len()..][..h.len()].copy_from_slice(h);
        }
        x.step(t, delta, write);
        sum.fill([T::ZERO; L]);
        for n in 0..x.n {
            let (b, c) = (x.b[t * x.n + n], x.c[t * x.n + n]);
            let (a, h) = (&x.a[n * m..][..m], &mut h[n * m..][..m]);
            let (delta, write, sum) = (&delta[..m], &write[..m], &mut sum[..m]);
            for i in 0..m {
                for l in 0..L {
                    let keep = x.s * (delta[i][l] * a[i][l]).exp() - (x.s - T::ONE);
                    h[i][l] = keep * h[i][l] + write[i][l] * b;
                    sum[i][l] += c * h[i][l];
                }
            }
        }
        y.copy_from_slice(&sum.as_flattened()[..x.e]);
    }
}

/// The scratch memory of the backward pass: states before and after every step of a chunk, w = exp(Δ a) of every
/// step, da and G as states, db and dc of one step with a block for each n, still to be summed, and five rows.
struct Work<'a, T> {
    h: &'a mut Blocks<T>,
    w: &'a mut Blocks<T>,
    da: &'a mut Blocks<T>,
    g: &'a mut Blocks<T>,
    db: &'a mut Blocks<T>,
    dc: &'a mut Blocks<T>,
    rows: &'a mut Blocks<T>,
}

/// The gradients of u, Δ, b and c over some steps of a sequence, each with whether to add.
struct Out<'a, T> {
    u: (&'a mut [T], bool),
    delta: (&'a mut [T], bool),
    b: (&'a mut [T], bool),
    c: (&'a mut [T], bool),
}

/// The states of steps t0..t1 again, from the one before them at the start of `k.h`.
#[inline(always)]
fn again<T: Math>(x: Sequence<T>, t0: usize, t1: usize, k: &mut Work<T>) {
    let size = x.a.len();
    let m = size / x.n;
    let (delta, write) = k.rows.split_at_mut(m);
    for t in t0..t1 {
        x.step(t, delta, write);
        let (before, after) = k.h[(t - t0) * size..].split_at_mut(size);
        let w = &mut k.w[(t - t0) * size..][..size];
        for n in 0..x.n {
            let b = x.b[t * x.n + n];
            let (a, w) = (&x.a[n * m..][..m], &mut w[n * m..][..m]);
            let (before, after) = (&before[n * m..][..m], &mut after[n * m..][..m]);
            let (delta, write) = (&delta[..m], &write[..m]);
            for i in 0..m {
                for l in 0..L {
                    w[i][l] = (delta[i][l] * a[i][l]).exp();
                    after[i][l] = (x.s * w[i][l] - (x.s - T::ONE)) * before[i][l] + write[i][l] * b;
                }
            }
        }
    }
}

/// Steps t0..t1 of one sequence backwards: `k.g` comes in as G from behind them and leaves as G of the first.
#[multiversion::multiversion(targets("x86_64+avx512f+avx512vl+avx512dq+avx512bw", "x86_64+avx2"))]
fn backward<T: Math>(x: Sequence<T>, (t0, t1): (usize, usize), dy: &[T], k: &mut Work<T>, out: &mut Out<T>) {
    again(x, t0, t1, k);
    let size = x.a.len();
    let m = size / x.n;
    for t in (t0..t1).rev() {
        let [delta, write, dy_t, gb, qa] = split(k.rows, m);
        x.step(t, delta, write);
        dy_t.as_flattened_mut()[..x.e].copy_from_slice(&dy[t * x.e..][..x.e]);
        gb.fill([T::ZERO; L]);
        qa.fill([T::ZERO; L]);
        let (before, after) = k.h[(t - t0) * size..][..2 * size].split_at(size);
        let w = &k.w[(t - t0) * size..][..size];
        for n in 0..x.n {
            let (b, c) = (x.b[t * x.n + n], x.c[t * x.n + n]);
            let r = n * m..(n + 1) * m;
            let (a, w, before, after) = (&x.a[r.clone()], &w[r.clone()], &before[r.clone()], &after[r.clone()]);
            let (da, g) = (&mut k.da[r.clone()], &mut k.g[r]);
            let (mut db, mut dc) = ([T::ZERO; L], [T::ZERO; L]);
            for i in 0..m {
                // Copies: the compiler then knows that no output is an input.
                let (a, w, before, after) = (a[i], w[i], before[i], after[i]);
                let (delta, write, dy) = (delta[i], write[i], dy_t[i]);
                let (mut g_i, mut gb_i, mut qa_i, mut da_i) = (g[i], gb[i], qa[i], da[i]);
                for l in 0..L {
                    let (gt, sw) = (c * dy[l] + g_i[l], x.s * w[l]);
                    let q = gt * before[l] * sw;
                    db[l] += gt * write[l];
                    dc[l] += dy[l] * after[l];
                    gb_i[l] += gt * b;
                    qa_i[l] += q * a[l];
                    da_i[l] += q * delta[l];
                    g_i[l] = gt * (sw - (x.s - T::ONE));
                }
                (g[i], gb[i], qa[i], da[i]) = (g_i, gb_i, qa_i, da_i);
            }
            (k.db[n], k.dc[n]) = (db, dc);
        }
        for n in 0..x.n {
            add(&mut out.b, t * x.n + n, k.db[n].iter().copied().sum());
            add(&mut out.c, t * x.n + n, k.dc[n].iter().copied().sum());
        }
        let r = t * x.e..(t + 1) * x.e;
        let (delta, gb, qa) = (&delta.as_flattened()[..x.e], &gb.as_flattened()[..x.e], &qa.as_flattened()[..x.e]);
        let (u, ddelta, du) = (&x.u[r.clone()], &mut out.delta.0[r.clone()], &mut out.u.0[r]);
        for e in 0..x.e {
            ddelta[e] = u[e] * gb[e] + qa[e] + if out.delta.1 { ddelta[e] } else { T::ZERO };
            du[e] = delta[e] * gb[e] + if out.u.1 { du[e] } else { T::ZERO };
        }
    }
}

/// Write or add one gradient.
#[inline(always)]
fn add<T: Real>(d: &mut (&mut [T], bool), i: usize, g: T) {
    d.0[i] = if d.1 { d.0[i] + g } else { g };
}

/// K rows of m blocks.
#[inline(always)]
fn split<T, const K: usize>(mut rows: &mut Blocks<T>, m: usize) -> [&mut Blocks<T>; K] {
    std::array::from_fn(|_| {
        let (row, rest) = std::mem::take(&mut rows).split_at_mut(m);
        rows = rest;
        row
    })
}

/// Sizes: batch, steps, channels, states, chunks, blocks a row.
struct Size {
    b: usize,
    t: usize,
    e: usize,
    n: usize,
    chunks: usize,
    m: usize,
}

impl SelectiveScan {
    fn size(&self, x: In) -> Size {
        let ((b, t, e), n) = (x[0].shape().split(1), x[3].shape().last());
        Size { b, t, e, n, chunks: t.div_ceil(self.chunk), m: e.div_ceil(L) }
    }

    /// Sequence i of the batch.
    fn sequence<'a, T: Real>(&self, z: &Size, x: &'a In, a: &'a Blocks<T>, i: usize) -> Sequence<'a, T> {
        let part = |k: usize, width: usize| &x[k].host::<T>()[i * z.t * width..(i + 1) * z.t * width];
        let (u, delta, b, c) = (part(0, z.e), part(1, z.e), part(3, z.n), part(4, z.n));
        Sequence { n: z.n, e: z.e, s: T::of(self.s), u, delta, b, c, a }
    }

    fn forward_cpu<T: Math>(&self, cpu: &Cpu, x: In, y: &mut [Value]) {
        let [y, last, saved] = y else { return };
        let z = self.size(x);
        let (y, last, h0) = (y.host_mut::<T>(), last.host_mut::<T>(), x[5].host::<T>());
        if z.t * z.e * z.n == 0 {
            y.fill(T::ZERO);
            return last.copy_from_slice(h0);
        }
        let (mut a, mut h, mut rows) =
            (Scratch::new(cpu, z.n * z.m), Scratch::new(cpu, z.n * z.m), Scratch::new(cpu, 3 * z.m));
        load(z.n, x[2].host::<T>(), a.get());
        let saved = saved.host_mut::<T>().as_chunks_mut().0;
        for i in 0..z.b {
            let (state, checkpoints) = (z.e * z.n, z.chunks * z.n * z.m);
            load(z.n, &h0[i * state..][..state], h.get());
            let saved = &mut saved[i * checkpoints..][..checkpoints];
            let y = &mut y[i * z.t * z.e..][..z.t * z.e];
            forward(self.sequence(&z, &x, a.get(), i), self.chunk, rows.get(), h.get(), saved, y);
            store(z.n, h.get(), &mut last[i * state..][..state], false);
        }
    }

    fn backward_cpu<T: Math>(&self, cpu: &Cpu, x: In, y: &[Value], dy: &[Option<Tensor>], dx: &mut [Grad]) {
        let ([gu, gdelta, ga, gb, gc, gh0], [dy, dlast, ..]) = (dx, dy) else { return };
        let z = self.size(x);
        let (zy, zl) = (zeros::<T>(cpu, dy, &y[0]), zeros::<T>(cpu, dlast, &y[1]));
        let (dy, dlast) = (cotangent(dy, &zy), cotangent(dlast, &zl));
        let (mut su, mut sd, mut s0) = (spare(cpu, gu, &x[0]), spare(cpu, gdelta, &x[1]), spare(cpu, gh0, &x[5]));
        let (mut sb, mut sc) = (spare(cpu, gb, &x[3]), spare(cpu, gc, &x[4]));
        let (du, ddelta, dh0) = (target::<T>(gu, &mut su), target::<T>(gdelta, &mut sd), target::<T>(gh0, &mut s0));
        let (db, dc) = (target::<T>(gb, &mut sb), target::<T>(gc, &mut sc));
        let da = ga.slice::<T>(cpu, &x[2]);
        let mut out = Out { u: du, delta: ddelta, b: db, c: dc };
        if z.t * z.e * z.n == 0 {
            for d in [out.u, out.delta, out.b, out.c].into_iter().filter(|d| !d.1) {
                d.0.fill(T::ZERO);
            }
            return put_all(dh0.0, dlast, dh0.1);
        }
        let (size, steps) = (z.n * z.m, self.chunk.min(z.t));
        let [mut a, mut sum, mut g] = std::array::from_fn(|_| Scratch::new(cpu, size));
        let (mut h, mut w) = (Scratch::new(cpu, (steps + 1) * size), Scratch::new(cpu, steps * size));
        let [mut db, mut dc] = std::array::from_fn(|_| Scratch::new(cpu, z.n));
        let mut rows = Scratch::new(cpu, 5 * z.m);
        load(z.n, x[2].host::<T>(), a.get());
        let saved = y[2].host::<T>().as_chunks::<L>().0;
        for i in 0..z.b {
            let state = i * z.e * z.n..(i + 1) * z.e * z.n;
            load(z.n, &dlast[state.clone()], g.get());
            let mut out = out.of(i, &z);
            let x = self.sequence(&z, &x, a.get(), i);
            for k in (0..z.chunks).rev() {
                h.get()[..size].copy_from_slice(&saved[(i * z.chunks + k) * size..][..size]);
                let steps = (k * self.chunk, ((k + 1) * self.chunk).min(z.t));
                let (h, w, da, g) = (h.get(), w.get(), sum.get(), g.get());
                let mut work = Work { h, w, da, g, db: db.get(), dc: dc.get(), rows: rows.get() };
                backward(x, steps, &dy[i * z.t * z.e..][..z.t * z.e], &mut work, &mut out);
            }
            store(z.n, g.get(), &mut dh0.0[state], dh0.1);
        }
        store(z.n, sum.get(), da, true);
    }
}

impl<T> Out<'_, T> {
    /// The part of sequence i.
    fn of(&mut self, i: usize, z: &Size) -> Out<'_, T> {
        let (e, n) = (i * z.t * z.e..(i + 1) * z.t * z.e, i * z.t * z.n..(i + 1) * z.t * z.n);
        Out {
            u: (&mut self.u.0[e.clone()], self.u.1),
            delta: (&mut self.delta.0[e], self.delta.1),
            b: (&mut self.b.0[n.clone()], self.b.1),
            c: (&mut self.c.0[n], self.c.1),
        }
    }
}

impl Op for SelectiveScan {
    fn name(&self) -> &'static str {
        "selective_scan"
    }

    fn infer(&self, x: In) -> Result<Outs, String> {
        let [u, delta, a, b, c, h0] = std::array::from_fn(|i| x[i].shape());
        let [batch, t, e] = u.array()?;
        let [_, n] = a.array()?;
        let fits =
            delta == u && a == [e, n].into() && b == [batch, t, n].into() && c == b && h0 == [batch, e, n].into();
        if !fits {
            return Err(format!(
                "u {u}, Δ {delta}, a {a}, b {b}, c {c} and h0 {h0} do not fit: expected [B, T, E] twice, [E, N], \
                 [B, T, N] twice and [B, E, N]"
            ));
        }
        same_dtype(x, self.in_f32()).and(some_steps(self.chunk))?;
        let saved: Shape = [batch, t.div_ceil(self.chunk), n, e.next_multiple_of(L)].into();
        Ok(Outs::from([u, h0]).saving([saved]))
    }

    /// A, the rates of decay.
    fn in_f32(&self) -> &'static [usize] {
        &[2]
    }

    by_device!();

    fn sample(g: &mut Gen) -> (Self, Vec<Tensor>) {
        let (batch, t, e, n) = (g.size(3), g.size(7), g.size(20), g.size(4));
        let op = SelectiveScan { chunk: g.size(5), s: if g.coin() { 1.0 } else { 2.0 } };
        let (row, state) = ([batch, t, e], [batch, t, n]);
        let scan = vec![g.normal(row), g.range(row, 0.1, 1.0), g.range([e, n], -2.0, -0.1)];
        let rest = vec![g.normal(state), g.normal(state), g.normal([batch, e, n])];
        (op, scan.into_iter().chain(rest).collect())
    }
}

/// (y, last state) of [`SelectiveScan`], transitions in (0, 1) for s = 1 and in (−1, 1) for s = 2: u, Δ [B, T, E], a [E, N], b, c [B, T, N],
/// h0 [B, E, N] to y [B, T, E] and h [B, E, N] (h0 when T = 0). Softplus, the skip D u and the gate are the caller's.
#[track_caller]
pub fn selective_scan<'t>(
    u: Var<'t>,
    delta: Var<'t>,
    a: Var<'t>,
    b: Var<'t>,
    c: Var<'t>,
    h0: Var<'t>,
    s: f64,
    chunk: usize,
) -> (Var<'t>, Var<'t>) {
    let op = SelectiveScan { chunk, s };
    let [y, last] = u.tape().apply_many(op, [u, delta, a, b, c, h0]);
    (y, last)
}
