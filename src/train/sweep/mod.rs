//! A grid of experiments, run side by side, on one machine or on many.
//!
//! ```text
//! OUT/sweep.toml                      what was asked for
//! OUT/POINT/…                         an ordinary run directory for each point of the grid ([`super::rundir`])
//! OUT/summary.csv, .jsonl, .txt       one row for each point and model, over the seeds
//! OUT/lock                            while processes are at work
//! ```
//! All state is in the runs' own directories: a run with a result is finished, one with a checkpoint goes on from it.
//! So a sweep that was killed is started again by the same command, and parts of it from several machines
//! ([`Shard`]) join into one ([`merge()`]).

mod merge;
mod plan;
mod summary;

pub use merge::merge;
pub use plan::{Plan, Point};
pub use summary::{Group, Row, Summary};

use super::{
    RunReport, capacity, checkpoint,
    config::{difference, read},
    jobs::{self, Job},
    lock::{LOCK, Lock},
    progress::Progress,
    rundir::{self, Found, RunDir, SWEEP, find_of, is_unfinished, remove_unfinished, write},
    standing::Standing,
};
use crate::{
    error::{Error, Result, printable},
    files,
};
use std::{
    collections::BTreeSet,
    fs,
    io::{self, Write},
    path::{Path, PathBuf},
    str::FromStr,
    time::{Duration, Instant},
};

/// The files beside the points.
const FILES: [&str; 4] = [SWEEP, summary::CSV, summary::JSONL, summary::TXT];

/// Write the summary of what is there so far no more often than this.
const SUMMARY_EVERY: Duration = Duration::from_secs(10);

/// After the tables of points were written, training goes on for this many times as long before they are again: a sweep
/// of hundreds of short runs would do little else.
const TRAINING_OVER_TABLES: u32 = 9;

/// What comes of it when the directory is not this process's any more.
const NOT_OURS: &str = "its tables are not written";

/// The i-th of n parts of a sweep, counted from 0 as arrays of batch systems are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shard {
    /// The index of the part.
    pub index: usize,
    /// The number of parts.
    pub count: usize,
}

impl FromStr for Shard {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Shard, String> {
        let parts = text.split_once('/').and_then(|(i, n)| Some((i.parse().ok()?, n.parse().ok()?)));
        match parts {
            Some((index, count)) if index < count => Ok(Shard { index, count }),
            Some((_, count)) if count > 0 => Err(format!("expected 0/{count} to {}/{count}", count - 1)),
            _ => Err("expected i/n, as 0/4 to 3/4 for four parts".into()),
        }
    }
}

/// A sweep that is to be run.
pub struct Sweep {
    /// The grid.
    pub plan: Plan,
    /// The directory that it is written to.
    pub out: PathBuf,
    /// All runs of the grid, each with the index of its point.
    jobs: Vec<(usize, Job)>,
    /// The indices in `jobs` of this shard's runs.
    mine: Vec<usize>,
}

/// The outcome of running a sweep.
pub struct Outcome {
    /// How many runs this shard has.
    pub runs: usize,
    /// Those that stopped with an error: a line each, with the error.
    pub failed: Vec<String>,
    /// How many of this shard's runs have no result: the same command would do them.
    pub to_do: usize,
    /// The summary of everything that is finished, by any shard.
    pub summary: Summary,
}

impl Sweep {
    /// All runs of the grid, and which of them are this shard's. Writes nothing.
    ///
    /// # Errors
    /// When `out` holds something else.
    pub fn new(plan: Plan, out: &Path, shard: Shard) -> Result<Sweep> {
        check_out(out, &plan)?;
        let mut all = Vec::new();
        for (index, point) in plan.points.iter().enumerate() {
            for mut job in jobs::jobs(&point.cfg, None)? {
                let dir = rundir::of(&out.join(&point.name), &job.name, job.seed);
                job.cfg = rundir::configuration_of(&dir, &point.cfg, &job.name)?;
                job.dir = Some(dir);
                all.push((index, job));
            }
        }
        // The runs are dealt in turn from the longest on, so that every shard gets about the same work.
        let mut order: Vec<usize> = (0..all.len()).collect();
        order.sort_by(|&a, &b| all[b].1.cost().total_cmp(&all[a].1.cost()));
        let mut mine: Vec<usize> = order.into_iter().skip(shard.index).step_by(shard.count).collect();
        mine.sort_unstable();
        Ok(Sweep { plan, out: out.into(), jobs: all, mine })
    }

    /// The runs of this shard, a line each, and where they stand.
    pub fn list(&self) -> String {
        let mut text = String::new();
        for (point, job) in self.mine.iter().map(|&i| &self.jobs[i]) {
            let dir = job.dir.clone().unwrap_or_default();
            let stands = match find_of(&dir, &self.plan.points[*point].cfg, &job.name, job.seed) {
                Ok(Found::Finished(report)) if report.error.is_some() => "failed".into(),
                Ok(Found::Finished(_)) => "finished".into(),
                Ok(Found::Checkpoint(path)) => {
                    checkpoint::about(&path).map_or("damaged".into(), |about| format!("at step {}", about.step))
                }
                Ok(Found::Nothing) => "to do".into(),
                Err(_) => "damaged".into(),
            };
            let (name, model) = (&self.plan.points[*point].name, &job.name);
            let (seed, params, steps) = (job.seed, job.params, job.cfg.steps);
            text += &format!("{name}  {model} seed {seed}: {params} parameters, {steps} steps, {stands}\n");
        }
        text + &format!("{} of {} runs, in {}\n", self.mine.len(), self.jobs.len(), self.out.display())
    }

    /// Refuse the runs of this shard that are to do, if one needs more memory than there is or more time than anybody
    /// has, or so many side by side need more memory.
    ///
    /// # Errors
    /// When they do: the error says what needs how much, and what to change.
    pub fn check(&self, threads: usize) -> Result<()> {
        let to_do: Vec<&(usize, Job)> = self.to_do().collect();
        for of_point in to_do.chunk_by(|a, b| a.0 == b.0) {
            for (cfg, _) in jobs::counted(of_point.iter().map(|of| &of.1)) {
                self.plan.check_run(&self.plan.points[of_point[0].0], cfg)?;
            }
        }
        capacity::check_side_by_side(&jobs::counted(to_do.iter().map(|of| &of.1)), threads, "--jobs")
    }

    /// Do the runs that are not finished, `threads` at a time. Whether there is the memory for them is for
    /// [`Sweep::check`] to say, before.
    ///
    /// # Errors
    /// When a directory cannot be made, or the summary cannot be written. An error in a run is in its report.
    pub fn run(&self, threads: usize, standing: &Standing) -> Result<Outcome> {
        // Other shards may be at work in the same directory, and on each run only one process.
        let lock = self.lock(Lock::shared)?;
        let dirs = self.prepare()?;
        let progress = Progress::new(true).without_results();
        let mine: Vec<&Job> = self.mine.iter().map(|&i| &self.jobs[i].1).collect();
        let (mut finished, mut failed, mut last) = (0, vec![], Instant::now());
        // The points whose tables are older than their runs, and the time at which they are written again.
        let (mut older, mut again) = (BTreeSet::new(), Instant::now());
        jobs::work(&mine, threads, &progress, standing, Some(&lock), |i, report| {
            finished += 1;
            let point = self.jobs[self.mine[i]].0;
            let line = self.told(point, &report);
            if !progress.has_bars() {
                // A failure is ignored: there may be no reader.
                let _ = writeln!(io::stderr(), "{finished}/{} {line}", self.mine.len());
            }
            if report.error.is_some() {
                failed.push(line);
            }
            older.insert(point);
            if lock.check(NOT_OURS).is_err() {
                return;
            }
            // What cannot be written now is written again at the end, and a failure told then.
            if again <= Instant::now() {
                let start = Instant::now();
                let _ = self.write_all(&mut older, &dirs);
                again = Instant::now() + start.elapsed() * TRAINING_OVER_TABLES;
            }
            if last.elapsed() > SUMMARY_EVERY {
                last = Instant::now();
                let _ = self.summary().write(&self.out);
            }
        });
        lock.check(NOT_OURS)?;
        self.write_all(&mut older, &dirs)?;
        let summary = until_settled(|| self.all_reports(), |reports| self.summary_of(reports).write(&self.out))?;
        let summary = self.summary_of(&summary);
        Ok(Outcome { runs: self.mine.len(), failed, to_do: self.to_do().count(), summary })
    }

    /// This shard's runs that have no result, not even that they failed.
    fn to_do(&self) -> impl Iterator<Item = &(usize, Job)> {
        let mine = self.mine.iter().map(|&i| &self.jobs[i]);
        mine.filter(|(point, job)| self.result_of(*point, job).is_none())
    }

    /// Make the directory and lock it, and see again that it holds nothing else.
    fn lock(&self, lock: fn(&Path) -> Result<Lock>) -> Result<Lock> {
        fs::create_dir_all(&self.out).map_err(Error::io(&self.out))?;
        let lock = lock(&self.out)?;
        check_out(&self.out, &self.plan)?;
        Ok(lock)
    }

    /// Make the directories of all points, and record what the sweep is.
    fn prepare(&self) -> Result<Vec<RunDir>> {
        remove_unfinished(&self.out, &FILES)?;
        let text = toml::to_string(&self.plan.file).map_err(|e| Error::Config(e.to_string()))?;
        write(&self.out.join(SWEEP), text.as_bytes())?;
        self.plan.points.iter().map(|point| self.point_dir(point)).collect()
    }

    fn point_dir(&self, point: &Point) -> Result<RunDir> {
        RunDir::create_or_open(&self.out.join(&point.name), &point.cfg)
    }

    /// The report of a run of this point, if it is finished.
    fn result_of(&self, point: usize, job: &Job) -> Option<RunReport> {
        match find_of(job.dir.as_deref()?, &self.plan.points[point].cfg, &job.name, job.seed) {
            Ok(Found::Finished(report)) => Some(*report),
            _ => None,
        }
    }

    /// The reports of one point's finished runs, by this process or any other.
    fn reports(&self, point: usize) -> Vec<RunReport> {
        self.jobs.iter().filter(|job| job.0 == point).filter_map(|(_, job)| self.result_of(point, job)).collect()
    }

    /// Write the reports of these points, and take out each that is written.
    fn write_all(&self, points: &mut BTreeSet<usize>, dirs: &[RunDir]) -> Result<()> {
        while let Some(&point) = points.first() {
            self.write_reports(point, &dirs[point])?;
            points.remove(&point);
        }
        Ok(())
    }

    /// Write the reports of one point's finished runs.
    fn write_reports(&self, point: usize, dir: &RunDir) -> Result<()> {
        let cfg = &self.plan.points[point].cfg;
        until_settled(|| self.reports(point), |reports| dir.write_reports(cfg, reports)).map(drop)
    }

    /// The reports of each point's finished runs.
    fn all_reports(&self) -> Vec<Vec<RunReport>> {
        (0..self.plan.points.len()).map(|point| self.reports(point)).collect()
    }

    fn summary_of(&self, reports: &[Vec<RunReport>]) -> Summary {
        Summary::new(&self.plan, reports.to_vec())
    }

    /// The summary of the runs that are finished by now.
    pub fn summary(&self) -> Summary {
        self.summary_of(&self.all_reports())
    }

    /// A line about a run that came to its end.
    fn told(&self, point: usize, report: &RunReport) -> String {
        let (name, RunReport { model, seed, .. }) = (&self.plan.points[point].name, report);
        printable(&format!("{name} {model} seed {seed}: {}", jobs::said(report)))
    }
}

/// Read and write until a second read gives the same: of several processes that write the same file, the last then
/// writes the results of all.
fn until_settled<T: PartialEq>(read: impl Fn() -> T, write: impl Fn(&T) -> Result<()>) -> Result<T> {
    let mut now = read();
    loop {
        write(&now)?;
        let after = read();
        if after == now {
            return Ok(now);
        }
        now = after;
    }
}

/// Refuse to write a sweep where something else is.
fn check_out(out: &Path, plan: &Plan) -> Result<()> {
    let refused =
        |what: String| Err(Error::Config(format!("--out {}: {what}; choose another directory", out.display())));
    if out.exists() && !out.is_dir() {
        return refused("is a file".into());
    }
    if files::is_there(&out.join(SWEEP)) {
        return match difference(&read(&out.join(SWEEP))?, &plan.file) {
            Some((key, there, here)) => {
                refused(format!("holds another sweep: {key} is {there} there, and {here} here"))
            }
            None => Ok(()),
        };
    }
    let ours = |path: &Path| is_unfinished(path, &FILES) || path.file_name().is_some_and(|name| name == LOCK);
    let filled = out.is_dir() && fs::read_dir(out).map_err(Error::io(out))?.flatten().any(|e| !ours(&e.path()));
    if filled { refused("is not empty, and holds no sweep".into()) } else { Ok(()) }
}
