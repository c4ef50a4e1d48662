//! Linear attention in chunks of C steps, one head at a time.
//!
//! With Q (scaled), K [C, K], V [C, V] the rows of a chunk, S and z the state before it:
//!
//! ```text
//! P = tril(Q Kᵀ)            O = Q S + P V                  S ← S + Kᵀ V
//!                           den = Q z + P 1 + eps          z ← z + Kᵀ 1
//! dP = tril(dO Vᵀ)          dQ = dO Sᵀ + dP K              dK = dPᵀ Q + V dSᵀ      dV = Pᵀ dO + K dS
//!                           dS ← dS + Qᵀ dO
//! ```
//!
//! With the normaliser dO is do / den, and to products with it comes what the column of ones adds, δ = −(do·o) / den:
//! dP = tril(dO Vᵀ + δ 1ᵀ), dQ = … + δ zᵀ, dK = … + 1 dzᵀ and dz ← dz + Qᵀ δ.

use crate::{
    kernels::{
        heads::{gemm_unless, lower, zero},
        lane_sums::columns,
        linear_attn::{Grads, Inputs, Outputs, Plan},
        matmul::{Mat, gemm},
        rows::{add_dots, add_outer, add_row_dots, add_weighted, divide_rows},
        scan::put_all,
        tril_matmul::lower_gemm,
    },
    tensor::{Cpu, Real},
};

fn mat(rows: usize, cols: usize) -> Mat {
    Mat::new(rows, cols, cols)
}

/// Every row of `x` plus its number.
#[versions::versions]
fn add_to_rows<T: Real>(k: usize, by: &[T], x: &mut [T]) {
    for (x, &by) in x.chunks_exact_mut(k).zip(by) {
        x.iter_mut().for_each(|x| *x += by);
    }
}

/// Outputs, last state and, when normalised, denominators.
pub fn forward<T: Real>(
    cpu: &Cpu,
    p: Plan<T>,
    x: &Inputs<T>,
    o: &mut [T],
    s_last: &mut [T],
    mut z_last: Option<&mut [T]>,
    mut den: Option<&mut [T]>,
) {
    let (d, c, ns) = (p.dims, p.chunk.min(p.dims.t), p.dims.k * p.dims.v);
    let (mut q, mut k, mut v) = (cpu.temp::<T>(c * d.k), cpu.temp::<T>(c * d.k), cpu.temp::<T>(c * d.v));
    let (mut a, mut y, mut ones) = (cpu.temp::<T>(c * c), cpu.temp::<T>(c * d.v), cpu.temp::<T>(c));
    let (mut by, mut z) = (cpu.temp::<T>(c), cpu.zeros::<T>(d.k));
    ones.fill(T::ONE);
    for i in 0..d.b * d.h {
        let s = &mut s_last[i * ns..(i + 1) * ns];
        s.copy_from_slice(&x.s0[i * ns..(i + 1) * ns]);
        x.z0.into_iter().for_each(|z0| z.copy_from_slice(&z0[i * d.k..(i + 1) * d.k]));
        for t0 in (0..d.t).step_by(c.max(1)) {
            let n = c.min(d.t - t0);
            d.keys().gather(x.q, i, t0, n, p.scale, &mut q, d.k);
            d.keys().gather(x.k, i, t0, n, T::ONE, &mut k, d.k);
            d.values().gather(x.v, i, t0, n, T::ONE, &mut v, d.v);
            let next = if t0 + n < d.t { (i, t0 + n) } else { (i + 1, 0) };
            d.keys().fetch([x.q, x.k], next, c);
            d.values().fetch([x.v, o], next, c);
            let (mk, mv, ms, ma) = (mat(n, d.k), mat(n, d.v), mat(d.k, d.v), mat(n, n));
            gemm(T::ONE, (&q, mk), (&k, mk.t()), (&mut a, ma), false);
            lower(&mut a, n, false);
            gemm_unless(zero(s), T::ONE, (&q, mk), (s, ms), (&mut y, mv), false);
            lower_gemm(cpu, n, d.v, &a, &v, &mut y, true);
            gemm(T::ONE, (&k, mk.t()), (&v, mv), (s, ms), true);
            if let (Some(eps), Some(den)) = (p.eps, den.as_deref_mut()) {
                let by = &mut by[..n];
                by.fill(eps);
                add_dots(d.k, &q, &z, by);
                add_dots(n, &a, &ones[..n], by);
                columns(&k[..n * d.k], &mut z);
                divide_rows(d.v, by, &mut y);
                d.scalars().put(by, 1, i, t0, n, den);
            }
            d.values().put(&y, d.v, i, t0, n, o);
        }
        z_last.iter_mut().for_each(|last| last[i * d.k..(i + 1) * d.k].copy_from_slice(&z));
    }
}

/// dO and δ of a chunk.
fn cotangents<T: Real>(
    p: &Plan<T>,
    y: &Outputs<T>,
    (i, t0, n): (usize, usize, usize),
    (o, by): (&mut [T], &mut [T]),
    dy: &mut [T],
    delta: &mut [T],
) {
    let (heads, v) = (p.dims.values(), p.dims.v);
    delta.fill(T::ZERO);
    let Some(d_o) = y.d_o else { return dy.fill(T::ZERO) };
    heads.gather(d_o, i, t0, n, T::ONE, dy, v);
    let Some(den) = y.den else { return };
    heads.gather(y.o, i, t0, n, T::ONE, o, v);
    p.dims.scalars().gather(den, i, t0, n, T::ONE, by, 1);
    divide_rows(v, &by[..n], dy);
    add_row_dots(v, &o[..n * v], &dy[..n * v], delta);
    delta.iter_mut().for_each(|d| *d = -*d);
}

/// Adds the gradients of all inputs. The states before each chunk are recomputed, which is one product in ten.
pub fn backward<T: Real>(cpu: &Cpu, p: Plan<T>, x: &Inputs<T>, y: &Outputs<T>, mut g: Grads<T>) {
    let (d, c, ns) = (p.dims, p.chunk.min(p.dims.t), p.dims.k * p.dims.v);
    let chunks = d.t.div_ceil(c.max(1));
    let (mut q, mut k, mut v) = (cpu.temp::<T>(c * d.k), cpu.temp::<T>(c * d.k), cpu.temp::<T>(c * d.v));
    let (mut a, mut da, mut dy) = (cpu.temp::<T>(c * c), cpu.temp::<T>(c * c), cpu.temp::<T>(c * d.v));
    let (mut dq, mut dk, mut dv) = (cpu.temp::<T>(c * d.k), cpu.temp::<T>(c * d.k), cpu.temp::<T>(c * d.v));
    let (mut states, mut ds) = (cpu.temp::<T>(chunks.max(1) * ns), cpu.temp::<T>(ns));
    let (mut zs, mut dz) = (cpu.zeros::<T>(chunks.max(1) * d.k), cpu.zeros::<T>(d.k));
    let (mut o, mut by, mut delta) = (cpu.temp::<T>(c * d.v), cpu.temp::<T>(c), cpu.temp::<T>(c));
    let (ms, normal, mut ones) = (mat(d.k, d.v), p.eps.is_some(), cpu.temp::<T>(c));
    ones.fill(T::ONE);
    for i in 0..d.b * d.h {
        let (all, row) = (i * ns..(i + 1) * ns, i * d.k..(i + 1) * d.k);
        states[..ns].copy_from_slice(&x.s0[all.clone()]);
        x.z0.into_iter().for_each(|z0| zs[..d.k].copy_from_slice(&z0[row.clone()]));
        for (j, t0) in (0..d.t).step_by(c.max(1)).enumerate().take(chunks.saturating_sub(1)) {
            d.keys().gather(x.k, i, t0, c, T::ONE, &mut k, d.k);
            d.values().gather(x.v, i, t0, c, T::ONE, &mut v, d.v);
            states.copy_within(j * ns..(j + 1) * ns, (j + 1) * ns);
            zs.copy_within(j * d.k..(j + 1) * d.k, (j + 1) * d.k);
            let next = &mut states[(j + 1) * ns..];
            gemm(T::ONE, (&k, mat(c, d.k).t()), (&v, mat(c, d.v)), (next, ms), true);
            columns(&k, &mut zs[(j + 1) * d.k..(j + 2) * d.k]);
        }
        match y.ds {
            Some(last) => ds.copy_from_slice(&last[all.clone()]),
            None => ds.fill(T::ZERO),
        }
        match y.dz {
            Some(last) => dz.copy_from_slice(&last[row.clone()]),
            None => dz.fill(T::ZERO),
        }
        for j in (0..chunks).rev() {
            let (t0, s, z) = (j * c, &states[j * ns..(j + 1) * ns], &zs[j * d.k..(j + 1) * d.k]);
            let n = c.min(d.t - t0);
            let (mk, mv, ma) = (mat(n, d.k), mat(n, d.v), mat(n, n));
            let (first, last, unread) = (zero(s), zero(&ds), j == 0 && !g.state);
            d.keys().gather(x.q, i, t0, n, p.scale, &mut q, d.k);
            d.keys().gather(x.k, i, t0, n, T::ONE, &mut k, d.k);
            d.values().gather(x.v, i, t0, n, T::ONE, &mut v, d.v);
            cotangents(&p, y, (i, t0, n), (&mut o, &mut by), &mut dy, &mut delta);
            let next = if j > 0 { (i, t0 - c) } else { (i + 1, (chunks - 1) * c) };
            d.keys().fetch([x.q, x.k, g.dq.0, g.dk.0], next, c);
            d.values().fetch([x.v, y.o, y.d_o.unwrap_or_default(), g.dv.0], next, c);
            let delta = &delta[..n];
            gemm(T::ONE, (&q, mk), (&k, mk.t()), (&mut a, ma), false);
            lower(&mut a, n, false);
            gemm(T::ONE, (&dy, mv), (&v, mv.t()), (&mut da, ma), false);
            if normal {
                add_to_rows(n, delta, &mut da);
            }
            lower(&mut da, n, false);
            gemm_unless(first, T::ONE, (&dy, mv), (s, ms.t()), (&mut dq, mk), false);
            lower_gemm(cpu, n, d.k, &da, &k, &mut dq, true);
            gemm(T::ONE, (&da, ma.t()), (&q, mk), (&mut dk, mk), false);
            gemm_unless(last, T::ONE, (&v, mv), (&ds, ms.t()), (&mut dk, mk), true);
            gemm(T::ONE, (&a, ma.t()), (&dy, mv), (&mut dv, mv), false);
            gemm_unless(last, T::ONE, (&k, mk), (&ds, ms), (&mut dv, mv), true);
            gemm_unless(unread, T::ONE, (&q, mk.t()), (&dy, mv), (&mut ds, ms), true);
            if normal {
                if !zero(z) {
                    add_outer(d.k, delta, z, &mut dq);
                }
                if !zero(&dz) {
                    add_outer(d.k, &ones[..n], &dz, &mut dk);
                }
                add_weighted(delta, &q, &mut dz);
            }
            d.keys().merge(&dq, d.k, p.scale, i, (t0, n), &mut g.dq);
            d.keys().merge(&dk, d.k, T::ONE, i, (t0, n), &mut g.dk);
            d.values().merge(&dv, d.v, T::ONE, i, (t0, n), &mut g.dv);
        }
        if g.state {
            put_all(&mut g.ds0.0[all], &ds, g.ds0.1);
            g.dz0.iter_mut().for_each(|(dz0, acc)| put_all(&mut dz0[row.clone()], &dz, *acc));
        }
    }
}
