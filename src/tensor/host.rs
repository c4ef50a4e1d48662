//! Numbers in host memory.

use std::ops::{Deref, DerefMut};

/// Bytes of a cache line, and of the widest vector.
const LINE: usize = 64;

/// Elements of a fixed number; those made by [`Host::aligned`] begin on a cache line. A vector that straddles two lines
/// is read as two, and a store of one costs many times as much.
#[derive(Debug)]
pub struct Host<T> {
    all: Vec<T>,
    start: usize,
    len: usize,
}

impl<T: Clone + Default> Host<T> {
    /// `len` defaults.
    pub fn aligned(len: usize) -> Host<T> {
        let all = vec![T::default(); len + LINE / size_of::<T>()];
        // Nothing is ever added, so that they stay where they are.
        let start = all.as_ptr().align_offset(LINE).min(all.len() - len);
        Host { all, start, len }
    }
}

impl<T> From<Vec<T>> for Host<T> {
    fn from(all: Vec<T>) -> Host<T> {
        Host { start: 0, len: all.len(), all }
    }
}

impl<T> Deref for Host<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        &self.all[self.start..self.start + self.len]
    }
}

impl<T> DerefMut for Host<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.all[self.start..self.start + self.len]
    }
}
