// The choice of the next thread, and the block's barrier.
//
// A correct kernel gives one result in every order; so threads run forward, in reverse, or in a random order, and a
// missing barrier gives a wrong result in at least one of them. When no thread can run, the barrier is divergent.
#include <cstdio>

#include "machine.h"

namespace cuemu {

Block block;
Thread* now = nullptr;
Fiber outside;

// xorshift64: the order must only be irregular and repeatable.
uint32_t random_bits() {
  uint64_t x = block.random;
  x ^= x << 13, x ^= x >> 7, x ^= x << 17;
  return (uint32_t)((block.random = x) >> 32);
}

// The thread to run next, or null: the running warp first, for as long as one of its lanes is ready.
Thread* next_ready() {
  const uint32_t n = block.warps, here = now ? now->warp : options.order == Order::Reverse ? n - 1 : 0;
  switch (options.order) {
    case Order::Forward:
      for (uint32_t i = 0; i < n; i++) {
        uint32_t w = here + i < n ? here + i : here + i - n;
        if (uint32_t ready = block.warp[w].ready) return &block.thread[w * WARP + __builtin_ctz(ready)];
      }
      return nullptr;
    case Order::Reverse:
      for (uint32_t i = 0; i < n; i++) {
        uint32_t w = here >= i ? here - i : here + n - i;
        if (uint32_t ready = block.warp[w].ready) return &block.thread[w * WARP + 31 - __builtin_clz(ready)];
      }
      return nullptr;
    case Order::Random: {
      uint32_t first = random_bits() % n;
      for (uint32_t i = 0; i < n; i++) {
        uint32_t w = first + i < n ? first + i : first + i - n, ready = block.warp[w].ready;
        if (!ready) continue;
        uint32_t turn = random_bits() & 31, turned = turn ? ready >> turn | ready << (32 - turn) : ready;
        return &block.thread[w * WARP + ((__builtin_ctz(turned) + turn) & 31)];
      }
      return nullptr;
    }
  }
  return nullptr;
}

void run_instead(Thread* next) {
  Thread* me = now;
  if (next == me) return;
  now = next;
  switch_fiber(me->fiber, next->fiber);
}

__attribute__((noreturn)) static void deadlock() {
  unsigned at_block = 0, at_warp = 0, exited = 0;
  const Thread *b = nullptr, *w = nullptr;
  for (uint32_t i = 0; i < block.threads; i++) {
    const Thread& t = block.thread[i];
    if (t.state == State::AtBlock) at_block++, b = b ? b : &t;
    if (t.state == State::AtWarp || t.state == State::AtGrid) at_warp++, w = w ? w : &t;
    if (t.state == State::Exited) exited++;
  }
  char text[512] = "";
  int n = 0;
  auto say = [&](unsigned count, const Thread* t) {
    if (count) n += snprintf(text + n, sizeof text - n, "%s%u wait at %s (%s:%d; thread %u is one)", n ? ", " : "", count, t->waits_for, t->site.file, t->site.line, t->linear);
  };
  say(at_block, b), say(at_warp, w);
  fail("divergent barrier, no thread can go on: of %u threads %s, %u have exited", block.threads, text, exited);
}

void wait_here(State state, const char* what, Site site) {
  now->state = state, now->waits_for = what, now->site = site;
  block.warp[now->warp].ready &= ~(1u << now->lane);
  Thread* next = next_ready();
  if (!next) next = next_of_grid();
  if (!next) deadlock();
  run_instead(next);
}

// All remaining threads have arrived.
void release_block() {
  block.arrived = 0;
  block.result_and = block.vote_and, block.result_or = block.vote_or, block.result_sum = block.vote_sum;
  block.vote_and = 1, block.vote_or = 0, block.vote_sum = 0;
  for (uint32_t w = 0; w < block.warps; w++) block.warp[w].ready = block.warp[w].alive;
  for (uint32_t i = 0; i < block.threads; i++)
    if (block.thread[i].state == State::AtBlock) block.thread[i].state = State::Ready;
  barrier_passed();
  if (counting) count_barrier();
}

static void sync_block(const char* what, Site site) {
  // Threads of one block wait at two different barriers. By chance this passes on most devices.
  if (block.arrived == 0)
    block.barrier = site;
  else if (options.check && block.barrier.line != site.line)
    fail("divergent barrier: this thread is at %s (%s:%d), others wait at line %d", what, site.file, site.line, block.barrier.line);
  if (++block.arrived == block.alive) {
    release_block();
    if (options.order == Order::Random) run_instead(next_ready());
  } else
    wait_here(State::AtBlock, what, site);
}

// The end of a thread's kernel: other threads no longer wait for it.
void exit_thread() {
  Thread* me = now;
  Warp& warp = block.warp[me->warp];
  const uint32_t bit = 1u << me->lane;
  me->state = State::Exited;
  warp.alive &= ~bit, warp.ready &= ~bit, block.alive--;
  for (int i = 0; i < warp.meetings; i++) {
    Meeting& m = warp.meeting[i];
    if (!m.arrived) continue;
    if (options.check && m.mask & bit) {
      now = &block.thread[me->warp * WARP + __builtin_ctz(m.arrived)];
      fail("%s (%s:%d): mask 0x%08x names lane %u, which has exited instead", m.operation, m.site.file, m.site.line, m.mask, me->lane);
    }
    if (m.arrived == (m.mask & warp.alive)) release_meeting(warp, me->warp, m);
  }
  if (block.alive && block.arrived == block.alive) release_block();
  if (counting && !warp.alive) count_together(warp);
  Thread* next = next_ready();
  const bool last = !block.alive;
  if (!next) next = next_of_grid();
  if (!next && last) switch_fiber(me->fiber, outside);
  if (!next) deadlock();
  run_instead(next);
}

}  // namespace cuemu

using namespace cuemu;

CUEMU_API void cuemu_sync_block(Site site) {
  if (!left_out(site)) sync_block("__syncthreads", site);
}

CUEMU_API int cuemu_vote_block(int predicate, char combine, Site site) {
  block.vote_and &= !!predicate, block.vote_or |= !!predicate, block.vote_sum += !!predicate;
  sync_block(combine == '&' ? "__syncthreads_and" : combine == '|' ? "__syncthreads_or" : "__syncthreads_count", site);
  return combine == '&' ? block.result_and : combine == '|' ? block.result_or : block.result_sum;
}

CUEMU_API unsigned cuemu_coordinate(unsigned which) {
  switch (which) {
    case THREAD_X: return now->index.x;
    case THREAD_Y: return now->index.y;
    case THREAD_Z: return now->index.z;
    case BLOCK_X: return block.index.x;
    case BLOCK_Y: return block.index.y;
    case BLOCK_Z: return block.index.z;
    case BLOCK_DIM_X: return block.size.x;
    case BLOCK_DIM_Y: return block.size.y;
    case BLOCK_DIM_Z: return block.size.z;
    case GRID_DIM_X: return block.grid.x;
    case GRID_DIM_Y: return block.grid.y;
    case GRID_DIM_Z: return block.grid.z;
    default: return now->lane;
  }
}
