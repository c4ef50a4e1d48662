//! y_g = W_g x_g: products with a block-diagonal matrix of small blocks.
//!
//! Blocks of 4 × 4, which the mLSTM has, are too small for matrix products: four of them stand in a vector, and entry i
//! of each x is spread over its block. Others are matrix products whose rows lie apart, which large blocks are better
//! copied together for.

use super::check_real;
use crate::{
    autograd::{Gen, Grad, In, Op, Outs, Value, Var},
    cuda::View,
    ops::{
        gemm::{Mat, gemm},
        lanes::{L, Lane, lanes, lanes_mut},
    },
    tensor::{Cpu, Cx, Real, Tensor},
    with_real,
};
use std::hint::black_box;

/// x [.., G, I], W [G, O, I] → y [.., G, O].
pub struct BlockDiagonal;

#[derive(Clone, Copy)]
struct Size {
    rows: usize,
    g: usize,
    o: usize,
    i: usize,
}

impl Size {
    fn of(x: In) -> Size {
        let (s, w) = (x[0].shape(), x[1].shape());
        let (g, i) = (s.at(-2), s.at(-1));
        Size { rows: s.dims()[..s.rank() - 2].iter().product(), g, o: w.at(1), i }
    }

    /// Whether four blocks make a vector.
    fn tiny(&self) -> bool {
        self.i == 4 && self.o == 4 && self.g.is_multiple_of(4)
    }

    /// x, W and y of one block.
    fn mats(&self) -> [Mat; 3] {
        let Size { rows, g, o, i } = *self;
        [Mat::new(rows, i, g * i), Mat::new(o, i, i), Mat::new(rows, o, g * o)]
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

/// Entry m of each four of x in all lanes of the four.
#[inline(always)]
fn spread<T: Real>(x: &Lane<T>, m: usize) -> Lane<T> {
    std::array::from_fn(|l| x[l / 4 * 4 + m])
}

/// y = W x, or y += W x, for vectors of W by [`pack`].
#[multiversion::multiversion(targets("x86_64+avx512f+avx512vl+avx512dq+avx512bw", "x86_64+avx2+fma"))]
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

/// dW += g xᵀ over the rows, of the four blocks at vector `j` of `n`.
#[multiversion::multiversion(targets("x86_64+avx512f+avx512vl+avx512dq+avx512bw", "x86_64+avx2+fma"))]
fn weights<T: Real>(g: &[Lane<T>], x: &[Lane<T>], j: usize, n: usize, dw: &mut [T]) {
    let mut sums = [[T::ZERO; L]; 4];
    for (g, x) in g[j..].iter().step_by(n).zip(x[j..].iter().step_by(n)) {
        let x = black_box(x);
        for (m, sum) in sums.iter_mut().enumerate() {
            let x = spread(x, m);
            (0..L).for_each(|l| sum[l] = g[l].fma(x[l], sum[l]));
        }
    }
    for (l, dw) in dw.chunks_exact_mut(4).enumerate() {
        (0..4).for_each(|m| dw[m] += sums[m][l]);
    }
}

fn forward<T: Real>(cpu: &Cpu, z: Size, x: &[T], w: &[T], y: &mut [T]) {
    if z.tiny() && z.g > 0 {
        let mut packed = cpu.temp::<T>(w.len());
        pack(w, false, lanes_mut(&mut packed));
        return product(lanes(x), lanes(&packed).as_chunks().0, lanes_mut(y), false);
    }
    let [mx, mw, my] = z.mats();
    for j in 0..if y.is_empty() { 0 } else { z.g } {
        let (x, w) = ((&x[x.len().min(j * z.i)..], mx), (&w[j * z.o * z.i..], mw.t()));
        gemm(T::ONE, x, w, (&mut y[j * z.o..], my), false);
    }
}

fn backward<T: Real>(cpu: &Cpu, z: Size, x: &[T], w: &[T], g: &[T], dx: &mut [Grad]) {
    let [gx, gw] = dx else { return };
    if z.tiny() && z.g > 0 {
        let mut packed = cpu.temp::<T>(w.len());
        pack(w, true, lanes_mut(&mut packed));
        gx.write(|d, acc| product(lanes(g), lanes(&packed).as_chunks().0, lanes_mut(d), acc));
        return gw.add(|d: &mut [T]| {
            for (j, d) in d.chunks_exact_mut(4 * L).enumerate().take(if z.rows == 0 { 0 } else { z.g / 4 }) {
                weights(lanes(g), lanes(x), j, z.g / 4, d);
            }
        });
    }
    let [mx, mw, my] = z.mats();
    gx.write(|d: &mut [T], acc| {
        for j in 0..if d.is_empty() { 0 } else { z.g } {
            let (g, w) = ((&g[g.len().min(j * z.o)..], my), (&w[j * z.o * z.i..], mw));
            gemm(T::ONE, g, w, (&mut d[j * z.i..], mx), acc);
        }
    });
    gw.write(|d: &mut [T], acc| {
        for j in 0..if d.is_empty() { 0 } else { z.g } {
            let (x, g) = ((&x[x.len().min(j * z.i)..], mx), (&g[g.len().min(j * z.o)..], my.t()));
            gemm(T::ONE, g, x, (&mut d[j * z.o * z.i..], mw), acc);
        }
    });
}

impl Op for BlockDiagonal {
    fn name(&self) -> &'static str {
        "block_diagonal"
    }

    fn infer(&self, x: In) -> Result<Outs, String> {
        check_real(&x[0])?;
        let (s, w) = (x[0].shape(), x[1].shape());
        let fits = s.rank() >= 2 && w.rank() == 3 && w.at(2) == s.last() && x[1].dtype() == x[0].dtype();
        if !fits || w.at(0) != s.at(-2) {
            let (a, b) = (x[0].dtype(), x[1].dtype());
            return Err(format!("x {s} of {a} and w {w} of {b} do not fit [.., G, I] and [G, O, I]"));
        }
        Ok(s.with(s.rank() - 1, w.at(1)).into())
    }

    fn forward(&self, cx: &Cx, x: In, y: &mut [Value]) {
        let z = Size::of(x);
        match cx {
            Cx::Cpu(cpu) => with_real!(x[0].dtype(), T => {
                forward::<T>(cpu, z, x[0].host(), x[1].host(), y[0].host_mut());
            }),
            Cx::Cuda(cu) => {
                let [mx, mw, my] = z.mats();
                let (x, w) = (View::new(&x[0], mx).every(z.i), View::new(&x[1], mw).t().every(z.o * z.i));
                cu.gemm(1.0, x, w, View::out(&mut y[0], my).every(z.o), false, z.g);
            }
        }
    }

    fn backward(&self, cx: &Cx, x: In, _: &[Value], dy: &[Option<Tensor>], dx: &mut [Grad]) {
        let Some(g) = &dy[0] else { return };
        let z = Size::of(x);
        match cx {
            Cx::Cpu(cpu) => with_real!(g.dtype(), T => {
                backward::<T>(cpu, z, x[0].host(), x[1].host(), g.host(), dx);
            }),
            Cx::Cuda(cu) => {
                let ([mx, mw, my], [gx, gw]) = (z.mats(), dx) else { return };
                let g = View::new(g, my).every(z.o);
                if let Some((d, acc)) = gx.parts() {
                    cu.gemm(1.0, g, View::new(&x[1], mw).every(z.o * z.i), View::out(d, mx).every(z.i), acc, z.g);
                }
                if let Some((d, acc)) = gw.parts() {
                    cu.gemm(1.0, g.t(), View::new(&x[0], mx).every(z.i), View::out(d, mw).every(z.o * z.i), acc, z.g);
                }
            }
        }
    }

    fn sample(g: &mut Gen) -> (Self, Vec<Tensor>) {
        let outer = g.shape(2, 4);
        let (groups, o, i) = if g.coin() { (4 * g.size(2), 4, 4) } else { (g.size(4), g.size(5), g.size(5)) };
        let x = g.normal([outer.at(0), outer.at(1), groups, i]);
        (BlockDiagonal, vec![x, g.normal([groups, o, i])])
    }
}

impl<'t> Var<'t> {
    /// y_g = W_g x_g: x [.., G, I], w [G, O, I] to [.., G, O].
    #[track_caller]
    pub fn block_diagonal(self, w: Var<'t>) -> Var<'t> {
        self.tape().apply(BlockDiagonal, [self, w])
    }
}
