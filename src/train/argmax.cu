// The answers of a classifier: for each row of the logits `[rows, classes]`, the index of the largest (the first of
// equals), or −1 where a logit is not finite. A warp takes a row, its lanes side by side; every logit is read once.

KERNEL(argmax)(const S* logits, int* said, i64 rows, i64 classes) {
    const int lane = threadIdx.x % 32;
    const i64 warps = threads() / 32;
    // The bound is the same for a whole warp, so all lanes meet in the exchange.
    for (i64 row = thread() / 32; row < rows; row += warps) {
        real best = -INF;
        int at = 0x7fffffff, bad = 0;
        for (i64 i = lane; i < classes; i += 32) {
            const real x = ld(logits + row * classes + i);
            bad |= !is_finite(x);
            if (x > best) {
                best = x;
                at = (int)i;
            }
        }
        for (int o = 16; o > 0; o >>= 1) {
            const real other = __shfl_xor_sync(0xffffffffu, best, o);
            const int there = __shfl_xor_sync(0xffffffffu, at, o);
            bad |= __shfl_xor_sync(0xffffffffu, bad, o);
            if (other > best || (other == best && there < at)) {
                best = other;
                at = there;
            }
        }
        if (lane == 0) said[row] = bad ? -1 : at;
    }
}
