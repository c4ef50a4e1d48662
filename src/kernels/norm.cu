// Layer norm, RMS norm and L2 norm of rows of n entries, and their gradients.
//
// Tiling: a row has a group of threads, 1, 2, 4, … 32, as wide as it is, or a block if it is long; entry j belongs to
// thread j mod the group. In layer and RMS norm a thread reads its first K entries of x while it computes the row before,
// and has them in registers; passes over a row that has more find those in L1. Limited by memory: forward moves 2 numbers an entry,
// backward 3 (x, dy, dx; 4 where it adds).
//
// A row whose squares overflow or underflow is done once more, scaled by a power of two. The mean of x − mean is
// subtracted too: where the mean is large beside the spread, what it was rounded by counts.
//
// Backward computes mean and r again, as x is read anyway: in bf16 they were stored with 8 bits. The gradients of
// weight and bias are sums over the rows. A block has a chunk of rows; each of its groups adds up what it sees, K
// entries a thread in registers, others in shared memory where that fits, else in its block's part of `sums` (then the
// group is the block); every entry is one thread's, so nobody waits. The caller adds up the blocks.

// The shape of a block's work: its groups and the thread's place in its own.
struct Group {
    int lanes, lane, mine, groups;
    __device__ Group(int lanes) : lanes(lanes), lane(threadIdx.x % lanes), mine(threadIdx.x / lanes), groups(blockDim.x / lanes) {}
};

constexpr int K = 4;

// f(j, k) for a thread's entries j < size: k tells the first K apart, and is K for others.
template <class F>
__device__ inline void each_entry(const Group& g, int size, F f) {
    if (size >= K * g.lanes) {
#pragma unroll
        for (int k = 0; k < K; k++) f(g.lane + k * g.lanes, k);
    } else {
#pragma unroll
        for (int k = 0; k < K; k++)
            if (g.lane + k * g.lanes < size) f(g.lane + k * g.lanes, k);
    }
    for (int j = g.lane + K * g.lanes; j < size; j += g.lanes) f(j, K);
}

// A row of x, from number `first` on, of which a thread has K entries as they are in memory: converting them would wait
// for them.
struct Row {
    const S* x;
    i64 first;
    S v[K];
    __device__ void read(const S* of, i64 at, int size, const Group& g) {
        x = of;
        first = at;
        const S* from = of + at;
        if (size >= K * g.lanes) {
#pragma unroll
            for (int k = 0; k < K; k++) v[k] = from[g.lane + k * g.lanes];
        } else {
#pragma unroll
            for (int k = 0; k < K; k++)
                if (g.lane + k * g.lanes < size) v[k] = from[g.lane + k * g.lanes];
        }
    }
    __device__ real at(int j, int k) const { return ld(k < K ? v + (k < K ? k : 0) : x + first + j); }
};

// The numbers that make x̂ of x. The mean is that of scale x, rounded, and `rest` is its rounding error.
struct Moments {
    real scale, mean, rest, total, r;
    __device__ real hat(real x) const { return ((x * scale - mean) - rest) * r; }
};

// Whether a sum of squares, and what went into it, is far from the ends of the type.
__device__ inline bool within(real total) {
    const int small = sizeof(real) == 4 ? -80 : -800, large = sizeof(real) == 4 ? 120 : 960;
    return total >= ldexp(real(1), small) && total <= ldexp(real(1), large);
}

// A power of two that brings the largest number of a row, or `most` if that is larger, close to 1.
__device__ inline real scale_of(const Row& x, int size, const Group& g, real most, real* scratch) {
    each_entry(g, size, [&](int j, int k) { most = fmax(most, fabs(x.at(j, k))); });
    const int ends = sizeof(real) == 4 ? 126 : 1000, power = ilogb(group_max(most, g.lanes, scratch));
    return ldexp(real(1), -(power > ends ? ends : power < -ends ? -ends : power));
}

// Of a row times `scale`: the mean (0 unless `centre`), and the mean of (x − mean)², ε added.
__device__ inline Moments spread(const Row& x, int size, i64 n, const Group& g, int centre, real eps, real scale, real* scratch) {
    real sum = 0, rest = 0;
    if (centre) {
        each_entry(g, size, [&](int j, int k) { sum += x.at(j, k) * scale; });
        sum = group_sum(sum, g.lanes, scratch) / n;
        each_entry(g, size, [&](int j, int k) { rest += x.at(j, k) * scale - sum; });
        rest = group_sum(rest, g.lanes, scratch) / n;
    }
    Moments m = {scale, sum, rest, 0, 1};
    real square = 0;
    each_entry(g, size, [&](int j, int k) { square += m.hat(x.at(j, k)) * m.hat(x.at(j, k)); });
    m.total = group_sum(square, g.lanes, scratch) / n + eps * scale * scale;
    m.r = 1.0 / sqrt(m.total);
    return m;
}

// `size` is 0 for a group without a row.
__device__ inline Moments moments(const Row& x, int size, i64 n, const Group& g, int centre, real eps, real* scratch) {
    Moments m = spread(x, size, n, g, centre, eps, 1, scratch);
    const bool far = size > 0 && !within(m.total);
    // All groups of a warp do the same, as they meet in the sums.
    if (__any_sync(0xffffffffu, far)) {
        const real scale = scale_of(x, size, g, sqrt(eps), scratch);
        m = spread(x, size, n, g, centre, eps, far ? scale : real(1), scratch);
    }
    return m;
}

// y = (x − mean) r w + b; b may be null.
extern "C" __global__ void __launch_bounds__(256, sizeof(real) == 4 ? 4 : 2) norm_forward(const S* x, const S* w, const S* b, S* y, S* mean, S* r, i64 rows, i64 n, int lanes,
                                        real eps, int centre) {
    __shared__ real scratch[32];
    const Group g(lanes);
    const i64 step = (i64)gridDim.x * g.groups;
    i64 row = (i64)blockIdx.x * g.groups + g.mine;
    Row next;
    next.read(x, row * n, row < rows ? n : 0, g);
    for (; row - g.mine < rows; row += step) {
        const int size = row < rows ? n : 0;
        const Row xs = next;
        next.read(x, (row + step) * n, row + step < rows ? n : 0, g);
        const Moments m = moments(xs, size, n, g, centre, eps, scratch);
        S* ys = y + row * n;
        each_entry(g, size, [&](int j, int k) { st(ys + j, m.hat(xs.at(j, k)) * ld(w + j) + (b ? ld(b + j) : real(0))); });
        if (size > 0 && g.lane == 0) {
            st(mean + row, m.mean / m.scale);
            st(r + row, m.r * m.scale);
        }
    }
}

// dx = r (ĝ − mean ĝ − x̂ mean(ĝ x̂)) with ĝ = dy w; dw = Σ dy x̂, db = Σ dy, of block i's rows in row i of each part
// of `sums` [parts, blocks, n]. No parts: dw is not wanted; one: only dw. `dx` may be null.
extern "C" __global__ void __launch_bounds__(256, sizeof(real) == 4 ? 4 : 2) norm_backward(const S* x, const S* w, const S* dy, S* dx, int acc, real* sums, int parts,
                                         int in_shared, i64 rows, i64 chunk, i64 n, int lanes, real eps, int centre) {
    extern __shared__ double memory[];
    __shared__ real scratch[32];
    const Group g(lanes);
    const i64 far = in_shared ? n : gridDim.x * n; // from a sum of dw to that of db
    real* sum = in_shared ? (real*)memory + g.mine * parts * n : sums + blockIdx.x * n;
    const int all = n;
    for (int p = 0; p < parts; p++)
        each_entry(g, all, [&](int j, int k) { sum[p * far + j] = 0; });
    real dw[K], db[K], weight[K];
#pragma unroll
    for (int k = 0; k < K; k++) {
        dw[k] = db[k] = 0;
        weight[k] = g.lane + k * g.lanes < all ? ld(w + g.lane + k * g.lanes) : real(0);
    }
    const auto weight_at = [&](int j, int k) { return k < K ? weight[k < K ? k : 0] : ld(w + j); };
    const i64 first = blockIdx.x * chunk, last = first + chunk < rows ? first + chunk : rows;
    Row next;
    const int count = last - first;
    const auto read = [&](int row) {
        next.read(x, first * n + wide_product(row, all), row < count ? all : 0, g);
    };
    read(g.mine);
    for (int row = g.mine; row - g.mine < count; row += g.groups) {
        const int size = row < count ? all : 0;
        const Row xs = next;
        Row gs;
        gs.read(dy, xs.first, size, g);
        read(row + g.groups);
        real of_g = 0, of_gx = 0;
        const Moments m = moments(xs, size, n, g, centre, eps, scratch);
        if (dx) {
            each_entry(g, size, [&](int j, int k) {
                const real v = gs.at(j, k) * weight_at(j, k);
                of_g += v;
                of_gx += v * m.hat(xs.at(j, k));
            });
            of_g = centre ? group_sum(of_g, lanes, scratch) / n : 0;
            of_gx = group_sum(of_gx, lanes, scratch) / n;
        }
        each_entry(g, size, [&](int j, int k) {
            const real hat = m.hat(xs.at(j, k)), v = gs.at(j, k);
            if (parts > 0) (k < K ? dw[k < K ? k : 0] : sum[j]) += v * hat;
            if (parts > 1) (k < K ? db[k < K ? k : 0] : sum[far + j]) += v;
            if (dx) put(dx + xs.first + j, m.r * (v * weight_at(j, k) - of_g - hat * of_gx) * m.scale, acc);
        });
    }
#pragma unroll
    for (int k = 0; k < K; k++) {
        const int j = g.lane + k * g.lanes;
        if (parts > 0 && j < all) sum[j] = dw[k];
        if (parts > 1 && j < all) sum[far + j] = db[k];
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

// 1 / length of a row times `scale`, and whether ε rules, so that it is constant.
struct Length {
    real scale, r;
    bool constant, far;
};

__device__ inline Length length_of(const Row& x, int size, const Group& g, real eps, int smooth, real scale, real* scratch) {
    real square = 0;
    each_entry(g, size, [&](int j, int k) { square += (x.at(j, k) * scale) * (x.at(j, k) * scale); });
    square = group_sum(square, g.lanes, scratch);
    const real least = eps * scale, total = smooth ? square + least * scale : square, length = sqrt(total);
    const bool constant = !smooth && length < least;
    return {scale, 1 / (constant ? least : length), constant, size > 0 && !within(smooth ? total : fmax(total, least * least))};
}

__device__ inline Length over_length(const Row& x, int size, const Group& g, real eps, int smooth, real* scratch) {
    const Length l = length_of(x, size, g, eps, smooth, 1, scratch);
    if (!__any_sync(0xffffffffu, l.far)) return l;
    const real scale = scale_of(x, size, g, smooth ? sqrt(eps) : eps, scratch);
    return length_of(x, size, g, eps, smooth, l.far ? scale : real(1), scratch);
}

// y = x r
extern "C" __global__ void l2_forward(const S* x, S* y, S* r, i64 rows, i64 n, int lanes, real eps, int smooth) {
    __shared__ real scratch[32];
    const Group g(lanes);
    for (i64 start = (i64)blockIdx.x * g.groups; start < rows; start += (i64)gridDim.x * g.groups) {
        const i64 row = start + g.mine;
        const int size = row < rows ? n : 0;
        Row xs;
        xs.read(x, row * n, size, g);
        const Length l = over_length(xs, size, g, eps, smooth, scratch);
        S* ys = y + row * n;
        each_entry(g, size, [&](int j, int k) { st(ys + j, xs.at(j, k) * l.scale * l.r); });
        if (size > 0 && g.lane == 0) st(r + row, l.r * l.scale);
    }
}

// dx = r (dy − y Σ dy y), dx = r dy where ε rules.
extern "C" __global__ void l2_backward(const S* x, const S* dy, S* dx, int acc, i64 rows, i64 n, int lanes, real eps, int smooth) {
    __shared__ real scratch[32];
    const Group g(lanes);
    for (i64 start = (i64)blockIdx.x * g.groups; start < rows; start += (i64)gridDim.x * g.groups) {
        const i64 row = start + g.mine;
        const int size = row < rows ? n : 0;
        Row xs, gs;
        xs.read(x, row * n, size, g);
        gs.read(dy, row * n, size, g);
        const Length l = over_length(xs, size, g, eps, smooth, scratch);
        const auto y = [&](int j, int k) { return xs.at(j, k) * l.scale * l.r; };
        real dot = 0;
        each_entry(g, size, [&](int j, int k) { dot += gs.at(j, k) * y(j, k); });
        dot = group_sum(dot, lanes, scratch);
        if (l.constant) dot = 0;
        each_entry(g, size, [&](int j, int k) {
            put(dx + row * n + j, l.r * (gs.at(j, k) - y(j, k) * dot) * l.scale, acc);
        });
    }
}
