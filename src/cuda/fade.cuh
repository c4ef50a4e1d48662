// What gates of matrix memories do inside a chunk of C steps, one gate for all channels of the key or one for each:
//
//   start_t = α_1 … α_t           what is left at step t of the state before the chunk
//   end_s = α_{s+1} … α_C         what is left after the chunk of what step s wrote
//   P_ts = Σ_c q_tc k_sc (α_{s+1} … α_t)_c        for s ≤ t
//
// All are running products of factors of at most 1, each over the steps that it is about: nothing is divided, and no
// two sums are subtracted. With one gate for all channels P is (Q Kᵀ) ⊙ D.
//
// With a gate for each channel P is no product of two matrices, and the steps are halved, as in decay.rs: blocks of w =
// 1, 2, 4, … C / 2 steps stand in pairs, and what the second block of a pair reads of the first is a product,
//
//   P_ts = Σ_c (q_t ⊙ upto_t)_c (k_s ⊙ after_s)_c
//
// with `upto` the product of the block's gates up to step t and `after` that of those behind step s. All pairs of one w
// are one product of C / 2 by C / 2 numbers, of which the blocks on the diagonal count. With w = C, `upto` is start and
// `after` is end. Backwards, with M the cotangent of P,
//
//   dq_t += upto_t ⊙ (M (K ⊙ after))_t                     dk_s += after_s ⊙ (Mᵀ (Q ⊙ upto))_s
//   dg_u += Σ_{t≥u} q_t ⊙ dq_t   (u in the second)         dg_u += Σ_{s<u} k_s ⊙ dk_s   (u in the first)
//
// with what these products add to dq and dk, and sums over the block. The same holds for start with q, and for end with
// k.

namespace memories {

// --- None, or one for all channels. ---

// A chunk's weights, in shared memory.
template <int R>
struct Faded {
    const S* scores;
    const real *d, *starts, *ends;

    __device__ real between(int t, int s) const { return d ? d[t * Tile<R>::MLD + s] : real(1); }
    __device__ real start(int t) const { return starts ? starts[t] : real(1); }
    __device__ real end(int s) const { return ends ? ends[s] : real(1); }
};

struct Fading {
    // [B, T, H]; null with no gates, and with one for each channel, where queries and keys have faded already.
    const S* g;
    // What all steps of a chunk leave, [chunk of head, 1 or K]; null with no gates.
    const real* all;
    // Of gates for each channel, [chunk of head, C, C].
    const S* scores;
    // In shared memory three numbers a step, and behind them, if it is wanted, D [C, C].
    enum { SIZE = 3 };

    __device__ real whole(const Steps& t, const Dims& d, i64 i) const {
        return !all ? real(1) : g ? all[t.id] : all[t.id * d.k + i];
    }

    // What the gates of a chunk do, into `room`; with D, if it is wanted.
    template <int R>
    __device__ Faded<R> load(const Steps& t, bool wanted, real* room) const {
        constexpr int C = Tile<R>::C;
        const S* p = scores ? scores + t.id * C * C : nullptr;
        if (!g) return {p, nullptr, nullptr, nullptr};
        real *alpha = room, *starts = room + C, *ends = starts + C, *m = wanted ? room + SIZE * C : nullptr;
        const int s = threadIdx.x;
        if (s < C) alpha[s] = s < t.n ? exp(ld(g + t.at(s))) : real(1);
        __syncthreads();
        if (s < C) {
            real x = 1, first = alpha[0];
            for (int u = 0; u < C; u++) {
                if (u > s) x *= alpha[u];
                if (m) m[u * Tile<R>::MLD + s] = x;
                if (s == 0) starts[u] = first * x;
            }
            ends[s] = x;
        }
        __syncthreads();
        return {p, m, starts, ends};
    }
};

// --- One for each channel. ---

// Pairs of blocks of w steps: step i of all the first blocks, and of all the second ones.
struct Pairs {
    int w;

    __device__ int first(int i) const { return i + (i & -w); }
    __device__ int second(int i) const { return first(i) + w; }
    __device__ bool same(int i, int j) const { return ((i ^ j) & -w) == 0; }
    __device__ bool in_second(int step) const { return step & w; }
};

// C channels from c0 on of a chunk, K gates a step or none: the running products of blocks, C x C numbers each, in
// shared memory.
template <int R>
struct Running {
    enum { C = Tile<R>::C, LD = Tile<R>::MLD };
    real *ups, *afters;

    __device__ real upto(int s, int c) const { return ups[s * LD + c]; }
    __device__ real after(int s, int c) const { return afters[s * LD + c]; }

    // Blocks of one step. Nothing fades behind the last.
    __device__ void load(const Steps& t, const S* g, i64 k, i64 c0) const {
        for (u32 n = threadIdx.x; n < C * C; n += 256) {
            const int s = n / C, c = n % C;
            ups[s * LD + c] = g && s < t.n && c0 + c < k ? exp(ld(g + t.at(s) * k + c0 + c)) : real(1);
            afters[s * LD + c] = 1;
        }
    }

    // Each pair becomes one block.
    __device__ void join(Pairs pairs) const {
        for (u32 n = threadIdx.x; n < C / 2 * C; n += 256) {
            const int s = pairs.first(n / C), c = n % C;
            afters[s * LD + c] *= ups[(s | (2 * pairs.w - 1)) * LD + c];
        }
        __syncthreads();
        for (u32 n = threadIdx.x; n < C / 2 * C; n += 256) {
            const int s = pairs.second(n / C), c = n % C;
            ups[s * LD + c] *= ups[((s & -pairs.w) - 1) * LD + c];
        }
        __syncthreads();
    }
};

// Adds to m what rows a(step, channel) of second blocks read of keys k(step, channel) of the first.
template <int R, class A, class K>
__device__ void add_scores(real* m, real* scratch, Pairs pairs, int channels, Running<R> by, A a, K k) {
    constexpr int H = (R + 1) / 2, HALF = Tile<R>::C / 2;
    Tile<H> p;
    p.template add<1, 1>(
        scratch, channels,
        [&](int i, int c) {
            const int t = pairs.second(i);
            return i < HALF ? by.upto(t, c) * a(t, c) : real(0);
        },
        [&](int j, int c) {
            const int s = pairs.first(j);
            return j < HALF ? by.after(s, c) * k(s, c) : real(0);
        });
    p.each([&](int i, int j, real x) {
        if (i < HALF && pairs.same(i, j)) m[pairs.second(i) * Tile<R>::MLD + pairs.first(j)] += x;
    });
}

// Backwards, from m, of C channels; `part` gets a ⊙ what it adds to da, and k ⊙ what it adds to dk.
template <int R, class A, class K>
__device__ void through_scores(const real* m, real* scratch, Pairs pairs, Running<R> by, real* part, A a, K k, Tile<R>& da,
                               Tile<R>& dk) {
    constexpr int H = (R + 1) / 2, HALF = Tile<R>::C / 2, MLD = Tile<R>::MLD;
    const auto weight = [&](int i, int j) {
        return i < HALF && pairs.same(i, j) ? m[pairs.second(i) * MLD + pairs.first(j)] : real(0);
    };
    Tile<H, R> y, z;
    y.template add<1, 0>(scratch, HALF, weight, [&](int j, int c) {
        const int s = pairs.first(j);
        return by.after(s, c) * k(s, c);
    });
    z.template add<0, 0>(scratch, HALF, weight, [&](int i, int c) {
        const int t = pairs.second(i);
        return by.upto(t, c) * a(t, c);
    });
    y.each([&](int i, int c, real x) {
        const int t = pairs.second(i);
        if (i < HALF) part[t * MLD + c] = by.upto(t, c) * x;
    });
    z.each([&](int j, int c, real x) {
        const int s = pairs.first(j);
        if (j < HALF) part[s * MLD + c] = by.after(s, c) * x;
    });
    __syncthreads();
#pragma unroll
    for (int i = 0; i < Tile<R>::ROWS; i++)
#pragma unroll
        for (int j = 0; j < Tile<R>::COLS; j++) {
            const int r = da.row(i), c = da.col(j);
            const bool second = pairs.in_second(r);
            real& x = part[r * MLD + c];
            da.v[i][j] += second ? x : real(0);
            dk.v[i][j] += second ? real(0) : x;
            x *= second ? a(r, c) : k(r, c);
        }
}

// Adds to dg, of C channels, sums of `part` over blocks of w steps: of what each step and those behind it have where
// suffix(step), else of what those before it have.
template <int R, class F>
__device__ void add_sums(real* part, int w, F suffix, Tile<R>& dg) {
    constexpr int C = Tile<R>::C, MLD = Tile<R>::MLD;
    __syncthreads();
    for (u32 n = threadIdx.x; n < C / w * C; n += 256) {
        real *x = part + n / C * w * MLD + n % C, sum = 0;
        if (suffix(n / C * w))
            for (int s = w - 1; s >= 0; s--) {
                sum += x[s * MLD];
                x[s * MLD] = sum;
            }
        else
            for (int s = 0; s < w; s++) {
                const real own = x[s * MLD];
                x[s * MLD] = sum;
                sum += own;
            }
    }
    __syncthreads();
    dg.each([&](int r, int c, real& x) { x += part[r * MLD + c]; });
}

// From the cotangent x of rows `of` times start, if SUFFIX, or end (`by`): adds to da and dg.
template <int R, bool SUFFIX, class F, class A>
__device__ void through_fade(Tile<R>& x, real* part, F by, A of, Tile<R>& da, Tile<R>& dg) {
#pragma unroll
    for (int i = 0; i < Tile<R>::ROWS; i++)
#pragma unroll
        for (int j = 0; j < Tile<R>::COLS; j++) {
            const int r = x.row(i), c = x.col(j);
            const real dx = by(r, c) * x.v[i][j];
            da.v[i][j] += dx;
            part[r * Tile<R>::MLD + c] = of(r, c) * dx;
        }
    add_sums<R>(part, Tile<R>::C, [](int) { return SUFFIX; }, dg);
}

// --- The kernels' bodies. ---

// Queries and keys as they come from and to the state, and what all steps of a chunk leave, if wanted; and the scores.
template <int R, class P>
__device__ void fade(Rows q, Rows k, const S* g, S* faded_q, S* faded_k, real* all, P* scores, Dims d) {
    real* memory = dynamic_memory();
    constexpr int C = Tile<R>::C, MLD = Tile<R>::MLD, MATRIX = Tile<R>::MATRIX;
    real* m = memory + Tile<R>::SCRATCH;
    const Running<R> by{m + MATRIX, m + 2 * MATRIX};
    const Steps t(d, blockIdx.x);
    // What is on the diagonal, and zeros: a warp to a row.
    for (int r = threadIdx.x / 32; r < C; r += 8) {
        real dot = 0;
        for (i64 i = threadIdx.x % 32; i < d.k; i += 32) dot += q.get(t, r, i) * k.get(t, r, i);
        dot = warp_sum(dot);
        for (int s = threadIdx.x % 32; s < C; s += 32) m[r * MLD + s] = s == r ? dot : real(0);
    }
    for (i64 c0 = 0; c0 < d.k; c0 += C) {
        by.load(t, g, d.k, c0);
#pragma unroll 1
        for (Pairs pairs{1}; pairs.w < C; pairs.w *= 2) {
            add_scores<R>(
                m, memory, pairs, (int)(d.k - c0 < C ? d.k - c0 : C), by,
                [&](int s, int c) { return q.get(t, s, c0 + c); }, [&](int s, int c) { return k.get(t, s, c0 + c); });
            by.join(pairs);
        }
        // Each thread reads what it will load next.
        for (u32 n = threadIdx.x; n < C * C; n += 256) {
            const int s = n / C, c = n % C;
            const i64 i = c0 + c, at = t.at(s) * d.k + i;
            if (all && i < d.k && s == C - 1) all[t.id * d.k + i] = by.upto(s, c);
            if (i >= d.k || s >= t.n) continue;
            st(faded_q + at, by.upto(s, c) * ld(q.x + at));
            if (faded_k) st(faded_k + at, by.after(s, c) * ld(k.x + at));
        }
    }
    __syncthreads();
    for (u32 n = threadIdx.x; n < C * C; n += 256) st(scores + t.id * C * C + n, m[n / C * MLD + n % C]);
}

// Where gradients go, and whether they are added.
struct Channels {
    S *q, *k, *g;
    int q_acc, k_acc, g_acc;
};

// Channels c0 .. c0 + C of a chunk's gradient [B, T, H, K], if it is wanted.
template <int R, class F>
__device__ void put_channels(Tile<R>& y, const Steps& t, const Dims& d, i64 c0, S* to, int acc, F value) {
    if (!to) return;
    y.put(t.to(to, d.k, c0, acc), [&](int, int c, real x) { return value(c, x); });
}

// From the gradient, rows cotangent_of(chunk), of what rows q read of those of value_of(chunk), of this step too if
// OWN, and of the state h before the chunk: dq, dk and dg of a tile of channels; with what dh, the gradient of the
// state after the chunk, has of k and g, if it is given.
template <int R, bool OWN, class V, class G>
__device__ void channels(Rows q, Rows k, V value_of, G cotangent_of, const S* g, const S* h, const S* dh, Channels to,
                         Dims d) {
    real* memory = dynamic_memory();
    constexpr int C = Tile<R>::C, MLD = Tile<R>::MLD, MATRIX = Tile<R>::MATRIX;
    real *m = memory + Tile<R>::SCRATCH, *part = m + MATRIX, *all = part + 3 * MATRIX;
    const Running<R> by{part + MATRIX, part + 2 * MATRIX};
    const u32 across = tiles(d.k, C), c0 = blockIdx.x % across * C;
    const Steps t(d, blockIdx.x / across);
    const int w = (int)d.w;
    const auto query = [&](int s, int c) { return q.get(t, s, c0 + c); };
    const auto key = [&](int s, int c) { return k.get(t, s, c0 + c); };
    const auto value = value_of(t);
    const auto cotangent = cotangent_of(t);
    keep<R>(m, lower_product<R>(t, memory, w, cotangent, value, [](int r) {
        return [=](int s, real x) { return OWN || s < r ? x : real(0); };
    }));
    by.load(t, g, d.k, c0);
    // What all steps have: γ rowsum(S ⊙ dS), a warp to a channel.
    for (int c = threadIdx.x / 32; c < C; c += 8) {
        real sum = 0;
        for (i64 j = threadIdx.x % 32; dh && j < w; j += 32)
            sum += state(h, d, t.id, c0, 0)(c, j) * state(dh, d, t.id, c0, 0)(c, j);
        sum = warp_sum(sum);
        if (threadIdx.x % 32 == 0) all[c] = sum;
    }
    Tile<R> dq, dk, dg;
#pragma unroll 1
    for (Pairs pairs{1}; pairs.w < C; pairs.w *= 2) {
        through_scores<R>(m, memory, pairs, by, part, query, key, dq, dk);
        add_sums<R>(part, pairs.w, [&](int s) { return pairs.in_second(s); }, dg);
        by.join(pairs);
    }
    if constexpr (OWN) {
        dq.each([&](int r, int c, real& x) { x += m[r * MLD + r] * key(r, c); });
        dk.each([&](int r, int c, real& x) { x += m[r * MLD + r] * query(r, c); });
    }
    {
        Tile<R> y;
        y.template add<1, 1>(memory, w, cotangent, state(h, d, t.id, c0, 0));
        through_fade<R, true>(y, part, [&](int s, int c) { return by.upto(s, c); }, query, dq, dg);
    }
    if (dh) {
        Tile<R> y;
        y.template add<1, 1>(memory, w, value, state(dh, d, t.id, c0, 0));
        through_fade<R, false>(y, part, [&](int s, int c) { return by.after(s, c); }, key, dk, dg);
    }
    put_channels<R>(dq, t, d, c0, to.q, to.q_acc, [&](int, real x) { return q.scale * x; });
    put_channels<R>(dk, t, d, c0, to.k, to.k_acc, [](int, real x) { return x; });
    put_channels<R>(dg, t, d, c0, to.g, to.g_acc, [&](int c, real x) { return x + all[c] * by.upto(C - 1, c); });
}

}  // namespace memories
