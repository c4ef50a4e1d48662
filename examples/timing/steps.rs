//! The training step of the default preset: its data, forward, backward, clipping and Adam, by the clock.

use super::row;
use std::time::Instant;
use tapezoo::{
    error::Result,
    tensor::{DType, Device},
    train::{Trainer, config::TrainConfig},
};

fn config(model: Option<&str>, device: Device, dtype: DType) -> Result<TrainConfig> {
    let machine = [("device", device.to_string()), ("dtype", dtype.to_string())];
    let mut table = toml::Table::from_iter(machine.map(|(key, value)| (key.into(), value.into())));
    table.extend(model.map(|model| ("models".into(), vec![model].into())));
    TrainConfig::load(None, table)
}

/// The models of the preset.
pub fn names() -> Result<Vec<&'static str>> {
    let models = config(None, Device::Cpu, DType::F32)?.models;
    Ok(tapezoo::models::names().into_iter().filter(|name| models.iter().any(|model| model == name)).collect())
}

/// Median seconds per step.
fn seconds(name: &str, device: Device, dtype: DType, budget: f64) -> Result<(f64, bool)> {
    let mut trainer = Trainer::new(&config(Some(name), device, dtype)?.for_model(name)?, 0)?;
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

/// Print the row of a model; on a device also the ratio to the CPU's time, and a row in bf16.
pub fn time(name: &str, device: Device, budget: f64) -> Result<()> {
    let dtypes: &[DType] = if device == Device::Cpu { &[DType::F32] } else { &[DType::F32, DType::BF16] };
    for &dtype in dtypes {
        let (took, replayed) = seconds(name, device, dtype, budget)?;
        let how = if replayed { ", one graph" } else { "" };
        let mut notes = format!("{:.0} steps/s{how}", 1.0 / took);
        if device != Device::Cpu && dtype == DType::F32 {
            let (cpu, _) = seconds(name, Device::Cpu, dtype, budget)?;
            notes += &format!("; {:.2} times one core's {:.4} ms", cpu / took, cpu * 1e3);
        }
        row(&format!("step {name} {dtype}"), took, &notes);
    }
    Ok(())
}
