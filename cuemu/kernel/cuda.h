// CUDA C++ as g++ reads it: the first lines of every kernel module, in front of the untouched source text.
//
// Keywords become attributes, `threadIdx` a function of the fiber that runs, `__shared__` a thread-local array (all
// fibers of a launch run on one system thread, and a module's thread-local block is where the machine finds, fills
// and checks shared memory). A kernel may use everything that NVRTC offers without headers; the rest is in intrinsics.h
// (barriers, shuffles, atomics), numeric.h (mathematics) and tensor.h (mma, ldmatrix, cp.async).
#pragma once
#include "abi.h"

#define CUEMU 1
#define __CUDA_ARCH__ 900
#define __CUDACC_RTC__ 1

// The compile step looks for these three names in the preprocessed text: kernels made by macros are found as well.
#define __global__ __attribute__((cuemu_kernel, noinline, used))
#define __launch_bounds__(...) __attribute__((cuemu_bounds(__VA_ARGS__)))
#define __shared__ __attribute__((cuemu_shared)) thread_local

#define __device__
#define __host__
#define __constant__
#define __grid_constant__
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __align__(n) __attribute__((aligned(n)))
#define __restrict__ __restrict
#define __builtin_assume(condition) ((void)0)
#define CUEMU_UNCHECKED __attribute__((no_sanitize("thread", "alignment", "bounds")))

typedef __SIZE_TYPE__ size_t;
extern "C" {
void* memcpy(void*, const void*, size_t);
void* memset(void*, int, size_t);
int printf(const char*, ...);
}

// ---- vector types, aligned as on the device
#define CUEMU_VECTORS(T, N, A4)                                       \
  struct alignas(sizeof(T)) N##1 { T x; };                            \
  struct alignas(2 * sizeof(T)) N##2 { T x, y; };                     \
  struct N##3 { T x, y, z; };                                         \
  struct alignas(A4) N##4 { T x, y, z, w; };                          \
  inline N##1 make_##N##1(T x) { return {x}; }                        \
  inline N##2 make_##N##2(T x, T y) { return {x, y}; }                \
  inline N##3 make_##N##3(T x, T y, T z) { return {x, y, z}; }        \
  inline N##4 make_##N##4(T x, T y, T z, T w) { return {x, y, z, w}; }
CUEMU_VECTORS(char, char, 4)
CUEMU_VECTORS(unsigned char, uchar, 4)
CUEMU_VECTORS(short, short, 8)
CUEMU_VECTORS(unsigned short, ushort, 8)
CUEMU_VECTORS(int, int, 16)
CUEMU_VECTORS(unsigned, uint, 16)
CUEMU_VECTORS(long long, longlong, 16)
CUEMU_VECTORS(unsigned long long, ulonglong, 16)
CUEMU_VECTORS(float, float, 16)
CUEMU_VECTORS(double, double, 16)

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

// ---- who am I?
namespace cuemu {
inline uint3 coordinates(unsigned first) { return {cuemu_coordinate(first), cuemu_coordinate(first + 1), cuemu_coordinate(first + 2)}; }
}
#define threadIdx (cuemu::coordinates(cuemu::THREAD_X))
#define blockIdx (cuemu::coordinates(cuemu::BLOCK_X))
#define blockDim (cuemu::coordinates(cuemu::BLOCK_DIM_X))
#define gridDim (cuemu::coordinates(cuemu::GRID_DIM_X))
constexpr int warpSize = 32;

#include "count.h"
#include "intrinsics.h"
#include "numeric.h"
#include "tensor.h"
#include "module.h"
