//! `tapezoo exercise`: files with a hole to fill, and what is wrong with what fills it.

use super::{fail, print};
use crate::{
    error::{Error, Result},
    exercises::{EXERCISES, Exercise, compile, find, root},
    terminal::{columns, fit},
};
use clap::Parser;
use std::{
    fmt::Write,
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, ExitCode, Stdio},
    thread,
    time::{Duration, Instant},
};

/// List the exercises, or check one: a file of the repository with a hole for you to fill
///
/// The files are in exercises/. Each begins with what there is to know, has a function without a body, todo!(), and
/// below it the checks, which are worth reading too: they compare what you wrote with the project's own ops, with
/// numbers from PyTorch, and at the edges (no steps, one step, gates of −∞). Edit the file, then check it: what is wrong
/// is said in words, with what was expected, what came, and where.
///
/// An exercise is done when there is no todo! in its file and its checks pass. Nothing else is remembered:
/// `git restore exercises` begins anew. Checks are compiled by cargo, in the profile that this program was compiled in;
/// the first may take as long as a build of the project.
#[derive(Parser)]
#[command(name = "exercise", version = crate::stamp::version(), after_help = EXAMPLES)]
pub(super) struct Exercises {
    /// Which one to check; without it all are listed
    #[arg(value_name = "NAME")]
    name: Option<String>,
    /// Print a hint, the first one or the one of this number
    #[arg(long, value_name = "N", num_args = 0..=1, default_missing_value = "1", requires = "name")]
    hint: Option<usize>,
    /// Print where this project does what is asked for, and the lines
    #[arg(long, requires = "name", conflicts_with = "hint")]
    solution: bool,
    /// Check again whenever the file changes, until it is done
    #[arg(long, requires = "name", conflicts_with_all = ["hint", "solution"])]
    watch: bool,
}

const EXAMPLES: &str = "\
Examples:
  tapezoo exercise                       the list: done, next, to do
  tapezoo exercise delta_step            check exercises/delta_step.rs
  tapezoo exercise delta_step --watch    again each time that you save it
  tapezoo exercise delta_step --hint 2   the second hint
  tapezoo exercise delta_step --solution

Exit status: 0 when the exercise is done, 1 when it is not, 2 when there is
no such exercise, no repository here, or no cargo, or when the library does
not compile.";

pub(super) fn run(args: &Exercises) -> ExitCode {
    let status = root().and_then(|root| match &args.name {
        None => list(&root).map(|()| true),
        Some(name) => one(&root, find(name)?, args),
    });
    status.map_or_else(|e| fail(&e, 2), |done| if done { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn one(root: &Path, exercise: &Exercise, args: &Exercises) -> Result<bool> {
    if let Some(n) = args.hint {
        return print(hint(exercise, n)?).map(|()| true);
    }
    if args.solution {
        return print(solution(root, exercise)?).map(|()| true);
    }
    let file = root.join(exercise.file(root));
    let saved = || fs::metadata(&file).and_then(|file| file.modified()).ok();
    loop {
        let seen = saved();
        let done = check(root, exercise)?;
        if done || !args.watch {
            return Ok(done);
        }
        // While an editor saves, the file may be gone for a moment.
        while [seen, None].contains(&saved()) {
            thread::sleep(Duration::from_millis(200));
        }
        print("\n".into())?;
    }
}

/// Compiles the exercise and runs its checks, which speak for themselves. Whether it is done.
fn check(root: &Path, exercise: &Exercise) -> Result<bool> {
    let (name, file) = (exercise.name, exercise.file(root));
    let programs = compile(root, &[name], true)?;
    let Some(program) = programs.get(name) else {
        return print(format!("{file} was not compiled: cargo says why above\n")).map(|()| false);
    };
    // The checks repeat the emulator's report of a kernel.
    let stderr = if file.ends_with(".cu") { Stdio::null() } else { Stdio::inherit() };
    let passes = Command::new(program).current_dir(root).stderr(stderr).status();
    let passes = passes.map_err(Error::io(program))?.success();
    let open = exercise.is_open(root)?;
    print(match (passes, open) {
        (false, _) => format!("\nFor a hint: tapezoo exercise {name} --hint\n"),
        (true, true) => format!("\nAll checks pass. Take todo! out of {file}, and it is done.\n"),
        (true, false) => format!("\n{name} is done. `tapezoo exercise` says what is next.\n"),
    })?;
    Ok(passes && !open)
}

fn hint(exercise: &Exercise, n: usize) -> Result<String> {
    let Exercise { name, hints, .. } = exercise;
    let Some(hint) = n.checked_sub(1).and_then(|i| hints.get(i)) else {
        return Err(Error::config(format!("--hint {n}: {name} has hints 1 to {}", hints.len())));
    };
    let more = match hints.len() - n {
        0 => format!("The lines that do it here: tapezoo exercise {name} --solution"),
        _ => format!("The next one: tapezoo exercise {name} --hint {}", n + 1),
    };
    Ok(fit(&format!("Hint {n} of {}: {hint}\n\n{more}\n", hints.len()), columns()))
}

fn solution(root: &Path, exercise: &Exercise) -> Result<String> {
    let mut text = String::new();
    for place in exercise.solution {
        let (first, lines) = place.lines(root)?;
        let _ = writeln!(text, "{}:{first}", place.file);
        for line in lines {
            let _ = writeln!(text, "    {line}");
        }
        text.push('\n');
    }
    Ok(text)
}

/// How long the checks of one exercise may take in a list of all.
const PATIENCE: Duration = Duration::from_secs(60);

/// Whether a program ends well; none if it does not end within this time, as a loop without an end.
fn ends_well(mut child: Child, within: Duration) -> Option<bool> {
    let start = Instant::now();
    while start.elapsed() < within {
        match child.try_wait() {
            Ok(None) => thread::sleep(Duration::from_millis(20)),
            ended => return Some(ended.is_ok_and(|status| status.is_some_and(|status| status.success()))),
        }
    }
    // It may have ended just now.
    let _ = child.kill();
    let _ = child.wait();
    None
}

/// Prints all exercises. What still has a hole is not compiled.
fn list(root: &Path) -> Result<()> {
    let mut filled = vec![];
    for exercise in &EXERCISES {
        if !exercise.is_open(root)? {
            filled.push(exercise.name);
        }
    }
    let programs = if filled.is_empty() { Default::default() } else { compile(root, &filled, false)? };
    let passes = |program: &PathBuf| {
        let quiet = Command::new(program).current_dir(root).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        quiet.map_or(Some(false), |child| ends_well(child, PATIENCE))
    };
    let ended = |name: &str| programs.get(name).map_or(Some(false), passes);
    let ended: Vec<Option<bool>> = EXERCISES.iter().map(|exercise| ended(exercise.name)).collect();
    let done: Vec<bool> = ended.iter().map(|ended| *ended == Some(true)).collect();
    let next = done.iter().position(|done| !done);
    let mut text = String::new();
    for (i, (Exercise { name, title, .. }, done)) in EXERCISES.iter().zip(&done).enumerate() {
        let state = match done {
            true => "done",
            false if Some(i) == next => "next",
            false => "to do",
        };
        let _ = writeln!(text, "{:>2}  {state:<5}  {name:<24}  {title}", i + 1);
    }
    let count = done.iter().filter(|&&done| done).count();
    let _ = match next.map(|i| &EXERCISES[i]) {
        None => writeln!(text, "\nAll {count} are done."),
        Some(next) => writeln!(
            text,
            "\n{count} of {} done. Next: edit {}, then\ntapezoo exercise {}",
            EXERCISES.len(),
            next.file(root),
            next.name
        ),
    };
    for (exercise, _) in EXERCISES.iter().zip(&ended).filter(|(_, ended)| ended.is_none()) {
        let _ = writeln!(
            text,
            "{} was stopped after {} seconds: its loop may have no end.",
            exercise.name,
            PATIENCE.as_secs()
        );
    }
    print(fit(&text, columns()))
}
