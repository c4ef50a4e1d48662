//! DeltaProduct (Siems et al. 2025, arXiv 2502.10297): n steps of the delta rule per token, so that a token's
//! transition is a product of n Householder matrices.
//!
//! ```text
//! q_t = SiLU(conv(W_q x_t)),   k_{t,j}, v_{t,j} = SiLU(conv(W_{k,v},j x_t))    j = 1 … n;  q, k ← q/‖q‖, k/‖k‖ per head
//! β_{t,j} = s σ(W_β,j x_t)                                               one per head; s = 1, or 2 (see below)
//! S_{t,0} = S_{t-1},   S_t = S_{t,n}
//! S_{t,j} = (I − β_{t,j} k_{t,j} k_{t,j}ᵀ) S_{t,j-1} + β_{t,j} k_{t,j} v_{t,j}ᵀ                        (section 3)
//! o_t = S_tᵀ q_t / √K
//! y_t = W_o RMSNorm(o_t)                                                 norm per head
//! ```
//!
//! n is `householders`; n = 1 is DeltaNet. Each factor has the real eigenvalues 1 − β_{t,j} and 1; a product of several
//! can have complex ones. With `eigenvalues = "-1..1"`, s = 2, and a factor with β = 2 is a reflection. One reflection
//! is enough for parity, which needs the eigenvalue −1: two ones must cancel, a² = 1 with a ≠ 1. Two reflections make a
//! rotation by any angle; its eigenvalues e^(±2πi/m) let a token count modulo any m. n reflections make any permutation
//! of n + 1 things. With s = 1 none of this is possible: a product of such factors only shrinks.
//!
//! All forms are DeltaNet's, on a sequence of n T steps. Only the last of a token's n reads is used, so the other
//! queries are zero.
//!
//! Shapes, per head: q [B, T, H, K], k [B, T n, H, K], v [B, T n, H, V], β [B, T n, H], S [B, H, K, V],
//! o [B, T, H, V], y [B, T, D].
//!
//! | form | work |
//! |---|---|
//! | recurrent | O(n T K V), n T steps |
//! | parallel | the whole sequence as one chunk: O((n T)² (K + V)) |
//! | chunked | O(n T (C (K + V) + K V)), and C² more on a device; a chunk is C of the n T steps |

use super::{
    delta_net::{self, read},
    prelude::*,
};
use crate::ops::erase_write::{last_of, only};

/// One token: q [B, H, K], k [B, n, H, K], v [B, n, H, V], beta [B, n, H], S [B, H, K, V] to o and the next S.
pub(crate) fn step<'t>(
    q: Var<'t>,
    k: Var<'t>,
    v: Var<'t>,
    beta: Var<'t>,
    mut s: Var<'t>,
    scale: f64,
) -> (Var<'t>, Var<'t>) {
    for j in 0..k.shape().at(1) {
        // (S_{t,0})
        s = delta_net::write(at(k, j), at(v, j), at(beta, j), s.named("S_before")); // (S_{t,j})
    }
    (read(q, s, scale), s) // (o_t)
}

/// All forms over a sequence: q [B, T, H, K], k [B, T n, H, K], v [B, T n, H, V], beta [B, T n, H] to o [B, T, H, V] and
/// the last S.
pub fn sequence<'t>(x: [Var<'t>; 4], s: Var<'t>, n: usize, scale: f64, form: Form) -> (Var<'t>, Var<'t>) {
    let [q, k, v, beta] = x;
    if form == Form::Recurrent {
        return over_time_with(q.shape().at(1), v, s, |i, s| {
            let [k, v, beta] = [k, v, beta].map(|x| x.narrow(1, i * n, n));
            step(at(q, i), k, v, beta, s, scale)
        });
    }
    let (o, s) = delta_net::sequence([only(q, n - 1, n), k, v, beta], s, scale, form);
    (last_of(o, n), s)
}

/// See [`About`].
pub(crate) const ABOUT: About = About {
    family: Family::DeltaRules,
    line: "DeltaProduct: several corrections a token",
    parent: Some(("delta_net", "several corrections a token")),
    transition: "Π_j (I − β_tj k_tj k_tjᵀ)",
    state: "H K V",
    eigenvalues: "[0, 1] if n = 2, or complex, |λ| ≤ 1",
    cost: "n H K V",
    source: "arXiv 2502.10297",
};

/// The mixer.
pub struct Layer {
    n: usize,
    h: usize,
    k: usize,
    q: Projection,
    kv: [Projection; 2], // n times as wide
    w_beta: P,           // [n H, D]
    norm: P,
    w_o: P,
    rope: Option<Rope>,
    stretch: f64, // s
}

impl Layer {
    /// H heads of width K over the model's width, n steps per token. Initialised as in DeltaNet.
    pub fn new(c: &ModelConfig, init: &mut Init) -> Result<Layer> {
        let (width, inner, n) = (c.width, c.inner(), c.householders);
        Ok(Layer {
            n,
            h: c.heads,
            k: c.head_dim,
            q: Projection::new("q", 1, c, init),
            kv: ["k", "v"].map(|name| Projection::new(name, n, c, init)),
            w_beta: init.uniform("w_beta", [n * c.heads, width], xavier(c.heads, width, SMALL_GAIN)),
            norm: init.full("norm", [c.head_dim], 1.0),
            w_o: init.uniform("w_o", [width, inner], xavier(width, inner, SMALL_GAIN)),
            rope: Rope::new(c),
            stretch: c.eigenvalues.stretch(),
        })
    }

    /// q, k, v and beta from x [B, T, D]; updates the convolutions' windows (states 1 to 3).
    fn project<'t>(&self, p: &Bound<'t>, x: Var<'t>, state: &mut State<'t>) -> [Var<'t>; 4] {
        let ([b, t, _], n) = (x.dims(), self.n);
        let q = heads(self.q.apply(p, x, state, 1), self.h); // (q_t)
        // The n keys of a token are n H heads here, so that all are rotated by the token's position.
        let [k, v] = std::array::from_fn(|j| heads(self.kv[j].apply(p, x, state, 2 + j), n * self.h)); // (k_{t,j})
        let unit = |x: Var<'t>| rotate(&self.rope, x.l2_norm_smooth(1e-6), state.t); // (q_t)
        let steps = |x: Var<'t>| x.reshape([b, t * n, self.h, self.k]);
        let beta = self.stretch * x.linear(p[self.w_beta], None).sigmoid(); // (β_{t,j})
        [unit(q), steps(unit(k)), steps(v), beta.reshape([b, t * n, self.h])]
    }
}

impl Mixer for Layer {
    fn capabilities(&self) -> Capabilities {
        Capabilities { rope: true, eigenvalues: true }
    }

    fn state(&self, b: usize) -> Vec<(&'static str, Shape)> {
        let s = ("S", [b, self.h, self.k, self.k].into());
        [s].into_iter().chain(Projection::windows([&self.q, &self.kv[0], &self.kv[1]], b)).collect()
    }

    fn sequence<'t>(&self, p: &Bound<'t>, x: Var<'t>, state: &mut State<'t>, form: Form) -> Var<'t> {
        let inputs = self.project(p, x, state);
        let (o, s) = sequence(inputs, state.s[0], self.n, inverse_root(self.k), form);
        state.s[0] = s;
        normed_output(o, p[self.norm], None, p[self.w_o]) // (y_t)
    }
}
