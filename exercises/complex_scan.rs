//! The recurrence of the LRU: complex numbers.
//!
//! A real factor makes a state grow, fade or flip. A complex one, λ = r e^(iθ),
//! also turns it, by θ at each step (Orvieto et al. 2023, arXiv 2303.06349).
//!
//! ```text
//! h_t = λ h_{t-1} + x_t
//! ```
//!
//! There are no complex tensors here: λ is (lr, li), x_t is (xr, xi) and h is
//! (hr, hi), real and imaginary part.

#![allow(unused)]

use exercises::{Checked, Inputs, agree, golden, run, that};
use std::process::ExitCode;
use tapezoo::{
    autograd::{Gen, Tape, Var},
    ops::{
        scan::lru_scan,
        words::{over_time, token},
    },
    tensor::{DType, Tensor},
};

/// The parts of all h and of the last, of λ `[D]`, x [B, T, D] and h0 [B, D], in parts each.
fn scan<'t>(x: &[Var<'t>]) -> Vec<Var<'t>> {
    let ([_, t, d], [lr, li], mut hr, mut hi) = (x[2].dims(), [x[0], x[1]], x[4], x[5]);
    let none = Var::concat(&[x[2], x[3]], 2);
    let all = over_time(t, none, |t| {
        let [xr, xi] = [x[2], x[3]].map(|x| token(x, t));
        todo!("hr and hi");
        Var::concat(&[hr, hi], 1)
    });
    vec![all.narrow(2, 0, d), all.narrow(2, d, d), hr, hi]
}

fn main() -> ExitCode {
    run(&[
        ("i² = −1: four quarter turns", quarter_turns),
        ("values, states and gradients are those of the op", as_the_op),
        ("with |λ| = 1 nothing is lost in 1000 steps", turns),
        ("PyTorch has the same numbers", as_torch),
    ])
}

/// h at each of T steps, from 1, without input.
fn turned(theta: f64, t: usize) -> Vec<(f64, f64)> {
    let tape = Tape::default();
    let number = |x: f64| tape.constant(&Tensor::from_vec(vec![x], [1]));
    let (one, none) = (number(1.0).reshape([1, 1]), tape.full([1, t, 1], DType::F64, 0.0));
    let y = scan(&[number(theta.cos()), number(theta.sin()), none, none, one, number(0.0).reshape([1, 1])]);
    y[0].value().to_f64().into_iter().zip(y[1].value().to_f64()).collect()
}

fn quarter_turns() -> Checked {
    let expected = [(0.0, 1.0), (-1.0, 0.0), (0.0, -1.0), (1.0, 0.0)];
    for (t, (h, expected)) in turned(std::f64::consts::FRAC_PI_2, 4).into_iter().zip(expected).enumerate() {
        that((h.0 - expected.0).abs() + (h.1 - expected.1).abs() < 1e-12, || {
            format!("after {} turns h should be {expected:?}, and is ({:.3}, {:.3})", t + 1, h.0, h.1)
        })?;
    }
    Ok(())
}

fn as_the_op() -> Checked {
    let g = &mut Gen::new(15);
    for [b, t, d] in [[1, 1, 1], [2, 0, 3], [2, 6, 3]] {
        let inputs: Inputs = vec![
            (("lr", "[D]"), g.range([d], -0.7, 0.7)),
            (("li", "[D]"), g.range([d], -0.7, 0.7)),
            (("xr", "[B, T, D]"), g.normal([b, t, d])),
            (("xi", "[B, T, D]"), g.normal([b, t, d])),
            (("hr0", "[B, D]"), g.normal([b, d])),
            (("hi0", "[B, D]"), g.normal([b, d])),
        ];
        let outputs = [("hr", "[B, T, D]"), ("hi", "[B, T, D]"), ("last hr", "[B, D]"), ("last hi", "[B, D]")];
        agree(&inputs, &outputs, &|x| scan(x), &|x| {
            let (h, last) = lru_scan((x[0], x[1]), (x[2], x[3]), (x[4], x[5]), 4);
            vec![h.0, h.1, last.0, last.1]
        })?;
    }
    Ok(())
}

fn turns() -> Checked {
    let (theta, t) = (0.3, 1000);
    let h = turned(theta, t)[t - 1];
    let (angle, size) = (theta * t as f64, h.0.hypot(h.1));
    that((size - 1.0).abs() < 1e-10 && (h.0 - angle.cos()).abs() < 1e-9, || {
        format!("h should be ({:.6}, {:.6}), and is ({:.6}, {:.6})", angle.cos(), angle.sin(), h.0, h.1)
    })
}

fn as_torch() -> Checked {
    let inputs = ["lambda_re", "lambda_im", "x_re", "x_im"];
    golden("lru_scan_0.safetensors", &inputs, &[("h_re", "[B, T, D]"), ("h_im", "[B, T, D]")], &|x| {
        let ([b, _, d], tape) = (x[2].dims(), x[0].tape());
        let zero = tape.full([b, d], DType::F64, 0.0);
        scan(&[x[0], x[1], x[2], x[3], zero, zero])[..2].to_vec()
    })
}
