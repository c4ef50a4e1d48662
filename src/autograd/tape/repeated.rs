//! Rows that are copies of the rows of a small table, as those of an embedding are, are computed once.
//!
//! f(table[id]) = f(table)[id] for a function f of single rows: the norm and the affine maps at the start of a model of
//! two tokens are functions of two rows, however many tokens there are. So are the gradients: those of equal rows are
//! added up, as an embedding's are, before they go back through f.
//!
//! Only the order of sums is another: of those over rows in the gradients, and, where products of another size are summed
//! in another order, of those.

use super::{In, Op, Rows, Tape};
use crate::tensor::Cx;

/// So many rows to one of the table's, at least; with fewer the copies take as long as what they save.
const MANY: usize = 4;

impl Tape {
    /// The table and the indices to run an op on, if its first input is made of few rows and it looks at each alone.
    ///
    /// On the CPU only: a device is left idle by a small product, and this was never timed on one.
    pub(super) fn table_of(&self, op: &dyn Op, ids: &[u32]) -> Option<[u32; 2]> {
        if op.rows() != Rows::Alone || !matches!(self.cx(), Cx::Cpu(_)) {
            return None;
        }
        let r = self.record.borrow();
        let x = In { values: &r.values, ids };
        let copied = r.values[*ids.first()? as usize].copied?;
        let few = MANY * r.values[copied[0] as usize].shape().rows() <= x[0].shape().rows();
        // What does not fit is refused with the shape that the formula has, not with the table's.
        (few && op.infer(x).is_ok()).then_some(copied)
    }
}
