//! Sweeps: a grid in one command, killed and resumed, and run in parts that are merged.

#![allow(clippy::unwrap_used)]

#[path = "../close/mod.rs"]
mod close;
mod pages;
#[path = "../program/mod.rs"]
mod program;
#[path = "../texts/mod.rs"]
mod texts;

use close::close;
use program::{outcome, program};
use serde_json::Value;
use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant, SystemTime},
};
use texts::contains;

/// 2 rates, 2 models and 2 seeds: eight runs of about a tenth of a second.
const GRID: &str = "
train_len = 8
eval_lens = [8, 12]
batch = 4
steps = 300
checkpoint_every = 0.02
model = { width = 8, heads = 2, head_dim = 4, mlp = 8 }
[grid]
models = ['lstm', 'gpt']
seed = [5, 6]
lr = [0.001, 1e-2]
";

struct Place(tempfile::TempDir);

impl Place {
    fn new(grid: &str) -> Place {
        let place = Place(tempfile::tempdir().unwrap());
        fs::write(place.at("grid.toml"), grid).unwrap();
        place
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn command(&self, flags: &str) -> Command {
        let mut command = program("sweep");
        command.args(flags.split_whitespace()).current_dir(self.0.path());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Run it with these flags: status, standard output and error.
    fn sweep(&self, flags: &str) -> (Option<i32>, String, String) {
        outcome(self.command(flags).output().unwrap())
    }

    #[track_caller]
    fn succeeds(&self, flags: &str) -> String {
        let (status, stdout, stderr) = self.sweep(flags);
        assert_eq!(status, Some(0), "{flags}: {stderr}");
        stdout
    }

    /// Assert that it refuses with status 2 and a message that contains these words, and changes no file.
    #[track_caller]
    fn refuses(&self, flags: &str, words: &[&str]) {
        let before = everything(self.0.path());
        let (status, stdout, stderr) = self.sweep(flags);
        assert_eq!((status, stdout.as_str()), (Some(2), ""), "{flags}: {stderr}");
        assert!(!stderr.contains("panicked"), "{stderr}");
        for word in words {
            assert!(stderr.contains(word), "{flags}: no '{word}' in: {stderr}");
        }
        assert!(before == everything(self.0.path()), "{flags}: something was written");
    }
}

/// Every file below a directory.
fn everything(top: &Path) -> BTreeMap<String, Vec<u8>> {
    let (mut all, mut open) = (BTreeMap::new(), vec![top.to_path_buf()]);
    while let Some(dir) = open.pop() {
        for path in fs::read_dir(&dir).unwrap().map(|e| e.unwrap().path()) {
            match path.is_dir() {
                true => open.push(path),
                false => {
                    drop(all.insert(path.strip_prefix(top).unwrap().display().to_string(), fs::read(&path).unwrap()))
                }
            }
        }
    }
    all
}

/// The files whose contents do not depend on time.
fn bits(top: &Path) -> BTreeMap<String, Vec<u8>> {
    let kept =
        |name: &str| name.ends_with("metrics.jsonl") || name.ends_with(".safetensors") || name.ends_with(".toml");
    everything(top).into_iter().filter(|file| kept(&file.0)).collect()
}

#[track_caller]
fn same(a: &BTreeMap<String, Vec<u8>>, b: &BTreeMap<String, Vec<u8>>) {
    let other: Vec<_> = a.keys().chain(b.keys()).filter(|name| a.get(*name) != b.get(*name)).collect();
    assert!(other.is_empty(), "files that differ: {other:?}");
}

fn results(top: &Path) -> Vec<PathBuf> {
    everything(top).into_keys().filter(|name| name.ends_with("result.json")).map(|name| top.join(name)).collect()
}

#[test]
fn a_sweep_makes_a_run_directory_for_each_point_and_a_row_for_each_cell() {
    let place = Place::new(GRID);
    let list = place.succeeds("grid.toml --dry-run");
    assert!(!place.at("runs").exists());
    assert_eq!(list.matches("to do").count(), 8, "{list}");
    assert!(list.contains("lr=0.01  gpt seed 6") && list.contains("8 of 8 runs, in runs/grid"), "{list}");

    let table = place.succeeds("grid.toml --jobs 2");
    let out = place.at("runs/grid");
    for file in ["sweep.toml", "summary.csv", "lr=0.001/config.toml", "lr=0.001/results.json", "lr=0.01/table.txt"] {
        assert!(out.join(file).is_file(), "{file}");
    }
    assert!(out.join("lr=0.01/gpt-seed6/weights.safetensors").is_file());
    assert_eq!(results(&out).len(), 8);
    assert_eq!(table, fs::read_to_string(out.join("summary.txt")).unwrap());
    assert!(table.contains("8 runs finished, 0 failed, 0 to do"), "{table}");

    // The mean and the spread of a cell, from the results of its seeds.
    let point: Value = serde_json::from_slice(&fs::read(out.join("lr=0.01/results.json")).unwrap()).unwrap();
    let seeds = point["runs"].as_array().unwrap().iter().filter(|r| r["model"] == "gpt");
    let seeds: Vec<f64> = seeds.map(|r| r["accuracy"]["12"].as_f64().unwrap()).collect();
    let (mean, std) = ((seeds[0] + seeds[1]) / 2.0, (seeds[0] - seeds[1]).abs() / 2f64.sqrt());
    let rows = fs::read_to_string(out.join("summary.jsonl")).unwrap();
    let rows: Vec<Value> = rows.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(rows.len(), 4);
    let row = rows.iter().find(|row| row["model"] == "gpt" && row["axes"]["lr"] == "0.01").unwrap();
    close(row["scores"]["accuracy"]["12"]["mean"].as_f64().unwrap(), mean, 1e-12, "the mean");
    close(row["scores"]["accuracy"]["12"]["std"].as_f64().unwrap(), std, 1e-12, "the spread");
    assert_eq!(row["seeds"], serde_json::json!([5, 6]));
    let csv = fs::read_to_string(out.join("summary.csv")).unwrap();
    let head: Vec<&str> = csv.lines().next().unwrap().split(',').collect();
    let line = csv.lines().find(|line| line.starts_with("lr=0.01,0.01,gpt")).unwrap();
    let at = head.iter().position(|&column| column == "accuracy_12_std").unwrap();
    close(line.split(',').nth(at).unwrap().parse().unwrap(), std, 1e-12, "the spread in summary.csv");

    // A point is an ordinary run directory.
    let parity = |flag: &str| {
        let mut parity = program("parity");
        parity.arg(flag).arg(out.join("lr=0.01")).output().unwrap()
    };
    let resumed = parity("--resume");
    contains(String::from_utf8(resumed.stderr).unwrap(), "nothing left to do");
}

#[test]
fn a_killed_sweep_goes_on_and_repeats_nothing() {
    let place = Place::new(GRID);
    place.succeeds("grid.toml --out whole");
    let torn = place.at("torn");
    let mut finished: BTreeMap<PathBuf, SystemTime> = BTreeMap::new();
    let mut kills = 0u64;
    loop {
        let mut child = place.command("grid.toml --out torn --jobs 2").spawn().unwrap();
        let start = Instant::now();
        let nanos = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().subsec_nanos();
        // Later and later, or a busy machine would never come to a checkpoint.
        while start.elapsed() < Duration::from_millis(20 + u64::from(nanos / 1000) % 130 + 3 * kills) {
            thread::sleep(Duration::from_millis(2));
        }
        if child.try_wait().unwrap().is_some_and(|status| status.success()) {
            break;
        }
        child.kill().unwrap();
        child.wait().unwrap();
        kills += 1;
        assert!(kills < 200, "it gets nowhere");
        for path in if torn.exists() { results(&torn) } else { vec![] } {
            let written = fs::metadata(&path).unwrap().modified().unwrap();
            assert_eq!(*finished.entry(path.clone()).or_insert(written), written, "{} was repeated", path.display());
        }
    }
    eprintln!("killed {kills} times");
    assert!(kills > 0, "no run was killed");
    let (whole, torn) = (bits(&place.at("whole")), bits(&torn));
    assert_eq!(whole.keys().collect::<Vec<_>>(), torn.keys().collect::<Vec<_>>());
    assert!(whole == torn, "an interrupted sweep has other files");
    assert_eq!(place.succeeds("grid.toml --out torn --dry-run").matches("finished").count(), 8);
}

#[test]
fn parts_are_the_whole_and_join_into_it() {
    let place = Place::new(GRID);
    place.succeeds("grid.toml --out whole");
    for i in 0..3 {
        place.succeeds(&format!("grid.toml --out part{i} --shard {i}/3"));
    }
    let count: usize = (0..3).map(|i| results(&place.at(&format!("part{i}"))).len()).sum();
    assert_eq!(count, 8);
    // Two of three parts, then the third; merging a part again changes nothing.
    let table = place.succeeds("merge joined part0 part2");
    assert!(!table.contains("8 runs finished"), "{table}");
    let table = place.succeeds("merge joined part1 part2");
    assert!(table.contains("8 runs finished, 0 failed, 0 to do"), "{table}");
    same(&bits(&place.at("whole")), &bits(&place.at("joined")));
    let scores = |dir: &str| -> Vec<Value> {
        let rows = fs::read_to_string(place.at(dir).join("summary.jsonl")).unwrap();
        rows.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()["scores"].clone()).collect()
    };
    assert_eq!(scores("whole"), scores("joined"));
    assert_eq!(place.succeeds("grid.toml --out joined --dry-run").matches("finished").count(), 8);

    place.refuses("merge new part0 nowhere", &["nowhere", "does not exist"]);
    place.refuses("merge new part0 part0/lr=0.01", &["lr=0.01", "is no sweep", "sweep.toml"]);
    // Another result of the same run, as a build without checksums of results wrote it.
    let one = results(&place.at("part0"))[0].clone();
    let text = fs::read_to_string(&one).unwrap();
    let run = one.strip_prefix(place.at("part0")).unwrap().parent().unwrap().display().to_string();
    let changed = text.replacen("\"8\": 0.", "\"8\": 0.1", 1).replacen("\"8\": 1.", "\"8\": 0.9", 1);
    fs::write(&one, &changed).unwrap();
    place.refuses("merge new whole part0", &["not the result that this run wrote", &run]);
    let without: Vec<&str> = changed.lines().filter(|line| !line.contains("\"checksum\"")).collect();
    fs::write(&one, without.join("\n")).unwrap();
    place.refuses("merge new whole part0", &["different results of the same run", &run, "whole", "part0"]);
    place.refuses("merge joined part0", &["different results", &run]);
    fs::write(&one, &text).unwrap();
    let metrics = one.with_file_name("metrics.jsonl");
    let whole = fs::read(&metrics).unwrap();
    fs::write(&metrics, &whole[..whole.len() / 2]).unwrap();
    place.refuses("merge new part0 whole", &["metrics.jsonl", "the rest is missing", "delete result.json"]);
    assert!(!place.at("new").exists());
    fs::write(&metrics, whole).unwrap();
    let weights = one.with_file_name("weights.safetensors");
    let mut bytes = fs::read(&weights).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&weights, bytes).unwrap();
    place.refuses("merge new part0 whole", &["different weights", &run]);
    // Another sweep.
    fs::write(place.at("other.toml"), GRID.replace("1e-2", "2e-2")).unwrap();
    place.succeeds("other.toml --out other --shard 0/8");
    place.refuses("merge new whole other", &["different sweeps", "grid.lr", "0.02"]);
    place.refuses("merge other whole", &["other", "holds another sweep", "grid.lr"]);
}

#[test]
fn what_cannot_be_is_refused_before_anything_starts() {
    let many = Place::new(&GRID.replace("'lstm', 'gpt'", "'lstm'").replace("seed = [5, 6]", "seeds = [50000, 50001]"));
    many.refuses("grid.toml --out runs --dry-run", &["runs; expected at most 100000", "seeds"]);
    let place = Place::new(GRID);
    for (grid, words) in [
        ("stepz = 3\n[grid]\nlr = [0.1]", &["grid.toml", "stepz"][..]),
        ("[grid]\nlrr = [0.1, 0.2]", &["grid.toml: line 2: grid point lrr=0.1: unknown key 'lrr'"]),
        ("[gird]\nlr = [0.1]", &["grid.toml: line 1: unknown key 'gird' (did you mean 'grid'?)"]),
        ("[grid]\nlr = [0.1]\nmodels = ['lstn']", &["grid.toml: line 3: grid point lr=0.1: unknown model 'lstn'"]),
        ("[grid]\nlr = 0.1", &["grid.lr = 0.1", "expected a list"]),
        ("[grid]\nlr = []", &["grid.lr = []", "at least one"]),
        ("grid = 3", &["grid = 3", "expected a table"]),
        ("[grid]\nlr = [0.1, -1.0]", &["grid point lr=-1.0", "lr -1", "above 0"]),
        ("[grid]\nmodels = ['lstm', 'lstn']", &["lstn", "lstm"]),
        ("[grid]\nseed = [1, 3]", &["grid.seed = [1, 3]", "in a row"]),
        ("[grid]\nmodel.wide = [8]", &["grid point model.wide=8", "wide"]),
        ("[grid]\nmodel.width = [8, 0]", &["grid point model.width=0", "width = 0"]),
        ("[grid]\ntrain_len = [32, 7]\ntask.name = ['dyck']", &["grid point train_len=7,task.name=dyck", "even"]),
        ("[grid]\ntask = [{ name = 'dyck' }, { name = 'chess' }]", &["grid point task=chess", "chess"]),
        ("[grid]\nlens = [{ name = 'odd', train_len = 7 }]\ntask = [{ name = 'dyck' }]", &["grid point lens=odd", "7"]),
    ] {
        fs::write(place.at("grid.toml"), grid).unwrap();
        place.refuses("grid.toml", words);
    }
    // A point that nobody has the time for: nothing is profiled before it is found, and a list says so.
    fs::write(place.at("grid.toml"), "models = ['lstm']\n[grid]\nsteps = [10, 9000000000000]").unwrap();
    let words = ["grid.toml: line 3: grid point steps=9000000000000: lstm: training for 9000000000000 steps"];
    place.refuses("grid.toml", &words);
    place.refuses("grid.toml --profile", &words);
    let (status, list, said) = place.sweep("grid.toml --dry-run");
    assert!(status == Some(0) && list.contains("to do") && words.iter().all(|word| said.contains(word)), "{said}");
    fs::write(place.at("grid.toml"), GRID).unwrap();
    for (flags, words) in [
        ("grid.toml --shard 4/4", &["4/4", "0/4 to 3/4"][..]),
        ("grid.toml --shard 1", &["i/n"]),
        ("grid.toml --jobs 0", &["--jobs 0"]),
        ("nowhere.toml", &["nowhere.toml"]),
        ("", &["Usage"]),
        ("merge", &["OUT"]),
        ("merge out", &["PART"]),
    ] {
        place.refuses(flags, words);
    }
    // A directory with something else in it.
    fs::create_dir(place.at("mine")).unwrap();
    fs::write(place.at("mine/notes"), "").unwrap();
    place.refuses("grid.toml --out mine", &["mine", "is not empty, and holds no sweep"]);
    place.refuses("grid.toml --out grid.toml", &["is a file"]);
    place.succeeds("grid.toml --out sweep --shard 0/8");
    fs::write(place.at("grid.toml"), GRID.replace("steps = 300", "steps = 301")).unwrap();
    place.refuses("grid.toml --out sweep", &["holds another sweep", "steps is 300 there, and 301 here"]);
}

/// A result counts where its own configuration was trained, whatever directory it lies in.
#[test]
fn a_result_of_another_point_is_nobodys() {
    let place = Place::new(&GRID.replace("'lstm', 'gpt'", "'lstm'").replace("[5, 6]", "[5]"));
    place.succeeds("grid.toml --out runs --jobs 2");
    let [one, other] = ["lr=0.001", "lr=0.01"].map(|point| place.at("runs").join(point).join("lstm-seed5"));
    for name in ["result.json", "metrics.jsonl", "weights.safetensors"] {
        fs::copy(other.join(name), one.join(name)).unwrap();
    }
    let listed = place.succeeds("grid.toml --out runs --dry-run");
    assert!(listed.contains("lr=0.001  lstm seed 5") && listed.contains("damaged"), "{listed}");
    let (status, stdout, stderr) = place.sweep("grid.toml --out runs --jobs 1");
    assert_eq!(status, Some(1), "{stderr}");
    assert!(stdout.contains("1 run finished, 0 failed, 1 to do"), "{stdout}");
    assert!((stdout + &stderr).contains("another configuration"), "{stderr}");
    let (status, _, stderr) = place.sweep("merge joined runs");
    assert!(status == Some(2) && stderr.contains("another configuration"), "{stderr}");
    // Nor is a number that somebody changed, or a model that is another.
    let result = other.join("result.json");
    let text = fs::read_to_string(&result).unwrap();
    for (from, to) in [("\"steps_per_s\": ", "\"steps_per_s\": 9"), ("\"model\": \"lstm\"", "\"model\": \"gpt\"")] {
        fs::write(&result, text.replacen(from, to, 1)).unwrap();
        let (status, stdout, stderr) = place.sweep("grid.toml --out runs --jobs 1");
        assert!(status == Some(1) && !stderr.contains("panicked"), "{stderr}");
        assert!(stdout.contains("0 runs finished") && (stdout + &stderr).contains("not the result"), "{stderr}");
    }
}

/// Another build may compute a batch in another number of parts: a run keeps the number that it began with.
#[test]
fn a_run_keeps_its_number_of_parts() {
    let place = Place::new(&GRID.replace("'lstm', 'gpt'", "'lstm'").replace("[5, 6]", "[5]"));
    place.succeeds("grid.toml --out runs --jobs 2");
    let result = place.at("runs").join("lr=0.01/lstm-seed5/result.json");
    let text = fs::read_to_string(&result).unwrap();
    let other = text.replace("micro_batches = 1\\n", "micro_batches = 3\\n");
    assert_ne!(text, other, "{text}");
    fs::write(&result, other).unwrap();
    assert!(place.succeeds("grid.toml --out runs").contains("2 runs finished, 0 failed, 0 to do"));
}

/// A sweep that is at work keeps the results of its points.
#[test]
fn force_leaves_the_points_of_a_sweep_that_is_at_work() {
    let place = Place::new(&GRID.replace("'lstm', 'gpt'", "'lstm'").replace("[5, 6]", "[5]"));
    place.succeeds("grid.toml --out runs --jobs 2");
    let lock = fs::File::create(place.at("runs/lock")).unwrap();
    lock.lock_shared().unwrap();
    let mut force = program("parity");
    force.args("--models lstm --steps 3 --train-len 8 --eval-lens 8 --force --out".split(' '));
    force.arg(place.at("runs").join("lr=0.01"));
    let refused = force.output().unwrap();
    let said = String::from_utf8(refused.stderr).unwrap();
    assert!(refused.status.code() == Some(2) && said.contains("another process"), "{said}");
    assert!(place.at("runs").join("lr=0.01/lstm-seed5/result.json").exists());
    drop(lock);
    assert_eq!(force.output().unwrap().status.code(), Some(0));
}

#[test]
fn a_run_that_fails_is_a_result() {
    let place = Place::new(&format!("{GRID}clip = [0.0]\nwarmup = [0]\n").replace("1e-2", "1e30"));
    let (status, table, said) = place.sweep("grid.toml");
    assert_eq!(status, Some(3), "nothing is left to do, {said}");
    assert!(said.contains("of 8 runs stopped before the end") && table.contains("failed)"), "{said}{table}");
    // Each that stopped is named below the table, with the reason; on a terminal this is all that is said of it.
    let named = said.split_once("of 8 runs stopped before the end\n").unwrap().1;
    assert!(named.contains("lstm seed 5: stopped: ") && named.contains("is not finite"), "{said}");
    // A run that failed would fail again, and so is not repeated.
    let before = bits(&place.at("runs"));
    assert_eq!(place.sweep("grid.toml").0, Some(3));
    same(&before, &bits(&place.at("runs")));
    contains(place.succeeds("grid.toml --dry-run"), "failed");
    // Joined with others, it keeps its last checkpoint, and the word of who made it.
    let failed = |path: &PathBuf| fs::read_to_string(path).unwrap().contains("\"error\"");
    let failed = results(&place.at("runs/grid")).into_iter().find(failed).unwrap();
    let run = failed.parent().unwrap();
    fs::write(run.join("checkpoint.safetensors"), "all that is left").unwrap();
    place.succeeds("merge joined runs/grid");
    let there = place.at("joined").join(run.strip_prefix(place.at("runs/grid")).unwrap());
    assert_eq!(fs::read_to_string(there.join("checkpoint.safetensors")).unwrap(), "all that is left");
    let made_by = |run: &Path| fs::read_to_string(run.with_file_name("made_by.txt")).unwrap();
    assert_eq!(made_by(&there), made_by(run));
}

#[cfg(unix)]
#[test]
fn a_signal_leaves_the_rest_for_the_next_time() {
    let place = Place::new(&GRID.replace("steps = 300", "steps = 3000"));
    let child = place.command("grid.toml --jobs 2").spawn().unwrap();
    thread::sleep(Duration::from_millis(400));
    assert!(Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap().success());
    let ended = child.wait_with_output().unwrap();
    let said = String::from_utf8(ended.stderr).unwrap();
    assert_eq!(ended.status.code(), Some(143), "{said}");
    assert!(said.contains("SIGTERM") && said.contains("of 8 runs are finished"), "{said}");
    let list = place.succeeds("grid.toml --dry-run");
    assert!(list.contains("at step "), "{list}");
}

#[test]
fn help_teaches() {
    let place = Place::new(GRID);
    let help = place.succeeds("--help");
    for word in ["[grid]", "--shard", "--dry-run", "merge", "Examples:", "docs/sweeps.md", "143"] {
        assert!(help.contains(word), "no '{word}' in {help}");
    }
    contains(place.succeeds("merge --help"), "Only finished runs");
}
