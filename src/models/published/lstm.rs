//! The published LSTM. Its heads are only a reshape: W_h is one full matrix.
//!
//! ```text
//! f_t = σ(W_fx x_t + b_fx + W_fh h_{t-1} + b_fh)          likewise i, z (with tanh), o
//! c_t = f_t ⊙ c_{t-1} + i_t ⊙ z_t
//! h_t = o_t ⊙ tanh(c_t),  y_t = W_post h_t + b_post
//! ```
//!
//! No defect: like the clean mixer, it computes `nn.LSTM`. The forget gate starts at σ(0) = ½.

use super::{Config, Init, Part, decoder::Decoder};
use crate::{
    autograd::Var,
    models::{Form, State, at, over_time},
    ops::lstm::lstm_sequence,
    tensor::Shape,
};

pub(super) const DECODER: Decoder = Decoder { positions: false, mlp: true, mixer: "rnn" };
const GATES: [&str; 4] = ["F", "I", "Z", "O"];

pub(super) fn init(c: &Config, init: &mut Init) {
    DECODER.init(c, init, |c, init| {
        let d = c.inner();
        for g in GATES {
            init.linear_std(&format!("linear_{g}x"), d, c.h_dim, c.std);
            init.linear_std(&format!("linear_{g}h"), d, d, c.std);
        }
        // The output projection exists only where there are several heads.
        if c.n_heads > 1 {
            init.linear_std("linear_post_head", c.h_dim, d, c.std);
        }
    });
}

/// Shapes of the carried h and c.
pub(super) fn state(c: &Config, b: usize) -> Vec<Shape> {
    vec![[b, c.inner()].into(); 2]
}

/// x [B, T, h] to y [B, T, h].
#[track_caller]
pub fn mixer<'t>(c: &Config, p: &Part<'_, 't>, x: Var<'t>, state: &mut State<'t>, form: Form) -> Var<'t> {
    let [_, t, _] = x.dims();
    let (mut h, mut cell) = (state.s[0], state.s[1]);
    let hs = if form == Form::Fused {
        let hs;
        (hs, h, cell) = fused(p, x, h, cell);
        hs
    } else {
        let gates = GATES.map(|g| p.linear(&format!("linear_{g}x"), x)); // [B, T, D]
        over_time(t, gates[0], |k| {
            let [f, i, z, o] = std::array::from_fn(|g| at(gates[g], k) + p.linear(&format!("linear_{}h", GATES[g]), h));
            cell = f.sigmoid() * cell + i.sigmoid() * z.tanh();
            h = o.sigmoid() * cell.tanh();
            h
        })
    };
    state.s = vec![h, cell];
    if c.n_heads > 1 { p.linear("linear_post_head", hs) } else { hs }
}

/// h of all steps and the last h and c, by the kernel of the clean mixer, whose gates are stacked: i, f, z, o.
#[track_caller]
fn fused<'t>(p: &Part<'_, 't>, x: Var<'t>, h: Var<'t>, cell: Var<'t>) -> (Var<'t>, Var<'t>, Var<'t>) {
    let stacked = |side: &str, what: &str| {
        let gate = |g: &str| p.part(&format!("linear_{g}{side}")).get(what);
        Var::concat(&["I", "F", "Z", "O"].map(gate), 0)
    };
    let bias = stacked("x", "bias") + stacked("h", "bias");
    lstm_sequence(x.linear(stacked("x", "weight"), Some(bias)), stacked("h", "weight"), h, cell)
}
