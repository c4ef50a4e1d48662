// Options from the environment: see ../README.md for the list. A test may change it in a running process.
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "machine.h"

namespace cuemu {

static bool flag(const char* name) {
  const char* s = getenv(name);
  return s && *s && strcmp(s, "0");
}

static size_t bytes(const char* name, size_t otherwise) {
  const char* s = getenv(name);
  if (!s || !*s) return otherwise;
  char* unit;
  double n = strtod(s, &unit);
  return (size_t)(n * (*unit == 'k' || *unit == 'K' ? 1 << 10 : *unit == 'm' || *unit == 'M' ? 1 << 20 : *unit == 'g' || *unit == 'G' ? 1 << 30 : 1));
}

static Order order() {
  const char* s = getenv("TAPEZOO_EMU_ORDER");
  return !s || !*s || !strcmp(s, "forward") ? Order::Forward : !strcmp(s, "reverse") ? Order::Reverse : Order::Random;
}

static uint64_t seed() {
  const char* s = getenv("TAPEZOO_EMU_SEED");
  return s && *s ? strtoull(s, nullptr, 10) : 1;
}

// TAPEZOO_EMU_WITHOUT=FILE:LINE: kernels run without the barriers on that line, to see whether they are needed.
static struct Without {
  std::string file;
  int line = 0;
  unsigned long times = 0;

  Without() {
    const char* s = getenv("TAPEZOO_EMU_WITHOUT");
    const char* colon = s ? strrchr(s, ':') : nullptr;
    if (colon) file.assign(s, colon), line = atoi(colon + 1);
  }
  ~Without() {
    if (line) fprintf(stderr, "emulator: the barrier at %s:%d was left out %lu times\n", file.c_str(), line, times);
  }
} without;

bool left_out(const Site& at) { return at.line == without.line && at.file == without.file && ++without.times; }

Options options = {
    flag("TAPEZOO_EMU_CHECK"), flag("TAPEZOO_EMU_COUNT"), flag("TAPEZOO_EMU_DEBUG"), flag("TAPEZOO_EMU_LATE"), order(), seed(), bytes("TAPEZOO_EMU_MEMORY", (size_t)4 << 30),
    (int)bytes("TAPEZOO_EMU_PROCESSORS", 16), getenv("TAPEZOO_EMU_RECORD"),
    (int)bytes("TAPEZOO_EMU_CAPABILITY", 90), (unsigned)bytes("TAPEZOO_EMU_SHARED", MAX_DYNAMIC_SHARED),
};

}  // namespace cuemu

// order: 0 forward, 1 reverse, 2 random. Modules loaded and memory allocated from now on follow `check`.
CUEMU_API void cuemu_options(int check, int order, uint64_t seed, int late) {
  cuemu::options.check = check;
  cuemu::options.order = (cuemu::Order)order;
  cuemu::options.seed = seed;
  cuemu::options.late = late;
}
// Modules loaded from now on are compiled for counting; launches from now on of modules that are, are counted.
CUEMU_API void cuemu_count(int on) { cuemu::options.count = on; }
CUEMU_API int cuemu_checking() { return cuemu::options.check; }
