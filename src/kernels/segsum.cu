// Sums over segments: y_ts = x_{s+1} + … + x_t of rows of n numbers x, `above` for s > t; and their gradient.
//
// Tiling: a thread has a column of a matrix [n, n] and goes down it, so that neighbours touch neighbouring numbers; in
// `sums_left` a warp has a row. Limited by memory: n² numbers written, or read, written and read again in the backward
// pass.

KERNEL(segsum)(const S* x, S* y, real above, i64 columns, i64 n) {
    for (i64 i = thread(); i < columns; i += threads()) {
        const i64 m = divide(i, n), s = i - m * n;
        const S* row = x + m * n;
        S* column = y + m * n * n + s;
        for (i64 t = 0; t < s; t++) st(column + t * n, above);
        double sum = 0; // of thousands of roundings to a float the same way
        st(column + s * n, real(0));
        for (i64 t = s + 1; t < n; t++) {
            sum += ld(row + t);
            st(column + t * n, (real)sum);
        }
    }
}

// sums_us = Σ g_ts over t ≥ u, for s < u.
KERNEL(sums_from_below)(const S* g, real* sums, i64 columns, i64 n) {
    for (i64 i = thread(); i < columns; i += threads()) {
        const i64 m = divide(i, n), s = i - m * n, at = m * n * n + s;
        real sum = 0;
        for (i64 u = n - 1; u > s; u--) {
            sum += ld(g + at + u * n);
            sums[at + u * n] = sum;
        }
    }
}

// d_u (+)= Σ sums_us over s < u.
KERNEL(sums_left)(const real* sums, S* d, int acc, i64 rows, i64 n) {
    for (i64 row = thread() / 32; row < rows; row += threads() / 32) {
        const i64 u = row - divide(row, n) * n;
        real sum = 0;
        for (i64 s = threadIdx.x % 32; s < u; s += 32) sum += sums[row * n + s];
        sum = warp_sum(sum);
        if (threadIdx.x % 32 == 0) put(d + row, sum, acc);
    }
}
