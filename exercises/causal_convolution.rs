//! A causal convolution and its window.
//!
//! Mamba, DeltaNet and their kin mix each channel with its last few inputs
//! first. A sequence that comes in pieces needs the W − 1 inputs before the
//! piece: the window, zeros at the start, which is part of the model's state.
//!
//! ```text
//! y_t = Σ_j w_j ⊙ x_{t−W+1+j}      j = 0 … W − 1: the last w meets x_t
//! ```
//!
//! x is [B, T, D], w is [D, W], the window is [B, W − 1, D]. Give y [B, T, D],
//! and the window for what comes after x. T may be less than W − 1, or 0.

#![allow(unused)]

use exercises::{Checked, Inputs, agree, golden, run};
use std::process::ExitCode;
use tapezoo::{
    autograd::{Gen, Var},
    models::remembered,
    tensor::DType,
};

fn convolve<'t>(x: Var<'t>, w: Var<'t>, window: Var<'t>) -> (Var<'t>, Var<'t>) {
    let ([_, t, d], [_, taps]) = (x.dims(), w.dims());
    todo!("y, and the next window")
}

fn main() -> ExitCode {
    run(&[
        ("a single tap: no window at all", || check([2, 3, 2, 1], 3)),
        ("four taps: outputs, windows and gradients", || check([2, 6, 3, 4], 6)),
        ("in pieces it is the whole", || [1, 2, 3, 4, 5].into_iter().try_for_each(|cut| check([2, 6, 3, 4], cut))),
        ("pieces that are shorter than the window, and empty ones", short),
        ("PyTorch has the same numbers", as_torch),
    ])
}

/// That T steps, in two pieces of which the first has `cut`, are the op on all of them.
fn check([b, t, d, taps]: [usize; 4], cut: usize) -> Checked {
    let g = &mut Gen::new(22);
    let inputs: Inputs = vec![
        (("x", "[B, T, D]"), g.normal([b, t, d])),
        (("w", "[D, W]"), g.normal([d, taps])),
        (("window", "[B, W - 1, D]"), g.normal([b, taps - 1, d])),
    ];
    agree(
        &inputs,
        &[("y", "[B, T, D]"), ("window", "[B, W - 1, D]")],
        &|x| {
            if cut == t {
                let (y, window) = convolve(x[0], x[1], x[2]);
                return vec![y, window];
            }
            let (first, window) = convolve(x[0].narrow(1, 0, cut), x[1], x[2]);
            let (second, window) = convolve(x[0].narrow(1, cut, t - cut), x[1], window);
            vec![Var::concat(&[first, second], 1), window]
        },
        &|x| vec![x[0].causal_conv1d(x[1], None, x[2]), remembered(x[2], x[0])],
    )
    .map_err(|why| format!("T = {t}, W = {taps}, cut after {cut}: {why}"))
}

fn short() -> Checked {
    [0, 1, 2].into_iter().try_for_each(|cut| check([1, 2, 2, 5], cut))
}

fn as_torch() -> Checked {
    golden("causal_conv1d.safetensors", &["x", "w", "b"], &[("y", "[B, T, D]")], &|x| {
        let ([b, _, d], [_, taps]) = (x[0].dims(), x[1].dims());
        let zeros = x[0].tape().full([b, taps - 1, d], DType::F64, 0.0);
        vec![convolve(x[0], x[1], zeros).0 + x[2]]
    })
}
