//! The mLSTM in chunks of C steps, one head at a time: gated linear attention of the keys i k' and the values [v, 1],
//! with f for a gate ([`Chunk`], where the products are). All gates are at most 1, so that nothing overflows.
//!
//! The mLSTM's own parts are the division by N, and the gradients of its gates,
//!
//! ```text
//! ∂/∂ln i_t = i_t k'_t·d(i k')_t      dk'_t = i_t d(i k')_t      ∂/∂ln f_t = dg_t
//! ```

use crate::{
    kernels::{
        gated_linear_attention::{Chunk, Work},
        heads::Place,
        math::Math,
        mlstm::{ByM, Gates, Grads, Inputs, Outputs, Plan, Saved, inverses, inverses_and_slopes},
        rows::{add_row_dots, dot, times_rows},
        scan::put_all,
    },
    tensor::{Cpu, Real, Temp},
};

/// Rows of v numbers divided by N, of which the two factors of 1 / N are given.
#[versions::versions]
fn normalise<T: Real>(v: usize, a: &[T], b: &[T], x: &mut [T]) {
    for ((x, &a), &b) in x.chunks_exact_mut(v.max(1)).zip(a).zip(b) {
        x.iter_mut().for_each(|x| *x = a * *x * b);
    }
}

/// Load the rows of a chunk.
fn load<T: Math>(u: &mut Chunk<T>, p: &Plan<T>, x: &Inputs<T>, g: &Gates<T>, at: Place) {
    let (d, gates) = (p.dims, at.t0..at.t0 + at.n);
    d.keys().gather(x.q, at, T::ONE, &mut u.queries, d.k);
    d.keys().gather(x.k, at, p.scale, &mut u.keys, d.k);
    times_rows(d.k, &g.i[gates.clone()], &mut u.keys);
    d.values().gather(x.v, at, T::ONE, &mut u.values, d.v);
    u.decay.set(&g.f[gates]);
    u.fade(at.n);
}

pub fn forward<T: Math>(cpu: &Cpu, p: Plan<T>, x: &Inputs<T>, y: Outputs<T>) {
    let (d, c, ns) = (p.dims, p.chunk, p.dims.k * p.dims.v);
    let (mut u, mut g) = (Chunk::new(cpu, &p.products()), Gates::new(cpu, d.t));
    let mut o = cpu.temp::<T>(c * d.v);
    let [mut den, mut a, mut b] = [c; 3].map(|n| cpu.temp::<T>(n));
    for i in 0..d.b * d.h {
        y.m[i] = g.load(d, x, i);
        // The last states serve as the running ones.
        let (all, row) = (i * ns..(i + 1) * ns, i * d.k..(i + 1) * d.k);
        let (s, z) = (&mut y.c[all.clone()], &mut y.n[row.clone()]);
        s.copy_from_slice(&x.c0[all]);
        z.copy_from_slice(&x.n0[row]);
        for j in 0..p.chunks {
            let (t0, saved) = (j * c, &mut y.states[(i * p.chunks + j) * (ns + d.k)..][..ns + d.k]);
            let n = c.min(d.t - t0);
            saved[..ns].copy_from_slice(s);
            saved[ns..].copy_from_slice(z);
            let at = Place { i, t0, n };
            load(&mut u, &p, x, &g, at);
            let next = if j + 1 < p.chunks { (i, t0 + n) } else { (i + 1, 0) };
            d.keys().fetch([x.q, x.k], next, c);
            d.values().fetch([x.v, y.h], next, c);
            let (den, a, b) = (&mut den[..n], &mut a[..n], &mut b[..n]);
            den.fill(T::ZERO);
            u.read(cpu, n, s, &mut o);
            u.add_weights(n, z, den);
            u.write(n, s, z);
            inverses(p, den, &g.m[t0..t0 + n], a, b);
            normalise(d.v, a, b, &mut o);
            d.scalars().put(den, 1, at, y.den);
            d.values().put(&o, d.v, at, y.h);
        }
    }
}

/// Scratch memory of the backward pass beside that of the products: of one chunk, and the gates' gradients of one head.
struct Own<'a, T: Real> {
    h: Temp<'a, T>,
    den: Temp<'a, T>,
    /// 1 / N in two factors, and the derivative of ln h by m.
    by: [Temp<'a, T>; 3],
    di: Temp<'a, T>,
    df: Temp<'a, T>,
    /// Each step's own part of the derivatives by m.
    by_m: ByM<Temp<'a, T>>,
}

impl<'a, T: Math> Own<'a, T> {
    fn new(cpu: &'a Cpu, p: &Plan<T>) -> Own<'a, T> {
        let (one, all) = (|| cpu.temp(p.chunk), || cpu.temp(p.dims.t));
        let by_m = ByM { fixed: all(), scaled: all() };
        Own { h: cpu.temp(p.chunk * p.dims.v), den: one(), by: [one(), one(), one()], di: all(), df: all(), by_m }
    }

    /// dO and δ of a chunk, and each step's own part of Γ and γ. `den` becomes the derivative of N.
    fn cotangents(&mut self, w: &mut Work<T>, p: &Plan<T>, y: &Saved<T>, m: &[T], at @ Place { t0, n, .. }: Place) {
        let (values, scalars, v) = (p.dims.values(), p.dims.scalars(), p.dims.v);
        let (own, scaled) = (&mut self.by_m.fixed[t0..t0 + n], &mut self.by_m.scaled[t0..t0 + n]);
        own.fill(T::ZERO);
        scaled.fill(T::ZERO);
        w.delta.fill(T::ZERO);
        let Some(dh) = y.dh else { return w.dy.fill(T::ZERO) };
        values.gather(dh, at, T::ONE, &mut w.dy, v);
        values.gather(y.h, at, T::ONE, &mut self.h, v);
        scalars.gather(y.den, at, T::ONE, &mut self.den, 1);
        let [a, b, by_m] = &mut self.by;
        inverses_and_slopes(*p, &mut self.den[..n], m, [a, b, by_m]);
        add_row_dots(v, &self.h[..n * v], &w.dy[..n * v], own);
        normalise(v, &a[..n], &b[..n], &mut w.dy);
        for (t, own) in own.iter_mut().enumerate() {
            let slope = -(a[t] * *own * b[t]);
            w.delta[t] = slope * self.den[t];
            scaled[t] = p.eps * slope;
            *own *= by_m[t];
        }
    }
}

/// Adds the gradients of all inputs.
pub fn backward<T: Math>(cpu: &Cpu, p: Plan<T>, x: &Inputs<T>, y: &Saved<T>, mut dx: Grads<T>) {
    let (d, c, ns, products) = (p.dims, p.chunk, p.dims.k * p.dims.v, p.products());
    let (mut u, mut w) = (Chunk::new(cpu, &products), Work::new(cpu, &products));
    let (mut g, mut own) = (Gates::new(cpu, d.t), Own::new(cpu, &p));
    for i in 0..d.b * d.h {
        g.load(d, x, i);
        let (all, row) = (i * ns..(i + 1) * ns, i * d.k..(i + 1) * d.k);
        w.start(y.dc.map(|dc| &dc[all.clone()]), y.dn.map(|dn| &dn[row.clone()]));
        let dm = y.dm.map_or(T::ZERO, |dm| dm[i]);
        let by_m = ByM { fixed: dm, scaled: dm - (dot(&y.c[all.clone()], &w.ds) + dot(&y.n[row.clone()], &w.dz)) };
        for j in (0..p.chunks).rev() {
            let at @ Place { t0, n, .. } = Place { i, t0: j * c, n: c.min(d.t - j * c) };
            load(&mut u, &p, x, &g, at);
            let next = if j > 0 { (i, t0 - c) } else { (i + 1, (p.chunks - 1) * c) };
            d.keys().fetch([x.q, x.k, dx.dq.0, dx.dk.0], next, c);
            d.values().fetch([x.v, y.h, y.dh.unwrap_or_default(), dx.dv.0], next, c);
            own.cotangents(&mut w, &p, y, &g.m[t0..t0 + n], at);
            let before = y.states[(i * p.chunks + j) * (ns + d.k)..][..ns + d.k].split_at(ns);
            w.through(cpu, &mut u, n, before, j == 0 && !dx.state);
            own.di[t0..t0 + n].fill(T::ZERO);
            add_row_dots(d.k, &u.keys[..n * d.k], &w.dk, &mut own.di[t0..t0 + n]);
            own.df[t0..t0 + n].copy_from_slice(&w.dg[..n]);
            times_rows(d.k, &g.i[t0..t0 + n], &mut w.dk);
            d.keys().scatter(&w.dq, d.k, T::ONE, at, &mut dx.dq);
            d.keys().scatter(&w.dk, d.k, p.scale, at, &mut dx.dk);
            d.values().scatter(&w.dv, d.v, T::ONE, at, &mut dx.dv);
        }
        let steps = ByM { fixed: &own.by_m.fixed[..], scaled: &own.by_m.scaled[..] };
        let dm = g.back(d, i, (&own.di, &own.df), steps, by_m, &mut dx);
        if dx.state {
            dx.dm0[i] += dm;
            // Before the first token nothing depends on w: the state is zero.
            dx.dw0[i] += if x.w0[i] > T::ZERO { dm / x.w0[i] } else { T::ZERO };
            put_all(&mut dx.dc0[all], &w.ds, true);
            put_all(&mut dx.dn0[row], &w.dz, true);
        }
    }
}
