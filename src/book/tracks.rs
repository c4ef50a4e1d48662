//! What a mixer can and cannot track, and the test that shows it.

/// A fact, and the test in `tests/expressivity.rs` that fails if it is none.
pub struct Shown {
    /// The mixers that it is about.
    pub mixers: &'static [&'static str],
    /// The test.
    pub test: &'static str,
    /// The fact, in a sentence.
    pub fact: &'static str,
}

/// All of them. Where nothing else is said, weights are set by hand and sequences have 100,000 random bits.
pub const SHOWN: [Shown; 18] = [
    Shown {
        mixers: &["delta_net", "gated_delta_net", "delta_product", "kda"],
        test: "delta_rules_with_beta_two_track_parity_and_with_beta_one_cannot",
        fact: "With eigenvalues from −1 to 1 it tracks parity without an error: a one reflects the state, and the next \
               one reflects it back. With eigenvalues from 0 to 1 the same weights do no better than a guess.",
    },
    Shown {
        mixers: &["delta_product"],
        test: "two_reflections_a_token_count_modulo_three_and_two_projections_cannot",
        fact: "With two reflections a token, 60° apart, a one rotates the state by 120°, and it counts modulo three \
               without an error; with two projections it forgets.",
    },
    Shown {
        mixers: &["rwkv7"],
        test: "rwkv7_and_mamba2_track_parity_with_eigenvalues_of_minus_one_and_not_with_zero",
        fact: "With eigenvalues from −1 to 1 it tracks parity without an error. As released the same weights have an \
               eigenvalue of 0 where they had −1: a one erases the state, and they do no better than a guess.",
    },
    Shown {
        mixers: &["rwkv7"],
        test: "rwkv7_as_released_flips_its_state_and_fades",
        fact: "As released the lowest eigenvalue is −0.4548. There the sign of the state is the parity of the ones, but \
               each one leaves 0.4548 of its size: after 200 ones nothing is left in single precision.",
    },
    Shown {
        mixers: &["mamba2"],
        test: "rwkv7_and_mamba2_track_parity_with_eigenvalues_of_minus_one_and_not_with_zero",
        fact: "With eigenvalues from −1 to 1 it tracks parity without an error; as released, with none below 0, the \
               same weights do no better than a guess.",
    },
    Shown {
        mixers: &[
            "quasi_lstm",
            "mamba",
            "linear_transformer",
            "mlstm",
            "gla",
            "hgrn2",
            "mamba2",
            "gsa",
            "hedgehog",
            "transnormer",
            "lightnet",
            "delta_net",
            "gated_delta_net",
            "kda",
        ],
        test: "states_do_not_alternate_where_no_eigenvalue_is_negative",
        fact: "With no eigenvalue below 0 and drawn weights its output approaches a limit under a token that is repeated, \
               and does not alternate, which parity would need.",
    },
    Shown {
        mixers: &["mamba"],
        test: "mamba_tracks_parity_with_negative_transitions_and_cannot_without",
        fact: "With transitions stretched to (−1, 1) it tracks parity without an error; as published, with none below \
               0, the same weights do no better than a guess.",
    },
    Shown {
        mixers: &["mamba3"],
        test: "mamba3_turns_by_pi_at_a_one_for_as_long_as_its_state_lasts",
        fact: "A one turns the state by π, so that its sign is the parity of the ones, for as long as the state lasts: \
               it fades with every turn.",
    },
    Shown {
        mixers: &["mamba3"],
        test: "mamba3_counts_modulo_three",
        fact: "Turning by 120° at a one, it counts modulo three without an error.",
    },
    Shown {
        mixers: &["path"],
        test: "path_attention_tracks_parity_and_cannot_without_reflections",
        fact: "Reflecting the keys so far at every one, it tracks parity without an error over 4,096 tokens; erasing \
               instead, it cannot.",
    },
    Shown {
        mixers: &["path"],
        test: "path_attention_tracks_parity_over_a_hundred_thousand_tokens",
        fact: "The same over 100,000 tokens: each reads the key of the beginning through all reflections before it, \
               and the last 500 read all keys. The others are read by few: no reflection changes them, which is seen.",
    },
    Shown {
        mixers: &["s4d", "lmu"],
        test: "state_spaces_see_through_a_window_and_fading_memories_do_not",
        fact: "It sees what happened at a fixed distance, or how often in a window: rates that turn can. A memory that \
               only fades weighs tokens by their age, and the best threshold on it is often wrong.",
    },
    Shown {
        mixers: &["lstm"],
        test: "lstm_tracks_parity",
        fact: "One unit tracks parity without an error: at a one its gates see what h holds, and write the opposite.",
    },
    Shown {
        mixers: &["slstm"],
        test: "slstm_tracks_parity_and_cannot_without_seeing_its_state",
        fact: "One unit tracks parity without an error where it sees its state through R; with R = 0 it does no better \
               than a guess.",
    },
    Shown {
        mixers: &["lru"],
        test: "lru_tracks_the_parity_of_the_position",
        fact: "With λ = −1 it tracks whether the position is even or odd, which needs no choice by the input.",
    },
    Shown {
        mixers: &["lru"],
        test: "lru_with_lambda_minus_one_cannot_track_the_parity_of_the_ones",
        fact: "It cannot track the parity of the ones: a one and a zero turn the state alike, and with λ = −1 it holds \
               a count without a bound.",
    },
    Shown {
        mixers: &["lru"],
        test: "the_state_of_an_lru_is_additive_and_parity_is_not",
        fact: "Nor does any other λ help: its state is a sum over positions, and no threshold on a sum is parity.",
    },
    Shown {
        mixers: &["lru"],
        test: "a_scan_with_lambda_minus_one_never_drifts",
        fact: "With λ = −1 its scan is exact over two million steps: it does not drift.",
    },
];

/// The facts about a mixer.
pub fn of(mixer: &str) -> impl Iterator<Item = &'static Shown> {
    SHOWN.iter().filter(move |shown| shown.mixers.contains(&mixer))
}
