//! RWKV-7's time mixing (Peng et al. 2025, arXiv 2503.14456; as in the authors' rwkv_v7_demo.py): a memory that fades
//! by channel, erases what it holds under one key, and writes under another.
//!
//! ```text
//! x^m = x_t + μ_m ⊙ (x_{t-1} − x_t)                                      m in r, w, k, v, a, g
//! r = W_r x^r,  k = W_k x^k,  v = W_v x^v                                per head
//! v ← v + σ(v_0 + x^v W_v1 W_v2) ⊙ (v of the first block − v)            in later blocks
//! ln w = −e^(−1/2) σ(w_0 + tanh(x^w W_w1) W_w2)                          w in (0.545, 1)
//! a = σ(a_0 + x^a W_a1 W_a2),  g = σ(x^g W_g1) W_g2
//! κ = k ⊙ k_k / ‖k ⊙ k_k‖,  k ← k ⊙ (1 + (a − 1) ⊙ k_a)
//! S_t = diag(w) S_{t-1} − (s a ⊙ κ) (κᵀ S_{t-1}) + k vᵀ                  s = 1, or 2 (see below)                   (1)
//! o_t = S_tᵀ r                                                                                                     (2)
//! y_t = W_o (g ⊙ (GroupNorm(o) + (Σ r k r_k) v))                         norm and sum per head
//! ```
//!
//! The transition diag(w) − (a ⊙ κ) κᵀ has real eigenvalues. As w ≥ 0.545 and a < 1 they are in (−0.455, 1): one can be
//! negative, but fades. With `eigenvalues = "-1..1"`, s = 2 and they reach −1, which is what parity needs.
//!
//! In sequence this is [`erase_write`](crate::ops::erase_write) with two keys: what κ / w recalls of the faded memory
//! is erased under a ⊙ κ.
//!
//! At the start μ, w_0, a_0, k_k, k_a and r_k are those of the authors' training code, and W_o = 0. The low-rank maps go
//! through K channels; their first factor is 0, and the second normal, of deviation 0.1 over the root of its larger side,
//! where the authors' is orthogonal, times 0.1.
//!
//! Shapes, per head: r, w, k, a, κ [B, T, H, K], v [B, T, H, V], S [B, H, K, V].
//!
//! | form | work |
//! |---|---|
//! | recurrent | O(T K V), T steps |
//! | parallel | the whole sequence as one chunk: O(T² (K + V)) |
//! | chunked | O(T (C (K + V) + C² + K V)) |

use super::prelude::*;
use crate::ops::erase_write::two_keys;

/// r, ln w, k, v, −κ and a ⊙ κ: [.., H, K] each.
pub type Inputs<'t> = [Var<'t>; 6];

/// ε of the norm of each head, as the authors have it.
pub const EPS: f64 = 64e-5;

/// Equations (1) and (2) for one token: S [B, H, K, V] to o [B, H, V] and the next S.
pub fn step<'t>([r, w, k, v, a, b]: Inputs<'t>, s: Var<'t>, scale: f64) -> (Var<'t>, Var<'t>) {
    let erased = recall(s, a.named("minus kappa"));
    let s = insert_axis(w.exp().named("w"), 3) * s + outer(b.named("a kappa"), erased.named("erased"));
    let s = s + outer(k.named("k"), v.named("v"));
    ((scale * recall(s, r.named("r"))).named("o"), s)
}

/// The forms over a sequence: S [B, H, K, V] to o [B, T, H, V] and the last S.
pub fn sequence<'t>(x: Inputs<'t>, mut s: Var<'t>, scale: f64, form: Form) -> (Var<'t>, Var<'t>) {
    let ([r, w, k, v, a, b], t) = (x, x[0].shape().at(1));
    if form == Form::Recurrent || t == 0 {
        let o = over_time(t, v, |i| {
            let o;
            (o, s) = step(x.map(|x| at(x, i)), s, scale);
            o
        });
        return (o, s);
    }
    let chunk = if let Form::Chunked(chunk) = form { Some(chunk) } else { None };
    two_keys([r, k, v, -a / w.exp(), w, b], s, scale, chunk)
}

/// A layer's weights by the names that they have in the published code.
pub type Weights<'a, 't> = &'a dyn Fn(&str) -> Var<'t>;

/// What the memory takes, v for later layers, and the gate: x [B, T, D], the token before it [B, 1, D], the values of
/// the first layer if they are mixed in, H, and s.
pub fn project<'t>(
    w: Weights<'_, 't>,
    x: Var<'t>,
    past: Var<'t>,
    v_first: Option<Var<'t>>,
    h: usize,
    s: f64,
) -> (Inputs<'t>, Var<'t>) {
    let row = |name: &str| w(name).reshape([w(name).shape().last()]);
    // Each token mixed with the one before it: a convolution of two taps.
    let mixed = |name: &str| {
        let mu = row(name).reshape([x.shape().last(), 1]);
        x.causal_conv1d(Var::concat(&[mu, 1.0 - mu], 1), None, past)
    };
    let map = |x: Var<'t>, name: &str, bias: Option<Var<'t>>| x.linear(w(name).transpose(0, 1), bias);
    let through = |x: Var<'t>, name: &str| map(x, &format!("{name}2"), None);
    let into = |x: Var<'t>, name: &str| map(x, &format!("{name}1"), None);
    let biased = |x: Var<'t>, name: &str| map(x, &format!("{name}2"), Some(row(&format!("{name}0"))));
    let r = mixed("x_r").linear(w("receptance_weight"), None);
    let rate = biased(into(mixed("x_w"), "w").tanh(), "w").sigmoid();
    let k = mixed("x_k").linear(w("key_weight"), None);
    let x_v = mixed("x_v");
    let mut v = x_v.linear(w("value_weight"), None);
    if let Some(first) = v_first {
        v = v + (first - v) * biased(into(x_v, "v"), "v").sigmoid();
    }
    let a = biased(into(mixed("x_a"), "a"), "a").sigmoid();
    let g = through(into(mixed("x_g"), "g").sigmoid(), "g");
    let kappa = heads(k * row("k_k"), h).l2_norm(1e-12);
    let k = k * (a * row("k_a") + (1.0 - row("k_a")));
    let a = if s == 1.0 { a } else { s * a };
    let [r, w, k, v, a] = [r, -(-0.5f64).exp() * rate, k, v, a].map(|x| heads(x, h));
    ([r, w, k, v, -kappa, a * kappa], g)
}

/// y [B, T, D] of what was read, o [B, T, H, V].
pub fn output<'t>(w: Weights<'_, 't>, [r, _, k, v, _, _]: Inputs<'t>, o: Var<'t>, g: Var<'t>, eps: f64) -> Var<'t> {
    let ones = o.tape().full([o.shape().last()], o.dtype(), 1.0);
    let normed = merge_heads(o.layer_norm(ones, None, eps)) * w("ln_x_weight") + w("ln_x_bias");
    let own = (r * k * w("r_k")).sum_axis(3, true) * v;
    ((normed + merge_heads(own)) * g).linear(w("output_weight"), None)
}

/// See [`About`].
pub const ABOUT: About = About {
    family: Family::DeltaRules,
    line: "RWKV-7: erases under a key of its own",
    parent: Some(("kda", "an erase key of its own")),
    transition: "diag(w_t) − (a_t ⊙ κ_t) κ_tᵀ",
    state: "H K V",
    eigenvalues: "(−0.455, 1) or (−1, 1)",
    cost: "H K V",
    source: "arXiv 2503.14456",
};

/// The mixer.
pub struct Layer {
    h: usize,
    k: usize,
    width: usize, // D
    stretch: f64, // s
    later: bool,  // not the first block
    weights: Vec<(&'static str, P)>,
}

impl Layer {
    /// H heads of width K over the model's width.
    pub fn new(c: &ModelConfig, init: &mut Init) -> Result<Layer> {
        let (d, e, h, k) = (c.width, c.inner(), c.heads, c.head_dim);
        // How deep the block is: from 0 to 1, and from 1 down.
        let layers = c.layers.max(init.layer + 1) as f64;
        let (depth, left) = (init.layer as f64 / (layers - 1.0).max(1.0), 1.0 - init.layer as f64 / layers);
        let place = move |i: usize, n: usize| i as f64 / (n - 1).max(1) as f64;
        let zigzag = move |i: usize| {
            let z = 2.0 * place(i % k, k) - 1.0;
            z * z.abs()
        };
        let mut weights = vec![];
        for (name, power) in [("x_r", 0.2), ("x_w", 0.9), ("x_k", 0.7), ("x_v", 0.7), ("x_a", 0.9), ("x_g", 0.2)] {
            let mu = move |_: &mut Gen, i: usize| 1.0 - (i as f64 / d as f64).powf(power * left);
            weights.push((name, init.custom(name, [d], mu)));
        }
        type Start<'a> = (&'static str, &'a dyn Fn(usize) -> f64);
        let starts: [Start; 5] = [
            ("w0", &|i| -5.5 + 6.0 * place(i, e).powf(1.0 + depth.powf(0.3)) + 2.5 * zigzag(i)),
            ("a0", &|i| -0.19 + 0.3 * zigzag(i) + 0.4 * (place(i, e) - 0.5)),
            ("k_k", &|i| 0.71 - 0.1 * (place(i, e) - 0.5)),
            ("k_a", &|_| 1.02),
            ("ln_x_weight", &|_| 1.0),
        ];
        for (name, start) in starts {
            weights.push((name, init.custom(name, [e], |_, i| start(i))));
        }
        weights.push(("ln_x_bias", init.full("ln_x_bias", [e], 0.0)));
        weights.push(("r_k", init.full("r_k", [h, k], -0.04)));
        let later = init.layer > 0;
        if later {
            weights.push(("v0", init.custom("v0", [e], |_, i| 0.73 - 0.4 * (place(i, e) - 0.5))));
        }
        let maps = [("w1", "w2"), ("a1", "a2"), ("g1", "g2"), ("v1", "v2")];
        for (first, second) in maps.into_iter().take(if later { 4 } else { 3 }) {
            weights.push((first, init.normal(first, [d, k], 0.0)));
            weights.push((second, init.normal(second, [k, e], 0.1 * (e.max(k) as f64).powf(-0.5))));
        }
        let bound = (d as f64).powf(-0.5);
        for (name, size) in [("receptance_weight", 0.5), ("key_weight", 0.05), ("value_weight", 0.5)] {
            weights.push((name, init.uniform(name, [e, d], size * bound)));
        }
        weights.push(("output_weight", init.normal("output_weight", [d, e], 0.0)));
        Ok(Layer { h, k, width: d, stretch: c.eigenvalues.stretch(), later, weights })
    }

    fn weight<'t>(&self, p: &Bound<'t>, name: &str) -> Var<'t> {
        let found = self.weights.iter().find(|w| w.0 == name);
        found.map_or_else(|| panic!("rwkv7 has no weight '{name}'"), |w| p[w.1])
    }

    /// The memory's inputs and the gate; the last token (state 1) moves on.
    fn project<'t>(&self, p: &Bound<'t>, x: Var<'t>, state: &mut State<'t>) -> (Inputs<'t>, Var<'t>) {
        let past = state.s[1];
        state.s[1] = remembered(past, x);
        // The first block leaves its values to the others.
        let first = state.passed.filter(|_| self.later);
        let (inputs, g) = project(&|name| self.weight(p, name), x, past, first, self.h, self.stretch);
        if !self.later {
            state.passed = Some(merge_heads(inputs[3]));
        }
        (inputs, g)
    }
}

impl Mixer for Layer {
    fn capabilities(&self) -> Capabilities {
        Capabilities { eigenvalues: true, ..Capabilities::default() }
    }

    fn state(&self, b: usize) -> Vec<(&'static str, Shape)> {
        vec![("S", [b, self.h, self.k, self.k].into()), ("past x", [b, 1, self.width].into())]
    }

    fn sequence<'t>(&self, p: &Bound<'t>, x: Var<'t>, state: &mut State<'t>, form: Form) -> Var<'t> {
        let (x, g) = self.project(p, x, state);
        let (o, s) = sequence(x, state.s[0], 1.0, form);
        state.s[0] = s;
        output(&|name| self.weight(p, name), x, o, g, EPS)
    }
}
