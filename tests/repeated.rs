//! Rows that are copies of few are computed once, and nothing else changes.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use tapezoo::{
    autograd::{Gen, Rows, Tape, Var},
    models::{self, Form, Model, ModelConfig, Positions, Variant, published},
    ops::{OPS, lstm::lstm_sequence, quasi_lstm::quasi_lstm},
    tensor::{DType, Shape, Tensor},
};

fn close(a: &[f64], b: &[f64], tolerance: f64) -> bool {
    let scale = b.iter().fold(1.0, |top: f64, b| top.max(b.abs()));
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| (a - b).abs() <= tolerance * scale)
}

/// f(table[id]) = f(table)[id], and the gradient of the table is the sum of those of its copies.
#[test]
fn an_op_that_sees_single_rows_runs_on_the_rows_of_the_table() {
    let mut seen = BTreeSet::new();
    for (name, sample) in OPS {
        for seed in 0..20 {
            let (op, inputs) = sample(&mut Gen::new(seed));
            if op.rows() != Rows::Alone {
                continue;
            }
            seen.insert(*name);
            let g = &mut Gen::new(seed + 100);
            let (rows, n) = (inputs[0].shape().rows(), inputs[0].shape().last());
            let (kind, table) = (op.name(), inputs[0].reshape([rows, n]));
            // In more than one block of the sum of the table's gradient, every other time.
            let shape = [if seed % 2 == 0 { 4 } else { 2100 / rows.max(1) }, rows];
            let mut ids = g.ints(shape, rows);
            (0..rows).for_each(|i| ids.host_mut::<i32>()[i] = i as i32); // all occur
            let [whole, once] = [false, true].map(|once| {
                let tape = Tape::default();
                tape.start_profile();
                let ids = tape.constant(&ids);
                let mut x: Vec<Var> = inputs.iter().map(|x| tape.leaf(x)).collect();
                x[0] = tape.leaf(&table);
                let copies = x[0].embedding(ids);
                let rest = &x[1..];
                // A value from elsewhere, of which the tape does not know how it came about.
                let apart = tape.leaf(&copies.value());
                let first = if once { copies } else { apart };
                let y = tape.apply_dyn(sample(&mut Gen::new(seed)).0, &[&[first], rest].concat());
                let [y] = y[..] else { panic!("{name} has more results than one") };
                assert_eq!(y.shape().rows(), shape[0] * rows, "{name}");
                let value = y.value().to_f64();
                tape.backward_from([(y, Gen::new(seed + 200).normal(y.shape()))]);
                let mut grads: Vec<_> = rest.iter().map(|x| x.grad().unwrap().to_f64()).collect();
                if !once {
                    // The sum of the copies' gradients, by hand.
                    let (mut sum, d) = (vec![0.0; rows * n], apart.grad().unwrap().to_f64());
                    for (i, &id) in ids.value().host::<i32>().iter().enumerate() {
                        (0..n).for_each(|j| sum[id as usize * n + j] += d[i * n + j]);
                    }
                    grads.push(sum);
                } else {
                    grads.push(x[0].grad().unwrap().to_f64());
                }
                (value, grads, tape.take_profile().0[kind])
            });
            assert!(close(&once.0, &whole.0, 1e-13), "{name}: values");
            for (i, (a, b)) in once.1.iter().zip(&whole.1).enumerate() {
                assert!(close(a, b, 1e-12), "{name}: gradient {i}");
            }
            assert_eq!(whole.2.bytes, shape[0] * once.2.bytes, "{name}: what it wrote");
        }
    }
    let single = "Exp Log Expm1 Sqrt Square Sin Cos Sigmoid Tanh Silu Softplus Elu Elu1 GeluTanh Gelu Affine Linear \
        LinearActivated LayerNorm RmsNorm";
    assert_eq!(seen, single.split_whitespace().collect(), "the ops that see single rows");
}

/// Values of x [B, T, 4D] by a recurrence, with a random W_hh and initial states: leaves besides, and results.
fn recurrence<'t>(name: &str, x: Var<'t>, d: usize, chunk: usize) -> (Vec<Var<'t>>, Vec<Var<'t>>) {
    let (g, tape, b) = (&mut Gen::new(3), x.tape(), x.shape().at(0));
    let mut leaf = |shape: [usize; 2]| tape.leaf(&g.normal(shape).cast(x.dtype()));
    let (c0, h0, w) = (leaf([b, d]), leaf([b, d]), leaf([4 * d, d]));
    match name {
        "quasi_lstm" => {
            let (h, c) = quasi_lstm(x, c0, 0.7, chunk);
            (vec![c0], vec![h, c])
        }
        "lstm_sequence" => {
            let (h, h_last, c_last) = lstm_sequence(x, w, h0, c0);
            (vec![w, h0, c0], vec![h, h_last, c_last])
        }
        _ => panic!("{name} takes a table and is not tested"),
    }
}

/// An op that runs in time over inputs of single rows: here too, copied rows are as any others.
#[test]
fn a_recurrence_of_copied_rows_is_that_of_the_rows() {
    let ops = OPS.iter().map(|(_, sample)| sample(&mut Gen::new(0)).0).filter(|op| op.rows() == Rows::Kinds);
    let ops: BTreeSet<_> = ops.map(|op| op.name()).collect();
    assert_eq!(ops, BTreeSet::from(["lstm_sequence", "quasi_lstm"]), "the ops that take a table");
    let sizes = [
        (1, 1, 1, 12, 20),
        (3, 4, 2, 7, 7),
        (2, 16, 3, 9, 4),
        (5, 33, 2, 13, 5),
        (2, 8, 3, 7, 4),
        (1, 32, 3, 7, 9),
        (2, 70, 3, 8, 3),
        (3, 4, 2, 8, 3),
        (2, 16, 5, 260, 64), // in more than one block of the sum of the table's gradient
        (2, 3, 1, 1100, 2000),
    ];
    let cases = sizes.iter().flat_map(|&size| ops.iter().map(move |&op| (size, op)));
    let both = |case| [(case, DType::F64, 1e-13), (case, DType::F32, 1e-5)];
    for (((kinds, d, b, t, chunk), name), dtype, tolerance) in cases.flat_map(both) {
        let g = &mut Gen::new(d as u64);
        let mut normal = |shape: &[usize]| g.normal(Shape::new(shape)).cast(dtype);
        let (table, more) = (normal(&[kinds + 1, 4 * d]), normal(&[b, t, 4 * d]));
        let direct = normal(&[kinds + 1, 4 * d]);
        let mut ids = g.ints([b, t], kinds);
        ids.host_mut::<i32>()[0] = kinds as i32; // a row that occurs once
        let [apart, copied] = [false, true].map(|copied| {
            let tape = Tape::default();
            tape.poison(true);
            let table = tape.leaf(&table);
            let rows = table.embedding(tape.constant(&ids));
            let x = if copied { rows } else { rows.reshape([b, t, 4 * d]) };
            tape.start_profile();
            let (leaves, results) = recurrence(name, x, d, chunk);
            let copies = tape.take_profile().0.contains_key("embedding");
            // Later uses of both, so that there are gradients to be added to.
            let sum = (x * tape.constant(&more)).sum() + (table * tape.constant(&direct)).sum();
            let u = results.iter().enumerate().map(|(i, y)| (*y, Gen::new(i as u64).normal(y.shape()).cast(dtype)));
            tape.backward_from(u.chain([(sum, Tensor::full([], dtype, 1.0))]));
            let grads = leaves.iter().chain([&table]).map(|x| x.grad().unwrap().to_f64());
            (results.iter().map(|y| y.value().to_f64()).chain(grads).collect::<Vec<_>>(), copies)
        });
        for (i, (a, b)) in copied.0.iter().zip(&apart.0).enumerate() {
            assert!(close(a, b, tolerance), "{name} in {dtype}: {kinds} kinds, d {d}: number {i}");
        }
        let few = b * t >= 4 * (kinds + 1);
        assert_eq!(copied.1, !few, "{name}: {kinds} kinds of {} rows, d {d}: copied only if they are not few", b * t);
    }
}

/// A row is copied when somebody looks at it, once.
#[test]
fn rows_are_copied_when_somebody_looks() {
    let ids: Vec<i32> = (0..24).map(|i| i % 2).collect();
    let (x, w) = (Gen::new(1).normal([2, 3]), Gen::new(2).normal([5, 3]));
    let want: Vec<f64> = ids.iter().flat_map(|&id| x.to_f64()[3 * id as usize..][..3].to_vec()).collect();
    type Look = fn(&Tape, Var) -> Vec<f64>;
    let looks: [(&str, Look); 5] = [
        ("value", |_, x| x.value().to_f64()),
        ("reshape", |_, x| x.reshape([72]).value().to_f64()),
        ("an op on its rows", |_, x| (x - 0.0).value().to_f64()),
        ("the second input of an op", |tape, x| (tape.full([24, 3], DType::F64, 0.0) + x).value().to_f64()),
        ("a name", |tape, x| {
            tape.start_naming();
            _ = x.named("x");
            tape.take_named()[0].value.to_f64()
        }),
    ];
    for (what, look) in looks {
        let tape = Tape::default();
        tape.poison(true);
        tape.start_profile();
        let copies = tape.leaf(&x).embedding(tape.constant(&Tensor::from_vec(ids.clone(), [24])));
        let later = copies.linear(tape.leaf(&w), None);
        assert_eq!(tape.first_not_finite(), None, "{what}: of what was not copied nothing is wrong");
        tape.backward(later.sum());
        let calls = || {
            let profile = tape.take_profile();
            tape.start_profile();
            profile.0.get("embedding").map_or(0, |cost| cost.calls)
        };
        assert_eq!(calls(), 1, "{what}: of the results alone, for their sum");
        assert_eq!(look(&tape, copies), want, "{what}");
        assert_eq!(calls(), 1, "{what}");
        copies.value();
        let elsewhere = what == "an op on its rows"; // which was run on the table, and its result copied
        assert_eq!(calls(), usize::from(elsewhere), "{what}: copied once");
    }
}

/// Few rows of a large table, and rows that are one kind each, are computed as they are.
#[test]
fn a_table_that_is_not_small_is_left_alone() {
    let linear_bytes = |rows: usize, ids: usize| {
        let (g, tape) = (&mut Gen::new(1), Tape::default());
        tape.start_profile();
        let ids: Vec<i32> = (0..ids as i32).map(|i| i % rows as i32).collect();
        let ids = tape.constant(&Tensor::from_vec(ids.clone(), [ids.len()]));
        tape.leaf(&g.normal([rows, 3])).embedding(ids).linear(tape.leaf(&g.normal([5, 3])), None);
        tape.take_profile().0["linear"].bytes
    };
    assert_eq!(linear_bytes(10, 39), 39 * 5 * 8);
    assert_eq!(linear_bytes(10, 40), 10 * 5 * 8);
}

/// A row that no index names has no part in anything, whatever it holds: its gradient is 0, and not 0 · ∞.
#[test]
fn a_row_that_nobody_uses_may_hold_anything() {
    for nothing in [0.0, f64::NAN, f64::INFINITY] {
        let (g, tape) = (&mut Gen::new(1), Tape::default());
        let table = tape.leaf(&Tensor::from_vec(vec![1.0, 4.0, nothing, 9.0, 16.0, 25.0], [6, 1]));
        let w = tape.leaf(&g.normal([3, 1]));
        let ids = [0, 1, 3, 4, 5].repeat(9);
        let y = table.embedding(tape.constant(&Tensor::from_vec(ids, [45]))).sqrt().linear(w, None);
        tape.backward(y.sum());
        let grad = table.grad().unwrap().to_f64();
        assert!(grad[2] == 0.0 && grad.iter().all(|g| g.is_finite()), "{nothing}: {grad:?}");
        assert!(w.grad().unwrap().all_finite());
        assert_eq!(tape.first_not_finite(), None);
    }
}

#[test]
#[should_panic(expected = "linear: x [8, 3] of f64 and w [5, 4] of f64 do not fit")]
fn what_does_not_fit_is_refused_with_the_shape_of_the_formula() {
    let (g, tape) = (&mut Gen::new(1), Tape::default());
    let ids = tape.constant(&g.ints([8], 2));
    tape.leaf(&g.normal([2, 3])).embedding(ids).linear(tape.leaf(&g.normal([5, 4])), None);
}

/// Where every token at every place has a row, one that does not exist would be another token at the next place.
#[test]
#[should_panic(expected = "id 3 is outside 0..3")]
fn a_token_that_does_not_exist_is_not_taken_for_another() {
    let (vocab, width, max_len) = (3, 4, 8);
    let c = ModelConfig { vocab, width, max_len, positions: Positions::Learned, ..ModelConfig::default() };
    let (model, tape) = (Model::new(&c, 1, DType::F32).unwrap(), Tape::default());
    let mut tokens = vec![0; 12 * 8];
    tokens[17] = 3;
    let tokens = tape.constant(&Tensor::from_vec(tokens, [12, 8]));
    model.forward(&model.params().bind(&tape), tokens, model.default_form());
}

/// Loss and gradients by name of a model of `vocab` tokens, of which the first three are used. What does not depend on the
/// vocabulary has the weights of the model of three.
/// With how many bytes its norms gave.
fn gradients(c: &ModelConfig, vocab: usize, form: Form) -> (f64, Vec<(String, Vec<f64>)>, usize) {
    let three = Model::new(&ModelConfig { vocab: 3, ..c.clone() }, 5, DType::F64).unwrap();
    let mut model = Model::new(&ModelConfig { vocab, ..c.clone() }, 5, DType::F64).unwrap();
    let entries = model.params().entries().to_vec();
    let flat = model.params_mut().flat_mut().host_mut::<f64>();
    for (entry, (name, value)) in entries.iter().zip(three.params().tensors()) {
        assert_eq!(entry.name, name);
        flat[entry.offset..][..value.len()].copy_from_slice(&value.to_f64());
    }
    let (g, tape) = (&mut Gen::new(7), Tape::default());
    let p = model.params().bind(&tape);
    // Each of the three at every place.
    let (first, mut tokens) = (g.ints([16], 3), g.ints([13, 16], 3));
    for (i, token) in tokens.host_mut::<i32>().iter_mut().enumerate().take(3 * 16) {
        *token = (first.host::<i32>()[i % 16] + i as i32 / 16) % 3;
    }
    tape.start_profile();
    let loss =
        model.train(&p, tape.constant(&tokens), form, None).log_softmax().gather(tape.constant(&g.ints([13, 16], 2)));
    let loss = loss.sum();
    tape.backward(loss);
    let grads = entries.iter().zip(p.vars()).zip(three.params().entries()).map(|((entry, v), small)| {
        let grad = v.grad().unwrap().to_f64();
        assert!(grad[small.shape.len()..].iter().all(|&g| g == 0.0), "{}: tokens that nobody used", entry.name);
        (entry.name.clone(), grad[..small.shape.len()].to_vec())
    });
    let grads = grads.collect();
    (loss.value().item(), grads, tape.take_profile().0.get("layer_norm").map_or(0, |cost| cost.bytes))
}

/// The same with a vocabulary of three, all of whose tokens occur often, and with one of five hundred, more than there are
/// tokens: tokens that nobody uses change nothing.
#[test]
fn the_size_of_the_vocabulary_changes_no_gradient() {
    let all = [(Variant::Clean, models::names()), (Variant::Published, published::names())];
    for (variant, names) in all {
        for name in names {
            for positions in [Positions::None, Positions::Learned, Positions::Sinusoidal] {
                let c = ModelConfig {
                    mixer: name.into(),
                    variant,
                    positions,
                    width: 8,
                    heads: 2,
                    head_dim: 4,
                    mlp: 8,
                    state: 4,
                    max_len: 16,
                    ..ModelConfig::default()
                };
                let Ok(model) = Model::new(&c, 1, DType::F64) else {
                    assert_eq!((name, variant), ("lru", Variant::Published), "the one that embeds no tokens");
                    continue;
                };
                for form in model.forms() {
                    let (loss, grads, few) = gradients(&c, 3, form);
                    let (expected, others, all) = gradients(&c, 500, form);
                    // The first norm is of three rows, or with positions of three at each place; those of the published
                    // LRU are over the batch.
                    assert!(few < all || (name, variant) == ("lru", Variant::Published), "{name} {form} {positions:?}");
                    assert!((loss - expected).abs() <= 1e-9 * expected.abs(), "{name} {form}: {loss}, not {expected}");
                    for ((which, a), (_, b)) in grads.iter().zip(&others) {
                        assert!(close(a, b, 1e-8), "{name} {form} {positions:?}: gradient of {which}");
                    }
                }
            }
        }
    }
}
