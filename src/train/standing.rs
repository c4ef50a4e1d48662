//! The state of a process's runs, for the message when a signal ends it.

use super::RunReport;
use crate::error::{Error, Result};
use std::{
    collections::BTreeMap,
    mem,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

/// How long a signal's time is extended for a checkpoint that is being written.
const WRITING: Duration = Duration::from_secs(10);

/// Saves the state of a run, while that does not change.
pub struct Save(Box<dyn FnOnce() -> Result<()> + Send>);

impl Save {
    /// A save by this function.
    pub fn new(save: impl FnOnce() -> Result<()> + Send + 'static) -> Save {
        Save(Box::new(save))
    }
}

/// The state of one run.
#[derive(Default)]
pub enum Stand {
    /// It was not begun by this process: its directory is as it was.
    #[default]
    Waiting,
    /// It is at work. Its last checkpoint, if there is one, is from after so many steps.
    AtWork(Option<usize>),
    /// It is at work on an evaluation. If it has a directory, its state can be saved meanwhile.
    Evaluating(Option<usize>, Option<Save>),
    /// It was asked to stop, and did; all of it is saved, if it has a directory.
    Stopped,
    /// It has come to its end, and the result is saved if it has a directory.
    Finished(Box<RunReport>),
    /// It stopped with this error, before its end or because the result could not be saved. The number of steps is that
    /// of its last checkpoint, as in `AtWork`.
    Failed(String, Option<usize>),
    /// It could not begin; its directory is as it was.
    Refused(String),
}

impl Stand {
    /// The step after which it is saved.
    pub fn saved(&self) -> Option<usize> {
        match self {
            Stand::AtWork(saved) | Stand::Evaluating(saved, _) | Stand::Failed(_, saved) => *saved,
            _ => None,
        }
    }
}

/// All runs of a process, in the order in which they are reported, with their names.
#[derive(Default)]
pub struct Standing {
    runs: Mutex<Vec<(String, Stand)>>,
    writing: AtomicUsize,
    /// The errors by which finished runs have lost files.
    lost: Mutex<Vec<Error>>,
}

impl Standing {
    /// Begin with runs of these names, all waiting.
    pub fn begin(&self, names: impl Iterator<Item = String>) {
        *self.runs() = names.map(|name| (name, Stand::Waiting)).collect();
    }

    fn runs(&self) -> MutexGuard<'_, Vec<(String, Stand)>> {
        self.runs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Replace the state of one run by what `change` makes of it.
    pub fn update(&self, run: usize, change: impl FnOnce(Stand) -> Stand) {
        let stand = &mut self.runs()[run].1;
        *stand = change(mem::take(stand));
    }

    /// Write a checkpoint by `write`; a process whose time is up waits a while for it.
    pub fn writing<R>(&self, write: impl FnOnce() -> R) -> R {
        self.writing.fetch_add(1, Ordering::Relaxed);
        let written = write();
        self.writing.fetch_sub(1, Ordering::Relaxed);
        written
    }

    /// Save the runs that are in the middle of an evaluation, and wait while other checkpoints are being written, but
    /// not for ever.
    pub fn save_what_can_be(&self) {
        let all = self.runs().len();
        for run in 0..all {
            let taken = match &mut self.runs()[run].1 {
                Stand::Evaluating(saved, save) => save.take().map(|save| (*saved, save)),
                _ => None,
            };
            let Some((saved, save)) = taken else { continue };
            let outcome = (save.0)();
            self.update(run, |stand| match (stand, outcome) {
                (Stand::Evaluating(..), Ok(())) => Stand::Stopped,
                (Stand::Evaluating(..), Err(e)) => Stand::Failed(e.to_string(), saved),
                (other, _) => other,
            });
        }
        let start = Instant::now();
        while self.writing.load(Ordering::Relaxed) > 0 && start.elapsed() < WRITING {
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// The reports of the runs that are finished.
    pub fn finished(&self) -> Vec<RunReport> {
        let report = |stand: &Stand| if let Stand::Finished(report) = stand { Some((**report).clone()) } else { None };
        self.runs().iter().filter_map(|run| report(&run.1)).collect()
    }

    /// Note that a finished run has lost a file, by this error.
    pub fn has_lost(&self, what: Error) {
        self.lost.lock().unwrap_or_else(PoisonError::into_inner).push(what);
    }

    /// Take the errors by which finished runs have lost files.
    pub fn take_lost(&self) -> Vec<Error> {
        mem::take(&mut self.lost.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Whether all have come to their end.
    pub fn is_finished(&self) -> bool {
        self.runs().iter().all(|run| matches!(run.1, Stand::Finished(_)))
    }

    /// The state of all runs, in a sentence. `go_on` says how to go on with the runs that have a directory.
    pub fn sentence(&self, go_on: Option<&str>) -> String {
        let runs = self.runs();
        let all = runs.len();
        let mut counts = BTreeMap::<&str, usize>::new();
        let (mut details, mut untold) = (String::new(), 0);
        for (name, stand) in &*runs {
            let from = |step: &Option<usize>| match (step, go_on) {
                (_, None) => "nothing of it is kept".into(),
                (Some(step), _) => format!("it goes on after step {step}, from its last checkpoint"),
                (None, _) => "it has no checkpoint, and begins anew".to_string(),
            };
            let (count, detail) = match stand {
                Stand::Finished(_) => ("finished", None),
                Stand::Stopped => ("saved", None),
                Stand::Waiting => ("waiting", None),
                Stand::AtWork(saved) => ("abandoned", Some(format!("it was in the middle of a step; {}", from(saved)))),
                Stand::Evaluating(saved, _) => {
                    ("abandoned", Some(format!("it was in the middle of an evaluation; {}", from(saved))))
                }
                Stand::Failed(error, saved) => ("failed", Some(format!("{error}; {}", from(saved)))),
                Stand::Refused(error) => ("failed", Some(error.clone())),
            };
            *counts.entry(count).or_default() += 1;
            // Many may have failed for one reason, and an error is shown in eight lines.
            match detail {
                Some(detail) if details.lines().count() < 7 => details += &format!("\nnot saved: {name}: {detail}"),
                Some(_) => untold += 1,
                None => {}
            }
        }
        if untold > 0 {
            details += &format!("\nand {untold} more");
        }
        let n = |name: &str| counts.get(name).copied().unwrap_or_default();
        let mut text = format!("{} of {all} runs are finished", n("finished"));
        let Some(go_on) = go_on else {
            return text + ", nothing is kept of the others without --out DIR" + &details;
        };
        for (count, what) in [("saved", "saved"), ("waiting", "not begun"), ("abandoned", "abandoned")] {
            if n(count) > 0 {
                text += &format!(", {} {what}", n(count));
            }
        }
        if n("failed") > 0 {
            text += &format!(", {} stopped with an error", n("failed"));
        }
        format!("{text}; {go_on}{details}")
    }
}
