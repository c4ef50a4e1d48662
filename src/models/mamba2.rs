//! Mamba-2, or SSD (Dao and Gu 2024, arXiv 2405.21060; the layer is that of the authors' mamba_simple): Mamba with one
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
//! At the start A_log = ln U(1, 16), dt_bias makes Δ log-uniform in [0.001, 0.1], D = 1; weights as torch's
//! `nn.Linear`.
//!
//! Shapes: B, C [B, T, H, N], x [B, T, H, P], Δ, Ā [B, T, H], S [B, H, N, P]; forms and their work as in
//! [`gla`](super::gla) with K = N, V = P. E = H P channels, with P the `head_dim` and N the `state`.

use super::{
    About, Bound, Capabilities, Family, Form, Init, Mixer, ModelConfig, P, State, at, linear_cut, mamba,
    memories::{gated, nothing},
    remembered,
};
use crate::{
    autograd::{Gen, Var},
    error::Result,
    ops::{
        scan::linear_scan,
        words::{insert_axis, outer, recall},
    },
    tensor::Shape,
};

/// Added to Ā: it is not 0 then, and has a sign and a logarithm.
const LEAST: f64 = 1e-18;

/// C, B [.., H, N], x Δ [.., H, P], and Δ A [.., H].
type Inputs<'t> = [Var<'t>; 4];

fn transition(g: Var<'_>, s: f64) -> Var<'_> {
    if s == 1.0 { g.exp() } else { s * g.exp() - (s - 1.0) }
}

/// Equations (1) and (2) for one token, without D: S [B, H, N, P] to y [B, H, P] and the next S.
pub fn step<'t>([c, b, x, g]: Inputs<'t>, state: Var<'t>, s: f64) -> (Var<'t>, Var<'t>) {
    let a_bar = transition(g, s).named("A_bar");
    let state = insert_axis(insert_axis(a_bar, 2), 3) * state + outer(b.named("B"), x.named("x"));
    (recall(state, c.named("C")).named("y"), state)
}

/// The forms over a sequence: y [B, T, H, P] and the last S.
pub fn sequence<'t>([c, b, x, g]: Inputs<'t>, state: Var<'t>, s: f64, form: Form) -> (Var<'t>, Var<'t>) {
    let [batch, t, h] = g.dims();
    if s == 1.0 || t == 0 {
        return gated([c, b, x, insert_axis(g, 3)], state, 1.0, form);
    }
    let a_bar = transition(g, s) + LEAST;
    let size = a_bar.square().sqrt();
    let chunk = if let Form::Chunked(chunk) = form { chunk } else { t };
    let start = g.tape().full([batch, h], g.dtype(), 1.0);
    let (signs, last) = linear_scan(a_bar / size, nothing(g), start, chunk);
    let signs = insert_axis(signs, 3);
    let (y, state) = gated([signs * c, signs * b, x, insert_axis(size.log(), 3)], state, 1.0, form);
    (y, last.reshape([batch, h, 1, 1]) * state)
}

/// See [`About`].
pub const ABOUT: About = About {
    family: Family::Memories,
    line: "Mamba-2 (SSD): one gate a head",
    parent: Some(("mamba", "one gate a head: a matrix memory")),
    transition: "s exp(Δ_t A) − (s − 1)",
    state: "H N P",
    eigenvalues: "(0, 1) or (−1, 1)",
    cost: "H N P",
    scan: false,
    source: "arXiv 2405.21060",
};

/// The mixer.
pub struct Layer {
    h: usize,
    p: usize,
    n: usize,
    groups: usize,
    window: usize, // W − 1, the inputs that the convolution remembers
    eps: f64,
    stretch: f64, // s
    w_in: P,
    conv: Option<(P, P)>, // [E + 2 G N, W] and its bias
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
        let (width, n, h, w) = (c.width, c.state, c.heads, c.conv);
        let e = c.inner();
        let mixed = e + 2 * groups * n;
        let mut linear = |name: &str, out: usize, inp: usize| {
            let bound = (inp as f64).powf(-0.5);
            init.uniform_always(name, [out, inp], bound)
        };
        let w_in = linear("in_proj_weight", e + mixed + h, width);
        let w_out = linear("out_proj_weight", width, e);
        let bound = (w.max(1) as f64).powf(-0.5);
        let conv = (w > 0).then(|| {
            let draw = |g: &mut Gen, _| g.uniform(-bound, bound);
            (init.custom("conv1d_weight", [mixed, w], draw), init.custom("conv1d_bias", [mixed], draw))
        });
        let dt_bias = init.custom("dt_bias", [h], |g, _| mamba::step_size_bias(g));
        let a_log = init.custom("A_log", [h], |g, _| g.uniform(1.0, 16.0).ln());
        init.keep_in_f32([dt_bias, a_log]);
        let (d, norm) = (init.full("D", [h], 1.0), init.full("norm_weight", [e], 1.0));
        let (window, stretch, p) = (w.saturating_sub(1), c.eigenvalues.stretch(), c.head_dim);
        Layer { h, p, n, groups, window, eps, stretch, w_in, conv, dt_bias, a_log, d, norm, w_out }
    }

    /// The memory's inputs, x [B, T, H, P] without Δ, and z [B, T, E], of u [B, T, D]; the convolution's window (state
    /// 1) moves on.
    fn project<'t>(&self, p: &Bound<'t>, u: Var<'t>, state: &mut State<'t>) -> (Inputs<'t>, Var<'t>, Var<'t>) {
        let ([batch, t, _], e, shared) = (u.dims(), self.h * self.p, self.groups * self.n);
        let (mixed, w) = (e + 2 * shared, p[self.w_in]);
        let [z, mut x] = linear_cut(u, w.narrow(0, 0, e + mixed), None, [e, mixed]);
        let dt = u.linear(w.narrow(0, e + mixed, self.h), Some(p[self.dt_bias])).softplus();
        if let Some((w, bias)) = self.conv {
            let past = state.s[1];
            state.s[1] = remembered(past, x);
            x = x.causal_conv1d(p[w], Some(p[bias]), past);
        }
        let x = x.silu();
        let ones = u.tape().full([self.h / self.groups, 1], u.dtype(), 1.0);
        let of_heads =
            |x: Var<'t>| (x.reshape([batch, t, self.groups, 1, self.n]) * ones).reshape([batch, t, self.h, self.n]);
        let [b, c] = [e, e + shared].map(|at| of_heads(x.narrow(2, at, shared)));
        let x = x.narrow(2, 0, e).reshape([batch, t, self.h, self.p]);
        let g = (p[self.a_log].decay_rate() * dt).cast(u.dtype());
        ([c, b, insert_axis(dt.cast(u.dtype()), 3) * x, g], x, z)
    }

    /// The skip D x, the gate, the norm of each group and the output projection.
    fn output<'t>(&self, p: &Bound<'t>, y: Var<'t>, x: Var<'t>, z: Var<'t>) -> Var<'t> {
        let ([batch, t, e], groups, flat) = (z.dims(), self.groups, z.shape());
        let ones = |shape: &[usize]| y.tape().full(shape, y.dtype(), 1.0);
        let d = (p[self.d].reshape([self.h, 1]) * ones(&[self.p])).reshape([e]);
        let y = y.reshape(flat).gated_skip(d, x.reshape(flat), z);
        let y = if groups == 1 {
            y.rms_norm(p[self.norm], self.eps)
        } else {
            let normed = y.reshape([batch, t, groups, e / groups]).rms_norm(ones(&[e / groups]), self.eps);
            normed.reshape(flat) * p[self.norm]
        };
        y.linear(p[self.w_out], None)
    }
}

impl Mixer for Layer {
    fn forms(&self) -> Vec<Form> {
        vec![Form::Recurrent, Form::Parallel, Form::Chunked(Form::CHUNK)]
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { eigenvalues: true, ..Capabilities::default() }
    }

    fn state(&self, b: usize) -> Vec<(&'static str, Shape)> {
        let (s, mixed) = (("S", [b, self.h, self.n, self.p].into()), self.h * self.p + 2 * self.groups * self.n);
        if self.conv.is_some() { vec![s, ("past xBC", [b, self.window, mixed].into())] } else { vec![s] }
    }

    fn step<'t>(&self, p: &Bound<'t>, u: Var<'t>, state: &mut State<'t>) -> Var<'t> {
        let [b, d] = u.dims();
        let (inputs, x, z) = self.project(p, u.reshape([b, 1, d]), state);
        let (y, s) = step(inputs.map(|x| at(x, 0)), state.s[0], self.stretch);
        state.s[0] = s;
        self.output(p, y.reshape([b, 1, self.h, self.p]), x, z).reshape([b, d])
    }

    fn sequence<'t>(&self, p: &Bound<'t>, u: Var<'t>, state: &mut State<'t>, form: Form) -> Var<'t> {
        let (inputs, x, z) = self.project(p, u, state);
        let (y, s) = sequence(inputs, state.s[0], self.stretch, form);
        state.s[0] = s;
        self.output(p, y, x, z)
    }
}
