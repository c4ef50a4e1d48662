//! Tasks against brute force, and data that depends only on (seed, purpose, index).

use approx::abs_diff_eq;
use proptest::prelude::*;
use tapezoo::{
    rng,
    tasks::{Parity, Task},
};

fn batch(task: &dyn Task, seed: u64, purpose: &str, index: u64, b: usize, t: usize) -> (Vec<i32>, Vec<i32>) {
    let (mut tokens, mut targets) = (vec![-7; b * t], vec![-7; b * t]);
    task.fill(&mut rng::stream(seed, purpose, index), t, &mut tokens, &mut targets);
    (tokens, targets)
}

proptest! {
    #[test]
    fn the_target_is_1_where_the_number_of_ones_so_far_is_even(
        seed in 0..1000u64, index in any::<u64>(), b in 1..6usize, t in 1..200usize, num_ones in prop::option::of(0..220usize),
    ) {
        let (x, y) = batch(&Parity { num_ones, ..Parity::default() }, seed, "train", index, b, t);
        for (x, y) in x.chunks(t).zip(y.chunks(t)) {
            prop_assert!(x.iter().all(|&x| x == 0 || x == 1), "{:?}", x);
            for i in 0..t {
                let ones = x[..=i].iter().filter(|&&x| x == 1).count();
                prop_assert_eq!(y[i], i32::from(ones % 2 == 0));
            }
            if let Some(n) = num_ones {
                prop_assert_eq!(x.iter().sum::<i32>() as usize, n.min(t));
            }
        }
    }

    #[test]
    fn the_target_is_the_number_of_ones_so_far_modulo_m(
        seed in 0..1000u64, modulus in 3..9usize, b in 1..6usize, t in 1..200usize, num_ones in prop::option::of(0..220usize),
    ) {
        let task = Parity { num_ones, modulus };
        let (x, y) = batch(&task, seed, "train", 0, b, t);
        // The bits are those of parity.
        prop_assert_eq!(&x, &batch(&Parity { num_ones, ..Parity::default() }, seed, "train", 0, b, t).0);
        prop_assert_eq!(task.classes(), modulus);
        for (x, y) in x.chunks(t).zip(y.chunks(t)) {
            for i in 0..t {
                let ones = x[..=i].iter().filter(|&&x| x == 1).count();
                prop_assert_eq!(y[i], (ones % modulus) as i32);
            }
        }
    }

    #[test]
    fn a_batch_is_a_function_of_seed_purpose_and_index(seed in 0..1000u64, index in 0..1000u64, b in 1..6usize, t in 1..100usize) {
        let task = Parity::default();
        let here = batch(&task, seed, "train", index, b + 1, t);
        let there = std::thread::spawn(move || {
            batch(&Parity::default(), seed, "train", index + 1, b, t);
            batch(&Parity::default(), seed, "train", index, b, t)
        });
        // A smaller batch is the beginning of a larger one.
        prop_assert_eq!(&here.0[..b * t], &there.join().unwrap().0[..]);
    }
}

#[test]
fn streams_of_other_seeds_purposes_and_indices_are_others() {
    let task = Parity::default();
    let first = batch(&task, 0, "train", 0, 8, 32);
    for (seed, purpose, index) in [(1, "train", 0), (0, "trail", 0), (0, "train", 1), (0, "train", u64::MAX)] {
        assert_ne!(first.0, batch(&task, seed, purpose, index, 8, 32).0);
    }
}

/// The data that every published number of this crate was trained on: if this changes, they all do.
#[test]
fn the_first_batch_is_what_it_always_was() {
    let bits = |x: &[i32]| x.iter().map(|x| x.to_string()).collect::<String>();
    let (x, _) = batch(&Parity::default(), 41, "train", 0, 2, 32);
    assert_eq!(bits(&x), "0101110111100111001000100110010000010000110101011101101100101100");
    let (x, _) = batch(&Parity { num_ones: Some(12), ..Parity::default() }, 41, "train", 0, 2, 32);
    assert_eq!(bits(&x), "0011110010011101000001100000001001110110100111000000000011100000");
}

/// Each position of controlled parity is a one equally often, and so is each bit of plain parity.
#[test]
fn ones_are_everywhere_equally_often() {
    let (n, t) = (20_000, 10);
    for (task, rate) in [(Parity::default(), 0.5), (Parity { num_ones: Some(3), ..Parity::default() }, 0.3)] {
        let (x, _) = batch(&task, 1, "train", 0, n, t);
        for i in 0..t {
            let ones = x.iter().skip(i).step_by(t).sum::<i32>();
            let (expected, sigma) = (n as f64 * rate, (n as f64 * rate * (1.0 - rate)).sqrt());
            assert!(abs_diff_eq!(f64::from(ones), expected, epsilon = 5.0 * sigma), "position {i}: {ones} ones of {n}");
        }
    }
}
