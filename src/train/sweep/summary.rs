//! What came of a sweep: one row for each point of the grid and model, the mean and the spread over its seeds.

use super::Plan;
use crate::{
    error::{Error, Result, brief},
    tasks::Len,
    train::{
        RunReport,
        rundir::write,
        table::{deviation, mean, number},
    },
};
use serde_json::{Map, Value, json};
use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

pub const CSV: &str = "summary.csv";
pub const JSONL: &str = "summary.jsonl";
pub const TXT: &str = "summary.txt";

/// The widest a line of the table may be, unless one column needs more.
const WIDTH: usize = 100;

/// Rows of results, and what their columns are called.
pub struct Summary {
    axes: Vec<String>,
    rows: Vec<Row>,
    /// The scores and the lengths of which there are numbers.
    columns: Vec<(String, Len)>,
}

/// One model at one point of the grid.
struct Row {
    point: String,
    values: Vec<String>,
    model: String,
    /// The runs that came to their end.
    runs: Vec<RunReport>,
    /// The seeds of those that failed, and of those that are still to do.
    failed: Vec<u64>,
    missing: usize,
}

impl Row {
    fn numbers(&self, score: &str, len: Len) -> Vec<f64> {
        let of = |run: &RunReport| {
            let at = if score == "accuracy" { Some(&run.accuracy) } else { run.scores.get(score) }?;
            at.iter().find(|a| a.0 == len).map(|a| a.1)
        };
        self.runs.iter().filter_map(of).collect()
    }

    fn steps_per_s(&self) -> Option<f64> {
        mean(&self.runs.iter().map(|run| run.steps_per_s).collect::<Vec<_>>())
    }
}

impl Summary {
    /// From the reports of each point, in the order of the plan's points.
    pub fn new(plan: &Plan, reports: Vec<Vec<RunReport>>) -> Summary {
        let mut rows = Vec::new();
        for (point, reports) in plan.points.iter().zip(reports) {
            for model in &point.cfg.models {
                let (runs, failed): (Vec<RunReport>, Vec<RunReport>) =
                    reports.iter().filter(|r| &r.model == model).cloned().partition(|r| r.error.is_none());
                let missing =
                    point.cfg.for_model(model).map_or(0, |own| own.seeds).saturating_sub(runs.len() + failed.len());
                let failed = failed.iter().map(|r| r.seed).collect();
                let (name, values) = (point.name.clone(), point.values.clone());
                rows.push(Row { point: name, values, model: model.clone(), runs, failed, missing });
            }
        }
        let mut found: BTreeMap<String, BTreeSet<Len>> = BTreeMap::new();
        for run in rows.iter().flat_map(|row| &row.runs) {
            let own = [("accuracy", &run.accuracy)].into_iter();
            for (name, of) in own.chain(run.scores.iter().map(|(name, of)| (name.as_str(), of))) {
                found.entry(name.into()).or_default().extend(of.iter().map(|a| a.0));
            }
        }
        let columns = found.into_iter().flat_map(|(name, lens)| lens.into_iter().map(move |len| (name.clone(), len)));
        Summary { axes: plan.axes.clone(), rows, columns: columns.collect() }
    }

    /// Write `summary.csv`, `summary.jsonl` and `summary.txt`.
    ///
    /// # Errors
    /// When they cannot be written.
    pub fn write(&self, out: &Path) -> Result<()> {
        let csv = out.join(CSV);
        write(&csv, &self.csv().map_err(|e| Error::format(&csv, e.to_string()))?)?;
        write(&out.join(JSONL), self.jsonl().as_bytes())?;
        write(&out.join(TXT), self.text().as_bytes())
    }

    /// A line for each row: the axes, the model, and for each score and length the mean and the standard deviation.
    fn csv(&self) -> std::result::Result<Vec<u8>, csv::Error> {
        let mut csv = csv::Writer::from_writer(Vec::new());
        let fixed = ["model", "params", "finished", "failed", "missing", "steps_per_s"].map(String::from);
        let scores = self.columns.iter().flat_map(|(name, len)| [format!("{name}_{len}"), format!("{name}_{len}_std")]);
        csv.write_record(["point".to_string()].into_iter().chain(self.axes.clone()).chain(fixed).chain(scores))?;
        let text = |x: Option<f64>| x.map_or(String::new(), |x| x.to_string());
        for row in &self.rows {
            let params = row.runs.first().map_or(String::new(), |run| run.params.to_string());
            let counts = [row.runs.len(), row.failed.len(), row.missing].map(|n| n.to_string());
            let mut record = vec![row.point.clone()];
            record.extend(row.values.clone());
            record.extend([row.model.clone(), params]);
            record.extend(counts);
            record.push(text(row.steps_per_s()));
            for (name, len) in &self.columns {
                let numbers = row.numbers(name, *len);
                record.extend([text(mean(&numbers)), text(deviation(&numbers))]);
            }
            csv.write_record(record)?;
        }
        csv.into_inner().map_err(|e| e.into_error().into())
    }

    /// An object for each row, with the numbers of the single seeds.
    fn jsonl(&self) -> String {
        let line = |row: &Row| {
            let mut scores: BTreeMap<&str, Map<String, Value>> = BTreeMap::new();
            for (name, len) in &self.columns {
                let values = row.numbers(name, *len);
                if !values.is_empty() {
                    let one = json!({ "mean": mean(&values), "std": deviation(&values), "values": values });
                    scores.entry(name).or_default().insert(len.to_string(), one);
                }
            }
            let axes: Map<String, Value> =
                self.axes.iter().cloned().zip(row.values.iter().map(|value| json!(value))).collect();
            let seeds: Vec<u64> = row.runs.iter().map(|run| run.seed).collect();
            let params = row.runs.first().map(|run| run.params);
            json!({ "point": row.point, "axes": axes, "model": row.model, "params": params, "seeds": seeds,
                "failed": row.failed, "missing": row.missing, "steps_per_s": row.steps_per_s(), "scores": scores })
        };
        self.rows.iter().map(|row| format!("{}\n", line(row))).collect()
    }

    /// The table: a block for each score, and as many lengths beside each other as fit.
    pub fn text(&self) -> String {
        let mut text = String::new();
        let axes: Vec<String> = self.axes.iter().map(|axis| brief(axis, WIDTH)).collect();
        let head: Vec<&str> = axes.iter().map(String::as_str).chain(["model", "seeds"]).collect();
        let labels: Vec<Vec<String>> = self.rows.iter().map(Row::labels).collect();
        let widths: Vec<usize> = (0..head.len())
            .map(|i| {
                labels.iter().map(|l| l[i].chars().count()).chain([head[i].chars().count()]).max().unwrap_or(0) + 2
            })
            .collect();
        let left = |cells: &[String]| -> String {
            let padded = cells.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}"));
            padded.collect()
        };
        let per_block = (WIDTH.saturating_sub(widths.iter().sum()) / 13).max(1);
        for of in self.columns.chunk_by(|a, b| a.0 == b.0).flat_map(|score| score.chunks(per_block)) {
            let head: Vec<String> = head.iter().map(ToString::to_string).collect();
            let lens: String = of.iter().map(|(_, len)| format!("{:13}", len.to_string())).collect();
            let title = format!("{}{lens}", left(&head));
            text += &format!("{}\n{}\n{}\n", of[0].0, title.trim_end(), "-".repeat(title.trim_end().len()));
            for (row, labels) in self.rows.iter().zip(&labels) {
                let cells: String =
                    of.iter().map(|(name, len)| format!("{:13}", cell(name, &row.numbers(name, *len)))).collect();
                text += &format!("{}\n", format!("{}{cells}", left(labels)).trim_end());
            }
            text.push('\n');
        }
        let count = |f: fn(&Row) -> usize| self.rows.iter().map(f).sum::<usize>();
        let (finished, failed) = (count(|row| row.runs.len()), count(|row| row.failed.len()));
        let missing = count(|row| row.missing);
        text + &format!("{finished} runs finished, {failed} failed, {missing} to do; mean ± std over the seeds\n")
    }
}

impl Row {
    /// What a row begins with, for a terminal: values are what a file says.
    fn labels(&self) -> Vec<String> {
        let failed = if self.failed.is_empty() { String::new() } else { format!(" ({} failed)", self.failed.len()) };
        let seeds = format!("{}{failed}", self.runs.len());
        self.values.iter().map(|value| brief(value, WIDTH)).chain([self.model.clone(), seeds]).collect()
    }
}

fn cell(score: &str, numbers: &[f64]) -> String {
    let spread = deviation(numbers).map_or(String::new(), |std| format!(" ±{std:.3}"));
    mean(numbers).map_or("-".into(), |mean| number(Some(score), mean) + &spread)
}
