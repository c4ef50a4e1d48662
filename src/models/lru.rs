//! LRU, the linear recurrent unit (Orvieto et al. 2023, arXiv 2303.06349):
//!
//! ```text
//! λ_j = exp(−exp(ν_j) + i exp(θ_j))                       stable by construction: |λ| < 1            (eq. 6)
//! h_k = λ ⊙ h_{k-1} + γ ⊙ (B u_k)                         h ∈ ℂᴺ, γ normalises the variance          (eq. 7)
//! y_k = Re(C h_k) + D ⊙ u_k                                                                          (eq. 1)
//! ```
//!
//! and the block around it (section 3.1): out = (W₁ g + b₁) ⊙ σ(W₂ g + b₂), g = gelu(y).
//!
//! At the start λ is uniform on the ring r_min ≤ |λ| ≤ r_max (|λ|² is uniform, and the phase in
//! [0, 2π)), γ = √(1 − |λ|²), and B and C are complex normal with variances 1/(2H) and 1/N for each part (section 3.4,
//! lemma 3.2).
//!
//! The transition λ does not depend on the input: it can count positions (λ near −1 tells odd from even), but it is the
//! same for a one and a zero.
//!
//! Shapes: u, y [B, T, H], λ `[N]`, h [B, T, N] as a pair (real, imaginary), B [N, H], C [H, N], D `[H]`; H is the
//! model's width.
//!
//! | form | work | depth |
//! |---|---|---|
//! | recurrent | O(T N) | T |
//! | parallel | O(T N log T): associative scan | log T |
//! | scan | O(T N) | T; a device computes eight slices of a group of steps side by side, and takes group after group |

use super::prelude::*;
use crate::ops::lru_scan::{joined, lru_scan_joined, lru_scan_parallel_joined, mul};

pub use crate::ops::{
    lru_scan::Complex,
    scan::{lru_scan as scan, lru_scan_parallel as parallel},
};

/// h_k = λ h_{k-1} + x_k for one token: all [B, N], λ `[N]`.
pub(crate) fn step<'t>(lambda: Complex<'t>, x: Complex<'t>, h: Complex<'t>) -> Complex<'t> {
    let (re, im) = mul((lambda.0.named("Re lambda"), lambda.1.named("Im lambda")), h); // (eq. 7)
    (re + x.0.named("Re x"), im + x.1.named("Im x")) // (eq. 7)
}

/// [`step`] over a sequence: x [B, T, N] to h [B, T, N] and the last h.
pub fn recurrent<'t>(lambda: Complex<'t>, x: Complex<'t>, mut h: Complex<'t>) -> (Complex<'t>, Complex<'t>) {
    let (t, mut imaginary) = (x.0.shape().at(1), vec![]);
    let re = over_time(t, x.0, |i| {
        h = step(lambda, (at(x.0, i), at(x.1, i)), h);
        imaginary.push(h.1);
        h.0
    });
    ((re, over_time(t, x.1, |i| imaginary[i])), h)
}

/// See [`About`].
pub(crate) const ABOUT: About = About {
    family: Family::Scans,
    line: "LRU: fixed complex rates",
    parent: Some(("s4d", "learned in discrete time, across channels")),
    transition: "λ, fixed",
    state: "N complex",
    eigenvalues: "|λ| < 1, fixed",
    cost: "N",
    source: "arXiv 2303.06349",
};

/// The mixer.
pub struct Layer {
    n: usize,
    rates: [P; 3], // ν, θ and ln γ
    b: [P; 2],
    c: [P; 2],
    d: P,
    glu: [(P, P); 2], // W₁ and W₂ with biases
}

impl Layer {
    /// N complex states under the model's width.
    pub fn new(c: &ModelConfig, init: &mut Init) -> Result<Layer> {
        let (n, width) = (c.state, c.width);
        let (lo, hi) = (c.r_min * c.r_min, c.r_max * c.r_max);
        // |λ|² uniform in [r_min², r_max²], away from 0 and 1 where ν is infinite. γ uses the same draw.
        let square = |u: f64| (u * (hi - lo) + lo).clamp(1e-6, 1.0 - 1e-6);
        let mut squares = vec![];
        let nu = init.in_f32("nu_log", [n], |g, _| {
            squares.push(square(g.uniform(0.0, 1.0)));
            (-0.5 * squares[squares.len() - 1].ln()).ln()
        });
        let theta = init.in_f32("theta_log", [n], |g, _| (std::f64::consts::TAU * g.uniform(1e-9, 1.0)).ln());
        let gamma = init.in_f32("gamma_log", [n], |_, j| 0.5 * (1.0 - squares[j]).ln());
        let b_std = (2.0 * width as f64).powf(-0.5);
        let c_std = (n as f64).powf(-0.5);
        Ok(Layer {
            n,
            rates: [nu, theta, gamma],
            // No weight decay, as for λ and γ: the recurrence keeps its scale.
            b: ["B_re", "B_im"].map(|name| init.custom(name, [n, width], |g, _| b_std * g.gauss())),
            c: ["C_re", "C_im"].map(|name| init.normal(name, [width, n], c_std)),
            d: init.custom("D", [width], |g, _| g.gauss()),
            glu: [("w1", "b1"), ("w2", "b2")].map(|(w, b)| (init.linear(w, width, width), init.full(b, [width], 0.0))),
        })
    }

    /// λ `[N]` from ν and θ (eq. 6).
    fn lambda<'t>(&self, p: &Bound<'t>) -> Complex<'t> {
        let (magnitude, phase) = (p[self.rates[0]].decay_rate().exp(), -p[self.rates[1]].decay_rate()); // (eq. 6)
        (magnitude * phase.cos(), magnitude * phase.sin()) // (eq. 6)
    }

    /// (γ B) u of a sequence, [B, T, H] to [B, T, 2N], both parts in one product. To scale B by γ is cheaper than to
    /// scale B u at every position.
    fn inputs<'t>(&self, p: &Bound<'t>, u: Var<'t>) -> Var<'t> {
        let gamma = p[self.rates[2]].exp().cast(u.dtype()).reshape([self.n, 1]);
        u.linear(Var::concat(&self.b.map(|b| gamma * p[b]), 0), None) // (eq. 7)
    }

    /// Re(C h) + D ⊙ u, then the block's GELU and gated linear unit. h [.., 2N] holds both parts.
    fn output<'t>(&self, p: &Bound<'t>, h: Var<'t>, u: Var<'t>) -> Var<'t> {
        let c = Var::concat(&[p[self.c[0]], -p[self.c[1]]], 1); // [H, 2N]: Re(C h) = Re C Re h − Im C Im h
        let g = (h.linear(c, None) + p[self.d] * u).gelu_tanh(); // (eq. 1) gelu(y), y = Re(C h) + D ⊙ u
        // Both halves of the gated linear unit in one product.
        let (w, b) = (self.glu.map(|(w, _)| p[w]), self.glu.map(|(_, b)| p[b]));
        g.linear(Var::concat(&w, 0), Some(Var::concat(&b, 0))).glu()
    }
}

impl Mixer for Layer {
    fn forms(&self) -> Vec<Form> {
        vec![Form::Recurrent, Form::Parallel, Form::Scan(256)]
    }

    fn state(&self, b: usize) -> Vec<(&'static str, Shape)> {
        vec![("Re h", [b, self.n].into()), ("Im h", [b, self.n].into())]
    }

    fn step<'t>(&self, p: &Bound<'t>, u: Var<'t>, state: &mut State<'t>) -> Var<'t> {
        let gamma = p[self.rates[2]].exp().cast(u.dtype());
        let [re, im] = self.b.map(|b| gamma * u.linear(p[b], None)); // (eq. 7)
        let h = step(self.lambda(p), (re, im), (state.s[0], state.s[1]));
        state.s = vec![h.0, h.1];
        self.output(p, joined(h), u)
    }

    fn sequence<'t>(&self, p: &Bound<'t>, u: Var<'t>, state: &mut State<'t>, form: Form) -> Var<'t> {
        let (lambda, x, h0) = (self.lambda(p), self.inputs(p, u), (state.s[0], state.s[1])); // x [B, T, 2N]
        let (h, last) = match form {
            Form::Scan(chunk) => lru_scan_joined(lambda, x, h0, chunk),
            _ => lru_scan_parallel_joined(lambda, x, h0),
        };
        state.s = vec![last.0, last.1];
        self.output(p, h, u)
    }
}
