// Checks of a module's memory accesses: bounds, alignment, initialisation, races.
//
// Races. Every barrier, block and launch starts a new *epoch*, numbered over the life of the process. Each four bytes
// of device and shared memory have a cell that remembers the last accesses: epoch, thread, place in the code. Two
// accesses of one word by two threads, one of them a write, race when nothing orders them:
//   - of one block: the same epoch, and, within a warp, no __syncwarp between;
//   - of two blocks of one launch: unless both are atomic, or the first block released a number after that epoch which
//     the second block has acquired, with a barrier after it. (Accesses of the releasing thread since its block's last
//     barrier are not counted as released.)
// Launches follow each other on a stream, so accesses before this launch's first epoch are ignored and need not be
// cleared. A cell keeps two writes (halves of a word) and three reads. With many readers some are lost, so a race may
// be missed on rare paths; there are no false reports.
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <map>

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
// For every block of this launch: its index and epoch; the epochs of other blocks that it knows to be over, and those
// that it will know at the next barrier.
struct BlockClock {
  Index index;
  uint32_t epoch;
  std::vector<uint32_t> known, acquired;
};
static uint32_t last_epoch = 1, launch_start = 1, mine = 0;
static uint32_t epoch = 1;                        // of the block that runs, number `mine`
static std::vector<uint32_t> owners;              // of the epochs from launch_start on
static std::vector<BlockClock> clocks;
static std::map<uintptr_t, std::vector<uint32_t>> told;  // by address: the epochs that an acquire of it learns
static Cell* shared_cells = nullptr;
static std::vector<uint8_t> shared_initialised;
static size_t shared_cells_size = 0;

static size_t cells_bytes(size_t bytes) { return (bytes / 4 + 1) * sizeof(Cell); }
Cell* map_cells(size_t bytes) { return (Cell*)mmap(nullptr, cells_bytes(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0); }
void unmap_cells(Cell* cells, size_t bytes) { munmap(cells, cells_bytes(bytes)); }

void start_checks_of_launch() {
  launch_start = last_epoch + 1;
  owners.clear(), clocks.clear(), told.clear();
  if (!running->checked || shared_range.size <= shared_cells_size) return;
  if (shared_cells) unmap_cells(shared_cells, shared_cells_size);
  shared_cells_size = shared_range.size;
  shared_cells = map_cells(shared_cells_size);
  shared_initialised.assign(shared_cells_size, 0);
}

static void next_epoch() {
  clocks[mine].epoch = epoch = ++last_epoch;
  owners.push_back(mine);
}

void start_checks_of_block() {
  if (!running->checked) return;
  mine = (uint32_t)clocks.size();
  clocks.push_back({block.index, 0, {}, {}});
  next_epoch();
  each_shared([](uintptr_t at, size_t n) { memset(shared_marks(at), 0, n); });
}

uint8_t* shared_marks(uintptr_t at) { return running->checked ? &shared_initialised[at - shared_range.start] : nullptr; }

void choose_checks_of_block(uint32_t n) {
  if (running->checked) mine = n, epoch = clocks[n].epoch;
}

static void merge(std::vector<uint32_t>& into, const std::vector<uint32_t>& from) {
  if (into.size() < from.size()) into.resize(from.size());
  for (size_t i = 0; i < from.size(); i++) into[i] = std::max(into[i], from[i]);
}

void barrier_passed() {
  if (!running->checked) return;
  next_epoch();
  merge(clocks[mine].known, clocks[mine].acquired);
}

void released(uintptr_t a) {
  if (!running->checked) return;
  std::vector<uint32_t>& to = told[a];
  merge(to, clocks[mine].known);
  if (to.size() <= mine) to.resize(mine + 1);
  to[mine] = epoch;
}

void acquired(uintptr_t a) {
  if (running->checked) merge(clocks[mine].acquired, told[a]);
}

static uint32_t owner(const Record& r) { return owners[r.epoch - launch_start]; }

static const char* verb(Access kind) { return kind == Access::Read ? "read" : kind == Access::Write ? "write" : "atomic"; }

// Whether nothing orders this access before the running thread's.
static bool races(const Record& r, uint8_t bytes, bool shared) {
  if (!(r.bytes & bytes & 15) || r.epoch < launch_start) return false;
  if (const uint32_t who = owner(r); who != mine) {  // another block of this launch; each has shared memory of its own
    const std::vector<uint32_t>& known = clocks[mine].known;
    return !shared && !(who < known.size() && r.epoch < known[who]);
  }
  if (r.epoch != epoch || r.thread == now->linear) return false;
  return r.thread / WARP != now->warp || r.warp_barriers == (uint8_t)now->warp_barriers;
}

__attribute__((noreturn)) static void report(const Record& r, bool other_wrote, Access kind, bool shared, const void* code) {
  const Index b = clocks[owner(r)].index;
  const bool same = owner(r) == mine;
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
  const bool again = last.epoch == me.epoch && last.thread == me.thread;
  if (!again && last.bytes & ~me.bytes & 15) c.write[1] = last;  // the other half of the word
  const uint8_t before = again ? last.bytes & 15 : 0;
  last = me;
  last.bytes |= before;
  c.write[1].bytes &= ~(me.bytes & 15);
  for (Record& r : c.read) r.bytes &= ~me.bytes;  // ordered before this write, which represents them from now on
}

static void remember_read(Cell& c, const Record& me) {
  Record& last = c.read[0];
  if (last.epoch == me.epoch && last.thread == me.thread && last.warp_barriers == me.warp_barriers) {
    last.bytes |= me.bytes;
    last.code = me.code;
    return;
  }
  if (last.bytes && last.epoch >= launch_start) {
    // Keep three readers that differ most: this one, the one before, and one of another warp or block.
    Record& before = c.read[1];
    if (before.bytes && before.epoch >= launch_start && (owner(before) != mine || before.thread / WARP != me.thread / WARP)) c.read[2] = before;
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
      fail("out-of-bounds %s of %zu bytes at byte %zu of dynamic shared memory (the launch has %u bytes), at %s", verb(kind), n, (size_t)(a - dynamic), block.dynamic_shared, place(code).c_str());
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
    fail("%s of uninitialised %s memory at %s%s", verb(kind), shared ? "shared" : "device", place(code).c_str(), shared ? " (not written yet in this block: a missing barrier?)" : "");
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

CUEMU_API void cuemu_atomic_access(const void* p, unsigned bytes, void* code) {
  if (cuemu::counting) cuemu::count_access((uintptr_t)p, bytes, code);
  cuemu::access((uintptr_t)p, bytes, cuemu::Access::Atomic, code);
}
