//! Says which build this is: the crate's version, the commit where there is one, and a hash of the sources.

#[allow(dead_code)]
#[path = "src/rng/fnv1a.rs"]
mod fnv1a;

use fnv1a::Fnv1a;
use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
    time::{SystemTime, UNIX_EPOCH},
};

/// The sources of the programs, as far as they are in this repository.
const SOURCES: [&str; 7] = ["src", "cuemu", "configs", "versions", "build.rs", "Cargo.toml", "Cargo.lock"];

fn main() {
    let mut files = Vec::new();
    for source in SOURCES.map(Path::new).into_iter().filter(|path| path.exists()) {
        println!("cargo::rerun-if-changed={}", source.display());
        list(source, &mut files);
    }
    files.sort();
    let mut hash = Fnv1a::default();
    for path in files {
        let name = path.to_string_lossy().replace('\\', "/");
        hash.add(name.as_bytes());
        hash.add(&fs::read(&path).unwrap_or_default());
    }
    let version = env::var("CARGO_PKG_VERSION").unwrap_or_default();
    let commit = commit().map_or(String::new(), |commit| format!("commit {commit}, "));
    println!("cargo::rustc-env=TAPEZOO_BUILD={version} ({commit}source {})", hash.hex());

    // Who wants equal programs of equal sources sets the time.
    println!("cargo::rerun-if-env-changed=SOURCE_DATE_EPOCH");
    let now = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |t| t.as_secs()).to_string();
    println!("cargo::rustc-env=TAPEZOO_BUILT={}", env::var("SOURCE_DATE_EPOCH").unwrap_or_else(|_| now()));
}

/// The files below a path.
fn list(path: &Path, files: &mut Vec<PathBuf>) {
    match fs::read_dir(path) {
        Ok(entries) => entries.flatten().for_each(|entry| list(&entry.path(), files)),
        Err(_) => files.push(path.into()),
    }
}

/// The commit, with "+" where the sources differ from it; none outside of a repository of this crate, or without git.
fn commit() -> Option<String> {
    let here = fs::canonicalize(env::var_os("CARGO_MANIFEST_DIR")?).ok()?;
    if fs::canonicalize(git(&["rev-parse", "--show-toplevel"])?).ok()? != here {
        return None;
    }
    // HEAD moves with every commit: its log is written to then, where it has one, or else a reference.
    let branch = git(&["symbolic-ref", "-q", "HEAD"]);
    for name in ["HEAD", "logs/HEAD", "packed-refs"].into_iter().chain(branch.as_deref()) {
        let path = git(&["rev-parse", "--git-path", name]);
        path.filter(|path| Path::new(path).exists()).iter().for_each(|path| println!("cargo::rerun-if-changed={path}"));
    }
    let commit = git(&["rev-parse", "--short=12", "HEAD"])?;
    let mut status = vec!["status", "--porcelain", "--"];
    status.extend(SOURCES);
    let changed = git(&status).is_some_and(|changes| !changes.is_empty());
    Some(commit + if changed { "+" } else { "" })
}

/// The output of git, without the line's end.
fn git(args: &[&str]) -> Option<String> {
    let output = Command::new("git").arg("--no-optional-locks").args(args).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim_end().to_string())
}
