//! Several runs side by side: one thread each, every model with every seed, the longest first.
//!
//! A run shares nothing with another, so results do not depend on the number of threads. One that has a directory goes
//! on from what it finds there: nothing that is finished is repeated.

use super::{
    Accuracy, RunReport, Scores, Step, Trainer, Watch, capacity, checkpoint,
    config::TrainConfig,
    interrupt,
    lock::Lock,
    outcome::{as_object, as_objects},
    progress::{EVERY, Progress},
    rehearsal::compile_kernels,
    rundir::{Found, Held, RunDir, RunFiles, check_configuration, check_files, configuration_of, find, record_made_by},
    standing::{Save, Stand, Standing},
    table::number,
    train_on,
};
use crate::{
    error::{Error, Result, contained},
    models::Model,
    tasks::BITS,
    tensor::Cores,
};
use indicatif::ProgressBar;
use serde::Serialize;
use std::{
    panic::resume_unwind,
    path::{Path, PathBuf},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
        mpsc::{RecvTimeoutError, channel},
    },
    thread,
    time::{Duration, Instant},
};

/// One run to do: a model and a seed, and the directory where it leaves its files.
pub struct Job {
    /// The model: a mixer, or a variant of one.
    pub name: String,
    /// The configuration of this model alone.
    pub cfg: TrainConfig,
    /// The seed.
    pub seed: u64,
    /// The form that it is computed in.
    pub form: String,
    /// How many parameters the model has.
    pub params: usize,
    /// Where its files are.
    pub dir: Option<PathBuf>,
}

impl Job {
    /// About how much work it is; the longest job begins first.
    pub fn cost(&self) -> f64 {
        let tokens = self.cfg.steps * self.cfg.batch * self.cfg.train_len.max;
        tokens as f64 * (self.params as f64 + 1000.0)
    }

    /// The job's name in messages: its directory, or the model and the seed.
    fn whose(&self) -> String {
        let unsaved = || format!("{} seed {}", self.name, self.seed);
        self.dir.as_ref().map_or_else(unsaved, |dir| dir.display().to_string())
    }

    /// The report of the job before it begins.
    fn report(&self) -> RunReport {
        let Job { name, cfg, seed, form, params, .. } = self;
        RunReport {
            model: name.clone(),
            seed: *seed,
            form: form.clone(),
            device: cfg.device.to_string(),
            params: *params,
            steps: cfg.steps,
            ..RunReport::default()
        }
    }
}

/// Every model of `cfg` with every seed, in this order.
///
/// # Errors
/// When a configuration is invalid.
pub fn jobs(cfg: &TrainConfig, out: Option<&RunDir>) -> Result<Vec<Job>> {
    let mut jobs = Vec::new();
    for (name, own) in cfg.models.iter().zip(cfg.each_model()?) {
        let model = Model::hollow(&own.model, own.dtype)?;
        let (form, params) = (own.form_of(&model).to_string(), model.params().len());
        for seed in (own.seed..).take(own.seeds) {
            let dir = out.map(|out| out.of(name, seed));
            let cfg = match &dir {
                Some(dir) => configuration_of(dir, cfg, name)?,
                None => own.clone(),
            };
            jobs.push(Job { name: name.clone(), cfg, seed, form: form.clone(), params, dir });
        }
    }
    Ok(jobs)
}

/// Train every model of `cfg` from every seed, on so many threads. A run that fails does not disturb the others.
///
/// The reports are in the order of `models`, then of seeds; a run that was interrupted has none. With `progress`,
/// standard error shows a bar for every run at work, if it is a terminal. Beside the reports: whether the files that
/// all runs share could be written.
///
/// # Errors
/// When a configuration is invalid; nothing was trained then.
pub fn run_all(
    cfg: &TrainConfig,
    threads: usize,
    out: Option<&RunDir>,
    progress: bool,
) -> Result<(Vec<RunReport>, Result<()>)> {
    run_told(cfg, (threads, "--jobs"), out, progress, &Standing::default())
}

/// As [`run_all`], where `standing` tells how the runs stand meanwhile, and a flag sets the number of threads.
///
/// # Errors
/// As [`run_all`].
pub fn run_told(
    cfg: &TrainConfig,
    (threads, flag): (usize, &str),
    out: Option<&RunDir>,
    progress: bool,
    standing: &Standing,
) -> Result<(Vec<RunReport>, Result<()>)> {
    let jobs = jobs(cfg, out)?;
    let (mut reports, mut written) = (jobs.iter().map(finished).collect::<Vec<_>>(), Ok(()));
    let to_do = counted(jobs.iter().zip(&reports).filter(|(_, report)| report.is_none()).map(|of| of.0));
    to_do.iter().try_for_each(|(cfg, _)| capacity::check_run(cfg))?;
    capacity::check_side_by_side(&to_do, threads, flag)?;
    let lock = out.and_then(RunDir::lock);
    work(&jobs.iter().collect::<Vec<_>>(), threads, &Progress::new(progress), standing, lock, |i, report| {
        reports[i] = Some(report);
        if let Some(out) = out {
            let reports: Vec<RunReport> = reports.iter().flatten().cloned().collect();
            // The last run to finish writes everything, so only the outcome of that write counts.
            written = out.write_reports(cfg, &reports);
        }
    });
    Ok((reports.into_iter().flatten().collect(), written))
}

/// The configurations of these jobs, and how many jobs in a row each has.
pub fn counted<'a>(jobs: impl Iterator<Item = &'a Job>) -> Vec<(&'a TrainConfig, usize)> {
    let mut all: Vec<(&TrainConfig, usize)> = vec![];
    for Job { cfg, .. } in jobs {
        match all.last_mut() {
            Some((last, n)) if *last == cfg => *n += 1,
            _ => all.push((cfg, 1)),
        }
    }
    all
}

/// The result of a run that is finished already: it is in every table that is written from now on.
fn finished(job: &Job) -> Option<RunReport> {
    let dir = job.dir.as_deref()?;
    match (find(dir), check_configuration(dir, &job.cfg, job.seed)) {
        (Ok(Found::Finished(report)), Ok(())) => Some(*report),
        _ => None,
    }
}

/// Do these jobs on so many threads, the longest first; threads without a job compute parts of batches. `done` gets the
/// index and the report of each job, one at a time; a run that was interrupted has none. No run begins once `lock` is
/// not on its directory any more.
pub fn work(
    jobs: &[&Job],
    threads: usize,
    progress: &Progress,
    standing: &Standing,
    lock: Option<&Lock>,
    done: impl FnMut(usize, RunReport) + Send,
) {
    standing.begin(jobs.iter().map(|job| job.whose()));
    progress.expect(jobs.iter().map(|job| job.cost()));
    compile_kernels(jobs.iter().map(|job| &job.cfg), &|done, all| {
        progress.compiling(done, all);
        interrupt::came().is_none()
    });
    let mut order: Vec<usize> = (0..jobs.len()).collect();
    order.sort_by(|&a, &b| jobs[b].cost().total_cmp(&jobs[a].cost()));
    let cores = Cores::idle(threads.saturating_sub(jobs.len()));
    let threads = threads.min(jobs.len());
    let spare = threads < thread::available_parallelism().map_or(1, usize::from);
    let (next, done) = (AtomicUsize::new(0), Mutex::new(done));
    let work = || {
        while let Some(&i) = order.get(next.fetch_add(1, Ordering::Relaxed)) {
            if interrupt::came().is_some() {
                return;
            }
            if let Some(report) = run(jobs[i], spare, &cores, &Told { standing, progress, lock, run: i }) {
                done.lock().unwrap_or_else(PoisonError::into_inner)(i, report);
            }
        }
        cores.free();
    };
    thread::scope(|scope| {
        // Where the system has no more threads, there is still this one.
        let workers: Vec<_> =
            (0..threads).map_while(|_| thread::Builder::new().spawn_scoped(scope, work).ok()).collect();
        let (end, ended) = channel::<()>();
        let tell = move || {
            while ended.recv_timeout(EVERY) == Err(RecvTimeoutError::Timeout) {
                progress.say_how_it_stands();
            }
        };
        let told = thread::Builder::new().spawn_scoped(scope, tell);
        if workers.is_empty() {
            work();
        }
        for worker in workers {
            worker.join().unwrap_or_else(|panic| resume_unwind(panic));
        }
        drop((end, told));
    });
    progress.end();
}

/// The places where a run reports its state.
struct Told<'a> {
    standing: &'a Standing,
    progress: &'a Progress,
    lock: Option<&'a Lock>,
    run: usize,
}

impl Told<'_> {
    fn set(&self, stand: Stand) {
        self.standing.update(self.run, |_| stand);
    }
}

/// Do one job; whatever goes wrong is part of the report. With `spare`, there are more cores than runs. Nothing is
/// returned when a signal came before the end.
fn run(job: &Job, spare: bool, cores: &Cores, told: &Told) -> Option<RunReport> {
    let mut report = job.report();
    let bar = told.progress.begin(format!("{} seed {}", report.model, report.seed), report.steps);
    // A panic in this run does not stop the others.
    let outcome = contained(|| train_to_end(job, spare, cores, &bar, &mut report, told));
    bar.finish_and_clear();
    match outcome {
        Err(Error::Interrupted { .. }) => return None,
        Err(error) => {
            report.error = Some(error.to_string());
            told.standing.update(told.run, |stand| match stand {
                Stand::AtWork(saved) | Stand::Evaluating(saved, _) => Stand::Failed(error.to_string(), saved),
                _ => Stand::Refused(error.to_string()),
            });
        }
        Ok(()) => told.set(Stand::Finished(Box::new(report.clone()))),
    }
    if report.error.is_some() {
        // Nobody does the rest of its work, so that it tells nothing about the time of others.
        told.progress.goes_on(told.run, 1.0);
    }
    told.progress.finish(told.run, &format!("{} seed {}: {}", report.model, report.seed, said(&report)));
    Some(report)
}

/// The outcome of a run, in a few words: the first score, or why it stopped.
pub fn said(report: &RunReport) -> String {
    let bits = report.scores.get(BITS);
    let (name, score) = (bits.map(|_| BITS), bits.unwrap_or(&report.accuracy));
    match (&report.error, score.first()) {
        (Some(error), _) => format!("stopped: {error}"),
        (None, Some((len, x))) => format!("{} at {len}, {:.1} s", number(name, *x), report.wall_s),
        (None, None) => format!("{:.1} s", report.wall_s),
    }
}

/// Train one model from one seed, or go on from the state in its directory.
///
/// # Errors
/// When a file cannot be read or written, or a signal came: trying again may help, and the run is not finished. A
/// number that is not finite would come again, and so is a result.
fn train_to_end(
    job: &Job,
    spare: bool,
    cores: &Cores,
    bar: &ProgressBar,
    report: &mut RunReport,
    told: &Told,
) -> Result<()> {
    let Job { cfg, seed, .. } = job;
    told.lock.map_or(Ok(()), |lock| lock.check("this run is not begun"))?;
    // The directory is read only once no other process writes to it.
    let held = job.dir.as_deref().map(Held::wait).transpose()?;
    let now = Instant::now();
    let found = job.dir.as_deref().map_or(Ok(Found::Nothing), find)?;
    let (mut trainer, files, before) = match (found, job.dir.as_deref(), held) {
        (Found::Finished(finished), Some(dir), Some(held)) => {
            check_configuration(dir, cfg, *seed)?;
            if let Err(lost) = check_files(dir) {
                told.standing.has_lost(lost);
            }
            *report = *finished;
            told.progress.goes_on(told.run, 1.0);
            return held.tidy_up();
        }
        (Found::Checkpoint(path), Some(_), Some(held)) => {
            let (trainer, about) = checkpoint::load(&path, cfg, *seed)?;
            told.set(Stand::AtWork(Some(about.step)));
            told.progress.goes_on(told.run, about.step as f64 / cfg.steps as f64);
            (trainer, Some(held.go_on(about.written())?), about.wall_s)
        }
        (_, _, held) => {
            told.set(Stand::AtWork(None));
            (Trainer::new(cfg, *seed)?, held.map(Held::begin).transpose()?, 0.0)
        }
    };
    if let Some(experiment) = job.dir.as_deref().and_then(Path::parent) {
        told.lock.map_or(Ok(()), |lock| lock.check("this run is not begun"))?;
        record_made_by(experiment, trainer.tape.cx())?;
    }
    trainer.share(cores);
    if spare {
        trainer.make_batches_ahead_if_it_pays();
    }
    let from = trainer.steps();
    let before = Duration::try_from_secs_f64(before).unwrap_or_default();
    let evaluating = (now, Duration::ZERO);
    let mut watch = Record { files, bar, cfg, told, from, start: now, before, evaluating, shown: now, saved: now };
    let trained = train_on(trainer, &mut watch);
    report.wall_s = watch.wall().as_secs_f64();
    let mut files = watch.files;
    let model = match trained {
        Ok(trained) => {
            report.steps_per_s = cfg.steps as f64 / trained.training.as_secs_f64().max(1e-9);
            (report.accuracy, report.scores) = (trained.accuracy, trained.scores);
            report.kernels = trained.kernels;
            Some(trained.model)
        }
        Err(error @ Error::NotFinite { .. }) => {
            let error = error.to_string();
            files.as_mut().map_or(Ok(()), |files| files.line(&serde_json::json!({ "error": error })))?;
            report.error = Some(error);
            None
        }
        Err(error) => return Err(error),
    };
    told.standing.writing(|| files.map_or(Ok(()), |files| files.finish(cfg, report, model.as_ref())))
}

/// Writes the reports of a run to its files and its bar; saves its state, and stops it when a signal came.
struct Record<'a> {
    files: Option<RunFiles>,
    bar: &'a ProgressBar,
    cfg: &'a TrainConfig,
    told: &'a Told<'a>,
    /// The steps taken before this process took over, and the time spent.
    from: usize,
    before: Duration,
    start: Instant,
    /// Since when it evaluates, and the time that earlier evaluations took.
    evaluating: (Instant, Duration),
    shown: Instant,
    saved: Instant,
}

impl Record<'_> {
    /// The time spent on this run by all processes.
    fn wall(&self) -> Duration {
        self.before + self.start.elapsed()
    }
}

impl Watch for Record<'_> {
    fn step(&mut self, s: &Step) -> Result<()> {
        if self.shown.elapsed() > Duration::from_millis(100) {
            self.shown = Instant::now();
            self.told.progress.at(self.told.run, s.step as f64 / self.cfg.steps as f64, || {
                format!("{} step {} of {}, loss {:.4}", self.bar.prefix(), s.step, self.cfg.steps, s.loss)
            });
            self.bar.set_position(s.step as u64);
            let training = self.start.elapsed().saturating_sub(self.evaluating.1);
            let rate = (s.step - self.from) as f64 / training.as_secs_f64();
            self.bar.set_message(format!("loss {:.4}  {rate:.0} steps/s", s.loss));
        }
        match &mut self.files {
            Some(files) if s.step == 1 || s.step.is_multiple_of(self.cfg.log_every) => files.line(s),
            _ => Ok(()),
        }
    }

    fn pause(&mut self, trainer: &mut Trainer) -> Result<()> {
        let (stop, every) = (interrupt::came().is_some(), self.cfg.checkpoint_every);
        let saves = self.files.as_ref().filter(|_| stop || every > 0.0 && self.saved.elapsed().as_secs_f64() >= every);
        if let Some(files) = saves {
            self.told.standing.writing(|| {
                files.checkpoint(trainer, self.wall())?;
                self.told.set(Stand::AtWork(Some(trainer.steps())));
                Ok(())
            })?;
            self.saved = Instant::now();
        }
        if stop {
            self.told.set(Stand::Stopped);
            return Err(Error::Interrupted { step: trainer.steps() });
        }
        Ok(())
    }

    fn evaluates(&mut self, trainer: &mut Trainer) -> Result<()> {
        let later = self.files.as_ref().map(|files| files.checkpoint_later(trainer, self.wall())).transpose()?;
        self.told.standing.update(self.told.run, |stand| Stand::Evaluating(stand.saved(), later.map(Save::new)));
        self.evaluating.0 = Instant::now();
        Ok(())
    }

    fn evaluation(&mut self, step: usize, accuracy: &Accuracy, scores: &Scores) -> Result<()> {
        self.told.standing.update(self.told.run, |stand| Stand::AtWork(stand.saved()));
        self.evaluating.1 += self.evaluating.0.elapsed();
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
