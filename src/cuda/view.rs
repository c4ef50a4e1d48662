//! Matrices in device memory, as matrix products see them.

use crate::{dtype::DType, mat::Mat};

/// A matrix, or several at equal distances, in device memory.
#[derive(Clone, Copy, Debug)]
pub struct View {
    pub(crate) ptr: u64,
    /// How many elements there are from `ptr` on.
    pub(crate) len: usize,
    pub(crate) dtype: DType,
    pub(crate) mat: Mat,
    pub(crate) step: usize,
}

impl View {
    /// The same, beginning `offset` elements later. Of no elements every part is the same nothing.
    #[track_caller]
    pub fn at(self, offset: usize) -> View {
        let offset = if self.len == 0 { 0 } else { offset };
        assert!(offset <= self.len, "offset {offset} of {} elements", self.len);
        View { ptr: self.ptr + (offset * self.dtype.bytes()) as u64, len: self.len - offset, ..self }
    }

    /// The matrix of batch i begins `step` elements after that of batch i − 1; 0, as from the start: all use the same.
    pub fn every(self, step: usize) -> View {
        View { step, ..self }
    }

    /// The transposes.
    pub fn t(self) -> View {
        View { mat: self.mat.t(), ..self }
    }

    /// Leading dimension, and whether the rows are contiguous; `None` if neither rows nor columns are.
    pub(super) fn layout(&self) -> Option<(i32, bool)> {
        let Mat { rows, cols, rs, cs } = self.mat;
        let (lead, by_rows) = match () {
            () if cols <= 1 || cs == 1 => (if rows <= 1 { cols } else { rs }, true),
            () if rows <= 1 || rs == 1 => (if cols <= 1 { rows } else { cs }, false),
            () => return None,
        };
        let least = if by_rows { cols } else { rows };
        i32::try_from(lead.max(1)).ok().filter(|_| lead >= least).map(|lead| (lead, by_rows))
    }

    /// One past the last element of the last batch.
    pub(super) fn span(&self, batch: usize) -> usize {
        let Mat { rows, cols, rs, cs } = self.mat;
        match rows * cols * batch {
            0 => 0,
            _ => (batch - 1) * self.step + (rows - 1) * rs + (cols - 1) * cs + 1,
        }
    }
}
