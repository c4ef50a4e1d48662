//! Looking up by integer: rows of a table, and one entry of each row.
//!
//! Backward adds every gradient where its value came from, in an order that sizes and indices alone decide, so that the
//! rounding of repeated indices is the same every time.

use super::terms::Terms;
use crate::{
    autograd::{Gen, In, Op, Outs, Var},
    ops::check_real,
    tensor::{DType, MAX_RANK, Shape, Tensor},
};

/// yᵢ = w[idᵢ, :] for w [V, D] and ids [..]; y [.., D].
pub struct Embedding;

/// yᵢ = x[i, idᵢ] for x [.., C] and ids [..]; y [..].
pub struct Gather;

/// Check that `t` holds integers in 0..n. Indices computed on the device are not checked while a graph is recorded; a
/// bad index gives NaN.
fn check_ids(t: &Tensor, n: usize) -> Result<(), String> {
    if t.dtype() != DType::I32 {
        return Err(format!("ids of shape {} are {}, expected i32", t.shape(), t.dtype()));
    }
    let Some(ids) = t.integers() else { return Ok(()) };
    if ids.is_empty() || (largest(&ids) as usize) < n.min(1 << 31) {
        return Ok(());
    }
    let wrong = ids.iter().find(|&&id| !usize::try_from(id).is_ok_and(|id| id < n));
    Err(format!("id {} is outside 0..{n}", wrong.unwrap_or(&0)))
}

/// The largest index, where negative indices count as larger than all others.
fn largest(ids: &[i32]) -> u32 {
    ids.iter().fold(0, |top, &id| top.max(id.cast_unsigned()))
}

impl Op for Embedding {
    fn name(&self) -> &'static str {
        "embedding"
    }

    fn infer(&self, x: In) -> Result<Outs, String> {
        let (w, ids) = (x[0].shape(), x[1].shape());
        check_real(&x[0])?;
        let [v, d] = w.array().map_err(|_| format!("table of shape {w} for ids of shape {ids}: expected [V, D]"))?;
        check_ids(&x[1], v).map_err(|why| format!("{why}, the rows of a table of shape {w} (ids of shape {ids})"))?;
        let rank = ids.rank();
        if rank == MAX_RANK {
            return Err(format!("ids of shape {ids} leave no axis for the rows of a table of shape {w}"));
        }
        let mut dims = [d; MAX_RANK];
        dims[..rank].copy_from_slice(ids.dims());
        Ok(Shape::new(&dims[..=rank]).into())
    }

    primitive!();

    fn sample(g: &mut Gen) -> (Self, Vec<Tensor>) {
        let w = g.shape(2, 9);
        let rank = g.below(3);
        let ids = g.shape(rank, 4);
        (Embedding, vec![g.normal(w), g.ints(ids, w.dims()[0])])
    }
}

/// Row i of y is row id_i of the table.
impl Terms for Embedding {
    fn terms(&self, x: In, y: Shape, mut term: impl FnMut(usize, usize, usize, f64)) {
        let (ids, n) = (x[1].host::<i32>(), y.last());
        (0..y.len()).for_each(|i| term(i, 0, ids[i / n] as usize * n + i % n, 1.0));
    }
}

impl Op for Gather {
    fn name(&self) -> &'static str {
        "gather"
    }

    fn infer(&self, x: In) -> Result<Outs, String> {
        let (shape, ids) = (x[0].shape(), x[1].shape());
        check_real(&x[0])?;
        match shape.dims().split_last() {
            Some((&c, outer)) if outer == ids.dims() => {
                check_ids(&x[1], c)
                    .map_err(|why| format!("{why}, the last axis of shape {shape} (ids of shape {ids})"))?;
                Ok(ids.into())
            }
            _ => Err(format!("ids of shape {ids} for entries of shape {shape}: expected one a row")),
        }
    }

    primitive!();

    fn sample(g: &mut Gen) -> (Self, Vec<Tensor>) {
        let rank = g.below(3) + 1;
        let x = g.shape(rank, 5);
        let outer = Shape::new(&x.dims()[..rank - 1]);
        (Gather, vec![g.normal(x), g.ints(outer, x.last())])
    }
}

/// y_i = x[i, id_i]
impl Terms for Gather {
    fn terms(&self, x: In, _: Shape, mut term: impl FnMut(usize, usize, usize, f64)) {
        let n = x[0].shape().last();
        x[1].host::<i32>().iter().enumerate().for_each(|(i, &id)| term(i, 0, i * n + id as usize, 1.0));
    }
}

impl<'t> Var<'t> {
    /// Rows of this table [V, D] for integer ids [..] in 0..V: [.., D].
    #[track_caller]
    pub fn embedding(self, ids: Var<'t>) -> Var<'t> {
        self.tape().apply(Embedding, [self, ids])
    }

    /// Of each row of the last axis of [.., C] the entry that ids [..], integers in 0..C, name: [..].
    #[track_caller]
    pub fn gather(self, ids: Var<'t>) -> Var<'t> {
        self.tape().apply(Gather, [self, ids])
    }
}
