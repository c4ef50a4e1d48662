//! The delta rule's backward pass, by hand.
//!
//! A tape would keep every S_t. A kernel walks back from the last step to the
//! first with one gradient, dS, that of S_t, and at each step turns it into
//! that of S_{t-1}. Here is one step, which writes e under the key k:
//!
//! ```text
//! δ = v − S_{t-1}ᵀ k      e = β δ      S_t = S_{t-1} + k eᵀ      o = S_tᵀ q
//! ```
//!
//! One head: q and k have K elements, v and dₒ (what comes from above, for o)
//! have V, S is K rows of V.

#![allow(unused)]

use exercises::{Checked, list, run, same};
use std::process::ExitCode;
use tapezoo::{
    autograd::{Gen, Tape},
    ops::delta::delta_rule,
    tensor::Tensor,
};

/// A matrix of K rows.
type Matrix = Vec<Vec<f64>>;

/// Sᵀ k
fn recall(s: &Matrix, k: &[f64]) -> Vec<f64> {
    (0..s[0].len()).map(|j| s.iter().zip(k).map(|(row, k)| row[j] * k).sum()).collect()
}

/// S v
fn times(s: &Matrix, v: &[f64]) -> Vec<f64> {
    s.iter().map(|row| dot(row, v)).collect()
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// S + a k vᵀ
fn add(s: &Matrix, a: f64, k: &[f64], v: &[f64]) -> Matrix {
    s.iter().zip(k).map(|(row, k)| row.iter().zip(v).map(|(s, v)| s + a * k * v).collect()).collect()
}

struct Inputs {
    q: Vec<f64>,
    k: Vec<f64>,
    v: Vec<f64>,
    beta: f64,
    /// S_{t-1}
    s: Matrix,
}

struct Gradients {
    dq: Vec<f64>,
    dk: Vec<f64>,
    dv: Vec<f64>,
    dbeta: f64,
    /// That of S_{t-1}.
    ds: Matrix,
}

/// From the gradients of o and of S_t (without what o adds to it) to all others.
fn backward(x: &Inputs, d_o: &[f64], ds: &Matrix) -> Gradients {
    let delta: Vec<f64> = x.v.iter().zip(recall(&x.s, &x.k)).map(|(v, old)| v - old).collect();
    let e: Vec<f64> = delta.iter().map(|delta| x.beta * delta).collect();
    let after = add(&x.s, 1.0, &x.k, &e); // S_t
    todo!("the five gradients")
}

fn main() -> ExitCode {
    run(&[
        ("nothing written (β = 0): a read, and what β would change", || check(0.0, true)),
        ("nothing read (dₒ = 0): what S_t's gradient alone says", || check(0.7, false)),
        ("all gradients, with β from 0 to 2", || [0.3, 1.0, 1.6, 2.0].iter().try_for_each(|&beta| check(beta, true))),
    ])
}

fn check(beta: f64, reads: bool) -> Checked {
    let g = &mut Gen::new(6);
    for [k, v] in [[1, 1], [2, 3], [4, 2]] {
        let random = |g: &mut Gen, n: usize| g.normal([n]).to_f64();
        let matrix = |x: &[f64]| x.chunks(v).map(<[f64]>::to_vec).collect::<Matrix>();
        let x = Inputs { q: random(g, k), k: random(g, k), v: random(g, v), beta, s: matrix(&random(g, k * v)) };
        let d_o: Vec<f64> = random(g, v).iter().map(|d| if reads { *d } else { 0.0 }).collect();
        let ds = random(g, k * v);

        let tape = Tape::default();
        let leaf = |x: &[f64], shape: &[usize]| tape.leaf(&Tensor::from_vec(x.to_vec(), shape));
        let leaves = [
            leaf(&x.q, &[1, 1, 1, k]),
            leaf(&x.k, &[1, 1, 1, k]),
            leaf(&x.v, &[1, 1, 1, v]),
            leaf(&[beta], &[1, 1, 1]),
            leaf(&x.s.concat(), &[1, 1, k, v]),
        ];
        let [lq, lk, lv, lbeta, ls] = leaves;
        let (o, s) = delta_rule(lq, lk, lv, lbeta, ls, 1.0, 1);
        let cotangent = |x: &[f64], shape: &[usize]| Tensor::from_vec(x.to_vec(), shape);
        tape.backward_from([(o, cotangent(&d_o, &[1, 1, 1, v])), (s, cotangent(&ds, &[1, 1, k, v]))]);

        let y = backward(&x, &d_o, &matrix(&ds));
        let names = [("dq", "[K]"), ("dk", "[K]"), ("dv", "[V]"), ("dbeta", "[1]"), ("dS", "[K V]")];
        let yours = [y.dq, y.dk, y.dv, vec![y.dbeta], y.ds.concat()];
        // The gradients in the order in which one is needed for the next.
        for i in [0, 3, 2, 4, 1] {
            let expected = leaves[i].grad().map_or(vec![], |d| d.to_f64());
            same(names[i], &list(&yours[i]), &list(&expected), 1e-9)
                .map_err(|why| format!("K = {k}, V = {v}, β = {beta}: {why}"))?;
        }
    }
    Ok(())
}
