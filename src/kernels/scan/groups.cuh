#line 2 "src/kernels/scan/groups.cuh"
// The code that scans over time share on a device.
//
// Tiling: steps go by in groups of SLICES U. A block has CHANNELS channels, and each of its warps, a slice, U steps of the
// group, which it reads once and keeps in registers while it computes twice: first its map, h -> prod h + end; then, from
// its true start, the recurrence. The start comes from the maps of the slices before, through shared memory, and from the
// group before. The next group is read meanwhile. So every number is read from memory once, and blocks do not wait for
// one another.

constexpr int CHANNELS = 32, SLICES = 8;

// Which thread this is: channel i of all [B, D], of sequence b, and the slice of steps.
struct Place {
    i64 i, b, c;
    int lane, slice;
    bool some;
    __device__ Place(i64 n, i64 d) {
        lane = threadIdx.x % CHANNELS;
        slice = threadIdx.x / CHANNELS;
        i = (i64)blockIdx.x * CHANNELS + lane;
        some = i < n * d;
        b = i / d;
        c = i % d;
    }
};

// A slice of one channel, read before it is needed, as it is in memory: to convert a number is to wait for it.
template <int U>
struct Ahead {
    S v[U];
    // x, x + by, …: of the first `rows`; zeros behind them.
    __device__ void read(const S* x, int by, i64 rows) {
        if (rows >= U) {
#pragma unroll
            for (int u = 0; u < U; u++) v[u] = x[(i64)u * by];
            return;
        }
#pragma unroll
        for (int u = 0; u < U; u++) {
            v[u] = {};
            if (u < rows) v[u] = x[(i64)u * by];
        }
    }
    __device__ void get(real (&y)[U]) const {
#pragma unroll
        for (int u = 0; u < U; u++) y[u] = ld(v + u);
    }
};

// The start of this slice; `carry`, the state before the group, becomes the one behind it. Groups take turns in two places,
// so that a warp may write its map of the next while another reads those of this one.
__device__ inline real start_of(real prod, real end, real& carry, const Place& p, int group) {
    __shared__ real maps[2][SLICES][2][CHANNELS];
    auto& map = maps[group % 2];
    map[p.slice][0][p.lane] = prod;
    map[p.slice][1][p.lane] = end;
    __syncthreads();
    real start = carry;
#pragma unroll
    for (int k = 0; k < SLICES; k++) {
        if (k == p.slice) start = carry;
        carry = map[k][0][p.lane] * carry + map[k][1][p.lane];
    }
    return start;
}
