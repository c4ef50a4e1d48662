//! The step of Mamba's selective scan.
//!
//! A channel has N states, each with a rate a < 0. The token says how long a
//! step Δ it is: a long one forgets, one of length 0 changes nothing. It also
//! says how it is written (b) and how it is read (c) (Gu and Dao 2023, arXiv
//! 2312.00752, algorithm 2).
//!
//! ```text
//! ā_t = s exp(Δ_t a) − (s − 1)      h_t = ā_t h_{t-1} + Δ_t b_t u_t
//! y_t = Σ_n c_t h_t
//! ```
//!
//! s = 1 is Mamba. s = 2 stretches ā from (0, 1) to (−1, 1).
//!
//! u and Δ (`dt`) are [B, E], a is [E, N], b and c are [B, N], h is [B, E, N]:
//! `insert_axis(x, 2)` makes [B, E, 1] of [B, E], and sizes of 1 broadcast.

#![allow(unused)]

use exercises::{Checked, Inputs, agree, golden, run};
use std::process::ExitCode;
use tapezoo::{
    autograd::{Gen, Var},
    ops::{
        selective::selective_scan,
        words::{insert_axis, over_time, token},
    },
    tensor::DType,
};

struct Scan {
    s: f64,
}

impl Scan {
    /// y [B, T, E] and the last h, of u, Δ, a, b, c and h.
    fn run<'t>(&self, x: &[Var<'t>]) -> Vec<Var<'t>> {
        let ([_, t, _], a, mut h) = (x[0].dims(), x[2], x[5]);
        let y = over_time(t, x[0], |t| {
            let [u, dt, b, c] = [0, 1, 3, 4].map(|i| token(x[i], t));
            todo!("move h on, and give y_t")
        });
        vec![y, h]
    }
}

fn main() -> ExitCode {
    run(&[
        ("one step of one state", || check([1, 1, 1, 1], 1.0)),
        ("values, states and gradients are those of the op", many),
        ("s = 2: transitions from −1 to 1", || check([2, 6, 3, 2], 2.0)),
        ("the authors' reference code has the same numbers", as_torch),
    ])
}

fn check([b, t, e, n]: [usize; 4], s: f64) -> Checked {
    let g = &mut Gen::new(16);
    let inputs: Inputs = vec![
        (("u", "[B, T, E]"), g.normal([b, t, e])),
        (("dt", "[B, T, E]"), g.range([b, t, e], 0.1, 1.0)),
        (("a", "[E, N]"), g.range([e, n], -2.0, -0.1)),
        (("b", "[B, T, N]"), g.normal([b, t, n])),
        (("c", "[B, T, N]"), g.normal([b, t, n])),
        (("h0", "[B, E, N]"), g.normal([b, e, n])),
    ];
    agree(&inputs, &[("y", "[B, T, E]"), ("h", "[B, E, N]")], &|x| Scan { s }.run(x), &|x| {
        let (y, h) = selective_scan(x[0], x[1], x[2], x[3], x[4], x[5], s, 4);
        vec![y, h]
    })
}

fn many() -> Checked {
    [[2, 0, 2, 2], [2, 3, 2, 4], [1, 9, 5, 3]].into_iter().try_for_each(|sizes| check(sizes, 1.0))
}

fn as_torch() -> Checked {
    let inputs = ["u", "delta", "a", "b", "c", "d", "delta_bias", "z"];
    golden("selective_scan_0.safetensors", &inputs, &[("y", "[B, T, E]")], &|x| {
        let ([b, _, e], [_, n], tape) = (x[0].dims(), x[2].dims(), x[0].tape());
        let (dt, h0) = ((x[1] + x[6]).softplus(), tape.full([b, e, n], DType::F64, 0.0));
        let y = Scan { s: 1.0 }.run(&[x[0], dt, x[2], x[3], x[4], h0])[0];
        vec![(y + x[5] * x[0]) * x[7].silu()]
    })
}
