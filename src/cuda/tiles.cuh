// Products of matrices inside a kernel, a tile of the result at a time, by a block of 256 threads.
//
// A tile is 16 R rows by 16 Q columns; thread (y, x) of 16 x 16 holds R x Q of them in registers, so that a number
// read from shared memory is used Q or R times. (Most are square, of C = 16 R.) Operands are functions of (row,
// column), so that scaling, masking and the layout of a head's rows stand in the kernel where they are used; each is
// called once a number for each tile, and a slice of DEPTH of both lies in shared memory. The depth of a product may
// be anything; what lies beyond the edges of the matrices the functions give as 0.
//
// Numbers stored in bf16 are multiplied on tensor cores where the tile is large enough for all eight warps: operands
// are rounded to bf16, sums are float. There a thread holds what mma leaves it with, two rows of some pairs of columns.
//
// A file that uses this says `using namespace tiled;`.

// The launch's dynamic shared memory. (Declared outside of namespaces: all such arrays are one, if they have one name.)
__device__ inline real* dynamic_memory() {
    extern __shared__ __align__(16) real tile_memory[];
    return tile_memory;
}

namespace tiled {

__device__ inline i64 tiles(i64 n, int c) { return (n + c - 1) / c; }

#define TILED_KERNEL extern "C" __global__ __launch_bounds__(256, 1) void

template <int N>
struct __align__(N * sizeof(real) < 16 ? N * sizeof(real) : 16) Pack { real v[N]; };

// How a slice is stored.
template <bool TENSOR> struct Slice { typedef real T; };
template <> struct Slice<true> { typedef bf16 T; };
template <bool TENSOR> using Stored = typename Slice<TENSOR>::T;

template <int R, int Q = R>
struct Tile {
    // LD_A, LD_B: what a row of a slice takes in shared memory, and MLD one of a C x C matrix of the kernel's own;
    // padded so that neither way of filling or reading them has two threads in one bank.
    enum { C = 16 * R, W = 16 * Q, DEPTH = 32, LD_A = C + 4, LD_B = W + 4, MLD = C + 8 };
    enum { SCRATCH = DEPTH * (LD_A + LD_B), MATRIX = C * MLD };
    // ACROSS: warps side by side on tensor cores. ROWS x COLS: what a thread holds.
    enum { TENSOR = sizeof(S) == 2 && R * Q >= 4, ACROSS = 8 / R };
    enum { ROWS = TENSOR ? 2 : R, COLS = TENSOR ? R * Q / 2 : Q };
    // Numbers that a slice with neighbours along k takes where slices lie one after another.
    enum { SLICE_A = TENSOR ? C * (DEPTH + 8) / 2 : DEPTH * LD_A, SLICE_B = TENSOR ? W * (DEPTH + 8) / 2 : DEPTH * LD_B };

    real v[ROWS][COLS];

    __device__ Tile() {
        for (int i = 0; i < ROWS; i++)
            for (int j = 0; j < COLS; j++) v[i][j] = 0;
    }

    static __device__ int row(int i) {
        return TENSOR ? threadIdx.x / 32 / ACROSS * 16 + threadIdx.x % 32 / 4 + 8 * i : threadIdx.x / 16 * R + i;
    }
    static __device__ int col(int j) {
        return TENSOR ? threadIdx.x / 32 % ACROSS * (2 * R * Q) + j / 2 * 8 + threadIdx.x % 4 * 2 + j % 2
                      : threadIdx.x % 16 * Q + j;
    }

    // x(k, i) for k < depth <= DEPTH, and 0 up to the next multiple of a group. ALONG_K: neighbours in memory are
    // neighbours along k; so they are for tensor cores then.
    template <int ALONG_K, int N, class T, class F>
    static __device__ void fill(T* to, int depth, F x) {
        constexpr int GROUP = TENSOR ? 16 : 8;
        const int size = (depth + GROUP - 1) / GROUP * GROUP * N;
        for (int n = threadIdx.x; n < size; n += 256) {
            const int k = ALONG_K ? n / (GROUP * N) * GROUP + n % GROUP : n / N, i = ALONG_K ? n / GROUP % N : n % N;
            st(to + (!TENSOR ? k * (N + 4) + i : ALONG_K ? i * (DEPTH + 8) + k : k * (N + 8) + i),
               k < depth ? x(k, i) : real(0));
        }
    }

    // this += Σ_k a(r, k) b(k, c) for k < depth; A_K, B_K: whether neighbours in memory are neighbours along k. What
    // the operands read of shared memory may have been written right before the call.
    template <int A_K, int B_K, class A, class B>
    __device__ void add(real* scratch, int depth, A a, B b) {
        typedef Stored<TENSOR> T;
        T *as = (T*)scratch, *bs = (T*)(scratch + DEPTH * LD_A);
        for (int start = 0; start < depth; start += DEPTH) {
            const int n = depth - start < DEPTH ? depth - start : DEPTH;
            __syncthreads();
            fill<A_K, C>(as, n, [&](int k, int r) { return a(r, start + k); });
            fill<B_K, W>(bs, n, [&](int k, int c) { return b(start + k, c); });
            __syncthreads();
            if constexpr (TENSOR)
                multiply_tensor<A_K, B_K>(as, bs, n);
            else
                multiply(as, bs, n);
        }
    }

    // The same for a lower-triangular a(r, k), 0 for k > r + past: what b holds at k reaches no row above, NaN and
    // infinity neither, though 0 times them is NaN. They are left out of the product, and added to the rows that see
    // them. (So are the largest numbers, which bf16 rounds to infinity.)
    template <int A_K, int B_K, class A, class B>
    __device__ void add_lower(real* scratch, int depth, A a, B b, i64 past = 0) {
        const auto common = [](real x) { return fabs(x) <= LARGEST / 2; };
        bool others = false;
        add<A_K, B_K>(scratch, depth, a, [&](int k, int c) {
            const real x = b(k, c);
            if (common(x)) return x;
            others = true;
            return real(0);
        });
        if (!__syncthreads_or(others)) return;
        for (int k = 0; k < depth; k++)
#pragma unroll
            for (int j = 0; j < COLS; j++) {
                const real x = b(k, col(j));
                if (common(x)) continue;
#pragma unroll
                for (int i = 0; i < ROWS; i++)
                    if (k <= row(i) + past) v[i][j] += a(row(i), k) * x;
            }
        __syncthreads();
    }

    // As add, in two parts, for operands that serve more than one product: their slices in shared memory, without a
    // barrier, and then the product. Neighbours in memory are neighbours along k.
    template <class A>
    static __device__ void keep_a(real* to, int depth, A a) {
        keep<C, SLICE_A>(to, depth, [&](int k, int r) { return a(r, k); });
    }
    template <class B>
    static __device__ void keep_b(real* to, int depth, B b) {
        keep<W, SLICE_B>(to, depth, b);
    }
    template <int N, int SLICE, class F>
    static __device__ void keep(real* to, int depth, F x) {
        for (int start = 0; start < depth; start += DEPTH)
            fill<1, N>((Stored<TENSOR>*)(to + start / DEPTH * SLICE), depth - start < DEPTH ? depth - start : DEPTH,
                       [&](int k, int i) { return x(start + k, i); });
    }
    __device__ void add_kept(const real* as, const real* bs, int depth) {
        typedef const Stored<TENSOR> T;
        for (; depth > 0; depth -= DEPTH, as += SLICE_A, bs += SLICE_B) {
            const int n = depth < DEPTH ? depth : DEPTH;
            if constexpr (TENSOR)
                multiply_tensor<1, 1>((T*)as, (T*)bs, n);
            else
                multiply(as, bs, n);
        }
    }

    __device__ void multiply(const real* as, const real* bs, int depth) {
#pragma unroll 4
        for (int k = 0; k < depth; k++) {
            const Pack<R> p = *(const Pack<R>*)(as + k * LD_A + row(0));
            const Pack<Q> q = *(const Pack<Q>*)(bs + k * LD_B + col(0));
#pragma unroll
            for (int i = 0; i < R; i++)
#pragma unroll
                for (int j = 0; j < Q; j++) v[i][j] += p.v[i] * q.v[j];
        }
    }

    // A warp has 16 rows and COLS / 2 times 8 columns.
    template <int A_K, int B_K>
    __device__ void multiply_tensor(const bf16* as, const bf16* bs, int depth) {
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
        const int r0 = warp / ACROSS * 16, c0 = warp % ACROSS * (2 * R * Q);
#pragma unroll
        for (int k0 = 0; k0 < DEPTH; k0 += 16) {
            if (k0 >= depth) break;
            u32 p[4], q[2];
            ldmatrix(p, A_K ? as + (r0 + lane % 16) * (DEPTH + 8) + k0 + lane / 16 * 8
                            : as + (k0 + lane % 8 + lane / 16 * 8) * (C + 8) + r0 + lane / 8 % 2 * 8, !A_K);
#pragma unroll
            for (int j = 0; j < COLS / 2; j++) {
                ldmatrix(q, B_K ? bs + (c0 + 8 * j + lane % 8) * (DEPTH + 8) + k0 + lane / 8 % 2 * 8
                                : bs + (k0 + lane % 16) * (W + 8) + c0 + 8 * j, !B_K);
                float d[4] = {(float)v[0][2 * j], (float)v[0][2 * j + 1], (float)v[1][2 * j], (float)v[1][2 * j + 1]};
                mma(d, p, q);
                v[0][2 * j] = d[0], v[0][2 * j + 1] = d[1], v[1][2 * j] = d[2], v[1][2 * j + 1] = d[3];
            }
        }
    }

    // f(row, column, number), each in the thread that holds it.
    template <class F>
    __device__ void each(F f) {
#pragma unroll
        for (int i = 0; i < ROWS; i++)
#pragma unroll
            for (int j = 0; j < COLS; j++) f(row(i), col(j), v[i][j]);
    }

    // Row r times by(r).
    template <class F>
    __device__ void scale_rows(F by) {
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            const real factor = by(row(i));
#pragma unroll
            for (int j = 0; j < COLS; j++) v[i][j] *= factor;
        }
    }

    // Sums, or the largest, over the threads that hold parts of the same rows, in a fixed order; all get the result.
    static __device__ void across(real (&x)[ROWS], real* scratch) {
        across(x, scratch, [](real a, real b) { return a + b; });
    }
    static __device__ void across_max(real (&x)[ROWS], real* scratch) {
        across(x, scratch, [](real a, real b) { return fmax(a, b); });
    }
    template <class F>
    static __device__ void across(real (&x)[ROWS], real* scratch, F f) {
#pragma unroll
        for (int i = 0; i < ROWS; i++)
            for (int o = TENSOR ? 2 : 8; o > 0; o >>= 1) x[i] = f(x[i], __shfl_xor_sync(0xffffffffu, x[i], o));
        if constexpr (TENSOR) {
            // A row is shared by ACROSS warps.
            __syncthreads();
            for (int i = 0; i < ROWS; i++)
                if (threadIdx.x % 4 == 0) scratch[threadIdx.x / 32 % ACROSS * C + row(i)] = x[i];
            __syncthreads();
            for (int i = 0; i < ROWS; i++) {
                x[i] = scratch[row(i)];
                for (int w = 1; w < ACROSS; w++) x[i] = f(x[i], scratch[w * C + row(i)]);
            }
        }
    }
};

}  // namespace tiled
