//! Linear attention in chunks of C steps, one head at a time.
//!
//! With Q (scaled), K [C, K], V [C, V] the rows of a chunk, S and z the state before it:
//!
//! ```text
//! M = tril(Q Kᵀ)            O = Q S + M V                  S ← S + Kᵀ V
//!                           den = Q z + M 1 + eps          z ← z + Kᵀ 1
//! dM = tril(dO Vᵀ)          dQ = dO Sᵀ + dM K              dK = dMᵀ Q + V dSᵀ      dV = Mᵀ dO + K dS
//!                           dS ← dS + Qᵀ dO
//! ```
//!
//! Gates fade Q and K on the way from and to the state, and the scores M ([`Decay`]). With γ the product of all gates
//! of the chunk:
//!
//! ```text
//! M = faded scores          O = (start ⊙ Q) S + M V        S ← γ S + (end ⊙ K)ᵀ V
//! dQ = start ⊙ dO Sᵀ + …    dK = end ⊙ V dSᵀ + …           dV = Mᵀ dO + (end ⊙ K) dS
//! dg = … + γ rowsum(S ⊙ dS)                                dS ← γ dS + (start ⊙ Q)ᵀ dO
//! ```
//!
//! With the normaliser dO is do / den, and the column of ones adds a term with δ = −(do·o) / den to the products with
//! dO: dM = tril(dO Vᵀ + δ 1ᵀ), dQ = … + δ zᵀ, dK = … + 1 dzᵀ and dz ← dz + Qᵀ δ.

use crate::{
    kernels::{
        decay::{Decay, Ends, Rows, Sums, mat},
        gated_linear_attention::{Grads, Inputs, Outputs, Plan, Results},
        heads::{Place, gemm_unless_zero, is_zero, zero_above_diagonal},
        lane_sums::columns,
        math::Math,
        matmul::gemm,
        rows::{add_dots, add_outer, add_row_dots, add_weighted, divide_rows},
        scan::put_all,
        tril_matmul::lower_gemm,
    },
    tensor::{Cpu, Real, Temp},
};

/// Every row of `x` plus its number.
#[versions::versions]
fn add_to_rows<T: Real>(k: usize, by: &[T], x: &mut [T]) {
    for (x, &by) in x.chunks_exact_mut(k).zip(by) {
        x.iter_mut().for_each(|x| *x += by);
    }
}

/// The rows of one chunk, and the matrices that both passes compute from them.
pub struct Chunk<'a, T: Math> {
    k: usize,
    v: usize,
    pub queries: Temp<'a, T>,
    pub keys: Temp<'a, T>,
    pub values: Temp<'a, T>,
    pub decay: Decay<'a, T>,
    /// start ⊙ Q and end ⊙ K; empty without gates.
    reading: Temp<'a, T>,
    written: Temp<'a, T>,
    scores: Temp<'a, T>,
    ones: Temp<'a, T>,
}

impl<'a, T: Math> Chunk<'a, T> {
    pub fn new(cpu: &'a Cpu, p: &Plan<T>) -> Chunk<'a, T> {
        let (c, k, v, mut ones) = (p.chunk, p.dims.k, p.dims.v, cpu.temp(p.chunk));
        ones.fill(T::ONE);
        let faded = || cpu.temp(if p.gates > 0 { c * k } else { 0 });
        let (queries, keys, values, scores) = (cpu.temp(c * k), cpu.temp(c * k), cpu.temp(c * v), cpu.temp(c * c));
        let decay = Decay::new(cpu, p.gates, c, k, 1);
        Chunk { k, v, queries, keys, values, decay, reading: faded(), written: faded(), scores, ones }
    }

    /// Load what a chunk writes.
    fn load_writes(&mut self, p: &Plan<T>, x: &Inputs<T>, at: Place) {
        let d = p.dims;
        d.keys().gather(x.k, at, T::ONE, &mut self.keys, d.k);
        d.values().gather(x.v, at, T::ONE, &mut self.values, d.v);
        self.decay.load(p.gates(), x.g, at, 1);
        self.fade_writes(at.n);
    }

    fn fade_writes(&mut self, n: usize) {
        if self.decay.on() {
            self.decay.until_end(n, &self.keys, &mut self.written);
        }
    }

    /// Load all of it.
    fn load(&mut self, p: &Plan<T>, x: &Inputs<T>, at: Place) {
        self.load_writes(p, x, at);
        self.load_reads(p, x, at);
        self.score(at.n);
    }

    /// Load what reads in a chunk, whose gates are loaded.
    fn load_reads(&mut self, p: &Plan<T>, x: &Inputs<T>, at: Place) {
        p.dims.keys().gather(x.q, at, p.scale, &mut self.queries, p.dims.k);
        self.fade_reads(at.n);
    }

    fn fade_reads(&mut self, n: usize) {
        if self.decay.on() {
            self.decay.since_start(n, &self.queries, &mut self.reading);
        }
    }

    fn score(&mut self, n: usize) {
        self.decay.scores(Rows { n, reads: [&self.queries], keys: &self.keys }, [&mut self.scores]);
    }

    /// Multiply n queries and keys by their gates, and compute the scores.
    pub fn fade(&mut self, n: usize) {
        self.fade_writes(n);
        self.fade_reads(n);
        self.score(n);
    }

    fn reading(&self) -> &[T] {
        if self.decay.on() { &self.reading } else { &self.queries }
    }

    fn written(&self) -> &[T] {
        if self.decay.on() { &self.written } else { &self.keys }
    }

    /// O of n steps after the state s.
    pub fn read(&self, cpu: &Cpu, n: usize, s: &[T], o: &mut [T]) {
        let (mk, mv) = (mat(n, self.k), mat(n, self.v));
        gemm_unless_zero(is_zero(s), T::ONE, (self.reading(), mk), (s, mat(self.k, self.v)), (&mut *o, mv), false);
        lower_gemm(cpu, n, self.v, &self.scores, &self.values, o, true);
    }

    /// Adds the column of ones' share of O after the state z.
    pub fn add_weights(&self, n: usize, z: &[T], den: &mut [T]) {
        add_dots(self.k, &self.reading()[..n * self.k], z, den);
        add_dots(n, &self.scores[..n * n], &self.ones[..n], den);
    }

    /// From the state before n steps to the one after them; z is empty without a normaliser.
    pub fn write(&self, n: usize, s: &mut [T], z: &mut [T]) {
        self.decay.fade(n, s, z);
        let (mk, mv) = (mat(n, self.k), mat(n, self.v));
        gemm(T::ONE, (self.written(), mk.t()), (&self.values, mv), (s, mat(self.k, self.v)), true);
        columns(&self.written()[..n * self.k], z);
    }
}

/// A state of one head, [K, V] and [K] or empty, and what all gates of some steps leave of one, [K].
pub struct Carried<'a, T> {
    pub s: &'a mut [T],
    pub z: &'a mut [T],
    pub left: &'a mut [T],
}

/// The last state of head i from a start of zeros.
pub fn last_state<T: Math>(cpu: &Cpu, p: &Plan<T>, x: &Inputs<T>, i: usize, to: Carried<T>) {
    let (d, c, mut u) = (p.dims, p.chunk, Chunk::new(cpu, p));
    to.s.fill(T::ZERO);
    to.z.fill(T::ZERO);
    to.left.fill(T::ONE);
    for t0 in (0..d.t).step_by(c) {
        let n = c.min(d.t - t0);
        u.load_writes(p, x, Place { i, t0, n });
        d.keys().fetch([x.k], (i, t0 + n), c);
        d.values().fetch([x.v], (i, t0 + n), c);
        u.write(n, to.s, to.z);
        u.decay.fade(n, to.left, &mut []);
    }
}

/// The cotangent of the first state of head i, if that of the last one is zero.
pub fn first_cotangent<T: Math>(cpu: &Cpu, p: &Plan<T>, x: &Inputs<T>, y: &Outputs<T>, i: usize, to: Carried<T>) {
    let (d, c, mut u, mut w) = (p.dims, p.chunk, Chunk::new(cpu, p), Work::new(cpu, p));
    let norm = usize::from(p.eps.is_some());
    let (mut o, mut by) = (cpu.temp::<T>(norm * c * d.v), cpu.temp::<T>(norm * c));
    w.start(None, None);
    to.left.fill(T::ONE);
    for t0 in (0..d.t).step_by(c).rev() {
        let at @ Place { n, .. } = Place { i, t0, n: c.min(d.t - t0) };
        u.decay.load(p.gates(), x.g, at, 1);
        u.load_reads(p, x, at);
        w.cotangents(p, y, at, &mut o, &mut by);
        w.back(&u, n);
        u.decay.fade(n, to.left, &mut []);
    }
    to.s.copy_from_slice(&w.ds);
    to.z.copy_from_slice(&w.dz);
}

pub fn forward<T: Math>(cpu: &Cpu, p: Plan<T>, x: &Inputs<T>, mut y: Results<T>) {
    let (d, c, ns) = (p.dims, p.chunk, p.dims.k * p.dims.v);
    let (mut u, mut o, mut by) = (Chunk::new(cpu, &p), cpu.temp::<T>(c * d.v), cpu.temp::<T>(c));
    let mut z = cpu.zeros::<T>(if p.eps.is_some() { d.k } else { 0 });
    for i in 0..d.b * d.h {
        let s = &mut y.s[i * ns..(i + 1) * ns];
        s.copy_from_slice(&x.s0[i * ns..(i + 1) * ns]);
        x.z0.into_iter().for_each(|z0| z.copy_from_slice(&z0[i * d.k..(i + 1) * d.k]));
        for t0 in (0..d.t).step_by(c) {
            let n = c.min(d.t - t0);
            let at = Place { i, t0, n };
            u.load(&p, x, at);
            let next = if t0 + n < d.t { (i, t0 + n) } else { (i + 1, 0) };
            d.keys().fetch([x.q, x.k], next, c);
            d.values().fetch([x.v, y.o], next, c);
            u.read(cpu, n, s, &mut o);
            if let (Some(eps), Some(den)) = (p.eps, y.den.as_deref_mut()) {
                let by = &mut by[..n];
                by.fill(eps);
                u.add_weights(n, &z, by);
                divide_rows(d.v, by, &mut o);
                d.scalars().put(by, 1, at, den);
            }
            u.write(n, s, &mut z);
            d.values().put(&o, d.v, at, y.o);
        }
        y.z.iter_mut().for_each(|last| last[i * d.k..(i + 1) * d.k].copy_from_slice(&z));
    }
}

/// Scratch memory of the backward pass: cotangents and gradients of one chunk, and the cotangent of the state after it.
pub struct Work<'a, T: Math> {
    pub dy: Temp<'a, T>,
    /// The cotangents of the column of ones; empty without a normaliser, as dz.
    pub delta: Temp<'a, T>,
    da: Temp<'a, T>,
    pub dq: Temp<'a, T>,
    pub dk: Temp<'a, T>,
    pub dv: Temp<'a, T>,
    pub dg: Temp<'a, T>,
    pub ds: Temp<'a, T>,
    pub dz: Temp<'a, T>,
}

impl<'a, T: Math> Work<'a, T> {
    pub fn new(cpu: &'a Cpu, p: &Plan<T>) -> Work<'a, T> {
        let (c, k, v, norm) = (p.chunk, p.dims.k, p.dims.v, usize::from(p.eps.is_some()));
        let (key, value) = (|| cpu.temp(c * k), || cpu.temp(c * v));
        let (ds, dz, delta, da) = (cpu.temp(k * v), cpu.temp(norm * k), cpu.temp(norm * c), cpu.temp(c * c));
        Work { dy: value(), delta, da, dq: key(), dk: key(), dv: value(), dg: cpu.temp(c * p.gates), ds, dz }
    }

    /// Start from the cotangents of the last state; zeros where there is none.
    pub fn start(&mut self, ds: Option<&[T]>, dz: Option<&[T]>) {
        let fill = |to: &mut [T], from: Option<&[T]>| match from {
            Some(from) => to.copy_from_slice(from),
            None => to.fill(T::ZERO),
        };
        fill(&mut self.ds, ds);
        fill(&mut self.dz, dz);
    }

    /// dO and δ of a chunk; `o` and `by` are scratch memory for o and den, if it divides.
    fn cotangents(&mut self, p: &Plan<T>, y: &Outputs<T>, at: Place, o: &mut [T], by: &mut [T]) {
        let (heads, v, delta) = (p.dims.values(), p.dims.v, &mut self.delta);
        delta.fill(T::ZERO);
        let Some(d_o) = y.d_o else { return self.dy.fill(T::ZERO) };
        heads.gather(d_o, at, T::ONE, &mut self.dy, v);
        let Some(den) = y.den else { return };
        heads.gather(y.o, at, T::ONE, o, v);
        p.dims.scalars().gather(den, at, T::ONE, by, 1);
        divide_rows(v, &by[..at.n], &mut self.dy);
        add_row_dots(v, &o[..at.n * v], &self.dy[..at.n * v], delta);
        delta.iter_mut().for_each(|d| *d = -*d);
    }

    /// The gradients of n steps after the state (s, z); z is empty without a normaliser. Then ds and dz, of the state
    /// after them, become those of the one before, if they are not `unread`.
    pub fn through(&mut self, cpu: &Cpu, u: &mut Chunk<T>, n: usize, (s, z): (&[T], &[T]), unread: bool) {
        let (mk, mv, ma, ms) = (mat(n, u.k), mat(n, u.v), mat(n, n), mat(u.k, u.v));
        let (k, normal, s_is_zero, ds_is_zero) =
            (u.k, !z.is_empty(), is_zero(s) && is_zero(z), is_zero(&self.ds) && is_zero(&self.dz));
        gemm(T::ONE, (&self.dy, mv), (&u.values, mv.t()), (&mut self.da, ma), false);
        gemm_unless_zero(s_is_zero, T::ONE, (&self.dy, mv), (s, ms.t()), (&mut self.dq, mk), false);
        gemm_unless_zero(ds_is_zero, T::ONE, (&u.values, mv), (&self.ds, ms.t()), (&mut self.dk, mk), false);
        if normal {
            add_to_rows(n, &self.delta[..n], &mut self.da[..n * n]);
            if !s_is_zero {
                add_outer(k, &self.delta[..n], z, &mut self.dq);
            }
            if !ds_is_zero {
                add_outer(k, &u.ones[..n], &self.dz, &mut self.dk);
            }
        }
        zero_above_diagonal(&mut self.da, n, false);
        let x = Rows { n, reads: [&u.queries], keys: &u.keys };
        let ends = Ends { state: (s, z), cotangent: (&self.ds, &self.dz), s_is_zero, ds_is_zero };
        let to = Sums { reads: [&mut self.dq], keys: &mut self.dk, gates: &mut self.dg };
        u.decay.backward(cpu, x, [&u.scores], [&mut self.da], ends, to);
        gemm(T::ONE, (&u.scores, ma.t()), (&self.dy, mv), (&mut self.dv, mv), false);
        gemm_unless_zero(ds_is_zero, T::ONE, (u.written(), mk), (&self.ds, ms), (&mut self.dv, mv), true);
        if !unread {
            self.back(u, n);
        }
    }

    /// From the cotangent of the state after n steps to that of the one before them.
    fn back(&mut self, u: &Chunk<T>, n: usize) {
        let (mk, mv) = (mat(n, u.k), mat(n, u.v));
        u.decay.fade(n, &mut self.ds, &mut self.dz);
        gemm(T::ONE, (u.reading(), mk.t()), (&self.dy, mv), (&mut self.ds, mat(u.k, u.v)), true);
        add_weighted(&self.delta[..n.min(self.delta.len())], u.reading(), &mut self.dz);
    }
}

/// Writes the gradients of all inputs, or adds them, as each slot says. The states before each chunk are recomputed,
/// which is one product in ten.
pub fn backward<T: Math>(cpu: &Cpu, p: Plan<T>, x: &Inputs<T>, y: &Outputs<T>, mut g: Grads<T>) {
    let (d, c, ns, chunks) = (p.dims, p.chunk, p.dims.k * p.dims.v, p.chunks());
    let nz = if p.eps.is_some() { d.k } else { 0 };
    let (mut u, mut w) = (Chunk::new(cpu, &p), Work::new(cpu, &p));
    let (mut states, mut zs) = (cpu.temp::<T>(chunks.max(1) * ns), cpu.zeros::<T>(chunks.max(1) * nz));
    let [mut o, mut by] = [c * d.v, c].map(|n| cpu.temp::<T>(if p.eps.is_some() { n } else { 0 }));
    for i in 0..d.b * d.h {
        let (all, row) = (i * ns..(i + 1) * ns, i * d.k..(i + 1) * d.k);
        states[..ns].copy_from_slice(&x.s0[all.clone()]);
        x.z0.into_iter().for_each(|z0| zs[..d.k].copy_from_slice(&z0[row.clone()]));
        for j in 0..chunks.saturating_sub(1) {
            u.load_writes(&p, x, Place { i, t0: j * c, n: c });
            states.copy_within(j * ns..(j + 1) * ns, (j + 1) * ns);
            zs.copy_within(j * nz..(j + 1) * nz, (j + 1) * nz);
            u.write(c, &mut states[(j + 1) * ns..(j + 2) * ns], &mut zs[(j + 1) * nz..(j + 2) * nz]);
        }
        w.start(y.ds.map(|ds| &ds[all.clone()]), y.dz.map(|dz| &dz[row.clone()]));
        for j in (0..chunks).rev() {
            let (s, z) = (&states[j * ns..(j + 1) * ns], &zs[j * nz..(j + 1) * nz]);
            let at @ Place { t0, n, .. } = Place { i, t0: j * c, n: c.min(d.t - j * c) };
            u.load(&p, x, at);
            w.cotangents(&p, y, at, &mut o, &mut by);
            let next = if j > 0 { (i, t0 - c) } else { (i + 1, (chunks - 1) * c) };
            d.keys().fetch([x.q, x.k, g.dq.0, g.dk.0], next, c);
            d.values().fetch([x.v, y.o, y.d_o.unwrap_or_default(), g.dv.0], next, c);
            w.through(cpu, &mut u, n, (s, z), j == 0 && !g.state);
            d.keys().scatter(&w.dq, d.k, p.scale, at, &mut g.dq);
            d.keys().scatter(&w.dk, d.k, T::ONE, at, &mut g.dk);
            d.values().scatter(&w.dv, d.v, T::ONE, at, &mut g.dv);
            p.gates().scatter(&w.dg, p.gates, T::ONE, at, &mut g.dg);
        }
        if g.state {
            put_all(&mut g.ds0.0[all], &w.ds, g.ds0.1);
            g.dz0.iter_mut().for_each(|(dz0, acc)| put_all(&mut dz0[row.clone()], &w.dz, *acc));
        }
    }
}
