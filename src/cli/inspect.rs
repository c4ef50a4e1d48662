//! `tapezoo inspect`: a page on which a model is stepped through, token by token.

use super::{KernelsFlag, bar::with_bar, fail, help::glance, print, say};
use crate::{
    error::{Error, Result, contained},
    inspect::{
        Inspection, beside,
        input::{self, Input},
        same_task,
        source::{self, Source},
    },
    models,
    train::{
        capacity,
        config::{TrainConfig, task_of},
        rundir,
    },
};
use clap::{Command, CommandFactory, Parser};
use indicatif::ProgressBar;
use std::{
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
};

/// Run a model over one sequence and write a page to step through: states, gates, eigenvalues, equations
///
/// The page shows, at every token, what the mixer carries, what it writes and erases, its gates over time, the
/// eigenvalues of its transition, and its equations with this step's numbers filled in. It is one file that needs
/// nothing but a browser. Without --checkpoint a small model is first trained for --steps steps, so that there is
/// something to see; the default takes seconds.
#[derive(Parser)]
#[command(name = "inspect", version = crate::stamp::version(), after_help = EXAMPLES)]
pub(super) struct Inspect {
    /// A mixer to train here, and settings if any: MIXER or MIXER:key=value,key=value, the keys as in config.toml of a
    /// run directory, those of its table 'model' or at its top [default: delta_net]
    #[arg(long, value_name = "SPEC", conflicts_with = "checkpoint")]
    model: Option<String>,
    /// A run that a training program left with --out: DIR, or DIR/MODEL-seedS where it holds several
    #[arg(long, value_name = "RUN_DIR")]
    checkpoint: Option<PathBuf>,
    /// A second model on the same sequence, side by side: a SPEC as of --model, or a RUN_DIR as of --checkpoint
    #[arg(long, value_name = "SPEC|RUN_DIR")]
    compare: Option<String>,
    /// The task: parity, dyck, mqar, disjoint, text, icll, window_parity, delayed_match, s3, s4, s5, a5, z60,
    /// a4xz5, last_parity, modular_arithmetic or modular_arithmetic_with_brackets; that of the run with --checkpoint [default: parity]
    #[arg(long, value_name = "NAME", conflicts_with = "checkpoint")]
    task: Option<String>,
    /// Text files to learn, byte by byte; the task is then text
    #[arg(long, value_name = "FILE", num_args = 1.., conflicts_with_all = ["checkpoint", "task"])]
    text: Option<Vec<String>>,
    /// The sequence, as the task writes its tokens: 1011, or "(12) (123) e" [default: one drawn from the task]
    #[arg(long, value_name = "TEXT")]
    input: Option<String>,
    /// The length of the sequence drawn [default: the longest in training]
    #[arg(long, value_name = "T", conflicts_with = "input")]
    len: Option<usize>,
    /// Training steps of --model; 0: random weights [default: 400]
    #[arg(long, value_name = "N", conflicts_with = "checkpoint")]
    steps: Option<usize>,
    /// The seed of weights, training data and the sequence drawn [default: 0; 1 for the weights of an LMU]
    #[arg(long, value_name = "S")]
    seed: Option<u64>,
    /// The page
    #[arg(long, value_name = "FILE", default_value = "inspect.html")]
    out: PathBuf,
    /// Write the data beside the page as well: FILE.json, and all tensors in FILE.safetensors
    #[arg(long)]
    json: bool,
    /// Show the tape of one training step as well: ops, shapes, bytes and times, on the page and as FILE.dot
    #[arg(long)]
    graph: bool,
    #[command(flatten)]
    switch: KernelsFlag,
}

/// The mixer where nobody names one.
const MIXER: &str = "delta_net";

/// Training steps where nobody says how many.
const STEPS: usize = 400;

const EXAMPLES: &str = "\
Examples:
  inspect                                          a DeltaNet on parity
  inspect --model lstm --input 11010011            on a sequence of your own
  inspect --model delta_net --compare delta_net:eigenvalues=-1..1
                                                   why parity needs negative ones
  inspect --model gpt --task mqar --steps 1500     attention looks keys up
  inspect --model delta_product:householders=2,eigenvalues=-1..1 --task s3 --steps 5000
  parity --models lru --out runs/lru; inspect --checkpoint runs/lru/lru-seed0 --json

`parity --models list` prints the mixers that --model takes; docs/mixers.md walks through the pages of some.

Exit status: 0 when the page is written, 1 when it cannot be written, 2 when a value cannot be.";

/// The lines of `-h` about its flags.
const FIRST: [(&str, &str); 13] = [
    ("model", "A mixer to train: MIXER or MIXER:key=value,.. [default: delta_net]"),
    ("checkpoint", "A run that was left with --out, instead: DIR or DIR/MODEL-seedS"),
    ("compare", "A second model on the same sequence, side by side"),
    ("task", "What is learned; `tapezoo tasks` lists them [default: parity]"),
    ("text", "Text files of your own to learn, byte by byte"),
    ("input", "The sequence: 1011, or \"(12) (123) e\" [default: one is drawn]"),
    ("len", "The length of the sequence drawn"),
    ("steps", "Training steps; 0: random weights [default: 400]"),
    ("seed", "The seed of weights, data and the sequence [default: 0]"),
    ("out", "The page"),
    ("json", "Write the data beside the page as well"),
    ("graph", "Show the tape of one training step as well"),
    ("kernels", "Which ops run by their kernels [default: fast]"),
];

/// The command line of `inspect`, with all mixers in `--help`.
pub(super) fn command() -> Command {
    let examples: Vec<&str> = EXAMPLES.lines().take(6).collect();
    let command = glance(Inspect::command(), &FIRST, &examples.join("\n"));
    command.after_long_help(format!("{EXAMPLES}\n\nMixers: {}.", models::names().join(", ")))
}

/// Status 0: written; 1: it cannot be written; 2: a value cannot be.
pub(super) fn run(args: &Inspect) -> ExitCode {
    let inspection = match with_bar("{msg} {wide_bar} {pos}/{len} {eta}", |bar| contained(|| inspect(args, bar))) {
        Ok(inspection) => inspection,
        Err(e) => return fail(&e, 2),
    };
    let written = inspection.write(&args.out, args.json).and_then(|files| {
        let names: Vec<String> = files.iter().map(|f| f.display().to_string()).collect();
        let about: Vec<String> = inspection.runs.iter().map(|(s, _)| format!("{}: {}\n", s.name, s.about)).collect();
        print(format!("{}{}\n", about.concat(), names.join("\n")))
    });
    written.map_or_else(|e| fail(&e, 1), |()| ExitCode::SUCCESS)
}

fn inspect(args: &Inspect, bar: &ProgressBar) -> Result<Inspection> {
    // All that can be refused is, before anything is trained.
    check_out(args)?;
    let mut models = vec![match &args.checkpoint {
        Some(dir) => Subject::There(Box::new(source::checkpoint_for(dir, input::LONGEST)?)),
        None => planned(args, args.model.as_deref().unwrap_or(MIXER))?,
    }];
    let first = models[0].config();
    let task = &*first.task;
    let longest = task.ends(first.train_len).map_or(first.train_len.max, |ends| ends.1);
    let input = match &args.input {
        Some(text) => Input::read(task, text)?,
        None => Input::draw(task, args.len.unwrap_or(longest), args.seed.unwrap_or(0))?,
    };
    if let Some(other) = &args.compare {
        models.push(second(args, other)?);
    }
    if let Some(kernels) = &args.switch.kernels {
        models.iter_mut().for_each(|model| model.config_mut().kernels = kernels.clone());
    }
    for model in &models {
        let config = model.config();
        source::check(model.name(), config, input.tokens.len())?;
        same_task(model.name(), &config.task, &models[0].config().task)?;
    }
    idle(args).iter().chain(models.iter().flat_map(Subject::doubts)).for_each(|what| say("warning", what));
    let steps = args.steps.unwrap_or(STEPS);
    let trained = models.iter().filter(|model| steps > 0 && matches!(model, Subject::ToTrain(..)));
    if let Some(cost) = capacity::cost("this", trained.map(Subject::config))? {
        say("note", &cost);
    }
    let sources: Result<Vec<Source>> = models.into_iter().map(|m| m.source(steps, bar)).collect();
    Inspection::new(sources?, input, args.graph, bar)
}

/// Flags that do nothing beside others.
fn idle(args: &Inspect) -> Vec<String> {
    let mut idle = Vec::new();
    if let (Some(seed), Some(_), Some(_)) = (args.seed, &args.checkpoint, &args.input) {
        idle.push(format!("--seed {seed} has no effect beside --checkpoint and --input: nothing is drawn"));
    }
    let trained = || args.model.as_deref().unwrap_or(MIXER).to_string();
    let first = args.checkpoint.as_ref().map_or_else(trained, |dir| dir.display().to_string());
    if let Some(second) = args.compare.as_ref().filter(|second| **second == first) {
        idle.push(format!("--compare {second} is the same model again"));
    }
    idle
}

/// The model to look at: a trained one, or one to train first.
enum Subject {
    There(Box<Source>),
    /// How it was asked for, its configuration, and what of that has no effect.
    ToTrain(String, Box<TrainConfig>, Vec<String>),
}

impl Subject {
    fn config(&self) -> &TrainConfig {
        match self {
            Subject::There(source) => &source.config,
            Subject::ToTrain(_, config, _) => config,
        }
    }

    fn config_mut(&mut self) -> &mut TrainConfig {
        match self {
            Subject::There(source) => &mut source.config,
            Subject::ToTrain(_, config, _) => config,
        }
    }

    fn name(&self) -> &str {
        match self {
            Subject::There(source) => &source.name,
            Subject::ToTrain(spec, ..) => spec,
        }
    }

    /// Doubts about the model, to be printed before anything is shown.
    fn doubts(&self) -> &[String] {
        match self {
            Subject::There(source) => &source.doubts,
            Subject::ToTrain(_, _, warnings) => warnings,
        }
    }

    fn source(self, steps: usize, bar: &ProgressBar) -> Result<Source> {
        match self {
            Subject::There(source) => Ok(*source),
            Subject::ToTrain(spec, config, _) => source::train(&spec, *config, steps, bar),
        }
    }
}

/// The model to compare with: a mixer by name, or else a directory.
fn second(args: &Inspect, other: &str) -> Result<Subject> {
    let mixer = other.split(':').next().unwrap_or(other);
    if models::names().contains(&mixer) {
        if args.checkpoint.is_some() {
            let what = "beside a --checkpoint goes another RUN_DIR; to train both here, use --model";
            return Err(Error::Config(format!("--compare {other}: {what}")));
        }
        return planned(args, other);
    }
    if !Path::new(other).exists() {
        let what = format!("is neither a run directory nor one of {}", models::names().join(", "));
        return Err(Error::Config(format!("--compare {other}: {what}")));
    }
    Ok(Subject::There(Box::new(source::checkpoint_for(Path::new(other), input::LONGEST)?)))
}

/// A model to train.
fn planned(args: &Inspect, spec: &str) -> Result<Subject> {
    let len = args.len.max(args.input.as_ref().map(String::len));
    let name = args.task.as_deref().unwrap_or(if args.text.is_some() { "text" } else { "parity" });
    let mut task = task_of(name).map_err(|e| Error::Config(format!("--task {e}")))?;
    task.1.extend(args.text.clone().map(|files| ("text".to_string(), files.into())));
    models::find(spec.split(':').next().unwrap_or(spec)).map_err(|e| Error::Config(format!("--model: {e}")))?;
    let (seed, steps) = (seed(args, spec), args.steps.unwrap_or(STEPS));
    let (config, warnings) = source::config_on(spec, task, seed, len, steps)?;
    Ok(Subject::ToTrain(spec.into(), Box::new(config), warnings))
}

/// The seed of a model to train. An LMU on two tokens writes nothing where its one ReLU is 0 for both, as from seed 0.
fn seed(args: &Inspect, spec: &str) -> u64 {
    args.seed.unwrap_or(u64::from(spec.split(':').next() == Some("lmu")))
}

/// Before any work: whether the page can go there.
fn check_out(args: &Inspect) -> Result<()> {
    let out = &args.out;
    let data = || ["json", "safetensors"].into_iter().filter(|_| args.json).chain(args.graph.then_some("dot"));
    if let Some(ending) = data().find(|ending| out.extension().is_some_and(|own| own == *ending)) {
        let what =
            format!("names the page, and the data goes into a file .{ending} beside it; expected a name as page.html");
        return Err(Error::Config(format!("--out {}: {what}", out.display())));
    }
    let parent = out.parent().filter(|p| !p.as_os_str().is_empty());
    if out.is_dir() {
        return Err(Error::Config(format!("--out {}: is a directory; expected a file, as page.html", out.display())));
    }
    if let Some(parent) = parent.filter(|p| !p.is_dir()) {
        let what = format!("there is no directory {}; make it first", parent.display());
        return Err(Error::Config(format!("--out {}: {what}", out.display())));
    }
    let mut files = data().map(|ending| beside(out, ending)).chain([out.clone()]);
    files.try_for_each(|file| rundir::check_is_no_runs_file(&file))?;
    // Nothing may be written there, or the disk may be one that is read alone. A pipe and a device take what they get.
    let (there, target) = (fs::metadata(out).ok(), fs::canonicalize(out).ok());
    if there.is_some_and(|about| !about.is_file()) {
        return Ok(());
    }
    let parent = target.as_deref().and_then(Path::parent).or(parent).unwrap_or(Path::new("."));
    tempfile::tempfile_in(parent).map_err(|e| {
        Error::Config(format!("--out {}: nothing can be written into {}: {e}", out.display(), parent.display()))
    })?;
    Ok(())
}
