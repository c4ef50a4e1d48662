// The delta rules in chunks of C steps (the equations stand in chunk.rs): with keys β k to erase by, and no gate or
// one; or with keys of their own, and no gates or one a channel.
//
// Each step of a chunk needs those before it, but only through (I + A)⁻¹, and A needs no state. So all chunks of all
// heads are prepared at once, in the WY form: X = (I + A)⁻¹, W = X (b γ K), U = X b V, and only E = U − W S and
// S ← Γ S + (r K)ᵀ E go from chunk to chunk, independently for every column of S. Here b = diag(β), γ_t = α_1 … α_t,
// r_s = α_{s+1} … α_C and Γ = γ_C. Backwards as well:
//
//   forward    prepare, states, outputs
//   backward   prepare (with E from the saved states), through_outputs: dE = Mᵀ dO, states_backward: dE += r K dS and
//              dS ← Γ dS + (γ Q)ᵀ dO − Wᵀ dE, through_solve: G = Xᵀ dE and dV = b G, gradients: dQ, dK, dβ and dg
//
// With dM = tril(dO Eᵀ) and dA = −stril(G Eᵀ), both ⊙ D, P = b K and S and dS those before and after the chunk,
//
//   dQ = γ dO Sᵀ + dM K       dP = −γ G Sᵀ + dA K       dK = r E dSᵀ + dMᵀ Q + dAᵀ P + b dP
//   dβ = rowsum(dP ⊙ K + G ⊙ V)
//
// and dg has the four terms of decay.rs.
//
// With erase keys of their own, `fade` (fade.cuh) makes the scores M and A and the factors from and to the state: its
// results replace γ Q, r K and b γ K, all other factors are 1, and Γ has an element for each row of S. Backwards
// `through_reads` has the gradients through O, and `through_erasing` those through U.
//
// Tiling: a block of 256 threads has a chunk, or tiles of its columns (tiles.cuh, memories.cuh); in the two kernels
// that go along a head it has 32 columns of S, which stay in shared memory. Memory: q, k, v, o and 2 K + 2 V + C
// elements a step for W, E and X, and a state for each chunk; operations a step: C (2 K + 2 V) + 4 K V + C² / 3
// forward. Keys of their own take 3 K + 2 C elements a step more.

using namespace memories;

// Replaces A, of which only the entries below the diagonal count, by X = (I + A)⁻¹: blocks of 16 by substitution, a
// thread to a column; then pairs of blocks, X₂₁ = −X₂₂ A₂₁ X₁₁, until one is left. `room` is C² / 4 numbers.
template <int R>
__device__ void invert(real* m, real* room) {
    constexpr int C = Tile<R>::C, MLD = Tile<R>::MLD;
    const int c = threadIdx.x % 16, first = threadIdx.x / 16 * 16;
    real x[16];
    if (threadIdx.x < C) {
#pragma unroll
        for (int i = 0; i < 16; i++) {
            x[i] = i == c ? 1 : 0;
#pragma unroll
            for (int j = 0; j < i; j++) x[i] -= m[(first + i) * MLD + first + j] * x[j];
        }
    }
    __syncthreads();
    if (threadIdx.x < C) {
#pragma unroll
        for (int i = 0; i < 16; i++) m[(first + i) * MLD + first + c] = x[i];
    }
    __syncthreads();
#pragma unroll
    for (u32 w = 16; w < C; w *= 2) {
        // Two rows of four columns a thread. Above the diagonal X is 0.
        const auto add = [](real (&sum)[4], real a, const real (&x)[4]) {
#pragma unroll
            for (int i = 0; i < 4; i++) sum[i] += a * x[i];
        };
        for (u32 n = 4 * threadIdx.x; n < C * w / 4; n += 1024) {
            const u32 at = n / (w * w / 2) * 2 * w, r = n / w % (w / 2) * 2, c = n % w;
            const real* a = m + (at + w + r) * MLD + at;
            real sum[2][4] = {};
#pragma unroll 2
            for (u32 k = 0; k < w; k += 4) {
                real first[4], second[4], x[4];
                read(first, a + k), read(second, a + MLD + k);
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    read(x, m + (at + k + i) * MLD + at + c);
                    add(sum[0], first[i], x), add(sum[1], second[i], x);
                }
            }
            real* to = room + n / (w * w / 2) * w * w + r * w + c;
            write(to, sum[0]), write(to + w, sum[1]);
        }
        __syncthreads();
        for (u32 n = 4 * threadIdx.x; n < C * w / 4; n += 1024) {
            const u32 at = n / (w * w / 2) * 2 * w, r = n / w % (w / 2) * 2, c = n % w;
            const real *a = m + (at + w + r) * MLD + at + w, *from = room + n / (w * w / 2) * w * w + c;
            real sum[2][4] = {}, x[4];
#pragma unroll 4
            for (u32 k = 0; k <= r; k++) {
                read(x, from + k * w);
                add(sum[0], -a[k], x), add(sum[1], -a[MLD + k], x);
            }
            read(x, from + (r + 1) * w);
            add(sum[1], -a[MLD + r + 1], x);
            real* to = m + (at + w + r) * MLD + at + c;
            write(to, sum[0]), write(to + MLD, sum[1]);
        }
        __syncthreads();
    }
}

// X (if wanted), W, and U or, where the states are known, E. Where A is known, k are the keys to erase by.
template <int R>
__device__ void prepare(const S* k, const S* v, const S* beta, const real* g, const real* a, const S* states, S* x,
                        S* w, S* u, Dims d) {
    real* memory = dynamic_memory();
    typedef Tile<R> T;
    constexpr int C = T::C, MLD = T::MLD;
    real *m = memory + T::SCRATCH, *more = m + T::MATRIX, *room = more + T::MATRIX;
    const Steps t(d, blockIdx.x);
    Scalars<R> scalars(room + C * C / 4);
    const Decay decay = scalars.load(t, beta, g);
    const real* b = scalars.beta;
    if (a)
        for (u32 n = 4 * threadIdx.x; n < C * C; n += 1024) {
            real y[4];
            read(y, a + t.id * C * C + n);
            write(m + n / C * MLD + n % C, y);
        }
    else
        keep<R>(m, lower_product<R>(t, memory, d.k, t.rows(k, d.k), t.rows(k, d.k), [&](int r) {
            const real beta = b[r];
            return [=](int s, real x) { return s < r ? beta * decay.between(r, s) * x : real(0); };
        }));
    __syncthreads();
    invert<R>(m, room);
    if (x)
        for (u32 n = 4 * threadIdx.x; n < C * C; n += 1024) {
            real y[4];
            read(y, m + n / C * MLD + n % C);
            write(x + t.id * C * C + n, y);
        }
    // Rounded for tensor cores it takes half of the room there is.
    const typename T::Own inverse(T::TENSOR ? more : m), rhs(T::TENSOR ? more + T::OWN : more);
    if (T::TENSOR) inverse.copy(m, MLD);
    const Padded<R, S> ws(w, d.k, t.id);
    const Padded<R, S> us(u, d.v, t.id);
    for (i64 c0 = 0; c0 < d.k; c0 += C) {
        T y;
        y.template add_lower<1, 0>(
            memory, t.n, inverse, scaled(t.rows(k, d.k, c0), [&](int s) { return b[s] * decay.since_start(s); }));
        y.put(ws.to(c0));
    }
    for (i64 c0 = 0; c0 < d.v; c0 += C) {
        T y;
        const Matrix<S> value = t.rows(v, d.v, c0);
        if (states) {
            T seen;
            seen.template add<1, 0>(memory, (int)d.k, t.rows(k, d.k), state(states, d, t.id, 0, c0));
            seen.scale_rows([&](int r) { return -decay.since_start(r); });
            seen.add_rows(value);
            seen.scale_rows([&](int r) { return b[r]; });
            rhs.set(seen);
            y.template add_lower<1, 0>(memory, t.n, inverse, rhs);
        } else {
            y.template add_lower<1, 0>(memory, t.n, inverse, scaled(value, [&](int s) { return b[s]; }));
        }
        y.put(us.to(c0));
    }
}

// W columns of S, in shared memory or, where they are too long for it, in `room`, to and from [chunk of head, K, V]. A row
// takes LD numbers, so that neighbours below one another are in other banks.
struct Columns {
    enum { W = 32, LD = W + 8 };
    real* s;
    i64 c0;

    template <class P>
    __device__ void read_from(const P* from, const Dims& d, i64 id) const {
        const Matrix<P> x = state(from, d, id, 0, c0);
        for (int n = threadIdx.x; n < d.k * W; n += 256) s[n / W * LD + n % W] = x(n / W, n % W);
    }
    template <class P>
    __device__ void write_to(P* to, const Dims& d, i64 id, int acc = 0) const {
        to += id * d.k * d.v + c0;
        const bool even = d.v % 4 == 0 && (u64)to % (4 * sizeof(P)) == 0 && !acc;
        for (u32 n = 4 * threadIdx.x; n < d.k * W; n += 1024) {
            const int i = n / W, c = n % W;
            if (even && c0 + c < d.v) {
                real y[4];
                read(y, s + i * LD + c);
                write(to + i * d.v + c, y);
            } else {
                for (int j = c; j < c + 4 && c0 + j < d.v; j++) put(to + i * d.v + j, s[i * LD + j], acc);
            }
        }
    }
    __device__ Matrix<real> rows(const Dims& d) const { return {s, LD, (int)d.k, W}; }
    // S, rows from i0 on, becomes left(row) S + y.
    template <class T, class F>
    __device__ void update(const T& y, const Dims& d, i64 i0, F left) const {
        y.runs([&](int r, int c, const real (&run)[T::RUN]) {
            if (i0 + r >= d.k) return;
            const real factor = left(i0 + r);
            real x[T::RUN];
            read(x, s + (i0 + r) * LD + c);
#pragma unroll
            for (int u = 0; u < T::RUN; u++) x[u] = factor * x[u] + run[u];
            write(s + (i0 + r) * LD + c, x);
        });
    }
};

// Along a head: W columns of S. E stands in place of U afterwards.
template <int R>
__device__ void forward_states(const S* k, const real* g, const real* all, const S* s0, const S* w, S* u, S* states,
                               S* s_last, real* room, Dims d) {
    real* memory = dynamic_memory();
    typedef Tile<R, Columns::W / 16> T;
    constexpr int C = T::C, W = Columns::W, LD = Columns::LD;
    real* es = memory + T::SCRATCH;
    Scalars<R> scalars(es + C * LD);
    const u32 across = tiles(d.v, W), c0 = blockIdx.x % across * W, head = blockIdx.x / across;
    const Columns s{room ? room + (i64)blockIdx.x * d.k * LD : es + C * LD + Scalars<R>::SIZE, c0};
    s.read_from(s0, d, head);
    for (i64 chunk = 0; chunk < d.chunks; chunk++) {
        const Steps t(d, head, chunk);
        const Decay decay = scalars.load(t, nullptr, g);
        s.write_to(states, d, t.id);
        const Padded<R, S> ws(w, d.k, t.id);
        const Padded<R, S> us(u, d.v, t.id);
        // The rows that the next chunk reads are fetched meanwhile. (Kernels with a block for every chunk gain nothing
        // by it.)
        if (chunk + 1 < d.chunks) {
            const Steps next(d, head, chunk + 1);
            Padded<R, S>(w, d.k, next.id).rows().prefetch((int)d.k);
            Padded<R, S>(u, d.v, next.id).rows(c0).template prefetch<W>();
            next.rows(k, d.k).prefetch((int)d.k);
        }
        T y;
        y.template add<1, 0>(memory, (int)d.k, ws.rows(), s.rows(d));
        y.scale_rows([](int) { return real(-1); });
        y.add_rows(us.rows(c0));
        y.put(us.to(c0));
        y.scale_rows([&](int r) { return r < t.n ? decay.between(t.n - 1, r) : real(0); });
        y.runs([&](int r, int c, const real (&run)[T::RUN]) { write(es + r * LD + c, run); });
        const real whole = decay.since_start(t.n - 1);
        for (i64 i0 = 0; i0 < d.k; i0 += C) {
            T z;
            z.template add<0, 0>(memory, t.n, t.rows(k, d.k, i0), Matrix<real>(es, LD, t.n, W));
            s.update(z, d, i0, [&](i64 i) { return all ? all[t.id * d.k + i] : whole; });
        }
    }
    __syncthreads();
    s.write_to(s_last, d, head);
}

// M if it was computed before, else the rows from which it is computed.
struct Known {
    const real* scores;
    Decay decay;

    __device__ real between(int t, int s) const { return decay.between(t, s); }
};

// O = γ Q S + M E
template <int R>
__device__ void outputs(const S* q, const S* k, const real* g, const real* p, const S* states, const S* e, S* o,
                        real scale, Dims d) {
    real* memory = dynamic_memory();
    constexpr int C = Tile<R>::C;
    const typename Tile<R>::Own m(memory + Tile<R>::SCRATCH);
    const u32 across = tiles(d.v, C), c0 = blockIdx.x % across * C;
    const Steps t(d, blockIdx.x / across);
    Scalars<R> scalars(memory + Tile<R>::SCRATCH + Tile<R>::OWN);
    const Decay decay = scalars.load(t, nullptr, g);
    scores<R>(t, Known{p ? p + t.id * C * C : nullptr, decay}, m, memory, Rows{q, d.k, scale}, Rows{k, d.k, 1},
              [](int) { return real(1); });
    Tile<R> y;
    y.template add<1, 0>(memory, (int)d.k, t.rows(q, d.k), state(states, d, t.id, 0, c0));
    y.scale_rows([&](int r) { return scale * decay.since_start(r); });
    y.template add_lower<1, 0>(memory, t.n, m, Padded<R, S>(e, d.v, t.id).rows(c0, t.n));
    y.put(t.to(o, d.v, c0));
}

// dE = Mᵀ dO, the gradient of E through the outputs.
template <int R>
__device__ void through_outputs(const S* q, const S* k, const real* g, const real* p, const S* d_o, S* de,
                                real scale, Dims d) {
    real* memory = dynamic_memory();
    constexpr int C = Tile<R>::C;
    const typename Tile<R>::Own m(memory + Tile<R>::SCRATCH);
    const u32 across = tiles(d.v, C), c0 = blockIdx.x % across * C;
    const Steps t(d, blockIdx.x / across);
    Scalars<R> scalars(memory + Tile<R>::SCRATCH + Tile<R>::OWN);
    const Decay decay = scalars.load(t, nullptr, g);
    Tile<R> y;
    if (d_o) {
        scores<R>(t, Known{p ? p + t.id * C * C : nullptr, decay}, m, memory, Rows{q, d.k, scale}, Rows{k, d.k, 1},
                  [](int) { return real(1); });
        y.template add<0, 0>(memory, t.n, m, t.rows(d_o, d.v, c0));
    }
    y.put(Padded<R, S>(de, d.v, t.id).to(c0));
}

// Along a head from its end, as forward_states: the gradient of E through the states, dE += r K dS, and dS ← Γ dS + (γ
// Q)ᵀ dO − Wᵀ dE. `after` gets dS after each chunk.
template <int R>
__device__ void backward_states(const S* q, const S* k, const real* g, const real* all, const S* d_o, const S* ds_last,
                                const S* w, S* de, S* after, S* ds0, int acc, real* room, real scale, Dims d) {
    real* memory = dynamic_memory();
    typedef Tile<R, Columns::W / 16> T;
    constexpr int C = T::C, W = Columns::W, LD = Columns::LD;
    real* es = memory + T::SCRATCH;
    Scalars<R> scalars(es + C * LD);
    const u32 across = tiles(d.v, W), c0 = blockIdx.x % across * W, head = blockIdx.x / across;
    const Columns s{room ? room + (i64)blockIdx.x * d.k * LD : es + C * LD + Scalars<R>::SIZE, c0};
    s.read_from(ds_last, d, head);
    for (i64 chunk = d.chunks - 1; chunk >= 0; chunk--) {
        const Steps t(d, head, chunk);
        const Decay decay = scalars.load(t, nullptr, g);
        s.write_to(after, d, t.id);
        const Padded<R, S> ws(w, d.k, t.id);
        const Padded<R, S> des(de, d.v, t.id);
        if (chunk > 0) {
            const Steps next(d, head, chunk - 1);
            Padded<R, S>(w, d.k, next.id).rows().prefetch((int)d.k);
            Padded<R, S>(de, d.v, next.id).rows(c0).template prefetch<W>();
            next.rows(k, d.k).prefetch((int)d.k);
            if (d_o) next.rows(q, d.k).prefetch((int)d.k), next.rows(d_o, d.v, c0).template prefetch<W>();
        }
        T y;
        y.template add<1, 0>(memory, (int)d.k, t.rows(k, d.k), s.rows(d));
        y.by_rows([&](int r) {
            const real left = r < t.n ? decay.between(t.n - 1, r) : real(0);
            return [=, &t](int, real x) { return r < t.n ? left * x : real(0); };
        });
        y.add_rows(des.rows(c0, t.n));
        y.put(des.to(c0));
        y.runs([&](int r, int c, const real (&run)[T::RUN]) { write(es + r * LD + c, run); });
        const real whole = decay.since_start(t.n - 1);
        for (i64 i0 = 0; i0 < d.k; i0 += C) {
            T z;
            z.template add<0, 0>(memory, t.n, ws.rows(i0, t.n), Matrix<real>(es, LD, t.n, W));
            z.scale_rows([](int) { return real(-1); });
            if (d_o)
                z.template add<0, 0>(
                    memory, t.n, t.rows(q, d.k, i0),
                    scaled(t.rows(d_o, d.v, c0), [&](int s) { return scale * decay.since_start(s); }));
            s.update(z, d, i0, [&](i64 i) { return all ? all[t.id * d.k + i] : whole; });
        }
    }
    __syncthreads();
    if (ds0) s.write_to(ds0, d, head, acc);
}

// G = Xᵀ dE in place of dE, and dV = b G.
template <int R>
__device__ void through_solve(const S* beta, const S* x, S* de, S* dv, int acc, Dims d) {
    real* memory = dynamic_memory();
    constexpr int C = Tile<R>::C;
    const u32 across = tiles(d.v, C), c0 = blockIdx.x % across * C;
    const Steps t(d, blockIdx.x / across);
    const Padded<R, S> xs(x, C, t.id);
    const Padded<R, S> des(de, d.v, t.id);
    Tile<R> y;
    y.template add<0, 0>(memory, t.n, xs.rows(0, t.n), des.rows(c0, t.n));
    y.put(des.to(c0));
    if (beta) y.scale_rows([&](int r) { return t.get(beta, 1, r, 0); });
    y.put(t.to(dv, d.v, c0, acc));
}

// Where gradients go, and whether they are added.
struct Grads {
    S *q, *k, *beta;
    real* g;
    int q_acc, k_acc, beta_acc, g_acc;
};

// dQ, dK, dβ and dg of a chunk.
template <int R>
__device__ void gradients(const S* q, const S* k, const S* v, const S* beta, const real* g, const S* d_o, const S* states,
                          const S* after, const S* e, const S* G, Grads to, real scale, Dims d) {
    typedef Tile<R> T;
    real* memory = dynamic_memory();
    constexpr int C = T::C, MLD = T::MLD, RUN = T::RUN;
    // On tensor cores dM and dA take half of the room for them, and behind them is that of another slice.
    real *m = memory + T::SCRATCH, *more = m + 2 * T::OWN, *rows = m + 2 * T::MATRIX;
    const typename T::Own dm(m), da(m + T::OWN);
    const Steps t(d, blockIdx.x);
    Scalars<R> scalars(rows + 3 * C + 32);
    const Decay decay = scalars.load(t, beta, g);
    const real* b = scalars.beta;
    const auto query = t.rows(q, d.k), key = t.rows(k, d.k), cotangent = t.rows(d_o, d.v), value = t.rows(v, d.v);
    const auto written = Padded<R, S>(e, d.v, t.id).rows(0, t.n);
    const auto Gs = Padded<R, S>(G, d.v, t.id).rows(0, t.n);
    const int width = (int)d.v;
    {
        T x, y;
        x.template add_both<1, 1>(y, memory, more, width, cotangent, Gs, written);
        // dM has the factor `scale` of Q.
#pragma unroll
        for (int i = 0; i < T::ROWS; i++)
#pragma unroll
            for (int j = 0; j < T::COLS; j++) {
                const int r = T::row(i), s = T::col(j);
                const real by = decay.between(r, s);
                x.v[i][j] = r < t.n && s <= r ? scale * by * x.v[i][j] : real(0);
                y.v[i][j] = r < t.n && s < r ? -by * y.v[i][j] : real(0);
            }
        dm.set(x), da.set(y);
    }
    // For each step dβ, and two parts of the gradient of its gate's exponent: from its read of the state before the
    // chunk (start) and from its share in the state after it (end).
    real start[T::ROWS] = {}, end[T::ROWS] = {}, dbeta[T::ROWS] = {};
    for (i64 c0 = 0; c0 < d.k; c0 += C) {
        T y, h;
        const auto before = state(states, d, t.id, c0, 0);
        const auto keys = t.rows(k, d.k, c0), queries = t.rows(q, d.k, c0);
        y.template add_both<1, 1>(h, memory, more, width, cotangent, Gs, before);
        const bool even_keys = keys.template even<RUN>(), even_queries = queries.template even<RUN>();
#pragma unroll
        for (int i = 0; i < T::ROWS; i++) {
            const int r = T::row(i);
            const real first = decay.since_start(r);
#pragma unroll
            for (int j = 0; j < T::COLS; j++) y.v[i][j] *= scale * first, h.v[i][j] *= -first;
#pragma unroll
            for (int j = 0; j < T::COLS; j += RUN) {
                if (!g || !keys.has(r, T::col(j))) continue;
                real x[RUN], z[RUN];
                keys.get(x, r, T::col(j), even_keys), queries.get(z, r, T::col(j), even_queries);
#pragma unroll
                for (int u = 0; u < RUN; u++) start[i] += z[u] * y.v[i][j + u] + b[r] * x[u] * h.v[i][j + u];
            }
        }
        y.template add_both_lower<1, 0>(h, memory, more, t.n, dm, da, keys);
        y.put(t.to(to.q, d.k, c0, to.q_acc));
        T w, own;
        own.add_rows(keys);
        w.template add<1, 1>(memory, width, written, state(after, d, t.id, c0, 0));
        w.scale_rows([&](int r) { return r < t.n ? decay.between(t.n - 1, r) : real(0); });
#pragma unroll
        for (int i = 0; i < T::ROWS; i++)
#pragma unroll
            for (int j = 0; j < T::COLS; j++) {
                end[i] += own.v[i][j] * w.v[i][j];
                dbeta[i] += own.v[i][j] * h.v[i][j];
                w.v[i][j] += b[T::row(i)] * h.v[i][j];
            }
        w.template add<0, 0>(memory, t.n, dm, queries);
        w.template add<0, 0>(memory, t.n, da, scaled(keys, [&](int s) { return b[s]; }));
        w.put(t.to(to.k, d.k, c0, to.k_acc));
    }
    T::horizontal_sum(dbeta, memory);
    if (T::col(0) == 0)
        for (int i = 0; i < T::ROWS; i++) rows[T::row(i)] = dbeta[i];
    __syncthreads();
    // PARTS threads to a row for G ⊙ V.
    if (to.beta) {
        constexpr int PARTS = 16 / R;
        const int r = threadIdx.x / PARTS;
        const bool even = Gs.template even<4>() && value.template even<4>();
        real sum = 0;
        for (int j = threadIdx.x % PARTS * 4; j < width && r < t.n; j += PARTS * 4) {
            real a[4], b[4];
            Gs.get(a, r, j, even), value.get(b, r, j, even);
#pragma unroll
            for (int i = 0; i < 4; i++) sum += a[i] * b[i];
        }
        sum = group_sum(sum, PARTS, (real*)nullptr);
        if (threadIdx.x % PARTS == 0 && r < t.n) put(to.beta + t.at(r), rows[r] + sum, to.beta_acc);
    }
    if (!to.g) return;
    // dM ⊙ M + dA ⊙ A, but for the factors that dM and dA have already.
    T qk, kk;
    qk.template add_both<1, 1>(kk, memory, more, (int)d.k, query, key, key);
#pragma unroll
    for (int i = 0; i < T::ROWS; i++)
#pragma unroll
        for (int j = 0; j < T::COLS; j += RUN) {
            const int r = T::row(i), at = r * MLD + T::col(j);
            real x[RUN], y[RUN];
            read(x, dm.x + at), read(y, da.x + at);
#pragma unroll
            for (int u = 0; u < RUN; u++) qk.v[i][j + u] = x[u] * qk.v[i][j + u] + b[r] * y[u] * kk.v[i][j + u];
        }
    // The term of the state.
    real by_states = 0;
    const int size = (int)(d.k * d.v);
    const Matrix<S> all(states + t.id * size, 0, 1, size), all_after(after + t.id * size, 0, 1, size);
    const bool even = all.template even<8>() && all_after.template even<8>();
    for (int n = 8 * threadIdx.x; n < size; n += 2048) {
        real x[8], y[8];
        all.get(x, 0, n, even), all_after.get(y, 0, n, even);
#pragma unroll
        for (int i = 0; i < 8; i++) by_states += x[i] * y[i];
    }
    by_states = decay.since_start(t.n - 1) * block_sum(by_states, rows + 3 * C);
    T::horizontal_sum(start, memory);
    T::horizontal_sum(end, memory);
    if (T::col(0) == 0)
        for (int i = 0; i < T::ROWS; i++) rows[C + T::row(i)] = start[i], rows[2 * C + T::row(i)] = end[i];
    __syncthreads();
    through_gates<R>(
        qk, memory, m, t.n, by_states, [&](int u) { return rows[C + u]; }, [&](int s) { return rows[2 * C + s]; },
        [&](int step, real x) { put(to.g + t.at(step), x, to.g_acc); });
}

#define KERNELS(R)                                                                                                   \
    TILED_KERNEL(prepare_##R)(const S* k, const S* v, const S* beta, const real* g, const real* a, const S* states,   \
        S* x, S* w, S* u, Dims d) {                                                                               \
        prepare<R>(k, v, beta, g, a, states, x, w, u, d);                                                            \
    }                                                                                                                \
    TILED_KERNEL(states_##R)(const S* k, const real* g, const real* all, const S* s0, const S* w, S* u,            \
        S* states, S* s_last, real* room, Dims d) {                                                                  \
        forward_states<R>(k, g, all, s0, w, u, states, s_last, room, d);                                             \
    }                                                                                                                \
    TILED_KERNEL(outputs_##R)(const S* q, const S* k, const real* g, const real* p, const S* states, const S* e,   \
        S* o, real scale, Dims d) {                                                                                  \
        outputs<R>(q, k, g, p, states, e, o, scale, d);                                                              \
    }                                                                                                                \
    TILED_KERNEL(through_outputs_##R)(const S* q, const S* k, const real* g, const real* p, const S* d_o, S* de,   \
        real scale, Dims d) {                                                                                        \
        through_outputs<R>(q, k, g, p, d_o, de, scale, d);                                                           \
    }                                                                                                                \
    TILED_KERNEL(states_backward_##R)(const S* q, const S* k, const real* g, const real* all, const S* d_o,           \
        const S* ds_last, const S* w, S* de, S* after, S* ds0, int acc, real* room, real scale, Dims d) {         \
        backward_states<R>(q, k, g, all, d_o, ds_last, w, de, after, ds0, acc, room, scale, d);                      \
    }                                                                                                                \
    TILED_KERNEL(through_solve_##R)(const S* beta, const S* x, S* de, S* dv, int acc, Dims d) {                    \
        through_solve<R>(beta, x, de, dv, acc, d);                                                                   \
    }                                                                                                                \
    TILED_KERNEL(gradients_##R)(const S* q, const S* k, const S* v, const S* beta, const real* g, const S* d_o,       \
        const S* states, const S* after, const S* e, const S* G, S* dq, int q_acc, S* dk, int k_acc,           \
        S* dbeta, int beta_acc, real* dg, int g_acc, real scale, Dims d) {                                           \
        const Grads to{dq, dk, dbeta, dg, q_acc, k_acc, beta_acc, g_acc};                                            \
        gradients<R>(q, k, v, beta, g, d_o, states, after, e, G, to, scale, d);                                      \
    }
KERNELS(1)
KERNELS(2)
KERNELS(4)

// With a gate a channel.
#define CHANNEL_KERNELS(NAME, R)                                                                                      \
    FADE_KERNEL(R, fade_##NAME)(const S* q, const S* k, const S* g, S* faded_q, S* faded_k, real* all, real* p,        \
        real scale, Dims d) {                                                                                         \
        fade<R>(Rows{q, d.k, scale}, Rows{k, d.k, 1}, g, faded_q, faded_k, all, p, d);                                \
    }                                                                                                                 \
    TILED_KERNEL(through_reads_##NAME)(const S* q, const S* k, const S* d_o, const S* g, const S* states,              \
        const S* after, const S* e, S* dq, int q_acc, S* dk, int k_acc, S* dg, int g_acc, real scale,              \
        Dims d) {                                                                                                     \
        const auto value = [&](const Steps& t) { return Padded<R, S>(e, d.v, t.id).rows(0, t.n); };                \
        const auto cotangent = [&](const Steps& t) { return t.rows(d_o, d.v); };                                      \
        const Channels to{dq, dk, dg, q_acc, k_acc, g_acc};                                                           \
        channels<R, true>(Rows{q, d.k, scale}, Rows{k, d.k, 1}, value, cotangent, g, states, after, to, d);           \
    }                                                                                                                 \
    TILED_KERNEL(through_erasing_##NAME)(const S* p, const S* k, const S* g, const S* states, const S* e,           \
        const S* G, S* dp, int p_acc, S* dk, int k_acc, S* dg, int g_acc, Dims d) {                                \
        const auto value = [&](const Steps& t) { return Padded<R, S>(e, d.v, t.id).rows(0, t.n); };                \
        const auto cotangent = [&](const Steps& t) {                                                                  \
            return scaled(Padded<R, S>(G, d.v, t.id).rows(0, t.n), [](int) { return real(-1); });                  \
        };                                                                                                            \
        const Channels to{dp, dk, dg, p_acc, k_acc, g_acc};                                                           \
        channels<R, false>(Rows{p, d.k, 1}, Rows{k, d.k, 1}, value, cotangent, g, states, nullptr, to, d);            \
    }
CHANNEL_KERNELS(channels_1, 1)
CHANNEL_KERNELS(channels_2, 2)
CHANNEL_KERNELS(channels_4, 4)
