//! `tapezoo models` and `tapezoo tasks`: what there is to choose from.

use super::{
    fail,
    help::indented,
    programs::printed,
    run::{samples_of, tree},
};
use crate::{
    error::Result,
    models, tasks,
    terminal::{columns, fit},
    train::config::{TrainConfig, task_of},
};
use clap::{Command, CommandFactory, Parser};
use std::process::ExitCode;
use toml::{Table, Value};

/// List the mixers; of those named, print the facts and the equations
#[derive(Parser)]
#[command(
    name = "models",
    after_help = "Examples:
  tapezoo models                    all of them, a line each
  tapezoo models delta_net mamba    two with their transition, state, cost, paper and equations
  tapezoo models --tree > tree.svg  how they descend from one another"
)]
pub(super) struct Models {
    /// Mixers, or all
    #[arg(value_name = "MIXER")]
    names: Vec<String>,
    /// Draw how the mixers descend from one another: as text on a terminal, elsewhere as an SVG
    #[arg(long, conflicts_with = "names")]
    tree: bool,
}

/// The command line of `models`; `--help` has them all.
pub(super) fn models_command() -> Command {
    let command = Models::command();
    let examples = command.get_after_help().cloned().unwrap_or_default();
    command.after_long_help(format!(
        "{examples}

A mixer's facts are: how its state goes from step to step, which eigenvalues that transition has, how large the state
is, what a step costs, the forms in which it is computed, its paper, and what is new over the mixer it descends from.

Mixers:
{}",
        indented(&models::lines())
    ))
}

pub(super) fn models(args: &Models) -> ExitCode {
    let each = |name: &String| {
        models::find(name)?;
        let facts = models::facts(name).unwrap_or_default();
        let equations = models::equations(name).unwrap_or_default();
        let equations: String =
            equations.lines().map(|line| format!("      {line}").trim_end().to_string() + "\n").collect();
        Ok(format!("{facts}\n{equations}"))
    };
    let text = match &args.names[..] {
        [] if args.tree => return printed(tree()),
        [] => Ok(models::lines()),
        [all] if all == "all" => Ok(models::table()),
        names => names.iter().map(each).collect::<Result<Vec<_>>>().map(|all| all.join("\n")),
    };
    text.map_or_else(|e| fail(&e, 2), |text| printed(fit(&text, columns())))
}

/// List the tasks; of those named, print a sample and what training begins with
#[derive(Parser)]
#[command(
    name = "tasks",
    after_help = "Examples:
  tapezoo tasks                    all of them, a line or two each
  tapezoo tasks s5                 a sample with its targets, and the numbers of its preset
  tapezoo train --task s5          train the models on it"
)]
pub(super) struct TaskNames {
    /// Tasks, by the names that `train --task` takes
    #[arg(value_name = "TASK")]
    names: Vec<String>,
}

/// The names of all tasks, on a line.
pub(super) fn task_names() -> String {
    tasks::named().iter().map(|task| task.name).collect::<Vec<_>>().join(", ")
}

/// The command line of `tasks`; `--help` has their names.
pub(super) fn tasks_command() -> Command {
    let command = TaskNames::command();
    let examples = command.get_after_help().cloned().unwrap_or_default();
    command.after_long_help(format!(
        "{examples}

A sample is a training sequence with the target of each position; a dot stands where none is asked for. Below it is the
configuration with which training begins. Flags of train change it, as do its --config FILE and --preset.

Tasks: {}.",
        task_names()
    ))
}

pub(super) fn tasks(args: &TaskNames) -> ExitCode {
    let text = match &args.names[..] {
        [] => Ok(tasks::named().iter().map(|t| line(t.name)).collect()),
        names => names.iter().map(|name| about(name)).collect::<Result<Vec<_>>>().map(|all| all.join("\n")),
    };
    text.map_or_else(|e| fail(&e, 2), |text| printed(fit(&text, columns())))
}

/// A task with its preset.
fn config(name: &str) -> Result<(&'static str, TrainConfig)> {
    let (preset, task) = task_of(name)?;
    let flags = Table::from_iter([("task".to_string(), Value::Table(task)), ("device".into(), "cpu".into())]);
    let mut cfg = TrainConfig::load_over(preset, None, flags)?;
    cfg.load_data()?;
    Ok((preset, cfg))
}

/// The line of a task in the list. A task that cannot be made without an option says so.
fn line(name: &str) -> String {
    match config(name) {
        Ok((_, TrainConfig { task, .. })) => format!("{name}\n    {}: {}\n", task.title(), task.legend()),
        Err(e) => format!("{name}\n    {}\n", e.shown().replace('\n', "\n    ")),
    }
}

fn about(name: &str) -> Result<String> {
    let (preset, cfg) = config(name)?;
    Ok(format!(
        "{}\nPreset '{preset}', as train --task {name} begins with it:\n\n{}",
        samples_of(&cfg, 1),
        cfg.to_toml()?
    ))
}
