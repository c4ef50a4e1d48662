//! The configuration of an experiment: a preset, then a file, then flags, each over the one before.
//!
//! The layers meet as TOML tables, so a file holds only what it changes, an unknown key is an error, and what a run
//! directory records ([`TrainConfig::to_toml`]) reads back as it was.

mod check;
mod defaults;
mod parts;
mod place;
mod settings;
mod text;

pub use super::presets::{PRESETS, preset_of, preset_table, task_of};
pub(crate) use super::presets::{difference, merge, of_run, plain, read, read_run, said};
pub use parts::Parts;
pub(super) use parts::SEQUENCES;
pub(crate) use place::line;
pub use settings::{Setting, flag, warnings};

use super::{
    on_device::Graphs,
    optimizer::{AdamConfig, Rule},
    presets::{layer, preset_names, rename},
    schedule::{Schedule, Shape},
};
use crate::{
    autograd::Kernels,
    error::{Error, Result},
    models::{self, Form, Model, ModelConfig},
    tasks::{Len, Task, Tasks},
    tensor::{DType, Device, Products},
};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, path::Path, str::FromStr};
use toml::{Table, Value};

/// Keys of `[model]` that follow from the rest, and so are neither read nor written.
const DERIVED: [&str; 4] = ["mixer", "vocab", "classes", "max_len"];

/// Everything that the numbers of an experiment depend on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrainConfig {
    /// The preset that the rest was laid over.
    pub preset: String,
    /// The mixers to train, or variants of them that `per_model` names; "all" alone is all mixers.
    pub models: Vec<String>,
    /// The first seed, of initial weights and training data.
    pub seed: u64,
    /// How many seeds, counted up from `seed`.
    pub seeds: usize,
    /// The length of the training sequences.
    pub train_len: Len,
    /// Steps over which the longest training length grows, from the shortest of `train_len` to the longest; 0: every
    /// length from the start.
    #[serde(default)]
    pub curriculum: usize,
    /// The lengths to evaluate at.
    pub eval_lens: Vec<Len>,
    /// How many rows the table of learned, sinusoidal or rope positions has; the longest of the lengths above if
    /// absent. Without such a table it limits no length.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_len: Option<usize>,
    /// Training steps.
    pub steps: usize,
    /// Sequences in a training batch.
    pub batch: usize,
    /// Batches in an evaluation, at each length. They are the same for every model and seed.
    pub eval_batches: usize,
    /// Sequences in an evaluation batch.
    pub eval_batch: usize,
    /// Evaluate every so many steps; 0: only at the end.
    pub eval_every: usize,
    /// Record the loss every so many steps.
    pub log_every: usize,
    /// Save a checkpoint every so many seconds; 0: only when the run is interrupted.
    #[serde(default = "defaults::checkpoint_every")]
    pub checkpoint_every: f64,
    /// Adam or AdamW.
    pub optimizer: Rule,
    /// The peak learning rate.
    pub lr: f64,
    /// β₁ and β₂ of Adam.
    pub betas: [f64; 2],
    /// ε of Adam.
    pub eps: f64,
    /// How much of a target is spread over all classes; 0: none.
    #[serde(default)]
    pub label_smoothing: f64,
    /// Weight decay, of weights but not of biases and norms.
    pub weight_decay: f64,
    /// The learning rate after the warm-up.
    pub schedule: Shape,
    /// Steps over which the learning rate rises from zero.
    pub warmup: usize,
    /// Where the cosine ends, as a fraction of `lr`.
    pub min_lr_fraction: f64,
    /// The largest global norm of the gradient; 0: not clipped.
    pub clip: f64,
    /// η of the noise on the gradient, of variance η / (1 + t)^0.55 after t updates; 0: none.
    #[serde(default)]
    pub grad_noise: f64,
    /// How the mixer is computed; its fastest form if absent.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "text::option")]
    pub form: Option<Form>,
    /// The device that the model is computed on.
    #[serde(with = "text")]
    pub device: Device,
    /// On a device, whether a training step is recorded as a graph and replayed; the results are the same.
    #[serde(default, with = "text")]
    pub cuda_graph: Graphs,
    /// The precision that it is computed in.
    #[serde(with = "text")]
    pub dtype: DType,
    /// The type that operands of products are rounded to, on the CPU.
    #[serde(default, with = "text")]
    pub products: Products,
    /// The ops that are computed by their kernels. The others are computed by their formulas, which are slow and differ
    /// by rounding.
    #[serde(default, with = "text")]
    pub kernels: Kernels,
    /// On the CPU, the parts that a training batch is computed in, on as many cores as have no other run. The results
    /// depend on this number and not on that of the cores. A model that keeps numbers of whole batches (the published
    /// LRU's statistics, a state that is carried) is computed in one.
    pub micro_batches: Parts,
    /// The task.
    pub task: Tasks,
    /// The sizes of the models.
    pub model: ModelConfig,
    /// The settings that differ for single models: any of the above, under the model's name. A table under a new name,
    /// with a key `mixer`, is a variant: that mixer, with the settings that `per_model` has for it and then with these.
    #[serde(default)]
    pub per_model: BTreeMap<String, Table>,
}

impl FromStr for TrainConfig {
    type Err = Error;

    /// The settings of a file over the preset that it names, or over `default`: `"steps = 300\nbatch = 32"`.
    fn from_str(settings: &str) -> Result<TrainConfig> {
        let flags = settings.parse().map_err(|e: toml::de::Error| Error::Config(e.to_string()))?;
        TrainConfig::load(None, flags)
    }
}

impl TrainConfig {
    /// A preset, the keys of `file` over it, and `flags` over those.
    ///
    /// # Errors
    /// When the file cannot be read, or any layer has an unknown key or an invalid value.
    pub fn load(file: Option<&Path>, flags: Table) -> Result<TrainConfig> {
        TrainConfig::load_over("default", file, flags)
    }

    /// As [`TrainConfig::load`], where the preset is `default` if neither the file nor the flags name one.
    ///
    /// # Errors
    /// As [`TrainConfig::load`].
    pub fn load_over(default: &str, file: Option<&Path>, flags: Table) -> Result<TrainConfig> {
        let file = file.map(|path| read(path).map(|table| (path, table))).transpose()?;
        TrainConfig::from_layers(default, file, flags)
    }

    /// As [`TrainConfig::load_over`], where the file is read already.
    ///
    /// # Errors
    /// As [`TrainConfig::load`].
    pub fn from_layers(default: &str, file: Option<(&Path, Table)>, flags: Table) -> Result<TrainConfig> {
        Ok(TrainConfig::from_settings(default, file, flags)?.0)
    }

    /// As [`TrainConfig::from_layers`], with the settings of the file and the flags, and which of them have no effect.
    ///
    /// # Errors
    /// As [`TrainConfig::load`].
    pub fn from_settings(
        default: &str,
        file: Option<(&Path, Table)>,
        flags: Table,
    ) -> Result<(TrainConfig, Vec<Setting>)> {
        TrainConfig::made(default, file, flags, |cfg| cfg.check_capacity())
    }

    /// As [`TrainConfig::from_settings`], with the data of the task loaded: see [`TrainConfig::load_data`].
    ///
    /// # Errors
    /// As [`TrainConfig::from_settings`] and [`TrainConfig::load_data`].
    pub fn from_settings_and_data(
        default: &str,
        file: Option<(&Path, Table)>,
        flags: Table,
    ) -> Result<(TrainConfig, Vec<Setting>)> {
        TrainConfig::made(default, file, flags, |cfg| {
            cfg.check_capacity()?;
            cfg.load_data()
        })
    }

    /// The configuration that a file records, whether or not there are the memory and the time to run it.
    ///
    /// # Errors
    /// As [`TrainConfig::load`].
    pub(crate) fn recorded(path: &Path, table: Table) -> Result<TrainConfig> {
        Ok(TrainConfig::made("default", Some((path, table)), Table::new(), |_| Ok(()))?.0)
    }

    /// The configuration of a point in a sweep's file, with the data of its task. Memory and time are asked of the runs
    /// that are to do ([`Sweep::check`](super::sweep::Sweep::check)): a sweep that is finished is read on any machine.
    ///
    /// # Errors
    /// As [`TrainConfig::load`] and [`TrainConfig::load_data`].
    pub(super) fn of_point(path: &Path, table: Table, flags: Table) -> Result<(TrainConfig, Vec<Setting>)> {
        TrainConfig::made("default", Some((path, table)), flags, TrainConfig::load_data)
    }

    /// The layers over one another, with `more` done to the result; errors say where their cause stands.
    fn made(
        default: &str,
        file: Option<(&Path, Table)>,
        flags: Table,
        more: impl FnOnce(&mut TrainConfig) -> Result<()>,
    ) -> Result<(TrainConfig, Vec<Setting>)> {
        let (path, by_flag) = (file.as_ref().map(|(path, _)| *path), flags.clone());
        let made = TrainConfig::of_settings(default, file, flags).and_then(|(mut config, settings)| {
            more(&mut config)?;
            Ok((config, settings))
        });
        made.map_err(|e| place::explained(e, path, &by_flag).in_brief())
    }

    fn of_settings(
        default: &str,
        file: Option<(&Path, Table)>,
        mut flags: Table,
    ) -> Result<(TrainConfig, Vec<Setting>)> {
        let preset = [Some(&flags), file.as_ref().map(|f| &f.1)].into_iter().flatten().find_map(|t| t.get("preset"));
        let mut table = match preset {
            None => preset_table(default)?,
            Some(Value::String(name)) => preset_table(name)?,
            Some(other) => {
                return Err(Error::Config(format!("preset {}: expected {}", said(other), preset_names())));
            }
        };
        let base = table.clone();
        let mut old = rename(&mut flags).map_err(Error::Config)?;
        let mut set = Table::new();
        if let Some((path, mut top)) = file {
            let refused = |what| Error::Format { path: path.into(), what };
            old.extend(rename(&mut top).map_err(refused)?);
            set.clone_from(&top);
            layer(&mut table, top);
            parse(&table).map_err(refused)?;
        }
        layer(&mut table, flags.clone());
        let mut config = parse(&table).map_err(Error::Config)?;
        if config.models == ["all"] {
            config.models = models::names().into_iter().map(String::from).collect();
        }
        config.check()?;
        let mut settings = settings::of(&config, &base, &set, &flags)?;
        for name in old {
            settings.push(settings::old_name(&config, name)?);
        }
        Ok((config, settings))
    }

    /// The configuration of one model alone: its settings in `per_model` laid over the rest.
    ///
    /// # Errors
    /// When `per_model` has an unknown key for it.
    pub fn for_model(&self, name: &str) -> Result<TrainConfig> {
        let mut table = table_of(self)?;
        table.remove("per_model");
        let mixer = self.mixer_of(name);
        let base = if mixer == name { None } else { self.per_model.get(mixer) };
        for mut own in [base, self.per_model.get(name)].into_iter().flatten().cloned() {
            own.remove("mixer");
            merge(&mut table, own);
        }
        let mut cfg = parse(&table).map_err(|what| Error::Config(format!("per_model.{name}: {what}")))?;
        cfg.models = vec![name.into()];
        cfg.model.mixer = mixer.into();
        cfg.model.vocab = cfg.task.vocab();
        cfg.model.classes = cfg.task.classes();
        cfg.model.max_len = cfg.max_len.unwrap_or(cfg.longest());
        cfg.micro_batches = Parts::Count(cfg.parts());
        Ok(cfg)
    }

    /// The mixer of a model: the model's own name, unless it is a variant.
    fn mixer_of<'a>(&'a self, name: &'a str) -> &'a str {
        self.per_model.get(name).and_then(|own| own.get("mixer")?.as_str()).unwrap_or(name)
    }

    /// Check that the task's data is there, and record its checksum: a run goes on only with the same data.
    ///
    /// # Errors
    /// When the data is missing, is not the recorded data, or has no sequences of these lengths.
    pub fn load_data(&mut self) -> Result<()> {
        for own in self.each_model()? {
            own.task.check_data(own.train_len, &own.eval_lens).map_err(Error::Config)?;
        }
        let TrainConfig { task, train_len, eval_lens, .. } = self;
        task.load(*train_len, eval_lens).map_err(Error::Config)
    }

    /// One configuration for each model, in order.
    ///
    /// # Errors
    /// As [`TrainConfig::for_model`].
    pub fn each_model(&self) -> Result<Vec<TrainConfig>> {
        self.models.iter().map(|name| self.for_model(name)).collect()
    }

    /// Everything, as a file that [`TrainConfig::load`] reads back.
    ///
    /// # Errors
    /// When a number does not fit in TOML.
    pub fn to_toml(&self) -> Result<String> {
        toml::to_string(&table_of(self)?).map_err(|e| Error::Config(e.to_string()))
    }

    /// The form in which the mixer is computed.
    pub fn form_of(&self, model: &Model) -> Form {
        self.form.map_or_else(|| model.default_form().on(self.device), |form| form.among(&model.forms()))
    }

    /// In how many parts a training batch is computed.
    pub fn parts(&self) -> usize {
        // A mixer that cannot be built is refused elsewhere.
        let at_once = models::tokens_at_once(&self.model).unwrap_or(models::TOKENS_AT_ONCE);
        self.micro_batches.of(self.batch, self.train_len, at_once)
    }

    /// Whether the number of parts of a model's batches is chosen automatically.
    pub(super) fn parts_are_ours(&self, name: &str) -> bool {
        let own = [self.mixer_of(name), name].map(|name| self.per_model.get(name)?.get("micro_batches"));
        own.into_iter().flatten().next_back().map_or(self.micro_batches == Parts::Auto, |n| n.as_str() == Some("auto"))
    }

    /// The learning rate at each step.
    pub fn schedule(&self) -> Schedule {
        let TrainConfig { schedule, lr, min_lr_fraction, warmup, steps, .. } = *self;
        Schedule { shape: schedule, peak: lr, min_ratio: min_lr_fraction, warmup, steps }
    }

    /// The lengths of the training sequences at a step, counted from 1.
    pub fn train_len_at(&self, step: usize) -> Len {
        self.train_len_of(&*self.task, step)
    }

    /// As [`TrainConfig::train_len_at`], for a task other than the configuration's.
    pub(super) fn train_len_of(&self, task: &dyn Task, step: usize) -> Len {
        let Len { min, max } = self.train_len;
        if step >= self.curriculum {
            return self.train_len;
        }
        let least = (min..max).find(|&t| task.check_len(t).is_ok()).unwrap_or(max);
        Len { min, max: least + (max - least) * step / self.curriculum }
    }

    /// The constants of the optimiser.
    pub fn adam(&self) -> AdamConfig {
        AdamConfig { rule: self.optimizer, betas: self.betas, eps: self.eps, weight_decay: self.weight_decay }
    }

    fn longest(&self) -> usize {
        self.eval_lens.iter().chain([&self.train_len]).map(|len| len.max).max().unwrap_or(0)
    }
}

fn parse(table: &Table) -> std::result::Result<TrainConfig, String> {
    let mut full = Table::new();
    let sizes = Table::try_from(ModelConfig::default()).map_err(|e| e.to_string())?;
    full.insert("model".into(), sizes.into());
    let model = table.get("model").and_then(Value::as_table);
    if let Some(key) = DERIVED.iter().find(|key| model.is_some_and(|m| m.contains_key(**key))) {
        return Err(format!("model.{key}: unknown key, as it follows from models, task and the lengths"));
    }
    merge(&mut full, table.clone());
    full.try_into().map_err(|e: toml::de::Error| place::plain(e.to_string().trim_end().replace('\n', ", ")))
}

fn table_of(config: &TrainConfig) -> Result<Table> {
    let mut table = Table::try_from(config).map_err(|e| Error::Config(e.to_string()))?;
    if let Some(Value::Table(model)) = table.get_mut("model") {
        DERIVED.iter().for_each(|key| drop(model.remove(*key)));
    }
    Ok(table)
}
