//! From the flags of a training program to a configuration, and which flags have no effect.

use super::{TrainArgs, say};
use crate::{
    error::{Error, Result},
    tasks,
    train::config::{Setting, TrainConfig, flag, preset_table, read, warnings},
};
use clap::{Args, Command};
use toml::{Table, Value};

impl TrainArgs {
    /// Whether the preset is this one of several scales of a comparison, as "paper".
    pub(super) fn scale<'a>(&self, scales: &[&'a str]) -> Option<&'a str> {
        let asked = self.what.preset.as_deref();
        scales.iter().copied().find(|&scale| asked == Some(scale))
    }

    /// The preset to start from.
    pub(super) fn set_preset(&mut self, name: String) {
        self.what.preset = Some(name);
    }

    /// The configuration that these flags, the file they name and the preset make; `preset` is the one where neither
    /// names any, and `task` are the task's own flags.
    ///
    /// # Errors
    /// When a value cannot be.
    pub(super) fn resolve(&self, preset: &str, task: Table) -> Result<TrainConfig> {
        let mut flags = self.table();
        let file = self.what.config.as_deref().map(|path| Ok((path, read(path)?))).transpose()?;
        if let Some((path, file)) = &file {
            check_task(file, preset, &task)
                .map_err(|what| Error::config(format!("--config {}: {what}", path.display())))?;
        }
        flags.insert("task".into(), task.into());
        let typed = flags.clone();
        let of_file = file.as_ref().map(|(_, table)| table.clone()).unwrap_or_default();
        let made = TrainConfig::from_settings_and_data(preset, file, flags);
        let (cfg, mut settings) = made.map_err(|e| self.in_words_of_flags(e, &typed, &of_file))?;
        let idle = self.idle();
        settings.retain(|s| idle.iter().all(|other| other.key != s.key));
        settings.extend(idle);
        if let Some(said) = self.unread(&mut settings) {
            say("warning", &said);
        }
        for warning in warnings(&[settings], true) {
            say("warning", &warning);
        }
        Ok(cfg)
    }

    /// An error that begins with the key of a flag begins with that flag, and names other settings by their flags too.
    /// Where neither the command line nor the file sets the key, it says whose the value is.
    fn in_words_of_flags(&self, e: Error, flags: &Table, file: &Table) -> Error {
        let Error::Config(what) = e else { return e };
        if what.starts_with("unknown model ") && flags.contains_key("models") {
            return Error::Config(format!("--models: {what}"));
        }
        let bare = what.trim_start_matches("model.").trim_start_matches("task.");
        let (key, rest) = bare.split_at(bare.find([' ', ':']).unwrap_or(bare.len()));
        let rest = rest.strip_prefix(" =").unwrap_or(rest);
        let given =
            [Some(flags), part(flags, "model"), part(flags, "task")].into_iter().flatten().any(|t| t.contains_key(key));
        let flag = if key == "micro_batches" && self.machine.shards.is_some() { "--shards".into() } else { flag(key) };
        match rest.split_once(": ") {
            _ if given => Error::Config(format!("{flag}{}", with_flags(rest))),
            Some((value, why)) if is_flag(key) && !sets(file, key) => {
                Error::Config(format!("{flag}{value}, as the preset has it: {}", with_flags(why)))
            }
            _ => Error::Config(what),
        }
    }

    /// Take out the flags that are not read because nothing is trained, and say which these are. Lengths are read, for
    /// the task is checked against all of them.
    fn unread(&self, settings: &mut Vec<Setting>) -> Option<String> {
        let TrainArgs { what, machine, output, .. } = self;
        let (instead, reads): (_, fn(&str) -> bool) = match (output.show, output.profile) {
            (Some(_), _) => {
                ("--show", |key| key.starts_with("task.") || ["train_len", "eval_lens", "seed", "batch"].contains(&key))
            }
            (None, true) => ("--profile", |key| !["seeds", "steps", "eval_every", "checkpoint_every"].contains(&key)),
            (None, false) => return None,
        };
        let mut unread: Vec<String> = vec![];
        unread.extend(what.models.iter().filter(|_| output.show.is_some()).map(|_| "--models".into()));
        settings.retain(|setting| {
            let stays = !setting.by_flag || reads(&setting.key);
            unread.extend((!stays).then(|| setting.flag()));
            stays
        });
        let (jobs, given) = machine.jobs();
        unread.extend(given.iter().map(|_| jobs.into()));
        no_effect(&unread, instead)
    }

    /// That a listing, `--models` with this name, reads no other flag, if one is given.
    pub(super) fn beside_a_listing(&self, what: &str, task: &Table) -> Option<String> {
        let (given, output) = (self.table(), &self.output);
        let keys = [Some(&given), part(&given, "model"), Some(task)].into_iter().flatten().flat_map(Table::keys);
        let mut unread: Vec<String> =
            keys.filter(|key| !["models", "model", "name"].contains(&key.as_str())).map(|key| flag(key)).collect();
        let of_output = [
            ("--show", output.show.is_some()),
            ("--json", output.json),
            ("--profile", output.profile),
            ("--out", output.out.is_some()),
            ("--resume", output.resume.is_some()),
            ("--config", self.what.config.is_some()),
        ];
        unread.extend(of_output.into_iter().filter(|(_, given)| *given).map(|(flag, _)| flag.into()));
        let (jobs, given) = self.machine.jobs();
        unread.extend(given.iter().map(|_| jobs.into()));
        no_effect(&unread, &format!("--models {what}"))
    }

    /// The flags that do nothing beside these others.
    fn idle(&self) -> Vec<Setting> {
        let TrainArgs { training, output, .. } = self;
        let kept = output.out.is_some() || output.resume.is_some();
        let flags = [
            (
                "checkpoint_every",
                training.checkpoint_every.filter(|&s| s > 0.0 && !kept).map(|s| s.to_string()),
                "has no effect without --out DIR: no checkpoint is kept",
            ),
            (
                "eval_every",
                training.eval_every.filter(|&n| n > 0 && !kept).map(|n| n.to_string()),
                "has no effect without --out DIR: only the last evaluation is printed",
            ),
        ];
        let given = flags.into_iter().filter_map(|(key, value, why)| Some((key, value?, why)));
        given
            .map(|(key, value, why)| Setting { key: key.into(), value, by_flag: true, idle: Some(why.into()) })
            .collect()
    }

    /// The flags given, under their names in the configuration.
    pub(super) fn table(&self) -> Table {
        let TrainArgs { what, training, sizes, machine, .. } = self.clone();
        let mut top = Flags::default();
        top.set("models", what.models).set("preset", what.preset).set("train_len", what.train_len);
        top.set("curriculum", what.curriculum);
        top.set("eval_lens", what.eval_lens).set("seeds", what.seeds).set("seed", what.seed);

        top.set("steps", training.steps).set("batch", training.batch).set("lr", training.lr);
        top.set("optimizer", training.optimizer.map(|x| x.to_string())).set("weight_decay", training.weight_decay);
        top.set("label_smoothing", training.label_smoothing).set("grad_noise", training.grad_noise);
        top.set("schedule", training.schedule.map(|x| x.to_string())).set("warmup", training.warmup);
        top.set("clip", training.clip).set("eval_every", training.eval_every);
        top.set("checkpoint_every", training.checkpoint_every);

        top.set("form", machine.form.map(|x| x.to_string())).set("device", machine.device);
        top.set("cuda_graph", machine.cuda_graph.map(|x| x.to_string()));
        top.set("dtype", machine.dtype.map(|x| x.to_string())).set("max_len", sizes.max_len);
        top.set("products", machine.products.map(|x| x.to_string()))
            .set("kernels", machine.kernels.kernels.map(|x| x.to_string()))
            .set("micro_batches", machine.micro_batches.or(machine.shards).map(toml::Value::from));

        let mut model = Flags::default();
        model.set("layers", sizes.layers).set("width", sizes.width).set("heads", sizes.heads);
        model.set("head_dim", sizes.head_dim).set("mlp", sizes.mlp).set("state", sizes.state).set("conv", sizes.conv);
        model.set("expand", sizes.expand).set("dt_rank", sizes.dt_rank).set("positions", sizes.positions);
        model.set("householders", sizes.householders).set("eigenvalues", sizes.eigenvalues.map(|x| x.to_string()));
        model.set("ngram", sizes.ngram).set("variant", sizes.variant).set("without", sizes.without);
        top.set("model", Some(model.0)).0.clone()
    }
}

/// That these flags have no effect, if there are any.
fn no_effect(flags: &[String], beside: &str) -> Option<String> {
    let have = if flags.len() == 1 { "has" } else { "have" };
    (!flags.is_empty()).then(|| format!("{} {have} no effect beside {beside}", flags.join(", ")))
}

/// Whether a key of the configuration is a flag of every training program.
fn is_flag(key: &str) -> bool {
    TrainArgs::augment_args(Command::new("train")).get_arguments().any(|arg| arg.get_id() == key)
}

/// Whether a file sets a key, for all models or for one.
pub(super) fn sets(file: &Table, key: &str) -> bool {
    file.iter().any(|(name, value)| name == key || value.as_table().is_some_and(|inner| sets(inner, key)))
}

/// A sentence in which `task.KEY`, `KEY = "VALUE"` and keys of several words are flags.
fn with_flags(text: &str) -> String {
    let words: Vec<&str> = text.split(' ').collect();
    let mut said: Vec<String> = vec![];
    let mut i = 0;
    while i < words.len() {
        if words.get(i + 1) == Some(&"=") && is_flag(words[i]) {
            said.extend([flag(words[i]), words.get(i + 2).copied().unwrap_or_default().replace('"', "")]);
            i += 3;
        } else {
            let word = words[i].trim_end_matches([',', ';', ':']);
            let key = word.strip_prefix("task.").or((word.contains('_') && is_flag(word)).then_some(word));
            said.push(key.map_or(words[i].into(), |key| flag(key) + &words[i][word.len()..]));
            i += 1;
        }
    }
    said.join(" ")
}

/// A table in a table.
pub(super) fn part<'a>(table: &'a Table, name: &str) -> Option<&'a Table> {
    table.get(name).and_then(Value::as_table)
}

/// The programs, and the tasks that each trains.
const PROGRAMS: [(&str, &[&str]); 5] = [
    ("parity", &["parity"]),
    ("dyck", &["dyck"]),
    ("mqar", &["mqar"]),
    ("state_tracking", &["group", "arithmetic"]),
    TRAIN,
];
const TRAIN: (&str, &[&str]) = ("train", &["text", "disjoint", "icll", "window"]);

/// Presets that are there for several tasks, and name one only to be complete.
pub(super) const FOR_ANY_TASK: [&str; 2] = ["default", "published"];

/// Whether a configuration file is one of this program's: `preset` is where it begins, and `task` are its own flags.
///
/// # Errors
/// When it is not: which program has its task.
pub(super) fn check_task(file: &Table, preset: &str, task: &Table) -> std::result::Result<(), String> {
    let name = |table: &Table| Some(table.get("task")?.get("name")?.as_str()?.to_string());
    let of_preset = |preset: &str| preset_table(preset).ok().as_ref().and_then(name);
    let by_preset = || file.get("preset")?.as_str().filter(|name| !FOR_ANY_TASK.contains(name)).and_then(of_preset);
    let Some(there) = name(file).or_else(by_preset) else { return Ok(()) };
    let asked = task.get("name").and_then(Value::as_str).map(String::from);
    let Some(here) = asked.clone().or_else(|| of_preset(preset)) else { return Ok(()) };
    // A task that a program has added is in none of the lists.
    let added = |task: &str| tasks::named().iter().any(|named| named.kind == task).then_some(&TRAIN);
    let program = |task: &str| PROGRAMS.iter().find(|program| program.1.contains(&task)).or_else(|| added(task));
    match (program(&here), program(&there)) {
        (Some(own), Some(its)) if own.0 != its.0 => {
            let or = if its.0 == TRAIN.0 { ", without --task" } else { ", or train without --task" };
            Err(format!("its task is {there}; use {} for it{or}", its.0))
        }
        (Some(_), Some(_)) if asked.is_some_and(|asked| asked != there) => {
            Err(format!("its task is {there}, and --task is of kind {here}; leave out one of them"))
        }
        _ => Ok(()),
    }
}

/// A table of the flags that were given.
#[derive(Default)]
struct Flags(Table);

impl Flags {
    fn set(&mut self, key: &str, value: Option<impl Into<Value>>) -> &mut Flags {
        if let Some(value) = value {
            self.0.insert(key.into(), value.into());
        }
        self
    }
}
