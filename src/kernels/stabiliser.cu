// The stabiliser of exponential gates over sequences of n steps, and the logarithms of the gates; see stabiliser.rs.
//
// Tiling: a thread has a sequence, as each step waits for the one before. Limited by the latency of memory.

KERNEL(stabiliser)(const S* f, const S* i, const S* first, S* log_f, S* log_i, S* to_m, S* share,
    i64 rows, i64 n) {
    for (i64 row = thread(); row < rows; row += threads()) {
        double m = ld(first + row);
        for (i64 at = row * n; at < (row + 1) * n; at++) {
            const double past = ld(f + at) + m, input = ld(i + at);
            m = past >= input ? past : input;
            const double from = m == -(double)INF ? 0 : m;
            st(log_f + at, (real)(past - from));
            st(log_i + at, (real)(input - from));
            st(to_m + at, (real)m);
            st(share + at, past > input ? real(1) : past == input ? real(0.5) : real(0));
        }
    }
}

// A gate whose share is 0 gets 0, even where the gradient is NaN.
__device__ inline double part(double share, double x) { return share > 0 ? share * x : 0; }

KERNEL(stabiliser_back)(const S* m, const S* share, const S* dlog_f, const S* dlog_i, const S* dm,
    S* df, int acc_f, S* di, int acc_i, S* dfirst, int acc_m, i64 rows, i64 n) {
    for (i64 row = thread(); row < rows; row += threads()) {
        double gamma = 0;
        for (i64 at = (row + 1) * n - 1; at >= row * n; at--) {
            if (dm) gamma += ld(dm + at);
            const double to_f = dlog_f ? ld(dlog_f + at) : 0, to_i = dlog_i ? ld(dlog_i + at) : 0, past = ld(share + at);
            // A logarithm is a difference from m, unless m is -inf.
            const bool blank = ld(m + at) == -INF;
            const double of_f = part(past, (blank ? to_f : 0) + (gamma - (blank ? 0 : to_i))) + part(1 - past, to_f);
            const double of_i = part(1 - past, (blank ? to_i : 0) + (gamma - (blank ? 0 : to_f))) + part(past, to_i);
            if (df) put(df + at, (real)of_f, acc_f);
            if (di) put(di + at, (real)of_i, acc_i);
            gamma = of_f;
        }
        if (dfirst) put(dfirst + row, (real)gamma, acc_m);
    }
}
