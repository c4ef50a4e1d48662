//! Runs that are interrupted at any moment continue to the same bits.

#![allow(clippy::unwrap_used)]

mod program;

use program::{outcome, program};
use std::{
    collections::BTreeMap,
    fs,
    path::Path,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant, SystemTime},
};
use tapezoo::{
    models,
    train::{Trainer, config::TrainConfig},
};

/// Some seconds of work, with evaluations in between.
const SMALL: &str = "--models lstm,gpt --seeds 2 --steps 1200 --train-len 8 --batch 8 --width 8 --heads 2 --head-dim 4 \
    --mlp 8 --eval-lens 8,12 --eval-every 250 --threads 2 --checkpoint-every 0.02";

fn command(flags: &str) -> Command {
    let mut command = program("parity");
    command.args(flags.split_whitespace()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn out(dir: &Path) -> String {
    format!("{SMALL} --out {}", dir.display())
}

fn resume(dir: &Path) -> String {
    format!("--resume {} --threads 2 --checkpoint-every 0.02", dir.display())
}

fn run(flags: &str) -> (Option<i32>, String, String) {
    outcome(command(flags).output().unwrap())
}

/// The results that must not depend on interruptions: the files of every run, except for the time in `result.json`.
fn files(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut all = BTreeMap::new();
    for run in fs::read_dir(dir).unwrap().map(|e| e.unwrap().path()).filter(|p| p.is_dir()) {
        for file in fs::read_dir(run).unwrap().map(|e| e.unwrap().path()) {
            let bytes = fs::read(&file).unwrap();
            let timeless = file.extension().is_some_and(|e| e == "json").then(|| {
                let mut report: serde_json::Value = serde_json::from_slice(&bytes).unwrap();
                // The checksum covers the times, so it is left out as well.
                report["checksum"] = 0.into();
                for key in ["steps_per_s", "wall_s"] {
                    assert!(report[key].as_f64().unwrap() > 0.0, "{key} in {}", file.display());
                    report[key] = 0.into();
                }
                report.to_string().into_bytes()
            });
            all.insert(file.strip_prefix(dir).unwrap().display().to_string(), timeless.unwrap_or(bytes));
        }
    }
    all
}

#[track_caller]
fn assert_same(a: &Path, b: &Path) {
    let (a, b) = (files(a), files(b));
    assert_eq!(a.keys().collect::<Vec<_>>(), b.keys().collect::<Vec<_>>());
    assert!(!a.is_empty());
    for (name, bytes) in a {
        assert!(b[&name] == bytes, "{name} is not the same");
    }
}

/// A moment that differs from test to test.
fn random_millis(range: std::ops::Range<u64>) -> Duration {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().subsec_nanos();
    Duration::from_millis(range.start + u64::from(now / 1000) % (range.end - range.start))
}

fn wait_for(what: impl Fn() -> bool, child: &mut Child) {
    let start = Instant::now();
    while !what() {
        assert!(child.try_wait().unwrap().is_none(), "it ended too early");
        assert!(start.elapsed() < Duration::from_secs(60), "it never came");
        thread::sleep(Duration::from_millis(2));
    }
}

/// Whether some run has a checkpoint.
fn has_checkpoint(dir: &Path) -> bool {
    let Ok(runs) = fs::read_dir(dir) else { return false };
    runs.flatten().any(|run| run.path().join("checkpoint.safetensors").is_file())
}

#[cfg(unix)]
fn signal(child: &Child, name: &str) {
    assert!(Command::new("kill").args([name, &child.id().to_string()]).status().unwrap().success());
}

#[test]
fn killed_at_random_moments_a_run_goes_on_to_the_same_bits() {
    let dir = tempfile::tempdir().unwrap();
    let (whole, torn) = (dir.path().join("whole"), dir.path().join("torn"));
    let (status, table, _) = run(&out(&whole));
    assert_eq!(status, Some(0));

    let mut child = command(&out(&torn)).spawn().unwrap();
    wait_for(|| torn.join("config.toml").exists(), &mut child);
    let mut kills = 0;
    loop {
        // Later and later, so that on a busy machine too it comes to save something.
        thread::sleep(random_millis(20..250 + 10 * kills));
        if child.try_wait().unwrap().is_some_and(|status| status.success()) {
            break;
        }
        child.kill().unwrap();
        child.wait().unwrap();
        kills += 1;
        assert!(kills < 500, "it gets nowhere");
        child = command(&resume(&torn)).spawn().unwrap();
    }
    eprintln!("killed {kills} times");
    assert!(kills >= 2, "too quick to be killed");
    assert_same(&whole, &torn);

    // It says so when nothing is left to do, and prints the same table except for the times.
    let before = files(&torn);
    let (status, again, said) = run(&resume(&torn));
    assert_eq!(status, Some(0), "{said}");
    assert!(said.contains("4 of 4 runs are finished") && said.contains("nothing left to do"), "{said}");
    assert_eq!(again, fs::read_to_string(torn.join("table.txt")).unwrap());
    assert_eq!(again.lines().next(), table.lines().next());
    assert!(before == files(&torn), "resuming what is finished changed files");
}

#[cfg(unix)]
#[test]
fn signals_save_every_run_and_stop_the_program() {
    let dir = tempfile::tempdir().unwrap();
    let (whole, torn) = (dir.path().join("whole"), dir.path().join("torn"));
    // Long enough not to be over before the second signal comes, on any machine.
    let long = |dir: &Path| out(dir).replace("--steps 1200", "--steps 6000");
    assert_eq!(run(&long(&whole)).0, Some(0));
    // Without periodic checkpoints: the only checkpoint was written on the signal.
    let quiet = |flags: String| flags.replace("--checkpoint-every 0.02", "--checkpoint-every 0");
    let mut flags = quiet(long(&torn));
    for (name, status) in [("-TERM", 143), ("-INT", 130)] {
        let mut child = command(&flags).spawn().unwrap();
        // A process names itself in the lock when it catches signals already. Files of an earlier one say nothing.
        let itself = format!("process {} ", child.id());
        let holds = || fs::read_to_string(torn.join("lock")).is_ok_and(|holder| holder.contains(&itself));
        wait_for(|| holds() && torn.join("gpt-seed0/metrics.jsonl").exists(), &mut child);
        thread::sleep(random_millis(60..100));
        signal(&child, name);
        let ended = child.wait_with_output().unwrap();
        let said = String::from_utf8(ended.stderr).unwrap();
        assert_eq!(ended.status.code(), Some(status), "{said}");
        for word in ["error: SIG", "of 4 runs are finished", "--resume", "torn"] {
            assert!(said.contains(word), "no '{word}' in: {said}");
        }
        assert!(ended.stdout.is_empty(), "{said}");
        for run in fs::read_dir(&torn).unwrap().map(|e| e.unwrap().path()).filter(|p| p.is_dir()) {
            let begun = fs::metadata(run.join("metrics.jsonl")).is_ok_and(|file| file.len() > 0);
            let kept = ["result.json", "checkpoint.safetensors"].iter().any(|name| run.join(name).exists());
            assert!(!begun || kept, "{} was not saved: {said}", run.display());
        }
        flags = quiet(resume(&torn));
    }
    assert_eq!(run(&resume(&torn)).0, Some(0));
    assert_same(&whole, &torn);
}

/// A directory with half-finished runs.
fn interrupted(dir: &Path) {
    let mut child = command(&out(dir)).spawn().unwrap();
    wait_for(|| has_checkpoint(dir) && dir.join("gpt-seed0/checkpoint.safetensors").exists(), &mut child);
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn checkpoints_that_are_none_are_refused_and_kept() {
    let dir = tempfile::tempdir().unwrap();
    let runs = dir.path().join("runs");
    interrupted(&runs);
    let own = runs.join("gpt-seed0");
    let path = own.join("checkpoint.safetensors");
    let good = fs::read(&path).unwrap();
    let metrics = fs::read(own.join("metrics.jsonl")).unwrap();
    let with = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = good.clone();
        change(&mut bytes);
        bytes
    };
    let replaced = |a: &str, b: &str| {
        // Of the same length, so that the header's length stays right.
        assert_eq!(a.len(), b.len());
        let at = good.windows(a.len()).position(|w| w == a.as_bytes()).unwrap();
        with(&|bytes| bytes[at..at + a.len()].copy_from_slice(b.as_bytes()))
    };
    let find = |text: &str| good.windows(text.len()).position(|w| w == text.as_bytes()).unwrap() + text.len();
    let after = |text: &str| with(&|bytes| bytes[find(text)] = if bytes[find(text)] == b'5' { b'6' } else { b'5' });
    // The checksum was a number, of the tensors alone.
    let earlier = with(&|bytes| {
        let at = find(r#"\"checksum\":"#);
        bytes[at..at + 20].copy_from_slice(b"18446744073709551615");
    });
    for (bytes, words) in [
        (vec![], &["damaged", "delete it"][..]),
        (b"not a checkpoint at all, but long enough for a header".to_vec(), &["damaged"]),
        (with(&|bytes| bytes.truncate(good.len() / 2)), &["damaged"]),
        (with(&|bytes| *bytes.last_mut().unwrap() ^= 1), &["damaged", "checksum"]),
        (replaced("lr = 0.005", "lr = 0.006"), &["another run", "lr is 0.006 there, and 0.005 here"]),
        (replaced("layers = 2", "layers = 3"), &["another run", "model.layers is 3 there, and 2 here"]),
        (replaced("gpt", "lru"), &["another run", "models", "lru"]),
        (replaced(r#"\"seed\":0"#, r#"\"seed\":7"#), &["seed 7", "seed 0"]),
        (replaced("micro_batches = 1", "micro_batches = 7"), &["checkpoint", "delete it"]),
        // Any digit of its header: the step, the size of the metrics, the time.
        (after(r#"\"step\":"#), &["damaged", "checksum"]),
        (after(r#"\"metrics\":"#), &["damaged", "checksum"]),
        (after(r#"\"wall_s\":"#), &["damaged", "checksum"]),
        (earlier, &["earlier builds", "go on with that build"]),
    ] {
        fs::write(&path, &bytes).unwrap();
        let (status, stdout, said) = run(&resume(&runs));
        assert_eq!(status, Some(1), "{said}");
        for word in words {
            assert!(stdout.contains(word) && stdout.contains("gpt-seed0"), "no '{word}' in: {stdout}");
        }
        assert!(!said.contains("panicked"), "{said}");
        assert!(fs::read(&path).unwrap() == bytes, "the checkpoint was overwritten");
        assert!(
            fs::read(own.join("metrics.jsonl")).unwrap() == metrics && !own.join("result.json").exists(),
            "the record has been changed, or a result written"
        );
    }
    // Metrics shorter than the checkpoint says are incomplete.
    fs::write(&path, &good).unwrap();
    fs::write(own.join("metrics.jsonl"), "").unwrap();
    let (status, stdout, _) = run(&resume(&runs));
    assert!(status == Some(1) && stdout.contains("fewer than"), "{stdout}");
    // Without the checkpoint the run starts again, and succeeds.
    fs::remove_file(&path).unwrap();
    assert_eq!(run(&resume(&runs)).0, Some(0));
    let whole = dir.path().join("whole");
    assert_eq!(run(&out(&whole)).0, Some(0));
    assert_same(&whole, &runs);
}

#[test]
fn only_a_run_directory_is_resumed_and_only_as_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let runs = dir.path().join("runs");
    interrupted(&runs);
    let before = files(&runs);
    let at = runs.display();
    for (flags, words) in [
        (format!("--resume {at} --lr 0.1"), &["--resume", "lr is 0.005 there, and 0.1 here"][..]),
        (format!("--resume {at} --num-ones 3"), &["task.num_ones is absent there, and 3 here"]),
        (format!("--resume {at} --steps 2000"), &["steps is 1200 there, and 2000 here", "begin a new run: --config"]),
        (format!("--resume {at} --out x"), &["--resume", "--out"]),
        (format!("--resume {at} --preset published"), &["--resume", "--preset"]),
        (
            format!("--resume {at}/gpt-seed0"),
            &["gpt-seed0: holds a single run", &format!("the directory above it, {at}")],
        ),
        (format!("--resume {at}/nowhere"), &["does not exist"]),
        ("--resume Cargo.toml".into(), &["is not a run directory"]),
    ] {
        let (status, stdout, said) = run(&flags);
        assert_eq!((status, stdout.as_str()), (Some(2), ""), "{flags}: {said}");
        for word in words {
            assert!(said.contains(word), "{flags}: no '{word}' in: {said}");
        }
    }
    let dyck = program("dyck").arg("--resume").arg(&runs).output().unwrap();
    assert_eq!(dyck.status.code(), Some(2));
    let said = String::from_utf8(dyck.stderr).unwrap();
    assert!(said.contains("task"), "{said}");
    assert!(before == files(&runs), "something was written");
    // Flags with the same values are allowed, recorded or not.
    let same = "--lr 0.005 --steps 1200 --kernels fast --label-smoothing 0 --variant clean";
    let (status, _, said) = run(&format!("{} {same}", resume(&runs)));
    assert_eq!(status, Some(0), "{said}");
}

#[test]
fn two_processes_do_not_work_on_one_run() {
    let dir = tempfile::tempdir().unwrap();
    // One run: otherwise the second process would take the runs that the first has not started.
    let one = out(dir.path()).replace("lstm,gpt --seeds 2", "gpt --seeds 1");
    let mut child = command(&one).spawn().unwrap();
    wait_for(|| dir.path().join("gpt-seed0/metrics.jsonl").exists(), &mut child);
    // Another process may neither resume the run nor delete it.
    for flags in [resume(dir.path()), format!("{one} --force"), one.clone()] {
        let (status, stdout, said) = run(&flags);
        assert_eq!((status, stdout.as_str()), (Some(2), ""), "{said}");
        let process = format!("another process (process {} on ", child.id());
        assert!(said.contains(&process) && said.contains("is at work"), "{said}");
    }
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert!(!dir.path().join("lock").exists());
}

#[test]
fn batches_made_ahead_are_the_same_and_cost_no_buffers() {
    let keys = "train_len = '6-9'\neval_lens = [8]\nbatch = 4\nsteps = 40\n[model]\nwidth = 8\nheads = 2\nhead_dim = 4";
    let cfg = TrainConfig::load(None, keys.parse().unwrap()).unwrap();
    for name in [models::names()[0], "gpt"] {
        let losses = |ahead: bool| {
            let mut trainer = Trainer::new(&cfg.for_model(name).unwrap(), 3).unwrap();
            if ahead {
                trainer.make_batches_ahead();
            }
            let mut losses: Vec<u64> = (0..2).map(|_| trainer.step().unwrap().loss.to_bits()).collect();
            let before = trainer.fresh_buffers();
            losses.extend((0..38).map(|_| trainer.step().unwrap().loss.to_bits()));
            assert_eq!(trainer.fresh_buffers(), before);
            losses
        };
        assert_eq!(losses(false), losses(true));
    }
}
