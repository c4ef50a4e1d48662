//! The training step of the default preset: its data, forward, backward, clipping and Adam, by the clock.

use super::row;
use std::time::Instant;
use tapezoo::{
    error::Result,
    tensor::Device,
    train::{Trainer, config::TrainConfig},
};

fn config(model: Option<&str>, device: Device) -> Result<TrainConfig> {
    let mut table = toml::Table::from_iter([("device".into(), device.to_string().into())]);
    table.extend(model.map(|model| ("models".into(), vec![model].into())));
    TrainConfig::load(None, table)
}

/// The models of the preset.
pub fn names() -> Result<Vec<&'static str>> {
    let models = config(None, Device::Cpu)?.models;
    Ok(tapezoo::models::names().into_iter().filter(|name| models.iter().any(|model| model == name)).collect())
}

/// The median seconds of a step.
fn seconds(name: &str, device: Device, budget: f64) -> Result<(f64, bool)> {
    let mut trainer = Trainer::new(&config(Some(name), device)?.for_model(name)?, 0)?;
    // Kernels are compiled, buffers allocated and the graph is recorded.
    for _ in 0..4 {
        trainer.step()?;
    }
    let (start, mut times) = (Instant::now(), vec![]);
    while times.is_empty() || (start.elapsed().as_secs_f64() < budget && times.len() < 5000) {
        let step = Instant::now();
        trainer.step()?;
        times.push(step.elapsed().as_secs_f64());
    }
    times.sort_by(f64::total_cmp);
    Ok((times[times.len() / 2], trainer.replays()))
}

/// Print the row of a model, beside the CPU's.
pub fn time(name: &str, device: Device, budget: f64) -> Result<()> {
    let (took, replayed) = seconds(name, device, budget)?;
    let how = if replayed { ", one graph" } else { "" };
    let mut notes = format!("{:.0} steps/s{how}", 1.0 / took);
    if device != Device::Cpu {
        let (cpu, _) = seconds(name, Device::Cpu, budget)?;
        notes += &format!("; {:.2} times one core's {:.4} ms", cpu / took, cpu * 1e3);
    }
    row(&format!("step {name} f32"), took, &notes);
    Ok(())
}
