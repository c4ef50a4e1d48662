// Linear attention in chunks of C steps, with no gate, one a head or one a channel, every chunk of every head at once:
// the kernels of memories.cuh, where tiling, bytes and operations stand, with the weights of fade.cuh.
//
//   forward              states of (k, v̂), scan, outputs
//   backward             states, scan; cotangents, states of (q, dô), scan from the end, keys, values
//   many heads           states and scan at once, along each head
//   one gate a head      whole first, and gates last
//   one gate a channel   fade first, whose rows stand for q and k in all products; channels in place of keys
//
// The gradient of a gate is a sum of terms that contain the gate: from the chunk's reads of the state before it, from
// its writes to the state after it, from its reads of its own steps, and γ rowsum(S ⊙ dS) from the state that it keeps.
// No term is a small difference of large numbers.

using namespace memories;

__device__ inline Wide with_ones(const S* v, const Dims& d) { return {v, nullptr, nullptr, d.v, d.w}; }

// --- One gate a head. ---

// The product of all gates of each chunk.
KERNEL(whole)(const S* g, real* all, i64 chunks, Dims d) {
    for (i64 i = thread(); i < chunks; i += threads()) {
        const Steps t(d, i);
        real x = 1;
        for (int s = 0; s < t.n; s++) x *= exp(ld(g + t.at(s)));
        all[i] = x;
    }
}

// dg of a chunk; `starts` and `ends` are the parts of q·dq and k·dk that come through the states, in `parts` sums each.
template <int R>
__device__ void gates(Rows q, Rows k, Wide v, Wide cotangents, Fading fading, const S* h, const S* dh,
                      const real* starts, const real* ends, i64 parts, i64 rows, S* dg, int acc, Dims d) {
    real* memory = dynamic_memory();
    constexpr int C = Tile<R>::C, MLD = Tile<R>::MLD;
    real *m = memory + Tile<R>::SCRATCH, *start = m + C * MLD, *end = start + C, *room = end + C + 32;
    const Steps t(d, blockIdx.x);
    const auto weights = fading.template load<R>(t, true, room);
    Tile<R> x = lower_product<R>(t, memory, d.v, cotangents.rows(t), v.rows(t), [&](int r) {
        return [=](int s, real x) { return q.scale * k.scale * weights.between(r, s) * x; };
    });
    Tile<R> p;
    p.template add<1, 1>(memory, (int)d.k, q.rows(t), k.rows(t));
#pragma unroll
    for (int i = 0; i < Tile<R>::ROWS; i++)
#pragma unroll
        for (int j = 0; j < Tile<R>::COLS; j++) x.v[i][j] *= p.v[i][j];
    if (threadIdx.x < C) {
        start[threadIdx.x] = end[threadIdx.x] = 0;
        for (i64 i = 0; i < parts && threadIdx.x < t.n; i++) {
            start[threadIdx.x] += starts[i * rows + t.at(threadIdx.x)];
            end[threadIdx.x] += ends[i * rows + t.at(threadIdx.x)];
        }
    }
    real all = 0;
    h += t.id * d.k * d.w, dh += t.id * d.k * d.w;
    for (i64 n = threadIdx.x; n < d.k * d.w; n += 256) all += ld(h + n) * ld(dh + n);
    all = fading.all[t.id] * block_sum(all, end + C);
    through_gates<R>(
        x, memory, m, t.n, all, [&](int u) { return start[u]; }, [&](int s) { return end[s]; },
        [&](int step, real x) { put(dg + t.at(step), x, acc); });
}

#define KERNELS(R)                                                                                                   \
    TILED_KERNEL(values_states_##R)(const S* k, const S* v, const S* g, real* h, Dims d) {                            \
        outer<R, false>(Rows{k, d.k, 1}, with_ones(v, d), Fading{g, nullptr, nullptr}, h, d);                        \
    }                                                                                                                \
    TILED_KERNEL(cotangents_states_##R)(const S* q, const S* d_o, const real* by, const real* last, const S* g,       \
        real* h, real scale, Dims d) {                                                                               \
        const Wide cotangents{d_o, by, last, d.v, d.w};                                                              \
        outer<R, true>(Rows{q, d.k, scale}, cotangents, Fading{g, nullptr, nullptr}, h, d);                          \
    }                                                                                                                \
    TILED_KERNEL(states_##R)(const S* k, const S* v, const S* g, const real* all, const S* s, S* h, S* s_end, Dims d) { \
        along<R, false, false>(s, nullptr, Rows{k, d.k, 1}, with_ones(v, d), Fading{g, all, nullptr}, h, s_end, 0,   \
            nullptr, 0, nullptr, d);                                                                                 \
    }                                                                                                                \
    TILED_KERNEL(states_backward_##R)(const S* q, const S* d_o, const S* g, const real* all, const S* s, S* h,        \
        S* s_end, int s_acc, real scale, Dims d) {                                                                   \
        const Wide cotangents{d_o, nullptr, nullptr, d.v, d.w};                                                      \
        along<R, true, false>(s, nullptr, Rows{q, d.k, scale}, cotangents, Fading{g, all, nullptr}, h, s_end, s_acc, \
            nullptr, 0, nullptr, d);                                                                                 \
    }                                                                                                                \
    TILED_KERNEL(outputs_##R)(const S* q, const S* k, const S* v, const S* h, const S* g, const S* p, S* o,           \
        real scale, Dims d) {                                                                                        \
        const auto none = [](real, i64, bool) { return Ratio{1, 1}; };                                               \
        outputs<R, false>(Rows{q, d.k, scale}, Rows{k, d.k, 1}, v, h, Fading{g, nullptr, p}, o, none, d);            \
    }                                                                                                                \
    TILED_KERNEL(normalised_##R)(const S* q, const S* k, const S* v, const S* h, S* o, S* den, real scale,            \
        real eps, Dims d) {                                                                                          \
        const auto divisor = [&](real sum, i64 row, bool own) {                                                      \
            if (own) st(den + row, sum + eps);                                                                       \
            return Ratio{1, sum + eps};                                                                              \
        };                                                                                                           \
        outputs<R, true>(Rows{q, d.k, scale}, Rows{k, d.k, 1}, v, h, Fading{}, o, divisor, d);                       \
    }                                                                                                                \
    TILED_KERNEL(keys_##R)(const S* q, const S* k, const S* v, const S* d_o, const real* by, const real* last,        \
        const S* h, const S* dh, const S* g, S* dq, int q_acc, real* starts, S* dk, int k_acc, real* ends,           \
        i64 rows, real scale, Dims d) {                                                                              \
        const Gradient to_q{dq, q_acc, nullptr, starts, rows}, to_k{dk, k_acc, nullptr, ends, rows};                 \
        const Rows queries{q, d.k, scale}, keys_{k, d.k, 1};                                                         \
        const Wide cotangents{d_o, by, last, d.v, d.w};                                                              \
        const Fading fading{g, nullptr, nullptr};                                                                    \
        keys<R>(queries, keys_, with_ones(v, d), cotangents, h, dh, fading, to_q, to_k, d);                          \
    }                                                                                                                \
    TILED_KERNEL(values_##R)(const S* q, const S* k, const S* d_o, const real* by, const real* last, const S* dh,     \
        const S* g, const S* p, S* dv, int acc, real scale, Dims d) {                                                \
        const Wide cotangents{d_o, by, last, d.v, d.w};                                                              \
        values<R>(Rows{q, d.k, scale}, Rows{k, d.k, 1}, cotangents, dh, Fading{g, nullptr, p}, dv, acc, d);          \
    }                                                                                                                \
    TILED_KERNEL(gates_##R)(const S* q, const S* k, const S* v, const S* d_o, const S* g, const real* all,            \
        const S* h, const S* dh, const real* starts, const real* ends, i64 parts, i64 rows, S* dg, int acc,          \
        real scale, Dims d) {                                                                                        \
        const Wide cotangents{d_o, nullptr, nullptr, d.v, d.w};                                                      \
        gates<R>(Rows{q, d.k, scale}, Rows{k, d.k, 1}, with_ones(v, d), cotangents, Fading{g, all, nullptr}, h, dh,  \
            starts, ends, parts, rows, dg, acc, d);                                                                  \
    }
KERNELS(1)
KERNELS(2)
KERNELS(4)

// With a gate a channel.
#define CHANNEL_KERNELS(NAME, R)                                                                                      \
    FADE_KERNEL(R, fade_##NAME)(const S* q, const S* k, const S* g, S* faded_q, S* faded_k, real* all, S* p, real scale,\
        Dims d) {                                                                                                     \
        fade<R>(Rows{q, d.k, scale}, Rows{k, d.k, 1}, g, faded_q, faded_k, all, p, d);                                \
    }                                                                                                                 \
    TILED_KERNEL(keys_##NAME)(const S* q, const S* k, const S* v, const S* d_o, const S* g, const S* h,                \
        const S* dh, S* dq,    int q_acc, S* dk, int k_acc, S* dg, int g_acc, real scale, Dims d) {                   \
        const auto value = [&](const Steps& t) { return t.rows(v, d.v); };                                            \
        const auto cotangent = [&](const Steps& t) { return t.rows(d_o, d.v); };                                      \
        const Channels to{dq, dk, dg, q_acc, k_acc, g_acc};                                                           \
        channels<R, true>(Rows{q, d.k, scale}, Rows{k, d.k, 1}, value, cotangent, g, h, dh, to, d);                   \
    }
CHANNEL_KERNELS(channels_1, 1)
CHANNEL_KERNELS(channels_2, 2)
CHANNEL_KERNELS(channels_4, 4)

// From the additions of each chunk to the state before it, or to the gradient of the state after it, as products take
// it.
KERNEL(scan_forward)(const real* added, S* h, const S* s, const S* z, const S* g, const real* all,
    S* s_end, S* z_end, i64 heads, Dims d) {
    scan<false>(s, z, added, Fading{g, all, nullptr}, h, s_end, 0, z_end, 0, nullptr, heads, d);
}
KERNEL(scan_backward)(const real* added, S* h, const S* s, const S* z, const S* g, const real* all,
    S* s_end, int s_acc, S* z_end, int z_acc, i64 heads, Dims d) {
    scan<true>(s, z, added, Fading{g, all, nullptr}, h, s_end, s_acc, z_end, z_acc, nullptr, heads, d);
}

// dô = [by do, last] for by = 1 / den and last = −(do·o) / den, [B, T, H] each: a warp to a row.
KERNEL(through_norm)(const S* o, const S* g, const S* den, real* by, real* last, i64 rows, i64 v) {
    for (i64 r = thread() / 32; r < rows; r += threads() / 32) {
        real dot = 0;
        for (i64 j = threadIdx.x % 32; g && j < v; j += 32) dot += ld(o + r * v + j) * ld(g + r * v + j);
        dot = warp_sum(dot);
        if (threadIdx.x % 32 == 0) {
            by[r] = 1 / ld(den + r);
            last[r] = -dot / ld(den + r);
        }
    }
}
