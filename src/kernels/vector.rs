//! Vectors of single-precision numbers, for loops that are written once for AVX2 and AVX-512.
//!
//! A value of [`Avx2`] or [`Avx512`] is a proof that the processor has the instructions. So all methods are safe but
//! those that read or write memory. They are inlined into [`Vector::enter`], which alone is compiled for the
//! instructions: vectors that are passed between functions of different instruction sets go through memory.

use crate::tensor::simd::{self, Level};
use std::arch::x86_64::*;

/// The vectors of an instruction set.
pub trait Vector: Copy {
    /// Numbers in a vector.
    const W: usize;
    /// How many vectors the registers hold.
    const REGISTERS: usize;
    /// Whether leaving lanes out of a load costs nothing.
    const MASKS: bool;
    /// A vector.
    type V: Copy;
    /// Some of its first lanes.
    type Mask: Copy;
    /// W vectors.
    type Square: AsRef<[Self::V]> + AsMut<[Self::V]>;

    /// Run a job with these instructions.
    ///
    /// # Safety
    /// As of [`Job::run`].
    unsafe fn enter<J: Job>(self, job: J);

    /// Zeros.
    fn zero(self) -> Self::V;
    /// The same number in all lanes.
    fn splat(self, x: f32) -> Self::V;
    /// a + b
    fn add(self, a: Self::V, b: Self::V) -> Self::V;
    /// a b
    fn mul(self, a: Self::V, b: Self::V) -> Self::V;
    /// a b + c, rounded once.
    fn mul_add(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// The same, or a b + a' b' + c where each number is a pair of a and a', b and b'.
    #[inline(always)]
    fn dot(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        self.mul_add(a, b, c)
    }
    /// W vectors of zeros.
    fn square(self) -> Self::Square;
    /// Turn rows to columns.
    fn transpose(self, rows: &mut Self::Square);
    /// The first n lanes, 0 < n ≤ W.
    fn first(self, n: usize) -> Self::Mask;

    /// # Safety
    /// There are W numbers.
    unsafe fn load(self, at: *const f32) -> Self::V;
    /// The lanes of a mask; the others are zero.
    ///
    /// # Safety
    /// There are as many numbers.
    unsafe fn load_first(self, at: *const f32, mask: Self::Mask) -> Self::V;
    /// # Safety
    /// There are W numbers.
    unsafe fn store(self, at: *mut f32, v: Self::V);
    /// The first n lanes, 0 < n ≤ W. Stores with a mask are slow, and short rows common.
    ///
    /// # Safety
    /// There are n numbers.
    unsafe fn store_first(self, at: *mut f32, n: usize, v: Self::V);
}

/// Code that is compiled for an instruction set: a function that can be inlined into [`Vector::enter`].
pub trait Job {
    /// Do it. Write `#[inline(always)]` before it.
    ///
    /// # Safety
    /// As the job says.
    unsafe fn run<V: Vector>(self, v: V);
}

/// AVX2 and FMA: eight numbers in a vector, sixteen registers.
#[derive(Clone, Copy)]
pub struct Avx2(());

/// AVX-512F and VL: sixteen numbers, 32 registers. If BF16, what [`Vector::dot`] multiplies are pairs of bf16 numbers.
#[derive(Clone, Copy)]
pub struct Avx512<const BF16: bool = false>(());

impl Avx2 {
    /// If this process may use it.
    #[inline(always)]
    pub fn here() -> Option<Avx2> {
        let has = simd::allows(Level::Avx2) && is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
        has.then_some(Avx2(()))
    }
}

impl Avx512 {
    /// If this process may use it.
    #[inline(always)]
    pub fn here() -> Option<Avx512> {
        let has =
            simd::allows(Level::Avx512) && is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512vl");
        has.then_some(Avx512(()))
    }

    /// A processor with it has AVX2 and FMA.
    #[inline(always)]
    pub fn halves(self) -> Avx2 {
        Avx2(())
    }
}

impl Avx512<true> {
    /// If this process may use it.
    #[inline(always)]
    pub fn pairs() -> Option<Avx512<true>> {
        Avx512::here().filter(|_| is_x86_feature_detected!("avx512bf16")).map(|_| Avx512(()))
    }
}

/// Methods from intrinsics; behind the semicolon those that read or write memory.
macro_rules! methods {
    ($($name:ident($($x:ident: $t:ty),*) -> $y:ty { $body:expr })* ; $($at:ident($($z:ident: $u:ty),*) -> $v:ty { $do:expr })*) => {
        $(#[inline(always)]
        fn $name(self, $($x: $t),*) -> $y {
            // SAFETY: the processor has the instructions, as there is a `self`.
            unsafe { $body }
        })*
        $(#[inline(always)]
        unsafe fn $at(self, $($z: $u),*) -> $v {
            // SAFETY: the same; of memory, this function's contract.
            unsafe { $do }
        })*
    };
}

impl Vector for Avx2 {
    const W: usize = 8;
    const REGISTERS: usize = 16;
    const MASKS: bool = false;
    type V = __m256;
    type Mask = __m256i;
    type Square = [__m256; 8];

    #[inline(always)]
    unsafe fn enter<J: Job>(self, job: J) {
        #[inline(never)]
        #[target_feature(enable = "avx2,fma")]
        unsafe fn enter<J: Job>(v: Avx2, job: J) {
            // SAFETY: the caller's.
            unsafe { job.run(v) }
        }
        // SAFETY: the processor has the instructions; for the job, the caller's.
        unsafe { enter(self, job) }
    }

    methods! {
        zero() -> __m256 { _mm256_setzero_ps() }
        splat(x: f32) -> __m256 { _mm256_set1_ps(x) }
        add(a: __m256, b: __m256) -> __m256 { _mm256_add_ps(a, b) }
        mul(a: __m256, b: __m256) -> __m256 { _mm256_mul_ps(a, b) }
        mul_add(a: __m256, b: __m256, c: __m256) -> __m256 { _mm256_fmadd_ps(a, b, c) }
        square() -> [__m256; 8] { [_mm256_setzero_ps(); 8] }
        transpose(rows: &mut [__m256; 8]) -> () { transpose_eight(rows) }
        first(n: usize) -> __m256i { first_of_eight(n) }
        ;
        load(at: *const f32) -> __m256 { _mm256_loadu_ps(at) }
        load_first(at: *const f32, mask: __m256i) -> __m256 { _mm256_maskload_ps(at, mask) }
        store(at: *mut f32, v: __m256) -> () { _mm256_storeu_ps(at, v) }
        store_first(at: *mut f32, n: usize, v: __m256) -> () { put_eight(at, n, v) }
    }
}

impl<const BF16: bool> Vector for Avx512<BF16> {
    const W: usize = 16;
    const REGISTERS: usize = 32;
    const MASKS: bool = true;
    type V = __m512;
    type Mask = __mmask16;
    type Square = [__m512; 16];

    #[inline(always)]
    unsafe fn enter<J: Job>(self, job: J) {
        #[inline(never)]
        #[target_feature(enable = "avx512f,avx512vl")]
        unsafe fn enter<J: Job>(v: Avx512, job: J) {
            // SAFETY: the caller's.
            unsafe { job.run(v) }
        }
        #[inline(never)]
        #[target_feature(enable = "avx512f,avx512vl,avx512bf16")]
        unsafe fn enter_pairs<J: Job>(v: Avx512<true>, job: J) {
            // SAFETY: the caller's.
            unsafe { job.run(v) }
        }
        // SAFETY: the processor has the instructions; for the job, the caller's.
        unsafe { if BF16 { enter_pairs(Avx512(()), job) } else { enter(Avx512(()), job) } }
    }

    methods! {
        zero() -> __m512 { _mm512_setzero_ps() }
        splat(x: f32) -> __m512 { _mm512_set1_ps(x) }
        add(a: __m512, b: __m512) -> __m512 { _mm512_add_ps(a, b) }
        mul(a: __m512, b: __m512) -> __m512 { _mm512_mul_ps(a, b) }
        mul_add(a: __m512, b: __m512, c: __m512) -> __m512 { _mm512_fmadd_ps(a, b, c) }
        dot(a: __m512, b: __m512, c: __m512) -> __m512 {
            if BF16 {
                // A vector is 512 bits, whatever they mean.
                let (a, b) = (std::mem::transmute::<__m512, __m512bh>(a), std::mem::transmute::<__m512, __m512bh>(b));
                _mm512_dpbf16_ps(c, a, b)
            } else {
                _mm512_fmadd_ps(a, b, c)
            }
        }
        square() -> [__m512; 16] { [_mm512_setzero_ps(); 16] }
        transpose(rows: &mut [__m512; 16]) -> () { transpose_sixteen(rows) }
        ;
        load(at: *const f32) -> __m512 { _mm512_loadu_ps(at) }
        load_first(at: *const f32, mask: __mmask16) -> __m512 { _mm512_maskz_loadu_ps(mask, at) }
        store(at: *mut f32, v: __m512) -> () { _mm512_storeu_ps(at, v) }
        store_first(at: *mut f32, n: usize, v: __m512) -> () { put_sixteen(at, first_of_sixteen(n), v) }
    }

    #[inline(always)]
    fn first(self, n: usize) -> __mmask16 {
        first_of_sixteen(n)
    }
}

/// The first n lanes of sixteen, all for n = 16.
#[inline(always)]
pub fn first_of_sixteen(n: usize) -> __mmask16 {
    !0 >> ((16 - n % 16) % 16)
}

/// The first n lanes of eight.
#[inline]
#[target_feature(enable = "avx2")]
pub fn first_of_eight(n: usize) -> __m256i {
    static MASKS: [i32; 16] = [-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0];
    // SAFETY: eight of sixteen numbers.
    unsafe { _mm256_loadu_si256(MASKS.as_ptr().add(8 - n.min(8)).cast()) }
}

/// Write the lanes of `mask`, which are the first ones.
///
/// # Safety
/// AVX-512F and VL; y has that many numbers.
#[inline]
#[target_feature(enable = "avx512f,avx512vl")]
pub unsafe fn put_sixteen(y: *mut f32, mask: __mmask16, v: __m512) {
    // SAFETY: as many numbers as the mask has lanes, at any address.
    unsafe {
        match mask {
            0xffff => _mm512_storeu_ps(y, v),
            0xff => _mm256_storeu_ps(y, _mm512_castps512_ps256(v)),
            0xf => _mm_storeu_ps(y, _mm512_castps512_ps128(v)),
            1 => *y = _mm512_cvtss_f32(v),
            _ => _mm512_mask_storeu_ps(y, mask, v),
        }
    }
}

/// Write the first n ≤ 8 lanes.
///
/// # Safety
/// AVX2; y has n numbers.
#[inline]
#[target_feature(enable = "avx2")]
pub unsafe fn put_eight(mut y: *mut f32, n: usize, v: __m256) {
    // SAFETY: four numbers, two and one, as the bits of n say: n in all, at any address.
    unsafe {
        if n >= 8 {
            return _mm256_storeu_ps(y, v);
        }
        let mut rest = _mm256_castps256_ps128(v);
        if n & 4 != 0 {
            _mm_storeu_ps(y, rest);
            (y, rest) = (y.add(4), _mm256_extractf128_ps::<1>(v));
        }
        if n & 2 != 0 {
            y.cast::<f64>().write_unaligned(_mm_cvtsd_f64(_mm_castps_pd(rest)));
            (y, rest) = (y.add(2), _mm_movehl_ps(rest, rest));
        }
        if n & 1 != 0 {
            _mm_store_ss(y, rest);
        }
    }
}

/// The transposes of four by four numbers, one in each half: half l of the q-th is number 4 l + q of the four vectors.
#[inline]
#[target_feature(enable = "avx2")]
pub fn transpose_halves([a, b, c, d]: [__m256; 4]) -> [__m256; 4] {
    let (ab, ab2) = (_mm256_castps_pd(_mm256_unpacklo_ps(a, b)), _mm256_castps_pd(_mm256_unpackhi_ps(a, b)));
    let (cd, cd2) = (_mm256_castps_pd(_mm256_unpacklo_ps(c, d)), _mm256_castps_pd(_mm256_unpackhi_ps(c, d)));
    [
        _mm256_castpd_ps(_mm256_unpacklo_pd(ab, cd)),
        _mm256_castpd_ps(_mm256_unpackhi_pd(ab, cd)),
        _mm256_castpd_ps(_mm256_unpacklo_pd(ab2, cd2)),
        _mm256_castpd_ps(_mm256_unpackhi_pd(ab2, cd2)),
    ]
}

/// The transpose of eight vectors. (No closures that take vectors, here and below: a closure of this instruction set
/// may not be inlined into a function without it.)
#[inline]
#[target_feature(enable = "avx2")]
fn transpose_eight(r: &mut [__m256; 8]) {
    let (x, y) = (transpose_halves([r[0], r[1], r[2], r[3]]), transpose_halves([r[4], r[5], r[6], r[7]]));
    for q in 0..4 {
        r[q] = _mm256_permute2f128_ps::<0x20>(x[q], y[q]);
        r[4 + q] = _mm256_permute2f128_ps::<0x31>(x[q], y[q]);
    }
}

/// Quarter l of the q-th is number 4 l + q of the four vectors.
#[inline]
#[target_feature(enable = "avx512f")]
pub fn transpose_quarters([a, b, c, d]: [__m512; 4]) -> [__m512; 4] {
    let (ab, ab2) = (_mm512_castps_pd(_mm512_unpacklo_ps(a, b)), _mm512_castps_pd(_mm512_unpackhi_ps(a, b)));
    let (cd, cd2) = (_mm512_castps_pd(_mm512_unpacklo_ps(c, d)), _mm512_castps_pd(_mm512_unpackhi_ps(c, d)));
    [
        _mm512_castpd_ps(_mm512_unpacklo_pd(ab, cd)),
        _mm512_castpd_ps(_mm512_unpackhi_pd(ab, cd)),
        _mm512_castpd_ps(_mm512_unpacklo_pd(ab2, cd2)),
        _mm512_castpd_ps(_mm512_unpackhi_pd(ab2, cd2)),
    ]
}

/// The transpose of four vectors of four quarters.
#[inline]
#[target_feature(enable = "avx512f")]
pub fn quarters([a, b, c, d]: [__m512; 4]) -> [__m512; 4] {
    let (even, odd) = (_mm512_shuffle_f32x4::<0x88>(a, b), _mm512_shuffle_f32x4::<0xdd>(a, b));
    let (even2, odd2) = (_mm512_shuffle_f32x4::<0x88>(c, d), _mm512_shuffle_f32x4::<0xdd>(c, d));
    [
        _mm512_shuffle_f32x4::<0x88>(even, even2),
        _mm512_shuffle_f32x4::<0x88>(odd, odd2),
        _mm512_shuffle_f32x4::<0xdd>(even, even2),
        _mm512_shuffle_f32x4::<0xdd>(odd, odd2),
    ]
}

/// The transpose of sixteen vectors.
#[inline]
#[target_feature(enable = "avx512f")]
pub fn transpose_sixteen(r: &mut [__m512; 16]) {
    for i in (0..16).step_by(4) {
        let columns = transpose_quarters([r[i], r[i + 1], r[i + 2], r[i + 3]]);
        (r[i], r[i + 1], r[i + 2], r[i + 3]) = (columns[0], columns[1], columns[2], columns[3]);
    }
    for q in 0..4 {
        let columns = quarters([r[q], r[4 + q], r[8 + q], r[12 + q]]);
        (r[q], r[4 + q], r[8 + q], r[12 + q]) = (columns[0], columns[1], columns[2], columns[3]);
    }
}
