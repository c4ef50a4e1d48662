//! How often what is drawn comes, against the distributions that it is drawn from and the rates of the published data.

use super::oracles::depth;
use approx::abs_diff_eq;
use std::collections::BTreeMap;
use tapezoo::{
    check::batch,
    tasks::{Arithmetic, Disjoint, Dyck, First, IGNORE, Language, Layout, Len, Mqar, Parity},
};

/// So often, to five standard deviations, if the probability is p.
fn about(what: &str, seen: usize, n: usize, p: f64) {
    let (expected, sigma) = (n as f64 * p, (n as f64 * p * (1.0 - p)).sqrt());
    assert!(
        abs_diff_eq!(seen as f64, expected, epsilon = 5.0 * sigma),
        "{what}: {seen} of {n}, expected {expected:.0}"
    );
}

/// Words that were not corrupted reach the maximal depth and do not exceed it: only a rare shuffle is balanced.
#[test]
fn balanced_words_use_the_depth_they_are_allowed() {
    for deepest in 1..7 {
        let (x, y) = batch(&Dyck { types: 50, depth: deepest as usize }, 1, 2000, 32);
        let balanced: Vec<_> = x.chunks(32).zip(y.chunks(32)).filter(|(_, y)| y[31] == 1).collect();
        let share = |d: i32| balanced.iter().filter(|(x, _)| depth(50, x) == d).count() as f64 / balanced.len() as f64;
        assert!(share(deepest) > 0.01, "depth {deepest}: {}", share(deepest));
        assert!((deepest + 1..32).map(share).sum::<f64>() < 0.05, "depth {deepest}");
    }
}

/// The label rates of the published algorithm (depth 6, 3 types), over two million positions in another program. An
/// earlier, smaller measurement of the published code gave 0.103, 0.093, 0.082, 0.074, 0.069.
#[test]
fn dyck_labels_are_as_rare_as_in_the_published_data() {
    for (t, rate) in [(32, 0.1097), (48, 0.0939), (64, 0.0857), (128, 0.0746), (256, 0.0687)] {
        let n = 8000;
        let (_, y) = batch(&Dyck::default(), 1, n, t);
        let ones = y.iter().filter(|&&y| y == 1).count() as f64 / y.len() as f64;
        assert!(
            abs_diff_eq!(ones, rate, epsilon = 0.004),
            "length {t}: {ones:.4} of the targets are 1, published: {rate}"
        );
        let valid = y.chunks(t).filter(|y| y[t - 1] == 1).count() as f64 / n as f64;
        assert!(abs_diff_eq!(valid, 0.5, epsilon = 0.03), "length {t}: {valid:.3} of the words are balanced");
    }
}

/// Controlled parity with 12 ones: the T − 12 zeros fall into 13 stretches, so that the even numbers 0, 2, .. 12 hold
/// (7 (T − 12) / 13 + 6) / T of the positions: 0.524 of 32, and 7 of 13 as T grows.
#[test]
fn controlled_parity_is_even_more_often_than_not() {
    for (t, rate) in [(32, 0.5240), (2000, 0.5382)] {
        let (_, y) = batch(&Parity { num_ones: Some(12), ..Parity::default() }, 1, 10_000, t);
        let even = f64::from(y.iter().sum::<i32>()) / y.len() as f64;
        assert!(abs_diff_eq!(even, rate, epsilon = 0.005), "length {t}: {even}");
    }
}

/// Zoology's gaps: the first is drawn with p(g) ∝ (g + 1)^(−0.99), and with one pair it is the only one.
#[test]
fn gaps_follow_the_power_law() {
    let (n, t) = (40_000, 64);
    let (_, y) = batch(&Mqar { pairs: Some(1), ..Mqar::default() }, 1, n, t);
    let weights: Vec<f64> = (0..31).map(|g| f64::from(g + 1).powf(-0.99)).collect();
    for (g, w) in weights.iter().enumerate() {
        let p = w / weights.iter().sum::<f64>();
        let seen = y.chunks(t).filter(|y| y[2 + 2 * g] != IGNORE).count();
        about(&format!("gap {g}"), seen, n, p);
    }
}

/// Zoology's keys come as often as one another, and so do its values. The gap of the first pair follows the law, and that
/// of the second the law of the gaps that are left. Tokens between the questions, where they are random, are any.
#[test]
fn pairs_and_what_lies_between_questions_are_chance() {
    let (n, t, m, vocab) = (8_000, 24, 4, 16);
    let task = Mqar { vocab, pairs: Some(m), ..Mqar::default() };
    let (x, _) = batch(&task, 1, n, t);
    for (ids, at) in [(1..8, 0), (8..16, 1)] {
        let p = m as f64 / ids.len() as f64;
        for id in ids {
            let seen = x.chunks(t).filter(|x| x[at..2 * m].iter().step_by(2).any(|&token| token == id)).count();
            about(&format!("token {id}"), seen, n, p);
        }
    }
    let weights: Vec<f64> = (0..8).map(|g| f64::from(g + 1).powf(-0.99)).collect();
    let p: Vec<f64> = weights.iter().map(|w| w / weights.iter().sum::<f64>()).collect();
    for g in 0..8 {
        let of = |pair: usize| x.chunks(t).filter(|x| x[2 * m + 2 * g] == x[2 * pair]).count();
        about(&format!("gap {g} of the first pair"), of(0), n, p[g]);
        let left = (0..8).filter(|&h| h != g).map(|h| p[h] * p[g] / (1.0 - p[h])).sum();
        about(&format!("gap {g} of the second"), of(1), n, left);
    }
    let (x, y) = batch(&Mqar { random_non_queries: true, ..task }, 1, n, t);
    let between: Vec<i32> = (0..x.len()).filter(|i| i % t >= 2 * m && y[*i] == IGNORE).map(|i| x[i]).collect();
    assert_eq!(between.len(), n * (t - 3 * m));
    for token in 0..vocab as i32 {
        let seen = between.iter().filter(|&&x| x == token).count();
        about(&format!("token {token} between"), seen, between.len(), 1.0 / vocab as f64);
    }
}

/// Of four pairs each is asked about as often, and first as often where all are asked about.
#[test]
fn the_published_query_is_about_any_pair() {
    let n = 4_000;
    for (all_queries, t) in [(false, 14), (true, 20)] {
        let task = Mqar { layout: Layout::Published, keys: 8, unique_keys: true, all_queries, ..Mqar::default() };
        let (x, _) = batch(&task, 1, n, t);
        for pair in 0..4 {
            about(&format!("pair {pair}"), x.chunks(t).filter(|x| x[12] == x[3 * pair]).count(), n, 0.25);
        }
    }
}

/// Half of the sets share an element, each place of the first set as often, and each of the second.
#[test]
fn any_element_is_shared() {
    let (n, small, large) = (4_000, 3, 5);
    let task = Disjoint { elements: 20, small, first: First::Small, repeat: 1 };
    let t = small + large + 2;
    let (x, y) = batch(&task, 1, n, t);
    let shared: Vec<(usize, usize)> = x
        .chunks(t)
        .filter_map(|x| {
            let places = (0..small).flat_map(|i| (0..large).map(move |j| (i, j)));
            places.into_iter().find(|&(i, j)| x[i] == x[small + 1 + j])
        })
        .collect();
    about("one shared", shared.len(), n, 0.5);
    assert_eq!(y.iter().filter(|&&y| y == 0).count(), shared.len());
    (0..small)
        .for_each(|i| about("first", shared.iter().filter(|s| s.0 == i).count(), shared.len(), 1.0 / small as f64));
    (0..large)
        .for_each(|j| about("second", shared.iter().filter(|s| s.1 == j).count(), shared.len(), 1.0 / large as f64));
}

/// The share of the most frequent answer, as measured on the published data.
#[test]
fn answers_are_spread_as_in_the_published_data() {
    let brackets = Language::ModularArithmeticWithBrackets;
    for (language, mult, len, published) in [
        (Language::ModularArithmetic, false, Len { min: 3, max: 40 }, 0.208),
        (brackets, false, Len { min: 3, max: 40 }, 0.211),
        (brackets, true, Len { min: 3, max: 40 }, 0.268),
        (brackets, true, Len { min: 40, max: 256 }, 0.311),
    ] {
        let (_, y) = batch(&Arithmetic { language, mult }, 3, 20_000, len);
        let mut seen = BTreeMap::new();
        y.iter().filter(|&&y| y != IGNORE).for_each(|y| *seen.entry(y).or_insert(0) += 1);
        let most = f64::from(*seen.values().max().unwrap()) / 20_000.0;
        assert!(
            abs_diff_eq!(most, published, epsilon = 0.015),
            "{language:?}, mult {mult}, {len}: {most:.3}, published {published}"
        );
    }
}
