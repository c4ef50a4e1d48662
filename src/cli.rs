//! The command line: [`tapezoo()`] and its subcommands, and the flags that all training programs share.
//!
//! A flag that is given is one key of the configuration ([`TrainConfig`]), laid over the file and the preset; a flag
//! that is not given has no value here at all, and `--help` shows the values of the presets.

mod dyck;
mod help;
mod inspect;
mod mqar;
mod parity;
mod programs;
mod report;
mod resume;
mod run;
mod sample;
mod shell;
mod state_tracking;
mod sweep;
mod tables;
mod task_flags;
mod train;
mod verify;

pub use programs::{alone, tapezoo};

use help::{Presets, preset_of};
use run::{profile, run};

use crate::{
    autograd::Kernels,
    error::{Error, Result, printable},
    models::{Eigenvalues, Form},
    ops::check_names,
    tasks::Len,
    tensor::{Cx, DType, Device, Products},
    train::{
        config::{Parts, Setting, TrainConfig, flag, preset_table, read, warnings},
        on_device::Graphs,
        optimizer::Rule,
        schedule::Shape,
    },
};
use clap::Args;
use std::{
    io::{self, Write},
    path::PathBuf,
    process::ExitCode,
    thread,
};
use toml::{Table, Value};

/// The flags of every training program.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct TrainArgs {
    #[command(flatten)]
    what: What,
    #[command(flatten)]
    training: Training,
    #[command(flatten)]
    sizes: Sizes,
    #[command(flatten)]
    machine: Machine,
    #[command(flatten)]
    output: Output,
}

/// Mixers, lengths and seeds.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "What is trained")]
struct What {
    /// Which mixers to train, separated by commas, or "all"; "list" prints the facts of each, "tree" an SVG of how they
    /// descend from one another, and --help names them below.
    #[arg(long, value_name = "A,B,..", value_delimiter = ',')]
    models: Option<Vec<String>>,
    /// The numbers to start from; every other flag changes one of them.
    #[arg(long, value_name = "NAME")]
    preset: Option<String>,
    /// A TOML file with numbers to change, under the names of the flags (see config.toml in any run directory).
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The length of the training sequences, or a range, as 3-40: each sequence then has its own.
    #[arg(long, value_name = "T", value_parser = length)]
    train_len: Option<Value>,
    /// Steps over which the longest training length grows from the shortest one. 0: every length from the start.
    #[arg(long, value_name = "N", value_parser = whole)]
    curriculum: Option<i64>,
    /// The lengths to evaluate at, or ranges, separated by commas.
    #[arg(long, value_name = "T,T,..", value_delimiter = ',', value_parser = length)]
    eval_lens: Option<Vec<Value>>,
    /// How many seeds: each model is trained once from each.
    #[arg(long, value_name = "N", value_parser = whole)]
    seeds: Option<i64>,
    /// The first seed, of initial weights and training data.
    #[arg(long, value_name = "S", value_parser = whole)]
    seed: Option<i64>,
}

/// The optimiser and its schedule.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Training")]
struct Training {
    /// Training steps.
    #[arg(long, value_name = "N", value_parser = whole)]
    steps: Option<i64>,
    /// Sequences in a batch.
    #[arg(long, value_name = "B", value_parser = whole)]
    batch: Option<i64>,
    /// The learning rate, at its peak.
    #[arg(long, value_name = "X", value_parser = number)]
    lr: Option<f64>,
    /// The update rule.
    #[arg(long, value_name = "NAME", value_enum)]
    optimizer: Option<Rule>,
    /// Weight decay: of all parameters with adam, of weight matrices with adamw.
    #[arg(long, value_name = "X", value_parser = number)]
    weight_decay: Option<f64>,
    /// How much of a target is spread over all classes, from 0 (none) to below 1: what is known for sure still teaches.
    #[arg(long, value_name = "X", value_parser = number)]
    label_smoothing: Option<f64>,
    /// How the learning rate goes on after the warm-up.
    #[arg(long, value_name = "NAME", value_enum)]
    schedule: Option<Shape>,
    /// Steps over which the learning rate rises from zero.
    #[arg(long, value_name = "N", value_parser = whole)]
    warmup: Option<i64>,
    /// The largest global norm of the gradient; larger ones are scaled down. 0: none.
    #[arg(long, value_name = "X", value_parser = number)]
    clip: Option<f64>,
    /// Evaluate every so many steps, for metrics.jsonl. 0: only at the end.
    #[arg(long, value_name = "N", value_parser = whole)]
    eval_every: Option<i64>,
    /// With --out: save where each run stands every so many seconds. 0: only when it is interrupted.
    #[arg(long, value_name = "SECONDS", value_parser = number)]
    checkpoint_every: Option<f64>,
}

/// Keys of `[model]`.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Sizes of the models")]
struct Sizes {
    /// Blocks.
    #[arg(long, value_name = "N", value_parser = whole)]
    layers: Option<i64>,
    /// The width of the residual stream.
    #[arg(long, value_name = "D", value_parser = whole)]
    width: Option<i64>,
    /// Heads of the mixers that have them.
    #[arg(long, value_name = "H", value_parser = whole)]
    heads: Option<i64>,
    /// The width of a head.
    #[arg(long, value_name = "K", value_parser = whole)]
    head_dim: Option<i64>,
    /// The width of the MLP in each block. 0: no MLP.
    #[arg(long, value_name = "M", value_parser = whole)]
    mlp: Option<i64>,
    /// The state size of LRU, Mamba and its kin, S4D, LSSL and LMU, and the slots of GSA.
    #[arg(long, value_name = "N", value_parser = whole)]
    state: Option<i64>,
    /// The width of the causal convolutions of DeltaNet, Mamba and their kin. 0: none.
    #[arg(long, value_name = "N", value_parser = whole)]
    conv: Option<i64>,
    /// How many times wider than the residual stream Mamba is inside.
    #[arg(long, value_name = "N", value_parser = whole)]
    expand: Option<i64>,
    /// The rank of Mamba's step size. 0: D / 16, rounded up.
    #[arg(long, value_name = "R", value_parser = whole)]
    dt_rank: Option<i64>,
    /// How many Householder matrices a transition of delta_product is made of [default: 2]
    #[arg(long, value_name = "N", value_parser = whole)]
    householders: Option<i64>,
    /// The range of the transitions' eigenvalues: 0..1, or -1..1 in the delta rules, mamba and mamba2 [default: 0..1]
    #[arg(long, value_name = "RANGE", allow_hyphen_values = true)]
    eigenvalues: Option<Eigenvalues>,
    /// How positions are told apart: none, learned, sinusoidal or rope.
    #[arg(long, value_name = "NAME")]
    positions: Option<String>,
    /// The mixer in the one clean decoder, or the whole model as published, defects included [default: clean]
    #[arg(long, value_name = "NAME", value_parser = ["clean", "published"])]
    variant: Option<String>,
    /// Defects that a published model is built without: diagonal, raw_keys, lookahead, batch_norm, scalar_tokens.
    #[arg(long, value_name = "D,D,..", value_delimiter = ',')]
    without: Option<Vec<String>>,
    /// Rows of a learned table of positions [default: the longest length used]
    #[arg(long, value_name = "T", value_parser = whole)]
    max_len: Option<i64>,
}

/// What computes the ops, of every program that runs any.
#[derive(Args, Clone, Debug, Default)]
struct KernelsFlag {
    /// Which ops run by their kernels: fast, all; plain, none, but from what defines each op; NAME,… these alone;
    /// fast,-NAME,… all but these. To see what a kernel buys, or to check it [default: fast]
    #[arg(long, value_name = "WHICH", allow_hyphen_values = true, value_parser = known_kernels)]
    kernels: Option<Kernels>,
}

/// A choice of kernels, all of ops that there are.
fn known_kernels(text: &str) -> std::result::Result<Kernels, String> {
    let kernels = text.parse()?;
    check_names(&kernels).map(|()| kernels)
}

/// How and where it is computed.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "The machine")]
struct Machine {
    /// How the mixers are computed: recurrent, parallel, chunked, scan, fused; chunked:16 in chunks of 16 steps, scan:16 in
    /// pieces of 16 [default: the fastest of each]
    #[arg(long, value_name = "FORM")]
    form: Option<Form>,
    /// Where to compute: auto, cpu, cuda, cuda:N; emulated runs CUDA kernels on the CPU, to test and debug them.
    #[arg(long, value_name = "NAME", value_parser = device_name)]
    device: Option<String>,
    /// Record a training step as a CUDA graph, and replay it: auto, on, off. Results do not depend on it.
    #[arg(long, value_name = "WHEN")]
    cuda_graph: Option<Graphs>,
    /// The precision: f32 to train, f64 to check; bf16 to train on a CUDA device, with f32 weights behind it.
    #[arg(long, value_name = "TYPE")]
    dtype: Option<DType>,
    /// What operands of matrix products are rounded to on the CPU: f32, not at all; bf16, faster [default: f32]
    #[arg(long, value_name = "TYPE")]
    products: Option<Products>,
    #[command(flatten)]
    kernels: KernelsFlag,
    /// Parts that a batch is computed in, on cores without a run; results depend on it, not on the cores; auto: of about
    /// 1024 tokens each, or 2048 of width below 8, and half as many of sLSTM and mLSTM [default: what the preset says, or
    /// auto]
    #[arg(long, value_name = "N")]
    micro_batches: Option<Parts>,
    /// The old name of --micro-batches.
    #[arg(long, value_name = "N", hide = true, conflicts_with = "micro_batches")]
    shards: Option<Parts>,
    /// How many runs go side by side; results do not depend on it [default: the number of cores]
    #[arg(long, value_name = "N", value_parser = whole)]
    jobs: Option<i64>,
    /// The old name of --jobs.
    #[arg(long, value_name = "N", value_parser = whole, hide = true, conflicts_with = "jobs")]
    threads: Option<i64>,
}

impl Machine {
    /// How many runs go side by side, with the flag that says so.
    fn jobs(&self) -> (&'static str, Option<i64>) {
        self.threads.map_or(("--jobs", self.jobs), |n| ("--threads", Some(n)))
    }
}

/// What is left behind.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Output")]
struct Output {
    /// Print N training sequences with their targets, and train nothing.
    #[arg(long, value_name = "N", value_parser = whole, conflicts_with_all = ["json", "profile", "out"])]
    show: Option<i64>,
    /// Print one JSON object instead of the table.
    #[arg(long)]
    json: bool,
    /// Instead of training, take 50 steps of each model and print where their time goes, op by op.
    #[arg(long, conflicts_with_all = ["json", "out"])]
    profile: bool,
    /// Write configuration, metrics, weights and table into this directory.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Delete earlier runs in the directory of --out.
    #[arg(long, requires = "out")]
    force: bool,
    /// Go on with the runs in this directory, an earlier --out, as if they had never been interrupted.
    #[arg(long, value_name = "DIR", conflicts_with_all = ["out", "config", "preset", "show", "profile"])]
    resume: Option<PathBuf>,
}

/// A whole number; whether it is large enough is for the configuration to say.
///
/// # Errors
/// When the text is anything else.
fn whole(text: &str) -> std::result::Result<i64, String> {
    let n: i64 = text.parse().map_err(|_| "expected a whole number".to_string())?;
    if n < 0 { Err("expected a whole number, not a negative one".into()) } else { Ok(n) }
}

/// A length, `32`, or a range of lengths, `3-40`.
fn length(text: &str) -> std::result::Result<Value, String> {
    match text.split_once('-') {
        Some((min, _)) if !min.is_empty() => text.parse().map(|len: Len| len.to_string().into()),
        _ => whole(text).map(Value::from),
    }
}

/// The name of a device; a name, because `auto` is more than the device that it stands for.
///
/// # Errors
/// When there is no such name.
pub fn device_name(text: &str) -> std::result::Result<String, String> {
    if text != "auto" {
        text.parse::<Device>()?;
    }
    Ok(text.into())
}

/// See that the device is there, and has such products, before anything is written. What `auto` chose is said to
/// whoever asked for it, and where it is not the CPU.
///
/// # Errors
/// When it is not.
fn open_device(asked: Option<&str>, device: Device, products: Products) -> Result<()> {
    let auto = asked == Some("auto") || (asked.is_none() && device == Device::auto().0);
    let says = asked.is_some() || device != Device::Cpu;
    if auto && says {
        let _ = writeln!(io::stderr(), "device {}", Device::auto().1);
    }
    Cx::open_with(device, products).map(drop).map_err(Error::Device)
}

fn number(text: &str) -> std::result::Result<f64, String> {
    text.parse().ok().filter(|x: &f64| x.is_finite()).ok_or("expected a finite number".into())
}

impl TrainArgs {
    /// Whether the preset is this one of several scales of a comparison, as "paper".
    fn scale<'a>(&self, scales: &[&'a str]) -> Option<&'a str> {
        let asked = self.what.preset.as_deref();
        scales.iter().copied().find(|&scale| asked == Some(scale))
    }

    /// The preset to start from.
    fn set_preset(&mut self, name: String) {
        self.what.preset = Some(name);
    }

    /// The configuration that these flags, the file they name and the preset make; `preset` is the one where neither
    /// names any, and `task` are the task's own flags.
    ///
    /// # Errors
    /// When a value cannot be.
    fn resolve(&self, preset: &str, task: Table) -> Result<TrainConfig> {
        let mut flags = self.table();
        let file = self.what.config.as_deref().map(|path| Ok((path, read(path)?))).transpose()?;
        if let Some((path, file)) = &file {
            check_task(file, preset, &task)
                .map_err(|what| Error::config(format!("--config {}: {what}", path.display())))?;
        }
        flags.insert("task".into(), task.into());
        let typed = flags.clone();
        let made = TrainConfig::from_settings_and_data(preset, file, flags);
        let (cfg, mut settings) = made.map_err(|e| self.in_words_of_flags(e, &typed))?;
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

    /// An error that begins with the key of a flag that was given begins with that flag.
    fn in_words_of_flags(&self, e: Error, flags: &Table) -> Error {
        let Error::Config(what) = e else { return e };
        let bare = what.trim_start_matches("model.").trim_start_matches("task.");
        let tables = [Some(flags), part(flags, "model"), part(flags, "task")];
        let begins = |key: &String| bare.strip_prefix(key.as_str()).filter(|rest| rest.starts_with([' ', ':']));
        let found = tables.into_iter().flatten().flat_map(Table::keys).find_map(|key| Some((key, begins(key)?)));
        let Some((key, rest)) = found else { return Error::Config(what) };
        let flag = if key == "micro_batches" && self.machine.shards.is_some() { "--shards".into() } else { flag(key) };
        Error::Config(format!("{flag}{}", rest.strip_prefix(" =").unwrap_or(rest)))
    }

    /// Take out the flags that are not read because nothing is trained, and say which these are. Lengths are read, for the
    /// task is checked against all of them.
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
        let have = if unread.len() == 1 { "has" } else { "have" };
        (!unread.is_empty()).then(|| format!("{} {have} no effect beside {instead}", unread.join(", ")))
    }

    /// That a listing, `--models` with this name, reads no other flag, if one is given.
    fn beside_a_listing(&self, what: &str, task: &Table) -> Option<String> {
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
        let have = if unread.len() == 1 { "has" } else { "have" };
        (!unread.is_empty()).then(|| format!("{} {have} no effect beside --models {what}", unread.join(", ")))
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
    fn table(&self) -> Table {
        let TrainArgs { what, training, sizes, machine, .. } = self.clone();
        let mut top = Flags::default();
        top.set("models", what.models).set("preset", what.preset).set("train_len", what.train_len);
        top.set("curriculum", what.curriculum);
        top.set("eval_lens", what.eval_lens).set("seeds", what.seeds).set("seed", what.seed);

        top.set("steps", training.steps).set("batch", training.batch).set("lr", training.lr);
        top.set("optimizer", training.optimizer.map(|x| x.to_string())).set("weight_decay", training.weight_decay);
        top.set("label_smoothing", training.label_smoothing);
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
        model.set("variant", sizes.variant).set("without", sizes.without);
        top.set("model", Some(model.0)).0.clone()
    }
}

/// A table in a table.
fn part<'a>(table: &'a Table, name: &str) -> Option<&'a Table> {
    table.get(name).and_then(Value::as_table)
}

/// The programs, and the tasks that each trains.
const PROGRAMS: [(&str, &[&str]); 5] = [
    ("parity", &["parity"]),
    ("dyck", &["dyck"]),
    ("mqar", &["mqar"]),
    ("state_tracking", &["group", "arithmetic"]),
    ("train", &["text"]),
];

/// Presets that are there for several tasks, and name one only to be complete.
const FOR_ANY_TASK: [&str; 2] = ["default", "published"];

/// Whether a configuration file is one of this program's: `preset` is where it begins, and `task` are its own flags.
///
/// # Errors
/// When it is not: which program has its task.
fn check_task(file: &Table, preset: &str, task: &Table) -> std::result::Result<(), String> {
    let name = |table: &Table| Some(table.get("task")?.get("name")?.as_str()?.to_string());
    let of_preset = |preset: &str| preset_table(preset).ok().as_ref().and_then(name);
    let by_preset = || file.get("preset")?.as_str().filter(|name| !FOR_ANY_TASK.contains(name)).and_then(of_preset);
    let Some(there) = name(file).or_else(by_preset) else { return Ok(()) };
    let asked = task.get("name").and_then(Value::as_str).map(String::from);
    let Some(here) = asked.clone().or_else(|| of_preset(preset)) else { return Ok(()) };
    let program = |task: &str| PROGRAMS.iter().find(|program| program.1.contains(&task));
    match (program(&here), program(&there)) {
        (Some(own), Some(its)) if own.0 != its.0 => Err(format!("its task is {there}; use {} for it", its.0)),
        (Some(_), Some(_)) if asked.is_some_and(|asked| asked != there) => {
            Err(format!("its task is {there}, and --task is of kind {here}; leave out one of them"))
        }
        _ => Ok(()),
    }
}

/// How many runs go side by side: what the flag of this name says, or the number of cores.
///
/// # Errors
/// When it says 0.
fn threads(flag: &str, n: Option<i64>) -> Result<usize> {
    match n {
        Some(0) => Err(Error::Config(format!("{flag} 0: expected at least 1"))),
        Some(n) => Ok(usize::try_from(n).unwrap_or(usize::MAX)),
        None => Ok(thread::available_parallelism().map_or(1, usize::from)),
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

/// Print to standard output, without what would steer a terminal. A reader that has seen enough (`| head`) is no error.
///
/// # Errors
/// When it cannot be written.
fn print(text: String) -> Result<()> {
    match io::stdout().write_all(printable(&text).as_bytes()) {
        Err(e) if e.kind() != io::ErrorKind::BrokenPipe => Err(Error::io("standard output")(e)),
        _ => Ok(()),
    }
}

/// Say what went wrong, and the status to leave with.
fn fail(e: &Error, status: u8) -> ExitCode {
    // Nobody may be there to read it; the status says it too.
    let _ = writeln!(io::stderr(), "error: {}", e.shown());
    ExitCode::from(status)
}

/// Say something on standard error that changes nothing: a line that begins with `kind`, as "warning" or "note".
fn say(kind: &str, what: &str) {
    // Nobody may be there to read it.
    let _ = writeln!(io::stderr(), "{kind}: {}", Error::config(what).shown());
}
