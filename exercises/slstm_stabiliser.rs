//! The stabiliser of the sLSTM.
//!
//! An sLSTM has exponential gates: i = exp(ĩ) may be any size, and for ĩ = 800
//! it is infinite. But h = c / n does not change when c and n are multiplied by
//! the same factor. So both are kept times exp(−m), with m the running maximum
//! of the exponents (Beck et al. 2024, arXiv 2405.04517, equations 15 to 17).
//!
//! ```text
//! l = ln σ(f̃) + m_{t-1}      m_t = max(l, ĩ)
//! i = exp(ĩ − m_t)           f = exp(l − m_t)
//! c_t = f c_{t-1} + i tanh z̃      n_t = f n_{t-1} + i
//! h_t = σ(õ) c_t / n_t
//! ```
//!
//! Here `i, f, z, o` are what stands with a tilde above. Before the first token
//! m is −∞: `before`, to be added to m, is −∞ then, and 0 later. Where m_t is
//! still −∞ (ĩ is −∞ too) nothing is written, and h is 0, not 0/0: measure
//! exponents from `reference(m)`, which is `LEAST` there, a finite number.

#![allow(unused)]

use exercises::{Checked, Inputs, agree, run};
use std::process::ExitCode;
use tapezoo::{
    autograd::{Gen, Var},
    ops::{
        slstm::slstm_sequence,
        words::{LEAST, log_sigmoid, maximum, over_time, reference, split, token},
    },
    tensor::{DType, Tensor},
};

/// h [B, T, D] and the last c, n and m, of gates x [B, T, 4 D] and c, n, m [B, D]; `fresh`: before the first token.
fn sequence<'t>(x: &[Var<'t>], fresh: bool) -> Vec<Var<'t>> {
    let ([_, t, width], [mut c, mut n, mut m]) = (x[0].dims(), [x[1], x[2], x[3]]);
    let (tape, shape) = (m.tape(), m.shape());
    let mut before = tape.full(shape, DType::F64, if fresh { f64::NEG_INFINITY } else { 0.0 });
    let mut y = c;
    let h = over_time(t, x[0].narrow(2, 0, width / 4), |t| {
        let [i, f, z, o] = split(token(x[0], t));
        todo!("move c, n and m on; y is h_t");
        before = tape.full(shape, DType::F64, 0.0);
        y
    });
    vec![h, c, n, m]
}

fn main() -> ExitCode {
    run(&[
        ("small gates: values and gradients are those of the op", small),
        ("from the first token on", || check(5, true, |g, _| g.gauss())),
        ("gates of ±800 do not overflow", || check(6, false, |g, _| if g.coin() { 800.0 } else { -800.0 })),
        ("an input gate of −∞ writes nothing", closed),
    ])
}

fn check(t: usize, fresh: bool, gate: fn(&mut Gen, usize) -> f64) -> Checked {
    let (g, [b, d]) = (&mut Gen::new(11), [2, 3]);
    let values = (0..b * t * 4 * d).map(|i| if i / d % 4 < 2 { gate(g, i) } else { g.gauss() }).collect();
    let (state, zero) = ([b, d], Tensor::zeros([b, d], DType::F64));
    let inputs: Inputs = vec![
        (("x", "[B, T, 4 D]"), Tensor::from_vec(values, [b, t, 4 * d])),
        (("c0", "[B, D]"), if fresh { zero.clone() } else { g.normal(state) }),
        (("n0", "[B, D]"), if fresh { zero.clone() } else { g.range(state, 1.0, 2.0) }),
        (("m0", "[B, D]"), if fresh { zero } else { g.normal(state) }),
    ];
    let outputs = [("h", "[B, T, D]"), ("c", "[B, D]"), ("n", "[B, D]"), ("m", "[B, D]")];
    agree(&inputs, &outputs, &|x| sequence(x, fresh), &|x| {
        let tape = x[0].tape();
        let full = |value: f64| tape.full(state, DType::F64, value);
        let unmixed = tape.full([4, 1, d, d], DType::F64, 0.0);
        let state = [full(0.0), x[1], x[2], x[3], full(if fresh { 0.0 } else { 1.0 })];
        let (h, [_, c, n, m]) = slstm_sequence(x[0], unmixed, state);
        vec![h, c, n, m]
    })
}

fn small() -> Checked {
    [0, 1, 2, 7].into_iter().try_for_each(|t| check(t, false, |g, _| g.gauss()))
}

fn closed() -> Checked {
    let gate: fn(&mut Gen, usize) -> f64 = |g, i| if i / 3 % 4 == 0 { f64::NEG_INFINITY } else { g.gauss() };
    check(3, false, gate)?;
    check(3, true, gate)
}
