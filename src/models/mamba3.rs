//! Mamba-3 with one input and output a head (arXiv 2603.15569; the layer is that of the authors' mamba3): Mamba-2 whose
//! state turns, by angles that depend on the input, and whose writes follow the trapezoidal rule.
//!
//! ```text
//! [z, x, B, C, δ, a', λ', θ'] = W_in u                                   x in H heads of P channels; B, C, θ' for all of them
//! Δ_t = softplus(δ_t + dt_bias)                                          one per head
//! a_t = −max(h(a'), 10⁻⁴),  h(x) = 1 + x, or 1/(1 − x) where x < 0       one per head
//! λ_t = σ(λ'),  θ_t = π tanh θ'_t,  φ_t = φ_{t-1} + Δ_t θ_t (mod 2π)     λ one per head, θ, φ one per pair of states
//! q_t = R(φ_t) (RMSNorm(C_t) + b_C),  k_t = R(φ_t) (RMSNorm(B_t) + b_B)    R turns the pairs (2j, 2j + 1)
//! α_t = exp(Δ_t a_t),  β_t = (1 − λ_t) Δ_t α_t,  γ_t = λ_t Δ_t
//! S_t = α_t S_{t-1} + β_t k_{t-1} v_{t-1}ᵀ + γ_t k_t v_tᵀ                v = x                                     (1)
//! o_t = S_tᵀ q_t + D v_t                                                                                           (2)
//! out = W_out (o ⊙ SiLU(z))
//! ```
//!
//! λ = 1 is Mamba-2's step, λ = ½ the trapezoid. As keys and queries are turned by the same running angle, the memory
//! that a query meets is turned by −Δ θ at every step: its eigenvalues are α e^(±iΔθ), complex, and each input chooses
//! them. Turning by 2π/m at a one and not at a zero counts ones modulo m, for as long as α ≤ exp(−10⁻⁴ Δ) lets it.
//!
//! In sequence a token writes both of its shares when the next one comes, and is itself read beside the memory: each is
//! a step of [`gated_linear_attention`](crate::ops::gated_linear_attention) with key, value and gate of the one before:
//!
//! ```text
//! U_t = α_{t-1} U_{t-1} + (γ_{t-1} + (1 − λ_t) Δ_t) k_{t-1} v_{t-1}ᵀ      U_1 = S_0 + (1 − λ_1) Δ_1 k_0 v_0ᵀ
//! S_t = α_t U_t + γ_t k_t v_tᵀ                                            o_t = α_t U_tᵀ q_t + γ_t (k_t·q_t) v_t + D v_t
//! ```
//!
//! At the start dt_bias makes Δ log-uniform in [0.001, 0.1], b_B, b_C and D are 1; weights as torch's `nn.Linear`. P is
//! the `head_dim`, N the `state`, made even. All pairs turn (of theirs half, by default); their released h is softplus.
//! Shapes: q, k [B, T, H, N], v, o [B, T, H, P], Δ, a, λ, α, β, γ [B, T, H], φ [B, T, H, N/2], S [B, H, N, P], z [B, T,
//! E], out [B, T, D]; forms and their work as in [`gla`](super::gla) with K = N, V = P.

use super::{memories::gated, positions::running_angles, prelude::*};

/// The memory's inputs: q, k [.., H, N] before they are turned, v [.., H, P], Δ, a, λ [.., H], θ = π tanh θ' [.., H,
/// N/2]. Δ stays f32 beside bf16, so that φ is summed in f32.
pub(crate) type Inputs<'t> = [Var<'t>; 7];

/// The carried state: S [B, H, N, P], φ [B, H, N/2], and the turned key [B, H, N] and the value [B, H, P] of the last
/// token.
pub(crate) type Memory<'t> = [Var<'t>; 4];

/// Equations (1) and (2) for one token, without D: to o [B, H, P].
pub(crate) fn step<'t>([q, k, v, dt, a, lambda, theta]: Inputs<'t>, memory: &mut Memory<'t>) -> Var<'t> {
    let ([s, phi, k_before, v_before], column) = (*memory, |x: Var<'t>| insert_axis(x, 2));
    let turned = column(dt.named("dt")) * theta.cast(dt.dtype()); // (φ_t)
    let phi = (phi.cast(dt.dtype()) + turned).wrap(); // (φ_t)
    let (angles, dt) = ([phi.cos(), phi.sin()].map(|x| x.cast(v.dtype())), dt.cast(v.dtype()));
    let (q, k, v) = (turn(q, angles).named("q"), turn(k, angles).named("k"), v.named("v")); // (q_t)
    let alpha = (dt * a).exp(); // (α_t)
    let decay = column(alpha);
    let turned = [turned.cos(), turned.sin()].map(|x| decay * x.cast(v.dtype()));
    let _shown = [turned[0].named("Re lambda"), turned[1].named("Im lambda")];
    let beta = ((1.0 - lambda) * dt * alpha).named("beta"); // (β_t)
    let gamma = (lambda * dt).named("gamma"); // (γ_t)
    let s = insert_axis(decay, 3) * s + outer(column(beta) * k_before, v_before) + outer(column(gamma) * k, v); // (1)
    *memory = [s, phi, k, v];
    recall(s, q).named("o") // (2)
}

/// The forms over a sequence: o [B, T, H, P].
pub fn sequence<'t>(x: Inputs<'t>, m: &mut Memory<'t>, form: Form) -> Var<'t> {
    let ([q, k, v, dt, a, lambda, theta], t) = (x, x[0].shape().at(1));
    if form == Form::Recurrent || t == 0 {
        return over_time(t, v, |i| step(x.map(|x| at(x, i)), m));
    }
    let [s, phi, k_before, v_before] = *m;
    let phi = running_angles(phi, insert_axis(dt, 3) * theta.cast(dt.dtype()));
    let (angles, dt) = ([phi.cos(), phi.sin()].map(|x| x.cast(v.dtype())), dt.cast(v.dtype()));
    let (q, k) = (turn(q, angles), turn(k, angles));
    let (g, gamma) = (dt * a, lambda * dt);
    let before = |first: Var<'t>, x: Var<'t>| Var::concat(&[insert_axis(first, 1), x.narrow(1, 0, t - 1)], 1);
    let none = zeros_like(at(g, 0)); // S_0 has faded already, and holds all earlier writes
    let share = before(none, gamma) + (1.0 - lambda) * dt; // (U_t)
    let per_head = |x: Var<'t>| insert_axis(x, 3);
    let [q_u, k_u] = [per_head(g.exp()) * q, per_head(share) * before(k_before, k)]; // (U_t)
    let (o, u) = gated([q_u, k_u, before(v_before, v), per_head(before(none, g))], s, 1.0, form); // (U_t)
    let own = per_head(gamma * (q * k).sum_axis(3, false)) * v; // (S_t = α_t U_t)
    let [phi, k, v, alpha, gamma] = [phi, k, v, g.exp(), gamma].map(|x| at(x, t - 1));
    *m = [insert_axis(insert_axis(alpha, 2), 3) * u + outer(insert_axis(gamma, 2) * k, v), phi, k, v];
    o + own // (S_t = α_t U_t)
}

/// See [`About`].
pub(crate) const ABOUT: About = About {
    family: Family::Memories,
    line: "Mamba-3: a rotation that depends on the input",
    parent: Some(("mamba2", "rotations that depend on the input")),
    transition: "exp(Δ_t a_t) R(−Δ_t θ_t)",
    state: "H N P",
    eigenvalues: "e^(Δa ± iΔθ)",
    cost: "H N P",
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
    biases: [P; 2],
    d: P,
    w_out: P,
}

impl Layer {
    /// H heads of P = `head_dim` channels with N = `state` states.
    pub fn new(c: &ModelConfig, init: &mut Init) -> Result<Layer> {
        let (width, h, p, e, n) = (c.width, c.heads, c.head_dim, c.inner(), c.state.next_multiple_of(2));
        let w_in = init.torch_linear("in_proj_weight", 2 * e + 2 * n + 3 * h + n / 2, width);
        let w_out = init.torch_linear("out_proj_weight", width, e);
        let dt_bias = init.in_f32("dt_bias", [h], |g, _| step_size_bias(g));
        let norms = ["C_norm", "B_norm"].map(|name| init.full(name, [n], 1.0));
        let (biases, d) = (["C_bias", "B_bias"].map(|name| init.full(name, [h, n], 1.0)), init.full("D", [h], 1.0));
        Ok(Layer { h, p, n, w_in, dt_bias, norms, biases, d, w_out })
    }
}

impl Mixer for Layer {
    fn forms(&self) -> Vec<Form> {
        FORMS.to_vec()
    }

    fn state(&self, b: usize) -> Vec<(&'static str, Shape)> {
        let (h, n, p) = (self.h, self.n, self.p);
        let (s, phi) = (("S", [b, h, n, p].into()), ("phi", [b, h, n / 2].into()));
        vec![s, phi, ("past k", [b, h, n].into()), ("past v", [b, h, p].into())]
    }

    fn sequence<'t>(&self, p: &Bound<'t>, u: Var<'t>, state: &mut State<'t>, form: Form) -> Var<'t> {
        let ([b, t, _], h, n, e) = (u.dims(), self.h, self.n, self.h * self.p);
        let (wide, w) = (2 * e + 2 * n, p[self.w_in]);
        let [z, x, k, q] = linear_cut(u, w.narrow(0, 0, wide), None, [e, e, n, n]); // (z)
        let dt = u.linear(w.narrow(0, wide, h), Some(p[self.dt_bias])).softplus(); // (z) (Δ_t)
        let [a, lambda, theta] = linear_cut(u, w.narrow(0, wide + h, 2 * h + n / 2), None, [h, h, n / 2]); // (z)
        let full = |shape: &[usize], value: f64| u.tape().full(shape, u.dtype(), value);
        // 1 + a' where a' ≥ 0, else 1 / (1 − a'): one of the two is 1.
        let a = -maximum(&[(1.0 + relu(a)) / (1.0 + relu(-a)), full(&[b, t, h], 1e-4)]); // (a_t)
        let theta = std::f64::consts::PI * theta.tanh().reshape([b, t, 1, n / 2]) + full(&[h, 1], 0.0); // (φ_t)
        let row = |x: Var<'t>, i: usize| x.rms_norm(p[self.norms[i]], 1e-5).reshape([b, t, 1, n]) + p[self.biases[i]];
        let v = x.reshape([b, t, h, self.p]);
        let mut memory = std::array::from_fn(|i| state.s[i]);
        let o = sequence([row(q, 0), row(k, 1), v, dt, a, lambda.sigmoid(), theta], &mut memory, form); // (λ_t)
        state.s = memory.to_vec();
        ((o + p[self.d].reshape([h, 1]) * v).reshape(z.shape()) * z.silu()).linear(p[self.w_out], None) // (2) (out)
    }
}
