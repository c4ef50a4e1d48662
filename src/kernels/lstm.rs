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
//! dW_hh = Σ_{b,t} (dĩ, df̃, dg̃, dõ) h_{t-1}ᵀ is one product over all steps at the end ([`weights_back`]).
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
        matmul::Mat,
        recurrent::{weights_back, whole},
        scan::{by_device, cotangent, sequences, sequences_back, zeros},
    },
    ops::lstm::LstmSequence,
    tensor::{Cpu, Cx, Shape, Tensor},
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
        let (s, inputs) = (Size::of(x), [0, 1].map(|i| x[i].host::<T>()));
        let (saved, h, first) = (saved.host_mut::<T>(), h.host_mut::<T>(), [2, 3].map(|i| x[i].host::<T>()));
        sequences(s.b * s.d, first, [h_last, c_last].map(|y| y.host_mut()), |_, states| match NARROW {
            true => narrow::forward(cpu, s, inputs, [&mut *saved, &mut *h], states),
            false => wide::forward(cpu, s, inputs, [&mut *saved, &mut *h], states),
        });
    }

    fn backward_cpu<T: Math>(&self, cpu: &Cpu, x: In, y: &[Value], dy: &[Option<Tensor>], dx: &mut [Grad]) {
        let ([gx, gw, gh0, gc0, ..], [dh_all, dh_last, dc_last, ..]) = (dx, dy) else { return };
        let s = Size::of(x);
        let ([w, h0], [h, saved]) = ([1, 2].map(|i| x[i].host::<T>()), [0, 3].map(|i| y[i].host::<T>()));
        let z = zeros(cpu, dh_all, &y[0]);
        let inputs = [w, saved, cotangent(dh_all, &z)];
        whole(cpu, gx, &x[0], |dz| {
            sequences_back(cpu, (s.b * s.d, &x[2]), [dh_last, dc_last], [gh0, gc0], |_, [dh, dc]| match NARROW {
                true => narrow::backward(s, inputs, [dh, dc, &mut *dz]),
                false => wide::backward(cpu, s, inputs, [dh, dc, &mut *dz]),
            });
            if let Some((dw, acc)) = gw.slot() {
                let to = Mat::new(4 * s.d, s.d, s.d).t();
                weights_back(cpu, [s.b, s.t, s.d], dz, [h0, h], (1, 1), (dw, to, acc));
            }
        });
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
