//! Sixteen heads side by side, one in each lane of a vector: how small memories run step by step.
//!
//! A 4 × 4 state leaves a vector unit mostly idle. Heads and sequences are independent, so sixteen of them are
//! transposed into [.., 16] and the recurrence is written as for one head, with [`Lane`]s for numbers. When the
//! number of heads is no multiple of 16, the lanes left over hold zeros.

use super::heads::Heads;
use crate::tensor::Real;

/// Heads to a lane block.
pub const L: usize = 16;

/// The same number of sixteen heads.
pub type Lane<T> = [T; L];

/// y + a x
#[inline(always)]
pub fn mul_add<T: Real>(y: Lane<T>, a: Lane<T>, x: Lane<T>) -> Lane<T> {
    std::array::from_fn(|l| y[l] + a[l] * x[l])
}

/// y − a x
#[inline(always)]
pub fn mul_sub<T: Real>(y: Lane<T>, a: Lane<T>, x: Lane<T>) -> Lane<T> {
    std::array::from_fn(|l| y[l] - a[l] * x[l])
}

/// a x
#[inline(always)]
pub fn mul<T: Real>(a: Lane<T>, x: Lane<T>) -> Lane<T> {
    std::array::from_fn(|l| a[l] * x[l])
}

/// A slice, whose length is a multiple of 16, as lanes.
pub fn lanes<T>(x: &[T]) -> &[Lane<T>] {
    x.as_chunks().0
}

/// The same to write.
pub fn lanes_mut<T>(x: &mut [T]) -> &mut [Lane<T>] {
    x.as_chunks_mut().0
}

/// Sixteen heads from `first` on, of which there may be fewer.
#[derive(Clone, Copy)]
pub struct Block {
    /// The first head, counted through the batch.
    pub first: usize,
    /// How many heads there are.
    pub len: usize,
}

impl Block {
    /// The blocks of `heads` heads.
    pub fn all(heads: usize) -> impl Iterator<Item = Block> {
        (0..heads).step_by(L).map(move |first| Block { first, len: L.min(heads - first) })
    }

    /// Where in a tensor the rows of step `t` begin, for each lane.
    fn at(&self, x: Heads, t: usize) -> [usize; L] {
        std::array::from_fn(|l| x.at(self.first + l.min(self.len - 1), t))
    }

    /// Steps `t0..t0 + n` of a tensor, times `scale`: row t's element j goes to lane block `t * stride + j`.
    pub fn gather<T: Real>(
        self,
        heads: Heads,
        x: &[T],
        t0: usize,
        n: usize,
        scale: T,
        y: &mut [Lane<T>],
        stride: usize,
    ) {
        let mut scale = [scale; L];
        scale[self.len..].fill(T::ZERO);
        gather(x, self.at(heads, t0), heads.h * heads.k, heads.k, n, &scale, y, stride);
    }

    /// Copy lanes to steps `t0..t0 + n` of a tensor, or add them times `scale`.
    pub fn scatter<T: Real>(
        self,
        heads: Heads,
        x: &[Lane<T>],
        stride: usize,
        t0: usize,
        n: usize,
        add: Option<T>,
        y: &mut [T],
    ) {
        let (at, step) = (self.at(heads, t0), heads.h * heads.k);
        match add {
            Some(scale) => scatter(x, stride, n, heads.k, scale, at, self.len, step, y, |y, x| *y += x),
            None => scatter(x, stride, n, heads.k, T::ONE, at, self.len, step, y, |y, x| *y = x),
        }
    }

    /// States [.., K, V] of these heads, `step` apart, as lanes [V, K]: the columns one after another.
    pub fn load_state<T: Real>(self, s: &[T], step: usize, k: usize, v: usize, y: &mut [Lane<T>]) {
        y[..k * v].fill([T::ZERO; L]);
        for l in 0..self.len {
            let s = &s[(self.first + l) * step..][..k * v];
            for (i, row) in s.chunks_exact(v.max(1)).enumerate() {
                row.iter().enumerate().for_each(|(j, &s)| y[j * k + i][l] = s);
            }
        }
    }

    /// The way back, adding if `acc`.
    pub fn store_state<T: Real>(self, x: &[Lane<T>], k: usize, v: usize, s: &mut [T], step: usize, acc: bool) {
        for l in 0..self.len {
            let s = &mut s[(self.first + l) * step..][..k * v];
            for (i, row) in s.chunks_exact_mut(v.max(1)).enumerate() {
                for (j, s) in row.iter_mut().enumerate() {
                    *s = x[j * k + i][l] + if acc { *s } else { T::ZERO };
                }
            }
        }
    }
}

/// Four rows of four as four columns.
#[inline(always)]
fn transposed<T: Real>(a: [[T; 4]; 4]) -> [[T; 4]; 4] {
    std::array::from_fn(|i| std::array::from_fn(|j| a[j][i]))
}

/// Four elements.
#[inline(always)]
fn four<T: Real>(x: &[T]) -> [T; 4] {
    [x[0], x[1], x[2], x[3]]
}

#[multiversion::multiversion(targets("x86_64+avx512f+avx512vl+avx512dq+avx512bw", "x86_64+avx2"))]
fn gather<T: Real>(
    x: &[T],
    at: [usize; L],
    step: usize,
    k: usize,
    n: usize,
    scale: &Lane<T>,
    y: &mut [Lane<T>],
    stride: usize,
) {
    for t in 0..n {
        let y = &mut y[t * stride..t * stride + k];
        let (fours, rest) = y.as_chunks_mut::<4>();
        for (j, y) in fours.iter_mut().enumerate() {
            for l in (0..L).step_by(4) {
                let row = |l: usize| four(&x[at[l] + t * step + 4 * j..][..4]);
                let columns = transposed([row(l), row(l + 1), row(l + 2), row(l + 3)]);
                for (y, column) in y.iter_mut().zip(columns) {
                    (0..4).for_each(|m| y[l + m] = scale[l + m] * column[m]);
                }
            }
        }
        let j0 = k - rest.len();
        for (j, y) in rest.iter_mut().enumerate() {
            (0..L).for_each(|l| y[l] = scale[l] * x[at[l] + t * step + j0 + j]);
        }
    }
}

#[multiversion::multiversion(targets("x86_64+avx512f+avx512vl+avx512dq+avx512bw", "x86_64+avx2"))]
fn scatter<T: Real, F: Fn(&mut T, T)>(
    x: &[Lane<T>],
    stride: usize,
    n: usize,
    k: usize,
    scale: T,
    at: [usize; L],
    len: usize,
    step: usize,
    y: &mut [T],
    put: F,
) {
    for t in 0..n {
        let (fours, rest) = x[t * stride..t * stride + k].as_chunks::<4>();
        for (j, x) in fours.iter().enumerate() {
            for l in (0..len).step_by(4) {
                let part = |i: usize| four(&x[i][l..l + 4]);
                let rows = transposed([part(0), part(1), part(2), part(3)]);
                for (l, row) in (l..len).zip(rows) {
                    let y = &mut y[at[l] + t * step + 4 * j..][..4];
                    (0..4).for_each(|i| put(&mut y[i], scale * row[i]));
                }
            }
        }
        let j0 = k - rest.len();
        for (j, x) in rest.iter().enumerate() {
            (0..len).for_each(|l| put(&mut y[at[l] + t * step + j0 + j], scale * x[l]));
        }
    }
}
