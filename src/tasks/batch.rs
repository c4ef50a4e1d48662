//! The sequences of a step, and their parts.

use super::{IGNORE, Len, Task};
use crate::{
    rng::Rng,
    tensor::{DType, Tensor},
};
use std::ops::Range;

/// Tokens and targets, `[batch, len.max]` each, refilled in place at every step.
pub struct Batch {
    /// The model's input.
    pub tokens: Tensor,
    /// The target at each position.
    pub targets: Tensor,
    len: Len,
}

impl Batch {
    /// Room for `batch` sequences of this length.
    pub fn new(batch: usize, len: impl Into<Len>) -> Batch {
        let len = len.into();
        let zeros = || Tensor::zeros([batch, len.max], DType::I32);
        Batch { tokens: zeros(), targets: zeros(), len }
    }

    /// The lengths that its sequences have.
    pub fn lens(&self) -> Len {
        self.len
    }

    /// The next sequences of `rng`.
    ///
    /// # Panics
    /// When a tape still holds the old ones.
    pub fn fill(&mut self, task: &dyn Task, mut rng: Rng) {
        task.fill_range(&mut rng, self.len, self.tokens.host_mut(), self.targets.host_mut());
    }

    /// Its sequences in `n` batches, of almost as many each, in their order. They share this batch's memory.
    pub fn parts(&self, n: usize) -> Vec<Batch> {
        let b = self.targets.shape().at(0);
        (0..n).map(|i| self.rows(i * b / n..(i + 1) * b / n)).collect()
    }

    fn rows(&self, rows: Range<usize>) -> Batch {
        let t = self.targets.shape().at(1);
        let window = |of: &Tensor| of.window(rows.start * t, [rows.len(), t]);
        Batch { tokens: window(&self.tokens), targets: window(&self.targets), len: self.len }
    }

    /// As [`Batch::parts`], but first those whose last target comes early; each batch ends at the last target that it has.
    /// For a model that is causal no answer and no gradient changes. Sequences of one length keep their order, and share
    /// the batch's memory. One batch is the whole, as it is.
    pub fn by_length(&self, n: usize) -> Vec<Batch> {
        if n == 1 {
            return self.parts(1);
        }
        let [b, t] = [0, 1].map(|axis| self.targets.shape().at(axis));
        let (tokens, targets) = (self.tokens.host::<i32>(), self.targets.host::<i32>());
        // A batch has a token, even if it has no target.
        let end = |row: usize| {
            targets[row * t..][..t].iter().rposition(|&target| target != IGNORE).map_or(1, |last| last + 1).min(t)
        };
        let ends: Vec<usize> = (0..b).map(end).collect();
        let mut rows: Vec<usize> = (0..b).collect();
        rows.sort_by_key(|&row| ends[row]);
        let part = |i: usize| {
            let rows = &rows[i * b / n..(i + 1) * b / n];
            let len = rows.last().map_or(t, |&row| ends[row]);
            if let Some(&first) = rows.first()
                && len == t
                && rows.iter().enumerate().all(|(i, &row)| row == first + i)
            {
                return self.rows(first..first + rows.len());
            }
            let cut = |of: &[i32]| {
                let of = rows.iter().flat_map(|&row| &of[row * t..][..len]).copied().collect();
                Tensor::from_vec::<i32>(of, [rows.len(), len])
            };
            Batch { tokens: cut(tokens), targets: cut(targets), len: Len { max: len, min: self.len.min.min(len) } }
        };
        (0..n).map(part).collect()
    }

    /// If fewer than half of the positions have a target: the indices into `[batch · len.max]` of those that have, and
    /// their targets. At least one index is returned, since a batch without targets still has a loss (0).
    pub fn labelled(&self) -> Option<(Tensor, Tensor)> {
        let targets = self.targets.host::<i32>();
        let labelled = || targets.iter().enumerate().filter(|t| *t.1 != IGNORE);
        let n = labelled().count();
        if 2 * n >= targets.len() {
            return None;
        }
        let (rows, labels) = labelled().map(|(i, &t)| (i as i32, t)).chain((n == 0).then_some((0, IGNORE))).unzip();
        let n = n.max(1);
        Some((Tensor::from_vec::<i32>(rows, [n]), Tensor::from_vec::<i32>(labels, [n])))
    }
}
