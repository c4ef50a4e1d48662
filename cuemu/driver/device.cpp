// One device, "emulated", with the limits of sm_90; contexts; errors; options.
#include <chrono>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "driver.h"

namespace driver {
std::recursive_mutex lock;
Result sticky = SUCCESS;
std::string fault;
thread_local void* context = nullptr;
static int the_context;

Result refuse(Result code, const char* format, ...) {
  va_list list;
  va_start(list, format);
  fprintf(stderr, "emulator: ");
  vfprintf(stderr, format, list);
  fprintf(stderr, "\n");
  va_end(list);
  return code;
}

double seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }
}  // namespace driver

using namespace driver;

CUEMU_API Result cuInit(unsigned) { return getenv("TAPEZOO_EMU_NO_DEVICE") ? NO_DEVICE : SUCCESS; }
CUEMU_API Result cuDriverGetVersion(int* version) {
  const char* given = getenv("TAPEZOO_EMU_DRIVER");
  return *version = given ? atoi(given) : 13000, SUCCESS;
}
CUEMU_API Result cuDeviceGetCount(int* n) { return *n = 1, SUCCESS; }
CUEMU_API Result cuDeviceGet(int* device, int ordinal) { return *device = 0, ordinal ? INVALID_DEVICE : SUCCESS; }
CUEMU_API Result cuDeviceGetName(char* name, int n, int) { return snprintf(name, n, "emulated"), SUCCESS; }
CUEMU_API Result cuDeviceTotalMem_v2(size_t* bytes, int) { return *bytes = cuemu::options.memory, SUCCESS; }
CUEMU_API Result cuDeviceGetUuid_v2(void* uuid, int) { return memset(uuid, 0xce, 16), SUCCESS; }
CUEMU_API Result cuDeviceGetUuid(void* uuid, int) { return memset(uuid, 0xce, 16), SUCCESS; }

CUEMU_API Result cuDeviceGetAttribute(int* value, int attribute, int) {
  const struct {
    int attribute, value;
  } known[] = {
      {1, 1024},        // threads a block
      {2, 1024},        // block.x
      {3, 1024},        // block.y
      {4, 64},          // block.z
      {5, 2147483647},  // grid.x
      {6, 65535},       // grid.y
      {7, 65535},       // grid.z
      {8, 49152},       // shared memory a block, without opting in
      {9, 65536},       // constant memory
      {10, 32},         // warp
      {12, 65536},      // registers a block
      {13, 1000000},    // clock, kHz
      {16, cuemu::options.processors},
      {31, 1},          // concurrent kernels
      {36, 1000000},    // memory clock, kHz
      {37, 1024},       // bus width
      {38, 50 << 20},   // L2
      {39, THREADS_OF_PROCESSOR},
      {40, 1},          // asynchronous copy engines
      {41, 1},          // unified addressing
      {75, cuemu::options.capability / 10},
      {76, cuemu::options.capability % 10},
      {81, SHARED_OF_PROCESSOR},
      {82, 65536},   // registers a multiprocessor
      {95, 1},       // cooperative launches
      {97, (int)cuemu::options.shared},
      {106, 32},  // blocks a multiprocessor
      {115, 1},   // stream-ordered allocation
  };
  *value = 0;
  for (auto& k : known)
    if (k.attribute == attribute) *value = k.value;
  return SUCCESS;
}

// ---- contexts: one, of the one device
CUEMU_API Result cuDevicePrimaryCtxRetain(void** c, int) { return *c = &the_context, SUCCESS; }
CUEMU_API Result cuDevicePrimaryCtxRelease_v2(int) { return SUCCESS; }
CUEMU_API Result cuCtxCreate_v2(void** c, unsigned, int) { return context = *c = &the_context, SUCCESS; }
CUEMU_API Result cuCtxDestroy_v2(void*) { return SUCCESS; }
CUEMU_API Result cuCtxSetCurrent(void* c) { return context = c, SUCCESS; }
CUEMU_API Result cuCtxGetCurrent(void** c) { return *c = context, SUCCESS; }
CUEMU_API Result cuCtxGetDevice(int* device) { return *device = 0, SUCCESS; }
CUEMU_API Result cuCtxSetFlags(unsigned) { return SUCCESS; }
CUEMU_API Result cuCtxGetLimit(size_t* v, int) { return *v = 1024, SUCCESS; }
CUEMU_API Result cuCtxSetLimit(int, size_t) { return SUCCESS; }
CUEMU_API Result cuCtxSetCacheConfig(int) { return SUCCESS; }
CUEMU_API Result cuCtxGetCacheConfig(int* v) { return *v = 0, SUCCESS; }
CUEMU_API Result cuCtxGetStreamPriorityRange(int* least, int* greatest) { return *least = *greatest = 0, SUCCESS; }
CUEMU_API Result cuProfilerStart() { return SUCCESS; }
CUEMU_API Result cuProfilerStop() { return SUCCESS; }
CUEMU_API Result cuCtxSynchronize() {
  ENTER;
  if (Result r = not_while_capturing("cuCtxSynchronize")) return r;
  return wait_for_all();
}

// ---- errors
static const struct {
  int code;
  const char *name, *text;
} ERRORS[] = {
    {SUCCESS, "CUDA_SUCCESS", "no error"},
    {INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {INVALID_IMAGE, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
    {INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {ILLEGAL_STATE, "CUDA_ERROR_ILLEGAL_STATE", "the operation cannot be performed in the present state"},
    {NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {NOT_READY, "CUDA_ERROR_NOT_READY", "device not ready"},
    {ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {LAUNCH_OUT_OF_RESOURCES, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", "too many resources requested for launch"},
    {LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {COOPERATIVE_LAUNCH_TOO_LARGE, "CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE", "too many blocks in cooperative launch"},
    {NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {CAPTURE_UNSUPPORTED, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "operation not permitted when stream is capturing"},
    {CAPTURE_INVALIDATED, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED", "operation failed due to a previous error during capture"},
};
CUEMU_API Result cuGetErrorName(int code, const char** s) {
  for (auto& e : ERRORS)
    if (e.code == code) return *s = e.name, SUCCESS;
  return *s = "CUDA_ERROR_UNKNOWN", SUCCESS;
}
CUEMU_API Result cuGetErrorString(int code, const char** s) {
  for (auto& e : ERRORS)
    if (e.code == code) return *s = e.text, SUCCESS;
  return *s = "unknown error", SUCCESS;
}

// ---- beyond CUDA: the emulator's last fault
CUEMU_API size_t cuemu_fault(char* text, size_t n) {  // the last kernel fault; returns its length
  std::lock_guard<std::recursive_mutex> hold(driver::lock);
  if (n) snprintf(text, n, "%s", fault.c_str());
  return fault.size();
}
CUEMU_API void cuemu_reset() {  // forgets a fault, so that a test may provoke the next
  std::lock_guard<std::recursive_mutex> hold(driver::lock);
  sticky = SUCCESS, fault.clear();
}
