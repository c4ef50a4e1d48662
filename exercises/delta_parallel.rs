//! The delta rule by a triangular solve.
//!
//! Each step of the delta rule needs what all steps before have written. But
//! what they write, U, is the solution of one system of linear equations, which
//! is triangular: a step depends on earlier ones alone. That is the UT
//! transform (Yang et al. 2024, arXiv 2406.06484, section 3.2). For a head with
//! rows Q, K, V, and b = diag(β),
//!
//! ```text
//! u_t = β_t (v_t − Sᵀ k_t − Σ_{s<t} (k_t·k_s) u_s)
//! A = stril(b K Kᵀ)      (I + A) U = b V − b K S
//! O = Q S + tril(Q Kᵀ) U      S' = S + Kᵀ U
//! ```
//!
//! `a.unit_lower_solve(r)` solves (I + stril(a)) x = r, and `a.tril_matmul(b)`
//! is tril(a) b. Here q (times the scale already), k and v are [B, H, T, ..],
//! β is [B, H, T, 1]. Give `head_first(o)`, which is [B, T, H, V], and S'.

#![allow(unused)]

use exercises::{Checked, Inputs, agree, golden, run};
use std::process::ExitCode;
use tapezoo::{
    autograd::{Gen, Var},
    models::head_first,
    ops::delta::delta_rule,
};

fn parallel<'t>(q: Var<'t>, k: Var<'t>, v: Var<'t>, beta: Var<'t>, s: Var<'t>, scale: f64) -> (Var<'t>, Var<'t>) {
    let (q, k, v) = (head_first(scale * q), head_first(k), head_first(v)); // [B, H, T, ..]
    let [b, h, t, _] = k.dims();
    let beta = beta.permute([0, 2, 1]).reshape([b, h, t, 1]);
    todo!("U by a solve, then O and S'")
}

fn main() -> ExitCode {
    run(&[
        ("one step", || check([1, 1, 1, 2, 2], 2.0)),
        ("two steps: the second corrects what the first wrote", || check([1, 2, 1, 2, 1], 2.0)),
        ("outputs, states and gradients are those of the recurrence", many_steps),
        ("no steps at all", || check([2, 0, 1, 2, 3], 2.0)),
        ("PyTorch has the same numbers", as_torch),
    ])
}

fn check([b, t, h, k, v]: [usize; 5], most: f64) -> Checked {
    let g = &mut Gen::new(8);
    let inputs: Inputs = vec![
        (("q", "[B, T, H, K]"), g.normal([b, t, h, k])),
        (("k", "[B, T, H, K]"), g.range([b, t, h, k], -0.7, 0.7)),
        (("v", "[B, T, H, V]"), g.normal([b, t, h, v])),
        (("beta", "[B, T, H]"), g.range([b, t, h], 0.0, most)),
        (("s0", "[B, H, K, V]"), g.normal([b, h, k, v])),
    ];
    let outputs = [("o", "[B, T, H, V]"), ("s", "[B, H, K, V]")];
    agree(
        &inputs,
        &outputs,
        &|x| {
            let (o, s) = parallel(x[0], x[1], x[2], x[3], x[4], 0.5);
            vec![o, s]
        },
        &|x| {
            let (o, s) = delta_rule(x[0], x[1], x[2], x[3], x[4], 0.5, 4);
            vec![o, s]
        },
    )
}

fn many_steps() -> Checked {
    check([2, 5, 2, 3, 2], 2.0)?;
    check([1, 17, 1, 4, 3], 1.0)
}

fn as_torch() -> Checked {
    let outputs = [("o", "[B, T, H, V]"), ("s", "[B, H, K, V]")];
    golden("delta_rule_0.safetensors", &["q", "k", "v", "beta", "s0"], &outputs, &|x| {
        let (o, s) = parallel(x[0], x[1], x[2], x[3], x[4], 8f64.powf(-0.5));
        vec![o, s]
    })
}
