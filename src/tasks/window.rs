//! Windowed parity and delayed match: a question about the last N bits, at every position (Khajehabdollahi et al. 2023,
//! arXiv 2309.12927, N-parity and N-DMS).
//!
//! ```text
//! bits     x₁ x₂ .. x_N .. x_T
//! parity            y_N .. y_T        y_t = x_{t−N+1} ⊕ .. ⊕ x_t
//! match             y_N .. y_T        y_t = 1 if x_{t−N+1} = x_t, else 0
//! ```
//!
//! Parity over all bits so far needs one bit of state; these need the N − 1 bits before the present one: 2^(N−1) states, or
//! 2^N where the answer is read from the state alone.
//!
//! The paper has sequences of N_max + 2 to 4 N_max + 1 bits, one length a batch, and asks once, at the end. It asks about
//! several N at once, by a linear head of two classes for each. Here each position has one target, so it asks about one
//! N: `asked` windows, the largest of N bits, are asked about at random, and the token says which. Token 2 i + x is the
//! bit x and the question about the i-th window, class 2 i + y is the answer y to it: two rows of the output weights are
//! the head of one window, as in the paper. But this model can also answer for another window, which the paper's heads
//! cannot. The loss is the mean over the windows asked about, the paper's their sum. A position before the
//! N-th has no target.
//!
//! A curriculum ([`Stages`]) begins with `grow_from` bits and adds one every `grow_every` steps, if accuracy on new
//! sequences, over all windows asked about and at the largest, is above `grow_at` (the paper's 98 %; 0: whatever it is).
//! With `asked = 1` it is the paper's single head, with `asked = 0` (all windows so far) the cumulative curriculum, with
//! w the sliding window of w heads; without `grow_from` there is none. An evaluation is of the last stage.

use super::{Counts, IGNORE, Len, Stages, Task};
use crate::rng::Rng;
use rand::RngExt;
use serde::{Deserialize, Serialize};
use std::{ops::RangeInclusive, sync::Arc};

/// The largest window.
const MOST: usize = 512;

/// The smallest: of one bit the parity is that bit, and it matches itself.
const LEAST: usize = 2;

/// The question about the last N bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Question {
    /// Whether the number of ones among them is odd.
    #[default]
    Parity,
    /// Whether the first of them is the last.
    Match,
}

/// The task of a window.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Window {
    /// The question.
    pub question: Question,
    /// N: how many bits it is asked about.
    pub window: usize,
    /// About how many windows it is asked, of N, N − 1, .. bits; 0: all, down to `grow_from` or to two bits.
    pub asked: usize,
    /// Whether each sequence draws its probability of a one, uniform from 0 to 1, as the paper has it for parity; else
    /// all bits are fair coins.
    pub uneven: bool,
    /// N of the first stage of a curriculum; none if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grow_from: Option<usize>,
    /// Steps after which N may grow by one.
    pub grow_every: usize,
    /// The accuracy that it takes to grow; 0: none.
    pub grow_at: f64,
    /// The largest window of this stage of the curriculum, if it is not `window`.
    #[serde(skip)]
    pub grown_to: Option<usize>,
}

impl Default for Window {
    fn default() -> Window {
        Window {
            question: Question::Parity,
            window: 5,
            asked: 1,
            uneven: false,
            grow_from: None,
            grow_every: 100,
            grow_at: 0.98,
            grown_to: None,
        }
    }
}

impl Window {
    /// The largest window that is asked about now.
    fn largest(&self) -> usize {
        self.grown_to.unwrap_or(self.window)
    }

    /// The windows that are asked about when the largest has n bits.
    fn asks(&self, n: usize) -> RangeInclusive<usize> {
        let least = self.grow_from.unwrap_or(LEAST);
        let from = if self.asked == 0 { least } else { (n + 1).saturating_sub(self.asked).max(least) };
        from..=n
    }

    /// The smallest window that is ever asked about, and how many sizes there are: one with a single head.
    fn heads(&self) -> (usize, usize) {
        let least = *self.asks(self.grow_from.unwrap_or(self.window)).start();
        // Vocabularies are asked for before `check` refuses a first window that is larger than the last.
        if self.asked == 1 { (self.window, 1) } else { (least, (self.window + 1).saturating_sub(least)) }
    }

    /// Tokens and targets of a sequence.
    fn write(&self, rng: &mut Rng, x: &mut [i32], y: &mut [i32]) {
        let (least, heads) = self.heads();
        if self.uneven {
            let ones: f64 = rng.random();
            x.fill_with(|| i32::from(rng.random_bool(ones)));
        } else {
            super::parity::fair_bits(rng, x);
        }
        if heads > 1 {
            let asks = self.asks(self.largest());
            x.iter_mut().for_each(|x| *x += 2 * (rng.random_range(asks.clone()) - least) as i32);
        }
        self.answer(x, y);
    }

    /// The targets of any tokens.
    fn answer(&self, x: &[i32], y: &mut [i32]) {
        let (least, heads) = self.heads();
        let bit = |x: i32| x & 1;
        // Whether the number of ones before each position is odd, and of all.
        let mut odd = vec![0; x.len() + 1];
        (0..x.len()).for_each(|t| odd[t + 1] = odd[t] ^ bit(x[t]));
        for (t, (&token, y)) in x.iter().zip(y).enumerate() {
            let head = token / 2;
            let n = if heads > 1 { least + head as usize } else { self.largest() };
            *y = match (t + 1).checked_sub(n) {
                None => IGNORE,
                Some(start) => {
                    let answer = match self.question {
                        Question::Parity => odd[start] ^ odd[t + 1],
                        Question::Match => i32::from(bit(x[start]) == bit(token)),
                    };
                    2 * head + answer
                }
            };
        }
    }
}

impl Task for Window {
    fn name(&self) -> &'static str {
        "window"
    }

    fn vocab(&self) -> usize {
        2 * self.heads().1
    }

    fn classes(&self) -> usize {
        self.vocab()
    }

    fn title(&self) -> String {
        let what = match self.question {
            Question::Parity => "parity",
            Question::Match => "match",
        };
        let (n, least) = (self.window, *self.asks(self.window).start());
        let bits = if self.heads().1 == 1 { n.to_string() } else { format!("{least}-{n}") };
        let grown = self.grow_from.map_or(String::new(), |from| format!(", grown from {from}"));
        format!("window {what}, {bits} bits{grown}")
    }

    fn legend(&self) -> String {
        let yes = match self.question {
            Question::Parity => "the number of ones among them is odd",
            Question::Match => "the first of them is the last",
        };
        match self.heads().1 {
            1 => format!("of the last {} bits: 1 where {yes}, else 0", self.window),
            _ => format!("bit?N asks about the last N bits, N:1 says {yes}"),
        }
    }

    fn token(&self, id: usize) -> String {
        let (least, heads) = self.heads();
        if heads == 1 { id.to_string() } else { format!("{}?{}", id % 2, least + id / 2) }
    }

    fn class(&self, id: usize) -> String {
        let (least, heads) = self.heads();
        if heads == 1 { id.to_string() } else { format!("{}:{}", least + id / 2, id % 2) }
    }

    fn check(&self) -> Result<(), String> {
        let Window { window, asked, grow_from, grow_every, grow_at, .. } = *self;
        let least = grow_from.unwrap_or(LEAST);
        if !(LEAST..=MOST).contains(&window) {
            Err(format!("task.window {window}: expected {LEAST} to {MOST} bits"))
        } else if !(LEAST..=window).contains(&least) {
            Err(format!("task.grow_from {least}: expected {LEAST} to the {window} bits of task.window"))
        } else if asked > window + 1 - least {
            let most = window + 1 - least;
            Err(format!(
                "task.asked {asked}: there are windows of {least} to {window} bits; expected at most {most}, or 0 for all"
            ))
        } else if grow_every == 0 {
            Err("task.grow_every 0: expected at least 1 step".into())
        } else if !(0.0..1.0).contains(&grow_at) {
            Err(format!("task.grow_at {grow_at}: expected an accuracy from 0 to below 1"))
        } else {
            Ok(())
        }
    }

    fn check_len(&self, len: usize) -> Result<(), String> {
        let n = self.largest();
        if len >= n { Ok(()) } else { Err(format!("a window of {n} bits needs a length of at least {n}")) }
    }

    fn without_effect(&self, _: &[Len]) -> Vec<(&'static str, String)> {
        let none = "has no effect without grow_from: the window does not grow".to_string();
        match self.grow_from {
            None => vec![("grow_every", none.clone()), ("grow_at", none)],
            Some(n) if n == self.window => {
                let why = format!("has no effect: the window has {n} bits from the start");
                ["grow_from", "grow_every", "grow_at"].map(|key| (key, why.clone())).into()
            }
            Some(_) => vec![],
        }
    }

    fn fill(&self, rng: &mut Rng, len: usize, tokens: &mut [i32], targets: &mut [i32]) {
        for (x, y) in tokens.chunks_exact_mut(len).zip(targets.chunks_exact_mut(len)) {
            self.write(rng, x, y);
        }
    }

    fn label(&self, tokens: &[i32]) -> Option<Vec<i32>> {
        let mut targets = vec![IGNORE; tokens.len()];
        self.answer(tokens, &mut targets);
        Some(targets)
    }

    fn stages(&self) -> Option<Stages> {
        let at = |n| Arc::new(Window { grown_to: Some(n), ..self.clone() }) as Arc<dyn Task>;
        let tasks = (self.grow_from?..=self.window).map(at).collect();
        Some(Stages { tasks, every: self.grow_every, accuracy: self.grow_at })
    }

    /// The accuracy at the largest window, where it is asked about several.
    fn metrics(&self, counts: &Counts) -> Vec<(&'static str, f64)> {
        let (least, heads) = self.heads();
        if heads == 1 {
            return vec![];
        }
        let sum = |of: &[u64]| of[2 * (self.largest() - least)..][..2].iter().sum::<u64>();
        vec![("largest", sum(&counts.right) as f64 / sum(&counts.is).max(1) as f64)]
    }
}
