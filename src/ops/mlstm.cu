// The mLSTM's memory and its gradient, with the names of mlstm.rs and mlstm/chunk.rs, in the three phases of a scan:
//
//   1. every chunk: what it adds to the state, (e K')^T [V, 1]         2. along the chunks: C+ = r_C C + that, elementwise
//   3. every row of every chunk: r (Q C) + ((Q K'^T) . D) [V, 1]       and each backwards, in time or in transpose
//
// Of gates there are four numbers a step, found one after another by a thread a head: c = ln(f_t … f_first) since the
// chunk's first step, ln i, m and the slope. D_ts = exp(c_t - c_s + ln i_s), and every such exponent is at most 0.
//
// Tiling: a block of 8 warps has a 32 x 32 tile of a product, a lane a column and a thread 4 rows, and goes through the
// inner index in tiles of 32, in shared memory. The same kernel makes h, dv, dq and dk, a block for 32 rows of a chunk
// and 32 columns. With chunks of C steps forward has about 2 C (K + V) + 4 K V operations a step and head and moves
// 2 K + 2 V + 3 K V / C numbers, backward 3 times that.

typedef Ints<7> Sizes;
struct Size {
    i64 b, t, h, k, v, chunk, chunks, w; // w = V + 1: [C, n] is [K, V + 1]
    __device__ Size(Sizes s)
        : b(s.v[0]), t(s.v[1]), h(s.v[2]), k(s.v[3]), v(s.v[4]), chunk(s.v[5]), chunks(s.v[6]), w(s.v[4] + 1) {}
    // The row of step t of head i in tensors [B, T, H, ..].
    __device__ i64 row(i64 i, i64 s) const { return (i / h * t + s) * h + i % h; }
};

// Rows of a tensor [B, T, H, width], times a number, and times one each; zeros if there is none.
struct Rows {
    const S* p;
    i64 width;
    real scale;
    const real* by;
    __device__ real at(i64 row, i64 col) const {
        if (!p || col >= width) return 0.0;
        return scale * ld(p + row * width + col) * (by ? by[row] : real(1.0));
    }
};

// --- Gates ---

// m0, w0 [B, H] and i, f [B, T, H] to [B, T, H], four times.
extern "C" __global__ void mlstm_gates(const S* in, const S* f, const S* m0, const S* w0, real* c, real* li, real* ms,
                                       real* slopes, S* m_last, Sizes sizes) {
    constexpr int U = 8;
    const Size z(sizes);
    const i64 i = thread();
    if (i >= z.b * z.h) return;
    real m = ld(m0 + i) + log(ld(w0 + i)), sum = 0.0;
    for (i64 s = 0; s < z.t; s += U) {
        real iv[U], fv[U];
#pragma unroll
        for (int u = 0; u < U; u++) {
            iv[u] = s + u < z.t ? ld(in + z.row(i, s + u)) : real(0.0);
            fv[u] = s + u < z.t ? ld(f + z.row(i, s + u)) : real(0.0);
        }
#pragma unroll
        for (int u = 0; u < U; u++)
            if (s + u < z.t) {
                const i64 at = z.row(i, s + u);
                const real past = m - softplus(-fv[u]), slope = sigmoid(-fv[u]);
                const bool wins = past >= iv[u];
                m = wins ? past : iv[u];
                // e^-60 is no weight at all, and a sum with -INF in it could not be subtracted from.
                sum = ((s + u) % z.chunk == 0 ? real(0.0) : sum) + fmax(past - m, real(-60.0));
                c[at] = sum;
                li[at] = iv[u] - m;
                ms[at] = m;
                slopes[at] = wins ? slope : -slope;
            }
    }
    if (m_last) st(m_last + i, m);
}

// 1 / N, what stands for dh in the column of ones, and what a step adds to gamma, [B, T, H] each. A warp has a row.
extern "C" __global__ void mlstm_cotangents(const S* h, const S* dh, const S* den, const real* m, real* inverse,
                                            real* last, real* own, Sizes sizes, real eps) {
    const Size z(sizes);
    for (i64 row = thread() / 32; row < z.b * z.t * z.h; row += threads() / 32) {
        const int lane = threadIdx.x % 32;
        real dot = 0.0;
        if (dh)
            for (i64 j = lane; j < z.v; j += 32) dot += ld(h + row * z.v + j) * ld(dh + row * z.v + j);
        dot = warp_sum(dot);
        if (lane == 0) {
            const real d = ld(den + row), floor = exp(-m[row]), by = fmax(fabs(d), floor) + eps, slope = -dot / by;
            inverse[row] = 1.0 / by;
            own[row] = eps * slope;
            last[row] = fabs(d) > floor ? (d < 0.0 ? -slope : slope) : real(0.0);
        }
    }
}

// From q dq and k' dk' of every step, in `parts` sums each, and C dC at the bounds of the chunks [B H, chunks + 1], to
// the gradients of the gates, m0 and w0. A thread has a head.
extern "C" __global__ void mlstm_gates_back(const S* w0, const S* dm, const real* dots, const real* qdq, const real* kdk,
                                            i64 parts, const real* slopes, const real* own, S* di, int acc_i, S* df,
                                            int acc_f, S* dm0, int acc_m, S* dw0, int acc_w, Sizes sizes) {
    const Size z(sizes);
    const i64 i = thread(), size = z.b * z.t * z.h;
    if (i >= z.b * z.h) return;
    dots += i * (z.chunks + 1);
    real gamma = (dm ? ld(dm + i) : real(0.0)) - dots[z.chunks];
    for (i64 j = z.chunks - 1; j >= 0; j--) {
        real end = dots[j + 1];
        for (i64 s = ((j + 1) * z.chunk < z.t ? (j + 1) * z.chunk : z.t) - 1; s >= j * z.chunk; s--) {
            const i64 at = z.row(i, s);
            real q = 0.0, k = 0.0;
            for (i64 p = 0; p < parts; p++) {
                q += qdq[p * size + at];
                k += kdk[p * size + at];
            }
            const real slope = slopes[at];
            end += q - k;
            gamma += own[at];
            const bool wins = slope > 0.0;
            if (di) put(di + at, k + (wins ? real(0.0) : gamma), acc_i);
            if (df) put(df + at, (end + (wins ? gamma : real(0.0))) * fabs(slope), acc_f);
            if (!wins) gamma = 0.0;
        }
    }
    // The state before the first step has the weight e^m0. Before the first token nothing depends on w.
    const real d = gamma + dots[0], w = ld(w0 + i);
    if (dm0) put(dm0 + i, d, acc_m);
    if (dw0) put(dw0 + i, w > 0.0 ? d / w : real(0.0), acc_w);
}

// --- Phases 1 and 2 ---

constexpr int N = 32;
typedef real Tile[N][N + 1];

// The left matrix of a product, column by column: the 4 rows of a warp lie side by side, and come in one load.
struct alignas(16) Four { real v[4]; };
struct Left {
    Four at[N][N / 4 + 1];
    __device__ void set(int row, int k, real v) { at[k][row / 4].v[row % 4] = v; }
};

// y[i] += row 4 warp + i of x times column `lane` of b
__device__ inline void product(const Left& x, const Tile& b, real (&y)[4]) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
    for (int k = 0; k < N; k++) {
        const Four rows = x.at[k][warp];
        const real v = b[k][lane];
#pragma unroll
        for (int i = 0; i < 4; i++) y[i] += rows.v[i] * v;
    }
}

// Phase 1: sum over a chunk's steps of weight x_t [y_t, last_t] (1 where last is null), [K, V + 1], to slot j of
// `slots` of every head. The weight is e_t, or r_t if BACK.
template <bool BACK>
__device__ void outer(Rows x, Rows y, const real* last, const real* c, const real* li, real* out, i64 slots, Size z) {
    __shared__ Left xs;
    __shared__ Tile ys;
    const i64 ks = (z.k + N - 1) / N, ws = (z.w + N - 1) / N, block = blockIdx.x / (ks * ws);
    const i64 k0 = blockIdx.x / ws % ks * N, w0 = blockIdx.x % ws * N, i = block / z.chunks, j = block % z.chunks;
    const i64 t0 = j * z.chunk, t1 = t0 + z.chunk < z.t ? t0 + z.chunk : z.t;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const real end = c[z.row(i, t1 - 1)];
    real sums[4] = {0.0, 0.0, 0.0, 0.0};
    for (i64 t = t0; t < t1; t += N) {
        for (int r = warp; r < N; r += 8) {
            const bool in = t + r < t1;
            const i64 row = z.row(i, in ? t + r : t0);
            const real weight = !in ? real(0.0) : BACK ? exp(c[row]) : exp(end - c[row] + li[row]);
            xs.set(lane, r, in ? weight * x.at(row, k0 + lane) : real(0.0));
            ys[r][lane] = !in ? real(0.0) : w0 + lane == z.v ? (last ? last[row] : real(1.0)) : y.at(row, w0 + lane);
        }
        __syncthreads();
        product(xs, ys, sums);
        __syncthreads();
    }
#pragma unroll
    for (int r = 0; r < 4; r++) {
        const i64 k = k0 + 4 * warp + r, w = w0 + lane;
        if (k < z.k && w < z.w) out[((i * slots + j) * z.k + k) * z.w + w] = sums[r];
    }
}

extern "C" __global__ void mlstm_outer(const S* k, const S* v, const real* c, const real* li, real* out, Sizes sizes,
                                       real scale) {
    const Size z(sizes);
    outer<false>({k, z.k, scale, 0}, {v, z.v, 1.0, 0}, 0, c, li, out, z.chunks, z);
}
extern "C" __global__ void mlstm_outer_back(const S* q, const S* dh, const real* inverse, const real* last,
                                            const real* c, real* out, Sizes sizes) {
    const Size z(sizes);
    outer<true>({q, z.k, 1.0, 0}, {dh, z.v, 1.0, inverse}, last, c, 0, out, z.chunks + 1, z);
}

// Phase 2: the state before every chunk, and the last one. A thread has an element of [C, n].
extern "C" __global__ void mlstm_carry(const S* c0, const S* n0, const real* add, const real* c, S* states, S* c_last,
                                       S* n_last, Sizes sizes) {
    const Size z(sizes);
    const i64 size = z.k * z.w, at = thread(), i = at / size, e = at % size, row = i * z.k + e / z.w, col = e % z.w;
    if (at >= z.b * z.h * size) return;
    real s = col < z.v ? ld(c0 + row * z.v + col) : ld(n0 + row);
    for (i64 j = 0; j < z.chunks; j++) {
        const i64 end = (j + 1) * z.chunk < z.t ? (j + 1) * z.chunk : z.t;
        st(states + (i * z.chunks + j) * size + e, s);
        s = exp(c[z.row(i, end - 1)]) * s + add[(i * z.chunks + j) * size + e];
    }
    if (col < z.v) st(c_last + row * z.v + col, s);
    else st(n_last + row, s);
}

// Phase 2 backwards: slot j of `grads` [B H, chunks + 1, K, V + 1] has what chunk j adds to the gradient of the state
// before it, and gets that gradient; the last slot gets that of the last state.
extern "C" __global__ void mlstm_carry_back(const S* dc, const S* dn, const real* c, real* grads, S* dc0, int acc_c,
                                            S* dn0, int acc_n, Sizes sizes) {
    const Size z(sizes);
    const i64 size = z.k * z.w, at = thread(), i = at / size, e = at % size, row = i * z.k + e / z.w, col = e % z.w;
    if (at >= z.b * z.h * size) return;
    real g = 0.0;
    if (col < z.v && dc) g = ld(dc + row * z.v + col);
    if (col == z.v && dn) g = ld(dn + row);
    real* to = grads + i * (z.chunks + 1) * size + e;
    to[z.chunks * size] = g;
    for (i64 j = z.chunks - 1; j >= 0; j--) {
        const i64 end = (j + 1) * z.chunk < z.t ? (j + 1) * z.chunk : z.t;
        to[j * size] = g = exp(c[z.row(i, end - 1)]) * g + to[j * size];
    }
    if (col < z.v && dc0) put(dc0 + row * z.v + col, g, acc_c);
    if (col == z.v && dn0) put(dn0 + row, g, acc_n);
}

// C dC at every bound of a chunk, [B H, chunks + 1]: a block has one.
extern "C" __global__ void mlstm_dots(const S* states, const S* c_last, const S* n_last, const real* grads, real* dots,
                                      Sizes sizes) {
    __shared__ real scratch[32];
    const Size z(sizes);
    const i64 i = blockIdx.x / (z.chunks + 1), j = blockIdx.x % (z.chunks + 1), size = z.k * z.w;
    real sum = 0.0;
    for (i64 e = threadIdx.x; e < size; e += blockDim.x) {
        const i64 row = i * z.k + e / z.w, col = e % z.w;
        const real s = j < z.chunks ? ld(states + (i * z.chunks + j) * size + e)
                       : col < z.v  ? ld(c_last + row * z.v + col)
                                    : ld(n_last + row);
        sum += s * grads[(i * (z.chunks + 1) + j) * size + e];
    }
    sum = block_sum(sum, scratch);
    if (threadIdx.x == 0) dots[blockIdx.x] = sum;
}

// --- Phase 3 ---

// 32 rows and 32 columns of y = w (x M) + ((x u^T) . D) b: a row is a step t, D_ts being over s <= t and w = r_t, or, if
// BACK, a step s, over t >= s and w = e_s. M is the state [K, V + 1] or, if TURNED, its transpose; x and u then have one
// column more, of which one is all 1 and the other `last`, that of the tensor whose rows are the t.
enum { LEFT, RIGHT, TURNED_RIGHT };
template <bool BACK, bool TURNED, class P>
struct Part {
    real y[4], den[4];  // den: the sum over this lane's s, and this lane's share of q n
    i64 i, j, t0, t1, first, col0;
    bool some;

    __device__ void find(Size z, Rows x, Rows u, const real* last, Rows b, const P* m, i64 slots, const real* c,
                         const real* li, Left& xs, Tile& ys) {
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
        const i64 cols = b.width > 0 ? (b.width + N - 1) / N : 1, rows = (z.chunk + N - 1) / N;
        const i64 block = blockIdx.x / (cols * rows);
        col0 = blockIdx.x % cols * N;
        i = block / z.chunks;
        j = block % z.chunks;
        t0 = j * z.chunk;
        t1 = t0 + z.chunk < z.t ? t0 + z.chunk : z.t;
        first = t0 + blockIdx.x / cols % rows * N;
        some = first < t1; // the last chunk may have fewer rows: the same for the whole block
        if (!some) return;
        m += (i * slots + j) * z.k * z.w;
        const real end = c[z.row(i, t1 - 1)];
#pragma unroll
        for (int r = 0; r < 4; r++) y[r] = den[r] = 0.0;
        auto load = [&](const Rows& from, i64 s0, i64 k0, int to) {
            for (int r = warp; r < N; r += 8) {
                const real v = s0 + r < t1 ? from.at(z.row(i, s0 + r), k0 + lane) : real(0.0);
                if (to == LEFT) xs.set(r, lane, v);
                else if (to == RIGHT) ys[r][lane] = v;
                else ys[lane][r] = v;
            }
        };
        for (i64 k0 = 0; k0 < x.width; k0 += N) {
            load(x, first, k0, LEFT);
            for (int r = warp; r < N; r += 8) {
                const i64 k = TURNED ? col0 + r : k0 + r, v = TURNED ? k0 + lane : col0 + lane;
                const real s = k < z.k && v < z.v ? ld(m + k * z.w + v) : real(0.0);
                if (TURNED) ys[lane][r] = s;
                else ys[r][lane] = s;
            }
            __syncthreads();
            product(xs, ys, y);
            if (!TURNED && !BACK && k0 + lane < z.k) {
                const real n = ld(m + (k0 + lane) * z.w + z.v);
#pragma unroll
                for (int r = 0; r < 4; r++) den[r] += xs.at[lane][warp].v[r] * n;
            }
            __syncthreads();
        }
#pragma unroll
        for (int r = 0; r < 4; r++) {
            const i64 s = first + 4 * warp + r, row = z.row(i, s < t1 ? s : t0);
            const real weight = BACK ? exp(end - c[row] + li[row]) : exp(c[row]);
            if (TURNED && col0 + lane < z.k) y[r] += ld(m + (col0 + lane) * z.w + z.v) * (BACK ? real(1.0) : last[row]);
            y[r] *= weight;
            den[r] *= weight;
        }
        for (i64 s0 = BACK ? first : t0; BACK ? s0 < t1 : s0 <= first; s0 += N) {
            real scores[4] = {0.0, 0.0, 0.0, 0.0};
            for (i64 k0 = 0; k0 < x.width; k0 += N) {
                load(x, first, k0, LEFT);
                load(u, s0, k0, TURNED_RIGHT);
                __syncthreads();
                product(xs, ys, scores);
                __syncthreads();
            }
#pragma unroll
            for (int r = 0; r < 4; r++) {
                const i64 mine = first + 4 * warp + r, other = s0 + lane, t = BACK ? other : mine, s = BACK ? mine : other;
                real p = 0.0;
                if (t < t1 && s <= t) {
                    const i64 at = z.row(i, t), from = z.row(i, s);
                    p = (scores[r] + (TURNED ? last[at] : real(0.0))) * exp(c[at] - c[from] + li[from]);
                }
                xs.set(4 * warp + r, lane, p);
                den[r] += p;
            }
            load(b, s0, col0, RIGHT);
            __syncthreads();
            product(xs, ys, y);
            __syncthreads();
        }
    }
};

#define EACH_ROW                                                                                                      \
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;                                                       \
    _Pragma("unroll") for (int r = 0; r < 4; r++)

extern "C" __global__ void __launch_bounds__(256, 1) mlstm_out(const S* q, const S* k, const S* v, const S* states,
                                                            const real* c, const real* li, const real* m, S* h, S* dens,
                                                            Sizes sizes, real scale, real eps) {
    __shared__ Left xs;
    __shared__ Tile ys;
    const Size z(sizes);
    Part<false, false, S> p;
    p.find(z, {q, z.k, 1.0, 0}, {k, z.k, scale, 0}, 0, {v, z.v, 1.0, 0}, states, z.chunks, c, li, xs, ys);
    if (!p.some) return;
    EACH_ROW {
        const i64 t = p.first + 4 * warp + r, col = p.col0 + lane;
        const real den = warp_sum(p.den[r]);
        if (t < p.t1) {
            const i64 row = z.row(p.i, t);
            if (col < z.v) st(h + row * z.v + col, p.y[r] / (fmax(fabs(den), exp(-m[row])) + eps));
            if (col == 0) st(dens + row, den);
        }
    }
}

extern "C" __global__ void __launch_bounds__(256, 1) mlstm_dv(const S* q, const S* k, const S* dh, const real* inverse,
                                                           const real* grads, const real* c, const real* li, S* dv,
                                                           int acc, Sizes sizes, real scale) {
    __shared__ Left xs;
    __shared__ Tile ys;
    const Size z(sizes);
    Part<true, false, real> p;
    p.find(z, {k, z.k, scale, 0}, {q, z.k, 1.0, 0}, 0, {dh, z.v, 1.0, inverse}, grads + z.k * z.w, z.chunks + 1, c, li,
           xs, ys);
    if (!p.some) return;
    EACH_ROW {
        const i64 s = p.first + 4 * warp + r, col = p.col0 + lane;
        if (s < p.t1 && col < z.v) put(dv + z.row(p.i, s) * z.v + col, p.y[r], acc);
    }
}

// dq, or dk' = dk / scale, and x dx of every row over 32 columns, [columns / 32, B, T, H].
template <class P>
__device__ void finish(const P& p, const Size& z, const S* x, real scale, S* dx, int acc, real* dots) {
    EACH_ROW {
        const i64 t = p.first + 4 * warp + r, col = p.col0 + lane, row = z.row(p.i, t < p.t1 ? t : p.t0);
        const bool in = t < p.t1 && col < z.k;
        if (in && dx) put(dx + row * z.k + col, scale * p.y[r], acc);
        const real dot = warp_sum(in ? scale * ld(x + row * z.k + col) * p.y[r] : real(0.0));
        if (lane == 0 && t < p.t1) dots[p.col0 / N * z.b * z.t * z.h + row] = dot;
    }
}

extern "C" __global__ void __launch_bounds__(256, 1) mlstm_dq(const S* q, const S* k, const S* v, const S* dh,
                                                           const real* inverse, const real* last, const S* states,
                                                           const real* c, const real* li, S* dq, int acc, real* dots,
                                                           Sizes sizes, real scale) {
    __shared__ Left xs;
    __shared__ Tile ys;
    const Size z(sizes);
    Part<false, true, S> p;
    p.find(z, {dh, z.v, 1.0, inverse}, {v, z.v, 1.0, 0}, last, {k, z.k, scale, 0}, states, z.chunks, c, li, xs, ys);
    if (p.some) finish(p, z, q, 1.0, dq, acc, dots);
}

extern "C" __global__ void __launch_bounds__(256, 1) mlstm_dk(const S* q, const S* k, const S* v, const S* dh,
                                                           const real* inverse, const real* last, const real* grads,
                                                           const real* c, const real* li, S* dk, int acc, real* dots,
                                                           Sizes sizes, real scale) {
    __shared__ Left xs;
    __shared__ Tile ys;
    const Size z(sizes);
    Part<true, true, real> p;
    p.find(z, {v, z.v, 1.0, 0}, {dh, z.v, 1.0, inverse}, last, {q, z.k, 1.0, 0}, grads + z.k * z.w, z.chunks + 1, c, li,
           xs, ys);
    if (p.some) finish(p, z, k, scale, dk, acc, dots);
}
