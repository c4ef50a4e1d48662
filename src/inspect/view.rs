//! The view of each mixer: its quantities, and its equations with places for numbers.
//!
//! A mixer without an entry here is shown by its states and named values alone; a test demands an entry of a mixer that
//! has an `ABOUT`.

mod attention;
mod learners;
mod memories;
mod spaces;

use serde::Serialize;

/// The role of a quantity, which decides how it is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Carried from step to step.
    State,
    /// How much is kept, written or read; drawn over time.
    Gate,
    /// A vector of this step.
    Vector,
    /// Weights over the tokens so far.
    Attention,
}

/// A named value.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Quantity {
    /// Its name in the mixer's step or state.
    pub name: &'static str,
    /// Its symbol in the paper.
    pub symbol: &'static str,
    /// One letter per axis: h head, i row (key), j column (value), d unit or channel, e number of the input, u number
    /// that a gate reads, n state, p factor of a product, s position, m one of several eigenvalues or slots, or a
    /// head of one of several memories, r a memory with all its heads.
    pub axes: &'static str,
    /// How it is drawn.
    pub role: Role,
    /// Its meaning.
    pub about: &'static str,
}

/// Where the eigenvalues of the transition come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spectrum {
    /// There is no transition.
    None,
    /// The eigenvalues are this quantity.
    Named(&'static str),
    /// Their real and imaginary parts are these quantities.
    Complex(&'static str, &'static str),
    /// All are 1: the transition is the identity.
    Ones,
    /// The eigenvalues of α (I − β k kᵀ); α = 1 if there is none.
    Delta,
    /// The eigenvalues of a product of several I − β k kᵀ.
    Product,
}

/// An equation as in the mixer's file, and the same with `{places}` for numbers (see `data.js`: products, sums, earlier
/// steps). The result of a linear map is shown by its largest terms where [`weights`](super::weights) has its matrix, and else only by its
/// value.
pub type Equation = (&'static str, &'static str);

/// The page's view of a mixer.
#[derive(Debug)]
pub struct View {
    /// The mixer.
    pub mixer: &'static str,
    /// Its usual name.
    pub title: &'static str,
    /// Its quantities, in the order in which they are shown.
    pub quantities: &'static [Quantity],
    /// Its equations, in the order of its file.
    pub equations: &'static [Equation],
    /// The eigenvalues of its transition.
    pub eigenvalues: Spectrum,
    /// A sentence about the eigenvalues.
    pub spectrum: &'static str,
}

/// The input of a mixer, which the decoder names.
pub const MIXER_INPUT: Quantity = q("input", "x", "e", Vector, "input of the mixer");

impl View {
    /// The letters of a quantity's axes at a step.
    pub fn axes(&self, name: &str) -> Option<&'static str> {
        let own = self.quantities.iter().find(|q| q.name == name).map(|q| q.axes);
        own.or((name == MIXER_INPUT.name).then_some(MIXER_INPUT.axes))
    }
}

/// A memory that adds, with the sum of the keys for a normaliser.
const SUM_OF_KEYS: View = View {
    mixer: "linear_transformer",
    title: "Linear transformer",
    quantities: &[
        MEMORY,
        q("z", "z", "hi", State, "normaliser: the sum of the keys"),
        q("q", "φ(q)", "hi", Vector, "query, after the feature map: what is asked of the memory"),
        q("k", "φ(k)", "hi", Vector, "key, after the feature map: under which it is written"),
        VALUE,
        OUT,
        q("den", "d", "h", Gate, "what the read is divided by"),
    ],
    equations: &[
        ("S_t = S_{t-1} + φ(k_t) v_tᵀ", "{S} = {S-} + {k} · {v}"),
        ("z_t = z_{t-1} + φ(k_t)", "{z} = {z-} + {k}"),
        ("d_t = φ(q_t)·z_t + ε", "{den} = {sum:i z * q} + ε"),
        ("o_t = S_tᵀ φ(q_t) / d_t", "{o} = {sum:i S * q} / {den}"),
    ],
    eigenvalues: Spectrum::Ones,
    spectrum: "The transition is the identity: the memory adds, and never forgets.",
};

/// The view of a mixer.
pub fn of(mixer: &str) -> Option<&'static View> {
    let all = [VIEWS, memories::VIEWS, learners::VIEWS, spaces::VIEWS, attention::VIEWS];
    all.into_iter().flatten().find(|v| v.mixer == mixer)
}

const fn q(name: &'static str, symbol: &'static str, axes: &'static str, role: Role, about: &'static str) -> Quantity {
    Quantity { name, symbol, axes, role, about }
}

use Role::{Attention, Gate, State, Vector};

// Quantities that several mixers have.
const QUERY: Quantity = q("q", "q", "hi", Vector, "query: what is asked of the memory");
const KEY: Quantity = q("k", "k", "hi", Vector, "key: under which it is written");
const VALUE: Quantity = q("v", "v", "hj", Vector, "value: what is to be stored under the key");
const BETA: Quantity = q("beta", "β", "h", Gate, "how far the memory moves towards the value");
const ERROR: Quantity = q("error", "error", "hj", Vector, "the value to write minus the value that S holds under k");
const OUT: Quantity = q("o", "o", "hj", Vector, "what is read");
const MEMORY: Quantity = matrix("S");
const CELL: Quantity = q("c", "c", "d", State, "cell: what is remembered");
const INPUT: Quantity = q("i", "i", "d", Gate, "input gate: how much of the candidate is written");
const OUTPUT: Quantity = q("o", "o", "d", Gate, "output gate: how much of the cell is shown");

const CANDIDATE: &str = "candidate: what would be written";
const STABILISER: &str = "stabiliser: the logarithm of the factor by which the cell and n are scaled down";
const PAST: &str = "1 after the first token, 0 before it";

const SHOW: Equation = ("h_t = o_t ⊙ tanh(c_t)", "{h} = {o} · tanh({c})");
const STEP_SIZE: Equation = ("β_t = s σ(W_β x_t)", "{beta} = s σ({sum:e W_β * input})");
const READ: Equation = ("o_t = S_tᵀ q_t / √K", "{o} = {sum:i S * q} / √{size:i}");

const fn matrix(name: &'static str) -> Quantity {
    q(name, name, "hij", State, "the memory: a row for each coordinate of the key, a column for each of the value")
}

/// Symbols of equations that are no quantities of a view, and their meanings. Mixers are named where others mean another
/// thing by a symbol.
const SYMBOLS: &[(&str, &[&str], &str)] = &[
    ("W", &[], "W are learned matrices"),
    ("w_", &["fox", "lmu", "ttt"], "w is a learned vector"),
    ("w_0", &["rwkv7"], "w_0 is learned"),
    ("b_", &[], "b are learned biases"),
    (" + b)", &[], "b is a learned bias"),
    ("x_t", &[], "x_t is the input of the mixer at this token"),
    (
        " s σ(",
        &["delta_net", "gated_delta_net", "delta_product", "kda", "mom"],
        "s is 2 where eigenvalues reach to −1, and else 1",
    ),
    ("= s exp(", &[], "s is 2 where eigenvalues reach to −1, and else 1"),
    ("u_t", &["mamba2", "mamba3"], "u_t is the input of the mixer at this token"),
    ("x^w", &[], "x^w is the input of the mixer, mixed with that of the token before"),
    ("Δ_t A", &[], "A is learned, and below 0"),
    ("A_log", &[], "A_log is learned"),
    ("R_", &[], "R are learned matrices"),
    ("max(h(", &["mamba3"], "h(x) is 1 + x, and 1/(1 − x) below 0"),
    ("e^τ", &[], "τ is learned"),
    ("ε", &[], "ε keeps the divisor from 0"),
    ("γ_l", &[], "γ_l is the lower bound of the block's gates, learned"),
];

impl View {
    /// The meaning of symbols in its equations that are none of its quantities.
    pub fn symbols(&self) -> Vec<&'static str> {
        let text: String = self.equations.iter().map(|(equation, _)| format!(" {equation}\n")).collect();
        let here = |(needle, of, _): &&(&str, &[&str], &str)| {
            let own = needle.strip_suffix("_t").is_some_and(|name| self.quantities.iter().any(|q| q.name == name));
            text.contains(needle) && !own && (of.is_empty() || of.contains(&self.mixer))
        };
        SYMBOLS.iter().filter(here).map(|(.., meaning)| *meaning).collect()
    }
}

/// All views.
pub const VIEWS: &[View] = &[
    View {
        mixer: "lstm",
        title: "LSTM",
        quantities: &[
            q("h", "h", "d", State, "hidden state: what the rest of the model, and the next step's gates, see"),
            CELL,
            q("f", "f", "d", Gate, "forget gate: how much of the cell stays"),
            INPUT,
            OUTPUT,
            q("g", "g", "d", Gate, CANDIDATE),
        ],
        equations: &[
            (
                "i_t = σ(W_ii x_t + b_ii + W_hi h_{t-1} + b_hi)",
                "{i} = σ({sum:e W_ii * input} + {b_ii} + {sum:u W_hi * h-[d=u]} + {b_hi})",
            ),
            (
                "f_t = σ(W_if x_t + b_if + W_hf h_{t-1} + b_hf)",
                "{f} = σ({sum:e W_if * input} + {b_if} + {sum:u W_hf * h-[d=u]} + {b_hf})",
            ),
            (
                "g_t = tanh(W_ig x_t + b_ig + W_hg h_{t-1} + b_hg)",
                "{g} = tanh({sum:e W_ig * input} + {b_ig} + {sum:u W_hg * h-[d=u]} + {b_hg})",
            ),
            (
                "o_t = σ(W_io x_t + b_io + W_ho h_{t-1} + b_ho)",
                "{o} = σ({sum:e W_io * input} + {b_io} + {sum:u W_ho * h-[d=u]} + {b_ho})",
            ),
            ("c_t = f_t ⊙ c_{t-1} + i_t ⊙ g_t", "{c} = {f} · {c-} + {i} · {g}"),
            SHOW,
        ],
        eigenvalues: Spectrum::Named("f"),
        spectrum: "The cell's own transition is the forget gate, in (0, 1); a state can flip because the gates see h.",
    },
    View {
        mixer: "quasi_lstm",
        title: "Quasi-LSTM",
        quantities: &[
            CELL,
            q("h", "h", "d", Vector, "what is shown of the cell"),
            q("f", "f", "d", Gate, "forget gate: how much of the cell stays; it sees the input alone"),
            INPUT,
            OUTPUT,
            q("z", "z", "d", Gate, CANDIDATE),
        ],
        equations: &[
            ("f_t = σ(W_f x_t + b_f + 1)", "{f} = σ({sum:e W_f * input} + {b_f} + 1)"),
            ("i_t = σ(W_i x_t + b_i)", "{i} = σ({sum:e W_i * input} + {b_i})"),
            ("z_t = tanh(W_z x_t + b_z)", "{z} = tanh({sum:e W_z * input} + {b_z})"),
            ("o_t = σ(W_o x_t + b_o)", "{o} = σ({sum:e W_o * input} + {b_o})"),
            ("c_t = f_t ⊙ c_{t-1} + i_t ⊙ z_t", "{c} = {f} · {c-} + {i} · {z}"),
            SHOW,
        ],
        eigenvalues: Spectrum::Named("f"),
        spectrum: "The transition is the forget gate f, in (0, 1): a state can decay or stay, never flip.",
    },
    View {
        mixer: "lru",
        title: "LRU",
        quantities: &[
            q("Re h", "Re h", "n", State, "state, real part"),
            q("Im h", "Im h", "n", State, "state, imaginary part"),
            q("Re x", "Re γBu", "n", Vector, "what the input adds, real part"),
            q("Im x", "Im γBu", "n", Vector, "what the input adds, imaginary part"),
            q("Re lambda", "Re λ", "n", Vector, "the transition, real part; the same at every step"),
            q("Im lambda", "Im λ", "n", Vector, "the transition, imaginary part"),
        ],
        equations: &[
            (
                "Re h_k = Re λ Re h_{k-1} − Im λ Im h_{k-1} + Re γBu_k",
                "{Re h} = {Re lambda} · {Re h-} − {Im lambda} · {Im h-} + {Re x}",
            ),
            (
                "Im h_k = Re λ Im h_{k-1} + Im λ Re h_{k-1} + Im γBu_k",
                "{Im h} = {Re lambda} · {Im h-} + {Im lambda} · {Re h-} + {Im x}",
            ),
        ],
        eigenvalues: Spectrum::Complex("Re lambda", "Im lambda"),
        spectrum: "λ does not depend on the input: every token turns and shrinks the state alike.",
    },
    SUM_OF_KEYS,
    View {
        mixer: "gpt",
        title: "GPT",
        quantities: &[
            q("a", "a", "hs", Attention, "attention: how much of each token so far is read"),
            q("q", "q", "hi", Vector, "query: what is looked for"),
            q("k", "k", "hi", Vector, "key of this token: under which later ones find it"),
            q("v", "v", "hj", Vector, "value of this token: what they read there"),
            OUT,
        ],
        equations: &[
            ("a_ts = softmax_s(q_t · k_s / √K)", "{a} = softmax_s(…, {sum:i q * k@s} / √{size:i}, …)"),
            ("o_t = Σ_s a_ts v_s", "{o} = {sum:s a * v@s}"),
        ],
        eigenvalues: Spectrum::None,
        spectrum: "There is no state and no transition: every token so far is kept, and looked at again.",
    },
    View {
        mixer: "delta_net",
        title: "DeltaNet",
        quantities: &[MEMORY, BETA, KEY, VALUE, ERROR, QUERY, OUT],
        equations: &[
            STEP_SIZE,
            ("error_t = v_t − S_{t-1}ᵀ k_t", "{error} = {v} − {sum:i S- * k}"),
            ("S_t = S_{t-1} + k_t β_t error_tᵀ", "{S} = {S-} + {k} · {beta} · {error}"),
            READ,
            ("eigenvalue along k: 1 − β ‖k‖²", "{eigenvalue;m=0} = 1 − {beta} · {sum:i k * k}"),
        ],
        eigenvalues: Spectrum::Delta,
        spectrum: "1 − β‖k‖² along k, 1 orthogonal to it. Below 0, a step flips the value stored under k.",
    },
    View {
        mixer: "mamba",
        title: "Mamba",
        quantities: &[
            q("h", "h", "dn", State, "N states for each channel"),
            q("low", "δ", "u", Vector, "what the input says of the step sizes, in a few numbers"),
            q("dt", "Δ", "d", Gate, "step size of each channel: long ones forget and write, short ones keep"),
            q("x", "x", "d", Vector, "input, after the convolution"),
            q("B", "B", "n", Vector, "how the input enters the states"),
            q("C", "C", "n", Vector, "how the states are read"),
            q("y", "Cᵀh", "d", Vector, "what is read"),
            q("A_bar", "Ā", "dn", Vector, "the transition of each state"),
        ],
        equations: &[
            ("Δ_t = softplus(W_dt δ_t + b_dt)", "{dt} = softplus({sum:u W_dt * low} + {b_dt})"),
            ("Ā_t = s exp(Δ_t A) − (s − 1)", "{A_bar}"),
            ("h_t = Ā_t ⊙ h_{t-1} + Δ_t B_t x_t", "{h} = {A_bar} · {h-} + {dt} · {B} · {x}"),
            ("y_t = C_tᵀ h_t", "{y} = {sum:n C * h}"),
        ],
        eigenvalues: Spectrum::Named("A_bar"),
        spectrum: "Ā = exp(ΔA), one number per state: in (0, 1) a state decays or stays; stretched to (−1, 1), it can flip.",
    },
    View {
        mixer: "gated_delta_net",
        title: "Gated DeltaNet",
        quantities: &[
            MEMORY,
            q("alpha", "α", "h", Gate, "how much of the whole memory stays"),
            BETA,
            KEY,
            VALUE,
            q("error", "error", "hj", Vector, "the value to write minus the value that the decayed S holds under k"),
            QUERY,
            OUT,
        ],
        equations: &[
            STEP_SIZE,
            (
                "α_t = exp(−exp(A_log) softplus(W_g x_t + b_dt))",
                "{alpha} = exp(−exp({A_log}) softplus({sum:e W_g * input} + {b_dt}))",
            ),
            ("error_t = v_t − α_t S_{t-1}ᵀ k_t", "{error} = {v} − {alpha} · {sum:i S- * k}"),
            ("S_t = α_t S_{t-1} + k_t β_t error_tᵀ", "{S} = {alpha} · {S-} + {k} · {beta} · {error}"),
            READ,
            ("eigenvalue along k: α (1 − β ‖k‖²)", "{eigenvalue;m=0} = {alpha} · (1 − {beta} · {sum:i k * k})"),
        ],
        eigenvalues: Spectrum::Delta,
        spectrum: "α (1 − β‖k‖²) along k, α orthogonal to it: the delta rule replaces one value, the gate clears the rest.",
    },
    View {
        mixer: "delta_product",
        title: "DeltaProduct",
        quantities: &[
            MEMORY,
            q("beta", "β", "ph", Gate, "how far the memory moves towards the value, at each factor"),
            q("k", "k", "phi", Vector, "keys, one per factor"),
            q("v", "v", "phj", Vector, "values, one per factor"),
            q(
                "error",
                "error",
                "phj",
                Vector,
                "the value that a factor writes minus the value that S holds under its k",
            ),
            q("S_before", "S_{t,p-1}", "phij", Vector, "the memory before each factor"),
            QUERY,
            OUT,
        ],
        equations: &[
            ("β_{t,p} = s σ(W_β,p x_t)", "{beta} = s σ({sum:e W_β * input})"),
            ("error_p = v_p − S_{p-1}ᵀ k_p    for factor p", "{error} = {v} − {sum:i S_before * k}"),
            ("S_p = S_{p-1} + k_p β_p error_pᵀ", "{S_before + k * beta * error} = {S_before} + {k} · {beta} · {error}"),
            ("o_t = S_tᵀ q_t / √K    after the last factor", "{o} = {sum:i S * q} / √{size:i}"),
        ],
        eigenvalues: Spectrum::Product,
        spectrum: "Eigenvalues of the product of the token's factors I − β k kᵀ: two factors can make a rotation, a complex pair.",
    },
    View {
        mixer: "slstm",
        title: "sLSTM",
        quantities: &[
            q("h", "h", "d", State, "hidden state, which the next step's gates see"),
            q("c", "c", "d", State, "cell: a weighted sum of candidates"),
            q("n", "n", "d", State, "normaliser: the sum of the weights"),
            q("m", "m", "d", State, STABILISER),
            q("w", "w", "d", State, PAST),
            q("f", "f", "d", Gate, "forget gate, stabilised"),
            q("i", "i", "d", Gate, "input gate, stabilised: exponential, so that one step can outweigh all before"),
            OUTPUT,
            q("z", "z", "d", Gate, CANDIDATE),
            q("x'", "x'", "e", Vector, "input of the gates i and f, after the convolution if there is one"),
        ],
        equations: &[
            (
                "i_t = exp(W_i x'_t + R_i h_{t-1} + b_i − m_t)",
                "{i} = exp({sum:e W_i * x'} + {sum:u R_i * h-[d=u]} + {b_i} − {m})",
            ),
            (
                "f_t = w_{t-1} exp(ln σ(W_f x'_t + R_f h_{t-1} + b_f) + m_{t-1} − m_t)",
                "{f} = {w-} · exp(ln σ({sum:e W_f * x'} + {sum:u R_f * h-[d=u]} + {b_f}) + {m-} − {m})",
            ),
            (
                "z_t = tanh(W_z x_t + R_z h_{t-1} + b_z)",
                "{z} = tanh({sum:e W_z * input} + {sum:u R_z * h-[d=u]} + {b_z})",
            ),
            ("o_t = σ(W_o x_t + R_o h_{t-1} + b_o)", "{o} = σ({sum:e W_o * input} + {sum:u R_o * h-[d=u]} + {b_o})"),
            ("c_t = f_t c_{t-1} + i_t z_t", "{c} = {f} · {c-} + {i} · {z}"),
            ("n_t = f_t n_{t-1} + i_t", "{n} = {f} · {n-} + {i}"),
            ("h_t = o_t c_t / n_t", "{h} = {o} · {c} / {n}"),
        ],
        eigenvalues: Spectrum::Named("f"),
        spectrum: "The cell's own transition is the forget gate f, at most 1; a state can flip because the gates see h.",
    },
    View {
        mixer: "mlstm",
        title: "mLSTM",
        quantities: &[
            matrix("C"),
            q("n", "n", "hi", State, "normaliser: the weighted sum of the keys"),
            q("m", "m", "h", State, STABILISER),
            q("w", "w", "h", State, PAST),
            q("f", "f", "h", Gate, "forget gate, stabilised"),
            q("i", "i", "h", Gate, "input gate, stabilised"),
            QUERY,
            q("k'", "k/√K", "hi", Vector, "key: under which it is written"),
            VALUE,
            q("h", "h", "hj", Vector, "what is read"),
            q("den", "d", "h", Gate, "what the read is divided by"),
            q("qkv", "[q, k, v]", "u", Vector, "queries, keys and values of all heads, which the gates see"),
        ],
        equations: &[
            ("i_t = exp(W_i [q, k, v]_t + b_i − m_t)", "{i} = exp({sum:u W_i * qkv} + {b_i} − {m})"),
            (
                "f_t = w_{t-1} exp(ln σ(W_f [q, k, v]_t + b_f) + m_{t-1} − m_t)",
                "{f} = {w-} · exp(ln σ({sum:u W_f * qkv} + {b_f}) + {m-} − {m})",
            ),
            ("C_t = f_t C_{t-1} + i_t k'_t v_tᵀ", "{C} = {f} · {C-} + {i} · {k'} · {v}"),
            ("n_t = f_t n_{t-1} + i_t k'_t", "{n} = {f} · {n-} + {i} · {k'}"),
            ("d_t = max(|n_t·q_t|, e^(−m_t)) + ε", "{den} = max(|{sum:i n * q}|, exp(−{m})) + ε"),
            ("h_t = C_tᵀ q_t / d_t", "{h} = {sum:i C * q} / {den}"),
        ],
        eigenvalues: Spectrum::Named("f"),
        spectrum: "The transition is a number f, at most 1, times the identity: the memory can forget, not flip.",
    },
];
