#line 2 "src/kernels/lstm/grid.cu"
// The recurrences of block.cu for heads whose weights one multiprocessor cannot hold: one launch over all steps, by
// blocks that wait for one another.
//
// Tiling: a block of 256 threads has 16 units of a head and 16 sequences, backward 64. It keeps the weights of these
// units in shared memory from the first step to the last: the rows of their gates [K, 64], backward columns [4 K, 16].
// At each step it reads h (backward dz) of the whole head from where it is written to anyhow, makes its part of the
// product in tiles (tiles.cuh), and runs its cells, whose states stay in registers. Then it meets the other blocks of
// its head and sequences, which have the other units: each adds 1 to their counter in memory, and waits until all have.
// Different sequences never wait for one another.
//
// A step is 8 K K operations a head and sequence, as in block.cu, and a block reads 16 K numbers (backward 64 · 4 K)
// from the device's cache, where other blocks have put them. All blocks of a launch must be there at once: how many can
// be is known to the host (device.rs), which launches for some of the sequences after the others, or step by step
// (steps.cu).

using namespace tiled;

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

    __device__ Share(int sequences, u32* counts, i64 first, i64 b, i64 t, i64 heads, i64 units)
        : b(b), t(t), d(heads * units), k((int)units) {
        const i64 slices = tiles(units, 16), here = blockIdx.x / slices;
        unit = blockIdx.x % slices * 16;
        head = here % heads;
        at = (first + here / heads) * sequences;
        others = {counts + here, (u32)slices, 0};
    }
    __device__ bool has(int r, int c) const { return at + r < b && unit + c < k; }
    __device__ i64 column(int c) const { return head * k + unit + c; }
    __device__ i64 row(int r, i64 s) const { return (at + r) * t + s; }
    __device__ i64 state(int r, int c) const { return (at + r) * d + column(c); }
};

// y += A B for B in shared memory; A, of which a(row, k) is read from the device's, comes there in pieces.
enum { PIECE = 128 };
template <class T, class A>
__device__ void product(T& y, real* as, const real* bs, int depth, A a) {
    for (int start = 0; start < depth; start += PIECE) {
        const int n = depth - start < PIECE ? depth - start : PIECE;
        if (start > 0) __syncthreads();
        T::keep_a(as, n, [&](int r, int k) { return a(r, start + k); });
        __syncthreads();
        y.add_kept(as, bs + start / T::DEPTH * T::SLICE_B, n);
    }
}

template <class Cell>
__device__ void forward_grid(Cell cell, const S* x, const S* w, Strides w_at, S* hs, u32* counts, i64 first, i64 b, i64 t,
                             i64 heads, i64 units) {
    typedef Tile<1, 4> T; // 16 sequences by the gates i of 16 units, then f, ..
    enum { LD = T::W + 4 };
    Share p(T::C, counts, first, b, t, heads, units);
    real *as = dynamic_memory(), *sums = as + PIECE / T::DEPTH * T::SLICE_A, *weights = sums + T::C * LD;
    w += p.head * w_at.heads + p.unit * w_at.unit;
    T::keep_b(weights, p.k, [&](int k, int c) {
        return p.unit + c % 16 < p.k ? ld(w + c / 16 * w_at.gates + c % 16 * w_at.unit + k * w_at.step) : real(0.0);
    });
    // A thread has a cell.
    const int r = threadIdx.x / 16, c = threadIdx.x % 16;
    const bool mine = p.has(r, c);
    real h = mine ? cell.begin(p.state(r, c)) : real(0.0);
    for (i64 s = 0; s < t; s++) {
        real z[4] = {0.0, 0.0, 0.0, 0.0};
#pragma unroll
        for (int g = 0; g < 4; g++)
            if (mine) z[g] = ld(x + (p.row(r, s) * 4 + g) * p.d + p.column(c));
        if (s > 0) p.others.wait();
        const S* before = (s > 0 ? hs + p.row(0, s - 1) * p.d : cell.h0 + p.at * p.d) + p.head * p.k;
        const i64 apart = (s > 0 ? t : i64(1)) * p.d;
        T y;
        product(y, as, weights, p.k, [&](int i, int k) { return p.at + i < b ? ld(before + i * apart + k) : real(0.0); });
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

// f(i, j, r, c) for every number v[i][j] that a thread has of a tile, if there is a cell in its row r and column c.
template <class T, class F>
__device__ void each_place(const Share& p, F f) {
#pragma unroll
    for (int i = 0; i < T::ROWS; i++)
#pragma unroll
        for (int j = 0; j < T::COLS; j++)
            if (p.has(T::row(i), T::col(j))) f(i, j, T::row(i), T::col(j));
}

template <class Cell>
__device__ void backward_grid(Cell cell, const S* w, Strides w_at, S* dz, u32* counts, i64 first, i64 b, i64 t, i64 heads,
                              i64 units) {
    typedef Tile<4, 1> T; // 64 sequences by 16 units
    Share p(T::C, counts, first, b, t, heads, units);
    real *as = dynamic_memory(), *weights = as + PIECE / T::DEPTH * T::SLICE_A;
    // Gates lie one after another along the depth.
    auto gate = [&](int i) { return (i >= p.k) + (i >= 2 * p.k) + (i >= 3 * p.k); };
    w += p.head * w_at.heads + p.unit * w_at.unit;
    T::keep_b(weights, 4 * p.k, [&](int i, int c) {
        const int g = gate(i);
        return p.unit + c < p.k ? ld(w + g * w_at.gates + c * w_at.unit + (i - g * p.k) * w_at.step) : real(0.0);
    });
    // A thread has the cells whose dh it has in the tile.
    T dh;
    Cell cells[T::ROWS][T::COLS];
    auto fetch = [&](Cell& own, int r, int c, i64 s) { own.fetch(p.row(r, s), p.column(c), s == 0, p.state(r, c)); };
    each_place<T>(p, [&](int i, int j, int r, int c) {
        cells[i][j] = cell;
        dh.v[i][j] = cells[i][j].begin(p.state(r, c));
        if (t > 0) fetch(cells[i][j], r, c, t - 1);
    });
    for (i64 s = t - 1; s >= 0; s--) {
        each_place<T>(p, [&](int i, int j, int r, int c) {
            real g[4];
            cells[i][j].step(dh.v[i][j], g, [&] {
                if (s > 0) fetch(cells[i][j], r, c, s - 1);
            });
#pragma unroll
            for (int n = 0; n < 4; n++) st(dz + (p.row(r, s) * 4 + n) * p.d + p.column(c), g[n]);
        });
        p.others.arrive();
        p.others.wait();
        const S* from = dz + p.row(0, s) * 4 * p.d + p.head * p.k;
        dh = T();
        product(dh, as, weights, 4 * p.k, [&](int r, int i) {
            const int g = gate(i);
            return p.at + r < b ? ld(from + (r * t * 4 + g) * p.d + i - g * p.k) : real(0.0);
        });
    }
    each_place<T>(p, [&](int i, int j, int r, int c) { cells[i][j].end(p.state(r, c), dh.v[i][j]); });
}
