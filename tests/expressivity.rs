//! What a mixer can express, independent of training: hand-set weights that compute parity without an error at
//! T = 100,000 in single precision, in every form and token by token (delta rules, Titans, RWKV-7, Mamba, Mamba-2, PaTH,
//! LSTM, sLSTM); and the same weights failing where eigenvalues cannot be negative. RWKV-7 as released and Mamba-3 flip a
//! state that fades. DeltaProduct with two Householder matrices per token and Mamba-3 count modulo three. S4D and LMU
//! see through a window, which a memory that only fades cannot; the LRU tells even positions from odd ones.

#![allow(clippy::unwrap_used)]

mod machine;

use approx::{abs_diff_eq, abs_diff_ne};
use machine::{LONG, Machine, best_threshold, bits, one_hot, sums};
use std::f64::consts::{PI, TAU};
use tapezoo::{
    autograd::Tape,
    models::{Eigenvalues, Form, Init, Model, ModelConfig, Positions, State, find, lru, names_with, run},
    tensor::{DType, Tensor},
};

/// Large enough that σ and SiLU saturate, and a power of two: normalising (2¹⁴, 0) gives (1, 0) without rounding.
const BIG: f32 = 16384.0;

/// The output is above the middle exactly where the number of ones is odd.
fn assert_tracks(name: &str, machine: &Machine, middle: f32) {
    let tokens = bits(LONG, 1);
    let odd = sums(&tokens, 2);
    for (form, piece) in machine.ways() {
        let y = machine.outputs(&tokens, form, piece);
        let wrong = y.iter().zip(&odd).filter(|&(&y, &odd)| (y > middle) != (odd == 1)).count();
        assert_eq!(wrong, 0, "{name}, {form}, pieces of {piece}: {wrong} errors in {LONG}");
    }
}

/// No threshold on the output does better than guessing. This is a property of the weights, so one form is enough: the
/// fastest.
fn assert_fails(name: &str, machine: &Machine) {
    let tokens = bits(LONG, 1);
    let odd = sums(&tokens, 2);
    let (form, piece) = machine.ways().pop().unwrap();
    let share = best_threshold(&machine.outputs(&tokens, form, piece), &odd);
    assert!(share < 0.51, "{name}, {form}, pieces of {piece}: right at {share:.3} of the positions");
}

/// Both tokens have the same key and value; a one has β = s, a zero β = 0. A one then writes S ← (1 − s) S + s k vᵀ:
/// with s = 2 from 0 to 2 k vᵀ and back, with s = 1 to k vᵀ and never back.
fn delta(name: &str, eigenvalues: Eigenvalues) -> Machine {
    let sizes = ModelConfig { heads: 1, head_dim: 4, householders: 2, ..ModelConfig::default() };
    // The convolutions pass the present token on: only the last of four taps is not zero. Weights are [K, D].
    let mut key = [0.0; 8];
    key[..2].fill(BIG);
    let tap = [0.0, 0.0, 0.0, 1.0].repeat(4);
    let beta = [-BIG, BIG];
    let machine = Machine::new(name, eigenvalues, sizes);
    // DeltaProduct's second step of a token has β = 0 and writes nothing. MoM has five memories, and no convolutions.
    let (n, beta) = match name {
        "delta_product" => (2, [beta, [-BIG, -BIG]].concat()),
        "mom" => (5, beta.repeat(5)),
        _ => (1, beta.to_vec()),
    };
    let mut machine = machine.set("w_q", &key).set("w_k", &key.repeat(n)).set("w_v", &[BIG; 8].repeat(n));
    if name != "mom" {
        machine = machine.set("conv_q", &tap).set("conv_k", &tap.repeat(n)).set("conv_v", &tap.repeat(n));
    }
    let machine = machine.set("w_beta", &beta).set("norm", &[1.0; 4]);
    let machine = machine.set("w_o", &[1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]);
    if ["gated_delta_net", "mom"].contains(&name) {
        // softplus saturates to 0: the gate is open. The output gate is the same for all tokens. MoM's router has no
        // preference.
        return machine.set("b_dt", &[-BIG]).set("w_z", &[BIG; 8]);
    }
    if name == "kda" {
        return machine.set("b_dt", &[-BIG; 4]).set("b_z", &[BIG; 4]);
    }
    machine
}

#[test]
fn delta_rules_with_beta_two_track_parity_and_with_beta_one_cannot() {
    for name in ["delta_net", "gated_delta_net", "delta_product", "kda", "mom"] {
        let (signed, positive) = (delta(name, Eigenvalues::Signed), delta(name, Eigenvalues::Positive));
        assert_tracks(name, &signed, 0.5);
        assert_fails(name, &positive);
    }
}

/// Titans without momentum (η = 0). A one has θ = 1 and the given α, a zero θ = α = 0. As α forgets what θ has not yet taken
/// off, the transition is (1 − α) I − θ k kᵀ, and along k it is 1 − α − θ: with α = 1 it is −1, and a one writes
/// S ← k vᵀ − k kᵀ S, from 0 to k vᵀ and back; with α = 0 it is 0.
fn titans(forgets: bool) -> Machine {
    let sizes = ModelConfig { heads: 1, head_dim: 4, ..ModelConfig::default() };
    let mut key = [0.0; 8];
    key[..2].fill(BIG);
    let tap = [0.0, 0.0, 0.0, 1.0].repeat(4);
    let machine = Machine::new("titans", Eigenvalues::Positive, sizes);
    let machine = machine.set("w_q", &key).set("w_k", &key).set("w_v", &[BIG; 8]);
    let machine = machine.set("conv_q", &tap).set("conv_k", &tap).set("conv_v", &tap).set("norm", &[1.0; 4]);
    let alpha = if forgets { BIG } else { -BIG };
    let machine = machine.set("w_rates", &[-BIG, BIG, -BIG, -BIG, -BIG, alpha]);
    machine.set("w_o", &[1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0])
}

#[test]
fn titans_tracks_parity_by_forgetting_while_it_erases_and_cannot_without() {
    assert_tracks("titans", &titans(true), 0.5);
    assert_fails("titans", &titans(false));
}

/// A one has κ = k = (1, 0, 0, 0), a = 1 and v = (1, −1, 0, 0), a zero has k = v = 0. Nothing fades (w = 1). So a one
/// writes S ← (1 − s) S + k vᵀ, as above, and the norm shows whether S is there. The gate is the same for all tokens.
fn rwkv7(eigenvalues: Eigenvalues) -> Machine {
    let sizes = ModelConfig { heads: 1, head_dim: 4, ..ModelConfig::default() };
    let machine = Machine::new("rwkv7", eigenvalues, sizes).set("w0", &[-BIG; 4]).set("a0", &[BIG; 4]);
    let machine = machine.set("k_k", &[1.0; 4]).set("ln_x_weight", &[1.0; 4]).set("g2", &[1.0; 16]);
    let machine =
        machine.set("receptance_weight", &[1.0; 8]).set("key_weight", &[0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]);
    let machine = machine.set("value_weight", &[0.0, 1.0, 0.0, -1.0, 0.0, 0.0, 0.0, 0.0]);
    machine.set("output_weight", &[1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0])
}

/// A one is a step so long that exp(ΔA) = 0, and Ā = −1 with s = 2; a zero is a step of no length. S goes from 0 to
/// what a one writes and back; with s = 1 it stays there.
fn mamba2(eigenvalues: Eigenvalues) -> Machine {
    let sizes = ModelConfig { heads: 1, head_dim: 4, state: 2, ..ModelConfig::default() };
    // Rows of z, x, B and C, whose SiLU is a power of two, and the one of Δ.
    let rows = [&[32.0; 24][..], &[-BIG, BIG]].concat();
    let machine = Machine::new("mamba2", eigenvalues, sizes).set("in_proj_weight", &rows);
    let machine = machine.set("conv1d_weight", &[0.0, 0.0, 0.0, 1.0].repeat(8)).set("norm_weight", &[1.0; 4]);
    machine.set("out_proj_weight", &[1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0])
}

#[test]
fn rwkv7_and_mamba2_track_parity_with_eigenvalues_of_minus_one_and_not_with_zero() {
    for (name, machine) in [("rwkv7", rwkv7 as fn(Eigenvalues) -> Machine), ("mamba2", mamba2)] {
        assert_tracks(name, &machine(Eigenvalues::Signed), 0.5);
        assert_fails(name, &machine(Eigenvalues::Positive));
    }
}

/// As released the eigenvalue w − a along κ is lowest where w is, at e^(−e^(−1/2)) = 0.5452, and a = 1. Over begin, zero
/// and one: the beginning writes v = (1, −1, 0, 0) under (1, 0, 0, 0), a one has this w and a, and κ = (1, 0, 0, 0); a
/// zero has κ = 0 and w = 1. Only the beginning has a value.
fn rwkv7_as_released() -> Machine {
    let sizes = ModelConfig { heads: 1, head_dim: 4, ..ModelConfig::default() };
    let machine = Machine::over(3, "rwkv7", Eigenvalues::Positive, sizes).set("a0", &[BIG; 4]).set("w0", &[-BIG; 4]);
    let machine = machine.set("w1", &[[0.0; 8].as_slice(), &[BIG; 4]].concat()).set("w2", &[BIG; 16]);
    let machine = machine.set("k_k", &[1.0; 4]).set("ln_x_weight", &[1.0; 4]).set("g2", &[0.5; 16]);
    let first = |row: [f32; 3]| [row.as_slice(), &[0.0; 9]].concat();
    let machine = machine.set("receptance_weight", &first([1.0; 3])).set("key_weight", &first([1.0, 0.0, 1.0]));
    let value = [[1.0, 0.0, 0.0], [-1.0, 0.0, 0.0], [0.0; 3], [0.0; 3]].concat();
    machine.set("value_weight", &value).set("output_weight", &[[1.0, 0.0, 0.0, 0.0], [0.0; 4], [0.0; 4]].concat())
}

/// The best case: the sign of the state is the parity of the ones, but each one leaves 0.4548 of it. After 200 ones
/// single precision has nothing left.
#[test]
fn rwkv7_as_released_flips_its_state_and_fades() {
    let machine = rwkv7_as_released();
    let (tokens, bits) = begun(LONG, 8);
    let least = (-(-0.5f64).exp()).exp() - 1.0;
    for (form, piece) in machine.ways() {
        let y = &machine.outputs(&tokens, form, piece)[1..];
        let (mut left, mut ones, mut range) = (1.0, 0, (f64::INFINITY, f64::NEG_INFINITY));
        for (t, (&y, &bit)) in y.iter().zip(&bits).enumerate() {
            (left, ones) = if bit == 1 { (left * least, ones + 1) } else { (left, ones) };
            if ones <= 40 {
                // The norm of (o, −o, 0, 0), with its ε.
                let share = f64::from(y) / (left / (left * left / 2.0 + 64e-5).sqrt());
                range = (range.0.min(share), range.1.max(share));
            }
            assert!(ones < 200 || y.abs() < 1e-40, "{form}, pieces of {piece}: {y} at step {t}, after {ones} ones");
        }
        assert!(range.0 > 0.99 && range.1 < 1.01, "{form}, pieces of {piece}: {range:?} of what should be left");
    }
    assert_fails("rwkv7 as released", &machine);
}

/// Real eigenvalues that are not negative, for drawn weights: under a token that is repeated, an output approaches its
/// limit and does not alternate. The same draws with eigenvalues from −1 to 1 do. What fades at one rate or more has at
/// most as many turns as rates; two are the most that any draw shows in 36 steps.
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

/// For a one, two reflections whose keys are 60° apart: a rotation by 120°. Since both also write, its centre is not
/// the initial S. Three ones cancel: S cycles through (0, 0), 2 v (1, 0), 2 v (1/2, √3/2), and q = (1, 0) reads which
/// of these it is. The values are so small that the norm does not hide their size.
fn modulo_three(eigenvalues: Eigenvalues) -> Machine {
    let sizes = ModelConfig { heads: 1, head_dim: 2, householders: 2, ..ModelConfig::default() };
    let (half, root, small) = (0.5 * BIG, 0.75f32.sqrt() * BIG, 2e-3);
    let tap = [0.0, 0.0, 0.0, 1.0].repeat(2);
    let first = [BIG, BIG, 0.0, 0.0];
    let machine = Machine::new("delta_product", eigenvalues, sizes);
    let machine = machine.set("w_q", &first).set("w_k", &[&first[..], &[half, half, root, root]].concat());
    let machine = machine.set("w_v", &[small; 8]).set("w_beta", &[-BIG, BIG].repeat(2)).set("norm", &[1.0; 2]);
    let machine = machine.set("conv_q", &tap).set("conv_k", &tap.repeat(2)).set("conv_v", &tap.repeat(2));
    machine.set("w_o", &[1.0, 0.0, 0.0, 0.0])
}

#[test]
fn two_reflections_a_token_count_modulo_three_and_two_projections_cannot() {
    let tokens = bits(LONG, 3);
    let count = sums(&tokens, 3);
    let (signed, positive) = (modulo_three(Eigenvalues::Signed), modulo_three(Eigenvalues::Positive));
    for (form, piece) in signed.ways() {
        let read = |y: f32| match y {
            y if y < 0.3 => 0,
            y if y > 0.7 => 1,
            _ => 2,
        };
        let y = signed.outputs(&tokens, form, piece);
        let wrong = y.iter().zip(&count).filter(|&(&y, &count)| read(y) != count).count();
        assert_eq!(wrong, 0, "{form}, pieces of {piece}: {wrong} errors in {LONG}");
    }
    // With β = 1 the state converges: after a hundred tokens it no longer depends on the input.
    let (form, piece) = positive.ways().pop().unwrap();
    let y = &positive.outputs(&tokens, form, piece)[100..];
    assert!(y.iter().all(|&later| abs_diff_eq!(later, y[0], epsilon = 1e-5)), "{form}, pieces of {piece}");
}

/// A one takes a step Δ = 40, in which 2 exp(ΔA) − 1 is −1 (A = −1), a zero Δ = 0, in which it is 1. A one writes a
/// constant: h ← c − h. With [0, 1] it is h ← c from the first one on.
fn mamba(eigenvalues: Eigenvalues) -> Machine {
    let sizes = ModelConfig { state: 1, expand: 1, dt_rank: 1, ..ModelConfig::default() };
    let (x, one) = (128.0, 1.0 / 128.0);
    let machine = Machine::new("mamba", eigenvalues, sizes);
    // x_e = 128 for token e, z = 128 for both.
    let machine = machine.set("in_proj_weight", &[x, 0.0, 0.0, x, x, x, x, x]);
    let machine = machine.set("conv1d_weight", &[0.0, 0.0, 0.0, 1.0].repeat(2));
    // δ and B are 1 for a one and 0 for a zero; C is 1.
    let machine = machine.set("x_proj_weight", &[0.0, one, 0.0, one, one, one]);
    let machine = machine.set("dt_proj_weight", &[0.0, 240.0]).set("dt_proj_bias", &[-200.0, -200.0]);
    machine.set("out_proj_weight", &[0.0, 1.0, 0.0, 0.0])
}

#[test]
fn mamba_tracks_parity_with_negative_transitions_and_cannot_without() {
    assert_tracks("mamba", &mamba(Eigenvalues::Signed), 1.0);
    assert_fails("mamba", &mamba(Eigenvalues::Positive));
}

/// Mamba-3 over begin, zero and one: the beginning writes 1 under the key (1, 0), and each one turns what is there by
/// `turn`; zeros take no time. The query is (cos δ, sin δ). Δ is as short as the turn allows, since the state fades by
/// e^(−10⁻⁴ Δ).
fn mamba3(turn: f64, delta: f64) -> (Machine, f64) {
    let sizes = ModelConfig { heads: 1, head_dim: 1, state: 2, ..ModelConfig::default() };
    let dt = turn / PI;
    // Rows of z, x, B (two), C (two), Δ, a', λ' and θ'; B and C are left to their biases.
    let (none, all) = ([0.0; 3], |x: f32| [x; 3]);
    let rows =
        [all(128.0), [1.0, 0.0, 0.0], none, none, none, none, [0.0, -BIG, 0.0], all(-1e6), all(BIG), [0.0, 0.0, BIG]];
    let machine = Machine::over(3, "mamba3", Eigenvalues::Positive, sizes).set("in_proj_weight", &rows.concat());
    let machine = machine.set("dt_bias", &[dt.exp_m1().ln() as f32]).set("B_bias", &[1.0, 0.0]);
    let machine = machine.set("C_bias", &[delta.cos() as f32, delta.sin() as f32]);
    (machine.set("out_proj_weight", &[1.0 / 128.0 / dt as f32, 0.0, 0.0]), dt)
}

/// A beginning, and fair coins of 1 and 2.
fn begun(n: usize, seed: u64) -> (Vec<u8>, Vec<u8>) {
    let bits = bits(n, seed);
    ([0].into_iter().chain(bits.iter().map(|b| 1 + b)).collect(), bits)
}

/// What the state holds at T = 100,000 is as large as e^(−10⁻⁴ ΣΔ) says, with the right sign.
#[test]
fn mamba3_turns_by_pi_at_a_one_for_as_long_as_its_state_lasts() {
    let (machine, dt) = mamba3(PI, 0.0);
    let (tokens, bits) = begun(LONG, 4);
    for (form, piece) in machine.ways() {
        let y = machine.outputs(&tokens, form, piece);
        // What is left of the 1 at the beginning, and its sign.
        let (mut left, mut range) = (1.0, (f64::INFINITY, f64::NEG_INFINITY));
        for (&y, &bit) in y[1..].iter().zip(&bits) {
            left *= if bit == 1 { -(-1e-4 * dt).exp() } else { 1.0 };
            let share = f64::from(y) / left;
            range = (range.0.min(share), range.1.max(share));
        }
        assert!(range.0 > 0.97 && range.1 < 1.001, "{form}, pieces of {piece}: {range:?} of what should be left");
    }
}

#[test]
fn mamba3_counts_modulo_three() {
    let (machine, dt) = mamba3(TAU / 3.0, PI / 6.0);
    let (tokens, bits) = begun(LONG, 5);
    let count = sums(&bits, 3);
    let values: Vec<f64> = (0..3).map(|n| (TAU / 3.0 * f64::from(n) + PI / 6.0).cos()).collect();
    for (form, piece) in machine.ways() {
        let y = &machine.outputs(&tokens, form, piece)[1..];
        let (mut wrong, mut left) = (0, 1.0);
        for ((&y, &bit), &count) in y.iter().zip(&bits).zip(&count) {
            left *= (-1e-4 * dt * f64::from(bit)).exp();
            let off = |n: &usize| (f64::from(y) / left - values[*n]).abs();
            let read = (0..3).min_by(|a, b| off(a).total_cmp(&off(b))).unwrap();
            wrong += usize::from(read != count as usize);
        }
        assert_eq!(wrong, 0, "{form}, pieces of {piece}: {wrong} errors in {LONG}");
    }
}

/// PaTH over begin, zero and one: the key of the beginning is (1, 0), and each one reflects it (β = 2) or erases it (β
/// = 1). Where it is as it was, the query finds it, and else the token itself, whose key is (0, 1).
fn path(b_beta: f32) -> Machine {
    let sizes = ModelConfig { heads: 1, head_dim: 2, ..ModelConfig::default() };
    let key = [[1.0, 0.0, 0.0], [0.0, 1.0, 1.0]].concat();
    let rows = [&[80.0, 80.0, 80.0, 40.0, 40.0, 40.0][..], &key, &[1.0, 0.0, 0.0, 0.0, 0.0, 0.0]].concat();
    let machine = Machine::over(3, "path", Eigenvalues::Positive, sizes).set("w_qkv", &rows);
    // The direction (1, 0) at a one, and none at others: by the first of 32 channels.
    let first: Vec<f32> = (0..96).map(|i| if i == 2 { BIG } else { 0.0 }).collect();
    let second: Vec<f32> = (0..64).map(|i| if i == 0 { 1.0 } else { 0.0 }).collect();
    let machine = machine.set("w_w1", &first).set("w_w2", &second).set("conv", &[0.0, 0.0, 1.0].repeat(2));
    machine.set("b_beta", &[b_beta]).set("w_o", &[1.0, 0.0, 0.0, 0.0, 0.0, 0.0])
}

/// Attention is a mean of values, which are equal where all tokens are: its answers to ones are the same at each place, and
/// parity is not. This holds for any weights, also with rotary positions and with PaTH's reflections. A zero before the ones
/// makes answers differ from place to place.
#[test]
fn attention_cannot_tell_one_from_another() {
    for name in ["gpt", "hopfield", "path"] {
        let positions = if name == "gpt" { Positions::Rope } else { Positions::None };
        let config = ModelConfig { mixer: name.into(), heads: 2, head_dim: 8, positions, ..ModelConfig::default() };
        let model = Model::new(&config, 5, DType::F64).unwrap();
        let spread = |tokens: Vec<i32>| {
            let tape = Tape::default();
            let tokens = tape.constant(&Tensor::from_vec(tokens, [1, 20]));
            let y = model.forward(&model.params().bind_frozen(&tape), tokens, model.default_form()).value().to_f64();
            let n = y.len() / 20;
            let last = &y[18 * n..];
            (last[0] - last[n]).abs()
        };
        assert!(spread(vec![1; 20]) < 1e-12, "{name}");
        let begun = spread((0..20).map(|t| i32::from(t > 0)).collect());
        assert!(begun > 1e-9, "{name}: {begun:e}");
    }
}

/// The cache makes 4,096 tokens as much work as 8 million of a memory.
#[test]
fn path_attention_tracks_parity_and_cannot_without_reflections() {
    let (tokens, bits) = begun(4096, 6);
    let odd = sums(&bits, 2);
    for (form, piece) in [(Form::Parallel, 512), (Form::Chunked(32), 4097), (Form::Recurrent, 16)] {
        let y = &path(BIG).outputs(&tokens, form, piece)[1..];
        let wrong = y.iter().zip(&odd).filter(|&(&y, &odd)| (y < 0.5) != (odd == 1)).count();
        assert_eq!(wrong, 0, "{form}: {wrong} errors in 4096");
        let y = &path(0.0).outputs(&tokens, form, piece)[1..];
        let share = best_threshold(y, &odd);
        assert!(share < 0.6, "{form}: right at {share:.3} of the positions");
    }
}

/// 100,000 tokens would rewrite 5 · 10⁹ keys. But the keys of zeros and ones are orthogonal to all reflections, which
/// leave them as they are: the test sees this in each piece of the sequence, and then takes them out of the cache. Thus
/// every token reads the key of the beginning, which all ones before have reflected, and the keys of its piece. The
/// last 500 tokens read the whole cache: there the others are back.
#[test]
fn path_attention_tracks_parity_over_a_hundred_thousand_tokens() {
    let (tokens, bits) = begun(LONG, 9);
    let odd = sums(&bits, 2);
    let of = |rows: Vec<[f32; 2]>| Tensor::from_vec(rows.concat(), [1, rows.len(), 1, 2]);
    for (form, piece) in [(Form::Parallel, 500), (Form::Chunked(32), 2000), (Form::Recurrent, 100)] {
        let run = |b_beta: f32| {
            let (machine, mut tape) = (path(b_beta), Tape::default());
            let (mut y, mut carried): (Vec<f32>, Option<Vec<Tensor>>) = (vec![], None);
            for (i, now) in tokens.chunks(piece).enumerate() {
                let at = i * piece;
                if let Some([keys, values, _]) = carried.as_deref_mut() {
                    let rows = |x: &Tensor| x.host::<f32>().as_chunks::<2>().0.to_vec();
                    let (k, v) = (rows(keys), rows(values));
                    assert!(
                        k[1..].iter().all(|k| *k == [0.0, 1.0]) && v[1..].iter().all(|v| *v == [0.0, 0.0]),
                        "keys {k:?}, values {v:?}"
                    );
                    let others = if LONG - at < 500 { at - 1 } else { 0 };
                    *keys = of([vec![k[0]], vec![[0.0, 1.0]; others]].concat());
                    *values = of([vec![v[0]], vec![[0.0, 0.0]; others]].concat());
                }
                let (out, state) = machine.piece(&mut tape, now, at, carried.as_deref(), form);
                y.extend(out);
                carried = Some(state);
            }
            y.remove(0);
            y
        };
        let y = run(BIG);
        let wrong = y.iter().zip(&odd).filter(|&(&y, &odd)| (y < 0.5) != (odd == 1)).count();
        assert_eq!(wrong, 0, "{form}: {wrong} errors in {LONG}");
        let share = best_threshold(&run(0.0), &odd);
        assert!(share < 0.51, "{form}: right at {share:.3} of the positions");
    }
}

/// S4D with the 8 eighth roots of 1, shrunk a little: a kernel that is 1 at a lag of 5, 0.1 at 13, 0.01 at 21 … and 0
/// between.
fn fifth_last() -> Machine {
    let (n, lag, shrink) = (5, 5.0, 0.1f64.powf(0.125));
    let sizes = ModelConfig { state: n, ..ModelConfig::default() };
    let (mut log_a, mut angle, mut c) = (vec![], vec![], [vec![], vec![]]);
    for j in 0..n {
        let w = TAU * j as f64 / 8.0;
        // c = e^(−iw lag) shrink^(−lag) A / (λ − 1), and half of it where the root is its own conjugate; 2 Re doubles
        // it.
        let (a, less) = ((shrink.ln(), w), (shrink * w.cos() - 1.0, shrink * w.sin()));
        let square = less.0 * less.0 + less.1 * less.1;
        let ratio = ((a.0 * less.0 + a.1 * less.1) / square, (a.1 * less.0 - a.0 * less.1) / square);
        let size = shrink.powf(-lag) / 8.0 * if j % 4 == 0 { 0.5 } else { 1.0 };
        let turn = ((w * lag).cos() * size, -(w * lag).sin() * size);
        log_a.push((-shrink.ln()).ln() as f32);
        angle.push(w as f32);
        c[0].push((ratio.0 * turn.0 - ratio.1 * turn.1) as f32);
        c[1].push((ratio.0 * turn.1 + ratio.1 * turn.0) as f32);
    }
    // The second channel of the input is 1 at a one; the first output shows it.
    let machine = Machine::new("s4d", Eigenvalues::Positive, sizes).set("log_a_real", &log_a.repeat(2));
    let machine = machine.set("a_imag", &angle.repeat(2)).set("C_re", &c[0].repeat(2)).set("C_im", &c[1].repeat(2));
    machine.set("w", &[0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]).set("b", &[0.0, 0.0, BIG, BIG])
}

/// A memory that fades at one rate, the same for every token: Mamba-2 with Δ = dt, whose read is proportional to Σ
/// e^(−dt l) x.
fn fading(dt: f64) -> Machine {
    let sizes = ModelConfig { heads: 1, head_dim: 1, state: 1, conv: 0, ..ModelConfig::default() };
    // Rows of z, x, B, C and Δ. The norm divides by the state's size: ε keeps it as it is.
    let rows = [32.0, 32.0, 0.0, 2e-9, 32.0, 32.0, 32.0, 32.0, 0.0, 0.0];
    let machine = Machine::new("mamba2", Eigenvalues::Positive, sizes).set("in_proj_weight", &rows);
    let machine = machine.set("dt_bias", &[dt.exp_m1().ln() as f32]).set("norm_weight", &[1.0]);
    machine.set("out_proj_weight", &[1.0, 0.0])
}

/// What happened at a fixed distance, or how often in a window, needs rates that turn: state spaces have them. One that
/// only fades weighs tokens by age, and its best threshold is often wrong.
#[test]
fn state_spaces_see_through_a_window_and_fading_memories_do_not() {
    let tokens = bits(LONG, 7);
    let fifth: Vec<u32> = (0..LONG).map(|t| t.checked_sub(5).map_or(0, |s| u32::from(tokens[s]))).collect();
    let machine = fifth_last();
    for (form, piece) in machine.ways() {
        let y = machine.outputs(&tokens, form, piece);
        let wrong = y.iter().zip(&fifth).filter(|&(&y, &bit)| (y > 0.4) != (bit == 1)).count();
        assert_eq!(wrong, 0, "s4d, {form}, pieces of {piece}: {wrong} errors in {LONG}");
    }

    // LMU: m_0 is the mean of the last 64 tokens.
    let sizes = ModelConfig { state: 16, ..ModelConfig::default() };
    let machine = Machine::new("lmu", Eigenvalues::Positive, sizes).set("w_u", &[0.0, 1.0]);
    let read: Vec<f32> = (0..36).map(|i| if i == 0 { 64.0 } else { 0.0 }).collect();
    let machine = machine.set("w_h", &read);
    let counts: Vec<u32> =
        (0..LONG).map(|t| tokens[(t + 1).saturating_sub(64)..=t].iter().map(|&b| u32::from(b)).sum()).collect();
    let majority: Vec<u32> = counts.iter().map(|&n| u32::from(n > 32)).collect();
    for (form, piece) in [(Form::Recurrent, 1000), (Form::Parallel, 500), (Form::Chunked(32), LONG)] {
        let y = machine.outputs(&tokens, form, piece);
        let worst = y.iter().zip(&counts).map(|(&y, &n)| (y - n as f32).abs()).fold(0.0, f32::max);
        assert!(worst < 3.0, "lmu, {form}: off by {worst} of 64");
        assert!(best_threshold(&y, &majority) > 0.93, "lmu, {form}");
    }

    for dt in [0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.5, 1.0] {
        let y = fading(dt).outputs(&tokens, Form::Chunked(32), LONG);
        let shares = [&fifth, &majority].map(|of| best_threshold(&y, of));
        assert!(shares[0] < 0.75 && shares[1] < 0.9, "rate {dt}: {shares:?}");
    }
}

/// One unit, c in {0, 1}. A zero keeps it, f = 1 and i = 0. A one forgets it, f = 0, and writes 1 only if h = tanh(c)
/// says that it was 0.
#[test]
fn lstm_tracks_parity() {
    let sizes = ModelConfig { heads: 1, head_dim: 1, ..ModelConfig::default() };
    let machine = Machine::new("lstm", Eigenvalues::Positive, sizes);
    let (i, f, g, o) = ([-1000.0, 200.0], [200.0, -200.0], [50.0, 50.0], [200.0, 200.0]);
    let machine = machine.set("w_ih", &[i, f, g, o].concat()).set("w_hh", &[-800.0, 0.0, 0.0, 0.0]);
    assert_tracks("lstm", &machine.set("w_post", &[1.0, 0.0]), 0.4);
}

/// One unit, c / n in {−1, 1}. A zero keeps it, f = 1 and i = 0. A one forgets it, f = 0 and i = 1, and writes
/// tanh(z) = −h: the state, flipped. The stabiliser m is 0 from the first one on; until then every zero writes −1, the
/// initial state. `mixing` is the R of z, through which the unit sees its state.
fn slstm(mixing: f32) -> Machine {
    let sizes = ModelConfig { heads: 1, head_dim: 1, conv: 0, ..ModelConfig::default() };
    let machine = Machine::new("slstm", Eigenvalues::Positive, sizes);
    let (i, f, z, o) = ([-1000.0, 0.0], [1000.0, -1000.0], [-1000.0, 100.0], [200.0, 200.0]);
    let machine = machine.set("w_if", &[i, f].concat()).set("w_zo", &[z, o].concat());
    machine.set("r", &[0.0, 0.0, mixing, 0.0]).set("norm", &[1.0]).set("w_o", &[1.0, 0.0])
}

#[test]
fn slstm_tracks_parity_and_cannot_without_seeing_its_state() {
    assert_tracks("slstm", &slstm(-200.0), 0.0);
    assert_fails("slstm with R = 0", &slstm(0.0));
}

/// The LRU with λ = −1 (as near as exp(−exp(ν) + i exp(θ)) comes in single precision), reading `b` of the two tokens.
fn lru_minus_one(b: [f32; 2]) -> Machine {
    let machine = Machine::new("lru", Eigenvalues::Positive, ModelConfig { state: 1, ..ModelConfig::default() });
    let machine = machine.set("nu_log", &[-200.0]).set("theta_log", &[std::f32::consts::PI.ln()]);
    let machine = machine.set("B_re", &b).set("C_re", &[1.0, 0.0]);
    machine.set("w1", &[1.0, 0.0, 0.0, 0.0]).set("b2", &[200.0, 200.0])
}

#[test]
fn lru_tracks_the_parity_of_the_position() {
    let machine = lru_minus_one([1.0, 1.0]);
    let tokens = bits(LONG, 2);
    for (form, piece) in machine.ways() {
        // h is 1 at the first position, 0 at the second, and so on, whatever the tokens.
        let y = machine.outputs(&tokens, form, piece);
        let wrong = y.iter().enumerate().filter(|&(t, &y)| (y > 0.4) != (t % 2 == 0)).count();
        assert_eq!(wrong, 0, "{form}, pieces of {piece}");
    }
}

/// The recurrence itself with λ = −1 exactly: no drift, at any length.
#[test]
fn a_scan_with_lambda_minus_one_never_drifts() {
    let n = 2_000_000;
    let tape = Tape::default();
    let full = |shape: [usize; 3], x| tape.full(shape, DType::F32, x);
    let number = |x| tape.full([1], DType::F32, x);
    let zero = || tape.full([1, 1], DType::F32, 0.0);
    let u = (full([1, n, 1], 1.0), full([1, n, 1], 0.0));
    let ((h, _), _) = lru::scan((number(-1.0), number(0.0)), u, (zero(), zero()), 256);
    let wanted: Vec<f32> = (0..n).map(|t| if t % 2 == 0 { 1.0 } else { 0.0 }).collect();
    let wrong = h.value().host::<f32>().iter().zip(&wanted).position(|(h, wanted)| h != wanted);
    assert_eq!(wrong, None, "the first step where h does not alternate");
}

/// The LRU's transition is the same for a one and a zero. With λ = −1 and only ones read, h is the number of ones at
/// even positions minus the number at odd positions: an unbounded integer, whose parity no threshold reads.
#[test]
fn lru_with_lambda_minus_one_cannot_track_the_parity_of_the_ones() {
    assert_fails("lru", &lru_minus_one([0.0, 1.0]));
}

/// Nor does any other λ, B and C help, nor any other transition that is the same for all tokens. The state is a sum over
/// positions, so h(11) − h(10) − h(01) + h(00) = 0: a linear function of it that is above a threshold for 10 and 01
/// cannot be below it for both 11 and 00. Of SeqBoat this is said of its averages.
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

/// The readout that measures the failures above does find a solution where there is one.
#[test]
fn the_best_threshold_is_the_best() {
    assert_eq!(best_threshold(&[0.0, 1.0, 0.0, 3.0], &[0, 1, 0, 1]), 1.0);
    assert_eq!(best_threshold(&[0.0, 1.0, 0.0, 3.0], &[1, 0, 1, 0]), 1.0);
    assert_eq!(best_threshold(&[2.0, 2.0, 2.0, 2.0], &[1, 0, 1, 1]), 0.75);
    assert_eq!(best_threshold(&[0.0, 1.0, 2.0, 3.0], &[0, 1, 0, 1]), 0.75);
}
