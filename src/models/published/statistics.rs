//! BatchNorm's running statistics.

use super::{Config, Defect};
use crate::{autograd::Var, tensor::Tensor};

/// Running mean and variance of every BatchNorm. Only the LRU has any.
#[derive(Clone, Debug)]
pub struct Statistics {
    /// [norms, 2, D], f64.
    values: Tensor,
    width: usize,
}

impl Statistics {
    /// torch's start: mean 0, variance 1.
    pub fn new(c: &Config) -> Statistics {
        let norms = if c.model == "lru" && c.has(Defect::BatchNorm) { c.n_layers } else { 0 };
        let start = [vec![0.0; c.d_model], vec![1.0; c.d_model]].concat();
        Statistics { values: Tensor::from_vec(start.repeat(norms), [norms, 2, c.d_model]), width: c.d_model }
    }

    /// Mean and variance of one BatchNorm.
    pub fn of(&self, layer: usize) -> [Vec<f64>; 2] {
        [0, 1].map(|i| self.values.window((2 * layer + i) * self.width, [self.width]).to_f64())
    }

    /// All statistics, as a file stores them.
    pub fn values(&self) -> &Tensor {
        &self.values
    }

    /// All statistics, mutable.
    pub fn values_mut(&mut self) -> &mut Tensor {
        &mut self.values
    }

    /// Move a tenth of the way to the statistics of a training batch of `b` sequences of `t` tokens
    /// ([`batch`](super::Output::batch)). The running variance is the unbiased one, as in torch.
    pub fn update(&mut self, batch: &[[Var; 2]], b: usize, t: usize) {
        let n = (b * t) as f64;
        let unbiased = [1.0, n / (n - 1.0).max(1.0)].into_iter().cycle();
        if batch.is_empty() || b * t == 0 {
            return;
        }
        let running = self.values.host_mut::<f64>().chunks_exact_mut(self.width);
        for ((running, seen), factor) in running.zip(batch.iter().flatten()).zip(unbiased) {
            for (r, s) in running.iter_mut().zip(seen.value().to_f64()) {
                *r += 0.1 * (factor * s - *r);
            }
        }
    }
}
