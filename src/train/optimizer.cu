// The optimiser over the flat parameters and gradients of a model: one launch each for the norm, the scaling and the
// step. All are limited by memory: the norm reads a number an element, scaling reads and writes one, a step of Adam
// reads four and writes three. A thread takes every threads()-th element.

// Σ g² of each block's share, in double precision; the host adds the blocks up, in order. Their number depends on n
// alone, so the sum does not depend on the device.
extern "C" __global__ void sum_of_squares(const S* g, i64 n, double* sums) {
    __shared__ double scratch[32];
    double sum = 0;
    for (i64 i = thread(); i < n; i += threads()) {
        const double x = ld(g + i);
        sum += x * x;
    }
    sum = block_sum(sum, scratch);
    if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

// g = factor g
extern "C" __global__ void scale(S* g, real factor, i64 n) {
    for (i64 i = thread(); i < n; i += threads()) st(g + i, ld(g + i) * factor);
}

// The update of optimizer.rs. Bit i of `decays` says whether weight decay applies to element i: l2 is λ for Adam and
// 0 for AdamW, shrink is 1 for Adam and 1 − η λ for AdamW.
extern "C" __global__ void adam(S* p, const S* g, S* m, S* v, const int* decays, i64 n, real l2, real shrink,
                                real beta1, real beta2, real rate, real root_bias2, real eps) {
    for (i64 i = thread(); i < n; i += threads()) {
        const bool decay = decays[i / 32] >> (i % 32) & 1;
        const real w = ld(p + i);
        const real x = ld(g + i) + (decay ? l2 * w : real(0));
        const real m1 = ld(m + i) + (1 - beta1) * (x - ld(m + i));
        const real v1 = beta2 * ld(v + i) + (1 - beta2) * x * x;
        st(m + i, m1);
        st(v + i, v1);
        st(p + i, (decay ? shrink : real(1)) * w - rate * (m1 / (sqrt(v1) / root_bias2 + eps)));
    }
}
