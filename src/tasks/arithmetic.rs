//! Parity, modular arithmetic, and modular arithmetic with brackets, as the xLSTM paper and 'Unlocking
//! State-Tracking in Linear RNNs Through Negative Eigenvalues' (Grazzi et al. 2024, arXiv 2411.12537) train them.
//!
//! A sequence has one answer, at its last token: the last bit, or "=". The answer itself would be the next token and is
//! hidden, but a length counts it, so it is one more than the number of tokens; with brackets two more, as there is always a
//! place of padding too. The papers count this way: they train on lengths 3-40 and evaluate on 40-256. Every sequence draws
//! its own length; the rest is padding.
//!
//! [`Arithmetic::example`] makes the same bits as `automl/unlocking_state_tracking` with NumPy.

use super::{Counts, IGNORE, Len, Task, numpy::Pcg64};
use crate::rng::Rng;
use rand::Rng as _;
use serde::{Deserialize, Serialize};

/// The modulus of all arithmetic.
const MODULUS: i32 = 5;

/// The kind of sequences.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Language {
    /// Bits: is the number of ones even (1) or odd (2)?
    Parity,
    /// Digits with +, - and *, where * binds tighter.
    #[default]
    ModularArithmetic,
    /// Digits with +, - and, with `mult`, *, in brackets.
    ModularArithmeticWithBrackets,
}

use Language::{ModularArithmetic, ModularArithmeticWithBrackets, Parity};

/// A task with one answer per sequence.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Arithmetic {
    /// The kind of sequences.
    pub language: Language,
    /// With brackets: whether there is multiplication.
    pub mult: bool,
}

impl Task for Arithmetic {
    fn name(&self) -> &'static str {
        "arithmetic"
    }

    fn vocab(&self) -> usize {
        self.symbols().len()
    }

    fn classes(&self) -> usize {
        self.symbols().len()
    }

    fn title(&self) -> String {
        match self.language {
            Parity => "parity, asked at the last bit".into(),
            ModularArithmetic => format!("arithmetic modulo {MODULUS}"),
            ModularArithmeticWithBrackets if self.mult => format!("arithmetic modulo {MODULUS} with brackets and *"),
            ModularArithmeticWithBrackets => format!("arithmetic modulo {MODULUS} with brackets"),
        }
    }

    fn legend(&self) -> String {
        match self.language {
            Parity => "whether the number of ones is even or odd".into(),
            _ => format!("the value modulo {MODULUS}, at the ="),
        }
    }

    fn token(&self, id: usize) -> String {
        char::from(self.symbols()[id]).into()
    }

    fn class(&self, id: usize) -> String {
        match (self.language, id) {
            (Parity, 1) => "even".into(),
            (Parity, 2) => "odd".into(),
            _ => self.token(id),
        }
    }

    fn check(&self) -> Result<(), String> {
        if self.mult && self.language != ModularArithmeticWithBrackets {
            return Err("task.mult true: only modular_arithmetic_with_brackets has a choice; leave it out".into());
        }
        Ok(())
    }

    fn check_len(&self, len: usize) -> Result<(), String> {
        let (least, hidden) = match self.language {
            Parity => (2, "the answer"),
            ModularArithmetic => (3, "the answer"),
            ModularArithmeticWithBrackets => (5, "the answer and a place of padding"),
        };
        if len >= least { Ok(()) } else { Err(format!("expected at least {least}: the length counts {hidden} too")) }
    }

    /// n digits, n − 1 operators between them, = and the answer. As published, an even length means the next shorter
    /// odd one.
    fn grid(&self) -> (usize, usize) {
        if self.language == ModularArithmetic { (2, 1) } else { (1, 0) }
    }

    fn check_lens(&self, len: Len) -> Result<(), String> {
        // As published, a length shorter than the shortest expression in brackets gives that expression.
        let padded = self.language == ModularArithmeticWithBrackets && !len.is_one();
        let (shortest, longest) = self.ends(len).unwrap_or((len.max, len.max));
        self.check_len(longest)?;
        match shortest {
            _ if !padded => self.check_len(shortest),
            3.. => Ok(()),
            _ => Err(format!("a range from {shortest} on: expected one from 3 on")),
        }
    }

    fn fill(&self, rng: &mut Rng, len: usize, tokens: &mut [i32], targets: &mut [i32]) {
        self.fill_range(rng, len.into(), tokens, targets);
    }

    fn fill_range(&self, rng: &mut Rng, len: Len, tokens: &mut [i32], targets: &mut [i32]) {
        let mut rng = Pcg64::new(rng.next_u64());
        // Without brackets, a length below the shortest sequence would give a sequence without tokens.
        let least = match self.language {
            Parity => 2,
            ModularArithmetic => 3,
            ModularArithmeticWithBrackets => 0,
        };
        let len = Len { min: len.min.max(least), ..len };
        for (x, y) in tokens.chunks_exact_mut(len.max).zip(targets.chunks_exact_mut(len.max)) {
            let (at, answer) = self.example(&mut rng, len, x);
            y.fill(IGNORE);
            y[at] = answer;
        }
    }

    fn metrics(&self, counts: &Counts) -> Vec<(&'static str, f64)> {
        let chance = if self.language == Parity { 0.5 } else { 1.0 / f64::from(MODULUS) };
        vec![("scaled", (counts.accuracy() - chance) / (1.0 - chance))]
    }
}

impl Arithmetic {
    /// Tokens as text, in order of their ids; a blank is padding.
    fn symbols(&self) -> &'static [u8] {
        match self.language {
            Parity => b" 01",
            ModularArithmetic => b" +-*=01234",
            ModularArithmeticWithBrackets => b"01234+-*()= ",
        }
    }

    /// Write one sequence into `x`. Its length, which counts the answer, is drawn from `len`; `x` is as long as the
    /// original's `context_length` and at least `len.max`. Returns the position of the target, and the answer.
    ///
    /// The next position, where the answer itself would be, holds token 0; the rest is padding.
    ///
    /// # Panics
    /// When `x` is too short.
    pub fn example(&self, rng: &mut Pcg64, len: Len, x: &mut [i32]) -> (usize, i32) {
        let (min, max) = (len.min as u32, len.max as u32);
        match self.language {
            Parity => parity(rng, min, max, x),
            ModularArithmetic => plain(rng, min, max, x),
            ModularArithmeticWithBrackets => {
                let n = rng.integers(min, max + 1).max(5) as usize;
                let value = bracketed(rng, self.mult, &mut x[..n - 3]);
                x[n - 3] = token(b'=');
                x[n - 2] = 0;
                x[n - 1..].fill(token(b' '));
                (n - 3, value)
            }
        }
    }
}

fn parity(rng: &mut Pcg64, min: u32, max: u32, x: &mut [i32]) -> (usize, i32) {
    let (_, bits) = x.split_last_mut().expect("a length of at least 2");
    bits.iter_mut().for_each(|x| *x = rng.integers(1, 3) as i32);
    let n = rng.integers(min, max + 1) as usize - 1;
    x[n..].fill(0);
    let ones = x[..n].iter().filter(|&&x| x == 2).count();
    (n - 1, 1 + (ones % 2) as i32)
}

/// Digit d is token 5 + d; operators are 1 '+', 2 '-', 3 '*'.
fn plain(rng: &mut Pcg64, min: u32, max: u32, x: &mut [i32]) -> (usize, i32) {
    const DIGIT: i32 = 5;
    x.iter_mut().for_each(|x| *x = DIGIT + rng.integers(0, MODULUS as u32) as i32);
    x.iter_mut().skip(1).step_by(2).for_each(|x| *x = 1 + rng.integers(0, 3) as i32);
    let (low, high) = (min.div_ceil(2).min(max.div_ceil(2)), max.div_ceil(2) + 1);
    let end = 2 * rng.integers(low, high) as usize - 3;

    // The sum of the products so far, and the last product, with its sign.
    let (mut sum, mut product) = (0, x[0] - DIGIT);
    for pair in x[1..end].chunks_exact(2) {
        let digit = pair[1] - DIGIT;
        match pair[0] {
            1 => (sum, product) = (sum + product, digit),
            2 => (sum, product) = (sum + product, -digit),
            _ => product = product * digit % MODULUS,
        }
    }
    x[end] = 4;
    x[end + 1..].fill(0);
    (end, DIGIT + (sum + product).rem_euclid(MODULUS))
}

/// A random expression over all of `x`; its value.
fn bracketed(rng: &mut Pcg64, mult: bool, x: &mut [i32]) -> i32 {
    let n = x.len();
    if n < 5 {
        let digit = rng.integers(0, MODULUS as u32) as i32;
        let (text, value): (&[u8], i32) = match n {
            1 => (b"d", digit),
            2 => (b"-d", -digit),
            3 => (b"(d)", digit),
            _ => (b"(-d)", -digit),
        };
        x.iter_mut().zip(text).for_each(|(x, &c)| *x = if c == b'd' { digit } else { token(c) });
        return value.rem_euclid(MODULUS);
    }
    let l = rng.integers(1, n as u32 - 3) as usize;
    let a = bracketed(rng, mult, &mut x[1..=l]);
    let b = bracketed(rng, mult, &mut x[l + 2..n - 1]);
    let (op, value) = match rng.integers(0, if mult { 3 } else { 2 }) {
        0 => (b'+', a + b),
        1 => (b'-', a - b),
        _ => (b'*', a * b),
    };
    (x[0], x[l + 1], x[n - 1]) = (token(b'('), token(op), token(b')'));
    value.rem_euclid(MODULUS)
}

/// The id of a symbol of the language with brackets.
fn token(symbol: u8) -> i32 {
    match symbol {
        b'+' => 5,
        b'-' => 6,
        b'*' => 7,
        b'(' => 8,
        b')' => 9,
        b'=' => 10,
        _ => 11,
    }
}
