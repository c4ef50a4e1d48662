//! The sequence cores, as `verify` calls them, on extreme inputs.

mod scans;

use crate::{
    Draw,
    draw::{Size, gates, normal, pick, rows, shut_at_first},
    judge::{Core, Input, Role, formula},
};
use tapezoo::{
    autograd::{Gen, Var},
    models::{Form, delta_net, delta_product, gated_delta_net, kda, linear_transformer, memories::gated, mlstm, slstm},
    ops::{erase_write::two_keys, words::insert_axis},
    tensor::Tensor,
};

const INF: f64 = f64::INFINITY;

/// Numbers of these sizes, and products of three of them, do not overflow in single precision.
const SIZES: &[f64] = &[1e-30, 1e-12, 1e-4, 1e4, 1e8];

/// All cores by name.
pub fn all() -> Vec<(&'static str, Draw)> {
    vec![
        ("delta_rule", Box::new(delta)),
        ("delta_product", Box::new(product)),
        ("gated_delta_rule", Box::new(gated_delta)),
        ("kda", Box::new(|g, z| fading_delta(g, z, false))),
        ("erase_write", Box::new(|g, z| fading_delta(g, z, true))),
        ("linear_attention", Box::new(linear_attention)),
        ("gated_linear_attention", Box::new(gated_linear_attention)),
        ("normalised linear_attention", Box::new(normalised)),
        ("mlstm", Box::new(mlstm_memory)),
        ("slstm", Box::new(slstm_cells)),
        ("lstm", Box::new(scans::lstm_cells)),
        ("quasi_lstm", Box::new(scans::quasi)),
        ("linear_scan", Box::new(scans::linear_scan)),
        ("lru_scan", Box::new(scans::lru_scan)),
        ("selective_scan", Box::new(scans::selective)),
        ("softmax_attention", Box::new(scans::softmax_attention)),
        ("fading_attention", Box::new(scans::fading_attention)),
    ]
}

/// Collects inputs by name.
#[derive(Default)]
struct Inputs(Vec<Input>);

impl Inputs {
    fn add(mut self, name: &str, role: Role, timed: bool, value: Tensor) -> Inputs {
        self.0.push(Input { name: name.into(), value, role, timed, fixed: false });
        self
    }

    /// An input with a time axis.
    fn timed(self, name: &str, role: Role, value: Tensor) -> Inputs {
        self.add(name, role, true, value)
    }

    /// A state or weight.
    fn still(self, name: &str, role: Role, value: Tensor) -> Inputs {
        self.add(name, role, false, value)
    }
}

fn outputs(of: &[(&str, bool)]) -> Vec<(String, bool)> {
    of.iter().map(|(name, timed)| ((*name).into(), *timed)).collect()
}

/// The forms of a memory.
fn scans(z: Size) -> Vec<Form> {
    vec![Form::Parallel, Form::Chunked(z.chunk)]
}

/// The forms of a core that is one scan.
fn one_scan(z: Size) -> Vec<Form> {
    vec![Form::Parallel, Form::Scan(z.chunk)]
}

/// Zeros, or a state as after some steps.
fn state(g: &mut Gen, shape: impl Into<tapezoo::tensor::Shape>) -> Tensor {
    let (shape, fresh) = (shape.into(), g.coin());
    if fresh { Tensor::from_vec(vec![0.0; shape.len()], shape) } else { normal(g, shape) }
}

/// Keys of length 1, or 0, or nearly: [B, T, H, K].
fn unit_keys(g: &mut Gen, z: Size, what: &mut String) -> Tensor {
    let x = rows(g, "k", [z.b, z.t, z.h, z.k], &[1.0], what);
    let mut v = x.to_f64();
    for row in v.chunks_mut(z.k) {
        let length = row.iter().map(|x| x * x).sum::<f64>().sqrt().max(1e-3);
        row.iter_mut().for_each(|x| *x = f64::from((*x / length) as f32));
    }
    Tensor::from_vec(v, x.shape())
}

/// q, k, v, β and S of the delta rules. A β of 2 at a key of length 1 reflects.
fn delta_inputs(g: &mut Gen, z: Size, what: &mut String) -> Inputs {
    let [key, value, gate] = [[z.b, z.t, z.h, z.k], [z.b, z.t, z.h, z.v], [z.b, z.t, z.h, 1]];
    let most = pick(g, &[1.0, 2.0]);
    let beta =
        gates(g, "beta", gate, |g| g.uniform(0.0, most), &[0.0, 1.0, most, 1e-30], what).reshape([z.b, z.t, z.h]);
    Inputs::default()
        .timed("q", Role::Times, rows(g, "q", key, SIZES, what))
        .timed("k", Role::Times, unit_keys(g, z, what))
        .timed("v", Role::Adds, rows(g, "v", value, SIZES, what))
        .timed("beta", Role::Weighs, beta)
        .still("s0", Role::Adds, state(g, [z.b, z.h, z.k, z.v]))
}

fn delta(g: &mut Gen, z: Size) -> Core {
    let mut what = format!("{z:?}");
    let scale = (z.k as f64).powf(-0.5);
    Core {
        deep: false,
        inputs: delta_inputs(g, z, &mut what).0,
        outputs: outputs(&[("o", true), ("s", false)]),
        forms: scans(z),
        run: formula(move |x, form| {
            let (o, s) = delta_net::sequence([x[0], x[1], x[2], x[3]], x[4], scale, form);
            vec![o, s]
        }),
        what,
    }
}

/// Two steps of the delta rule per token, whose k, v and β lie side by side: [B, T, 2 H, ..].
fn product(g: &mut Gen, z: Size) -> Core {
    let mut what = format!("{z:?}");
    let Size { b, t, h, k, v, .. } = z;
    let mut inputs = delta_inputs(g, Size { h: 2 * h, ..z }, &mut what).0;
    inputs[0].value = rows(g, "q", [b, t, h, k], SIZES, &mut what);
    inputs[4].value = state(g, [b, h, k, v]);
    Core {
        deep: false,
        inputs,
        outputs: outputs(&[("o", true), ("s", false)]),
        forms: scans(z),
        run: formula(move |x, form| {
            let (key, value, beta) = ([b, 2 * t, h, k], [b, 2 * t, h, v], [b, 2 * t, h]);
            let steps = [x[0], x[1].reshape(key), x[2].reshape(value), x[3].reshape(beta)];
            let (o, s) = delta_product::sequence(steps, x[4], 2, 0.5, form);
            vec![o, s]
        }),
        what,
    }
}

fn gated_delta(g: &mut Gen, z: Size) -> Core {
    let mut what = format!("{z:?}");
    let inputs = delta_inputs(g, z, &mut what);
    let special = [0.0, -1e-30, -5.0, -90.0, -1e3, -1e6, -1e9, -INF];
    let log_gate = gates(g, "g", [z.b, z.t, z.h], |g| g.uniform(-5.0, 0.0), &special, &mut what);
    let scale = (z.k as f64).powf(-0.5);
    Core {
        deep: false,
        inputs: inputs.timed("g", Role::Weighs, log_gate).0,
        outputs: outputs(&[("o", true), ("s", false)]),
        forms: scans(z),
        run: formula(move |x, form| {
            let (o, s) = gated_delta_net::sequence([x[0], x[1], x[2], x[3], x[5]], x[4], scale, form);
            vec![o, s]
        }),
        what,
    }
}

/// As in KDA, a delta rule with a gate for each row of the memory; or the same with two keys, as in RWKV-7.
fn fading_delta(g: &mut Gen, z: Size, two: bool) -> Core {
    let mut what = format!("{z:?}");
    let inputs = delta_inputs(g, z, &mut what);
    let special = [0.0, -1e-30, -5.0, -90.0, -1e3, -1e6, -1e9, -INF];
    let log_gate = gates(g, "g", [z.b, z.t, z.h, z.k], |g| g.uniform(-5.0, 0.0), &special, &mut what);
    let scale = (z.k as f64).powf(-0.5);
    Core {
        deep: false,
        inputs: inputs.timed("g", Role::Weighs, log_gate).0,
        outputs: outputs(&[("o", true), ("s", false)]),
        forms: scans(z),
        run: formula(move |x, form| {
            let chunk = if let Form::Chunked(chunk) = form { Some(chunk) } else { None };
            let (o, s) = if two && form != Form::Recurrent {
                let key = insert_axis(x[3], 3) * x[1];
                two_keys([x[0], key, x[2], x[1], x[5], key], x[4], scale, chunk)
            } else {
                kda::sequence([x[0], x[1], x[2], x[3], x[5]], x[4], scale, form)
            };
            vec![o, s]
        }),
        what,
    }
}

fn linear_attention(g: &mut Gen, z: Size) -> Core {
    let mut what = format!("{z:?}");
    let key = [z.b, z.t, z.h, z.k];
    let inputs = Inputs::default()
        .timed("q", Role::Times, rows(g, "q", key, SIZES, &mut what))
        .timed("k", Role::Times, rows(g, "k", key, SIZES, &mut what))
        .timed("v", Role::Adds, rows(g, "v", [z.b, z.t, z.h, z.v], SIZES, &mut what))
        .still("s0", Role::Adds, state(g, [z.b, z.h, z.k, z.v]));
    Core {
        deep: false,
        inputs: inputs.0,
        outputs: outputs(&[("o", true), ("s", false)]),
        forms: scans(z),
        run: formula(|x, form| {
            let mut m = linear_transformer::Memory { s: x[3], z: None };
            vec![read(x, &mut m, form), m.s]
        }),
        what,
    }
}

/// Linear attention with a gate for each head or for each channel of the key.
fn gated_linear_attention(g: &mut Gen, z: Size) -> Core {
    let mut what = format!("{z:?}");
    let key = [z.b, z.t, z.h, z.k];
    let special = [0.0, -1e-30, -5.0, -60.0, -90.0, -1e3, -1e9, -INF];
    let gate = [z.b, z.t, z.h, if g.coin() { 1 } else { z.k }];
    let log_gate = gates(g, "g", gate, |g| g.uniform(-5.0, 0.0), &special, &mut what);
    let inputs = Inputs::default()
        .timed("q", Role::Times, rows(g, "q", key, SIZES, &mut what))
        .timed("k", Role::Times, rows(g, "k", key, SIZES, &mut what))
        .timed("v", Role::Adds, rows(g, "v", [z.b, z.t, z.h, z.v], SIZES, &mut what))
        .timed("g", Role::Weighs, log_gate)
        .still("s0", Role::Adds, state(g, [z.b, z.h, z.k, z.v]));
    Core {
        deep: false,
        inputs: inputs.0,
        outputs: outputs(&[("o", true), ("s", false)]),
        forms: scans(z),
        run: formula(|x, form| {
            let (o, s) = gated([x[0], x[1], x[2], x[3]], x[4], 0.5, form);
            vec![o, s]
        }),
        what,
    }
}

fn read<'t>(x: &[Var<'t>], m: &mut linear_transformer::Memory<'t>, form: Form) -> Var<'t> {
    linear_transformer::attention([x[0], x[1], x[2]], m, 0.5, form)
}

/// Linear attention with positive keys and queries, as φ gives.
fn normalised(g: &mut Gen, z: Size) -> Core {
    let mut what = format!("{z:?}");
    let key = [z.b, z.t, z.h, z.k];
    let positive = |g: &mut Gen, name: &str, what: &mut String| {
        let special = [0.0, 1e-30, 1e-6, 1e4];
        gates(g, name, key, |g| g.uniform(0.1, 1.0), &special, what)
    };
    let fresh = g.coin();
    let s0 = if fresh {
        Tensor::from_vec(vec![0.0; z.b * z.h * z.k * z.v], [z.b, z.h, z.k, z.v])
    } else {
        normal(g, [z.b, z.h, z.k, z.v])
    };
    let z0 = crate::draw::tensor(g, [z.b, z.h, z.k], |g| if fresh { 0.0 } else { g.uniform(0.1, 1.0) });
    let inputs = Inputs::default()
        .timed("q", Role::Times, positive(g, "q", &mut what))
        .timed("k", Role::Times, positive(g, "k", &mut what))
        .timed("v", Role::Adds, rows(g, "v", [z.b, z.t, z.h, z.v], SIZES, &mut what))
        .still("s0", Role::Adds, s0)
        .still("z0", Role::Weighs, z0);
    Core {
        deep: false,
        inputs: inputs.0,
        outputs: outputs(&[("o", true), ("s", false), ("z", false)]),
        forms: scans(z),
        run: formula(|x, form| {
            let mut m = linear_transformer::Memory { s: x[3], z: Some((x[4], linear_transformer::EPS)) };
            let o = read(x, &mut m, form);
            vec![o, m.s, m.z.unwrap().0]
        }),
        what,
    }
}

/// Pre-activations of an exponential input gate and a forget gate.
const INPUT: &[f64] = &[-90.0, -200.0, -1000.0, -1e9, -INF, 40.0, 90.0, 1e3];
const FORGET: &[f64] = &[-90.0, -1e3, -1e9, -INF, 40.0, 95.0, 200.0, 1e4];

fn mlstm_memory(g: &mut Gen, z: Size) -> Core {
    let mut what = format!("{z:?}");
    let (key, gate) = ([z.b, z.t, z.h, z.k], [z.b, z.t, z.h]);
    let (eps, fresh) = (pick(g, &[mlstm::EPS, 0.01]), g.coin());
    what += &format!(", eps {eps}{}", if fresh { ", fresh" } else { "" });
    let inputs = Inputs::default()
        .timed("q", Role::Times, rows(g, "q", key, &[1e-12, 1e4], &mut what))
        .timed("k", Role::Times, rows(g, "k", key, &[1e-12, 1e4], &mut what))
        .timed("v", Role::Adds, rows(g, "v", [z.b, z.t, z.h, z.v], SIZES, &mut what));
    let i = gates(g, "i", gate, Gen::gauss, INPUT, &mut what);
    let i = if fresh { shut_at_first(g, i, &mut what) } else { i };
    let f = gates(g, "f", gate, |g| g.gauss() + 3.0, FORGET, &mut what);
    let mut inputs = inputs.timed("i", Role::Weighs, i).timed("f", Role::Weighs, f);
    if !fresh {
        inputs = inputs
            .still("c0", Role::Adds, normal(g, [z.b, z.h, z.k, z.v]))
            .still("n0", Role::Adds, normal(g, [z.b, z.h, z.k]))
            .still("m0", Role::Weighs, normal(g, [z.b, z.h]));
    }
    Core {
        deep: false,
        inputs: inputs.0,
        outputs: outputs(&[("h", true), ("c", false), ("n", false), ("m", false)]),
        forms: scans(z),
        run: formula(move |x, form| {
            let full = |shape: &[usize], v| x[0].tape().full(shape, x[0].dtype(), v);
            let ([b, _, h, k], [.., v]): ([_; 4], [_; 4]) = (x[1].dims(), x[2].dims());
            let mut m = if fresh {
                let gate = full(&[b, h], 0.0);
                [full(&[b, h, k, v], 0.0), full(&[b, h, k], 0.0), gate, gate]
            } else {
                [x[5], x[6], x[7], full(&[b, h], 1.0)]
            };
            let y = mlstm::sequence([x[0], x[1], x[2]], [x[3], x[4]], &mut m, eps, form);
            vec![y, m[0], m[1], m[2]]
        }),
        what,
    }
}

fn slstm_cells(g: &mut Gen, z: Size) -> Core {
    let (h, k) = (z.h.min(4), z.d.min(33));
    let (d, fresh) = (h * k, g.coin());
    let mut what = format!("{z:?}, {h} heads of {k}{}", if fresh { ", fresh" } else { "" });
    let shape = [z.b, z.t, d];
    let i = gates(g, "i", shape, Gen::gauss, INPUT, &mut what);
    let i = if fresh { shut_at_first(g, i, &mut what) } else { i };
    let parts = [
        i,
        gates(g, "f", shape, |g| g.gauss() + 3.0, FORGET, &mut what),
        gates(g, "z", shape, Gen::gauss, &[0.0, -1e-30, 40.0, -1e4, INF, -INF], &mut what),
        gates(g, "o", shape, Gen::gauss, &[40.0, -90.0, -1e4, INF, -INF], &mut what),
    ];
    let std = 0.3 * (k as f64).powf(-0.5);
    let r = crate::draw::tensor(g, [4, h, k, k], |g| std * g.gauss());
    let mut inputs = Inputs::default();
    for (name, part) in ["i", "f", "z", "o"].into_iter().zip(parts) {
        inputs = inputs.timed(name, Role::Weighs, part);
    }
    inputs = inputs.still("r", Role::Weighs, r);
    if !fresh {
        for name in ["h0", "c0"] {
            inputs = inputs.still(name, Role::Adds, normal(g, [z.b, d]));
        }
        let n0 = crate::draw::tensor(g, [z.b, d], |g| g.uniform(0.5, 2.0));
        inputs = inputs.still("n0", Role::Weighs, n0).still("m0", Role::Weighs, normal(g, [z.b, d]));
    }
    Core {
        deep: false,
        inputs: inputs.0,
        outputs: outputs(&[("y", true), ("h", false), ("c", false), ("n", false), ("m", false)]),
        forms: vec![Form::Fused],
        run: formula(move |x, form| {
            let full = |v| x[0].tape().full([x[0].shape().at(0), d], x[0].dtype(), v);
            let mut s = if fresh { [full(0.0); 5] } else { [x[5], x[6], x[7], x[8], full(1.0)] };
            let y = slstm::sequence(Var::concat(&x[..4], 2), x[4], &mut s, form);
            vec![y, s[0], s[1], s[2], s[3]]
        }),
        what,
    }
}
