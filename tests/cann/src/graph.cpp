// Capture, replay, task groups and task updates, conditional tasks.
#include "graph.h"

#include <cstdio>

namespace emu {
namespace {

std::atomic<uint32_t> next_graph_id{1};
thread_local aclmdlRICaptureMode thread_mode = ACL_MODEL_RI_CAPTURE_MODE_GLOBAL;

// Re-launching an operator between update begin and end replaces the work of the captured task.
int update_task(Stream* stream, const std::string& name, Work work) {
  auto& tasks = stream->updating->tasks;
  if (stream->next_update >= tasks.size())
    return fail(ACL_ERROR_RT_MODEL_UPDATE_FAILED,
                "task update launches " + name + ", but the group holds only " + std::to_string(tasks.size()) + " kernels");
  std::shared_ptr<Task> task = tasks[stream->next_update++];
  if (task->name != name)
    return fail(ACL_ERROR_RT_MODEL_UPDATE_FAILED, "task update launches " + name + " where " + task->name + " was captured");
  trace("update " + name);
  // In order on the update stream: whoever waits for an event behind it sees the new parameters.
  auto replacement = std::make_shared<const Work>(std::move(work));
  enqueue(stream, "update of " + name, [task, replacement] {
    RuntimeLock lock(runtime_lock());
    task->work = replacement;
  });
  return ACL_SUCCESS;
}

int capture_task(Stream* stream, const std::string& name, Work work) {
  Graph* graph = stream->graph;
  if (graph->invalid) return fail(ACL_ERROR_RT_STREAM_CAPTURE_INVALIDATED, name + ": the capture is invalid: " + graph->reason);
  auto task = std::make_shared<Task>();
  task->name = name;
  task->work = std::make_shared<const Work>(std::move(work));
  graph->tasks.push_back(task);
  if (stream->open_group) stream->open_group->tasks.push_back(task);
  stream->seen[stream] = ++stream->captured;
  trace("graph " + std::to_string(graph->id) + " captures " + name);
  return ACL_SUCCESS;
}

void replay(Graph* graph) {
  for (size_t i = 0; i < graph->tasks.size(); ++i) {
    std::shared_ptr<const Work> work;
    {
      RuntimeLock lock(runtime_lock());
      work = graph->tasks[i]->work;
    }
    try {
      (*work)();
    } catch (const Failure& failure) {
      throw Failure{failure.code, "graph " + std::to_string(graph->id) + ", task " + std::to_string(i) + " " +
                                      graph->tasks[i]->name + ": " + failure.message};
    }
  }
}

Graph* new_graph() {
  auto* graph = new Graph;
  graph->id = next_graph_id++;
  graphs().insert(graph);
  return graph;
}

int begin(Stream* stream, Graph* graph, aclmdlRICaptureMode mode) {
  graph->mode = mode;
  graph->thread = std::this_thread::get_id();
  graph->origin = stream;
  graph->streams = {stream};
  graph->capturing = true;
  stream->graph = graph;
  stream->captured = 0;
  stream->seen.clear();
  return ACL_SUCCESS;
}

// Every forked stream must have been waited for, with all it captured, by the stream that began.
bool joined(const Graph* graph) {
  for (Stream* stream : graph->streams) {
    if (stream == graph->origin) continue;
    auto reached = graph->origin->seen.find(stream);
    if (reached == graph->origin->seen.end() || reached->second < stream->captured) return false;
  }
  return true;
}

void discard(Graph* graph) {
  graphs().erase(graph);
  delete graph;
}

}  // namespace

std::set<Graph*>& graphs() {
  static std::set<Graph*>* all = new std::set<Graph*>;
  return *all;
}

void invalidate(Graph* graph, int code, const std::string& reason) {
  if (graph->invalid) return;
  graph->invalid = code;
  graph->reason = reason;
}

int refuse_if_capturing(const std::string& call) {
  RuntimeLock lock(runtime_lock());
  if (thread_mode == ACL_MODEL_RI_CAPTURE_MODE_RELAXED) return ACL_SUCCESS;
  for (Graph* graph : graphs()) {
    if (!graph->capturing || graph->mode == ACL_MODEL_RI_CAPTURE_MODE_RELAXED) continue;
    const bool everyone =
        graph->mode == ACL_MODEL_RI_CAPTURE_MODE_GLOBAL && thread_mode == ACL_MODEL_RI_CAPTURE_MODE_GLOBAL;
    if (!everyone && graph->thread != std::this_thread::get_id()) continue;
    const std::string reason = call + " is not allowed while a stream is being captured";
    invalidate(graph, ACL_ERROR_RT_STREAM_CAPTURE_INVALIDATED, reason);
    return fail(ACL_ERROR_RT_CAPTURE_MODE_NOT_SUPPORT, reason);
  }
  return ACL_SUCCESS;
}

void leave_capture(Graph* graph) {
  for (Stream* stream : graph->streams) {
    stream->graph = nullptr;
    stream->open_group.reset();
    stream->seen.clear();
  }
  graph->capturing = false;
}

int launch(aclrtStream handle, const std::string& name, Work work) {
  Stream* stream = stream_of(handle);
  {
    RuntimeLock lock(runtime_lock());
    if (stream->updating) return update_task(stream, name, std::move(work));
    if (stream->graph) return capture_task(stream, name, std::move(work));
  }
  if (tracing()) trace("stream " + std::to_string(stream->id) + " launches " + name);
  enqueue(stream, name, std::move(work));
  return ACL_SUCCESS;
}

}  // namespace emu

using namespace emu;

// ---- capture

EMU_API aclError aclmdlRICaptureThreadExchangeMode(aclmdlRICaptureMode* mode) {
  EMU_ENTER();
  std::swap(*mode, thread_mode);
  return ACL_SUCCESS;
}

EMU_API aclError aclmdlRICaptureBegin(aclrtStream handle, aclmdlRICaptureMode mode) {
  EMU_ENTER();
  Stream* stream = stream_of(handle);
  RuntimeLock lock(runtime_lock());
  if (is_default(stream)) return fail(ACL_ERROR_RT_STREAM_CAPTURE_IMPLICIT, "the default stream cannot be captured");
  if (stream->graph) return fail(ACL_ERROR_RT_STREAM_CAPTURED, "the stream is already being captured");
  return begin(stream, new_graph(), mode);
}

EMU_API aclError aclmdlRICaptureToModelRIBegin(aclrtStream handle, aclmdlRI model, aclmdlRICaptureMode mode) {
  EMU_ENTER();
  Stream* stream = stream_of(handle);
  auto* graph = static_cast<Graph*>(model);
  RuntimeLock lock(runtime_lock());
  if (stream->graph) return fail(ACL_ERROR_RT_STREAM_CAPTURED, "the stream is already being captured");
  if (!graphs().count(graph)) return fail(ACL_ERROR_RT_PARAM_INVALID, "unknown aclmdlRI");
  return begin(stream, graph, mode);
}

EMU_API aclError aclmdlRICaptureGetInfo(aclrtStream handle, aclmdlRICaptureStatus* status, aclmdlRI* model) {
  EMU_ENTER();
  Stream* stream = stream_of(handle);
  RuntimeLock lock(runtime_lock());
  *status = !stream->graph          ? ACL_MODEL_RI_CAPTURE_STATUS_NONE
            : stream->graph->invalid ? ACL_MODEL_RI_CAPTURE_STATUS_INVALIDATED
                                     : ACL_MODEL_RI_CAPTURE_STATUS_ACTIVE;
  if (model) *model = stream->graph;
  return ACL_SUCCESS;
}

EMU_API aclError aclmdlRICaptureEnd(aclrtStream handle, aclmdlRI* model) {
  Stream* stream = stream_of(handle);
  RuntimeLock lock(runtime_lock());
  *model = nullptr;
  Graph* graph = stream->graph;
  static ApiCall& call = api_call(__func__);
  if (int code = call.enter()) {  // an injected failure ends the capture too, as a failing device would
    if (graph && graph->origin == stream) {
      leave_capture(graph);
      discard(graph);
    }
    return code;
  }
  if (!graph) return fail(ACL_ERROR_RT_STREAM_NOT_CAPTURED, "the stream is not being captured");
  if (graph->origin != stream)
    return fail(ACL_ERROR_RT_STREAM_CAPTURE_UNMATCHED, "the capture was not begun on this stream");
  if (graph->mode != ACL_MODEL_RI_CAPTURE_MODE_RELAXED && graph->thread != std::this_thread::get_id())
    return fail(ACL_ERROR_RT_STREAM_CAPTURE_WRONG_THREAD, "the capture was begun by another thread");
  if (!joined(graph))
    invalidate(graph, ACL_ERROR_RT_STREAM_UNJOINED, "a forked stream was not joined before the capture ended");
  leave_capture(graph);
  if (graph->invalid) {
    const int code = fail(graph->invalid, "the capture is invalid: " + graph->reason);
    discard(graph);
    return code;
  }
  const int streams = static_cast<int>(graph->streams.size());
  if (int code = reserve_streams(streams)) {
    discard(graph);
    return code;
  }
  graph->streams_held = streams;
  *model = graph;
  trace("graph " + std::to_string(graph->id) + " has " + std::to_string(graph->tasks.size()) + " tasks");
  return ACL_SUCCESS;
}

// ---- replay

EMU_API aclError aclmdlRIExecuteAsync(aclmdlRI model, aclrtStream handle) {
  EMU_ENTER();
  auto* graph = static_cast<Graph*>(model);
  Stream* stream = stream_of(handle);
  {
    RuntimeLock lock(runtime_lock());
    if (!graphs().count(graph) || graph->capturing) return fail(ACL_ERROR_RT_PARAM_INVALID, "unknown aclmdlRI");
    if (stream->graph) return fail(ACL_ERROR_RT_STREAM_CAPTURED, "a graph cannot be replayed on a capturing stream");
  }
  enqueue(stream, "aclmdlRIExecuteAsync", [graph] { replay(graph); });
  return ACL_SUCCESS;
}

EMU_API aclError aclmdlRIDestroy(aclmdlRI model) {
  EMU_ENTER();
  auto* graph = static_cast<Graph*>(model);
  synchronize_all(-1);  // a replay may still be running; its failure belongs to whoever synchronizes
  RuntimeLock lock(runtime_lock());
  if (!graphs().erase(graph)) return fail(ACL_ERROR_RT_PARAM_INVALID, "unknown aclmdlRI");
  release_streams(graph->streams_held);
  delete graph;
  return ACL_SUCCESS;
}

EMU_API aclError aclmdlRIGetId(aclmdlRI model, uint32_t* id) {
  EMU_ENTER();
  *id = static_cast<Graph*>(model)->id;
  return ACL_SUCCESS;
}

EMU_API aclError aclmdlRIDebugPrint(aclmdlRI model) {
  EMU_ENTER();
  for (const auto& task : static_cast<Graph*>(model)->tasks) fprintf(stderr, "%s\n", task->name.c_str());
  return ACL_SUCCESS;
}
EMU_API aclError aclmdlRIDebugJsonPrint(aclmdlRI model, const char* path, uint32_t) {
  EMU_ENTER();
  auto* graph = static_cast<Graph*>(model);
  FILE* file = fopen(path, "w");
  if (!file) return fail(ACL_ERROR_RT_PARAM_INVALID, std::string("cannot write ") + path);
  fprintf(file, "[");
  for (size_t i = 0; i < graph->tasks.size(); ++i)
    fprintf(file, "%s{\"name\":\"%s\",\"pid\":\"aclGraph %u\",\"tid\":\"stream0\",\"ts\":%zu,\"dur\":1,\"ph\":\"X\"}",
            i ? "," : "", graph->tasks[i]->name.c_str(), graph->id, i);
  fprintf(file, "]\n");
  fclose(file);
  return ACL_SUCCESS;
}

// ---- task groups: kernels whose host parameters can be replaced after the capture

EMU_API aclError aclmdlRICaptureTaskGrpBegin(aclrtStream handle) {
  EMU_ENTER();
  Stream* stream = stream_of(handle);
  RuntimeLock lock(runtime_lock());
  if (!stream->graph) return fail(ACL_ERROR_RT_STREAM_NOT_CAPTURED, "a task group outside of a capture");
  if (stream->open_group) return fail(ACL_ERROR_STREAM_TASK_GROUP_STATUS, "a task group is already open");
  stream->open_group.reset(new TaskGroup{stream->graph, {}});
  return ACL_SUCCESS;
}

EMU_API aclError aclmdlRICaptureTaskGrpEnd(aclrtStream handle, aclrtTaskGrp* group) {
  EMU_ENTER();
  Stream* stream = stream_of(handle);
  RuntimeLock lock(runtime_lock());
  if (!stream->open_group) return fail(ACL_ERROR_STREAM_TASK_GROUP_STATUS, "no task group is open");
  *group = stream->open_group.get();
  stream->graph->groups.push_back(std::move(stream->open_group));
  return ACL_SUCCESS;
}

EMU_API aclError aclmdlRICaptureTaskUpdateBegin(aclrtStream handle, aclrtTaskGrp group) {
  EMU_ENTER();
  Stream* stream = stream_of(handle);
  RuntimeLock lock(runtime_lock());
  if (stream->graph) return fail(ACL_ERROR_RT_STREAM_CAPTURED, "the update stream is being captured");
  if (stream->updating) return fail(ACL_ERROR_STREAM_TASK_GROUP_STATUS, "a task update is already open");
  stream->updating = static_cast<TaskGroup*>(group);
  stream->next_update = 0;
  return ACL_SUCCESS;
}

EMU_API aclError aclmdlRICaptureTaskUpdateEnd(aclrtStream handle) {
  EMU_ENTER();
  Stream* stream = stream_of(handle);
  RuntimeLock lock(runtime_lock());
  if (!stream->updating) return fail(ACL_ERROR_STREAM_TASK_GROUP_STATUS, "no task update is open");
  const size_t wanted = stream->updating->tasks.size();
  stream->updating = nullptr;
  if (stream->next_update == wanted) return ACL_SUCCESS;
  return fail(ACL_ERROR_RT_MODEL_UPDATE_FAILED, "task update launched " + std::to_string(stream->next_update) + " of " +
                                                    std::to_string(wanted) + " kernels");
}

// ---- conditional tasks: a word of device memory chooses which child graphs run

namespace {

struct Condition {
  uint64_t* word;
};

int run_condition(const Condition& condition, const std::vector<Graph*>& children, aclmdlRICondTaskType type) {
  switch (type) {
    case ACL_MODEL_RI_COND_TYPE_IF:
      if (*condition.word) replay(children[0]);
      else if (children.size() > 1) replay(children[1]);
      return ACL_SUCCESS;
    case ACL_MODEL_RI_COND_TYPE_WHILE:
      while (*condition.word) replay(children[0]);
      return ACL_SUCCESS;
    default:
      if (*condition.word < children.size()) replay(children[*condition.word]);
      return ACL_SUCCESS;
  }
}

}  // namespace

EMU_API aclError aclmdlRICondHandleCreate(aclmdlRI, uint32_t initial, aclmdlRICondHandleFlag, aclmdlRICondHandle* handle) {
  EMU_ENTER();
  void* word = nullptr;
  if (int code = aclrtMalloc(&word, sizeof(uint64_t), ACL_MEM_MALLOC_HUGE_FIRST)) return code;
  *static_cast<uint64_t*>(word) = initial;
  *handle = new Condition{static_cast<uint64_t*>(word)};
  return ACL_SUCCESS;
}
EMU_API aclError aclmdlRICondHandleGetCondPtr(aclmdlRICondHandle handle, uint64_t** word) {
  EMU_ENTER();
  *word = static_cast<Condition*>(handle)->word;
  return ACL_SUCCESS;
}
EMU_API aclError aclmdlRIAddCondTask(aclmdlRICondTaskParams params, aclrtStream handle, uint32_t) {
  EMU_ENTER();
  std::vector<Graph*> children;
  {
    RuntimeLock lock(runtime_lock());
    if (!stream_of(handle)->graph) return fail(ACL_ERROR_RT_STREAM_NOT_CAPTURED, "a conditional task outside of a capture");
    for (uint32_t i = 0; i < params.size; ++i) {
      children.push_back(new_graph());
      params.modelRIArray[i] = children.back();
    }
  }
  const Condition condition = *static_cast<Condition*>(params.handle);
  const auto type = params.type;
  return launch(handle, __func__, [=] { run_condition(condition, children, type); });
}
