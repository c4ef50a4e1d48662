//! `tapezoo import` and `tapezoo export`: layers that another package has trained, and ours for another package.

use super::{
    Machine, Sizes, TrainArgs, What,
    help::glance,
    print,
    resolve::{part, sets},
    train,
};
use crate::{
    error::{Error, Result, brief, contained, printable},
    exchange::{self, Layers, Package, Wanted},
    files::{is_there, whole},
    inspect::source,
    models::{Model, Positions},
    tensor::DType,
    terminal::{few, shown},
    train::{
        Trainer,
        config::{self, TrainConfig},
        rundir::{self, Held, RunDir},
    },
};
use clap::{
    Command, CommandFactory, Parser,
    builder::{PossibleValuesParser, TypedValueParser},
};
use std::{
    fs,
    io::{self, Write},
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};
use toml::Table;

/// Take layers that were trained with another package into a model
///
/// FILE has the weights of layers under the names of PyTorch, flash-linear-attention (fla), xlstm or mamba-ssm (mamba):
/// the state_dict of one layer, or of a model that has many of them. Where a module of the package computes what one of
/// our mixers computes, its numbers become the mixer's, and both give the same for the same input. All of a layer is
/// understood, or nothing is taken: what is missing, has another shape or is not known is named.
///
/// Layers are read, not whole models: a model of another package has other norms and MLPs around its layers than ours.
/// With --prefix the layers are taken out of it, and the embedding, norms, MLPs and head are new, from --seed.
///
/// With --out DIR the model is a run before its first step, to train with `tapezoo train --resume DIR` and to look at
/// with `tapezoo inspect --checkpoint DIR`; with --out FILE.safetensors it is a file for `Model::open` in a program.
#[derive(Parser)]
#[command(name = "import", version = crate::stamp::version(),
    override_usage = "tapezoo import <FILE> --from <PACKAGE> --models <MIXER> --out <DIR|FILE>",
    after_help = format!("{IMPORTS}\n\n{STATUS}"),
    after_long_help = format!("{}\n\n{IMPORTS}\n\n{STATUS}", equals()))]
pub(super) struct Import {
    /// A safetensors file; of torch.save make one with safetensors.torch.save_file(module.state_dict(), FILE)
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// The package whose names are in it: torch, fla, xlstm or mamba
    #[arg(long, value_name = "PACKAGE", value_parser = package(), hide_possible_values = true)]
    from: Package,
    /// The mixer that its layers are; --help names those of each package
    #[arg(long, value_name = "MIXER", alias = "model")]
    models: String,
    /// The prefix of the names of a layer, with {} for its number: model.layers.{}.attn. [default: nothing]
    #[arg(long, value_name = "NAME")]
    prefix: Option<String>,
    /// The numbers of the layers to take, in the order of the model's blocks [default: all that are there]
    #[arg(long, value_name = "N,N,..", value_delimiter = ',')]
    blocks: Option<Vec<usize>>,
    /// The task that the model is to learn, which gives its tokens and classes: see `tapezoo tasks` [default: parity]
    #[arg(long, value_name = "NAME")]
    task: Option<String>,
    /// A TOML file with other numbers of the model and of its training (see config.toml in any run directory)
    #[arg(long, value_name = "TOML")]
    config: Option<PathBuf>,
    /// The seed of what is new in the model, and of its training data [default: 0]
    #[arg(long, value_name = "S", value_parser = super::whole)]
    seed: Option<i64>,
    /// A directory for a run, or a file whose name ends in .safetensors
    #[arg(long, value_name = "DIR|FILE")]
    out: PathBuf,
    /// Delete earlier runs in the directory of --out
    #[arg(long)]
    force: bool,
    /// Sizes that the file does not tell, such as the heads of attention; others are checked against it
    #[command(flatten)]
    sizes: Sizes,
}

/// The lines of `-h` about the flags of `import`.
const AT_A_GLANCE: [(&str, &str); 11] = [
    ("file", "A safetensors file"),
    ("from", "The package whose names are in it: torch, fla, xlstm or mamba"),
    ("models", "The mixer that its layers are"),
    ("prefix", "What stands before a layer's names, {} for its number"),
    ("blocks", "The numbers of the layers to take [default: all]"),
    ("task", "What the model is to learn [default: parity]"),
    ("config", "A TOML file with other numbers of the model and training"),
    ("seed", "The seed of what is new in the model [default: 0]"),
    ("out", "A directory for a run, or a file NAME.safetensors"),
    ("heads", "Heads, which the file does not tell"),
    ("eigenvalues", "0..1, or -1..1 where transitions reach to -1 [default: 0..1]"),
];

/// The command line of `import`; `-h` leaves out the sizes that files tell by themselves.
pub(super) fn import_command() -> Command {
    const FIRST: [&str; 3] = ["heads", "mlp", "eigenvalues"];
    let long = Import::command().get_after_long_help().cloned().unwrap_or_default();
    let command = glance(Import::command(), &AT_A_GLANCE, IMPORTS).after_long_help(long);
    let of_sizes = |a: &&clap::Arg| a.get_help_heading() == Some("Sizes of the models");
    let sizes: Vec<String> = command.get_arguments().filter(of_sizes).map(|a| a.get_id().to_string()).collect();
    let hidden = sizes.into_iter().filter(|id| !FIRST.contains(&id.as_str()));
    hidden.fold(command, |command, id| command.mut_arg(id, |arg| arg.hide_short_help(true)))
}

/// Write the layers of a model under the names of another package
///
/// The layers of every block are written as a module of the package has them, to be loaded with load_state_dict. What
/// is around them, the embedding, norms, MLPs and head, has no counterpart and is left out.
#[derive(Parser)]
#[command(name = "export", version = crate::stamp::version(), after_help = format!("{EXPORTS}\n\n{STATUS}"),
    after_long_help = format!("{}\n\n{EXPORTS}\n\n{STATUS}", equals()))]
pub(super) struct Export {
    /// A run: DIR, or DIR/MODEL-seedS where it holds several; or a file that `import` or `Model::save` has written
    #[arg(value_name = "RUN|FILE")]
    checkpoint: PathBuf,
    /// The package whose names to write: torch, fla, xlstm or mamba
    #[arg(long, value_name = "PACKAGE", value_parser = package(), hide_possible_values = true)]
    to: Package,
    /// The prefix of the names of a layer, with {} for the number of the block [default: nothing for one block,
    /// layers.{}. for several]
    #[arg(long, value_name = "NAME")]
    prefix: Option<String>,
    /// The safetensors file
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
}

const IMPORTS: &str = "\
Examples:
  import lstm.safetensors --from torch --models lstm --out runs/lstm
  import lm.safetensors --from fla --models gla --out runs/gla
      --prefix model.layers.{}.attn
  import lm.safetensors --from mamba --models mamba --out runs/mamba
      --prefix backbone.layers.{}.mixer --task text
  import lm.safetensors --from fla --models gla --out two_mixers.safetensors
      --prefix model.layers.{}.attn --blocks 3,7";

const EXPORTS: &str = "\
Examples:
  export runs/gla --to fla --prefix model.layers.{}.attn --out gla.safetensors
  export lstm.safetensors --to torch --out torch_lstm.safetensors";

const STATUS: &str = "\
Exit status: 0 when it is written, 1 when it cannot be written, 2 when it is refused: then nothing is.";

/// Which mixer is which module, for `--help`.
fn equals() -> String {
    let config = crate::models::ModelConfig::default();
    let line = |(package, mixer, module): (Package, &str, String)| {
        format!("  {:<6}{mixer:<16}{}", package.name(), module.split('(').next().unwrap_or_default())
    };
    let mut lines: Vec<String> = exchange::equals(&config).into_iter().map(line).collect();
    lines.dedup();
    let differs = exchange::differs().map(|(package, mixer, how)| format!("  {:<6}{mixer}: {how}", package.name()));
    let differs: Vec<String> = differs.collect();
    format!(
        "Mixers, and the modules that they equal:\n{}\n\nNearly equal, and not taken:\n{}",
        lines.join("\n"),
        differs.join("\n")
    )
}

fn package() -> impl TypedValueParser<Value = Package> {
    PossibleValuesParser::new(Package::ALL.map(Package::name)).try_map(|name| name.parse::<Package>())
}

/// A prefix of several blocks where nobody says any.
const LAYERS: &str = "layers.{}.";

/// Say all of what is wrong; the status to leave with.
fn refuse(e: &Error) -> ExitCode {
    const LINES: usize = 1000;
    let text = e.to_string();
    let mut lines: Vec<String> = text.lines().take(LINES).map(|line| brief(line, 1000)).collect();
    let more = text.lines().count() - lines.len();
    if more > 0 {
        lines.push(format!("  and {more} lines more"));
    }
    // Nobody may be there to read it; the status says it too.
    let _ = writeln!(io::stderr(), "error: {}", printable(&lines.join("\n")));
    ExitCode::from(2)
}

/// So many names are in a message.
const FEW: usize = 4;

pub(super) fn import(args: &Import) -> ExitCode {
    match contained(|| imported(args)) {
        Err(e) => refuse(&e),
        Ok((model, trainer, said)) => {
            let written = contained(|| match trainer {
                None => model.map_or(Ok(()), |model| model.save(&args.out)),
                Some(trainer) => left(args, *trainer),
            });
            match written.and_then(|()| print(shown(&said))) {
                Ok(()) => ExitCode::SUCCESS,
                // A directory that is not to be written into.
                Err(e @ Error::Config(_)) => refuse(&e),
                Err(e) => super::fail(&e, 1),
            }
        }
    }
}

/// A model for a file, or what trains it for a directory, and what is to be said.
type Imported = (Option<Model>, Option<Box<Begun>>, String);

/// A run before its first step, and the directory's configuration.
struct Begun {
    trainer: Trainer,
    all: TrainConfig,
    model: String,
    seed: u64,
}

fn imported(args: &Import) -> Result<Imported> {
    let as_file = args.out.extension().is_some_and(|ending| ending == "safetensors");
    not_itself(&args.file, &args.out)?;
    if args.force && as_file {
        return Err(Error::config("--force: expected a directory of runs as --out"));
    }
    let given = given(&args.sizes);
    let sizes: Vec<(&str, usize, &str)> = given.iter().map(|(key, n, flag)| (*key, *n, flag.as_str())).collect();
    let wanted = Wanted {
        package: args.from,
        mixer: &args.models,
        prefix: args.prefix.as_deref().unwrap_or_default(),
        blocks: args.blocks.as_deref(),
        sizes: &sizes,
    };
    let layers = Layers::read(&args.file, &wanted)?;
    let all = configuration(args, &layers)?;
    let own = all.for_model(&args.models)?;
    let model = layers.model(&own.model, own.seed)?;
    source::not_finite(&model, &args.file).iter().for_each(|what| super::say("warning", what));

    let sizes: Vec<String> = layers.sizes().iter().map(|(key, n)| format!("{key} {n}")).collect();
    let mut said = vec![
        format!("{}: {}", args.models, sizes.join(", ")),
        format!("{} to {},", if layers.len() == 1 { "Equal" } else { "Each is equal" }, layers.module(&own.model)),
        "if the layers were made with these options: what changes no shape is in no file.".into(),
        format!("New, from seed {}: everything around them, such as the embedding, the norms and the head.", own.seed),
    ];
    if !layers.left_out().is_empty() {
        let n = layers.left_out().len();
        said.push(format!("Left out of {}, {n} tensors: {}", args.file.display(), few(layers.left_out(), FEW)));
    }
    let out = args.out.display();
    if as_file {
        said.push(format!("{out}: open it with Model::open, or `tapezoo export {out}`"));
        return Ok((Some(model), None, said.join("\n") + "\n"));
    }
    said.push(format!("{out}: `tapezoo train --resume {out}`, `tapezoo inspect --checkpoint {out}`"));
    let trainer = Trainer::with(&own, model, own.task.shared(), own.seed)?;
    let begun = Begun { trainer, seed: own.seed, all, model: args.models.clone() };
    Ok((None, Some(Box::new(begun)), said.join("\n") + "\n"))
}

/// The sizes that flags say, with the flags.
fn given(sizes: &Sizes) -> Vec<(&'static str, usize, String)> {
    let mut sizes = sizes.clone();
    // A rank of 0 asks for the rule.
    sizes.dt_rank = sizes.dt_rank.filter(|&rank| rank > 0);
    let said = |(key, n): (&'static str, &mut Option<i64>)| {
        let flag = format!("by --{}", key.replace('_', "-"));
        Some((key, usize::try_from((*n)?).ok()?, flag))
    };
    fields(&mut sizes).into_iter().filter(|(key, _)| *key != "layers").filter_map(said).collect()
}

/// The sizes of a layer, by their keys in a configuration.
fn fields(sizes: &mut Sizes) -> [(&'static str, &mut Option<i64>); 9] {
    [
        ("layers", &mut sizes.layers),
        ("width", &mut sizes.width),
        ("heads", &mut sizes.heads),
        ("head_dim", &mut sizes.head_dim),
        ("state", &mut sizes.state),
        ("conv", &mut sizes.conv),
        ("expand", &mut sizes.expand),
        ("dt_rank", &mut sizes.dt_rank),
        ("householders", &mut sizes.householders),
    ]
}

/// The configuration of a run with the sizes of these layers.
fn configuration(args: &Import, layers: &Layers) -> Result<TrainConfig> {
    let mut sizes = args.sizes.clone();
    for (key, n) in layers.sizes() {
        let n = i64::try_from(n).ok();
        let field = fields(&mut sizes).into_iter().find(|(known, _)| *known == key).map(|(_, field)| field);
        let field =
            field.ok_or_else(|| Error::Config(format!("a fault of this program: no flag for the size {key}")))?;
        match (&field, n) {
            (Some(asked), Some(n)) if key == "layers" && *asked != n => {
                let what = format!("--layers {asked}: the file has {n}; --blocks chooses some of them");
                return Err(Error::Config(what));
            }
            _ => *field = n,
        }
    }
    let file = args.config.as_deref().filter(|path| path.is_file()).map(config::read).transpose()?;
    let says = |key: &str| file.as_ref().is_some_and(|file| sets(file, key));
    if let Some(positions) = layers.positions() {
        sizes.positions.get_or_insert(positions.to_string());
    } else if sizes.positions.is_none() && args.models == "gpt" && !says("positions") {
        // The presets' choice for attention, without which it has no sense of order.
        sizes.positions = Some(Positions::Learned.to_string());
    }
    let what = What {
        models: Some(vec![args.models.clone()]),
        config: args.config.clone(),
        seeds: Some(1),
        seed: args.seed.or((!says("seed")).then_some(0)),
        ..What::default()
    };
    let dtype = layers.dtype();
    // Devices train in single precision.
    let device = (dtype == DType::F64).then(|| "cpu".into());
    let machine = Machine { dtype: Some(dtype), device, ..Machine::default() };
    let train = TrainArgs { what, sizes, machine, ..TrainArgs::default() };
    let (preset, task) =
        train::task_or_recorded(args.task.as_deref(), &train).map_err(|e| Error::Config(format!("--task {e}")))?;
    let taken = train.table();
    let all = train.resolve(preset, task)?;
    if let (Some(path), Some(file)) = (&args.config, &file) {
        let what = What { seed: args.seed, ..What::default() };
        let typed = TrainArgs { what, sizes: args.sizes.clone(), ..TrainArgs::default() }.table();
        for what in not_taken(file, &typed, &taken) {
            super::say("warning", &format!("{}: {what}", path.display()));
        }
    }
    Ok(all)
}

/// The values of a configuration file that the layers decide otherwise, as their sizes and precision. Flags that were
/// typed are meant to change a file.
fn not_taken(file: &Table, typed: &Table, taken: &Table) -> Vec<String> {
    let otherwise = |file: &Table, typed: &Table, taken: &Table| -> Vec<String> {
        let decided = taken.iter().filter(|(key, _)| !typed.contains_key(*key));
        let both = decided.filter_map(|(key, here)| Some((key, file.get(key)?, here)));
        let other = both.filter(|(_, there, here)| there != here);
        other.map(|(key, there, here)| format!("{key} = {there} is not taken, here it is {here}")).collect()
    };
    let model = |table: &Table| part(table, "model").cloned().unwrap_or_default();
    let sizes = otherwise(&model(file), &model(typed), &model(taken));
    [otherwise(file, typed, taken), sizes].concat()
}

/// Leave a run before its first step. Its configuration comes last: where the numbers are missing that were taken, no run
/// may begin.
fn left(args: &Import, mut begun: Begun) -> Result<()> {
    let dir = RunDir::claim(&args.out, args.force)?;
    let files = Held::wait(&dir.of(&begun.model, begun.seed))?.begin()?;
    files.checkpoint(&mut begun.trainer, Duration::ZERO)?;
    dir.record(&begun.all)
}

pub(super) fn export(args: &Export) -> ExitCode {
    match contained(|| exported(args)) {
        Err(e) => refuse(&e),
        Ok((bytes, said)) => {
            let written = whole::write(&args.out, &bytes).and_then(|()| print(shown(&said)));
            written.map_or_else(|e| super::fail(&e, 1), |()| ExitCode::SUCCESS)
        }
    }
}

/// The file, and what is to be said.
fn exported(args: &Export) -> Result<(Vec<u8>, String)> {
    not_itself(&args.checkpoint, &args.out)?;
    if !is_there(&args.checkpoint) {
        return Err(Error::format(&args.checkpoint, "does not exist; expected a run directory, or a safetensors file"));
    }
    let (model, doubts) = if args.checkpoint.is_dir() {
        let source = source::checkpoint(&args.checkpoint)?;
        (source.model, source.doubts)
    } else {
        let model = Model::open(&args.checkpoint)?;
        let doubts = source::not_finite(&model, &args.checkpoint).into_iter().collect();
        (model, doubts)
    };
    doubts.iter().for_each(|what| super::say("warning", what));
    let blocks = model.config().layers;
    let prefix = args.prefix.as_deref().unwrap_or(if blocks > 1 { LAYERS } else { "" });
    let file = exchange::export(&model, args.to, prefix)?;
    let said = [
        format!("{} tensors of {blocks} {}", file.tensors, if blocks == 1 { "layer" } else { "layers" }),
        format!("Load {} into {}", if blocks == 1 { "them" } else { "each layer" }, file.module),
        format!("Left out, {} tensors: {}", file.left_out.len(), few(&file.left_out, FEW)),
        args.out.display().to_string(),
    ];
    Ok((file.bytes, said.join("\n") + "\n"))
}

/// Refuse to write over what is read, or over a file of a run.
fn not_itself(read: &Path, written: &Path) -> Result<()> {
    rundir::check_is_no_runs_file(written)?;
    let same = is_there(written) && fs::canonicalize(read).ok() == fs::canonicalize(written).ok();
    if same {
        return Err(Error::Config(format!("--out {}: is the file that is read; choose another", written.display())));
    }
    Ok(())
}
