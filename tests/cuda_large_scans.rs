//! The scans and recurrences on the device against the CPU at sizes that `Op::sample` does not reach: several blocks,
//! groups and chunks with odd tails, sizes too large for one block, and size zero. The states of mLSTM with their last
//! column are in memories.cuh.
#![allow(clippy::unwrap_used)]

mod device;

use device::{device, distance, is_checked, place};
use tapezoo::{
    autograd::{Gen, Op, Tape},
    ops::{
        in_f32,
        lstm::LstmSequence,
        mlstm::Mlstm,
        quasi_lstm::QuasiLstm,
        scan::{LinearScan, LruScan},
        selective::SelectiveScan,
        slstm::SlstmSequence,
    },
    tensor::{DType, Device, Tensor},
};

/// Values of all outputs and gradients of all inputs, from poisoned buffers. Where bit i of `seeds` is clear, output i
/// has no cotangent; each gradient is computed twice, so that the second is added to the first.
fn run<O: Op>(device: Device, op: &dyn Fn() -> O, inputs: &[Tensor], seeds: u32, dtype: DType) -> Vec<Vec<f64>> {
    let tape = Tape::new(device);
    tape.poison(true);
    let f32s = in_f32(op().name());
    let placed = inputs.iter().enumerate().map(|(i, x)| place(x, tape.cx(), dtype, f32s.contains(&i)));
    let x: Vec<_> = placed.map(|x| tape.leaf(&x)).collect();
    let (mut ends, mut values) = (vec![], vec![]);
    for pass in 0..if seeds.is_power_of_two() { 1 } else { 2 } {
        let y = tape.apply_dyn(Box::new(op()), &x);
        values.extend(y.iter().map(|y| y.value().to_f64()));
        for (i, y) in y.into_iter().enumerate().filter(|(i, _)| seeds >> i & 1 == 1) {
            ends.push((y, place(&Gen::new(10 * pass + i as u64).normal(y.shape()), tape.cx(), dtype, false)));
        }
    }
    tape.backward_from(ends);
    values.extend(x.iter().map(|x| x.grad().map(|g| g.to_f64()).unwrap_or_default()));
    values
}

/// With all cotangents in every type, and the same bits on a second run; with one cotangent at a time in double
/// precision. Accesses are checked in the types that models are trained in, once: the others access the same.
fn same<O: Op>(name: &str, op: impl Fn() -> O, inputs: &[Tensor], outputs: u32) {
    let Some(device) = device() else { return };
    let all = (1 << outputs) - 1;
    let single = (0..outputs).map(|i| (1 << i, DType::F64, 1e-10));
    let types = [(DType::F64, 1e-10), (DType::F32, 2e-4), (DType::BF16, 8e-2)];
    let cases = types.into_iter().map(|(d, tol)| (all, d, tol)).chain(single);
    for (seeds, dtype, tolerance) in cases.filter(|case| !is_checked() || case.1 != DType::F64) {
        let (got, want) = (run(device, &op, inputs, seeds, dtype), run(Device::Cpu, &op, inputs, seeds, dtype));
        for (i, (got, want)) in got.iter().zip(&want).enumerate() {
            let d = distance(got, want);
            assert!(d <= tolerance, "{name} in {dtype}, cotangents {seeds:b}: value {i} is off by {d:.1e}");
        }
        if dtype == DType::F32 && !is_checked() {
            let again = run(device, &op, inputs, seeds, dtype);
            assert!(got == again, "{name} in {dtype}: twice the same, two results");
        }
    }
}

/// (B, T, D, chunk): a group of steps and several, whole and with an odd tail, and a block of channels and several.
const SCANS: [(usize, usize, usize, usize); 8] = [
    (2, 70, 33, 8),
    (3, 37, 50, 16),
    (1, 200, 1, 7),
    (2, 33, 3, 1000),
    (5, 128, 12, 2),
    (0, 5, 3, 2),
    (2, 0, 3, 2),
    (2, 3, 0, 2),
];

#[test]
fn linear_scans() {
    for (b, t, d, chunk) in SCANS {
        let mut g = Gen::new(1);
        let x = [g.range([b, t, d], -1.1, 1.1), g.normal([b, t, d]), g.normal([b, d])];
        same(&format!("linear_scan {b} {t} {d} {chunk}"), || LinearScan { chunk }, &x, 2);
    }
}

#[test]
fn lru_scans() {
    for (b, t, d, chunk) in SCANS {
        let mut g = Gen::new(2);
        let lambda = [g.range([d], -0.7, 0.7), g.range([d], -0.7, 0.7)];
        let rest = [g.normal([b, t, 2 * d]), g.normal([b, d]), g.normal([b, d])];
        let x: Vec<_> = lambda.into_iter().chain(rest).collect();
        same(&format!("lru_scan {b} {t} {d} {chunk}"), || LruScan { chunk }, &x, 3);
    }
}

#[test]
fn quasi_lstms() {
    for (b, t, d, chunk) in SCANS {
        let mut g = Gen::new(3);
        let x = [g.normal([b, t, 4 * d]), g.normal([b, d])];
        same(&format!("quasi_lstm {b} {t} {d} {chunk}"), || QuasiLstm { chunk, forget_bias: 1.0 }, &x, 2);
    }
}

#[test]
fn selective_scans() {
    // (B, T, E, N, chunk): N of one warp, of several, of several launches; chunks of one tile, of several, in which
    // states are computed again twice.
    let sizes = [
        (2, 40, 36, 16, 8, 1.0),
        (1, 83, 17, 5, 83, 2.0),
        (1, 70, 20, 3, 35, 1.0),
        (1, 19, 17, 35, 6, 2.0),
        (8, 70, 36, 16, 35, 1.0),
        (1, 9, 34, 64, 32, 1.0),
        (0, 5, 3, 2, 2, 1.0),
        (2, 0, 3, 2, 2, 1.0),
        (2, 3, 0, 2, 2, 1.0),
        (2, 3, 4, 0, 2, 1.0),
    ];
    for (b, t, e, n, chunk, s) in sizes {
        let mut g = Gen::new(4);
        let row = [g.normal([b, t, e]), g.range([b, t, e], 0.1, 1.0), g.range([e, n], -2.0, -0.1)];
        let rest = [g.normal([b, t, n]), g.normal([b, t, n]), g.normal([b, e, n])];
        let x: Vec<_> = row.into_iter().chain(rest).collect();
        same(&format!("selective_scan {b} {t} {e} {n} {chunk} {s}"), || SelectiveScan { chunk, s }, &x, 2);
    }
}

/// (B, T, heads, units): one sequence a block and four (block.cu), weights in registers, in shared memory, and too
/// large for one block: for several that wait for each other (grid.cu), of one group of sequences, of more than run at
/// once, and of two heads; and too large for all blocks together (steps.cu).
const RECURRENCES: [(usize, usize, usize, usize); 13] = [
    (3, 9, 1, 16),
    (5, 7, 2, 20),
    (2, 6, 1, 40),
    (2, 5, 1, 70),
    (3, 5, 1, 130),
    (35, 2, 1, 133),
    (2, 3, 2, 129),
    (2, 3, 1, 530),
    (6, 3, 1, 3),
    (1, 4, 1, 66),
    (0, 3, 1, 4),
    (2, 0, 1, 4),
    (2, 0, 1, 130),
];

#[test]
fn lstms() {
    for (b, t, h, k) in RECURRENCES {
        let (d, mut g) = (h * k, Gen::new(5));
        let w = 1.0 / (d as f64).sqrt();
        let x = [g.normal([b, t, 4 * d]), g.range([4 * d, d], -w, w), g.normal([b, d]), g.normal([b, d])];
        same(&format!("lstm_sequence {b} {t} {d}"), || LstmSequence, &x, 3);
    }
}

#[test]
fn slstms() {
    for (b, t, h, k) in RECURRENCES {
        let (state, mut g) = ([b, h * k], Gen::new(6));
        let w = 1.0 / (k as f64).sqrt();
        let mut x = vec![g.normal([b, t, 4 * h * k]), g.range([4, h, k, k], -w, w), g.normal(state), g.normal(state)];
        x.extend([g.range(state, 1.0, 3.0), g.normal(state), g.range(state, 0.5, 1.5)]);
        same(&format!("slstm_sequence {b} {t} {h} {k}"), || SlstmSequence, &x, 5);
        // Saturated gates: σ(−f̃) is 0 in single precision.
        x[0] = Tensor::from_vec(x[0].to_f64().iter().map(|x| 100.0 * x).collect::<Vec<_>>(), x[0].shape());
        same(&format!("saturated slstm_sequence {b} {t} {h} {k}"), || SlstmSequence, &x, 5);
    }
}

#[test]
fn mlstms() {
    // (B, T, H, K, V, chunk): one tile and several in every direction, chunks that fill none and several.
    let sizes = [
        (2, 9, 2, 5, 3, 4),
        (1, 83, 2, 40, 35, 40),
        (2, 70, 1, 33, 64, 7),
        (1, 70, 1, 3, 70, 100),
        (1, 150, 1, 20, 17, 100),
        (1, 131, 1, 70, 64, 64),
        (1, 70, 2, 64, 32, 64),
        // Enough heads for blocks that go along them.
        (1, 70, 16, 70, 100, 64),
        (1, 40, 16, 72, 70, 32),
        (1, 9, 128, 3, 2, 4),
        (1, 130, 16, 66, 98, 100),
        // More chunks than a block of the gates' goes along at once.
        (1, 140, 1, 2, 2, 2),
        (0, 3, 1, 2, 2, 2),
        (2, 0, 1, 2, 2, 2),
        (1, 0, 128, 4, 3, 8),
        (1, 3, 2, 0, 2, 2),
        (1, 3, 2, 2, 0, 2),
    ];
    for (b, t, h, k, v, chunk) in sizes {
        let mut g = Gen::new(7);
        let mut x = vec![g.normal([b, t, h, k]), g.normal([b, t, h, k]), g.normal([b, t, h, v])];
        x.extend([g.normal([b, t, h]), g.range([b, t, h], 0.0, 5.0), g.normal([b, h, k, v]), g.normal([b, h, k])]);
        x.extend([g.normal([b, h]), g.range([b, h], 0.5, 1.5)]);
        same(&format!("mlstm {b} {t} {h} {k} {v} {chunk}"), || Mlstm { chunk, eps: 0.1 }, &x, 4);
    }
}
