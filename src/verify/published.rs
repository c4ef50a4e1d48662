//! Fixtures of whole published models: tokens and every parameter in, logits, loss and every gradient of the loss out.

use super::{
    Checked, Fixture, compare, fit_rest,
    specs::{Inputs, boxed},
};
use crate::{
    models::{
        Form,
        published::{self, Config, Mode, Pass},
    },
    tasks::IGNORE,
    tensor::{DType, Device},
};
use std::collections::BTreeMap;

pub const OP: &str = "published_model";

/// Check the parameters against the model that the attributes describe, then compare.
pub fn check(f: &Fixture, device: Device, dtype: DType) -> Checked {
    let config: Config = f.attributes()?;
    let params = published::parameters(&config, 0, DType::F64).map_err(|e| f.bad(e.to_string()))?;
    let mut inputs = BTreeMap::new();
    for e in params.entries() {
        let t = f.shaped(&format!("in.{}", e.name), e.shape)?;
        if t.dtype() == DType::I32 {
            return Err(f.bad(format!("tensor 'in.{}': expected floating-point numbers (F64)", e.name)));
        }
        inputs.insert(e.name.clone(), t.clone());
    }
    let shape = f.tensor("in.tokens")?.shape();
    if shape.rank() != 2 {
        return Err(f.bad(format!("tensor 'in.tokens' has shape {shape}: expected 2 axes, [B, T]")));
    }
    for name in ["tokens", "targets"] {
        let t = f.shaped(&format!("in.{name}"), shape)?;
        if t.dtype() != DType::I32 {
            return Err(f.bad(format!("tensor 'in.{name}': expected integers (I64)")));
        }
        inputs.insert(name.to_string(), t.clone());
    }
    let known: Vec<&str> = inputs.keys().map(String::as_str).collect();
    fit_rest(f, &inputs, &known)?;
    let mut found = vec![];
    for form in [Form::Recurrent, Form::Fused] {
        let model = boxed(|x: &Inputs| {
            let named = x.vars.clone();
            let tokens = x["tokens"];
            let state = &mut published::zero_state(&config, tokens.tape(), shape.at(0), dtype);
            let mut pass = Pass { mode: Mode::Training, form, state };
            let logits = match published::run(&config, &named, tokens, &mut pass) {
                Ok(y) => y.logits,
                Err(e) => panic!("{e}"),
            };
            vec![("logits", logits), ("loss", logits.cross_entropy(x["targets"], IGNORE))]
        });
        found.extend(compare(f, &inputs, device, dtype, form.kind(), &model)?);
    }
    Ok(found)
}
