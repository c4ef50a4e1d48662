//! What a gate for each row of the memory does inside a chunk.
//!
//! The scores are no product of two matrices then:
//!
//! ```text
//! R_ts = Σ_c q_tc k_sc D_tsc        D_ts = α_{s+1} ⊙ … ⊙ α_t        α = exp(g) ≤ 1
//! ```
//!
//! as one, (q ⊙ exp(b)) (k ⊙ exp(−b))ᵀ would overflow. Steps go in blocks of 16 instead (secondary chunking, Yang et al. 2024,
//! arXiv 2312.06635, section 4). Where h is the first step of t's block,
//!
//! ```text
//! R_ts = Σ_c (q_tc α_hc … α_tc) (k_sc α_{s+1,c} … α_{h−1,c})    for s < h
//! ```
//!
//! which is a product of matrices: of the block's queries, faded since its start, and of all keys before it, faded up to
//! there. Those are kept for each block; from block to block they fade by the gates of one block more. Inside a block the key
//! of each step is faded step by step, and multiplied with the queries that it meets. So all factors are running products;
//! none is divided by another, and none exceeds 1.
//!
//! Backwards the same products are gone through from the last to the first. With y = α ⊙ x the gradient of the gate is
//! y ⊙ dy, summed over all that the gate fades.

use super::{chunk::mat, fade::Rows};
use crate::{
    kernels::{
        heads::{Heads, lower},
        lane_sums::{parts3, sums},
        lanes::avx512_here,
        math::Math,
        matmul::{Mat, gemm},
        rows::{add_row_dots, times, times_rows},
    },
    tensor::{Cpu, Real, Temp},
};

/// Steps of a block.
const B: usize = 16;

/// The gates of a chunk and what they leave of its rows.
pub struct Channels<'a, T: Math> {
    k: usize,
    /// α [C, K]
    alpha: Temp<'a, T>,
    /// Products of the gates from the chunk's start to step t [C, K].
    start: Temp<'a, T>,
    /// The same from the start of t's block.
    local: Temp<'a, T>,
    /// Products of the gates after step t to the end of its block.
    rest: Temp<'a, T>,
    /// Queries and keys to erase by, faded since the start of their block [C, K].
    q: Temp<'a, T>,
    p: Temp<'a, T>,
    /// Of each block, all keys up to its end, faded to there: see [`place`].
    keys: Temp<'a, T>,
    /// Room for two blocks' rows, and for one.
    two: Temp<'a, T>,
    one: Temp<'a, T>,
}

/// Where in `Channels::keys` the rows of block i begin: those before it have 16, 32, …
fn place(i: usize) -> usize {
    B * i * (i + 1) / 2
}

impl<'a, T: Math> Channels<'a, T> {
    pub fn new(cpu: &'a Cpu, c: usize, k: usize) -> Channels<'a, T> {
        let rows = || cpu.temp(c * k);
        let [alpha, start, local, rest] = std::array::from_fn(|_| rows());
        let [two, one] = [2, 1].map(|n| cpu.temp(n * B * k));
        Channels {
            k,
            alpha,
            start,
            local,
            rest,
            q: rows(),
            p: rows(),
            keys: cpu.temp(place(c.div_ceil(B)) * k),
            two,
            one,
        }
    }

    /// Steps `t0..t0 + n` of head `i`.
    pub fn load(&mut self, heads: Heads, g: &[T], i: usize, t0: usize, n: usize) {
        let k = self.k;
        heads.gather(g, i, t0, n, T::ONE, &mut self.alpha, k);
        products(k, &mut self.alpha[..n * k], &mut self.start, &mut self.local, &mut self.rest);
    }

    /// R = tril(Q Kᵀ) and A = stril(P Kᵀ), faded.
    pub fn scores(&mut self, x: Rows<T>, r: &mut [T], a: &mut [T]) {
        let (n, k) = (x.n, self.k);
        self.q[..n * k].copy_from_slice(&x.q[..n * k]);
        self.p[..n * k].copy_from_slice(&x.p[..n * k]);
        times(&mut self.q[..n * k], &self.local);
        times(&mut self.p[..n * k], &self.local);
        for (i, h) in (0..n).step_by(B).enumerate() {
            let m = B.min(n - h);
            let (block, (past, keys)) = (h * k..(h + m) * k, self.keys.split_at_mut(place(i) * k));
            let past = &past[place(i.saturating_sub(1)) * k..][..h * k];
            if h > 0 {
                let (rows, before, out) = (mat(m, k), (past, mat(h, k).t()), Mat::new(m, h, n));
                gemm(T::ONE, (&self.q[block.clone()], rows), before, (&mut r[h * n..], out), false);
                gemm(T::ONE, (&self.p[block.clone()], rows), before, (&mut a[h * n..], out), false);
            }
            let rows = [x.q, x.p, x.k, &self.alpha[..]].map(|x| &x[block.clone()]);
            inside(k, n, rows, &mut self.one, &mut r[h * n + h..], &mut a[h * n + h..]);
            // What is left of keys at the end of the block.
            let (before, own) = keys.split_at_mut(h * k);
            before.copy_from_slice(past);
            times_all(&self.local[(h + m - 1) * k..(h + m) * k], before);
            own[..m * k].copy_from_slice(&x.k[block.clone()]);
            times(&mut own[..m * k], &self.rest[block]);
        }
        lower(r, n, false);
        lower(a, n, true);
    }

    /// y = γ ⊙ x for rows x.
    pub fn since_start(&self, n: usize, x: &[T], y: &mut [T]) {
        y[..n * self.k].copy_from_slice(&x[..n * self.k]);
        times(&mut y[..n * self.k], &self.start);
    }

    /// y = r ⊙ k for the keys.
    pub fn to_end(&self, n: usize, y: &mut [T]) {
        let at = place((n - 1) / B) * self.k;
        y[..n * self.k].copy_from_slice(&self.keys[at..at + n * self.k]);
    }

    /// S ← Γ ⊙ S
    pub fn state(&self, n: usize, s: &mut [T]) {
        times_rows(s.len() / self.k.max(1), self.whole(n), s);
    }

    fn whole(&self, n: usize) -> &[T] {
        &self.start[(n - 1) * self.k..n * self.k]
    }

    /// As [`Fade::backward`](super::fade::Fade::backward).
    pub fn backward(
        &mut self,
        x: Rows<T>,
        [dr, da]: [&mut [T]; 2],
        (zero, s, ds): (bool, &[T], &[T]),
        [dq, dp, dk]: [&mut [T]; 3],
        dg: &mut [T],
    ) {
        let (n, k) = (x.n, self.k);
        let all = ..n * k;
        // ⟨dS, Γ ⊙ S⟩ of each row.
        self.one[..k].fill(T::ZERO);
        if !zero {
            add_row_dots(s.len() / k.max(1), ds, s, &mut self.one[..k]);
            times(&mut self.one[..k], &self.start[(n - 1) * k..]);
        }
        through_start(k, [&x.q[all], &x.p[all], &self.start[all]], &mut self.one[..k], [&mut *dq, &mut *dp, &mut *dg]);
        for (i, h) in (0..n).step_by(B).enumerate().rev() {
            let m = B.min(n - h);
            let (block, before) = (h * k..(h + m) * k, ..h * k);
            let keys = &self.keys[place(i) * k..][..(h + m) * k];
            let factors = [keys, &self.rest[block.clone()], &self.local[(h + m - 1) * k..(h + m) * k]];
            through_end(k, factors, &mut self.one[..k], [&mut dk[..(h + m) * k], &mut dg[block.clone()]]);
            if h > 0 {
                let keys = &self.keys[place(i - 1) * k..][before];
                let (rows, past, score) = (mat(m, k), mat(h, k), Mat::new(m, h, n));
                let (d_q, d_p) = self.two.split_at_mut(B * k);
                for (d, y) in [(&dr[h * n..], &mut *d_q), (&da[h * n..], &mut *d_p)] {
                    gemm(T::ONE, (d, score), (keys, past), (y, rows), false);
                }
                let [q, p, local] = [&self.q, &self.p, &self.local].map(|x| &x[block.clone()]);
                let [to_q, to_p, to_g] = [&mut *dq, &mut *dp, &mut *dg].map(|x| &mut x[block.clone()]);
                through_block(k, [q, p, local, d_q, d_p], &mut self.one[..k], [to_q, to_p, to_g]);
                gemm(T::ONE, (&dr[h * n..], score.t()), (q, rows), (&mut *dk, past), true);
                gemm(T::ONE, (&da[h * n..], score.t()), (p, rows), (&mut *dk, past), true);
            }
            let rows = [x.q, x.p, x.k, &self.alpha[..]].map(|x| &x[block.clone()]);
            let scores = [&dr[h * n + h..], &da[h * n + h..]];
            let to = [&mut *dq, &mut *dp, &mut *dk, &mut *dg].map(|x| &mut x[block.clone()]);
            inside_back(k, n, rows, scores, &mut self.one, to);
        }
    }
}

/// From g to α, and the running products of α from the start of the chunk, from that of each block, and to its end.
#[versions::versions]
fn products<T: Math>(k: usize, alpha: &mut [T], start: &mut [T], local: &mut [T], rest: &mut [T]) {
    alpha.iter_mut().for_each(|x| *x = x.exp());
    let n = alpha.len() / k.max(1);
    for t in 0..n {
        for (running, every) in [(&mut *start, n), (&mut *local, B)] {
            let (before, row) = running.split_at_mut(t * k);
            let (row, a) = (&mut row[..k], &alpha[t * k..(t + 1) * k]);
            row.copy_from_slice(a);
            if t % every > 0 {
                row.iter_mut().zip(&before[(t - 1) * k..]).for_each(|(y, &x)| *y *= x);
            }
        }
    }
    for t in (0..n).rev() {
        let (row, after) = rest[t * k..].split_at_mut(k);
        row.fill(T::ONE);
        if (t + 1) % B > 0 && t + 1 < n {
            let a = &alpha[(t + 1) * k..(t + 2) * k];
            row.iter_mut().zip(&after[..k]).zip(a).for_each(|((y, &x), &a)| *y = a * x);
        }
    }
}

/// Every row of x times `by`.
#[versions::versions]
fn times_all<T: Real>(by: &[T], x: &mut [T]) {
    for x in x.chunks_exact_mut(by.len().max(1)) {
        x.iter_mut().zip(by).for_each(|(x, &by)| *x *= by);
    }
}

/// The key of step s of a block as each later step meets it, of m steps: row t − s for step t.
#[inline(always)]
fn fade_key<T: Real>(k: usize, s: usize, m: usize, key: &[T], alpha: &[T], w: &mut [T]) {
    w[..k].copy_from_slice(&key[s * k..(s + 1) * k]);
    for t in s + 1..m {
        let (before, after) = w[(t - s - 1) * k..].split_at_mut(k);
        let a = &alpha[t * k..(t + 1) * k];
        after[..k].iter_mut().zip(&*before).zip(a).for_each(|((y, &x), &a)| *y = a * x);
    }
}

/// The scores of the steps of a block with each other: rows of q, p, k and α to R and A, whose rows are n numbers apart. What
/// is above the diagonal is not written.
#[versions::versions]
fn inside<T: Math>(k: usize, n: usize, [q, p, key, alpha]: [&[T]; 4], w: &mut [T], r: &mut [T], a: &mut [T]) {
    let (here, m, row) = (avx512_here!(), q.len() / k.max(1), |l: usize| l * k..(l + 1) * k);
    for s in 0..m {
        fade_key(k, s, m, key, alpha, w);
        for (x, y) in [(q, &mut *r), (p, &mut *a)] {
            let dots = sums(here, m - s, |l, to| parts3(&x[row(s + l)], &w[row(l)], &w[row(l)], to, |x, w, _| x * w));
            (s..m).zip(dots).for_each(|(t, dot)| y[t * n + s] = dot);
        }
    }
}

/// Adds the gradients of q, p, k and g, for those of R and A, of which what is above the diagonal is zero.
#[versions::versions]
fn inside_back<T: Math>(
    k: usize,
    n: usize,
    [q, p, key, alpha]: [&[T]; 4],
    [dr, da]: [&[T]; 2],
    w: &mut [T],
    [dq, dp, dk, dg]: [&mut [T]; 4],
) {
    let m = q.len() / k.max(1);
    for s in 0..m {
        fade_key(k, s, m, key, alpha, w);
        // The gradient of the key, as step t meets it, is that of step s in the end.
        let dk = &mut dk[s * k..(s + 1) * k];
        let mut sum = [T::ZERO; 16];
        for c0 in (0..k).step_by(16) {
            let width = 16.min(k - c0);
            sum.fill(T::ZERO);
            for t in (s..m).rev() {
                let (at, r, a) = (t * k + c0, dr[t * n + s], da[t * n + s]);
                let w = &w[(t - s) * k + c0..][..width];
                let [q, p, alpha] = [q, p, alpha].map(|x| &x[at..at + width]);
                let [dq, dp, dg] = [&mut *dq, &mut *dp, &mut *dg].map(|x| &mut x[at..at + width]);
                for c in 0..width {
                    dq[c] += r * w[c];
                    dp[c] += a * w[c];
                    let d = sum[c] + r * q[c] + a * p[c];
                    if t > s {
                        dg[c] += d * w[c];
                        sum[c] = d * alpha[c];
                    } else {
                        sum[c] = d;
                    }
                }
            }
            dk[c0..c0 + width].iter_mut().zip(sum).for_each(|(y, x)| *y += x);
        }
    }
}

/// dQ and dP from those of γ ⊙ Q and γ ⊙ P, and dg, to begin with: what each gate fades of the state before the chunk.
#[versions::versions]
fn through_start<T: Real>(k: usize, [q, p, start]: [&[T]; 3], sum: &mut [T], [dq, dp, dg]: [&mut [T]; 3]) {
    for at in (0..start.len()).step_by(k.max(1)).rev() {
        let [q, p, start] = [q, p, start].map(|x| &x[at..at + k]);
        let [dq, dp, dg] = [&mut *dq, &mut *dp, &mut *dg].map(|x| &mut x[at..at + k]);
        let sum = &mut sum[..k];
        for c in 0..k {
            dq[c] *= start[c];
            dp[c] *= start[c];
            sum[c] += q[c] * dq[c] + p[c] * dp[c];
        }
        dg.copy_from_slice(sum);
    }
}

/// The same from the start of a block: of `d_q` and `d_p`, with q and p faded since then. All is added.
#[versions::versions]
fn through_block<T: Real>(k: usize, [q, p, local, d_q, d_p]: [&[T]; 5], sum: &mut [T], [dq, dp, dg]: [&mut [T]; 3]) {
    sum.fill(T::ZERO);
    for at in (0..local.len()).step_by(k.max(1)).rev() {
        let [q, p, local, d_q, d_p] = [q, p, local, d_q, d_p].map(|x| &x[at..at + k]);
        let [dq, dp, dg] = [&mut *dq, &mut *dp, &mut *dg].map(|x| &mut x[at..at + k]);
        let sum = &mut sum[..k];
        for c in 0..k {
            dq[c] += local[c] * d_q[c];
            dp[c] += local[c] * d_p[c];
            sum[c] += q[c] * d_q[c] + p[c] * d_p[c];
            dg[c] += sum[c];
        }
    }
}

/// From the gradients of keys faded to the end of a block to those of the keys faded to its start or, of its own steps, not
/// at all; adds what its gates fade of them. `whole` is the product of the block's gates.
#[versions::versions]
fn through_end<T: Real>(k: usize, [keys, rest, whole]: [&[T]; 3], sum: &mut [T], [dk, dg]: [&mut [T]; 2]) {
    sum.fill(T::ZERO);
    let before = keys.len() - rest.len();
    let (past, own) = dk.split_at_mut(before);
    for (dk, keys) in past.chunks_exact_mut(k.max(1)).zip(keys.chunks_exact(k.max(1))) {
        for (((sum, dk), &key), &whole) in sum.iter_mut().zip(dk).zip(keys).zip(whole) {
            *sum += key * *dk;
            *dk *= whole;
        }
    }
    for at in (0..rest.len()).step_by(k.max(1)) {
        let (keys, rest) = (&keys[before + at..before + at + k], &rest[at..at + k]);
        let [dk, dg] = [&mut *own, &mut *dg].map(|x| &mut x[at..at + k]);
        let sum = &mut sum[..k];
        for c in 0..k {
            dg[c] += sum[c];
            sum[c] += keys[c] * dk[c];
            dk[c] *= rest[c];
        }
    }
}
