//! Linear attention step by step, sixteen heads side by side.
//!
//! ```text
//! Ŝ_t = α_t Ŝ_{t-1} + k_t v̂_tᵀ         dq_t = Ŝ_t dô_t                           (forwards in time)
//! dŜ_t = α_{t+1} dŜ_{t+1} + q_t dô_tᵀ  dk_t = dŜ_t v̂_t      dv̂_t = dŜ_tᵀ k_t     (backwards)
//!                                      dg_t = α_t rowsum(Ŝ_{t-1} ⊙ dŜ_t)
//! ```
//!
//! A gate's gradient needs Ŝ_{t-1}. So the states of a few steps are computed again from the one saved before them, and
//! kept. Without a gate they are not needed, and the whole sequence is one piece.

use crate::{
    kernels::{
        gated_linear_attention::{Grads, Inputs, Outputs, Plan, Results},
        heads::Slot,
        lanes::{Block, L, Lane, lanes, lanes_mut, mul, mul_add},
        math::Math,
        rows::exp,
    },
    tensor::{Cpu, Real},
};

/// The number of steps whose states are kept at a time, and of which one state is saved, with a gate. So many states
/// stay in the second-level cache.
pub const STEPS: usize = 16;

/// Gates of a step: none, one, or one for each channel.
const NONE: u8 = 0;
const HEAD: u8 = 1;
const CHANNEL: u8 = 2;

/// The gate of channel i at a step, of those of the step.
#[inline(always)]
fn gate<T: Real, const G: u8>(alpha: &[Lane<T>], i: usize) -> Lane<T> {
    match G {
        NONE => [T::ONE; L],
        HEAD => alpha[0],
        _ => alpha[i],
    }
}

/// α s
#[inline(always)]
fn faded<T: Real, const G: u8>(alpha: Lane<T>, s: Lane<T>) -> Lane<T> {
    if G == NONE { s } else { mul(alpha, s) }
}

/// The gates of step t.
#[inline(always)]
fn of_step<T: Real, const G: u8>(alpha: &[Lane<T>], t: usize, kk: usize) -> &[Lane<T>] {
    match G {
        NONE => &[],
        HEAD => &alpha[t..=t],
        _ => &alpha[t * kk..(t + 1) * kk],
    }
}

/// Ŝ ← α Ŝ + k v̂ᵀ and ô = Ŝᵀ q for `n` steps.
#[versions::versions]
fn steps<T: Real, const G: u8>(
    (q, k): (&[Lane<T>], &[Lane<T>]),
    (v, alpha): (&[Lane<T>], &[Lane<T>]),
    s: &mut [Lane<T>],
    o: &mut [Lane<T>],
    (n, kk, w): (usize, usize, usize),
) {
    for t in 0..n {
        let (q, k) = (&q[t * kk..(t + 1) * kk], &k[t * kk..(t + 1) * kk]);
        let alpha = of_step::<T, G>(alpha, t, kk);
        for j in 0..w {
            let (v, s) = (v[t * w + j], &mut s[j * kk..(j + 1) * kk]);
            let mut sum = [T::ZERO; L];
            for i in 0..kk {
                s[i] = mul_add(faded::<T, G>(gate::<T, G>(alpha, i), s[i]), k[i], v);
                sum = mul_add(sum, q[i], s[i]);
            }
            o[t * w + j] = sum;
        }
    }
}

/// dq = Ŝ dô for `n` steps. Ŝ runs along in `states`; with a gate these are Ŝ_0 … Ŝ_n, of which the first is given.
#[versions::versions]
fn queries<T: Real, const G: u8>(
    (k, v): (&[Lane<T>], &[Lane<T>]),
    (dy, alpha): (&[Lane<T>], &[Lane<T>]),
    states: &mut [Lane<T>],
    dq: &mut [Lane<T>],
    (n, kk, w): (usize, usize, usize),
) {
    for t in 0..n {
        let (v, dy) = (&v[t * w..(t + 1) * w], &dy[t * w..(t + 1) * w]);
        let alpha = of_step::<T, G>(alpha, t, kk);
        if G == NONE {
            let s = &mut states[..kk * w];
            for i in 0..kk {
                let (k, mut sum) = (k[t * kk + i], [T::ZERO; L]);
                for j in 0..w {
                    let s = &mut s[j * kk + i];
                    *s = mul_add(*s, k, v[j]);
                    sum = mul_add(sum, *s, dy[j]);
                }
                dq[t * kk + i] = sum;
            }
            continue;
        }
        let (before, after) = states[t * kk * w..(t + 2) * kk * w].split_at_mut(kk * w);
        for i in 0..kk {
            let (k, a, mut sum) = (k[t * kk + i], gate::<T, G>(alpha, i), [T::ZERO; L]);
            for j in 0..w {
                let s = mul_add(faded::<T, G>(a, before[j * kk + i]), k, v[j]);
                after[j * kk + i] = s;
                sum = mul_add(sum, s, dy[j]);
            }
            dq[t * kk + i] = sum;
        }
    }
}

/// dŜ ← dŜ + q dôᵀ, dk = dŜ v̂, dv̂ = dŜᵀ k and dg, then α dŜ, from the last of `n` steps to the first; `states` as
/// from [`queries`].
#[versions::versions]
fn keys_and_values<T: Real, const G: u8>(
    (q, k): (&[Lane<T>], &[Lane<T>]),
    (v, dy): (&[Lane<T>], &[Lane<T>]),
    (alpha, states): (&[Lane<T>], &[Lane<T>]),
    ds: &mut [Lane<T>],
    (dk, dv): (&mut [Lane<T>], &mut [Lane<T>]),
    dg: &mut [Lane<T>],
    (n, kk, w): (usize, usize, usize),
) {
    for t in (0..n).rev() {
        let rows = t * kk..(t + 1) * kk;
        let (q, k, dk) = (&q[rows.clone()], &k[rows.clone()], &mut dk[rows.clone()]);
        if G == NONE {
            dk.fill([T::ZERO; L]);
            for j in 0..w {
                let (v, dy, ds) = (v[t * w + j], dy[t * w + j], &mut ds[j * kk..(j + 1) * kk]);
                let mut sum = [T::ZERO; L];
                for i in 0..kk {
                    ds[i] = mul_add(ds[i], q[i], dy);
                    dk[i] = mul_add(dk[i], ds[i], v);
                    sum = mul_add(sum, ds[i], k[i]);
                }
                dv[t * w + j] = sum;
            }
            continue;
        }
        let (v, dy, dv) = (&v[t * w..(t + 1) * w], &dy[t * w..(t + 1) * w], &mut dv[t * w..(t + 1) * w]);
        let (alpha, before) = (of_step::<T, G>(alpha, t, kk), &states[t * kk * w..(t + 1) * kk * w]);
        dv.fill([T::ZERO; L]);
        let mut all = [T::ZERO; L];
        for i in 0..kk {
            let (q, k, a) = (q[i], k[i], gate::<T, G>(alpha, i));
            let (mut to_k, mut to_g) = ([T::ZERO; L], [T::ZERO; L]);
            for j in 0..w {
                let d = mul_add(ds[j * kk + i], q, dy[j]);
                to_k = mul_add(to_k, d, v[j]);
                dv[j] = mul_add(dv[j], d, k);
                to_g = mul_add(to_g, d, before[j * kk + i]);
                ds[j * kk + i] = mul(a, d);
            }
            dk[i] = to_k;
            if G == CHANNEL {
                dg[t * kk + i] = mul(a, to_g);
            } else {
                all = mul_add(all, a, to_g);
            }
        }
        if G == HEAD {
            dg[t] = all;
        }
    }
}

/// Divide each row of ô by den = its last column + eps, which is left there.
#[versions::versions]
fn divide<T: Real>(o: &mut [Lane<T>], w: usize, eps: T) {
    for row in o.chunks_exact_mut(w) {
        if let Some((den, row)) = row.split_last_mut() {
            den.iter_mut().for_each(|d| *d += eps);
            row.iter_mut().for_each(|o| (0..L).for_each(|l| o[l] = o[l] / den[l]));
        }
    }
}

/// dô = [do / den, −(do·o) / den] in place of do, for rows of `w`; `o` holds the same rows of o, and den last.
#[versions::versions]
fn undivide<T: Real>(dy: &mut [Lane<T>], o: &[Lane<T>], w: usize) {
    for (row, o) in dy.chunks_exact_mut(w).zip(o.chunks_exact(w)) {
        if let (Some((last, row)), Some((den, o))) = (row.split_last_mut(), o.split_last()) {
            let mut sum = [T::ZERO; L];
            row.iter().zip(o).for_each(|(g, o)| sum = mul_add(sum, *g, *o));
            row.iter_mut().for_each(|g| (0..L).for_each(|l| g[l] = g[l] / den[l]));
            (0..L).for_each(|l| last[l] = -(sum[l] / den[l]));
        }
    }
}

impl<T: Math> Plan<T> {
    /// v̂ = [v, 1] of steps `t0..t0 + n`.
    fn value_lanes(&self, b: Block, v: &[T], t0: usize, n: usize, y: &mut [Lane<T>]) {
        let w = self.width();
        b.gather(self.dims.values(), v, (t0, n), T::ONE, y, w);
        if w > self.dims.v {
            y.chunks_exact_mut(w).for_each(|row| row[w - 1] = [T::ONE; L]);
        }
    }

    /// α of steps `t0..t0 + n`.
    fn gate_lanes(&self, b: Block, g: &[T], t0: usize, n: usize, y: &mut [T]) {
        if self.gates > 0 {
            b.gather(self.gates(), g, (t0, n), T::ONE, lanes_mut(y), self.gates);
            exp(&mut y[..n * self.gates * L]);
        }
    }

    /// The lanes of Ŝ from s, whose heads are `step` apart, and z.
    fn state_lanes(&self, b: Block, s: Option<&[T]>, step: usize, z: Option<&[T]>, y: &mut [Lane<T>]) {
        let (k, v) = (self.dims.k, self.dims.v);
        y.fill([T::ZERO; L]);
        if let Some(s) = s {
            b.load_state(s, step, k, v, y);
        }
        if let Some(z) = z {
            b.load_state(z, k, k, 1, &mut y[v * k..]);
        }
    }

    fn store_lanes(&self, b: Block, x: &[Lane<T>], s: &mut Slot<T>, z: Option<&mut Slot<T>>) {
        let (k, v) = (self.dims.k, self.dims.v);
        b.store_state(x, k, v, k * v, s);
        if let Some(z) = z {
            b.store_state(&x[v * k..], k, 1, k, z);
        }
    }
}

pub fn forward<T: Math>(cpu: &Cpu, p: Plan<T>, x: &Inputs<T>, mut y: Results<T>) {
    let (d, c, w, ns) = (p.dims, p.chunk, p.width(), p.dims.k * p.dims.v);
    let lane = |n: usize| cpu.temp::<T>(n * L);
    let (mut q, mut k, mut v, mut alpha) = (lane(c * d.k), lane(c * d.k), lane(c * w), lane(c * p.gates));
    let (mut o, mut s) = (lane(c * w), lane(d.k * w));
    let [q, k, v, o, s] = [&mut q, &mut k, &mut v, &mut o, &mut s].map(|x| lanes_mut(x));
    let run = match p.gates {
        0 => steps::<T, NONE>,
        1 => steps::<T, HEAD>,
        _ => steps::<T, CHANNEL>,
    };
    for b in Block::all(d.b * d.h) {
        p.state_lanes(b, Some(x.s0), ns, x.z0, s);
        for (j, t0) in (0..d.t).step_by(c).enumerate() {
            let n = c.min(d.t - t0);
            if let Some(states) = y.states.as_deref_mut() {
                b.store_state(s, d.k, d.v, p.chunks() * ns, &mut (&mut states[j * ns..], false));
            }
            b.gather(d.keys(), x.q, (t0, n), p.scale, q, d.k);
            b.gather(d.keys(), x.k, (t0, n), T::ONE, k, d.k);
            p.value_lanes(b, x.v, t0, n, v);
            p.gate_lanes(b, x.g, t0, n, &mut alpha);
            run((q, k), (v, lanes(&alpha)), s, o, (n, d.k, w));
            if let (Some(eps), Some(den)) = (p.eps, y.den.as_deref_mut()) {
                divide(&mut o[..n * w], w, eps);
                b.scatter(d.scalars(), &o[d.v..], w, (t0, n), T::ONE, &mut (den, false));
            }
            b.scatter(d.values(), o, w, (t0, n), T::ONE, &mut (y.o, false));
        }
        p.store_lanes(b, s, &mut (y.s, false), y.z.as_deref_mut().map(|z| (z, false)).as_mut());
    }
}

/// Writes the gradients of all inputs, or adds them, as each [`Slot`] says.
pub fn backward<T: Math>(cpu: &Cpu, p: Plan<T>, x: &Inputs<T>, y: &Outputs<T>, g: Grads<T>) {
    match p.gates {
        0 => through::<T, NONE>(cpu, p, x, y, g),
        1 => through::<T, HEAD>(cpu, p, x, y, g),
        _ => through::<T, CHANNEL>(cpu, p, x, y, g),
    }
}

fn through<T: Math, const G: u8>(cpu: &Cpu, p: Plan<T>, x: &Inputs<T>, y: &Outputs<T>, mut g: Grads<T>) {
    let (d, w, ns) = (p.dims, p.width(), p.dims.k * p.dims.v);
    let (c, kept) = if G == NONE { (d.t.max(1), 1) } else { (p.chunk, p.chunk + 1) };
    let lane = |n: usize| cpu.temp::<T>(n * L);
    let (mut q, mut k, mut v, mut dy) = (lane(c * d.k), lane(c * d.k), lane(c * w), lane(c * w));
    let (mut dk, mut dv, mut dg, mut alpha) = (lane(c * d.k), lane(c * w), lane(c * p.gates), lane(c * p.gates));
    let (mut states, mut ds) = (lane(kept * d.k * w), lane(d.k * w));
    let (states, ds) = (lanes_mut(&mut states), lanes_mut(&mut ds));
    for b in Block::all(d.b * d.h) {
        p.state_lanes(b, y.ds, ns, y.dz, ds);
        for (j, t0) in (0..d.t).step_by(c).enumerate().rev() {
            let n = c.min(d.t - t0);
            b.gather(d.keys(), x.q, (t0, n), p.scale, lanes_mut(&mut q), d.k);
            b.gather(d.keys(), x.k, (t0, n), T::ONE, lanes_mut(&mut k), d.k);
            p.value_lanes(b, x.v, t0, n, lanes_mut(&mut v));
            p.gate_lanes(b, x.g, t0, n, &mut alpha);
            dy.fill(T::ZERO);
            if let Some(d_o) = y.d_o {
                b.gather(d.values(), d_o, (t0, n), T::ONE, lanes_mut(&mut dy), w);
                if let Some(den) = y.den {
                    let o = lanes_mut(&mut dv);
                    b.gather(d.values(), y.o, (t0, n), T::ONE, o, w);
                    b.gather(d.scalars(), den, (t0, n), T::ONE, &mut o[d.v..], w);
                    // Lanes without a head have no denominator; any number will do.
                    o.chunks_exact_mut(w).for_each(|row| row[d.v][b.len..].fill(T::ONE));
                    undivide(lanes_mut(&mut dy), o, w);
                }
            }
            match y.states {
                Some(all) => b.load_state(&all[j * ns..], p.chunks() * ns, d.k, d.v, states),
                None => p.state_lanes(b, Some(x.s0), ns, x.z0, states),
            }
            let sizes = (n, d.k, w);
            queries::<T, G>((lanes(&k), lanes(&v)), (lanes(&dy), lanes(&alpha)), states, lanes_mut(&mut dk), sizes);
            b.scatter(d.keys(), lanes(&dk), d.k, (t0, n), p.scale, &mut g.dq);
            let (rows, values) = ((lanes(&q), lanes(&k)), (lanes(&v), lanes(&dy)));
            let (to, to_gates) = ((lanes_mut(&mut dk), lanes_mut(&mut dv)), lanes_mut(&mut dg));
            keys_and_values::<T, G>(rows, values, (lanes(&alpha), states), ds, to, to_gates, sizes);
            b.scatter(d.keys(), lanes(&dk), d.k, (t0, n), T::ONE, &mut g.dk);
            b.scatter(d.values(), lanes(&dv), w, (t0, n), T::ONE, &mut g.dv);
            if p.gates > 0 {
                b.scatter(p.gates(), lanes(&dg), p.gates, (t0, n), T::ONE, &mut g.dg);
            }
        }
        if g.state {
            p.store_lanes(b, ds, &mut g.ds0, g.dz0.as_mut());
        }
    }
}
