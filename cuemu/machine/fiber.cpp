// Fibers: see fiber.h.
#include "fiber.h"

#include <sys/mman.h>

namespace cuemu {

void make_stack(Fiber& f, unsigned number) {
  const size_t guard = 4096;
  char* memory = (char*)mmap(nullptr, STACK + guard, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  mprotect(memory, guard, PROT_NONE);  // a kernel that outgrows its stack faults instead of writing over its neighbour's
  f.stack = memory + guard;
  // Stacks that all begin at the start of a page would compete for the same few sets of the cache.
  f.size = STACK - number * 5 * 64 % 4096;
}

#if defined(__x86_64__)

// cuemu_switch(void** save, void* load): the callee-saved registers go on the old stack and come from the new one.
__asm__(R"(
.pushsection .text
.p2align 4
.globl cuemu_switch
.hidden cuemu_switch
.type cuemu_switch,@function
cuemu_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size cuemu_switch, .-cuemu_switch
.popsection
)");
extern "C" void cuemu_switch(void** save, void* load);

void start(Fiber& f, void (*body)()) {
  void** top = (void**)(f.stack + f.size) - 2;
  top[0] = (void*)body;
  top[1] = nullptr;     // the "return address" of body: a debugger's backtrace ends here
  f.pointer = top - 6;  // six registers, whatever they hold; at entry the stack is aligned as after a call
}

void switch_fiber(Fiber& from, Fiber& to) { cuemu_switch(&from.pointer, to.pointer); }

#else

void start(Fiber& f, void (*body)()) {
  getcontext(&f.context);
  f.context.uc_stack.ss_sp = f.stack;
  f.context.uc_stack.ss_size = f.size;
  f.context.uc_link = nullptr;
  makecontext(&f.context, body, 0);
}

void switch_fiber(Fiber& from, Fiber& to) { swapcontext(&from.context, &to.context); }

#endif

}  // namespace cuemu
