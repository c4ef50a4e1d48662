// Mean cross-entropy of rows of n logits against targets y, of which `smoothing` is spread over all classes, rows with
// the target `ignore` left out, and its gradient.
//
// Forward keeps softmax(x) − y of the rows that count, 0 of the others: the gradient but for a factor. (In bf16 softmax
// itself would round to 1 where the model is sure, and leave no gradient.)
//
// Tiling: a row has a group of threads, 1, 2, 4, … 32, as wide as it is, or a block if it is long; its maximum, sum
// and result are three passes, of which the first reads memory and the others find the row in L1. Losses are added
// up by thread, block, and once more by one block: in an order that sizes alone decide. Limited by memory: 2 numbers
// a logit each way, and 1 exponential a pass.

KERNEL(cross_entropy)(const S* x, const int* targets, S* kept, real* sums, int* counts, i64 rows,
    i64 n, int lanes, int ignore, real smoothing) {
    __shared__ real scratch[32];
    __shared__ int int_scratch[32];
    const int lane = threadIdx.x % lanes, groups = blockDim.x / lanes;
    real loss = 0;
    int count = 0;
    for (i64 start = (i64)blockIdx.x * groups; start < rows; start += (i64)gridDim.x * groups) {
        const i64 row = start + threadIdx.x / lanes, size = row < rows ? n : 0;
        const S* xs = x + row * n;
        const int target = size > 0 ? targets[row] : ignore;
        real m = -INF, others = 0, mean = 0;
        for (i64 j = lane; j < size; j += lanes) m = fmax(m, ld(xs + j));
        m = group_max(m, lanes, scratch);
        // The target is left out: its difference from one is the sum of the others, and computed as a difference it
        // would have no digits where the model is sure.
        for (i64 j = lane; j < size; j += lanes) others += j == target ? real(0) : exp(ld(xs + j) - m);
        others = group_sum(others, lanes, scratch);
        if (smoothing > 0) {
            for (i64 j = lane; j < size; j += lanes) mean += ld(xs + j) - m;
            mean = group_sum(mean, lanes, scratch) / n;
        }
        if (size == 0) continue; // the group's last row: nobody waits for it below
        const bool counts_here = target != ignore, is_class = target >= 0 && target < n;
        const real far = is_class ? ld(xs + target) - m : -INF, own = exp(far), each = smoothing / n;
        const real scale = 1.0 / (own + others);
        for (i64 j = lane; j < size; j += lanes) {
            const real rest = j == target ? smoothing - others * scale : exp(ld(xs + j) - m) * scale;
            st(kept + row * n + j, counts_here ? rest - each : real(0));
        }
        if (counts_here && lane == 0) {
            // A target that is no class, which the host has not seen here, gives NaN.
            const real sure = smoothing < 1 ? (1.0 - smoothing) * far : real(0);
            loss += is_class ? log1p((own - 1) + others) - sure - smoothing * mean : INF - INF;
            count++;
        }
    }
    loss = block_sum(loss, scratch);
    count = block_sum(count, int_scratch);
    if (threadIdx.x == 0) {
        sums[blockIdx.x] = loss;
        counts[blockIdx.x] = count;
    }
}

// One block: the mean over the rows that count; 0 if none does.
KERNEL(cross_entropy_total)(const real* sums, const int* counts, i64 blocks, real* loss) {
    __shared__ real scratch[32];
    __shared__ int int_scratch[32];
    real sum = 0;
    int count = 0;
    for (i64 i = threadIdx.x; i < blocks; i += blockDim.x) {
        sum += sums[i];
        count += counts[i];
    }
    sum = block_sum(sum, scratch);
    count = block_sum(count, int_scratch);
    if (threadIdx.x == 0) *loss = count > 0 ? sum / count : real(0);
}

// One block: how many rows count.
BOUND_KERNEL(count_targets, 1024)(const int* targets, i64 rows, int ignore, int* count) {
    __shared__ int scratch[32];
    int n = 0;
#pragma unroll 8
    for (i64 i = threadIdx.x; i < rows; i += blockDim.x) n += targets[i] != ignore;
    n = block_sum(n, scratch);
    if (threadIdx.x == 0) *count = n;
}

// dx = kept dloss / count
KERNEL(cross_entropy_backward)(const S* kept, const real* g, const int* count, S* d, int acc, i64 size) {
    const real scale = *count > 0 ? *g / *count : real(0);
    map(d, acc, size, [&](i64 i) { return scale * ld(kept + i); });
}
