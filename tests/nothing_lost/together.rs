//! Several processes in one directory.

use crate::{
    LONG, SHORT, SWEEP,
    program::{self, Place, Ran, outcome},
    says, signalled, wait_for,
};
use std::{
    fs,
    io::{BufRead, BufReader},
    thread,
    time::Duration,
};

#[test]
fn two_sweeps_at_once_share_the_runs() {
    let place = Place::new();
    let grid = "train_len = 8\neval_lens = [8]\nbatch = 4\nsteps = 300\nmodel = { width = 8, mlp = 8 }\n\
        [grid]\nmodels = ['lstm']\nseed = [5, 6, 7]\nlr = [0.001, 1e-2]\n";
    fs::write(place.at("grid.toml"), grid).unwrap();
    let sweep = || place.command("sweep", "grid.toml --jobs 1").spawn().unwrap();
    let both = [sweep(), sweep()].map(|child| outcome(child.wait_with_output().unwrap()));
    for (status, table, said) in both {
        assert_eq!(status, Some(0), "{said}");
        assert!(table.contains("6 runs finished, 0 failed, 0 to do") && !said.contains("stopped"), "{table}{said}");
    }
    for point in ["lr=0.001", "lr=0.01"] {
        let table = fs::read_to_string(place.at("runs/grid").join(point).join("table.txt")).unwrap();
        assert!(table.contains("lstm") && !table.contains("stopped"), "{table}");
        let results = fs::read_to_string(place.at("runs/grid").join(point).join("results.json")).unwrap();
        assert_eq!(results.matches("\"seed\"").count(), 3);
    }
}

/// `--force` deletes no run that another process, of any program, is working on.
#[test]
fn force_deletes_nothing_that_is_at_work() {
    let place = Place::new();
    let mut child = place.start(&format!("{LONG} --out run"));
    wait_for(&mut child, || place.at("run/lstm-seed0/checkpoint.safetensors").exists());
    let Ran { status, stderr: said, .. } = place.run(&format!("parity {SHORT} --out run --force"));
    assert_eq!(status, Some(2));
    says(&said, &["another process", "at work"]);
    // As if the directory itself were not locked, as for the points of a sweep.
    fs::remove_file(place.at("run/lock")).unwrap();
    let Ran { status, stderr: said, .. } = place.run(&format!("parity {SHORT} --out run --force"));
    assert_eq!(status, Some(2));
    says(&said, &["run/lstm-seed0", "another process is at work on this run"]);
    assert!(place.at("run/config.toml").exists());
    let (status, _, said, _) = signalled(child, "-TERM");
    assert!(status == Some(143) && said.contains("1 saved"), "{said}");
}

/// A point that is named '.' belongs to its sweep as well, and no run goes among the points.
#[test]
fn a_sweep_is_not_written_over() {
    let place = Place::new();
    let run = format!("parity {}", LONG.replace("1000000", "1"));
    assert_eq!(place.run(&place.with_file(SWEEP, "sweep FILE --out all")).status, Some(0));
    place.refuses(&format!("{run} --out all --force"), &["--out all", "holds a sweep"]);
    let lock = fs::File::create(place.at("all/lock")).unwrap();
    lock.lock_shared().unwrap();
    let weights = place.at("all/lr=0.01/lstm-seed0/weights.safetensors");
    for (from, out) in [(place.at(""), "all/lr=0.01"), (place.at("all/lr=0.01"), ".")] {
        let line = format!("{run} --out {out} --force");
        let mut words = line.split_whitespace();
        let mut program = program::program(words.next().unwrap());
        let (status, _, said) = outcome(program.args(words).current_dir(from).output().unwrap());
        assert!(status == Some(2) && weights.exists(), "{out}: {said}");
        says(&said, &["another process is at work"]);
    }
}

/// One that leaves a sweep has its lock alone for a moment.
#[test]
fn a_sweep_begins_while_another_process_leaves_it() {
    let place = Place::new();
    fs::create_dir(place.at("all")).unwrap();
    let lock = fs::File::create(place.at("all/lock")).unwrap();
    lock.lock().unwrap();
    let leaves = thread::spawn(move || {
        thread::sleep(Duration::from_millis(300));
        drop(lock);
    });
    let ran = place.run(&place.with_file(SWEEP, "sweep FILE --out all"));
    leaves.join().unwrap();
    assert_eq!(ran.status, Some(0), "{}", ran.stderr);
}

#[test]
fn a_run_that_another_process_finishes_meanwhile_is_not_repeated() {
    let place = Place::new();
    assert_eq!(place.run(&place.with_file(SWEEP, "sweep FILE --out all")).status, Some(0));
    let run = place.at("all/lr=0.01/lstm-seed0");
    let before = fs::read(run.join("result.json")).unwrap();
    fs::rename(run.join("result.json"), place.at("aside")).unwrap();
    let held = fs::File::open(run.join("metrics.jsonl")).unwrap();
    held.lock().unwrap();
    let mut child = place.command("sweep", "file.toml --out all").spawn().unwrap();
    let mut said = BufReader::new(child.stderr.take().unwrap()).lines();
    assert!(said.any(|line| line.unwrap().contains("waiting for it")), "it did not wait");
    fs::rename(place.at("aside"), run.join("result.json")).unwrap();
    drop(held);
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert!(fs::read(run.join("result.json")).unwrap() == before, "it was trained again");
}
