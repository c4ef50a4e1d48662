//! The directory of one run: its files, and the process that writes them.

use super::{CHECKPOINT, METRICS, RESULT, WEIGHTS};
use crate::{
    error::{Error, Result, brief, number},
    files::{
        self,
        whole::{is, remove_file, remove_unfinished, write},
    },
    models::Model,
    rng::Fnv1a,
    tasks,
    train::{
        RunReport, Trainer,
        checkpoint::{self, Snapshot, Written},
        config::{Parts, TrainConfig},
        interrupt,
    },
};
use serde::{Deserialize, Serialize};
use std::{
    fs::{self, File, TryLockError},
    io::{self, Read, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

/// The files of one run.
const FILES: [&str; 4] = [METRICS, CHECKPOINT, WEIGHTS, RESULT];

/// The state that a run finds in its directory before it begins.
pub enum Found {
    /// The run is finished, with this report.
    Finished(Box<RunReport>),
    /// The run goes on from this checkpoint.
    Checkpoint(PathBuf),
    /// Nothing to go on from.
    Nothing,
}

/// Look into the directory of one run.
///
/// # Errors
/// When its result cannot be read.
pub fn find(dir: &Path) -> Result<Found> {
    let (result, checkpoint) = (dir.join(RESULT), dir.join(CHECKPOINT));
    if files::is_there(&result) {
        return Ok(Found::Finished(Box::new(read(&result)?.report)));
    }
    Ok(if files::is_there(&checkpoint) { Found::Checkpoint(checkpoint) } else { Found::Nothing })
}

/// As [`find`], for the run of this model of `all` with this seed.
///
/// # Errors
/// When its result cannot be read, or is that of another configuration.
pub fn find_of(dir: &Path, all: &TrainConfig, model: &str, seed: u64) -> Result<Found> {
    let found = find(dir)?;
    if let Found::Finished(_) = found {
        check_configuration(dir, &configuration_of(dir, all, model)?, seed)?;
    }
    Ok(found)
}

/// The contents of `result.json`: the outcome of a run, and its configuration.
#[derive(Serialize, Deserialize)]
struct Outcome {
    /// The configuration of this one model, as TOML, and its mixer; none in files of earlier builds.
    #[serde(default)]
    config: Option<String>,
    #[serde(default)]
    mixer: Option<String>,
    /// The checksum of the weights' file; none of a run without weights.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    weights: Option<String>,
    /// How many bytes of metrics it wrote, and their checksum.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    metrics: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    metrics_checksum: Option<String>,
    /// The checksum of the report below.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    checksum: Option<String>,
    #[serde(flatten)]
    report: RunReport,
}

/// The checksum of a report.
fn checksum(report: &RunReport) -> Option<String> {
    serde_json::to_vec(report).ok().map(|bytes| Fnv1a::of(&bytes).hex())
}

/// A result file.
fn read(path: &Path) -> Result<Outcome> {
    let broken = |what: String| Error::format(path, format!("{what}; delete it to repeat this run"));
    let outcome: Outcome =
        serde_json::from_slice(&files::read(path, files::RECORD)?).map_err(|e| broken(e.to_string()))?;
    let RunReport { accuracy, scores, .. } = &outcome.report;
    let scores = scores.iter().map(|(name, of)| (name.as_str(), of)).chain([("accuracy", accuracy)]);
    for (name, (len, x)) in scores.flat_map(|(name, of)| of.iter().map(move |at| (name, *at))) {
        if !tasks::is_score(name, x) {
            return Err(broken(format!("{} at {len} is {}, which it cannot be", brief(name, 80), number(x))));
        }
    }
    if outcome.checksum.is_some() && outcome.checksum != checksum(&outcome.report) {
        return Err(broken("not the result that this run wrote".into()));
    }
    Ok(outcome)
}

/// [`TrainConfig::for_model`] of the run in this directory. Where the number of a batch's parts is chosen
/// automatically, it is the number that the run began with, whatever another build would choose.
///
/// # Errors
/// When the configuration is invalid.
pub fn configuration_of(dir: &Path, all: &TrainConfig, model: &str) -> Result<TrainConfig> {
    let mut own = all.for_model(model)?;
    if all.parts_are_ours(model) {
        let result = dir.join(RESULT);
        let begun = match files::is_there(&result) {
            true => read(&result).ok().and_then(|outcome| outcome.config),
            false => checkpoint::about(&dir.join(CHECKPOINT)).map(|about| about.config),
        };
        // A batch has no more parts than sequences.
        let parts = begun.and_then(|config| checkpoint::parts(&config)).filter(|n| (1..=own.batch).contains(n));
        own.micro_batches = parts.map_or(own.micro_batches, Parts::Count);
    }
    Ok(own)
}

/// See that the result in a run's directory is one of this configuration and seed.
///
/// # Errors
/// When it is not, or cannot be read.
pub fn check_configuration(dir: &Path, cfg: &TrainConfig, seed: u64) -> Result<()> {
    let path = dir.join(RESULT);
    is_of(&path, &read(&path)?, cfg, seed)
}

fn is_of(path: &Path, outcome: &Outcome, cfg: &TrainConfig, seed: u64) -> Result<()> {
    let Outcome { config, mixer, report, .. } = outcome;
    let own = |name: &str, there: String, here: String| (there != here).then(|| (name.to_string(), there, here));
    let name = cfg.models.first().filter(|_| cfg.models.len() == 1);
    let mut difference = name
        .and_then(|name| own("model", report.model.clone(), name.clone()))
        .or_else(|| own("seed", report.seed.to_string(), seed.to_string()))
        .or_else(|| own("steps", report.steps.to_string(), cfg.steps.to_string()));
    if let (None, Some(config)) = (&difference, config) {
        let mixer = mixer.as_deref().unwrap_or(&cfg.model.mixer);
        difference = checkpoint::differs(config, mixer, cfg).map_err(|what| Error::format(path, what))?;
    }
    difference.map_or(Ok(()), |(key, there, here)| {
        let what = format!("a result of another configuration: {key} is {there} there, and {here} here");
        Err(Error::format(path, format!("{what}; put config.toml back, or delete this file to repeat the run")))
    })
}

/// See that a finished run's metrics and weights are there, and are those that it ended with.
///
/// # Errors
/// When they are not.
pub fn check_files(dir: &Path) -> Result<()> {
    let outcome = read(&dir.join(RESULT))?;
    let [metrics, weights] = [METRICS, WEIGHTS].map(|name| dir.join(name));
    let lost = |path: &Path, what: String| {
        let remedy = "put it back from a copy, or delete result.json to train this run again";
        Err(Error::format(path, format!("{what}; {remedy}")))
    };
    if let (Some(bytes), Some(sum)) = (outcome.metrics, &outcome.metrics_checksum) {
        let there = files::open(&metrics, u64::MAX)
            .and_then(|file| Written::of(file.take(bytes.saturating_add(1))).map_err(Error::io(&metrics)));
        match there {
            Err(e) => return lost(&metrics, format!("the metrics of a finished run cannot be read: {e}")),
            Ok(there) if there.bytes < bytes => {
                let of = there.bytes;
                return lost(&metrics, format!("{of} of the {bytes} bytes that this run wrote: the rest is missing"));
            }
            Ok(there) if there.bytes > bytes || there.checksum.hex() != *sum => {
                return lost(&metrics, "not the metrics that this run wrote".into());
            }
            Ok(_) => {}
        }
    }
    if outcome.report.error.is_some() {
        return Ok(());
    }
    match (files::read(&weights, files::tensors()), outcome.weights) {
        (Err(e), _) => lost(&weights, format!("the weights of a finished run cannot be read: {e}")),
        (Ok(bytes), Some(sum)) if sum != Fnv1a::of(&bytes).hex() => {
            lost(&weights, "not the weights that this run ended with".into())
        }
        _ => Ok(()),
    }
}

/// The directory of one run, which no other process works on meanwhile.
pub struct Held {
    dir: PathBuf,
    metrics: File,
}

impl Held {
    /// Make the directory, if need be, and wait until no other process is at work on its run.
    ///
    /// # Errors
    /// When it cannot be written, or a signal comes.
    pub fn wait(dir: &Path) -> Result<Held> {
        let mut said = false;
        loop {
            fs::create_dir_all(dir).map_err(Error::io(dir))?;
            match Held::now(dir)? {
                Some(held) => return Ok(held),
                None if interrupt::came().is_some() => return Err(Error::Interrupted { step: 0 }),
                None => {}
            }
            if !said {
                said = true;
                // A failure is ignored: there may be no reader.
                let what = "another process is at work on this run; waiting for it";
                let _ = writeln!(io::stderr(), "{}: {what}", dir.display());
            }
            thread::sleep(Duration::from_millis(100));
        }
    }

    /// As [`Held::wait`] without waiting: none if another process is at work.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn now(dir: &Path) -> Result<Option<Held>> {
        let path = dir.join(METRICS);
        // Refuse a device file such as /dev/null: it would take every line, and keep none.
        if files::is_there(&path) {
            files::open(&path, u64::MAX)?;
        }
        let opened = File::options().read(true).write(true).create(true).truncate(false).open(&path);
        let metrics = opened.map_err(Error::io(&path))?;
        // The lock is held until this process ends, however it ends. Where a file system has no locks, nobody is kept
        // out.
        let free = !matches!(metrics.try_lock(), Err(TryLockError::WouldBlock));
        Ok((free && is(&metrics, &path)).then(|| Held { dir: dir.into(), metrics }))
    }

    /// Begin the run anew.
    ///
    /// # Errors
    /// When its directory cannot be written.
    pub fn begin(self) -> Result<RunFiles> {
        // Weights that are still there are those of an earlier run, whose result is gone.
        remove_file(&self.dir.join(WEIGHTS))?;
        self.open(Written::default())
    }

    /// Go on after the metrics that were written at a checkpoint; later lines are cut off.
    ///
    /// # Errors
    /// When the file has fewer or other metrics, or cannot be written.
    pub fn go_on(mut self, written: Written) -> Result<RunFiles> {
        let path = self.dir.join(METRICS);
        let there = Written::of((&mut self.metrics).take(written.bytes)).map_err(Error::io(&path))?;
        if there != written {
            let what = match there.bytes {
                n if n < written.bytes => format!("{n} bytes, fewer than the {} that were there", written.bytes),
                n => format!("its first {n} bytes are not those that were there"),
            };
            let what = format!("{what} at the checkpoint beside it; delete the checkpoint to begin this run anew");
            return Err(Error::format(path, what));
        }
        self.open(written)
    }

    fn open(mut self, written: Written) -> Result<RunFiles> {
        let path = self.dir.join(METRICS);
        remove_unfinished(&self.dir, &FILES)?;
        let cut = self.metrics.set_len(written.bytes).and_then(|()| self.metrics.seek(SeekFrom::End(0)));
        cut.map_err(Error::io(path))?;
        Ok(RunFiles { held: self, written })
    }

    /// Delete the leftovers of a finished run: the process that wrote the result may have been killed before it could.
    ///
    /// # Errors
    /// When a file cannot be deleted.
    pub fn tidy_up(&self) -> Result<()> {
        remove_unfinished(&self.dir, &FILES)?;
        if files::is_there(&self.dir.join(WEIGHTS)) { remove_file(&self.dir.join(CHECKPOINT)) } else { Ok(()) }
    }

    /// Delete the run; the directory too, if nothing else is in it.
    ///
    /// # Errors
    /// When something cannot be deleted.
    pub fn delete(self) -> Result<()> {
        remove_unfinished(&self.dir, &FILES)?;
        // The result first: what is left when this process is killed is no finished run.
        [RESULT, CHECKPOINT, WEIGHTS, METRICS].iter().try_for_each(|name| remove_file(&self.dir.join(name)))?;
        match fs::remove_dir(&self.dir) {
            Err(e) if e.kind() != io::ErrorKind::DirectoryNotEmpty => Err(Error::io(&self.dir)(e)),
            _ => Ok(()),
        }
    }
}

/// The files of a run that is not finished.
pub struct RunFiles {
    held: Held,
    written: Written,
}

impl RunFiles {
    /// See that the directory is still there, and this process's.
    fn check(&self) -> Result<()> {
        if is(&self.held.metrics, &self.held.dir.join(METRICS)) {
            return Ok(());
        }
        let what = "this run's directory was removed or replaced while it was at work, and it cannot be saved";
        Err(Error::format(&self.held.dir, what))
    }

    /// Append one object to the metrics: a whole line in one write.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn line(&mut self, object: &impl Serialize) -> Result<()> {
        self.check()?;
        let path = self.held.dir.join(METRICS);
        let mut line = serde_json::to_vec(object).map_err(|e| Error::io(&path)(e.into()))?;
        line.push(b'\n');
        self.held.metrics.write_all(&line).map_err(Error::io(&path))?;
        self.written.add(&line);
        Ok(())
    }

    /// Save the state of the run, after this time. The metrics up to here are on the disk before it.
    ///
    /// # Errors
    /// When that cannot be written; an earlier checkpoint is then as it was.
    pub fn checkpoint(&self, trainer: &mut Trainer, wall: Duration) -> Result<()> {
        self.save_snapshot(&Snapshot::of(trainer, self.written, wall)?)
    }

    /// A function that saves the state of the run from any thread, as long as the run does not go on. See [`Snapshot`].
    ///
    /// # Errors
    /// When the device fails, or there are too many open files.
    pub fn checkpoint_later(
        &self,
        trainer: &mut Trainer,
        wall: Duration,
    ) -> Result<impl FnOnce() -> Result<()> + Send + use<>> {
        let snapshot = Snapshot::of(trainer, self.written, wall)?;
        let metrics = self.held.metrics.try_clone().map_err(Error::io(self.held.dir.join(METRICS)))?;
        let files = RunFiles { held: Held { dir: self.held.dir.clone(), metrics }, written: self.written };
        Ok(move || files.save_snapshot(&snapshot))
    }

    fn save_snapshot(&self, snapshot: &Snapshot) -> Result<()> {
        self.synced()?;
        snapshot.save(&self.held.dir.join(CHECKPOINT))
    }

    fn synced(&self) -> Result<()> {
        self.check()?;
        self.held.metrics.sync_data().map_err(Error::io(self.held.dir.join(METRICS)))
    }

    /// The run is finished with this report; `model` is the trained model, if the run came to its end. The checkpoint
    /// is then deleted.
    ///
    /// # Errors
    /// When that cannot be written.
    pub fn finish(&self, cfg: &TrainConfig, report: &RunReport, model: Option<&Model>) -> Result<()> {
        self.synced()?;
        let weights = model.map(|model| self.save(model, cfg.steps, report.seed)).transpose()?;
        let path = self.held.dir.join(RESULT);
        // The interval of checkpoints changes no number.
        let config = TrainConfig { checkpoint_every: 0.0, ..cfg.clone() };
        let outcome = Outcome {
            config: Some(config.to_toml()?),
            mixer: Some(cfg.model.mixer.clone()),
            weights: weights.map(Fnv1a::hex),
            metrics: Some(self.written.bytes),
            metrics_checksum: Some(self.written.checksum.hex()),
            checksum: checksum(report),
            report: report.clone(),
        };
        let mut text = serde_json::to_vec_pretty(&outcome).map_err(|e| Error::format(&path, e.to_string()))?;
        text.push(b'\n');
        write(&path, &text)?;
        // Of a run that diverged the last checkpoint has all the weights there are.
        if model.is_some() { remove_file(&self.held.dir.join(CHECKPOINT)) } else { Ok(()) }
    }

    /// Save the weights under their path names, and give the checksum of their file. The metadata has one entry,
    /// `tapezoo`: a JSON object with the model's configuration, the step and the seed.
    fn save(&self, model: &Model, steps: usize, seed: u64) -> Result<Fnv1a> {
        let path = self.held.dir.join(WEIGHTS);
        let about = serde_json::json!({ "model": model.config(), "step": steps, "seed": seed });
        let bytes = model.to_safetensors(&about).map_err(|what| Error::format(&path, what))?;
        write(&path, &bytes)?;
        Ok(Fnv1a::of(&bytes))
    }
}
