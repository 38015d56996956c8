// What every part of the emulated CANN shares: errors, API bookkeeping and launching work on a stream.
//
// The emulator stands in for CANN's libraries underneath the unmodified torch_npu wheel.
// Device memory is host memory, a stream is a worker thread, a graph is a list of recorded closures.
#pragma once
#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <string>

#include "acl/acl.h"
#include "acl/error_codes/rt_error_codes.h"

#define EMU_API extern "C" __attribute__((visibility("default")))

namespace emu {

// A device-side failure: thrown by work that runs on a stream, reported by the next synchronization.
struct Failure : std::exception {
  Failure(int code, std::string message) : code(code), message(std::move(message)) {}
  const char* what() const noexcept override { return message.c_str(); }
  int code;
  std::string message;
};

// What aclnn operators answer to arguments they cannot take (ACLNN_ERR_PARAM_INVALID, not in the wheel's headers).
constexpr int kInvalidParameter = 161002;

// One unit of device work. It runs on the worker thread of its stream and throws Failure.
using Work = std::function<void()>;

// Remembers `message` for aclGetRecentErrMsg of this thread and returns `code`.
int fail(int code, const std::string& message);

// Counts the calls of one API function and makes chosen ones fail (see errors.cpp).
class ApiCall {
 public:
  explicit ApiCall(std::string name) : name_(std::move(name)) {}
  int enter() {
    ++count_;
    return armed_.load(std::memory_order_relaxed) ? injected() : ACL_SUCCESS;
  }
  void arm(int skip, int code);
  long count() const { return count_; }
  const std::string& name() const { return name_; }

 private:
  int injected();
  std::string name_;
  std::atomic<long> count_{0};
  std::atomic<bool> armed_{false};
  std::atomic<int> skip_{0};
  std::atomic<int> code_{0};
};

// The one ApiCall of that name; valid for the life of the process.
ApiCall& api_call(const std::string& name);

// Runs `work` on the stream, or records it when the stream is capturing or updating a task group.
int launch(aclrtStream stream, const std::string& name, Work work);

// Seconds a wait may last before it fails: EMU_CANN_TIMEOUT, default 10.
double timeout_seconds();

// An integer from the environment.
long setting(const char* name, long otherwise);

// True with EMU_CANN_TRACE=1; trace() then writes one line to stderr.
bool tracing();
void trace(const std::string& line);

// Of every device, an Ascend910B3.
constexpr uint32_t kCubeCores = 20, kVectorCores = 40;
int device_count();

// The device this thread works on, -1 before aclrtSetDevice.
int current_device();
void set_current_device(int device);
int device_or_default();

}  // namespace emu

// First statement of every API function: counts the call and lets tests make it fail.
#define EMU_ENTER()                                        \
  do {                                                     \
    static emu::ApiCall& call_ = emu::api_call(__func__);  \
    if (int code_ = call_.enter()) return code_;           \
  } while (false)
