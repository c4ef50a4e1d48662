//! The linear maps that several mixers have: from the stream to heads, and from heads back to it.

use super::{Bound, Init, ModelConfig, P, heads, linear_parts, merge_heads};
use crate::autograd::{Gen, Var};
use std::f64::consts::FRAC_1_SQRT_2;

/// 1 / √K: the factor of a score of heads of width K.
pub fn inverse_root(k: usize) -> f64 {
    (k as f64).powf(-0.5)
}

/// N maps without bias, one below another, into heads: x [B, T, D] and W [N H K, D] to N of [B, T, H, K].
#[track_caller]
pub fn linear_heads<'t, const N: usize>(x: Var<'t>, w: Var<'t>, h: usize) -> [Var<'t>; N] {
    linear_parts(x, w, None).map(|x| heads(x, h))
}

/// W_o (RMSNorm(o) ⊙ gate): o [B, T, H, V] and a gate [B, T, H V] or none to y [B, T, D]. A norm with V weights is of
/// each head, one with H V of all heads together.
#[track_caller]
pub fn normed_output<'t>(o: Var<'t>, norm: Var<'t>, gate: Option<Var<'t>>, w_o: Var<'t>) -> Var<'t> {
    let of_each_head = norm.shape().last() == o.shape().last();
    let o = if of_each_head { merge_heads(o.rms_norm(norm, 1e-6)) } else { merge_heads(o).rms_norm(norm, 1e-6) };
    gate.map_or(o, |gate| o * gate).linear(w_o, None)
}

/// W_o (GELU(W_g x) ⊙ LayerNorm(o)), as of Mamba's backbone; the norm is over all heads together.
pub struct GatedOutput {
    w_g: P,
    norm: [P; 2],
    w_o: P,
}

impl GatedOutput {
    /// Out of `inner` channels to the model's width.
    pub fn new(init: &mut Init, width: usize, inner: usize) -> GatedOutput {
        GatedOutput {
            w_g: narrow_normal(init, "w_g", inner, width),
            norm: [init.full("norm", [inner], 1.0), init.full("b_norm", [inner], 0.0)],
            w_o: narrow_normal(init, "w_o", width, inner),
        }
    }

    /// y [B, T, D] of x [B, T, D] and what was read, o [B, T, H, V].
    #[track_caller]
    pub fn apply<'t>(&self, p: &Bound<'t>, x: Var<'t>, o: Var<'t>) -> Var<'t> {
        let o = merge_heads(o).layer_norm(p[self.norm[0]], Some(p[self.norm[1]]), 1e-6);
        (x.linear(p[self.w_g], None).gelu_tanh() * o).linear(p[self.w_o], None)
    }
}

/// A weight matrix [out, in] of normal numbers, of deviation 0.02 unless the model asks for another.
pub fn narrow_normal(init: &mut Init, name: &str, out: usize, inp: usize) -> P {
    let std = init.std.unwrap_or(0.02);
    init.normal(name, [out, inp], std)
}

/// Xavier's bound of a uniform weight matrix [out, in], times this gain.
pub fn xavier(out: usize, inp: usize, gain: f64) -> f64 {
    gain * (6.0 / (out + inp) as f64).sqrt()
}

/// The gain of [`xavier`] in DeltaNet, as its authors have it, and in its kin: 2^-2.5.
pub const SMALL_GAIN: f64 = FRAC_1_SQRT_2 / 4.0;

/// The inverse softplus of a step size Δ that is log-uniform in [0.001, 0.1], as the Mambas draw their bias.
pub fn step_size_bias(g: &mut Gen) -> f64 {
    let dt = g.uniform(0.001f64.ln(), 0.1f64.ln()).exp().max(1e-4);
    dt + (-(-dt).exp_m1()).ln()
}

/// Where the i-th of n is, from 0 to 1.
pub fn place(i: usize, n: usize) -> f64 {
    i as f64 / (n.max(2) - 1) as f64
}

/// x |x|
pub fn signed_square(x: f64) -> f64 {
    x * x.abs()
}

/// W_2 W_1 x: a linear map through few channels.
pub struct LowRank {
    maps: [P; 2],
    transposed: bool, // W_1 is [in, rank], and W_2 [rank, out]
}

impl LowRank {
    /// W_1 [rank, in] and W_2 [out, rank], named `name` with 1 and 2 behind it, normal of deviation 0.02.
    pub fn new(init: &mut Init, name: &str, out: usize, rank: usize, inp: usize) -> LowRank {
        let mut map = |i: usize, out, inp| narrow_normal(init, &format!("{name}{i}"), out, inp);
        LowRank { maps: [map(1, rank, inp), map(2, out, rank)], transposed: false }
    }

    /// The same with W_1 [in, rank] and W_2 [rank, out]. W_1 is 0, and the deviation of W_2 0.1 over the root of its
    /// larger side.
    pub fn transposed(init: &mut Init, name: &str, out: usize, rank: usize, inp: usize) -> LowRank {
        let mut map = |i: usize, shape: [usize; 2], std| init.normal(&format!("{name}{i}"), shape, std);
        let std = 0.1 * (out.max(rank) as f64).powf(-0.5);
        LowRank { maps: [map(1, [inp, rank], 0.0), map(2, [rank, out], std)], transposed: true }
    }

    /// W_2 W_1 x + b of x [B, T, in].
    #[track_caller]
    pub fn apply<'t>(&self, p: &Bound<'t>, x: Var<'t>, b: Option<P>) -> Var<'t> {
        self.around(p, x, |x| x, b.map(|b| p[b]))
    }

    /// W_2 f(W_1 x) + b of x [B, T, in].
    #[track_caller]
    pub fn around<'t>(&self, p: &Bound<'t>, x: Var<'t>, f: impl Fn(Var<'t>) -> Var<'t>, b: Option<Var<'t>>) -> Var<'t> {
        let [first, second] = self.maps.map(|w| if self.transposed { p[w].transpose(0, 1) } else { p[w] });
        f(x.linear(first, None)).linear(second, b)
    }
}

/// GroupNorm whose groups are the heads, with a weight and a bias for every channel.
pub struct GroupNorm {
    w: P,
    b: P,
    /// Added to the variance.
    pub eps: f64,
}

impl GroupNorm {
    /// For this many channels: the weight and the bias, of these names, start at 1 and 0.
    pub fn new(init: &mut Init, [w, b]: [&str; 2], channels: usize, eps: f64) -> GroupNorm {
        GroupNorm { w: init.full(w, [channels], 1.0), b: init.full(b, [channels], 0.0), eps }
    }

    /// Of o [B, T, H, V]: [B, T, H V].
    #[track_caller]
    pub fn apply<'t>(&self, p: &Bound<'t>, o: Var<'t>) -> Var<'t> {
        let ones = o.tape().full([o.shape().last()], o.dtype(), 1.0);
        merge_heads(o.layer_norm(ones, None, self.eps)) * p[self.w] + p[self.b]
    }
}

/// The maps around attention: W_q, W_k and W_v below one another with their biases, and W_o with its bias, for H heads
/// of width K.
pub struct AttentionMaps {
    /// H
    pub h: usize,
    /// K
    pub k: usize,
    qkv: P,
    qkv_bias: P,
    w_o: P,
    b_o: P,
}

impl AttentionMaps {
    /// For the model's width. Biases start at 0.
    pub fn new(c: &ModelConfig, init: &mut Init) -> AttentionMaps {
        AttentionMaps::around(c, init, |_| ()).0
    }

    /// The same around parameters of the heads, which are declared between those into heads and those out of them.
    pub fn around<R>(c: &ModelConfig, init: &mut Init, inside: impl FnOnce(&mut Init) -> R) -> (AttentionMaps, R) {
        let (width, inner) = (c.width, c.inner());
        let (qkv, qkv_bias) = (init.linear("w_qkv", 3 * inner, width), init.full("b_qkv", [3 * inner], 0.0));
        let inside = inside(init);
        let (w_o, b_o) = (init.linear("w_o", width, inner), init.full("b_o", [width], 0.0));
        (AttentionMaps { h: c.heads, k: c.head_dim, qkv, qkv_bias, w_o, b_o }, inside)
    }

    /// q, k and v, [B, T, H, K] each, of x [B, T, D].
    #[track_caller]
    pub fn project<'t>(&self, p: &Bound<'t>, x: Var<'t>) -> [Var<'t>; 3] {
        linear_parts(x, p[self.qkv], Some(p[self.qkv_bias])).map(|x| heads(x, self.h))
    }

    /// y [B, T, D] of what was read, o [B, T, H, K].
    #[track_caller]
    pub fn output<'t>(&self, p: &Bound<'t>, o: Var<'t>) -> Var<'t> {
        merge_heads(o).linear(p[self.w_o], Some(p[self.b_o]))
    }
}
