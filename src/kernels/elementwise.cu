// y = f(x) and dx = dy f'(x) for every function of elementwise.rs. Their formulas are compiled from the text of that
// file: behind this file come, for each function, a struct with f and df and two kernels.
//
// Tiling: thread i takes elements i, i + threads, …: neighbours touch neighbouring addresses. Limited by memory:
// forward moves 2 numbers an element, backward 4 (x, y, dy, dx), 5 where dx is added to.

template <class F>
__device__ void map_forward(const S* x, S* y, i64 n) {
    map(y, 0, n, [&](i64 i) { return F::f(ld(x + i)); });
}

template <class F>
__device__ void map_backward(const S* x, const S* y, const S* dy, S* dx, int acc, i64 n) {
    map(dx, acc, n, [&](i64 i) { return ld(dy + i) * F::df(ld(x + i), ld(y + i)); });
}
