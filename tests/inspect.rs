//! The inspector: it records the model's values, recording changes nothing, and invalid requests are refused.

#![allow(clippy::unwrap_used, clippy::needless_range_loop)]

mod close;
mod program;
mod texts;

use approx::abs_diff_eq;
use close::all_close;
use indicatif::ProgressBar;
use program::{outcome, program};
use safetensors::SafeTensors;
use serde_json::Value;
use std::{fmt::Display, fs, path::Path};
use tapezoo::{
    autograd::Tape,
    inspect::{
        Inspection, eigen,
        input::Input,
        source::{self, Source},
        trace::{Series, one_shape, trace},
        view,
    },
    models::{Family, Form, Model, about, names},
    tensor::Tensor,
};
use texts::contains;

fn fresh(spec: &str, task: &str) -> Source {
    let config = source::config(spec, task, 3, None, 0).unwrap();
    source::train(spec, config, 0, &ProgressBar::hidden()).unwrap()
}

fn logits(model: &Model, tokens: &[i32], form: Form) -> Vec<f64> {
    let tape = Tape::default();
    let params = model.params().bind_frozen(&tape);
    let tokens = tape.constant(&Tensor::from_vec(tokens.to_vec(), [1, tokens.len()]));
    model.forward(&params, tokens, form).value().to_f64()
}

#[track_caller]
fn close(a: &[f32], b: &[f64], what: &str) {
    let a: Vec<f64> = a.iter().copied().map(f64::from).collect();
    all_close(&a, b, 2e-4, format_args!("{what}, recorded and computed"));
}

#[track_caller]
fn near(a: f32, b: f32, what: impl Display) {
    close::close(a.into(), b.into(), 1e-5, what);
}

const TOKENS: [i32; 9] = [1, 0, 1, 1, 0, 0, 1, 1, 1];

#[test]
fn the_recorded_logits_are_those_of_a_whole_sequence_in_every_form() {
    for mixer in names() {
        let source = fresh(mixer, "parity");
        let trace = trace(&source, &TOKENS, &ProgressBar::hidden()).unwrap();
        for form in source.model.forms() {
            close(&trace.logits.data, &logits(&source.model, &TOKENS, form), &format!("{mixer}, {form}"));
        }
    }
}

#[test]
fn the_recorded_states_are_those_that_the_fastest_form_ends_in() {
    for mixer in names() {
        let source = fresh(mixer, "parity");
        let trace = trace(&source, &TOKENS, &ProgressBar::hidden()).unwrap();
        for n in [1, 4, TOKENS.len()] {
            let tape = Tape::default();
            let params = source.model.params().bind_frozen(&tape);
            let mut state = source.model.zero_state(&tape, 1);
            let tokens = tape.constant(&Tensor::from_vec(TOKENS[..n].to_vec(), [1, n]));
            source.model.run(&params, tokens, &mut state, source.model.default_form());
            for (layer, block) in trace.layers.iter().zip(state.blocks()) {
                for (name, v) in source.model.state_names().iter().zip(&block.s) {
                    if let Some(series) = layer.get(*name) {
                        close(series.at(n - 1), &v.value().to_f64(), &format!("{mixer}: {name} after {n}"));
                    }
                }
            }
        }
    }
}

#[test]
fn every_quantity_of_a_view_is_recorded_with_its_axes_and_nothing_else_is() {
    for mixer in names() {
        let source = fresh(&format!("{mixer}:heads=1"), "parity");
        let trace = trace(&source, &TOKENS, &ProgressBar::hidden()).unwrap();
        let Some(view) = view::of(mixer) else {
            assert_eq!(about(mixer).unwrap().family, Family::Others, "{mixer} has an ABOUT, and no view");
            continue;
        };
        for layer in &trace.layers {
            for q in view.quantities {
                let series = layer.get(q.name).unwrap_or_else(|| panic!("{mixer}: nothing is named {}", q.name));
                assert_eq!(series.shape.len(), q.axes.len(), "{mixer}: {} is {:?}", q.name, series.shape);
                assert_eq!(series.data.len(), TOKENS.len() * series.width(), "{mixer}: {}", q.name);
                if let Some(head) = q.axes.find('h') {
                    assert_eq!(series.shape[head], 1, "{mixer}: heads of {}", q.name);
                }
            }
            for name in layer.keys().filter(|n| !n.contains("eigenvalue")) {
                assert!(view.axes(name).is_some(), "{mixer}: {name} is recorded and never shown");
            }
        }
    }
}

/// Along a key the transition is α (1 − β ‖k‖²), and across it α, which is 1 where there is no gate.
#[test]
fn eigenvalues_are_those_of_gate_and_reflection() {
    for (spec, gated) in [("delta_net:eigenvalues=-1..1", false), ("gated_delta_net:eigenvalues=-1..1", true)] {
        let source = fresh(spec, "parity");
        for layer in &trace(&source, &TOKENS, &ProgressBar::hidden()).unwrap().layers {
            let [k, beta, eigen] = ["k", "beta", "eigenvalue"].map(|n| &layer[n]);
            let [h, n] = [k.shape[0], k.shape[1]];
            for (t, head) in (0..TOKENS.len()).flat_map(|t| (0..h).map(move |head| (t, head))) {
                let alpha = if gated { layer["alpha"].at(t)[head] } else { 1.0 };
                assert!(!gated || alpha < 0.9999, "{spec}: the gate is open, and tells nothing");
                let square: f32 = k.at(t)[head * n..][..n].iter().map(|x| x * x).sum();
                near(
                    eigen.at(t)[2 * head],
                    alpha * (1.0 - beta.at(t)[head] * square),
                    format_args!("{spec} along k at {t}"),
                );
                near(eigen.at(t)[2 * head + 1], alpha, format_args!("{spec} across k at {t}"));
            }
        }
    }
}

/// The delta rule, from the recorded numbers alone.
#[test]
fn the_recorded_numbers_fulfil_the_equations_of_the_delta_rule() {
    let source = fresh("delta_net:eigenvalues=-1..1", "parity");
    let trace = trace(&source, &TOKENS, &ProgressBar::hidden()).unwrap();
    for layer in &trace.layers {
        let [s, k, v, beta, error, eigen] = ["S", "k", "v", "beta", "error", "eigenvalue"].map(|n| &layer[n]);
        let [h, n] = [k.shape[0], k.shape[1]];
        let zeros = vec![0.0; s.width()];
        for t in 0..TOKENS.len() {
            let before = if t == 0 { &zeros[..] } else { s.at(t - 1) };
            for head in 0..h {
                let beta = beta.at(t)[head];
                let key = &k.at(t)[head * n..(head + 1) * n];
                let square: f32 = key.iter().map(|x| x * x).sum();
                near(eigen.at(t)[2 * head], 1.0 - beta * square, format_args!("eigenvalue at {t}"));
                for j in 0..n {
                    let held: f32 = (0..n).map(|i| before[(head * n + i) * n + j] * key[i]).sum();
                    let e = error.at(t)[head * n + j];
                    near(e, v.at(t)[head * n + j] - held, format_args!("error at {t}"));
                    for (i, key) in key.iter().enumerate() {
                        let at = (head * n + i) * n + j;
                        near(s.at(t)[at], before[at] + key * beta * e, format_args!("S at {t}"));
                    }
                }
            }
        }
    }
}

#[test]
fn names_that_nobody_listens_to_leave_the_tape_as_it_is() {
    for mixer in names() {
        let source = fresh(mixer, "parity");
        let run = |listen: bool| {
            let tape = Tape::default();
            if listen {
                tape.start_naming();
            }
            let params = source.model.params().bind(&tape);
            let tokens = tape.constant(&Tensor::from_vec(TOKENS.to_vec(), [1, TOKENS.len()]));
            let y = source.model.forward(&params, tokens, Form::Recurrent).value().to_f64();
            (y, tape.len(), tape.fresh_buffers(), tape.take_named().len())
        };
        let (off, on) = (run(false), run(true));
        assert_eq!((&off.0, off.1, off.2), (&on.0, on.1, on.2), "{mixer}");
        assert_eq!(off.3, 0, "{mixer}");
        assert!(on.3 > 0 || view::of(mixer).is_none(), "{mixer} names nothing");
    }
}

/// The numbers that these bytes encode.
fn numbers<T: bytemuck::Pod>(bytes: &[u8]) -> Vec<T> {
    bytes.chunks_exact(size_of::<T>()).map(bytemuck::pod_read_unaligned).collect()
}

/// The tensors of the page, decoded as its script does.
fn decoded(tensor: &Value) -> Vec<f32> {
    use base64::{Engine, engine::general_purpose::STANDARD};
    let bytes = STANDARD.decode(tensor["data"].as_str().unwrap()).unwrap();
    match tensor["dtype"].as_str().unwrap() {
        "f32" => numbers(&bytes),
        "f16" => numbers(&bytes).into_iter().map(|bits| half::f16::from_bits(bits).to_f32()).collect(),
        other => panic!("{other}"),
    }
}

fn page_data(page: &str) -> Value {
    let (_, rest) = page.split_once(r#"id="data""#).unwrap();
    let (_, rest) = rest.split_once('>').unwrap();
    serde_json::from_str(rest.split_once("</script>").unwrap().0).unwrap()
}

#[test]
fn page_and_files_hold_the_same_numbers_and_a_long_page_stays_small() {
    for mixer in names() {
        let dir = tempfile::tempdir().unwrap();
        let config = source::config(mixer, "parity", 0, Some(256), 0).unwrap();
        let source = source::train(mixer, config, 0, &ProgressBar::hidden()).unwrap();
        let input = Input::draw(&*source.config.task, 256, 0).unwrap();
        let inspection = Inspection::new(vec![source], input, false, &ProgressBar::hidden()).unwrap();
        let files = inspection.write(&dir.path().join("page.html"), true).unwrap();
        assert_eq!(files.len(), 3);
        let page = fs::read_to_string(&files[0]).unwrap();
        assert!(page.len() < 5_000_000, "{mixer}: {} bytes", page.len());
        assert!(
            !page.contains("http://") || page.matches("http").count() == page.matches("http://www.w3.org").count(),
            "{mixer}: an address that is no name space"
        );
        let bytes = fs::read(dir.path().join("page.safetensors")).unwrap();
        let tensors = SafeTensors::deserialize(&bytes).unwrap();
        let json: Value = serde_json::from_slice(&fs::read(dir.path().join("page.json")).unwrap()).unwrap();
        let (data, trace) = (page_data(&page), &inspection.runs[0].1);
        for (l, layer) in trace.layers.iter().enumerate() {
            for (name, series) in layer {
                let shown = decoded(&data["runs"][0]["layers"][l][name]);
                same(series, &shown, &format!("{mixer}: {name} on the page"));
                let named = json["runs"][0]["layers"][l][name]["tensor"].as_str().unwrap();
                let view = tensors.tensor(named).unwrap();
                let there: Vec<f32> = numbers(view.data());
                assert_eq!(there, series.data, "{mixer}: {named} in the file");
                assert_eq!(view.shape()[0], 256);
            }
        }
    }
}

/// A page that is too large has only the first heads, columns or channels, and says which.
#[test]
fn a_page_of_a_large_model_has_what_fits() {
    for spec in ["delta_product:width=128,heads=4,head_dim=32", "mamba:width=128,state=16"] {
        let source = fresh(spec, "parity");
        let input = Input::draw(&*source.config.task, 256, 0).unwrap();
        let inspection = Inspection::new(vec![source], input, false, &ProgressBar::hidden()).unwrap();
        let page = inspection.page().unwrap();
        assert!((3_000_000..5_000_000).contains(&page.len()), "{spec}: {} bytes", page.len());
        let run = &page_data(&page)["runs"][0];
        assert!(run["about"].as_str().unwrap().contains("this page has only"), "{spec}: {}", run["about"]);
        let (name, at, of) = if spec.starts_with("mamba") { ("x", 0, 256) } else { ("v", 1, 4) };
        let (tensor, series) = (&run["layers"][0][name], &inspection.runs[0].1.layers[0][name]);
        let shape: Vec<usize> =
            tensor["shape"].as_array().unwrap().iter().map(|n| n.as_u64().unwrap() as usize).collect();
        assert!(shape[at] < of && series.shape[at] == of, "{spec}: {shape:?} of {:?}", series.shape);
        // The first elements of each step.
        let (shown, n) = (decoded(tensor), shape.iter().product::<usize>());
        for t in 0..256 {
            to_16_bits(series.at(t)[0], shown[t * n], format_args!("{spec} at {t}"));
        }
        assert_eq!(shown.len(), 256 * n);
    }
}

/// Assert that values are equal, or equal to the precision of 16 bits.
fn same(series: &Series, shown: &[f32], what: &str) {
    assert_eq!(series.data.len(), shown.len(), "{what}");
    for (&a, &b) in series.data.iter().zip(shown) {
        to_16_bits(a, b, what);
    }
}

#[track_caller]
fn to_16_bits(a: f32, b: f32, what: impl Display) {
    assert!(abs_diff_eq!(a, b, epsilon = 1e-7 + a.abs() / 1000.0), "{what}: {a} became {b}");
}

#[test]
fn an_input_is_read_as_its_task_writes_it() {
    let read = |task: &str, text: &str| {
        let config = source::config("lstm", task, 0, None, 1).unwrap();
        Input::read(&*config.task, text).map_err(|e| e.to_string())
    };
    let parity = read("parity", "1101").unwrap();
    assert_eq!(parity.tokens, [1, 1, 0, 1]);
    assert_eq!(parity.targets, [Some(0), Some(1), Some(1), Some(0)]);
    assert_eq!(parity, read("parity", "1 1 01").unwrap());
    let group = read("s3", "(12)(12) e (123)").unwrap();
    assert_eq!(group.targets.iter().map(|y| y.is_some()).collect::<Vec<_>>(), [true; 4]);
    assert_eq!(group.targets[1], group.targets[2], "twice the same swap is nothing");
    assert_eq!(read("dyck", "([])").unwrap().targets, [Some(0), Some(0), Some(0), Some(1)]);
    contains(read("parity", "102").unwrap_err(), "'2' is no token of this task; expected 0 1");
    contains(read("mqar", "1234").unwrap_err(), "'1234'");
    contains(read("parity", " ").unwrap_err(), "--input ' ': no token; expected 1 to 1024 of 0 1");
}

fn inspect(dir: &Path, line: &str) -> (Option<i32>, String, String) {
    outcome(program("inspect").args(line.split_whitespace()).current_dir(dir).output().unwrap())
}

#[test]
fn what_cannot_be_is_refused_with_its_name_and_nothing_is_written() {
    let dir = tempfile::tempdir().unwrap();
    for (line, words) in [
        ("--model lstn", &["lstn", "did you mean 'lstm'?"][..]),
        ("--model lstm:layers", &["'layers' has no '='", "eigenvalues=-1..1"]),
        ("--model lstm:layres=2", &["layres"]),
        ("--model lstm:layers=0", &["layers = 0", "from 1"]),
        ("--model lstm:eigenvalues=-1..1", &["eigenvalues", "delta_net"]),
        ("--task pairty", &["pairty", "parity", "mqar"]),
        ("--model lstm:width=-1", &["lstm:width=-1", "`-1`", "a whole number"]),
        ("--model delta_net:eigenvalues=5", &["delta_net:eigenvalues=5", "'5'", "-1..1"]),
        ("--task dyck --len 7", &["--len 7", "even"]),
        ("--len 0", &["0 tokens", "1 to 1024"]),
        ("--len 5000", &["5000 tokens", "1 to 1024"]),
        ("--input 01x", &["'x'", "0 1"]),
        ("--checkpoint nowhere", &["nowhere", "does not exist", "--out"]),
        ("--checkpoint .", &["is no run directory"]),
        ("--compare nothing --steps 0", &["nothing", "run directory", "delta_net"]),
        ("--out nowhere/page.html", &["nowhere", "make it first"]),
        ("--out .", &["is a directory"]),
    ] {
        let (status, stdout, stderr) = inspect(dir.path(), line);
        assert_eq!((status, stdout.as_str()), (Some(2), ""), "{line}: {stderr}");
        assert!(!stderr.contains("panicked"), "{line}: {stderr}");
        for word in words {
            assert!(stderr.contains(word), "{line}: no '{word}' in: {stderr}");
        }
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "{line}");
    }
}

#[test]
fn runs_are_opened_finished_or_not_and_two_are_shown_side_by_side() {
    let dir = tempfile::tempdir().unwrap();
    let train = "--models lstm,gpt --steps 4 --batch 2 --train-len 8 --eval-lens 8 --out runs";
    let parity = program("parity").args(train.split(' ')).current_dir(dir.path()).output();
    assert!(parity.unwrap().status.success());
    let (status, _, stderr) = inspect(dir.path(), "--checkpoint runs");
    assert_eq!(status, Some(2));
    assert!(stderr.contains("runs/lstm-seed0") && stderr.contains("runs/gpt-seed0"), "{stderr}");
    let line = "--checkpoint runs/lstm-seed0 --compare runs/gpt-seed0 --input 1101 --graph --json --out page.html";
    let (status, stdout, stderr) = inspect(dir.path(), line);
    assert_eq!((status, stderr.as_str()), (Some(0), ""), "{stdout}");
    let data = page_data(&fs::read_to_string(dir.path().join("page.html")).unwrap());
    assert_eq!(data["runs"].as_array().unwrap().len(), 2);
    assert_eq!(data["graphs"].as_array().unwrap().len(), 2);
    assert!(data["graphs"][0]["nodes"].as_array().unwrap().len() > 10, "{}", data["graphs"][0]["nodes"]);
    let dot = fs::read_to_string(dir.path().join("page.dot")).unwrap();
    assert!(
        dot.starts_with("// ")
            && dot.contains("digraph tape {")
            && dot.matches('{').count() == dot.matches('}').count(),
        "{dot}"
    );
    // The weights are the run's: its model gives the same logits.
    let (_, config) = tapezoo::train::rundir::RunDir::open(&dir.path().join("runs")).unwrap();
    let source = source::checkpoint(&dir.path().join("runs/lstm-seed0")).unwrap();
    let fresh = Model::new(&config.for_model("lstm").unwrap().model, 0, config.dtype).unwrap();
    assert_ne!(source.model.params().flat().to_f64(), fresh.params().flat().to_f64());
    let bytes = fs::read(dir.path().join("runs/lstm-seed0/weights.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    for (name, tensor) in source.model.params().tensors() {
        let there: Vec<f32> = numbers(file.tensor(name).unwrap().data());
        assert_eq!(there.into_iter().map(f64::from).collect::<Vec<_>>(), tensor.to_f64(), "{name}");
    }
    // A sequence too long for its positions.
    let (status, _, stderr) = inspect(dir.path(), "--checkpoint runs/gpt-seed0 --len 64");
    assert_eq!(status, Some(2));
    assert!(stderr.contains("positions for 8 tokens"), "{stderr}");
}

#[test]
fn axes_of_size_one_are_told_apart() {
    // error [B, H, V, 1] with one head; attention [B, H, 1, S]; k [B, T, H, K] with heads of width 1.
    assert_eq!(one_shape(&[1, 1, 8, 1], Some("hj"), 1), [1, 8]);
    assert_eq!(one_shape(&[1, 1, 1, 5], Some("hs"), 1), [1, 5]);
    assert_eq!(one_shape(&[1, 2, 1, 5], Some("hs"), 2), [2, 5]);
    assert_eq!(one_shape(&[1, 1, 3, 1], Some("hi"), 3), [3, 1]);
    assert_eq!(one_shape(&[1, 4, 4, 1], Some("phj"), 4), [4, 4]);
    assert_eq!(one_shape(&[16], Some("n"), 2), [16]);
}

#[test]
fn roots_of_known_polynomials() {
    // (x − 1)(x − 2)(x + 3) = x³ − 7x + 6
    let z = eigen::roots(&[0.0, -7.0, 6.0]);
    for ((re, im), expected) in z.into_iter().zip([2.0, 1.0, -3.0]) {
        all_close(&[re, im], &[expected, 0.0], 1e-9, "a root");
    }
    assert_eq!(eigen::roots(&[0.0, 1.0]), [(0.0, 1.0), (0.0, -1.0)]);
}

#[test]
fn two_reflections_are_a_rotation() {
    // The rotation is by twice the angle between the keys, and leaves what is orthogonal to both; of two numbers nothing is.
    let angle: f32 = 0.3;
    let beta = Series { shape: vec![2, 1], data: vec![2.0, 2.0] };
    for width in [2, 3] {
        let (mut data, zeros) = (vec![1.0], vec![0.0; width - 2]);
        data.extend([&[0.0], &zeros[..], &[angle.cos(), angle.sin()], &zeros].concat());
        let found = eigen::product(&Series { shape: vec![2, 1, width], data }, &beta);
        assert_eq!(found[0].1.shape, [1, width]);
        let mut z: Vec<(f32, f32)> = found[0].1.data.iter().copied().zip(found[1].1.data.iter().copied()).collect();
        assert_eq!(z.len(), width);
        if width == 3 {
            assert_eq!(z.pop(), Some((1.0, 0.0)));
        }
        all_close(&[z[0].0.into(), z[0].1.abs().into()], &[0.6f64.cos(), 0.6f64.sin()], 1e-6, "an eigenvalue");
        assert!((z[0].0 - z[1].0).abs() < 1e-6 && (z[0].1 + z[1].1).abs() < 1e-6, "{z:?}");
    }
    // Three factors on keys of two numbers: a rotation and a reflection are a reflection.
    let k = Series { shape: vec![3, 1, 2], data: vec![1.0, 0.0, angle.cos(), angle.sin(), 0.6, 0.8] };
    let found = eigen::product(&k, &Series { shape: vec![3, 1], data: vec![2.0; 3] });
    all_close(&found[0].1.data.iter().map(|&x| x.into()).collect::<Vec<f64>>(), &[1.0, -1.0], 1e-6, "real parts");
    all_close(&found[1].1.data.iter().map(|&x| x.into()).collect::<Vec<f64>>(), &[0.0, 0.0], 1e-6, "imaginary parts");
    // Of more than eight the digits would be lost.
    let many = Series { shape: vec![9, 1, 16], data: vec![0.25; 9 * 16] };
    assert!(eigen::product(&many, &Series { shape: vec![9, 1], data: vec![1.0; 9] }).is_empty());
}
