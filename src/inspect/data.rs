//! The trace as data: inside the page, and as JSON with a safetensors file.

use super::{
    Inspection,
    fit::{self, Fit},
    input::Input,
    shown,
    source::Source,
    trace::{Series, Trace},
    view,
};
use crate::{
    error::{Error, Result},
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
    let graphs = serde_json::to_value(&i.graphs).map_err(|e| Error::Config(e.to_string()))?;
    let value = shown::page(task, &i.input, runs, graphs);
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
    let view = view::of(&source.model.config().mixer);
    let tensor = |l: usize, name: &str, series: &Series, is_weight: bool| match fit {
        None => named(r, l, name, series),
        Some(_) if is_weight => base64(series, false),
        Some(fit) => {
            let kept = fit.cut(fit::axes(view, name), series);
            base64(&kept, fit.is_half(kept.data.len()))
        }
    };
    let about = [std::slice::from_ref(&source.about), &source.doubts].concat().join(" ");
    let mut run = shown::run(&source.name, &about, &source.model, trace, input, &tensor);
    if let Some(equations) = run["equations"].as_array_mut() {
        for equation in equations {
            let symbols = math(equation[0].as_str().unwrap_or_default());
            equation.as_array_mut().into_iter().for_each(|all| all.push(symbols.clone().into()));
        }
    }
    if let Some(fit) = fit {
        let about = run["about"].as_str().unwrap_or_default().to_string() + &fit.about(trace, view);
        run["about"] = about.into();
    } else {
        run["logits"] = format!("run{}.logits", r + 1).into();
    }
    run
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
