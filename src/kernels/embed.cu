// Rows of a table by id, one entry of each row by id, and their gradients. An id outside the table, which the host
// has not seen here, gives NaN and takes no gradient.
//
// Looking up is one thread an element, grid-stride: neighbours read neighbours of a row. It moves 2 numbers an
// element.
//
// The gradient of a table is a sum over the places where an id stands, in the order of the places, without atomics.
// A block has up to 32 rows of the table, 32 columns and a chunk of the ids. Its 8 warps go through an eighth of the
// chunk each, 32 ids at a time; a ballot finds those that fall in the block's rows, whose gradients are added to the
// warp's own sums in shared memory [8, rows, 32], a lane a column. At the end the 8 sums are added. With several
// chunks the result goes to `sums` [chunks, V, D], which the caller adds up. Every gradient is read once; the ids
// are read once by each block of the chunk, from L2: (V / 32) (D / 32) times.

__device__ inline bool inside(int id, i64 n) { return id >= 0 && id < n; }

KERNEL(embedding)(const S* w, const int* ids, S* y, i64 size, i64 v, i64 n) {
    map(y, 0, size, [&](i64 i) {
        const i64 row = divide(i, n);
        const int id = ids[row];
        return inside(id, v) ? ld(w + id * n + (i - row * n)) : INF - INF;
    });
}

KERNEL(embedding_backward)(const int* ids, const S* g, S* d, int acc, real* sums, i64 count, i64 chunk,
    i64 v, i64 n, int tile) {
    extern __shared__ double memory[];
    const int lane = threadIdx.x, warp = threadIdx.y;
    const i64 across = (n + 31) / 32, down = divide(blockIdx.x, across), c = (blockIdx.x - down * across) * 32 + lane;
    const i64 v0 = down * tile;
    real* all = (real*)memory;
    real* mine = all + warp * tile * 32 + lane;
    for (int i = 0; i < tile; i++) mine[i * 32] = 0;

    const i64 part = chunk / 8, first = blockIdx.y * chunk + warp * part; // chunks are a multiple of 256
    const i64 last = first + part < count ? first + part : count;
    for (i64 i = first; i < last; i += 32) {
        // Ids of the block's rows become 0..tile, others something else.
        const i64 to = i + lane < last ? ids[i + lane] - v0 : -1;
        const int row = to >= 0 && to < tile && v0 + to < v ? (int)to : -1;
        const u32 found = __ballot_sync(0xffffffffu, row >= 0);
        for (int k = 0; k < 32; k += 8) {
            if ((found >> k & 255) == 0) continue;
            // Eight reads are under way at once.
            real add[8];
#pragma unroll
            for (int u = 0; u < 8; u++)
                add[u] = (found >> (k + u) & 1) && c < n ? ld(g + (i + k + u) * n + c) : real(0);
#pragma unroll
            for (int u = 0; u < 8; u++) {
                const int to = __shfl_sync(0xffffffffu, row, k + u);
                if (to >= 0) mine[to * 32] += add[u];
            }
        }
    }
    __syncthreads();
    for (int i = warp; i < tile; i += 8) {
        if (v0 + i >= v || c >= n) continue;
        real sum = 0;
        for (int k = 0; k < 8; k++) sum += all[(k * tile + i) * 32 + lane];
        const i64 at = (v0 + i) * n + c;
        if (sums) sums[blockIdx.y * v * n + at] = sum;
        else put(d + at, sum, acc);
    }
}

// y[i] = x[i, ids[i]] for rows of n entries.
KERNEL(gather)(const S* x, const int* ids, S* y, i64 rows, i64 n) {
    map(y, 0, rows, [&](i64 i) {
        const int id = ids[i];
        return inside(id, n) ? ld(x + i * n + id) : INF - INF;
    });
}

// Only what the ids name is touched where there is a gradient already; all is written where there is none.
KERNEL(gather_backward)(const int* ids, const S* g, S* d, int acc, i64 rows, i64 n) {
    if (acc) {
        for (i64 i = thread(); i < rows; i += threads())
            if (inside(ids[i], n)) put(d + i * n + ids[i], ld(g + i), 1);
    } else {
        map(d, 0, rows * n, [&](i64 k) {
            const i64 i = divide(k, n);
            return k - i * n == ids[i] ? ld(g + i) : real(0);
        });
    }
}
