//! The trace as data: inside the page, and as JSON with a safetensors file.

use super::{
    Inspection,
    fit::{self, Fit},
    input::Input,
    source::Source,
    trace::{Series, Trace},
    view::{self, Quantity, Role, Spectrum},
};
use crate::{
    error::{Error, Result},
    models,
    report::mathml::math,
    tasks::Task,
};
use base64::{Engine, engine::general_purpose::STANDARD};
use safetensors::tensor::{Dtype, TensorView};
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashMap};

/// How tensors are written.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Encoding {
    /// In the text, as base64 of 32-bit floats, or of 16-bit floats where the page would be too large.
    Base64,
    /// In the safetensors file; the text has their names.
    Named,
}

/// The data of the page.
///
/// # Errors
/// When a number cannot be written.
pub fn page_json(i: &Inspection) -> Result<String> {
    json(i, Encoding::Base64)
}

/// The data as text.
///
/// # Errors
/// When a number cannot be written.
pub fn json(i: &Inspection, encoding: Encoding) -> Result<String> {
    let Some((first, _)) = i.runs.first() else { return Err(Error::config("there is no run to show")) };
    let task: &dyn Task = &*first.config.task;
    let fit = (encoding == Encoding::Base64).then(|| Fit::of(i));
    let runs: Vec<Value> =
        i.runs.iter().enumerate().map(|(r, (source, trace))| run(r, source, trace, &i.input, fit.as_ref())).collect();
    let value = json!({
        "task": { "title": task.title(), "legend": task.legend() },
        "classes": (0..task.classes()).map(|c| task.class(c)).collect::<Vec<_>>(),
        "tokens": i.input.tokens.iter().map(|&x| task.token(x as usize)).collect::<Vec<_>>(),
        "token_ids": i.input.tokens,
        "targets": i.input.targets,
        "runs": runs,
        "graphs": i.graphs,
    });
    serde_json::to_string(&value).map_err(|e| Error::Config(e.to_string()))
}

/// Every tensor as (run, layer, name, series).
fn all(i: &Inspection) -> Vec<(usize, usize, &str, &Series)> {
    let mut all = Vec::new();
    for (r, (_, trace)) in i.runs.iter().enumerate() {
        for (l, values) in trace.layers.iter().enumerate() {
            all.extend(values.iter().map(|(name, series)| (r, l, name.as_str(), series)));
        }
    }
    all
}

fn named(r: usize, l: usize, name: &str, series: &Series) -> Value {
    json!({ "shape": series.shape, "tensor": tensor_name(r, l, name) })
}

fn base64(series: &Series, half: bool) -> Value {
    let bytes: Vec<u8> = if half {
        let halves: Vec<u16> = series.data.iter().map(|&x| half::f16::from_f32(x).to_bits()).collect();
        bytemuck::cast_slice(&halves).to_vec()
    } else {
        bytemuck::cast_slice(&series.data).to_vec()
    };
    json!({ "shape": series.shape, "dtype": if half { "f16" } else { "f32" }, "data": STANDARD.encode(bytes) })
}

fn tensor_name(r: usize, l: usize, name: &str) -> String {
    format!("run{}.blocks.{l}.mixer.{name}", r + 1)
}

/// A run, with as many elements as fit, or with the names of all tensors in the file.
fn run(r: usize, source: &Source, trace: &Trace, input: &Input, fit: Option<&Fit>) -> Value {
    let config = source.model.config();
    let view = view::of(&config.mixer);
    let tensor = |l: usize, name: &str, series: &Series| match fit {
        None => named(r, l, name, series),
        Some(fit) => {
            let kept = fit.cut(fit::axes(view, name), series);
            base64(&kept, fit.is_half(kept.data.len()))
        }
    };
    let constant = |l: usize, name: &str, series: &Series| {
        let mut tensor = if fit.is_some() { base64(series, false) } else { named(r, l, name, series) };
        tensor["constant"] = true.into();
        tensor
    };
    let layers: Vec<Value> = (trace.layers.iter().enumerate())
        .map(|(l, values)| {
            let weights = trace.weights.get(l).into_iter().flatten().map(|(n, s)| (n.clone(), constant(l, n, s)));
            values.iter().map(|(n, s)| (n.clone(), tensor(l, n, s))).chain(weights).collect()
        })
        .collect();
    let said: Vec<Value> = (0..input.tokens.len()).map(|t| said(trace.logits.at(t), input.targets[t])).collect();
    let (spectrum, spectrum_about) = spectrum(view, trace);
    let equations = view.map_or(&[][..], |v| v.equations).iter();
    let equations = equations.map(|(symbols, places)| {
        let without = trace.weights.is_empty() && places.contains(" W_");
        let places = if without { places.split(" = ").next().unwrap_or(places) } else { places };
        json!([symbols, places, math(symbols)])
    });
    let about = [std::slice::from_ref(&source.about), &source.doubts, &silent(view, trace)].concat().join(" ");
    json!({
        "name": source.name,
        "title": view.map_or(config.mixer.as_str(), |v| v.title),
        "mixer": config.mixer,
        "about": about + &fit.map_or(String::new(), |fit| fit.about(trace, view)),
        "sizes": sizes(source),
        "parts": parts(source, view.map_or(config.mixer.as_str(), |v| v.title)),
        "source": models::equations(&config.mixer).unwrap_or_default(),
        "quantities": quantities(view, trace),
        "equations": equations.collect::<Value>(),
        "symbols": view.map_or(vec![], view::View::symbols),
        "spectrum": spectrum,
        "spectrum_about": spectrum_about,
        "said": said,
        "layers": layers,
        "logits": if fit.is_none() { json!(format!("run{}.logits", r + 1)) } else { Value::Null },
    })
}

/// A sentence where nothing was ever written into any block's state.
fn silent(view: Option<&view::View>, trace: &Trace) -> Vec<String> {
    let Some(view) = view else { return vec![] };
    let states: Vec<&Series> = view
        .quantities
        .iter()
        .filter(|q| q.role == Role::State)
        .flat_map(|q| trace.layers.iter().filter_map(|layer| layer.get(q.name)))
        .filter(|series| !series.data.is_empty())
        .collect();
    let silent = !states.is_empty() && states.iter().all(|series| series.data.iter().all(|&x| x == 0.0));
    let why = "Its states are 0 at every token: nothing is written. Another --seed has other weights.";
    if silent { vec![why.into()] } else { vec![] }
}

/// Which quantities are the eigenvalues, and a sentence about them.
fn spectrum(view: Option<&view::View>, trace: &Trace) -> (Value, &'static str) {
    let Some(view) = view else { return (Value::Null, "") };
    let complex = trace.layers.iter().any(|l| l.contains_key("Im eigenvalue"));
    let names = match view.eigenvalues {
        Spectrum::None => Value::Null,
        Spectrum::Named(name) => json!([name]),
        Spectrum::Complex(re, im) => json!([re, im]),
        _ if complex => json!(["Re eigenvalue", "Im eigenvalue"]),
        _ => json!(["eigenvalue"]),
    };
    (names, view.spectrum)
}

/// The view's quantities that the trace has; without a view, every named value with its shape.
fn quantities(view: Option<&view::View>, trace: &Trace) -> Value {
    let Some(layer) = trace.layers.first() else { return json!([]) };
    match view {
        Some(view) => {
            let axes = |name| {
                if matches!(view.eigenvalues, Spectrum::Ones | Spectrum::Delta | Spectrum::Product) {
                    Some(Quantity { name, symbol: name, axes: "hm", role: Role::Vector, about: "" })
                } else {
                    None
                }
            };
            let computed = ["eigenvalue", "Re eigenvalue", "Im eigenvalue"].map(axes).into_iter().flatten();
            let there: Vec<Quantity> = view.quantities.iter().copied().filter(|q| layer.contains_key(q.name)).collect();
            let computed: Vec<Quantity> = computed.filter(|q| layer.contains_key(q.name)).collect();
            let weights = trace.weights.first().into_iter().flat_map(BTreeMap::keys).filter_map(|name| {
                let of = view::WEIGHTS.iter().find(|w| w.0.contains(&view.mixer) && w.2.contains(&name.as_str()))?;
                Some(json!({ "name": name, "symbol": name, "axes": of.3, "role": "weight", "about": "" }))
            });
            let input = layer.contains_key(view::MIXER_INPUT.name).then(|| json!(view::MIXER_INPUT));
            [there, computed].concat().iter().map(|q| json!(q)).chain(input).chain(weights).collect()
        }
        None => layer
            .iter()
            .map(|(name, series)| {
                let axes = &"hijn"[..series.shape.len().min(4)];
                json!({ "name": name, "symbol": name, "axes": axes, "role": "state", "about": "" })
            })
            .collect(),
    }
}

/// The prediction, its probability, the target's probability, and the five likeliest classes.
fn said(logits: &[f32], target: Option<usize>) -> Value {
    let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let weights: Vec<f64> = logits.iter().map(|&x| f64::from(x - most).exp()).collect();
    let sum: f64 = weights.iter().sum();
    let p = |c: usize| (weights[c] / sum * 1e6).round() / 1e6;
    let mut best: Vec<usize> = (0..logits.len()).collect();
    best.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]).then(a.cmp(&b)));
    json!({
        "class": best.first(),
        "p": best.first().map(|&c| p(c)),
        "p_target": target.filter(|&y| y < logits.len()).map(p),
        "top": best.iter().take(5).map(|&c| json!([c, p(c)])).collect::<Vec<_>>(),
    })
}

/// The parts of the model, from tokens to logits (`src/models/decoder.rs`): name, what it does, and the block of a
/// mixer.
fn parts(source: &Source, title: &str) -> Vec<Value> {
    let c = source.model.config();
    let part =
        |name: &str, about: String, block: Option<usize>| json!({ "name": name, "about": about, "block": block });
    let (d, norm) =
        (c.width, "Layer norm: the numbers of each token to mean 0 and variance 1, times a weight, plus a bias.");
    let tokens = format!("Each of the {} tokens has a vector of {d} numbers, which the blocks add to.", c.vocab);
    let mut all = vec![part("embedding", tokens, None)];
    for l in 0..c.layers {
        let mixer =
            format!("Block {} of {}: the only part that combines tokens. Its result is added.", l + 1, c.layers);
        all.extend([part("norm", norm.into(), None), part(title, mixer, Some(l))]);
        if c.mlp > 0 {
            let mlp = format!(
                "{d} numbers to {}, a GELU, and back to {d}, for each token alone. Its result is added.",
                c.mlp
            );
            all.extend([part("norm", norm.into(), None), part("MLP", mlp, None)]);
        }
    }
    let head = format!("A product with a matrix gives {} numbers, one for each class: the logits.", c.classes);
    let logits = "The class with the largest is what the model says; their softmax is how sure it is.".into();
    all.extend([part("norm", norm.into(), None), part("head", head, None), part("logits", logits, None)]);
    all
}

/// The sizes that this mixer reads.
fn sizes(source: &Source) -> String {
    let c = source.model.config();
    let mut text = format!("{} layers, width {}", c.layers, c.width);
    text += &match c.mixer.as_str() {
        "lru" => format!(", {} complex states", c.state),
        "s4d" | "lssl" => format!(", {} channels of {} states", c.width, c.state),
        "lmu" => format!(", {} polynomials", c.state),
        "gsa" => format!(", {} heads of {} with {} slots", c.heads, c.head_dim, c.state),
        "mamba" => format!(", {} channels of {} states", c.expand * c.width, c.state),
        "lstm" | "quasi_lstm" => format!(", {} units", c.inner()),
        "mamba2" | "mamba3" => format!(", {} heads of {} channels of {} states", c.heads, c.head_dim, c.state),
        _ => format!(", {} heads of {}", c.heads, c.head_dim),
    };
    if c.mixer == "delta_product" {
        text += &format!(", {} steps a token", c.householders);
    }
    if models::names_with(|c| c.eigenvalues).contains(&c.mixer.as_str()) {
        text += &format!(", eigenvalues {}", c.eigenvalues);
    }
    if c.ngram > 0 {
        text += &format!(", n-gram heads of up to {} tokens, which the page does not show", c.ngram);
    }
    text + &format!(", {} parameters", source.model.params().len())
}

/// All tensors as a file: `run1.blocks.0.mixer.S` is `[T, …]`, `run1.logits` `[T, classes]`, and gates' weights as they
/// are.
///
/// # Errors
/// When a tensor cannot be written.
pub fn safetensors(i: &Inspection) -> Result<Vec<u8>> {
    let steps = i.input.tokens.len();
    let logits = i.runs.iter().enumerate().map(|(r, (_, trace))| (format!("run{}.logits", r + 1), &trace.logits));
    let named = all(i).into_iter().map(|(r, l, name, series)| (tensor_name(r, l, name), series)).chain(logits);
    let weights = i.runs.iter().enumerate().flat_map(|(r, (_, trace))| {
        let of = move |(l, own)| {
            let of: &BTreeMap<String, Series> = own;
            of.iter().map(move |(name, series)| (tensor_name(r, l, name), series))
        };
        trace.weights.iter().enumerate().flat_map(of)
    });
    let what = |e: safetensors::SafeTensorError| Error::Config(format!("the tensors cannot be written: {e}"));
    let all = named.map(|(name, s)| (name, [&[steps], &s.shape[..]].concat(), s));
    let all = all.chain(weights.map(|(name, s)| (name, s.shape.clone(), s)));
    let views: Result<Vec<(String, TensorView)>> = all
        .map(|(name, shape, s)| {
            Ok((name, TensorView::new(Dtype::F32, shape, bytemuck::cast_slice(&s.data)).map_err(what)?))
        })
        .collect();
    safetensors::serialize(views?, None::<HashMap<String, String>>).map_err(what)
}
