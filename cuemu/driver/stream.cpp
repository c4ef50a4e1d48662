// Streams, events, capture and graphs: the order in which work runs.
//
// All streams share one queue, which is one of the orders that any use of streams and events allows.
#include <cstdio>
#include <deque>
#include <set>

#include "driver.h"

using namespace driver;

static std::deque<Work> queue;
static std::set<Stream*> captures;

static Result run(const Work& work) {
  if (sticky) return sticky;
  Result r = work();
  return r ? sticky = r : SUCCESS;
}

Result driver::wait_for_all() {
  while (!queue.empty()) {
    Work work = std::move(queue.front());
    queue.pop_front();
    run(work);
  }
  return sticky;
}

// A fault inside the work is reported at the next synchronisation, as on hardware.
Result driver::submit(Stream* s, Work work) {
  if (s && s->capturing) return s->capturing->nodes.push_back(std::move(work)), SUCCESS;
  if (cuemu::options.late) return queue.push_back(std::move(work)), SUCCESS;
  run(work);
  return SUCCESS;
}

Result driver::not_while_capturing(const char* call) {
  if (captures.empty()) return SUCCESS;
  for (Stream* s : captures) s->capture_failed = true;
  return refuse(CAPTURE_UNSUPPORTED, "%s while a stream is captured", call);
}

// ---- streams
CUEMU_API Result cuStreamCreate(Stream** s, unsigned) { return *s = new Stream, SUCCESS; }
CUEMU_API Result cuStreamCreateWithPriority(Stream** s, unsigned, int) { return *s = new Stream, SUCCESS; }
CUEMU_API Result cuStreamDestroy_v2(Stream* s) {
  std::lock_guard<std::recursive_mutex> hold(driver::lock);
  wait_for_all();
  captures.erase(s);
  return delete s, SUCCESS;
}
CUEMU_API Result cuStreamSynchronize(Stream* s) {
  ENTER;
  if (s && s->capturing) return s->capture_failed = true, refuse(CAPTURE_UNSUPPORTED, "cuStreamSynchronize of a stream that is captured");
  return wait_for_all();
}
CUEMU_API Result cuStreamQuery(Stream*) {
  ENTER;
  return queue.empty() ? SUCCESS : NOT_READY;
}
CUEMU_API Result cuStreamWaitEvent(Stream*, Event*, unsigned) {
  ENTER;
  return SUCCESS;  // one queue: the work before the event comes first anyway
}
CUEMU_API Result cuStreamAttachMemAsync(Stream*, DevicePointer, size_t, unsigned) { return SUCCESS; }
CUEMU_API Result cuLaunchHostFunc(Stream* s, void (*f)(void*), void* data) {
  ENTER;
  return submit(s, [=] { return f(data), SUCCESS; });
}

// ---- events
CUEMU_API Result cuEventCreate(Event** e, unsigned flags) {
  const unsigned DISABLE_TIMING = 2;
  *e = new Event;
  (*e)->timed = !(flags & DISABLE_TIMING);
  return SUCCESS;
}
CUEMU_API Result cuEventDestroy_v2(Event* e) {
  std::lock_guard<std::recursive_mutex> hold(driver::lock);
  wait_for_all();
  return delete e, SUCCESS;
}
CUEMU_API Result cuEventRecord(Event* e, Stream* s) {
  ENTER;
  if (s && s->capturing) return SUCCESS;  // an edge of the graph, which is a list here
  return submit(s, [e] { return e->time = seconds(), e->recorded = true, SUCCESS; });
}
CUEMU_API Result cuEventRecordWithFlags(Event* e, Stream* s, unsigned) { return cuEventRecord(e, s); }
CUEMU_API Result cuEventSynchronize(Event*) {
  ENTER;
  if (Result r = not_while_capturing("cuEventSynchronize")) return r;
  return wait_for_all();
}
CUEMU_API Result cuEventQuery(Event*) {
  ENTER;
  return queue.empty() ? SUCCESS : NOT_READY;
}
CUEMU_API Result cuEventElapsedTime_v2(float* ms, Event* a, Event* b) {
  ENTER;
  if (!a->timed || !b->timed) return refuse(INVALID_HANDLE, "the time of an event that was made without timing");
  if (!a->recorded || !b->recorded) return queue.empty() ? INVALID_HANDLE : NOT_READY;
  return *ms = (float)((b->time - a->time) * 1e3), SUCCESS;
}
CUEMU_API Result cuEventElapsedTime(float* ms, Event* a, Event* b) { return cuEventElapsedTime_v2(ms, a, b); }

// ---- capture: the stream's work goes into a graph, and runs when the graph is launched
CUEMU_API Result cuStreamBeginCapture_v2(Stream* s, int) {
  ENTER;
  if (!s) return refuse(CAPTURE_UNSUPPORTED, "the default stream cannot be captured");
  if (s->capturing) return ILLEGAL_STATE;
  s->capturing = new Graph, s->capture_failed = false;
  return captures.insert(s), SUCCESS;
}
CUEMU_API Result cuStreamEndCapture(Stream* s, Graph** graph) {
  ENTER;
  if (!s || !s->capturing) return ILLEGAL_STATE;
  *graph = s->capturing;
  s->capturing = nullptr;
  captures.erase(s);
  if (!s->capture_failed) return SUCCESS;
  delete *graph;
  return *graph = nullptr, CAPTURE_INVALIDATED;
}
CUEMU_API Result cuStreamIsCapturing(Stream* s, int* status) {
  ENTER;
  return *status = !s || !s->capturing ? 0 : s->capture_failed ? 2 : 1, SUCCESS;
}

// ---- graphs
CUEMU_API Result cuGraphInstantiateWithFlags(Graph** instance, Graph* graph, unsigned long long) {
  ENTER;
  return *instance = new Graph(*graph), SUCCESS;
}
CUEMU_API Result cuGraphUpload(Graph*, Stream*) { return SUCCESS; }
CUEMU_API Result cuGraphLaunch(Graph* instance, Stream* s) {
  ENTER;
  for (const Work& node : instance->nodes)
    if (Result r = submit(s, node)) return r;
  return SUCCESS;
}
CUEMU_API Result cuGraphGetNodes(Graph* graph, void**, size_t* n) { return *n = graph->nodes.size(), SUCCESS; }
CUEMU_API Result cuGraphExecDestroy(Graph* instance) { return delete instance, SUCCESS; }
CUEMU_API Result cuGraphDestroy(Graph* graph) { return delete graph, SUCCESS; }
