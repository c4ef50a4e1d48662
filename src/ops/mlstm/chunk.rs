//! The mLSTM in chunks of C steps, one head at a time.
//!
//! With Q, K' [C, K], V̂ [C, V + 1] the rows of a chunk and Ĉ the state before it, the weight of step s at step t and
//! that of the state are products of gates, each at most 1: no exponential of a difference of sums, which is how the
//! paper writes them, and nothing to overflow.
//!
//! ```text
//! D_ts = f_t … f_{s+1} i_s for s ≤ t, else 0       r_t = f_t … f_1       e_s = D_Cs
//! P = (Q K'ᵀ) ⊙ D      [num, n·q] = r Q Ĉ + P V̂      Ĉ⁺ = r_C Ĉ + (e K')ᵀ V̂
//! G = (dô V̂ᵀ) ⊙ D      dQ = r dô Ĉᵀ + G K'           dK' = Gᵀ Q + e V̂ dĈ⁺ᵀ
//! dV̂ = Pᵀ dô + e K' dĈ⁺                              dĈ = r_C dĈ⁺ + (r Q)ᵀ dô
//! ```

use super::{Gates, Grads, Inputs, Outputs, Plan, Saved};
use crate::{
    ops::{
        heads::{Dims, gemm_unless, zero},
        lane_sums,
        math::Math,
        matmul::{Mat, gemm},
    },
    tensor::{Cpu, Real, Temp},
};

fn mat(rows: usize, cols: usize) -> Mat {
    Mat::new(rows, cols, cols)
}

/// D [n, n] and r `[n]` from the gates: a row is the one before it times f, with i on the diagonal.
#[multiversion::multiversion(targets("x86_64+avx512f+avx512vl+avx512dq+avx512bw", "x86_64+avx2+fma"))]
fn weights<T: Real>(i: &[T], f: &[T], d: &mut [T], r: &mut [T]) {
    let n = i.len();
    for t in 0..n {
        let (before, row) = d.split_at_mut(t * n);
        let (past, rest) = row[..n].split_at_mut(t);
        let last = if t == 0 { before } else { &mut before[(t - 1) * n..][..t] };
        past.iter_mut().zip(last).for_each(|(w, &mut l)| *w = f[t] * l);
        rest.fill(T::ZERO);
        rest[0] = i[t];
        r[t] = if t == 0 { f[t] } else { f[t] * r[t - 1] };
    }
}

/// x ⊙ y in place of x.
#[multiversion::multiversion(targets("x86_64+avx512f+avx512vl+avx512dq+avx512bw", "x86_64+avx2+fma"))]
fn times<T: Real>(x: &mut [T], y: &[T]) {
    x.iter_mut().zip(y).for_each(|(x, &y)| *x *= y);
}

/// x times a number.
#[multiversion::multiversion(targets("x86_64+avx512f+avx512vl+avx512dq+avx512bw", "x86_64+avx2+fma"))]
fn scale<T: Real>(x: &mut [T], by: T) {
    x.iter_mut().for_each(|x| *x = by * *x);
}

/// Rows of `y` = rows of `x`, each times its factor.
#[multiversion::multiversion(targets("x86_64+avx512f+avx512vl+avx512dq+avx512bw", "x86_64+avx2+fma"))]
fn scale_rows<T: Real>(by: &[T], x: &[T], y: &mut [T], k: usize) {
    for (t, &by) in by.iter().enumerate() {
        let (x, y) = (&x[t * k..(t + 1) * k], &mut y[t * k..(t + 1) * k]);
        y.iter_mut().zip(x).for_each(|(y, &x)| *y = by * x);
    }
}

/// The sum of x.
#[multiversion::multiversion(targets("x86_64+avx512f+avx512vl+avx512dq+avx512bw", "x86_64+avx2+fma"))]
fn total<T: Real>(x: &[T]) -> T {
    lane_sums::sum(x, |x| x)
}

/// The sums of the columns of x [·, k], added to numbers of y that are `step` apart.
fn add_columns<T: Real>(x: &[T], k: usize, y: &mut [T], step: usize) {
    for x in x.chunks_exact(k.max(1)) {
        y.iter_mut().step_by(step).zip(x).for_each(|(y, &x)| *y += x);
    }
}

/// x·y, over the elements of x.
#[multiversion::multiversion(targets("x86_64+avx512f+avx512vl+avx512dq+avx512bw", "x86_64+avx2+fma"))]
fn dot<T: Real>(x: &[T], y: &[T]) -> T {
    lane_sums::sum2(x, y, |x, y| x * y)
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
}

impl<'a, T: Math> Chunk<'a, T> {
    fn new(cpu: &'a Cpu, p: &Plan<T>) -> Chunk<'a, T> {
        let (c, k, w) = (p.chunk, p.dims.k, p.width());
        let (row, square) = (|| cpu.temp(c * k), || cpu.temp(c * c));
        Chunk { q: row(), k: row(), v: cpu.temp(c * w), rq: row(), ek: row(), d: square(), r: cpu.temp(c), p: square() }
    }

    /// Load steps `t0..t0 + n` of head `i`.
    fn load(&mut self, p: &Plan<T>, x: &Inputs<T>, g: &Gates<T>, i: usize, t0: usize, n: usize) {
        let (d, w) = (p.dims, p.width());
        let (mk, ma) = (mat(n, d.k), mat(n, n));
        d.keys().gather(x.q, i, t0, n, T::ONE, &mut self.q, d.k);
        d.keys().gather(x.k, i, t0, n, p.scale, &mut self.k, d.k);
        d.values().gather(x.v, i, t0, n, T::ONE, &mut self.v, w);
        self.v.chunks_exact_mut(w).for_each(|row| row[w - 1] = T::ONE);
        weights(&g.i[t0..t0 + n], &g.f[t0..t0 + n], &mut self.d[..n * n], &mut self.r);
        scale_rows(&self.r[..n], &self.q, &mut self.rq, d.k);
        scale_rows(&self.d[(n - 1) * n..n * n], &self.k, &mut self.ek, d.k);
        gemm(T::ONE, (&self.q, mk), (&self.k, mk.t()), (&mut self.p, ma), false);
        times(&mut self.p[..n * n], &self.d);
    }
}

pub fn forward<T: Math>(cpu: &Cpu, p: Plan<T>, x: &Inputs<T>, y: Outputs<T>) {
    let (d, c, w) = (p.dims, p.chunk, p.width());
    let (ms, ns) = (mat(d.k, w), d.k * w);
    let (mut u, mut g) = (Chunk::new(cpu, &p), Gates::new(cpu, d.t));
    let (mut o, mut s) = (cpu.temp::<T>(c * w), cpu.temp::<T>(ns));
    for i in 0..d.b * d.h {
        y.m[i] = g.load(d, x, i);
        p.load_state(Some(x.c0), Some(x.n0), i, &mut s);
        for j in 0..p.chunks {
            let (t0, at) = (j * c, (i * p.chunks + j) * ns);
            let n = c.min(d.t - t0);
            let (mk, mw, ma) = (mat(n, d.k), mat(n, w), mat(n, n));
            y.states[at..at + ns].copy_from_slice(&s);
            u.load(&p, x, &g, i, t0, n);
            gemm_unless(zero(&s), T::ONE, (&u.rq, mk), (&s, ms), (&mut o, mw), false);
            // The last column of V̂ is all ones: sums in place of products.
            let (mv, cv) = (Mat::new(n, d.v, w), Mat::new(d.k, d.v, w));
            gemm(T::ONE, (&u.p, ma), (&u.v, mv), (&mut o, mv), true);
            o.chunks_exact_mut(w).zip(u.p.chunks_exact(n)).take(n).for_each(|(o, p)| o[d.v] += total(p));
            scale(&mut s, u.r[n - 1]);
            gemm(T::ONE, (&u.ek, mk.t()), (&u.v, mv), (&mut s, cv), true);
            add_columns(&u.ek[..n * d.k], d.k, s.get_mut(d.v..).unwrap_or_default(), w);
            for (t, row) in o.chunks_exact_mut(w).take(n).enumerate() {
                let (den, by) = (row[d.v], T::ONE / p.normaliser(row[d.v], g.m[t0 + t]));
                y.den[d.scalars().at(i, t0 + t)] = den;
                scale(&mut row[..d.v], by);
            }
            d.values().put(&o, w, i, t0, n, y.h);
        }
        p.store_state(&s, i, false, y.c, y.n);
    }
}

/// dô of steps `t0..t0 + n` of head `i`, and what each step adds to γ.
fn cotangents<T: Math>(p: &Plan<T>, y: &Saved<T>, m: &[T], i: usize, t0: usize, out: &mut [T], own: &mut [T]) {
    let (d, w, n) = (p.dims, p.width(), m.len());
    let Some(dh) = y.dh else {
        own.fill(T::ZERO);
        return out.fill(T::ZERO);
    };
    d.values().gather(dh, i, t0, n, T::ONE, out, w);
    for (t, row) in out.chunks_exact_mut(w).take(n).enumerate() {
        let (den, h) = (y.den[d.scalars().at(i, t0 + t)], &y.h[d.values().at(i, t0 + t)..][..d.v]);
        let by = p.normaliser(den, m[t]);
        let slope = -(dot(h, &row[..d.v]) / by);
        row[..d.v].iter_mut().for_each(|g| *g = *g / by);
        own[t] = p.eps * slope;
        let sign = if den < T::ZERO { -slope } else { slope };
        row[d.v] = if den.abs() > (-m[t]).exp() { sign } else { T::ZERO };
    }
}

/// Scratch memory of the backward pass: of one chunk, but for the gates' gradients, which are of one head.
struct Work<'a, T: Real> {
    d_o: Temp<'a, T>,
    g: Temp<'a, T>,
    dq: Temp<'a, T>,
    dk: Temp<'a, T>,
    dv: Temp<'a, T>,
    ds: Temp<'a, T>,
    di: Temp<'a, T>,
    df: Temp<'a, T>,
    own: Temp<'a, T>,
}

impl<'a, T: Math> Work<'a, T> {
    fn new(cpu: &'a Cpu, p: &Plan<T>) -> Work<'a, T> {
        let (c, k, w, t) = (p.chunk, p.dims.k, p.width(), p.dims.t);
        Work {
            d_o: cpu.temp(c * w),
            g: cpu.temp(c * c),
            dq: cpu.temp(c * k),
            dk: cpu.temp(c * k),
            dv: cpu.temp(c * w),
            ds: cpu.temp(k * w),
            di: cpu.temp(t),
            df: cpu.temp(t),
            own: cpu.temp(t),
        }
    }

    /// dQ, dK' and dV̂ of a chunk of `n` steps before which the state is `s`; then dĈ. `end` is Ĉ⁺·dĈ⁺.
    /// Where it is `unread`, dĈ is not needed.
    fn chunk(&mut self, d: Dims, u: &Chunk<T>, s: &[T], t0: usize, n: usize, mut end: T, unread: bool) {
        let w = d.v + 1;
        let (mk, mw, ma, ms) = (mat(n, d.k), mat(n, w), mat(n, n), mat(d.k, w));
        // Of the column of ones in V̂ no gradient is wanted.
        let (mv, cv) = (Mat::new(n, d.v, w), Mat::new(d.k, d.v, w));
        let (first, last) = (zero(s), zero(&self.ds));
        gemm(T::ONE, (&self.d_o, mw), (&u.v, mw.t()), (&mut self.g, ma), false);
        times(&mut self.g[..n * n], &u.d);
        gemm_unless(first, T::ONE, (&self.d_o, mw), (s, ms.t()), (&mut self.dk, mk), false);
        scale_rows(&u.r[..n], &self.dk, &mut self.dq, d.k);
        gemm(T::ONE, (&self.g, ma), (&u.k, mk), (&mut self.dq, mk), true);
        gemm_unless(last, T::ONE, (&u.v, mw), (&self.ds, ms.t()), (&mut self.dk, mk), false);
        for (t, dk) in self.dk.chunks_exact_mut(d.k.max(1)).take(n).enumerate() {
            scale(dk, u.d[(n - 1) * n + t]);
        }
        gemm(T::ONE, (&self.g, ma.t()), (&u.q, mk), (&mut self.dk, mk), true);
        gemm(T::ONE, (&u.p, ma.t()), (&self.d_o, mv), (&mut self.dv, mv), false);
        gemm_unless(last, T::ONE, (&u.ek, mk), (&self.ds, cv), (&mut self.dv, mv), true);
        scale(&mut self.ds, u.r[n - 1]);
        gemm_unless(unread, T::ONE, (&u.rq, mk.t()), (&self.d_o, mw), (&mut self.ds, ms), true);
        for t in (0..n).rev() {
            let row = t * d.k..(t + 1) * d.k;
            let di = dot(&u.k[row.clone()], &self.dk[row.clone()]);
            end += dot(&u.q[row.clone()], &self.dq[row]) - di;
            (self.di[t0 + t], self.df[t0 + t]) = (di, end);
        }
    }
}

/// Adds the gradients of all inputs.
pub fn backward<T: Math>(cpu: &Cpu, p: Plan<T>, x: &Inputs<T>, y: &Saved<T>, mut dx: Grads<T>) {
    let (d, c, w) = (p.dims, p.chunk, p.width());
    let ns = d.k * w;
    let (mut u, mut g, mut z) = (Chunk::new(cpu, &p), Gates::new(cpu, d.t), Work::new(cpu, &p));
    let mut last = cpu.temp::<T>(ns);
    for i in 0..d.b * d.h {
        g.load(d, x, i);
        p.load_state(y.dc, y.dn, i, &mut z.ds);
        p.load_state(Some(y.c), Some(y.n), i, &mut last);
        let gamma = y.dm.map_or(T::ZERO, |dm| dm[i]) - dot(&last, &z.ds);
        for j in (0..p.chunks).rev() {
            let (t0, s) = (j * c, &y.states[(i * p.chunks + j) * ns..][..ns]);
            let n = c.min(d.t - t0);
            u.load(&p, x, &g, i, t0, n);
            cotangents(&p, y, &g.m[t0..t0 + n], i, t0, &mut z.d_o, &mut z.own[t0..t0 + n]);
            let end = dot(&last, &z.ds);
            z.chunk(d, &u, s, t0, n, end, j == 0 && !dx.state);
            last.copy_from_slice(s);
            d.keys().add(&z.dq, d.k, T::ONE, i, t0, n, dx.dq);
            d.keys().add(&z.dk, d.k, p.scale, i, t0, n, dx.dk);
            d.values().add(&z.dv, w, T::ONE, i, t0, n, dx.dv);
        }
        if !dx.state {
            g.back(d, i, (&z.di, &z.df, &z.own), gamma, &mut dx);
            continue;
        }
        // The state before the first step has the weight e^m₀: ∂/∂m₀ for fixed C₀ and n₀ is Ĉ₀·dĈ₀.
        let dm = g.back(d, i, (&z.di, &z.df, &z.own), gamma, &mut dx) + dot(&last, &z.ds);
        dx.dm0[i] += dm;
        // Before the first token nothing depends on w: the state is zero.
        dx.dw0[i] += if x.w0[i] > T::ZERO { dm / x.w0[i] } else { T::ZERO };
        p.store_state(&z.ds, i, true, dx.dc0, dx.dn0);
    }
}
