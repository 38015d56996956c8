// Streams (one lazy worker thread each), events, value waits and host callbacks.
#include "stream.h"

#include <unistd.h>

#include <set>
#include <vector>

#include "graph.h"

namespace emu {
namespace {

using Clock = std::chrono::steady_clock;

std::atomic<int> next_stream_id{1};
std::map<int, std::unique_ptr<Stream>> default_streams;
int streams_in_use = 0;

std::set<Stream*>& live_streams() {
  static std::set<Stream*>* all = new std::set<Stream*>;  // never destroyed: workers outlive static destruction
  return *all;
}

// Whoever waits for a wait gets a little longer, so that the first cause is what gets reported.
enum Patience { kValueWait, kEventWait, kSynchronize };
std::chrono::duration<double> patience(Patience who) {
  return std::chrono::duration<double>(timeout_seconds() + 0.5 * static_cast<int>(who));
}
std::string seconds_text() {
  char text[32];
  snprintf(text, sizeof text, "%g s", timeout_seconds());
  return text;
}

void run(Stream* stream) {
  set_current_device(stream->device);
  std::unique_lock<std::mutex> lock(stream->mutex);
  for (;;) {
    stream->has_work.wait(lock, [&] { return stream->stop || !stream->jobs.empty(); });
    if (stream->jobs.empty()) return;
    Stream::Job job = std::move(stream->jobs.front());
    stream->jobs.pop_front();
    stream->running = job.name;
    // A record must happen even after a failure, or whoever waits for it would hang.
    const bool skip = stream->failure.code && job.name != "aclrtRecordEvent";
    lock.unlock();
    Failure failure{0, ""};
    try {
      if (!skip) job.work();
    } catch (const Failure& thrown) {
      failure = thrown;
    } catch (const std::exception& thrown) {
      failure = {ACL_ERROR_RT_INTERNAL_ERROR, thrown.what()};
    }
    job.work = nullptr;  // frees what it holds before anyone sees the stream idle
    lock.lock();
    if (failure.code && !stream->failure.code) stream->failure = {failure.code, job.name + ": " + failure.message};
    stream->running.clear();
    ++stream->finished;
    stream->progress.notify_all();
  }
}

std::string name_of(const Stream* stream) {
  return "stream " + std::to_string(stream->id) + " of device " + std::to_string(stream->device);
}

}  // namespace

std::recursive_mutex& runtime_lock() {
  static std::recursive_mutex* mutex = new std::recursive_mutex;
  return *mutex;
}

Stream* stream_of(aclrtStream handle) {
  if (handle) return static_cast<Stream*>(handle);
  RuntimeLock lock(runtime_lock());
  auto& stream = default_streams[device_or_default()];
  if (!stream) {
    stream = std::make_unique<Stream>();
    stream->device = device_or_default();
    live_streams().insert(stream.get());
  }
  return stream.get();
}

void enqueue(Stream* stream, const std::string& name, Work work) {
  std::lock_guard<std::mutex> lock(stream->mutex);
  if (!stream->worker.joinable()) stream->worker = std::thread(run, stream);
  stream->jobs.push_back({name, std::move(work)});
  stream->has_work.notify_one();
}

int synchronize(Stream* stream) {
  std::unique_lock<std::mutex> lock(stream->mutex);
  auto idle = [&] { return stream->jobs.empty() && stream->running.empty(); };
  while (!idle()) {
    const uint64_t before = stream->finished;
    const bool done = stream->progress.wait_for(lock, patience(kSynchronize), idle);
    if (!done && stream->finished == before)
      return fail(ACL_ERROR_RT_STREAM_SYNC_TIMEOUT, name_of(stream) + " made no progress for " + seconds_text() +
                                                        "; it is running " + stream->running);
  }
  if (!stream->failure.code) return ACL_SUCCESS;
  const Failure failure = std::move(stream->failure);
  stream->failure = {0, ""};
  return fail(failure.code, name_of(stream) + ": " + failure.message);
}

int synchronize_all(int device) {
  std::vector<Stream*> streams;
  {
    RuntimeLock lock(runtime_lock());
    for (Stream* stream : live_streams())
      if (device < 0 || stream->device == device) streams.push_back(stream);
  }
  int result = ACL_SUCCESS;
  for (Stream* stream : streams)
    if (int code = synchronize(stream)) result = code;
  return result;
}

int reserve_streams(int count) {
  // 2048 on common parts; the device's own message speaks of storage.
  static const long budget = setting("EMU_CANN_STREAMS", 2048);
  RuntimeLock lock(runtime_lock());
  if (streams_in_use + count > budget)
    return fail(ACL_ERROR_RT_NO_STREAM_RESOURCE, "no storage for another stream: " + std::to_string(streams_in_use) +
                                                     " of " + std::to_string(budget) + " streams are in use");
  streams_in_use += count;
  return ACL_SUCCESS;
}

void release_streams(int count) {
  RuntimeLock lock(runtime_lock());
  streams_in_use -= count;
}

}  // namespace emu

using namespace emu;

// ---- streams

namespace {

int create_stream(aclrtStream* out) {
  if (int code = reserve_streams(1)) return code;
  auto* stream = new Stream;
  stream->id = next_stream_id++;
  stream->device = device_or_default();
  RuntimeLock lock(runtime_lock());
  live_streams().insert(stream);
  *out = stream;
  return ACL_SUCCESS;
}

int destroy_stream(aclrtStream handle) {
  auto* stream = static_cast<Stream*>(handle);
  synchronize(stream);  // a failure nobody asked for ends with its stream
  {
    RuntimeLock lock(runtime_lock());
    if (stream->graph) return fail(ACL_ERROR_RT_STREAM_CAPTURED, "a capturing stream cannot be destroyed");
    live_streams().erase(stream);
  }
  {
    std::lock_guard<std::mutex> lock(stream->mutex);
    stream->stop = true;
    stream->has_work.notify_all();
  }
  if (stream->worker.joinable()) stream->worker.join();
  delete stream;
  release_streams(1);
  return ACL_SUCCESS;
}

// Refused without invalidating the capture, as torch_npu's own tests expect.
int refuse_captured(Stream* stream, const char* what) {
  RuntimeLock lock(runtime_lock());
  if (!stream->graph) return ACL_SUCCESS;
  return fail(ACL_ERROR_RT_STREAM_CAPTURED, std::string(what) + ": " + name_of(stream) + " is being captured");
}

int synchronize_handle(aclrtStream handle, const char* what) {
  Stream* stream = stream_of(handle);
  if (int code = refuse_captured(stream, what)) return code;
  return synchronize(stream);
}

int synchronize_device(const char* what) {
  {
    RuntimeLock lock(runtime_lock());
    for (Graph* graph : graphs())
      if (graph->capturing) {
        const std::string reason = std::string(what) + ": a stream of the device is being captured";
        invalidate(graph, ACL_ERROR_RT_STREAM_CAPTURE_INVALIDATED, reason);
        return fail(ACL_ERROR_RT_STREAM_CAPTURED, reason);
      }
  }
  return synchronize_all(device_or_default());
}

}  // namespace

EMU_API aclError aclrtCreateStream(aclrtStream* out) {
  EMU_ENTER();
  return create_stream(out);
}
EMU_API aclError aclrtCreateStreamWithConfig(aclrtStream* out, uint32_t, uint32_t) {
  EMU_ENTER();
  return create_stream(out);
}
EMU_API aclError aclrtDestroyStream(aclrtStream stream) {
  EMU_ENTER();
  return destroy_stream(stream);
}
EMU_API aclError aclrtDestroyStreamForce(aclrtStream stream) {
  EMU_ENTER();
  return destroy_stream(stream);
}
EMU_API aclError aclrtStreamGetId(aclrtStream stream, int32_t* id) {
  EMU_ENTER();
  *id = stream_of(stream)->id;
  return ACL_SUCCESS;
}
EMU_API aclError aclrtStreamQuery(aclrtStream handle, aclrtStreamStatus* status) {
  EMU_ENTER();
  Stream* stream = stream_of(handle);
  if (int code = refuse_captured(stream, __func__)) return code;
  std::lock_guard<std::mutex> lock(stream->mutex);
  const bool idle = stream->jobs.empty() && stream->running.empty();
  *status = idle ? ACL_STREAM_STATUS_COMPLETE : ACL_STREAM_STATUS_NOT_READY;
  return ACL_SUCCESS;
}
EMU_API aclError aclrtSynchronizeStream(aclrtStream stream) {
  EMU_ENTER();
  return synchronize_handle(stream, __func__);
}
EMU_API aclError aclrtSynchronizeStreamWithTimeout(aclrtStream stream, int32_t) {
  EMU_ENTER();
  return synchronize_handle(stream, __func__);
}
EMU_API aclError aclrtSynchronizeDevice() {
  EMU_ENTER();
  return synchronize_device(__func__);
}
EMU_API aclError aclrtSynchronizeDeviceWithTimeout(int32_t) {
  EMU_ENTER();
  return synchronize_device(__func__);
}
// Attributes that only matter to real hardware: what to do after an overflow or a failure.
EMU_API aclError aclrtSetStreamFailureMode(aclrtStream, uint64_t) { return ACL_SUCCESS; }
EMU_API aclError aclrtSetStreamOverflowSwitch(aclrtStream, uint32_t) { return ACL_SUCCESS; }
EMU_API aclError aclrtSetStreamAttribute(aclrtStream, aclrtStreamAttr, aclrtStreamAttrValue*) { return ACL_SUCCESS; }
EMU_API aclError aclrtGetStreamOverflowSwitch(aclrtStream, uint32_t* flag) {
  *flag = 0;
  return ACL_SUCCESS;
}

// ---- events

namespace {

void raise_to(Frontier& into, const Frontier& from) {
  for (const auto& [stream, position] : from) into[stream] = std::max(into[stream], position);
}

// A record is a place that others may wait for, not work that somebody must wait for: torch_npu's allocators record
// events on streams that were joined before, when pinned memory that a captured copy has used is freed.
int capture_record(Stream* stream, Event* event) {
  event->captured_in = stream->graph->id;
  event->frontier = stream->seen;
  event->frontier[stream] = stream->captured;
  return ACL_SUCCESS;
}

// The capture under way that the event was recorded in, or null. A finished graph may be gone, hence the id.
Graph* capture_of(const Event* event) {
  for (Graph* graph : graphs())
    if (graph->capturing && graph->id == event->captured_in) return graph;
  return nullptr;
}

// A wait on an event of a capture pulls the waiting stream into that capture.
int capture_wait(Stream* stream, const Event* event, Graph* graph) {
  if (stream->graph && stream->graph != graph) {
    const std::string reason = "a stream of one capture waits for an event of another";
    invalidate(stream->graph, ACL_ERROR_STREAM_CAPTURE_CONFLICT, reason);
    return fail(ACL_ERROR_STREAM_CAPTURE_CONFLICT, reason);
  }
  if (!stream->graph) {
    stream->graph = graph;
    stream->captured = 0;
    stream->seen.clear();
    graph->streams.insert(stream);
  }
  raise_to(stream->seen, event->frontier);
  stream->seen[stream] = ++stream->captured;
  return ACL_SUCCESS;
}

int refuse_captured_event(Event* event, const char* what) {
  RuntimeLock lock(runtime_lock());
  if (!capture_of(event)) return ACL_SUCCESS;
  return fail(ACL_ERROR_RT_EVENT_CAPTURED, std::string(what) + ": the event was recorded in a capture");
}

}  // namespace

EMU_API aclError aclrtCreateEventWithFlag(aclrtEvent* event, uint32_t) {
  EMU_ENTER();
  *event = new Event;
  return ACL_SUCCESS;
}
EMU_API aclError aclrtCreateEventExWithFlag(aclrtEvent* event, uint32_t) {
  EMU_ENTER();
  *event = new Event;
  return ACL_SUCCESS;
}
EMU_API aclError aclrtDestroyEvent(aclrtEvent) {
  EMU_ENTER();
  return ACL_SUCCESS;  // leaked: work still queued may name it
}

EMU_API aclError aclrtRecordEvent(aclrtEvent handle, aclrtStream stream_handle) {
  EMU_ENTER();
  auto* event = static_cast<Event*>(handle);
  Stream* stream = stream_of(stream_handle);
  RuntimeLock lock(runtime_lock());
  if (stream->graph) return capture_record(stream, event);
  event->captured_in = 0;
  uint64_t generation;
  {
    std::lock_guard<std::mutex> event_lock(event->mutex);
    generation = ++event->recorded;
  }
  enqueue(stream, __func__, [event, generation] {
    std::lock_guard<std::mutex> event_lock(event->mutex);
    event->finished = std::max(event->finished, generation);
    event->time = Clock::now();
    event->changed.notify_all();
  });
  return ACL_SUCCESS;
}

// A wait takes the record it waits for when it is issued, so there is nothing left to reset.
EMU_API aclError aclrtResetEvent(aclrtEvent, aclrtStream) {
  EMU_ENTER();
  return ACL_SUCCESS;
}

EMU_API aclError aclrtStreamWaitEvent(aclrtStream stream_handle, aclrtEvent handle) {
  EMU_ENTER();
  auto* event = static_cast<Event*>(handle);
  Stream* stream = stream_of(stream_handle);
  RuntimeLock lock(runtime_lock());
  if (Graph* graph = capture_of(event)) return capture_wait(stream, event, graph);
  uint64_t generation;
  {
    std::lock_guard<std::mutex> event_lock(event->mutex);
    generation = event->recorded;
  }
  if (stream->graph) {
    if (generation == 0) return ACL_SUCCESS;  // never recorded: nothing to wait for
    const std::string reason = "a captured stream waits for an event recorded outside of the capture";
    invalidate(stream->graph, ACL_ERROR_RT_CAPTURE_DEPENDENCY, reason);
    return fail(ACL_ERROR_RT_CAPTURE_DEPENDENCY, reason);
  }
  enqueue(stream, __func__, [event, generation] {
    std::unique_lock<std::mutex> event_lock(event->mutex);
    if (!event->changed.wait_for(event_lock, patience(kEventWait), [&] { return event->finished >= generation; }))
      throw Failure{ACL_ERROR_RT_EVENT_SYNC_TIMEOUT, "the event was not reached within " + seconds_text()};
  });
  return ACL_SUCCESS;
}

EMU_API aclError aclrtSynchronizeEvent(aclrtEvent handle) {
  EMU_ENTER();
  auto* event = static_cast<Event*>(handle);
  if (int code = refuse_captured_event(event, __func__)) return code;
  std::unique_lock<std::mutex> lock(event->mutex);
  const uint64_t generation = event->recorded;
  if (event->changed.wait_for(lock, patience(kSynchronize), [&] { return event->finished >= generation; }))
    return ACL_SUCCESS;
  return fail(ACL_ERROR_RT_EVENT_SYNC_TIMEOUT, "aclrtSynchronizeEvent: not reached within " + seconds_text());
}
EMU_API aclError aclrtQueryEventStatus(aclrtEvent handle, aclrtEventRecordedStatus* status) {
  EMU_ENTER();
  auto* event = static_cast<Event*>(handle);
  if (int code = refuse_captured_event(event, __func__)) return code;
  std::lock_guard<std::mutex> lock(event->mutex);
  const bool reached = event->finished >= event->recorded;
  *status = reached ? ACL_EVENT_RECORDED_STATUS_COMPLETE : ACL_EVENT_RECORDED_STATUS_NOT_READY;
  return ACL_SUCCESS;
}
EMU_API aclError aclrtQueryEventWaitStatus(aclrtEvent handle, aclrtEventWaitStatus* status) {
  EMU_ENTER();
  auto* event = static_cast<Event*>(handle);
  std::lock_guard<std::mutex> lock(event->mutex);
  const bool reached = event->finished >= event->recorded;
  *status = reached ? ACL_EVENT_WAIT_STATUS_COMPLETE : ACL_EVENT_WAIT_STATUS_NOT_READY;
  return ACL_SUCCESS;
}
EMU_API aclError aclrtEventElapsedTime(float* milliseconds, aclrtEvent start, aclrtEvent end) {
  EMU_ENTER();
  auto passed = static_cast<Event*>(end)->time - static_cast<Event*>(start)->time;
  *milliseconds = std::chrono::duration<float, std::milli>(passed).count();
  return ACL_SUCCESS;
}
EMU_API aclError aclrtEventGetTimestamp(aclrtEvent event, uint64_t* microseconds) {
  EMU_ENTER();
  auto since = static_cast<Event*>(event)->time.time_since_epoch();
  *microseconds = std::chrono::duration_cast<std::chrono::microseconds>(since).count();
  return ACL_SUCCESS;
}

// ---- value waits: torch.npu.ExternalEvent is a word of device memory used with these

namespace {

std::mutex value_mutex;
std::condition_variable value_changed;

bool satisfied(uint64_t now, uint64_t wanted, uint32_t condition) {
  switch (condition) {
    case ACL_STREAM_WAIT_VALUE_EQ: return now == wanted;
    case ACL_STREAM_WAIT_VALUE_GEQ: return static_cast<int64_t>(now - wanted) >= 0;
    case ACL_STREAM_WAIT_VALUE_AND: return (now & wanted) != 0;
    default: return ~(now | wanted) != 0;
  }
}

void wait_for_value(uint64_t* word, uint64_t wanted, uint32_t condition) {
  const auto deadline = Clock::now() + std::chrono::duration_cast<Clock::duration>(patience(kValueWait));
  std::unique_lock<std::mutex> lock(value_mutex);
  while (!satisfied(__atomic_load_n(word, __ATOMIC_SEQ_CST), wanted, condition)) {
    if (Clock::now() > deadline)
      throw Failure{ACL_ERROR_RT_EVENT_SYNC_TIMEOUT,
                    "nobody wrote " + std::to_string(wanted) + " within " + seconds_text() +
                        ": an external event that is never recorded, such as a replay of a graph with updatable "
                        "operators and no update since the last replay"};
    // A kernel or a copy may write the word too, so look again now and then.
    value_changed.wait_for(lock, std::chrono::milliseconds(1));
  }
}

}  // namespace

EMU_API aclError aclrtValueWrite(void* word, uint64_t value, uint32_t, aclrtStream stream) {
  EMU_ENTER();
  return launch(stream, __func__, [word, value] {
    std::lock_guard<std::mutex> lock(value_mutex);
    __atomic_store_n(static_cast<uint64_t*>(word), value, __ATOMIC_SEQ_CST);
    value_changed.notify_all();
  });
}
EMU_API aclError aclrtValueWait(void* word, uint64_t value, uint32_t condition, aclrtStream stream) {
  EMU_ENTER();
  return launch(stream, __func__, [=] { wait_for_value(static_cast<uint64_t*>(word), value, condition); });
}

// ---- host callbacks run on the worker of their stream, so a report thread has nothing to process

EMU_API aclError aclrtSubscribeReport(uint64_t, aclrtStream) {
  EMU_ENTER();
  return ACL_SUCCESS;
}
EMU_API aclError aclrtUnSubscribeReport(uint64_t, aclrtStream) {
  EMU_ENTER();
  return ACL_SUCCESS;
}
EMU_API aclError aclrtProcessReport(int32_t) {
  EMU_ENTER();
  usleep(1000);  // the caller loops
  return ACL_SUCCESS;
}
EMU_API aclError aclrtLaunchCallback(aclrtCallback function, void* data, aclrtCallbackBlockType, aclrtStream stream) {
  EMU_ENTER();
  return launch(stream, __func__, [=] { function(data); });
}
EMU_API aclError aclrtLaunchHostFunc(aclrtStream stream, aclrtHostFunc function, void* data) {
  EMU_ENTER();
  return launch(stream, __func__, [=] { function(data); });
}
