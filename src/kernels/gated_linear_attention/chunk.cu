// Linear attention in chunks of C steps, every chunk of every head at once: the kernels of memories.cuh, where tiling,
// bytes and operations stand, with all weights 1.
//
//   forward    states of (k, v̂), scan, outputs           backward    states, scan; cotangents, states of (q, dô),
//                                                                    scan from the end, keys, values

using namespace memories;

__device__ inline Wide with_ones(const S* v, const Dims& d) { return {v, nullptr, nullptr, d.v, d.w}; }

#define KERNELS(R)                                                                                                   \
    TILED_KERNEL values_states_##R(const S* k, const S* v, real* h, Dims d) {                                        \
        outer<R, false>(Rows{k, d.k, 1}, with_ones(v, d), Ones{}, h, d);                                             \
    }                                                                                                                \
    TILED_KERNEL cotangents_states_##R(const S* q, const S* g, const real* by, const real* last, real* h,            \
        real scale, Dims d) {                                                                                        \
        outer<R, true>(Rows{q, d.k, scale}, Wide{g, by, last, d.v, d.w}, Ones{}, h, d);                              \
    }                                                                                                                \
    TILED_KERNEL outputs_##R(const S* q, const S* k, const S* v, const real* h, S* o, real scale, Dims d) {          \
        const auto none = [](real, i64, bool) { return Ratio{1, 1}; };                                               \
        outputs<R, false>(Rows{q, d.k, scale}, Rows{k, d.k, 1}, v, h, Ones{}, o, none, d);                           \
    }                                                                                                                \
    TILED_KERNEL normalised_##R(const S* q, const S* k, const S* v, const real* h, S* o, S* den, real scale,         \
        real eps, Dims d) {                                                                                          \
        const auto divisor = [&](real sum, i64 row, bool own) {                                                      \
            if (own) st(den + row, sum + eps);                                                                       \
            return Ratio{1, sum + eps};                                                                              \
        };                                                                                                           \
        outputs<R, true>(Rows{q, d.k, scale}, Rows{k, d.k, 1}, v, h, Ones{}, o, divisor, d);                         \
    }                                                                                                                \
    TILED_KERNEL keys_##R(const S* q, const S* k, const S* v, const S* g, const real* by, const real* last,          \
        const real* h, const real* dh, S* dq, int q_acc, S* dk, int k_acc, real scale, Dims d) {                     \
        const Target to_q{dq, q_acc, nullptr, 0}, to_k{dk, k_acc, nullptr, 0};                                       \
        const Wide cotangents{g, by, last, d.v, d.w};                                                                \
        keys<R>(Rows{q, d.k, scale}, Rows{k, d.k, 1}, with_ones(v, d), cotangents, h, dh, Ones{}, to_q, to_k, d);    \
    }                                                                                                                \
    TILED_KERNEL values_##R(const S* q, const S* k, const S* g, const real* by, const real* last, const real* dh,    \
        S* dv, int acc, real scale, Dims d) {                                                                        \
        const Wide cotangents{g, by, last, d.v, d.w};                                                                \
        values<R>(Rows{q, d.k, scale}, Rows{k, d.k, 1}, cotangents, dh, Ones{}, dv, acc, d);                         \
    }
KERNELS(1)
KERNELS(2)
KERNELS(4)

// In place of what each chunk adds: the state before it, or the gradient of the one after it.
extern "C" __global__ void scan_forward(real* h, const S* s, const S* z, S* s_end, S* z_end, i64 heads, Dims d) {
    scan<false>(s, z, h, Ones{}, h, s_end, 0, z_end, 0, nullptr, heads, d);
}
extern "C" __global__ void scan_backward(real* h, const S* s, const S* z, S* s_end, int s_acc, S* z_end, int z_acc,
                                         i64 heads, Dims d) {
    scan<true>(s, z, h, Ones{}, h, s_end, s_acc, z_end, z_acc, nullptr, heads, d);
}

// dô = [by do, last] for by = 1 / den and last = −(do·o) / den, [B, T, H] each: a warp to a row.
extern "C" __global__ void through_norm(const S* o, const S* g, const S* den, real* by, real* last, i64 rows, i64 v) {
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
