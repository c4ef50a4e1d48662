//! The memory in chunks of C steps, one head at a time.
//!
//! With Q (times `scale`), K, P [C, K], V [C, V] the rows of a chunk and S the state before it, the rows of U [C, V]
//! are the u_t. Each needs those before it: a triangular system. Without gates it is
//!
//! ```text
//! A = stril(P Kᵀ)                     U = (I + A)⁻¹ (V − P S)
//! M = tril(Q Kᵀ)                      O = Q S + M U               S ← S + Kᵀ U
//! ```
//!
//! The paper solves for (I + A)⁻¹ P and (I + A)⁻¹ V first, for all chunks before S is known, and `chunk.cu` does so
//! too. Here one chunk follows another: U is solved for directly, which saves a product.
//!
//! Backwards, from the last chunk, with dS the gradient of the state after it:
//!
//! ```text
//! dU = Mᵀ dO + K dS                   dV = (I + A)⁻ᵀ dU
//! dM = tril(dO Uᵀ)                    dA = −stril(dV Uᵀ)
//! dQ = dO Sᵀ + dM K                   dP = −dV Sᵀ + dA K
//! dK = U dSᵀ + dMᵀ Q + dAᵀ P          dS ← dS + Qᵀ dO − Pᵀ dV
//! ```
//!
//! Gates fade what is read by the steps since it was written ([`Decay`]): A_ts and M_ts are multiplied by the gates of
//! the steps s + 1 to t. With γ_t = α_1 … α_t (`since_start`), r_s = α_{s+1} … α_C (`until_end`) and Γ = γ_C (`fade`)
//!
//! ```text
//! U = (I + A)⁻¹ (V − (γ ⊙ P) S)       O = (γ ⊙ Q) S + M U         S ← Γ ⊙ S + (r ⊙ K)ᵀ U
//! dU = Mᵀ dO + (r ⊙ K) dS             dS ← Γ ⊙ dS + (γ ⊙ Q)ᵀ dO − (γ ⊙ P)ᵀ dV
//! dQ = γ ⊙ dO Sᵀ + …                  dP = −γ ⊙ dV Sᵀ + …         dK = r ⊙ U dSᵀ + …
//! ```
//!
//! With two keys each step is two: one with p that erases under e, where v and q are 0, and one without p and gate that
//! writes.
//!
//! For the delta rule P = β K, and V' = β V stands for V above: dβ = rowsum(dP ⊙ K + dV' ⊙ V), dV = β dV', and β dP is
//! added to dK. The gradient of a query is `scale` times its row of dQ.

use crate::{
    kernels::{
        decay::{Decay, Ends, Rows, Sums, mat},
        erase_write::{Grads, Inputs, Outputs, Plan, Saved},
        heads::{Heads, Place, gemm_unless_zero, is_zero, zero_above_diagonal},
        math::Math,
        matmul::gemm,
        rows::{add, add_row_dots, scale_rows, times_rows},
        scan::put_all,
        triangular::{solve_lower, solve_lower_transposed},
        tril_matmul::lower_gemm,
    },
    tensor::{Cpu, Temp},
};

/// The rows of one chunk and the matrices both passes compute from them.
struct Chunk<'a, T: Math> {
    q: Temp<'a, T>,
    p: Temp<'a, T>,
    k: Temp<'a, T>,
    /// Empty, unless it is a delta rule.
    beta: Temp<'a, T>,
    /// γ ⊙ Q, γ ⊙ P and r ⊙ K, where there are gates.
    faded: Option<[Temp<'a, T>; 3]>,
    /// M
    scores: Temp<'a, T>,
    a: Temp<'a, T>,
    decay: Decay<'a, T>,
}

impl<'a, T: Math> Chunk<'a, T> {
    fn new(cpu: &'a Cpu, p: &Plan<T>) -> Chunk<'a, T> {
        let (c, k) = (p.steps() * p.chunk, p.dims.k);
        // Rows of the erasing step have no q, those of the writing step no p: they stay 0.
        let rows = || std::array::from_fn(|_| cpu.zeros(c * k));
        let ([q, p_, k_], [scores, a]) = (rows(), std::array::from_fn(|_| cpu.temp(c * c)));
        let decay = Decay::new(cpu, p.gates, c, k, 2);
        Chunk {
            q,
            p: p_,
            k: k_,
            beta: cpu.temp(if p.has_beta { c } else { 0 }),
            faded: decay.on().then(rows),
            scores,
            a,
            decay,
        }
    }

    /// Load these tokens.
    fn load(&mut self, p: &Plan<T>, x: &Inputs<T>, at: Place) {
        let (d, m) = (p.dims, p.steps());
        let (keys, stride, late_k) = (d.keys(), m * d.k, p.late(d.k));
        keys.gather(x.q, at, p.scale, &mut self.q[late_k..], stride);
        keys.gather(x.k, at, T::ONE, &mut self.k[late_k..], stride);
        if p.two {
            keys.gather(x.e, at, T::ONE, &mut self.k, stride);
        }
        if p.has_beta {
            d.scalars().gather(x.p, at, T::ONE, &mut self.beta, 1);
            scale_rows(d.k, &self.beta[..at.n], &self.k, &mut self.p);
        } else {
            keys.gather(x.p, at, T::ONE, &mut self.p, stride);
        }
        self.decay.load(p.gates(), x.g, at, m);
        let n = m * at.n;
        let rows = Rows { n, reads: [&self.q, &self.p], keys: &self.k };
        self.decay.scores(rows, [&mut self.scores, &mut self.a]);
        zero_above_diagonal(&mut self.a, n, true);
        if let Some([q, p, k]) = &mut self.faded {
            self.decay.since_start(n, &self.q, q);
            self.decay.since_start(n, &self.p, p);
            self.decay.until_end(n, &self.k, k);
        }
    }

    /// γ ⊙ Q, γ ⊙ P and r ⊙ K.
    fn faded(&self) -> [&[T]; 3] {
        match &self.faded {
            Some([q, p, k]) => [q, p, k],
            None => [&self.q, &self.p, &self.k],
        }
    }
}

pub fn forward<T: Math>(cpu: &Cpu, p: Plan<T>, x: &Inputs<T>, y: Outputs<T>) {
    let (d, c, m) = (p.dims, p.chunk, p.steps());
    let (steps, stride, late_v) = (Heads { t: m * d.t, ..d.values() }, m * d.v, p.late(d.v));
    let (ms, ns) = (mat(d.k, d.v), d.k * d.v);
    let mut w = Chunk::new(cpu, &p);
    let (mut u, mut o, mut s) = (cpu.temp::<T>(m * c * d.v), cpu.temp::<T>(m * c * d.v), cpu.temp::<T>(ns));
    for i in 0..d.b * d.h {
        s.copy_from_slice(&x.s0[i * ns..(i + 1) * ns]);
        for j in 0..p.chunks {
            let (t0, n) = (j * c, c.min(d.t - j * c));
            let (at, all) = (Place { i, t0, n }, m * n);
            let (mk, mv) = (mat(all, d.k), mat(all, d.v));
            y.states[(i * p.chunks + j) * ns..][..ns].copy_from_slice(&s);
            w.load(&p, x, at);
            u.fill(T::ZERO);
            d.values().gather(x.v, at, T::ONE, &mut u[late_v..], stride);
            if p.has_beta {
                times_rows(d.v, &w.beta[..n], &mut u);
            }
            let next = if j + 1 < p.chunks { (i, t0 + n) } else { (i + 1, 0) };
            d.keys().fetch([x.q, x.k], next, c);
            p.p_rows().fetch([x.p], next, c);
            d.values().fetch([x.v, y.o, y.u], next, c);
            let (s_is_zero, [q, erase, k]) = (is_zero(&s), w.faded());
            gemm_unless_zero(s_is_zero, -T::ONE, (erase, mk), (&s, ms), (&mut u, mv), true);
            solve_lower(&w.a, &mut u, all, d.v);
            gemm_unless_zero(s_is_zero, T::ONE, (q, mk), (&s, ms), (&mut o, mv), false);
            lower_gemm(cpu, all, d.v, &w.scores, &u, &mut o, true);
            d.values().put(&o[late_v..], stride, at, y.o);
            steps.put(&u, d.v, Place { i, t0: m * t0, n: all }, y.u);
            w.decay.fade(all, &mut s, &mut []);
            gemm(T::ONE, (k, mk.t()), (&u, mv), (&mut s, ms), true);
        }
        y.s[i * ns..(i + 1) * ns].copy_from_slice(&s);
    }
}

/// Writes the gradients of all inputs, or adds them, as each [`Slot`](crate::kernels::heads::Slot) says.
pub fn backward<T: Math>(cpu: &Cpu, p: Plan<T>, x: &Inputs<T>, y: &Saved<T>, mut dx: Grads<T>) {
    let (d, m, p_rows, gates) = (p.dims, p.steps(), p.p_rows(), p.gates());
    let (steps, c) = (Heads { t: m * d.t, ..d.values() }, m * p.chunk);
    let ([keys, values], [late_k, late_v]) = ([m * d.k, m * d.v], [p.late(d.k), p.late(d.v)]);
    let (ms, ns) = (mat(d.k, d.v), d.k * d.v);
    let mut w = Chunk::new(cpu, &p);
    let (mut u, mut d_o, mut dv) = (cpu.temp::<T>(c * d.v), cpu.zeros::<T>(c * d.v), cpu.temp::<T>(c * d.v));
    let (mut dscores, mut da, mut ds) = (cpu.temp::<T>(c * c), cpu.temp::<T>(c * c), cpu.temp::<T>(ns));
    let [mut dq, mut dp, mut dk] = std::array::from_fn(|_| cpu.temp::<T>(c * d.k));
    let only = |n: usize| cpu.temp::<T>(if p.has_beta { n } else { 0 });
    let (mut v, mut dbeta, mut dg) = (only(c * d.v), only(c), cpu.temp::<T>(c * gates.k));
    for i in 0..d.b * d.h {
        match y.ds {
            Some(all) => ds.copy_from_slice(&all[i * ns..(i + 1) * ns]),
            None => ds.fill(T::ZERO),
        }
        for j in (0..p.chunks).rev() {
            let (t0, s) = (j * p.chunk, &y.states[(i * p.chunks + j) * ns..][..ns]);
            let tokens = p.chunk.min(d.t - t0);
            let (at, n) = (Place { i, t0, n: tokens }, m * tokens);
            let (mk, mv, ma) = (mat(n, d.k), mat(n, d.v), mat(n, n));
            w.load(&p, x, at);
            steps.gather(y.u, Place { i, t0: m * t0, n }, T::ONE, &mut u, d.v);
            let next = if j > 0 { (i, t0 - p.chunk) } else { (i + 1, (p.chunks - 1) * p.chunk) };
            d.keys().fetch([x.q, x.k, dx.dq.0, dx.dk.0], next, c);
            p_rows.fetch([x.p, dx.dp.0], next, c);
            d.values().fetch([x.v, y.u, y.d_o.unwrap_or_default(), dx.dv.0], next, c);
            if let Some(all) = y.d_o {
                d.values().gather(all, at, T::ONE, &mut d_o[late_v..], values);
            }
            let (s_is_zero, ds_is_zero) = (is_zero(s), is_zero(&ds));
            // If dS0 is not asked for, skip what only it needs.
            let skip = j == 0 && !dx.state;
            let [_, _, k] = w.faded();
            gemm_unless_zero(ds_is_zero, T::ONE, (k, mk), (&ds, ms), (&mut dv, mv), false);
            gemm(T::ONE, (&w.scores, ma.t()), (&d_o, mv), (&mut dv, mv), true);
            solve_lower_transposed(&w.a, &mut dv, n, d.v);
            gemm(T::ONE, (&d_o, mv), (&u, mv.t()), (&mut dscores, ma), false);
            gemm(-T::ONE, (&dv, mv), (&u, mv.t()), (&mut da, ma), false);
            zero_above_diagonal(&mut dscores, n, false);
            zero_above_diagonal(&mut da, n, true);
            // The gradients through the states. `Decay::backward` multiplies them by the gates, and adds those through
            // the scores: dM K to dQ, dA K to dP, dMᵀ Q + dAᵀ P to dK.
            gemm_unless_zero(s_is_zero, T::ONE, (&d_o, mv), (s, ms.t()), (&mut dq, mk), false);
            gemm_unless_zero(s_is_zero, -T::ONE, (&dv, mv), (s, ms.t()), (&mut dp, mk), false);
            gemm_unless_zero(ds_is_zero, T::ONE, (&u, mv), (&ds, ms.t()), (&mut dk, mk), false);
            let rows = Rows { n, reads: [&w.q, &w.p], keys: &w.k };
            let ends = Ends { state: (s, &[]), cotangent: (&ds, &[]), s_is_zero, ds_is_zero };
            let to = Sums { reads: [&mut dq, &mut dp], keys: &mut dk, gates: &mut dg };
            w.decay.backward(cpu, rows, [&w.scores, &w.a], [&mut dscores, &mut da], ends, to);
            let [q, erase, _] = w.faded();
            w.decay.fade(n, &mut ds, &mut []);
            gemm_unless_zero(skip, T::ONE, (q, mk.t()), (&d_o, mv), (&mut ds, ms), true);
            gemm_unless_zero(skip, -T::ONE, (erase, mk.t()), (&dv, mv), (&mut ds, ms), true);
            if p.has_beta {
                d.values().gather(x.v, at, T::ONE, &mut v, d.v);
                dbeta.fill(T::ZERO);
                add_row_dots(d.k, &dp[..n * d.k], &w.k, &mut dbeta[..n]);
                add_row_dots(d.v, &dv[..n * d.v], &v, &mut dbeta[..n]);
                times_rows(d.k, &w.beta[..n], &mut dp);
                times_rows(d.v, &w.beta[..n], &mut dv);
                add(&mut dk[..n * d.k], &dp);
            }
            let (by, stride) = if p.has_beta { (&dbeta, 1) } else { (&dp, keys) };
            p_rows.scatter(by, stride, T::ONE, at, &mut dx.dp);
            d.keys().scatter(&dq[late_k..], keys, p.scale, at, &mut dx.dq);
            d.keys().scatter(&dk[late_k..], keys, T::ONE, at, &mut dx.dk);
            d.values().scatter(&dv[late_v..], values, T::ONE, at, &mut dx.dv);
            if gates.k > 0 {
                gates.scatter(&dg, m * gates.k, T::ONE, at, &mut dx.dg);
            }
            if p.two {
                d.keys().scatter(&dk, keys, T::ONE, at, &mut dx.de);
            }
        }
        if dx.state {
            put_all(&mut dx.ds0.0[i * ns..(i + 1) * ns], &ds, dx.ds0.1);
        }
    }
}
