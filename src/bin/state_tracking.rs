//! State tracking: which mixers can follow a state through any number of changes?

use clap::Parser;
use std::process::ExitCode;
use tapezoo::{
    cli::{self, TrainArgs},
    error::Error,
};
use toml::Table;

/// Train sequence mixers to track a state: the word problem of a group, or arithmetic
///
/// In the word problem of a group the tokens are moves, as swaps of five cups, and at every position the model says
/// where that has led. In the other tasks it answers once a sequence: the parity of bits, or the value of an
/// expression modulo 5, without or with brackets. "scaled" is the accuracy with guessing at 0, and "sequences" the
/// share of sequences that are right at every position.
#[derive(Parser)]
#[command(name = "state_tracking", version = tapezoo::stamp::version(), after_help = EXAMPLES)]
struct Cli {
    #[command(flatten)]
    task: TaskArgs,
    #[command(flatten)]
    train: TrainArgs,
}

#[derive(clap::Args)]
#[command(next_help_heading = "The task")]
struct TaskArgs {
    /// Which task: a group, or an expression [default: s3]
    #[arg(long, value_name = "NAME", value_parser = [&GROUPS[..], &LANGUAGES[..]].concat())]
    task: Option<String>,
    /// Groups: which elements are tokens: all, swaps (of two things), three (moving at most three things).
    #[arg(long, value_name = "NAME", value_parser = ["all", "swaps", "three"])]
    moves: Option<String>,
    /// modular_arithmetic_with_brackets: with multiplication.
    #[arg(long)]
    mult: bool,
}

const GROUPS: [&str; 6] = ["s3", "s4", "s5", "a5", "z60", "a4xz5"];
const LANGUAGES: [&str; 3] = ["parity", "modular_arithmetic", "modular_arithmetic_with_brackets"];
const PRESETS: [&str; 5] = ["groups", "arithmetic", "reduced", "repo", "paper"];
const SCALES: [&str; 3] = ["reduced", "repo", "paper"];

const EXAMPLES: &str = "\
Examples:
  state_tracking --show 3                          three training sequences with their targets
  state_tracking                                   permutations of three things
  state_tracking --task s5 --moves swaps --models lstm,delta_net
  state_tracking --task parity                     trained on lengths 3-40, evaluated on 40-256
  state_tracking --task modular_arithmetic_with_brackets --mult --steps 10000
  state_tracking --task parity --preset reduced    all models of the comparison, at a size for two cores
  state_tracking --task parity --preset paper      the published sizes, for which two cores are too few
A task brings its preset along: groups, or arithmetic. reduced, repo and paper have different numbers for every task
(configs/state_tracking/): repo is what the published comparison released, paper what it describes, reduced is small.";

fn main() -> ExitCode {
    let mut args: Cli = cli::parse(&PRESETS);
    let name = args.task.task.as_deref();
    let mut task = Table::new();
    let mut preset = PRESETS[0];
    if let Some(name) = name {
        let is_group = GROUPS.contains(&name);
        let (asked, owner) = match (&args.task.moves, args.task.mult) {
            (Some(moves), _) if !is_group => (format!("--moves {moves}"), GROUPS.join(", ")),
            (_, true) if is_group => ("--mult".into(), LANGUAGES[2].into()),
            _ => Default::default(),
        };
        if !asked.is_empty() {
            return cli::fail(&Error::config(format!("{asked} belongs to --task {owner}, not to {name}")), 2);
        }
        let (kind, key) = if is_group { ("group", "group") } else { ("arithmetic", "language") };
        task.extend([("name".to_string(), kind.into()), (key.into(), name.into())]);
        preset = if is_group { PRESETS[0] } else { PRESETS[1] };
    }
    task.extend(args.task.moves.map(|moves| ("moves".into(), moves.into())));
    task.extend(args.task.mult.then(|| ("mult".into(), true.into())));
    if let Some(scale) = args.train.scale(&SCALES) {
        args.train.set_preset(format!("{}-{scale}", family(name)));
    }
    cli::run(&args.train, preset, task)
}

/// The part of a preset's name that says what the task is.
fn family(task: Option<&str>) -> &str {
    match task {
        Some("modular_arithmetic") => "arithmetic",
        Some("modular_arithmetic_with_brackets") => "brackets",
        Some("parity") => "parity",
        _ => "groups",
    }
}
