// Fibers: stacks that one system thread switches between. On x86-64 a switch saves six registers and the stack
// pointer, about a nanosecond; elsewhere the C library's ucontext does it, some twenty times slower.
#pragma once
#include <cstddef>
#if !defined(__x86_64__)
#include <ucontext.h>
#endif

namespace cuemu {

constexpr size_t STACK = 256 * 1024;  // reserved, committed page by page as a kernel's frames need it

struct Fiber {
  char* stack;  // lowest address, above a guard page
  size_t size;
#if defined(__x86_64__)
  void* pointer;
#else
  ucontext_t context;
#endif
};

void make_stack(Fiber&, unsigned number);
void start(Fiber&, void (*body)());  // ready to run `body`, which must not return
void switch_fiber(Fiber& from, Fiber& to);

}  // namespace cuemu
