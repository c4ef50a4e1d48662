// Counters: what a launch asks a GPU for, in the units in which a GPU serves it.
//
// A GPU executes an instruction for a warp, here threads run one after another. So accesses are put together again: the
// lanes of a warp that come to one place in the code for the n-th time since they last met are one instruction. They
// meet at a barrier of the block, at an operation of the whole warp, and at the end. A place is the access's address in
// the module with the calls that led there. Local variables are registers and are not seen (fiber stacks).
#include <algorithm>
#include <cstring>
#include <unordered_map>

#include "machine.h"

namespace cuemu {

// A launch, as src/cuda/gpu/emulator.rs reads it.
struct Counts {
  const char* kernel;
  uint64_t blocks, threads, dynamic_shared;
  uint64_t global_requests, sectors, least_sectors, touched_bytes;
  uint64_t shared_requests, wavefronts, least_wavefronts;
  uint64_t mma, ldmatrix, copies, functions, barriers, divergent;
};

enum class Kind : uint8_t { Global, Shared, Copy, Function };  // Copy: what cp.async writes to shared memory
struct Request {
  Kind kind;
  uint8_t bytes;   // of each lane
  uint32_t lanes;  // a mask
  uintptr_t at[WARP];
};
struct Place {
  uint32_t visits[WARP] = {};
  std::vector<Request> requests;  // the n-th is that of the lanes' n-th visit
};
struct Calls {
  static constexpr unsigned DEEPEST = 64;
  unsigned depth = 0;
  uint64_t path[DEEPEST + 1] = {};  // a hash of the callers
  uint64_t here() const { return path[depth < DEEPEST ? depth : DEEPEST]; }
};
struct WarpLog {
  uint64_t launch;  // addresses of another launch's module are of no use
  std::unordered_map<uint64_t, Place> places;
  std::vector<Place*> used;  // since the lanes last met
  // The lanes that could take part: those that have met, and at first, when some may find that there is nothing for
  // them to do, those that did anything.
  uint32_t met = 0, seen = 0;
  Calls calls[WARP];
};

bool counting = false;
static uint64_t launches = 0;
static Counts counts;
static std::vector<Counts> finished;
static std::unordered_map<uintptr_t, uint64_t> touched;  // by 64 bytes of global memory: which

void start_counts_of_launch(const Kernel* kernel) {
  counts = {};
  counts.kernel = kernel->name;
  counts.blocks = block.grid.volume(), counts.threads = block.threads, counts.dynamic_shared = block.dynamic_shared;
  launches++;
  touched.clear();
}

void end_counts_of_launch() {
  for (auto& [start, bytes] : touched) counts.touched_bytes += __builtin_popcountll(bytes);
  if (!block.failed) finished.push_back(counts);
  counting = false;
}

void start_counts_of_block() {
  for (uint32_t w = 0; w < block.warps; w++) {
    WarpLog*& log = block.warp[w].log;
    if (log && log->launch != launches) delete log, log = nullptr;
    if (!log) log = new WarpLog{launches, {}, {}, 0, 0, {}};
    log->met = 0;
  }
}

// ---- what one instruction asks for

static void touch(uintptr_t a, uint32_t bytes) { touched[a / 64] |= (uint64_t)bytes << a % 64; }

static void add_global(const Request& r) {
  struct {
    uintptr_t sector;
    uint32_t bytes;  // a mask
  } found[WARP];
  unsigned n = 0, asked = 0;
  for (uint32_t lanes = r.lanes; lanes; lanes &= lanes - 1) {
    const uintptr_t a = r.at[__builtin_ctz(lanes)];
    unsigned i = n;
    while (i && found[i - 1].sector != a / 32) i--;
    if (!i) found[n] = {a / 32, 0}, i = ++n;
    found[i - 1].bytes |= ((1u << r.bytes) - 1) << a % 32;  // it is aligned, so it lies in one sector
  }
  for (unsigned i = 0; i < n; i++) asked += __builtin_popcount(found[i].bytes), touch(found[i].sector * 32, found[i].bytes);
  counts.global_requests++;
  counts.sectors += n, counts.least_sectors += (asked + 31) / 32;
}

// Shared memory has 32 banks, and a bank gives one of its words of 4 bytes at a time, to all who ask for that word.
static unsigned wavefronts(const std::vector<uintptr_t>& words) {
  unsigned most = 1, in_bank[32] = {};
  for (size_t i = 0; i < words.size(); i++) {
    bool before = false;
    for (size_t j = 0; j < i && !before; j++) before = words[j] == words[i];
    if (!before) most = std::max(most, ++in_bank[words[i] % 32]);
  }
  return most;
}

// 32 words at a time: of 8 bytes a lane half a warp, of 16 a quarter.
static void add_shared(const Request& r) {
  const unsigned at_once = r.bytes <= 4 ? 32 : r.bytes <= 8 ? 16 : 8;
  std::vector<uintptr_t> words;
  for (unsigned first = 0; first < WARP; first += at_once) {
    words.clear();
    for (unsigned lane = first; lane < first + at_once; lane++)
      if (r.lanes >> lane & 1)
        for (uintptr_t word = r.at[lane] / 4; word * 4 < r.at[lane] + r.bytes; word++) words.push_back(word);
    if (!words.empty()) counts.wavefronts += wavefronts(words), counts.least_wavefronts++;
  }
  counts.shared_requests++;
}

void count_matrix(const uintptr_t rows[8]) {
  std::vector<uintptr_t> words;
  for (int r = 0; r < 8; r++)
    for (int i = 0; i < 4; i++) words.push_back(rows[r] / 4 + i);
  counts.wavefronts += wavefronts(words), counts.least_wavefronts++;
}

void count_together(Warp& warp) {
  WarpLog& log = *warp.log;
  const uint32_t live = log.met | log.seen | warp.alive;
  for (Place* p : log.used) {
    for (const Request& r : p->requests) {
      if (r.kind == Kind::Function) {
        counts.functions++;
        continue;
      }
      if (r.kind == Kind::Global) add_global(r);
      else add_shared(r);
      counts.copies += r.kind == Kind::Copy;
      counts.divergent += r.lanes != live;
    }
    p->requests.clear();
    memset(p->visits, 0, sizeof p->visits);
  }
  log.used.clear();
  log.met = warp.alive, log.seen = 0;
}

void count_barrier() {
  for (uint32_t w = 0; w < block.warps; w++) count_together(block.warp[w]);
  counts.barriers++;
}

void count_ldmatrix() { counts.ldmatrix++, counts.shared_requests++; }
void count_mma() { counts.mma++; }

// ---- what a thread does

static void note(uintptr_t code, Kind kind, uintptr_t a, size_t bytes) {
  WarpLog& log = *block.warp[now->warp].log;
  const uint32_t lane = now->lane;
  Place& place = log.places[code ^ log.calls[lane].here()];
  if (place.requests.empty()) log.used.push_back(&place);
  const uint32_t visit = place.visits[lane]++;
  if (visit == place.requests.size()) place.requests.push_back({kind, (uint8_t)bytes, 0, {}});
  Request& r = place.requests[visit];
  r.lanes |= 1u << lane, r.at[lane] = a;
  log.seen |= 1u << lane;
}

void count_access(uintptr_t a, size_t n, const void* code) {
  if (!now || a - (uintptr_t)now->fiber.stack < STACK) return;
  const bool shared = a - shared_range.start < shared_range.size;
  if (!shared && !find(a)) return;  // constants, __device__ variables
  // A structure of any size is read in pieces of at most 16 bytes.
  const size_t piece = n <= 16 && !(n & (n - 1)) ? n : (a | n) % 16 == 0 ? 16 : (a | n) % 4 == 0 ? 4 : 1;
  for (size_t i = 0; i < n; i += piece) note((uintptr_t)code + (i << 48), shared ? Kind::Shared : Kind::Global, a + i, piece);
}

void count_copy(uintptr_t shared, uintptr_t global, size_t bytes, size_t valid, const void* code) {
  if (valid) note((uintptr_t)code, Kind::Global, global, valid);
  note((uintptr_t)code + (1ull << 47), Kind::Copy, shared, bytes);
}

void count_call(const void* caller) {
  if (!now) return;
  Calls& c = block.warp[now->warp].log->calls[now->lane];
  const uint64_t path = (c.here() ^ (uintptr_t)caller) * 0x9e3779b97f4a7c15ull;
  if (++c.depth <= Calls::DEEPEST) c.path[c.depth] = path;
}

void count_return() {
  if (now) block.warp[now->warp].log->calls[now->lane].depth--;
}

}  // namespace cuemu

using namespace cuemu;

CUEMU_API float cuemu_counted_float(float x) {
  if (counting && now) note((uintptr_t)__builtin_return_address(0), Kind::Function, 0, 0);
  return x;
}
CUEMU_API double cuemu_counted_double(double x) {
  if (counting && now) note((uintptr_t)__builtin_return_address(0), Kind::Function, 0, 0);
  return x;
}

// Takes the oldest records out, at most so many; how many it were.
CUEMU_API size_t cuemu_counted(Counts* to, size_t room) {
  const size_t n = std::min(room, finished.size());
  std::copy_n(finished.begin(), n, to);
  finished.erase(finished.begin(), finished.begin() + n);
  return n;
}
