//! sLSTM and mLSTM beyond what every mixer is tested for: the stabiliser against the formula without it, extreme
//! gates, lengths around the chunk size, and the precision of long sequences in f32.
#![allow(clippy::unwrap_used)]

use tapezoo::{
    autograd::{Gen, Tape, Var},
    models::{Form, mlstm, slstm},
    tensor::{DType, Tensor},
};

/// Forms of the memory.
const MLSTM: [Form; 5] = [Form::Recurrent, Form::Parallel, Form::Chunked(1), Form::Chunked(8), Form::Chunked(64)];
const SLSTM: [Form; 2] = [Form::Recurrent, Form::Fused];

/// Values (h, then the last state) and the gradients of all inputs.
type Run = (Vec<Vec<f64>>, Vec<Vec<f64>>);

/// Run a formula on inputs; the loss is the sum of the first `weighed` outputs with random weights.
fn run(x: &[Tensor], dtype: DType, weighed: usize, f: impl for<'t> Fn(&'t Tape, &[Var<'t>]) -> Vec<Var<'t>>) -> Run {
    let tape = Tape::default();
    tape.poison(true);
    let v: Vec<Var> = x.iter().map(|x| tape.leaf(&x.cast(dtype))).collect();
    let y = f(&tape, &v);
    let mut g = Gen::new(1);
    tape.backward_from(y.iter().take(weighed).map(|&y| (y, g.normal(y.shape()).cast(dtype))));
    let grads = v.iter().map(|v| v.grad().map_or_else(|| vec![0.0; v.shape().len()], |g| g.to_f64()));
    (y.iter().map(|y| y.value().to_f64()).collect(), grads.collect())
}

/// From x = [q, k, v, i, f] and a fresh memory: h, C, n, m.
fn memory(x: &[Tensor], form: Form, dtype: DType, weighed: usize) -> Run {
    run(x, dtype, weighed, |tape, x| {
        let ([b, _, h, k], v) = (x[0].dims(), x[2].shape().last());
        let gate = tape.full([b, h], dtype, 0.0);
        let (c, n) = (tape.full([b, h, k, v], dtype, 0.0), tape.full([b, h, k], dtype, 0.0));
        let mut s = [c, n, gate, gate];
        let h = mlstm::sequence([x[0], x[1], x[2]], [x[3], x[4]], &mut s, mlstm::EPS, form);
        vec![h, s[0], s[1], s[2]]
    })
}

/// From x = [gates, r] and a fresh state: h of all steps, and the last c, n, m.
fn cell(x: &[Tensor], form: Form, dtype: DType, weighed: usize) -> Run {
    run(x, dtype, weighed, |tape, x| {
        let [b, _, d4] = x[0].dims();
        let zero = tape.full([b, d4 / 4], dtype, 0.0);
        let mut s = [zero; 5];
        let h = slstm::sequence(x[0], x[1], &mut s, form);
        vec![h, s[1], s[2], s[3]]
    })
}

/// q, k, v and gates drawn by `gate`.
fn memory_inputs(g: &mut Gen, t: usize, k: usize, gate: impl Fn(&mut Gen) -> f64) -> Vec<Tensor> {
    let key = [2, t, 2, k];
    let mut x = vec![g.normal(key), g.normal(key), g.normal(key)];
    x.extend([g.tensor([2, t, 2], &gate), g.tensor([2, t, 2], &gate)]);
    x
}

/// Gates i and f drawn by `gate`, z and o normal; and R.
fn cell_inputs(g: &mut Gen, t: usize, gate: impl Fn(&mut Gen) -> f64) -> Vec<Tensor> {
    let d = 6;
    let mut x: Vec<f64> = vec![];
    for _ in 0..2 * t {
        x.extend((0..4 * d).map(|j| if j < 2 * d { gate(g) } else { g.gauss() }));
    }
    vec![Tensor::from_vec(x, [2, t, 4 * d]), g.range([4, 2, 3, 3], -0.5, 0.5)]
}

fn distance(a: &[Vec<f64>], b: &[Vec<f64>]) -> f64 {
    let norm = |x: &[f64]| x.iter().map(|x| x * x).sum::<f64>().sqrt();
    let off = |(a, b): (&Vec<f64>, &Vec<f64>)| {
        assert_eq!(a.len(), b.len());
        norm(&a.iter().zip(b).map(|(a, b)| a - b).collect::<Vec<_>>()) / norm(b).max(1e-3) // a gradient of zero has rounding in it
    };
    a.iter().zip(b).map(off).fold(0.0, |m, x| if x > m || x.is_nan() { x } else { m })
}

/// The mLSTM without a stabiliser, in plain loops: i = e^ĩ, f = σ(f̃). `eps` of the stabilised one is ε e^m here.
#[test]
fn the_stabiliser_does_not_change_the_memory() {
    let (g, t, k) = (&mut Gen::new(1), 23, 3);
    let x = memory_inputs(g, t, k, Gen::gauss);
    let [q, key, v, i, f] = std::array::from_fn(|j| x[j].to_f64());
    let mut want = vec![0.0; q.len()];
    for head in 0..4 {
        let (mut c, mut n, mut m) = (vec![0.0; k * k], vec![0.0; k], f64::NEG_INFINITY);
        for s in 0..t {
            let gate = ((head / 2) * t + s) * 2 + head % 2;
            let row = gate * k..(gate + 1) * k;
            let (q, key, v) = (&q[row.clone()], &key[row.clone()], &v[row.clone()]);
            let (input, forget) = (i[gate].exp(), 1.0 / (1.0 + (-f[gate]).exp()));
            m = (forget.ln() + m).max(i[gate]);
            for a in 0..k {
                let key = key[a] / (k as f64).sqrt();
                (0..k).for_each(|b| c[a * k + b] = forget * c[a * k + b] + input * key * v[b]);
                n[a] = forget * n[a] + input * key;
            }
            let den = (0..k).map(|a| n[a] * q[a]).sum::<f64>().abs().max(1.0) + mlstm::EPS * m.exp();
            (0..k).for_each(|b| want[row.start + b] = (0..k).map(|a| c[a * k + b] * q[a]).sum::<f64>() / den);
        }
    }
    for form in MLSTM {
        let error = distance(&memory(&x, form, DType::F64, 1).0[..1], std::slice::from_ref(&want));
        assert!(error < 1e-12, "{form}: off by {error:.1e}");
    }
}

/// The same for the sLSTM.
#[test]
fn the_stabiliser_does_not_change_the_cell() {
    let (g, t, d, k) = (&mut Gen::new(2), 23, 6, 3);
    let x = cell_inputs(g, t, Gen::gauss);
    let (gates, r) = (x[0].to_f64(), x[1].to_f64());
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    let mut want = vec![];
    for b in 0..2 {
        let (mut h, mut c, mut n) = (vec![0.0; d], vec![0.0; d], vec![0.0; d]);
        for s in 0..t {
            let before = h.clone();
            for u in 0..d {
                let raw = |gate: usize| {
                    let own = gates[((b * t + s) * 4 + gate) * d + u];
                    let heard = (0..k).map(|j| before[u / k * k + j] * r[((gate * 2 + u / k) * k + j) * k + u % k]);
                    own + heard.sum::<f64>()
                };
                let (input, forget) = (raw(0).exp(), sigmoid(raw(1)));
                c[u] = forget * c[u] + input * raw(2).tanh();
                n[u] = forget * n[u] + input;
                h[u] = sigmoid(raw(3)) * c[u] / n[u];
            }
            want.extend(h.iter().copied());
        }
    }
    for form in SLSTM {
        let error = distance(&cell(&x, form, DType::F64, 1).0[..1], std::slice::from_ref(&want));
        assert!(error < 1e-12, "{form}: off by {error:.1e}");
    }
}

/// Pre-activations of the gates at ±20 and ±30, where e^x without a stabiliser spans 26 orders of magnitude: values and
/// gradients are finite in single precision, and equal to double precision.
#[test]
fn extreme_gates_stay_finite() {
    for size in [20.0, 30.0, 80.0] {
        let sign = |g: &mut Gen| if g.coin() { size } else { -size };
        let g = &mut Gen::new(3);
        let x: Vec<Tensor> = memory_inputs(g, 40, 4, sign).iter().map(|x| x.cast(DType::F32)).collect();
        for form in MLSTM {
            let ((y, dx), (y64, _)) = (memory(&x, form, DType::F32, 4), memory(&x, form, DType::F64, 4));
            assert!(y.iter().chain(&dx).flatten().all(|x| x.is_finite()), "mlstm {form} at {size}");
            let error = distance(&y[..1], &y64[..1]);
            assert!(error < 1e-3, "mlstm {form} at {size}: off by {error:.1e}");
        }
    }
    // At ±1000 the slope of the forget gate is 0 in any precision.
    for size in [20.0, 30.0, 80.0, 100.0, 1000.0] {
        let sign = |g: &mut Gen| if g.coin() { size } else { -size };
        let g = &mut Gen::new(3);
        let x: Vec<Tensor> = cell_inputs(g, 40, sign).iter().map(|x| x.cast(DType::F32)).collect();
        let (y64, dx64) = cell(&x, Form::Recurrent, DType::F64, 4);
        for (form, dtype, near) in SLSTM.iter().flat_map(|&f| [(f, DType::F32, 1e-4), (f, DType::F64, 1e-10)]) {
            let (y, dx) = cell(&x, form, dtype, 4);
            assert!(y.iter().chain(&dx).flatten().all(|x| x.is_finite()), "slstm {form} {dtype} at {size}");
            let error = distance(&y[..1], &y64[..1]);
            assert!(error < near, "slstm {form} {dtype} at {size}: off by {error:.1e}");
            if dtype == DType::F64 {
                let error = distance(&dx, &dx64);
                assert!(error < near, "slstm {form} at {size}: gradients off by {error:.1e}");
            }
        }
    }
}

/// Lengths below, at and above the chunk size, for small and large memories; the loss depends on all outputs.
#[test]
fn lengths_around_the_chunk_agree() {
    let g = &mut Gen::new(4);
    for k in [3, 18] {
        for t in [1, 7, 8, 9, 15, 16, 17, 33] {
            let x = memory_inputs(g, t, k, Gen::gauss);
            let want = memory(&x, Form::Recurrent, DType::F64, 4);
            for form in [Form::Parallel, Form::Chunked(1), Form::Chunked(8), Form::Chunked(16), Form::Chunked(64)] {
                let got = memory(&x, form, DType::F64, 4);
                let error = distance(&got.0, &want.0).max(distance(&got.1, &want.1));
                assert!(error < 1e-9, "{form}, T = {t}, K = {k}: off by {error:.1e}");
            }
        }
    }
}

/// Gates of a trained model's size over 3,000 steps: single precision keeps up with double.
#[test]
fn a_long_sequence_does_not_drift() {
    let g = &mut Gen::new(5);
    let single = |x: Vec<Tensor>| x.iter().map(|x| x.cast(DType::F32)).collect::<Vec<_>>();
    let mut x = memory_inputs(g, 3000, 4, Gen::gauss);
    x[4] = g.range([2, 3000, 2], 3.0, 8.0);
    let x = single(x);
    let want = memory(&x, Form::Chunked(64), DType::F64, 4);
    for form in [Form::Chunked(8), Form::Chunked(64), Form::Chunked(500)] {
        let got = memory(&x, form, DType::F32, 4);
        let (values, grads) = (distance(&got.0, &want.0), distance(&got.1, &want.1));
        assert!(values < 2e-5 && grads < 1e-3, "mlstm {form}: off by {values:.1e}, gradients by {grads:.1e}");
    }
    let mut x = cell_inputs(g, 3000, Gen::gauss);
    x[1] = g.range([4, 2, 3, 3], -0.2, 0.2);
    let x = single(x);
    let (got, want) = (cell(&x, Form::Fused, DType::F32, 4), cell(&x, Form::Fused, DType::F64, 4));
    let (values, grads) = (distance(&got.0, &want.0), distance(&got.1, &want.1));
    assert!(values < 2e-5 && grads < 1e-3, "slstm: off by {values:.1e}, gradients by {grads:.1e}");
}

/// A fresh state is all zeros, and differs from a state with m = 0 and weight 1: ε shows the difference.
#[test]
fn nothing_seen_yet_is_not_a_stabiliser_of_zero() {
    let g = &mut Gen::new(6);
    let mut x = memory_inputs(g, 3, 2, |g| g.uniform(-9.0, -7.0));
    x[4] = g.range([2, 3, 2], 3.0, 5.0);
    let (fresh, k) = (memory(&x, Form::Chunked(8), DType::F64, 1).0, 2);
    let (started, _) = run(&x, DType::F64, 1, |tape, x| {
        let zero = |shape: &[usize]| tape.full(shape, DType::F64, 0.0);
        let w = tape.full([2, 2], DType::F64, 1.0);
        let mut s = [zero(&[2, 2, k, k]), zero(&[2, 2, k]), zero(&[2, 2]), w];
        let h = mlstm::sequence([x[0], x[1], x[2]], [x[3], x[4]], &mut s, mlstm::EPS, Form::Chunked(8));
        vec![h, s[2]]
    });
    assert!(fresh[3].iter().all(|&m| m < -6.0), "m is that of the inputs");
    assert!(started[1].iter().all(|&m| m > -0.5), "m is that of the start");
    let error = distance(&started[..1], &fresh[..1]);
    assert!(error > 1e-9 && error < 1e-4, "{error:.1e}");
}
