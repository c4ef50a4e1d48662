//! The command line: [`tapezoo()`] and its subcommands, and the flags that all training programs share.
//!
//! A flag that is given is one key of the configuration ([`TrainConfig`](crate::train::config::TrainConfig)), laid over
//! the file and the preset; a flag that is not given has no value here at all, and `--help` shows the values of the
//! presets.

mod bar;
mod book;
mod dyck;
mod exchange;
mod exercise;
mod help;
mod inspect;
mod mqar;
mod parity;
mod programs;
mod report;
mod resolve;
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
use resolve::FOR_ANY_TASK;
use run::{profile, run};

use crate::{
    autograd::Kernels,
    error::{Error, Result, printable},
    models::{Eigenvalues, Form},
    ops::check_names,
    tasks::Len,
    tensor::{Cx, DType, Device, Products},
    train::{config::Parts, on_device::Graphs, optimizer::Rule, schedule::Shape},
};
use clap::Args;
use std::{
    io::{self, Write},
    path::PathBuf,
    process::ExitCode,
    thread,
};
use toml::Value;

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
    /// Which mixers to train, separated by commas, or "all"; "list" prints the facts of each, "tree" draws how they
    /// descend from one another (where output is no terminal, as an SVG). The names are under "Models" at the end.
    #[arg(long, value_name = "A,B,..", value_delimiter = ',')]
    models: Option<Vec<String>>,
    /// The numbers to start from; every other flag changes one of them. `tapezoo tasks NAME` prints those of a task.
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
    /// Weight decay, of weight matrices: with adam as a part of the gradient, with adamw beside it.
    #[arg(long, value_name = "X", value_parser = number)]
    weight_decay: Option<f64>,
    /// How much of a target is spread over all classes, from 0 (none) to below 1. A sure answer then keeps a gradient.
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
    /// Gaussian noise on the gradient behind clipping, of variance X / (1 + t)^0.55 after t updates. 0: none [default: 0]
    #[arg(long, value_name = "X", value_parser = number)]
    grad_noise: Option<f64>,
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
    /// The state size of LRU, Mamba and its kin, S4D, LSSL and LMU, the slots of GSA, and the averages of SeqBoat.
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
    /// N-gram heads in any model: what followed the last 1, 2, … N tokens where they were before. 0: none [default: 0]
    #[arg(long, value_name = "N", value_parser = whole)]
    ngram: Option<i64>,
    /// The mixer in the one clean decoder, or the whole model as published, defects included [default: clean]
    #[arg(long, value_name = "NAME", value_parser = ["clean", "published"])]
    variant: Option<String>,
    /// Defects that a published model is built without: diagonal, raw_keys, lookahead, batch_norm, scalar_tokens.
    #[arg(long, value_name = "D,D,..", value_delimiter = ',')]
    without: Option<Vec<String>>,
    /// Rows of the table of learned, sinusoidal or rope positions [default: the longest length used]
    #[arg(long, value_name = "T", value_parser = whole)]
    max_len: Option<i64>,
}

/// The kernels that compute the ops: a flag of every program that runs any.
#[derive(Args, Clone, Debug, Default)]
struct KernelsFlag {
    /// fast: every kernel; plain: none, every op from its formula or plain loops; NAME,…: only these; fast,-NAME,…: all
    /// but these [default: fast]
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
    /// How the mixers are computed: recurrent, parallel, chunked, split, scan, fused; chunked:16 in chunks of 16 steps,
    /// split:2 in 2 parts on idle cores, for long sequences. scan:16 makes Mamba keep a state every 16 steps; of any
    /// other scan the number does nothing. On a CPU chunked runs small heads of most mixers step by step [default: the
    /// fastest of each]
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
    /// The type that operands of matrix products are rounded to on the CPU: f32, not at all; bf16, which may be
    /// faster in wide models [default: f32]
    #[arg(long, value_name = "TYPE")]
    products: Option<Products>,
    #[command(flatten)]
    kernels: KernelsFlag,
    /// Parts that a batch is computed in, on cores without a run; results depend on it, not on the cores; auto: of
    /// about 1024 tokens each, or 2048 of width below 8, and half as many of sLSTM and mLSTM; four at least where
    /// sequences differ in length, 16 at most, and four sequences or more in each [default: what the preset says, or auto]
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

/// The files to leave behind.
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
    ///
    /// On an emulated device 3 steps, and what each kernel asks a GPU for (cuemu/README.md).
    #[arg(long, conflicts_with_all = ["json", "out"])]
    profile: bool,
    /// Write configuration, metrics, weights and table into this directory.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Delete earlier runs in the directory of --out.
    #[arg(long, requires = "out")]
    force: bool,
    /// Go on with the runs in this directory, an earlier --out, as if they had never been interrupted.
    #[arg(long, value_name = "DIR", conflicts_with_all = ["out", "force", "config", "preset", "show", "profile"])]
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
