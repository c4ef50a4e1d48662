//! State spaces: Mamba and its successors, whose transition the input chooses, and those that have one for all tokens.

use crate::machine::{LONG, Machine, best_threshold, bits, sums};
use crate::{BIG, assert_fails, assert_tracks, begun};
use std::f64::consts::{PI, TAU};
use tapezoo::{
    autograd::Tape,
    models::{Eigenvalues, Form, ModelConfig, lru},
    tensor::DType,
};

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
fn mamba2_tracks_parity_with_a_transition_of_minus_one_and_not_with_zero() {
    assert_tracks("mamba2", &mamba2(Eigenvalues::Signed), 0.5);
    assert_fails("mamba2", &mamba2(Eigenvalues::Positive));
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

/// At T = 100,000 the state has the size e^(−10⁻⁴ ΣΔ) and the right sign.
#[test]
fn mamba3_turns_by_pi_at_a_one_for_as_long_as_its_state_lasts() {
    let (machine, dt) = mamba3(PI, 0.0);
    let (tokens, bits) = begun(LONG, 4);
    for (form, piece) in machine.ways() {
        let y = machine.outputs(&tokens, form, piece);
        // The remainder of the 1 at the beginning, with its sign.
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

/// To tell the token at a fixed distance, or a count within a window, by one threshold, a memory needs complex rates, which
/// state spaces have. A memory that only fades weighs tokens by age, and its best threshold is often wrong.
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
