// Kernels of the engine itself, for tensors. Each reads and writes every element once, a thread takes every
// threads()-th of them: neighbouring threads touch neighbouring elements.

// x = value
KERNEL(fill)(S* x, real value, i64 n) {
    for (i64 i = thread(); i < n; i += threads()) st(x + i, value);
}

// y = x or y += x, in whatever type y is stored.
template <class P>
__device__ inline void convert(const S* x, P* y, int acc, i64 n) {
    each(n, [&](i64 i) { return acc ? ld(y + i) + ld(x + i) : ld(x + i); }, [&](i64 i, decltype(ld(y)) v) { st(y + i, v); });
}
KERNEL(to_f32)(const S* x, float* y, int acc, i64 n) { convert(x, y, acc, n); }
KERNEL(to_f64)(const S* x, double* y, int acc, i64 n) { convert(x, y, acc, n); }
KERNEL(to_bf16)(const S* x, bf16* y, int acc, i64 n) { convert(x, y, acc, n); }

// found = 1 if any element is infinite or NaN. Every thread that writes writes the same, so the order is no matter.
KERNEL(any_not_finite)(const S* x, i64 n, int* found) {
    bool bad = false;
    for (i64 i = thread(); i < n; i += threads()) bad |= !is_finite(ld(x + i));
    if (__syncthreads_or(bad) && threadIdx.x == 0) atomicOr(found, 1);
}
