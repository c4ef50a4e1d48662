// A launch: the blocks of a grid, one after another; and the modules they come from.
#include <dlfcn.h>
#include <link.h>

#include <cctype>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>

#include "machine.h"

namespace cuemu {

LoadedModule* running = nullptr;
static const Kernel* kernel;
static void** kernel_arguments;
static char fault_text[2048];

// ---- modules

static int note_segments(dl_phdr_info* info, size_t, void* data) {
  LoadedModule* m = (LoadedModule*)data;
  if (info->dlpi_addr != m->code) return 0;
  for (int i = 0; i < info->dlpi_phnum; i++) {
    const auto& p = info->dlpi_phdr[i];
    const uintptr_t start = info->dlpi_addr + p.p_vaddr;
    if (p.p_type == PT_LOAD) m->image.push_back({start, start + p.p_memsz});
    if (p.p_type == PT_TLS) m->shared_size = p.p_memsz;
  }
  return 1;
}

LoadedModule* load(const std::string& path, std::string& error) {
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library) return error = dlerror(), nullptr;
  auto describe_module = (Module(*)())dlsym(library, "cuemu_module");
  link_map* map = nullptr;
  dlinfo(library, RTLD_DI_LINKMAP, &map);
  LoadedModule* m = new LoadedModule{library, path, describe_module(), (uintptr_t)map->l_addr, {}, 0, options.check, options.count};
  dl_iterate_phdr(note_segments, m);
  return m;
}

const Kernel* find_kernel(LoadedModule* m, const char* name) {
  for (const Kernel* k = m->module.kernels; k; k = k->next)
    if (!strcmp(k->name, name)) return k;
  return nullptr;
}

// The function that a thread-local variable was declared in, by its name: _ZZ4funcE5array, one Z more for each function within
// another; empty for a variable that is not a function's, as `extern __shared__` arrays are not.
static std::string function_of(const char* name) {
  if (strncmp(name, "_ZZ", 3)) return "";
  while (*name && !isdigit((unsigned char)*name)) name++;
  char* word;
  const unsigned long n = strtoul(name, &word, 10);
  return {word, strnlen(word, n)};
}

size_t static_shared(const LoadedModule* m, const Kernel* kernel) {
  std::ifstream file(m->path, std::ios::binary);
  const std::string image{std::istreambuf_iterator<char>(file), {}};
  const auto* header = (const ElfW(Ehdr)*)image.data();
  const auto* sections = (const ElfW(Shdr)*)(image.data() + header->e_shoff);
  size_t sum = 0;
  for (int i = 0; i < header->e_shnum; i++) {
    if (sections[i].sh_type != SHT_SYMTAB) continue;
    const char* names = image.data() + sections[sections[i].sh_link].sh_offset;
    const auto* symbols = (const ElfW(Sym)*)(image.data() + sections[i].sh_offset);
    for (size_t n = 0; n < sections[i].sh_size / sizeof *symbols; n++) {
      if (ELF64_ST_TYPE(symbols[n].st_info) != STT_TLS) continue;
      const std::string function = function_of(names + symbols[n].st_name);
      bool another = false;
      for (const Kernel* k = m->module.kernels; k; k = k->next) another |= k != kernel && function == k->name;
      if (!function.empty() && !another) sum += symbols[n].st_size;
    }
  }
  return sum;
}

// ---- faults

std::string place(const void* code) {
  char text[32];
  snprintf(text, sizeof text, "{+0x%lx}", (unsigned long)((uintptr_t)code - running->code));
  return text;
}

void fail(const char* format, ...) {
  va_list list;
  va_start(list, format);
  vsnprintf(fault_text, sizeof fault_text, format, list);
  va_end(list);
  block.failed = true;
  switch_fiber(now->fiber, outside);  // the block's fibers are abandoned
  abort();
}

// FILE:LINE of an address in the module, by addr2line, which comes with every g++. It lists inlined calls from the
// innermost on; the first place outside the emulator's headers is the kernel's.
static std::string line_of(unsigned long offset) {
  char command[4200], line[4096];
  snprintf(command, sizeof command, "addr2line -i -e '%s' 0x%lx 2>/dev/null", running->path.c_str(), offset - 1);  // -1: inside the call
  std::string found;
  FILE* f = popen(command, "r");
  if (!f) return "an unknown place";
  while (fgets(line, sizeof line, f)) {
    line[strcspn(line, "\n (")] = 0;
    const char* path = line;
    while (!strncmp(path, "./", 2)) path += 2;
    if (found.empty() || !found.compare(0, home().size(), home())) found = path;
  }
  pclose(f);
  return found.empty() ? "an unknown place" : found;
}

// "{+0x1234}" becomes "scan.cu:41".
static std::string resolve(std::string text) {
  for (size_t from; (from = text.find("{+0x")) != std::string::npos;)
    text.replace(from, text.find('}', from) - from + 1, line_of(strtoul(text.c_str() + from + 2, nullptr, 16)));
  return text;
}

// ---- blocks

// The threads of the running block, one of `number` that exist at a time. A thread keeps its stack.
static void make_threads(uint32_t number, uint32_t warps) {
  struct Crew {
    Thread* thread;
    Warp* warp;
    uint32_t have;
  };
  static std::vector<Crew> crews;
  while (crews.size() <= number) crews.push_back({new Thread[MAX_THREADS], new Warp[MAX_THREADS / WARP], 0});
  Crew& crew = crews[number];
  for (uint32_t& have = crew.have; have < warps * WARP; have++) {
    Thread& t = crew.thread[have];
    t.linear = have, t.warp = have / WARP, t.lane = have % WARP;
    make_stack(t.fiber, have);
  }
  block.thread = crew.thread, block.warp = crew.warp;
}

static void thread_body() {
  kernel->call(kernel_arguments);
  exit_thread();  // does not return: the next block starts on a fresh stack
}

static void locate_shared() {
  shared_range.dynamic = (uintptr_t)running->module.dynamic_shared();  // the call creates the thread-local block
  void* start = nullptr;
  dlinfo(running->library, RTLD_DI_TLS_DATA, &start);
  shared_range.start = (uintptr_t)start, shared_range.size = running->shared_size;
}

// Shared memory starts as NaN.
static void fill_shared() {
  each_shared([](uintptr_t at, size_t n) { memset((void*)at, 0xff, n); });
}

static void start_block(Index index) {
  block.index = index;
  fill_shared();
  forget_copies(block.threads);
  block.alive = block.threads, block.arrived = 0;
  block.vote_and = 1, block.vote_or = 0, block.vote_sum = 0;
  for (uint32_t w = 0; w < block.warps; w++) {
    Warp& warp = block.warp[w];
    const uint32_t lanes = block.threads - w * WARP;
    warp.all = warp.alive = warp.ready = lanes >= WARP ? ~0u : (1u << lanes) - 1;
    warp.meetings = 1;
    warp.meeting[0].mask = ~0u, warp.meeting[0].arrived = 0, warp.meeting[0].generation = 0;
  }
  for (uint32_t i = 0; i < block.threads; i++) {
    Thread& t = block.thread[i];
    t.index = {i % block.size.x, i / block.size.x % block.size.y, i / block.size.x / block.size.y};
    t.state = State::Ready, t.warp_barriers = 0;
    start(t.fiber, thread_body);
  }
  start_checks_of_block();
  if (counting) start_counts_of_block();
}

// The i-th block to run. A correct kernel does not depend on it.
static Index nth_block(uint64_t i, uint64_t n, uint64_t stride) {
  const uint64_t b = options.order == Order::Forward ? i : options.order == Order::Reverse ? n - 1 - i : (uint64_t)((unsigned __int128)i * stride % n);
  return {(unsigned)(b % block.grid.x), (unsigned)(b / block.grid.x % block.grid.y), (unsigned)(b / block.grid.x / block.grid.y)};
}

static uint64_t gcd(uint64_t a, uint64_t b) { return b ? gcd(b, a % b) : a; }

bool launch(LoadedModule* m, const Kernel* k, Index grid, Index size, unsigned dynamic_shared, bool together, void** arguments, std::string& fault) {
  static uint64_t launches = 0;
  running = m, kernel = k, kernel_arguments = arguments;
  block.grid = grid, block.size = size, block.dynamic_shared = dynamic_shared;
  block.threads = (uint32_t)size.volume(), block.warps = (block.threads + WARP - 1) / WARP;
  block.random = (options.seed + ++launches) * 0x9e3779b97f4a7c15ull | 1;
  block.failed = false;
  locate_shared();
  start_checks_of_launch();
  counting = options.count && m->counted;
  if (counting) start_counts_of_launch(k);
  const uint64_t n = grid.volume();
  uint64_t stride = n > 2 ? random_bits() % n : 1;
  while (stride < 1 || gcd(stride, n) != 1) stride++;  // blocks in the order of i * stride mod n
  const uint32_t at_once = together ? (uint32_t)n : 1;
  for (uint64_t i = 0; i < n && !block.failed; i += at_once) {
    start_grid(at_once);
    for (uint32_t j = 0; j < at_once; j++) {
      make_threads(j, block.warps);
      start_block(nth_block(i + j, n, stride));
      keep_block(j);
    }
    Thread* first = next_ready();
    now = first;
    switch_fiber(outside, first->fiber);
    if (block.failed) {
      char where[512];
      const Index b = block.index, t = now->index;
      snprintf(where, sizeof where, "%s<<<(%u,%u,%u),(%u,%u,%u),%u>>> block (%u,%u,%u) thread (%u,%u,%u): ", k->name, grid.x, grid.y, grid.z, size.x, size.y, size.z, dynamic_shared, b.x, b.y, b.z, t.x, t.y, t.z);
      fault = resolve(where + std::string(fault_text));
    }
    now = nullptr;
  }
  if (counting) end_counts_of_launch();
  return !block.failed;
}

}  // namespace cuemu
