// The selective scan of selective.rs and its gradient, in the phases of scan.cu (whose phase 2 is used as it is).
//
// Tiling: a block has 32 channels, one a lane, of one piece of a sequence; a warp has 4 of the states of every channel,
// in registers, and a block up to 32: further ones take launches of their own (n0), which add their share to sums over
// the states. Time goes in tiles of a few steps: rows of b and c come to shared memory by the whole block, a sum over
// states is a sum over warps, and a sum over channels (db, dc) is one over lanes, of 32 sums at once by 31 shuffles;
// the sum over blocks of channels is linear.cu's.
//
// For every channel and step forward moves 3 numbers (u, delta; y) and has N exponentials and 6 N operations, backward
// 5 (u, delta, dy; du, ddelta), 2 N / 32 for db and dc, 2 N exponentials and 24 N operations. With pieces, phase 1
// reads 2 and has N exponentials once more. States stay in registers: forward writes one a chunk; backward computes
// those between again, up to 8 of a chunk into shared memory first, then the steps of a tile from the closest one.

struct alignas(4 * sizeof(real)) Four { real v[4]; };
constexpr int WARPS = 8, LANE = 32;

struct Size { i64 b, t, e, n, n0, pieces, steps, chunk, padded; };

// What a thread has: channel e, states n .. n + 4 of sequence b, steps t0 .. t1.
struct Place {
    int lane, warp, warps;
    i64 tile, row, b, k, e, n, t0, t1; // row: of [B, pieces]
    bool some;
    __device__ Place(const Size& z) {
        const i64 tiles = (z.padded + LANE - 1) / LANE;
        lane = threadIdx.x % LANE;
        warp = threadIdx.x / LANE;
        warps = blockDim.x / LANE;
        tile = blockIdx.x % tiles;
        row = blockIdx.x / tiles;
        b = row / z.pieces;
        k = row % z.pieces;
        e = tile * LANE + lane;
        n = z.n0 + 4 * warp;
        some = e < z.e;
        t0 = k * z.steps;
        t1 = t0 + z.steps < z.t ? t0 + z.steps : z.t;
    }
    __device__ bool has(const Size& z, int i) const { return some && n + i < z.n; }
    __device__ i64 wide(const Size& z, i64 t) const { return (b * z.t + t) * z.e + e; }
    __device__ i64 narrow(const Size& z, i64 t) const { return (b * z.t + t) * z.n; }
    // Of [B, E, N] and of [B, pieces, E, N].
    __device__ i64 state(const Size& z, i64 of) const { return (of * z.e + e) * z.n + n; }
};

// Four states of one channel, from [.., E, N] or zeros.
template <class P>
__device__ void load(const P* x, const Place& p, const Size& z, i64 of, real (&v)[4]) {
#pragma unroll
    for (int i = 0; i < 4; i++) v[i] = x && p.has(z, i) ? ld(x + p.state(z, of) + i) : real(0.0);
}

// Rates of decay as numbers: -INF times a step of length 0 is none.
__device__ inline void load_rates(const real* a, const Place& p, const Size& z, real (&v)[4]) {
    load(a, p, z, 0, v);
#pragma unroll
    for (int i = 0; i < 4; i++) v[i] = v[i] < -FASTEST ? -FASTEST : v[i];
}

// Rows t, t + by, … of b or c, for the states of this block; zeros outside t0 .. t1.
template <int U>
__device__ void stage(const S* x, const Place& p, const Size& z, i64 t, int by, Four (&to)[U][WARPS]) {
    const int width = 4 * p.warps;
    for (int i = threadIdx.x; i < U * width; i += blockDim.x) {
        const i64 s = t + i / width * by, n = z.n0 + i % width;
        const bool in = s >= p.t0 && s < p.t1 && n < z.n;
        to[i / width][i % width / 4].v[i % 4] = in ? ld(x + p.narrow(z, s) + n) : real(0.0);
    }
}

// Phase 1: the map of a piece as (product of transitions, end from zero), [B, pieces, E, N]; if BACK, that of the
// gradient, from behind: x is then dy and y c, forwards u and b. No x is zeros.
template <bool BACK>
__device__ void total(const S* x, const S* delta, const real* a, const S* y, real* prod, real* end, Size z, real scale) {
    constexpr int U = 8;
    __shared__ Four rows[U][WARPS];
    const Place p(z);
    real av[4], product[4] = {1.0, 1.0, 1.0, 1.0}, h[4] = {0.0, 0.0, 0.0, 0.0};
    load_rates(a, p, z, av);
    for (i64 s = 0; s < p.t1 - p.t0; s += U) {
        const i64 first = BACK ? p.t1 - 1 - s : p.t0 + s;
        const int by = BACK ? -1 : 1;
        __syncthreads();
        stage(y, p, z, first, by, rows);
        real xv[U], dv[U];
#pragma unroll
        for (int u = 0; u < U; u++) {
            const bool in = p.some && s + u < p.t1 - p.t0;
            xv[u] = in && x ? ld(x + p.wide(z, first + u * by)) : real(0.0);
            dv[u] = in ? ld(delta + p.wide(z, first + u * by)) : real(0.0);
        }
        __syncthreads();
#pragma unroll
        for (int u = 0; u < U; u++) {
            const Four row = rows[u][p.warp];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const real keep = scale * exp(dv[u] * av[i]) - (scale - 1.0);
                product[i] *= keep;
                h[i] = BACK ? keep * (row.v[i] * xv[u] + h[i]) : keep * h[i] + dv[u] * xv[u] * row.v[i];
            }
        }
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
        if (p.has(z, i)) {
            prod[p.state(z, p.row) + i] = product[i];
            end[p.state(z, p.row) + i] = h[i];
        }
}

#define SIZE i64 nb, i64 t, i64 e, i64 n, i64 n0, i64 pieces, i64 steps, i64 chunk, i64 padded, real scale
#define Z Size{nb, t, e, n, n0, pieces, steps, chunk, padded}

extern "C" __global__ void __launch_bounds__(256, 1) selective_total(const S* u, const S* delta, const real* a, const S* b,
                                                                  real* prod, real* end, SIZE) {
    total<false>(u, delta, a, b, prod, end, Z, scale);
}
extern "C" __global__ void __launch_bounds__(256, 1) selective_total_back(const S* dy, const S* delta, const real* a,
                                                                       const S* c, real* prod, real* end, SIZE) {
    total<true>(dy, delta, a, c, prod, end, Z, scale);
}

// Phase 3: y, the last state, and the state before every chunk, [B, chunks, N, padded], from `starts` or, where there
// is one piece and they are null, from h0.
extern "C" __global__ void __launch_bounds__(256, 1) selective_run(const S* us, const S* delta, const real* a, const S* b,
                                                                const S* c, const S* h0, const real* starts, S* ys,
                                                                S* last, S* saved, SIZE) {
    constexpr int U = 8;
    __shared__ Four sb[U][WARPS], sc[U][WARPS];
    __shared__ real sums[WARPS][U][LANE];
    const Size z = Z;
    const Place p(z);
    real av[4], h[4];
    load_rates(a, p, z, av);
    if (starts) load(starts, p, z, p.row, h);
    else load(h0, p, z, p.b, h);
    i64 save = p.t0; // the next step before which the state is saved
    S* to = saved + ((p.b * ((t + chunk - 1) / chunk) + p.t0 / chunk) * n + p.n) * padded + p.e;
    for (i64 s = p.t0; s < p.t1; s += U) {
        stage(b, p, z, s, 1, sb);
        stage(c, p, z, s, 1, sc);
        real xv[U], dv[U];
#pragma unroll
        for (int u = 0; u < U; u++) {
            const bool in = p.some && s + u < p.t1;
            xv[u] = in ? ld(us + p.wide(z, s + u)) : real(0.0);
            dv[u] = in ? ld(delta + p.wide(z, s + u)) : real(0.0);
        }
        __syncthreads();
#pragma unroll
        for (int u = 0; u < U; u++) {
            if (s + u == save && s + u < p.t1) {
#pragma unroll
                for (int i = 0; i < 4; i++)
                    if (p.e < padded && p.n + i < n) st(to + i * padded, h[i]);
                to += n * padded;
                save += chunk;
            }
            const Four bv = sb[u][p.warp], cv = sc[u][p.warp];
            real y = 0.0;
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const real keep = scale * exp(dv[u] * av[i]) - (scale - 1.0);
                h[i] = keep * h[i] + dv[u] * xv[u] * bv.v[i];
                y += cv.v[i] * h[i];
            }
            sums[p.warp][u][p.lane] = y;
        }
        __syncthreads();
        for (int u = p.warp; u < U; u += p.warps)
            if (p.some && s + u < p.t1) {
                real y = 0.0;
                for (int w = 0; w < p.warps; w++) y += sums[w][u][p.lane];
                put(ys + p.wide(z, s + u), y, n0 > 0);
            }
    }
    if (p.k == pieces - 1)
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (p.has(z, i)) st(last + p.state(z, p.b) + i, h[i]);
}

constexpr int T = 4; // steps of a tile of the backward pass
constexpr int SUBS = 8;
extern __shared__ real dynamic[]; // [SUBS, 4, threads]

// h of step s from that of step s - 4 k.
__device__ inline void advance(const S* us, const S* delta, const S* b, const real (&av)[4], const Place& p,
                               const Size& z, i64 from, i64 to, real scale, real (&h)[4]) {
    for (i64 s = from; s < to; s += T) {
        real xv[T], dv[T], bv[T][4];
#pragma unroll
        for (int u = 0; u < T; u++) {
            xv[u] = p.some ? ld(us + p.wide(z, s + u)) : real(0.0);
            dv[u] = p.some ? ld(delta + p.wide(z, s + u)) : real(0.0);
#pragma unroll
            for (int i = 0; i < 4; i++) bv[u][i] = p.n + i < z.n ? ld(b + p.narrow(z, s + u) + p.n + i) : real(0.0);
        }
#pragma unroll
        for (int u = 0; u < T; u++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                h[i] = (scale * exp(dv[u] * av[i]) - (scale - 1.0)) * h[i] + dv[u] * xv[u] * bv[u][i];
    }
}

// The sum over a warp of each of 32 numbers, v[0] of lane i becoming that of v[i]: lanes O apart share out what they
// have, halves of 2 O numbers.
template <int O>
__device__ inline void sum_lanes(real (&v)[32], int lane) {
    const bool up = lane & O;
#pragma unroll
    for (int j = 0; j < O; j++) {
        const real low = v[j], high = v[j + O];
        v[j] = (up ? high : low) + __shfl_xor_sync(0xffffffffu, up ? low : high, O);
    }
    if constexpr (O > 1) sum_lanes<O / 2>(v, lane);
}

// Phase 3 backwards. Sums that are not finished here: db and dc by blocks of channels, [2, tiles, B, T, N], and da by
// pieces, [B, pieces, E, N]; null if nobody wants them.
extern "C" __global__ void __launch_bounds__(256, 1) selective_run_back(
    const S* us, const S* delta, const real* a, const S* b, const S* c, const S* saved, const S* dys, const S* dlast,
    const real* ends, S* du, int acc_u, S* ddelta, int acc_d, real* dbc, real* da, S* dh0, int acc_0, SIZE) {
    __shared__ Four sb[T][WARPS], sc[T][WARPS];
    __shared__ real sum_b[WARPS][T][LANE], sum_a[WARPS][T][LANE];
    const Size z = Z;
    const Place p(z);
    real av[4], g[4], dav[4] = {0.0, 0.0, 0.0, 0.0};
    load_rates(a, p, z, av);
    if (ends) load(ends, p, z, p.row, g);
    else load(dlast, p, z, p.b, g);
    real* subs = dynamic + threadIdx.x;
    for (i64 from = p.t0 + (p.t1 - 1 - p.t0) / chunk * chunk; p.t1 > p.t0 && from >= p.t0; from -= chunk) {
        const i64 to = from + chunk < p.t1 ? from + chunk : p.t1;
        const i64 sub = ((to - from + SUBS - 1) / SUBS + T - 1) / T * T, count = (to - from + sub - 1) / sub;
        const S* kept = saved + ((p.b * ((t + chunk - 1) / chunk) + from / chunk) * n + p.n) * padded + p.e;
        real h[4];
#pragma unroll
        for (int i = 0; i < 4; i++) h[i] = p.has(z, i) ? ld(kept + i * padded) : real(0.0);
        for (i64 j = 0; j < count; j++) {
#pragma unroll
            for (int i = 0; i < 4; i++) subs[(j * 4 + i) * blockDim.x] = h[i];
            if (j < count - 1) advance(us, delta, b, av, p, z, from + j * sub, from + (j + 1) * sub, scale, h);
        }
        for (i64 s = from + (to - from - 1) / T * T; s >= from; s -= T) {
            const i64 j = (s - from) / sub;
#pragma unroll
            for (int i = 0; i < 4; i++) h[i] = subs[(j * 4 + i) * blockDim.x];
            advance(us, delta, b, av, p, z, from + j * sub, s, scale, h);
            stage(b, p, z, s, 1, sb);
            stage(c, p, z, s, 1, sc);
            real xv[T], dv[T], yv[T], before[T][4], w[T][4], v[32];
#pragma unroll
            for (int u = 0; u < T; u++) {
                const bool in = p.some && s + u < to;
                xv[u] = in ? ld(us + p.wide(z, s + u)) : real(0.0);
                dv[u] = in ? ld(delta + p.wide(z, s + u)) : real(0.0);
                yv[u] = in && dys ? ld(dys + p.wide(z, s + u)) : real(0.0);
            }
            __syncthreads();
#pragma unroll
            for (int u = 0; u < T; u++)
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    before[u][i] = h[i];
                    w[u][i] = scale * exp(dv[u] * av[i]);
                    h[i] = (w[u][i] - (scale - 1.0)) * h[i] + dv[u] * xv[u] * sb[u][p.warp].v[i];
                    v[16 + u * 4 + i] = yv[u] * h[i];
                }
#pragma unroll
            for (int u = T - 1; u >= 0; u--) {
                const Four bv = sb[u][p.warp], cv = sc[u][p.warp];
                real gb = 0.0, qa = 0.0;
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const real gt = cv.v[i] * yv[u] + g[i], q = gt * before[u][i] * w[u][i];
                    v[u * 4 + i] = gt * dv[u] * xv[u];
                    gb += gt * bv.v[i];
                    qa += q * av[i];
                    dav[i] += q * dv[u];
                    g[i] = gt * (w[u][i] - (scale - 1.0));
                }
                sum_b[p.warp][u][p.lane] = gb;
                sum_a[p.warp][u][p.lane] = qa;
            }
            sum_lanes<16>(v, p.lane);
            const i64 at = s + p.lane / 4 % 4, state = p.n + p.lane % 4;
            const i64 tiles = (padded + LANE - 1) / LANE;
            if (dbc && at < to && state < n)
                dbc[(p.lane / 16 * tiles + p.tile) * nb * t * n + p.narrow(z, at) + state] = v[0];
            __syncthreads();
            for (int u = p.warp; u < T; u += p.warps)
                if (p.some && s + u < to) {
                    real gb = 0.0, qa = 0.0;
                    for (int w = 0; w < p.warps; w++) {
                        gb += sum_b[w][u][p.lane];
                        qa += sum_a[w][u][p.lane];
                    }
                    const i64 i = p.wide(z, s + u);
                    if (ddelta) put(ddelta + i, ld(us + i) * gb + qa, acc_d || n0 > 0);
                    if (du) put(du + i, ld(delta + i) * gb, acc_u || n0 > 0);
                }
        }
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
        if (p.has(z, i)) {
            if (da) da[p.state(z, p.row) + i] = dav[i];
            if (dh0 && p.k == 0) put(dh0 + p.state(z, p.b) + i, g[i], acc_0);
        }
}
