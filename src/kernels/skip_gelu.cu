// o = gelu(y + d x) for rows of n numbers, and its gradients; dd is the sum over the rows of `products`, which is
// linear.cu's.
//
// Tiling: one thread an element, grid-stride: neighbours touch neighbouring addresses, and d stays in a cache. Limited
// by memory: forward moves 3 numbers an element, backward 6 (y, x, do; dy, dx, products), one more for each gradient
// that is added to.

extern "C" __global__ void skip_gelu_forward(const S* y, const S* d, const S* x, S* o, i64 size, i64 n) {
    map(o, 0, size, [&](i64 i) {
        return gelu_tanh(ld(y + i) + ld(d + i - divide(i, n) * n) * ld(x + i));
    });
}

extern "C" __global__ void skip_gelu_backward(const S* y, const S* d, const S* x, const S* g, S* dy, int acc_y, S* dx,
                                              int acc_x, S* products, i64 size, i64 n) {
    for (i64 i = thread(); i < size; i += threads()) {
        const real scale = ld(d + i - divide(i, n) * n), skipped = ld(x + i), sum = ld(y + i) + scale * skipped;
        const real ds = ld(g + i) * gelu_tanh_slope(sum);
        if (dy) put(dy + i, ds, acc_y);
        if (dx) put(dx + i, ds * scale, acc_x);
        if (products) st(products + i, ds * skipped);
    }
}
