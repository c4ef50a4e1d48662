//! Checkpoints: the file from which a run goes on as if nothing had happened.
//!
//! A checkpoint is a safetensors file: [`Trainer::state`](super::Trainer), bit by bit, and in the metadata one entry
//! `tapezoo`, a JSON object: [`About`]. What is not in it follows from the configuration, the seed and the step: the
//! learning rate, and every batch. The last of its entries, `checksum`, is that of the whole file with sixteen zeros in
//! its place.

use super::{
    Trainer,
    config::{TrainConfig, difference, of_run},
};
use crate::{
    cuda,
    error::{Error, Result},
    files::{self, whole::write},
    models::weights::stored,
    rng::Fnv1a,
    tensor::Tensor,
};
use safetensors::{SafeTensors, tensor::TensorView};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::{
    collections::HashMap,
    io::{self, Read},
    ops::Range,
    path::Path,
    time::Duration,
};
use toml::Table;

/// The remedy for a checkpoint that cannot be used.
const REMEDY: &str = "delete it to begin this run anew";

/// The checksum's place, before it is known.
const ZEROS: &[u8; 16] = b"0000000000000000";

/// The text before the checksum in the header: JSON inside of a JSON string.
const BEFORE: &[u8] = br#"\"checksum\":\""#;

/// How much has been written to the metrics: the number of bytes, and their checksum.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Written {
    /// The number of bytes.
    pub bytes: u64,
    /// Their checksum.
    pub checksum: Fnv1a,
}

impl Written {
    /// The length and the checksum of all that `from` holds.
    pub(super) fn of(mut from: impl Read) -> io::Result<Written> {
        let (mut all, mut buffer) = (Written::default(), vec![0; 1 << 16]);
        loop {
            match from.read(&mut buffer)? {
                0 => return Ok(all),
                n => all.add(&buffer[..n]),
            }
        }
    }

    /// Count these bytes as written.
    pub(super) fn add(&mut self, bytes: &[u8]) {
        self.bytes += bytes.len() as u64;
        self.checksum.add(bytes);
    }
}

/// The metadata of a checkpoint: all that a run needs beside the tensors.
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
    /// The stage of the task's curriculum that the next step belongs to, counted from 0.
    #[serde(default)]
    pub stage: usize,
    /// Whether the evaluation that is due after this step has been made.
    pub evaluated: bool,
    /// How many bytes of metrics were written up to this step.
    pub metrics: u64,
    /// The checksum of these bytes.
    pub metrics_checksum: u64,
    /// Seconds spent in training steps up to this step.
    pub training_s: f64,
    /// Seconds spent on the run up to this step.
    pub wall_s: f64,
    /// The names of the kernels that computed ops up to this step; none in a checkpoint of an older version.
    #[serde(default)]
    pub kernels: Vec<String>,
    /// The checksum of the whole file (see the [module](self)).
    pub checksum: String,
}

impl About {
    /// The metrics that were written up to it.
    pub fn written(&self) -> Written {
        Written { bytes: self.metrics, checksum: Fnv1a(self.metrics_checksum) }
    }
}

/// The state of a run, to be saved from any thread. Host memory is shared with the trainer, which takes no step as long
/// as the snapshot lives.
pub struct Snapshot {
    state: Vec<(&'static str, Tensor)>,
    about: About,
}

impl Snapshot {
    /// The state of this run, after these metrics were written and this time was spent.
    ///
    /// # Errors
    /// When the device fails.
    pub fn of(trainer: &mut Trainer, written: Written, wall: Duration) -> Result<Snapshot> {
        let gpu = trainer.tape.cx().gpu();
        let state = cuda::guarded(gpu, || {
            let on_host = trainer.state().into_iter().map(|(name, tensor)| (name, tensor.to_host()));
            on_host.collect::<Vec<_>>()
        })?;
        let about = About {
            config: trainer.cfg.to_toml()?,
            mixer: trainer.cfg.model.mixer.clone(),
            seed: trainer.seed,
            step: trainer.step,
            stage: trainer.stage,
            evaluated: trainer.evaluated,
            metrics: written.bytes,
            metrics_checksum: written.checksum.0,
            training_s: trainer.training.as_secs_f64(),
            wall_s: wall.as_secs_f64(),
            kernels: trainer.kernels(),
            checksum: String::from_utf8_lossy(ZEROS).into_owned(),
        };
        Ok(Snapshot { state, about })
    }

    /// Save it, whole or not at all.
    ///
    /// # Errors
    /// When it cannot be written; an earlier checkpoint is then as it was.
    pub fn save(&self, path: &Path) -> Result<()> {
        write(path, &self.bytes().map_err(|what| Error::format(path, what))?)
    }

    fn bytes(&self) -> std::result::Result<Vec<u8>, String> {
        let mut views = Vec::new();
        for (name, tensor) in &self.state {
            let (dtype, shape) = (stored(tensor.dtype()), tensor.shape().dims().to_vec());
            views.push((*name, TensorView::new(dtype, shape, tensor.bytes()).map_err(|e| e.to_string())?));
        }
        let about = serde_json::to_string(&self.about).map_err(|e| e.to_string())?;
        let metadata = HashMap::from([("tapezoo".into(), about)]);
        let mut bytes = safetensors::serialize(views, Some(metadata)).map_err(|e| e.to_string())?;
        seal(&mut bytes)?;
        Ok(bytes)
    }
}

/// Save the state of a run, whole or not at all.
///
/// # Errors
/// When it cannot be written; an earlier checkpoint is then as it was. When the device fails.
pub fn save(path: &Path, trainer: &mut Trainer, written: Written, wall: Duration) -> Result<()> {
    Snapshot::of(trainer, written, wall)?.save(path)
}

/// Give a checkpoint's bytes the checksum that they should have.
///
/// # Errors
/// When the bytes have no place for it.
pub fn seal(bytes: &mut [u8]) -> std::result::Result<(), String> {
    let place = place(bytes).ok_or("no checksum")?;
    bytes[place.clone()].copy_from_slice(ZEROS);
    let sum = Fnv1a::of(bytes).hex();
    bytes[place].copy_from_slice(sum.as_bytes());
    Ok(())
}

/// Where the checksum is, in the header.
fn place(bytes: &[u8]) -> Option<Range<usize>> {
    let header = usize::try_from(u64::from_le_bytes(*bytes.first_chunk()?)).ok()?.checked_add(8)?;
    let header = bytes.get(..header)?;
    let from = header.windows(BEFORE.len()).rposition(|w| w == BEFORE)? + BEFORE.len();
    let place = from..from + ZEROS.len();
    (place.end <= header.len()).then_some(place)
}

/// Whether a checkpoint's bytes have the checksum that they should have.
fn is_sealed(bytes: &[u8]) -> bool {
    place(bytes).is_some_and(|place| {
        let mut sum = Fnv1a::of(&bytes[..place.start]);
        sum.add(ZEROS);
        sum.add(&bytes[place.end..]);
        bytes[place] == *sum.hex().as_bytes()
    })
}

/// A configuration of one model as a table, from TOML.
fn table(text: &str, mixer: &str) -> std::result::Result<Table, String> {
    let mut table: Table = text.parse().map_err(|e: toml::de::Error| first_line(&e.to_string()))?;
    table.insert("mixer".into(), mixer.into());
    Ok(of_run(table))
}

/// The first line of a text, cut short: a damaged text may be long.
fn first_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().chars().filter(|c| !c.is_control()).take(200).collect()
}

/// The first key in which a configuration, recorded as TOML and the name of its mixer, is not that of one model here.
///
/// # Errors
/// When `config` is not TOML.
pub fn differs(
    config: &str,
    mixer: &str,
    cfg: &TrainConfig,
) -> std::result::Result<Option<(String, String, String)>, String> {
    let here = table(&cfg.to_toml().map_err(|e| e.to_string())?, &cfg.model.mixer)?;
    let difference = difference(&table(config, mixer)?, &here);
    Ok(difference.map(|(key, there, here)| (key, first_line(&there), here)))
}

/// Go on from a checkpoint of this configuration and seed.
///
/// # Errors
/// When it cannot be read, is no checkpoint, or is that of another run; the file stays as it is.
pub fn load(path: &Path, cfg: &TrainConfig, seed: u64) -> Result<(Trainer, About)> {
    load_on(path, cfg, seed, cfg)
}

/// As [`load`], with a trainer of the configuration `on`, which may be for another device.
pub(crate) fn load_on(path: &Path, cfg: &TrainConfig, seed: u64, on: &TrainConfig) -> Result<(Trainer, About)> {
    let bytes = files::read(path, files::tensors())?;
    let broken = |what: String| Error::format(path, format!("not a checkpoint, or damaged: {what}; {REMEDY}"));
    let another = |what: String| Error::format(path, format!("{what}; put config.toml back, or {REMEDY}"));
    let (about, tensors) = parse(&bytes).map_err(broken)?;
    if about.seed != seed {
        return Err(another(format!("a checkpoint of seed {}, and this is seed {seed}", about.seed)));
    }
    if let Some((key, there, here)) = differs(&about.config, &about.mixer, cfg).map_err(broken)? {
        return Err(another(format!("a checkpoint of another run: {key} is {there} there, and {here} here")));
    }
    if !is_sealed(&bytes) {
        return Err(broken("its checksum is another".into()));
    }
    check(&about, cfg).map_err(broken)?;

    let mut trainer = Trainer::new(on, seed)?;
    let state =
        trainer.state().into_iter().map(|(name, tensor)| Ok((name.to_string(), like(&tensors, name, &tensor)?)));
    let state: HashMap<String, Tensor> = state.collect::<std::result::Result<_, String>>().map_err(broken)?;
    if let Some(name) = tensors.names().into_iter().find(|name| !state.contains_key(*name)) {
        return Err(broken(format!("a tensor '{}' that this model has not", first_line(name))));
    }
    let gpu = trainer.tape.cx().gpu();
    cuda::guarded(gpu, || trainer.go_to(about.step, about.stage, &state))?.map_err(broken)?;
    trainer.evaluated = about.evaluated;
    trainer.training = Duration::try_from_secs_f64(about.training_s).unwrap_or_default();
    trainer.earlier_kernels.clone_from(&about.kernels);
    Ok((trainer, about))
}

/// See that the numbers of a checkpoint can be those of a run of this configuration.
fn check(about: &About, cfg: &TrainConfig) -> std::result::Result<(), String> {
    if about.step > cfg.steps {
        return Err(format!("step {} of a run of {}", about.step, cfg.steps));
    }
    for (name, seconds) in [("training_s", about.training_s), ("wall_s", about.wall_s)] {
        Duration::try_from_secs_f64(seconds).map_err(|_| format!("{name} {seconds}: no time that was spent"))?;
    }
    Ok(())
}

/// The tensor of this name in host memory, bit by bit, if it is of the same type and shape as `own`.
fn like(file: &SafeTensors, name: &str, own: &Tensor) -> std::result::Result<Tensor, String> {
    let view = file.tensor(name).map_err(|_| format!("no tensor '{name}'"))?;
    let shape = own.shape();
    if view.shape() != shape.dims() || view.dtype() != stored(own.dtype()) {
        return Err(format!(
            "'{name}' is {:?} of {:?}, expected {shape} of {}",
            view.shape(),
            view.dtype(),
            own.dtype()
        ));
    }
    Ok(Tensor::from_bytes(view.data(), own.dtype(), shape))
}

/// The number of parts that a recorded configuration has the batches computed in.
pub fn parts(config: &str) -> Option<usize> {
    let table = of_run(config.parse().ok()?);
    table.get("micro_batches")?.as_integer()?.try_into().ok()
}

/// The metadata of a checkpoint, without its tensors; none if it cannot be read, or is damaged.
pub fn about(path: &Path) -> Option<About> {
    let bytes = files::read(path, files::tensors()).ok()?;
    parse(&bytes).ok().map(|(about, _)| about).filter(|_| is_sealed(&bytes))
}

fn parse(bytes: &[u8]) -> std::result::Result<(About, SafeTensors<'_>), String> {
    let tensors = SafeTensors::deserialize(bytes).map_err(|e| first_line(&e.to_string()))?;
    let (_, metadata) = SafeTensors::read_metadata(bytes).map_err(|e| first_line(&e.to_string()))?;
    let about = metadata.metadata().as_ref().and_then(|m| m.get("tapezoo")).ok_or("no entry 'tapezoo'")?;
    let about = serde_json::from_str(about).map_err(|e| {
        let earlier = |about: Value| about.get("checksum").is_some_and(Value::is_u64);
        match serde_json::from_str(about).is_ok_and(earlier) {
            true => "its checksum does not cover its header, as those of earlier builds; go on with that build".into(),
            false => first_line(&e.to_string()),
        }
    })?;
    Ok((about, tensors))
}
