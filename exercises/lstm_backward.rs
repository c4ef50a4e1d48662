//! An LSTM's backward pass, by hand.
//!
//! ```text
//! i, f, o = σ(ĩ, f̃, õ)      g = tanh g̃
//! c_t = f c_{t-1} + i g      u = tanh c_t      h_t = o u
//! ```
//!
//! dh comes from the layer above and from the next step, dc from the next step
//! alone. Both lead to the gradients of ĩ, f̃, g̃, õ and of c_{t-1}.
//!
//! A saturated gate is near 1, and 1 − σ(x) is then a difference of two equal
//! numbers: no digit is left of it. But 1 − σ(x) is σ(−x), and 1 − tanh²(x) is
//! 1 / cosh²(x).

#![allow(unused)]

use exercises::{Checked, close, run};
use std::process::ExitCode;
use tapezoo::{
    autograd::{Gen, Tape},
    ops::words::split,
    tensor::Tensor,
};

/// σ(x)
fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// The gradients of [ĩ, f̃, g̃, õ], and that of c_{t-1}, from `z` = [ĩ, f̃, g̃, õ], `before` = c_{t-1}, and dh and dc.
fn backward(z: [f64; 4], before: f64, dh: f64, dc: f64) -> ([f64; 4], f64) {
    let [i, f, o] = [z[0], z[1], z[3]].map(sigmoid);
    let g = z[2].tanh();
    let c = f * before + i * g;
    todo!("the gradients of ĩ, f̃, g̃, õ and c_{{t-1}}")
}

fn main() -> ExitCode {
    run(&[
        ("nothing is read (dh = 0): the gradients that dc has", || random(0.0, 1.0)),
        ("dh alone: it goes to o, and by tanh to c", || random(1.0, 0.0)),
        ("both at once", || random(0.7, -0.4)),
        ("a gate that is nearly 1 keeps the digits of its slope", saturated),
    ])
}

/// That the gradients are those of the tape.
fn check(z: [f64; 4], before: f64, dh: f64, dc: f64) -> Checked {
    let tape = Tape::default();
    let leaf = |x: &[f64]| tape.leaf(&Tensor::from_vec(x.to_vec(), [1, x.len()]));
    let (x, c0) = (leaf(&z), leaf(&[before]));
    let [i, f, g, o] = split(x);
    let c = f.sigmoid() * c0 + i.sigmoid() * g.tanh();
    let number = |x: f64| Tensor::from_vec(vec![x], [1, 1]);
    tape.backward_from([(o.sigmoid() * c.tanh(), number(dh)), (c, number(dc))]);
    let expected = [x, c0].map(|x| x.grad().map_or(vec![0.0; 4], |d| d.to_f64())).concat();
    let (dz, d_before) = backward(z, before, dh, dc);
    for (i, name) in ["dĩ", "df̃", "dg̃", "dõ", "dc_{t-1}"].into_iter().enumerate() {
        close(name, dz.get(i).copied().unwrap_or(d_before), expected[i])
            .map_err(|why| format!("z = {z:.2?}, c_(t-1) = {before:.2}, dh = {dh}, dc = {dc}:\n{why}"))?;
    }
    Ok(())
}

fn random(dh: f64, dc: f64) -> Checked {
    let g = &mut Gen::new(14);
    for _ in 0..20 {
        check([(); 4].map(|()| 2.0 * g.gauss()), g.gauss(), dh, dc)?;
    }
    Ok(())
}

fn saturated() -> Checked {
    check([40.0, 0.3, 0.5, 1.0], 0.2, 0.5, 1.0)?;
    check([0.1, 40.0, 0.5, 40.0], 0.2, 0.5, 1.0)?;
    check([0.1, 0.4, 20.0, 1.0], 0.2, 0.5, 1.0)
}
