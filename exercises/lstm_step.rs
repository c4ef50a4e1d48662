//! The step of an LSTM.
//!
//! A cell keeps c. The forget gate f says how much of it stays, the input gate
//! i how much of the new g is added, and the output gate o how much of it is
//! shown (Hochreiter and Schmidhuber 1997; forget gate: Gers et al. 2000).
//!
//! ```text
//! (ĩ, f̃, g̃, õ) = x_t + W_hh h_{t-1}
//! i, f, o = σ(ĩ, f̃, õ)      g = tanh g̃
//! c_t = f c_{t-1} + i g      h_t = o tanh c_t
//! ```
//!
//! Here `i, f, g, o` are still before their activations, [B, D] each.

#![allow(unused)]

use exercises::{Checked, Inputs, agree, golden, run};
use std::process::ExitCode;
use tapezoo::{
    autograd::{Gen, Var},
    ops::{
        lstm::lstm_sequence,
        words::{over_time, split, token},
    },
};

/// h [B, T, D] and the last h and c, of x [B, T, 4 D], W_hh [4 D, D], h0 and c0 [B, D].
fn sequence<'t>(x: &[Var<'t>]) -> Vec<Var<'t>> {
    let ([_, t, _], w_hh, mut h, mut c) = (x[0].dims(), x[1], x[2], x[3]);
    let all = over_time(t, x[0].narrow(2, 0, w_hh.shape().at(1)), |t| {
        let [i, f, g, o] = split(token(x[0], t) + h.linear(w_hh, None));
        todo!("c_t, then h_t");
        h
    });
    vec![all, h, c]
}

fn main() -> ExitCode {
    run(&[
        ("one step, one cell", || check([1, 1, 1])),
        ("values, states and gradients are those of the op", many),
        ("torch.nn.LSTM has the same numbers", as_torch),
    ])
}

fn check([b, t, d]: [usize; 3]) -> Checked {
    let g = &mut Gen::new(13);
    let inputs: Inputs = vec![
        (("x", "[B, T, 4 D]"), g.normal([b, t, 4 * d])),
        (("w_hh", "[4 D, D]"), g.normal([4 * d, d])),
        (("h0", "[B, D]"), g.normal([b, d])),
        (("c0", "[B, D]"), g.normal([b, d])),
    ];
    agree(&inputs, &[("h", "[B, T, D]"), ("h_last", "[B, D]"), ("c_last", "[B, D]")], &|x| sequence(x), &|x| {
        let (h, h_last, c_last) = lstm_sequence(x[0], x[1], x[2], x[3]);
        vec![h, h_last, c_last]
    })
}

fn many() -> Checked {
    [[1, 0, 2], [2, 3, 2], [3, 7, 4]].into_iter().try_for_each(check)
}

fn as_torch() -> Checked {
    let inputs = ["x", "w_ih", "w_hh", "b_ih", "b_hh", "h0", "c0"];
    let outputs = [("h", "[B, T, D]"), ("h_last", "[B, D]"), ("c_last", "[B, D]")];
    golden("lstm_0.safetensors", &inputs, &outputs, &|x| {
        sequence(&[x[0].linear(x[1], Some(x[3])) + x[4], x[2], x[5], x[6]])
    })
}
