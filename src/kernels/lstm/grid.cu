#line 2 "src/kernels/lstm/grid.cu"
// The recurrences of block.cu for heads whose weights one multiprocessor cannot hold: one launch over all steps, by
// blocks that wait for one another.
//
// Tiling: a block of 256 threads has 16 units of a head and 16 sequences. It keeps the weights of these
// units in shared memory from the first step to the last: the rows of their gates [K, 64], backward columns [4 K, 16].
// At each step it reads h (backward dz) of the whole head from where it is written to anyhow, makes its part of the
// product in tiles (tiles.cuh), and runs its cells, whose states stay in registers. Then it meets the other blocks of
// its head and sequences, which have the other units: each adds 1 to their counter in memory, and waits until all have.
// Different sequences never wait for one another.
//
// A step is 8 K K operations a head and sequence, as in block.cu, and a block reads 16 K numbers (backward 16 · 4 K)
// from the device's cache, where other blocks have put them. All blocks of a launch must be there at once: how many can
// be is known to the host (device.rs), which launches for some of the sequences after the others, or step by step
// (steps.cu).

using namespace tiled;

// Sequences and units of a block, and slices of a piece of h or dz.
enum { ROWS = 16, UNITS = 16, PIECE = sizeof(S) == 2 ? 16 : 8 };

// Blocks that wait until all of them have come here.
struct Meeting {
    u32 *count, blocks, met;

    __device__ void arrive() const {
        __syncthreads();
        if (threadIdx.x == 0) add_release(count, 1);
    }
    __device__ void wait() {
        met += blocks;
        if (threadIdx.x == 0)
            while (load_acquire(count) < met) {}
        __syncthreads();
    }
};

// A block's units and sequences: grid (groups of sequences, heads, units / 16), all in one.
struct Share {
    i64 head, unit, at, b, t, d; // the first unit within the head, and the first sequence
    int k;
    Meeting others;

    __device__ Share(u32* counts, i64 first, i64 b, i64 t, i64 heads, i64 units)
        : b(b), t(t), d(heads * units), k((int)units) {
        const i64 slices = tiles(units, UNITS), here = blockIdx.x / slices;
        unit = blockIdx.x % slices * UNITS;
        head = here % heads;
        at = (first + here / heads) * ROWS;
        others = {counts + here, (u32)slices, 0};
    }
    __device__ bool has(int r, int c) const { return at + r < b && unit + c < k; }
    __device__ i64 column(int c) const { return head * k + unit + c; }
    __device__ i64 row(int r, i64 s) const { return (at + r) * t + s; }
    __device__ i64 state(int r, int c) const { return (at + r) * d + column(c); }
};

// y += A B for B in shared memory; A comes there in pieces, of which a thread has N packs. Its slices are turn by turn of G
// groups of columns of x, `apart` from one to the next.
template <int N, int G, class T>
__device__ void product(T& y, real* as, const real* bs, int slices, const Matrix<S>& x, u32 apart) {
    for (int start = 0; start < slices; start += PIECE) {
        const int n = slices - start < PIECE ? slices - start : PIECE;
        if (start > 0) __syncthreads();
        T::template keep_a<N, G>(as, start, n, x, apart);
        __syncthreads();
        y.add_kept(as, bs + start * T::SLICE_B, n);
    }
}

template <class Cell>
__device__ void forward_grid(Cell cell, const S* x, const S* w, Strides w_at, S* hs, u32* counts, i64 first, i64 b, i64 t,
                             i64 heads, i64 units) {
    typedef Tile<1, 4> T; // 16 sequences by the gates i of 16 units, then f, ..
    enum { LD = T::W + 4 };
    Share p(counts, first, b, t, heads, units);
    real *as = dynamic_memory(), *sums = as + PIECE * T::SLICE_A, *weights = sums + ROWS * LD;
    w += p.head * w_at.heads + p.unit * w_at.unit;
    T::template keep_b<1>(weights, p.k, [&](int k, int c) {
        return p.unit + c % UNITS < p.k ? ld(w + c / UNITS * w_at.gates + c % UNITS * w_at.unit + k * w_at.step) : real(0.0);
    });
    const int left = (int)(b - p.at < ROWS ? b - p.at : ROWS);
    // A thread has a cell.
    const int r = threadIdx.x / UNITS, c = threadIdx.x % UNITS;
    const bool mine = p.has(r, c);
    real h = mine ? cell.begin(p.state(r, c)) : real(0.0);
    for (i64 s = 0; s < t; s++) {
        real z[4] = {0.0, 0.0, 0.0, 0.0};
#pragma unroll
        for (int g = 0; g < 4; g++)
            if (mine) z[g] = ld(x + (p.row(r, s) * 4 + g) * p.d + p.column(c));
        if (s > 0) p.others.wait();
        const S* before = (s > 0 ? hs + p.row(0, s - 1) * p.d : cell.h0 + p.at * p.d) + p.head * p.k;
        const Matrix<S> all(before, (u32)((s > 0 ? t : i64(1)) * p.d), left, p.k);
        T y;
        product<4, 1>(y, as, weights, tiles(p.k, T::DEPTH), all, 0);
        y.each([&](int i, int j, real sum) { sums[i * LD + j] = sum; });
        __syncthreads();
        if (mine) {
#pragma unroll
            for (int g = 0; g < 4; g++) z[g] += sums[r * LD + 16 * g + c];
            h = cell.step(z, p.row(r, s), p.column(c));
            st(hs + p.row(r, s) * p.d + p.column(c), h);
        }
        if (s + 1 < t) p.others.arrive();
    }
    if (mine) cell.end(p.state(r, c), h);
}

template <class Cell>
__device__ void backward_grid(Cell cell, const S* w, Strides w_at, S* dz, u32* counts, i64 first, i64 b, i64 t, i64 heads,
                              i64 units) {
    typedef Tile<1, 1, 1, 4> T; // 16 sequences by 16 units, of which 4 warps each have a part of the depth
    enum { LD = UNITS + 4, PARTS = T::TENSOR ? 4 : 1 };
    Share p(counts, first, b, t, heads, units);
    real *as = dynamic_memory(), *sums = as + PIECE * T::SLICE_A, *weights = sums + PARTS * ROWS * LD;
    // Slice j is of gate j % 4.
    const int slices = tiles(p.k, T::DEPTH);
    w += p.head * w_at.heads + p.unit * w_at.unit;
    for (int g = 0; g < 4; g++)
        T::template keep_b<4>(weights + g * T::SLICE_B, p.k, [&](int k, int c) {
            return p.unit + c < p.k ? ld(w + g * w_at.gates + c * w_at.unit + k * w_at.step) : real(0.0);
        });
    const int left = (int)(b - p.at < ROWS ? b - p.at : ROWS);
    // A thread has a cell.
    const int r = threadIdx.x / UNITS, c = threadIdx.x % UNITS;
    const bool mine = p.has(r, c);
    auto fetch = [&](i64 s) { cell.fetch(p.row(r, s), p.column(c), s == 0, p.state(r, c)); };
    real dh = mine ? cell.begin(p.state(r, c)) : real(0.0);
    if (mine && t > 0) fetch(t - 1);
    for (i64 s = t - 1; s >= 0; s--) {
        if (mine) {
            real g[4];
            cell.step(dh, g, [&] {
                if (s > 0) fetch(s - 1);
            });
#pragma unroll
            for (int n = 0; n < 4; n++) st(dz + (p.row(r, s) * 4 + n) * p.d + p.column(c), g[n]);
        }
        p.others.arrive();
        p.others.wait();
        const Matrix<S> all(dz + p.row(0, s) * 4 * p.d + p.head * p.k, (u32)(t * 4 * p.d), left, p.k);
        T y;
        product<PIECE / 2, 4>(y, as, weights, 4 * slices, all, (u32)p.d);
        y.each([&](int i, int j, real sum) { sums[(T::part() * ROWS + i) * LD + j] = sum; });
        __syncthreads();
        dh = 0;
        for (int n = 0; n < PARTS; n++) dh += sums[(n * ROWS + r) * LD + c];
    }
    if (mine) cell.end(p.state(r, c), dh);
}
