//! The ops of the mixers that are one of two memories: gated linear attention, or the gated delta rule with its own
//! erase key.

use super::{
    Fixture,
    specs::{Forms, Inputs, Outputs, SCANS, Spec, forms},
};
use crate::{
    autograd::Var,
    error::Result,
    models::{
        Bound, Form, Init, Mixer, ModelConfig, State, hgrn2, kda, lightnet, mamba2, mamba3,
        memories::{constant, erasing, gated},
        retnet, run, rwkv7,
    },
    ops::{
        erase_write::{last_of, only},
        words::insert_axis,
    },
    tensor::{DType, Shape},
};

/// A memory's op.
const MEMORY: Spec = Spec {
    op: "",
    inputs: &[],
    optional: &[("s0", "BHKV")],
    outputs: &[("o", "BTHV"), ("s", "BHKV")],
    attrs: &["scale"],
    summed: &["q", "k", "v", "p", "beta", "b", "w", "s0"],
    largest: &["BTHKV", "BHTT"],
    forms: |_| Ok(vec![]),
};

/// o and s in every form, of the inputs, the first state and the scale.
fn memory<'f>(
    f: &'f Fixture,
    run: impl for<'t> Fn(&Inputs<'t>, Var<'t>, f64, Form) -> (Var<'t>, Var<'t>) + Clone + 'f,
) -> Result<Forms<'f>> {
    memory_in(f, &SCANS, run)
}

/// The same in these forms.
fn memory_in<'f>(
    f: &'f Fixture,
    list: &[Form],
    run: impl for<'t> Fn(&Inputs<'t>, Var<'t>, f64, Form) -> (Var<'t>, Var<'t>) + Clone + 'f,
) -> Result<Forms<'f>> {
    let scale = f.number("scale")?;
    Ok(forms(list, move |x, form| {
        let query = x.vars.get("q").or(x.vars.get("r")).copied().unwrap_or(x["v"]);
        let ([b, _, h, k], v) = (query.dims(), x["v"].shape().last());
        let (o, s) = run(x, x.or_zeros("s0", [b, h, k, v]), scale, form);
        vec![("o", o), ("s", s)]
    }))
}

/// One number a head for all its channels.
fn column(x: Var<'_>) -> Var<'_> {
    insert_axis(x, 3)
}

/// [`erasing`] in several steps a token, which is read after the last: a chunk has so many tokens.
fn erasing_in_turn<'t>(x: [Var<'t>; 5], n: usize, s: Var<'t>, scale: f64, form: Form) -> (Var<'t>, Var<'t>) {
    let form = if let Form::Chunked(chunk) = form { Form::Chunked(n * chunk) } else { form };
    let (o, s) = erasing(x, s, scale, form);
    (last_of(o, n), s)
}

/// See [`SPECS`](super::specs::SPECS).
pub const SPECS: &[Spec] = &[
    Spec {
        op: "gla",
        inputs: &[("q", "BTHK"), ("k", "BTHK"), ("v", "BTHV"), ("g", "BTHK")],
        forms: |f| memory(f, |x, s, scale, form| gated(["q", "k", "v", "g"].map(|n| x[n]), s, scale, form)),
        ..MEMORY
    },
    Spec {
        op: "simple_gla",
        inputs: &[("q", "BTHK"), ("k", "BTHK"), ("v", "BTHV"), ("g", "BTH")],
        forms: |f| memory(f, |x, s, scale, form| gated([x["q"], x["k"], x["v"], column(x["g"])], s, scale, form)),
        ..MEMORY
    },
    Spec {
        op: "retention",
        inputs: &[("q", "BTHK"), ("k", "BTHK"), ("v", "BTHV")],
        forms: |f| {
            memory(f, |x, s, scale, form| {
                let [b, t, h, _] = x["q"].dims();
                let g = x.tape.full([b, t, h, 1], x.dtype, 0.0) + constant(x["q"], retnet::rates(h), &[h, 1]);
                gated([x["q"], x["k"], x["v"], g], s, scale, form)
            })
        },
        ..MEMORY
    },
    Spec {
        op: "hgrn2",
        inputs: &[("q", "BTHK"), ("f", "BTHK"), ("v", "BTHV")],
        attrs: &["scale", "lower_bound"],
        summed: &["q", "v", "s0"],
        forms: |f| {
            let bound = f.number_or("lower_bound", 0.0)?;
            if !(0.0..1.0).contains(&bound) {
                return Err(f.bad(format!("attribute 'lower_bound' is {bound}: expected a number in 0..1")));
            }
            memory(f, move |x, s, scale, form| {
                let log = |share: f64| x.tape.full([1], x.dtype, share.ln());
                let [k, g] = hgrn2::gates(x["f"], (bound > 0.0).then(|| [log(bound), log(1.0 - bound)]));
                gated([x["q"], k, x["v"], g], s, scale, form)
            })
        },
        ..MEMORY
    },
    Spec {
        op: "lightnet",
        inputs: &[("q", "BTHK"), ("k", "BTHK"), ("v", "BTHV")],
        optional: &[],
        outputs: &[("o", "BTHV")],
        summed: &["q", "v"],
        forms: |f| {
            let scale = f.number("scale")?;
            Ok(forms(&SCANS, move |x, form| {
                let ([b, _, h, k], v) = (x["k"].dims(), x["v"].shape().last());
                let s = x.tape.full([b, h, k, v], x.dtype, 0.0);
                vec![("o", lightnet::attention(["q", "k", "v"].map(|n| x[n]), &mut None, s, scale, form).0)]
            }))
        },
        ..MEMORY
    },
    Spec {
        op: "kda",
        inputs: &[("q", "BTHK"), ("k", "BTHK"), ("v", "BTHV"), ("g", "BTHK"), ("beta", "BTH")],
        forms: |f| {
            memory(f, |x, s, scale, form| kda::sequence(["q", "k", "v", "beta", "g"].map(|n| x[n]), s, scale, form))
        },
        ..MEMORY
    },
    Spec {
        op: "comba",
        inputs: &[("q", "BTHK"), ("k", "BTHK"), ("v", "BTHV"), ("p", "BTHK"), ("beta", "BTH"), ("g", "BTH")],
        forms: |f| {
            memory(f, |x, s, scale, form| {
                let beta = column(x["beta"]);
                erasing([x["q"], x["k"], beta * x["v"], beta * x["p"], column(x["g"])], s, scale, form)
            })
        },
        ..MEMORY
    },
    Spec {
        op: "gdn2",
        inputs: &[("q", "BTHK"), ("k", "BTHK"), ("v", "BTHV"), ("g", "BTHK"), ("b", "BTHK"), ("w", "BTHV")],
        forms: |f| {
            memory(f, |x, s, scale, form| {
                erasing([x["q"], x["k"], x["w"] * x["v"], x["b"] * x["k"], x["g"]], s, scale, form)
            })
        },
        ..MEMORY
    },
    Spec {
        op: "rwkv7",
        inputs: &[("r", "BTHK"), ("w", "BTHK"), ("k", "BTHK"), ("v", "BTHV"), ("a", "BTHK"), ("b", "BTHK")],
        summed: &["r", "k", "v", "a", "b", "s0"],
        forms: |f| {
            // The other forms divide a by e^w.
            let open = f.tensor("in.w")?.to_f64().iter().all(|&w| w > -80.0);
            memory_in(f, if open { &SCANS } else { &SCANS[..1] }, |x, s, scale, form| {
                rwkv7::sequence(["r", "w", "k", "v", "a", "b"].map(|n| x[n]), s, scale, form)
            })
        },
        ..MEMORY
    },
    Spec {
        op: "gated_delta_product",
        // M is T times the householders, which the op itself checks.
        inputs: &[("q", "BTHK"), ("k", "BMHK"), ("v", "BMHV"), ("beta", "BMH"), ("g", "BTH")],
        attrs: &["scale", "householders"],
        largest: &["BMHKV", "BHMM"],
        forms: |f| {
            let (n, t) = (f.size("householders")?, f.tensor("in.q")?.shape().at(1));
            let (k, want) = (f.tensor("in.k")?.shape(), n.checked_mul(t));
            if want != Some(k.at(1)) {
                let want = format!("householders = {n} for each of the {t} tokens of 'in.q'");
                return Err(f.bad(format!("tensor 'in.k' has shape {k}: expected {want}")));
            }
            memory(f, move |x, s, scale, form| {
                let beta = column(x["beta"]);
                // The gate belongs to the first step of a token, the query to the last.
                let (q, g) = (only(x["q"], n - 1, n), only(column(x["g"]), 0, n));
                let steps = [q, x["k"], beta * x["v"], beta * x["k"], g];
                erasing_in_turn(steps, n, s, scale, form)
            })
        },
        ..MEMORY
    },
    Spec {
        op: "mamba3",
        inputs: &[
            ("q", "BTHN"),
            ("k", "BTHN"),
            ("v", "BTHP"),
            ("a", "BTH"),
            ("dt", "BTH"),
            ("trap", "BTH"),
            ("q_bias", "HN"),
            ("k_bias", "HN"),
            ("angles", "BTHS"),
            ("d", "H"),
        ],
        optional: &[("angle0", "BHS"), ("s0", "BHPN"), ("k0", "BHN"), ("v0", "BHP")],
        outputs: &[("y", "BTHP"), ("s", "BHPN"), ("k_last", "BHN"), ("v_last", "BHP")],
        attrs: &[],
        summed: &["v", "d", "s0", "k0", "v0"],
        largest: &["BTHNP", "BHTT"],
        forms: |f| {
            let (q, angles) = (f.tensor("in.q")?.shape(), f.tensor("in.angles")?.shape());
            if 2 * angles.last() > q.last() {
                return Err(
                    f.bad(format!("tensor 'in.angles' has shape {angles}: there are {} channels to turn", q.last()))
                );
            }
            Ok(forms(&SCANS, mamba3_memory))
        },
    },
    Spec {
        op: "mamba2_layer",
        // F = 2 E + 2 G N + H, C = E + 2 G N.
        inputs: &[
            ("x", "BTD"),
            ("in_proj_weight", "FD"),
            ("conv1d_weight", "C1W"),
            ("conv1d_bias", "C"),
            ("dt_bias", "H"),
            ("A_log", "H"),
            ("D", "H"),
            ("norm_weight", "E"),
            ("out_proj_weight", "DE"),
        ],
        optional: &[],
        outputs: &[("y", "BTD")],
        attrs: &["heads", "head_dim", "d_state", "groups", "d_conv", "norm_eps"],
        summed: &["out_proj_weight"],
        largest: &["BTF", "BTF"],
        forms: mamba2_layer,
    },
    Spec {
        op: "rwkv7_time_mix",
        inputs: &[
            ("x", "BTD"),
            ("x_r", "11D"),
            ("x_w", "11D"),
            ("x_k", "11D"),
            ("x_v", "11D"),
            ("x_a", "11D"),
            ("x_g", "11D"),
            ("w0", "11D"),
            ("w1", "DP"),
            ("w2", "PD"),
            ("a0", "11D"),
            ("a1", "DQ"),
            ("a2", "QD"),
            ("g1", "DR"),
            ("g2", "RD"),
            ("k_k", "11D"),
            ("k_a", "11D"),
            ("r_k", "HK"),
            ("receptance_weight", "DD"),
            ("key_weight", "DD"),
            ("value_weight", "DD"),
            ("output_weight", "DD"),
            ("ln_x_weight", "D"),
            ("ln_x_bias", "D"),
        ],
        optional: &[("v_first", "BTD"), ("v0", "11D"), ("v1", "DS"), ("v2", "SD")],
        outputs: &[("y", "BTD"), ("v_first", "BTD")],
        attrs: &["head_size", "layer", "norm_eps"],
        summed: &["output_weight", "ln_x_bias"],
        largest: &["BTDK", "BHTT"],
        forms: rwkv7_time_mix,
    },
];

fn mamba3_memory<'t>(x: &Inputs<'t>, form: Form) -> Outputs<'t> {
    let ([b, _, h, n], [.., p], [.., s]) = (x["k"].dims(), x["v"].dims::<4>(), x["angles"].dims::<4>());
    let (s0, k0, v0) = (x.or_zeros("s0", [b, h, p, n]), x.or_zeros("k0", [b, h, n]), x.or_zeros("v0", [b, h, p]));
    let mut m = [s0.transpose(2, 3), x.or_zeros("angle0", [b, h, s]), k0, v0];
    let (q, k) = (x["q"] + x["q_bias"], x["k"] + x["k_bias"]);
    let theta = std::f64::consts::PI * x["angles"].tanh();
    let inputs = [q, k, x["v"], x["dt"], x["a"], x["trap"].sigmoid(), theta];
    let y = mamba3::sequence(inputs, &mut m, form) + x["d"].reshape([h, 1]) * x["v"];
    let [s, _, k, v] = m;
    vec![("y", y), ("s", s.transpose(2, 3)), ("k_last", k), ("v_last", v)]
}

fn mamba2_layer(f: &Fixture) -> Result<Forms<'_>> {
    let [heads, head_dim, state, groups, conv] =
        [f.size("heads")?, f.size("head_dim")?, f.size("d_state")?, f.size("groups")?, f.size("d_conv")?];
    let eps = f.number_or("norm_eps", 1e-5)?;
    let shape = |name: &str| f.tensor(&format!("in.{name}")).map(|t| t.shape());
    let (e, shared) = (heads.saturating_mul(head_dim), groups.saturating_mul(state).saturating_mul(2));
    let mixed = e.saturating_add(shared);
    for (name, axis, what, says) in [
        ("A_log", 0, "heads", heads),
        ("norm_weight", 0, "heads times head_dim", e),
        ("conv1d_weight", 0, "heads times head_dim + 2 groups times d_state", mixed),
        ("conv1d_weight", 2, "d_conv", conv),
        ("in_proj_weight", 0, "z, xBC and dt", mixed.saturating_add(e).saturating_add(heads)),
    ] {
        let has = shape(name)?;
        if has.at(axis) != says {
            return Err(f.bad(format!("tensor 'in.{name}' has shape {has}: its attributes make {what} {says}")));
        }
    }
    if heads % groups != 0 {
        return Err(f.bad(format!("attribute 'groups' is {groups}: expected a divisor of heads = {heads}")));
    }
    let config = ModelConfig { width: shape("x")?.last(), heads, head_dim, state, conv, ..ModelConfig::default() };
    let mut init = Init::new(0, None);
    let mix = std::sync::Arc::new(mamba2::Layer::in_groups(&config, groups, eps, &mut init));
    let params = init.finish(DType::F64);
    let entries: Vec<(String, Shape)> = params.entries().iter().map(|e| (e.name.clone(), e.shape)).collect();
    Ok(forms(&SCANS, move |x, form| {
        let p = Bound::new(entries.iter().map(|(name, shape)| x[name].reshape(*shape)).collect());
        let m: &dyn Mixer = mix.as_ref();
        let mut state = State::zero(m, x.tape, x["x"].shape().at(0), x.dtype);
        vec![("y", run(m, &p, x["x"], &mut state, form))]
    }))
}

fn rwkv7_time_mix(f: &Fixture) -> Result<Forms<'_>> {
    let (layer, eps) = (f.integer_or("layer", 0)?, f.number_or("norm_eps", 64e-5)?);
    let (r_k, x) = (f.tensor("in.r_k")?.shape(), f.tensor("in.x")?.shape());
    let [h, k] = [r_k.at(0), r_k.at(1)];
    f.agrees("head_size", &k.into())?;
    if h * k != x.last() {
        return Err(f.bad(format!("tensor 'in.r_k' has shape {r_k}: expected the channels of 'in.x', {x}, in heads")));
    }
    let later = ["v_first", "v0", "v1", "v2"].map(|name| format!("in.{name}"));
    if layer > 0 {
        later.iter().try_for_each(|name| f.tensor(name).map(drop))?;
    } else if let Some(name) = later.iter().find(|name| f.has(name)) {
        return Err(f.bad(format!("tensor '{name}': the first layer has no such thing")));
    }
    let mut init = Init::new(0, None);
    init.layer = usize::from(layer > 0);
    let config = ModelConfig { width: x.last(), heads: h, head_dim: k, ..ModelConfig::default() };
    let mut mixer = rwkv7::Layer::new(&config, &mut init)?;
    mixer.norm.eps = eps;
    let mixer = std::sync::Arc::new(mixer);
    let params = init.finish(DType::F64);
    let entries: Vec<(String, Shape)> = params.entries().iter().map(|e| (e.name.clone(), e.shape)).collect();
    Ok(forms(&SCANS, move |x, form| {
        // A vector has two axes of size 1 in front; the ranks of the low-rank maps are the fixture's own.
        let weight =
            |(name, shape): &(String, Shape)| if shape.rank() == 1 { x[name].reshape(*shape) } else { x[name] };
        let p = Bound::new(entries.iter().map(weight).collect());
        let m: &dyn Mixer = mixer.as_ref();
        let mut state = State::zero(m, x.tape, x["x"].shape().at(0), x.dtype);
        state.passed = x.vars.get("v_first").copied();
        let y = run(m, &p, x["x"], &mut state, form);
        let first = state.passed.map(|v| ("v_first", v));
        [("y", y)].into_iter().chain(first).collect()
    }))
}
