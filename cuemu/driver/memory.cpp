// Allocation, copies and fills. Every device range must lie inside one live allocation, in every mode.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>

#include "driver.h"

using namespace driver;
using cuemu::options;

static std::map<uintptr_t, size_t> host;  // pinned host memory

bool driver::pinned(const void* p) {
  auto i = host.upper_bound((uintptr_t)p);
  return i != host.begin() && (uintptr_t)p < std::prev(i)->first + std::prev(i)->second;
}

static Result check_range(const char* call, DevicePointer p, size_t n) {
  if (!n || cuemu::inside((uintptr_t)p, n)) return SUCCESS;
  return refuse(INVALID_VALUE, "%s: %zu bytes at %llx are not inside one allocation: %s", call, n, p, cuemu::describe((uintptr_t)p, n).c_str());
}

static Result make(DevicePointer* p, size_t n) {
  if (!context) return INVALID_CONTEXT;
  if (!n) return INVALID_VALUE;
  void* memory = cuemu::allocate(n);
  if (!memory) return OUT_OF_MEMORY;
  return *p = (DevicePointer)memory, SUCCESS;
}

static Result unmake(const char* call, DevicePointer p) {
  if (!p || cuemu::release((uintptr_t)p)) return SUCCESS;
  return refuse(INVALID_VALUE, "%s(%llx): not the start of a live allocation", call, p);
}

CUEMU_API Result cuMemAlloc_v2(DevicePointer* p, size_t n) {
  ENTER;
  if (Result r = not_while_capturing("cuMemAlloc")) return r;
  return make(p, n);
}
CUEMU_API Result cuMemFree_v2(DevicePointer p) {
  ENTER;
  if (Result r = not_while_capturing("cuMemFree")) return r;
  wait_for_all();
  return unmake("cuMemFree", p);
}
CUEMU_API Result cuMemAllocAsync(DevicePointer* p, size_t n, Stream* s) {
  ENTER;
  if (s && s->capturing) return s->capture_failed = true, refuse(CAPTURE_UNSUPPORTED, "cuMemAllocAsync of %zu bytes while the stream is captured", n);
  return make(p, n);
}
CUEMU_API Result cuMemAllocFromPoolAsync(DevicePointer* p, size_t n, void*, Stream* s) { return cuMemAllocAsync(p, n, s); }
CUEMU_API Result cuMemFreeAsync(DevicePointer p, Stream* s) {
  ENTER;
  if (s && s->capturing) return s->capture_failed = true, refuse(CAPTURE_UNSUPPORTED, "cuMemFreeAsync while the stream is captured");
  if (!cuemu::inside((uintptr_t)p, 1)) return unmake("cuMemFreeAsync", p);
  return submit(s, [p] { return unmake("cuMemFreeAsync", p); });
}
CUEMU_API Result cuMemGetInfo_v2(size_t* available, size_t* total) {
  ENTER;
  size_t buffers, used;
  cuemu_memory(&buffers, &used);
  return *total = options.memory, *available = *total - used, SUCCESS;
}

// cuemu_lend in stream order: work submitted before still reads the old contents, and a graph lends again at every
// replay. Work submitted from now on has the new limit.
CUEMU_API void cuemu_lend_on(Stream* s, DevicePointer p, size_t n) {
  std::lock_guard<std::recursive_mutex> hold(driver::lock);
  cuemu_limit((uintptr_t)p, n);
  submit(s, [=] { return cuemu_lend((uintptr_t)p, n), SUCCESS; });
}

// ---- pinned host memory
CUEMU_API Result cuMemHostAlloc(void** p, size_t n, unsigned) {
  ENTER;
  *p = aligned_alloc(4096, (n + 4096) / 4096 * 4096);
  if (!*p) return OUT_OF_MEMORY;
  memset(*p, 0xff, n);
  return host[(uintptr_t)*p] = n, SUCCESS;
}
CUEMU_API Result cuMemAllocHost_v2(void** p, size_t n) { return cuMemHostAlloc(p, n, 0); }
CUEMU_API Result cuMemFreeHost(void* p) {
  ENTER;
  if (!host.erase((uintptr_t)p)) return refuse(INVALID_VALUE, "cuMemFreeHost(%p): not allocated by cuMemHostAlloc", p);
  wait_for_all();
  return free(p), SUCCESS;
}
CUEMU_API Result cuMemHostGetDevicePointer_v2(DevicePointer* d, void* p, unsigned) { return *d = (DevicePointer)p, SUCCESS; }

// ---- copies
static Result to_device(DevicePointer d, const void* s, size_t n) {
  if (Result r = check_range("a copy to the device", d, n)) return r;
  memcpy((void*)d, s, n);
  return cuemu::mark_initialised((uintptr_t)d, n), SUCCESS;
}
static Result to_host(void* d, DevicePointer s, size_t n) {
  if (Result r = check_range("a copy to the host", s, n)) return r;
  return memcpy(d, (void*)s, n), SUCCESS;
}
static Result within(DevicePointer d, DevicePointer s, size_t n) {
  if (Result r = check_range("a copy within the device", s, n)) return r;
  if (Result r = check_range("a copy within the device", d, n)) return r;
  if (n && d < s + n && s < d + n) return refuse(INVALID_VALUE, "a copy of %zu bytes from %llx to %llx overlaps itself", n, s, d);
  if (options.record) return SUCCESS;
  memcpy((void*)d, (void*)s, n);
  return cuemu::copy_initialised((uintptr_t)d, (uintptr_t)s, n), SUCCESS;
}

CUEMU_API Result cuMemcpyHtoD_v2(DevicePointer d, const void* s, size_t n) {
  ENTER;
  if (Result r = not_while_capturing("cuMemcpyHtoD")) return r;
  if (Result r = wait_for_all()) return r;
  return to_device(d, s, n);
}
CUEMU_API Result cuMemcpyDtoH_v2(void* d, DevicePointer s, size_t n) {
  ENTER;
  if (Result r = not_while_capturing("cuMemcpyDtoH")) return r;
  if (Result r = wait_for_all()) return r;
  return to_host(d, s, n);
}
CUEMU_API Result cuMemcpyDtoD_v2(DevicePointer d, DevicePointer s, size_t n) {
  ENTER;
  if (Result r = not_while_capturing("cuMemcpyDtoD")) return r;
  if (Result r = wait_for_all()) return r;
  return within(d, s, n);
}
CUEMU_API Result cuMemcpyHtoDAsync_v2(DevicePointer d, const void* s, size_t n, Stream* stream) {
  ENTER;
  if (Result r = check_range("cuMemcpyHtoDAsync", d, n)) return r;
  if (stream && stream->capturing) return submit(stream, [=] { return to_device(d, s, n); });  // read again at every replay
  if (options.late && !pinned(s)) {  // pageable memory is staged before the call returns
    std::string staged((const char*)s, n);
    return submit(stream, [=] { return to_device(d, staged.data(), n); });
  }
  return submit(stream, [=] { return to_device(d, s, n); });
}
CUEMU_API Result cuMemcpyDtoHAsync_v2(void* d, DevicePointer s, size_t n, Stream* stream) {
  ENTER;
  if (Result r = check_range("cuMemcpyDtoHAsync", s, n)) return r;
  if (Result r = submit(stream, [=] { return to_host(d, s, n); })) return r;
  return (stream && stream->capturing) || pinned(d) ? SUCCESS : wait_for_all();  // to pageable memory it is not asynchronous
}
CUEMU_API Result cuMemcpyDtoDAsync_v2(DevicePointer d, DevicePointer s, size_t n, Stream* stream) {
  ENTER;
  if (Result r = check_range("cuMemcpyDtoDAsync", s, n)) return r;
  if (Result r = check_range("cuMemcpyDtoDAsync", d, n)) return r;
  return submit(stream, [=] { return within(d, s, n); });
}

// ---- fills
template <class T> static Result fill(DevicePointer d, T value, size_t n) {
  if (Result r = check_range("a fill", d, n * sizeof(T))) return r;
  if (options.record) return SUCCESS;
  for (size_t i = 0; i < n; i++) ((T*)d)[i] = value;
  return cuemu::mark_initialised((uintptr_t)d, n * sizeof(T)), SUCCESS;
}
#define FILL(NAME, T)                                                                   \
  CUEMU_API Result NAME##Async(DevicePointer d, T value, size_t n, Stream* s) {         \
    ENTER;                                                                              \
    if (Result r = check_range(#NAME "Async", d, n * sizeof(T))) return r;              \
    return submit(s, [=] { return fill<T>(d, value, n); });                             \
  }                                                                                     \
  CUEMU_API Result NAME##_v2(DevicePointer d, T value, size_t n) {                      \
    ENTER;                                                                              \
    if (Result r = not_while_capturing(#NAME)) return r;                                \
    if (Result r = wait_for_all()) return r;                                            \
    return fill<T>(d, value, n);                                                        \
  }
FILL(cuMemsetD8, unsigned char)
FILL(cuMemsetD16, unsigned short)
FILL(cuMemsetD32, unsigned)

// ---- memory pools: settings that change nothing here
CUEMU_API Result cuDeviceGetDefaultMemPool(void** pool, int) { return *pool = &host, SUCCESS; }
CUEMU_API Result cuDeviceGetMemPool(void** pool, int) { return *pool = &host, SUCCESS; }
CUEMU_API Result cuDeviceSetMemPool(int, void*) { return SUCCESS; }
CUEMU_API Result cuMemPoolSetAttribute(void*, int, void*) { return SUCCESS; }
CUEMU_API Result cuMemPoolTrimTo(void*, size_t) { return SUCCESS; }
CUEMU_API Result cuMemPoolGetAttribute(void*, int, void* value) { return *(unsigned long long*)value = 0, SUCCESS; }
