//! The published Mamba, in blocks without MLP:
//!
//! ```text
//! [x, z] = W_in u,  x = SiLU(conv(x)),  [δ, B, C] = W_x x,  Δ = softplus(W_Δ δ + b_Δ),  A = −exp(A_log)
//! h_t = exp(Δ_t A) h_{t-1} + Δ_t B_t x_t,  y_t = C_t·h_t + D x_t,  out = W_out (y ⊙ SiLU(z))
//! ```

use super::{Config, Defect, Init, Part, decoder::Decoder};
use crate::{
    autograd::Var,
    models::{Form, State, at, maps::step_size_bias, over_time, split},
    ops::selective::selective_scan,
};

pub(super) const DECODER: Decoder = Decoder { positions: false, mlp: false, mixer: "mamba" };

pub(super) fn init(c: &Config, init: &mut Init) {
    DECODER.init(c, init, |c, init| {
        let (e, n, r, w) = (c.expand * c.h_dim, c.d_state, c.dt_rank, c.d_conv);
        init.custom("A_log", [e, n], |_, i| ((i % n + 1) as f64).ln());
        init.full("D", [e], 1.0);
        init.linear_torch("in_proj", 2 * e, c.h_dim, false);
        let bound = (w as f64).powf(-0.5);
        init.custom("conv1d.weight", [e, 1, w], |g, _| g.uniform(-bound, bound));
        init.custom("conv1d.bias", [e], |g, _| g.uniform(-bound, bound));
        init.linear_torch("x_proj", r + 2 * n, e, false);
        init.linear_torch("dt_proj", e, r, false);
        init.custom("dt_proj.bias", [e], |g, _| step_size_bias(g));
        init.linear_torch("out_proj", c.h_dim, e, false);
    });
}

/// The convolution of x [B, T, E] with w [E, 1, W] and a bias `[E]`, `ahead` as published.
///
/// DEFECT: y_t = b + Σ_j w_j x_{t+j}, j = 0 … W−1: it looks *ahead*. The published code pads W−1 zeros on the left (the
/// state), lets the convolution pad W−1 more on both sides, and keeps the last T outputs. The clean mixer's
/// convolution is causal, y_t = b + Σ_j w_j x_{t−W+1+j}.
#[track_caller]
pub fn convolution<'t>(x: Var<'t>, w: Var<'t>, bias: Var<'t>, ahead: bool) -> Var<'t> {
    let ([b, t, e], [_, _, width]) = (x.dims(), w.dims());
    let zeros = x.tape().full([b, width - 1, e], x.dtype(), 0.0);
    let w = w.reshape([e, width]);
    if !ahead {
        return x.causal_conv1d(w, Some(bias), zeros);
    }
    // A causal convolution over [x, zeros], read W−1 steps later.
    let padded = Var::concat(&[x, zeros], 1);
    padded.causal_conv1d(w, Some(bias), zeros).narrow(1, width - 1, t)
}

/// u [B, T, h] to y [B, T, h].
#[track_caller]
pub fn mixer<'t>(c: &Config, p: &Part<'_, 't>, u: Var<'t>, _: &mut State<'t>, form: Form) -> Var<'t> {
    let ([b, t, _], n, r) = (u.dims(), c.d_state, c.dt_rank);
    let [x, z] = split(p.linear_unbiased("in_proj", u)); // [B, T, E] each
    let x = convolution(x, p.get("conv1d.weight"), p.get("conv1d.bias"), c.has(Defect::Lookahead)).silu();
    let e = x.shape().last();
    let selection = p.linear_unbiased("x_proj", x); // [B, T, R + 2 N]
    let dt = p.linear("dt_proj", selection.narrow(2, 0, r)).softplus();
    let [input, output] = [r, r + n].map(|start| selection.narrow(2, start, n)); // B and C, [B, T, N]
    let a = p.get("A_log").decay_rate(); // [E, N]
    // DEFECT: an initial state is accepted and ignored; it is always zero. The clean mixer uses it.
    let mut h = u.tape().full([b, e, n], u.dtype(), 0.0);
    let y = if form == Form::Fused {
        selective_scan(x, dt, a, input, output, h, 1.0, Form::CHUNK).0
    } else {
        over_time(t, x, |i| {
            let (dt, x) = (at(dt, i).reshape([b, e, 1]), at(x, i).reshape([b, e, 1]));
            h = (dt * a).exp() * h + dt * x * at(input, i).reshape([b, 1, n]);
            (h * at(output, i).reshape([b, 1, n])).sum_axis(2, false)
        })
    };
    p.linear_unbiased("out_proj", y.gated_skip(p.get("D"), x, z))
}
