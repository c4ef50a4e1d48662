//! In-context languages: strings of an unknown automaton, and after each symbol, which comes next? (Akyürek et al. 2024,
//! arXiv 2401.12973, ICLL.)
//!
//! ```text
//! tokens    c a f c | a f | c a f c a | a ..       strings of one automaton, another one in each sequence
//! targets   a f c · a f · c a f c a · a ..         the symbol that follows, where it is no separator
//! ```
//!
//! An automaton has n states (n uniform from 4 to `nodes`) and an alphabet of a letters (a uniform from 4 to `letters`,
//! drawn from the `letters`). Each state has 1 to `edges` edges with different letters to different states other than itself.
//! States that are not reached from the first are left out, and equivalent states merged, where every state accepts. A
//! string has 1 to `string` symbols (uniform): a walk from the first state, along any edge equally often.
//!
//! Which symbols may follow can be learned from the strings before, and in no other way: an eighth of all automata, by
//! a hash of their edges, is met in evaluations alone, the others in training alone. (Of few letters it is not an
//! eighth of each size: with four letters automata of one and two states are hardly met in evaluations.) The paper has
//! 5,000 automata to train on, each with one sequence of 10 to 19 strings; here each sequence has a new one, and is
//! filled with strings up to its length, of which the last may be cut short.
//!
//! The symbol that follows is drawn, so nobody knows it. The accuracy is therefore that of the paper: how often the most
//! likely symbol is one that the automaton allows. The score `tvd` is the total variation distance ½ Σ |p − p*| of the
//! model's probabilities p from the automaton's p*, which are uniform over the edges.

use super::{Counts, IGNORE, Len, TVD, Task};
use crate::rng::{Fnv1a, Rng};
use rand::{RngExt, seq::SliceRandom};
use serde::{Deserialize, Serialize};

/// The fewest states and letters that are drawn.
const LEAST: usize = 4;

/// The most letters: they have names.
const MOST_LETTERS: usize = 26;

/// The task of in-context languages.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Icll {
    /// How many letters there are; the separator '|' is one token more.
    pub letters: usize,
    /// The most states of an automaton.
    pub nodes: usize,
    /// The most edges of a state.
    pub edges: usize,
    /// The longest string.
    pub string: usize,
    /// Whether the automata are those of evaluations.
    #[serde(skip)]
    pub evaluates: bool,
}

impl Default for Icll {
    fn default() -> Icll {
        Icll { letters: 18, nodes: 12, edges: 3, string: 49, evaluates: false }
    }
}

/// A finite automaton without equivalent states, all of which accept; its first state is 0.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Automaton {
    /// Of each state: the letters that may follow, in order, and the states that they lead to. States are numbered in
    /// the order in which a search in breadth meets them.
    pub edges: Vec<Vec<(usize, usize)>>,
}

impl Automaton {
    /// Of an automaton with these edges, in the order of their letters: the part that is reached, with equivalent states
    /// merged (Moore's algorithm).
    ///
    /// # Panics
    /// When there is no state, or an edge leads to none.
    pub fn minimal(edges: &[Vec<(usize, usize)>]) -> Automaton {
        // All states are one class at first; then those are one that have the same letters to the same classes.
        let mut class = vec![0; edges.len()];
        let mut classes = 1;
        loop {
            let mut seen: Vec<Vec<(usize, usize)>> = vec![];
            let finer = edges.iter().map(|state| {
                let kind: Vec<_> = state.iter().map(|&(x, to)| (x, class[to])).collect();
                seen.iter().position(|other| *other == kind).unwrap_or_else(|| {
                    seen.push(kind);
                    seen.len() - 1
                })
            });
            class = finer.collect();
            if seen.len() == classes {
                break;
            }
            classes = seen.len();
        }
        // From the first state on, in the order of letters.
        let (mut order, mut done) = (vec![0], 0);
        let place = |order: &[usize], state: usize| order.iter().position(|&other| class[other] == class[state]);
        while let Some(&state) = order.get(done) {
            for &(_, to) in &edges[state] {
                if place(&order, to).is_none() {
                    order.push(to);
                }
            }
            done += 1;
        }
        let number = |to: usize| place(&order, to).unwrap_or_default();
        let renamed = |&state: &usize| edges[state].iter().map(|&(x, to)| (x, number(to))).collect();
        Automaton { edges: order.iter().map(renamed).collect() }
    }

    /// Whether it is one of the eighth that evaluations have.
    fn is_held_out(&self) -> bool {
        let mut hash = Fnv1a::default();
        for state in &self.edges {
            state.iter().for_each(|&(x, to)| hash.add(&[x as u8, to as u8]));
            hash.add(&[u8::MAX]);
        }
        hash.0 >> 61 == 0
    }
}

impl Icll {
    /// A random automaton of those that are trained on, or of those that are evaluated.
    pub fn draw(&self, rng: &mut Rng) -> Automaton {
        let mut letters: Vec<usize> = (0..self.letters).collect();
        loop {
            let (n, a) = (rng.random_range(LEAST..=self.nodes), rng.random_range(LEAST..=self.letters));
            let (alphabet, _) = letters.partial_shuffle(rng, a);
            let state = |state: usize| {
                let e = rng.random_range(1..=self.edges);
                let mut others: Vec<usize> = (0..n).filter(|&other| other != state).collect();
                let (symbols, _) = alphabet.partial_shuffle(rng, e);
                let (states, _) = others.partial_shuffle(rng, e);
                let mut edges: Vec<(usize, usize)> = symbols.iter().copied().zip(states.iter().copied()).collect();
                edges.sort_unstable();
                edges
            };
            let automaton = Automaton::minimal(&(0..n).map(state).collect::<Vec<_>>());
            if automaton.is_held_out() == self.evaluates {
                return automaton;
            }
        }
    }

    /// The separator, behind the letters.
    fn separator(&self) -> usize {
        self.letters
    }

    /// A sequence: each of the tokens, from the second on after the edges of the state that it was drawn from. There are
    /// no edges where a separator follows.
    fn write(&self, rng: &mut Rng, mut each: impl FnMut(usize, Option<&[(usize, usize)]>) -> bool) {
        let automaton = self.draw(rng);
        loop {
            let mut state = 0;
            for _ in 0..rng.random_range(1..=self.string) {
                let edges = &automaton.edges[state];
                let (letter, to) = edges[rng.random_range(0..edges.len())];
                if !each(letter, Some(edges)) {
                    return;
                }
                state = to;
            }
            if !each(self.separator(), None) {
                return;
            }
        }
    }
}

impl Task for Icll {
    fn name(&self) -> &'static str {
        "icll"
    }

    fn vocab(&self) -> usize {
        self.letters + 1
    }

    fn classes(&self) -> usize {
        self.letters
    }

    fn title(&self) -> String {
        format!("icll, {} states, {} letters", self.nodes, self.letters)
    }

    fn legend(&self) -> String {
        "strings of an unknown automaton: the symbol that follows".into()
    }

    fn token(&self, id: usize) -> String {
        if id == self.separator() { "|".into() } else { char::from(b'a' + id as u8).into() }
    }

    fn class(&self, id: usize) -> String {
        self.token(id)
    }

    fn check(&self) -> Result<(), String> {
        let Icll { letters, nodes, edges, string, .. } = *self;
        if !(LEAST..=MOST_LETTERS).contains(&letters) {
            Err(format!("task.letters {letters}: expected {LEAST} to {MOST_LETTERS}"))
        } else if !(LEAST..=128).contains(&nodes) {
            Err(format!("task.nodes {nodes}: expected {LEAST} to 128 states"))
        } else if !(1..LEAST).contains(&edges) {
            Err(format!("task.edges {edges}: expected 1 to {}, as the least automaton has {LEAST} states", LEAST - 1))
        } else if !(1..=1 << 20).contains(&string) {
            Err(format!("task.string {string}: expected strings of 1 to 2^20 symbols"))
        } else {
            Ok(())
        }
    }

    fn check_len(&self, len: usize) -> Result<(), String> {
        if len > 1 { Ok(()) } else { Err("expected at least 2, as a separator may follow the first symbol".into()) }
    }

    fn to_evaluate(&self) -> Option<Box<dyn Task>> {
        Some(Box::new(Icll { evaluates: true, ..self.clone() }))
    }

    fn fill(&self, rng: &mut Rng, len: usize, tokens: &mut [i32], targets: &mut [i32]) {
        for (x, y) in tokens.chunks_exact_mut(len).zip(targets.chunks_exact_mut(len)) {
            let mut t = 0;
            self.write(rng, |token, edges| {
                if t > 0 {
                    y[t - 1] = if edges.is_some() { token as i32 } else { IGNORE };
                }
                if t < len {
                    x[t] = token as i32;
                }
                t += 1;
                t <= len
            });
        }
    }

    fn truth(&self, rng: &mut Rng, len: Len, batch: usize) -> Option<Vec<f32>> {
        let (classes, lens) = (self.classes(), self.existing(len));
        let mut truth = vec![0.0; batch * len.max * classes];
        for truth in truth.chunks_exact_mut(len.max * classes) {
            let len = if len.is_one() { len.max } else { lens[rng.random_range(0..lens.len())] };
            let mut t = 0;
            self.write(rng, |_, edges| {
                for &(letter, _) in edges.filter(|_| t > 0).into_iter().flatten() {
                    truth[(t - 1) * classes + letter] = 1.0 / edges.map_or(1, <[_]>::len) as f32;
                }
                t += 1;
                t <= len
            });
        }
        Some(truth)
    }

    fn label(&self, tokens: &[i32]) -> Option<Vec<i32>> {
        let follows = tokens.iter().skip(1).map(|&x| if x as usize == self.separator() { IGNORE } else { x });
        Some(follows.chain((!tokens.is_empty()).then_some(IGNORE)).collect())
    }

    fn metrics(&self, counts: &Counts) -> Vec<(&'static str, f64)> {
        vec![(TVD, counts.distance())]
    }
}
