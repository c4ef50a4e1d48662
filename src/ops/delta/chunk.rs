//! The delta rule in chunks of C steps, one head at a time.
//!
//! With Q (scaled), K [C, K], V [C, V], b = diag β the rows of a chunk and S the state before it, the rows of
//! E [C, V] are the e_t. Each needs those before it, E = b (V − K S) − stril(b K Kᵀ) E: a triangular system.
//!
//! ```text
//! A = stril(b K Kᵀ)                   R = b (V − K S)           E = (I + A)⁻¹ R
//! P = tril(Q Kᵀ)                      O = Q S + P E             S ← S + Kᵀ E
//! ```
//!
//! In the WY form of the paper E = U − W S, with U = (I + A)⁻¹ b V and W = (I + A)⁻¹ b K. That order lets all chunks
//! be solved at once before S is known; where chunks follow one another it only costs another product.
//!
//! ```text
//! dE = Pᵀ dO + K dS                   G = (I + A)⁻ᵀ dE = dR
//! dP = tril(dO Eᵀ)                    dA = −stril(G Eᵀ)
//! dQ = dO Sᵀ + dP K                   dV = b G
//! dK = dPᵀ Q + E dSᵀ − b G Sᵀ + b dA K + dAᵀ b K
//! dβ = rowsum(G ⊙ (V − K S)) + rowsum(dA K ⊙ K)
//! dS ← dS + Qᵀ dO − (b K)ᵀ G
//! ```

use super::{Grads, Inputs, Outputs, Plan, Saved};
use crate::{
    ops::{
        heads::lower,
        matmul::{Mat, gemm},
        triangular::{solve_lower, solve_lower_transposed},
    },
    tensor::{Cpu, Real, Temp},
};

fn mat(rows: usize, cols: usize) -> Mat {
    Mat::new(rows, cols, cols)
}

/// Rows of `y` = rows of `x`, each times its factor.
#[multiversion::multiversion(targets("x86_64+avx512f+avx512vl+avx512dq+avx512bw", "x86_64+avx2"))]
fn scale_rows<T: Real>(by: &[T], x: &[T], y: &mut [T], n: usize, k: usize) {
    for t in 0..n {
        let (x, y) = (&x[t * k..(t + 1) * k], &mut y[t * k..(t + 1) * k]);
        y.iter_mut().zip(x).for_each(|(y, &x)| *y = by[t] * x);
    }
}

/// y_t += x_t · z_t
fn dot_rows<T: Real>(x: &[T], z: &[T], y: &mut [T], n: usize, k: usize) {
    for t in 0..n {
        let (x, z) = (&x[t * k..(t + 1) * k], &z[t * k..(t + 1) * k]);
        y[t] += x.iter().zip(z).map(|(&x, &z)| x * z).sum();
    }
}

/// The rows of one chunk and the matrices both passes compute from them.
struct Chunk<'a, T: Real> {
    q: Temp<'a, T>,
    k: Temp<'a, T>,
    /// b K
    bk: Temp<'a, T>,
    beta: Temp<'a, T>,
    /// V − K S
    diff: Temp<'a, T>,
    a: Temp<'a, T>,
    p: Temp<'a, T>,
}

impl<'a, T: Real> Chunk<'a, T> {
    fn new(cpu: &'a Cpu, p: &Plan<T>) -> Chunk<'a, T> {
        let (c, k, v) = (p.chunk, p.dims.k, p.dims.v);
        Chunk {
            q: cpu.temp(c * k),
            k: cpu.temp(c * k),
            bk: cpu.temp(c * k),
            beta: cpu.temp(c),
            diff: cpu.temp(c * v),
            a: cpu.temp(c * c),
            p: cpu.temp(c * c),
        }
    }

    /// Load steps `t0..t0 + n` of head `i`, whose state before them is `s`.
    fn load(&mut self, p: &Plan<T>, x: &Inputs<T>, i: usize, t0: usize, n: usize, s: &[T]) {
        let d = p.dims;
        let (mk, mv, ma) = (mat(n, d.k), mat(n, d.v), mat(n, n));
        d.keys().gather(x.q, i, t0, n, p.scale, &mut self.q, d.k);
        d.keys().gather(x.k, i, t0, n, T::ONE, &mut self.k, d.k);
        d.scalars().gather(x.beta, i, t0, n, T::ONE, &mut self.beta, 1);
        d.values().gather(x.v, i, t0, n, T::ONE, &mut self.diff, d.v);
        scale_rows(&self.beta, &self.k, &mut self.bk, n, d.k);
        gemm(-T::ONE, (&self.k, mk), (s, mat(d.k, d.v)), (&mut self.diff, mv), true);
        gemm(T::ONE, (&self.bk, mk), (&self.k, mk.t()), (&mut self.a, ma), false);
        gemm(T::ONE, (&self.q, mk), (&self.k, mk.t()), (&mut self.p, ma), false);
        lower(&mut self.a, n, true);
        lower(&mut self.p, n, false);
    }
}

pub fn forward<T: Real>(cpu: &Cpu, p: Plan<T>, x: &Inputs<T>, y: Outputs<T>) {
    let (d, c) = (p.dims, p.chunk);
    let (ms, ns) = (mat(d.k, d.v), d.k * d.v);
    let mut u = Chunk::new(cpu, &p);
    let (mut e, mut o, mut s) = (cpu.temp::<T>(c * d.v), cpu.temp::<T>(c * d.v), cpu.temp::<T>(ns));
    for i in 0..d.b * d.h {
        s.copy_from_slice(&x.s0[i * ns..(i + 1) * ns]);
        for j in 0..p.chunks {
            let (t0, at) = (j * c, (i * p.chunks + j) * ns);
            let n = c.min(d.t - t0);
            let (mk, mv, ma) = (mat(n, d.k), mat(n, d.v), mat(n, n));
            y.states[at..at + ns].copy_from_slice(&s);
            u.load(&p, x, i, t0, n, &s);
            scale_rows(&u.beta, &u.diff, &mut e, n, d.v);
            solve_lower(&u.a, &mut e, n, d.v);
            gemm(T::ONE, (&u.q, mk), (&s, ms), (&mut o, mv), false);
            gemm(T::ONE, (&u.p, ma), (&e, mv), (&mut o, mv), true);
            gemm(T::ONE, (&u.k, mk.t()), (&e, mv), (&mut s, ms), true);
            d.values().put(&o, d.v, i, t0, n, y.o);
            d.values().put(&e, d.v, i, t0, n, y.e);
        }
        y.s[i * ns..(i + 1) * ns].copy_from_slice(&s);
    }
}

/// Adds the gradients of all inputs.
pub fn backward<T: Real>(cpu: &Cpu, p: Plan<T>, x: &Inputs<T>, y: &Saved<T>, dx: Grads<T>) {
    let (d, c) = (p.dims, p.chunk);
    let (ms, ns) = (mat(d.k, d.v), d.k * d.v);
    let mut u = Chunk::new(cpu, &p);
    let (mut e, mut d_o, mut g) = (cpu.temp::<T>(c * d.v), cpu.zeros::<T>(c * d.v), cpu.temp::<T>(c * d.v));
    let (mut da, mut dp, mut ds) = (cpu.temp::<T>(c * c), cpu.temp::<T>(c * c), cpu.temp::<T>(ns));
    let (mut dq, mut dk, mut h) = (cpu.temp::<T>(c * d.k), cpu.temp::<T>(c * d.k), cpu.temp::<T>(c * d.k));
    let (mut bg, mut dbeta) = (cpu.temp::<T>(c * d.v), cpu.temp::<T>(c));
    for i in 0..d.b * d.h {
        match y.ds {
            Some(last) => ds.copy_from_slice(&last[i * ns..(i + 1) * ns]),
            None => ds.fill(T::ZERO),
        }
        for j in (0..p.chunks).rev() {
            let (t0, s) = (j * c, &y.states[(i * p.chunks + j) * ns..][..ns]);
            let n = c.min(d.t - t0);
            let (mk, mv, ma) = (mat(n, d.k), mat(n, d.v), mat(n, n));
            u.load(&p, x, i, t0, n, s);
            d.values().gather(y.e, i, t0, n, T::ONE, &mut e, d.v);
            if let Some(all) = y.d_o {
                d.values().gather(all, i, t0, n, T::ONE, &mut d_o, d.v);
            }
            // Through O = Q S + P E and S' = S + Kᵀ E.
            gemm(T::ONE, (&u.p, ma.t()), (&d_o, mv), (&mut g, mv), false);
            gemm(T::ONE, (&u.k, mk), (&ds, ms), (&mut g, mv), true);
            gemm(T::ONE, (&d_o, mv), (&e, mv.t()), (&mut dp, ma), false);
            lower(&mut dp, n, false);
            gemm(T::ONE, (&d_o, mv), (s, ms.t()), (&mut dq, mk), false);
            gemm(T::ONE, (&dp, ma), (&u.k, mk), (&mut dq, mk), true);
            gemm(T::ONE, (&dp, ma.t()), (&u.q, mk), (&mut dk, mk), false);
            gemm(T::ONE, (&e, mv), (&ds, ms.t()), (&mut dk, mk), true);
            // Through E = (I + A)⁻¹ R.
            solve_lower_transposed(&u.a, &mut g, n, d.v);
            gemm(-T::ONE, (&g, mv), (&e, mv.t()), (&mut da, ma), false);
            lower(&mut da, n, true);
            // Through A = stril(b K Kᵀ) and R = b (V − K S).
            scale_rows(&u.beta, &g, &mut bg, n, d.v);
            gemm(T::ONE, (&da, ma), (&u.k, mk), (&mut h, mk), false);
            dbeta.fill(T::ZERO);
            dot_rows(&g, &u.diff, &mut dbeta, n, d.v);
            dot_rows(&h, &u.k, &mut dbeta, n, d.k);
            gemm(-T::ONE, (&bg, mv), (s, ms.t()), (&mut dk, mk), true);
            for t in 0..n {
                let (dk, h) = (&mut dk[t * d.k..(t + 1) * d.k], &h[t * d.k..(t + 1) * d.k]);
                dk.iter_mut().zip(h).for_each(|(dk, &h)| *dk += u.beta[t] * h);
            }
            gemm(T::ONE, (&da, ma.t()), (&u.bk, mk), (&mut dk, mk), true);
            gemm(T::ONE, (&u.q, mk.t()), (&d_o, mv), (&mut ds, ms), true);
            gemm(-T::ONE, (&u.k, mk.t()), (&bg, mv), (&mut ds, ms), true);
            d.keys().add(&dq, d.k, p.scale, i, t0, n, dx.dq);
            d.keys().add(&dk, d.k, T::ONE, i, t0, n, dx.dk);
            d.values().add(&bg, d.v, T::ONE, i, t0, n, dx.dv);
            d.scalars().add(&dbeta, 1, T::ONE, i, t0, n, dx.dbeta);
        }
        dx.ds0[i * ns..(i + 1) * ns].iter_mut().zip(ds.iter()).for_each(|(d, &s)| *d += s);
    }
}
