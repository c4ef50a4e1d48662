//! A signal ends the program soon, and what was learned is saved.

use crate::{
    LONG,
    program::{Place, Ran},
    says, signalled, wait_for,
};
use std::{
    fs,
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

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

    // Whoever asks again does not wait for it.
    let mut child = place.start(&format!("{long} --micro-batches 1 --out twice"));
    wait_for(&mut child, || place.at("twice/lstm-seed0/metrics.jsonl").exists());
    assert!(Command::new("kill").arg(child.id().to_string()).status().unwrap().success());
    thread::sleep(Duration::from_millis(700));
    let (status, _, said, _) = signalled(child, "-TERM");
    assert!(status == Some(143) && !said.contains("error"), "{status:?}: {said}");
}

/// A run of a device is looked at where the device is not: here the emulator, which no compiler can make.
#[test]
fn a_checkpoint_of_a_device_is_looked_at_without_it() {
    let place = Place::new();
    if place.run(&format!("parity {} --device emulated", LONG.replace("1000000", "1"))).status != Some(0) {
        return eprintln!("SKIPPED: there is no emulator");
    }
    let mut child = place.start(&format!("{LONG} --device emulated --out run"));
    wait_for(&mut child, || place.at("run/lstm-seed0/checkpoint.safetensors").exists());
    assert_eq!(signalled(child, "-TERM").0, Some(143));
    let without = |line: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tapezoo"));
        command.args(line.split(' ')).current_dir(place.0.path());
        Ran::of(command.env("CXX", "/nowhere").env("XDG_CACHE_HOME", place.at("empty")).output().unwrap())
    };
    let ran = without("parity --resume run");
    assert_eq!(ran.status, Some(2), "the emulator is there: {}", ran.stderr);
    let ran = without("inspect --checkpoint run --len 4");
    assert_eq!(ran.status, Some(0), "{}", ran.stderr);
}

/// `timeout` signals its child, and then the child's group: one request in two signals.
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
