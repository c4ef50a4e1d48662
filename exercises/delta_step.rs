//! The step of the delta rule.
//!
//! Linear attention adds: a value that is written twice is read doubled. The
//! delta rule first asks what the memory has under the key already, and writes
//! the difference (Schlag et al. 2021, arXiv 2102.11174).
//!
//! ```text
//! S_t = S_{t-1} + k_t β_t (v_t − S_{t-1}ᵀ k_t)ᵀ
//! ```
//!
//! With a key of length 1, β = 1 replaces the value under it, β = 0 leaves it.
//!
//! k is [B, H, K], v [B, H, V], β [B, H] and S [B, H, K, V]. On matrices there
//! are `a.matmul(b)`, `a.matmul_t(b)` for a bᵀ and `a.t_matmul(b)` for aᵀ b;
//! a vector becomes a matrix by `reshape`.

#![allow(unused)]

use exercises::{Checked, Inputs, agree, golden, list, run, same};
use std::process::ExitCode;
use tapezoo::{
    autograd::{Gen, Tape, Var},
    models::delta_net::read,
    ops::{
        delta::delta_rule,
        words::{over_time, token},
    },
    tensor::{DType, Tensor},
};

/// The next S.
fn write<'t>(k: Var<'t>, v: Var<'t>, beta: Var<'t>, s: Var<'t>) -> Var<'t> {
    let [b, h, n, value] = s.dims();
    todo!("S_t")
}

fn main() -> ExitCode {
    run(&[
        ("with β = 1 what is read under a key is the last value", replaces),
        ("with β = 0 nothing changes", leaves),
        ("outputs, states and gradients are those of the op", as_the_op),
        ("PyTorch has the same numbers, with β up to 2", as_torch),
    ])
}

/// What is under the key (0.6, 0.8), in which 5 was, when 3 has been written with this β.
fn written(beta: f64) -> Tensor {
    let tape = Tape::default();
    let x = |values: &[f64], shape: &[usize]| tape.constant(&Tensor::from_vec(values.to_vec(), shape));
    let (k, s) = (x(&[0.6, 0.8], &[1, 1, 2]), x(&[3.0, 4.0], &[1, 1, 2, 1]));
    let s = write(k, x(&[3.0], &[1, 1, 1]), x(&[beta], &[1, 1]), s);
    read(k, s, 1.0).value().reshape([1])
}

fn replaces() -> Checked {
    same(("Sᵀ k", "[V]"), &written(1.0), &list(&[3.0]), 1e-12)
}

fn leaves() -> Checked {
    same(("Sᵀ k", "[V]"), &written(0.0), &list(&[5.0]), 1e-12)
}

/// All steps, of q, k, v, β and s0.
fn sequence<'t>(x: &[Var<'t>], scale: f64) -> Vec<Var<'t>> {
    let ([_, t, _, _], mut s) = (x[0].dims(), x[4]);
    let o = over_time(t, x[2], |t| {
        s = write(token(x[1], t), token(x[2], t), token(x[3], t), s);
        read(token(x[0], t), s, scale)
    });
    vec![o, s]
}

fn as_the_op() -> Checked {
    let g = &mut Gen::new(5);
    for [b, t, h, k, v] in [[1, 1, 1, 1, 1], [1, 0, 1, 2, 2], [2, 6, 2, 3, 2], [1, 9, 1, 2, 5]] {
        let inputs: Inputs = vec![
            (("q", "[B, T, H, K]"), g.normal([b, t, h, k])),
            (("k", "[B, T, H, K]"), g.range([b, t, h, k], -1.0, 1.0)),
            (("v", "[B, T, H, V]"), g.normal([b, t, h, v])),
            (("beta", "[B, T, H]"), g.range([b, t, h], 0.0, 2.0)),
            (("s0", "[B, H, K, V]"), g.normal([b, h, k, v])),
        ];
        agree(&inputs, &[("o", "[B, T, H, V]"), ("s", "[B, H, K, V]")], &|x| sequence(x, 0.5), &|x| {
            let (o, s) = delta_rule(x[0], x[1], x[2], x[3], x[4], 0.5, 4);
            vec![o, s]
        })?;
    }
    Ok(())
}

fn as_torch() -> Checked {
    let outputs = [("o", "[B, T, H, V]"), ("s", "[B, H, K, V]")];
    golden("delta_rule_negeig_0.safetensors", &["q", "k", "v", "beta", "s0"], &outputs, &|x| {
        sequence(x, 8f64.powf(-0.5))
    })
}
