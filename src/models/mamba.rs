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
//! al. 2025, arXiv 2411.12537; B̄ is unchanged).
//!
//! Parity needs this. Every one applies the same transition ā, and two ones must cancel: ā² = 1 with ā ≠ 1. With all Ā
//! in (0, 1) the state converges: after enough ones, an odd and an even number of them look alike in finite precision
//! (theorem 1 there).
//!
//! Initially A_log = ln(1 … N) in every channel, D = 1, and b_dt makes Δ log-uniform in [0.001, 0.1] (the authors'
//! code).
//!
//! Shapes: u [B, T, D], x, z, Δ [B, T, E], A [E, N], B and C [B, T, N], h [B, E, N].
//!
//! | form | work | memory |
//! |---|---|---|
//! | recurrent | O(T E N), T steps | every intermediate |
//! | parallel | O(T E N log T): associative scan over (Ā, B̄ x) | about log T tensors [B, T, E, N] |
//! | scan | O(T E N) | the state at every C-th step; the rest is recomputed in the backward pass |

use super::{
    About, Bound, Capabilities, Family, Form, Init, Mixer, ModelConfig, P, State, at, linear_cut, linear_parts,
    over_time, remembered,
};
use crate::{
    autograd::{Gen, Var},
    error::Result,
    ops::{elementwise::fastest, scan::linear_scan_parallel, selective::selective_scan, words::maximum},
    tensor::Shape,
};

pub use crate::ops::selective::selective_scan as scan;

/// Ā of ΔA: in (0, 1) for s = 1, in (−1, 1) for s = 2.
fn transition(dt_a: Var<'_>, s: f64) -> Var<'_> {
    if s == 1.0 { dt_a.exp() } else { s * dt_a.exp() - (s - 1.0) }
}

/// A with a finite number in place of −∞, since −∞ times Δ = 0 is NaN.
fn bounded(a: Var<'_>) -> Var<'_> {
    maximum(&[a, a.tape().full(a.shape(), a.dtype(), -fastest(a.dtype()))])
}

/// Equations 2 and 4 for one token, without D: x, dt [B, E], a [E, N], b, c [B, N], h [B, E, N] to y [B, E] and the
/// next h.
pub fn step<'t>(x: Var<'t>, dt: Var<'t>, a: Var<'t>, b: Var<'t>, c: Var<'t>, h: Var<'t>, s: f64) -> (Var<'t>, Var<'t>) {
    let [batch, e] = x.dims();
    let n = a.shape().last();
    let (x, dt, b, c) = (x.named("x"), dt.named("dt"), b.named("B"), c.named("C"));
    let a_bar = transition(dt.reshape([batch, e, 1]) * bounded(a), s).named("A_bar"); // [B, E, N]
    let h = a_bar * h + (dt * x).reshape([batch, e, 1]) * b.reshape([batch, 1, n]);
    ((h * c.reshape([batch, 1, n])).sum_axis(2, false).named("y"), h)
}

/// x, dt [B, T, E], a [E, N], b and c [B, T, N].
pub type Inputs<'t> = [Var<'t>; 5];

/// [`step`] over a sequence, to y [B, T, E] and the last h.
pub fn recurrent<'t>([x, dt, a, b, c]: Inputs<'t>, mut h: Var<'t>, s: f64) -> (Var<'t>, Var<'t>) {
    let [_, t, _] = x.dims();
    let y = over_time(t, x, |i| {
        let y;
        (y, h) = step(at(x, i), at(dt, i), a, at(b, i), at(c, i), h, s);
        y
    });
    (y, h)
}

/// All states at once by an associative scan.
pub fn parallel<'t>([x, dt, a, b, c]: Inputs<'t>, h: Var<'t>, s: f64) -> (Var<'t>, Var<'t>) {
    let [batch, t, e] = x.dims();
    let n = a.shape().last();
    let a_bar = transition(dt.reshape([batch, t, e, 1]) * bounded(a), s); // [B, T, E, N]
    let input = (dt * x).reshape([batch, t, e, 1]) * b.reshape([batch, t, 1, n]);
    let flat = [batch, t, e * n];
    let (hs, last) = linear_scan_parallel(a_bar.reshape(flat), input.reshape(flat), h.reshape([batch, e * n]));
    let y = (hs.reshape([batch, t, e, n]) * c.reshape([batch, t, 1, n])).sum_axis(3, false);
    (y, last.reshape([batch, e, n]))
}

/// The inverse softplus of a step size that is log-uniform in [0.001, 0.1].
pub(super) fn step_size_bias(g: &mut Gen) -> f64 {
    let dt = g.uniform(0.001f64.ln(), 0.1f64.ln()).exp().max(1e-4);
    dt + (-(-dt).exp_m1()).ln()
}

/// See [`About`].
pub const ABOUT: About = About {
    family: Family::Scans,
    line: "Mamba: rates of decay that depend on the input",
    parent: Some(("s4d", "a step that depends on the input")),
    transition: "s exp(Δ_t A) − (s − 1)",
    state: "E N",
    eigenvalues: "(0, 1) or (−1, 1)",
    cost: "E N",
    scan: true,
    source: "arXiv 2312.00752",
};

/// The mixer.
pub struct Layer {
    e: usize,
    n: usize,
    r: usize,
    window: usize, // W − 1, the inputs that the convolution remembers
    stretch: f64,  // s
    w_in: P,
    conv: Option<(P, P)>, // [E, W] and its bias
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
        let (width, n, r, w) = (c.width, c.state, c.rank(), c.conv);
        let e = c.expand * width;
        // Always this rule, even where the model sets one standard deviation: Δ and A were tuned together with it.
        let mut linear = |name: &str, out: usize, inp: usize| {
            let bound = (inp as f64).powf(-0.5);
            init.uniform_always(name, [out, inp], bound)
        };
        let w_in = linear("in_proj_weight", 2 * e, width);
        let w_x = linear("x_proj_weight", r + 2 * n, e);
        let w_dt = linear("dt_proj_weight", e, r);
        let w_out = linear("out_proj_weight", width, e);
        let bound = (w.max(1) as f64).powf(-0.5);
        let conv = (w > 0).then(|| {
            let draw = |g: &mut Gen, _| g.uniform(-bound, bound);
            (init.custom("conv1d_weight", [e, w], draw), init.custom("conv1d_bias", [e], draw))
        });
        let b_dt = init.custom("dt_proj_bias", [e], |g, _| step_size_bias(g));
        let a_log = init.custom("A_log", [e, n], |_, i| ((i % n + 1) as f64).ln());
        let d = init.full("D", [e], 1.0);
        init.keep_in_f32([a_log, b_dt]);
        let (window, stretch) = (w.saturating_sub(1), c.eigenvalues.stretch());
        Ok(Layer { e, n, r, window, stretch, w_in, conv, w_x, w_dt, b_dt, a_log, d, w_out })
    }

    /// The scan's inputs x, Δ, A, B, C and the gate z, from u [B, T, D]; updates the convolution's window (state 1).
    fn project<'t>(&self, p: &Bound<'t>, u: Var<'t>, state: &mut State<'t>) -> [Var<'t>; 6] {
        let [mut x, z] = linear_parts(u, p[self.w_in], None); // [B, T, E] each
        if let Some((w, bias)) = self.conv {
            let past = state.s[1];
            state.s[1] = remembered(past, x);
            x = x.causal_conv1d(p[w], Some(p[bias]), past);
        }
        let x = x.silu();
        // δ [B, T, R], B and C [B, T, N]
        let [low_rank, b, c] = linear_cut(x, p[self.w_x], None, [self.r, self.n, self.n]);
        let dt = low_rank.linear(p[self.w_dt], Some(p[self.b_dt])).softplus().cast(u.dtype());
        let a = p[self.a_log].decay_rate();
        [x, dt, a, b, c, z]
    }

    /// The skip D x, the gate and the output projection.
    fn output<'t>(&self, p: &Bound<'t>, y: Var<'t>, x: Var<'t>, z: Var<'t>) -> Var<'t> {
        y.gated_skip(p[self.d], x, z).linear(p[self.w_out], None)
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
        if self.conv.is_some() { vec![h, ("past x", [b, self.window, self.e].into())] } else { vec![h] }
    }

    fn step<'t>(&self, p: &Bound<'t>, u: Var<'t>, state: &mut State<'t>) -> Var<'t> {
        let [batch, d] = u.dims();
        let [x, dt, a, b, c, z] = self.project(p, u.reshape([batch, 1, d]), state);
        let (y, h) = step(at(x, 0), at(dt, 0), a, at(b, 0), at(c, 0), state.s[0], self.stretch);
        state.s[0] = h;
        self.output(p, y.reshape([batch, 1, self.e]), x, z).reshape([batch, d])
    }

    fn sequence<'t>(&self, p: &Bound<'t>, u: Var<'t>, state: &mut State<'t>, form: Form) -> Var<'t> {
        let [x, dt, a, b, c, z] = self.project(p, u, state);
        let (y, h) = match form {
            Form::Scan(chunk) => selective_scan(x, dt, a, b, c, state.s[0], self.stretch, chunk),
            _ => parallel([x, dt, a, b, c], state.s[0], self.stretch),
        };
        state.s[0] = h;
        self.output(p, y, x, z)
    }
}
