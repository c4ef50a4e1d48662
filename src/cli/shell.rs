//! `tapezoo completions` and `tapezoo man`: what a shell and a manual are told of the command line.

use super::{
    fail,
    programs::{command, printed},
};
use crate::error::{Error, Result};
use clap::Parser;
use clap_complete::Shell;
use std::{
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
};

/// Print what completes tapezoo's commands and flags in a shell
///
/// For this session of bash: `source <(tapezoo completions bash)`. For good, write it to where your shell looks:
/// ~/.local/share/bash-completion/completions/tapezoo, ~/.config/fish/completions/tapezoo.fish, or _tapezoo in a
/// directory of zsh's $fpath.
#[derive(Parser)]
#[command(name = "completions")]
pub(super) struct Completions {
    /// The shell
    shell: Shell,
}

pub(super) fn completions(args: &Completions) -> ExitCode {
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut command(), "tapezoo", &mut text);
    printed(String::from_utf8_lossy(&text).into_owned())
}

/// Print the manual page, of tapezoo or of one of its commands
///
/// To read one now: `tapezoo man parity | man -l -`.
#[derive(Parser)]
#[command(name = "man")]
pub(super) struct Man {
    /// One of tapezoo's commands
    #[arg(value_name = "COMMAND")]
    of: Option<String>,
    /// Write all pages into this directory, as tapezoo.1, tapezoo-train.1 and so on
    #[arg(long, value_name = "DIR", conflicts_with = "of")]
    out: Option<PathBuf>,
}

pub(super) fn man(args: &Man) -> ExitCode {
    match (&args.out, page(args.of.as_deref())) {
        (_, Err(e)) => fail(&e, 2),
        (None, Ok(page)) => printed(page),
        (Some(dir), Ok(_)) => {
            let written = fs::create_dir_all(dir).and_then(|()| clap_mangen::generate_to(command(), dir));
            written
                .and_then(|()| as_they_stand_in(dir))
                .map_err(Error::io(dir))
                .map_or_else(|e| fail(&e, 1), |()| ExitCode::SUCCESS)
        }
    }
}

fn page(of: Option<&str>) -> Result<String> {
    let mut all = command();
    all.build();
    let names: Vec<String> = all.get_subcommands().map(|c| c.get_name().to_string()).collect();
    let command = match of {
        None => all,
        Some(name) => all.find_subcommand(name).cloned().ok_or_else(|| {
            let near = crate::error::did_you_mean(name, names.iter().map(String::as_str));
            Error::Config(format!("man {name}: no command of tapezoo{near}: expected one of {}", names.join(", ")))
        })?,
    };
    let mut text = Vec::new();
    // The version has several lines, and a title one.
    let version = concat!("tapezoo ", env!("CARGO_PKG_VERSION"));
    clap_mangen::Man::new(command).source(version).render(&mut text).map_err(Error::io("the manual page"))?;
    Ok(as_they_stand(&String::from_utf8_lossy(&text)))
}

/// A page whose examples, lines that begin with two spaces, are not filled.
fn as_they_stand(page: &str) -> String {
    let (mut text, mut examples, mut stand) = (String::new(), false, false);
    for line in page.lines() {
        if line.starts_with(".SH") {
            examples = line == ".SH EXTRA";
        }
        let stands = examples && line.starts_with("  ");
        text += match (stand, stands) {
            (false, true) => ".nf\n",
            (true, false) => ".fi\n",
            _ => "",
        };
        stand = stands;
        text += if line == ".SH EXTRA" { ".SH EXAMPLES" } else { line };
        text.push('\n');
    }
    text + if stand { ".fi\n" } else { "" }
}

/// [`as_they_stand`] of the pages in a directory.
fn as_they_stand_in(dir: &Path) -> std::io::Result<()> {
    for path in fs::read_dir(dir)?.map(|entry| entry.map(|entry| entry.path())).collect::<std::io::Result<Vec<_>>>()? {
        let ours = path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with("tapezoo"));
        if ours && path.extension().is_some_and(|ending| ending == "1") {
            fs::write(&path, as_they_stand(&fs::read_to_string(&path)?))?;
        }
    }
    Ok(())
}
