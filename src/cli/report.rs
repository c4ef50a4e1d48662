//! `tapezoo report`: a page of run directories, with tables, curves and configurations.

use super::{bar::with_bar, fail, print, say};
use crate::{
    error::{Result, count},
    report::{Report, report, watch::Watch},
};
use clap::Parser;
use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

/// Make a page of run directories: tables, learning curves, scores over evaluation length, configurations
///
/// Reads what the training programs leave with --out, and writes report.html, which needs nothing but
/// a browser, and every figure as an SVG file beside it. Runs whose configurations agree but for the model and the
/// seed share a section, from whichever directory they are; other tasks and other settings get sections of their own.
///
/// The points of a sweep are also shown together: the score over each axis of the grid, two axes in a map, and the
/// best point of each model.
///
/// A run that was killed, or still goes on, is shown as far as it came. Notes on the page, and on standard error,
/// say what is missing. --watch shows the page at an address of this machine and keeps up with the runs.
#[derive(Parser)]
#[command(name = "report", version = crate::stamp::version(), after_help = EXAMPLES)]
pub(super) struct Pages {
    /// Run directories, or directories that hold some at any depth
    #[arg(required = true, value_name = "RUN_DIR")]
    dirs: Vec<PathBuf>,
    /// Where to write report.html and the figures
    #[arg(long, value_name = "DIR", default_value = "report")]
    out: PathBuf,
    /// Serve the page on this machine instead of writing it, anew whenever a run's files change; Ctrl-C ends it
    #[arg(long, conflicts_with = "out")]
    watch: bool,
    /// With --watch: the port [default: any that is free]
    #[arg(long, value_name = "N", requires = "watch")]
    port: Option<u16>,
}

const EXAMPLES: &str = "\
Examples:
  parity --out runs/parity --eval-every 200      train; evaluate also on the way, for curves
  report runs/parity                             writes report/report.html
  report runs/parity runs/dyck --out both        two experiments on one page
  report runs                                    all that is below a directory
  report runs/grid --watch                       a sweep that is under way, in a browser

Exit status: 0 when the report is written, 1 when it cannot be written, 2 when there is nothing to report or a \
directory cannot be read. Nothing is written then.";

/// Status 0: written; 1: it cannot be written; 2: there is nothing to report.
pub(super) fn run(args: &Pages) -> ExitCode {
    for (i, dir) in args.dirs.iter().enumerate() {
        if args.dirs[..i].contains(dir) {
            say("note", &format!("{} is named twice; its runs count once", dir.display()));
        }
    }
    if args.watch {
        return watch(args).map_or_else(|e| fail(&e, 2), |()| ExitCode::SUCCESS);
    }
    match with_bar("{spinner} {pos} {wide_msg}", |bar| report(&args.dirs, bar)) {
        Ok(report) => finish(&report, &args.out).map_or_else(|e| fail(&e, 1), |()| ExitCode::SUCCESS),
        Err(e) => fail(&e, 2),
    }
}

/// Say where the page is, and serve it until somebody ends the program.
fn watch(args: &Pages) -> Result<()> {
    let watch = Watch::new(&args.dirs, args.port.unwrap_or(0))?;
    print(format!("{}: the report, as the runs go on; Ctrl-C ends it\n", watch.address()))?;
    watch.serve()
}

fn finish(report: &Report, out: &Path) -> Result<()> {
    let path = report.write(out)?;
    for note in &report.notes {
        // The page says it too.
        say("note", note);
    }
    let (runs, figures) = (report.runs, report.figures.len());
    print(format!("{}: {}; {} beside it\n", path.display(), count(runs, "run"), count(figures, "figure")))
}
