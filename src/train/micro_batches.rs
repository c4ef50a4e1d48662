//! A batch in micro-batches, its parts: one after the other, while the values of each are in the caches, and side by
//! side on cores that no other run needs.
//!
//! Of a loss that is a mean over n targets, nᵢ of them in part i, the gradient is Σᵢ nᵢ/n ∇ᵢ. The number of parts is
//! one of the numbers of the experiment, each part has a gradient of its own, and the sum is taken in their order: what
//! comes out depends on how many parts there are, and not on how many threads computed them, or when.

use super::{config::TrainConfig, gradient::descend};
use crate::{
    autograd::Tape,
    error::{Error, Result},
    models::{Form, Model},
    tasks::{Batch, IGNORE},
    tensor::{Cores, Real, Tensor},
    with_real,
};
use std::sync::{
    Mutex, MutexGuard, PoisonError,
    atomic::{AtomicUsize, Ordering},
};

/// The results of a part of a batch.
struct Part {
    grads: Tensor,
    /// The mean loss of its targets, and how many there were.
    loss: f64,
    targets: usize,
}

/// The parts, and tapes for them: a thread uses one for all the parts that it takes, so that the buffers of one part
/// are in its caches for the next.
pub struct MicroBatches {
    parts: Vec<Mutex<Part>>,
    tapes: Mutex<Vec<Tape>>,
    cores: Cores,
}

/// A lock, even if a thread panicked with it: that panic comes out of the scope, so the value is not used again.
fn lock<T>(it: &Mutex<T>) -> MutexGuard<'_, T> {
    it.lock().unwrap_or_else(PoisonError::into_inner)
}

impl MicroBatches {
    /// As many parts as [`TrainConfig::parts`], for a flat gradient like this one.
    ///
    /// # Errors
    /// When a tape cannot be had.
    pub fn new(cfg: &TrainConfig, grads: &Tensor) -> Result<MicroBatches> {
        let open = || Tape::open_with(cfg.device, cfg.products).map_err(Error::Device);
        let tape = |_| Ok(open()?.with_kernels(cfg.kernels.clone()));
        let grads = || Tensor::zeros(grads.shape(), grads.dtype());
        Ok(MicroBatches {
            parts: (0..cfg.parts()).map(|_| Mutex::new(Part { grads: grads(), loss: 0.0, targets: 0 })).collect(),
            tapes: Mutex::new((0..cfg.parts()).map(tape).collect::<Result<_>>()?),
            cores: Cores::default(),
        })
    }

    /// The tapes, between steps.
    pub fn tapes(&mut self) -> &[Tape] {
        self.tapes.get_mut().unwrap_or_else(PoisonError::into_inner)
    }

    /// Compute on cores that are idle from now on.
    pub fn share(&mut self, cores: &Cores) {
        self.cores = cores.clone();
        self.tapes.get_mut().unwrap_or_else(PoisonError::into_inner).iter_mut().for_each(|tape| tape.share(cores));
    }

    /// Do `jobs` jobs, by this thread and one on every idle core, each with a tape of its own.
    pub fn each(&self, jobs: usize, job: impl Fn(usize, &mut Tape) + Sync) {
        let next = AtomicUsize::new(0);
        self.cores.work(self.parts.len().min(jobs), || {
            let Some(mut tape) = lock(&self.tapes).pop() else { unreachable!("a tape for each thread") };
            for i in std::iter::repeat_with(|| next.fetch_add(1, Ordering::Relaxed)).take_while(|&i| i < jobs) {
                job(i, &mut tape);
            }
            lock(&self.tapes).push(tape);
        });
    }

    /// The loss of a batch, and its gradient in `into`.
    pub fn gradient(&self, cfg: &TrainConfig, model: &Model, form: Form, batch: &Batch, into: &mut Tensor) -> f64 {
        let n = self.parts.len();
        let batches = if model.is_causal() { batch.by_length(n) } else { batch.parts(n) };
        self.each(batches.len(), |i, tape| {
            // The longest first: what is left for a thread at the end is short.
            let i = batches.len() - 1 - i;
            let Part { grads, loss, targets } = &mut *lock(&self.parts[i]);
            let part = &batches[i];
            let (rows, labels) = part.labelled().unzip();
            let labels = labels.as_ref().unwrap_or(&part.targets);
            let params = model.params().bind(tape);
            let rows = rows.as_ref().map(|rows| tape.constant(rows));
            let logits = model.forward_at(&params, tape.constant(&part.tokens), form, rows);
            *loss = descend(cfg, model, &params, logits, labels, grads).value().item();
            *targets = labels.host::<i32>().iter().filter(|&&t| t != IGNORE).count();
            tape.reset();
        });
        let parts: Vec<_> = self.parts.iter().map(lock).collect();
        let all = parts.iter().map(|part| part.targets).sum::<usize>().max(1);
        let weight = |part: &Part| part.targets as f64 / all as f64;
        with_real!(into.dtype(), T => {
            let sum = into.host_mut::<T>();
            for (i, part) in parts.iter().enumerate() {
                let (weight, grads) = (T::of(weight(part)), sum.iter_mut().zip(part.grads.host::<T>()));
                match i {
                    0 => grads.for_each(|(sum, &g)| *sum = weight * g),
                    _ => grads.for_each(|(sum, &g)| *sum += weight * g),
                }
            }
        });
        parts.iter().map(|part| weight(part) * part.loss).sum()
    }
}
