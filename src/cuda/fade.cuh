// The decay of matrix memories inside a chunk of C steps, with one gate for all channels of the key or one for each:
//
//   start_t = α_1 … α_t           what is left at step t of the state before the chunk
//   end_s = α_{s+1} … α_C         what is left after the chunk of what step s wrote
//   M_ts = Σ_c q_tc k_sc (α_{s+1} … α_t)_c        for s ≤ t
//
// All are running products of factors of at most 1, each over the steps that it is about: nothing is divided, and no
// two sums are subtracted. With one gate for all channels M is (Q Kᵀ) ⊙ D.
//
// With a gate for each channel M is no product of two matrices, and the steps are halved, as in decay.rs: blocks of w =
// 1, 2, 4, … C / 2 steps stand in pairs, and what the second block of a pair reads of the first is a product,
//
//   M_ts = Σ_c (q_t ⊙ upto_t)_c (k_s ⊙ after_s)_c
//
// with `upto` the product of the block's gates up to step t and `after` that of those behind step s. All pairs of one w
// are one product of C / 2 by C / 2 numbers, of which the blocks on the diagonal count. With w = C, `upto` is start and
// `after` is end. Backwards,
//
//   dq_t += upto_t ⊙ (dM (K ⊙ after))_t                    dk_s += after_s ⊙ (dMᵀ (Q ⊙ upto))_s
//   dg_u += Σ_{t≥u} q_t ⊙ dq_t   (u in the second)         dg_u += Σ_{s<u} k_s ⊙ dk_s   (u in the first)
//
// with what these products add to dq and dk, and sums over the block. The same holds for start with q, and for end with
// k.
//
// A thread has eight neighbouring steps of one channel or two (Strip). What is inside of eight steps, w = 1, 2, 4, it computes
// alone, in registers: few operations, but of numbers that a product of tiles would want in shared memory for each w
// anew. For w = 8, 16, … the rows ⊙ upto and ⊙ after inside the eight steps are known; `before` and `behind` them stand
// the products of what whole threads leave, and a product of tiles gives what the blocks read of each other.

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
    // The share that all steps of a chunk leave, [chunk of head, 1 or K]; null with no gates.
    const real* all;
    // Of gates for each channel, [chunk of head, C, C].
    const S* scores;
    // In shared memory three numbers a step, and behind them, if it is wanted, D [C, C].
    enum { SIZE = 3 };

    __device__ real whole(const Steps& t, const Dims& d, i64 i) const {
        return !all ? real(1) : g ? all[t.id] : all[t.id * d.k + i];
    }

    template <int R>
    __device__ real kept(const Faded<R>&, const Steps& t, const Dims& d, i64 i) const { return whole(t, d, i); }

    // A thread's gate, of step s.
    template <int R>
    __device__ real fetch(const Steps& t) const {
        const int s = threadIdx.x;
        return g && s < Tile<R>::C && s < t.n ? ld(g + t.at(s)) : real(0);
    }
    // The decay of a chunk, into `room`; with D, if it is wanted.
    template <int R>
    __device__ Faded<R> load(const Steps& t, bool wanted, real* room) const {
        return load<R>(t, g ? fetch<R>(t) : real(0), room, wanted);
    }
    template <int R>
    __device__ Faded<R> load(const Steps& t, real gate, real* room, bool wanted = false) const {
        constexpr int C = Tile<R>::C;
        const S* p = scores ? scores + t.id * C * C : nullptr;
        if (!g) return {p, nullptr, nullptr, nullptr};
        real *alpha = room, *starts = room + C, *ends = starts + C, *m = wanted ? room + SIZE * C : nullptr;
        const int s = threadIdx.x;
        if (s < C) alpha[s] = s < t.n ? exp(gate) : real(1);
        __syncthreads();
        if (s < C && m) {
            real x = 1, first = alpha[0];
            for (int u = 0; u < C; u++) {
                if (u > s) x *= alpha[u];
                m[u * Tile<R>::MLD + s] = x;
                if (s == 0) starts[u] = first * x;
            }
            ends[s] = x;
        } else if (s < C) {
            // Several at once, so that no product waits for the shared memory.
            real upto = 1, behind = 1;
            for (int u = 0; u < C; u += 16) {
                real x[16];
                for (int i = 0; i < 16; i += 4) read(*(real(*)[4])(x + i), alpha + u + i);
#pragma unroll
                for (int i = 0; i < 16; i++) (u + i <= s ? upto : behind) *= x[i];
            }
            starts[s] = upto, ends[s] = behind;
        }
        __syncthreads();
        return {p, m, starts, ends};
    }
};

// --- One for each channel. ---

// Pairs of blocks of w steps.
struct Pairs {
    int w;

    __device__ bool in_second(int step) const { return step & w; }
    // Where a step stands among those of all first blocks, or of all second ones; and the steps in place i.
    __device__ int place(int step) const { return (step >> 1 & -w) | (step & (w - 1)); }
    __device__ int first(int i) const { return i + (i & -w); }
    __device__ int second(int i) const { return first(i) + w; }
    __device__ bool same(int i, int j) const { return ((i ^ j) & -w) == 0; }
    // The first step of the block that makes a pair with that of `step`.
    __device__ int other(int step) const { return (step & -w) ^ w; }
};

// N neighbours, as they are stored.
template <class P, int N>
struct __align__(N * sizeof(P)) Few {
    P x[N];
    __device__ real operator[](int i) const { return ld(x + i); }
};
template <>
struct Few<bf16, 2> {
    u32 x;
    __device__ real operator[](int i) const { return __uint_as_float(i ? x & 0xffff0000u : x << 16); }
};

// A thread's part of WIDTH channels of a chunk: FEW of them, of STEPS neighbouring steps.
template <int R>
struct Strip {
    enum { C = Tile<R>::C, STEPS = 8, FEW = R == 4 && sizeof(real) == 4 ? 2 : 1, LANES = R == 1 ? 16 : 32 };
    enum { WIDTH = LANES * FEW, GROUPS = R == 4 ? 8 : 4, TOTALS = GROUPS * WIDTH };
    typedef real Numbers[STEPS][FEW];
    typedef Few<S, FEW> Stored[STEPS];

    Numbers gates;
    // The shares that the thread's steps leave, the steps before them in their block, and those behind them.
    real own[FEW], before[FEW], behind[FEW];

    static __device__ int group() { return threadIdx.x / LANES; }
    static __device__ int first() { return group() * STEPS; }
    static __device__ int channel() { return threadIdx.x % LANES * FEW; }

    // Whether the thread has steps of a tile of n rows.
    static __device__ bool has(int n) { return n / STEPS * LANES >= 256 || first() < n; }
    // How many of the thread's steps there are.
    static __device__ int steps(int rows, int width) { return channel() < width ? rows - first() : 0; }

    static __device__ void load(Stored& y, const Matrix<S>& x) {
        const int steps = Strip::steps(x.rows, x.width);
        const S* at = x.at(first(), channel());
        const bool even = x.template even<FEW>();
#pragma unroll
        for (int n = 0; n < STEPS; n++, at += x.apart) {
            y[n] = {};
            if (even && n < steps) y[n] = *(const Few<S, FEW>*)at;
        }
        if (even) return;
        at = x.at(first(), channel());
        for (int n = 0; n < STEPS; n++, at += x.apart) {
            Few<S, FEW> one = {};
            for (int e = 0; e < FEW && n < steps; e++)
                if (channel() + e < x.width) ((S*)&one)[e] = at[e];
            y[n] = one;
        }
    }
    // To memory.
    static __device__ void put(const Target<S>& to, const Numbers& y) {
        const int steps = Strip::steps(to.rows, to.width);
        S* at = to.x + (u64)(u32)first() * to.apart + channel();
        const bool even = FEW == 1 || (to.width % FEW == 0 &&
                                       ((u32)(u64)to.x | to.apart * (u32)sizeof(S)) % (FEW * sizeof(S)) == 0);
        if (even && !to.acc) {
#pragma unroll
            for (int n = 0; n < STEPS; n++, at += to.apart)
                if (n < steps) write(at, y[n]);
        } else if (even) {
            Numbers all = {};
            S* from = at;
#pragma unroll
            for (int n = 0; n < STEPS; n++, from += to.apart)
                if (n < steps) read(all[n], from);
#pragma unroll
            for (int n = 0; n < STEPS; n++, at += to.apart) {
#pragma unroll
                for (int e = 0; e < FEW; e++) all[n][e] += y[n][e];
                if (n < steps) write(at, all[n]);
            }
        } else {
#pragma unroll
            for (int n = 0; n < STEPS; n++, at += to.apart)
#pragma unroll
                for (int e = 0; e < FEW; e++)
                    if (n < steps && channel() + e < to.width) ::put(at + e, y[n][e], to.acc);
        }
    }

    // x times more, to an operand of a product of tiles: a row for each step of all first or of all second blocks.
    template <class T>
    static __device__ void operand(typename T::T* to, Pairs pairs, const real (&more)[FEW], const Numbers& x) {
        constexpr int LD = T::template stride<1, T::C>();
        const int row = pairs.place(first());
        if constexpr (T::TENSOR) {
#pragma unroll
            for (int n = 0; n < STEPS; n++) {
                real y[FEW];
#pragma unroll
                for (int e = 0; e < FEW; e++) y[e] = more[e] * x[n][e];
                write(to + (row + n) * LD + channel(), y);
            }
        } else {
#pragma unroll
            for (int e = 0; e < FEW; e++) {
                real y[STEPS];
#pragma unroll
                for (int n = 0; n < STEPS; n++) y[n] = more[e] * x[n][e];
                write(to + (channel() + e) * LD + row, y);
            }
        }
    }

    __device__ void set(const Stored& g) {
#pragma unroll
        for (int n = 0; n < STEPS; n++)
#pragma unroll
            for (int e = 0; e < FEW; e++) gates[n][e] = exp(g[n][e]);
    }
    // Of a pair of blocks of W steps from step n0 on.
    template <int W>
    __device__ void within(real (&upto)[W], real (&after)[W], int n0, int e) const {
        upto[0] = gates[n0 + W][e], after[W - 1] = 1;
#pragma unroll
        for (int i = 1; i < W; i++) {
            upto[i] = upto[i - 1] * gates[n0 + W + i][e];
            after[W - 1 - i] = after[W - i] * gates[n0 + W - i][e];
        }
    }
    // The thread's steps are one block from here on: q ⊙ upto and k ⊙ after.
    __device__ void join(const Stored& q, const Stored& k, Numbers& reads, Numbers& keys) {
#pragma unroll
        for (int e = 0; e < FEW; e++) {
            real upto = 1, after = 1;
#pragma unroll
            for (int n = 0; n < STEPS; n++) {
                const int last = STEPS - 1 - n;
                upto *= gates[n][e];
                reads[n][e] = upto * q[n][e];
                keys[last][e] = after * k[last][e];
                after *= gates[last][e];
            }
            own[e] = upto, before[e] = behind[e] = 1;
        }
    }
    __device__ real whole(int e) const { return before[e] * own[e] * behind[e]; }

    // Pairs of blocks of several threads become blocks. `totals` has what each thread's steps leave, [GROUPS, WIDTH].
    __device__ void keep_total(real* totals) const { write(totals + group() * WIDTH + channel(), own); }
    __device__ void join(Pairs pairs, const real* totals) {
        const bool second = pairs.in_second(first());
        for (int u = 0; u < pairs.w / STEPS; u++) {
            real x[FEW];
            read(x, totals + (pairs.other(first()) / STEPS + u) * WIDTH + channel());
#pragma unroll
            for (int e = 0; e < FEW; e++) before[e] *= second ? x[e] : real(1), behind[e] *= second ? real(1) : x[e];
        }
    }
};

// Sums of each of N numbers over LANES neighbouring threads, N <= LANES: put(which, sum), each by one of them. At each
// step a thread keeps half of the numbers, and gives the other half away.
template <int LANES, int N, class F>
__device__ void sums_across(real (&x)[N], F put) {
    int which = 0, n = N;
#pragma unroll
    for (int o = LANES / 2; o > 0; o /= 2) {
        const bool upper = threadIdx.x & o;
        if (n == 1) {
            x[0] += __shfl_xor_sync(0xffffffffu, x[0], o);
            continue;
        }
        n /= 2;
        which += upper ? n : 0;
#pragma unroll
        for (int i = 0; i < N / 2; i++) {
            if (i >= n) break;
            const real mine = upper ? x[i + n] : x[i], other = upper ? x[i] : x[i + n];
            x[i] = mine + __shfl_xor_sync(0xffffffffu, other, o);
        }
    }
    if (threadIdx.x % (LANES / N) == 0) put(which, x[0]);
}

// Adds to m what second blocks of W steps read of the first ones, W < STEPS.
template <int W, int R>
__device__ void near_scores(const Strip<R>& gates, const typename Strip<R>::Stored& q,
                            const typename Strip<R>::Stored& k, real* m) {
    typedef Strip<R> X;
    real sums[X::STEPS / 2 * W] = {};
#pragma unroll
    for (int n0 = 0; n0 < X::STEPS; n0 += 2 * W)
#pragma unroll
        for (int e = 0; e < X::FEW; e++) {
            real reads[W], keys[W];
            gates.within(reads, keys, n0, e);
#pragma unroll
            for (int i = 0; i < W; i++) reads[i] *= q[n0 + W + i][e], keys[i] *= k[n0 + i][e];
#pragma unroll
            for (int i = 0; i < W; i++)
#pragma unroll
                for (int j = 0; j < W; j++) sums[(n0 / 2 + i) * W + j] += reads[i] * keys[j];
        }
    sums_across<X::LANES>(sums, [&](int n, real sum) {
        const int at = X::first() + n / (W * W) * 2 * W;
        if (X::has(X::C)) m[(at + W + n / W % W) * Tile<R>::MLD + at + n % W] += sum;
    });
}

// --- The kernels' bodies. ---

// Small enough for three blocks, of the largest tiles.
#define FADE_KERNEL(R, NAME) BOUND_KERNEL(NAME, 256, sizeof(S) == 2 && R == 4 ? 3 : 1)

// Queries and keys as they come from and to the state, and what all steps of a chunk leave, if wanted; and the scores.
template <int R, class P>
__device__ void fade(Rows q, Rows k, const S* g, S* faded_q, S* faded_k, real* all, P* scores, Dims d) {
    typedef Strip<R> X;
    typedef Tile<(R + 1) / 2> Part;
    constexpr int C = Tile<R>::C, MLD = Tile<R>::MLD, LD = Part::template stride<1, Part::C>();
    constexpr int OPERAND = Part::TENSOR ? Part::C * LD / 2 : X::WIDTH * LD;
    real *m = dynamic_memory(), *totals = m + Tile<R>::MATRIX, *operands = totals + X::TOTALS;
    const Steps t(d, blockIdx.x);
    const bool here = X::has(X::GROUPS * X::STEPS);
    const real zeros[4] = {};
    for (u32 n = 4 * threadIdx.x; n < C * MLD; n += 1024) write(m + n, zeros);
    for (int c0 = 0; c0 < d.k; c0 += X::WIDTH) {
        X by;
        typename X::Stored gate, query, key;
        typename X::Numbers reads, keys;
        if (here) {
            X::load(gate, t.rows(g, d.k, c0));
            X::load(query, q.rows(t, c0));
            X::load(key, k.rows(t, c0));
            by.set(gate);
        }
        __syncthreads();
        if (here) {
            real own[X::STEPS] = {};
#pragma unroll
            for (int n = 0; n < X::STEPS; n++)
#pragma unroll
                for (int e = 0; e < X::FEW; e++) own[n] += query[n][e] * key[n][e];
            sums_across<X::LANES>(own, [&](int n, real sum) {
                if (X::has(C)) m[(X::first() + n) * (MLD + 1)] += sum;
            });
            near_scores<1>(by, query, key, m);
            near_scores<2>(by, query, key, m);
            near_scores<4>(by, query, key, m);
            by.join(query, key, reads, keys);
            by.keep_total(totals);
        }
        // Blocks of several threads: the operands are in one of two places, so that there is one barrier to a product.
        bool odd = false;
#pragma unroll 1
        for (Pairs pairs{X::STEPS}; pairs.w < C; pairs.w *= 2, odd = !odd) {
            typename Part::T *a = (typename Part::T*)(operands + odd * 2 * OPERAND),
                             *b = (typename Part::T*)(operands + odd * 2 * OPERAND + OPERAND);
            if (here && pairs.in_second(X::first()))
                X::template operand<Part>(a, pairs, by.before, reads);
            else if (here)
                X::template operand<Part>(b, pairs, by.behind, keys);
            __syncthreads();
            Part p;
            const typename Part::At as{a, LD}, bs{b, LD};
            if constexpr (Part::TENSOR)
                p.template multiply_tensor<1, 1>(as, bs, X::WIDTH);
            else
                p.multiply(as, bs, X::WIDTH);
            p.each([&](int i, int j, real x) {
                if (i < C / 2 && pairs.same(i, j)) m[pairs.second(i) * MLD + pairs.first(j)] += x;
            });
            if (here) by.join(pairs, totals);
        }
        if (!here) continue;
#pragma unroll
        for (int n = 0; n < X::STEPS; n++)
#pragma unroll
            for (int e = 0; e < X::FEW; e++) reads[n][e] *= by.before[e], keys[n][e] *= by.behind[e];
        X::put(t.to(faded_q, d.k, c0), reads);
        X::put(t.to(faded_k, d.k, c0), keys);
        if (all && X::first() == 0)
            for (int e = 0; e < X::FEW; e++)
                if (c0 + X::channel() + e < d.k) all[t.id * d.k + c0 + X::channel() + e] = by.whole(e);
    }
    __syncthreads();
    for (u32 n = 4 * threadIdx.x; n < C * C; n += 1024) {
        real y[4];
        read(y, m + n / C * MLD + n % C);
#pragma unroll
        for (int i = 0; i < 4; i++) y[i] *= q.scale * k.scale;
        write(scores + t.id * C * C + n, y);
    }
}

// Where gradients go, and whether they are added.
struct Channels {
    S *q, *k, *g;
    int q_acc, k_acc, g_acc;
};

// The same backwards: adds to gradients. m is STEPS x STEPS numbers on the diagonal of dM.
template <int W, int R>
__device__ void through_near(const Strip<R>& gates, const typename Strip<R>::Stored& q,
                             const typename Strip<R>::Stored& k, const real* m, typename Strip<R>::Numbers& dq,
                             typename Strip<R>::Numbers& dk, typename Strip<R>::Numbers& dg) {
    typedef Strip<R> X;
#pragma unroll
    for (int n0 = 0; n0 < X::STEPS; n0 += 2 * W) {
        const int n1 = n0 + W;
        real ms[W][W];
#pragma unroll
        for (int i = 0; i < W; i++) read(ms[i], m + (n1 + i) * X::STEPS + n0);
#pragma unroll
        for (int e = 0; e < X::FEW; e++) {
            real upto[W], after[W];
            gates.within(upto, after, n0, e);
            // Of its gate each step of the second block has a part of what it and those behind it read; and of the
            // first one of what those before it leave.
            real sum = 0;
#pragma unroll
            for (int i = W - 1; i >= 0; i--) {
                real x = 0;
#pragma unroll
                for (int j = 0; j < W; j++) x += ms[i][j] * (after[j] * k[n0 + j][e]);
                x *= upto[i];
                dq[n1 + i][e] += x;
                sum += q[n1 + i][e] * x;
                dg[n1 + i][e] += sum;
            }
            sum = 0;
#pragma unroll
            for (int j = 0; j < W; j++) {
                real x = 0;
#pragma unroll
                for (int i = 0; i < W; i++) x += ms[i][j] * (upto[i] * q[n1 + i][e]);
                x *= after[j];
                dk[n0 + j][e] += x;
                dg[n0 + j][e] += sum;
                sum += k[n0 + j][e] * x;
            }
        }
    }
}

// dM x in second blocks and dMᵀ x in first ones, for rows x that are q ⊙ upto in second blocks and k ⊙ after in first
// ones, w >= STEPS. With a barrier: behind it a thread may read its strip. On tensor cores the tile lies in rows of MLD
// numbers, and each warp has 16 steps, which are in one block or, if w is 8, in both of a pair.
template <int R>
__device__ void far_product(real* to, const typename Tile<R>::Own& m, const bf16* rows, Pairs pairs) {
    constexpr int MLD = Tile<R>::MLD;
    const int lane = threadIdx.x % 32, r0 = Tile<R>::warp_row();
    const bf16 *below = m.x + (r0 + lane % 16) * MLD + lane / 16 * 8,
               *above = m.x + (lane % 8 + lane / 16 * 8) * MLD + r0 + lane / 8 % 2 * 8;
    Tile<R> y;
    if (pairs.w < 16) {
        u32 p[1][4], transposed[4];
        ldmatrix(p[0], below + r0, false);
        ldmatrix(transposed, above + r0 * MLD, true);
        // One product for both halves: zeros stand for what a half does not read, and 0 times NaN is NaN. So one in q or k
        // reaches the gradients of its eight neighbours, where without tensor cores it reaches those that read it.
        p[0][0] = p[0][3] = 0, p[0][2] = transposed[2];
        y.template multiply_16<0>(p, {rows + r0 * MLD, MLD});
    } else {
#pragma unroll 1
        for (int i = 0, k0 = pairs.other(r0); i < pairs.w; i += 16, k0 += 16) {
            u32 p[1][4];
            if (k0 < r0)
                ldmatrix(p[0], below + k0, false);
            else
                ldmatrix(p[0], above + k0 * MLD, true);
            y.template multiply_16<0>(p, {rows + k0 * MLD, MLD});
        }
    }
    keep<R>(to, y);
    __syncthreads();
}
// Without them each thread makes its own strip, which may stand where the rows did, in rows of WIDTH numbers. m has dMᵀ
// above the diagonal.
template <int R>
__device__ void far_product(real* to, const typename Tile<R>::Own& m, const real* rows, Pairs pairs) {
    typedef Strip<R> X;
    constexpr int MLD = Tile<R>::MLD;
    const bool here = X::has(X::C);
    typename X::Numbers y = {};
    for (int s = pairs.other(X::first()), i = 0; here && i < pairs.w; s++, i++) {
        real x[X::FEW], by[X::STEPS];
        read(x, rows + s * X::WIDTH + X::channel());
        read(by, m.x + s * MLD + X::first());
#pragma unroll
        for (int n = 0; n < X::STEPS; n++)
#pragma unroll
            for (int e = 0; e < X::FEW; e++) y[n][e] += by[n] * x[e];
    }
    __syncthreads();
#pragma unroll
    for (int n = 0; n < X::STEPS; n++)
        if (here) write(to + (X::first() + n) * X::WIDTH + X::channel(), y[n]);
}

// From the gradient, rows cotangent_of(chunk), of what rows q read of those of value_of(chunk), of this step too if
// OWN, and of the state h before the chunk: dq, dk and dg of a tile of channels; with what dh, the gradient of the
// state after the chunk, has of k and g, if it is given.
template <int R, bool OWN, class V, class G>
__device__ void channels(Rows q, Rows k, V value_of, G cotangent_of, const S* g, const S* h, const S* dh, Channels to,
                         Dims d) {
    typedef Tile<R> T;
    typedef Strip<R> X;
    constexpr int C = T::C, MLD = T::MLD, FEW = X::FEW;
    real *scratch = dynamic_memory(), *ms = scratch + T::SCRATCH, *near = ms + T::OWN, *totals = near + C * X::STEPS;
    real *all = totals + X::TOTALS, *starts = all + C, *ends = starts + T::MATRIX;
    const u32 across = tiles(d.k, C), c0 = blockIdx.x % across * C;
    const Steps t(d, blockIdx.x / across);
    const int w = (int)d.w;
    const auto value = value_of(t);
    const auto cotangent = cotangent_of(t);
    const typename T::Own m(ms);
    const bool here = X::has(C);
    typename X::Stored gate, query, key;
    const auto load = [&](int c) {
        if (!here) return;
        X::load(gate, t.rows(g, d.k, c));
        X::load(query, q.rows(t, c));
        X::load(key, k.rows(t, c));
    };
    // The first are on their way while there are products.
    load(c0);
    {
        T y = lower_product<R>(t, scratch, w, cotangent, value, [&](int r) {
            return [=](int s, real x) { return OWN || s < r ? q.scale * k.scale * x : real(0); };
        });
        m.set(y);
        if (!T::TENSOR) __syncthreads();
        y.each([&](int r, int c, real x) {
            if (r / X::STEPS == c / X::STEPS) near[r * X::STEPS + c % X::STEPS] = x;
            if (!T::TENSOR && c < r) st(m.x + c * MLD + r, x);
        });
    }
    {
        T y;
        y.template add<1, 1>(scratch, w, cotangent, state(h, d, t.id, c0, 0));
        y.scale_rows([&](int) { return q.scale; });
        keep<R>(starts, y);
    }
    if (dh) {
        T y;
        y.template add<1, 1>(scratch, w, value, state(dh, d, t.id, c0, 0));
        keep<R>(ends, y);
    }
    // The term of all steps: γ rowsum(S ⊙ dS), PARTS threads to a channel.
    if (to.g) {
        constexpr int PARTS = 16 / R;
        const int c = threadIdx.x / PARTS;
        const auto before = state(h, d, t.id, c0, 0), after = state(dh, d, t.id, c0, 0);
        const bool even = before.template even<8>() && after.template even<8>();
        real sum = 0;
        for (int j = threadIdx.x % PARTS * 8; after.has(c, j); j += PARTS * 8) {
            real x[8], y[8];
            before.get(x, c, j, even), after.get(y, c, j, even);
#pragma unroll
            for (int i = 0; i < 8; i++) sum += x[i] * y[i];
        }
        sum = group_sum(sum, PARTS, (real*)nullptr);
        if (threadIdx.x % PARTS == 0) all[c] = sum;
    }
#pragma unroll 1
    for (int c1 = 0; c1 < C; c1 += X::WIDTH) {
        const int at = c1 + X::channel();
        X by;
        // q ⊙ upto and k ⊙ after inside the thread's steps, and their cotangents from all longer blocks.
        typename X::Numbers reads, keys, through_reads = {}, through_keys = {};
        if (c1 > 0) load(c0 + c1);
        if (here) {
            by.set(gate);
            by.join(query, key, reads, keys);
        }
        __syncthreads();
        if (here) by.keep_total(totals);
        // Adds to dx, the cotangents of rows x, those of x ⊙ more; `sum` is what the thread's steps pass on to gates.
        real sum[FEW];
        const auto take = [&](const real* from, int apart, const real(&more)[FEW], const typename X::Numbers& x,
                              typename X::Numbers& dx) {
#pragma unroll
            for (int e = 0; e < FEW; e++) sum[e] = 0;
#pragma unroll
            for (int n = 0; n < X::STEPS; n++) {
                real y[FEW];
                read(y, from + (X::first() + n) * apart);
#pragma unroll
                for (int e = 0; e < FEW; e++) {
                    y[e] *= more[e];
                    dx[n][e] += y[e];
                    sum[e] += x[n][e] * y[e];
                }
            }
        };
        // In shared memory: rows of a product, what it gives, and those sums, of blocks longer than a thread's steps.
        typename T::T* rows = (typename T::T*)scratch;
        constexpr int LD = T::TENSOR ? (int)MLD : (int)X::WIDTH;
        real *far = T::TENSOR ? ends + T::MATRIX : scratch, *parts = T::TENSOR ? scratch + T::OWN : ends + T::MATRIX;
        real* own = parts + X::group() * X::WIDTH + X::channel();
#pragma unroll 1
        for (Pairs pairs{X::STEPS}; pairs.w < C; pairs.w *= 2) {
            const bool second = pairs.in_second(X::first());
            const auto put = [&](const real(&more)[FEW], const typename X::Numbers& x) {
#pragma unroll
                for (int n = 0; n < X::STEPS; n++) {
                    real y[FEW];
#pragma unroll
                    for (int e = 0; e < FEW; e++) y[e] = more[e] * x[n][e];
                    write(rows + (X::first() + n) * LD + X::channel(), y);
                }
            };
            if (here && second)
                put(by.before, reads);
            else if (here)
                put(by.behind, keys);
            __syncthreads();
            far_product<R>(far, m, rows, pairs);
            if (!here) continue;
            if (second)
                take(far + X::channel(), LD, by.before, reads, through_reads);
            else
                take(far + X::channel(), LD, by.behind, keys, through_keys);
            by.join(pairs, totals);
            if (pairs.w == X::STEPS) continue;
            write(own, sum);
            own += X::TOTALS;
        }
        if (here) {
            take(starts + at, MLD, by.before, reads, through_reads);
            write(own, sum);
            if (dh) take(ends + at, MLD, by.behind, keys, through_keys);
            write(own + X::TOTALS, sum);
        }
        __syncthreads();
        if (!here) continue;
        // To the gates of all of the thread's steps: what others pass on, behind them in second blocks and before them in
        // first ones, and what all steps have.
        real more[FEW];
#pragma unroll
        for (int e = 0; e < FEW; e++) more[e] = to.g ? all[at + e] * by.whole(e) : real(0);
        parts += X::channel();
        const auto add = [&](int group, int end) {
#pragma unroll 1
            for (; group < end; group++) {
                real y[FEW];
                read(y, parts + group * X::WIDTH);
#pragma unroll
                for (int e = 0; e < FEW; e++) more[e] += y[e];
            }
        };
        const int group = X::group(), last = C / X::STEPS;
#pragma unroll 1
        for (int n = 2; n < last; n *= 2, parts += X::TOTALS) {
            const int start = group & -n;
            group & n ? add(group + 1, start + n) : add(start, group);
        }
        add(group + 1, last);
        parts += X::TOTALS;
        if (dh) add(0, group);
        // Reads again, so that nothing need be kept.
        load(c0 + c1);
        by.set(gate);
        typename X::Numbers dq, dk, dg;
        const real* near_m = near + X::first() * X::STEPS;
#pragma unroll
        for (int e = 0; e < FEW; e++) {
            real sum = more[e];
#pragma unroll
            for (int n = X::STEPS - 1; n >= 0; n--) {
                sum += reads[n][e] * through_reads[n][e];
                dg[n][e] = sum;
            }
            sum = 0;
#pragma unroll
            for (int n = 0; n < X::STEPS; n++) {
                dg[n][e] += sum;
                sum += keys[n][e] * through_keys[n][e];
            }
            real upto = 1, after = 1;
#pragma unroll
            for (int n = 0; n < X::STEPS; n++) {
                const int last = X::STEPS - 1 - n;
                upto *= by.gates[n][e];
                dq[n][e] = upto * through_reads[n][e];
                dk[last][e] = after * through_keys[last][e];
                after *= by.gates[last][e];
            }
            if (!OWN) continue;
#pragma unroll
            for (int n = 0; n < X::STEPS; n++) {
                const real own = near_m[n * (X::STEPS + 1)];
                dq[n][e] += own * key[n][e], dk[n][e] += own * query[n][e];
            }
        }
        through_near<1>(by, query, key, near_m, dq, dk, dg);
        through_near<2>(by, query, key, near_m, dq, dk, dg);
        through_near<4>(by, query, key, near_m, dq, dk, dg);
        X::put(t.to(to.q, d.k, c0 + c1, to.q_acc), dq);
        X::put(t.to(to.k, d.k, c0 + c1, to.k_acc), dk);
        X::put(t.to(to.g, d.k, c0 + c1, to.g_acc), dg);
    }
}

}  // namespace memories
