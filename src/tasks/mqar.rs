//! Multi-query associative recall (MQAR): pairs of a key and a value, then keys again, each to be answered with its
//! value.
//!
//! Zoology's layout (Arora et al. 2023, arXiv 2312.04927; vocabulary V, length L, m pairs):
//!
//! ```text
//! k₁ v₁ k₂ v₂ .. k_m v_m 0 0 k₂ 0 k₁ ..     distinct keys of 1..V/2, distinct values of V/2..V
//!                            v₂   v₁        the only targets, each at its key
//! ```
//!
//! Key i comes again at position 2m + 2gᵢ, where the gaps gᵢ are drawn without replacement with p(g) ∝ (g + 1)^(a−1),
//! a = 0.01: mostly soon, sometimes late.
//!
//! The published layout (`swiss-ai/modern_rnns`) is single-query recall, with a separator:
//!
//! ```text
//! k₁ | v₁ k₂ | v₂ .. k_m | v_m q |          keys of 1..=keys, values of 1..=values, with the same ids
//!                                           (or, without `shared_ids`, after the keys' ids)
//!                                v          the only target, at the last position
//! ```
//!
//! or, with `all_queries`, all m keys in random order at the end, each with a separator and a target.
//!
//! With `repeat` the pairs come so many times, in the same order, before the queries ('Just read twice', Arora et al.
//! 2024, arXiv 2407.05483, its JRT-Prompt): a model of fixed state may choose what to keep at the second reading.

use super::{IGNORE, Len, Task};
use crate::rng::Rng;
use rand::{RngExt, seq::SliceRandom};
use serde::{Deserialize, Serialize};

/// Zoology's exponent of the gaps: p(g) ∝ (g + 1)^(a−1).
const POWER_A: f64 = 0.01;

/// How many keys and values there may be in the published layout, whose vocabulary has three tokens more.
const MOST_IDS: usize = (1 << 24) - 3;

/// The layout of pairs and queries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Layout {
    /// Many queries at power-law gaps.
    #[default]
    Zoology,
    /// `k | v` and one query at the end.
    Published,
}

/// The MQAR task. Each layout has its own options and ignores the other's.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Mqar {
    /// The layout of pairs and queries.
    pub layout: Layout,
    /// Zoology: V, half of it keys, half of it values.
    pub vocab: usize,
    /// Zoology: m, the number of pairs; if absent, a sixteenth of the length, rounded down, and at least 1. (In the
    /// published layout the length determines it.)
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pairs: Option<usize>,
    /// Zoology: write random tokens instead of 0 between pairs and queries.
    pub random_non_queries: bool,
    /// How many times the pairs are read, one after another, before the queries.
    #[serde(skip_serializing_if = "is_once")]
    pub repeat: usize,
    /// Published: how many different keys there are (that code's `n_keys` is one more).
    pub keys: usize,
    /// Published: how many different values there are (that code's `n_values` is one more).
    pub values: usize,
    /// Published: whether the keys of a sequence are distinct; if not, a key's last value is the answer.
    pub unique_keys: bool,
    /// Published: whether key 1 and value 1 are the same token; else values have ids of their own, after the keys'.
    pub shared_ids: bool,
    /// Published: whether every key is queried.
    pub all_queries: bool,
}

/// Whether pairs are read once, the default, which a file need not have.
fn is_once(repeat: &usize) -> bool {
    *repeat == 1
}

impl Default for Mqar {
    fn default() -> Mqar {
        Mqar {
            layout: Layout::Zoology,
            vocab: 8192,
            pairs: None,
            random_non_queries: false,
            repeat: 1,
            keys: 8,
            values: 8,
            unique_keys: true,
            shared_ids: true,
            all_queries: false,
        }
    }
}

impl Task for Mqar {
    fn name(&self) -> &'static str {
        "mqar"
    }

    fn vocab(&self) -> usize {
        match self.layout {
            Layout::Zoology => self.vocab,
            Layout::Published => self.separator() as usize + 1,
        }
    }

    fn classes(&self) -> usize {
        match self.layout {
            Layout::Zoology => self.vocab,
            Layout::Published => self.values + 2,
        }
    }

    fn title(&self) -> String {
        let title = match (self.layout, self.pairs) {
            (Layout::Zoology, None) => format!("mqar, vocabulary {}", self.vocab),
            (Layout::Zoology, Some(m)) => format!("mqar, vocabulary {}, {m} pairs", self.vocab),
            (Layout::Published, _) => {
                let queries = if self.all_queries { "all queries" } else { "one query" };
                format!("mqar as published, {} keys, {} values, {queries}", self.keys, self.values)
            }
        };
        if self.repeat == 1 { title } else { format!("{title}, read {} times", self.repeat) }
    }

    fn legend(&self) -> String {
        match self.layout {
            Layout::Zoology => "pairs of key and value, then keys again: which value was theirs?",
            Layout::Published => "key | value, then keys again: which value was theirs?",
        }
        .into()
    }

    fn token(&self, id: usize) -> String {
        if self.layout == Layout::Published && id as i32 == self.separator() { "|".into() } else { id.to_string() }
    }

    fn check(&self) -> Result<(), String> {
        match self.layout {
            _ if !(1..=64).contains(&self.repeat) => Err(format!("task.repeat {}: expected 1 to 64", self.repeat)),
            Layout::Zoology if !(4..=1 << 24).contains(&self.vocab) || self.vocab % 2 == 1 => {
                Err(format!("task.vocab {}: expected an even number from 4 to 2^24", self.vocab))
            }
            Layout::Zoology if self.pairs == Some(0) => Err("task.pairs 0: expected at least 1".into()),
            Layout::Published => match (self.pairs, self.keys, self.values) {
                (Some(m), ..) => Err(format!(
                    "task.pairs {m}: in the published layout their number follows from the length; leave it out"
                )),
                (_, keys, _) if !(1..=MOST_IDS).contains(&keys) => {
                    Err(format!("task.keys {keys}: expected 1 to {MOST_IDS}"))
                }
                (.., values) if !(1..=MOST_IDS).contains(&values) => {
                    Err(format!("task.values {values}: expected 1 to {MOST_IDS}"))
                }
                (_, keys, values) if self.ids() > MOST_IDS => Err(format!(
                    "task.keys {keys} and task.values {values}: with ids of their own, expected {MOST_IDS} at most together"
                )),
                _ => Ok(()),
            },
            Layout::Zoology => Ok(()),
        }
    }

    fn check_len(&self, len: usize) -> Result<(), String> {
        match self.layout {
            Layout::Zoology => self.check_zoology(len),
            Layout::Published => self.check_published(len),
        }
    }

    fn check_lens(&self, len: Len) -> Result<(), String> {
        let named = |t: usize| move |why| if len.is_one() { why } else { format!("length {t}: {why}") };
        // Where the number of pairs follows from the length, a length between two that exist may have too many.
        let Some((shortest, longest)) = self.ends(len) else { return self.check_len(len.max).map_err(named(len.max)) };
        self.check_len(longest).map_err(named(longest))?;
        (shortest..longest).step_by(self.grid().0).try_for_each(|t| self.check_len(t).map_err(named(t)))
    }

    fn grid(&self) -> (usize, usize) {
        match self.layout {
            Layout::Zoology => (2, 0),
            Layout::Published if self.all_queries => (3 * self.repeat + 2, 0),
            Layout::Published => (3 * self.repeat, 2),
        }
    }

    fn without_effect(&self, _: &[Len]) -> Vec<(&'static str, String)> {
        let (others, here, there) = match self.layout {
            Layout::Zoology => {
                (&["keys", "values", "unique_keys", "shared_ids", "all_queries"][..], "zoology", "published")
            }
            Layout::Published => (&["vocab", "random_non_queries"][..], "published", "zoology"),
        };
        let why = format!("has no effect: it belongs to layout \"{there}\", and this is \"{here}\"");
        let one = self.layout == Layout::Published && self.values == 1;
        let one = one.then(|| ("values", "leaves nothing to learn: every answer is the same".to_string()));
        others.iter().map(|&key| (key, why.clone())).chain(one).collect()
    }

    fn fill(&self, rng: &mut Rng, len: usize, tokens: &mut [i32], targets: &mut [i32]) {
        match self.layout {
            Layout::Zoology => self.fill_zoology(rng, len, tokens, targets),
            Layout::Published => self.fill_published(rng, len, tokens, targets),
        }
    }
}

impl Mqar {
    /// The published id: max(n_keys, n_values) + 1, with that code's counts.
    fn separator(&self) -> i32 {
        // Saturating: vocabularies are asked for before `check` refuses a number that is too large.
        i32::try_from(self.ids()).unwrap_or(i32::MAX).saturating_add(2)
    }

    /// Published: how many tokens are keys or values.
    fn ids(&self) -> usize {
        if self.shared_ids { self.keys.max(self.values) } else { self.keys.saturating_add(self.values) }
    }

    /// The token of a value, 1..=values, in the published layout.
    fn value_token(&self, value: i32) -> i32 {
        if self.shared_ids { value } else { self.keys as i32 + value }
    }

    fn pairs_at(&self, len: usize) -> usize {
        match self.layout {
            Layout::Zoology => self.pairs.unwrap_or((len / 16).max(1)),
            Layout::Published if self.all_queries => len / (3 * self.repeat + 2),
            Layout::Published => len.saturating_sub(2) / (3 * self.repeat),
        }
    }

    fn check_zoology(&self, len: usize) -> Result<(), String> {
        let m = self.pairs_at(len);
        let (room, readings) = (self.vocab / 2 - 1, self.repeat);
        if len % 2 == 1 {
            Err("expected an even length".into())
        } else if m > len / (2 * readings + 2) {
            let (least, read) = (m.saturating_mul(2 * readings + 2), if readings == 1 { "" } else { " read again" });
            // Longer sequences have more pairs, where their number follows from the length.
            let or = if self.pairs.is_none() && readings > 1 { "; give task.pairs, or repeat fewer times" } else { "" };
            Err(format!("{m} pairs{read} and {m} queries with gaps need a length of at least {least}{or}"))
        } else if m > room {
            Err(format!("{m} pairs need {m} different keys, and a vocabulary of {} has {room}", self.vocab))
        } else {
            Ok(())
        }
    }

    fn check_published(&self, len: usize) -> Result<(), String> {
        let m = self.pairs_at(len);
        let (step, rest) = self.grid();
        let lens = || (1..4).map(|m| (m * step + rest).to_string()).collect::<Vec<_>>().join(", ");
        if m == 0 || len % step != rest % step {
            let what = if self.all_queries { "with all queries" } else { "and a query" };
            let more = if rest > 0 { format!(" + {rest}") } else { String::new() };
            Err(format!("m pairs {what} are {step} m{more} tokens: expected {}, ..", lens()))
        } else if self.unique_keys && m > self.keys {
            Err(format!("its {m} pairs need {m} different keys, and there are {}; allow repeated keys", self.keys))
        } else {
            Ok(())
        }
    }

    fn fill_zoology(&self, rng: &mut Rng, len: usize, tokens: &mut [i32], targets: &mut [i32]) {
        let (half, m) = (self.vocab as i32 / 2, self.pairs_at(len));
        let read = 2 * m * self.repeat;
        let gaps = power_law((len - read) / 2);
        let mut keys = Distinct::new(half as usize - 1);
        let mut values = Distinct::new(half as usize);
        let mut places = Distinct::new(gaps.len());
        for (x, y) in tokens.chunks_exact_mut(len).zip(targets.chunks_exact_mut(len)) {
            keys.begin();
            values.begin();
            places.begin();
            x.fill(0);
            y.fill(IGNORE);
            for i in 0..m {
                let k = 1 + keys.draw(|n| rng.random_range(0..n)) as i32;
                let v = half + values.draw(|n| rng.random_range(0..n)) as i32;
                let gap = places.draw(|_| {
                    let u: f64 = rng.random();
                    gaps.partition_point(|&p| p <= u)
                });
                (x[2 * i], x[2 * i + 1]) = (k, v);
                (x[read + 2 * gap], y[read + 2 * gap]) = (k, v);
            }
            read_again(x, 2 * m, self.repeat);
            if self.random_non_queries {
                x.iter_mut().filter(|x| **x == 0).for_each(|x| *x = rng.random_range(0..2 * half));
            }
        }
    }

    fn fill_published(&self, rng: &mut Rng, len: usize, tokens: &mut [i32], targets: &mut [i32]) {
        let (m, separator) = (self.pairs_at(len), self.separator());
        let read = 3 * m * self.repeat;
        let mut keys = Distinct::new(self.keys);
        // The last value of each key.
        let mut value_of = vec![0; self.keys];
        let mut asked: Vec<usize> = vec![0; m];
        for (x, y) in tokens.chunks_exact_mut(len).zip(targets.chunks_exact_mut(len)) {
            keys.begin();
            y.fill(IGNORE);
            let (pairs, queries) = x.split_at_mut(read);
            for (triple, asked) in pairs[..3 * m].chunks_exact_mut(3).zip(&mut asked) {
                let mut any = |n| rng.random_range(0..n);
                let key = if self.unique_keys { keys.draw(&mut any) } else { any(self.keys) };
                let value = 1 + any(self.values) as i32;
                triple.copy_from_slice(&[1 + key as i32, separator, self.value_token(value)]);
                (value_of[key], *asked) = (value, key);
            }
            read_again(pairs, 3 * m, self.repeat);
            if self.all_queries {
                asked.shuffle(rng);
            } else {
                asked.swap(0, rng.random_range(0..m));
            }
            for ((query, y), &key) in queries.chunks_exact_mut(2).zip(y[read..].chunks_exact_mut(2)).zip(&asked) {
                query.copy_from_slice(&[1 + key as i32, separator]);
                y[1] = value_of[key];
            }
        }
    }
}

/// The first n tokens, so many times.
fn read_again(x: &mut [i32], n: usize, times: usize) {
    (1..times).for_each(|i| x.copy_within(..n, i * n));
}

/// The cumulative distribution of p(g) ∝ (g + 1)^(a−1), g < space; its last element is 1.
fn power_law(space: usize) -> Vec<f64> {
    let mut sum = 0.0;
    let mut cumulated: Vec<f64> = (0..space)
        .map(|g| {
            sum += ((g + 1) as f64).powf(POWER_A - 1.0);
            sum
        })
        .collect();
    cumulated.iter_mut().for_each(|p| *p /= sum);
    cumulated
}

/// Draws from `0..n` without replacement: a repeated number is drawn again.
struct Distinct {
    /// The round in which each number was last drawn.
    drawn: Vec<u32>,
    round: u32,
}

impl Distinct {
    fn new(n: usize) -> Distinct {
        Distinct { drawn: vec![0; n], round: 0 }
    }

    fn begin(&mut self) {
        self.round += 1;
    }

    fn draw(&mut self, mut any: impl FnMut(usize) -> usize) -> usize {
        loop {
            let i = any(self.drawn.len());
            if self.drawn[i] != self.round {
                self.drawn[i] = self.round;
                return i;
            }
        }
    }
}
