//! Rows that are copies of the rows of a small table, as those of an embedding are, are computed once.
//!
//! f(table[id]) = f(table)[id] for a function f of single rows: the norm and the affine maps at the start of a model of
//! two tokens are functions of two rows, however many tokens there are. So are the gradients: those of equal rows are
//! added up, as an embedding's are, before they go back through f. The copies themselves are made when somebody looks at
//! them: what is computed once more from the table alone needs none.
//!
//! What changes is rounding: sums over rows in the gradients are taken in another order (with products in bf16, what is
//! rounded is the sum of equal rows' gradients), and so may those of products be that have another size.

use super::{In, Op, Record, Rows, Tape, Value};
use crate::{
    ops::embed::Embedding,
    tensor::{Cx, MAX_RANK, Shape},
};
use std::time::Instant;

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

    /// The table and the indices to run an op on, if its first input is made of few rows and it takes them so.
    pub(super) fn table_of(&self, op: &dyn Op, ids: &[u32]) -> Option<[u32; 2]> {
        let alone = match op.rows() {
            Rows::Alone => true,
            Rows::Kinds => false,
            Rows::Together | Rows::Copied => return None,
        };
        let r = self.record.borrow();
        let x = &r.values[*ids.first()? as usize];
        let copied = x.copied?;
        let [table, at] = copied.map(|id| &r.values[id as usize]);
        let (kinds, rows) = (table.shape().rows(), x.shape().rows());
        // What does not fit is refused with the shape that the formula has, not with the table's.
        let fits = || op.infer(In { values: &r.values, ids }).is_ok_and(|outs| !alone || outs.visible() == 1);
        (self.few_kinds(kinds, rows) && all_occur(kinds, at.host()) && fits()).then_some(copied)
    }
}

impl Record {
    /// Make the copies that are owed among these values.
    pub(super) fn settle(&mut self, cx: &Cx, ids: &[u32]) {
        for &id in ids {
            let value = &self.values[id as usize];
            let (true, Some(copied)) = (value.owed, value.copied) else { continue };
            let start = self.profile.is_some().then(Instant::now);
            let (values, y) = self.values.split_at_mut(id as usize);
            Embedding.forward(cx, In { values, ids: &copied }, &mut y[..1]);
            y[0].owed = false;
            let bytes = y[0].len() * y[0].dtype().bytes();
            if let (Some(profile), Some(start)) = (&mut self.profile, start) {
                let took = start.elapsed();
                profile.count(Embedding.name(), took, bytes);
                if let Ok(node) = self.nodes.binary_search_by_key(&id, |node| node.y0)
                    && let Some(times) = self.times.get_mut(node)
                {
                    times[0] += took;
                }
            }
        }
    }
}

impl<'a> In<'a> {
    /// The `n` inputs of an op that is [`Rows::Kinds`], and the shape that the formula has for the first. If a table stands
    /// there instead, also the index of each row in it.
    pub fn steps(self, n: usize) -> (In<'a>, Shape, Option<&'a [i32]>) {
        let x = In { values: self.values, ids: &self.ids[..n] };
        let first = x.values[x.ids[0] as usize].shape();
        let Some(&at) = self.ids.get(n) else { return (x, first, None) };
        let at: &'a Value = &self.values[at as usize];
        let (mut dims, rank) = ([first.last(); MAX_RANK], at.shape().rank());
        dims[..rank].copy_from_slice(at.shape().dims());
        (x, Shape::new(&dims[..=rank]), Some(at.host()))
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
