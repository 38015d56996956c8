// What torch_npu looks for in the operator library and does not find.
//
// On hardware every operator is there. Here torch_npu would go on, with a line in its log only: to an older version
// of the operator, to aclop (which fails by name), or to a composite of other operators, which may be wrong, because
// no device has run it for years. So its warnings are kept on and read. PyTorch's own composites may run; torch_npu's
// may not: they fail by name, before they compute anything.
#include <cstdarg>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <stdexcept>

#include "emu.h"

namespace emu {
namespace {

struct Lookups {
  std::mutex mutex;
  std::set<std::string> missing;             // names that dlsym did not find
  std::map<std::string, long> composites;    // "aclnnX expression": calls that took PyTorch's composite
};

Lookups& lookups() {
  static Lookups* instance = new Lookups;
  return *instance;
}

// torch_npu asks for its log level when it is loaded, which is after this library. What it then logs stays silent
// unless EMU_CANN_LOG asks for it.
__attribute__((constructor)) void keep_warnings_on() {
  if (setting("ASCEND_GLOBAL_LOG_LEVEL", ACL_ERROR) > ACL_WARNING)
    setenv("ASCEND_GLOBAL_LOG_LEVEL", std::to_string(ACL_WARNING).c_str(), 1);
}

constexpr char kNotFound[] = "dlsym %s from %s failed";
constexpr char kComposite[] = "Will call %s";  // the last of its strings; the first is the operator

void note_composite(const std::string& name, const std::string& expression) {
  if (expression.rfind("at::", 0) != 0)
    throw std::runtime_error("[emulated CANN] " + name + " is not emulated, and torch_npu would call " + expression +
                             " instead, which no test compares with PyTorch");
  Lookups& all = lookups();
  std::lock_guard<std::mutex> lock(all.mutex);
  ++all.composites[name + " " + expression];
}

void note(const char* format, va_list arguments) {
  if (strstr(format, kNotFound)) {
    Lookups& all = lookups();
    std::lock_guard<std::mutex> lock(all.mutex);
    all.missing.insert(va_arg(arguments, const char*));
  } else if (strstr(format, kComposite)) {
    const std::string name = va_arg(arguments, const char*);
    const char* last = nullptr;
    for (const char* at = strstr(strstr(format, "%s") + 2, "%s"); at; at = strstr(at + 2, "%s")) last = va_arg(arguments, const char*);
    note_composite(name, last);
  }
}

const char* returned(std::string text) {
  static std::string report;
  report = std::move(text);
  return report.c_str();
}

}  // namespace
}  // namespace emu

EMU_API void aclAppLog(aclLogLevel level, const char* function, const char*, uint32_t line, const char* format, ...) {
  static const long threshold = emu::setting("EMU_CANN_LOG", ACL_ERROR + 1);
  va_list arguments;
  if (level >= threshold) {
    va_start(arguments, format);
    fprintf(stderr, "[torch_npu log %d] %s:%u ", level, function, line);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
  }
  va_start(arguments, format);
  emu::note(format, arguments);
  va_end(arguments);
}

// ---- for tests, called through ctypes; valid until the next call

// One line for every name that was looked up and not found.
EMU_API const char* emu_missing() {
  emu::Lookups& all = emu::lookups();
  std::lock_guard<std::mutex> lock(all.mutex);
  std::string text;
  for (const std::string& name : all.missing) text += name + "\n";
  return emu::returned(text);
}

// One line for every composite that ran: the operator, the number of calls, and what was called.
EMU_API const char* emu_composites() {
  emu::Lookups& all = emu::lookups();
  std::lock_guard<std::mutex> lock(all.mutex);
  std::string text;
  for (const auto& [call, count] : all.composites) text += std::to_string(count) + " " + call + "\n";
  return emu::returned(text);
}
