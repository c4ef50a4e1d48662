//! Looking up by integer: rows of a table, and one entry of each row.
//!
//! Backward adds every gradient where its value came from, in the order of the indices, so that the rounding of
//! repeated indices is the same every time.

use super::check_real;
use crate::{
    autograd::{Gen, Grad, In, Op, Outs, Value, Var},
    tensor::{Cx, DType, MAX_RANK, Real, Shape, Tensor},
    with_real, with_width,
};

/// yᵢ = w[idᵢ, :] for w [V, D] and ids [..]; y [.., D].
pub struct Embedding;

/// yᵢ = x[i, idᵢ] for x [.., C] and ids [..]; y [..].
pub struct Gather;

/// The indices as they are used; `infer` has seen that they are within their axis.
fn ids(t: &Tensor) -> impl Iterator<Item = usize> {
    t.host::<i32>().iter().map(|&id| id as usize)
}

/// That `t` holds integers in 0..n.
fn check_ids(t: &Tensor, n: usize) -> Result<(), String> {
    if t.dtype() != DType::I32 {
        return Err(format!("ids of shape {} are {}, expected i32", t.shape(), t.dtype()));
    }
    match t.host::<i32>().iter().find(|&&id| !usize::try_from(id).is_ok_and(|id| id < n)) {
        Some(id) => Err(format!("id {id} is outside 0..{n}")),
        None => Ok(()),
    }
}

#[multiversion::multiversion(targets("x86_64+avx512f+avx512vl+avx512dq+avx512bw", "x86_64+avx2"))]
fn copy_rows<T: Real>(n: usize, ids: &[i32], w: &[T], y: &mut [T]) {
    with_width!(n => for (&id, y) in ids.iter().zip(y.chunks_exact_mut(n)) {
        y.copy_from_slice(&w[id as usize * n..][..n]);
    });
}

#[multiversion::multiversion(targets("x86_64+avx512f+avx512vl+avx512dq+avx512bw", "x86_64+avx2"))]
fn add_rows<T: Real>(n: usize, ids: &[i32], g: &[T], d: &mut [T]) {
    with_width!(n => for (&id, g) in ids.iter().zip(g.chunks_exact(n)) {
        d[id as usize * n..][..n].iter_mut().zip(g).for_each(|(d, &g)| *d += g);
    });
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

    fn forward(&self, cx: &Cx, x: In, y: &mut [Value]) {
        let n = x[0].shape().last();
        match cx {
            Cx::Cpu(_) => with_real!(x[0].dtype(), T => if n > 0 {
                copy_rows(n, x[1].host(), x[0].host::<T>(), y[0].host_mut());
            }),
            Cx::Cuda(cu) => cu.missing(self.name()),
        }
    }

    fn backward(&self, cx: &Cx, x: In, _: &[Value], dy: &[Option<Tensor>], dx: &mut [Grad]) {
        let Some(g) = &dy[0] else { return };
        let n = x[0].shape().last();
        match cx {
            Cx::Cpu(_) => with_real!(g.dtype(), T => dx[0].add::<T>(|d| if n > 0 {
                add_rows(n, x[1].host(), g.host(), d);
            })),
            Cx::Cuda(cu) => cu.missing(self.name()),
        }
    }

    fn sample(g: &mut Gen) -> (Self, Vec<Tensor>) {
        let w = g.shape(2, 9);
        let rank = g.below(3);
        let ids = g.shape(rank, 4);
        (Embedding, vec![g.normal(w), g.ints(ids, w.dims()[0])])
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

    fn forward(&self, cx: &Cx, x: In, y: &mut [Value]) {
        let c = x[0].shape().last();
        match cx {
            Cx::Cpu(_) => with_real!(x[0].dtype(), T => {
                let (x, ids) = (x[0].host::<T>(), ids(&x[1]));
                y[0].host_mut::<T>().iter_mut().zip(ids).enumerate().for_each(|(i, (y, id))| *y = x[i * c + id]);
            }),
            Cx::Cuda(cu) => cu.missing(self.name()),
        }
    }

    fn backward(&self, cx: &Cx, x: In, _: &[Value], dy: &[Option<Tensor>], dx: &mut [Grad]) {
        let Some(g) = &dy[0] else { return };
        let c = x[0].shape().last();
        match cx {
            Cx::Cpu(_) => with_real!(g.dtype(), T => dx[0].add::<T>(|d| {
                g.host::<T>().iter().zip(ids(&x[1])).enumerate().for_each(|(i, (&g, id))| d[i * c + id] += g);
            })),
            Cx::Cuda(cu) => cu.missing(self.name()),
        }
    }

    fn sample(g: &mut Gen) -> (Self, Vec<Tensor>) {
        let rank = g.below(3) + 1;
        let x = g.shape(rank, 5);
        let outer = Shape::new(&x.dims()[..rank - 1]);
        (Gather, vec![g.normal(x), g.ints(outer, x.last())])
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
