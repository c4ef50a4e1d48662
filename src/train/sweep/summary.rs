//! The results of a sweep: one row for each point of the grid and model, with the mean and the spread over its seeds.

use super::Plan;
use crate::{
    error::{Error, Result, brief, count},
    tasks::{BITS, Len, Tasks, less_is_better},
    terminal::fit,
    train::{
        RunReport,
        rundir::write,
        table::{PERFECT, better, deviation, mean, number, plus_minus},
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
pub struct Row {
    /// The point's name, which is that of its directory.
    pub point: String,
    /// Its value on each axis.
    pub values: Vec<String>,
    /// The mixer, or the name of a variant of it.
    pub model: String,
    /// The task: only scores of one task can be compared.
    pub task: Tasks,
    /// The runs that came to their end.
    pub runs: Vec<RunReport>,
    /// The seeds of the runs that failed, and the number of runs that are still to do.
    failed: Vec<u64>,
    missing: usize,
}

/// The rows of one task, and the score that they are compared by.
pub struct Group<'a> {
    /// The task, in words.
    pub task: String,
    /// Its rows.
    pub rows: Vec<&'a Row>,
    /// The score: bits where there are any, and else the accuracy.
    pub score: &'static str,
    /// The length of the score: the longest that all have; none if they have none in common, and each counts at its
    /// longest.
    pub len: Option<Len>,
}

impl Group<'_> {
    /// The number that this row is compared by, of each seed.
    pub fn numbers(&self, row: &Row) -> Vec<f64> {
        let len = self.len.or_else(|| row.lens(self.score).into_iter().max());
        len.map_or(vec![], |len| row.numbers(self.score, len))
    }

    /// The best of these rows, by the mean over its seeds; of equals the first.
    pub fn best<'r>(&self, rows: impl Iterator<Item = &'r Row>) -> Option<&'r Row> {
        let means = rows.filter_map(|row| Some((row, mean(&self.numbers(row))?)));
        means.reduce(|a, b| if better(self.score, b.1, a.1) { b } else { a }).map(|of| of.0)
    }

    /// Whether any model is at several points.
    pub fn has_a_choice(&self) -> bool {
        self.rows.len() > self.models().len()
    }

    /// The best point of each model that has one.
    pub fn best_of_each_model(&self) -> Vec<&Row> {
        let of = |model: &str| self.best(self.rows.iter().copied().filter(|row| row.model == model));
        self.models().into_iter().filter_map(of).collect()
    }

    /// The models, in the order of the rows.
    pub fn models(&self) -> Vec<&str> {
        let mut models: Vec<&str> = vec![];
        self.rows.iter().for_each(|row| models.extend(Some(row.model.as_str()).filter(|m| !models.contains(m))));
        models
    }

    /// The score and the length in words: "accuracy at length 64".
    pub fn measure(&self) -> String {
        let len = self.len.map_or("its longest length".into(), |len| format!("length {len}"));
        format!("{} at {len}", self.score.replace('_', " "))
    }
}

impl Row {
    fn lens(&self, score: &str) -> BTreeSet<Len> {
        let at = |run: &RunReport| -> Vec<Len> {
            let of = if score == "accuracy" { Some(&run.accuracy) } else { run.scores.get(score) };
            of.into_iter().flatten().map(|a| a.0).collect()
        };
        self.runs.iter().flat_map(at).collect()
    }

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
    /// The summary of the reports of each point, in the order of the plan's points.
    pub fn new(plan: &Plan, reports: Vec<Vec<RunReport>>) -> Summary {
        let mut rows = Vec::new();
        for (point, reports) in plan.points.iter().zip(reports) {
            for model in &point.cfg.models {
                let (runs, failed): (Vec<RunReport>, Vec<RunReport>) =
                    reports.iter().filter(|r| &r.model == model).cloned().partition(|r| r.error.is_none());
                let missing =
                    point.cfg.for_model(model).map_or(0, |own| own.seeds).saturating_sub(runs.len() + failed.len());
                let failed = failed.iter().map(|r| r.seed).collect();
                let (name, values, task) = (point.name.clone(), point.values.clone(), point.cfg.task.clone());
                rows.push(Row { point: name, values, model: model.clone(), task, runs, failed, missing });
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

    /// The names of the axes.
    pub fn axes(&self) -> &[String] {
        &self.axes
    }

    /// How many runs came to their end.
    pub fn finished(&self) -> usize {
        self.rows.iter().map(|row| row.runs.len()).sum()
    }

    /// The rows of each task, in the order of the tasks.
    pub fn groups(&self) -> Vec<Group<'_>> {
        let mut tasks: Vec<&Tasks> = vec![];
        self.rows.iter().for_each(|row| tasks.extend(Some(&row.task).filter(|t| !tasks.contains(t))));
        let group = |task: &Tasks| {
            let rows: Vec<&Row> = self.rows.iter().filter(|row| row.task == *task).collect();
            let bits = rows.iter().any(|row| !row.lens(BITS).is_empty());
            let score = if bits { BITS } else { "accuracy" };
            let lens = rows.iter().map(|row| row.lens(score)).filter(|lens| !lens.is_empty());
            let common = lens.reduce(|a, b| a.intersection(&b).copied().collect()).unwrap_or_default();
            Group { task: task.title(), rows, score, len: common.into_iter().max() }
        };
        tasks.into_iter().map(group).collect()
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
        self.text_within(WIDTH)
    }

    /// The table on a terminal of so many columns; where not even one length fits, rows are broken.
    pub fn text_within(&self, columns: usize) -> String {
        let columns = columns.min(WIDTH);
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
        let mut perfect = false;
        let cells = self.columns.iter().flat_map(|(name, len)| {
            [len.to_string()].into_iter().chain(self.rows.iter().map(|row| cell(name, &row.numbers(name, *len))))
        });
        let column = cells.map(|cell| cell.chars().count()).max().unwrap_or(0).max(12) + 1;
        let per_block = (columns.saturating_sub(widths.iter().sum()) / column).max(1);
        for of in self.columns.chunk_by(|a, b| a.0 == b.0).flat_map(|score| score.chunks(per_block)) {
            let head: Vec<String> = head.iter().map(ToString::to_string).collect();
            let lens: String = of.iter().map(|(_, len)| format!("{:column$}", len.to_string())).collect();
            let title = format!("{}{lens}", left(&head));
            let from = text.len();
            let line = "-".repeat(title.trim_end().chars().count().min(columns));
            text += &format!("{}\n{}\n{line}\n", of[0].0, title.trim_end());
            // A task that has no such score has no rows here.
            let of_its_task = |row: &Row| {
                of[0].0 == "accuracy" || self.rows.iter().any(|r| r.task == row.task && !r.lens(&of[0].0).is_empty())
            };
            for (row, labels) in self.rows.iter().zip(&labels).filter(|(row, _)| of_its_task(row)) {
                let cells: String =
                    of.iter().map(|(name, len)| format!("{:column$}", cell(name, &row.numbers(name, *len)))).collect();
                text += &format!("{}\n", format!("{}{cells}", left(labels)).trim_end());
            }
            perfect |= !less_is_better(&of[0].0) && text[from..].contains(" 1.000");
            text.push('\n');
        }
        // The best points, where there is a choice.
        for group in self.groups().iter().filter(|group| group.has_a_choice()) {
            let best = group.best_of_each_model();
            if best.is_empty() {
                continue;
            }
            text += &format!("{}: the best point of each model, by {}\n", brief(&group.task, WIDTH), group.measure());
            for row in best {
                let cells = left(&row.labels());
                text += &format!("{cells}{}\n", cell(group.score, &group.numbers(row)));
            }
            text.push('\n');
        }
        let all = |f: fn(&Row) -> usize| self.rows.iter().map(f).sum::<usize>();
        let (finished, failed) = (count(all(|row| row.runs.len()), "run"), all(|row| row.failed.len()));
        let missing = all(|row| row.missing);
        text += &format!("{finished} finished, {failed} failed, {missing} to do; mean ± std over the seeds\n");
        text += if perfect { PERFECT } else { "" };
        fit(&text, columns)
    }
}

impl Row {
    /// The first cells of a row, for a terminal.
    fn labels(&self) -> Vec<String> {
        let failed = if self.failed.is_empty() { String::new() } else { format!(" ({} failed)", self.failed.len()) };
        let seeds = format!("{}{failed}", self.runs.len());
        self.values.iter().map(|value| brief(value, WIDTH)).chain([self.model.clone(), seeds]).collect()
    }
}

fn cell(score: &str, numbers: &[f64]) -> String {
    let spread = deviation(numbers).map_or(String::new(), |std| format!(" {}", plus_minus(std)));
    mean(numbers).map_or("-".into(), |mean| number(Some(score), mean) + &spread)
}
