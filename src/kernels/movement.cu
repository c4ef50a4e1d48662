// Permuting, cutting, joining and masking. Values are moved as they are; gradients are moved or added.
//
// Tiling: one thread an element of a grid-stride loop, so that neighbours touch neighbouring addresses on both sides;
// where a permutation swaps the axis that is contiguous, tiles of 32 x 32 go through shared memory (rows of 33, so
// that a column lies in 32 banks). Limited by memory: 2 numbers an element, 3 where it is added to.

// An element and its place. Where nothing is added the bits stay as they are, whatever they mean.
struct Moved { S v; i64 to; };

__device__ inline Moved moved(const S* from, const S* y, i64 to, int acc) {
    Moved m = {*from, to};
    if (acc) st(&m.v, ld(y + to) + ld(from));
    return m;
}

// y[i₀, …, i₄] (+)= x with these steps in both: permutations whose innermost axis stays, or is short.
KERNEL(walk)(const S* x, S* y, int acc, i64 size, Ints<5> n, Ints<5> sx, Ints<5> sy) {
    auto value = [&](i64 i) {
        i64 rest = i, from = 0, to = 0;
#pragma unroll
        for (int k = 4; k >= 0; k--) {
            if (n.v[k] > 1) {
                const i64 q = divide(rest, n.v[k]), j = rest - q * n.v[k];
                from += j * sx.v[k];
                to += j * sy.v[k];
                rest = q;
            }
        }
        return moved(x + from, y, to, acc);
    };
    each(size, value, [&](i64, Moved m) { y[m.to] = m.v; });
}

// y[b, …, j, …, i] (+)= x[b, …, i, …, j]: i of n1 is contiguous in y and s1 apart in x, j of n2 is contiguous in x and
// s2 apart in y; up to three further axes. Blocks of 32 x 8 threads have a tile at a time.
KERNEL(transpose)(const S* x, S* y, int acc, i64 tiles, i64 n1, i64 s1, i64 n2, i64 s2, Ints<3> n,
    Ints<3> sx, Ints<3> sy) {
    __shared__ S tile[32][33];
    const i64 tiles1 = (n1 + 31) / 32, tiles2 = (n2 + 31) / 32;
    for (i64 at = blockIdx.x; at < tiles; at += gridDim.x) {
        i64 rest = divide(at, tiles1);
        const i64 i0 = (at - rest * tiles1) * 32, q = divide(rest, tiles2), j0 = (rest - q * tiles2) * 32;
        i64 from = 0, to = 0;
        rest = q;
#pragma unroll
        for (int k = 2; k >= 0; k--) {
            const i64 q = divide(rest, n.v[k]), j = rest - q * n.v[k];
            from += j * sx.v[k];
            to += j * sy.v[k];
            rest = q;
        }
#pragma unroll
        for (int r = threadIdx.y; r < 32; r += 8) {
            const i64 i = i0 + r, j = j0 + threadIdx.x;
            if (i < n1 && j < n2) tile[r][threadIdx.x] = x[from + i * s1 + j];
        }
        __syncthreads();
#pragma unroll
        for (int r = threadIdx.y; r < 32; r += 8) {
            const i64 i = i0 + threadIdx.x, j = j0 + r;
            const i64 k = to + j * s2 + i;
            if (i < n1 && j < n2) y[k] = moved(&tile[threadIdx.x][r], y, k, acc).v;
        }
        __syncthreads();
    }
}

// Runs of n elements, sx apart in x and sy apart in y; `size` elements in all.
KERNEL(runs)(const S* x, i64 start, i64 sx, S* y, i64 begin, i64 sy, int acc, i64 size, i64 n) {
    auto value = [&](i64 i) {
        const i64 row = divide(i, n), j = i - row * n;
        return moved(x + start + row * sx + j, y, begin + row * sy + j, acc);
    };
    each(size, value, [&](i64, Moved m) { y[m.to] = m.v; });
}

// Of each row of n elements of d, `run` ones from `start` on are the next of g; the others are 0.
KERNEL(framed)(const S* g, S* d, i64 size, i64 n, i64 start, i64 run) {
    map(d, 0, size, [&](i64 i) {
        const i64 row = divide(i, n), j = i - row * n - start;
        return j >= 0 && j < run ? ld(g + row * run + j) : real(0);
    });
}

// y (+)= x where j ≤ i + diag, 0 elsewhere, for matrices [.., rows, cols].
KERNEL(tril)(const S* x, S* y, int acc, i64 size, i64 rows, i64 cols, int diag) {
    map(y, acc, size, [&](i64 k) {
        const i64 row = divide(k, cols), j = k - row * cols, i = row - divide(row, rows) * rows;
        return j <= i + diag ? ld(x + k) : real(0);
    });
}
