//! The expressivity of mixers, independent of training: hand-set weights that compute parity without an error at T =
//! 100,000 in single precision, in every form and token by token (delta rules, Titans, RWKV-7, Mamba, Mamba-2, PaTH,
//! LSTM, sLSTM); and the same weights failing where eigenvalues cannot be negative. RWKV-7 as released and Mamba-3 flip
//! a state that fades. DeltaProduct with two Householder matrices per token and Mamba-3 count modulo three. Delta rules
//! follow the swaps of S5 by one reflection a token, and A5 by two. S4D and LMU see through a window, which a memory that
//! only fades cannot; the LRU tells even positions from odd ones.

#![allow(clippy::unwrap_used)]

mod attention;
mod cells;
mod delta_rules;
mod drawn;
mod groups;
#[path = "../machine/mod.rs"]
mod machine;
mod state_spaces;

use machine::{LONG, Machine, best_threshold, bits, sums};

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

/// A beginning, and fair coins of 1 and 2.
fn begun(n: usize, seed: u64) -> (Vec<u8>, Vec<u8>) {
    let bits = bits(n, seed);
    ([0].into_iter().chain(bits.iter().map(|b| 1 + b)).collect(), bits)
}

/// The readout that measures the failures above does find a solution where there is one.
#[test]
fn the_best_threshold_is_the_best() {
    assert_eq!(best_threshold(&[0.0, 1.0, 0.0, 3.0], &[0, 1, 0, 1]), 1.0);
    assert_eq!(best_threshold(&[0.0, 1.0, 0.0, 3.0], &[1, 0, 1, 0]), 1.0);
    assert_eq!(best_threshold(&[2.0, 2.0, 2.0, 2.0], &[1, 0, 1, 1]), 0.75);
    assert_eq!(best_threshold(&[0.0, 1.0, 2.0, 3.0], &[0, 1, 0, 1]), 0.75);
}
