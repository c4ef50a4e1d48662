//! Whole models on the device: ten steps of training that follow the CPU's, gradients of every mixer, and the golden
//! numbers of other implementations in single precision.
#![allow(clippy::unwrap_used)]

mod device;

use device::{device, root};
use std::{collections::BTreeSet, fs, path::PathBuf};
use tapezoo::{
    autograd::{Gen, Tape},
    models::{self, Form, Model},
    tensor::{DType, Device, Tensor},
    train::{Trainer, config::TrainConfig},
    verify::{check_file, tolerance},
};

const SMALL: &str = "batch = 4\ntrain_len = 9\neval_lens = [12]\neval_batch = 4\neval_batches = 1\nclip = 1.0\n\
                     [model]\nlayers = 2\nwidth = 8\nheads = 2\nhead_dim = 4\nmlp = 16";

fn config(name: &str, device: Device, dtype: DType) -> TrainConfig {
    let mut table: toml::Table = SMALL.parse().unwrap();
    table.insert("device".into(), device.to_string().into());
    table.insert("dtype".into(), dtype.to_string().into());
    table.insert("models".into(), toml::Value::Array(vec![name.into()]));
    TrainConfig::load(None, table).unwrap().for_model(name).unwrap()
}

#[test]
fn ten_steps_of_training_follow_the_cpu() {
    let Some(device) = device() else { return };
    for name in models::names() {
        let losses = |device: Device| {
            let mut trainer = Trainer::new(&config(name, device, DType::F32), 1).unwrap();
            let losses: Vec<f64> = (0..10).map(|_| trainer.step().unwrap().loss).collect();
            (losses, trainer.evaluate().unwrap().0)
        };
        let (got, want) = (losses(device), losses(Device::Cpu));
        for (i, (got, want)) in got.0.iter().zip(&want.0).enumerate() {
            assert!((got - want).abs() <= 1e-4 * want.abs(), "{name}: loss {got} at step {i}, the CPU has {want}");
        }
        for ((_, got), (_, want)) in got.1.iter().zip(&want.1) {
            assert!((got - want).abs() < 0.05, "{name}: accuracy {got}, the CPU has {want}");
        }
    }
}

/// In double precision, where nothing but a mistake makes a difference: logits, and the gradient of every parameter,
/// in every form.
#[test]
fn every_form_of_every_mixer_has_the_gradient_of_the_cpu() {
    let Some(device) = device() else { return };
    for name in models::names() {
        let cfg = config(name, Device::Cpu, DType::F64);
        let model = Model::new(&cfg.model, 3, DType::F64).unwrap();
        let (b, t) = (3, 7);
        let mut g = Gen::new(1);
        let tokens: Vec<i32> = (0..b * t).map(|_| g.below(cfg.model.vocab) as i32).collect();
        let tokens = Tensor::from_vec(tokens, [b, t]);
        let run = |device: Device, form: Form| {
            let tape = Tape::new(device);
            let params = model.params().bind(&tape);
            let logits = model.forward(&params, tape.constant(&tokens), form);
            let u = Gen::new(2).normal(logits.shape());
            tape.backward((logits * tape.constant(&u)).sum());
            let grads = params.vars().iter().map(|p| p.grad().map_or(vec![], |g| g.to_f64()));
            (logits.value().to_f64(), grads.collect::<Vec<_>>())
        };
        for form in model.forms() {
            let (got, want) = (run(device, form), run(Device::Cpu, form));
            assert!(distance(&got.0, &want.0) < 1e-9, "{name}, {form}: logits");
            for (i, (got, want)) in got.1.iter().zip(&want.1).enumerate() {
                assert!(distance(got, want) < 1e-9, "{name}, {form}: gradient of parameter {i}");
            }
        }
    }
}

fn distance(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    let norm = |v: &mut dyn Iterator<Item = f64>| v.map(|x| x * x).sum::<f64>().sqrt();
    let d = norm(&mut a.iter().zip(b).map(|(a, b)| a - b)) / norm(&mut b.iter().copied()).max(1e-6);
    if d.is_nan() { f64::INFINITY } else { d }
}

#[test]
fn golden_numbers_agree_in_single_precision() {
    let Some(device) = device() else { return };
    let dir = root().join("tests/fixtures");
    let files: BTreeSet<PathBuf> =
        fs::read_dir(dir).unwrap().map(|e| e.unwrap().path()).filter(|path| path.is_file()).collect();
    assert!(files.len() >= 43, "only {} fixtures found", files.len());
    for path in files {
        for c in check_file(&path, device, DType::F32).unwrap().1 {
            let name = path.file_name().unwrap();
            let fine = c.passes(tolerance(DType::F32));
            assert!(fine, "{name:?} on {device}, {}: {} is off by {:.1e}", c.form, c.tensor, c.error);
        }
    }
}
