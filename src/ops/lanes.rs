//! Sixteen heads side by side, one in each lane of a vector: how small memories run step by step.
//!
//! A 4 × 4 state leaves a vector unit mostly idle. Heads and sequences are independent, so sixteen of them are
//! transposed into [.., 16] and the recurrence is written as for one head, with [`Lane`]s for numbers. When the
//! number of heads is no multiple of 16, the lanes left over hold zeros.

#[cfg(target_arch = "x86_64")]
pub(super) mod avx512;

use super::heads::Heads;
use crate::tensor::Real;

/// Heads to a lane block.
pub const L: usize = 16;

/// The same number of sixteen heads.
pub type Lane<T> = [T; L];

/// y + a x
#[inline(always)]
pub fn mul_add<T: Real>(mut y: Lane<T>, a: Lane<T>, x: Lane<T>) -> Lane<T> {
    for l in 0..L {
        y[l] = a[l].fma(x[l], y[l]);
    }
    y
}

/// y − a x
#[inline(always)]
pub fn mul_sub<T: Real>(mut y: Lane<T>, a: Lane<T>, x: Lane<T>) -> Lane<T> {
    for l in 0..L {
        y[l] = (-a[l]).fma(x[l], y[l]);
    }
    y
}

/// a x
#[inline(always)]
pub fn mul<T: Real>(mut a: Lane<T>, x: Lane<T>) -> Lane<T> {
    for l in 0..L {
        a[l] *= x[l];
    }
    a
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
        scatter(x, stride, n, heads.k, add, &at[..self.len], step, y);
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

/// That this is compiled for a processor with AVX-512F: see `avx512_here!`.
#[derive(Clone, Copy)]
pub struct Avx512(());

impl Avx512 {
    /// # Safety
    /// The processor has AVX-512F.
    #[inline(always)]
    pub unsafe fn assumed() -> Avx512 {
        Avx512(())
    }
}

/// In a function of several versions (`multiversion`): an [`Avx512`] in the one for it, else none. What depends on it is
/// chosen when that version is compiled; to ask the processor would keep the shuffles out of loops.
macro_rules! avx512_here {
    () => {
        if multiversion::target::target_cfg_f!(target_feature = "avx512f") {
            // SAFETY: only a processor that has it runs this version of the function.
            Some(unsafe { $crate::ops::lanes::Avx512::assumed() })
        } else {
            None
        }
    };
}
pub(super) use avx512_here;

/// Every four lanes of four as a matrix, transposed: lane 4 g + j of the m-th is lane 4 g + m of the j-th.
#[inline(always)]
pub fn turned<T: Real>(avx512: Option<Avx512>, x: &[Lane<T>; 4]) -> [Lane<T>; 4] {
    #[cfg(target_arch = "x86_64")]
    if let (Some(_), Some(x)) = (avx512, singles(x).and_then(|x| x.first_chunk())) {
        let mut y = [[T::ZERO; L]; 4];
        if let Some(y) = singles_mut(&mut y) {
            // SAFETY: the processor can, as there is an `Avx512`.
            y.copy_from_slice(&unsafe { avx512::turned(x) });
        }
        return y;
    }
    std::array::from_fn(|m| std::array::from_fn(|i| x[i % 4][i / 4 * 4 + m]))
}

/// Lane 4 a + b becomes lane 4 b + a.
#[inline(always)]
pub fn order<T: Real>(avx512: Option<Avx512>, x: &Lane<T>) -> Lane<T> {
    #[cfg(target_arch = "x86_64")]
    if let (Some(_), Some(x)) = (avx512, singles(std::slice::from_ref(x))) {
        let mut y = [[T::ZERO; L]];
        if let Some(y) = singles_mut(&mut y) {
            // SAFETY: the processor can, as there is an `Avx512`.
            y[0] = unsafe { avx512::order(&x[0]) };
        }
        return y[0];
    }
    std::array::from_fn(|l| x[l % 4 * 4 + l / 4])
}

/// Lanes of `f32`, if that is what they are.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn singles<T: Real>(x: &[Lane<T>]) -> Option<&[Lane<f32>]> {
    T::f32s(x.as_flattened()).map(lanes)
}

/// The same to write.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn singles_mut<T: Real>(x: &mut [Lane<T>]) -> Option<&mut [Lane<f32>]> {
    T::f32s_mut(x.as_flattened_mut()).map(lanes_mut)
}

/// Whether n rows of k, `step` apart, from every place of `at` are within so many numbers.
#[cfg(target_arch = "x86_64")]
fn within(len: usize, at: &[usize], n: usize, step: usize, k: usize) -> bool {
    n == 0 || at.iter().all(|at| at + (n - 1) * step + k <= len)
}

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
    let mut j0 = 0;
    #[cfg(target_arch = "x86_64")]
    if let (Some(x), Some(scale), Some(y)) = (T::f32s(x), singles(std::slice::from_ref(scale)), singles_mut(y))
        && avx512::available()
    {
        assert!(within(x.len(), &at, n, step, k) && within(y.len(), &[0], n, stride, k), "rows beyond a tensor's end");
        j0 = k / 4 * 4;
        // SAFETY: the processor can, and it was just looked that the rows and the lanes are there.
        unsafe { avx512::gather(x, &at, step, k / 4, n, &scale[0], y, stride) };
    }
    for t in 0..n {
        for (j, y) in y[t * stride..][..k].iter_mut().enumerate().skip(j0) {
            *y = std::array::from_fn(|l| scale[l] * x[at[l] + t * step + j]);
        }
    }
}

fn scatter<T: Real>(
    x: &[Lane<T>],
    stride: usize,
    n: usize,
    k: usize,
    add: Option<T>,
    at: &[usize],
    step: usize,
    y: &mut [T],
) {
    let mut j0 = 0;
    #[cfg(target_arch = "x86_64")]
    if let (Some(x), Some(y)) = (singles(x), T::f32s_mut(y))
        && avx512::available()
    {
        assert!(within(y.len(), at, n, step, k) && within(x.len(), &[0], n, stride, k), "rows beyond a tensor's end");
        j0 = k / 4 * 4;
        let scale = add.map_or(1.0, |scale| scale.to_f64() as f32);
        // SAFETY: the processor can, and it was just looked that the rows and the lanes are there.
        unsafe { avx512::scatter(x, stride, n, k / 4, scale, at, step, y, add.is_some()) };
    }
    for t in 0..n {
        for (j, x) in x[t * stride..][..k].iter().enumerate().skip(j0) {
            for (at, &x) in at.iter().zip(x) {
                let y = &mut y[at + t * step + j];
                *y = add.map_or(x, |scale| *y + scale * x);
            }
        }
    }
}
