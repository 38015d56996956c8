// Captured graphs (aclmdlRI) and the rules of capture.
#pragma once
#include <set>
#include <vector>

#include "stream.h"

namespace emu {

struct Task {
  std::string name;
  std::shared_ptr<const Work> work;  // replaced by a task update, under runtime_lock()
};

struct TaskGroup {
  Graph* graph;
  std::vector<std::shared_ptr<Task>> tasks;
};

struct Graph {
  uint32_t id = 0;
  std::vector<std::shared_ptr<Task>> tasks;         // in capture order, which is also the order of a replay
  std::vector<std::unique_ptr<TaskGroup>> groups;
  aclmdlRICaptureMode mode{};
  std::thread::id thread;                           // where the capture began
  Stream* origin = nullptr;
  std::set<Stream*> streams;
  bool capturing = false;
  int invalid = 0;                                  // code that the end of the capture returns
  std::string reason;                               // and why
  int streams_held = 0;
};

// Every graph that exists.
std::set<Graph*>& graphs();

// Marks the capture as failed; its end reports the first reason.
void invalidate(Graph* graph, int code, const std::string& reason);

// Refuses a call that no thread may make while a capture in global mode is under way,
// nor the capturing thread in thread-local mode. Invalidates the capture.
int refuse_if_capturing(const std::string& call);

// Leaves every capture, however it ended.
void leave_capture(Graph* graph);

}  // namespace emu
