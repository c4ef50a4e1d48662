//! The kernel of [`BlockDiagonal`].
//!
//! Blocks of 4 × 4, which the mLSTM has, are too small for matrix products: four of them share a vector, and each entry
//! of x is spread over its block. As matrix products they make an mLSTM's training step at widths 64 and 128 take 1.12
//! times as long. Other blocks are matrix products whose rows lie apart.

use crate::{
    autograd::{Grad, In, Kernel, Value, zeroed},
    cuda::View,
    kernels::{
        gemm::{Epilogue, Mat, Products, gemm_as},
        lane_sums::columns,
        lanes::{L, Lane, lanes, lanes_mut},
        linear::{bias_rows_cuda, column_sums_cuda},
    },
    ops::block_diagonal::BlockDiagonal,
    tensor::{Cpu, Cuda, Cx, Real, Tensor},
    with_real,
};
use std::hint::black_box;

/// The product of one x and its W, which is number n of several.
#[derive(Clone, Copy)]
struct Size {
    rows: usize,
    g: usize,
    p: usize,
    o: usize,
    i: usize,
    nth: usize,
    xs: usize,
}

impl Size {
    fn of(x: In, op: &BlockDiagonal, nth: usize) -> Size {
        let (s, w) = (x[2 * nth].shape(), x[2 * nth + 1].shape());
        let (g, i, rows) = (s.at(-2), s.at(-1), s.dims()[..s.rank() - 2].iter().product());
        Size { rows, g, p: op.parts, o: w.at(1) / op.parts, i, nth, xs: x.len() / 2 }
    }

    /// Numbers in a row of y.
    fn out(self) -> usize {
        self.xs * self.p * self.g * self.o
    }

    /// Where in a row of y part `q` of this x begins.
    fn part(self, q: usize) -> usize {
        (self.nth * self.p + q) * self.g * self.o
    }

    /// Whether four blocks make a vector.
    fn tiny(&self) -> bool {
        self.i == 4 && self.o == 4 && self.xs * self.p == 1 && self.g.is_multiple_of(4)
    }

    /// x, W and y of one block and one part, for so many rows.
    fn mats(&self, rows: usize) -> [Mat; 3] {
        let Size { g, o, i, .. } = *self;
        [Mat::new(rows, i, g * i), Mat::new(o, i, i), Mat::new(rows, o, self.out())]
    }

    /// Rows that stay in the second-level cache while all blocks go over them: the first, and how many.
    fn chunks(self) -> impl Iterator<Item = (usize, usize)> {
        const CACHED: usize = 1 << 16;
        let chunk = (CACHED / (self.g * self.i + self.out()).max(1)).max(256);
        (0..self.rows).step_by(chunk).map(move |first| (first, chunk.min(self.rows - first)))
    }

    /// Every part of every block: which part, and where in a row of x, in W and in a row of y it begins.
    fn blocks(self) -> impl Iterator<Item = (usize, [usize; 3])> {
        let Size { g, p, o, i, .. } = self;
        (0..g).flat_map(move |j| (0..p).map(move |q| (q, [j * i, (j * p + q) * o * i, self.part(q) + j * o])))
    }
}

/// Four vectors of each four blocks of W: the m-th has column m of each block, or row m if `turn`.
fn pack<T: Real>(w: &[T], turn: bool, y: &mut [Lane<T>]) {
    for (y, w) in y.chunks_exact_mut(4).zip(w.chunks_exact(4 * L)) {
        for (m, y) in y.iter_mut().enumerate() {
            *y = std::array::from_fn(|l| w[l / 4 * L + if turn { m * 4 + l % 4 } else { l % 4 * 4 + m }]);
        }
    }
}

/// Entry m of each group of four, in all four lanes of the group.
#[inline(always)]
fn spread<T: Real>(x: &Lane<T>, m: usize) -> Lane<T> {
    std::array::from_fn(|l| x[l / 4 * 4 + m])
}

/// y = W x, or y += W x, for vectors of W by [`pack`].
#[versions::versions]
fn product<T: Real>(x: &[Lane<T>], w: &[[Lane<T>; 4]], y: &mut [Lane<T>], acc: bool) {
    for (x, y) in x.chunks_exact(w.len()).zip(y.chunks_exact_mut(w.len())) {
        for ((x, w), y) in x.iter().zip(w).zip(y) {
            let x = black_box(x); // one vector at a time
            let x: [Lane<T>; 4] = std::array::from_fn(|m| spread(x, m));
            for l in 0..L {
                let sum = if acc { y[l] } else { T::ZERO };
                y[l] = (0..4).fold(sum, |sum, m| w[m][l].fma(x[m][l], sum));
            }
        }
    }
}

/// dW += g xᵀ over the rows, for the blocks at vectors `j..j + V` of `n`. As many blocks go at once as have their sums
/// in registers, since each pass fetches all the rows.
#[versions::versions]
fn weights<T: Real, const V: usize>(g: &[Lane<T>], x: &[Lane<T>], j: usize, n: usize, dw: &mut [T]) {
    let mut sums = [[[T::ZERO; L]; 4]; V];
    for (g, x) in g.chunks_exact(n).zip(x.chunks_exact(n)) {
        let (Some(g), Some(x)) = (g[j..].first_chunk::<V>(), x[j..].first_chunk::<V>()) else { return };
        for v in 0..V {
            let x = black_box(&x[v]);
            for (m, sum) in sums[v].iter_mut().enumerate() {
                let x = spread(x, m);
                (0..L).for_each(|l| sum[l] = g[v][l].fma(x[l], sum[l]));
            }
        }
    }
    for (sums, dw) in sums.iter().zip(dw.chunks_exact_mut(4 * L)) {
        for (l, dw) in dw.chunks_exact_mut(4).enumerate() {
            (0..4).for_each(|m| dw[m] += sums[m][l]);
        }
    }
}

fn forward<T: Real>(cpu: &Cpu, z: Size, x: &[T], w: &[T], b: Option<&[T]>, y: &mut [T]) {
    if y.is_empty() {
        return;
    }
    if z.tiny() {
        let mut packed = cpu.temp::<T>(w.len());
        pack(w, false, lanes_mut(&mut packed));
        b.into_iter().for_each(|b| y.chunks_exact_mut(b.len()).for_each(|y| y.copy_from_slice(b)));
        return product(lanes(x), lanes(&packed).as_chunks().0, lanes_mut(y), b.is_some());
    }
    for (first, n) in z.chunks() {
        let ([mx, mw, my], x, y) = (z.mats(n), &x[first * z.g * z.i..], &mut y[first * z.out()..]);
        for (_, [at_x, at_w, at_y]) in z.blocks() {
            let epilogue = b.map_or(Epilogue::Set, |b| Epilogue::Bias(&b[at_y..at_y + z.o]));
            let (x, w, y) = ((&x[x.len().min(at_x)..], mx), (&w[at_w..], mw.t()), (&mut y[at_y..], my));
            gemm_as(Products::F32, epilogue, T::ONE, x, w, y);
        }
    }
}

fn backward<T: Real>(cpu: &Cpu, z: Size, x: &[T], w: &[T], g: &[T], dx: &mut [Grad]) {
    let [gx, gw] = dx else { return };
    if z.tiny() && z.g > 0 {
        let mut packed = cpu.temp::<T>(w.len());
        pack(w, true, lanes_mut(&mut packed));
        if let Some((d, acc)) = gx.slot() {
            product(lanes(g), lanes(&packed).as_chunks().0, lanes_mut(d), acc);
        }
        if let Some(d) = gw.slot::<[T]>().map(zeroed) {
            const V: usize = 4;
            let (g, x, n) = (lanes(g), lanes(x), z.g / 4);
            for (i, d) in d.chunks_mut(V * 4 * L).enumerate() {
                if d.len() == V * 4 * L {
                    weights::<T, V>(g, x, V * i, n, d);
                } else {
                    d.chunks_mut(4 * L).enumerate().for_each(|(j, d)| weights::<T, 1>(g, x, V * i + j, n, d));
                }
            }
        }
        return;
    }
    let (width_x, width_y) = (z.g * z.i, z.out());
    let mut dw = gw.slot::<[T]>().map(zeroed);
    let mut dx = gx.slot::<[T]>();
    if let Some((dx, false)) = &mut dx
        && width_y == 0
    {
        dx.fill(T::ZERO);
    }
    for (start, n) in z.chunks().filter(|_| width_x * width_y > 0) {
        let [mx, mw, my] = z.mats(n);
        let (x, g) = (&x[start * width_x..], &g[start * width_y..]);
        for (q, [at_x, at_w, at_y]) in z.blocks() {
            let (x, g) = ((&x[at_x..], mx), (&g[at_y..], my));
            if let Some((dx, acc)) = &mut dx {
                // The first part of a block writes, the others add.
                let epilogue = Epilogue::of(*acc || q > 0);
                let dx = (&mut dx[start * width_x + at_x..], mx);
                gemm_as(Products::F32, epilogue, T::ONE, g, (&w[at_w..], mw), dx);
            }
            if let Some(dw) = &mut dw {
                gemm_as(Products::F32, Epilogue::Add, T::ONE, (g.0, my.t()), x, (&mut dw[at_w..], mw));
            }
        }
    }
}

fn backward_cuda(cu: &Cuda, z: Size, [x, w, g]: [&Tensor; 3], dx: &mut [Grad]) {
    let ([mx, mw, my], [gx, gw]) = (z.mats(z.rows), dx) else { return };
    for q in 0..z.p {
        let (at_w, every_w) = (q * z.o * z.i, z.p * z.o * z.i);
        let g = View::new(g, my).at(z.part(q)).every(z.o);
        if let Some((d, acc)) = gx.slot::<Tensor>() {
            let w = View::new(w, mw).at(at_w).every(every_w);
            cu.gemm(1.0, g, w, View::out(d, mx).every(z.i), acc || q > 0, z.g);
        }
        if let Some((d, acc)) = gw.slot::<Tensor>() {
            let dw = View::out(d, mw).at(at_w).every(every_w);
            cu.gemm(1.0, g.t(), View::new(x, mx).every(z.i), dw, acc, z.g);
        }
    }
}

impl Kernel for BlockDiagonal {
    fn forward(&self, cx: &Cx, x: In, y: &mut [Value]) {
        let (bias, y) = (self.bias.then(|| &x[x.len() - 1]), &mut *y[0]);
        if let (Cx::Cuda(cu), Some(b)) = (cx, bias) {
            bias_rows_cuda(cu, b, y);
        }
        for nth in 0..x.len() / 2 {
            let (z, v, w) = (Size::of(x, self, nth), &x[2 * nth], &x[2 * nth + 1]);
            match cx {
                Cx::Cpu(cpu) => with_real!(v.dtype(), T => {
                    forward::<T>(cpu, z, v.host(), w.host(), bias.map(|b| b.host()), y.host_mut());
                }),
                Cx::Cuda(cu) => {
                    let [mx, mw, my] = z.mats(z.rows);
                    for q in 0..z.p {
                        let w = View::new(w, mw).t().at(q * z.o * z.i).every(z.p * z.o * z.i);
                        let y = View::out(y, my).at(z.part(q)).every(z.o);
                        cu.gemm(1.0, View::new(v, mx).every(z.i), w, y, self.bias, z.g);
                    }
                }
            }
        }
    }

    fn backward(&self, cx: &Cx, x: In, _: &[Value], dy: &[Option<Tensor>], dx: &mut [Grad]) {
        let Some(g) = &dy[0] else { return };
        let (dx, db) = dx.split_at_mut(x.len() / 2 * 2);
        for (nth, dx) in dx.chunks_exact_mut(2).enumerate() {
            let (z, v, w) = (Size::of(x, self, nth), &x[2 * nth], &x[2 * nth + 1]);
            match cx {
                Cx::Cpu(cpu) => with_real!(g.dtype(), T => {
                    backward::<T>(cpu, z, v.host(), w.host(), g.host(), dx);
                }),
                Cx::Cuda(cu) => backward_cuda(cu, z, [v, w, g], dx),
            }
        }
        for db in db {
            match cx {
                Cx::Cpu(_) => with_real!(g.dtype(), T => if let Some(d) = db.slot::<[T]>().map(zeroed) {
                    columns(g.host(), d);
                }),
                Cx::Cuda(cu) => {
                    if let Some((d, acc)) = db.slot::<Tensor>() {
                        column_sums_cuda(cu, g, Size::of(x, self, 0).rows, d, acc);
                    }
                }
            }
        }
    }
}
