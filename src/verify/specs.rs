//! The ops that a fixture may name: their tensors, and the forms in which this crate computes them.

use super::{Fixture, functions, layers, zoo};
use crate::{
    autograd::{Tape, Var},
    error::Result,
    models::{Form, delta_net, gated_delta_net, gpt, linear_transformer, lru, quasi_lstm},
    ops::{attention, scan},
    tensor::{DType, Shape},
};
use std::{collections::BTreeMap, ops::Index};

/// A fixture's inputs on a tape: `x["q"]`.
pub struct Inputs<'t> {
    pub tape: &'t Tape,
    pub dtype: DType,
    pub vars: BTreeMap<String, Var<'t>>,
}

impl<'t> Inputs<'t> {
    /// The input, or zeros where it is absent.
    pub fn or_zeros(&self, name: &str, shape: impl Into<Shape>) -> Var<'t> {
        self.vars.get(name).copied().unwrap_or_else(|| self.tape.full(shape, self.dtype, 0.0))
    }
}

impl<'t> Index<&str> for Inputs<'t> {
    type Output = Var<'t>;
    fn index(&self, name: &str) -> &Var<'t> {
        &self.vars[name]
    }
}

/// Named outputs.
pub type Outputs<'t> = Vec<(&'static str, Var<'t>)>;

/// One form of an op, run on a fixture's inputs.
pub type Run<'f> = Box<dyn for<'t> Fn(&Inputs<'t>) -> Outputs<'t> + 'f>;

/// The forms of an op by name.
pub type Forms<'f> = Vec<(String, Run<'f>)>;

/// An op: its tensors (one letter per axis; a letter has the same size everywhere) and its forms.
pub struct Spec {
    pub op: &'static str,
    /// Required inputs, with their axes.
    pub inputs: &'static [(&'static str, &'static str)],
    /// Optional inputs.
    pub optional: &'static [(&'static str, &'static str)],
    pub outputs: &'static [(&'static str, &'static str)],
    /// The attributes that are read.
    pub attrs: &'static [&'static str],
    /// Inputs that appear only in sums and products (apart from a stabiliser): their rounding is a rounding of terms.
    /// "*": all inputs.
    pub summed: &'static [&'static str],
    /// The axes of intermediate values that are larger than all inputs and outputs.
    pub largest: &'static [&'static str],
    pub forms: fn(&Fixture) -> Result<Forms<'_>>,
}

/// Every op but the optimisers and whole models.
pub fn specs() -> impl Iterator<Item = &'static Spec> {
    SPECS.iter().chain(layers::SPECS).chain(UNARY).chain(zoo::SPECS).chain(functions::SPECS)
}

/// The chunk sizes tried: one step, odd, powers of two, longer than most fixtures.
const CHUNKS: [usize; 5] = [1, 5, 16, 32, 64];

/// Tells the compiler that a closure's outputs live as long as the tape its inputs are on.
pub fn boxed<'f>(run: impl for<'t> Fn(&Inputs<'t>) -> Outputs<'t> + 'f) -> Run<'f> {
    Box::new(run)
}

pub fn forms<'f>(list: &[Form], run: impl for<'t> Fn(&Inputs<'t>, Form) -> Outputs<'t> + Clone + 'f) -> Forms<'f> {
    let mut all = vec![];
    for &form in list {
        let chunks = if form.with_steps(0) == form.with_steps(1) { &CHUNKS[..1] } else { &CHUNKS[..] };
        for form in chunks.iter().map(|&c| form.with_steps(c)) {
            let run = run.clone();
            all.push((form.to_string(), boxed(move |x| run(x, form))));
        }
    }
    all
}

/// The forms of a memory.
pub const SCANS: [Form; 3] = [Form::Recurrent, Form::Parallel, Form::Chunked(1)];

/// The forms of what is one scan.
pub const ONE_SCAN: [Form; 3] = [Form::Recurrent, Form::Parallel, Form::Scan(1)];

pub fn one<'f>(run: impl for<'t> Fn(&Inputs<'t>) -> Var<'t> + 'f, out: &'static str) -> Result<Forms<'f>> {
    Ok(vec![("op".into(), boxed(move |x| vec![(out, run(x))]))])
}

macro_rules! unary {
    ($($op:ident),*) => { &[$(Spec {
        op: stringify!($op),
        inputs: &[("x", "*")],
        optional: &[],
        outputs: &[("y", "*")],
        attrs: &[],
        summed: &[],
        largest: &[],
        forms: |_| one(|x| x["x"].$op(), "y"),
    }),*] };
}

/// The functions of one tensor.
pub const UNARY: &[Spec] = unary!(gelu_tanh, silu, softplus, sigmoid, tanh, elu, exp, log, sqrt, softmax, log_softmax);

/// The other ops.
pub const SPECS: &[Spec] = &[
    Spec {
        op: "l2_norm",
        inputs: &[("x", "*")],
        optional: &[],
        outputs: &[("y", "*")],
        attrs: &["eps"],
        summed: &[],
        largest: &[],
        forms: |f| {
            let eps = f.number_or("eps", 1e-12)?;
            one(move |x| x["x"].l2_norm(eps), "y")
        },
    },
    Spec {
        op: "layer_norm",
        inputs: &[("x", "*D"), ("w", "D")],
        optional: &[("b", "D")],
        outputs: &[("y", "*D")],
        attrs: &["eps"],
        summed: &["w", "b"],
        largest: &[],
        forms: |f| {
            let eps = f.number_or("eps", 1e-5)?;
            one(move |x| x["x"].layer_norm(x["w"], x.vars.get("b").copied(), eps), "y")
        },
    },
    Spec {
        op: "rms_norm",
        inputs: &[("x", "*D"), ("w", "D")],
        optional: &[],
        outputs: &[("y", "*D")],
        attrs: &["eps"],
        summed: &["w"],
        largest: &[],
        forms: |f| {
            let eps = f.number_or("eps", 1e-6)?;
            one(move |x| x["x"].rms_norm(x["w"], eps), "y")
        },
    },
    Spec {
        op: "linear",
        inputs: &[("x", "*I"), ("w", "OI")],
        optional: &[("b", "O")],
        outputs: &[("y", "*O")],
        attrs: &[],
        summed: &["*"],
        largest: &[],
        forms: |_| one(|x| x["x"].linear(x["w"], x.vars.get("b").copied()), "y"),
    },
    Spec {
        op: "causal_conv1d",
        inputs: &[("x", "BTD"), ("w", "DW")],
        optional: &[("b", "D")],
        outputs: &[("y", "BTD")],
        attrs: &["width"],
        summed: &["*"],
        largest: &["BWD"],
        forms: |f| {
            f.agrees("width", &f.tensor("in.w")?.shape().last().into())?;
            one(
                |x| {
                    let ([b, _, d], [_, w]) = (x["x"].dims(), x["w"].dims());
                    let past = x.tape.full([b, w.max(1) - 1, d], x.dtype, 0.0);
                    x["x"].causal_conv1d(x["w"], x.vars.get("b").copied(), past)
                },
                "y",
            )
        },
    },
    Spec {
        op: "embedding",
        inputs: &[("ids", "*"), ("w", "VD")],
        optional: &[],
        outputs: &[("y", "*D")],
        attrs: &[],
        summed: &["w"],
        largest: &[],
        forms: |f| {
            f.within("in.ids", f.tensor("in.w")?.shape().at(0), None)?;
            one(|x| x["w"].embedding(x["ids"]), "y")
        },
    },
    Spec {
        op: "cross_entropy",
        inputs: &[("logits", "BTC"), ("targets", "BT")],
        optional: &[],
        outputs: &[("loss", "")],
        attrs: &["ignore_index", "label_smoothing", "reduction"],
        summed: &[],
        largest: &[],
        forms: |f| {
            let ignore = f.integer_or("ignore_index", -100)?;
            let smoothing = f.number_or("label_smoothing", 0.0)?;
            if !(0.0..=1.0).contains(&smoothing) {
                return Err(f.bad(format!("attribute 'label_smoothing' is {smoothing}: expected a number in 0..=1")));
            }
            let reduction = f.word("reduction", "mean")?;
            if reduction != "mean" {
                let shown = crate::error::brief(&reduction, 60);
                return Err(f.bad(format!("attribute 'reduction' is '{shown}': expected mean")));
            }
            f.within("in.targets", f.tensor("in.logits")?.shape().last(), Some(ignore))?;
            one(move |x| x["logits"].cross_entropy_smoothed(x["targets"], ignore, smoothing), "loss")
        },
    },
    Spec {
        op: "softmax_attention",
        inputs: &[("q", "BTHK"), ("k", "BTHK"), ("v", "BTHV")],
        optional: &[],
        outputs: &[("o", "BTHV")],
        attrs: &["scale"],
        summed: &["v"],
        largest: &["BHTT", "BHTTK", "BHTTV"],
        forms: |f| {
            let scale = f.number("scale")?;
            Ok(forms(&[Form::Recurrent, Form::Parallel, Form::Fused], move |x, form| {
                let (q, k, v) = (x["q"], x["k"], x["v"]);
                let o = match form {
                    Form::Recurrent => gpt::recurrent(q, k, v, scale),
                    Form::Parallel => gpt::parallel(q, k, v, scale),
                    _ => attention::causal_attention(q, k, v, scale),
                };
                vec![("o", o)]
            }))
        },
    },
    Spec {
        op: "linear_attention",
        inputs: &[("q", "BTHK"), ("k", "BTHK"), ("v", "BTHV")],
        optional: &[("s0", "BHKV"), ("z0", "BHK")],
        outputs: &[("o", "BTHV"), ("s", "BHKV")],
        attrs: &["scale", "normalize", "eps"],
        summed: &["*"],
        largest: &["BTHKV", "BHTT"],
        forms: |f| {
            let scale = f.number("scale")?;
            let eps =
                if f.flag("normalize", false)? { Some(f.number_or("eps", linear_transformer::EPS)?) } else { None };
            Ok(forms(&SCANS, move |x, form| {
                let (q, k, v) = (x["q"], x["k"], x["v"]);
                let ([b, _, h, n], value) = (k.dims(), v.shape().last());
                let z = eps.map(|eps| (x.or_zeros("z0", [b, h, n]), eps));
                let mut m = linear_transformer::Memory { s: x.or_zeros("s0", [b, h, n, value]), z };
                let o = linear_transformer::attention([q, k, v], &mut m, scale, form);
                vec![("o", o), ("s", m.s)]
            }))
        },
    },
    Spec {
        op: "delta_rule",
        inputs: &[("q", "BTHK"), ("k", "BTHK"), ("v", "BTHV"), ("beta", "BTH")],
        optional: &[("s0", "BHKV")],
        outputs: &[("o", "BTHV"), ("s", "BHKV")],
        attrs: &["scale"],
        summed: &["*"],
        largest: &["BTHKV", "BHTT"],
        forms: |f| {
            let scale = f.number("scale")?;
            Ok(forms(&SCANS, move |x, form| {
                let (q, k, v, beta) = (x["q"], x["k"], x["v"], x["beta"]);
                let ([b, _, h, n], value) = (k.dims(), v.shape().last());
                let s0 = x.or_zeros("s0", [b, h, n, value]);
                let (o, s) = delta_net::sequence([q, k, v, beta], s0, scale, form);
                vec![("o", o), ("s", s)]
            }))
        },
    },
    Spec {
        op: "gated_delta_rule",
        inputs: &[("q", "BTHK"), ("k", "BTHK"), ("v", "BTHV"), ("beta", "BTH"), ("g", "BTH")],
        optional: &[("s0", "BHKV")],
        outputs: &[("o", "BTHV"), ("s", "BHKV")],
        attrs: &["scale"],
        summed: &["q", "k", "v", "beta", "s0"],
        largest: &["BTHKV", "BHTT"],
        forms: |f| {
            let scale = f.number("scale")?;
            Ok(forms(&SCANS, move |x, form| {
                let (q, k, v, beta, g) = (x["q"], x["k"], x["v"], x["beta"], x["g"]);
                let ([b, _, h, n], value) = (k.dims(), v.shape().last());
                let s0 = x.or_zeros("s0", [b, h, n, value]);
                let (o, s) = gated_delta_net::sequence([q, k, v, beta, g], s0, scale, form);
                vec![("o", o), ("s", s)]
            }))
        },
    },
    Spec {
        op: "linear_scan",
        inputs: &[("a", "BTD"), ("b", "BTD")],
        optional: &[("h0", "BD")],
        outputs: &[("h", "BTD")],
        attrs: &[],
        summed: &["*"],
        largest: &[],
        forms: |_| {
            Ok(forms(&ONE_SCAN, |x, form| {
                let (a, b) = (x["a"], x["b"]);
                let [batch, _, d] = a.dims();
                let h0 = x.or_zeros("h0", [batch, d]);
                let h = match form {
                    Form::Recurrent => quasi_lstm::pool(a, b, h0).0,
                    Form::Scan(c) => scan::linear_scan(a, b, h0, c).0,
                    _ => scan::linear_scan_parallel(a, b, h0).0,
                };
                vec![("h", h)]
            }))
        },
    },
    Spec {
        op: "lru_scan",
        inputs: &[("lambda_re", "D"), ("lambda_im", "D"), ("x_re", "BTD"), ("x_im", "BTD")],
        optional: &[("h0_re", "BD"), ("h0_im", "BD")],
        outputs: &[("h_re", "BTD"), ("h_im", "BTD")],
        attrs: &[],
        summed: &["*"],
        largest: &[],
        forms: |_| {
            Ok(forms(&ONE_SCAN, |x, form| {
                let (lambda, u) = ((x["lambda_re"], x["lambda_im"]), (x["x_re"], x["x_im"]));
                let [batch, _, d] = u.0.dims();
                let h0 = (x.or_zeros("h0_re", [batch, d]), x.or_zeros("h0_im", [batch, d]));
                let (h, _) = match form {
                    Form::Recurrent => lru::recurrent(lambda, u, h0),
                    Form::Scan(c) => lru::scan(lambda, u, h0, c),
                    _ => lru::parallel(lambda, u, h0),
                };
                vec![("h_re", h.0), ("h_im", h.1)]
            }))
        },
    },
];
