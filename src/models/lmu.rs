//! LMU, the Legendre memory unit with parallel training (Voelker et al. 2019; Chilkuri and Eliasmith 2021, arXiv
//! 2102.11417; the cell is that of LMUFormer, arXiv 2402.04882, the memory that of nengo's keras_lmu): the last θ steps
//! of one signal, in shifted Legendre polynomials.
//!
//! ```text
//! u_t = ReLU(w_u·x_t + b_u)                                              one signal a layer
//! θ m' = A m + B u,  A_ij = (2i+1) (−1 if i < j, else (−1)^(i−j+1)),  B_i = (2i+1) (−1)^i
//! m_t = Ā m_{t-1} + B̄ u_t                                                zero-order hold of step 1; fixed          (1)
//! y_t = ReLU(W_h [m_t; x_t] + b_h)
//! ```
//!
//! Σ_i P_i(2d/θ − 1) m_i is close to u(t − d) for 0 ≤ d ≤ θ: the memory holds a window, and what leaves it is
//! forgotten. Ā is dense and the same at every step. The memory has N polynomials (the `state`) over θ = 4 N steps.
//!
//! In sequence m is a convolution of u with the impulse response Ā^l B̄.
//!
//! Weights and biases start as torch's `nn.Linear`. Shapes: x, y [B, T, D], u [B, T, 1], Ā [N, N], m [B, T, N].
//!
//! | form | work |
//! |---|---|
//! | recurrent | O(T N²), T steps |
//! | parallel | O(T² N + T N² + N³ log T) |
//! | chunked | O(T (C N + N²) + N³ log C) |

use super::{
    lti::{Fixed, check_order, powers, squares, taps, zero_order_hold},
    prelude::*,
};

/// θ / N.
const STEPS: f64 = 4.0;

/// The memory's Ā [N, N] and B̄ [1, N].
pub(crate) struct Window([Fixed; 2]);

impl Window {
    /// N polynomials over θ steps, held over each step or by Euler's rule.
    pub fn new(n: usize, theta: f64, euler: bool) -> Window {
        let sign = |k: usize| if k.is_multiple_of(2) { 1.0 } else { -1.0 };
        let entry = |i: usize, j: usize| match (i, j) {
            _ if j == n => sign(i), // (B_i)
            _ if i < j => -1.0,     // (A_ij)
            _ => -sign(i - j),      // (A_ij)
        };
        let (a, input) = zero_order_hold(n, euler, |i, j| (2.0 * i as f64 + 1.0) * entry(i, j) / theta); // (θ m') (1)
        Window([Fixed::new(a, &[n, n]), Fixed::new(input, &[1, n])])
    }

    /// m [B, T, N] of u [B, T, 1]; the last m [B, N] moves on.
    pub fn memory<'t>(&self, u: Var<'t>, m: &mut Var<'t>, form: Form) -> Var<'t> {
        let ([a, input], [b, t, _], n, dtype) =
            (self.0.each_ref().map(|fixed| fixed.beside(u)), u.dims(), m.shape().last(), u.dtype());
        if form == Form::Recurrent || t == 0 {
            let (a, input) = (a.cast(dtype), input.cast(dtype));
            return over_time(t, m.reshape([b, 1, n]).narrow(1, 0, 0), |i| {
                *m = m.matmul_t(a) + at(u, i) * input; // (1)
                *m
            });
        }
        let size = form.chunk(t).min(t);
        let (a_t, row) = (a.transpose(0, 1).reshape([1, n, n]), input.reshape([1, 1, n]));
        let squares = squares(a_t, size);
        let response = taps(row, &squares, size).reshape([size, n]).transpose(0, 1).cast(dtype); // [N, C]
        let wide = u + u.tape().full([n], dtype, 0.0);
        by_pieces(t, size, 1, |from, len| {
            let none = u.tape().full([b, len - 1, n], dtype, 0.0);
            let driven = wide.narrow(1, from, len).causal_conv1d(response.narrow(1, size - len, len), None, none);
            // The rest of the m before: Ā m, …, Ā^C m.
            let free = powers(m.cast(a_t.dtype()).reshape([1, b, n]).matmul(a_t), &squares, len).cast(dtype);
            let all = driven + free.reshape([len, b, n]).transpose(0, 1); // (1)
            *m = at(all, len - 1);
            all
        })
    }
}

/// See [`About`].
pub(crate) const ABOUT: About = About {
    family: Family::Scans,
    line: "LMU: a window of one signal, in Legendre polynomials",
    parent: None,
    transition: "Ā, fixed and dense",
    state: "N",
    eigenvalues: "|λ| < 1, complex, fixed",
    cost: "N²",
    source: "arXiv 2102.11417",
};

/// The mixer.
pub struct Layer {
    n: usize,
    window: Window,
    w_u: P,
    b_u: P,
    w_h: P,
    b_h: P,
}

impl Layer {
    /// N polynomials over 4 N steps.
    pub fn new(c: &ModelConfig, init: &mut Init) -> Result<Layer> {
        let (d, n) = (c.width, c.state);
        check_order(n)?;
        let [one, all] = [d, d + n].map(|inp| (inp as f64).powf(-0.5));
        Ok(Layer {
            n,
            window: Window::new(n, STEPS * n as f64, false),
            w_u: init.uniform("w_u", [1, d], one),
            b_u: init.custom("b_u", [1], |g, _| g.uniform(-one, one)),
            w_h: init.uniform("w_h", [d, d + n], all),
            b_h: init.custom("b_h", [d], |g, _| g.uniform(-all, all)),
        })
    }
}

impl Mixer for Layer {
    fn state(&self, b: usize) -> Vec<(&'static str, Shape)> {
        vec![("m", [b, self.n].into())]
    }

    fn sequence<'t>(&self, p: &Bound<'t>, x: Var<'t>, state: &mut State<'t>, form: Form) -> Var<'t> {
        let u = relu(x.linear(p[self.w_u], Some(p[self.b_u]))).named("u"); // (u_t)
        let m = self.window.memory(u, &mut state.s[0], form);
        relu(Var::concat(&[m, x], 2).linear(p[self.w_h], Some(p[self.b_h]))) // (y_t)
    }
}
