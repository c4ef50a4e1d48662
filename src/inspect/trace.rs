//! A model run over one sequence, token by token, with every value that its mixers name.

use super::{
    view::{MIXER_INPUT, View},
    weights,
};
use crate::{
    autograd::{Kernels, Named, Tape},
    error::{Error, Result, quietly},
    models::{Form, Model},
    tensor::Tensor,
};
use std::collections::BTreeMap;

/// The values of a block at one step by name; a name may have several.
type Values = BTreeMap<String, Vec<Tensor>>;

/// A named value at every step.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// The shape at one step.
    pub shape: Vec<usize>,
    /// The elements, `[T, shape..]`.
    pub data: Vec<f32>,
}

impl Series {
    /// The number of elements per step.
    pub fn width(&self) -> usize {
        self.shape.iter().product()
    }

    /// The elements of a step.
    pub fn at(&self, t: usize) -> &[f32] {
        let n = self.width();
        &self.data[t * n..(t + 1) * n]
    }
}

/// The record of a run over a sequence.
#[derive(Clone, Debug, PartialEq)]
pub struct Trace {
    /// The values of each block by name: states, and what the mixer's step names.
    pub layers: Vec<BTreeMap<String, Series>>,
    /// The parameters of each block that the view's equations have, where they are not too many.
    pub weights: Vec<BTreeMap<String, Series>>,
    /// The logits `[T, classes]`.
    pub logits: Series,
}

/// Run a model over tokens, one at a time, as its recurrent form does.
///
/// # Errors
/// When the model is a published one (not all of them have a state), or the sequence is too long for it.
#[cfg(feature = "laboratory")]
pub fn trace(source: &super::source::Source, tokens: &[i32], bar: &indicatif::ProgressBar) -> Result<Trace> {
    trace_model(&source.model, &source.config.kernels, tokens, &|| bar.inc(1))
}

/// As [`trace`], of a model whose ops these kernels compute; `read` is called after each token.
///
/// # Errors
/// As there.
pub fn trace_model(model: &Model, kernels: &Kernels, tokens: &[i32], read: &dyn Fn()) -> Result<Trace> {
    let names = model.state_names();
    if names.is_empty() {
        let why = "a published model; these do not all have a state to show";
        return Err(Error::config(format!("{}: {why}; train one with --variant clean", model.config().mixer)));
    }
    let view = super::view::of(&model.config().mixer);
    quietly(|| run(model, kernels, tokens, &names, view, read)).map_err(Error::Config)
}

fn run(
    model: &Model,
    kernels: &Kernels,
    tokens: &[i32],
    states: &[&str],
    view: Option<&View>,
    read: &dyn Fn(),
) -> Trace {
    let mut tape = Tape::default().with_kernels(kernels.clone());
    let mut carried: Option<Vec<Vec<Tensor>>> = None;
    let mut steps: Vec<Vec<Values>> = Vec::new();
    let mut logits = Vec::new();
    tape.start_naming();
    for (t, &token) in tokens.iter().enumerate() {
        let params = model.params().bind_frozen(&tape);
        let mut state = match &carried {
            None => model.zero_state(&tape, 1),
            Some(tensors) => model.state_from(&tape, t, tensors),
        };
        let token = tape.constant(&Tensor::from_vec(vec![token], [1, 1]));
        let y = model.run(&params, token, &mut state, Form::Recurrent);
        logits.extend(y.value().to_f64().iter().map(|&x| x as f32));
        let named = tape.take_named();
        let mut step: Vec<Values> = Vec::new();
        for (l, block) in state.blocks().iter().enumerate() {
            let scope = format!("blocks.{l}.mixer");
            let mut values = Values::new();
            for Named { name, value, .. } in named.iter().filter(|n| n.scope == scope) {
                values.entry((*name).into()).or_default().push(copy(value));
            }
            // A cache and a convolution's window only repeat values of earlier steps.
            let kept = |name: &str| !name.starts_with("past") && !["keys", "values"].contains(&name);
            for (name, v) in states.iter().zip(&block.s).filter(|s| kept(s.0)) {
                values.insert((*name).into(), vec![copy(&v.value())]);
            }
            step.push(values);
        }
        steps.push(step);
        carried = Some(state.tensors().into_iter().map(|b| b.iter().map(copy).collect()).collect());
        drop((named, state));
        tape.reset();
        read();
    }
    let classes = logits.len() / tokens.len().max(1);
    let weights = weights::of(model, steps.first().map_or(0, Vec::len));
    for values in steps.iter_mut().flatten().filter(|_| weights.is_empty()) {
        values.remove(MIXER_INPUT.name);
    }
    let layers = (0..steps.first().map_or(0, Vec::len)).map(|l| layer(&steps, l, view, model.config().heads)).collect();
    Trace { layers, weights, logits: Series { shape: vec![classes], data: logits } }
}

/// A copy of a tensor in its own buffer, since the tape reuses buffers.
fn copy(t: &Tensor) -> Tensor {
    t.cast(t.dtype())
}

fn layer(steps: &[Vec<Values>], l: usize, view: Option<&View>, heads: usize) -> BTreeMap<String, Series> {
    let names: Vec<&String> = steps[0][l].keys().collect();
    let of = |name: &String| {
        let all: Vec<&[Tensor]> = steps.iter().filter_map(|s| s[l].get(name).map(Vec::as_slice)).collect();
        (name.clone(), series(&all, view.and_then(|v| v.axes(name)), heads))
    };
    let mut layer: BTreeMap<String, Series> = names.into_iter().map(of).collect();
    if let Some(view) = view {
        layer.extend(super::eigen::eigenvalues(view, &layer));
    }
    layer
}

/// The values of a name at every step, with the axes that the view gives. A value that grows from step to step is
/// padded with zeros.
fn series(steps: &[&[Tensor]], axes: Option<&str>, heads: usize) -> Series {
    let last = steps[steps.len() - 1];
    let mut shape = one_shape(last[0].shape().dims(), axes, heads);
    let row = shape.last().copied().unwrap_or(1);
    if axes.map_or(last.len() > 1, |axes| axes.starts_with('p')) {
        shape.insert(0, last.len());
    }
    let whole: usize = shape.iter().product();
    let mut data = Vec::new();
    for value in steps.iter().flat_map(|s| s.iter()) {
        let here = if value.len() * last.len() == whole { row } else { value.shape().last() };
        for chunk in value.to_f64().chunks(here.max(1)) {
            data.extend(chunk.iter().map(|&x| x as f32));
            data.extend(std::iter::repeat_n(0.0, row - here.min(row)));
        }
    }
    Series { shape, data }
}

/// The shape of one value without the batch axis, and without axes of size 1 until there are as many axes as letters (p
/// does not count: it numbers the values of one name in a step). Trailing axes are dropped first, unless axis h would
/// then not have the size `heads`.
#[doc(hidden)]
pub fn one_shape(dims: &[usize], axes: Option<&str>, heads: usize) -> Vec<usize> {
    let mut shape = dims.to_vec();
    if shape.len() > 1 {
        shape.remove(0);
    }
    let Some(axes) = axes.map(|axes| axes.trim_start_matches('p')) else { return shape };
    let strip = |mut shape: Vec<usize>, from_end: bool| {
        while shape.len() > axes.len() {
            let one = |n: &usize| *n == 1;
            let at = if from_end { shape.iter().rposition(one) } else { shape.iter().position(one) };
            let Some(at) = at else { break };
            shape.remove(at);
        }
        shape
    };
    let head = axes.find('h');
    let (back, front) = (strip(shape.clone(), true), strip(shape, false));
    if head.is_some_and(|i| back.get(i) != Some(&heads)) { front } else { back }
}
