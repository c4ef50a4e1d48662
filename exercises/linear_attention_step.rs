//! The step of linear attention.
//!
//! A memory is a matrix S. A token writes its value v under its key k, by
//! adding k vᵀ, and reads with its query q. What it reads is the sum of all
//! values, each weighted by how well its key fits; z, the sum of the keys,
//! knows the sum of the weights (Katharopoulos et al. 2020, arXiv 2006.16236).
//!
//! ```text
//! S_t = S_{t-1} + k_t v_tᵀ      z_t = z_{t-1} + k_t
//! o_t = S_tᵀ q_t / (q_t·z_t + ε)
//! ```
//!
//! q, k and z are [B, H, K], v and o are [B, H, V], S is [B, H, K, V].
//! `outer(k, v)` is k vᵀ of each head, and `recall(s, q)` is Sᵀ q.

#![allow(unused)]

use exercises::{Checked, Inputs, agree, golden, run};
use std::process::ExitCode;
use tapezoo::{
    autograd::{Gen, Var},
    ops::{
        linear_attn::linear_attention_normalized,
        words::{outer, over_time, recall, token},
    },
    tensor::DType,
};

/// o_t, and S_t and z_t.
fn step<'t>([q, k, v]: [Var<'t>; 3], [s, z]: [Var<'t>; 2], eps: f64) -> (Var<'t>, [Var<'t>; 2]) {
    todo!("write to s and z, then read")
}

fn main() -> ExitCode {
    run(&[
        ("one token reads what it has written", one_token),
        ("values, states and gradients are those of the op", as_the_op),
        ("PyTorch has the same numbers", as_torch),
    ])
}

/// All steps, of q, k, v, s0 and z0.
fn sequence<'t>(x: &[Var<'t>], eps: f64) -> Vec<Var<'t>> {
    let ([_, t, _, _], mut state) = (x[0].dims(), [x[3], x[4]]);
    let o = over_time(t, x[2], |t| {
        let o;
        (o, state) = step([0, 1, 2].map(|i| token(x[i], t)), state, eps);
        o
    });
    vec![o, state[0], state[1]]
}

fn check([b, t, h, k, v]: [usize; 5]) -> Checked {
    let g = &mut Gen::new(4);
    let inputs: Inputs = vec![
        (("q", "[B, T, H, K]"), g.range([b, t, h, k], 0.1, 2.0)),
        (("k", "[B, T, H, K]"), g.range([b, t, h, k], 0.1, 2.0)),
        (("v", "[B, T, H, V]"), g.normal([b, t, h, v])),
        (("s0", "[B, H, K, V]"), g.normal([b, h, k, v])),
        (("z0", "[B, H, K]"), g.range([b, h, k], 0.1, 2.0)),
    ];
    agree(&inputs, &[("o", "[B, T, H, V]"), ("s", "[B, H, K, V]"), ("z", "[B, H, K]")], &|x| sequence(x, 0.1), &|x| {
        let (o, (s, z)) = linear_attention_normalized(x[0], x[1], x[2], (x[3], x[4]), 1.0, 0.1, 4);
        vec![o, s, z]
    })
}

fn one_token() -> Checked {
    check([1, 1, 1, 1, 1])?;
    check([1, 1, 1, 3, 2])
}

fn as_the_op() -> Checked {
    [[1, 0, 1, 2, 2], [2, 5, 1, 3, 2], [2, 7, 3, 2, 4]].into_iter().try_for_each(check)
}

fn as_torch() -> Checked {
    golden("linear_attention_norm_0.safetensors", &["q", "k", "v"], &[("o", "[B, T, H, V]")], &|x| {
        let ([b, _, h, k], [.., v], tape) = (x[0].dims(), x[2].dims::<4>(), x[0].tape());
        let zeros = [tape.full([b, h, k, v], DType::F64, 0.0), tape.full([b, h, k], DType::F64, 0.0)];
        sequence(&[x[0], x[1], x[2], zeros[0], zeros[1]], 1e-6)[..1].to_vec()
    })
}
