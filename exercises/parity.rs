//! A reflection that tracks parity.
//!
//! Is the number of ones so far even? A state that only fades or stays cannot
//! say (Grazzi et al. 2025, arXiv 2411.12537): each one must undo the one
//! before, so it has to flip something. The delta rule can, if β may be 2:
//!
//! ```text
//! S_t = (I − β_t k_t k_tᵀ) S_{t-1} + β_t k_t v_tᵀ
//! ```
//!
//! S is a vector of two numbers here, (1, 0) at the start, and o_t is its first
//! number. Set the weights by hand: k (of length 1), v and β (from 0 to 2) for
//! a zero and for a one, such that o is above 0 exactly where the number of
//! ones is even, and does not fade.

#![allow(unused)]

use exercises::{Checked, run, that};
use std::process::ExitCode;
use tapezoo::{
    autograd::{Gen, Tape},
    ops::delta::delta_rule,
    tensor::{DType, Tensor},
};

/// k, v and β for a bit.
fn write(bit: u8) -> ([f64; 2], f64, f64) {
    todo!("k, v and β for 0 and for 1")
}

fn main() -> ExitCode {
    run(&[
        ("keys are of length 1, and β is in 0..2", in_range),
        ("a single one, two, and zeros between them", || tracks(&[1, 1, 0, 0, 1, 0, 1, 1, 0])),
        ("100,000 random bits, in single precision", || tracks(&bits(100_000))),
        ("with half of β, from 0 to 1, the same weights fail", half_fails),
    ])
}

fn bits(n: usize) -> Vec<u8> {
    let g = &mut Gen::new(18);
    (0..n).map(|_| u8::from(g.coin())).collect()
}

/// o after each bit, with β times `factor`.
fn read(bits: &[u8], factor: f64) -> Vec<f64> {
    let (tape, t) = (Tape::default(), bits.len());
    let constant = |x: Vec<f64>, shape: &[usize]| tape.constant(&Tensor::from_vec(x, shape).cast(DType::F32));
    let each = |f: &dyn Fn(([f64; 2], f64, f64)) -> Vec<f64>| bits.iter().flat_map(|&bit| f(write(bit))).collect();
    let q = constant([1.0, 0.0].repeat(t), &[1, t, 1, 2]);
    let k = constant(each(&|w| w.0.to_vec()), &[1, t, 1, 2]);
    let v = constant(each(&|w| vec![w.1]), &[1, t, 1, 1]);
    let beta = constant(each(&|w| vec![w.2 * factor]), &[1, t, 1]);
    let (o, _) = delta_rule(q, k, v, beta, constant(vec![1.0, 0.0], &[1, 1, 2, 1]), 1.0, 64);
    o.value().to_f64()
}

fn in_range() -> Checked {
    for bit in [0, 1] {
        let (k, _, beta) = write(bit);
        let length = k[0].hypot(k[1]);
        that((length - 1.0).abs() < 1e-9, || format!("for a {bit} the key {k:?} is {length:.3} long"))?;
        that((0.0..=2.0).contains(&beta), || format!("for a {bit}, β is {beta}"))?;
    }
    Ok(())
}

fn tracks(bits: &[u8]) -> Checked {
    let mut ones = 0;
    for (i, (&bit, o)) in bits.iter().zip(read(bits, 1.0)).enumerate() {
        ones += usize::from(bit);
        that((o > 0.0) == (ones % 2 == 0), || {
            let seen: String = bits[i.saturating_sub(20)..=i].iter().map(u8::to_string).collect();
            let begun = if i > 20 { "…" } else { "" };
            format!("after {begun}{seen}, {ones} ones in {} bits: o is {o:.3}", i + 1)
        })?;
        // A layer behind this one could not tell the sign of a tiny number from nothing.
        that(o.abs() > 1e-3, || format!("after {} bits o is {o:.1e}: it fades", i + 1))?;
    }
    Ok(())
}

fn half_fails() -> Checked {
    let bits = bits(1000);
    let mut odd = false;
    let right = bits.iter().zip(read(&bits, 0.5)).filter(|&(&bit, o)| {
        odd ^= bit == 1;
        (o > 0.0) != odd
    });
    let right = right.count();
    that(right < 600, || format!("right at {right} of 1000 bits: expected about half"))
}
