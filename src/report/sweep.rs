//! The results of a sweep: the score over each axis of its grid, two axes against each other, and the best points.
//!
//! A figure over one axis has each model at the best of its points on the other axes. Tasks are apart.

use super::{
    figures::{capital, guess, score_axis, some, summary, text_of},
    heat::{Cell, Heat},
    plot::{Figure, Line},
    scale::{Axis, Scale},
    section::{Section, clean, slug},
};
use crate::{
    error::Result,
    train::{
        rundir::SWEEP,
        sweep::{Group, Plan, Row, Shard, Summary, Sweep},
        table::mean,
    },
};
use std::{collections::BTreeMap, fs, path::Path};

/// A sweep's directory, and the results of its finished runs.
pub struct Swept {
    /// The directory's name.
    pub title: String,
    /// A name for links and files, of its own on the page.
    pub slug: String,
    /// One row a point and model.
    pub summary: Summary,
    /// The style of each model, as it is all over the page.
    styles: BTreeMap<String, usize>,
}

/// The figures of one task of a sweep.
pub struct Drawn {
    /// The score over each axis.
    pub over: Vec<Figure>,
    /// Two axes against each other: a map for each pair and model.
    pub maps: Vec<Heat>,
}

impl Drawn {
    /// Whether a figure over an axis has a line of this model.
    pub fn draws(&self, model: &str) -> bool {
        self.over.iter().flat_map(|figure| &figure.lines).any(|line| line.label == clean(model))
    }
}

impl Swept {
    /// Read the sweep in this directory.
    ///
    /// # Errors
    /// When its file or a result in it cannot be read.
    pub fn read(dir: &Path) -> Result<Swept> {
        let plan = Plan::load(&dir.join(SWEEP))?;
        let summary = Sweep::new(plan, dir, Shard { index: 0, count: 1 })?.summary();
        let whole = fs::canonicalize(dir).unwrap_or_else(|_| dir.into());
        let name = whole.file_name().unwrap_or(dir.as_os_str()).to_string_lossy();
        Ok(Swept { title: clean(&name), slug: format!("sweep-{}", slug(&name)), summary, styles: BTreeMap::new() })
    }

    /// Draw models as these sections do.
    pub fn styled_as(&mut self, sections: &[Section]) {
        for one in sections.iter().flat_map(|section| &section.series) {
            self.styles.entry(one.model.clone()).or_insert(one.style);
        }
    }

    /// The figures of each task, in the order of the summary's groups.
    pub fn draw(&self) -> Vec<Drawn> {
        self.summary.groups().iter().map(|group| self.draw_group(group)).collect()
    }

    fn draw_group(&self, group: &Group) -> Drawn {
        let axes = self.axes(group);
        let of_task = if self.summary.groups().len() > 1 { format!("-{}", slug(&group.task)) } else { String::new() };
        let name = |what: String| format!("{}{of_task}-{}", self.slug, slug(&what));
        let over = axes.iter().filter_map(|&axis| self.over(group, axis, name(self.summary.axes()[axis].clone())));
        let pairs = axes.iter().enumerate().flat_map(|(i, &x)| axes[i + 1..].iter().map(move |&y| (x, y)));
        let maps = pairs.take(MOST_PAIRS).flat_map(|(x, y)| {
            let of = move |model: &str| {
                let what = [self.summary.axes()[x].as_str(), &self.summary.axes()[y], model].join("-");
                self.map(group, (x, y), model, name(what))
            };
            on_one_scale(group.models().into_iter().filter_map(of).collect())
        });
        Drawn { over: over.collect(), maps: maps.collect() }
    }

    /// The style of a model's lines; of one without a run that of no other.
    pub fn style(&self, model: &str) -> usize {
        self.styles.get(model).copied().unwrap_or(self.styles.len())
    }

    /// The axes on which this task has several values.
    pub fn axes(&self, group: &Group) -> Vec<usize> {
        (0..self.summary.axes().len()).filter(|&axis| values(group, axis).len() > 1).collect()
    }

    /// The score over one axis.
    fn over(&self, group: &Group, axis: usize, name: String) -> Option<Figure> {
        let values = values(group, axis);
        let number = |value: &&str| value.parse().ok().filter(|x: &f64| x.abs() < 1e300);
        let numbers: Option<Vec<f64>> = values.iter().map(number).collect();
        // Values that are not numbers on a scale are placed in the order of the file.
        let places = numbers.clone().unwrap_or_else(|| (0..values.len()).map(|i| i as f64).collect());
        let what = &self.summary.axes()[axis];
        let line = |model: &str| {
            let best = best_by(group, model, |row| row.values[axis].as_str());
            let point = |(value, &x): (&&str, &f64)| {
                let row = best.get(value)?;
                let about = |said| format!("{model}, {}: {} {said}", self.point(row), group.measure());
                summary(x, &group.numbers(row), text_of(group.score), about)
            };
            let mut points: Vec<_> = values.iter().zip(&places).filter_map(point).collect();
            points.sort_by(|a, b| a.x.total_cmp(&b.x));
            Line { label: clean(model), style: self.style(model), points }
        };
        let lines = some(group.models().into_iter().map(line));
        let (lo, hi) = places.iter().fold((f64::INFINITY, f64::NEG_INFINITY), |(lo, hi), &x| (lo.min(x), hi.max(x)));
        let ticks: Vec<(f64, String)> = places.iter().copied().zip(values.iter().map(|v| clean(v))).collect();
        let x = match numbers.is_some() {
            true if lo > 0.0 && hi > 4.0 * lo => {
                Axis { scale: Scale::Log, lo: lo / 1.1, hi: hi * 1.1, ticks: sorted(ticks) }
            }
            true => Axis {
                scale: Scale::Linear,
                lo: lo - 0.03 * (hi - lo),
                hi: hi + 0.03 * (hi - lo),
                ticks: sorted(ticks),
            },
            false => Axis { scale: Scale::Linear, lo: lo - 0.3, hi: hi + 0.3, ticks },
        };
        let guess = guess(group.rows.first().map(|row| &row.task), group.score);
        (!lines.is_empty()).then(|| Figure {
            name,
            title: format!("{} over {what}", capital(&group.measure())),
            x_label: format!("{}{}", clean(what), if x.scale == Scale::Log { " (log scale)" } else { "" }),
            y: score_axis(group.score, &lines, guess),
            x,
            guess,
            trained: None,
            lines,
        })
    }

    /// One model over two axes.
    fn map(&self, group: &Group, (x, y): (usize, usize), model: &str, name: String) -> Option<Heat> {
        let (across, down) = (values(group, x), values(group, y));
        let best = best_by(group, model, |row| (row.values[x].as_str(), row.values[y].as_str()));
        let cell = |down: &&str, across: &&str| {
            let row = best.get(&(*across, *down))?;
            let value = mean(&group.numbers(row))?;
            let text = text_of(group.score)(value);
            Some(Cell { value, about: format!("{model}, {}: {} {text}", self.point(row), group.measure()), text })
        };
        let cells: Vec<Vec<Option<Cell>>> = down.iter().map(|d| across.iter().map(|a| cell(d, a)).collect()).collect();
        let clean_all = |all: &[&str]| all.iter().map(|v| clean(v)).collect();
        cells.iter().flatten().any(Option::is_some).then(|| Heat {
            name,
            title: format!("{}: {}", clean(model), group.measure()),
            x_label: clean(&self.summary.axes()[x]),
            y_label: clean(&self.summary.axes()[y]),
            x: clean_all(&across),
            y: clean_all(&down),
            range: (0.0, 1.0),
            cells,
        })
    }

    /// The point of a row in words: "lr 0.001, model.width 16".
    pub fn point(&self, row: &Row) -> String {
        let parts = self.summary.axes().iter().zip(&row.values).map(|(axis, value)| format!("{axis} {value}"));
        clean(&parts.collect::<Vec<_>>().join(", "))
    }
}

/// The most pairs of axes that have maps.
const MOST_PAIRS: usize = 3;

/// The values on an axis, in the order of the file.
fn values<'a>(group: &Group<'a>, axis: usize) -> Vec<&'a str> {
    let mut values: Vec<&str> = vec![];
    for row in &group.rows {
        let value = row.values[axis].as_str();
        values.extend(Some(value).filter(|v| !values.contains(v)));
    }
    values
}

/// For each key, the best of the model's rows with this key.
fn best_by<'a, K: Ord>(group: &Group<'a>, model: &str, key: impl Fn(&'a Row) -> K) -> BTreeMap<K, &'a Row> {
    let mut same: BTreeMap<K, Vec<&Row>> = BTreeMap::new();
    for &row in group.rows.iter().filter(|row| row.model == model) {
        same.entry(key(row)).or_default().push(row);
    }
    same.into_iter().filter_map(|(key, rows)| Some((key, group.best(rows.into_iter())?))).collect()
}

/// Maps beside each other are compared, so they share their scale.
fn on_one_scale(mut maps: Vec<Heat>) -> Vec<Heat> {
    let there = maps.iter().flat_map(|map| map.cells.iter().flatten().flatten()).map(|cell| cell.value);
    let range = there.fold((f64::INFINITY, f64::NEG_INFINITY), |(lo, hi), x| (lo.min(x), hi.max(x)));
    maps.iter_mut().for_each(|map| map.range = range);
    maps
}

fn sorted(mut ticks: Vec<(f64, String)>) -> Vec<(f64, String)> {
    ticks.sort_by(|a, b| a.0.total_cmp(&b.0));
    ticks
}
