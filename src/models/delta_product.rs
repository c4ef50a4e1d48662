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
//! Shapes, per head: q [B, T, H, K], k [B, T n, H, K], v [B, T n, H, V], β [B, T n, H], S [B, H, K, V].
//!
//! | form | work |
//! |---|---|
//! | recurrent | O(n T K V), n T steps |
//! | parallel | the whole sequence as one chunk: O((n T)² (K + V)) |
//! | chunked | O(n T (C (K + V) + C² + K V)); a chunk is C of the n T steps |

use super::{
    About, Bound, Capabilities, Family, Form, Init, Mixer, ModelConfig, P, Rope, State, at,
    delta_net::{self, Projection, read, write, xavier},
    heads, merge_heads, over_time, positions,
};
use crate::{autograd::Var, error::Result, tensor::Shape};

/// One token: q [B, H, K], k [B, n, H, K], v [B, n, H, V], beta [B, n, H], S [B, H, K, V] to o and the next S.
pub fn step<'t>(q: Var<'t>, k: Var<'t>, v: Var<'t>, beta: Var<'t>, mut s: Var<'t>, scale: f64) -> (Var<'t>, Var<'t>) {
    for j in 0..k.shape().at(1) {
        s = write(at(k, j), at(v, j), at(beta, j), s.named("S_before"));
    }
    (read(q, s, scale), s)
}

/// [`step`] over a sequence: q [B, T, H, K], k [B, T n, H, K], v [B, T n, H, V], beta [B, T n, H] to o [B, T, H, V] and
/// the last S.
pub fn recurrent<'t>([q, k, v, beta]: [Var<'t>; 4], s: Var<'t>, n: usize, scale: f64) -> (Var<'t>, Var<'t>) {
    let ([_, t, _, _], mut s) = (q.dims(), s);
    let o = over_time(t, v, |i| {
        let of = |x: Var<'t>| x.narrow(1, i * n, n);
        let o;
        (o, s) = step(at(q, i), of(k), of(v), of(beta), s, scale);
        o
    });
    (o, s)
}

/// The queries of n T steps, zero except at each token's last step: [B, T, H, K] to [B, T n, H, K].
fn spread(q: Var<'_>, n: usize) -> Var<'_> {
    let [b, t, h, k] = q.dims();
    let nothing = q.tape().full([b, t, (n - 1) * h, k], q.dtype(), 0.0);
    Var::concat(&[nothing, q], 2).reshape([b, t * n, h, k])
}

/// The last of every n outputs: [B, T n, H, V] to [B, T, H, V].
fn last_of(o: Var<'_>, n: usize) -> Var<'_> {
    let [b, steps, h, v] = o.dims();
    o.reshape([b, steps / n, n * h, v]).narrow(2, (n - 1) * h, h)
}

/// As [`recurrent`], by the parallel form of DeltaNet.
pub fn parallel<'t>([q, k, v, beta]: [Var<'t>; 4], s: Var<'t>, n: usize, scale: f64) -> (Var<'t>, Var<'t>) {
    let (o, s) = delta_net::parallel(spread(q, n), k, v, beta, s, scale);
    (last_of(o, n), s)
}

/// As [`recurrent`], by the chunked form of DeltaNet.
pub fn chunked<'t>(
    [q, k, v, beta]: [Var<'t>; 4],
    s: Var<'t>,
    n: usize,
    scale: f64,
    chunk: usize,
) -> (Var<'t>, Var<'t>) {
    let (o, s) = delta_net::chunked(spread(q, n), k, v, beta, s, scale, chunk);
    (last_of(o, n), s)
}

/// See [`About`].
pub const ABOUT: About = About {
    family: Family::DeltaRules,
    line: "DeltaProduct: several corrections a token",
    parent: Some(("delta_net", "several corrections a token")),
    transition: "Π_j (I − β_tj k_tj k_tjᵀ)",
    state: "H K V",
    eigenvalues: "complex, |λ| ≤ 1",
    cost: "n H K V",
    scan: false,
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
            w_beta: init.uniform("w_beta", [n * c.heads, width], xavier(c.heads, width)),
            norm: init.full("norm", [c.head_dim], 1.0),
            w_o: init.uniform("w_o", [width, inner], xavier(width, inner)),
            rope: Rope::new(c),
            stretch: c.eigenvalues.stretch(),
        })
    }

    fn scale(&self) -> f64 {
        (self.k as f64).powf(-0.5)
    }

    /// q, k, v and beta from x [B, T, D]; updates the convolutions' windows (states 1 to 3).
    fn project<'t>(&self, p: &Bound<'t>, x: Var<'t>, state: &mut State<'t>) -> [Var<'t>; 4] {
        let ([b, t, _], n) = (x.dims(), self.n);
        let q = heads(self.q.apply(p, x, state, 1), self.h);
        // The n keys of a token are n H heads here, so that all are rotated by the token's position.
        let [k, v] = std::array::from_fn(|j| heads(self.kv[j].apply(p, x, state, 2 + j), n * self.h));
        let unit = |x: Var<'t>| positions::rotate(&self.rope, x.l2_norm_smooth(1e-6), state.t);
        let steps = |x: Var<'t>| x.reshape([b, t * n, self.h, self.k]);
        let beta = self.stretch * x.linear(p[self.w_beta], None).sigmoid();
        [unit(q), steps(unit(k)), steps(v), beta.reshape([b, t * n, self.h])]
    }

    fn output<'t>(&self, p: &Bound<'t>, o: Var<'t>) -> Var<'t> {
        merge_heads(o.rms_norm(p[self.norm], 1e-6)).linear(p[self.w_o], None)
    }
}

impl Mixer for Layer {
    fn forms(&self) -> Vec<Form> {
        vec![Form::Recurrent, Form::Parallel, Form::Chunked(Form::CHUNK)]
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { rope: true, eigenvalues: true }
    }

    fn state(&self, b: usize) -> Vec<(&'static str, Shape)> {
        let s = ("S", [b, self.h, self.k, self.k].into());
        [s].into_iter().chain(Projection::windows([&self.q, &self.kv[0], &self.kv[1]], b)).collect()
    }

    fn step<'t>(&self, p: &Bound<'t>, x: Var<'t>, state: &mut State<'t>) -> Var<'t> {
        let [b, d] = x.dims();
        let [q, k, v, beta] = self.project(p, x.reshape([b, 1, d]), state);
        let (o, s) = step(at(q, 0), k, v, beta, state.s[0], self.scale());
        state.s[0] = s;
        self.output(p, o.reshape([b, 1, self.h, self.k])).reshape([b, d])
    }

    fn sequence<'t>(&self, p: &Bound<'t>, x: Var<'t>, state: &mut State<'t>, form: Form) -> Var<'t> {
        let qkvb = self.project(p, x, state);
        let (o, s) = match form {
            Form::Chunked(chunk) => chunked(qkvb, state.s[0], self.n, self.scale(), chunk),
            _ => parallel(qkvb, state.s[0], self.n, self.scale()),
        };
        state.s[0] = s;
        self.output(p, o)
    }
}
