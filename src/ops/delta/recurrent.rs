//! The delta rule step by step, sixteen heads side by side; columns of S one after another.
//!
//! A column j of S depends on element j of the values only. Backwards from the last step, with dS the gradient of
//! the state after step t:
//!
//! ```text
//! dq_t = S_t do_t                    dS ← dS + q_t do_tᵀ
//! δ = v_t − S_{t-1}ᵀ k_t             de = dSᵀ k_t
//! dβ_t = de·δ     dv_t = β_t de      dk_t = β_t (dS δ − S_{t-1} de)     dS ← dS − k_t (β_t de)ᵀ
//! ```
//!
//! The states inside a chunk are computed again from the one saved at its start.

use super::{Grads, Inputs, Outputs, Plan, Saved};
use crate::{
    ops::lanes::{Block, L, Lane, lanes, lanes_mut, mul, mul_add, mul_sub},
    tensor::{Cpu, Real, Temp},
};

/// `n` steps: o, and S run along.
#[multiversion::multiversion(targets("x86_64+avx512f+avx512vl+avx512dq+avx512bw", "x86_64+avx2"))]
fn steps<T: Real>(
    (q, k): (&[Lane<T>], &[Lane<T>]),
    (v, beta): (&[Lane<T>], &[Lane<T>]),
    s: &mut [Lane<T>],
    o: &mut [Lane<T>],
    (n, kk, vv): (usize, usize, usize),
) {
    for t in 0..n {
        let (q, k) = (&q[t * kk..(t + 1) * kk], &k[t * kk..(t + 1) * kk]);
        for j in 0..vv {
            let s = &mut s[j * kk..(j + 1) * kk];
            let mut e = v[t * vv + j];
            for i in 0..kk {
                e = mul_sub(e, s[i], k[i]);
            }
            let e = mul(beta[t], e);
            let mut sum = [T::ZERO; L];
            for i in 0..kk {
                s[i] = mul_add(s[i], k[i], e);
                sum = mul_add(sum, q[i], s[i]);
            }
            o[t * vv + j] = sum;
        }
    }
}

/// What one chunk reads and writes in the backward pass.
struct Chunk<'a, T> {
    q: &'a [Lane<T>],
    k: &'a [Lane<T>],
    v: &'a [Lane<T>],
    beta: &'a [Lane<T>],
    d_o: &'a [Lane<T>],
    /// S_0 .. S_n, of which the first is given.
    states: &'a mut [Lane<T>],
    delta: &'a mut [Lane<T>],
    e: &'a mut [Lane<T>],
    dq: &'a mut [Lane<T>],
    dk: &'a mut [Lane<T>],
    dv: &'a mut [Lane<T>],
    dbeta: &'a mut [Lane<T>],
}

/// Forwards in time: the states, δ, e and dq of every step.
#[multiversion::multiversion(targets("x86_64+avx512f+avx512vl+avx512dq+avx512bw", "x86_64+avx2"))]
fn states<T: Real>(x: &mut Chunk<T>, (n, kk, vv): (usize, usize, usize)) {
    for t in 0..n {
        let (k, g) = (&x.k[t * kk..(t + 1) * kk], &x.d_o[t * vv..(t + 1) * vv]);
        let (delta, e) = (&mut x.delta[t * vv..(t + 1) * vv], &mut x.e[t * vv..(t + 1) * vv]);
        let (before, after) = x.states[t * kk * vv..].split_at_mut(kk * vv);
        for j in 0..vv {
            let mut d = x.v[t * vv + j];
            for i in 0..kk {
                d = mul_sub(d, before[j * kk + i], k[i]);
            }
            (delta[j], e[j]) = (d, mul(x.beta[t], d));
        }
        for i in 0..kk {
            let mut sum = [T::ZERO; L];
            for j in 0..vv {
                let s = mul_add(before[j * kk + i], k[i], e[j]);
                after[j * kk + i] = s;
                sum = mul_add(sum, s, g[j]);
            }
            x.dq[t * kk + i] = sum;
        }
    }
}

/// Backwards in time: dk, dv and dβ of every step, and dS run along.
#[multiversion::multiversion(targets("x86_64+avx512f+avx512vl+avx512dq+avx512bw", "x86_64+avx2"))]
fn gradients<T: Real>(x: &mut Chunk<T>, ds: &mut [Lane<T>], (n, kk, vv): (usize, usize, usize)) {
    for t in (0..n).rev() {
        let (q, k) = (&x.q[t * kk..(t + 1) * kk], &x.k[t * kk..(t + 1) * kk]);
        let (e, dv) = (&x.e[t * vv..(t + 1) * vv], &mut x.dv[t * vv..(t + 1) * vv]);
        let s = &x.states[t * kk * vv..(t + 1) * kk * vv];
        let mut db = [T::ZERO; L];
        for j in 0..vv {
            let (g, mut de) = (x.d_o[t * vv + j], [T::ZERO; L]);
            for i in 0..kk {
                let ds = &mut ds[j * kk + i];
                *ds = mul_add(*ds, q[i], g);
                de = mul_add(de, *ds, k[i]);
            }
            db = mul_add(db, de, x.delta[t * vv + j]);
            dv[j] = mul(x.beta[t], de);
        }
        x.dbeta[t] = db;
        for i in 0..kk {
            let mut sum = [T::ZERO; L];
            for j in 0..vv {
                let ds = &mut ds[j * kk + i];
                sum = mul_sub(mul_add(sum, *ds, e[j]), s[j * kk + i], dv[j]);
                *ds = mul_sub(*ds, k[i], dv[j]);
            }
            x.dk[t * kk + i] = sum;
        }
    }
}

/// The rows of one chunk.
struct Rows<'a, T: Real> {
    q: Temp<'a, T>,
    k: Temp<'a, T>,
    v: Temp<'a, T>,
    beta: Temp<'a, T>,
}

impl<'a, T: Real> Rows<'a, T> {
    fn new(cpu: &'a Cpu, p: &Plan<T>) -> Rows<'a, T> {
        let (c, d) = (p.chunk * L, p.dims);
        Rows { q: cpu.temp(c * d.k), k: cpu.temp(c * d.k), v: cpu.temp(c * d.v), beta: cpu.temp(c) }
    }

    fn load(&mut self, p: &Plan<T>, b: Block, x: &Inputs<T>, t0: usize, n: usize) {
        let d = p.dims;
        b.gather(d.keys(), x.q, t0, n, p.scale, lanes_mut(&mut self.q), d.k);
        b.gather(d.keys(), x.k, t0, n, T::ONE, lanes_mut(&mut self.k), d.k);
        b.gather(d.values(), x.v, t0, n, T::ONE, lanes_mut(&mut self.v), d.v);
        b.gather(d.scalars(), x.beta, t0, n, T::ONE, lanes_mut(&mut self.beta), 1);
    }
}

pub fn forward<T: Real>(cpu: &Cpu, p: Plan<T>, x: &Inputs<T>, y: Outputs<T>) {
    let (d, c, ns) = (p.dims, p.chunk, p.dims.k * p.dims.v);
    let mut r = Rows::new(cpu, &p);
    let (mut s, mut o) = (cpu.temp::<T>(ns * L), cpu.temp::<T>(c * d.v * L));
    let (s, o) = (lanes_mut(&mut s), lanes_mut(&mut o));
    for b in Block::all(d.b * d.h) {
        b.load_state(x.s0, ns, d.k, d.v, s);
        for j in 0..p.chunks {
            let n = c.min(d.t - j * c);
            b.store_state(s, d.k, d.v, &mut y.states[j * ns..], p.chunks * ns, false);
            r.load(&p, b, x, j * c, n);
            let [q, k, v, beta] = [&r.q, &r.k, &r.v, &r.beta].map(|x| lanes(x));
            steps((q, k), (v, beta), s, o, (n, d.k, d.v));
            b.scatter(d.values(), o, d.v, j * c, n, None, y.o);
        }
        b.store_state(s, d.k, d.v, y.s, ns, false);
    }
}

/// Adds the gradients of all inputs.
pub fn backward<T: Real>(cpu: &Cpu, p: Plan<T>, x: &Inputs<T>, y: &Saved<T>, g: Grads<T>) {
    let (d, c, ns) = (p.dims, p.chunk, p.dims.k * p.dims.v);
    let lane = |n: usize| cpu.temp::<T>(n * L);
    let mut r = Rows::new(cpu, &p);
    let (mut history, mut ds, mut d_o) = (lane((c + 1) * ns), lane(ns), lane(c * d.v));
    let (mut delta, mut e, mut dbeta) = (lane(c * d.v), lane(c * d.v), lane(c));
    let (mut dq, mut dk, mut dv) = (lane(c * d.k), lane(c * d.k), lane(c * d.v));
    d_o.fill(T::ZERO);
    let ds = lanes_mut(&mut ds);
    for b in Block::all(d.b * d.h) {
        match y.ds {
            Some(last) => b.load_state(last, ns, d.k, d.v, ds),
            None => ds.fill([T::ZERO; L]),
        }
        for j in (0..p.chunks).rev() {
            let (t0, n) = (j * c, c.min(d.t - j * c));
            r.load(&p, b, x, t0, n);
            b.load_state(&y.states[j * ns..], p.chunks * ns, d.k, d.v, lanes_mut(&mut history));
            if let Some(all) = y.d_o {
                b.gather(d.values(), all, t0, n, T::ONE, lanes_mut(&mut d_o), d.v);
            }
            let [q, k, v, beta, d_o] = [&r.q, &r.k, &r.v, &r.beta, &d_o].map(|x| lanes(x));
            let [states, delta, e] = [&mut history, &mut delta, &mut e].map(|x| lanes_mut(x));
            let [dq, dk, dv, dbeta] = [&mut dq, &mut dk, &mut dv, &mut dbeta].map(|x| lanes_mut(x));
            let mut u = Chunk { q, k, v, beta, d_o, states, delta, e, dq, dk, dv, dbeta };
            self::states(&mut u, (n, d.k, d.v));
            gradients(&mut u, ds, (n, d.k, d.v));
            b.scatter(d.keys(), u.dq, d.k, t0, n, Some(p.scale), g.dq);
            b.scatter(d.keys(), u.dk, d.k, t0, n, Some(T::ONE), g.dk);
            b.scatter(d.values(), u.dv, d.v, t0, n, Some(T::ONE), g.dv);
            b.scatter(d.scalars(), u.dbeta, 1, t0, n, Some(T::ONE), g.dbeta);
        }
        b.store_state(ds, d.k, d.v, g.ds0, ns, true);
    }
}
