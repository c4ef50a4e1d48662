// A copy whose loads are coalesced.
//
// The 32 lanes of a warp load together, and memory comes in sectors of 32
// bytes: 8 floats. Where neighbouring lanes read neighbouring floats, a warp's
// load takes 4 sectors. Here each thread has a run of its own, of `each`
// neighbouring floats, so that lanes read floats that lie `each` apart: with
// each = 8, every lane takes a sector for 4 of its 32 bytes.
//
// Give the threads other elements, and take this line away: todo!

// y[i] = 2 x[i] for i < n, in one block of threads with n <= each * blockDim.x.
extern "C" __global__ void twice(const float* x, float* y, int n, int each) {
    for (int j = 0; j < each; j++) {
        const int i = threadIdx.x * each + j;
        if (i < n) y[i] = 2 * x[i];
    }
}
