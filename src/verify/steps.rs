//! Ops in smaller steps than any form has, by which the floor is measured of those that cancel within one step: the slope
//! of a softmax is p (g − Σ p g), that of a cross-entropy p − y. And mLSTM without the slope of its stabiliser, which
//! takes from the input gate's gradient just what it adds to it.

use super::{
    Fixture,
    specs::{Inputs, Run, boxed},
};
use crate::{
    autograd::Var,
    error::Result,
    models::{at, head_first, mlstm, xlstm},
    tensor::Tensor,
};

/// The fixture's op, if there are such steps for it.
pub fn of(f: &Fixture) -> Result<Option<Run<'_>>> {
    Ok(Some(match f.op.as_str() {
        "softmax" => boxed(|x| vec![("y", softmax(x["x"]))]),
        "log_softmax" => boxed(|x| {
            let x = below(x["x"]);
            vec![("y", x - sum(x.exp()).log())]
        }),
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

/// A constant of x's type on its tape.
fn constant<'t>(x: Var<'t>, values: Vec<f64>, shape: &[usize]) -> Var<'t> {
    x.tape().constant(&Tensor::from_vec(values, shape).cast(x.dtype()))
}

/// x less the largest number of its row, which no result depends on.
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

/// q, k [B, T, H, K] and v [B, T, H, V], every token seeing those before it and itself.
fn attention<'t>(q: Var<'t>, k: Var<'t>, v: Var<'t>, scale: f64) -> Var<'t> {
    let t = q.shape().at(1);
    let mask = (0..t * t).map(|i| if i % t > i / t { f64::NEG_INFINITY } else { 0.0 }).collect();
    let scores = scale * head_first(q).matmul_t(head_first(k));
    head_first(softmax(scores + constant(q, mask, &[t, t])).matmul(head_first(v)))
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

/// [`mlstm::recurrent`] from nothing, with m as a constant.
fn mlstm<'t>(x: &Inputs<'t>, eps: f64) -> Var<'t> {
    let ([b, t, h, n], value) = (x["k"].dims(), x["v"].shape().last());
    let zero = |shape: &[usize]| x.tape.full(shape, x.dtype, 0.0);
    let (mut c, mut norm, mut m) =
        (zero(&[b, h, n, value]), zero(&[b, h, n]), x.tape.full([b, h], x.dtype, f64::NEG_INFINITY));
    let step = |j| {
        let [q, k, v, i, f] = ["q", "k", "v", "i", "f"].map(|name| at(x[name], j));
        let k = (n as f64).powf(-0.5) * k;
        let l = xlstm::log_sigmoid(f) + m;
        m = x.tape.constant(&xlstm::maximum(&[l, i]).value());
        let (i, f) = ((i - m).exp().reshape([b, h, 1]), (l - m).exp().reshape([b, h, 1]));
        c = f.reshape([b, h, 1, 1]) * c + (i * k).reshape([b, h, n, 1]) * v.reshape([b, h, 1, value]);
        norm = f * norm + i * k;
        let den = (norm * q).sum_axis(2, true);
        let den = xlstm::maximum(&[den, -den, (-m).exp().reshape([b, h, 1])]) + eps;
        c.t_matmul(q.reshape([b, h, n, 1])).reshape([b, 1, h, value]) / den.reshape([b, 1, h, 1])
    };
    let rows: Vec<Var> = (0..t).map(step).collect();
    if rows.is_empty() { x["v"] } else { Var::concat(&rows, 1) }
}
