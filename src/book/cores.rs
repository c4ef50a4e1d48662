//! The ops that run a mixer's recurrence over a whole sequence: their files are the second half of a page's code.

use std::ops::RangeInclusive;

/// An op.
pub struct Core {
    /// Its name on a tape.
    pub op: &'static str,
    /// The file with its formula, below `src/ops`.
    pub file: &'static str,
    /// That file.
    pub source: &'static str,
    /// The mixers whose forms run it.
    pub mixers: &'static [&'static str],
}

macro_rules! core {
    ($op:literal, $file:literal, $mixers:expr) => {
        Core { op: $op, file: $file, source: include_str!(concat!("../ops/", $file)), mixers: &$mixers }
    };
}

/// All of them. The formula of `gated_delta_rule` is a call of `erase_write`.
pub const CORES: [Core; 13] = [
    core!("lstm_sequence", "lstm.rs", ["lstm"]),
    core!("quasi_lstm", "quasi_lstm.rs", ["quasi_lstm"]),
    core!("slstm_sequence", "slstm.rs", ["slstm"]),
    core!("lru_scan", "lru_scan.rs", ["lru", "s4d"]),
    core!("linear_scan", "scan.rs", ["seqboat"]),
    core!("selective_scan", "selective.rs", ["mamba"]),
    core!("linear_attention", "linear_attn.rs", ["linear_transformer", "hedgehog", "transnormer"]),
    core!("mlstm", "mlstm.rs", ["mlstm"]),
    core!(
        "gated_linear_attention",
        "gated_linear_attention.rs",
        ["gla", "retnet", "hgrn2", "mamba2", "mamba3", "gsa", "lightnet"]
    ),
    core!("delta_rule", "delta.rs", ["delta_net", "delta_product"]),
    core!("gated_delta_rule", "erase_write.rs", ["gated_delta_net", "kda", "mom"]),
    core!("erase_write", "erase_write.rs", ["rwkv7"]),
    core!("causal_attention", "attention.rs", ["gpt", "fox"]),
];

/// The op of a mixer, if it has one.
pub fn of(mixer: &str) -> Option<&'static Core> {
    CORES.iter().find(|core| core.mixers.contains(&mixer))
}

/// The functions of a file with marks in them, as ranges of lines from 0.
pub fn functions(source: &str, marked: &[usize]) -> Vec<RangeInclusive<usize>> {
    let lines: Vec<&str> = source.lines().collect();
    let mut all: Vec<RangeInclusive<usize>> = vec![];
    for &line in marked {
        let head = (0..line).rev().find(|&i| name_of(lines[i]).is_some());
        all.extend(head.and_then(|first| block(&lines, first)).filter(|range| !all.contains(range)));
    }
    all
}

/// The name of the function that a line begins.
pub(super) fn name_of(line: &str) -> Option<&str> {
    let (seen_by, head) = line.trim_start().split_once("fn ")?;
    (seen_by.is_empty() || seen_by.starts_with("pub")).then(|| head.split(['<', '(']).next()).flatten()
}

/// The lines, from 0, of what begins at line `first` and ends with a brace: its documentation too.
pub(super) fn block(lines: &[&str], first: usize) -> Option<RangeInclusive<usize>> {
    let closes = |i: &usize| lines[*i].trim_start() == "}" && indent(lines[*i]) == indent(lines[first]);
    Some(above(lines, first)..=(first..lines.len()).find(closes)?)
}

/// The first line, from 0, of the documentation above line `at`.
pub(super) fn above(lines: &[&str], at: usize) -> usize {
    (0..at).rev().take_while(|&i| lines[i].trim_start().starts_with(['/', '#'])).last().unwrap_or(at)
}

pub(super) fn indent(line: &str) -> usize {
    line.len() - line.trim_start().len()
}
