//! The effect of gates inside a chunk of a matrix memory: how the kernels compute what [`decay`](crate::ops::decay)
//! defines.
//!
//! ```text
//! start_t = α_1 … α_t            what is left at step t of the state before the chunk
//! end_s = α_{s+1} … α_C          what is left after the chunk of what step s wrote
//! M_ts = Σ_c q_tc k_sc (α_{s+1} … α_t)_c      for s ≤ t
//! ```
//!
//! All are running products of factors of at most 1, each over its own steps. Nothing is divided and no two sums are
//! subtracted, so nothing overflows, and a gate that forgets nearly all takes no digits from later ones.
//!
//! A memory may be read by several kinds of rows at each step, by queries and by keys to erase: there is an M for each
//! kind.
//!
//! With one gate for all channels M is (Q Kᵀ) ⊙ D; with one for each see [`ChannelScores`]. The gradient of a gate has
//! four terms. Gate u is in start_t for t ≥ u, in end_s for s < u, in start_C, and in M_ts for s < u ≤ t:
//!
//! ```text
//! dg_u += Σ_{t≥u} q_t ⊙ dq_t                   dg_u += Σ_{s<u} k_s ⊙ dk_s
//! dg_u += start_C ⊙ rowsum(S ⊙ dS)             dg_u += Σ_{s<u≤t} M_ts dM_ts
//! ```
//!
//! Here dq includes the part that comes through start, and dk the part through end; S is the state before the chunk and
//! dS the gradient of the state after it. One gate for all channels gets the sums over the channels. With a gate for
//! each channel the fourth term follows from dq and dk like the first two, half by half (`channel_scores.rs`). Each
//! term has the factor of its gate in it, so that nothing cancels where little is left.

mod channel_scores;

use crate::{
    kernels::{
        heads::{Heads, Place, zero_above_diagonal},
        math::Math,
        matmul::{Mat, gemm},
        rows::{add, add_product, add_row_dots, dot, exp, product, scale, scale_rows, times, times_rows},
        segsum,
        tril_matmul::lower_gemm,
    },
    tensor::{Cpu, Temp},
};
use channel_scores::ChannelScores;

/// The gates of a chunk, and the factors that they leave.
pub struct Decay<'a, T: Math> {
    /// Gates of a step: none, one, or K.
    gates: usize,
    k: usize,
    alpha: Temp<'a, T>,
    start: Temp<'a, T>,
    end: Temp<'a, T>,
    /// D [C, C], with one gate.
    between: Temp<'a, T>,
    /// Sums over rows, [C] or [K].
    sums: Temp<'a, T>,
    channels: ChannelScores<'a, T>,
}

/// The keys of a chunk of `n` steps, and the rows that read it, of some kinds.
#[derive(Clone, Copy)]
pub struct Rows<'a, T, const KINDS: usize> {
    pub n: usize,
    pub reads: [&'a [T]; KINDS],
    pub keys: &'a [T],
}

/// The gradients of [`Rows`], and those of the gates [n, gates].
pub struct Sums<'a, T, const KINDS: usize> {
    pub reads: [&'a mut [T]; KINDS],
    pub keys: &'a mut [T],
    pub gates: &'a mut [T],
}

/// The state before a chunk and the cotangent of the state after it, [K, V], each with that of a normaliser, [K] or
/// empty; and whether they are all zeros.
#[derive(Clone, Copy)]
pub struct Ends<'a, T> {
    pub state: (&'a [T], &'a [T]),
    pub cotangent: (&'a [T], &'a [T]),
    pub s_is_zero: bool,
    pub ds_is_zero: bool,
}

/// A matrix without gaps.
pub fn mat(rows: usize, cols: usize) -> Mat {
    Mat::new(rows, cols, cols)
}

impl<'a, T: Math> Decay<'a, T> {
    /// Room for chunks of up to `c` steps with so many gates a step, none, one, or `k`; and with `reads` kinds of
    /// reading rows.
    pub fn new(cpu: &'a Cpu, gates: usize, c: usize, k: usize, reads: usize) -> Decay<'a, T> {
        let row = || cpu.temp(c * gates);
        let (one, many) = (usize::from(gates == 1), usize::from(gates > 1));
        Decay {
            gates,
            k,
            alpha: row(),
            start: row(),
            end: row(),
            between: cpu.temp(one * c * c),
            sums: cpu.temp(if gates > 0 { c.max(k) } else { 0 }),
            channels: ChannelScores::new(cpu, many * c, k, reads),
        }
    }

    /// Whether there are gates.
    pub fn on(&self) -> bool {
        self.gates > 0
    }

    /// Load the gates exp(g) of some tokens. Each token is `m` steps; only the first has a gate.
    pub fn load(&mut self, heads: Heads, g: &[T], at: Place, m: usize) {
        if self.on() {
            let alpha = &mut self.alpha[..m * at.n * self.gates];
            alpha.fill(T::ZERO);
            heads.gather(g, at, T::ONE, alpha, m * self.gates);
            exp(alpha);
            self.multiply(m * at.n);
        }
    }

    /// Set the gates α of these steps.
    pub fn set(&mut self, alpha: &[T]) {
        self.alpha[..alpha.len()].copy_from_slice(alpha);
        self.multiply(alpha.len() / self.gates.max(1));
    }

    fn multiply(&mut self, n: usize) {
        let alpha = &self.alpha[..n * self.gates];
        products(self.gates, alpha, &mut self.start);
        products_after(self.gates, alpha, &mut self.end);
    }

    /// Reading rows times the gates since the start of the chunk: they read the state before it.
    pub fn since_start(&self, n: usize, x: &[T], y: &mut [T]) {
        match self.gates {
            1 => scale_rows(self.k, &self.start[..n], x, y),
            _ => product(&x[..n * self.k], &self.start, y),
        }
    }

    /// Keys times the gates until the end of the chunk: they write to the state after it.
    pub fn until_end(&self, n: usize, k: &[T], y: &mut [T]) {
        match self.gates {
            1 => scale_rows(self.k, &self.end[..n], k, y),
            _ => product(&k[..n * self.k], &self.end, y),
        }
    }

    /// The state, or a cotangent of one, as the gates of all n steps leave it.
    pub fn fade(&self, n: usize, s: &mut [T], z: &mut [T]) {
        let whole = (n - 1) * self.gates..n * self.gates;
        match self.gates {
            0 => {}
            1 => {
                scale(s, self.start[n - 1]);
                scale(z, self.start[n - 1]);
            }
            _ => {
                times_rows(s.len() / self.k, &self.start[whole.clone()], s);
                times(z, &self.start[whole]);
            }
        }
    }

    /// M [n, n] of each kind of rows, zero above the diagonal.
    pub fn scores<const KINDS: usize>(&mut self, x: Rows<T, KINDS>, m: [&mut [T]; KINDS]) {
        let (n, k) = (x.n, self.k);
        if self.gates == 1 {
            between(&self.alpha[..n], &mut self.between);
        }
        if self.gates > 1 {
            return self.channels.scores(x, &self.alpha, m);
        }
        for (read, m) in x.reads.iter().zip(m) {
            gemm(T::ONE, (read, mat(n, k)), (x.keys, mat(n, k).t()), (&mut *m, mat(n, n)), false);
            zero_above_diagonal(m, n, false);
            if self.on() {
                times(&mut m[..n * n], &self.between);
            }
        }
    }

    /// The gradients of the reading rows and keys come in as those of start ⊙ the rows and end ⊙ K, and leave as those
    /// of the rows and K themselves; those of the gates are written. `m` are the scores, and `dm` their cotangents,
    /// zero above the diagonal, which are overwritten.
    pub fn backward<const KINDS: usize>(
        &mut self,
        cpu: &Cpu,
        x: Rows<T, KINDS>,
        m: [&[T]; KINDS],
        mut dm: [&mut [T]; KINDS],
        ends: Ends<T>,
        mut to: Sums<T, KINDS>,
    ) {
        let (n, k) = (x.n, self.k);
        if self.on() {
            to.gates[..n * self.gates].fill(T::ZERO);
            if !ends.s_is_zero {
                x.reads.iter().zip(&mut to.reads).for_each(|(x, dx)| self.through_start(n, x, dx, to.gates));
            }
            if !ends.ds_is_zero {
                self.through_end(n, x.keys, to.keys, to.gates);
            }
            if !ends.s_is_zero && !ends.ds_is_zero {
                self.through_states(n, ends, to.gates);
            }
        }
        if self.gates > 1 {
            return self.channels.backward(x, &self.alpha, dm, to);
        }
        if self.on() {
            let mut both = cpu.zeros::<T>(n * n);
            for (m, dm) in m.iter().zip(&mut dm) {
                add_product(&dm[..n * n], m, &mut both);
                times(&mut dm[..n * n], &self.between);
            }
            segsum::backward(n, &both, &mut to.gates[..n], true, &mut self.sums);
        }
        for ((read, dm), dx) in x.reads.iter().zip(dm).zip(to.reads) {
            lower_gemm(cpu, n, k, dm, x.keys, dx, true);
            gemm(T::ONE, (dm, mat(n, n).t()), (read, mat(n, k)), (to.keys, mat(n, k)), true);
        }
    }

    /// Turn the gradient of the rows that [`since_start`](Self::since_start) made into that of its arguments, in place,
    /// and add to the gates' gradients.
    fn through_start(&mut self, n: usize, x: &[T], dx: &mut [T], dg: &mut [T]) {
        let k = self.k;
        if self.gates > 1 {
            return through(k, &self.start, &x[..n * k], dx, dg, &mut self.sums[..k]);
        }
        times_rows(k, &self.start[..n], dx);
        self.sums[..n].fill(T::ZERO);
        add_row_dots(k, &x[..n * k], dx, &mut self.sums[..n]);
        let mut sum = T::ZERO;
        for (dg, &x) in dg.iter_mut().zip(&self.sums[..n]).rev() {
            sum += x;
            *dg += sum;
        }
    }

    /// The same for keys.
    fn through_end(&mut self, n: usize, keys: &[T], dk: &mut [T], dg: &mut [T]) {
        let k = self.k;
        if self.gates > 1 {
            return through_after(k, &self.end, &keys[..n * k], dk, dg, &mut self.sums[..k]);
        }
        times_rows(k, &self.end[..n], dk);
        self.sums[..n].fill(T::ZERO);
        add_row_dots(k, &keys[..n * k], dk, &mut self.sums[..n]);
        let mut sum = T::ZERO;
        for (dg, &x) in dg.iter_mut().zip(&self.sums[..n]) {
            *dg += sum;
            sum += x;
        }
    }

    /// The term of the state: dg_u += start_C ⊙ rowsum(S ⊙ dS) for every step u.
    fn through_states(&mut self, n: usize, Ends { state: (s, z), cotangent: (ds, dz), .. }: Ends<T>, dg: &mut [T]) {
        let whole = (n - 1) * self.gates..n * self.gates;
        let sums = &mut self.sums[..self.gates];
        if self.gates == 1 {
            sums[0] = dot(s, ds) + dot(z, dz);
        } else {
            sums.fill(T::ZERO);
            add_row_dots(s.len() / self.k, s, ds, sums);
            add_product(z, dz, sums);
        }
        times(sums, &self.start[whole]);
        dg[..n * self.gates].chunks_exact_mut(self.gates).for_each(|dg| add(dg, sums));
    }
}

impl<T, const KINDS: usize> Rows<'_, T, KINDS> {
    /// Of steps lo..hi.
    fn steps(&self, k: usize, lo: usize, hi: usize) -> Self {
        let all = lo * k..hi * k;
        Rows { n: hi - lo, reads: self.reads.map(|x| &x[all.clone()]), keys: &self.keys[all.clone()] }
    }
}

impl<T, const KINDS: usize> Sums<'_, T, KINDS> {
    /// Of steps lo..hi, with a gate for each channel.
    fn steps(&mut self, k: usize, lo: usize, hi: usize) -> Sums<'_, T, KINDS> {
        let all = lo * k..hi * k;
        let reads = self.reads.each_mut().map(|x| &mut x[all.clone()]);
        Sums { reads, keys: &mut self.keys[all.clone()], gates: &mut self.gates[all] }
    }
}

/// The products of rows of `k` numbers from the first on.
#[versions::versions]
fn products<T: Math>(k: usize, x: &[T], y: &mut [T]) {
    for at in (0..x.len()).step_by(k.max(1)) {
        let (before, row) = y[..at + k].split_at_mut(at);
        if at == 0 {
            row.copy_from_slice(&x[..k]);
        } else {
            for ((y, &x), &p) in row.iter_mut().zip(&x[at..]).zip(&before[at - k..]) {
                *y = p * x;
            }
        }
    }
}

/// The products of the rows after each.
#[versions::versions]
fn products_after<T: Math>(k: usize, x: &[T], y: &mut [T]) {
    for at in (0..x.len()).step_by(k.max(1)).rev() {
        let (row, after) = y[at..x.len()].split_at_mut(k);
        if after.is_empty() {
            row.fill(T::ONE);
        } else {
            for ((y, &x), &p) in row.iter_mut().zip(&x[at + k..]).zip(&*after) {
                *y = p * x;
            }
        }
    }
}

/// D [n, n] of n gates: a row is the one before it times α; zero above the diagonal.
#[versions::versions]
fn between<T: Math>(alpha: &[T], d: &mut [T]) {
    let n = alpha.len();
    for t in 0..n {
        let (before, row) = d.split_at_mut(t * n);
        let (past, rest) = row[..n].split_at_mut(t);
        if t > 0 {
            past.iter_mut().zip(&before[(t - 1) * n..]).for_each(|(y, &x)| *y = alpha[t] * x);
        }
        rest.fill(T::ZERO);
        rest[0] = T::ONE;
    }
}

/// From dy to dx = w ⊙ dy, in its place, for rows y_t = x_t ⊙ w_t with w_t = α_1 … α_t; and dg_u += Σ_{t≥u} x_t ⊙ dx_t.
#[versions::versions]
fn through<T: Math>(k: usize, w: &[T], x: &[T], dy: &mut [T], dg: &mut [T], sum: &mut [T]) {
    sum.fill(T::ZERO);
    for at in (0..x.len()).step_by(k.max(1)).rev() {
        let (w, x, dy, dg) = (&w[at..at + k], &x[at..at + k], &mut dy[at..at + k], &mut dg[at..at + k]);
        for i in 0..k {
            dy[i] *= w[i];
            sum[i] += x[i] * dy[i];
            dg[i] += sum[i];
        }
    }
}

/// The same with w_s = α_{s+1} … α_n and dg_u += Σ_{s<u} x_s ⊙ dx_s.
#[versions::versions]
fn through_after<T: Math>(k: usize, w: &[T], x: &[T], dy: &mut [T], dg: &mut [T], sum: &mut [T]) {
    sum.fill(T::ZERO);
    for at in (0..x.len()).step_by(k.max(1)) {
        let (w, x, dy, dg) = (&w[at..at + k], &x[at..at + k], &mut dy[at..at + k], &mut dg[at..at + k]);
        for i in 0..k {
            dg[i] += sum[i];
            dy[i] *= w[i];
            sum[i] += x[i] * dy[i];
        }
    }
}
