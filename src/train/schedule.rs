//! How the learning rate changes over a run.

use serde::{Deserialize, Serialize};
use std::f64::consts::PI;

/// The shape of the learning rate after the warm-up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "laboratory", derive(clap::ValueEnum))]
#[serde(rename_all = "lowercase")]
pub enum Shape {
    /// The same to the end.
    #[default]
    Constant,
    /// Half a cosine from the peak down to `min_lr_fraction` of it at the last step.
    Cosine,
}

impl std::fmt::Display for Shape {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.write_str(match self {
            Shape::Constant => "constant",
            Shape::Cosine => "cosine",
        })
    }
}

/// A linear rise over `warmup` steps to `peak`, then constant, or a cosine down to `peak · min_ratio`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Schedule {
    /// The shape after the warm-up.
    pub shape: Shape,
    /// The highest learning rate.
    pub peak: f64,
    /// The lowest learning rate of the cosine, as a fraction of the peak.
    pub min_ratio: f64,
    /// How many steps the rise takes; 0 for none. A run that is shorter ends on the way up.
    pub warmup: usize,
    /// How many steps the run takes.
    pub steps: usize,
}

impl Schedule {
    /// The learning rate of step `step`, counted from 1.
    pub fn lr(&self, step: usize) -> f64 {
        let Schedule { shape, peak, min_ratio, warmup, steps } = *self;
        if step <= warmup {
            return peak * step as f64 / warmup as f64;
        }
        match shape {
            Shape::Constant => peak,
            Shape::Cosine => {
                let progress = (step - warmup) as f64 / steps.saturating_sub(warmup).max(1) as f64;
                peak * (min_ratio + (1.0 - min_ratio) * 0.5 * (1.0 + (PI * progress.min(1.0)).cos()))
            }
        }
    }
}
