// TAPEZOO_EMU_RECORD=FILE: kernels, cuBLAS's products, fills and copies within the device are not run, and memory takes
// none of the host's. A launch becomes a line of the file instead:
//
//   kernels/norm.cu bf16 norm_forward grid 1056 block 256 shared 0: p0/67108864 p1/2048 i0 i32768 w256 w925353388 [8,4096]
//
// with a grid or block of more than one axis as 64,128,1, `together` behind `shared` in a cooperative launch, and the
// arguments: pN/BYTES the N-th allocation of this launch, pN+OFFSET/BYTES inside it; i or w a number of 8 or 4 bytes; and
// in brackets the numbers of a struct. So a program's launches are known at sizes that take too long to emulate.
#include <algorithm>
#include <cstdio>
#include <cstring>

#include "driver.h"

using namespace driver;

static std::string number(const char* kind, long long n) { return kind + std::to_string(n); }

static std::string argument(const void* value, size_t bytes, std::vector<uintptr_t>& known) {
  int32_t word;
  int64_t wide;
  if (bytes == sizeof word) return memcpy(&word, value, bytes), number("w", word);
  if (bytes > sizeof wide) {
    std::string list;
    for (size_t i = 0; i + sizeof wide <= bytes; i += sizeof wide) memcpy(&wide, (const char*)value + i, sizeof wide), list += number(i ? "," : "", wide);
    return "[" + list + "]";
  }
  memcpy(&wide, value, sizeof wide);
  const cuemu::Allocation* a = cuemu::find((uintptr_t)wide);
  if (!a) return number("i", wide);
  auto at = std::find(known.begin(), known.end(), a->start);
  const size_t n = at - known.begin(), offset = (uintptr_t)wide - a->start;
  if (at == known.end()) known.push_back(a->start);
  return number("p", n) + (offset ? number("+", offset) : "") + number("/", a->size);
}

static std::string axes(cuemu::Index n) {
  return number(" ", n.x) + (n.y > 1 || n.z > 1 ? number(",", n.y) + number(",", n.z) : "");
}

Result driver::record(const std::string& kernel, cuemu::Index grid, cuemu::Index size, unsigned shared, bool together, const std::vector<size_t>& sizes, void** arguments) {
  std::string line = kernel + " grid" + axes(grid) + " block" + axes(size) + number(" shared ", shared) + (together ? " together:" : ":");
  std::vector<uintptr_t> known;
  for (size_t i = 0; i < sizes.size(); i++) line += " " + argument(arguments[i], sizes[i], known);
  FILE* file = fopen(cuemu::options.record, "a");
  if (!file) return refuse(INVALID_VALUE, "TAPEZOO_EMU_RECORD=%s cannot be written", cuemu::options.record);
  fprintf(file, "%s\n", line.c_str());
  return fclose(file), SUCCESS;
}
