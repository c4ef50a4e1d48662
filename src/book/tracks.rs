//! The abilities of each mixer: whether it can track a state, and the test that shows it, or the reason where there is no
//! test.

/// A paragraph for each mixer: what the term buys in which it differs from its parent.
const ZOO: &str = include_str!("../../docs/zoo.md");

/// The gain of a mixer's new term: its paragraph in docs/zoo.md, which begins with its name in bold.
pub fn buys(mixer: &str) -> Option<String> {
    let letters = |name: &str| name.chars().filter(|c| c.is_alphanumeric()).collect::<String>().to_lowercase();
    ZOO.split("\n\n").find_map(|paragraph| {
        let (name, text) = paragraph.strip_prefix("**")?.split_once("**")?;
        let (_, text) = text.split_once(". ")?;
        (letters(name) == letters(mixer)).then(|| text.trim().replace('\n', " "))
    })
}

/// A fact, and the test in `tests/expressivity` that fails if it is none.
pub struct Shown {
    /// The mixers that it is about.
    pub mixers: &'static [&'static str],
    /// The test.
    pub test: &'static str,
    /// The fact, in a sentence.
    pub fact: &'static str,
}

/// A fact that no test shows.
pub struct Theory {
    /// The mixers that it is about.
    pub mixers: &'static [&'static str],
    /// The fact, and the reason for it.
    pub why: &'static str,
}

/// Facts that are known without a test, and open questions.
pub const THEORY: [Theory; 12] = [
    Theory {
        mixers: &[
            "quasi_lstm",
            "linear_transformer",
            "mlstm",
            "gla",
            "hgrn2",
            "gsa",
            "hedgehog",
            "transnormer",
            "lightnet",
        ],
        why: "No weights track parity at every length, or count modulo any number. Under a token that is repeated the \
              state settles, since no eigenvalue is below 0 or complex; in finite precision an odd and an even number of \
              ones then look alike (theorem 1 of Grazzi et al. 2025, 2411.12537).",
    },
    Theory {
        mixers: &["mamba", "mamba2"],
        why: "It cannot count modulo three. A state of real eigenvalues settles or alternates under a token that is \
              repeated, so that no weights make three ones cancel and not two (theorem 2 of Grazzi et al. 2025, \
              2411.12537).",
    },
    Theory {
        mixers: &["delta_net", "gated_delta_net", "kda", "mom"],
        why: "One token's transition has real eigenvalues, and ones repeat it, so that counting modulo three takes two \
              layers: the second has two reflections in turn, which rotate. The test of DeltaProduct shows the rotation \
              within one token.",
    },
    Theory {
        mixers: &["delta_product"],
        why: "n reflections a token are any orthogonal map that leaves all but n directions as they are. A permutation of \
              five things is four swaps at most, and a swap is a reflection: four a token are enough for S5.",
    },
    Theory {
        mixers: &["rwkv7"],
        why: "One token's transition has real eigenvalues. With the switch and nothing fading it is DeltaNet's reflection, \
              so that counting modulo three takes it two layers.",
    },
    Theory {
        mixers: &["lstm", "slstm"],
        why: "With a unit for each state of a finite automaton it is that automaton, since gates that see the state can \
              pass a one from unit to unit. So it counts modulo any number; sLSTM within a head.",
    },
    Theory {
        mixers: &["lru", "s4d", "lssl", "lmu", "retnet"],
        why: "For the same reason it counts the ones modulo no number: no threshold on a sum over positions is a count's \
              remainder.",
    },
    Theory {
        mixers: &["gpt", "fox", "hopfield"],
        why: "No weights track parity at every length: scores have a bound, and with it the share of any one token of t \
              is about 1/t, while parity turns with each (Hahn 2020, 1906.06755).",
    },
    Theory { mixers: &["path"], why: "Two reflections rotate a key, so that two layers could count modulo three." },
    Theory {
        mixers: &["seqboat"],
        why: "No weights track parity at every length: in a sequence of ones the averages settle, and then the eight \
              tokens that its attention sees are equal.",
    },
    Theory {
        mixers: &["ttt"],
        why: "Whether it can track parity or count from one 16 to the next is not known: there are neither weights that do \
              it nor a proof that none do.",
    },
    Theory {
        mixers: &["titans"],
        why: "Whether it counts modulo three is not known. The pair (S, M) can have complex eigenvalues along a key, which \
              turn, but M goes on moving S at a token that writes nothing, unless that token's η is 0, and then M is lost.",
    },
];

/// All facts with a test. Where nothing else is said, weights are set by hand and sequences have 100,000 random bits.
pub const SHOWN: [Shown; 22] = [
    Shown {
        mixers: &["ttt"],
        test: "ttt_carries_its_sums_unchanged_through_16_tokens_and_is_not_linear_beyond",
        fact: "Within 16 tokens, whatever they are, its sums are carried by the identity: with drawn weights a change of them \
               neither fades nor flips. From one 16 to the next the layer is not linear in its state.",
    },
    Shown {
        mixers: &["titans"],
        test: "titans_tracks_parity_by_forgetting_while_it_erases_and_cannot_without",
        fact: "With α = θ = 1 at a one it tracks parity without an error: α and θ both take from the memory before the \
               token, so that along the key the transition is 1 − α − θ = −1. With α = 0 the same weights do no better than \
               a guess.",
    },
    Shown {
        mixers: &["delta_net", "gated_delta_net", "delta_product", "kda", "mom"],
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
        test: "rwkv7_tracks_parity_with_an_eigenvalue_of_minus_one_and_not_with_zero",
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
        test: "mamba2_tracks_parity_with_a_transition_of_minus_one_and_not_with_zero",
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
        mixers: &["lru", "s4d", "lssl", "lmu", "retnet"],
        test: "a_state_with_a_fixed_transition_is_additive_and_parity_is_not",
        fact: "No weights track the parity of the ones: with a transition that is the same for every token the state is a \
               sum over positions, and no threshold on such a sum is parity.",
    },
    Shown {
        mixers: &["seqboat"],
        test: "a_state_with_a_fixed_transition_is_additive_and_parity_is_not",
        fact: "Its averages do not have the parity of the ones: they are sums over positions, and no threshold on such a \
               sum is parity.",
    },
    Shown {
        mixers: &["gpt", "fox", "hopfield"],
        test: "one_token_of_many_moves_what_attention_reads_by_little",
        fact: "With drawn weights, one token of 1,024 moves what the last one reads by less than an eighth of what one of \
               64 does. Parity turns with every token, at any length.",
    },
    Shown {
        mixers: &["lru"],
        test: "a_scan_with_lambda_minus_one_never_drifts",
        fact: "With λ = −1 its scan is exact over two million steps: it does not drift.",
    },
];

/// The facts about a mixer that no test shows: those from theory, and open questions.
pub fn untested(mixer: &str) -> impl Iterator<Item = &'static Theory> {
    THEORY.iter().filter(move |theory| theory.mixers.contains(&mixer))
}

/// The facts about a mixer.
pub fn of(mixer: &str) -> impl Iterator<Item = &'static Shown> {
    SHOWN.iter().filter(move |shown| shown.mixers.contains(&mixer))
}
