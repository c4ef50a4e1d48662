// Causal attention by tiles of C queries and C keys, with an online softmax (Dao et al. 2022; Milakov and Gimelshein
// 2018); backwards the tiles of P are computed again from lse. The equations stand in attention.rs.
//
// Tiling: forward a block has a tile of queries and of columns of o and goes over the keys that its last query sees;
// for dk and dv a block has a tile of keys and goes over the queries that see its first; for dq it is as forward. So
// every sum has one owner and one order, for 7 products a pair of tiles backwards where adding up dq across blocks
// would do with 5. Late queries see most keys: their blocks come first. Blocks of 256 threads (tiles.cuh), one C x C
// matrix in shared memory.
//
// With gates tiles of queries stand where those of keys do, so the first may have fewer, and a pair of tiles is one
// tile or is apart: the gates between key s and query t are those after s in its tile, those of the tiles in between,
// and those of the tile of t up to t. A block comes to the pairs of its tile from the nearest to the farthest, and adds
// up the gates in between as it goes. The gradient of gate u, Σ dx_ts over s < u ≤ t, is the sum of three, none of them
// a difference: over t in the tile of u (by who owns the queries, in `own`), over s in the tile of u and t beyond it
// (by who owns the keys, in `past`), and over both beyond it, for which there is a number for each pair of tiles,
// `pairs`.
//
// Operations: T S (K + V) forward, T S (3 K + 2 V) 1.4 backward; memory: q, o once, k and v
// once for each tile of queries, from L2 where a head's fit there.

using namespace tiled;

// Queries, keys, heads, widths and B H.
struct Sizes { i64 t, s, h, k, v, heads; };

// Element (row t0 + r, j) of head i of x [B, n, H, width]; 0 beyond the edges, and in rows before `low`.
struct Rows {
    i64 first, apart, left, low;

    __device__ Rows(i64 n, i64 h, i64 head, i64 start, i64 low = 0) {
        first = (head / h * n + start) * h + head % h;
        apart = h;
        left = n - start;
        this->low = low;
    }
    __device__ i64 at(i64 r) const { return first + r * apart; }
    __device__ bool has(i64 r) const { return r >= low && r < left; }
    __device__ real get(const S* x, i64 width, i64 r, i64 j) const {
        return has(r) && j < width ? ld(x + at(r) * width + j) : real(0);
    }
};

// The logarithms of gates g [B, S, H], and sums of them of each head [B H, S]: of those after a key in its tile, and of
// those of a tile up to a key.
struct Gates {
    const S* g;
    const real *after, *upto;
};

// Numbers in shared memory beside a matrix: the gates of a tile, a number for each of its rows and one for each warp.
template <int R>
struct Room {
    real *gates, *rows, *warps;
    __device__ Room(real* m) : gates(m + Tile<R>::MATRIX), rows(gates + Tile<R>::C), warps(rows + Tile<R>::C) {}
};

// What gates add to the scores of a block's pairs of tiles.
template <int R, bool GATED>
struct Fade {
    const Gates& x;
    const Sizes& d;
    i64 head;
    const real* own;
    // The gates of the tiles between the two of the pair.
    double between = 0;

    // The gates of the block's tile, whose first key is s0, are in shared memory behind the next barrier.
    __device__ Fade(const Gates& x, const Sizes& d, i64 head, i64 s0, const Room<R>& room) : x(x), d(d), head(head), own(room.gates) {
        if (GATED && threadIdx.x < Tile<R>::C) room.gates[threadIdx.x] = Rows(d.s, d.h, head, s0).get(x.g, 1, threadIdx.x, 0);
    }
    // For queries whose first is key q0, and keys from s0 on.
    __device__ void add(Tile<R>& p, i64 q0, i64 s0) const {
        if (!GATED) return;
#pragma unroll
        for (int i = 0; i < Tile<R>::ROWS; i++) {
            const int r = p.row(i);
            const real to = q0 == s0 || q0 + r >= d.s ? real(0) : x.upto[head * d.s + q0 + r] + (real)between;
#pragma unroll
            for (int j = 0; j < Tile<R>::COLS; j++) {
                const int c = p.col(j);
                if (q0 == s0)
                    p.v[i][j] += segment(c, r);
                else
                    p.v[i][j] += x.after[head * d.s + s0 + c] + to;
            }
        }
    }
    __device__ real segment(int c, int r) const {
        real sum = 0;
        for (int u = c + 1; u <= r; u++) sum += own[u];
        return sum;
    }
    // The tile from s0 on will be between the tiles of all pairs to come.
    __device__ void pass(i64 s0) {
        if (GATED) between += (double)ld(x.g + Rows(d.s, d.h, head, s0).at(0)) + x.after[head * d.s + s0];
    }
};

// How many keys are before the tile in which the first query is.
template <bool GATED>
__device__ inline i64 queries_from(const Sizes& d, int c) { return GATED ? (d.s - d.t) / c * c : d.s - d.t; }

// sums [B H, S] of gates: a thread to a tile of a head.
extern "C" __global__ void sums(const S* g, real* after, real* upto, i64 c, Sizes d) {
    const i64 across = (d.s + c - 1) / c;
    for (i64 i = thread(); i < d.heads * across; i += threads()) {
        const i64 head = divide(i, across), s0 = (i - head * across) * c, end = s0 + c < d.s ? s0 + c : d.s;
        const Rows rows(d.s, d.h, head, 0);
        double sum = 0; // of gates that are alike and would all be rounded alike
        for (i64 s = s0; s < end; s++) {
            sum += ld(g + rows.at(s));
            upto[head * d.s + s] = (real)sum;
        }
        sum = 0;
        for (i64 s = end - 1; s >= s0; s--) {
            after[head * d.s + s] = (real)sum;
            sum += ld(g + rows.at(s));
        }
    }
}

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

template <int R, bool GATED>
__device__ void forward(const S* q, const S* k, const S* v, const Gates& gates, S* o, S* lse, real scale, Sizes d) {
    real* memory = dynamic_memory();
    constexpr int C = Tile<R>::C, MLD = Tile<R>::MLD;
    real* m = memory + Tile<R>::SCRATCH;
    const i64 before = d.s - d.t, start = queries_from<GATED>(d, C) - before;
    const Place at(tiles(d.v, C), d.heads, tiles(d.t - start, C));
    const i64 c0 = at.column * C, t0 = start + at.row * C;
    const Rows queries(d.t, d.h, at.head, t0, GATED ? -t0 : 0);
    const i64 seen = before + (t0 + C < d.t ? t0 + C : d.t);
    Fade<R, GATED> fade(gates, d, at.head, before + t0, Room<R>(m));
    constexpr int ROWS = Tile<R>::ROWS, COLS = Tile<R>::COLS;
    // The largest score of a row, and the sum of what this thread holds of it.
    Tile<R> y;
    real top[ROWS], sum[ROWS];
    for (int i = 0; i < ROWS; i++) top[i] = -INF, sum[i] = 0;
    for (i64 n = 0, all = tiles(seen, C); n < all; n++) {
        const i64 s0 = (GATED ? all - 1 - n : n) * C;
        const Rows keys(d.s, d.h, at.head, s0);
        Tile<R> x;
        x.template add<1, 1>(
            memory, (int)d.k, [&](int r, int i) { return scale * queries.get(q, d.k, r, i); },
            [&](int i, int c) { return keys.get(k, d.k, c, i); });
        fade.add(x, before + t0, s0);
        if (n > 0) fade.pass(s0);
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
        if (!queries.has(r)) continue;
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

// p ← exp(scale q·k − lse), with what gates add, and dx ← p (do·v − δ) for rows of queries and columns of keys.
template <int R, bool GATED>
__device__ void scores(Tile<R>& p, Tile<R>& dx, real* scratch, const Saved& x, const Fade<R, GATED>& fade, const Sizes& d,
                       i64 head, i64 t0, i64 s0) {
    const Rows queries(d.t, d.h, head, t0, GATED ? -t0 : 0), keys(d.s, d.h, head, s0);
    p.template add<1, 1>(
        scratch, (int)d.k, [&](int r, int i) { return x.scale * queries.get(x.q, d.k, r, i); },
        [&](int i, int c) { return keys.get(x.k, d.k, c, i); });
    dx.template add<1, 1>(
        scratch, (int)d.v, [&](int r, int j) { return queries.get(x.g, d.v, r, j); },
        [&](int j, int c) { return keys.get(x.v, d.v, c, j); });
    fade.add(p, d.s - d.t + t0, s0);
#pragma unroll
    for (int i = 0; i < Tile<R>::ROWS; i++) {
        const i64 r = p.row(i), t = t0 + r;
        const bool here = queries.has(r);
        const real delta = here ? x.delta[queries.at(r)] : real(0);
#pragma unroll
        for (int j = 0; j < Tile<R>::COLS; j++) {
            const i64 s = s0 + p.col(j);
            const bool sees = here && s <= d.s - d.t + t;
            p.v[i][j] = sees ? exp(less(p.v[i][j], x.lse, head * d.t + t, d.heads * d.t)) : real(0);
            dx.v[i][j] = !sees || p.v[i][j] == 1.0 ? real(0.0) : p.v[i][j] * (dx.v[i][j] - delta);
        }
    }
}

template <int R>
__device__ void keep(real* m, Tile<R>& x) {
    x.each([&](int r, int c, real y) { m[r * Tile<R>::MLD + c] = y; });
}

// dq = scale dX K; with gates also `own` and `pairs`.
template <int R, bool GATED>
__device__ void queries(const Saved& x, const Gates& gates, S* dq, int acc, real* own, real* pairs, const Sizes& d) {
    real* memory = dynamic_memory();
    constexpr int C = Tile<R>::C, MLD = Tile<R>::MLD, ROWS = Tile<R>::ROWS, COLS = Tile<R>::COLS;
    real* m = memory + Tile<R>::SCRATCH;
    const i64 before = d.s - d.t, start = queries_from<GATED>(d, C) - before;
    const Place at(tiles(d.k, C), d.heads, tiles(d.t - start, C));
    const i64 c0 = at.column * C, t0 = start + at.row * C;
    const Rows rows(d.t, d.h, at.head, t0, GATED ? -t0 : 0);
    const i64 seen = before + (t0 + C < d.t ? t0 + C : d.t);
    const Room<R> room(m);
    Fade<R, GATED> fade(gates, d, at.head, before + t0, room);
    Tile<R> y;
    // Of this thread's part of each row, Σ dx over the tiles before the block's.
    real past[ROWS];
    for (int i = 0; i < ROWS; i++) past[i] = 0;
    const i64 all = tiles(seen, C);
    for (i64 n = 0; n < all; n++) {
        // The block's own tile comes last, and stays in m.
        const bool last = n + 1 == all;
        const i64 s0 = (!GATED ? n : last ? n : all - 2 - n) * C;
        const Rows keys(d.s, d.h, at.head, s0);
        Tile<R> p, dx;
        scores(p, dx, memory, x, fade, d, at.head, t0, s0);
        keep(m, dx);
        if (GATED && !last) {
            fade.pass(s0);
            real sum = 0;
#pragma unroll
            for (int i = 0; i < ROWS; i++) {
                real row = 0;
#pragma unroll
                for (int j = 0; j < COLS; j++) row += dx.v[i][j];
                past[i] += row;
                sum += row;
            }
            sum = warp_sum(sum);
            if (threadIdx.x % 32 == 0) room.warps[threadIdx.x / 32] = sum;
        }
        y.template add<1, 0>(
            memory, (int)(seen - s0 < C ? seen - s0 : C), [&](int r, int s) { return m[r * MLD + s]; },
            [&](int s, int c) { return keys.get(x.k, d.k, s, c0 + c); });
        if (GATED && pairs && !last && c0 == 0 && threadIdx.x == 0) {
            const i64 across = tiles(d.s, C);
            real sum = 0;
            for (int w = 0; w < 8; w++) sum += room.warps[w];
            pairs[(at.head * across + all - 1) * across + s0 / C] = sum;
        }
    }
    if (dq)
        y.each([&](int r, int c, real v) {
            if (rows.has(r) && c0 + c < d.k) put(dq + rows.at(r) * d.k + c0 + c, x.scale * v, acc);
        });
    if (!GATED || !own || c0 > 0) return;
    // Σ dx_ts over s < u of each row, and from there Σ over t ≥ u.
    y.across(past, memory);
#pragma unroll
    for (int i = 0; i < ROWS; i++)
        if (y.col(0) == 0) room.rows[y.row(i)] = past[i];
    __syncthreads();
    const int u = threadIdx.x;
    if (u < C) {
        real sum = room.rows[u];
        for (int s = 0; s < C; s++) {
            const real one = m[u * MLD + s];
            m[u * MLD + s] = sum;
            sum += one;
        }
    }
    __syncthreads();
    if (u < C && before + t0 + u < d.s) {
        real sum = 0;
        for (int t = u; t < C; t++) sum += m[t * MLD + u];
        own[at.head * d.s + before + t0 + u] = sum;
    }
}

// dk = scale dXᵀ Q and dv = Pᵀ dO; with gates also `past`.
template <int R, bool GATED>
__device__ void keys(const Saved& x, const Gates& gates, S* dk, int k_acc, S* dv, int v_acc, real* past, const Sizes& d) {
    real* memory = dynamic_memory();
    constexpr int C = Tile<R>::C, MLD = Tile<R>::MLD, ROWS = Tile<R>::ROWS, COLS = Tile<R>::COLS;
    real* m = memory + Tile<R>::SCRATCH;
    const Place at(tiles(d.k > d.v ? d.k : d.v, C), d.heads, tiles(d.s, C));
    const i64 c0 = at.column * C, row = tiles(d.s, C) - 1 - at.row, s0 = row * C, before = d.s - d.t;
    const Rows rows(d.s, d.h, at.head, s0);
    const auto kept = [&](int s, int t) { return m[t * MLD + s]; };
    const Room<R> room(m);
    Fade<R, GATED> fade(gates, d, at.head, s0, room);
    // Of this thread's part of each column, Σ dx over the tiles behind the block's.
    real columns[COLS];
    for (int j = 0; j < COLS; j++) columns[j] = 0;
    Tile<R> yk, yv;
    const i64 from = queries_from<GATED>(d, C) - before;
    if (GATED)
        for (i64 s = s0 + C; s < before + from; s += C) fade.pass(s);
    for (i64 t0 = s0 > before + from ? from + (s0 - before - from) / C * C : from; t0 < d.t; t0 += C) {
        const Rows queries(d.t, d.h, at.head, t0, GATED ? -t0 : 0);
        const int n = (int)(queries.left < C ? queries.left : C);
        Tile<R> p, dx;
        scores(p, dx, memory, x, fade, d, at.head, t0, s0);
        if (GATED && before + t0 > s0) {
            fade.pass(before + t0);
#pragma unroll
            for (int i = 0; i < ROWS; i++)
#pragma unroll
                for (int j = 0; j < COLS; j++) columns[j] += dx.v[i][j];
        }
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
    if (!GATED || !past || c0 > 0) return;
    // The sums of whole columns, and from there Σ over s < u.
    yk.each([&](int r, int c, real) { m[r * MLD + c] = 0; });
#pragma unroll
    for (int j = 0; j < COLS; j++) m[yk.row(0) * MLD + yk.col(j)] = columns[j];
    __syncthreads();
    const int u = threadIdx.x;
    if (u < C) {
        real sum = 0;
        for (int r = 0; r < C; r++) sum += m[r * MLD + u];
        room.rows[u] = sum;
    }
    __syncthreads();
    if (u < C && u < rows.left) {
        real sum = 0;
        for (int s = 0; s < u; s++) sum += room.rows[s];
        past[at.head * d.s + s0 + u] = sum;
    }
}

// pairs [B H, tiles, tiles] to their sums over the tiles so far: a warp to a tile of queries.
extern "C" __global__ void running(real* pairs, i64 c, Sizes d) {
    const i64 across = (d.s + c - 1) / c, from = (d.s - d.t) / c, rows = d.heads * (across - from);
    const int lane = threadIdx.x % 32;
    for (i64 i = thread() / 32; i < rows; i += threads() / 32) {
        const i64 head = divide(i, across - from), n = i - head * (across - from) + from;
        real* x = pairs + (head * across + n) * across;
        real carry = 0;
        for (i64 j0 = 0; j0 < n; j0 += 32) {
            real sum = j0 + lane < n ? x[j0 + lane] : real(0);
#pragma unroll
            for (int o = 1; o < 32; o *= 2) {
                const real left = __shfl_up_sync(0xffffffffu, sum, o);
                if (lane >= o) sum += left;
            }
            sum += carry;
            if (j0 + lane < n) x[j0 + lane] = sum;
            carry = __shfl_sync(0xffffffffu, sum, 31);
        }
    }
}

// dg [B, S, H] of its three parts.
extern "C" __global__ void gates(const real* own, const real* past, const real* pairs, S* dg, int acc, i64 c, Sizes d) {
    const i64 across = (d.s + c - 1) / c, from = d.t > 0 ? (d.s - d.t) / c : across;
    for (i64 i = thread(); i < d.heads * d.s; i += threads()) {
        const i64 head = divide(i, d.s), u = i - head * d.s, tile = divide(u, c);
        real sum = past[i];
        if (tile >= from) sum += own[i];
        if (tile > 0)
            for (i64 n = tile + 1 > from ? tile + 1 : from; n < across; n++)
                sum += pairs[(head * across + n) * across + tile - 1];
        put(dg + Rows(d.s, d.h, head, 0).at(u), sum, acc);
    }
}

#define KERNELS(R, NAME, GATED)                                                                                      \
    TILED_KERNEL NAME##forward_##R(const S* q, const S* k, const S* v, const S* g, const real* after,                \
        const real* upto, S* o, S* lse, real scale, Sizes d) {                                                       \
        forward<R, GATED>(q, k, v, Gates{g, after, upto}, o, lse, scale, d);                                         \
    }                                                                                                                \
    TILED_KERNEL NAME##queries_##R(const S* q, const S* k, const S* v, const S* g, const real* after,                \
        const real* upto, const S* d_o, const S* lse, const real* delta, S* dq, int acc, real* own, real* pairs,     \
        real scale, Sizes d) {                                                                                       \
        queries<R, GATED>(Saved{q, k, v, d_o, lse, delta, scale}, Gates{g, after, upto}, dq, acc, own, pairs, d);    \
    }                                                                                                                \
    TILED_KERNEL NAME##keys_##R(const S* q, const S* k, const S* v, const S* g, const real* after, const real* upto, \
        const S* d_o, const S* lse, const real* delta, S* dk, int k_acc, S* dv, int v_acc, real* past, real scale,   \
        Sizes d) {                                                                                                   \
        keys<R, GATED>(Saved{q, k, v, d_o, lse, delta, scale}, Gates{g, after, upto}, dk, k_acc, dv, v_acc, past, d); \
    }
KERNELS(1, , false)
KERNELS(2, , false)
KERNELS(4, , false)
KERNELS(1, fading_, true)
KERNELS(2, fading_, true)
KERNELS(4, fading_, true)

// delta [B, T, H] = Σ do o: a warp to a row.
extern "C" __global__ void deltas(const S* o, const S* g, real* delta, i64 rows, i64 v) {
    for (i64 r = thread() / 32; r < rows; r += threads() / 32) {
        real sum = 0;
        for (i64 j = threadIdx.x % 32; j < v; j += 32) sum += ld(o + r * v + j) * ld(g + r * v + j);
        sum = warp_sum(sum);
        if (threadIdx.x % 32 == 0) delta[r] = sum;
    }
}
