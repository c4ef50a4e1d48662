//! The sweep file: an ordinary configuration, and a table `[grid]` whose lists are the axes of a grid.
//!
//! ```toml
//! preset = "default"             # what holds at every point
//! steps = 3000
//! seeds = 3
//!
//! [grid]                         # 2 · 3 · 2 = 12 points
//! models = ["lstm", "delta_net"]
//! lr = [1e-3, 3e-3, 1e-2]
//! model.width = [16, 64]
//! ```
//! Every point is an experiment of its own with a run directory of its own, but that models and seeds share one, as in
//! any run directory. Keys that move together are an axis of tables under any name:
//! `lengths = [{ train_len = 16, eval_lens = [24] }, { train_len = 32, eval_lens = [48] }]`.

use crate::{
    error::{Error, Result, brief, did_you_mean},
    rng::fnv1a,
    train::{
        capacity,
        config::{self, TrainConfig, merge, read, said},
    },
};
use std::{
    collections::{HashMap, HashSet},
    path::{Path, PathBuf},
};
use toml::{Table, Value};

/// The most points, or runs of all points, that a sweep may have.
const MOST: usize = 100_000;

/// The longest name of a point: a file name has at most 255 bytes.
const LONGEST: usize = 120;

/// The file, and the grid that it describes.
pub struct Plan {
    /// The file as it was read; a sweep that goes on must have the same.
    pub file: Table,
    /// The names of the axes.
    pub axes: Vec<String>,
    /// The points in order, the last axis moving fastest.
    pub points: Vec<Point>,
    /// Warnings about settings of the file that have no effect.
    pub warnings: Vec<String>,
    /// The file.
    path: PathBuf,
    /// The keys that each axis sets, by its name.
    setters: Vec<(String, Vec<String>)>,
}

/// One point of the grid.
pub struct Point {
    /// Its values as a file name: `lr=0.001,model.width=16`.
    pub name: String,
    /// Its value on each axis.
    pub values: Vec<String>,
    /// The experiment.
    pub cfg: TrainConfig,
}

/// An axis: its name, and its values: how each is written, and what it sets.
type Axis = (String, Vec<(String, Table)>);

impl Plan {
    /// Read a sweep file and check every point.
    ///
    /// # Errors
    /// When the file cannot be read, an axis is no list, or a point is invalid: the error names it.
    pub fn load(path: &Path) -> Result<Plan> {
        let file = read(path)?;
        let refused = |what: String| Error::format(path, what);
        let mut base = file.clone();
        let grid = match base.remove("grid") {
            None => Table::new(),
            Some(Value::Table(grid)) => grid,
            Some(other) => return Err(refused(format!("grid = {}: expected a table of lists", said(&other)))),
        };
        if let Some(key) = file.keys().find(|key| !did_you_mean(key, ["grid"]).is_empty()) {
            let at = at(path, std::slice::from_ref(key));
            return Err(refused(format!("{at}unknown key '{key}'{}", did_you_mean(key, ["grid"]))));
        }
        let mut axes = Vec::new();
        find_axes("", &grid, &mut axes).map_err(|what| {
            let key: Vec<String> = what.split(' ').next().unwrap_or_default().split('.').map(String::from).collect();
            refused(at(path, &key) + &what)
        })?;
        let setters: Vec<(String, Vec<String>)> = axes.iter().map(keys_of).collect();
        let mut warnings = check_axes(&axes, &base).map_err(refused)?;
        runs_of_a_point(&mut axes, &mut base).map_err(refused)?;
        let count = axes.iter().try_fold(1usize, |n, axis| n.checked_mul(axis.1.len())).filter(|&n| n <= MOST);
        let count = count.ok_or_else(|| refused(format!("grid: expected at most {MOST} points")))?;

        let (mut names, mut known, mut settings) = (HashSet::new(), HashMap::new(), Vec::new());
        let points: Result<Vec<Point>> = (0..count)
            .map(|index| {
                let (mut rest, mut flags, mut values) = (index, Table::new(), vec![String::new(); axes.len()]);
                for (i, (_, choices)) in axes.iter().enumerate().rev() {
                    let (text, sets) = &choices[rest % choices.len()];
                    rest /= choices.len();
                    values[i].clone_from(text);
                    merge(&mut flags, sets.clone());
                }
                let mut name = point_name(axes.iter().map(|a| a.0.as_str()), &values);
                if name.len() > LONGEST || !names.insert(name.clone()) {
                    name = format!("{}~{index}", name.chars().take(LONGEST).collect::<String>());
                }
                let made = TrainConfig::of_point(path, base.clone(), flags);
                let point = if axes.is_empty() { String::new() } else { format!("grid point {name}: ") };
                let (cfg, set) = made.map_err(|e| at_point(e, path, &point, &setters))?;
                settings.push(set);
                // The hashes alone are kept: the texts of a hundred thousand points would be large.
                if let Some(other) = known.insert(fnv1a(cfg.to_toml()?.as_bytes()), name.clone()) {
                    let what = format!("grid points {other} and {name} are the same experiment; leave out one of them");
                    return Err(refused(what));
                }
                Ok(Point { name, values, cfg })
            })
            .collect();
        let points = points?;
        let runs = points.iter().fold(0usize, |n, p| n.saturating_add(p.cfg.models.len().saturating_mul(p.cfg.seeds)));
        if runs > MOST {
            let what =
                format!("these are {} points and {runs} runs; expected at most {MOST}: lower seeds", points.len());
            return Err(refused(what));
        }
        warnings.extend(config::warnings(&settings, false));
        let (axes, path) = (axes.into_iter().map(|a| a.0).collect(), path.into());
        Ok(Plan { file, axes, points, warnings, path, setters })
    }

    /// Refuse a run of this point that needs more memory than there is, or more time than anybody has.
    ///
    /// # Errors
    /// When it does: the error names the point, and says what needs how much and what to change.
    pub(super) fn check_run(&self, point: &Point, cfg: &TrainConfig) -> Result<()> {
        let name = if self.axes.is_empty() { String::new() } else { format!("grid point {}: ", point.name) };
        capacity::check_run(cfg).map_err(|e| at_point(e, &self.path, &name, &self.setters))
    }

    /// The same of every model at every point.
    pub(crate) fn check_runs(&self) -> Result<()> {
        self.points
            .iter()
            .try_for_each(|point| point.cfg.each_model()?.iter().try_for_each(|cfg| self.check_run(point, cfg)))
    }
}

/// The name of an axis, and the keys that it sets.
fn keys_of((name, choices): &Axis) -> (String, Vec<String>) {
    (name.clone(), choices.iter().flat_map(|(_, sets)| dotted(sets)).collect())
}

/// "line 3: " for a key of the file, if it is there.
fn at(path: &Path, key: &[String]) -> String {
    config::line(path, key).map_or(String::new(), |line| format!("line {line}: "))
}

/// An error at a point of the grid, with the file and the line of the key, or of the axis that sets it.
fn at_point(e: Error, path: &Path, point: &str, setters: &[(String, Vec<String>)]) -> Error {
    match e {
        Error::Format { path, what } => {
            let line = what.strip_prefix("line ").and_then(|rest| rest.split_once(": "));
            let what = line.map_or(format!("{point}{what}"), |(n, what)| format!("line {n}: {point}{what}"));
            Error::format(path, what)
        }
        Error::Config(what) => {
            let named = what.replace("unknown model ", "models: ");
            let mut words = named.split(|c: char| !c.is_alphanumeric() && c != '_');
            let sets = |word: &str| {
                let sets = |keys: &[String]| keys.iter().any(|key| key.rsplit('.').next() == Some(word));
                setters.iter().find(|(_, keys)| sets(keys))
            };
            let axis = words.find_map(sets).or(setters.first().filter(|_| setters.len() == 1));
            let key = |name: &String| ["grid"].into_iter().chain(name.split('.')).map(String::from).collect::<Vec<_>>();
            let at = axis.map_or(String::new(), |(name, _)| at(path, &key(name)));
            Error::format(path, format!("{at}{point}{what}"))
        }
        other => other,
    }
}

/// The lists in a table and in the tables below it.
fn find_axes(prefix: &str, table: &Table, axes: &mut Vec<Axis>) -> std::result::Result<(), String> {
    for (key, value) in table {
        let name = format!("{prefix}{key}");
        match value {
            Value::Table(inner) => find_axes(&format!("{name}."), inner, axes)?,
            Value::Array(values) if !values.is_empty() => {
                axes.push((name.clone(), values.iter().map(|value| choice(&name, value)).collect()));
            }
            other => return Err(format!("grid.{name} = {}: expected a list of at least one value", said(other))),
        }
    }
    Ok(())
}

/// Refuse an axis that has a value twice, and two axes that set the same key. The result has warnings about the keys
/// outside of the grid that an axis overrides.
fn check_axes(axes: &[Axis], base: &Table) -> std::result::Result<Vec<String>, String> {
    let mut setters: Vec<(String, &str)> = Vec::new();
    for (name, choices) in axes {
        for (i, (text, sets)) in choices.iter().enumerate() {
            // Two values of one name would be one in the tables, whatever they set.
            if choices[..i].iter().any(|(label, other)| label == text || other == sets) {
                return Err(format!("grid.{name}: {} is listed twice", brief(text, 80)));
            }
        }
        let mut keys: Vec<String> = choices.iter().flat_map(|(_, sets)| dotted(sets)).collect();
        keys.sort();
        keys.dedup();
        for key in keys {
            if let Some((_, other)) = setters.iter().find(|(set, _)| *set == key) {
                return Err(format!("grid.{other} and grid.{name} both set {key}; leave out one of them"));
            }
            setters.push((key, name));
        }
    }
    // An axis of tables need not set a key everywhere.
    let everywhere =
        |key: &String| axes.iter().any(|(_, choices)| choices.iter().all(|(_, sets)| dotted(sets).contains(key)));
    let mut set = dotted(base);
    set.retain(everywhere);
    if base.contains_key("seeds") && axes.iter().any(|axis| axis.0 == "seed") {
        set.push("seeds".into());
    }
    let setter = |key: &String| setters.iter().find(|s| s.0 == *key).map_or("seed", |s| s.1);
    Ok(set
        .iter()
        .map(|key| format!("{key} at the top has no effect: grid.{} sets it at every point", setter(key)))
        .collect())
}

/// The keys that a table sets, as `model.width`.
fn dotted(table: &Table) -> Vec<String> {
    let below = |(key, value): (&String, &Value)| match value {
        Value::Table(inner) => dotted(inner).into_iter().map(|inner| format!("{key}.{inner}")).collect(),
        _ => vec![key.clone()],
    };
    table.iter().flat_map(below).collect()
}

/// How a value of an axis is written, and what it sets.
fn choice(name: &str, value: &Value) -> (String, Table) {
    match value {
        // Keys that move together. Below `task` and the like, a table is the value itself.
        Value::Table(together) if !["task", "model", "per_model"].contains(&name) && !name.contains('.') => {
            let mut sets = together.clone();
            let label = sets.remove("name").map_or_else(|| text(value), |label| text(&label));
            (label, sets)
        }
        _ => {
            let mut parts = name.rsplit('.');
            let last = parts.next().unwrap_or(name);
            let inner = Table::from_iter([(last.to_string(), value.clone())]);
            let sets = parts.fold(inner, |inner, key| Table::from_iter([(key.to_string(), inner.into())]));
            (text(value), sets)
        }
    }
}

/// A value in few characters: `parity+num_ones=12` for a task.
fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(values) => values.iter().map(text).collect::<Vec<_>>().join("+"),
        Value::Table(table) => {
            let name = table.get("name").map(text);
            let rest = table.iter().filter(|(key, _)| *key != "name").map(|(key, v)| format!("{key}={}", text(v)));
            name.into_iter().chain(rest).collect::<Vec<_>>().join("+")
        }
        other => other.to_string(),
    }
}

/// Models and seeds are no axes: every run directory has several of both. Seeds are counted up from the first.
fn runs_of_a_point(axes: &mut Vec<Axis>, base: &mut Table) -> std::result::Result<(), String> {
    if let Some(at) = axes.iter().position(|axis| axis.0 == "models") {
        let choices = axes.remove(at).1;
        let models = choices.into_iter().flat_map(|(_, sets)| match sets.get("models") {
            Some(Value::Array(several)) => several.clone(),
            one => one.cloned().into_iter().collect(),
        });
        base.insert("models".into(), Value::Array(models.collect()));
    }
    if let Some(at) = axes.iter().position(|axis| axis.0 == "seed") {
        let choices = axes.remove(at).1;
        let listed = || choices.iter().map(|c| c.0.as_str()).collect::<Vec<_>>().join(", ");
        let seeds: Option<Vec<i64>> = choices.iter().map(|(_, sets)| sets.get("seed")?.as_integer()).collect();
        match seeds.filter(|seeds| seeds.windows(2).all(|pair| pair[0].checked_add(1) == Some(pair[1]))) {
            Some(seeds) => {
                base.insert("seed".into(), seeds[0].into());
                base.insert("seeds".into(), Value::Integer(i64::try_from(seeds.len()).unwrap_or(i64::MAX)));
            }
            None => {
                let listed = brief(&listed(), 80);
                return Err(format!("grid.seed = [{listed}]: expected whole numbers in a row, as 0, 1, 2"));
            }
        }
    }
    Ok(())
}

/// `lr=0.001,model.width=16`, of characters that are safe in file names and shells.
fn point_name<'a>(axes: impl Iterator<Item = &'a str>, values: &[String]) -> String {
    let parts: Vec<String> = axes.zip(values).map(|(axis, value)| format!("{axis}={value}")).collect();
    let safe = |c: char| if c.is_ascii_alphanumeric() || "._=+,-".contains(c) { c } else { '-' };
    if parts.is_empty() { "all".into() } else { parts.join(",").chars().map(safe).collect() }
}
