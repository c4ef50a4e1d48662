// Products of matrices inside a kernel, a tile of the result at a time, by a block of 256 threads.
//
// A tile is 16 R rows by 16 Q columns; thread (y, x) of 16 x 16 holds R x Q of them in registers, so that a number
// read from shared memory is used Q or R times. (Most are square, of C = 16 R.) A slice of DEPTH of both operands lies
// in shared memory. The depth of a product may be anything, and beyond the edges of matrices there are zeros. Operands
// are
//
//   a Matrix: rows in memory. 16 bytes are read and written at once, where rows begin at multiples of that, and few
//       instructions find out where; number by number both would take longer than the product
//   Scaled: the same, with a factor for each row
//   an Own: a C x C matrix in shared memory, of what another product gave. It lies as products read it (but for a
//       transposition without tensor cores), so that nothing is moved
//
// Rows are those in memory: of the operand itself, or of its transpose, as the product is told.
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

// How many tiles of c there are. (Integers of threads and blocks are unsigned and short: they are cheap to divide.)
__device__ inline u32 tiles(i64 n, u32 c) { return (u32)((u64)(n + c - 1) / c); }

// Registers are shared out so that a multiprocessor has room for two blocks; for one of large kernels, and where
// threads hold wider numbers.
enum { BLOCKS = sizeof(S) == 2 ? 2 : 1 };
#define TILED_KERNEL(NAME) BOUND_KERNEL(NAME, 256, BLOCKS)
#define LARGE_TILED_KERNEL(NAME) BOUND_KERNEL(NAME, 256, 1)

// Rows of numbers in memory, `apart` from one to the next. There are those from `low` to `rows`, of `width` numbers;
// none if x is null.
template <class P>
struct Matrix {
    const P* x;
    u32 apart;
    int rows, width, low;

    __device__ Matrix(const P* x, u32 apart, int rows, int width, int low = 0)
        : x(x), apart(apart), rows(x ? rows : 0), width(width), low(low) {}
    __device__ bool has(int r, int c) const { return r >= low && r < rows && c < width; }
    __device__ const P* at(int r, int c) const { return x + (u64)(u32)r * apart + c; }
    __device__ real operator()(int r, int c) const { return has(r, c) ? ld(at(r, c)) : real(0); }
    // The elements from row r on.
    __device__ Matrix from(int r) const {
        Matrix rest = *this;
        rest.x += (u64)(u32)r * apart, rest.rows -= r;
        return rest;
    }
    // The elements from column c on.
    __device__ Matrix columns(int c) const {
        Matrix rest = *this;
        rest.x += c, rest.width -= c;
        return rest;
    }
    // To the device's cache, COLUMNS of each row: what a block reads later it then waits for less.
    template <int COLUMNS>
    __device__ void prefetch() const {
        constexpr int LINE = 128 / sizeof(P), ACROSS = (COLUMNS + LINE - 1) / LINE;
        // Computed anew in a loop: to keep its addresses takes more registers than there are.
        for (int n = anew(threadIdx.x); n < 128 * ACROSS; n += 256)
            if (has(n / ACROSS, n % ACROSS * LINE)) ::prefetch(at(n / ACROSS, n % ACROSS * LINE));
    }
    // The same of a number of columns that is not known beforehand, a thread to a row.
    __device__ void prefetch(int columns) const {
        constexpr int LINE = 128 / sizeof(P);
        if (threadIdx.x >= 128 || !has(threadIdx.x, 0)) return;
        for (int c = 0; c < columns && c < width; c += LINE) ::prefetch(at(threadIdx.x, c));
    }
    // Whether each N columns can be read at once.
    template <int N>
    __device__ bool even() const {
        constexpr int BYTES = sizeof(Pack<P, N>) < 16 ? sizeof(Pack<P, N>) : 16;
        return width % N == 0 && ((u32)(u64)x | apart * (u32)sizeof(P)) % BYTES == 0;
    }
    // N neighbours of a row that is there; at once if `even`.
    template <int N>
    __device__ void get(real (&y)[N], int r, int c, bool even) const {
        if (even) return read(y, at(r, c));
#pragma unroll
        for (int i = 0; i < N; i++) y[i] = c + i < width ? ld(at(r, c + i)) : real(0);
    }
};

// Every row times by(row).
template <class P, class F>
struct Scaled {
    Matrix<P> of;
    F by;

    __device__ real operator()(int r, int c) const { return of.has(r, c) ? by(r) * ld(of.at(r, c)) : real(0); }
};
template <class P, class F>
__device__ Scaled<P, F> scaled(const Matrix<P>& of, F by) { return {of, by}; }

// Where a tile goes: rows in memory as those of a Matrix; added to what is there if `acc`.
template <class P>
struct Target {
    P* x;
    u32 apart;
    int rows, width, acc, low;

    __device__ Target(P* x, u32 apart, int rows, int width, int acc = 0, int low = 0)
        : x(x), apart(apart), rows(x ? rows : 0), width(width), acc(acc), low(low) {}
};

struct Unscaled {};
template <class A, class B> constexpr bool same = false;
template <class A> constexpr bool same<A, A> = true;

// The largest number that bf16 does not round to infinity. Numbers as large, infinity and NaN are rare.
__device__ inline bool common(real x) { return fabs(x) <= LARGEST / 2; }
// Of eight in bf16, 0 in place of those that are not common; whether there are any.
__device__ inline bool drop_rare(Pack<u32, 4>& x) {
    const auto rare = [](u32 pair) { return ((pair & 0x7f007f00u) + 0x01000100u) & 0x80008000u; };
    if (!(rare(x.v[0]) | rare(x.v[1]) | rare(x.v[2]) | rare(x.v[3]))) return false;
    for (int i = 0; i < 4; i++) x.v[i] &= ~((rare(x.v[i]) >> 15) * 0xffffu);
    return true;
}

// How a slice is stored.
template <bool TENSOR> struct Slice { typedef real T; };
template <> struct Slice<true> { typedef bf16 T; };
template <bool TENSOR> using Stored = typename Slice<TENSOR>::T;

// Numbers of type real that a slice takes of n rows or columns, with neighbours along k; and at most.
__device__ constexpr int slice_size(int n, int depth, int pad, bool tensor) {
    return tensor ? n * (depth + pad) / 2 : depth * (n + pad);
}
__device__ constexpr int slice_room(int n, int depth, int pad, bool tensor) {
    return slice_size(tensor && n < depth ? depth : n, tensor && n < depth ? n : depth, pad, tensor);
}

// On tensor cores a warp has 16 M rows, for which it reads columns once; and SPLIT warps may have the same place, each
// with a part of the depth (multiply_held, join).
template <int R, int Q = R, int M = 1, int SPLIT = 1>
struct Tile {
    enum { C = 16 * R, W = 16 * Q };
    // ACROSS: warps side by side on tensor cores, SPAN columns each. ROWS x COLS: what a thread holds, of each row RUN
    // neighbours.
    enum { TENSOR = sizeof(S) == 2 && R * Q * SPLIT >= 4 * M };
    enum { ACROSS = 8 * M / R / SPLIT, SPAN = W / (ACROSS > 0 ? ACROSS : 1) };
    enum { ROWS = TENSOR ? 2 * M : R, COLS = TENSOR ? SPAN / 4 : Q, RUN = TENSOR ? 2 : Q };
    // A row of a slice is padded so that neither way of filling or reading it has two threads in one bank, and so is
    // one of a C x C matrix of the kernel's own, of MLD.
    enum { DEPTH = TENSOR ? 64 : 32, PAD = TENSOR ? 8 : 4, MLD = C + 8, PER_REAL = TENSOR ? 2 : 1 };
    // The room that they take, in numbers of type real. SLICE_A, SLICE_B: with neighbours along k.
    enum { SLICE_A = slice_size(C, DEPTH, PAD, TENSOR), SLICE_B = slice_size(W, DEPTH, PAD, TENSOR) };
    enum { ROOM_A = slice_room(C, DEPTH, PAD, TENSOR), SCRATCH = ROOM_A + slice_room(W, DEPTH, PAD, TENSOR) };
    // MATRIX: a C x C matrix of type real, OWN: an Own one.
    enum { MATRIX = C * MLD, OWN = MATRIX / PER_REAL };
    typedef Stored<TENSOR> T;

    real v[ROWS][COLS];

    __device__ Tile() {
        for (int i = 0; i < ROWS; i++)
            for (int j = 0; j < COLS; j++) v[i][j] = 0;
    }

    // On tensor cores, of a warp: its part of the depth, and its first row and column.
    static __device__ int part() { return TENSOR ? (int)threadIdx.x / 32 % SPLIT : 0; }
    static __device__ int warp_row() { return (int)threadIdx.x / 32 / (ACROSS * SPLIT) * (16 * M); }
    static __device__ int warp_col() { return (int)threadIdx.x / 32 / SPLIT % ACROSS * SPAN; }

    static __device__ int row(int i) {
        const int n = threadIdx.x;
        return TENSOR ? warp_row() + n % 32 / 4 + 8 * i : n / 16 * R + i;
    }
    static __device__ int col(int j) {
        const int n = threadIdx.x;
        return TENSOR ? warp_col() + n % 4 * 2 + j / 2 * 8 + j % 2 : n % 16 * Q + j;
    }

    // --- Operands. A slice of x is x(k, i) for start <= k < start + DEPTH and i < N. ALONG_K: neighbours in memory are
    // neighbours along k; so they are in a slice then, on tensor cores. ---

    // How far one is from the next along the other.
    template <int ALONG_K, int N>
    static constexpr __device__ int stride() { return TENSOR && ALONG_K ? DEPTH + PAD : N + PAD; }
    template <int ALONG_K, int N>
    static __device__ int place(int k, int i) {
        return TENSOR && ALONG_K ? i * stride<1, N>() + k : k * stride<0, N>() + i;
    }

    // By a function, for k < depth, and 0 up to the next multiple of a group.
    template <int ALONG_K, int N, class F>
    static __device__ void fill(T* to, int depth, F x) {
        constexpr int GROUP = TENSOR ? 16 : 8;
        const u32 size = (u32)(depth + GROUP - 1) / GROUP * GROUP * N;
        for (u32 n = threadIdx.x; n < size; n += 256) {
            const int k = ALONG_K ? n / (GROUP * N) * GROUP + n % GROUP : n / N, i = ALONG_K ? n / GROUP % N : n % N;
            st(to + place<ALONG_K, N>(k, i), k < depth ? x(k, i) : real(0));
        }
    }

    // Of rows in memory: those of a whole slice, V numbers at a time.
    template <int ALONG_K, int N, class P, class F>
    static __device__ void fill_rows(T* to, int start, const Matrix<P>& x, F by, bool* others) {
        constexpr u32 V = TENSOR ? 8 : 4, PACKS = (ALONG_K ? DEPTH : N) / V, ALL = (ALONG_K ? N : DEPTH) * PACKS;
        const bool even = x.template even<V>();
#pragma unroll
        for (u32 first = 0; first < ALL; first += 256) {
            const u32 n = first + threadIdx.x;
            if (ALL < 256 && n >= ALL) break;
            // Where a pack is spread over the rows of a slice, a warp has 16 rows of the matrix, two packs of each.
            constexpr bool SPREAD = ALONG_K && !TENSOR;
            const int r = SPREAD ? n / (16 * PACKS) * 16 + n % 16 : n / PACKS;
            const int c = (SPREAD ? n / 16 % PACKS : n % PACKS) * V;
            const int row = ALONG_K ? r : start + r, column = ALONG_K ? start + c : c;
            const bool there = x.has(row, column);
            if constexpr (TENSOR && sizeof(P) == 2 && same<F, Unscaled>) {
                Pack<u32, 4> y = {};
                if (there && even) {
                    y = *(const Pack<u32, 4>*)x.at(row, column);
                } else if (there) {
                    real z[V];
                    x.get(z, row, column, false);
                    for (u32 i = 0; i < 4; i++) y.v[i] = pair(z[2 * i], z[2 * i + 1]);
                }
                if (others) *others |= drop_rare(y);
                *(Pack<u32, 4>*)(to + r * stride<ALONG_K, N>() + c) = y;
            } else {
                real y[V] = {};
                if (there) {
                    x.get(y, row, column, even);
                    if constexpr (!same<F, Unscaled>) {
                        const real factor = by(row);
#pragma unroll
                        for (u32 i = 0; i < V; i++) y[i] *= factor;
                    }
                }
#pragma unroll
                for (u32 i = 0; i < V; i++)
                    if (others && !common(y[i])) *others = true, y[i] = 0;
                if constexpr (SPREAD) {
#pragma unroll
                    for (u32 i = 0; i < V; i++) to[(c + i) * stride<ALONG_K, N>() + r] = y[i];
                } else {
                    write(to + r * stride<ALONG_K, N>() + c, y);
                }
            }
        }
    }

    // A slice in `room`, or where it is already, and what its rows are apart; of `depth` along k. If `others`, 0 stands
    // in it for what is not common, which is reported there.
    struct At {
        const T* x;
        int stride;
    };
    template <int ALONG_K, int N, class P>
    static __device__ At slice(T* room, int start, int, const Matrix<P>& x, bool* others = nullptr) {
        fill_rows<ALONG_K, N>(room, start, x, Unscaled(), others);
        return {room, stride<ALONG_K, N>()};
    }
    template <int ALONG_K, int N, class P, class F>
    static __device__ At slice(T* room, int start, int, const Scaled<P, F>& x, bool* others = nullptr) {
        fill_rows<ALONG_K, N>(room, start, x.of, x.by, others);
        return {room, stride<ALONG_K, N>()};
    }

    // A C x C matrix of the kernel's own, in shared memory.
    struct Own {
        T* x;

        __device__ Own(real* room) : x((T*)room) {}
        __device__ real operator()(int r, int c) const { return ::ld(x + r * MLD + c); }
        __device__ void set(const Tile& y) const {
            y.runs([&](int r, int c, const real (&run)[RUN]) { write(x + r * MLD + c, run); });
        }
        // From C x C numbers in memory, or in rows `apart`.
        template <class P>
        __device__ void copy(const P* from, int apart = C) const {
            for (u32 n = 4 * threadIdx.x; n < C * C; n += 1024) {
                real y[4];
                read(y, from + n / C * apart + n % C);
                write(x + n / C * MLD + n % C, y);
            }
        }
    };
    template <int ALONG_K, int N>
    static __device__ At slice(T* room, int start, int depth, const Own& x, bool* others = nullptr) {
        if ((TENSOR || !ALONG_K) && !others) return {x.x + start * (ALONG_K ? 1 : MLD), MLD};
        return slice<ALONG_K, N>(room, start, depth, Matrix<T>(x.x, MLD, C, C), others);
    }

    // this += Σ_k a(r, k) b(k, c) for k < depth; A_K, B_K: whether neighbours in memory are neighbours along k. Then
    // the operand's rows are a's own, a(r, k), or the transpose's, b(c, k); else a(k, r), or b(k, c). Operands have
    // no rows, or zeros, from `depth` to the next multiple of 16. What the operands read of shared
    // memory may have been written right before the call; an Own may be read until the next barrier.
    template <int A_K, int B_K, class A, class B>
    __device__ void add(real* scratch, int depth, const A& a, const B& b, bool* others = nullptr) {
        for (int start = 0; start < depth; start += DEPTH) {
            const int n = depth - start < DEPTH ? depth - start : DEPTH;
            __syncthreads();
            const At as = slice<A_K, C>((T*)scratch, start, n, a);
            const At bs = slice<B_K, W>((T*)(scratch + ROOM_A), start, n, b, others);
            __syncthreads();
            if constexpr (TENSOR)
                multiply_tensor<A_K, B_K>(as, bs, n);
            else
                multiply(as, bs, n);
        }
    }

    // this += a b and y += c b, for which b is read once. On tensor cores `room` is that of one slice more, ROOM_A.
    template <int A_K, int B_K, class A, class O, class B>
    __device__ void add_both(Tile& y, real* scratch, real* room, int depth, const A& a, const O& c, const B& b,
                             bool* others = nullptr) {
        if constexpr (!TENSOR) {
            add<A_K, B_K>(scratch, depth, a, b, others);
            y.template add<A_K, B_K>(scratch, depth, c, b, others);
        } else {
            for (int start = 0; start < depth; start += DEPTH) {
                const int n = depth - start < DEPTH ? depth - start : DEPTH;
                __syncthreads();
                const At as = slice<A_K, C>((T*)scratch, start, n, a);
                const At cs = slice<A_K, C>((T*)room, start, n, c);
                const At bs = slice<B_K, W>((T*)(scratch + ROOM_A), start, n, b, others);
                __syncthreads();
#pragma unroll
                for (int k0 = 0; k0 < DEPTH; k0 += 16) {
                    if (k0 >= n) break;
                    u32 p[M][4], q[M][4];
                    rows_16<A_K>(p, as, k0), rows_16<A_K>(q, cs, k0);
                    columns_16<B_K>({bs.x + k0 * (B_K ? 1 : bs.stride), bs.stride}, [&](int at, const u32 (&x)[2]) {
                        multiply_8(p, at, x), y.multiply_8(q, at, x);
                    });
                }
            }
        }
    }

    // As add for a lower-triangular a(r, k), 0 for k > r + past: what b holds at k reaches no row above, NaN and
    // infinity neither, though 0 times them is NaN. They are left out of the product, and added to the rows that see
    // them. (So are the largest numbers, which bf16 rounds to infinity.)
    template <int A_K, int B_K, class A, class B>
    __device__ void add_lower(real* scratch, int depth, const A& a, const B& b, i64 past = 0) {
        bool others = false;
        add<A_K, B_K>(scratch, depth, a, b, &others);
        if (__syncthreads_or(others)) add_rare<A_K, B_K>(depth, past, a, b);
    }
    template <int A_K, int B_K, class A, class O, class B>
    __device__ void add_both_lower(Tile& y, real* scratch, real* room, int depth, const A& a, const O& c, const B& b) {
        bool others = false;
        add_both<A_K, B_K>(y, scratch, room, depth, a, c, b, &others);
        if (__syncthreads_or(others)) add_rare<A_K, B_K>(depth, 0, a, b), y.template add_rare<A_K, B_K>(depth, 0, c, b);
    }
    template <int A_K, int B_K, class A, class B>
    __device__ void add_rare(int depth, i64 past, const A& a, const B& b) {
        add_rare(
            depth, past, [&](int r, int k) { return A_K ? a(r, k) : a(k, r); },
            [&](int k, int c) { return B_K ? b(c, k) : b(k, c); });
    }
    template <class A, class B>
    __device__ void add_rare(int depth, i64 past, A a, B b) {
        for (int k = 0; k < depth; k++)
#pragma unroll
            for (int j = 0; j < COLS; j++) {
                const real x = b(k, col(j));
                if (common(x)) continue;
#pragma unroll
                for (int i = 0; i < ROWS; i++)
                    if (k <= row(i) + past) v[i][j] += a(row(i), k) * x;
            }
    }

    // As add, in two parts, for operands that serve more than one product: their slices in shared memory, without a
    // barrier, and then the product. Neighbours in memory are neighbours along k, and there are zeros behind the last.
    template <int APART, class B>
    static __device__ void keep_b(real* to, int depth, B b) {
        for (int start = 0; start < depth; start += DEPTH, to += APART * SLICE_B)
            fill<1, W>((T*)to, DEPTH, [&](int k, int c) { return start + k < depth ? b(start + k, c) : real(0); });
    }
    // Slices from `start` on, multiples of G, which are turn by turn of G groups of columns, `apart` from one to the next: slice
    // j is of group j % G. If the rows of x are `even`, so are those of other groups. A thread has the same place in every
    // slice that is its own, and N of its packs are under way at once.
    template <int N, int G>
    static __device__ void keep_a(real* to, u32 start, int slices, const Matrix<S>& x, u32 apart) {
        constexpr int V = TENSOR ? 8 : 4, PACKS = DEPTH / V, THREADS = C * PACKS, AT_ONCE = 256 / THREADS;
        static_assert(256 % THREADS == 0 && (G == 1 || G % AT_ONCE == 0) && AT_ONCE * N % G == 0);
        const int own = (int)threadIdx.x / THREADS, place = (int)threadIdx.x % THREADS;
        const int r = TENSOR ? place / PACKS : place % C, c = (TENSOR ? place % PACKS : place / C) * V;
        const bool even = x.template even<V>();
        constexpr int TURNS = G > AT_ONCE ? G / AT_ONCE : 1;
        const int column = c + (G == 1 ? own * DEPTH : 0);
        const S* from[TURNS];
        for (int g = 0; g < TURNS; g++) from[g] = x.at(r, column) + (G == 1 ? 0 : own + AT_ONCE * g) * apart;
        T* at = (T*)(to + own * SLICE_A) + (TENSOR ? r * stride<1, C>() + c : c * stride<1, C>() + r);
        for (int first = 0; first < slices; first += AT_ONCE * N) {
            const u32 behind = (start + first) / G * DEPTH;
            const int left = x.has(r, 0) ? x.width - column - (int)behind : 0;
            Pack<u32, 4> pack[TENSOR ? N : 1] = {};
            real y[TENSOR ? 1 : N][V] = {};
#pragma unroll
            for (int u = 0; u < N; u++) {
                const int here = AT_ONCE * u / G * DEPTH;
                if (first + AT_ONCE * u + own >= slices || here >= left) continue;
                const S* x = from[u % TURNS] + behind + here;
                if (even && TENSOR) {
                    pack[TENSOR ? u : 0] = *(const Pack<u32, 4>*)x;
                } else if (even) {
                    read(y[TENSOR ? 0 : u], x);
                } else {
                    real z[V];
                    for (int i = 0; i < V; i++) z[i] = here + i < left ? ld(x + i) : real(0);
                    for (int i = 0; i < V; i++) y[TENSOR ? 0 : u][i] = z[i];
                    if (TENSOR)
                        for (int i = 0; i < 4; i++) pack[TENSOR ? u : 0].v[i] = pair(z[2 * i % V], z[(2 * i + 1) % V]);
                }
            }
#pragma unroll
            for (int u = 0; u < N; u++, at += AT_ONCE * SLICE_A * PER_REAL) {
                if (first + AT_ONCE * u + own >= slices) continue;
                if constexpr (TENSOR)
                    *(Pack<u32, 4>*)at = pack[u];
                else
                    for (int i = 0; i < V; i++) at[i * stride<1, C>()] = y[u][i];
            }
        }
    }
    // Of SPLIT warps each takes every SPLIT-th slice.
    __device__ void add_kept(const real* as, const real* bs, int slices) {
        for (int j = part(); j < slices; j += TENSOR ? SPLIT : 1) {
            const At a{(const T*)(as + j * SLICE_A), stride<1, C>()}, b{(const T*)(bs + j * SLICE_B), stride<1, W>()};
            if constexpr (TENSOR)
                multiply_tensor<1, 1>(a, b, DEPTH);
            else
                multiply(a, b, DEPTH);
        }
    }

    // --- Products of slices. ---

    __device__ void multiply(At as, At bs, int depth) {
#pragma unroll 4
        for (int k = 0; k < depth; k++) {
            const Pack<real, R> p = *(const Pack<real, R>*)(as.x + k * as.stride + row(0));
            const Pack<real, Q> q = *(const Pack<real, Q>*)(bs.x + k * bs.stride + col(0));
#pragma unroll
            for (int i = 0; i < R; i++)
#pragma unroll
                for (int j = 0; j < Q; j++) v[i][j] += p.v[i] * q.v[j];
        }
    }

    template <int A_K, int B_K>
    __device__ void multiply_tensor(At as, At bs, int depth) {
#pragma unroll
        for (int k0 = 0; k0 < DEPTH; k0 += 16) {
            if (k0 >= depth) break;
            u32 p[M][4];
            rows_16<A_K>(p, as, k0);
            multiply_16<B_K>(p, {bs.x + k0 * (B_K ? 1 : bs.stride), bs.stride});
        }
    }

    // Of depth 16: a warp has 16 M rows of a in p, and its columns of b are read 8 or 16 at a time.
    template <int B_K>
    __device__ void multiply_16(const u32 (&p)[M][4], At bs) {
        columns_16<B_K>(bs, [&](int at, const u32 (&q)[2]) { multiply_8(p, at, q); });
    }
    template <int A_K>
    static __device__ void rows_16(u32 (&p)[M][4], At as, int k0) {
        const int lane = threadIdx.x % 32, r0 = warp_row();
        const T* a = as.x + (A_K ? (r0 + lane % 16) * as.stride + lane / 16 * 8
                                 : (lane % 8 + lane / 16 * 8) * as.stride + r0 + lane / 8 % 2 * 8);
#pragma unroll
        for (int m = 0; m < M; m++)
            ldmatrix(p[m], a + k0 * (A_K ? 1 : as.stride) + 16 * m * (A_K ? as.stride : 1), !A_K);
    }
    // f(place of the first in v, eight columns)
    template <int B_K, class F>
    static __device__ void columns_16(At bs, F f) {
        constexpr int PAIR = COLS % 4 == 0 ? 2 : 1;
        const int lane = threadIdx.x % 32, c0 = warp_col() + (PAIR == 2 ? lane / 16 * 8 : 0);
        const T* b = bs.x + (B_K ? (c0 + lane % 8) * bs.stride + lane / 8 % 2 * 8 : lane % 16 * bs.stride + c0);
#pragma unroll
        for (int j = 0; j < COLS / 2; j += PAIR) {
            u32 q[2 * PAIR];
            ldmatrix(q, b + 8 * j * (B_K ? bs.stride : 1), !B_K);
#pragma unroll
            for (int n = 0; n < PAIR; n++) {
                const u32 one[2] = {q[2 * n], q[2 * n + 1]};
                f(2 * (j + n), one);
            }
        }
    }
    __device__ void multiply_8(const u32 (&p)[M][4], int at, const u32 (&q)[2]) {
#pragma unroll
        for (int m = 0; m < M; m++) {
            real(&x)[COLS] = v[2 * m], (&y)[COLS] = v[2 * m + 1];
            float d[4] = {(float)x[at], (float)x[at + 1], (float)y[at], (float)y[at + 1]};
            mma(d, p[m], q);
            x[at] = d[0], x[at + 1] = d[1], y[at] = d[2], y[at + 1] = d[3];
        }
    }

    // Rows of `a`, DEPTH neighbours along k of each, in the registers of the warps that multiply them.
    struct Held {
        u32 p[DEPTH / 16][M][4];
        __device__ void read(At as) {
            const T* a = as.x + (warp_row() + threadIdx.x % 16) * as.stride + threadIdx.x % 32 / 16 * 8;
#pragma unroll
            for (int k = 0; k < DEPTH / 16; k++)
#pragma unroll
                for (int m = 0; m < M; m++) ldmatrix(p[k][m], a + 16 * k + 16 * m * as.stride, false);
        }
        __device__ void negate() {
            for (int n = 0; n < DEPTH / 4 * M; n++) p[n / (4 * M)][n / 4 % M][n % 4] ^= 0x80008000u;
        }
    };
    // this += a b for these rows. (Behind the last number of a row there are zeros, of `a` and of b.)
    template <int B_K>
    __device__ void multiply_kept(const Held& a, At bs) {
#pragma unroll
        for (int k = 0; k < DEPTH / 16; k++) multiply_16<B_K>(a.p[k], {bs.x + 16 * k * (B_K ? 1 : bs.stride), bs.stride});
    }

    // this += x b for a tile x in the registers of the same warps, whose columns are the depth: of each warp all, or
    // its part. If wanted, its rows are summed besides, as a product with ones: of the rounded numbers, in all threads
    // of a row.
    template <int B_K, int K>
    __device__ void multiply_held(const Tile<R, K, M>& x, At bs, real* sums = nullptr) {
        static_assert(TENSOR && ACROSS == 1, "a warp has whole rows");
        constexpr int SPAN_K = 16 * K / SPLIT;
        bs.x += part() * SPAN_K * (B_K ? 1 : bs.stride);
        const u32 ones[2] = {0x3f803f80u, 0x3f803f80u};
        float all[M][4] = {};
#pragma unroll
        for (int k = 0; k < SPAN_K; k += 16) {
            u32 p[M][4];
#pragma unroll
            for (int m = 0; m < M; m++) {
#pragma unroll
                for (int n = 0; n < 4; n++) {
                    const real* two = &x.v[2 * m + n % 2][k / 4 + n / 2 * 2];
                    p[m][n] = pair(two[0], two[1]);
                }
                if (sums) mma(all[m], p[m], ones);
            }
            multiply_16<B_K>(p, {bs.x + k * (B_K ? 1 : bs.stride), bs.stride});
        }
        for (int m = 0; sums && m < M; m++) sums[2 * m] += all[m][0], sums[2 * m + 1] += all[m][2];
    }

    // The sum of its parts, in the first of them. `scratch` is C W (SPLIT − 1) numbers.
    __device__ void join(real* scratch) {
        constexpr int SIZE = 32 * ROWS * COLS;
        const int place = threadIdx.x / 32 / SPLIT, lane = threadIdx.x % 32;
        real* own = scratch + (place * (SPLIT - 1) + part() - 1) * SIZE + lane;
        __syncthreads();
#pragma unroll
        for (int n = 0; n < ROWS * COLS; n++)
            if (part() > 0) own[32 * n] = v[n / COLS][n % COLS];
        __syncthreads();
        for (int other = 1; other < SPLIT; other++)
#pragma unroll
            for (int n = 0; n < ROWS * COLS; n++)
                if (part() == 0) v[n / COLS][n % COLS] += own[other * SIZE + 32 * n];
    }

    // --- Results. ---

    // f(row, column, number), each in the thread that holds it.
    template <class F>
    __device__ void each(F f) {
#pragma unroll
        for (int i = 0; i < ROWS; i++)
#pragma unroll
            for (int j = 0; j < COLS; j++) f(row(i), col(j), v[i][j]);
    }

    // f(row, first column, numbers), the neighbours at once.
    template <class F>
    __device__ void runs(F f) const {
#pragma unroll
        for (int i = 0; i < ROWS; i++)
#pragma unroll
            for (int j = 0; j < COLS; j += RUN) f(row(i), col(j), *(const real(*)[RUN])&v[i][j]);
    }

    // this += what is there of x.
    template <class P>
    __device__ void add_rows(const Matrix<P>& x) {
        const bool even = x.template even<RUN>();
#pragma unroll
        for (int i = 0; i < ROWS; i++)
#pragma unroll
            for (int j = 0; j < COLS; j += RUN) {
                if (!x.has(row(i), col(j))) continue;
                real y[RUN];
                x.get(y, row(i), col(j), even);
#pragma unroll
                for (int u = 0; u < RUN; u++) v[i][j + u] += y[u];
            }
    }

    // To memory, as value(row, column, number).
    template <class P, class F>
    __device__ void put(const Target<P>& to, F value) const {
        constexpr int BYTES = sizeof(Pack<P, RUN>) < 16 ? sizeof(Pack<P, RUN>) : 16;
        const bool even = to.width % RUN == 0 && ((u32)(u64)to.x | to.apart * (u32)sizeof(P)) % BYTES == 0;
        runs([&](int r, int c, const real (&run)[RUN]) {
            if (r < to.low || r >= to.rows || c >= to.width || part() > 0) return;
            P* at = to.x + (u64)(u32)r * to.apart + c;
            real y[RUN];
#pragma unroll
            for (int u = 0; u < RUN; u++) y[u] = value(r, c + u, run[u]);
            if (even) {
                if (to.acc) {
                    real old[RUN];
                    read(old, at);
#pragma unroll
                    for (int u = 0; u < RUN; u++) y[u] += old[u];
                }
                write(at, y);
            } else {
#pragma unroll
                for (int u = 0; u < RUN; u++)
                    if (c + u < to.width) ::put(at + u, y[u], to.acc);
            }
        });
    }
    template <class P>
    __device__ void put(const Target<P>& to) const {
        put(to, [](int, int, real x) { return x; });
    }

    // Every number x of row r becomes of(r)(column, x).
    template <class F>
    __device__ void by_rows(F of) {
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            const auto f = of(row(i));
#pragma unroll
            for (int j = 0; j < COLS; j++) v[i][j] = f(col(j), v[i][j]);
        }
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

    // Every number becomes the sum of those before it in its row. `scratch` can be written to.
    __device__ void sum_before(real* scratch) {
        constexpr int LANES = TENSOR ? 4 : 16;
        const int lane = threadIdx.x % LANES;
        real all[ROWS] = {};
#pragma unroll
        for (int i = 0; i < ROWS; i++)
#pragma unroll
            for (int j = 0; j < COLS; j += RUN) {
                real upto = 0;
#pragma unroll
                for (int u = 0; u < RUN; u++) upto += v[i][j + u];
#pragma unroll
                for (int o = 1; o < LANES; o *= 2) {
                    const real y = __shfl_up_sync(0xffffffffu, upto, o, LANES);
                    if (lane >= o) upto += y;
                }
                const real before = __shfl_up_sync(0xffffffffu, upto, 1, LANES);
                real sum = lane > 0 ? all[i] + before : all[i];
                all[i] += __shfl_sync(0xffffffffu, upto, LANES - 1, LANES);
#pragma unroll
                for (int u = 0; u < RUN; u++) {
                    const real x = v[i][j + u];
                    v[i][j + u] = sum;
                    sum += x;
                }
            }
        if constexpr (TENSOR && ACROSS > 1) {
            for (int i = 0; i < ROWS; i++)
                if (lane == 0) scratch[threadIdx.x / 32 % ACROSS * C + row(i)] = all[i];
            __syncthreads();
            by_rows([&](int r) {
                real before = 0;
                for (int w = 0; w < threadIdx.x / 32 % ACROSS; w++) before += scratch[w * C + r];
                return [=](int, real x) { return before + x; };
            });
        }
    }

    // Sums, or the largest, over the threads that hold parts of the same rows, in a fixed order; all get the result.
    static __device__ void horizontal_sum(real (&x)[ROWS], real* scratch) {
        horizontal(x, scratch, [](real a, real b) { return a + b; });
    }
    static __device__ void horizontal_max(real (&x)[ROWS], real* scratch) {
        horizontal(x, scratch, [](real a, real b) { return fmax(a, b); });
    }
    template <class F>
    static __device__ void horizontal(real (&x)[ROWS], real* scratch, F f) {
#pragma unroll
        for (int i = 0; i < ROWS; i++)
            for (int o = TENSOR ? 2 : 8; o > 0; o >>= 1) x[i] = f(x[i], __shfl_xor_sync(0xffffffffu, x[i], o));
        if constexpr (TENSOR && ACROSS > 1) {
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
