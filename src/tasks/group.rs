//! The word problem of a group: what is the product of the elements so far?
//!
//! Tokens are elements of the group G, x₁ .. x_T uniform over the elements allowed, and the target at every position is
//! the product so far, y_t = x₁ ∘ x₂ ∘ .. ∘ x_t, as in Merrill et al. 2024 ('The Illusion of State in State-Space
//! Models', `jopetty/word-problem`), without the special tokens there.
//!
//! Element 0 is the identity. Permutations are numbered in lexicographic order, (p ∘ q)(i) = p(q(i)); A_n are the
//! even ones, in that order; in A4×Z5 the pair (a, z) is number 5 a + z. Z60 can be followed by adding up; A5 and S5
//! are not solvable, and no fixed number of layers of attention, or of diagonal transitions, follows them at all lengths,
//! unless TC⁰ = NC¹.

use super::{Counts, Len, Task};
use crate::rng::Rng;
use rand::RngExt;
use serde::{Deserialize, Serialize};
use std::sync::OnceLock;

/// A finite group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum GroupName {
    /// The numbers modulo 60.
    Z60,
    /// Permutations of three things.
    #[default]
    S3,
    /// Permutations of four things.
    S4,
    /// Permutations of five things.
    S5,
    /// Even permutations of five things.
    A5,
    /// Pairs of an even permutation of four things and a number modulo 5.
    A4xZ5,
}

/// The elements allowed as tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Moves {
    /// The whole group.
    #[default]
    All,
    /// The identity and swaps of two things ("only_swaps").
    Swaps,
    /// Elements that move at most three things: the identity, swaps and 3-cycles ("limit_to_3").
    Three,
}

/// The word problem of a group.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Group {
    /// Which group.
    pub group: GroupName,
    /// Which of its elements are tokens.
    pub moves: Moves,
}

impl Task for Group {
    fn name(&self) -> &'static str {
        "group"
    }

    fn vocab(&self) -> usize {
        self.table().names.len()
    }

    fn classes(&self) -> usize {
        self.vocab()
    }

    fn title(&self) -> String {
        let moves = match self.moves {
            Moves::All => "",
            Moves::Swaps => ", only swaps",
            Moves::Three => ", at most three things moved",
        };
        format!("word problem of {:?}{moves}", self.group)
    }

    fn legend(&self) -> String {
        match self.group {
            GroupName::Z60 => "the sum so far, modulo 60",
            GroupName::A4xZ5 => "the product so far; e is the identity, (123) takes 1 to 2, 2 to 3, 3 to 1",
            _ => "the product so far, e if nothing has moved; (123) takes 1 to 2, 2 to 3, 3 to 1",
        }
        .into()
    }

    fn token(&self, id: usize) -> String {
        self.table().names[id].clone()
    }

    fn class(&self, id: usize) -> String {
        self.token(id)
    }

    fn check(&self) -> Result<(), String> {
        if self.offered().len() > 1 {
            return Ok(());
        }
        let (moves, of) = (format!("{:?}", self.moves).to_lowercase(), self.group);
        Err(format!(
            "task.moves {moves}: not of {of:?}; s3, s4 and s5 have swaps, and with a5 also three; expected all"
        ))
    }

    fn without_effect(&self, _: &[Len]) -> Vec<(&'static str, String)> {
        let all = self.moves != Moves::All && self.offered().len() == self.table().names.len();
        let why = || format!("has no effect: these are all elements of {:?}", self.group);
        all.then(|| ("moves", why())).into_iter().collect()
    }

    fn fill(&self, rng: &mut Rng, len: usize, tokens: &mut [i32], targets: &mut [i32]) {
        let (table, offered) = (self.table(), self.offered());
        let n = table.names.len();
        for (x, y) in tokens.chunks_exact_mut(len).zip(targets.chunks_exact_mut(len)) {
            let mut product = 0;
            for (x, y) in x.iter_mut().zip(y) {
                *x = offered[rng.random_range(0..offered.len())];
                product = table.product[product * n + *x as usize] as usize;
                *y = product as i32;
            }
        }
    }

    fn label(&self, tokens: &[i32]) -> Option<Vec<i32>> {
        let table = self.table();
        let n = table.names.len();
        let next = |product: &mut usize, &x: &i32| {
            *product = table.product[*product * n + x as usize] as usize;
            Some(*product as i32)
        };
        Some(tokens.iter().scan(0, next).collect())
    }

    fn metrics(&self, counts: &Counts) -> Vec<(&'static str, f64)> {
        vec![("sequences", counts.sequence_accuracy())]
    }
}

/// The multiplication table of a group of n elements.
struct Table {
    /// i ∘ j at `[n i + j]`.
    product: Vec<u8>,
    names: Vec<String>,
    /// How many things each element moves; in a group of numbers, 1 for each number that is not 0.
    moved: Vec<usize>,
}

impl Group {
    fn table(&self) -> &'static Table {
        static TABLES: [OnceLock<Table>; 6] = [const { OnceLock::new() }; 6];
        TABLES[self.group as usize].get_or_init(|| match self.group {
            GroupName::Z60 => numbers(60),
            GroupName::S3 => permutations(3, false),
            GroupName::S4 => permutations(4, false),
            GroupName::S5 => permutations(5, false),
            GroupName::A5 => permutations(5, true),
            GroupName::A4xZ5 => beside(&permutations(4, true), &numbers(5)),
        })
    }

    fn offered(&self) -> Vec<i32> {
        let (least, most) = match self.moves {
            Moves::All => (0, usize::MAX),
            Moves::Swaps => (2, 2),
            Moves::Three => (2, 3),
        };
        let moved = &self.table().moved;
        let is_group_of_permutations = !matches!(self.group, GroupName::Z60 | GroupName::A4xZ5);
        let fits =
            |&i: &usize| i == 0 || (least..=most).contains(&moved[i]) && (least == 0 || is_group_of_permutations);
        (0..moved.len()).filter(fits).map(|i| i as i32).collect()
    }
}

fn numbers(n: usize) -> Table {
    let product = (0..n * n).map(|ij| ((ij / n + ij % n) % n) as u8).collect();
    Table { product, names: (0..n).map(|i| i.to_string()).collect(), moved: (0..n).map(|i| i.min(1)).collect() }
}

/// The permutations of n things, all or the even ones.
fn permutations(n: usize, even: bool) -> Table {
    let mut all = vec![vec![]];
    for _ in 0..n {
        let longer = |p: &Vec<usize>| {
            let next = (0..n).filter(|i| !p.contains(i));
            next.map(|i| [&p[..], &[i]].concat()).collect::<Vec<_>>()
        };
        all = all.iter().flat_map(longer).collect();
    }
    let inversions = |p: &[usize]| (0..n).map(|j| p[..j].iter().filter(|&&x| x > p[j]).count()).sum::<usize>();
    all.retain(|p| !even || inversions(p).is_multiple_of(2));
    let place = |p: &Vec<usize>| all.binary_search(p).expect("a group is closed, and the list sorted") as u8;
    let product = all.iter().flat_map(|p| all.iter().map(|q| place(&q.iter().map(|&i| p[i]).collect()))).collect();
    let moved = all.iter().map(|p| (0..n).filter(|&i| p[i] != i).count()).collect();
    Table { product, names: all.iter().map(|p| cycles(p)).collect(), moved }
}

/// "(12)(345)", or "e" for the identity.
fn cycles(p: &[usize]) -> String {
    let mut text = String::new();
    let mut seen = vec![false; p.len()];
    for start in 0..p.len() {
        if seen[start] || p[start] == start {
            continue;
        }
        text.push('(');
        let mut i = start;
        while !seen[i] {
            seen[i] = true;
            text += &(i + 1).to_string();
            i = p[i];
        }
        text.push(')');
    }
    if text.is_empty() { "e".into() } else { text }
}

/// The direct product of two groups: pairs, multiplied part by part.
fn beside(a: &Table, b: &Table) -> Table {
    let (n, m) = (a.names.len(), b.names.len());
    let pairs: Vec<(usize, usize)> = (0..n * m).map(|i| (i / m, i % m)).collect();
    let times = |&(i, j): &(usize, usize), &(k, l): &(usize, usize)| {
        (usize::from(a.product[n * i + k]) * m + usize::from(b.product[m * j + l])) as u8
    };
    Table {
        product: pairs.iter().flat_map(|p| pairs.iter().map(move |q| times(p, q))).collect(),
        names: pairs.iter().map(|&(i, j)| format!("{}+{}", a.names[i], b.names[j])).collect(),
        moved: pairs.iter().map(|&(i, j)| a.moved[i] + b.moved[j]).collect(),
    }
}
