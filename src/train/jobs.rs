//! Several runs side by side: one thread each, every model with every seed, the longest first.
//!
//! A run shares nothing with another, so results do not depend on the number of threads.

use super::{Accuracy, Scores, Step, Watch, config::TrainConfig, rundir::RunDir, rundir::RunFiles, train};
use crate::{
    error::{Error, Result},
    models::Model,
};
use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::{Serialize, Serializer};
use std::{
    collections::BTreeMap,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

/// What came of one run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RunReport {
    /// The mixer, or the name of a variant of it.
    pub model: String,
    /// The seed.
    pub seed: u64,
    /// The form that it was computed in.
    pub form: String,
    /// The device that computed it.
    pub device: String,
    /// How many parameters the model has.
    pub params: usize,
    /// How many training steps were asked for.
    pub steps: usize,
    /// Training steps in a second, evaluation not counted; 0 if the run stopped.
    pub steps_per_s: f64,
    /// Seconds from the start of this run to its end.
    pub wall_s: f64,
    /// Accuracy over all positions at each length; empty if the run stopped.
    #[serde(serialize_with = "as_object")]
    pub accuracy: Accuracy,
    /// The task's other scores, each as the accuracy.
    #[serde(flatten, serialize_with = "as_objects")]
    pub scores: Scores,
    /// Why the run stopped before its end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

fn as_object<S: Serializer>(accuracy: &Accuracy, s: S) -> std::result::Result<S::Ok, S::Error> {
    s.collect_map(accuracy.iter().map(|(len, a)| (len.to_string(), a)))
}

fn as_objects<S: Serializer>(scores: &Scores, s: S) -> std::result::Result<S::Ok, S::Error> {
    let by_len = |of: &Accuracy| of.iter().map(|(len, a)| (len.to_string(), *a)).collect::<BTreeMap<String, f64>>();
    s.collect_map(scores.iter().map(|(name, of)| (name, by_len(of))))
}

/// One run to be.
struct Job {
    name: String,
    cfg: TrainConfig,
    seed: u64,
    form: String,
    params: usize,
}

impl Job {
    /// About how much work it is, to begin with the longest.
    fn cost(&self) -> f64 {
        let tokens = self.cfg.steps * self.cfg.batch * self.cfg.train_len.max;
        tokens as f64 * (self.params as f64 + 1000.0)
    }
}

/// Train every model of `cfg` from every seed, on so many threads. A run that fails does not disturb the others.
///
/// The reports are in the order of `models`, then of seeds. With `progress`, standard error shows a bar for every
/// run at work, if it is a terminal. Beside the reports: whether the files that all runs share could be written.
///
/// # Errors
/// When a configuration cannot be; nothing was trained then.
pub fn run_all(
    cfg: &TrainConfig,
    threads: usize,
    out: Option<&RunDir>,
    progress: bool,
) -> Result<(Vec<RunReport>, Result<()>)> {
    let jobs = jobs(cfg)?;
    let mut order: Vec<usize> = (0..jobs.len()).collect();
    order.sort_by(|&a, &b| jobs[b].cost().total_cmp(&jobs[a].cost()));
    let bars = MultiProgress::with_draw_target(if progress {
        ProgressDrawTarget::stderr()
    } else {
        ProgressDrawTarget::hidden()
    });

    let next = AtomicUsize::new(0);
    let done: Mutex<(Vec<Option<RunReport>>, Result<()>)> = Mutex::new((vec![None; jobs.len()], Ok(())));
    thread::scope(|scope| {
        for _ in 0..threads.min(jobs.len()) {
            scope.spawn(|| {
                while let Some(&i) = order.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let report = run(&jobs[i], out, &bars);
                    let mut done = done.lock().unwrap_or_else(PoisonError::into_inner);
                    done.0[i] = Some(report);
                    if let Some(out) = out {
                        let reports: Vec<RunReport> = done.0.iter().flatten().cloned().collect();
                        // The last to finish writes everything, so only what came of that counts.
                        done.1 = out.write_reports(cfg, &reports);
                    }
                }
            });
        }
    });
    let (reports, written) = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    Ok((reports.into_iter().flatten().collect(), written))
}

fn jobs(cfg: &TrainConfig) -> Result<Vec<Job>> {
    let mut jobs = Vec::new();
    for (name, own) in cfg.models.iter().zip(cfg.each_model()?) {
        let model = Model::new(&own.model, own.seed, own.dtype)?;
        let (form, params) = (own.form_of(&model).to_string(), model.params().len());
        for seed in (own.seed..).take(own.seeds) {
            jobs.push(Job { name: name.clone(), cfg: own.clone(), seed, form: form.clone(), params });
        }
    }
    Ok(jobs)
}

/// Train one model from one seed; whatever goes wrong is part of the report.
fn run(job: &Job, out: Option<&RunDir>, bars: &MultiProgress) -> RunReport {
    let Job { name, cfg, seed, form, params } = job;
    let start = Instant::now();
    let mut report = RunReport {
        model: name.clone(),
        seed: *seed,
        form: form.clone(),
        device: cfg.device.to_string(),
        params: *params,
        steps: cfg.steps,
        steps_per_s: 0.0,
        wall_s: 0.0,
        accuracy: Vec::new(),
        scores: Scores::new(),
        error: None,
    };
    let bar = bars.add(bar(&report));
    let result = out.map(|dir| dir.begin(&report.model, *seed)).transpose().and_then(|files| {
        let mut watch = Record { files, bar: &bar, every: cfg.log_every, start, shown: start };
        let trained = train(cfg, *seed, &mut watch).inspect_err(|e| watch.failed(e))?;
        if let Some(files) = &watch.files {
            files.save(&trained.model, cfg.steps, *seed)?;
        }
        Ok(trained)
    });
    bar.finish_and_clear();
    match result {
        Ok(trained) => {
            report.steps_per_s = cfg.steps as f64 / trained.training.as_secs_f64().max(1e-9);
            (report.accuracy, report.scores) = (trained.accuracy, trained.scores);
        }
        Err(e) => report.error = Some(e.to_string()),
    }
    report.wall_s = start.elapsed().as_secs_f64();
    report
}

fn bar(report: &RunReport) -> ProgressBar {
    let style = ProgressStyle::with_template("{prefix:25} {bar:12} {pos:>6}/{len} {wide_msg}")
        .unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(report.steps as u64)
        .with_style(style)
        .with_prefix(format!("{} seed {}", report.model, report.seed))
}

/// Passes on what a run tells: to its files every `every` steps, to its bar some times a second.
struct Record<'a> {
    files: Option<RunFiles>,
    bar: &'a ProgressBar,
    every: usize,
    start: Instant,
    shown: Instant,
}

impl Record<'_> {
    fn failed(&mut self, error: &Error) {
        if let Some(files) = &mut self.files {
            // The run has failed already; a second error would only hide the first.
            let _ = files.line(&serde_json::json!({ "error": error.to_string() }));
        }
    }
}

impl Watch for Record<'_> {
    fn step(&mut self, s: &Step) -> Result<()> {
        if !self.bar.is_hidden() && self.shown.elapsed() > Duration::from_millis(100) {
            self.shown = Instant::now();
            self.bar.set_position(s.step as u64);
            let rate = s.step as f64 / self.start.elapsed().as_secs_f64();
            self.bar.set_message(format!("loss {:.4}  {rate:.0} steps/s", s.loss));
        }
        match &mut self.files {
            Some(files) if s.step == 1 || s.step.is_multiple_of(self.every) => files.line(s),
            _ => Ok(()),
        }
    }

    fn evaluation(&mut self, step: usize, accuracy: &Accuracy, scores: &Scores) -> Result<()> {
        #[derive(Serialize)]
        struct Line<'a> {
            step: usize,
            #[serde(serialize_with = "as_object")]
            accuracy: &'a Accuracy,
            #[serde(flatten, serialize_with = "as_objects")]
            scores: &'a Scores,
        }
        self.files.as_mut().map_or(Ok(()), |files| files.line(&Line { step, accuracy, scores }))
    }
}
