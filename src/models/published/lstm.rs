//! The published LSTM. Its heads are but a reshape: W_h is one full matrix.
//!
//! ```text
//! f_t = σ(W_fx x_t + b_fx + W_fh h_{t-1} + b_fh)          likewise i, z (with tanh), o
//! c_t = f_t ⊙ c_{t-1} + i_t ⊙ z_t
//! h_t = o_t ⊙ tanh(c_t),  y_t = W_post h_t + b_post
//! ```
//!
//! No defect: it is `nn.LSTM`, as the clean mixer. The forget gate starts at σ(0) = ½.

use super::{Config, Init, Mode, Output, Part, PublishedInit, STD, decoder::Decoder};
use crate::{
    autograd::Var,
    models::{at, over_time},
};

const DECODER: Decoder = Decoder { positions: false, mlp: true, mixer: "rnn" };
const GATES: [&str; 4] = ["F", "I", "Z", "O"];

pub(super) fn init(c: &Config, init: &mut Init) {
    DECODER.init(c, init, |c, init| {
        let d = c.inner();
        for g in GATES {
            init.linear_std(&format!("linear_{g}x"), d, c.h_dim, STD);
            init.linear_std(&format!("linear_{g}h"), d, d, STD);
        }
        // The way back to the residual stream exists only where there are several heads.
        if c.n_heads > 1 {
            init.linear_std("linear_post_head", c.h_dim, d, STD);
        }
    });
}

#[track_caller]
pub(super) fn run<'t>(c: &Config, p: &Part<'_, 't>, tokens: Var<'t>, _: Mode) -> Output<'t> {
    DECODER.run(c, p, tokens, mixer)
}

/// x [B, T, h] to y [B, T, h].
#[track_caller]
pub fn mixer<'t>(c: &Config, p: &Part<'_, 't>, x: Var<'t>) -> Var<'t> {
    let [b, t, _] = x.dims();
    let gates = GATES.map(|g| p.linear(&format!("linear_{g}x"), x)); // [B, T, D]
    let zero = x.tape().full([b, c.inner()], x.dtype(), 0.0);
    let (mut h, mut cell) = (zero, zero);
    let hs = over_time(t, |k| {
        let [f, i, z, o] = std::array::from_fn(|g| at(gates[g], k) + p.linear(&format!("linear_{}h", GATES[g]), h));
        cell = f.sigmoid() * cell + i.sigmoid() * z.tanh();
        h = o.sigmoid() * cell.tanh();
        h
    });
    if c.n_heads > 1 { p.linear("linear_post_head", hs) } else { hs }
}
