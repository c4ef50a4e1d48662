//! All that a run needs to go on as if nothing had happened.
//!
//! A checkpoint is a safetensors file: [`Trainer::state`](super::Trainer), bit by bit, and in the metadata one entry
//! `tapezoo`, a JSON object: [`About`]. What is not in it follows from the configuration, the seed and the step: the
//! learning rate, and every batch.

use super::{
    Trainer,
    config::{Parts, TrainConfig, difference, of_run},
    rundir::{tensor_bytes, write},
};
use crate::{
    cuda,
    error::{Error, Result},
    rng::fnv1a,
    tensor::{MAX_RANK, Tensor},
};
use safetensors::{
    SafeTensors,
    tensor::{Dtype, TensorView},
};
use serde::{Deserialize, Serialize};
use std::{
    collections::{BTreeMap, HashMap},
    fs,
    path::Path,
    time::Duration,
};
use toml::Table;

/// What to do about a checkpoint that cannot be used.
const REMEDY: &str = "delete it to begin this run anew";

/// What is to be known beside the tensors.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct About {
    /// The configuration of this one model, as TOML.
    pub config: String,
    /// The mixer that the model is, or is a variant of.
    pub mixer: String,
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
    /// [`fnv1a`] of the tensors' bytes, in the order of their names.
    pub checksum: u64,
}

/// Save where a run stands, whole or not at all.
///
/// # Errors
/// When it cannot be written; an earlier checkpoint is then as it was. When the device fails.
pub fn save(path: &Path, trainer: &mut Trainer, metrics: u64, wall: Duration) -> Result<()> {
    let gpu = trainer.tape.cx().gpu();
    let state = cuda::guarded(gpu, || {
        let on_host = trainer.state().into_iter().map(|(name, tensor)| (name, tensor.to_host()));
        on_host.collect::<Vec<_>>()
    })?;
    let parts: BTreeMap<&str, (&Tensor, (Dtype, Vec<u8>))> =
        state.iter().map(|(name, tensor)| (*name, (tensor, tensor_bytes(tensor)))).collect();
    let about = About {
        config: trainer.cfg.to_toml()?,
        mixer: trainer.cfg.model.mixer.clone(),
        seed: trainer.seed,
        step: trainer.step,
        metrics,
        training_s: trainer.training.as_secs_f64(),
        wall_s: wall.as_secs_f64(),
        checksum: checksum(parts.values().map(|(_, (_, bytes))| &bytes[..])),
    };
    let bytes = || -> std::result::Result<Vec<u8>, String> {
        let mut views = Vec::new();
        for (name, (tensor, (dtype, bytes))) in &parts {
            let shape = tensor.shape().dims().to_vec();
            views.push((*name, TensorView::new(*dtype, shape, bytes).map_err(|e| e.to_string())?));
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
    let bytes = fs::read(path).map_err(Error::io(path))?;
    let broken = |what: String| Error::format(path, format!("not a checkpoint, or damaged: {what}; {REMEDY}"));
    let (about, tensors) = parse(&bytes).map_err(broken)?;
    let toml = |text: &str, mixer: &str| -> std::result::Result<Table, String> {
        let mut table: Table = text.parse().map_err(|e: toml::de::Error| e.to_string())?;
        table.insert("mixer".into(), mixer.into());
        Ok(of_run(table))
    };
    let own = toml(&about.config, &about.mixer).map_err(broken)?;
    let asked = toml(&cfg.to_toml()?, &cfg.model.mixer).map_err(Error::Config)?;
    if about.seed != seed {
        let what = format!("a checkpoint of seed {}, and this is seed {seed}; {REMEDY}", about.seed);
        return Err(Error::format(path, what));
    }
    if let Some((key, own, asked)) = difference(&own, &asked) {
        let what = format!("a checkpoint of another run: {key} is {own} there, and {asked} here; {REMEDY}");
        return Err(Error::format(path, what));
    }
    let mut views: Vec<(String, TensorView)> = tensors.tensors();
    views.sort_by(|a, b| a.0.cmp(&b.0));
    if checksum(views.iter().map(|(_, view)| view.data())) != about.checksum {
        return Err(broken("its checksum is another".into()));
    }
    let state: std::result::Result<_, String> =
        views.into_iter().map(|(name, view)| Ok((name, tensor_of(&view)?))).collect();
    let state = state.map_err(broken)?;

    let mut trainer = Trainer::new(cfg, seed)?;
    let gpu = trainer.tape.cx().gpu();
    cuda::guarded(gpu, || trainer.go_to(about.step, &state))?.map_err(broken)?;
    trainer.training = Duration::try_from_secs_f64(about.training_s).unwrap_or_default();
    Ok((trainer, about))
}

/// [`TrainConfig::for_model`] of a run that goes on from `path`, if there is a checkpoint: where it is left to us in how many
/// parts a batch is computed, in as many as it began with, whatever another build would choose.
///
/// # Errors
/// When the configuration cannot be.
pub fn configuration(path: &Path, all: &TrainConfig, model: &str) -> Result<TrainConfig> {
    let mut own = all.for_model(model)?;
    let begun = || about(path)?.config.parse::<Table>().ok()?.get("shards")?.as_integer()?.try_into().ok();
    if all.parts_are_ours(model)
        && let Some(n) = begun()
    {
        own.shards = Parts::Count(n);
    }
    Ok(own)
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

/// A tensor in host memory, bit by bit.
fn tensor_of(view: &TensorView) -> std::result::Result<Tensor, String> {
    let (shape, data) = (view.shape(), view.data());
    if shape.len() > MAX_RANK {
        return Err(format!("{} axes, expected at most {MAX_RANK}", shape.len()));
    }
    Ok(match view.dtype() {
        Dtype::F32 => Tensor::from_vec(data.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect(), shape),
        Dtype::F64 => Tensor::from_vec(data.as_chunks().0.iter().map(|b| f64::from_le_bytes(*b)).collect(), shape),
        Dtype::I32 => Tensor::from_vec(data.as_chunks().0.iter().map(|b| i32::from_le_bytes(*b)).collect(), shape),
        other => return Err(format!("numbers of {other:?}")),
    })
}

fn checksum<'a>(parts: impl Iterator<Item = &'a [u8]>) -> u64 {
    parts.fold(0, |sum: u64, part| sum.rotate_left(1) ^ fnv1a(part))
}
