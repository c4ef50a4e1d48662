// Layer norm, RMS norm and L2 norm of rows of n entries, and their gradients.
//
// Tiling: a row has a group of threads, 1, 2, 4, … 32, as wide as it is, or a block if it is long; entry j belongs to
// thread j mod the group. The first pass over a row reads memory, the others find it in L1. Limited by memory:
// forward moves 2 numbers an entry, backward 3 (x, dy, dx; 4 where it adds).
//
// Backward computes mean and r again, as x is read anyway: in bf16 they were stored with 8 bits. The gradients of
// weight and bias are sums over the rows. A block has a chunk of rows; each of its groups adds up what it sees, in
// shared memory where that fits, else in its block's part of `sums` (then the group is the block); every entry is
// one thread's, so nobody waits. The caller adds up the blocks.

// The shape of a block's work: its groups and the thread's place in its own.
struct Group {
    int lanes, lane, mine, groups;
    __device__ Group(int lanes) : lanes(lanes), lane(threadIdx.x % lanes), mine(threadIdx.x / lanes), groups(blockDim.x / lanes) {}
};

// Mean (0 unless `centre`) and 1 / √(mean (x − mean)² + ε) of a row; `size` is 0 for a group without one.
__device__ inline void moments(const S* x, i64 size, i64 n, const Group& g, int centre, real eps, real* scratch, real& mean, real& r) {
    real sum = 0;
    if (centre) {
        for (i64 j = g.lane; j < size; j += g.lanes) sum += ld(x + j);
        sum = group_sum(sum, g.lanes, scratch);
    }
    mean = sum / n;
    real square = 0;
    for (i64 j = g.lane; j < size; j += g.lanes) square += (ld(x + j) - mean) * (ld(x + j) - mean);
    r = 1.0 / sqrt(group_sum(square, g.lanes, scratch) / n + eps);
}

// y = (x − mean) r w + b; b may be null.
extern "C" __global__ void norm_forward(const S* x, const S* w, const S* b, S* y, S* mean, S* r, i64 rows, i64 n, int lanes,
                                        real eps, int centre) {
    __shared__ real scratch[32];
    const Group g(lanes);
    for (i64 start = (i64)blockIdx.x * g.groups; start < rows; start += (i64)gridDim.x * g.groups) {
        const i64 row = start + g.mine, size = row < rows ? n : 0;
        real m, s;
        moments(x + row * n, size, n, g, centre, eps, scratch, m, s);
        for (i64 j = g.lane; j < size; j += g.lanes)
            st(y + row * n + j, (ld(x + row * n + j) - m) * s * ld(w + j) + (b ? ld(b + j) : real(0)));
        if (size > 0 && g.lane == 0) {
            st(mean + row, m);
            st(r + row, s);
        }
    }
}

// dx = r (ĝ − mean ĝ − x̂ mean(ĝ x̂)) with ĝ = dy w; dw = Σ dy x̂, db = Σ dy, of block i's rows in row i of each part of
// `sums` [parts, blocks, n]. No parts: dw is not wanted; one: only dw. `dx` may be null.
extern "C" __global__ void norm_backward(const S* x, const S* w, const S* dy, S* dx, int acc, real* sums, int parts,
                                         int in_shared, i64 rows, i64 chunk, i64 n, int lanes, real eps, int centre) {
    extern __shared__ double memory[];
    __shared__ real scratch[32];
    const Group g(lanes);
    const i64 far = in_shared ? n : gridDim.x * n; // from a sum of dw to that of db
    real* sum = in_shared ? (real*)memory + g.mine * parts * n : sums + blockIdx.x * n;
    for (int p = 0; p < parts; p++)
        for (i64 j = g.lane; j < n; j += g.lanes) sum[p * far + j] = 0;
    const i64 first = blockIdx.x * chunk, last = first + chunk < rows ? first + chunk : rows;
    for (i64 start = first; start < last; start += g.groups) {
        const i64 row = start + g.mine, size = row < last ? n : 0;
        const S *xs = x + row * n, *gs = dy + row * n;
        real m, r, of_g = 0, of_gx = 0;
        moments(xs, size, n, g, centre, eps, scratch, m, r);
        if (dx) {
            for (i64 j = g.lane; j < size; j += g.lanes) {
                const real v = ld(gs + j) * ld(w + j);
                of_g += v;
                of_gx += v * (ld(xs + j) - m) * r;
            }
            of_g = centre ? group_sum(of_g, lanes, scratch) / n : 0;
            of_gx = group_sum(of_gx, lanes, scratch) / n;
        }
        for (i64 j = g.lane; j < size; j += g.lanes) {
            const real hat = (ld(xs + j) - m) * r, v = ld(gs + j);
            if (parts > 0) sum[j] += v * hat;
            if (parts > 1) sum[far + j] += v;
            if (dx) put(dx + row * n + j, r * (v * ld(w + j) - of_g - hat * of_gx), acc);
        }
    }
    if (parts > 0 && in_shared) {
        __syncthreads();
        for (i64 j = threadIdx.x; j < parts * n; j += blockDim.x) {
            real total = 0;
            for (int i = 0; i < g.groups; i++) total += ((real*)memory)[i * parts * n + j];
            const i64 p = j / n;
            sums[(p * gridDim.x + blockIdx.x) * n + (j - p * n)] = total;
        }
    }
}

// 1 / length of a row, and whether ε rules, so that it is constant.
__device__ inline real over_length(const S* x, i64 size, const Group& g, real eps, int smooth, real* scratch, bool& constant) {
    real square = 0;
    for (i64 j = g.lane; j < size; j += g.lanes) square += ld(x + j) * ld(x + j);
    square = group_sum(square, g.lanes, scratch);
    const real length = sqrt(smooth ? square + eps : square);
    constant = !smooth && length < eps;
    return 1.0 / (constant ? eps : length);
}

// y = x r
extern "C" __global__ void l2_forward(const S* x, S* y, S* r, i64 rows, i64 n, int lanes, real eps, int smooth) {
    __shared__ real scratch[32];
    const Group g(lanes);
    for (i64 start = (i64)blockIdx.x * g.groups; start < rows; start += (i64)gridDim.x * g.groups) {
        const i64 row = start + g.mine, size = row < rows ? n : 0;
        bool constant;
        const real s = over_length(x + row * n, size, g, eps, smooth, scratch, constant);
        for (i64 j = g.lane; j < size; j += g.lanes) st(y + row * n + j, ld(x + row * n + j) * s);
        if (size > 0 && g.lane == 0) st(r + row, s);
    }
}

// dx = r (dy − y Σ dy y), dx = r dy where ε rules.
extern "C" __global__ void l2_backward(const S* x, const S* dy, S* dx, int acc, i64 rows, i64 n, int lanes, real eps, int smooth) {
    __shared__ real scratch[32];
    const Group g(lanes);
    for (i64 start = (i64)blockIdx.x * g.groups; start < rows; start += (i64)gridDim.x * g.groups) {
        const i64 row = start + g.mine, size = row < rows ? n : 0;
        const S *xs = x + row * n, *gs = dy + row * n;
        bool constant;
        const real r = over_length(xs, size, g, eps, smooth, scratch, constant);
        real dot = 0;
        for (i64 j = g.lane; j < size; j += g.lanes) dot += ld(gs + j) * ld(xs + j);
        dot = group_sum(dot, lanes, scratch);
        dot = constant ? 0 : dot * r;
        for (i64 j = g.lane; j < size; j += g.lanes) put(dx + row * n + j, r * (ld(gs + j) - ld(xs + j) * r * dot), acc);
    }
}
