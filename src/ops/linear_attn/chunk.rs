//! Linear attention in chunks of C steps, one head at a time.
//!
//! With Q (scaled), K [C, K], V [C, V] the rows of a chunk and S the state before it:
//!
//! ```text
//! P = tril(Q Kᵀ)      O = Q S + P V      S ← S + Kᵀ V
//! dP = tril(dO Vᵀ)    dQ = dO Sᵀ + dP K    dK = dPᵀ Q + V dSᵀ    dV = Pᵀ dO + K dS    dS ← dS + Qᵀ dO
//! ```

use super::{Grads, Inputs, Outputs, Plan};
use crate::{
    ops::{
        heads::{gemm_unless, lower, zero},
        matmul::{Mat, gemm},
    },
    tensor::{Cpu, Real},
};

fn mat(rows: usize, cols: usize) -> Mat {
    Mat::new(rows, cols, cols)
}

/// v̂ = [v, 1] of a chunk.
fn values<T: Real>(p: &Plan<T>, v: &[T], i: usize, t0: usize, n: usize, y: &mut [T]) {
    let w = p.width();
    p.dims.values().gather(v, i, t0, n, T::ONE, y, w);
    if w > p.dims.v {
        y.chunks_exact_mut(w).for_each(|row| row[w - 1] = T::ONE);
    }
}

/// dô = [do / den, −(do·o) / den] of a chunk, or do itself.
fn cotangents<T: Real>(p: &Plan<T>, y: &Outputs<T>, i: usize, t0: usize, n: usize, out: &mut [T]) {
    let (heads, v, w) = (p.dims.values(), p.dims.v, p.width());
    let Some(d_o) = y.d_o else { return out.fill(T::ZERO) };
    heads.gather(d_o, i, t0, n, T::ONE, out, w);
    let Some(den) = y.den else { return };
    for (t, row) in out.chunks_exact_mut(w).take(n).enumerate() {
        let (o, den) = (&y.o[heads.at(i, t0 + t)..][..v], den[p.dims.scalars().at(i, t0 + t)]);
        let dot: T = row.iter().zip(o).map(|(&g, &o)| g * o).sum();
        row[..v].iter_mut().for_each(|g| *g = *g / den);
        row[v] = -(dot / den);
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
    let (d, c, w) = (p.dims, p.chunk.min(p.dims.t), p.width());
    let (mut q, mut k, mut v) = (cpu.temp::<T>(c * d.k), cpu.temp::<T>(c * d.k), cpu.temp::<T>(c * w));
    let (mut a, mut y, mut s) = (cpu.temp::<T>(c * c), cpu.temp::<T>(c * w), cpu.temp::<T>(d.k * w));
    for i in 0..d.b * d.h {
        p.load_state(Some(x.s0), x.z0, i, &mut s);
        for t0 in (0..d.t).step_by(c.max(1)) {
            let n = c.min(d.t - t0);
            d.keys().gather(x.q, i, t0, n, p.scale, &mut q, d.k);
            d.keys().gather(x.k, i, t0, n, T::ONE, &mut k, d.k);
            values(&p, x.v, i, t0, n, &mut v);
            let (mk, mw, ms, ma) = (mat(n, d.k), mat(n, w), mat(d.k, w), mat(n, n));
            gemm(T::ONE, (&q, mk), (&k, mk.t()), (&mut a, ma), false);
            lower(&mut a, n, false);
            gemm_unless(zero(&s), T::ONE, (&q, mk), (&s, ms), (&mut y, mw), false);
            gemm(T::ONE, (&a, ma), (&v, mw), (&mut y, mw), true);
            gemm(T::ONE, (&k, mk.t()), (&v, mw), (&mut s, ms), true);
            if let (Some(eps), Some(den)) = (p.eps, den.as_deref_mut()) {
                for (t, row) in y.chunks_exact_mut(w).take(n).enumerate() {
                    row[d.v] += eps;
                    let by = row[d.v];
                    den[d.scalars().at(i, t0 + t)] = by;
                    row[..d.v].iter_mut().for_each(|o| *o = *o / by);
                }
            }
            d.values().put(&y, w, i, t0, n, o);
        }
        p.store_state(&s, i, false, s_last, z_last.as_deref_mut());
    }
}

/// Adds the gradients of all inputs. The states before each chunk are recomputed, which is one product in ten.
pub fn backward<T: Real>(cpu: &Cpu, p: Plan<T>, x: &Inputs<T>, y: &Outputs<T>, mut g: Grads<T>) {
    let (d, c, w) = (p.dims, p.chunk.min(p.dims.t), p.width());
    let chunks = d.t.div_ceil(c.max(1));
    let (mut q, mut k, mut v) = (cpu.temp::<T>(c * d.k), cpu.temp::<T>(c * d.k), cpu.temp::<T>(c * w));
    let (mut a, mut da, mut dy) = (cpu.temp::<T>(c * c), cpu.temp::<T>(c * c), cpu.temp::<T>(c * w));
    let (mut dq, mut dk, mut dv) = (cpu.temp::<T>(c * d.k), cpu.temp::<T>(c * d.k), cpu.temp::<T>(c * w));
    let (mut states, mut ds) = (cpu.temp::<T>(chunks.max(1) * d.k * w), cpu.temp::<T>(d.k * w));
    let ms = mat(d.k, w);
    for i in 0..d.b * d.h {
        p.load_state(Some(x.s0), x.z0, i, &mut states);
        for (j, t0) in (0..d.t).step_by(c.max(1)).enumerate().take(chunks.saturating_sub(1)) {
            let n = c.min(d.t - t0);
            d.keys().gather(x.k, i, t0, n, T::ONE, &mut k, d.k);
            values(&p, x.v, i, t0, n, &mut v);
            states.copy_within(j * d.k * w..(j + 1) * d.k * w, (j + 1) * d.k * w);
            let next = &mut states[(j + 1) * d.k * w..];
            gemm(T::ONE, (&k, mat(n, d.k).t()), (&v, mat(n, w)), (next, ms), true);
        }
        p.load_state(y.ds, y.dz, i, &mut ds);
        for j in (0..chunks).rev() {
            let (t0, s) = (j * c, &states[j * d.k * w..(j + 1) * d.k * w]);
            let n = c.min(d.t - t0);
            let (mk, mw, ma) = (mat(n, d.k), mat(n, w), mat(n, n));
            let (first, last) = (zero(s), zero(&ds));
            d.keys().gather(x.q, i, t0, n, p.scale, &mut q, d.k);
            d.keys().gather(x.k, i, t0, n, T::ONE, &mut k, d.k);
            values(&p, x.v, i, t0, n, &mut v);
            cotangents(&p, y, i, t0, n, &mut dy);
            gemm(T::ONE, (&q, mk), (&k, mk.t()), (&mut a, ma), false);
            lower(&mut a, n, false);
            gemm(T::ONE, (&dy, mw), (&v, mw.t()), (&mut da, ma), false);
            lower(&mut da, n, false);
            gemm_unless(first, T::ONE, (&dy, mw), (s, ms.t()), (&mut dq, mk), false);
            gemm(T::ONE, (&da, ma), (&k, mk), (&mut dq, mk), true);
            gemm(T::ONE, (&da, ma.t()), (&q, mk), (&mut dk, mk), false);
            gemm_unless(last, T::ONE, (&v, mw), (&ds, ms.t()), (&mut dk, mk), true);
            gemm(T::ONE, (&a, ma.t()), (&dy, mw), (&mut dv, mw), false);
            gemm_unless(last, T::ONE, (&k, mk), (&ds, ms), (&mut dv, mw), true);
            gemm_unless(j == 0 && !g.state, T::ONE, (&q, mk.t()), (&dy, mw), (&mut ds, ms), true);
            d.keys().add(&dq, d.k, p.scale, i, t0, n, g.dq);
            d.keys().add(&dk, d.k, T::ONE, i, t0, n, g.dk);
            d.values().add(&dv, w, T::ONE, i, t0, n, g.dv);
        }
        if g.state {
            p.store_state(&ds, i, true, g.ds0, g.dz0.as_deref_mut());
        }
    }
}
