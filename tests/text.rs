//! The task text: the places of its samples, its score in bits, all parts of the program that it reaches, and models
//! that generate.

#![allow(clippy::unwrap_used)]

mod close;
mod program;
mod texts;

use approx::abs_diff_eq;
use close::{all_close, close};
use program::Place;
use proptest::prelude::*;
use std::fs;
use tapezoo::{
    autograd::{Kernels, Tape},
    models::{self, Model, ModelConfig, Positions, Stream},
    rng,
    tasks::{BITS, Counts, Len, Task, Text},
    tensor::{DType, Tensor},
    train::{Trainer, config::TrainConfig},
};
use texts::contains;

const SMALL: &str =
    "--seeds 1 --batch 4 --layers 1 --width 16 --heads 2 --head-dim 8 --mlp 16 --train-len 8 --eval-lens 8,12";

fn text_of(path: String, held_out: f64) -> Text {
    Text::new(vec![path], held_out)
}

/// Rows of tokens with their targets.
fn rows(task: &dyn Task, index: u64, len: usize) -> Vec<(Vec<i32>, Vec<i32>)> {
    let (mut x, mut y) = (vec![-7; 16 * len], vec![-7; 16 * len]);
    task.fill(&mut rng::stream(1, "train", index), len, &mut x, &mut y);
    x.chunks(len).zip(y.chunks(len)).map(|(x, y)| (x.to_vec(), y.to_vec())).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Every byte of this text follows from the two before it, so a row shows where it is from.
    #[test]
    fn training_and_evaluation_never_read_the_same_byte(n in 40..250usize, part in 0.05..0.6f64, len in 1..12usize, seed in any::<u64>()) {
        let place = Place::new();
        let bytes: Vec<u8> = (0..n).flat_map(|i| format!("{i:03}").into_bytes()).collect();
        let task = text_of(place.write("t", &bytes), part);
        let cut = bytes.len() - (bytes.len() as f64 * part) as usize;
        prop_assume!(bytes.len() - cut > len);
        task.check_data(len.into(), &[len.into()]).unwrap();
        let held = task.to_evaluate().unwrap();
        for (of, range) in [(&task as &dyn Task, 0..cut), (&*held, cut..bytes.len())] {
            for (x, y) in rows(of, seed, len) {
                let all: Vec<u8> = x.iter().chain(y.last()).map(|&b| b as u8).collect();
                prop_assert_eq!(&x[1..], &y[..len - 1]);
                prop_assert!(bytes[range.clone()].windows(len + 1).any(|w| w == all), "{all:?}");
            }
        }
    }

    #[test]
    fn bits_are_the_mean_in_any_order(mut bits in prop::collection::vec(0.0..30.0f64, 1..40)) {
        let count = |bits: &[f64]| {
            let mut all = Counts::new(2);
            for part in bits.chunks(7) {
                let mut counts = Counts::new(2);
                part.iter().for_each(|&b| { counts.add(Some(0), 1); counts.add_bits(b); });
                all.merge(&counts);
            }
            all.bits()
        };
        let mean = bits.iter().sum::<f64>() / bits.len() as f64;
        let first = count(&bits);
        prop_assert!(abs_diff_eq!(first, mean, epsilon = 1e-9), "{first} {mean}");
        bits.reverse();
        prop_assert_eq!(count(&bits), first);
    }
}

#[test]
fn a_text_is_long_enough_for_its_lengths_or_refused() {
    let place = Place::new();
    let bytes = "x".repeat(100);
    for (held_out, train, evaluation, ok) in
        [(0.1, 89, 9, true), (0.1, 90, 9, false), (0.1, 89, 10, false), (0.5, 49, 49, true), (0.5, 49, 50, false)]
    {
        let task = text_of(place.write("t", &bytes), held_out);
        let checked = task.check_data(train.into(), &[1.into(), evaluation.into()]);
        assert_eq!(checked.is_ok(), ok, "{held_out} {train} {evaluation}: {checked:?}");
        if ok {
            rows(&task, 0, train);
            rows(&*task.to_evaluate().unwrap(), 0, evaluation);
        }
    }
    let sample = Text::default();
    sample.check_data(1000.into(), &[Len::from(1000)]).unwrap();
    for (x, _) in rows(&sample, 0, 64) {
        assert!(x.iter().all(|&b| b == 10 || (32..127).contains(&b)), "{x:?}");
    }
}

/// The score equals that of a softmax that is written once more here.
#[test]
fn bits_per_byte_are_those_of_the_logits() {
    let cfg = "models = ['lstm']\ntrain_len = 8\neval_lens = [8, 5]\nsteps = 3\nbatch = 4\neval_batch = 3\neval_batches = 2\n\
               dtype = 'f64'\ndevice = 'cpu'\nmodel = { width = 8, heads = 2, head_dim = 4, mlp = 8 }\ntask.name = 'text'";
    for micro_batches in [1, 3] {
        let cfg = format!("micro_batches = {micro_batches}\n{cfg}").parse().unwrap();
        let cfg = TrainConfig::load(None, cfg).unwrap().for_model("lstm").unwrap();
        let mut trainer = Trainer::new(&cfg, 0).unwrap();
        for _ in 0..3 {
            trainer.step().unwrap();
        }
        let (_, scores) = trainer.evaluate().unwrap();
        let held = cfg.task.to_evaluate().unwrap();
        for (len, score) in &scores[BITS] {
            let (mut sum, mut n) = (0.0, 0);
            for i in 0..2 {
                let (mut x, mut y) = (vec![0; 3 * len.max], vec![0; 3 * len.max]);
                held.fill(&mut rng::stream(0, &format!("evaluate at {len}"), i), len.max, &mut x, &mut y);
                let (tape, model) = (Tape::default(), trainer.model());
                let tokens = tape.constant(&Tensor::from_vec(x, [3, len.max]));
                let logits = model.forward(&model.params().bind_frozen(&tape), tokens, model.default_form());
                for (row, &y) in logits.value().to_f64().chunks(256).zip(&y) {
                    sum += (row.iter().map(|z| z.exp()).sum::<f64>().ln() - row[y as usize]) / 2f64.ln();
                    n += 1;
                }
            }
            close(*score, sum / f64::from(n), 1e-8, "bits per byte");
        }
    }
}

#[test]
fn a_stream_says_at_every_token_what_the_whole_sequence_says() {
    let tokens: Vec<i32> = (0..11).map(|i| i * 7 % 20).collect();
    for name in models::names() {
        let rotates = models::names_with(|c| c.rope).contains(&name);
        let positions = if rotates { Positions::Rope } else { Positions::None };
        let sizes = ModelConfig { width: 8, heads: 2, head_dim: 4, mlp: 8, ..ModelConfig::default() };
        let config = ModelConfig { mixer: name.into(), positions, vocab: 20, classes: 20, max_len: 11, ..sizes };
        let model = Model::new(&config, 3, DType::F64).unwrap();
        let tape = Tape::default();
        let x = tape.constant(&Tensor::from_vec(tokens.clone(), [1, 11]));
        let all = model.forward(&model.params().bind_frozen(&tape), x, model.default_form()).value().to_f64();
        let mut stream = Stream::new(&model);
        let mut sizes = vec![];
        let first = stream.read(&tokens[..4]).unwrap();
        contains(stream.read(&[1, 20]).unwrap_err().to_string(), "token 20");
        assert_eq!(stream.tokens(), 4, "none of them is read");
        let rest: Vec<Vec<f64>> = tokens[4..]
            .iter()
            .map(|&token| {
                sizes.push(stream.state_bytes());
                stream.next(token).unwrap()
            })
            .collect();
        for (i, logits) in std::iter::once(first).chain(rest).enumerate() {
            all_close(&logits, &all[(i + 3) * 20..][..20], 1e-8, format_args!("{name}, token {}", i + 3));
        }
        let plain = Stream::with_kernels(&model, Kernels::Plain).read(&tokens).unwrap();
        all_close(&plain, &all[10 * 20..], 1e-8, format_args!("{name} without kernels"));
        assert_ne!(
            plain,
            Stream::new(&model).read(&tokens).unwrap(),
            "{name}, to the digit: were kernels switched off?"
        );
        // A cache begins empty.
        let is_cache = model.zero_state(&tape, 1).tensors().iter().flatten().any(|tensor| tensor.shape().is_empty());
        let constant = sizes.windows(2).all(|w| w[1] == w[0]);
        assert!(constant != is_cache && (is_cache || !models::looks_back(name)), "{name}: {sizes:?}");
        assert_eq!((stream.tokens(), stream.left()), (11, rotates.then_some(0)));
        contains(stream.next(20).unwrap_err().to_string(), "token 20");
        assert_eq!(stream.next(0).is_err(), rotates, "{name}");
    }
}

#[test]
fn every_model_trains_on_text_and_what_repeats_is_learned() {
    let place = Place::new();
    let path = place.write("song.txt", "la la li\n".repeat(60));
    let table = place.prints(&format!("train --text {path} {SMALL} --steps 2 --models all"));
    for name in models::names() {
        assert!(table.lines().filter(|line| line.starts_with(&format!("{name} "))).count() == 2, "{name}: {table}");
    }
    assert!(table.starts_with("bits_per_byte") && table.contains("text, song.txt; T=8, 2 steps"), "{table}");
    let json = place.prints(&format!("train --text {path} {SMALL} --steps 150 --lr 1e-2 --models gpt,lstm --json"));
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    for run in json["runs"].as_array().unwrap() {
        let bits = run[BITS]["12"].as_f64().unwrap();
        assert!((0.0..1.0).contains(&bits), "{}: {bits} bits per byte", run["model"]);
    }
}

#[test]
fn text_reaches_resume_report_inspect_sweep_and_sample() {
    let place = Place::new();
    let path = place.write("song.txt", "la la li\u{fc}\u{1b}[31m\n".repeat(40));
    let line = format!("train --text {path} {SMALL} --steps 60 --lr 1e-2 --eval-every 20 --models lstm,gpt");
    place.prints(&format!("{line} --out run"));
    let config = fs::read_to_string(place.at("run/config.toml")).unwrap();
    assert!(config.contains("checksum = ") && config.contains("song.txt"), "{config}");
    contains(place.run("train --resume run").stderr, "nothing left to do");
    place.prints("report run");
    let page = fs::read_to_string(place.at("report/report.html")).unwrap();
    contains(&page, "Bits per byte over evaluation length");
    contains(&page, "text, song.txt");

    // A point of a sweep is a run like another.
    let grid = format!(
        "preset = 'text'\nmodels = ['lstm']\nsteps = 2\nbatch = 2\ntrain_len = 8\neval_lens = [8]\nmodel.width = 8\n\
         [grid]\ntask = [{{ name = 'text' }}, {{ name = 'text', text = ['{path}'], held_out = 0.2 }}]"
    );
    place.write("grid.toml", grid);
    let summary = place.prints("sweep grid.toml --out all");
    assert!(summary.contains(BITS) && summary.contains("held_out=0.2"), "{summary}");

    // A model that is read needs no text, and its samples are those of the seed.
    fs::write(place.at("song.txt"), "something else ".repeat(40)).unwrap();
    place.refuses("train --resume run", &["task.text", "another text", "checksum"]);
    fs::remove_file(&path).unwrap();
    place.refuses("train --resume run", &["song.txt", "--text FILE"]);
    place.refuses("parity --resume run", &["its task is text; use train for it"]);
    // The same text in another place is the same run.
    place.write("moved.txt", "la la li\u{fc}\u{1b}[31m\n".repeat(40));
    contains(place.run("train --resume run --text moved.txt").stderr, "nothing left to do");
    place.refuses("inspect --checkpoint run/lstm-seed0 --out a.html", &["song.txt"]);
    place.prints("inspect --checkpoint run/lstm-seed0 --input la --out a.html");
    place.write("other.txt", "la la li\n".repeat(90));
    place.prints("inspect --text other.txt --model lstm --steps 2 --len 8 --out b.html");
    let sample = |flags: &str| place.prints(&format!("sample run/{flags}"));
    let text = sample("lstm-seed0 --tokens 300 --prompt la");
    assert!(text.starts_with("la") && text.chars().count() > 100 && text.ends_with('\n'), "{text}");
    assert!(text.contains("i\u{fc}\u{1b}"), "a pipe gets the bytes as they are: {text:?}");
    assert_eq!(text, sample("lstm-seed0 --tokens 300 --prompt la --seed 0"));
    assert_ne!(text, sample("lstm-seed0 --tokens 300 --prompt la --seed 1"));
    let greedy = sample("gpt-seed0 --tokens 100 --temperature 0");
    assert_eq!(greedy, sample("gpt-seed0 --tokens 100 --top-k 1 --seed 5"));
    assert_eq!(greedy, sample("gpt-seed0 --tokens 100 --temperature 1e-6 --seed 5"), "a quotient by the temperature");
    assert_ne!(greedy, sample("gpt-seed0 --tokens 100 --temperature 1e6 --top-k 2"), "of two, either as often");
    assert_eq!(text, sample("lstm-seed0 --tokens 300 --prompt la --top-k 256"), "all there are");
    assert!(greedy.contains("la la"), "{greedy}");
    assert_eq!(greedy, sample("gpt-seed0 --tokens 100 --top-k 1 --kernels plain"));
    assert_eq!(sample("lstm-seed0 --tokens 0 --prompt la"), "la\n");
    let said = place.run("sample run/gpt-seed0 --tokens 20").stderr;
    assert!(said.starts_with("20 tokens in ") && said.contains("tokens/s, from a state of"), "{said}");
}

#[test]
fn what_is_no_text_and_what_cannot_go_on_is_refused() {
    let place = Place::new();
    let small = "--models lstm --steps 1 --train-len 8 --eval-lens 8";
    place.write("latin1", b"caf\xe9 and more of this");
    place.write("empty", "");
    for (flags, words) in [
        ("--text no-such", &["--text", "no-such", "os error 2"][..]),
        ("--text latin1", &["--text", "latin1: byte 3 is no UTF-8"]),
        ("--text empty", &["--text", "of 0 bytes", "need 9 or more"]),
        ("--text grid.toml --held-out 0", &["--held-out 0: expected a part"]),
        ("--task text --held-out 0.00001", &["held out", "need 9"]),
        ("--task parity --text empty", &["--text belongs to the task text, and this is parity"]),
    ] {
        place.refuses(&format!("train {flags} {small}"), words);
    }
    place.write("grid.toml", "task.name = 'text'\ntask.text = ['no-such']\n");
    place.refuses("sweep grid.toml --dry-run", &["grid.toml: line 2: ", "no-such"]);
    place.refuses("parity --config grid.toml", &["its task is text; use train for it"]);

    let run = |flags: &str, out: &str| place.prints(&format!("{flags} {small} --batch 2 --width 8 --out {out}"));
    run("parity --seeds 1", "bits");
    run("train --task text --seeds 1 --positions learned", "learned");
    place.refuses("sample bits", &["it has learned parity", "train --text"]);
    place.refuses("sample no-such", &["no-such", "does not exist"]);
    place.refuses("sample learned --tokens 40", &["8", "lower --tokens 40"]);
    place.refuses("sample learned --top-k 0", &["--top-k 0", "at least 1"]);
    place.refuses("sample learned --temperature -1", &["--temperature -1", "0 or more"]);
    let ran = place.run("sample learned --tokens 8");
    assert!(ran.status == Some(0) && ran.stderr.starts_with("8 tokens in "), "{}", ran.stderr);
    place.refuses("sample learned --tokens 9", &["positions for 8 tokens, not 9", "lower --tokens 9"]);
}
