//! Messages about settings that have no effect, contradict each other, or are invalid at some length, and about files.

#![allow(clippy::unwrap_used)]

mod effects;
mod from_files;
#[path = "../program/mod.rs"]
mod program;
#[path = "../texts/mod.rs"]
mod texts;

use program::Place;
use program::program;
use std::{fs, path::Path, process::Command};
use tapezoo::train::config::{TrainConfig, warnings};
use toml::Table;

const SMALL: &str = "--models lstm --seeds 1 --steps 3 --batch 2 --width 8 --train-len 6 --eval-lens 6";

#[test]
fn a_task_is_checked_against_every_length() {
    let place = Place::new();
    let remedy = "at most 32 ones, or lengths of at least 40";
    for (line, words) in [
        ("parity --num-ones 40 --train-len 32", &["train_len 32", "--num-ones", "40", remedy][..]),
        ("parity --num-ones 40 --train-len 64 --eval-lens 64,32", &["eval_lens 32", "40"]),
        ("parity --num-ones 12 --train-len 3-40", &["train_len 3-40", "length 3", "12"]),
        ("parity --num-ones 12 --eval-lens 3-40", &["eval_lens 3-40", "length 3", "12"]),
        ("mqar --pairs 9 --train-len 32-128", &["train_len 32-128", "length 32", "at least 36"]),
        ("mqar --vocab 8 --train-len 16-128", &["train_len 16-128", "length 128", "vocabulary of 8"]),
        (
            "mqar --layout published --keys 3 --train-len 5-20 --eval-lens 5",
            &["train_len 5-20", "length 20", "6 pairs"],
        ),
        ("mqar --layout published --train-len 6-7", &["train_len 6-7", "5, 8, 11"]),
        ("state_tracking --task modular_arithmetic --train-len 2", &["train_len 2", "at least 3"]),
        ("state_tracking --task modular_arithmetic --eval-lens 1-9", &["eval_lens 1-9", "at least 3"]),
        ("state_tracking --task parity --train-len 1-9", &["train_len 1-9", "at least 2"]),
        ("state_tracking --task modular_arithmetic_with_brackets --train-len 2-9", &["train_len 2-9", "from 3 on"]),
        ("dyck --train-len 7-7", &["train_len 7", "even"]),
    ] {
        place.refuses(line, words);
    }
    // Lengths off the grid are left out, and shorter lengths give the shortest published expression in brackets.
    for line in [
        "parity --num-ones 3 --train-len 4-9 --eval-lens 4,9",
        "dyck --train-len 7-13",
        "mqar --pairs 2 --train-len 7-33",
        "mqar --layout published --train-len 6-9 --eval-lens 8",
        "state_tracking --task modular_arithmetic --train-len 2-8",
        "state_tracking --task modular_arithmetic_with_brackets --train-len 3-8",
    ] {
        place.warns(&format!("{line} --show 1"), &[]);
    }
}

#[cfg(unix)]
#[test]
fn what_is_no_regular_file_or_too_large_is_read_by_no_program() {
    let place = Place::new();
    place.warns(&format!("parity {SMALL} --out run"), &[]);
    assert!(Command::new("mkfifo").arg(place.at("pipe")).status().unwrap().success());
    for (name, size) in [("large", 2 << 20), ("huge", 3 << 30)] {
        fs::File::create(place.at(name)).unwrap().set_len(size).unwrap();
    }
    let [none, most] = ["not a regular file", "and such a file has at most"];
    for (name, why) in [("/dev/zero", none), ("pipe", none), (".", none), ("large", most)] {
        place.refuses(&format!("parity --config {name}"), &[name, why]);
        place.refuses(&format!("sweep {name} --dry-run"), &[name, why]);
        if why == none {
            place.refuses(&format!("verify {name}"), &[name, why]);
        }
    }
    let run = "lstm-seed0";
    for (odd, why) in [("/dev/zero".into(), none), (place.at("pipe"), none), (place.at("huge"), most)] {
        // The status of the report, of a run that goes on and of the inspector where this file is no file; none that is
        // not read.
        for (file, [report, resume, inspect]) in [
            ("config.toml".into(), [Some(2), Some(2), Some(2)]),
            ("results.json".into(), [Some(0), None, None]),
            (format!("{run}/result.json"), [Some(0), Some(1), None]),
            (format!("{run}/metrics.jsonl"), [Some(0), Some(1), None]),
            (format!("{run}/weights.safetensors"), [None, Some(1), Some(2)]),
            (format!("{run}/checkpoint.safetensors"), [None; 3]),
        ] {
            let (path, aside) = (place.at("run").join(&file), place.at("aside"));
            let is_there = path.exists();
            if is_there {
                fs::rename(&path, &aside).unwrap();
            }
            std::os::unix::fs::symlink(&odd, &path).unwrap();
            for (line, status) in
                [("report run", report), ("parity --resume run", resume), ("inspect --checkpoint run --len 4", inspect)]
            {
                // A tensor file may be as large as memory, and metrics are read in pieces: neither has a fixed limit
                // here.
                let reads =
                    why == none || !(file.contains("weights") || file.contains("metrics") && line.contains("resume"));
                let Some(status) = status.filter(|_| reads) else { continue };
                let ran = place.run(line);
                let said = ran.stdout + &ran.stderr;
                assert_eq!(ran.status, Some(status), "{line}, {file}: {said}");
                assert!(said.contains(&file) && said.contains(why), "{line}, {file}: {said}");
            }
            fs::remove_file(&path).unwrap();
            if is_there {
                fs::rename(&aside, &path).unwrap();
            }
        }
    }
    // A checkpoint of a run that is to go on.
    fs::remove_file(place.at("run/lstm-seed0/result.json")).unwrap();
    std::os::unix::fs::symlink("/dev/zero", place.at("run/lstm-seed0/checkpoint.safetensors")).unwrap();
    let ran = place.run("parity --resume run");
    assert!(ran.status == Some(1) && ran.stdout.contains(none), "{}{}", ran.stdout, ran.stderr);
}

#[test]
fn what_takes_long_is_said_before_it_begins() {
    let place = Place::new();
    let long = |text: &str, words: &[&str]| {
        let ran = place.run(&place.with_file(text, "sweep FILE --dry-run"));
        assert_eq!(
            (ran.status, ran.stderr.lines().count()),
            (Some(0), usize::from(!words.is_empty())),
            "{}",
            ran.stderr
        );
        words.iter().for_each(|word| assert!(ran.stderr.contains(word), "no '{word}' in: {}", ran.stderr));
    };
    long("", &[]);
    long("preset = 'dyck'", &[]);
    let note = "note: the whole grid takes about";
    long(
        "models = ['lstm']\nsteps = 1000000000",
        &[note, "days of a core", "lstm: training for 1000000000 steps", "--steps"],
    );
    long(
        "grid.models = ['lstm', 'gpt']\neval_lens = [24000]\neval_batches = 1000",
        &[
            note,
            "days of a core",
            "gpt: evaluating 1000 batches of 32 at length 24000",
            "lower eval_lens or eval_batches",
        ],
    );
    long("models = ['lstm']\neval_lens = [24000]\neval_batches = 100", &[]);
    long("models = ['lstm']\nsteps = 20000", &[]);
    for slow in ["kernels = 'plain'", "kernels = 'linear'", "device = 'emulated'"] {
        long(&format!("models = ['lstm']\nsteps = 20000\n{slow}"), &[note, "minutes of a core", "training for 20000"]);
    }
    // The warning comes before the runs, not after them.
    let mut child = program("parity")
        .args(["--steps", "1000000000", "--models", "lstm"])
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut first = String::new();
    let mut stderr = std::io::BufReader::new(child.stderr.take().unwrap());
    std::io::BufRead::read_line(&mut stderr, &mut first).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(first.starts_with("note: this takes about") && first.contains("for each seed"), "{first}");
}

#[test]
fn a_setting_without_effect_is_named_once() {
    let place = Place::new();
    let alone = |key| [key, "has no effect", "alone"];
    for (flags, said) in [
        ("", &[][..]),
        ("--householders 3", &[&alone("--householders 3")[..]][..]),
        ("--state 4 --expand 3", &[&alone("--state 4"), &alone("--expand 3")]),
        ("--conv 3 --dt-rank 2", &[&alone("--conv 3"), &alone("--dt-rank 2")]),
        ("--models lstm,lru --state 4", &[]),
        ("--ngram 2", &[]),
        ("--ngram 16", &[&["--ngram 16", "more than sequences of", "find nothing"]]),
        ("--models lru --heads 4", &[&alone("--heads 4")]),
        ("--curriculum 2", &[&["--curriculum 2", "one length", "range"]]),
        ("--train-len 3-6 --curriculum 4", &[&["--curriculum 4", "3 steps"]]),
        ("--train-len 3-6 --curriculum 3", &[]),
        ("--warmup 4", &[&["--warmup 4", "3 steps", "never reaches lr"]]),
        ("--warmup 3", &[]),
        ("--warmup 3 --schedule cosine", &[&["--schedule cosine", "has no effect", "warm-up"]]),
        ("--max-len 9", &[&["--max-len 9", "has no effect", "positions"]]),
        ("--max-len 5", &[&["--max-len 5", "has no effect", "positions"]]),
        ("--max-len 9 --models gpt", &[]),
        ("--max-len 9 --variant published", &[&["--max-len 9", "has no effect", "positions"]]),
        ("--max-len 8 --variant published --models quasi_lstm --train-len 8 --eval-lens 8", &[]),
        ("--eigenvalues 0..1", &[&alone("--eigenvalues 0..1")]),
        ("--models lstm,mamba --eigenvalues 0..1", &[]),
        ("--cuda-graph off", &[&["--cuda-graph off", "has no effect", "cpu"]]),
        ("--checkpoint-every 5", &[&["--checkpoint-every 5", "has no effect without --out"]]),
        ("--checkpoint-every 5 --out kept", &[]),
        ("--eval-every 2", &[&["--eval-every 2", "has no effect without --out"]]),
        ("--eval-every 9 --out kept3", &[&["--eval-every 9", "3 steps", "only its end"]]),
        ("--eval-every 3 --out kept4", &[]),
        ("--num-ones 6", &[&["--num-ones 6", "nothing to learn", "ones"]]),
        ("--modulus 7", &[&["--modulus 7", "never reached in training", "at most 6 ones"]]),
        ("--modulus 6", &[]),
        ("--models mamba --variant published --mlp 16", &[&["--mlp 16", "published mamba has no such thing"]]),
        ("--variant published --positions rope", &[&["--positions rope", "published lstm"]]),
        ("--models gpt --variant published --positions rope --mlp 16", &[]),
        ("--num-ones 0", &[&["--num-ones 0", "nothing to learn", "zeros"]]),
        (
            "--profile --threads 1",
            &[
                &["--threads is the old name of --jobs"],
                &["--seeds, --steps, --threads have no effect beside --profile"],
            ],
        ),
        (
            "--kernels fast,-causal_attention",
            &[&["-causal_attention", "has no effect on causal_attention", "the model"]],
        ),
        ("--models gpt,lstm --kernels fast,-causal_attention,-lstm_sequence", &[]),
        ("--models gpt,lstm --kernels matmul,slstm_sequence", &[&["on slstm_sequence, which no model here has"]]),
        // Without its kernel, the LSTM is computed by these ops.
        ("--kernels fast,-lstm_sequence,-sigmoid", &[]),
    ] {
        // A flag that is given twice is an error, so the first of two is taken out.
        let mut small: Vec<&str> = SMALL.split(' ').collect();
        for flag in flags.split(' ').filter(|f| f.starts_with("--")) {
            if let Some(i) = small.iter().position(|word| *word == flag) {
                small.drain(i..i + 2);
            }
        }
        place.warns(&format!("parity {} {flags}", small.join(" ")), said);
    }
    for (line, said) in [
        ("parity --jobs 2", &[&["--jobs has no effect beside --show"][..]][..]),
        (
            "parity --models gpt --lr 0.1 --width 8 --seed 3 --batch 2 --num-ones 3 --state 9",
            &[&["--models, --lr, --width, --state have no effect beside --show"]],
        ),
        ("dyck --depth 40 --train-len 32 --eval-lens 32", &[&["--depth 40", "has no effect", "16"]]),
        ("dyck --depth 40 --train-len 32 --eval-lens 128", &[]),
        ("dyck --train-len 8 --eval-lens 8", &[]),
        (
            "mqar --keys 4 --all-queries --repeated-keys",
            &[&["--keys 4", "\"published\""], &["--repeated-keys"], &["--all-queries", "\"zoology\""]],
        ),
        (
            "mqar --layout published --vocab 32 --random-non-queries --train-len 8 --eval-lens 8",
            &[&["--vocab 32", "\"zoology\""], &["--random-non-queries"]],
        ),
        ("mqar --layout published --values 1 --train-len 8 --eval-lens 8", &[&["--values 1", "nothing to learn"]]),
        ("mqar --layout published --values 2 --train-len 8 --eval-lens 8", &[]),
        ("train --task disjoint --first large --train-len 10 --eval-lens 10", &[&["--first large", "one size"]]),
        ("train --task disjoint --first large --train-len 10 --eval-lens 12", &[]),
        ("state_tracking --task modular_arithmetic --train-len 8", &[&["--train-len 8", "no length", "3, 5, 7"]]),
        ("state_tracking --task modular_arithmetic --eval-lens 9,40", &[&["--eval-lens", "40", "next shorter"]]),
        ("state_tracking --task s3 --moves three", &[&["--moves three", "all elements of S3"]]),
        ("state_tracking --task s4 --moves three", &[]),
        (
            "train --task window_parity --grow-every 9 --grow-at 0.5",
            &[&["--grow-every 9 has no effect without"], &["--grow-at 0.5 has no effect without"]],
        ),
        ("train --task window_parity --grow-from 5", &[&["--grow-from 5", "has no effect", "5 bits"]]),
        (
            "train --task window_parity --grow-from 5 --grow-every 9 --grow-at 0.5",
            &[&["--grow-from 5"], &["--grow-every 9 has no effect"], &["--grow-at 0.5 has no effect"]],
        ),
        ("train --task window_parity --grow-from 4 --grow-every 9 --grow-at 0.5", &[]),
        (
            "train --task window_parity --grow-from 2 --grow-every 40 --steps 120",
            &[&["--steps has no effect beside --show"], &["--grow-from 2 makes 4 stages", "step 120"]],
        ),
        ("train --task window_parity --grow-from 2 --grow-every 40 --steps 121", &[&["--steps"]]),
        (
            "parity --num-ones 3 --modulus 5 --train-len 8 --eval-lens 8",
            &[&["--modulus 5 is never reached", "at most 3 ones"]],
        ),
    ] {
        place.warns(&format!("{line} --show 1"), said);
    }
    place.refuses("state_tracking --task parity --moves swaps", &["--moves swaps belongs to --task s3, s4", "parity"]);
    // Vocabularies are asked for before options are checked.
    for (line, words) in [
        ("train --task window_parity --window 0 --asked 0", &["--window 0", "2 to 512"][..]),
        ("train --task window_parity --window 5 --grow-from 9 --asked 2", &["--grow-from 9", "2 to the 5 bits"]),
        ("mqar --layout published --keys 2147483647", &["--keys 2147483647", "1 to 16777213"]),
        ("mqar --layout published --values 16777216", &["--values 16777216", "1 to 16777213"]),
        ("mqar --layout published --pairs 3", &["--pairs 3", "leave it out"]),
        // Lengths 32 and 34 have two pairs, and no place for them eight times.
        ("mqar --repeat 8 --train-len 18-36 --eval-lens 36", &["--train-len 18-36", "length 32", "2 pairs"]),
        ("state_tracking --task modular_arithmetic_with_brackets --train-len 1-40", &["--train-len 1-40", "from 3 on"]),
    ] {
        place.refuses(&format!("{line} --show 1"), words);
    }
    place.refuses("state_tracking --task s3 --mult", &["--mult belongs to --task modular_arithmetic_with_brackets"]);
    for flags in ["--json", "--profile", "--out kept2"] {
        place.refuses(&format!("parity --show 1 {flags}"), &["--show", flags.split(' ').next().unwrap()]);
    }
}

#[test]
fn a_file_is_asked_as_flags_are_but_not_for_what_it_repeats() {
    let place = Place::new();
    let show = "parity --show 1 --config FILE";
    for (text, said) in [
        ("model.householders = 3", &[&["model.householders = 3", "has no effect"][..]][..]),
        ("model.householders = 2", &[]),
        ("min_lr = 0.2", &[&["min_lr", "old name of min_lr_fraction", "fraction of lr"]]),
        ("per_model.gpt.min_lr = 0.2", &[&["min_lr", "old name"]]),
        ("shards = 4", &[&["shards = 4", "old name of micro_batches"]]),
        ("models = ['lru', 'lstm', 'mamba']\nper_model.lru.shards = 4", &[&["shards", "old name"]]),
        ("models = ['mamba', 'delta_net']\nform = 'chunked:5'", &[&["form = chunked:5", "called scan:5 for mamba"]]),
        ("models = ['mamba', 'lru']\nform = 'scan:5'", &[]),
        ("schedule = 'constant'\nmin_lr_fraction = 0.2", &[&["min_lr_fraction = 0.2", "has no effect", "constant"]]),
        (
            "models = ['lru']\nmicro_batches = 4\nmodel = { variant = 'published' }",
            &[&["micro_batches = 4", "has no effect", "published lru"]],
        ),
        ("models = ['lru']\nmicro_batches = 4\nmodel = { variant = 'published', without = ['batch_norm'] }", &[]),
        (
            "models = ['hopfield']\nmodel.carry_state = true",
            &[&["model.carry_state = true", "carries nothing", "cache"]],
        ),
        ("models = ['gpt', 'lstm']\nmodel.carry_state = true", &[]),
        (
            "models = ['mamba']\nmodel = { variant = 'published', carry_state = true }",
            &[&["model.carry_state = true", "the published mamba starts each batch from zeros"]],
        ),
        ("models = ['lstm']\nmodel = { variant = 'published', carry_state = true }", &[]),
        ("models = ['gpt']\nper_model.lru.lr = 0.1", &[&["per_model.lru.lr = 0.1", "lru is not trained"]]),
        ("models = ['lru']\nper_model.lru.model.conv = 3", &[&["per_model.lru.model.conv = 3", "has no effect"]]),
        ("products = 'bf16'\nkernels = 'plain'", &[&["products = bf16", "has no effect", "kernels plain"]]),
        ("products = 'bf16'\nkernels = 'linear'", &[]),
        ("models = ['lru', 'gpt']\nper_model.lru.curriculum = 9", &[&["per_model.lru.curriculum = 9", "one length"]]),
    ] {
        place.warns(&place.with_file(text, show), said);
    }
    place.warns(&place.with_file("per_model.lru.lr = 0.1", &format!("{show} --models gpt")), &[&["--models has"]]);
    for (text, words) in [
        ("min_lr = 0.2\nmin_lr_fraction = 0.1", &["file.toml", "min_lr and min_lr_fraction", "remove min_lr"][..]),
        ("shards = 2\nmicro_batches = 2", &["file.toml", "shards and micro_batches", "remove shards"]),
        ("per_model.gpt = { min_lr = 0.2, min_lr_fraction = 0.1 }", &["per_model.gpt", "remove min_lr"]),
        ("task.name = 'dyck'", &["--config", "file.toml", "dyck", "use dyck"]),
        ("preset = 'mqar'", &["file.toml", "mqar", "use mqar"]),
        ("task.name = 'group'", &["file.toml", "use state_tracking"]),
        ("per_model.gpt.models = ['lstm']", &["per_model.gpt.models", "at the top"]),
        ("per_model.gpt.seeds = 9", &["per_model.gpt.seeds", "at the top"]),
        ("per_model.gpt.seed = 9", &["per_model.gpt.seed", "at the top"]),
        ("per_model.gpt.task = { name = 'dyck' }", &["per_model.gpt.task", "at the top"]),
        ("model = { variant = 'published', without = ['diagonal', 'diagonal'] }", &["without", "twice"]),
    ] {
        place.refuses(&place.with_file(text, show), words);
    }
    place.refuses(&place.with_file("task.name = 'dyck'", "state_tracking --config FILE"), &["use dyck"]);
    place.refuses(
        &place.with_file("task.name = 'group'", "state_tracking --task parity --config FILE"),
        &["its task is group", "--task"],
    );
    // Sizes of a preset that several tasks share.
    place.warns(&place.with_file("preset = 'published'\nlr = 1e-3", "dyck --show 1 --config FILE"), &[]);
}

/// Every configuration in the repository, and its record in a run.
#[test]
fn presets_and_recorded_configurations_are_silent() {
    let mut open = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("configs")];
    let mut files = 0;
    while let Some(dir) = open.pop() {
        for path in fs::read_dir(dir).unwrap().map(|e| e.unwrap().path()) {
            if path.is_dir() {
                open.push(path);
                continue;
            }
            let table: Table = fs::read_to_string(&path).unwrap().parse().unwrap();
            let (cfg, set) = TrainConfig::from_settings("default", Some((&path, table)), Table::new()).unwrap();
            assert_eq!(warnings(&[set], false), [""; 0], "{}", path.display());
            let recorded: Table = cfg.to_toml().unwrap().parse().unwrap();
            let (_, set) = TrainConfig::from_settings("default", Some((&path, recorded)), Table::new()).unwrap();
            assert_eq!(warnings(&[set], false), [""; 0], "{}, as recorded", path.display());
            files += 1;
        }
    }
    assert!(files > 20, "{files}");
}

#[test]
fn the_old_name_of_a_flag_does_what_the_new_one_does() {
    let place = Place::new();
    let flags = SMALL.replace("lstm", "lru");
    place.warns(&format!("parity {flags} --micro-batches 2 --form scan:2 --out new"), &[]);
    let said: &[&[&str]] = &[&["--shards", "old name of --micro-batches"], &["--form chunked:2", "called scan:2"]];
    place.warns(&format!("parity {flags} --shards 2 --form chunked:2 --out old"), said);
    place.refuses("parity --shards 2 --micro-batches 2 --show 1", &["--shards", "--micro-batches"]);
    let weights = |run: &str| fs::read(place.at(&format!("{run}/lru-seed0/weights.safetensors"))).unwrap();
    assert_eq!(weights("new"), weights("old"), "the weights");
}

#[test]
fn a_run_directory_with_the_old_name_of_a_key_opens_and_resumes() {
    let place = Place::new();
    place.warns(&format!("parity {SMALL} --out run"), &[]);
    let config = place.at("run/config.toml");
    let text = fs::read_to_string(&config).unwrap();
    assert!(text.contains("\nmin_lr_fraction = 0.1\n"), "{text}");
    place.warns("parity --config run/config.toml", &[]);
    let old = text.replace("min_lr_fraction", "min_lr").replace("micro_batches", "shards");
    assert!(old.contains("\nshards = "), "{old}");
    fs::write(&config, old).unwrap();
    let ran = place.run("parity --resume run");
    assert_eq!(ran.status, Some(0), "{}", ran.stderr);
    assert!(ran.stderr.contains("nothing left to do") && !ran.stderr.contains("warning"), "{}", ran.stderr);
    place.warns("inspect --checkpoint run", &[]);
}

#[test]
fn a_sweep_does_nothing_twice_and_nothing_in_vain() {
    let place = Place::new();
    let line = "sweep FILE --dry-run";
    for (text, words) in [
        ("grid.lr = [0.001, 1e-3]", &["grid.lr", "0.001", "twice"][..]),
        ("grid.lr = [1, 1.0]", &["lr=1 and lr=1.0", "same experiment"]),
        ("grid.train_len = [8, '8-8']", &["train_len=8 and train_len=8-8", "same experiment"]),
        ("grid.models = ['gpt', 'gpt']", &["grid.models", "gpt", "twice"]),
        ("grid.seed = [1, 1]", &["grid.seed", "1 is listed twice"]),
        (
            "grid.len = [{ name = 'short', train_len = 16 }, { name = 'short', train_len = 32 }]",
            &["grid.len", "short is listed twice"],
        ),
        ("grid.kinds = [{ name = 'a', task = { name = 'dyck' } }]\ngrid.task.depth = [0]", &["depth", "at least 1"]),
        ("grid.task.depth = [0]\ngrid.kinds = [{ name = 'a', task = { name = 'dyck' } }]", &["depth", "at least 1"]),
        ("grid.lr = [0.1, 0.2]\ngrid.both = [{ lr = 0.1, steps = 3 }]", &["grid.lr and grid.both", "both set lr"]),
    ] {
        place.refuses(&place.with_file(text, line), words);
    }
    for (text, said) in [
        ("lr = 0.1\ngrid.lr = [0.1, 0.2]", &[&["lr at the top", "grid.lr"][..]][..]),
        ("seeds = 2\ngrid.seed = [0, 1]", &[&["seeds at the top", "grid.seed"]]),
        ("models = ['lstm']\ngrid.model.householders = [2, 3]", &[&["model.householders", "has no effect"]]),
        ("models = ['lstm', 'delta_product']\ngrid.model.householders = [2, 3]", &[]),
        ("curriculum = 5\ngrid.train_len = [8, '4-8']", &[]),
        ("curriculum = 5\ngrid.train_len = [8, 9]", &[&["curriculum = 5", "one length"]]),
        ("grid.min_lr = [0.1, 0.2]", &[&["min_lr", "min_lr_fraction"]]),
        ("grid.lr = [0.1, 0.2]\ngrid.model.width = [8, 16]", &[]),
    ] {
        place.warns(&place.with_file(text, line), said);
    }
    place.refuses(&place.with_file("grid.lr = [0.1]", "sweep FILE --profile --jobs 2"), &["--profile", "--jobs"]);
}

#[test]
fn the_inspector_says_what_it_does_not_do() {
    let place = Place::new();
    for (line, words) in [
        ("inspect --model lstm:steps=5", &["lstm:steps=5", "'steps'", "--steps"][..]),
        ("inspect --model lstm:seed=5", &["'seed'", "--seed"]),
        ("inspect --model lstm:device=cuda", &["'device'", "cpu"]),
        ("inspect --model lstm:eval_every=5", &["'eval_every'", "no effect"]),
        ("inspect --model lstm:lr=0.1,lr=0.2", &["'lr'", "twice"]),
        ("inspect --checkpoint run --steps 5", &["--checkpoint", "--steps"]),
        ("inspect --len 0", &["--len", "1 to 1024"]),
        ("inspect --model lstm:width=0", &["lstm:width=0", "width = 0"]),
        ("inspect --model lstm:batch=0", &["batch 0"]),
    ] {
        place.refuses(line, words);
    }
    let small = "inspect --len 4 --steps 2 --model";
    let householders = &["lstm:householders=3", "has no effect", "delta_product"][..];
    place.warns(&format!("{small} lstm:householders=3"), &[householders]);
    place.warns(&format!("{small} lstm:warmup=2,min_lr=0.2"), &[&["min_lr", "min_lr_fraction"]]);
    place.warns(&format!("{small} lstm --compare lstm"), &[&["--compare lstm", "same model"]]);
    place.warns("inspect --len 4 --steps 0 --model lstm:lr=9", &[&["lstm:lr=9: lr has no effect", "--steps 0"]]);
    place.warns("inspect --task modular_arithmetic --steps 1", &[]);
    place.warns(&format!("parity {SMALL} --out run"), &[]);
    place.warns("inspect --checkpoint run --input 101 --seed 3", &[&["--seed 3", "nothing is drawn"]]);
    // Errors come before any training.
    place.refuses("inspect --task dyck --steps 1000000000 --compare run", &["--compare", "parity", "dyck"]);
}
