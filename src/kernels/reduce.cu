// Maximum and ln Σ eˣ along an axis of n entries, of a tensor seen as [outer, n, inner], with their gradients. (Sums
// are arith.cu's.)
//
// Tiling: rows (inner = 1) are shared by a group of threads, 1, 2, 4, … 32 or a block, as wide as the row; columns
// have a thread each, neighbours side by side. A row is read from memory once, its second pass finds it in L1.
// All are limited by memory: forward reads x and writes what is left; backward reads x or dy and writes dx.

// Rows that this block's groups have: `start` is the first group's, the same for every thread, so that whole blocks
// meet in the sums; thread `lane` of `lanes` has row `start + mine`, if there is one.
#define EACH_ROW(start) (i64 start = (i64)blockIdx.x * (blockDim.x / lanes); start < rows; start += (i64)gridDim.x * (blockDim.x / lanes))

KERNEL(max_rows)(const S* x, S* y, i64 rows, i64 n, int lanes) {
    __shared__ real scratch[32];
    const int lane = threadIdx.x % lanes, mine = threadIdx.x / lanes;
    for EACH_ROW(start) {
        const i64 row = start + mine;
        const bool on = row < rows;
        // A NaN is larger than everything, as on the CPU.
        real m = -INF, bad = 0;
        for (i64 i = lane; on && i < n; i += lanes) {
            const real v = ld(x + row * n + i);
            if (v != v) bad = 1;
            else m = fmax(m, v);
        }
        m = group_max(m, lanes, scratch);
        bad = group_max(bad, lanes, scratch);
        if (on && lane == 0) st(y + row, bad > 0 ? INF - INF : m);
    }
}

KERNEL(max_columns)(const S* x, S* y, i64 size, i64 n, i64 inner) {
    for (i64 k = thread(); k < size; k += threads()) {
        const i64 outer = divide(k, inner);
        const S* column = x + outer * n * inner + (k - outer * inner);
        real m = -INF;
        for (i64 i = 0; i < n; i++) {
            const real v = ld(column + i * inner);
            m = v <= m || m != m ? m : v;
        }
        st(y + k, m);
    }
}

// Among equal maxima the last gets half of the gradient, each one before it half of the rest, and the first what is
// left.
KERNEL(max_rows_backward)(const S* x, const S* y, const S* g, S* d, int acc, i64 rows, i64 n, int lanes) {
    __shared__ i64 scratch[32];
    const int lane = threadIdx.x % lanes, mine = threadIdx.x / lanes;
    for EACH_ROW(start) {
        const i64 row = start + mine;
        const bool on = row < rows;
        i64 before = 0, last = -1; // n − the least index: the largest is the first
        const auto equal = [&](i64 i) { return ld(x + row * n + i) == ld(y + row); };
        for (i64 i = lane; on && i < n; i += lanes)
            if (equal(i)) {
                last = i;
                if (before == 0) before = n - i;
            }
        const i64 first = n - group_max(before, lanes, scratch);
        last = group_max(last, lanes, scratch);
        for (i64 i = lane; on && i < n; i += lanes) {
            real share = equal(i) ? ld(g + row) : real(0);
            // Each of those behind it takes half, as does this one unless it is the first.
            if (equal(i))
                for (i64 j = i == first ? i + 1 : i; j <= last; j++) share *= equal(j) ? real(0.5) : real(1);
            put(d + row * n + i, share, acc);
        }
    }
}

KERNEL(max_columns_backward)(const S* x, const S* y, const S* g, S* d, int acc, i64 size, i64 n, i64 inner) {
    for (i64 k = thread(); k < size; k += threads()) {
        const i64 outer = divide(k, inner), base = outer * n * inner + (k - outer * inner);
        const auto equal = [&](i64 i) { return ld(x + base + i * inner) == ld(y + k); };
        i64 first = 0;
        while (first < n && !equal(first)) first++;
        real left = ld(g + k);
        for (i64 i = n - 1; i >= 0; i--) {
            const real share = !equal(i) ? real(0) : i == first ? left : real(0.5) * left;
            left -= share;
            put(d + base + i * inner, share, acc);
        }
    }
}

// y = m + ln Σ e^(x − m) with m = max x
KERNEL(logsumexp)(const S* x, S* y, i64 rows, i64 n, int lanes) {
    __shared__ real scratch[32];
    const int lane = threadIdx.x % lanes, mine = threadIdx.x / lanes;
    for EACH_ROW(start) {
        const i64 row = start + mine;
        const i64 size = row < rows ? n : 0;
        const S* xs = x + row * n;
        real m = -INF;
        for (i64 i = lane; i < size; i += lanes) m = fmax(m, ld(xs + i));
        m = group_max(m, lanes, scratch);
        // An infinite m is the result, unless there is a NaN.
        const bool finite = is_finite(m);
        real sum = 0;
        for (i64 i = lane; i < size; i += lanes) {
            const real v = ld(xs + i);
            sum += finite ? exp(v - m) : v != v ? v : real(0);
        }
        sum = group_sum(sum, lanes, scratch);
        if (row < rows && lane == 0) st(y + row, m + (finite ? log(sum) : sum));
    }
}

// dx = dy e^(x − y), 0 where y is −∞.
KERNEL(logsumexp_backward)(const S* x, const S* y, const S* g, S* d, int acc, i64 size, i64 n) {
    map(d, acc, size, [&](i64 i) {
        const i64 row = divide(i, n);
        const real all = ld(y + row);
        return ld(g + row) * exp(ld(x + i) - (all == -INF ? real(0) : all));
    });
}
