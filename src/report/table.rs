//! One table for all runs, at most 80 columns wide, and one JSON object.

use crate::{
    error::{Error, Result},
    train::{config::TrainConfig, jobs::RunReport},
};

/// The widest a line may be.
const WIDTH: usize = 80;

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

/// What the seeds of one model have in common.
struct Row<'a> {
    model: &'a str,
    runs: Vec<&'a RunReport>,
}

impl Row<'_> {
    /// Over the runs that came to their end: the numbers that `f` gives.
    fn each(&self, f: impl Fn(&RunReport) -> Option<f64>) -> Vec<f64> {
        self.runs.iter().filter(|r| r.error.is_none()).filter_map(|r| f(r)).collect()
    }

    fn accuracy(&self, len: usize) -> Vec<f64> {
        self.each(|r| r.accuracy.iter().find(|a| a.0 == len).map(|a| a.1))
    }
}

/// The table: one row a model, accuracy at each length (mean over the seeds, and the standard deviation below it
/// when there are several), parameters, steps per second, seconds. Below it, what was run, and what failed.
pub fn text(cfg: &TrainConfig, reports: &[RunReport]) -> String {
    let mut rows: Vec<Row> = Vec::new();
    for run in reports {
        match rows.last_mut() {
            Some(row) if row.model == run.model => row.runs.push(run),
            _ => rows.push(Row { model: &run.model, runs: vec![run] }),
        }
    }
    let mut lens: Vec<usize> = reports.iter().flat_map(|r| r.accuracy.iter().map(|a| a.0)).collect();
    lens.sort_unstable();
    lens.dedup();

    let name = rows.iter().map(|r| r.model.len()).max().unwrap_or(0).max(5);
    let spread = rows.iter().any(|row| row.runs.len() > 1);
    let mut text = String::new();
    // Lengths that do not fit beside the last three columns go into further blocks below.
    let per_block = (WIDTH.saturating_sub(name + 27) / 7).max(1);
    let blocks: Vec<&[usize]> = if lens.is_empty() { vec![&[]] } else { lens.chunks(per_block).collect() };
    for (i, lens) in blocks.iter().enumerate() {
        let costs = i == 0;
        let cell = |x: String, width: usize| format!("{x:>width$}");
        let mut line = format!("{:name$}", "model");
        line.extend(lens.iter().map(|len| cell(len.to_string(), 7)));
        if costs {
            line += &format!("{:>9}{:>9}{:>9}", "params", "steps/s", "wall s");
        }
        text += &format!("{line}\n{}\n", "-".repeat(line.len()));
        for row in &rows {
            text += &format!("{:name$}", row.model);
            text.extend(lens.iter().map(|&len| cell(mean(&row.accuracy(len)).map_or("-".into(), fraction), 7)));
            if costs {
                let rate = mean(&row.each(|r| Some(r.steps_per_s))).map_or("-".into(), |x| format!("{x:.0}"));
                let wall = row.runs.iter().map(|r| r.wall_s).sum::<f64>() / row.runs.len() as f64;
                text += &format!("{:>9}{rate:>9}{wall:>9.1}", row.runs[0].params);
            }
            text.push('\n');
            if spread {
                text += &" ".repeat(name);
                text.extend(
                    lens.iter().map(|&len| {
                        cell(deviation(&row.accuracy(len)).map_or(String::new(), |x| format!("±{x:.3}")), 7)
                    }),
                );
                text.truncate(text.trim_end().len());
                text.push('\n');
            }
        }
        text.push('\n');
    }
    text += &footer(cfg, reports);
    for r in reports {
        if let Some(error) = &r.error {
            text += &format!("{} seed {} stopped: {error}\n", r.model, r.seed);
        }
    }
    text
}

/// What was run, in one line.
fn footer(cfg: &TrainConfig, reports: &[RunReport]) -> String {
    let device = reports.first().map_or(cfg.device.to_string(), |r| r.device.clone());
    let seeds = if cfg.seeds == 1 { format!("seed {}", cfg.seed) } else { format!("{} seeds (± std)", cfg.seeds) };
    let TrainConfig { train_len, steps, batch, .. } = cfg;
    let task = cfg.task.title();
    format!("{task}; T={train_len}, {steps} steps, batch {batch}, {seeds}, {} on {device}\n", cfg.dtype)
}

fn mean(x: &[f64]) -> Option<f64> {
    if x.is_empty() { None } else { Some(x.iter().sum::<f64>() / x.len() as f64) }
}

/// The standard deviation of a sample; none from fewer than two numbers.
fn deviation(x: &[f64]) -> Option<f64> {
    let mean = mean(x).filter(|_| x.len() > 1)?;
    Some((x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / (x.len() - 1) as f64).sqrt())
}

/// Three decimals, rounded down, so that only what is perfect reads 1.000.
fn fraction(x: f64) -> String {
    format!("{:.3}", (x * 1000.0 + 1e-9).floor() / 1000.0)
}
