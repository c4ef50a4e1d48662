//! The names of one layer, or of layers that a number tells apart.

use super::table::{Table, either};
use crate::files::tensors::Tensors;
use std::collections::BTreeSet;

/// Names behind a prefix, in which `{}` stands for the number of the layer.
pub struct Names(String);

impl Names {
    /// Names behind a prefix, whose last dot may be left out.
    pub fn new(prefix: &str) -> Names {
        let dot = if prefix.is_empty() || prefix.ends_with('.') { "" } else { "." };
        Names(format!("{prefix}{dot}"))
    }

    /// The prefix of the names.
    pub fn prefix(&self) -> &str {
        &self.0
    }

    /// The name of a tensor of layer `i`. A `{}` in the tensor's own name is the number where the prefix has none.
    pub fn of(&self, tensor: &str, i: usize) -> String {
        let own = if self.0.contains("{}") { 0 } else { i };
        format!("{}{}", self.0.replace("{}", &i.to_string()), tensor.replace("{}", &own.to_string()))
    }

    /// Whether the names of two layers differ.
    pub fn are_numbered(&self, table: &Table) -> bool {
        self.0.contains("{}") || table.tensors().any(|(name, _)| name.contains("{}"))
    }

    /// The number of the layer that a tensor of a file may belong to.
    pub fn number(&self, table: &Table, name: &str) -> Option<usize> {
        if self.0.contains("{}") {
            return number(name, &self.0, false);
        }
        let name = name.strip_prefix(&self.0)?;
        table.tensors().flat_map(|(names, _)| either(names)).find_map(|own| number(name, own, true))
    }

    /// The numbers of the layers of which a file has at least one tensor.
    pub fn there(&self, table: &Table, tensors: &Tensors) -> Vec<usize> {
        let is_of =
            |name: &str, i| table.tensors().flat_map(|(names, _)| either(names)).any(|own| self.of(own, i) == name);
        let numbers = tensors.keys().filter_map(|name| self.number(table, name).filter(|&i| is_of(name, i)));
        numbers.collect::<BTreeSet<usize>>().into_iter().collect()
    }
}

/// The number at the place of `{}` in a name; behind the pattern the name may go on, unless `ends` is set.
fn number(name: &str, pattern: &str, ends: bool) -> Option<usize> {
    let (before, after) = pattern.split_once("{}")?;
    let rest = name.strip_prefix(before)?;
    let (number, rest) = rest.split_at(rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len()));
    let rest = rest.strip_prefix(after)?;
    if ends && !rest.is_empty() { None } else { number.parse().ok() }
}

/// A name with `{}` for its first number.
pub fn without_number(name: &str) -> String {
    without(name, |parts| parts.iter().position(|part| is_number(part)))
}

/// A name with `{}` for its last number.
pub fn without_last_number(name: &str) -> String {
    without(name, |parts| parts.iter().rposition(|part| is_number(part)))
}

/// A name with `{}` for one of its parts.
fn without(name: &str, part: impl Fn(&[&str]) -> Option<usize>) -> String {
    let mut parts: Vec<&str> = name.split('.').collect();
    if let Some(at) = part(&parts) {
        parts[at] = "{}";
    }
    parts.join(".")
}

fn is_number(part: &str) -> bool {
    !part.is_empty() && part.chars().all(|c| c.is_ascii_digit())
}
