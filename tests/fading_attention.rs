//! Attention in which tokens fade: every kernel and form beside the recurrence, over sizes around tiles and gates that
//! are open, all but shut, and shut.
#![allow(clippy::unwrap_used)]

use proptest::prelude::*;
use tapezoo::{
    autograd::{Gen, Kernels, Tape, Var},
    models::{Form, fox},
    ops::attention::{causal_attention, fading_attention},
    tensor::{DType, Tensor},
};

/// Narrow heads go side by side, unless they are told to go by tiles.
const KERNELS: [&str; 2] = ["fast", "fast,-causal_attention.side_by_side"];
const WAYS: [(Form, &str); 3] = [(Form::Parallel, "fast"), (Form::Fused, KERNELS[0]), (Form::Fused, KERNELS[1])];
/// Lengths around the tiles of both kernels, and no token.
const LENGTHS: [usize; 14] = [0, 1, 2, 3, 15, 16, 17, 33, 63, 64, 65, 127, 128, 130];
const WIDTHS: [(usize, usize); 5] = [(1, 1), (3, 4), (8, 5), (9, 3), (17, 20)];

/// Half of the gates open, half in [−12, 0], and some that forget all, to rounding or altogether.
fn steep(g: &mut Gen) -> f64 {
    match g.below(40) {
        0 => -60.0,
        1 => -1e9,
        2 => f64::NEG_INFINITY,
        3..=20 => g.uniform(-12.0, 0.0),
        _ => 0.0,
    }
}

/// The number rounded to single precision.
fn single(x: f64) -> f64 {
    f64::from(x as f32)
}

/// q [B, T, H, K], k, v [B, S, H, ..], g [B, S, H].
fn inputs(g: &mut Gen, [b, t, past, h, k, v]: [usize; 6], gate: fn(&mut Gen) -> f64) -> [Tensor; 4] {
    let s = past + t;
    let mut normal = |n, width| g.tensor([b, n, h, width], |g| single(g.gauss()));
    let (q, key, value) = (normal(t, k), normal(s, k), normal(s, v));
    [q, key, value, g.tensor([b, s, h], |g| single(gate(g)))]
}

fn draw(seed: u64, t: usize, (k, v): (usize, usize)) -> [Tensor; 4] {
    let g = &mut Gen::new(seed);
    let (past, h, b) = ([0, 0, 1, 5, 16, 40][g.below(6)], [1, 3, 5][g.below(3)], 1 + g.below(3));
    inputs(g, [b, t, past, h, k, v], steep)
}

fn tape(kernels: &str) -> Tape {
    let tape = Tape::default().with_kernels(kernels.parse::<Kernels>().unwrap());
    tape.poison(true);
    tape
}

fn output(x: &[Tensor; 4], form: Form, dtype: DType, kernels: &str) -> Tensor {
    let tape = tape(kernels);
    fox::attention(x.each_ref().map(|x| tape.constant(&x.cast(dtype))), 0.7, form).value()
}

/// o and all gradients.
fn everything(x: &[Tensor; 4], form: Form, dtype: DType, kernels: &str) -> Vec<Vec<f64>> {
    let tape = tape(kernels);
    let x = x.each_ref().map(|x| tape.leaf(&x.cast(dtype)));
    let o = fox::attention(x, 0.7, form);
    let weights = Gen::new(3).tensor(o.shape(), |g| single(g.gauss()));
    tape.backward_from([(o, weights.cast(dtype))]);
    let grads = x.map(|x| x.grad().map_or(vec![0.0; x.shape().len()], |g| g.to_f64()));
    [o.value().to_f64()].into_iter().chain(grads).collect()
}

/// The largest ‖a − b‖ / ‖b‖.
fn error(got: &[Vec<f64>], want: &[Vec<f64>]) -> f64 {
    let norm = |x: &mut dyn Iterator<Item = f64>| x.map(|x| x * x).sum::<f64>().sqrt();
    let of = |(a, b): (&Vec<f64>, &Vec<f64>)| {
        assert_eq!(a.len(), b.len());
        let off = norm(&mut a.iter().zip(b).map(|(a, b)| a - b));
        if off == 0.0 { 0.0 } else { off / norm(&mut b.iter().copied()).max(1e-2) }
    };
    got.iter().zip(want).map(of).fold(0.0, |worst, x| if x > worst || x.is_nan() { x } else { worst })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn every_way_is_the_recurrence(seed in any::<u64>(), t in 0..LENGTHS.len(), width in 0..WIDTHS.len()) {
        let x = draw(seed, LENGTHS[t], WIDTHS[width]);
        let want = everything(&x, Form::Recurrent, DType::F64, "fast");
        for (form, by) in WAYS {
            for (dtype, allowed) in [(DType::F64, 1e-12), (DType::F32, 1e-4)] {
                let off = error(&everything(&x, form, dtype, by), &want);
                prop_assert!(off < allowed, "{form} by {by} in {dtype}, q {} k {}: off by {off:.1e}", x[0].shape(), x[1].shape());
            }
        }
    }

    /// A change at a later step changes no bit of an earlier output.
    #[test]
    fn what_comes_later_reaches_nothing_before(seed in any::<u64>(), t in 2..LENGTHS.len(), width in 0..WIDTHS.len()) {
        let x = draw(seed, LENGTHS[t], WIDTHS[width]);
        let g = &mut Gen::new(seed);
        let (cut, past) = (1 + g.below(LENGTHS[t] - 1), x[1].shape().at(1) - LENGTHS[t]);
        let (which, worth) = (g.below(4), [f64::NAN, f64::INFINITY, -f64::INFINITY][g.below(3)]);
        let from = if which == 0 { cut } else { cut + past };
        let mut changed = x.clone();
        let (_, n, inner) = x[which].shape().split(1);
        let later = |i: usize| i / inner % n >= from;
        let spoilt = x[which].to_f64().iter().enumerate().map(|(i, &x)| if later(i) { worth } else { x }).collect();
        changed[which] = Tensor::from_vec::<f64>(spoilt, x[which].shape());
        for (form, by) in WAYS {
            let read = |x: &[Tensor; 4]| Tape::default().constant(&output(x, form, DType::F32, by)).narrow(1, 0, cut).value().to_f64();
            prop_assert_eq!(read(&x), read(&changed), "{} by {}, {} from token {} of input {}", form, by, worth, cut, which);
        }
    }

    /// A gate that is shut hides all before it, and the hidden inputs have no gradient, to the last bit.
    #[test]
    fn nothing_passes_a_shut_gate(seed in any::<u64>(), t in 2..LENGTHS.len(), width in 0..WIDTHS.len()) {
        let g = &mut Gen::new(seed);
        let (n, (k, v)) = (LENGTHS[t], WIDTHS[width]);
        let cut = 1 + g.below(n - 1);
        let mut x = inputs(g, [2, n, 0, 3, k, v], |g| g.uniform(-1.0, 0.0));
        let shut = |i: usize| i / 3 % n == cut;
        let gates = x[3].to_f64().iter().enumerate().map(|(i, &x)| if shut(i) { f64::NEG_INFINITY } else { x }).collect();
        x[3] = Tensor::from_vec::<f64>(gates, x[3].shape());
        for by in KERNELS {
            let tape = tape(by);
            let leaves = x.each_ref().map(|x| tape.leaf(&x.cast(DType::F32)));
            let o = fading_attention(leaves, 0.7);
            let after = o.narrow(1, cut, n - cut);
            let alone = fading_attention(leaves.map(|x| x.narrow(1, cut, n - cut)), 0.7).value();
            let off = error(&[after.value().to_f64()], &[alone.to_f64()]);
            prop_assert!(off < 1e-6, "{by}: what is before the gate is seen, {off:.1e}");
            tape.backward_from([(after, Gen::new(3).normal(after.shape()).cast(DType::F32))]);
            for (name, x) in ["q", "k", "v", "g"].iter().zip(leaves) {
                let (grad, (_, n, inner)) = (x.grad().unwrap().to_f64(), x.shape().split(1));
                // The gate itself has none either: to open it by a factor changes nothing.
                let last = if *name == "g" { cut } else { cut - 1 };
                let before = grad.iter().enumerate().filter(|(i, _)| i / inner % n <= last);
                prop_assert!(before.clone().all(|(_, &d)| d == 0.0), "{}: d{} before the gate", by, name);
            }
        }
    }
}

/// Behind shut gates a query reads the value of its own key, and no score has a gradient, to the last bit.
#[test]
fn all_gates_shut_leave_every_token_alone() {
    for ((k, v), shut) in WIDTHS.into_iter().flat_map(|width| [f64::NEG_INFINITY, -1e9].map(|shut| (width, shut))) {
        let mut x = inputs(&mut Gen::new(9), [2, 37, 0, 3, k, v], |g| g.gauss());
        x[3] = Tensor::from_vec(vec![shut; x[3].len()], x[3].shape());
        for (form, by) in WAYS {
            for dtype in [DType::F64, DType::F32] {
                let [o, dq, dk, _, dg] = everything(&x, form, dtype, by).try_into().unwrap();
                assert_eq!(o, x[2].to_f64(), "{form} by {by} in {dtype}, heads of {k} and {v}");
                let none = [dq, dk, dg].iter().flatten().all(|&d| d == 0.0);
                assert!(none, "{form} by {by} in {dtype}, heads of {k} and {v}: scores have a gradient");
            }
        }
    }
}

/// What is hidden from a query is hidden from its gradient.
#[test]
fn a_later_key_or_value_reaches_no_gradient_of_an_earlier_query() {
    let (n, cut) = (70, 41);
    for ((k, v), worth) in WIDTHS.into_iter().flat_map(|width| [f64::NAN, f64::INFINITY].map(|worth| (width, worth))) {
        let x = inputs(&mut Gen::new(4), [2, n, 0, 3, k, v], |g| g.uniform(-0.5, 0.0));
        for (by, gated) in KERNELS.into_iter().flat_map(|by| [(by, false), (by, true)]) {
            let slope = |x: &[Tensor; 4]| {
                let tape = tape(by);
                let leaves = x.each_ref().map(|x| tape.leaf(&x.cast(DType::F32)));
                let [q, k, v, _] = leaves;
                let o = if gated { fading_attention(leaves, 0.7) } else { causal_attention(q, k, v, 0.7) };
                let before = o.narrow(1, 0, cut);
                tape.backward_from([(before, Gen::new(3).normal(before.shape()).cast(DType::F32))]);
                let (grad, (_, _, inner)) = (q.grad().unwrap().to_f64(), q.shape().split(1));
                let rows = grad.into_iter().enumerate();
                rows.filter(|(i, _)| i / inner % n < cut).map(|(_, slope)| slope).collect::<Vec<_>>()
            };
            let want = slope(&x);
            for which in [1, 2] {
                let mut changed = x.clone();
                let (_, _, inner) = x[which].shape().split(1);
                let all = x[which].to_f64().into_iter().enumerate();
                let spoilt = all.map(|(i, x)| if i / inner % n >= cut { worth } else { x }).collect();
                changed[which] = Tensor::from_vec::<f64>(spoilt, x[which].shape());
                let off = error(&[slope(&changed)], std::slice::from_ref(&want));
                assert!(
                    off < 1e-6,
                    "heads of {k} and {v} by {by}, gates {gated}, {worth} in {which}: off by {off:.1e}"
                );
            }
        }
    }
}

/// Open gates are no gates.
#[test]
fn attention_with_open_gates_is_attention() {
    for (k, v) in WIDTHS {
        let x = inputs(&mut Gen::new(5), [2, 70, 9, 3, k, v], |_| 0.0);
        for by in KERNELS {
            let tape = tape(by);
            let [q, k, v, g] = x.each_ref().map(|x| tape.constant(&x.cast(DType::F32)));
            let [plain, gated] = [causal_attention(q, k, v, 0.7), fading_attention([q, k, v, g], 0.7)];
            assert_eq!(plain.value().to_f64(), gated.value().to_f64(), "{by}");
        }
    }
}

/// One token has no weights to choose: what it reads is its value, and its scores have no gradient, to the last bit.
#[test]
fn one_token_has_no_choice() {
    for (k, v) in WIDTHS {
        let x = inputs(&mut Gen::new(9), [2, 1, 0, 3, k, v], steep);
        for (form, by) in WAYS {
            let all = everything(&x, form, DType::F32, by);
            assert_eq!(all[0], x[2].to_f64(), "{form} by {by}: o is v");
            for (name, d) in ["q", "k", "v", "g"].iter().zip(&all[1..]).filter(|(name, _)| **name != "v") {
                assert!(d.iter().all(|&d| d == 0.0), "{form} by {by}: d{name} of one token");
            }
        }
    }
}

/// A cache that is carried from piece to piece.
#[test]
fn a_sequence_in_pieces_is_the_sequence() {
    for (k, v) in WIDTHS {
        let x = inputs(&mut Gen::new(6), [2, 140, 0, 3, k, v], steep);
        let first = |x: Var<'static>, n: usize| x.narrow(1, 0, n);
        for (form, by) in WAYS {
            let whole = output(&x, form, DType::F32, by).to_f64();
            for cut in [1, 16, 63, 64, 65, 139] {
                let tape: &'static Tape = Box::leak(Box::new(tape(by)));
                let [q, k, v, g] = x.each_ref().map(|x| tape.constant(&x.cast(DType::F32)));
                let one = fox::attention([q, k, v, g].map(|x| first(x, cut)), 0.7, form);
                let two = fox::attention([q.narrow(1, cut, 140 - cut), k, v, g], 0.7, form);
                let off = error(&[Var::concat(&[one, two], 1).value().to_f64()], std::slice::from_ref(&whole));
                assert!(off < 1e-6, "{form} by {by}, {cut} and {}: off by {off:.1e}", 140 - cut);
            }
        }
    }
}

/// Sums of thousands of gates keep their digits in single precision, with small gates that are alike and with large
/// ones.
#[test]
fn single_precision_is_enough_for_long_sequences() {
    let gates: [fn(&mut Gen) -> f64; 3] =
        [|_| -1e-3, |g| g.uniform(-5.0, 0.0), |g| if g.below(50) == 0 { -1e9 } else { g.uniform(-1e-2, 0.0) }];
    for (i, gate) in gates.into_iter().enumerate() {
        for (k, v) in [(4, 4), (17, 16)] {
            let x = inputs(&mut Gen::new(7), [1, 2000, 0, 1, k, v], gate);
            let want = everything(&x, Form::Fused, DType::F64, "fast");
            for by in KERNELS {
                let got = everything(&x, Form::Fused, DType::F32, by);
                for ((name, got), want) in ["o", "dq", "dk", "dv", "dg"].iter().zip(got).zip(&want) {
                    let off = error(&[got], std::slice::from_ref(want));
                    println!("gates {i}, {k} by {by}: {name} {off:.1e}");
                    assert!(off < 1e-5, "gates {i}, heads of {k} by {by}: {name} is off by {off:.1e}");
                }
            }
        }
    }
}

/// Twice the length needs twice the memory, not four times as much.
#[test]
fn memory_grows_with_the_length() {
    let peak = |t: usize, by: &str| {
        let x = inputs(&mut Gen::new(8), [1, t, 0, 1, 4, 4], |g| g.uniform(-1.0, 0.0));
        let tape = tape(by);
        let x = x.each_ref().map(|x| tape.leaf(&x.cast(DType::F32)));
        tape.backward(fading_attention(x, 0.5).sum());
        tape.cx().pool().peak()
    };
    for by in KERNELS {
        let [one, two] = [1024, 2048].map(|t| peak(t, by));
        assert!(two * 10 < one * 21, "{by}: {one} bytes and {two}");
    }
}
