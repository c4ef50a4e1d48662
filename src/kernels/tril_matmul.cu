// The kernels around the product of a lower-triangular matrix and b, which is cuBLAS's: b without the numbers that are
// not finite, and these numbers added to the rows that see them.
//
// Tiling: a thread an element; then one a column of b, so that neighbours read neighbouring numbers. Limited by memory:
// b is read twice and written once; only where it is not finite is more to do.

KERNEL(finite_part)(const S* x, S* y, i64 n) {
    map(y, 0, n, [&](i64 i) {
        const real v = ld(x + i);
        return is_finite(v) ? v : real(0);
    });
}

// y += a b, or aᵀ b with `back`, for the numbers of b that are not finite, and the rows that see them: row i of
// a [rows, cols], zero elsewhere, shows columns 0..=i + past.
KERNEL(add_not_finite)(const S* a, const S* b, S* y, i64 columns, i64 width, i64 rows, i64 cols,
    i64 past, int back) {
    const i64 from = back ? rows : cols, to = back ? cols : rows;
    for (i64 at = thread(); at < columns; at += threads()) {
        const i64 m = divide(at, width), c = at - m * width;
        const S* x = b + m * from * width + c;
        for (i64 j = 0; j < from; j++) {
            const real v = ld(x + j * width);
            if (is_finite(v)) continue;
            const i64 first = back || j < past ? 0 : j - past, end = back && j + past + 1 < to ? j + past + 1 : to;
            for (i64 i = first; i < end; i++) {
                S* sum = y + (m * to + i) * width + c;
                st(sum, ld(sum) + ld(a + m * rows * cols + (back ? j * cols + i : i * cols + j)) * v);
            }
        }
    }
}
