//! Attention in tiles of queries by matrix products, one head at a time.

use super::{Inputs, Plan};
use crate::{
    ops::{
        heads::Merged,
        lane_sums::{self, LANES as L},
        math::Math,
        matmul::{Mat, gemm},
    },
    tensor::Cpu,
};

/// Queries to a tile.
const TILE: usize = 64;

fn mat(rows: usize, cols: usize) -> Mat {
    Mat::new(rows, cols, cols)
}

/// How far a row of n scores is computed whose first `seen` count: a whole number of vectors, if it has them. What does not
/// count is −∞ before the exponential.
fn reach(seen: usize, n: usize) -> usize {
    seen.next_multiple_of(L).min(n)
}

/// Rows of scores x [·, n] to their weights exp(x − lse), where row t sees the first `seen(t)`; `top` and `lse` become the
/// largest score of each and ln Σ exp(x).
#[multiversion::multiversion(targets("x86_64+avx512f+avx512vl+avx512dq+avx512bw", "x86_64+avx2+fma"))]
fn softmax<T: Math>(seen: impl Fn(usize) -> usize, n: usize, x: &mut [T], top: &mut [T], lse: &mut [T]) {
    for (t, x) in x.chunks_exact_mut(n).enumerate().take(lse.len()) {
        let (seen, reach) = (seen(t), reach(seen(t), n));
        x[seen..reach].fill(T::of(f64::NEG_INFINITY));
        x[reach..].fill(T::ZERO);
        let x = &mut x[..reach];
        let m = lane_sums::max(x);
        x.iter_mut().for_each(|x| *x = (*x - m).exp());
        let sum = lane_sums::sum(x, |x| x);
        let by = T::ONE / sum;
        x.iter_mut().for_each(|x| *x *= by);
        (top[t], lse[t]) = (m, sum);
    }
    lse.iter_mut().zip(top).for_each(|(sum, &mut m)| *sum = m + sum.ln());
}

/// Rows of scores x to weights once more, and g to the gradients of the scores, p (g − δ) with δ = do·o, row by row; `d_o`
/// and `o(t)` [v].
#[multiversion::multiversion(targets("x86_64+avx512f+avx512vl+avx512dq+avx512bw", "x86_64+avx2+fma"))]
fn softmax_backward<'a, T: Math>(
    seen: impl Fn(usize) -> usize,
    n: usize,
    lse: &[T],
    (x, g): (&mut [T], &mut [T]),
    (d_o, o): (&[T], impl Fn(usize) -> &'a [T]),
) {
    let rows = x.chunks_exact_mut(n).zip(g.chunks_exact_mut(n)).zip(lse);
    for (t, ((x, g), &lse)) in rows.enumerate() {
        let (seen, reach) = (seen(t), reach(seen(t), n));
        let o = o(t);
        let delta = lane_sums::sum2(&d_o[t * o.len()..][..o.len()], o, |g, o| g * o);
        x[seen..reach].fill(T::of(f64::NEG_INFINITY));
        x[reach..].fill(T::ZERO);
        g[reach..].fill(T::ZERO);
        for (x, g) in x[..reach].iter_mut().zip(&mut g[..reach]) {
            *x = (*x - lse).exp();
            *g = *x * (*g - delta);
        }
    }
}

/// Writes o and lse.
pub fn forward<T: Math>(cpu: &Cpu, p: Plan<T>, q: &[T], k: &[T], v: &[T], o: &mut [T], lse: &mut [T]) {
    let (d, s, c) = (p.d, p.s, TILE.min(p.d.t));
    let (mut qs, mut ks, mut vs) = (cpu.temp::<T>(c * d.k), cpu.temp::<T>(s * d.k), cpu.temp::<T>(s * d.v));
    let (mut x, mut y, mut top) = (cpu.temp::<T>(c * s), cpu.temp::<T>(c * d.v), cpu.temp::<T>(c));
    for i in 0..d.b * d.h {
        p.keys().gather(k, i, 0, s, T::ONE, &mut ks, d.k);
        p.values().gather(v, i, 0, s, T::ONE, &mut vs, d.v);
        for t0 in (0..d.t).step_by(TILE) {
            let n = c.min(d.t - t0);
            let seen = p.seen(t0 + n - 1);
            let (mx, mk, mv) = (mat(n, seen), mat(seen, d.k), mat(seen, d.v));
            d.keys().gather(q, i, t0, n, p.scale, &mut qs, d.k);
            gemm(T::ONE, (&qs, mat(n, d.k)), (&ks, mk.t()), (&mut x, mx), false);
            softmax(|t| p.seen(t0 + t), seen, &mut x, &mut top, &mut lse[i * d.t + t0..][..n]);
            gemm(T::ONE, (&x, mx), (&vs, mv), (&mut y, mat(n, d.v)), false);
            d.values().put(&y, d.v, i, t0, n, o);
        }
    }
}

/// Adds the gradients of q, k and v.
pub fn backward<T: Math>(cpu: &Cpu, p: Plan<T>, x: &Inputs<T>, [mut dq, mut dk, mut dv]: [Merged<T>; 3]) {
    let (d, s, c) = (p.d, p.s, TILE.min(p.d.t));
    let (mut qs, mut ks, mut vs) = (cpu.temp::<T>(c * d.k), cpu.temp::<T>(s * d.k), cpu.temp::<T>(s * d.v));
    let (mut dqs, mut dks, mut dvs) = (cpu.temp::<T>(c * d.k), cpu.temp::<T>(s * d.k), cpu.temp::<T>(s * d.v));
    let (mut w, mut g, mut gy) = (cpu.temp::<T>(c * s), cpu.temp::<T>(c * s), cpu.temp::<T>(c * d.v));
    for i in 0..d.b * d.h {
        p.keys().gather(x.k, i, 0, s, T::ONE, &mut ks, d.k);
        p.values().gather(x.v, i, 0, s, T::ONE, &mut vs, d.v);
        dks.fill(T::ZERO);
        dvs.fill(T::ZERO);
        for t0 in (0..d.t).step_by(TILE) {
            let n = c.min(d.t - t0);
            let seen = p.seen(t0 + n - 1);
            let (mx, mk, mv) = (mat(n, seen), mat(seen, d.k), mat(seen, d.v));
            d.keys().gather(x.q, i, t0, n, p.scale, &mut qs, d.k);
            d.values().gather(x.d_o, i, t0, n, T::ONE, &mut gy, d.v);
            gemm(T::ONE, (&qs, mat(n, d.k)), (&ks, mk.t()), (&mut w, mx), false);
            gemm(T::ONE, (&gy, mat(n, d.v)), (&vs, mv.t()), (&mut g, mx), false);
            let (lse, o) = (&x.lse[i * d.t + t0..][..n], |t| &x.o[d.values().at(i, t0 + t)..][..d.v]);
            softmax_backward(|t| p.seen(t0 + t), seen, lse, (&mut w, &mut g), (&gy, o));
            gemm(T::ONE, (&g, mx), (&ks, mk), (&mut dqs, mat(n, d.k)), false);
            gemm(T::ONE, (&g, mx.t()), (&qs, mat(n, d.k)), (&mut dks, mk), true);
            gemm(T::ONE, (&w, mx.t()), (&gy, mat(n, d.v)), (&mut dvs, mv), true);
            d.keys().merge(&dqs, d.k, p.scale, i, (t0, n), &mut dq);
        }
        p.keys().merge(&dks, d.k, T::ONE, i, (0, s), &mut dk);
        p.values().merge(&dvs, d.v, T::ONE, i, (0, s), &mut dv);
    }
}
