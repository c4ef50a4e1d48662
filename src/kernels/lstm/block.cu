#line 2 "src/kernels/lstm/block.cu"
// The recurrences of lstm.rs and slstm.rs over a whole sequence, and their gradients; one head of K units is to the
// LSTM what each of H heads is to the sLSTM. Products with inputs, and the weights' gradient, are matrix products of
// all steps and not in here.
//
// Tiling: a block has one head of R sequences, from the first step to the last. Thread (g, j), g < 4, j < K has the
// weights of gate g of unit j: the first N in registers, the rest, N .. K, in shared memory; they are read from global
// memory once. Thread (r, j), r < R is the cell of unit j of sequence r, with its state in registers. h goes from the
// cells to the gates by shared memory, and the pre-activations come back: two barriers a step. A step is 8 K K R
// operations a block, and forward moves 10 numbers a unit (x; gates, c, h), backward 11 (gates, c, c before, dh; dz),
// which are asked for a step ahead.
//
// Weights that do not fit (K > 128, in double earlier) are shared by several blocks (grid.cu).

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
