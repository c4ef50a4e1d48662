// What the engine itself does with tensors. Each reads and writes every element once, a thread takes every
// threads()-th of them: neighbouring threads touch neighbouring elements.

// x = value
extern "C" __global__ void fill(S* x, real value, i64 n) {
    for (i64 i = thread(); i < n; i += threads()) st(x + i, value);
}

// a += b
extern "C" __global__ void add_into(S* a, const S* b, i64 n) {
    map(a, 1, n, [&](i64 i) { return ld(b + i); });
}

// found = 1 if any element is infinite or NaN. Every thread that writes writes the same, so the order is no matter.
extern "C" __global__ void any_not_finite(const S* x, i64 n, int* found) {
    bool bad = false;
    for (i64 i = thread(); i < n; i += threads()) bad |= !is_finite(ld(x + i));
    if (__syncthreads_or(bad) && threadIdx.x == 0) atomicOr(found, 1);
}
