//! Memories and attention that have one form: functions of [`models`](crate::models).

use super::{
    Fixture,
    shapes::{fits, soon},
    specs::{Forms, ONE_SCAN, SCANS, Spec, boxed, forms, one},
};
use crate::{
    autograd::Var,
    error::Result,
    models::{
        Form, based, ema, fox, gsa, hedgehog, hopfield, lmu, log_linear, lssl, memories, mesa, mom, ngram, path, s4d,
        titans, ttt,
    },
    ops::{norm::HeadNorm, words::finite},
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

/// The output of an op with a scale in several forms.
fn cached<'f>(
    f: &'f Fixture,
    list: &[Form],
    run: impl for<'t> Fn(&super::specs::Inputs<'t>, f64, Form) -> Var<'t> + Clone + 'f,
) -> Result<Forms<'f>> {
    let scale = f.number("scale")?;
    Ok(forms(list, move |x, form| vec![("o", run(x, scale, form))]))
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
        forms: |f| {
            cached(f, &[Form::Recurrent, Form::Parallel, Form::Fused], |x, scale, form| {
                fox::attention(["q", "k", "v", "g"].map(|n| x[n]), scale, form)
            })
        },
        ..ATTENTION
    },
    Spec {
        op: "path_attention",
        inputs: &[("q", "BTHK"), ("k", "BTHK"), ("v", "BTHV"), ("w", "BTHK"), ("beta", "BTH")],
        optional: &[("g", "BTH")],
        forms: |f| {
            cached(f, &SCANS, |x, scale, form| {
                let gates = x.vars.get("g").map(|g| g.permute([0, 2, 1]).segsum());
                let mut cache = [x["k"], x["v"]].map(|x| x.narrow(1, 0, 0));
                path::attention(["q", "k", "v", "w", "beta"].map(|n| x[n]), gates, &mut cache, scale, form)
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
            let shape = f.tensor("in.q")?.shape();
            let scores = shape.len() as u128 * shape.at(1) as u128;
            soon(f, scores * 2 * (updates as u128 + 1))?;
            cached(f, &[Form::Recurrent, Form::Parallel], move |x, scale, form| {
                hopfield::attention(["q", "k", "v"].map(|n| x[n]), scale, updates, form)
            })
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
            Ok(forms(&SCANS, move |x, form| {
                let ([b, _, h, k], m, v) = (x["k"].dims(), x["s"].shape().last(), x["v"].shape().last());
                let mut slots = [x.or_zeros("sk0", [b, h, k, m]), x.or_zeros("sv0", [b, h, m, v])];
                let o = gsa::attention(["q", "k", "v", "s", "g"].map(|n| x[n]), &mut slots, scale, form);
                vec![("o", o), ("sk", slots[0]), ("sv", slots[1])]
            }))
        },
        ..ATTENTION
    },
    Spec {
        op: "abc",
        inputs: &[("q", "BTHK"), ("k", "BTHK"), ("v", "BTHV"), ("s", "BTHM")],
        largest: &["BTHKM", "BTHMV"],
        forms: |f| cached(f, &SCANS, |x, scale, form| gsa::bounded(["q", "k", "v", "s"].map(|n| x[n]), scale, form)),
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
            let of = |name: &str| f.tensor(&format!("in.{name}")).map(|t| t.to_f64());
            // The other forms take logarithms of the gates, as single precision has them.
            let positive = of("eta")?.iter().all(|&eta| eta as f32 > 0.0)
                && of("alpha")?.iter().all(|&alpha| (alpha as f32) < 1.0);
            Ok(forms(if positive { &SCANS } else { &SCANS[..1] }, move |x, form| {
                let ([b, _, h, k], v) = (x["k"].dims(), x["v"].shape().last());
                let mut memory = ["s0", "m0"].map(|name| x.or_zeros(name, [b, h, k, v]));
                let ([q, k, v, theta, eta], keep) = (["q", "k", "v", "theta", "eta"].map(|n| x[n]), 1.0 - x["alpha"]);
                let o = if form == Form::Recurrent {
                    titans::recurrent([q, k, v, theta, eta, keep], &mut memory, scale)
                } else {
                    titans::read([q, k, v, theta, eta.log(), keep.log()], &mut memory, scale, form)
                };
                vec![("o", o), ("s", memory[0]), ("m", memory[1])]
            }))
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
            let list = [Form::Recurrent, Form::Parallel];
            Ok(forms(&list, move |x, form| {
                let ([b, t, h, k], row) = (x["k"].dims(), x["row"]);
                let zero = |name: &str, shape: [usize; 4]| x.or_zeros(name, shape);
                let (s, c) = (zero("s0", [b, h, k, k]), x.or_zeros("c0", [b, h, k]).reshape([b, h, 1, k]));
                let mut m = [s, c, zero("", [b, h, k, k]), zero("", [b, h, 1, k])];
                let norm = HeadNorm { w: x["w"], b: x["b"], eps };
                let o = ttt::read(["q", "k", "v", "lr"].map(|n| x[n]), (row, norm), &mut m, 0, form);
                let left = t % row.shape().at(0).max(1);
                if left > 0 {
                    m = ttt::taken(m, row.narrow(0, left - 1, 1));
                }
                vec![("o", o), ("s", m[0]), ("c", m[1].reshape([b, h, k]))]
            }))
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
            if topk > f.tensor("in.router")?.shape().last() {
                let shape = f.tensor("in.router")?.shape();
                return Err(f.bad(format!("attribute 'topk' is {topk}: 'in.router' has shape {shape}")));
            }
            Ok(forms(&SCANS, move |x, form| {
                // The exponential of the least number is 0, as that of −∞.
                let [q, k, v, beta, g, router] = ["q", "k", "v", "beta", "g", "router"].map(|n| x[n]);
                let inputs = [q, k, v, beta, finite(g), finite(router)];
                let ([b, _, m, h, k], v) = (x["k"].dims(), x["v"].shape().last());
                let s = x.tape.full([b, m * h, k, v], x.dtype, 0.0);
                vec![("o", mom::read(inputs, topk, s, scale, form).0)]
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
                let [b, t, _] = x["x"].dims();
                let mut h = x.tape.full([b, rates[0].shape().len()], x.dtype, 0.0);
                vec![("y", ema::average(x["x"], rates, x["omega"], &mut h, chunk(form, t)))]
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
            Ok(forms(&ONE_SCAN, |x, form| {
                let w = ["log_dt", "d", "log_a_real", "a_imag", "c_re", "c_im"].map(|n| x[n]);
                let zero = x.tape.full([x["u"].shape().at(0), w[2].shape().len()], x.dtype, 0.0);
                vec![("y", s4d::filter(x["u"], w, &mut (zero, zero), form))]
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
            let order = f.tensor("in.c")?.shape().last();
            soon(f, (order as u128).pow(3) * f.tensor("in.c")?.shape().at(0) as u128)?;
            let legendre = std::sync::Arc::new(lssl::Legendre::new(order));
            Ok(forms(&SCANS, move |x, form| {
                let ([b, _, d], n) = (x["u"].dims(), x["c"].shape().last());
                let (held, mut h) = (legendre.held(x["log_dt"], gbt), x.tape.full([b, d, n], x.dtype, 0.0));
                vec![("y", lssl::filter(x["u"], held, x["c"], &mut h, form) + x["d"] * x["u"])]
            }))
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
            fits(f, elements as u128)?;
            if !theta.is_finite() || theta <= 0.0 || !["zoh", "euler"].contains(&discretizer.as_str()) {
                let shown = crate::error::brief(&discretizer, 60);
                return Err(f.bad(format!(
                    "theta = {theta} and discretizer = '{shown}': expected more than 0, and zoh or euler"
                )));
            }
            // The series and the squares of an exponential.
            soon(f, 40 * (n as u128).pow(3))?;
            let window = std::sync::Arc::new(lmu::Window::new(n, theta, discretizer == "euler"));
            Ok(forms(&SCANS, move |x, form| {
                // Each channel has a memory of its own, as each sequence of a batch has.
                let [b, t, c] = x["u"].dims();
                let u = x["u"].transpose(1, 2).reshape([b * c, t, 1]);
                let m = window.memory(u, &mut x.tape.full([b * c, n], x.dtype, 0.0), form);
                vec![("m", m.reshape([b, c, t, n]).transpose(1, 2))]
            }))
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
            let (n, ids) = (f.size("ngram")?, f.tensor("in.ids")?.to_f64());
            let (all, t) = (ids.len() as u128, f.tensor("in.ids")?.shape().last());
            // T tokens that are repeated are not before the first token: n = T already finds none.
            let n = n.min(t.max(1));
            soon(f, all * t as u128 * n as u128)?;
            // Whether two ids are equal is all that counts: small ones are whole numbers in every type.
            let mut known = ids.clone();
            known.sort_by(f64::total_cmp);
            let ids: Vec<f64> = ids.iter().map(|id| known.partition_point(|other| other < id) as f64).collect();
            Ok(forms(&[Form::Recurrent, Form::Parallel], move |x, form| {
                let [b, t, _] = x["h"].dims();
                vec![("o", ngram::read(memories::constant(x["h"], ids.clone(), &[b, t]), x["h"], n, t, form))]
            }))
        },
        ..ATTENTION
    },
];
