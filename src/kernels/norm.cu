// Layer norm, RMS norm and L2 norm of rows of n entries, and their gradients.
//
// Tiling: a thread has packs of V neighbouring entries: of 16 bytes where rows begin at multiples of that, else of one
// entry. A row has a group of threads, 1, 2, 4, … 32, as wide as it has packs, or a block if it is long; pack p belongs
// to thread p mod the group. A thread reads its first PACKS packs of the next row while it computes this one, and has
// them in registers; passes over a row that has more, of single entries, find those in L1. Limited by memory: forward
// moves 2 numbers an entry, backward 3 (x, dy, dx; 4 where it adds).
//
// A row whose squares overflow or underflow is done once more, scaled by a power of two. The mean of x − mean is
// subtracted too: where the mean is large beside the spread, what it was rounded by counts.
//
// Backward computes mean and r again, as x is read anyway: in bf16 they were stored with 8 bits. The gradients of
// weight and bias are sums over the rows. A block has a chunk of rows; each of its groups adds up what it sees, PACKS
// packs a thread in registers, others in its block's part of `sums` (the group is the block then); every entry is one
// thread's, so nobody waits. The groups of a block add up in shared memory, the caller adds up the blocks.

// The shape of a block's work: its groups and the thread's place in its own.
struct Group {
    int lanes, lane, mine, groups;
    __device__ Group(int lanes) : lanes(lanes), lane(threadIdx.x % lanes), mine(threadIdx.x / lanes), groups(blockDim.x / lanes) {}
};

enum { PACKS = 4 };

// f(p, k) for a thread's packs p < size: k tells the first PACKS apart, and is PACKS for others, which there are only
// where a pack is one entry.
template <int V, class F>
__device__ inline void each_pack(const Group& g, int size, F f) {
    if (V > 1 || size < PACKS * g.lanes) {
#pragma unroll
        for (int k = 0; k < PACKS; k++)
            if (g.lane + k * g.lanes < size) f(g.lane + k * g.lanes, k);
        return;
    }
#pragma unroll
    for (int k = 0; k < PACKS; k++) f(g.lane + k * g.lanes, k);
    for (int p = g.lane + PACKS * g.lanes; p < size; p += g.lanes) f(p, PACKS);
}

// A row of packs, from number `first` on, of which a thread has PACKS as they are in memory: to convert them is to wait
// for them.
template <int V>
struct Row {
    const S* x;
    i64 first;
    Unconverted<S, V> v[PACKS];
    __device__ void read(const S* of, i64 at, int size, const Group& g) {
        x = of;
        first = at;
        each_pack<V>(g, size < PACKS * g.lanes ? size : PACKS * g.lanes, [&](int p, int k) {
            v[k < PACKS ? k : 0] = *(const Unconverted<S, V>*)(x + first + p * V);
        });
    }
    __device__ void get(real (&y)[V], int p, int k) const {
        ::read(y, k < PACKS ? (const S*)(v + (k < PACKS ? k : 0)) : x + first + p * V);
    }
    // f of every entry of a thread.
    template <class F>
    __device__ void each(const Group& g, int size, F f) const {
        each_pack<V>(g, size, [&](int p, int k) {
            real y[V];
            get(y, p, k);
#pragma unroll
            for (int i = 0; i < V; i++) f(y[i]);
        });
    }
};

// To a row: added to what is there if `acc`.
template <int V>
__device__ inline void put_pack(S* to, real (&y)[V], int acc) {
    if (acc) {
        real before[V];
        read(before, to);
#pragma unroll
        for (int i = 0; i < V; i++) y[i] += before[i];
    }
    write(to, y);
}

// x̂ is ((scale x − mean) − rest) r: `mean` is the rounded mean of scale x, and `rest` what rounding cut off.
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
template <int V>
__device__ inline real scale_of(const Row<V>& x, int size, const Group& g, real most, real* scratch) {
    x.each(g, size, [&](real v) { most = fmax(most, fabs(v)); });
    const int ends = sizeof(real) == 4 ? 126 : 1000, power = ilogb(group_max(most, g.lanes, scratch));
    return ldexp(real(1), -(power > ends ? ends : power < -ends ? -ends : power));
}

// Of a row times `scale`: the mean (0 unless `centre`), and the mean of (x − mean)², ε added. `over` is 1 / n.
template <int V>
__device__ inline Moments spread(const Row<V>& x, int size, real over, const Group& g, int centre, real eps, real scale, real* scratch) {
    real sum = 0, rest = 0;
    if (centre) {
        x.each(g, size, [&](real v) { sum += v * scale; });
        sum = group_sum(sum, g.lanes, scratch) * over;
        x.each(g, size, [&](real v) { rest += v * scale - sum; });
        rest = group_sum(rest, g.lanes, scratch) * over;
    }
    Moments m = {scale, sum, rest, 0, 1};
    real square = 0;
    x.each(g, size, [&](real v) { square += m.hat(v) * m.hat(v); });
    m.total = group_sum(square, g.lanes, scratch) * over + eps * scale * scale;
    m.r = 1.0 / sqrt(m.total);
    return m;
}

// `size` is 0 for a group without a row.
template <int V>
__device__ inline Moments moments(const Row<V>& x, int size, real over, const Group& g, int centre, real eps, real* scratch) {
    Moments m = spread(x, size, over, g, centre, eps, 1, scratch);
    const bool far = size > 0 && !within(m.total);
    // All groups of a warp do the same, as they meet in the sums.
    if (__any_sync(0xffffffffu, far)) {
        const real scale = scale_of(x, size, g, sqrt(eps), scratch);
        m = spread(x, size, over, g, centre, eps, far ? scale : real(1), scratch);
    }
    return m;
}

// y = (x − mean) r w + b; b may be null.
template <int V>
__device__ inline void forward(const S* x, const S* w, const S* b, S* y, S* mean, S* r, i64 rows, i64 n, int lanes, real eps,
                               int centre) {
    __shared__ real scratch[32];
    const Group g(lanes);
    const int all = (int)(n / V);
    const real over = real(1) / n;
    const i64 step = (i64)gridDim.x * g.groups;
    i64 row = (i64)blockIdx.x * g.groups + g.mine;
    Row<V> next, weight, bias;
    next.read(x, row * n, row < rows ? all : 0, g);
    weight.read(w, 0, all, g);
    bias.read(b, 0, b ? all : 0, g);
    for (; row - g.mine < rows; row += step) {
        const int size = row < rows ? all : 0;
        const Row<V> xs = next;
        next.read(x, (row + step) * n, row + step < rows ? all : 0, g);
        const Moments m = moments(xs, size, over, g, centre, eps, scratch);
        S* ys = y + row * n;
        each_pack<V>(g, size, [&](int p, int k) {
            real v[V], by[V], more[V] = {};
            xs.get(v, p, k);
            weight.get(by, p, k);
            if (b) bias.get(more, p, k);
#pragma unroll
            for (int i = 0; i < V; i++) v[i] = m.hat(v[i]) * by[i] + more[i];
            write(ys + p * V, v);
        });
        if (size > 0 && g.lane == 0) {
            st(mean + row, m.mean / m.scale);
            st(r + row, m.r * m.scale);
        }
    }
}

// dx = r (ĝ − mean ĝ − x̂ mean(ĝ x̂)) with ĝ = dy w; dw = Σ dy x̂, db = Σ dy, of block i's rows in row i of each part
// of `sums` [parts, blocks, n]. No parts: dw is not wanted; one: only dw. `dx` may be null.
template <int V>
__device__ inline void backward(const S* x, const S* w, const S* dy, S* dx, int acc, real* sums, int parts, int in_shared,
                                i64 rows, i64 chunk, i64 n, int lanes, real eps, int centre) {
    extern __shared__ double memory[];
    __shared__ real scratch[32];
    const Group g(lanes);
    const int all = (int)(n / V);
    const real over = real(1) / n;
    const i64 far = in_shared ? n : gridDim.x * n; // from a sum of dw to that of db
    real* sum = in_shared ? (real*)memory + g.mine * parts * n : sums + blockIdx.x * n;
    real dw[PACKS][V] = {}, db[PACKS][V] = {};
    // The sums of the entries that are not in registers, which there are only where a pack is one entry.
    for (int part = 0; V == 1 && part < parts; part++)
        for (int j = g.lane + PACKS * lanes; j < n; j += lanes) sum[part * far + j] = 0;
    const i64 first = blockIdx.x * chunk, last = first + chunk < rows ? first + chunk : rows;
    Row<V> next, next_g, weight;
    weight.read(w, 0, all, g);
    const int count = last - first;
    const auto read_next = [&](int row) {
        const i64 at = first * n + wide_product(row, (int)n);
        next.read(x, at, row < count ? all : 0, g);
        next_g.read(dy, at, row < count ? all : 0, g);
    };
    read_next(g.mine);
    for (int row = g.mine; row - g.mine < count; row += g.groups) {
        const int size = row < count ? all : 0;
        const Row<V> xs = next, gs = next_g;
        read_next(row + g.groups);
        real of_g = 0, of_gx = 0;
        const Moments m = moments(xs, size, over, g, centre, eps, scratch);
        if (dx) {
            each_pack<V>(g, size, [&](int p, int k) {
                real v[V], u[V], by[V];
                xs.get(v, p, k);
                gs.get(u, p, k);
                weight.get(by, p, k);
#pragma unroll
                for (int i = 0; i < V; i++) {
                    of_g += u[i] * by[i];
                    of_gx += u[i] * by[i] * m.hat(v[i]);
                }
            });
            of_g = centre ? group_sum(of_g, lanes, scratch) * over : 0;
            of_gx = group_sum(of_gx, lanes, scratch) * over;
        }
        each_pack<V>(g, size, [&](int p, int k) {
            real v[V], u[V], by[V];
            xs.get(v, p, k);
            gs.get(u, p, k);
            weight.get(by, p, k);
            const int own = k < PACKS ? k : 0;
#pragma unroll
            for (int i = 0; i < V; i++) {
                const real hat = m.hat(v[i]);
                if (parts > 0) (k < PACKS ? dw[own][i] : sum[p * V + i]) += u[i] * hat;
                if (parts > 1) (k < PACKS ? db[own][i] : sum[far + p * V + i]) += u[i];
                v[i] = m.r * (u[i] * by[i] - of_g - hat * of_gx) * m.scale;
            }
            if (dx) put_pack(dx + xs.first + p * V, v, acc);
        });
    }
#pragma unroll
    for (int k = 0; k < PACKS; k++) {
        const int p = g.lane + k * lanes;
        if (parts > 0 && p < all)
#pragma unroll
            for (int i = 0; i < V; i++) sum[p * V + i] = dw[k][i];
        if (parts > 1 && p < all)
#pragma unroll
            for (int i = 0; i < V; i++) sum[far + p * V + i] = db[k][i];
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

template <int V>
__device__ inline Length length_of(const Row<V>& x, int size, const Group& g, real eps, int smooth, real scale, real* scratch) {
    real square = 0;
    x.each(g, size, [&](real v) { square += (v * scale) * (v * scale); });
    square = group_sum(square, g.lanes, scratch);
    const real least = eps * scale, total = smooth ? square + least * scale : square, length = sqrt(total);
    const bool constant = !smooth && length < least;
    return {scale, 1 / (constant ? least : length), constant, size > 0 && !within(smooth ? total : fmax(total, least * least))};
}

template <int V>
__device__ inline Length over_length(const Row<V>& x, int size, const Group& g, real eps, int smooth, real* scratch) {
    const Length l = length_of(x, size, g, eps, smooth, 1, scratch);
    if (!__any_sync(0xffffffffu, l.far)) return l;
    const real scale = scale_of(x, size, g, smooth ? sqrt(eps) : eps, scratch);
    return length_of(x, size, g, eps, smooth, l.far ? scale : real(1), scratch);
}

// y = x r
template <int V>
__device__ inline void forward_l2(const S* x, S* y, S* r, i64 rows, i64 n, int lanes, real eps, int smooth) {
    __shared__ real scratch[32];
    const Group g(lanes);
    for (i64 start = (i64)blockIdx.x * g.groups; start < rows; start += (i64)gridDim.x * g.groups) {
        const i64 row = start + g.mine;
        const int size = row < rows ? (int)(n / V) : 0;
        Row<V> xs;
        xs.read(x, row * n, size, g);
        const Length l = over_length(xs, size, g, eps, smooth, scratch);
        each_pack<V>(g, size, [&](int p, int k) {
            real v[V];
            xs.get(v, p, k);
#pragma unroll
            for (int i = 0; i < V; i++) v[i] = v[i] * l.scale * l.r;
            write(y + row * n + p * V, v);
        });
        if (size > 0 && g.lane == 0) st(r + row, l.r * l.scale);
    }
}

// dx = r (dy − y Σ dy y), dx = r dy where ε rules.
template <int V>
__device__ inline void backward_l2(const S* x, const S* dy, S* dx, int acc, i64 rows, i64 n, int lanes, real eps, int smooth) {
    __shared__ real scratch[32];
    const Group g(lanes);
    for (i64 start = (i64)blockIdx.x * g.groups; start < rows; start += (i64)gridDim.x * g.groups) {
        const i64 row = start + g.mine;
        const int size = row < rows ? (int)(n / V) : 0;
        Row<V> xs, gs;
        xs.read(x, row * n, size, g);
        gs.read(dy, row * n, size, g);
        const Length l = over_length(xs, size, g, eps, smooth, scratch);
        real dot = 0;
        each_pack<V>(g, size, [&](int p, int k) {
            real v[V], u[V];
            xs.get(v, p, k);
            gs.get(u, p, k);
#pragma unroll
            for (int i = 0; i < V; i++) dot += u[i] * (v[i] * l.scale * l.r);
        });
        dot = group_sum(dot, lanes, scratch);
        if (l.constant) dot = 0;
        each_pack<V>(g, size, [&](int p, int k) {
            real v[V], u[V];
            xs.get(v, p, k);
            gs.get(u, p, k);
#pragma unroll
            for (int i = 0; i < V; i++) v[i] = l.r * (u[i] - v[i] * l.scale * l.r * dot) * l.scale;
            put_pack(dx + row * n + p * V, v, acc);
        });
    }
}

// Packs of V entries. Registers are shared out so that enough reads are under way.
#define NORM_KERNELS(NAME, V) \
    BOUND_KERNEL(norm_forward_##NAME, 256, sizeof(real) == 4 ? 2 : 1)( \
        const S* x, const S* w, const S* b, S* y, S* mean, S* r, i64 rows, i64 n, int lanes, real eps, int centre) { \
        forward<V>(x, w, b, y, mean, r, rows, n, lanes, eps, centre); \
    } \
    BOUND_KERNEL(norm_backward_##NAME, 128, 2)( \
        const S* x, const S* w, const S* dy, S* dx, int acc, real* sums, int parts, int in_shared, i64 rows, i64 chunk, \
        i64 n, int lanes, real eps, int centre) { \
        backward<V>(x, w, dy, dx, acc, sums, parts, in_shared, rows, chunk, n, lanes, eps, centre); \
    } \
    BOUND_KERNEL(l2_forward_##NAME, 256)(const S* x, S* y, S* r, i64 rows, i64 n, int lanes, \
                                                                      real eps, int smooth) { \
        forward_l2<V>(x, y, r, rows, n, lanes, eps, smooth); \
    } \
    BOUND_KERNEL(l2_backward_##NAME, 256)( \
        const S* x, const S* dy, S* dx, int acc, i64 rows, i64 n, int lanes, real eps, int smooth) { \
        backward_l2<V>(x, dy, dx, acc, rows, n, lanes, eps, smooth); \
    }
NORM_KERNELS(single, 1)
NORM_KERNELS(packed, 16 / sizeof(S))
