// Products of matrices inside a kernel, a tile of the result at a time, by a block of 256 threads.
//
// A tile is 16 R rows by 16 Q columns; thread (y, x) of 16 x 16 holds R x Q of them in registers, so that a number
// read from shared memory is used Q or R times. (Most are square, of C = 16 R.) Operands are functions of (row, column), so that scaling, masking and the
// layout of a head's rows stand in the kernel where they are used; each is called once a number for each tile, and a
// slice of DEPTH of both lies in shared memory. The depth of a product may be anything; what lies beyond the edges
// of the matrices the functions give as 0. A file that uses this says `using namespace tiled;`.

namespace tiled {

template <int N>
struct __align__(N * sizeof(real) < 16 ? N * sizeof(real) : 16) Pack { real v[N]; };

template <int R, int Q = R>
struct Tile {
    // LD_A, LD_B: what a row of a slice takes in shared memory, and MLD one of a C x C matrix of the kernel's own;
    // padded so that neither way of filling or reading them has two threads in one bank.
    enum { C = 16 * R, W = 16 * Q, DEPTH = 32, LD_A = C + 4, LD_B = W + 4, MLD = C + 8 };
    enum { SCRATCH = DEPTH * (LD_A + LD_B), MATRIX = C * MLD };

    real v[R][Q];

    __device__ Tile() {
        for (int i = 0; i < R; i++)
            for (int j = 0; j < Q; j++) v[i][j] = 0;
    }

    static __device__ int row(int i) { return threadIdx.x / 16 * R + i; }
    static __device__ int col(int j) { return threadIdx.x % 16 * Q + j; }

    // x(k, i) for k < depth <= DEPTH. ALONG_K: neighbours in memory are neighbours along k.
    template <int ALONG_K, int N, class F>
    static __device__ void fill(real* to, int depth, F x) {
        const int size = (depth + 7) / 8 * 8 * N;
        for (int n = threadIdx.x; n < size; n += 256) {
            const int k = ALONG_K ? n / (8 * N) * 8 + n % 8 : n / N, i = ALONG_K ? n / 8 % N : n % N;
            to[k * (N + 4) + i] = k < depth ? x(k, i) : real(0);
        }
    }

    // this += Σ_k a(r, k) b(k, c) for k < depth; A_K, B_K: whether neighbours in memory are neighbours along k. What
    // the operands read of shared memory may have been written right before the call.
    template <int A_K, int B_K, class A, class B>
    __device__ void add(real* scratch, int depth, A a, B b) {
        real *as = scratch, *bs = scratch + DEPTH * LD_A;
        for (int start = 0; start < depth; start += DEPTH) {
            const int n = depth - start < DEPTH ? depth - start : DEPTH;
            __syncthreads();
            fill<A_K, C>(as, n, [&](int k, int r) { return a(r, start + k); });
            fill<B_K, W>(bs, n, [&](int k, int c) { return b(start + k, c); });
            __syncthreads();
#pragma unroll 4
            for (int k = 0; k < n; k++) {
                const Pack<R> p = *(const Pack<R>*)(as + k * LD_A + row(0));
                const Pack<Q> q = *(const Pack<Q>*)(bs + k * LD_B + col(0));
#pragma unroll
                for (int i = 0; i < R; i++)
#pragma unroll
                    for (int j = 0; j < Q; j++) v[i][j] += p.v[i] * q.v[j];
            }
        }
    }

    // f(row, column, number), each in the thread that holds it.
    template <class F>
    __device__ void each(F f) {
#pragma unroll
        for (int i = 0; i < R; i++)
#pragma unroll
            for (int j = 0; j < Q; j++) f(row(i), col(j), v[i][j]);
    }

    // Row by row: sum[i] += Σ_j f(row, column, number) of what this thread holds.
    template <class F>
    __device__ void sum_rows(real (&sum)[R], F f) {
#pragma unroll
        for (int i = 0; i < R; i++)
#pragma unroll
            for (int j = 0; j < Q; j++) sum[i] += f(row(i), col(j), v[i][j]);
    }

    // Over the sixteen threads that hold parts of the same rows, in a fixed order; all of them get the result.
    static __device__ void across(real (&sum)[R]) {
#pragma unroll
        for (int i = 0; i < R; i++)
            for (int o = 8; o > 0; o >>= 1) sum[i] += __shfl_xor_sync(0xffffffffu, sum[i], o);
    }
    static __device__ void across_max(real (&top)[R]) {
#pragma unroll
        for (int i = 0; i < R; i++)
            for (int o = 8; o > 0; o >>= 1) top[i] = fmax(top[i], __shfl_xor_sync(0xffffffffu, top[i], o));
    }
};

// --- Heads of tensors [B, T, H, K], in chunks of steps: what the matrix memories share. ---

// W is the width of a state, V or one more.
struct Dims { i64 t, h, k, v, w, chunk, chunks; };

// The steps of one chunk: the block's, of (chunk of head, tile, tile). Row `at(s)` of a tensor [B T H, ..] is step s.
struct Steps {
    i64 id, first, apart;
    int n;

    __device__ Steps(const Dims& d, i64 id) : id(id), apart(d.h) {
        const i64 head = id / d.chunks, start = id % d.chunks * d.chunk;
        first = (head / d.h * d.t + start) * d.h + head % d.h;
        n = (int)(d.t - start < d.chunk ? d.t - start : d.chunk);
    }

    __device__ i64 at(int s) const { return first + s * apart; }

    // Element j of step s of x [B, T, H, width]; 0 beyond the edges.
    template <class P>
    __device__ real get(const P* x, i64 width, int s, i64 j) const {
        return s < n && j < width ? ld(x + at(s) * width + j) : real(0);
    }
};

__device__ inline i64 tiles(i64 n, int c) { return (n + c - 1) / c; }

}  // namespace tiled
