//! MoM, mixture of memories (Du et al. 2025, arXiv 2502.13685; the layer is that of flash-linear-attention,
//! fla/layers/mom.py): each token is routed to a few of several memories, each a gated delta rule.
//!
//! ```text
//! ω_t = softmax(W_r x_t), the 2 largest of 4 kept and divided by their sum
//! q_t = SiLU(W_q x_t) / ‖·‖                                              per head, for all memories
//! k^m_t, v^m_t = SiLU(W_k^m x_t) / ‖·‖, SiLU(W_v^m x_t)                  for each memory m and head
//! β^m_t = s σ(W_β^m x_t),  g^m_t = −exp(A_log) softplus(W_g^m x_t + b_dt),  s = 1, or 2
//! memory m: the gated delta rule over the tokens that are routed to it; others leave it as it is
//! o_t = Σ_m ω_tm S^m_tᵀ q_t / √K + S^*_tᵀ q_t / √K                       S^*: a memory for every token
//! y_t = W_o (RMSNorm(o_t) ⊙ SiLU(W_z x_t))                               norm per head
//! ```
//!
//! A token that is not routed to a memory has β = 0 and g = 0 there, and ω = 0: nothing is gathered or scattered. Which
//! memories are kept has no gradient, but their weights ω have one. A token interferes with those of its own memories
//! alone, and in S^* with all. With `eigenvalues = "-1..1"`, s = 2, as in gated DeltaNet.
//!
//! The short convolutions over each memory's own tokens are left out, and so is the loss that balances the memories.
//! flash-linear-attention has 8 memories by default, no S^*, V = 2 K, and DeltaNet's initial weights.
//!
//! At the start A_log and b_dt as in gated DeltaNet; weights normal, of deviation 0.02.
//!
//! Shapes, for M memories (the shared one last) and per head: q [B, T, H, K], k [B, T, M, H, K], v [B, T, M, H, V],
//! β, g [B, T, M, H], ω [B, T, M], S [B, M H, K, V], o [B, T, H, V], y [B, T, D]; forms and their work as in [`kda`], M
//! times.

use super::{kda, prelude::*};

/// Memories to choose from, and how many a token is routed to.
const MEMORIES: usize = 4;
const TOPK: usize = 2;

/// q [B, T, H, K], k [B, T, M, H, K], v [B, T, M, H, V], β, g [B, T, M, H], and what routes to the first of the M
/// memories; the others get every token.
pub type Inputs<'t> = [Var<'t>; 6];

/// o [B, T, H, V] and the last S [B, M H, K, V]. Masks multiply here: g and the router's logits have to be finite.
pub fn read<'t>(
    [q, k, v, beta, g, router]: Inputs<'t>,
    topk: usize,
    s: Var<'t>,
    scale: f64,
    form: Form,
) -> (Var<'t>, Var<'t>) {
    let ([b, t, m, h, n], width, chosen) = (k.dims(), v.shape().last(), router.shape().last());
    let kept = largest(router, topk);
    let weight = router.softmax() * kept; // (ω_t)
    let weight = weight / weight.sum_axis(2, true); // (ω_t)
    let all = q.tape().full([b, t, m - chosen], q.dtype(), 1.0);
    let [kept, weight] = [kept, weight].map(|x| Var::concat(&[x, all], 2));
    // A memory's heads are heads of one memory.
    let gate = |x: Var<'t>| (insert_axis(kept, 3) * x).reshape([b, t, m * h]); // (memory m)
    let q = (insert_axis(q, 2) + q.tape().full([m, 1, 1], q.dtype(), 0.0)).reshape([b, t, m * h, n]);
    let (k, v) = (k.reshape([b, t, m * h, n]), v.reshape([b, t, m * h, width]));
    let _shown = weight.named("omega");
    let (o, s) = kda::sequence([q, k, v, gate(beta), insert_axis(gate(g), 3)], s, scale, form); // (memory m)
    ((insert_axis(insert_axis(weight, 3), 4) * o.reshape([b, t, m, h, width])).sum_axis(2, false), s) // (o_t)
}

/// See [`About`].
pub(crate) const ABOUT: About = About {
    family: Family::DeltaRules,
    line: "MoM: several memories, each token routed to two",
    parent: Some(("gated_delta_net", "several memories, a router")),
    transition: "α_t (I − β_t k_t k_tᵀ), or I where not routed",
    state: "5 H K V",
    eigenvalues: "1, α, α (1 − β): (0, 1] or (−1, 1]",
    cost: "5 H K V",
    source: "arXiv 2502.13685",
};

/// The mixer.
pub struct Layer {
    h: usize,
    k: usize,
    w_q: P,
    w_k: P,
    w_v: P,
    w_beta: P,
    w_g: P,
    a_log: P,
    b_dt: P,
    w_r: P,
    w_z: P,
    norm: P,
    w_o: P,
    stretch: f64, // s
}

impl Layer {
    /// H heads of width K, in each of the memories, over the model's width.
    pub fn new(c: &ModelConfig, init: &mut Init) -> Result<Layer> {
        let (width, inner, h, m) = (c.width, c.inner(), c.heads, MEMORIES + 1);
        Ok(Layer {
            h,
            k: c.head_dim,
            w_q: narrow_normal(init, "w_q", inner, width),
            w_k: narrow_normal(init, "w_k", m * inner, width),
            w_v: narrow_normal(init, "w_v", m * inner, width),
            w_beta: narrow_normal(init, "w_beta", m * h, width),
            w_g: narrow_normal(init, "w_g", m * h, width),
            a_log: init.in_f32("A_log", [h], |g, _| g.uniform(1e-4, 16.0).ln()),
            b_dt: init.in_f32("b_dt", [h], |g, _| step_size_bias(g)),
            w_r: narrow_normal(init, "w_r", MEMORIES, width),
            w_z: narrow_normal(init, "w_z", inner, width),
            norm: init.full("norm", [c.head_dim], 1.0),
            w_o: narrow_normal(init, "w_o", width, inner),
            stretch: c.eigenvalues.stretch(),
        })
    }

    fn project<'t>(&self, p: &Bound<'t>, x: Var<'t>) -> Inputs<'t> {
        let ([b, t, _], m) = (x.dims(), MEMORIES + 1);
        let unit = |x: Var<'t>| x.l2_norm_smooth(1e-6);
        let rows = |w: P| x.linear(p[w], None).silu().reshape([b, t, m, self.h, self.k]); // (k^m_t)
        let numbers = |w: P| x.linear(p[w], None).reshape([b, t, m, self.h]);
        let bias = Var::concat(&[p[self.b_dt]; MEMORIES + 1], 0);
        let steps = x.linear(p[self.w_g], Some(bias)).softplus().reshape([b, t, m, self.h]); // (g^m_t)
        let g = (p[self.a_log].decay_rate() * steps).cast(x.dtype()); // (g^m_t)
        let q = unit(heads(x.linear(p[self.w_q], None).silu(), self.h)); // (q_t)
        let beta = self.stretch * numbers(self.w_beta).sigmoid(); // (β^m_t)
        [q, unit(rows(self.w_k)), rows(self.w_v), beta, g, x.linear(p[self.w_r], None)] // (k^m_t) (ω_t)
    }
}

impl Mixer for Layer {
    fn capabilities(&self) -> Capabilities {
        Capabilities { eigenvalues: true, ..Capabilities::default() }
    }

    fn state(&self, b: usize) -> Vec<(&'static str, Shape)> {
        vec![("S", [b, (MEMORIES + 1) * self.h, self.k, self.k].into())]
    }

    fn sequence<'t>(&self, p: &Bound<'t>, x: Var<'t>, state: &mut State<'t>, form: Form) -> Var<'t> {
        let (o, s) = read(self.project(p, x), TOPK, state.s[0], inverse_root(self.k), form);
        state.s[0] = s;
        normed_output(o, p[self.norm], Some(x.linear(p[self.w_z], None).silu()), p[self.w_o]) // (y_t)
    }
}
