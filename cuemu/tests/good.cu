// Correct kernels: no schedule changes their result, and the checked mode must report nothing. `// needed` marks
// barriers that the mutation test removes to see that it is missed.

// ---- a block's sum by shuffles, one atomic a block
extern "C" __global__ void __launch_bounds__(256) block_sum(const float* __restrict__ x, float* out, int n) {
  __shared__ float part[32];
  float s = 0;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) s += x[i];
  for (int o = 16; o > 0; o >>= 1) s += __shfl_down_sync(0xffffffffu, s, o);
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  if (lane == 0) part[warp] = s;
  __syncthreads();  // needed
  if (warp == 0) {
    s = lane < (int)(blockDim.x >> 5) ? part[lane] : 0.0f;
    for (int o = 16; o > 0; o >>= 1) s += __shfl_xor_sync(0xffffffffu, s, o);
    if (lane == 0) atomicAdd(out, s);
  }
}

// ---- an inclusive scan of each row, a carry from chunk to chunk
extern "C" __global__ void scan_rows(const float* __restrict__ x, float* __restrict__ y, int n) {
  __shared__ float total[32], carried;
  const float* xr = x + (size_t)blockIdx.x * n;
  float* yr = y + (size_t)blockIdx.x * n;
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = blockDim.x >> 5;
  float carry = 0;
  for (int base = 0; base < n; base += blockDim.x) {
    const int i = base + threadIdx.x;
    float v = i < n ? xr[i] : 0.0f;
    for (int d = 1; d < 32; d <<= 1) {
      const float t = __shfl_up_sync(0xffffffffu, v, d);
      if (lane >= d) v += t;
    }
    if (lane == 31) total[warp] = v;
    __syncthreads();  // needed
    if (warp == 0) {
      float w = lane < warps ? total[lane] : 0.0f;
      for (int d = 1; d < 32; d <<= 1) {
        const float t = __shfl_up_sync(0xffffffffu, w, d);
        if (lane >= d) w += t;
      }
      if (lane < warps) total[lane] = w;
    }
    __syncthreads();  // needed
    const float r = v + carry + (warp ? total[warp - 1] : 0.0f);
    if (i < n) yr[i] = r;
    if (threadIdx.x == blockDim.x - 1) carried = r;
    __syncthreads();  // needed
    carry = carried;
  }
}

// ---- C[M,N] = A[M,K] B[K,N] by 16 x 16 tiles, one static, one dynamic
template <typename T, int TILE>
__device__ __forceinline__ void tiled(const T* A, const T* B, T* C, int M, int N, int K) {
  __shared__ T a[TILE][TILE + 1];
  extern __shared__ __align__(16) unsigned char dynamic[];
  T* b = reinterpret_cast<T*>(dynamic);
  const int tx = threadIdx.x, ty = threadIdx.y, row = blockIdx.y * TILE + ty, col = blockIdx.x * TILE + tx;
  T sum = 0;
  for (int k0 = 0; k0 < K; k0 += TILE) {
    a[ty][tx] = row < M && k0 + tx < K ? A[row * K + k0 + tx] : T(0);
    b[ty * TILE + tx] = k0 + ty < K && col < N ? B[(k0 + ty) * N + col] : T(0);
    __syncthreads();  // needed
#pragma unroll
    for (int k = 0; k < TILE; k++) sum += a[ty][k] * b[k * TILE + tx];
    __syncthreads();  // needed
  }
  if (row < M && col < N) C[row * N + col] = sum;
}
extern "C" __global__ void matmul_f32(const float* A, const float* B, float* C, int M, int N, int K) { tiled<float, 16>(A, B, C, M, N, K); }
template <typename T, int TILE> __global__ void matmul(const T* A, const T* B, T* C, int M, int N, int K) { tiled<T, TILE>(A, B, C, M, N, K); }

// ---- a kernel made by a macro is found too, and its bounds with it
#define SCALE(NAME, T) \
  extern "C" __global__ void __launch_bounds__(64, 2) NAME(T* x, T by, int n) { \
    for (int i = threadIdx.x; i < n; i += blockDim.x) x[i] *= by; \
  }
SCALE(scale_f32, float)
SCALE(scale_f64, double)

// ---- within a warp: a transpose through shared memory
extern "C" __global__ void warp_transpose(const float* x, float* y) {
  __shared__ float s[32 * 33];
  const int lane = threadIdx.x;
  for (int r = 0; r < 32; r++) s[r * 33 + lane] = x[r * 32 + lane];
  __syncwarp();  // needed
  for (int r = 0; r < 32; r++) y[r * 32 + lane] = s[lane * 33 + r];
}

// ---- threads that leave early are not waited for
extern "C" __global__ void early_exit(float* y, int n) {
  if ((int)threadIdx.x >= n) return;
  __syncthreads();
  y[threadIdx.x] = 1.0f;
}

extern "C" __global__ void histogram(const int* x, int* h, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) atomicAdd(&h[x[i] & 7], 1);
}

// ---- neighbouring threads write the halves of one word (bf16), and read them after a barrier
extern "C" __global__ void halves(unsigned short* y) {
  __shared__ unsigned short s[256];
  s[threadIdx.x] = (unsigned short)threadIdx.x;
  __syncthreads();  // needed
  y[threadIdx.x] = s[threadIdx.x ^ 1];
}

// ---- a struct as argument, and a table of constants
struct Sizes { long long n[3]; };
__constant__ float TABLE[4] = {1.0f, 2.0f, 3.0f, 4.0f};
extern "C" __global__ void by_value(float* y, Sizes s, double a, char c, float b) {
  if (threadIdx.x == 0) y[0] = (float)(s.n[0] + s.n[1] + s.n[2]) + (float)a + b + TABLE[c];
}

// ---- what each warp operation gives: one row of 32 results each
extern "C" __global__ void warp_operations(int* y) {
  const int lane = threadIdx.x;
  int row = 0;
  auto put = [&](int v) { y[row++ * 32 + lane] = v; };
  put(__shfl_sync(~0u, lane, 5));
  put(__shfl_sync(~0u, lane, 9, 8));
  put(__shfl_up_sync(~0u, lane, 3));
  put(__shfl_up_sync(~0u, lane, 3, 16));
  put(__shfl_down_sync(~0u, lane, 3));
  put(__shfl_xor_sync(~0u, lane, 7));
  put((int)__ballot_sync(~0u, lane % 3 == 0));
  put(__any_sync(~0u, lane == 31));
  put(__all_sync(~0u, lane < 31));
  put(__reduce_add_sync(~0u, lane));
  put((int)__reduce_max_sync(~0u, (unsigned)lane * 2));
  if (lane < 16) put(__shfl_xor_sync(0x0000ffffu, lane, 1)); else put(__shfl_xor_sync(0xffff0000u, lane, 2));
  put(__syncthreads_count(lane < 10));
  put(__syncthreads_or(lane == 4));
  put(__syncthreads_and(lane != 4));
  put((int)__shfl_sync(~0u, (double)lane + 0.5, lane ^ 1));
}

// ---- for timing: nothing but barriers, nothing but shuffles
extern "C" __global__ void barriers(float* y, int n) {
  float a = threadIdx.x;
  for (int i = 0; i < n; i++) {
    a = a * 0.5f + 1.0f;
    __syncthreads();
  }
  y[blockIdx.x * blockDim.x + threadIdx.x] = a;
}
extern "C" __global__ void shuffles(float* y, int n) {
  float a = threadIdx.x;
  for (int i = 0; i < n; i++) a += __shfl_xor_sync(0xffffffffu, a, 1 + (i & 15));
  y[blockIdx.x * blockDim.x + threadIdx.x] = a;
}
