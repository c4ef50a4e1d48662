// The mLSTM in chunks of C steps, every chunk of every head at once: the kernels of memories.cuh, where tiling, bytes
// and operations stand, with the names of mlstm.rs and mlstm/chunk.rs, and the kernels of its gates.
//
//   forward    gates, states of (k', v̂), scan, outputs
//   backward   gates; through_norm, states of (q, dô), scan from the end; values, keys, dots, gates_backward
//   many heads states and scan at once, along each head
//
// The gates are five numbers a step, in float even for bf16: c = ln(f_t … f_first) since the chunk's first step, ln i,
// the stabiliser m, the slope and the past's share in the maximum. A thread goes along a chunk twice. First it finds
// the map of the whole chunk; when one thread has gone along the chunks with these maps, it starts again from the true
// number. D_ts = exp(c_t − c_s + ln i_s), and every such exponent is at most 0 but for rounding. c is a double, so that
// the difference has all the digits of a real.

using namespace memories;

// --- Gates ---

// Chunks that a block goes along at once.
enum { AT_ONCE = 64 };

// That of `chunks` from j0 on which a thread has, and its steps; none if there is no such chunk.
struct Share {
    i64 j, start, end;
    int there;

    __device__ Share(const Dims& d, i64 j0) : j(j0 + threadIdx.x), start(j * d.chunk), end(start + d.chunk) {
        there = (int)(d.chunks - j0 < AT_ONCE ? d.chunks - j0 : AT_ONCE);
        if (end > d.t) end = d.t;
    }
};

// g(s, i, f) for the steps of a chunk, read a few at a time.
template <class F>
__device__ void along(const Share& chunk, const real* in, const real* f, const Dims& d, i64 head, F g) {
    constexpr int U = 8;
    for (i64 s = chunk.start; s < chunk.end; s += U) {
        real iv[U], fv[U];
#pragma unroll
        for (int u = 0; u < U; u++) {
            iv[u] = s + u < chunk.end ? in[d.row(head, s + u)] : real(0.0);
            fv[u] = s + u < chunk.end ? f[d.row(head, s + u)] : real(0.0);
        }
#pragma unroll
        for (int u = 0; u < U; u++)
            if (s + u < chunk.end) g(s + u, iv[u], fv[u]);
    }
}

__device__ inline real larger(real a, real b) { return a >= b ? a : b; }

// m0, w0 [B, H] and i, f [B, T, H] to [B, T, H], five times. m = max(m + ln f, i) for each step of a chunk is
// m = max(m + A, B) for all of them. A block has a head.
KERNEL(gates)(const real* in, const real* f, const S* m0, const S* w0, double* c, real* li, real* ms,
    real* slopes, real* shares, S* m_last, i64 heads, Dims d) {
    __shared__ real starts[AT_ONCE], ends[AT_ONCE];
    const i64 head = blockIdx.x;
    const int own = threadIdx.x;
    real m = ld(m0 + head) + log(ld(w0 + head));
    for (i64 j0 = 0; j0 < d.chunks; j0 += AT_ONCE) {
        const Share chunk(d, j0);
        real all = 0, most = -INF;
        along(chunk, in, f, d, head, [&](i64, real i, real f) {
            const real fade = -softplus(-f);
            all += fade;
            most = larger(most + fade, i);
        });
        starts[own] = all, ends[own] = most;
        __syncthreads();
        if (own == 0)
            for (int n = 0; n < chunk.there; n++) {
                const real before = m;
                m = larger(m + starts[n], ends[n]);
                starts[n] = before, ends[n] = m;
            }
        __syncthreads();
        real now = starts[own];
        double sum = 0;
        along(chunk, in, f, d, head, [&](i64 s, real i, real f) {
            const i64 at = d.row(head, s);
            const real past = now - softplus(-f);
            // The last step takes the number with which the next chunk starts, as its own has other roundings.
            now = s + 1 == chunk.end ? ends[own] : larger(past, i);
            // Until something is written m is -INF, and the weights are 0.
            const real from = now == -INF ? real(0.0) : now;
            // e^-800 is 0 in any case, and a sum with -INF in it could not be subtracted from.
            const real fade = past - from;
            // Of many steps of padding the first is enough: the sum keeps its digits.
            if (now != -INF || sum == 0) sum += fade < -800.0 ? real(-800.0) : fade;
            c[at] = sum;
            li[at] = i - from;
            ms[at] = now;
            slopes[at] = sigmoid(-f);
            shares[at] = past > i ? real(1.0) : past == i ? real(0.5) : real(0.0);
        });
        m = ends[chunk.there - 1];
        __syncthreads();
    }
    if (m_last && own == 0) st(m_last + head, m);
}

// N for n·q and m. Where m is negative both its terms are multiplied by e^m, in two factors: e^-m may be infinite.
struct Divisor {
    real half, floor, size, by;
    __device__ Divisor(real q, real m, real eps) {
        half = m < 0.0 ? exp(0.5 * m) : real(1.0);
        floor = m < 0.0 ? real(1.0) : exp(-m);
        size = half * (half * fabs(q));
        by = fmax(size, floor) + eps * (half * half);
    }
};

// 1 / N, the cotangent of the column of ones, and each step's own part of the derivatives by m for fixed C and for
// fixed C e^m, [B, T, H] each. LANES threads have a row, of which each reads 16 bytes at once where rows begin at multiples
// of that.
KERNEL(through_norm)(const S* h, const S* dh, const S* den, const real* m, real* inverse, real* last,
    real* fixed, real* scaled, i64 rows, i64 v, real eps) {
    constexpr int LANES = 8, N = 16 / sizeof(S), GROUPS = 32 / LANES;
    const int lane = threadIdx.x % LANES, group = threadIdx.x % 32 / LANES;
    const bool even = v % N == 0 && ((u32)(u64)h | (u32)(u64)dh) % 16 == 0;
    // All threads of a warp are there for each of its rows, as they add up together.
    for (i64 first = thread() / 32 * GROUPS; first < rows; first += threads() / 32 * GROUPS) {
        const i64 row = first + group;
        const bool there = row < rows;
        real dot = 0.0;
        for (i64 j = lane * N; dh && there && j < v; j += LANES * N) {
            const S *x = h + row * v + j, *g = dh + row * v + j;
            if (even) {
                real a[N], b[N];
                read(a, x);
                read(b, g);
                for (int i = 0; i < N; i++) dot += a[i] * b[i];
            } else {
                for (int i = 0; i < N && j + i < v; i++) dot += ld(x + i) * ld(g + i);
            }
        }
        dot = group_sum(dot, LANES, (real*)nullptr);
        if (lane == 0 && there) {
            const Divisor n(ld(den + row), m[row], eps);
            const real q = ld(den + row), size = n.size, floor = n.floor;
            const real by = n.half * (n.half / n.by), slope = -dot * by;
            inverse[row] = by;
            scaled[row] = eps * slope;
            // Of two that are equal each gets half.
            const real share = size > floor ? real(1.0) : size == floor ? real(0.5) : real(0.0), part = share * slope;
            fixed[row] = dot * (floor / n.by * (1.0 - share));
            last[row] = q < 0.0 ? -part : q > 0.0 ? part : real(0.0);
        }
    }
}

// From q dq and k' dk' of every step, in `parts` sums each, and C dC at the bounds of the chunks [B H, chunks + 1], to
// the gradients of the gates, m0 and w0. A block has a head. A chunk is a linear map of the derivatives by m: the
// factor, the product of the past's shares, is the same for both, and each has a summand of its own.
KERNEL(gates_backward)(const S* w0, const S* dm, const real* dots, const real* qdq, const real* kdk,
    i64 parts, const double* c, const real* slopes, const real* shares,
    const real* fixed, const real* scaled, real* di, int acc_i, real* df,
    int acc_f, S* dm0, int acc_m, S* dw0, int acc_w, i64 heads, Dims d) {
    __shared__ real factors[AT_ONCE], firsts[AT_ONCE], seconds[AT_ONCE];
    const i64 head = blockIdx.x, size = heads * d.t;
    const int own = threadIdx.x;
    dots += head * (d.chunks + 1);
    // A gate whose share is 0 gets 0, even where the gradient is NaN.
    const auto part = [](real share, real x) { return share > 0.0 ? share * x : real(0.0); };
    real by_m = dm ? ld(dm + head) : real(0.0), gamma = by_m - dots[d.chunks];
    for (i64 j0 = (d.chunks - 1) / AT_ONCE * AT_ONCE; j0 >= 0; j0 -= AT_ONCE) {
        const Share chunk(d, j0);
        firsts[own] = seconds[own] = 0;
        for (int again = 0; again < 2; again++) {
            // From the last step to the first: the derivatives by m for fixed C and for fixed C e^m.
            real first = firsts[own], second = seconds[own], factor = 1;
            real end = chunk.start < chunk.end ? dots[chunk.j + 1] : real(0.0);
            for (i64 s = chunk.end - 1; s >= chunk.start; s--) {
                const i64 at = d.row(head, s);
                real q = 0.0, k = 0.0;
                for (i64 p = 0; p < parts; p++) {
                    q += qdq[p * size + at];
                    k += kdk[p * size + at];
                }
                // Nothing before a step whose f is 0 bears on what is behind it.
                const real f = exp((real)(s > chunk.start ? c[at] - c[d.row(head, s - 1)] : c[at]));
                end = f == 0.0 ? real(0.0) : end + (q - k);
                first += fixed[at];
                second += scaled[at];
                const real share = shares[at], won = fabs(second) > fabs(end) ? first - end : k + second;
                if (again && di) put(di + at, part(share, k) + part(1.0 - share, won), acc_i);
                first = part(share, first - k) + part(1.0 - share, end);
                second = part(share, second);
                factor *= share;
                if (again && df) put(df + at, first * slopes[at], acc_f);
            }
            if (again) break;
            factors[own] = factor, firsts[own] = first, seconds[own] = second;
            __syncthreads();
            if (own == 0)
                for (int n = chunk.there - 1; n >= 0; n--) {
                    const real a = by_m, b = gamma;
                    by_m = part(factors[n], by_m) + firsts[n];
                    gamma = part(factors[n], gamma) + seconds[n];
                    firsts[n] = a, seconds[n] = b;
                }
            __syncthreads();
        }
    }
    if (own > 0) return;
    // The state before the first step has the weight e^m0. (by_m is the same number, and has the roundings of every
    // step: too many for bf16.) Before the first token nothing depends on w.
    const real all = gamma + dots[0], w = ld(w0 + head);
    if (dm0) put(dm0 + head, all, acc_m);
    if (dw0) put(dw0 + head, w > 0.0 ? all / w : real(0.0), acc_w);
}

// --- Products ---

// The weights of a chunk, in shared memory.
struct Weights {
    double* c;
    real *i, *r, *e;
    const S* scores; // null

    __device__ real between(int t, int s) const { return exp((real)(c[t] - c[s]) + i[s]); }
    __device__ real start(int t) const { return r[t]; }
    __device__ real end(int s) const { return e[s]; }
};

struct Gates {
    const double* c;
    const real* i;
    // In shared memory, a double counted by the reals that it takes.
    enum { SIZE = 3 + sizeof(double) / sizeof(real) };

    // r_C
    __device__ real whole(const Steps& t, const Dims&, i64) const { return exp((real)c[t.at(t.n - 1)]); }
    __device__ real kept(const Weights& weights, const Steps& t, const Dims&, i64) const { return weights.start(t.n - 1); }

    // A thread's step, and the last one. Steps beyond the last get its weights: none that could be infinite.
    struct Step { double c, last; real i; };
    template <int R>
    __device__ Step fetch(const Steps& t) const {
        const int s = threadIdx.x;
        if (s >= Tile<R>::C) return {};
        const i64 last = t.at(t.n - 1), at = s < t.n ? t.at(s) : last;
        return {c[at], c[last], i[at]};
    }
    template <int R>
    __device__ Weights load(const Steps& t, bool, real* room) const { return load<R>(t, fetch<R>(t), room); }
    template <int R>
    __device__ Weights load(const Steps&, const Step& step, real* room) const {
        constexpr int C = Tile<R>::C;
        real* rest = room + C * (sizeof(double) / sizeof(real));
        const Weights w{(double*)room, rest, rest + C, rest + 2 * C, nullptr};
        const int s = threadIdx.x;
        if (s < C) {
            w.c[s] = step.c;
            w.i[s] = step.i;
            w.r[s] = exp((real)step.c);
            w.e[s] = exp((real)(step.last - step.c) + step.i);
        }
        __syncthreads();
        return w;
    }
};

#define KERNELS(R)                                                                                                   \
    TILED_KERNEL(values_states_##R)(const S* k, const S* v, const double* c, const real* i, real* h, real scale,      \
        Dims d) {                                                                                                    \
        outer<R, false>(Rows{k, d.k, scale}, Wide{v, nullptr, nullptr, d.v, d.w}, Gates{c, i}, h, d);                \
    }                                                                                                                \
    TILED_KERNEL(cotangents_states_##R)(const S* q, const S* g, const real* by, const real* last, const double* c,    \
        const real* i, real* h, Dims d) {                                                                            \
        outer<R, true>(Rows{q, d.k, 1}, Wide{g, by, last, d.v, d.w}, Gates{c, i}, h, d);                             \
    }                                                                                                                \
    TILED_KERNEL(states_##R)(const S* c0, const S* n0, const S* k, const S* v, const double* c, const real* i,        \
        S* states, S* c_last, S* n_last, real scale, Dims d) {                                                       \
        along<R, false, true>(c0, n0, Rows{k, d.k, scale}, Wide{v, nullptr, nullptr, d.v, d.w}, Gates{c, i}, states, \
            c_last, 0, n_last, 0, nullptr, d);                                                                       \
    }                                                                                                                \
    TILED_KERNEL(states_backward_##R)(const S* dc, const S* dn, const S* q, const S* g, const real* by,               \
        const real* last, const double* c, const real* i, real* after, S* dc0, int acc_c, S* dn0, int acc_n,         \
        real* first, Dims d) {                                                                                       \
        along<R, true, true>(dc, dn, Rows{q, d.k, 1}, Wide{g, by, last, d.v, d.w}, Gates{c, i}, after, dc0, acc_c,   \
            dn0, acc_n, first, d);                                                                                   \
    }                                                                                                                \
    TILED_KERNEL(outputs_##R)(const S* q, const S* k, const S* v, const S* h, const double* c, const real* i,         \
        const real* m, S* y, S* den, real scale, real eps, Dims d) {                                                 \
        const auto divisor = [&](real sum, i64 row, bool own) {                                                      \
            if (own) st(den + row, sum);                                                                             \
            const Divisor n(sum, m[row], eps);                                                                       \
            return Ratio{n.half, n.by / n.half};                                                                     \
        };                                                                                                           \
        outputs<R, true>(Rows{q, d.k, 1}, Rows{k, d.k, scale}, v, h, Gates{c, i}, y, divisor, d);                    \
    }                                                                                                                \
    TILED_KERNEL(keys_##R)(const S* q, const S* k, const S* v, const S* g, const real* by, const real* last,          \
        const S* h, const real* dh, const double* c, const real* i, S* dq, int q_acc, S* dk, int k_acc, real* qdq,   \
        real* kdk, i64 rows, real scale, Dims d) {                                                                   \
        const Wide ones{v, nullptr, nullptr, d.v, d.w}, cotangents{g, by, last, d.v, d.w};                           \
        const Gradient to_q{dq, q_acc, qdq, nullptr, rows}, to_k{dk, k_acc, kdk, nullptr, rows};                     \
        keys<R>(Rows{q, d.k, 1}, Rows{k, d.k, scale}, ones, cotangents, h, dh, Gates{c, i}, to_q, to_k, d);          \
    }                                                                                                                \
    TILED_KERNEL(values_##R)(const S* q, const S* k, const S* g, const real* by, const real* last, const real* dh,    \
        const double* c, const real* i, S* dv, int acc, real scale, Dims d) {                                        \
        const Wide cotangents{g, by, last, d.v, d.w};                                                                \
        values<R>(Rows{q, d.k, 1}, Rows{k, d.k, scale}, cotangents, dh, Gates{c, i}, dv, acc, d);                    \
    }
KERNELS(1)
KERNELS(2)
KERNELS(4)

// The state before every chunk, and the last one.
KERNEL(scan_forward)(const S* c0, const S* n0, const real* added, const double* c, S* states,
    S* c_last, S* n_last, i64 heads, Dims d) {
    scan<false>(c0, n0, added, Gates{c, nullptr}, states, c_last, 0, n_last, 0, nullptr, heads, d);
}
// Replaces the additions of each chunk by the gradient of the state after it; the gradient of the first state goes to
// `first`.
KERNEL(scan_backward)(const S* dc, const S* dn, real* grads, const double* c, S* dc0, int acc_c,
    S* dn0, int acc_n, real* first, i64 heads, Dims d) {
    scan<true>(dc, dn, grads, Gates{c, nullptr}, grads, dc0, acc_c, dn0, acc_n, first, heads, d);
}

// Ĉ·dĈ at every bound of a chunk, [B H, chunks + 1]: a block has one.
KERNEL(dots)(const S* states, const S* c_last, const S* n_last, const real* first, const real* after,
    real* dots, Dims d) {
    __shared__ real scratch[32];
    const i64 head = blockIdx.x / (d.chunks + 1), n = blockIdx.x % (d.chunks + 1), size = d.k * d.w;
    const real* grads = n == 0 ? first + head * size : after + (head * d.chunks + n - 1) * size;
    real sum = 0;
    for (i64 e = threadIdx.x; e < size; e += blockDim.x) {
        const i64 most = d.k * d.v;
        const real s = n < d.chunks ? ld(states + (head * d.chunks + n) * size + e)
                       : e < most   ? ld(c_last + head * most + e)
                                    : ld(n_last + head * d.k + e - most);
        sum += s * grads[e];
    }
    sum = block_sum(sum, scratch);
    if (threadIdx.x == 0) dots[blockIdx.x] = sum;
}
