//! One training step of each mixer in each form: forward, backward, Adam, data.
//!
//! (a) the published configuration (width 4, 4 heads of 4, MLP 8, LRU 128 wide, batch 32);
//! (b) a practical one: 2 layers of width 128, 4 heads of 32, MLP 512, LRU with 128 states, batch 32.
//!
//! `cargo bench --bench step` runs all; with `-- a/T32` those at (a) with T = 32. One thread.

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use std::time::Duration;
use tapezoo::{
    autograd::Tape,
    error::Result,
    models::{Form, Model, names},
    tensor::{DType, Tensor},
    train::{Trainer, config::TrainConfig},
};

/// The trainer, or why it cannot be: the most common reason is memory, which the configuration estimates.
fn trainer(flags: &str, model: &str, form: Form) -> Result<Trainer> {
    let mut table: toml::Table = flags.parse().expect("the flags here are TOML");
    table.insert("models".into(), vec![model].into());
    table.insert("form".into(), form.to_string().into());
    Trainer::new(&TrainConfig::load(None, table)?.for_model(model)?, 0)
}

fn forms(flags: &str, model: &str) -> Vec<Form> {
    let config = TrainConfig::load(None, flags.parse().expect("TOML")).expect("valid").for_model(model).expect("valid");
    let mut forms = Model::new(&config.model, 0, config.dtype).expect("valid").forms();
    // A split form takes another core.
    forms.retain(|form| !matches!(form, Form::Split(_)));
    forms
}

fn steps(c: &mut Criterion) {
    let practical = "[model]\nwidth = 128\nheads = 4\nhead_dim = 32\nmlp = 512\nstate = 16\nconv = 4\ndt_rank = 0\n\
                     [per_model.lru.model]\nwidth = 128\nstate = 128\nmlp = 0\n[per_model.mamba.model]\nmlp = 0\n";
    for (size, lengths, sizes) in [("a", [32, 256], ""), ("b", [256, 1024], practical)] {
        for t in lengths {
            // `cargo test --benches` only checks that each runs; longer ones would take minutes.
            if t > 32 && !std::env::args().any(|arg| arg == "--bench") {
                continue;
            }
            let mut group = c.benchmark_group(format!("{size}/T{t}"));
            group.warm_up_time(Duration::from_millis(500)).measurement_time(Duration::from_secs(2)).sample_size(10);
            let flags = format!("preset = \"published\"\ntrain_len = {t}\neval_lens = [{t}]\n{sizes}");
            for model in names() {
                for form in forms(&flags, model) {
                    let mut trainer = match trainer(&flags, model, form) {
                        Ok(trainer) => trainer,
                        Err(why) => {
                            eprintln!("{size}/T{t}/{model}/{form}: left out, {why}");
                            continue;
                        }
                    };
                    group.bench_function(BenchmarkId::new(model, form), |b| {
                        b.iter(|| trainer.step().expect("finite"));
                    });
                }
            }
        }
    }
}

/// The cost of [`Var::named`]: a chain of additions of small values without it, with it, and with a tape that records
/// names.
fn named(c: &mut Criterion) {
    const OPS: usize = 1000;
    let x = Tensor::full([16], DType::F32, 1.0);
    let mut group = c.benchmark_group("named");
    for (what, named, listen) in [("without", false, false), ("off", true, false), ("on", true, true)] {
        let mut tape = Tape::default();
        if listen {
            tape.start_naming();
        }
        group.bench_function(what, |b| {
            b.iter(|| {
                let first = tape.leaf(&x);
                let mut y = first;
                for _ in 0..OPS {
                    y = y + first;
                    if named {
                        y = y.named("y");
                    }
                }
                std::hint::black_box(y.shape());
                tape.reset();
            });
        });
    }
    group.finish();
}

criterion_group!(benches, named, steps);
criterion_main!(benches);
