//! Reading run directories back: what [`RunDir`](crate::train::rundir::RunDir) wrote, and what a killed run left.

use crate::{
    error::{Error, Result, brief, number, printable},
    files,
    tasks::{Len, is_score},
    train::{
        config::of_run,
        rundir::{self, CONFIG, METRICS, RESULT, RESULTS},
    },
};
use indicatif::ProgressBar;
use serde::Deserialize;
use serde_json::Value;
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};
use toml::Table;

/// The most lines of a file that are noted one by one.
const MOST_LINES: usize = 5;

/// A score at each evaluation length, by the score's name; `accuracy` is one of them.
pub type Metrics = BTreeMap<String, BTreeMap<Len, f64>>;

/// A run directory.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Experiment {
    /// The path of the directory.
    pub path: PathBuf,
    /// Its `config.toml`, by the names and with the defaults of this version; a file of another one can be shown too.
    pub config: Table,
    /// Its runs, in the order of models and seeds.
    pub runs: Vec<Run>,
}

/// One model trained from one seed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Run {
    /// The mixer.
    pub model: String,
    /// The seed.
    pub seed: u64,
    /// The scores at the end; none if it did not get there.
    pub end: Option<Metrics>,
    /// Its costs; none if they were not recorded.
    pub cost: Option<Cost>,
    /// Why it stopped before the end.
    pub error: Option<String>,
    /// The training loss at each recorded step.
    pub loss: BTreeMap<usize, f64>,
    /// The scores at each step with an evaluation.
    pub evaluations: BTreeMap<usize, Metrics>,
}

/// The costs of a run.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Cost {
    /// How many parameters the model has.
    pub params: usize,
    /// The form that it was computed in.
    pub form: String,
    /// The device that computed it.
    pub device: String,
    /// Training steps in a second.
    pub steps_per_s: f64,
    /// Seconds from its start to its end.
    pub wall_s: f64,
}

/// The run directories that `paths` are or hold at any depth, in the order of their names. Errors in a directory that
/// was found by searching go to `notes`, and so do files that a killed run left half written.
///
/// # Errors
/// When a path is no run directory and holds none, or is one that cannot be read.
pub fn load(paths: &[PathBuf], notes: &mut Vec<String>, bar: &ProgressBar) -> Result<Vec<Experiment>> {
    let (mut experiments, mut seen) = (Vec::new(), BTreeSet::new());
    for root in paths {
        let found = find(root, notes)?;
        let before = experiments.len();
        let mut known = 0;
        for path in &found {
            if !seen.insert(fs::canonicalize(path).map_err(Error::io(path))?) {
                known += 1;
                continue;
            }
            bar.inc(1);
            bar.set_message(printable(&path.display().to_string()));
            match read(path, notes) {
                Ok(experiment) => experiments.push(experiment),
                Err(e) if path == root => return Err(e),
                Err(e) => notes.push(format!("left out: {e}")),
            }
        }
        if experiments.len() == before && known == 0 {
            return Err(Error::format(root, "none of the run directories in it can be read"));
        }
    }
    Ok(experiments)
}

/// The directories with a configuration, from `root` down.
fn find(root: &Path, notes: &mut Vec<String>) -> Result<Vec<PathBuf>> {
    const EXPECTED: &str = "expected a directory that train, sweep or another program wrote with --out, or one that \
                            holds such";
    if !root.exists() {
        return Err(Error::format(root, format!("does not exist; {EXPECTED}")));
    }
    if !fs::metadata(root).map_err(Error::io(root))?.is_dir() {
        return Err(Error::format(root, format!("is a file; {EXPECTED}")));
    }
    let (mut found, mut left, mut open) = (Vec::new(), Vec::new(), vec![root.to_path_buf()]);
    while let Some(dir) = open.pop() {
        let is_run = files::is_there(&dir.join(CONFIG));
        if is_run {
            found.push(dir.clone());
        }
        let listed = fs::read_dir(&dir).and_then(|entries| entries.collect::<std::io::Result<Vec<_>>>());
        match listed {
            Err(e) if dir == root => return Err(Error::io(dir)(e)),
            Err(e) => notes.push(format!("left out: {}: {e}", dir.display())),
            Ok(entries) => {
                // Links are not followed, as they may lead back up.
                let (links, entries): (Vec<_>, Vec<_>) =
                    entries.iter().partition(|e| e.file_type().is_ok_and(|t| t.is_symlink()));
                let links = links.into_iter().map(fs::DirEntry::path).filter(|path| path.is_dir());
                left.extend(links.map(|path| (path, "is a link; name it to have it read")));
                let dirs = entries.into_iter().filter(|e| e.file_type().is_ok_and(|t| t.is_dir()));
                let (runs, dirs): (Vec<_>, Vec<_>) =
                    dirs.map(fs::DirEntry::path).partition(|d| files::is_there(&d.join(METRICS)));
                match (is_run, runs.is_empty(), dirs.is_empty()) {
                    (false, false, _) => left.push((dir, "holds runs, but no config.toml")),
                    (false, true, true) => left.push((dir, "has neither a config.toml nor a metrics.jsonl")),
                    _ => {}
                }
                open.extend(dirs);
            }
        }
    }
    found.sort();
    left.sort();
    for (path, why) in left.iter().take(MOST_LINES) {
        notes.push(format!("left out: {}: {why}", path.display()));
    }
    if left.len() > MOST_LINES {
        notes.push(format!("left out: {} further directories in {}", left.len() - MOST_LINES, root.display()));
    }
    if found.is_empty() {
        let what = if files::is_there(&root.join(METRICS)) {
            format!("holds a single run; name the directory above it, which has the {CONFIG}")
        } else {
            format!("no {CONFIG} in it, nor below; {EXPECTED}")
        };
        return Err(Error::format(root, what));
    }
    Ok(found)
}

/// One run directory.
fn read(dir: &Path, notes: &mut Vec<String>) -> Result<Experiment> {
    let path = dir.join(CONFIG);
    let text = files::read_text(&path, files::RECORD)?;
    let config: Table = text.parse().map_err(|e: toml::de::Error| Error::format(&path, e.to_string().trim_end()))?;
    rundir::check_recorded(&path, &config)?;
    // Keys that earlier versions left out stand for what later ones write.
    let config = of_run(config);
    let listed = config.get("models").and_then(toml::Value::as_array);
    let models: Vec<&str> = listed.into_iter().flatten().filter_map(toml::Value::as_str).collect();

    let steps = |model: &str| steps_of(&config, model);
    let mut runs = finished(&dir.join(RESULTS), notes);
    let (all, mut others) = (rundir::configuration(dir).ok(), BTreeSet::new());
    // Whether the result of a run is one of this configuration. One that is damaged is nobody's.
    let is_ours = |model: &str, seed: u64, own: &Path| match (&all, rundir::find(own)) {
        (_, Err(e)) => Err((e, false)),
        (Some(all), Ok(rundir::Found::Finished(_))) => rundir::configuration_of(own, all, model)
            .and_then(|cfg| rundir::check_configuration(own, &cfg, seed))
            .map_err(|e| (e, true)),
        _ => Ok(()),
    };
    for (model, seed, own) in recorded(dir)? {
        // A run may have its own result before the results of all are written, or where these cannot be read.
        let mut report = json(&own.join(RESULT), notes).and_then(|value| result(value, &own.join(RESULT), notes));
        if report.is_some()
            && let Err((e, is_another)) = is_ours(&model, seed, &own)
        {
            notes.push(format!("left out: {e}"));
            report = None;
            if is_another {
                runs.retain(|r| (&r.model, r.seed) != (&model, seed));
                others.insert((model.clone(), seed));
                runs.push(Run { model, seed, ..Run::default() });
                continue;
            }
        }
        let i = runs.iter().position(|r| r.model == model && r.seed == seed).unwrap_or_else(|| {
            runs.push(Run { model, seed, ..Run::default() });
            runs.len() - 1
        });
        match report {
            Some(report) => runs[i] = report,
            // A run that failed for good has a result. Whatever stopped this one before, it can go on.
            None => runs[i].error = None,
        }
        let steps = steps(&runs[i].model);
        curves(&own.join(METRICS), steps, &mut runs[i], notes);
    }
    for run in &mut runs {
        let steps = steps(&run.model);
        // The last evaluation is on disk before the results are: a process killed in between has finished this run.
        if let (None, None, Some(steps)) = (&run.end, &run.error, steps) {
            run.end = run.evaluations.get(&steps).cloned();
        }
        if let Some(note) = shortcoming(run, steps).filter(|_| !others.contains(&(run.model.clone(), run.seed))) {
            notes.push(format!("{}: {} seed {} {note}", dir.display(), run.model, run.seed));
        }
    }
    if runs.is_empty() {
        notes.push(format!("{}: no run has begun", dir.display()));
    }
    let place = |run: &Run| models.iter().position(|m| *m == run.model).unwrap_or(models.len());
    runs.sort_by(|a, b| (place(a), &a.model, a.seed).cmp(&(place(b), &b.model, b.seed)));
    Ok(Experiment { path: dir.into(), config, runs })
}

/// How many steps a model, or a variant of one, is trained by a configuration; none if it does not say.
fn steps_of(config: &Table, model: &str) -> Option<usize> {
    let own = |name: &str| config.get("per_model")?.get(name);
    let base = own(model).and_then(|own| own.get("mixer")?.as_str()).and_then(own);
    let steps = [own(model), base].into_iter().flatten().find_map(|own| own.get("steps")).or(config.get("steps"));
    steps.and_then(toml::Value::as_integer).and_then(|n| usize::try_from(n).ok())
}

/// The note about a run that is not complete.
fn shortcoming(run: &Run, steps: Option<usize>) -> Option<String> {
    if let Some(error) = &run.error {
        return Some(format!("stopped: {error}"));
    }
    let last = run.loss.keys().chain(run.evaluations.keys()).max();
    match (&run.end, last) {
        (Some(_), None) => Some("has results, but no metrics of its training".into()),
        (Some(_), Some(last)) => {
            let of = steps.filter(|steps| last < steps)?;
            Some(format!("has results, but its metrics end at step {last} of {of}"))
        }
        (None, last) => {
            let of = steps.map_or(String::new(), |n| format!(" of {n}"));
            Some(format!("has not finished: recorded up to step {}{of}", last.unwrap_or(&0)))
        }
    }
}

/// The outcome of a run, as its program wrote it.
#[derive(Deserialize)]
struct Report {
    model: String,
    seed: u64,
    #[serde(default)]
    error: Option<String>,
    #[serde(flatten)]
    cost: Cost,
    #[serde(flatten)]
    rest: serde_json::Map<String, Value>,
}

impl Report {
    fn run(self, path: &Path, notes: &mut Vec<String>) -> Run {
        let mut skipped = BTreeSet::new();
        let end = self.error.is_none().then(|| metrics(&self.rest, &mut skipped));
        let Cost { steps_per_s, wall_s, .. } = self.cost;
        let times = [("steps_per_s", steps_per_s), ("wall_s", wall_s)];
        let wrong: Vec<_> = times.iter().filter(|(_, x)| !(0.0..1e12).contains(x)).collect();
        let cost = Some(self.cost).filter(|_| wrong.is_empty());
        skipped.extend(wrong.iter().map(|(name, x)| format!("{name} {}", number(*x))));
        note_skipped(&skipped, &format!("{}: {} seed {}", path.display(), self.model, self.seed), notes);
        Run { end, model: self.model, seed: self.seed, cost, error: self.error, ..Run::default() }
    }
}

/// The runs that `results.json` has, but for those that cannot be read; none if there is no such file.
fn finished(path: &Path, notes: &mut Vec<String>) -> Vec<Run> {
    let Some(mut file) = json(path, notes) else { return vec![] };
    let Some(Value::Array(runs)) = file.get_mut("runs").map(Value::take) else {
        left_out(path, "expected an object with a list 'runs'", notes);
        return vec![];
    };
    runs.into_iter().filter_map(|run| result(run, path, notes)).collect()
}

/// A run from its report.
fn result(report: Value, path: &Path, notes: &mut Vec<String>) -> Option<Run> {
    let name = format!("{} seed {}", report["model"].as_str().unwrap_or("?"), report["seed"]);
    match serde_json::from_value::<Report>(report) {
        Ok(report) => Some(report.run(path, notes)),
        Err(e) => {
            left_out(path, &format!("{name}: {e}"), notes);
            None
        }
    }
}

/// The JSON of a file; none if there is no such file, or it cannot be read.
fn json(path: &Path, notes: &mut Vec<String>) -> Option<Value> {
    if !files::is_there(path) {
        return None;
    }
    let bytes = contents(path, notes)?;
    match serde_json::from_slice(&bytes) {
        Ok(value) => Some(value),
        Err(e) => {
            left_out(path, &e.to_string(), notes);
            None
        }
    }
}

/// The bytes of a file, if it can be read.
fn contents(path: &Path, notes: &mut Vec<String>) -> Option<Vec<u8>> {
    let read = files::read(path, files::RECORD);
    read.map_err(|e| notes.push(format!("left out: {}", brief(&e.to_string(), 400)))).ok()
}

/// Note that something is missing, with the beginning of the error.
fn left_out(path: &Path, what: &str, notes: &mut Vec<String>) {
    let what: String = what.chars().map(|c| if c.is_control() { ' ' } else { c }).take(200).collect();
    notes.push(format!("left out: {}: {what}", path.display()));
}

/// A loss: 0 or more, but for a rounding, and so large that sums of such numbers are finite.
fn loss(value: &Value) -> Option<f64> {
    let x = value.as_f64().filter(|x| (-1e-6..1e100).contains(x))?;
    Some(if x < 1e-100 { 0.0 } else { x })
}

/// A step, counted from 1, of a run of so many.
fn step(value: &Value, steps: Option<usize>) -> Option<usize> {
    let step = value.as_u64().and_then(|n| usize::try_from(n).ok())?;
    (1..=steps.unwrap_or(usize::MAX)).contains(&step).then_some(step)
}

/// The objects `{"32": 0.9, ..}` of an object, by name. Values that cannot be a score are left out, and their names are
/// put into `skipped`.
fn metrics(object: &serde_json::Map<String, Value>, skipped: &mut BTreeSet<String>) -> Metrics {
    let mut metrics = Metrics::new();
    for (name, value) in object {
        let Some(of) = value.as_object() else { continue };
        let length = |len: &str| len.parse().ok().filter(|len: &Len| len.min > 0);
        let score = |x: &Value| x.as_f64().filter(|&x| is_score(name, x));
        let of = of.iter().map(|(len, x)| {
            length(len).zip(score(x)).ok_or_else(|| format!("{name} at {len}: {}", brief(&x.to_string(), 40)))
        });
        let (good, bad): (Vec<_>, Vec<_>) = of.partition(std::result::Result::is_ok);
        skipped.extend(bad.into_iter().filter_map(std::result::Result::err));
        metrics.insert(name.clone(), good.into_iter().flatten().collect());
    }
    metrics
}

/// Say which numbers were left out, a few of them by name.
fn note_skipped(skipped: &BTreeSet<String>, place: &str, notes: &mut Vec<String>) {
    if skipped.is_empty() {
        return;
    }
    let some: Vec<String> = skipped.iter().take(3).map(|name| format!("{name:?}")).collect();
    let more = if skipped.len() > some.len() { ", …" } else { "" };
    notes.push(format!("{place}: what cannot be is left out: {}{more}", some.join(", ")));
}

/// The runs that have begun: model, seed, and their directories.
fn recorded(dir: &Path) -> Result<Vec<(String, u64, PathBuf)>> {
    let mut runs = Vec::new();
    for entry in fs::read_dir(dir).map_err(Error::io(dir))? {
        let entry = entry.map_err(Error::io(dir))?;
        let (name, path) = (entry.file_name(), entry.path());
        let who = name.to_str().filter(|_| files::is_there(&path.join(METRICS)));
        let who = who.and_then(|name| name.rsplit_once("-seed"));
        if let Some((model, seed)) = who.and_then(|(m, s)| Some((m, s.parse().ok()?))) {
            runs.push((model.to_string(), seed, path));
        }
    }
    runs.sort();
    Ok(runs)
}

/// The lines of `metrics.jsonl`. A step that was recorded twice counts once, as the later line has it.
fn curves(path: &Path, steps: Option<usize>, run: &mut Run, notes: &mut Vec<String>) {
    let Some(bytes) = contents(path, notes) else { return };
    let whole = bytes.is_empty() || bytes.ends_with(b"\n");
    let lines: Vec<&[u8]> = bytes.split(|&b| b == b'\n').filter(|line| !line.is_empty()).collect();
    let (mut bad, mut skipped) = (0, BTreeSet::new());
    for (i, line) in lines.iter().enumerate() {
        let Ok(Value::Object(line)) = serde_json::from_slice(line) else {
            let half = if !whole && i + 1 == lines.len() { ", cut off when the run was killed," } else { "" };
            bad += 1;
            if bad <= MOST_LINES {
                notes.push(format!("{}: line {}{half} is no JSON object; left out", path.display(), i + 1));
            }
            continue;
        };
        if let Some(error) = line.get("error").and_then(Value::as_str) {
            run.error.get_or_insert_with(|| error.into());
        }
        let said = |key: &str| line.get(key).map_or("none".into(), |value| brief(&value.to_string(), 40));
        let Some(step) = line.get("step").and_then(|value| step(value, steps)) else {
            if line.contains_key("step") || !line.contains_key("error") {
                skipped.insert(format!("line {}: step {}", i + 1, said("step")));
            }
            continue;
        };
        match line.get("loss").map(loss) {
            Some(Some(loss)) => drop(run.loss.insert(step, loss)),
            Some(None) => drop(skipped.insert(format!("loss at step {step}: {}", said("loss")))),
            None => {}
        }
        let mut own = BTreeSet::new();
        let scores = metrics(&line, &mut own);
        skipped.extend(own.into_iter().map(|name| format!("{name}, step {step}")));
        if !scores.is_empty() {
            run.evaluations.insert(step, scores);
        }
    }
    if bad > MOST_LINES {
        notes.push(format!("{}: {} further lines are no JSON objects; left out", path.display(), bad - MOST_LINES));
    }
    note_skipped(&skipped, &path.display().to_string(), notes);
}
