//! Cells, scans and attention on extreme inputs.

use super::{INF, Inputs, SIZES, one_scan, outputs, state};
use crate::{
    draw::{Size, gates, normal, pick, rows, sprinkled},
    judge::{Core, Role, formula},
};
use tapezoo::{
    autograd::{Gen, Var},
    models::{Form, at, fox, gpt, lru, lstm, mamba, over_time, quasi_lstm},
    ops::{attention, quasi_lstm as fused_quasi_lstm, scan},
};

/// Pre-activations of sigmoids and hyperbolic tangents.
const SATURATED: &[f64] = &[0.0, 1e-30, 17.0, -17.0, 40.0, -90.0, -200.0, 1e4, -1e4, INF, -INF];

pub fn lstm_cells(g: &mut Gen, z: Size) -> Core {
    let (d, inp) = (z.d, z.k);
    let mut what = format!("{z:?}");
    let std = (d as f64).powf(-0.5);
    let weights = |g: &mut Gen, shape: [usize; 2]| crate::draw::tensor(g, shape, |g| std * g.gauss());
    let inputs = Inputs::default()
        .timed("x", Role::Times, rows(g, "x", [z.b, z.t, inp], SIZES, &mut what))
        .still("w_ih", Role::Weighs, weights(g, [4 * d, inp]))
        .still("w_hh", Role::Weighs, weights(g, [4 * d, d]))
        .still("b_ih", Role::Weighs, sprinkled(g, "b_ih", [4 * d], Gen::gauss, SATURATED, &mut what))
        .still("b_hh", Role::Weighs, normal(g, [4 * d]))
        .still("h0", Role::Weighs, state(g, [z.b, d]))
        .still("c0", Role::Adds, sprinkled(g, "c0", [z.b, d], Gen::gauss, &[0.0, 1e4, 1e-30], &mut what));
    Core {
        deep: false,
        inputs: inputs.0,
        outputs: outputs(&[("h", true), ("h_last", false), ("c_last", false)]),
        forms: vec![Form::Fused],
        run: formula(|x, form| {
            let w = lstm::Weights { w_ih: x[1], w_hh: x[2], b_ih: x[3], b_hh: x[4] };
            let f = if form == Form::Recurrent { lstm::recurrent } else { lstm::fused };
            let (h, h_last, c_last) = f(w, x[0], x[5], x[6]);
            vec![h, h_last, c_last]
        }),
        what,
    }
}

pub fn quasi(g: &mut Gen, z: Size) -> Core {
    let mut what = format!("{z:?}");
    let shape = [z.b, z.t, z.d];
    let mut inputs = Inputs::default();
    for name in ["f", "i", "z", "o"] {
        inputs = inputs.timed(name, Role::Weighs, gates(g, name, shape, Gen::gauss, SATURATED, &mut what));
    }
    let c0 = sprinkled(g, "c0", [z.b, z.d], Gen::gauss, &[0.0, 1e4, 1e-30], &mut what);
    Core {
        deep: false,
        inputs: inputs.still("c0", Role::Adds, c0).0,
        outputs: outputs(&[("h", true), ("c", false)]),
        forms: one_scan(z),
        run: formula(|x, form| {
            let (v, mut c) = (Var::concat(&x[..4], 2), x[4]);
            let (h, c) = match form {
                Form::Recurrent => {
                    let h = over_time(v.shape().at(1), x[0], |i| {
                        let h;
                        (h, c) = quasi_lstm::step(at(v, i), c);
                        h
                    });
                    (h, c)
                }
                // The bias of the forget gate in the published code.
                Form::Scan(chunk) => fused_quasi_lstm::quasi_lstm(v, c, 1.0, chunk),
                _ => quasi_lstm::parallel(v, c),
            };
            vec![h, c]
        }),
        what,
    }
}

pub fn linear_scan(g: &mut Gen, z: Size) -> Core {
    let mut what = format!("{z:?}");
    let shape = [z.b, z.t, z.d];
    let a = gates(g, "a", shape, |g| g.uniform(-1.0, 1.0), &[0.0, 1.0, -1.0, 1e-30, 0.999], &mut what);
    let inputs = Inputs::default()
        .timed("a", Role::Weighs, a)
        .timed("b", Role::Adds, rows(g, "b", shape, SIZES, &mut what))
        .still("h0", Role::Adds, sprinkled(g, "h0", [z.b, z.d], Gen::gauss, &[0.0, 1e8, 1e-30], &mut what));
    Core {
        deep: false,
        inputs: inputs.0,
        outputs: outputs(&[("h", true), ("last", false)]),
        forms: one_scan(z),
        run: formula(|x, form| {
            let (h, last) = match form {
                Form::Recurrent => quasi_lstm::pool(x[0], x[1], x[2]),
                Form::Scan(c) => scan::linear_scan(x[0], x[1], x[2], c),
                _ => scan::linear_scan_parallel(x[0], x[1], x[2]),
            };
            vec![h, last]
        }),
        what,
    }
}

pub fn lru_scan(g: &mut Gen, z: Size) -> Core {
    let mut what = format!("{z:?}");
    let shape = [z.b, z.t, z.d];
    let mut inputs = Inputs::default();
    for name in ["lambda_re", "lambda_im"] {
        let part = sprinkled(g, name, [z.d], |g| g.uniform(-0.7, 0.7), &[0.0, 1e-30, 0.7, -0.7], &mut what);
        inputs = inputs.still(name, Role::Weighs, part);
    }
    for name in ["x_re", "x_im"] {
        inputs = inputs.timed(name, Role::Adds, rows(g, name, shape, SIZES, &mut what));
    }
    for name in ["h0_re", "h0_im"] {
        let h = sprinkled(g, name, [z.b, z.d], Gen::gauss, &[0.0, 1e8, 1e-30], &mut what);
        inputs = inputs.still(name, Role::Adds, h);
    }
    Core {
        deep: false,
        inputs: inputs.0,
        outputs: outputs(&[("h_re", true), ("h_im", true), ("last_re", false), ("last_im", false)]),
        forms: one_scan(z),
        run: formula(|x, form| {
            let (lambda, u, h0) = ((x[0], x[1]), (x[2], x[3]), (x[4], x[5]));
            let (h, last) = match form {
                Form::Recurrent => lru::recurrent(lambda, u, h0),
                Form::Scan(c) => lru::scan(lambda, u, h0, c),
                _ => lru::parallel(lambda, u, h0),
            };
            vec![h.0, h.1, last.0, last.1]
        }),
        what,
    }
}

/// The selective scan, from Δ before its softplus, and A from its logarithm, as in Mamba.
pub fn selective(g: &mut Gen, z: Size) -> Core {
    let stretch = pick(g, &[1.0, 2.0]);
    let mut what = format!("{z:?}, stretch {stretch}");
    let (shape, row) = ([z.b, z.t, z.d], [z.b, z.t, z.n]);
    let special = [-200.0, -20.0, -1e4, 20.0, 200.0, 1e4];
    let a_log = sprinkled(g, "A_log", [z.d, z.n], |g| g.uniform(-1.0, 2.0), &[-90.0, 5.0, 30.0], &mut what);
    let inputs = Inputs::default()
        .timed("u", Role::Adds, rows(g, "u", shape, &[1e-12, 1e4], &mut what))
        .timed("delta", Role::Weighs, gates(g, "delta", shape, Gen::gauss, &special, &mut what))
        .still("A_log", Role::Weighs, a_log)
        .timed("b", Role::Times, rows(g, "b", row, &[1e-12, 1e4], &mut what))
        .timed("c", Role::Times, rows(g, "c", row, &[1e-12, 1e4], &mut what))
        .still("h0", Role::Adds, state(g, [z.b, z.d, z.n]));
    Core {
        deep: false,
        inputs: inputs.0,
        outputs: outputs(&[("y", true), ("h", false)]),
        forms: one_scan(z),
        run: formula(move |x, form| {
            let (u, dt, a) = (x[0], x[1].softplus(), -x[2].exp());
            let (y, h) = mamba::sequence([u, dt, a, x[3], x[4]], x[5], stretch, form);
            vec![y, h]
        }),
        what,
    }
}

/// Softmax attention, in some cases with keys and values from a cache.
pub fn softmax_attention(g: &mut Gen, z: Size) -> Core {
    let mut what = format!("{z:?}");
    let past = pick(g, &[0, 0, 1, 5]);
    what += &format!(", cache of {past}");
    let cached = |g: &mut Gen, width| normal(g, [z.b, past, z.h, width]);
    let inputs = Inputs::default()
        .timed("q", Role::Weighs, rows(g, "q", [z.b, z.t, z.h, z.k], &[1e-30, 1e-4, 1e2, 1e4, 1e8], &mut what))
        .timed("k", Role::Times, rows(g, "k", [z.b, z.t, z.h, z.k], &[1e-30, 1e-4, 1e2, 1e4], &mut what))
        .timed("v", Role::Adds, rows(g, "v", [z.b, z.t, z.h, z.v], SIZES, &mut what))
        .still("past k", Role::Times, cached(g, z.k))
        .still("past v", Role::Adds, cached(g, z.v));
    Core {
        deep: false,
        inputs: inputs.0,
        outputs: outputs(&[("o", true)]),
        forms: vec![Form::Parallel, Form::Fused],
        run: formula(|x, form| {
            let (k, v) = (Var::concat(&[x[3], x[1]], 1), Var::concat(&[x[4], x[2]], 1));
            vec![match form {
                Form::Recurrent => gpt::recurrent(x[0], k, v, 0.5),
                Form::Fused => attention::causal_attention(x[0], k, v, 0.5),
                _ => gpt::parallel(x[0], k, v, 0.5),
            }]
        }),
        what,
    }
}

/// Softmax attention with a gate for each token and head.
pub fn fading_attention(g: &mut Gen, z: Size) -> Core {
    let mut what = format!("{z:?}");
    let past = pick(g, &[0, 0, 1, 5]);
    what += &format!(", cache of {past}");
    let cached = |g: &mut Gen, width| normal(g, [z.b, past, z.h, width]);
    let special = [0.0, -1e-30, -5.0, -60.0, -90.0, -1e3, -1e9, f64::NEG_INFINITY];
    let gates = |g: &mut Gen, name, t, what: &mut String| {
        gates(g, name, [z.b, t, z.h, 1], |g| g.uniform(-5.0, 0.0), &special, what)
    };
    let inputs = Inputs::default()
        .timed("q", Role::Weighs, rows(g, "q", [z.b, z.t, z.h, z.k], &[1e-30, 1e-4, 1e2, 1e4, 1e8], &mut what))
        .timed("k", Role::Times, rows(g, "k", [z.b, z.t, z.h, z.k], &[1e-30, 1e-4, 1e2, 1e4], &mut what))
        .timed("v", Role::Adds, rows(g, "v", [z.b, z.t, z.h, z.v], SIZES, &mut what))
        .timed("g", Role::Weighs, gates(g, "g", z.t, &mut what))
        .still("past k", Role::Times, cached(g, z.k))
        .still("past v", Role::Adds, cached(g, z.v))
        .still("past g", Role::Weighs, gates(g, "past g", past, &mut what));
    Core {
        deep: false,
        inputs: inputs.0,
        outputs: outputs(&[("o", true)]),
        forms: vec![Form::Parallel, Form::Fused],
        run: formula(move |x, form| {
            let all = [4, 5, 6].map(|i| Var::concat(&[x[i], x[i - 3]], 1));
            vec![fox::attention([x[0], all[0], all[1], all[2].reshape([z.b, past + z.t, z.h])], 0.5, form)]
        }),
        what,
    }
}
