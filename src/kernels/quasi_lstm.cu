// c_t = f c_{t-1} + i z, h_t = o tanh c_t, for gates f, i, z, o from x [B, T, 4D], and its gradient, in the phases of
// scan.cu, of which phase 2 is used as it is. The gates are not stored: what they cost again is less than what they
// would move.
//
// Tiling: as scan.cu. With one piece forward moves 6 numbers a channel and step (x; c, h), backward 10 (x, c, dh; dx),
// 14 where dx is added to; with pieces, phase 1 reads 3 of them, backward 4, once more.

constexpr int U = 4;

// Phase 1: the map of a piece as (product of f, end from zero), [B, pieces, D].
extern "C" __global__ void quasi_total(const S* x, real* prod, real* end, i64 n, i64 pieces, i64 t, i64 d, i64 steps,
                                       real bias) {
    const Piece p(n, pieces, t, d, steps);
    if (!p.some) return;
    const S* first = x + p.b * t * 4 * d + p.c;
    real product = 1.0, c = 0.0;
    for (i64 s = p.t0; s < p.t1; s += U) {
        real v[U][3];
#pragma unroll
        for (int u = 0; u < U; u++)
#pragma unroll
            for (int g = 0; g < 3; g++) v[u][g] = s + u < p.t1 ? ld(first + (4 * (s + u) + g) * d) : real(0.0);
#pragma unroll
        for (int u = 0; u < U; u++)
            if (s + u < p.t1) {
                const real f = sigmoid(v[u][0] + bias);
                product *= f;
                c = f * c + sigmoid(v[u][1]) * tanh(v[u][2]);
            }
    }
    prod[p.row * d + p.c] = product;
    end[p.row * d + p.c] = c;
}

// Phase 3: c and h from `starts`, or from c0 where there is one piece and they are null.
extern "C" __global__ void quasi_run(const S* x, const S* c0, const real* starts, S* cs, S* hs, S* last, i64 n,
                                     i64 pieces, i64 t, i64 d, i64 steps, real bias) {
    const Piece p(n, pieces, t, d, steps);
    if (!p.some) return;
    const S* first = x + p.b * t * 4 * d + p.c;
    const i64 out = p.b * t * d + p.c;
    real c = starts ? starts[p.row * d + p.c] : ld(c0 + p.b * d + p.c);
    for (i64 s = p.t0; s < p.t1; s += U) {
        real v[U][4];
#pragma unroll
        for (int u = 0; u < U; u++)
#pragma unroll
            for (int g = 0; g < 4; g++) v[u][g] = s + u < p.t1 ? ld(first + (4 * (s + u) + g) * d) : real(0.0);
#pragma unroll
        for (int u = 0; u < U; u++)
            if (s + u < p.t1) {
                c = sigmoid(v[u][0] + bias) * c + sigmoid(v[u][1]) * tanh(v[u][2]);
                st(cs + out + (s + u) * d, c);
                st(hs + out + (s + u) * d, sigmoid(v[u][3]) * tanh(c));
            }
    }
    if (p.k == pieces - 1) st(last + p.b * d + p.c, c);
}

// Phase 1 backwards: G at a piece's first step as a map of G from behind it. No dh is zeros.
extern "C" __global__ void quasi_total_back(const S* x, const S* cs, const S* dh, real* prod, real* end, i64 n,
                                            i64 pieces, i64 t, i64 d, i64 steps, real bias) {
    const Piece p(n, pieces, t, d, steps);
    if (!p.some) return;
    const S* first = x + p.b * t * 4 * d + p.c;
    const i64 at = p.b * t * d + p.c;
    real product = 1.0, back = 0.0;
    for (i64 s = p.t1 - 1; s >= p.t0; s -= U) {
        real f[U], o[U], c[U], g[U];
#pragma unroll
        for (int u = 0; u < U; u++) {
            const i64 i = s - u;
            const bool in = i >= p.t0;
            f[u] = in ? ld(first + 4 * i * d) : real(0.0);
            o[u] = in ? ld(first + (4 * i + 3) * d) : real(0.0);
            c[u] = in ? ld(cs + at + i * d) : real(0.0);
            g[u] = in && dh ? ld(dh + at + i * d) : real(0.0);
        }
#pragma unroll
        for (int u = 0; u < U; u++)
            if (s - u >= p.t0) {
                const real forget = sigmoid(f[u] + bias);
                product *= forget;
                back = forget * (back + g[u] * sigmoid(o[u]) * tanh_slope(c[u]));
            }
    }
    prod[p.row * d + p.c] = product;
    end[p.row * d + p.c] = back;
}

// Phase 3 backwards, with the formulas of quasi_lstm.rs.
extern "C" __global__ void quasi_run_back(const S* x, const S* cs, const S* c0, const S* dh, const S* dlast,
                                          const real* ends, S* dx, int acc, S* dc0, int acc_0, i64 n, i64 pieces,
                                          i64 t, i64 d, i64 steps, real bias) {
    const Piece p(n, pieces, t, d, steps);
    if (!p.some) return;
    const i64 at = p.b * t * d + p.c, at4 = p.b * t * 4 * d + p.c, state = p.b * d + p.c;
    real back = ends ? ends[p.row * d + p.c] : dlast ? ld(dlast + state) : real(0.0);
    for (i64 s = p.t1 - 1; s >= p.t0; s -= U) {
        real v[U][4], cv[U], before[U], gv[U];
#pragma unroll
        for (int u = 0; u < U; u++) {
            const i64 i = s - u;
            const bool in = i >= p.t0;
#pragma unroll
            for (int g = 0; g < 4; g++) v[u][g] = in ? ld(x + at4 + (4 * i + g) * d) : real(0.0);
            cv[u] = in ? ld(cs + at + i * d) : real(0.0);
            before[u] = !in ? real(0.0) : i > 0 ? ld(cs + at + (i - 1) * d) : ld(c0 + state);
            gv[u] = in && dh ? ld(dh + at + i * d) : real(0.0);
        }
#pragma unroll
        for (int u = 0; u < U; u++)
            if (s - u >= p.t0) {
                // What they lack of 1 has no digits in a difference.
                const Kept f = kept_sigmoid(keep_sigmoid(v[u][0] + bias)), i = kept_sigmoid(keep_sigmoid(v[u][1]));
                const Kept z = kept_tanh(keep_tanh(v[u][2])), o = kept_sigmoid(keep_sigmoid(v[u][3]));
                const Kept y = kept_tanh(keep_tanh(cv[u]));
                const real dc = back + gv[u] * o.value * y.rest;
                if (dx) {
                    S* to = dx + at4 + 4 * (s - u) * d;
                    put(to, dc * before[u] * f.value * f.rest, acc);
                    put(to + d, dc * z.value * i.value * i.rest, acc);
                    put(to + 2 * d, dc * i.value * z.rest, acc);
                    put(to + 3 * d, gv[u] * y.value * o.value * o.rest, acc);
                }
                back = f.value * dc;
            }
    }
    if (dc0 && p.k == 0) put(dc0 + state, back, acc_0);
}
