// Softmax of rows of n entries and its gradient. Row i of every t sees its first i + offset + 1
// entries (causal attention; for all to be seen, t = 1 and offset = n), the others are 0.
//
// Tiling: a row has a group of threads, 1, 2, 4, … 32, as wide as it is, or a block if it is long; entry j belongs to
// thread j mod the group, so neighbours touch neighbouring addresses. The maximum, the sum and the result are three
// passes; the first reads memory, the others find the row in L1. Limited by memory: forward moves 2 numbers an
// entry (of the hidden ones only the 0), backward 3, 4 where it adds; 2 exponentials an entry.

// e^x cannot overflow after the maximum m is taken off; what comes out is e^(x − m) / Σ e^(x − m).
KERNEL(softmax_forward)(const S* x, S* y, i64 rows, i64 n, int lanes, i64 t, i64 offset) {
    __shared__ real scratch[32];
    const int lane = threadIdx.x % lanes, groups = blockDim.x / lanes;
    for (i64 start = (i64)blockIdx.x * groups; start < rows; start += (i64)gridDim.x * groups) {
        const i64 row = start + threadIdx.x / lanes, i = row - divide(row, t) * t;
        const i64 size = row < rows ? n : 0, most = i + offset + 1, seen = most < size ? most : size;
        const S* xs = x + row * n;
        S* ys = y + row * n;
        real m = -INF, sum = 0;
        for (i64 j = lane; j < seen; j += lanes) m = fmax(m, ld(xs + j));
        m = group_max(m, lanes, scratch);
        for (i64 j = lane; j < seen; j += lanes) sum += exp(ld(xs + j) - m);
        sum = group_sum(sum, lanes, scratch);
        const real scale = 1.0 / sum;
        for (i64 j = lane; j < size; j += lanes) st(ys + j, j < seen ? exp(ld(xs + j) - m) * scale : real(0));
    }
}

// The term of an entry of weight y: nothing where y is 0, whatever its cotangent is.
__device__ inline real weighed(real y, real g) { return y == 0 ? real(0) : y * g; }

// dx = y (dy − Σ y dy). Hidden entries get 0.
KERNEL(softmax_backward)(const S* y, const S* g, S* d, int acc, i64 rows, i64 n, int lanes, i64 t, i64 offset) {
    __shared__ real scratch[32];
    const int lane = threadIdx.x % lanes, groups = blockDim.x / lanes;
    for (i64 start = (i64)blockIdx.x * groups; start < rows; start += (i64)gridDim.x * groups) {
        const i64 row = start + threadIdx.x / lanes, i = row - divide(row, t) * t;
        const i64 size = row < rows ? n : 0, most = i + offset + 1, seen = most < size ? most : size;
        const S *ys = y + row * n, *gs = g + row * n;
        S* ds = d + row * n;
        real sum = 0;
        for (i64 j = lane; j < seen; j += lanes) sum += weighed(ld(ys + j), ld(gs + j));
        sum = group_sum(sum, lanes, scratch);
        for (i64 j = lane; j < seen; j += lanes) put(ds + j, weighed(ld(ys + j), ld(gs + j) - sum), acc);
        if (!acc)
            for (i64 j = lane; j < size; j += lanes)
                if (j >= seen) st(ds + j, real(0));
    }
}
