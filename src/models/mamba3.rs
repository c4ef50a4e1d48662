//! Mamba-3 with one input and output a head (arXiv 2603.15569; the layer is that of the authors' mamba3): Mamba-2 whose
//! state turns, by angles that depend on the input, and whose writes follow the trapezoidal rule.
//!
//! ```text
//! [z, x, B, C, δ, a', λ', θ'] = W_in u                                   x in H heads of P channels; B, C, θ' for all of them
//! Δ_t = softplus(δ_t + dt_bias)                                          one per head
//! a_t = −max(h(a'), 10⁻⁴),  h(x) = 1 + x, or 1/(1 − x) where x < 0       one per head
//! λ_t = σ(λ'),  φ_t = φ_{t-1} + Δ_t π tanh θ'_t (mod 2π)                 λ one per head, φ one per pair of states
//! q_t = R(φ_t) (RMSNorm(C_t) + b_C),  k_t = R(φ_t) (RMSNorm(B_t) + b_B)  R turns the pairs (2j, 2j + 1)
//! α_t = exp(Δ_t a_t),  β_t = (1 − λ_t) Δ_t α_t,  γ_t = λ_t Δ_t
//! S_t = α_t S_{t-1} + β_t k_{t-1} v_{t-1}ᵀ + γ_t k_t v_tᵀ                v = x                                     (1)
//! o_t = S_tᵀ q_t + D v_t                                                                                           (2)
//! out = W_out (o ⊙ SiLU(z))
//! ```
//!
//! λ = 1 is Mamba-2's step, λ = ½ the trapezoid. As keys and queries are turned by the same running angle, the memory
//! that a query meets is turned by Δ θ at every step: its eigenvalues are α e^(±iΔθ), complex, and each input chooses
//! them. Turning by 2π/m at a one and not at a zero counts ones modulo m, for as long as α ≤ exp(−10⁻⁴ Δ) lets it.
//!
//! In sequence a token writes when the next one comes, both of its shares at once, and is itself read beside the
//! memory. Then each is one step of [`gated_linear_attention`](crate::ops::gated_linear_attention), with the key, value
//! and gate of the token before:
//!
//! ```text
//! U_t = α_{t-1} U_{t-1} + (γ_{t-1} + (1 − λ_t) Δ_t) k_{t-1} v_{t-1}ᵀ      U_1 = S_0 + (1 − λ_1) Δ_1 k_0 v_0ᵀ
//! S_t = α_t U_t + γ_t k_t v_tᵀ                                            o_t = α_t U_tᵀ q_t + γ_t (k_t·q_t) v_t + D v_t
//! ```
//!
//! At the start dt_bias makes Δ log-uniform in [0.001, 0.1], b_B, b_C and D are 1; weights as torch's `nn.Linear`. P is
//! the `head_dim`, N the `state`, rounded up to an even number.
//!
//! Shapes: q, k [B, T, H, N], v [B, T, H, P], Δ, a, λ [B, T, H], θ', φ [B, T, H, N/2], S [B, H, N, P]; forms and their
//! work as in [`gla`](super::gla) with K = N, V = P.

use super::{
    About, Bound, Family, Form, Init, Mixer, ModelConfig, P, State, at, linear_cut, mamba,
    memories::{gated, nothing, one_token, pieces, turn},
    over_time,
};
use crate::{
    autograd::Var,
    error::Result,
    ops::words::{insert_axis, maximum, outer, recall},
    tensor::Shape,
};

/// What moves the memory: q, k [.., H, N] before they are turned, v [.., H, P], Δ, a, λ [.., H], θ = π tanh θ'
/// [.., H, S].
#[derive(Clone, Copy)]
pub struct Inputs<'t> {
    /// Queries
    pub q: Var<'t>,
    /// Keys
    pub k: Var<'t>,
    /// Values
    pub v: Var<'t>,
    /// Step sizes
    pub dt: Var<'t>,
    /// Rates of decay
    pub a: Var<'t>,
    /// How much of a step is written at its end
    pub lambda: Var<'t>,
    /// How fast the state turns
    pub theta: Var<'t>,
}

impl<'t> Inputs<'t> {
    fn at(self, i: usize) -> Inputs<'t> {
        let Inputs { q, k, v, dt, a, lambda, theta } = self;
        let [q, k, v, dt, a, lambda, theta] = [q, k, v, dt, a, lambda, theta].map(|x| at(x, i));
        Inputs { q, k, v, dt, a, lambda, theta }
    }
}

/// What is carried: S [B, H, N, P], φ [B, H, S], and the turned key [B, H, N] and the value [B, H, P] of the last
/// token.
#[derive(Clone, Copy)]
pub struct Memory<'t> {
    /// S
    pub s: Var<'t>,
    /// φ
    pub phi: Var<'t>,
    /// k
    pub k: Var<'t>,
    /// v
    pub v: Var<'t>,
}

/// Equations (1) and (2) for one token, without D: to o [B, H, P].
pub fn step<'t>(x: Inputs<'t>, m: &mut Memory<'t>) -> Var<'t> {
    let turned = insert_axis(x.dt.named("dt"), 2) * x.theta;
    m.phi = (m.phi + turned).wrap();
    let angles = [m.phi.cos(), m.phi.sin()];
    let (q, k, v) = (turn(x.q, angles).named("q"), turn(x.k, angles).named("k"), x.v.named("v"));
    let alpha = (x.dt * x.a).exp();
    let decay = insert_axis(alpha, 2);
    let _shown = [(decay * turned.cos()).named("Re lambda"), (decay * turned.sin()).named("Im lambda")];
    let beta = ((1.0 - x.lambda) * x.dt * alpha).named("beta");
    let gamma = (x.lambda * x.dt).named("gamma");
    let fade = |x: Var<'t>| insert_axis(x, 2);
    m.s = insert_axis(decay, 3) * m.s + outer(fade(beta) * m.k, m.v) + outer(fade(gamma) * k, v);
    (m.k, m.v) = (k, v);
    recall(m.s, q).named("o")
}

/// The forms over a sequence: o [B, T, H, P].
pub fn sequence<'t>(x: Inputs<'t>, m: &mut Memory<'t>, form: Form) -> Var<'t> {
    let [_, t, _, _] = x.k.dims();
    if form == Form::Recurrent || t == 0 {
        return over_time(t, x.v, |i| step(x.at(i), m));
    }
    let phi = angles(m.phi, insert_axis(x.dt, 3) * x.theta);
    let angles = [phi.cos(), phi.sin()];
    let (q, k) = (turn(x.q, angles), turn(x.k, angles));
    let (g, gamma) = (x.dt * x.a, x.lambda * x.dt);
    let before = |first: Var<'t>, x: Var<'t>| Var::concat(&[insert_axis(first, 1), x.narrow(1, 0, t - 1)], 1);
    let none = nothing(at(g, 0)); // S_0 has faded, and has what was written before it
    let share = before(none, gamma) + (1.0 - x.lambda) * x.dt;
    let per_head = |x: Var<'t>| insert_axis(x, 3);
    let written = [per_head(share) * before(m.k, k), before(m.v, x.v), per_head(before(none, g))];
    let (o, u) = gated([per_head(g.exp()) * q, written[0], written[1], written[2]], m.s, 1.0, form);
    let own = per_head(gamma * (q * k).sum_axis(3, false)) * x.v;
    let [phi, k, v, alpha, gamma] = [phi, k, x.v, g.exp(), gamma].map(|x| at(x, t - 1));
    let s = insert_axis(insert_axis(alpha, 2), 3) * u + outer(insert_axis(gamma, 2) * k, v);
    *m = Memory { s, phi, k, v };
    o + own
}

/// φ_t, from the one before, of the turns [B, T, H, S]. After every 32 steps whole turns are left out: a sum over
/// everything would lose the digits of an angle.
fn angles<'t>(mut phi: Var<'t>, turns: Var<'t>) -> Var<'t> {
    let part = |(from, n)| {
        let all = (insert_axis(phi, 1) + turns.narrow(1, from, n).cumsum(1)).wrap();
        phi = at(all, n - 1);
        all
    };
    Var::concat(&pieces(turns.shape().at(1), 32).map(part).collect::<Vec<_>>(), 1)
}

/// a of a'.
fn rate(x: Var<'_>) -> Var<'_> {
    let zero = nothing(x);
    let (up, down) = (maximum(&[x, zero]), maximum(&[-x, zero]));
    // 1 + x where x ≥ 0, else 1 / (1 − x): one of the two is 1.
    -maximum(&[(1.0 + up) / (1.0 + down), x.tape().full(x.shape(), x.dtype(), 1e-4)])
}

/// See [`About`].
pub const ABOUT: About = About {
    family: Family::Memories,
    line: "Mamba-3: a rotation that depends on the input",
    parent: Some(("mamba2", "rotations that depend on the input")),
    transition: "exp(Δ_t a_t) R(Δ_t θ_t)",
    state: "H N P",
    eigenvalues: "e^(Δa ± iΔθ)",
    cost: "H N P",
    scan: false,
    source: "arXiv 2603.15569",
};

/// The mixer.
pub struct Layer {
    h: usize,
    p: usize,
    n: usize,
    w_in: P,
    dt_bias: P,
    norms: [P; 2],
    q_bias: P,
    k_bias: P,
    d: P,
    w_out: P,
}

impl Layer {
    /// H heads of P = `head_dim` channels with N = `state` states.
    pub fn new(c: &ModelConfig, init: &mut Init) -> Result<Layer> {
        let (width, h, p, e) = (c.width, c.heads, c.head_dim, c.inner());
        let n = c.state.next_multiple_of(2);
        let mut linear = |name: &str, out: usize, inp: usize| {
            let bound = (inp as f64).powf(-0.5);
            init.uniform_always(name, [out, inp], bound)
        };
        let w_in = linear("in_proj_weight", 2 * e + 2 * n + 3 * h + n / 2, width);
        let w_out = linear("out_proj_weight", width, e);
        let dt_bias = init.custom("dt_bias", [h], |g, _| mamba::step_size_bias(g));
        init.keep_in_f32([dt_bias]);
        let norms = ["C_norm", "B_norm"].map(|name| init.full(name, [n], 1.0));
        let [q_bias, k_bias] = ["C_bias", "B_bias"].map(|name| init.full(name, [h, n], 1.0));
        let d = init.full("D", [h], 1.0);
        Ok(Layer { h, p, n, w_in, dt_bias, norms, q_bias, k_bias, d, w_out })
    }

    /// The memory's inputs and z [B, T, E], of u [B, T, D].
    fn project<'t>(&self, p: &Bound<'t>, u: Var<'t>) -> (Inputs<'t>, Var<'t>) {
        let ([b, t, _], h, n, e) = (u.dims(), self.h, self.n, self.h * self.p);
        let (wide, w) = (2 * e + 2 * n, p[self.w_in]);
        let [z, x, k, q] = linear_cut(u, w.narrow(0, 0, wide), None, [e, e, n, n]);
        let dt = u.linear(w.narrow(0, wide, h), Some(p[self.dt_bias])).softplus().cast(u.dtype());
        let [a, lambda, theta] = linear_cut(u, w.narrow(0, wide + h, 2 * h + n / 2), None, [h, h, n / 2]);
        let theta = std::f64::consts::PI * theta.tanh().reshape([b, t, 1, n / 2]);
        let states = |x: Var<'t>, norm, bias| x.rms_norm(p[norm], 1e-5).reshape([b, t, 1, n]) + p[bias];
        let inputs = Inputs {
            q: states(q, self.norms[0], self.q_bias),
            k: states(k, self.norms[1], self.k_bias),
            v: x.reshape([b, t, h, self.p]),
            dt,
            a: rate(a),
            lambda: lambda.sigmoid(),
            theta: theta + u.tape().full([h, 1], u.dtype(), 0.0),
        };
        (inputs, z)
    }

    fn output<'t>(&self, p: &Bound<'t>, o: Var<'t>, v: Var<'t>, z: Var<'t>) -> Var<'t> {
        let o = o + p[self.d].reshape([self.h, 1]) * v;
        (o.reshape(z.shape()) * z.silu()).linear(p[self.w_out], None)
    }
}

fn memory<'t>(state: &State<'t>) -> Memory<'t> {
    Memory { s: state.s[0], phi: state.s[1], k: state.s[2], v: state.s[3] }
}

impl Mixer for Layer {
    fn forms(&self) -> Vec<Form> {
        vec![Form::Recurrent, Form::Parallel, Form::Chunked(Form::CHUNK)]
    }

    fn state(&self, b: usize) -> Vec<(&'static str, Shape)> {
        let (h, n, p) = (self.h, self.n, self.p);
        let last = [("past k", [b, h, n].into()), ("past v", [b, h, p].into())];
        [("S", [b, h, n, p].into()), ("phi", [b, h, n / 2].into())].into_iter().chain(last).collect()
    }

    fn step<'t>(&self, p: &Bound<'t>, u: Var<'t>, state: &mut State<'t>) -> Var<'t> {
        one_token(u, |u| self.sequence(p, u, state, Form::Recurrent))
    }

    fn sequence<'t>(&self, p: &Bound<'t>, u: Var<'t>, state: &mut State<'t>, form: Form) -> Var<'t> {
        let ((x, z), mut m) = (self.project(p, u), memory(state));
        let o = sequence(x, &mut m, form);
        state.s = vec![m.s, m.phi, m.k, m.v];
        self.output(p, o, x.v, z)
    }
}
