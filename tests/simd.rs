//! Every instruction set that `TAPEZOO_SIMD` forces is correct, and AVX2 and AVX-512 give the same bits.
#![cfg(target_arch = "x86_64")]
#![allow(clippy::unwrap_used)]

mod device;
mod program;

use program::program;
use std::process::Output;

fn run(name: &str, level: &str, args: &[&str]) -> Output {
    program(name).env("TAPEZOO_SIMD", level).args(args).output().unwrap()
}

/// The instruction sets of this processor.
fn levels() -> Vec<&'static str> {
    let avx2 = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
    let avx512 = avx2 && is_x86_feature_detected!("avx512vbmi2") && is_x86_feature_detected!("avx512vl");
    [("plain", true), ("avx2", avx2), ("avx512", avx512)]
        .into_iter()
        .filter(|level| level.1)
        .map(|level| level.0)
        .collect()
}

#[test]
fn all_fixtures_agree_at_every_level() {
    let fixtures: Vec<String> = ["tests/fixtures", "tests/fixtures/published"]
        .into_iter()
        .flat_map(|dir| std::fs::read_dir(dir).unwrap())
        .map(|file| file.unwrap().path().display().to_string())
        .filter(|path| path.ends_with(".safetensors"))
        .collect();
    for level in levels() {
        for dtype in ["f64", "f32"] {
            let mut args = vec!["--quiet", "--dtype", dtype];
            args.extend(fixtures.iter().map(String::as_str));
            let output = run("verify", level, &args);
            assert!(output.status.success(), "{level} {dtype}: {}", String::from_utf8_lossy(&output.stdout));
        }
    }
}

/// Accuracies and the losses of every step, to compare runs bit for bit.
fn trained(level: &str) -> Vec<(String, String)> {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    let models = "all";
    let args = ["--steps", "20", "--seeds", "1", "--models", models, "--eval-lens", "16", "--train-len", "16"];
    let output = run("parity", level, &[&args[..], &["--out", out.to_str().unwrap()]].concat());
    assert!(output.status.success(), "{level}: {}", String::from_utf8_lossy(&output.stderr));
    let mut runs: Vec<_> = files(&out).into_iter().filter(|path| path.ends_with("weights.safetensors")).collect();
    runs.sort();
    assert!(runs.len() >= 7, "{runs:?}");
    let name = |path: &std::path::Path| path.strip_prefix(&out).unwrap().display().to_string();
    let sum = |path: &std::path::Path| {
        use sha2::{Digest, Sha256};
        let bytes = std::fs::read(path).unwrap();
        let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        let mut names = tensors.names();
        names.sort();
        let mut sum = Sha256::new();
        names.iter().for_each(|name| sum.update(tensors.tensor(name).unwrap().data()));
        format!("{:x?}", sum.finalize())
    };
    runs.iter().map(|path| (name(path), sum(path))).collect()
}

fn files(dir: &std::path::Path) -> Vec<std::path::PathBuf> {
    let all = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    all.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

#[test]
fn avx512_and_avx2_train_to_the_same_bits() {
    if !levels().contains(&"avx512") {
        return device::skipped("this processor has no AVX-512");
    }
    assert_eq!(trained("avx512"), trained("avx2"));
}

#[test]
fn the_plain_level_is_another_one() {
    // These differ by rounding; they would be equal if the variable were not read.
    if levels().len() == 1 {
        return device::skipped("this processor has no AVX2");
    }
    assert_ne!(trained("plain"), trained("avx2"));
}

#[test]
fn a_level_that_is_none_is_refused_by_name() {
    for program in ["verify", "parity"] {
        let args =
            if program.ends_with("verify") { vec!["tests/fixtures/exp.safetensors"] } else { vec!["--steps", "1"] };
        let output = run(program, "sse9", &args);
        let said = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap()).concat();
        assert!(!output.status.success(), "{program}: {said}");
        assert!(said.contains("TAPEZOO_SIMD=sse9: expected plain, avx2 or avx512"), "{program}: {said}");
    }
}
