//! The published LRU, with a decoder of its own: no embedding, no MLP, no final norm.
//!
//! ```text
//! x = W_in float(token) + b_in                                              [B, T, d_model]
//! for each layer:   u = BatchNorm(x)
//!                   λ = exp(−exp(ν) + i exp(θ)),  γ = exp(½ ln(1 − exp(−2 exp(ν)) + 1e-5))
//!                   h_t = λ ⊙ h_{t-1} + γ ⊙ (B u_t),  s = Re(C h) + D ⊙ u     h ∈ ℂ^h_dim
//!                   g = gelu(s),  x = x + (W₁ g + b₁) ⊙ σ(W₂ g + b₂)          the exact GELU
//! y = log_softmax(W_out x + b_out)
//! ```
//!
//! In single precision the gradients near the input can lose digits: at the published sizes two correct implementations
//! differed by up to one percent. (The fixture, at d_model 12, agrees to 1e-5.) Compare in double precision.

use super::{Config, Defect, Init, Mode, Output, Part, Pass, constant};
use crate::{
    autograd::Var,
    models::{Form, State, at, over_time, split},
    ops::lru_scan::{joined, lru_scan_joined},
    tensor::Shape,
};

/// 0.003 short of 2π, as published.
#[allow(clippy::approx_constant)]
const MAX_PHASE: f64 = 6.28;

pub(super) fn init(c: &Config, init: &mut Init) {
    let (n, width) = (c.h_dim, c.d_model);
    // One number per token, or a one-hot vector.
    let features = if c.has(Defect::ScalarTokens) { 1 } else { c.num_input_classes };
    init.linear_torch("encoder.input_projection", width, features, true);
    for l in 0..c.n_layers {
        init.scope(&format!("encoder.layers.{l}"), |init| {
            init.scope("lru", |init| {
                // |λ|² uniform in (0, 1). The published draw is NaN once in 10⁵, where u + 1e-5 > 1; this one never is.
                init.custom("nu_log", [n], |g, _| (-0.5 * (g.uniform(1e-5, 1.0 - 2e-5) + 1e-5).ln()).ln());
                init.custom("theta_log", [n], |g, _| (MAX_PHASE * g.uniform(1e-5, 1.0)).ln());
                for name in ["B_re", "B_im"] {
                    init.normal(name, [n, width], (2.0 * width as f64).powf(-0.5));
                }
                for name in ["C_re", "C_im"] {
                    init.normal(name, [width, n], (n as f64).powf(-0.5));
                }
                init.custom("D", [width], |g, _| g.gauss());
            });
            init.norm("normalization", width);
            init.linear_torch("out1", width, width, true);
            init.linear_torch("out2", width, width, true);
        });
    }
    init.linear_torch("decoder", c.output_size, width, true);
}

/// Shapes of the carried h, real and imaginary part.
pub(super) fn state(c: &Config, b: usize) -> Vec<Shape> {
    vec![[b, c.h_dim].into(); 2]
}

#[track_caller]
pub(super) fn run<'t>(c: &Config, p: &Part<'_, 't>, tokens: Var<'t>, pass: &mut Pass<'_, 't>) -> Output<'t> {
    let [b, t] = tokens.dims();
    let weight = p.get("encoder.input_projection.weight");
    // DEFECT: a token is one number, its index, so that three or more tokens lie on a line. The clean decoder embeds
    // tokens for every mixer.
    let mut input = tokens.value().to_f64();
    let features = weight.shape().last();
    if !c.has(Defect::ScalarTokens) {
        input = input.iter().flat_map(|x| (0..features).map(|i| f64::from(u8::from(*x == i as f64)))).collect();
    }
    let input = constant(weight, input, &[b, t, features]);
    let mut x = p.linear("encoder.input_projection", input); // [B, T, d_model]
    let mut batch = vec![];
    for l in 0..c.n_layers {
        let p = p.part(&format!("encoder.layers.{l}"));
        let u = if c.has(Defect::BatchNorm) {
            let running = if let Mode::Evaluation(s) = pass.mode { Some(s.of(l)) } else { None };
            let (u, seen) = batch_norm(&p.part("normalization"), x, running.as_ref());
            batch.extend(seen);
            u
        } else {
            p.layer_norm("normalization", x)
        };
        let g = layer(&p.part("lru"), u, &mut pass.state[l], pass.form).gelu();
        x = x + p.linear("out1", g) * p.linear("out2", g).sigmoid();
    }
    // DEFECT: the loss takes the softmax of this again, which changes nothing: log-softmax is idempotent. The clean
    // decoder gives logits.
    Output { logits: p.linear("decoder", x).log_softmax(), batch }
}

/// BatchNorm of x [B, T, D] over batch and time. Without `running` it uses, and also returns, the batch's mean and
/// variance `[D]`.
///
/// DEFECT: in training every output depends on every token of every sequence, the future included. The clean decoder
/// has LayerNorm.
#[track_caller]
pub fn batch_norm<'t>(
    p: &Part<'_, 't>,
    x: Var<'t>,
    running: Option<&[Vec<f64>; 2]>,
) -> (Var<'t>, Option<[Var<'t>; 2]>) {
    let [b, t, d] = x.dims();
    let rows = x.reshape([b * t, d]);
    let (mean, variance) = match running {
        Some([mean, variance]) => (constant(x, mean.clone(), &[d]), constant(x, variance.clone(), &[d])),
        None => {
            let mean = rows.mean_axis(0, false);
            (mean, (rows - mean).square().mean_axis(0, false))
        }
    };
    let y = (rows - mean) / (variance + 1e-5).sqrt() * p.get("weight") + p.get("bias");
    (y.reshape([b, t, d]), running.is_none().then_some([mean, variance]))
}

/// The recurrence: u [B, T, D] to Re(C h) + D ⊙ u.
#[track_caller]
pub fn layer<'t>(p: &Part<'_, 't>, u: Var<'t>, state: &mut State<'t>, form: Form) -> Var<'t> {
    let [_, t, _] = u.dims();
    let (rate, theta) = (p.get("nu_log").decay_rate(), -p.get("theta_log").decay_rate());
    let magnitude = rate.exp();
    let (re, im) = (magnitude * theta.cos(), magnitude * theta.sin()); // λ [N]
    // DEFECT: γ is a function of λ throughout training, and gradients flow through it. In the paper and in the clean
    // mixer ln γ is a parameter that only starts from this value.
    let gamma = (0.5 * (1.0 - (2.0 * rate).exp() + 1e-5).log()).exp();
    // γ ⊙ (B u) as (γ B) u, the imaginary part behind the real one.
    let rows = ["B_re", "B_im"].map(|b| gamma.reshape([gamma.shape().last(), 1]) * p.get(b));
    let x = u.linear(Var::concat(&rows, 0), None); // [B, T, 2N]
    let mut h = [state.s[0], state.s[1]];
    let all = if form == Form::Fused {
        let (all, last) = lru_scan_joined((re, im), x, (h[0], h[1]), Form::CHUNK);
        h = [last.0, last.1];
        all
    } else {
        let (x, mut imaginary): ([Var<'t>; 2], _) = (split(x), vec![]);
        let h_re = over_time(t, x[0], |k| {
            h = [re * h[0] - im * h[1] + at(x[0], k), re * h[1] + im * h[0] + at(x[1], k)];
            imaginary.push(h[1]);
            h[0]
        });
        joined((h_re, over_time(t, x[1], |k| imaginary[k])))
    };
    state.s = h.to_vec();
    all.linear(Var::concat(&[p.get("C_re"), -p.get("C_im")], 1), None) + u * p.get("D") // Re(C h) = Re C Re h − Im C Im h
}
