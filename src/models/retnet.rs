//! RetNet (Sun et al. 2023, arXiv 2307.08621): linear attention that forgets at a fixed rate for each head, with keys and
//! queries turned by their distance.
//!
//! ```text
//! q_t, k_t, v_t = W_q x_t, W_k x_t / √K, W_v x_t                         per head
//! γ_h = 1 − 2^(−5 − h),  h from 0                                        fixed
//! S_t = γ R S_{t-1} + k_t v_tᵀ                                           R turns pair j by −θ_j                    (1)
//! o_t = S_tᵀ q_t                                                                                                   (2)
//! y_t = W_o (RMSNorm(o_t) ⊙ SiLU(W_g x_t))                               norm per head, without a weight
//! ```
//!
//! θ_j = 10000^(−j / (K/2 − 1)), j from 0. The authors turn queries and keys by their positions instead, which is the same
//! for all reads: q_t and k_s meet at the angle (t − s) θ. That is what the parallel and chunked form do, from the first
//! token of the piece on; the state here is turned back at the end, and knows no position.
//!
//! The transition γ R has the eigenvalues γ e^(±iθ_j): complex, but the same at every step, so that no input decides
//! whether the state turns. An odd last channel has γ.
//!
//! Projections start Xavier-uniform with gain 2^−2.5, W_o with gain 1/2.
//!
//! Shapes, per head: q, k [B, T, H, K], v [B, T, H, V], S [B, H, K, V]; forms and their work as in [`gla`](super::gla).

use super::{
    Bound, Form, Init, Mixer, ModelConfig, P, State, at,
    delta_net::xavier,
    heads, linear_parts,
    memories::{add, constant, gated, read, turn, turn_state},
    merge_heads,
};
use crate::{autograd::Var, error::Result, tensor::Shape};

/// ln γ_h [1, 1, H, 1], on x's tape.
pub fn rates(x: Var<'_>, h: usize) -> Var<'_> {
    let rate = |h: usize| (-(2f64.powf(-5.0 - h as f64))).ln_1p();
    constant(x, (0..h).map(rate).collect(), &[1, 1, h, 1])
}

/// The cosines and sines [N, 1, K/2] of n θ_j for these n.
fn angles(x: Var<'_>, k: usize, n: impl Iterator<Item = f64> + Clone) -> [Var<'_>; 2] {
    let pairs = k / 2;
    let theta = |j: usize| 10_000f64.powf(-(j as f64) / (pairs.max(2) - 1) as f64);
    [f64::cos, f64::sin].map(|f| {
        let values: Vec<f64> = n.clone().flat_map(|n| (0..pairs).map(move |j| f(n * theta(j)))).collect();
        let steps = n.clone().count();
        constant(x, values, &[steps, 1, pairs])
    })
}

/// Equations (1) and (2) for one token: q, k [B, H, K], v [B, H, V], S [B, H, K, V] to o and the next S.
pub fn step<'t>([q, k, v]: [Var<'t>; 3], s: Var<'t>) -> (Var<'t>, Var<'t>) {
    let [_, h, n] = k.dims();
    let [cos, sin] = angles(k, n, std::iter::once(1.0));
    let gamma = rates(k, h).exp().reshape([1, h, 1]);
    let [re, im] = [(gamma * cos).named("Re lambda"), (gamma * sin).named("Im lambda")];
    let odd = s.narrow(2, n / 2 * 2, n % 2) * gamma.reshape([1, h, 1, 1]);
    let turned = turn_state(s.narrow(2, 0, n / 2 * 2), [re, -im]);
    let s = add(k, v, Var::concat(&[turned, odd], 2));
    (read(q, s, 1.0), s)
}

/// The forms over a sequence: q, k [B, T, H, K], v [B, T, H, V], S [B, H, K, V] to o [B, T, H, V] and the last S.
pub fn sequence<'t>([q, k, v]: [Var<'t>; 3], s: Var<'t>, form: Form) -> (Var<'t>, Var<'t>) {
    let [b, t, h, n] = k.dims();
    let steps = angles(k, n, (1..=t).map(|t| t as f64));
    let g = k.tape().full([b, t, h, 1], k.dtype(), 0.0) + rates(k, h);
    let (o, s) = gated([turn(q, steps), turn(k, steps), v, g], s, 1.0, form);
    (o, turn_state(s, angles(s, n, std::iter::once(-(t as f64)))))
}

/// The mixer.
pub struct Layer {
    h: usize,
    k: usize,
    w_qkv: P,
    w_g: P,
    w_o: P,
}

impl Layer {
    /// H heads of width K over the model's width.
    pub fn new(c: &ModelConfig, init: &mut Init) -> Result<Layer> {
        let (width, inner) = (c.width, c.inner());
        Ok(Layer {
            h: c.heads,
            k: c.head_dim,
            w_qkv: init.uniform("w_qkv", [3 * inner, width], xavier(inner, width)),
            w_g: init.uniform("w_g", [inner, width], xavier(inner, width)),
            w_o: init.uniform("w_o", [width, inner], 2f64.powf(1.5) * xavier(width, inner)),
        })
    }

    /// q, k and v [B, T, H, K] of x [B, T, D].
    fn project<'t>(&self, p: &Bound<'t>, x: Var<'t>) -> [Var<'t>; 3] {
        let [q, k, v] = linear_parts(x, p[self.w_qkv], None).map(|x| heads(x, self.h));
        [q, (self.k as f64).powf(-0.5) * k, v]
    }

    fn output<'t>(&self, p: &Bound<'t>, o: Var<'t>, x: Var<'t>) -> Var<'t> {
        let one = x.tape().full([self.k], x.dtype(), 1.0);
        (merge_heads(o.rms_norm(one, 1e-6)) * x.linear_silu(p[self.w_g])).linear(p[self.w_o], None)
    }
}

impl Mixer for Layer {
    fn forms(&self) -> Vec<Form> {
        vec![Form::Recurrent, Form::Parallel, Form::Chunked(Form::CHUNK)]
    }

    fn state(&self, b: usize) -> Vec<(&'static str, Shape)> {
        vec![("S", [b, self.h, self.k, self.k].into())]
    }

    fn step<'t>(&self, p: &Bound<'t>, x: Var<'t>, state: &mut State<'t>) -> Var<'t> {
        let [b, d] = x.dims();
        let x = x.reshape([b, 1, d]);
        let (o, s) = step(self.project(p, x).map(|y| at(y, 0)), state.s[0]);
        state.s[0] = s;
        self.output(p, o.reshape([b, 1, self.h, self.k]), x).reshape([b, d])
    }

    fn sequence<'t>(&self, p: &Bound<'t>, x: Var<'t>, state: &mut State<'t>, form: Form) -> Var<'t> {
        let (o, s) = sequence(self.project(p, x), state.s[0], form);
        state.s[0] = s;
        self.output(p, o, x)
    }
}
