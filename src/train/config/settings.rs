//! The settings of a file and the flags, and which of them have no effect: somebody who sets a number expects it to
//! count.
//!
//! Presets and defaults are not checked, nor are values that a file repeats from its preset: a recorded `config.toml`
//! has every key.

use super::{Parts, TrainConfig, merge, parse, plain, table_of};
use crate::{
    autograd::{Kernels, Tape},
    error::{Result, brief},
    models::{self, Form, Model, Positions, Variant, published::Defect},
    tasks::Len,
    tensor::{Device, Products},
    train::{capacity, on_device::Graphs, presets::OldName, schedule::Shape},
};
use toml::{Table, Value};

/// A key that a file or a flag sets.
#[derive(Clone, Debug, PartialEq)]
pub struct Setting {
    /// The key, as `model.width`.
    pub key: String,
    /// Its value, in few characters.
    pub value: String,
    /// Whether a flag sets it, and not a file.
    pub by_flag: bool,
    /// Why it has no effect, or another than its name says: the rest of a sentence that begins with the key.
    pub idle: Option<String>,
}

impl Setting {
    /// The flag that sets it.
    pub fn flag(&self) -> String {
        flag(&self.key)
    }

    /// The warning about it, if it is idle; `flags` says whether settings are written as `--flags`.
    pub fn warning(&self, flags: bool) -> Option<String> {
        let is_switch = self.value == "true" || self.key.ends_with("unique_keys");
        let name = if is_switch { self.flag() } else { format!("{} {}", self.flag(), self.value) };
        let name = if flags && self.by_flag { name } else { format!("{} = {}", self.key, self.value) };
        self.idle.as_ref().map(|why| format!("{name} {why}"))
    }
}

/// The flag that sets a key such as `model.head_dim`: `--head-dim`.
pub fn flag(key: &str) -> String {
    match key.rsplit('.').next().unwrap_or(key) {
        "unique_keys" => "--repeated-keys".into(),
        key => format!("--{}", key.replace('_', "-")),
    }
}

/// Warnings about the settings that have no effect in any experiment that has them.
pub fn warnings(experiments: &[Vec<Setting>], flags: bool) -> Vec<String> {
    let mut said: Vec<&Setting> = Vec::new();
    for setting in experiments.iter().flatten().filter(|s| s.idle.is_some()) {
        let counts = |s: &Setting| s.key == setting.key && s.idle.is_none();
        if said.iter().all(|s| s.key != setting.key) && !experiments.iter().flatten().any(counts) {
            said.push(setting);
        }
    }
    said.into_iter().filter_map(|s| s.warning(flags)).collect()
}

/// The setting of a key that was given by its old name.
pub(super) fn old_name(config: &TrainConfig, OldName { old, new, what }: &OldName) -> Result<Setting> {
    let value = table_of(config)?.get(*new).map(plain).unwrap_or_default();
    let why = format!("is the old name of {new}: {what}");
    Ok(Setting { key: (*old).into(), value, by_flag: false, idle: Some(why) })
}

/// Everything that `file` sets to another value than `preset`, and all that `flags` set.
pub(super) fn of(config: &TrainConfig, preset: &Table, file: &Table, flags: &Table) -> Result<Vec<Setting>> {
    let mut base = preset.clone();
    let name = Value::from(config.task.name());
    merge(&mut base, Table::from_iter([("task".into(), Table::from_iter([("name".into(), name)]).into())]));
    let base = Value::Table(parse(&base).and_then(|base| table_of(&base).map_err(|e| e.to_string())).unwrap_or(base));
    let (mut by_file, mut by_flag) = (Vec::new(), Vec::new());
    leaves(&mut vec![], file, &mut by_file);
    leaves(&mut vec![], flags, &mut by_flag);
    by_file.retain(|(path, value)| !same(at(&base, path), value) && by_flag.iter().all(|flag| flag.0 != *path));

    let models: Vec<(&String, TrainConfig)> = config.models.iter().zip(config.each_model()?).collect();
    let mut settings: Vec<Setting> = Vec::new();
    for (path, value, by_flag) in
        by_file.into_iter().map(|(p, v)| (p, v, false)).chain(by_flag.into_iter().map(|(p, v)| (p, v, true)))
    {
        let of_one = if path[0] == "per_model" && path.len() > 2 { Some(&path[1]) } else { None };
        let owns = models.iter().filter(|(name, own)| of_one.is_none_or(|m| m == *name || *m == own.model.mixer));
        let owns: Vec<&TrainConfig> = owns.map(|(_, own)| own).collect();
        let key = path[of_one.map_or(0, |_| 2)..].join(".");
        let idle = match (owns.first(), of_one) {
            (Some(_), _) if key == "kernels" => kernels_of_nobody(&owns, &value),
            (Some(_), _) if key == "form" => old_form(&owns),
            (Some(first), _) => idle(first, &key).filter(|_| owns.iter().all(|own| idle(own, &key).is_some())),
            // A user who picks some of a file's models by a flag knows that the others are not trained.
            (None, Some(name)) if !flags.contains_key("models") => {
                Some(format!("has no effect: {name} is not trained"))
            }
            (None, _) => None,
        };
        settings.push(Setting { key: path.join("."), value: brief(&plain(&value), 40), by_flag, idle });
    }
    Ok(settings)
}

/// All values in a table and in the tables below it, except the keys that name the experiment.
fn leaves(path: &mut Vec<String>, table: &Table, all: &mut Vec<(Vec<String>, Value)>) {
    for (key, value) in table {
        path.push(key.clone());
        match value {
            Value::Table(inner) => leaves(path, inner, all),
            _ if matches!(path.join(".").as_str(), "preset" | "models" | "task.name") => {}
            // The value "auto" is never wrong.
            _ if value.as_str() == Some("auto") => {}
            _ => all.push((path.clone(), value.clone())),
        }
        path.pop();
    }
}

fn at<'a>(table: &'a Value, path: &[String]) -> Option<&'a Value> {
    path.iter().try_fold(table, |table, key| table.get(key))
}

/// Whether two values are equal, though one may be written as 1 and the other as 1.0.
fn same(a: Option<&Value>, b: &Value) -> bool {
    let number = |v: &Value| v.as_float().or_else(|| v.as_integer().map(|n| n as f64));
    a.is_some_and(|a| a == b || number(a).is_some_and(|x| number(b) == Some(x)))
}

/// The mixers that read a size or a choice; a key that is not here concerns all.
const READ_BY: [(&str, &[&str]); 10] = [
    ("model.heads", &WITH_HEADS),
    ("model.head_dim", &WITH_HEADS),
    ("model.state", &["lru", "mamba", "mamba2", "mamba3", "gsa", "s4d", "lssl", "lmu", "seqboat"]),
    (
        "model.conv",
        &["delta_net", "mamba", "gated_delta_net", "delta_product", "slstm", "mlstm", "mamba2", "kda", "ttt", "titans"],
    ),
    ("model.expand", &["mamba"]),
    ("model.dt_rank", &["mamba"]),
    ("model.householders", &["delta_product"]),
    ("model.r_min", &["lru"]),
    ("model.r_max", &["lru"]),
    ("model.eigenvalues", &["delta_net", "mamba", "gated_delta_net", "delta_product", "mamba2", "kda", "rwkv7", "mom"]),
];

const WITH_HEADS: [&str; 27] = [
    "lstm",
    "quasi_lstm",
    "linear_transformer",
    "gpt",
    "delta_net",
    "gated_delta_net",
    "delta_product",
    "slstm",
    "mlstm",
    "gla",
    "retnet",
    "hgrn2",
    "mamba2",
    "mamba3",
    "kda",
    "rwkv7",
    "fox",
    "path",
    "hopfield",
    "ttt",
    "titans",
    "gsa",
    "hedgehog",
    "transnormer",
    "lightnet",
    "mom",
    "seqboat",
];

/// Keys that published models do not read, though the clean mixer does.
const NOT_PUBLISHED: [(&str, &str); 6] = [
    ("lru", "model.init_std"),
    ("lru", "model.mlp"),
    ("lru", "model.r_min"),
    ("lru", "model.r_max"),
    ("mamba", "model.mlp"),
    ("delta_net", "model.conv"),
];

/// A key, the condition under which it has no effect, and the message in that case.
type Rule = (&'static str, fn(&TrainConfig) -> bool, fn(&TrainConfig) -> String);

const RULES: [Rule; 18] = [
    (
        "model.positions",
        |c| {
            let rotates = ["gpt", "linear_transformer", "delta_net"].contains(&c.model.mixer.as_str());
            c.model.variant == Variant::Published && c.model.positions == Positions::Rope && !rotates
        },
        |c| format!("has no effect: the published {} compares no queries with keys", c.model.mixer),
    ),
    ("train_len", |c| off_grid(c, c.train_len), no_such_length),
    ("eval_lens", |c| c.eval_lens.iter().any(|&len| off_grid(c, len)), no_such_length),
    (
        "curriculum",
        |c| c.curriculum > 0 && c.train_len.is_one(),
        |c| format!("has no effect: train_len {} is one length; expected a range, as 3-{0}", c.train_len),
    ),
    (
        "curriculum",
        |c| c.curriculum > c.steps,
        |c| format!("is longer than the run of {} steps: it ends before the longest length", c.steps),
    ),
    (
        "task.grow_from",
        |c| last_stage(c).is_some_and(|(_, begins)| begins >= c.steps),
        |c| {
            let (stages, begins) = last_stage(c).unwrap_or_default();
            format!(
                "makes {stages} stages, of which the last cannot begin before step {begins}, and this run has {}: it is evaluated \
                 on what it is not trained on",
                c.steps
            )
        },
    ),
    (
        "warmup",
        |c| c.warmup > c.steps,
        |c| format!("is longer than the run of {} steps: the learning rate never reaches lr {}", c.steps, c.lr),
    ),
    (
        "schedule",
        |c| c.schedule == Shape::Cosine && c.warmup >= c.steps,
        |c| format!("has no effect: the warm-up of {} takes all {} steps", c.warmup, c.steps),
    ),
    (
        "eval_every",
        |c| c.eval_every > c.steps,
        |c| format!("is longer than the run of {} steps: only its end is evaluated", c.steps),
    ),
    (
        "min_lr_fraction",
        |c| c.schedule == Shape::Constant,
        |_| "has no effect: the schedule is constant; expected schedule cosine".into(),
    ),
    (
        "max_len",
        |c| {
            let blocks = c.model.variant == Variant::Published && c.model.mixer == "quasi_lstm";
            c.model.positions == Positions::None && !blocks
        },
        |c| format!("has no effect: positions are {}, and need no table", c.model.positions),
    ),
    (
        "model.ngram",
        |c| c.model.ngram + 2 > c.longest(),
        |c| format!("is more than sequences of {} tokens can repeat: the longest heads find nothing", c.longest()),
    ),
    (
        "model.carry_state",
        |c| c.model.carry_state && carries_nothing(c),
        |c| match c.model.variant {
            Variant::Clean => {
                format!(
                    "carries nothing: {} keeps a cache alone, and each batch begins with an empty one",
                    c.model.mixer
                )
            }
            Variant::Published => {
                format!("carries nothing: the published {} starts each batch from zeros", c.model.mixer)
            }
        },
    ),
    (
        "products",
        |c| c.products != Products::F32 && c.kernels == Kernels::Plain,
        |_| "has no effect: with kernels plain there are no kernels to round operands".into(),
    ),
    (
        "cuda_graph",
        |c| c.cuda_graph == Graphs::Off && c.device == Device::Cpu,
        |_| "has no effect: this runs on the cpu".into(),
    ),
    (
        "micro_batches",
        |c| c.micro_batches != Parts::Count(1) && c.device != Device::Cpu,
        |c| format!("has no effect: on {} a batch is computed in one part", c.device),
    ),
    (
        "micro_batches",
        |c| {
            c.micro_batches != Parts::Count(1)
                && c.model.carry_state
                && Model::hollow(&c.model, c.dtype).is_ok_and(|model| model.carries())
        },
        |_| "has no effect: with carry_state a batch is computed in one part".into(),
    ),
    (
        "micro_batches",
        |c| {
            let normalises = c.model.variant == Variant::Published && c.model.mixer == "lru";
            c.micro_batches != Parts::Count(1) && normalises && !c.model.without.contains(&Defect::BatchNorm)
        },
        |_| "has no effect: the published lru normalises whole batches, and computes them in one part".into(),
    ),
];

/// Whether a model has no state that a batch could start from: it has none at all, or a cache, which begins empty.
fn carries_nothing(c: &TrainConfig) -> bool {
    Model::hollow(&c.model, c.dtype).is_ok_and(|model| {
        let tape = Tape::hollow();
        let state = model.zero_state(&tape, 1);
        state.blocks().iter().flat_map(|block| &block.s).all(|value| value.shape().is_empty())
    })
}

/// Whether the task has no sequence of this length, and takes another for it.
fn off_grid(c: &TrainConfig, len: Len) -> bool {
    c.task.ends(len).is_none()
}

/// How many stages the task has, and after how many steps the last one begins at the earliest.
fn last_stage(c: &TrainConfig) -> Option<(usize, usize)> {
    let stages = c.task.stages()?;
    Some((stages.tasks.len(), (stages.tasks.len() - 1).saturating_mul(stages.every)))
}

fn no_such_length(c: &TrainConfig) -> String {
    let (step, rest) = c.task.grid();
    let lens: Vec<String> = (0..3).map(|i| (rest + step + i * step).to_string()).collect();
    format!("is no length of {}: these are {}, ..; the next shorter one is taken", c.task.title(), lens.join(", "))
}

/// Why a key has no effect on a model; none if it has one.
fn idle(own: &TrainConfig, key: &str) -> Option<String> {
    if let Some(option) = key.strip_prefix("task.") {
        let lens: Vec<_> = [own.train_len].into_iter().chain(own.eval_lens.iter().copied()).collect();
        let why = own.task.without_effect(&lens).into_iter().find(|(name, _)| *name == option);
        return why.map(|(_, why)| why).or_else(|| rule(own, key));
    }
    let mixer = own.model.mixer.as_str();
    // A mixer that a program adds may read any of them.
    let known = models::MIXERS.iter().any(|(name, _)| *name == mixer);
    let unread = |(name, mixers): &&(&str, &[&str])| *name == key && !mixers.contains(&mixer);
    if let Some((_, mixers)) = READ_BY.iter().filter(|_| known).find(unread) {
        return Some(format!("has no effect: it is read by {} alone", mixers.join(", ")));
    }
    if own.model.variant == Variant::Published && NOT_PUBLISHED.contains(&(mixer, key)) {
        return Some(format!("has no effect: the published {mixer} has no such thing"));
    }
    rule(own, key)
}

/// What the rules say of a key.
fn rule(own: &TrainConfig, key: &str) -> Option<String> {
    RULES.iter().find(|(name, holds, _)| *name == key && holds(own)).map(|(_, _, why)| why(own))
}

/// A message about models that have another name for a form.
fn old_form(owns: &[&TrainConfig]) -> Option<String> {
    let mut found: Vec<(Form, &str)> = vec![];
    for own in owns {
        let (asked, forms) = (own.form?, models::forms(&own.model).ok()?);
        found.extend((asked.among(&forms) != asked).then(|| (asked.among(&forms), own.model.mixer.as_str())));
    }
    let mixers: Vec<&str> = found.iter().map(|(_, mixer)| *mixer).collect();
    found.first().map(|(form, _)| format!("is called {form} for {}", mixers.join(", ")))
}

/// The ops that a list of kernels names and no model runs.
fn kernels_of_nobody(owns: &[&TrainConfig], value: &Value) -> Option<String> {
    let asked: Kernels = value.as_str()?.parse().ok()?;
    let runs = |own: &TrainConfig, name: &String| {
        // An op without its kernel does not show up itself, but the ops of its formula do.
        let others = |list: &[String]| list.iter().filter(|other| *other != name).cloned().collect();
        let kernels = match &asked {
            Kernels::Without(list) => Kernels::Without(others(list)),
            kernels => kernels.clone(),
        };
        // A kernel of an op with several shows up by its own name, OP.KERNEL.
        let of = |ran: &str| ran == name || ran.split('.').next() == Some(name);
        capacity::ops(own, kernels).is_none_or(|ran| ran.iter().any(|ran| of(ran)))
    };
    let nobody: Vec<&str> =
        asked.names().iter().filter(|name| !owns.iter().any(|own| runs(own, name))).map(String::as_str).collect();
    let none = if owns.len() == 1 { "the model does not have" } else { "no model here has" };
    (!nobody.is_empty()).then(|| format!("has no effect on {}, which {none}", nobody.join(", ")))
}
