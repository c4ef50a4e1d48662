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
//! With a gate α S_{t-1}, α = exp(g_t), stands for S_{t-1}; then dg_t = α ⟨dS, S_{t-1}⟩ and dS ← α dS in the end.
//!
//! The states inside a chunk are computed again from the one saved at its start.

use crate::{
    kernels::{
        delta::{Grads, Inputs, Outputs, Plan, Saved},
        lanes::{Block, L, Lane, lanes, lanes_mut, mul, mul_add, mul_sub},
        math::Math,
    },
    tensor::{Cpu, Real, Temp},
};

/// The gate of step t, where there is one (G).
#[inline(always)]
fn gate<T: Real, const G: bool>(alpha: &[Lane<T>], t: usize) -> Lane<T> {
    if G { alpha[t] } else { [T::ONE; L] }
}

/// α s, or s without a gate.
#[inline(always)]
fn decayed<T: Real, const G: bool>(alpha: Lane<T>, s: Lane<T>) -> Lane<T> {
    if G { mul(alpha, s) } else { s }
}

/// `n` steps: o, and S run along.
#[versions::versions]
fn steps<T: Real, const G: bool>(
    (q, k): (&[Lane<T>], &[Lane<T>]),
    (v, beta): (&[Lane<T>], &[Lane<T>]),
    alpha: &[Lane<T>],
    s: &mut [Lane<T>],
    o: &mut [Lane<T>],
    (n, kk, vv): (usize, usize, usize),
) {
    for t in 0..n {
        let (q, k) = (&q[t * kk..(t + 1) * kk], &k[t * kk..(t + 1) * kk]);
        let a = gate::<T, G>(alpha, t);
        for j in 0..vv {
            let s = &mut s[j * kk..(j + 1) * kk];
            let mut e = v[t * vv + j];
            for i in 0..kk {
                s[i] = decayed::<T, G>(a, s[i]);
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
    /// exp(g); empty without a gate, as dg.
    alpha: &'a [Lane<T>],
    d_o: &'a [Lane<T>],
    /// S_0 .. S_n, of which the first is given.
    states: &'a mut [Lane<T>],
    delta: &'a mut [Lane<T>],
    e: &'a mut [Lane<T>],
    dq: &'a mut [Lane<T>],
    dk: &'a mut [Lane<T>],
    dv: &'a mut [Lane<T>],
    dbeta: &'a mut [Lane<T>],
    dg: &'a mut [Lane<T>],
}

/// Forwards in time: the states, δ, e and dq of every step.
#[versions::versions]
fn states<T: Real, const G: bool>(x: &mut Chunk<T>, (n, kk, vv): (usize, usize, usize)) {
    for t in 0..n {
        let (k, g) = (&x.k[t * kk..(t + 1) * kk], &x.d_o[t * vv..(t + 1) * vv]);
        let (delta, e) = (&mut x.delta[t * vv..(t + 1) * vv], &mut x.e[t * vv..(t + 1) * vv]);
        let a = gate::<T, G>(x.alpha, t);
        let (before, after) = x.states[t * kk * vv..].split_at_mut(kk * vv);
        for j in 0..vv {
            let mut d = x.v[t * vv + j];
            for i in 0..kk {
                d = mul_sub(d, decayed::<T, G>(a, before[j * kk + i]), k[i]);
            }
            (delta[j], e[j]) = (d, mul(x.beta[t], d));
        }
        for i in 0..kk {
            let mut sum = [T::ZERO; L];
            for j in 0..vv {
                let s = mul_add(decayed::<T, G>(a, before[j * kk + i]), k[i], e[j]);
                after[j * kk + i] = s;
                sum = mul_add(sum, s, g[j]);
            }
            x.dq[t * kk + i] = sum;
        }
    }
}

/// Backwards in time: dk, dv and dβ of every step, and dS run along.
#[versions::versions]
fn gradients<T: Real, const G: bool>(x: &mut Chunk<T>, ds: &mut [Lane<T>], (n, kk, vv): (usize, usize, usize)) {
    for t in (0..n).rev() {
        let (q, k) = (&x.q[t * kk..(t + 1) * kk], &x.k[t * kk..(t + 1) * kk]);
        let (e, dv) = (&x.e[t * vv..(t + 1) * vv], &mut x.dv[t * vv..(t + 1) * vv]);
        let s = &x.states[t * kk * vv..(t + 1) * kk * vv];
        let a = gate::<T, G>(x.alpha, t);
        let (mut db, mut da) = ([T::ZERO; L], [T::ZERO; L]);
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
                let s = s[j * kk + i];
                sum = mul_sub(mul_add(sum, *ds, e[j]), decayed::<T, G>(a, s), dv[j]);
                *ds = mul_sub(*ds, k[i], dv[j]);
                if G {
                    da = mul_add(da, *ds, s);
                    *ds = mul(a, *ds);
                }
            }
            x.dk[t * kk + i] = sum;
        }
        if G {
            x.dg[t] = mul(a, da);
        }
    }
}

/// The rows of one chunk.
struct Rows<'a, T: Math> {
    q: Temp<'a, T>,
    k: Temp<'a, T>,
    v: Temp<'a, T>,
    beta: Temp<'a, T>,
    /// exp(g), if there is a gate.
    alpha: Temp<'a, T>,
}

impl<'a, T: Math> Rows<'a, T> {
    fn new(cpu: &'a Cpu, p: &Plan<T>, gated: bool) -> Rows<'a, T> {
        let (c, d) = (p.chunk * L, p.dims);
        let alpha = cpu.temp(if gated { c } else { 0 });
        Rows { q: cpu.temp(c * d.k), k: cpu.temp(c * d.k), v: cpu.temp(c * d.v), beta: cpu.temp(c), alpha }
    }

    fn load(&mut self, p: &Plan<T>, b: Block, x: &Inputs<T>, t0: usize, n: usize) {
        let d = p.dims;
        b.gather(d.keys(), x.q, t0, n, p.scale, lanes_mut(&mut self.q), d.k);
        b.gather(d.keys(), x.k, t0, n, T::ONE, lanes_mut(&mut self.k), d.k);
        b.gather(d.values(), x.v, t0, n, T::ONE, lanes_mut(&mut self.v), d.v);
        b.gather(d.scalars(), x.beta, t0, n, T::ONE, lanes_mut(&mut self.beta), 1);
        if let Some(g) = x.g {
            b.gather(d.scalars(), g, t0, n, T::ONE, lanes_mut(&mut self.alpha), 1);
            exp(&mut self.alpha[..n * L]);
        }
    }
}

#[versions::versions]
fn exp<T: Math>(x: &mut [T]) {
    x.iter_mut().for_each(|x| *x = x.exp());
}

pub fn forward<T: Math>(cpu: &Cpu, p: Plan<T>, x: &Inputs<T>, y: Outputs<T>) {
    let (d, c, ns) = (p.dims, p.chunk, p.dims.k * p.dims.v);
    let gated = x.g.is_some();
    let mut r = Rows::new(cpu, &p, gated);
    let (mut s, mut o) = (cpu.temp::<T>(ns * L), cpu.temp::<T>(c * d.v * L));
    let (s, o) = (lanes_mut(&mut s), lanes_mut(&mut o));
    for b in Block::all(d.b * d.h) {
        b.load_state(x.s0, ns, d.k, d.v, s);
        for j in 0..p.chunks {
            let n = c.min(d.t - j * c);
            b.store_state(s, d.k, d.v, p.chunks * ns, &mut (&mut y.states[j * ns..], false));
            r.load(&p, b, x, j * c, n);
            let [q, k, v, beta, alpha] = [&r.q, &r.k, &r.v, &r.beta, &r.alpha].map(|x| lanes(x));
            let run = if gated { steps::<T, true> } else { steps::<T, false> };
            run((q, k), (v, beta), alpha, s, o, (n, d.k, d.v));
            b.scatter(d.values(), o, d.v, (j * c, n), T::ONE, &mut (y.o, false));
        }
        b.store_state(s, d.k, d.v, ns, &mut (y.s, false));
    }
}

/// Adds the gradients of all inputs.
pub fn backward<T: Math>(cpu: &Cpu, p: Plan<T>, x: &Inputs<T>, y: &Saved<T>, mut g: Grads<T>) {
    let (d, c, ns) = (p.dims, p.chunk, p.dims.k * p.dims.v);
    let lane = |n: usize| cpu.temp::<T>(n * L);
    let gated = x.g.is_some();
    let mut r = Rows::new(cpu, &p, gated);
    let (mut history, mut ds, mut d_o) = (lane((c + 1) * ns), lane(ns), lane(c * d.v));
    let (mut delta, mut e, mut dbeta, mut dg) = (lane(c * d.v), lane(c * d.v), lane(c), lane(c));
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
            let [q, k, v, beta, alpha, d_o] = [&r.q, &r.k, &r.v, &r.beta, &r.alpha, &d_o].map(|x| lanes(x));
            let [states, delta, e] = [&mut history, &mut delta, &mut e].map(|x| lanes_mut(x));
            let [dq, dk, dv, dbeta, dg] = [&mut dq, &mut dk, &mut dv, &mut dbeta, &mut dg].map(|x| lanes_mut(x));
            let mut u = Chunk { q, k, v, beta, alpha, d_o, states, delta, e, dq, dk, dv, dbeta, dg };
            let (forth, back) = if gated {
                (self::states::<T, true> as fn(&mut _, _), gradients::<T, true> as fn(&mut _, &mut _, _))
            } else {
                (self::states::<T, false> as fn(&mut _, _), gradients::<T, false> as fn(&mut _, &mut _, _))
            };
            forth(&mut u, (n, d.k, d.v));
            back(&mut u, ds, (n, d.k, d.v));
            let at = (t0, n);
            if gated {
                b.scatter(d.scalars(), u.dg, 1, at, T::ONE, &mut g.dg);
            }
            b.scatter(d.keys(), u.dq, d.k, at, p.scale, &mut g.dq);
            b.scatter(d.keys(), u.dk, d.k, at, T::ONE, &mut g.dk);
            b.scatter(d.values(), u.dv, d.v, at, T::ONE, &mut g.dv);
            b.scatter(d.scalars(), u.dbeta, 1, at, T::ONE, &mut g.dbeta);
        }
        if g.state {
            b.store_state(ds, d.k, d.v, ns, &mut g.ds0);
        }
    }
}
