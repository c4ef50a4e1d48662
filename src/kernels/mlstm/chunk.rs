//! The mLSTM in chunks of C steps, one head at a time.
//!
//! With Q, K' [C, K], V [C, V] the rows of a chunk, C and n the state before it, the weight of step s at step t and that
//! of the state are products of gates, each at most 1: no exponential of a difference of sums, which is how the paper
//! writes them, and nothing to overflow.
//!
//! ```text
//! D_ts = f_t … f_{s+1} i_s for s ≤ t, else 0       r_t = f_t … f_1       e_s = D_Cs
//! P = (Q K'ᵀ) ⊙ D            num = r Q C + P V                     n·q = r Q n + P 1
//!                            C⁺ = r_C C + (e K')ᵀ V                n⁺ = r_C n + (e K')ᵀ 1
//! G = (dO Vᵀ + δ 1ᵀ) ⊙ D     dQ = r (dO Cᵀ + δ nᵀ) + G K'          dV = Pᵀ dO + e K' dC⁺
//!                            dK' = Gᵀ Q + e (V dC⁺ᵀ + 1 dn⁺ᵀ)
//!                            dC = r_C dC⁺ + (r Q)ᵀ dO              dn = r_C dn⁺ + (r Q)ᵀ δ
//! ```
//!
//! dO and δ are the cotangents of num and of n·q, the two parts of dô.

use crate::{
    kernels::{
        heads::{gemm_unless, zero},
        lane_sums,
        math::Math,
        matmul::{Mat, gemm},
        mlstm::{Gates, Grads, Inputs, Outputs, Plan, Saved, inverses, inverses_and_signs},
        rows::{add_dots, add_outer, add_row_dots, add_weighted, dot, scale, scale_rows, times_rows},
        scan::put_all,
        tril_matmul::lower_gemm,
    },
    ops::heads::Dims,
    tensor::{Cpu, Real, Temp},
};

fn mat(rows: usize, cols: usize) -> Mat {
    Mat::new(rows, cols, cols)
}

/// D [n, n] and r `[n]` from the gates: a row is the one before it times f, with i on the diagonal and −1 behind it. No
/// weight is negative, so that this says what a step does not see: 0 would let a NaN through.
#[versions::versions]
fn weights<T: Real>(i: &[T], f: &[T], d: &mut [T], r: &mut [T]) {
    let n = i.len();
    for t in 0..n {
        let (before, row) = d.split_at_mut(t * n);
        let (past, rest) = row[..n].split_at_mut(t);
        let last = if t == 0 { before } else { &mut before[(t - 1) * n..][..t] };
        past.iter_mut().zip(last).for_each(|(w, &mut l)| *w = f[t] * l);
        rest.fill(-T::ONE);
        rest[0] = i[t];
        r[t] = if t == 0 { f[t] } else { f[t] * r[t - 1] };
    }
}

/// x times a weight of D.
#[inline(always)]
fn weighted<T: Real>(x: T, d: T) -> T {
    if d < T::ZERO { T::ZERO } else { x * d }
}

/// x ⊙ D in place of x.
#[versions::versions]
fn times<T: Real>(x: &mut [T], d: &[T]) {
    x.iter_mut().zip(d).for_each(|(x, &d)| *x = weighted(*x, d));
}

/// Rows (x_t + δ_t) ⊙ D_t in place of x, n numbers each.
#[versions::versions]
fn times_plus<T: Real>(n: usize, delta: &[T], x: &mut [T], d: &[T]) {
    for ((x, d), &delta) in x.chunks_exact_mut(n).zip(d.chunks_exact(n)).zip(delta) {
        x.iter_mut().zip(d).for_each(|(x, &d)| *x = weighted(*x + delta, d));
    }
}

/// Rows of v numbers divided by N, of which the two factors of 1 / N are given.
#[versions::versions]
fn normalise<T: Real>(v: usize, a: &[T], b: &[T], x: &mut [T]) {
    for ((x, &a), &b) in x.chunks_exact_mut(v.max(1)).zip(a).zip(b) {
        x.iter_mut().for_each(|x| *x = a * *x * b);
    }
}

/// Where a chunk is: a head, its first step, and how many there are.
#[derive(Clone, Copy)]
struct Place {
    i: usize,
    t0: usize,
    n: usize,
}

/// The rows of one chunk and the matrices both passes compute from them.
struct Chunk<'a, T: Real> {
    q: Temp<'a, T>,
    k: Temp<'a, T>,
    v: Temp<'a, T>,
    /// r Q
    rq: Temp<'a, T>,
    /// e K'
    ek: Temp<'a, T>,
    d: Temp<'a, T>,
    r: Temp<'a, T>,
    p: Temp<'a, T>,
    ones: Temp<'a, T>,
}

impl<'a, T: Math> Chunk<'a, T> {
    fn new(cpu: &'a Cpu, p: &Plan<T>) -> Chunk<'a, T> {
        let (c, k, v) = (p.chunk, p.dims.k, p.dims.v);
        let (row, square, mut ones) = (|| cpu.temp(c * k), || cpu.temp(c * c), cpu.temp(c));
        ones.fill(T::ONE);
        let (q, rq, ek) = (row(), row(), row());
        Chunk { q, k: row(), v: cpu.temp(c * v), rq, ek, d: square(), r: cpu.temp(c), p: square(), ones }
    }

    /// Load the rows of a chunk.
    fn load(&mut self, p: &Plan<T>, x: &Inputs<T>, g: &Gates<T>, Place { i, t0, n }: Place) {
        let d = p.dims;
        let (mk, ma) = (mat(n, d.k), mat(n, n));
        d.keys().gather(x.q, i, t0, n, T::ONE, &mut self.q, d.k);
        d.keys().gather(x.k, i, t0, n, p.scale, &mut self.k, d.k);
        d.values().gather(x.v, i, t0, n, T::ONE, &mut self.v, d.v);
        weights(&g.i[t0..t0 + n], &g.f[t0..t0 + n], &mut self.d[..n * n], &mut self.r);
        scale_rows(d.k, &self.r[..n], &self.q, &mut self.rq);
        scale_rows(d.k, &self.d[(n - 1) * n..n * n], &self.k, &mut self.ek);
        gemm(T::ONE, (&self.q, mk), (&self.k, mk.t()), (&mut self.p, ma), false);
        times(&mut self.p[..n * n], &self.d);
    }
}

pub fn forward<T: Math>(cpu: &Cpu, p: Plan<T>, x: &Inputs<T>, y: Outputs<T>) {
    let (d, c, ns) = (p.dims, p.chunk, p.dims.k * p.dims.v);
    let ms = mat(d.k, d.v);
    let (mut u, mut g) = (Chunk::new(cpu, &p), Gates::new(cpu, d.t));
    let mut o = cpu.temp::<T>(c * d.v);
    let [mut den, mut a, mut b] = [c; 3].map(|n| cpu.temp::<T>(n));
    for i in 0..d.b * d.h {
        y.m[i] = g.load(d, x, i);
        // The last states serve as the running ones.
        let (all, row) = (i * ns..(i + 1) * ns, i * d.k..(i + 1) * d.k);
        let (s, z) = (&mut y.c[all.clone()], &mut y.n[row.clone()]);
        s.copy_from_slice(&x.c0[all]);
        z.copy_from_slice(&x.n0[row]);
        for j in 0..p.chunks {
            let (t0, saved) = (j * c, &mut y.states[(i * p.chunks + j) * (ns + d.k)..][..ns + d.k]);
            let n = c.min(d.t - t0);
            let (mk, mv, fresh) = (mat(n, d.k), mat(n, d.v), zero(s) && zero(z));
            saved[..ns].copy_from_slice(s);
            saved[ns..].copy_from_slice(z);
            u.load(&p, x, &g, Place { i, t0, n });
            let next = if j + 1 < p.chunks { (i, t0 + n) } else { (i + 1, 0) };
            d.keys().fetch([x.q, x.k], next, c);
            d.values().fetch([x.v, y.h], next, c);
            let (den, a, b) = (&mut den[..n], &mut a[..n], &mut b[..n]);
            den.fill(T::ZERO);
            gemm_unless(fresh, T::ONE, (&u.rq, mk), (s, ms), (&mut o, mv), false);
            lower_gemm(cpu, n, d.v, &u.p, &u.v, &mut o, true);
            if !fresh {
                add_dots(d.k, &u.rq, z, den);
                scale(s, u.r[n - 1]);
                scale(z, u.r[n - 1]);
            }
            add_dots(n, &u.p, &u.ones[..n], den);
            gemm(T::ONE, (&u.ek, mk.t()), (&u.v, mv), (s, ms), true);
            lane_sums::columns(&u.ek[..n * d.k], z);
            inverses(p, den, &g.m[t0..t0 + n], a, b);
            normalise(d.v, a, b, &mut o);
            d.scalars().put(den, 1, i, t0, n, y.den);
            d.values().put(&o, d.v, i, t0, n, y.h);
        }
    }
}

/// Scratch memory of the backward pass: of one chunk, but for the gates' gradients, which are of one head.
struct Work<'a, T: Real> {
    d_o: Temp<'a, T>,
    delta: Temp<'a, T>,
    h: Temp<'a, T>,
    den: Temp<'a, T>,
    /// 1 / N in two factors.
    by: [Temp<'a, T>; 2],
    g: Temp<'a, T>,
    dq: Temp<'a, T>,
    dk: Temp<'a, T>,
    dv: Temp<'a, T>,
    ds: Temp<'a, T>,
    dz: Temp<'a, T>,
    di: Temp<'a, T>,
    df: Temp<'a, T>,
    own: Temp<'a, T>,
}

impl<'a, T: Math> Work<'a, T> {
    fn new(cpu: &'a Cpu, p: &Plan<T>) -> Work<'a, T> {
        let (c, k, v, t) = (p.chunk, p.dims.k, p.dims.v, p.dims.t);
        let (key, value, one, all) = (|| cpu.temp(c * k), || cpu.temp(c * v), || cpu.temp(c), || cpu.temp(t));
        let (d_o, h, dv, ds, dz) = (value(), value(), value(), cpu.temp(k * v), cpu.temp(k));
        let (delta, den, by, g) = (one(), one(), [one(), one()], cpu.temp(c * c));
        Work { d_o, delta, h, den, by, g, dq: key(), dk: key(), dv, ds, dz, di: all(), df: all(), own: all() }
    }

    /// dO and δ of a chunk, and what each step adds to γ. `den` becomes the derivative of N.
    fn cotangents(&mut self, p: &Plan<T>, y: &Saved<T>, m: &[T], Place { i, t0, n }: Place) {
        let (values, scalars, v, own) = (p.dims.values(), p.dims.scalars(), p.dims.v, &mut self.own[t0..t0 + n]);
        own.fill(T::ZERO);
        self.delta.fill(T::ZERO);
        let Some(dh) = y.dh else { return self.d_o.fill(T::ZERO) };
        values.gather(dh, i, t0, n, T::ONE, &mut self.d_o, v);
        values.gather(y.h, i, t0, n, T::ONE, &mut self.h, v);
        scalars.gather(y.den, i, t0, n, T::ONE, &mut self.den, 1);
        let [a, b] = &mut self.by;
        inverses_and_signs(*p, &mut self.den[..n], m, a, b);
        add_row_dots(v, &self.h[..n * v], &self.d_o[..n * v], own);
        normalise(v, &a[..n], &b[..n], &mut self.d_o);
        for (t, own) in own.iter_mut().enumerate() {
            let slope = -(a[t] * *own * b[t]);
            self.delta[t] = slope * self.den[t];
            *own = p.eps * slope;
        }
    }

    /// dQ, dK' and dV of a chunk with forget gates f before which the state is C, n; then dC and dn. `end` is C⁺·dC⁺ + n⁺·dn⁺. Where they are
    /// `unread`, dC and dn are not needed.
    fn chunk(
        &mut self,
        d: Dims,
        (u, f): (&Chunk<T>, &[T]),
        (s, z): (&[T], &[T]),
        t0: usize,
        n: usize,
        mut end: T,
        unread: bool,
    ) {
        let (mk, mv, ma, ms) = (mat(n, d.k), mat(n, d.v), mat(n, n), mat(d.k, d.v));
        let (first, last, delta) = (zero(s) && zero(z), zero(&self.ds) && zero(&self.dz), &self.delta[..n]);
        gemm(T::ONE, (&self.d_o, mv), (&u.v, mv.t()), (&mut self.g, ma), false);
        times_plus(n, delta, &mut self.g[..n * n], &u.d);
        if !first {
            gemm(T::ONE, (&self.d_o, mv), (s, ms.t()), (&mut self.dq, mk), false);
            add_outer(d.k, delta, z, &mut self.dq);
            times_rows(d.k, &u.r[..n], &mut self.dq);
        }
        gemm(T::ONE, (&self.g, ma), (&u.k, mk), (&mut self.dq, mk), !first);
        if !last {
            gemm(T::ONE, (&u.v, mv), (&self.ds, ms.t()), (&mut self.dk, mk), false);
            add_outer(d.k, &u.ones[..n], &self.dz, &mut self.dk);
            times_rows(d.k, &u.d[(n - 1) * n..n * n], &mut self.dk);
        }
        gemm(T::ONE, (&self.g, ma.t()), (&u.q, mk), (&mut self.dk, mk), !last);
        gemm(T::ONE, (&u.p, ma.t()), (&self.d_o, mv), (&mut self.dv, mv), false);
        gemm_unless(last, T::ONE, (&u.ek, mk), (&self.ds, ms), (&mut self.dv, mv), true);
        if !unread {
            scale(&mut self.ds, u.r[n - 1]);
            scale(&mut self.dz, u.r[n - 1]);
            gemm(T::ONE, (&u.rq, mk.t()), (&self.d_o, mv), (&mut self.ds, ms), true);
            add_weighted(delta, &u.rq, &mut self.dz);
        }
        let (di, df) = (&mut self.di[t0..t0 + n], &mut self.df[t0..t0 + n]);
        di.fill(T::ZERO);
        df.fill(T::ZERO);
        add_row_dots(d.k, &u.k, &self.dk, di);
        add_row_dots(d.k, &u.q, &self.dq, df);
        for t in (0..n).rev() {
            end = if f[t] == T::ZERO { T::ZERO } else { end + (df[t] - di[t]) };
            df[t] = end;
        }
    }
}

/// Adds the gradients of all inputs.
pub fn backward<T: Math>(cpu: &Cpu, p: Plan<T>, x: &Inputs<T>, y: &Saved<T>, mut dx: Grads<T>) {
    let (d, c, ns) = (p.dims, p.chunk, p.dims.k * p.dims.v);
    let (mut u, mut g, mut w) = (Chunk::new(cpu, &p), Gates::new(cpu, d.t), Work::new(cpu, &p));
    for i in 0..d.b * d.h {
        g.load(d, x, i);
        let (all, row) = (i * ns..(i + 1) * ns, i * d.k..(i + 1) * d.k);
        match y.dc {
            Some(dc) => w.ds.copy_from_slice(&dc[all.clone()]),
            None => w.ds.fill(T::ZERO),
        }
        match y.dn {
            Some(dn) => w.dz.copy_from_slice(&dn[row.clone()]),
            None => w.dz.fill(T::ZERO),
        }
        // The state after the chunk.
        let (mut s, mut z) = (&y.c[all.clone()], &y.n[row.clone()]);
        let onto = |s: &[T], z: &[T], w: &Work<T>| dot(s, &w.ds) + dot(z, &w.dz);
        let gamma = y.dm.map_or(T::ZERO, |dm| dm[i]) - onto(s, z, &w);
        for j in (0..p.chunks).rev() {
            let at = Place { i, t0: j * c, n: c.min(d.t - j * c) };
            u.load(&p, x, &g, at);
            let next = if j > 0 { (i, at.t0 - c) } else { (i + 1, (p.chunks - 1) * c) };
            d.keys().fetch([x.q, x.k, dx.dq.0, dx.dk.0], next, c);
            d.values().fetch([x.v, y.h, y.dh.unwrap_or_default(), dx.dv.0], next, c);
            w.cotangents(&p, y, &g.m[at.t0..at.t0 + at.n], at);
            let end = onto(s, z, &w);
            (s, z) = y.states[(i * p.chunks + j) * (ns + d.k)..][..ns + d.k].split_at(ns);
            let f = &g.f[at.t0..at.t0 + at.n];
            w.chunk(d, (&u, f), (s, z), at.t0, at.n, end, j == 0 && !dx.state);
            d.keys().merge(&w.dq, d.k, T::ONE, i, (at.t0, at.n), &mut dx.dq);
            d.keys().merge(&w.dk, d.k, p.scale, i, (at.t0, at.n), &mut dx.dk);
            d.values().merge(&w.dv, d.v, T::ONE, i, (at.t0, at.n), &mut dx.dv);
        }
        let rest = g.back(d, i, (&w.di, &w.df, &w.own), gamma, &mut dx);
        if dx.state {
            // The state before the first step has the weight e^m₀: ∂/∂m₀ for fixed C₀ and n₀ is C₀·dC₀ + n₀·dn₀.
            let dm = rest + onto(s, z, &w);
            dx.dm0[i] += dm;
            // Before the first token nothing depends on w: the state is zero.
            dx.dw0[i] += if x.w0[i] > T::ZERO { dm / x.w0[i] } else { T::ZERO };
            put_all(&mut dx.dc0[all], &w.ds, true);
            put_all(&mut dx.dn0[row], &w.dz, true);
        }
    }
}
