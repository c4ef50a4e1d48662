//! The chunked form of linear attention.
//!
//! Step by step a memory is slow: T small products, one after another. As
//! attention it is a product of T × T scores, too large for long sequences. In
//! chunks of C steps it is both: attention within a chunk, and the state from
//! chunk to chunk. For a head with rows Q, K, V of a chunk, and S before it,
//!
//! ```text
//! O = Q S + tril(Q Kᵀ) V      S' = S + Kᵀ V
//! ```
//!
//! Write one chunk: q, k [N, C, K], v [N, C, V] and S [N, K, V] to O and S'.
//! There are `a.matmul(b)`, `a.matmul_t(b)` for a bᵀ, `a.t_matmul(b)` for aᵀ b
//! and `a.tril_matmul(b)` for tril(a) b.

#![allow(unused)]

use exercises::{Checked, Inputs, agree, run};
use std::process::ExitCode;
use tapezoo::{
    autograd::{Gen, Var},
    ops::linear_attn::linear_attention,
};

fn chunk<'t>([q, k, v]: [Var<'t>; 3], s: Var<'t>) -> (Var<'t>, Var<'t>) {
    todo!("O and S' of a chunk")
}

fn main() -> ExitCode {
    run(&[
        ("a chunk of one step is the step", || check(1, 1)),
        ("a chunk of several steps: no step sees a later one", || check(4, 4)),
        ("two chunks: the second reads what the first wrote", || check(6, 3)),
        ("chunks of any size, the last of them shorter, or longer than all", any_size),
    ])
}

/// That T steps in chunks of C are the recurrence, values and gradients.
fn check(t: usize, c: usize) -> Checked {
    let (g, [b, k, v]) = (&mut Gen::new(9), [2, 3, 2]);
    let inputs: Inputs = vec![
        (("q", "[B, T, K]"), g.normal([b, t, k])),
        (("k", "[B, T, K]"), g.normal([b, t, k])),
        (("v", "[B, T, V]"), g.normal([b, t, v])),
        (("s0", "[B, K, V]"), g.normal([b, k, v])),
    ];
    let chunked = agree(
        &inputs,
        &[("o", "[B, T, V]"), ("s", "[B, K, V]")],
        &|x| {
            let mut s = x[3];
            let parts: Vec<Var> = (0..t)
                .step_by(c)
                .map(|i| {
                    let o;
                    (o, s) = chunk([0, 1, 2].map(|n| x[n].narrow(1, i, c.min(t - i))), s);
                    o
                })
                .collect();
            vec![Var::concat(&parts, 1), s]
        },
        &|x| {
            let [q, key, value] = [(0, k), (1, k), (2, v)].map(|(n, width)| x[n].reshape([b, t, 1, width]));
            let (o, s) = linear_attention(q, key, value, x[3].reshape([b, 1, k, v]), 1.0, 4);
            vec![o.reshape([b, t, v]), s.reshape([b, k, v])]
        },
    );
    chunked.map_err(|why| format!("T = {t} in chunks of {c}: {why}"))
}

fn any_size() -> Checked {
    for t in [2, 7, 8, 9] {
        [1, 2, t - 1, t, t + 1].into_iter().try_for_each(|c| check(t, c))?;
    }
    Ok(())
}
