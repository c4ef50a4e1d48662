//! What a run leaves behind, such that a process killed at any moment loses nothing that was complete.
//!
//! ```text
//! DIR/config.toml                     the whole configuration; `--config` reads it back
//! DIR/MODEL-seedS/metrics.jsonl       one object a line, as training goes
//! DIR/MODEL-seedS/weights.safetensors the final weights under their path names
//! DIR/results.json, DIR/table.txt     all runs that have finished so far
//! ```
//! Files other than `metrics.jsonl` appear whole or not at all: they are written under another name, synced and
//! renamed.

use super::{config::TrainConfig, jobs::RunReport};
use crate::{
    error::{Error, Result},
    models::Model,
    report::table,
    tensor::DType,
};
use safetensors::tensor::{Dtype, TensorView};
use serde::Serialize;
use std::{
    collections::HashMap,
    fs::{self, File},
    io::{self, Write},
    path::{Path, PathBuf},
};

const CONFIG: &str = "config.toml";
const RESULTS: &str = "results.json";
const TABLE: &str = "table.txt";
const METRICS: &str = "metrics.jsonl";
const WEIGHTS: &str = "weights.safetensors";

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

    /// The directory of one run, made anew.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn begin(&self, model: &str, seed: u64) -> Result<RunFiles> {
        let dir = self.path.join(format!("{model}-seed{seed}"));
        fs::create_dir_all(&dir).map_err(Error::io(&dir))?;
        let path = dir.join(METRICS);
        let metrics = File::create(&path).map_err(Error::io(&path))?;
        Ok(RunFiles { dir, metrics })
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

/// The files of one run.
pub struct RunFiles {
    dir: PathBuf,
    metrics: File,
}

impl RunFiles {
    /// Append one object to the metrics: a whole line in one write.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn line(&mut self, object: &impl Serialize) -> Result<()> {
        let path = self.dir.join(METRICS);
        let mut line = serde_json::to_vec(object).map_err(|e| Error::io(&path)(e.into()))?;
        line.push(b'\n');
        self.metrics.write_all(&line).map_err(Error::io(&path))
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
    let (dtype, bytes): (Dtype, Vec<u8>) = match flat.dtype() {
        DType::F32 => (Dtype::F32, flat.host::<f32>().iter().flat_map(|x| x.to_le_bytes()).collect()),
        _ => (Dtype::F64, flat.host::<f64>().iter().flat_map(|x| x.to_le_bytes()).collect()),
    };
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

/// Write a file whole or not at all: under another name beside it, synced, then renamed.
///
/// # Errors
/// When it cannot be written; the old file, if there was one, is then as it was.
pub fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    let mut name = path.file_name().unwrap_or_default().to_os_string();
    name.push(format!(".{}.tmp", std::process::id()));
    let temporary = path.with_file_name(name);
    let all = || -> io::Result<()> {
        let mut file = File::create(&temporary)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&temporary, path)?;
        // The new name itself is on the disk once its directory is.
        File::open(path.parent().unwrap_or(Path::new(".")))?.sync_all()
    };
    all().map_err(|source| {
        // Whether or not the half-written file can be removed, what went wrong first is what to report.
        let _ = fs::remove_file(&temporary);
        Error::Io { path: path.into(), source }
    })
}

/// Delete what an earlier experiment left in a directory: its files by name, and directories that then are empty.
fn remove_runs(path: &Path) -> Result<()> {
    for name in [RESULTS, TABLE, CONFIG] {
        remove_file(&path.join(name))?;
    }
    for entry in fs::read_dir(path).map_err(Error::io(path))? {
        let dir = entry.map_err(Error::io(path))?.path();
        if dir.join(METRICS).is_file() {
            remove_file(&dir.join(METRICS))?;
            remove_file(&dir.join(WEIGHTS))?;
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
