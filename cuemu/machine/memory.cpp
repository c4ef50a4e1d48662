// Device memory: ordinary host memory with a table of what is allocated.
//
// New memory is filled with 0xff bytes (NaN as a float) and freed memory with 0xfe, so that a kernel that relies on
// unwritten memory gives a wrong result in every mode. When checking, each allocation has a byte per byte that says
// whether it has been written, and cells for the race check; both are committed page by page as used.
#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>

#include "machine.h"

namespace cuemu {

// Room on both sides of an allocation, so that a small overrun in unchecked mode hits no other buffer.
constexpr size_t ROOM = 256;
static std::map<uintptr_t, Allocation> table;
static Allocation* recent = nullptr;  // the allocation found last
static size_t in_use = 0, peak = 0, made = 0;

struct Freed {
  uintptr_t start;
  size_t size;
};
static Freed freed[64];  // for messages
static unsigned freed_count = 0;

void* allocate(size_t size) {
  if (in_use + size > options.memory) return nullptr;
  const size_t page = 4096;
  char* memory = (char*)aligned_alloc(ROOM, (size + ROOM - 1) / ROOM * ROOM + 2 * ROOM);
  if (!memory) return nullptr;
  char* start = memory + ROOM;
  if (!options.record) memset(start, 0xff, size);  // else nothing is read, and most is never touched
  Allocation a = {(uintptr_t)start, size, size, nullptr, nullptr};
  if (options.check) {
    a.initialised = (uint8_t*)mmap(nullptr, (size + page) / page * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    a.cells = map_cells(size);
  }
  table[a.start] = a;
  recent = nullptr;
  in_use += size, made++;
  if (in_use > peak) peak = in_use;
  return start;
}

bool release(uintptr_t start) {
  auto i = table.find(start);
  if (i == table.end()) return false;
  Allocation& a = i->second;
  if (!options.record) memset((void*)start, 0xfe, a.size);
  if (a.initialised) munmap(a.initialised, (a.size + 4096) / 4096 * 4096);
  if (a.cells) unmap_cells(a.cells, a.size);
  freed[freed_count++ % 64] = {a.start, a.size};
  in_use -= a.size;
  free((char*)start - ROOM);
  table.erase(i);
  recent = nullptr;
  return true;
}

Allocation* find(uintptr_t address) {
  if (recent && address - recent->start < recent->size) return recent;
  auto i = table.upper_bound(address);
  if (i == table.begin()) return nullptr;
  Allocation& a = (--i)->second;
  return address - a.start < a.size ? recent = &a : nullptr;
}

bool inside(uintptr_t address, size_t bytes) {
  Allocation* a = find(address);
  return a && bytes <= a->start + a->usable - address;
}

void mark_initialised(uintptr_t address, size_t bytes) {
  Allocation* a = find(address);
  if (a && a->initialised) memset(a->initialised + (address - a->start), 1, bytes);
}

void copy_initialised(uintptr_t to, uintptr_t from, size_t bytes) {
  Allocation *t = find(to), *f = find(from);
  if (!t || !t->initialised) return;
  if (f && f->initialised)
    memmove(t->initialised + (to - t->start), f->initialised + (from - f->start), bytes);
  else
    memset(t->initialised + (to - t->start), 1, bytes);
}

// "N bytes past the end of a buffer …" if a live buffer is within `reach`; else empty.
static std::string near(uintptr_t address, size_t bytes, size_t reach) {
  char text[160] = "";
  auto next = table.upper_bound(address);
  const Allocation* before = next == table.begin() ? nullptr : &std::prev(next)->second;
  if (before && address + bytes > before->start + before->usable && address < before->start + before->size + reach)
    snprintf(text, sizeof text, "%zu bytes past the end of a buffer of %zu bytes", (size_t)(address + bytes - before->start - before->usable), before->usable);
  else if (next != table.end() && next->first - address <= reach)
    snprintf(text, sizeof text, "%zu bytes before the start of a buffer of %zu bytes", (size_t)(next->first - address), next->second.usable);
  return text;
}

std::string describe(uintptr_t address, size_t bytes) {
  std::string text = near(address, bytes, ROOM);
  for (const Freed& f : freed)
    if (text.empty() && address - f.start < f.size) text = "in a buffer of " + std::to_string(f.size) + " bytes that has been freed";
  if (text.empty()) text = near(address, bytes, 65536);
  return !text.empty() ? text : address < 4096 ? "a null pointer" : "not device memory";
}

// Reported at the end of the process with TAPEZOO_EMU_LEAKS=1.
static struct Leaks {
  ~Leaks() {
    const char* s = getenv("TAPEZOO_EMU_LEAKS");
    if (!s || !*s || !strcmp(s, "0")) return;
    fprintf(stderr, "emulator: %zu allocations, peak %zu bytes, %zu never freed", made, peak, table.size());
    int n = 0;
    for (auto& [start, a] : table)
      if (n++ < 8) fprintf(stderr, "%s%zu", n == 1 ? " (bytes: " : ", ", a.size);
    fprintf(stderr, "%s\n", n > 8 ? ", …)" : n ? ")" : "");
  }
} leaks;

}  // namespace cuemu

using namespace cuemu;

// The present number and bytes of allocations.
CUEMU_API void cuemu_memory(size_t* buffers, size_t* bytes) { *buffers = table.size(), *bytes = in_use; }

// Only the first `bytes` of a buffer may be used.
CUEMU_API void cuemu_limit(uintptr_t start, size_t bytes) {
  auto i = table.find(start);
  if (i != table.end() && bytes <= i->second.size) i->second.usable = bytes;
}

// A caching allocator lends a buffer again: only `bytes` of it may be used, and its contents count as unwritten.
CUEMU_API void cuemu_lend(uintptr_t start, size_t bytes) {
  auto i = table.find(start);
  if (i == table.end() || bytes > i->second.size) return;
  cuemu_limit(start, bytes);
  memset((void*)start, 0xff, i->second.size);
  if (i->second.initialised) memset(i->second.initialised, 0, i->second.size);
}
