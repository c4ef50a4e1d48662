//! A directory in which programs are run, and what they say.

use crate::program::{as_typed, program};
use std::{fs, path::PathBuf};

pub struct Place(tempfile::TempDir);

pub struct Ran {
    pub status: Option<i32>,
    pub stdout: String,
    pub stderr: String,
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
        let output = program(words.next().unwrap()).args(words).current_dir(self.0.path()).output().unwrap();
        let [stdout, stderr] = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
        assert!(!stderr.contains("panicked"), "{line}: {stderr}");
        Ran { status: output.status.code(), stdout, stderr }
    }

    /// It must succeed, with one warning for each of these, which contains all its words.
    #[track_caller]
    pub fn warns(&self, line: &str, said: &[&[&str]]) {
        let ran = self.run(line);
        assert_eq!((ran.status, ran.stderr.lines().count()), (Some(0), said.len()), "{line}: {}", ran.stderr);
        for (warning, words) in ran.stderr.lines().zip(said) {
            assert!(warning.starts_with("warning: "), "{line}: {warning}");
            words.iter().for_each(|word| assert!(warning.contains(word), "{line}: no '{word}' in: {warning}"));
        }
    }

    /// It must stop with status 2 and a message that contains these words.
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
        fs::write(self.at("file.toml"), text).unwrap();
        line.replace("FILE", "file.toml")
    }
}
