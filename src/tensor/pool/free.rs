//! Free buffers by size class, and how many bytes of them are worth keeping.

use std::sync::Arc;

/// Eight classes to a factor of two, so that at most an eighth of a buffer is not asked for: the number of a class, and
/// the size that its buffers have. Below sixteen each size is a class.
pub fn class(len: usize) -> (usize, usize) {
    if len < 16 {
        return (len, len);
    }
    let shift = len.ilog2() - 3;
    let eighths = ((len - 1) >> shift) + 1;
    (8 * shift as usize + eighths, eighths.saturating_mul(1 << shift))
}

/// Free buffers of one kind by class, each with the number of the step in which it came back.
pub struct Bin<B>(Vec<Vec<(Arc<B>, u32)>>);

impl<B> Default for Bin<B> {
    fn default() -> Bin<B> {
        Bin(vec![])
    }
}

impl<B> Bin<B> {
    /// The buffer of a class that came back last.
    pub fn take(&mut self, class: usize) -> Option<Arc<B>> {
        Some(self.0.get_mut(class)?.pop()?.0)
    }

    /// The smallest buffer of the next 23 classes, which from sixteen elements on is less than eight times as large.
    pub fn take_larger(&mut self, class: usize) -> Option<Arc<B>> {
        Some(self.0.get_mut(class + 1..)?.iter_mut().take(23).find_map(Vec::pop)?.0)
    }

    /// Keep a buffer of a class, which came back in this step.
    pub fn give(&mut self, class: usize, buf: Arc<B>, step: u32) {
        if self.0.len() <= class {
            self.0.resize_with(class + 1, Vec::new);
        }
        self.0[class].push((buf, step));
    }

    /// The step in which the buffer that has been idle longest came back. Of a class the first one is that, as the last
    /// to come back is the first to be taken.
    pub fn oldest(&self) -> Option<u32> {
        self.0.iter().filter_map(|free| free.first()).map(|free| free.1).min()
    }

    /// The buffer that has been idle longest.
    pub fn take_oldest(&mut self) -> Option<Arc<B>> {
        let free = self.0.iter_mut().filter(|free| !free.is_empty()).min_by_key(|free| free[0].1)?;
        Some(free.remove(0).0)
    }

    /// Drop all.
    pub fn clear(&mut self) {
        self.0.clear();
    }
}

/// The bytes of a pool's buffers. What was in use at once in the last steps says how many are worth keeping.
#[derive(Default)]
pub struct Usage {
    /// Steps so far.
    pub step: u32,
    in_use: usize,
    free: usize,
    /// The most in use at once in this period and in the one before.
    peaks: [usize; 2],
}

impl Usage {
    /// Steps of a period: of lengths drawn at random, about the longest comes in each.
    pub const PERIOD: u32 = 64;

    /// A buffer was made.
    pub fn made(&mut self, bytes: usize) {
        self.lent(bytes);
    }

    /// A free buffer was taken.
    pub fn taken(&mut self, bytes: usize) {
        self.free -= bytes;
        self.lent(bytes);
    }

    fn lent(&mut self, bytes: usize) {
        self.in_use = self.in_use.saturating_add(bytes);
        self.peaks[0] = self.peaks[0].max(self.in_use);
    }

    /// A buffer is no longer in use here; it is free, or somebody else holds it.
    pub fn returned(&mut self, bytes: usize, free: bool) {
        self.in_use = self.in_use.saturating_sub(bytes);
        self.free += if free { bytes } else { 0 };
    }

    /// A free buffer was given back to the system.
    pub fn dropped(&mut self, bytes: usize) {
        self.free -= bytes;
    }

    /// All free buffers were given back.
    pub fn clear(&mut self) {
        self.free = 0;
    }

    /// A step is over. What it did not bring back has left the pool.
    pub fn end_step(&mut self) {
        self.in_use = 0;
        self.step = self.step.saturating_add(1);
        if self.step.is_multiple_of(Self::PERIOD) {
            self.peaks = [0, self.peaks[0]];
        }
    }

    /// All bytes: in use, and free.
    pub fn held(&self) -> usize {
        self.in_use + self.free
    }

    /// The most that were in use at once in the last steps.
    pub fn peak(&self) -> usize {
        self.peaks[0].max(self.peaks[1])
    }

    /// Whether, with so many bytes more, there is more than a quarter above the most that is in use at once.
    pub fn too_much(&self, more: usize) -> bool {
        let peak = self.peak().max(self.in_use.saturating_add(more));
        self.held().saturating_add(more) > peak.saturating_add(peak / 4)
    }

    /// Whether neither this step nor the one before it had a use for a buffer that came back in that step. So steps of
    /// one shape give up nothing, however their sizes follow one another.
    pub fn idle(&self, step: u32) -> bool {
        step.saturating_add(1) < self.step
    }
}
