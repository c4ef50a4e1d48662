//! What a run leaves behind, such that a process killed at any moment loses nothing that was complete.
//!
//! ```text
//! DIR/config.toml                     the whole configuration; `--config` reads it back
//! DIR/MODEL-seedS/metrics.jsonl       one object a line, as training goes
//! DIR/MODEL-seedS/checkpoint.safetensors where the run stands, until it is finished
//! DIR/MODEL-seedS/weights.safetensors the final weights under their path names
//! DIR/MODEL-seedS/result.json         what came of the run: it is finished, and is not repeated
//! DIR/results.json, DIR/table.txt     all runs that have finished so far
//! ```
//! Files other than `metrics.jsonl` appear whole or not at all: they are written under another name, synced and
//! renamed.

use super::{
    Trainer, checkpoint,
    config::{TrainConfig, difference, read_run},
    jobs::RunReport,
};
use crate::{
    error::{Error, Result},
    models::Model,
    report::table,
    tensor::{DType, Tensor},
};
use safetensors::tensor::{Dtype, TensorView};
use serde::Serialize;
use std::{
    collections::HashMap,
    fs::{self, File, TryLockError},
    hash::{BuildHasher, RandomState},
    io::{self, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
    time::Duration,
};

/// The configuration.
pub const CONFIG: &str = "config.toml";
const RESULTS: &str = "results.json";
const TABLE: &str = "table.txt";
/// What one run tells as it goes.
pub const METRICS: &str = "metrics.jsonl";
/// The final weights of one run.
pub const WEIGHTS: &str = "weights.safetensors";
/// Where one run stands.
pub const CHECKPOINT: &str = "checkpoint.safetensors";
/// What came of one run.
pub const RESULT: &str = "result.json";

/// A directory that holds the runs of one experiment.
pub struct RunDir {
    path: PathBuf,
}

impl RunDir {
    /// Make the directory and record the configuration in it.
    ///
    /// # Errors
    /// When it cannot be made, or is not empty: with `force`, the runs in it are deleted, and nothing else.
    pub fn create(path: &Path, cfg: &TrainConfig, force: bool) -> Result<RunDir> {
        if path.exists() && !path.is_dir() {
            let why = "is a file; expected a directory, or a name for a new one";
            return Err(Error::Config(format!("--out {}: {why}", path.display())));
        }
        fs::create_dir_all(path).map_err(Error::io(path))?;
        if force {
            remove_runs(path)?;
        } else if fs::read_dir(path).map_err(Error::io(path))?.next().is_some() {
            let what = if path.join(CONFIG).exists() { "already holds a run" } else { "is not empty" };
            let remedy = "choose another directory, or pass --force to delete the runs in this one";
            return Err(Error::Config(format!("--out {}: {what}; {remedy}", path.display())));
        }
        write(&path.join(CONFIG), cfg.to_toml()?.as_bytes())?;
        Ok(RunDir { path: path.into() })
    }

    /// A directory that holds runs, to go on with them, and their configuration.
    ///
    /// # Errors
    /// When it is none, or its configuration cannot be read.
    pub fn open(path: &Path) -> Result<(RunDir, TrainConfig)> {
        let config = path.join(CONFIG);
        if !config.is_file() {
            let why = if path.exists() { "is not a run directory: it has no config.toml" } else { "does not exist" };
            return Err(Error::Config(format!(
                "{}: {why}; expected the directory that was given to --out",
                path.display()
            )));
        }
        Ok((
            RunDir { path: path.into() },
            TrainConfig::from_layers("default", Some((&config, read_run(&config)?)), toml::Table::new())?,
        ))
    }

    /// The directory of runs of this configuration, made if it is not there.
    ///
    /// # Errors
    /// When it holds runs of another one, or cannot be written.
    pub fn create_or_open(path: &Path, cfg: &TrainConfig) -> Result<RunDir> {
        let config = path.join(CONFIG);
        fs::create_dir_all(path).map_err(Error::io(path))?;
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
        Ok(RunDir { path: path.into() })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The directory of one run.
    pub fn of(&self, model: &str, seed: u64) -> PathBuf {
        of(&self.path, model, seed)
    }

    /// Write the reports of the runs that have finished so far, and their table.
    ///
    /// # Errors
    /// When they cannot be written.
    pub fn write_reports(&self, cfg: &TrainConfig, reports: &[RunReport]) -> Result<()> {
        write(&self.path.join(RESULTS), table::json(reports)?.as_bytes())?;
        write(&self.path.join(TABLE), table::text(cfg, reports).as_bytes())
    }
}

/// The directory of one run in that of its experiment.
pub fn of(experiment: &Path, model: &str, seed: u64) -> PathBuf {
    experiment.join(format!("{model}-seed{seed}"))
}

/// The files of a run that is not finished.
pub struct RunFiles {
    dir: PathBuf,
    metrics: File,
    /// How many bytes of metrics there are.
    written: u64,
}

/// What a run that is about to begin finds in its directory.
pub enum Found {
    /// It is finished.
    Finished(Box<RunReport>),
    /// It stands here.
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
    if result.is_file() {
        let text = fs::read(&result).map_err(Error::io(&result))?;
        let report = serde_json::from_slice(&text)
            .map_err(|e| Error::format(&result, format!("{e}; delete it to repeat this run")))?;
        // Whoever wrote the result may have been killed before it could tidy up.
        match fs::remove_file(&checkpoint) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(Error::io(&checkpoint)(e)),
            _ => {}
        }
        return Ok(Found::Finished(report));
    }
    Ok(if checkpoint.is_file() { Found::Checkpoint(checkpoint) } else { Found::Nothing })
}

impl RunFiles {
    /// Begin a run anew.
    ///
    /// # Errors
    /// When its directory cannot be written, or another process is at work there.
    pub fn create(dir: &Path) -> Result<RunFiles> {
        fs::create_dir_all(dir).map_err(Error::io(dir))?;
        RunFiles::open(dir, 0)
    }

    /// Go on after the first `written` bytes of the metrics; what follows them is cut off.
    ///
    /// # Errors
    /// When there are fewer, they cannot be written, or another process is at work there.
    pub fn resume(dir: &Path, written: u64) -> Result<RunFiles> {
        let path = dir.join(METRICS);
        let len = fs::metadata(&path).map_err(Error::io(&path))?.len();
        if len < written {
            let what = format!("{len} bytes, fewer than the {written} that were there at the checkpoint beside it");
            return Err(Error::format(&path, format!("{what}; delete the checkpoint to begin this run anew")));
        }
        RunFiles::open(dir, written)
    }

    fn open(dir: &Path, written: u64) -> Result<RunFiles> {
        let path = dir.join(METRICS);
        let opened = File::options().write(true).create(true).truncate(false).open(&path);
        let mut metrics = opened.map_err(Error::io(&path))?;
        // Held until this process ends, however it does. Where a file system has no locks, nobody is kept out.
        if let Err(TryLockError::WouldBlock) = metrics.try_lock() {
            return Err(Error::format(dir, "another process is at work on this run; wait for it, or stop it"));
        }
        remove_temporaries(dir)?;
        metrics.set_len(written).and_then(|()| metrics.seek(SeekFrom::End(0))).map_err(Error::io(&path))?;
        Ok(RunFiles { dir: dir.into(), metrics, written })
    }

    /// Append one object to the metrics: a whole line in one write.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn line(&mut self, object: &impl Serialize) -> Result<()> {
        let path = self.dir.join(METRICS);
        let mut line = serde_json::to_vec(object).map_err(|e| Error::io(&path)(e.into()))?;
        line.push(b'\n');
        self.metrics.write_all(&line).map_err(Error::io(&path))?;
        self.written += line.len() as u64;
        Ok(())
    }

    /// Save where the run stands, after so long. The metrics up to here are on the disk before it.
    ///
    /// # Errors
    /// When that cannot be written; an earlier checkpoint is then as it was.
    pub fn checkpoint(&self, trainer: &mut Trainer, wall: Duration) -> Result<()> {
        self.metrics.sync_data().map_err(Error::io(self.dir.join(METRICS)))?;
        checkpoint::save(&self.dir.join(CHECKPOINT), trainer, self.written, wall)
    }

    /// The run is finished, and this came of it. It has no need of its checkpoint any more.
    ///
    /// # Errors
    /// When that cannot be written.
    pub fn finish(&self, report: &RunReport) -> Result<()> {
        let path = self.dir.join(RESULT);
        let mut text = serde_json::to_vec_pretty(report).map_err(|e| Error::format(&path, e.to_string()))?;
        text.push(b'\n');
        self.metrics.sync_data().map_err(Error::io(self.dir.join(METRICS)))?;
        write(&path, &text)?;
        remove_file(&self.dir.join(CHECKPOINT))
    }

    /// Save the weights under their path names. The metadata has one entry, `tapezoo`: a JSON object with the
    /// model's configuration, the step and the seed.
    ///
    /// # Errors
    /// When they cannot be written.
    pub fn save(&self, model: &Model, steps: usize, seed: u64) -> Result<()> {
        let path = self.dir.join(WEIGHTS);
        write(&path, &weights(model, steps, seed).map_err(|what| Error::Format { path: path.clone(), what })?)
    }
}

/// The parameters as a safetensors file.
fn weights(model: &Model, steps: usize, seed: u64) -> std::result::Result<Vec<u8>, String> {
    let flat = model.params().flat();
    let (dtype, bytes) = tensor_bytes(flat);
    let size = bytes.len() / flat.len().max(1);
    let mut tensors = Vec::new();
    for e in model.params().entries() {
        let data = &bytes[e.offset * size..(e.offset + e.shape.len()) * size];
        let view = TensorView::new(dtype, e.shape.dims().to_vec(), data).map_err(|e| e.to_string())?;
        tensors.push((e.name.clone(), view));
    }
    // One entry, as several would be written in random order, and equal runs give equal files.
    let about = serde_json::json!({ "model": model.config(), "step": steps, "seed": seed }).to_string();
    let metadata = HashMap::from([("tapezoo".to_string(), about)]);
    safetensors::serialize(tensors, Some(metadata)).map_err(|e| e.to_string())
}

/// The elements of a tensor in host memory as a safetensors file has them.
pub fn tensor_bytes(tensor: &Tensor) -> (Dtype, Vec<u8>) {
    match tensor.dtype() {
        DType::F32 => (Dtype::F32, tensor.host::<f32>().iter().flat_map(|x| x.to_le_bytes()).collect()),
        DType::F64 => (Dtype::F64, tensor.host::<f64>().iter().flat_map(|x| x.to_le_bytes()).collect()),
        DType::I32 => (Dtype::I32, tensor.host::<i32>().iter().flat_map(|x| x.to_le_bytes()).collect()),
        DType::BF16 => unreachable!("bf16 is f32 on the host"),
    }
}

/// Write a file whole or not at all: under another name beside it, synced, then renamed.
///
/// # Errors
/// When it cannot be written; the old file, if there was one, is then as it was.
pub fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    let mut name = path.file_name().unwrap_or_default().to_os_string();
    // Several machines may write the same file of a common directory, with equal process ids in their containers.
    name.push(format!(".{:016x}.tmp", RandomState::new().hash_one(std::process::id())));
    let temporary = path.with_file_name(name);
    let all = || -> io::Result<()> {
        let mut file = File::create(&temporary)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&temporary, path)?;
        // The new name itself is on the disk once its directory is; Windows opens no directories.
        if cfg!(unix) {
            let directory = path.parent().filter(|p| !p.as_os_str().is_empty());
            File::open(directory.unwrap_or(Path::new(".")))?.sync_all()?;
        }
        Ok(())
    };
    all().map_err(|source| {
        // Whether or not the half-written file can be removed, what went wrong first is what to report.
        let _ = fs::remove_file(&temporary);
        Error::Io { path: path.into(), source }
    })
}

/// Delete what [`write`] leaves behind when it is killed.
fn remove_temporaries(dir: &Path) -> Result<()> {
    for entry in fs::read_dir(dir).map_err(Error::io(dir))? {
        let path = entry.map_err(Error::io(dir))?.path();
        if path.extension().is_some_and(|e| e == "tmp") {
            remove_file(&path)?;
        }
    }
    Ok(())
}

/// Delete what an earlier experiment left in a directory: its files by name, and directories that then are empty.
fn remove_runs(path: &Path) -> Result<()> {
    for name in [RESULTS, TABLE, CONFIG] {
        remove_file(&path.join(name))?;
    }
    for entry in fs::read_dir(path).map_err(Error::io(path))? {
        let dir = entry.map_err(Error::io(path))?.path();
        if dir.join(METRICS).is_file() {
            remove_temporaries(&dir)?;
            for name in [RESULT, CHECKPOINT, WEIGHTS, METRICS] {
                remove_file(&dir.join(name))?;
            }
            if fs::read_dir(&dir).map_err(Error::io(&dir))?.next().is_none() {
                fs::remove_dir(&dir).map_err(Error::io(&dir))?;
            }
        }
    }
    Ok(())
}

fn remove_file(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(Error::io(path)(e)),
        _ => Ok(()),
    }
}
