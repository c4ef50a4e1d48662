//! One table for all runs, at most 80 columns wide, and one JSON object.

use super::{RunReport, config::TrainConfig};
use crate::{
    error::{Error, Result},
    tasks::{BITS, Len, less_is_better},
    terminal::{WIDTH, fit},
};
use std::collections::BTreeSet;

/// The note below a table in which a number reads 1.000.
pub(crate) const PERFECT: &str = "Only what is perfect reads 1.000.";

/// The reports as one JSON object: `{"runs": [..]}`.
///
/// # Errors
/// When a report cannot be written as JSON.
pub fn json(reports: &[RunReport]) -> Result<String> {
    #[derive(serde::Serialize)]
    struct Runs<'a> {
        runs: &'a [RunReport],
    }
    serde_json::to_string_pretty(&Runs { runs: reports }).map(|s| s + "\n").map_err(|e| Error::Config(e.to_string()))
}

/// The runs of one model, from all seeds.
struct Row<'a> {
    model: &'a str,
    runs: Vec<&'a RunReport>,
}

impl Row<'_> {
    /// The numbers that `f` gives for the runs that came to their end.
    fn each(&self, f: impl Fn(&RunReport) -> Option<f64>) -> Vec<f64> {
        self.runs.iter().filter(|r| r.error.is_none()).filter_map(|r| f(r)).collect()
    }

    /// The score of this name, or the accuracy.
    fn score(&self, name: Option<&str>, len: Len) -> Vec<f64> {
        let of = |r: &RunReport| {
            let at = name.map_or(Some(&r.accuracy), |name| r.scores.get(name))?;
            at.iter().find(|a| a.0 == len).map(|a| a.1)
        };
        self.each(of)
    }
}

/// The table: one row a model, accuracy at each length (mean over the seeds, and the standard deviation below it
/// when there are several), parameters, steps per second, seconds. Below it the task's other scores in the same way,
/// what was run, and what failed.
pub fn text(cfg: &TrainConfig, reports: &[RunReport]) -> String {
    text_within(WIDTH, cfg, reports)
}

/// The table on a terminal of so many columns: where a row does not fit, lengths and costs are in blocks below each
/// other.
pub fn text_within(width: usize, cfg: &TrainConfig, reports: &[RunReport]) -> String {
    let width = width.min(WIDTH);
    let mut rows: Vec<Row> = Vec::new();
    for run in reports {
        match rows.last_mut() {
            Some(row) if row.model == run.model => row.runs.push(run),
            _ => rows.push(Row { model: &run.model, runs: vec![run] }),
        }
    }
    let mut lens: Vec<Len> = reports.iter().flat_map(|r| r.accuracy.iter().map(|a| a.0)).collect();
    lens.sort_unstable();
    lens.dedup();
    let scores: BTreeSet<&String> = reports.iter().flat_map(|r| r.scores.keys()).collect();

    let names = rows.iter().map(|r| r.model).chain(scores.iter().map(|s| s.as_str()));
    let name = names.map(str::len).max().unwrap_or(0).max(if scores.is_empty() { 5 } else { 8 });
    // A length, a mean or a deviation, and a space before it.
    let of_a_score = |score: Option<&str>| {
        let widest = |&len: &Len| {
            let numbers = rows.iter().map(|row| row.score(score, len));
            let texts = numbers.flat_map(|x| [mean(&x).map(|x| number(score, x)), deviation(&x).map(plus_minus)]);
            texts.flatten().map(|text| text.chars().count()).max().unwrap_or(0).max(len.to_string().len())
        };
        lens.iter().map(widest).max().unwrap_or(0)
    };
    let all = scores.iter().map(|score| Some(score.as_str())).chain([None]);
    let column = all.map(of_a_score).max().unwrap_or(0).max(6) + 1;
    let mut text = String::new();
    let mut perfect = false;
    // Lengths that do not fit beside the last three columns go into further blocks below; the three as well where not
    // even one length does.
    let beside = width >= name + 3 * COST + column;
    let per_block = (width.saturating_sub(name + if beside { 3 * COST } else { 0 }) / column).max(1);
    // Of a text, accuracy says less than bits.
    let (first, rest): (Vec<_>, Vec<_>) = scores.iter().map(Some).partition(|s| s.is_some_and(|s| *s == BITS));
    for (i, score) in first.into_iter().chain([None]).chain(rest).enumerate() {
        let blocks: Vec<&[Len]> = if lens.is_empty() { vec![&[]] } else { lens.chunks(per_block).collect() };
        for (j, lens) in blocks.iter().enumerate() {
            // The score needs no name where all numbers are accuracies.
            let corner = score.map_or(if scores.is_empty() { "model" } else { "accuracy" }, |s| s.as_str());
            let costs = if i + j == 0 && beside { &COSTS[..] } else { &[] };
            let block = block(&rows, corner, score.map(|s| s.as_str()), lens, costs, name, column);
            perfect |= score.is_none_or(|s| !less_is_better(s)) && block.contains(" 1.000");
            text += &block;
            text.push('\n');
        }
    }
    if !beside {
        for costs in COSTS.chunks((width.saturating_sub(name) / COST).max(1)) {
            text += &block(&rows, "model", None, &[], costs, name, column);
            text.push('\n');
        }
    }
    let last = footer(cfg, reports) + if perfect { PERFECT } else { "" } + if perfect { "\n" } else { "" };
    text += &fit(&last, width);
    // These lines are not broken: they have paths to copy.
    for r in reports {
        if let Some(error) = &r.error {
            text += &format!("{} seed {} stopped: {error}\n", r.model, r.seed);
        }
    }
    text
}

/// The heads of the last three columns, and the width of each.
const COSTS: [&str; 3] = ["params", "steps/s", "wall s"];
const COST: usize = 9;

/// The lines of some lengths: one score, or the accuracy, and the costs.
fn block(
    rows: &[Row],
    corner: &str,
    score: Option<&str>,
    lens: &[Len],
    costs: &[&str],
    name: usize,
    column: usize,
) -> String {
    let cell = |x: String| format!("{x:>column$}");
    let mut line = format!("{corner:name$}");
    line.extend(lens.iter().map(|len| cell(len.to_string())));
    line.extend(costs.iter().map(|cost| format!("{cost:>COST$}")));
    let mut text = format!("{line}\n{}\n", "-".repeat(line.len()));
    let several = rows.iter().any(|row| row.runs.len() > 1);
    for row in rows {
        text += &format!("{:name$}", row.model);
        text.extend(
            lens.iter().map(|&len| cell(mean(&row.score(score, len)).map_or("-".into(), |x| number(score, x)))),
        );
        let cost = |what: &&str| match *what {
            "params" => row.runs[0].params.to_string(),
            "steps/s" => mean(&row.each(|r| Some(r.steps_per_s))).map_or("-".into(), rate),
            _ => mean(&row.each(|r| Some(r.wall_s))).map_or("-".into(), |x| format!("{x:.1}")),
        };
        text.extend(costs.iter().map(|what| format!(" {:>1$}", cost(what), COST - 1)));
        text.push('\n');
        if several && !lens.is_empty() {
            let deviations = |&len: &Len| deviation(&row.score(score, len)).map_or(String::new(), plus_minus);
            let line: String = lens.iter().map(deviations).map(cell).collect();
            text += format!("{}{line}", " ".repeat(name)).trim_end();
            text.push('\n');
        }
    }
    text
}

/// The settings of the runs, in one line.
fn footer(cfg: &TrainConfig, reports: &[RunReport]) -> String {
    let device = reports.first().map_or(cfg.device.to_string(), |r| r.device.clone());
    let seeds = if cfg.seeds == 1 { format!("seed {}", cfg.seed) } else { format!("{} seeds (± std)", cfg.seeds) };
    let TrainConfig { train_len, batch, .. } = cfg;
    let task = cfg.task.title();
    // A model may have a number of its own.
    let all = || reports.iter().map(|r| r.steps);
    let steps = match (all().min(), all().max()) {
        (Some(least), Some(most)) if least < most => format!("{least}-{most}"),
        (one, _) => one.unwrap_or(cfg.steps).to_string(),
    };
    format!("{task}; T={train_len}, {steps} steps, batch {batch}, {seeds}, {} on {device}\n", cfg.dtype)
}

/// Steps in a second: a whole number, or of a slow run two decimals.
pub(crate) fn rate(steps_per_s: f64) -> String {
    format!("{steps_per_s:.*}", if steps_per_s < 10.0 { 2 } else { 0 })
}

pub(crate) fn mean(x: &[f64]) -> Option<f64> {
    if x.is_empty() { None } else { Some(x.iter().sum::<f64>() / x.len() as f64) }
}

/// The standard deviation of a sample; none from fewer than two numbers.
pub(crate) fn deviation(x: &[f64]) -> Option<f64> {
    let mean = mean(x).filter(|_| x.len() > 1)?;
    Some((x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / (x.len() - 1) as f64).sqrt())
}

/// A standard deviation with three decimals; only none at all reads 0.000.
pub(crate) fn plus_minus(x: f64) -> String {
    if 0.0 < x && x < 0.0005 { "±<0.001".into() } else { format!("±{x:.3}") }
}

/// A score of this name, or the accuracy, with three decimals.
pub(crate) fn number(score: Option<&str>, x: f64) -> String {
    if score == Some(BITS) { format!("{x:.3}") } else { fraction(x) }
}

/// A fraction with three decimals; only 1 itself reads 1.000.
pub(crate) fn fraction(x: f64) -> String {
    let rounded = (x * 1000.0).round() / 1000.0;
    format!("{:.3}", if rounded == 1.0 && x < 1.0 - 1e-12 { 0.999 } else { rounded })
}

/// Whether the first of two means of a score is the better one.
pub(crate) fn better(score: &str, x: f64, y: f64) -> bool {
    if less_is_better(score) { x < y } else { x > y }
}
