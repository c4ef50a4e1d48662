//! Random configurations: each is read, or refused in a line or two.
//!
//! `TAPEZOO_FUZZ=100000 cargo test --test fuzz_config` tries this many.
#![allow(clippy::unwrap_used)]

#[path = "../examples/cpu_time/mod.rs"]
mod cpu_time;

use cpu_time::cpu_ms;
use std::fmt::Write;
use tapezoo::{
    autograd::Gen,
    error::quietly,
    models::Model,
    train::{
        Trainer, capacity,
        config::{PRESETS, TrainConfig, preset_table},
    },
};
use toml::{Table, Value};

/// What the parser calls a kind of value.
const FOREIGN: [&str; 11] =
    ["usize", "u64", "u32", "i64", "f64,", "struct", "internally", "a sequence", "a map", "variant", "string only"];

/// A value of any type, mostly absurd.
fn odd(g: &mut Gen, depth: usize) -> Value {
    const NUMBERS: [i64; 16] =
        [0, 1, -1, 2, 3, 7, 64, 200, 1000, 4096, 65_536, 1 << 24, 1 << 31, 1 << 53, i64::MAX, i64::MIN];
    const FLOATS: [f64; 10] = [0.0, -0.0, 0.5, 1.0, -1.0, 1e-300, 1e300, f64::NAN, f64::INFINITY, f64::NEG_INFINITY];
    const TEXTS: [&str; 21] = [
        "",
        "auto",
        "all",
        "parallel",
        "chunked",
        "chunked:0",
        "scan",
        "scan:0",
        "chunked:99999999999",
        "3-40",
        "40-3",
        "1-67108864",
        "ünïcode",
        "\u{202e}\u{1b}[2J",
        "lstm",
        "gpt",
        "mamba",
        "bf16",
        "published",
        "cosine",
        "rope",
    ];
    if g.below(50) == 0 {
        let unit = ["x", "\u{1b}[31m", "\n", "a b "][g.below(4)];
        return unit.repeat(1 << g.below(14)).into();
    }
    match g.below(if depth == 0 { 5 } else { 7 }) {
        0 | 1 => NUMBERS[g.below(NUMBERS.len())].into(),
        2 => FLOATS[g.below(FLOATS.len())].into(),
        3 => TEXTS[g.below(TEXTS.len())].into(),
        4 => g.coin().into(),
        5 => (0..g.below(4)).map(|_| odd(g, depth - 1)).collect::<Vec<_>>().into(),
        _ => (0..g.below(3)).map(|i| (format!("k{i}"), odd(g, depth - 1))).collect::<Table>().into(),
    }
}

/// The keys of a preset and of all its tables, and one unknown key.
fn keys(table: &Table) -> Vec<Vec<String>> {
    let mut keys = vec![vec!["nonsense".into()], vec!["per_model".into(), "lstm".into(), "steps".into()]];
    for (key, value) in table {
        keys.push(vec![key.clone()]);
        if let Value::Table(inner) = value {
            keys.extend(inner.keys().map(|inner| vec![key.clone(), inner.clone()]));
        }
    }
    let model = [
        "mlp",
        "init_std",
        "variant",
        "without",
        "max_len",
        "carry_state",
        "conv",
        "expand",
        "dt_rank",
        "householders",
        "ngram",
    ];
    keys.extend(model.map(|key| vec!["model".into(), key.into()]));
    keys.extend(
        ["form", "device", "dtype", "micro_batches", "curriculum", "products", "max_len", "kernels", "grad_noise"]
            .map(|key| vec![key.into()]),
    );
    keys
}

fn set(table: &mut Table, path: &[String], value: Value) {
    match path {
        [] => {}
        [key] => drop(table.insert(key.clone(), value)),
        [key, rest @ ..] => {
            if !matches!(table.get(key), Some(Value::Table(_))) {
                table.insert(key.clone(), Table::new().into());
            }
            if let Some(Value::Table(inner)) = table.get_mut(key) {
                set(inner, rest, value);
            }
        }
    }
}

/// Estimate the costs, and take a step of each model that is small.
fn small_step(cfg: &TrainConfig) -> Result<(), String> {
    quietly(|| {
        let _ = capacity::cost("this", [cfg].into_iter());
        for own in cfg.each_model().unwrap() {
            let bytes = capacity::memory(&own, &Model::hollow(&own.model, own.dtype).unwrap(), 2)[0].bytes;
            if bytes < 2e7 && own.batch * own.train_len.max <= 2048 {
                // An error about a number that is not finite is no fault.
                let _ = Trainer::new(&own, own.seed).and_then(|mut trainer| trainer.step());
            }
        }
    })
}

#[test]
fn any_configuration_is_read_or_refused_in_two_lines() {
    let n = std::env::var("TAPEZOO_FUZZ").map_or(1500, |n| n.parse().unwrap());
    let seed = std::env::var("TAPEZOO_FUZZ_SEED").map_or(1, |n| n.parse().unwrap());
    let (mut wrong, mut slowest) = (vec![], 0f64);
    let tasks = ["parity", "dyck", "mqar", "disjoint", "window", "icll", "arithmetic", "group", "nonsense"];
    let (mut g, mut counts) = (Gen::new(seed), [0; 2]);
    let presets: Vec<Table> = PRESETS.iter().filter_map(|preset| preset_table(preset.0).ok()).collect();
    let paths: Vec<_> = presets.iter().map(keys).collect();
    for i in 0..n {
        let which = g.below(presets.len());
        let mut table = Table::new();
        if let Some(name) = presets[which].get("preset") {
            table.insert("preset".into(), name.clone());
        }
        if !presets[which].contains_key("task") || g.below(20) == 0 {
            set(&mut table, &["task".into(), "name".into()], tasks[g.below(tasks.len())].into());
        }
        for _ in 0..1 + g.below(3) {
            let path = &paths[which][g.below(paths[which].len())];
            let value = odd(&mut g, 3);
            set(&mut table, path, value);
        }
        let mut text = String::new();
        write!(text, "{table}").unwrap();
        // Processor time does not grow when other processes are at work.
        let start = cpu_ms();
        // The tables as flags make them, and as text.
        let read = match g.coin() {
            true => TrainConfig::from_layers("default", None, table.clone()),
            false => match text.parse::<Table>() {
                Ok(table) => TrainConfig::from_layers("default", None, table),
                Err(e) => panic!("case {i}: {e}: {text}"),
            },
        };
        counts[usize::from(read.is_ok())] += 1;
        let took = cpu_ms() - start;
        slowest = slowest.max(took);
        let panicked = read.as_ref().ok().and_then(|cfg| small_step(cfg).err());
        wrong.extend(panicked.map(|what| format!("case {i} panicked: {text:.1000}\n{what}")));
        let why = read.map_or_else(|e| e.to_string(), |_| String::new());
        let steers = why.chars().any(|c| c.is_control() && c != '\n' || c == '\u{202e}');
        // A message speaks of the file's words, not of Rust's or the parser's.
        let foreign = FOREIGN.iter().any(|word| why.contains(&format!("expected {word}")));
        if foreign || why.lines().count() > 2 || why.chars().count() > 600 || steers || took >= 5e3 {
            wrong.push(format!("case {i} took {took:.0} ms: {text:.1000}\n{why}"));
        }
    }
    println!("{} read, {} refused, the slowest in {slowest:.1} ms", counts[1], counts[0]);
    assert!(
        wrong.is_empty(),
        "{} cases: {}",
        wrong.len(),
        wrong.iter().take(20).cloned().collect::<Vec<_>>().join("\n")
    );
    assert!(counts.iter().all(|&count| count > n / 100), "{counts:?}");
}

#[test]
fn deep_nesting_is_refused() {
    for (open, close) in [("[", "]"), ("{ a = ", " }")] {
        let text = format!("steps = {}1{}", open.repeat(3000), close.repeat(3000));
        let why = match text.parse::<Table>() {
            Ok(table) => TrainConfig::from_layers("default", None, table).unwrap_err().to_string(),
            Err(_) => continue,
        };
        assert!(why.lines().count() <= 2 && why.chars().count() <= 600, "{} bytes: {why:.300}", why.len());
    }
}
