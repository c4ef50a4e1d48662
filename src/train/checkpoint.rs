//! All that a run needs to go on as if nothing had happened.
//!
//! A checkpoint is a safetensors file: [`Trainer::state`](super::Trainer), bit by bit, and in the metadata one entry
//! `tapezoo`, a JSON object: [`About`]. What is not in it follows from the configuration, the seed and the step: the
//! learning rate, and every batch.

use super::{
    Trainer,
    config::TrainConfig,
    layers::difference,
    rundir::{tensor_bytes, write},
};
use crate::{
    error::{Error, Result},
    rng::fnv1a,
    tensor::{DType, Tensor},
};
use safetensors::{SafeTensors, tensor::TensorView};
use serde::{Deserialize, Serialize};
use std::{collections::HashMap, fs, path::Path, time::Duration};
use toml::Table;

/// What is to be known beside the tensors.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct About {
    /// The configuration of this one model, as TOML.
    pub config: String,
    /// The seed.
    pub seed: u64,
    /// The last step taken.
    pub step: usize,
    /// How many bytes of metrics were written up to it.
    pub metrics: u64,
    /// Seconds spent in training steps up to it.
    pub training_s: f64,
    /// Seconds spent on the run up to it.
    pub wall_s: f64,
    /// [`fnv1a`] of the tensors' bytes, in the order of [`Trainer::state`](super::Trainer).
    pub checksum: u64,
}

/// Save where a run stands, whole or not at all.
///
/// # Errors
/// When it cannot be written; an earlier checkpoint is then as it was.
pub fn save(path: &Path, trainer: &mut Trainer, metrics: u64, wall: Duration) -> Result<()> {
    let parts: Vec<_> = trainer.state().into_iter().map(|(name, tensor)| (name, tensor_bytes(tensor))).collect();
    let about = About {
        config: trainer.cfg.to_toml()?,
        seed: trainer.seed,
        step: trainer.step,
        metrics,
        training_s: trainer.training.as_secs_f64(),
        wall_s: wall.as_secs_f64(),
        checksum: checksum(parts.iter().map(|(_, (_, bytes))| &bytes[..])),
    };
    let bytes = || -> std::result::Result<Vec<u8>, String> {
        let mut views = Vec::new();
        for (name, (dtype, bytes)) in &parts {
            let size = dtype.bitsize() / 8;
            let view = TensorView::new(*dtype, vec![bytes.len() / size], bytes).map_err(|e| e.to_string())?;
            views.push((*name, view));
        }
        let about = serde_json::to_string(&about).map_err(|e| e.to_string())?;
        safetensors::serialize(views, Some(HashMap::from([("tapezoo".into(), about)]))).map_err(|e| e.to_string())
    };
    write(path, &bytes().map_err(|what| Error::format(path, what))?)
}

/// Go on from a checkpoint of this configuration and seed.
///
/// # Errors
/// When it cannot be read, is no checkpoint, or is that of another run; the file stays as it is.
pub fn load(path: &Path, cfg: &TrainConfig, seed: u64) -> Result<(Trainer, About)> {
    const REMEDY: &str = "delete it to begin this run anew";
    let bytes = fs::read(path).map_err(Error::io(path))?;
    let broken = |what: String| Error::format(path, format!("not a checkpoint, or damaged: {what}; {REMEDY}"));
    let (about, tensors) = parse(&bytes).map_err(broken)?;

    let own: Table = about.config.parse().map_err(|e| broken(format!("its configuration: {e}")))?;
    let asked: Table = cfg.to_toml()?.parse().map_err(|e: toml::de::Error| Error::Config(e.to_string()))?;
    if about.seed != seed {
        let what = format!("a checkpoint of seed {}, and this is seed {seed}; {REMEDY}", about.seed);
        return Err(Error::format(path, what));
    }
    if let Some((key, own, asked)) = difference(&own, &asked) {
        let what = format!("a checkpoint of another run: {key} is {own} there, and {asked} here; {REMEDY}");
        return Err(Error::format(path, what));
    }

    let mut trainer = Trainer::new(cfg, seed)?;
    trainer.go_to(about.step, Duration::try_from_secs_f64(about.training_s).unwrap_or_default());
    let mut state = trainer.state();
    let parts: std::result::Result<Vec<&[u8]>, String> = state
        .iter_mut()
        .map(|(name, tensor)| {
            let view = tensors.tensor(name).map_err(|e| e.to_string())?;
            read_into(tensor, view.data()).map_err(|what| format!("{name}: {what}"))?;
            Ok(view.data())
        })
        .collect();
    if checksum(parts.map_err(broken)?.into_iter()) != about.checksum {
        return Err(broken("its checksum is another".into()));
    }
    Ok((trainer, about))
}

/// What a checkpoint says about itself, without its tensors; none if it cannot be read.
pub fn about(path: &Path) -> Option<About> {
    parse(&fs::read(path).ok()?).ok().map(|(about, _)| about)
}

fn parse(bytes: &[u8]) -> std::result::Result<(About, SafeTensors<'_>), String> {
    let tensors = SafeTensors::deserialize(bytes).map_err(|e| e.to_string())?;
    let (_, metadata) = SafeTensors::read_metadata(bytes).map_err(|e| e.to_string())?;
    let about = metadata.metadata().as_ref().and_then(|m| m.get("tapezoo")).ok_or("no entry 'tapezoo'")?;
    Ok((serde_json::from_str(about).map_err(|e| e.to_string())?, tensors))
}

/// Overwrite a tensor with little-endian bytes.
fn read_into(tensor: &mut Tensor, bytes: &[u8]) -> std::result::Result<(), String> {
    let size = if tensor.dtype() == DType::F64 { 8 } else { 4 };
    if bytes.len() != tensor.len() * size {
        return Err(format!("{} bytes for {} numbers of {}", bytes.len(), tensor.len(), tensor.dtype()));
    }
    match tensor.dtype() {
        DType::F64 => {
            let (numbers, _) = bytes.as_chunks();
            tensor.host_mut().iter_mut().zip(numbers).for_each(|(x, b)| *x = f64::from_le_bytes(*b));
        }
        DType::F32 => {
            let (numbers, _) = bytes.as_chunks();
            tensor.host_mut().iter_mut().zip(numbers).for_each(|(x, b)| *x = f32::from_le_bytes(*b));
        }
        DType::I32 => {
            let (numbers, _) = bytes.as_chunks();
            tensor.host_mut().iter_mut().zip(numbers).for_each(|(x, b)| *x = i32::from_le_bytes(*b));
        }
    }
    Ok(())
}

fn checksum<'a>(parts: impl Iterator<Item = &'a [u8]>) -> u64 {
    parts.fold(0, |sum: u64, part| sum.rotate_left(1) ^ fnv1a(part))
}
