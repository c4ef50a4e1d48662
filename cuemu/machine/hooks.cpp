// The functions that g++ calls from a module compiled with -fsanitize=thread,alignment,bounds.
//
// That option only inserts calls (`__tsan_read4(p)` before a four-byte load). No sanitizer runtime is linked: these
// functions are the emulator's, and know which accesses a CUDA barrier orders.
#include "machine.h"

using cuemu::Access;
#define CALLER __builtin_return_address(0)

static void seen(void* p, size_t n, Access kind, const void* code) {
  if (cuemu::counting) cuemu::count_access((uintptr_t)p, n, code);
  cuemu::access((uintptr_t)p, n, kind, code);
}

CUEMU_API void __tsan_init() {}
CUEMU_API void __tsan_func_entry(void* caller) { if (cuemu::counting) cuemu::count_call(caller); }
CUEMU_API void __tsan_func_exit() { if (cuemu::counting) cuemu::count_return(); }
CUEMU_API void __tsan_vptr_update(void**, void*) {}
CUEMU_API void __tsan_vptr_read(void**) {}

#define HOOKS(N)                                                                                                      \
  CUEMU_API void __tsan_read##N(void* p) { seen(p, N, Access::Read, CALLER); }                    \
  CUEMU_API void __tsan_write##N(void* p) { seen(p, N, Access::Write, CALLER); }                  \
  CUEMU_API void __tsan_volatile_read##N(void* p) { seen(p, N, Access::Read, CALLER); }           \
  CUEMU_API void __tsan_volatile_write##N(void* p) { seen(p, N, Access::Write, CALLER); }         \
  CUEMU_API void __tsan_unaligned_read##N(void* p) { seen(p, N, Access::Read, CALLER); }          \
  CUEMU_API void __tsan_unaligned_write##N(void* p) { seen(p, N, Access::Write, CALLER); }        \
  CUEMU_API void __tsan_unaligned_volatile_read##N(void* p) { seen(p, N, Access::Read, CALLER); } \
  CUEMU_API void __tsan_unaligned_volatile_write##N(void* p) { seen(p, N, Access::Write, CALLER); }
HOOKS(1)
HOOKS(2)
HOOKS(4)
HOOKS(8)
HOOKS(16)
CUEMU_API void __tsan_read_range(void* p, size_t n) { seen(p, n, Access::Read, CALLER); }
CUEMU_API void __tsan_write_range(void* p, size_t n) { seen(p, n, Access::Write, CALLER); }
CUEMU_API void* __tsan_memcpy(void* to, const void* from, size_t n) {
  seen((void*)from, n, Access::Read, CALLER), seen(to, n, Access::Write, CALLER);
  return __builtin_memcpy(to, from, n);
}
CUEMU_API void* __tsan_memset(void* to, int value, size_t n) {
  seen(to, n, Access::Write, CALLER);
  return __builtin_memset(to, value, n);
}

// -fsanitize=alignment,bounds: the compiler hands over file, line and column.
struct Location {
  const char* file;
  uint32_t line, column;
};
CUEMU_API void __ubsan_handle_type_mismatch_v1(Location* at, uintptr_t p) {
  if (cuemu::now) cuemu::fail("misaligned or null pointer %p at %s:%u", (void*)p, at->file, at->line);
}
CUEMU_API void __ubsan_handle_out_of_bounds(Location* at, uintptr_t index) {
  if (cuemu::now) cuemu::fail("array index %ld is out of bounds at %s:%u", (long)index, at->file, at->line);
}
