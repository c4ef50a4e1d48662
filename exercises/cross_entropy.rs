//! The gradient of softmax cross-entropy.
//!
//! A model's last layer gives a logit x_j for each class. The loss is −ln of
//! the probability of the right one, and its gradient by the logits is short
//! enough to be the first that one should know by heart.
//!
//! ```text
//! p_j = e^x_j / Σ e^x_i      loss = −ln p_target
//! ```

#![allow(unused)]

use exercises::{Checked, list, run, same, that};
use std::process::ExitCode;
use tapezoo::{
    autograd::{Gen, Tape},
    tensor::Tensor,
};

/// ∂loss/∂x_j of each logit.
fn gradient(logits: &[f64], target: usize) -> Vec<f64> {
    todo!("the gradient of −ln softmax(x) at the target")
}

fn main() -> ExitCode {
    run(&[
        ("two equal logits: each has half of the probability", two_equal),
        ("a gradient sums to 0: only differences of logits count", sums_to_zero),
        ("it is the gradient that the tape computes", on_the_tape),
        ("logits of 1000 do not overflow, and those of −∞ do not count", extremes),
    ])
}

fn two_equal() -> Checked {
    same(("dx", "[C]"), &list(&gradient(&[0.0, 0.0], 1)), &list(&[0.5, -0.5]), 1e-12)
}

fn sums_to_zero() -> Checked {
    let logits = [0.3, -1.2, 2.5];
    let sum: f64 = gradient(&logits, 0).iter().sum();
    that(sum.abs() < 1e-12, || format!("of the logits {logits:?} it sums to {sum:.6}"))
}

/// That the gradient is that of the op.
fn as_the_op(logits: &[f64], target: usize) -> Checked {
    let tape = Tape::default();
    let x = tape.leaf(&Tensor::from_vec(logits.to_vec(), [1, logits.len()]));
    tape.backward(x.cross_entropy(tape.constant(&Tensor::from_vec(vec![target as i32], [1])), -1));
    let expected = x.grad().map_or(vec![], |d| d.to_f64());
    same(("dx", "[C]"), &list(&gradient(logits, target)), &list(&expected), 1e-9)
        .map_err(|why| format!("logits {logits:.2?}, target {target}: {why}"))
}

fn on_the_tape() -> Checked {
    let g = &mut Gen::new(2);
    for classes in [1, 2, 3, 10, 50] {
        as_the_op(&g.normal([classes]).to_f64(), g.below(classes))?;
    }
    Ok(())
}

fn extremes() -> Checked {
    as_the_op(&[1000.0, 999.0, -1000.0], 1)?;
    as_the_op(&[-1000.0, -1001.0], 0)?;
    as_the_op(&[-1000.0, 1000.0], 0)?;
    as_the_op(&[0.5, f64::NEG_INFINITY, 1.0], 2)
}
