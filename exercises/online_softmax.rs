//! Softmax online, as in flash attention.
//!
//! Attention weighs values v_s by softmax of scores x_s. The largest score is
//! subtracted from all, so that no exponential overflows; for that one would
//! have to see all scores first. Flash attention sees a block at a time (Dao et
//! al. 2022, arXiv 2205.14135; Milakov and Gimelshein 2018, arXiv 1805.02867):
//! it keeps the largest so far, m, and when a larger one comes, the sums so far
//! are multiplied by e^(m − m').
//!
//! ```text
//! m' = max(m, x_1, …, x_n)
//! l' = e^(m − m') l + Σ e^(x_s − m')
//! y' = e^(m − m') y + Σ e^(x_s − m') v_s
//! ```
//!
//! At the end o = y / l. A hidden score is −∞, and all scores of a block may
//! be: −∞ − (−∞) is NaN, and such a block must change nothing.

#![allow(unused)]

use exercises::{Checked, list, run, same};
use std::process::ExitCode;
use tapezoo::autograd::Gen;

struct Running {
    /// The largest score so far.
    m: f64,
    /// Σ e^(x − m)
    l: f64,
    /// Σ e^(x − m) v
    y: Vec<f64>,
}

/// Scores of a block, and their values.
fn add(state: &mut Running, scores: &[f64], values: &[Vec<f64>]) {
    todo!("m, l and y after this block")
}

fn main() -> ExitCode {
    run(&[
        ("one block is softmax", || check(&[0.5, -1.0, 2.0], &[3])),
        ("two blocks, the largest score in the first", || check(&[2.0, 1.0, 0.0, -1.0], &[2, 2])),
        ("two blocks, the largest score in the second", || check(&[-1.0, 0.0, 1.0, 2.0], &[2, 2])),
        ("blocks of any size, also of one score or none", any_blocks),
        ("scores of ±1000 do not overflow", || {
            check(&[-1000.0, 999.0, 1000.0, 998.0], &[1, 2, 1]).and_then(|()| check(&[1000.0, -1000.0], &[1, 1]))
        }),
        ("a block of hidden scores (−∞) changes nothing, the first block too", hidden),
    ])
}

/// That these scores, in blocks of these sizes, are weighed as by softmax over all of them.
fn check(scores: &[f64], blocks: &[usize]) -> Checked {
    let (g, width) = (&mut Gen::new(20), 3);
    let values: Vec<Vec<f64>> = scores.iter().map(|_| g.normal([width]).to_f64()).collect();
    let mut state = Running { m: f64::NEG_INFINITY, l: 0.0, y: vec![0.0; width] };
    let mut from = 0;
    for &n in blocks {
        add(&mut state, &scores[from..from + n], &values[from..from + n]);
        from += n;
    }
    let top = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> = scores.iter().map(|x| (x - top).exp()).collect();
    let sum: f64 = weights.iter().sum();
    let expected = |j: usize| weights.iter().zip(&values).map(|(w, v)| w / sum * v[j]).sum::<f64>();
    let expected: Vec<f64> = (0..width).map(expected).collect();
    let o: Vec<f64> = state.y.iter().map(|y| y / state.l).collect();
    same(("o", "[V]"), &list(&o), &list(&expected), 1e-12)
        .map_err(|why| format!("scores {scores:?} in blocks of {blocks:?}: {why}\nm is {}, l is {}", state.m, state.l))
}

fn any_blocks() -> Checked {
    let g = &mut Gen::new(21);
    for _ in 0..50 {
        let blocks: Vec<usize> = [1, 0, g.below(5), g.below(5), g.below(5)].to_vec();
        let scores: Vec<f64> = (0..blocks.iter().sum()).map(|_| 3.0 * g.gauss()).collect();
        check(&scores, &blocks)?;
    }
    Ok(())
}

fn hidden() -> Checked {
    let none = f64::NEG_INFINITY;
    check(&[1.0, none, 0.5, none, none], &[3, 2])?;
    check(&[none, none, 0.5, 1.0], &[2, 2])
}
