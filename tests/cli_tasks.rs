//! The programs of all tasks from outside: samples, help, scores, and errors for invalid values.

#![allow(clippy::unwrap_used)]

mod program;
mod texts;

use program::{Place, as_typed, run};
use serde_json::Value;
use std::fs;
use texts::contains;

const PROGRAMS: [&str; 4] = ["parity", "dyck", "mqar", "state_tracking"];

const SMALL: &str = "--models gpt,lstm --steps 3 --batch 2 --width 8 --heads 2 --head-dim 4 --mlp 8";

/// Assert that the command succeeds without warnings; returns its output.
#[track_caller]
fn prints(line: &str) -> String {
    let ran = run(line);
    assert_eq!((ran.status, ran.stderr.as_str()), (Some(0), ""), "{line}");
    ran.stdout
}

/// Assert that the command stops with status 2 before any work, with one error that contains all `words`, and no panic.
#[track_caller]
fn refuses(line: &str, words: &[&str]) {
    let ran = run(line);
    assert_eq!(ran.status, Some(2), "{line}: {}{}", ran.stdout, ran.stderr);
    assert!(ran.stderr.starts_with("error: ") && !ran.stderr.contains("panicked"), "{line}: {}", ran.stderr);
    for word in words.iter().map(|words| as_typed(line, words)) {
        assert!(ran.stderr.contains(&word), "{line}: no '{word}' in: {}", ran.stderr);
    }
    assert_eq!(ran.stdout, "", "{line}");
}

#[test]
fn samples_are_drawn_and_nothing_is_trained() {
    for line in [
        "parity --show 3",
        "parity --num-ones 3 --show 40 --batch 16",
        "parity --modulus 3 --show 3",
        "dyck --show 3",
        "dyck --types 9 --train-len 100 --show 2",
        "mqar --show 3",
        "mqar --preset zoology --show 2",
        "mqar --repeat 2 --show 2",
        "train --task disjoint --show 3",
        "train --task icll --show 2",
        "train --task icll --letters 5 --nodes 4 --string 3 --train-len 20-30 --show 2",
        "train --task window_parity --window 3 --show 2",
        "train --task delayed_match --asked 0 --grow-from 3 --show 2",
        "train --task disjoint --first large --repeat 2 --show 2",
        "mqar --preset published-mqar --show 2",
        "state_tracking --show 3",
        "state_tracking --task s5 --show 2",
        "state_tracking --task a4xz5 --show 2",
        "state_tracking --task parity --show 2",
        "state_tracking --task modular_arithmetic_with_brackets --mult --show 4",
        "state_tracking --task modular_arithmetic_with_brackets --preset paper --show 4",
        "state_tracking --task s5 --preset reduced --show 2",
    ] {
        let text = prints(line);
        assert!(text.lines().all(|l| l.chars().count() <= 80), "{line}:\n{text}");
        assert!(text.contains("training length") && text.lines().count() > 5, "{line}:\n{text}");
        assert_eq!(text, prints(line), "{line}");
    }
    // The first two sequences do not depend on how many are asked for.
    let (two, three) = (prints("dyck --show 2 --batch 2"), prints("dyck --show 3 --batch 2"));
    assert!(three.starts_with(&two) && three.len() > two.len(), "{two}\n{three}");
    // It is not the beginning of a run.
    let dir = tempfile::tempdir().unwrap();
    let ran = run(&format!("dyck --show 1 --out {}", dir.path().join("run").display()));
    assert_eq!(ran.status, Some(2), "{}", ran.stderr);
    assert!(!dir.path().join("run").exists());
}

#[test]
fn a_sample_shows_tokens_above_targets_and_dots_where_none_counts() {
    let text = prints("parity --train-len 8 --show 1");
    let lines: Vec<&str> = text.lines().collect();
    let digits = |line: &str| line.split_whitespace().map(|c| c.parse().unwrap()).collect::<Vec<i32>>();
    let (x, y) = (digits(lines[3]), digits(lines[4]));
    assert_eq!((x.len(), y.len()), (8, 8));
    for i in 0..8 {
        assert_eq!(y[i], 1 - x[..=i].iter().sum::<i32>() % 2);
    }
    let text = prints("dyck --train-len 8 --show 1");
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[3].split_whitespace().all(|c| "()[]{}".contains(c)), "{text}");
    assert!(lines[4].split_whitespace().all(|c| c == "0" || c == "1"), "{text}");
    let text = prints("mqar --layout published --keys 3 --values 4 --train-len 8 --eval-lens 8 --show 1");
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[3].matches('|').count(), 3);
    let below: Vec<&str> = lines[4].split_whitespace().collect();
    assert!(below[..7].iter().all(|&c| c == "·") && below[7].parse::<i32>().is_ok(), "{text}");
}

#[test]
fn scores_are_in_the_table_and_in_json() {
    for (line, scores) in [
        ("dyck --train-len 8 --eval-lens 8,4-12", &["precision", "recall"][..]),
        ("parity --modulus 5 --train-len 8 --eval-lens 8,64", &[]),
        ("mqar --train-len 16 --eval-lens 16,32", &[]),
        ("train --task disjoint --small 2 --train-len 16 --eval-lens 16,20", &[]),
        ("train --task icll --train-len 8 --eval-lens 8,9-64", &["tvd"]),
        ("train --task window_parity --asked 2 --train-len 8 --eval-lens 8,64", &["largest"]),
        ("state_tracking --task s3 --train-len 4 --eval-lens 4,6", &["sequences"]),
        ("state_tracking --task modular_arithmetic --train-len 3-9 --eval-lens 3-9,9-12", &["scaled"]),
    ] {
        let line = format!("{line} {SMALL} --seeds 2");
        let table = prints(&line);
        assert!(table.lines().all(|l| l.chars().count() <= 80), "{table}");
        let object: Value = serde_json::from_str(&prints(&format!("{line} --json"))).unwrap();
        for run in object["runs"].as_array().unwrap() {
            for score in scores.iter().chain(&["accuracy"]) {
                assert!(table.contains(score) || scores.is_empty(), "no {score}:\n{table}");
                let values = run[score].as_object().unwrap();
                assert_eq!(values.len(), 2, "{line}");
                assert!(values.values().all(|v| (-0.25..=1.0).contains(&v.as_f64().unwrap())), "{line}");
            }
        }
    }
}

#[test]
fn a_run_is_recorded_and_its_configuration_read_back() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("run");
    let line = "state_tracking --task modular_arithmetic_with_brackets --mult --train-len 5-9 --eval-lens 9";
    let first = prints(&format!("{line} {SMALL} --out {} --json", out.display()));
    let config = fs::read_to_string(out.join("config.toml")).unwrap();
    assert!(config.contains("train_len = \"5-9\"") && config.contains("mult = true"), "{config}");
    contains(fs::read_to_string(out.join("gpt-seed0/metrics.jsonl")).unwrap(), "\"scaled\":{\"9\":");
    let second = prints(&format!("state_tracking --config {} --json", out.join("config.toml").display()));
    let accuracy = |text: &str| -> Vec<Value> {
        let object: Value = serde_json::from_str(text).unwrap();
        object["runs"].as_array().unwrap().iter().map(|r| r["scaled"].clone()).collect()
    };
    assert_eq!(accuracy(&first), accuracy(&second));
}

/// A variant has its own row, directory and options, in addition to its mixer's options.
#[test]
fn variants_of_a_mixer_are_trained_side_by_side() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("run");
    let line = "--task parity --preset reduced --steps 3 --curriculum 3 --seeds 1 --batch 2 --eval-lens 40 --json";
    let models = "--models mamba,mamba_signed,gpt";
    let text = prints(&format!("state_tracking {line} {models} --out {}", out.display()));
    let object: Value = serde_json::from_str(&text).unwrap();
    let runs = object["runs"].as_array().unwrap();
    let names: Vec<&str> = runs.iter().map(|r| r["model"].as_str().unwrap()).collect();
    assert_eq!(names, ["mamba", "mamba_signed", "gpt"]);
    assert_eq!(runs[0]["params"], runs[1]["params"]);
    let losses = |name: &str| fs::read_to_string(out.join(format!("{name}-seed0/metrics.jsonl"))).unwrap();
    assert_ne!(losses("mamba"), losses("mamba_signed"));
    let again = prints(&format!("state_tracking --config {} --json", out.join("config.toml").display()));
    let again: Value = serde_json::from_str(&again).unwrap();
    assert_eq!(object["runs"][1]["accuracy"], again["runs"][1]["accuracy"]);

    let path = dir.path().join("c.toml");
    for (text, words) in [
        (
            "models = ['mine']\nper_model.mine = { lr = 1e-2 }",
            &["per_model.mine", "unknown mixer 'mine'", "`tapezoo models`"][..],
        ),
        ("models = ['mine']\nper_model.mine.mixer = 'rnn'", &["per_model.mine", "'rnn'"]),
        ("models = ['mine']\nper_model.mine.mixer = 3", &["per_model.mine", "'3'"]),
        ("models = ['gpt']\nper_model.gpt.mixer = 'lstm'", &["per_model.gpt.mixer", "lstm"]),
        ("models = ['a/b']\nper_model.'a/b'.mixer = 'lstm'", &["per_model.a/b", "letters"]),
        ("models = ['mine']\nper_model.mine = { mixer = 'lstm', model = { eigenvalues = '-1..1' } }", &["eigenvalues"]),
    ] {
        fs::write(&path, text).unwrap();
        refuses(&format!("state_tracking --config {}", path.display()), words);
    }
}

#[test]
fn tasks_that_cannot_be_are_refused() {
    refuses("parity --modulus 1", &["--modulus 1: expected 2 to 1024"]);
    refuses("parity --modulus 1025", &["--modulus 1025"]);
    refuses("state_tracking --preset repo", &["--preset repo", "--task parity, modular_arithmetic", "reduced"]);
    refuses("state_tracking --task s5 --preset paper", &["--preset paper", "reduced"]);
    let published = "parity --models quasi_lstm --variant published --train-len 8-16 --eval-lens 16";
    refuses(&format!("{published} --curriculum 9"), &["curriculum 9: length 9", "multiples of its block, 8"]);
    refuses("dyck --train-len 7", &["train_len 7", "even length"]);
    refuses("dyck --eval-lens 8,9", &["eval_lens 9", "even length"]);
    refuses("dyck --eval-lens 9-9", &["eval_lens 9", "even length"]);
    refuses("dyck --types 0", &["types 0", "1 to 10000"]);
    refuses("dyck --types 10001", &["types 10001"]);
    refuses("dyck --depth 0", &["depth 0", "at least 1"]);
    refuses("dyck --depth -1", &["--depth", "'-1'", "whole number"]);
    refuses("mqar --vocab 7", &["vocab 7", "even number"]);
    refuses("mqar --vocab 2", &["vocab 2"]);
    refuses("mqar --pairs 0", &["pairs 0"]);
    refuses("mqar --pairs 9", &["--train-len 32, as the preset has it", "9 pairs", "at least 36"]);
    refuses("mqar --pairs 9223372036854775807", &["9223372036854775807 pairs"]);
    refuses("mqar --vocab 8 --pairs 5 --train-len 64 --eval-lens 64", &["5 different keys", "has 3"]);
    refuses("mqar --train-len 31", &["train_len 31", "even length"]);
    refuses("mqar --preset published-mqar --train-len 11", &["train_len 11", "3 different keys", "there are 2"]);
    refuses("mqar --layout published --train-len 9", &["train_len 9", "5, 8, 11"]);
    refuses("mqar --layout published --all-queries --train-len 9", &["train_len 9", "5, 10, 15"]);
    refuses("mqar --layout published --keys 0", &["keys 0"]);
    refuses("mqar --layout published --values 0", &["values 0"]);
    refuses("mqar --layout published --pairs 3", &["--pairs 3: ", "length", "leave it out"]);
    refuses("mqar --repeat 0", &["repeat 0", "1 to 64"]);
    refuses(
        "mqar --pairs 6 --repeat 2",
        &["--train-len 32, as the preset has it", "6 pairs read again", "at least 36"],
    );
    refuses("mqar --layout published --repeat 2 --train-len 9", &["train_len 9", "6 m + 2", "8, 14, 20"]);
    refuses("train --task disjoint --train-len 9", &["train_len 9", "at least 10"]);
    refuses("train --task disjoint --train-len 67", &["train_len 67", "64 different elements", "at most 66"]);
    refuses("train --task disjoint --repeat 3", &["--train-len 32, as the preset has it", "a multiple of 3"]);
    refuses("train --task disjoint --small 33", &["small 33", "1 to 32"]);
    refuses("train --task disjoint --elements 1", &["elements 1", "2 to 2^20"]);
    refuses("train --task icll --train-len 1", &["train_len 1", "at least 2"]);
    refuses("train --task icll --letters 3", &["--letters 3: expected 4 to 26"]);
    refuses("train --task icll --edges 4", &["--edges 4: expected 1 to 3"]);
    refuses("train --task window_parity --window 1", &["--window 1: expected 2 to 512"]);
    refuses("train --task delayed_match --train-len 4", &["train_len 4", "window of 5 bits", "at least 5"]);
    refuses("train --task window_parity --train-len 1", &["train_len 1"]);
    refuses("train --task window_parity --asked 5", &["--asked 5", "2 to 5 bits", "at most 4"]);
    refuses("train --task window_parity --grow-from 6", &["--grow-from 6", "--window"]);
    refuses("train --task parity --window 3", &["--window belongs to the task window, and this is parity"]);
    refuses("mqar --layout square", &["'square'", "zoology, published"]);
    refuses("state_tracking --task s6", &["'s6'", "a5", "modular_arithmetic"]);
    refuses("state_tracking --task a5 --moves swaps", &["--moves swaps", "A5", "expected all"]);
    refuses("state_tracking --task parity --moves swaps", &["--moves swaps belongs to", "s5", "not to parity"]);
    refuses("state_tracking --task s5 --mult", &["--mult belongs to", "not to s5"]);
    refuses("state_tracking --task modular_arithmetic --mult", &["mult", "brackets"]);
    refuses("state_tracking --task modular_arithmetic --train-len 2", &["train_len 2", "at least 3"]);
    refuses("state_tracking --task parity --train-len 1", &["train_len 1", "at least 2"]);
    refuses("state_tracking --task modular_arithmetic_with_brackets --eval-lens 2-4", &["eval_lens 2-4", "at least 5"]);
}

#[test]
fn lengths_and_numbers_of_samples_that_cannot_be_are_refused() {
    for name in PROGRAMS {
        refuses(&format!("{name} --train-len 0-8"), &["train_len 0-8", "at least 1"]);
        refuses(&format!("{name} --train-len 8-4"), &["'8-4'", "shorter one first"]);
        refuses(&format!("{name} --train-len 8-"), &["'8-'", "3-40"]);
        refuses(&format!("{name} --eval-lens 8-x"), &["'8-x'"]);
        refuses(&format!("{name} --train-len 2-99999999999"), &["tokens in a batch"]);
        refuses(&format!("{name} --show 0"), &["--show", "1 to 10000"]);
        refuses(&format!("{name} --show 10001"), &["--show", "1 to 10000"]);
        refuses(&format!("{name} --show -1"), &["--show", "'-1'"]);
        refuses(&format!("{name} --preset big"), &["'big'", "default"]);
    }
    refuses("dyck --eval-lens 4-8,4-8", &["4-8", "twice"]);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("c.toml");
    for (text, words) in [
        ("train_len = -3", &["-3", "3-40"][..]),
        ("train_len = 'long'", &["'long'", "3-40"]),
        ("task.types = 3.5", &["3.5", "task"]),
        ("task = { name = 'dyck', num_ones = 3 }", &["num_ones", "types"]),
    ] {
        fs::write(&path, text).unwrap();
        refuses(&format!("dyck --config {}", path.display()), words);
    }
}

#[test]
fn switches_of_a_task_are_keys_of_its_configuration() {
    let place = Place::new();
    let task = "--layout published --keys 8 --values 8 --all-queries --repeated-keys --train-len 20 --eval-lens 20";
    place.prints(&format!("mqar {task} {SMALL} --seeds 1 --out run"));
    let config = fs::read_to_string(place.at("run/config.toml")).unwrap();
    for key in ["all_queries = true", "unique_keys = false", "keys = 8"] {
        contains(&config, key);
    }
}

#[test]
fn help_teaches() {
    for (name, words) in [
        ("parity", &["--num-ones", "published: 40000"][..]),
        ("dyck", &["--types", "default: 3", "--depth", "recall"]),
        ("mqar", &["--pairs", "zoology: 8192", "published: 2", "--all-queries"]),
        (
            "state_tracking",
            &["modular_arithmetic_with_brackets", "arithmetic: 3-40", "scaled", "--moves", "paper", "--curriculum"],
        ),
    ] {
        let help = prints(&format!("{name} --help"));
        for word in words.iter().chain(&["Examples:", "--show", "--eval-lens"]) {
            assert!(help.contains(word), "{name}: no '{word}' in:\n{help}");
        }
        assert!(!help.contains("name ="), "{name}: a table in:\n{help}");
    }
}
