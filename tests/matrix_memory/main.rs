//! The fused matrix memories against their formulas, a step at a time: values, states and all gradients.

mod runs;

use approx::abs_diff_eq;
use proptest::prelude::*;
use runs::*;
use tapezoo::{
    autograd::{Gen, Tape, Var},
    models::{Form, gated_delta_net},
    ops::{
        attention::causal_attention,
        delta::{delta_rule, gated_delta_rule},
        linear_attn::{linear_attention, linear_attention_normalized},
    },
    tensor::{DType, Shape, Tensor},
};

/// Small sizes, and sizes for which matrix products are used.
const SIZES: [(usize, usize); 6] = [(1, 1), (4, 4), (3, 5), (6, 2), (20, 24), (32, 17)];

#[test]
fn chunks_of_any_length_equal_single_steps() {
    for (i, (k, v)) in SIZES.into_iter().enumerate() {
        for c in [1, 4, 5, 16] {
            for t in [0, 1, c - 1, c, c + 1, 13] {
                let z = Size { b: 2 + 4 * (i % 2), t, h: 3, k, v };
                let (x, dy) = tensors(z, (t * 100 + c) as u64);
                for dy in masks(&dy) {
                    let want = defined(delta(0.7, c), &x, &dy);
                    same(&run(delta(0.7, c), &x, &dy, DType::F64), &want, 1e-10, &format!("delta, chunk {c}, {z:?}"));
                    let x = [x[0].clone(), x[1].clone(), x[2].clone(), x[4].clone()];
                    let want = defined(linear(0.7, c), &x, &dy);
                    same(&run(linear(0.7, c), &x, &dy, DType::F64), &want, 1e-11, &format!("linear, chunk {c}, {z:?}"));
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn delta_rule_equals_its_recurrence(b in 1..4usize, t in 0..20usize, h in 1..4usize, k in 1..20usize, v in 1..20usize,
                                        c in 1..9usize, seed in any::<u64>()) {
        let z = Size { b, t, h, k, v };
        let (x, dy) = tensors(z, seed);
        let want = defined(delta(0.5, c), &x, &dy);
        same(&run(delta(0.5, c), &x, &dy, DType::F64), &want, 1e-9, "f64");
        same(&run(delta(0.5, c), &x, &dy, DType::F32), &want, 1e-4, "f32");
    }

    #[test]
    fn normalised_linear_attention_equals_its_recurrence(b in 1..4usize, t in 1..12usize, h in 1..4usize, k in 1..20usize,
                                                         v in 1..20usize, c in 1..9usize, seed in any::<u64>(), which in 1..8usize) {
        let g = &mut Gen::new(seed);
        let mut features = |shape: &[usize]| g.range(shape, 0.1, 2.0);
        let (q, key, z0) = (features(&[b, t, h, k]), features(&[b, t, h, k]), features(&[b, h, k]));
        let x = [q, key, g.normal([b, t, h, v]), g.normal([b, h, k, v]), z0];
        let dy: Vec<_> = [vec![b, t, h, v], vec![b, h, k, v], vec![b, h, k]]
            .iter().enumerate().map(|(i, s)| (which >> i & 1 == 1).then(|| g.normal(Shape::new(s)))).collect();
        let want = defined(normalized(0.6, 0.3, c), &x, &dy);
        same(&run(normalized(0.6, 0.3, c), &x, &dy, DType::F64), &want, 1e-10, "f64");
        same(&run(normalized(0.6, 0.3, c), &x, &dy, DType::F32), &want, 1e-4, "f32");
    }

    #[test]
    fn attention_equals_its_definition(b in 1..6usize, t in 0..150usize, cache in 0..9usize, h in 1..5usize, k in 1..24usize,
                                       v in 1..24usize, scale in prop::sample::select(vec![0.1, 0.8, 5.0]),
                                       seed in any::<u64>()) {
        let (s, g) = (t + cache, &mut Gen::new(seed));
        let x = [g.normal([b, t, h, k]), g.normal([b, s, h, k]), g.normal([b, s, h, v])];
        let dy = g.normal([b, t, h, v]);
        let dy = [Some(dy)];
        let want = defined(attention(scale), &x, &dy);
        let got = run(attention(scale), &x, &dy, DType::F64);
        same(&got, &want, 1e-10, "f64");
        same(&run(attention(scale), &x, &dy, DType::F32), &want, 1e-4, "f32");
        // Once more with the same inputs: gradients are added.
        let twice = run(|x| [attention(scale)(x), attention(scale)(x)].concat(), &x, &[dy.clone(), dy].concat(), DType::F64);
        for (got, once) in twice.dx.iter().zip(&got.dx) {
            let want: Vec<f64> = once.iter().map(|x| 2.0 * x).collect();
            prop_assert!(error(got, &want) < 1e-14, "added: {:.1e} off", error(got, &want));
        }
    }
}

/// Keys without queries have no gradient, also where the heads are wide.
#[test]
fn attention_of_no_queries_moves_no_keys() {
    for k in [3, 20] {
        let g = &mut Gen::new(1);
        let x = [g.normal([2, 0, 2, k]), g.normal([2, 3, 2, k]), g.normal([2, 3, 2, k])];
        let r = run(attention(1.0), &x, &[Some(g.normal([2, 0, 2, k]))], DType::F64);
        assert!(r.dx[0].is_empty() && r.dx[1] == [0.0; 12].repeat(k) && r.dx[2] == r.dx[1], "heads of {k}");
    }
}

#[test]
fn delta_rule_at_the_ends_of_beta_and_with_special_keys() {
    for (k, v) in [(4, 4), (20, 24)] {
        let z = Size { b: 2, t: 13, h: 2, k, v };
        let (x, dy) = tensors(z, 1);
        let unit = |f: &dyn Fn(usize) -> usize| {
            let mut rows = vec![0.0; 2 * 13 * 2 * k];
            rows.chunks_mut(k).enumerate().for_each(|(r, row)| row[f(r / 2 % 13) % k] = 1.0);
            Tensor::from_vec(rows, [2, 13, 2, k])
        };
        let mut all = vec![];
        for beta in [0.0, 1.0, 2.0] {
            for keys in [x[1].clone(), unit(&|_| 0), unit(&|t| t)] {
                let beta = Tensor::full([2, 13, 2], DType::F64, beta);
                let x = [x[0].clone(), keys, x[2].clone(), beta, x[4].clone()];
                let want = defined(delta(1.0, 8), &x, &dy);
                let got = run(delta(1.0, 8), &x, &dy, DType::F64);
                same(&got, &want, 1e-11, "special");
                all.push((x, got));
            }
        }
        // Nothing is written at β = 0; with β = 1, one key or orthogonal keys hold exactly their last value.
        assert_eq!(all[0].1.y[1], x[4].to_f64());
        let last = all[4].1.y[1][..v].to_vec();
        assert!(error(&last, &x[2].to_f64()[12 * 2 * v..][..v]) < 1e-12, "{last:?}");
    }
}

/// Gates from 'keep everything' to 'forget everything', in single precision: chunks lose no digits in sums of gates.
#[test]
fn gates_of_any_size_give_the_recurrence() {
    for (k, v) in [(4, 4), (20, 24)] {
        let z = Size { b: 2, t: 70, h: 2, k, v };
        let (mut x, dy) = tensors(z, 6);
        for strength in [0.0, 1e-3, 1.0, 30.0, 1e4] {
            let gates = Gen::new(7).range([2, 70, 2], 0.0, 1.0).to_f64();
            // Some steps forget little between others that forget much.
            let gates: Vec<f64> = gates.iter().map(|g| -strength * g * g * g * g).collect();
            x.truncate(5);
            x.push(Tensor::from_vec(gates, [2, 70, 2]));
            let want = run(gated_steps, &x, &dy, DType::F64);
            for chunk in [1, 7, 32, 100] {
                let what = format!("{strength}, chunk {chunk}");
                same(&run(gated(chunk), &x, &dy, DType::F64), &want, 1e-10, &what);
                same(&run(gated(chunk), &x, &dy, DType::F32), &want, 1e-4, &what);
            }
        }
    }
}

fn gated_steps<'t>(x: &[Var<'t>]) -> Vec<Var<'t>> {
    let inputs = [x[0], x[1], x[2], x[3], x[5]];
    let (o, s) = gated_delta_net::sequence(inputs, x[4], 0.7, Form::Recurrent);
    vec![o, s]
}

fn gated(chunk: usize) -> impl for<'t> Fn(&[Var<'t>]) -> Vec<Var<'t>> {
    move |x| {
        let (o, s) = gated_delta_rule(x[0], x[1], x[2], x[3], x[5], x[4], 0.7, chunk);
        vec![o, s]
    }
}

#[test]
fn long_keys_stay_finite_in_single_precision() {
    for (k, v) in [(4, 4), (32, 32)] {
        let z = Size { b: 1, t: 64, h: 2, k, v };
        let (mut x, dy) = tensors(z, 3);
        // Keys of length 8, with β |k|² at most 2.
        x[1] = Tensor::from_vec(
            x[1].to_f64()
                .chunks(k)
                .flat_map(|r| r.iter().map(|a| 8.0 * a / dot(r, r).sqrt()).collect::<Vec<_>>())
                .collect(),
            x[1].shape(),
        );
        x[3] = Tensor::full([1, 64, 2], DType::F64, 1.99 / 64.0);
        let want = defined(delta(1.0, 8), &x, &dy);
        same(&run(delta(1.0, 16), &x, &dy, DType::F32), &want, 1e-4, "long keys");
    }
}

#[test]
fn two_thousand_reflections_do_not_drift() {
    for (k, v) in [(4, 4), (32, 32)] {
        let z = Size { b: 1, t: 2000, h: 1, k, v };
        let (mut x, dy) = tensors(z, 4);
        x[1] = Tensor::from_vec(
            x[1].to_f64().chunks(k).flat_map(|r| r.iter().map(|a| a / dot(r, r).sqrt()).collect::<Vec<_>>()).collect(),
            x[1].shape(),
        );
        x[3] = Gen::new(5).range([1, 2000, 1], 1.9, 1.999);
        let exact = run(delta(1.0, 32), &x, &dy, DType::F64);
        same(&run(delta(1.0, 32), &x, &dy, DType::F32), &exact, 1e-3, "drift");
        let want = defined(delta(1.0, 8), &x, &dy);
        same(&exact, &want, 1e-9, "f64");
    }
}

#[test]
fn a_triangular_system_is_solved() {
    let n = 64;
    let l = Gen::new(6).range([2, n, n], -0.3, 0.3);
    let tape = Tape::default();
    let identity = |n: usize| -> Vec<f64> { (0..n * n).map(|i| if i % (n + 1) == 0 { 1.0 } else { 0.0 }).collect() };
    let one = tape.constant(&Tensor::from_vec(identity(n).repeat(2), [2, n, n]).cast(DType::F32));
    let x = tape.constant(&l.cast(DType::F32)).unit_lower_solve(one).value().to_f64();
    for (l, x) in l.to_f64().chunks(n * n).zip(x.chunks(n * n)) {
        let at = |i: usize, j: usize| {
            if i == j {
                1.0
            } else if j < i {
                l[i * n + j]
            } else {
                0.0
            }
        };
        let size = x.iter().fold(1.0f64, |m, x| m.max(x.abs()));
        for i in 0..n {
            for j in 0..n {
                let y: f64 = (0..n).map(|m| at(i, m) * x[m * n + j]).sum();
                let want = if i == j { 1.0 } else { 0.0 };
                assert!(abs_diff_eq!(y, want, epsilon = 1e-5 * size), "({i}, {j}): {y}");
                assert!(j <= i || x[i * n + j] == 0.0, "({i}, {j}): {}", x[i * n + j]);
            }
        }
    }
    // L of equal keys at β = 1 is all ones below the diagonal, and its inverse has two diagonals: 1 and −1.
    let one = tape.constant(&Tensor::from_vec(identity(5), [5, 5]).cast(DType::F32));
    let ones = tape.full([5, 5], DType::F32, 1.0).unit_lower_solve(one).value().to_f64();
    for (at, &x) in ones.iter().enumerate() {
        let (i, j) = (at / 5, at % 5);
        assert_eq!(
            x,
            if i == j {
                1.0
            } else if i == j + 1 {
                -1.0
            } else {
                0.0
            }
        );
    }
}

#[test]
fn nothing_in_gives_nothing_out() {
    for (k, v) in [(4, 4), (20, 24)] {
        for (b, t, h) in [(0, 3, 2), (2, 0, 2), (2, 3, 0)] {
            let (x, dy) = tensors(Size { b, t, h, k, v }, 12);
            let r = run(delta(1.0, 8), &x, &dy, DType::F32);
            assert_eq!((&r.y[0], &r.y[1]), (&vec![], &x[4].cast(DType::F32).to_f64()), "{b} times {t} times {h}");
            let x = [x[0].clone(), x[1].clone(), x[2].clone(), x[4].clone()];
            assert_eq!(
                run(linear(1.0, 8), &x, &dy, DType::F32).dx[3],
                dy[1].as_ref().expect("given").cast(DType::F32).to_f64()
            );
            let dx = run(attention(1.0), &x[..3], &dy[..1], DType::F32).dx;
            assert!(dx.iter().all(Vec::is_empty), "{dx:?}");
        }
    }
}

/// Steps `range` of a tensor [B, T, ..].
fn steps(x: &Tensor, range: std::ops::Range<usize>) -> Tensor {
    let (dims, n) = (x.shape().dims().to_vec(), x.shape().dims()[2..].iter().product::<usize>());
    let rows = x.to_f64().chunks(dims[1] * n).flat_map(|b| b[range.start * n..range.end * n].to_vec()).collect();
    Tensor::from_vec(rows, x.shape().with(1, range.len()))
}

fn close(a: &[f64], b: &[f64]) {
    assert!(error(a, b) < 1e-12, "{:.1e}", error(a, b));
}

#[test]
fn a_sequence_in_two_pieces_equals_one_run() {
    for (k, v) in [(4, 4), (20, 24)] {
        let z = Size { b: 2, t: 23, h: 2, k, v };
        let (x, _) = tensors(z, 7);
        let tape = Tape::default();
        let c = |x: &Tensor| tape.constant(x);
        for cut in [1, 8, 22] {
            let part = |i: usize, r: std::ops::Range<usize>| tape.constant(&steps(&x[i], r));
            let piece = |r: std::ops::Range<usize>, s0| {
                let [q, k, v, b] = [0, 1, 2, 3].map(|i| part(i, r.clone()));
                (delta_rule(q, k, v, b, s0, 0.5, 8), linear_attention(q, k, v, s0, 0.5, 8))
            };
            let (whole_d, whole_l) = piece(0..23, c(&x[4]));
            let (first_d, first_l) = piece(0..cut, c(&x[4]));
            let (second_d, second_l) = (piece(cut..23, first_d.1).0, piece(cut..23, first_l.1).1);
            for (whole, first, second) in [(whole_d, first_d, second_d), (whole_l, first_l, second_l)] {
                close(&first.0.value().to_f64(), &steps(&whole.0.value(), 0..cut).to_f64());
                close(&second.0.value().to_f64(), &steps(&whole.0.value(), cut..23).to_f64());
                close(&second.1.value().to_f64(), &whole.1.value().to_f64());
            }
            let whole = causal_attention(part(0, 0..23), part(1, 0..23), part(2, 0..23), 0.5);
            let second = causal_attention(part(0, cut..23), part(1, 0..23), part(2, 0..23), 0.5);
            close(&second.value().to_f64(), &steps(&whole.value(), cut..23).to_f64());
        }
    }
}

/// The gradients of q, k, v and β do not depend on whether the gradient of the first state is asked for; without it the
/// last chunk needs one product less.
#[test]
fn gradients_do_not_depend_on_which_are_asked_for() {
    for (k, v) in [(4, 4), (20, 24)] {
        let (x, dy) = tensors(Size { b: 2, t: 23, h: 2, k, v }, 11);
        let [asked, not] = [true, false].map(|asked| {
            let tape = Tape::default();
            let leaves: Vec<_> = x[..4].iter().map(|x| tape.leaf(x)).collect();
            let s0 = if asked { tape.leaf(&x[4]) } else { tape.constant(&x[4]) };
            let z0 = tape.full([2, 2, k], x[4].dtype(), 9.0);
            let [q, key, value, beta] = [0, 1, 2, 3].map(|i| leaves[i]);
            let all = [
                delta_rule(q, key, value, beta, s0, 0.5, 5).0,
                linear_attention(q, key, value, s0, 0.5, 5).0,
                linear_attention_normalized(q, key, value, (s0, z0), 0.5, 5.0, 5).0,
            ];
            let seed = dy[0].clone().expect("do");
            tape.backward_from(all.into_iter().map(|o| (o, seed.clone())));
            leaves.iter().map(|x| x.grad().map(|g| g.to_f64())).collect::<Vec<_>>()
        });
        assert!(asked.iter().all(Option::is_some) && asked == not, "heads of {k} by {v}");
    }
}

#[test]
fn softmax_at_its_extremes() {
    for (k, v) in [(4, 4), (32, 32)] {
        let g = &mut Gen::new(11);
        let shape = |n: usize| [1, 40, 1, n];
        let (q, key, val, dy) = (g.normal(shape(k)), g.normal(shape(k)), g.normal(shape(v)), g.normal(shape(v)));
        let values = val.to_f64();
        let x = [q, key, val];
        let dy = [Some(dy)];
        // The first query sees the first key only; scores of 1e4 neither overflow nor give NaN.
        for scale in [1.0, 1e4] {
            let r = run(attention(scale), &x, &dy, DType::F32);
            assert!(
                error(&r.y[0][..v], &values[..v]) < 1e-6,
                "scale {scale}: {:?}, not {:?}",
                &r.y[0][..v],
                &values[..v]
            );
            assert!(r.y.iter().chain(&r.dx).flatten().all(|x| x.is_finite()), "scale {scale}: {:?}, {:?}", r.y, r.dx);
        }
        // Equal scores give the mean of the values so far.
        let r = run(attention(0.0), &x, &dy, DType::F32);
        for t in 0..40 {
            let mean: Vec<f64> =
                (0..v).map(|c| (0..=t).map(|s| values[s * v + c]).sum::<f64>() / (t + 1) as f64).collect();
            assert!(
                error(&r.y[0][t * v..(t + 1) * v], &mean) < 1e-6,
                "step {t}: {:?}, not {mean:?}",
                &r.y[0][t * v..(t + 1) * v]
            );
        }
    }
}

#[test]
#[should_panic(expected = "s0 [1, 1, 2, 2] should be [1, 1, 2, 3] for q [1, 4, 1, 2] and v [1, 4, 1, 3]")]
fn a_state_of_another_shape_is_named() {
    let tape = Tape::default();
    let x = |shape: &[usize]| tape.full(shape, DType::F32, 1.0);
    let (q, v) = (x(&[1, 4, 1, 2]), x(&[1, 4, 1, 3]));
    linear_attention(q, q, v, x(&[1, 1, 2, 2]), 1.0, 2);
}
