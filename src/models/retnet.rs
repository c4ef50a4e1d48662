//! RetNet (Sun et al. 2023, arXiv 2307.08621): linear attention that forgets at a fixed rate for each head, with keys
//! and queries turned by their distance.
//!
//! ```text
//! q_t, k_t, v_t = W_q x_t, W_k x_t / √K, W_v x_t                         per head
//! γ_h = 1 − 2^(−5 − h),  h from 0                                        fixed
//! S_t = γ R S_{t-1} + k_t v_tᵀ                                           R turns pair j by −θ_j                    (1)
//! o_t = S_tᵀ q_t                                                                                                   (2)
//! y_t = W_o (RMSNorm(o_t) ⊙ SiLU(W_g x_t))                               norm per head, without a weight
//! ```
//!
//! θ_j = 10000^(−j / (K/2 − 1)), j from 0. The authors turn queries and keys by their positions instead, which is the
//! same for all reads: q_t and k_s meet at the angle (t − s) θ. That is what the parallel and chunked form do, from the
//! first token of the piece on; the state here is turned back at the end, and knows no position.
//!
//! The transition γ R has the eigenvalues γ e^(±iθ_j): complex, but the same at every step, so that no input decides
//! whether the state turns. An odd last channel has γ.
//!
//! Projections start Xavier-uniform with gain 2^−2.5, W_o with gain 1/2. Heads are square here; the published ones have V = 2 K.
//!
//! Shapes, per head: q, k [B, T, H, K], v, o [B, T, H, V], γ `[H]`, S [B, H, K, V], y [B, T, D]; forms and their work
//! as in [`gla`](super::gla).

use super::{
    lti::Fixed,
    memories::{add, gated, read},
    prelude::*,
};

/// ln γ_h for H heads.
pub(crate) fn rates(h: usize) -> Vec<f64> {
    (0..h).map(|h| (-(2f64.powf(-5.0 - h as f64))).ln_1p()).collect() // (γ_h)
}

/// Equations (1) and (2) for one token: q, k [B, H, K], v [B, H, V], S [B, H, K, V] to o and the next S.
fn step<'t>([q, k, v]: [Var<'t>; 3], [g, theta]: [Var<'t>; 2], s: Var<'t>) -> (Var<'t>, Var<'t>) {
    let ([_, h, n], pairs) = (k.dims(), theta.shape().last());
    let gamma = g.exp().reshape([1, h, 1]);
    let [cos, sin] = [theta.cos(), theta.sin()].map(|x| x.cast(k.dtype()));
    let [re, im] = [(gamma * cos).named("Re lambda"), (gamma * sin).named("Im lambda")];
    let odd = s.narrow(2, 2 * pairs, n % 2) * insert_axis(gamma, 3);
    let turned = turn_state(s.narrow(2, 0, 2 * pairs), [re, -im]); // (1)
    let s = add(k, v, Var::concat(&[turned, odd], 2)); // (1)
    (read(q, s, 1.0), s) // (2)
}

/// The forms over a sequence: q, k [B, T, H, K], v [B, T, H, V], S [B, H, K, V] to o [B, T, H, V] and the last S.
fn sequence<'t>(x: [Var<'t>; 3], [g, theta]: [Var<'t>; 2], s: Var<'t>, form: Form) -> (Var<'t>, Var<'t>) {
    let ([q, k, v], [b, t, h, _]) = (x, x[1].dims());
    if form == Form::Recurrent {
        return over_time_with(t, v, s, |i, s| step(x.map(|x| at(x, i)), [g, theta], s));
    }
    let full = |shape: &[usize], value: f64| k.tape().full(shape, k.dtype(), value);
    // The turns of so many steps, in f32 at least: bf16 has neither the whole numbers above 256 nor the digits of a large angle.
    let turns = |steps: Var<'t>| [(steps * theta).cos(), (steps * theta).sin()].map(|x| x.cast(k.dtype()));
    let one = |shape: &[usize], value: f64| k.tape().full(shape, theta.dtype(), value);
    let steps = turns(one(&[t, 1, 1], 1.0).cumsum(0));
    let (o, s) = gated([turn(q, steps), turn(k, steps), v, full(&[b, t, h, 1], 0.0) + g], s, 1.0, form);
    (o, turn_state(s, turns(one(&[1, 1, 1], -(t as f64)))))
}

/// See [`About`].
pub(crate) const ABOUT: About = About {
    family: Family::Memories,
    line: "RetNet: fixed decay and rotation",
    parent: Some(("linear_transformer", "fixed decay and rotation")),
    transition: "γ_h R, fixed",
    state: "H K V",
    eigenvalues: "γ e^(±iθ), fixed",
    cost: "H K V",
    source: "arXiv 2307.08621",
};

/// The mixer.
pub struct Layer {
    h: usize,
    k: usize,
    w_qkv: P,
    w_g: P,
    w_o: P,
    fixed: [Fixed; 2], // ln γ [H, 1] and θ [K/2]
}

impl Layer {
    /// H heads of width K over the model's width.
    pub fn new(c: &ModelConfig, init: &mut Init) -> Result<Layer> {
        let (width, inner, pairs) = (c.width, c.inner(), c.head_dim / 2);
        let theta = |j: usize| 10_000f64.powf(-(j as f64) / (pairs.max(2) - 1) as f64);
        Ok(Layer {
            h: c.heads,
            k: c.head_dim,
            w_qkv: init.uniform("w_qkv", [3 * inner, width], xavier(inner, width, SMALL_GAIN)),
            w_g: init.uniform("w_g", [inner, width], xavier(inner, width, SMALL_GAIN)),
            // A gain of ½ would round otherwise, and change the last bit of initial weights.
            w_o: init.uniform("w_o", [width, inner], 2f64.powf(1.5) * xavier(width, inner, SMALL_GAIN)),
            fixed: [Fixed::new(rates(c.heads), &[c.heads, 1]), Fixed::new((0..pairs).map(theta).collect(), &[pairs])],
        })
    }

    /// ln γ in the type of x, and θ in f32 at least.
    fn fixed<'t>(&self, x: Var<'t>) -> [Var<'t>; 2] {
        let [g, theta] = self.fixed.each_ref().map(|fixed| fixed.beside(x));
        [g.cast(x.dtype()), theta]
    }

    /// q, k and v [B, T, H, K] of x [B, T, D].
    fn project<'t>(&self, p: &Bound<'t>, x: Var<'t>) -> [Var<'t>; 3] {
        let [q, k, v] = linear_heads(x, p[self.w_qkv], self.h); // (q_t)
        [q, inverse_root(self.k) * k, v] // (q_t)
    }
}

impl Mixer for Layer {
    fn forms(&self) -> Vec<Form> {
        FORMS.to_vec()
    }

    fn state(&self, b: usize) -> Vec<(&'static str, Shape)> {
        vec![("S", [b, self.h, self.k, self.k].into())]
    }

    fn sequence<'t>(&self, p: &Bound<'t>, x: Var<'t>, state: &mut State<'t>, form: Form) -> Var<'t> {
        let (o, s) = sequence(self.project(p, x), self.fixed(x), state.s[0], form);
        state.s[0] = s;
        let (one, gate) = (x.tape().full([self.k], x.dtype(), 1.0), x.linear(p[self.w_g], None).silu());
        normed_output(o, one, Some(gate), p[self.w_o]) // (y_t)
    }
}
