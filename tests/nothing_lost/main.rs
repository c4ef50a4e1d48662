//! Finished work is kept, and messages about it are true, however a process ends and whatever runs beside it.

#![cfg(unix)]
#![allow(clippy::unwrap_used)]

#[path = "../program/mod.rs"]
mod program;
mod signals;
mod together;

use program::{Place, Ran, outcome};
use std::{
    env, fs,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

impl Place {
    fn command(&self, program: &str, flags: &str) -> Command {
        let mut command = program::program(program);
        command.args(flags.split_whitespace()).current_dir(self.0.path());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn start(&self, flags: &str) -> Child {
        self.command("parity", flags).spawn().unwrap()
    }
}

fn wait_for(child: &mut Child, what: impl Fn() -> bool) {
    let start = Instant::now();
    while !what() {
        assert!(child.try_wait().unwrap().is_none(), "it ended too early");
        assert!(start.elapsed() < Duration::from_secs(60), "it never came");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Send a signal; status, output, error, and how long it took to end.
fn signalled(child: Child, name: &str) -> (Option<i32>, String, String, Duration) {
    let start = Instant::now();
    assert!(Command::new("kill").args([name, &child.id().to_string()]).status().unwrap().success());
    let (status, stdout, stderr) = outcome(child.wait_with_output().unwrap());
    (status, stdout, stderr, start.elapsed())
}

#[track_caller]
fn says(text: &str, words: &[&str]) {
    for word in words {
        assert!(text.contains(word), "no '{word}' in: {text}");
    }
}

/// A sweep of one run of one step.
const SWEEP: &str = "models = ['lstm']\nseeds = 1\nsteps = 1\neval_lens = [8]\ntrain_len = 8\ntask.name = 'parity'\n[grid]\nlr = [0.01]";

/// Long runs with frequent checkpoints.
const LONG: &str = "--models lstm --seeds 1 --steps 1000000 --train-len 8 --batch 8 --width 8 --heads 2 --head-dim 4 \
    --mlp 8 --eval-lens 8 --threads 1 --checkpoint-every 0.05";

/// A very short run.
const SHORT: &str = "--models lstm --seeds 2 --steps 5 --train-len 4 --batch 2 --width 4 --mlp 4 --eval-lens 4 --threads 1 \
    --checkpoint-every 0.001";

/// A run that is killed in its first moments starts again; `TAPEZOO_KILLS=200` tries this many moments.
#[test]
fn killed_in_its_first_moments_it_starts_again() {
    let kills: u64 = env::var("TAPEZOO_KILLS").ok().and_then(|n| n.parse().ok()).unwrap_or(16);
    let place = Place::new();
    let (mut empty, mut unfinished) = (0, 0);
    for i in 0..kills {
        let dir = place.at(&format!("run{i}"));
        let mut child = place.start(&format!("{SHORT} --out run{i}"));
        thread::sleep(Duration::from_micros(1000 + 80_000 * i / kills));
        child.kill().unwrap();
        child.wait().unwrap();
        let names = || -> Vec<String> {
            let all = fs::read_dir(&dir).into_iter().flatten().flatten();
            all.map(|e| e.file_name().into_string().unwrap()).collect()
        };
        unfinished += usize::from(names().iter().any(|name| name.ends_with(".tmp")));
        let begun = dir.join("config.toml").exists();
        empty += usize::from(!begun);
        let flags = if begun { format!("--resume run{i} --threads 1") } else { format!("{SHORT} --out run{i}") };
        let Ran { status, stderr: said, .. } = place.run(&format!("parity {flags}"));
        assert_eq!(status, Some(0), "kill {i}: {said}");
        let left = names();
        assert!(!left.iter().any(|name| name.ends_with(".tmp") || name == "lock"), "{left:?}");
        assert_eq!(fs::read_to_string(dir.join("made_by.txt")).unwrap().lines().count(), 1);
    }
    eprintln!("{kills} kills: {empty} before the configuration was written, {unfinished} with an unfinished file");
}

#[test]
fn our_own_unfinished_files_are_nothing_and_those_of_others_stay() {
    let place = Place::new();
    fs::create_dir(place.at("run")).unwrap();
    let ours = "run/config.toml.0123456789abcdef.tmp";
    fs::write(place.at(ours), "half").unwrap();
    fs::write(place.at("run/lock"), "process 1 on nowhere").unwrap();
    let Ran { status, stderr: said, .. } = place.run("parity --resume run");
    assert_eq!(status, Some(2));
    says(&said, &["holds no run yet"]);
    // A directory that is being written is locked by its writer.
    let held = fs::File::open(place.at(ours)).unwrap();
    held.lock().unwrap();
    assert_eq!(place.run(&format!("parity {SHORT} --out run")).status, Some(0));
    assert!(place.at(ours).exists());
    drop(held);
    fs::write(place.at("run/notes.tmp"), "mine").unwrap();
    assert_eq!(place.run(&format!("parity {SHORT} --out run --force")).status, Some(0));
    assert!(!place.at(ours).exists() && place.at("run/notes.tmp").exists());
    // A directory with any other file in it belongs to somebody.
    fs::create_dir(place.at("mine")).unwrap();
    fs::write(place.at("mine/notes.tmp"), "mine").unwrap();
    says(&place.run(&format!("parity {SHORT} --out mine")).stderr, &["is not empty"]);
}

#[test]
fn a_run_whose_directory_is_gone_says_so() {
    let place = Place::new();
    let mut child = place.start(&format!("{LONG} --out run"));
    wait_for(&mut child, || place.at("run/lstm-seed0/checkpoint.safetensors").exists());
    fs::rename(place.at("run"), place.at("moved")).unwrap();
    let (status, table, said) = outcome(child.wait_with_output().unwrap());
    assert_eq!(status, Some(1), "{said}");
    says(&(table + &said), &["run/lstm-seed0", "removed or replaced", "cannot be saved"]);

    // Another process's directory under the same name, and a signal before the next line is written.
    let mut child = place.start(&LONG.replace("0.05", "0").replace("--steps", "--out other --steps"));
    let begun = || fs::metadata(place.at("other/lstm-seed0/metrics.jsonl")).is_ok_and(|file| file.len() > 0);
    wait_for(&mut child, begun);
    fs::rename(place.at("other"), place.at("gone")).unwrap();
    fs::create_dir_all(place.at("other/lstm-seed0")).unwrap();
    fs::write(place.at("other/lstm-seed0/metrics.jsonl"), "").unwrap();
    let (status, table, said, _) = signalled(child, "-TERM");
    assert!(status == Some(143) || status == Some(1), "{status:?}");
    says(&(table + &said), &["other/lstm-seed0", "removed or replaced"]);
    assert!(!said.contains("1 saved"), "{said}");
    assert!(!place.at("other/lstm-seed0/checkpoint.safetensors").exists());
}

#[test]
fn in_a_directory_that_was_replaced_no_further_run_begins() {
    let place = Place::new();
    let flags = LONG.replace("--seeds 1", "--seeds 2");
    let mut child = place.start(&format!("{flags} --out run"));
    // The first run has written all that it writes outside of its own directory before it ends.
    wait_for(&mut child, || place.at("run/lstm-seed0/checkpoint.safetensors").exists());
    fs::rename(place.at("run"), place.at("moved")).unwrap();
    fs::create_dir(place.at("run")).unwrap();
    let (status, table, said) = outcome(child.wait_with_output().unwrap());
    assert_eq!(status, Some(1), "{said}");
    says(&(table + &said), &["removed or replaced", "this run is not begun"]);
    assert_eq!(fs::read_dir(place.at("run")).unwrap().count(), 0);
}

#[test]
fn what_cannot_be_saved_is_not_said_to_be() {
    let place = Place::new();
    let mut child = place.start(&LONG.replace("0.05", "0").replace("--steps", "--out run --steps"));
    wait_for(&mut child, || place.at("run/lstm-seed0/metrics.jsonl").exists());
    // A file cannot be renamed to a directory that is not empty.
    fs::create_dir_all(place.at("run/lstm-seed0/checkpoint.safetensors/x")).unwrap();
    thread::sleep(Duration::from_millis(100));
    let (status, _, said, _) = signalled(child, "-TERM");
    assert_eq!(status, Some(143), "{said}");
    says(&said, &["0 of 1 runs are finished", "1 stopped with an error", "not saved: run/lstm-seed0", "begins anew"]);
}

/// `--force` deletes runs, and nothing that only has the name of one of their files.
#[test]
fn force_deletes_nothing_of_others() {
    let place = Place::new();
    fs::create_dir_all(place.at("mine/notes")).unwrap();
    for name in ["notes/metrics.jsonl", "notes/weights.safetensors", "results.json", "config.toml"] {
        fs::write(place.at("mine").join(name), "mine = true").unwrap();
    }
    let Ran { status, stderr: said, .. } = place.run(&format!("parity {SHORT} --out mine --force"));
    assert_eq!(status, Some(2), "{said}");
    says(&said, &["mine/config.toml", "--force deletes runs"]);
    fs::remove_file(place.at("mine/config.toml")).unwrap();
    fs::remove_file(place.at("mine/results.json")).unwrap();
    assert_eq!(place.run(&format!("parity {SHORT} --out mine --force")).status, Some(0));
    for name in ["notes/metrics.jsonl", "notes/weights.safetensors"] {
        assert_eq!(fs::read_to_string(place.at("mine").join(name)).unwrap(), "mine = true");
    }
}

#[test]
fn a_finished_run_is_of_its_configuration_and_has_its_weights() {
    let place = Place::new();
    assert_eq!(place.run(&format!("parity {SHORT} --out run")).status, Some(0));
    // As a process leaves it that is killed between its result and the end of its work.
    let left = ["checkpoint.safetensors", "metrics.jsonl.0123456789abcdef.tmp"];
    let left = left.map(|name| place.at("run/lstm-seed0").join(name));
    left.iter().for_each(|path| fs::write(path, "left").unwrap());
    assert_eq!(place.run("parity --resume run").status, Some(0));
    assert!(left.iter().all(|path| !path.exists()), "leftovers stay");

    let config = fs::read_to_string(place.at("run/config.toml")).unwrap();
    fs::write(place.at("run/config.toml"), config.replace("lr = 0.005", "lr = 0.006")).unwrap();
    let Ran { status, stdout: table, stderr: said } = place.run("parity --resume run");
    assert_eq!((status, table.as_str()), (Some(2), ""));
    says(&said, &["run/lstm-seed0/result.json", "another configuration", "lr is 0.005 there, and 0.006 here"]);
    assert!(!said.contains("nothing left to do"), "{said}");
    fs::write(place.at("run/config.toml"), config).unwrap();

    let metrics = place.at("run/lstm-seed0/metrics.jsonl");
    let whole = fs::read(&metrics).unwrap();
    fs::write(&metrics, &whole[..whole.len() / 2]).unwrap();
    let Ran { status, stdout: table, stderr: said } = place.run("parity --resume run");
    assert_eq!(status, Some(1), "{said}");
    says(&said, &["1 of them lost files", "run/lstm-seed0/metrics.jsonl", "the rest is missing", "delete result.json"]);
    assert!(!said.contains("nothing left to do") && !table.contains("stopped"), "{said}{table}");
    fs::write(&metrics, whole).unwrap();

    let weights = place.at("run/lstm-seed1/weights.safetensors");
    let whole = fs::read(&weights).unwrap();
    let mut other = whole.clone();
    *other.last_mut().unwrap() ^= 1;
    fs::write(&weights, other).unwrap();
    let Ran { status, stderr: said, .. } = place.run("parity --resume run");
    assert_eq!(status, Some(1), "{said}");
    says(&said, &["run/lstm-seed1/weights.safetensors", "not the weights that this run ended with"]);

    fs::remove_file(&weights).unwrap();
    let Ran { status, stdout: table, stderr: said } = place.run("parity --resume run");
    assert_eq!(status, Some(1), "{said}");
    says(&said, &["1 of them lost files", "run/lstm-seed1/weights.safetensors", "delete result.json"]);
    assert!(!said.contains("nothing left to do") && !table.contains("stopped"), "{said}{table}");
    fs::remove_file(place.at("run/lstm-seed1/result.json")).unwrap();
    assert_eq!(place.run("parity --resume run").status, Some(0));
    assert!(place.at("run/lstm-seed1/weights.safetensors").exists());

    // A run that begins anew leaves no weights of the one before.
    let config = fs::read_to_string(place.at("run/config.toml")).unwrap();
    fs::write(place.at("run/config.toml"), config.replace("lr = 0.005", "lr = 1e30")).unwrap();
    for seed in 0..2 {
        fs::remove_file(place.at(&format!("run/lstm-seed{seed}/result.json"))).unwrap();
    }
    assert_eq!(place.run("parity --resume run").status, Some(1));
    assert!(!place.at("run/lstm-seed1/weights.safetensors").exists());
    fs::remove_dir_all(place.at("run")).unwrap();
    assert_eq!(place.run(&format!("parity {SHORT} --out run")).status, Some(0));

    // One bad result does not remove the others from a report.
    fs::write(place.at("run/lstm-seed1/result.json"), "{\"model\": \"lst").unwrap();
    let Ran { status, stdout, stderr: said } = place.run("report run");
    assert_eq!(status, Some(0), "{said}");
    says(&said, &["note: left out: run/lstm-seed1/result.json"]);
    assert!(stdout.contains("2 runs"), "{stdout}");
    let Ran { status, stderr: said, .. } = place.run("inspect --checkpoint run/lstm-seed0 --len 4");
    assert_eq!(status, Some(0), "{said}");
}

#[test]
fn every_program_says_which_build_it_is() {
    let place = Place::new();
    let Ran { status, stdout: text, .. } = place.run("--version");
    assert_eq!(status, Some(0));
    assert!(text.starts_with(&format!("tapezoo {} (", env!("CARGO_PKG_VERSION"))), "{text}");
    says(&text, &["source ", "\nbuilt 20", "\nprocessor: ", "\nkernels: "]);
    assert_eq!(place.run(&format!("parity {SHORT} --out run")).status, Some(0));
    let made_by = fs::read_to_string(place.at("run/made_by.txt")).unwrap();
    assert!(made_by.starts_with("20") && made_by.contains(text.lines().next().unwrap()), "{made_by}\n{text}");
    says(&made_by, &["; kernels "]);
}

/// `--out` writes to a pipe, and through a link, and leaves both what they are.
#[test]
fn a_pipe_stays_a_pipe_and_a_link_a_link() {
    use std::os::unix::fs::{FileTypeExt, symlink};
    let place = Place::new();
    let [pipe, link] = ["pipe", "link.html"].map(|name| place.at(name));
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let reader = thread::spawn({
        let pipe = pipe.clone();
        move || fs::read_to_string(pipe).unwrap()
    });
    let line = "inspect --model lstm --steps 0 --len 4 --out";
    assert_eq!(place.run(&format!("{line} pipe")).status, Some(0));
    // If the pipe were replaced, nobody would write to it, and its reader would wait forever.
    assert!(fs::symlink_metadata(&pipe).unwrap().file_type().is_fifo());
    assert!(reader.join().unwrap().starts_with("<!DOCTYPE html>"));
    place.write("page.html", "old");
    symlink("page.html", &link).unwrap();
    assert_eq!(place.run(&format!("{line} link.html")).status, Some(0));
    assert!(fs::symlink_metadata(&link).unwrap().file_type().is_symlink());
    assert!(fs::read_to_string(place.at("page.html")).unwrap().starts_with("<!DOCTYPE html>"));
    // A link to a file that is not there yet, and a file that others may not read.
    use std::os::unix::fs::PermissionsExt;
    symlink("new.html", place.at("to_new.html")).unwrap();
    assert_eq!(place.run(&format!("{line} to_new.html")).status, Some(0));
    assert!(fs::symlink_metadata(place.at("to_new.html")).unwrap().file_type().is_symlink());
    fs::set_permissions(place.at("new.html"), fs::Permissions::from_mode(0o600)).unwrap();
    assert_eq!(place.run(&format!("{line} to_new.html")).status, Some(0));
    assert_eq!(fs::metadata(place.at("new.html")).unwrap().permissions().mode() & 0o777, 0o600);
    let ran = place.run(&format!("{line} nowhere/page.html"));
    assert_ne!(ran.status, Some(0));
    says(&ran.stderr, &["there is no directory nowhere; make it first"]);
    place.write("data.json", "mine");
    place.refuses(&format!("{line} data.json --json"), &["--out data.json", "page.html"]);
    place.refuses(&format!("{line} data.dot --graph"), &["--out data.dot", "page.html"]);
    assert_eq!(fs::read_to_string(place.at("data.json")).unwrap(), "mine");
}

/// Weights grow by a tenth at each step until they overflow; the last checkpoint has what was learned until then.
#[test]
fn a_run_that_diverges_keeps_its_last_checkpoint() {
    let place = Place::new();
    let grows = "--optimizer adamw --lr 1e-3 --weight-decay 2100 --schedule constant --warmup 0";
    let ran = place.run(&format!("parity {} {grows} --out run", LONG.replace("every 0.05", "every 0.005")));
    assert_eq!(ran.status, Some(1), "{}", ran.stderr);
    let kept = place.at("run/lstm-seed0/checkpoint.safetensors");
    assert!(kept.exists() && !place.at("run/lstm-seed0/weights.safetensors").exists());
    place.run("parity --resume run");
    assert!(kept.exists());
    let seen = place.run("inspect --checkpoint run --out page.html");
    assert_eq!(seen.status, Some(0), "{}", seen.stderr);
    fs::remove_file(&kept).unwrap();
    place.refuses("inspect --checkpoint run --out page.html", &["diverged", "result.json"]);
}

#[test]
fn seconds_between_checkpoints_are_checked_when_a_run_goes_on() {
    let place = Place::new();
    assert_eq!(place.run(&format!("parity {} --out run", LONG.replace("1000000", "1"))).status, Some(0));
    place.refuses("parity --resume run --checkpoint-every=-5", &["checkpoint_every -5", "0 for none"]);
}

#[test]
fn a_recorded_configuration_that_is_empty_is_not_the_default_experiment() {
    let place = Place::new();
    assert_eq!(place.run(&format!("parity {} --out run", LONG.replace("1000000", "1"))).status, Some(0));
    place.write("run/config.toml", "");
    place.refuses("parity --resume run", &["run/config.toml", "not the configuration of a run"]);
    assert!(place.at("run/lstm-seed0/weights.safetensors").exists() && !place.at("run/gpt-seed0").exists());
}
