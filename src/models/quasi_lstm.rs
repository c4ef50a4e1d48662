//! Quasi-LSTM: an LSTM whose gates see the input alone. QRNN with ifo-pooling (Bradbury et al. 2016, arXiv
//! 1611.01576, section 2.1) and a convolution of width 1; the cell is read through tanh as in the published experiment
//! (swiss-ai/modern_rnns, qlstm):
//!
//! ```text
//! f_t = σ(W_f x_t + b_f + 1),  i_t = σ(W_i x_t + b_i),  z_t = tanh(W_z x_t + b_z),  o_t = σ(W_o x_t + b_o)   (1)
//! c_t = f_t ⊙ c_{t-1} + i_t ⊙ z_t                                                                            (2)
//! h_t = o_t ⊙ tanh(c_t)                                                                                      (3)
//! y_t = W_post h_t + b_post
//! ```
//!
//! The gates do not depend on h, so (2) is linear in c and a scan computes it. Its transition f lies in (0, 1): it can
//! forget but not flip, so it cannot compute parity at every length.
//!
//! Shapes: x, y [B, T, D_model], f, i, z, o, c and h [B, T, D], W [4D, D_model] with the gates in the order f, i, z, o.
//!
//! | form | work | depth |
//! |---|---|---|
//! | recurrent | O(T D) | T |
//! | parallel | O(T D log T): associative scan (f₁, c₁) ∘ (f₂, c₂) = (f₁ f₂, f₂ c₁ + c₂) | log T |
//! | scan | O(T D) | T; a device computes eight slices of a group of steps side by side, and takes group after group |

use super::prelude::*;
use crate::ops::{quasi_lstm::quasi_lstm, scan::linear_scan_parallel};

/// Added to the forget gate's pre-activation, so that a new model remembers.
pub(crate) const FORGET_BIAS: f64 = 1.0;

/// The gates (1) from their pre-activations [.., 4D].
fn gates(z: Var<'_>) -> [Var<'_>; 4] {
    let [f, i, z, o] = split(z);
    [(f + FORGET_BIAS).sigmoid(), i.sigmoid(), z.tanh(), o.sigmoid()] // (1)
}

/// Equations (2) and (3) for one token: pre-activations [B, 4D] and c [B, D] to h and the next c.
pub fn step<'t>(z: Var<'t>, c: Var<'t>) -> (Var<'t>, Var<'t>) {
    let [f, i, z, o] = gates(z);
    let c = f.named("f") * c + i.named("i") * z.named("z"); // (2)
    ((o.named("o") * c.tanh()).named("h"), c) // (3)
}

/// Equation (2) alone, one step at a time: c_t = f_t c_{t-1} + u_t, all [B, T, D], and the last c.
pub fn pool<'t>(f: Var<'t>, u: Var<'t>, mut c: Var<'t>) -> (Var<'t>, Var<'t>) {
    let [_, t, _] = f.dims();
    let all = over_time(t, u, |i| {
        c = at(f, i) * c + at(u, i);
        c
    });
    (all, c)
}

/// All steps by an associative scan: pre-activations [B, T, 4D] and c [B, D] to h [B, T, D] and the last c.
pub fn parallel<'t>(z: Var<'t>, c: Var<'t>) -> (Var<'t>, Var<'t>) {
    let [f, i, z, o] = gates(z);
    let (c, last) = linear_scan_parallel(f, i * z, c); // (2)
    (o * c.tanh(), last) // (3)
}

/// See [`About`].
pub(crate) const ABOUT: About = About {
    family: Family::Cells,
    line: "quasi-LSTM: the same gates of the input alone",
    parent: Some(("lstm", "gates of the input alone")),
    transition: "f_t of each unit",
    state: "H K",
    eigenvalues: "(0, 1)",
    cost: "H K",
    source: "arXiv 1611.01576",
};

/// The mixer.
pub struct Layer {
    units: usize, // D
    w: P,
    b: P,
    w_post: P,
    b_post: P,
}

impl Layer {
    /// D = H K units over inputs of the model's width.
    pub fn new(c: &ModelConfig, init: &mut Init) -> Result<Layer> {
        let (width, d) = (c.width, c.inner());
        Ok(Layer {
            units: d,
            w: init.linear("w", 4 * d, width),
            b: init.full("b", [4 * d], 0.0),
            w_post: init.linear("w_post", width, d),
            b_post: init.full("b_post", [width], 0.0),
        })
    }
}

impl Mixer for Layer {
    fn forms(&self) -> Vec<Form> {
        vec![Form::Recurrent, Form::Parallel, Form::Scan(256)]
    }

    fn state(&self, b: usize) -> Vec<(&'static str, Shape)> {
        vec![("c", [b, self.units].into())]
    }

    fn step<'t>(&self, p: &Bound<'t>, x: Var<'t>, state: &mut State<'t>) -> Var<'t> {
        let (h, c) = step(x.linear(p[self.w], Some(p[self.b])), state.s[0]); // (1)
        state.s[0] = c;
        h.linear(p[self.w_post], Some(p[self.b_post])) // (y_t)
    }

    fn sequence<'t>(&self, p: &Bound<'t>, x: Var<'t>, state: &mut State<'t>, form: Form) -> Var<'t> {
        let z = x.linear(p[self.w], Some(p[self.b])); // (1) [B, T, 4D]
        let (h, c) = match form {
            Form::Scan(chunk) => quasi_lstm(z, state.s[0], FORGET_BIAS, chunk),
            _ => parallel(z, state.s[0]),
        };
        state.s[0] = c;
        h.linear(p[self.w_post], Some(p[self.b_post])) // (y_t)
    }
}
