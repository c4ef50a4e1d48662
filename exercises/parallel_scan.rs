//! An associative scan.
//!
//! h_t = a_t h_{t-1} + b_t looks as if each step had to wait for the one
//! before. But a step is a map h ↦ a h + b, and two maps, one after the other,
//! are such a map again:
//!
//! ```text
//! h ↦ a₂ (a₁ h + b₁) + b₂ = (a₂ a₁) h + (a₂ b₁ + b₂)
//! ```
//!
//! So all steps are composed in ⌈log₂ T⌉ rounds (Hillis and Steele 1986).
//! Before the round of width s, element t holds the composition of the steps
//! t−s+1 … t. The round composes it with what element t − s holds, if there is
//! one, whose steps come first. Write the rounds: at the end a and b [B, T, D]
//! hold, for each t, the composition of all steps up to t.
//!
//! `x.narrow(1, from, n)` takes n steps from `from` on, and
//! `Var::concat(&[x, y], 1)` puts them one behind the other.

#![allow(unused)]

use exercises::{Checked, Inputs, agree, golden, run, that};
use std::process::ExitCode;
use tapezoo::{
    autograd::{Gen, Tape, Var},
    ops::scan::linear_scan,
    tensor::Tensor,
};

fn compositions<'t>(a: Var<'t>, b: Var<'t>) -> (Var<'t>, Var<'t>) {
    let ([_, steps, _], mut a, mut b) = (b.dims(), a, b);
    let mut s = 1;
    todo!("rounds of width 1, 2, 4, …");
    (a, b)
}

fn main() -> ExitCode {
    run(&[
        ("a single step stays as it is", || check(1)),
        ("two steps: one composition", || check(2)),
        ("three and four steps: two rounds", || check(3).and_then(|()| check(4))),
        ("any number of steps, with gradients", || [0, 5, 7, 8, 9, 16, 33].into_iter().try_for_each(check)),
        ("it takes rounds, not steps", few_rounds),
        ("PyTorch has the same numbers", as_torch),
    ])
}

/// All h, of a, b [B, T, D] and h0 [B, D].
fn scan<'t>(x: &[Var<'t>]) -> Vec<Var<'t>> {
    let [n, _, d] = x[0].dims();
    let (a, b) = compositions(x[0], x[1]);
    vec![a * x[2].reshape([n, 1, d]) + b]
}

fn check(t: usize) -> Checked {
    let (g, [b, d]) = (&mut Gen::new(17), [2, 3]);
    let inputs: Inputs = vec![
        (("a", "[B, T, D]"), g.range([b, t, d], -1.2, 1.2)),
        (("b", "[B, T, D]"), g.normal([b, t, d])),
        (("h0", "[B, D]"), g.normal([b, d])),
    ];
    agree(&inputs, &[("h", "[B, T, D]")], &|x| scan(x), &|x| vec![linear_scan(x[0], x[1], x[2], 4).0])
        .map_err(|why| format!("T = {t}: {why}"))
}

fn few_rounds() -> Checked {
    let ops = |t: usize| {
        let tape = Tape::default();
        // A tape records nothing of a constant, which needs no gradient.
        let x = || tape.leaf(&Tensor::from_vec(vec![0.5; t], [1, t, 1]));
        compositions(x(), x());
        tape.len()
    };
    let (short, long) = (ops(64), ops(4096));
    that(short > 0 && long <= 3 * short, || {
        format!("64 steps took {short} ops and 4096 took {long}: expected twice as many, log₂ 4096 = 2 log₂ 64")
    })
}

fn as_torch() -> Checked {
    golden("linear_scan_0.safetensors", &["a", "b", "h0"], &[("h", "[B, T, D]")], &|x| scan(x))
}
