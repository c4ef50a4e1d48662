//! Rows that are copies of the rows of a small table, as those of an embedding are, are computed once.
//!
//! f(table[id]) = f(table)[id] for a function f of single rows: the norm and the affine maps at the start of a model of
//! two tokens are functions of two rows, however many tokens there are. So are the gradients: those of equal rows are
//! added up, as an embedding's are, before they go back through f.
//!
//! What changes is rounding: sums over rows in the gradients are taken in another order (with products in bf16, what is
//! rounded is the sum of equal rows' gradients), and so may those of products be that have another size.

use super::{In, Op, Rows, Tape};
use crate::tensor::{Cx, Tensor};

/// Whether there are so many rows of a kind that computing one takes less time than the copies: four, at least.
fn few(kinds: usize, rows: usize) -> bool {
    rows >= 4 * kinds
}

impl Tape {
    /// Whether it is worth while to compute `rows` rows, of so many kinds, once for each kind.
    ///
    /// On the CPU only: a device is left idle by a small product, and this was never timed on one.
    pub(crate) fn few_kinds(&self, kinds: usize, rows: usize) -> bool {
        matches!(self.cx(), Cx::Cpu(_)) && few(kinds, rows)
    }

    /// The table and the indices to run an op on, if its first input is made of few rows and it looks at each alone.
    pub(super) fn table_of(&self, op: &dyn Op, ids: &[u32]) -> Option<[u32; 2]> {
        if op.rows() != Rows::Alone {
            return None;
        }
        let r = self.record.borrow();
        let x = In { values: &r.values, ids };
        let copied = r.values[*ids.first()? as usize].copied?;
        // What does not fit is refused with the shape that the formula has, not with the table's.
        let fits = || op.infer(x).is_ok_and(|outs| outs.visible() == 1);
        (x.kinds(0).is_some() && fits()).then_some(copied)
    }
}

impl<'a> In<'a> {
    /// If the rows of input `i` are copies of those of a table, of few kinds: the table, and for each row of the input which it
    /// is. For an op that looks at single rows first and at all together then, so that it is not `Rows::Alone`; on the CPU
    /// only.
    pub fn kinds(self, i: usize) -> Option<(&'a Tensor, &'a [i32])> {
        let [table, at] = self.values[self.ids[i] as usize].copied?.map(|id| &self.values[id as usize].tensor);
        let (kinds, rows) = (table.shape().rows(), self[i].shape().rows());
        (self[i].gpu().is_none() && few(kinds, rows) && all_occur(kinds, at.host())).then(|| (table, at.host()))
    }
}

/// Whether each of 0..n is among the ids. Of a row that nobody uses f might be infinite, and 0 · ∞ is not the gradient of
/// anything.
fn all_occur(n: usize, ids: &[i32]) -> bool {
    let (mut seen, mut left) = (vec![false; n], n);
    ids.iter().any(|&id| {
        left -= usize::from(!std::mem::replace(&mut seen[id as usize], true));
        left == 0
    })
}
