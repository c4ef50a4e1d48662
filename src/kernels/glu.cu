// y = a σ(b) for x = [a, b] along rows of 2 n numbers, and its gradient.
//
// Tiling: one thread an output element, grid-stride: neighbours touch neighbouring addresses of both halves. Limited
// by memory: forward moves 3 numbers an output, backward 6 (a is not read: y is), 8 where dx is added to.

KERNEL(glu_forward)(const S* x, S* y, i64 size, i64 n) {
    for (i64 i = thread(); i < size; i += threads()) {
        const S* a = x + i + i / n * n;
        st(y + i, ld(a) * sigmoid(ld(a + n)));
    }
}

KERNEL(glu_backward)(const S* x, const S* y, const S* dy, S* dx, int acc, i64 size, i64 n) {
    if (!dx) return;
    for (i64 i = thread(); i < size; i += threads()) {
        i64 j = i + i / n * n;
        real b = ld(x + j + n), g = ld(dy + i);
        put(dx + j, g * sigmoid(b), acc);
        put(dx + j + n, g * ld(y + i) * sigmoid(-b), acc);
    }
}
