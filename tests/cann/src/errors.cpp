// Error messages, call counters and error injection.
//
// torch_npu appends aclGetRecentErrMsg() to the text of its Python errors, so all diagnostics go there.
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <sstream>

#include "emu.h"

namespace emu {
namespace {

thread_local std::string recent_message;
thread_local std::string returned_message;
std::atomic<int> last_error{0};

struct Registry {
  std::mutex mutex;
  std::map<std::string, std::unique_ptr<ApiCall>> calls;
};

Registry& registry() {
  static Registry* instance = new Registry;  // never destroyed: workers outlive static destruction
  return *instance;
}

// EMU_CANN_FAIL="aclrtMalloc:2:207001,aclmdlRICaptureEnd:0:107025": name, calls to let pass, code.
void arm_from_environment(ApiCall& call) {
  const char* text = getenv("EMU_CANN_FAIL");
  std::istringstream rules(text ? text : "");
  for (std::string rule; std::getline(rules, rule, ',');) {
    std::istringstream fields(rule);
    std::string name, skip, code;
    std::getline(fields, name, ':');
    std::getline(fields, skip, ':');
    std::getline(fields, code, ':');
    if (name == call.name()) call.arm(atoi(skip.c_str()), atoi(code.c_str()));
  }
}

}  // namespace

int fail(int code, const std::string& message) {
  recent_message = "[emulated CANN] " + message;
  last_error = code;
  trace("error " + std::to_string(code) + ": " + message);
  return code;
}

void ApiCall::arm(int skip, int code) {
  skip_ = skip;
  code_ = code;
  armed_ = true;
}

int ApiCall::injected() {
  if (skip_.fetch_sub(1) > 0) return ACL_SUCCESS;
  armed_ = false;
  return fail(code_, name_ + ": injected failure " + std::to_string(code_));
}

ApiCall& api_call(const std::string& name) {
  Registry& all = registry();
  std::lock_guard<std::mutex> lock(all.mutex);
  auto& slot = all.calls[name];
  if (!slot) {
    slot = std::make_unique<ApiCall>(name);
    arm_from_environment(*slot);
  }
  return *slot;
}

long setting(const char* name, long otherwise) {
  const char* text = getenv(name);
  return text ? atol(text) : otherwise;
}

double timeout_seconds() {
  const char* text = getenv("EMU_CANN_TIMEOUT");
  return text ? atof(text) : 10.0;
}

bool tracing() {
  static const bool on = setting("EMU_CANN_TRACE", 0) != 0;
  return on;
}

void trace(const std::string& line) {
  if (tracing()) fprintf(stderr, "[emulated CANN] %s\n", line.c_str());
}

}  // namespace emu

EMU_API const char* aclGetRecentErrMsg() {
  emu::returned_message.swap(emu::recent_message);
  emu::recent_message.clear();
  return emu::returned_message.c_str();
}

EMU_API aclError aclrtPeekAtLastError(aclrtLastErrLevel) { return emu::last_error; }
EMU_API aclError aclrtGetLastError(aclrtLastErrLevel) { return emu::last_error.exchange(0); }

// ---- control functions for tests, called through ctypes

// Makes one call of `api` return `code`, after letting `skip` calls pass.
EMU_API void emu_fail_next(const char* api, int skip, int code) { emu::api_call(api).arm(skip, code); }

// How often `api` was called in this process.
EMU_API long emu_calls(const char* api) { return emu::api_call(api).count(); }

// One line for every function called so far: its name and the number of calls. Valid until the next call.
EMU_API const char* emu_report() {
  static std::string report;
  emu::Registry& all = emu::registry();
  std::lock_guard<std::mutex> lock(all.mutex);
  report.clear();
  for (const auto& [name, call] : all.calls)
    if (call->count()) report += name + " " + std::to_string(call->count()) + "\n";
  return report.c_str();
}

// The body of every generated stub: fails with the name of the function that has no emulation.
EMU_API int emu_stub_called(const char* api) {
  if (int code = emu::api_call(api).enter()) return code;
  return emu::fail(ACL_ERROR_FEATURE_UNSUPPORTED, std::string(api) + " is not emulated");
}
