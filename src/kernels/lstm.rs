//! The kernels of [`LstmSequence`]: steps of a few sequences at a time while W_hh is small ([`narrow`]), or steps of
//! all sequences together ([`wide`]), which is also how a device does it.
//!
//! Backwards in time, with dh the gradient of h_t from above plus the gradient that step t + 1 passes on, and dc
//! likewise:
//!
//! ```text
//! dc += dh o (1 − tanh² c_t);  dĩ = dc g i (1 − i);  df̃ = dc c_{t-1} f (1 − f);  dg̃ = dc i (1 − g²);
//! dõ = dh tanh c_t o (1 − o);  to step t − 1: dc f and W_hhᵀ (dĩ, df̃, dg̃, dõ)
//! ```
//!
//! dW_hh = Σ_{b,t} (dĩ, df̃, dg̃, dõ) h_{t-1}ᵀ is one product over all steps at the end.
//!
//! The CPU saves the factors of dc and dh ([`cell`]). A device saves c and the gates, each so that its distance from 1
//! has all its digits (`keep_sigmoid` and `keep_tanh` in prelude.cuh).

#[doc(hidden)]
pub mod cell;
mod device;
mod narrow;
mod wide;

use crate::{
    autograd::{Grad, In, Kernel, Outs, Value},
    kernels::{
        heads::Schedule,
        math::Math,
        matmul::{Mat, gemm},
        scan::{by_device, cotangent, put_all, zeros},
    },
    ops::lstm::LstmSequence,
    tensor::{Cpu, Cx, Real, Shape, Tensor},
};
use cell::SAVED;
use std::ops::Range;

pub(super) use device::{MODULE, before, cells, dz_target, kernels, persistent, together};

/// Up to so many channels, W_hh stays in the fastest cache and the sums of its products in registers.
const FEW: usize = 32;

/// Sizes: batch, steps, channels.
#[derive(Clone, Copy)]
struct Size {
    b: usize,
    t: usize,
    d: usize,
}

impl Size {
    fn of(x: In) -> Size {
        let (b, t, d4) = x[0].shape().split(1);
        Size { b, t, d: d4 / 4 }
    }

    /// Row (i, t) of a [B, T, width] slice.
    fn row(self, i: usize, t: usize, width: usize) -> Range<usize> {
        let at = (i * self.t + t) * width;
        at..at + width
    }

    /// Sequence i of a [B, width] slice.
    fn state(self, i: usize, width: usize) -> Range<usize> {
        i * width..(i + 1) * width
    }
}

impl<const NARROW: bool> Schedule<LstmSequence, NARROW> {
    fn forward_cpu<T: Math>(&self, cpu: &Cpu, x: In, y: &mut [Value]) {
        let [h, h_last, c_last, saved] = y else { return };
        let s = Size::of(x);
        let inputs = [0, 1].map(|i| x[i].host::<T>());
        // The last states serve as the running ones.
        let states = [h_last, c_last].map(|y| y.host_mut::<T>());
        states[0].copy_from_slice(x[2].host());
        states[1].copy_from_slice(x[3].host());
        let to = [saved, h].map(|y| y.host_mut::<T>());
        match s.b * s.t * s.d {
            0 => {}
            _ if NARROW => narrow::forward(cpu, s, inputs, to, states),
            _ => wide::forward(cpu, s, inputs, to, states),
        }
    }

    fn backward_cpu<T: Math>(&self, cpu: &Cpu, x: In, y: &[Value], dy: &[Option<Tensor>], dx: &mut [Grad]) {
        let ([gx, gw, gh0, gc0, ..], [dh_all, dh_last, dc_last, ..]) = (dx, dy) else { return };
        let s = Size::of(x);
        let ([w, h0], [h, saved]) = ([1, 2].map(|i| x[i].host::<T>()), [0, 3].map(|i| y[i].host::<T>()));
        let (z, zh, zc) = (zeros(cpu, dh_all, &y[0]), zeros(cpu, dh_last, &y[1]), zeros(cpu, dc_last, &y[2]));
        let (mut dh, mut dc) = (cpu.temp::<T>(s.b * s.d), cpu.temp::<T>(s.b * s.d));
        dh.copy_from_slice(cotangent(dh_last, &zh));
        dc.copy_from_slice(cotangent(dc_last, &zc));
        let (dx, acc) = gx.slot_or_scratch::<[T]>(cpu, &x[0]);
        // The gradient of the pre-activations is dx. Where dx is to be added to, the gradient has memory of its own.
        let mut own = cpu.temp::<T>(if acc { 4 * h.len() } else { 0 });
        let dz: &mut [T] = if acc { &mut own } else { &mut *dx };
        let (inputs, to) = ([w, saved, cotangent(dh_all, &z)], [&mut dh, &mut dc, &mut *dz]);
        match s.b * s.t * s.d {
            0 => {}
            _ if NARROW => narrow::backward(s, inputs, to),
            _ => wide::backward(cpu, s, inputs, to),
        }
        if let Some((dw, acc)) = gw.slot() {
            weights_back(cpu, s, dz, h0, h, dw, acc);
        }
        if let Some((d, acc)) = gh0.slot() {
            put_all(d, &dh, acc);
        }
        if let Some((d, acc)) = gc0.slot() {
            put_all(d, &dc, acc);
        }
        if acc {
            put_all(dx, &own, true);
        }
    }
}

/// dW_hh = dzᵀ (h_{t-1} of every step): one product over B T rows, in which each row of dz meets the row of h that lies
/// before it in memory. That row is h_{t-1}, except at t = 0, where it is the last of another sequence. So the rows of
/// dz at t = 0 are copied, multiplied with h0, set to zero for the large product, and put back.
fn weights_back<T: Real>(cpu: &Cpu, s: Size, dz: &mut [T], h0: &[T], h: &[T], dw: &mut [T], acc: bool) {
    let (rows, d) = (s.b * s.t, s.d);
    if d == 0 {
        return;
    }
    let mut first = cpu.temp::<T>(if rows == 0 { 0 } else { s.b * 4 * d });
    for (b, first) in first.chunks_exact_mut(4 * d).enumerate() {
        let dz = &mut dz[s.row(b, 0, 4 * d)];
        first.copy_from_slice(dz);
        dz.fill(T::ZERO);
    }
    let transposed = |rows| Mat::new(rows, 4 * d, 4 * d).t();
    let (some, later, mw) = (s.b.min(rows), rows.saturating_sub(1), Mat::new(4 * d, d, d));
    gemm(T::ONE, (&first, transposed(some)), (h0, Mat::new(some, d, d)), (dw, mw), acc);
    let dz_later = &dz[dz.len().min(4 * d)..];
    gemm(T::ONE, (dz_later, transposed(later)), (h, Mat::new(later, d, d)), (dw, mw), true);
    for (b, first) in first.chunks_exact(4 * d).enumerate() {
        dz[s.row(b, 0, 4 * d)].copy_from_slice(first);
    }
}

impl<const NARROW: bool> Kernel for Schedule<LstmSequence, NARROW> {
    fn name(&self) -> Option<&'static str> {
        Some(if NARROW { "lstm_sequence.narrow" } else { "lstm_sequence.wide" })
    }

    fn accepts(&self, x: In, cx: &Cx) -> bool {
        !NARROW || matches!(cx, Cx::Cpu(_)) && x[0].shape().last() <= 4 * FEW
    }

    fn saves(&self, x: In) -> Outs {
        let (b, t, d4) = x[0].shape().split(1);
        let d = d4 / 4;
        match x[0].gpu() {
            Some(_) => [x[0].shape(), Shape::from([b, t, d])].into(),
            // Laid out as `narrow` says, where that kernel runs.
            None => Shape::from([b, t, SAVED, d]).into(),
        }
    }

    by_device!();
}
