// X = (I + stril(L))⁻¹ R for matrices L [n, n] and R [n, cols], or with the transpose; and the last step of L's
// gradient, −stril(dR Xᵀ), whose product is cuBLAS's.
//
// Tiling: a warp has 32 columns, a thread one of them, which it finds by substitution from the first row down, or with
// the transpose from the last one up: x_i = r_i − Σ_{j<i} L_ij x_j. Columns do not depend on each other, so nobody
// waits. X lies in `room` in full precision; neighbouring threads use neighbouring numbers, L_ij is read by all at
// once. Moves n² + 2 n cols numbers and does n² cols operations.

KERNEL(unit_lower_solve)(const S* l, const S* r, real* room, S* x, S* more, int acc, i64 n, i64 cols,
    int back) {
    const i64 across = (cols + 31) / 32, m = blockIdx.x / across, c = blockIdx.x % across * 32 + threadIdx.x;
    if (c >= cols) return;
    l += m * n * n;
    const i64 column = m * n * cols + c;
    for (i64 step = 0; step < n; step++) {
        const i64 i = back ? n - 1 - step : step, first = back ? i + 1 : 0, last = back ? n : i;
        real sum = ld(r + column + i * cols);
#pragma unroll 8
        for (i64 j = first; j < last; j++) sum -= ld(l + (back ? j * n + i : i * n + j)) * room[column + j * cols];
        room[column + i * cols] = sum;
        st(x + column + i * cols, sum);
        if (more) put(more + column + i * cols, sum, acc);
    }
}

// d (+)= −stril(a)
KERNEL(minus_stril)(const S* a, S* d, int acc, i64 size, i64 n) {
    map(d, acc, size, [&](i64 k) {
        const i64 row = divide(k, n), j = k - row * n, i = row - divide(row, n) * n;
        return j < i ? -ld(a + k) : real(0);
    });
}
