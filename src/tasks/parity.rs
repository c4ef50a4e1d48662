//! Bit parity: is the number of ones so far even? And counting: what is that number modulo m?
//!
//! Tokens are bits, xₜ ~ Bernoulli(½), and the target at every position is yₜ = 1 ⊕ x₁ ⊕ … ⊕ xₜ. In *controlled*
//! parity each sequence has exactly `num_ones` ones, at random positions. With a `modulus` m other than 2 the target is
//! yₜ = (x₁ + … + xₜ) mod m, of the same bits.
//!
//! Class 1 means "even", as in the published experiment (`swiss-ai/modern_rnns`): with m = 2 classes are shifted by one.

use super::{Len, Task};
use crate::rng::Rng;
use rand::{Rng as _, RngExt};
use serde::{Deserialize, Serialize};

/// The parity task, plain or controlled.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Parity {
    /// The number of ones in each sequence; if absent, each bit is a fair coin.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub num_ones: Option<usize>,
    /// m: the ones are counted modulo this number.
    #[serde(skip_serializing_if = "is_parity")]
    pub modulus: usize,
}

/// Whether the count is modulo 2, the default, which a file need not have.
fn is_parity(modulus: &usize) -> bool {
    *modulus == 2
}

impl Default for Parity {
    fn default() -> Parity {
        Parity { num_ones: None, modulus: 2 }
    }
}

/// The largest modulus: as many classes are about as many as a model should have.
const MOST: usize = 1024;

impl Task for Parity {
    fn name(&self) -> &'static str {
        "parity"
    }

    fn vocab(&self) -> usize {
        2
    }

    fn classes(&self) -> usize {
        self.modulus
    }

    fn title(&self) -> String {
        let what = if self.modulus == 2 { "parity".into() } else { format!("counting modulo {}", self.modulus) };
        self.num_ones.map_or(what.clone(), |n| format!("{what} with {n} ones"))
    }

    fn legend(&self) -> String {
        match self.modulus {
            2 => "1 where the number of ones so far is even, 0 where it is odd".into(),
            m => format!("the number of ones so far, modulo {m}"),
        }
    }

    fn check(&self) -> Result<(), String> {
        if (2..=MOST).contains(&self.modulus) {
            return Ok(());
        }
        Err(format!("task.modulus {}: expected 2 to {MOST}", self.modulus))
    }

    fn check_len(&self, len: usize) -> Result<(), String> {
        match self.num_ones.filter(|&n| n > len) {
            Some(n) => Err(format!(
                "task.num_ones {n}: more ones than places; expected at most {len} ones, or lengths of at least {n}"
            )),
            None => Ok(()),
        }
    }

    fn without_effect(&self, lens: &[Len]) -> Vec<(&'static str, String)> {
        let only = match self.num_ones {
            Some(0) => Some("zeros"),
            Some(n) if lens.first() == Some(&n.into()) => Some("ones"),
            _ => None,
        };
        let only =
            only.map(|it| ("num_ones", format!("leaves nothing to learn: all sequences in training are {it} alone")));
        let longest = lens.first().map_or(0, |len| len.max);
        let most = self.num_ones.map_or(longest, |n| n.min(longest));
        let never = (self.modulus > most)
            .then(|| ("modulus", format!("is never reached in training: {longest} bits have at most {most} ones")));
        only.into_iter().chain(never).collect()
    }

    fn fill(&self, rng: &mut Rng, len: usize, tokens: &mut [i32], targets: &mut [i32]) {
        for (x, y) in tokens.chunks_exact_mut(len).zip(targets.chunks_exact_mut(len)) {
            match self.num_ones {
                None => fair_bits(rng, x),
                Some(n) => ones_at_random(rng, n.min(len), x),
            }
            y.iter_mut().zip(self.counts(x)).for_each(|(y, count)| *y = count);
        }
    }

    fn label(&self, tokens: &[i32]) -> Option<Vec<i32>> {
        Some(self.counts(tokens).collect())
    }
}

impl Parity {
    /// The number of ones so far modulo m; for m = 2 one more, which is 1 where it is even.
    fn counts(&self, x: &[i32]) -> impl Iterator<Item = i32> {
        let m = self.modulus as i32;
        x.iter().scan(i32::from(m == 2), move |count, &x| {
            *count = (*count + x) % m;
            Some(*count)
        })
    }
}

/// Fair bits, 64 from each draw.
pub(super) fn fair_bits(rng: &mut Rng, x: &mut [i32]) {
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
