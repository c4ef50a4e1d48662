//! `tapezoo sweep`: many runs side by side, on one machine or on many, resumed where they stopped.

use super::{bar::with_bar, fail, help::glance, print, profile, say, threads, whole};
use crate::{
    error::{Error, Result},
    terminal::{columns, shown},
    train::{
        capacity,
        interrupt::{self, Signal},
        standing::Standing,
        sweep::{self, Plan, Shard, Sweep},
    },
};
use clap::{Args, CommandFactory, Parser, Subcommand};
use std::{
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
};

/// Train a grid of models, tasks, lengths, learning rates and seeds, and print one row for each cell
///
/// FILE is an ordinary configuration (see the config.toml of any run directory, and configs/) with a table 'grid'
/// whose lists are the axes. Every key of a configuration can be one. All points are checked before anything starts.
///
/// A sweep that was interrupted, or killed at any moment, goes on when the same command is given again: finished runs
/// are not repeated, and the others continue from their last checkpoint, to the same bits.
#[derive(Parser)]
#[command(name = "sweep", version = crate::stamp::version(), after_help = EXAMPLES, args_conflicts_with_subcommands = true)]
#[command(subcommand_negates_reqs = true)]
pub(super) struct Grid {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    run: Option<Run>,
}

#[derive(Args)]
struct Run {
    /// The sweep: a configuration with a table 'grid'.
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Where everything goes: a run directory for each point of the grid, and summary.csv, .jsonl and .txt
    /// [default: runs/NAME for NAME.toml]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// How many runs go side by side; results do not depend on it [default: the number of cores]
    #[arg(long, value_name = "N", value_parser = whole)]
    jobs: Option<i64>,
    /// Do only the i-th of n parts, i from 0 to n-1: for several machines.
    #[arg(long, value_name = "I/N", default_value = "0/1", hide_default_value = true)]
    shard: Shard,
    /// List the runs and where each stands, and do nothing.
    #[arg(long)]
    dry_run: bool,
    /// Instead of training, take 50 steps of each model at each point of the grid and print where their time goes, op
    /// by op.
    #[arg(long, conflicts_with_all = ["dry_run", "out", "shard", "jobs"])]
    profile: bool,
}

#[derive(Subcommand)]
enum Command {
    /// Join parts of one sweep, from several machines, into one directory
    ///
    /// Only finished runs are joined. Parts of different sweeps, and different results of the same run, are refused
    /// before anything is written.
    Merge {
        /// The directory to join them in: a new one, or one that holds a part of the same sweep.
        out: PathBuf,
        /// The parts.
        #[arg(required = true, value_name = "PART")]
        parts: Vec<PathBuf>,
    },
}

/// How many runs that stopped are named.
const FEW: usize = 4;

/// The status when every run has a result, and some of the results are that the run failed.
const FAILED_FOR_GOOD: u8 = 3;

/// The lines of `-h` about its flags.
const FIRST: [(&str, &str); 6] = [
    ("file", "The sweep: a configuration with a table 'grid'"),
    ("out", "Where the runs and summary.txt go [default: runs/NAME for NAME.toml]"),
    ("jobs", "How many runs go side by side [default: the number of cores]"),
    ("shard", "Do only the i-th of n parts, from 0 on: for several machines"),
    ("dry_run", "List the runs and where each stands, and do nothing"),
    ("profile", "Print where the time of 50 steps at each point goes, op by op"),
];

/// The command line of `sweep`; of `EXAMPLES`, `-h` has a file's lines and the examples.
pub(super) fn command() -> clap::Command {
    let parts: Vec<&str> = EXAMPLES.split("\n\n").collect();
    let few = [parts[0], parts[1], parts[3].rsplit_once('\n').unwrap_or_default().0].join("\n\n");
    glance(Grid::command(), &FIRST, &few)
}

const EXAMPLES: &str = "\
A sweep file:
  preset = \"default\"              # what holds at every point
  steps = 3000
  seeds = 3

  [grid]    # 2 models x 3 rates x 2 lengths x 2 tasks, each from 3 seeds
  models = [\"lstm\", \"delta_net\"]
  lr = [1e-3, 3e-3, 1e-2]
  train_len = [16, 32]
  task = [{ name = \"parity\" }, { name = \"dyck\", depth = 4 }]

  Sizes are axes too: model.width = [16, 64]. Keys that move together are tables, under any name:
  lengths = [{ name = \"short\", train_len = 16, eval_lens = [24] }, { train_len = 32, eval_lens = [48] }]

Examples:
  sweep grid.toml --dry-run                  what is left to do
  sweep grid.toml                            into runs/grid
  sweep grid.toml --shard 0/2 --out part0    one of two parts
  sweep merge runs/all part0 part1           the parts joined
docs/sweeps.md has submit files for SLURM and Kubernetes.

Exit status: 0: all runs are finished; 1: a run could not be done or a file not be written, and the same command tries \
again; 2: the sweep cannot be; 3: nothing is left to do, and some runs failed for good, as one that diverged; 129, 130, \
143: interrupted, and what is saved is said.";

/// See `EXAMPLES` for the status.
pub(super) fn run(grid: &Grid) -> ExitCode {
    let done = match (&grid.command, &grid.run) {
        (Some(Command::Merge { out, parts }), _) => merge(out, parts),
        (None, Some(run)) => start(run),
        (None, None) => Err(Error::config("expected a sweep file; see --help")),
    };
    done.unwrap_or_else(|e| fail(&e, 2))
}

/// Run a sweep, or list it.
fn start(args: &Run) -> Result<ExitCode> {
    let threads = threads("--jobs", args.jobs)?;
    let stem = args.file.file_stem().unwrap_or(args.file.as_os_str());
    let out = args.out.clone().unwrap_or_else(|| Path::new("runs").join(stem));
    let plan = Plan::load(&args.file)?;
    for warning in &plan.warnings {
        say("warning", warning);
    }
    if args.profile {
        plan.check_runs()?;
        return Ok(said(plan.points.iter().try_for_each(|point| {
            print(format!("{}\n", point.name))?;
            profile(&point.cfg)
        })));
    }
    if let Some(cost) = capacity::cost("the whole grid", plan.points.iter().map(|point| &point.cfg))? {
        say("note", &cost);
    }
    let sweep = Sweep::new(plan, &out, args.shard)?;
    if args.dry_run {
        // It may be another machine that runs it.
        if let Err(e) = sweep.check(threads) {
            say("warning", &e.to_string());
        }
        return Ok(said(print(shown(&sweep.list()))));
    }
    sweep.check(threads)?;
    interrupt::catch()?;
    let standing = Arc::new(Standing::default());
    let go_on = format!("the same command goes on in {}", out.display());
    let interrupted = |signal: Signal, standing: &Standing, go_on: &str| {
        let what = format!("{}: {}", signal.name(), standing.sentence(Some(go_on)));
        fail(&Error::Config(what), signal.status())
    };
    interrupt::at_the_latest({
        let (standing, go_on) = (standing.clone(), go_on.clone());
        move |signal| {
            standing.save_what_can_be();
            interrupted(signal, &standing, &go_on);
        }
    });
    let outcome = sweep.run(threads, &standing);
    interrupt::at_an_end();
    if let Some(signal) = interrupt::came().filter(|_| !standing.is_finished()) {
        if let Err(e) = outcome {
            fail(&e, 1);
        }
        return Ok(interrupted(signal, &standing, &go_on));
    }
    let outcome = match outcome {
        Ok(outcome) => outcome,
        Err(e) => return Ok(fail(&e, 1)),
    };
    let printed = said(print(outcome.summary.text_within(columns())));
    let lost = standing.take_lost();
    for e in &lost {
        fail(e, 1);
    }
    match outcome.failed.len() {
        0 if lost.is_empty() => Ok(printed),
        0 => Ok(ExitCode::FAILURE),
        n => {
            let mut what = format!("{n} of {} runs stopped before the end", outcome.runs);
            for line in outcome.failed.iter().take(FEW) {
                what += &format!("\n  {line}");
            }
            if n > FEW {
                what += &format!("\n  and {} more", n - FEW);
            }
            let for_good = outcome.to_do == 0 && lost.is_empty();
            Ok(fail(&Error::Config(what), if for_good { FAILED_FOR_GOOD } else { 1 }))
        }
    }
}

fn merge(out: &Path, parts: &[PathBuf]) -> Result<ExitCode> {
    let sweep = with_bar("{bar:24} {pos}/{len} {wide_msg}", |bar| sweep::merge(out, parts, bar))?;
    Ok(said(print(sweep.summary().text_within(columns()))))
}

/// The status of a program that had only this to say.
fn said(printed: Result<()>) -> ExitCode {
    printed.map_or_else(|e| fail(&e, 1), |()| ExitCode::SUCCESS)
}
