//! The memory step by step, sixteen heads side by side; columns of S one after another.
//!
//! A column j of S depends on element j of the values only. q_t is the query times `scale`; dq_t is multiplied by it
//! when written. Backwards from the last step, with dS the gradient of the state after step t, S' = diag(α) S_{t-1} and
//! α = exp(g_t):
//!
//! ```text
//! u = v_t − S'ᵀ p_t                  dq_t = S_t do_t           (forwards in time)
//! dS ← dS + q_t do_tᵀ                du = dSᵀ k_t              (backwards)
//! dk_t = dS u     dv_t = du          dp_t = −S' du             dS' = dS − p_t duᵀ
//! dg_t = α ⊙ rowsum(dS' ⊙ S_{t-1})   dS ← diag(α) dS'
//! ```
//!
//! One gate for the whole memory gets the sum of dg_t over its rows. Of a delta rule, with δ_t = v_t − S'ᵀ k_t and u =
//! β δ,
//!
//! ```text
//! dβ_t = du·δ     dv_t = β du        dk_t = dS u − S' (β du)   dS' = dS − k_t (β du)ᵀ
//! ```
//!
//! With two keys, u = −S'ᵀ p_t is written under e_t and v_t under k_t:
//!
//! ```text
//! du = dSᵀ e_t     dv_t = dSᵀ k_t     de_t = dS u     dk_t = dS v_t
//! ```
//!
//! The states inside a chunk are computed again from the one saved at its start.

use crate::{
    kernels::{
        erase_write::{Grads, Inputs, Outputs, Plan, Saved},
        lanes::{Block, L, Lane, lanes, lanes_mut, mul, mul_add, mul_sub},
        math::Math,
        rows::exp,
    },
    tensor::{Cpu, Real, Temp},
};

/// Keys p to erase, β of a delta rule, or two keys.
const ERASE: usize = 0;
const DELTA: usize = 1;
const TWO: usize = 2;

/// No gates, one, or one for each row of the memory.
const NONE: usize = 0;
const HEAD: usize = 1;
const CHANNEL: usize = 2;

/// Gates of a step.
#[inline(always)]
const fn width<const G: usize>(k: usize) -> usize {
    match G {
        NONE => 0,
        HEAD => 1,
        _ => k,
    }
}

/// Row i of a state, times its gate; `alpha` has the gates of the step.
#[inline(always)]
fn faded<T: Real, const G: usize>(alpha: &[Lane<T>], i: usize, s: Lane<T>) -> Lane<T> {
    match G {
        NONE => s,
        HEAD => mul(alpha[0], s),
        _ => mul(alpha[i], s),
    }
}

/// The inputs of steps, row after row.
struct Steps<'a, T> {
    q: &'a [Lane<T>],
    k: &'a [Lane<T>],
    /// p, or β of a delta rule.
    p: &'a [Lane<T>],
    v: &'a [Lane<T>],
    /// exp(g)
    alpha: &'a [Lane<T>],
    /// The key that u is written under; empty unless there are two keys.
    e: &'a [Lane<T>],
}

/// One step: p is k for a delta rule, and e is k, unless there are two keys.
struct Step<'a, T> {
    q: &'a [Lane<T>],
    k: &'a [Lane<T>],
    p: &'a [Lane<T>],
    e: &'a [Lane<T>],
    /// 1, unless it is a delta rule.
    beta: Lane<T>,
    alpha: &'a [Lane<T>],
}

impl<'a, T: Real> Steps<'a, T> {
    /// Step t.
    #[inline(always)]
    fn at<const RULE: usize, const G: usize>(&self, t: usize, kk: usize) -> Step<'a, T> {
        let (row, w) = (t * kk..(t + 1) * kk, width::<G>(kk));
        let [q, k] = [self.q, self.k].map(|x| &x[row.clone()]);
        let (p, beta) = if RULE == DELTA { (k, self.p[t]) } else { (&self.p[row.clone()], [T::ONE; L]) };
        let e = if RULE == TWO { &self.e[row] } else { k };
        Step { q, k, p, e, beta, alpha: &self.alpha[t * w..(t + 1) * w] }
    }
}

/// How many steps, K and V.
type Sizes = (usize, usize, usize);

type Lanes<T> = [Lane<T>];

/// `n` steps: o, and S run along.
#[versions::versions]
fn steps<T: Real, const RULE: usize, const G: usize>(
    x: &Steps<T>,
    s: &mut [Lane<T>],
    o: &mut [Lane<T>],
    (n, kk, vv): Sizes,
) {
    for t in 0..n {
        let Step { q, k, p, e, beta, alpha: a } = x.at::<RULE, G>(t, kk);
        for j in 0..vv {
            let (s, v) = (&mut s[j * kk..(j + 1) * kk], x.v[t * vv + j]);
            let mut u = if RULE == TWO { [T::ZERO; L] } else { v };
            for i in 0..kk {
                s[i] = faded::<T, G>(a, i, s[i]);
                u = mul_sub(u, s[i], p[i]);
            }
            let u = if RULE == DELTA { mul(beta, u) } else { u };
            let mut sum = [T::ZERO; L];
            for i in 0..kk {
                s[i] = mul_add(s[i], e[i], u);
                if RULE == TWO {
                    s[i] = mul_add(s[i], k[i], v);
                }
                sum = mul_add(sum, q[i], s[i]);
            }
            o[t * vv + j] = sum;
        }
    }
}

/// The inputs and results of one chunk in the backward pass.
struct Chunk<'a, T> {
    x: Steps<'a, T>,
    d_o: &'a [Lane<T>],
    /// S_0 .. S_n, of which the first is given.
    states: &'a mut [Lane<T>],
    u: &'a mut [Lane<T>],
    /// δ of a delta rule.
    delta: &'a mut [Lane<T>],
    dq: &'a mut [Lane<T>],
    dk: &'a mut [Lane<T>],
    dv: &'a mut [Lane<T>],
    /// The gradient of p, or of β.
    dp: &'a mut [Lane<T>],
    dg: &'a mut [Lane<T>],
    /// Empty unless there are two keys.
    de: &'a mut [Lane<T>],
    /// du of the current step.
    du: &'a mut [Lane<T>],
}

/// Forwards in time: the states, u and dq of every step.
#[versions::versions]
fn states<T: Real, const RULE: usize, const G: usize>(c: &mut Chunk<T>, (n, kk, vv): Sizes) {
    for t in 0..n {
        let Step { k, p, e, beta, alpha: a, .. } = c.x.at::<RULE, G>(t, kk);
        let v = &c.x.v[t * vv..(t + 1) * vv];
        let (u, d_o) = (&mut c.u[t * vv..(t + 1) * vv], &c.d_o[t * vv..(t + 1) * vv]);
        let (before, after) = c.states[t * kk * vv..].split_at_mut(kk * vv);
        for j in 0..vv {
            let mut sum = if RULE == TWO { [T::ZERO; L] } else { v[j] };
            for i in 0..kk {
                sum = mul_sub(sum, faded::<T, G>(a, i, before[j * kk + i]), p[i]);
            }
            u[j] = sum;
            if RULE == DELTA {
                (c.delta[t * vv + j], u[j]) = (sum, mul(beta, sum));
            }
        }
        for i in 0..kk {
            let mut sum = [T::ZERO; L];
            for j in 0..vv {
                let mut s = mul_add(faded::<T, G>(a, i, before[j * kk + i]), e[i], u[j]);
                if RULE == TWO {
                    s = mul_add(s, k[i], v[j]);
                }
                after[j * kk + i] = s;
                sum = mul_add(sum, s, d_o[j]);
            }
            c.dq[t * kk + i] = sum;
        }
    }
}

/// Backwards in time: all other gradients of every step, and dS run along.
#[versions::versions]
fn gradients<T: Real, const RULE: usize, const G: usize>(c: &mut Chunk<T>, ds: &mut [Lane<T>], (n, kk, vv): Sizes) {
    let w = width::<G>(kk);
    for t in (0..n).rev() {
        let Step { q, k, p, e, beta, alpha: a } = c.x.at::<RULE, G>(t, kk);
        let [u, v] = [&*c.u, c.x.v].map(|x| &x[t * vv..(t + 1) * vv]);
        let (dv, du) = (&mut c.dv[t * vv..(t + 1) * vv], &mut c.du[..vv]);
        let s = &c.states[t * kk * vv..(t + 1) * kk * vv];
        let mut db = [T::ZERO; L];
        for j in 0..vv {
            let (d_o, mut sum, mut written) = (c.d_o[t * vv + j], [T::ZERO; L], [T::ZERO; L]);
            for i in 0..kk {
                let ds = &mut ds[j * kk + i];
                *ds = mul_add(*ds, q[i], d_o);
                sum = mul_add(sum, *ds, e[i]);
                if RULE == TWO {
                    written = mul_add(written, *ds, k[i]);
                }
            }
            if RULE == DELTA {
                db = mul_add(db, sum, c.delta[t * vv + j]);
                // From here on du is β du, which is dv.
                sum = mul(beta, sum);
            }
            (du[j], dv[j]) = (sum, if RULE == TWO { written } else { sum });
        }
        if RULE == DELTA {
            c.dp[t] = db;
        }
        let mut da = [T::ZERO; L];
        for i in 0..kk {
            let (mut dk, mut de, mut dp) = ([T::ZERO; L], [T::ZERO; L], [T::ZERO; L]);
            if G == CHANNEL {
                da = [T::ZERO; L];
            }
            for j in 0..vv {
                let (ds, s) = (&mut ds[j * kk + i], s[j * kk + i]);
                dk = mul_add(dk, *ds, if RULE == TWO { v[j] } else { u[j] });
                if RULE == TWO {
                    de = mul_add(de, *ds, u[j]);
                }
                let d = if RULE == DELTA { &mut dk } else { &mut dp };
                *d = mul_sub(*d, faded::<T, G>(a, i, s), du[j]);
                *ds = mul_sub(*ds, p[i], du[j]);
                if G != NONE {
                    da = mul_add(da, *ds, s);
                    *ds = faded::<T, G>(a, i, *ds);
                }
            }
            c.dk[t * kk + i] = dk;
            if RULE != DELTA {
                c.dp[t * kk + i] = dp;
            }
            if RULE == TWO {
                c.de[t * kk + i] = de;
            }
            if G == CHANNEL {
                c.dg[t * w + i] = mul(a[i], da);
            }
        }
        if G == HEAD {
            c.dg[t] = mul(a[0], da);
        }
    }
}

/// The rows of one chunk.
struct Rows<'a, T: Math> {
    q: Temp<'a, T>,
    k: Temp<'a, T>,
    p: Temp<'a, T>,
    v: Temp<'a, T>,
    alpha: Temp<'a, T>,
    e: Temp<'a, T>,
}

impl<'a, T: Math> Rows<'a, T> {
    fn new(cpu: &'a Cpu, p: &Plan<T>) -> Rows<'a, T> {
        let (c, d) = (p.chunk * L, p.dims);
        let [q, k] = std::array::from_fn(|_| cpu.temp(c * d.k));
        let [p, v, alpha, e] = [p.p_rows().k, d.v, p.gates, p.second_key_width()].map(|n| cpu.temp(c * n));
        Rows { q, k, p, v, alpha, e }
    }

    fn load(&mut self, p: &Plan<T>, b: Block, x: &Inputs<T>, t0: usize, n: usize) {
        let (d, p_rows, gates) = (p.dims, p.p_rows(), p.gates());
        b.gather(d.keys(), x.q, (t0, n), p.scale, lanes_mut(&mut self.q), d.k);
        b.gather(d.keys(), x.k, (t0, n), T::ONE, lanes_mut(&mut self.k), d.k);
        b.gather(p_rows, x.p, (t0, n), T::ONE, lanes_mut(&mut self.p), p_rows.k);
        b.gather(d.values(), x.v, (t0, n), T::ONE, lanes_mut(&mut self.v), d.v);
        if gates.k > 0 {
            b.gather(gates, x.g, (t0, n), T::ONE, lanes_mut(&mut self.alpha), gates.k);
            exp(&mut self.alpha[..n * gates.k * L]);
        }
        if p.two {
            b.gather(d.keys(), x.e, (t0, n), T::ONE, lanes_mut(&mut self.e), d.k);
        }
    }

    fn steps(&self) -> Steps<'_, T> {
        let [q, k, p, v, alpha, e] = [&self.q, &self.k, &self.p, &self.v, &self.alpha, &self.e].map(|x| lanes(x));
        Steps { q, k, p, v, alpha, e }
    }
}

/// The functions of a rule with its gates: [`steps`], [`states`] and [`gradients`].
struct Passes<T> {
    run: fn(&Steps<T>, &mut Lanes<T>, &mut Lanes<T>, Sizes),
    recompute: fn(&mut Chunk<T>, Sizes),
    gradients: fn(&mut Chunk<T>, &mut Lanes<T>, Sizes),
}

impl<T: Math> Passes<T> {
    fn with<const RULE: usize, const G: usize>() -> Passes<T> {
        Passes { run: steps::<T, RULE, G>, recompute: states::<T, RULE, G>, gradients: gradients::<T, RULE, G> }
    }

    fn of(p: &Plan<T>) -> Passes<T> {
        match (p.has_beta, p.gates) {
            _ if p.two => Passes::with::<TWO, CHANNEL>(),
            (true, 0) => Passes::with::<DELTA, NONE>(),
            (true, 1) => Passes::with::<DELTA, HEAD>(),
            (true, _) => Passes::with::<DELTA, CHANNEL>(),
            (false, 0) => Passes::with::<ERASE, NONE>(),
            (false, 1) => Passes::with::<ERASE, HEAD>(),
            (false, _) => Passes::with::<ERASE, CHANNEL>(),
        }
    }
}

pub fn forward<T: Math>(cpu: &Cpu, p: Plan<T>, x: &Inputs<T>, y: Outputs<T>) {
    let (d, c, ns) = (p.dims, p.chunk, p.dims.k * p.dims.v);
    let (passes, mut r) = (Passes::of(&p), Rows::new(cpu, &p));
    let (mut s, mut o) = (cpu.temp::<T>(ns * L), cpu.temp::<T>(c * d.v * L));
    let (s, o) = (lanes_mut(&mut s), lanes_mut(&mut o));
    for b in Block::all(d.b * d.h) {
        b.load_state(x.s0, ns, d.k, d.v, s);
        for j in 0..p.chunks {
            let n = c.min(d.t - j * c);
            b.store_state(s, d.k, d.v, p.chunks * ns, &mut (&mut y.states[j * ns..], false));
            r.load(&p, b, x, j * c, n);
            (passes.run)(&r.steps(), s, o, (n, d.k, d.v));
            b.scatter(d.values(), o, d.v, (j * c, n), T::ONE, &mut (y.o, false));
        }
        b.store_state(s, d.k, d.v, ns, &mut (y.s, false));
    }
}

/// Writes the gradients of all inputs, or adds them, as each [`Slot`](crate::kernels::heads::Slot) says.
pub fn backward<T: Math>(cpu: &Cpu, p: Plan<T>, x: &Inputs<T>, y: &Saved<T>, mut dx: Grads<T>) {
    let (d, c, ns) = (p.dims, p.chunk, p.dims.k * p.dims.v);
    let (p_rows, gates, passes) = (p.p_rows(), p.gates(), Passes::of(&p));
    let lane = |n: usize| cpu.temp::<T>(n * L);
    let mut r = Rows::new(cpu, &p);
    let (mut history, mut ds, mut d_o, mut u) = (lane((c + 1) * ns), lane(ns), lane(c * d.v), lane(c * d.v));
    let (mut dq, mut dk, mut dv) = (lane(c * d.k), lane(c * d.k), lane(c * d.v));
    let (mut dp, mut dg, mut delta) =
        (lane(c * p_rows.k), lane(c * gates.k), lane(if p.has_beta { c * d.v } else { 0 }));
    let (mut de, mut du) = (lane(c * p.second_key_width()), lane(d.v));
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
                b.gather(d.values(), all, (t0, n), T::ONE, lanes_mut(&mut d_o), d.v);
            }
            let [states, u, dq, dk] = [&mut history, &mut u, &mut dq, &mut dk].map(|x| lanes_mut(x));
            let [dv, dp, dg, delta, de, du] =
                [&mut dv, &mut dp, &mut dg, &mut delta, &mut de, &mut du].map(|x| lanes_mut(x));
            let mut c = Chunk { x: r.steps(), d_o: lanes(&d_o), states, u, delta, dq, dk, dv, dp, dg, de, du };
            (passes.recompute)(&mut c, (n, d.k, d.v));
            (passes.gradients)(&mut c, ds, (n, d.k, d.v));
            let at = (t0, n);
            b.scatter(d.keys(), c.dq, d.k, at, p.scale, &mut dx.dq);
            b.scatter(d.keys(), c.dk, d.k, at, T::ONE, &mut dx.dk);
            b.scatter(d.values(), c.dv, d.v, at, T::ONE, &mut dx.dv);
            b.scatter(p_rows, c.dp, p_rows.k, at, T::ONE, &mut dx.dp);
            if gates.k > 0 {
                b.scatter(gates, c.dg, gates.k, at, T::ONE, &mut dx.dg);
            }
            if p.two {
                b.scatter(d.keys(), c.de, d.k, at, T::ONE, &mut dx.de);
            }
        }
        if dx.state {
            b.store_state(ds, d.k, d.v, ns, &mut dx.ds0);
        }
    }
}
