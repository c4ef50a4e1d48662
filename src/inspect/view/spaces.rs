//! The views of the mixers whose transition is the same at every step.

use super::{
    Role::{State, Vector},
    Spectrum, View, q,
};

/// See [`VIEWS`](super::VIEWS).
pub const VIEWS: &[View] = &[
    View {
        mixer: "s4d",
        title: "S4D",
        quantities: &[
            q("Re h", "Re h", "n", State, "state, real part: N for each channel, one channel after another"),
            q("Im h", "Im h", "n", State, "state, imaginary part"),
            q("Re x", "Re (λ−1)/A u", "n", Vector, "what the input adds, real part"),
            q("Im x", "Im (λ−1)/A u", "n", Vector, "what the input adds, imaginary part"),
            q("Re lambda", "Re λ", "n", Vector, "the transition, real part; the same at every step"),
            q("Im lambda", "Im λ", "n", Vector, "the transition, imaginary part"),
        ],
        equations: &[
            (
                "Re h_t = Re λ Re h_{t-1} − Im λ Im h_{t-1} + Re (λ−1)/A u_t",
                "{Re h} = {Re lambda} · {Re h-} − {Im lambda} · {Im h-} + {Re x}",
            ),
            (
                "Im h_t = Re λ Im h_{t-1} + Im λ Re h_{t-1} + Im (λ−1)/A u_t",
                "{Im h} = {Re lambda} · {Im h-} + {Im lambda} · {Re h-} + {Im x}",
            ),
        ],
        eigenvalues: Spectrum::Complex("Re lambda", "Im lambda"),
        spectrum: "λ = exp(ΔA) does not depend on the input: every token turns and shrinks the state alike.",
    },
    View {
        mixer: "lssl",
        title: "LSSL",
        quantities: &[
            q("h", "h", "dn", State, "the coefficients of each channel's past in Legendre polynomials"),
            q("x", "B̄u", "dn", Vector, "what the input adds"),
            q("y", "c·h", "d", Vector, "what is read"),
        ],
        equations: &[("h_t = Ā h_{t-1} + B̄ u_t", "{h}"), ("y_t = c·h_t", "{y}")],
        eigenvalues: Spectrum::None,
        spectrum: "Ā is dense and the same at every step; its eigenvalues (1 − ½Δ(n+1)) / (1 + ½Δ(n+1)) are in (−1, 1).",
    },
    View {
        mixer: "lmu",
        title: "LMU",
        quantities: &[
            q("m", "m", "n", State, "the last θ steps of the signal, in shifted Legendre polynomials"),
            q("u", "u", "d", Vector, "the signal that is remembered"),
        ],
        equations: &[("u_t = ReLU(w_u·x_t + b_u)", "{u}"), ("m_t = Ā m_{t-1} + B̄ u_t", "{m}")],
        eigenvalues: Spectrum::None,
        spectrum: "Ā is dense and the same at every step; what leaves the window of θ steps is forgotten.",
    },
];
