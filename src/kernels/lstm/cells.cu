#line 2 "src/kernels/lstm/cells.cu"
// The cells of lstm.rs and slstm.rs, forwards and backwards, and the kernels that run them: all steps by a block
// (block.cu) or by blocks that wait for one another (grid.cu), or a step at a time (steps.cu). A cell has 4 sums of
// gates and its state; it moves 5 + 5 numbers a step (LSTM) or 4 + 7, and its operations are few beside those of the
// products.

// --- The LSTM ---

struct Lstm {
    static constexpr int STATES = 1;
    const S *h0, *c0;
    S *h_last, *c_last, *gates, *cs;
    i64 d;
    real s[1];

    __device__ real begin(i64 at) {
        s[0] = ld(c0 + at);
        return ld(h0 + at);
    }
    __device__ real step(const real (&z)[4], i64 row, i64 j) {
        const real i = keep_sigmoid(z[0]), f = keep_sigmoid(z[1]), g = keep_tanh(z[2]), o = keep_sigmoid(z[3]);
        s[0] = kept_sigmoid(f).value * s[0] + kept_sigmoid(i).value * kept_tanh(g).value;
        S* to = gates + row * 4 * d + j;
        st(to, i);
        st(to + d, f);
        st(to + 2 * d, g);
        st(to + 3 * d, o);
        st(cs + row * d + j, s[0]);
        return kept_sigmoid(o).value * tanh(s[0]);
    }
    __device__ void end(i64 at, real h) const {
        st(h_last + at, h);
        st(c_last + at, s[0]);
    }
};

struct LstmBack {
    static constexpr int STATES = 1;
    const S *c0, *gates, *cs, *dh, *dh_last, *dc_last;
    S *dh0, *dc0;
    int acc_h, acc_c;
    i64 d;
    real s[1], v[7]; // dc; i, f, g, o as they are kept, c, c before, dh

    __device__ real begin(i64 at) {
        s[0] = dc_last ? ld(dc_last + at) : real(0.0);
        return dh_last ? ld(dh_last + at) : real(0.0);
    }
    __device__ void fetch(i64 row, i64 j, bool first, i64 at) {
#pragma unroll
        for (int g = 0; g < 4; g++) v[g] = ld(gates + (row * 4 + g) * d + j);
        v[4] = ld(cs + row * d + j);
        v[5] = first ? ld(c0 + at) : ld(cs + (row - 1) * d + j);
        v[6] = dh ? ld(dh + row * d + j) : real(0.0);
    }
    template <class Fetch>
    __device__ void step(real back, real (&out)[4], Fetch fetch) {
        const Kept i = kept_sigmoid(v[0]), f = kept_sigmoid(v[1]), g = kept_tanh(v[2]), o = kept_sigmoid(v[3]);
        const real c = v[4], before = v[5], dh = back + v[6];
        fetch();
        const Kept u = kept_tanh(keep_tanh(c));
        const real dc = s[0] + dh * o.value * u.rest;
        out[0] = dc * g.value * i.value * i.rest;
        out[1] = dc * before * f.value * f.rest;
        out[2] = dc * i.value * g.rest;
        out[3] = dh * u.value * o.value * o.rest;
        s[0] = dc * f.value;
    }
    __device__ void end(i64 at, real dh) const {
        if (dh0) put(dh0 + at, dh, acc_h);
        if (dc0) put(dc0 + at, s[0], acc_c);
    }
};

#define LSTM_ARGS const S *h0, const S *c0, S *h_last, S *c_last, S *gates, S *cs, i64 b, i64 t, i64 d
#define LSTM {h0, c0, h_last, c_last, gates, cs, d, {0}}
#define LSTM_BACK_ARGS                                                                                                \
    const S *c0, const S *gates, const S *cs, const S *dh, const S *dh_last, const S *dc_last, S *dh0, int acc_h,     \
        S *dc0, int acc_c, i64 b, i64 t, i64 d
#define LSTM_BACK {c0, gates, cs, dh, dh_last, dc_last, dh0, dc0, acc_h, acc_c, d, {0}, {0, 0, 0, 0, 0, 0, 0}}

#define LSTM_KERNELS(NAME, N, R, THREADS)                                                                             \
    BOUND_KERNEL(lstm_forward_##NAME, THREADS, 1)(const S* x, const S* w, S* hs, LSTM_ARGS) { \
        forward<N, R>(Lstm LSTM, x, w, {d * d, 0, d, 1}, hs, b, t, 1, d);                                             \
    }                                                                                                                 \
    BOUND_KERNEL(lstm_backward_##NAME, THREADS, 1)(const S* w, S* dz, LSTM_BACK_ARGS) {   \
        backward<N, R>(LstmBack LSTM_BACK, w, {d * d, 0, 1, d}, dz, b, t, 1, d);                                      \
    }

#define LSTM_GRID_KERNELS(NAME)                                                                                       \
    TILED_KERNEL(lstm_forward_##NAME)(const S* x, const S* w, S* hs, u32* counts, i64 first, LSTM_ARGS) {              \
        forward_grid(Lstm LSTM, x, w, {d * d, 0, d, 1}, hs, counts, first, b, t, 1, d);                               \
    }                                                                                                                 \
    TILED_KERNEL(lstm_backward_##NAME)(const S* w, S* dz, u32* counts, i64 first, LSTM_BACK_ARGS) {                    \
        backward_grid(LstmBack LSTM_BACK, w, {d * d, 0, 1, d}, dz, counts, first, b, t, 1, d);                        \
    }

KERNEL(lstm_begin)(real* state, LSTM_ARGS) { begin(Lstm LSTM, state, b * d); }
KERNEL(lstm_step)(const S* x, const S* z, real* state, S* hs, i64 s, LSTM_ARGS) {
    step(Lstm LSTM, x, z, state, hs, s, b, t, d);
}
KERNEL(lstm_step_back)(const S* back, real* state, S* dz, i64 s, i64 last, LSTM_BACK_ARGS) {
    step_back(LstmBack LSTM_BACK, back, state, dz, last ? -1 : s, b, t, d);
}

// --- The sLSTM ---

struct Slstm {
    static constexpr int STATES = 3;
    const S *h0, *c0, *n0, *m0, *w0;
    S *h_last, *c_last, *n_last, *m_last, *saved;
    i64 d;
    real s[3]; // c, n, m

    __device__ real begin(i64 at) {
        s[0] = ld(c0 + at);
        s[1] = ld(n0 + at);
        s[2] = ld(m0 + at) + log(ld(w0 + at));
        return ld(h0 + at);
    }
    __device__ real step(const real (&sum)[4], i64 row, i64 j) {
        const real past = s[2] - softplus(-sum[1]), z = keep_tanh(sum[2]), o = keep_sigmoid(sum[3]);
        const bool wins = past >= sum[0];
        s[2] = wins ? past : sum[0];
        // Nothing was written yet: i and f are 0, and so is h.
        const bool blank = s[2] == -INF;
        const real less = exp((wins ? sum[0] : past) - (blank ? real(0.0) : s[2])), fading = sigmoid(-sum[1]);
        // Its sign bit is what tells who won, if it is 0 too.
        const real slope = wins ? fading : -fading;
        const real i = wins ? less : real(1.0), f = blank ? real(0.0) : wins ? real(1.0) : less;
        s[0] = f * s[0] + i * kept_tanh(z).value;
        s[1] = f * s[1] + i;
        // The sign bit of the smaller gate tells that both were equal.
        const real all[6] = {past == sum[0] ? -less : less, z, o, s[0], s[1], slope};
#pragma unroll
        for (int v = 0; v < 6; v++) st(saved + (row * 6 + v) * d + j, all[v]);
        return kept_sigmoid(o).value * s[0] / (blank ? real(1.0) : s[1]);
    }
    __device__ void end(i64 at, real h) const {
        st(h_last + at, h);
        st(c_last + at, s[0]);
        st(n_last + at, s[1]);
        st(m_last + at, s[2]);
    }
};

struct SlstmBack {
    static constexpr int STATES = 3;
    const S *c0, *n0, *w0, *c_last, *n_last, *saved, *dh, *dh_last, *dc_last, *dn_last, *dm_last;
    S* to[5]; // the gradients of h0, c0, n0, m0, w0
    int acc[5];
    i64 d;
    real s[3], v[9]; // dc, dn, gamma; what is saved, c and n before, dh

    __device__ real begin(i64 at) {
        s[0] = dc_last ? ld(dc_last + at) : real(0.0);
        s[1] = dn_last ? ld(dn_last + at) : real(0.0);
        s[2] = (dm_last ? ld(dm_last + at) : real(0.0)) - (ld(c_last + at) * s[0] + ld(n_last + at) * s[1]);
        return dh_last ? ld(dh_last + at) : real(0.0);
    }
    __device__ void fetch(i64 row, i64 j, bool first, i64 at) {
        const S* from = saved + row * 6 * d + j;
#pragma unroll
        for (int i = 0; i < 6; i++) v[i] = ld(from + i * d);
        v[6] = first ? ld(c0 + at) : ld(from - 3 * d);
        v[7] = first ? ld(n0 + at) : ld(from - 2 * d);
        v[8] = dh ? ld(dh + row * d + j) : real(0.0);
    }
    template <class Fetch>
    __device__ void step(real back, real (&out)[4], Fetch fetch) {
        const Kept z = kept_tanh(v[1]), o = kept_sigmoid(v[2]);
        const real less = fabs(v[0]), c = v[3], n = v[4], slope = v[5];
        const real before_c = v[6], before_n = v[7], dh = back + v[8];
        const bool wins = !signbit(slope), tie = signbit(v[0]), blank = n == 0.0;
        fetch();
        const real by = blank ? real(0.0) : real(1.0) / n, h = o.value * c * by;
        const real dc = s[0] + dh * by * o.value, dn = s[1] - dh * by * h;
        const real past = tie ? real(0.5) * s[2] : wins ? s[2] : real(0.0);
        const real input = tie ? past : wins ? real(0.0) : s[2];
        const real i = wins ? less : real(1.0), f = blank ? real(0.0) : wins ? real(1.0) : less;
        out[0] = i * (z.value * dc + dn) + input;
        out[1] = (f * (before_c * dc + before_n * dn) + past) * fabs(slope);
        out[2] = i * dc * z.rest;
        out[3] = dh * h * o.rest;
        s[0] = f * dc;
        s[1] = f * dn;
        s[2] = past;
    }
    __device__ void end(i64 at, real dh) const {
        const real w = ld(w0 + at), dm = s[2] + ld(c0 + at) * s[0] + ld(n0 + at) * s[1];
        // Before the first token nothing depends on w: c and n are zero.
        const real all[5] = {dh, s[0], s[1], dm, w > 0.0 ? dm / w : real(0.0)};
#pragma unroll
        for (int i = 0; i < 5; i++)
            if (to[i]) put(to[i] + at, all[i], acc[i]);
    }
};

#define SLSTM_ARGS                                                                                                    \
    const S *h0, const S *c0, const S *n0, const S *m0, const S *w0, S *h_last, S *c_last, S *n_last, S *m_last,      \
        S *saved, i64 b, i64 t, i64 heads, i64 k
#define SLSTM {h0, c0, n0, m0, w0, h_last, c_last, n_last, m_last, saved, heads * k, {0, 0, 0}}
#define SLSTM_BACK_ARGS                                                                                               \
    const S *c0, const S *n0, const S *w0, const S *c_last, const S *n_last, const S *saved, const S *dh,             \
        const S *dh_last, const S *dc_last, const S *dn_last, const S *dm_last, S *dh0, int acc_h, S *dc0, int acc_c, \
        S *dn0, int acc_n, S *dm0, int acc_m, S *dw0, int acc_w, i64 b, i64 t, i64 heads, i64 k
#define SLSTM_BACK                                                                                                    \
    {c0, n0, w0, c_last, n_last, saved, dh, dh_last, dc_last, dn_last, dm_last, {dh0, dc0, dn0, dm0, dw0},            \
     {acc_h, acc_c, acc_n, acc_m, acc_w}, heads * k, {0, 0, 0}, {0, 0, 0, 0, 0, 0, 0, 0, 0}}

#define SLSTM_KERNELS(NAME, N, R, THREADS)                                                                            \
    BOUND_KERNEL(slstm_forward_##NAME, THREADS, 1)(const S* x, const S* w, S* hs,      \
                                                                                  SLSTM_ARGS) {                       \
        forward<N, R>(Slstm SLSTM, x, w, {heads * k * k, k * k, 1, k}, hs, b, t, heads, k);                           \
    }                                                                                                                 \
    BOUND_KERNEL(slstm_backward_##NAME, THREADS, 1)(const S* w, S* dz, SLSTM_BACK_ARGS) { \
        backward<N, R>(SlstmBack SLSTM_BACK, w, {heads * k * k, k * k, k, 1}, dz, b, t, heads, k);                    \
    }

#define SLSTM_GRID_KERNELS(NAME)                                                                                      \
    TILED_KERNEL(slstm_forward_##NAME)(const S* x, const S* w, S* hs, u32* counts, i64 first, SLSTM_ARGS) {            \
        forward_grid(Slstm SLSTM, x, w, {heads * k * k, k * k, 1, k}, hs, counts, first, b, t, heads, k);             \
    }                                                                                                                 \
    TILED_KERNEL(slstm_backward_##NAME)(const S* w, S* dz, u32* counts, i64 first, SLSTM_BACK_ARGS) {                  \
        backward_grid(SlstmBack SLSTM_BACK, w, {heads * k * k, k * k, k, 1}, dz, counts, first, b, t, heads, k);      \
    }

KERNEL(slstm_begin)(real* state, SLSTM_ARGS) { begin(Slstm SLSTM, state, b * heads * k); }
KERNEL(slstm_step)(const S* x, const S* z, real* state, S* hs, i64 s, SLSTM_ARGS) {
    step(Slstm SLSTM, x, z, state, hs, s, b, t, heads * k);
}
KERNEL(slstm_step_back)(const S* back, real* state, S* dz, i64 s, i64 last, SLSTM_BACK_ARGS) {
    step_back(SlstmBack SLSTM_BACK, back, state, dz, last ? -1 : s, b, t, heads * k);
}

// --- Both, a line a size. Of a block: the most units of a head, and N, R and threads. Registers hold half as many doubles
// or fewer. ---

constexpr bool DOUBLE = sizeof(real) == 8;
#define KERNELS(NAME, N, R, THREADS) LSTM_KERNELS(NAME, N, R, THREADS) SLSTM_KERNELS(NAME, N, R, THREADS)
#define GRID_KERNELS(NAME) LSTM_GRID_KERNELS(NAME) SLSTM_GRID_KERNELS(NAME)
KERNELS(16_1, 16, 1, 64)
KERNELS(16_4, 16, 4, 64)
KERNELS(32_1, 32, 1, 128)
KERNELS(32_4, 32, 4, 128)
KERNELS(64_1, DOUBLE ? 32 : 64, 1, 256)
KERNELS(64_4, DOUBLE ? 32 : 64, 4, 256)
KERNELS(128_1, DOUBLE ? 16 : 48, 1, 512)
KERNELS(128_4, DOUBLE ? 16 : 48, 4, 512)
GRID_KERNELS(grid)
