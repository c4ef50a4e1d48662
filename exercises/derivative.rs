//! A derivative by hand.
//!
//! Backpropagation knows the derivative of every op on the tape, and somebody
//! wrote each of them by hand. An op of one number is a function f and its
//! slope f′: where dy comes in from above, dx = f′(x) dy goes on below.
//!
//! ```text
//! SiLU(x) = x σ(x)      σ(x) = 1 / (1 + e⁻ˣ)
//! ```

#![allow(unused)]

use exercises::{Checked, close, list, run, that};
use std::process::ExitCode;
use tapezoo::autograd::{Gen, Tape};

/// σ(x)
fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// The derivative of x σ(x) at x.
fn slope(x: f64) -> f64 {
    todo!("the derivative of x σ(x)")
}

fn main() -> ExitCode {
    run(&[
        ("it is what finite differences say", finite_differences),
        ("it is the gradient that the tape computes", on_the_tape),
        ("far from zero it is 0 or 1, and never NaN", far_from_zero),
    ])
}

fn finite_differences() -> Checked {
    let (f, h, g) = (|x: f64| x * sigmoid(x), 1e-5, &mut Gen::new(1));
    for x in (0..100).map(|_| g.uniform(-6.0, 6.0)).chain([0.0]) {
        let (numeric, by_hand) = ((f(x + h) - f(x - h)) / (2.0 * h), slope(x));
        that((numeric - by_hand).abs() < 1e-8, || {
            format!("at x = {x:.3}: SiLU rises by {numeric:.6} for 1, and slope(x) is {by_hand:.6}")
        })?;
    }
    Ok(())
}

fn on_the_tape() -> Checked {
    for x in [-3.0, -1.0, 0.0, 0.5, 4.0] {
        let tape = Tape::default();
        let leaf = tape.leaf(&list(&[x]));
        tape.backward(leaf.silu());
        close(&format!("the slope at {x}"), slope(x), leaf.grad().map_or(f64::NAN, |d| d.item()))?;
    }
    Ok(())
}

fn far_from_zero() -> Checked {
    for (x, expected) in [(800.0, 1.0), (-800.0, 0.0), (1e300, 1.0), (-1e300, 0.0)] {
        close(&format!("the slope at {x:e}"), slope(x), expected)?;
    }
    Ok(())
}
