// c_t = f c_{t-1} + i z, h_t = o tanh c_t, for gates f, i, z, o from x [B, T, 4D], and its gradient, in the phases of
// scan.cu, of which phase 2 is used as it is. The gates are not stored: computing them again costs less than moving
// them.
//
// Tiling: as scan.cu. With one piece forward moves 6 numbers a channel and step (x; c, h), backward 10 (x, c, dh; dx),
// 14 where dx is added to; with pieces, phase 1 reads 3 of them, backward 4, once more.

constexpr int U = 4;

// As sigmoid, kept_sigmoid and tanh_slope of prelude.cuh, in few instructions: they are what these kernels do most.
__device__ inline real gate(real x) { return quick_reciprocal(1.0 + quick_exp2(-LOG2_E * x)); }
__device__ inline Kept gate_and_rest(real x) {
    const real u = quick_exp2(-LOG2_E * fabs(x)), large = quick_reciprocal(1.0 + u), small = u * large;
    return x < 0.0 ? Kept{small, large} : Kept{large, small};
}
__device__ inline Kept tanh_and_slope(real x) {
    const real u = quick_exp2(-2 * LOG2_E * fabs(x)), s = quick_reciprocal(1.0 + u);
    return {tanh(x), 4 * u * s * s};
}

// Phase 1: the map of a piece as (product of f, end from zero), [B, pieces, D].
extern "C" __global__ void quasi_total(const S* x, real* prod, real* end, i64 n, i64 pieces, i64 t, i64 d, i64 steps,
                                       real bias) {
    const Piece p(n, pieces, t, d, steps);
    if (!p.some) return;
    const S* first = x + p.b * t * 4 * d + p.c;
    Ahead<U> fs, is, zs;
    const auto read = [&](i64 s) {
        const S* at = first + s * 4 * d;
        fs.read(at, 4 * d, p.t1 - s);
        is.read(at + d, 4 * d, p.t1 - s);
        zs.read(at + 2 * d, 4 * d, p.t1 - s);
    };
    real product = 1.0, c = 0.0;
    read(p.t0);
    for (i64 s = p.t0; s < p.t1; s += U) {
        real f[U], i[U], z[U];
        fs.get(f);
        is.get(i);
        zs.get(z);
        read(s + U);
        const int rows = Ahead<U>::rows(p.t1 - s);
#pragma unroll
        for (int u = 0; u < U; u++)
            if (u < rows) {
                const real forget = gate(f[u] + bias);
                product *= forget;
                c = forget * c + gate(i[u]) * tanh(z[u]);
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
    Ahead<U> gates[4];
    const auto read = [&](i64 s) {
#pragma unroll
        for (int g = 0; g < 4; g++) gates[g].read(first + (4 * s + g) * d, 4 * d, p.t1 - s);
    };
    read(p.t0);
    for (i64 s = p.t0; s < p.t1; s += U) {
        real v[4][U];
#pragma unroll
        for (int g = 0; g < 4; g++) gates[g].get(v[g]);
        read(s + U);
        const int rows = Ahead<U>::rows(p.t1 - s);
#pragma unroll
        for (int u = 0; u < U; u++)
            if (u < rows) {
                c = gate(v[0][u] + bias) * c + gate(v[1][u]) * tanh(v[2][u]);
                st(cs + out + (s + u) * d, c);
                st(hs + out + (s + u) * d, gate(v[3][u]) * tanh(c));
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
    Ahead<U> fs, os, cells, gs;
    const auto read = [&](i64 s) {
        const i64 rows = s - p.t0 + 1;
        fs.read(first + 4 * s * d, -4 * d, rows);
        os.read(first + (4 * s + 3) * d, -4 * d, rows);
        cells.read(cs + at + s * d, -d, rows);
        gs.read(dh + at + s * d, -d, dh ? rows : 0);
    };
    real product = 1.0, back = 0.0;
    read(p.t1 - 1);
    for (i64 s = p.t1 - 1; s >= p.t0; s -= U) {
        real f[U], o[U], c[U], g[U];
        fs.get(f);
        os.get(o);
        cells.get(c);
        gs.get(g);
        read(s - U);
        const int rows = Ahead<U>::rows(s - p.t0 + 1);
#pragma unroll
        for (int u = 0; u < U; u++)
            if (u < rows) {
                const real forget = gate(f[u] + bias);
                product *= forget;
                back = forget * (back + g[u] * gate(o[u]) * tanh_and_slope(c[u]).rest);
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
    const real start = p.k == 0 ? ld(c0 + state) : real(0.0);
    Ahead<U> gates[4], cells, before, gs; // before: c of the steps before
    const auto read = [&](i64 s) {
        const i64 rows = s - p.t0 + 1;
#pragma unroll
        for (int g = 0; g < 4; g++) gates[g].read(x + at4 + (4 * s + g) * d, -4 * d, rows);
        cells.read(cs + at + s * d, -d, rows);
        before.read(cs + at + (s - 1) * d, -d, rows < s ? rows : s);
        gs.read(dh + at + s * d, -d, dh ? rows : 0);
    };
    read(p.t1 - 1);
    for (i64 s = p.t1 - 1; s >= p.t0; s -= U) {
        real v[4][U], cv[U], bv[U], gv[U];
#pragma unroll
        for (int g = 0; g < 4; g++) gates[g].get(v[g]);
        cells.get(cv);
        before.get(bv);
        gs.get(gv);
        read(s - U);
        const int rows = Ahead<U>::rows(s - p.t0 + 1);
#pragma unroll
        for (int u = 0; u < U; u++)
            if (u < rows) {
                // The distances of gates from 1 are computed apart: as differences they would have no digits.
                const Kept f = gate_and_rest(v[0][u] + bias), i = gate_and_rest(v[1][u]), o = gate_and_rest(v[3][u]);
                const Kept z = tanh_and_slope(v[2][u]), y = tanh_and_slope(cv[u]);
                const real dc = back + gv[u] * o.value * y.rest;
                if (dx) {
                    S* to = dx + at4 + 4 * (s - u) * d;
                    put(to, dc * (s > u ? bv[u] : start) * f.value * f.rest, acc);
                    put(to + d, dc * z.value * i.value * i.rest, acc);
                    put(to + 2 * d, dc * i.value * z.rest, acc);
                    put(to + 3 * d, gv[u] * y.value * o.value * o.rest, acc);
                }
                back = f.value * dc;
            }
    }
    if (dc0 && p.k == 0) put(dc0 + state, back, acc_0);
}
