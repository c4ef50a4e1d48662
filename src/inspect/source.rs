//! Where a model comes from: a run directory, or a few hundred steps of training here and now.

use crate::{
    error::{Error, Result, brief, count},
    files,
    models::{Model, ModelConfig, Positions, Variant},
    tasks::BITS,
    tensor::Device,
    terminal::few,
    train::{
        Trainer, checkpoint,
        config::{TrainConfig, preset_table, task_of, warnings},
        rundir,
        table::number,
    },
};
use indicatif::ProgressBar;
use std::{
    fs,
    path::{Path, PathBuf},
};
use toml::{Table, Value};

/// A model to look at.
pub struct Source {
    /// Its name: "delta_net", or as the user wrote it.
    pub name: String,
    /// The origin of its weights, in a sentence.
    pub about: String,
    /// Warnings about its weights, a sentence each.
    pub doubts: Vec<String>,
    /// Its configuration, of this one model.
    pub config: TrainConfig,
    /// The model.
    pub model: Model,
}

/// Keys that [`config()`] sets itself or does not use, and the message for each.
const NOT_HERE: [(&str, &str); 15] = [
    ("steps", "is set by --steps"),
    ("seed", "is set by --seed"),
    ("task", "is set by --task"),
    ("kernels", "is set by --kernels"),
    ("models", "is the mixer before the ':'"),
    ("preset", "follows from the task"),
    ("per_model", "has no effect: there is one model"),
    ("model", "is a table: name a key in it, such as width=8"),
    ("seeds", "has no effect: one model is trained, from --seed"),
    ("device", "has no effect: a page is made on the cpu"),
    ("cuda_graph", "has no effect: a page is made on the cpu"),
    ("eval_lens", "has no effect: it is evaluated at train_len"),
    ("eval_every", "has no effect: it is evaluated at the end"),
    ("log_every", "has no effect: nothing is recorded on the way"),
    ("checkpoint_every", "has no effect: nothing is recorded on the way"),
];

/// Keys without effect where nothing is trained.
const OF_TRAINING: [&str; 18] = [
    "lr",
    "optimizer",
    "betas",
    "eps",
    "weight_decay",
    "label_smoothing",
    "grad_noise",
    "schedule",
    "warmup",
    "min_lr",
    "min_lr_fraction",
    "clip",
    "curriculum",
    "micro_batches",
    "shards",
    "products",
    "eval_batches",
    "eval_batch",
];

/// The configuration of `MIXER[:key=value,…]` on a task. A key belongs to the configuration, such as `lr`, or to its
/// `[model]`, such as `heads`.
///
/// # Errors
/// When there is no such mixer, task or key, or a value is not valid.
pub fn config(spec: &str, task_name: &str, seed: u64, len: Option<usize>, steps: usize) -> Result<TrainConfig> {
    let task = task_of(task_name).map_err(|e| Error::Config(format!("--task {e}")))?;
    Ok(config_on(spec, task, seed, len, steps)?.0)
}

/// As [`config()`], on a task with its options, which begins with this preset; with warnings about settings that have no
/// effect.
///
/// # Errors
/// As [`config()`].
pub fn config_on(
    spec: &str,
    (preset, task): (&str, Table),
    seed: u64,
    len: Option<usize>,
    steps: usize,
) -> Result<(TrainConfig, Vec<String>)> {
    let (mixer, settings) = spec.split_once(':').unwrap_or((spec, ""));
    let known = preset_table(preset)?;
    let sizes = Table::try_from(ModelConfig::default()).unwrap_or_default();
    let (mut flags, mut model, mut given) = (Table::new(), Table::new(), Vec::new());
    for setting in settings.split(',').filter(|s| !s.is_empty()) {
        let Some((key, value)) = setting.split_once('=') else {
            let what = "expected MIXER:key=value,key=value, as delta_net:heads=1,eigenvalues=-1..1";
            return Err(Error::Config(format!("{spec}: '{setting}' has no '='; {what}")));
        };
        if let Some((_, why)) = NOT_HERE.iter().find(|(name, _)| *name == key) {
            return Err(Error::Config(format!("{spec}: '{key}' {why}")));
        }
        if given.contains(&key) {
            return Err(Error::Config(format!("{spec}: '{key}' is listed twice")));
        }
        given.push(key);
        let default = known.get(key).or_else(|| sizes.get(key));
        let parsed = format!("x = {value}").parse::<Table>().ok().and_then(|mut t| t.remove("x"));
        let value = parsed.filter(|_| !default.is_some_and(Value::is_str)).unwrap_or_else(|| Value::from(value));
        let top = known.contains_key(key)
            || ["form", "products", "curriculum", "label_smoothing", "grad_noise", "min_lr"].contains(&key);
        if top { &mut flags } else { &mut model }.insert(key.into(), value);
    }
    // It is evaluated at the length of training alone: the preset's others need no room for a batch.
    let eval_batch = known.get("eval_batch").and_then(Value::as_integer).and_then(|n| usize::try_from(n).ok());
    let eval_batch = eval_batch.filter(|_| !given.contains(&"eval_batch"));
    if eval_batch.is_some() {
        flags.insert("eval_batch".into(), 1.into());
    }
    flags.insert("models".into(), vec![mixer].into());
    flags.insert("task".into(), task.into());
    flags.insert("device".into(), "cpu".into());
    flags.insert("seed".into(), i64::try_from(seed).unwrap_or(i64::MAX).into());
    flags.entry("steps").or_insert(i64::try_from(steps.max(1)).unwrap_or(i64::MAX).into());
    if !model.is_empty() {
        flags.insert("model".into(), model.into());
    }
    let made = TrainConfig::from_settings(preset, None, flags);
    let made = made.and_then(|(cfg, set)| Ok((cfg.for_model(mixer)?, set)));
    let (mut cfg, mut set) =
        made.map_err(|e| if settings.is_empty() { e } else { Error::Config(format!("{spec}: {e}")) })?;
    set.retain(|s| given.contains(&s.key.trim_start_matches("model.")));
    let idle = given.iter().filter(|key| steps == 0 && OF_TRAINING.contains(key));
    let idle: Vec<String> = idle.map(|key| format!("{key} has no effect: with --steps 0 nothing is trained")).collect();
    set.retain(|s| steps > 0 || !OF_TRAINING.contains(&s.key.as_str()));
    let said = warnings(&[set], false).into_iter().chain(idle).map(|warning| format!("{spec}: {warning}")).collect();
    // Learned positions must cover the sequence shown.
    let longest = cfg.eval_lens.iter().chain([&cfg.train_len]).map(|l| l.max).max().unwrap_or(0);
    cfg.model.max_len = cfg.model.max_len.max(longest).max(len.unwrap_or(0));
    cfg.eval_lens = vec![cfg.train_len];
    cfg.eval_batch = eval_batch.unwrap_or(cfg.eval_batch);
    cfg.seeds = 1;
    cfg.load_data()?;
    Ok((cfg, said))
}

/// Train `steps` steps of a configuration; with 0 the weights are random.
///
/// # Errors
/// When the configuration is not valid, or a number is not finite.
pub fn train(name: &str, config: TrainConfig, steps: usize, bar: &ProgressBar) -> Result<Source> {
    let mut trainer = Trainer::new(&config, config.seed)?;
    bar.set_length(steps as u64);
    bar.set_message(format!("training {name}"));
    let mut about = format!("Random weights of seed {}, not trained.", config.seed);
    for step in 0..steps {
        let took = trainer.step()?;
        bar.inc(1);
        if step + 1 == steps {
            let (accuracy, scores) = trainer.evaluate()?;
            let (score, name, of) = match scores.get(BITS) {
                Some(bits) => (Some(BITS), "bits per byte", bits),
                None => (None, "accuracy", &accuracy),
            };
            let of: Vec<String> = of.iter().map(|(len, x)| format!("{} at length {len}", number(score, *x))).collect();
            let of = of.join(", ");
            about = format!(
                "Trained for {} from seed {}: loss {:.3}, {name} {of}.",
                count(steps, "step"),
                config.seed,
                took.loss
            );
        }
    }
    Ok(Source { name: name.into(), about, doubts: vec![], model: trainer.into_model()?, config })
}

/// The model of a run directory: of `DIR/MODEL-seedS`, or of a `DIR` that holds only one run.
///
/// # Errors
/// When it holds no run or several, or the run cannot be read.
pub fn checkpoint(dir: &Path) -> Result<Source> {
    checkpoint_for(dir, 0)
}

/// As [`checkpoint()`], for sequences of up to `len` tokens if positions are computed and not learned.
///
/// # Errors
/// As there.
pub fn checkpoint_for(dir: &Path, len: usize) -> Result<Source> {
    let (experiment, model, seed) = find(dir)?;
    let all = rundir::configuration(&experiment)?;
    let of = rundir::of(&experiment, &model, seed);
    let (weights, saved) = (of.join(rundir::WEIGHTS), of.join(rundir::CHECKPOINT));
    let mut own = rundir::configuration_of(&of, &all, &model)?;
    if matches!(own.model.positions, Positions::Rope | Positions::Sinusoidal) {
        own.model.max_len = own.model.max_len.max(len);
    }
    let config =
        TrainConfig { device: Device::Cpu, dtype: own.dtype.real(), cuda_graph: Default::default(), ..own.clone() };
    let name = format!("{model}, seed {seed}");
    if files::is_there(&weights) {
        let about = format!("The final weights of {}, after {} steps.", of.display(), config.steps);
        let mut fresh = Model::new(&config.model, seed, config.dtype)?;
        let doubts = [load(&mut fresh, &weights)?, not_finite(&fresh, &weights)].into_iter().flatten().collect();
        return Ok(Source { name, about, doubts, config, model: fresh });
    }
    if files::is_there(&saved) {
        let (trainer, there) = checkpoint::load_on(&saved, &own, seed, &config)?;
        let about = format!("The checkpoint of {} after {} of {} steps.", of.display(), there.step, config.steps);
        let model = trainer.into_model()?;
        let doubts = not_finite(&model, &saved).into_iter().collect();
        return Ok(Source { name, about, doubts, config, model });
    }
    let why = match rundir::find(&of)? {
        rundir::Found::Finished(report) if report.error.is_none() => {
            "finished, and lost its weights; put them back from a copy, or delete result.json to train this run again"
        }
        rundir::Found::Finished(_) => {
            "diverged before its first checkpoint, and has no weights: its result.json says at which step"
        }
        _ => "has neither weights nor a checkpoint yet; wait for its first checkpoint, or go on with --resume",
    };
    Err(Error::Config(format!("{}: {why}", of.display())))
}

/// The experiment's directory, the model and the seed.
fn find(dir: &Path) -> Result<(PathBuf, String, u64)> {
    let of_a_run = |path: &Path| {
        let (model, seed) = path.file_name()?.to_str()?.rsplit_once("-seed")?;
        Some((model.to_string(), seed.parse().ok()?))
    };
    let is_run = |path: &Path| files::is_there(&path.join(rundir::METRICS));
    if files::is_there(&dir.join(rundir::CONFIG)) {
        let mut runs: Vec<PathBuf> = fs::read_dir(dir).map_err(Error::io(dir))?.flatten().map(|e| e.path()).collect();
        runs.retain(|path| is_run(path) && of_a_run(path).is_some());
        runs.sort();
        if let [one] = &runs[..]
            && let Some((model, seed)) = of_a_run(one)
        {
            return Ok((dir.into(), model, seed));
        }
        let names: Vec<String> = runs.iter().map(|r| r.display().to_string()).collect();
        let what = if names.is_empty() { "holds no run yet".into() } else { format!("name one of {}", few(&names, 8)) };
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

/// A warning about weights that are not finite.
pub(crate) fn not_finite(model: &Model, path: &Path) -> Option<String> {
    let weights = model.params().flat().to_f64();
    let count = |range: std::ops::Range<usize>| weights[range].iter().filter(|x| !x.is_finite()).count();
    let bad: Vec<(&str, usize)> = (model.params().entries().iter())
        .map(|e| (e.name.as_str(), count(e.offset..e.offset + e.shape.len())))
        .filter(|(_, n)| *n > 0)
        .collect();
    let all: usize = bad.iter().map(|(_, n)| n).sum();
    let (first, _) = bad.first()?;
    let weights = if all == 1 { "1 weight is" } else { &format!("{all} weights are") };
    let where_ =
        if bad.len() == 1 { format!("in '{first}'") } else { format!("in '{first}' and {} more", bad.len() - 1) };
    Some(format!("{}: {weights} NaN or infinite, {where_}", path.display()))
}

/// Load the weights of a run into a model; returns a sentence about tensors that the model does not have.
fn load(model: &mut Model, path: &Path) -> Result<Option<String>> {
    let others = model.load_known(path).map_err(|e| match e {
        Error::Format { path, what } => Error::Format { path, what: format!("{what}; train the run again") },
        other => other,
    })?;
    let more = if others.len() > 1 { format!(" and {} more", others.len() - 1) } else { String::new() };
    Ok(others.first().map(|name| {
        let name = brief(name, 80);
        format!("{}: tensor '{name}'{more}: the model of config.toml has no such weights; not used", path.display())
    }))
}

impl Source {
    /// Whether it can be shown on sequences of this length.
    ///
    /// # Errors
    /// When it is a published model, or its table of positions is too short.
    pub fn check(&self, len: usize) -> Result<()> {
        check(&self.name, &self.config, len)
    }
}

/// [`Source::check`] for a model that is not trained yet.
///
/// # Errors
/// As there.
pub fn check(name: &str, config: &TrainConfig, len: usize) -> Result<()> {
    let c = &config.model;
    if c.variant == Variant::Published {
        let why = "a published model; these cannot all run token by token; use the clean mixer instead";
        return Err(Error::Config(format!("{name}: {why}")));
    }
    if c.positions != Positions::None && len > c.max_len {
        let max = c.max_len;
        let what = format!("it has positions for {max} tokens, not {len}; use at most {max} tokens");
        return Err(Error::Config(format!("{name}: {what}")));
    }
    Ok(())
}
