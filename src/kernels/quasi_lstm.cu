#line 2 "src/kernels/quasi_lstm.cu"
// c_t = f c_{t-1} + i z, h_t = o tanh c_t, for gates f, i, z, o from x [B, T, 4D], and its gradient, with the groups and
// slices of groups.cuh. The gates are not stored: computing them again costs less than moving them. Forward moves 6 numbers a
// channel and step (x; c, h), backward 10 (x, c, dh; dx), 14 where dx is added to.

constexpr int U = 8, BACK = 4; // steps of a slice, and of one backwards: with 8 a processor has room for one block

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

BOUND_KERNEL(quasi_run, 256)(
    const S* x, const S* c0, S* cs, S* hs, S* last, i64 n, i64 t, i64 d, real bias) {
    const Place p(n, d);
    const S* first = x + p.b * t * 4 * d + p.c;
    const i64 out = p.b * t * d + p.c, mine = p.slice * U;
    real c = p.some ? ld(c0 + p.i) : real(0.0);
    Ahead<U> gates[4];
    const auto read = [&](i64 s) {
#pragma unroll
        for (int g = 0; g < 4; g++) gates[g].read(first + (4 * s + g) * d, 4 * d, p.some ? t - s : 0);
    };
    read(mine);
    for (int group = 0; (i64)group * SLICES * U < t; group++) {
        const i64 s = (i64)group * SLICES * U + mine, rows = p.some ? t - s : 0;
        real v[4][U];
#pragma unroll
        for (int g = 0; g < 4; g++) gates[g].get(v[g]);
        read(s + SLICES * U);
        real prod = 1.0, end = 0.0, forget[U], add[U];
#pragma unroll
        for (int u = 0; u < U; u++)
            if (u < rows) {
                forget[u] = gate(v[0][u] + bias);
                add[u] = gate(v[1][u]) * tanh(v[2][u]);
                prod *= forget[u];
                end = forget[u] * end + add[u];
            }
        real y = start_of(prod, end, c, p, group);
        const i64 to = out + s * d;
#pragma unroll
        for (int u = 0; u < U; u++)
            if (u < rows) {
                y = forget[u] * y + add[u];
                st(cs + to + (i64)u * (int)d, y);
                st(hs + to + (i64)u * (int)d, gate(v[3][u]) * tanh(y));
            }
    }
    if (p.some && p.slice == 0) st(last + p.i, c);
}

// From the last step to the first, with the formulas of quasi_lstm.rs. No dh is zeros.
BOUND_KERNEL(quasi_run_back, 256)(
    const S* x, const S* cs, const S* c0, const S* dh, const S* dlast, S* dx, int acc, S* dc0, int acc_0, i64 n, i64 t,
    i64 d, real bias) {
    const Place p(n, d);
    const i64 at = p.b * t * d + p.c, at4 = p.b * t * 4 * d + p.c;
    real carry = dlast && p.some ? ld(dlast + p.i) : real(0.0);
    const real start = p.some ? ld(c0 + p.i) : real(0.0);
    Ahead<BACK> gates[4], cells, before, gs; // before: c of the steps before
    const auto read = [&](i64 s) {
        const i64 rows = p.some ? s + 1 : 0;
#pragma unroll
        for (int g = 0; g < 4; g++) gates[g].read(x + at4 + (4 * s + g) * d, -4 * d, rows);
        cells.read(cs + at + s * d, -d, rows);
        before.read(cs + at + (s - 1) * d, -d, rows - 1);
        gs.read(dh + at + s * d, -d, dh ? rows : 0);
    };
    read(t - 1 - p.slice * BACK);
    for (int group = 0; (i64)group * SLICES * BACK < t; group++) {
        const i64 s = t - 1 - p.slice * BACK - (i64)group * SLICES * BACK, rows = p.some ? s + 1 : 0;
        real v[4][BACK], cv[BACK], bv[BACK], gv[BACK];
#pragma unroll
        for (int g = 0; g < 4; g++) gates[g].get(v[g]);
        cells.get(cv);
        before.get(bv);
        gs.get(gv);
        read(s - SLICES * BACK);
        S* const to = dx + at4 + 4 * s * d;
        // The terms of dc, and the slopes by which it goes to the gates; that of o needs no dc.
        real prod = 1.0, end = 0.0, forget[BACK], own[BACK], to_f[BACK], to_i[BACK], to_z[BACK];
#pragma unroll
        for (int u = 0; u < BACK; u++)
            if (u < rows) {
                // The distances of gates from 1 are computed apart: as differences they would have no digits.
                const Kept f = gate_and_rest(v[0][u] + bias), i = gate_and_rest(v[1][u]), o = gate_and_rest(v[3][u]);
                const Kept z = tanh_and_slope(v[2][u]), y = tanh_and_slope(cv[u]);
                forget[u] = f.value;
                own[u] = gv[u] * o.value * y.rest;
                to_f[u] = (s > u ? bv[u] : start) * f.value * f.rest;
                to_i[u] = z.value * i.value * i.rest;
                to_z[u] = i.value * z.rest;
                if (dx) put(to + 3 * d - (i64)u * (int)(4 * d), gv[u] * y.value * o.value * o.rest, acc);
                prod *= forget[u];
                end = forget[u] * (end + own[u]);
            }
        real back = start_of(prod, end, carry, p, group);
#pragma unroll
        for (int u = 0; u < BACK; u++)
            if (u < rows) {
                const real dc = back + own[u];
                if (dx) {
                    S* const row = to - (i64)u * (int)(4 * d);
                    put(row, dc * to_f[u], acc);
                    put(row + d, dc * to_i[u], acc);
                    put(row + 2 * d, dc * to_z[u], acc);
                }
                back = forget[u] * dc;
            }
    }
    if (dc0 && p.some && p.slice == 0) put(dc0 + p.i, carry, acc_0);
}
