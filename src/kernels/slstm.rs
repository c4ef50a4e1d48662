//! The kernel of [`SlstmSequence`].
//!
//! Backwards, dh, dc and dn are what step t + 1 hands back plus what comes from above. h does not depend on m, so that
//! m is held fixed throughout; only the last c, n and m do, and γ is their derivative with respect to m for fixed c eᵐ
//! and n eᵐ. It goes to whichever argument of the maximum won, or half to each where they are equal, back to the first
//! step that an input won:
//!
//! ```text
//! γ_T = dm_T − (c_T dc_T + n_T dn_T)
//! dc += dh o / n_t      dn −= dh h_t / n_t      dõ = dh h_t (1 − o)      dz̃ = i dc (1 − z²)
//! dĩ = i (z dc + dn) (+ γ)      dl = f (c_{t-1} dc + n_{t-1} dn) (+ γ)      df̃ = dl σ(−f̃)
//! to step t − 1: f dc, f dn, Rᵀ (dĩ, df̃, dz̃, dõ), and γ if l won
//! ```
//!
//! The saved values of every step are the smaller of i and f (the other is 1), whose sign bit is set where l = ĩ; z; o;
//! c, n; and ±σ(−f̃), whose sign bit is that of l − ĩ, even if the σ is 0. A gate is saved so that its distance from 1
//! has all its digits: o as the smaller of σ(õ) and σ(−õ) with the sign of −õ. For z the CPU saves 1 − z² besides, [B,
//! T, 7, D] in all; a device encodes it in z (`keep_tanh` in prelude.cuh), [B, T, 6, D].

mod cells;
mod device;

use crate::{
    autograd::{Grad, In, Kernel, Outs, Value, zeroed},
    kernels::{
        gemm::Packed,
        heads::cotangent_of,
        math::Math,
        matmul::Mat,
        recurrent::{self, weights_back, whole},
        scan::{by_device, fetch, put_all},
    },
    ops::slstm::SlstmSequence,
    tensor::{Cpu, Real, Shape, Tensor},
};
use cells::{SAVED, cell, cell_back};

/// Sizes: batch, steps, heads, units of a head.
#[derive(Clone, Copy)]
struct Size {
    b: usize,
    t: usize,
    h: usize,
    k: usize,
}

impl Size {
    fn of(x: In) -> Size {
        let (r, shape) = (x[1].shape(), x[0].shape());
        Size { b: shape.at(0), t: shape.at(1), h: r.at(1), k: r.at(2) }
    }

    fn d(self) -> usize {
        self.h * self.k
    }

    /// Where, in a tensor [B, T, n D], step t of sequence b begins for head `h`; row j of it is j D further on.
    fn step(self, n: usize, b: usize, t: usize, h: usize) -> usize {
        (b * self.t + t) * n * self.d() + h * self.k
    }

    /// Where, in a tensor [B, D], head `h` of sequence b is.
    fn state(self, b: usize, h: usize) -> std::ops::Range<usize> {
        let at = b * self.d() + h * self.k;
        at..at + self.k
    }

    /// The same in a tensor [H, B, K].
    fn sorted(self, b: usize, h: usize) -> std::ops::Range<usize> {
        let at = (h * self.b + b) * self.k;
        at..at + self.k
    }

    /// Both places, for all heads of all sequences.
    fn each_state(self, mut f: impl FnMut(std::ops::Range<usize>, std::ops::Range<usize>)) {
        (0..self.b).for_each(|b| (0..self.h).for_each(|h| f(self.state(b, h), self.sorted(b, h))));
    }

    /// Have step t of the sequence after `b`, in a tensor [B, T, n D], fetched into the cache.
    #[inline(always)]
    fn fetch_next<T>(self, n: usize, b: usize, t: usize, x: &[T]) {
        if b + 1 < self.b {
            fetch(&x[self.step(n, b + 1, t, 0)..][..n * self.d()]);
        }
    }

    /// R of every head as [K, 4K], for h R.
    fn matrices<T: Real>(self, r: &[T], y: &mut [T]) {
        for (i, y) in y.chunks_exact_mut(self.k.max(1)).enumerate() {
            let (head, row, gate) = (i / (4 * self.k), i / 4 % self.k, i % 4);
            y.copy_from_slice(&r[((gate * self.h + head) * self.k + row) * self.k..][..self.k]);
        }
    }

    /// [`Size::matrices`] for the products of every step, as they are or transposed.
    fn packed<'a, T: Real>(self, cpu: &'a Cpu, all: &'a [T], transposed: bool) -> Vec<Packed<'a, T>> {
        let mat = Mat::new(self.k, 4 * self.k, 4 * self.k);
        let mat = if transposed { mat.t() } else { mat };
        all.chunks_exact((4 * self.k * self.k).max(1)).map(|r| Packed::new(cpu, self.b, (r, mat))).collect()
    }
}

/// y = m + ln w
#[versions::versions]
fn effective<T: Math>(m: &[T], w: &[T], y: &mut [T]) {
    y.iter_mut().zip(m).zip(w).for_each(|((y, &m), &w)| *y = m + w.ln());
}

impl SlstmSequence {
    fn forward_cpu<T: Math>(&self, cpu: &Cpu, x: In, y: &mut [Value]) {
        let [h, h_last, c_last, n_last, m_last, saved] = y else { return };
        let (s, v, r) = (Size::of(x), x[0].host::<T>(), x[1].host::<T>());
        let (h, saved, h_last) = (h.host_mut::<T>(), saved.host_mut::<T>(), h_last.host_mut::<T>());
        // The last states serve as the running ones; h is sorted by heads, for the products.
        let [c, n, m] = [c_last, n_last, m_last].map(|y| y.host_mut::<T>());
        c.copy_from_slice(x[3].host());
        n.copy_from_slice(x[4].host());
        effective(x[5].host(), x[6].host(), m);
        let (mut matrices, mut sorted) = (cpu.temp::<T>(r.len()), cpu.temp::<T>(c.len()));
        s.matrices(r, &mut matrices);
        s.each_state(|unit, own| sorted[own].copy_from_slice(&x[2].host::<T>()[unit]));
        recurrent::forward(cpu, s.t, &s.packed(cpu, &matrices, false), &mut sorted, |t, z, sorted| {
            cell(s, t, v, z, &mut [sorted, &mut *c, &mut *n, &mut *m], (&mut *h, &mut *saved));
        });
        s.each_state(|unit, own| h_last[unit].copy_from_slice(&sorted[own]));
    }

    fn backward_cpu<T: Math>(&self, cpu: &Cpu, x: In, y: &[Value], dy: &[Option<Tensor>], dx: &mut [Grad]) {
        let [gx, gr, initial @ ..] = dx else { return };
        let (s, r, first) = (Size::of(x), x[1].host::<T>(), [x[3].host::<T>(), x[4].host::<T>()]);
        let (h, saved) = (y[0].host::<T>(), y[5].host::<T>());
        let mut matrices = cpu.temp::<T>(r.len());
        s.matrices(r, &mut matrices);
        // dh is sorted by heads.
        let mut g = [(); 4].map(|()| cpu.temp::<T>(s.b * s.d()));
        for (g, dy) in g.iter_mut().zip(&dy[1..]) {
            match cotangent_of(dy) {
                Some(dy) => g.copy_from_slice(dy),
                None => g.fill(T::ZERO),
            }
        }
        let [dh, dc, dn, gamma] = &mut g;
        cotangent_of(&dy[1])
            .into_iter()
            .for_each(|dy: &[T]| s.each_state(|unit, own| dh[own].copy_from_slice(&dy[unit])));
        let (c, n) = (y[2].host::<T>(), y[3].host::<T>());
        (0..gamma.len()).for_each(|i| gamma[i] -= c[i] * dc[i] + n[i] * dn[i]);
        whole(cpu, gx, &x[0], |dx| {
            recurrent::backward(cpu, s.t, &s.packed(cpu, &matrices, true), dh, |t, dh, dz| {
                let states = &mut [&mut **dc, &mut **dn, &mut **gamma];
                cell_back(s, t, (saved, first, cotangent_of(&dy[0])), dh, states, dz, dx);
            });
            if let Some((dr, acc)) = gr.slot() {
                let to = Mat::new(s.k, s.k, s.k);
                weights_back(cpu, [s.b, s.t, s.d()], dx, [x[2].host(), h], (s.h, 4), (dr, to, acc));
            }
        });
        initial_back(cpu, s, x, [dh, dc, dn, gamma], initial);
    }
}

/// The gradients of h0, c0, n0, m0 and w0 from dh [H, B, K] and dc, dn, γ [B, D] before the first step.
fn initial_back<T: Math>(cpu: &Cpu, s: Size, x: In, [dh, dc, dn, gamma]: [&[T]; 4], dx: &mut [Grad]) {
    let ([c0, n0, w0], [gh, gc, gn, gm, gw]) = ([3, 4, 6].map(|i| x[i].host::<T>()), dx) else { return };
    // h does not depend on m: where m0 moves for fixed c0 and n0, c0 eᵐ and n0 eᵐ move.
    let dm = |i: usize| gamma[i] + c0[i] * dc[i] + n0[i] * dn[i];
    let dh_last = zeroed(gh.slot_or_scratch::<[T]>(cpu, &x[2]));
    s.each_state(|unit, own| put_all(&mut dh_last[unit], &dh[own], true));
    if let Some((d, acc)) = gc.slot() {
        put_all(d, dc, acc);
    }
    if let Some((d, acc)) = gn.slot() {
        put_all(d, dn, acc);
    }
    if let Some(d) = gm.slot::<[T]>().map(zeroed) {
        d.iter_mut().enumerate().for_each(|(i, d)| *d += dm(i));
    }
    // Before the first token nothing depends on w: c and n are zero.
    let of_w = |i: usize| if w0[i] > T::ZERO { dm(i) / w0[i] } else { T::ZERO };
    if let Some(d) = gw.slot::<[T]>().map(zeroed) {
        d.iter_mut().enumerate().for_each(|(i, d)| *d += of_w(i));
    }
}

impl Kernel for SlstmSequence {
    fn saves(&self, x: In) -> Outs {
        let (b, t, d4) = x[0].shape().split(1);
        Shape::from([b, t, if x[0].gpu().is_some() { 6 } else { SAVED }, d4 / 4]).into()
    }

    by_device!();
}
