//! The gates on the inspector's pages: their equations, with the recorded numbers and the weights in them, give the
//! recorded values.

#![allow(clippy::unwrap_used)]

use indicatif::ProgressBar;
use std::collections::BTreeMap;
use tapezoo::{
    inspect::{
        source,
        trace::{Series, Trace, trace},
        view::{self, Role, View},
        weights,
    },
    models::names_with,
};

const STEPS: usize = 4;
const TOKENS: [i32; 9] = [1, 0, 1, 1, 0, 0, 1, 1, 1];

/// A run after a few large steps, so that no weight is 0 any more.
fn traced(spec: &str) -> Trace {
    let spec = format!("{spec}{}lr=0.03,batch=4,train_len=12,warmup=0", if spec.contains(':') { "," } else { ":" });
    let config = source::config(&spec, "parity", 3, None, STEPS).unwrap();
    let source = source::train(&spec, config, STEPS, &ProgressBar::hidden()).unwrap();
    trace(&source, &TOKENS, &ProgressBar::hidden()).unwrap()
}

/// The gates whose equation cannot be worked out from numbers on the page, and why.
const VALUE_ONLY: [(&str, &str, &str); 4] = [
    ("mom", "omega", "a softmax over all memories, of which the two largest are kept"),
    ("gsa", "a", "a softmax over all slots; the page has the score of one"),
    ("seqboat", "active", "a comparison, which is written in words"),
    ("ttt", "rho", "a parameter of the place in the mini-batch, and no map of the input"),
];

/// A block's recorded values and weights.
struct Block<'a> {
    values: &'a BTreeMap<String, Series>,
    weights: &'a BTreeMap<String, Series>,
    view: &'static View,
}

/// An index for each letter; the first of a letter counts.
type At<'a> = &'a [(char, usize)];

impl Block<'_> {
    fn axes(&self, name: &str) -> &'static str {
        let weight = || weights::named(self.view.mixer, name).map(|w| w.axes);
        self.view.axes(name).or_else(weight).unwrap_or_else(|| panic!("{}: {name}", self.view.mixer))
    }

    fn size(&self, letter: char) -> usize {
        let all = self.values.iter().chain(self.weights).filter(|(name, _)| !name.contains("eigenvalue"));
        let of = |(name, s): (&String, &Series)| self.axes(name).find(letter).map(|at| s.shape[at]);
        all.filter_map(of).max().unwrap_or_else(|| panic!("nothing has an axis {letter}"))
    }

    /// An element: `z`, `h-` one step before, `h-[d=u]` with the index u in the place of d.
    fn factor(&self, text: &str, t: usize, at: At) -> f64 {
        if let Some((name, letters)) = text.strip_suffix(']').and_then(|x| x.split_once('[')) {
            let (letter, read) = letters.split_once('=').unwrap();
            let index = at.iter().find(|a| read.starts_with(a.0)).unwrap().1;
            return self.factor(name, t, &[&[(letter.chars().next().unwrap(), index)], at].concat());
        }
        let (name, before) = text.strip_suffix('-').map_or((text, 0), |name| (name, 1));
        if before > t {
            return 0.0;
        }
        let (series, numbers) = match self.weights.get(name) {
            Some(series) => (series, &series.data[..]),
            None => {
                let series = self.values.get(name).unwrap_or_else(|| panic!("nothing is named {name}"));
                (series, series.at(t - before))
            }
        };
        let index = |letter: char| at.iter().find(|a| a.0 == letter).unwrap_or_else(|| panic!("{text}: {letter}?")).1;
        let place = self.axes(name).chars().zip(&series.shape).fold(0, |o, (l, &n)| o * n + index(l) % n);
        numbers[place].into()
    }

    /// The value of an expression in braces.
    fn place(&self, text: &str, t: usize, at: At) -> f64 {
        let product = |text: &str, at: At| text.split(" * ").map(|f| self.factor(f, t, at)).product::<f64>();
        if let Some(letter) = text.strip_prefix("size:") {
            return self.size(letter.chars().next().unwrap()) as f64;
        }
        let Some((letter, sum)) = text.strip_prefix("sum:").and_then(|x| x.split_once(' ')) else {
            return product(text, at);
        };
        let letter = letter.chars().next().unwrap();
        (0..self.size(letter)).map(|x| product(sum, &[&[(letter, x)], at].concat())).sum()
    }

    /// The value of an equation's right side: a number, or one of two.
    fn worth(&self, right: &str, t: usize, at: At, s: f64) -> Vec<f64> {
        let number = |(i, text)| {
            if i % 2 == 0 { String::from(text) } else { format!("({})", self.place(text, t, at)).replace('-', "−") }
        };
        let filled: String = right.split(['{', '}']).enumerate().map(number).collect();
        let worth = |text| {
            let mut rest = Rest { text, s };
            let x = rest.sum();
            assert_eq!(rest.text, "", "the rest of {filled}");
            x
        };
        filled.split(", or ").map(worth).collect()
    }
}

/// The rest of a formula that is still to be read, and the value of s in it.
struct Rest<'a> {
    text: &'a str,
    s: f64,
}

type Function = fn(f64) -> f64;

impl Rest<'_> {
    fn take(&mut self, token: &str) -> bool {
        let rest = self.text.trim_start().strip_prefix(token);
        self.text = rest.unwrap_or(self.text);
        rest.is_some()
    }

    fn sum(&mut self) -> f64 {
        let sign = if self.take("−") { -1.0 } else { 1.0 };
        let mut sum = sign * self.product();
        loop {
            if self.take("+") {
                sum += self.product();
            } else if self.take("−") {
                sum -= self.product();
            } else {
                return sum;
            }
        }
    }

    fn product(&mut self) -> f64 {
        let mut product = self.power();
        loop {
            if self.take("/") {
                product /= self.power();
            } else if self.take("·")
                || !matches!(self.text.trim_start().chars().next(), None | Some('+' | '−' | ')' | '|' | ','))
            {
                product *= self.power();
            } else {
                return product;
            }
        }
    }

    fn power(&mut self) -> f64 {
        let base = self.atom();
        if self.take("^") { base.powf(self.atom()) } else { base }
    }

    fn until(&mut self, end: &str) -> f64 {
        let x = self.sum();
        assert!(self.take(end), "no '{end}' where '{}' is left", self.text);
        x
    }

    fn atom(&mut self) -> f64 {
        let functions: [(&str, Function); 7] = [
            ("σ(", |x| 1.0 / (1.0 + (-x).exp())),
            ("tanh(", f64::tanh),
            ("exp(", f64::exp),
            ("softplus(", |x| x.exp().ln_1p()),
            ("ln(", f64::ln),
            ("h(", |x| if x < 0.0 { 1.0 / (1.0 - x) } else { 1.0 + x }),
            ("(", |x| x),
        ];
        if let Some((_, f)) = functions.into_iter().find(|f| self.take(f.0)) {
            return f(self.until(")"));
        }
        if self.take("max(") {
            return self.until(",").max(self.until(")"));
        }
        if self.take("|") {
            return self.until("|").abs();
        }
        if self.take("ln ") {
            return self.atom().ln();
        }
        if self.take("ε") {
            return 1e-6;
        }
        if self.take("s ") {
            return self.s;
        }
        let text = self.text.trim_start();
        let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        self.text = &text[end..];
        text[..end].parse().unwrap_or_else(|_| panic!("'{text}' is no number"))
    }
}

/// Every index of these axes.
fn indices(axes: &str, shape: &[usize]) -> Vec<Vec<(char, usize)>> {
    axes.chars().zip(shape).fold(vec![vec![]], |all, (letter, &n)| {
        all.iter().flat_map(|at| (0..n).map(move |x| [&at[..], &[(letter, x)]].concat())).collect()
    })
}

/// Assert that every gate of a mixer has the value of its equation. Returns how many numbers were compared.
fn check(mixer: &str, spec: &str, s: f64) -> usize {
    let (view, traced) = (view::of(mixer).unwrap(), traced(spec));
    for (name, series) in traced.weights.iter().flatten() {
        assert!(series.data.iter().any(|&x| x != 0.0) || name == "γ", "{spec}: {name} is 0 everywhere");
    }
    let mut seen = 0;
    for gate in view.quantities.iter().filter(|q| q.role == Role::Gate) {
        let value_only = VALUE_ONLY.iter().any(|v| (v.0, v.1) == (mixer, gate.name));
        let left = format!("{{{}}} = ", gate.name);
        let right = view.equations.iter().find_map(|e| e.1.strip_prefix(&left)).filter(|x| x.contains('{'));
        let Some(right) = right.filter(|_| !value_only) else {
            assert!(value_only, "{mixer}: no equation gives {} from other numbers", gate.name);
            continue;
        };
        for (l, values) in traced.layers.iter().enumerate() {
            let none = BTreeMap::new();
            let block = Block { values, weights: traced.weights.get(l).unwrap_or(&none), view };
            let recorded = &values[gate.name];
            for t in 0..TOKENS.len() {
                for (at, &x) in indices(gate.axes, &recorded.shape).iter().zip(recorded.at(t)) {
                    let all = block.worth(right, t, at, s);
                    let near = |y: &f64| (y - f64::from(x)).abs() <= 2e-5 * (1.0 + y.abs());
                    assert!(
                        all.iter().any(near),
                        "{spec}: {} of block {l} at {t}, {at:?} is {x}, and {right} {all:?}",
                        gate.name
                    );
                    seen += 1;
                }
            }
        }
    }
    seen
}

#[test]
fn every_gate_is_what_its_equation_says_or_has_a_reason() {
    for (mixer, gate, _) in VALUE_ONLY {
        assert!(view::of(mixer).unwrap().quantities.iter().any(|q| q.name == gate && q.role == Role::Gate), "{gate}");
    }
    let stretched = names_with(|c| c.eigenvalues);
    let mut seen = 0;
    for mixer in tapezoo::models::names().into_iter().filter(|m| view::of(m).is_some()) {
        seen += check(mixer, mixer, 1.0);
        if stretched.contains(&mixer) {
            seen += check(mixer, &format!("{mixer}:eigenvalues=-1..1"), 2.0);
        }
    }
    seen += check("delta_product", "delta_product:householders=3", 1.0) + check("gsa", "gsa:state=3", 1.0);
    assert!(seen > 9_000, "{seen} numbers");
}

/// Where weights are too many for a page, there is nothing to sum up.
#[test]
fn a_page_of_a_wide_model_has_no_weights() {
    let wide = traced("lstm:width=128,heads=4,head_dim=32");
    assert!(
        wide.weights.is_empty() && !wide.layers[0].contains_key("input"),
        "{:?}, {:?}",
        wide.weights,
        wide.layers[0].keys()
    );
}
