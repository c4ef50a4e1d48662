// The selective scan of selective.rs and its gradient, in the phases of scan.cu (whose phase 2 is used as it is).
//
// Tiling: a block has 32 channels of one piece of a sequence; a warp has 4 of the states of every channel, in registers,
// and a block up to 32: further ones take launches of their own (n0), which add their share to sums over the states. Time
// goes in tiles of a few steps, whose rows (u, delta, dy of the channels, b and c) the whole block reads into registers
// while it still computes the tile before, and then puts into shared memory. A sum over states is a sum over warps; a sum
// over channels (db, dc) is one over lanes, of 32 sums at once by 30 shuffles; the sum over blocks of channels is
// linear.cu's.
//
// For every channel and step forward moves 3 numbers (u, delta; y) and has N exponentials and 6 N operations, backward
// 5 (u, delta, dy; du, ddelta), 2 N / 32 for db and dc, 2 N exponentials and 24 N operations. With pieces, phase 1
// reads 2 and has N exponentials once more. States stay in registers: forward writes one a chunk; backward computes
// those between again, up to 8 of a chunk into shared memory first, then the steps of a tile from the closest one.

constexpr int WARPS = 8, LANE = 32;
constexpr int U = sizeof(real) == 4 ? 16 : 8; // the most steps of a tile, and of one backwards
constexpr int T = U / 2;
constexpr int AHEAD = 4; // rows of a tile that a warp reads

struct alignas(2 * sizeof(real)) Two { real v[2]; };
struct alignas(4 * sizeof(real)) Four { real v[4]; };

struct Size { i64 b, t, e, n, n0, pieces, steps, chunk, padded; };

// What a thread has: channels e .. e + C, of each the states n .. n + 4 / C, of sequence b, steps t0 .. t1; and `column`,
// the channel that it reads and writes for the block.
template <int C>
struct Place {
    static constexpr int K = 4 / C;
    int lane, warp, warps, channel, mine; // channel: its first in the block; mine: its first state in the warp
    i64 tile, row, b, k, e, n, t0, t1, column; // row: of [B, pieces]
    bool some;
    __device__ Place(const Size& z) {
        const i64 tiles = (z.padded + LANE - 1) / LANE;
        lane = threadIdx.x % LANE;
        warp = threadIdx.x / LANE;
        warps = blockDim.x / LANE;
        channel = lane % (LANE / C) * C;
        mine = lane / (LANE / C) * K;
        tile = blockIdx.x % tiles;
        row = blockIdx.x / tiles;
        b = row / z.pieces;
        k = row % z.pieces;
        e = tile * LANE + channel;
        column = tile * LANE + lane;
        n = z.n0 + 4 * warp + mine;
        some = column < z.e;
        t0 = k * z.steps;
        t1 = t0 + z.steps < z.t ? t0 + z.steps : z.t;
    }
    __device__ bool has(const Size& z, int c, int i) const { return e + c < z.e && n + i < z.n; }
    __device__ i64 wide(const Size& z, i64 t) const { return (b * z.t + t) * z.e + column; }
    __device__ i64 narrow(const Size& z, i64 t) const { return (b * z.t + t) * z.n; }
    // Of [B, E, N] and of [B, pieces, E, N].
    __device__ i64 state(const Size& z, i64 of, int c, int i) const { return (of * z.e + e + c) * z.n + n + i; }
    // Of the state before a chunk, [B, chunks, N, padded].
    __device__ i64 kept(const Size& z, i64 t) const {
        return ((b * ((z.t + z.chunk - 1) / z.chunk) + t / z.chunk) * z.n + n) * z.padded + e;
    }
    // Steps of a tile, where `most` are left.
    template <int MOST>
    __device__ int steps(i64 most) const {
        const int tile = AHEAD * warps < MOST ? AHEAD * warps : MOST;
        return most < tile ? (int)most : tile;
    }
};

// A thread's states, from [.., E, N] or zeros.
template <int C, class P>
__device__ void load(const P* x, const Place<C>& p, const Size& z, i64 of, real (&v)[C][4 / C]) {
#pragma unroll
    for (int c = 0; c < C; c++)
#pragma unroll
        for (int i = 0; i < 4 / C; i++) v[c][i] = x && p.has(z, c, i) ? ld(x + p.state(z, of, c, i)) : real(0.0);
}

// Rates of decay in powers of two, as numbers: -INF times a step of length 0 is none.
#define LOG2_E real(1.44269504088896340736)
#define LN_2 real(0.69314718055994530942)
template <int C>
__device__ inline void load_rates(const real* a, const Place<C>& p, const Size& z, real (&v)[C][4 / C]) {
    load(a, p, z, 0, v);
#pragma unroll
    for (int c = 0; c < C; c++)
#pragma unroll
        for (int i = 0; i < 4 / C; i++) v[c][i] = (v[c][i] < -FASTEST ? -FASTEST : v[c][i]) * LOG2_E;
}

// Rows s, s + by, … of u, delta or dy, a channel a lane: this thread's; zeros behind the first `rows` and of no x.
template <int C>
__device__ inline void columns(const S* x, const Place<C>& p, const Size& z, i64 s, int by, int rows, real (&v)[AHEAD]) {
    const i64 at = p.wide(z, s + by * p.warp), step = by * p.warps * z.e;
#pragma unroll
    for (int j = 0; j < AHEAD; j++) v[j] = x && p.some && p.warp + j * p.warps < rows ? ld(x + at + j * step) : real(0.0);
}

// Rows s, s + by, … of b or c, for the states of this block: a thread has every eighth of one state.
template <int C, int N>
__device__ inline void states(const S* x, const Place<C>& p, const Size& z, i64 s, int by, int rows, real (&v)[N]) {
    const int width = 4 * p.warps, first = threadIdx.x / width;
    const i64 n = z.n0 + threadIdx.x % width, at = p.narrow(z, s + by * first) + n;
#pragma unroll
    for (int j = 0; j < N; j++) v[j] = n < z.n && first + 8 * j < rows ? ld(x + at + 8 * by * j * z.n) : real(0.0);
}
template <int N, int ROWS>
__device__ inline void put_states(const real (&v)[N], int warps, Four (&to)[ROWS][WARPS]) {
    const int width = 4 * warps, first = threadIdx.x / width, n = threadIdx.x % width;
#pragma unroll
    for (int j = 0; j < N; j++)
        if (first + 8 * j < ROWS) to[first + 8 * j][n / 4].v[n % 4] = v[j];
}

// step(u) for all u < count.
template <class F>
__device__ inline void each_step(int count, F step) {
    if (count == U) {
#pragma unroll
        for (int u = 0; u < U; u++) step(u);
    } else {
#pragma unroll 1
        for (int u = 0; u < count; u++) step(u);
    }
}

// Phase 1: the map of a piece as (product of transitions, end from zero), [B, pieces, E, N]; if BACK, that of the
// gradient, from behind: x is then dy and y c, forwards u and b. No x is zeros.
template <bool BACK>
__device__ void total(const S* x, const S* delta, const real* a, const S* y, real* prod, real* end, Size z, real scale) {
    __shared__ Two wide[2][U][LANE]; // delta and delta u, or dy
    __shared__ Four narrow[2][U][WARPS];
    const Place<1> p(z);
    real av[1][4], product[4] = {1.0, 1.0, 1.0, 1.0}, h[4] = {0.0, 0.0, 0.0, 0.0};
    load_rates(a, p, z, av);
    real xv[AHEAD], dv[AHEAD], yv[U / 8];
    const auto read_ahead = [&](i64 s) {
        const int rows = p.steps<U>(p.t1 - p.t0 - s), by = BACK ? -1 : 1;
        const i64 first = BACK ? p.t1 - 1 - s : p.t0 + s;
        columns(x, p, z, first, by, rows, xv);
        columns(delta, p, z, first, by, rows, dv);
        states(y, p, z, first, by, rows, yv);
    };
    read_ahead(0);
    int side = 0; // of two, so that one is filled while the other is read
    for (i64 s = 0; s < p.t1 - p.t0; side ^= 1) {
        const int count = p.steps<U>(p.t1 - p.t0 - s);
#pragma unroll
        for (int j = 0; j < AHEAD; j++)
            if (p.warp + j * p.warps < U) wide[side][p.warp + j * p.warps][p.lane] = {dv[j], BACK ? xv[j] : dv[j] * xv[j]};
        put_states(yv, p.warps, narrow[side]);
        __syncthreads();
        s += count;
        read_ahead(s);
        each_step(count, [&](int u) {
            const Two w = wide[side][u][p.lane];
            const Four row = narrow[side][u][p.warp];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const real keep = scale * quick_exp2(w.v[0] * av[0][i]) - (scale - 1.0);
                product[i] *= keep;
                h[i] = BACK ? keep * (row.v[i] * w.v[1] + h[i]) : keep * h[i] + w.v[1] * row.v[i];
            }
        });
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
        if (p.has(z, 0, i)) {
            prod[p.state(z, p.row, 0, i)] = product[i];
            end[p.state(z, p.row, 0, i)] = h[i];
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
    __shared__ Two wide[U][LANE]; // delta and delta u
    __shared__ Four sb[U][WARPS], sc[U][WARPS];
    __shared__ real sums[WARPS][U][LANE];
    const Size z = Z;
    const Place<1> p(z);
    real av[1][4], h[1][4];
    load_rates(a, p, z, av);
    if (starts) load(starts, p, z, p.row, h);
    else load(h0, p, z, p.b, h);
    real xv[AHEAD], dv[AHEAD], bv[U / 8], cv[U / 8];
    const auto read_ahead = [&](i64 s) {
        const int rows = p.steps<U>(p.t1 - s);
        columns(us, p, z, s, 1, rows, xv);
        columns(delta, p, z, s, 1, rows, dv);
        states(b, p, z, s, 1, rows, bv);
        states(c, p, z, s, 1, rows, cv);
    };
    read_ahead(p.t0);
    S *to = saved + p.kept(z, p.t0), *y_to = ys + p.wide(z, p.t0);
    // A tile ends where a chunk does.
    for (i64 s = p.t0, end = p.t0; s < p.t1;) {
        const bool save = s == end;
        if (save) end = end + chunk < p.t1 ? end + chunk : p.t1;
        const int count = p.steps<U>(end - s);
#pragma unroll
        for (int j = 0; j < AHEAD; j++)
            if (p.warp + j * p.warps < U) wide[p.warp + j * p.warps][p.lane] = {dv[j], dv[j] * xv[j]};
        put_states(bv, p.warps, sb);
        put_states(cv, p.warps, sc);
        __syncthreads();
        s += count;
        read_ahead(s);
        if (save) {
#pragma unroll
            for (int i = 0; i < 4; i++)
                if (p.e < padded && p.n + i < n) st(to + i * padded, h[0][i]);
            to += n * padded;
        }
        each_step(count, [&](int u) {
            const Two w = wide[u][p.lane];
            const Four bu = sb[u][p.warp], cu = sc[u][p.warp];
            real y = 0.0;
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const real keep = scale * quick_exp2(w.v[0] * av[0][i]) - (scale - 1.0);
                h[0][i] = keep * h[0][i] + w.v[1] * bu.v[i];
                y += cu.v[i] * h[0][i];
            }
            sums[p.warp][u][p.lane] = y;
        });
        __syncthreads();
        for (int u = p.warp; u < count; u += p.warps) {
            real y = 0.0;
            for (int w = 0; w < p.warps; w++) y += sums[w][u][p.lane];
            if (p.some) put(y_to + u * e, y, n0 > 0);
        }
        y_to += count * e;
    }
    if (p.k == pieces - 1)
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (p.has(z, 0, i)) st(last + p.state(z, p.b, 0, i), h[0][i]);
}

constexpr int SUBS = 8, PAIR = 2;
extern __shared__ real dynamic[]; // [SUBS, 4, threads]

// h of step `to` from that of step `from`, tile by tile.
__device__ inline void advance(const S* us, const S* delta, const S* b, const real (&av)[PAIR][PAIR], const Place<PAIR>& p,
                               const Size& z, i64 from, i64 to, real scale, real (&h)[PAIR][PAIR]) {
    for (i64 s = from; s < to; s++) {
        real bv[PAIR];
#pragma unroll
        for (int i = 0; i < PAIR; i++) bv[i] = p.n + i < z.n ? ld(b + p.narrow(z, s) + p.n + i) : real(0.0);
#pragma unroll
        for (int c = 0; c < PAIR; c++) {
            const i64 at = p.wide(z, s) - p.column + p.e + c;
            const bool in = p.e + c < z.e;
            const real xv = in ? ld(us + at) : real(0.0), dv = in ? ld(delta + at) : real(0.0);
#pragma unroll
            for (int i = 0; i < PAIR; i++)
                h[c][i] = (scale * quick_exp2(dv * av[c][i]) - (scale - 1.0)) * h[c][i] + dv * xv * bv[i];
        }
    }
}

// The sums of each of 2 O numbers over the lanes that differ in bits below 2 O: lanes O apart share out what they have,
// halves of 2 O numbers, so that lane i ends with number i % 2 O.
template <int O, int N>
__device__ inline void sum_lanes(real (&v)[N], int lane) {
    const bool up = lane & O;
#pragma unroll
    for (int j = 0; j < O; j++) {
        const real low = v[j], high = v[j + O];
        v[j] = (up ? high : low) + __shfl_xor_sync(0xffffffffu, up ? low : high, O);
    }
    if constexpr (O > 1) sum_lanes<O / 2>(v, lane);
}

// Phase 3 backwards. A thread has two channels and two of their states: half of a sum over channels is then its own. Sums
// that are not finished here: db and dc by blocks of channels, [2, tiles, B, T, N], and da by pieces, [B, pieces, E, N];
// null if nobody wants them.
extern "C" __global__ void __launch_bounds__(256, 1) selective_run_back(
    const S* us, const S* delta, const real* a, const S* b, const S* c, const S* saved, const S* dys, const S* dlast,
    const real* ends, S* du, int acc_u, S* ddelta, int acc_d, real* dbc, real* da, S* dh0, int acc_0, SIZE) {
    // delta and delta u; dy and u.
    __shared__ Two wide[T][LANE], other[T][LANE];
    __shared__ Four sb[T][WARPS], sc[T][WARPS];
    // What the states of a chunk are computed from; later the sums over states.
    __shared__ union {
        struct { Two wide[2][U][LANE]; Four b[2][U][WARPS]; } first;
        Two sums[2 * WARPS][T][LANE];
    } both;
    const Size z = Z;
    const Place<PAIR> p(z);
    real av[PAIR][PAIR], g[PAIR][PAIR], dav[PAIR][PAIR] = {{0.0, 0.0}, {0.0, 0.0}};
    load_rates(a, p, z, av);
    if (ends) load(ends, p, z, p.row, g);
    else load(dlast, p, z, p.b, g);
    const int tile = p.steps<T>(T), part = 2 * p.warp + p.mine / PAIR;
    const i64 tiles = (padded + LANE - 1) / LANE;
    // Steps behind a tile of few warps do nothing.
    for (int u = tile + p.warp; u < T; u += p.warps) wide[u][p.lane] = other[u][p.lane] = {0.0, 0.0};
    real* subs = dynamic + threadIdx.x;
    real xv[AHEAD], dv[AHEAD], yv[AHEAD], bv[U / 8], cv[1], bt[1];
    const auto read_first = [&](i64 s, i64 end) {
        const int rows = p.steps<U>(end - s);
        columns(us, p, z, s, 1, rows, xv);
        columns(delta, p, z, s, 1, rows, dv);
        states(b, p, z, s, 1, rows, bv);
    };
    const auto read_tile = [&](i64 s, i64 end) {
        const int rows = p.steps<T>(end - s);
        columns(us, p, z, s, 1, rows, xv);
        columns(delta, p, z, s, 1, rows, dv);
        columns(dys, p, z, s, 1, rows, yv);
        states(b, p, z, s, 1, rows, bt);
        states(c, p, z, s, 1, rows, cv);
    };
    for (i64 from = p.t0 + (p.t1 - 1 - p.t0) / chunk * chunk; p.t1 > p.t0 && from >= p.t0; from -= chunk) {
        const i64 to = from + chunk < p.t1 ? from + chunk : p.t1;
        const i64 sub = ((to - from + SUBS - 1) / SUBS + tile - 1) / tile * tile, count = (to - from + sub - 1) / sub;
        const i64 final = from + (count - 1) * sub, top = from + (to - from - 1) / tile * tile;
        const S* kept = saved + p.kept(z, from);
        real h[PAIR][PAIR];
        if (final > from) read_first(from, final);
        else read_tile(top, to);
#pragma unroll
        for (int k = 0; k < PAIR; k++)
#pragma unroll
            for (int i = 0; i < PAIR; i++) h[k][i] = p.has(z, k, i) ? ld(kept + i * padded + k) : real(0.0);
        real* store = subs;
        const auto save = [&] {
#pragma unroll
            for (int i = 0; i < 4; i++) store[i * blockDim.x] = h[i / PAIR][i % PAIR];
            store += 4 * blockDim.x;
        };
        __syncthreads();
        int side = 0;
        i64 left = 0; // steps to the next state that is kept
        for (i64 s = from; s < final; side ^= 1) {
            const int steps = p.steps<U>(final - s);
#pragma unroll
            for (int j = 0; j < AHEAD; j++)
                if (p.warp + j * p.warps < U) both.first.wide[side][p.warp + j * p.warps][p.lane] = {dv[j], dv[j] * xv[j]};
            put_states(bv, p.warps, both.first.b[side]);
            __syncthreads();
            s += steps;
            if (s < final) read_first(s, final);
            else read_tile(top, to);
            for (int v = 0; v < steps; v += 4) { // sub and steps are multiples of 4
                if (left == 0) {
                    save();
                    left = sub;
                }
                left -= 4;
#pragma unroll
                for (int u = 0; u < 4; u++) {
                    real w[2 * PAIR], bu[PAIR];
                    read(w, &both.first.wide[side][v + u][p.channel].v[0]);
                    read(bu, &both.first.b[side][v + u][p.warp].v[p.mine]);
#pragma unroll
                    for (int k = 0; k < PAIR; k++)
#pragma unroll
                        for (int i = 0; i < PAIR; i++) {
                            const real keep = scale * quick_exp2(w[2 * k] * av[k][i]) - (scale - 1.0);
                            h[k][i] = keep * h[k][i] + w[2 * k + 1] * bu[i];
                        }
                }
            }
        }
        save();
        for (i64 s = top; s >= from; s -= tile) {
#pragma unroll
            for (int j = 0; j < AHEAD; j++)
                if (p.warp + j * p.warps < T) {
                    wide[p.warp + j * p.warps][p.lane] = {dv[j], dv[j] * xv[j]};
                    other[p.warp + j * p.warps][p.lane] = {yv[j], xv[j]};
                }
            put_states(bt, p.warps, sb);
            put_states(cv, p.warps, sc);
            __syncthreads();
            if (s > from) read_tile(s - tile, s);
            const i64 j = (s - from) / sub;
#pragma unroll
            for (int i = 0; i < 4; i++) h[i / PAIR][i % PAIR] = subs[(j * 4 + i) * blockDim.x];
            advance(us, delta, b, av, p, z, from + j * sub, s, scale, h);
            real before[T][PAIR][PAIR], w[T][PAIR][PAIR], v[T][2][PAIR]; // v: of a step db, dc, of each state
#pragma unroll
            for (int u = 0; u < T; u++) {
                real dx[2 * PAIR], yx[2 * PAIR], bu[PAIR];
                read(dx, &wide[u][p.channel].v[0]);
                read(yx, &other[u][p.channel].v[0]);
                read(bu, &sb[u][p.warp].v[p.mine]);
#pragma unroll
                for (int i = 0; i < PAIR; i++) v[u][1][i] = 0.0;
#pragma unroll
                for (int k = 0; k < PAIR; k++)
#pragma unroll
                    for (int i = 0; i < PAIR; i++) {
                        before[u][k][i] = h[k][i];
                        w[u][k][i] = scale * quick_exp2(dx[2 * k] * av[k][i]);
                        h[k][i] = (w[u][k][i] - (scale - 1.0)) * h[k][i] + dx[2 * k + 1] * bu[i];
                        v[u][1][i] += yx[2 * k] * h[k][i];
                    }
            }
#pragma unroll
            for (int u = T - 1; u >= 0; u--) {
                real dx[2 * PAIR], yx[2 * PAIR], bu[PAIR], cu[PAIR], out[2 * PAIR];
                read(dx, &wide[u][p.channel].v[0]);
                read(yx, &other[u][p.channel].v[0]);
                read(bu, &sb[u][p.warp].v[p.mine]);
                read(cu, &sc[u][p.warp].v[p.mine]);
#pragma unroll
                for (int i = 0; i < PAIR; i++) v[u][0][i] = 0.0;
#pragma unroll
                for (int k = 0; k < PAIR; k++) {
                    real gb = 0.0, qa = 0.0;
#pragma unroll
                    for (int i = 0; i < PAIR; i++) {
                        const real gt = cu[i] * yx[2 * k] + g[k][i], q = gt * before[u][k][i] * w[u][k][i];
                        v[u][0][i] += gt * dx[2 * k + 1];
                        gb += gt * bu[i];
                        qa += q * av[k][i];
                        dav[k][i] += q * dx[2 * k];
                        g[k][i] = gt * (w[u][k][i] - (scale - 1.0));
                    }
                    out[2 * k] = gb;
                    out[2 * k + 1] = qa;
                }
                write(&both.sums[part][u][p.channel].v[0], out);
            }
            if (dbc) {
                // Of 16 numbers at a time: lane i of each half ends with one of step s + u + i / 4 % 4.
#pragma unroll
                for (int u = 0; u < T; u += 4) {
                    real sums[16];
#pragma unroll
                    for (int i = 0; i < 16; i++) sums[i] = v[u + i / 4][i / 2 % 2][i % 2];
                    sum_lanes<8>(sums, p.lane);
                    const i64 at = s + u + p.lane / 4 % 4, state = p.n + p.lane % 2;
                    if (at < to && at < s + tile && state < n)
                        dbc[(p.lane / 2 % 2 * tiles + p.tile) * nb * t * n + p.narrow(z, at) + state] = sums[0];
                }
            }
            __syncthreads();
            for (int u = p.warp; u < tile; u += p.warps)
                if (p.some && s + u < to) {
                    real gb = 0.0, qa = 0.0;
                    for (int w = 0; w < 2 * p.warps; w++) {
                        const Two sum = both.sums[w][u][p.lane];
                        gb += sum.v[0];
                        qa += sum.v[1];
                    }
                    const i64 i = p.wide(z, s + u);
                    if (ddelta) put(ddelta + i, other[u][p.lane].v[1] * gb + qa * LN_2, acc_d || n0 > 0);
                    if (du) put(du + i, wide[u][p.lane].v[0] * gb, acc_u || n0 > 0);
                }
        }
    }
#pragma unroll
    for (int k = 0; k < PAIR; k++)
#pragma unroll
        for (int i = 0; i < PAIR; i++)
            if (p.has(z, k, i)) {
                if (da) da[p.state(z, p.row, k, i)] = dav[k][i];
                if (dh0 && p.k == 0) put(dh0 + p.state(z, p.b, k, i), g[k][i], acc_0);
            }
}
