// Linear attention in chunks of C steps, every chunk of every head at once (the equations stand in chunk.rs).
//
// Only the states depend on earlier chunks, so they come first: what each chunk adds (states), then running sums
// over the chunks of a head (scan, in order: the same result whatever the grid). Everything else is products of a
// chunk's own rows and the state before it, and the gradient of the one after it:
//
//   forward    states(k, v̂), scan, outputs                     backward    states, scan; cotangents, states(q, dô),
//                                                                            scan from the end, keys, values
//
// Tiling: a block of 256 threads has a tile of C x C numbers of one chunk (tiles.cuh): of P or dP in shared memory
// first, then of an output. With B H T / C chunks times the tiles of a row there are blocks enough for a GPU. Memory:
// q, k, v, o and 3 K W / C numbers a step for the states; operations: 2 (C (K + W) + 2 K W) a step forward, where the
// states take a read and a write more than one block going from chunk to chunk would.

using namespace tiled;

// v̂ = [v, 1] or dô = [do / den, −(do·o) / den]: [B, T, H, W], of which only the V first columns are in memory.
struct Wide {
    const S *x, *den;
    const real* last;
    i64 v, w;

    __device__ real get(const Steps& t, int s, i64 j) const {
        if (s >= t.n || j >= w) return 0;
        const i64 row = t.at(s);
        if (j >= v) return last ? last[row] : real(1);
        if (!x) return 0;
        const real y = ld(x + row * v + j);
        return den ? y / ld(den + row) : y;
    }
};

// h [chunk of head, K, W] = scale Aᵀ Y for the rows of a chunk.
template <int R>
__device__ void states(const S* a, real scale, Wide y, real* h, Dims d) {
    extern __shared__ __align__(16) real memory[];
    constexpr int C = Tile<R>::C;
    const i64 across = tiles(d.w, C), down = tiles(d.k, C);
    const i64 c0 = blockIdx.x % across * C, r0 = blockIdx.x / across % down * C;
    const Steps t(d, blockIdx.x / across / down);
    Tile<R> sum;
    sum.template add<0, 0>(
        memory, t.n, [&](int r, int s) { return scale * t.get(a, d.k, s, r0 + r); },
        [&](int s, int c) { return y.get(t, s, c0 + c); });
    sum.each([&](int r, int c, real x) {
        if (r0 + r < d.k && c0 + c < d.w) h[(t.id * d.k + r0 + r) * d.w + c0 + c] = x;
    });
}

// m = tril(A Bᵀ), a C x C matrix in shared memory for Tile::add to read, for operands a(step, k) and b(step, k).
template <int R, class A, class B>
__device__ void lower_product(real* m, real* scratch, int depth, A a, B b) {
    Tile<R> p;
    p.template add<1, 1>(scratch, depth, [&](int r, int k) { return a(r, k); }, [&](int k, int c) { return b(c, k); });
    p.each([&](int r, int c, real x) { m[r * Tile<R>::MLD + c] = c <= r ? x : real(0); });
}

template <int R>
__device__ void outputs(const S* q, const S* k, const S* v, const real* h, S* o, S* den, real scale, real eps, Dims d) {
    extern __shared__ __align__(16) real memory[];
    constexpr int C = Tile<R>::C, MLD = Tile<R>::MLD;
    real *m = memory + Tile<R>::SCRATCH, *dens = m + Tile<R>::MATRIX;
    const i64 across = tiles(d.v > 0 ? d.v : 1, C), c0 = blockIdx.x % across * C;
    const Steps t(d, blockIdx.x / across);
    const auto query = [&](int r, int i) { return scale * t.get(q, d.k, r, i); };
    lower_product<R>(m, memory, (int)d.k, query, [&](int s, int i) { return t.get(k, d.k, s, i); });
    Tile<R> y;
    y.template add<1, 0>(memory, (int)d.k, query, [&](int i, int c) { return state(h, d, t.id, i, c0 + c); });
    y.template add<1, 0>(
        memory, t.n, [&](int r, int s) { return m[r * MLD + s]; },
        [&](int s, int c) { return t.get(v, d.v, s, c0 + c); });
    if (den) {
        // q·z and the sum of a row of P, a warp to a row.
        for (int r = threadIdx.x / 32; r < C; r += 8) {
            real sum = 0;
            for (int s = threadIdx.x % 32; s < t.n; s += 32) sum += m[r * MLD + s];
            for (int i = threadIdx.x % 32; i < d.k; i += 32) sum += query(r, i) * state(h, d, t.id, i, d.v);
            sum = warp_sum(sum) + eps;
            if (threadIdx.x % 32 == 0) {
                dens[r] = sum;
                if (c0 == 0 && r < t.n) st(den + t.at(r), sum);
            }
        }
        __syncthreads();
    }
    y.each([&](int r, int c, real x) {
        if (r < t.n && c0 + c < d.v) st(o + t.at(r) * d.v + c0 + c, den ? x / dens[r] : x);
    });
}

// dq = scale (dÔ Ŝᵀ + dP K) and dk = dPᵀ Q + V̂ dŜᵀ.
template <int R>
__device__ void keys(const S* q, const S* k, Wide v, Wide g, const real* h, const real* dh, S* dq, int q_acc, S* dk,
                     int k_acc, real scale, Dims d) {
    extern __shared__ __align__(16) real memory[];
    constexpr int C = Tile<R>::C, MLD = Tile<R>::MLD;
    real* m = memory + Tile<R>::SCRATCH;
    const i64 across = tiles(d.k, C), c0 = blockIdx.x % across * C;
    const Steps t(d, blockIdx.x / across);
    const int w = (int)d.w;
    const auto value = [&](int s, int j) { return v.get(t, s, j); };
    const auto cotangent = [&](int s, int j) { return g.get(t, s, j); };
    lower_product<R>(m, memory, w, cotangent, value);
    if (dq) {
        Tile<R> y;
        y.template add<1, 1>(memory, w, cotangent, [&](int j, int c) { return state(h, d, t.id, c0 + c, j); });
        y.template add<1, 0>(
            memory, t.n, [&](int r, int s) { return m[r * MLD + s]; },
            [&](int s, int c) { return t.get(k, d.k, s, c0 + c); });
        y.each([&](int r, int c, real x) {
            if (r < t.n && c0 + c < d.k) put(dq + t.at(r) * d.k + c0 + c, scale * x, q_acc);
        });
    }
    if (dk) {
        Tile<R> y;
        y.template add<0, 0>(
            memory, t.n, [&](int r, int s) { return m[s * MLD + r]; },
            [&](int s, int c) { return scale * t.get(q, d.k, s, c0 + c); });
        y.template add<1, 1>(memory, w, value, [&](int j, int c) { return state(dh, d, t.id, c0 + c, j); });
        y.each([&](int r, int c, real x) {
            if (r < t.n && c0 + c < d.k) put(dk + t.at(r) * d.k + c0 + c, x, k_acc);
        });
    }
}

// dv = Pᵀ dÔ + K dS, without the column of ones.
template <int R>
__device__ void values(const S* q, const S* k, Wide g, const real* dh, S* dv, int acc, real scale, Dims d) {
    extern __shared__ __align__(16) real memory[];
    constexpr int C = Tile<R>::C, MLD = Tile<R>::MLD;
    real* m = memory + Tile<R>::SCRATCH;
    const i64 across = tiles(d.v, C), c0 = blockIdx.x % across * C;
    const Steps t(d, blockIdx.x / across);
    const auto key = [&](int s, int i) { return t.get(k, d.k, s, i); };
    lower_product<R>(m, memory, (int)d.k, [&](int s, int i) { return scale * t.get(q, d.k, s, i); }, key);
    Tile<R> y;
    y.template add<0, 0>(
        memory, t.n, [&](int r, int s) { return m[s * MLD + r]; },
        [&](int s, int c) { return g.get(t, s, c0 + c); });
    y.template add<1, 0>(memory, (int)d.k, key, [&](int i, int c) { return state(dh, d, t.id, i, c0 + c); });
    y.each([&](int r, int c, real x) {
        if (r < t.n && c0 + c < d.v) put(dv + t.at(r) * d.v + c0 + c, x, acc);
    });
}

#define KERNELS(R)                                                                                                   \
    TILED_KERNEL values_states_##R(const S* k, const S* v, real* h, Dims d) {                                        \
        states<R>(k, 1, Wide{v, nullptr, nullptr, d.v, d.w}, h, d);                                                  \
    }                                                                                                                \
    TILED_KERNEL cotangents_states_##R(const S* q, const S* g, const S* den, const real* last, real* h,              \
        real scale, Dims d) {                                                                                        \
        states<R>(q, scale, Wide{g, den, last, d.v, d.w}, h, d);                                                     \
    }                                                                                                                \
    TILED_KERNEL outputs_##R(const S* q, const S* k, const S* v, const real* h, S* o, S* den, real scale,            \
        real eps, Dims d) {                                                                                          \
        outputs<R>(q, k, v, h, o, den, scale, eps, d);                                                               \
    }                                                                                                                \
    TILED_KERNEL keys_##R(const S* q, const S* k, const S* v, const S* g, const S* den, const real* last,            \
        const real* h, const real* dh, S* dq, int q_acc, S* dk, int k_acc, real scale, Dims d) {                     \
        const Wide ones{v, nullptr, nullptr, d.v, d.w}, cotangents{g, den, last, d.v, d.w};                          \
        keys<R>(q, k, ones, cotangents, h, dh, dq, q_acc, dk, k_acc, scale, d);                                      \
    }                                                                                                                \
    TILED_KERNEL values_##R(const S* q, const S* k, const S* g, const S* den, const real* last, const real* dh,      \
        S* dv, int acc, real scale, Dims d) {                                                                        \
        values<R>(q, k, Wide{g, den, last, d.v, d.w}, dh, dv, acc, scale, d);                                        \
    }
KERNELS(1)
KERNELS(2)
KERNELS(4)

// In place of what each chunk adds, the sum of what those before it do (after it, where `reverse`), starting from
// [s, z] or zeros; the sum of all is added to, or written over, [s_end, z_end]. A thread to an element of a state.
extern "C" __global__ void scan(real* h, const S* s, const S* z, S* s_end, int s_acc, S* z_end, int z_acc, i64 heads,
                                int reverse, Dims d) {
    for (i64 i = thread(); i < heads * d.k * d.w; i += threads()) {
        const i64 row = i / d.w, j = i % d.w, head = row / d.k, at = head * d.chunks * d.k * d.w + i % (d.k * d.w);
        real sum = j < d.v ? (s ? ld(s + row * d.v + j) : real(0)) : z ? ld(z + row) : real(0);
        for (i64 n = 0; n < d.chunks; n++) {
            real* x = h + at + (reverse ? d.chunks - 1 - n : n) * d.k * d.w;
            const real added = *x;
            *x = sum;
            sum += added;
        }
        if (j < d.v) {
            if (s_end) put(s_end + row * d.v + j, sum, s_acc);
        } else if (z_end) {
            put(z_end + row, sum, z_acc);
        }
    }
}

// last [B, T, H] = −(do·o) / den, or 0 without do: a warp to a row.
extern "C" __global__ void last_cotangent(const S* o, const S* g, const S* den, real* last, i64 rows, i64 v) {
    for (i64 r = thread() / 32; r < rows; r += threads() / 32) {
        real dot = 0;
        for (i64 j = threadIdx.x % 32; g && j < v; j += 32) dot += ld(o + r * v + j) * ld(g + r * v + j);
        dot = warp_sum(dot);
        if (threadIdx.x % 32 == 0) last[r] = -dot / ld(den + r);
    }
}
