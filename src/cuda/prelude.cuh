// Functions for every kernel. The loader puts two definitions in front: `S`, how a number is stored (float, double,
// bf16), and `real`, what arithmetic is done in (float, or double for double). A literal such as 0.5 is a `real`:
// the loader gives it the suffix f where real is float.
//
// Kernels include nothing. Inline PTX stands in this file only, with a version for the emulator under CUEMU.

// A kernel. Where the loader has defined ONE_KERNEL, and ONLY_NAME for the one that it wants, the others are templates
// that nobody makes, and cost no time: NVRTC takes seconds for all kernels of some files.
#ifdef ONE_KERNEL
#define SECOND(A, B, ...) B
#define CHOICE(...) SECOND(__VA_ARGS__)
#define AS_KERNEL(NAME) CHOICE(ONLY_##NAME, template <int>, ~)
#else
#define AS_KERNEL(NAME) extern "C"
#endif
#define KERNEL(NAME) AS_KERNEL(NAME) __global__ void NAME
#define BOUND_KERNEL(NAME, ...) AS_KERNEL(NAME) __global__ void __launch_bounds__(__VA_ARGS__) NAME

typedef unsigned int u32;
typedef unsigned short u16;
typedef long long i64;
typedef unsigned long long u64;

#define INF ((real)__int_as_float(0x7f800000))

// --- Storage: ld reads a number into arithmetic, st rounds it back. ---

__device__ inline float ld(const float* p) { return *p; }
__device__ inline double ld(const double* p) { return *p; }
__device__ inline float ld(const bf16* p) { return __uint_as_float((u32)p->bits << 16); }

__device__ inline void st(float* p, float v) { *p = v; }
__device__ inline void st(double* p, double v) { *p = v; }
// To nearest, ties to even; a NaN stays one.
__device__ inline void st(bf16* p, float v) {
#if defined(CUEMU) || __CUDA_ARCH__ < 800
    u32 u = __float_as_uint(v);
    p->bits = (u16)((u & 0x7fffffffu) > 0x7f800000u ? (u >> 16) | 0x40u : (u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
#else
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(p->bits) : "f"(v));
#endif
}
// Two of them, the first in the lower half.
__device__ inline u32 pair(float a, float b) {
#if defined(CUEMU) || __CUDA_ARCH__ < 800
    bf16 x, y;
    st(&x, a), st(&y, b);
    return x.bits | (u32)y.bits << 16;
#else
    u32 both;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(b), "f"(a));
    return both;
#endif
}

#define LOG2_E real(1.44269504088896340736)
// 2^x in one instruction: to about 22 bits, and 0 for what is below the normal numbers.
__device__ inline float quick_exp2(float x) {
#ifdef CUEMU
    const float y = exp2f(x);
    return y < 1.17549435e-38f ? 0.0f : y;
#else
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#endif
}
__device__ inline double quick_exp2(double x) { return exp2(x); }
// 1 / x in one instruction, to about 23 bits. What is below the normal numbers is 0, of x and of the result.
__device__ inline float quick_reciprocal(float x) {
#ifdef CUEMU
    const float y = 1.0f / (fabsf(x) < 1.17549435e-38f ? copysignf(0.0f, x) : x);
    return fabsf(y) < 1.17549435e-38f ? copysignf(0.0f, y) : y;
#else
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#endif
}
__device__ inline double quick_reciprocal(double x) { return 1.0 / x; }

// a b, rounded by itself. A compiler may make one operation of a product and a sum that it goes into, with one rounding:
// not of this product, which is so the same number wherever it is computed.
#ifdef CUEMU
__device__ inline real times(real a, real b) { return a * b; }
#else
__device__ inline float times(float a, float b) { return __fmul_rn(a, b); }
__device__ inline double times(double a, double b) { return __dmul_rn(a, b); }
#endif

// a b in 64 bits. A compiler that hoists the wider a or b needs four instructions.
__device__ inline i64 wide_product(int a, int b) {
#ifdef CUEMU
    return (i64)a * b;
#else
    i64 y;
    asm("mul.wide.s32 %0, %1, %2;" : "=l"(y) : "r"(a), "r"(b));
    return y;
#endif
}

// x, hidden from the compiler: values that depend on it are computed behind this line, and are not kept in registers from
// before it.
__device__ inline u32 anew(u32 x) {
#ifndef CUEMU
    asm volatile("" : "+r"(x));
#endif
    return x;
}

// N neighbours at an address that is a multiple of their size or of 16 bytes, in as few accesses as there can be.
template <class P, int N>
struct __align__(N * sizeof(P) < 16 ? N * sizeof(P) : 16) Pack { P v[N]; };

template <int N, class P, class R>
__device__ inline void read(R (&y)[N], const P* p) {
    const Pack<P, N> all = *(const Pack<P, N>*)p;
#pragma unroll
    for (int i = 0; i < N; i++) y[i] = all.v[i];
}
template <int N>
__device__ inline void read(float (&y)[N], const bf16* p) {
    const Pack<u32, N / 2> all = *(const Pack<u32, N / 2>*)p;
#pragma unroll
    for (int i = 0; i < N; i++) y[i] = __uint_as_float(i % 2 ? all.v[i / 2] & 0xffff0000u : all.v[i / 2] << 16);
}
__device__ inline void read(float (&y)[1], const bf16* p) { y[0] = ld(p); }
// N neighbours as they are in memory, since converting them would wait for the load.
template <class P, int N> struct PackOf { typedef Pack<P, N> T; };
template <int N> struct PackOf<bf16, N> { typedef Pack<u32, N / 2> T; };
template <> struct PackOf<bf16, 1> { typedef Pack<bf16, 1> T; };
template <class P, int N> using Unconverted = typename PackOf<P, N>::T;

template <int N, class P, class R>
__device__ inline void write(P* p, const R (&y)[N]) {
    Pack<P, N> all;
#pragma unroll
    for (int i = 0; i < N; i++) all.v[i] = y[i];
    *(Pack<P, N>*)p = all;
}
template <int N>
__device__ inline void write(bf16* p, const float (&y)[N]) {
    Pack<u32, N / 2> all;
#pragma unroll
    for (int i = 0; i < N; i += 2) all.v[i / 2] = pair(y[i], y[i + 1]);
    *(Pack<u32, N / 2>*)p = all;
}
__device__ inline void write(bf16* p, const float (&y)[1]) { st(p, y[0]); }

// A gradient: added to what is there, or written over it.
template <class P, class R>
__device__ inline void put(P* p, R v, int acc) { st(p, acc ? ld(p) + v : v); }

// --- Which thread this is among all of a one-dimensional launch. ---

__device__ inline i64 thread() { return (i64)blockIdx.x * blockDim.x + threadIdx.x; }
__device__ inline i64 threads() { return (i64)gridDim.x * blockDim.x; }

// store(i, value(i)) for every i < n, over all threads of a one-dimensional launch. Four values are read at once: a
// store may touch what the next read wants, for all the compiler knows, so in a plain loop one read waits for another.
template <class F, class G>
__device__ inline void each(i64 n, F value, G store) {
    const i64 step = threads();
    i64 i = thread();
    for (; i + 3 * step < n; i += 4 * step) {
        const auto a = value(i), b = value(i + step), c = value(i + 2 * step), d = value(i + 3 * step);
        store(i, a);
        store(i + step, b);
        store(i + 2 * step, c);
        store(i + 3 * step, d);
    }
    for (; i < n; i += step) store(i, value(i));
}

// y[i] = value(i), or y[i] += value(i).
template <class F>
__device__ inline void map(S* y, int acc, i64 n, F value) {
    auto sum = [&](i64 i) -> real { return acc ? ld(y + i) + value(i) : value(i); };
    each(n, sum, [&](i64 i, real v) { st(y + i, v); });
}

// a / b of what is not negative. Sizes are 64 bits wide, but few need them, and the device divides 32 bits faster.
__device__ inline i64 divide(i64 a, i64 b) {
    if (a < b) return 0;
    return ((a | b) >> 31) == 0 ? (i64)((u32)a / (u32)b) : a / b;
}

// --- Functions of one number, named as in src/ops/math.rs; exp, log, expm1, sqrt, sin, cos, tanh, erfc are CUDA's. ---

__device__ inline real select(bool c, real a, real b) { return c ? a : b; }
__device__ inline real sigmoid(real x) { return 1.0 / (1.0 + exp(-x)); }
__device__ inline real softplus(real x) { return fmax(x, real(0)) + log1p(exp(-fabs(x))); }
__device__ inline real decay_rate(real x) {
    const real y = -exp(x);
    return y < -FASTEST ? -FASTEST : y;
}
// So far from zero every sigmoid, normal_cdf and normal_pdf is 0 or 1: a factor of what has become 0 stays within, as
// an infinite one would make it NaN. NaN itself stays.
#define FAR real(1000)
__device__ inline real at_least(real x, real least) { return x < least ? least : x; }
__device__ inline real at_most(real x, real most) { return x > most ? most : x; }
// x - 2 pi n, between -pi and pi; 2 pi is the sum of two numbers, of which the first has so few digits that n times it
// is exact.
__device__ inline real wrap(real x) {
    const real pi = 3.14159265358979323846, n = rint(x * real(0.15915494309189535));
    return at_most(at_least((x - n * real(6.28125)) - n * real(0.0019353071795864769), -pi), pi);
}
__device__ inline real within_far(real x) { return at_most(at_least(x, -FAR), FAR); }
// sigmoid(x) sigmoid(-x), and 1 - tanh(x)^2, without the differences.
__device__ inline real sigmoid_slope(real x) {
    const real u = exp(-fabs(x)), s = 1.0 / (1.0 + u);
    return u * s * s;
}
__device__ inline real tanh_slope(real x) { return 4 * sigmoid_slope(x + x); }
// A gate as it is kept for the backward pass, with the digits of what it lacks of 1, and what comes of it.
struct Kept { real value, rest; };
__device__ inline real keep_sigmoid(real x) {
    const real u = exp(-fabs(x));
    return copysign(u / (1.0 + u), -x);
}
// sigmoid and 1 - sigmoid.
__device__ inline Kept kept_sigmoid(real kept) {
    const real small = fabs(kept), large = 1.0 - small;
    return signbit(kept) ? Kept{large, small} : Kept{small, large};
}
__device__ inline real keep_tanh(real x) {
    const real size = tanh(fabs(x));
    return copysign(size <= 0.5 ? size : at_least(2.0 / (1.0 + exp(2 * fabs(x))) / LEAST_NORMAL, 1.0), x);
}
// tanh and 1 - tanh^2.
__device__ inline Kept kept_tanh(real kept) {
    const real near = fabs(kept), far = near * LEAST_NORMAL;
    const real size = near < 1.0 ? near : 1.0 - far;
    return {copysign(size, kept), (near < 1.0 ? 1.0 - near : far) * (1.0 + size)};
}
// Below zero a factor e^x in two halves: it may be less than a number holds where x e^x is not.
__device__ inline real silu_factor(real x, real of) {
    const real half = exp(real(-0.5) * fabs(x)), s = 1.0 / (1.0 + half * half);
    return (x < 0.0 ? of * half * half : of) * s;
}
__device__ inline real silu(real x) {
    x = at_least(x, -FAR);
    return silu_factor(x, x);
}
__device__ inline real silu_slope(real x) {
    x = within_far(x);
    return silu_factor(x, 1.0 + x * sigmoid(-x));
}
// GELU by tanh is x sigmoid(gelu_arg(x)).
__device__ inline real gelu_arg(real x) { return 1.5957691216057308 * x * (1 + 0.044715 * x * x); }
__device__ inline real gelu_tanh(real x) { return at_least(x, -FAR) * sigmoid(gelu_arg(within_far(x))); }
__device__ inline real gelu_tanh_slope(real x) {
    x = within_far(x);
    const real s = sigmoid(gelu_arg(x));
    return s + x * s * (1 - s) * 1.5957691216057308 * (1 + 0.134145 * x * x);
}
__device__ inline real normal_cdf(real x) { return 0.5 * erfc(x * -0.7071067811865476); }
__device__ inline real normal_pdf(real x) { return 0.3989422804014327 * exp(-0.5 * x * x); }
__device__ inline real gelu(real x) { return at_least(x, -FAR) * normal_cdf(x); }
__device__ inline real gelu_slope(real x) {
    x = within_far(x);
    return normal_cdf(x) + x * normal_pdf(x);
}
__device__ inline bool is_finite(real x) { return fabs(x) <= LARGEST; }

// --- Sums over a warp and over a block, in a fixed order; every thread gets the result. All threads must take part.
// ---

template <class T>
__device__ inline T warp_sum(T v) {
    for (int o = 16; o > 0; o >>= 1) v += __shfl_xor_sync(0xffffffffu, v, o);
    return v;
}
template <class T>
__device__ inline T warp_max(T v) {
    for (int o = 16; o > 0; o >>= 1) {
        T w = __shfl_xor_sync(0xffffffffu, v, o);
        v = v > w ? v : w;
    }
    return v;
}

// Over a one-dimensional block of whole warps. `scratch` is 32 numbers of shared memory that nobody else uses until
// the next barrier after the call.
template <class T>
__device__ inline T block_sum(T v, T* scratch) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32;
    v = warp_sum(v);
    if (lane == 0) scratch[warp] = v;
    __syncthreads();
    v = warp_sum(lane < warps ? scratch[lane] : T(0));
    __syncthreads();
    return v;
}
template <class T>
__device__ inline T block_max(T v, T* scratch) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32;
    v = warp_max(v);
    if (lane == 0) scratch[warp] = v;
    __syncthreads();
    v = warp_max(scratch[lane < warps ? lane : 0]);
    __syncthreads();
    return v;
}

// Over groups of `lanes` neighbouring threads, 1, 2, 4, … 32, or over the block where `lanes` is more: what shares a
// row. Every thread of the block must call.
template <class T>
__device__ inline T group_sum(T v, int lanes, T* scratch) {
    if (lanes > 32) return block_sum(v, scratch);
    for (int o = lanes >> 1; o > 0; o >>= 1) v += __shfl_xor_sync(0xffffffffu, v, o);
    return v;
}
template <class T>
__device__ inline T group_max(T v, int lanes, T* scratch) {
    if (lanes > 32) return block_max(v, scratch);
    for (int o = lanes >> 1; o > 0; o >>= 1) {
        T w = __shfl_xor_sync(0xffffffffu, v, o);
        v = v > w ? v : w;
    }
    return v;
}

// Up to eight integers as one argument: sizes and strides.
template <int N>
struct Ints { i64 v[N]; };

// --- Blocks that wait for one another, all there at once (`Launch::together`): what was written before a release, and
// before a barrier in front of it, is there for who acquires the sum and for those behind its next barrier. ---

__device__ inline void add_release(u32* p, u32 n) {
#ifdef CUEMU
    cuemu::add_release(p, n);
#else
    asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(p), "r"(n) : "memory");
#endif
}
__device__ inline u32 load_acquire(const u32* p) {
#ifdef CUEMU
    return cuemu::load_acquire(p);
#else
    u32 n;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(n) : "l"(p) : "memory");
    return n;
#endif
}

// --- 16 bytes to shared memory, or zeros, while the thread goes on. They are there for it once it has waited, and for
// others behind the next barrier. Before sm_80 at once. ---

__device__ inline void copy_async(void* to, const void* from, bool there) {
#if defined(CUEMU)
    cuemu::cp_async(to, from, 16, there ? 16 : 0);
#elif __CUDA_ARCH__ < 800
    *(Pack<u32, 4>*)to = there ? *(const Pack<u32, 4>*)from : Pack<u32, 4>{};
#else
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"((u32)__cvta_generic_to_shared(to)), "l"(from),
                 "r"(there ? 16 : 0) : "memory");
#endif
}
// Asks the device's cache for a line that somebody will read; nobody waits.
__device__ inline void prefetch(const void* at) {
#ifndef CUEMU
    asm volatile("prefetch.global.L2 [%0];" ::"l"(at));
#endif
}
__device__ inline void wait_for_copies() {
#if defined(CUEMU)
    cuemu::cp_async_commit();
    cuemu::cp_async_wait(0);
#elif __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}

// --- Tensor cores: d += a b for a 16 x 16 and b 16 x 8 in bf16, sums in float; and what loads their operands. ---

__device__ inline void mma(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) {
#ifdef CUEMU
    cuemu::mma_m16n8k16_bf16(d, a, b);
#else
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#endif
}

// Matrices of 8 x 8 in shared memory: lane i gives the address of row i % 8 of matrix i / 8.
__device__ inline void ldmatrix(u32 (&r)[4], const bf16* row, bool transposed) {
#ifdef CUEMU
    cuemu::ldmatrix(r, row, transposed);
#else
    const u32 at = (u32)__cvta_generic_to_shared(row);
    if (transposed)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at) : "memory");
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at) : "memory");
#endif
}
__device__ inline void ldmatrix(u32 (&r)[2], const bf16* row, bool transposed) {
#ifdef CUEMU
    cuemu::ldmatrix(r, row, transposed);
#else
    const u32 at = (u32)__cvta_generic_to_shared(row);
    if (transposed)
        asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
                     : "=r"(r[0]), "=r"(r[1]) : "r"(at) : "memory");
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
                     : "=r"(r[0]), "=r"(r[1]) : "r"(at) : "memory");
#endif
}
