//! `tapezoo state-tracking`: which mixers can follow a state through any number of changes?

use super::{
    TrainArgs, fail,
    help::Presets,
    run,
    task_flags::{ArithmeticFlags, GroupFlags, options},
};
use crate::error::Error;
use clap::Parser;
use std::process::ExitCode;
use toml::Table;

/// Train sequence mixers to track a state: the word problem of a group, or arithmetic
///
/// In the word problem of a group the tokens are moves, as swaps of five cups, and at every position the model says
/// where that has led. In the other tasks it answers once a sequence: the parity of bits, or the value of an
/// expression modulo 5, without or with brackets. "scaled" is the accuracy with guessing at 0, and "sequences" the
/// share of sequences that are right at every position.
#[derive(Parser)]
#[command(name = "state_tracking", version = crate::stamp::version(), after_help = EXAMPLES)]
pub(super) struct StateTracking {
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
    #[command(flatten)]
    groups: GroupFlags,
    #[command(flatten)]
    arithmetic: ArithmeticFlags,
}

const GROUPS: [&str; 6] = ["s3", "s4", "s5", "a5", "z60", "a4xz5"];
const LANGUAGES: [&str; 3] = ["parity", "modular_arithmetic", "modular_arithmetic_with_brackets"];
/// Some names stand for a preset of each task.
pub(super) const PRESETS: Presets = &[
    ("default", ""),
    ("groups", "groups"),
    ("arithmetic", "arithmetic"),
    ("reduced", ""),
    ("repo", ""),
    ("paper", ""),
];
const SCALES: [&str; 3] = ["reduced", "repo", "paper"];

/// What the presets of word problems begin with.
const GROUPS_FAMILY: &str = "groups";

const EXAMPLES: &str = "\
Examples:
  state_tracking --show 3                          three training sequences with their targets
  state_tracking                                   permutations of three things
  state_tracking --task s5 --moves swaps --models lstm,delta_net
  state_tracking --task parity                     trained on lengths 3-40, evaluated on 40-256
  state_tracking --task modular_arithmetic_with_brackets --mult --steps 10000
  state_tracking --task parity --preset reduced    all models of the comparison, for two cores
  state_tracking --task parity --preset paper      the published sizes; two cores are too few
A task brings its preset along: groups, or arithmetic. reduced, repo and paper have different numbers for every task
(configs/state_tracking/): repo is what the published comparison released, paper what it describes, reduced is small;
word problems of groups have reduced alone.";

pub(super) fn train(args: &StateTracking) -> ExitCode {
    let name = args.task.task.as_deref();
    let (groups, arithmetic) = (options(&args.task.groups), options(&args.task.arithmetic));
    let (mut task, mut preset) = (Table::new(), "groups");
    if let Some(name) = name {
        let is_group = GROUPS.contains(&name);
        let (asked, owner) = match (groups.get("moves").and_then(toml::Value::as_str), arithmetic.is_empty()) {
            (Some(moves), _) if !is_group => (format!("--moves {moves}"), GROUPS.join(", ")),
            (_, false) if is_group => ("--mult".into(), LANGUAGES[2].into()),
            _ => Default::default(),
        };
        if !asked.is_empty() {
            return fail(&Error::config(format!("{asked} belongs to --task {owner}, not to {name}")), 2);
        }
        let (kind, key) = if is_group { ("group", "group") } else { ("arithmetic", "language") };
        task.extend([("name".to_string(), kind.into()), (key.into(), name.into())]);
        preset = if is_group { "groups" } else { "arithmetic" };
    } else if !arithmetic.is_empty() && args.train.what.config.is_none() && args.train.output.resume.is_none() {
        let what = format!("--mult belongs to --task {}; name it, too", LANGUAGES[2]);
        return fail(&Error::Config(what), 2);
    }
    task.extend(groups);
    task.extend(arithmetic);
    let mut train = args.train.clone();
    if let Some(scale) = train.scale(&SCALES) {
        if family(name) == GROUPS_FAMILY && scale != SCALES[0] {
            let what = format!(
                "--preset {scale}: expected --task {} beside it; word problems have {}",
                LANGUAGES.join(", "),
                SCALES[0]
            );
            return fail(&Error::Config(what), 2);
        }
        train.set_preset(format!("{}-{scale}", family(name)));
    }
    run(&train, PRESETS, preset, task)
}

/// The part of a preset's name that says what the task is.
fn family(task: Option<&str>) -> &str {
    match task {
        Some("modular_arithmetic") => "arithmetic",
        Some("modular_arithmetic_with_brackets") => "brackets",
        Some("parity") => "parity",
        _ => GROUPS_FAMILY,
    }
}
