// The stand-in libcuda.so: the driver's entry points that the backend uses, over the machine (../machine).
//
// Handles are pointers to the structs below; a device pointer is a host address. One lock guards everything, launches
// included. Asynchronous work goes through one queue in the order of submission. It runs at once or, with
// TAPEZOO_EMU_LATE=1, when the program waits for it, which shows a missing synchronisation. During a stream's capture
// it is kept in a graph instead.
#pragma once
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "../machine/machine.h"

typedef int Result;
typedef unsigned long long DevicePointer;
enum : int {
  SUCCESS = 0,
  INVALID_VALUE = 1,
  OUT_OF_MEMORY = 2,
  NO_DEVICE = 100,
  INVALID_DEVICE = 101,
  INVALID_IMAGE = 200,
  INVALID_CONTEXT = 201,
  INVALID_HANDLE = 400,
  ILLEGAL_STATE = 401,
  NOT_FOUND = 500,
  NOT_READY = 600,
  ILLEGAL_ADDRESS = 700,
  LAUNCH_OUT_OF_RESOURCES = 701,
  LAUNCH_FAILED = 719,
  COOPERATIVE_LAUNCH_TOO_LARGE = 720,
  NOT_SUPPORTED = 801,
  CAPTURE_UNSUPPORTED = 900,
  CAPTURE_INVALIDATED = 901,
};

// Limits of the emulated device.
constexpr int THREADS_OF_PROCESSOR = 2048, SHARED_OF_PROCESSOR = 233472;

typedef std::function<Result()> Work;

struct Graph {
  std::vector<Work> nodes;
};
struct Stream {
  Graph* capturing = nullptr;
  bool capture_failed = false;
};
struct Event {
  bool timed = true;
  double time = 0;
  bool recorded = false;
};

CUEMU_API void cuemu_memory(size_t* buffers, size_t* bytes);
CUEMU_API void cuemu_lend(uintptr_t start, size_t bytes);
CUEMU_API void cuemu_limit(uintptr_t start, size_t bytes);

namespace driver {
extern std::recursive_mutex lock;
extern Result sticky;  // after a fault every call fails, as on hardware
extern std::string fault;
extern thread_local void* context;

// Says what a program did wrong on stderr, and returns the code.
__attribute__((format(printf, 2, 3))) Result refuse(Result, const char* format, ...);
Result submit(Stream*, Work);       // run, queue or capture
Result wait_for_all();              // run all queued work
Result not_while_capturing(const char* call);  // for calls that a capture forbids
// Write a launch of this module, element type and kernel down in place of running it (TAPEZOO_EMU_RECORD).
Result record(const std::string& kernel, cuemu::Index grid, cuemu::Index size, unsigned shared, bool together, const std::vector<size_t>& sizes, void** arguments);
bool pinned(const void*);           // host memory that the driver allocated
double seconds();
}  // namespace driver

#define ENTER                                                \
  std::lock_guard<std::recursive_mutex> hold(driver::lock); \
  if (driver::sticky) return driver::sticky
