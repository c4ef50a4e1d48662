// Warp operations: the lanes of a mask meet, exchange values, and go on.
//
// CUDA's rule is that every lane of the mask executes the same operation with the same mask; lanes that have exited are
// not waited for. If lanes of one mask meet in different operations, that is a fault in every mode; if lanes of the
// mask went elsewhere, it is a fault when checking.
#include <cstring>

#include "machine.h"

namespace cuemu {

static Meeting& meeting_of(Warp& warp, uint32_t mask) {
  for (int i = 0; i < warp.meetings; i++)
    if (warp.meeting[i].mask == mask) return warp.meeting[i];
  for (int i = 0; i < warp.meetings; i++)
    if (!warp.meeting[i].arrived && i) {
      warp.meeting[i].mask = mask;
      return warp.meeting[i];
    }
  if (warp.meetings == 8) fail("more than 8 warp masks at a time");
  Meeting& m = warp.meeting[warp.meetings++];
  m.mask = mask, m.arrived = 0, m.generation = 0;
  return m;
}

void release_meeting(Warp& warp, uint32_t w, Meeting& m) {
  uint32_t lanes = m.arrived;
  if (counting && lanes == warp.alive) count_together(warp);
  m.arrived = 0, m.generation++;
  warp.ready |= lanes & warp.alive;
  for (; lanes; lanes &= lanes - 1) block.thread[w * WARP + __builtin_ctz(lanes)].state = State::Ready;
}

Slots meet(uint32_t mask, const void* value, size_t bytes, const char* operation, Site site, uint32_t* live) {
  Warp& warp = block.warp[now->warp];
  const uint32_t bit = 1u << now->lane;
  if (!(mask & bit)) fail("%s (%s:%d): lane %u calls it but is not in its mask 0x%08x", operation, site.file, site.line, now->lane, mask);
  if (uint32_t gone = mask & warp.all & ~warp.alive)
    if (options.check) fail("%s (%s:%d): mask 0x%08x names lanes that have exited (0x%08x)", operation, site.file, site.line, mask, gone);
  Meeting& m = meeting_of(warp, mask);
  if (!m.arrived)
    m.operation = operation, m.site = site;
  else if (m.operation != operation && strcmp(m.operation, operation))
    fail("%s (%s:%d): other lanes of mask 0x%08x are at %s (%s:%d)", operation, site.file, site.line, mask, m.operation, m.site.file, m.site.line);
  const Slots slots = m.slot[m.generation & 1];
  if (bytes == 8)  // a shuffle: a constant size is one move
    memcpy(slots[now->lane], value, 8);
  else if (bytes)
    memcpy(slots[now->lane], value, bytes);
  m.arrived |= bit;
  if (live) *live = mask & warp.alive;
  if (m.arrived == (mask & warp.alive)) {
    release_meeting(warp, now->warp, m);
    if (options.order == Order::Random) run_instead(next_ready());
  } else
    wait_here(State::AtWarp, operation, site);
  return slots;
}

}  // namespace cuemu

using namespace cuemu;

CUEMU_API void cuemu_sync_warp(unsigned mask, Site site) {
  if (left_out(site)) return;
  meet(mask, nullptr, 0, "__syncwarp", site, nullptr);
  now->warp_barriers++;
}

CUEMU_API unsigned long long cuemu_shuffle(unsigned mask, unsigned long long bits, int source, const char* what, Site site) {
  uint32_t live;
  Slots slots = meet(mask, &bits, sizeof bits, what, site, &live);
  if (!(live >> source & 1)) return ~0ull;  // an absent lane's register: NaN here; undefined on hardware
  memcpy(&bits, slots[source], sizeof bits);
  return bits;
}

CUEMU_API unsigned cuemu_ballot(unsigned mask, int predicate, const char* what, Site site) {
  uint32_t live, votes = 0;
  Slots slots = meet(mask, &predicate, sizeof predicate, what, site, &live);
  for (unsigned lane = 0; lane < WARP; lane++)
    if (live >> lane & 1 && slots[lane][0]) votes |= 1u << lane;
  return votes;
}

CUEMU_API long long cuemu_reduce(unsigned mask, long long value, char combine, Site site) {
  uint32_t live;
  Slots slots = meet(mask, &value, sizeof value, "__reduce_sync", site, &live);
  bool first = true;
  long long r = value;
  for (unsigned lane = 0; lane < WARP; lane++) {
    if (!(live >> lane & 1)) continue;
    long long x;
    memcpy(&x, slots[lane], sizeof x);
    if (first)
      r = x;
    else
      switch (combine) {
        case '+': r += x; break;
        case '<': r = x < r ? x : r; break;
        case '>': r = x > r ? x : r; break;
        case '&': r &= x; break;
        case '|': r |= x; break;
        case '^': r ^= x; break;
      }
    first = false;
  }
  return r;
}

CUEMU_API unsigned cuemu_active_mask() { return block.warp[now->warp].alive; }
