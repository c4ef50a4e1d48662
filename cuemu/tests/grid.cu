// Blocks that wait for one another, with a counter in device memory; tests/emulator_grid.rs runs it.

// In every round each block passes its elements to the block before it, and adds the elements it receives to its own,
// in shared memory. `absent`: a block that never comes to the meeting, or -1. `meet`: whether there is one.
extern "C" __global__ void ring(const float* x, float* y, float* all, unsigned* count, int rounds, int absent, int meet) {
  __shared__ float own[64];
  const unsigned n = blockDim.x * gridDim.x, me = blockIdx.x * blockDim.x + threadIdx.x;
  if ((int)blockIdx.x == absent) return;
  own[threadIdx.x] = x[me];
  for (int r = 0; r < rounds; r++) {
    all[r * n + me] = own[threadIdx.x];
    if (meet) {
      __syncthreads();  // needed
      if (threadIdx.x == 0) {
        cuemu::add_release(count, 1);
        while (cuemu::load_acquire(count) < (r + 1) * gridDim.x) {}
      }
      __syncthreads();  // needed
    }
    own[threadIdx.x] += all[r * n + (me + blockDim.x) % n];
  }
  y[me] = own[threadIdx.x];
}
