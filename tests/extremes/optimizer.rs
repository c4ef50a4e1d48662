//! Adam in single precision against its formula in double, on the CPU and on the device; norms whose squares overflow
//! or underflow.

use crate::{device::all, draw::pick};
use approx::{abs_diff_eq, relative_eq, relative_ne};
use proptest::prelude::*;
use tapezoo::{
    autograd::{Gen, Tape},
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

/// Gradients of all sizes, but of one size for each element, over some steps.
struct Draw {
    config: AdamConfig,
    /// The norm that gradients are clipped to, if not 0.
    max: f64,
    grads: Vec<Vec<f64>>,
}

impl Draw {
    fn new(seed: u64) -> Draw {
        let g = &mut Gen::new(seed);
        let betas = pick(g, &[[0.9, 0.999], [0.9, 0.95], [0.0, 0.5], [0.99999, 0.999999]]);
        let (eps, max) = (pick(g, &[1e-8, 1e-12, 1e-4]), pick(g, &[0.0, 0.0, 1.0, 1e-3]));
        let (n, steps) = (pick(g, &[1, 2, 7, 8, 33, 70]), 1 + g.below(30));
        let largest = pick(g, &[0.0, 15.0, 37.0]);
        let sizes: Vec<f64> = (0..n).map(|_| 10f64.powf(g.uniform(-18.0, largest))).collect();
        let step = |g: &mut Gen| sizes.iter().map(|size| f64::from((size * g.uniform(-1.0, 1.0)) as f32)).collect();
        Draw { config: config(betas, eps), max, grads: (0..steps).map(|_| step(g)).collect() }
    }

    /// Scaled so that its norm is at most the largest.
    fn clipped(&self, grads: &[f64]) -> Vec<f64> {
        let norm = norm(grads);
        let by = if self.max > 0.0 { (self.max / (norm + 1e-6)).min(1.0) } else { 1.0 };
        grads.iter().map(|g| g * by).collect()
    }

    fn same(&self, devices: &[Device]) -> Result<(), String> {
        let AdamConfig { betas, eps, .. } = self.config;
        let clipped: Vec<Vec<f64>> = self.grads.iter().map(|g| self.clipped(g)).collect();
        let want = formula(self.config, &clipped);
        for (device, (dtype, off)) in
            devices.iter().flat_map(|&d| [(DType::F64, 1e-12), (DType::F32, 1e-5)].map(|type_| (d, type_)))
        {
            let here = format!("{dtype} on {device}, betas {betas:?}, eps {eps:e}, max {:e}", self.max);
            let (got, length) = run(device, dtype, self.config, self.max, &self.grads);
            let true_length = norm(&self.grads[self.grads.len() - 1]);
            if relative_ne!(length, true_length, epsilon = 0.0, max_relative = off) {
                return Err(format!("{here}: the norm is {length:e}, not {true_length:e}"));
            }
            for i in 0..got.len() {
                let path: f64 = 1e-2 * self.grads.len() as f64;
                // The square overflows in single precision: the parameter does not move, and stays finite.
                let overflows = dtype == DType::F32 && clipped.iter().any(|g| g[i].abs() > 1e18);
                let near =
                    abs_diff_eq!(got[i], want[i], epsilon = off * path) || overflows && got[i].abs() <= 10.0 * path;
                if !near {
                    let g = self.grads[0][i];
                    return Err(format!("{here}: element {i} of gradient {g:e} is {:e}, not {:e}", got[i], want[i]));
                }
            }
        }
        Ok(())
    }
}

/// The norm in double precision, of numbers whose squares do not overflow in it.
fn norm(x: &[f64]) -> f64 {
    x.iter().map(|x| x * x).sum::<f64>().sqrt()
}

#[test]
fn adam_is_its_formula() {
    let one = std::iter::once(("adam", ()));
    crate::each(one, 300, any::<u64>, |(), seed| Draw::new(seed).same(&all()));
}

#[test]
fn a_tiny_eps_is_not_none() {
    for device in all() {
        let got = run(device, DType::F32, config([0.9, 0.999], 1e-60), 0.0, &vec![vec![0.0, 1.0]; 3]).0;
        assert!(
            got[0] == 0.0 && relative_eq!(got[1], -3e-2, epsilon = 0.0, max_relative = 1e-5),
            "{got:?} on {device}"
        );
    }
}

#[test]
fn a_norm_is_right_where_squares_overflow() {
    for (device, dtype, large) in all().into_iter().flat_map(|d| [(d, DType::F32, 1e38), (d, DType::F64, 1e200)]) {
        let (p, norm) = run(device, dtype, config([0.9, 0.999], 1e-8), 1.0, &[vec![3.0 * large, -4.0 * large / 2.0]]);
        assert!(
            relative_eq!(norm, large * 13f64.sqrt(), epsilon = 0.0, max_relative = 1e-6),
            "{norm} of {dtype} on {device}"
        );
        assert!(
            p.iter().all(|p| relative_eq!(p.abs(), 1e-2, epsilon = 0.0, max_relative = 1e-4)),
            "{p:?} in {dtype} on {device}"
        );
        let (_, norm) = run(device, dtype, config([0.9, 0.999], 1e-8), 1.0, &[vec![f64::INFINITY, 1.0]]);
        assert!(!norm.is_finite(), "{norm} in {dtype} on {device}");
    }
}
