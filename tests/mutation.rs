//! Every barrier is needed: without it a test must fail, or the barrier should go.
//!
//! The emulator runs a kernel without one `__syncthreads()` or `__syncwarp()` (`TAPEZOO_EMU_WITHOUT=FILE:LINE`);
//! nothing is recompiled. With its checks on, the tests of the ops that use the file run as separate processes, and one
//! of them must fail. The list: `cargo test --test mutation -- --ignored --nocapture`, of some files with
//! `TAPEZOO_BARRIERS=selective.cu,fade.cuh`, and of every fourth one, from the second on, with `TAPEZOO_BARRIERS_PART=1/4`.

#![allow(clippy::unwrap_used)]

mod device;

use device::{checked, kernel_tests, root, side_by_side, skipped};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    time::Instant,
};
use tapezoo::{cuda::emulator, ops::OPS};

/// One line with a barrier, and the ops whose tests should fail without it.
#[derive(Debug)]
struct Barrier {
    place: String,
    ops: Vec<String>,
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

/// The ops that are named in a Rust file that includes this `.cu` file, or in `lstm.rs` where that is `lstm/device.rs`.
fn ops_of(file: &Path) -> Vec<String> {
    let name = file.file_name().unwrap().to_string_lossy().into_owned();
    let mut words = BTreeSet::new();
    for path in sources(&["rs"]) {
        let text = fs::read_to_string(&path).unwrap();
        let near = path.parent() == file.parent() && text.contains(&format!("\"{name}\""));
        if near || text.contains(&format!("/{name}\")")) {
            let above = fs::read_to_string(path.parent().unwrap().with_extension("rs")).unwrap_or_default();
            let text = text + &above;
            words.extend(text.split(|c: char| !c.is_alphanumeric()).map(String::from));
        }
    }
    OPS.iter().map(|(op, _)| op.to_string()).filter(|op| words.contains(op)).collect()
}

fn barriers() -> Vec<Barrier> {
    let mut all = vec![];
    for path in sources(&["cu", "cuh"]) {
        let text = fs::read_to_string(&path).unwrap();
        let name = path.strip_prefix(root()).unwrap().to_string_lossy().into_owned();
        let ops = ops_of(&path);
        all.extend(
            barrier_lines(&text).into_iter().map(|n| Barrier { place: format!("{name}:{n}"), ops: ops.clone() }),
        );
    }
    all
}

/// The runs tried for a barrier, quick ones first: test binary, the single test to run if not all, cases, order.
type Try<'a> = (&'a Path, Option<String>, usize, &'a str);

/// The tests of a file under `tests/`, and what stands between each and the next.
fn functions(text: &str) -> impl Iterator<Item = (&str, &str)> {
    text.split("\n#[test]\n").skip(1).filter_map(|f| Some((f.split_once("fn ")?.1.split_once('(')?.0, f)))
}

fn tries<'a>(barrier: &Barrier, tests: &'a BTreeMap<String, PathBuf>) -> Vec<Try<'a>> {
    let (file, _) = barrier.place.rsplit_once(':').unwrap();
    let shared = file.ends_with(".cuh");
    let stem = Path::new(file).file_stem().unwrap().to_string_lossy().into_owned();
    let names: Vec<&str> = barrier.ops.iter().chain([&stem]).map(String::as_str).collect();
    let mut all = vec![];
    if !barrier.ops.is_empty() {
        let double = || Some("every_op_follows_the_cpu_in_double".to_string());
        all.extend([(2, "forward"), (6, "reverse")].map(|(cases, order)| (&*tests["cuda"], double(), cases, order)));
    }
    // Code that kernels share has its own tests.
    let text = |name: &str| fs::read_to_string(root().join(format!("tests/{name}.rs"))).unwrap();
    let name = file.rsplit('/').next().unwrap();
    let own = |text: &str| if shared { text.contains(name) } else { names.iter().any(|word| text.contains(word)) };
    let rest = || tests.iter().filter(|(name, _)| *name != "cuda");
    for order in ["forward", "random"] {
        // Tests that name an op of this file, one after another: the first that fails is enough.
        for (name, binary) in rest() {
            let text = text(name);
            let some = functions(&text).filter(|(_, body)| own(&text) && (shared || own(body)));
            all.extend(some.map(|(test, _)| (&**binary, Some(test.to_string()), 3, order)));
        }
        all.extend(
            rest().filter(|(name, _)| !shared && own(&text(name))).map(|(_, binary)| (&**binary, None, 3, order)),
        );
    }
    all.extend([(&*tests["cuda"], None, 24, "random")].into_iter().filter(|_| !shared));
    all
}

/// Whether some test fails without this barrier; if none does, whether the barrier was ever reached.
fn missed(barrier: &Barrier, tests: &BTreeMap<String, PathBuf>) -> Result<String, &'static str> {
    let ops = if barrier.ops.is_empty() { "no op".into() } else { barrier.ops.join(",") };
    let mut reached = false;
    for (binary, only, cases, order) in tries(barrier, tests) {
        let mut child = checked(binary, order, cases);
        let ran =
            child.env("TAPEZOO_EMU_WITHOUT", &barrier.place).env("TAPEZOO_OP", &ops).args(&only).output().unwrap();
        let said = String::from_utf8_lossy(&ran.stderr).into_owned();
        reached |= said.contains("was left out") && !said.contains("was left out 0 times");
        if !ran.status.success() && reached {
            let name = binary.file_stem().unwrap_or_default().to_string_lossy();
            return Ok(format!("missed by {name} {}, {order}", only.as_deref().unwrap_or("")));
        }
    }
    Err(if reached { "NOT MISSED by any test" } else { "REACHED by no test" })
}

#[test]
#[ignore = "minutes of compiling; run it when a kernel has changed"]
fn every_barrier_is_needed() {
    if let Err(why) = emulator::libraries() {
        return skipped(&why);
    }
    let (tests, mut all) = (kernel_tests(), barriers());
    let only = std::env::var("TAPEZOO_BARRIERS").unwrap_or_default();
    all.retain(|barrier| only.split(',').any(|file| barrier.place.contains(file)));
    if let Ok(part) = std::env::var("TAPEZOO_BARRIERS_PART") {
        let parsed = part.split_once('/').and_then(|(i, n)| Some((i.parse().ok()?, n.parse().ok()?)));
        let (first, of): (usize, usize) =
            parsed.unwrap_or_else(|| panic!("TAPEZOO_BARRIERS_PART={part}: expected as 1/4"));
        all = all.into_iter().skip(first).step_by(of).collect();
    }
    let survivors: Vec<String> = side_by_side(&all, |barrier| {
        let start = Instant::now();
        let missed = missed(barrier, &tests);
        let seconds = start.elapsed().as_secs_f64();
        println!("{}: {}, {seconds:.1} s", barrier.place, missed.as_deref().unwrap_or_else(|why| why));
        missed.err().map(|why| format!("{} ({}): {why}", barrier.place, barrier.ops.join(", ")))
    })
    .into_iter()
    .flatten()
    .collect();
    println!("{} barriers left out in turn, {} not missed", all.len(), survivors.len());
    assert!(survivors.is_empty(), "no test fails without these barriers:\n{}", survivors.join("\n"));
}

#[test]
fn barriers_are_found_outside_comments() {
    let text = "a;\n__syncthreads();\n// __syncthreads();\nx(); __syncwarp(); // __syncthreads()\nint y = __syncthreads_or(1);\n";
    assert_eq!(barrier_lines(text), [2, 4]);
}

/// A `#line` with a wrong file name misdirects every report on the kernel, and none of its barriers would be found.
#[test]
fn line_directives_name_their_own_file_and_line() {
    for path in sources(&["cu", "cuh"]) {
        let name = path.strip_prefix(root()).unwrap().display().to_string();
        for (i, line) in fs::read_to_string(&path).unwrap().lines().enumerate().filter(|(_, s)| s.starts_with("#line"))
        {
            assert_eq!(line, format!("#line {} \"{name}\"", i + 2));
        }
    }
}
