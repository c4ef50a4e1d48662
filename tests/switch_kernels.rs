//! `--kernels`: a model computed from the definitions of its ops is the same model.

#![allow(clippy::unwrap_used)]

mod close;
mod program;

use close::close;
use program::program;
use std::fs;
use tapezoo::{
    autograd::{Kernels, Tape},
    models,
    tensor::{DType, Tensor},
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
            close(*a, *b, 1e-9, format_args!("{model}: losses {fast:?} by kernels, {plain:?} without"));
        }
    }
}

/// A maximum is one of the numbers, to the last bit, however many are equal: exponents are measured from it.
#[test]
fn a_maximum_is_one_of_the_numbers() {
    for (largest, n) in [-1e30, 0.1, 1e-310, f64::MAX].into_iter().flat_map(|x| (1..9).map(move |n| (x, n))) {
        for (dtype, kernels) in
            [DType::F64, DType::F32].into_iter().flat_map(|d| [(d, Kernels::Fast), (d, Kernels::Plain)])
        {
            let tape = Tape::default().with_kernels(kernels.clone());
            let x = tape.constant(&Tensor::from_vec(vec![largest; n], [1, n]).cast(dtype));
            let rest = (x - x.max_axis(1, true)).value().to_f64();
            let finite = x.value().to_f64()[0].is_finite();
            assert!(!finite || rest.iter().all(|&x| x == 0.0), "{n} times {largest} in {dtype}, {kernels}: {rest:?}");
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
    assert_eq!(["linear", "matmul"].map(|op| without.has(op, None)), [false, true]);
    let without: Kernels = "fast,-delta_rule.fused".parse().unwrap();
    let has = |name| without.has("delta_rule", Some(name));
    assert_eq!(["delta_rule.fused", "delta_rule.chunked"].map(has), [false, true]);
}

/// A training run's record names every kernel that ran. The profile tells a primitive's loops from its kernel, and says
/// which kernels computed the form.
#[test]
fn what_ran_is_said() {
    let dir = tempfile::tempdir().unwrap();
    let flags = "--batch 2 --train-len 4 --eval-lens 4 --width 8 --heads 2 --head-dim 4";
    let (status, said) = run(
        "parity",
        &format!("{flags} --models mamba,delta_net --seeds 1 --steps 1 --out {}", dir.path().join("run").display()),
    );
    assert_eq!(status, Some(0), "{said}");
    for (model, names) in [("mamba", &["selective_scan", "linear"][..]), ("delta_net", &["delta_rule.fused"])] {
        let file = dir.path().join(format!("run/{model}-seed0/result.json"));
        let result: serde_json::Value = serde_json::from_str(&fs::read_to_string(file).unwrap()).unwrap();
        let kernels: Vec<_> = result["kernels"].as_array().unwrap().iter().map(|name| name.as_str().unwrap()).collect();
        assert!(names.iter().all(|name| kernels.contains(name)), "{model}: {kernels:?}");
    }
    for (kernels, header, op) in [
        ("fast", "delta_net, chunked:32 by delta_rule.fused: ", "add "),
        ("fast,-delta_rule.fused", "delta_net, chunked:32 by delta_rule.chunked: ", "add "),
        ("fast,-add,-delta_rule", "delta_net, chunked:32: ", "add (loops) "),
    ] {
        let (_, said) = run("parity", &format!("{flags} --models delta_net --profile --kernels {kernels}"));
        let has = |start: &str| said.lines().any(|line| line.starts_with(start));
        assert!(has(header) && has(op), "{kernels}: {said}");
    }
}

/// The status and the output of a program with flags separated by spaces.
fn run(name: &str, flags: &str) -> (Option<i32>, String) {
    let output = program(name).args(flags.split(' ')).output().unwrap();
    (output.status.code(), String::from_utf8([output.stdout, output.stderr].concat()).unwrap())
}

#[test]
fn verify_holds_the_formulas_against_the_fixtures_too() {
    let fixtures = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/");
    let files =
        ["delta_rule_0", "mlstm_0", "published/published_lstm"].map(|name| format!("{fixtures}{name}.safetensors"));
    let said = ["fast", "plain"].map(|kernels| {
        let (status, said) = run("verify", &format!("--kernels {kernels} {}", files.join(" ")));
        assert_eq!(status, Some(0), "{kernels}: {said}");
        said
    });
    assert_ne!(said[0], said[1], "to the digit: were kernels switched off?");
}

#[test]
fn the_inspector_takes_the_step_that_it_shows_without_kernels() {
    let dir = tempfile::tempdir().unwrap();
    let graphs = ["fast", "plain"].map(|kernels| {
        let page = dir.path().join(format!("{kernels}.html"));
        let flags = format!("--steps 0 --len 4 --graph --kernels {kernels} --out {}", page.display());
        let (status, said) = run("inspect", &flags);
        assert_eq!(status, Some(0), "{said}");
        fs::read_to_string(page.with_extension("dot")).unwrap()
    });
    let shows = graphs.map(|graph| graph.contains("[label=\"delta_rule\\n"));
    assert_eq!(shows, [true, false], "an op with a kernel, and then what defines it");
}

#[test]
fn a_kernel_that_is_not_there_is_refused_by_every_program() {
    for program in ["verify", "inspect", "parity", "sample"] {
        let (status, said) = run(program, "--kernels fast,-matmull");
        assert_eq!(status, Some(2), "{program}: {said}");
        assert!(said.contains("no kernel has the name 'matmull'") && said.contains("matmul,"), "{program}: {said}");
    }
}
