//! The sizes of a layer, by the letters that the tables are written in.
//!
//! A size is a sum of products, as `2HK+N` or `HK/4`; a shape is sizes with blanks between them, as `HK 1 W`.

use crate::{error::brief, models::ModelConfig};
use std::collections::BTreeMap;

/// A letter, the setting that it stands for, and where that is in a configuration.
type Letter = (char, &'static str, fn(&mut ModelConfig) -> &mut usize);

/// Every letter.
pub const LETTERS: [Letter; 8] = [
    ('D', "width", |c| &mut c.width),
    ('H', "heads", |c| &mut c.heads),
    ('K', "head_dim", |c| &mut c.head_dim),
    ('N', "state", |c| &mut c.state),
    ('R', "dt_rank", |c| &mut c.dt_rank),
    ('W', "conv", |c| &mut c.conv),
    ('n', "householders", |c| &mut c.householders),
    ('x', "expand", |c| &mut c.expand),
];

/// One product: a number, letters, and what it is divided by.
struct Product {
    times: usize,
    letters: Vec<char>,
    over: usize,
}

fn products(size: &str) -> Vec<Product> {
    let product = |text: &str| {
        let (text, over) = text.split_once('/').unwrap_or((text, "1"));
        let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let times = text[..digits].parse().unwrap_or(1);
        Product { times, letters: text[digits..].chars().collect(), over: over.parse().unwrap_or(1) }
    };
    size.split('+').map(product).collect()
}

/// The value of a letter, and where it is known from.
#[derive(Clone, Debug)]
struct Known {
    value: usize,
    /// The source of the value.
    because: String,
    /// The other letters that had to be known, and their sources.
    with: String,
}

/// The letters that are known, with their sources.
#[derive(Clone, Debug, Default)]
pub struct Sizes(BTreeMap<char, Known>);

impl Sizes {
    /// Set a letter to this value, for this reason.
    pub fn set(&mut self, letter: char, value: usize, because: &str) {
        self.0.insert(letter, Known { value, because: because.into(), with: String::new() });
    }

    /// The value of a letter, if it is known.
    pub fn get(&self, letter: char) -> Option<usize> {
        self.0.get(&letter).map(|known| known.value)
    }

    /// The value of a size, if all of its letters are known; the largest number if it is larger.
    fn value(&self, size: &str) -> Option<usize> {
        let of = |p: Product| {
            let value = |all: usize, letter: &char| Some(all.saturating_mul(self.get(*letter)?));
            let product = p.letters.iter().try_fold(p.times, value)?;
            (product % p.over == 0).then_some(product / p.over)
        };
        products(size).into_iter().map(of).try_fold(0, |sum: usize, x| Some(sum.saturating_add(x?)))
    }

    /// The axes of a shape, if all of its letters are known.
    pub fn shape(&self, shape: &str) -> Option<Vec<usize>> {
        shape.split(' ').map(|size| self.value(size)).collect()
    }

    /// Learn letters from a tensor of this shape: from each size, its letter if only one is unknown. Returns whether
    /// any was learned.
    pub fn learn(&mut self, shape: &str, dims: &[usize], tensor: &str) -> bool {
        if shape.split(' ').count() != dims.len() {
            return false;
        }
        let mut learned = false;
        for (size, &is) in shape.split(' ').zip(dims) {
            if let Some((letter, value)) = self.unknown(size, is) {
                let others = self.0.iter().filter(|(other, _)| size.contains(**other));
                let with = others.map(|(other, known)| format!(" with {other} = {} {}", known.value, known.because));
                let (with, because) = (with.collect(), format!("of '{}'", brief(tensor, 80)));
                self.0.insert(letter, Known { value, because, with });
                learned = true;
            }
        }
        learned
    }

    /// The one unknown letter of a size, and what it must be.
    fn unknown(&self, size: &str, is: usize) -> Option<(char, usize)> {
        let (mut rest, mut found) = (is, None);
        for p in products(size) {
            let unknown: Vec<char> = p.letters.iter().copied().filter(|&c| self.get(c).is_none()).collect();
            let known = p.letters.iter().filter_map(|&c| self.get(c)).fold(p.times, usize::saturating_mul);
            match (unknown[..].first(), unknown.len(), &found) {
                (None, _, _) => rest = rest.checked_sub(known / p.over)?,
                (Some(&letter), 1, None) => found = Some((letter, known, p.over)),
                _ => return None,
            }
        }
        let (letter, times, over) = found?;
        let rest = rest.checked_mul(over)?;
        (times > 0 && rest > 0 && rest % times == 0).then(|| (letter, rest / times))
    }

    /// Whether a tensor can have this shape, once nothing more is to be learned from it. A size does not fit if its only
    /// unknown letter could not be learned.
    pub fn fits(&self, shape: &str, dims: &[usize]) -> bool {
        let fits = |(size, &is): (&str, &usize)| {
            let unknown = products(size).iter().flat_map(|p| &p.letters).filter(|&&c| self.get(c).is_none()).count();
            unknown > 1 || self.value(size) == Some(is)
        };
        shape.split(' ').count() == dims.len() && shape.split(' ').zip(dims).all(fits)
    }

    /// Why a shape is what it is: "D = 32 of 'q_proj.weight'".
    pub fn because(&self, shape: &str) -> String {
        let own = self.0.iter().filter(|(letter, _)| shape.contains(**letter));
        let own = own.map(|(letter, Known { value, because, with })| format!("{letter} = {value} {because}{with}"));
        own.collect::<Vec<_>>().join(", ")
    }

    /// The sizes of a model.
    pub fn of(config: &ModelConfig) -> Sizes {
        let (mut c, mut sizes) = (config.clone(), Sizes::default());
        // A rank that is not set follows from a rule.
        c.dt_rank = config.rank();
        for (letter, key, field) in LETTERS {
            sizes.set(letter, *field(&mut c), &format!("by {key}"));
        }
        sizes
    }
}
