//! Where a model comes from: a run directory, or a few hundred steps of training here and now.

use crate::{
    error::{Error, Result},
    models::{Model, ModelConfig, Positions, Variant},
    tensor::{DType, Device},
    train::{
        Trainer, checkpoint,
        config::{TrainConfig, preset_table},
        rundir,
    },
};
use indicatif::ProgressBar;
use safetensors::{SafeTensors, tensor::Dtype};
use std::{
    fs,
    path::{Path, PathBuf},
};
use toml::{Table, Value};

/// A model to look at.
pub struct Source {
    /// What it is called: "delta_net", or as it was asked for.
    pub name: String,
    /// How it came to its weights, in a sentence.
    pub about: String,
    /// Its configuration, of this one model.
    pub config: TrainConfig,
    /// The model.
    pub model: Model,
}

/// The tasks by the names that `--task` takes, and the preset of each.
const TASKS: [(&str, &str); 12] = [
    ("parity", "default"),
    ("dyck", "dyck"),
    ("mqar", "mqar"),
    ("s3", "groups"),
    ("s4", "groups"),
    ("s5", "groups"),
    ("a5", "groups"),
    ("z60", "groups"),
    ("a4xz5", "groups"),
    ("last_parity", "arithmetic"),
    ("modular_arithmetic", "arithmetic"),
    ("modular_arithmetic_with_brackets", "arithmetic"),
];

/// The preset of a task, and its table.
fn task(name: &str) -> Result<(&'static str, Table)> {
    let Some((_, preset)) = TASKS.iter().find(|t| t.0 == name) else {
        let names: Vec<&str> = TASKS.iter().map(|t| t.0).collect();
        return Err(Error::Config(format!("--task {name}: expected one of {}", names.join(", "))));
    };
    let own = match *preset {
        "groups" => vec![("name", "group"), ("group", name)],
        "arithmetic" => vec![("name", "arithmetic"), ("language", name.trim_start_matches("last_"))],
        _ => vec![("name", name)],
    };
    Ok((preset, own.into_iter().map(|(key, value)| (key.to_string(), value.into())).collect()))
}

/// The configuration of `MIXER[:key=value,…]` on a task. A key is one of the configuration, as `lr`, or else one of
/// its `[model]`, as `heads`.
///
/// # Errors
/// When there is no such mixer, task or key, or a value cannot be.
pub fn config(spec: &str, task_name: &str, seed: u64, len: Option<usize>, steps: usize) -> Result<TrainConfig> {
    let (preset, task) = task(task_name)?;
    let (mixer, settings) = spec.split_once(':').unwrap_or((spec, ""));
    let known = preset_table(preset)?;
    let sizes = Table::try_from(ModelConfig::default()).unwrap_or_default();
    let (mut flags, mut model) = (Table::new(), Table::new());
    for setting in settings.split(',').filter(|s| !s.is_empty()) {
        let Some((key, value)) = setting.split_once('=') else {
            let what = "expected MIXER:key=value,key=value, as delta_net:heads=1,eigenvalues=-1..1";
            return Err(Error::Config(format!("{spec}: '{setting}' has no '='; {what}")));
        };
        let default = known.get(key).or_else(|| sizes.get(key));
        let parsed = format!("x = {value}").parse::<Table>().ok().and_then(|mut t| t.remove("x"));
        let value = parsed.filter(|_| !default.is_some_and(Value::is_str)).unwrap_or_else(|| Value::from(value));
        let top = known.contains_key(key) && !["model", "task", "per_model"].contains(&key);
        if top { &mut flags } else { &mut model }.insert(key.into(), value);
    }
    flags.insert("models".into(), vec![mixer].into());
    flags.insert("task".into(), task.into());
    flags.insert("device".into(), "cpu".into());
    flags.insert("seed".into(), i64::try_from(seed).unwrap_or(i64::MAX).into());
    flags.entry("steps").or_insert(i64::try_from(steps.max(1)).unwrap_or(i64::MAX).into());
    if !model.is_empty() {
        flags.insert("model".into(), model.into());
    }
    let cfg = TrainConfig::load_over(preset, None, flags).and_then(|cfg| cfg.for_model(mixer));
    let mut cfg = cfg.map_err(|e| if settings.is_empty() { e } else { Error::Config(format!("{spec}: {e}")) })?;
    // Learned positions must reach as far as what is looked at.
    let longest = cfg.eval_lens.iter().chain([&cfg.train_len]).map(|l| l.max).max().unwrap_or(0);
    cfg.model.max_len = cfg.model.max_len.max(longest).max(len.unwrap_or(0));
    cfg.eval_lens = vec![cfg.train_len];
    Ok(cfg)
}

/// Train `steps` steps of a configuration; with 0 the weights are random.
///
/// # Errors
/// When the configuration cannot be, or a number is not finite.
pub fn train(name: &str, config: TrainConfig, steps: usize, bar: &ProgressBar) -> Result<Source> {
    let mut trainer = Trainer::new(&config, config.seed)?;
    bar.set_length(steps as u64);
    bar.set_message(format!("training {name}"));
    let mut about = format!("Random weights of seed {}, not trained.", config.seed);
    for step in 0..steps {
        let took = trainer.step()?;
        bar.inc(1);
        if step + 1 == steps {
            let (accuracy, _) = trainer.evaluate()?;
            let accuracy: Vec<String> = accuracy.iter().map(|(len, a)| format!("{a:.3} at length {len}")).collect();
            let accuracy = accuracy.join(", ");
            about = format!(
                "Trained for {steps} steps from seed {}: loss {:.3}, accuracy {accuracy}.",
                config.seed, took.loss
            );
        }
    }
    Ok(Source { name: name.into(), about, model: trainer.into_model()?, config })
}

/// The model of a run directory: of `DIR/MODEL-seedS`, or of a `DIR` that holds only one run.
///
/// # Errors
/// When it holds none, or several, or what is there cannot be read.
pub fn checkpoint(dir: &Path) -> Result<Source> {
    let (experiment, model, seed) = find(dir)?;
    let all = rundir::configuration(&experiment)?;
    let of = rundir::of(&experiment, &model, seed);
    let (weights, saved) = (of.join(rundir::WEIGHTS), of.join(rundir::CHECKPOINT));
    let own = checkpoint::configuration(&saved, &all, &model)?;
    let config = TrainConfig { device: Device::Cpu, dtype: own.dtype.real(), ..own.clone() };
    let name = format!("{model}, seed {seed}");
    if weights.is_file() {
        let about = format!("The final weights of {}, after {} steps.", of.display(), config.steps);
        let mut fresh = Model::new(&config.model, seed, config.dtype)?;
        load(&mut fresh, &weights)?;
        return Ok(Source { name, about, config, model: fresh });
    }
    if saved.is_file() {
        let (trainer, there) = checkpoint::load(&saved, &own, seed)?;
        let about = format!("The checkpoint of {} after {} of {} steps.", of.display(), there.step, config.steps);
        return Ok(Source { name, about, config, model: trainer.into_model()? });
    }
    let why = "has neither weights nor a checkpoint yet; wait for its first checkpoint, or go on with --resume";
    Err(Error::Config(format!("{}: {why}", of.display())))
}

/// The experiment's directory, the model and the seed.
fn find(dir: &Path) -> Result<(PathBuf, String, u64)> {
    let of_a_run = |path: &Path| {
        let (model, seed) = path.file_name()?.to_str()?.rsplit_once("-seed")?;
        Some((model.to_string(), seed.parse().ok()?))
    };
    let is_run = |path: &Path| path.join(rundir::METRICS).is_file();
    if dir.join(rundir::CONFIG).is_file() {
        let mut runs: Vec<PathBuf> = fs::read_dir(dir).map_err(Error::io(dir))?.flatten().map(|e| e.path()).collect();
        runs.retain(|path| is_run(path) && of_a_run(path).is_some());
        runs.sort();
        if let [one] = &runs[..]
            && let Some((model, seed)) = of_a_run(one)
        {
            return Ok((dir.into(), model, seed));
        }
        let names: Vec<String> = runs.iter().map(|r| r.display().to_string()).collect();
        let what =
            if names.is_empty() { "holds no run yet".into() } else { format!("name one of {}", names.join(", ")) };
        return Err(Error::Config(format!("{}: {what}", dir.display())));
    }
    match (of_a_run(dir), dir.parent()) {
        (Some((model, seed)), Some(parent)) if is_run(dir) => Ok((parent.into(), model, seed)),
        _ => {
            let why = if dir.exists() { "is no run directory" } else { "does not exist" };
            let what = "expected what was given to --out of a training program, or DIR/MODEL-seedS in it";
            Err(Error::Config(format!("{}: {why}; {what}", dir.display())))
        }
    }
}

/// Give a model the weights that a run left.
fn load(model: &mut Model, path: &Path) -> Result<()> {
    let bytes = fs::read(path).map_err(Error::io(path))?;
    let broken = |what: String| Error::format(path, format!("{what}; train the run again"));
    let file = SafeTensors::deserialize(&bytes).map_err(|e| broken(e.to_string()))?;
    let params = model.params_mut();
    let entries = params.entries().to_vec();
    let dtype = params.flat().dtype();
    for e in entries {
        let view = file
            .tensor(&e.name)
            .map_err(|_| broken(format!("no tensor '{}', so it is of another model than config.toml", e.name)))?;
        if view.shape() != e.shape.dims() {
            return Err(broken(format!("'{}' is {:?}, and by config.toml {}", e.name, view.shape(), e.shape)));
        }
        let range = e.offset..e.offset + e.shape.len();
        match (view.dtype(), dtype) {
            (Dtype::F32, DType::F32) => {
                let to = &mut params.flat_mut().host_mut::<f32>()[range];
                to.iter_mut().zip(view.data().as_chunks().0).for_each(|(x, b)| *x = f32::from_le_bytes(*b));
            }
            (Dtype::F64, DType::F64) => {
                let to = &mut params.flat_mut().host_mut::<f64>()[range];
                to.iter_mut().zip(view.data().as_chunks().0).for_each(|(x, b)| *x = f64::from_le_bytes(*b));
            }
            (there, _) => return Err(broken(format!("'{}' has numbers of {there:?}, not {dtype}", e.name))),
        }
    }
    Ok(())
}

impl Source {
    /// Whether it can be looked at, on sequences of this length.
    ///
    /// # Errors
    /// When it is a published model, or its table of positions is too short.
    pub fn check(&self, len: usize) -> Result<()> {
        let c = self.model.config();
        if c.variant == Variant::Published {
            let why = "a published model, which does not all go token by token; look at the clean mixer instead";
            return Err(Error::Config(format!("{}: {why}", self.name)));
        }
        if c.positions != Positions::None && len > c.max_len {
            let (name, max) = (&self.name, c.max_len);
            return Err(Error::Config(format!(
                "{name}: it has positions for {max} tokens, not {len}; use --len {max} or less"
            )));
        }
        Ok(())
    }
}
