//! S4D (Gu et al. 2022, arXiv 2206.11893; the layer is that of the authors' s4d.py): a fixed, diagonal, complex
//! state-space model for each channel.
//!
//! ```text
//! A_n = −exp(a_n) + i ω_n,  Δ = exp(log_dt),  λ = e^{ΔA}                  zero-order hold; Δ one a channel
//! h_t = λ h_{t-1} + (λ − 1)/A u_t                                        N states a channel, of conjugate pairs one each  (1)
//! y_t = 2 Re Σ_n c_n h_tn + d u_t                                                                                  (2)
//! out_t = GLU(W GELU(y_t) + b)
//! ```
//!
//! The states are an LRU's. The transition does not depend on the input, so that the layer is a convolution: it can
//! weigh the last tokens by their distance, and can do nothing that depends on what came in between.
//!
//! At the start A_n = −½ + iπn (S4D-Lin), Δ is log-uniform in [0.001, 0.1], c complex normal of variance 1 and d
//! normal; W and b as torch's `nn.Conv1d`. N is the `state`.
//!
//! Shapes: u, y, out [B, T, D], A, λ and c [D, N], h [B, D N] as a pair (real, imaginary); forms and their work as in
//! [`lru`].

use super::{
    lru::{self, Complex},
    prelude::*,
};

/// λ and (λ − 1)/A, [D, N] each, of log_dt `[D]`, a and ω [D, N].
fn rates<'t>(log_dt: Var<'t>, a: Var<'t>, omega: Var<'t>) -> (Complex<'t>, Complex<'t>) {
    let (dt, a_re, a_im) = (insert_axis(-log_dt.decay_rate(), 1), a.decay_rate(), omega); // (A_n)
    let (growth, angle) = (finite(dt * a_re), finite(dt * a_im));
    let lambda = (growth.exp() * angle.cos(), growth.exp() * angle.sin()); // (λ)
    // λ − 1, whose real part is small where the steps are.
    let less = growth.expm1() * angle.cos() - 2.0 * (0.5 * angle).sin().square();
    // Where ΔA = z is small the quotient loses its digits, and its slopes all of them: there it is Δ Σ zⁿ/(n + 1)!.
    let small = positive(0.01 - growth.square() - angle.square());
    let (z, mut sum) = ((growth * small, angle * small), (small, 0.0 * small));
    for n in (2..12).rev().map(|n| 1.0 / f64::from(n)) {
        sum = (n * (z.0 * sum.0 - z.1 * sum.1) + 1.0, n * (z.0 * sum.1 + z.1 * sum.0));
    }
    // Divided by A over its larger part, whose square might otherwise be 0 in single precision.
    let (a_re, a_im, large) = (a_re * (1.0 - small) - small, a_im * (1.0 - small), 1.0 - small);
    let size = maximum(&[-a_re, a_im, -a_im]);
    let (x, y) = (a_re / size, a_im / size);
    let square = size * (x.square() + y.square());
    let quotient = ((less * x + lambda.1 * y) / square, (lambda.1 * x - less * y) / square); // (1)
    let both = |sum: Var<'t>, quotient: Var<'t>| large * quotient + small * dt * sum;
    (lambda, (both(sum.0, quotient.0), both(sum.1, quotient.1))) // (1)
}

/// log_dt and d `[D]`; a = ln −Re A, ω = Im A, Re c and Im c [D, N].
pub(crate) type Weights<'t> = [Var<'t>; 6];

/// y [B, T, D] of u [B, T, D]; h [B, D N] moves on.
pub(crate) fn filter<'t>(u: Var<'t>, w: Weights<'t>, h: &mut Complex<'t>, form: Form) -> Var<'t> {
    let [log_dt, skip, a, omega, c_re, c_im] = w;
    let ([b, t, d], [_, n], dtype) = (u.dims(), c_re.dims(), u.dtype());
    let (lambda, input) = rates(log_dt, a, omega);
    let x = |part: Var<'t>| (insert_axis(u, 3) * part.cast(dtype)).reshape([b, t, d * n]); // (1)
    let (x, (re, im)) = ((x(input.0), x(input.1)), (lambda.0.reshape([d * n]), lambda.1.reshape([d * n])));
    let states;
    (states, *h) = match form {
        Form::Recurrent => lru::recurrent((re.cast(dtype), im.cast(dtype)), x, *h), // (1)
        Form::Scan(chunk) => lru::scan((re, im), x, *h, chunk),
        _ => lru::parallel((re, im), x, *h),
    };
    let part = |x: Var<'t>| x.reshape([b, t, d, n]);
    2.0 * (part(states.0) * c_re - part(states.1) * c_im).sum_axis(3, false) + skip * u // (2)
}

/// See [`About`].
pub(crate) const ABOUT: About = About {
    family: Family::Scans,
    line: "S4D: a fixed, diagonal state space for each channel",
    parent: Some(("lssl", "a diagonal transition")),
    transition: "exp(ΔA), fixed",
    state: "D N complex",
    eigenvalues: "|λ| < 1, complex, fixed",
    cost: "D N",
    source: "arXiv 2206.11893",
};

/// The mixer.
pub struct Layer {
    d: usize,
    n: usize,
    log_dt: P,
    skip: P,
    log_a_real: P,
    a_imag: P,
    c: [P; 2],
    w: P,
    b: P,
}

impl Layer {
    /// N complex states for each of the model's channels.
    pub fn new(c: &ModelConfig, init: &mut Init) -> Result<Layer> {
        let (d, n) = (c.width, c.state);
        let (from, to, bound) = (1e-3f64.ln(), 1e-1f64.ln(), (d as f64).powf(-0.5));
        Ok(Layer {
            d,
            n,
            log_dt: init.in_f32("log_dt", [d], |g, _| g.uniform(from, to)),
            skip: init.custom("D", [d], |g, _| g.gauss()),
            log_a_real: init.in_f32("log_a_real", [d, n], |_, _| 0.5f64.ln()),
            a_imag: init.in_f32("a_imag", [d, n], |_, i| std::f64::consts::PI * (i % n) as f64),
            c: ["C_re", "C_im"].map(|name| init.custom(name, [d, n], |g, _| 0.5f64.sqrt() * g.gauss())),
            w: init.uniform("w", [2 * d, d], bound),
            b: init.custom("b", [2 * d], |g, _| g.uniform(-bound, bound)),
        })
    }
}

impl Mixer for Layer {
    // Only Mamba's scan reads the number.
    fn forms(&self) -> Vec<Form> {
        vec![Form::Recurrent, Form::Parallel, Form::Scan(256)]
    }

    fn state(&self, b: usize) -> Vec<(&'static str, Shape)> {
        let h = Shape::from([b, self.d * self.n]);
        vec![("Re h", h), ("Im h", h)]
    }

    fn sequence<'t>(&self, p: &Bound<'t>, u: Var<'t>, state: &mut State<'t>, form: Form) -> Var<'t> {
        let w = [self.log_dt, self.skip, self.log_a_real, self.a_imag, self.c[0], self.c[1]].map(|w| p[w]);
        let mut h = (state.s[0], state.s[1]);
        let y = filter(u, w, &mut h, form);
        state.s = vec![h.0, h.1];
        y.gelu().linear(p[self.w], Some(p[self.b])).glu() // (out_t)
    }
}
