//! Linear attention step by step, sixteen heads side by side; columns of Ŝ one after another.
//!
//! ```text
//! Ŝ_t = Ŝ_{t-1} + k_t v̂_tᵀ         dq_t = Ŝ_t dô_t                           (forwards in time)
//! dŜ_t = dŜ_{t+1} + q_t dô_tᵀ      dk_t = dŜ_t v̂_t      dv̂_t = dŜ_tᵀ k_t     (backwards)
//! ```

use crate::{
    kernels::{
        heads::Merged,
        lanes::{Block, L, Lane, lanes, lanes_mut, mul_add},
        linear_attn::{Grads, Inputs, Outputs, Plan},
    },
    tensor::{Cpu, Real},
};

/// Ŝ += k v̂ᵀ and ô = Ŝᵀ q for `n` steps.
#[versions::versions]
fn steps<T: Real>(
    q: &[Lane<T>],
    k: &[Lane<T>],
    v: &[Lane<T>],
    s: &mut [Lane<T>],
    o: &mut [Lane<T>],
    n: usize,
    kk: usize,
    w: usize,
) {
    for t in 0..n {
        let (q, k) = (&q[t * kk..(t + 1) * kk], &k[t * kk..(t + 1) * kk]);
        for j in 0..w {
            let (v, s) = (v[t * w + j], &mut s[j * kk..(j + 1) * kk]);
            let mut sum = [T::ZERO; L];
            for i in 0..kk {
                s[i] = mul_add(s[i], k[i], v);
                sum = mul_add(sum, q[i], s[i]);
            }
            o[t * w + j] = sum;
        }
    }
}

/// dq = Ŝ dô for `n` steps, running Ŝ along.
#[versions::versions]
fn queries<T: Real>(
    k: &[Lane<T>],
    v: &[Lane<T>],
    dy: &[Lane<T>],
    s: &mut [Lane<T>],
    dq: &mut [Lane<T>],
    n: usize,
    kk: usize,
    w: usize,
) {
    for t in 0..n {
        let (v, dy) = (&v[t * w..(t + 1) * w], &dy[t * w..(t + 1) * w]);
        for i in 0..kk {
            let (k, mut sum) = (k[t * kk + i], [T::ZERO; L]);
            for j in 0..w {
                let s = &mut s[j * kk + i];
                *s = mul_add(*s, k, v[j]);
                sum = mul_add(sum, *s, dy[j]);
            }
            dq[t * kk + i] = sum;
        }
    }
}

/// dŜ += q dôᵀ, dk = dŜ v̂ and dv̂ = dŜᵀ k, from the last of `n` steps to the first.
#[versions::versions]
fn keys_and_values<T: Real>(
    (q, k): (&[Lane<T>], &[Lane<T>]),
    (v, dy): (&[Lane<T>], &[Lane<T>]),
    ds: &mut [Lane<T>],
    (dk, dv): (&mut [Lane<T>], &mut [Lane<T>]),
    (n, kk, w): (usize, usize, usize),
) {
    for t in (0..n).rev() {
        let rows = t * kk..(t + 1) * kk;
        let (q, k, dk) = (&q[rows.clone()], &k[rows.clone()], &mut dk[rows]);
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

impl<T: Real> Plan<T> {
    /// v̂ = [v, 1] of steps `t0..t0 + n`.
    fn value_lanes(&self, b: Block, v: &[T], t0: usize, n: usize, y: &mut [Lane<T>]) {
        let w = self.width();
        b.gather(self.dims.values(), v, t0, n, T::ONE, y, w);
        if w > self.dims.v {
            y.chunks_exact_mut(w).for_each(|row| row[w - 1] = [T::ONE; L]);
        }
    }

    /// The lanes of Ŝ from s and z.
    fn state_lanes(&self, b: Block, s: Option<&[T]>, z: Option<&[T]>, y: &mut [Lane<T>]) {
        let (k, v) = (self.dims.k, self.dims.v);
        y.fill([T::ZERO; L]);
        if let Some(s) = s {
            b.load_state(s, k * v, k, v, y);
        }
        if let Some(z) = z {
            b.load_state(z, k, k, 1, &mut y[v * k..]);
        }
    }

    fn store_lanes(&self, b: Block, x: &[Lane<T>], s: &mut Merged<T>, z: Option<&mut Merged<T>>) {
        let (k, v) = (self.dims.k, self.dims.v);
        b.store_state(x, k, v, k * v, s);
        if let Some(z) = z {
            b.store_state(&x[v * k..], k, 1, k, z);
        }
    }
}

/// Outputs, last state and, when normalised, denominators.
pub fn forward<T: Real>(
    cpu: &Cpu,
    p: Plan<T>,
    x: &Inputs<T>,
    o: &mut [T],
    s_last: &mut [T],
    mut z_last: Option<&mut [T]>,
    mut den: Option<&mut [T]>,
) {
    let (d, c, w) = (p.dims, p.chunk.min(p.dims.t), p.width());
    let (mut q, mut k, mut v) = (cpu.temp::<T>(c * d.k * L), cpu.temp::<T>(c * d.k * L), cpu.temp::<T>(c * w * L));
    let (mut y, mut s) = (cpu.temp::<T>(c * w * L), cpu.temp::<T>(d.k * w * L));
    let (q, k, v, y, s) =
        (lanes_mut(&mut q), lanes_mut(&mut k), lanes_mut(&mut v), lanes_mut(&mut y), lanes_mut(&mut s));
    for b in Block::all(d.b * d.h) {
        p.state_lanes(b, Some(x.s0), x.z0, s);
        for t0 in (0..d.t).step_by(c.max(1)) {
            let n = c.min(d.t - t0);
            b.gather(d.keys(), x.q, t0, n, p.scale, q, d.k);
            b.gather(d.keys(), x.k, t0, n, T::ONE, k, d.k);
            p.value_lanes(b, x.v, t0, n, v);
            steps(q, k, v, s, y, n, d.k, w);
            if let (Some(eps), Some(den)) = (p.eps, den.as_deref_mut()) {
                divide(&mut y[..n * w], w, eps);
                b.scatter(d.scalars(), &y[d.v..], w, (t0, n), T::ONE, &mut (den, false));
            }
            b.scatter(d.values(), y, w, (t0, n), T::ONE, &mut (o, false));
        }
        p.store_lanes(b, s, &mut (s_last, false), z_last.as_deref_mut().map(|z| (z, false)).as_mut());
    }
}

/// Adds the gradients of all inputs.
pub fn backward<T: Real>(cpu: &Cpu, p: Plan<T>, x: &Inputs<T>, y: &Outputs<T>, mut g: Grads<T>) {
    let (d, n, w) = (p.dims, p.dims.t, p.width());
    let key = || cpu.temp::<T>(n * d.k * L);
    let value = || cpu.temp::<T>(n * w * L);
    let (mut q, mut k, mut v, mut dy) = (key(), key(), value(), value());
    let (mut dk, mut dv, mut s) = (key(), value(), cpu.temp::<T>(d.k * w * L));
    let s = lanes_mut(&mut s);
    for b in Block::all(d.b * d.h) {
        b.gather(d.keys(), x.q, 0, n, p.scale, lanes_mut(&mut q), d.k);
        b.gather(d.keys(), x.k, 0, n, T::ONE, lanes_mut(&mut k), d.k);
        p.value_lanes(b, x.v, 0, n, lanes_mut(&mut v));
        dy.fill(T::ZERO);
        if let Some(d_o) = y.d_o.filter(|_| n > 0) {
            b.gather(d.values(), d_o, 0, n, T::ONE, lanes_mut(&mut dy), w);
            if let Some(den) = y.den {
                let o = lanes_mut(&mut dv);
                b.gather(d.values(), y.o, 0, n, T::ONE, o, w);
                b.gather(d.scalars(), den, 0, n, T::ONE, &mut o[d.v..], w);
                // Lanes without a head have no denominator; any number will do.
                o.chunks_exact_mut(w).for_each(|row| row[d.v][b.len..].fill(T::ONE));
                undivide(lanes_mut(&mut dy), o, w);
            }
        }
        p.state_lanes(b, Some(x.s0), x.z0, s);
        queries(lanes(&k), lanes(&v), lanes(&dy), s, lanes_mut(&mut dk), n, d.k, w);
        b.scatter(d.keys(), lanes(&dk), d.k, (0, n), p.scale, &mut g.dq);
        p.state_lanes(b, y.ds, y.dz, s);
        let (q, k, v, dy) = (lanes(&q), lanes(&k), lanes(&v), lanes(&dy));
        keys_and_values((q, k), (v, dy), s, (lanes_mut(&mut dk), lanes_mut(&mut dv)), (n, d.k, w));
        b.scatter(d.keys(), lanes(&dk), d.k, (0, n), T::ONE, &mut g.dk);
        b.scatter(d.values(), lanes(&dv), w, (0, n), T::ONE, &mut g.dv);
        if g.state {
            p.store_lanes(b, s, &mut g.ds0, g.dz0.as_mut());
        }
    }
}
