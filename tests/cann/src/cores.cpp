// How many cores operators may use, by device, stream and thread. The numbers are kept and given back: kernels here
// know no cores, but npugraph_ex reads the limits when it captures and captures again when they have changed.
#include "stream.h"

using namespace emu;

namespace {

constexpr int kKinds = 2;
constexpr uint32_t kCores[kKinds] = {kCubeCores, kVectorCores};

std::mutex mutex;
std::map<int, CoreLimits> device_limits;
thread_local Stream* used = nullptr;  // whose limits this thread's operators take

int check(int device, int kind) {
  if (kind < 0 || kind >= kKinds) return fail(ACL_ERROR_RT_PARAM_INVALID, "unknown kind of core " + std::to_string(kind));
  if (device < 0 || device >= device_count())
    return fail(ACL_ERROR_RT_INVALID_DEVICEID, "device " + std::to_string(device) + " of " + std::to_string(device_count()));
  return ACL_SUCCESS;
}

uint32_t limit_of(int device, int kind) {
  const uint32_t limit = device_limits[device][kind];
  return limit ? limit : kCores[kind];
}
uint32_t limit_of(const Stream* stream, int kind) {
  const uint32_t limit = stream->core_limits[kind];
  return limit ? limit : limit_of(stream->device, kind);
}

int set(CoreLimits& limits, int kind, uint32_t value) {
  if (value == 0 || value > kCores[kind])
    return fail(ACL_ERROR_RT_PARAM_INVALID, "a limit of " + std::to_string(value) + " cores where the device has " +
                                                std::to_string(kCores[kind]));
  limits[kind] = value;
  return ACL_SUCCESS;
}

}  // namespace

EMU_API aclError aclrtGetDeviceResLimit(int32_t device, aclrtDevResLimitType kind, uint32_t* value) {
  EMU_ENTER();
  if (int code = check(device, kind)) return code;
  std::lock_guard<std::mutex> lock(mutex);
  *value = limit_of(device, kind);
  return ACL_SUCCESS;
}
EMU_API aclError aclrtSetDeviceResLimit(int32_t device, aclrtDevResLimitType kind, uint32_t value) {
  EMU_ENTER();
  if (int code = check(device, kind)) return code;
  std::lock_guard<std::mutex> lock(mutex);
  return set(device_limits[device], kind, value);
}
EMU_API aclError aclrtResetDeviceResLimit(int32_t device) {
  EMU_ENTER();
  std::lock_guard<std::mutex> lock(mutex);
  device_limits.erase(device);
  return ACL_SUCCESS;
}

EMU_API aclError aclrtGetStreamResLimit(aclrtStream handle, aclrtDevResLimitType kind, uint32_t* value) {
  EMU_ENTER();
  const Stream* stream = stream_of(handle);
  if (int code = check(stream->device, kind)) return code;
  std::lock_guard<std::mutex> lock(mutex);
  *value = limit_of(stream, kind);
  return ACL_SUCCESS;
}
EMU_API aclError aclrtSetStreamResLimit(aclrtStream handle, aclrtDevResLimitType kind, uint32_t value) {
  EMU_ENTER();
  Stream* stream = stream_of(handle);
  if (int code = check(stream->device, kind)) return code;
  std::lock_guard<std::mutex> lock(mutex);
  return set(stream->core_limits, kind, value);
}
EMU_API aclError aclrtResetStreamResLimit(aclrtStream handle) {
  EMU_ENTER();
  Stream* stream = stream_of(handle);
  std::lock_guard<std::mutex> lock(mutex);
  stream->core_limits = {};
  return ACL_SUCCESS;
}

EMU_API aclError aclrtUseStreamResInCurrentThread(aclrtStream handle) {
  EMU_ENTER();
  used = stream_of(handle);
  return ACL_SUCCESS;
}
EMU_API aclError aclrtUnuseStreamResInCurrentThread(aclrtStream) {
  EMU_ENTER();
  used = nullptr;
  return ACL_SUCCESS;
}
EMU_API aclError aclrtGetResInCurrentThread(aclrtDevResLimitType kind, uint32_t* value) {
  EMU_ENTER();
  if (int code = check(device_or_default(), kind)) return code;
  std::lock_guard<std::mutex> lock(mutex);
  *value = used ? limit_of(used, kind) : limit_of(device_or_default(), kind);
  return ACL_SUCCESS;
}
