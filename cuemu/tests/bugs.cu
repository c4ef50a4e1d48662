// One mistake a kernel, and what the checked mode says of it. `// HERE` marks the line that a report must name;
// tests/emulator.rs runs them all. On a GPU most of these give the right answer most of the time.

// A neighbour's value is read with no barrier after it was written.
extern "C" __global__ void missing_barrier(const float* x, float* y) {
  __shared__ float s[128];
  s[threadIdx.x] = 0;
  __syncthreads();
  s[threadIdx.x] = x[threadIdx.x];
  y[threadIdx.x] = s[(threadIdx.x + 1) & 127];  // HERE
}

// The loop's next round overwrites what slower threads still read.
extern "C" __global__ void missing_second_barrier(const float* x, float* y, int n) {
  __shared__ float s[128];
  float a = 0;
  for (int k = 0; k < n; k++) {
    s[threadIdx.x] = x[k * 128 + threadIdx.x];
    __syncthreads();
    a += s[127 - threadIdx.x];  // HERE
  }
  y[threadIdx.x] = a;
}

// "Warp-synchronous" code: right on devices before Volta, whose lanes ran in step.
extern "C" __global__ void missing_syncwarp(const float* x, float* y) {
  __shared__ float s[32];
  const int t = threadIdx.x;
  s[t] = x[t];
  __syncwarp();
  if (t < 16) s[t] += s[t + 16];
  y[t] = s[t ^ 1];  // HERE
}

// A shuffle makes lanes meet, but orders no memory.
extern "C" __global__ void shuffle_is_no_barrier(const float* x, float* y) {
  __shared__ float s[32];
  s[threadIdx.x] = 0;
  __syncwarp();
  s[threadIdx.x] = __shfl_xor_sync(0xffffffffu, x[threadIdx.x], 1);
  const float v = __shfl_xor_sync(0xffffffffu, x[threadIdx.x], 2);
  y[threadIdx.x] = v + s[threadIdx.x ^ 3];  // HERE
}

extern "C" __global__ void read_past_the_end(const float* x, float* y) {
  y[threadIdx.x] = x[threadIdx.x] + x[threadIdx.x + 1];  // HERE
}

extern "C" __global__ void write_past_the_end(float* y, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i <= n) y[i] = 1.0f;  // HERE
}

extern "C" __global__ void read_before_the_start(const float* x, float* y) {
  y[threadIdx.x] = x[(int)threadIdx.x - 1];  // HERE
}

extern "C" __global__ void null_pointer(float* y, const float* nothing) {
  y[threadIdx.x] = nothing[threadIdx.x];  // HERE
}

// The launch asks for 63 floats, not 64.
extern "C" __global__ void dynamic_shared_too_small(float* y) {
  extern __shared__ float d[];
  d[threadIdx.x] = 1.0f;  // HERE
  __syncthreads();
  y[threadIdx.x] = d[threadIdx.x ^ 1];
}

extern "C" __global__ void array_index(float* y) {
  __shared__ float s[4][8];
  const int t = threadIdx.x;
  s[t & 3][t] = 1.0f;  // HERE
  __syncthreads();
  y[t] = s[t & 3][0];
}

extern "C" __global__ void misaligned_vector(const float* x, float* y) {
  const float4 v = *reinterpret_cast<const float4*>(x + 1 + 4 * threadIdx.x);  // HERE
  y[threadIdx.x] = v.x + v.w;
}

extern "C" __global__ void divergent_barrier(float* y) {
  if (threadIdx.x < 40)
    __syncthreads();  // HERE
  else
    y[threadIdx.x] = __shfl_xor_sync(0xffffffffu, 1.0f, 1);
}

// Each thread passes one barrier, but not the same one.
extern "C" __global__ void two_barriers(float* y) {
  if (threadIdx.x < 32)
    __syncthreads();
  else
    __syncthreads();
  y[threadIdx.x] = 1.0f;  // HERE is a report about one of the lines above
}

extern "C" __global__ void lane_outside_its_mask(float* y) {
  y[threadIdx.x] = __shfl_xor_sync(0x0000ffffu, 1.0f, 1);  // HERE
}

// The mask names all lanes, half of them never come.
extern "C" __global__ void mask_names_absent_lanes(float* y) {
  float v = threadIdx.x;
  if ((threadIdx.x & 31) < 16) v += __shfl_xor_sync(0xffffffffu, v, 1);  // HERE
  y[threadIdx.x] = v;
}

extern "C" __global__ void different_warp_operations(float* y) {
  float v = threadIdx.x;
  if (threadIdx.x < 16)
    v += __shfl_xor_sync(0xffffffffu, v, 1);
  else
    v += __ballot_sync(0xffffffffu, 1);
  y[threadIdx.x] = v;  // HERE is a report about one of the lines above
}

extern "C" __global__ void uninitialised_shared(float* y) {
  __shared__ float s[64];
  if (threadIdx.x < 32) s[threadIdx.x] = 1.0f;
  __syncthreads();
  y[threadIdx.x] = s[threadIdx.x];  // HERE
}

// Nobody has written `x`.
extern "C" __global__ void uninitialised_device(const float* x, float* y) {
  y[threadIdx.x] = x[threadIdx.x];  // HERE
}

extern "C" __global__ void blocks_race_on_a_sum(float* out) {
  out[0] += 1.0f;  // HERE
}

// Block i writes what block i - 1 adds to.
extern "C" __global__ void blocks_race_on_neighbours(const float* x, float* out) {
  const int b = blockIdx.x, t = threadIdx.x;
  if (t < 2 && b + t < (int)gridDim.x) out[b + t] = x[b];  // HERE
}

// Stage 1 is read while its copy may still be under way.
extern "C" __global__ void copy_without_wait(const float* x, float* y) {
  __shared__ __align__(16) float s[128];
  cuemu::cp_async(s + 4 * threadIdx.x, x + 4 * threadIdx.x, 16, 16);
  cuemu::cp_async_commit();
  __syncthreads();
  y[threadIdx.x] = s[4 * threadIdx.x];  // HERE
}
