// Causal attention by tiles of C queries and C keys, with an online softmax (Dao et al. 2022; Milakov and Gimelshein
// 2018); backwards the tiles of P are computed again from lse. The equations stand in attention.rs.
//
// Tiling: forward a block has a tile of queries and of columns of o and goes over the keys that its last query sees;
// for dk and dv a block has a tile of keys and goes over the queries that see its first; for dq it is as forward. So
// every sum has one owner and one order, for 7 products a pair of tiles backwards where adding up dq across blocks
// would do with 5. Late queries see most keys: their blocks come first. Blocks of 256 threads (tiles.cuh), one C x C
// matrix in shared memory. Operations: T S (K + V) forward, T S (3 K + 2 V) 1.4 backward; memory: q, o once, k and v
// once for each tile of queries, from L2 where a head's fit there.

using namespace tiled;

// Queries, keys, heads, widths and B H.
struct Sizes { i64 t, s, h, k, v, heads; };

// Element (row t0 + r, j) of head i of x [B, n, H, width]; 0 beyond the edges.
struct Rows {
    i64 first, apart, left;

    __device__ Rows(i64 n, i64 h, i64 head, i64 start) {
        first = (head / h * n + start) * h + head % h;
        apart = h;
        left = n - start;
    }
    __device__ i64 at(i64 r) const { return first + r * apart; }
    __device__ real get(const S* x, i64 width, i64 r, i64 j) const {
        return r < left && j < width ? ld(x + at(r) * width + j) : real(0);
    }
};

// lse = top + log in two numbers. bf16 has too few digits for either: what is left of the sum by rounding stands behind
// all of it.
__device__ inline void save(S* lse, i64 i, i64 size, real top, real log) {
    st(lse + i, sizeof(S) == 2 ? top + log : top);
    st(lse + size + i, sizeof(S) == 2 ? top + log - ld(lse + i) : log);
}
// x − lse
__device__ inline real less(real x, const S* lse, i64 i, i64 size) {
    return sizeof(S) == 2 ? x - (ld(lse + i) + ld(lse + size + i)) : x - ld(lse + i) - ld(lse + size + i);
}

// Which head and tiles a block has: of `across` columns fastest, then of heads, the last tile of `down` rows first.
struct Place {
    i64 column, head, row;

    __device__ Place(i64 across, i64 heads, i64 down) {
        column = blockIdx.x % across;
        head = blockIdx.x / across % heads;
        row = down - 1 - blockIdx.x / across / heads;
    }
};

template <int R>
__device__ void forward(const S* q, const S* k, const S* v, S* o, S* lse, real scale, Sizes d) {
    real* memory = dynamic_memory();
    constexpr int C = Tile<R>::C, MLD = Tile<R>::MLD;
    real* m = memory + Tile<R>::SCRATCH;
    const Place at(tiles(d.v, C), d.heads, tiles(d.t, C));
    const i64 c0 = at.column * C, t0 = at.row * C, before = d.s - d.t;
    const Rows queries(d.t, d.h, at.head, t0);
    const i64 seen = before + (t0 + C < d.t ? t0 + C : d.t);
    constexpr int ROWS = Tile<R>::ROWS, COLS = Tile<R>::COLS;
    // The largest score of a row, and the sum of what this thread holds of it.
    Tile<R> y;
    real top[ROWS], sum[ROWS];
    for (int i = 0; i < ROWS; i++) top[i] = -INF, sum[i] = 0;
    for (i64 s0 = 0; s0 < seen; s0 += C) {
        const Rows keys(d.s, d.h, at.head, s0);
        Tile<R> x;
        x.template add<1, 1>(
            memory, (int)d.k, [&](int r, int i) { return scale * queries.get(q, d.k, r, i); },
            [&](int i, int c) { return keys.get(k, d.k, c, i); });
        real best[ROWS];
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            best[i] = -INF;
#pragma unroll
            for (int j = 0; j < COLS; j++) {
                const i64 t = t0 + x.row(i);
                if (t >= d.t || s0 + x.col(j) > before + t) x.v[i][j] = -INF;
                best[i] = fmax(best[i], x.v[i][j]);
            }
        }
        x.across_max(best, memory);
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            // A row beyond the last query sees nothing: 0 stands for its -INF.
            const real now = fmax(fmax(top[i], best[i]), -LARGEST), fade = exp(top[i] - now);
            top[i] = now;
            sum[i] *= fade;
#pragma unroll
            for (int j = 0; j < COLS; j++) {
                const real p = exp(x.v[i][j] - now);
                m[x.row(i) * MLD + x.col(j)] = p;
                sum[i] += p;
                y.v[i][j] *= fade;
            }
        }
        y.template add_lower<1, 0>(
            memory, (int)(seen - s0 < C ? seen - s0 : C), [&](int r, int s) { return m[r * MLD + s]; },
            [&](int s, int c) { return keys.get(v, d.v, s, c0 + c); }, before + t0 - s0);
    }
    y.across(sum, memory);
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        const i64 r = y.row(i);
        if (r >= queries.left) continue;
        if (c0 == 0 && y.col(0) == 0) save(lse, at.head * d.t + t0 + r, d.heads * d.t, top[i], log(sum[i]));
#pragma unroll
        for (int j = 0; j < COLS; j++) {
            const i64 c = c0 + y.col(j);
            if (c < d.v) st(o + queries.at(r) * d.v + c, y.v[i][j] / sum[i]);
        }
    }
}

// What the backward kernels read; delta [B, T, H] is Σ do o.
struct Saved {
    const S *q, *k, *v, *g, *lse;
    const real* delta;
    real scale;
};

// p ← exp(scale q·k − lse) and dx ← p (do·v − δ) for rows of queries and columns of keys.
template <int R>
__device__ void scores(Tile<R>& p, Tile<R>& dx, real* scratch, const Saved& x, const Sizes& d, i64 head, i64 t0,
                       i64 s0) {
    const Rows queries(d.t, d.h, head, t0), keys(d.s, d.h, head, s0);
    p.template add<1, 1>(
        scratch, (int)d.k, [&](int r, int i) { return x.scale * queries.get(x.q, d.k, r, i); },
        [&](int i, int c) { return keys.get(x.k, d.k, c, i); });
    dx.template add<1, 1>(
        scratch, (int)d.v, [&](int r, int j) { return queries.get(x.g, d.v, r, j); },
        [&](int j, int c) { return keys.get(x.v, d.v, c, j); });
#pragma unroll
    for (int i = 0; i < Tile<R>::ROWS; i++) {
        const i64 r = p.row(i), t = t0 + r;
        const bool here = t < d.t;
        const real delta = here ? x.delta[queries.at(r)] : real(0);
#pragma unroll
        for (int j = 0; j < Tile<R>::COLS; j++) {
            const i64 s = s0 + p.col(j);
            const bool sees = here && s <= d.s - d.t + t;
            p.v[i][j] = sees ? exp(less(p.v[i][j], x.lse, head * d.t + t, d.heads * d.t)) : real(0);
            dx.v[i][j] = p.v[i][j] == 1.0 ? real(0.0) : p.v[i][j] * (dx.v[i][j] - delta);
        }
    }
}

template <int R>
__device__ void keep(real* m, Tile<R>& x) {
    x.each([&](int r, int c, real y) { m[r * Tile<R>::MLD + c] = y; });
}

// dq = scale dX K
template <int R>
__device__ void queries(const Saved& x, S* dq, int acc, const Sizes& d) {
    real* memory = dynamic_memory();
    constexpr int C = Tile<R>::C, MLD = Tile<R>::MLD;
    real* m = memory + Tile<R>::SCRATCH;
    const Place at(tiles(d.k, C), d.heads, tiles(d.t, C));
    const i64 c0 = at.column * C, t0 = at.row * C;
    const Rows rows(d.t, d.h, at.head, t0);
    const i64 seen = d.s - d.t + (t0 + C < d.t ? t0 + C : d.t);
    Tile<R> y;
    for (i64 s0 = 0; s0 < seen; s0 += C) {
        const Rows keys(d.s, d.h, at.head, s0);
        Tile<R> p, dx;
        scores(p, dx, memory, x, d, at.head, t0, s0);
        keep(m, dx);
        y.template add<1, 0>(
            memory, (int)(seen - s0 < C ? seen - s0 : C), [&](int r, int s) { return m[r * MLD + s]; },
            [&](int s, int c) { return keys.get(x.k, d.k, s, c0 + c); });
    }
    y.each([&](int r, int c, real v) {
        if (r < rows.left && c0 + c < d.k) put(dq + rows.at(r) * d.k + c0 + c, x.scale * v, acc);
    });
}

// dk = scale dXᵀ Q and dv = Pᵀ dO
template <int R>
__device__ void keys(const Saved& x, S* dk, int k_acc, S* dv, int v_acc, const Sizes& d) {
    real* memory = dynamic_memory();
    constexpr int C = Tile<R>::C, MLD = Tile<R>::MLD;
    real* m = memory + Tile<R>::SCRATCH;
    const Place at(tiles(d.k > d.v ? d.k : d.v, C), d.heads, tiles(d.s, C));
    const i64 c0 = at.column * C, row = tiles(d.s, C) - 1 - at.row, s0 = row * C, before = d.s - d.t;
    const Rows rows(d.s, d.h, at.head, s0);
    const auto kept = [&](int s, int t) { return m[t * MLD + s]; };
    Tile<R> yk, yv;
    for (i64 t0 = s0 > before ? (s0 - before) / C * C : 0; t0 < d.t; t0 += C) {
        const Rows queries(d.t, d.h, at.head, t0);
        const int n = (int)(queries.left < C ? queries.left : C);
        Tile<R> p, dx;
        scores(p, dx, memory, x, d, at.head, t0, s0);
        if (c0 < d.v) {
            keep(m, p);
            yv.template add<0, 0>(memory, n, kept, [&](int t, int c) { return queries.get(x.g, d.v, t, c0 + c); });
        }
        if (c0 < d.k) {
            keep(m, dx);
            yk.template add<0, 0>(memory, n, kept, [&](int t, int c) { return queries.get(x.q, d.k, t, c0 + c); });
        }
    }
    if (dk)
        yk.each([&](int r, int c, real v) {
            if (r < rows.left && c0 + c < d.k) put(dk + rows.at(r) * d.k + c0 + c, x.scale * v, k_acc);
        });
    if (dv)
        yv.each([&](int r, int c, real v) {
            if (r < rows.left && c0 + c < d.v) put(dv + rows.at(r) * d.v + c0 + c, v, v_acc);
        });
}

#define KERNELS(R)                                                                                                   \
    TILED_KERNEL forward_##R(const S* q, const S* k, const S* v, S* o, S* lse, real scale, Sizes d) {                \
        forward<R>(q, k, v, o, lse, scale, d);                                                                       \
    }                                                                                                                \
    TILED_KERNEL queries_##R(const S* q, const S* k, const S* v, const S* g, const S* lse, const real* delta,        \
        S* dq, int acc, real scale, Sizes d) {                                                                       \
        queries<R>(Saved{q, k, v, g, lse, delta, scale}, dq, acc, d);                                                \
    }                                                                                                                \
    TILED_KERNEL keys_##R(const S* q, const S* k, const S* v, const S* g, const S* lse, const real* delta, S* dk,    \
        int k_acc, S* dv, int v_acc, real scale, Sizes d) {                                                          \
        keys<R>(Saved{q, k, v, g, lse, delta, scale}, dk, k_acc, dv, v_acc, d);                                      \
    }
KERNELS(1)
KERNELS(2)
KERNELS(4)

// delta [B, T, H] = Σ do o: a warp to a row.
extern "C" __global__ void deltas(const S* o, const S* g, real* delta, i64 rows, i64 v) {
    for (i64 r = thread() / 32; r < rows; r += threads() / 32) {
        real sum = 0;
        for (i64 j = threadIdx.x % 32; j < v; j += 32) sum += ld(o + r * v + j) * ld(g + r * v + j);
        sum = warp_sum(sum);
        if (threadIdx.x % 32 == 0) delta[r] = sum;
    }
}
