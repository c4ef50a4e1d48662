//! Set disjointness: do two sets share an element? (Arora et al. 2024, 'Just read twice', arXiv 2407.05483, theorem on
//! general associative recall.)
//!
//! ```text
//! a₁ a₂ .. a_m | b₁ b₂ .. b_n ?             distinct elements of 0..V in each set; '|' is V, '?' is V + 1
//!                             1             the only target: 1 if no b is an a, 0 if exactly one is, as often as not
//! ```
//!
//! Read once, whatever comes first must be kept: m elements are enough if the smaller set is first, and all n of the
//! larger are needed if it is. With `repeat` both sets come so many times, each reading with its '?', and only the last
//! is asked for: whoever keeps the smaller set at the first reading can compare the larger one with it at the second,
//! in any order.

use super::{IGNORE, Len, Task};
use crate::rng::Rng;
use rand::{RngExt, seq::SliceRandom};
use serde::{Deserialize, Serialize};

/// Which set is written first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum First {
    /// The smaller.
    Small,
    /// The larger.
    Large,
    /// Each as often as the other.
    #[default]
    Either,
}

/// The task of two sets.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Disjoint {
    /// V: how many different elements there are.
    pub elements: usize,
    /// m, the size of the smaller set; the length of a sequence decides the other's.
    pub small: usize,
    /// Which set comes first.
    pub first: First,
    /// How many times both are read.
    pub repeat: usize,
}

impl Default for Disjoint {
    fn default() -> Disjoint {
        Disjoint { elements: 64, small: 4, first: First::Either, repeat: 1 }
    }
}

impl Task for Disjoint {
    fn name(&self) -> &'static str {
        "disjoint"
    }

    fn vocab(&self) -> usize {
        self.elements + 2
    }

    fn classes(&self) -> usize {
        2
    }

    fn title(&self) -> String {
        let Disjoint { elements, small, repeat, .. } = *self;
        let first = match self.first {
            First::Small => ", small first",
            First::Large => ", large first",
            First::Either => "",
        };
        let again = if repeat == 1 { String::new() } else { format!(", read {repeat} times") };
        format!("disjoint, {small} of {elements}{first}{again}")
    }

    fn legend(&self) -> String {
        "two sets: 1 if they share no element, 0 if they share one".into()
    }

    fn token(&self, id: usize) -> String {
        match id - id.min(self.elements) {
            _ if id < self.elements => id.to_string(),
            0 => "|".into(),
            _ => "?".into(),
        }
    }

    fn check(&self) -> Result<(), String> {
        let Disjoint { elements, small, repeat, .. } = *self;
        if !(1..=64).contains(&repeat) {
            Err(format!("task.repeat {repeat}: expected 1 to 64"))
        } else if !(2..=1 << 20).contains(&elements) {
            Err(format!("task.elements {elements}: expected 2 to 2^20"))
        } else if small == 0 || 2 * small > elements {
            Err(format!("task.small {small}: expected 1 to {}, half of the {elements} elements", elements / 2))
        } else {
            Ok(())
        }
    }

    fn check_len(&self, len: usize) -> Result<(), String> {
        let Disjoint { elements, small, repeat, .. } = *self;
        let (shortest, longest) = (repeat * (2 * small + 2), repeat * (elements + 2));
        if !len.is_multiple_of(repeat) {
            Err(format!("read {repeat} times: expected a multiple of {repeat}, {shortest} at least"))
        } else if len < shortest {
            Err(format!("two sets of at least {small} elements need a length of at least {shortest}"))
        } else if len > longest {
            Err(format!("{elements} different elements make a length of at most {longest}"))
        } else {
            Ok(())
        }
    }

    fn grid(&self) -> (usize, usize) {
        (self.repeat, 0)
    }

    fn without_effect(&self, lens: &[Len]) -> Vec<(&'static str, String)> {
        let equal = self.repeat * (2 * self.small + 2);
        let equal =
            lens.iter().all(|len| len.max == equal).then(|| "has no effect: both sets have one size".to_string());
        equal.into_iter().map(|why| ("first", why)).collect()
    }

    fn fill(&self, rng: &mut Rng, len: usize, tokens: &mut [i32], targets: &mut [i32]) {
        let (once, m) = (len / self.repeat, self.small);
        let n = once - 2 - m;
        let mut elements: Vec<i32> = (0..self.elements as i32).collect();
        for (x, y) in tokens.chunks_exact_mut(len).zip(targets.chunks_exact_mut(len)) {
            // The first m + n are drawn; an element that both share takes the place of one of the second set.
            let (drawn, _) = elements.partial_shuffle(rng, m + n);
            let first = match self.first {
                First::Small => m,
                First::Large => n,
                First::Either => {
                    if rng.random() {
                        m
                    } else {
                        n
                    }
                }
            };
            x[..first].copy_from_slice(&drawn[..first]);
            x[first] = self.elements as i32;
            x[first + 1..once - 1].copy_from_slice(&drawn[first..]);
            x[once - 1] = self.elements as i32 + 1;
            let disjoint: bool = rng.random();
            if !disjoint {
                let at = first + 1 + rng.random_range(0..m + n - first);
                x[at] = x[rng.random_range(0..first)];
            }
            (1..self.repeat).for_each(|i| x.copy_within(..once, i * once));
            y.fill(IGNORE);
            y[len - 1] = i32::from(disjoint);
        }
    }
}
