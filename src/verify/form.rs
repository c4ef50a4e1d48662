//! Running one form of an op on a fixture's inputs.

use super::{
    Eval, Fixture, Named, Place, Rounding, published,
    specs::{Inputs, Run},
};
use crate::{
    autograd::Tape,
    error::{Error, Result, quietly},
    tensor::{DType, Tensor},
};

/// A form as a function from inputs to outputs and gradients.
pub fn eval<'f>(f: &'f Fixture, run: Run<'f>) -> Eval<'f> {
    Box::new(move |inputs, place, rounding| results(f, &run, inputs, place, rounding))
}

fn results(
    f: &Fixture,
    run: &Run,
    inputs: &Named,
    Place { device, dtype, kernels }: Place,
    rounding: Option<&mut Rounding>,
) -> Result<Named> {
    let tape = Tape::open(device).map_err(Error::Device)?.with_kernels(kernels.clone());
    let place = |t: &Tensor| if t.dtype() == DType::I32 { tape.constant(t) } else { tape.leaf(&t.cast(dtype)) };
    let vars = inputs.iter().map(|(name, t)| (name.clone(), place(t))).collect();
    let x = Inputs { tape: &tape, dtype, vars };
    // Sizes that do not fit panic, with a message.
    let outputs = quietly(|| run(&x)).map_err(|why| f.unfit(why))?;
    let known: Vec<&str> = outputs.iter().map(|o| o.0).collect();
    let (mut found, mut seeds) = (Named::new(), vec![]);
    for (full, kind, name) in f.tensors.keys().filter_map(|n| n.split_once('.').map(|(kind, name)| (n, kind, name))) {
        if kind != "out" && kind != "ct" {
            continue;
        }
        let Some(&(_, y)) = outputs.iter().find(|o| o.0 == name) else {
            return Err(f.bad(format!("tensor '{full}': op '{}' has the outputs {}", f.op, known.join(", "))));
        };
        let t = f.shaped(full, y.shape())?;
        if kind == "out" {
            found.insert(full.clone(), y.value().to_host());
        } else {
            seeds.push((y, t.cast(dtype)));
        }
    }
    // The gradients of a whole model are of its loss; there are no cotangents.
    if let Some(&(_, loss)) = outputs.iter().find(|o| o.0 == "loss" && f.op == published::OP) {
        seeds = vec![(loss, Tensor::full(loss.shape(), dtype, 1.0))];
    }
    let grads: Vec<&str> = f.tensors.keys().filter_map(|n| n.strip_prefix("grad.")).collect();
    if grads.is_empty() {
        return Ok(found);
    }
    if seeds.is_empty() {
        return Err(f.bad("there are gradients ('grad.…') but no cotangent ('ct.…') that they belong to"));
    }
    let backward = || match rounding {
        None => tape.backward_from(seeds),
        Some(r) => {
            let seeds: Vec<_> = seeds.into_iter().map(|(y, ct)| (y, r.rounded(&ct))).collect();
            tape.backward_with(seeds, |g| *g = r.rounded(g));
        }
    };
    quietly(backward).map_err(|why| f.unfit(why))?;
    for name in grads {
        let zero = || Tensor::zeros(x.vars[name].shape(), dtype);
        found.insert(format!("grad.{name}"), x.vars[name].grad().map_or_else(zero, |g| g.to_host()));
    }
    Ok(found)
}
