//! Windowed parity and delayed match against a queue of the last bits.

use proptest::prelude::*;
use std::collections::{BTreeSet, VecDeque};
use tapezoo::{
    check::{batch, in_bounds},
    tasks::{IGNORE, Question, Task, Window},
};

/// The answer to a question about the last n of these bits, if there are as many.
fn answer(question: Question, n: usize, bits: &[i32]) -> Option<i32> {
    let mut last = VecDeque::new();
    for &bit in bits {
        last.push_back(bit);
        if last.len() > n {
            last.pop_front();
        }
    }
    (last.len() == n).then(|| match question {
        Question::Parity => last.iter().sum::<i32>() % 2,
        Question::Match => i32::from(last.front() == last.back()),
    })
}

fn question(matches: bool) -> Question {
    if matches { Question::Match } else { Question::Parity }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn one_window_is_asked_about_at_every_position(
        seed in any::<u64>(), window in 2..12usize, more in 0..60usize, matches: bool, uneven: bool,
    ) {
        let task = Window { question: question(matches), window, uneven, ..Window::default() };
        let t = window + more;
        prop_assert!(task.check().is_ok() && task.check_len(t).is_ok() && task.check_len(window - 1).is_err());
        prop_assert_eq!((task.vocab(), task.classes(), task.stages().is_none()), (2, 2, true));
        let (x, y) = batch(&task, seed, 4, t);
        for (x, y) in x.chunks(t).zip(y.chunks(t)) {
            for i in 0..t {
                prop_assert_eq!(y[i], answer(task.question, window, &x[..=i]).unwrap_or(IGNORE));
            }
        }
    }

    /// A token is its bit and its question, a class the question and the answer.
    #[test]
    fn several_windows_are_asked_about_by_the_tokens(
        seed in any::<u64>(), window in 3..12usize, asked in 0..12usize, matches: bool, from in prop::option::of(2..12usize),
        stage in 0..12usize,
    ) {
        let task = Window { question: question(matches), window, asked, grow_from: from, ..Window::default() };
        prop_assume!(asked != 1 && task.check().is_ok() && from != Some(window));
        // The windows that are ever asked about, and those of a stage.
        let least = match (from, asked) {
            (Some(from), _) => from,
            (None, 0) => 2,
            (None, asked) => window + 1 - asked,
        };
        let stages = task.stages().map_or(vec![], |stages| stages.tasks);
        prop_assert_eq!(stages.len(), from.map_or(0, |from| window + 1 - from));
        prop_assert_eq!(task.vocab(), 2 * (window + 1 - least));
        let (n, of_stage) = match stages.get(stage) {
            Some(of_stage) => (least + stage, &**of_stage),
            None => (window, &task as &dyn Task),
        };
        let asks: BTreeSet<usize> = (least..=n).filter(|n_| asked == 0 || n_ + asked > n).collect();
        let (t, b) = (window + 20, 40);
        let (x, y) = batch(of_stage, seed, b, t);
        prop_assert_eq!(in_bounds(&task, &x, &y), Ok(()));
        let mut seen = BTreeSet::new();
        for (x, y) in x.chunks(t).zip(y.chunks(t)) {
            let bits: Vec<i32> = x.iter().map(|x| x % 2).collect();
            for i in 0..t {
                let about = least + x[i] as usize / 2;
                seen.insert(about);
                let said = answer(task.question, about, &bits[..=i]);
                prop_assert_eq!(y[i], said.map_or(IGNORE, |y| 2 * (about - least) as i32 + y));
            }
            prop_assert_eq!(task.label(x), Some(y.to_vec()));
        }
        prop_assert_eq!(seen, asks);
    }
}

/// A sequence with its own probability of a one has none, or nothing else, more often than fair bits have.
#[test]
fn uneven_bits_are_uneven() {
    let t = 20;
    let share = |uneven: bool| {
        let (x, _) = batch(&Window { uneven, ..Window::default() }, 3, 2000, t);
        let alike = x.chunks(t).filter(|x| x.iter().all(|bit| *bit == x[0])).count();
        (alike as f64 / 2000.0, f64::from(x.iter().sum::<i32>()) / x.len() as f64)
    };
    let ((fair, ones), (uneven, of_uneven)) = (share(false), share(true));
    // ∫ p^20 + (1 − p)^20 dp = 2 / 21.
    assert!(fair < 0.002 && (uneven - 2.0 / 21.0).abs() < 0.02, "{fair}, {uneven}");
    assert!((ones - 0.5).abs() < 0.01 && (of_uneven - 0.5).abs() < 0.03, "{ones}, {of_uneven}");
}

#[test]
fn windows_that_cannot_be_are_refused() {
    let with = |change: fn(&mut Window)| {
        let mut task = Window::default();
        change(&mut task);
        task.check().unwrap_err()
    };
    for (change, word) in [
        ((|w| w.window = 1) as fn(&mut Window), "task.window 1: expected 2 to 512"),
        (|w| w.window = 513, "task.window 513"),
        (|w| w.asked = 5, "task.asked 5: there are windows of 2 to 5 bits; expected at most 4"),
        (|w| w.grow_from = Some(6), "task.grow_from 6: expected 2 to the 5 bits"),
        (|w| w.grow_from = Some(1), "task.grow_from 1"),
        (|w| w.grow_every = 0, "task.grow_every 0"),
        (|w| w.grow_at = 1.0, "task.grow_at 1: expected an accuracy from 0 to below 1"),
        (|w| w.grow_at = f64::NAN, "task.grow_at NaN"),
    ] {
        let said = with(change);
        assert!(said.contains(word), "no '{word}' in: {said}");
    }
}
