// The recurrences of lstm.rs and slstm.rs over a whole sequence, and their gradients; one head of K units is to the
// LSTM what each of H heads is to the sLSTM. Products with inputs, and the weights' gradient, are matrix products of
// all steps and not in here.
//
// Tiling: a block has one head of R sequences, from the first step to the last. Thread (g, j), g < 4, j < K has the
// weights of gate g of unit j: the first N in registers, the rest, N .. K, in shared memory; they are read from global
// memory once. Thread (r, j), r < R is the cell of unit j of sequence r, with its state in registers. h goes from the
// cells to the gates by shared memory, and the gates' sums come back: two barriers a step. A step is 8 K K R operations
// a block, and forward moves 10 numbers a unit (x; gates, c, h), backward 11 (gates, c, c before, dh; dz), which are
// asked for a step ahead.
//
// Weights that do not fit (K > 128, in double earlier) take a product and a kernel `_step` for every step.

struct alignas(16) Four { real v[4]; };
extern __shared__ Four dynamic[];

// A row of K weights: N in registers, the rest in a column of shared memory of the thread's own.
template <int N, int R>
struct Weights {
    real held[N];
    real* rest;

    __device__ void load(const S* w, i64 stride, int k, bool on, real* shared) {
        rest = shared + threadIdx.x;
#pragma unroll
        for (int i = 0; i < N; i++) held[i] = on && i < k ? ld(w + i * stride) : real(0.0);
        for (int i = N; i < (k + 3) / 4 * 4; i++)
            rest[(i - N) * blockDim.x] = on && i < k ? ld(w + i * stride) : real(0.0);
    }

    // sum[r] += row times v [K, R], v being zero from K on.
    __device__ void times(const Four* v, int k, real (&sum)[R]) const {
        constexpr int PER = 4 / R;
#pragma unroll
        for (int i = 0; i < N; i += PER) {
            const Four q = v[i / PER];
#pragma unroll
            for (int j = 0; j < 4; j++) sum[j % R] += held[i + j / R] * q.v[j];
        }
        for (int i = N; i < k; i += PER) {
            const Four q = v[i / PER];
#pragma unroll
            for (int j = 0; j < 4; j++) sum[j % R] += rest[(i + j / R - N) * blockDim.x] * q.v[j];
        }
    }
};

// Which thread this is, and which shared memory it uses.
template <int N, int R>
struct Place {
    int k, padded, unit, part; // part: which gate, and which sequence
    i64 head, at, b, t, d;     // at: sequence of this cell
    bool gate, cell;
    real *v, *sums;            // v [padded, R], once or once a gate; sums [R, threads]

    __device__ Place(i64 b, i64 t, i64 heads, i64 units, int vectors) : b(b), t(t), d(heads * units) {
        const i64 groups = (b + R - 1) / R;
        k = (int)units;
        padded = (k + 3) / 4 * 4 > N ? (k + 3) / 4 * 4 : N;
        unit = threadIdx.x % k;
        part = threadIdx.x / k;
        head = blockIdx.x / groups;
        at = blockIdx.x % groups * R + part;
        gate = part < 4;
        cell = part < R && at < b;
        if (!gate) part = 3;
        v = (real*)dynamic;
        sums = v + vectors * padded * R;
        for (int i = threadIdx.x; i < vectors * padded * R; i += blockDim.x) v[i] = 0.0;
    }
    __device__ real* rest() const { return sums + R * blockDim.x; }
    __device__ i64 column() const { return head * k + unit; }
    __device__ i64 row(i64 s) const { return at * t + s; }
    __device__ i64 state() const { return at * d + column(); }
};

// w: of gate 0 and unit 0 of head 0; the weights of unit j of gate g of head i begin `gates` g + `heads` i + `unit` j
// later and lie `step` apart.
struct Strides { i64 gates, heads, unit, step; };

template <int N, int R, class Cell>
__device__ void forward(Cell cell, const S* x, const S* w, Strides w_at, S* hs, i64 b, i64 t, i64 heads, i64 units) {
    const Place<N, R> p(b, t, heads, units, 1);
    Weights<N, R> weights;
    weights.load(w + p.part * w_at.gates + p.head * w_at.heads + p.unit * w_at.unit, w_at.step, p.k, p.gate, p.rest());
    __syncthreads();
    real h = 0.0, next[R];
    if (p.cell) p.v[p.unit * R + p.part] = h = cell.begin(p.state());
    const i64 first = blockIdx.x % ((b + R - 1) / R) * R;
    const S* mine = x + first * t * 4 * p.d + p.part * p.d + p.column();
    auto fetch = [&](i64 s) {
#pragma unroll
        for (int r = 0; r < R; r++)
            next[r] = p.gate && s < t && first + r < b ? ld(mine + (r * t + s) * 4 * p.d) : real(0.0);
    };
    fetch(0);
    __syncthreads();
    for (i64 s = 0; s < t; s++) {
        real sum[R];
#pragma unroll
        for (int r = 0; r < R; r++) sum[r] = next[r];
        fetch(s + 1);
        weights.times((const Four*)p.v, p.k, sum);
#pragma unroll
        for (int r = 0; r < R; r++) p.sums[r * blockDim.x + threadIdx.x] = sum[r];
        __syncthreads();
        if (p.cell) {
            const real* mine = p.sums + p.part * blockDim.x + p.unit;
            const real z[4] = {mine[0], mine[p.k], mine[2 * p.k], mine[3 * p.k]};
            h = cell.step(z, p.row(s), p.column());
            st(hs + p.row(s) * p.d + p.column(), h);
            p.v[p.unit * R + p.part] = h;
        }
        __syncthreads();
    }
    if (p.cell) cell.end(p.state(), h);
}

template <int N, int R, class Cell>
__device__ void backward(Cell cell, const S* w, Strides w_at, S* dz, i64 b, i64 t, i64 heads, i64 units) {
    const Place<N, R> p(b, t, heads, units, 4);
    Weights<N, R> weights;
    weights.load(w + p.part * w_at.gates + p.head * w_at.heads + p.unit * w_at.unit, w_at.step, p.k, p.gate, p.rest());
    real dh = 0.0;
    if (p.cell) {
        dh = cell.begin(p.state());
        if (t > 0) cell.fetch(p.row(t - 1), p.column(), t == 1, p.state());
    }
    __syncthreads();
    for (i64 s = t - 1; s >= 0; s--) {
        if (p.cell) {
            real g[4];
            cell.step(dh, g, [&] {
                if (s > 0) cell.fetch(p.row(s - 1), p.column(), s == 1, p.state());
            });
#pragma unroll
            for (int i = 0; i < 4; i++) {
                st(dz + (p.row(s) * 4 + i) * p.d + p.column(), g[i]);
                p.v[(i * p.padded + p.unit) * R + p.part] = g[i];
            }
        }
        __syncthreads();
        real sum[R];
#pragma unroll
        for (int r = 0; r < R; r++) sum[r] = 0.0;
        weights.times((const Four*)(p.v + p.part * p.padded * R), p.k, sum);
#pragma unroll
        for (int r = 0; r < R; r++) p.sums[r * blockDim.x + threadIdx.x] = sum[r];
        __syncthreads();
        if (p.cell) {
            const real* mine = p.sums + p.part * blockDim.x + p.unit;
            dh = mine[0] + mine[p.k] + mine[2 * p.k] + mine[3 * p.k];
        }
    }
    if (p.cell) cell.end(p.state(), dh);
}

// --- Step by step: a thread has a cell, whose state lies in `state` [STATES, B D] between launches. ---

template <class Cell>
__device__ void keep(Cell& cell, real* state, i64 i, i64 n) {
#pragma unroll
    for (int j = 0; j < Cell::STATES; j++) state[j * n + i] = cell.s[j];
}
template <class Cell>
__device__ void resume(Cell& cell, const real* state, i64 i, i64 n) {
#pragma unroll
    for (int j = 0; j < Cell::STATES; j++) cell.s[j] = state[j * n + i];
}

template <class Cell>
__device__ void begin(Cell cell, real* state, i64 n) {
    const i64 i = thread();
    if (i >= n) return;
    cell.end(i, cell.begin(i));
    keep(cell, state, i, n);
}

// z [B, 4D] is the product with h of the step before.
template <class Cell>
__device__ void step(Cell cell, const S* x, const S* z, real* state, S* hs, i64 s, i64 b, i64 t, i64 d) {
    const i64 i = thread(), at = i / d, j = i % d, row = at * t + s;
    if (i >= b * d) return;
    resume(cell, state, i, b * d);
    real sum[4];
#pragma unroll
    for (int g = 0; g < 4; g++) sum[g] = ld(x + (row * 4 + g) * d + j) + ld(z + (at * 4 + g) * d + j);
    const real h = cell.step(sum, row, j);
    st(hs + row * d + j, h);
    keep(cell, state, i, b * d);
    if (s == t - 1) cell.end(i, h);
}

// s = t before the first step (the last one in time), and −1 after the last; dh [B, D] is the product of dz of the step
// behind.
template <class Cell>
__device__ void step_back(Cell cell, const S* dh, real* state, S* dz, i64 s, i64 b, i64 t, i64 d) {
    const i64 i = thread(), at = i / d, j = i % d;
    if (i >= b * d) return;
    real g = cell.begin(i);
    if (s < t - 1) {
        resume(cell, state, i, b * d);
        g = ld(dh + i);
    }
    if (s < 0) {
        cell.end(i, g);
        return;
    }
    real out[4];
    cell.fetch(at * t + s, j, s == 0, i);
    cell.step(g, out, [] {});
#pragma unroll
    for (int k = 0; k < 4; k++) st(dz + ((at * t + s) * 4 + k) * d + j, out[k]);
    keep(cell, state, i, b * d);
}

// h of the step before, [B, T, D]: what the weights' gradient is a product with.
extern "C" __global__ void before(const S* h0, const S* h, S* y, i64 size, i64 t, i64 d) {
    for (i64 i = thread(); i < size; i += threads()) y[i] = i / d % t == 0 ? h0[i / d / t * d + i % d] : h[i - d];
}

// --- The LSTM ---

struct Lstm {
    static constexpr int STATES = 1;
    const S *h0, *c0;
    S *h_last, *c_last, *gates, *cs;
    i64 d;
    real s[1];

    __device__ real begin(i64 at) {
        s[0] = ld(c0 + at);
        return ld(h0 + at);
    }
    __device__ real step(const real (&z)[4], i64 row, i64 j) {
        const real i = sigmoid(z[0]), f = sigmoid(z[1]), g = tanh(z[2]), o = sigmoid(z[3]);
        s[0] = f * s[0] + i * g;
        S* to = gates + row * 4 * d + j;
        st(to, i);
        st(to + d, f);
        st(to + 2 * d, g);
        st(to + 3 * d, o);
        st(cs + row * d + j, s[0]);
        return o * tanh(s[0]);
    }
    __device__ void end(i64 at, real h) const {
        st(h_last + at, h);
        st(c_last + at, s[0]);
    }
};

struct LstmBack {
    static constexpr int STATES = 1;
    const S *c0, *gates, *cs, *dh, *dh_last, *dc_last;
    S *dh0, *dc0;
    int acc_h, acc_c;
    i64 d;
    real s[1], v[7]; // dc; i, f, g, o, c, c before, dh

    __device__ real begin(i64 at) {
        s[0] = dc_last ? ld(dc_last + at) : real(0.0);
        return dh_last ? ld(dh_last + at) : real(0.0);
    }
    __device__ void fetch(i64 row, i64 j, bool first, i64 at) {
#pragma unroll
        for (int g = 0; g < 4; g++) v[g] = ld(gates + (row * 4 + g) * d + j);
        v[4] = ld(cs + row * d + j);
        v[5] = first ? ld(c0 + at) : ld(cs + (row - 1) * d + j);
        v[6] = dh ? ld(dh + row * d + j) : real(0.0);
    }
    template <class Fetch>
    __device__ void step(real back, real (&out)[4], Fetch fetch) {
        const real i = v[0], f = v[1], g = v[2], o = v[3], c = v[4], before = v[5], dh = back + v[6];
        fetch();
        const real u = tanh(c), dc = s[0] + dh * o * (1.0 - u * u);
        out[0] = dc * g * i * (1.0 - i);
        out[1] = dc * before * f * (1.0 - f);
        out[2] = dc * i * (1.0 - g * g);
        out[3] = dh * u * o * (1.0 - o);
        s[0] = dc * f;
    }
    __device__ void end(i64 at, real dh) const {
        if (dh0) put(dh0 + at, dh, acc_h);
        if (dc0) put(dc0 + at, s[0], acc_c);
    }
};

#define LSTM_ARGS const S *h0, const S *c0, S *h_last, S *c_last, S *gates, S *cs, i64 b, i64 t, i64 d
#define LSTM {h0, c0, h_last, c_last, gates, cs, d, {0}}
#define LSTM_BACK_ARGS                                                                                                \
    const S *c0, const S *gates, const S *cs, const S *dh, const S *dh_last, const S *dc_last, S *dh0, int acc_h,     \
        S *dc0, int acc_c, i64 b, i64 t, i64 d
#define LSTM_BACK {c0, gates, cs, dh, dh_last, dc_last, dh0, dc0, acc_h, acc_c, d, {0}, {0, 0, 0, 0, 0, 0, 0}}

// The most units of a head, and R. Registers hold half as many doubles.
#define LSTM_KERNELS(NAME, N, R, THREADS)                                                                             \
    extern "C" __global__ void __launch_bounds__(THREADS, 1) lstm_forward_##NAME(const S* x, const S* w, S* hs, LSTM_ARGS) { \
        forward<N, R>(Lstm LSTM, x, w, {d * d, 0, d, 1}, hs, b, t, 1, d);                                             \
    }                                                                                                                 \
    extern "C" __global__ void __launch_bounds__(THREADS, 1) lstm_backward_##NAME(const S* w, S* dz, LSTM_BACK_ARGS) {   \
        backward<N, R>(LstmBack LSTM_BACK, w, {d * d, 0, 1, d}, dz, b, t, 1, d);                                      \
    }
constexpr bool DOUBLE = sizeof(real) == 8;
LSTM_KERNELS(16_1, 16, 1, 64)
LSTM_KERNELS(16_4, 16, 4, 64)
LSTM_KERNELS(32_1, 32, 1, 128)
LSTM_KERNELS(32_4, 32, 4, 128)
LSTM_KERNELS(64_1, DOUBLE ? 32 : 64, 1, 256)
LSTM_KERNELS(64_4, DOUBLE ? 32 : 64, 4, 256)
LSTM_KERNELS(128_1, DOUBLE ? 32 : 48, 1, 512)
LSTM_KERNELS(128_4, DOUBLE ? 32 : 48, 4, 512)

extern "C" __global__ void lstm_begin(real* state, LSTM_ARGS) { begin(Lstm LSTM, state, b * d); }
extern "C" __global__ void lstm_step(const S* x, const S* z, real* state, S* hs, i64 s, LSTM_ARGS) {
    step(Lstm LSTM, x, z, state, hs, s, b, t, d);
}
extern "C" __global__ void lstm_step_back(const S* back, real* state, S* dz, i64 s, i64 last, LSTM_BACK_ARGS) {
    step_back(LstmBack LSTM_BACK, back, state, dz, last ? -1 : s, b, t, d);
}

// --- The sLSTM ---

struct Slstm {
    static constexpr int STATES = 3;
    const S *h0, *c0, *n0, *m0, *w0;
    S *h_last, *c_last, *n_last, *m_last, *saved;
    i64 d;
    real s[3]; // c, n, m

    __device__ real begin(i64 at) {
        s[0] = ld(c0 + at);
        s[1] = ld(n0 + at);
        s[2] = ld(m0 + at) + log(ld(w0 + at));
        return ld(h0 + at);
    }
    __device__ real step(const real (&sum)[4], i64 row, i64 j) {
        const real past = s[2] - softplus(-sum[1]), z = tanh(sum[2]), o = sigmoid(sum[3]);
        const bool wins = past >= sum[0];
        s[2] = wins ? past : sum[0];
        const real i = exp(sum[0] - s[2]), f = exp(past - s[2]), slope = sigmoid(-sum[1]);
        s[0] = f * s[0] + i * z;
        s[1] = f * s[1] + i;
        const real all[7] = {i, f, z, o, s[0], s[1], wins ? slope : -slope};
#pragma unroll
        for (int v = 0; v < 7; v++) st(saved + (row * 7 + v) * d + j, all[v]);
        return o * s[0] / s[1];
    }
    __device__ void end(i64 at, real h) const {
        st(h_last + at, h);
        st(c_last + at, s[0]);
        st(n_last + at, s[1]);
        st(m_last + at, s[2]);
    }
};

struct SlstmBack {
    static constexpr int STATES = 3;
    const S *c0, *n0, *w0, *c_last, *n_last, *saved, *dh, *dh_last, *dc_last, *dn_last, *dm_last;
    S* to[5]; // the gradients of h0, c0, n0, m0, w0
    int acc[5];
    i64 d;
    real s[3], v[10]; // dc, dn, gamma; what is saved, c and n before, dh

    __device__ real begin(i64 at) {
        s[0] = dc_last ? ld(dc_last + at) : real(0.0);
        s[1] = dn_last ? ld(dn_last + at) : real(0.0);
        s[2] = (dm_last ? ld(dm_last + at) : real(0.0)) - (ld(c_last + at) * s[0] + ld(n_last + at) * s[1]);
        return dh_last ? ld(dh_last + at) : real(0.0);
    }
    __device__ void fetch(i64 row, i64 j, bool first, i64 at) {
        const S* from = saved + row * 7 * d + j;
#pragma unroll
        for (int i = 0; i < 7; i++) v[i] = ld(from + i * d);
        v[7] = first ? ld(c0 + at) : ld(from - 3 * d);
        v[8] = first ? ld(n0 + at) : ld(from - 2 * d);
        v[9] = dh ? ld(dh + row * d + j) : real(0.0);
    }
    template <class Fetch>
    __device__ void step(real back, real (&out)[4], Fetch fetch) {
        const real i = v[0], f = v[1], z = v[2], o = v[3], c = v[4], n = v[5], slope = v[6];
        const real before_c = v[7], before_n = v[8], dh = back + v[9];
        fetch();
        const real h = o * c / n, dc = s[0] + dh / n * o, dn = s[1] - dh / n * h;
        const bool wins = slope > 0.0;
        out[0] = i * (z * dc + dn) + (wins ? real(0.0) : s[2]);
        out[1] = (f * (before_c * dc + before_n * dn) + (wins ? s[2] : real(0.0))) * fabs(slope);
        out[2] = i * dc * (1.0 - z * z);
        out[3] = dh * h * (1.0 - o);
        s[0] = f * dc;
        s[1] = f * dn;
        s[2] = wins ? s[2] : real(0.0);
    }
    __device__ void end(i64 at, real dh) const {
        const real w = ld(w0 + at), dm = s[2] + ld(c0 + at) * s[0] + ld(n0 + at) * s[1];
        // Before the first token nothing depends on w: c and n are zero.
        const real all[5] = {dh, s[0], s[1], dm, w > 0.0 ? dm / w : real(0.0)};
#pragma unroll
        for (int i = 0; i < 5; i++)
            if (to[i]) put(to[i] + at, all[i], acc[i]);
    }
};

#define SLSTM_ARGS                                                                                                    \
    const S *h0, const S *c0, const S *n0, const S *m0, const S *w0, S *h_last, S *c_last, S *n_last, S *m_last,      \
        S *saved, i64 b, i64 t, i64 heads, i64 k
#define SLSTM {h0, c0, n0, m0, w0, h_last, c_last, n_last, m_last, saved, heads * k, {0, 0, 0}}
#define SLSTM_BACK_ARGS                                                                                               \
    const S *c0, const S *n0, const S *w0, const S *c_last, const S *n_last, const S *saved, const S *dh,             \
        const S *dh_last, const S *dc_last, const S *dn_last, const S *dm_last, S *dh0, int acc_h, S *dc0, int acc_c, \
        S *dn0, int acc_n, S *dm0, int acc_m, S *dw0, int acc_w, i64 b, i64 t, i64 heads, i64 k
#define SLSTM_BACK                                                                                                    \
    {c0, n0, w0, c_last, n_last, saved, dh, dh_last, dc_last, dn_last, dm_last, {dh0, dc0, dn0, dm0, dw0},            \
     {acc_h, acc_c, acc_n, acc_m, acc_w}, heads * k, {0, 0, 0}, {0, 0, 0, 0, 0, 0, 0, 0, 0, 0}}

#define SLSTM_KERNELS(NAME, N, R, THREADS)                                                                            \
    extern "C" __global__ void __launch_bounds__(THREADS, 1) slstm_forward_##NAME(const S* x, const S* w, S* hs,      \
                                                                                  SLSTM_ARGS) {                       \
        forward<N, R>(Slstm SLSTM, x, w, {heads * k * k, k * k, 1, k}, hs, b, t, heads, k);                           \
    }                                                                                                                 \
    extern "C" __global__ void __launch_bounds__(THREADS, 1) slstm_backward_##NAME(const S* w, S* dz, SLSTM_BACK_ARGS) { \
        backward<N, R>(SlstmBack SLSTM_BACK, w, {heads * k * k, k * k, k, 1}, dz, b, t, heads, k);                    \
    }
SLSTM_KERNELS(16_1, 16, 1, 64)
SLSTM_KERNELS(16_4, 16, 4, 64)
SLSTM_KERNELS(32_1, 32, 1, 128)
SLSTM_KERNELS(32_4, 32, 4, 128)
SLSTM_KERNELS(64_1, DOUBLE ? 32 : 64, 1, 256)
SLSTM_KERNELS(64_4, DOUBLE ? 32 : 64, 4, 256)
SLSTM_KERNELS(128_1, DOUBLE ? 32 : 48, 1, 512)
SLSTM_KERNELS(128_4, DOUBLE ? 32 : 48, 4, 512)

extern "C" __global__ void slstm_begin(real* state, SLSTM_ARGS) { begin(Slstm SLSTM, state, b * heads * k); }
extern "C" __global__ void slstm_step(const S* x, const S* z, real* state, S* hs, i64 s, SLSTM_ARGS) {
    step(Slstm SLSTM, x, z, state, hs, s, b, t, heads * k);
}
extern "C" __global__ void slstm_step_back(const S* back, real* state, S* dz, i64 s, i64 last, SLSTM_BACK_ARGS) {
    step_back(SlstmBack SLSTM_BACK, back, state, dz, last ? -1 : s, b, t, heads * k);
}
