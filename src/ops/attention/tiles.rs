//! Attention in tiles of queries by matrix products, one head at a time.

use super::{Inputs, Plan};
use crate::{
    ops::{
        lanes::L,
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

/// x ← exp(x − lse), with lse = ln Σ exp(x) computed from the largest element, and returned.
#[multiversion::multiversion(targets("x86_64+avx512f+avx512vl+avx512dq+avx512bw", "x86_64+avx2+fma"))]
fn softmax<T: Math>(x: &mut [T]) -> T {
    // Sixteen running values each, since one would wait for itself.
    let (mut tops, mut sums) = ([x[0]; L], [T::ZERO; L]);
    let (wide, rest) = x.as_chunks::<L>();
    wide.iter().for_each(|x| (0..L).for_each(|l| tops[l] = tops[l].max(x[l])));
    let top = tops.iter().chain(rest).fold(x[0], |m, &x| m.max(x));
    x.iter_mut().for_each(|x| *x = (*x - top).exp());
    let (wide, rest) = x.as_chunks::<L>();
    wide.iter().for_each(|x| (0..L).for_each(|l| sums[l] += x[l]));
    let sum: T = sums.iter().chain(rest).copied().sum();
    let by = T::ONE / sum;
    x.iter_mut().for_each(|x| *x *= by);
    top + sum.ln()
}

/// x ← exp(x − lse)
#[multiversion::multiversion(targets("x86_64+avx512f+avx512vl+avx512dq+avx512bw", "x86_64+avx2+fma"))]
fn again<T: Math>(x: &mut [T], lse: T) {
    x.iter_mut().for_each(|x| *x = (*x - lse).exp());
}

/// g ← p (g − δ)
#[multiversion::multiversion(targets("x86_64+avx512f+avx512vl+avx512dq+avx512bw", "x86_64+avx2+fma"))]
fn softmax_backward<T: Math>(p: &[T], g: &mut [T], delta: T) {
    g.iter_mut().zip(p).for_each(|(g, &p)| *g = p * (*g - delta));
}

/// Writes o and lse.
pub fn forward<T: Math>(cpu: &Cpu, p: Plan<T>, q: &[T], k: &[T], v: &[T], o: &mut [T], lse: &mut [T]) {
    let (d, s, c) = (p.d, p.s, TILE.min(p.d.t));
    let (mut qs, mut ks, mut vs) = (cpu.temp::<T>(c * d.k), cpu.temp::<T>(s * d.k), cpu.temp::<T>(s * d.v));
    let (mut x, mut y) = (cpu.temp::<T>(c * s), cpu.temp::<T>(c * d.v));
    for i in 0..d.b * d.h {
        p.keys().gather(k, i, 0, s, T::ONE, &mut ks, d.k);
        p.values().gather(v, i, 0, s, T::ONE, &mut vs, d.v);
        for t0 in (0..d.t).step_by(TILE) {
            let n = c.min(d.t - t0);
            let seen = p.seen(t0 + n - 1);
            let (mx, mk, mv) = (mat(n, seen), mat(seen, d.k), mat(seen, d.v));
            d.keys().gather(q, i, t0, n, p.scale, &mut qs, d.k);
            gemm(T::ONE, (&qs, mat(n, d.k)), (&ks, mk.t()), (&mut x, mx), false);
            for (t, row) in x.chunks_exact_mut(seen).take(n).enumerate() {
                let (past, future) = row.split_at_mut(p.seen(t0 + t));
                lse[i * d.t + t0 + t] = softmax(past);
                future.fill(T::ZERO);
            }
            gemm(T::ONE, (&x, mx), (&vs, mv), (&mut y, mat(n, d.v)), false);
            d.values().put(&y, d.v, i, t0, n, o);
        }
    }
}

/// Adds the gradients of q, k and v.
pub fn backward<T: Math>(cpu: &Cpu, p: Plan<T>, x: &Inputs<T>, dq: &mut [T], dk: &mut [T], dv: &mut [T]) {
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
            for (t, (w, g)) in w.chunks_exact_mut(seen).zip(g.chunks_exact_mut(seen)).take(n).enumerate() {
                let (past, o) = (p.seen(t0 + t), &x.o[d.values().at(i, t0 + t)..][..d.v]);
                let delta = gy[t * d.v..].iter().zip(o).map(|(&g, &o)| g * o).sum();
                again(&mut w[..past], x.lse[i * d.t + t0 + t]);
                softmax_backward(&w[..past], &mut g[..past], delta);
                w[past..].fill(T::ZERO);
                g[past..].fill(T::ZERO);
            }
            gemm(T::ONE, (&g, mx), (&ks, mk), (&mut dqs, mat(n, d.k)), false);
            gemm(T::ONE, (&g, mx.t()), (&qs, mat(n, d.k)), (&mut dks, mk), true);
            gemm(T::ONE, (&w, mx.t()), (&gy, mat(n, d.v)), (&mut dvs, mv), true);
            d.keys().add(&dqs, d.k, p.scale, i, t0, n, dq);
        }
        p.keys().add(&dks, d.k, T::ONE, i, 0, s, dk);
        p.values().add(&dvs, d.v, T::ONE, i, 0, s, dv);
    }
}
