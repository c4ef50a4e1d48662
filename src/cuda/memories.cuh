// Matrix memories in chunks of C steps: what linear attention, the mLSTM and the delta rule share. Heads are those of
// tensors [B, T, H, K]; products are made of tiles (tiles.cuh).
//
// The first two are one computation with other weights, all products of gates and at most 1: D_ts that of step s at
// step t, r_t that of the state before the chunk at step t, e_s that of step s in the state after it; all 1 without
// gates. With Q, K [C, K], V̂ [C, W] the rows of a chunk and S the state before it, dS⁺ the gradient of the one after
// it:
//
//   P = (Q Kᵀ) ⊙ D      O = r Q S + P V̂          S⁺ = r_C S + (e K)ᵀ V̂
//   G = (dO V̂ᵀ) ⊙ D     dQ = r dO Sᵀ + G K       dK = Gᵀ Q + e V̂ dS⁺ᵀ      dV̂ = Pᵀ dO + e K dS⁺
//                                                 dS = r_C dS⁺ + (r Q)ᵀ dO
//
// Only the states depend on other chunks, so they come first, forwards and backwards: what each chunk adds (outer),
// then sums over the chunks of a head (scan, in order: the same result whatever the grid). All else is of every chunk
// at once.
//
// Tiling: a block of 256 threads has a tile of C x C numbers of one chunk: of P or G in shared memory first, then of an
// output. With B H T / C chunks times the tiles of a row there are blocks enough for a GPU. Memory: q, k, v, o and
// 3 K W / C numbers a step for the states; operations: 2 (C (K + W) + 2 K W) a step forward, 2.5 times that backward;
// the states take a read and a write more than one block going from chunk to chunk would.

//
// A file that uses this says `using namespace memories;`.

namespace memories {

using namespace tiled;

// W is the width of a state, V or one more.
struct Dims {
    i64 t, h, k, v, w, chunk, chunks;
    // The row of step s of a head in tensors [B, T, H, ..].
    __device__ i64 row(i64 head, i64 s) const { return (head / h * t + s) * h + head % h; }
};

// The steps of one chunk: the block's, of (chunk of head, tile, tile). Row `at(s)` of a tensor [B T H, ..] is step s.
struct Steps {
    i64 id, first, apart;
    int n;

    __device__ Steps(const Dims& d, i64 id) : id(id), apart(d.h) {
        const i64 head = id / d.chunks, start = id % d.chunks * d.chunk;
        first = d.row(head, start);
        n = (int)(d.t - start < d.chunk ? d.t - start : d.chunk);
    }

    __device__ i64 at(int s) const { return first + s * apart; }

    // Element j of step s of x [B, T, H, width]; 0 beyond the edges.
    template <class P>
    __device__ real get(const P* x, i64 width, int s, i64 j) const {
        return s < n && j < width ? ld(x + at(s) * width + j) : real(0);
    }
};

// A state [chunk of head, K, W] at (i, j); 0 beyond the edges.
template <class P>
__device__ real state(const P* s, const Dims& d, i64 id, i64 i, i64 j) {
    return i < d.k && j < d.w ? ld(s + (id * d.k + i) * d.w + j) : real(0);
}

// --- Linear attention with weights. ---

// A tensor [B, T, H, width] times a number.
struct Rows {
    const S* x;
    i64 width;
    real scale;

    __device__ real get(const Steps& t, int s, i64 j) const { return scale * t.get(x, width, s, j); }
};

// v̂ = [v, 1] or dô = [by do, last]: [B, T, H, W], of which only the V first columns are a tensor; zeros if it is null.
struct Wide {
    const S* x;
    const real *by, *last;
    i64 v, w;

    __device__ real get(const Steps& t, int s, i64 j) const {
        if (s >= t.n || j >= w) return 0;
        const i64 row = t.at(s);
        if (j >= v) return last ? last[row] : real(1);
        if (!x) return 0;
        const real y = ld(x + row * v + j);
        return by ? by[row] * y : y;
    }
};

// m = A Bᵀ with weights, below and on the diagonal: a C x C matrix in shared memory for Tile::add to read, for operands
// a(step, k) and b(step, k).
template <int R, class A, class B, class F>
__device__ void lower_product(real* m, real* scratch, int depth, A a, B b, F weight) {
    Tile<R> p;
    p.template add<1, 1>(scratch, depth, a, [&](int k, int c) { return b(c, k); });
    p.each([&](int r, int c, real x) { m[r * Tile<R>::MLD + c] = c <= r ? weight(r, c) * x : real(0); });
}

// P = Q Kᵀ with weights, or as it is known.
template <int R, class W, class A, class B>
__device__ void scores(const W& weights, real* m, real* scratch, int depth, A query, B key) {
    constexpr int C = Tile<R>::C;
    if (weights.scores) {
        for (int n = threadIdx.x; n < C * C; n += 256) m[n / C * Tile<R>::MLD + n % C] = ld(weights.scores + n);
        return;
    }
    lower_product<R>(m, scratch, depth, query, key, [&](int r, int s) { return weights.between(r, s); });
}

// h [chunk of head, K, W]: what a chunk adds to the state, (e A)ᵀ Y, or BACK to its gradient, (r A)ᵀ Y.
template <int R, bool BACK, class G>
__device__ void outer(Rows a, Wide y, G gates, real* h, Dims d) {
    real* memory = dynamic_memory();
    constexpr int C = Tile<R>::C;
    const i64 across = tiles(d.w, C), down = tiles(d.k, C);
    const i64 c0 = blockIdx.x % across * C, r0 = blockIdx.x / across % down * C;
    const Steps t(d, blockIdx.x / across / down);
    const auto weights = gates.template load<R>(t, nullptr, memory + Tile<R>::SCRATCH);
    Tile<R> sum;
    sum.template add<0, 0>(
        memory, t.n, [&](int r, int s) { return (BACK ? weights.start(s) : weights.end(s)) * a.get(t, s, r0 + r); },
        [&](int s, int c) { return y.get(t, s, c0 + c); });
    sum.each([&](int r, int c, real x) {
        if (r0 + r < d.k && c0 + c < d.w) h[(t.id * d.k + r0 + r) * d.w + c0 + c] = x;
    });
}

// The states between chunks from what each adds to them: x = r_C x + added, from [s, z], or zeros, to [s_end, z_end]
// and `end`, as far as they are wanted. `states` gets x before each chunk, or after it if REVERSE, when time runs
// backwards; it may be `added` itself. A thread has an element of a state.
template <bool REVERSE, class P, class G>
__device__ void scan(const S* s, const S* z, const real* added, G gates, P* states, S* s_end, int s_acc, S* z_end,
                     int z_acc, real* end, i64 heads, Dims d) {
    const i64 size = d.k * d.w;
    for (i64 i = thread(); i < heads * size; i += threads()) {
        const i64 row = i / d.w, j = i % d.w, head = row / d.k;
        real x = j < d.v ? (s ? ld(s + row * d.v + j) : real(0)) : z ? ld(z + row) : real(0);
        for (i64 n = 0; n < d.chunks; n++) {
            const Steps t(d, head * d.chunks + (REVERSE ? d.chunks - 1 - n : n));
            const i64 at = t.id * size + i % size;
            const real more = added[at];
            st(states + at, x);
            x = gates.whole(t, d, row % d.k) * x + more;
        }
        if (end) end[i] = x;
        if (j < d.v) {
            if (s_end) put(s_end + row * d.v + j, x, s_acc);
        } else if (z_end) {
            put(z_end + row, x, z_acc);
        }
    }
}

// A number to multiply with, and one to divide by.
struct Ratio { real times, by; };

// O, or, if NORMALISED, O times what ratio(its last column, row of [B, T, H], whether this block is the one of the row
// to store it) gives.
template <int R, bool NORMALISED, class P, class G, class N>
__device__ void outputs(Rows q, Rows k, const S* v, const P* h, G gates, S* o, N ratio, Dims d) {
    real* memory = dynamic_memory();
    constexpr int C = Tile<R>::C, MLD = Tile<R>::MLD;
    real* m = memory + Tile<R>::SCRATCH;
    Ratio* ratios = (Ratio*)(m + Tile<R>::MATRIX);
    const i64 across = tiles(d.v > 0 ? d.v : 1, C), c0 = blockIdx.x % across * C;
    const Steps t(d, blockIdx.x / across);
    const auto weights = gates.template load<R>(t, m, (real*)(ratios + C));
    const auto query = [&](int r, int i) { return q.get(t, r, i); };
    scores<R>(weights, m, memory, (int)d.k, query, [&](int s, int i) { return k.get(t, s, i); });
    Tile<R> y;
    y.template add<1, 0>(memory, (int)d.k, query, [&](int i, int c) { return state(h, d, t.id, i, c0 + c); });
    y.scale_rows([&](int r) { return weights.start(r); });
    y.template add_lower<1, 0>(
        memory, t.n, [&](int r, int s) { return m[r * MLD + s]; },
        [&](int s, int c) { return t.get(v, d.v, s, c0 + c); });
    if constexpr (NORMALISED) {
        // The column of ones: q z and the sum of a row of P, a warp to a row.
        for (int r = threadIdx.x / 32; r < t.n; r += 8) {
            real before = 0, sum = 0;
            for (int i = threadIdx.x % 32; i < d.k; i += 32) before += query(r, i) * state(h, d, t.id, i, d.v);
            for (int s = threadIdx.x % 32; s < t.n; s += 32) sum += m[r * MLD + s];
            sum = warp_sum(weights.start(r) * before + sum);
            if (threadIdx.x % 32 == 0) ratios[r] = ratio(sum, t.at(r), c0 == 0);
        }
        __syncthreads();
    }
    y.each([&](int r, int c, real x) {
        if (r < t.n && c0 + c < d.v) st(o + t.at(r) * d.v + c0 + c, NORMALISED ? ratios[r].times * x / ratios[r].by : x);
    });
}

// Where the gradient y of x, before it is scaled, goes; and, if wanted, sums of x y over every one of `rows` and a
// tile's columns, [tiles of K, B T H]: `dots` of all of y, `across` of what comes to it through the states.
struct Target {
    S* dx;
    int acc;
    real *dots, *across;
    i64 rows;

    template <int R>
    __device__ void take_states(Tile<R>& y, Rows x, const Steps& t, i64 c0, real* scratch) const {
        if (across) sum(across, y, x, t, c0, scratch);
    }
    template <int R>
    __device__ void take(Tile<R>& y, Rows x, const Steps& t, i64 c0, real* scratch) const {
        if (dots) sum(dots, y, x, t, c0, scratch);
        if (dx)
            y.each([&](int r, int c, real dy) {
                if (r < t.n && c0 + c < x.width) put(dx + t.at(r) * x.width + c0 + c, x.scale * dy, acc);
            });
    }
    template <int R>
    __device__ void sum(real* to, Tile<R>& y, Rows x, const Steps& t, i64 c0, real* scratch) const {
        real sums[Tile<R>::ROWS];
#pragma unroll
        for (int i = 0; i < Tile<R>::ROWS; i++) {
            sums[i] = 0;
#pragma unroll
            for (int j = 0; j < Tile<R>::COLS; j++) sums[i] += x.get(t, y.row(i), c0 + y.col(j)) * y.v[i][j];
        }
        Tile<R>::across(sums, scratch);
        if (y.col(0) == 0)
            for (int i = 0; i < Tile<R>::ROWS; i++)
                if (y.row(i) < t.n) to[c0 / Tile<R>::C * rows + t.at(y.row(i))] = sums[i];
    }
    __device__ bool wanted() const { return dx || dots || across; }
};

// dQ and dK of a tile of columns.
template <int R, class P, class G>
__device__ void keys(Rows q, Rows k, Wide v, Wide g, const P* h, const real* dh, G gates, Target dq, Target dk, Dims d) {
    real* memory = dynamic_memory();
    constexpr int C = Tile<R>::C, MLD = Tile<R>::MLD;
    real* m = memory + Tile<R>::SCRATCH;
    const i64 across = tiles(d.k, C), c0 = blockIdx.x % across * C;
    const Steps t(d, blockIdx.x / across);
    const auto weights = gates.template load<R>(t, m, m + Tile<R>::MATRIX);
    const int w = (int)d.w;
    const auto value = [&](int s, int j) { return v.get(t, s, j); };
    const auto cotangent = [&](int s, int j) { return g.get(t, s, j); };
    lower_product<R>(m, memory, w, cotangent, value, [&](int r, int s) { return weights.between(r, s); });
    if (dq.wanted()) {
        Tile<R> y;
        y.template add<1, 1>(memory, w, cotangent, [&](int j, int c) { return state(h, d, t.id, c0 + c, j); });
        y.scale_rows([&](int r) { return weights.start(r); });
        dq.take_states<R>(y, q, t, c0, memory);
        y.template add_lower<1, 0>(
            memory, t.n, [&](int r, int s) { return m[r * MLD + s]; },
            [&](int s, int c) { return k.get(t, s, c0 + c); });
        dq.take<R>(y, q, t, c0, memory);
    }
    if (dk.wanted()) {
        Tile<R> y;
        y.template add<1, 1>(memory, w, value, [&](int j, int c) { return state(dh, d, t.id, c0 + c, j); });
        y.scale_rows([&](int s) { return weights.end(s); });
        dk.take_states<R>(y, k, t, c0, memory);
        y.template add<0, 0>(
            memory, t.n, [&](int r, int s) { return m[s * MLD + r]; },
            [&](int s, int c) { return q.get(t, s, c0 + c); });
        dk.take<R>(y, k, t, c0, memory);
    }
}

// dV, without the column of ones, of a tile of columns.
template <int R, class G>
__device__ void values(Rows q, Rows k, Wide g, const real* dh, G gates, S* dv, int acc, Dims d) {
    real* memory = dynamic_memory();
    constexpr int C = Tile<R>::C, MLD = Tile<R>::MLD;
    real* m = memory + Tile<R>::SCRATCH;
    const i64 across = tiles(d.v, C), c0 = blockIdx.x % across * C;
    const Steps t(d, blockIdx.x / across);
    const auto weights = gates.template load<R>(t, m, m + Tile<R>::MATRIX);
    const auto key = [&](int s, int i) { return k.get(t, s, i); };
    scores<R>(weights, m, memory, (int)d.k, [&](int r, int i) { return q.get(t, r, i); }, key);
    Tile<R> y;
    y.template add<1, 0>(memory, (int)d.k, key, [&](int i, int c) { return state(dh, d, t.id, i, c0 + c); });
    y.scale_rows([&](int s) { return weights.end(s); });
    y.template add<0, 0>(
        memory, t.n, [&](int r, int s) { return m[s * MLD + r]; },
        [&](int s, int c) { return g.get(t, s, c0 + c); });
    y.each([&](int r, int c, real x) {
        if (dv && r < t.n && c0 + c < d.v) put(dv + t.at(r) * d.v + c0 + c, x, acc);
    });
}

// The gradient of each step's gate, to put(step, dg): `all` that every step has of it; m(u, s), below the diagonal, for
// every pair of steps s < step <= u; start(u) for what step u >= step reads of the state before the chunk; and end(s)
// for what step s < step leaves in the one after it.
template <int R, class A, class E, class F>
__device__ void through_gates(real* m, int n, real all, A start, E end, F put) {
    constexpr int MLD = Tile<R>::MLD;
    const int step = threadIdx.x;
    // In place of each entry the sum of those from its row down.
    for (int u = n - 2; u > step; u--) m[u * MLD + step] += m[(u + 1) * MLD + step];
    __syncthreads();
    if (step >= n) return;
    for (int s = 0; s < step; s++) all += m[step * MLD + s] + end(s);
    for (int u = step; u < n; u++) all += start(u);
    put(step, all);
}

// --- The delta rule. ---

// Numbers of a chunk that are padded to C rows: W, E, dE and G [chunk of head, C, width].
template <int R>
struct Padded {
    real* x;
    i64 width, id;

    __device__ real get(int r, i64 j) const { return j < width ? x[(id * Tile<R>::C + r) * width + j] : real(0); }
    __device__ void set(int r, i64 j, real y) const {
        if (j < width) x[(id * Tile<R>::C + r) * width + j] = y;
    }
};

// What a gate does inside a chunk (as in ops/decay.rs), from the sums b_t = g_1 + … + g_t. They are two doubles each,
// the second what was rounded off the first, so that their differences have all the digits of a real.
struct Decay {
    const double *b, *rest;

    __device__ real between(int t, int s) const {
        return b ? exp((real)(b[t] - b[s] + (rest[t] - rest[s]))) : real(1);
    }
    __device__ real since_start(int t) const { return b ? exp((real)b[t]) : real(1); }
};

// In shared memory: what a chunk has one of a step.
template <int R>
struct Scalars {
    enum { C = Tile<R>::C, SIZE = 7 * C };
    double *sums, *rest, *gates;
    real* beta;

    __device__ Scalars(real* memory)
        : sums((double*)memory), rest(sums + C), gates(rest + C), beta((real*)(gates + C)) {}

    // A gate below exp(-1e4) is 0 in any case; -inf would make differences of sums NaN. What was written before the
    // call may be read by everybody after it.
    __device__ Decay load(const Steps& t, const S* b, const real* g) {
        const int r = threadIdx.x;
        if (r < C) beta[r] = b ? t.get(b, 1, r, 0) : real(1);
        if (g && r < C) {
            const real gate = t.get(g, 1, r, 0);
            gates[r] = gate < -1e4 ? real(-1e4) : gate; // NaN stays
        }
        __syncthreads();
        if (g && r < C) {
            double sum = 0, more = 0;
            for (int u = 0; u <= r; u++) {
                const double before = sum, added = gates[u];
                sum = before + added;
                const double part = sum - before;
                more += before - (sum - part) + (added - part);
            }
            sums[r] = sum, rest[r] = more;
        }
        __syncthreads();
        return Decay{g ? sums : nullptr, rest};
    }
};

}  // namespace memories
