//! All problems of a file, and their remedies.

use super::{
    names::{Names, without_last_number, without_number},
    table::{Table, either},
};
use crate::{error::brief, files::tensors::Tensors, models::ModelConfig};
use std::collections::{BTreeMap, HashMap};

/// The problems of a file.
#[derive(Default)]
pub struct Problems {
    /// Problems of the file as a whole.
    pub whole: Vec<String>,
    /// Whether none of its tensors is known.
    pub nothing: bool,
    /// Tensors that are not there, with what they should be.
    pub missing: Vec<(String, String)>,
    /// Tensors of another shape, with what is wrong.
    pub shapes: Vec<(String, String)>,
    /// Tensors of numbers that no model has, with what is wrong.
    pub types: Vec<(String, String)>,
    /// Tensors that are not understood, with their shapes.
    pub extra: Vec<(String, String)>,
}

impl Problems {
    /// Whether there are no problems.
    pub fn is_empty(&self) -> bool {
        self.misfits() + self.types.len() == 0
    }

    /// How far the file is from the table.
    pub fn misfits(&self) -> usize {
        self.whole.len() + self.missing.len() + self.shapes.len() + self.extra.len()
    }

    /// The problems in words.
    pub fn said(&self, table: &Table, tensors: &Tensors, names: &Names) -> String {
        let (package, mixer) = (table.package, table.mixer);
        let mut lines = vec![format!("not {mixer} as {package} has it; nothing is taken of it")];
        lines.extend(self.whole.iter().map(|line| format!("  {line}")));
        lines.extend(grouped(&self.missing).iter().map(|(name, what)| format!("  missing: {name}, expected {what}")));
        let wrong = [&self.shapes, &self.types].into_iter().flat_map(|all| grouped(all));
        lines.extend(wrong.map(|(name, what)| format!("  {name} is {what}")));
        lines.extend(grouped(&self.extra).iter().map(|(name, what)| format!("  not understood: {name} {what}")));
        match elsewhere(table, tensors).filter(|found| self.nothing && found != names.prefix()) {
            Some(found) => lines.push(format!("Its layers may be behind '{found}': pass --prefix '{found}'.")),
            None if !self.extra.is_empty() && names.prefix().is_empty() => {
                lines.push("Where a file has more than such layers, --prefix names the part to take.".into());
            }
            None => {}
        }
        let module = table.typical_module(&ModelConfig::default());
        lines.push(format!("What {mixer} equals is {module}, in these or other sizes."));
        lines.join("\n")
    }
}

/// Another prefix in the file behind which names of the table are: that of most of them.
fn elsewhere(table: &Table, tensors: &Tensors) -> Option<String> {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    let own: Vec<String> =
        table.tensors().flat_map(|(names, _)| either(names)).map(|name| name.replace("{}", "0")).collect();
    for name in tensors.keys() {
        for prefix in own.iter().filter_map(|own| name.strip_suffix(own.as_str())).filter(|p| p.ends_with('.')) {
            *counts.entry(without_last_number(prefix)).or_default() += 1;
        }
    }
    counts.into_iter().max_by_key(|(_, n)| *n).map(|(prefix, _)| brief(&prefix, 120))
}

/// Names with the same message that differ only by their first number, as one group.
fn grouped(all: &[(String, String)]) -> Vec<(String, &String)> {
    let mut groups: Vec<(Vec<&String>, &String)> = vec![];
    let mut at: HashMap<(String, &String), usize> = HashMap::new();
    for (name, what) in all {
        match *at.entry((without_number(name), what)).or_insert(groups.len()) {
            place if place < groups.len() => groups[place].0.push(name),
            _ => groups.push((vec![name], what)),
        }
    }
    let said = |(names, what): (Vec<&String>, _)| match names[..] {
        [one] => (format!("'{}'", brief(one, 120)), what),
        _ => (format!("'{}' ({} of them)", brief(&without_number(names[0]), 120), names.len()), what),
    };
    groups.into_iter().map(said).collect()
}
