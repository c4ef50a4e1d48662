#line 2 "src/kernels/scan.cu"
// h_t = a_t h_{t-1} + b_t for every channel, and its gradient, with the groups and slices of groups.cuh. Forward moves 3
// numbers an element (a, b; h), backward 5 (a, h, dh; da, db).

constexpr int U = 8;

BOUND_KERNEL(scan_run, 256)(
    const S* a, const S* b, const S* h0, S* hs, S* last, i64 n, i64 t, i64 d) {
    const Place p(n, d);
    const i64 first = p.b * t * d + p.c, mine = p.slice * U;
    real h = p.some ? ld(h0 + p.i) : real(0.0);
    Ahead<U> as, bs;
    const auto read = [&](i64 s) {
        const i64 rows = p.some ? t - s : 0;
        as.read(a + first + s * d, d, rows);
        bs.read(b + first + s * d, d, rows);
    };
    read(mine);
    for (int group = 0; (i64)group * SLICES * U < t; group++) {
        const i64 s = (i64)group * SLICES * U + mine, rows = p.some ? t - s : 0;
        real av[U], bv[U];
        as.get(av);
        bs.get(bv);
        read(s + SLICES * U);
        real prod = 1.0, end = 0.0;
#pragma unroll
        for (int u = 0; u < U; u++)
            if (u < rows) {
                prod *= av[u];
                end = av[u] * end + bv[u];
            }
        real y = start_of(prod, end, h, p, group);
        S* to = hs + first + s * d;
#pragma unroll
        for (int u = 0; u < U; u++)
            if (u < rows) {
                y = av[u] * y + bv[u];
                st(to + (i64)u * (int)d, y);
            }
    }
    if (p.some && p.slice == 0) st(last + p.i, h);
}

// From the last step to the first: g_t = dh_t + G_{t+1}; db_t = g_t; da_t = g_t h_{t-1}; G_t = a_t g_t; dh0 = G_1. No dh is
// zeros.
BOUND_KERNEL(scan_run_back, 256)(
    const S* a, const S* hs, const S* h0, const S* dh, const S* dlast, S* da, int acc_a, S* db, int acc_b, S* dh0, int
    acc_0, i64 n, i64 t, i64 d) {
    const Place p(n, d);
    const i64 first = p.b * t * d + p.c;
    real g = dlast && p.some ? ld(dlast + p.i) : real(0.0);
    const real start = p.some ? ld(h0 + p.i) : real(0.0);
    Ahead<U> as, gs, before; // h of the steps before
    const auto read = [&](i64 s) {
        const i64 rows = p.some ? s + 1 : 0;
        as.read(a + first + s * d, -d, rows);
        gs.read(dh + first + s * d, -d, dh ? rows : 0);
        before.read(hs + first + (s - 1) * d, -d, rows - 1);
    };
    read(t - 1 - p.slice * U);
    for (int group = 0; (i64)group * SLICES * U < t; group++) {
        const i64 s = t - 1 - p.slice * U - (i64)group * SLICES * U, rows = p.some ? s + 1 : 0;
        real av[U], gv[U], hv[U];
        as.get(av);
        gs.get(gv);
        before.get(hv);
        read(s - SLICES * U);
        real prod = 1.0, end = 0.0;
#pragma unroll
        for (int u = 0; u < U; u++)
            if (u < rows) {
                prod *= av[u];
                end = av[u] * (end + gv[u]);
            }
        real back = start_of(prod, end, g, p, group);
        const i64 at = first + s * d;
#pragma unroll
        for (int u = 0; u < U; u++)
            if (u < rows) {
                back += gv[u];
                const i64 to = at - (i64)u * (int)d;
                if (da) put(da + to, back * (s > u ? hv[u] : start), acc_a);
                if (db) put(db + to, back, acc_b);
                back *= av[u];
            }
    }
    if (dh0 && p.some && p.slice == 0) put(dh0 + p.i, g, acc_0);
}
