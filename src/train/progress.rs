//! The progress of runs, on standard error: bars on a terminal; elsewhere a line for each run that is finished, and one
//! every half minute. Nothing is written there in the first half minute; lines of that time come after it.

use crate::error::printable;
use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::{
    io::{self, Write},
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// How often a line is said where there are no bars, and how long nothing is said at first.
pub(crate) const EVERY: Duration = Duration::from_secs(30);

/// Below so many columns a bar has no room.
const NARROW: u16 = 72;

/// The runs of a process.
pub struct Progress {
    bars: MultiProgress,
    total: ProgressBar,
    /// Whether lines are said where there are no bars, and whether for each run that is finished.
    says: bool,
    says_results: bool,
    start: Instant,
    state: Mutex<State>,
}

/// The state of the runs.
#[derive(Default)]
struct State {
    /// The work of each run: its cost, and the fraction of it that is done.
    runs: Vec<(f64, f64)>,
    begun: usize,
    finished: usize,
    /// The work that was done before this process.
    before: f64,
    /// The bars of runs that are not finished, and whether they are short ones.
    bars: Vec<ProgressBar>,
    narrow: bool,
    /// Lines of runs that finished before anything was to be said.
    held: Vec<String>,
    /// The last message of any run.
    last: String,
    /// When the last line was said.
    said: Option<Instant>,
}

impl State {
    /// The work that this process has done, and what is left.
    fn work(&self) -> (f64, f64) {
        let done: f64 = self.runs.iter().map(|(cost, part)| cost * part).sum();
        let all: f64 = self.runs.iter().map(|(cost, _)| cost).sum();
        (done - self.before, all - done)
    }
}

impl Progress {
    /// The progress of no run yet. Without `tells` nothing is shown.
    pub fn new(tells: bool) -> Progress {
        let stderr = ProgressDrawTarget::stderr();
        let bars = MultiProgress::with_draw_target(if tells { stderr } else { ProgressDrawTarget::hidden() });
        let total = bars.add(ProgressBar::new_spinner().with_style(style("{wide_msg}")));
        Progress { bars, total, says: tells, says_results: tells, start: Instant::now(), state: Mutex::default() }
    }

    /// The same progress without lines of finished runs, which the caller writes.
    pub fn without_results(self) -> Progress {
        Progress { says_results: false, ..self }
    }

    /// Whether there are bars.
    pub fn has_bars(&self) -> bool {
        !self.total.is_hidden()
    }

    /// Set the costs of the runs.
    pub(super) fn expect(&self, costs: impl Iterator<Item = f64>) {
        self.state().runs = costs.map(|cost| (cost, 0.0)).collect();
        self.show();
    }

    /// So many kernels are compiled, of so many that the runs need.
    pub(super) fn compiling(&self, done: usize, all: usize) {
        let text = format!("compiling kernels for this device, once: {done} of {all}");
        if self.has_bars() {
            self.total.set_message(text);
        } else if self.start.elapsed() >= EVERY && self.state().said.is_none_or(|at| at.elapsed() >= EVERY) {
            self.say(|_| text);
        }
    }

    /// A run begins: a bar of its own.
    pub(super) fn begin(&self, name: String, steps: usize) -> ProgressBar {
        self.state().begun += 1;
        self.show();
        let state = &mut *self.state();
        let bar = ProgressBar::new(steps as u64).with_style(of_a_run(state.narrow)).with_prefix(name);
        state.bars.push(bar.clone());
        self.bars.add(bar)
    }

    /// A run goes on from this fraction of its work.
    pub(super) fn goes_on(&self, run: usize, part: f64) {
        let state = &mut *self.state();
        state.before += (part - state.runs[run].1) * state.runs[run].0;
        state.runs[run].1 = part;
    }

    /// A run has done this fraction of its work.
    pub(super) fn at(&self, run: usize, part: f64, said: impl FnOnce() -> String) {
        {
            let state = &mut *self.state();
            state.runs[run].1 = part;
            state.last = said();
        }
        self.show();
    }

    /// A run is finished, with this outcome.
    pub(super) fn finish(&self, run: usize, said: &str) {
        {
            let state = &mut *self.state();
            state.runs[run].1 = 1.0;
            state.finished += 1;
            if self.says_results {
                let line = format!("{} of {} runs finished: {said}", state.finished, state.runs.len());
                state.held.push(line);
            }
        }
        self.show();
        if self.start.elapsed() > EVERY {
            self.say_results();
        }
    }

    /// Write a line for each run that is finished and has none yet.
    fn say_results(&self) {
        let lines = std::mem::take(&mut self.state().held);
        lines.into_iter().for_each(|line| self.say(|_| line));
    }

    /// Write a line about the state of the runs, if none was written for a while.
    pub(super) fn say_how_it_stands(&self) {
        self.say_results();
        let quiet = |state: &State| state.said.is_none_or(|at| at.elapsed() >= EVERY / 2);
        if quiet(&self.state()) {
            self.say(|state| format!("run {} of {}: {}", state.begun, state.runs.len(), state.last));
        }
        self.show();
    }

    /// Nothing is to be shown any more.
    pub(super) fn end(&self) {
        self.total.finish_and_clear();
    }

    fn say(&self, line: impl FnOnce(&State) -> String) {
        if !self.says || self.has_bars() {
            return;
        }
        let (line, left) = {
            let state = &mut *self.state();
            state.said = Some(Instant::now());
            (line(state), self.left(state))
        };
        let left = left.map_or(String::new(), |left| format!("; about {left} left"));
        // A failure is ignored: there may be no reader.
        let _ = writeln!(io::stderr(), "{}{left}", printable(&line));
    }

    /// The line above the bars.
    fn show(&self) {
        if !self.has_bars() {
            return;
        }
        let mut state = self.state();
        let narrow = columns().is_some_and(|n| n < NARROW);
        if narrow != state.narrow {
            state.narrow = narrow;
            state.bars.retain(|bar| !bar.is_finished());
            state.bars.iter().for_each(|bar| bar.set_style(of_a_run(narrow)));
        }
        let left = self.left(&state).map_or(String::new(), |left| format!(", about {left} left"));
        let text = format!("run {} of {}{left}", state.begun.max(1), state.runs.len().max(1));
        self.total.set_message(text);
    }

    /// The time that is left, at the speed so far; none before there is enough to tell.
    fn left(&self, state: &State) -> Option<String> {
        let (done, rest) = state.work();
        left(self.start.elapsed(), done, rest).map(duration)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The time that the rest takes at the speed so far: `done` in `time`. None where too little was done to tell.
pub fn left(time: Duration, done: f64, rest: f64) -> Option<Duration> {
    (rest > 0.0 && done > 0.01 * rest).then(|| time.mul_f64(rest / done))
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}

/// The line of a run, on a narrow terminal, which has room for the loss alone, or a wide one.
fn of_a_run(narrow: bool) -> ProgressStyle {
    style(match narrow {
        true => "{prefix:16!} {pos}/{len} {msg:11!}",
        false => "{prefix:25} {bar:12} {pos:>6}/{len} {wide_msg}",
    })
}

/// How wide the terminal is.
fn columns() -> Option<u16> {
    terminal_size::terminal_size_of(io::stderr()).map(|size| size.0.0)
}

/// A time in two units at most: "40 s", "3 min", "2 h 10 min".
pub fn duration(time: Duration) -> String {
    let seconds = time.as_secs_f64().ceil() as u64;
    match seconds {
        0..90 => format!("{seconds} s"),
        90..5_400 => format!("{} min", seconds.div_ceil(60)),
        _ => format!("{} h {} min", seconds / 3600, seconds % 3600 / 60),
    }
}
