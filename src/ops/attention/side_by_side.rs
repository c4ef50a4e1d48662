//! Attention for small heads, one query after another, sixteen heads side by side.
//!
//! The kernels are written for one lane, in a loop over the lanes inside of that over the keys. N is a constant, so
//! that a lane's query and sums stay in registers; heads that are narrower are filled up with zeros.

use super::{Inputs, Plan};
use crate::{
    ops::{
        heads::Merged,
        lanes::{Block, L, Lane, lanes, lanes_mut, mul_sub},
        math::Math,
    },
    tensor::{Cpu, Real},
};

/// N numbers of each lane: a query, a key, a value.
type Row<T, const N: usize> = [Lane<T>; N];

/// The widest heads.
pub const WIDEST: usize = 8;

/// Keys to a tile: with their values and the gradients of both they stay in the first cache.
const TILE: usize = 16;

/// Scores of at most this need not have the largest subtracted: e^20 times a million values of 10^23 is a finite f32, and
/// e^-20 as exact as any number.
const SMALL: f64 = 20.0;

/// What to subtract from the scores before their exponential: nothing where |q| |k_s| <= [`SMALL`] for all keys seen, and
/// the largest otherwise. Each lane for itself, and from no key that it does not see.
#[inline(always)]
fn reference<T: Math, const N: usize>(q: &Row<T, N>, k: &[Row<T, N>], longest: &Lane<T>) -> Lane<T> {
    let (mut small, mut all) = ([false; L], true);
    for l in 0..L {
        let square = (0..N).fold(T::ZERO, |x, i| q[i][l].fma(q[i][l], x));
        small[l] = square * longest[l] <= T::of(SMALL * SMALL);
        all &= small[l];
    }
    if all {
        return [T::ZERO; L];
    }
    let top = largest(q, k);
    std::array::from_fn(|l| if small[l] { T::ZERO } else { top[l] })
}

/// |k|², where it is more than `longest`.
#[inline(always)]
fn lengthen<T: Math, const N: usize>(k: &[Row<T, N>], longest: &mut Lane<T>) {
    for k in k {
        for l in 0..L {
            longest[l] = longest[l].max((0..N).fold(T::ZERO, |x, i| k[i][l].fma(k[i][l], x)));
        }
    }
}

/// The largest q·k_s.
#[inline(always)]
fn largest<T: Math, const N: usize>(q: &Row<T, N>, k: &[Row<T, N>]) -> Lane<T> {
    let mut top = [T::of(f64::NEG_INFINITY); L];
    for k in k {
        for l in 0..L {
            let x = (0..N).fold(T::ZERO, |x, i| q[i][l].fma(k[i][l], x));
            top[l] = x.max(top[l]);
        }
    }
    top
}

/// w_s = exp(q·k_s + plus) for the keys of a tile.
///
/// A pass of its own, and those that use the weights are others: that is faster than one pass over the keys (it seems that
/// there each key waits for its own exponential and a processor looks ahead at few of them).
#[inline(always)]
fn weights<'a, T: Math, const N: usize>(
    q: &Row<T, N>,
    k: &[Row<T, N>],
    plus: &Lane<T>,
    room: &'a mut [Lane<T>; TILE],
) -> &'a mut [Lane<T>] {
    let w = &mut room[..k.len()];
    for (w, k) in w.iter_mut().zip(k) {
        for l in 0..L {
            w[l] = (0..N).fold(plus[l], |x, i| q[i][l].fma(k[i][l], x));
        }
    }
    for w in w.as_flattened_mut() {
        *w = w.exp();
    }
    w
}

/// o = Σ_s w_s v_s / Σ_s w_s with w_s = exp(q·k_s − top), and lse = ln Σ_s exp(q·k_s), of all queries of a block of heads.
#[multiversion::multiversion(targets("x86_64+avx512f+avx512vl+avx512dq+avx512bw", "x86_64+avx2+fma"))]
fn attend<T: Math, const N: usize>(
    p: Plan<T>,
    q: &[Row<T, N>],
    k: &[Row<T, N>],
    v: &[Row<T, N>],
    o: &mut [Row<T, N>],
    lse: &mut [Lane<T>],
) {
    let (mut longest, mut from, mut room) = ([T::ZERO; L], 0, [[T::ZERO; L]; TILE]);
    for (t, ((q, o), lse)) in q.iter().zip(o).zip(lse).enumerate() {
        let (k, v) = (&k[..p.seen(t)], &v[..p.seen(t)]);
        lengthen(&k[from..], &mut longest);
        from = k.len();
        let top = reference(q, k, &longest);
        let (mut all, mut sum, less) = ([T::ZERO; L], [[T::ZERO; L]; N], top.map(|x| -x));
        for (k, v) in k.chunks(TILE).zip(v.chunks(TILE)) {
            for (w, v) in weights(q, k, &less, &mut room).iter().zip(v) {
                for l in 0..L {
                    all[l] += w[l];
                    for j in 0..N {
                        sum[j][l] = w[l].fma(v[j][l], sum[j][l]);
                    }
                }
            }
        }
        for l in 0..L {
            let by = T::ONE / all[l];
            for j in 0..N {
                o[j][l] = by * sum[j][l];
            }
            lse[l] = top[l] + all[l].ln();
        }
    }
}

/// −δ of each query.
#[multiversion::multiversion(targets("x86_64+avx512f+avx512vl+avx512dq+avx512bw", "x86_64+avx2+fma"))]
fn negative<T: Math, const N: usize>(g: &[Row<T, N>], o: &[Row<T, N>], starts: &mut [[Lane<T>; 2]]) {
    for ((g, o), start) in g.iter().zip(o).zip(starts) {
        let mut sum = [T::ZERO; L];
        for j in 0..N {
            sum = mul_sub(sum, g[j], o[j]);
        }
        start[0] = sum;
    }
}

/// What the way back reads of a block of heads: rows of each query, in `starts` its −δ and −lse, and of each key.
struct Given<'a, T, const N: usize> {
    q: &'a [Row<T, N>],
    g: &'a [Row<T, N>],
    starts: &'a [[Lane<T>; 2]],
    k: &'a [Row<T, N>],
    v: &'a [Row<T, N>],
}

/// One tile of keys, from `s0` on, and all queries that see any of it backwards: p_s = exp(q·k_s − lse) and
/// dx_s = p_s (do·v_s − δ); dq += Σ_s dx_s k_s, dk_s += dx_s q, dv_s += p_s do.
#[multiversion::multiversion(targets("x86_64+avx512f+avx512vl+avx512dq+avx512bw", "x86_64+avx2+fma"))]
fn attend_back<T: Math, const N: usize>(
    p: Plan<T>,
    s0: usize,
    x: &Given<T, N>,
    dq: &mut [Row<T, N>],
    dk: &mut [Row<T, N>],
    dv: &mut [Row<T, N>],
) {
    let mut room = [[T::ZERO; L]; TILE];
    for (t, dq) in dq.iter_mut().enumerate().skip(p.first(s0)) {
        let seen = s0..p.seen(t).min(s0 + TILE);
        let (q, g, start) = (&x.q[t], &x.g[t], &x.starts[t]);
        let (k, v) = (&x.k[seen.clone()], &x.v[seen.clone()]);
        let (dk, dv) = (&mut dk[seen.clone()], &mut dv[seen]);
        let p = weights(q, k, &start[1], &mut room);
        for ((p, v), dv) in p.iter_mut().zip(v).zip(dv) {
            for l in 0..L {
                let dp = (0..N).fold(start[0][l], |d, j| g[j][l].fma(v[j][l], d));
                for j in 0..N {
                    dv[j][l] = p[l].fma(g[j][l], dv[j][l]);
                }
                p[l] *= dp;
            }
        }
        let mut sum = *dq;
        for ((dx, k), dk) in p.iter().zip(k).zip(dk) {
            for l in 0..L {
                for i in 0..N {
                    dk[i][l] = dx[l].fma(q[i][l], dk[i][l]);
                    sum[i][l] = dx[l].fma(k[i][l], sum[i][l]);
                }
            }
        }
        *dq = sum;
    }
}

/// Lanes as rows.
fn rows<T: Real, const N: usize>(x: &[T]) -> &[Row<T, N>] {
    lanes(x).as_chunks().0
}

/// The same to write.
fn rows_mut<T: Real, const N: usize>(x: &mut [T]) -> &mut [Row<T, N>] {
    lanes_mut(x).as_chunks_mut().0
}

/// Writes o and lse.
pub fn forward<T: Math, const N: usize>(cpu: &Cpu, p: Plan<T>, q: &[T], k: &[T], v: &[T], o: &mut [T], lse: &mut [T]) {
    let (d, n, s) = (p.d, p.d.t, p.s);
    let lane = |n: usize| cpu.zeros::<T>(n * N * L);
    let (mut qs, mut ks, mut vs, mut os, mut all) = (lane(n), lane(s), lane(s), lane(n), cpu.temp::<T>(n * L));
    for b in Block::all(d.b * d.h) {
        b.gather(d.keys(), q, 0, n, p.scale, lanes_mut(&mut qs), N);
        b.gather(p.keys(), k, 0, s, T::ONE, lanes_mut(&mut ks), N);
        b.gather(p.values(), v, 0, s, T::ONE, lanes_mut(&mut vs), N);
        attend::<T, N>(p, rows(&qs), rows(&ks), rows(&vs), rows_mut(&mut os), lanes_mut(&mut all));
        for (t, all) in lanes(&all).iter().enumerate() {
            (0..b.len).for_each(|l| lse[(b.first + l) * n + t] = all[l]);
        }
        b.scatter(d.values(), lanes(&os), N, (0, n), T::ONE, &mut (o, false));
    }
}

/// Adds the gradients of q, k and v.
pub fn backward<T: Math, const N: usize>(
    cpu: &Cpu,
    p: Plan<T>,
    x: &Inputs<T>,
    [mut dq, mut dk, mut dv]: [Merged<T>; 3],
) {
    let (d, n, s) = (p.d, p.d.t, p.s);
    let lane = |n: usize| cpu.zeros::<T>(n * N * L);
    let (mut qs, mut ks, mut vs, mut gs, mut os) = (lane(n), lane(s), lane(s), lane(n), lane(n));
    let (mut dqs, mut dks, mut dvs, mut starts) = (lane(n), lane(s), lane(s), cpu.temp::<T>(n * 2 * L));
    for b in Block::all(d.b * d.h) {
        b.gather(d.keys(), x.q, 0, n, p.scale, lanes_mut(&mut qs), N);
        b.gather(p.keys(), x.k, 0, s, T::ONE, lanes_mut(&mut ks), N);
        b.gather(p.values(), x.v, 0, s, T::ONE, lanes_mut(&mut vs), N);
        b.gather(d.values(), x.d_o, 0, n, T::ONE, lanes_mut(&mut gs), N);
        b.gather(d.values(), x.o, 0, n, T::ONE, lanes_mut(&mut os), N);
        [&mut dqs, &mut dks, &mut dvs].into_iter().for_each(|d| d.fill(T::ZERO));
        negative::<T, N>(rows(&gs), rows(&os), rows_mut(&mut starts));
        for (t, start) in rows_mut::<T, 2>(&mut starts).iter_mut().enumerate() {
            start[1] = [T::ZERO; L];
            (0..b.len).for_each(|l| start[1][l] = -x.lse[(b.first + l) * n + t]);
        }
        let given = Given::<T, N> { q: rows(&qs), g: rows(&gs), starts: rows(&starts), k: rows(&ks), v: rows(&vs) };
        for s0 in (0..s).step_by(TILE) {
            attend_back(p, s0, &given, rows_mut(&mut dqs), rows_mut(&mut dks), rows_mut(&mut dvs));
        }
        b.scatter(d.keys(), lanes(&dqs), N, (0, n), p.scale, &mut dq);
        b.scatter(p.keys(), lanes(&dks), N, (0, s), T::ONE, &mut dk);
        b.scatter(p.values(), lanes(&dvs), N, (0, s), T::ONE, &mut dv);
    }
}
