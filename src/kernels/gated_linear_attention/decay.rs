//! What gates do inside a chunk.
//!
//! ```text
//! start_t = α_1 … α_t            what is left at step t of the state before the chunk
//! end_s = α_{s+1} … α_C          what is left after the chunk of what step s wrote
//! P_ts = Σ_c q_tc k_sc (α_{s+1} … α_t)_c      for s ≤ t
//! ```
//!
//! All are running products of factors of at most 1, each over the steps that it is about: nothing is divided and no two sums
//! are subtracted, so that nothing overflows and a gate that forgets nearly all takes no digits from later ones.
//!
//! With one gate for all channels P is (Q Kᵀ) ⊙ D. With one for each it is no product of two matrices. The steps are halved
//! (secondary chunking, Yang et al. 2024, arXiv 2312.06635, section 4): what the second half, from step h on, reads of the
//! first is
//!
//! ```text
//! P_ts = Σ_c (q_t ⊙ x_t)_c (k_s ⊙ y_s)_c       x_t = α_h … α_t      y_s = α_{s+1} … α_{h−1}
//! ```
//!
//! and each half is treated likewise, down to a few steps that are taken one by one. Backwards, with R the quadrant of dP,
//!
//! ```text
//! dq_t += x_t ⊙ (R (K ⊙ y))_t      dk_s += y_s ⊙ (Rᵀ (Q ⊙ x))_s
//! ```
//!
//! The gradient of a gate follows from these without another product: a gate is in x_t for the steps t from its own on, and in
//! y_s for the steps s before its own,
//!
//! ```text
//! dg_u += Σ_{t≥u} q_t ⊙ dq_t (u ≥ h)           dg_u += Σ_{s<u} k_s ⊙ dk_s (u < h)
//! ```
//!
//! with what this quadrant adds to dq and dk. The same holds for start with q, and for end with k.

use crate::{
    kernels::{
        gated_linear_attention::Plan,
        heads::lower,
        math::Math,
        matmul::{Mat, gemm},
        rows::{
            add, add_dots, add_outer, add_row_dots, add_weighted, dot, product, scale, scale_rows, times, times_rows,
        },
        segsum,
        tril_matmul::lower_gemm,
    },
    tensor::{Cpu, Temp},
};

/// As many steps are taken one by one.
const FEW: usize = 8;

/// The gates of a chunk, and what they leave.
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
    near: Near<'a, T>,
    far: Far<'a, T>,
}

/// Of a few steps: the keys of the first m steps as they are left at step m, for each m; and the cotangents of these.
struct Near<'a, T: Math> {
    keys: Temp<'a, T>,
    cotangents: Temp<'a, T>,
}

/// Of a quadrant: x and Q ⊙ x, y and K ⊙ y, and a part of dq or dk.
struct Far<'a, T: Math> {
    x: Temp<'a, T>,
    qx: Temp<'a, T>,
    y: Temp<'a, T>,
    ky: Temp<'a, T>,
    part: Temp<'a, T>,
}

/// The queries and keys of a chunk of `n` steps.
#[derive(Clone, Copy)]
pub struct Rows<'a, T> {
    pub n: usize,
    pub q: &'a [T],
    pub k: &'a [T],
}

/// Their gradients, and that of the gates [n, gates].
pub struct Sums<'a, T> {
    pub dq: &'a mut [T],
    pub dk: &'a mut [T],
    pub dg: &'a mut [T],
}

fn mat(rows: usize, cols: usize) -> Mat {
    Mat::new(rows, cols, cols)
}

/// Calls `f(lo, h, hi)` for the steps lo..hi and their halves, each cut at h; and with h = hi for a few steps.
fn halves(lo: usize, hi: usize, f: &mut impl FnMut(usize, usize, usize)) {
    let n = hi - lo;
    if n <= FEW {
        return f(lo, hi, hi);
    }
    let h = lo + n.div_ceil(2).next_multiple_of(FEW);
    halves(lo, h, f);
    halves(h, hi, f);
    f(lo, h, hi);
}

impl<'a, T: Math> Decay<'a, T> {
    pub fn new(cpu: &'a Cpu, p: &Plan<T>) -> Decay<'a, T> {
        let (c, k, gates) = (p.chunk, p.dims.k, p.gates);
        let row = || cpu.temp(c * gates);
        let (one, many) = (usize::from(gates == 1), usize::from(gates > 1));
        let each = || cpu.temp(many * c * k);
        Decay {
            gates,
            k,
            alpha: row(),
            start: row(),
            end: row(),
            between: cpu.temp(one * c * c),
            sums: cpu.temp(if gates > 0 { c.max(k) } else { 0 }),
            near: Near { keys: cpu.temp(many * FEW * FEW * k), cotangents: cpu.temp(many * FEW * k) },
            far: Far { x: each(), qx: each(), y: each(), ky: each(), part: each() },
        }
    }

    /// Whether there are gates.
    pub fn on(&self) -> bool {
        self.gates > 0
    }

    /// The gates of steps `t0..t0 + n` of head `i`.
    pub fn load(&mut self, p: &Plan<T>, g: &[T], i: usize, t0: usize, n: usize) {
        if !self.on() {
            return;
        }
        p.gates().gather(g, i, t0, n, T::ONE, &mut self.alpha, self.gates);
        exp(&mut self.alpha[..n * self.gates]);
        self.multiply(n);
    }

    /// The gates α themselves of as many steps.
    pub fn set(&mut self, alpha: &[T]) {
        self.alpha[..alpha.len()].copy_from_slice(alpha);
        self.multiply(alpha.len() / self.gates.max(1));
    }

    fn multiply(&mut self, n: usize) {
        let alpha = &self.alpha[..n * self.gates];
        products(self.gates, alpha, &mut self.start);
        products_after(self.gates, alpha, &mut self.end);
    }

    /// D, for [`scores`](Self::scores) and what is behind them.
    fn load_between(&mut self, n: usize) {
        between(&self.alpha[..n], &mut self.between);
    }

    /// Rows of queries as far as they read the state before the chunk.
    pub fn since_start(&self, n: usize, q: &[T], y: &mut [T]) {
        match self.gates {
            1 => scale_rows(self.k, &self.start[..n], q, y),
            _ => product(&q[..n * self.k], &self.start, y),
        }
    }

    /// Rows of keys as they are left in the state after the chunk.
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

    /// From the gradient of queries that [`since_start`](Self::since_start) made to theirs, in its place; and more of the gates'.
    pub fn through_start(&mut self, n: usize, q: &[T], dq: &mut [T], dg: &mut [T]) {
        let k = self.k;
        if self.gates == 1 {
            times_rows(k, &self.start[..n], dq);
            self.sums[..n].fill(T::ZERO);
            add_row_dots(k, &q[..n * k], dq, &mut self.sums[..n]);
            add_sums_from(&self.sums[..n], dg);
        } else if self.on() {
            through(k, &self.start, &q[..n * k], dq, dg, &mut self.sums[..k]);
        }
    }

    /// The same for keys.
    pub fn through_end(&mut self, n: usize, keys: &[T], dk: &mut [T], dg: &mut [T]) {
        let k = self.k;
        if self.gates == 1 {
            times_rows(k, &self.end[..n], dk);
            self.sums[..n].fill(T::ZERO);
            add_row_dots(k, &keys[..n * k], dk, &mut self.sums[..n]);
            add_sums_before(&self.sums[..n], dg);
        } else if self.on() {
            through_after(k, &self.end, &keys[..n * k], dk, dg, &mut self.sums[..k]);
        }
    }

    /// What the gates have of their gradients from the state before the chunk, as it is left after it.
    pub fn across(&mut self, n: usize, (s, z): (&[T], &[T]), (ds, dz): (&[T], &[T]), dg: &mut [T]) {
        if self.gates == 1 {
            let all = self.start[n - 1] * (dot(s, ds) + dot(z, dz));
            dg[..n].iter_mut().for_each(|dg| *dg += all);
        } else if self.on() {
            let (k, sums) = (self.k, &mut self.sums[..self.k]);
            sums.fill(T::ZERO);
            add_row_dots(s.len() / k, s, ds, sums);
            sums.iter_mut().zip(z).zip(dz).for_each(|((sum, &z), &dz)| *sum += z * dz);
            times(sums, &self.start[(n - 1) * k..n * k]);
            dg[..n * k].chunks_exact_mut(k).for_each(|dg| add(dg, sums));
        }
    }

    /// P [n, n], zero above the diagonal.
    pub fn scores(&mut self, x: Rows<T>, p: &mut [T]) {
        let (n, k) = (x.n, self.k);
        if self.gates <= 1 {
            gemm(T::ONE, (x.q, mat(n, k)), (x.k, mat(n, k).t()), (&mut *p, mat(n, n)), false);
            lower(p, n, false);
            if self.on() {
                self.load_between(n);
                times(&mut p[..n * n], &self.between);
            }
            return;
        }
        p[..n * n].fill(T::ZERO);
        halves(0, n, &mut |lo, h, hi| {
            let (q, keys, alpha) = (&x.q[lo * k..hi * k], &x.k[lo * k..hi * k], &self.alpha[lo * k..hi * k]);
            if h == hi {
                return self.near.scores(k, (q, keys, alpha), &mut p[lo * n + lo..], n);
            }
            self.far.load(k, (q, keys, alpha), h - lo);
            let to = (&mut p[h * n + lo..], Mat::new(hi - h, h - lo, n));
            gemm(T::ONE, (&self.far.qx, mat(hi - h, k)), (&self.far.ky, mat(h - lo, k).t()), to, false);
        });
    }

    /// Adds what P passes on of its cotangent dp [n, n], of which what is above the diagonal does not count; it is scratch
    /// memory afterwards.
    pub fn through_scores(&mut self, cpu: &Cpu, x: Rows<T>, p: &[T], dp: &mut [T], to: Sums<T>) {
        let (n, k) = (x.n, self.k);
        if self.gates <= 1 {
            lower(dp, n, false);
            if self.on() {
                let mut both = cpu.temp::<T>(n * n);
                product(&dp[..n * n], p, &mut both);
                segsum::backward(n, &both, &mut to.dg[..n], true, &mut self.sums);
                times(&mut dp[..n * n], &self.between);
            }
            lower_gemm(cpu, n, k, dp, x.k, to.dq, true);
            gemm(T::ONE, (dp, mat(n, n).t()), (x.q, mat(n, k)), (to.dk, mat(n, k)), true);
            return;
        }
        halves(0, n, &mut |lo, h, hi| {
            let all = lo * k..hi * k;
            let (q, keys, alpha) = (&x.q[all.clone()], &x.k[all.clone()], &self.alpha[all.clone()]);
            let (dq, dk, dg) = (&mut to.dq[all.clone()], &mut to.dk[all.clone()], &mut to.dg[all]);
            if h == hi {
                return self.near.back(k, (q, keys, alpha), (&dp[lo * n + lo..], n), (dq, dk, dg));
            }
            let (past, now, r) = (h - lo, hi - h, (&dp[h * n + lo..], Mat::new(hi - h, h - lo, n)));
            self.far.load(k, (q, keys, alpha), past);
            let f = &mut self.far;
            let (first, second) = (0..past * k, past * k..(past + now) * k);
            gemm(T::ONE, r, (&f.ky, mat(past, k)), (&mut f.part, mat(now, k)), false);
            through(k, &f.x, &q[second.clone()], &mut f.part, &mut dg[second.clone()], &mut self.sums[..k]);
            add(&mut dq[second], &f.part);
            gemm(T::ONE, (r.0, r.1.t()), (&f.qx, mat(now, k)), (&mut f.part, mat(past, k)), false);
            through_after(k, &f.y, &keys[first.clone()], &mut f.part, &mut dg[first.clone()], &mut self.sums[..k]);
            add(&mut dk[first], &f.part);
        });
    }
}

impl<T: Math> Far<'_, T> {
    /// x, Q ⊙ x, y and K ⊙ y of some steps, of which so many are the first half.
    fn load(&mut self, k: usize, (q, keys, alpha): (&[T], &[T], &[T]), past: usize) {
        let (first, second) = alpha.split_at(past * k);
        products(k, second, &mut self.x);
        product(&q[past * k..], &self.x, &mut self.qx);
        products_after(k, first, &mut self.y);
        product(&keys[..past * k], &self.y, &mut self.ky);
    }
}

impl<T: Math> Near<'_, T> {
    /// The scores of a few steps, to rows of `p` that are `stride` apart.
    fn scores(&mut self, k: usize, (q, keys, alpha): (&[T], &[T], &[T]), p: &mut [T], stride: usize) {
        for t in 0..q.len() / k {
            let row = t * k..(t + 1) * k;
            let left = &mut self.keys[..row.end];
            fade_rows(&alpha[row.clone()], &mut left[..row.start]);
            left[row.clone()].copy_from_slice(&keys[row.clone()]);
            add_dots(k, left, &q[row], &mut p[t * stride..t * stride + t + 1]);
        }
    }

    /// What they add to gradients, of cotangents in rows of dp.
    fn back(
        &mut self,
        k: usize,
        (q, keys, alpha): (&[T], &[T], &[T]),
        (dp, stride): (&[T], usize),
        (dq, dk, dg): (&mut [T], &mut [T], &mut [T]),
    ) {
        let n = q.len() / k;
        let cotangents = |t: usize| &dp[t * stride..t * stride + t + 1];
        for t in 0..n {
            let (row, at) = (t * k..(t + 1) * k, t * FEW * k);
            let (before, left) = self.keys.split_at_mut(at);
            if t > 0 {
                let before = &before[at - FEW * k..][..row.start];
                for (y, x) in left[..row.start].chunks_exact_mut(k).zip(before.chunks_exact(k)) {
                    product(x, &alpha[row.clone()], y);
                }
            }
            left[row.clone()].copy_from_slice(&keys[row.clone()]);
            add_weighted(cotangents(t), &left[..row.end], &mut dq[row]);
        }
        self.cotangents.fill(T::ZERO);
        for t in (0..n).rev() {
            let row = t * k..(t + 1) * k;
            let (before, own) = self.cotangents[..row.end].split_at_mut(row.start);
            add_outer(k, cotangents(t), &q[row.clone()], before);
            add_outer(k, &cotangents(t)[t..], &q[row.clone()], own);
            add(&mut dk[row.clone()], own);
            if t > 0 {
                through_gate(&alpha[row.clone()], before, &self.keys[(t - 1) * FEW * k..], &mut dg[row]);
            }
        }
    }
}

#[versions::versions]
fn exp<T: Math>(x: &mut [T]) {
    x.iter_mut().for_each(|x| *x = x.exp());
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

/// Each row times the same row.
#[versions::versions]
fn fade_rows<T: Math>(by: &[T], x: &mut [T]) {
    for x in x.chunks_exact_mut(by.len()) {
        x.iter_mut().zip(by).for_each(|(x, &by)| *x *= by);
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

/// Cotangents of keys that a gate α faded, times α; and dg += Σ of each times the key before.
#[versions::versions]
fn through_gate<T: Math>(alpha: &[T], d: &mut [T], keys: &[T], dg: &mut [T]) {
    let k = alpha.len();
    for (d, key) in d.chunks_exact_mut(k).zip(keys.chunks_exact(k)) {
        for i in 0..k {
            d[i] *= alpha[i];
            dg[i] += d[i] * key[i];
        }
    }
}

/// y_u += Σ_{t≥u} x_t
fn add_sums_from<T: Math>(x: &[T], y: &mut [T]) {
    let mut sum = T::ZERO;
    for (y, &x) in y.iter_mut().zip(x).rev() {
        sum += x;
        *y += sum;
    }
}

/// y_u += Σ_{s<u} x_s
fn add_sums_before<T: Math>(x: &[T], y: &mut [T]) {
    let mut sum = T::ZERO;
    for (y, &x) in y.iter_mut().zip(x) {
        *y += sum;
        sum += x;
    }
}
