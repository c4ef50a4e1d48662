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
                mul_sub(&s[i], &k[i], &mut e);
            }
            let e = mul(&beta[t], &e);
            let mut sum = [T::ZERO; L];
            for i in 0..kk {
                mul_add(&k[i], &e, &mut s[i]);
                mul_add(&q[i], &s[i], &mut sum);
            }
            o[t * vv + j] = sum;
        }
    }
}

/// The states S_0 .. S_n of a chunk from S_0, and δ of every step.
#[multiversion::multiversion(targets("x86_64+avx512f+avx512vl+avx512dq+avx512bw", "x86_64+avx2"))]
fn history<T: Real>(
    k: &[Lane<T>],
    (v, beta): (&[Lane<T>], &[Lane<T>]),
    states: &mut [Lane<T>],
    delta: &mut [Lane<T>],
    (n, kk, vv): (usize, usize, usize),
) {
    for t in 0..n {
        let k = &k[t * kk..(t + 1) * kk];
        let (before, after) = states[t * kk * vv..].split_at_mut(kk * vv);
        for j in 0..vv {
            let (s, next) = (&before[j * kk..(j + 1) * kk], &mut after[j * kk..(j + 1) * kk]);
            let mut d = v[t * vv + j];
            for i in 0..kk {
                mul_sub(&s[i], &k[i], &mut d);
            }
            delta[t * vv + j] = d;
            let e = mul(&beta[t], &d);
            for i in 0..kk {
                next[i] = s[i];
                mul_add(&k[i], &e, &mut next[i]);
            }
        }
    }
}

/// What one chunk reads and writes going backwards.
struct Chunk<'a, T> {
    q: &'a [Lane<T>],
    k: &'a [Lane<T>],
    beta: &'a [Lane<T>],
    states: &'a [Lane<T>],
    delta: &'a [Lane<T>],
    d_o: &'a [Lane<T>],
    dq: &'a mut [Lane<T>],
    dk: &'a mut [Lane<T>],
    dv: &'a mut [Lane<T>],
    dbeta: &'a mut [Lane<T>],
}

/// `n` steps backwards, dS run along.
#[multiversion::multiversion(targets("x86_64+avx512f+avx512vl+avx512dq+avx512bw", "x86_64+avx2"))]
fn steps_back<T: Real>(x: Chunk<T>, ds: &mut [Lane<T>], (n, kk, vv): (usize, usize, usize)) {
    for t in (0..n).rev() {
        let rows = t * kk..(t + 1) * kk;
        let (q, k, beta) = (&x.q[rows.clone()], &x.k[rows.clone()], x.beta[t]);
        let (dq, dk) = (&mut x.dq[rows.clone()], &mut x.dk[rows]);
        let (before, after) = x.states[t * kk * vv..].split_at(kk * vv);
        dq.fill([T::ZERO; L]);
        dk.fill([T::ZERO; L]);
        let mut db = [T::ZERO; L];
        for j in 0..vv {
            let (s, next, ds) = (&before[j * kk..][..kk], &after[j * kk..][..kk], &mut ds[j * kk..][..kk]);
            let (g, delta) = (x.d_o[t * vv + j], x.delta[t * vv + j]);
            let mut de = [T::ZERO; L];
            for i in 0..kk {
                mul_add(&next[i], &g, &mut dq[i]);
                mul_add(&q[i], &g, &mut ds[i]);
                mul_add(&ds[i], &k[i], &mut de);
            }
            mul_add(&de, &delta, &mut db);
            let (e, de) = (mul(&beta, &delta), mul(&beta, &de));
            x.dv[t * vv + j] = de;
            for i in 0..kk {
                mul_add(&ds[i], &e, &mut dk[i]);
                mul_sub(&s[i], &de, &mut dk[i]);
                mul_sub(&k[i], &de, &mut ds[i]);
            }
        }
        x.dbeta[t] = db;
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
    let (mut states, mut delta, mut d_o, mut ds) = (lane((c + 1) * ns), lane(c * d.v), lane(c * d.v), lane(ns));
    let (mut dq, mut dk, mut dv, mut dbeta) = (lane(c * d.k), lane(c * d.k), lane(c * d.v), lane(c));
    let (states, delta, d_o, ds) =
        (lanes_mut(&mut states), lanes_mut(&mut delta), lanes_mut(&mut d_o), lanes_mut(&mut ds));
    let (dq, dk, dv, dbeta) = (lanes_mut(&mut dq), lanes_mut(&mut dk), lanes_mut(&mut dv), lanes_mut(&mut dbeta));
    d_o.fill([T::ZERO; L]);
    for b in Block::all(d.b * d.h) {
        match y.ds {
            Some(last) => b.load_state(last, ns, d.k, d.v, ds),
            None => ds.fill([T::ZERO; L]),
        }
        for j in (0..p.chunks).rev() {
            let (t0, size) = (j * c, (c.min(d.t - j * c), d.k, d.v));
            let n = size.0;
            r.load(&p, b, x, t0, n);
            if let Some(all) = y.d_o {
                b.gather(d.values(), all, t0, n, T::ONE, d_o, d.v);
            }
            let [q, k, v, beta] = [&r.q, &r.k, &r.v, &r.beta].map(|x| lanes(x));
            b.load_state(&y.states[j * ns..], p.chunks * ns, d.k, d.v, states);
            history(k, (v, beta), states, delta, size);
            let (dq, dk, dv, dbeta) = (&mut *dq, &mut *dk, &mut *dv, &mut *dbeta);
            steps_back(Chunk { q, k, beta, states, delta, d_o, dq, dk, dv, dbeta }, ds, size);
            b.scatter(d.keys(), dq, d.k, t0, n, Some(p.scale), g.dq);
            b.scatter(d.keys(), dk, d.k, t0, n, Some(T::ONE), g.dk);
            b.scatter(d.values(), dv, d.v, t0, n, Some(T::ONE), g.dv);
            b.scatter(d.scalars(), dbeta, 1, t0, n, Some(T::ONE), g.dbeta);
        }
        b.store_state(ds, d.k, d.v, g.ds0, ns, true);
    }
}
