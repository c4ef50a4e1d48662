// (I + stril(L))⁻¹ of matrices [n, n], and the last step of its gradient −stril(Tᵀ dT Tᵀ), whose products are cuBLAS's.
//
// Tiling: a block has a matrix, a thread a column of the inverse, which it finds by substitution from its diagonal
// down: x_i = e_i − Σ_{j<i} L_ij x_j. Columns do not depend on each other, so nobody waits. The inverse lies in shared
// memory in full precision, n² numbers, or where they do not fit in `memory` [matrices, n, n]: neighbouring threads
// use neighbouring numbers; L_ij is read by all at once. Moves 2 n² numbers a matrix and does n³ / 3 operations.

extern "C" __global__ void unit_lower_inverse(const S* l, S* y, real* memory, i64 n) {
    extern __shared__ double dynamic[];
    real* x = memory ? memory + blockIdx.x * n * n : (real*)dynamic;
    l += blockIdx.x * n * n;
    y += blockIdx.x * n * n;
    for (i64 c = threadIdx.x; c < n; c += blockDim.x) {
        const i64 first = c - c % 32; // the warp's first column: above its diagonal all are 0
        for (i64 i = 0; i < first; i++) st(y + i * n + c, real(0));
        for (i64 i = first; i < n; i++) {
            real sum = i == c ? 1 : 0;
#pragma unroll 8
            for (i64 j = first; j < i; j++) sum -= ld(l + i * n + j) * x[j * n + c];
            if (i < c) sum = 0;
            x[i * n + c] = sum;
            st(y + i * n + c, sum);
        }
    }
}

// d (+)= −stril(a)
extern "C" __global__ void minus_stril(const S* a, S* d, int acc, i64 size, i64 n) {
    map(d, acc, size, [&](i64 k) {
        const i64 row = divide(k, n), j = k - row * n, i = row - divide(row, n) * n;
        return j < i ? -ld(a + k) : real(0);
    });
}
