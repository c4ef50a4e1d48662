//! The views of the mixers that keep every token.

use super::{
    OUT, Quantity,
    Role::{Attention, Gate, State, Vector},
    Spectrum, View, q,
};

const WEIGHTS: Quantity = q("a", "p", "hs", Attention, "attention: how much of each token so far is read");
const ASKS: Quantity = q("q", "q", "hi", Vector, "query: what is looked for");
const KEY: Quantity = q("k", "k", "hi", Vector, "key of this token: under which later ones find it");
const VALUE: Quantity = q("v", "v", "hj", Vector, "value of this token: what they read there");
const READ: super::Equation = ("o_t = Σ_s p_ts v_s", "{o} = {sum:s a * v@s}");

/// See [`VIEWS`](super::VIEWS).
pub const VIEWS: &[View] = &[
    View {
        mixer: "fox",
        title: "FoX",
        quantities: &[
            WEIGHTS,
            q("f", "f", "h", Gate, "forget gate: by how much all earlier tokens count for less"),
            ASKS,
            KEY,
            VALUE,
            OUT,
        ],
        equations: &[
            ("f_t = σ(w_f x_t + b_f)", "{f} = σ({sum:e w_f * input} + {b_f})"),
            (
                "p_ts = softmax_s(q_t·k_s / √K + ln f_{s+1} + … + ln f_t)",
                "{a} = softmax_s(…, {sum:i q * k@s} / √{size:i} + gates since, …)",
            ),
            READ,
        ],
        eigenvalues: Spectrum::None,
        spectrum: "There is no transition: every token so far is kept, and counts for less with every gate since.",
    },
    View {
        mixer: "path",
        title: "PaTH",
        quantities: &[
            WEIGHTS,
            q("w", "w", "hi", Vector, "the direction that is taken off every earlier key, or turned over"),
            q("beta", "β", "h", Gate, "how much of it is taken off; at 2 the keys are reflected"),
            ASKS,
            q("k", "k", "hi", Vector, "key of this token, before later ones rewrite it"),
            VALUE,
            OUT,
        ],
        equations: &[
            ("β_t = 2 σ(W_β x_t + b_β)", "{beta} = 2 σ({sum:e W_β * input} + {b_β})"),
            ("p_ts = softmax_s(q_t·k_s / √K)    k_s as rewritten so far", "{a}"),
            READ,
            ("eigenvalue along w: 1 − β", "1 − {beta}"),
        ],
        eigenvalues: Spectrum::None,
        spectrum: "Every token applies I − β w wᵀ to every earlier key: 1 − β along w, which reaches −1, and 1 orthogonal to it.",
    },
    View {
        mixer: "hopfield",
        title: "Hopfield",
        quantities: &[
            WEIGHTS,
            q("q", "ξ", "hi", Vector, "the query, after it moved towards the keys that it attends to"),
            KEY,
            VALUE,
            OUT,
        ],
        equations: &[("p_ts = softmax_s(ξ_t·k_s / √K)", "{a} = softmax_s(…, {sum:i q * k@s} / √{size:i}, …)"), READ],
        eigenvalues: Spectrum::None,
        spectrum: "There is no state and no transition: every token so far is kept, and looked at several times.",
    },
    View {
        mixer: "seqboat",
        title: "SeqBoat",
        quantities: &[
            q("h", "h", "n", State, "the moving averages: N for each channel, one channel after another"),
            q("m", "m", "e", Vector, "what is read of the averages"),
            q("active", "active", "d", Gate, "1 for a token that attends and is attended to"),
            q("pi", "π", "d", Gate, "the router's share for that, by which the attention counts"),
            q("a", "p", "s", Attention, "attention: how much of each token so far is read, if this one is active"),
            q("q", "q", "i", Vector, "query: what is looked for"),
            q("k", "k", "i", Vector, "key of this token"),
            q("v", "v", "j", Vector, "value of this token"),
        ],
        equations: &[
            ("h_t = (1 − p σ(α)) ⊙ h_{t-1} + p ⊙ β x_t", "{h}"),
            ("π_t = σ((W_π1 m_t − W_π0 m_t) / e^τ)", "{pi} = σ(({sum:e W_π1 * m} − {sum:e W_π0 * m}) / exp({τ}))"),
            ("active_t = 1 where π_t > 0.5, else 0", "{active} = 1 if {pi} > 0.5, else 0"),
            ("p_ts = softmax_s(q_t·k_s / √(H K))", "{a}"),
        ],
        eigenvalues: Spectrum::None,
        spectrum: "The averages have 1 − p σ(α), in (0, 1) and the same for every token; the attention has no transition.",
    },
];
