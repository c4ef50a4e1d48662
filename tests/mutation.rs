//! Every barrier is needed: without it a test must fail, or the barrier should go.
//!
//! The emulator compiles a kernel as if one `__syncthreads()` or `__syncwarp()` were not there
//! (`TAPEZOO_EMU_WITHOUT=FILE:LINE`), and the tests of the ops that use the file run with its checks on, as a process
//! of their own; nothing is built anew. A plain `cargo test` draws a few barriers of all; every one is tried by
//! `cargo test --test mutation -- --ignored --nocapture`.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};
use tapezoo::cuda::emulator;

/// How many barriers a plain run tries, and for how long at most.
const SAMPLE: usize = 4;
const TIME: Duration = Duration::from_secs(60);

/// One line with a barrier, and the ops whose tests should miss it.
#[derive(Debug)]
struct Barrier {
    place: String,
    ops: Vec<String>,
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// Files under `src/` with one of these endings, sorted.
fn sources(endings: &[&str]) -> Vec<PathBuf> {
    let (mut files, mut folders) = (vec![], vec![root().join("src")]);
    while let Some(folder) = folders.pop() {
        for path in fs::read_dir(folder).unwrap().map(|f| f.unwrap().path()) {
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|e| endings.iter().any(|&ending| e == ending)) {
                files.push(path);
            }
        }
    }
    files.sort();
    files
}

/// Lines with a barrier outside comments.
fn barrier_lines(text: &str) -> Vec<usize> {
    let code = |line: &str| line.split("//").next().unwrap_or("").to_string();
    let has = |line: &str| ["__syncthreads(", "__syncwarp("].iter().any(|b| line.contains(b));
    text.lines().enumerate().filter(|(_, line)| has(&code(line))).map(|(i, _)| i + 1).collect()
}

/// The ops of every Rust file that includes this `.cu` file. For the prelude: of all that launch kernels.
fn ops_of(file: &Path) -> Vec<String> {
    let name = file.file_name().unwrap().to_string_lossy().into_owned();
    let prelude = name == "prelude.cuh";
    let mut ops = BTreeSet::new();
    for path in sources(&["rs"]) {
        let text = fs::read_to_string(&path).unwrap();
        let near = path.parent() == file.parent() && text.contains(&format!("\"{name}\""));
        let includes = near || text.contains(&format!("/{name}\")"));
        if includes || (prelude && text.contains("include_str!") && path.starts_with(root().join("src/ops"))) {
            ops.extend(text.split("impl Op for ").skip(1).filter_map(|s| {
                let name: String = s.chars().take_while(|c| c.is_alphanumeric()).collect();
                (!name.is_empty()).then_some(name)
            }));
        }
    }
    ops.into_iter().collect()
}

fn barriers() -> Vec<Barrier> {
    let mut all = vec![];
    for path in sources(&["cu", "cuh"]) {
        let text = fs::read_to_string(&path).unwrap();
        let name = path.strip_prefix(root()).unwrap().to_string_lossy().into_owned();
        let ops = ops_of(&path);
        all.extend(barrier_lines(&text).into_iter().map(|n| Barrier { place: format!("{name}:{n}"), ops: ops.clone() }));
    }
    all
}

/// The test binaries `cuda` and `cuda_…`, which cargo has put beside this one; the latest of each name.
fn test_binaries() -> Vec<PathBuf> {
    let deps = std::env::current_exe().unwrap().parent().unwrap().to_path_buf();
    let mut latest = std::collections::BTreeMap::new();
    for path in fs::read_dir(deps).unwrap().map(|f| f.unwrap().path()) {
        let Some((stem, hash)) = path.file_name().unwrap().to_str().unwrap().rsplit_once('-') else { continue };
        if hash.contains('.') || !(stem == "cuda" || stem.starts_with("cuda_")) {
            continue;
        }
        let time = path.metadata().and_then(|m| m.modified()).unwrap();
        match latest.get(stem) {
            Some((newest, _)) if *newest >= time => {}
            _ => drop(latest.insert(stem.to_string(), (time, path.clone()))),
        }
    }
    latest.into_values().map(|(_, path)| path).collect()
}

/// Whether the tests pass, with a barrier left out or none.
fn passes(binary: &Path, op: &str, cases: usize, order: &str, without: Option<&str>) -> bool {
    let mut child = Command::new(binary);
    child
        .env("TAPEZOO_EMU_CHECK", "1")
        .env("TAPEZOO_EMU_ORDER", order)
        .env("TAPEZOO_OP", op)
        .env("TAPEZOO_CASES", cases.to_string())
        .env("TAPEZOO_EMU_WITHOUT", without.unwrap_or(""))
        .current_dir(root())
        .args(["--test-threads", "1"])
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    child.status().unwrap().success()
}

/// Whether some test fails without this barrier; quick tries first.
fn missed(binaries: &[PathBuf], barrier: &Barrier) -> bool {
    let none = [String::from("no op, only the tests that name none")];
    let ops = if barrier.ops.is_empty() { &none[..] } else { &barrier.ops[..] };
    for (cases, order) in [(4, "forward"), (12, "reverse"), (24, "random")] {
        for binary in binaries {
            if ops.iter().any(|op| !passes(binary, op, cases, order, Some(&barrier.place))) {
                return true;
            }
        }
    }
    false
}

fn try_out(barriers: Vec<Barrier>, time: Duration) {
    if let Err(why) = emulator::libraries() {
        eprintln!("SKIPPED, no barrier was left out: {why}");
        return;
    }
    let binaries = test_binaries();
    assert!(!binaries.is_empty(), "the tests to run are not built: cargo test --no-run");
    let (start, mut tried, mut survivors) = (Instant::now(), 0, vec![]);
    let all = barriers.len();
    for barrier in barriers.into_iter().take_while(|_| start.elapsed() < time) {
        let missed = missed(&binaries, &barrier);
        println!("{}: {}", barrier.place, if missed { "missed" } else { "NOT MISSED by any test" });
        tried += 1;
        if !missed {
            survivors.push(format!("{} ({})", barrier.place, barrier.ops.join(", ")));
        }
    }
    println!("{tried} of {all} barriers left out, {} not missed", survivors.len());
    assert!(survivors.is_empty(), "no test fails without these barriers: {}", survivors.join("; "));
}

#[test]
fn a_few_barriers_are_needed() {
    let mut all = barriers();
    // Others each day: any of them may be wrong, and all are tried by the full run.
    let day = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs() as usize / 86400;
    let seed = std::env::var("PROPTEST_RNG_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(day);
    let n = all.len().max(1);
    all.rotate_left(seed.wrapping_mul(7919) % n);
    let step = (n / SAMPLE).max(1);
    let drawn = all.into_iter().step_by(step).take(SAMPLE).collect();
    try_out(drawn, TIME);
}

#[test]
#[ignore = "every barrier: minutes"]
fn every_barrier_is_needed() {
    try_out(barriers(), Duration::MAX);
}

#[test]
fn barriers_are_found_outside_comments() {
    let text = "a;\n__syncthreads();\n// __syncthreads();\nx(); __syncwarp(); // __syncthreads()\nint y = __syncthreads_or(1);\n";
    assert_eq!(barrier_lines(text), [2, 4]);
}
