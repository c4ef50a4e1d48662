//! Dyck words: is every bracket opened so far closed again?
//!
//! Tokens are brackets of k types: `0..k` open, `k..2k` close. The target at every position is 1 where the prefix is
//! balanced: each bracket in it has a partner of its own type, and pairs are properly nested. After a closing bracket
//! without a partner every target is 0.
//!
//! A balanced word of maximal depth d is written from left to right: with probability ½ the innermost open bracket
//! is closed, else a new one opens, of a random type; at depth d it must close, at depth 0 open, and when the remaining
//! positions are just enough to close all brackets, they close. Half of the words are then corrupted: everything after
//! a random position whose target is 1 is shuffled, or the whole word if only its last target is 1. As in the published
//! experiment (`swiss-ai/modern_rnns`): about one target in ten is 1, so look at the recall, the mean over both
//! classes.

use super::{Counts, Len, Task};
use crate::rng::Rng;
use rand::{Rng as _, RngExt, seq::SliceRandom};
use serde::{Deserialize, Serialize};

/// The Dyck task.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Dyck {
    /// k: how many types of brackets there are.
    pub types: usize,
    /// d: the most brackets open at once, in a word that is not corrupted.
    pub depth: usize,
}

impl Default for Dyck {
    fn default() -> Dyck {
        Dyck { types: 3, depth: 6 }
    }
}

impl Task for Dyck {
    fn name(&self) -> &'static str {
        "dyck"
    }

    fn vocab(&self) -> usize {
        2 * self.types
    }

    fn classes(&self) -> usize {
        2
    }

    fn title(&self) -> String {
        format!("dyck, {} types, depth {}", self.types, self.depth)
    }

    fn legend(&self) -> String {
        "1: everything opened so far is closed; 0: it is not, or never can be".into()
    }

    fn token(&self, id: usize) -> String {
        let ascii = ["()", "[]", "{}", "<>"];
        let (side, kind) = (id / self.types, id % self.types);
        match ascii.get(kind).filter(|_| self.types <= ascii.len()) {
            Some(pair) => pair[side..=side].into(),
            None => format!("{}{kind}", ["(", ")"][side]),
        }
    }

    fn check(&self) -> Result<(), String> {
        match (self.types, self.depth) {
            (1..=10_000, 1..) => Ok(()),
            (0 | 10_001.., _) => Err(format!("task.types {}: expected 1 to 10000 types of brackets", self.types)),
            _ => Err("task.depth 0: expected at least 1".into()),
        }
    }

    fn check_len(&self, len: usize) -> Result<(), String> {
        if len > 0 && len.is_multiple_of(2) {
            return Ok(());
        }
        Err("expected an even length, as a balanced word has as many closing as opening brackets".into())
    }

    fn grid(&self) -> (usize, usize) {
        (2, 0)
    }

    fn without_effect(&self, lens: &[Len]) -> Vec<(&'static str, String)> {
        let longest = lens.iter().map(|len| len.max).max().unwrap_or(0);
        let most = longest / 2;
        let why = || {
            format!(
                "has no effect: words of at most {longest} brackets have at most {most} open; expected at most {most}"
            )
        };
        (self.depth > most).then(|| ("depth", why())).into_iter().collect()
    }

    fn fill(&self, rng: &mut Rng, len: usize, tokens: &mut [i32], targets: &mut [i32]) {
        let mut open = Vec::with_capacity(len);
        for (x, y) in tokens.chunks_exact_mut(len).zip(targets.chunks_exact_mut(len)) {
            self.write_balanced(rng, &mut open, x);
            self.write_targets(&mut open, x, y);
            if rng.random() {
                corrupt(rng, x, y);
                self.write_targets(&mut open, x, y);
            }
        }
    }

    fn label(&self, tokens: &[i32]) -> Option<Vec<i32>> {
        let mut targets = vec![0; tokens.len()];
        self.write_targets(&mut Vec::new(), tokens, &mut targets);
        Some(targets)
    }

    fn metrics(&self, counts: &Counts) -> Vec<(&'static str, f64)> {
        vec![("precision", counts.precision()), ("recall", counts.recall())]
    }
}

impl Dyck {
    fn write_balanced(&self, rng: &mut Rng, open: &mut Vec<i32>, x: &mut [i32]) {
        let (k, len) = (self.types as i32, x.len());
        let (mut coins, mut left) = (0u64, 0);
        open.clear();
        for (i, x) in x.iter_mut().enumerate() {
            if left == 0 {
                (coins, left) = (rng.next_u64(), 64);
            }
            let coin = coins & 1 == 1;
            (coins, left) = (coins >> 1, left - 1);
            let closes = open.len() == len - i || !open.is_empty() && (open.len() == self.depth || coin);
            *x = match open.pop_if(|_| closes) {
                Some(bracket) => k + bracket,
                None => {
                    let bracket = rng.random_range(0..k);
                    open.push(bracket);
                    bracket
                }
            };
        }
    }

    /// The targets of any sequence of brackets.
    fn write_targets(&self, open: &mut Vec<i32>, x: &[i32], y: &mut [i32]) {
        let k = self.types as i32;
        open.clear();
        y.fill(0);
        for (&x, y) in x.iter().zip(y) {
            if x < k {
                open.push(x);
            } else if open.pop() != Some(x - k) {
                return;
            }
            *y = i32::from(open.is_empty());
        }
    }
}

/// Shuffle everything after a random balanced position, which is not the last one.
fn corrupt(rng: &mut Rng, x: &mut [i32], y: &[i32]) {
    let inner = &y[..y.len() - 1];
    let balanced = inner.iter().filter(|&&y| y == 1).count();
    let start = if balanced == 0 {
        0
    } else {
        let chosen = rng.random_range(0..balanced);
        let mut at = inner.iter().enumerate().filter(|(_, y)| **y == 1).map(|(i, _)| i + 1);
        at.nth(chosen).expect("chosen is below their count")
    };
    x[start..].shuffle(rng);
}
