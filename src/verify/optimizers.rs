//! Fixtures of optimisers: a parameter after every step, from its initial value and the gradients, by the update that
//! training uses on this device.

use super::{Case, Eval, Fixture, Named, Place, Rounding, shapes};
use crate::{
    error::{Error, Result},
    tasks::Batch,
    tensor::{Cx, DType, Shape, Tensor},
    train::{
        on_device::OnDevice,
        optimizer::{Adam, AdamConfig, Rule},
    },
};

pub const OPS: [&str; 2] = ["adam", "adamw"];

pub fn case(f: &Fixture) -> Result<Case<'_>> {
    f.know(&["lr", "betas", "eps", "weight_decay"])?;
    let (p0, grads) = (f.tensor("in.p0")?, f.tensor("in.grads")?);
    let steps = grads.shape().dims().first().copied().unwrap_or(0);
    let all: Vec<usize> = [&[steps], p0.shape().dims()].concat();
    if all.len() > crate::tensor::MAX_RANK {
        return Err(f.bad(format!("tensor 'in.p0' has shape {}: expected at most four axes", p0.shape())));
    }
    let all = Shape::new(&all);
    f.shaped("in.grads", all)?;
    f.shaped("out.p", all)?;
    let inputs: Named = ["p0", "grads"].into_iter().zip([p0, grads]).map(|(n, t)| (n.into(), t.clone())).collect();
    shapes::fit_rest(f, &inputs, &["p0", "grads"])?;
    if let Some(name) = f.tensors.keys().find(|n| !n.starts_with("in.") && *n != "out.p") {
        return Err(f.bad(format!("tensor '{name}': op '{}' has the output p and no gradients", f.op)));
    }
    shapes::fits(f, 0)?;
    let rule = if f.op == "adamw" { Rule::AdamW } else { Rule::Adam };
    let config = AdamConfig {
        rule,
        betas: f.pair("betas", [0.9, 0.999])?,
        eps: f.number_or("eps", 1e-8)?,
        weight_decay: f.number_or("weight_decay", if rule == Rule::AdamW { 0.01 } else { 0.0 })?,
    };
    let lr = f.number_or("lr", 1e-3)?;
    if let Some(beta) = config.betas.into_iter().find(|beta| !(0.0..1.0).contains(beta)) {
        return Err(f.bad(format!("attribute 'betas' has {beta}: expected two numbers from 0 to 1, without 1")));
    }
    let sizes = [("lr", lr), ("eps", config.eps), ("weight_decay", config.weight_decay)];
    if let Some((name, x)) = sizes.into_iter().find(|at| at.1 < 0.0) {
        return Err(f.bad(format!("attribute '{name}' is {x}: expected 0 or more")));
    }
    if let Some(name) = inputs.keys().find(|&name| inputs[name].dtype() == DType::I32) {
        return Err(f.bad(format!("tensor 'in.{name}' has whole numbers: expected float64")));
    }
    let run: Eval = Box::new(move |inputs: &Named, place: Place, _: Option<&mut Rounding>| {
        let path = path(&config, lr, &inputs["p0"], &inputs["grads"], place)?;
        Ok(Named::from([("out.p".into(), Tensor::from_vec(path, all))]))
    });
    Ok(Case { inputs, summed: &["p0"], forms: vec![("op".into(), run)], steps: None })
}

/// The parameter after every step, concatenated.
fn path(
    config: &AdamConfig,
    lr: f64,
    p0: &Tensor,
    grads: &Tensor,
    Place { device, dtype, .. }: Place,
) -> Result<Vec<f64>> {
    let (n, steps) = (p0.len(), grads.shape().at(0));
    let cx = Cx::open(device).map_err(Error::Device)?;
    let windows = [(0..n, true)];
    let mut p = p0.reshape([n]).cast(dtype);
    let mut adam = Adam::new(n, dtype, *config);
    // An update on a device expects a batch and its loss; these are empty stand-ins.
    let (batch, loss) = (Batch::new(1, 1), Tensor::zeros(Shape::scalar(), dtype).to_device(&cx));
    let mut on_device = if n == 0 { None } else { OnDevice::new(&cx, n, &windows) };
    if on_device.is_some() {
        p = p.to_device(&cx);
        adam.to_device(&cx);
    }
    let mut path = vec![];
    for step in 0..steps {
        let g = grads.window(step * n, [n]).cast(dtype);
        match &mut on_device {
            None => adam.step(lr, &mut p, &g, &windows),
            Some(on_device) => {
                let g = g.to_device(&cx);
                on_device.give(&cx, &batch, &adam.next(lr, 0.0));
                on_device.upload();
                on_device.judge(&g, &loss);
                on_device.update(&mut adam, &mut p, &g);
                on_device.download();
                on_device.told();
            }
        }
        path.extend(p.to_f64());
    }
    Ok(path)
}
