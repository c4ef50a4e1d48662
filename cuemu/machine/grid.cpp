// The blocks of a cooperative launch: all exist at once, and may wait for each other.
//
// One block runs at a time, until none of its threads can go on without another block; then the next block has its
// turn. All share one place for shared memory (launch.cpp), so its contents are saved with the block. A thread that
// reads a value released by another block (`load_acquire`) first lets all other threads have a turn.
#include <cstring>

#include "machine.h"

namespace cuemu {

struct Kept {
  Block block;
  std::vector<unsigned char> shared;
  bool over;
};
static std::vector<Kept> kept;
static uint32_t here, idle;  // the block that runs; turns since the last release

void start_grid(uint32_t blocks) {
  kept.resize(blocks);
  idle = 0;
}

// Copies shared memory, and the marks of which bytes are written, to or from `to`.
template <class F> static void move_shared(std::vector<unsigned char>& to, F move) {
  size_t n = 0;
  each_shared([&](uintptr_t, size_t bytes) { n += 2 * bytes; });
  to.resize(n);
  unsigned char* p = to.data();
  each_shared([&](uintptr_t at, size_t bytes) {
    move(p, (void*)at, bytes), p += bytes;
    if (uint8_t* marks = shared_marks(at)) move(p, (void*)marks, bytes), p += bytes;
  });
}

void keep_block(uint32_t i) {
  here = i;
  if (kept.size() == 1) return;
  Kept& k = kept[i];
  k.block = block, k.over = !block.alive;
  move_shared(k.shared, [](void* to, void* from, size_t n) { memcpy(to, from, n); });
}

static void bring_block(uint32_t i) {
  const uint64_t random = block.random;
  block = kept[i].block;
  block.random = random;
  here = i;
  move_shared(kept[i].shared, [](void* from, void* to, size_t n) { memcpy(to, from, n); });
  choose_checks_of_block(i);
}

// Threads that wait for other blocks look again.
static Thread* wake() {
  for (uint32_t i = 0; i < block.threads; i++) {
    Thread& t = block.thread[i];
    if (t.state != State::AtGrid) continue;
    t.state = State::Ready;
    block.warp[t.warp].ready |= 1u << t.lane;
  }
  return next_ready();
}

Thread* next_of_grid() {
  const uint32_t n = kept.size();
  if (!block.alive) idle = 0;
  // In a random order a thread may be left out many times, but not this often.
  if (++idle > 64 * n + 2) fail("%s: what it waits for is never told: %s", now->waits_for, n == 1 ? "by another block? The launch is not cooperative" : "all blocks wait for one another");
  if (n == 1) return block.alive ? wake() : nullptr;
  const uint32_t mine = here, first = options.order == Order::Random ? random_bits() % n : here + 1;
  keep_block(mine);
  for (uint32_t i = 0; i < n; i++) {
    const uint32_t next = (options.order == Order::Reverse ? mine + 2 * n - 1 - i : first + i) % n;
    if (kept[next].over) continue;
    bring_block(next);
    if (Thread* t = wake()) return t;
  }
  bring_block(mine);
  return nullptr;
}

}  // namespace cuemu

using namespace cuemu;

CUEMU_API void cuemu_add_release(unsigned* p, unsigned n) {
  access((uintptr_t)p, sizeof *p, Access::Atomic, __builtin_return_address(0));
  released((uintptr_t)p);
  *p += n;
  idle = 0;
}

CUEMU_API unsigned cuemu_load_acquire(const unsigned* p, Site site) {
  wait_here(State::AtGrid, "load_acquire", site);
  access((uintptr_t)p, sizeof *p, Access::Atomic, __builtin_return_address(0));
  acquired((uintptr_t)p);
  return *p;
}
