// The machine: one CUDA block at a time, its threads as fibers of one system thread.
//
// A block is an array of threads, a thread a stack and a state. Threads run one after another and switch only where
// CUDA threads synchronise: barriers, warp operations, the end (schedule.cpp, warp.cpp). launch.cpp runs the blocks of
// a grid, grid.cpp the blocks of a cooperative launch; memory.cpp knows every device allocation; check.cpp checks every
// access of a module compiled for checking, count.cpp counts those of one compiled for counting; compile.cpp turns kernel
// text into a module. The driver (../driver) holds one lock over all of it.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "../kernel/abi.h"
#include "fiber.h"

#define CUEMU_API extern "C" __attribute__((visibility("default")))

namespace cuemu {

constexpr unsigned WARP = 32, MAX_THREADS = 1024;
struct Index {
  unsigned x, y, z;
  uint64_t volume() const { return (uint64_t)x * y * z; }
};

// ---- options, from the environment or a test (options.cpp)
enum class Order { Forward, Reverse, Random };
struct Options {
  bool check;       // compile modules with checks, keep shadow memory
  bool count;       // compile modules for counting, count what launches of them do
  bool debug;       // compile modules for a debugger
  bool late;        // asynchronous driver calls run when the program waits for them
  Order order;      // in which threads and blocks run
  uint64_t seed;    // of the random order
  size_t memory;    // bytes of device memory
  int processors;   // multiprocessors of the device
  const char* record;  // the file that launches are written to instead of run, or null
  int capability;      // compute capability, such as 90
  unsigned shared;     // bytes of shared memory that a block may have
};
extern Options options;
bool left_out(const Site&);  // the barrier that TAPEZOO_EMU_WITHOUT names

// ---- threads, warps, the block that runs (schedule.cpp, warp.cpp)
enum class State : uint8_t { Ready, AtWarp, AtBlock, AtGrid, Exited };
struct Thread {
  Fiber fiber;
  Index index;
  uint16_t linear, warp, lane;
  State state;
  const char* waits_for;   // the operation it waits in, and where that was called
  Site site;
  unsigned warp_barriers;  // how many __syncwarp it has passed: the race check's clock within a warp
};

// The lanes of one mask that meet at a warp operation. Slots are double-buffered: a fast lane may enter the next
// operation before a slow one has read the results of this one.
struct Meeting {
  uint32_t mask, arrived, generation;
  const char* operation;
  Site site;
  alignas(16) unsigned char slot[2][WARP][32];
};
struct WarpLog;
struct Warp {
  uint32_t all, alive, ready;  // masks of lanes
  WarpLog* log = nullptr;      // what it does, for the counters
  int meetings;
  Meeting meeting[8];
};

struct Block {
  Index grid, size, index;
  unsigned dynamic_shared;
  uint32_t threads, warps, alive, arrived;  // arrived: at the block's barrier
  Thread* thread;
  Warp* warp;
  Site barrier;  // where the first thread to arrive waits
  int vote_and, vote_or, vote_sum, result_and, result_or, result_sum;
  uint64_t random;
  bool failed;
};
extern Block block;
extern Thread* now;    // the thread that runs, or null outside kernels
extern Fiber outside;  // where the launch itself runs

void forget_copies(uint32_t threads);  // cp.async of an earlier block
uint32_t random_bits();
Thread* next_ready();
void run_instead(Thread*);
void wait_here(State, const char* what, Site);
void release_block();
void release_meeting(Warp&, uint32_t warp, Meeting&);
void exit_thread();
typedef unsigned char (*Slots)[32];
// Publish `bytes` at `value`, wait for the live lanes of `mask`, and see what each has published.
Slots meet(uint32_t mask, const void* value, size_t bytes, const char* operation, Site, uint32_t* live);

// Reports the first fault and leaves the launch. `{+0x12}` in the text stands for a place in the module's code and
// becomes FILE:LINE.
__attribute__((format(printf, 1, 2), noreturn)) void fail(const char* format, ...);
std::string place(const void* code);  // the `{+0x12}` of an address

// ---- the blocks of a cooperative launch, which all exist at once and take turns (grid.cpp)
void start_grid(uint32_t blocks);  // forgets the last one
void keep_block(uint32_t);         // `block` was just started, with this number
Thread* next_of_grid();            // when no thread of this block is ready: a thread to run; its block becomes `block`

// ---- modules and launches (launch.cpp)
struct LoadedModule {
  void* library;
  std::string path;
  Module module;
  uintptr_t code;                                    // where the library lies
  std::vector<std::pair<uintptr_t, uintptr_t>> image;  // its segments: code, constants, variables
  size_t shared_size;                                // of its thread-local block: all __shared__ arrays
  bool checked, counted;                             // compiled for checking, for counting
};
extern LoadedModule* running;
LoadedModule* load(const std::string& path, std::string& error);
const Kernel* find_kernel(LoadedModule*, const char* name);
// Bytes of the `__shared__` arrays that a kernel declares, and of those of all functions of its module: which of them it calls
// is not known here, so this may be more than a GPU counts.
size_t static_shared(const LoadedModule*, const Kernel*);
// Runs a grid to its end or first fault; `fault` then has the kernel, block, thread, place and error. `together`: a
// cooperative launch.
bool launch(LoadedModule*, const Kernel*, Index grid, Index size, unsigned dynamic_shared, bool together, void** arguments, std::string& fault);

struct SharedRange {  // this system thread's __shared__ arrays
  uintptr_t start, dynamic;
  size_t size;
};
extern SharedRange shared_range;
// The parts of it that the block has: f(first byte's address, bytes).
template <class F> void each_shared(F f) {
  const SharedRange& r = shared_range;
  const uintptr_t rest = r.dynamic + MAX_DYNAMIC_SHARED;
  f(r.start, r.dynamic - r.start), f(r.dynamic, (size_t)block.dynamic_shared), f(rest, r.start + r.size - rest);
}

// ---- device memory (memory.cpp)
struct Cell;
struct Allocation {
  uintptr_t start;
  size_t size, usable;   // usable: the part that a caching allocator has lent
  uint8_t* initialised;  // a byte a byte, or null when not checking
  Cell* cells;           // the race check's memory, one per four bytes
};
void* allocate(size_t);
bool release(uintptr_t);
Allocation* find(uintptr_t address);                 // the allocation that holds an address, or null
bool inside(uintptr_t address, size_t bytes);
void mark_initialised(uintptr_t address, size_t bytes);
void copy_initialised(uintptr_t to, uintptr_t from, size_t bytes);
std::string describe(uintptr_t address, size_t bytes);  // for messages: what is near

// ---- checks (check.cpp)
enum class Access { Read, Write, Atomic };
void access(uintptr_t, size_t bytes, Access, const void* code);
void unwritten(uintptr_t shared, size_t bytes);  // marks shared memory as unwritten
// As `access`, for host code of a library that reads or writes a whole device range.
bool range_ok(uintptr_t, size_t bytes, bool reads, std::string& fault);
void start_checks_of_launch();
void start_checks_of_block();
void barrier_passed();
void choose_checks_of_block(uint32_t);  // the checks of the block that was started as the n-th of this launch
void released(uintptr_t), acquired(uintptr_t);
uint8_t* shared_marks(uintptr_t);  // which bytes of shared memory have been written, from this address on, or null
Cell* map_cells(size_t bytes);
void unmap_cells(Cell*, size_t bytes);

// ---- counters (count.cpp)
extern bool counting;  // whether the launch that runs is counted; where it is not, nothing below may be called
void start_counts_of_launch(const Kernel*), end_counts_of_launch();
void start_counts_of_block();
void count_access(uintptr_t, size_t bytes, const void* code);
void count_copy(uintptr_t shared, uintptr_t global, size_t bytes, size_t valid, const void* code);  // cp.async
void count_matrix(const uintptr_t rows[8]);  // one of ldmatrix
void count_ldmatrix(), count_mma(), count_barrier();
void count_together(Warp&);  // its live lanes have met, or all have exited
void count_call(const void* caller), count_return();

// ---- compilation (compile.cpp)
struct Compiled {
  std::string image, log;
  bool ok;
};
Compiled compile(const std::string& source, const std::string& name, const std::vector<std::string>& options, const std::vector<std::string>& names);
std::string home();                                    // the directory of the libraries and of the kernels' headers
std::string library_of(const std::string& image, std::string& error);  // the shared object for an image, built if need be
// The program's name of the module, and the type in its `typedef .. S;`, which its tensors' elements have.
void described(const std::string& image, std::string& name, std::string& element);

}  // namespace cuemu
