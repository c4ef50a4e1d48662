//! Mamba-2, or SSD (Dao and Gu 2024, arXiv 2405.21060; the layer is that of the authors' mamba2_simple): Mamba with one
//! decay a head, which makes it linear attention with a gate.
//!
//! ```text
//! [z, xBC, dt] = W_in u,  xBC ← SiLU(conv(xBC)),  [x, B, C] = xBC        x in H heads of P channels
//! Δ_t = softplus(dt_t + dt_bias),  A = −exp(A_log)                       one per head
//! Ā_t = s exp(Δ_t A) − (s − 1)                                           s = 1, or 2 (see below)
//! S_t = Ā_t S_{t-1} + B_t (Δ_t x_t)ᵀ                                     N states for each channel                 (1)
//! y_t = S_tᵀ C_t + D x_t                                                                                           (2)
//! out = W_out RMSNorm(y ⊙ SiLU(z))                                       the gate comes before the norm
//! ```
//!
//! B and C are shared by all heads (or by those of one of several groups, each with a norm of its own). The transition
//! is a number times the identity: Ā in (0, 1) for s = 1. With `eigenvalues = "-1..1"`, s = 2 and Ā in (−1, 1): a step
//! can turn the whole state over, which is what parity needs.
//!
//! In sequence, ln |Ā| is the gate of [`gated_linear_attention`](crate::ops::gated_linear_attention), and signs go into
//! the rows: with π_t the product of the signs of Ā_1 … Ā_t, queries π C and keys π B give the same reads, and π_T S_T.
//!
//! At the start A_log = ln U(1, 16), dt_bias makes Δ log-uniform in [0.001, 0.1], D = 1; weights as `nn.Linear`.
//! Shapes: B, C [B, T, H, N], x, y [B, T, H, P], z [B, T, E], Δ, Ā [B, T, H], S [B, H, N, P], out [B, T, D]; forms and
//! their work as in [`gla`](super::gla) with K = N, V = P. E = H P channels, with P the `head_dim` and N the `state`.

use super::{mamba, memories::gated, prelude::*};
use crate::ops::scan::linear_scan;

/// Added to Ā: it is not 0 then, and has a sign and a logarithm.
const LEAST: f64 = 1e-18;

/// C, B [.., H, N], x Δ [.., H, P], and Δ A [.., H].
type Inputs<'t> = [Var<'t>; 4];

/// Equations (1) and (2) for one token, without D: S [B, H, N, P] to y [B, H, P] and the next S.
pub(crate) fn step<'t>([c, b, x, g]: Inputs<'t>, state: Var<'t>, s: f64) -> (Var<'t>, Var<'t>) {
    let a_bar = mamba::transition(g, s).named("A_bar"); // (Ā_t)
    let state = insert_axis(insert_axis(a_bar, 2), 3) * state + outer(b.named("B"), x.named("x")); // (1)
    (recall(state, c.named("C")).named("y"), state) // (2)
}

/// The forms over a sequence: y [B, T, H, P] and the last S.
pub(crate) fn sequence<'t>(inputs: Inputs<'t>, state: Var<'t>, s: f64, form: Form) -> (Var<'t>, Var<'t>) {
    let ([c, b, x, g], [batch, t, h]) = (inputs, inputs[3].dims());
    if form == Form::Recurrent {
        return over_time_with(t, x, state, |i, state| step(inputs.map(|x| at(x, i)), state, s));
    }
    if s == 1.0 || t == 0 {
        return gated([c, b, x, insert_axis(g, 3)], state, 1.0, form);
    }
    let a_bar = mamba::transition(g, s) + LEAST;
    let size = a_bar.square().sqrt();
    let start = g.tape().full([batch, h], g.dtype(), 1.0);
    let (signs, last) = linear_scan(a_bar / size, zeros_like(g), start, form.chunk(t));
    let signs = insert_axis(signs, 3);
    let (y, state) = gated([signs * c, signs * b, x, insert_axis(size.log(), 3)], state, 1.0, form);
    (y, last.reshape([batch, h, 1, 1]) * state)
}

/// See [`About`].
pub(crate) const ABOUT: About = About {
    family: Family::Memories,
    line: "Mamba-2 (SSD): one gate a head",
    parent: Some(("mamba", "one gate a head: a matrix memory")),
    transition: "s exp(Δ_t A) − (s − 1)",
    state: "H N P",
    eigenvalues: "(0, 1) or (−1, 1)",
    cost: "H N P",
    source: "arXiv 2405.21060",
};

/// The mixer.
pub struct Layer {
    h: usize,
    p: usize,
    n: usize,
    groups: usize,
    eps: f64,
    stretch: f64, // s
    w_in: P,
    conv: Conv, // of E + 2 G N channels
    dt_bias: P,
    a_log: P,
    d: P,
    norm: P,
    w_out: P,
}

impl Layer {
    /// H heads of P = `head_dim` channels with N = `state` states.
    pub fn new(c: &ModelConfig, init: &mut Init) -> Result<Layer> {
        Ok(Layer::in_groups(c, 1, 1e-5, init))
    }

    /// The same where so many groups of heads have a B, a C and a norm, with this ε, of their own.
    pub fn in_groups(c: &ModelConfig, groups: usize, eps: f64, init: &mut Init) -> Layer {
        let (width, n, h, p, e) = (c.width, c.state, c.heads, c.head_dim, c.inner());
        let mixed = e + 2 * groups * n;
        let w_in = init.torch_linear("in_proj_weight", e + mixed + h, width);
        let w_out = init.torch_linear("out_proj_weight", width, e);
        let conv = Conv::new(init, "conv1d_weight", Some("conv1d_bias"), mixed, c.conv);
        let dt_bias = init.in_f32("dt_bias", [h], |g, _| step_size_bias(g));
        let a_log = init.in_f32("A_log", [h], |g, _| g.uniform(1.0, 16.0).ln());
        let (d, norm) = (init.full("D", [h], 1.0), init.full("norm_weight", [e], 1.0));
        Layer { h, p, n, groups, eps, stretch: c.eigenvalues.stretch(), w_in, conv, dt_bias, a_log, d, norm, w_out }
    }

    /// The memory's inputs, x [B, T, H, P] without Δ, and z [B, T, E], of u [B, T, D]; the convolution's window (state
    /// 1) moves on.
    fn project<'t>(&self, p: &Bound<'t>, u: Var<'t>, state: &mut State<'t>) -> (Inputs<'t>, Var<'t>, Var<'t>) {
        let ([batch, t, _], e, shared) = (u.dims(), self.h * self.p, self.groups * self.n);
        let (mixed, w) = (e + 2 * shared, p[self.w_in]);
        let [z, x] = linear_cut(u, w.narrow(0, 0, e + mixed), None, [e, mixed]); // (z)
        let dt = u.linear(w.narrow(0, e + mixed, self.h), Some(p[self.dt_bias])).softplus(); // (z) (Δ_t)
        let x = self.conv.apply(p, x, state, 1); // (xBC)
        let ones = u.tape().full([self.h / self.groups, 1], u.dtype(), 1.0);
        let of_heads =
            |x: Var<'t>| (x.reshape([batch, t, self.groups, 1, self.n]) * ones).reshape([batch, t, self.h, self.n]);
        let [b, c] = [e, e + shared].map(|at| of_heads(x.narrow(2, at, shared))); // (x)
        let x = x.narrow(2, 0, e).reshape([batch, t, self.h, self.p]); // (x)
        let g = (p[self.a_log].decay_rate() * dt.named("dt")).cast(u.dtype()); // (A)
        ([c, b, insert_axis(dt.cast(u.dtype()), 3) * x, g], x, z) // (1)
    }

    /// The skip D x, the gate, the norm of each group and the output projection.
    fn output<'t>(&self, p: &Bound<'t>, y: Var<'t>, x: Var<'t>, z: Var<'t>) -> Var<'t> {
        let d = (p[self.d].reshape([self.h, 1]) * y.tape().full([self.p], y.dtype(), 1.0)).reshape([self.h * self.p]);
        let y = y.reshape(z.shape()).gated_skip(d, x.reshape(z.shape()), z); // (2) (out)
        y.rms_norm_in_groups(self.groups, p[self.norm], self.eps).linear(p[self.w_out], None) // (out)
    }
}

impl Mixer for Layer {
    fn forms(&self) -> Vec<Form> {
        FORMS.to_vec()
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { eigenvalues: true, ..Capabilities::default() }
    }

    fn state(&self, b: usize) -> Vec<(&'static str, Shape)> {
        [("S", [b, self.h, self.n, self.p].into())].into_iter().chain(self.conv.window("past xBC", b)).collect()
    }

    fn sequence<'t>(&self, p: &Bound<'t>, u: Var<'t>, state: &mut State<'t>, form: Form) -> Var<'t> {
        let (inputs, x, z) = self.project(p, u, state);
        let (y, s) = sequence(inputs, state.s[0], self.stretch, form);
        state.s[0] = s;
        self.output(p, y, x, z)
    }
}
