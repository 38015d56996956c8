// Devices, contexts, versions and properties. Every answer is fixed, so that tests are reproducible.
#include <unistd.h>

#include <cstdio>
#include <cstring>

#include "acl/acl_op_compiler.h"
#include "acl/acl_platform.h"
#include "emu.h"

namespace {

constexpr int kNotInitialised = ACL_ERROR_RT_CONTEXT_NULL;
// FIA V3 (TND, NTD layouts) needs 8.1, fusion attention v3 handlers 9.1; 8.5 is what torch_npu 2.13 pairs with.
const char* cann_version() {
  const char* version = getenv("EMU_CANN_VERSION");
  return version ? version : "8.5.0";
}

thread_local int thread_device = -1;
std::atomic<int64_t> options[16];

}  // namespace

namespace emu {
int current_device() { return thread_device; }
void set_current_device(int device) { thread_device = device; }
// Of all devices, those that ASCEND_RT_VISIBLE_DEVICES lists: ascending numbers, up to the first that is none of them.
int device_count() {
  const long all = setting("EMU_CANN_DEVICES", 2);
  const char* visible = getenv("ASCEND_RT_VISIBLE_DEVICES");
  if (!visible) return static_cast<int>(all);
  int count = 0;
  for (long last = -1; *visible >= '0' && *visible <= '9'; visible += *visible == ',') {
    char* end;
    const long device = strtol(visible, &end, 10);
    if (device >= all) break;
    if (device <= last) return 0;
    last = device;
    ++count;
    visible = end;
  }
  return count;
}
int device_or_default() { return thread_device < 0 ? 0 : thread_device; }
}  // namespace emu

EMU_API aclError aclInit(const char*) {
  EMU_ENTER();
  return ACL_SUCCESS;
}
EMU_API aclError aclFinalize() {
  EMU_ENTER();
  return ACL_SUCCESS;
}

EMU_API const char* aclrtGetSocName() {
  static const char* name = getenv("EMU_CANN_SOC") ? getenv("EMU_CANN_SOC") : "Ascend910B3";
  return name;
}

EMU_API aclError aclsysGetCANNVersion(aclCANNPackageName, aclCANNPackageVersion* version) {
  EMU_ENTER();
  memset(version, 0, sizeof *version);
  snprintf(version->version, sizeof version->version, "%s", cann_version());
  return ACL_SUCCESS;
}
EMU_API aclError aclsysGetVersionStr(char*, char* version) {
  EMU_ENTER();
  strcpy(version, cann_version());
  return ACL_SUCCESS;
}

EMU_API aclError aclrtGetDeviceCount(uint32_t* count) {
  EMU_ENTER();
  *count = emu::device_count();
  return ACL_SUCCESS;
}
// The driver's count, in libascend_hal: of all devices, visible or not.
EMU_API int drvGetDevNum(int* count) {
  EMU_ENTER();
  *count = static_cast<int>(emu::setting("EMU_CANN_DEVICES", 2));
  return 0;
}
EMU_API aclError aclrtSetDevice(int32_t device) {
  EMU_ENTER();
  if (device < 0 || device >= emu::device_count())
    return emu::fail(ACL_ERROR_RT_INVALID_DEVICEID,
                     "aclrtSetDevice: device " + std::to_string(device) + " of " + std::to_string(emu::device_count()));
  thread_device = device;
  return ACL_SUCCESS;
}
EMU_API aclError aclrtResetDevice(int32_t) {
  EMU_ENTER();
  return ACL_SUCCESS;
}
EMU_API aclError aclrtGetDevice(int32_t* device) {
  EMU_ENTER();
  if (thread_device < 0) return kNotInitialised;  // torch_npu asks before it sets: no message, no last error
  *device = thread_device;
  return ACL_SUCCESS;
}

// A context is its device number plus one.
EMU_API aclError aclrtGetCurrentContext(aclrtContext* context) {
  EMU_ENTER();
  if (thread_device < 0) return kNotInitialised;
  *context = reinterpret_cast<void*>(static_cast<intptr_t>(thread_device + 1));
  return ACL_SUCCESS;
}
EMU_API aclError aclrtSetCurrentContext(aclrtContext context) {
  EMU_ENTER();
  thread_device = static_cast<int>(reinterpret_cast<intptr_t>(context)) - 1;
  return ACL_SUCCESS;
}
EMU_API aclError aclrtGetPrimaryCtxState(int32_t, uint32_t* flags, int32_t* active) {
  EMU_ENTER();
  if (flags) *flags = 0;
  *active = 1;
  return ACL_SUCCESS;
}

EMU_API aclError aclrtDeviceCanAccessPeer(int32_t* can, int32_t, int32_t) {
  EMU_ENTER();
  *can = 1;
  return ACL_SUCCESS;
}
EMU_API aclError aclrtDeviceEnablePeerAccess(int32_t, uint32_t) {
  EMU_ENTER();
  return ACL_SUCCESS;  // all device memory is one address space here
}
EMU_API aclError aclrtDeviceGetBareTgid(int32_t* pid) {
  EMU_ENTER();
  *pid = getpid();
  return ACL_SUCCESS;
}

constexpr int64_t kL2Bytes = 192 << 20;

EMU_API aclError aclGetDeviceCapability(uint32_t, aclDeviceInfo what, int64_t* value) {
  EMU_ENTER();
  switch (what) {
    case ACL_DEVICE_INFO_AI_CORE_NUM: *value = emu::kCubeCores; return ACL_SUCCESS;
    case ACL_DEVICE_INFO_VECTOR_CORE_NUM: *value = emu::kVectorCores; return ACL_SUCCESS;
    case ACL_DEVICE_INFO_L2_SIZE: *value = kL2Bytes; return ACL_SUCCESS;
    default: return emu::fail(ACL_ERROR_INVALID_PARAM, "aclGetDeviceCapability: unknown property");
  }
}
EMU_API aclError aclrtGetDeviceInfo(uint32_t, aclrtDevAttr what, int64_t* value) {
  EMU_ENTER();
  switch (what) {
    case ACL_DEV_ATTR_AICORE_CORE_NUM:
    case ACL_DEV_ATTR_CUBE_CORE_NUM: *value = emu::kCubeCores; break;
    case ACL_DEV_ATTR_VECTOR_CORE_NUM: *value = emu::kVectorCores; break;
    default: *value = 1;  // torch_npu only asks whether a feature is there
  }
  return ACL_SUCCESS;
}
EMU_API aclError aclGetCannAttribute(aclCannAttr, int32_t* value) {
  EMU_ENTER();
  *value = 1;
  return ACL_SUCCESS;
}
EMU_API aclError aclGetCannAttributeList(const aclCannAttr** list, size_t* count) {
  EMU_ENTER();
  static const aclCannAttr all[] = {ACL_CANN_ATTR_INF_NAN, ACL_CANN_ATTR_BF16, ACL_CANN_ATTR_JIT_COMPILE};
  *list = all;
  *count = 3;
  return ACL_SUCCESS;
}

// Options are stored and given back; nothing here depends on them.
EMU_API aclError aclrtSetSysParamOpt(aclSysParamOpt option, int64_t value) {
  EMU_ENTER();
  options[option & 15] = value;
  return ACL_SUCCESS;
}
EMU_API aclError aclrtGetSysParamOpt(aclSysParamOpt option, int64_t* value) {
  EMU_ENTER();
  *value = options[option & 15];
  return ACL_SUCCESS;
}
EMU_API aclError aclrtCtxSetSysParamOpt(aclSysParamOpt option, int64_t value) { return aclrtSetSysParamOpt(option, value); }
EMU_API aclError aclrtCtxGetSysParamOpt(aclSysParamOpt option, int64_t* value) { return aclrtGetSysParamOpt(option, value); }

// Hints for real kernels: saturation, time-outs of AI cores, compiler options. Kernels here have none of them.
EMU_API aclError aclrtSetDeviceSatMode(aclrtFloatOverflowMode) { return ACL_SUCCESS; }
EMU_API aclError aclrtSetOpExecuteTimeOut(uint32_t) { return ACL_SUCCESS; }
EMU_API aclError aclrtSetOpExecuteTimeOutV2(uint64_t microseconds, uint64_t* effective) {
  EMU_ENTER();
  *effective = microseconds;
  return ACL_SUCCESS;
}
EMU_API aclError aclrtSetOpWaitTimeout(uint32_t) { return ACL_SUCCESS; }
EMU_API aclError aclSetCompileopt(aclCompileOpt, const char*) { return ACL_SUCCESS; }
EMU_API size_t aclGetCompileoptSize(aclCompileOpt) { return 1; }
EMU_API aclError aclGetCompileopt(aclCompileOpt, char* value, size_t size) {
  if (size) value[0] = '\0';
  return ACL_SUCCESS;
}
