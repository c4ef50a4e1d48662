// The delta rules in chunks of C steps (the equations stand in chunk.rs): with keys β k to erase by, and no gate or
// one; or with keys of their own, and no gates or one a channel.
//
// Each step of a chunk needs those before it, but only through (I + A)⁻¹, and A needs no state. So all chunks of all
// heads are prepared at once, in the WY form: X = (I + A)⁻¹, W = X (b γ K), U = X b V, and only E = U − W S and
// S ← Γ S + (r K)ᵀ E go from chunk to chunk, independently for every column of S. Backwards as well:
//
//   forward    prepare, states, outputs
//   backward   prepare (with E from the saved states), through_outputs: dE = Pᵀ dO, states_backward: dE += r K dS and
//              dS ← Γ dS + (γ Q)ᵀ dO − Wᵀ dE, through_solve: G = Xᵀ dE, gradients: all that is left
//
// With keys to erase by of their own, `fade` (fade.cuh) makes the scores P and A, and what comes from and to the state:
// that stands for γ Q, r K and b γ K, all other factors are 1, and Γ has a number for each row of S. Backwards
// `through_reads` has what comes through O, and `through_erasing` what comes through U.
//
// Tiling: a block of 256 threads has a chunk, or tiles of its columns (tiles.cuh, memories.cuh); in the two kernels
// that go along a head it has 16 columns of S, which stay in shared memory. Memory: q, k, v, o and 2 K + 2 V + C
// numbers a step for W, E and X, and a state for each chunk; operations a step: C (2 K + 2 V) + 4 K V + C² / 3 forward.
// Keys of their own take 3 K + 2 C numbers a step more.

using namespace memories;

// In place of A, of which only what is below the diagonal counts, X = (I + A)⁻¹: blocks of 16 by substitution, a
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
    for (int w = 16; w < C; w *= 2) {
        for (int n = threadIdx.x; n < C * w / 2; n += 256) {
            const int at = n / (w * w) * 2 * w, r = n / w % w, c = n % w;
            real sum = 0;
            for (int k = c; k < w; k++) sum += m[(at + w + r) * MLD + at + k] * m[(at + k) * MLD + at + c];
            room[n] = sum;
        }
        __syncthreads();
        for (int n = threadIdx.x; n < C * w / 2; n += 256) {
            const int p = n / (w * w), at = p * 2 * w, r = n / w % w, c = n % w;
            real sum = 0;
            for (int k = 0; k <= r; k++) sum -= m[(at + w + r) * MLD + at + w + k] * room[(p * w + k) * w + c];
            m[(at + w + r) * MLD + at + c] = sum;
        }
        __syncthreads();
    }
}

// X (if wanted), W, and U or, where the states are known, E. Where A is known, k are the keys to erase by.
template <int R>
__device__ void prepare(const S* k, const S* v, const S* beta, const real* g, const real* a, const S* states, real* x,
                        real* w, real* u, Dims d) {
    real* memory = dynamic_memory();
    constexpr int C = Tile<R>::C, MLD = Tile<R>::MLD;
    real *m = memory + Tile<R>::SCRATCH, *rhs = m + Tile<R>::MATRIX, *room = rhs + Tile<R>::MATRIX;
    const Steps t(d, blockIdx.x);
    Scalars<R> scalars(room + C * C / 4);
    const Decay decay = scalars.load(t, beta, g);
    const real* b = scalars.beta;
    const auto key = [&](int s, i64 i) { return t.get(k, d.k, s, i); };
    const auto weight = [&](int r, int s) { return s < r ? b[r] * decay.between(r, s) : real(0); };
    if (a)
        for (int n = threadIdx.x; n < C * C; n += 256) m[n / C * MLD + n % C] = a[t.id * C * C + n];
    else
        lower_product<R>(m, memory, (int)d.k, key, key, weight);
    __syncthreads();
    invert<R>(m, room);
    if (x)
        for (int n = threadIdx.x; n < C * C; n += 256) x[t.id * C * C + n] = m[n / C * MLD + n % C];
    const auto inverse = [&](int r, int s) { return m[r * MLD + s]; };
    const Padded<R> ws{w, d.k, t.id}, us{u, d.v, t.id};
    for (i64 c0 = 0; c0 < d.k; c0 += C) {
        Tile<R> y;
        y.template add_lower<1, 0>(
            memory, t.n, inverse, [&](int s, int c) { return b[s] * decay.since_start(s) * key(s, c0 + c); });
        y.each([&](int r, int c, real z) { ws.set(r, c0 + c, z); });
    }
    for (i64 c0 = 0; c0 < d.v; c0 += C) {
        Tile<R> y, z;
        if (states)
            y.template add<1, 0>(
                memory, (int)d.k, key, [&](int i, int c) { return state(states, d, t.id, i, c0 + c); });
        y.each([&](int r, int c, real seen) {
            rhs[r * MLD + c] = b[r] * (t.get(v, d.v, r, c0 + c) - decay.since_start(r) * seen);
        });
        z.template add_lower<1, 0>(memory, t.n, inverse, [&](int s, int c) { return rhs[s * MLD + c]; });
        z.each([&](int r, int c, real e) { us.set(r, c0 + c, e); });
    }
}

// Along a head: 16 columns of S, kept in shared memory or, where they are too long for it, in `room`. E stands in
// place of U afterwards.
template <int R>
__device__ void forward_states(const S* k, const real* g, const real* all, const S* s0, const real* w, real* u, S* states,
                               S* s_last, real* room, Dims d) {
    real* memory = dynamic_memory();
    constexpr int C = Tile<R>::C, W = 16;
    real* es = memory + Tile<R, 1>::SCRATCH;
    Scalars<R> scalars(es + C * W);
    real* s = room ? room + (i64)blockIdx.x * d.k * W : es + C * W + Scalars<R>::SIZE;
    const i64 across = tiles(d.v, W), c0 = blockIdx.x % across * W, head = blockIdx.x / across;
    for (i64 n = threadIdx.x; n < d.k * W; n += 256) s[n] = state(s0, d, head, n / W, c0 + n % W);
    for (i64 chunk = 0; chunk < d.chunks; chunk++) {
        const Steps t(d, head * d.chunks + chunk);
        const Decay decay = scalars.load(t, nullptr, g);
        for (i64 n = threadIdx.x; n < d.k * W; n += 256)
            if (c0 + n % W < d.v) st(states + (t.id * d.k + n / W) * d.v + c0 + n % W, s[n]);
        const Padded<R> ws{(real*)w, d.k, t.id}, us{u, d.v, t.id};
        Tile<R, 1> y;
        y.template add<1, 0>(
            memory, (int)d.k, [&](int r, int i) { return ws.get(r, i); }, [&](int i, int c) { return s[i * W + c]; });
        y.each([&](int r, int c, real seen) {
            const real x = us.get(r, c0 + c) - seen;
            us.set(r, c0 + c, x);
            es[r * W + c] = r < t.n ? decay.between(t.n - 1, r) * x : real(0);
        });
        for (i64 i0 = 0; i0 < d.k; i0 += C) {
            Tile<R, 1> z;
            z.template add<0, 0>(
                memory, t.n, [&](int r, int s) { return t.get(k, d.k, s, i0 + r); },
                [&](int s, int c) { return es[s * W + c]; });
            const real whole = decay.since_start(t.n - 1);
            z.each([&](int r, int c, real x) {
                if (i0 + r >= d.k) return;
                const real left = all ? all[t.id * d.k + i0 + r] : whole;
                s[(i0 + r) * W + c] = left * s[(i0 + r) * W + c] + x;
            });
        }
    }
    __syncthreads();
    for (i64 n = threadIdx.x; n < d.k * W; n += 256)
        if (c0 + n % W < d.v) st(s_last + (head * d.k + n / W) * d.v + c0 + n % W, s[n]);
}

// P where it is known, and what it is made with where not.
struct Known {
    const real* scores;
    Decay decay;

    __device__ real between(int t, int s) const { return decay.between(t, s); }
};

// O = γ Q S + P E
template <int R>
__device__ void outputs(const S* q, const S* k, const real* g, const real* p, const S* states, const real* e, S* o,
                        real scale, Dims d) {
    real* memory = dynamic_memory();
    constexpr int C = Tile<R>::C, MLD = Tile<R>::MLD;
    real* m = memory + Tile<R>::SCRATCH;
    const i64 across = tiles(d.v, C), c0 = blockIdx.x % across * C;
    const Steps t(d, blockIdx.x / across);
    Scalars<R> scalars(m + Tile<R>::MATRIX);
    const Decay decay = scalars.load(t, nullptr, g);
    const auto query = [&](int r, i64 i) { return scale * t.get(q, d.k, r, i); };
    const auto key = [&](int s, i64 i) { return t.get(k, d.k, s, i); };
    scores<R>(Known{p ? p + t.id * C * C : nullptr, decay}, m, memory, (int)d.k, query, key);
    const Padded<R> es{(real*)e, d.v, t.id};
    Tile<R> y;
    y.template add<1, 0>(memory, (int)d.k, query, [&](int i, int c) { return state(states, d, t.id, i, c0 + c); });
    y.scale_rows([&](int r) { return decay.since_start(r); });
    y.template add_lower<1, 0>(
        memory, t.n, [&](int r, int s) { return m[r * MLD + s]; }, [&](int s, int c) { return es.get(s, c0 + c); });
    y.each([&](int r, int c, real x) {
        if (r < t.n && c0 + c < d.v) st(o + t.at(r) * d.v + c0 + c, x);
    });
}

// dE = Pᵀ dO, what comes to E through the outputs.
template <int R>
__device__ void through_outputs(const S* q, const S* k, const real* g, const real* p, const S* d_o, real* de, real scale,
                                Dims d) {
    real* memory = dynamic_memory();
    constexpr int C = Tile<R>::C, MLD = Tile<R>::MLD;
    real* m = memory + Tile<R>::SCRATCH;
    const i64 across = tiles(d.v, C), c0 = blockIdx.x % across * C;
    const Steps t(d, blockIdx.x / across);
    Scalars<R> scalars(m + Tile<R>::MATRIX);
    const Decay decay = scalars.load(t, nullptr, g);
    Tile<R> y;
    if (d_o) {
        scores<R>(
            Known{p ? p + t.id * C * C : nullptr, decay}, m, memory, (int)d.k,
            [&](int r, int i) { return scale * t.get(q, d.k, r, i); }, [&](int s, int i) { return t.get(k, d.k, s, i); });
        y.template add<0, 0>(
            memory, t.n, [&](int r, int s) { return m[s * MLD + r]; },
            [&](int s, int c) { return t.get(d_o, d.v, s, c0 + c); });
    }
    const Padded<R> des{de, d.v, t.id};
    y.each([&](int r, int c, real x) { des.set(r, c0 + c, x); });
}

// Along a head from its end, as forward_states: what comes to E through the states, dE += r K dS, and
// dS ← Γ dS + (γ Q)ᵀ dO − Wᵀ dE. `after` gets dS after each chunk.
template <int R>
__device__ void backward_states(const S* q, const S* k, const real* g, const real* all, const S* d_o, const S* ds_last,
                                const real* w, real* de, real* after, S* ds0, int acc, real* room, real scale, Dims d) {
    real* memory = dynamic_memory();
    constexpr int C = Tile<R>::C, W = 16;
    real* es = memory + Tile<R, 1>::SCRATCH;
    Scalars<R> scalars(es + C * W);
    real* s = room ? room + (i64)blockIdx.x * d.k * W : es + C * W + Scalars<R>::SIZE;
    const i64 across = tiles(d.v, W), c0 = blockIdx.x % across * W, head = blockIdx.x / across;
    for (i64 n = threadIdx.x; n < d.k * W; n += 256)
        s[n] = ds_last ? state(ds_last, d, head, n / W, c0 + n % W) : real(0);
    for (i64 chunk = d.chunks - 1; chunk >= 0; chunk--) {
        const Steps t(d, head * d.chunks + chunk);
        const Decay decay = scalars.load(t, nullptr, g);
        for (i64 n = threadIdx.x; n < d.k * W; n += 256)
            if (c0 + n % W < d.v) after[(t.id * d.k + n / W) * d.v + c0 + n % W] = s[n];
        const Padded<R> ws{(real*)w, d.k, t.id}, des{de, d.v, t.id};
        Tile<R, 1> y;
        y.template add<1, 0>(
            memory, (int)d.k, [&](int r, int i) { return t.get(k, d.k, r, i); },
            [&](int i, int c) { return s[i * W + c]; });
        y.each([&](int r, int c, real x) {
            x = r < t.n ? des.get(r, c0 + c) + decay.between(t.n - 1, r) * x : real(0);
            des.set(r, c0 + c, x);
            es[r * W + c] = x;
        });
        for (i64 i0 = 0; i0 < d.k; i0 += C) {
            Tile<R, 1> z;
            z.template add<0, 0>(
                memory, t.n, [&](int r, int s) { return -ws.get(s, i0 + r); },
                [&](int s, int c) { return es[s * W + c]; });
            if (d_o)
                z.template add<0, 0>(
                    memory, t.n, [&](int r, int s) { return scale * t.get(q, d.k, s, i0 + r); },
                    [&](int s, int c) { return decay.since_start(s) * t.get(d_o, d.v, s, c0 + c); });
            const real whole = decay.since_start(t.n - 1);
            z.each([&](int r, int c, real x) {
                if (i0 + r >= d.k) return;
                const real left = all ? all[t.id * d.k + i0 + r] : whole;
                s[(i0 + r) * W + c] = left * s[(i0 + r) * W + c] + x;
            });
        }
    }
    __syncthreads();
    for (i64 n = threadIdx.x; ds0 && n < d.k * W; n += 256)
        if (c0 + n % W < d.v) put(ds0 + (head * d.k + n / W) * d.v + c0 + n % W, s[n], acc);
}

// G = Xᵀ dE in place of dE, and dV = b G.
template <int R>
__device__ void through_solve(const S* beta, const real* x, real* de, S* dv, int acc, Dims d) {
    real* memory = dynamic_memory();
    constexpr int C = Tile<R>::C;
    const i64 across = tiles(d.v, C), c0 = blockIdx.x % across * C;
    const Steps t(d, blockIdx.x / across);
    const Padded<R> xs{(real*)x, C, t.id}, des{de, d.v, t.id};
    Tile<R> y;
    y.template add<0, 0>(
        memory, t.n, [&](int r, int s) { return xs.get(s, r); }, [&](int s, int c) { return des.get(s, c0 + c); });
    y.each([&](int r, int c, real z) {
        des.set(r, c0 + c, z);
        if (dv && r < t.n && c0 + c < d.v) put(dv + t.at(r) * d.v + c0 + c, beta ? ld(beta + t.at(r)) * z : z, acc);
    });
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
                          const real* after, const real* e, const real* gs, Grads to, real scale, Dims d) {
    real* memory = dynamic_memory();
    constexpr int C = Tile<R>::C, MLD = Tile<R>::MLD;
    real *dp = memory + Tile<R>::SCRATCH, *da = dp + Tile<R>::MATRIX, *rows = da + Tile<R>::MATRIX;
    const Steps t(d, blockIdx.x);
    Scalars<R> scalars(rows + 3 * C + 32);
    const Decay decay = scalars.load(t, beta, g);
    const real* b = scalars.beta;
    const Padded<R> es{(real*)e, d.v, t.id}, gg{(real*)gs, d.v, t.id};
    const int width = (int)d.v;
    const auto query = [&](int r, i64 i) { return scale * t.get(q, d.k, r, i); };
    const auto key = [&](int s, i64 i) { return t.get(k, d.k, s, i); };
    const auto cotangent = [&](int r, int j) { return d_o ? t.get(d_o, d.v, r, j) : real(0); };
    const auto written = [&](int s, int j) { return s < t.n ? es.get(s, j) : real(0); };
    const auto solved = [&](int s, int j) { return s < t.n ? gg.get(s, j) : real(0); };
    lower_product<R>(dp, memory, width, cotangent, written, [&](int r, int s) { return decay.between(r, s); });
    lower_product<R>(
        da, memory, width, solved, written, [&](int r, int s) { return s < r ? -decay.between(r, s) : real(0); });
    // Of each step dβ, and what its gate's exponent has from what it reads of the state before the chunk (start) and
    // from what it leaves in the one after it (end).
    real start[Tile<R>::ROWS], end[Tile<R>::ROWS], dbeta[Tile<R>::ROWS];
    for (int i = 0; i < Tile<R>::ROWS; i++) start[i] = end[i] = dbeta[i] = 0;
    for (i64 c0 = 0; c0 < d.k; c0 += C) {
        Tile<R> y, w, h;
        const auto before = [&](int j, int c) { return state(states, d, t.id, c0 + c, j); };
        y.template add<1, 1>(memory, width, cotangent, before);
        h.template add<1, 1>(memory, width, solved, before);
        w.template add<1, 1>(memory, width, written, [&](int j, int c) { return state(after, d, t.id, c0 + c, j); });
#pragma unroll
        for (int i = 0; i < Tile<R>::ROWS; i++) {
            const int r = y.row(i);
            const real first = decay.since_start(r), last = r < t.n ? decay.between(t.n - 1, r) : real(0);
#pragma unroll
            for (int j = 0; j < Tile<R>::COLS; j++) {
                y.v[i][j] *= first;
                h.v[i][j] *= -first;
                w.v[i][j] *= last;
                if (!g) continue;
                const real x = key(r, c0 + y.col(j));
                start[i] += query(r, c0 + y.col(j)) * y.v[i][j] + b[r] * x * h.v[i][j];
                end[i] += x * w.v[i][j];
            }
        }
        const auto keys = [&](int s, int c) { return key(s, c0 + c); };
        y.template add_lower<1, 0>(memory, t.n, [&](int r, int s) { return dp[r * MLD + s]; }, keys);
        h.template add_lower<1, 0>(memory, t.n, [&](int r, int s) { return da[r * MLD + s]; }, keys);
        w.template add<0, 0>(
            memory, t.n, [&](int r, int s) { return dp[s * MLD + r]; }, [&](int s, int c) { return query(s, c0 + c); });
        w.template add<0, 0>(
            memory, t.n, [&](int r, int s) { return b[s] * da[s * MLD + r]; }, keys);
#pragma unroll
        for (int i = 0; i < Tile<R>::ROWS; i++)
#pragma unroll
            for (int j = 0; j < Tile<R>::COLS; j++) {
                const int r = y.row(i);
                const i64 c = c0 + y.col(j), at = t.at(r) * d.k + c;
                if (r >= t.n || c >= d.k) continue;
                dbeta[i] += h.v[i][j] * key(r, c);
                if (to.q) put(to.q + at, scale * y.v[i][j], to.q_acc);
                if (to.k) put(to.k + at, b[r] * h.v[i][j] + w.v[i][j], to.k_acc);
            }
    }
    Tile<R>::across(dbeta, memory);
    if (Tile<R>::col(0) == 0)
        for (int i = 0; i < Tile<R>::ROWS; i++) rows[Tile<R>::row(i)] = dbeta[i];
    __syncthreads();
    // A warp to a row for G ⊙ V.
    for (int r = threadIdx.x / 32; to.beta && r < t.n; r += 8) {
        real sum = 0;
        for (int j = threadIdx.x % 32; j < d.v; j += 32) sum += solved(r, j) * t.get(v, d.v, r, j);
        sum = warp_sum(sum);
        if (threadIdx.x % 32 == 0) put(to.beta + t.at(r), rows[r] + sum, to.beta_acc);
    }
    if (!to.g) return;
    // dP ⊙ P + dA ⊙ A in place of dP.
    Tile<R> qk, kk;
    qk.template add<1, 1>(memory, (int)d.k, query, [&](int i, int s) { return key(s, i); });
    kk.template add<1, 1>(memory, (int)d.k, key, [&](int i, int s) { return key(s, i); });
#pragma unroll
    for (int i = 0; i < Tile<R>::ROWS; i++)
#pragma unroll
        for (int j = 0; j < Tile<R>::COLS; j++) {
            const int r = qk.row(i), s = qk.col(j);
            if (s < r) dp[r * MLD + s] = dp[r * MLD + s] * qk.v[i][j] + b[r] * da[r * MLD + s] * kk.v[i][j];
        }
    real across = 0;
    for (i64 n = threadIdx.x; n < d.k * d.v; n += 256)
        across += decay.since_start(t.n - 1) * ld(states + t.id * d.k * d.v + n) * after[t.id * d.k * d.v + n];
    across = block_sum(across, rows + 3 * C);
    Tile<R>::across(start, memory);
    Tile<R>::across(end, memory);
    if (Tile<R>::col(0) == 0)
        for (int i = 0; i < Tile<R>::ROWS; i++)
            rows[C + Tile<R>::row(i)] = start[i], rows[2 * C + Tile<R>::row(i)] = end[i];
    through_gates<R>(
        dp, t.n, across, [&](int u) { return rows[C + u]; }, [&](int s) { return rows[2 * C + s]; },
        [&](int step, real x) { put(to.g + t.at(step), x, to.g_acc); });
}

// A number of a chunk that is padded to C rows; of steps that are there.
template <int R>
__device__ real padded(const real* x, const Steps& t, const Dims& d, int s, int j) {
    return s < t.n ? Padded<R>{(real*)x, d.v, t.id}.get(s, j) : real(0);
}

#define KERNELS(R)                                                                                                   \
    TILED_KERNEL prepare_##R(const S* k, const S* v, const S* beta, const real* g, const real* a, const S* states,   \
        real* x, real* w, real* u, Dims d) {                                                                         \
        prepare<R>(k, v, beta, g, a, states, x, w, u, d);                                                            \
    }                                                                                                                \
    TILED_KERNEL states_##R(const S* k, const real* g, const real* all, const S* s0, const real* w, real* u,         \
        S* states, S* s_last, real* room, Dims d) {                                                                  \
        forward_states<R>(k, g, all, s0, w, u, states, s_last, room, d);                                             \
    }                                                                                                                \
    TILED_KERNEL outputs_##R(const S* q, const S* k, const real* g, const real* p, const S* states, const real* e,   \
        S* o, real scale, Dims d) {                                                                                  \
        outputs<R>(q, k, g, p, states, e, o, scale, d);                                                              \
    }                                                                                                                \
    TILED_KERNEL through_outputs_##R(const S* q, const S* k, const real* g, const real* p, const S* d_o, real* de,   \
        real scale, Dims d) {                                                                                        \
        through_outputs<R>(q, k, g, p, d_o, de, scale, d);                                                           \
    }                                                                                                                \
    TILED_KERNEL states_backward_##R(const S* q, const S* k, const real* g, const real* all, const S* d_o,           \
        const S* ds_last, const real* w, real* de, real* after, S* ds0, int acc, real* room, real scale, Dims d) {   \
        backward_states<R>(q, k, g, all, d_o, ds_last, w, de, after, ds0, acc, room, scale, d);                      \
    }                                                                                                                \
    TILED_KERNEL through_solve_##R(const S* beta, const real* x, real* de, S* dv, int acc, Dims d) {                 \
        through_solve<R>(beta, x, de, dv, acc, d);                                                                   \
    }                                                                                                                \
    TILED_KERNEL gradients_##R(const S* q, const S* k, const S* v, const S* beta, const real* g, const S* d_o,       \
        const S* states, const real* after, const real* e, const real* gs, S* dq, int q_acc, S* dk, int k_acc,       \
        S* dbeta, int beta_acc, real* dg, int g_acc, real scale, Dims d) {                                           \
        const Grads to{dq, dk, dbeta, dg, q_acc, k_acc, beta_acc, g_acc};                                            \
        gradients<R>(q, k, v, beta, g, d_o, states, after, e, gs, to, scale, d);                                     \
    }                                                                                                                \
    TILED_KERNEL fade_##R(const S* q, const S* k, const S* g, S* faded_q, S* faded_k, real* all, real* p,            \
        real scale, Dims d) {                                                                                        \
        fade<R>(Rows{q, d.k, scale}, Rows{k, d.k, 1}, g, faded_q, faded_k, all, p, d);                               \
    }                                                                                                                \
    TILED_KERNEL through_reads_##R(const S* q, const S* k, const S* d_o, const S* g, const S* states,                \
        const real* after, const real* e, S* dq, int q_acc, S* dk, int k_acc, S* dg, int g_acc, real scale,          \
        Dims d) {                                                                                                    \
        const auto value = [&](const Steps& t, int s, int j) { return padded<R>(e, t, d, s, j); };                   \
        const auto cotangent = [&](const Steps& t, int s, int j) { return d_o ? t.get(d_o, d.v, s, j) : real(0); };  \
        const Channels to{dq, dk, dg, q_acc, k_acc, g_acc};                                                          \
        channels<R, true>(Rows{q, d.k, scale}, Rows{k, d.k, 1}, value, cotangent, g, states, after, to, d);          \
    }                                                                                                                \
    TILED_KERNEL through_erasing_##R(const S* p, const S* k, const S* g, const S* states, const real* e,             \
        const real* gs, S* dp, int p_acc, S* dk, int k_acc, S* dg, int g_acc, Dims d) {                              \
        const auto value = [&](const Steps& t, int s, int j) { return padded<R>(e, t, d, s, j); };                   \
        const auto cotangent = [&](const Steps& t, int s, int j) { return -padded<R>(gs, t, d, s, j); };             \
        const Channels to{dp, dk, dg, p_acc, k_acc, g_acc};                                                          \
        channels<R, false>(Rows{p, d.k, 1}, Rows{k, d.k, 1}, value, cotangent, g, states, nullptr, to, d);           \
    }
KERNELS(1)
KERNELS(2)
KERNELS(4)
