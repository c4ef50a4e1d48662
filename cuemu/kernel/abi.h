// The contract between a compiled kernel module and the machine that runs it (libcuemu.so).
//
// A kernel module calls these functions where CUDA code has a barrier, a shuffle or an index; the machine finds
// the module's kernels through `cuemu_module()`. Nothing is included: kernels see no C or C++ header, as with NVRTC.
#pragma once
namespace cuemu {

// A place in the source. As a default argument it is the caller's line.
struct Site {
  const char* file;
  int line;
  static constexpr Site here(const char* file = __builtin_FILE(), int line = __builtin_LINE()) { return {file, line}; }
};

// One `__global__` function: how to call it with an array of pointers to its arguments, as cuLaunchKernel has it.
struct Kernel {
  const char* name;
  void (*call)(void** arguments);
  unsigned parameters;
  const unsigned *sizes, *alignments;
  unsigned max_threads;  // __launch_bounds__, or 0
  const Kernel* next;
};

struct Module {
  const Kernel* kernels;              // a list
  unsigned char* (*dynamic_shared)();  // this system thread's `extern __shared__` array
};

enum Coordinate {
  THREAD_X, THREAD_Y, THREAD_Z, BLOCK_X, BLOCK_Y, BLOCK_Z,
  BLOCK_DIM_X, BLOCK_DIM_Y, BLOCK_DIM_Z, GRID_DIM_X, GRID_DIM_Y, GRID_DIM_Z, LANE,
};
constexpr unsigned MAX_DYNAMIC_SHARED = 232448;  // 227 KiB, as on sm_90

}  // namespace cuemu

extern "C" {
// `const`: one kernel call runs on one fiber from its start to its end, so its coordinates never change.
unsigned cuemu_coordinate(unsigned which) __attribute__((const));

void cuemu_sync_block(cuemu::Site);
int cuemu_vote_block(int predicate, char combine, cuemu::Site);  // combine: '&', '|' or '+'
void cuemu_sync_warp(unsigned mask, cuemu::Site);
unsigned long long cuemu_shuffle(unsigned mask, unsigned long long bits, int source_lane, const char* what, cuemu::Site);
unsigned cuemu_ballot(unsigned mask, int predicate, const char* what, cuemu::Site);
// `combine`: '+', '<' (minimum), '>' (maximum), '&', '|', '^'
long long cuemu_reduce(unsigned mask, long long value, char combine, cuemu::Site);
unsigned cuemu_active_mask();

// Release and acquire between blocks that wait for each other; see machine/grid.cpp.
void cuemu_add_release(unsigned*, unsigned);
unsigned cuemu_load_acquire(const unsigned*, cuemu::Site);

// Tensor cores and asynchronous copies, with the register layouts of the PTX manual.
void cuemu_mma_m16n8k16_bf16(float* d, const unsigned* a, const unsigned* b, cuemu::Site);
void cuemu_mma_m16n8k8_tf32(float* d, const unsigned* a, const unsigned* b, cuemu::Site);
void cuemu_ldmatrix(unsigned* registers, const void* row, int matrices, bool transposed, cuemu::Site);
void cuemu_copy_async(void* shared, const void* global, int bytes, int valid_bytes);
void cuemu_copy_commit();
void cuemu_copy_wait(int groups_left);

void cuemu_atomic_access(const void*, unsigned bytes, void* caller);  // for the race check and the counters
// The number itself, and that a function of it is computed: for the counters.
float cuemu_counted_float(float) __attribute__((const));
double cuemu_counted_double(double) __attribute__((const));
}
