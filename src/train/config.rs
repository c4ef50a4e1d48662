//! The configuration of an experiment: a preset, then a file, then flags, each over the one before.
//!
//! The layers meet as TOML tables, so a file holds only what it changes, an unknown key is an error, and what a run
//! directory records ([`TrainConfig::to_toml`]) reads back as it was.

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
    optimizer::{AdamConfig, LEAST_BETA2, Rule},
    presets::{layer, preset_names, rename},
    schedule::{Schedule, Shape},
};
use crate::{
    autograd::Kernels,
    error::{Error, Result, brief, did_you_mean, number},
    models::{self, Form, Model, ModelConfig, Variant},
    ops,
    tasks::{Len, Task, Tasks},
    tensor::{DType, Device, Products},
};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, path::Path, str::FromStr};
use toml::{Table, Value};

/// Keys of `[model]` that follow from the rest, and so are neither read nor written.
const DERIVED: [&str; 4] = ["mixer", "vocab", "classes", "max_len"];

/// The most tokens in one batch: beyond it somebody mistyped a number.
const MAX_TOKENS: usize = 1 << 26;

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
    /// How many positions a learned table of positions has; the longest of the lengths above if absent.
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
    #[serde(default, skip_serializing_if = "defaults::is_zero")]
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
    #[serde(default, skip_serializing_if = "defaults::is_zero")]
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
    #[serde(default, with = "text", skip_serializing_if = "all_kernels")]
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

/// Whether `kernels` has its default, which a file need not name.
fn all_kernels(kernels: &Kernels) -> bool {
    *kernels == Kernels::Fast
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
        let (path, by_flag) = (file.as_ref().map(|(path, _)| *path), flags.clone());
        let made = TrainConfig::of_settings(default, file, flags);
        made.map_err(|e| place::explained(e, path, &by_flag).in_brief())
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
        let (path, by_flag) = (file.as_ref().map(|(path, _)| *path), flags.clone());
        let (mut config, settings) = TrainConfig::from_settings(default, file, flags)?;
        config.load_data().map_err(|e| place::explained(e, path, &by_flag).in_brief())?;
        Ok((config, settings))
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

    /// Refuse every invalid value, before any work is done.
    pub(crate) fn check(&self) -> Result<()> {
        let mixers = models::names();
        let variants = self.per_model.keys().map(String::as_str).filter(|name| !mixers.contains(name));
        let known: Vec<&str> = mixers.iter().copied().chain(variants).collect();
        expect(!self.models.is_empty(), || "models []: expected at least one; `tapezoo models` lists all".into())?;
        for (i, name) in self.models.iter().enumerate() {
            expect(known.contains(&name.as_str()), || {
                let near = did_you_mean(name, known.iter().copied());
                format!("unknown model '{}'{near}: `tapezoo models` lists all", brief(name, 80))
            })?;
            expect(!self.models[..i].contains(name), || format!("models: '{name}' is listed twice"))?;
        }
        for (name, own) in &self.per_model {
            let mixer = own.get("mixer").map_or(name.clone(), plain);
            let what = || {
                let mixer = brief(&mixer, 80);
                let near = did_you_mean(&mixer, mixers.iter().copied());
                format!("per_model.{name}: unknown mixer '{mixer}'{near}: `tapezoo models` lists all")
            };
            expect(mixers.contains(&mixer.as_str()), what)?;
            expect(mixer == *name || !mixers.contains(&name.as_str()), || {
                format!("per_model.{name}.mixer: {mixer}: a variant needs a name that is no mixer's")
            })?;
            let of_a_file = |c: char| c.is_alphanumeric() || "_-.".contains(c);
            expect(name.chars().all(of_a_file), || {
                format!("per_model.{name}: expected a name of letters, digits, '_', '-' and '.'")
            })?;
            let all = ["models", "preset", "per_model", "task", "seed", "seeds"];
            let whole = all.into_iter().find(|key| own.contains_key(*key));
            expect(whole.is_none(), || {
                format!("per_model.{name}.{}: expected at the top, as it is of all models", whole.unwrap_or_default())
            })?;
        }
        expect(self.seeds >= 1, || "seeds 0: expected at least 1".into())?;
        let last = self.seed.checked_add(self.seeds as u64).filter(|&s| i64::try_from(s).is_ok());
        expect(last.is_some(), || format!("seed {}: expected seeds below 2^63", self.seed))?;
        super::capacity::check(self)?;
        self.each_model()?.iter().try_for_each(TrainConfig::check_run)
    }

    fn check_run(&self) -> Result<()> {
        let counts = [
            ("steps", self.steps),
            ("batch", self.batch),
            ("eval_batches", self.eval_batches),
            ("eval_batch", self.eval_batch),
            ("log_every", self.log_every),
        ];
        for (name, n) in counts {
            expect(n >= 1, || format!("{name} 0: expected at least 1"))?;
        }
        // The lengths come first: a task is asked for valid ones only.
        self.check_lengths()?;
        self.check_task(&*self.task)?;
        expect(self.parts() <= self.batch, || {
            format!("micro_batches {}: expected at most the {} sequences of a batch", self.parts(), self.batch)
        })?;
        let finite = |name: &str, x: f64, what: &str, ok: bool| {
            expect(ok && x.is_finite(), || format!("{name} {}: expected {what}", number(x)))
        };
        finite("lr", self.lr, "a finite number above 0", self.lr > 0.0)?;
        let [first, second] = self.betas;
        let expected = format!("two numbers below 1, from 0 and from {LEAST_BETA2} on");
        finite("betas", first, &expected, (0.0..1.0).contains(&first))?;
        finite("betas", second, &expected, (LEAST_BETA2..1.0).contains(&second))?;
        finite("eps", self.eps, "a finite number above 0", self.eps > 0.0)?;
        let smoothing = self.label_smoothing;
        finite("label_smoothing", smoothing, "a part of 1: from 0 to below 1", (0.0..1.0).contains(&smoothing))?;
        finite("weight_decay", self.weight_decay, "a finite number, 0 or more", self.weight_decay >= 0.0)?;
        let end = self.min_lr_fraction;
        finite("min_lr_fraction", end, "a fraction of lr, from 0 to 1", (0.0..=1.0).contains(&end))?;
        let every = self.checkpoint_every;
        finite("checkpoint_every", every, "a finite number of seconds, or 0 for none", every >= 0.0)?;
        finite("clip", self.clip, "a finite number: the largest norm, or 0 for none", self.clip >= 0.0)?;
        finite("grad_noise", self.grad_noise, "a finite number: eta, or 0 for none", self.grad_noise >= 0.0)?;
        expect(self.cuda_graph != Graphs::On || self.device != Device::Cpu, || {
            "cuda_graph on: expected a device cuda or emulated, and this runs on the cpu".into()
        })?;
        self.check_bf16()?;
        self.products.check(self.device, self.dtype).map_err(Error::Config)?;
        ops::check_names(&self.kernels).map_err(Error::Config)?;
        self.check_model()
    }

    /// Refuse bf16 where nothing computes in it: on the CPU, in published models, and in forms that keep no states in
    /// f32.
    fn check_bf16(&self) -> Result<()> {
        if self.dtype != DType::BF16 {
            return Ok(());
        }
        expect(self.device != Device::Cpu, || {
            "dtype bf16: expected a device cuda or emulated, and this runs on the cpu, which computes in f32 or f64; \
             products = \"bf16\" rounds what its matrix products multiply"
                .into()
        })?;
        expect(self.model.variant == Variant::Clean, || {
            "dtype bf16: expected variant = \"clean\"; published models train in f32, as they were".into()
        })?;
        let form = self.form.filter(|form| matches!(form, Form::Recurrent | Form::Parallel));
        form.map_or(Ok(()), |form| {
            Err(Error::Config(format!(
                "form {form}: in bf16 expected scan, chunked or fused, the kernels that keep states in f32; or dtype f32"
            )))
        })
    }

    /// Refuse options of a task, and lengths that it does not have.
    pub(super) fn check_task(&self, task: &dyn Task) -> Result<()> {
        task.check().map_err(Error::Config)?;
        let lens = [("train_len", self.train_len)].into_iter().chain(self.eval_lens.iter().map(|&t| ("eval_lens", t)));
        let there = |(name, len)| task.check_lens(len).map_err(|why| Error::Config(format!("{name} {len}: {why}")));
        lens.into_iter().try_for_each(there)
    }

    fn check_lengths(&self) -> Result<()> {
        expect(!self.eval_lens.is_empty(), || "eval_lens []: expected at least one length".into())?;
        let train = ("train_len", self.train_len, self.batch);
        for (name, len, batch) in
            [train].into_iter().chain(self.eval_lens.iter().map(|&t| ("eval_lens", t, self.eval_batch)))
        {
            expect(len.min >= 1, || format!("{name} {len}: expected a length of at least 1"))?;
            expect(batch.checked_mul(len.max).is_some_and(|n| n <= MAX_TOKENS), || {
                format!("{batch} sequences of length {len}: expected at most {MAX_TOKENS} tokens in a batch")
            })?;
            if let Some(max) = self.max_len {
                expect(len.max <= max, || {
                    format!("{name} {len}: expected no more than the {max} positions of max_len")
                })?;
            }
        }
        for (i, len) in self.eval_lens.iter().enumerate() {
            expect(!self.eval_lens[..i].contains(len), || format!("eval_lens: {len} is listed twice"))?;
        }
        let without = &self.model.without;
        let twice = (1..without.len()).find(|&i| without[..i].contains(&without[i]));
        expect(twice.is_none(), || "without: a defect is listed twice".into())
    }

    /// Build the model once, without values: whatever is wrong with its sizes or its form shows here.
    fn check_model(&self) -> Result<()> {
        let model = Model::hollow(&self.model, self.dtype)?;
        self.eval_lens.iter().chain([&self.train_len]).try_for_each(|len| model.check_len(len.max))?;
        self.form.map_or(Ok(()), |form| model.check_form(form))?;
        super::capacity::check_run(self, &model)
    }
}

fn expect(ok: bool, otherwise: impl FnOnce() -> String) -> Result<()> {
    if ok { Ok(()) } else { Err(Error::Config(otherwise())) }
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
