// o = (y + d x) silu(z) for rows of n numbers, and its gradients; dd is the sum over the rows of `products`, which is
// linear.cu's.
//
// Tiling: one thread an element, grid-stride: neighbours touch neighbouring addresses, and d stays in a cache. Limited
// by memory: forward moves 4 numbers an element, backward 8 (y, x, z, do; dy, dx, dz, products), one more for each
// gradient that is added to.

KERNEL(gated_skip_forward)(const S* y, const S* d, const S* x, const S* z, S* o, i64 size, i64 n) {
    map(o, 0, size, [&](i64 i) {
        return (ld(y + i) + ld(d + i - divide(i, n) * n) * ld(x + i)) * silu(ld(z + i));
    });
}

KERNEL(gated_skip_backward)(const S* y, const S* d, const S* x, const S* z, const S* g, S* dy,
    int acc_y, S* dx, int acc_x, S* dz, int acc_z, S* products, i64 size,
    i64 n) {
    for (i64 i = thread(); i < size; i += threads()) {
        const real scale = ld(d + i - divide(i, n) * n), skipped = ld(x + i), gate = ld(z + i);
        const real slope = ld(g + i) * silu(gate), sum = ld(y + i) + scale * skipped;
        if (dz) put(dz + i, sum * ld(g + i) * silu_slope(gate), acc_z);
        if (dx) put(dx + i, slope * scale, acc_x);
        if (dy) put(dy + i, slope, acc_y);
        if (products) st(products + i, slope * skipped);
    }
}
