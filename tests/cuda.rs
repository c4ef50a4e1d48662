//! The CUDA backend against the CPU, on the emulator; on a GPU with `TAPEZOO_TEST_DEVICE=cuda`.
//!
//! Every op, forward and backward, over random shapes, from poisoned buffers; and gradients against finite
//! differences on the device itself.
#![allow(clippy::unwrap_used)]

mod device;

use device::{device, distance, place, rounded};
use tapezoo::{
    autograd::{Gen, Tape, Var, gradcheck_on},
    ops::{OPS, in_f32},
    tasks::Batch,
    tensor::{DType, Device, Tensor},
    train::{
        on_device::OnDevice,
        optimizer::{Adam, AdamConfig, Rule, clip},
    },
};

/// How many random instances of each op; `TAPEZOO_CASES` overrides.
fn cases() -> u64 {
    std::env::var("TAPEZOO_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(6)
}

/// Registered ops; `TAPEZOO_OP=Softmax,Norm` narrows them to those whose name contains one of these.
fn ops() -> impl Iterator<Item = &'static tapezoo::ops::Entry> {
    let only = std::env::var("TAPEZOO_OP").unwrap_or_default();
    let wanted = move |name: &str| only.split(',').any(|part| name.contains(part));
    OPS.iter().filter(move |(name, _)| wanted(name))
}

/// Values of all outputs and gradients of all inputs of one instance.
type Run = (Vec<Vec<f64>>, Vec<Option<Vec<f64>>>);

fn run(device: Device, entry: &tapezoo::ops::Entry, seed: u64, dtype: DType) -> Run {
    let (op, inputs) = entry.1(&mut Gen::new(seed));
    let tape = Tape::new(device);
    tape.poison(true);
    let placed = inputs.iter().enumerate().map(|(i, x)| place(x, tape.cx(), dtype, in_f32(op.name()).contains(&i)));
    let x: Vec<_> = placed.map(|x| if x.dtype() == DType::I32 { tape.constant(&x) } else { tape.leaf(&x) }).collect();
    let y = tape.apply_dyn(op, &x);
    let cotangent = |y: &Var| place(&Gen::new(seed).normal(y.shape()), tape.cx(), dtype, false);
    let u: Vec<_> = y.iter().map(|y| cotangent(y).to_device_as(tape.cx(), y.dtype())).collect();
    let values = y.iter().map(|y| y.value().to_f64()).collect();
    tape.backward_from(y.iter().copied().zip(u));
    let grads = x.iter().map(|x| x.grad().map(|g| g.to_f64())).collect();
    (values, grads)
}

fn follows_the_cpu(dtype: DType, tolerance: f64) {
    // bf16 rounds numbers near 1 by up to 1/256, so a difference such as tanh's 1 − y² has no digits below that:
    // magnitudes below 0.4 are compared as 0.4.
    let distance = |a: &[f64], b: &[f64]| {
        let small = 0.4 * (b.len() as f64).sqrt();
        let norm = b.iter().map(|x| x * x).sum::<f64>().sqrt();
        let scale = if dtype == DType::BF16 && norm < small { norm.max(1e-2) / small } else { 1.0 };
        distance(a, b) * scale
    };
    let Some(device) = device() else { return };
    for entry in ops() {
        for seed in 0..cases() {
            let (got, want) = (run(device, entry, seed, dtype), run(Device::Cpu, entry, seed, dtype));
            for (i, (got, want)) in got.0.iter().zip(&want.0).enumerate() {
                let d = distance(got, want);
                assert!(
                    d <= tolerance,
                    "{} in {dtype}, seed {seed}: output {i} is off by {d:.1e}:\n{got:?}\n{want:?}",
                    entry.0
                );
            }
            for (i, (got, want)) in got.1.iter().zip(&want.1).enumerate() {
                match (got, want) {
                    (None, None) => {}
                    (Some(got), Some(want)) => {
                        let d = distance(got, want);
                        assert!(
                            d <= tolerance,
                            "{} in {dtype}, seed {seed}: gradient {i} is off by {d:.1e}:\n{got:?}\n{want:?}",
                            entry.0
                        );
                    }
                    _ => panic!("{} in {dtype}, seed {seed}: gradient {i} on one device only", entry.0),
                }
            }
        }
    }
}

#[test]
fn every_op_follows_the_cpu_in_double() {
    follows_the_cpu(DType::F64, 1e-10);
}

#[test]
fn every_op_follows_the_cpu_in_single() {
    follows_the_cpu(DType::F32, 1e-4);
}

#[test]
fn every_op_follows_the_cpu_in_bf16() {
    follows_the_cpu(DType::BF16, 3e-2);
}

#[test]
fn every_op_has_the_gradient_of_its_value_on_the_device() {
    let Some(device) = device() else { return };
    for (name, sample) in ops() {
        for seed in 0..cases().min(4) {
            let (_, inputs) = sample(&mut Gen::new(seed));
            let build = |seed: u64| sample(&mut Gen::new(seed)).0;
            let error = gradcheck_on(device, |tape, x| tape.apply_dyn(build(seed), x), &inputs, seed, 1);
            assert!(error <= 1e-6, "{name}: error {error:.1e} for inputs {inputs:?}");
        }
    }
}

#[test]
fn tensors_go_there_and_come_back() {
    let Some(device) = device() else { return };
    let tape = Tape::new(device);
    for n in [0, 1, 7, 1000] {
        let x = Gen::new(n as u64).normal([n]);
        for dtype in [DType::F32, DType::F64] {
            let host = x.cast(dtype);
            let mut there = host.to_device(tape.cx());
            assert!(there.is_on(tape.cx()) && there.dtype() == dtype);
            assert_eq!(there.to_f64(), host.to_f64());
            assert!(there.all_finite(), "{:?}", there.to_f64());
            if n > 4 {
                assert_eq!(there.window(3, [n - 4]).to_f64(), host.window(3, [n - 4]).to_f64());
                assert_eq!(there.reshape([1, n]).shape().dims(), [1, n]);
            }
            there.fill(2.5);
            assert_eq!(there.to_f64(), vec![2.5; n]);
            there.fill(f64::NAN);
            assert_eq!(there.all_finite(), n == 0);
        }
        assert_eq!(x.to_device_as(tape.cx(), DType::BF16).to_f64(), rounded(&x).to_f64());
        let mut ints = Gen::new(1).ints([n], 9).to_device(tape.cx());
        assert_eq!(ints.to_f64(), Gen::new(1).ints([n], 9).to_f64());
        ints.fill(-3.0);
        assert_eq!(ints.to_f64(), vec![-3.0; n]);
    }
}

#[test]
fn a_steady_step_allocates_nothing() {
    let Some(device) = device() else { return };
    let mut tape = Tape::new(device);
    let (w, x) = (Gen::new(1).normal([5, 3]), Gen::new(2).normal([4, 3]));
    let w = w.to_device(tape.cx());
    let mut counts = vec![];
    for _ in 0..4 {
        let y = tape.constant(&x).linear(tape.leaf(&w), None).tanh();
        let u = tape.full([4, 5], DType::F64, 1.0).value();
        tape.backward_from([(y, u)]);
        tape.reset();
        counts.push(tape.fresh_buffers());
    }
    assert!(counts[1] == counts[3], "{counts:?}");
}

#[test]
fn marks_tell_how_long_the_device_worked() {
    let Some(device) = device() else { return };
    let tape = Tape::new(device);
    let gpu = tape.cx().gpu().unwrap();
    let mut x = Tensor::zeros([1 << 16], DType::F32).to_device(tape.cx());
    let mut fills = |n: usize| {
        let start = gpu.mark();
        (0..n).for_each(|_| x.fill(1.5));
        gpu.seconds(&start, &gpu.mark())
    };
    fills(1); // the kernel is compiled
    let (one, many) = (fills(1), fills(200));
    assert!(one >= 0.0 && many > one, "{one} s and {many} s");
}

#[test]
fn gradients_of_leaves_are_collected_on_the_device() {
    let Some(device) = device() else { return };
    let tape = Tape::new(device);
    let x = Gen::new(1).normal([2, 3]);
    let (a, b) = (tape.leaf(&x), tape.leaf(&Tensor::zeros([4], DType::F64)));
    let seed = Gen::new(2).normal([2, 3]);
    // The same value twice, so that gradients are added.
    let y = a.reshape([3, 2]).matmul(a);
    tape.backward_from([(a.square(), seed.clone()), (y, Tensor::full([3, 3], DType::F64, 0.5))]);
    let mut all = Tensor::full([10], DType::F64, 7.0).to_device(tape.cx());
    tape.collect_grads(&[a, b], &mut all);
    let want = {
        let tape = Tape::new(Device::Cpu);
        let a = tape.leaf(&x);
        let y = a.reshape([3, 2]).matmul(a);
        tape.backward_from([(a.square(), seed), (y, Tensor::full([3, 3], DType::F64, 0.5))]);
        a.grad().unwrap().to_f64()
    };
    let got = all.to_f64();
    assert!(distance(&got[..6], &want) < 1e-12, "{got:?}, not {want:?}");
    assert_eq!(got[6..], [0.0; 4]);
}

/// 256 + 1 in bf16 is 256: a parameter's gradients from several ops are summed in f32, and collected in f32.
#[test]
fn gradients_of_a_parameter_in_bf16_are_summed_in_single_precision() {
    let Some(device) = device() else { return };
    let tape = Tape::new(device);
    let place = |v: &[f64], dtype| Tensor::from_vec(v.to_vec(), [v.len()]).to_device_as(tape.cx(), dtype);
    let (p, q) = (tape.leaf(&place(&[1.0, 2.0], DType::BF16)), tape.leaf(&place(&[3.0], DType::BF16)));
    let twice = p.reshape([2, 1]).reshape([2]);
    let seeds = [(p + p, [256.0, 256.0]), (1.0 * p, [1.0, 0.5]), (1.0 * twice, [1.0, 0.25])];
    tape.backward_from(seeds.map(|(y, u)| (y, place(&u, DType::BF16))));
    let mut all = Tensor::full([3], DType::F32, 7.0).to_device(tape.cx());
    tape.collect_grads(&[p, q], &mut all);
    assert_eq!(all.to_f64(), [514.0, 512.75, 0.0]);
    let y = 1.0 * q;
    tape.backward_from([(y, place(&[0.5], DType::BF16))]);
    tape.collect_grads(&[p, q], &mut all);
    assert_eq!(all.to_f64(), [0.0, 0.0, 0.5]);
}

/// The sum of a bf16 tensor and an f32 bias has f32 digits, and so has the bias's gradient.
#[test]
fn a_bias_in_single_precision_keeps_the_sum_in_it() {
    let Some(device) = device() else { return };
    let tape = Tape::new(device);
    let place = |v: &[f64], shape: &[usize], dtype| {
        tape.leaf(&Tensor::from_vec(v.to_vec(), shape).to_device_as(tape.cx(), dtype))
    };
    let x = place(&[1.0, 2.0, 3.0, 4.0], &[2, 2], DType::BF16);
    let w = place(&[0.5, 0.25, -1.0, 0.125, 2.0, 1.0], &[3, 2], DType::BF16);
    let bias = place(&[1000.25, 0.0, -511.5], &[3], DType::F32);
    let y = x.linear(w, Some(bias));
    assert_eq!((y.dtype(), y.value().to_f64()), (DType::F32, vec![1001.25, -0.75, -507.5, 1002.75, -2.5, -501.5]));
    let u = Tensor::from_vec(vec![256.0f32, 1.0, 0.0, 1.0, 0.0, 2.0], [2, 3]);
    tape.backward_from([(y, u)]);
    let grad = |v: Var| v.grad().map(|g| (g.dtype(), g.to_f64())).unwrap();
    assert_eq!(grad(bias), (DType::F32, vec![257.0, 1.0, 2.0]));
    assert_eq!(grad(x), (DType::BF16, vec![127.0, 64.0, 4.5, 2.25]));
    assert_eq!(grad(w), (DType::BF16, vec![259.0, 516.0, 1.0, 2.0, 6.0, 8.0].into_iter().map(bf16).collect()));
}

fn bf16(x: f64) -> f64 {
    rounded(&Tensor::from_vec(vec![x], [1])).to_f64()[0]
}

#[test]
fn adam_and_clipping_follow_the_cpu() {
    let Some(device) = device() else { return };
    let tape = Tape::new(device);
    for (n, rule) in [(1, Rule::Adam), (77, Rule::AdamW), (10_000, Rule::AdamW)] {
        let config = AdamConfig { rule, betas: [0.9, 0.99], eps: 1e-8, weight_decay: 0.1 };
        let windows = [(0..n / 3, true), (n / 3..n / 2, false), (n / 2..n, true)];
        for dtype in [DType::F32, DType::F64] {
            let run = |there: bool| {
                let mut g = Gen::new(3);
                let place = |t: Tensor| if there { t.to_device(tape.cx()) } else { t };
                let mut p = place(g.normal([n]).cast(dtype));
                let mut adam = Adam::new(n, dtype, config);
                let mut on = if there { OnDevice::new(tape.cx(), n, &windows) } else { None };
                if there {
                    adam.to_device(tape.cx());
                }
                let loss = place(Tensor::zeros([1], dtype));
                let batch = Batch::new(1, 1usize);
                let norms: Vec<f64> = (0..4)
                    .map(|i| {
                        let mut grads = place(g.normal([n]).cast(dtype));
                        let max = if i % 2 == 0 { 0.5 } else { 0.0 };
                        if let Some(on) = &mut on {
                            on.give(tape.cx(), &batch, &adam.next(1e-2, max));
                            on.upload();
                            on.judge(&grads, &loss);
                            on.update(&mut adam, &mut p, &grads);
                            on.download();
                            on.told()[1]
                        } else {
                            let norm = clip(&mut grads, max);
                            adam.step(1e-2, &mut p, &grads, &windows);
                            norm
                        }
                    })
                    .collect();
                (norms, p.to_f64())
            };
            let (got, want) = (run(true), run(false));
            let tolerance = if dtype == DType::F64 { 1e-12 } else { 1e-5 };
            assert!(
                distance(&got.0, &want.0) < tolerance && distance(&got.1, &want.1) < tolerance,
                "{n} {rule} {dtype}"
            );
        }
    }
}
