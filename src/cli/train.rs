//! `tapezoo train`: any of the tasks.

use super::{
    FOR_ANY_TASK, TrainArgs, fail,
    help::Presets,
    run,
    task_flags::{
        ArithmeticFlags, DisjointFlags, DyckFlags, GroupFlags, IcllFlags, MqarFlags, ParityFlags, RepeatFlag,
        TextFlags, WindowFlags, options,
    },
};
use crate::{
    error::{Error, Result},
    tasks,
    train::{
        config::{self, preset_of, preset_table, read, task_of},
        rundir,
    },
};
use clap::{Parser, builder::PossibleValuesParser};
use std::process::ExitCode;
use toml::{Table, Value};

/// Train sequence mixers on any task, and see at which lengths they still know it
///
/// The task is that of --task, or the one that its flags, --preset or --config say; without any of these it is parity.
/// `tapezoo tasks` lists them all.
#[derive(Parser)]
#[command(name = "train", version = crate::stamp::version(), after_help = EXAMPLES)]
pub(super) struct Train {
    #[command(flatten)]
    task: TaskArgs,
    #[command(flatten)]
    train: TrainArgs,
}

#[derive(clap::Args)]
#[command(next_help_heading = "The task")]
struct TaskArgs {
    /// The task to learn: see `tapezoo tasks`.
    #[arg(long, value_name = "NAME", value_parser = PossibleValuesParser::new(tasks::named().iter().map(|t| t.name)))]
    task: Option<String>,
    #[command(flatten)]
    text: TextFlags,
    #[command(flatten)]
    parity: ParityFlags,
    #[command(flatten)]
    dyck: DyckFlags,
    #[command(flatten)]
    mqar: MqarFlags,
    #[command(flatten)]
    disjoint: DisjointFlags,
    #[command(flatten)]
    repeat: RepeatFlag,
    #[command(flatten)]
    icll: IcllFlags,
    #[command(flatten)]
    window: WindowFlags,
    #[command(flatten)]
    groups: GroupFlags,
    #[command(flatten)]
    arithmetic: ArithmeticFlags,
}

/// Every preset; `default` is that of the task.
pub(super) const PRESETS: Presets = &{
    let mut names = [("default", ""); config::PRESETS.len()];
    let mut i = 1;
    while i < names.len() {
        names[i] = (config::PRESETS[i].0, config::PRESETS[i].0);
        i += 1;
    }
    names
};

const EXAMPLES: &str = "\
Examples:
  train --text book.txt --out runs/book          a text of your own, to sample
  train --task text                              the text that comes along
  train --task s5 --models lstm,delta_net        products of permutations of five things
  train --task dyck --types 2 --show 3           three sequences with their targets
  train --config runs/a/config.toml --lr 1e-3    an earlier experiment, changed";

pub(super) fn train(args: &Train) -> ExitCode {
    match task(args) {
        Ok((preset, task)) => run(&args.train, PRESETS, preset, task),
        Err(e) => fail(&e, 2),
    }
}

/// The task's preset, and what flags say of the task.
fn task(args: &Train) -> Result<(&'static str, Table)> {
    let TaskArgs { task, text, parity, dyck, mqar, disjoint, repeat, icll, window, groups, arithmetic } = &args.task;
    let mut given = vec![
        ("text", options(text)),
        ("parity", options(parity)),
        ("dyck", options(dyck)),
        ("mqar", options(mqar)),
        ("disjoint", options(disjoint)),
        ("icll", options(icll)),
        ("window", options(window)),
        ("group", options(groups)),
        ("arithmetic", options(arithmetic)),
    ];
    given.retain(|(_, options)| !options.is_empty());
    let (preset, mut table) = match (task, recorded(&args.train)?) {
        (Some(name), _) => task_of(name)?,
        (None, Some(kind)) => of_kind(&kind)?,
        (None, None) => of_kind(given.first().map_or("parity", |(kind, _)| kind))?,
    };
    let kind = kind(&table);
    for (other, options) in given {
        if other != kind {
            let flag = options.keys().next().map_or(String::new(), |key| config::flag(key));
            return Err(Error::Config(format!("{flag} belongs to the task {other}, and this is {kind}")));
        }
        table.extend(options);
    }
    let repeated = options(repeat);
    if !repeated.is_empty() && !["mqar", "disjoint"].contains(&kind.as_str()) {
        return Err(Error::Config(format!("--repeat belongs to the tasks mqar and disjoint, and this is {kind}")));
    }
    table.extend(repeated);
    Ok((preset, table))
}

/// The preset and the task of this name; without one, of the file that the flags name.
pub(super) fn task_or_recorded(name: Option<&str>, args: &TrainArgs) -> Result<(&'static str, Table)> {
    match name {
        Some(name) => task_of(name),
        None => of_kind(&recorded(args)?.unwrap_or("parity".into())),
    }
}

fn kind(task: &Table) -> String {
    task.get("name").and_then(Value::as_str).unwrap_or_default().into()
}

/// The preset of a kind of task as configurations name it, and its `[task]`.
fn of_kind(name: &str) -> Result<(&'static str, Table)> {
    Ok((preset_of(name), Table::from_iter([("name".to_string(), name.into())])))
}

/// The task of the runs that go on, of the file or of the preset that flags name.
fn recorded(args: &TrainArgs) -> Result<Option<String>> {
    let name = |table: &Table| Some(table.get("task")?.get("name")?.as_str()?.to_string());
    let of_preset = |name: &str| match FOR_ANY_TASK.contains(&name) {
        true => Ok(None),
        false => preset_table(name).map(Some),
    };
    let file = match (&args.output.resume, &args.what.config) {
        (Some(dir), _) => Some(dir.join(rundir::CONFIG)),
        (None, file) => file.clone(),
    };
    // A file that comes from a pipe can be read once only, and a missing one is reported when it is read for good.
    if let Some(table) = file.filter(|path| path.is_file()).map(|path| read(&path)).transpose()? {
        if let Some(task) = name(&table) {
            return Ok(Some(task));
        }
        let preset = table.get("preset").and_then(Value::as_str).map(of_preset).transpose()?.flatten();
        if let Some(task) = preset.as_ref().and_then(name) {
            return Ok(Some(task));
        }
    }
    let preset = args.what.preset.as_deref().map(of_preset).transpose()?.flatten();
    Ok(preset.as_ref().and_then(name))
}
