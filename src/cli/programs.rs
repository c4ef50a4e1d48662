//! `tapezoo` and its subcommands. Eight of them are also programs of their own in the repository.

use super::{
    book, dyck, exchange, exercise, fail, help, inspect, mqar, parity, print, report, sample, shell, state_tracking,
    sweep, tables, train, verify,
};
use crate::{cuda::ahead::helper, models};
use clap::{ArgMatches, Command, CommandFactory, FromArgMatches};
use std::process::ExitCode;

/// A subcommand.
struct Program {
    /// Its name behind `tapezoo`.
    name: &'static str,
    command: fn() -> Command,
    run: fn(&ArgMatches) -> ExitCode,
}

/// The arguments that clap has read. They are of this type, as the same type made the command.
fn read<P: FromArgMatches>(matches: &ArgMatches) -> P {
    P::from_arg_matches(matches).unwrap_or_else(|e| e.exit())
}

/// A training program with its presets.
macro_rules! trains {
    ($name:literal, $module:ident::$Args:ident) => {
        Program {
            name: $name,
            command: || help::teach($module::$Args::command(), &$module::PRESETS),
            run: |matches| {
                help::warn_of_old_names(matches);
                $module::train(&read::<$module::$Args>(matches))
            },
        }
    };
}

macro_rules! runs {
    ($name:literal, $module:ident::$run:ident, $Args:ident) => {
        Program {
            name: $name,
            command: <$module::$Args as CommandFactory>::command,
            run: |matches| $module::$run(&read::<$module::$Args>(matches)),
        }
    };
    ($name:literal, $module:ident::$run:ident, $Args:ident, $command:ident) => {
        Program {
            name: $name,
            command: $module::$command,
            run: |matches| $module::$run(&read::<$module::$Args>(matches)),
        }
    };
}

/// In the order of `tapezoo --help`.
const PROGRAMS: [Program; 18] = [
    trains!("train", train::Train),
    trains!("parity", parity::Parity),
    trains!("dyck", dyck::Dyck),
    trains!("mqar", mqar::Mqar),
    trains!("state-tracking", state_tracking::StateTracking),
    runs!("sweep", sweep::run, Grid, command),
    runs!("report", report::run, Pages),
    runs!("inspect", inspect::run, Inspect, command),
    runs!("book", book::run, Book),
    runs!("exercise", exercise::run, Exercises),
    runs!("sample", sample::run, Sample),
    runs!("import", exchange::import, Import, import_command),
    runs!("export", exchange::export, Export),
    runs!("verify", verify::run, Verify),
    runs!("models", tables::models, Models, models_command),
    runs!("tasks", tables::tasks, TaskNames, tasks_command),
    runs!("completions", shell::completions, Completions),
    runs!("man", shell::man, Man),
];

const ABOUT: &str = "\
Train sequence mixers, from LSTM to Mamba, and see how each works

  tapezoo parity                       seven of them, compared in half a minute
  tapezoo inspect --model delta_net    a page to step through one
  tapezoo models delta_net             the facts and equations of one";

const MORE: &str = "\
From runs to pages:
  tapezoo parity --out runs/parity      metrics and weights are kept
  tapezoo train --resume runs/parity    an interrupted run goes on
  tapezoo report runs/parity            tables and curves: report/report.html
  tapezoo inspect --checkpoint runs/parity/lstm-seed0
                                        what the trained model does: inspect.html

Each command explains every flag with --help. `tapezoo man COMMAND` is the same as a manual page, and \
`tapezoo completions SHELL` completes names while they are typed.

Environment:
  TAPEZOO_CUDA_LIBS  directories with CUDA's libraries that the loader misses
  TAPEZOO_SIMD       instructions to use at most: plain, avx2 or avx512";

/// The program: read the command line, and do what it says.
pub fn tapezoo() -> ExitCode {
    if let Some(status) = helper() {
        return status;
    }
    let matches = command().get_matches();
    let Some((name, matches)) = matches.subcommand() else { unreachable!("a subcommand is required") };
    PROGRAMS.iter().find(|program| program.name == name).map_or(ExitCode::FAILURE, |program| (program.run)(matches))
}

/// One of the subcommands as a program of its own.
pub fn alone(name: &str) -> ExitCode {
    if let Some(status) = helper() {
        return status;
    }
    match PROGRAMS.iter().find(|program| program.name == name) {
        Some(program) => (program.run)(&with_negative_values((program.command)()).get_matches()),
        None => fail(&crate::error::Error::config(format!("there is no program '{name}'")), 2),
    }
}

/// The command line of `tapezoo`.
pub(super) fn command() -> Command {
    let examples = format!("Examples:{}", &ABOUT[ABOUT.find("\n\n").map_or(0, |at| at + 1)..]);
    let command = Command::new("tapezoo")
        .version(crate::stamp::version())
        .about(ABOUT.lines().next().unwrap_or_default())
        .after_help(examples.clone())
        .after_long_help(format!(
            "{examples}\n\n{MORE}\n\nMixers: {}.\n\nTasks: {}.",
            models::names().join(", "),
            tables::task_names(),
        ))
        .subcommand_required(true)
        .arg_required_else_help(true)
        .max_term_width(120);
    let below = |program: &Program| {
        let mut command = with_negative_values((program.command)());
        let [short, long] = [command.get_after_help(), command.get_after_long_help()]
            .map(|text| text.map(|text| behind_tapezoo(&text.to_string())));
        command = command.name(program.name).version(None::<&str>).after_help(short.unwrap_or_default());
        command = long.into_iter().fold(command, Command::after_long_help);
        if program.name == "state-tracking" { command.alias("state_tracking") } else { command }
    };
    PROGRAMS.iter().fold(command, |command, program| command.subcommand(below(program)))
}

/// -1 behind a flag with a value is a bad value, and not an unknown flag.
fn with_negative_values(command: Command) -> Command {
    let below: Vec<String> = command.get_subcommands().map(|c| c.get_name().to_string()).collect();
    let command = below.into_iter().fold(command, |command, name| command.mut_subcommand(name, with_negative_values));
    command.mut_args(|arg| {
        let valued = arg.get_action().takes_values() && !arg.is_positional();
        if valued { arg.allow_negative_numbers(true) } else { arg }
    })
}

/// Examples of a program of its own, as subcommands of `tapezoo`.
fn behind_tapezoo(text: &str) -> String {
    let ours = |command: &str| {
        let first = command.trim_start().split([' ', '\n']).next().unwrap_or_default();
        PROGRAMS.iter().any(|program| program.name.replace('-', "_") == first)
    };
    let mut examples = false;
    let line = |line: &str| match line.strip_prefix("  ") {
        Some(commands) if examples && !commands.starts_with(' ') && ours(commands) => {
            let behind = |command: &str| match ours(command) {
                true => format!("tapezoo {}", command.replacen("state_tracking", "state-tracking", 1)),
                false => command.into(),
            };
            let line = format!("  {}", commands.split("; ").map(behind).collect::<Vec<_>>().join("; "));
            // The description stays where it was, as far as there is room, and two spaces behind the command.
            let gap = line.trim_start().find("  ").map_or(0, |at| at + line.len() - line.trim_start().len());
            let spaces = line[gap..].len() - line[gap..].trim_start().len();
            let room = if gap == 0 { 0 } else { spaces.saturating_sub(2).min("tapezoo ".len()) };
            format!("{}{}", &line[..gap], &line[gap + room..])
        }
        _ => {
            examples = line == "Examples:" || (examples && !line.is_empty());
            line.into()
        }
    };
    text.lines().map(line).collect::<Vec<String>>().join("\n")
}

/// Print a text; the status to leave with.
pub(super) fn printed(text: String) -> ExitCode {
    print(text).map_or_else(|e| fail(&e, 1), |()| ExitCode::SUCCESS)
}
