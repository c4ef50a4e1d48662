//! Fixtures of whole published models: from tokens and all parameters to logits, loss and all gradients of the loss.

use super::{
    Case, Fixture, form, shapes,
    specs::{Inputs, boxed},
};
use crate::{
    error::Result,
    models::{
        Form,
        published::{self, Config, Mode, Pass},
    },
    tasks::IGNORE,
    tensor::{DType, Shape},
};
use std::collections::BTreeMap;

pub const OP: &str = "published_model";

/// Check the parameters against the model that the attributes describe.
pub fn case(f: &Fixture) -> Result<Case<'_>> {
    let config: Config = f.attributes()?;
    let mut inputs = BTreeMap::new();
    for e in published::entries(&config, f.tensors.len()).map_err(|e| f.bad(e.to_string()))? {
        let full = format!("in.{}", e.name);
        let t = f.shaped(&full, e.shape)?;
        if t.dtype() == DType::I32 {
            return Err(f.bad(format!("tensor '{full}': expected floating-point numbers (F64)")));
        }
        inputs.insert(e.name.clone(), t.clone());
    }
    let shape = f.tensor("in.tokens")?.shape();
    if shape.rank() != 2 {
        return Err(f.bad(format!("tensor 'in.tokens' has shape {shape}: expected 2 axes, [B, T]")));
    }
    for (name, most) in [("tokens", config.num_input_classes), ("targets", config.output_size)] {
        let full = format!("in.{name}");
        let t = f.shaped(&full, shape)?;
        if t.dtype() != DType::I32 {
            return Err(f.bad(format!("tensor '{full}': expected integers (I64)")));
        }
        f.within(&full, most, (name == "targets").then_some(IGNORE))?;
        inputs.insert(name.to_string(), t.clone());
    }
    if let Some(name) = f.tensors.keys().find(|name| name.starts_with("ct.")) {
        return Err(f.bad(format!("tensor '{name}': expected no cotangents, as the gradients are those of the loss")));
    }
    let known: Vec<&str> = inputs.keys().map(String::as_str).collect();
    shapes::fit_rest(f, &inputs, &known)?;
    let [b, t] = [shape.at(0), shape.at(1)];
    let outputs = [("out.logits", Shape::from([b, t, config.output_size])), ("out.loss", Shape::scalar())];
    for (name, shape) in outputs.into_iter().filter(|o| f.has(o.0)) {
        f.shaped(name, shape)?;
    }
    shapes::fits(f, values(&config, b, t))?;
    let config = std::rc::Rc::new(config);
    let forms = [Form::Recurrent, Form::Fused].map(|form| {
        let config = config.clone();
        let model = boxed(move |x: &Inputs| {
            let named = x.vars.clone();
            let tokens = x["tokens"];
            let state = &mut published::zero_state(&config, tokens.tape(), b, x.dtype);
            let mut pass = Pass { mode: Mode::Training, form, state };
            let logits = match published::run(&config, &named, tokens, &mut pass) {
                Ok(y) => y.logits,
                Err(e) => panic!("{e}"),
            };
            vec![("logits", logits), ("loss", logits.cross_entropy(x["targets"], IGNORE))]
        });
        (form.kind().to_string(), form::eval(f, model))
    });
    Ok(Case { inputs, summed: &[], forms: forms.into(), steps: None })
}

/// About how many elements the layers hold: per token the widest activation, and a memory or a row of attention.
fn values(c: &Config, b: usize, t: usize) -> u128 {
    let wide = [c.h_dim, c.mlp_dim, c.d_model, c.output_size, c.n_heads * c.head_dim].into_iter().max().unwrap_or(1);
    let memory = match c.model.as_str() {
        "gpt" => c.n_heads * t,
        "mamba" => c.expand * c.h_dim * c.d_state,
        // Its products of gates compare every place of a block with every one before it.
        "quasi_lstm" => c.n_heads * c.head_dim * (c.block_length + 1),
        "linear_transformer" | "delta_net" => c.n_heads * c.head_dim * c.head_dim,
        _ => 0,
    };
    [b, t, c.n_layers, wide + memory].into_iter().fold(1, |all, n| u128::saturating_mul(all, n.max(1) as u128))
}
