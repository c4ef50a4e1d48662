//! The ops that are whole layers, or cells with a state of several parts.

use super::{
    Fixture,
    specs::{ONE_SCAN, SCANS, Spec, forms},
};
use crate::{
    error::Result,
    models::{Bound, Form, Init, Mixer, ModelConfig, State, lstm, mamba, mlstm, run, slstm},
    tensor::{DType, Shape},
};

/// See [`SPECS`](super::specs::SPECS).
pub const SPECS: &[Spec] = &[
    Spec {
        op: "lstm",
        // E = 4 D; the op itself checks it.
        inputs: &[("x", "BTI"), ("w_ih", "EI"), ("w_hh", "ED"), ("b_ih", "E"), ("b_hh", "E")],
        optional: &[("h0", "BD"), ("c0", "BD")],
        outputs: &[("h", "BTD"), ("h_last", "BD"), ("c_last", "BD")],
        attrs: &["gates"],
        summed: &["*"],
        largest: &["BTE"],
        forms: |f| {
            f.agrees("gates", &"i,f,g,o".into())?;
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
        // J = K; the op itself checks it.
        inputs: &[("x", "BT4D"), ("r", "4HKJ"), ("b", "4D")],
        optional: &[],
        outputs: &[("h", "BTD"), ("c", "BD"), ("n", "BD"), ("m", "BD")],
        attrs: &["gates", "heads"],
        summed: &[],
        largest: &[],
        forms: |f| {
            f.agrees("gates", &"i,f,z,o".into())?;
            f.agrees("heads", &f.tensor("in.r")?.shape().at(1).into())?;
            Ok(forms(&[Form::Recurrent, Form::Fused], |x, form| {
                let [b, t, four, d] = x["x"].dims();
                let zero = x.tape.full([b, d], x.dtype, 0.0);
                let mut s = [zero; 5];
                let z = (x["x"] + x["b"]).reshape([b, t, four * d]);
                let h = slstm::sequence(z, x["r"], &mut s, form);
                let [_, c, n, m, _] = s;
                vec![("h", h), ("c", c), ("n", n), ("m", m)]
            }))
        },
    },
    Spec {
        op: "mlstm",
        inputs: &[("q", "BTHK"), ("k", "BTHK"), ("v", "BTHV"), ("i", "BTH"), ("f", "BTH")],
        optional: &[],
        outputs: &[("h", "BTHV")],
        attrs: &["eps"],
        summed: &["q", "k", "v"],
        largest: &["BTHKV", "BHTT"],
        forms: |f| {
            let eps = f.number_or("eps", mlstm::EPS)?;
            Ok(forms(&SCANS, move |x, form| {
                let ([b, _, h, n], value) = (x["k"].dims(), x["v"].shape().last());
                let zero = |shape: Shape| x.tape.full(shape, x.dtype, 0.0);
                let (c, gate) = (zero([b, h, n, value].into()), zero([b, h].into()));
                let mut s = [c, zero([b, h, n].into()), gate, gate];
                let (qkv, gates) = ([x["q"], x["k"], x["v"]], [x["i"], x["f"]]);
                let h = mlstm::sequence(qkv, gates, &mut s, eps, form);
                vec![("h", h)]
            }))
        },
    },
    Spec {
        op: "selective_scan",
        inputs: &[("u", "BTE"), ("delta", "BTE"), ("a", "EN"), ("b", "BTN"), ("c", "BTN")],
        optional: &[("d", "E"), ("delta_bias", "E"), ("z", "BTE"), ("h0", "BEN")],
        outputs: &[("y", "BTE"), ("h", "BEN")],
        attrs: &["delta_softplus"],
        summed: &["u", "b", "c", "d", "z", "h0"],
        largest: &["BTEN"],
        forms: |f| {
            let softplus = f.flag("delta_softplus", true)?;
            Ok(forms(&ONE_SCAN, move |x, form| {
                let (u, a, b, c) = (x["u"], x["a"], x["b"], x["c"]);
                let ([batch, _, e], n) = (u.dims(), a.shape().last());
                let mut dt = x["delta"];
                dt = x.vars.get("delta_bias").map_or(dt, |&bias| dt + bias);
                dt = if softplus { dt.softplus() } else { dt };
                let h0 = x.or_zeros("h0", [batch, e, n]);
                let (mut y, h) = mamba::sequence([u, dt, a, b, c], h0, 1.0, form);
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
        outputs: &[("y", "BTD")],
        attrs: &["d_state", "expand", "d_conv", "dt_rank"],
        summed: &["D", "out_proj_weight"],
        largest: &["BTEN", "BTF"],
        forms: |f| {
            let config = mamba_config(f)?;
            let mut init = Init::new(0, None);
            let mix = std::sync::Arc::new(mamba::Layer::new(&config, &mut init)?);
            let params = init.finish(DType::F64);
            let entries: Vec<(String, Shape)> = params.entries().iter().map(|e| (e.name.clone(), e.shape)).collect();
            Ok(forms(&ONE_SCAN, move |x, form| {
                let p = Bound::new(entries.iter().map(|(name, shape)| x[name].reshape(*shape)).collect());
                let m: &dyn Mixer = mix.as_ref();
                let mut state = State::zero(m, x.tape, x["x"].shape().at(0), x.dtype);
                vec![("y", run(m, &p, x["x"], &mut state, form))]
            }))
        },
    },
];

/// The sizes in the attributes, checked against the tensors.
fn mamba_config(f: &Fixture) -> Result<ModelConfig> {
    let shape = |name: &str| f.tensor(&format!("in.{name}")).map(|t| t.shape());
    let width = shape("x")?.last();
    let [e, n] = [shape("A_log")?.at(0), shape("A_log")?.at(1)];
    let [state, expand, conv, dt_rank] = [f.size("d_state")?, f.size("expand")?, f.size("d_conv")?, f.size("dt_rank")?];
    let sizes = [
        ("A_log", "d_state", n, Some(state)),
        ("A_log", "expand times the width of x", e, expand.checked_mul(width)),
        ("conv1d_weight", "d_conv", shape("conv1d_weight")?.last(), Some(conv)),
        ("dt_proj_weight", "dt_rank", shape("dt_proj_weight")?.last(), Some(dt_rank)),
        ("in_proj_weight", "2 expand times the width of x", shape("in_proj_weight")?.at(0), e.checked_mul(2)),
        (
            "x_proj_weight",
            "dt_rank + 2 d_state",
            shape("x_proj_weight")?.at(0),
            state.checked_mul(2).and_then(|n| n.checked_add(dt_rank)),
        ),
    ];
    for (name, what, has, says) in sizes {
        if says != Some(has) {
            let says = says.map_or("more than there are numbers".into(), |n| n.to_string());
            let has = shape(name)?;
            return Err(f.bad(format!("tensor 'in.{name}' has shape {has}: its attributes make {what} {says}")));
        }
    }
    Ok(ModelConfig { width, state, expand, conv, dt_rank, ..ModelConfig::default() })
}
