// Causal attention by tiles of C queries and C keys, with an online softmax (Dao et al. 2022; Milakov and Gimelshein
// 2018); backwards the tiles of P are computed again from lse. The equations stand in attention.rs.
//
// Tiling: forward a block has a tile of queries and of columns of o and goes over the keys that its last query sees;
// for dk and dv a block has a tile of keys and goes over the queries that see its first; for dq it is as forward. So
// every sum has one owner and one order, for 7 products a pair of tiles backwards where adding up dq across blocks
// would do with 5. Late queries see most keys: their blocks come first. Blocks of 256 threads (tiles.cuh), one C x C
// matrix in shared memory. In bf16 without gates they are larger and do without it, further below.
//
// With gates tiles of queries stand where those of keys do, so the first may have fewer, and a pair of tiles is one
// tile or is apart: the gates between key s and query t are those after s in its tile, those of the tiles in between,
// and those of the tile of t up to t. A block comes to the pairs of its tile from the nearest to the farthest, and adds
// up the gates in between as it goes. The gradient of gate u, Σ dx_ts over s < u ≤ t, is the sum of three, none of them
// a difference: over t in the tile of u (by who owns the queries, in `own`), over s in the tile of u and t beyond it
// (by who owns the keys, in `past`), and over both beyond it, for which there is a number for each pair of tiles,
// `pairs`.
//
// Operations: T S (K + V) forward, T S (3 K + 2 V) 1.4 backward; memory: q, o once, k and v once for each tile of
// queries, from L2 where a head's fit there.

using namespace tiled;

// Queries, keys, heads, widths and B H. Of queries and keys there are fewer than 2^31 (flash.rs), so that places among them are
// int; places in memory are i64.
struct Sizes { i64 t, s, h, k, v, heads; };

// Element (row t0 + r, j) of head i of x [B, n, H, width]; 0 beyond the edges, and in rows before `low`.
struct Rows {
    i64 first, apart, left, low;

    __device__ Rows(i64 n, i64 h, i64 head, i64 start, i64 low = 0) {
        first = ((u32)head / (u32)h * n + start) * h + (u32)head % (u32)h;
        apart = h;
        left = n - start;
        this->low = low;
    }
    __device__ i64 at(i64 r) const { return first + r * apart; }
    __device__ bool has(i64 r) const { return r >= low && r < left; }
    __device__ real get(const S* x, i64 width, i64 r, i64 j) const {
        return has(r) && j < width ? ld(x + at(r) * width + j) : real(0);
    }
    // Columns of x from c0 on, of the rows that are there and are fewer than `most`; and where they are written.
    __device__ Matrix<S> of(const S* x, int width, int c0 = 0, i64 most = 128) const {
        return {x + first * width + c0, (u32)apart * width, (int)(left < most ? left : most), width - c0, (int)low};
    }
    __device__ Target<S> to(S* x, int width, int c0, int acc = 0) const {
        const int rows = (int)(left < 128 ? left : 128);
        return {x ? x + first * width + c0 : nullptr, (u32)apart * width, rows, width - c0, acc, (int)low};
    }
};

// The logarithms of gates g [B, S, H], and sums of them of each head [B H, S]: of those after a key in its tile, and of
// those of a tile up to a key.
struct Gates {
    const S* g;
    const real *after, *upto;
};

// Numbers in shared memory beside a matrix: the gates of a tile, one number for each of its rows and one for each warp.
template <int R>
struct Room {
    real *gates, *rows, *warps;
    __device__ Room(real* m) : gates(m + Tile<R>::MATRIX), rows(gates + Tile<R>::C), warps(rows + Tile<R>::C) {}
};

// The sums of gates that are added to the scores of a block's pairs of tiles.
template <int R, bool GATED>
struct Fade {
    const Gates& x;
    const Sizes& d;
    i64 head;
    const real* own;
    // The gates of the tiles between the two of the pair.
    double between = 0;

    // The gates of the block's tile, whose first key is s0, are in shared memory behind the next barrier.
    __device__ Fade(const Gates& x, const Sizes& d, i64 head, int s0, const Room<R>& room) : x(x), d(d), head(head), own(room.gates) {
        if (GATED && threadIdx.x < Tile<R>::C) room.gates[threadIdx.x] = Rows(d.s, d.h, head, s0).get(x.g, 1, threadIdx.x, 0);
    }
    // For queries whose first is key q0, and keys from s0 on.
    __device__ void add(Tile<R>& p, int q0, int s0) const {
        if (!GATED) return;
        const real *upto = x.upto + head * d.s + q0, *after = x.after + head * d.s + s0;
        const int left = (int)d.s - q0;
#pragma unroll
        for (int i = 0; i < Tile<R>::ROWS; i++) {
            const int r = p.row(i);
            const real to = q0 == s0 || r >= left ? real(0) : upto[r] + (real)between;
#pragma unroll
            for (int j = 0; j < Tile<R>::COLS; j++) {
                const int c = p.col(j);
                if (q0 == s0)
                    p.v[i][j] += segment(c, r);
                else
                    p.v[i][j] += after[c] + to;
            }
        }
    }
    __device__ real segment(int c, int r) const {
        real sum = 0;
        for (int u = c + 1; u <= r; u++) sum += own[u];
        return sum;
    }
    // The tile from s0 on will be between the tiles of all pairs to come.
    __device__ void pass(int s0) {
        if (GATED) between += (double)ld(x.g + Rows(d.s, d.h, head, s0).at(0)) + x.after[head * d.s + s0];
    }
};

// How many keys are before the tile in which the first query is.
template <bool GATED>
__device__ inline int queries_from(const Sizes& d, int c) {
    const int before = (int)(d.s - d.t);
    return GATED ? before / c * c : before;
}

// sums [B H, S] of gates: a thread to a tile of a head.
KERNEL(sums)(const S* g, real* after, real* upto, i64 c, Sizes d) {
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

// lse = top + log in two numbers. bf16 has too few digits for either: the rest that rounding cuts off is stored behind
// all of them.
__device__ inline void save(S* lse, i64 i, i64 size, real top, real log) {
    st(lse + i, sizeof(S) == 2 ? top + log : top);
    st(lse + size + i, sizeof(S) == 2 ? top + log - ld(lse + i) : log);
}
// x − lse
__device__ inline real less(real x, const S* lse, i64 i, i64 size) {
    return sizeof(S) == 2 ? x - (ld(lse + i) + ld(lse + size + i)) : x - ld(lse + i) - ld(lse + size + i);
}

// lse of a tile's rows, by the block of the first column, and y divided by the sums.
template <class T>
__device__ void save_rows(T& y, const Rows& rows, const real (&top)[T::ROWS], const real (&sum)[T::ROWS], S* lse,
                          i64 c0, i64 first, i64 size) {
#pragma unroll
    for (int i = 0; i < T::ROWS; i++) {
        if (c0 == 0 && y.col(0) == 0 && rows.has(y.row(i))) save(lse, first + y.row(i), size, top[i], log(sum[i]));
#pragma unroll
        for (int j = 0; j < T::COLS; j++) y.v[i][j] /= sum[i];
    }
}

// The head and tiles of a block: columns of `across` fastest, then heads, the last tile of `down` rows first.
struct Place {
    int column, head, row;

    __device__ Place(u32 across, i64 heads, u32 down, u32 block = blockIdx.x) {
        column = block % across;
        head = block / across % (u32)heads;
        row = down - 1 - block / across / (u32)heads;
    }
};

// Scores are the same numbers in both passes, so the largest less itself is 0.
template <class T>
__device__ void scale_scores(T& x, real scale) {
    x.by_rows([&](int) { return [&](int, real x) { return times(x, scale); }; });
}

template <int R, bool GATED>
__device__ void forward(const S* q, const S* k, const S* v, const Gates& gates, S* o, S* lse, real scale, Sizes d) {
    real* memory = dynamic_memory();
    constexpr int C = Tile<R>::C;
    const typename Tile<R>::Own m(memory + Tile<R>::SCRATCH);
    const int before = (int)(d.s - d.t), start = queries_from<GATED>(d, C) - before;
    const Place at(tiles(d.v, C), d.heads, tiles(d.t - start, C));
    const int c0 = at.column * C, t0 = start + at.row * C, last = (int)d.t < t0 + C ? (int)d.t : t0 + C, seen = before + last;
    const Rows queries(d.t, d.h, at.head, t0, GATED ? -t0 : 0);
    Fade<R, GATED> fade(gates, d, at.head, before + t0, Room<R>(memory + Tile<R>::SCRATCH));
    constexpr int ROWS = Tile<R>::ROWS, COLS = Tile<R>::COLS;
    // The largest score of a row, and this thread's part of the sum.
    Tile<R> y;
    real top[ROWS], sum[ROWS];
    for (int i = 0; i < ROWS; i++) top[i] = -INF, sum[i] = 0;
    for (int n = 0, all = tiles(seen, C); n < all; n++) {
        const int s0 = (GATED ? all - 1 - n : n) * C, there = seen - s0 < C ? seen - s0 : C, past = before + t0 - s0;
        const Rows keys(d.s, d.h, at.head, s0);
        Tile<R> x;
        x.template add<1, 1>(memory, (int)d.k, queries.of(q, d.k), keys.of(k, d.k));
        scale_scores(x, scale);
        fade.add(x, before + t0, s0);
        if (n > 0) fade.pass(s0);
        real best[ROWS];
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            best[i] = -INF;
#pragma unroll
            for (int j = 0; j < COLS; j++) {
                if (t0 + x.row(i) >= last || x.col(j) > past + x.row(i)) x.v[i][j] = -INF;
                best[i] = fmax(best[i], x.v[i][j]);
            }
        }
        x.horizontal_max(best, memory);
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            // A row beyond the last query sees nothing: 0 stands for its -INF.
            const real now = fmax(fmax(top[i], best[i]), -LARGEST), fade = exp(top[i] - now);
            top[i] = now;
            sum[i] *= fade;
#pragma unroll
            for (int j = 0; j < COLS; j++) {
                x.v[i][j] = exp(x.v[i][j] - now);
                sum[i] += x.v[i][j];
                y.v[i][j] *= fade;
            }
        }
        m.set(x);
        y.template add_lower<1, 0>(memory, there, m, keys.of(v, d.v, c0, there), past);
    }
    y.horizontal_sum(sum, memory);
    save_rows(y, queries, top, sum, lse, c0, at.head * d.t + t0, d.heads * d.t);
    y.put(queries.to(o, d.v, c0));
}

// The arguments that all backward kernels read; delta [B, T, H] is Σ do o.
struct Saved {
    const S *q, *k, *v, *g, *lse;
    const real* delta;
    real scale;
};

// p ← exp(scale q·k − lse), with the gates' sums, and dx ← p (do·v − δ) for rows of queries and columns of keys.
template <int R, bool GATED>
__device__ void scores(Tile<R>& p, Tile<R>& dx, real* scratch, const Saved& x, const Fade<R, GATED>& fade, const Sizes& d,
                       i64 head, int t0, int s0) {
    const Rows queries(d.t, d.h, head, t0, GATED ? -t0 : 0), keys(d.s, d.h, head, s0);
    const int past = (int)(d.s - d.t) + t0 - s0;
    const S* lse = x.lse + head * d.t + t0;
    p.template add<1, 1>(scratch, (int)d.k, queries.of(x.q, d.k), keys.of(x.k, d.k));
    dx.template add<1, 1>(scratch, (int)d.v, queries.of(x.g, d.v), keys.of(x.v, d.v));
    scale_scores(p, x.scale);
    fade.add(p, d.s - d.t + t0, s0);
#pragma unroll
    for (int i = 0; i < Tile<R>::ROWS; i++) {
        const int r = p.row(i);
        const bool here = queries.has(r);
        const real delta = here ? x.delta[queries.at(r)] : real(0);
#pragma unroll
        for (int j = 0; j < Tile<R>::COLS; j++) {
            const bool sees = here && p.col(j) <= past + r;
            p.v[i][j] = sees ? exp(less(p.v[i][j], lse, r, d.heads * d.t)) : real(0);
            dx.v[i][j] = !sees || p.v[i][j] == 1.0 ? real(0.0) : p.v[i][j] * (dx.v[i][j] - delta);
        }
    }
}

// dq = scale dX K; with gates also `own` and `pairs`.
template <int R, bool GATED>
__device__ void queries(const Saved& x, const Gates& gates, S* dq, int acc, real* own, real* pairs, const Sizes& d) {
    real* memory = dynamic_memory();
    constexpr int C = Tile<R>::C, MLD = Tile<R>::MLD, ROWS = Tile<R>::ROWS, COLS = Tile<R>::COLS;
    real* m = memory + Tile<R>::SCRATCH;
    const int before = (int)(d.s - d.t), start = queries_from<GATED>(d, C) - before;
    const Place at(tiles(d.k, C), d.heads, tiles(d.t - start, C));
    const int c0 = at.column * C, t0 = start + at.row * C, seen = before + ((int)d.t < t0 + C ? (int)d.t : t0 + C);
    const Rows rows(d.t, d.h, at.head, t0, GATED ? -t0 : 0);
    const Room<R> room(m);
    Fade<R, GATED> fade(gates, d, at.head, before + t0, room);
    Tile<R> y;
    // This thread's part, in each row, of Σ dx over the tiles before the block's.
    real past[ROWS];
    for (int i = 0; i < ROWS; i++) past[i] = 0;
    const int all = tiles(seen, C);
    for (int n = 0; n < all; n++) {
        // The block's own tile comes last, and stays in m.
        const bool last = n + 1 == all;
        const int s0 = (!GATED ? n : last ? n : all - 2 - n) * C, there = seen - s0 < C ? seen - s0 : C;
        const Rows keys(d.s, d.h, at.head, s0);
        Tile<R> p, dx;
        scores(p, dx, memory, x, fade, d, at.head, t0, s0);
        if (GATED)
            dx.runs([&](int r, int c, const real (&run)[Tile<R>::RUN]) { write(m + r * MLD + c, run); });
        else
            typename Tile<R>::Own(m).set(dx);
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
        const auto right = keys.of(x.k, d.k, c0, there);
        if constexpr (GATED)
            y.template add<1, 0>(memory, there, Matrix<real>(m, MLD, C, C), right);
        else
            y.template add<1, 0>(memory, there, typename Tile<R>::Own(m), right);
        if (GATED && pairs && !last && c0 == 0 && threadIdx.x == 0) {
            const i64 across = tiles(d.s, C);
            real sum = 0;
            for (int w = 0; w < 8; w++) sum += room.warps[w];
            pairs[(at.head * across + all - 1) * across + s0 / C] = sum;
        }
    }
    y.put(rows.to(dq, d.k, c0, acc), [&](int, int, real v) { return x.scale * v; });
    if (!GATED || !own || c0 > 0) return;
    // Σ dx_ts over s < u of each row, and from there Σ over t ≥ u.
    y.horizontal_sum(past, memory);
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
    const int c0 = at.column * C, row = (int)tiles(d.s, C) - 1 - at.row, s0 = row * C, before = (int)(d.s - d.t);
    const Rows rows(d.s, d.h, at.head, s0);
    const typename Tile<R>::Own kept(m);
    const Room<R> room(m);
    Fade<R, GATED> fade(gates, d, at.head, s0, room);
    // This thread's part, in each column, of Σ dx over the tiles behind the block's.
    real columns[COLS];
    for (int j = 0; j < COLS; j++) columns[j] = 0;
    Tile<R> yk, yv;
    const int from = queries_from<GATED>(d, C) - before, end = (int)d.t;
    if (GATED)
        for (int s = s0 + C; s < before + from; s += C) fade.pass(s);
    for (int t0 = s0 > before + from ? from + (s0 - before - from) / C * C : from; t0 < end; t0 += C) {
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
            kept.set(p);
            yv.template add<0, 0>(memory, n, kept, queries.of(x.g, d.v, c0));
            __syncthreads();
        }
        if (c0 < d.k) {
            kept.set(dx);
            yk.template add<0, 0>(memory, n, kept, queries.of(x.q, d.k, c0));
        }
    }
    yk.put(rows.to(dk, d.k, c0, k_acc), [&](int, int, real v) { return x.scale * v; });
    yv.put(rows.to(dv, d.v, c0, v_acc));
    if (!GATED || !past || c0 > 0) return;
    __syncthreads();
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

// --- In bf16, without gates: a block has 128 rows, and the result of one product goes into the next in registers.
// Forward each warp has 16 whole rows; backward it has 32 rows of half of the columns, and two warps add up their
// results at the end. The block's own rows stay in shared memory, in slices of 64 columns. The other rows of a step are
// copied there while the step before is computed, if there is room for both. Exponents are of 2. (For other types these
// kernels are empty.) ---

struct Slices {
    enum { ROWS = 128, LD = 72 };
    bf16* next;

    // Memory for so many columns of N rows.
    template <int N>
    __device__ bf16* room(i64 width) {
        bf16* here = next;
        next += tiles(width, 64) * N * LD;
        return here;
    }
    template <int R, int N>
    static __device__ void fill(bf16* to, const Matrix<S>& x) {
        for (int c = 0; c < x.width; c += 64, to += N * LD) Tile<R, 4>::template slice<1, N>(to, c, 64, x);
    }
    // Whether there is room for two steps. (flash.rs knows this too.)
    static __device__ bool two(const Sizes& d) { return tiles(d.k, 64) + tiles(d.v, 64) <= 6; }
    // Where the rows of a step are, one behind the other.
    struct Step { bf16 *first, *second; };
    __device__ Step step(i64 first, i64 second) {
        bf16* here = room<64>(first);
        return {here, room<64>(second)};
    }
    // Where a thread's eight numbers of a step are, the first of two.
    static __device__ int pack() { return (int)threadIdx.x / 8 * LD + (int)threadIdx.x % 8 * 8; }
    // Zero the rare numbers (`drop_rare`) among those of 64 columns that this thread asked for; whether there were any.
    static __device__ bool drop(bf16* x) {
        bool found = false;
#pragma unroll
        for (int n = 0; n < 2; n++) {
            Pack<u32, 4>& y = *(Pack<u32, 4>*)(x + pack() + 32 * n * LD);
            Pack<u32, 4> common = y;
            if (drop_rare(common)) y = common, found = true;
        }
        return found;
    }
    // y += A Bᵀ of such memory, that of b for N rows.
    template <int N, class T>
    static __device__ void product(T& y, const bf16* a, const bf16* b, i64 depth) {
        for (; depth > 0; depth -= 64, a += ROWS * LD, b += N * LD)
            y.template multiply_tensor<1, 1>({a, LD}, {b, LD}, (int)(depth < 64 ? depth : 64));
    }
};

// Rows of memory that come to shared memory 64 at a time, in turn to two places or to one. NARROW: they have 64 columns at
// most, and begin at multiples of 16 bytes.
template <bool NARROW>
struct Feed {
    const S* next; // of this thread
    bf16* one;
    u32 apart;
    int to_other, width, columns;
    bool even;

    // From row `from` on.
    __device__ Feed(const Matrix<S>& x, int from, int width, bf16* one, bf16* other)
        : next(x.at(from + (int)threadIdx.x / 8, (int)threadIdx.x % 8 * 8)), one(one),
          apart(x.apart), to_other((int)(other - one)), width((x.width < width ? x.width : width) - (int)threadIdx.x % 8 * 8),
          columns(width), even(x.template even<8>()) {}
    // Asks for the next 64 rows, which begin with row `first` of `rows`, and returns where they will be.
    __device__ bf16* ask(int first, int rows) {
        bf16 *here = one + (first & 64 ? to_other : 0), *to = here + Slices::pack();
        for (int c = 0; c < (NARROW ? 64 : columns); c += 64, to += 64 * Slices::LD)
#pragma unroll
            for (int n = 0; n < 2; n++) {
                const S* from = next + 32 * n * apart + c;
                const bool there = first + (int)threadIdx.x / 8 + 32 * n < rows && c < width;
                if (NARROW || even) {
                    copy_async(to + 32 * n * Slices::LD, from, there);
                } else {
                    for (int i = 0; i < 8; i++) st(to + 32 * n * Slices::LD + i, there && c + i < width ? ld(from + i) : real(0));
                }
            }
        next += 64 * apart;
        return here;
    }
};

// y += x v for the numbers in v that are not `common`. v has a row for each key; warps have whole rows of x in registers.
template <class T, class X>
__device__ void add_rare(T& y, const X& x, int past, const Matrix<S>& v) {
#pragma unroll
    for (int j = 0; j < X::COLS; j++)
        for (int lane = 0; lane < 4; lane++) {
            const int k = 2 * lane + j / 2 * 8 + j % 2;
            real weight[X::ROWS];
#pragma unroll
            for (int i = 0; i < X::ROWS; i++) weight[i] = __shfl_sync(0xffffffffu, x.v[i][j], lane, 4);
#pragma unroll
            for (int c = 0; c < T::COLS; c++) {
                const real z = v(k, y.col(c));
                if (common(z)) continue;
#pragma unroll
                for (int i = 0; i < T::ROWS; i++)
                    if (k <= y.row(i) + past) y.v[i][c] += weight[i] * z;
            }
        }
}

// NARROW is that of Feed. A value that is not finite makes the sums of its whole tile NaN, even for queries that do not see
// it. With CAREFUL every value is looked at, and such a value reaches only the queries that see it. Returns whether o is
// written: always with CAREFUL, else only if all sums are finite.
template <int R, bool NARROW, bool CAREFUL>
__device__ bool wide_forward(const S* q, const S* k, const S* v, S* o, S* lse, real scale, const Sizes& d) {
    // Half a step's scores at a time leave registers for the queries.
    typedef Tile<R, 4> T;
    typedef Tile<R, NARROW ? 2 : 4> X;
    const Place at(tiles(d.v, 64), d.heads, tiles(d.t, Slices::ROWS));
    const int c0 = at.column * 64, t0 = at.row * Slices::ROWS, before = (int)(d.s - d.t);
    const Rows queries(d.t, d.h, at.head, t0);
    const int seen = before + (t0 + Slices::ROWS < d.t ? t0 + Slices::ROWS : (int)d.t);
    Slices memory{(bf16*)dynamic_memory()};
    const bool two = NARROW || Slices::two(d);
    bf16* qs = memory.room<128>(NARROW ? 64 : d.k);
    Slices::fill<R, 128>(qs, queries.of(q, d.k));
    const Rows all(d.s, d.h, at.head, 0);
    const Matrix<S> values = all.of(v, d.v, c0, seen);
    const Slices::Step one = memory.step(NARROW ? 64 : d.k, 64), other = two ? memory.step(NARROW ? 64 : d.k, 64) : one;
    Feed<NARROW> from_k(all.of(k, d.k, 0, seen), 0, d.k, one.first, other.first);
    Feed<NARROW> from_v(values, 0, 64, one.second, other.second);
    // Not 0: 0 times a masked score, -INF, is NaN.
    const real by = at_least(fabs(scale) * LOG2_E, 1e-30);
    T y;
    real top[2] = {-INF, -INF}, sum[2] = {0, 0};
    bf16 *next_k = from_k.ask(0, seen), *next_v = from_v.ask(0, seen);
    // A warp's queries stay in registers.
    typename X::Held held;
    if (NARROW) {
        __syncthreads();
        held.read({qs, Slices::LD});
        if (scale < 0) held.negate();
    }
    for (int s0 = 0; s0 < seen; s0 += 64) {
        bf16 *ks = next_k, *vs = next_v;
        wait_for_copies();
        bool others = false;
        if (CAREFUL)
            others = __syncthreads_or(Slices::drop(vs));
        else
            __syncthreads();
        const bool more = s0 + 64 < seen;
        if (two && more) next_k = from_k.ask(s0 + 64, seen), next_v = from_v.ask(s0 + 64, seen);
#pragma unroll 1
        for (int part = 0; part < 64; part += X::W) {
            X x;
            if (NARROW)
                x.template multiply_kept<1>(held, {ks + part * Slices::LD, Slices::LD});
            else
                Slices::product<64>(x, qs, ks, d.k);
            if (!NARROW && scale < 0) x.scale_rows([](int) { return real(-1); });
            const int past = before + t0 - s0 - part;
            if (past < X::W - 1)
                x.by_rows([&](int r) { return [=](int c, real x) { return c > past + r ? -INF : x; }; });
            real fade[2];
            bool any = false;
#pragma unroll
            for (int i = 0; i < 2; i++) {
                real best = top[i];
#pragma unroll
                for (int j = 0; j < X::COLS; j++) best = fmax(best, x.v[i][j]);
                for (int n = 2; n > 0; n >>= 1) best = fmax(best, __shfl_xor_sync(0xffffffffu, best, n));
                best = fmax(best, -LARGEST);
                // At most a number, so that it takes -INF to -INF.
                const real less = at_most(-best * by, LARGEST);
                // Most steps find nothing larger.
                const bool larger = best > top[i];
                fade[i] = larger ? quick_exp2(top[i] * by + less) : real(1);
                any |= larger;
                top[i] = best;
#pragma unroll
                for (int j = 0; j < X::COLS; j++) x.v[i][j] = quick_exp2(x.v[i][j] * by + less);
            }
            if (__any_sync(0xffffffffu, any)) {
#pragma unroll
                for (int i = 0; i < 2; i++) {
#pragma unroll
                    for (int j = 0; j < T::COLS; j++) y.v[i][j] *= fade[i];
                    sum[i] *= fade[i];
                }
            }
            y.template multiply_held<0>(x, {vs + part * Slices::LD, Slices::LD}, sum);
            if (others && NARROW) add_rare(y, x, past, values.from(s0 + part));
            if (others && !NARROW) {
                // As Tile::add_lower, with x in shared memory to save registers. x has 128 rows, so it takes the place of both
                // k and v of this step.
                __syncthreads();
                x.runs([&](int r, int c, const real (&run)[2]) { write(ks + r * Slices::LD + c, run); });
                __syncthreads();
                y.add_rare(64, past, [&](int r, int s) { return ld(ks + r * Slices::LD + s); }, values.from(s0));
            }
        }
        if (!two) __syncthreads();
        if (!two && more) next_k = from_k.ask(s0 + 64, seen), next_v = from_v.ask(s0 + 64, seen);
    }
    bool finite = true;
    if (!CAREFUL) y.each([&](int, int, real x) { finite &= is_finite(x); });
    if (!CAREFUL && __syncthreads_or(!finite)) return false;
    for (int i = 0; i < 2; i++) top[i] *= fabs(scale);
    const Place to(tiles(d.v, 64), d.heads, tiles(d.t, Slices::ROWS), CAREFUL ? blockIdx.x : anew(blockIdx.x));
    const Rows rows(d.t, d.h, to.head, to.row * Slices::ROWS);
    save_rows(y, rows, top, sum, lse, to.column * 64, to.head * d.t + to.row * Slices::ROWS, d.heads * d.t);
    y.put(rows.to(o, d.v, to.column * 64));
    return true;
}

// Not inlined, so that it takes no registers from the pass before it. It spills some itself, which counts for little as it
// runs only if a sum is not finite.
template <int R>
__device__ __noinline__ void careful_forward(const S* q, const S* k, const S* v, S* o, S* lse, real scale, Sizes d) {
    wide_forward<R, true, true>(q, k, v, o, lse, scale, d);
}

// p ← exp(scale q·k − lse), from lse as a power of 2, and dx ← p (dx − δ); both are 0 where the key is not seen. Where one
// weight is all but 1, dx − δ is less than the rounding of o, of which δ is made, to bf16.
__device__ inline void wide_score(real& p, real& dx, real scale, real lse, real delta, bool sees) {
    p = sees ? quick_exp2(p * (scale * LOG2_E) - lse) : real(0);
    dx = !sees || p >= 1 - 1.0 / 256 ? real(0) : p * (dx - delta);
}
// Of a query's row, if it is there.
__device__ inline real wide_lse(const S* lse, bool there, i64 i, i64 size) {
    return there ? (ld(lse + i) + ld(lse + size + i)) * LOG2_E : INF;
}

template <int R>
__device__ void wide_queries(const Saved& x, S* dq, int acc, const Sizes& d) {
    typedef Tile<R, 4, 2> T;
    const Place at(tiles(d.k, 64), d.heads, tiles(d.t, Slices::ROWS));
    const i64 c0 = at.column * 64, t0 = at.row * Slices::ROWS, before = d.s - d.t;
    const Rows queries(d.t, d.h, at.head, t0);
    const int seen = (int)(before + (t0 + Slices::ROWS < d.t ? t0 + Slices::ROWS : d.t));
    Slices memory{(bf16*)dynamic_memory()};
    const bool two = Slices::two(d);
    bf16 *qs = memory.room<128>(d.k), *gs = memory.room<128>(d.v);
    Slices::fill<R, 128>(qs, queries.of(x.q, d.k));
    Slices::fill<R, 128>(gs, queries.of(x.g, d.v));
    real lse[T::ROWS], delta[T::ROWS];
    for (int i = 0; i < T::ROWS; i++) {
        const int r = T::row(i);
        lse[i] = wide_lse(x.lse, queries.has(r), at.head * d.t + t0 + r, d.heads * d.t);
        delta[i] = queries.has(r) ? x.delta[queries.at(r)] : real(0);
    }
    const Rows all(d.s, d.h, at.head, 0);
    const Slices::Step one = memory.step(d.k, d.v), other = two ? memory.step(d.k, d.v) : one;
    Feed<false> from_k(all.of(x.k, d.k, 0, seen), 0, d.k, one.first, other.first);
    Feed<false> from_v(all.of(x.v, d.v, 0, seen), 0, d.v, one.second, other.second);
    Tile<R, 4, 2, 2> y;
    bf16 *next_k = from_k.ask(0, seen), *next_v = from_v.ask(0, seen);
    for (int s0 = 0; s0 < seen; s0 += 64) {
        const bf16 *ks = next_k, *vs = next_v;
        const bool more = s0 + 64 < seen;
        wait_for_copies();
        __syncthreads();
        if (two && more) next_k = from_k.ask(s0 + 64, seen), next_v = from_v.ask(s0 + 64, seen);
        T p, dx;
        Slices::product<64>(p, qs, ks, d.k);
        Slices::product<64>(dx, gs, vs, d.v);
        const int past = (int)(before + t0 - s0);
#pragma unroll
        for (int i = 0; i < T::ROWS; i++)
#pragma unroll
            for (int j = 0; j < T::COLS; j++)
                wide_score(p.v[i][j], dx.v[i][j], x.scale, lse[i], delta[i],
                           past >= 63 || T::col(j) <= past + T::row(i));
        y.template multiply_held<0>(dx, {ks + c0 * Slices::LD, Slices::LD});
        if (!two) __syncthreads();
        if (!two && more) next_k = from_k.ask(s0 + 64, seen), next_v = from_v.ask(s0 + 64, seen);
    }
    y.join(dynamic_memory());
    y.put(queries.to(dq, d.k, c0, acc), [&](int, int, real v) { return x.scale * v; });
}

// Tiles are transposed here: rows are keys.
template <int R>
__device__ void wide_keys(const Saved& x, S* dk, int k_acc, S* dv, int v_acc, const Sizes& d) {
    typedef Tile<R, 4, 2> T;
    const Place at(tiles(d.k > d.v ? d.k : d.v, 64), d.heads, tiles(d.s, Slices::ROWS));
    const int c0 = at.column * 64, row = (int)tiles(d.s, Slices::ROWS) - 1 - at.row, s0 = row * Slices::ROWS;
    const int before = (int)(d.s - d.t);
    const Rows own(d.s, d.h, at.head, s0), rows(d.t, d.h, at.head, 0);
    Slices memory{(bf16*)dynamic_memory()};
    const bool two = Slices::two(d);
    bf16 *ks = memory.room<128>(d.k), *vs = memory.room<128>(d.v);
    Slices::fill<R, 128>(ks, own.of(x.k, d.k));
    Slices::fill<R, 128>(vs, own.of(x.v, d.v));
    const int from = s0 > before ? (s0 - before) / 64 * 64 : 0;
    const Slices::Step one = memory.step(d.k, d.v), other = two ? memory.step(d.k, d.v) : one;
    Feed<false> from_q(rows.of(x.q, d.k, 0, d.t), from, d.k, one.first, other.first);
    Feed<false> from_g(rows.of(x.g, d.v, 0, d.t), from, d.v, one.second, other.second);
    real *first_lse = (real*)memory.next, *first_delta = first_lse + 128;
    // A thread's row of a step: lse, delta.
    const auto row_of = [&](int t0) {
        const int t = t0 + threadIdx.x;
        const bool there = threadIdx.x < 64 && t < d.t;
        return Pack<real, 2>{{wide_lse(x.lse, there, at.head * d.t + t, d.heads * d.t), there ? x.delta[rows.at(t)] : real(0)}};
    };
    const auto keep_row = [&](int t0, const Pack<real, 2>& row) {
        const int turn = t0 / 64 % 2 * 64;
        if (threadIdx.x < 64) first_lse[turn + threadIdx.x] = row.v[0], first_delta[turn + threadIdx.x] = row.v[1];
    };
    Tile<R, 4, 2, 2> yk, yv;
    bf16 *next_q = from_q.ask(from, (int)d.t), *next_g = from_g.ask(from, (int)d.t);
    keep_row(from, row_of(from));
    for (int t0 = from; t0 < d.t; t0 += 64) {
        const bf16 *qs = next_q, *gs = next_g;
        const real *lse = first_lse + t0 / 64 % 2 * 64, *delta = first_delta + t0 / 64 % 2 * 64;
        const bool more = t0 + 64 < d.t;
        wait_for_copies();
        __syncthreads();
        if (two && more) next_q = from_q.ask(t0 + 64, (int)d.t), next_g = from_g.ask(t0 + 64, (int)d.t);
        T p, dx;
        Slices::product<64>(p, ks, qs, d.k);
        Slices::product<64>(dx, vs, gs, d.v);
        const int past = before + t0 - s0;
#pragma unroll
        for (int j = 0; j < T::COLS; j++) {
            const int t = T::col(j);
#pragma unroll
            for (int i = 0; i < T::ROWS; i++)
                wide_score(p.v[i][j], dx.v[i][j], x.scale, lse[t], delta[t], past >= 127 || T::row(i) <= past + t);
        }
        const Pack<real, 2> next = more ? row_of(t0 + 64) : Pack<real, 2>{};
        if (c0 < d.v) yv.template multiply_held<0>(p, {gs + c0 * Slices::LD, Slices::LD});
        if (c0 < d.k) yk.template multiply_held<0>(dx, {qs + c0 * Slices::LD, Slices::LD});
        if (!two) __syncthreads();
        if (!two && more) next_q = from_q.ask(t0 + 64, (int)d.t), next_g = from_g.ask(t0 + 64, (int)d.t);
        if (more) keep_row(t0 + 64, next);
    }
    yk.join(dynamic_memory());
    yv.join(dynamic_memory());
    yk.put(own.to(dk, d.k, c0, k_acc), [&](int, int, real v) { return x.scale * v; });
    yv.put(own.to(dv, d.v, c0, v_acc));
}

// pairs [B H, tiles, tiles] to their sums over the tiles so far: a warp to a tile of queries.
KERNEL(running)(real* pairs, i64 c, Sizes d) {
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
KERNEL(gates)(const real* own, const real* past, const real* pairs, S* dg, int acc, i64 c, Sizes d) {
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

#define KERNELS(R, SIZE, NAME, GATED)                                                                                \
    SIZE(NAME##forward_##R)(const S* q, const S* k, const S* v, const S* g, const real* after,                       \
        const real* upto, S* o, S* lse, real scale, Sizes d) {                                                       \
        forward<R, GATED>(q, k, v, Gates{g, after, upto}, o, lse, scale, d);                                         \
    }                                                                                                                \
    LARGE_TILED_KERNEL(NAME##queries_##R)(const S* q, const S* k, const S* v, const S* g, const real* after,          \
        const real* upto, const S* d_o, const S* lse, const real* delta, S* dq, int acc, real* own, real* pairs,     \
        real scale, Sizes d) {                                                                                       \
        queries<R, GATED>(Saved{q, k, v, d_o, lse, delta, scale}, Gates{g, after, upto}, dq, acc, own, pairs, d);    \
    }                                                                                                                \
    LARGE_TILED_KERNEL(NAME##keys_##R)(const S* q, const S* k, const S* v, const S* g, const real* after,            \
        const real* upto, const S* d_o, const S* lse, const real* delta, S* dk, int k_acc, S* dv, int v_acc,         \
        real* past, real scale, Sizes d) {                                                                           \
        keys<R, GATED>(Saved{q, k, v, d_o, lse, delta, scale}, Gates{g, after, upto}, dk, k_acc, dv, v_acc, past, d); \
    }
KERNELS(1, TILED_KERNEL, , false)
KERNELS(2, TILED_KERNEL, , false)
KERNELS(4, TILED_KERNEL, , false)
KERNELS(1, LARGE_TILED_KERNEL, fading_, true)
KERNELS(2, LARGE_TILED_KERNEL, fading_, true)
KERNELS(4, LARGE_TILED_KERNEL, fading_, true)

#define WIDE_KERNELS(R)                                                                                               \
    TILED_KERNEL(forward_##R)(const S* q, const S* k, const S* v, const S*, const real*, const real*, S* o, S* lse,    \
        real scale, Sizes d) {                                                                                        \
        if constexpr (sizeof(S) == 2) wide_forward<R, false, true>(q, k, v, o, lse, scale, d);                        \
    }                                                                                                                 \
    TILED_KERNEL(narrow_forward_##R)(const S* q, const S* k, const S* v, const S*, const real*, const real*, S* o,     \
        S* lse, real scale, Sizes d) {                                                                                \
        if constexpr (sizeof(S) == 2)                                                                                 \
            if (!wide_forward<R, true, false>(q, k, v, o, lse, scale, d))                                             \
                careful_forward<R>(q, k, v, o, lse, scale, d);                                                        \
    }                                                                                                                 \
    LARGE_TILED_KERNEL(queries_##R)(const S* q, const S* k, const S* v, const S*, const real*, const real*,            \
        const S* d_o, const S* lse, const real* delta, S* dq, int acc, real*, real*, real scale, Sizes d) {           \
        if constexpr (sizeof(S) == 2) wide_queries<R>(Saved{q, k, v, d_o, lse, delta, scale}, dq, acc, d);            \
    }                                                                                                                 \
    LARGE_TILED_KERNEL(keys_##R)(const S* q, const S* k, const S* v, const S*, const real*, const real*,               \
        const S* d_o, const S* lse, const real* delta, S* dk, int k_acc, S* dv, int v_acc, real*, real scale,         \
        Sizes d) {                                                                                                    \
        if constexpr (sizeof(S) == 2) wide_keys<R>(Saved{q, k, v, d_o, lse, delta, scale}, dk, k_acc, dv, v_acc, d);  \
    }
WIDE_KERNELS(8)

// delta [B, T, H] = Σ do o: a warp to a row.
KERNEL(deltas)(const S* o, const S* g, real* delta, i64 rows, i64 v) {
    for (i64 r = thread() / 32; r < rows; r += threads() / 32) {
        real sum = 0;
        for (i64 j = threadIdx.x % 32; j < v; j += 32) sum += ld(o + r * v + j) * ld(g + r * v + j);
        sum = warp_sum(sum);
        if (threadIdx.x % 32 == 0) delta[r] = sum;
    }
}
