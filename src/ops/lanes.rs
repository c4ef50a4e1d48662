//! Sixteen heads side by side, one in each lane of a vector: how small memories run step by step.
//!
//! A 4 × 4 state leaves a vector unit mostly idle. Heads and sequences are independent, so sixteen of them are
//! transposed into [.., 16] and the recurrence is written as for one head, with [`Lane`]s for numbers. When the
//! number of heads is no multiple of 16, the lanes left over hold zeros.

use super::heads::Heads;
use crate::tensor::Real;
use std::hint::black_box;

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

/// Steps whose rows are copied before they are turned: what has just been stored in parts cannot be read as a whole.
const STEPS: usize = 8;

/// Every four lanes of four as a matrix, transposed: lane 4 g + j of the m-th is lane 4 g + m of the j-th. They go
/// through memory, where they are vectors: else every number is moved by itself.
#[inline(always)]
pub fn turned<T: Real>(x: &[Lane<T>; 4]) -> [Lane<T>; 4] {
    let x = black_box(x);
    std::array::from_fn(|m| std::array::from_fn(|i| x[i % 4][i / 4 * 4 + m]))
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
    let fours = k / 4;
    for t0 in (0..n).step_by(STEPS) {
        let steps = t0..n.min(t0 + STEPS);
        for t in steps.clone() {
            for (j, y) in y[t * stride..][..4 * fours].as_chunks_mut::<4>().0.iter_mut().enumerate() {
                for l in 0..L {
                    y[l % 4][l / 4 * 4..][..4].copy_from_slice(&x[at[l] + t * step + 4 * j..][..4]);
                }
            }
        }
        for t in steps {
            let y = &mut y[t * stride..][..k];
            for y in y.as_chunks_mut::<4>().0 {
                let x = turned(y);
                for (y, x) in y.iter_mut().zip(x) {
                    *y = mul(*scale, x);
                }
            }
            for (j, y) in y.iter_mut().enumerate().skip(4 * fours) {
                (0..L).for_each(|l| y[l] = scale[l] * x[at[l] + t * step + j]);
            }
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
            let rows = turned(x);
            let rows = black_box(&rows);
            for (l, at) in at[..len].iter().enumerate() {
                let (x, y) = (&rows[l % 4][l / 4 * 4..][..4], &mut y[at + t * step + 4 * j..][..4]);
                y.iter_mut().zip(x).for_each(|(y, &x)| put(y, scale * x));
            }
        }
        let j0 = k - rest.len();
        for (j, x) in rest.iter().enumerate() {
            (0..len).for_each(|l| put(&mut y[at[l] + t * step + j0 + j], scale * x[l]));
        }
    }
}
