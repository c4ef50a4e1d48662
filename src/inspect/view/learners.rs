//! The views of the memories that learn while they read.

use super::{
    ERROR, MEMORY, OUT, QUERY, READ,
    Role::{Gate, State, Vector},
    Spectrum, VALUE, View, q,
};

/// See [`VIEWS`](super::VIEWS).
pub const VIEWS: &[View] = &[
    View {
        mixer: "ttt",
        title: "TTT-linear",
        quantities: &[
            q("S_t", "S_t", "hij", Vector, "the linear layer that reads, after the step of this token"),
            q("S", "S′ − S_0", "hij", State, "the layer before the mini-batch, less where it started"),
            q("c", "c′ − c_0", "hj", State, "its bias, likewise"),
            q(
                "sum of l k d",
                "Σ ℓ k dᵀ",
                "hij",
                State,
                "what the mini-batch has so far taken off S′, before the rate of the place",
            ),
            q("sum of l d", "Σ ℓ d", "hj", State, "the same for the bias"),
            q("rho", "ρ", "", Gate, "the rate of this place in the mini-batch"),
            q("rate", "ρ ℓ", "h", Gate, "the learning rate of this token"),
            q("k", "k", "hi", Vector, "key: the input that the layer is trained on"),
            q("v", "v", "hj", Vector, "value: what it should give, beside the key"),
            q("l d", "ℓ d", "hj", Vector, "the gradient by the layer's output, times ℓ"),
            QUERY,
            OUT,
        ],
        equations: &[
            ("ρ_t ℓ_t = ρ_t σ(w_ℓ x_t + b_ℓ) / K", "{rate} = {rho} · σ({sum:e w_ℓ * input} + {b_ℓ}) / {size:i}"),
            ("d_t = ∂/∂z_t ½ ‖LN(z_t) − (v_t − k_t)‖²,  z_t = S′ᵀ k_t + c′", "{l d}"),
            ("S_t = S′ − ρ_t Σ_s ℓ_s k_s d_sᵀ", "{S_t}"),
            ("o_t = q_t + LN(S_tᵀ q_t + c_t)", "{o}"),
        ],
        eigenvalues: Spectrum::None,
        spectrum: "Within a mini-batch the transition is the identity; from one to the next it is not linear.",
    },
    View {
        mixer: "titans",
        title: "Titans, linear memory",
        quantities: &[
            MEMORY,
            q("M", "M", "hij", State, "momentum: what S still moves by, past surprise"),
            q("theta", "θ", "h", Gate, "how much of this token's error is written: momentary surprise"),
            q("eta", "η", "h", Gate, "how much of the momentum stays"),
            q("keep", "1 − α", "h", Gate, "how much of the memory stays"),
            q("k", "k", "hi", Vector, "key: under which it is written"),
            VALUE,
            ERROR,
            QUERY,
            OUT,
        ],
        equations: &[
            ("error_t = v_t − S_{t-1}ᵀ k_t", "{error} = {v} − {sum:i S- * k}"),
            ("θ_t = σ(W_θ x_t + b_θ)", "{theta} = σ({sum:e W_θ * input} + {b_θ})"),
            ("η_t = σ(W_η x_t + b_η)", "{eta} = σ({sum:e W_η * input} + {b_η})"),
            ("1 − α_t = 1 − σ(W_α x_t + b_α)", "{keep} = 1 − σ({sum:e W_α * input} + {b_α})"),
            ("M_t = η_t M_{t-1} + θ_t k_t error_tᵀ", "{M} = {eta} · {M-} + {theta} · {k} · {error}"),
            ("S_t = (1 − α_t) S_{t-1} + M_t", "{S} = {keep} · {S-} + {M}"),
            READ,
        ],
        eigenvalues: Spectrum::None,
        spectrum: "Along k, [[1 − α − θ, η], [−θ, η]] on (S, M): complex where (1 + η − θ)² < 4 η, if α = 0.",
    },
];
