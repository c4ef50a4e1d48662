// The optimiser over the flat parameters and gradients of a model: one launch each for the norm, the judgement and the
// step. They are limited by memory: the norm reads a number an element, a step of Adam reads four and writes three. A
// thread takes every threads()-th element.

// The scale of numbers in double precision whose squares overflow.
#define DOWN 0x1p-600

// Σ g² of each block's share, in double precision, and behind all of these Σ (DOWN g)²; `judge` adds the blocks up, in
// order. Their number depends on n alone, so the sum does not depend on the device.
KERNEL(sum_of_squares)(const S* g, i64 n, double* sums) {
    __shared__ double scratch[32];
    double sum = 0, scaled = 0;
    for (i64 i = thread(); i < n; i += threads()) {
        const double x = ld(g + i);
        sum += x * x;
        if (sizeof(S) == 8) scaled += (x * DOWN) * (x * DOWN);
    }
    sum = block_sum(sum, scratch);
    scaled = block_sum(scaled, scratch);
    if (threadIdx.x == 0) {
        sums[blockIdx.x] = sum;
        sums[gridDim.x + blockIdx.x] = scaled;
    }
}

// One thread computes the norm, whether the loss and the norm are finite, and the factor of clipping, as torch's
// clip_grad_norm_: max / (norm + 1e-6), if less than 1. numbers[7] is max, 0 for none.
KERNEL(judge)(const double* sums, i64 blocks, const S* loss, const double* numbers, double* told) {
    if (thread() > 0) return;
    double sum = 0, scaled = 0;
    for (i64 i = 0; i < blocks; i++) {
        sum += sums[i];
        scaled += sums[blocks + i];
    }
    const double norm = sum <= 0x1p1023 || sizeof(S) < 8 ? sqrt(sum) : sqrt(scaled) / DOWN, l = ld(loss), factor = numbers[7] / (norm + 1e-6);
    told[0] = l;
    told[1] = norm;
    told[2] = numbers[7] > 0 && factor < 1 ? factor : 1;
    told[3] = l - l == 0 && norm - norm == 0;
}

// The SplitMix64 number at place n behind `key`, as a whole number below 2^53.
__device__ inline double split_mix(u64 key, u64 n) {
    u64 z = key + (n + 1) * 0x9e3779b97f4a7c15ull;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return (double)((z ^ (z >> 31)) >> 11);
}

// The noise of parameter i, of standard deviation 1: `Noise::at` of optimizer.rs.
__device__ inline double noise(u64 key, u64 i) {
    const u64 even = i & ~1ull;
    const double u = (split_mix(key, even) + 1) * 0x1p-53, v = split_mix(key, even + 1) * 0x1p-53;
    const double angle = 0x1.921fb54442d18p+2 * v;
    return sqrt(-2 * log(u)) * (i == even ? cos(angle) : sin(angle));
}

// The update of optimizer.rs, unless the loss or the gradient is not finite. Bit i of `decays` says whether weight
// decay applies to element i: l2 is λ for Adam and 0 for AdamW, shrink is 1 for Adam and 1 − η λ for AdamW; new1 and
// new2 are 1 − β. numbers[8] is the standard deviation of the noise, 0 for none, and the last two are the halves of its
// key. `adam` is for steps without noise.
template <bool NOISY>
__device__ inline void update(S* p, const S* g, S* m, S* v, const int* decays, i64 n, const double* numbers,
                              const double* told) {
    if (told[3] == 0) return;
    const real factor = told[2], l2 = numbers[0], shrink = numbers[1], new1 = numbers[2], new2 = numbers[3];
    const real rate = numbers[4], root_bias2 = numbers[5], eps = numbers[6];
    const u64 key = NOISY ? (u64)numbers[9] | (u64)numbers[10] << 32 : 0;
    for (i64 i = thread(); i < n; i += threads()) {
        const bool decay = decays[i / 32] >> (i % 32) & 1;
        const real w = ld(p + i);
        real clipped = factor * ld(g + i);
        if (NOISY) clipped += real(numbers[8] * noise(key, i));
        const real x = clipped + (decay ? l2 * w : real(0));
        const real m1 = ld(m + i) + new1 * (x - ld(m + i));
        // An infinite square stays infinite: inf - inf would be NaN.
        const real v0 = ld(v + i), v1 = v0 <= LARGEST ? v0 + (new2 * x * x - new2 * v0) : v0;
        st(m + i, m1);
        st(v + i, v1);
        st(p + i, (decay ? shrink : real(1)) * w - rate * (m1 / (sqrt(v1) / root_bias2 + eps)));
    }
}

KERNEL(adam)(S* p, const S* g, S* m, S* v, const int* decays, i64 n, const double* numbers,
    const double* told) {
    update<false>(p, g, m, v, decays, n, numbers, told);
}

KERNEL(adam_with_noise)(S* p, const S* g, S* m, S* v, const int* decays, i64 n,
    const double* numbers, const double* told) {
    update<true>(p, g, m, v, decays, n, numbers, told);
}
