//! Parts of a sweep that ran on several machines, joined into one.

use super::{Plan, Shard, Sweep};
use crate::{
    error::{Error, Result},
    files,
    train::{
        RunReport,
        config::difference,
        lock::Lock,
        rundir::{CHECKPOINT, Found, MADE_BY, METRICS, RESULT, SWEEP, WEIGHTS, check_files, find_of, write},
    },
};
use indicatif::ProgressBar;
use std::{
    fs,
    path::{Path, PathBuf},
};

/// Join the finished runs in `parts` into `out`, which may be new, or hold a part of the same sweep already. Everything
/// is checked before anything is written. Unfinished runs stay where they are. The bar shows how far it is.
///
/// # Errors
/// When a part is no sweep, or another one, when two parts have different results of the same run, a finished run lost
/// a file, or one cannot be read or written.
pub fn merge(out: &Path, parts: &[PathBuf], bar: &ProgressBar) -> Result<Sweep> {
    let first = parts.first().ok_or_else(|| Error::config("merge: expected at least one part"))?;
    for part in parts {
        if !files::is_there(&part.join(SWEEP)) {
            let why = if part.exists() { "is no sweep: it has no sweep.toml" } else { "does not exist" };
            return Err(Error::Config(format!("{}: {why}", part.display())));
        }
    }
    let sweep = open(first, out)?;
    let all: Result<Vec<Sweep>> = parts.iter().map(|part| open(part, part)).collect();
    let all = all?;
    for part in &all {
        same(part, &sweep, first)?;
    }

    // For each run of the grid, a part that has its result.
    let begin = |doing: &str, steps: usize| {
        bar.set_message(doing.to_string());
        bar.set_length(steps as u64);
        bar.set_position(0);
    };
    begin("reading", sweep.jobs.len());
    let mut copies: Vec<(&Path, &Path)> = Vec::new();
    for (i, (point, job)) in sweep.jobs.iter().enumerate() {
        bar.inc(1);
        let to = job.dir.as_deref();
        let found = to.into_iter().chain(all.iter().filter_map(|part| part.jobs[i].1.dir.as_deref()));
        let mut has: Option<(&Path, RunReport)> = None;
        for dir in found {
            let Found::Finished(report) = find_of(dir, &sweep.plan.points[*point].cfg, &job.name, job.seed)? else {
                continue;
            };
            match &has {
                Some((other, theirs)) => agree((other, theirs), (dir, &report))?,
                None => has = Some((dir, *report)),
            }
        }
        if let (Some((from, _)), Some(to)) = (has, to)
            && from != to
        {
            check_files(from)?;
            copies.push((from, to));
        }
    }

    let _lock = sweep.lock(Lock::exclusive)?;
    let dirs = sweep.prepare()?;
    begin("copying", copies.len());
    for (from, to) in copies {
        bar.inc(1);
        fs::create_dir_all(to).map_err(Error::io(to))?;
        let made_by = |run: &Path| run.parent().unwrap_or(run).join(MADE_BY);
        add_lines(&made_by(from), &made_by(to))?;
        // The result comes last: a run that has one has everything. A run that diverged has its last checkpoint in the
        // place of weights.
        let tensors = files::tensors();
        let names = [(METRICS, files::RECORD), (WEIGHTS, tensors), (CHECKPOINT, tensors), (RESULT, files::RECORD)];
        for (name, most) in names {
            let path = from.join(name);
            if files::is_there(&path) {
                write(&to.join(name), &files::read(&path, most)?)?;
            }
        }
    }
    begin("writing tables", dirs.len());
    for (i, dir) in dirs.iter().enumerate() {
        bar.inc(1);
        sweep.write_reports(i, dir)?;
    }
    sweep.summary().write(out)?;
    Ok(sweep)
}

/// Add the lines of one file to another, if they are not there.
fn add_lines(from: &Path, to: &Path) -> Result<()> {
    let read = |path: &Path| match files::is_there(path) {
        true => files::read(path, files::RECORD).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()),
        false => Ok(String::new()),
    };
    let (mut all, more) = (read(to)?, read(from)?);
    let before = all.len();
    for line in more.lines().filter(|line| !line.is_empty()) {
        if !all.lines().any(|there| there == line) {
            all += line;
            all.push('\n');
        }
    }
    if all.len() == before { Ok(()) } else { write(to, all.as_bytes()) }
}

/// The sweep that `from` was made by, in `out`.
fn open(from: &Path, out: &Path) -> Result<Sweep> {
    Sweep::new(Plan::load(&from.join(SWEEP))?, out, Shard { index: 0, count: 1 })
}

/// Refuse parts of different sweeps.
fn same(part: &Sweep, sweep: &Sweep, first: &Path) -> Result<()> {
    let (other, out) = (part.out.display(), first.display());
    if let Some((key, one, two)) = difference(&sweep.plan.file, &part.plan.file) {
        return Err(Error::Config(format!(
            "{other} and {out} are parts of different sweeps: {key} is {two} and {one}"
        )));
    }
    // The same file may have meant something else to another version of this program.
    part.plan
        .points
        .iter()
        .filter(|point| part.out.join(&point.name).exists())
        .try_for_each(|p| part.point_dir(p).map(drop))
}

/// Refuse two different results of one run. How long it took may differ.
fn agree((a, of_a): (&Path, &RunReport), (b, of_b): (&Path, &RunReport)) -> Result<()> {
    let timeless = |r: &RunReport| {
        let mut r = RunReport { steps_per_s: 0.0, wall_s: 0.0, ..r.clone() };
        // Earlier versions wrote the lengths of scores in another order.
        r.scores.values_mut().for_each(|of| of.sort_by_key(|at| at.0));
        r
    };
    let conflict = |what: &str| {
        let (a, b) = (a.display(), b.display());
        Err(Error::Config(format!("{a} and {b} have different {what} of the same run; remove the wrong one")))
    };
    if timeless(of_a) != timeless(of_b) {
        return conflict("results");
    }
    let read = |dir: &Path| match files::read(&dir.join(WEIGHTS), files::tensors()) {
        Err(e) if of_a.error.is_none() => Err(e),
        other => Ok(other.unwrap_or_default()),
    };
    if read(a)? == read(b)? { Ok(()) } else { conflict("weights") }
}
