// Streams and events.
//
// Lock order: runtime_lock() before the mutex of a stream or an event. Nobody waits while holding runtime_lock().
#pragma once
#include <array>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <thread>

#include "emu.h"

namespace emu {

struct Graph;
struct TaskGroup;

// Guards the lists of streams and graphs and all capture state.
std::recursive_mutex& runtime_lock();
using RuntimeLock = std::lock_guard<std::recursive_mutex>;

// How far into each stream of a capture something has come: a vector clock.
using Frontier = std::map<struct Stream*, uint64_t>;

// Limits of cube and of vector cores; 0 for none.
using CoreLimits = std::array<uint32_t, 2>;

struct Stream {
  int id = 0;
  int device = 0;
  CoreLimits core_limits{};  // guarded by the lock of cores.cpp

  // queue, guarded by `mutex`
  struct Job {
    std::string name;
    Work work;
  };
  std::mutex mutex;
  std::condition_variable has_work, progress;
  std::deque<Job> jobs;
  std::string running;       // name of the running job, empty when none
  uint64_t finished = 0;     // jobs done; a wait that sees it move starts its time-out again
  bool stop = false;
  std::thread worker;        // started with the first job
  Failure failure{0, ""};    // first failure since the last report; later jobs are skipped until it is reported

  // capture and update, guarded by runtime_lock()
  Graph* graph = nullptr;                   // capturing into
  std::unique_ptr<TaskGroup> open_group;    // task group being captured
  TaskGroup* updating = nullptr;            // task group being updated
  size_t next_update = 0;
  uint64_t captured = 0;                    // operations captured on this stream
  Frontier seen;                            // what the captured stream waits for so far
};

struct Event {
  std::mutex mutex;
  std::condition_variable changed;
  uint64_t recorded = 0;  // records issued
  uint64_t finished = 0;  // records the device has reached
  std::chrono::steady_clock::time_point time{};

  // guarded by runtime_lock()
  uint32_t captured_in = 0;  // id of the graph whose capture holds the last record, 0 for none
  Frontier frontier;
};

// The stream behind a handle; the null handle is the default stream of the current device.
Stream* stream_of(aclrtStream handle);
inline bool is_default(const Stream* stream) { return stream->id == 0; }

void enqueue(Stream* stream, const std::string& name, Work work);

// Waits until the stream (every stream of a device, of all devices for -1) is idle and reports its failure.
int synchronize(Stream* stream);
int synchronize_all(int device);

// One of the streams a device can hold, shared between live streams and captured graphs.
int reserve_streams(int count);
void release_streams(int count);

}  // namespace emu
