//! Numbers of other implementations (PyTorch, flash-linear-attention, mambapy): every fixture, every form, both
//! precisions. And files that are not fixtures.
#![allow(clippy::unwrap_used)]

mod program;

use program::{outcome, program};
use std::{fs, path::PathBuf};
use tapezoo::{
    tensor::{DType, Device},
    verify::{check_file, tolerance},
};

fn fixtures() -> Vec<PathBuf> {
    let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures");
    let mut files: Vec<PathBuf> = [dir, &format!("{dir}/published"), &format!("{dir}/mixers")]
        .iter()
        .flat_map(|dir| fs::read_dir(dir).unwrap().map(|e| e.unwrap().path()))
        .filter(|path| path.is_file())
        .collect();
    files.sort();
    files
}

#[test]
fn every_fixture_agrees_in_every_form_in_both_precisions() {
    let files = fixtures();
    assert!(files.len() >= 124, "only {} fixtures found", files.len());
    for dtype in [DType::F64, DType::F32] {
        for path in &files {
            let (_, found) = check_file(path, Device::Cpu, dtype).unwrap();
            for c in found {
                let name = path.file_name().unwrap();
                assert!(
                    c.passes(tolerance(dtype)),
                    "{name:?} in {dtype}, {}: {} is off by {:.1e}",
                    c.form,
                    c.tensor,
                    c.error
                );
            }
        }
    }
}

/// A fixture with one element changed must fail: every tensor is compared.
#[test]
fn every_tensor_of_a_fixture_is_compared() {
    let dir = tempfile::tempdir().unwrap();
    let published = |p: &PathBuf| p.parent().unwrap().ends_with("published");
    let paths: Vec<_> =
        fixtures().into_iter().filter(|p| published(p) || p.ends_with("delta_rule_0.safetensors")).collect();
    assert_eq!(paths.len(), 8);
    for path in paths {
        every_tensor_is_compared(&path, &dir.path().join("changed.safetensors"));
    }
}

fn every_tensor_is_compared(path: &std::path::Path, other: &std::path::Path) {
    let bytes = fs::read(path).unwrap();
    let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let (header, _) = safetensors::SafeTensors::read_metadata(&bytes).unwrap();
    for name in file.names() {
        // A bias of the keys adds the same to all scores, on which softmax does not depend.
        if path.ends_with("published_gpt.safetensors") && name.starts_with("in.") && name.ends_with("linear_K.bias") {
            continue;
        }
        let mut changed = bytes.clone();
        let data = file.tensor(name).unwrap().data();
        let at = 8 + header + (data.as_ptr() as usize - bytes.as_ptr() as usize - 8 - header);
        if file.tensor(name).unwrap().dtype() == safetensors::Dtype::I64 {
            changed[at] ^= 1;
        } else {
            let x = f64::from_le_bytes(changed[at..at + 8].try_into().unwrap());
            changed[at..at + 8].copy_from_slice(&(x + 0.1).to_le_bytes());
        }
        fs::write(other, changed).unwrap();
        let (_, found) = check_file(other, Device::Cpu, DType::F64).unwrap();
        assert!(found.iter().any(|c| !c.passes(1e-9)), "{path:?}: a change of '{name}' went unseen");
    }
}

fn verify(args: &[&str]) -> (Option<i32>, String, String) {
    outcome(program("verify").args(args).output().unwrap())
}

/// A fixture file written by hand: metadata, then tensors of f64.
fn write(path: &std::path::Path, op: &str, attrs: &str, tensors: &[(&str, &[usize])]) {
    let views: Vec<_> = tensors
        .iter()
        .map(|(name, shape)| (name.to_string(), shape.to_vec(), vec![0u8; 8 * shape.iter().product::<usize>()]))
        .collect();
    let views = views.iter().map(|(name, shape, data)| {
        (name.clone(), safetensors::tensor::TensorView::new(safetensors::Dtype::F64, shape.clone(), data).unwrap())
    });
    let meta = [("op".to_string(), op.to_string()), ("attrs".to_string(), attrs.to_string())].into_iter().collect();
    fs::write(path, safetensors::serialize(views, Some(meta)).unwrap()).unwrap();
}

#[test]
fn bad_files_are_named_and_the_others_still_checked() {
    let dir = tempfile::tempdir().unwrap();
    let good = fixtures().into_iter().find(|p| p.ends_with("silu.safetensors")).unwrap();
    let at = |name: &str| dir.path().join(name);
    fs::write(at("cut.safetensors"), &fs::read(&good).unwrap()[..1000]).unwrap();
    fs::write(at("noise.safetensors"), b"this is not a fixture").unwrap();
    fs::write(at("empty.safetensors"), b"").unwrap();
    let qkv: &[(&str, &[usize])] = &[("in.q", &[1, 2, 1, 3]), ("in.k", &[1, 2, 1, 3]), ("in.v", &[1, 2, 1, 3])];
    write(&at("op.safetensors"), "telepathy", "{}", qkv);
    write(&at("missing.safetensors"), "delta_rule", r#"{"scale": 1.0}"#, qkv);
    write(&at("attrs.safetensors"), "softmax_attention", "{}", qkv);
    write(&at("json.safetensors"), "softmax_attention", "[1", qkv);
    write(&at("nothing.safetensors"), "softmax_attention", r#"{"scale": 1.0}"#, qkv);
    write(
        &at("shape.safetensors"),
        "softmax_attention",
        r#"{"scale": 1.0}"#,
        &[qkv[0], ("in.k", &[1, 2, 1, 4]), qkv[2]],
    );
    write(&at("rank.safetensors"), "softmax_attention", r#"{"scale": 1.0}"#, &[("in.q", &[6]), qkv[1], qkv[2]]);
    let extra: &[(&str, &[usize])] = &[qkv[0], qkv[1], qkv[2], ("in.banana", &[1])];
    write(&at("extra.safetensors"), "softmax_attention", r#"{"scale": 1.0}"#, extra);
    write(
        &at("lstm.safetensors"),
        "lstm",
        "{}",
        &[
            ("in.x", &[1, 2, 3]),
            ("in.w_ih", &[9, 3]),
            ("in.w_hh", &[9, 2]),
            ("in.b_ih", &[9]),
            ("in.b_hh", &[9]),
            ("out.h", &[1, 2, 2]),
        ],
    );
    let gpt = r#"{"model": "gpt", "n_layers": 1, "max_seq_len": 4}"#;
    write(&at("model.safetensors"), "published_model", r#"{"model": "telepathy"}"#, qkv);
    write(&at("sizes.safetensors"), "published_model", r#"{"h_dim": 60000, "mlp_dim": 60000}"#, qkv);
    write(&at("banana.safetensors"), "published_model", r#"{"banana": 1}"#, qkv);
    write(&at("weights.safetensors"), "published_model", gpt, qkv);
    let expected = [
        ("model", "model 'telepathy': expected one of lstm"),
        ("sizes", "too large"),
        ("banana", "unknown field `banana`"),
        ("weights", "tensor 'in.input_embedding.weight' is missing"),
        ("cut", "not a whole safetensors file"),
        ("noise", "not a whole safetensors file"),
        ("empty", "not a whole safetensors file"),
        ("gone", "os error 2)"),
        ("op", "unknown op 'telepathy'"),
        ("missing", "'in.beta' is missing"),
        ("attrs", "attribute 'scale' is absent: expected a number"),
        ("json", "expected a JSON object"),
        ("nothing", "no tensor 'out.…'"),
        ("shape", "tensor 'in.k' has shape [1, 2, 1, 4]"),
        ("rank", "tensor 'in.q' has shape [6]: expected 4 axes"),
        ("extra", "'in.banana'"),
        ("lstm", "cannot be run on it: shape [1, 9] has no last axis that can be split into 4 equal parts"),
    ];
    for (name, message) in expected {
        let file = at(&format!("{name}.safetensors"));
        let (code, out, err) = verify(&[file.to_str().unwrap(), good.to_str().unwrap()]);
        assert_eq!(code, Some(2), "{name}: {err}");
        assert!(err.starts_with("error: ") && err.contains(name) && err.contains(message), "{name}: {err}");
        assert!(!err.contains("panicked"), "{name}: {err}");
        assert!(out.contains("1 of 2 files agree"), "{name}: {out}");
    }
    let (code, out, _) = verify(&["--tolerance", "1e-30", good.to_str().unwrap()]);
    assert!(code == Some(1) && out.contains("FAIL"), "{out}");
}

#[test]
fn bad_flags_are_refused() {
    let good = fixtures()[0].clone();
    let good = good.to_str().unwrap();
    for (args, message) in [
        (&["--dtype", "f16", good][..], "expected f32"),
        (&["--dtype", "i32", good], "expected f32"),
        (&["--device", "tpu", good], "expected auto, cpu"),
        (&["--tolerance=-1", good], "above 0"),
        (&["--tolerance", "nan", good], "above 0"),
        (&[], "FILE"),
    ] {
        let (code, _, err) = verify(args);
        assert!(code == Some(2) && err.contains(message), "{args:?}: {err}");
    }
}
