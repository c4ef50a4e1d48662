// C[M,N] = A[M,K] B[N,K]^T in bf16 with float sums, on tensor cores: tiles of 64 x 64 x 32 in two stages, which
// cp.async fills while the other is multiplied. 128 threads: four warps, each 32 x 32 of the tile. K % 8 == 0.
typedef unsigned short bf16_bits;

extern "C" __global__ void __launch_bounds__(128) gemm_bf16(const bf16_bits* __restrict__ A, const bf16_bits* __restrict__ B, float* __restrict__ C, int M, int N, int K) {
  constexpr int BM = 64, BN = 64, BK = 32, LD = BK + 8;
  __shared__ __align__(16) bf16_bits a_tile[2][BM * LD], b_tile[2][BN * LD];
  const int t = threadIdx.x, lane = t & 31, warp = t >> 5, wm = (warp & 1) * 32, wn = (warp >> 1) * 32;
  const int m0 = blockIdx.y * BM, n0 = blockIdx.x * BN;
  float sum[2][4][4] = {};
  auto load = [&](int stage, int k0) {
    for (int i = t; i < BM * BK / 8; i += 128) {
      const int r = i / (BK / 8), c = (i % (BK / 8)) * 8;
      const bool in = m0 + r < M && k0 + c < K;
      cuemu::cp_async(&a_tile[stage][r * LD + c], A + (in ? (size_t)(m0 + r) * K + k0 + c : 0), 16, in ? 16 : 0);
    }
    for (int i = t; i < BN * BK / 8; i += 128) {
      const int r = i / (BK / 8), c = (i % (BK / 8)) * 8;
      const bool in = n0 + r < N && k0 + c < K;
      cuemu::cp_async(&b_tile[stage][r * LD + c], B + (in ? (size_t)(n0 + r) * K + k0 + c : 0), 16, in ? 16 : 0);
    }
    cuemu::cp_async_commit();
  };
  const int steps = (K + BK - 1) / BK;
  load(0, 0);
  for (int step = 0; step < steps; step++) {
    const int stage = step & 1;
    if (step + 1 < steps)
      load(stage ^ 1, (step + 1) * BK);
    else
      cuemu::cp_async_commit();
    cuemu::cp_async_wait(1);
    __syncthreads();  // needed
    for (int k = 0; k < BK; k += 16) {
      unsigned a[2][4], b[4][2];
      for (int i = 0; i < 2; i++) cuemu::ldmatrix(a[i], &a_tile[stage][(wm + i * 16 + (lane & 15)) * LD + k + (lane >> 4) * 8]);
      for (int j = 0; j < 2; j++) {
        unsigned r[4];
        cuemu::ldmatrix(r, &b_tile[stage][(wn + j * 16 + (lane & 7) + ((lane >> 4) << 3)) * LD + k + ((lane >> 3) & 1) * 8]);
        b[2 * j][0] = r[0], b[2 * j][1] = r[1], b[2 * j + 1][0] = r[2], b[2 * j + 1][1] = r[3];
      }
      for (int i = 0; i < 2; i++)
        for (int j = 0; j < 4; j++) cuemu::mma_m16n8k16_bf16(sum[i][j], a[i], b[j]);
    }
    __syncthreads();  // needed
  }
  for (int i = 0; i < 2; i++)
    for (int j = 0; j < 4; j++)
      for (int q = 0; q < 4; q++) {
        const int r = m0 + wm + i * 16 + (lane >> 2) + 8 * (q >> 1), c = n0 + wn + j * 8 + (lane & 3) * 2 + (q & 1);
        if (r < M && c < N) C[(size_t)r * N + c] = sum[i][j][q];
      }
}
