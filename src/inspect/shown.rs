//! The data of a model's run on the inspector's page, and their layout.
//!
//! [`data`](super::data) packs the tensors for a page that a program writes; the library in a browser gives them as they
//! are.

use super::{
    input::Input,
    trace::{Series, Trace},
    view::{self, Quantity, Role, Spectrum},
    weights,
};
use crate::{
    models::{self, Model, ModelConfig},
    tasks::Task,
};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// The data of a page.
pub fn page(task: &dyn Task, input: &Input, runs: Vec<Value>, graphs: Value) -> Value {
    json!({
        "task": { "title": task.title(), "legend": task.legend() },
        "classes": (0..task.classes()).map(|c| task.class(c)).collect::<Vec<_>>(),
        "tokens": input.tokens.iter().map(|&x| task.token(x as usize)).collect::<Vec<_>>(),
        "token_ids": input.tokens,
        "targets": input.targets,
        "runs": runs,
        "graphs": graphs,
    })
}

/// A run: `tensor` writes the values of a block's name, or a weight, which is the same at every step.
pub fn run(
    name: &str,
    about: &str,
    model: &Model,
    trace: &Trace,
    input: &Input,
    tensor: &dyn Fn(usize, &str, &Series, bool) -> Value,
) -> Value {
    let mixer = &model.config().mixer;
    let view = view::of(mixer);
    let title = view.map_or(mixer.as_str(), |v| v.title);
    let constant = |l: usize, name: &str, series: &Series| {
        let mut tensor = tensor(l, name, series, true);
        tensor["constant"] = true.into();
        tensor
    };
    let layers: Vec<Value> = (trace.layers.iter().enumerate())
        .map(|(l, values)| {
            let weights = trace.weights.get(l).into_iter().flatten().map(|(n, s)| (n.clone(), constant(l, n, s)));
            values.iter().map(|(n, s)| (n.clone(), tensor(l, n, s, false))).chain(weights).collect()
        })
        .collect();
    let said: Vec<Value> = (0..input.tokens.len()).map(|t| said(trace.logits.at(t), input.targets[t])).collect();
    let spectrum = Some(eigenvalues(view, trace)).filter(|names| !names.is_empty());
    let about = [vec![about.to_string()], silent(view, trace)].concat().join(" ");
    let equations = view.map_or(&[][..], |v| v.equations).iter();
    let equations = equations.map(|(symbols, places)| {
        let without = trace.weights.is_empty() && names(places).any(|name| weights::named(mixer, name).is_some());
        json!([symbols, if without { places.split(" = ").next().unwrap_or(places) } else { places }])
    });
    json!({
        "name": name,
        "title": title,
        "mixer": mixer,
        "about": about,
        "sizes": sizes(model),
        "parts": parts(model.config(), title),
        "source": models::equations(mixer).unwrap_or_default(),
        "quantities": quantities(view, trace),
        "equations": equations.collect::<Value>(),
        "symbols": view.map_or(vec![], view::View::symbols),
        "spectrum": spectrum,
        "spectrum_about": view.map_or("", |view| view.spectrum),
        "said": said,
        "layers": layers,
        "logits": Value::Null,
    })
}

/// The words in an equation's places, among them the names of values.
fn names(places: &str) -> impl Iterator<Item = &str> {
    places.split(['{', '}']).skip(1).step_by(2).flat_map(|place| place.split(' '))
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
    let why = "Its states are 0 at every token: nothing is written. With weights from another seed it may write.";
    if silent { vec![why.into()] } else { vec![] }
}

/// The names of the quantities that are the eigenvalues: one, or a real and an imaginary part, or none.
pub fn eigenvalues(view: Option<&view::View>, trace: &Trace) -> Vec<&'static str> {
    let complex = trace.layers.iter().any(|l| l.contains_key("Im eigenvalue"));
    match view.map_or(Spectrum::None, |view| view.eigenvalues) {
        Spectrum::None => vec![],
        Spectrum::Named(name) => vec![name],
        Spectrum::Complex(re, im) => vec![re, im],
        _ if complex => vec!["Re eigenvalue", "Im eigenvalue"],
        _ if trace.layers.iter().any(|l| l.contains_key("eigenvalue")) => vec!["eigenvalue"],
        _ => vec![],
    }
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
                let of = weights::named(view.mixer, name)?;
                Some(json!({ "name": name, "symbol": name, "axes": of.axes, "role": "weight", "about": "" }))
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
fn parts(c: &ModelConfig, title: &str) -> Vec<Value> {
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
fn sizes(model: &Model) -> String {
    let c = model.config();
    let mut text = format!("{} layers, width {}", c.layers, c.width);
    text += &match c.mixer.as_str() {
        "lru" => format!(", {} complex states", c.state),
        "s4d" | "lssl" => format!(", {} channels of {} states", c.width, c.state),
        "lmu" => format!(", {} polynomials", c.state),
        "gsa" => format!(", {} heads of {} with {} slots", c.heads, c.head_dim, c.state),
        "mamba" => format!(", {} channels of {} states", c.expand * c.width, c.state),
        "lstm" | "quasi_lstm" => format!(", {} units", c.inner()),
        "mamba2" | "mamba3" => {
            // Mamba-3 turns pairs of states.
            let n = if c.mixer == "mamba3" { c.state.next_multiple_of(2) } else { c.state };
            format!(", {} heads of {} channels of {n} states", c.heads, c.head_dim)
        }
        "seqboat" => format!(", one head of {}, {} averages a channel", c.inner(), c.state),
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
    text + &format!(", {} parameters", model.params().len())
}
