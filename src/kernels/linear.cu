// The bias of y = x wᵀ + b; the products are cuBLAS's.

// y[r, o] = b[o], to which the product then adds. Writes every number once.
KERNEL(bias_rows)(const S* b, S* y, i64 rows, i64 cols) {
    for (i64 i = thread(); i < rows * cols; i += threads()) y[i] = b[i % cols];
}

// Sums over the rows of g `[rows, cols]`, in a fixed order whatever the grid does: a block is 32 columns wide and up to
// 32 rows high, and has the rows `chunk` begins at; its sums go to row `blockIdx.y` of `sums`. The caller launches it a
// second time on those, in blocks as tall as it takes to fill the device. Reads every number once, in runs of 32.
template <class From, class To>
__device__ void column_sums(const From* g, To* sums, i64 rows, i64 cols, i64 chunk, int acc) {
    __shared__ real part[32][33];
    const i64 c = (i64)blockIdx.x * 32 + threadIdx.x;
    const i64 first = blockIdx.y * chunk, last = first + chunk < rows ? first + chunk : rows;
    real sum = 0;
    if (c < cols) {
        const From* at = g + (first + threadIdx.y) * cols + c;
        const i64 step = blockDim.y * cols;
#pragma unroll 8
        for (int left = (int)(last - first) - (int)threadIdx.y; left > 0; left -= blockDim.y, at += step) sum += ld(at);
    }
    part[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y == 0 && c < cols) {
        for (int i = 1; i < blockDim.y; i++) sum += part[i][threadIdx.x];
        put(sums + blockIdx.y * cols + c, sum, acc);
    }
}

KERNEL(column_sums_partial)(const S* g, real* sums, i64 rows, i64 cols, i64 chunk) {
    column_sums(g, sums, rows, cols, chunk, 0);
}

BOUND_KERNEL(column_sums_total, 1024)(const real* g, S* sums, i64 rows, i64 cols, int acc) {
    column_sums(g, sums, rows, cols, rows, acc);
}
