// What a checked module's accesses are judged by: bounds, alignment, initialisation, races.
//
// Races. Every barrier, block and launch starts a new *epoch*, numbered through the life of the process. Each four
// bytes of device and shared memory have a cell that remembers the last accesses: epoch, thread, place in the code.
// Two accesses of one word by two threads, one of them a write, race when nothing orders them:
//   - of one block: the same epoch, and, within a warp, no __syncwarp between;
//   - of two blocks of one launch: always (unless both are atomic).
// Launches follow each other on a stream, so whatever happened before this launch's first epoch is forgotten without
// ever being cleared. A cell keeps two writes (halves of a word) and three reads: with many readers some are lost,
// so a race may be missed on rare paths; none is reported that is not there.
#include <sys/mman.h>

#include <cstring>

#include "machine.h"

namespace cuemu {

struct Record {
  uint32_t epoch, code;
  uint16_t thread;
  uint8_t warp_barriers, bytes;  // bytes: a mask of 4, and ATOMIC
};
constexpr uint8_t ATOMIC = 16;
struct Cell {
  Record write[2], read[3];
  uint32_t unused;
};
static_assert(sizeof(Cell) == 64, "a cell is a cache line");

SharedRange shared_range;
static uint32_t epoch = 1, launch_start = 1, block_start = 1;
static std::vector<uint32_t> block_starts;                   // of this launch: which block an epoch belonged to
static std::vector<Index> block_indices;
static Cell* shared_cells = nullptr;
static std::vector<uint8_t> shared_initialised;
static size_t shared_cells_size = 0;

static size_t cells_bytes(size_t bytes) { return (bytes / 4 + 1) * sizeof(Cell); }
Cell* map_cells(size_t bytes) { return (Cell*)mmap(nullptr, cells_bytes(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0); }
void unmap_cells(Cell* cells, size_t bytes) { munmap(cells, cells_bytes(bytes)); }

void start_checks_of_launch() {
  launch_start = ++epoch;
  block_starts.clear(), block_indices.clear();
  if (!running->checked || shared_range.size <= shared_cells_size) return;
  if (shared_cells) unmap_cells(shared_cells, shared_cells_size);
  shared_cells_size = shared_range.size;
  shared_cells = map_cells(shared_cells_size);
  shared_initialised.assign(shared_cells_size, 0);
}

void start_checks_of_block() {
  block_start = ++epoch;
  if (!running->checked) return;
  block_starts.push_back(epoch), block_indices.push_back(block.index);
  const size_t dynamic = shared_range.dynamic - shared_range.start;
  uint8_t* s = shared_initialised.data();
  memset(s, 0, dynamic + block.dynamic_shared);
  memset(s + dynamic + MAX_DYNAMIC_SHARED, 0, shared_range.size - dynamic - MAX_DYNAMIC_SHARED);
}

void barrier_passed() { ++epoch; }

static const char* verb(Access kind) { return kind == Access::Read ? "read" : kind == Access::Write ? "write" : "atomic"; }

// Not ordered before what the running thread does now?
static bool races(const Record& r, uint8_t bytes, bool shared) {
  if (!(r.bytes & bytes & 15) || r.epoch < launch_start) return false;
  if (r.epoch < block_start) return !shared;  // another block of this launch; shared memory is born with its block
  if (r.epoch != epoch || r.thread == now->linear) return false;
  return r.thread / WARP != now->warp || r.warp_barriers == (uint8_t)now->warp_barriers;
}

__attribute__((noreturn)) static void report(const Record& r, bool other_wrote, Access kind, bool shared, const void* code) {
  Index b = block.index;
  for (size_t i = block_starts.size(); i-- > 0;)
    if (block_starts[i] <= r.epoch) {
      b = block_indices[i];
      break;
    }
  const bool same = r.epoch >= block_start;
  char who[96];
  const unsigned t = r.thread;
  if (same)
    snprintf(who, sizeof who, "thread (%u,%u,%u)", t % block.size.x, t / block.size.x % block.size.y, t / block.size.x / block.size.y);
  else
    snprintf(who, sizeof who, "block (%u,%u,%u) thread (%u,%u,%u)", b.x, b.y, b.z, t % block.size.x, t / block.size.x % block.size.y, t / block.size.x / block.size.y);
  fail("race on %s memory: this %s at %s and a %s by %s at {+0x%x}, with no barrier between", shared ? "shared" : "device", verb(kind), place(code).c_str(),
       r.bytes & ATOMIC ? "atomic" : other_wrote ? "write" : "read", who, r.code);
}

static void remember_write(Cell& c, const Record& me) {
  Record& last = c.write[0];
  const bool mine = last.epoch == me.epoch && last.thread == me.thread;
  if (!mine && last.bytes & ~me.bytes & 15) c.write[1] = last;  // the other half of the word
  const uint8_t before = mine ? last.bytes & 15 : 0;
  last = me;
  last.bytes |= before;
  c.write[1].bytes &= ~(me.bytes & 15);
  for (Record& r : c.read) r.bytes &= ~me.bytes;  // ordered before this write, which stands for them from now on
}

static void remember_read(Cell& c, const Record& me) {
  Record& last = c.read[0];
  if (last.epoch == me.epoch && last.thread == me.thread && last.warp_barriers == me.warp_barriers) {
    last.bytes |= me.bytes;
    last.code = me.code;
    return;
  }
  if (last.bytes && last.epoch >= launch_start) {
    // Three readers that differ most: this one, the one before, and one of another warp or block.
    Record& before = c.read[1];
    if (before.bytes && before.epoch >= launch_start && (before.epoch < block_start || before.thread / WARP != me.thread / WARP)) c.read[2] = before;
    before = last;
  }
  last = me;
}

static void check_races(Cell* cells, size_t offset, size_t n, Access kind, bool shared, const void* code) {
  const uint32_t where = (uint32_t)((uintptr_t)code - running->code);
  for (size_t word = offset / 4; word * 4 < offset + n; word++) {
    uint8_t bytes = 15;
    if (word * 4 < offset) bytes &= 15 << (offset - word * 4);
    if (word * 4 + 4 > offset + n) bytes &= 15 >> (word * 4 + 4 - offset - n);
    Cell& c = cells[word];
    for (const Record& w : c.write)
      if (!(kind == Access::Atomic && w.bytes & ATOMIC) && races(w, bytes, shared)) report(w, true, kind, shared, code);
    if (kind != Access::Read)
      for (const Record& r : c.read)
        if (races(r, bytes, shared)) report(r, false, kind, shared, code);
    const Record me = {epoch, where, now->linear, (uint8_t)now->warp_barriers, (uint8_t)(bytes | (kind == Access::Atomic ? ATOMIC : 0))};
    if (kind == Access::Read)
      remember_read(c, me);
    else
      remember_write(c, me);
  }
}

static bool in_image(uintptr_t a) {
  for (auto& [start, end] : running->image)
    if (a >= start && a < end) return true;
  return false;
}

void access(uintptr_t a, size_t n, Access kind, const void* code) {
  if (!now || !running->checked || a - (uintptr_t)now->fiber.stack < STACK) return;
  const bool shared = a - shared_range.start < shared_range.size;
  Cell* cells;
  uint8_t* initialised;
  size_t offset;
  if (shared) {
    const uintptr_t dynamic = shared_range.dynamic;
    if (a - dynamic < MAX_DYNAMIC_SHARED && a + n > dynamic + block.dynamic_shared)
      fail("out-of-bounds %s of %zu bytes at byte %zu of dynamic shared memory, of which the launch has %u, at %s", verb(kind), n, (size_t)(a - dynamic), block.dynamic_shared, place(code).c_str());
    offset = a - shared_range.start;
    cells = shared_cells, initialised = shared_initialised.data();
  } else {
    Allocation* m = find(a);
    if (!m || n > m->start + m->usable - a) {
      if (!m && in_image(a)) return;  // constants, __device__ variables
      fail("out-of-bounds %s of %zu bytes, %s, at %s", verb(kind), n, describe(a, n).c_str(), place(code).c_str());
    }
    offset = a - m->start;
    cells = m->cells, initialised = m->initialised;
  }
  if (n <= 16 && a % n) fail("misaligned %s of %zu bytes at address %p, at %s", verb(kind), n, (void*)a, place(code).c_str());
  if (!cells) return;  // allocated before checking was switched on
  if (kind != Access::Write && memchr(initialised + offset, 0, n))
    fail("%s of uninitialised %s memory at %s%s", verb(kind), shared ? "shared" : "device", place(code).c_str(), shared ? " (nobody has written it yet in this block: a missing barrier?)" : "");
  if (kind != Access::Read) memset(initialised + offset, 1, n);
  check_races(cells, offset, n, kind, shared, code);
}

void unwritten(uintptr_t a, size_t n) {
  if (running->checked && a - shared_range.start < shared_range.size) memset(&shared_initialised[a - shared_range.start], 0, n);
}

bool range_ok(uintptr_t a, size_t n, bool reads, std::string& fault) {
  if (!n) return true;
  Allocation* m = find(a);
  if (!m || n > m->start + m->usable - a) return fault = "out-of-bounds: " + describe(a, n), false;
  if (reads && m->initialised && memchr(m->initialised + (a - m->start), 0, n)) return fault = "read of uninitialised device memory", false;
  return true;
}

}  // namespace cuemu

CUEMU_API void cuemu_atomic_access(const void* p, unsigned bytes, void* code) { cuemu::access((uintptr_t)p, bytes, cuemu::Access::Atomic, code); }
