//! The flags that all training programs share, and what such a program does.
//!
//! A flag that is given is one key of the configuration ([`TrainConfig`]), laid over the file and the preset; a flag
//! that is not given has no value here at all, and `--help` shows the values of the presets.

use crate::{
    error::{Error, Result},
    models::Form,
    report::table,
    tensor::{DType, Device},
    train::{
        config::{PRESETS, TrainConfig, preset_table},
        jobs::run_all,
        optimizer::Rule,
        rundir::RunDir,
        schedule::Shape,
    },
};
use clap::{Args, CommandFactory, FromArgMatches};
use std::{path::PathBuf, process::ExitCode, thread};
use toml::{Table, Value};

/// The flags.
#[derive(Args, Clone, Debug, Default)]
pub struct TrainArgs {
    /// Which mixers to train, separated by commas, or "all".
    #[arg(long, value_name = "A,B,..", value_delimiter = ',', help_heading = "What is trained")]
    models: Option<Vec<String>>,
    /// The numbers to start from; every other flag changes one of them.
    #[arg(long, value_name = "NAME", value_parser = ["default", "published"], help_heading = "What is trained")]
    preset: Option<String>,
    /// A TOML file with numbers to change, under the names of the flags (see config.toml in any run directory).
    #[arg(long, value_name = "FILE", help_heading = "What is trained")]
    config: Option<PathBuf>,
    /// The length of the training sequences.
    #[arg(long, value_name = "T", value_parser = whole, allow_hyphen_values = true, help_heading = "What is trained")]
    train_len: Option<i64>,
    /// The lengths to evaluate at, separated by commas.
    #[arg(long, value_name = "T,T,..", value_delimiter = ',', value_parser = whole, allow_hyphen_values = true, help_heading = "What is trained")]
    eval_lens: Option<Vec<i64>>,
    /// How many seeds: each model is trained once from each.
    #[arg(long, value_name = "N", value_parser = whole, allow_hyphen_values = true, help_heading = "What is trained")]
    seeds: Option<i64>,
    /// The first seed, of initial weights and training data.
    #[arg(long, value_name = "S", value_parser = whole, allow_hyphen_values = true, help_heading = "What is trained")]
    seed: Option<i64>,

    /// Training steps.
    #[arg(long, value_name = "N", value_parser = whole, allow_hyphen_values = true, help_heading = "Training")]
    steps: Option<i64>,
    /// Sequences in a batch.
    #[arg(long, value_name = "B", value_parser = whole, allow_hyphen_values = true, help_heading = "Training")]
    batch: Option<i64>,
    /// The learning rate, at its peak.
    #[arg(long, value_name = "X", value_parser = number, allow_hyphen_values = true, help_heading = "Training")]
    lr: Option<f64>,
    /// The update rule.
    #[arg(long, value_name = "NAME", value_enum, help_heading = "Training")]
    optimizer: Option<Rule>,
    /// Weight decay: of all parameters with adam, of weight matrices with adamw.
    #[arg(long, value_name = "X", value_parser = number, allow_hyphen_values = true, help_heading = "Training")]
    weight_decay: Option<f64>,
    /// How the learning rate goes on after the warm-up.
    #[arg(long, value_name = "NAME", value_enum, help_heading = "Training")]
    schedule: Option<Shape>,
    /// Steps over which the learning rate rises from zero.
    #[arg(long, value_name = "N", value_parser = whole, allow_hyphen_values = true, help_heading = "Training")]
    warmup: Option<i64>,
    /// The largest global norm of the gradient; larger ones are scaled down. 0: none.
    #[arg(long, value_name = "X", value_parser = number, allow_hyphen_values = true, help_heading = "Training")]
    clip: Option<f64>,
    /// Evaluate every so many steps, for metrics.jsonl. 0: only at the end.
    #[arg(long, value_name = "N", value_parser = whole, allow_hyphen_values = true, help_heading = "Training")]
    eval_every: Option<i64>,

    /// Blocks.
    #[arg(long, value_name = "N", value_parser = whole, allow_hyphen_values = true, help_heading = "Sizes of the models")]
    layers: Option<i64>,
    /// The width of the residual stream.
    #[arg(long, value_name = "D", value_parser = whole, allow_hyphen_values = true, help_heading = "Sizes of the models")]
    width: Option<i64>,
    /// Heads of the mixers that have them.
    #[arg(long, value_name = "H", value_parser = whole, allow_hyphen_values = true, help_heading = "Sizes of the models")]
    heads: Option<i64>,
    /// The width of a head.
    #[arg(long, value_name = "K", value_parser = whole, allow_hyphen_values = true, help_heading = "Sizes of the models")]
    head_dim: Option<i64>,
    /// The width of the MLP in each block. 0: no MLP.
    #[arg(long, value_name = "M", value_parser = whole, allow_hyphen_values = true, help_heading = "Sizes of the models")]
    mlp: Option<i64>,
    /// The state size of LRU and Mamba.
    #[arg(long, value_name = "N", value_parser = whole, allow_hyphen_values = true, help_heading = "Sizes of the models")]
    state: Option<i64>,
    /// The width of Mamba's convolution.
    #[arg(long, value_name = "N", value_parser = whole, allow_hyphen_values = true, help_heading = "Sizes of the models")]
    conv: Option<i64>,
    /// How many times wider than the residual stream Mamba is inside.
    #[arg(long, value_name = "N", value_parser = whole, allow_hyphen_values = true, help_heading = "Sizes of the models")]
    expand: Option<i64>,
    /// The rank of Mamba's step size.
    #[arg(long, value_name = "R", value_parser = whole, allow_hyphen_values = true, help_heading = "Sizes of the models")]
    dt_rank: Option<i64>,
    /// How positions are told apart: none, learned, sinusoidal or rope.
    #[arg(long, value_name = "NAME", help_heading = "Sizes of the models")]
    positions: Option<String>,
    /// Rows of a learned table of positions [default: the longest length used]
    #[arg(long, value_name = "T", value_parser = whole, allow_hyphen_values = true, help_heading = "Sizes of the models")]
    max_len: Option<i64>,

    /// How the mixers are computed: recurrent, parallel, chunked, chunked:16, fused [default: the fastest of each]
    #[arg(long, value_name = "FORM", help_heading = "The machine")]
    form: Option<Form>,
    /// Where to compute: auto or cpu.
    #[arg(long, value_name = "NAME", help_heading = "The machine")]
    device: Option<Device>,
    /// The precision: f32 to train, f64 to check.
    #[arg(long, value_name = "TYPE", help_heading = "The machine")]
    dtype: Option<DType>,
    /// How many runs go side by side; results do not depend on it [default: the number of cores]
    #[arg(long, value_name = "N", value_parser = whole, allow_hyphen_values = true, help_heading = "The machine")]
    threads: Option<i64>,

    /// Print one JSON object instead of the table.
    #[arg(long, help_heading = "Output")]
    json: bool,
    /// Write configuration, metrics, weights and table into this directory.
    #[arg(long, value_name = "DIR", help_heading = "Output")]
    out: Option<PathBuf>,
    /// Delete earlier runs in the directory of --out.
    #[arg(long, requires = "out", help_heading = "Output")]
    force: bool,
}

/// A whole number; whether it is large enough is for the configuration to say.
///
/// # Errors
/// When the text is anything else.
pub fn whole(text: &str) -> std::result::Result<i64, String> {
    let n: i64 = text.parse().map_err(|_| "expected a whole number".to_string())?;
    if n < 0 { Err("expected a whole number, not a negative one".into()) } else { Ok(n) }
}

fn number(text: &str) -> std::result::Result<f64, String> {
    text.parse().ok().filter(|x: &f64| x.is_finite()).ok_or("expected a finite number".into())
}

impl TrainArgs {
    /// The configuration that these flags, the file they name and the preset make; `task` are the task's own flags.
    ///
    /// # Errors
    /// When a value cannot be.
    pub fn resolve(&self, task: Table) -> Result<TrainConfig> {
        let mut flags = self.table();
        flags.insert("task".into(), task.into());
        TrainConfig::load(self.config.as_deref(), flags)
    }

    /// The flags given, under their names in the configuration.
    fn table(&self) -> Table {
        let mut top = Flags::default();
        top.set("models", self.models.clone()).set("preset", self.preset.clone());
        top.set("train_len", self.train_len).set("eval_lens", self.eval_lens.clone());
        top.set("seeds", self.seeds).set("seed", self.seed).set("steps", self.steps).set("batch", self.batch);
        top.set("lr", self.lr).set("optimizer", self.optimizer.map(|x| x.to_string()));
        top.set("weight_decay", self.weight_decay).set("schedule", self.schedule.map(|x| x.to_string()));
        top.set("warmup", self.warmup).set("clip", self.clip).set("eval_every", self.eval_every);
        top.set("form", self.form.as_ref().map(Form::to_string)).set("device", self.device.map(|x| x.to_string()));
        top.set("dtype", self.dtype.map(|x| x.to_string())).set("max_len", self.max_len);

        let mut model = Flags::default();
        model.set("layers", self.layers).set("width", self.width).set("heads", self.heads);
        model.set("head_dim", self.head_dim).set("mlp", self.mlp).set("state", self.state).set("conv", self.conv);
        model.set("expand", self.expand).set("dt_rank", self.dt_rank).set("positions", self.positions.clone());
        top.0.insert("model".into(), model.0.into());
        top.0
    }

    fn threads(&self) -> Result<usize> {
        match self.threads {
            Some(0) => Err(Error::Config("--threads 0: expected at least 1".into())),
            Some(n) => Ok(usize::try_from(n).unwrap_or(usize::MAX)),
            None => Ok(thread::available_parallelism().map_or(1, usize::from)),
        }
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

/// Read the command line, with the presets' values in `--help`; leave with status 2 if it cannot be.
pub fn parse<P: CommandFactory + FromArgMatches>() -> P {
    let mut command = P::command();
    let ids: Vec<String> = command.get_arguments().map(|a| a.get_id().to_string()).collect();
    for id in ids {
        command = command.mut_arg(&id, |arg| {
            let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
            preset_values(&id).map_or(arg.clone(), |values| arg.help(format!("{help} [{values}]")))
        });
    }
    P::from_arg_matches(&command.get_matches()).unwrap_or_else(|e| e.exit())
}

/// "default: 2000, published: 40000"
fn preset_values(key: &str) -> Option<String> {
    let value = |(name, _): (&str, &str)| {
        let table = preset_table(name).ok()?;
        let value = table.get(key).or_else(|| table.get("model")?.get(key))?;
        Some(match (key, value) {
            ("preset", _) => return None,
            (_, Value::Array(list)) => format!("{name}: {}", list.iter().map(plain).collect::<Vec<_>>().join(",")),
            (_, other) => format!("{name}: {}", plain(other)),
        })
    };
    let [a, b] = PRESETS.map(value);
    let (a, b) = (a?, b?);
    let same = a.split_once(' ')?.1 == b.split_once(' ')?.1;
    Some(if same { a } else { format!("{a}, {b}") })
}

fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), String::from)
}

/// What a training program does with its command line: check everything, train, print.
///
/// Status 0: all went well; 1: a run failed, or a file could not be written; 2: a value cannot be.
pub fn run(args: &TrainArgs, task: Table) -> ExitCode {
    let prepared = args.resolve(task).and_then(|cfg| {
        let threads = args.threads()?;
        let out = args.out.as_deref().map(|path| RunDir::create(path, &cfg, args.force)).transpose()?;
        Ok((cfg, threads, out))
    });
    let (cfg, threads, out) = match prepared {
        Ok(prepared) => prepared,
        Err(e) => return fail(&e, 2),
    };
    let reports = match run_all(&cfg, threads, out.as_ref(), true) {
        Ok(reports) => reports,
        Err(e) => return fail(&e, 1),
    };
    match if args.json { table::json(&reports) } else { Ok(table::text(&cfg, &reports)) } {
        Ok(text) => print!("{text}"),
        Err(e) => return fail(&e, 1),
    }
    let failed: Vec<_> = reports.iter().filter_map(|r| Some((r, r.error.as_ref()?))).collect();
    for (r, error) in &failed {
        eprintln!("error: {} seed {}: {error}", r.model, r.seed);
    }
    ExitCode::from(u8::from(!failed.is_empty()))
}

fn fail(e: &Error, status: u8) -> ExitCode {
    eprintln!("error: {e}");
    ExitCode::from(status)
}
