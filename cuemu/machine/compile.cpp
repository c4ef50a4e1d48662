// From kernel text to a shared object, by g++.
//
// The stand-in NVRTC returns the text with its options as the "CUBIN", so that a program may keep it and load it in any
// mode (plain, checked, for a debugger). The shared object for a mode is built, and cached on disk by hash, when NVRTC
// or the driver first needs it.
//
// Two steps: the preprocessor runs first, so that kernels made by macros are found too; then one line is added for
// each kernel and for each name of dynamic shared memory, and the result is compiled.
#include <dlfcn.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <set>
#include <sstream>

#include "machine.h"

namespace cuemu {

static const char MAGIC[] = "tapezoo emulator module\n";

static std::string read_file(const std::string& path) {
  std::ifstream f(path);
  std::stringstream s;
  s << f.rdbuf();
  return s.str();
}

static uint64_t hash(const std::string& s) {  // FNV-1a
  uint64_t h = 1469598103934665603ull;
  for (unsigned char c : s) h = (h ^ c) * 1099511628211ull;
  return h;
}

// The directory of this library, named by the hash of the headers beside it.
std::string home() {
  Dl_info info;
  dladdr((void*)&home, &info);
  std::string path = info.dli_fname;
  return path.substr(0, path.rfind('/'));
}

static std::string quoted(const std::string& s) {
  std::string r = "'";
  for (char c : s) r += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return r + "'";
}

// The compiler that built this library.
static std::string compiler() {
  const std::string s = read_file(home() + "/compiler");
  return s.empty() ? "g++" : s;
}

static std::string flags() {
  // no-gnu-unique, hidden: each module has its own static variables. extern-tls-init: none of ours has one.
  std::string common = "-std=c++17 -fPIC -fno-exceptions -fno-rtti -fno-extern-tls-init -fvisibility=hidden -fno-gnu-unique -fno-threadsafe-statics -fno-strict-aliasing -fno-stack-protector -w ";
  if (options.check || options.count) common += "-O1 -g1 -fsanitize=thread ";
  else if (options.debug) common += "-O0 -g ";
  else common += "-O2 -g1 ";
  if (options.check) common += "-DCUEMU_CHECK -fsanitize=alignment,bounds ";
  if (options.count) common += "-DCUEMU_COUNT -fno-tree-sra ";  // no-tree-sra: 16 bytes at once stay one access
  return common;
}

// ---- parsing the preprocessed text

static bool identifier(char c) { return isalnum((unsigned char)c) || c == '_'; }

static size_t skip_space(const std::string& s, size_t i) {
  for (;;) {
    while (i < s.size() && isspace((unsigned char)s[i])) i++;
    if (i >= s.size() || s[i] != '#') return i;
    while (i < s.size() && s[i] != '\n') i++;  // a line marker
  }
}

static size_t closing(const std::string& s, size_t open) {
  int depth = 0;
  for (size_t i = open; i < s.size(); i++) {
    depth += s[i] == '(', depth -= s[i] == ')';
    if (!depth) return i;
  }
  return s.size();
}

struct Found {
  std::string name, bound;
};

// __attribute__((cuemu_kernel, …)) void [__attribute__((cuemu_bounds(N, …)))] NAME(
static std::vector<Found> find_kernels(const std::string& s) {
  std::vector<Found> found;
  std::set<std::string> seen;
  for (size_t at = 0; (at = s.find("((cuemu_kernel,", at)) != std::string::npos; at++) {
    const size_t before = s.find_last_of(";}", at);
    if (s.find("template", before == std::string::npos ? 0 : before) < at) continue;  // instances are found by name expression
    Found k = {"", "0"};
    for (size_t i = closing(s, at) + 1; i < s.size();) {
      i = skip_space(s, i);
      size_t end = i;
      while (end < s.size() && identifier(s[end])) end++;
      if (end == i) break;
      const std::string word = s.substr(i, end - i);
      i = skip_space(s, end);
      if (word == "__attribute__") {
        const size_t close = closing(s, i), bounds = s.find("cuemu_bounds", i);
        if (bounds < close) {
          const size_t open = s.find('(', bounds);
          int depth = 0;
          size_t stop = open;
          for (; stop < close; stop++) {
            depth += s[stop] == '(', depth -= s[stop] == ')';
            if (!depth || (depth == 1 && s[stop] == ',')) break;
          }
          k.bound = s.substr(open + 1, stop - open - 1);
        }
        i = close + 1;
      } else if (s[i] == '(') {
        k.name = word;
        break;
      }
    }
    if (!k.name.empty() && seen.insert(k.name).second) found.push_back(k);
  }
  return found;
}

// extern __attribute__((cuemu_shared)) thread_local … NAME[];
static std::set<std::string> find_dynamic_shared(const std::string& s) {
  std::set<std::string> names;
  for (size_t at = 0; (at = s.find("cuemu_shared", at)) != std::string::npos; at++) {
    size_t word = s.rfind("__attribute__", at);
    while (word > 0 && isspace((unsigned char)s[word - 1])) word--;
    if (word < 6 || s.compare(word - 6, 6, "extern")) continue;
    const size_t end = s.find(';', at), open = s.rfind('[', end);
    if (open == std::string::npos || open < at) continue;
    size_t last = open;
    while (isspace((unsigned char)s[last - 1])) last--;
    size_t first = last;
    while (identifier(s[first - 1])) first--;
    names.insert(s.substr(first, last - first));
  }
  return names;
}

static std::string additions(const std::string& text, const std::vector<std::string>& expressions) {
  std::string r = "\n# 1 \"cuemu-entries\"\n";
  int id = 0;
  auto add = [&](const std::string& name, const std::string& function, const std::string& bound) {
    r += "static cuemu::Registration cuemu_registration_" + std::to_string(id++) + "(cuemu::Entry<" + function + ">::kernel(\"" + name + "\", " + bound + "));\n";
  };
  for (const Found& k : find_kernels(text)) add(k.name, "&" + k.name, k.bound);
  for (const std::string& e : expressions) add(e, "&" + e, "0");
  for (const std::string& d : find_dynamic_shared(text))
    r += "__asm__(\".globl " + d + "\\n.hidden " + d + "\\n.type " + d + ",@tls_object\\n.set " + d + ", cuemu_dynamic\\n\");\n";
  return r;
}

// A module compiled for counting: a / b as kernel/count.h has it.
static std::string with_divisions_seen(const std::string& s) {
  const size_t start = s.find("cuemu_divisions_follow");
  if (start == std::string::npos) return s;
  std::string r = s.substr(0, start);
  bool marker = false, text = false;  // in a line such as # 12 "a/b.cu"; in a string
  for (size_t i = start; i < s.size(); i++) {
    if (s[i] == '#' && s[i - 1] == '\n') marker = true;
    if (s[i] == '\n') marker = false;
    if (s[i] == '"' && s[i - 1] != '\\') text = !text;
    if (s[i] != '/' || marker || text)
      r += s[i];
    else if (s[i + 1] == '=')
      r += "*=cuemu::over|=", i++;
    else
      r += "*cuemu::over*";
  }
  return r;
}

// ---- the two steps

struct Request {
  std::string name, flags, source;
  std::vector<std::string> expressions;
};

static bool run(const std::string& command, std::string& log, const std::string& log_file) {
  const int status = system(("{ " + command + "; } >" + quoted(log_file) + " 2>&1").c_str());
  log += read_file(log_file);
  unlink(log_file.c_str());
  return status == 0;
}

// The shared object for a request in the present mode; empty, and a log, when it does not compile.
static std::string build(const Request& r, std::string& log) {
  static std::atomic<int> serial{0};
  const char* chosen = getenv("TAPEZOO_EMU_CACHE");
  const std::string directory = chosen && *chosen ? chosen : home() + "/kernels";
  mkdir(directory.c_str(), 0777);
  std::string key = home() + compiler() + flags() + r.flags + r.name + '\n' + r.source;
  for (auto& e : r.expressions) key += '\n' + e;
  char hex[20];
  snprintf(hex, sizeof hex, "%016llx", (unsigned long long)hash(key));
  const std::string library = directory + "/" + hex + ".so";
  if (::access(library.c_str(), R_OK) == 0) return library;

  const std::string temporary = directory + "/" + hex + "." + std::to_string(getpid()) + "-" + std::to_string(serial++);
  const std::string cpp = temporary + ".cpp", ii = temporary + ".ii", so = temporary + ".so", log_file = temporary + ".log";
  std::ofstream(cpp) << "#include \"" << home() << "/kernel/cuda.h\"\n#line 1 \"" << r.name << "\"\n" << r.source << "\n#line 1 \"cuemu-module\"\nCUEMU_MODULE()\n";
  // Paths in reports and for a debugger are those of the text's #line, in any directory.
  bool ok = run(quoted(compiler()) + " " + flags() + r.flags + " -E -o " + quoted(ii) + " " + quoted(cpp), log, log_file);
  if (ok) {
    const std::string text = read_file(ii), added = additions(text, r.expressions);
    std::ofstream(ii) << (options.count ? with_divisions_seen(text) : text) << added;
    ok = run(quoted(compiler()) + " " + flags() + " -fdebug-prefix-map=\"$PWD\"=. -c -o " + quoted(temporary + ".o") + " " + quoted(ii) + " && " + quoted(compiler()) + " -shared -o " + quoted(so) + " " + quoted(temporary + ".o") + " -L" + quoted(home()) + " -l:libcuemu.so -lm", log, log_file);
  }
  ok = ok && rename(so.c_str(), library.c_str()) == 0;  // complete, or absent
  for (const std::string& f : {cpp, ii, temporary + ".o"}) unlink(f.c_str());
  return ok ? library : "";
}

// The image: magic, then four length-prefixed fields and the name expressions.
static std::string pack(const Request& r) {
  std::string s = MAGIC;
  auto field = [&](const std::string& f) { s += std::to_string(f.size()) + "\n" + f; };
  field(r.name), field(r.flags), field(r.source);
  for (auto& e : r.expressions) field(e);
  return s + "0\n";
}

static bool unpack(const std::string& image, Request& r) {
  if (image.compare(0, sizeof MAGIC - 1, MAGIC)) return false;
  size_t at = sizeof MAGIC - 1;
  auto field = [&](std::string& f) {
    const size_t line = image.find('\n', at);
    if (line == std::string::npos) return false;
    const size_t n = strtoul(image.c_str() + at, nullptr, 10);
    if (n > image.size() - line - 1) return false;
    f = image.substr(line + 1, n), at = line + 1 + n;
    return true;
  };
  if (!field(r.name) || !field(r.flags) || !field(r.source)) return false;
  for (std::string e; field(e) && !e.empty();) r.expressions.push_back(e);
  return true;
}

Compiled compile(const std::string& source, const std::string& name, const std::vector<std::string>& given, const std::vector<std::string>& expressions) {
  Request r = {name, "", source, expressions};
  for (const std::string& o : given) {  // only the NVRTC options that apply here
    if (!o.compare(0, 2, "-D") || !o.compare(0, 2, "-I")) r.flags += quoted(o) + " ";
    if (!o.compare(0, 15, "--define-macro=")) r.flags += quoted("-D" + o.substr(15)) + " ";
    if (!o.compare(0, 15, "--include-path=")) r.flags += quoted("-I" + o.substr(15)) + " ";
  }
  Compiled c = {pack(r), "", false};
  c.ok = !build(r, c.log).empty();
  return c;
}

void described(const std::string& image, std::string& name, std::string& element) {
  Request r;
  if (!unpack(image, r)) return;
  const size_t end = r.source.find(" S;"), start = r.source.rfind(' ', end - 1);
  name = r.name, element = end == std::string::npos ? "" : r.source.substr(start + 1, end - start - 1);
}

std::string library_of(const std::string& image, std::string& error) {
  Request r;
  if (!unpack(image, r)) return error = "this image was not made by the emulator's NVRTC", "";
  return build(r, error);
}

}  // namespace cuemu
