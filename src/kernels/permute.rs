//! The kernel of [`Permute`].

use crate::{
    autograd::{Grad, In, Kernel, Value},
    kernels::movement::{copy_runs, move_runs, with_element},
    ops::permute::Permute,
    tensor::{Cx, MAX_RANK, Shape, Tensor},
    with_real,
};

/// The order in which a permutation walks through x: (size, stride in x) of the axes of y, the inner two apart.
pub(super) struct Walk {
    pub outer: [(usize, usize); MAX_RANK],
    pub rows: (usize, usize),
    pub inner: (usize, usize),
}

impl Permute {
    fn walk(&self, x: Shape) -> Walk {
        let mut axes = [(1, 0); MAX_RANK + 2];
        let mut last = 0; // axes[..=last] are in use; axes[0] is a dummy of size 1
        for &axis in self.axes() {
            let (_, n, stride) = x.split(axis);
            if n == 1 {
                continue;
            }
            // Neighbours in y that are neighbours in x are one longer axis.
            if last > 0 && axes[last].1 == n * stride {
                axes[last] = (axes[last].0 * n, stride);
            } else {
                last += 1;
                axes[last] = (n, stride);
            }
        }
        axes.rotate_right(MAX_RANK + 1 - last);
        let [outer @ .., rows, inner] = axes;
        Walk { outer, rows, inner }
    }
}

impl Walk {
    /// Calls `f(offset in y, offset in x)` for every block of `rows` times `inner` elements.
    fn each(&self, mut f: impl FnMut(usize, usize)) {
        let blocks: usize = self.outer.iter().map(|a| a.0).product();
        let size = self.rows.0 * self.inner.0;
        if blocks * size == 0 {
            return;
        }
        let (mut index, mut at) = ([0; MAX_RANK], 0);
        for block in 0..blocks {
            f(block * size, at);
            for (i, &(n, stride)) in index.iter_mut().zip(&self.outer).rev() {
                *i += 1;
                at += stride;
                if *i < n {
                    break;
                }
                at -= stride * n;
                *i = 0;
            }
        }
    }

    /// Calls `f(offset in y, offset in x)` for every element of a block, in tiles: each cache line that x or y touches
    /// serves several elements before it is dropped.
    #[inline(always)]
    fn tiled(&self, mut f: impl FnMut(usize, usize)) {
        const TILE: usize = 16;
        let ((rows, rs), (n, s)) = (self.rows, self.inner);
        for i0 in (0..rows).step_by(TILE) {
            for j0 in (0..n).step_by(TILE) {
                for i in i0..rows.min(i0 + TILE) {
                    for j in j0..n.min(j0 + TILE) {
                        f(i * n + j, i * rs + j * s);
                    }
                }
            }
        }
    }
}

impl Kernel for Permute {
    fn forward(&self, cx: &Cx, x: In, y: &mut [Value]) {
        let walk = self.walk(x[0].shape());
        let (rows, n, s) = (walk.rows, walk.inner.0, walk.inner.1);
        match cx {
            Cx::Cpu(_) => with_element!(x[0].dtype(), T => {
                let (x, y) = (x[0].host::<T>(), y[0].host_mut::<T>());
                walk.each(|at_y, at_x| {
                    let (x, y) = (&x[at_x..], &mut y[at_y..]);
                    if s <= 1 {
                        copy_runs(rows.0, n, x, rows.1, y, n);
                    } else {
                        walk.tiled(|i, j| y[i] = x[j]);
                    }
                });
            }),
            Cx::Cuda(cu) => walk.cuda(cu, &x[0], &mut y[0], false, false),
        }
    }

    fn backward(&self, cx: &Cx, x: In, _: &[Value], dy: &[Option<Tensor>], dx: &mut [Grad]) {
        let Some(g) = &dy[0] else { return };
        let walk = self.walk(x[0].shape());
        let (rows, n, s) = (walk.rows, walk.inner.0, walk.inner.1);
        match cx {
            Cx::Cpu(_) => with_real!(g.dtype(), T => if let Some((d, acc)) = dx[0].slot::<[T]>() {
                let g = g.host::<T>();
                walk.each(|at_y, at_x| {
                    let (d, g) = (&mut d[at_x..], &g[at_y..]);
                    match (s <= 1, acc) {
                        (true, _) => move_runs(rows.0, n, g, n, d, rows.1, acc),
                        (false, true) => walk.tiled(|i, j| d[j] += g[i]),
                        (false, false) => walk.tiled(|i, j| d[j] = g[i]),
                    }
                });
            }),
            Cx::Cuda(cu) => {
                if let Some((d, acc)) = dx[0].slot::<Tensor>() {
                    walk.cuda(cu, g, d, acc, true);
                }
            }
        }
    }
}
