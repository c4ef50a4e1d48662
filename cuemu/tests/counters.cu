// Kernels whose counts are known by hand: tests/emulator/counters.rs.
#define KERNEL extern "C" __global__ void

struct Eight { float4 a, b; };

KERNEL copy(const float* x, float* y) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  y[i] = x[i];
}
KERNEL copy_16_bytes(const float4* x, float4* y) {
  float4 v = x[threadIdx.x];
  v.x += 1;
  y[threadIdx.x] = v;
}
KERNEL copy_32_bytes(const Eight* x, Eight* y) { y[threadIdx.x] = x[threadIdx.x]; }
KERNEL not_aligned(const float* x, float* y) { y[threadIdx.x] = x[threadIdx.x + 1]; }
KERNEL strided(const float* x, float* y) { y[threadIdx.x] = x[8 * threadIdx.x]; }
KERNEL broadcast(const float* x, float* y) { y[threadIdx.x] = x[0]; }
KERNEL sum(const float* x, float* y) { atomicAdd(y, x[threadIdx.x]); }

template <int APART> __device__ void transposed(const float* x, float* y) {
  __shared__ float tile[32 * APART];
  const int i = threadIdx.x / 32, j = threadIdx.x % 32;
  tile[i * APART + j] = x[threadIdx.x];
  __syncthreads();
  y[threadIdx.x] = tile[j * APART + i];
}
KERNEL __launch_bounds__(1024) transpose(const float* x, float* y) { transposed<32>(x, y); }
KERNEL __launch_bounds__(1024) transpose_padded(const float* x, float* y) { transposed<33>(x, y); }

// Shared memory written and read in elements of type T, `stride` elements apart.
template <class T> __device__ void through(const float* x, float* y, int stride) {
  extern __shared__ float4 memory[];
  T* tile = (T*)memory;
  tile[threadIdx.x * stride] = ((const T*)x)[threadIdx.x];
  __syncwarp();
  ((T*)y)[threadIdx.x] = tile[(31 - threadIdx.x) * stride];
}
KERNEL words(const float* x, float* y, int stride) { through<float1>(x, y, stride); }
KERNEL pairs(const float* x, float* y, int stride) { through<float2>(x, y, stride); }
KERNEL quads(const float* x, float* y, int stride) { through<float4>(x, y, stride); }
KERNEL halves(const unsigned short* x, unsigned short* y) {
  __shared__ unsigned short tile[32];
  tile[threadIdx.x] = x[threadIdx.x];
  __syncwarp();
  y[threadIdx.x] = tile[threadIdx.x];
}

KERNEL halves_of_a_warp(const float* x, float* y) {
  if (threadIdx.x < 16)
    y[threadIdx.x] = x[threadIdx.x];
  else
    y[threadIdx.x + 32] = 1;
}
// All that are still there take part.
KERNEL early_return(const float* x, float* y, int n) {
  if ((int)threadIdx.x >= n) return;
  y[threadIdx.x] = x[threadIdx.x];
}
KERNEL first_lane(const float* x, float* y) {
  const float sum = __shfl_xor_sync(~0u, x[threadIdx.x], 1);
  if (threadIdx.x == 0) y[0] = sum;
}
KERNEL triangle(const float* x, float* y) {
  float sum = 0;
  for (int k = 0; k <= (int)threadIdx.x; k++) sum += x[32 * k + threadIdx.x];
  y[threadIdx.x] = sum;
}
__device__ __noinline__ float at(const float* p) { return *p; }
KERNEL one_place_two_callers(const float* x, float* y) {
  float sum = 0;
  if (threadIdx.x < 16) sum += at(x + threadIdx.x);
  sum += at(x + 64);
  y[threadIdx.x] = sum;
}
// An access after the lanes have met is another visit.
KERNEL one_place_twice(const float* x, float* y) {
  float sum = 0;
  for (int k = 0; k < 2; k++) {
    if (k || threadIdx.x < 16) sum += x[k ? 64 : threadIdx.x];
    __syncwarp();
  }
  y[threadIdx.x] = sum;
}

KERNEL functions(const float* x, float* y) {
  const float v = x[threadIdx.x];
  float w = expf(v) + log(v) + __sinf(v) + cosf(v) + rsqrtf(v);  // 5
  w /= v + 2;                                                    // 1
  y[threadIdx.x] = 1 / w + w / 3 + fmaxf(v, w) / (16 / 4);       // 1
}
KERNEL doubles(const double* x, double* y) { y[threadIdx.x] = sqrt(x[threadIdx.x]) / x[threadIdx.x]; }
KERNEL integers(const int* x, int* y) { y[threadIdx.x] = x[threadIdx.x] / (x[0] + 1); }
