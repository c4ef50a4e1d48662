//! The basic ops at their edges: extreme numbers, empty tensors, and the panics for mistakes in a formula.

mod close;
mod device;

use approx::abs_diff_eq;
use close::close;
use std::{
    cell::{Cell, RefCell},
    panic,
    sync::Once,
};
use tapezoo::{
    autograd::{Gen, Tape, Var},
    models::{Form, Model, ModelConfig},
    ops::{
        lru_scan::{lru_scan, lru_scan_joined},
        selective::selective_scan,
    },
    tensor::{DType, Shape, Tensor},
    train::optimizer::{Adam, AdamConfig},
};

fn ints(v: &[i32], shape: impl Into<Shape>) -> Tensor {
    Tensor::from_vec(v.to_vec(), shape)
}

/// The value of a formula of one input, and the gradient of its sum, both as `f64`.
fn with_gradient(x: &Tensor, f: impl for<'t> Fn(Var<'t>) -> Var<'t>) -> (Vec<f64>, Vec<f64>) {
    let tape = Tape::default();
    tape.poison(true);
    let x = tape.leaf(x);
    let y = f(x);
    tape.backward(y.square().sum());
    (y.value().to_f64(), x.grad().expect("x is a leaf").to_f64())
}

#[test]
fn extreme_logits_stay_finite() {
    for dtype in [DType::F32, DType::F64] {
        for n in [1, 3, 16, 19] {
            let mut mixed = vec![0.0; n];
            (mixed[0], mixed[n - 1]) = (-1e4, 1e4);
            for row in [mixed, vec![1e4; n], vec![-1e4; n], vec![0.0; n]] {
                let x = Tensor::from_vec(row.clone(), [1, n]).cast(dtype);
                let finite = |(y, g): (Vec<f64>, Vec<f64>)| {
                    assert!(y.iter().chain(&g).all(|v| v.is_finite()), "{row:?} gives {y:?} with gradient {g:?}");
                    y
                };
                let p = finite(with_gradient(&x, |x| x.softmax()));
                close(p.iter().sum(), 1.0, 1e-6, format_args!("the sum of softmax {row:?}"));
                finite(with_gradient(&x, |x| x.causal_softmax(n)));
                finite(with_gradient(&x, |x| x.log_softmax()));
                let y = finite(with_gradient(&x, |x| x.logsumexp()))[0];
                let best = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                assert!(y >= best && y <= best + 3.0, "logsumexp {row:?} is {y}");
                let target = ints(&[0], [1]);
                let loss = finite(with_gradient(&x, |x| x.cross_entropy(x.tape().constant(&target), -1)))[0];
                assert!(abs_diff_eq!(loss, y - row[0], epsilon = 1e-3), "loss {loss} for {row:?}");
            }
        }
    }
}

#[test]
fn rows_of_zeros_have_finite_norms_and_gradients() {
    for dtype in [DType::F32, DType::F64] {
        for n in [1, 4, 19] {
            let (x, w) = (Tensor::zeros([2, n], dtype), Tensor::full([n], dtype, 1.0));
            for (y, g) in [
                with_gradient(&x, |x| x.layer_norm(x.tape().constant(&w), None, 1e-5)),
                with_gradient(&x, |x| x.rms_norm(x.tape().constant(&w), 1e-6)),
                with_gradient(&x, |x| x.l2_norm(1e-12)),
                with_gradient(&x, |x| x.l2_norm_smooth(1e-6)),
            ] {
                assert_eq!((y, g), (vec![0.0; 2 * n], vec![0.0; 2 * n]));
            }
        }
    }
}

/// Sequences share vector registers and scratch memory, and states are padded to four: nothing leaks from one to
/// another.
#[test]
fn what_is_not_finite_in_one_sequence_of_a_scan_stays_there() {
    let sizes = [(3, 5, 20, 3), (7, 4, 5, 2), (2, 3, 16, 4), (3, 4, 8, 4), (3, 4, 8, 3), (5, 4, 4, 6)];
    for ((batch, t, e, n), dtype) in sizes.iter().flat_map(|&size| [(size, DType::F32), (size, DType::F64)]) {
        let g = &mut Gen::new(1);
        let (row, state) = ([batch, t, e], [batch, t, n]);
        let a = g.range([e, n], -2.0, -0.1).cast(dtype);
        let all = [g.normal(row), g.range(row, 0.1, 1.0), g.normal(state), g.normal(state), g.normal([batch, e, n])];
        let run = |all: &[Tensor]| {
            let tape = Tape::default();
            tape.poison(true);
            let x: Vec<_> = all.iter().map(|x| tape.leaf(&x.cast(dtype))).collect();
            let (y, h) = selective_scan(x[0], x[1], tape.constant(&a), x[2], x[3], x[4], 1.0, 2);
            tape.backward(y.square().sum() + h.square().sum());
            let grads = x.iter().map(|x| x.grad().unwrap());
            [y.value(), h.value()].into_iter().chain(grads).map(|x| x.to_f64()).collect::<Vec<_>>()
        };
        let tame = run(&all);
        for sequence in [0, batch - 1] {
            let mut wild = all.clone();
            for (i, value) in [(0, f64::INFINITY), (1, f64::NAN), (3, f64::NAN), (4, f64::INFINITY)] {
                let mut x = all[i].to_f64();
                let each = x.len() / batch;
                x[sequence * each] = value;
                wild[i] = Tensor::from_vec(x, all[i].shape());
            }
            for (tame, wild) in tame.iter().zip(&run(&wild)) {
                let each = tame.len() / batch;
                let others = |x: &[f64]| [&x[..sequence * each], &x[(sequence + 1) * each..]].concat();
                assert_eq!(others(tame), others(wild), "{batch} x {t} x {e} x {n}, {dtype}, sequence {sequence}");
            }
        }
    }
}

/// Where states decay, exponentials are computed without an overflow check; here they need one.
#[test]
fn a_state_that_grows_beyond_all_bounds_is_infinite() {
    // Widths at which a vector holds one sequence, two, four and more.
    for (e, (delta, a), s) in [16, 8, 4, 1].iter().flat_map(|&e| {
        let both = [(1.0, 100.0), (-1.0, -100.0)];
        both.into_iter().flat_map(move |rates| [(e, rates, 1.0), (e, rates, 2.0)])
    }) {
        let tape = Tape::default();
        let of = |shape: &[usize], value| tape.leaf(&Tensor::full(Shape::new(shape), DType::F32, value));
        let (u, row, state) = (of(&[1, 3, e], 1.0), of(&[1, 3, 1], 1.0), of(&[1, e, 1], 1.0));
        let (y, last) = selective_scan(u, of(&[1, 3, e], delta), of(&[e, 1], a), row, row, state, s, 2);
        for x in [y, last].iter().flat_map(|x| x.value().to_f64()) {
            assert_eq!(x, f64::INFINITY, "Δ = {delta}, a = {a}, s = {s}, {e} channels");
        }
        tape.backward(y.sum());
        let grad = state.grad().unwrap().to_f64();
        assert!(grad.iter().all(|g| !g.is_finite()), "Δ = {delta}, a = {a}, s = {s}, {e} channels: {grad:?}");
    }
}

/// The rate is multiplied by log₂ e, which overflows for the largest rates: e^(Δ a) must still be 1 for Δ = 0 and 0
/// otherwise. NaN stays NaN, whatever its bits.
#[test]
fn after_no_time_a_state_is_still_there_at_any_rate() {
    for (batch, e) in [(1, 16), (3, 8), (3, 4), (2, 1)] {
        let run = |delta: f32, a: f32| {
            let tape = Tape::default();
            let of = |shape: &[usize], value| tape.leaf(&Tensor::full(Shape::new(shape), DType::F32, value));
            let (row, state) = (of(&[batch, 2, 1], 1.0), of(&[batch, e, 1], 1.0));
            let (u, a) = (of(&[batch, 2, e], 1.0), tape.leaf(&Tensor::from_vec(vec![a; e], [e, 1])));
            let (_, last) = selective_scan(u, of(&[batch, 2, e], f64::from(delta)), a, row, row, state, 1.0, 2);
            tape.backward(last.sum());
            [last.value(), a.grad().unwrap()].map(|x| x.to_f64())
        };
        assert_eq!(run(0.0, -f32::MAX), [vec![1.0; batch * e], vec![0.0; e]], "{batch} x {e}");
        assert_eq!(run(1.0, -f32::MAX)[0], vec![1.0; batch * e], "{batch} x {e}");
        for bits in [0x7fc00000, 0x7fffffff, 0xffc00001] {
            assert!(run(1.0, f32::from_bits(bits))[0].iter().all(|x| x.is_nan()), "{batch} x {e}, {bits:x}");
        }
    }
}

/// Every op on shapes with an empty axis, for the batch, for time, and for both: no panic, and gradients of the inputs'
/// shapes without NaN.
#[test]
fn empty_tensors_pass_through_every_op() {
    for (device, [b, t]) in device::all().into_iter().flat_map(|d| [[0, 3], [2, 0], [0, 0]].map(|sizes| (d, sizes))) {
        let d = 4;
        let run = |shape: &[usize], f: &dyn for<'t> Fn(Var<'t>, Var<'t>, Var<'t>) -> Var<'t>| {
            let tape = Tape::new(device);
            tape.poison(true);
            let g = &mut Gen::new(1);
            let (x, w) = (tape.leaf(&g.normal(shape)), tape.leaf(&g.normal([d])));
            let ids = tape.constant(&g.ints([b, t], 2));
            let y = f(x, w, ids);
            tape.backward_from([(y, Tensor::full(y.shape(), DType::F64, 1.0).to_device(tape.cx()))]);
            for v in [x, w] {
                if let Some(g) = v.grad() {
                    assert_eq!(g.shape(), v.shape());
                    assert!(g.all_finite(), "{:?}", g.to_f64());
                }
            }
            y.value()
        };
        let x = [b, t, d];
        for axis in 0..3 {
            run(&x, &|x, _, _| x.narrow(axis, 0, x.shape().dims()[axis] / 2));
            run(&x, &|x, _, _| Var::concat(&[x, x], axis));
            run(&x, &|x, _, _| x.sum_axis(axis, axis == 1));
            run(&x, &|x, _, _| x.mean_axis(axis, axis == 1));
            run(&x, &|x, _, _| x.max_axis(axis, axis == 1));
            run(&x, &|x, _, _| x.cumsum(axis));
            run(&x, &|x, _, _| x.transpose(axis, 2 - axis));
        }
        assert_eq!(run(&[0, 2], &|x, _, _| x.max_axis(0, false)).to_f64(), [f64::NEG_INFINITY; 2]);
        assert_eq!(run(&[0, 2], &|x, _, _| x.mean_axis(0, false)).to_f64(), [0.0; 2]);
        run(&x, &|x, _, _| x.permute([1, 2, 0]));
        for (i, o) in [(d, 3), (d, 0), (0, 3)] {
            fn half<'t>(x: Var<'t>, shape: &[usize]) -> Var<'t> {
                x.tape().full(shape, DType::F64, 0.5)
            }
            run(&[b, t, i], &|x, _, _| x.linear(half(x, &[o, i]), Some(half(x, &[o]))));
            run(&[b, t, i], &|x, _, _| x.linear(half(x, &[o, i]), None));
        }
        for shape in [[b, t, d], [b, t, 0]] {
            run(&shape, &|x, w, _| x.gated_skip(w.narrow(0, 0, x.shape().last()), x, x));
        }
        run(&x, &|x, _, _| x.tril(0));
        assert_eq!(run(&x, &|x, _, _| x.sum()).item(), 0.0);
        assert_eq!(run(&x, &|x, _, _| x.mean()).item(), 0.0);
        for shape in [[b, t, d], [d, b, t]] {
            run(&shape, &|x, _, _| x.logsumexp());
            run(&shape, &|x, _, _| x.softmax());
            run(&shape, &|x, _, _| x.log_softmax());
            run(&shape, &|x, _, _| x.causal_softmax(1));
            run(&shape, &|x, _, _| x.l2_norm(1e-12));
            run(&shape, &|x, _, _| x.l2_norm_smooth(1e-6));
            run(&shape, &|x, _, _| x.rms_norm(x.tape().full([x.shape().last()], DType::F64, 1.0), 1e-6));
        }
        run(&x, &|x, w, _| x.layer_norm(w, Some(w), 1e-5));
        run(&x, &|x, w, _| x.rms_norm(w, 1e-6));
        run(&[2, d], &|w, _, ids| w.embedding(ids));
        run(&x, &|x, _, ids| x.gather(ids));
        assert_eq!(run(&x, &|x, _, ids| x.cross_entropy(ids, -1)).item(), 0.0);
        run(&x, &|x, w, _| {
            let state = x.tape().full([b, 1, d], DType::F64, 0.0);
            x.causal_conv1d(Var::concat(&[w.reshape([d, 1]), w.reshape([d, 1])], 1), Some(w), state)
        });
    }
}

thread_local! {
    static EXPECTED: Cell<bool> = const { Cell::new(false) };
    /// (message, file, line) of the last expected panic of this thread.
    static LAST: RefCell<(String, String, u32)> = const { RefCell::new((String::new(), String::new(), 0)) };
}

/// The message of a formula's panic, and its file and line.
fn complaint(f: impl FnOnce()) -> (String, String, u32) {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let unexpected = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            match (EXPECTED.get(), info.payload().downcast_ref::<String>(), info.location()) {
                (true, Some(why), Some(at)) => LAST.set((why.clone(), at.file().into(), at.line())),
                _ => unexpected(info),
            }
        }));
    });
    EXPECTED.set(true);
    let result = panic::catch_unwind(panic::AssertUnwindSafe(f));
    EXPECTED.set(false);
    assert!(result.is_err(), "nothing was wrong with it");
    LAST.take()
}

/// Asserts that the formula panics on its own line with a message that has all of the words in it.
macro_rules! complains {
    ($x:expr, $($word:literal),+) => {{
        // On one line, so that it is the formula's line.
        let ((message, file, at), line) = (complaint(|| { let _ = $x; }), line!());
        for word in [$($word),+] {
            assert!(message.contains(word), "'{message}' has no '{word}'");
        }
        assert!(file.ends_with("ops_edges.rs") && at == line, "{file}:{at} is not this line, {line}");
    }};
}

#[test]
#[rustfmt::skip] // each formula on the line of its macro
fn a_mistake_is_told_with_op_shapes_and_line() {
    let tape = Tape::default();
    let x = tape.full([2, 3, 4], DType::F64, 1.0);
    let w = tape.full([5], DType::F64, 1.0);
    let ids = tape.constant(&ints(&[0, 1, 2, 7, 0, 0], [2, 3]));
    complains!(x.permute([0, 1]), "permute", "[0, 1]", "[2, 3, 4]");
    complains!(x.permute([0, 1, 1]), "permute", "[0, 1, 1]", "[2, 3, 4]");
    complains!(x.transpose(0, 3), "transpose", "[2, 3, 4]");
    complains!(x.narrow(1, 2, 2), "narrow", "2 indices from 2 on", "[2, 3, 4]");
    complains!(x.narrow(1, usize::MAX, 2), "narrow", "2 indices from", "[2, 3, 4]");
    let single = x.cast(DType::F32);
    complains!(ids.exp(), "exp", "[2, 3]", "integers");
    complains!(ids * 2.0, "affine", "[2, 3]", "integers");
    complains!(ids + ids, "add", "[2, 3]", "integers");
    complains!(tape.full([2, 3], DType::F64, 1.0).matmul(tape.full([4, 5], DType::F64, 1.0)), "matmul", "[2, 3]", "[4, 5]");
    complains!(x.matmul_t(single), "matmul", "f32", "f64", "[2, 3, 4]");
    complains!(ids.matmul_t(ids), "matmul", "[2, 3]", "integers");
    complains!(x.narrow(1, 0, 2).tril_matmul(single.transpose(1, 2)), "tril_matmul", "f32", "f64");
    complains!(x.narrow(2, 0, 3).unit_lower_solve(single), "unit_lower_solve", "f32", "f64", "[2, 3, 4]");
    complains!(x.narrow(3, 0, 1), "narrow", "[2, 3, 4]");
    complains!(Var::concat(&[x, x.narrow(2, 0, 1)], 1), "concat", "[2, 3, 4]", "[2, 3, 1]");
    complains!(Var::concat(&[x, w], 0), "concat", "[2, 3, 4]", "[5]");
    complains!(Var::concat(&[x, x.narrow(1, 0, 0)], 2), "concat", "[2, 3, 4]", "[2, 0, 4]");
    complains!(w.tril(0), "tril", "[5]");
    complains!(x.sum_axis(3, false), "sum_axis", "[2, 3, 4]");
    complains!(x.mean_axis(3, false), "mean_axis", "[2, 3, 4]");
    complains!(x.max_axis(3, false), "max_axis", "[2, 3, 4]");
    complains!(x.cumsum(3), "cumsum", "[2, 3, 4]");
    complains!(x.sum().logsumexp(), "logsumexp", "[]");
    complains!(x.sum().softmax(), "softmax", "[]");
    complains!(w.causal_softmax(0), "causal_softmax", "[5]");
    complains!(x.layer_norm(w, None, 1e-5), "layer_norm", "[2, 3, 4]", "[5]");
    complains!(x.rms_norm(w, 1e-5), "rms_norm", "[2, 3, 4]", "[5]");
    complains!(x.sum().l2_norm(1e-12), "l2_norm", "scalar");
    complains!(w.reshape([5, 1]).embedding(ids), "embedding", "id 7", "0..5", "[5, 1]", "[2, 3]");
    complains!(w.reshape([5, 1]).embedding(tape.constant(&ints(&[-1, 2], [2]))), "embedding", "id -1", "0..5", "[2]");
    complains!(x.embedding(ids), "embedding", "[2, 3, 4]", "[2, 3]");
    complains!(w.reshape([5, 1]).embedding(x), "embedding", "f64", "i32");
    complains!(x.gather(ids), "gather", "id 7", "0..4", "[2, 3, 4]", "[2, 3]");
    complains!(w.gather(ids), "gather", "[5]", "[2, 3]");
    complains!(x.cross_entropy(ids, -1), "cross_entropy", "target 7", "0..4", "[2, 3, 4]");
    complains!(w.cross_entropy(ids, -1), "cross_entropy", "[5]", "[2, 3]");
    let lambda = (x.tape().full([2], x.dtype(), 0.5), x.tape().full([2], x.dtype(), 0.5));
    let h0 = (x.tape().full([2, 2], x.dtype(), 0.0), x.tape().full([2, 2], x.dtype(), 0.0));
    complains!(lru_scan(lambda, (x.narrow(2, 0, 1), x.narrow(2, 0, 3)), h0, 4), "lru_scan", "[2, 3, 1]", "[2, 3, 3]");
    complains!(lru_scan(lambda, (x, x), h0, 4), "lru_scan", "[2, 3, 8]", "[2]");
    complains!(lru_scan_joined(lambda, x.narrow(2, 0, 3), h0, 4), "lru_scan", "[2, 3, 3]", "[2]");
    complains!(x.gated_skip(w, x, x), "gated_skip", "[2, 3, 4]", "[5]");
    complains!(x.gated_skip(x.narrow(0, 0, 1).reshape([12]).narrow(0, 0, 4), x, x.transpose(1, 2)), "gated_skip", "[2, 4, 3]");
    complains!(x.linear(w.reshape([5, 1]), Some(w)), "linear", "[5, 1]", "[2, 3, 4]");
    complains!(x.transpose(1, 2).glu(), "glu", "halves", "[2, 4, 3]");
    complains!(x.causal_conv1d(w.reshape([5, 1]), None, x), "causal_conv1d", "[2, 3, 4]", "[5, 1]");
    complains!(x.causal_conv1d(x.narrow(0, 0, 1).reshape([4, 3]), None, x), "causal_conv1d", "state", "[2, 3, 4]", "[4, 3]");
    complains!(x.causal_conv1d(x.reshape([6, 4]).narrow(0, 0, 4), Some(w), x), "causal_conv1d", "[5]", "[2, 3, 4]");
    complains!(ids.softmax(), "softmax", "integers", "[2, 3]");
    let other = Tape::default();
    let z = other.full([2, 3, 4], DType::F64, 1.0);
    complains!(x + z, "two tapes", "[2, 3, 4]", "tape.constant(&v.value())");
    complains!(Var::concat(&[x, z], 0), "two tapes");
    complains!(x.reshape([1, 1, 1, 2, 3, 4]), "at most 5 axes", "[1, 1, 1, 2, 3, 4]");
    complains!(tape.full([1, 1, 1, 2, 3, 4], DType::F64, 1.0), "at most 5 axes", "[1, 1, 1, 2, 3, 4]");
    complains!(Gen::new(0).normal([1, 1, 1, 2, 3, 4]), "at most 5 axes", "[1, 1, 1, 2, 3, 4]");
    let mut model = Model::new(&ModelConfig { mixer: "gla".into(), vocab: 5, ..ModelConfig::default() }, 0, DType::F32).unwrap();
    let p = model.params().bind(&tape);
    complains!(model.forward(&p, ids, Form::Recurrent), "token 7", "0..5");
    complains!(model.forward(&p, tape.constant(&ints(&[0, 4], [1, 2])), Form::Fused), "'fused'", "gla", "it has recurrent, parallel, split, chunked");
    let (mut adam, grads) = (Adam::of(model.params(), AdamConfig::default()), model.params().flat().clone());
    complains!(adam.update(0.1, model.params_mut(), &grads), "shared", "reset the tape");
}

#[test]
fn what_is_joined_to_nothing_is_not_copied() {
    let tape = Tape::default();
    let x = tape.leaf(&tape.full([2, 3], DType::F64, 1.0).value());
    let (none, before) = (x.narrow(1, 3, 0), tape.len());
    let y = Var::concat(&[none, x, none], 1);
    assert_eq!((y.shape(), tape.len()), (x.shape(), before));
    assert_eq!(Var::concat(&[none, none], 1).shape().dims(), [2, 0]);
}
