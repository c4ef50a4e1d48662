//! Delta rules, RWKV-7 and Titans: reflections of one direction of the state.

use crate::machine::{LONG, Machine, bits, sums};
use crate::{BIG, assert_fails, assert_tracks, begun};
use approx::abs_diff_eq;
use tapezoo::models::{Eigenvalues, ModelConfig};

/// Both tokens have the same key and value. What differs from one token to the other is set by the caller.
fn keyed(name: &str, eigenvalues: Eigenvalues, n: usize) -> Machine {
    let sizes = ModelConfig { heads: 1, head_dim: 4, householders: 2, ..ModelConfig::default() };
    // Weights are [K, D], n times: for each step of a token, or for each memory.
    let mut key = [0.0; 8];
    key[..2].fill(BIG);
    let machine = Machine::new(name, eigenvalues, sizes).set("w_q", &key).set("w_k", &key.repeat(n));
    let machine = machine.set("w_v", &[BIG; 8].repeat(n)).set("norm", &[1.0; 4]);
    let machine = machine.set("w_o", &[1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]);
    if name == "mom" {
        return machine;
    }
    // The convolutions, which MoM has not, pass the present token on: only the last of four taps is not zero.
    let tap = [0.0, 0.0, 0.0, 1.0].repeat(4);
    machine.set("conv_q", &tap).set("conv_k", &tap.repeat(n)).set("conv_v", &tap.repeat(n))
}

/// A one has β = s, a zero β = 0. A one then writes S ← (1 − s) S + s k vᵀ: with s = 2 from 0 to 2 k vᵀ and back, with
/// s = 1 to k vᵀ and never back.
pub fn delta(name: &str, eigenvalues: Eigenvalues) -> Machine {
    let beta = [-BIG, BIG];
    // DeltaProduct's second step of a token has β = 0 and writes nothing. MoM has five memories.
    let (n, beta) = match name {
        "delta_product" => (2, [beta, [-BIG, -BIG]].concat()),
        "mom" => (5, beta.repeat(5)),
        _ => (1, beta.to_vec()),
    };
    let machine = keyed(name, eigenvalues, n).set("w_beta", &beta);
    // softplus saturates to 0: the gate is open. The output gate is the same for all tokens. MoM's router has no
    // preference.
    match name {
        "gated_delta_net" | "mom" => machine.set("b_dt", &[-BIG]).set("w_z", &[BIG; 8]),
        "kda" => machine.set("b_dt", &[-BIG; 4]).set("b_z", &[BIG; 4]),
        _ => machine,
    }
}

#[test]
fn delta_rules_with_beta_two_track_parity_and_with_beta_one_cannot() {
    for name in ["delta_net", "gated_delta_net", "delta_product", "kda", "mom"] {
        let (signed, positive) = (delta(name, Eigenvalues::Signed), delta(name, Eigenvalues::Positive));
        assert_tracks(name, &signed, 0.5);
        assert_fails(name, &positive);
    }
}

/// Titans without momentum (η = 0). A one has θ = 1 and the given α, a zero θ = α = 0. Both α and θ take from the memory
/// as it was before the token, so that the transition along k is 1 − α − θ. With α = 1 it is −1, and a one writes
/// S ← k vᵀ − k kᵀ S, from 0 to k vᵀ and back. With α = 0 it is 0.
fn titans(alpha: u8) -> Machine {
    let alpha = if alpha == 1 { BIG } else { -BIG };
    keyed("titans", Eigenvalues::Positive, 1).set("w_rates", &[-BIG, BIG, -BIG, -BIG, -BIG, alpha])
}

#[test]
fn titans_tracks_parity_by_forgetting_while_it_erases_and_cannot_without() {
    assert_tracks("titans", &titans(1), 0.5);
    assert_fails("titans", &titans(0));
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

#[test]
fn rwkv7_tracks_parity_with_an_eigenvalue_of_minus_one_and_not_with_zero() {
    assert_tracks("rwkv7", &rwkv7(Eigenvalues::Signed), 0.5);
    assert_fails("rwkv7", &rwkv7(Eigenvalues::Positive));
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
