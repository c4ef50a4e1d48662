//! The linear state-space layer, LSSL (Gu et al. 2021, arXiv 2110.13985; as in the authors' lssl.py): a dense
//! transition that keeps the coefficients of the input in Legendre polynomials (HiPPO-LegS).
//!
//! ```text
//! A_nm = −√(2n+1) √(2m+1) (n > m), −(n + 1) (n = m), 0 (n < m),  B_n = √(2n+1)                       fixed
//! Ā = (I − ½ΔA)⁻¹ (I + ½ΔA),  B̄ = (I − ½ΔA)⁻¹ ΔB                         bilinear; Δ = exp(log_dt) one a channel
//! h_t = Ā h_{t-1} + B̄ u_t                                                N states a channel                        (1)
//! y_t = c·h_t + d u_t                                                                                              (2)
//! out_t = W GELU(y_t) + b
//! ```
//!
//! Ā is triangular, with the eigenvalues (1 − ½Δ(n+1)) / (1 + ½Δ(n+1)), real and inside (−1, 1), the same for every
//! token. A is that of the paper's LSSL-f and not learned. Δ, c and d are.
//!
//! As a convolution (the paper's third view), with x_l = Ā^l B̄,
//!
//! ```text
//! y_t = Σ_{s ≤ t} (c·x_{t−s}) u_s + c·Ā^t h_0 + d u_t,     h_T = Σ_s x_{T−s} u_s + Ā^T h_0                          (3)
//! ```
//!
//! At the start Δ is log-uniform in [0.001, 0.1], c normal of variance 1/N (theirs 1, and Δ fixed), d normal; W and b
//! as torch's `nn.Linear`. N is the `state`. Each channel has one read-out c (M = 1 in the paper's terms).
//!
//! Shapes: u, y, out [B, T, D], A [N, N], Ā [D, N, N], B̄, c [D, N], h [B, D, N].
//!
//! | form | work |
//! |---|---|
//! | recurrent | O(T D N²), T steps |
//! | parallel | (3) for the whole sequence: O(T² D + T D N² + D N³ log T) |
//! | chunked | (3) for C steps at a time: O(T D (C + N + N²/C) + D (C N² + N³ log C)) |

use super::{
    lti::{self, Fixed, check_order, power, powers, squares, taps},
    prelude::*,
};

/// A, B and the identity: [N, N], [N, 1], [N, N].
pub(crate) struct Legendre([Fixed; 3]);

impl Legendre {
    /// Of N polynomials.
    pub fn new(n: usize) -> Legendre {
        let root = |n: usize| (2.0 * n as f64 + 1.0).sqrt();
        let entry = |i: usize| match (i / n, i % n) {
            (n, m) if n > m => -root(n) * root(m), // (A_nm)
            (n, m) if n == m => -(n as f64 + 1.0), // (A_nm)
            _ => 0.0,                              // (A_nm)
        };
        let one = |i: usize| if i.is_multiple_of(n + 1) { 1.0 } else { 0.0 };
        Legendre([
            Fixed::new((0..n * n).map(entry).collect(), &[n, n]),
            Fixed::new((0..n).map(root).collect(), &[n, 1]), // (B_n)
            Fixed::new((0..n * n).map(one).collect(), &[n, n]),
        ])
    }

    /// Ā [D, N, N] and B̄ [D, 1, N] of ln Δ `[D]`, with `gbt` and 1 − `gbt` for the two ½.
    pub fn held<'t>(&self, log_dt: Var<'t>, gbt: f64) -> (Var<'t>, Var<'t>) {
        let longest = log_dt.tape().full(log_dt.shape(), log_dt.dtype(), -1e18); // more changes no digit
        let dt = (-maximum(&[log_dt.decay_rate(), longest])).reshape([log_dt.shape().last(), 1, 1]);
        lti::bilinear(self.0.each_ref().map(|fixed| fixed.beside(log_dt)), dt, gbt) // (Ā)
    }
}

/// y [B, T, D], without d u, of u [B, T, D], Ā [D, N, N], B̄ [D, 1, N] and c [D, N]; h [B, D, N] moves on.
pub fn filter<'t>(u: Var<'t>, (a, input): (Var<'t>, Var<'t>), c: Var<'t>, h: &mut Var<'t>, form: Form) -> Var<'t> {
    let ([b, t, d], n, dtype) = (u.dims(), c.shape().last(), u.dtype());
    // [B, D, N] to [D, B, N] and back.
    let turned = |x: Var<'t>| x.transpose(0, 1);
    if form == Form::Recurrent || t == 0 {
        let (a, input) = (a.cast(dtype), input.cast(dtype));
        return over_time(t, u, |i| {
            let x = (insert_axis(at(u, i), 2) * input.reshape([d, n])).named("x"); // (1)
            *h = turned(turned(*h).matmul_t(a)) + x; // (1)
            (*h * c).sum_axis(2, false).named("y") // (2)
        });
    }
    let size = form.chunk(t).min(t);
    let row = c.cast(a.dtype()).reshape([d, 1, n]);
    let responses = taps(input, &squares(a.transpose(1, 2), size), size); // x_{C−1}, …, x_0: [D, C, N]
    let filter = responses.matmul_t(row).reshape([d, size]).cast(dtype); // (3)
    let reads = powers(row.matmul(a), &squares(a, size), size).cast(dtype); // (3) c Ā, …, c Ā^C: [D, C, N]
    let whole = power(a, size);
    by_pieces(t, size, 1, |from, len| {
        let (u, before) = (u.narrow(1, from, len), turned(*h));
        let taps = filter.narrow(1, size - len, len);
        let none = u.tape().full([b, len - 1, d], dtype, 0.0);
        let free = before.matmul_t(reads.narrow(1, 0, len)); // [D, B, C]
        let over = if len == size { whole } else { power(a, len) };
        let moved = before.matmul_t(over.cast(dtype));
        let written = u.permute([2, 0, 1]).matmul(responses.narrow(1, size - len, len).cast(dtype));
        *h = turned(moved + written); // (3)
        u.causal_conv1d(taps, None, none) + free.permute([1, 2, 0]) // (3)
    })
}

/// See [`About`].
pub(crate) const ABOUT: About = About {
    family: Family::Scans,
    line: "LSSL: a fixed, dense state space a channel (HiPPO)",
    parent: Some(("lmu", "no window; step and read are learned")),
    transition: "Ā, fixed and dense",
    state: "D N",
    eigenvalues: "(−1, 1), fixed",
    cost: "D N²",
    source: "arXiv 2110.13985",
};

/// The mixer.
pub struct Layer {
    d: usize,
    n: usize,
    legendre: Legendre,
    log_dt: P,
    skip: P,
    c: P,
    w: P,
    b: P,
}

impl Layer {
    /// N states for each of the model's channels.
    pub fn new(c: &ModelConfig, init: &mut Init) -> Result<Layer> {
        let (d, n) = (c.width, c.state);
        check_order(n)?;
        let ([from, to], [bound, std]) = ([1e-3, 1e-1].map(f64::ln), [d, n].map(|n| (n as f64).powf(-0.5)));
        Ok(Layer {
            d,
            n,
            legendre: Legendre::new(n),
            log_dt: init.in_f32("log_dt", [d], |g, _| g.uniform(from, to)),
            skip: init.custom("D", [d], |g, _| g.gauss()),
            c: init.custom("C", [d, n], |g, _| std * g.gauss()),
            w: init.uniform("w", [d, d], bound),
            b: init.custom("b", [d], |g, _| g.uniform(-bound, bound)),
        })
    }
}

impl Mixer for Layer {
    fn state(&self, b: usize) -> Vec<(&'static str, Shape)> {
        vec![("h", [b, self.d, self.n].into())]
    }

    fn sequence<'t>(&self, p: &Bound<'t>, u: Var<'t>, state: &mut State<'t>, form: Form) -> Var<'t> {
        let held = self.legendre.held(p[self.log_dt], 0.5);
        let y = filter(u, held, p[self.c], &mut state.s[0], form) + p[self.skip] * u; // (2)
        y.gelu().linear(p[self.w], Some(p[self.b])) // (out_t)
    }
}
