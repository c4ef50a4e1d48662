//! Fixtures of optimisers: a parameter after every step, from its start and the gradients.

use super::{Checked, Comparison, Fixture, distance, norm};
use crate::{
    tensor::{DType, Shape, Tensor},
    train::optimizer::{Adam, AdamConfig, Rule},
};

pub const OPS: [&str; 2] = ["adam", "adamw"];

pub fn check(f: &Fixture, dtype: DType) -> Checked {
    let p0 = f.tensor("in.p0")?;
    let grads = f.tensor("in.grads")?;
    let steps = grads.shape().dims().first().copied().unwrap_or(0);
    let all: Vec<usize> = [&[steps], p0.shape().dims()].concat();
    if all.len() > crate::tensor::MAX_RANK {
        return Err(f.bad(format!("tensor 'in.p0' has shape {}: expected at most four axes", p0.shape())));
    }
    let all = Shape::new(&all);
    f.shaped("in.grads", all)?;
    let theirs = f.shaped("out.p", all)?;
    let n = p0.len();
    let rule = if f.op == "adamw" { Rule::AdamW } else { Rule::Adam };
    let config = AdamConfig {
        rule,
        betas: f.pair("betas", [0.9, 0.999])?,
        eps: f.number_or("eps", 1e-8)?,
        weight_decay: f.number_or("weight_decay", if rule == Rule::AdamW { 0.01 } else { 0.0 })?,
    };
    let lr = f.number_or("lr", 1e-3)?;
    let mut p = p0.reshape([n]).cast(dtype);
    let mut adam = Adam::new(n, dtype, config);
    let mut path = vec![];
    for step in 0..steps {
        adam.step(lr, &mut p, &grads.window(step * n, [n]).cast(dtype), &[(0..n, true)]);
        path.extend(p.to_f64());
    }
    let (error, cancelled) = distance(&Tensor::from_vec(path, all).cast(dtype), theirs, norm(theirs));
    Ok(vec![Comparison { form: "op".into(), tensor: "out.p".into(), error, cancelled, slack: 1.0 }])
}
