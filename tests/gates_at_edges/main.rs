//! Gated recurrences and attention at the edges of their inputs: gates shut or wide open, steps that write nothing,
//! infinite scores and rates. In every form, in both precisions, on the CPU and emulated.
#![allow(clippy::unwrap_used)]

#[path = "../close/mod.rs"]
mod close;
#[path = "../device/mod.rs"]
mod device;

use approx::abs_diff_eq;
use close::close;
use device::device;
use tapezoo::{
    autograd::{Gen, Kernels, Op, Tape, Var},
    models::{Form, gpt, mamba, mlstm, slstm},
    ops::{attention::causal_attention, lstm::LstmSequence, quasi_lstm::QuasiLstm},
    tensor::{DType, Device, Tensor},
};

const INF: f64 = f64::INFINITY;
/// Differences below this are beyond single precision.
const TINY: f64 = 1e-30;
const MLSTM: [Form; 4] = [Form::Parallel, Form::Chunked(1), Form::Chunked(4), Form::Chunked(64)];

/// All outputs, then the gradients of all inputs of Σ⟨random, output⟩.
type Run = Vec<Vec<f64>>;

/// The CPU and, where there is a C++ compiler, the emulated device, in both precisions.
fn places() -> Vec<(Device, DType)> {
    let devices = [Some(Device::Cpu), device()].into_iter().flatten();
    devices.flat_map(|d| [(d, DType::F64), (d, DType::F32)]).collect()
}

fn run(
    (device, dtype): (Device, DType),
    x: &[Tensor],
    form: Form,
    f: impl for<'t> Fn(&[Var<'t>], Form) -> Vec<Var<'t>>,
) -> Run {
    let tape = Tape::new(device);
    tape.poison(true);
    let v: Vec<Var> = x.iter().map(|x| tape.leaf(&x.cast(DType::F32).cast(dtype))).collect();
    let y = f(&v, form);
    let mut all: Run = y.iter().map(|y| y.value().to_f64()).collect();
    let mut g = Gen::new(7);
    tape.backward_from(y.iter().map(|&y| (y, g.normal(y.shape()).cast(DType::F32).cast(dtype))));
    all.extend(v.iter().map(|v| v.grad().map_or_else(|| vec![0.0; v.shape().len()], |g| g.to_f64())));
    all
}

/// The largest difference in a tensor, relative to its largest element or to `least`, and its position. Equal
/// infinities agree; NaN agrees with nothing.
fn distance(a: &[Vec<f64>], b: &[Vec<f64>], least: f64) -> (f64, String) {
    let mut worst = (0.0, String::new());
    for (tensor, (a, b)) in a.iter().zip(b).enumerate() {
        assert_eq!(a.len(), b.len());
        let size = b.iter().filter(|x| x.is_finite()).fold(least, |m, x| m.max(x.abs()));
        for (i, (a, b)) in a.iter().zip(b).enumerate().filter(|(_, (a, b))| a != b) {
            let error = (a - b).abs() / size;
            let error = if error.is_nan() { INF } else { error };
            if error > worst.0 {
                worst = (error, format!("{error:.1e}: number {i} of result {tensor} is {a:e}, not {b:e}"));
            }
        }
    }
    worst
}

/// Every form of `f`, on each device and in each precision, equals the recurrent form in double precision.
fn agree(
    what: &str,
    x: &[Tensor],
    forms: &[Form],
    (single, least): (f64, f64),
    f: impl for<'t> Fn(&[Var<'t>], Form) -> Vec<Var<'t>> + Copy,
) -> Run {
    let want = run((Device::Cpu, DType::F64), x, Form::Recurrent, f);
    assert!(want.iter().flatten().all(|x| !x.is_nan()), "{what}: the reference is NaN");
    for place in places() {
        for &form in [Form::Recurrent].iter().chain(forms) {
            let got = run(place, x, form, f);
            let (error, worst) = distance(&got, &want, least);
            let allowed = if place.1 == DType::F64 { 1e-9 } else { single };
            assert!(error <= allowed, "{what}, {form} {} on {}: off by {worst}", place.1, place.0);
        }
    }
    want
}

/// h, C, n, m from q, k, v, i, f and a fresh memory.
fn memory<'t>(x: &[Var<'t>], form: Form) -> Vec<Var<'t>> {
    let full = |shape: &[usize]| x[0].tape().full(shape, x[0].dtype(), 0.0);
    let ([b, _, h, k], v) = (x[0].dims(), x[2].shape().last());
    let mut s = [full(&[b, h, k, v]), full(&[b, h, k]), full(&[b, h]), full(&[b, h])];
    let y = mlstm::sequence([x[0], x[1], x[2]], [x[3], x[4]], &mut s, 0.01, form);
    vec![y, s[0], s[1], s[2]]
}

/// h, c, n, m from the gates and R of a fresh sLSTM.
fn cell<'t>(x: &[Var<'t>], form: Form) -> Vec<Var<'t>> {
    let [b, _, d4] = x[0].dims();
    let zero = x[0].tape().full([b, d4 / 4], x[0].dtype(), 0.0);
    let mut s = [zero; 5];
    let h = slstm::sequence(x[0], x[1], &mut s, form);
    vec![h, s[1], s[2], s[3]]
}

fn attention<'t>(x: &[Var<'t>], form: Form) -> Vec<Var<'t>> {
    vec![match form {
        Form::Recurrent => gpt::recurrent(x[0], x[1], x[2], 1.0),
        Form::Fused => causal_attention(x[0], x[1], x[2], 1.0),
        _ => gpt::parallel(x[0], x[1], x[2], 1.0),
    }]
}

/// y and h from u, Δ, A, B, C and h₀.
fn selective<'t>(x: &[Var<'t>], form: Form) -> Vec<Var<'t>> {
    let (y, h) = mamba::sequence([0, 1, 2, 3, 4].map(|i| x[i]), x[5], 1.0, form);
    vec![y, h]
}

/// A tensor [B, T, ..] whose elements depend on the step.
fn by_step(shape: &[usize], f: impl Fn(usize) -> f64) -> Tensor {
    let inner: usize = shape[2..].iter().product();
    Tensor::from_vec((0..shape.iter().product()).map(|i| f(i / inner % shape[1])).collect(), shape)
}

/// q, k, v, i, f: keys and queries that are similar, so that nothing cancels in n·q.
fn memory_inputs(g: &mut Gen, t: usize, k: usize, i: impl Fn(usize) -> f64, f: impl Fn(usize) -> f64) -> Vec<Tensor> {
    let key = [2, t, 2, k];
    let keys = [g.range(key, 0.2, 1.0), g.range(key, 0.2, 1.0), g.normal(key)];
    keys.into_iter().chain([by_step(&[2, t, 2], i), by_step(&[2, t, 2], f)]).collect()
}

/// Gates i and f of an sLSTM by step, z and o at random; and R.
fn cell_inputs(g: &mut Gen, t: usize, i: impl Fn(usize) -> f64, f: impl Fn(usize) -> f64) -> Vec<Tensor> {
    let d = 6;
    let mut x = g.normal([2, t, 4 * d]).to_f64();
    for (at, x) in x.iter_mut().enumerate() {
        match at / d % 4 {
            0 => *x = i(at / (4 * d) % t) + 0.1 * *x,
            1 => *x = f(at / (4 * d) % t),
            _ => {}
        }
    }
    vec![Tensor::from_vec(x, [2, t, 4 * d]), g.range([4, 2, 3, 3], -0.5, 0.5)]
}

/// Forget gates so open that σ(−f̃) underflows: the gradient still goes to the argument that won the stabiliser's
/// maximum.
#[test]
fn the_winner_is_known_where_its_slope_is_no_number() {
    let g = &mut Gen::new(1);
    for open in [20.0, 95.0, 120.0, 800.0] {
        let input = |t: usize| [0.3, -1.0, -2.0, 1.5, 1.0, -3.0, 0.2][t % 7];
        for k in [1, 5, 18] {
            let x = memory_inputs(g, 9, k, input, |_| open);
            agree(&format!("mlstm, f = {open}, K = {k}"), &x, &MLSTM, (2e-5, TINY), memory);
        }
        agree(&format!("slstm, f = {open}"), &cell_inputs(g, 9, input, |_| open), &[Form::Fused], (2e-5, TINY), cell);
    }
}

/// The sums of the four gates, one after the other.
fn gate_sums<'t>(x: &[Var<'t>]) -> Var<'t> {
    Var::concat(&x[..4], 2)
}

/// Gates so far open or shut that 1 − σ and 1 − tanh² are rounded away if they are differences. Each gate's gradient is
/// judged by its own largest number, in units of the cotangents.
#[test]
fn what_a_gate_lacks_of_one_has_its_digits() {
    let g = &mut Gen::new(9);
    for case in 0..24 {
        let (t, d) = (4, if case % 2 == 0 { 6 } else { 34 });
        let mut biases = [0.0; 4];
        biases.fill_with(|| [5.0, 15.0, 30.0, 60.0, 100.0][g.below(5)] * if g.coin() { 1.0 } else { -1.0 });
        let mut x: Vec<Tensor> = biases.iter().map(|&b| g.range([2, t, d], b - 0.5, b + 0.5)).collect();
        let what = format!("biases {biases:?}, {d} channels");
        x.push(g.normal([2, d]));
        agree(&format!("quasi_lstm, {what}"), &x, &[Form::Scan(2), Form::Scan(64)], (2e-5, TINY), |x, form| {
            let chunk = if let Form::Scan(c) = form { c } else { 1 };
            let (op, x) = (QuasiLstm { chunk, forget_bias: 1.0 }, [gate_sums(x), x[4]]);
            if form == Form::Recurrent { op.formula(&x).unwrap() } else { x[0].tape().apply_dyn(Box::new(op), &x) }
        });
        x.extend([g.normal([2, d]), g.range([4 * d, d], -0.1, 0.1)]);
        agree(&format!("lstm, {what}"), &x, &[Form::Fused], (2e-5, TINY), |x, form| {
            let (op, x) = (LstmSequence, [gate_sums(x), x[6], x[5], x[4]]);
            if form == Form::Recurrent { op.formula(&x).unwrap() } else { x[0].tape().apply_dyn(Box::new(op), &x) }
        });
        x.splice(4.., [g.range([4, 2, d / 2, d / 2], -0.1, 0.1)]);
        // A stabiliser between both gates' exponents: what the smaller of them weighs is no number beyond 60.
        agree(&format!("slstm, {what}"), &x, &[Form::Fused], (5e-5, TINY), |x, form| cell(&[gate_sums(x), x[4]], form));
    }
}

/// Of two equal arguments of a stabiliser's maximum each gets half of its gradient.
#[test]
fn equal_arguments_of_a_stabiliser_share_its_gradient() {
    let g = &mut Gen::new(10);
    for k in [1, 5, 18] {
        // Nothing is forgotten: what was written at every step is as large as what is written.
        for t in [2, 3, 9] {
            let x = memory_inputs(g, t, k, |_| 0.25, |_| 800.0);
            agree(&format!("mlstm, {t} steps, K = {k}"), &x, &MLSTM, (2e-5, TINY), memory);
            let run = agree("the stabiliser", &x, &MLSTM, (1e-6, TINY), |x, form| memory(x, form)[3..].to_vec());
            let ct = Gen::new(7).normal([2, 2]).cast(DType::F32).to_f64();
            for (at, d) in run[4].iter().enumerate() {
                let (row, s) = (at / 2 / t * 2 + at % 2, at / 2 % t);
                let want = ct[row] * 0.5f64.powi((t - s.max(1)) as i32);
                close(*d, want, 1e-12, format_args!("di of step {s} of {t}"));
            }
        }
    }
    for t in [2, 5] {
        let x = g.tensor([2, t, 24], |g| g.gauss()).to_f64().into_iter().enumerate();
        let x = x.map(|(i, x)| [0.25, 800.0, x, x][i / 6 % 4]).collect();
        let x = [Tensor::from_vec(x, [2, t, 24]), Tensor::zeros([4, 2, 3, 3], DType::F64)];
        agree(&format!("slstm, {t} steps"), &x, &[Form::Fused], (2e-5, TINY), cell);
        let run = agree("the stabiliser", &x, &[Form::Fused], (1e-6, TINY), |x, form| cell(x, form)[3..].to_vec());
        let ct = Gen::new(7).normal([2, 6]).cast(DType::F32).to_f64();
        for (at, d) in run[1].iter().enumerate().filter(|(at, _)| at / 6 % 4 == 0) {
            let (row, s) = (at / 24 / t * 6 + at % 6, at / 24 % t);
            let want = ct[row] * 0.5f64.powi((t - s.max(1)) as i32);
            close(*d, want, 1e-12, format_args!("di of step {s} of {t}"));
        }
    }
}

/// As with maxima of two at a time.
#[test]
fn equal_maxima_share_a_gradient() {
    let rows = vec![1.0, 3.0, 3.0, 2.0, 2.0, 2.0, 5.0, -INF, 5.0];
    let want = [0.0, 0.5, 0.5, 0.25, 0.25, 0.5, 0.5, 0.0, 0.5];
    let (rows, columns) = (Tensor::from_vec(rows, [3, 3]), [0, 3, 6, 1, 4, 7, 2, 5, 8]);
    for (device, dtype) in places() {
        for kernels in [Kernels::Fast, Kernels::Plain] {
            let tape = Tape::new(device).with_kernels(kernels);
            let v = tape.leaf(&rows.cast(dtype));
            let turned = tape.leaf(&v.permute([1, 0]).value().clone());
            let sum = v.max_axis(1, false).sum() + turned.max_axis(0, false).sum();
            tape.backward(sum);
            assert_eq!(v.grad().unwrap().to_f64(), want, "{dtype} on {device}");
            assert_eq!(turned.grad().unwrap().to_f64(), columns.map(|i| want[i]), "{dtype} on {device}, columns");
        }
    }
}

/// Leading steps whose input gate is 0 write nothing: h is 0 there, and later steps are as without them.
#[test]
fn padding_on_the_left_is_not_there() {
    let (g, t, pad) = (&mut Gen::new(2), 11, 5);
    let late = |x: &Tensor, axis_is_time: bool| {
        if !axis_is_time {
            return x.clone();
        }
        let inner = x.len() / (2 * t);
        let rows = x.to_f64().chunks(t * inner).flat_map(|x| x[pad * inner..].to_vec()).collect();
        Tensor::from_vec(rows, x.shape().with(1, t - pad))
    };
    let input = |t: usize| if t < pad { -INF } else { 0.5 * (t as f64).sin() };
    for forget in [3.0, -INF, 200.0] {
        let f = |t: usize| if t < pad { forget } else { 2.0 };
        let x = memory_inputs(g, t, 4, input, f);
        let padded = agree(&format!("mlstm, f = {forget} in the padding"), &x, &MLSTM, (2e-5, TINY), memory);
        let short: Vec<Tensor> = x.iter().map(|x| late(x, true)).collect();
        let alone = run((Device::Cpu, DType::F64), &short, Form::Recurrent, memory);
        for (i, h) in padded[0].iter().enumerate() {
            let (b, s, rest) = (i / (t * 8), i / 8 % t, i % 8);
            let want = if s < pad { 0.0 } else { alone[0][(b * (t - pad) + s - pad) * 8 + rest] };
            close(*h, want, 1e-12, format_args!("h of step {s}"));
        }
        let x = cell_inputs(g, t, input, f);
        let padded = agree(&format!("slstm, f = {forget} in the padding"), &x, &[Form::Fused], (2e-5, TINY), cell);
        assert!((0..2 * t * 6).all(|i| i / 6 % t >= pad || padded[0][i] == 0.0), "slstm writes in the padding");
        // Only padding.
        let x = memory_inputs(g, t, 4, |_| -INF, f);
        agree("mlstm of padding", &x, &MLSTM, (2e-5, TINY), memory);
        agree("slstm of padding", &cell_inputs(g, t, |_| -INF, f), &[Form::Fused], (2e-5, TINY), cell);
    }
}

/// A step that writes nothing multiplies the memory's exponents by a number beside which they have no digits: the
/// weights of what was written before stay what they were, right after it above all.
#[test]
fn a_gate_that_shuts_with_nothing_to_write_keeps_the_weights() {
    let g = &mut Gen::new(12);
    for shut in [-1e3, -1e6, -1e9, -1e30] {
        for (t, at) in [(5, 4), (9, 4), (17, 16)] {
            let (input, forget) =
                (|s| if s == at { -INF } else { (s as f64).sin() }, |s| if s == at { shut } else { 2.0 });
            for k in [1, 5, 18] {
                let x = memory_inputs(g, t, k, input, forget);
                agree(&format!("mlstm, f = {shut} at {at} of {t}, K = {k}"), &x, &MLSTM, (2e-5, TINY), memory);
            }
            let x = cell_inputs(g, t, input, forget);
            agree(&format!("slstm, f = {shut} at {at} of {t}"), &x, &[Form::Fused], (2e-5, TINY), cell);
        }
    }
}

/// The gradient of a later gate is small beside the state and keeps its digits: it is not computed as a difference of
/// sums that are as large as the state. (In the recurrent form it is.)
#[test]
fn a_gradient_that_is_small_beside_the_state_has_its_digits() {
    let x = memory_inputs(&mut Gen::new(4), 70, 4, |t| if t == 0 { 5.0 } else { -12.0 }, |_| 4.0);
    // Without m, which f changes more.
    let of_f = |place, form| run(place, &x, form, |x, form| memory(x, form)[..3].to_vec()).swap_remove(3 + 4);
    let want = of_f((Device::Cpu, DType::F64), Form::Recurrent);
    let largest = want.iter().fold(0.0, |m: f64, x| m.max(x.abs()));
    for (place, form) in places().into_iter().flat_map(|place| MLSTM.map(|form| (place, form))) {
        for (a, b) in of_f(place, form).iter().zip(&want) {
            assert!(
                abs_diff_eq!(a, b, epsilon = 1e-4 * largest),
                "{form} {} on {}: {a:e}, not {b:e}",
                place.1,
                place.0
            );
        }
    }
}

/// e^(−m) in the divisor overflows in single precision.
#[test]
fn input_gates_that_are_almost_shut_have_finite_gradients() {
    let g = &mut Gen::new(3);
    for shut in [-60.0, -90.0, -140.0, -1000.0] {
        let mut x = memory_inputs(g, 7, 4, |t| shut - 0.3 * t as f64, |_| 3.0);
        agree(&format!("i = {shut}"), &x, &MLSTM, (1e-4, TINY), memory);
        // Large values, so that the read is not small.
        x[2] = Tensor::from_vec(x[2].to_f64().iter().map(|v| v * 1e30).collect(), x[2].shape());
        for (place, form) in places().into_iter().flat_map(|p| MLSTM.map(|form| (p, form))).filter(|_| shut == -90.0) {
            let want = run((Device::Cpu, DType::F64), &x, Form::Recurrent, memory);
            let got = run(place, &x, form, memory);
            let (error, worst) = distance(&got[..1], &want[..1], TINY);
            assert!(error < 1e-4, "{form} {} on {}, large values: off by {worst}", place.1, place.0);
        }
    }
}

/// |n·q| and e^(−m) may be the same number: each gets half of the divisor's gradient.
#[test]
fn equal_arguments_of_the_divisor_share_its_gradient() {
    let one = |x: f64, shape: &[usize]| Tensor::from_vec(vec![x], shape);
    let (key, gate) = ([1; 4], [1; 3]);
    let x = [one(1.0, &key), one(1.0, &key), one(2.0, &key), one(0.0, &gate), one(3.0, &gate)];
    let run = agree("a tie", &x, &MLSTM, (1e-6, TINY), |x, form| memory(x, form)[..1].to_vec());
    // h = 2 q / (max(|q|, 1) + ε) at q = 1.
    let (ct, by) = (Gen::new(7).normal([1; 4]).cast(DType::F32).to_f64()[0], 1.01);
    let want = ct * (2.0 / by - 0.5 * 2.0 / (by * by));
    close(run[1][0], want, 1e-12, "dq");
}

/// After gates that forget nearly everything, or everything, the weights of later steps have all their digits.
#[test]
fn a_reset_leaves_no_trace_in_the_sums() {
    let g = &mut Gen::new(4);
    for reset in [-1e9, -INF] {
        let f = |t: usize| if t == 57 { reset } else { -5.0 + 0.01 * (t % 7) as f64 };
        let x = memory_inputs(g, 120, 4, |t| (t as f64).sin(), f);
        agree(&format!("f = {reset}"), &x, &[Form::Parallel], (1e-5, TINY), memory);
        agree(&format!("f = {reset}"), &x, &MLSTM, (5e-5, TINY), memory);
    }
    let x = memory_inputs(g, 4000, 2, |t| (t as f64).sin(), |t| if t == 2500 { -INF } else { -5.0 + (t % 11) as f64 });
    let want = run((Device::Cpu, DType::F64), &x, Form::Recurrent, memory);
    let (error, worst) = distance(&run((Device::Cpu, DType::F32), &x, Form::Parallel, memory), &want, TINY);
    assert!(error < 1e-5, "parallel over 4,000 steps: off by {worst}");
}

/// Large scores, which are exact in any order of their sums, and keys that are the same: a weight is never above 1, and
/// equal keys have equal weights, in the backward pass too.
#[test]
fn attention_bears_scores_of_any_size() {
    let g = &mut Gen::new(5);
    for (k, v) in [(4, 4), (8, 5), (24, 20)] {
        for size in [2f64.powi(13), 2f64.powi(27), 2f64.powi(40)] {
            let (t, h) = (21, 3);
            let whole = |g: &mut Gen, width| g.tensor([2, t, h, width], |g| (3.0 * g.gauss()).round());
            let q: Vec<f64> = whole(g, k).to_f64().iter().map(|q| size * q).collect();
            let (q, mut keys) = (Tensor::from_vec(q, [2, t, h, k]), whole(g, k).to_f64());
            // Each key twice, in a row.
            for i in 0..keys.len() {
                if i / (h * k) % t % 2 == 1 {
                    keys[i] = keys[i - h * k];
                }
            }
            let x = [q, Tensor::from_vec(keys, [2, t, h, k]), g.normal([2, t, h, v])];
            let forms = [Form::Parallel, Form::Fused];
            agree(&format!("heads of {k} and {v}, q of {size:e}"), &x, &forms, (2e-5, 1.0), attention);
        }
    }
}

/// Rates of −∞ and steps of length 0: a step of length 0 keeps the state, any other forgets it.
#[test]
fn a_step_of_no_length_keeps_the_state_at_any_rate() {
    let g = &mut Gen::new(6);
    for (e, n) in [(3, 2), (20, 5)] {
        let (row, state) = ([2, 9, e], [2, 9, n]);
        let mut x = vec![g.normal(row), by_step(&row, |t| if t == 4 { 0.5 } else { 0.0 })];
        x.push(g.tensor([e, n], |g| [-INF, -3e38, -1.0][g.below(3)]));
        x.extend([g.normal(state), g.normal(state), g.normal([2, e, n])]);
        let forms = [Form::Parallel, Form::Scan(1), Form::Scan(4), Form::Scan(64)];
        for place in places() {
            for form in [Form::Recurrent].into_iter().chain(forms) {
                let y = run(place, &x, form, selective);
                let want = run((Device::Cpu, DType::F64), &x, Form::Recurrent, selective);
                let (error, worst) = distance(&y[..2], &want[..2], TINY);
                assert!(error < 1e-5, "{form} {} on {}: off by {worst}", place.1, place.0);
                assert!(y.iter().flatten().all(|x| !x.is_nan()), "{form} {} on {}: NaN", place.1, place.0);
            }
        }
    }
    // Mamba's A from a logarithm whose exponential is infinite, beside a softplus that is 0.
    for place in places() {
        let x = [Tensor::from_vec(vec![100.0, 1000.0], [2]), Tensor::from_vec(vec![-200.0, -2000.0], [2])];
        let y = run(place, &x, Form::Recurrent, |x, _| vec![(x[0].decay_rate() * x[1].softplus()).exp()]);
        assert!(y.iter().flatten().all(|x| x.is_finite()) && y[0] == [1.0; 2], "{} on {}: {y:?}", place.1, place.0);
    }
}
