// h_t = lambda h_{t-1} + x_t in complex numbers, one lambda a channel, and its gradient, in the phases of scan.cu.
// The effect of a piece on its start is known beforehand: it multiplies it by lambda to the number of its steps, a power
// that is taken in double precision; lambda is a float even beside bf16. A row of x, h and their gradients has 2 d
// numbers, the imaginary parts behind the real ones.
//
// Tiling: as scan.cu. With one piece forward moves 4 numbers a complex element (x; h) and 8 operations, backward 6
// (h, dh; dx) and 16; with pieces, phase 1 reads x, or dh, once more. The gradient of lambda is summed in registers
// over a piece and written once, [B pieces, D]; the sum over those is linear.cu's.

constexpr int U = 8;

struct C { real re, im; };

template <class P>
__device__ inline C ld(const P* re, const P* im, i64 i) { return {ld(re + i), ld(im + i)}; }
// A group of rows of both parts, `by` apart, read ahead.
struct Rows {
    Ahead<U> re, im;
    __device__ void read(const S* x, i64 d, i64 by, i64 rows) {
        re.read(x, by, rows);
        im.read(x + d, by, rows);
    }
    __device__ void get(C (&y)[U]) const {
        real a[U], b[U];
        re.get(a);
        im.get(b);
#pragma unroll
        for (int u = 0; u < U; u++) y[u] = {a[u], b[u]};
    }
};
// x y + z and conj(x) y + z
__device__ inline C muladd(C x, C y, C z) { return {x.re * y.re - x.im * y.im + z.re, x.re * y.im + x.im * y.re + z.im}; }
__device__ inline C conj_muladd(C x, C y, C z) { return muladd({x.re, -x.im}, y, z); }

// xⁿ by repeated squaring.
__device__ inline C power(C x, i64 n) {
    double re = 1, im = 0, xr = x.re, xi = x.im;
    for (; n > 0; n >>= 1) {
        if (n & 1) {
            const double r = re * xr - im * xi;
            im = re * xi + im * xr;
            re = r;
        }
        const double r = xr * xr - xi * xi;
        xi = 2 * xr * xi;
        xr = r;
    }
    return {(real)re, (real)im};
}

// Phase 1: the end of a piece that starts from zero, [B, pieces, D]; if `back`, the gradient that its first step passes
// on from dh alone, which may be null for zeros.
template <bool BACK>
__device__ void total(const real* lr, const real* li, const S* x, real* er, real* ei, const Piece& p, i64 t, i64 d) {
    if (!p.some) return;
    const i64 first = p.b * t * 2 * d + p.c;
    C lambda = ld(lr, li, p.c), h = {0, 0};
    if (BACK) lambda.im = -lambda.im;
    const i64 by = BACK ? -2 * d : 2 * d, length = p.t1 - p.t0;
    const S* start = x + first + (BACK ? p.t1 - 1 : p.t0) * 2 * d;
    Rows ahead;
    ahead.read(start, d, by, x ? length : 0);
    for (i64 s = 0; s < length; s += U) {
        C v[U];
        ahead.get(v);
        ahead.read(start + (s + U) * by, d, by, x ? length - s - U : 0);
        const int rows = Ahead<U>::rows(length - s);
#pragma unroll
        for (int u = 0; u < U; u++)
            if (u < rows)
                h = BACK ? muladd(lambda, {h.re + v[u].re, h.im + v[u].im}, {0, 0}) : muladd(lambda, h, v[u]);
    }
    er[p.row * d + p.c] = h.re;
    ei[p.row * d + p.c] = h.im;
}

extern "C" __global__ void lru_total(const real* lr, const real* li, const S* x, real* er, real* ei, i64 n, i64 pieces,
                                     i64 t, i64 d, i64 steps) {
    total<false>(lr, li, x, er, ei, Piece(n, pieces, t, d, steps), t, d);
}

extern "C" __global__ void lru_total_back(const real* lr, const real* li, const S* g, real* er, real* ei, i64 n,
                                          i64 pieces, i64 t, i64 d, i64 steps) {
    total<true>(lr, li, g, er, ei, Piece(n, pieces, t, d, steps), t, d);
}

// Phase 2, as scan_carry: ends become starts. The last piece may be shorter.
extern "C" __global__ void lru_carry(const real* lr, const real* li, const S* fr, const S* fi, real* er, real* ei, i64 n,
                                     i64 pieces, i64 t, i64 d, i64 steps, int back) {
    const i64 i = thread();
    if (i >= n * d) return;
    const i64 begin = i / d * pieces * d + i % d;
    C lambda = ld(lr, li, i % d);
    if (back) lambda.im = -lambda.im;
    const C whole = power(lambda, steps), rest = power(lambda, t - (pieces - 1) * steps);
    C h = {fr ? ld(fr + i) : real(0.0), fi ? ld(fi + i) : real(0.0)};
    for (i64 j = 0; j < pieces; j += U) {
        C ev[U];
#pragma unroll
        for (int u = 0; u < U; u++) {
            const i64 at = begin + (back ? pieces - 1 - j - u : j + u) * d;
            const bool in = j + u < pieces;
            ev[u] = {in ? er[at] : real(0.0), in ? ei[at] : real(0.0)};
        }
#pragma unroll
        for (int u = 0; u < U; u++) {
            const i64 k = back ? pieces - 1 - j - u : j + u;
            if (j + u < pieces) {
                er[begin + k * d] = h.re;
                ei[begin + k * d] = h.im;
                h = muladd(k == pieces - 1 ? rest : whole, h, ev[u]);
            }
        }
    }
}

// Phase 3: the recurrence from `starts`, or from h0 where there is one piece and they are null.
extern "C" __global__ void __launch_bounds__(128, sizeof(real) == 4 ? 4 : 1)
    lru_run(const real* lr, const real* li, const S* x, const S* h0r, const S* h0i, const real* sr, const real* si, S* hs,
            S* last_r, S* last_i, i64 n, i64 pieces, i64 t, i64 d, i64 steps) {
    const Piece p(n, pieces, t, d, steps);
    if (!p.some) return;
    const i64 first = p.b * t * 2 * d + p.c, at = p.row * d + p.c, state = p.b * d + p.c;
    const C lambda = ld(lr, li, p.c);
    C h = ld(h0r, h0i, state);
    if (sr) h = {sr[at], si[at]};
    Rows ahead;
    ahead.read(x + first + p.t0 * 2 * d, d, 2 * d, p.t1 - p.t0);
    for (i64 s = p.t0; s < p.t1; s += U) {
        C v[U];
        ahead.get(v);
        ahead.read(x + first + (s + U) * 2 * d, d, 2 * d, p.t1 - s - U);
        const int rows = Ahead<U>::rows(p.t1 - s);
        S* to = hs + first + s * 2 * d;
#pragma unroll
        for (int u = 0; u < U; u++, to += 2 * d)
            if (u < rows) {
                h = muladd(lambda, h, v[u]);
                st(to, h.re);
                st(to + d, h.im);
            }
    }
    if (p.k == pieces - 1) {
        st(last_r + state, h.re);
        st(last_i + state, h.im);
    }
}

// Phase 3 backwards: g_t = dh_t + G_{t+1}; dx_t = g_t; dlambda += g_t conj(h_{t-1}); G_t = conj(lambda) g_t; dh0 = G_1.
// dlambda [B pieces, D], twice, is null if nobody wants it.
extern "C" __global__ void lru_run_back(const real* lr, const real* li, const S* h, const S* h0r, const S* h0i,
                                        const S* dh, const S* dlr, const S* dli, const real* er, const real* ei, S* dx,
                                        int acc, S* d0r, int acc_0r, S* d0i, int acc_0i, real* dlambda, i64 n,
                                        i64 pieces, i64 t, i64 d, i64 steps) {
    const Piece p(n, pieces, t, d, steps);
    if (!p.some) return;
    const i64 first = p.b * t * 2 * d + p.c, at = p.row * d + p.c, state = p.b * d + p.c;
    const C lambda = ld(lr, li, p.c);
    C g = {dlr ? ld(dlr + state) : real(0.0), dli ? ld(dli + state) : real(0.0)}, sum = {0, 0};
    if (er) g = {er[at], ei[at]};
    const C start = p.k == 0 ? ld(h0r, h0i, state) : C{0, 0};
    Rows gs, before; // before: h of the steps before
    const auto read = [&](i64 s) {
        const i64 rows = s - p.t0 + 1, i = first + s * 2 * d;
        gs.read(dh + i, d, -2 * d, dh ? rows : 0);
        before.read(h + i - 2 * d, d, -2 * d, rows < s ? rows : s);
    };
    read(p.t1 - 1);
    for (i64 s = p.t1 - 1; s >= p.t0; s -= U) {
        C gv[U], hv[U];
        gs.get(gv);
        before.get(hv);
        read(s - U);
        const int rows = Ahead<U>::rows(s - p.t0 + 1);
        i64 i = first + s * 2 * d;
#pragma unroll
        for (int u = 0; u < U; u++, i -= 2 * d)
            if (u < rows) {
                g = {g.re + gv[u].re, g.im + gv[u].im};
                sum = conj_muladd(s > u ? hv[u] : start, g, sum);
                if (dx) {
                    put(dx + i, g.re, acc);
                    put(dx + i + d, g.im, acc);
                }
                g = conj_muladd(lambda, g, {0, 0});
            }
    }
    if (dlambda) {
        dlambda[at] = sum.re;
        dlambda[n * pieces * d + at] = sum.im;
    }
    if (p.k == 0) {
        if (d0r) put(d0r + state, g.re, acc_0r);
        if (d0i) put(d0i + state, g.im, acc_0i);
    }
}
