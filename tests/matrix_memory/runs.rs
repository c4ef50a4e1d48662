//! The matrix memories and attention as functions of their inputs, and their results by kernels and by formulas.

use tapezoo::{
    autograd::{Gen, Kernels, Tape, Var},
    ops::{
        attention::causal_attention,
        delta::delta_rule,
        linear_attn::{linear_attention, linear_attention_normalized},
    },
    tensor::{DType, Tensor},
};

/// The results of an op and the gradients of its inputs.
pub struct Run {
    pub y: Vec<Vec<f64>>,
    pub dx: Vec<Vec<f64>>,
}

/// Runs `f` on `x` cast to `dtype`; `dy` are the cotangents of the results, where there are any.
pub fn run<F>(f: F, x: &[Tensor], dy: &[Option<Tensor>], dtype: DType) -> Run
where
    F: for<'t> Fn(&[Var<'t>]) -> Vec<Var<'t>>,
{
    run_by(Kernels::Fast, f, x, dy, dtype)
}

/// The same in double precision by the formulas of the ops, a step at a time: of these ops no kernel runs.
pub fn defined<F>(f: F, x: &[Tensor], dy: &[Option<Tensor>]) -> Run
where
    F: for<'t> Fn(&[Var<'t>]) -> Vec<Var<'t>>,
{
    let ops = ["delta_rule", "linear_attention", "causal_attention"];
    run_by(Kernels::Without(ops.map(String::from).into()), f, x, dy, DType::F64)
}

fn run_by<F>(kernels: Kernels, f: F, x: &[Tensor], dy: &[Option<Tensor>], dtype: DType) -> Run
where
    F: for<'t> Fn(&[Var<'t>]) -> Vec<Var<'t>>,
{
    let tape = Tape::default().with_kernels(kernels);
    tape.poison(true);
    let x: Vec<_> = x.iter().map(|x| tape.leaf(&x.cast(dtype))).collect();
    let y = f(&x);
    tape.backward_from(y.iter().zip(dy).filter_map(|(&y, dy)| Some((y, dy.as_ref()?.cast(dtype)))));
    let zeros = |x: &Var| vec![0.0; x.shape().len()];
    Run {
        y: y.iter().map(|y| y.value().to_f64()).collect(),
        dx: x.iter().map(|x| x.grad().map_or_else(|| zeros(x), |g| g.to_f64())).collect(),
    }
}

/// The largest difference, relative to the largest element (or 1).
pub fn error(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    let size = b.iter().fold(1.0, |m: f64, b| m.max(b.abs()));
    a.iter().zip(b).fold(0.0, |m: f64, (a, b)| if (a - b).is_nan() { f64::INFINITY } else { m.max((a - b).abs()) })
        / size
}

#[track_caller]
pub fn same(got: &Run, want: &Run, tolerance: f64, what: &str) {
    for (kind, got, want) in [("result", &got.y, &want.y), ("gradient", &got.dx, &want.dx)] {
        assert_eq!(got.len(), want.len());
        for (i, (got, want)) in got.iter().zip(want).enumerate() {
            let e = error(got, want);
            assert!(e <= tolerance, "{what}: {kind} {i} is off by {e:.1e}");
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Size {
    pub b: usize,
    pub t: usize,
    pub h: usize,
    pub k: usize,
    pub v: usize,
}

pub fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// q, k, v, beta in (0, 2), s0, with keys of length about 1, and the cotangents of o and s.
pub fn tensors(z: Size, seed: u64) -> (Vec<Tensor>, Vec<Option<Tensor>>) {
    let g = &mut Gen::new(seed);
    let Size { b, t, h, k, v } = z;
    let a = 1.5 / (k as f64).sqrt();
    let x = vec![
        g.range([b, t, h, k], -a, a),
        g.range([b, t, h, k], -a, a),
        g.normal([b, t, h, v]),
        g.range([b, t, h], 0.0, 2.0),
        g.normal([b, h, k, v]),
    ];
    (x, vec![Some(g.normal([b, t, h, v])), Some(g.normal([b, h, k, v]))])
}

pub fn delta(scale: f64, chunk: usize) -> impl for<'t> Fn(&[Var<'t>]) -> Vec<Var<'t>> {
    move |x| {
        let (o, s) = delta_rule(x[0], x[1], x[2], x[3], x[4], scale, chunk);
        vec![o, s]
    }
}

pub fn linear(scale: f64, chunk: usize) -> impl for<'t> Fn(&[Var<'t>]) -> Vec<Var<'t>> {
    move |x| {
        let (o, s) = linear_attention(x[0], x[1], x[2], x[3], scale, chunk);
        vec![o, s]
    }
}

pub fn normalized(scale: f64, eps: f64, chunk: usize) -> impl for<'t> Fn(&[Var<'t>]) -> Vec<Var<'t>> {
    move |x| {
        let (o, (s, z)) = linear_attention_normalized(x[0], x[1], x[2], (x[3], x[4]), scale, eps, chunk);
        vec![o, s, z]
    }
}

pub fn attention(scale: f64) -> impl for<'t> Fn(&[Var<'t>]) -> Vec<Var<'t>> {
    move |x| vec![causal_attention(x[0], x[1], x[2], scale)]
}

/// The ways to leave out cotangents.
pub fn masks(dy: &[Option<Tensor>]) -> Vec<Vec<Option<Tensor>>> {
    let keep = |a: bool, b: bool| vec![dy[0].clone().filter(|_| a), dy[1].clone().filter(|_| b)];
    vec![keep(true, true), keep(true, false), keep(false, true)]
}
