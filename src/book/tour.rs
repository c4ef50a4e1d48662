//! The guided tour: eight stops, from a counter to a rotation. Each has three sentences, a picture that moves
//! (`tour.js`), something to try and a question.

use super::{
    frame::{around, words},
    tree::{file, name},
};
use crate::report::mathml::math;
use maud::{Markup, PreEscaped, html};

/// A stop.
pub struct Stop {
    /// The name of its picture in `tour.js`.
    pub picture: &'static str,
    title: &'static str,
    equation: &'static str,
    sentences: [&'static str; 3],
    /// The tokens that the picture begins with.
    pub tokens: &'static str,
    /// The effect of each token.
    alphabet: &'static str,
    try_it: &'static str,
    question: &'static str,
    answer: &'static str,
    /// Where to go on.
    pub mixers: &'static [&'static str],
}

/// All stops.
pub const STOPS: [Stop; 8] = [
    Stop {
        picture: "counter",
        title: "A counter",
        equation: "h_t = h_{t-1} + x_t",
        sentences: [
            "The simplest state is a number to which each token adds: a one adds one, a zero nothing.",
            "It holds how many ones there were, and nothing of the order in which they came.",
            "Whether that number is even is in it too, but no threshold tells: even and odd take turns without end.",
        ],
        tokens: "0110111",
        alphabet: "1 adds one, 0 nothing",
        try_it: "Type two sequences with the same number of ones: can the state tell one from the other?",
        question: "The count determines the parity. Why is a counter no solution?",
        answer: "What reads a state is smooth and of finite precision: it tells a number above a threshold from one \
                 below it, not 1,000 from 1,001 from 1,002. For parity the state has to come back to where it was.",
        mixers: &["lru"],
    },
    Stop {
        picture: "lstm",
        title: "An LSTM",
        equation: "c_t = f_t ⊙ c_{t-1} + i_t ⊙ g_t,  h_t = o_t ⊙ tanh(c_t)",
        sentences: [
            "The gates of an LSTM see its own hidden state h, and not the input alone.",
            "So a one may do different things: here it clears the cell, and writes a 1 only if h says there was none.",
            "The cell is in one of two places for as long as the sequence lasts: which one is the parity of the ones.",
        ],
        tokens: "0110111",
        alphabet: "1 flips the cell, 0 keeps it",
        try_it: "Type a long row of ones. The cell never drifts: each step begins from 0 or 1 and ends there.",
        question: "What does it cost that the gates see h?",
        answer: "The step is no longer linear in the state, so that no scan computes many steps at once: an LSTM takes \
                 its steps one after another. The quasi-LSTM gives this up, and with it parity.",
        mixers: &["lstm", "quasi_lstm", "slstm"],
    },
    Stop {
        picture: "linear",
        title: "Linear attention forgets nothing and corrects nothing",
        equation: "S_t = S_{t-1} + k_t v_tᵀ",
        sentences: [
            "Linear attention keeps a matrix, and adds to it the outer product of each key with its value.",
            "Its transition is the identity: nothing fades.",
            "A second value under the same key is added to the first, and what is read there is their sum.",
        ],
        tokens: "abaaB",
        alphabet: "a and b write 1 under one of two keys, A and B write −1",
        try_it: "Write a five times. What is read under its key, and what was written each time?",
        question: "Softmax attention does not have this defect. Why?",
        answer: "It keeps every key and value apart and weighs them anew at each step, so that it can choose the last \
                 one; but what it keeps grows with the sequence.",
        mixers: &["linear_transformer", "gpt"],
    },
    Stop {
        picture: "delta",
        title: "The delta rule",
        equation: "S_t = S_{t-1} + β_t k_t (v_t − S_{t-1}ᵀ k_t)ᵀ",
        sentences: [
            "The delta rule first reads what the memory holds under the key, and then writes only what is missing.",
            "β says how far the value moves towards the new one: with 1 all the way, with ½ half of it.",
            "Under all keys orthogonal to this one nothing changes.",
        ],
        tokens: "abaaB",
        alphabet: "a and b move what is under one of two keys towards 1, A and B towards −1",
        try_it: "Write a five times again, with β at 1 and at ½. Compare with the stop before.",
        question: "Which eigenvalues has the transition I − β k kᵀ, and along which directions?",
        answer: "1 − β along k and 1 along everything orthogonal to it. With β from 0 to 1 a value is kept or erased, \
                 and never turned over.",
        mixers: &["delta_net"],
    },
    Stop {
        picture: "gate",
        title: "A gate",
        equation: "S_t = α_t (I − β_t k_t k_tᵀ) S_{t-1} + β_t k_t v_tᵀ",
        sentences: [
            "A delta rule clears only what is under the key at hand; a gate clears all of the memory at once.",
            "It multiplies the state by α between 0 and 1, which the token chooses.",
            "A head may so forget a whole document at its end, and go on to correct single values until then.",
        ],
        tokens: "ab....A",
        alphabet: "a, b, A and B write as before; a point only fades",
        try_it: "How many points does it take until nothing is left, with α at 0.5 and at 0.95?",
        question: "KDA has a gate for each channel of the key. What can it do that one for the whole cannot?",
        answer: "Let some directions fade fast and others stay: it forgets what is under some keys and keeps the rest, \
                 without having to name each key.",
        mixers: &["gated_delta_net", "kda", "gla"],
    },
    Stop {
        picture: "reflection",
        title: "A reflection, and parity",
        equation: "S_t = (I − β_t k_t k_tᵀ) S_{t-1},  0 ≤ β_t ≤ 2",
        sentences: [
            "Let β go up to 2, and the eigenvalue along k, 1 − β, goes down to −1: a step reflects the state.",
            "A one reflects, a zero has β = 0 and leaves all as it is.",
            "Two ones cancel, so that the side on which the state lies is the parity of the ones.",
        ],
        tokens: "0110111",
        alphabet: "1 multiplies what lies along k by 1 − β, 0 leaves it",
        try_it: "Move β below 2. After how many ones do even and odd look alike? With β = 1, after one.",
        question: "Why is −1 needed, and not just any negative number?",
        answer: "A product of numbers of magnitude below 1 goes to 0: the sign is right, but what carries it fades. At \
                 −1 it lasts for ever. With all eigenvalues real and not negative, even and odd converge to one state.",
        mixers: &["delta_net", "mamba", "rwkv7", "path"],
    },
    Stop {
        picture: "permutation",
        title: "Products of reflections, and S5",
        equation: "S_t = (I − β_{t,n} k_{t,n} k_{t,n}ᵀ) … (I − β_{t,1} k_{t,1} k_{t,1}ᵀ) S_{t-1}",
        sentences: [
            "To swap two things is a reflection, and each order of five things is reached by at most four swaps.",
            "A token that is allowed several reflections applies any of the 120 orders at once; one reflection a token \
             applies a swap.",
            "To keep track of five things that are moved about is as hard as anything that a finite automaton does.",
        ],
        tokens: "scsccs",
        alphabet: "s swaps the first two, c moves each one place on, the last to the front",
        try_it: "How many c bring back the first order? How many times sc?",
        question: "How many reflections does a c take?",
        answer: "Four: a cycle of five is the product of four swaps and of no fewer. DeltaProduct with four \
                 Householder matrices a token can apply it in one step, DeltaNet cannot.",
        mixers: &["delta_product"],
    },
    Stop {
        picture: "rotation",
        title: "A rotation, and Mamba-3",
        equation: "h_t = α_t R(θ_t) h_{t-1}",
        sentences: [
            "Two reflections make a rotation, and a rotation is what a pair of complex eigenvalues α e^(±iθ) does.",
            "Mamba-3 turns pairs of its state by an angle that the token chooses, and by the scan of a diagonal model.",
            "Turned by 120° at each one, the state counts ones modulo three; by 180° it is parity.",
        ],
        tokens: "0110111",
        alphabet: "1 turns the state by θ, 0 leaves it",
        try_it: "Set θ to 72°: what does it count?",
        question: "Rotations of one plane commute. What can they not track?",
        answer: "An order in which things happened: turning by one angle and then another is the same the other way \
                 round. The orders of three or more things do not commute; for these the matrices must not, either.",
        mixers: &["mamba3", "retnet"],
    },
];

/// The page.
pub fn page() -> String {
    let main = html! {
        header.top { nav aria-label="Pages" { a href="index.html" { "The annotated zoo" } } }
        main #main tabindex="-1" {
            h1 { "A guided tour" }
            p.lead { "Eight stops, from a counter to a rotation: what a state can track, and what it takes." }
            ol { @for (i, stop) in STOPS.iter().enumerate() {
                li { a href={ "#stop-" (i + 1) } { (stop.title) } }
            } }
            @for (i, stop) in STOPS.iter().enumerate() { (set(i, stop)) }
        }
    };
    around("A guided tour: the annotated zoo", &main, None)
}

fn set(i: usize, stop: &Stop) -> Markup {
    let (n, id) = (i + 1, stop.picture);
    html! {
        section.stop id={ "stop-" (n) } aria-labelledby={ "h-" (n) } {
            h2 id={ "h-" (n) } { (n) ". " (stop.title) }
            div.row { @for clause in stop.equation.split_inclusive(",  ") {
                div.scroll { (PreEscaped(math(clause.trim()))) }
            } }
            @for sentence in stop.sentences { p.sentence { (words(sentence)) } }
            div.picture data-picture=(id) {
                div.controls {
                    label {
                        "tokens "
                        input type="text" value=(stop.tokens) maxlength="200" autocomplete="off" autocapitalize="off" spellcheck="false"
                            aria-describedby={ "a-" (n) };
                    }
                    button.step type="button" { "Step" }
                    button.play type="button" { "Play" }
                    span.extra {}
                }
                p.soft id={ "a-" (n) } { (stop.alphabet) "." }
                div.stage {}
                p.now role="status" {}
            }
            noscript { p { "The picture needs JavaScript." } }
            p { b { "Try. " } (stop.try_it) }
            details { summary { (words(stop.question)) } p { (words(stop.answer)) } }
            p { "Go on with " @for (j, mixer) in stop.mixers.iter().enumerate() {
                @if j > 0 { ", " } a href=(file(mixer)) { (name(mixer)) }
            } "." }
            nav aria-label={ "Stop " (n) } {
                @if i > 0 { a href={ "#stop-" (n - 1) } { "← " (STOPS[i - 1].title) } " " }
                @if n < STOPS.len() { a href={ "#stop-" (n + 1) } { (STOPS[n].title) " →" } }
            }
        }
    }
}
