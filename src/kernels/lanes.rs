//! Sixteen heads side by side, one in each lane of a vector: how small memories run step by step.
//!
//! A 4 × 4 state leaves a vector unit mostly idle. Heads and sequences are independent, so sixteen of them are
//! transposed into [.., 16] and the recurrence is written as for one head, with [`Lane`]s for numbers. When the number
//! of heads is no multiple of 16, the lanes left over hold zeros (or NaN, where the last head has a number that is not
//! finite: zeros are its multiples).

#[cfg(target_arch = "x86_64")]
pub(super) mod avx512;
#[cfg(target_arch = "x86_64")]
mod sse;

#[cfg(target_arch = "x86_64")]
use crate::kernels::vector;
use crate::{
    kernels::heads::{Heads, Slot},
    tensor::Real,
};

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
        (t0, n): (usize, usize),
        scale: T,
        y: &mut [Lane<T>],
        stride: usize,
    ) {
        let mut scale = [scale; L];
        scale[self.len..].fill(T::ZERO);
        gather(x, self.at(heads, t0), heads.h * heads.k, &scale, y, Table { n, k: heads.k, rs: stride, cs: 1 });
    }

    /// Lanes, times `scale`, to steps `t0..t0 + n` of a tensor.
    pub fn scatter<T: Real>(
        self,
        heads: Heads,
        x: &[Lane<T>],
        stride: usize,
        (t0, n): (usize, usize),
        scale: T,
        y: &mut Slot<T>,
    ) {
        let (at, step) = (self.at(heads, t0), heads.h * heads.k);
        scatter(x, Table { n, k: heads.k, rs: stride, cs: 1 }, scale, &at[..self.len], step, y);
    }

    /// Where these heads' states begin, `step` apart; for lanes without a head, the last one's.
    fn states(&self, step: usize) -> [usize; L] {
        std::array::from_fn(|l| (self.first + l.min(self.len - 1)) * step)
    }

    /// States [.., K, V] of these heads, `step` apart, as lanes [V, K]: the columns one after another.
    pub fn load_state<T: Real>(self, s: &[T], step: usize, k: usize, v: usize, y: &mut [Lane<T>]) {
        let mut scale = [T::ONE; L];
        scale[self.len..].fill(T::ZERO);
        gather(s, self.states(step), v, &scale, y, Table { n: k, k: v, rs: 1, cs: k });
    }

    /// From lanes to the states.
    pub fn store_state<T: Real>(self, x: &[Lane<T>], k: usize, v: usize, step: usize, s: &mut Slot<T>) {
        scatter(x, Table { n: k, k: v, rs: 1, cs: k }, T::ONE, &self.states(step)[..self.len], v, s);
    }
}

/// Where in lanes n rows of k numbers are: number j of row t in t rs + j cs.
#[derive(Clone, Copy)]
pub struct Table {
    /// Rows.
    pub n: usize,
    /// Numbers of a row.
    pub k: usize,
    /// From row to row.
    pub rs: usize,
    /// From number to number.
    pub cs: usize,
}

/// A proof that the code is compiled for a processor with AVX-512F: see `avx512_here!`.
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

/// In a function of several versions (`versions`): an [`Avx512`] in the AVX-512 version, else none. The choice is made
/// when that version is compiled; asking the processor would keep the shuffles out of loops.
macro_rules! avx512_here {
    () => {
        if IN_AVX512 {
            // SAFETY: only a processor that has it runs this version of the function.
            Some(unsafe { $crate::kernels::lanes::Avx512::assumed() })
        } else {
            None
        }
    };
}

pub(super) use avx512_here;

/// y + a x, with AVX-512 as one instruction that the compiler takes as it is. Given a loop over numbers inside a loop
/// over independent rows, the compiler may make vectors along the rows, which reads sixteen rows number by number.
#[inline(always)]
#[cfg_attr(not(target_arch = "x86_64"), expect(unused_variables))]
pub fn fma<T: Real>(avx512: Option<Avx512>, y: &Lane<T>, a: &Lane<T>, x: &Lane<T>) -> Lane<T> {
    #[cfg(target_arch = "x86_64")]
    if let (Some(_), [Some(y), Some(a), Some(x)]) = (avx512, [y, a, x].map(|x| singles(std::slice::from_ref(x)))) {
        let mut sum = [[T::ZERO; L]];
        if let Some(sum) = singles_mut(&mut sum) {
            // SAFETY: the processor can, as there is an `Avx512`.
            sum[0] = unsafe { avx512::fma(&y[0], &a[0], &x[0]) };
        }
        return sum[0];
    }
    mul_add(*y, *a, *x)
}

/// Every four lanes of four as a matrix, transposed: lane 4 g + j of the m-th is lane 4 g + m of the j-th.
#[inline(always)]
#[cfg_attr(not(target_arch = "x86_64"), expect(unused_variables))]
pub fn transposed<T: Real>(avx512: Option<Avx512>, x: &[Lane<T>; 4]) -> [Lane<T>; 4] {
    #[cfg(target_arch = "x86_64")]
    if let Some(x) = singles(x).and_then(|x| x.first_chunk()) {
        let mut y = [[T::ZERO; L]; 4];
        if let Some(y) = singles_mut(&mut y) {
            // SAFETY: the processor can, as there is an `Avx512`.
            y.copy_from_slice(&if avx512.is_some() { unsafe { avx512::transposed(x) } } else { sse::transposed(x) });
        }
        return y;
    }
    std::array::from_fn(|m| std::array::from_fn(|i| x[i % 4][i / 4 * 4 + m]))
}

/// The sum of each of four lane blocks over F groups of four lanes, from the `from`-th group on: the groups are added
/// up, then the four lanes of the result.
#[inline(always)]
pub fn horizontal_sums<T: Real, const F: usize>(x: &[Lane<T>; 4], from: usize) -> [T; 4] {
    #[cfg(target_arch = "x86_64")]
    if let Some(x) = singles(x).and_then(|x| x.first_chunk()) {
        let mut y = [T::ZERO; 4];
        if let Some(y) = T::f32s_mut(&mut y) {
            y.copy_from_slice(&sse::horizontal_sums::<F>(x, from));
        }
        return y;
    }
    x.map(|x| {
        let groups = &x.as_chunks::<4>().0[from..from + F];
        let lane = |l: usize| groups.iter().map(|group| group[l]).sum::<T>();
        (lane(0) + lane(1)) + (lane(2) + lane(3))
    })
}

/// Lane 4 a + b becomes lane 4 b + a.
#[inline(always)]
#[cfg_attr(not(target_arch = "x86_64"), expect(unused_variables))]
pub fn order<T: Real>(avx512: Option<Avx512>, x: &Lane<T>) -> Lane<T> {
    #[cfg(target_arch = "x86_64")]
    if let Some(x) = singles(std::slice::from_ref(x)) {
        let mut y = [[T::ZERO; L]];
        if let Some(y) = singles_mut(&mut y) {
            // SAFETY: the processor can, as there is an `Avx512`.
            y[0] = if avx512.is_some() { unsafe { avx512::order(&x[0]) } } else { sse::order(&x[0]) };
        }
        return y[0];
    }
    std::array::from_fn(|l| x[l % 4 * 4 + l / 4])
}

/// The sums of sixteen times sixteen numbers, each merged pairwise; none in double precision, or on other processors.
#[inline(always)]
#[cfg_attr(not(target_arch = "x86_64"), expect(unused_variables))]
pub fn merged<T: Real>(avx512: Option<Avx512>, x: &[Lane<T>; L]) -> Option<Lane<T>> {
    #[cfg(target_arch = "x86_64")]
    if let Some(x) = singles(x).and_then(|x| x.first_chunk()) {
        let mut y = [[T::ZERO; L]];
        // SAFETY: the processor can, as there is an `Avx512`.
        singles_mut(&mut y)?[0] = if avx512.is_some() { unsafe { avx512::merged(x) } } else { sse::merged(x) };
        return Some(y[0]);
    }
    None
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

/// Whether the rows of a table, `step` apart from every place of `at` on, lie within `len` elements, and its lanes
/// within so many lanes.
#[cfg(target_arch = "x86_64")]
fn within(Table { n, k, rs, cs }: Table, len: usize, at: &[usize], step: usize, lanes: usize) -> bool {
    if n == 0 || k == 0 {
        return true;
    }
    // Saturating: a product that overflows is beyond the end of any slice.
    let far = |n: usize, step: usize| (n - 1).saturating_mul(step);
    let (row, lane) = (far(n, step).saturating_add(k), far(n, rs).saturating_add(far(k, cs)));
    at.iter().copied().max().is_none_or(|last| last.saturating_add(row) <= len) && lane < lanes
}

/// n rows of k numbers of each lane, `step` apart, times `scale`, to lanes.
pub fn gather<T: Real>(x: &[T], at: [usize; L], step: usize, scale: &Lane<T>, y: &mut [Lane<T>], to: Table) {
    #[cfg_attr(not(target_arch = "x86_64"), expect(unused_mut))]
    let mut j0 = 0;
    #[cfg(target_arch = "x86_64")]
    if let (Some(x), Some(scale), Some(y)) = (T::f32s(x), singles(std::slice::from_ref(scale)), singles_mut(y)) {
        assert!(within(to, x.len(), &at, step, y.len()), "rows beyond a tensor's end");
        j0 = to.k / 4 * 4;
        let gather = if vector::Avx512::here().is_some() { avx512::gather } else { sse::gather };
        // SAFETY: the processor can, and it was just looked that the rows and the lanes are there.
        unsafe { gather(x, &at, step, &scale[0], y, to) };
    }
    for t in 0..to.n {
        for j in j0..to.k {
            y[t * to.rs + j * to.cs] = std::array::from_fn(|l| scale[l] * x[at[l] + t * step + j]);
        }
    }
}

/// Lanes, as many as `at` has, times `scale`, to n rows of k numbers of each, `step` apart; added if the target says
/// so.
pub fn scatter<T: Real>(x: &[Lane<T>], from: Table, scale: T, at: &[usize], step: usize, (y, acc): &mut Slot<T>) {
    #[cfg_attr(not(target_arch = "x86_64"), expect(unused_mut))]
    let mut j0 = 0;
    #[cfg(target_arch = "x86_64")]
    if let (Some(x), Some(y)) = (singles(x), T::f32s_mut(y)) {
        assert!(at.len() <= L && within(from, y.len(), at, step, x.len()), "rows beyond a tensor's end");
        j0 = from.k / 4 * 4;
        let scatter = if vector::Avx512::here().is_some() { avx512::scatter } else { sse::scatter };
        // SAFETY: the processor can, and it was just looked that the rows and the lanes are there.
        unsafe { scatter(x, from, scale.to_f64() as f32, at, step, y, *acc) };
    }
    for t in 0..from.n {
        for j in j0..from.k {
            for (at, &x) in at.iter().zip(&x[t * from.rs + j * from.cs]) {
                let y = &mut y[at + t * step + j];
                *y = scale * x + if *acc { *y } else { T::ZERO };
            }
        }
    }
}
