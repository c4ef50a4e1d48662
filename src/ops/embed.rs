//! Looking up by integer: rows of a table, and one entry of each row.
//!
//! Backward adds every gradient where its value came from, in an order that sizes and indices alone decide, so that the
//! rounding of repeated indices is the same every time.

use super::{check_real, linear::total_cuda};
use crate::{
    args,
    autograd::{Gen, Grad, In, Op, Outs, Rows, Value, Var},
    cuda::{Cuda, Launch, Module},
    tensor::{Cpu, Cx, DType, MAX_RANK, Real, Shape, Temp, Tensor},
    with_real, with_width,
};

/// yᵢ = w[idᵢ, :] for w [V, D] and ids [..]; y [.., D].
pub struct Embedding;

/// yᵢ = x[i, idᵢ] for x [.., C] and ids [..]; y [..].
pub struct Gather;

/// The most rows whose gradients are added up one after another, where there are few kinds.
const BLOCK: usize = 1024;

static MODULE: Module = Module::new("ops/embed.cu", &[include_str!("embed.cu")]);

/// The indices as they are used; `infer` has seen that they are within their axis.
fn ids(t: &Tensor) -> impl Iterator<Item = usize> {
    t.host::<i32>().iter().map(|&id| id as usize)
}

/// That `t` holds integers in 0..n. What a device made itself nobody looks at while its work is recorded: there an index that
/// is outside gives NaN.
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

/// The largest index, where a negative one counts as larger than any other.
#[multiversion::multiversion(targets("x86_64+avx512f+avx512vl+avx512dq+avx512bw", "x86_64+avx2+fma"))]
fn largest(ids: &[i32]) -> u32 {
    ids.iter().fold(0, |top, &id| top.max(id.cast_unsigned()))
}

#[multiversion::multiversion(targets("x86_64+avx512f+avx512vl+avx512dq+avx512bw", "x86_64+avx2+fma"))]
pub(super) fn copy_rows<T: Real>(n: usize, ids: &[i32], w: &[T], y: &mut [T]) {
    with_width!(n => for (&id, y) in ids.iter().zip(y.chunks_exact_mut(n)) {
        y.copy_from_slice(&w[id as usize * n..][..n]);
    });
}

/// d [V, N] += the rows of g.
#[multiversion::multiversion(targets("x86_64+avx512f+avx512vl+avx512dq+avx512bw", "x86_64+avx2+fma"))]
fn add_rows<T: Real>(n: usize, ids: &[i32], g: &[T], d: &mut [T]) {
    with_width!(n => for (&id, g) in ids.iter().zip(g.chunks_exact(n)) {
        d[id as usize * n..][..n].iter_mut().zip(g).for_each(|(d, &g)| *d += g);
    });
}

/// Of so few kinds of rows, one is often among the last: a sum would wait for the one before.
const FEW_KINDS: usize = 4;

/// How many tables take the rows in turn then.
const TURNS: usize = 4;

/// d [TURNS, V, N] += the rows of g.
#[multiversion::multiversion(targets("x86_64+avx512f+avx512vl+avx512dq+avx512bw", "x86_64+avx2+fma"))]
fn add_rows_in_turn<T: Real>(n: usize, ids: &[i32], g: &[T], d: &mut [T]) {
    let table = d.len() / TURNS;
    let (fours, rest) = ids.as_chunks::<TURNS>();
    let (g, g_rest) = g.split_at(fours.len() * TURNS * n);
    with_width!(n => for (ids, g) in fours.iter().zip(g.chunks_exact(TURNS * n)) {
        for (i, (&id, g)) in ids.iter().zip(g.chunks_exact(n)).enumerate() {
            d[i * table + id as usize * n..][..n].iter_mut().zip(g).for_each(|(d, &g)| *d += g);
        }
    });
    add_rows(n, rest, g_rest, &mut d[..table]);
}

/// Gradients of many rows that are added to those of the few rows of a table. Where each of these is seen often, in a
/// table of a quarter of [`BLOCK`] rows or fewer, the sums of every [`BLOCK`] rows are added up, as a long sum of one
/// number after another loses digits. (Of a larger one, clearing and adding up the sums would take as long as the rows.)
pub(super) struct Sums<'a, T: Real> {
    /// [V, N], to be added to.
    d: &'a mut [T],
    /// Tables like it that take the rows in turn: [`TURNS`] or one; or none, and d takes them.
    tables: Option<Temp<'a, T>>,
    /// How many rows they have seen.
    rows: usize,
}

impl<'a, T: Real> Sums<'a, T> {
    /// Of so many rows [N] in all, to be added to d [V, N], N > 0.
    pub fn new(cpu: &'a Cpu, n: usize, rows: usize, d: &'a mut [T]) -> Sums<'a, T> {
        let kinds = d.len() / n;
        // Of few rows, it is not worth while to add up tables.
        let in_turn = kinds <= FEW_KINDS && rows >= TURNS * TURNS * kinds;
        let apart = 4 * kinds <= BLOCK && rows > BLOCK;
        let turns = if in_turn { TURNS } else { usize::from(apart) };
        let tables = (turns > 0).then(|| cpu.zeros(turns * d.len()));
        Sums { d, tables, rows: 0 }
    }

    /// Where the next rows, no more than [`BLOCK`], are to be added: one table [V, N], or [`TURNS`] that take them in turn.
    pub fn next(&mut self, rows: usize) -> &mut [T] {
        if self.rows + rows > BLOCK {
            self.total();
        }
        self.rows += rows;
        self.tables.as_deref_mut().unwrap_or(self.d)
    }

    fn total(&mut self) {
        let (size, Some(tables)) = (self.d.len(), self.tables.as_deref_mut()) else { return };
        for (i, d) in self.d.iter_mut().enumerate() {
            *d += tables[i..].iter_mut().step_by(size).map(|sum| std::mem::replace(sum, T::ZERO)).sum();
        }
        self.rows = 0;
    }
}

impl<T: Real> Drop for Sums<'_, T> {
    fn drop(&mut self) {
        self.total();
    }
}

/// To each row id of d [V, N], N > 0, is added every row of g with this id.
pub(super) fn add_rows_cpu<T: Real>(cpu: &Cpu, n: usize, ids: &[i32], g: &[T], d: &mut [T]) {
    let size = d.len();
    let mut sums = Sums::new(cpu, n, ids.len(), d);
    for (ids, g) in ids.chunks(BLOCK).zip(g.chunks(BLOCK * n)) {
        let tables = sums.next(ids.len());
        if tables.len() == size { add_rows(n, ids, g, tables) } else { add_rows_in_turn(n, ids, g, tables) }
    }
}

/// The gradient d [V, D] of a table from that of its rows; see embed.cu.
fn add_rows_cuda(cu: &Cuda, ids: &Tensor, g: &Tensor, d: &mut Tensor, acc: bool) {
    let ([v, n], count, dtype) = ([d.shape().at(0), d.shape().at(1)], ids.len(), g.dtype());
    if v * n == 0 {
        return;
    }
    let tile = v.next_power_of_two().min(32);
    let blocks = v.div_ceil(tile) * n.div_ceil(32);
    // Depends on sizes alone, so that every device adds in the same order.
    let chunks = count.div_ceil(512).min((512 / blocks).clamp(1, 256)).max(1);
    let chunk = count.div_ceil(chunks).next_multiple_of(256).max(256);
    let chunks = count.div_ceil(chunk).max(1);
    let mut sums = (chunks > 1).then(|| cu.temp(dtype.real(), chunks * v * n));
    let launch = Launch::grid([blocks, chunks, 1], [32, 8, 1]).shared(8 * tile * 32 * dtype.real().bytes());
    let into = sums.as_deref_mut();
    let args = args![ids, g, &mut *d, acc, into, count, chunk, v, n, tile as i32];
    cu.launch(&MODULE, "embedding_backward", dtype, launch, args);
    if let Some(sums) = sums {
        total_cuda(cu, &sums, chunks, d, acc);
    }
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
            Cx::Cuda(cu) => {
                let (y, v) = (&mut *y[0], x[0].shape().at(0));
                let args = args![&x[0], &x[1], &mut *y, y.len(), v, n];
                cu.launch(&MODULE, "embedding", x[0].dtype(), cu.elements(y.len()), args);
            }
        }
    }

    fn backward(&self, cx: &Cx, x: In, _: &[Value], dy: &[Option<Tensor>], dx: &mut [Grad]) {
        let Some(g) = &dy[0] else { return };
        let n = x[0].shape().last();
        match cx {
            Cx::Cpu(cpu) => with_real!(g.dtype(), T => dx[0].add::<T>(|d| if n > 0 {
                add_rows_cpu(cpu, n, x[1].host(), g.host(), d);
            })),
            Cx::Cuda(cu) => {
                if let Some((d, acc)) = dx[0].parts() {
                    add_rows_cuda(cu, &x[1], g, d, acc);
                }
            }
        }
    }

    fn rows(&self) -> Rows {
        Rows::Copied
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
            Cx::Cuda(cu) => {
                let rows = x[1].len();
                let args = args![&x[0], &x[1], &mut y[0], rows, c];
                cu.launch(&MODULE, "gather", x[0].dtype(), cu.elements(rows), args);
            }
        }
    }

    fn backward(&self, cx: &Cx, x: In, _: &[Value], dy: &[Option<Tensor>], dx: &mut [Grad]) {
        let Some(g) = &dy[0] else { return };
        let c = x[0].shape().last();
        match cx {
            Cx::Cpu(_) => with_real!(g.dtype(), T => dx[0].add::<T>(|d| {
                g.host::<T>().iter().zip(ids(&x[1])).enumerate().for_each(|(i, (&g, id))| d[i * c + id] += g);
            })),
            Cx::Cuda(cu) => {
                if let Some((d, acc)) = dx[0].parts() {
                    let rows = g.len();
                    let over = cu.elements(if acc { rows } else { rows * c });
                    cu.launch(&MODULE, "gather_backward", g.dtype(), over, args![&x[1], g, d, acc, rows, c]);
                }
            }
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
