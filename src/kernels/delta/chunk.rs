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
//!
//! A gate fades what is read by the steps since it was written ([`Decay`]): D between steps of the chunk, γ from the
//! state before it, r to the state after it, Γ = γ_C across it.
//!
//! ```text
//! A = stril(b K Kᵀ ⊙ D)               R = b (V − γ K S)         E = (I + A)⁻¹ R
//! P = tril(Q Kᵀ ⊙ D)                  O = γ Q S + P E           S ← Γ S + (r K)ᵀ E
//! ```
//!
//! The same factors come into the gradients above. The gate of step t is in the exponents of what a step u ≥ t reads of
//! a step s < t, of what it reads of the state before the chunk, and of what is left of them after it:
//!
//! ```text
//! dg_t = Σ_{s<t≤u} (dP ⊙ P + dA ⊙ A)_us + Σ_{u≥t} (q_u · (γ dO Sᵀ)_u − b k_u · (γ G Sᵀ)_u)
//!        + Σ_{s<t} k_s · (r E dSᵀ)_s + Γ ⟨dS, S⟩
//! ```
//!
//! Each term has the factor of the gate in it, so that nothing cancels where little is left.

use crate::{
    kernels::{
        delta::{Grads, Inputs, Outputs, Plan, Saved, decay::Decay},
        heads::{gemm_unless, lower, zero},
        math::Math,
        matmul::{Mat, gemm},
        rows::{add, add_row_dots, dot, scale_rows, times_rows},
        scan::put_all,
        segsum,
        triangular::{solve_lower, solve_lower_transposed},
        tril_matmul::lower_gemm,
    },
    tensor::{Cpu, Temp},
};

fn mat(rows: usize, cols: usize) -> Mat {
    Mat::new(rows, cols, cols)
}

/// The rows of one chunk and the matrices both passes compute from them.
struct Chunk<'a, T: Math> {
    q: Temp<'a, T>,
    k: Temp<'a, T>,
    /// b K
    bk: Temp<'a, T>,
    beta: Temp<'a, T>,
    /// V − γ K S
    diff: Temp<'a, T>,
    v: Temp<'a, T>,
    a: Temp<'a, T>,
    p: Temp<'a, T>,
    decay: Decay<'a, T>,
}

impl<'a, T: Math> Chunk<'a, T> {
    fn new(cpu: &'a Cpu, p: &Plan<T>, gated: bool) -> Chunk<'a, T> {
        let (c, k, v) = (p.chunk, p.dims.k, p.dims.v);
        Chunk {
            q: cpu.temp(c * k),
            k: cpu.temp(c * k),
            bk: cpu.temp(c * k),
            beta: cpu.temp(c),
            diff: cpu.temp(c * v),
            v: cpu.temp(c * v),
            a: cpu.temp(c * c),
            p: cpu.temp(c * c),
            decay: Decay::new(cpu, c, gated),
        }
    }

    /// Load steps `t0..t0 + n` of head `i`, whose state before them is `s`.
    fn load(&mut self, p: &Plan<T>, x: &Inputs<T>, i: usize, t0: usize, n: usize, s: &[T]) {
        let d = p.dims;
        let (mk, mv, ma) = (mat(n, d.k), mat(n, d.v), mat(n, n));
        d.keys().gather(x.q, i, t0, n, p.scale, &mut self.q, d.k);
        d.keys().gather(x.k, i, t0, n, T::ONE, &mut self.k, d.k);
        d.scalars().gather(x.beta, i, t0, n, T::ONE, &mut self.beta, 1);
        d.values().gather(x.v, i, t0, n, T::ONE, &mut self.v, d.v);
        self.decay.load(d.scalars(), x.g, i, t0, n);
        scale_rows(d.k, &self.beta[..n], &self.k, &mut self.bk);
        gemm_unless(zero(s), -T::ONE, (&self.k, mk), (s, mat(d.k, d.v)), (&mut self.diff, mv), false);
        self.decay.since_start(&mut self.diff, n, d.v);
        add(&mut self.diff[..n * d.v], &self.v);
        gemm(T::ONE, (&self.bk, mk), (&self.k, mk.t()), (&mut self.a, ma), false);
        gemm(T::ONE, (&self.q, mk), (&self.k, mk.t()), (&mut self.p, ma), false);
        lower(&mut self.a, n, true);
        lower(&mut self.p, n, false);
        self.decay.between(&mut self.a, n);
        self.decay.between(&mut self.p, n);
    }
}

pub fn forward<T: Math>(cpu: &Cpu, p: Plan<T>, x: &Inputs<T>, y: Outputs<T>) {
    let (d, c) = (p.dims, p.chunk);
    let (ms, ns) = (mat(d.k, d.v), d.k * d.v);
    let mut u = Chunk::new(cpu, &p, x.g.is_some());
    let (mut e, mut o, mut s) = (cpu.temp::<T>(c * d.v), cpu.temp::<T>(c * d.v), cpu.temp::<T>(ns));
    for i in 0..d.b * d.h {
        s.copy_from_slice(&x.s0[i * ns..(i + 1) * ns]);
        for j in 0..p.chunks {
            let (t0, at) = (j * c, (i * p.chunks + j) * ns);
            let n = c.min(d.t - t0);
            let (mk, mv) = (mat(n, d.k), mat(n, d.v));
            y.states[at..at + ns].copy_from_slice(&s);
            u.load(&p, x, i, t0, n, &s);
            let next = if j + 1 < p.chunks { (i, t0 + n) } else { (i + 1, 0) };
            d.keys().fetch([x.q, x.k], next, c);
            d.values().fetch([x.v, y.o, y.e], next, c);
            scale_rows(d.v, &u.beta[..n], &u.diff, &mut e);
            solve_lower(&u.a, &mut e, n, d.v);
            gemm_unless(zero(&s), T::ONE, (&u.q, mk), (&s, ms), (&mut o, mv), false);
            u.decay.since_start(&mut o, n, d.v);
            lower_gemm(cpu, n, d.v, &u.p, &e, &mut o, true);
            d.values().put(&o, d.v, i, t0, n, y.o);
            d.values().put(&e, d.v, i, t0, n, y.e);
            u.decay.until_end(&mut e, n, d.v);
            u.decay.state(&mut s, n);
            gemm(T::ONE, (&u.k, mk.t()), (&e, mv), (&mut s, ms), true);
        }
        y.s[i * ns..(i + 1) * ns].copy_from_slice(&s);
    }
}

/// Adds the gradients of all inputs.
pub fn backward<T: Math>(cpu: &Cpu, p: Plan<T>, x: &Inputs<T>, y: &Saved<T>, mut dx: Grads<T>) {
    let (d, c) = (p.dims, p.chunk);
    let (ms, ns) = (mat(d.k, d.v), d.k * d.v);
    let mut u = Chunk::new(cpu, &p, x.g.is_some());
    let (mut e, mut d_o, mut g) = (cpu.temp::<T>(c * d.v), cpu.zeros::<T>(c * d.v), cpu.temp::<T>(c * d.v));
    let (mut da, mut dp, mut ds) = (cpu.temp::<T>(c * c), cpu.temp::<T>(c * c), cpu.temp::<T>(ns));
    let (mut dq, mut dk, mut h) = (cpu.temp::<T>(c * d.k), cpu.temp::<T>(c * d.k), cpu.temp::<T>(c * d.k));
    let (mut bg, mut dbeta, mut dg) = (cpu.temp::<T>(c * d.v), cpu.temp::<T>(c), cpu.temp::<T>(c));
    let gated = x.g.is_some();
    let only = |n: usize| cpu.temp::<T>(if gated { n } else { 0 });
    let (mut w, mut seen) = (only(c * c), only(c * d.k));
    let [mut start, mut end, mut sums] = [only(c), only(c), only(c)];
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
            let next = if j > 0 { (i, t0 - c) } else { (i + 1, (p.chunks - 1) * c) };
            d.keys().fetch([x.q, x.k, dx.dq.0, dx.dk.0], next, c);
            d.values().fetch([x.v, y.e, y.d_o.unwrap_or_default(), dx.dv.0], next, c);
            if let Some(all) = y.d_o {
                d.values().gather(all, i, t0, n, T::ONE, &mut d_o, d.v);
            }
            // Through O = γ Q S + P E and S' = Γ S + (r K)ᵀ E.
            let (first, last, unread) = (zero(s), zero(&ds), j == 0 && !dx.state);
            gemm_unless(last, T::ONE, (&u.k, mk), (&ds, ms), (&mut g, mv), false);
            u.decay.until_end(&mut g, n, d.v);
            gemm(T::ONE, (&u.p, ma.t()), (&d_o, mv), (&mut g, mv), true);
            gemm(T::ONE, (&d_o, mv), (&e, mv.t()), (&mut dp, ma), false);
            lower(&mut dp, n, false);
            if gated {
                product(&dp[..n * n], &u.p, &mut w, false);
            }
            u.decay.between(&mut dp, n);
            gemm_unless(first, T::ONE, (&d_o, mv), (s, ms.t()), (&mut dq, mk), false);
            u.decay.since_start(&mut dq, n, d.k);
            if gated {
                start.fill(T::ZERO);
                add_row_dots(d.k, &u.q[..n * d.k], &dq, &mut start[..n]);
            }
            lower_gemm(cpu, n, d.k, &dp, &u.k, &mut dq, true);
            gemm_unless(last, T::ONE, (&e, mv), (&ds, ms.t()), (&mut dk, mk), false);
            u.decay.until_end(&mut dk, n, d.k);
            if gated {
                end.fill(T::ZERO);
                add_row_dots(d.k, &u.k[..n * d.k], &dk, &mut end[..n]);
            }
            gemm(T::ONE, (&dp, ma.t()), (&u.q, mk), (&mut dk, mk), true);
            // Through E = (I + A)⁻¹ R.
            solve_lower_transposed(&u.a, &mut g, n, d.v);
            gemm(-T::ONE, (&g, mv), (&e, mv.t()), (&mut da, ma), false);
            lower(&mut da, n, true);
            if gated {
                product(&da[..n * n], &u.a, &mut w, true);
            }
            u.decay.between(&mut da, n);
            // Through A = stril(b K Kᵀ ⊙ D) and R = b (V − γ K S); h is of the keys that read, dk of those that wrote.
            scale_rows(d.v, &u.beta[..n], &g, &mut bg);
            lower_gemm(cpu, n, d.k, &da, &u.k, &mut h, false);
            dbeta.fill(T::ZERO);
            add_row_dots(d.v, &g, &u.diff, &mut dbeta[..n]);
            add_row_dots(d.k, &h, &u.k, &mut dbeta[..n]);
            d.values().merge(&bg, d.v, T::ONE, i, (t0, n), &mut dx.dv);
            times_rows(d.k, &u.beta[..n], &mut h);
            u.decay.since_start(&mut bg, n, d.v);
            if gated {
                gemm_unless(first, -T::ONE, (&bg, mv), (s, ms.t()), (&mut seen, mk), false);
                add_row_dots(d.k, &u.k[..n * d.k], &seen, &mut start[..n]);
                add(&mut h[..n * d.k], &seen);
                let across = u.decay.whole(n) * dot(&ds, s);
                gate(&w[..n * n], (&start, &end, across), &mut sums, &mut dg[..n]);
                d.scalars().merge(&dg, 1, T::ONE, i, (t0, n), &mut dx.dg);
            } else {
                gemm_unless(first, -T::ONE, (&bg, mv), (s, ms.t()), (&mut h, mk), true);
            }
            gemm(T::ONE, (&da, ma.t()), (&u.bk, mk), (&mut dk, mk), true);
            u.decay.since_start(&mut d_o, n, d.v);
            u.decay.state(&mut ds, n);
            gemm_unless(unread, T::ONE, (&u.q, mk.t()), (&d_o, mv), (&mut ds, ms), true);
            gemm_unless(unread, -T::ONE, (&u.k, mk.t()), (&bg, mv), (&mut ds, ms), true);
            add(&mut dk[..n * d.k], &h);
            d.keys().merge(&dq, d.k, p.scale, i, (t0, n), &mut dx.dq);
            d.keys().merge(&dk, d.k, T::ONE, i, (t0, n), &mut dx.dk);
            d.scalars().merge(&dbeta, 1, T::ONE, i, (t0, n), &mut dx.dbeta);
        }
        if dx.state {
            put_all(&mut dx.ds0.0[i * ns..(i + 1) * ns], &ds, dx.ds0.1);
        }
    }
}

/// y = a ⊙ b, or y += a ⊙ b
#[versions::versions]
fn product<T: Math>(a: &[T], b: &[T], y: &mut [T], acc: bool) {
    for ((y, &a), &b) in y.iter_mut().zip(a).zip(b) {
        *y = if acc { *y + a * b } else { a * b };
    }
}

/// dg from its terms: of what a step reads of another (w [n, n]) and of the state before the chunk, and of what is left of
/// each step and of the whole after it.
fn gate<T: Math>(w: &[T], (start, end, across): (&[T], &[T], T), sums: &mut [T], dg: &mut [T]) {
    segsum::backward(dg.len(), w, dg, false, sums);
    let mut sum = across;
    for (dg, &end) in dg.iter_mut().zip(end) {
        *dg += sum;
        sum += end;
    }
    sum = T::ZERO;
    for (dg, &start) in dg.iter_mut().zip(start).rev() {
        sum += start;
        *dg += sum;
    }
}
