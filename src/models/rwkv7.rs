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
//! negative, but fades. With `eigenvalues = "-1..1"`, s = 2: they reach −1, which is what parity needs, and down to −1.455.
//!
//! In sequence this is [`erase_write`](crate::ops::erase_write) with two keys: what κ / w recalls of the faded memory
//! is erased under a ⊙ κ.
//!
//! At the start μ, w_0, a_0, v_0, k_k, k_a and r_k are those of the authors' training code, and W_o = 0. The low-rank
//! maps go through K channels; their first factor is 0, and the second normal, of deviation 0.1 over the root of its
//! larger side, where the authors' is orthogonal, times 0.1.
//!
//! Shapes, per head: r, w, k, a, κ [B, T, H, K], v, o [B, T, H, V], S [B, H, K, V], x, y [B, T, D], g [B, T, H K].
//!
//! | form | work |
//! |---|---|
//! | recurrent | O(T K V), T steps |
//! | parallel | the whole sequence as one chunk: O(T² (K + V)) |
//! | chunked | O(T (C (K + V) + K V)); with the inverse written out, as on a device, C² more |

use super::prelude::*;
use crate::ops::erase_write::two_keys;

/// r, ln w, k, v, −κ and a ⊙ κ: [.., H, K] each.
pub(crate) type Inputs<'t> = [Var<'t>; 6];

/// Equations (1) and (2) for one token: S [B, H, K, V] to o [B, H, V] and the next S.
pub(crate) fn step<'t>([r, w, k, v, a, b]: Inputs<'t>, s: Var<'t>, scale: f64) -> (Var<'t>, Var<'t>) {
    let erased = recall(s, a.named("minus kappa")); // (1)
    let s = insert_axis(w.exp().named("w"), 3) * s + outer(b.named("a kappa"), erased.named("erased")); // (1)
    let s = s + outer(k.named("k"), v.named("v")); // (1)
    ((scale * recall(s, r.named("r"))).named("o"), s) // (2)
}

/// The forms over a sequence: S [B, H, K, V] to o [B, T, H, V] and the last S.
pub(crate) fn sequence<'t>(x: Inputs<'t>, s: Var<'t>, scale: f64, form: Form) -> (Var<'t>, Var<'t>) {
    let ([r, w, k, v, a, b], t) = (x, x[0].shape().at(1));
    if form == Form::Recurrent || t == 0 {
        return over_time_with(t, v, s, |i, s| step(x.map(|x| at(x, i)), s, scale));
    }
    let chunk = if let Form::Chunked(chunk) = form { Some(chunk) } else { None };
    two_keys([r, k, v, -a / w.exp(), w, b], s, scale, chunk)
}

/// See [`About`].
pub(crate) const ABOUT: About = About {
    family: Family::DeltaRules,
    line: "RWKV-7: erases under a key of its own",
    parent: Some(("kda", "an erase key of its own")),
    transition: "diag(w_t) − (a_t ⊙ κ_t) κ_tᵀ",
    state: "H K V",
    eigenvalues: "(−0.455, 1) or (−1.455, 1)",
    cost: "H K V",
    source: "arXiv 2503.14456",
};

/// The mixer.
pub struct Layer {
    h: usize,
    k: usize,
    stretch: f64, // s
    shift: TokenShift<6>,
    rows: [P; 4], // w_0, a_0, k_k, k_a
    pub(crate) norm: GroupNorm,
    r_k: P,
    low_rank: [LowRank; 3],      // of w, a, g
    later: Option<(P, LowRank)>, // v_0, and of v
    maps: [P; 3],                // W_r, W_k, W_v
    w_o: P,
}

impl Layer {
    /// H heads of width K over the model's width.
    pub fn new(c: &ModelConfig, init: &mut Init) -> Result<Layer> {
        let (d, e, h, k) = (c.width, c.inner(), c.heads, c.head_dim);
        let [depth, left] = init.depth(c.layers);
        let powers = [("x_r", 0.2), ("x_w", 0.9), ("x_k", 0.7), ("x_v", 0.7), ("x_a", 0.9), ("x_g", 0.2)];
        let shift = TokenShift::new(init, d, powers.map(|(name, power)| (name, power * left)));
        let zigzag = |i: usize| signed_square(2.0 * place(i % k, k) - 1.0);
        let rows = [
            init.custom("w0", [e], |_, i| -5.5 + 6.0 * place(i, e).powf(1.0 + depth.powf(0.3)) + 2.5 * zigzag(i)),
            init.custom("a0", [e], |_, i| -0.19 + 0.3 * zigzag(i) + 0.4 * (place(i, e) - 0.5)),
            init.custom("k_k", [e], |_, i| 0.71 - 0.1 * (place(i, e) - 0.5)),
            init.full("k_a", [e], 1.02),
        ];
        let norm = GroupNorm::new(init, ["ln_x_weight", "ln_x_bias"], e, 64e-5);
        let r_k = init.full("r_k", [h, k], -0.04);
        let v0 = |i| 0.73 - 0.4 * (place(i, e) - 0.5);
        let v0 = (init.layer > 0).then(|| init.custom("v0", [e], |_, i| v0(i)));
        let low_rank = ["w", "a", "g"].map(|name| LowRank::transposed(init, name, e, k, d));
        let later = v0.map(|v0| (v0, LowRank::transposed(init, "v", e, k, d)));
        let maps = [("receptance_weight", 0.5), ("key_weight", 0.05), ("value_weight", 0.5)]
            .map(|(name, size)| init.uniform(name, [e, d], size * (d as f64).powf(-0.5)));
        let w_o = init.normal("output_weight", [d, e], 0.0);
        Ok(Layer { h, k, stretch: c.eigenvalues.stretch(), shift, rows, norm, r_k, low_rank, later, maps, w_o })
    }

    /// The memory's inputs, and the gate, of x [B, T, D]; the last token (state 1) moves on.
    fn project<'t>(&self, p: &Bound<'t>, x: Var<'t>, state: &mut State<'t>) -> (Inputs<'t>, Var<'t>) {
        let [x_r, x_w, x_k, x_v, x_a, x_g] = self.shift.apply(p, x, state, 1); // (x^m)
        // A reshape for each use: in every form a gradient is summed use by use, as when the results were recorded.
        let row = |w: P| p[w].reshape(p[w].shape());
        let ([w0, a0, k_k, k_a], [of_w, of_a, of_g]) = (self.rows, &self.low_rank);
        let [r, k, v] = [(x_r, 0), (x_k, 1), (x_v, 2)].map(|(x, i)| x.linear(p[self.maps[i]], None)); // (r)
        // The first block leaves its values to the others.
        let first = state.passed.filter(|_| self.later.is_some()).unwrap_or(v);
        state.passed = Some(first);
        let mix = |(v0, of_v): &(P, LowRank)| of_v.around(p, x_v, |x| x, Some(row(*v0))).sigmoid(); // (v ←)
        let v = self.later.as_ref().map_or(v, |later| v + (first - v) * mix(later)); // (v ←)
        let w = -(-0.5f64).exp() * of_w.around(p, x_w, |x| x.tanh().named("low"), Some(row(w0))).sigmoid(); // (ln w)
        let a = of_a.around(p, x_a, |x| x, Some(row(a0))).sigmoid(); // (a)
        let g = of_g.around(p, x_g, Var::sigmoid, None); // (g)
        let kappa = heads(k * row(k_k), self.h).l2_norm(1e-12); // (κ)
        let k = k * (a * row(k_a) + (1.0 - row(k_a))); // (k ←)
        let a = if self.stretch == 1.0 { a } else { self.stretch * a }; // (1)
        let [r, w, k, v, a] = [r, w, k, v, a].map(|x| heads(x, self.h));
        ([r, w, k, v, -kappa, a * kappa], g) // (1)
    }
}

impl Mixer for Layer {
    fn capabilities(&self) -> Capabilities {
        Capabilities { eigenvalues: true, ..Capabilities::default() }
    }

    fn state(&self, b: usize) -> Vec<(&'static str, Shape)> {
        vec![("S", [b, self.h, self.k, self.k].into()), self.shift.last("past x", b)]
    }

    fn sequence<'t>(&self, p: &Bound<'t>, x: Var<'t>, state: &mut State<'t>, form: Form) -> Var<'t> {
        let (x @ [r, _, k, v, _, _], g) = self.project(p, x, state);
        let (o, s) = sequence(x, state.s[0], 1.0, form);
        state.s[0] = s;
        let own = (r * k * p[self.r_k]).sum_axis(3, true) * v; // (y_t)
        ((self.norm.apply(p, o) + merge_heads(own)) * g).linear(p[self.w_o], None) // (y_t)
    }
}
