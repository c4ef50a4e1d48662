// How the machine calls a kernel: from an array of pointers to arguments, as cuLaunchKernel takes them.
//
// The compile step adds `CUEMU_MODULE()` and, for each kernel that it finds, a `Registration` of its `Entry`.
#pragma once
namespace cuemu {

template <unsigned... I> struct Indices {};

template <auto* F> struct Entry;
template <class... A, void (*F)(A...)> struct Entry<F> {
  static constexpr unsigned sizes[] = {sizeof(A)..., 0}, alignments[] = {alignof(A)..., 0};
  template <unsigned... I> CUEMU_UNCHECKED static void spread(void** arguments, Indices<I...>) { F(*(A*)arguments[I]...); }
  CUEMU_UNCHECKED static void call(void** arguments) { spread(arguments, Indices<__integer_pack((unsigned)sizeof...(A))...>{}); }
  static constexpr Kernel kernel(const char* name, unsigned max_threads) { return {name, call, sizeof...(A), sizes, alignments, max_threads, nullptr}; }
};

inline const Kernel* kernels = nullptr;
struct Registration {
  Kernel kernel;
  Registration(Kernel k) : kernel(k) { kernel.next = kernels, kernels = &kernel; }
};

}  // namespace cuemu

// `extern __shared__ T x[]` of every kernel is another name for this array.
extern "C" thread_local unsigned char cuemu_dynamic[cuemu::MAX_DYNAMIC_SHARED] __attribute__((visibility("hidden"), aligned(1024)));

#define CUEMU_MODULE()                                                                                        \
  extern "C" {                                                                                                \
  thread_local unsigned char cuemu_dynamic[cuemu::MAX_DYNAMIC_SHARED];                                        \
  static unsigned char* cuemu_dynamic_shared() { return cuemu_dynamic; }                                      \
  __attribute__((visibility("default"))) cuemu::Module cuemu_module() { return {cuemu::kernels, cuemu_dynamic_shared}; } \
  }
