//! `--kernels`: a model computed from the definitions of its ops is the same model.

#![allow(clippy::unwrap_used)]

use tapezoo::{
    autograd::Kernels,
    models,
    train::{Trainer, config::TrainConfig},
};

/// The losses of some steps of training.
fn losses(model: &str, kernels: &str) -> Vec<f64> {
    let text = format!(
        "models = [\"{model}\"]\nbatch = 3\ntrain_len = 5\neval_lens = [5]\ndtype = \"f64\"\nkernels = \"{kernels}\"\n\
         device = \"cpu\"\n[task]\nname = \"parity\"\n[model]\nwidth = 8\nlayers = 1\nheads = 2\nhead_dim = 4\nmlp = 8"
    );
    let cfg = TrainConfig::load(None, text.parse().unwrap()).unwrap().for_model(model).unwrap();
    let mut trainer = Trainer::new(&cfg, 0).unwrap();
    (0..3).map(|_| trainer.step().unwrap().loss).collect()
}

#[test]
fn every_mixer_trains_by_formulas_and_loops_alone() {
    for model in models::names() {
        let [fast, plain] = ["fast", "plain"].map(|kernels| losses(model, kernels));
        for (a, b) in fast.iter().zip(&plain) {
            assert!((a - b).abs() < 1e-9 * a.abs(), "{model}: losses {fast:?} by kernels, {plain:?} without");
        }
    }
}

#[test]
fn a_choice_of_kernels_is_read_as_it_is_written() {
    for text in ["fast", "plain", "linear", "linear,conv", "fast,-linear", "fast,-linear,-conv"] {
        assert_eq!(text.parse::<Kernels>().unwrap().to_string(), text);
    }
    for text in ["", ",", "fast,linear", "linear,-conv", "plain,-linear", "-linear"] {
        let why = text.parse::<Kernels>().unwrap_err();
        assert!(why.contains("expected"), "'{text}': {why}");
    }
    let without: Kernels = "fast,-linear".parse().unwrap();
    assert!(!without.has("linear", None) && without.has("matmul", None));
    let without: Kernels = "fast,-delta_rule.fused".parse().unwrap();
    let has = |name| without.has("delta_rule", Some(name));
    assert!(!has("delta_rule.fused") && has("delta_rule.chunked"));
}
