//! Ops in smaller steps than their forms, to measure the floor of ops whose gradient cancels within one step: a softmax
//! has p (g − Σ p g), a cross-entropy p − y, a norm the part orthogonal to its row. And mLSTM without the gradient of
//! its stabiliser, whose two contributions to the input gate's gradient cancel.

use super::{
    Fixture,
    specs::{Inputs, Run, boxed},
};
use crate::{
    autograd::Var,
    error::Result,
    models::{head_first, mlstm},
    ops::words::{log_sigmoid, maximum},
    tensor::Tensor,
};

/// The fixture's op in small steps, if there is such a version.
pub fn of(f: &Fixture) -> Result<Option<Run<'_>>> {
    Ok(Some(match f.op.as_str() {
        "softmax" => boxed(|x| vec![("y", softmax(x["x"]))]),
        "log_softmax" => boxed(|x| {
            let x = below(x["x"]);
            vec![("y", x - sum(x.exp()).log())]
        }),
        "l2_norm" => {
            let eps = f.number_or("eps", 1e-12)?;
            boxed(move |x| {
                let norm = sum(x["x"] * x["x"]).sqrt();
                vec![("y", x["x"] / maximum(&[norm, x.tape.full(norm.shape(), x.dtype, eps)]))]
            })
        }
        "rms_norm" => {
            let eps = f.number_or("eps", 1e-6)?;
            boxed(move |x| vec![("y", scaled(x["x"], eps) * x["w"])])
        }
        "layer_norm" => {
            let eps = f.number_or("eps", 1e-5)?;
            boxed(move |x| {
                let y = scaled(x["x"] - mean(x["x"]), eps) * x["w"];
                vec![("y", x.vars.get("b").map_or(y, |&b| y + b))]
            })
        }
        "softmax_attention" => {
            let scale = f.number("scale")?;
            boxed(move |x| vec![("o", attention(x["q"], x["k"], x["v"], scale))])
        }
        "cross_entropy" => {
            let (ignore, smoothing) = (f.integer_or("ignore_index", -100)?, f.number_or("label_smoothing", 0.0)?);
            boxed(move |x| vec![("loss", cross_entropy(x, ignore, smoothing))])
        }
        "mlstm" => {
            let eps = f.number_or("eps", mlstm::EPS)?;
            boxed(move |x| vec![("h", mlstm(x, eps))])
        }
        _ => return Ok(None),
    }))
}

/// Row sums along the last axis, which stays.
fn sum(x: Var<'_>) -> Var<'_> {
    x.sum_axis(x.shape().rank() - 1, true)
}

/// Row means along the last axis, which stays.
fn mean(x: Var<'_>) -> Var<'_> {
    x.mean_axis(x.shape().rank() - 1, true)
}

/// x / √(mean x² + ε)
fn scaled(x: Var<'_>, eps: f64) -> Var<'_> {
    x / (mean(x * x) + eps).sqrt()
}

/// A constant of x's type on its tape.
fn constant<'t>(x: Var<'t>, values: Vec<f64>, shape: &[usize]) -> Var<'t> {
    x.tape().constant(&Tensor::from_vec(values, shape).cast(x.dtype()))
}

/// x minus the largest element of its row, as a constant: no result depends on it.
fn below(x: Var<'_>) -> Var<'_> {
    let n = x.shape().last();
    let largest = |row: &[f64]| row.iter().fold(f64::NEG_INFINITY, |a, &b| a.max(b));
    let tops: Vec<f64> = x.value().to_f64().chunks(n.max(1)).map(largest).collect();
    let shape = x.shape();
    x - constant(x, tops, shape.with(shape.rank() - 1, 1).dims())
}

fn softmax(x: Var<'_>) -> Var<'_> {
    let e = below(x).exp();
    e / sum(e)
}

/// q, k [B, T, H, K] and v [B, T, H, V], where every token sees itself and the tokens before it.
fn attention<'t>(q: Var<'t>, k: Var<'t>, v: Var<'t>, scale: f64) -> Var<'t> {
    let scores = scale * head_first(q).matmul_t(head_first(k));
    head_first(softmax(scores + future(q.shape().at(1), q)).matmul(head_first(v)))
}

fn cross_entropy<'t>(x: &Inputs<'t>, ignore: i32, smoothing: f64) -> Var<'t> {
    let (logits, targets) = (x["logits"], x["targets"].value());
    let classes = logits.shape().last();
    let targets = targets.host::<i32>();
    let counted = targets.iter().filter(|&&t| t != ignore).count();
    let weight = |t: i32| if t == ignore { 0.0 } else { 1.0 / counted as f64 };
    let spread = smoothing / classes as f64;
    let mut y = vec![];
    for &t in targets {
        y.extend((0..classes).map(|c| weight(t) * (spread + if c as i32 == t { 1.0 - smoothing } else { 0.0 })));
    }
    let shape = logits.shape();
    let x = below(logits);
    let rows = constant(x, targets.iter().map(|&t| weight(t)).collect(), shape.with(shape.rank() - 1, 1).dims());
    (rows * sum(x.exp()).log()).sum() - (constant(x, y, shape.dims()) * x).sum()
}

/// mLSTM from an empty state, all positions at once. The weight of step s at step t is e^(F_t − F_s + ĩ_s − m_t) with m
/// a constant, so that a gate's gradient is a sum of its own terms.
fn mlstm<'t>(x: &Inputs<'t>, eps: f64) -> Var<'t> {
    let [b, t, h, n] = x["k"].dims();
    if t == 0 {
        return x["v"];
    }
    let [q, k, v] = ["q", "k", "v"].map(|name| head_first(x[name])); // [B, H, T, ..]
    let gates = |g: Var<'t>, shape: [usize; 4]| g.permute([0, 2, 1]).reshape(shape);
    let sums = log_sigmoid(x["f"]).cumsum(1);
    let (to, from) = (gates(sums, [b, h, t, 1]), gates(x["i"], [b, h, 1, t]) - gates(sums, [b, h, 1, t]));
    let exponents = to + from + future(t, q);
    let m = x.tape.constant(&exponents.max_axis(3, true).value());
    let p = (n as f64).powf(-0.5) * q.matmul_t(k) * (exponents - m).exp();
    let den = sum(p);
    head_first(p.matmul(v) / (maximum(&[den, -den, (-m).exp()]) + eps))
}

/// A constant [T, T]: 0 up to the diagonal, −∞ above.
fn future(t: usize, like: Var<'_>) -> Var<'_> {
    let mask = (0..t * t).map(|i| if i % t > i / t { f64::NEG_INFINITY } else { 0.0 }).collect();
    constant(like, mask, &[t, t])
}
