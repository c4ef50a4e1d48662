//! Training steps on request, timed in processor time of this process: our side of `scripts/race.py`,
//! and what `scripts/kernels.py` and `scripts/race_builds.py` ask.
//!
//! Each line of the input is a JSON object, and is answered by one:
//!
//! ```text
//! {"open": KEY, "config": TOML}              -> {"parameters": N, "form": "fused"}
//! {"run": KEY, "steps": N}                   -> {"ms": X, "kernels": [NAME]}   a step, mean over the N
//! {"profile": KEY, "steps": N}               -> {"ops": {OP: [forward ms, backward ms, MB of output]}}
//! {"close": KEY}                             -> {}
//! {"check": PATH, "config": TOML}            -> {"parameters": N}       weights, batch, loss and gradients are in PATH
//! {"kernels": true}                          -> {"kernels": {OP: TYPE}, "build": TEXT}   the ops that have one
//! ```
//!
//! A request that fails is answered by {"error": WHY}.

mod cpu_time;

use cpu_time::cpu_ms;
use safetensors::tensor::TensorView;
use serde_json::{Map, Value, json};
use std::{
    collections::HashMap,
    error::Error,
    io::{BufRead, Write, stdin, stdout},
    path::Path,
};
use tapezoo::{
    autograd::Tape,
    models::{Model, weights::stored},
    ops, rng, stamp,
    tasks::{Batch, IGNORE},
    tensor::Tensor,
    train::{Trainer, config::TrainConfig, rundir::write},
};

type Answer = Result<Value, Box<dyn Error>>;

fn text<'a>(request: &'a Value, key: &str) -> Result<&'a str, String> {
    request[key].as_str().ok_or(format!("'{key}': expected a text"))
}

fn number(request: &Value, key: &str) -> Result<usize, String> {
    let n = request[key].as_u64().filter(|n| *n > 0).ok_or(format!("'{key}': expected a number from 1"))?;
    usize::try_from(n).map_err(|e| e.to_string())
}

/// The configuration of the one model in a TOML text.
fn config(request: &Value) -> Result<TrainConfig, Box<dyn Error>> {
    let config = TrainConfig::load(None, text(request, "config")?.parse()?)?;
    Ok(config.for_model(&config.models[0])?)
}

/// Write weights away from special values, a batch, and their loss and gradients to a file.
fn check(path: &Path, cfg: &TrainConfig) -> Answer {
    let mut model = Model::new(&cfg.model, 0, cfg.dtype)?;
    let n = model.params().len();
    let moved = model.params().flat().to_f64();
    let moved = moved.iter().enumerate().map(|(i, x)| x + 0.1 * (1.0 + 1.7 * i as f64).sin()).collect::<Vec<_>>();
    model.params_mut().flat_mut().assign(&Tensor::from_vec(moved, [n]).cast(cfg.dtype));

    let mut batch = Batch::new(cfg.batch, cfg.train_len);
    batch.fill(&*cfg.task, rng::stream(0, "check", 0));
    let (tape, form) = (Tape::default(), cfg.form_of(&model));
    let params = model.params().bind(&tape);
    let logits = model.train(&params, tape.constant(&batch.tokens), form, None);
    let loss = logits.cross_entropy(tape.constant(&batch.targets), IGNORE);
    tape.backward(loss);
    let mut grads = Tensor::zeros([n], cfg.dtype);
    model.params().gather_grads(&tape, &params, &mut grads);

    let mut all = vec![
        ("tokens".to_string(), batch.tokens.clone()),
        ("targets".to_string(), batch.targets.clone()),
        ("loss".to_string(), loss.value().reshape([1])),
    ];
    for (entry, (name, value)) in model.params().entries().iter().zip(model.params().tensors()) {
        all.push((format!("param.{name}"), value));
        all.push((format!("grad.{name}"), grads.window(entry.offset, entry.shape)));
    }
    let views = all.iter().map(|(name, t)| {
        TensorView::new(stored(t.dtype()), t.shape().dims().to_vec(), t.bytes()).map(|view| (name, view))
    });
    let views: Result<Vec<_>, _> = views.collect();
    write(path, &safetensors::serialize(views?, None)?)?;
    Ok(json!({ "parameters": n }))
}

fn steps(trainer: &mut Trainer, n: usize) -> Result<f64, tapezoo::error::Error> {
    let start = cpu_ms();
    for _ in 0..n {
        trainer.step()?;
    }
    Ok((cpu_ms() - start) / n as f64)
}

fn answer(trainers: &mut HashMap<String, Trainer>, line: &str) -> Answer {
    let request: Value = serde_json::from_str(line)?;
    let open = |key: &str| format!("'{key}' is not open");
    if let Some(path) = request["check"].as_str() {
        return check(Path::new(path), &config(&request)?);
    }
    if request["kernels"] == true {
        let kernels = ops::kernels().iter().map(|&(op, name)| (name.to_string(), op.into()));
        return Ok(json!({ "kernels": kernels.collect::<Map<_, _>>(), "build": stamp::version() }));
    }
    if let Some(key) = request["open"].as_str() {
        let cfg = config(&request)?;
        let trainer = Trainer::new(&cfg, 0)?;
        let model = trainer.model();
        let about = json!({ "parameters": model.params().len(), "form": cfg.form_of(model).to_string() });
        trainers.insert(key.into(), trainer);
        return Ok(about);
    }
    if let Some(key) = request["close"].as_str() {
        trainers.remove(key).ok_or(open(key))?;
        return Ok(json!({}));
    }
    if let Some(key) = request["run"].as_str() {
        let trainer = trainers.get_mut(key).ok_or(open(key))?;
        let ms = steps(trainer, number(&request, "steps")?)?;
        return Ok(json!({ "ms": ms, "kernels": trainer.kernels() }));
    }
    if let Some(key) = request["profile"].as_str() {
        let (trainer, n) = (trainers.get_mut(key).ok_or(open(key))?, number(&request, "steps")?);
        let ops = trainer.profile(n)?.0.into_iter().map(|(op, cost)| {
            let ms = [cost.forward, cost.backward].map(|t| t.as_secs_f64() * 1e3 / n as f64);
            (op.to_string(), json!([ms[0], ms[1], cost.bytes as f64 / n as f64 / 1e6]))
        });
        return Ok(json!({ "ops": ops.collect::<Map<_, _>>() }));
    }
    Err("expected an object with open, run, profile, close, check or kernels".into())
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut trainers = HashMap::new();
    for line in stdin().lock().lines() {
        let reply = answer(&mut trainers, &line?).unwrap_or_else(|e| json!({ "error": e.to_string() }));
        println!("{reply}");
        stdout().flush()?;
    }
    Ok(())
}
