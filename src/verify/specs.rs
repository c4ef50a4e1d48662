//! The ops that a fixture may name: their tensors, and the forms in which this crate computes them.

use super::Fixture;
use crate::{
    autograd::{Tape, Var},
    error::Result,
    models::{
        Bound, Form, Init, Mixer, ModelConfig, State, delta_net, gated_delta_net, gpt, linear_transformer, lru, lstm,
        mamba, mlstm, quasi_lstm, run, slstm,
    },
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
    fn or_zeros(&self, name: &str, shape: impl Into<Shape>) -> Var<'t> {
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

/// An op: what tensors it has (an axis is a letter; a letter stands for one size throughout), and its forms.
pub struct Spec {
    pub op: &'static str,
    /// Inputs that must be there, with their axes.
    pub inputs: &'static [(&'static str, &'static str)],
    /// Inputs that may be absent.
    pub optional: &'static [(&'static str, &'static str)],
    pub forms: fn(&Fixture) -> Result<Forms<'_>>,
}

/// The chunks tried: one step, odd, powers of two, longer than most fixtures.
const CHUNKS: [usize; 5] = [1, 5, 16, 32, 64];

/// Tells the compiler that a closure's outputs live as long as the tape its inputs are on.
pub fn boxed<'f>(run: impl for<'t> Fn(&Inputs<'t>) -> Outputs<'t> + 'f) -> Run<'f> {
    Box::new(run)
}

fn forms<'f>(list: &[Form], run: impl for<'t> Fn(&Inputs<'t>, Form) -> Outputs<'t> + Clone + 'f) -> Forms<'f> {
    let mut all = vec![];
    for &form in list {
        let chunks = if matches!(form, Form::Chunked(_)) { &CHUNKS[..] } else { &CHUNKS[..1] };
        for &c in chunks {
            let form = if matches!(form, Form::Chunked(_)) { Form::Chunked(c) } else { form };
            let run = run.clone();
            all.push((form.to_string(), boxed(move |x| run(x, form))));
        }
    }
    all
}

const SCANS: [Form; 3] = [Form::Recurrent, Form::Parallel, Form::Chunked(1)];

fn one<'f>(run: impl for<'t> Fn(&Inputs<'t>) -> Var<'t> + 'f, out: &'static str) -> Result<Forms<'f>> {
    Ok(vec![("op".into(), boxed(move |x| vec![(out, run(x))]))])
}

macro_rules! unary {
    ($($op:ident),*) => { &[$(Spec {
        op: stringify!($op),
        inputs: &[("x", "*")],
        optional: &[],
        forms: |_| one(|x| x["x"].$op(), "y"),
    }),*] };
}

/// The functions of one tensor.
pub const UNARY: &[Spec] = unary!(gelu_tanh, silu, softplus, sigmoid, tanh, elu, exp, log, sqrt, softmax, log_softmax);

/// The other ops.
pub const SPECS: &[Spec] = &[
    Spec { op: "l2_norm", inputs: &[("x", "*")], optional: &[], forms: |_| one(|x| x["x"].l2_norm(1e-12), "y") },
    Spec {
        op: "layer_norm",
        inputs: &[("x", "*D"), ("w", "D")],
        optional: &[("b", "D")],
        forms: |f| {
            let eps = f.number_or("eps", 1e-5)?;
            one(move |x| x["x"].layer_norm(x["w"], x.vars.get("b").copied(), eps), "y")
        },
    },
    Spec {
        op: "rms_norm",
        inputs: &[("x", "*D"), ("w", "D")],
        optional: &[],
        forms: |f| {
            let eps = f.number_or("eps", 1e-6)?;
            one(move |x| x["x"].rms_norm(x["w"], eps), "y")
        },
    },
    Spec {
        op: "linear",
        inputs: &[("x", "*I"), ("w", "OI")],
        optional: &[("b", "O")],
        forms: |_| one(|x| x["x"].linear(x["w"], x.vars.get("b").copied()), "y"),
    },
    Spec {
        op: "causal_conv1d",
        inputs: &[("x", "BTD"), ("w", "DW")],
        optional: &[("b", "D")],
        forms: |_| {
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
        forms: |_| one(|x| x["w"].embedding(x["ids"]), "y"),
    },
    Spec {
        op: "cross_entropy",
        inputs: &[("logits", "BTC"), ("targets", "BT")],
        optional: &[],
        forms: |f| {
            let ignore = f.number_or("ignore_index", -100.0)?;
            let reduction = f.word("reduction", "mean")?;
            if reduction != "mean" {
                return Err(f.bad(format!("attribute 'reduction' is '{reduction}': expected mean")));
            }
            one(move |x| x["logits"].cross_entropy(x["targets"], ignore as i32), "loss")
        },
    },
    Spec {
        op: "softmax_attention",
        inputs: &[("q", "BTHK"), ("k", "BTHK"), ("v", "BTHV")],
        optional: &[],
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
        forms: |f| {
            let scale = f.number("scale")?;
            let eps =
                if f.flag("normalize", false)? { Some(f.number_or("eps", linear_transformer::EPS)?) } else { None };
            Ok(forms(&SCANS, move |x, form| {
                let (q, k, v) = (x["q"], x["k"], x["v"]);
                let ([b, _, h, n], value) = (k.dims(), v.shape().last());
                let z = eps.map(|eps| (x.or_zeros("z0", [b, h, n]), eps));
                let mut m = linear_transformer::Memory { s: x.or_zeros("s0", [b, h, n, value]), z };
                let o = match form {
                    Form::Recurrent => linear_transformer::recurrent(q, k, v, &mut m, scale),
                    Form::Chunked(c) => linear_transformer::chunked(q, k, v, &mut m, scale, c),
                    _ => linear_transformer::parallel(q, k, v, &mut m, scale),
                };
                vec![("o", o), ("s", m.s)]
            }))
        },
    },
    Spec {
        op: "delta_rule",
        inputs: &[("q", "BTHK"), ("k", "BTHK"), ("v", "BTHV"), ("beta", "BTH")],
        optional: &[("s0", "BHKV")],
        forms: |f| {
            let scale = f.number("scale")?;
            Ok(forms(&SCANS, move |x, form| {
                let (q, k, v, beta) = (x["q"], x["k"], x["v"], x["beta"]);
                let ([b, _, h, n], value) = (k.dims(), v.shape().last());
                let s0 = x.or_zeros("s0", [b, h, n, value]);
                let (o, s) = match form {
                    Form::Recurrent => delta_net::recurrent(q, k, v, beta, s0, scale),
                    Form::Chunked(c) => delta_net::chunked(q, k, v, beta, s0, scale, c),
                    _ => delta_net::parallel(q, k, v, beta, s0, scale),
                };
                vec![("o", o), ("s", s)]
            }))
        },
    },
    Spec {
        op: "gated_delta_rule",
        inputs: &[("q", "BTHK"), ("k", "BTHK"), ("v", "BTHV"), ("beta", "BTH"), ("g", "BTH")],
        optional: &[("s0", "BHKV")],
        forms: |f| {
            let scale = f.number("scale")?;
            Ok(forms(&SCANS, move |x, form| {
                let (q, k, v, beta, g) = (x["q"], x["k"], x["v"], x["beta"], x["g"]);
                let ([b, _, h, n], value) = (k.dims(), v.shape().last());
                let s0 = x.or_zeros("s0", [b, h, n, value]);
                let all = gated_delta_net::Inputs { q, k, v, beta, g };
                let (o, s) = match form {
                    Form::Recurrent => gated_delta_net::recurrent(all, s0, scale),
                    Form::Chunked(c) => gated_delta_net::chunked(q, k, v, beta, g, s0, scale, c),
                    _ => gated_delta_net::parallel(all, s0, scale),
                };
                vec![("o", o), ("s", s)]
            }))
        },
    },
    Spec {
        op: "lstm",
        // E is 4 D, which the op itself checks.
        inputs: &[("x", "BTI"), ("w_ih", "EI"), ("w_hh", "ED"), ("b_ih", "E"), ("b_hh", "E")],
        optional: &[("h0", "BD"), ("c0", "BD")],
        forms: |_| {
            Ok(forms(&[Form::Recurrent, Form::Fused], |x, form| {
                let w = lstm::Weights { w_ih: x["w_ih"], w_hh: x["w_hh"], b_ih: x["b_ih"], b_hh: x["b_hh"] };
                let state = [x["x"].shape().at(0), x["w_hh"].shape().at(1)];
                let (h0, c0) = (x.or_zeros("h0", state), x.or_zeros("c0", state));
                let f = if form == Form::Recurrent { lstm::recurrent } else { lstm::fused };
                let (h, h_last, c_last) = f(w, x["x"], h0, c0);
                vec![("h", h), ("h_last", h_last), ("c_last", c_last)]
            }))
        },
    },
    Spec {
        op: "slstm",
        // J is K, which the op itself checks.
        inputs: &[("x", "BT4D"), ("r", "4HKJ"), ("b", "4D")],
        optional: &[],
        forms: |_| {
            Ok(forms(&[Form::Recurrent, Form::Fused], |x, form| {
                let [b, t, four, d] = x["x"].dims();
                let zero = x.tape.full([b, d], x.dtype, 0.0);
                let mut s = slstm::Cell { h: zero, c: zero, n: zero, m: zero, w: zero };
                let z = (x["x"] + x["b"]).reshape([b, t, four * d]);
                let f = if form == Form::Recurrent { slstm::recurrent } else { slstm::fused };
                let h = f(z, x["r"], &mut s);
                vec![("h", h), ("c", s.c), ("n", s.n), ("m", s.m)]
            }))
        },
    },
    Spec {
        op: "mlstm",
        inputs: &[("q", "BTHK"), ("k", "BTHK"), ("v", "BTHV"), ("i", "BTH"), ("f", "BTH")],
        optional: &[],
        forms: |f| {
            let eps = f.number_or("eps", mlstm::EPS)?;
            Ok(forms(&SCANS, move |x, form| {
                let ([b, _, h, n], value) = (x["k"].dims(), x["v"].shape().last());
                let zero = |shape: Shape| x.tape.full(shape, x.dtype, 0.0);
                let (c, gate) = (zero([b, h, n, value].into()), zero([b, h].into()));
                let mut s = mlstm::Memory { c, n: zero([b, h, n].into()), m: gate, w: gate };
                let (qkv, gates) = ([x["q"], x["k"], x["v"]], [x["i"], x["f"]]);
                let h = match form {
                    Form::Recurrent => mlstm::recurrent(qkv, gates, &mut s, eps),
                    Form::Chunked(c) => mlstm::chunked(qkv, gates, &mut s, eps, c),
                    _ => mlstm::parallel(qkv, gates, &mut s, eps),
                };
                vec![("h", h)]
            }))
        },
    },
    Spec {
        op: "linear_scan",
        inputs: &[("a", "BTD"), ("b", "BTD")],
        optional: &[("h0", "BD")],
        forms: |_| {
            Ok(forms(&SCANS, |x, form| {
                let (a, b) = (x["a"], x["b"]);
                let [batch, _, d] = a.dims();
                let h0 = x.or_zeros("h0", [batch, d]);
                let h = match form {
                    Form::Recurrent => quasi_lstm::pool(a, b, h0).0,
                    Form::Chunked(c) => scan::linear_scan(a, b, h0, c).0,
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
        forms: |_| {
            Ok(forms(&SCANS, |x, form| {
                let (lambda, u) = ((x["lambda_re"], x["lambda_im"]), (x["x_re"], x["x_im"]));
                let [batch, _, d] = u.0.dims();
                let h0 = (x.or_zeros("h0_re", [batch, d]), x.or_zeros("h0_im", [batch, d]));
                let (h, _) = match form {
                    Form::Recurrent => lru::recurrent(lambda, u, h0),
                    Form::Chunked(c) => lru::chunked(lambda, u, h0, c),
                    _ => lru::parallel(lambda, u, h0),
                };
                vec![("h_re", h.0), ("h_im", h.1)]
            }))
        },
    },
    Spec {
        op: "selective_scan",
        inputs: &[("u", "BTE"), ("delta", "BTE"), ("a", "EN"), ("b", "BTN"), ("c", "BTN")],
        optional: &[("d", "E"), ("delta_bias", "E"), ("z", "BTE"), ("h0", "BEN")],
        forms: |f| {
            let softplus = f.flag("delta_softplus", true)?;
            Ok(forms(&SCANS, move |x, form| {
                let (u, a, b, c) = (x["u"], x["a"], x["b"], x["c"]);
                let ([batch, _, e], n) = (u.dims(), a.shape().last());
                let mut dt = x["delta"];
                dt = x.vars.get("delta_bias").map_or(dt, |&bias| dt + bias);
                dt = if softplus { dt.softplus() } else { dt };
                let h0 = x.or_zeros("h0", [batch, e, n]);
                let (mut y, h) = match form {
                    Form::Recurrent => mamba::recurrent(u, dt, a, b, c, h0, 1.0),
                    Form::Chunked(chunk) => mamba::chunked(u, dt, a, b, c, h0, 1.0, chunk),
                    _ => mamba::parallel(u, dt, a, b, c, h0, 1.0),
                };
                y = x.vars.get("d").map_or(y, |&d| y + d * u);
                y = x.vars.get("z").map_or(y, |z| y * z.silu());
                vec![("y", y), ("h", h)]
            }))
        },
    },
    Spec {
        op: "mamba_layer",
        // F = 2 E, G = dt_rank + 2 d_state.
        inputs: &[
            ("x", "BTD"),
            ("in_proj_weight", "FD"),
            ("conv1d_weight", "E1W"),
            ("conv1d_bias", "E"),
            ("x_proj_weight", "GE"),
            ("dt_proj_weight", "ER"),
            ("dt_proj_bias", "E"),
            ("A_log", "EN"),
            ("D", "E"),
            ("out_proj_weight", "DE"),
        ],
        optional: &[],
        forms: |f| {
            let config = ModelConfig {
                width: f.tensor("in.x")?.shape().last(),
                state: f.size("d_state")?,
                expand: f.size("expand")?,
                conv: f.size("d_conv")?,
                dt_rank: f.size("dt_rank")?,
                ..ModelConfig::default()
            };
            let mut init = Init::new(0, None);
            let mix = std::sync::Arc::new(mamba::Mix::new(&config, &mut init)?);
            let params = init.finish(DType::F64);
            for e in params.entries() {
                let t = f.tensor(&format!("in.{}", e.name))?;
                if t.len() != e.shape.len() {
                    return Err(f.bad(format!(
                        "tensor 'in.{}' has shape {}: its attributes make it {}",
                        e.name,
                        t.shape(),
                        e.shape
                    )));
                }
            }
            let entries: Vec<(String, Shape)> = params.entries().iter().map(|e| (e.name.clone(), e.shape)).collect();
            Ok(forms(&SCANS, move |x, form| {
                let p = Bound::new(entries.iter().map(|(name, shape)| x[name].reshape(*shape)).collect());
                let m: &dyn Mixer = mix.as_ref();
                let mut state = State::zero(m, x.tape, x["x"].shape().at(0), x.dtype);
                vec![("y", run(m, &p, x["x"], &mut state, form))]
            }))
        },
    },
];
