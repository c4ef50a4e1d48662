//! The programs, as subcommands of `tapezoo`.

#![allow(dead_code, clippy::unwrap_used)] // Few tests need all of it.

use std::{
    fs,
    path::PathBuf,
    process::{Command, Output},
};

/// One of the programs, by its name as a subcommand or as a program of its own.
pub fn program(name: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tapezoo"));
    command.arg(name);
    command
}

/// Status, standard output and standard error.
pub fn outcome(output: Output) -> (Option<i32>, String, String) {
    // A model of bytes writes any bytes.
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(!stderr.contains("panicked"), "{stderr}");
    (output.status.code(), stdout, stderr)
}

/// Run a command line, whose words are separated by spaces.
pub fn run(line: &str) -> Ran {
    let mut words = line.split_whitespace();
    Ran::of(program(words.next().unwrap()).args(words).output().unwrap())
}

/// The words of an error about a key as this command line makes them: `train_len 7` is `--train-len 7` if a flag sets
/// it.
pub fn as_typed(line: &str, words: &str) -> String {
    let (key, rest) = words.split_at(words.find([' ', ':']).unwrap_or(words.len()));
    let flag = format!("--{}", key.replace('_', "-"));
    let typed = line.split(' ').any(|word| word == flag);
    if typed { format!("{flag}{}", rest.replacen(" =", "", 1)) } else { words.into() }
}

/// A directory of a test's own, in which programs run.
pub struct Place(pub tempfile::TempDir);

/// The outcome of a program.
pub struct Ran {
    pub status: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl Ran {
    pub fn of(output: Output) -> Ran {
        let (status, stdout, stderr) = outcome(output);
        Ran { status, stdout, stderr }
    }
}

impl Place {
    pub fn new() -> Place {
        Place(tempfile::tempdir().unwrap())
    }

    pub fn at(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Run a command line, whose words are separated by spaces, in this directory.
    pub fn run(&self, line: &str) -> Ran {
        let mut words = line.split_whitespace();
        Ran::of(program(words.next().unwrap()).args(words).current_dir(self.0.path()).output().unwrap())
    }

    /// A file with this text; its path.
    pub fn write(&self, name: &str, text: impl AsRef<[u8]>) -> String {
        fs::write(self.at(name), text).unwrap();
        self.at(name).display().to_string()
    }

    /// Assert that the command succeeds. Returns its standard output.
    #[track_caller]
    pub fn prints(&self, line: &str) -> String {
        let ran = self.run(line);
        assert_eq!(ran.status, Some(0), "{line}: {}", ran.stderr);
        ran.stdout
    }

    /// Assert that the command succeeds, with one warning for each of these, which contains all its words.
    #[track_caller]
    pub fn warns(&self, line: &str, said: &[&[&str]]) {
        let ran = self.run(line);
        assert_eq!((ran.status, ran.stderr.lines().count()), (Some(0), said.len()), "{line}: {}", ran.stderr);
        for (warning, words) in ran.stderr.lines().zip(said) {
            assert!(warning.starts_with("warning: "), "{line}: {warning}");
            words.iter().for_each(|word| assert!(warning.contains(word), "{line}: no '{word}' in: {warning}"));
        }
    }

    /// Assert that the command stops with status 2 and a message that contains these words.
    #[track_caller]
    pub fn refuses(&self, line: &str, words: &[&str]) {
        let ran = self.run(line);
        assert_eq!(ran.status, Some(2), "{line}: {}", ran.stderr);
        for word in words.iter().map(|words| as_typed(line, words)) {
            assert!(ran.stderr.contains(&word), "{line}: no '{word}' in: {}", ran.stderr);
        }
    }

    /// A configuration file with this text, named in `line` as FILE.
    #[track_caller]
    pub fn with_file(&self, text: &str, line: &str) -> String {
        self.write("file.toml", text);
        line.replace("FILE", "file.toml")
    }
}
