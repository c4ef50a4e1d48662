//! The kernels of runs on a device, compiled before the first of the runs begins.

use super::{Trainer, config::TrainConfig};
use crate::{cuda::ahead, error::contained, tensor::Device};

/// The most runs that are rehearsed: those of a large sweep differ in numbers, and hardly in kernels.
const MOST: usize = 64;

/// Have the kernels that these runs need compiled, side by side, unless they are there already. `told` hears how many
/// are compiled, and of how many, and says whether to go on.
pub fn compile_kernels<'a>(runs: impl Iterator<Item = &'a TrainConfig>, told: &(dyn Fn(usize, usize) -> bool + Sync)) {
    let mut different: Vec<&TrainConfig> = vec![];
    for cfg in runs.filter(|cfg| cfg.device != Device::Cpu) {
        if different.len() < MOST && !different.iter().any(|known| same_kernels(known, cfg)) {
            different.push(cfg);
        }
    }
    if !different.is_empty() {
        ahead::compile_ahead(sources(&different, None), told);
    }
}

/// The sources that these runs need compiled, on a target if one is given.
pub fn sources(runs: &[&TrainConfig], target: Option<(Device, &'static str)>) -> Vec<ahead::Source> {
    ahead::rehearse(target, || {
        for cfg in runs {
            // A run that cannot be says so when it begins.
            let _ = contained(|| {
                let mut trainer = Trainer::new(&TrainConfig { eval_batches: 1, ..(*cfg).clone() }, cfg.seed)?;
                trainer.step()?;
                trainer.evaluate()
            });
        }
    })
}

/// Whether two runs differ in nothing that chooses a kernel.
fn same_kernels(a: &TrainConfig, b: &TrainConfig) -> bool {
    let with_numbers_of_a =
        TrainConfig { seed: a.seed, lr: a.lr, weight_decay: a.weight_decay, steps: a.steps, ..b.clone() };
    *a == with_numbers_of_a
}
