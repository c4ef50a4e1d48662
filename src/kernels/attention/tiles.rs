//! Attention in tiles of queries by matrix products, one head at a time.
//!
//! Scores are transposed, with a row for each key. Sixteen queries then lie side by side in a vector, and no maximum or
//! sum over keys combines numbers of one vector.

use crate::{
    kernels::{
        attention::{Inputs, Outputs, Plan, faint},
        gemm::Products,
        heads::{Heads, Place, Slot},
        lane_sums,
        lanes::{L, avx512_here, lanes, lanes_mut},
        math::Math,
        matmul::{Mat, gemm},
        rows::{add_row_dots, divide_rows},
        scan::{at, put},
        tril_matmul::{all_finite, masked_gemm},
    },
    tensor::{Cpu, Temp},
};

/// Queries to a tile.
const TILE: usize = 64;

/// −∞ and then zeros.
fn masks<T: Math>() -> [T; 2 * L] {
    let mut y = [T::of(f64::NEG_INFINITY); 2 * L];
    y[L..].fill(T::ZERO);
    y
}

/// The scores of sixteen queries from `t` on, or −∞ for those before `first`. By a choice: a sum with −∞ could be NaN.
#[inline(always)]
fn shown<T: Math>(masks: &[T; 2 * L], x: &[T], t: usize, first: usize) -> [T; L] {
    let (mut y, mask): ([T; L], [T; L]) = (at(x, 0, 0, t), at(masks, 0, 0, L - first.saturating_sub(t).min(L)));
    for l in 0..L {
        y[l] = if mask[l] < T::ZERO { mask[l] } else { y[l] };
    }
    y
}

/// The scores x [·, w] of keys, which query `first(s)` is the first to see, become exp(x − top); `top` and `sum` [w]
/// get the largest score of each query and the sum of those.
#[versions::versions]
fn softmax<T: Math, const GATED: bool>(
    first: impl Fn(usize) -> usize,
    w: usize,
    x: &mut [T],
    top: &mut [T],
    sum: &mut [T],
) {
    let masks = masks();
    for t in (0..w).step_by(L) {
        let (mut m, mut all) = ([T::of(f64::NEG_INFINITY); L], [T::ZERO; L]);
        // Of the keys that these queries see, each later than the one before.
        let keys = x.chunks_exact(w).enumerate().take_while(|&(s, _)| first(s) < t + L).count();
        for (s, x) in x.chunks_exact(w).enumerate().take(keys) {
            let x = shown(&masks, x, t, first(s));
            (0..L).for_each(|l| m[l] = T::max(x[l], m[l]));
        }
        for (s, x) in x.chunks_exact_mut(w).enumerate().take(keys) {
            let mut e = shown(&masks, x, t, first(s));
            for l in 0..L {
                e[l] = (e[l] - m[l]).decay();
                e[l] = if GATED && e[l] < faint() { T::ZERO } else { e[l] };
                all[l] += e[l];
            }
            x[t..t + L].copy_from_slice(&e);
        }
        x.chunks_exact_mut(w).skip(keys).for_each(|x| x[t..t + L].fill(T::ZERO));
        top[t..t + L].copy_from_slice(&m);
        sum[t..t + L].copy_from_slice(&all);
    }
}

/// y = ln x
#[versions::versions]
fn logs<T: Math>(x: &[T], y: &mut [T]) {
    y.iter_mut().zip(x).for_each(|(y, &x)| *y = x.ln());
}

/// Scores x [·, w] to weights p once more, and g to the gradients of the scores, p (g − δ); lse, in two parts, and δ
/// [w].
#[versions::versions]
fn softmax_backward<T: Math, const GATED: bool>(
    first: impl Fn(usize) -> usize,
    w: usize,
    [top, log, delta]: [&[T]; 3],
    x: &mut [T],
    g: &mut [T],
) {
    let masks = masks();
    for (s, (x, g)) in x.chunks_exact_mut(w).zip(g.chunks_exact_mut(w)).enumerate() {
        let first = first(s);
        for t in (0..w).step_by(L) {
            let (mut p, mut dx) = ([T::ZERO; L], [T::ZERO; L]);
            if first < t + L {
                (p, dx) = (shown(&masks, x, t, first), at(g, 0, w, t));
                let [top, log, delta]: [[T; L]; 3] = [at(top, 0, w, t), at(log, 0, w, t), at(delta, 0, w, t)];
                for l in 0..L {
                    p[l] = ((p[l] - top[l]) - log[l]).decay();
                    p[l] = if GATED && p[l] < faint() { T::ZERO } else { p[l] };
                    // What is hidden has a weight of 0, and its value may be NaN.
                    let none = p[l] == T::ONE || p[l] == T::ZERO;
                    dx[l] = if none { T::ZERO } else { p[l] * (dx[l] - delta[l]) };
                }
            }
            put(x, 0, w, t, p, false);
            put(g, 0, w, t, dx, false);
        }
    }
}

/// The gates of a head, as tile after tile of queries sees them.
struct Gates<'a, T: Math> {
    heads: Heads,
    all: &'a [T],
    /// The gates of the head.
    own: Temp<'a, T>,
    /// For each key before the tile, the sum of the gates after the key and before the tile.
    since: Temp<'a, f64>,
    /// How many keys are before the tile.
    before: usize,
}

impl<'a, T: Math> Gates<'a, T> {
    fn new(cpu: &'a Cpu, heads: Heads, all: &'a [T]) -> Gates<'a, T> {
        Gates { heads, all, own: cpu.temp(heads.t), since: cpu.temp(heads.t), before: 0 }
    }

    /// Go to head i.
    fn start(&mut self, i: usize) {
        self.heads.gather(self.all, Place { i, t0: 0, n: self.heads.t }, T::ONE, &mut self.own, 1);
        self.before = 0;
    }

    /// Add to the scores x [·, w] of all keys that a tile of queries sees. The tile's first query is key `first`; tiles
    /// come in order.
    fn add_to(&mut self, first: usize, w: usize, x: &mut [T]) {
        let mut sum = 0.0;
        for s in (self.before..first).rev() {
            self.since[s] = sum;
            sum += self.own[s].to_f64();
        }
        add_everywhere(sum, &mut self.since[..self.before]);
        self.before = first;
        add_since(first, w, &self.own[..x.len() / w], &self.since, x);
    }
}

/// x plus a number.
#[versions::versions]
fn add_everywhere(by: f64, x: &mut [f64]) {
    x.iter_mut().for_each(|x| *x += by);
}

/// Add to the scores x [·, w] of each key the sum of the gates after it, up to the query. The queries are the keys from
/// `first` on, and `since` has the sums up to there.
#[versions::versions]
fn add_since<T: Math>(first: usize, w: usize, gates: &[T], since: &[f64], x: &mut [T]) {
    let (before, own) = x.split_at_mut(first * w);
    let (mut sum, mut sums) = (0.0, [[T::ZERO; L]; TILE / L]);
    for (to, g) in sums.as_flattened_mut().iter_mut().zip(&gates[first..]) {
        sum += g.to_f64();
        *to = T::of(sum);
    }
    for (x, &since) in before.chunks_exact_mut(w).zip(since) {
        let since = T::of(since);
        for (x, sum) in lanes_mut(x).iter_mut().zip(&sums) {
            for l in 0..L {
                x[l] += since + sum[l];
            }
        }
    }
    let mut sums = [[0.0; L]; TILE / L];
    for (i, x) in own.chunks_exact_mut(w).enumerate().rev().skip(1) {
        // One gate more for every query after this key.
        let g = gates[first + i + 1].to_f64();
        for (c, (x, sum)) in lanes_mut(x).iter_mut().zip(&mut sums).enumerate().skip((i + 1) / L) {
            for l in 0..L {
                sum[l] += if c * L + l > i { g } else { 0.0 };
                x[l] += T::of(sum[l]);
            }
        }
    }
}

/// Adds Σ dx_ts over s < u ≤ t to d_u, where dx [·, w] are the gradients of the scores of n queries, the first of which
/// is key `first`.
#[versions::versions]
fn add_crossing<T: Math>(first: usize, n: usize, w: usize, dx: &mut [T], d: &mut [T]) {
    let here = avx512_here!();
    if n < w {
        dx.chunks_exact_mut(w).for_each(|dx| dx[n..].fill(T::ZERO));
    }
    // Of each query the sum over the keys so far; and over all queries, in parts, for sixteen keys.
    let (mut sums, mut totals) = ([[T::ZERO; L]; TILE / L], [[T::ZERO; L]; L]);
    let (before, own) = dx.split_at(first * w);
    for (j, rows) in before.chunks(L * w).enumerate() {
        for (dx, total) in rows.chunks_exact(w).zip(&mut totals) {
            *total = [T::ZERO; L];
            for (sum, dx) in sums.iter_mut().zip(lanes(dx)) {
                for l in 0..L {
                    sum[l] += dx[l];
                    total[l] += sum[l];
                }
            }
        }
        let all = lane_sums::sums(here, rows.len() / w, |l, to| *to = totals[l]);
        d[j * L + 1..].iter_mut().zip(all).take(rows.len() / w).for_each(|(d, all)| *d += all);
    }
    for (i, dx) in own.chunks_exact(w).enumerate().take(n - 1) {
        for (sum, dx) in sums.iter_mut().zip(lanes(dx)) {
            for l in 0..L {
                sum[l] += dx[l];
            }
        }
        d[first + i + 1] += lane_sums::sum(&sums.as_flattened()[i + 1..n], |x| x);
    }
}

/// Writes o and lse. Keys and values are read where they lie; queries are copied, times the scale.
pub fn forward<T: Math>(cpu: &Cpu, p: Plan<T>, x: &Inputs<T>, o: &mut [T], (tops, ln_sums): (&mut [T], &mut [T])) {
    let (d, s, c) = (p.d, p.s, TILE.min(p.d.t));
    let w = c.next_multiple_of(L);
    let [mut a, mut y, mut qs, mut top, mut sum] = [s * w, c * d.v, c * d.k, w, w].map(|n| cpu.temp::<T>(n));
    let mut gates = x.g.map(|g| Gates::new(cpu, p.gates(), g));
    for i in 0..d.b * d.h {
        gates.iter_mut().for_each(|gates| gates.start(i));
        for t0 in (0..d.t).step_by(TILE) {
            let n = c.min(d.t - t0);
            let seen = p.seen(t0 + n - 1);
            let (at, past) = (Place { i, t0, n }, Place { i, t0: 0, n: seen });
            let (k, v, mx) = (p.keys().view(x.k, past), p.values().view(x.v, past), Mat::new(seen, n, w));
            d.keys().gather(x.q, at, p.scale, &mut qs, d.k);
            gemm(T::ONE, k, (&qs, Mat::new(n, d.k, d.k).t()), (&mut a, mx), false);
            gates.iter_mut().for_each(|gates| gates.add_to(seen - n, w, &mut a[..seen * w]));
            let (first, a) = (|s| p.first(s).saturating_sub(t0), &mut a[..seen * w]);
            match gates {
                Some(_) => softmax::<T, true>(first, w, a, &mut top, &mut sum),
                None => softmax::<T, false>(first, w, a, &mut top, &mut sum),
            }
            tops[i * d.t + t0..][..n].copy_from_slice(&top[..n]);
            logs(&sum, &mut ln_sums[i * d.t + t0..][..n]);
            rows_seen(cpu, T::ONE, (a, mx.t()), v, (&mut y, Mat::new(n, d.v, d.v)), false);
            divide_rows(d.v, &sum[..n], &mut y);
            d.values().put(&y, d.v, at, o);
        }
    }
}

/// y (+)= scale A X, of A [n, S] and a row of X [S, ..] for each key, as o of the values and dq of the keys. The last
/// queries do not see each other's later keys: where such a row is not finite, only the queries that see it get it.
fn rows_seen<T: Math>(
    cpu: &Cpu,
    scale: T,
    (a, ma): (&[T], Mat),
    (x, mx): (&[T], Mat),
    (y, my): (&mut [T], Mat),
    acc: bool,
) {
    let (n, all) = (my.rows, mx.rows);
    if (all - n..all).all(|s| all_finite(&x[s * mx.rs..][..mx.cols])) {
        return gemm(scale, (a, ma), (x, mx), (y, my), acc);
    }
    let mut own = cpu.temp::<T>(all * mx.cols);
    for (s, row) in own.chunks_exact_mut(mx.cols).enumerate() {
        row.iter_mut().zip(&x[s * mx.rs..]).for_each(|(own, &x)| *own = scale * x);
    }
    let sees = |s: usize| (s + n).saturating_sub(all)..n;
    masked_gemm(cpu, Products::F32, (a, ma), (&own, Mat::new(all, mx.cols, mx.cols)), (y, my), acc, sees);
}

/// Writes the gradients of q, k, v and the gates, or adds them.
pub fn backward<T: Math>(
    cpu: &Cpu,
    p: Plan<T>,
    x: &Inputs<T>,
    y: &Outputs<T>,
    [dq, mut dk, mut dv]: [Slot<T>; 3],
    mut dg: Option<Slot<T>>,
) {
    let (d, s, c) = (p.d, p.s, TILE.min(p.d.t));
    let w = c.next_multiple_of(L);
    // Of several tiles each adds to the gradients of the keys that it sees; one sees them all.
    for (d, acc) in [&mut dk, &mut dv].into_iter().filter(|_| p.d.t == 0 || p.d.t > TILE) {
        if !*acc {
            d.fill(T::ZERO);
        }
        *acc = true;
    }
    // δ [B, T, H]
    let mut deltas = cpu.zeros::<T>(d.b * d.t * d.h);
    add_row_dots(d.v, y.d_o, y.o, &mut deltas);
    let [mut a, mut g, mut qs] = [s * w, s * w, c * d.k].map(|n| cpu.temp::<T>(n));
    let [mut top, mut log, mut delta] = [w; 3].map(|n| cpu.zeros::<T>(n));
    let mut gates = x.g.map(|g| (Gates::new(cpu, p.gates(), g), cpu.temp::<T>(s)));
    for i in 0..d.b * d.h {
        if let Some((gates, sums)) = &mut gates {
            gates.start(i);
            sums.fill(T::ZERO);
        }
        for t0 in (0..d.t).step_by(TILE) {
            let n = c.min(d.t - t0);
            let seen = p.seen(t0 + n - 1);
            let (at, past) = (Place { i, t0, n }, Place { i, t0: 0, n: seen });
            let ((gy, my), mq) = (d.values().view(y.d_o, at), Mat::new(n, d.k, d.k));
            let (k, v, mx) = (p.keys().view(x.k, past), p.values().view(x.v, past), Mat::new(seen, n, w));
            for (to, from) in [&mut top, &mut log].into_iter().zip(y.lse) {
                to[..n].copy_from_slice(&from[i * d.t + t0..][..n]);
            }
            d.scalars().gather(&deltas, at, T::ONE, &mut delta, 1);
            d.keys().gather(x.q, at, p.scale, &mut qs, d.k);
            gemm(T::ONE, k, (&qs, mq.t()), (&mut a, mx), false);
            gemm(T::ONE, v, (gy, my.t()), (&mut g, mx), false);
            let (first, a, g) = (|s| p.first(s).saturating_sub(t0), &mut a[..seen * w], &mut g[..seen * w]);
            gates.iter_mut().for_each(|(gates, _)| gates.add_to(seen - n, w, a));
            match gates {
                Some(_) => softmax_backward::<T, true>(first, w, [&top, &log, &delta], a, g),
                None => softmax_backward::<T, false>(first, w, [&top, &log, &delta], a, g),
            }
            gates.iter_mut().for_each(|(_, sums)| add_crossing(seen - n, n, w, g, sums));
            rows_seen(cpu, p.scale, (g, mx.t()), k, d.keys().view_mut(dq.0, at), dq.1);
            gemm(T::ONE, (g, mx), (&qs, mq), p.keys().view_mut(dk.0, past), dk.1);
            gemm(T::ONE, (a, mx), (gy, my), p.values().view_mut(dv.0, past), dv.1);
        }
        if let (Some((_, sums)), Some(dg)) = (&gates, &mut dg) {
            p.gates().scatter(sums, 1, T::ONE, Place { i, t0: 0, n: s }, dg);
        }
    }
}
