//! A damaged run directory gives an error that says so, never a panic, and never another result.
//!
//! `TAPEZOO_CASES=100000 cargo test --test mutated_runs` tries this many of each kind.

#![allow(clippy::unwrap_used)]

mod texts;

use indicatif::ProgressBar;
use rand::{RngExt, SeedableRng};
use serde_json::Value;
use std::{
    env, fs,
    path::{Path, PathBuf},
    time::Duration,
};
use tapezoo::{
    inspect::source,
    report::report,
    rng::Rng,
    train::{
        Trainer,
        checkpoint::{self, Written},
        config::TrainConfig,
        jobs::run_all,
        rundir::{self, Found, Held, RunDir},
    },
};
use texts::contains;

const CONFIG: &str = "models = ['lstm']\nseed = 3\nsteps = 8\nbatch = 4\ntrain_len = 4\neval_lens = [4]\n\
    eval_batches = 1\neval_batch = 2\nlog_every = 2\neval_every = 2\nmicro_batches = 2\n\
    [model]\nlayers = 1\nwidth = 4\nmlp = 4";

fn cases() -> usize {
    env::var("TAPEZOO_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(600)
}

fn config() -> TrainConfig {
    TrainConfig::load(None, CONFIG.parse().unwrap()).unwrap()
}

/// A directory with one finished run, and its checkpoint after step 5.
struct Place {
    dir: tempfile::TempDir,
    cfg: TrainConfig,
}

impl Place {
    fn new() -> Place {
        let (dir, cfg) = (tempfile::tempdir().unwrap(), config());
        let out = RunDir::create(&dir.path().join("runs"), &cfg, false).unwrap();
        let (reports, written) = run_all(&cfg, 1, Some(&out), false).unwrap();
        written.unwrap();
        assert_eq!(reports[0].error, None);
        let place = Place { dir, cfg: cfg.for_model("lstm").unwrap() };
        let mut trainer = Trainer::new(&place.cfg, 3).unwrap();
        (0..5).for_each(|_| trainer.step().map(drop).unwrap());
        let written = Written::default();
        checkpoint::save(&place.run(rundir::CHECKPOINT), &mut trainer, written, Duration::from_secs(1)).unwrap();
        place
    }

    fn runs(&self) -> PathBuf {
        self.dir.path().join("runs")
    }

    fn run(&self, name: &str) -> PathBuf {
        rundir::of(&self.runs(), "lstm", 3).join(name)
    }

    /// The error of loading the checkpoint.
    fn load(&self, bytes: &[u8]) -> Result<usize, String> {
        let path = self.run(rundir::CHECKPOINT);
        fs::write(&path, bytes).unwrap();
        let own = rundir::configuration_of(&self.run(""), &config(), "lstm").unwrap();
        assert_eq!(own.parts(), 2, "the number of parts is the configuration's");
        let loaded = checkpoint::load(&path, &own, 3);
        loaded.map(|(trainer, _)| trainer.steps()).map_err(|e| e.to_string())
    }
}

/// Change some bytes: single ones, digits, stretches, the end.
fn mutate(bytes: &mut Vec<u8>, rng: &mut Rng) {
    for _ in 0..rng.random_range(1..4) {
        let n = bytes.len().max(1);
        // The header is small, and has most of the information.
        let at = if rng.random_bool(0.5) { rng.random_range(0..n.min(2000)) } else { rng.random_range(0..n) };
        if at >= bytes.len() {
            return;
        }
        match rng.random_range(0..7) {
            0 => bytes[at] ^= 1 << rng.random_range(0..8),
            1 => bytes[at] = rng.random(),
            2 => bytes.truncate(at),
            3 => drop(bytes.remove(at)),
            4 => bytes.insert(at, *b"0919-e\"{}[],".get(rng.random_range(0..12)).unwrap()),
            5 => {
                let to = (at + rng.random_range(1..40)).min(bytes.len());
                let part = bytes[at..to].to_vec();
                bytes.splice(at..at, part);
            }
            // A number after some place is changed.
            _ => {
                let Some(from) = (at..bytes.len()).find(|&i| bytes[i].is_ascii_digit()) else { continue };
                let to = (from..bytes.len()).find(|&i| !bytes[i].is_ascii_digit()).unwrap_or(bytes.len());
                let numbers = ["0", "-1", "1e999", "NaN", "18446744073709551615", "9223372036854775807", "1000000000"];
                bytes.splice(from..to, numbers[rng.random_range(0..numbers.len())].bytes());
            }
        }
    }
}

/// The header's length, after the header has changed.
fn with_length(bytes: &mut [u8], header: usize, before: usize, after: usize) {
    if let Some(length) = bytes.first_chunk_mut() {
        *length = ((header + after).saturating_sub(before) as u64).to_le_bytes();
    }
}

#[test]
fn a_damaged_checkpoint_is_refused() {
    let place = Place::new();
    let good = fs::read(place.run(rundir::CHECKPOINT)).unwrap();
    let header = u64::from_le_bytes(*good.first_chunk().unwrap()) as usize;
    assert_eq!(place.load(&good), Ok(5));
    // The checksum covers every number of the header, even where another number would be plausible.
    for at in (8..8 + header).filter(|&at| good[at].is_ascii_digit()) {
        let mut bytes = good.clone();
        bytes[at] = if bytes[at] == b'9' { b'8' } else { bytes[at] + 1 };
        assert!(place.load(&bytes).is_err(), "another digit at byte {at} was accepted");
    }
    let mut rng = Rng::seed_from_u64(1);
    let mut sealed = 0;
    for case in 0..cases() {
        let mut bytes = good.clone();
        mutate(&mut bytes, &mut rng);
        if rng.random_bool(0.5) && bytes.len() > 8 {
            let after = bytes.len();
            with_length(&mut bytes, header, good.len(), after);
        }
        if bytes == good {
            continue;
        }
        let said = place.load(&bytes).expect_err("another file was accepted");
        assert!(
            said.contains("checkpoint.safetensors: ") && said.ends_with("delete it to begin this run anew"),
            "case {case}: {said}"
        );
        assert!(said.len() < 1000 && !said.chars().any(|c| c.is_control()), "case {case}: {said:?}");
        // With a matching checksum, every number is still validated.
        if checkpoint::seal(&mut bytes).is_ok() {
            sealed += 1;
            if let Ok(step) = place.load(&bytes) {
                assert!(step <= place.cfg.steps, "case {case}: step {step}");
                let path = place.run(rundir::CHECKPOINT);
                let about = checkpoint::about(&path).unwrap();
                // Or the error is about the metrics.
                let held = Held::now(path.parent().unwrap()).unwrap().unwrap();
                assert!(
                    held.go_on(about.written()).is_err()
                        == (about.metrics != 0 || about.written() != Written::default()),
                    "{about:?}"
                );
            }
        }
        let _ = source::checkpoint(&place.run(""));
    }
    assert!(sealed > cases() / 10, "{sealed}");
}

/// A checkpoint with another value of one entry, and a matching checksum.
fn with(good: &[u8], key: &str, value: Value) -> Vec<u8> {
    let header = 8 + u64::from_le_bytes(*good.first_chunk().unwrap()) as usize;
    let mut tree: Value = serde_json::from_slice(&good[8..header]).unwrap();
    let text = tree["__metadata__"]["tapezoo"].as_str().unwrap();
    let mut about: checkpoint::About = serde_json::from_str(text).unwrap();
    let mut fields = serde_json::to_value(&about).unwrap();
    fields[key] = value;
    about = match serde_json::from_value(fields.clone()) {
        Ok(about) => about,
        Err(e) => panic!("{key}: {e}"),
    };
    tree["__metadata__"]["tapezoo"] = serde_json::to_string(&about).unwrap().into();
    let text = tree.to_string();
    let mut bytes = [&(text.len() as u64).to_le_bytes()[..], text.as_bytes(), &good[header..]].concat();
    checkpoint::seal(&mut bytes).unwrap();
    bytes
}

#[test]
fn every_number_of_a_checkpoint_is_checked() {
    let place = Place::new();
    let good = fs::read(place.run(rundir::CHECKPOINT)).unwrap();
    assert_eq!(place.load(&with(&good, "step", 5.into())), Ok(5));
    let config = |a: &str, b: &str| {
        let about = checkpoint::about(&place.run(rundir::CHECKPOINT)).unwrap();
        assert!(about.config.contains(a), "{}", about.config);
        Value::from(about.config.replace(a, b))
    };
    // As earlier versions called it.
    let old_name = config("micro_batches = 2", "shards = 2");
    assert_eq!(place.load(&with(&good, "config", old_name)), Ok(5));
    fs::write(place.run(rundir::CHECKPOINT), &good).unwrap();
    for (key, value, words) in [
        ("step", 9.into(), "step 9 of a run of 8"),
        ("step", u64::MAX.into(), "of a run of 8"),
        ("seed", 4.into(), "a checkpoint of seed 4, and this is seed 3"),
        ("training_s", (-1.0).into(), "training_s -1"),
        ("wall_s", 1e300.into(), "wall_s 1"),
        (
            "config",
            config("micro_batches = 2", "micro_batches = 1000000000"),
            "micro_batches is 1000000000 there, and 2 here",
        ),
        (
            "config",
            config("micro_batches = 2", "micro_batches = 9223372036854775807"),
            "micro_batches is 9223372036854775807 there",
        ),
        ("config", config("lr = ", "lr = 1"), "lr is 1"),
        ("mixer", "gpt".into(), "mixer is \"gpt\" there, and \"lstm\" here"),
    ] {
        fs::write(place.run(rundir::CHECKPOINT), &good).unwrap();
        let said = place.load(&with(&good, key, value)).unwrap_err();
        assert!(said.contains(words), "{key}: no '{words}' in: {said}");
    }
    // More metrics than there were, and other ones.
    for (bytes, checksum, words) in [(1 << 60, 0, "fewer than"), (4, 7, "are not those that were there")] {
        let held = Held::now(&place.run("")).unwrap().unwrap();
        let written = Written { bytes, checksum: tapezoo::rng::Fnv1a(checksum) };
        let said = held.go_on(written).err().unwrap().to_string();
        assert!(said.contains(words), "{said}");
    }
}

#[test]
fn the_time_of_earlier_processes_counts() {
    let place = Place::new();
    let path = place.run(rundir::CHECKPOINT);
    let good = fs::read(&path).unwrap();
    fs::write(&path, with(&with(&good, "training_s", 1000.0.into()), "wall_s", 2000.0.into())).unwrap();
    fs::remove_file(place.run(rundir::RESULT)).unwrap();
    let (out, cfg) = RunDir::open(&place.runs()).unwrap();
    let report = run_all(&cfg, 1, Some(&out), false).unwrap().0.swap_remove(0);
    assert_eq!(report.error, None);
    assert!(report.wall_s > 2000.0 && report.steps_per_s < 8.0 / 1000.0, "{report:?}");
}

#[test]
fn a_damaged_result_is_an_error_or_another_result_but_no_panic() {
    let place = Place::new();
    fs::remove_file(place.run(rundir::CHECKPOINT)).unwrap();
    let (path, run) = (place.run(rundir::RESULT), place.run(""));
    let good = fs::read(&path).unwrap();
    rundir::check_configuration(&run, &place.cfg, 3).unwrap();
    rundir::check_files(&run).unwrap();
    let Ok(Found::Finished(whole)) = rundir::find(&run) else { panic!("no result") };
    let mut rng = Rng::seed_from_u64(2);
    for case in 0..cases() {
        let mut bytes = good.clone();
        mutate(&mut bytes, &mut rng);
        fs::write(&path, &bytes).unwrap();
        match rundir::find(&run) {
            Ok(Found::Finished(report)) => {
                // Results of older versions have no checksum.
                let sealed = String::from_utf8_lossy(&bytes).contains("\"checksum\":");
                assert!(!sealed || report == whole, "case {case}: {report:?}");
                let checks = [rundir::check_configuration(&run, &place.cfg, 3), rundir::check_files(&run)];
                let said = checks.into_iter().filter_map(Result::err).map(|e| e.to_string());
                said.for_each(|said| assert!(said.len() < 1500, "case {case}: {said}"));
            }
            Ok(_) => panic!("case {case}: the result is not seen"),
            Err(e) => assert!(e.to_string().contains("delete it to repeat this run"), "case {case}: {e}"),
        }
        rundir::configuration_of(&run, &config(), "lstm").unwrap();
    }
    // A score that cannot be.
    for x in [7.0, -0.25] {
        let mut tree: Value = serde_json::from_slice(&good).unwrap();
        tree["accuracy"]["4"] = x.into();
        fs::write(&path, tree.to_string()).unwrap();
        let said = rundir::find(&run).err().unwrap().to_string();
        assert!(said.contains("accuracy at 4 is ") && said.contains("which it cannot be"), "{said}");
    }
    // Another configuration, and no weights.
    fs::write(&path, &good).unwrap();
    let other = TrainConfig { lr: 0.5, ..place.cfg.clone() };
    let said = rundir::check_configuration(&run, &other, 3).unwrap_err().to_string();
    assert!(said.contains("another configuration: lr is") && said.contains("0.5 here"), "{said}");
    let weights = place.run(rundir::WEIGHTS);
    let mut bytes = fs::read(&weights).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&weights, &bytes).unwrap();
    contains(rundir::check_files(&run).unwrap_err().to_string(), "not the weights");
    // Metrics that were cut, or changed.
    let metrics = place.run(rundir::METRICS);
    let whole = fs::read(&metrics).unwrap();
    for (bytes, words) in [
        (&whole[..whole.len() - 1], format!("{} of the {} bytes that this run wrote", whole.len() - 1, whole.len())),
        (&[], format!("0 of the {} bytes", whole.len())),
        (&[&whole[..], b"{}\n"].concat(), "not the metrics that this run wrote".into()),
        (&whole.to_ascii_uppercase(), "not the metrics that this run wrote".into()),
    ] {
        fs::write(&metrics, bytes).unwrap();
        let said = rundir::check_files(&run).unwrap_err().to_string();
        assert!(said.contains("metrics.jsonl: ") && said.contains(&words) && said.contains("put it back"), "{said}");
    }
    fs::write(&metrics, &whole).unwrap();
    fs::remove_file(&weights).unwrap();
    contains(rundir::check_files(&run).unwrap_err().to_string(), "cannot be read");
}

#[test]
fn a_report_of_damaged_files_shows_the_rest_and_draws_only_numbers() {
    let place = Place::new();
    fs::remove_file(place.run(rundir::CHECKPOINT)).unwrap();
    let files = [place.run(rundir::METRICS), place.run(rundir::RESULT), place.runs().join("results.json")];
    let goods = files.clone().map(|file| fs::read(file).unwrap());
    let mut rng = Rng::seed_from_u64(3);
    for case in 0..cases() {
        let mut damaged = goods.clone();
        mutate(&mut damaged[case % 3], &mut rng);
        files.iter().zip(&damaged).for_each(|(file, bytes)| fs::write(file, bytes).unwrap());
        drawn(&place.runs(), &format!("case {case}"));
    }
}

/// The notes of a report, after a check that its figures contain only finite numbers.
#[track_caller]
fn drawn(dir: &Path, what: &str) -> Vec<String> {
    let report = report(&[dir.to_path_buf()], &ProgressBar::hidden()).unwrap();
    for (name, svg) in &report.figures {
        let tree = roxmltree::Document::parse(svg).unwrap_or_else(|e| panic!("{what}, {name}: {e}"));
        for node in tree.descendants() {
            for attribute in node.attributes().filter(|a| ["points", "d", "x", "y", "cx", "cy"].contains(&a.name())) {
                let text = attribute.value();
                assert!(!text.contains("NaN") && !text.contains("inf"), "{what}, {name}: {text}");
            }
        }
    }
    report.notes
}

#[test]
fn numbers_that_cannot_be_drawn_are_left_out_and_said() {
    let place = Place::new();
    let file = place.run(rundir::METRICS);
    let good = fs::read_to_string(&file).unwrap();
    for (value, words) in [
        ("1e308", "what cannot be is left out: \"loss at step 2: 1e+308\""),
        ("-3", "what cannot be is left out: \"loss at step 2: -3\""),
        ("null", "what cannot be is left out: \"loss at step 2: null\""),
        ("-1e-9", ""),
        ("5e-324", ""),
        ("NaN", "is no JSON object; left out"),
        ("1e999", "is no JSON object; left out"),
    ] {
        let mut lines: Vec<String> = good.lines().map(String::from).collect();
        let line = lines.iter_mut().find(|line| line.starts_with("{\"step\":2,\"loss\"")).unwrap();
        *line = format!("{{\"step\":2,\"loss\":{value}}}");
        fs::write(&file, lines.join("\n") + "\n").unwrap();
        let notes = drawn(&place.runs(), value).join("\n");
        assert!(notes.contains(words) && (words.is_empty() == notes.is_empty()), "{value}: {notes}");
    }
    fs::write(&file, &good).unwrap();
    let results = place.runs().join("results.json");
    let mut tree: Value = serde_json::from_slice(&fs::read(&results).unwrap()).unwrap();
    for x in [1e300, 7.0, -0.5] {
        tree["runs"][0]["accuracy"]["4"] = x.into();
        fs::write(&results, tree.to_string()).unwrap();
        let notes = drawn(&place.runs(), "accuracy").join("\n");
        assert!(notes.contains("lstm seed 3: what cannot be is left out: \"accuracy at 4: "), "{notes}");
    }
    tree["runs"][0]["accuracy"] = serde_json::json!({ "0": 0.5, "4": 0.5 });
    fs::write(&results, tree.to_string()).unwrap();
    let notes = drawn(&place.runs(), "length 0").join("\n");
    assert!(notes.contains("left out: \"accuracy at 0: 0.5\""), "{notes}");
    tree["runs"][0]["steps_per_s"] = (-5).into();
    fs::write(&results, tree.to_string()).unwrap();
    let notes = drawn(&place.runs(), "speed").join("\n");
    assert!(notes.contains("steps_per_s -5"), "{notes}");
    // A run that cannot be read in the common file is left out there, and read from its own file.
    tree["runs"][0]["params"] = "many".into();
    fs::write(&results, tree.to_string()).unwrap();
    let notes = drawn(&place.runs(), "params").join("\n");
    assert!(notes.contains("left out: ") && notes.contains("results.json: lstm seed 3"), "{notes}");
}
