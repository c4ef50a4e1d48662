//! Fixtures made from our own recurrent forms, of random shapes: every other form agrees with them in both precisions,
//! and a change to any tensor is noticed.

use serde_json::json;
use std::collections::BTreeMap;
use tapezoo::{
    autograd::Gen,
    models::log_linear,
    tensor::{DType, Device, Tensor},
    verify::{
        Fixture, Place, check, recurrent,
        specs::{Spec, specs},
        tolerance,
    },
};

/// Sizes for the letters of a spec's axes.
fn sizes(g: &mut Gen, op: &str) -> BTreeMap<char, usize> {
    let mut n: BTreeMap<char, usize> = "BTHKVDENIOCW".chars().map(|c| (c, g.size(6))).collect();
    n.insert('T', [1, 2, 3, 7, 18, 40][g.below(6)]);
    n.insert('C', g.below(5) + 2);
    match op {
        "lstm" => n.insert('E', 4 * n[&'D']),
        "slstm" => {
            n.insert('J', n[&'K']);
            n.insert('D', n[&'H'] * n[&'K'])
        }
        "mamba_layer" => {
            n.insert('R', g.size(3));
            n.insert('E', 2 * n[&'D']);
            n.insert('F', 4 * n[&'D']);
            n.insert('G', n[&'R'] + 2 * n[&'N'])
        }
        "gated_delta_product" => n.insert('M', 2 * n[&'T']),
        "mamba3" => {
            n.insert('P', g.size(4));
            n.insert('S', g.size(3));
            n.insert('N', 2 * n[&'S'] + g.below(2))
        }
        "mamba2_layer" => {
            // Two groups of heads of `K` channels, and no norm of a single one, which would be its sign.
            n.insert('H', 2 * g.size(2));
            n.insert('K', 2 + g.below(4));
            n.insert('E', n[&'H'] * n[&'K']);
            n.insert('C', n[&'E'] + 4 * n[&'N']);
            n.insert('F', n[&'C'] + n[&'E'] + n[&'H'])
        }
        "rwkv7_time_mix" => {
            // The norms of a head of few channels are nearly signs, which lose the digits of a gradient.
            n.insert('K', 4 + g.below(3));
            n.extend("PQRS".chars().map(|c| (c, g.size(3))));
            n.insert('D', n[&'H'] * n[&'K'])
        }
        "hedgehog" => {
            n.insert('Q', g.size(5));
            n.insert('F', 2 * n[&'Q'])
        }
        "gsa" | "abc" => n.insert('M', g.size(5)),
        "mom" => n.insert('M', 2 + g.below(3)),
        "ttt_linear" => {
            // Of one or two channels a layer norm leaves the signs alone.
            n.insert('K', 3 + g.below(4));
            n.insert('R', [1, 4, 7, 16][g.below(4)])
        }
        "log_linear_attention" => n.insert('L', log_linear::levels(n[&'T'])),
        _ => None,
    };
    n
}

fn shape(axes: &str, n: &BTreeMap<char, usize>) -> Vec<usize> {
    let size = |c: char| match c {
        '*' => vec![n[&'B'], n[&'T']],
        '1'..='9' => vec![c as usize - '0' as usize],
        c => vec![n[&c]],
    };
    axes.chars().flat_map(size).collect()
}

/// Typical elements of this input.
fn input(g: &mut Gen, op: &str, name: &str, shape: &[usize], n: &BTreeMap<char, usize>) -> Tensor {
    let logistic = |x: f64| 1.0 / (1.0 + (-x).exp());
    match (op, name) {
        (_, "ids") => g.ints(shape, n[&'V']),
        (_, "targets") => g.ints(shape, n[&'C']),
        (_, "beta") => g.tensor(shape, |g| logistic(g.gauss())),
        (_, "g") => g.tensor(shape, |g| -0.3 * g.gauss().powi(2)),
        ("mlstm" | "slstm", "i" | "f") => g.tensor(shape, |g| 2.0 + 2.0 * g.gauss()),
        ("linear_scan", "a") => g.range(shape, -1.0, 1.0),
        ("lru_scan", "lambda_re" | "lambda_im") => g.range(shape, -0.7, 0.7),
        ("selective_scan", "a") => g.range(shape, -2.0, -0.1),
        ("log" | "sqrt", _) => g.range(shape, 0.1, 4.0),
        ("linear_attention", "q" | "k") => g.range(shape, 0.1, 2.0),
        ("rwkv7", "w") => g.range(shape, -0.6, 0.0),
        ("mamba3", "a") | ("s4d" | "lssl", "log_dt") => g.range(shape, -3.0, -0.1),
        // Small enough that the inner learning does not diverge.
        ("ttt_linear", "lr") => g.range(shape, 0.01, 0.1),
        ("titans_linear", "theta") => g.range(shape, 0.05, 0.4),
        ("mamba3", "dt") | ("ttt_linear", "row") | ("titans_linear", "eta" | "alpha") => g.range(shape, 0.05, 0.95),
        // The elements are so small that the memory of keys and λ stay positive definite.
        ("mesa", "hkk0") => g.tensor(shape, |g| 0.02 * g.gauss()),
        ("mesa", "lamb") => g.range(shape, 0.5, 2.0),
        ("gsa", "s") => g.range(shape, 0.05, 0.95),
        ("delta_rule" | "gated_delta_rule" | "kda" | "gdn2" | "gated_delta_product" | "titans_linear" | "mom", "k")
        | ("path_attention", "w")
        | ("comba", "k" | "p")
        | ("rwkv7", "a" | "b") => g.tensor(shape, |g| g.gauss() / (n[&'K'] as f64).sqrt()),
        _ => g.normal(shape),
    }
}

/// A fixture of this op with the outputs and gradients of its recurrent form in double precision.
pub fn made(g: &mut Gen, spec: &Spec) -> Fixture {
    let n = sizes(g, spec.op);
    let attrs = match spec.op {
        _ if spec.attrs == ["scale"] => json!({"scale": 0.5}),
        "hgrn2" => json!({"scale": 0.5, "lower_bound": if g.coin() { 0.3 } else { 0.0 }}),
        "gated_delta_product" => json!({"scale": 0.5, "householders": 2}),
        "mamba2_layer" => json!({
            "heads": n[&'H'], "head_dim": n[&'K'], "d_state": n[&'N'], "groups": 2, "d_conv": n[&'W'],
        }),
        "rwkv7_time_mix" => json!({"head_size": n[&'K'], "layer": 1}),
        "hopfield_attention" => json!({"scale": 0.5, "updates": g.below(3)}),
        "based" => json!({"scale": 0.5}),
        "prefix_linear_attention" => json!({"feature_map": "taylor2"}),
        "ttt_linear" => json!({"mini_batch": n[&'R']}),
        "mom" => json!({"scale": 0.5, "topk": 2}),
        "lssl" => json!({"measure": "legs", "order": n[&'N'], "gbt": 0.5}),
        "lmu_memory" => json!({"order": n[&'N'], "theta": 20.0, "discretizer": "zoh"}),
        "ngram_head" => json!({"ngram": 1 + g.below(2)}),
        "linear_attention" => json!({"scale": 0.5, "normalize": g.coin()}),
        "cross_entropy" => json!({"label_smoothing": if g.coin() { 0.1 } else { 0.0 }}),
        "mamba_layer" => json!({"d_state": n[&'N'], "expand": 2, "d_conv": n[&'W'], "dt_rank": n[&'R']}),
        _ => json!({}),
    };
    let mut tensors = BTreeMap::new();
    for &(name, axes) in spec.inputs.iter().chain(spec.optional) {
        let t = input(g, spec.op, name, &shape(axes, &n), &n);
        tensors.insert(format!("in.{name}"), t.clone());
        if t.dtype() != DType::I32 {
            tensors.insert(format!("grad.{name}"), t);
        }
    }
    if attrs["normalize"] == true {
        for name in ["in.s0", "grad.s0", "in.z0", "grad.z0"] {
            tensors.remove(name);
        }
    }
    for &(name, axes) in spec.outputs {
        if attrs["normalize"] != true || name != "s" {
            let (axes, t) = (shape(axes, &n), ["ct", "out"]);
            let ct = g.tensor(&axes[..], |g| g.gauss());
            t.iter().for_each(|kind| drop(tensors.insert(format!("{kind}.{name}"), ct.clone())));
        }
    }
    let mut f = Fixture::new(spec.op, attrs, tensors);
    let results = recurrent(&f).unwrap();
    f.tensors.extend(results);
    f
}

#[test]
fn every_form_agrees_with_the_recurrent_one_in_both_precisions() {
    let draws = std::env::var("TAPEZOO_JUDGE_DRAWS").ok().and_then(|n| n.parse().ok()).unwrap_or(4);
    let mut wrong = vec![];
    for spec in specs() {
        for seed in 0..draws {
            let f = made(&mut Gen::new(seed), spec);
            for dtype in [DType::F64, DType::F32] {
                for c in check(&f, Place::new(Device::Cpu, dtype), tolerance(dtype)).unwrap() {
                    if !c.passes(tolerance(dtype)) {
                        let of = f.tensor(&c.tensor).unwrap().shape();
                        wrong.push(format!(
                            "{} {seed} {dtype} {} {} {of}: {:.1e}, floor {:.1e}",
                            spec.op, c.form, c.tensor, c.error, c.floor
                        ));
                    }
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
