//! The normaliser of the mLSTM.
//!
//! An mLSTM's memory C and its normaliser n are kept times exp(−m), so that
//! exponential gates do not overflow. What is read is divided by n·q, or by 1
//! where that is small; and 1, times exp(−m) as all else, is exp(−m).
//!
//! ```text
//! h = Cᵀq / (max(|n·q|, e^(−m)) + ε)
//! ```
//!
//! Where m is −800, e^(−m) is infinite, and h should be what it is: a small
//! number or 0, with a gradient that is not 0 · ∞ = NaN. Multiply numerator and
//! denominator by a factor such that no exponential is larger than 1.
//!
//! `num` is Cᵀq [B, H, V]; `den`, which is n·q, and m are [B, H, 1]. Give h,
//! and the divisor of the formula, which may be infinite. `maximum(&[a, b])`
//! is the larger, element by element, and `m.tape().full(m.shape(), m.dtype(),
//! 0.0)` is 0.

#![allow(unused)]

use exercises::{Checked, Inputs, agree, list, run, same, that};
use std::process::ExitCode;
use tapezoo::{
    autograd::{Gen, Tape, Var},
    ops::{mlstm, words::maximum},
    tensor::{DType, Tensor},
};

fn read<'t>(num: Var<'t>, den: Var<'t>, m: Var<'t>, eps: f64) -> (Var<'t>, Var<'t>) {
    todo!("h and its divisor")
}

fn main() -> ExitCode {
    run(&[
        ("m = 0: the divisor is |n·q|, but 1 at least", at_zero),
        ("any m from −3 to 3: values and gradients", || [-3.0, -0.5, 0.0, 0.5, 3.0].into_iter().try_for_each(check)),
        ("the divisor is that of the formula", || [-3.0, 0.0, 3.0].into_iter().try_for_each(divisor)),
        ("m = 800: e^(−m) is 0, and nothing else", || check(800.0)),
        ("m = −800: e^(−m) is infinite, and h and its gradients are not NaN", far_below),
    ])
}

fn at_zero() -> Checked {
    for (num, den, expected) in [(6.0, 3.0, 2.0), (6.0, -3.0, 2.0), (6.0, 0.5, 6.0)] {
        let tape = Tape::default();
        let number = |x: f64| tape.constant(&Tensor::from_vec(vec![x], [1, 1, 1]));
        let h = read(number(num), number(den), number(0.0), 0.0).0.value().item();
        that((h - expected).abs() < 1e-12, || {
            format!("of Cᵀq = {num} and n·q = {den}: h should be {expected}, and is {h}")
        })?;
    }
    Ok(())
}

/// That h and its gradients are those of the project's own read.
fn check(m: f64) -> Checked {
    let (g, [b, h, v]) = (&mut Gen::new(12), [2, 2, 3]);
    let inputs: Inputs = vec![
        (("num", "[B, H, V]"), g.normal([b, h, v])),
        (("den", "[B, H, 1]"), g.normal([b, h, 1])),
        (("m", "[B, H, 1]"), g.tensor([b, h, 1], |g| m + 0.1 * g.gauss())),
    ];
    agree(&inputs, &[("h", "[B, H, V]")], &|x| vec![read(x[0], x[1], x[2], 0.1).0], &|x| {
        vec![mlstm::read(x[0], x[1], x[2], 0.1).0]
    })
    .map_err(|why| format!("m near {m}: {why}"))
}

/// That the divisor is that of the formula.
fn divisor(m: f64) -> Checked {
    let (g, tape) = (&mut Gen::new(13), Tape::default());
    let [num, den] = [3, 1].map(|n| tape.leaf(&g.normal([2, 2, n])));
    let m = tape.full([2, 2, 1], DType::F64, m);
    let expected = maximum(&[den, -den, (-m).exp()]) + 0.1;
    same(("the divisor", "[B, H, 1]"), &read(num, den, m, 0.1).1.value(), &expected.value(), 1e-9)
}

fn far_below() -> Checked {
    let tape = Tape::default();
    let [num, den, m] = [2.0, 0.5, -800.0].map(|x: f64| tape.leaf(&Tensor::from_vec(vec![x], [1, 1, 1])));
    let h = read(num, den, m, 1e-6).0;
    tape.backward(h.sum());
    for (name, value) in [
        ("h", Some(h.value())),
        ("the gradient of Cᵀq", num.grad()),
        ("the gradient of n·q", den.grad()),
        ("the gradient of m", m.grad()),
    ] {
        let value = value.map_or(0.0, |x| x.item());
        that(value.abs() < 1e-300, || format!("{name} should be 0, and is {value}"))?;
    }
    // A large Cᵀq has an h that is no 0, though e^m is one.
    let large = read(tape.full([1, 1, 1], DType::F64, 1e200), den, m, 1e-6).0.value().item().ln();
    let expected = 200.0 * std::f64::consts::LN_10 - 800.0;
    that((large - expected).abs() < 1e-6, || {
        format!("of Cᵀq = 1e200 ln h should be {expected:.3}, and is {large:.3}")
    })?;
    check(-800.0)
}
