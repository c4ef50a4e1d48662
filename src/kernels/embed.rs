//! The kernels of [`Embedding`], [`Gather`].

use crate::{
    args,
    autograd::{Grad, In, Kernel, Value, zeroed},
    cuda::{Launch, Module},
    kernels::linear::total_cuda,
    ops::embed::{Embedding, Gather},
    tensor::{Cpu, Cuda, Cx, Real, Tensor},
    with_real, with_width,
};

/// The most rows whose gradients are added up one after another into a small table.
const BLOCK: usize = 1024;

static MODULE: Module = Module::new("kernels/embed.cu", &[include_str!("embed.cu")]);

/// The indices as `usize`; `infer` has checked their range.
fn ids(t: &Tensor) -> impl Iterator<Item = usize> {
    t.host::<i32>().iter().map(|&id| id as usize)
}

#[versions::versions]
fn copy_rows<T: Real>(n: usize, ids: &[i32], w: &[T], y: &mut [T]) {
    with_width!(n => for (&id, y) in ids.iter().zip(y.chunks_exact_mut(n)) {
        y.copy_from_slice(&w[id as usize * n..][..n]);
    });
}

/// d [V, N] += the rows of g.
#[versions::versions]
fn add_rows<T: Real>(n: usize, ids: &[i32], g: &[T], d: &mut [T]) {
    with_width!(n => for (&id, g) in ids.iter().zip(g.chunks_exact(n)) {
        d[id as usize * n..][..n].iter_mut().zip(g).for_each(|(d, &g)| *d += g);
    });
}

/// To each row id of d [V, N], N > 0, is added every row of g with this id.
///
/// A long sum of one number after another loses digits. So where each row of a small table is seen often, every
/// [`BLOCK`] rows have a sum of their own. (For a larger table, clearing and adding up these sums would take as long as
/// the rows.)
fn add_rows_cpu<T: Real>(cpu: &Cpu, n: usize, ids: &[i32], g: &[T], d: &mut [T]) {
    if ids.len() <= BLOCK || 4 * (d.len() / n) > BLOCK {
        return add_rows(n, ids, g, d);
    }
    let mut sums = cpu.temp::<T>(d.len());
    for (ids, g) in ids.chunks(BLOCK).zip(g.chunks(BLOCK * n)) {
        sums.fill(T::ZERO);
        add_rows(n, ids, g, &mut sums);
        d.iter_mut().zip(&*sums).for_each(|(d, &sum)| *d += sum);
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

impl Kernel for Embedding {
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
            Cx::Cpu(cpu) => with_real!(g.dtype(), T => if let Some(d) = dx[0].slot::<[T]>().map(zeroed) && n > 0 {
                add_rows_cpu(cpu, n, x[1].host(), g.host(), d);
            }),
            Cx::Cuda(cu) => {
                if let Some((d, acc)) = dx[0].slot::<Tensor>() {
                    add_rows_cuda(cu, &x[1], g, d, acc);
                }
            }
        }
    }
}

impl Kernel for Gather {
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
            Cx::Cpu(_) => with_real!(g.dtype(), T => if let Some(d) = dx[0].slot::<[T]>().map(zeroed) {
                g.host::<T>().iter().zip(ids(&x[1])).enumerate().for_each(|(i, (&g, id))| d[i * c + id] += g);
            }),
            Cx::Cuda(cu) => {
                if let Some((d, acc)) = dx[0].slot::<Tensor>() {
                    let rows = g.len();
                    let over = cu.elements(if acc { rows } else { rows * c });
                    cu.launch(&MODULE, "gather_backward", g.dtype(), over, args![&x[1], g, d, acc, rows, c]);
                }
            }
        }
    }
}
