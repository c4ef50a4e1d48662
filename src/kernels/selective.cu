// The selective scan of selective.rs and its gradient. Sequences are cut into pieces, in three phases: every piece on its own,
// its map h -> prod h + end of each state; from piece to piece, their starts; every piece from its true start.
//
// Tiling: a block has 32 channels of one piece of a sequence; a warp has 4 of the states of every channel, in registers,
// and a block up to 32: further ones take launches of their own (n0), which add their share to sums over the states. Time
// goes in tiles of a few steps, whose rows (u, delta, dy of the channels, b and c) the whole block reads into registers
// while it still computes the tile before, and then puts into shared memory. A sum over states is a sum over warps; a sum
// over channels (db, dc) is one over lanes, of 16 sums at once by 15 shuffles; the sum over blocks of channels is
// linear.cu's.
//
// For every channel and step forward moves 3 numbers (u, delta; y) and has N exponentials and 6 N operations, backward
// 5 (u, delta, dy; du, ddelta), 2 N / 32 for db and dc, 2 N exponentials and 24 N operations. With pieces, phase 1
// reads 2 and has N exponentials once more. States stay in registers: forward writes one a chunk; backward computes
// those between again, up to SUBS of a chunk into shared memory first, then the steps of a tile from the closest one.

constexpr int WARPS = 8, LANE = 32;
constexpr int U = sizeof(real) == 4 ? 16 : 8; // steps of a tile
constexpr int T = U / 2;                        // and of one backwards

struct alignas(2 * sizeof(real)) Two { real v[2]; };
struct alignas(4 * sizeof(real)) Four { real v[4]; };

struct Size { i64 b, t, e, n, n0, pieces, steps, chunk, padded; };

// A thread's share: channels e .. e + C, of each the states n .. n + 4 / C, of piece k of sequence b, which begins with
// step t0 and has `length` steps; and the numbers that it reads for the block, of u, delta and dy by channel and of b
// and c by state, of which the first are at `wide` and `narrow`. Steps are counted from t0.
template <int C>
struct Place {
    static constexpr int K = 4 / C;
    int lane, warp, warps, channel, mine; // channel: its first in the block; mine: its first state in the warp
    int first, own; // of b and c it reads every eighth row, from `first` on, of state `own` of the block
    int length;
    i64 tile, row, b, k, e, n, t0, wide, narrow; // row: of [B, pieces]
    int reach, reach_own; // how many rows it may read there: none, where it has no channel or state
    __device__ Place(const Size& z) {
        const i64 tiles = (z.padded + LANE - 1) / LANE;
        lane = threadIdx.x % LANE;
        warp = threadIdx.x / LANE;
        warps = blockDim.x / LANE;
        channel = lane % (LANE / C) * C;
        mine = lane / (LANE / C) * K;
        first = threadIdx.x / (4 * warps);
        own = threadIdx.x % (4 * warps);
        tile = blockIdx.x % tiles;
        row = blockIdx.x / tiles;
        b = row / z.pieces;
        k = row % z.pieces;
        e = tile * LANE + channel;
        n = z.n0 + 4 * warp + mine;
        t0 = k * z.steps;
        length = (int)(z.steps < z.t - t0 ? z.steps : z.t - t0);
        wide = (b * z.t + t0) * z.e + tile * LANE + lane;
        narrow = (b * z.t + t0) * z.n + z.n0 + own;
        reach = tile * LANE + lane < z.e ? U : 0;
        reach_own = z.n0 + own < z.n ? U : 0;
    }
    __device__ bool has(const Size& z, int c, int i) const { return e + c < z.e && n + i < z.n; }
    // Of [B, E, N] and of [B, pieces, E, N].
    __device__ i64 state(const Size& z, i64 of, int c, int i) const { return (of * z.e + e + c) * z.n + n + i; }
    // Of the state before a chunk, [B, chunks, N, padded].
    __device__ i64 kept(const Size& z, int s) const {
        return ((b * ((z.t + z.chunk - 1) / z.chunk) + (t0 + s) / z.chunk) * z.n + n) * z.padded + e;
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

// Rates of decay in powers of two, without -INF, because -INF times a step of length 0 is NaN.
#define LN_2 real(0.69314718055994530942)
template <int C>
__device__ inline void load_rates(const real* a, const Place<C>& p, const Size& z, real (&v)[C][4 / C]) {
    load(a, p, z, 0, v);
#pragma unroll
    for (int c = 0; c < C; c++)
#pragma unroll
        for (int i = 0; i < 4 / C; i++) v[c][i] = at_most(at_least(v[c][i], -FASTEST), LARGEST / 2) * LOG2_E;
}

// The numbers that a thread reads of a tile of ROWS steps before they are needed, unconverted, so that it waits for
// nothing: of N tensors the rows s, s + by, … of which there are `rows`; zeros behind them. With four warps or more
// this is the whole tile; fewer warps read the other rows when they put them into shared memory.
template <int ROWS, int N>
struct Columns {
    static constexpr int J = ROWS / 4;
    const S* x[N]; // this thread's first number of each
    int e, by, s, rows;
    S v[N][J];

    template <int C>
    __device__ Columns(const S* const (&all)[N], const Place<C>& p, i64 e, int by) : e((int)e), by(by) {
#pragma unroll
        for (int k = 0; k < N; k++) x[k] = all[k] + p.wide;
    }
    __device__ S get(int k, int u) const {
        S y = {};
        if (u < rows) y = x[k][wide_product(s + by * u, e)];
        return y;
    }
    template <int C>
    __device__ void read(const Place<C>& p, int from, int count) {
        s = from;
        rows = count < p.reach ? count : p.reach;
#pragma unroll
        for (int j = 0; j < J; j++)
#pragma unroll
            for (int k = 0; k < N; k++) v[k][j] = get(k, p.warp + j * p.warps);
    }
    // put(u, numbers of row u), for every row of this thread.
    template <int C, class F>
    __device__ void put(const Place<C>& p, F put) const {
        real y[N];
#pragma unroll
        for (int j = 0; j < J; j++) {
            const int u = p.warp + j * p.warps;
#pragma unroll
            for (int k = 0; k < N; k++) y[k] = ld(&v[k][j]);
            if (u < ROWS) put(u, y);
        }
        for (int u = p.warp + J * p.warps; u < ROWS; u += p.warps) {
#pragma unroll
            for (int k = 0; k < N; k++) {
                const S one = get(k, u);
                y[k] = ld(&one);
            }
            put(u, y);
        }
    }
};
// As Columns, but of b or c or both: N tensors with a number a state.
template <int ROWS, int N>
struct States {
    static constexpr int J = (ROWS + 7) / 8;
    const S* x[N];
    int n;
    S v[N][J];

    template <int C>
    __device__ States(const S* const (&all)[N], const Place<C>& p, i64 n) : n((int)n) {
#pragma unroll
        for (int k = 0; k < N; k++) x[k] = all[k] + p.narrow;
    }
    template <int C>
    __device__ void read(const Place<C>& p, int s, int by, int rows) {
        const int most = rows < p.reach_own ? rows : p.reach_own;
#pragma unroll
        for (int j = 0; j < J; j++) {
            const i64 at = wide_product(s + by * (p.first + 8 * j), n);
#pragma unroll
            for (int k = 0; k < N; k++) {
                v[k][j] = {};
                if (p.first + 8 * j < most) v[k][j] = x[k][at];
            }
        }
    }
    template <int C>
    __device__ void put(const Place<C>& p, int k, Four (&to)[ROWS][WARPS]) const {
        real* at = (real*)to + p.first * 4 * WARPS + p.own;
#pragma unroll
        for (int j = 0; j < J; j++)
            if (p.first + 8 * j < ROWS) at[8 * j * 4 * WARPS] = ld(&v[k][j]);
    }
};

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
    const int by = BACK ? -1 : 1;
    Columns<U, 2> columns({delta, x ? x : delta}, p, z.e, by);
    States<U, 1> states({y}, p, z.n);
    const auto read_ahead = [&](int s) {
        const int rows = p.length - s, first = BACK ? p.length - 1 - s : s;
        columns.read(p, first, rows);
        states.read(p, first, by, rows);
    };
    read_ahead(0);
    int side = 0; // of two, so that one is filled while the other is read
    for (int s = 0; s < p.length; side ^= 1) {
        const int count = p.length - s < U ? p.length - s : U;
        columns.put(p, [&](int u, const real (&v)[2]) {
            wide[side][u][p.lane] = {v[0], !x ? real(0.0) : BACK ? v[1] : v[0] * v[1]};
        });
        states.put(p, 0, narrow[side]);
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

BOUND_KERNEL(selective_total, 256, 1)(const S* u, const S* delta, const real* a, const S* b,
    real* prod, real* end, SIZE) {
    total<false>(u, delta, a, b, prod, end, Z, scale);
}
BOUND_KERNEL(selective_total_back, 256, 1)(const S* dy, const S* delta, const real* a,
    const S* c, real* prod, real* end, SIZE) {
    total<true>(dy, delta, a, c, prod, end, Z, scale);
}

// Phase 2: the ends of pieces that start from zero become their true starts. `first` (zeros if null) [B, D] starts the first
// piece, or, if `back`, the last. A thread has one of the d states of a sequence.
KERNEL(selective_carry)(const S* first, const real* prod, real* ends, i64 n, i64 pieces, i64 d, int back) {
    const i64 i = thread();
    if (i >= n * d) return;
    const i64 begin = i / d * pieces * d + i % d;
    real h = first ? ld(first + i) : real(0.0);
    for (i64 k = 0; k < pieces; k += U) {
        real pv[U], ev[U];
#pragma unroll
        for (int u = 0; u < U; u++) {
            const i64 at = begin + (back ? pieces - 1 - k - u : k + u) * d;
            const bool in = k + u < pieces;
            pv[u] = in ? prod[at] : real(0.0);
            ev[u] = in ? ends[at] : real(0.0);
        }
#pragma unroll
        for (int u = 0; u < U; u++) {
            const i64 at = begin + (back ? pieces - 1 - k - u : k + u) * d;
            if (k + u < pieces) {
                ends[at] = h;
                h = pv[u] * h + ev[u];
            }
        }
    }
}

// Phase 3: y, the last state, and the state before every chunk, [B, chunks, N, padded], from `starts` or, where there
// is one piece and they are null, from h0.
BOUND_KERNEL(selective_run, 256, 1)(const S* us, const S* delta, const real* a, const S* b,
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
    Columns<U, 2> columns({delta, us}, p, e, 1);
    States<U, 2> states({b, c}, p, n);
    const auto read_ahead = [&](int s) {
        columns.read(p, s, p.length - s);
        states.read(p, s, 1, p.length - s);
    };
    read_ahead(0);
    S* to = saved + p.kept(z, 0);
    // A tile ends where a chunk does.
    for (int s = 0, end = 0; s < p.length;) {
        const bool save = s == end;
        if (save) end = chunk < p.length - end ? end + (int)chunk : p.length;
        const int count = end - s < U ? end - s : U;
        columns.put(p, [&](int u, const real (&v)[2]) { wide[u][p.lane] = {v[0], v[0] * v[1]}; });
        states.put(p, 0, sb);
        states.put(p, 1, sc);
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
        for (int u0 = p.warp; u0 < count; u0 += 4 * p.warps) { // four at once
            real y[4] = {0.0, 0.0, 0.0, 0.0};
            for (int w = 0; w < p.warps; w++)
#pragma unroll
                for (int j = 0; j < 4; j++)
                    if (u0 + j * p.warps < count) y[j] += sums[w][u0 + j * p.warps][p.lane];
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const int u = u0 + j * p.warps;
                if (u < count && p.reach) put(ys + p.wide + wide_product(s - count + u, (int)e), y[j], n0 > 0);
            }
        }
    }
    if (p.k == pieces - 1)
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (p.has(z, 0, i)) st(last + p.state(z, p.b, 0, i), h[0][i]);
}

// (device.rs knows the first, too. In doubles a block has no room for more on most devices.)
constexpr int SUBS = sizeof(real) == 4 ? 8 : 4, PAIR = 2;
extern __shared__ real dynamic[]; // [SUBS, 4, threads]

// h of step `to` from that of step `from`. There is a step in between only in chunks longer than SUBS tiles.
__device__ inline void advance(const S* us, const S* delta, const S* b, const real (&av)[PAIR][PAIR], const Place<PAIR>& p,
                               const Size& z, int from, int to, real scale, real (&h)[PAIR][PAIR]) {
#pragma unroll 1
    for (int s = from; s < to; s++) {
        const i64 wide = p.wide - p.lane + p.channel + wide_product(s, (int)z.e);
        const i64 narrow = p.narrow - p.own + 4 * p.warp + p.mine + wide_product(s, (int)z.n);
        real bv[PAIR];
#pragma unroll
        for (int i = 0; i < PAIR; i++) bv[i] = p.n + i < z.n ? ld(b + narrow + i) : real(0.0);
#pragma unroll
        for (int k = 0; k < PAIR; k++) {
            const bool in = p.e + k < z.e;
            const real xv = in ? ld(us + wide + k) : real(0.0), dv = in ? ld(delta + wide + k) : real(0.0);
#pragma unroll
            for (int i = 0; i < PAIR; i++)
                h[k][i] = (scale * quick_exp2(dv * av[k][i]) - (scale - 1.0)) * h[k][i] + dv * xv * bv[i];
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
BOUND_KERNEL(selective_run_back, 256, 1)(
    const S* us, const S* delta, const real* a, const S* b, const S* c, const S* saved, const S* dys, const S* dlast,
    const real* ends, S* du, int acc_u, S* ddelta, int acc_d, real* dbc, real* da, S* dh0, int acc_0, SIZE) {
    __shared__ __align__(16) Two wide[T][LANE]; // delta and delta u
    __shared__ __align__(16) real sx[T][LANE], sy[T][LANE];
    __shared__ Four sb[T][WARPS], sc[T][WARPS];
    // The numbers from which the states of a chunk are computed; later the sums over states.
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
    const int part = 2 * p.warp + p.mine / PAIR;
    // The sums over channels for each of `rows` steps and each state, by one lane of both halves.
    const auto put_sums = [&](real (&v)[2 * T], real* sums, int s, int rows) {
        sum_lanes<T>(v, p.lane);
        if (T < 8) v[0] += __shfl_xor_sync(0xffffffffu, v[0], 8);
        const int u = p.lane % (LANE / PAIR) / PAIR, i = p.lane % PAIR;
        if (u < rows && p.n + i < n) sums[p.narrow - p.own + 4 * p.warp + p.mine + i + wide_product(s + u, (int)n)] = v[0];
    };
    if (dbc) dbc += p.tile * (nb * t * n);
    real* subs = dynamic + threadIdx.x;
    Columns<U, 2> columns_u({delta, us}, p, e, 1);
    Columns<T, 3> columns({delta, us, dys ? dys : us}, p, e, 1);
    States<U, 1> states_u({b}, p, n);
    States<T, 2> states({b, c}, p, n);
    const auto read_first = [&](int s, int end) {
        columns_u.read(p, s, end - s);
        states_u.read(p, s, 1, end - s);
    };
    const auto read_tile = [&](int s, int end) {
        columns.read(p, s, end - s);
        states.read(p, s, 1, end - s);
    };
    const int most = chunk < p.length ? (int)chunk : p.length; // steps of a chunk
    for (int from = p.length > 0 ? (p.length - 1) / most * most : -1; from >= 0; from -= most) {
        const int to = from + most < p.length ? from + most : p.length;
        const int sub = ((to - from + SUBS - 1) / SUBS + T - 1) / T * T;
        const int final = from + (to - from - 1) / sub * sub, top = from + (to - from - 1) / T * T;
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
        int left = 0; // steps to the next state that is kept
        for (int s = from; s < final; side ^= 1) {
            const int rows = final - s < U ? final - s : U;
            columns_u.put(p, [&](int u, const real (&v)[2]) { both.first.wide[side][u][p.lane] = {v[0], v[0] * v[1]}; });
            states_u.put(p, 0, both.first.b[side]);
            __syncthreads();
            s += rows;
            if (s < final) read_first(s, final);
            else read_tile(top, to);
            for (int v = 0; v < rows; v += T) { // sub and rows are multiples of T
                if (left == 0) {
                    save();
                    left = sub;
                }
                left -= T;
#pragma unroll
                for (int u = 0; u < T; u++) {
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
        int closest = final;
        for (int s = top; s >= from; s -= T) {
            columns.put(p, [&](int u, const real (&v)[3]) {
                wide[u][p.lane] = {v[0], v[0] * v[1]};
                sx[u][p.lane] = v[1];
                sy[u][p.lane] = dys ? v[2] : real(0.0);
            });
            states.put(p, 0, sb);
            states.put(p, 1, sc);
            __syncthreads();
            if (s > from) read_tile(s - T, s);
            if (s < closest) {
                closest -= sub;
                store -= 4 * blockDim.x;
            }
#pragma unroll
            for (int i = 0; i < 4; i++) h[i / PAIR][i % PAIR] = *(store - (4 - i) * (int)blockDim.x);
            advance(us, delta, b, av, p, z, closest, s, scale, h);
            const int rows = to - s < T ? to - s : T;
            // h_{t-1} exp(delta a), and what is kept of a state; of every step and state db or dc.
            real fading[T][PAIR][PAIR], keep[T][PAIR][PAIR], v[2 * T];
#pragma unroll
            for (int u = 0; u < T; u++) {
                real dx[2 * PAIR], y[PAIR], bu[PAIR];
                read(dx, &wide[u][p.channel].v[0]);
                read(y, &sy[u][p.channel]);
                read(bu, &sb[u][p.warp].v[p.mine]);
#pragma unroll
                for (int i = 0; i < PAIR; i++) {
                    v[PAIR * u + i] = 0.0;
#pragma unroll
                    for (int k = 0; k < PAIR; k++) {
                        const real w = quick_exp2(dx[2 * k] * av[k][i]);
                        fading[u][k][i] = h[k][i] * w;
                        keep[u][k][i] = scale * w - (scale - 1.0);
                        h[k][i] = keep[u][k][i] * h[k][i] + dx[2 * k + 1] * bu[i];
                        v[PAIR * u + i] += y[k] * h[k][i];
                    }
                }
            }
            if (dbc) put_sums(v, dbc + (padded + LANE - 1) / LANE * (nb * t * n), s, rows);
#pragma unroll
            for (int u = T - 1; u >= 0; u--) {
                real dx[2 * PAIR], y[PAIR], bu[PAIR], cu[PAIR], out[2 * PAIR] = {0.0, 0.0, 0.0, 0.0};
                read(dx, &wide[u][p.channel].v[0]);
                read(y, &sy[u][p.channel]);
                read(bu, &sb[u][p.warp].v[p.mine]);
                read(cu, &sc[u][p.warp].v[p.mine]);
#pragma unroll
                for (int i = 0; i < PAIR; i++) {
                    v[PAIR * u + i] = 0.0;
#pragma unroll
                    for (int k = 0; k < PAIR; k++) {
                        const real gt = cu[i] * y[k] + g[k][i], q = gt * fading[u][k][i];
                        v[PAIR * u + i] += gt * dx[2 * k + 1];
                        out[2 * k] += gt * bu[i];
                        out[2 * k + 1] += q * av[k][i];
                        dav[k][i] += q * dx[2 * k];
                        g[k][i] = gt * keep[u][k][i];
                    }
                }
                write(&both.sums[part][u][p.channel].v[0], out);
            }
            if (dbc) put_sums(v, dbc, s, rows);
            __syncthreads();
            for (int u = p.warp; u < rows; u += p.warps)
                if (p.reach) {
                    real gb = 0.0, qa = 0.0;
#pragma unroll 4
                    for (int w = 0; w < 2 * p.warps; w++) {
                        const Two sum = both.sums[w][u][p.lane];
                        gb += sum.v[0];
                        qa += sum.v[1];
                    }
                    const i64 i = p.wide + wide_product(s + u, (int)e);
                    if (ddelta) put(ddelta + i, sx[u][p.lane] * gb + qa * (scale * LN_2), acc_d || n0 > 0);
                    if (du) put(du + i, wide[u][p.lane].v[0] * gb, acc_u || n0 > 0);
                }
        }
    }
#pragma unroll
    for (int k = 0; k < PAIR; k++)
#pragma unroll
        for (int i = 0; i < PAIR; i++)
            if (p.has(z, k, i)) {
                if (da) da[p.state(z, p.row, k, i)] = dav[k][i] * scale;
                if (dh0 && p.k == 0) put(dh0 + p.state(z, p.b, k, i), g[k][i], acc_0);
            }
}
