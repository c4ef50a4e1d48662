//! Memories and attention that have one form: functions of [`models`](crate::models).

use super::{
    Fixture,
    specs::{Forms, ONE_SCAN, SCANS, Spec, boxed, forms, one},
};
use crate::{
    autograd::Var,
    error::Result,
    models::{
        Form, based, ema, fox, gsa, hedgehog, hopfield, lmu, log_linear, lssl, mesa, mom, ngram, path, s4d, titans, ttt,
    },
};

const QKV: &[(&str, &str)] = &[("q", "BTHK"), ("k", "BTHK"), ("v", "BTHV")];

/// Attention of q, k, v.
const ATTENTION: Spec = Spec {
    op: "",
    inputs: QKV,
    optional: &[],
    outputs: &[("o", "BTHV")],
    attrs: &["scale"],
    summed: &["v"],
    largest: &["BHTT", "BHTTK", "BHTTV"],
    forms: |_| Ok(vec![]),
};

/// The one form of an op with a scale.
fn scaled<'f>(
    f: &'f Fixture,
    run: impl for<'t> Fn(&super::specs::Inputs<'t>, f64) -> Var<'t> + 'f,
) -> Result<Forms<'f>> {
    let scale = f.number("scale")?;
    one(move |x| run(x, scale), "o")
}

/// The steps between the states that a scan keeps, of a form.
fn chunk(form: Form, t: usize) -> usize {
    if let Form::Scan(chunk) = form { chunk } else { t.max(1) }
}

/// See [`SPECS`](super::specs::SPECS).
pub const SPECS: &[Spec] = &[
    Spec {
        op: "forgetting_attention",
        inputs: &[("q", "BTHK"), ("k", "BTHK"), ("v", "BTHV"), ("g", "BTH")],
        forms: |f| scaled(f, |x, scale| fox::attention(x["q"], x["k"], x["v"], x["g"], scale)),
        ..ATTENTION
    },
    Spec {
        op: "path_attention",
        inputs: &[("q", "BTHK"), ("k", "BTHK"), ("v", "BTHV"), ("w", "BTHK"), ("beta", "BTH")],
        optional: &[("g", "BTH")],
        forms: |f| {
            scaled(f, |x, scale| {
                let g = x.or_zeros("g", x["beta"].shape());
                path::attention([x["q"], x["k"], x["v"], x["w"], x["beta"], g], scale)
            })
        },
        ..ATTENTION
    },
    Spec {
        op: "hopfield_attention",
        attrs: &["scale", "updates"],
        forms: |f| {
            let updates = f.integer_or("updates", 0)?;
            let Some(updates) = usize::try_from(updates).ok().filter(|&n| n <= 1000) else {
                return Err(f.bad(format!("attribute 'updates' is {updates}: expected a number from 0 to 1000")));
            };
            scaled(f, move |x, scale| hopfield::attention(x["q"], x["k"], x["v"], scale, updates))
        },
        ..ATTENTION
    },
    Spec {
        op: "based",
        attrs: &["scale", "eps"],
        forms: |f| {
            let eps = f.number_or("eps", 1e-6)?;
            scaled(f, move |x, scale| based::attention([x["q"], x["k"], x["v"]], None, scale, eps))
        },
        ..ATTENTION
    },
    Spec {
        op: "prefix_linear_attention",
        inputs: &[("q", "BTHK"), ("k", "BTHK"), ("v", "BTHV"), ("ke", "BEHK"), ("ve", "BEHV")],
        attrs: &["feature_map", "eps"],
        largest: &["BHTT", "BHTE"],
        forms: |f| {
            f.agrees("feature_map", &"taylor2".into())?;
            let eps = f.number_or("eps", 1e-12)?;
            one(
                move |x| {
                    let scale = (x["q"].shape().last() as f64).powf(-0.5);
                    based::attention([x["q"], x["k"], x["v"]], Some([x["ke"], x["ve"]]), scale, eps)
                },
                "o",
            )
        },
        ..ATTENTION
    },
    Spec {
        op: "hedgehog",
        // F is 2 Q, which the op itself has.
        inputs: &[("x", "BTHK"), ("w", "HKQ")],
        outputs: &[("y", "BTHF")],
        attrs: &[],
        summed: &[],
        largest: &[],
        forms: |_| one(|x| hedgehog::features(x["x"], x["w"]), "y"),
        ..ATTENTION
    },
    Spec {
        op: "gsa",
        inputs: &[("q", "BTHK"), ("k", "BTHK"), ("v", "BTHV"), ("s", "BTHM"), ("g", "BTHM")],
        optional: &[("sk0", "BHKM"), ("sv0", "BHMV")],
        outputs: &[("o", "BTHV"), ("sk", "BHKM"), ("sv", "BHMV")],
        largest: &["BTHKM", "BTHMV"],
        forms: |f| {
            let scale = f.number("scale")?;
            let run = boxed(move |x| {
                let ([b, _, h, k], m, v) = (x["k"].dims(), x["s"].shape().last(), x["v"].shape().last());
                let mut slots = [x.or_zeros("sk0", [b, h, k, m]), x.or_zeros("sv0", [b, h, m, v])];
                let o = gsa::attention(["q", "k", "v", "s", "g"].map(|n| x[n]), &mut slots, scale);
                vec![("o", o), ("sk", slots[0]), ("sv", slots[1])]
            });
            Ok(vec![("op".into(), run)])
        },
        ..ATTENTION
    },
    Spec {
        op: "abc",
        inputs: &[("q", "BTHK"), ("k", "BTHK"), ("v", "BTHV"), ("s", "BTHM")],
        largest: &["BTHKM", "BTHMV"],
        forms: |f| scaled(f, |x, scale| gsa::bounded(x["q"], x["k"], x["v"], x["s"], scale)),
        ..ATTENTION
    },
    Spec {
        op: "mesa",
        inputs: &[("q", "BTHK"), ("k", "BTHK"), ("v", "BTHV"), ("g", "BTH"), ("beta", "BTH"), ("lamb", "HK")],
        optional: &[("hkk0", "BHKK"), ("hkv0", "BHKV")],
        outputs: &[("o", "BTHV"), ("hkk", "BHKK"), ("hkv", "BHKV")],
        attrs: &[],
        largest: &["BTHKKK", "BTHKV"],
        forms: |_| {
            let run = boxed(|x| {
                let ([b, _, h, k], v) = (x["k"].dims(), x["v"].shape().last());
                let mut memory = [x.or_zeros("hkk0", [b, h, k, k]), x.or_zeros("hkv0", [b, h, k, v])];
                let o = mesa::read(["q", "k", "v", "g", "beta"].map(|n| x[n]), x["lamb"], &mut memory);
                vec![("o", o), ("hkk", memory[0]), ("hkv", memory[1])]
            });
            Ok(vec![("op".into(), run)])
        },
        ..ATTENTION
    },
    Spec {
        op: "titans_linear",
        inputs: &[("q", "BTHK"), ("k", "BTHK"), ("v", "BTHV"), ("theta", "BTH"), ("eta", "BTH"), ("alpha", "BTH")],
        optional: &[("s0", "BHKV"), ("m0", "BHKV")],
        outputs: &[("o", "BTHV"), ("s", "BHKV"), ("m", "BHKV")],
        summed: &["*"],
        largest: &["BTHKV", "BTHKV"],
        forms: |f| {
            let scale = f.number("scale")?;
            let run = boxed(move |x| {
                let ([b, _, h, k], v) = (x["k"].dims(), x["v"].shape().last());
                let mut memory = ["s0", "m0"].map(|name| x.or_zeros(name, [b, h, k, v]));
                let inputs = ["q", "k", "v", "theta", "eta", "alpha"].map(|n| x[n]);
                let o = titans::read(inputs, &mut memory, scale);
                vec![("o", o), ("s", memory[0]), ("m", memory[1])]
            });
            Ok(vec![("op".into(), run)])
        },
        ..ATTENTION
    },
    Spec {
        op: "ttt_linear",
        inputs: &[("q", "BTHK"), ("k", "BTHK"), ("v", "BTHK"), ("lr", "BTH"), ("row", "R"), ("w", "HK"), ("b", "HK")],
        optional: &[("s0", "BHKK"), ("c0", "BHK")],
        outputs: &[("o", "BTHK"), ("s", "BHKK"), ("c", "BHK")],
        attrs: &["mini_batch", "eps"],
        summed: &["q", "s0", "c0"],
        largest: &["BTHKK", "BTHR"],
        forms: |f| {
            f.agrees("mini_batch", &f.tensor("in.row")?.shape().last().into())?;
            let eps = f.number_or("eps", 1e-6)?;
            let run = boxed(move |x| {
                let [b, _, h, k] = x["k"].dims();
                let mut state = [x.or_zeros("s0", [b, h, k, k]), x.or_zeros("c0", [b, h, k])];
                let norm = ttt::Norm { w: x["w"], b: x["b"], eps };
                let o = ttt::read([x["q"], x["k"], x["v"]], x["lr"], x["row"], norm, &mut state);
                vec![("o", o), ("s", state[0]), ("c", state[1])]
            });
            Ok(vec![("op".into(), run)])
        },
    },
    Spec {
        op: "log_linear_attention",
        inputs: &[("q", "BTHK"), ("k", "BTHK"), ("v", "BTHV"), ("g", "BTH"), ("l", "BTHL")],
        summed: &["q", "k", "v", "l"],
        largest: &["BHTTL", "BHTT"],
        forms: |f| {
            let (l, t) = (f.tensor("in.l")?.shape(), f.tensor("in.q")?.shape().at(1));
            if l.last() < log_linear::levels(t) {
                let needed = log_linear::levels(t);
                return Err(f.bad(format!("tensor 'in.l' has shape {l}: {t} tokens have {needed} levels")));
            }
            scaled(f, |x, scale| log_linear::attention(["q", "k", "v", "g", "l"].map(|n| x[n]), scale))
        },
        ..ATTENTION
    },
    Spec {
        op: "mom",
        inputs: &[("q", "BTHK"), ("k", "BTMHK"), ("v", "BTMHV"), ("beta", "BTMH"), ("g", "BTMH"), ("router", "BTM")],
        attrs: &["scale", "topk"],
        summed: &["q", "k", "v", "beta"],
        largest: &["BTMHKV", "BMHTT"],
        forms: |f| {
            let (scale, topk) = (f.number("scale")?, f.size("topk")?);
            if topk == 0 || topk > f.tensor("in.router")?.shape().last() {
                let shape = f.tensor("in.router")?.shape();
                return Err(f.bad(format!("attribute 'topk' is {topk}: 'in.router' has shape {shape}")));
            }
            Ok(forms(&SCANS, move |x, form| {
                let inputs = ["q", "k", "v", "beta", "g", "router"].map(|n| x[n]);
                vec![("o", mom::read(inputs, topk, scale, form))]
            }))
        },
        ..ATTENTION
    },
    Spec {
        op: "multihead_ema",
        inputs: &[("x", "BTD"), ("delta", "DN"), ("alpha", "DN"), ("beta", "DN"), ("gamma", "DN"), ("omega", "D")],
        outputs: &[("y", "BTD")],
        attrs: &[],
        summed: &["x", "beta", "gamma", "omega"],
        largest: &["BTDN"],
        forms: |_| {
            Ok(forms(&ONE_SCAN[1..], |x, form| {
                let rates = ["delta", "alpha", "beta", "gamma"].map(|n| x[n]);
                vec![("y", ema::average(x["x"], rates, x["omega"], chunk(form, x["x"].shape().at(1))))]
            }))
        },
        ..ATTENTION
    },
    Spec {
        op: "s4d",
        inputs: &[
            ("u", "BTD"),
            ("log_dt", "D"),
            ("d", "D"),
            ("log_a_real", "DN"),
            ("a_imag", "DN"),
            ("c_re", "DN"),
            ("c_im", "DN"),
        ],
        outputs: &[("y", "BTD")],
        attrs: &[],
        summed: &["u", "d", "c_re", "c_im"],
        largest: &["BTDN", "BTDN"],
        forms: |_| {
            Ok(forms(&ONE_SCAN[1..], |x, form| {
                let (log_dt, d, log_a_real, a_imag) = (x["log_dt"], x["d"], x["log_a_real"], x["a_imag"]);
                let w = s4d::Weights { log_dt, d, log_a_real, a_imag, c_re: x["c_re"], c_im: x["c_im"] };
                vec![("y", s4d::filter(x["u"], w, chunk(form, x["u"].shape().at(1))))]
            }))
        },
        ..ATTENTION
    },
    Spec {
        op: "lssl",
        inputs: &[("u", "BTD"), ("log_dt", "D"), ("d", "D"), ("c", "DN")],
        outputs: &[("y", "BTD")],
        attrs: &["measure", "order", "gbt"],
        summed: &["u", "d", "c"],
        largest: &["BTDN", "DNN"],
        forms: |f| {
            f.agrees("measure", &"legs".into())?;
            f.agrees("order", &f.tensor("in.c")?.shape().last().into())?;
            let gbt = f.number_or("gbt", 0.5)?;
            one(move |x| lssl::filter(x["u"], x["log_dt"], x["d"], x["c"], gbt), "y")
        },
        ..ATTENTION
    },
    Spec {
        op: "lmu_memory",
        inputs: &[("u", "BTC")],
        outputs: &[("m", "BTCN")],
        attrs: &["order", "theta", "discretizer"],
        summed: &["*"],
        largest: &[],
        forms: |f| {
            let (n, theta, discretizer) = (f.size("order")?, f.number("theta")?, f.word("discretizer", "zoh")?);
            let elements = f.tensor("in.u")?.len().max(n).saturating_mul(n);
            super::shapes::fits(f, elements as u128)?;
            if !theta.is_finite() || theta <= 0.0 || !["zoh", "euler"].contains(&discretizer.as_str()) {
                let shown = crate::error::brief(&discretizer, 60);
                return Err(f.bad(format!(
                    "theta = {theta} and discretizer = '{shown}': expected more than 0, and zoh or euler"
                )));
            }
            one(move |x| lmu::memory(x["u"], n, theta, discretizer == "euler"), "m")
        },
        ..ATTENTION
    },
    Spec {
        op: "ngram_head",
        inputs: &[("ids", "BT"), ("h", "BTD")],
        outputs: &[("o", "BTD")],
        attrs: &["ngram"],
        summed: &["*"],
        largest: &["BTT"],
        forms: |f| {
            let n = f.size("ngram")?;
            one(move |x| ngram::read(x["ids"], x["h"], n), "o")
        },
        ..ATTENTION
    },
];
