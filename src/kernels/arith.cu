// y = f(a, b) for a and b that repeat along axes of y, and the gradient of each: a sum over the axes along which it
// repeats. The same sums, of one tensor, are SumAxis.
//
// Forward: one thread an element of y, grid-stride. It finds its place in a and b by one division an axis that does
// not merge with its neighbour; operands of one shape need none. Moves 3 numbers an element: limited by memory.
//
// A gradient is d[k] = Σᵣ partial(k, r) with k over the elements of the input and r over its repetitions. Three
// tilings, all of which add in an order that sizes alone decide:
// - `serial`, few repetitions (none above all): a thread sums its k;
// - `columns`, neighbouring k lie side by side in y: a block takes up to 32 of them and a chunk of r, its warps take
//   turns along r, and what they found is added up in shared memory;
// - `rows`, neighbouring r lie side by side in y: a warp takes one k and a chunk of r.
// With several chunks, sums go to `sums` [chunks, kept], which the caller adds up; else straight to d. Reads every
// number of y's shape once (dy; a and b too where the derivative needs them).

// The position of an element in y (or dy), a and b: an index into a space of up to five axes, and the steps of each.
struct At { i64 y, a, b; };

__device__ inline At at(i64 i, const Ints<5>& n, const Ints<5>& y, const Ints<5>& a, const Ints<5>& b) {
    At p = {0, 0, 0};
#pragma unroll
    for (int k = 4; k >= 0; k--) {
        if (n.v[k] > 1) {
            const i64 rest = divide(i, n.v[k]), j = i - rest * n.v[k];
            p.y += j * y.v[k];
            p.a += j * a.v[k];
            p.b += j * b.v[k];
            i = rest;
        }
    }
    return p;
}

// f, and g times its two derivatives; `reads` says whether those need the operands.
struct add_ {
    static const bool reads = false;
    static __device__ real f(real a, real b) { return a + b; }
    static __device__ real da(real g, real, real) { return g; }
    static __device__ real db(real g, real, real) { return g; }
};
struct sub_ {
    static const bool reads = false;
    static __device__ real f(real a, real b) { return a - b; }
    static __device__ real da(real g, real, real) { return g; }
    static __device__ real db(real g, real, real) { return -g; }
};
struct mul_ {
    static const bool reads = true;
    static __device__ real f(real a, real b) { return a * b; }
    static __device__ real da(real g, real, real b) { return g * b; }
    static __device__ real db(real g, real a, real) { return g * a; }
};
struct div_ {
    static const bool reads = true;
    static __device__ real f(real a, real b) { return a / b; }
    static __device__ real da(real g, real, real b) { return g / b; }
    // Also where b² or g a is beyond the ends of the type.
    static __device__ real db(real g, real a, real b) {
        const real product = g * a, square = b * b;
        const bool plain = square > 1.2e-38 && is_finite(square) && is_finite(product);
        return plain ? -product / square : -g * (a / b / b);
    }
};

template <class F>
__device__ void forward(const S* a, const S* b, S* y, i64 size, int flat, Ints<5> n, Ints<5> sa, Ints<5> sb) {
    if (flat) {
        map(y, 0, size, [&](i64 i) { return F::f(ld(a + i), ld(b + i)); });
    } else {
        map(y, 0, size, [&](i64 i) {
            const At p = at(i, n, sa, sa, sb);
            return F::f(ld(a + p.a), ld(b + p.b));
        });
    }
}

// The arguments of a gradient: tensors, and the spaces of k and of r.
struct Sum {
    const S *g, *a, *b;
    int second; // the gradient of b
    i64 kept, reduced, chunk;
    Ints<5> kn, ky, ka, kb, rn, ry, ra, rb;

    template <class F>
    __device__ real term(i64 iy, i64 ia, i64 ib) const {
        const real v = ld(g + iy), va = F::reads ? ld(a + ia) : real(0), vb = F::reads ? ld(b + ib) : real(0);
        return second ? F::db(v, va, vb) : F::da(v, va, vb);
    }

    // Σ over r = first, first + step, … < last. One axis, the usual case, needs no divisions.
    template <class F>
    __device__ real total(i64 k, i64 first, i64 last, i64 step) const {
        const At p = at(k, kn, ky, ka, kb);
        const bool one = rn.v[0] * rn.v[1] * rn.v[2] * rn.v[3] == 1;
        real sum = 0;
        if (one) {
#pragma unroll 4
            for (i64 r = first; r < last; r += step)
                sum += term<F>(p.y + r * ry.v[4], p.a + r * ra.v[4], p.b + r * rb.v[4]);
        } else {
            for (i64 r = first; r < last; r += step) {
                const At q = at(r, rn, ry, ra, rb);
                sum += term<F>(p.y + q.y, p.a + q.a, p.b + q.b);
            }
        }
        return sum;
    }
};

template <class F>
__device__ void serial(const Sum& s, real scale, S* d, int acc, real*) {
    // One axis and no repetition, the usual case. (All else four at once would take ten seconds to compile.)
    if (s.reduced == 1 && s.kn.v[0] * s.kn.v[1] * s.kn.v[2] * s.kn.v[3] == 1)
        return map(d, acc, s.kept, [&](i64 k) { return scale * s.term<F>(k * s.ky.v[4], k * s.ka.v[4], k * s.kb.v[4]); });
    for (i64 k = thread(); k < s.kept; k += threads()) put(d + k, scale * s.total<F>(k, 0, s.reduced, 1), acc);
}

__device__ inline void finish(const Sum& s, i64 k, i64 chunk, real sum, real* sums, S* d, int acc) {
    if (sums) sums[chunk * s.kept + k] = sum;
    else put(d + k, sum, acc);
}

template <class F>
__device__ void columns(const Sum& s, real scale, S* d, int acc, real* sums) {
    __shared__ real part[256];
    const int x = threadIdx.x, wide = blockDim.x, high = blockDim.y;
    const i64 k = (i64)blockIdx.x * wide + x, first = blockIdx.y * s.chunk;
    const i64 last = first + s.chunk < s.reduced ? first + s.chunk : s.reduced;
    real sum = 0;
    if (k < s.kept) sum = s.total<F>(k, first + threadIdx.y, last, high);
    part[threadIdx.y * wide + x] = sum;
    __syncthreads();
    if (threadIdx.y == 0 && k < s.kept) {
        for (int i = 1; i < high; i++) sum += part[i * wide + x];
        finish(s, k, blockIdx.y, scale * sum, sums, d, acc);
    }
}

template <class F>
__device__ void rows(const Sum& s, real scale, S* d, int acc, real* sums) {
    const int lane = threadIdx.x % 32;
    const i64 chunks = (s.reduced + s.chunk - 1) / s.chunk;
    for (i64 item = thread() / 32; item < s.kept * chunks; item += threads() / 32) {
        const i64 k = divide(item, chunks), c = item - k * chunks, first = c * s.chunk;
        const i64 last = first + s.chunk < s.reduced ? first + s.chunk : s.reduced;
        const real sum = warp_sum(s.total<F>(k, first + lane, last, 32));
        if (lane == 0) finish(s, k, c, scale * sum, sums, d, acc);
    }
}

#define SPACE Ints<5> kn, Ints<5> ky, Ints<5> ka, Ints<5> kb, Ints<5> rn, Ints<5> ry, Ints<5> ra, Ints<5> rb
#define GRADIENT(NAME, TILING) \
    KERNEL(NAME##_##TILING)(const S* g, const S* a, const S* b, int second, real scale, S* d, int acc, \
                                               real* sums, i64 kept, i64 reduced, i64 chunk, SPACE) { \
        const Sum s = {g, a, b, second, kept, reduced, chunk, kn, ky, ka, kb, rn, ry, ra, rb}; \
        TILING<NAME##_>(s, scale, d, acc, sums); \
    }
#define GRADIENTS(NAME) GRADIENT(NAME, serial) GRADIENT(NAME, columns) GRADIENT(NAME, rows)
#define BINARY(NAME) \
    KERNEL(NAME##_forward)(const S* a, const S* b, S* y, i64 size, int flat, Ints<5> n, Ints<5> sa, \
                                              Ints<5> sb) { \
        forward<NAME##_>(a, b, y, size, flat, n, sa, sb); \
    } \
    GRADIENTS(NAME)

BINARY(add)
BINARY(sub)
BINARY(mul)
BINARY(div)

// SumAxis: Σ of g itself.
typedef add_ sum_;
GRADIENTS(sum)

// y = mul x + add, or y += … ; reads and writes each element once.
KERNEL(affine)(const S* x, S* y, real mul, real add, int acc, i64 n) {
    map(y, acc, n, [&](i64 i) { return mul * ld(x + i) + add; });
}

// d[o, i, j] (+)= scale g[o, j] over [outer, n, inner]: the gradient of a sum over the middle axis.
KERNEL(repeat)(const S* g, S* d, int acc, real scale, i64 size, i64 n, i64 inner) {
    map(d, acc, size, [&](i64 i) {
        const i64 row = divide(i, inner), outer = divide(row, n);
        return scale * ld(g + outer * inner + (i - row * inner));
    });
}
