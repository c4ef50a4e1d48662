//! A counter by a linear recurrence.
//!
//! The smallest recurrent model has one number for a state, and each token
//! gives it two: what the state is multiplied by, and what is added.
//!
//! ```text
//! h_t = a_t h_{t-1} + b_t      h_0 = 0
//! ```
//!
//! Tokens are '1', '.' and 'r'. Choose a and b such that h_t is the number of
//! '1' since the last 'r'.

#![allow(unused)]

use exercises::{Checked, run, that};
use std::process::ExitCode;
use tapezoo::{
    autograd::{Gen, Tape, Var},
    ops::scan::{linear_scan, linear_scan_parallel},
    tensor::{DType, Tensor},
};

/// a and b for a token.
fn gates(token: char) -> (f64, f64) {
    todo!("a and b for '1', '.' and 'r'")
}

fn main() -> ExitCode {
    run(&[
        ("it counts", counts),
        ("it begins anew after an r", begins_anew),
        ("it is exact for 100,000 tokens in single precision", exact),
        ("an associative scan counts alike: all steps at once", in_parallel),
    ])
}

/// That h is the count at every token.
fn tracks(tokens: &str, parallel: bool) -> Checked {
    let gates: Vec<(f64, f64)> = tokens.chars().map(gates).collect();
    let (tape, t) = (Tape::default(), gates.len());
    let column = |f: fn(&(f64, f64)) -> f64| {
        tape.constant(&Tensor::from_vec(gates.iter().map(f).collect::<Vec<f64>>(), [1, t, 1]).cast(DType::F32))
    };
    let (a, b, h0) = (column(|g| g.0), column(|g| g.1), tape.full([1, 1], DType::F32, 0.0));
    let (h, _) = if parallel { linear_scan_parallel(a, b, h0) } else { linear_scan(a, b, h0, 64) };
    let mut count = 0.0;
    for ((i, token), h) in tokens.chars().enumerate().zip(h.value().to_f64()) {
        match token {
            '1' => count += 1.0,
            'r' => count = 0.0,
            _ => {}
        }
        let from = i.saturating_sub(20);
        let begun = if from > 0 { "…" } else { "" };
        that(h == count, || format!("after \"{begun}{}\": h is {h}, and the count is {count}", &tokens[from..=i]))?;
    }
    Ok(())
}

fn counts() -> Checked {
    tracks("1", false)?;
    tracks("..1.11..1", false)
}

fn begins_anew() -> Checked {
    tracks("11r1.1rr.r1", false)
}

fn random(n: usize) -> String {
    let g = &mut Gen::new(3);
    (0..n)
        .map(|_| match g.below(100) {
            0 => 'r',
            1..50 => '1',
            _ => '.',
        })
        .collect()
}

fn exact() -> Checked {
    tracks(&random(100_000), false)
}

fn in_parallel() -> Checked {
    [0, 1, 2, 3, 1000].iter().try_for_each(|&n| tracks(&random(n), true))
}
