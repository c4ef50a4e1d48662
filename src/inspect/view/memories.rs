//! The views of the mixers that are gated linear attention, or a gated delta rule with a gate for each channel.

use super::{
    BETA, KEY, MEMORY, OUT, QUERY, READ,
    Role::{Gate, State, Vector},
    STEP_SIZE, Spectrum, VALUE, View, q,
};

const ALPHA: super::Quantity = q("alpha", "α", "hi", Gate, "how much of each row of the memory stays");
const RE: super::Quantity =
    q("Re lambda", "Re λ", "hn", Vector, "the transition, real part: one number for each pair of rows");
const IM: super::Quantity = q("Im lambda", "Im λ", "hn", Vector, "the transition, imaginary part");
const ADD: super::Equation = ("S_t = diag(α_t) S_{t-1} + k_t v_tᵀ", "{S} = {alpha} · {S-} + {k} · {v}");

/// See [`VIEWS`](super::VIEWS).
pub const VIEWS: &[View] = &[
    View {
        mixer: "gla",
        title: "GLA",
        quantities: &[MEMORY, ALPHA, KEY, VALUE, QUERY, OUT],
        equations: &[("α_t = σ(W_2 W_1 x_t + b)^(1/16)", "{alpha}"), ADD, READ],
        eigenvalues: Spectrum::Named("alpha"),
        spectrum: "The gates α, one for each row, in (0, 1): a row can decay or stay, never flip.",
    },
    View {
        mixer: "hgrn2",
        title: "HGRN2",
        quantities: &[
            MEMORY,
            q("alpha", "α", "hi", Gate, "how much of each row of the memory stays; what goes is replaced"),
            q("k", "1 − α", "hi", Vector, "key: how much of the value each row takes"),
            VALUE,
            QUERY,
            OUT,
        ],
        equations: &[("α_t = γ_l + (1 − γ_l) σ(W_f x_t)", "{alpha}"), ADD, READ],
        eigenvalues: Spectrum::Named("alpha"),
        spectrum: "The gates α, one for each row, above the bound of the block and below 1: no row can flip.",
    },
    View {
        mixer: "retnet",
        title: "RetNet",
        quantities: &[MEMORY, KEY, VALUE, QUERY, OUT, RE, IM],
        equations: &[("o_t = S_tᵀ q_t", "{o} = {sum:i S * q}")],
        eigenvalues: Spectrum::Complex("Re lambda", "Im lambda"),
        spectrum: "γ e^(±iθ): the same at every step, so that every token turns and shrinks the memory alike.",
    },
    View {
        mixer: "mamba2",
        title: "Mamba-2",
        quantities: &[
            MEMORY,
            q("A_bar", "Ā", "h", Gate, "how much of the whole memory stays"),
            q("B", "B", "hi", Vector, "how the input enters the states"),
            q("x", "Δx", "hj", Vector, "input, times the length of the step"),
            q("C", "C", "hi", Vector, "how the states are read"),
            q("y", "SᵀC", "hj", Vector, "what is read"),
        ],
        equations: &[
            ("Ā_t = s exp(Δ_t A) − (s − 1)", "{A_bar}"),
            ("S_t = Ā_t S_{t-1} + B_t (Δ_t x_t)ᵀ", "{S} = {A_bar} · {S-} + {B} · {x}"),
            ("y_t = S_tᵀ C_t", "{y} = {sum:i S * C}"),
        ],
        eigenvalues: Spectrum::Named("A_bar"),
        spectrum: "One number Ā a head: in (0, 1) its memory decays or stays; stretched to (−1, 1), it can flip.",
    },
    View {
        mixer: "mamba3",
        title: "Mamba-3",
        quantities: &[
            MEMORY,
            q("phi", "φ", "hn", State, "the angle by which keys and queries are turned"),
            q("dt", "Δ", "h", Gate, "step size: long steps forget, write and turn more"),
            q("beta", "β", "h", Gate, "how much of the last token is written again"),
            q("gamma", "γ", "h", Gate, "how much of this token is written"),
            q("q", "R(φ) q", "hi", Vector, "query, turned"),
            q("k", "R(φ) k", "hi", Vector, "key, turned"),
            VALUE,
            OUT,
            RE,
            IM,
        ],
        equations: &[("o_t = S_tᵀ q_t", "{o} = {sum:i S * q}")],
        eigenvalues: Spectrum::Complex("Re lambda", "Im lambda"),
        spectrum: "α e^(±iΔθ), as the turned queries see the memory: the input chooses how far each pair of rows turns.",
    },
    View {
        mixer: "kda",
        title: "KDA",
        quantities: &[
            MEMORY,
            ALPHA,
            BETA,
            KEY,
            VALUE,
            q(
                "error",
                "v − S'ᵀk",
                "hj",
                Vector,
                "what is written, less what is erased: what the faded S holds under k",
            ),
            QUERY,
            OUT,
        ],
        equations: &[
            STEP_SIZE,
            ("α_t = exp(g_t)", "{alpha}"),
            ("error_t = v_t − (α_t ⊙ S_{t-1})ᵀ k_t", "{error}"),
            ("S_t = α_t ⊙ S_{t-1} + k_t β_t error_tᵀ", "{S} = {alpha} · {S-} + {k} · {beta} · {error}"),
            READ,
        ],
        eigenvalues: Spectrum::Named("alpha"),
        spectrum: "Of diag(α) alone, which the delta rule multiplies by 1 − β‖k‖² along k: real, and at least min(0, 1 − β).",
    },
    View {
        mixer: "rwkv7",
        title: "RWKV-7",
        quantities: &[
            MEMORY,
            q("w", "w", "hi", Gate, "how much of each row of the memory stays"),
            q("minus kappa", "−κ", "hi", Vector, "under which it is erased"),
            q("a kappa", "a ⊙ κ", "hi", Vector, "how far it is erased, in each row"),
            q("erased", "−Sᵀκ", "hj", Vector, "what the memory held under κ"),
            KEY,
            VALUE,
            q("r", "r", "hi", Vector, "receptance: what is asked of the memory"),
            OUT,
        ],
        equations: &[
            ("erased_t = −S_{t-1}ᵀ κ_t", "{erased} = {sum:i S- * minus kappa}"),
            (
                "S_t = w_t ⊙ S_{t-1} + (a_t ⊙ κ_t) erased_tᵀ + k_t v_tᵀ",
                "{S} = {w} · {S-} + {a kappa} · {erased} + {k} · {v}",
            ),
            ("o_t = S_tᵀ r_t", "{o} = {sum:i S * r}"),
        ],
        eigenvalues: Spectrum::Named("w"),
        spectrum: "Of diag(w) alone; with the erasure they are real and reach down to −0.455, or to −1 with the switch.",
    },
];
