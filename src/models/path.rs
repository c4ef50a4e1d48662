//! PaTH attention (Yang et al. 2025, arXiv 2505.16381; the layer is that of flash-linear-attention,
//! fla/layers/path_attn.py): between a key and the token that reads it every token applies a transition of the delta
//! rule to the key.
//!
//! ```text
//! q_t, k_t, v_t = W_q x_t, W_k x_t, W_v x_t                              per head
//! w_t = u_t / ‖u_t‖,  u_t = SiLU(conv(W_2 W_1 x_t))                      per head; conv of 3 tokens, W_1 to 32 channels
//! β_t = 2 σ(W_β x_t + b_β)                                               one per head, in (0, 2)
//! k_s ← (I − β_t w_t w_tᵀ) k_s,  s < t                                   every key so far                          (1)
//! p_ts = softmax_s((q_t·k_s + g_{s+1} + … + g_t) / √K),  s ≤ t           g = 0 here                                (2)
//! o_t = Σ_s p_ts v_s
//! y_t = W_o o_t
//! ```
//!
//! With β = 2 a transition is a reflection: 1 − β reaches −1 as released, and attention can track what swaps do. Its
//! eigenvalues are 1 − β along w and 1 orthogonal to it. There is no other sense of position.
//!
//! For a chunk with rows Q, K, W, b = diag(β) and cached keys K_c, with κ_s = k_s − Σ_u w_u A_us over the u between s
//! and t,
//!
//! ```text
//! A = (I + stril(b W Wᵀ))⁻¹ [b W K_cᵀ, stril(b W Kᵀ)]                   how much of w_u is taken off key s       (3)
//! q_t·κ_s = [Q K_cᵀ, Q Kᵀ] − tril(Q Wᵀ) A,     [K_c, K] ← [K_c, K] − Aᵀ W                                      (4)
//! ```
//!
//! Weights start normal, of deviation 0.02. Shapes, per head: q, k, w [B, T, H, K], v, o [B, T, H, V], β [B, T, H], p
//! [B, H, T, S], y [B, T, D], where S counts the cached tokens and the T new ones.
//!
//! | form | work |
//! |---|---|
//! | recurrent | O(S K) a token: all keys are rewritten |
//! | parallel | (3) and (4) with the whole sequence as one chunk: O(T S (K + T)) |
//! | chunked | O(T S (K + C)) |

use super::prelude::*;

/// The rank of w's projection and the width of its convolution.
const RANK: usize = 32;
const CONV: usize = 3;

/// Keys and values of the tokens so far, [B, S, H, ..].
pub(crate) type Cache<'t> = [Var<'t>; 2];

/// q, k [.., H, K], v [.., H, V], w [.., H, K], β [.., H].
pub(crate) type Inputs<'t> = [Var<'t>; 5];

/// (1) and (2) for one token: to o [B, H, V]. `gates` [B, H, 1, S] are the sums of g since each token, if there are
/// gates.
pub fn step<'t>([q, k, v, w, beta]: Inputs<'t>, gates: Option<Var<'t>>, cache: &mut Cache<'t>, scale: f64) -> Var<'t> {
    let ([b, h, n], row) = (k.dims(), |x: Var<'t>| insert_axis(x, 2)); // [B, H, 1, K]
    let (w, beta) = (row(w.named("w")), beta.named("beta").reshape([b, h, 1, 1]));
    let keys = head_first(cache[0]);
    let keys = Var::concat(&[keys - keys.matmul_t(w) * (beta * w), row(k.named("k"))], 2); // (1) [B, H, S, K]
    *cache = [head_first(keys), Var::concat(&[cache[1], insert_axis(v.named("v"), 1)], 1)];
    let scores = q.named("q").reshape([b, h, 1, n]).matmul_t(keys); // (2)
    let a = (scale * gates.map_or(scores, |gates| scores + gates)).softmax().named("a"); // (2)
    a.matmul(head_first(cache[1])).reshape([b, h, v.shape().last()]).named("o") // (o_t)
}

/// (3) and (4) for a chunk: to o [B, C, H, V]. `gates` [B, H, C, S] as above.
fn chunk<'t>([q, k, v, w, beta]: Inputs<'t>, gates: Option<Var<'t>>, cache: &mut Cache<'t>, scale: f64) -> Var<'t> {
    let past = cache[0].shape().at(1);
    let (keys, values) = (Var::concat(&[cache[0], k], 1), Var::concat(&[cache[1], v], 1));
    let [q, k, v, w] = [q, keys, values, w].map(head_first); // [B, H, C or S, ..]
    let beta_w = insert_axis(beta.permute([0, 2, 1]), 3) * w;
    let a = beta_w.matmul_t(w).unit_lower_solve(beta_w.matmul_t(k).tril(past as isize - 1)); // (3) [B, H, C, S]
    let scores = q.matmul_t(k) - q.matmul_t(w).tril_matmul(a); // (4)
    *cache = [head_first(k - a.t_matmul(w)), values]; // (4)
    let p = (scale * gates.map_or(scores, |gates| scores + gates)).causal_softmax(past);
    head_first(p.tril_matmul_after(past, v))
}

/// o [B, T, H, V] of a sequence. `gates` [B, H, T, S] as above.
pub fn attention<'t>(x: Inputs<'t>, gates: Option<Var<'t>>, cache: &mut Cache<'t>, scale: f64, form: Form) -> Var<'t> {
    let (t, past) = (x[0].shape().at(1), cache[0].shape().at(1));
    let rows = |from: usize, n: usize| gates.map(|gates| gates.narrow(2, from, n).narrow(3, 0, past + from + n));
    if form == Form::Recurrent || t == 0 {
        return over_time(t, x[2], |i| step(x.map(|x| at(x, i)), rows(i, 1), cache, scale));
    }
    by_pieces(t, form.chunk(t), 1, |from, n| chunk(x.map(|x| x.narrow(1, from, n)), rows(from, n), cache, scale))
}

/// See [`About`].
pub(crate) const ABOUT: About = About {
    family: Family::Attention,
    line: "PaTH: attention whose keys a delta rule rewrites",
    parent: Some(("gpt", "keys rewritten by a delta rule")),
    transition: "I − β_t w_t w_tᵀ on every key",
    state: "2 H K t",
    eigenvalues: "1, 1 − β in (−1, 1)",
    cost: "H K t",
    source: "arXiv 2505.16381",
};

/// The mixer.
pub struct Layer {
    h: usize,
    k: usize,
    w_qkv: P,
    w_w: LowRank,
    conv: Conv,
    w_beta: P,
    b_beta: P,
    w_o: P,
}

impl Layer {
    /// H heads of width K over the model's width.
    pub fn new(c: &ModelConfig, init: &mut Init) -> Result<Layer> {
        let (width, inner) = (c.width, c.inner());
        Ok(Layer {
            h: c.heads,
            k: c.head_dim,
            w_qkv: narrow_normal(init, "w_qkv", 3 * inner, width),
            w_w: LowRank::new(init, "w_w", inner, RANK, width),
            conv: Conv::new(init, "conv", None, inner, CONV),
            w_beta: narrow_normal(init, "w_beta", c.heads, width),
            b_beta: init.full("b_beta", [c.heads], 0.0),
            w_o: narrow_normal(init, "w_o", width, inner),
        })
    }

    /// The inputs [B, T, H, ..] of x [B, T, D]; the convolution's window (state 2) moves on.
    fn project<'t>(&self, p: &Bound<'t>, x: Var<'t>, state: &mut State<'t>) -> Inputs<'t> {
        let [q, k, v] = linear_heads(x, p[self.w_qkv], self.h); // (q_t)
        let u = self.w_w.apply(p, x, None); // (u_t)
        let w = heads(self.conv.apply(p, u, state, 2), self.h).l2_norm_smooth(1e-6); // (w_t)
        let beta = 2.0 * x.linear(p[self.w_beta], Some(p[self.b_beta])).sigmoid(); // (β_t)
        [q, k, v, w, beta]
    }
}

impl Mixer for Layer {
    fn state(&self, b: usize) -> Vec<(&'static str, Shape)> {
        let empty = Shape::from([b, 0, self.h, self.k]);
        [("keys", empty), ("values", empty)].into_iter().chain(self.conv.window("past w", b)).collect()
    }

    fn sequence<'t>(&self, p: &Bound<'t>, x: Var<'t>, state: &mut State<'t>, form: Form) -> Var<'t> {
        let inputs = self.project(p, x, state);
        let mut cache = [state.s[0], state.s[1]];
        let o = attention(inputs, None, &mut cache, inverse_root(self.k), form);
        state.s[..2].copy_from_slice(&cache);
        merge_heads(o).linear(p[self.w_o], None) // (y_t)
    }
}
