//! The linear memory of Titans (Behrouz et al. 2025, arXiv 2501.00663, equations 8 to 14): the delta rule as gradient
//! descent with momentum. The paper's memory is deeper, and its block is not this one: here it stands where DeltaNet's
//! memory does.
//!
//! ```text
//! q_t, k_t, v_t = SiLU(conv(W_{q,k,v} x_t)),  q, k ← q/‖q‖, k/‖k‖        per head, as in DeltaNet
//! θ_t, η_t, α_t = σ(W_θ x_t + b_θ), σ(W_η x_t + b_η), σ(W_α x_t + b_α)    one per head
//! M_t = η_t M_{t-1} + θ_t k_t (v_t − S_{t-1}ᵀ k_t)ᵀ                      past surprise and momentary surprise      (1)
//! S_t = (1 − α_t) S_{t-1} + M_t                                          α forgets                                 (2)
//! o_t = S_tᵀ q_t / √K                                                                                              (3)
//! y_t = W_o RMSNorm(o_t)                                                 norm per head
//! ```
//!
//! θ k (v − Sᵀ k)ᵀ is −θ times the gradient of ½ ‖Sᵀ k − v‖². Along k the transition of (S, M) is
//! [[1 − α − θ, η], [−θ, η]]: with α = 0 its determinant is η, and its eigenvalues are complex, of size √η, where (1 +
//! η − θ)² < 4 η. But a token with θ = 0 still moves S by η M, so that no token leaves the pair as it is. With η = 0 there
//! is no momentum, and S_t = ((1 − α) I − θ k kᵀ) S_{t-1} + θ k vᵀ: as in the paper, α and θ both take from S_{t-1} before
//! it decays. The eigenvalue along k is 1 − α − θ, in (−1, 1), so that a token can flip the state.
//!
//! For a chunk with rows Q, K, V, let E_tj = η_{j+1} ⋯ η_t and A_tj = (1 − α_{j+1}) ⋯ (1 − α_t) for j ≤ t, ε and a the
//! same from the start, Γ = A E, f = A ε, and X↓ the rows of X moved down by one (a↓ begins with 1, f↓ and Γ↓ with 0).
//! Then
//!
//! ```text
//! U = (I + stril(K (θ K)ᵀ ⊙ Γ↓))⁻¹ (V − a↓ K S − f↓ K M)                 all errors at once                        (4)
//! O = a Q S + f Q M + tril(Q (θ K)ᵀ ⊙ Γ) U                                                                         (5)
//! S' = a_C S + f_C M + (Γ_C ⊙ θ K)ᵀ U,     M' = ε_C M + (E_C ⊙ θ K)ᵀ U                                             (6)
//! ```
//!
//! The read's 1/√K is DeltaNet's; the paper has none. At the start b_θ = b_η = 0 and b_α = −4 (α = 0.018), which are
//! not the paper's; θ is up to 1, as by default in lucidrains' titans-pytorch. The paper's loss is without the ½, so
//! that its θ counts twice; its letters are M for our S and S for our M. Projections are as DeltaNet's.
//!
//! Shapes, per head: q, k [B, T, H, K], v [B, T, H, V], θ, η, α [B, T, H], S and M [B, H, K, V], o [B, T, H, V], y [B,
//! T, D]; forms as in [`delta_net`](super::delta_net), but no kernel; A E adds C² to a step's work.

use super::prelude::*;

/// q, k [.., H, K], v [.., H, V], θ, and ln η and ln(1 − α), [.., H].
pub(crate) type Inputs<'t> = [Var<'t>; 6];

/// (1) to (3) for one token, from S and M [B, H, K, V], to o [B, H, V]; η and 1 − α themselves.
pub(crate) fn step<'t>([q, k, v, theta, eta, keep]: Inputs<'t>, memory: &mut [Var<'t>; 2], scale: f64) -> Var<'t> {
    let number = |x: Var<'t>| insert_axis(insert_axis(x, 2), 3);
    let ([s, m], k) = (*memory, k.named("k"));
    let error = (v.named("v") - recall(s, k)).named("error"); // (1)
    let m = number(eta.named("eta")) * m + outer(insert_axis(theta.named("theta"), 2) * k, error); // (1)
    *memory = [number(keep.named("keep")) * s + m, m]; // (2)
    (scale * recall(memory[0], q.named("q"))).named("o") // (3)
}

/// (4) to (6): q, k, v [B, H, C, ..] and θ, ln η, ln(1 − α) [B, H, C] to o [B, H, C, V].
fn chunk<'t>([q, k, v, theta, eta, keep]: Inputs<'t>, [s, m]: [Var<'t>; 2]) -> (Var<'t>, [Var<'t>; 2]) {
    let [b, h, c] = theta.dims();
    let column = |x: Var<'t>| insert_axis(x, 3);
    let [e, a] = [eta, keep].map(|x| x.segsum().exp()); // E and A [B, H, C, C]
    let [epsilon, from_start] = [eta, keep].map(|x| column(x.cumsum(2).exp()));
    let (gamma, f) = (a.tril_matmul(e), a.tril_matmul(epsilon));
    let first = |value: f64, n: usize| q.tape().full([b, h, 1, n], q.dtype(), value);
    let down = |x: Var<'t>, value: f64| Var::concat(&[first(value, x.shape().last()), x.narrow(2, 0, c - 1)], 2);
    let write = column(theta) * k;
    let before = down(from_start, 1.0) * k.matmul(s) + down(f, 0.0) * k.matmul(m); // (4)
    let u = (k.matmul_t(write) * down(gamma, 0.0)).unit_lower_solve(v - before); // (4)
    let o = from_start * q.matmul(s) + f * q.matmul(m) + (q.matmul_t(write) * gamma).tril_matmul(u); // (5)
    let last = |x: Var<'t>| x.narrow(2, c - 1, 1);
    let written = |x: Var<'t>| (last(x).transpose(2, 3) * write).t_matmul(u); // (6)
    (o, [last(from_start) * s + last(f) * m + written(gamma), last(epsilon) * m + written(e)]) // (6)
}

/// [`step`] over a sequence, to o [B, T, H, V]; η and 1 − α themselves.
pub(crate) fn recurrent<'t>(x: Inputs<'t>, memory: &mut [Var<'t>; 2], scale: f64) -> Var<'t> {
    over_time(x[0].shape().at(1), x[2], |i| step(x.map(|x| at(x, i)), memory, scale))
}

/// o [B, T, H, V] of a sequence.
pub fn read<'t>([q, k, v, theta, eta, keep]: Inputs<'t>, memory: &mut [Var<'t>; 2], scale: f64, form: Form) -> Var<'t> {
    let t = q.shape().at(1);
    if form == Form::Recurrent || t == 0 {
        return recurrent([q, k, v, theta, eta.exp(), keep.exp()], memory, scale);
    }
    let ([q, k, v], numbers) = ([scale * q, k, v].map(head_first), [theta, eta, keep].map(|x| x.permute([0, 2, 1])));
    let rows = [q, k, v, numbers[0], numbers[1], numbers[2]];
    head_first(by_pieces(t, form.chunk(t), 2, |from, n| {
        let o;
        (o, *memory) = chunk(rows.map(|x| x.narrow(2, from, n)), *memory);
        o
    }))
}

/// See [`About`].
pub(crate) const ABOUT: About = About {
    family: Family::Learners,
    line: "Titans' linear memory: the delta rule with momentum",
    parent: Some(("delta_net", "momentum and forgetting")),
    transition: "[[1 − α − θ, η], [−θ, η]] on (S, M) along k",
    state: "2 H K V",
    eigenvalues: "(−1, 1) where η = 0; where α = 0 their product is η",
    cost: "H K V",
    source: "arXiv 2501.00663",
};

/// The mixer.
pub struct Layer {
    h: usize,
    k: usize,
    qkv: [Projection; 3],
    w_rates: P,
    b_rates: P,
    norm: P,
    w_o: P,
}

impl Layer {
    /// H heads of width K over the model's width.
    pub fn new(c: &ModelConfig, init: &mut Init) -> Result<Layer> {
        let (width, inner, h) = (c.width, c.inner(), c.heads);
        Ok(Layer {
            h,
            k: c.head_dim,
            qkv: ["q", "k", "v"].map(|name| Projection::new(name, 1, c, init)),
            w_rates: init.uniform("w_rates", [3 * h, width], xavier(h, width, SMALL_GAIN)),
            b_rates: init.custom("b_rates", [3 * h], move |_, i| if i < 2 * h { 0.0 } else { -4.0 }),
            norm: init.full("norm", [c.head_dim], 1.0),
            w_o: init.uniform("w_o", [width, inner], xavier(width, inner, SMALL_GAIN)),
        })
    }

    /// The inputs of x [B, T, D]; the convolutions' windows (states 2 to 4) move on.
    fn project<'t>(&self, p: &Bound<'t>, x: Var<'t>, state: &mut State<'t>) -> Inputs<'t> {
        let [q, k, v] = std::array::from_fn(|j| heads(self.qkv[j].apply(p, x, state, 2 + j), self.h)); // (q_t)
        let [theta, eta, alpha] = linear_parts(x, p[self.w_rates], Some(p[self.b_rates])); // (θ_t)
        let [q, k] = [q, k].map(|x| x.l2_norm_smooth(1e-6)); // (q, k)
        [q, k, v, theta.sigmoid(), log_sigmoid(eta), log_sigmoid(-alpha)] // (θ_t)
    }
}

impl Mixer for Layer {
    fn state(&self, b: usize) -> Vec<(&'static str, Shape)> {
        let s = Shape::from([b, self.h, self.k, self.k]);
        [("S", s), ("M", s)].into_iter().chain(Projection::windows(&self.qkv, b)).collect()
    }

    fn sequence<'t>(&self, p: &Bound<'t>, x: Var<'t>, state: &mut State<'t>, form: Form) -> Var<'t> {
        let inputs = self.project(p, x, state);
        let mut memory = [state.s[0], state.s[1]];
        let o = read(inputs, &mut memory, inverse_root(self.k), form);
        state.s[..2].copy_from_slice(&memory);
        normed_output(o, p[self.norm], None, p[self.w_o]) // (y_t)
    }
}
