//! A gated chunk without a positive exponent.
//!
//! A gate exp(g_t), g_t ≤ 0, makes the memory fade before each write. What was
//! written at step s has faded at step t by exp(g_{s+1} + … + g_t). With the
//! running sums b_t = g_1 + … + g_t that is exp(b_t) exp(−b_s), one factor for
//! the query and one for the key; but exp(−b_s) overflows after a few dozen
//! strong gates, and where a gate is −∞ (forget everything) b_t − b_s is NaN.
//! So each sum is taken over its own steps.
//!
//! ```text
//! D_ts = exp(g_{s+1} + … + g_t) for s ≤ t, and 0 above      decay
//! γ_t = exp(g_1 + … + g_t)                                  from_start
//! r_t = exp(g_{t+1} + … + g_T)                              to_end
//! γ_T                                                       all
//! ```
//!
//! g is [B, H, T]; decay is [B, H, T, T], from_start and to_end are
//! [B, H, T, 1], all is [B, H, 1, 1]. `column` makes [B, H, T, 1] of [B, H, T].

#![allow(unused, clippy::diverging_sub_expression)]

use exercises::{Checked, Inputs, agree, run, same, that};
use std::process::ExitCode;
use tapezoo::{
    autograd::{Gen, Tape, Var},
    models::head_first,
    ops::gated_linear_attention::gated_linear_attention,
    tensor::Tensor,
};

fn fading<'t>(g: Var<'t>) -> [Var<'t>; 4] {
    let [b, h, t] = g.dims();
    let column = |x: Var<'t>| x.reshape([b, h, t, 1]);
    let (decay, from_start, to_end, all): (Var, Var, Var, Var) = todo!("D, γ, r and γ_T");
    [decay, from_start, to_end, all]
}

/// The chunk: q, k [B, T, H, K], v [B, T, H, V], g [B, T, H], s [B, H, K, V].
fn chunk<'t>(x: &[Var<'t>]) -> Vec<Var<'t>> {
    let ([q, k, v], g, s) = ([0, 1, 2].map(|i| head_first(x[i])), x[3].permute([0, 2, 1]), x[4]);
    let [decay, from_start, to_end, all] = fading(g);
    let o = (from_start * q).matmul(s) + (q.matmul_t(k) * decay).tril_matmul(v);
    vec![head_first(o), all * s + (to_end * k).t_matmul(v)]
}

fn main() -> ExitCode {
    run(&[
        ("what four factors three gates of ½ make", halves),
        ("open gates (g = 0) fade nothing", || check(5, |_, _| 0.0)),
        ("outputs, states and gradients are those of the recurrence", mild),
        ("gates of −300 overflow nothing", || check(8, |g, _| if g.coin() { -300.0 } else { -0.1 })),
        ("gates of −∞ forget, and what comes later is not NaN", forgets),
    ])
}

fn halves() -> Checked {
    let tape = Tape::default();
    let ln = 0.5f64.ln();
    let got = fading(tape.constant(&Tensor::from_vec(vec![ln; 3], [1, 1, 3])));
    let decay = [[1.0, 0.0, 0.0], [0.5, 1.0, 0.0], [0.25, 0.5, 1.0]].concat();
    // Above the diagonal it is not read.
    let lower = Tensor::from_vec(got[0].tril(0).value().to_f64(), got[0].shape());
    same(("decay", "[B, H, T, T]"), &lower, &Tensor::from_vec(decay, [1, 1, 3, 3]), 1e-12)?;
    let expected = [
        ("from_start", "[B, H, T, 1]", vec![0.5, 0.25, 0.125]),
        ("to_end", "[B, H, T, 1]", vec![0.25, 0.5, 1.0]),
        ("all", "[B, H, 1, 1]", vec![0.125]),
    ];
    for ((name, axes, values), y) in expected.into_iter().zip(&got[1..]) {
        let shape = [1, 1, values.len(), 1];
        same((name, axes), &y.value(), &Tensor::from_vec(values, shape), 1e-12)?;
    }
    Ok(())
}

fn check(t: usize, gate: fn(&mut Gen, usize) -> f64) -> Checked {
    let (g, [b, h, k, v]) = (&mut Gen::new(10), [2, 2, 3, 2]);
    let gates: Vec<f64> = (0..b * t * h).map(|i| gate(g, i / h % t)).collect();
    let inputs: Inputs = vec![
        (("q", "[B, T, H, K]"), g.normal([b, t, h, k])),
        (("k", "[B, T, H, K]"), g.normal([b, t, h, k])),
        (("v", "[B, T, H, V]"), g.normal([b, t, h, v])),
        (("g", "[B, T, H]"), Tensor::from_vec(gates, [b, t, h])),
        (("s0", "[B, H, K, V]"), g.normal([b, h, k, v])),
    ];
    agree(&inputs, &[("o", "[B, T, H, V]"), ("s", "[B, H, K, V]")], &|x| chunk(x), &|x| {
        let (o, s) = gated_linear_attention([x[0], x[1], x[2], x[3].reshape([b, t, h, 1])], x[4], 1.0, 4);
        vec![o, s]
    })
}

fn mild() -> Checked {
    [1, 2, 7, 16].into_iter().try_for_each(|t| check(t, |g, _| g.uniform(-2.0, 0.0)))
}

fn forgets() -> Checked {
    check(7, |_, t| if t == 2 { f64::NEG_INFINITY } else { -0.2 })?;
    check(3, |_, t| if t == 0 { f64::NEG_INFINITY } else { -0.2 })
}
