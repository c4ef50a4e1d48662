#line 2 "src/kernels/lru_scan.cu"
// h_t = lambda h_{t-1} + x_t in complex numbers, one lambda a channel, and its gradient, with the groups and slices of
// groups.cuh. The effect of a slice on its start is known beforehand: it multiplies it by lambda to the number of its steps, a
// power that is taken in double precision; lambda is a float even beside bf16. A row of x, h and their gradients has 2 d
// numbers, the imaginary parts behind the real ones.
//
// Forward moves 4 numbers a complex element (x; h), backward 6 (h, dh; dx). The gradient of lambda is summed in registers
// over a slice of every group and written once, [B SLICES, D]; the sum over those is linear.cu's.

constexpr int U = 8;

struct C { real re, im; };

template <class P>
__device__ inline C ld(const P* re, const P* im, i64 i) { return {ld(re + i), ld(im + i)}; }
// A group of rows of both parts, `by` apart, read ahead.
struct Rows {
    Ahead<U> re, im;
    __device__ void read(const S* x, i64 d, int by, i64 rows) {
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

// The start of this slice and, in `carry`, the state behind the group, as start_of. `whole`: lambda to the number of a
// slice's steps; `rest`: of the last one's that has any. `rows`: steps of the group.
__device__ inline C start_of(C end, C& carry, C whole, C rest, i64 rows, const Place& p, int group) {
    __shared__ real ends[2][SLICES][2][CHANNELS];
    auto& of = ends[group % 2];
    of[p.slice][0][p.lane] = end.re;
    of[p.slice][1][p.lane] = end.im;
    __syncthreads();
    C start = carry;
#pragma unroll
    for (int k = 0; k < SLICES; k++) {
        if (k == p.slice) start = carry;
        if (k * U < rows) {
            const C e = {of[k][0][p.lane], of[k][1][p.lane]};
            carry = muladd((k + 1) * U <= rows ? whole : rest, carry, e);
        }
    }
    return start;
}

BOUND_KERNEL(lru_run, 256)(
    const real* lr, const real* li, const S* x, const S* h0r, const S* h0i, S* hs, S* last_r, S* last_i, i64 n, i64 t,
    i64 d) {
    const Place p(n, d);
    const i64 first = p.b * t * 2 * d + p.c, mine = p.slice * U;
    const int by = 2 * d;
    C lambda = {0, 0}, h = {0, 0};
    if (p.some) {
        lambda = ld(lr, li, p.c);
        h = ld(h0r, h0i, p.i);
    }
    const C whole = power(lambda, U), rest = power(lambda, t % U);
    Rows ahead;
    const auto read = [&](i64 s) { ahead.read(x + first + s * by, d, by, p.some ? t - s : 0); };
    read(mine);
    for (int group = 0; (i64)group * SLICES * U < t; group++) {
        const i64 s = (i64)group * SLICES * U + mine, rows = p.some ? t - s : 0;
        C v[U], end = {0, 0};
        ahead.get(v);
        read(s + SLICES * U);
#pragma unroll
        for (int u = 0; u < U; u++)
            if (u < rows) end = muladd(lambda, end, v[u]);
        C y = start_of(end, h, whole, rest, t - (i64)group * SLICES * U, p, group);
        S* to = hs + first + s * by;
#pragma unroll
        for (int u = 0; u < U; u++)
            if (u < rows) {
                y = muladd(lambda, y, v[u]);
                st(to + (i64)u * by, y.re);
                st(to + (i64)u * by + d, y.im);
            }
    }
    if (p.some && p.slice == 0) {
        st(last_r + p.i, h.re);
        st(last_i + p.i, h.im);
    }
}

// From the last step to the first: g_t = dh_t + G_{t+1}; dx_t = g_t; dlambda += g_t conj(h_{t-1}); G_t = conj(lambda) g_t;
// dh0 = G_1. No dh is zeros. dlambda [B SLICES, D], twice, is null if nobody wants it.
BOUND_KERNEL(lru_run_back, 256)(
    const real* lr, const real* li, const S* h, const S* h0r, const S* h0i, const S* dh, const S* dlr, const S* dli, S*
    dx, int acc, S* d0r, int acc_0r, S* d0i, int acc_0i, real* dlambda, i64 n, i64 t, i64 d) {
    const Place p(n, d);
    const i64 first = p.b * t * 2 * d + p.c;
    const int by = 2 * d;
    C conj = {0, 0}, g = {0, 0}, start = {0, 0}, sum = {0, 0};
    if (p.some) {
        conj = {lr[p.c], -li[p.c]};
        g = {dlr ? ld(dlr + p.i) : real(0.0), dli ? ld(dli + p.i) : real(0.0)};
        start = ld(h0r, h0i, p.i);
    }
    const C whole = power(conj, U), rest = power(conj, t % U);
    Rows gs, before; // before: h of the steps before
    const auto read = [&](i64 s) {
        const i64 rows = p.some ? s + 1 : 0, i = first + s * by;
        gs.read(dh + i, d, -by, dh ? rows : 0);
        before.read(h + i - by, d, -by, rows - 1);
    };
    read(t - 1 - p.slice * U);
    for (int group = 0; (i64)group * SLICES * U < t; group++) {
        const i64 s = t - 1 - p.slice * U - (i64)group * SLICES * U, rows = p.some ? s + 1 : 0;
        C gv[U], hv[U], end = {0, 0};
        gs.get(gv);
        before.get(hv);
        read(s - SLICES * U);
#pragma unroll
        for (int u = 0; u < U; u++)
            if (u < rows) end = muladd(conj, {end.re + gv[u].re, end.im + gv[u].im}, {0, 0});
        C back = start_of(end, g, whole, rest, t - (i64)group * SLICES * U, p, group);
        const i64 at = first + s * by;
#pragma unroll
        for (int u = 0; u < U; u++)
            if (u < rows) {
                back = {back.re + gv[u].re, back.im + gv[u].im};
                sum = conj_muladd(s > u ? hv[u] : start, back, sum);
                if (dx) {
                    S* to = dx + at - (i64)u * by;
                    put(to, back.re, acc);
                    put(to + d, back.im, acc);
                }
                back = muladd(conj, back, {0, 0});
            }
    }
    if (dlambda && p.some) {
        const i64 at = (p.b * SLICES + p.slice) * d + p.c;
        dlambda[at] = sum.re;
        dlambda[n * SLICES * d + at] = sum.im;
    }
    if (p.some && p.slice == 0) {
        if (d0r) put(d0r + p.i, g.re, acc_0r);
        if (d0i) put(d0i + p.i, g.im, acc_0i);
    }
}
