//! Backwards: which ops compute the lines of a file, and the derivative of each op.
//!
//! The ops are those that the tape finds when the mixer runs, each at the line that called it. A page's row of equations
//! leads to the derivatives of the ops in its lines, which are on a page of their own, as the source of each op has them.

use super::{
    cores::{above, block, indent, name_of},
    frame::{around, words},
};
use crate::{
    autograd::{Called, Kernels, Tape},
    error::quietly,
    models::{Form, Model, ModelConfig},
    tensor::{DType, Tensor},
    train::config::TrainConfig,
};
use maud::{Markup, html};
use std::ops::RangeInclusive;

/// The page with the derivatives.
pub const PAGE: &str = "derivatives.html";

/// The ops of a mixer at their lines: all of its forms, each op by its formula, on three tokens.
pub fn called(mixer: &str) -> Vec<Called> {
    let model = || -> crate::error::Result<Model> {
        let config: TrainConfig = super::lab::settings(mixer).parse()?;
        // Some mixers have blocks of two kinds.
        let config = ModelConfig { layers: 2, ..config.for_model(mixer)?.model };
        Model::new(&config, 0, DType::F32)
    };
    let Ok(model) = model() else { return vec![] };
    let tape = Tape::default().with_kernels(Kernels::Plain);
    tape.start_calls();
    let tokens = tape.constant(&Tensor::from_vec(vec![0, 1, 1], [1, 3]));
    for form in model.forms().into_iter().filter(|form| !matches!(form, Form::Split(_))) {
        // A form that cannot run has no lines.
        let _ = quietly(|| model.forward(&model.params().bind_frozen(&tape), tokens, form));
    }
    let mut calls = tape.take_calls();
    calls.retain(|call| !MOVES.contains(&call.op));
    calls
}

/// Ops that move numbers and compute none: their gradient moves back.
const MOVES: [&str; 6] = ["narrow", "concat", "permute", "cast", "embedding", "gather"];

/// The ops of some lines of a file, each once: those that the lines call themselves, and those of other mixers' functions
/// in them, such as `delta_net::step`.
pub fn ops(calls: &[Called], path: &str, source: &str, lines: &[RangeInclusive<usize>]) -> Vec<&'static str> {
    let lines: Vec<RangeInclusive<usize>> = lines.iter().map(|range| statement(source, range)).collect();
    let mut all = listed(calls, path, &lines);
    for op in elsewhere(calls, (source, None), &lines, 3) {
        if !all.contains(&op) {
            all.push(op);
        }
    }
    all
}

/// The ops that these lines call themselves.
fn listed(calls: &[Called], path: &str, lines: &[RangeInclusive<usize>]) -> Vec<&'static str> {
    let here = |call: &&Called| call.file.ends_with(path) && lines.iter().any(|range| range.contains(&call.line));
    let mut all = vec![];
    for call in calls.iter().filter(here) {
        if !all.contains(&call.op) {
            all.push(call.op);
        }
    }
    all
}

/// The ops in the functions of [`HELPERS`] that these lines call by the name of the file, `delta_net::step`, and in those
/// that such a function calls in its own file, `home`.
fn elsewhere(
    calls: &[Called],
    (source, home): (&str, Option<&str>),
    lines: &[RangeInclusive<usize>],
    deep: usize,
) -> Vec<&'static str> {
    let code: Vec<&str> = source.lines().map(|line| line.split("//").next().unwrap_or_default()).collect();
    let is_name = |c: char| c.is_alphanumeric() || c == '_';
    let mut all = vec![];
    for line in lines.iter().flat_map(|range| range.clone()).filter_map(|line| code.get(line - 1)) {
        for (end, _) in line.match_indices('(') {
            let (before, name) = line[..end].split_at(line[..end].rfind(|c| !is_name(c)).map_or(0, |at| at + 1));
            let named = before.strip_suffix("::").and_then(|before| before.rsplit(|c| !is_name(c)).next());
            for (file, text) in HELPERS {
                if named.map_or(home == Some(file), |stem| file.strip_suffix(".rs") == Some(stem)) {
                    let lines: Vec<&str> = text.lines().collect();
                    let first = lines.iter().position(|line| name_of(line) == Some(name));
                    let Some(range) = first.and_then(|first| block(&lines, first)) else { continue };
                    let within = [range.start() + 1..=range.end() + 1];
                    all.extend(listed(calls, &format!("src/models/{file}"), &within));
                    if deep > 0 {
                        all.extend(elsewhere(calls, (text, Some(file)), &within, deep - 1));
                    }
                }
            }
        }
    }
    all
}

/// Lines from 1, made longer to whole statements.
fn statement(source: &str, range: &RangeInclusive<usize>) -> RangeInclusive<usize> {
    let lines: Vec<&str> = source.lines().map(|line| line.split("//").next().unwrap_or_default().trim_end()).collect();
    let ends =
        |line: usize| lines.get(line - 1).is_none_or(|line| line.is_empty() || line.ends_with([';', '{', '}', ',']));
    let first = (1..*range.start()).rev().find(|&line| ends(line)).map_or(1, |line| line + 1);
    let last = (*range.end()..=lines.len()).find(|&line| ends(line)).unwrap_or(*range.end());
    first..=last
}

macro_rules! files {
    ($below:literal: $($path:literal)*) => { [$(($path, include_str!(concat!("../", $below, "/", $path)))),*] };
}

/// The files of ops, below `src/ops`.
const FILES: [(&str, &str); 36] = files! { "ops":
    "primitives/arith.rs" "primitives/elementwise.rs" "primitives/matmul.rs" "primitives/reduce.rs" "primitives/cumsum.rs"
    "primitives/movement.rs" "primitives/permute.rs" "primitives/embed.rs" "primitives/cast.rs" "primitives/triangular.rs"
    "attention.rs" "block_diagonal.rs" "conv.rs" "delta.rs" "delta/gated.rs" "erase_write.rs" "gated_linear_attention.rs"
    "gated_skip.rs" "glu.rs" "linear.rs" "linear_attn.rs" "logsumexp.rs" "loss.rs" "lru_scan.rs" "lstm.rs" "mlstm.rs"
    "norm.rs" "norm/l2.rs" "quasi_lstm.rs" "scan.rs" "segsum.rs" "selective.rs" "slstm.rs" "softmax.rs"
    "stabiliser.rs" "tril_matmul.rs"
};

/// The files, below `src/models`, of functions that mixers call by the name of the file.
const HELPERS: [(&str, &str); 10] = files! { "models":
    "delta_net.rs" "ema.rs" "gla.rs" "gpt.rs" "kda.rs" "linear_transformer.rs" "lti.rs" "mamba.rs" "memories.rs" "positions.rs"
};

/// The file and the derivative of an op: lines from 1 of the file.
struct Entry {
    path: &'static str,
    source: &'static str,
    kind: Kind,
    lines: Vec<RangeInclusive<usize>>,
}

enum Kind {
    /// A function of one number.
    Function,
    /// A function of two.
    Binary,
    /// A sum over terms.
    Terms,
    /// Written out.
    Own,
    /// By other ops.
    Formula,
}

impl Kind {
    /// How to read its lines.
    fn says(&self) -> &'static str {
        match self {
            Kind::Function => "f(x) and f′(x): backwards, dx = f′(x) dy.",
            Kind::Binary => {
                "f(a, b), g ∂f/∂a and g ∂f/∂b, for the gradient g of f. Where a or b is repeated, its gradient is a sum."
            }
            Kind::Terms => {
                "y_i = Σ c x_j over the terms (i, n, j, c), for input n: backwards, dx_j = Σ c dy_i over the same terms."
            }
            Kind::Own => "The value, and from dy the gradient of each input, added to what is there.",
            Kind::Formula => {
                "A formula over other ops. The tape records those, and goes back through the derivatives of each: "
            }
        }
    }
}

/// Where the code of an op is that says its derivative.
fn code_of(op: &str) -> Option<Entry> {
    let quoted = format!("\"{op}\"");
    let named = |line: &str| line.contains(&quoted) && !line.trim_start().starts_with("//");
    for (path, source) in FILES {
        let lines: Vec<&str> = source.lines().collect();
        let function = lines.iter().position(|line| line.trim_start().starts_with(&format!("{op} = ")));
        if let Some(at) = function.filter(|_| path == "primitives/elementwise.rs") {
            let last = (at..lines.len()).find(|&i| lines[i].ends_with(';') && indent(lines[i]) == 4).unwrap_or(at);
            return Some(Entry { path, source, kind: Kind::Function, lines: vec![above(&lines, at) + 1..=last + 1] });
        }
        let Some(at) = lines.iter().position(|line| named(line)) else { continue };
        if !path.starts_with("primitives/") {
            return Some(Entry { path, source, kind: Kind::Formula, lines: formula(&lines, at) });
        }
        let between =
            |line: &str, from: &str, to: &[char]| Some(line.split_once(from)?.1.split_once(to)?.0.to_string());
        let of_macro = between(lines[at], "binary!(", &[',']);
        let of_impl = || (0..at).rev().find_map(|i| between(lines[i], "impl Op for ", &[' ']));
        let name = of_macro.or_else(of_impl)?;
        if let Some(at) = lines.iter().position(|line| line.starts_with(&format!("    {name}: |g"))) {
            return Some(Entry { path, source, kind: Kind::Binary, lines: vec![at + 1..=at + 1] });
        }
        let kind_block = |kind: &str| {
            let first = lines.iter().position(|line| line.starts_with(&format!("impl {kind} for {name} ")))?;
            block(&lines, first).map(|range| range.start() + 1..=range.end() + 1)
        };
        let (terms, own) = (kind_block("Terms"), kind_block("Primitive"));
        let kind = if terms.is_some() { Kind::Terms } else { Kind::Own };
        let function = kind_block("pointwise::Function");
        let kind = if function.is_some() { Kind::Function } else { kind };
        return Some(Entry { path, source, kind, lines: [function, own, terms].into_iter().flatten().collect() });
    }
    None
}

/// The lines, from 1, of the formula of the op that line `at` names, from 0: the function, the call of a macro that has
/// it, and the functions of the file that these call.
fn formula(lines: &[&str], at: usize) -> Vec<RangeInclusive<usize>> {
    let is_formula = |i: &usize| lines[*i].trim_start().starts_with("fn formula<");
    let in_macro = lines[at].contains("!(");
    let first = if in_macro { (0..at).find(is_formula) } else { (at..lines.len()).find(is_formula) };
    let mut all: Vec<RangeInclusive<usize>> = first.and_then(|first| block(lines, first)).into_iter().collect();
    if in_macro {
        let last = (at..lines.len()).find(|&i| lines[i].ends_with(");")).unwrap_or(at);
        all.push(at..=last);
    }
    let text: String =
        all.iter().flat_map(|range| lines[range.clone()].iter().map(|line| format!("{line}\n"))).collect();
    for (i, line) in lines.iter().enumerate() {
        let Some(name) = name_of(line).filter(|_| indent(line) == 0) else { continue };
        let calls = |before: char| text.contains(&format!("{before}{name}("));
        if [' ', '(', '!', '&'].into_iter().any(calls) {
            all.extend(block(lines, i));
        }
    }
    all.iter().map(|range| range.start() + 1..=range.end() + 1).collect()
}

/// The links to the derivatives of these ops.
pub fn links(ops: &[&str]) -> Markup {
    html! { @for (i, op) in ops.iter().enumerate() {
        @if i > 0 { ", " }
        a href={ (PAGE) "#" (op) } { (op) }
    } }
}

/// The page with the derivative of every op that the mixers call.
pub fn page(calls: &[Called]) -> String {
    let mut names: Vec<&str> = calls.iter().map(|call| call.op).collect();
    names.sort_unstable();
    names.dedup();
    let entries: Vec<(&str, Entry)> = names.into_iter().filter_map(|op| Some((op, code_of(op)?))).collect();
    let is_formula = |one: &&(&str, Entry)| matches!(one.1.kind, Kind::Formula);
    let (formulas, primitives): (Vec<_>, Vec<_>) = entries.iter().partition(is_formula);
    let main = html! {
        header.top { nav aria-label="Pages" { a href="index.html" { "The annotated zoo" } a href="tour.html" { "The tour" } } }
        main #main tabindex="-1" {
            h1 { "Backwards" }
            p.lead { "The derivative of every op that a mixer calls." }
            p {
                "A tape records the ops of the forward pass as they run. Backwards it goes through them from the last to the "
                "first: an op is given the gradient dy of its result, and adds to the gradient dx of each of its inputs. The "
                "gradient of an equation is that of the ops in its lines, one after another; each row of equations on a "
                "mixer's page leads here. Ops that only move numbers, such as a cut of a tensor, move the gradient back, and "
                "are not listed."
            }
            section aria-labelledby="h-primitives" {
                h2 #h-primitives { "Primitives" }
                p { "Each has its derivative in plain loops." }
                @for (op, entry) in primitives { (one(op, entry, calls)) }
            }
            section aria-labelledby="h-formulas" {
                h2 #h-formulas { "Formulas" }
                p {
                    "Each is a formula over other ops, and has no derivative of its own to be wrong. A kernel that computes it "
                    "faster must give the formula's values and gradients: " code { "cargo test --test kernels" } "."
                }
                @for (op, entry) in formulas { (one(op, entry, calls)) }
            }
        }
    };
    around("Backwards: the annotated zoo", &main, None)
}

fn one(op: &str, entry: &Entry, calls: &[Called]) -> Markup {
    let path = format!("src/ops/{}", entry.path);
    let mut parts =
        if matches!(entry.kind, Kind::Formula) { ops(calls, &path, entry.source, &entry.lines) } else { vec![] };
    parts.retain(|part| *part != op);
    html! {
        section.op id=(op) aria-label=(op) {
            h3 { (op) }
            p { (words(entry.kind.says())) @if !parts.is_empty() { (links(&parts)) "." } }
            (code(entry.source, &entry.lines))
            p.soft { code { (path) } }
        }
    }
}

/// Some lines of a file.
fn code(source: &str, ranges: &[RangeInclusive<usize>]) -> Markup {
    let lines: Vec<&str> = source.lines().collect();
    let shown = |range: &RangeInclusive<usize>| lines[range.start() - 1..*range.end()].to_vec();
    html! {
        pre.source tabindex="0" role="region" aria-label="The code" { code { @for (n, range) in ranges.iter().enumerate() {
            @if n > 0 { "…\n" }
            @let shown = shown(range);
            @let least = shown.iter().filter(|line| !line.is_empty()).map(|line| indent(line)).min().unwrap_or(0);
            @for line in shown {
                @let line = line.get(least..).unwrap_or_default();
                @let (code, comment) = line.find("//").map_or((line, ""), |at| line.split_at(at));
                (code) @if !comment.is_empty() { span.comment { (comment) } } "\n"
            }
        } } }
    }
}
