//! Finished work is kept, and messages about it are true, however a process ends and whatever runs beside it.

#![cfg(unix)]
#![allow(clippy::unwrap_used)]

mod program;

use program::{Place, Ran};
use std::{
    env, fs,
    process::{Child, Command, Output, Stdio},
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

fn ended(output: Output) -> (Option<i32>, String, String) {
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
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
    let (status, stdout, stderr) = ended(child.wait_with_output().unwrap());
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
    let (status, table, said) = ended(child.wait_with_output().unwrap());
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
    let (status, table, said) = ended(child.wait_with_output().unwrap());
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

#[test]
fn a_signal_ends_a_long_step_and_a_hangup_saves() {
    let place = Place::new();
    let mut child = place.start(&format!("{LONG} --out run"));
    wait_for(&mut child, || place.at("run/lstm-seed0/checkpoint.safetensors").exists());
    let (status, _, said, took) = signalled(child, "-HUP");
    assert_eq!(status, Some(129), "{said}");
    says(&said, &["error: SIGHUP", "0 of 1 runs are finished, 1 saved", "--resume run"]);
    assert!(took < Duration::from_secs(2), "{took:?}");

    // Under nohup, the terminal may close.
    let exe = env!("CARGO_BIN_EXE_tapezoo");
    let mut ignoring = Command::new("sh");
    ignoring.arg("-c").arg(format!("trap '' HUP; exec {exe} parity {LONG} --out ignoring")).current_dir(place.0.path());
    let mut child = ignoring.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    wait_for(&mut child, || place.at("ignoring/lstm-seed0/metrics.jsonl").exists());
    assert!(Command::new("kill").args(["-HUP", &child.id().to_string()]).status().unwrap().success());
    thread::sleep(Duration::from_millis(300));
    assert!(child.try_wait().unwrap().is_none(), "it heeded a signal that was to be ignored");
    assert_eq!(signalled(child, "-TERM").0, Some(143));

    // One step that takes minutes.
    let long = "--models lstm --seeds 1 --steps 3 --train-len 60000 --batch 16 --width 64 --eval-lens 8 --threads 1";
    let mut child = place.start(&format!("{long} --micro-batches 1 --out step"));
    wait_for(&mut child, || place.at("step/lstm-seed0/metrics.jsonl").exists());
    let (status, _, said, took) = signalled(child, "-INT");
    assert_eq!(status, Some(130), "{said}");
    says(&said, &["error: SIGINT", "0 of 1 runs are finished, 1 abandoned", "begins anew"]);
    assert!(took < Duration::from_secs(2), "{took:?}");
}

/// `timeout` signals its child, and then the child's group: one request in two signals. A later signal is another
/// request.
#[test]
fn two_signals_at_once_are_one_request() {
    let place = Place::new();
    let kill = |child: &Child| assert!(Command::new("kill").arg(child.id().to_string()).status().unwrap().success());
    for gap in [0, 5, 60] {
        let mut child = place.start(&format!("{} --out run{gap}", LONG.replace("0.05", "1000")));
        wait_for(&mut child, || place.at(&format!("run{gap}/lstm-seed0/metrics.jsonl")).exists());
        kill(&child);
        thread::sleep(Duration::from_millis(gap));
        let (status, _, said, _) = signalled(child, "-TERM");
        assert_eq!(status, Some(143), "{said}");
        says(&said, &["error: SIGTERM", "1 saved"]);
        assert!(place.at(&format!("run{gap}/lstm-seed0/checkpoint.safetensors")).exists());
    }
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
fn a_signal_during_an_evaluation_loses_nothing() {
    let place = Place::new();
    fs::write(place.at("long.toml"), "eval_batches = 500\neval_every = 3\nlog_every = 2\ncheckpoint_every = 0.0")
        .unwrap();
    let flags = "--config long.toml --models lstm --seeds 1 --steps 9 --train-len 8 --batch 8 --width 16 --eval-lens 16 \
        --threads 1";
    assert_eq!(place.run(&format!("parity {flags} --out whole")).status, Some(0));
    let mut next = format!("{flags} --out torn");
    let mut stops = 0;
    loop {
        let mut child = place.start(&next);
        next = "--resume torn --threads 1".into();
        // Longer and longer, or a busy machine would never come to the end of an evaluation.
        thread::sleep(Duration::from_millis(60 + 40 * stops + 5 * stops * stops));
        if child.try_wait().unwrap().is_some() {
            break;
        }
        let (status, _, said, took) = signalled(child, "-TERM");
        if status == Some(0) {
            break;
        }
        stops += 1;
        // In its first moments it has no handler yet, and the signal itself ends it.
        assert!([Some(143), None].contains(&status), "{status:?}: {said}");
        assert!(took < Duration::from_secs(2) && stops < 40, "{took:?}, {stops} stops");
        if !place.at("torn/config.toml").exists() {
            next = format!("{flags} --out torn");
        }
    }
    assert!(stops > 1, "too quick");
    for file in ["metrics.jsonl", "weights.safetensors"] {
        let read = |dir: &str| fs::read(place.at(dir).join("lstm-seed0").join(file)).unwrap();
        assert!(read("whole") == read("torn"), "{file}");
    }
}

#[test]
fn without_a_directory_a_signal_prints_what_is_finished() {
    let place = Place::new();
    let flags = LONG.replace("--models lstm", "--config two.toml --models lstm,gpt").replace("--steps 1000000", "");
    let flags = flags.replace("--threads 1", "--threads 2");
    fs::write(place.at("two.toml"), "steps = 20\n[per_model.gpt]\nsteps = 100000000").unwrap();
    // Longer and longer: on a busy machine the short run needs its time.
    let ended = [700, 3000, 12000].map(Duration::from_millis).into_iter().map(|until| {
        let child = place.start(&flags);
        thread::sleep(until);
        signalled(child, "-TERM")
    });
    let (status, table, said, took) =
        ended.into_iter().find(|(.., said, _)| said.contains("1 of 2")).expect("no short run was over");
    assert_eq!(status, Some(143), "{said}");
    says(&said, &["error: SIGTERM: 1 of 2 runs are finished", "nothing is kept of the others without --out"]);
    assert!(table.starts_with("model") && table.contains("\nlstm ") && !table.contains("gpt"), "{table}");
    assert!(took < Duration::from_secs(2), "{took:?}");
}

#[test]
fn two_sweeps_at_once_share_the_runs() {
    let place = Place::new();
    let grid = "train_len = 8\neval_lens = [8]\nbatch = 4\nsteps = 300\nmodel = { width = 8, mlp = 8 }\n\
        [grid]\nmodels = ['lstm']\nseed = [5, 6, 7]\nlr = [0.001, 1e-2]\n";
    fs::write(place.at("grid.toml"), grid).unwrap();
    let sweep = || place.command("sweep", "grid.toml --jobs 1").spawn().unwrap();
    let both = [sweep(), sweep()].map(|child| ended(child.wait_with_output().unwrap()));
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

#[test]
fn a_finished_run_is_of_its_configuration_and_has_its_weights() {
    let place = Place::new();
    assert_eq!(place.run(&format!("parity {SHORT} --out run")).status, Some(0));
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

/// An evaluation that takes minutes, at the end or in between: all steps before it are kept.
#[test]
fn a_signal_in_a_batch_of_an_evaluation_saves_the_training() {
    let place = Place::new();
    let flags = "--models gpt --seeds 1 --train-len 8 --batch 4 --width 16 --threads 1 --eval-lens 20000";
    for (name, more, step) in [("end", "--steps 6", 6), ("way", "--steps 6 --eval-every 4", 4)] {
        let mut child = place.start(&format!("{flags} {more} --micro-batches 1 --out {name}"));
        wait_for(&mut child, || {
            fs::read_to_string(place.at(&format!("{name}/gpt-seed0/metrics.jsonl"))).is_ok_and(|m| !m.is_empty())
        });
        thread::sleep(Duration::from_millis(300));
        let (status, _, said, took) = signalled(child, "-TERM");
        assert_eq!(status, Some(143), "{said}");
        says(&said, &["0 of 1 runs are finished, 1 saved", &format!("--resume {name}")]);
        assert!(!said.contains("step") && took < Duration::from_secs(2), "{took:?}: {said}");
        let path = place.at(&format!("{name}/gpt-seed0/checkpoint.safetensors"));
        assert_eq!(tapezoo::train::checkpoint::about(&path).map(|about| about.step), Some(step));
    }
    let child = place.start(&format!("{flags} --steps 6 --micro-batches 1"));
    thread::sleep(Duration::from_millis(600));
    says(&signalled(child, "-TERM").2, &["in the middle of an evaluation", "nothing of it is kept"]);
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
        let (status, _, said) = ended(program.args(words).current_dir(from).output().unwrap());
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
