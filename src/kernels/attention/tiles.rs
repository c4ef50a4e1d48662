//! Attention in tiles of queries by matrix products, one head at a time.
//!
//! Scores are transposed, a row for each key: so sixteen queries lie side by side in a vector, and a maximum or a sum over
//! keys needs no numbers of the same vector.

use crate::{
    kernels::{
        attention::{Inputs, Plan},
        gemm::Products,
        heads::Slot,
        lanes::L,
        math::Math,
        matmul::{Mat, gemm},
        rows::{add_row_dots, divide_rows},
        scan::{at, put},
        tril_matmul::{all_finite, masked_gemm},
    },
    tensor::Cpu,
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

/// The scores x [·, w] of keys, which query `first(s)` is the first to see, become exp(x − top); `top` and `sum` [w] get the
/// largest score of each query and the sum of those.
#[versions::versions]
fn softmax<T: Math>(first: impl Fn(usize) -> usize, w: usize, x: &mut [T], top: &mut [T], sum: &mut [T]) {
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

/// Scores x [·, w] to weights p once more, and g to the gradients of the scores, p (g − δ); lse, in two parts, and δ [w].
#[versions::versions]
fn softmax_backward<T: Math>(
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
                    dx[l] = if p[l] == T::ONE { T::ZERO } else { p[l] * (dx[l] - delta[l]) };
                }
            }
            put(x, 0, w, t, p, false);
            put(g, 0, w, t, dx, false);
        }
    }
}

/// Writes o and lse. Keys and values are read where they lie; queries are copied, times the scale.
pub fn forward<T: Math>(
    cpu: &Cpu,
    p: Plan<T>,
    q: &[T],
    k: &[T],
    v: &[T],
    o: &mut [T],
    (tops, ln_sums): (&mut [T], &mut [T]),
) {
    let (d, s, c) = (p.d, p.s, TILE.min(p.d.t));
    let w = c.next_multiple_of(L);
    let [mut x, mut y, mut qs, mut top, mut sum] = [s * w, c * d.v, c * d.k, w, w].map(|n| cpu.temp::<T>(n));
    for i in 0..d.b * d.h {
        for t0 in (0..d.t).step_by(TILE) {
            let n = c.min(d.t - t0);
            let seen = p.seen(t0 + n - 1);
            let (k, v, mx) = (p.keys().view(k, i, 0, seen), p.values().view(v, i, 0, seen), Mat::new(seen, n, w));
            d.keys().gather(q, i, t0, n, p.scale, &mut qs, d.k);
            gemm(T::ONE, k, (&qs, Mat::new(n, d.k, d.k).t()), (&mut x, mx), false);
            softmax(|s| p.first(s).saturating_sub(t0), w, &mut x[..seen * w], &mut top, &mut sum);
            tops[i * d.t + t0..][..n].copy_from_slice(&top[..n]);
            logs(&sum, &mut ln_sums[i * d.t + t0..][..n]);
            values(cpu, (&x, mx.t()), v, (&mut y, Mat::new(n, d.v, d.v)));
            divide_rows(d.v, &sum[..n], &mut y);
            d.values().put(&y, d.v, i, t0, n, o);
        }
    }
}

/// y = P V, of which the last queries do not see each other's values but those before: where one of these is not finite
/// only who sees it may get it.
fn values<T: Math>(cpu: &Cpu, (p, mp): (&[T], Mat), (v, mv): (&[T], Mat), (y, my): (&mut [T], Mat)) {
    let (n, all) = (my.rows, mv.rows);
    if (all - n..all).all(|s| all_finite(&v[s * mv.rs..][..mv.cols])) {
        return gemm(T::ONE, (p, mp), (v, mv), (y, my), false);
    }
    let mut own = cpu.temp::<T>(all * mv.cols);
    for (s, row) in own.chunks_exact_mut(mv.cols).enumerate() {
        row.copy_from_slice(&v[s * mv.rs..][..mv.cols]);
    }
    let sees = |s: usize| (s + n).saturating_sub(all)..n;
    masked_gemm(cpu, Products::F32, (p, mp), (&own, Mat::new(all, mv.cols, mv.cols)), (y, my), false, sees);
}

/// Writes the gradients of q, k and v, or adds them.
pub fn backward<T: Math>(cpu: &Cpu, p: Plan<T>, x: &Inputs<T>, [dq, mut dk, mut dv]: [Slot<T>; 3]) {
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
    add_row_dots(d.v, x.d_o, x.o, &mut deltas);
    let [mut a, mut g, mut qs] = [s * w, s * w, c * d.k].map(|n| cpu.temp::<T>(n));
    let [mut top, mut log, mut delta] = [w; 3].map(|n| cpu.zeros::<T>(n));
    for i in 0..d.b * d.h {
        for t0 in (0..d.t).step_by(TILE) {
            let n = c.min(d.t - t0);
            let seen = p.seen(t0 + n - 1);
            let ((gy, my), mq) = (d.values().view(x.d_o, i, t0, n), Mat::new(n, d.k, d.k));
            let (k, v, mx) = (p.keys().view(x.k, i, 0, seen), p.values().view(x.v, i, 0, seen), Mat::new(seen, n, w));
            for (to, from) in [&mut top, &mut log].into_iter().zip(x.lse) {
                to[..n].copy_from_slice(&from[i * d.t + t0..][..n]);
            }
            d.scalars().gather(&deltas, i, t0, n, T::ONE, &mut delta, 1);
            d.keys().gather(x.q, i, t0, n, p.scale, &mut qs, d.k);
            gemm(T::ONE, k, (&qs, mq.t()), (&mut a, mx), false);
            gemm(T::ONE, v, (gy, my.t()), (&mut g, mx), false);
            let first = |s| p.first(s).saturating_sub(t0);
            softmax_backward(first, w, [&top, &log, &delta], &mut a[..seen * w], &mut g[..seen * w]);
            gemm(p.scale, (&g, mx.t()), k, d.keys().view_mut(dq.0, i, t0, n), dq.1);
            gemm(T::ONE, (&g, mx), (&qs, mq), p.keys().view_mut(dk.0, i, 0, seen), dk.1);
            gemm(T::ONE, (&a, mx), (gy, my), p.values().view_mut(dv.0, i, 0, seen), dv.1);
        }
    }
}
