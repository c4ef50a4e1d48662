// Matrix memories in chunks of C steps: what linear attention, the mLSTM and the delta rule share. Heads are those of
// tensors [B, T, H, K]; products are made of tiles (tiles.cuh).
//
// The first two are one computation with other weights, all products of gates and at most 1: D_ts that of step s at
// step t, γ_t that of the state before the chunk at step t, r_s that of step s in the state after it, Γ = γ_C; all 1
// without gates. With Q, K [C, K], V̂ [C, W] the rows of a chunk and S the state before it, dS⁺ the gradient of the one
// after it:
//
//   M = (Q Kᵀ) ⊙ D      O = γ Q S + M V̂          S⁺ = Γ S + (r K)ᵀ V̂
//   dM = (dO V̂ᵀ) ⊙ D    dQ = γ dO Sᵀ + dM K      dK = dMᵀ Q + r V̂ dS⁺ᵀ     dV̂ = Mᵀ dO + r K dS⁺
//                                                 dS = Γ dS⁺ + (γ Q)ᵀ dO
//
// Only the states depend on other chunks, so they come first, forwards and backwards: what each chunk adds (outer),
// then sums over the chunks of a head (scan, in order: the same result whatever the grid). All else is of every chunk
// at once.
//
// Tiling: a block of 256 threads has a tile of C x C numbers of one chunk: of M or dM in shared memory first, then of
// an output. With B H T / C chunks times the tiles of a row there are blocks enough for a GPU. Memory: q, k, v, o and
// 4 K W / C numbers a step for the states, what is added to them and they themselves; operations: 2 (C (K + W) + 2 K W)
// a step forward, 2.5 times that backward. One block that goes from chunk to chunk would neither
// write nor read what is added.
//
// A file that uses this says `using namespace memories;`.

namespace memories {

using namespace tiled;

// W is the width of a state, V or one more.
struct Dims {
    i64 t, h, k, v, w, chunk, chunks;
    // The row of step s of a head in tensors [B, T, H, ..].
    __device__ i64 row(u32 head, i64 s) const { return (head / (u32)h * t + s) * h + head % (u32)h; }
};

// The steps of one chunk: the block's, of (chunk of head, tile, tile). Row `at(s)` of a tensor [B T H, ..] is step s.
struct Steps {
    i64 id, first, apart;
    int n;

    __device__ Steps(const Dims& d, u32 id) : Steps(d, id / (u32)d.chunks, id % (u32)d.chunks) {}
    __device__ Steps(const Dims& d, u32 head, i64 chunk) : id(head * d.chunks + chunk), apart(d.h) {
        const i64 start = chunk * d.chunk;
        first = d.row(head, 0) + start * d.h;
        n = (int)(d.t - start < d.chunk ? d.t - start : d.chunk);
    }

    __device__ i64 at(int s) const { return first + s * apart; }

    // Element j of step s of x [B, T, H, width]; 0 beyond the edges.
    template <class P>
    __device__ real get(const P* x, i64 width, int s, i64 j) const {
        return s < n && j < width ? ld(x + at(s) * width + j) : real(0);
    }
    // Its columns from c0 on, a row a step; none if it is null. And where they are written.
    template <class P>
    __device__ Matrix<P> rows(const P* x, int width, int c0 = 0) const {
        return {x ? x + first * width + c0 : nullptr, (u32)apart * width, n, width - c0};
    }
    template <class P>
    __device__ Target<P> to(P* x, int width, int c0, int acc = 0) const {
        return {x ? x + first * width + c0 : nullptr, (u32)apart * width, n, width - c0, acc};
    }
};

// States [chunk of head, K W]: S [K, V] each and, behind it, z [K] where W is V + 1. Rows of S from i0 on, and columns
// from c0.
template <class P>
__device__ Matrix<P> state(const P* s, const Dims& d, i64 id, int i0, int c0) {
    const int k = (int)d.k, v = (int)d.v;
    return {s ? s + id * (k * d.w) + i0 * v + c0 : nullptr, (u32)v, k - i0, v - c0};
}
template <class P>
__device__ real last_column(const P* s, const Dims& d, i64 id, int i) {
    const int k = (int)d.k;
    return i < k ? ld(s + id * (k * d.w) + k * d.v + i) : real(0);
}

// --- Linear attention with weights. ---

// A tensor [B, T, H, width] times a number.
struct Rows {
    const S* x;
    i64 width;
    real scale;

    // Without the number.
    __device__ Matrix<S> rows(const Steps& t, int c0 = 0) const { return t.rows(x, width, c0); }
};

// v̂ = [v, 1] or dô = [by do, last]: [B, T, H, W], of which only the V first columns are a tensor; zeros if it is null.
// Products take these as they are, and what else there is comes to it behind them.
struct Wide {
    const S* x;
    const real *by, *last;
    i64 v, w;

    __device__ Matrix<S> rows(const Steps& t, int c0 = 0) const { return t.rows(x, v, c0); }
    __device__ real factor(const Steps& t, int s) const { return by && s < t.n ? by[t.at(s)] : real(1); }
    // The last column, if it is not a tensor's.
    __device__ real beyond(const Steps& t, int s) const {
        return w == v || s >= t.n ? real(0) : last ? last[t.at(s)] : real(1);
    }
};

// A Bᵀ of steps, below and on the diagonal, each number x of row r as of(r)(column, x).
template <int R, class A, class B, class F>
__device__ Tile<R> lower_product(const Steps& t, real* scratch, i64 depth, const A& a, const B& b, F of) {
    Tile<R> p;
    p.template add<1, 1>(scratch, (int)depth, a, b);
    p.by_rows([&](int r) {
        const auto f = of(r);
        const bool there = r < t.n;
        return [=](int c, real x) { return there && c <= r ? f(c, x) : real(0); };
    });
    return p;
}

// To C x C numbers of the kernel's own, in shared memory.
template <int R>
__device__ void keep(real* m, const Tile<R>& x) {
    x.runs([&](int r, int c, const real (&run)[Tile<R>::RUN]) { write(m + r * Tile<R>::MLD + c, run); });
}

// m = M with weights, and each row times by(row), for Tile::add to read; or as it is known.
template <int R, class W, class F>
__device__ void scores(const Steps& t, const W& weights, const typename Tile<R>::Own& m, real* scratch, Rows q, Rows k,
                       F by) {
    if (weights.scores) return m.copy(weights.scores);
    m.set(lower_product<R>(t, scratch, q.width, q.rows(t), k.rows(t), [&](int r) {
        const real factor = q.scale * k.scale * by(r);
        return [=](int s, real x) { return weights.between(r, s) * (factor * x); };
    }));
}

// h [chunk of head, K W]: what a chunk adds to the state, (r A)ᵀ Y, or BACK to its gradient, (γ A)ᵀ Y.
template <int R, bool BACK, class G>
__device__ void outer(Rows a, Wide y, G gates, real* h, Dims d) {
    real* memory = dynamic_memory();
    constexpr int C = Tile<R>::C;
    const u32 across = tiles(d.v > 0 ? d.v : 1, C), down = tiles(d.k, C);
    const u32 c0 = blockIdx.x % across * C, r0 = blockIdx.x / across % down * C;
    const Steps t(d, blockIdx.x / across / down);
    const auto weights = gates.template load<R>(t, false, memory + Tile<R>::SCRATCH);
    const auto weight = [&](int s) { return a.scale * (BACK ? weights.start(s) : weights.end(s)); };
    h += t.id * d.k * d.w;
    Tile<R> sum;
    sum.template add<0, 0>(
        memory, t.n, scaled(a.rows(t, r0), [&](int s) { return weight(s) * y.factor(t, s); }), y.rows(t, c0));
    sum.put(Target<real>(h + r0 * d.v + c0, (u32)d.v, (int)d.k - r0, (int)d.v - c0));
    if (d.w == d.v || c0 > 0) return;
    // The last column, PARTS threads to a number.
    constexpr int PARTS = 16 / R;
    const int i = threadIdx.x / PARTS;
    const Matrix<S> rows = a.rows(t, r0);
    real last = 0;
    for (int s = threadIdx.x % PARTS; s < t.n; s += PARTS) last += weight(s) * rows(s, i) * y.beyond(t, s);
    last = group_sum(last, PARTS, (real*)nullptr);
    if (threadIdx.x % PARTS == 0 && i < rows.width) h[d.k * d.v + r0 + i] = last;
}

// The states between chunks from what each adds to them: x = Γ x + added, from [s, z], or zeros, to [s_end, z_end]
// and `end`, as far as they are wanted. `states` gets x before each chunk, or after it if REVERSE, when time runs
// backwards; it may be `added` itself. A thread has an element of a state.
enum { AHEAD = 8 };
template <bool REVERSE, class P, class G>
__device__ void scan(const S* s, const S* z, const real* added, G gates, P* states, S* s_end, int s_acc, S* z_end,
                     int z_acc, real* end, i64 heads, Dims d) {
    const i64 size = d.k * d.w, most = d.k * d.v;
    for (i64 n = thread(); n < heads * size; n += threads()) {
        const i64 head = divide(n, size), e = n - head * size;
        const bool last = e >= most; // column
        const i64 at = last ? head * d.k + e - most : head * most + e, row = last ? e - most : divide(e, d.v);
        const S* from = last ? z : s;
        real x = from ? ld(from + at) : real(0);
        for (i64 first = 0; first < d.chunks; first += AHEAD) {
            // Several chunks at once: no read waits for the write before it, which may be to the same array.
            real more[AHEAD], whole[AHEAD];
#pragma unroll
            for (int i = 0; i < AHEAD; i++) {
                if (first + i >= d.chunks) break;
                const Steps t(d, (u32)head, REVERSE ? d.chunks - 1 - first - i : first + i);
                more[i] = added[t.id * size + e];
                whole[i] = gates.whole(t, d, row);
            }
#pragma unroll
            for (int i = 0; i < AHEAD; i++) {
                if (first + i >= d.chunks) break;
                const i64 id = head * d.chunks + (REVERSE ? d.chunks - 1 - first - i : first + i);
                st(states + id * size + e, x);
                x = whole[i] * x + more[i];
            }
        }
        if (end) end[n] = x;
        S* to = last ? z_end : s_end;
        if (to) put(to + at, x, last ? z_acc : s_acc);
    }
}

// `outer` and `scan` in one kernel: a block has C rows and 32 columns of a head's state, and goes from chunk to chunk. The
// chunks' additions never go to memory. It takes many heads to fill a device. ONES: W is V + 1, and the blocks of the first
// columns have the last one, too: a product of the same rows, where they lie in shared memory.
template <int R, bool BACK, bool ONES, class P, class G>
__device__ void along(const S* s, const S* z, Rows a, Wide y, G gates, P* states, S* s_end, int s_acc, S* z_end, int z_acc,
                      real* end, Dims d) {
    typedef Tile<R, 2> T;
    real* memory = dynamic_memory();
    const u32 across = tiles(d.v, T::W), down = tiles(d.k, T::C), head = blockIdx.x / across / down;
    const int c0 = blockIdx.x % across * T::W, r0 = blockIdx.x / across % down * T::C, k = (int)d.k, v = (int)d.v;
    const i64 size = d.k * (ONES ? d.w : d.v), first = r0 * d.v + c0;
    T sum;
    if (s) sum.add_rows(Matrix<S>(s + head * d.k * d.v + first, (u32)v, k - r0, v - c0));
    // PARTS threads have a number of the last column, each the share of some of the steps.
    constexpr int PARTS = 256 / T::C;
    const int own = (int)threadIdx.x / PARTS, part = (int)threadIdx.x % PARTS;
    const bool ones = ONES && c0 == 0, there = part == 0 && r0 + own < k;
    real last = ones && z && there ? ld(z + head * d.k + r0 + own) : real(0);
    real* ratios = memory + T::SCRATCH + G::SIZE * T::C;
    // From chunk to chunk everything moves by the same number of rows.
    const int chunks = (int)d.chunks, tail = (int)(d.t - (d.chunks - 1) * d.chunk);
    const i64 by = BACK ? -d.chunk * d.h : d.chunk * d.h;
    Steps here(d, head, BACK ? chunks - 1 : 0);
    const auto move = [&](Steps& t, Matrix<S>& rows, Matrix<S>& others, int n) {
        t.id += BACK ? -1 : 1, t.first += by, t.n = BACK || n + 1 < chunks ? (int)d.chunk : tail;
        rows.x += by * k, rows.rows = t.n;
        others.x += by * v, others.rows = y.x ? t.n : 0;
    };
    Matrix<S> rows = a.rows(here, r0), others = y.rows(here, c0);
    P* to = states + here.id * size + first;
    auto ahead = gates.template fetch<R>(here);
    for (int n = 0; n < chunks; n++) {
        const auto now = ahead;
        if (n + 1 < chunks) {
            Steps next = here;
            Matrix<S> next_rows = rows, next_others = others;
            move(next, next_rows, next_others, n + 1);
            next_rows.template prefetch<T::C>();
            next_others.template prefetch<T::W>();
            ahead = gates.template fetch<R>(next);
        }
        sum.put(Target<P>(to, (u32)v, k - r0, v - c0));
        if (ones) {
            const real x = group_sum(last, PARTS, (real*)nullptr);
            if (there) st(to - first + d.k * d.v + r0 + own, x);
        }
        to += BACK ? -size : size;
        const auto weights = gates.template load<R>(here, now, memory + T::SCRATCH);
        sum.scale_rows([&](int r) { return r0 + r < k ? gates.kept(weights, here, d, r0 + r) : real(0); });
        if (ones && r0 + own < k) last *= gates.kept(weights, here, d, r0 + own);
        // In rows there is a factor that the last column does not have. The threads may still read those of the chunk before.
        real* ratio = ratios + n % 2 * T::C;
        if (ones && BACK && (int)threadIdx.x < T::C) {
            const real factor = y.factor(here, threadIdx.x), x = y.beyond(here, threadIdx.x);
            ratio[threadIdx.x] = factor == 0.0 ? x : x / factor;
        }
        const auto weight = [&](int s) { return a.scale * (BACK ? weights.start(s) : weights.end(s)) * y.factor(here, s); };
        sum.template add<0, 0>(memory, here.n, scaled(rows, weight), others);
        if (ones) {
            const auto* slice = (const typename T::T*)memory + own;
            for (int s = part; s < here.n; s += PARTS) {
                const real x = T::TENSOR ? ld(slice + s * T::template stride<0, T::C>()) : weight(s) * rows(s, own);
                last += x * (BACK ? ratio[s] : real(1));
            }
            // The weights are read here, too.
            if (!T::TENSOR) __syncthreads();
        }
        move(here, rows, others, n + 1);
    }
    if (s_end) sum.put(Target<S>(s_end + head * d.k * d.v + first, (u32)v, k - r0, v - c0, s_acc));
    if (end) sum.put(Target<real>(end + head * size + first, (u32)v, k - r0, v - c0));
    if (!ones) return;
    last = group_sum(last, PARTS, (real*)nullptr);
    if (there && z_end) put(z_end + head * d.k + r0 + own, last, z_acc);
    if (there && end) end[head * size + d.k * d.v + r0 + own] = last;
}

// A number to multiply with, and one to divide by.
struct Ratio { real times, by; };

// O, or, if NORMALISED, O times what ratio(its last column, row of [B, T, H], whether this block is the one of the row
// to store it) gives.
template <int R, bool NORMALISED, class G, class N>
__device__ void outputs(Rows q, Rows k, const S* v, const S* h, G gates, S* o, N ratio, Dims d) {
    real* memory = dynamic_memory();
    constexpr int C = Tile<R>::C;
    const typename Tile<R>::Own m(memory + Tile<R>::SCRATCH);
    Ratio* ratios = (Ratio*)(memory + Tile<R>::SCRATCH + Tile<R>::OWN);
    const u32 across = tiles(d.v > 0 ? d.v : 1, C), c0 = blockIdx.x % across * C;
    const Steps t(d, blockIdx.x / across);
    const auto weights = gates.template load<R>(t, true, (real*)(ratios + C));
    scores<R>(t, weights, m, memory, q, k, [](int) { return real(1); });
    Tile<R> y;
    y.template add<1, 0>(memory, (int)d.k, q.rows(t), state(h, d, t.id, 0, c0));
    y.scale_rows([&](int r) { return q.scale * weights.start(r); });
    y.template add_lower<1, 0>(memory, t.n, m, t.rows(v, d.v, c0));
    if constexpr (NORMALISED) {
        // The column of ones: q z and the sum of a row of M, PARTS threads to a row.
        constexpr int PARTS = 16 / R;
        constexpr int PACK = 16 / sizeof(S);
        const int r = threadIdx.x / PARTS, part = threadIdx.x % PARTS;
        const Matrix<S> query = q.rows(t), z{h + t.id * d.k * d.w + d.k * d.v, 0, 1, (int)d.k};
        const bool even = query.template even<PACK>() && z.template even<PACK>();
        real before = 0, sum = 0;
        for (int i = PACK * part; r < t.n && i < d.k; i += PACK * PARTS) {
            real a[PACK], b[PACK];
            query.get(a, r, i, even);
            z.get(b, 0, i, even);
            for (int n = 0; n < PACK; n++) before += a[n] * b[n];
        }
        // Beyond the last step there are zeros.
        for (int s = 8 * part; s < C; s += 8 * PARTS) {
            real y[8];
            read(y, m.x + r * Tile<R>::MLD + s);
            for (int n = 0; n < 8; n++) sum += y[n];
        }
        sum = group_sum(q.scale * weights.start(r) * before + sum, PARTS, (real*)nullptr);
        if (threadIdx.x % PARTS == 0 && r < t.n) ratios[r] = ratio(sum, t.at(r), c0 == 0);
        __syncthreads();
        y.by_rows([&](int r) {
            const Ratio by = r < t.n ? ratios[r] : Ratio{1, 1};
            return [=](int, real x) { return by.times * x / by.by; };
        });
    }
    y.put(t.to(o, d.v, c0));
}

// Where the gradient y of x goes; and, if wanted, sums of x y over every one of `rows` and a tile's columns, [tiles of
// K, B T H]: `dots` of all of y, `across` of what comes to it through the states.
struct Gradient {
    S* dx;
    int acc;
    real *dots, *across;
    i64 rows;

    template <int R>
    __device__ void take_states(const Tile<R>& y, Rows x, const Steps& t, i64 c0, real* scratch) const {
        if (across) sum(across, y, x, t, c0, scratch);
    }
    template <int R>
    __device__ void take(const Tile<R>& y, Rows x, const Steps& t, i64 c0, real* scratch) const {
        if (dots) sum(dots, y, x, t, c0, scratch);
        y.put(t.to(dx, x.width, c0, acc));
    }
    template <int R>
    __device__ void sum(real* to, const Tile<R>& y, Rows x, const Steps& t, i64 c0, real* scratch) const {
        const Matrix<S> all = x.rows(t, c0);
        real sums[Tile<R>::ROWS];
#pragma unroll
        for (int i = 0; i < Tile<R>::ROWS; i++) {
            sums[i] = 0;
#pragma unroll
            for (int j = 0; j < Tile<R>::COLS; j++) sums[i] += all(y.row(i), y.col(j)) * y.v[i][j];
        }
        Tile<R>::horizontal_sum(sums, scratch);
        if (y.col(0) == 0)
            for (int i = 0; i < Tile<R>::ROWS; i++)
                if (y.row(i) < t.n) to[c0 / Tile<R>::C * rows + t.at(y.row(i))] = sums[i];
    }
    __device__ bool wanted() const { return dx || dots || across; }
};

// y = by (a [S z]ᵀ) for columns from c0 of the state before or after a chunk.
template <int R, class P, class F>
__device__ void through_state(Tile<R>& y, real* scratch, Wide a, const P* s, const Steps& t, const Dims& d, i64 c0,
                              F by) {
    y.template add<1, 1>(scratch, (int)d.v, a.rows(t), state(s, d, t.id, c0, 0));
    y.by_rows([&](int r) {
        const real weight = by(r), factor = a.factor(t, r), last = a.beyond(t, r);
        return [=, &d, &t](int c, real x) {
            return weight * (factor * x + (d.w > d.v ? last * last_column(s, d, t.id, c0 + c) : real(0)));
        };
    });
}

// dQ and dK of a tile of columns. What scales Q and K is in dM, and in what comes through the states.
template <int R, class P, class G>
__device__ void keys(Rows q, Rows k, Wide v, Wide g, const S* h, const P* dh, G gates, Gradient dq, Gradient dk,
                     Dims d) {
    real* memory = dynamic_memory();
    constexpr int C = Tile<R>::C;
    const typename Tile<R>::Own m(memory + Tile<R>::SCRATCH);
    const u32 across = tiles(d.k, C), c0 = blockIdx.x % across * C;
    const Steps t(d, blockIdx.x / across);
    const auto weights = gates.template load<R>(t, true, memory + Tile<R>::SCRATCH + Tile<R>::OWN);
    m.set(lower_product<R>(t, memory, d.v, g.rows(t), v.rows(t), [&](int r) {
        const real factor = g.factor(t, r), last = g.beyond(t, r), scale = q.scale * k.scale;
        return [=](int s, real x) { return scale * weights.between(r, s) * (factor * x + last); };
    }));
    if (dq.wanted()) {
        Tile<R> y;
        through_state<R>(y, memory, g, h, t, d, c0, [&](int r) { return q.scale * weights.start(r); });
        dq.take_states<R>(y, q, t, c0, memory);
        y.template add_lower<1, 0>(memory, t.n, m, k.rows(t, c0));
        dq.take<R>(y, q, t, c0, memory);
    }
    if (dk.wanted()) {
        Tile<R> y;
        through_state<R>(y, memory, v, dh, t, d, c0, [&](int s) { return k.scale * weights.end(s); });
        dk.take_states<R>(y, k, t, c0, memory);
        y.template add<0, 0>(memory, t.n, m, q.rows(t, c0));
        dk.take<R>(y, k, t, c0, memory);
    }
}

// dV, without the column of ones, of a tile of columns.
template <int R, class P, class G>
__device__ void values(Rows q, Rows k, Wide g, const P* dh, G gates, S* dv, int acc, Dims d) {
    real* memory = dynamic_memory();
    constexpr int C = Tile<R>::C;
    const typename Tile<R>::Own m(memory + Tile<R>::SCRATCH);
    const u32 across = tiles(d.v, C), c0 = blockIdx.x % across * C;
    const Steps t(d, blockIdx.x / across);
    const auto weights = gates.template load<R>(t, true, memory + Tile<R>::SCRATCH + Tile<R>::OWN);
    scores<R>(t, weights, m, memory, q, k, [&](int r) { return g.factor(t, r); });
    Tile<R> y;
    y.template add<1, 0>(memory, (int)d.k, k.rows(t), state(dh, d, t.id, 0, c0));
    y.scale_rows([&](int s) { return k.scale * weights.end(s); });
    y.template add<0, 0>(memory, t.n, m, g.rows(t, c0));
    y.put(t.to(dv, d.v, c0, acc));
}

// The gradient of each step's gate, to put(step, dg): `all` that every step has of it; x(u, s), below the diagonal, for
// every pair of steps s < step <= u; start(u) for what step u >= step reads of the state before the chunk; and end(s)
// for what step s < step leaves in the one after it. Behind the last step there are zeros. `m` is room for C x C numbers.
template <int R, class A, class E, class F>
__device__ void through_gates(Tile<R>& x, real* scratch, real* m, int n, real all, A start, E end, F put) {
    constexpr int C = Tile<R>::C, MLD = Tile<R>::MLD, PARTS = 256 / C;
    x.sum_before(scratch);
    x.by_rows([&](int u) {
        const real first = start(u);
        return [=](int, real sum) { return first + sum; };
    });
    keep<R>(m, x);
    __syncthreads();
    const int step = threadIdx.x % C;
    real sum = 0;
#pragma unroll
    for (int first = 0; first < C; first += PARTS) {
        const int u = first + threadIdx.x / C;
        sum += u < step ? end(u) : m[u * MLD + step];
    }
    scratch[threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.x >= n) return;
    for (int part = 0; part < PARTS; part++) all += scratch[part * C + step];
    put(step, all);
}

// --- The delta rule. ---

// Numbers of a chunk that are padded to C rows: W, E, dE and G [chunk of head, C, width]. The first `n` rows, and
// columns from c0 on; all can be written.
template <int R, class P>
struct Padded {
    P* x;
    int width;
    i64 id;

    __device__ Padded(const P* x, i64 width, i64 id) : x((P*)x), width((int)width), id(id) {}
    __device__ P* at(int c0) const { return x + id * (Tile<R>::C * width) + c0; }
    __device__ Matrix<P> rows(int c0 = 0, int n = Tile<R>::C) const { return {at(c0), (u32)width, n, width - c0}; }
    __device__ Target<P> to(int c0) const { return {at(c0), (u32)width, Tile<R>::C, width - c0}; }
};

// A sum, and what was rounded off it: differences of such sums have all the digits of a real.
struct __align__(2 * sizeof(real)) Sum {
    real sum, rest;

    __device__ Sum operator+(const Sum& y) const {
        const real all = sum + y.sum, part = all - sum;
        return {all, rest + y.rest + (sum - (all - part) + (y.sum - part))};
    }
};

// The decay by a gate inside a chunk (as in ops/decay.rs), from the sums b_t = g_1 + … + g_t, as exponents of 2.
struct Decay {
    const Sum* b;

    __device__ real between(int t, int s) const {
        return b ? quick_exp2(b[t].sum - b[s].sum + (b[t].rest - b[s].rest)) : real(1);
    }
    __device__ real since_start(int t) const { return b ? quick_exp2(b[t].sum) : real(1); }
};

// In shared memory: what a chunk has one of a step.
template <int R>
struct Scalars {
    enum { C = Tile<R>::C, SIZE = 3 * C };
    Sum* sums;
    real* beta;

    __device__ Scalars(real* memory) : sums((Sum*)memory), beta(memory + 2 * C) {}

    // A gate below exp(-FAR) is 0 in any case; -inf would make differences of sums NaN. What was written before the
    // call may be read by everybody after it.
    __device__ Decay load(const Steps& t, const S* b, const real* g) {
        const int r = threadIdx.x;
        if (r < C) beta[r] = b ? t.get(b, 1, r, 0) : real(1);
        if (g) {
            // The first warp sums, EACH neighbours a thread.
            constexpr int EACH = C > 32 ? C / 32 : 1;
            Sum x[EACH] = {}, before = {};
            if (r < 32) {
#pragma unroll
                for (int i = 0; i < EACH; i++) {
                    const Sum gate = {LOG2_E * at_least(t.get(g, 1, EACH * r + i, 0), -FAR), 0};
                    x[i] = i > 0 ? x[i - 1] + gate : gate;
                }
                Sum all = x[EACH - 1];
                for (int o = 1; o <= 16; o *= 2) {
                    before = from_below(all, o);
                    if (r >= o) all = before + all;
                }
                before = from_below(all, 1);
            }
            // Until here others may read the sums of the chunk before.
            __syncthreads();
#pragma unroll
            for (int i = 0; i < EACH; i++)
                if (r < C / EACH) sums[EACH * r + i] = r > 0 ? before + x[i] : x[i];
        }
        __syncthreads();
        return {g ? sums : nullptr};
    }
    static __device__ Sum from_below(const Sum& x, int o) {
        return {__shfl_up_sync(0xffffffffu, x.sum, o), __shfl_up_sync(0xffffffffu, x.rest, o)};
    }
};

}  // namespace memories
