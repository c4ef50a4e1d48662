//! SeqBoat (Ren et al. 2023, arXiv 2306.11197): attention by the few tokens that a router activates, over the moving
//! average of MEGA (Ma et al. 2023, arXiv 2209.10655).
//!
//! ```text
//! p = σ(δ),  h_t = (1 − p σ(α)) ⊙ h_{t-1} + p ⊙ β x_t                    N averages a channel
//! m_t = SiLU(γ·h_t / √N + ω x_t)
//! π_t = softmax(W_π m_t / e^τ),  t is active where π_t1 > π_t0           e^τ starts at √D
//! z_t = SiLU(W_z m_t + b_z),  q_t = γ_q z_t + β_q,  k_t = γ_k z_t + β_k  one head of H K channels
//! v_t, r_t = SiLU(W_v x_t + b_v), SiLU(W_r m_t + b_r)
//! a_t = Σ_s softmax_s(q_t·k_s / √(H K)) v_s                              over the last 8 active tokens, if t is active
//! y_t = SiLU(W_x m_t + b_x + π_t1 W_h (r_t ⊙ a_t))                       a_t = 0 where t is not active
//! ```
//!
//! The window counts active tokens alone, and so reaches as far back as these are. The average's transition is in (0, 1),
//! the same for every token. Which tokens are active has no gradient; π has one. In the authors' standalone_seqboat.py v
//! comes from m and x is added inside the last SiLU, the router and W_h have biases, scores know positions, relu² replaces
//! the softmax, a token sees one active token more, and γ_q and γ_k start small.
//! The carried state is h and a cache of keys and values, each with its age: the number of active tokens since, and 16
//! more for a token that was not active. Nothing is packed here: tokens that are not active are masked.
//!
//! At the start δ and α are normal of deviation 0.2, β is ±1 in turn plus noise of 0.02, γ and ω are normal; other
//! weights as the linear transformer's. N is the `state`.
//!
//! Shapes: x, m, y [B, T, D], h [B, D N], π [B, T, 2], z, r [B, T, H K], q, k, v, a [B, T, 1, H K].
//!
//! | form | work |
//! |---|---|
//! | recurrent | O(D N + S H K) a token |
//! | parallel | O(T D N + T S H K) |

use super::{ema, prelude::*};

/// The active tokens that are attended to.
const WINDOW: f64 = 8.0;

/// The age of a token that is not active: outside the window from the start.
const FAR: f64 = 2.0 * WINDOW;

/// Keys and values [B, S, 1, H K] of the tokens so far, and how many active tokens came after each [B, S, 1, 1].
pub(crate) type Cache<'t> = [Var<'t>; 3];

/// a [B, T, 1, H K] of q, k, v [B, T, 1, H K] and which tokens are active, [B, T]: 1 or 0.
pub(crate) fn attention<'t>([q, k, v]: [Var<'t>; 3], active: Var<'t>, cache: &mut Cache<'t>, scale: f64) -> Var<'t> {
    let ([b, t, _, width], past) = (q.dims(), cache[0].shape().at(1));
    if t == 0 {
        return v;
    }
    let (dtype, real) = (active.dtype(), active.dtype().real()); // bf16 has no odd counts above 256
    let so_far = active.cast(real).reshape([b, 1, t]).cumsum(2);
    let [after, before] = [[b, 1, t, 1], [b, 1, 1, t]].map(|shape| so_far.reshape(shape));
    let new = after - before + FAR * (1.0 - active.cast(real).reshape([b, 1, 1, t]));
    let old = cache[2].cast(real).reshape([b, 1, 1, past]) + after;
    let since = Var::concat(&[old, new], 3); // [B, 1, T, S]
    let ages = since.narrow(2, t - 1, 1).reshape([b, past + t, 1, 1]);
    *cache = [Var::concat(&[cache[0], k], 1), Var::concat(&[cache[1], v], 1), ages];
    let [q, k, v] = [q, cache[0], cache[1]].map(|x| x.reshape([b, 1, x.shape().at(1), width]));
    // Whole numbers of tokens, compared a little below the window.
    let unseen = (1.0 - clipped(1e6 * (WINDOW - 0.05 - since))).cast(dtype); // (a_t = Σ_s)
    let a = ((scale * q).matmul_t(k) - 1e30 * unseen).causal_softmax(past).named("a"); // (a_t = Σ_s)
    a.tril_matmul_after(past, v).reshape([b, t, 1, width]) * active.reshape([b, t, 1, 1]) // (a_t = Σ_s)
}

/// See [`about`](super::about).
pub(crate) const ABOUT: About = About {
    family: Family::Attention,
    line: "SeqBoat: attention of few tokens, over moving averages",
    parent: Some(("gpt", "among tokens that a router activates")),
    transition: "1 − p σ(α), fixed",
    state: "D N + 2 H K t",
    eigenvalues: "(0, 1), fixed",
    cost: "D N + H K t",
    source: "arXiv 2306.11197",
};

/// The mixer.
pub struct Layer {
    d: usize,
    k: usize, // of all heads
    n: usize,
    rates: [P; 4], // δ, α, β, γ
    omega: P,
    w_route: P,
    tau: P,
    w_m: P,
    b_m: P,
    w_v: P,
    b_v: P,
    scales: [P; 2], // γ of q and of k
    shifts: [P; 2], // β
    w_h: P,
}

impl Layer {
    /// H K channels for the attention, N averages for each of the model's channels.
    pub fn new(c: &ModelConfig, init: &mut Init) -> Result<Layer> {
        let (d, k, n) = (c.width, c.inner(), c.state);
        let sign = |i: usize| if (i % n).is_multiple_of(2) { 1.0 } else { -1.0 };
        Ok(Layer {
            d,
            k,
            n,
            rates: [
                init.in_f32("delta", [d, n], |g, _| 0.2 * g.gauss()),
                init.in_f32("alpha", [d, n], |g, _| 0.2 * g.gauss()),
                init.custom("ema_beta", [d, n], |g, i| sign(i) + 0.02 * g.gauss()),
                init.custom("gamma", [d, n], |g, _| g.gauss()),
            ],
            omega: init.custom("omega", [d], |g, _| g.gauss()),
            w_route: init.linear("w_route", 2, d),
            tau: init.full("tau", [1], 0.5 * (d as f64).ln()),
            w_m: init.linear("w_m", 2 * k + d, d),
            b_m: init.full("b_m", [2 * k + d], 0.0),
            w_v: init.linear("w_v", k, d),
            b_v: init.full("b_v", [k], 0.0),
            scales: ["q_scale", "k_scale"].map(|name| init.full(name, [k], 1.0)),
            shifts: ["b_q", "b_k"].map(|name| init.full(name, [k], 0.0)),
            w_h: init.linear("w_h", d, k),
        })
    }
}

impl Mixer for Layer {
    fn forms(&self) -> Vec<Form> {
        vec![Form::Recurrent, Form::Parallel]
    }

    fn state(&self, b: usize) -> Vec<(&'static str, Shape)> {
        let empty = Shape::from([b, 0, 1, self.k]);
        vec![("h", [b, self.d * self.n].into()), ("keys", empty), ("values", empty), ("past ages", [b, 0, 1, 1].into())]
    }

    fn sequence<'t>(&self, p: &Bound<'t>, x: Var<'t>, state: &mut State<'t>, _: Form) -> Var<'t> {
        let ([b, t, d], k) = (x.dims(), self.k);
        let average = ema::average(x, self.rates.map(|rate| p[rate]), p[self.omega], &mut state.s[0], t.max(1)); // (p)
        let m = average.silu().named("m"); // (m_t)
        let logits = m.linear(p[self.w_route], None); // (π_t)
        let active = positive(logits.narrow(2, 1, 1) - logits.narrow(2, 0, 1)).reshape([b, t]).named("active"); // (π_t)
        let share = (logits / p[self.tau].exp()).softmax().narrow(2, 1, 1).named("pi"); // (π_t)
        let all = m.linear(p[self.w_m], Some(p[self.b_m])); // (z_t)
        let [z, r] = [0, k].map(|from| all.narrow(2, from, k).silu()); // (z_t) (v_t)
        let of = |i: usize| (z * p[self.scales[i]] + p[self.shifts[i]]).reshape([b, t, 1, k]); // (q_t)
        let v = x.linear(p[self.w_v], Some(p[self.b_v])).silu().reshape([b, t, 1, k]); // (v_t)
        let mut cache = [state.s[1], state.s[2], state.s[3]];
        let inputs = [of(0).named("q"), of(1).named("k"), v.named("v")];
        let a = attention(inputs, active, &mut cache, (k as f64).powf(-0.5));
        state.s[1..].copy_from_slice(&cache);
        let h = (r * a.reshape([b, t, k])).linear(p[self.w_h], None); // (y_t)
        (all.narrow(2, 2 * k, d) + share * h).silu() // (y_t)
    }
}
