//! A matrix in a slice.

/// A matrix in a slice: rows, columns and the distances between them.
#[derive(Clone, Copy, Debug)]
pub struct Mat {
    /// Number of rows.
    pub rows: usize,
    /// Number of columns.
    pub cols: usize,
    /// Distance between rows.
    pub rs: usize,
    /// Distance between columns.
    pub cs: usize,
}

impl Mat {
    /// A row-major matrix whose rows are `rs` apart.
    pub fn new(rows: usize, cols: usize, rs: usize) -> Mat {
        Mat { rows, cols, rs, cs: 1 }
    }

    /// The transpose of the same elements.
    pub fn t(self) -> Mat {
        Mat { rows: self.cols, cols: self.rows, rs: self.cs, cs: self.rs }
    }

    /// One past the last element; of what no memory can hold, more than any slice has.
    pub fn span(self) -> usize {
        if self.rows == 0 || self.cols == 0 {
            return 0;
        }
        let far = |n: usize, step: usize| (n - 1).saturating_mul(step);
        far(self.rows, self.rs).saturating_add(far(self.cols, self.cs)).saturating_add(1)
    }
}
