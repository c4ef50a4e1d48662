//! LSTM (Hochreiter and Schmidhuber 1997, with the forget gate of Gers et al. 2000), in the notation of torch's
//! `nn.LSTM`:
//!
//! ```text
//! i_t = σ(W_ii x_t + b_ii + W_hi h_{t-1} + b_hi)          input gate                       (1)
//! f_t = σ(W_if x_t + b_if + W_hf h_{t-1} + b_hf)          forget gate                      (2)
//! g_t = tanh(W_ig x_t + b_ig + W_hg h_{t-1} + b_hg)       candidate                        (3)
//! o_t = σ(W_io x_t + b_io + W_ho h_{t-1} + b_ho)          output gate                      (4)
//! c_t = f_t ⊙ c_{t-1} + i_t ⊙ g_t                         cell                             (5)
//! h_t = o_t ⊙ tanh(c_t)                                   hidden state                     (6)
//! y_t = W_post h_t + b_post                               back to the residual stream
//! ```
//!
//! The gates depend on h_{t-1}, so the recurrence is not linear and no form is parallel in time. In return one unit can
//! compute parity: its gates keep or flip the bit that h holds.
//!
//! Shapes: x [B, T, I], i, f, g, o, h and c [B, D], y [B, T, I], W_ih [4D, I] and W_hh [4D, D] with the gates in the
//! order i, f, g, o.
//!
//! | form | cost a step | memory |
//! |---|---|---|
//! | recurrent | O(D I + D²), some 20 small ops | every intermediate |
//! | fused | the same, one kernel over all steps | six numbers a unit and step |

use super::prelude::*;
use crate::ops::lstm::lstm_sequence;

/// W_ih, W_hh, b_ih, b_hh on a tape.
#[derive(Clone, Copy)]
pub struct Weights<'t> {
    /// [4D, I]
    pub w_ih: Var<'t>,
    /// [4D, D]
    pub w_hh: Var<'t>,
    /// `[4D]`
    pub b_ih: Var<'t>,
    /// `[4D]`
    pub b_hh: Var<'t>,
}

/// Equations (1) to (6) for one token: x [B, I], h and c [B, D] to the next h and c.
pub(crate) fn step<'t>(w: Weights<'t>, x: Var<'t>, h: Var<'t>, c: Var<'t>) -> (Var<'t>, Var<'t>) {
    let z = x.linear(w.w_ih, Some(w.b_ih)) + h.linear(w.w_hh, Some(w.b_hh)); // (1) (2) (3) (4) [B, 4D]
    let [i, f, g, o] = split(z);
    let (i, f) = (i.sigmoid().named("i"), f.sigmoid().named("f")); // (1) (2)
    let (g, o) = (g.tanh().named("g"), o.sigmoid().named("o")); // (3) (4)
    let c = f * c + i * g; // (5)
    (o * c.tanh(), c) // (6)
}

/// [`step`] over a sequence: x [B, T, I] to h [B, T, D] and the last h and c.
pub fn recurrent<'t>(w: Weights<'t>, x: Var<'t>, mut h: Var<'t>, mut c: Var<'t>) -> (Var<'t>, Var<'t>, Var<'t>) {
    let [_, t, _] = x.dims();
    let y = over_time(t, no_steps(h), |i| {
        (h, c) = step(w, at(x, i), h, c);
        h
    });
    (y, h, c)
}

/// The fused form: W_ih x for all steps as one product, then one op for the loop over time.
pub fn fused<'t>(w: Weights<'t>, x: Var<'t>, h: Var<'t>, c: Var<'t>) -> (Var<'t>, Var<'t>, Var<'t>) {
    lstm_sequence(x.linear(w.w_ih, Some(w.b_ih + w.b_hh)), w.w_hh, h, c)
}

/// See [`About`].
pub(crate) const ABOUT: About = About {
    family: Family::Cells,
    line: "LSTM: gates that see the hidden state",
    parent: None,
    transition: "nonlinear: f_t beside gates of h",
    state: "2 H K",
    eigenvalues: "any",
    cost: "4 (H K)²",
    source: "Hochreiter and Schmidhuber 1997",
};

/// The mixer.
pub struct Layer {
    units: usize, // D
    w_ih: P,
    w_hh: P,
    b_ih: P,
    b_hh: P,
    w_post: P,
    b_post: P,
}

impl Layer {
    /// D = H K units over inputs of the model's width. Weights start uniform in ±1/√D, as torch's do; biases start at
    /// 0.
    pub fn new(c: &ModelConfig, init: &mut Init) -> Result<Layer> {
        let (width, d) = (c.width, c.inner());
        let bound = (d as f64).powf(-0.5);
        Ok(Layer {
            units: d,
            w_ih: init.uniform("w_ih", [4 * d, width], bound),
            w_hh: init.uniform("w_hh", [4 * d, d], bound),
            b_ih: init.full("b_ih", [4 * d], 0.0),
            b_hh: init.full("b_hh", [4 * d], 0.0),
            w_post: init.linear("w_post", width, d),
            b_post: init.full("b_post", [width], 0.0),
        })
    }

    fn weights<'t>(&self, p: &Bound<'t>) -> Weights<'t> {
        Weights { w_ih: p[self.w_ih], w_hh: p[self.w_hh], b_ih: p[self.b_ih], b_hh: p[self.b_hh] }
    }
}

impl Mixer for Layer {
    fn forms(&self) -> Vec<Form> {
        vec![Form::Recurrent, Form::Fused]
    }

    fn state(&self, b: usize) -> Vec<(&'static str, Shape)> {
        vec![("h", [b, self.units].into()), ("c", [b, self.units].into())]
    }

    fn step<'t>(&self, p: &Bound<'t>, x: Var<'t>, state: &mut State<'t>) -> Var<'t> {
        let (h, c) = step(self.weights(p), x, state.s[0], state.s[1]);
        state.s = vec![h, c];
        h.linear(p[self.w_post], Some(p[self.b_post])) // (y_t)
    }

    fn sequence<'t>(&self, p: &Bound<'t>, x: Var<'t>, state: &mut State<'t>, _: Form) -> Var<'t> {
        let (h, h_last, c_last) = fused(self.weights(p), x, state.s[0], state.s[1]);
        state.s = vec![h_last, c_last];
        h.linear(p[self.w_post], Some(p[self.b_post])) // (y_t)
    }
}
