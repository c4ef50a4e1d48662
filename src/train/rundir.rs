//! The directory of an experiment's runs. A process that is killed at any moment loses nothing that was complete.
//!
//! ```text
//! DIR/config.toml                     the whole configuration; `--config` reads it back
//! DIR/MODEL-seedS/metrics.jsonl       one object a line, as training goes
//! DIR/MODEL-seedS/checkpoint.safetensors where the run stands, until it is finished
//! DIR/MODEL-seedS/weights.safetensors the final weights under their path names
//! DIR/MODEL-seedS/result.json         what came of the run: it is finished, and is not repeated
//! DIR/results.json, DIR/table.txt     all runs that have finished so far
//! DIR/made_by.txt                     which builds on which processors trained here, and from when on
//! DIR/lock                            while a process is at work: which
//! ```
//! Files other than `metrics.jsonl`, `made_by.txt` and `lock` appear whole or not at all: they are written under
//! another name, synced and renamed. A process locks the directory, and the metrics of each run that it is at work on.

mod run;

pub use crate::files::whole::{is_unfinished, remove_unfinished, write};
pub use run::{Found, Held, RunFiles, check_configuration, check_files, configuration_of, find, find_of};

use super::{
    RunReport,
    config::{TrainConfig, difference, read_run},
    lock::{LOCK, Lock},
    table,
};
use crate::{
    error::{Error, Result},
    files::{
        self,
        whole::{entries, remove_file},
    },
    stamp,
    tensor::Cx,
};
use std::{
    fs::{self, File},
    io::Write,
    path::{Path, PathBuf},
};

/// The file of the configuration.
pub const CONFIG: &str = "config.toml";
/// The file of a sweep's grid, above the directories of its points.
pub const SWEEP: &str = "sweep.toml";
/// The file of the outcomes of all runs.
pub const RESULTS: &str = "results.json";
const TABLE: &str = "table.txt";
/// The file that lists which builds on which processors trained here.
pub const MADE_BY: &str = "made_by.txt";
/// The file of one run's steps and evaluations, as it goes.
pub const METRICS: &str = "metrics.jsonl";
/// The file of one run's final weights.
pub const WEIGHTS: &str = "weights.safetensors";
/// The file of one run's state.
pub const CHECKPOINT: &str = "checkpoint.safetensors";
/// The file of one run's outcome.
pub const RESULT: &str = "result.json";

/// Refuse to write over a file of a run, or of a sweep, through a link too.
///
/// # Errors
/// When there is such a file: one with the name of a run's file beside metrics, of an experiment's above them, or of a
/// sweep's beside `sweep.toml`.
pub fn check_is_no_runs_file(path: &Path) -> Result<()> {
    // What is not there yet may be what a run writes in the end.
    let whole = |path: &Path| Some(fs::canonicalize(path.parent()?).ok()?.join(path.file_name()?));
    let Some(file) = fs::canonicalize(path).ok().or_else(|| whole(&Path::new(".").join(path))) else { return Ok(()) };
    let (Some(name), Some(dir)) = (file.file_name().and_then(|name| name.to_str()), file.parent()) else {
        return Ok(());
    };
    let beside = |name: &str| files::is_there(&dir.join(name));
    let above_metrics = || fs::read_dir(dir).is_ok_and(|all| all.flatten().any(|e| e.path().join(METRICS).is_file()));
    let belongs = match name {
        METRICS | WEIGHTS | CHECKPOINT | RESULT => beside(METRICS),
        CONFIG | RESULTS | TABLE | MADE_BY => beside(MADE_BY) || above_metrics(),
        name => (name == SWEEP || name.starts_with("summary.")) && beside(SWEEP),
    };
    if belongs {
        return Err(Error::Config(format!("--out {}: belongs to a run; choose another name", path.display())));
    }
    Ok(())
}

/// The files of an experiment that appear whole or not at all.
const WHOLE: [&str; 4] = [CONFIG, RESULTS, TABLE, MADE_BY];

/// A directory that holds the runs of one experiment.
pub struct RunDir {
    path: PathBuf,
    /// The lock that keeps it for this process alone; none for a point of a sweep.
    lock: Option<Lock>,
}

impl RunDir {
    /// Make the directory, lock it and record the configuration in it.
    ///
    /// # Errors
    /// When it cannot be made, another process is at work in it, or it is not empty: with `force`, the runs in it are
    /// deleted, and nothing else. When there are files of these names that are no run's.
    pub fn create(path: &Path, cfg: &TrainConfig, force: bool) -> Result<RunDir> {
        let dir = RunDir::claim(path, force)?;
        dir.record(cfg)?;
        Ok(dir)
    }

    /// As [`RunDir::create`], without a configuration: until it has one, it is no run's.
    ///
    /// # Errors
    /// As there.
    pub fn claim(path: &Path, force: bool) -> Result<RunDir> {
        if path.exists() && !path.is_dir() {
            let why = "is a file; expected a directory, or a name for a new one";
            return Err(Error::Config(format!("--out {}: {why}", path.display())));
        }
        if files::is_there(&path.join(SWEEP)) {
            let why = "holds a sweep; expected a directory of its own";
            return Err(Error::Config(format!("--out {}: {why}", path.display())));
        }
        fs::create_dir_all(path).map_err(Error::io(path))?;
        let lock = Lock::exclusive(path)?;
        if force {
            // A point of a sweep belongs to the sweep as long as the sweep is at work; "." has the sweep above it too.
            let whole = fs::canonicalize(path).map_err(Error::io(path))?;
            let above = whole.parent().filter(|above| files::is_there(&above.join(SWEEP)));
            let _not_at_work = above.map(Lock::exclusive).transpose()?;
            remove_runs(path)?;
        } else if entries(path)?.iter().any(|entry| !is_our_own(entry)) {
            let out = path.display();
            let what = match path.join(CONFIG).exists() {
                true => format!("already holds a run, with which --resume {out} goes on"),
                false => "is not empty".into(),
            };
            let remedy = "choose another directory, or pass --force to delete the runs in this one";
            return Err(Error::Config(format!("--out {out}: {what}; {remedy}")));
        }
        remove_unfinished(path, &WHOLE)?;
        Ok(RunDir { path: path.into(), lock: Some(lock) })
    }

    /// Record the configuration.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn record(&self, cfg: &TrainConfig) -> Result<()> {
        write(&self.path.join(CONFIG), cfg.to_toml()?.as_bytes())
    }

    /// A directory that holds runs, locked to go on with them, and their configuration.
    ///
    /// # Errors
    /// When it holds no runs, another process is at work in it, or its configuration cannot be read.
    pub fn open(path: &Path) -> Result<(RunDir, TrainConfig)> {
        check(path)?;
        let lock = Lock::exclusive(path)?;
        remove_unfinished(path, &WHOLE)?;
        Ok((RunDir { path: path.into(), lock: Some(lock) }, configuration(path)?))
    }

    /// The directory of runs of this configuration, made if it is not there; other processes may be at work there.
    ///
    /// # Errors
    /// When it holds runs of another one, or cannot be written.
    pub fn create_or_open(path: &Path, cfg: &TrainConfig) -> Result<RunDir> {
        let config = path.join(CONFIG);
        fs::create_dir_all(path).map_err(Error::io(path))?;
        remove_unfinished(path, &WHOLE)?;
        if !config.exists() {
            write(&config, cfg.to_toml()?.as_bytes())?;
        }
        let here = cfg.to_toml()?.parse().map_err(|e: toml::de::Error| Error::Config(e.to_string()))?;
        if let Some((key, there, here)) = difference(&read_run(&config)?, &here) {
            return Err(Error::format(
                config,
                format!("{key} is {there} there, and {here} here; choose another --out"),
            ));
        }
        Ok(RunDir { path: path.into(), lock: None })
    }

    /// The path of the directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The lock on it, if it is this process's alone.
    pub fn lock(&self) -> Option<&Lock> {
        self.lock.as_ref()
    }

    /// The directory of one run.
    pub fn of(&self, model: &str, seed: u64) -> PathBuf {
        of(&self.path, model, seed)
    }

    /// Write the reports of the runs that have finished so far, and their table.
    ///
    /// # Errors
    /// When they cannot be written, or the directory is not this process's any more.
    pub fn write_reports(&self, cfg: &TrainConfig, reports: &[RunReport]) -> Result<()> {
        self.lock.as_ref().map_or(Ok(()), |lock| lock.check("the table of its runs is not written"))?;
        write(&self.path.join(RESULTS), table::json(reports)?.as_bytes())?;
        write(&self.path.join(TABLE), table::text(cfg, reports).as_bytes())
    }
}

/// The configuration of the runs in a directory.
///
/// # Errors
/// When it holds none, or it cannot be read.
pub fn configuration(path: &Path) -> Result<TrainConfig> {
    check(path)?;
    let config = path.join(CONFIG);
    let table = read_run(&config)?;
    check_recorded(&config, &table)?;
    TrainConfig::recorded(&config, table)
}

/// See that a table is what a run records, which has every key. A file that lost its contents would stand for the default
/// experiment.
pub(crate) fn check_recorded(path: &Path, table: &toml::Table) -> Result<()> {
    let named = table.get("task").and_then(|task| task.get("name")).is_some_and(toml::Value::is_str);
    if named && table.get("models").is_some_and(toml::Value::is_array) {
        return Ok(());
    }
    Err(Error::format(path, "not the configuration of a run: expected 'models', and 'name' in [task]"))
}

/// See that a directory holds runs.
fn check(path: &Path) -> Result<()> {
    if files::is_there(&path.join(CONFIG)) {
        return Ok(());
    }
    let ours = || path.is_dir() && entries(path).is_ok_and(|all| all.iter().all(|entry| is_our_own(entry)));
    let above = path.parent().filter(|above| files::is_there(&above.join(CONFIG)));
    if let Some(above) = above.filter(|_| files::is_there(&path.join(METRICS))) {
        let what = format!("holds a single run; expected the directory above it, {}", above.display());
        return Err(Error::Config(format!("{}: {what}", path.display())));
    }
    let why = match (path.exists(), ours()) {
        (false, _) => "does not exist",
        (true, false) => "is not a run directory: it has no config.toml",
        (true, true) => "holds no run yet; begin with --out",
    };
    Err(Error::Config(format!("{}: {why}; expected the directory that was given to --out", path.display())))
}

/// Whether an entry of a directory is a file that a process leaves there before its first run begins.
fn is_our_own(path: &Path) -> bool {
    is_unfinished(path, &WHOLE) || path.file_name().is_some_and(|name| name == LOCK)
}

/// Record in an experiment's directory the build and the processor that make results there from now on, if they are not
/// those of the last record.
///
/// # Errors
/// When it cannot be written.
pub fn record_made_by(experiment: &Path, cx: &Cx) -> Result<()> {
    let (path, line) = (experiment.join(MADE_BY), stamp::made_by(cx));
    let there = if files::is_there(&path) { files::read(&path, files::RECORD)? } else { vec![] };
    let there = String::from_utf8_lossy(&there);
    if there.lines().last().and_then(|last| last.split_once(' ')).is_some_and(|(_, last)| last == line) {
        return Ok(());
    }
    // A process that was killed may have left half a line.
    let end = if there.is_empty() || there.ends_with('\n') { "" } else { "\n" };
    let append = |mut file: File| file.write_all(format!("{end}{} {line}\n", stamp::now()).as_bytes());
    File::options().append(true).create(true).open(&path).and_then(append).map_err(Error::io(&path))
}

/// The directory of one run in that of its experiment.
pub fn of(experiment: &Path, model: &str, seed: u64) -> PathBuf {
    experiment.join(format!("{model}-seed{seed}"))
}

/// Delete the files of an earlier experiment in a directory: its runs, which are MODEL-seedN, its files by name, and
/// directories that then are empty. Its configuration stays for the next one to replace it: a process that is killed in
/// between leaves a directory of runs. The directory is locked, and no process may be at work on one of the runs.
fn remove_runs(path: &Path) -> Result<()> {
    let seed = |dir: &Path| dir.file_name()?.to_str()?.rsplit_once("-seed")?.1.parse::<u64>().ok();
    let mut runs = Vec::new();
    for dir in entries(path)?.into_iter().filter(|dir| dir.join(METRICS).is_file() && seed(dir).is_some()) {
        let what = "another process is at work on this run; wait for it, or stop it";
        runs.push(Held::now(&dir)?.ok_or_else(|| Error::format(dir, what))?);
    }
    let ours = if runs.is_empty() { configuration(path).map(drop) } else { Ok(()) };
    if let (Err(e), Some(name)) = (ours, [CONFIG, RESULTS, TABLE, MADE_BY].iter().find(|name| path.join(name).exists()))
    {
        let what =
            format!("--force deletes runs, and this is not known to be one's ({e}); move it, or choose another --out");
        return Err(Error::format(path.join(name), what));
    }
    runs.into_iter().try_for_each(Held::delete)?;
    [RESULTS, TABLE, MADE_BY].iter().try_for_each(|name| remove_file(&path.join(name)))
}
