//! Mamba (Gu and Dao 2023, arXiv 2312.00752): a state-space model whose step size, input and output depend on the
//! input.
//!
//! ```text
//! [x, z] = W_in u                                          two branches of width E                 (figure 3)
//! x ← SiLU(conv(x))                                        causal, W wide, one filter a channel
//! [δ, B_t, C_t] = W_x x_t                                  the selection                           (algorithm 2)
//! Δ_t = softplus(W_dt δ + b_dt)                            step size of each channel
//! Ā_t = s exp(Δ_t A) − (s − 1)                             discretisation: zero-order hold         (eq. 4)
//! B̄_t = Δ_t B_t,  A = −exp(A_log)                          and Euler; s = 1, or 2 (see below)
//! h_t = Ā_t ⊙ h_{t-1} + B̄_t x_t                            N states per channel                      (eq. 2a)
//! y_t = C_tᵀ h_t + D x_t                                   with a skip                             (eq. 2b)
//! out = W_out (y ⊙ SiLU(z))
//! ```
//!
//! With s = 1, Ā lies in (0, 1): a state decays or stays, but never flips. With `eigenvalues = "-1..1"`, s = 2 and
//! Ā = 2 exp(ΔA) − 1 lies in (−1, 1): a long step flips the state, h ← −h + B̄ x, instead of forgetting it (Grazzi et
//! al. 2025, arXiv 2411.12537; B̄ is unchanged). Parity needs this, as in [`delta_net`](super::delta_net).
//!
//! Initially A_log = ln(1 … N) in every channel, D = 1, and b_dt makes Δ log-uniform in [0.001, 0.1] (the authors'
//! code).
//!
//! Shapes: u, out [B, T, D], x, z, Δ, y [B, T, E], δ [B, T, R], A [E, N], B and C [B, T, N], Ā, B̄, h [B, E, N].
//!
//! | form | work | memory |
//! |---|---|---|
//! | recurrent | O(T E N), T steps | every intermediate |
//! | parallel | O(T E N log T): associative scan over (Ā, B̄ x) | about log T tensors [B, T, E, N] |
//! | scan | O(T E N) | the state at every C-th step; the rest is recomputed in the backward pass |

use super::prelude::*;
use crate::ops::{
    scan::linear_scan_parallel,
    selective::{bounded, selective_scan},
};

/// Ā of ΔA: in (0, 1) for s = 1, in (−1, 1) for s = 2.
pub(super) fn transition(dt_a: Var<'_>, s: f64) -> Var<'_> {
    if s == 1.0 { dt_a.exp() } else { s * dt_a.exp() - (s - 1.0) } // (eq. 4)
}

/// x, dt [.., E], a [E, N], b and c [.., N].
pub(crate) type Inputs<'t> = [Var<'t>; 5];

/// Equations 2 and 4 for one token, without D: x, dt [B, E], a [E, N], b, c [B, N], h [B, E, N] to y [B, E] and the
/// next h.
pub(crate) fn step<'t>([x, dt, a, b, c]: Inputs<'t>, h: Var<'t>, s: f64) -> (Var<'t>, Var<'t>) {
    let (x, dt, b, c) = (x.named("x"), dt.named("dt"), b.named("B"), c.named("C"));
    let a_bar = transition(insert_axis(dt, 2) * bounded(a), s).named("A_bar"); // (eq. 4) [B, E, N]
    let h = a_bar * h + insert_axis(dt * x, 2) * insert_axis(b, 1); // (B̄_t) (eq. 2a)
    ((h * insert_axis(c, 1)).sum_axis(2, false).named("y"), h) // (eq. 2b)
}

/// All states at once by an associative scan.
pub(crate) fn parallel<'t>([x, dt, a, b, c]: Inputs<'t>, h: Var<'t>, s: f64) -> (Var<'t>, Var<'t>) {
    let ([batch, t, e], n) = (x.dims(), a.shape().last());
    let a_bar = transition(insert_axis(dt, 3) * bounded(a), s); // [B, T, E, N]
    let (input, flat) = (insert_axis(dt * x, 3) * insert_axis(b, 2), [batch, t, e * n]);
    let (hs, last) = linear_scan_parallel(a_bar.reshape(flat), input.reshape(flat), h.reshape([batch, e * n]));
    let y = (hs.reshape([batch, t, e, n]) * insert_axis(c, 2)).sum_axis(3, false);
    (y, last.reshape([batch, e, n]))
}

/// All forms over a sequence: to y [B, T, E] and the last h.
pub fn sequence<'t>(x: Inputs<'t>, h: Var<'t>, s: f64, form: Form) -> (Var<'t>, Var<'t>) {
    let [u, dt, a, b, c] = x;
    match form {
        Form::Recurrent => {
            let of = |i: usize| [at(u, i), at(dt, i), a, at(b, i), at(c, i)];
            over_time_with(u.shape().at(1), u, h, |i, h| step(of(i), h, s))
        }
        Form::Scan(chunk) => selective_scan(u, dt, a, b, c, h, s, chunk),
        _ => parallel(x, h, s),
    }
}

/// See [`About`].
pub(crate) const ABOUT: About = About {
    family: Family::Scans,
    line: "Mamba: rates of decay that depend on the input",
    parent: Some(("s4d", "a step that depends on the input")),
    transition: "s exp(Δ_t A) − (s − 1)",
    state: "E N",
    eigenvalues: "(0, 1) or (−1, 1)",
    cost: "E N",
    source: "arXiv 2312.00752",
};

/// The mixer.
pub struct Layer {
    e: usize,
    n: usize,
    r: usize,
    stretch: f64, // s
    w_in: P,
    conv: Conv,
    w_x: P,
    w_dt: P,
    b_dt: P,
    a_log: P,
    d: P,
    w_out: P,
}

impl Layer {
    /// E = expand · D channels of N states. Weights start as torch's `nn.Linear`, uniform in ±1/√in.
    pub fn new(c: &ModelConfig, init: &mut Init) -> Result<Layer> {
        let (width, n, r) = (c.width, c.state, c.rank());
        let e = c.expand * width;
        // Always this rule, even where the model sets one standard deviation: Δ and A were tuned together with it.
        let w_in = init.torch_linear("in_proj_weight", 2 * e, width);
        let w_x = init.torch_linear("x_proj_weight", r + 2 * n, e);
        let w_dt = init.torch_linear("dt_proj_weight", e, r);
        let w_out = init.torch_linear("out_proj_weight", width, e);
        let conv = Conv::new(init, "conv1d_weight", Some("conv1d_bias"), e, c.conv);
        let b_dt = init.in_f32("dt_proj_bias", [e], |g, _| step_size_bias(g));
        let a_log = init.in_f32("A_log", [e, n], |_, i| ((i % n + 1) as f64).ln());
        let d = init.full("D", [e], 1.0);
        Ok(Layer { e, n, r, stretch: c.eigenvalues.stretch(), w_in, conv, w_x, w_dt, b_dt, a_log, d, w_out })
    }
}

impl Mixer for Layer {
    fn forms(&self) -> Vec<Form> {
        vec![Form::Recurrent, Form::Parallel, Form::Scan(Form::CHUNK)]
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { eigenvalues: true, ..Capabilities::default() }
    }

    fn state(&self, b: usize) -> Vec<(&'static str, Shape)> {
        let h = ("h", [b, self.e, self.n].into());
        [h].into_iter().chain(self.conv.window("past x", b)).collect()
    }

    fn sequence<'t>(&self, p: &Bound<'t>, u: Var<'t>, state: &mut State<'t>, form: Form) -> Var<'t> {
        let [x, z] = linear_parts(u, p[self.w_in], None); // (x, z) [B, T, E] each
        let x = self.conv.apply(p, x, state, 1); // (x ←)
        // δ [B, T, R], B and C [B, T, N]
        let [low_rank, b, c] = linear_cut(x, p[self.w_x], None, [self.r, self.n, self.n]); // (δ)
        let dt = low_rank.named("low").linear(p[self.w_dt], Some(p[self.b_dt])).softplus().cast(u.dtype()); // (Δ_t)
        let a = p[self.a_log].decay_rate(); // (A)
        let (y, h) = sequence([x, dt, a, b, c], state.s[0], self.stretch, form);
        state.s[0] = h;
        y.gated_skip(p[self.d], x, z).linear(p[self.w_out], None) // (eq. 2b) (out)
    }
}
