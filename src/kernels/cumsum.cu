// The running sum along an axis of n entries, of a tensor seen as [outer, n, inner], forward and backward.
//
// Tiling: a row (inner = 1) has a warp, columns have a block for up to 32 of them, which shares the axis out among its
// warps. Limited by memory: x is read once and y written once, however long the axis.

// yₜ = Σ xᵢ over i ≤ t, or over i ≥ t where `back`, of rows: a warp has a row, 32 entries at a time.
KERNEL(cumsum_rows)(const S* x, S* y, int acc, i64 rows, i64 n, int back) {
    const int lane = threadIdx.x % 32;
    for (i64 row = thread() / 32; row < rows; row += threads() / 32) {
        real carry = 0;
        for (i64 start = 0; start < n; start += 32) {
            const i64 t = start + lane, i = row * n + (back ? n - 1 - t : t);
            real sum = t < n ? ld(x + i) : real(0);
#pragma unroll
            for (int o = 1; o < 32; o *= 2) {
                const real left = __shfl_up_sync(0xffffffffu, sum, o);
                if (lane >= o) sum += left;
            }
            sum += carry;
            if (t < n) put(y + i, sum, acc);
            carry = __shfl_sync(0xffffffffu, sum, 31);
        }
    }
}

// The same of columns: a block has up to 32 of them. Its warps have 8 entries each of a piece of the axis, and add the
// sum of all entries before their own.
KERNEL(cumsum_columns)(const S* x, S* y, int acc, i64 columns, i64 n, i64 inner, int back) {
    __shared__ real part[256];
    const int wide = blockDim.x, high = blockDim.y, c = threadIdx.x, h = threadIdx.y;
    const i64 k = (i64)blockIdx.x * wide + c, outer = divide(k, inner), base = outer * n * inner + (k - outer * inner);
    real carry = 0;
    for (i64 start = 0; start < n; start += 8 * high) {
        real v[8], sum = 0;
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const i64 t = start + 8 * h + i;
            if (k < columns && t < n) sum += ld(x + base + (back ? n - 1 - t : t) * inner);
            v[i] = sum;
        }
        part[h * wide + c] = sum;
        __syncthreads();
        real before = carry;
        for (int i = 0; i < high; i++) {
            if (i == h) before = carry;
            carry += part[i * wide + c];
        }
        __syncthreads();
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const i64 t = start + 8 * h + i;
            if (k < columns && t < n) put(y + base + (back ? n - 1 - t : t) * inner, before + v[i], acc);
        }
    }
}
