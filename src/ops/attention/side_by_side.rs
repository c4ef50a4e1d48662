//! Attention for small heads, one query after another, sixteen heads side by side.

use super::{Inputs, Plan};
use crate::{
    ops::{
        lanes::{Block, L, Lane, lanes, lanes_mut, mul, mul_add, mul_sub},
        math::Math,
    },
    tensor::Cpu,
    with_width,
};

/// x ← eˣ
#[multiversion::multiversion(targets("x86_64+avx512f+avx512vl+avx512dq+avx512bw", "x86_64+avx2"))]
fn exp<T: Math>(x: &mut [T]) {
    x.iter_mut().for_each(|x| *x = x.exp());
}

/// x_s = q·k_s + start, and the largest of them.
#[multiversion::multiversion(targets("x86_64+avx512f+avx512vl+avx512dq+avx512bw", "x86_64+avx2"))]
fn scores<T: Math>(q: &[Lane<T>], k: &[Lane<T>], start: Lane<T>, x: &mut [Lane<T>]) -> Lane<T> {
    let mut top = [T::of(f64::NEG_INFINITY); L];
    let n = q.len();
    with_width!(n => {
        let q = &q[..n];
        for (x, k) in x.iter_mut().zip(k.chunks_exact(n)) {
            let mut sum = start;
            for i in 0..n {
                sum = mul_add(sum, q[i], k[i]);
            }
            (0..L).for_each(|l| top[l] = top[l].max(sum[l]));
            *x = sum;
        }
    });
    top
}

/// o = Σ_s x_s v_s / Σ_s x_s; gives back the denominator.
#[multiversion::multiversion(targets("x86_64+avx512f+avx512vl+avx512dq+avx512bw", "x86_64+avx2"))]
fn average<T: Math>(x: &[Lane<T>], v: &[Lane<T>], o: &mut [Lane<T>]) -> Lane<T> {
    let mut all = [T::ZERO; L];
    x.iter().for_each(|x| (0..L).for_each(|l| all[l] += x[l]));
    let by = all.map(|a| T::ONE / a);
    let n = o.len();
    for (j, o) in o.iter_mut().enumerate() {
        let mut sum = [T::ZERO; L];
        for (s, &x) in x.iter().enumerate() {
            sum = mul_add(sum, x, v[s * n + j]);
        }
        *o = mul(by, sum);
    }
    all
}

/// dx_s = p_s (do·v_s + start) with start = −δ, and dv_s += p_s do.
#[multiversion::multiversion(targets("x86_64+avx512f+avx512vl+avx512dq+avx512bw", "x86_64+avx2"))]
fn through_values<T: Math>(
    p: &[Lane<T>],
    v: &[Lane<T>],
    g: &[Lane<T>],
    start: Lane<T>,
    dx: &mut [Lane<T>],
    dv: &mut [Lane<T>],
) {
    let n = g.len();
    with_width!(n => {
        let g = &g[..n];
        for (((dx, &p), v), dv) in dx.iter_mut().zip(p).zip(v.chunks_exact(n)).zip(dv.chunks_exact_mut(n)) {
            let mut sum = start;
            for j in 0..n {
                sum = mul_add(sum, g[j], v[j]);
                dv[j] = mul_add(dv[j], p, g[j]);
            }
            *dx = mul(p, sum);
        }
    });
}

/// dq = Σ_s dx_s k_s and dk_s += dx_s q.
#[multiversion::multiversion(targets("x86_64+avx512f+avx512vl+avx512dq+avx512bw", "x86_64+avx2"))]
fn through_keys<T: Math>(dx: &[Lane<T>], q: &[Lane<T>], k: &[Lane<T>], dq: &mut [Lane<T>], dk: &mut [Lane<T>]) {
    let n = q.len();
    for i in 0..n {
        let (q, mut sum) = (q[i], [T::ZERO; L]);
        for (s, &dx) in dx.iter().enumerate() {
            sum = mul_add(sum, dx, k[s * n + i]);
            dk[s * n + i] = mul_add(dk[s * n + i], dx, q);
        }
        dq[i] = sum;
    }
}

/// Writes o and lse.
pub fn forward<T: Math>(cpu: &Cpu, p: Plan<T>, q: &[T], k: &[T], v: &[T], o: &mut [T], lse: &mut [T]) {
    let (d, n, s) = (p.d, p.d.t, p.s);
    let lane = |n: usize| cpu.temp::<T>(n * L);
    let (mut qs, mut ks, mut vs) = (lane(n * d.k), lane(s * d.k), lane(s * d.v));
    let (mut os, mut x) = (lane(n * d.v), lane(s));
    let os = lanes_mut(&mut os);
    for b in Block::all(d.b * d.h) {
        b.gather(d.keys(), q, 0, n, p.scale, lanes_mut(&mut qs), d.k);
        b.gather(p.keys(), k, 0, s, T::ONE, lanes_mut(&mut ks), d.k);
        b.gather(p.values(), v, 0, s, T::ONE, lanes_mut(&mut vs), d.v);
        for t in 0..n {
            let seen = p.seen(t);
            let x = &mut x[..seen * L];
            let q = &lanes(&qs)[t * d.k..(t + 1) * d.k];
            let top = scores(q, lanes(&ks), [T::ZERO; L], lanes_mut(x));
            // Computing them again is faster than subtracting.
            scores(q, lanes(&ks), std::array::from_fn(|l| -top[l]), lanes_mut(x));
            exp(x);
            let sum = average(lanes(x), lanes(&vs), &mut os[t * d.v..(t + 1) * d.v]);
            (0..b.len).for_each(|l| lse[(b.first + l) * n + t] = top[l] + sum[l].ln());
        }
        b.scatter(d.values(), os, d.v, 0, n, None, o);
    }
}

/// Adds the gradients of q, k and v.
pub fn backward<T: Math>(cpu: &Cpu, p: Plan<T>, x: &Inputs<T>, dq: &mut [T], dk: &mut [T], dv: &mut [T]) {
    let (d, n, s) = (p.d, p.d.t, p.s);
    let lane = |n: usize| cpu.temp::<T>(n * L);
    let (mut qs, mut ks, mut vs, mut gs) = (lane(n * d.k), lane(s * d.k), lane(s * d.v), lane(n * d.v));
    let (mut os, mut dqs, mut dks, mut dvs) = (lane(n * d.v), lane(n * d.k), lane(s * d.k), lane(s * d.v));
    let (mut w, mut dx) = (lane(s), lane(s));
    for b in Block::all(d.b * d.h) {
        b.gather(d.keys(), x.q, 0, n, p.scale, lanes_mut(&mut qs), d.k);
        b.gather(p.keys(), x.k, 0, s, T::ONE, lanes_mut(&mut ks), d.k);
        b.gather(p.values(), x.v, 0, s, T::ONE, lanes_mut(&mut vs), d.v);
        b.gather(d.values(), x.d_o, 0, n, T::ONE, lanes_mut(&mut gs), d.v);
        b.gather(d.values(), x.o, 0, n, T::ONE, lanes_mut(&mut os), d.v);
        dks.fill(T::ZERO);
        dvs.fill(T::ZERO);
        let (qs, ks, vs, gs, os) = (lanes(&qs), lanes(&ks), lanes(&vs), lanes(&gs), lanes(&os));
        let (dqs, dks, dvs) = (lanes_mut(&mut dqs), lanes_mut(&mut dks), lanes_mut(&mut dvs));
        for t in 0..n {
            let (w, dx) = (&mut w[..p.seen(t) * L], lanes_mut(&mut dx[..p.seen(t) * L]));
            let (q, g, o) = (&qs[t * d.k..][..d.k], &gs[t * d.v..][..d.v], &os[t * d.v..][..d.v]);
            let at = |l: usize| if l < b.len { -x.lse[(b.first + l) * n + t] } else { T::ZERO };
            scores(q, ks, std::array::from_fn(at), lanes_mut(w));
            exp(w);
            let start = g.iter().zip(o).fold([T::ZERO; L], |sum, (&g, &o)| mul_sub(sum, g, o));
            through_values(lanes(w), vs, g, start, dx, dvs);
            through_keys(dx, q, ks, &mut dqs[t * d.k..][..d.k], dks);
        }
        b.scatter(d.keys(), dqs, d.k, 0, n, Some(p.scale), dq);
        b.scatter(p.keys(), dks, d.k, 0, s, Some(T::ONE), dk);
        b.scatter(p.values(), dvs, d.v, 0, s, Some(T::ONE), dv);
    }
}
