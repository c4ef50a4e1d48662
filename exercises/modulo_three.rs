//! Counting modulo three by a rotation.
//!
//! One reflection flips, which counts modulo two. Two reflections, one after
//! the other, turn: by twice the angle between their keys. A DeltaProduct takes
//! two steps of the delta rule for each token (Siems et al. 2025, arXiv
//! 2502.10297).
//!
//! ```text
//! S ← (I − 2 k₂ k₂ᵀ) (I − 2 k₁ k₁ᵀ) S      at a one; a zero leaves S alone
//! ```
//!
//! S is a vector of two numbers, (1, 0) at the start. Choose the two keys, of
//! length 1, such that S turns by a third of a circle, to either side.

#![allow(unused)]

use exercises::{Checked, run, that};
use std::{f64::consts::TAU, process::ExitCode};
use tapezoo::{
    autograd::{Gen, Tape},
    ops::delta::delta_rule,
    tensor::Tensor,
};

/// k₁ and k₂.
fn keys() -> [[f64; 2]; 2] {
    todo!("two keys of length 1")
}

fn main() -> ExitCode {
    run(&[
        ("keys are of length 1", of_length_one),
        ("three ones are a whole turn", whole_turn),
        ("one and two ones are not: three states can be told apart", told_apart),
        ("the count of 10,000 random bits, modulo three", counts),
    ])
}

fn of_length_one() -> Checked {
    for k in keys() {
        let length = k[0].hypot(k[1]);
        that((length - 1.0).abs() < 1e-9, || format!("the key {k:?} is {length:.3} long"))?;
    }
    Ok(())
}

/// S after each bit.
fn states(bits: &[u8]) -> Vec<[f64; 2]> {
    let (tape, t) = (Tape::default(), bits.len());
    let constant = |x: Vec<f64>, shape: &[usize]| tape.constant(&Tensor::from_vec(x, shape));
    let k = constant(keys().concat().repeat(t), &[1, 2 * t, 1, 2]);
    let beta = bits.iter().flat_map(|&bit| [2.0 * f64::from(bit); 2]).collect();
    let (v, beta) = (constant(vec![0.0; 2 * t], &[1, 2 * t, 1, 1]), constant(beta, &[1, 2 * t, 1]));
    let read = |q: [f64; 2]| {
        let s0 = constant(vec![1.0, 0.0], &[1, 1, 2, 1]);
        let (o, _) = delta_rule(constant(q.repeat(2 * t), &[1, 2 * t, 1, 2]), k, v, beta, s0, 1.0, 64);
        o.value().to_f64()
    };
    let (x, y) = (read([1.0, 0.0]), read([0.0, 1.0]));
    (0..t).map(|i| [x[2 * i + 1], y[2 * i + 1]]).collect()
}

/// By how much S is turned, from 0 to 360 degrees.
fn degrees(s: [f64; 2]) -> f64 {
    s[1].atan2(s[0]).rem_euclid(TAU) * 360.0 / TAU
}

fn whole_turn() -> Checked {
    let s = states(&[1, 1, 1])[2];
    that((s[0] - 1.0).abs() < 1e-9, || format!("after three ones S should be (1, 0), and is {s:.3?}"))
}

fn told_apart() -> Checked {
    let turned: Vec<f64> = states(&[1, 0, 1]).into_iter().map(degrees).collect();
    that((turned[0] - turned[1]).abs() < 1e-9, || {
        format!("a zero turned S from {:.1}° to {:.1}°", turned[0], turned[1])
    })?;
    let thirds = [120.0, 240.0].iter().all(|third| turned.iter().any(|x| (x - third).abs() < 1e-6));
    that(thirds, || {
        format!("after one and two ones S is turned by {:.1}° and {:.1}°: expected thirds", turned[0], turned[2])
    })
}

fn counts() -> Checked {
    let g = &mut Gen::new(19);
    let bits: Vec<u8> = (0..10_000).map(|_| u8::from(g.coin())).collect();
    let once = degrees(states(&[1])[0]);
    let mut ones = 0;
    for (i, (&bit, s)) in bits.iter().zip(states(&bits)).enumerate() {
        ones += usize::from(bit);
        let (turned, expected) = (degrees(s), (once * (ones % 3) as f64) % 360.0);
        let off = (turned - expected).abs();
        that(off.min(360.0 - off) < 1.0, || {
            format!("after {ones} ones in {} bits S is turned by {turned:.1}°, not {expected:.1}°", i + 1)
        })?;
    }
    Ok(())
}
