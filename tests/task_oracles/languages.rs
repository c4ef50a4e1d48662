//! In-context languages: automata against brute force, and what oracles and baselines score.

use super::close::close;
use proptest::prelude::*;
use rand::{RngExt, seq::SliceRandom};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use tapezoo::{
    autograd::Tape,
    check::{batch, in_bounds},
    rng::{self, Rng},
    tasks::{Automaton, Batch, Counts, IGNORE, Icll, Len, Task},
    tensor::Tensor,
    train::evaluate::count_answers,
};

/// Whether two states allow the same strings of up to n symbols.
fn alike(of: &Automaton, a: usize, b: usize, n: usize) -> bool {
    let letters = |s: usize| of.edges[s].iter().map(|e| e.0).collect::<Vec<_>>();
    letters(a) == letters(b)
        && (n == 0 || of.edges[a].iter().zip(&of.edges[b]).all(|(x, y)| alike(of, x.1, y.1, n - 1)))
}

/// The states that walks of any length from the first one meet.
fn reached(of: &Automaton) -> BTreeSet<usize> {
    let mut seen = BTreeSet::from([0]);
    while let Some(more) = seen.iter().flat_map(|&s| &of.edges[s]).map(|e| e.1).find(|to| !seen.contains(to)) {
        seen.insert(more);
    }
    seen
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn automata_are_minimal_and_of_their_sizes(
        seed in any::<u64>(), letters in 4..12usize, nodes in 4..9usize, edges in 1..4usize, evaluates: bool,
    ) {
        let task = Icll { letters, nodes, edges, evaluates, ..Icll::default() };
        prop_assert_eq!(task.check(), Ok(()));
        let automaton = task.draw(&mut rng::stream(seed, "automaton", 0));
        let n = automaton.edges.len();
        prop_assert!((1..=nodes).contains(&n));
        prop_assert_eq!(reached(&automaton), (0..n).collect());
        for state in &automaton.edges {
            prop_assert!((1..=edges).contains(&state.len()) && state.iter().all(|e| e.0 < letters && e.1 < n));
            prop_assert!(state.windows(2).all(|pair| pair[0].0 < pair[1].0), "letters are distinct, and in order");
        }
        // Of n states, two that are not equivalent are told apart by n symbols at most.
        for a in 0..n {
            prop_assert!((0..a).all(|b| !alike(&automaton, a, b, n)), "{:?}", automaton);
        }
    }

    /// Few letters and many states, of which many are equivalent or not reached.
    #[test]
    fn the_minimal_automaton_allows_the_same_strings(
        edges in prop::collection::vec(prop::collection::btree_map(0..2usize, any::<prop::sample::Index>(), 1..3), 1..8),
    ) {
        let n = edges.len();
        let edges: Vec<Vec<(usize, usize)>> =
            edges.iter().map(|state| state.iter().map(|(&x, to)| (x, to.index(n))).collect()).collect();
        let minimal = Automaton::minimal(&edges);
        let letters = |of: &[(usize, usize)]| of.iter().map(|e| e.0).collect::<Vec<_>>();
        // The pairs of states that a string can lead to.
        let (mut pairs, mut done) = (vec![(0, 0)], 0);
        while let Some(&(a, b)) = pairs.get(done) {
            done += 1;
            prop_assert_eq!(letters(&edges[a]), letters(&minimal.edges[b]), "{:?} of {:?}", minimal, edges);
            let next: Vec<_> = edges[a].iter().zip(&minimal.edges[b]).map(|(x, y)| (x.1, y.1)).collect();
            next.into_iter().for_each(|pair| if !pairs.contains(&pair) { pairs.push(pair) });
        }
        let n = minimal.edges.len();
        prop_assert!((0..n).all(|a| (0..a).all(|b| !alike(&minimal, a, b, n))), "{:?} of {:?}", minimal, edges);
    }

    /// The probabilities of a sequence are those of its automaton: the same after the same string, equal for a few
    /// letters, and not 0 for the letters that come.
    #[test]
    fn the_truth_belongs_to_the_sequences(
        seed in any::<u64>(), letters in 4..12usize, string in 1..20usize, min in 2..40usize, more in 0..30usize,
    ) {
        let task = Icll { letters, string, ..Icll::default() };
        let (len, b) = (Len { min, max: min + more }, 5);
        let (x, y) = batch(&task, seed, b, len);
        prop_assert_eq!(in_bounds(&task, &x, &y), Ok(()));
        let truth = task.truth(&mut rng::stream(seed, "train", 0), len, b).unwrap();
        let (t, bar) = (len.max, letters as i32);
        let mut drawn_lens = BTreeSet::new();
        for ((x, y), truth) in x.chunks(t).zip(y.chunks(t)).zip(truth.chunks(t * letters)) {
            let end = y.iter().rposition(|&y| y != IGNORE).unwrap() + 1;
            drawn_lens.insert(end);
            let follows = x[1..end].iter().map(|&x| if x == bar { IGNORE } else { x });
            prop_assert_eq!(&y[..end - 1], &follows.collect::<Vec<_>>()[..]);
            let mut after: BTreeMap<Vec<i32>, &[f32]> = BTreeMap::new();
            for i in 0..t {
                let row = &truth[i * letters..][..letters];
                let allowed = row.iter().filter(|&&p| p > 0.0).count();
                if y[i] == IGNORE {
                    prop_assert_eq!(allowed, 0);
                    continue;
                }
                prop_assert!((1..=3).contains(&allowed) && row[y[i] as usize] > 0.0);
                prop_assert!(row.iter().all(|&p| p == 0.0 || p == 1.0 / allowed as f32));
                let start = x[..=i].iter().rposition(|&x| x == bar).map_or(0, |at| at + 1);
                prop_assert!(i + 1 - start < string);
                let before = after.insert(x[start..=i].to_vec(), row);
                prop_assert!(before.is_none_or(|before| before == row));
            }
        }
        prop_assert!(drawn_lens.into_iter().all(|n| n + 1 >= min && n <= t));
    }
}

#[test]
fn evaluations_have_an_eighth_of_all_automata_and_training_the_others() {
    // The task is so small that many strings come again and again.
    let task = Icll { letters: 4, nodes: 4, edges: 1, ..Icll::default() };
    let drawn = |evaluates: bool| -> Vec<Automaton> {
        let task = Icll { evaluates, ..task.clone() };
        (0..20_000).map(|i| task.draw(&mut rng::stream(7, "automata", i))).collect()
    };
    let [train, evaluation] = [false, true].map(|evaluates| drawn(evaluates).into_iter().collect::<HashSet<_>>());
    assert!(train.is_disjoint(&evaluation));
    let share = evaluation.len() as f64 / (train.len() + evaluation.len()) as f64;
    assert!(train.len() > 100 && (0.1..0.25).contains(&share), "{} and {}", train.len(), evaluation.len());
    let [here, evaluated] = [false, true].map(|evaluates| batch(&Icll { evaluates, ..Icll::default() }, 3, 4, 100));
    assert_ne!(here, evaluated);
    assert_eq!(batch(&*Icll::default().to_evaluate().unwrap(), 3, 4, 100), evaluated);
}

/// An automaton as the paper draws it, by another way: each state shuffles the alphabet and the other states.
fn drawn_again(task: &Icll, rng: &mut Rng) -> Automaton {
    let shuffled = |mut all: Vec<usize>, rng: &mut Rng| {
        all.shuffle(rng);
        all
    };
    let (n, letters) = (rng.random_range(4..=task.nodes), rng.random_range(4..=task.letters));
    let alphabet = shuffled((0..task.letters).collect(), rng)[..letters].to_vec();
    let state = |s: usize| {
        let edges = rng.random_range(1..=task.edges);
        let others = shuffled((0..n).filter(|&other| other != s).collect(), rng);
        let mut of: Vec<_> = shuffled(alphabet.clone(), rng).into_iter().zip(others).take(edges).collect();
        of.sort_unstable();
        of
    };
    Automaton::minimal(&(0..n).map(state).collect::<Vec<_>>())
}

/// How often an automaton has so many states, so many letters, and its first state so many edges.
#[test]
fn automata_are_drawn_as_often_as_by_a_second_generator() {
    const DRAWN: u64 = 40_000;
    let task = Icll::default();
    let shares = |draw: &dyn Fn(&mut Rng) -> Automaton| {
        let mut shares: BTreeMap<(&str, usize), f64> = BTreeMap::new();
        for i in 0..DRAWN {
            let Automaton { edges } = draw(&mut rng::stream(11, "automata", i));
            let letters: BTreeSet<_> = edges.iter().flatten().map(|edge| edge.0).collect();
            for of in [("states", edges.len()), ("letters", letters.len()), ("edges", edges[0].len())] {
                *shares.entry(of).or_default() += 1.0 / DRAWN as f64;
            }
        }
        shares
    };
    let (ours, again) = (shares(&|rng| task.draw(rng)), shares(&|rng| drawn_again(&task, rng)));
    for of in ours.keys().chain(again.keys()) {
        let [x, y] = [&ours, &again].map(|shares| shares.get(of).copied().unwrap_or(0.0));
        // Four standard deviations of the difference of two counts.
        assert!((x - y).abs() < 4.0 * ((x + y) / DRAWN as f64).sqrt(), "{of:?}: {ours:?}, {again:?}");
    }
}

#[test]
fn strings_are_as_long_as_they_may_be() {
    let task = Icll { string: 3, ..Icll::default() };
    let (x, _) = batch(&task, 5, 100, 200);
    let mut lens = BTreeMap::new();
    for x in x.chunks(200) {
        // The last one may be cut short.
        let strings: Vec<usize> = x.split(|&x| x == 18).map(<[i32]>::len).collect();
        strings[..strings.len() - 1].iter().for_each(|n| *lens.entry(*n).or_insert(0) += 1);
    }
    assert_eq!(lens.keys().copied().collect::<Vec<_>>(), [1, 2, 3]);
    let all: i32 = lens.values().sum();
    assert!(lens.values().all(|n| (f64::from(*n) / f64::from(all) - 1.0 / 3.0).abs() < 0.03), "{lens:?}");
}

/// p of each letter after the strings so far: what followed the longest of the last n − 1 symbols that were there
/// before, n of them at most, in counts; the start of a string counts as a symbol.
fn back_off(x: &[i32], n: usize, letters: usize) -> Vec<f64> {
    let bar = letters as i32;
    let followed = |context: &[i32]| -> Vec<f64> {
        let mut counts = vec![0.0; letters];
        for i in context.len()..x.len() {
            if x[i] != bar && &x[i - context.len()..i] == context {
                counts[x[i] as usize] += 1.0;
            }
        }
        counts
    };
    // A context reaches no further back than to the separator.
    let start = x.iter().rposition(|&x| x == bar).unwrap_or(0);
    for k in (0..n.min(x.len() - start + 1)).rev() {
        let counts = followed(&x[x.len() - k..]);
        let all: f64 = counts.iter().sum();
        if all > 0.0 {
            return counts.iter().map(|c| c / all).collect();
        }
    }
    vec![1.0 / letters as f64; letters]
}

/// The accuracy and the distance of somebody who says these probabilities after each prefix, by what an evaluation
/// counts.
fn scores(task: &Icll, t: usize, b: usize, says: impl Fn(&[i32], &[f32]) -> Vec<f64>) -> (f64, f64) {
    let stream = || rng::stream(0, "evaluate", 0);
    let mut batch = Batch::new(b, t);
    batch.fill(task, stream());
    let truth = task.truth(&mut stream(), t.into(), b).unwrap();
    let (tokens, letters) = (batch.tokens.host::<i32>(), task.letters);
    // The logarithms of the probabilities; for 0 a number so small that its exponential vanishes.
    let logits: Vec<f64> = (0..b * t)
        .flat_map(|i| says(&tokens[i / t * t..=i], &truth[i * letters..][..letters]))
        .map(|p| if p == 0.0 { -1e4 } else { p.ln() })
        .collect();
    let mut counts = Counts::new(letters);
    let logits = Tensor::from_vec(logits, [b, t, letters]);
    count_answers(task, &Tape::default(), &logits, (&batch, None, Some(&truth)), &mut counts);
    // The same at the positions that have a target alone, in two parts.
    let rows: Vec<i32> = (0..b * t).filter(|&i| batch.targets.host::<i32>()[i] != IGNORE).map(|i| i as i32).collect();
    let mut again = Counts::new(letters);
    for rows in [&rows[..rows.len() / 2], &rows[rows.len() / 2..]] {
        let of = |&row: &i32| logits.host::<f64>()[row as usize * letters..][..letters].to_vec();
        let part = Tensor::from_vec::<f64>(rows.iter().flat_map(of).collect(), [rows.len(), letters]);
        let rows = Tensor::from_vec(rows.to_vec(), [rows.len()]);
        let mut counts = Counts::new(letters);
        count_answers(task, &Tape::default(), &part, (&batch, Some(&rows), Some(&truth)), &mut counts);
        again.merge(&counts);
    }
    assert_eq!((again.accuracy(), again.distance()), (counts.accuracy(), counts.distance()));
    let [(name, distance)] = task.metrics(&counts)[..] else { panic!() };
    assert_eq!(name, "tvd");
    (counts.accuracy(), distance)
}

#[test]
fn who_knows_the_automaton_is_always_right() {
    let task = Icll { evaluates: true, ..Icll::default() };
    let (accuracy, distance) = scores(&task, 100, 8, |_, truth| truth.iter().map(|&p| f64::from(p)).collect());
    assert_eq!(accuracy, 1.0);
    close(distance, 0.0, 1e-7, "distance");
    // One possible letter, with probability 1.
    let one = |truth: &[f32]| {
        truth
            .iter()
            .scan(false, |seen, &p| {
                let first = p > 0.0 && !*seen;
                *seen |= first;
                Some(f64::from(u8::from(first)))
            })
            .collect()
    };
    let (accuracy, distance) = scores(&task, 100, 8, |_, truth| one(truth));
    // The letter is one of one, two or three edges.
    assert!(accuracy == 1.0 && (0.2..0.5).contains(&distance), "{accuracy}, {distance}");
}

/// N-grams of the strings so far do much better than guessing, and better with more strings.
#[test]
fn n_grams_of_the_strings_so_far_beat_guessing() {
    let task = Icll { evaluates: true, ..Icll::default() };
    let (letters, t, b) = (task.letters, 256, 24);
    let (guess, far) = scores(&task, t, b, |_, _| vec![1.0 / letters as f64; letters]);
    assert!(guess < 0.2 && far > 0.8, "guessing: {guess}, {far}");
    let [one, two, three] = [1, 2, 3].map(|n| scores(&task, t, b, |x, _| back_off(x, n, letters)));
    eprintln!("guess {guess:.3} {far:.3}, n-grams {one:.3?} {two:.3?} {three:.3?}");
    assert!(three.0 > 0.8 && three.1 < 0.3, "{three:?}");
    assert!(three.0 > two.0 && two.0 > one.0 && one.0 > guess);
    let short = scores(&task, t / 8, 8 * b, |x, _| back_off(x, 3, letters));
    assert!(short.0 < three.0 - 0.05 && short.1 > three.1 + 0.05, "{short:?}, {three:?}");
}

/// A row that is not finite says nothing, and its probabilities are as far away as can be.
#[test]
fn what_is_no_number_is_far_away() {
    let task = Icll::default();
    for x in [f64::NAN, f64::INFINITY] {
        let (accuracy, distance) = scores(&task, 20, 2, |_, _| [vec![x], vec![0.5; task.letters - 1]].concat());
        assert!(accuracy == 0.0 && distance > 0.8, "{x}: {accuracy}, {distance}");
    }
    let mut counts = Counts::new(2);
    for x in [f64::NAN, f64::INFINITY, 2.0] {
        counts.add(None, 0);
        counts.add_distance(x);
    }
    close(counts.distance(), 1.0, 1e-12, "distance");
}

#[test]
fn languages_that_cannot_be_are_refused() {
    for (change, word) in [
        ((|t| t.letters = 3) as fn(&mut Icll), "task.letters 3: expected 4 to 26"),
        (|t| t.letters = 27, "task.letters 27"),
        (|t| t.nodes = 3, "task.nodes 3: expected 4 to 128"),
        (|t| t.edges = 4, "task.edges 4: expected 1 to 3"),
        (|t| t.edges = 0, "task.edges 0"),
        (|t| t.string = 0, "task.string 0"),
    ] {
        let mut task = Icll::default();
        change(&mut task);
        let said = task.check().unwrap_err();
        assert!(said.contains(word), "no '{word}' in: {said}");
    }
    assert!(Icll::default().check_len(1).is_err() && Icll::default().check_len(2).is_ok());
}
