//! Many mixers with drawn weights: courses that their states and outputs never take.

use crate::delta_rules::delta;
use crate::machine::{Machine, bits, one_hot};
use approx::{abs_diff_eq, abs_diff_ne};
use tapezoo::{
    autograd::Tape,
    models::{Eigenvalues, Form, Init, ModelConfig, State, find, names_with, run},
    tensor::{DType, Tensor},
};

/// Real eigenvalues that are not negative, for drawn weights: under a token that is repeated, an output approaches its
/// limit and does not alternate. The same draws with eigenvalues from −1 to 1 do. A sum of decays has at most as many
/// turns as rates; two are the most that any draw shows in 36 steps.
#[test]
fn states_do_not_alternate_where_no_eigenvalue_is_negative() {
    // The first of two blocks of TransNormer has no memory.
    let sizes = ModelConfig { heads: 2, head_dim: 4, state: 4, layers: 1, ..ModelConfig::default() };
    let names = "quasi_lstm mamba linear_transformer mlstm gla hgrn2 mamba2 gsa hedgehog transnormer lightnet \
                 delta_net gated_delta_net kda";
    for name in names.split(' ') {
        let turns = |eigenvalues: Eigenvalues, seed: u64| {
            let scale = if seed.is_multiple_of(2) { 3.0 } else { 30.0 };
            let machine = Machine::drawn(2, name, eigenvalues, sizes.clone(), seed, scale);
            let y = machine.outputs(&[bits(100, seed), vec![1; 40]].concat(), machine.ways().pop().unwrap().0, 140);
            let size = y.iter().fold(0.0f32, |m, y| m.max(y.abs()));
            // The convolutions remember three tokens.
            let steps: Vec<f32> = y[104..].windows(2).map(|y| (y[1] - y[0]) / size).collect();
            steps.windows(2).filter(|d| d[0].abs().min(d[1].abs()) > 1e-5 && (d[0] > 0.0) != (d[1] > 0.0)).count()
        };
        let most = |eigenvalues: Eigenvalues| (0..40).map(|seed| turns(eigenvalues, seed)).max().unwrap();
        assert!(most(Eigenvalues::Positive) <= 2, "{name} turns around {} times", most(Eigenvalues::Positive));
        if names_with(|has| has.eigenvalues).contains(&name) {
            assert!(most(Eigenvalues::Signed) > 20, "{name} with eigenvalues below 0 does not alternate");
        }
    }
}

/// With a transition that is the same for all tokens, whatever it is, the state is a sum over positions, so that
/// h(11) − h(10) − h(01) + h(00) = 0: a linear function of it that is above a threshold for 10 and 01 cannot be below it
/// for both 11 and 00. Of SeqBoat this is said of its averages.
#[test]
fn a_state_with_a_fixed_transition_is_additive_and_parity_is_not() {
    for name in ["lru", "s4d", "lssl", "lmu", "retnet", "seqboat"] {
        let config = ModelConfig { mixer: name.into(), width: 2, state: 8, ..ModelConfig::default() };
        let mut seen = 0;
        for seed in 0..50 {
            let mut init = Init::new(seed, None);
            let mixer = find(name).unwrap()(&config, &mut init).unwrap();
            let params = init.finish(DType::F64);
            // After a common prefix, two tokens at distance `gap`.
            let (start, gap) = (bits(seed as usize, seed), seed as usize % 7);
            let state = |a: u8, b: u8| {
                let tokens = [start.clone(), vec![a], vec![0; gap], vec![b]].concat();
                let tape = Tape::default();
                let mut s = State::zero(mixer.as_ref(), &tape, 1, DType::F64);
                let x = tape.constant(&one_hot(&tokens).cast(DType::F64));
                let form = mixer.forms().pop().unwrap().with_steps(5);
                run(mixer.as_ref(), &params.bind_frozen(&tape), x, &mut s, form);
                let carried = if name == "seqboat" { &s.s[..1] } else { &s.s[..] };
                carried.iter().flat_map(|s| s.value().to_f64()).collect::<Vec<f64>>()
            };
            let [h11, h10, h01, h00] = [(1, 1), (1, 0), (0, 1), (0, 0)].map(|(a, b)| state(a, b));
            for i in 0..h11.len() {
                let rest = h11[i] - h10[i] - h01[i] + h00[i];
                assert!(abs_diff_eq!(rest, 0.0, epsilon = 1e-12), "{name}, seed {seed}: {rest:.1e}");
            }
            seen += usize::from(h11.iter().zip(&h10).any(|(a, b)| abs_diff_ne!(a, b, epsilon = 1e-6)));
        }
        // LMU's one signal may be cut off for both tokens.
        assert!(seen >= 20, "{name}: {seen} of 50 draws see the last token at all");
    }
}

/// Where scores are bounded, one token of t moves what attention reads by about 1/t, and parity turns with each: 16 times
/// the length leaves an eighth of the change at most. What DeltaNet holds does turn, at any length.
#[test]
fn one_token_of_many_moves_what_attention_reads_by_little() {
    let change = |machine: &Machine, t: usize, seed: u64| {
        let mut tokens = bits(t, seed);
        *tokens.last_mut().unwrap() = 0;
        let form = machine.ways().pop().unwrap().0;
        let before = machine.outputs(&tokens, form, t);
        tokens[t / 2] ^= 1;
        (machine.outputs(&tokens, form, t)[t - 1] - before[t - 1]).abs()
    };
    let of = |machine: &dyn Fn(u64) -> Machine, t| (0..20).map(|seed| change(&machine(seed), t, seed)).sum::<f32>();
    for name in ["gpt", "fox", "hopfield"] {
        let sizes = ModelConfig { heads: 2, head_dim: 4, ..ModelConfig::default() };
        let drawn = |seed: u64| Machine::drawn(2, name, Eigenvalues::Positive, sizes.clone(), seed, 3.0);
        let (short, long) = (of(&drawn, 64), of(&drawn, 1024));
        assert!(short > 1e-4 || name == "fox", "{name} does not see its tokens: {short}");
        assert!(long < short / 8.0, "{name}: {short} at 64 tokens, {long} at 1,024");
    }
    let turns = |_| delta("delta_net", Eigenvalues::Signed);
    assert!(of(&turns, 1024) > 19.0, "{}", of(&turns, 1024));
}

/// TTT within 16 tokens, whatever they are: what was added to the sums of a mini-batch so far is still there, neither
/// faded nor flipped, and the weights that gradients are taken at have not moved. From one 16 to the next it is a change
/// of the weights, which bend what the gradients add: the change of a change is not 0.
#[test]
fn ttt_carries_its_sums_unchanged_through_16_tokens_and_is_not_linear_beyond() {
    let config = ModelConfig { mixer: "ttt".into(), width: 2, heads: 2, head_dim: 4, ..ModelConfig::default() };
    for seed in 0..20 {
        let mut init = Init::new(seed, Some(0.5));
        let mixer = find("ttt").unwrap()(&config, &mut init).unwrap();
        let params = init.finish(DType::F64);
        let tokens = bits(40, seed);
        // The memory after each token, where `added` times the same numbers are put into its sums after five tokens.
        let course = |added: f64| {
            let tape = Tape::default();
            let (p, x) = (params.bind_frozen(&tape), tape.constant(&one_hot(&tokens).cast(DType::F64)));
            let (mut s, mut all) = (State::zero(mixer.as_ref(), &tape, 1, DType::F64), vec![]);
            for t in 0..tokens.len() {
                if t == 5 {
                    let more = (0..s.s[2].shape().len()).map(|i| added * ((i * 7 % 11) as f64 / 11.0 - 0.3));
                    s.s[2] = s.s[2] + tape.constant(&Tensor::from_vec(more.collect(), s.s[2].shape()));
                }
                run(mixer.as_ref(), &p, x.narrow(1, t, 1), &mut s, Form::Recurrent);
                all.push([0, 2].map(|i| s.s[i].value().to_f64()));
            }
            all
        };
        let [zero, one, two] = [0.0, 1.0, 2.0].map(course);
        let change = |a: &[[Vec<f64>; 2]], b: &[[Vec<f64>; 2]], t: usize, i: usize| -> Vec<f64> {
            a[t][i].iter().zip(&b[t][i]).map(|(a, b)| a - b).collect()
        };
        let first = change(&one, &zero, 5, 1);
        for t in 5..15 {
            assert!(abs_diff_eq!(change(&one, &zero, t, 1)[..], first[..], epsilon = 1e-12), "seed {seed}, token {t}");
            assert!(change(&one, &zero, t, 0).iter().all(|&d| d == 0.0), "seed {seed}, token {t}: the weights moved");
        }
        // The sixteenth token takes the sums into the weights.
        assert!(change(&one, &zero, 15, 1).iter().all(|&d| d == 0.0), "seed {seed}");
        let (once, twice) = (change(&one, &zero, 15, 0), change(&two, &zero, 15, 0));
        assert!(once.iter().any(|d| d.abs() > 1e-3), "seed {seed}: nothing was taken");
        let bent =
            |once: &[f64], twice: &[f64]| once.iter().zip(twice).fold(0.0f64, |m, (a, b)| m.max((b - 2.0 * a).abs()));
        assert!(bent(&once, &twice) < 1e-12, "seed {seed}: not linear within its 16");
        assert!(bent(&change(&one, &zero, 31, 0), &change(&two, &zero, 31, 0)) > 1e-6, "seed {seed}: linear beyond");
    }
}
