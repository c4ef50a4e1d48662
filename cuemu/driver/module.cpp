// Modules, functions, launches.
#include <dlfcn.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <map>

#include "driver.h"

using namespace driver;
using cuemu::Index;
using cuemu::LoadedModule;

static std::map<LoadedModule*, std::string> names;  // and element types, for a record

struct Function {
  LoadedModule* module;
  const cuemu::Kernel* kernel;
  unsigned own;            // static shared memory, which counts towards every limit
  unsigned dynamic_limit;  // until the program asks for more
};

CUEMU_API Result cuModuleLoadData(LoadedModule** out, const void* image) {
  {
    ENTER;
  }
  std::string error, library = cuemu::library_of((const char*)image, error);  // may compile: not under the lock
  if (library.empty()) return refuse(INVALID_IMAGE, "%s", error.c_str());
  ENTER;
  *out = cuemu::load(library, error);
  if (*out && cuemu::options.record) {
    std::string name, element;
    cuemu::described((const char*)image, name, element);
    names[*out] = name + " " + (element == "float" ? "f32" : element == "double" ? "f64" : element);
  }
  return *out ? SUCCESS : refuse(INVALID_IMAGE, "%s", error.c_str());
}
CUEMU_API Result cuModuleLoadDataEx(LoadedModule** out, const void* image, unsigned, void*, void*) { return cuModuleLoadData(out, image); }
CUEMU_API Result cuModuleUnload(LoadedModule*) { return SUCCESS; }  // its code stays loaded: a queue or graph may need it
CUEMU_API Result cuModuleGetFunction(Function** f, LoadedModule* m, const char* name) {
  ENTER;
  const cuemu::Kernel* k = cuemu::find_kernel(m, name);
  if (!k) return NOT_FOUND;
  static std::map<const cuemu::Kernel*, Function*> known;  // who asks again gets the same one, with its limits
  Function*& function = known[k];
  if (!function) {
    const unsigned own = (unsigned)cuemu::static_shared(m, k);
    function = new Function{m, k, own, own < 49152 ? 49152 - own : 0};
  }
  return *f = function, SUCCESS;
}
CUEMU_API Result cuModuleGetGlobal_v2(DevicePointer* p, size_t* n, LoadedModule* m, const char* name) {
  ENTER;
  void* symbol = dlsym(m->library, name);
  if (!symbol) return NOT_FOUND;
  if (p) *p = (DevicePointer)symbol;
  if (n) *n = 0;
  return SUCCESS;
}

// ---- functions
enum { ATTRIBUTE_MAX_THREADS = 0, ATTRIBUTE_SHARED = 1, ATTRIBUTE_REGISTERS = 4, ATTRIBUTE_MAX_DYNAMIC_SHARED = 8 };
// Without __launch_bounds__ a kernel may take 255 registers per thread, and a device has enough for 256 such threads.
static unsigned max_threads(const Function* f) { return f->kernel->max_threads ? f->kernel->max_threads : 256; }

CUEMU_API Result cuFuncSetAttribute(Function* f, int attribute, int value) {
  ENTER;
  if (attribute != ATTRIBUTE_MAX_DYNAMIC_SHARED) return SUCCESS;
  if (value < 0 || value + (int64_t)f->own > cuemu::options.shared) return refuse(INVALID_VALUE, "%s: %d bytes of dynamic shared memory asked for beside %u of its own, the device has %u", f->kernel->name, value, f->own, cuemu::options.shared);
  return f->dynamic_limit = (unsigned)value, SUCCESS;
}
CUEMU_API Result cuFuncGetAttribute(int* value, int attribute, Function* f) {
  ENTER;
  *value = attribute == ATTRIBUTE_MAX_THREADS ? (int)max_threads(f) : attribute == ATTRIBUTE_SHARED ? (int)f->own : attribute == ATTRIBUTE_REGISTERS ? 32 : attribute == ATTRIBUTE_MAX_DYNAMIC_SHARED ? (int)f->dynamic_limit : 0;
  return SUCCESS;
}
CUEMU_API Result cuFuncSetCacheConfig(Function*, int) { return SUCCESS; }
CUEMU_API Result cuFuncGetParamInfo(Function* f, size_t i, size_t* offset, size_t* size) {
  ENTER;
  if (i >= f->kernel->parameters) return INVALID_VALUE;
  size_t at = 0;
  for (size_t k = 0; k <= i; k++) {
    const size_t alignment = f->kernel->alignments[k];
    at = (at + alignment - 1) / alignment * alignment;
    if (k < i) at += f->kernel->sizes[k];
  }
  return *offset = at, *size = f->kernel->sizes[i], SUCCESS;
}
// A block takes a kilobyte of shared memory in addition to its own.
static int blocks_of_processor(int threads, size_t shared) { return std::min(THREADS_OF_PROCESSOR / threads, (int)(SHARED_OF_PROCESSOR / (shared + 1024))); }
CUEMU_API Result cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* n, Function* f, int threads, size_t shared, unsigned) { return *n = threads > 0 ? blocks_of_processor(threads, f->own + shared) : 0, SUCCESS; }
CUEMU_API Result cuOccupancyMaxActiveBlocksPerMultiprocessor(int* n, Function* f, int threads, size_t shared) { return cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(n, f, threads, shared, 0); }
CUEMU_API Result cuOccupancyMaxPotentialBlockSize(int* grid, int* threads, Function* f, void*, size_t, int limit) {
  *threads = (int)max_threads(f);
  if (limit && *threads > limit) *threads = limit;
  return *grid = 4, SUCCESS;
}

// ---- launches
static Result check_launch(Function* f, Index grid, Index size, unsigned shared) {
  const char* name = f->kernel->name;
  if (!context) return INVALID_CONTEXT;
  if (!grid.volume() || grid.x > 2147483647u || grid.y > 65535 || grid.z > 65535) return refuse(INVALID_VALUE, "%s: a grid of %u x %u x %u blocks", name, grid.x, grid.y, grid.z);
  if (!size.volume() || size.volume() > cuemu::MAX_THREADS || size.z > 64) return refuse(INVALID_VALUE, "%s: blocks of %u x %u x %u threads", name, size.x, size.y, size.z);
  if (size.volume() > max_threads(f)) return refuse(LAUNCH_OUT_OF_RESOURCES, "%s: blocks of %u threads, its __launch_bounds__ allow %u (256 where there are none)", name, (unsigned)size.volume(), max_threads(f));
  if (shared > f->dynamic_limit) return refuse(INVALID_VALUE, "%s: %u bytes of dynamic shared memory beside %u of its own, its limit is %u until raised by cuFuncSetAttribute", name, shared, f->own, f->dynamic_limit);
  return SUCCESS;
}

static Result launch(Function* f, Index grid, Index size, unsigned shared, bool together, Stream* s, void** arguments) {
  if (Result r = check_launch(f, grid, size, shared)) return r;
  const cuemu::Kernel* k = f->kernel;
  if (cuemu::options.record) return record(names[f->module] + " " + k->name, grid, size, shared, together, {k->sizes, k->sizes + k->parameters}, arguments);
  // The arguments are copied now: the caller's array is gone when a queue or a graph runs the launch.
  std::vector<std::vector<long double>> kept(k->parameters);  // long double: aligned for anything
  for (unsigned i = 0; i < k->parameters; i++) {
    kept[i].resize(k->sizes[i] / sizeof(long double) + 1);
    memcpy(kept[i].data(), arguments[i], k->sizes[i]);
  }
  LoadedModule* m = f->module;
  return submit(s, [=]() mutable -> Result {
    std::vector<void*> pointers;
    for (auto& v : kept) pointers.push_back(v.data());
    if (cuemu::launch(m, k, grid, size, shared, together, pointers.data(), fault)) return SUCCESS;
    return refuse(LAUNCH_FAILED, "%s", fault.c_str());
  });
}

CUEMU_API Result cuLaunchKernel(Function* f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, Stream* s, void** arguments, void**) {
  ENTER;
  return launch(f, {gx, gy, gz}, {bx, by, bz}, shared, false, s, arguments);
}
// All blocks at once, or none.
CUEMU_API Result cuLaunchCooperativeKernel(Function* f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, Stream* s, void** arguments) {
  ENTER;
  const Index grid = {gx, gy, gz}, size = {bx, by, bz};
  const uint64_t most = size.volume() ? (uint64_t)cuemu::options.processors * blocks_of_processor((int)size.volume(), f->own + shared) : 0;
  if (grid.volume() > most) return refuse(COOPERATIVE_LAUNCH_TOO_LARGE, "%s: %lu blocks that wait for one another, the device has room for %lu", f->kernel->name, (unsigned long)grid.volume(), (unsigned long)most);
  return launch(f, grid, size, shared, true, s, arguments);
}
