// The short causal convolution y_t = b + Σⱼ w[:, j] ⊙ x_{t−W+1+j} of x [B, T, D], with the W − 1 inputs before it in
// state [B, W−1, D]; and all its gradients.
//
// Let row s of the input be row s of the state for s < W − 1 and row s − W + 1 of x otherwise. Then y_t sees rows
// t … t + W − 1, and backwards
//
//     d(row s) = Σⱼ w[:, j] ⊙ g_{s−j},    dw[:, j] = Σ_s (row s) ⊙ g_{s−j},    db = Σ_t g_t.
//
// Tiling: a thread has one channel and a piece of time, and slides a window of N inputs (or of N gradients) along it in
// registers; neighbours have neighbouring channels. Forward with at most 4 taps, where rows begin at multiples of 16
// bytes, a thread has the V channels of 16 bytes. More taps than N go in several launches, `from` the first of each, and
// add up. Sums over time stay in the thread, then go through shared memory to one row of `sums` a block row, [P, D W] and
// for the bias [P, D], which the caller adds up in order. Limited by memory: forward moves 2 numbers an element and
// (N − 1) / steps more from L2; backward reads x and g and writes dx, once. U rows are read while the rows before them
// are computed.

struct Sizes { i64 b, t, d, w; };

// Rows s, s + 1, … of V channels' input, of those before `end`, as they are in memory: to convert them is to wait for
// them. `xs` and `state` are where row 0 would be, `old` the rows of the state; zeros if it is null.
template <int V, int U>
__device__ inline void read_rows(Unconverted<S, V> (&v)[U], const S* xs, const S* state, i64 d, i64 old, i64 s, i64 end) {
    const S* at = xs + s * d;
    const auto pack = [](const S* from) { return *(const Unconverted<S, V>*)from; };
    if (s >= old && s + U <= end) {
#pragma unroll
        for (int u = 0; u < U; u++, at += d) v[u] = pack(at);
        return;
    }
#pragma unroll
    for (int u = 0; u < U; u++, at += d) {
        v[u] = {};
        if (s + u < end && s + u >= old) v[u] = pack(at);
        if (s + u < end && s + u < old && state) v[u] = pack(state + (s + u) * d);
    }
}

template <int N, int V>
__device__ void forward(const S* __restrict__ x, const S* __restrict__ w, const S* __restrict__ state,
                        const S* __restrict__ bias, S* __restrict__ y, Sizes z, i64 from, i64 steps) {
    constexpr int U = V > 1 ? 4 : 8;
    const i64 c = ((i64)blockIdx.x * blockDim.x + threadIdx.x) * V, pieces = (z.t + steps - 1) / steps;
    if (c >= z.d) return; // nobody waits below
    real taps[N][V], start[V];
#pragma unroll
    for (int i = 0; i < V; i++) {
#pragma unroll
        for (int j = 0; j < N; j++) taps[j][i] = from + j < z.w ? ld(w + (c + i) * z.w + from + j) : real(0);
        start[i] = bias ? ld(bias + c + i) : real(0);
    }
    for (i64 item = (i64)blockIdx.y * blockDim.y + threadIdx.y; item < z.b * pieces; item += (i64)gridDim.y * blockDim.y) {
        const i64 b = divide(item, pieces), t0 = (item - b * pieces) * steps, t1 = t0 + steps < z.t ? t0 + steps : z.t;
        const S *xs = x + (b * z.t - (z.w - 1)) * z.d + c, *ss = state + b * (z.w - 1) * z.d + c;
        // Rows behind the last one meet taps that are not there.
        const i64 old = z.w - 1, end = z.t + z.w - 1, last = t1 + from + N - 1 < end ? t1 + from + N - 1 : end;
        // The rows of a group of U steps, as they are in memory, and the next ones.
        Unconverted<S, V> rows[U + N - 1], ahead[U];
        read_rows<V, U>(ahead, xs, ss, z.d, old, t0 + from + N - 1, last);
        Unconverted<S, V> before[N - 1];
        read_rows<V, N - 1>(before, xs, ss, z.d, old, t0 + from, last);
#pragma unroll
        for (int j = 0; j < N - 1; j++) rows[U + j] = before[j];
        for (i64 t = t0; t < t1; t += U) {
#pragma unroll
            for (int j = 0; j < N - 1; j++) rows[j] = rows[U + j];
#pragma unroll
            for (int u = 0; u < U; u++) rows[N - 1 + u] = ahead[u];
            if (t + U < t1) read_rows<V, U>(ahead, xs, ss, z.d, old, t + U + from + N - 1, last);
            S* to = y + (b * z.t + t) * z.d + c;
            const int count = t1 - t < U ? (int)(t1 - t) : U;
#pragma unroll
            for (int u = 0; u < U; u++, to += z.d)
                if (u < count) {
                    real sum[V] = {};
#pragma unroll
                    for (int j = 0; j < N; j++) {
                        real in[V];
                        read(in, (const S*)(rows + u + j));
                        // Inputs that a tap does not meet may be infinite.
#pragma unroll
                        for (int i = 0; i < V; i++) sum[i] += from + j < z.w ? taps[j][i] * in[i] : real(0);
                    }
                    if (from > 0) read(start, to);
#pragma unroll
                    for (int i = 0; i < V; i++) sum[i] += start[i];
                    write(to, sum);
                }
        }
    }
}

template <int N>
__device__ void backward(const S* __restrict__ x, const S* __restrict__ w, const S* __restrict__ state,
                         const S* __restrict__ g, S* __restrict__ dx, int acc_x, S* __restrict__ dstate, int acc_s,
                         real* __restrict__ sums, Sizes z, i64 from, i64 steps) {
    constexpr int U = 8;
    __shared__ real part[N + 1][256];
    const int wide = blockDim.x, high = blockDim.y;
    const i64 c = (i64)blockIdx.x * wide + threadIdx.x, rows = z.t + z.w - 1, pieces = (rows + steps - 1) / steps;
    const bool on = c < z.d;
    real taps[N], window[N], dw[N], db = 0;
#pragma unroll
    for (int j = 0; j < N; j++) {
        taps[j] = on && from + j < z.w ? ld(w + c * z.w + from + j) : real(0);
        dw[j] = 0;
    }
    for (i64 item = (i64)blockIdx.y * high + threadIdx.y; on && item < z.b * pieces; item += (i64)gridDim.y * high) {
        const i64 b = divide(item, pieces), s0 = (item - b * pieces) * steps, s1 = s0 + steps < rows ? s0 + steps : rows;
        // The addresses of step 0 of g, and of row 0 of the input and of its gradients, if they were there.
        const S *gs = g + b * z.t * z.d + c, *xs = x + (b * z.t - (z.w - 1)) * z.d + c, *ss = state + b * (z.w - 1) * z.d + c;
        S *dxs = dx + (b * z.t - (z.w - 1)) * z.d + c, *dss = dstate + b * (z.w - 1) * z.d + c;
        // The next U gradients and rows.
        Unconverted<S, 1> ahead_g[U], ahead_x[U];
        const auto read = [&](i64 s) {
            read_rows<1, U>(ahead_g, gs - from * z.d, nullptr, z.d, from, s, s1 < z.t + from ? s1 : z.t + from);
            read_rows<1, U>(ahead_x, xs, ss, z.d, z.w - 1, s, sums ? s1 : s);
        };
#pragma unroll
        for (int j = 0; j < N; j++) {
            const i64 t = s0 - 1 - from - j;
            window[j] = t >= 0 && t < z.t ? ld(gs + t * z.d) : real(0);
        }
        read(s0);
        for (i64 s = s0; s < s1; s += U) {
            real gv[U], in[U];
#pragma unroll
            for (int u = 0; u < U; u++) {
                gv[u] = ld(ahead_g[u].v);
                in[u] = ld(ahead_x[u].v);
            }
            if (s + U < s1) read(s + U);
            S* at_dx = dxs + s * z.d;
            // If `inside`, all taps of all U rows meet a step.
            const auto step = [&](int u, bool inside) {
                const i64 r = s + u, t = r - from;
#pragma unroll
                for (int j = N - 1; j > 0; j--) window[j] = window[j - 1];
                window[0] = gv[u];
                db += window[0];
                real sum = 0;
#pragma unroll
                for (int j = 0; j < N; j++) {
                    // Inputs that a tap does not meet may be infinite.
                    const bool meets = inside || (t >= j && t - j < z.t);
                    sum += meets && from + j < z.w ? taps[j] * window[j] : real(0);
                    dw[j] += meets ? in[u] * window[j] : real(0);
                }
                if (!inside && r < z.w - 1) {
                    if (dstate) put(dss + r * z.d, sum, acc_s || from > 0);
                } else if (dx) {
                    put(at_dx + u * z.d, sum, acc_x || from > 0);
                }
            };
            if (s >= z.w - 1 && s - from >= N - 1 && s + U <= s1 && s + U - from <= z.t) {
#pragma unroll
                for (int u = 0; u < U; u++) step(u, true);
            } else {
#pragma unroll
                for (int u = 0; u < U; u++)
                    if (s + u < s1) step(u, false);
            }
        }
    }
    if (!sums) return; // the same for all
#pragma unroll
    for (int j = 0; j <= N; j++) part[j][threadIdx.y * wide + threadIdx.x] = j < N ? dw[j < N ? j : 0] : db;
    __syncthreads();
    for (int j = threadIdx.y; on && j <= N; j += high) {
        real sum = part[j][threadIdx.x];
        for (int i = 1; i < high; i++) sum += part[j][i * wide + threadIdx.x];
        if (j < N && from + j < z.w) sums[blockIdx.y * z.d * z.w + c * z.w + from + j] = sum;
        if (j == N && from == 0) sums[gridDim.y * z.d * z.w + blockIdx.y * z.d + c] = sum;
    }
}

#define CONV_FORWARD_KERNELS(NAME, N, V) \
    BOUND_KERNEL(conv_forward_##NAME, 256, N == 4 && (V == 1 || sizeof(real) == 4) ? 2 : 1)( \
        const S* __restrict__ x, const S* __restrict__ w, const S* __restrict__ state, const S* __restrict__ bias, \
        S* __restrict__ y, i64 b, i64 t, i64 d, i64 taps, i64 from, i64 steps) { \
        const Sizes z = {b, t, d, taps}; \
        forward<N, V>(x, w, state, bias, y, z, from, steps); \
    }
#define CONV_KERNELS(N) \
    CONV_FORWARD_KERNELS(N, N, 1) \
    BOUND_KERNEL(conv_backward_##N, 256, N == 4 && sizeof(real) == 4 ? 2 : 1)( \
        const S* __restrict__ x, const S* __restrict__ w, const S* __restrict__ state, const S* __restrict__ g, \
        S* __restrict__ dx, int acc_x, S* __restrict__ dstate, int acc_s, real* __restrict__ sums, i64 b, i64 t, i64 d, \
        i64 taps, i64 from, i64 steps) { \
        const Sizes z = {b, t, d, taps}; \
        backward<N>(x, w, state, g, dx, acc_x, dstate, acc_s, sums, z, from, steps); \
    }
CONV_FORWARD_KERNELS(packed_4, 4, 16 / sizeof(S))
CONV_KERNELS(4)
CONV_KERNELS(8)
