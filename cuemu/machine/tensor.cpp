// Tensor cores and asynchronous copies on the host, with the register layouts of the PTX manual.
//
// A warp's lanes exchange their fragments and each computes its own four results. With g = lane / 4, t = lane % 4 and
// two 16-bit values per register, for mma.m16n8k16: A (16 x 16): register r of a lane holds row g + 8 (r % 2), columns
// 2t and 2t + 1 (+ 8 for r >= 2) B (16 x 8): register r holds rows 2t and 2t + 1 (+ 8 r), column g D (16 x 8): value i
// holds row g + 8 (i / 2), column 2t + i % 2 The layouts follow the manual, and can only be confirmed on a GPU.
#include <cstring>

#include "machine.h"

namespace cuemu {

static float from_bf16(uint32_t bits) {
  float f;
  bits <<= 16;
  memcpy(&f, &bits, 4);
  return f;
}

static float from_tf32(uint32_t bits) {  // the tensor core reads 10 bits of the mantissa
  float f;
  bits &= 0xffffe000u;
  memcpy(&f, &bits, 4);
  return f;
}

struct Fragments {
  unsigned a[4], b[2];
};

static Slots exchange(const unsigned* a, const unsigned* b, const char* what, Site site) {
  Fragments mine;
  memcpy(mine.a, a, sizeof mine.a), memcpy(mine.b, b, sizeof mine.b);
  uint32_t live;
  Slots slots = meet(~0u, &mine, sizeof mine, what, site, &live);
  if (live != ~0u) fail("%s (%s:%d) needs all 32 lanes, 0x%08x are there", what, site.file, site.line, live);
  if (counting && !now->lane) count_mma();
  return slots;
}

// ---- cp.async: copies that have been issued and may not be complete
//
// A copy may complete at any moment from its issue to the wait for its group: at once or at the wait, as the thread
// order says. The checks count it as a write at both moments, and no thread may rely on the data before the wait.
struct Pending {
  char* to;
  const char* from;
  int bytes, valid, group;
  bool landed;
  const void* code;
};
static std::vector<Pending> pending[MAX_THREADS];
static int group[MAX_THREADS];

static void land(Pending& c) {
  memcpy(c.to, c.from, c.valid);
  memset(c.to + c.valid, 0, c.bytes - c.valid);
  c.landed = true;
}

void forget_copies(uint32_t threads) {
  for (uint32_t i = 0; i < threads; i++) pending[i].clear(), group[i] = 0;
}

}  // namespace cuemu

using namespace cuemu;

CUEMU_API void cuemu_mma_m16n8k16_bf16(float* d, const unsigned* a, const unsigned* b, Site site) {
  Slots slots = exchange(a, b, "mma.m16n8k16", site);
  auto lane = [&](int i) -> const Fragments& { return *(const Fragments*)slots[i]; };
  auto half = [](unsigned pair, int high) { return from_bf16(high ? pair >> 16 : pair & 0xffff); };
  auto A = [&](int row, int k) { return half(lane(row % 8 * 4 + k % 8 / 2).a[row / 8 + 2 * (k / 8)], k % 2); };
  auto B = [&](int k, int column) { return half(lane(column * 4 + k % 8 / 2).b[k / 8], k % 2); };
  const int g = now->lane / 4, t = now->lane % 4;
  for (int i = 0; i < 4; i++) {
    float sum = 0;
    for (int k = 0; k < 16; k++) sum += A(g + 8 * (i / 2), k) * B(k, 2 * t + i % 2);
    d[i] += sum;
  }
}

// As above with one 32-bit value per register: A holds columns t and t + 4, B rows t and t + 4.
CUEMU_API void cuemu_mma_m16n8k8_tf32(float* d, const unsigned* a, const unsigned* b, Site site) {
  Slots slots = exchange(a, b, "mma.m16n8k8", site);
  auto lane = [&](int i) -> const Fragments& { return *(const Fragments*)slots[i]; };
  auto A = [&](int row, int k) { return from_tf32(lane(row % 8 * 4 + k % 4).a[row / 8 + 2 * (k / 4)]); };
  auto B = [&](int k, int column) { return from_tf32(lane(column * 4 + k % 4).b[k / 4]); };
  const int g = now->lane / 4, t = now->lane % 4;
  for (int i = 0; i < 4; i++) {
    float sum = 0;
    for (int k = 0; k < 8; k++) sum += A(g + 8 * (i / 2), k) * B(k, 2 * t + i % 2);
    d[i] += sum;
  }
}

// Lane l receives, of each 8 x 8 matrix of 16-bit values, the two at row l / 4, columns 2 (l % 4) and + 1; transposed,
// the two at rows 2 (l % 4) and + 1, column l / 4.
CUEMU_API void cuemu_ldmatrix(unsigned* registers, const void* row, int matrices, bool transposed, Site site) {
  uint32_t live;
  Slots slots = meet(~0u, &row, sizeof row, transposed ? "ldmatrix.trans" : "ldmatrix", site, &live);
  if (live != ~0u) fail("ldmatrix (%s:%d) needs all 32 lanes, 0x%08x are there", site.file, site.line, live);
  const void* code = __builtin_return_address(0);
  const int g = now->lane / 4, t = now->lane % 4;
  if (counting && !now->lane) count_ldmatrix();
  for (int m = 0; m < matrices; m++) {
    uintptr_t rows[8];
    for (int r = 0; r < 8; r++) memcpy(&rows[r], slots[m * 8 + r], sizeof rows[r]);
    if (counting && !now->lane) count_matrix(rows);
    auto element = [&](int r, int c) {
      const char* p;
      memcpy(&p, slots[m * 8 + r], sizeof p);
      if ((uintptr_t)p % 16) fail("ldmatrix (%s:%d): row address %p is not a multiple of 16", site.file, site.line, (const void*)p);
      access((uintptr_t)(p + 2 * c), 2, Access::Read, code);
      uint16_t x;
      memcpy(&x, p + 2 * c, 2);
      return (unsigned)x;
    };
    registers[m] = transposed ? element(2 * t, g) | element(2 * t + 1, g) << 16 : element(g, 2 * t) | element(g, 2 * t + 1) << 16;
  }
}

CUEMU_API void cuemu_copy_async(void* shared, const void* global, int bytes, int valid) {
  if ((bytes != 4 && bytes != 8 && bytes != 16) || valid < 0 || valid > bytes) fail("cp.async of %d bytes, %d of them valid: it takes 4, 8 or 16", bytes, valid);
  if ((uintptr_t)shared % bytes || (valid && (uintptr_t)global % bytes)) fail("misaligned cp.async of %d bytes from %p to %p at %s", bytes, global, shared, place(__builtin_return_address(0)).c_str());
  const uint32_t me = now->linear;
  Pending copy = {(char*)shared, (const char*)global, bytes, valid, group[me], false, __builtin_return_address(0)};
  if (counting) count_copy((uintptr_t)shared, (uintptr_t)global, bytes, valid, copy.code);
  if (valid) access((uintptr_t)global, valid, Access::Read, copy.code);
  access((uintptr_t)shared, bytes, Access::Write, copy.code);
  unwritten((uintptr_t)shared, bytes);
  if (options.order == Order::Reverse || (options.order == Order::Random && random_bits() & 1)) land(copy);
  pending[me].push_back(copy);
}

CUEMU_API void cuemu_copy_commit() { group[now->linear]++; }

CUEMU_API void cuemu_copy_wait(int groups_left) {
  const uint32_t me = now->linear;
  std::vector<Pending> still;
  for (Pending& c : pending[me]) {
    if (c.group >= group[me] - groups_left) {
      still.push_back(c);
      continue;
    }
    access((uintptr_t)c.to, c.bytes, Access::Write, c.code);
    if (!c.landed) land(c);
  }
  pending[me].swap(still);
}
