//! Noise on the gradient: its distribution, the place where it is added, and that it is reproducible.
#![allow(clippy::unwrap_used)]

mod close;
#[path = "device/mod.rs"]
mod device;

use close::{all_close, close};
use std::{f64::consts::TAU, time::Duration};
use tapezoo::{
    tensor::{DType, Tensor},
    train::{
        Trainer,
        checkpoint::{Written, load, save},
        config::TrainConfig,
        optimizer::Noise,
    },
};

fn config(more: &str) -> TrainConfig {
    let small = "models = [\"lstm\"]\neval_lens = [8]\ntrain_len = 8\nbatch = 8\nsteps = 40\neval_batches = 1\n\
        warmup = 0\nmicro_batches = 2\ngrad_noise = 0.3\ndevice = \"cpu\"\n[model]\nwidth = 8\nheads = 2\nhead_dim = 4\nmlp = 8";
    let mut table: toml::Table = small.parse().unwrap();
    table.extend(more.parse::<toml::Table>().unwrap());
    TrainConfig::load(None, table).unwrap().for_model("lstm").unwrap()
}

fn weights(trainer: &Trainer) -> Vec<f64> {
    trainer.model().params().flat().to_f64()
}

/// The first outputs of SplitMix64 from seed 0, as its authors' program has them.
#[test]
fn it_is_what_box_and_muller_make_of_splitmix() {
    let uniform = |bits: u64| (bits >> 11) as f64 / (1u64 << 53) as f64;
    let [u, v] = [0xe220_a839_7b1d_cdaf, 0x6e78_9e6a_a1b9_65f4].map(uniform);
    let noise = Noise { sigma: 2.0, key: 0 };
    let r = 2.0 * (-2.0 * u.ln()).sqrt();
    close(noise.at(0), r * (TAU * v).cos(), 1e-12, "first");
    close(noise.at(1), r * (TAU * v).sin(), 1e-12, "second");
}

#[test]
fn it_is_normal_and_its_variance_goes_down() {
    assert_eq!(Noise::of(0.0, 3, 7), None);
    let n = 200_000;
    for (t, eta) in [(0, 0.01), (0, 1.0), (9, 1.0), (999, 0.3)] {
        let noise = Noise::of(eta, 3, t).unwrap();
        close(noise.sigma.powi(2), eta / (1.0 + t as f64).powf(0.55), 1e-12, "variance");
        let x: Vec<f64> = (0..n).map(|i| noise.at(i) / noise.sigma).collect();
        let mean = |f: &dyn Fn(usize) -> f64| (0..n).map(f).sum::<f64>() / n as f64;
        // Five standard deviations of each mean.
        let few = |variance: f64| 5.0 * (variance / n as f64).sqrt();
        close(mean(&|i| x[i]), 0.0, few(1.0), "mean");
        close(mean(&|i| x[i].powi(2)), 1.0, few(2.0), "second moment");
        close(mean(&|i| x[i].powi(3)), 0.0, few(15.0), "third moment");
        close(mean(&|i| x[i].powi(4)), 3.0, few(96.0), "fourth moment");
        for gap in [1, 2, 3, 64] {
            close(mean(&|i| x[i] * x[(i + gap) % n]), 0.0, few(1.0), format!("neighbours at {gap}"));
        }
        // Other steps and seeds have another.
        for other in [Noise::of(eta, 3, t + 1).unwrap(), Noise::of(eta, 4, t).unwrap()] {
            close(mean(&|i| x[i] * other.at(i) / other.sigma), 0.0, few(1.0), "another");
        }
    }
}

#[test]
fn it_is_added_to_what_clipping_leaves() {
    // Nothing is left, and the first step of Adam goes down by lr, whatever the size of the gradient.
    let cfg = config("clip = 1e-30\nlr = 1e-3\neps = 1e-30\nschedule = \"constant\"");
    let mut trainer = Trainer::new(&cfg, 5).unwrap();
    let before = weights(&trainer);
    trainer.step().unwrap();
    let noise = Noise::of(0.3, 5, 0).unwrap();
    for (i, (before, after)) in before.iter().zip(weights(&trainer)).enumerate() {
        close((after - before) / 1e-3, -noise.at(i).signum(), 1e-3, format!("parameter {i}"));
    }
    let mut grads = Tensor::from_vec(vec![1.0, -2.0, 3.0], [3]);
    noise.add_to(&mut grads);
    let sums = [1.0 + noise.at(0), -2.0 + noise.at(1), 3.0 + noise.at(2)];
    all_close(&grads.to_f64(), &sums, 1e-15, "sums");
}

#[test]
fn a_run_that_is_interrupted_goes_on_to_the_same_bits() {
    let cfg = config("");
    let mut whole = Trainer::new(&cfg, 1).unwrap();
    let mut torn = Trainer::new(&cfg, 1).unwrap();
    let file = tempfile::NamedTempFile::new().unwrap();
    for _ in 0..8 {
        assert_eq!(whole.step().unwrap(), torn.step().unwrap());
        save(file.path(), &mut torn, Written::default(), Duration::ZERO).unwrap();
        torn = load(file.path(), &cfg, 1).unwrap().0;
    }
    assert_eq!(weights(&whole), weights(&torn));
    // The run is neither the run without noise, nor one with less.
    for other in ["grad_noise = 0.0", "grad_noise = 0.2"] {
        let mut other = Trainer::new(&config(other), 1).unwrap();
        (0..8).for_each(|_| assert!(other.step().is_ok()));
        assert_ne!(weights(&whole), weights(&other));
    }
}

#[test]
fn a_device_has_the_same_noise() {
    let Some(device) = device::device() else { return };
    for dtype in [DType::F32, DType::F64] {
        let base = TrainConfig { dtype, ..config("clip = 1e-30\nlr = 1e-3\neps = 1e-30\nmicro_batches = 1") };
        let [here, there] = [base.device, device].map(|device| {
            let mut trainer = Trainer::new(&TrainConfig { device, ..base.clone() }, 2).unwrap();
            (0..4).for_each(|_| assert!(trainer.step().is_ok()));
            trainer.into_model().unwrap().params().flat().to_f64()
        });
        // The gradients are nothing beside the noise, so steps differ by rounding alone.
        all_close(&there, &here, if dtype == DType::F64 { 1e-12 } else { 1e-6 }, dtype);
    }
}
