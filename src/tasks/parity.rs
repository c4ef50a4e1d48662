//! Bit parity: is the number of ones so far even?
//!
//! Tokens are bits, xₜ ~ Bernoulli(½), and the target at every position is yₜ = 1 ⊕ x₁ ⊕ … ⊕ xₜ. In *controlled*
//! parity each sequence has exactly `num_ones` ones, at random positions.
//!
//! Class 1 means "even", as in the published experiment (`swiss-ai/modern_rnns`).

use super::{Len, Task};
use crate::rng::Rng;
use rand::{Rng as _, RngExt};
use serde::{Deserialize, Serialize};

/// The parity task, plain or controlled.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Parity {
    /// The number of ones in each sequence; if absent, each bit is a fair coin.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub num_ones: Option<usize>,
}

impl Task for Parity {
    fn name(&self) -> &'static str {
        "parity"
    }

    fn vocab(&self) -> usize {
        2
    }

    fn classes(&self) -> usize {
        2
    }

    fn title(&self) -> String {
        self.num_ones.map_or("parity".into(), |n| format!("parity with {n} ones"))
    }

    fn legend(&self) -> String {
        "1 where the number of ones so far is even, 0 where it is odd".into()
    }

    fn check_len(&self, len: usize) -> Result<(), String> {
        match self.num_ones.filter(|&n| n > len) {
            Some(n) => Err(format!(
                "task.num_ones {n} (--num-ones): more ones than places; expected at most {len} ones, or lengths of at least {n}"
            )),
            None => Ok(()),
        }
    }

    fn without_effect(&self, lens: &[Len]) -> Vec<(&'static str, String)> {
        let only = match self.num_ones {
            Some(0) => "zeros",
            Some(n) if lens.first() == Some(&n.into()) => "ones",
            _ => return Vec::new(),
        };
        vec![("num_ones", format!("leaves nothing to learn: all sequences in training are {only} alone"))]
    }

    fn fill(&self, rng: &mut Rng, len: usize, tokens: &mut [i32], targets: &mut [i32]) {
        for (x, y) in tokens.chunks_exact_mut(len).zip(targets.chunks_exact_mut(len)) {
            match self.num_ones {
                None => fair_bits(rng, x),
                Some(n) => ones_at_random(rng, n.min(len), x),
            }
            y.iter_mut().zip(evenness(x)).for_each(|(y, even)| *y = even);
        }
    }

    fn label(&self, tokens: &[i32]) -> Option<Vec<i32>> {
        Some(evenness(tokens).collect())
    }
}

/// 1 where the number of ones so far is even.
fn evenness(x: &[i32]) -> impl Iterator<Item = i32> {
    x.iter().scan(1, |even, &x| {
        *even ^= x;
        Some(*even)
    })
}

/// Fair bits, 64 from each draw.
fn fair_bits(rng: &mut Rng, x: &mut [i32]) {
    for x in x.chunks_mut(64) {
        let word = rng.next_u64();
        for (i, x) in x.iter_mut().enumerate() {
            *x = (word >> i & 1) as i32;
        }
    }
}

/// `n` ones among zeros, every choice of positions equally likely (R. W. Floyd, CACM 30(9), 1987).
fn ones_at_random(rng: &mut Rng, n: usize, x: &mut [i32]) {
    x.fill(0);
    for last in x.len() - n..x.len() {
        let i = rng.random_range(0..=last);
        x[if x[i] == 0 { i } else { last }] = 1;
    }
}
