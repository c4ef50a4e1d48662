//! `tapezoo report`: a page of run directories, with tables, curves and configurations.

use super::{fail, print, say};
use crate::{
    error::Result,
    report::{Report, report},
};
use clap::Parser;
use indicatif::{ProgressBar, ProgressStyle};
use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

/// Make a page of run directories: tables, learning curves, scores over evaluation length, configurations
///
/// Reads what parity, dyck, mqar and state_tracking leave with --out, and writes report.html, which needs nothing but
/// a browser, and every figure as an SVG file beside it. Runs whose configurations agree but for the model and the
/// seed share a section, from whichever directory they are; other tasks and other settings get sections of their own.
///
/// A run that was killed, or still goes on, is shown as far as it came. Notes on the page, and on standard error,
/// say what is missing.
#[derive(Parser)]
#[command(name = "report", version = crate::stamp::version(), after_help = EXAMPLES)]
pub(super) struct Pages {
    /// Run directories, or directories that hold some at any depth
    #[arg(required = true, value_name = "RUN_DIR")]
    dirs: Vec<PathBuf>,
    /// Where to write report.html and the figures
    #[arg(long, value_name = "DIR", default_value = "report")]
    out: PathBuf,
}

const EXAMPLES: &str = "\
Examples:
  parity --out runs/parity --eval-every 200      train; evaluate also on the way, for curves
  report runs/parity                             writes report/report.html
  report runs/parity runs/dyck --out both        two experiments on one page
  report runs                                    all that is below a directory

Exit status: 0 when the report is written, 1 when it cannot be written, 2 when there is nothing to report or a
directory cannot be read. Nothing is written then.";

/// Status 0: written; 1: it cannot be written; 2: there is nothing to report.
pub(super) fn run(args: &Pages) -> ExitCode {
    for (i, dir) in args.dirs.iter().enumerate() {
        if args.dirs[..i].contains(dir) {
            say("note", &format!("{} is named twice; its runs count once", dir.display()));
        }
    }
    let bar = ProgressBar::new_spinner().with_style(
        ProgressStyle::with_template("{spinner} {pos} {wide_msg}").unwrap_or_else(|_| ProgressStyle::default_spinner()),
    );
    let made = report(&args.dirs, &bar);
    bar.finish_and_clear();
    match made {
        Ok(report) => finish(&report, &args.out).map_or_else(|e| fail(&e, 1), |()| ExitCode::SUCCESS),
        Err(e) => fail(&e, 2),
    }
}

fn finish(report: &Report, out: &Path) -> Result<()> {
    let path = report.write(out)?;
    for note in &report.notes {
        // The page says it too.
        say("note", note);
    }
    let (runs, figures) = (report.runs, report.figures.len());
    print(format!("{}: {runs} runs; {figures} figures beside it\n", path.display()))
}
