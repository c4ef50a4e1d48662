// h_t = a_t h_{t-1} + b_t for every channel, and its gradient, in the three phases of scan.rs.
//
// Tiling: a sequence is cut into pieces of `steps` steps; a thread has one channel of one piece, so that neighbours
// touch neighbouring addresses, and reads U steps while it computes those before. Where batch times channels fill the
// device there is one piece: forward then moves 3 numbers an element (a, b; h) and 2 operations, backward 5 (a, h, dh;
// da, db) and 3. With pieces, phase 1 reads two of them once more.

constexpr int U = 8;

// --- Forward ---

// Phase 1: the map of a piece as (product of a, end from zero), [B, pieces, D].
extern "C" __global__ void scan_total(const S* a, const S* b, real* prod, real* end, i64 n, i64 pieces, i64 t, i64 d,
                                      i64 steps) {
    const Piece p(n, pieces, t, d, steps);
    if (!p.some) return;
    const i64 first = p.b * t * d + p.c;
    Ahead<U> as, bs;
    const auto read = [&](i64 s) {
        as.read(a + first + s * d, d, p.t1 - s);
        bs.read(b + first + s * d, d, p.t1 - s);
    };
    real product = 1.0, h = 0.0;
    read(p.t0);
    for (i64 s = p.t0; s < p.t1; s += U) {
        real av[U], bv[U];
        as.get(av);
        bs.get(bv);
        read(s + U);
        const int rows = Ahead<U>::rows(p.t1 - s);
#pragma unroll
        for (int u = 0; u < U; u++)
            if (u < rows) {
                product *= av[u];
                h = av[u] * h + bv[u];
            }
    }
    prod[p.row * d + p.c] = product;
    end[p.row * d + p.c] = h;
}

// Phase 2, for every scan whose maps are h -> prod h + end: the ends of pieces that start from zero become their true
// starts. `first` (zeros if null) [B, D] starts the first piece, or, if `back`, the last. A thread has a channel of a
// sequence.
extern "C" __global__ void scan_carry(const S* first, const real* prod, real* ends, i64 n, i64 pieces, i64 d,
                                      int back) {
    const i64 i = thread();
    if (i >= n * d) return;
    const i64 begin = i / d * pieces * d + i % d;
    real h = first ? ld(first + i) : real(0.0);
    for (i64 k = 0; k < pieces; k += U) {
        real pv[U], ev[U];
#pragma unroll
        for (int u = 0; u < U; u++) {
            const i64 at = begin + (back ? pieces - 1 - k - u : k + u) * d;
            const bool in = k + u < pieces;
            pv[u] = in ? prod[at] : real(0.0);
            ev[u] = in ? ends[at] : real(0.0);
        }
#pragma unroll
        for (int u = 0; u < U; u++) {
            const i64 at = begin + (back ? pieces - 1 - k - u : k + u) * d;
            if (k + u < pieces) {
                ends[at] = h;
                h = pv[u] * h + ev[u];
            }
        }
    }
}

// Phase 3: the recurrence from `starts`, or from h0 where there is one piece and `starts` is null.
extern "C" __global__ void scan_run(const S* a, const S* b, const S* h0, const real* starts, S* hs, S* last, i64 n,
                                    i64 pieces, i64 t, i64 d, i64 steps) {
    const Piece p(n, pieces, t, d, steps);
    if (!p.some) return;
    const i64 first = p.b * t * d + p.c;
    real h = starts ? starts[p.row * d + p.c] : ld(h0 + p.b * d + p.c);
    Ahead<U> as, bs;
    const auto read = [&](i64 s) {
        as.read(a + first + s * d, d, p.t1 - s);
        bs.read(b + first + s * d, d, p.t1 - s);
    };
    read(p.t0);
    for (i64 s = p.t0; s < p.t1; s += U) {
        real av[U], bv[U];
        as.get(av);
        bs.get(bv);
        read(s + U);
        const int rows = Ahead<U>::rows(p.t1 - s);
        S* to = hs + first + s * d;
#pragma unroll
        for (int u = 0; u < U; u++, to += d)
            if (u < rows) {
                h = av[u] * h + bv[u];
                st(to, h);
            }
    }
    if (p.k == pieces - 1) st(last + p.b * d + p.c, h);
}

// --- Backward ---

// Phase 1: G at a piece's first step as a map of G from behind it. No dh is zeros.
extern "C" __global__ void scan_total_back(const S* a, const S* dh, real* prod, real* end, i64 n, i64 pieces, i64 t,
                                           i64 d, i64 steps) {
    const Piece p(n, pieces, t, d, steps);
    if (!p.some) return;
    const i64 first = p.b * t * d + p.c;
    Ahead<U> as, gs;
    const auto read = [&](i64 s) {
        const i64 rows = s - p.t0 + 1;
        as.read(a + first + s * d, -d, rows);
        gs.read(dh + first + s * d, -d, dh ? rows : 0);
    };
    real product = 1.0, g = 0.0;
    read(p.t1 - 1);
    for (i64 s = p.t1 - 1; s >= p.t0; s -= U) {
        real av[U], gv[U];
        as.get(av);
        gs.get(gv);
        read(s - U);
        const int rows = Ahead<U>::rows(s - p.t0 + 1);
#pragma unroll
        for (int u = 0; u < U; u++)
            if (u < rows) {
                product *= av[u];
                g = av[u] * (g + gv[u]);
            }
    }
    prod[p.row * d + p.c] = product;
    end[p.row * d + p.c] = g;
}

// Phase 3: g_t = dh_t + G_{t+1}; db_t = g_t; da_t = g_t h_{t-1}; G_t = a_t g_t; dh0 = G_1.
extern "C" __global__ void scan_run_back(const S* a, const S* hs, const S* h0, const S* dh, const S* dlast,
                                         const real* ends, S* da, int acc_a, S* db, int acc_b, S* dh0, int acc_0,
                                         i64 n, i64 pieces, i64 t, i64 d, i64 steps) {
    const Piece p(n, pieces, t, d, steps);
    if (!p.some) return;
    const i64 first = p.b * t * d + p.c;
    real g = ends ? ends[p.row * d + p.c] : dlast ? ld(dlast + p.b * d + p.c) : real(0.0);
    const real start = p.k == 0 ? ld(h0 + p.b * d + p.c) : real(0.0);
    Ahead<U> as, gs, before; // h of the steps before
    const auto read = [&](i64 s) {
        const i64 rows = s - p.t0 + 1;
        as.read(a + first + s * d, -d, rows);
        gs.read(dh + first + s * d, -d, dh ? rows : 0);
        before.read(hs + first + (s - 1) * d, -d, rows < s ? rows : s);
    };
    read(p.t1 - 1);
    for (i64 s = p.t1 - 1; s >= p.t0; s -= U) {
        real av[U], gv[U], hv[U];
        as.get(av);
        gs.get(gv);
        before.get(hv);
        read(s - U);
        const int rows = Ahead<U>::rows(s - p.t0 + 1);
        i64 at = first + s * d;
#pragma unroll
        for (int u = 0; u < U; u++, at -= d)
            if (u < rows) {
                g += gv[u];
                if (da) put(da + at, g * (s > u ? hv[u] : start), acc_a);
                if (db) put(db + at, g, acc_b);
                g *= av[u];
            }
    }
    if (dh0 && p.k == 0) put(dh0 + p.b * d + p.c, g, acc_0);
}
