//! Adam in single precision against its formula in double, on the CPU and on the device; norms whose squares overflow
//! or underflow.
#![allow(clippy::unwrap_used)]

mod device;

use device::all;
use tapezoo::{
    autograd::Tape,
    tasks::Batch,
    tensor::{DType, Device, Tensor},
    train::{
        on_device::OnDevice,
        optimizer::{Adam, AdamConfig, Rule, clip},
    },
};

/// The parameters after these gradients, from zeros, and the norm of the last.
fn run(device: Device, dtype: DType, config: AdamConfig, max: f64, grads: &[Vec<f64>]) -> (Vec<f64>, f64) {
    let (tape, n) = (Tape::new(device), grads[0].len());
    let windows = [(0..n, true)];
    let (mut p, mut adam) = (Tensor::zeros([n], dtype).to_device(tape.cx()), Adam::new(n, dtype, config));
    adam.to_device(tape.cx());
    let loss = Tensor::zeros([1], dtype).to_device(tape.cx());
    let mut on = OnDevice::new(tape.cx(), n, &windows);
    let mut norm = 0.0;
    for g in grads {
        let mut g = Tensor::from_vec(g.clone(), [n]).cast(dtype).to_device(tape.cx());
        if let Some(on) = &mut on {
            on.give(tape.cx(), &Batch::new(1, 1usize), &adam.next(1e-2, max));
            on.upload();
            on.judge(&g, &loss);
            on.update(&mut adam, &mut p, &g);
            on.download();
            norm = on.told()[1];
        } else {
            norm = clip(&mut g, max);
            adam.step(1e-2, &mut p, &g, &windows);
        }
    }
    (p.to_f64(), norm)
}

/// The same by the paper's formula.
fn formula(AdamConfig { betas: [b1, b2], eps, .. }: AdamConfig, grads: &[Vec<f64>]) -> Vec<f64> {
    let (mut p, mut m, mut v) = (vec![0.0; grads[0].len()], vec![0.0; grads[0].len()], vec![0.0; grads[0].len()]);
    for (t, g) in (1..).zip(grads) {
        for i in 0..g.len() {
            m[i] = b1 * m[i] + (1.0 - b1) * g[i];
            v[i] = b2 * v[i] + (1.0 - b2) * g[i] * g[i];
            let (m, v): (f64, f64) = (m[i] / (1.0 - b1.powi(t)), v[i] / (1.0 - b2.powi(t)));
            p[i] -= 1e-2 * m / (v.sqrt() + eps);
        }
    }
    p
}

fn config(betas: [f64; 2], eps: f64) -> AdamConfig {
    AdamConfig { rule: Rule::Adam, betas, eps, weight_decay: 0.0 }
}

#[test]
fn adam_in_single_precision_is_adam_whatever_beta_is() {
    let grads: Vec<Vec<f64>> = (0..30).map(|t| vec![1.0, 0.25 * f64::from(t % 5), -3.0, 1e-3, 1e10, 1e20]).collect();
    for (device, betas) in all().into_iter().flat_map(|d| [[0.9, 0.999], [0.99999, 0.999999]].map(|b| (d, b))) {
        let config = config(betas, 1e-8);
        let (got, want) = (run(device, DType::F32, config, 0.0, &grads).0, formula(config, &grads));
        for (got, want) in got.iter().zip(&want) {
            assert!((got / want - 1.0).abs() < 3e-6, "{betas:?} on {device}: {got}, not {want}");
        }
    }
}

#[test]
fn a_tiny_eps_is_not_none() {
    for device in all() {
        let got = run(device, DType::F32, config([0.9, 0.999], 1e-60), 0.0, &vec![vec![0.0, 1.0]; 3]).0;
        assert!(got[0] == 0.0 && (got[1] / -3e-2 - 1.0).abs() < 1e-5, "{got:?} on {device}");
    }
}

#[test]
fn a_norm_is_right_where_squares_overflow() {
    for (device, dtype, large) in all().into_iter().flat_map(|d| [(d, DType::F32, 1e38), (d, DType::F64, 1e200)]) {
        let (p, norm) = run(device, dtype, config([0.9, 0.999], 1e-8), 1.0, &[vec![3.0 * large, -4.0 * large / 2.0]]);
        assert!((norm / (large * 13f64.sqrt()) - 1.0).abs() < 1e-6, "{norm} of {dtype} on {device}");
        assert!(p.iter().all(|p| (p.abs() / 1e-2 - 1.0).abs() < 1e-4), "{p:?} in {dtype} on {device}");
        let (_, norm) = run(device, dtype, config([0.9, 0.999], 1e-8), 1.0, &[vec![f64::INFINITY, 1.0]]);
        assert!(!norm.is_finite(), "{norm} in {dtype} on {device}");
    }
}

#[test]
fn a_square_beyond_the_largest_number_is_no_nan() {
    for device in all() {
        let p = run(device, DType::F32, config([0.9, 0.999], 1e-8), 0.0, &vec![vec![1e25, 1.0]; 3]).0;
        assert!(p[0].abs() <= 1e-2 && (p[1] / -3e-2 - 1.0).abs() < 1e-5, "{p:?} on {device}");
    }
}
