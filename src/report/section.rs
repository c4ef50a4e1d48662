//! Runs that can be compared: the same task, trained in the same way.
//!
//! A section holds the runs, of whichever directory, whose configurations agree but for the model, the seed, where
//! and in which form it was computed, and what a model has of its own (`per_model`). In it, a series is one model in
//! one configuration, over its seeds.

use super::load::{Experiment, Run};
use crate::tasks::{Len, Tasks};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use toml::{Table, Value};

/// A configuration as flat keys (`model.width`) and values.
pub type Settings = BTreeMap<String, String>;

/// Keys that say which runs there are, and not how one was trained.
const WHICH: [&str; 5] = ["models", "seed", "seeds", "preset", "per_model"];

/// Keys that a section's runs may differ in, though all of a directory share them.
const WHERE: [&str; 2] = ["device", "form"];

/// How many keys a title names at most.
const MOST_KEYS: usize = 3;

/// Runs that can be compared.
pub struct Section {
    /// The task, and what sets this section apart from others of that task.
    pub title: String,
    /// A name for links and files, of its own on the page.
    pub slug: String,
    /// The task, if this version knows it.
    pub task: Option<Tasks>,
    /// The training length, if it is one.
    pub train_len: Option<Len>,
    /// The settings that all series share.
    pub shared: Settings,
    /// The series, in the order of the configuration.
    pub series: Vec<Series>,
}

/// One model in one configuration.
pub struct Series {
    /// The model, and what sets it apart from others of that model.
    pub label: String,
    /// The mixer.
    pub model: String,
    /// The whole configuration.
    pub settings: Settings,
    /// A run for each seed, by seed, with the directory that it is from.
    pub runs: Vec<(Run, String)>,
    /// The number of its colour, dash and marker: the same for this label all over the page.
    pub style: usize,
}

impl Section {
    /// The lengths that any run was evaluated at.
    pub fn lens(&self) -> Vec<Len> {
        let of = |r: &Run| -> BTreeSet<Len> {
            r.end
                .iter()
                .chain(r.evaluations.values())
                .flat_map(|m| m.values())
                .flat_map(|s| s.keys().copied())
                .collect()
        };
        let lens: BTreeSet<Len> = self.runs().flat_map(of).collect();
        lens.into_iter().collect()
    }

    /// The names of the scores that any run has, the accuracy first.
    pub fn scores(&self) -> Vec<String> {
        let of = |r: &Run| -> BTreeSet<String> {
            r.end.iter().chain(r.evaluations.values()).flat_map(|m| m.keys().cloned()).collect()
        };
        let mut scores: Vec<String> = self.runs().flat_map(of).collect::<BTreeSet<_>>().into_iter().collect();
        scores.sort_by_key(|name| name != "accuracy");
        scores
    }

    /// The keys that the series differ in.
    pub fn differing(&self) -> Vec<String> {
        differing(self.series.iter().map(|s| &s.settings))
    }

    /// Every run.
    pub fn runs(&self) -> impl Iterator<Item = &Run> {
        self.series.iter().flat_map(|s| s.runs.iter().map(|r| &r.0))
    }
}

impl Series {
    /// This score at the end, at this length, of every seed that came to its end.
    pub fn ends(&self, score: &str, len: Len) -> Vec<f64> {
        self.runs.iter().filter_map(|(r, _)| r.end.as_ref()?.get(score)?.get(&len).copied()).collect()
    }
}

/// Sort the runs into sections. A run that is there twice counts once; `notes` says so.
pub fn sections(experiments: Vec<Experiment>, notes: &mut Vec<String>) -> Vec<Section> {
    let mut sections: Vec<(Settings, Section)> = Vec::new();
    for experiment in experiments {
        let base = without(&flat(&experiment.config), &WHERE);
        let i = sections.iter().position(|s| s.0 == base).unwrap_or_else(|| {
            sections.push((base, section(&experiment.config)));
            sections.len() - 1
        });
        let path = experiment.path.display().to_string();
        for run in experiment.runs {
            let settings = settings(&experiment.config, &run.model);
            add(&mut sections[i].1, run, settings, &path, notes);
        }
    }
    sections.retain(|s| !s.1.series.is_empty());
    let bases: Vec<Settings> = sections.iter().map(|s| s.0.clone()).collect();
    let mut sections: Vec<Section> = sections.into_iter().map(|s| s.1).collect();
    for (i, base) in bases.iter().enumerate() {
        // The keys that set the section apart from the others of its task; the length is in the title already.
        let same: Vec<&Settings> = (0..bases.len()).filter(|&j| alike(base, &bases[j])).map(|j| &bases[j]).collect();
        let keys = differing(same.into_iter());
        let mut apart: Vec<String> = keys.iter().take(MOST_KEYS).map(|key| word(base, key)).collect();
        if keys.len() > MOST_KEYS {
            apart.push(format!("and {} keys more", keys.len() - MOST_KEYS));
        }
        if !apart.is_empty() {
            sections[i].title += &format!("; {}", apart.join(", "));
        }
    }
    for i in 0..sections.len() {
        finish(&mut sections, i);
    }
    style(&mut sections);
    sections
}

/// A section without runs.
fn section(config: &Table) -> Section {
    let table = config.get("task").cloned().unwrap_or(Value::Table(Table::new()));
    let name = table.get("name").and_then(Value::as_str).unwrap_or_default().to_string();
    let task = Tasks::deserialize(table).ok();
    let train_len = config.get("train_len").and_then(|len| Len::deserialize(len.clone()).ok());
    let title = task.as_ref().map_or(name, |task| task.title());
    let trained = train_len.map_or(String::new(), |len| format!(", trained on length {len}"));
    let title = clean(&format!("{title}{trained}"));
    Section { title, slug: String::new(), task, train_len, shared: Settings::new(), series: Vec::new() }
}

fn add(section: &mut Section, run: Run, settings: Settings, path: &str, notes: &mut Vec<String>) {
    let series = &mut section.series;
    let i = series.iter().position(|s| s.model == run.model && s.settings == settings).unwrap_or_else(|| {
        let model = clean(&run.model);
        series.push(Series { label: model, model: run.model.clone(), settings, runs: Vec::new(), style: 0 });
        series.len() - 1
    });
    let runs = &mut series[i].runs;
    match runs.iter_mut().find(|r| r.0.seed == run.seed) {
        None => runs.push((run, clean(path))),
        Some(first) => {
            // Of two runs, the one that came to its end is kept, and of two such the one with a result.
            let rank = |run: &Run| (run.end.is_some(), run.cost.is_some());
            let better = rank(&first.0) < rank(&run);
            let (kept, other) = if better { (path, first.1.as_str()) } else { (first.1.as_str(), path) };
            let (model, seed) = (&run.model, run.seed);
            notes.push(format!("{model} seed {seed} is in {other} and {kept}, equally configured; the latter counts"));
            if better {
                *first = (run, clean(path));
            }
        }
    }
    runs.sort_by_key(|r| r.0.seed);
}

/// Set the labels, the shared settings and the slug, once all runs are there.
fn finish(sections: &mut [Section], i: usize) {
    let (before, rest) = sections.split_at_mut(i);
    let section = &mut rest[0];
    let keys = section.differing();
    section.shared = section.series[0].settings.clone();
    section.shared.retain(|key, _| !keys.contains(key));
    for model in section.series.iter().map(|s| s.model.clone()).collect::<BTreeSet<_>>() {
        let same = || section.series.iter().filter(|s| s.model == model).map(|s| &s.settings);
        let keys = differing(same());
        for s in section.series.iter_mut().filter(|s| s.model == model && !keys.is_empty()) {
            let apart: Vec<String> = keys.iter().map(|key| word(&s.settings, key)).collect();
            s.label += &format!(" ({})", apart.join(", "));
        }
    }
    let mut taken = before.iter().map(|s| s.slug.clone()).collect();
    section.slug = super::free(&slug(&section.title), &mut taken);
}

/// One style for each label of the page: known mixers in the order of the tables, then the others.
fn style(sections: &mut [Section]) {
    let known = crate::models::names();
    let place = |s: &Series| known.iter().position(|m| *m == s.model).unwrap_or(known.len());
    let labels: BTreeSet<(usize, String)> =
        sections.iter().flat_map(|s| &s.series).map(|s| (place(s), s.label.clone())).collect();
    let labels: Vec<String> = labels.into_iter().map(|l| l.1).collect();
    for s in sections.iter_mut().flat_map(|s| &mut s.series) {
        s.style = labels.iter().position(|l| *l == s.label).unwrap_or(0);
    }
}

/// Whether these are sections of the same heading.
fn alike(a: &Settings, b: &Settings) -> bool {
    let heading = |s: &Settings| -> Vec<(String, String)> {
        s.iter()
            .filter(|(k, _)| *k == "train_len" || k.starts_with("task."))
            .map(|(k, v)| (k.clone(), v.clone()))
            .collect()
    };
    heading(a) == heading(b)
}

/// A setting in words: "lr 0.001", or "no init_std".
fn word(settings: &Settings, key: &str) -> String {
    let short = key.rsplit('.').next().unwrap_or(key);
    let none = || if short == "form" { "the fastest form".into() } else { format!("no {short}") };
    settings.get(key).map_or_else(none, |value| format!("{short} {value}"))
}

/// The keys that not all have, or not all have the same value of.
fn differing<'a>(all: impl Iterator<Item = &'a Settings> + Clone) -> Vec<String> {
    let keys: BTreeSet<&String> = all.clone().flat_map(|s| s.keys()).collect();
    let differs = |key: &&String| all.clone().map(|s| s.get(*key)).collect::<BTreeSet<_>>().len() > 1;
    keys.into_iter().filter(differs).cloned().collect()
}

/// The settings of one model of a directory.
fn settings(config: &Table, model: &str) -> Settings {
    let mut settings = flat(config);
    if let Some(own) = config.get("per_model").and_then(|all| all.get(model)).and_then(Value::as_table) {
        settings.extend(flat(own));
    }
    settings
}

/// Nested tables as dotted keys, but for those that say which runs there are.
fn flat(table: &Table) -> Settings {
    fn walk(prefix: &str, table: &Table, flat: &mut Settings) {
        for (key, value) in table {
            match value {
                Value::Table(inner) => walk(&format!("{prefix}{key}."), inner, flat),
                Value::String(text) => drop(flat.insert(clean(&format!("{prefix}{key}")), clean(text))),
                other => drop(flat.insert(clean(&format!("{prefix}{key}")), clean(&other.to_string()))),
            }
        }
    }
    let (mut settings, mut top) = (Settings::new(), table.clone());
    WHICH.iter().for_each(|key| drop(top.remove(*key)));
    walk("", &top, &mut settings);
    settings
}

fn without(settings: &Settings, keys: &[&str]) -> Settings {
    settings.iter().filter(|(key, _)| !keys.contains(&key.as_str())).map(|(k, v)| (k.clone(), v.clone())).collect()
}

/// The text without characters that no XML document may hold.
pub fn clean(text: &str) -> String {
    text.chars().filter(|c| !c.is_control() && !matches!(c, '\u{fffe}' | '\u{ffff}')).collect()
}

/// Lower case letters, digits and hyphens.
pub fn slug(text: &str) -> String {
    let parts: String = text.to_lowercase().chars().map(|c| if c.is_ascii_alphanumeric() { c } else { ' ' }).collect();
    let parts: Vec<&str> = parts.split_whitespace().collect();
    if parts.is_empty() { "section".into() } else { parts.join("-").chars().take(80).collect() }
}
