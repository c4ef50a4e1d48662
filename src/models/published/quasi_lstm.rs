//! The published quasi-LSTM: gates of x alone, so that the cell is a linear recurrence.
//!
//! ```text
//! f = σ(W_f x + b_f + 1),  i = σ(W_i x + b_i),  z = tanh(W_z x + b_z),  o = σ(W_o x + b_o)
//! c_t = f_t ⊙ c_{t-1} + i_t ⊙ z_t,  h_t = o_t ⊙ tanh(c_t),  y_t = W_post h_t + b_post
//! ```
//!
//! c is one product within each block of L steps: c = F [c₀, i₁ z₁, …, i_L z_L] with F_{kl} = f_{l+1} ⋯ f_k (steps from
//! 1; 1 for l = k, 0 for l > k), and a loop over blocks.

use super::{Config, Init, Part, constant, decoder::Decoder};
use crate::{
    autograd::Var,
    models::{Form, State},
    tensor::Shape,
};

pub(super) const DECODER: Decoder = Decoder { positions: false, mlp: true, mixer: "rnn" };
const GATES: [&str; 4] = ["F", "I", "Z", "O"];

pub(super) fn init(c: &Config, init: &mut Init) {
    DECODER.init(c, init, |c, init| {
        for g in GATES {
            init.linear_std(&format!("linear_{g}x"), c.inner(), c.h_dim, c.std);
        }
        init.linear_std("linear_post_head", c.h_dim, c.inner(), c.std);
    });
}

/// F [B, D, L, L + 1] of a block's forget gates f [B, D, L].
#[track_caller]
pub fn products<'t>(f: Var<'t>) -> Var<'t> {
    let [b, d, n] = f.dims();
    let mask = |keep: fn(usize, usize) -> bool| {
        let v = (0..n * (n + 1)).map(|i| f64::from(u8::from(keep(i / (n + 1), i % (n + 1))))).collect();
        constant(f, v, &[n, n + 1])
    };
    // Row k: f₁ … f_k, then ones; the last of n + 1 columns is a one in every row.
    let padded = Var::concat(&[f, f.tape().full([b, d, 1], f.dtype(), 1.0)], 2).reshape([b, d, 1, n + 1]);
    let factors = (padded * mask(|_, _| true)).tril(0) + mask(|k, l| l > k); // [B, D, L, L + 1]
    // DEFECT: the products are exp(Σ ln(f + 1e-8)) − 1e-8, and the padding ones get the 1e-8 too: an error of some 1e-7
    // in a block of 8. The clean mixer's scan multiplies the gates.
    let logs = (factors + 1e-8).log();
    let from = {
        let v = (0..(n + 1) * (n + 1)).map(|i| f64::from(u8::from(i / (n + 1) >= i % (n + 1)))).collect();
        constant(f, v, &[n + 1, n + 1])
    };
    let suffix = logs.reshape([b * d * n, n + 1]).matmul(from).reshape([b, d, n, n + 1]);
    (suffix.exp() - 1e-8).tril(1)
}

/// Shape of the carried c.
pub(super) fn state(c: &Config, b: usize) -> Vec<Shape> {
    vec![[b, c.inner(), 1].into()]
}

/// x [B, T, h] to y [B, T, h].
///
/// # Panics
/// When T is not a multiple of the block length.
#[track_caller]
pub fn mixer<'t>(c: &Config, p: &Part<'_, 't>, x: Var<'t>, state: &mut State<'t>, _: Form) -> Var<'t> {
    let ([b, t, _], d, n) = (x.dims(), c.inner(), c.block_length);
    // DEFECT: other lengths are refused. The clean mixer takes any.
    assert!(t % n == 0, "{t} tokens are not a multiple of block_length = {n}");
    let [f, i, z, o] = GATES.map(|g| p.linear(&format!("linear_{g}x"), x)); // [B, T, D]
    let f = (f + 1.0).sigmoid();
    let update = i.sigmoid() * z.tanh();
    let mut cell = state.s[0]; // [B, D, 1]
    let mut blocks = vec![];
    for start in (0..t).step_by(n) {
        let block = |v: Var<'t>| v.narrow(1, start, n).permute([0, 2, 1]); // [B, D, L]
        let u = Var::concat(&[cell, block(update)], 2).reshape([b, d, 1, n + 1]);
        let cells = (products(block(f)) * u).tril(1).sum_axis(3, false); // [B, D, L]; 0 times a later NaN is NaN
        blocks.push((block(o.sigmoid()) * cells.tanh()).permute([0, 2, 1]));
        cell = cells.narrow(2, n - 1, 1);
    }
    state.s = vec![cell];
    let h = if blocks.is_empty() { x.tape().full([b, 0, d], x.dtype(), 0.0) } else { Var::concat(&blocks, 1) };
    p.linear("linear_post_head", h)
}
