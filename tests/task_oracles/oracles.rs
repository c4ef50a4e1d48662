//! The definitions by brute force.

use std::collections::BTreeSet;
use tapezoo::tasks::GroupName;

/// Remove adjacent pairs of partners until there is none; balanced words vanish.
pub fn vanishes(k: i32, x: &[i32]) -> bool {
    let mut x = x.to_vec();
    while let Some(i) = x.windows(2).position(|w| w[0] < k && w[1] == w[0] + k) {
        x.drain(i..i + 2);
    }
    x.is_empty()
}

/// The deepest nesting, if every bracket so far has its partner.
pub fn depth(k: i32, x: &[i32]) -> i32 {
    x.iter()
        .scan(0, |d, &x| {
            Some({
                *d += if x < k { 1 } else { -1 };
                *d
            })
        })
        .max()
        .unwrap_or(0)
}

/// The value of an expression over `+-*()`, by recursive descent, in exact integers. Ends at the first other symbol.
pub struct Parser<'a>(pub &'a [char]);

impl Parser<'_> {
    pub fn sum(&mut self) -> i128 {
        let mut value = self.product();
        while let [op @ ('+' | '-'), rest @ ..] = self.0 {
            self.0 = rest;
            let right = self.product();
            value = if *op == '+' { value + right } else { value - right };
        }
        value
    }

    fn product(&mut self) -> i128 {
        let mut value = self.atom();
        while let ['*', rest @ ..] = self.0 {
            self.0 = rest;
            value *= self.atom();
        }
        value
    }

    fn atom(&mut self) -> i128 {
        match self.0 {
            ['-', rest @ ..] => {
                self.0 = rest;
                -self.atom()
            }
            ['(', rest @ ..] => {
                self.0 = rest;
                let value = self.sum();
                assert_eq!(self.0[0], ')');
                self.0 = &self.0[1..];
                value
            }
            [digit, rest @ ..] => {
                self.0 = rest;
                i128::from(digit.to_digit(10).unwrap())
            }
            [] => panic!("ends too early"),
        }
    }
}

/// All permutations of n things in lexicographic order.
pub fn permutations(n: usize) -> Vec<Vec<usize>> {
    let mut all: Vec<Vec<usize>> = (0..n.pow(n as u32))
        .map(|i| (0..n).rev().map(|d| i / n.pow(d as u32) % n).collect())
        .filter(|p: &Vec<usize>| p.iter().collect::<BTreeSet<_>>().len() == n)
        .collect();
    all.sort();
    all
}

/// Whether it is even: an even number of swaps sorts it.
pub fn is_even(p: &[usize]) -> bool {
    let mut p = p.to_vec();
    let mut swaps = 0;
    for i in 0..p.len() {
        while p[i] != i {
            let j = p[i];
            p.swap(i, j);
            swaps += 1;
        }
    }
    swaps % 2 == 0
}

/// An element as a permutation of its own things: a number modulo n rotates n things.
pub fn elements(group: GroupName) -> Vec<Vec<usize>> {
    let turns = |n: usize| (0..n).map(|z| (0..n).map(|i| (i + z) % n).collect::<Vec<_>>()).collect::<Vec<_>>();
    let even = |n| permutations(n).into_iter().filter(|p| is_even(p)).collect::<Vec<_>>();
    match group {
        GroupName::Z60 => turns(60),
        GroupName::S3 => permutations(3),
        GroupName::S4 => permutations(4),
        GroupName::S5 => permutations(5),
        GroupName::A5 => even(5),
        GroupName::A4xZ5 => {
            let side_by_side =
                |a: &Vec<usize>, z: &Vec<usize>| [&a[..], &z.iter().map(|i| i + 4).collect::<Vec<_>>()].concat();
            even(4).iter().flat_map(|a| turns(5).iter().map(|z| side_by_side(a, z)).collect::<Vec<_>>()).collect()
        }
    }
}
