// Barriers, warp operations and atomics: thin typed wrappers of the machine's functions (abi.h).
//
// The last argument of every operation defaults to the place of the call, for reports such as "32 threads wait at
// __syncthreads (scan.cu:41)".
#pragma once

// ---- a block
inline void __syncthreads(cuemu::Site at = cuemu::Site::here()) { cuemu_sync_block(at); }
inline int __syncthreads_and(int p, cuemu::Site at = cuemu::Site::here()) { return cuemu_vote_block(p, '&', at); }
inline int __syncthreads_or(int p, cuemu::Site at = cuemu::Site::here()) { return cuemu_vote_block(p, '|', at); }
inline int __syncthreads_count(int p, cuemu::Site at = cuemu::Site::here()) { return cuemu_vote_block(p, '+', at); }

// One fiber runs at a time, in program order: a fence has nothing to do.
inline void __threadfence() {}
inline void __threadfence_block() {}
inline void __threadfence_system() {}
inline void __nanosleep(unsigned) {}

// ---- a warp
inline void __syncwarp(unsigned mask = ~0u, cuemu::Site at = cuemu::Site::here()) { cuemu_sync_warp(mask, at); }

namespace cuemu {
template <class T> inline T shuffle(unsigned mask, T value, int source, const char* what, Site at) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8, "a shuffle moves 4 or 8 bytes");
  unsigned long long bits = 0;
  __builtin_memcpy(&bits, &value, sizeof value);
  bits = cuemu_shuffle(mask, bits, source, what, at);
  __builtin_memcpy(&value, &bits, sizeof value);
  return value;
}
inline int lane() { return (int)cuemu_coordinate(LANE); }
// The first lane of the sub-warp of `width` lanes that this lane belongs to.
inline int first_lane(int width) { return lane() & ~(width - 1); }
}  // namespace cuemu

template <class T> inline T __shfl_sync(unsigned mask, T v, int source, int width = 32, cuemu::Site at = cuemu::Site::here()) {
  return cuemu::shuffle(mask, v, cuemu::first_lane(width) | (source & (width - 1)), "__shfl_sync", at);
}
template <class T> inline T __shfl_up_sync(unsigned mask, T v, unsigned by, int width = 32, cuemu::Site at = cuemu::Site::here()) {
  int source = cuemu::lane() - (int)by;
  return cuemu::shuffle(mask, v, source < cuemu::first_lane(width) ? cuemu::lane() : source, "__shfl_up_sync", at);
}
template <class T> inline T __shfl_down_sync(unsigned mask, T v, unsigned by, int width = 32, cuemu::Site at = cuemu::Site::here()) {
  int source = cuemu::lane() + (int)by;
  return cuemu::shuffle(mask, v, source >= cuemu::first_lane(width) + width ? cuemu::lane() : source, "__shfl_down_sync", at);
}
template <class T> inline T __shfl_xor_sync(unsigned mask, T v, int with, int width = 32, cuemu::Site at = cuemu::Site::here()) {
  int source = cuemu::lane() ^ with;
  return cuemu::shuffle(mask, v, source >= cuemu::first_lane(width) + width ? cuemu::lane() : source, "__shfl_xor_sync", at);
}
inline unsigned __ballot_sync(unsigned mask, int p, cuemu::Site at = cuemu::Site::here()) { return cuemu_ballot(mask, p != 0, "__ballot_sync", at); }
inline int __any_sync(unsigned mask, int p, cuemu::Site at = cuemu::Site::here()) { return cuemu_ballot(mask, p != 0, "__any_sync", at) != 0; }
inline int __all_sync(unsigned mask, int p, cuemu::Site at = cuemu::Site::here()) { return cuemu_ballot(mask, p == 0, "__all_sync", at) == 0; }
inline unsigned __activemask() { return cuemu_active_mask(); }
inline int __reduce_add_sync(unsigned mask, int v, cuemu::Site at = cuemu::Site::here()) { return (int)cuemu_reduce(mask, v, '+', at); }
inline unsigned __reduce_add_sync(unsigned mask, unsigned v, cuemu::Site at = cuemu::Site::here()) { return (unsigned)cuemu_reduce(mask, v, '+', at); }
inline int __reduce_min_sync(unsigned mask, int v, cuemu::Site at = cuemu::Site::here()) { return (int)cuemu_reduce(mask, v, '<', at); }
inline unsigned __reduce_min_sync(unsigned mask, unsigned v, cuemu::Site at = cuemu::Site::here()) { return (unsigned)cuemu_reduce(mask, v, '<', at); }
inline int __reduce_max_sync(unsigned mask, int v, cuemu::Site at = cuemu::Site::here()) { return (int)cuemu_reduce(mask, v, '>', at); }
inline unsigned __reduce_max_sync(unsigned mask, unsigned v, cuemu::Site at = cuemu::Site::here()) { return (unsigned)cuemu_reduce(mask, v, '>', at); }
inline unsigned __reduce_or_sync(unsigned mask, unsigned v, cuemu::Site at = cuemu::Site::here()) { return (unsigned)cuemu_reduce(mask, v, '|', at); }
inline unsigned __reduce_and_sync(unsigned mask, unsigned v, cuemu::Site at = cuemu::Site::here()) { return (unsigned)cuemu_reduce(mask, v, '&', at); }

// ---- atomics: fibers switch only at barriers, so a plain read-modify-write is atomic
namespace cuemu {
template <class T> struct Same { typedef T type; };  // the second argument converts to the first one's type
}
#if defined(CUEMU_CHECK) || defined(CUEMU_COUNT)
#define CUEMU_ATOMIC_ACCESS(p) cuemu_atomic_access(p, sizeof *(p), __builtin_return_address(0))
#else
#define CUEMU_ATOMIC_ACCESS(p) ((void)0)
#endif
#define CUEMU_ATOMIC(NAME, RESULT)                                                                \
  template <class T> CUEMU_UNCHECKED __noinline__ T NAME(T* p, typename cuemu::Same<T>::type v) { \
    CUEMU_ATOMIC_ACCESS(p);                                                                       \
    T old = *p;                                                                                   \
    *p = (RESULT);                                                                                \
    return old;                                                                                   \
  }
CUEMU_ATOMIC(atomicAdd, old + v)
CUEMU_ATOMIC(atomicSub, old - v)
CUEMU_ATOMIC(atomicMax, old > v ? old : v)
CUEMU_ATOMIC(atomicMin, old < v ? old : v)
CUEMU_ATOMIC(atomicAnd, old & v)
CUEMU_ATOMIC(atomicOr, old | v)
CUEMU_ATOMIC(atomicXor, old ^ v)
CUEMU_ATOMIC(atomicExch, v)
CUEMU_ATOMIC(atomicInc, old >= v ? 0 : old + 1)
template <class T> CUEMU_UNCHECKED __noinline__ T atomicCAS(T* p, typename cuemu::Same<T>::type expected, typename cuemu::Same<T>::type v) {
  CUEMU_ATOMIC_ACCESS(p);
  T old = *p;
  if (old == expected) *p = v;
  return old;
}

// ---- blocks that wait for one another: red.release.gpu.global.add.u32 and ld.acquire.gpu.global.u32, for a prelude's
// `#ifdef CUEMU` branch. An acquire gives the other blocks a turn before it reads.
namespace cuemu {
inline void add_release(unsigned* p, unsigned n) { cuemu_add_release(p, n); }
inline unsigned load_acquire(const unsigned* p, Site at = Site::here()) { return cuemu_load_acquire(p, at); }
}  // namespace cuemu

// ---- loads and stores with a cache hint
template <class T> inline T __ldg(const T* p) { return *p; }
template <class T> inline T __ldcs(const T* p) { return *p; }
template <class T> inline T __ldcg(const T* p) { return *p; }
template <class T> inline T __ldca(const T* p) { return *p; }
template <class T> inline T __ldlu(const T* p) { return *p; }
template <class T> inline void __stcs(T* p, T v) { *p = v; }
template <class T> inline void __stcg(T* p, T v) { *p = v; }
template <class T> inline void __stwb(T* p, T v) { *p = v; }
inline long long clock64() { return 0; }
