#line 2 "src/kernels/lstm/steps.cu"
// The recurrences a step at a time, for weights that do not fit on the device: a kernel here and a matrix product, by
// cuBLAS, for each. A thread has a cell, whose state lies in `state` [STATES, B D] between launches. A step moves the
// numbers of block.cu, the product's 4 D B twice, and all weights.

template <class Cell>
__device__ void keep(Cell& cell, real* state, i64 i, i64 n) {
#pragma unroll
    for (int j = 0; j < Cell::STATES; j++) state[j * n + i] = cell.s[j];
}
template <class Cell>
__device__ void resume(Cell& cell, const real* state, i64 i, i64 n) {
#pragma unroll
    for (int j = 0; j < Cell::STATES; j++) cell.s[j] = state[j * n + i];
}

template <class Cell>
__device__ void begin(Cell cell, real* state, i64 n) {
    const i64 i = thread();
    if (i >= n) return;
    cell.end(i, cell.begin(i));
    keep(cell, state, i, n);
}

// z [B, 4D] is the product with h of the step before.
template <class Cell>
__device__ void step(Cell cell, const S* x, const S* z, real* state, S* hs, i64 s, i64 b, i64 t, i64 d) {
    const i64 i = thread(), at = i / d, j = i % d, row = at * t + s;
    if (i >= b * d) return;
    resume(cell, state, i, b * d);
    real sum[4];
#pragma unroll
    for (int g = 0; g < 4; g++) sum[g] = ld(x + (row * 4 + g) * d + j) + ld(z + (at * 4 + g) * d + j);
    const real h = cell.step(sum, row, j);
    st(hs + row * d + j, h);
    keep(cell, state, i, b * d);
    if (s == t - 1) cell.end(i, h);
}

// s = t − 1 at the first launch, the last step in time, and −1 after the last launch; dh [B, D] is the product of dz of
// step s + 1.
template <class Cell>
__device__ void step_back(Cell cell, const S* dh, real* state, S* dz, i64 s, i64 b, i64 t, i64 d) {
    const i64 i = thread(), at = i / d, j = i % d;
    if (i >= b * d) return;
    real g = cell.begin(i);
    if (s < t - 1) {
        resume(cell, state, i, b * d);
        g = ld(dh + i);
    }
    if (s < 0) {
        cell.end(i, g);
        return;
    }
    real out[4];
    cell.fetch(at * t + s, j, s == 0, i);
    cell.step(g, out, [] {});
#pragma unroll
    for (int k = 0; k < 4; k++) st(dz + ((at * t + s) * 4 + k) * d + j, out[k]);
    keep(cell, state, i, b * d);
}

// h of the step before, [B, T, D]: the other factor of the weights' gradient.
KERNEL(before)(const S* h0, const S* h, S* y, i64 size, i64 t, i64 d) {
    for (i64 i = thread(); i < size; i += threads()) y[i] = i / d % t == 0 ? h0[i / d / t * d + i % d] : h[i - d];
}

