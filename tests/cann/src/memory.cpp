// Device memory, pinned host memory, virtual memory for expandable segments, and copies.
//
// Device memory is anonymous host memory: a host access to a device pointer works here and faults on hardware.
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>

#include "graph.h"

using namespace emu;

namespace {

struct Block {
  size_t size;
  int device;
};

std::mutex mutex;
std::map<const char*, Block> device_blocks, pinned_blocks;
std::map<int, size_t> used;

size_t capacity() { return static_cast<size_t>(setting("EMU_CANN_MEMORY_MB", 4096)) << 20; }

// The block that holds `pointer`, or null.
const Block* find(const std::map<const char*, Block>& blocks, const void* pointer) {
  auto next = blocks.upper_bound(static_cast<const char*>(pointer));
  if (next == blocks.begin()) return nullptr;
  --next;
  return static_cast<const char*>(pointer) < next->first + next->second.size ? &next->second : nullptr;
}

// How many bytes there are from a device address to the end of its block; of host memory nothing is known.
size_t room(const void* pointer) {
  std::lock_guard<std::mutex> lock(mutex);
  auto next = device_blocks.upper_bound(static_cast<const char*>(pointer));
  if (next == device_blocks.begin()) return SIZE_MAX;
  --next;
  const size_t before = static_cast<const char*>(pointer) - next->first;
  return before < next->second.size ? next->second.size - before : SIZE_MAX;
}

// A copy stays inside of the capacity that the caller names, and of the blocks that were allocated.
int check_copy(const char* function, const void* to, size_t capacity, const void* from, size_t size) {
  const char* what = size > capacity             ? "more bytes than the destination holds"
                     : size > room(to)           ? "the destination reaches past its block of memory"
                     : from && size > room(from) ? "the source reaches past its block of memory"
                                                 : nullptr;
  return what ? fail(ACL_ERROR_RT_PARAM_INVALID, std::string(function) + ": " + what) : ACL_SUCCESS;
}

bool is_pageable(const void* pointer) {
  std::lock_guard<std::mutex> lock(mutex);
  return !find(device_blocks, pointer) && !find(pinned_blocks, pointer);
}

int take(int device, size_t size) {
  if (used[device] + size > capacity())
    return fail(ACL_ERROR_RT_MEMORY_ALLOCATION, "device " + std::to_string(device) + " is out of memory: " +
                                                    std::to_string(used[device]) + " bytes used, " +
                                                    std::to_string(size) + " wanted");
  used[device] += size;
  return ACL_SUCCESS;
}

void* map(size_t size, int protection) {
  void* address = mmap(nullptr, size, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return address == MAP_FAILED ? nullptr : address;
}

int device_malloc(void** out, size_t size) {
  size = (size + 511) & ~static_cast<size_t>(511);  // the alignment CANN documents, plus room for one block
  const int device = device_or_default();
  std::lock_guard<std::mutex> lock(mutex);
  if (int code = take(device, size)) return code;
  *out = map(size, PROT_READ | PROT_WRITE);
  if (!*out) {
    used[device] -= size;
    return fail(ACL_ERROR_RT_MEMORY_ALLOCATION, "mmap failed");
  }
  device_blocks[static_cast<char*>(*out)] = {size, device};
  return ACL_SUCCESS;
}

int pinned_malloc(void** out, size_t size) {
  size = std::max<size_t>(size, 1);
  *out = map(size, PROT_READ | PROT_WRITE);
  if (!*out) return fail(ACL_ERROR_RT_MEMORY_ALLOCATION, "mmap failed");
  std::lock_guard<std::mutex> lock(mutex);
  pinned_blocks[static_cast<char*>(*out)] = {size, -1};
  return ACL_SUCCESS;
}

int release(std::map<const char*, Block>& blocks, void* pointer, const char* what) {
  synchronize_all(-1);  // work in flight may use the block
  std::lock_guard<std::mutex> lock(mutex);
  auto found = blocks.find(static_cast<char*>(pointer));
  if (found == blocks.end()) return fail(ACL_ERROR_RT_PARAM_INVALID, std::string(what) + ": not an allocated address");
  if (found->second.device >= 0) used[found->second.device] -= found->second.size;
  munmap(pointer, found->second.size);
  blocks.erase(found);
  return ACL_SUCCESS;
}

}  // namespace

EMU_API aclError aclrtMalloc(void** out, size_t size, aclrtMemMallocPolicy) {
  EMU_ENTER();
  return device_malloc(out, size);
}
EMU_API aclError aclrtMallocAlign32(void** out, size_t size, aclrtMemMallocPolicy) {
  EMU_ENTER();
  return device_malloc(out, size);
}
EMU_API aclError aclrtFree(void* pointer) {
  EMU_ENTER();
  return release(device_blocks, pointer, __func__);
}
EMU_API aclError aclrtMallocHost(void** out, size_t size) {
  EMU_ENTER();
  return pinned_malloc(out, size);
}
EMU_API aclError aclrtMallocHostWithCfg(void** out, uint64_t size, aclrtMallocConfig*) {
  EMU_ENTER();
  return pinned_malloc(out, size);
}
EMU_API aclError aclrtFreeHost(void* pointer) {
  EMU_ENTER();
  return release(pinned_blocks, pointer, __func__);
}
EMU_API aclError aclrtGetMemInfo(aclrtMemAttr, size_t* available, size_t* total) {
  EMU_ENTER();
  std::lock_guard<std::mutex> lock(mutex);
  *total = capacity();
  *available = capacity() - used[device_or_default()];
  return ACL_SUCCESS;
}
EMU_API aclError aclrtPointerGetAttributes(const void* pointer, aclrtPtrAttributes* attributes) {
  EMU_ENTER();
  memset(attributes, 0, sizeof *attributes);
  std::lock_guard<std::mutex> lock(mutex);
  const Block* block = find(device_blocks, pointer);
  attributes->location.type = block                        ? ACL_MEM_LOCATION_TYPE_DEVICE
                              : find(pinned_blocks, pointer) ? ACL_MEM_LOCATION_TYPE_HOST
                                                             : ACL_MEM_LOCATION_TYPE_UNREGISTERED;
  if (block) attributes->location.id = block->device;
  return ACL_SUCCESS;
}
EMU_API aclError aclrtHostRegister(void* pointer, uint64_t size, aclrtHostRegisterType, void** device_pointer) {
  EMU_ENTER();
  std::lock_guard<std::mutex> lock(mutex);
  pinned_blocks[static_cast<char*>(pointer)] = {static_cast<size_t>(size), -1};
  *device_pointer = pointer;
  return ACL_SUCCESS;
}
EMU_API aclError aclrtHostUnregister(void* pointer) {
  EMU_ENTER();
  std::lock_guard<std::mutex> lock(mutex);
  pinned_blocks.erase(static_cast<char*>(pointer));
  return ACL_SUCCESS;
}

// ---- virtual memory: an address range, physical blocks (files in memory), and maps between them

namespace {
struct Physical {
  size_t size;
  int file;
  int device;
};
}  // namespace

EMU_API aclError aclrtReserveMemAddress(void** out, size_t size, size_t, void*, uint64_t) {
  EMU_ENTER();
  *out = map(size, PROT_NONE);
  if (!*out) return fail(ACL_ERROR_RT_MEMORY_ALLOCATION, "mmap failed");
  std::lock_guard<std::mutex> lock(mutex);
  device_blocks[static_cast<char*>(*out)] = {size, -1};
  return ACL_SUCCESS;
}
EMU_API aclError aclrtReleaseMemAddress(void* address) {
  EMU_ENTER();
  return release(device_blocks, address, __func__);
}
EMU_API aclError aclrtMallocPhysical(aclrtDrvMemHandle* handle, size_t size, const aclrtPhysicalMemProp*, uint64_t) {
  EMU_ENTER();
  const int device = device_or_default();
  std::lock_guard<std::mutex> lock(mutex);
  if (int code = take(device, size)) return code;
  const int file = memfd_create("emulated_cann", 0);
  if (file < 0 || ftruncate(file, static_cast<off_t>(size))) {
    used[device] -= size;
    return fail(ACL_ERROR_RT_MEMORY_ALLOCATION, "memfd_create failed");
  }
  *handle = new Physical{size, file, device};
  return ACL_SUCCESS;
}
EMU_API aclError aclrtFreePhysical(aclrtDrvMemHandle handle) {
  EMU_ENTER();
  auto* physical = static_cast<Physical*>(handle);
  std::lock_guard<std::mutex> lock(mutex);
  used[physical->device] -= physical->size;
  close(physical->file);
  delete physical;
  return ACL_SUCCESS;
}
EMU_API aclError aclrtMapMem(void* address, size_t size, size_t offset, aclrtDrvMemHandle handle, uint64_t) {
  EMU_ENTER();
  const int file = static_cast<Physical*>(handle)->file;
  void* mapped = mmap(address, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, static_cast<off_t>(offset));
  return mapped == MAP_FAILED ? fail(ACL_ERROR_RT_MEMORY_ALLOCATION, "mmap failed") : ACL_SUCCESS;
}
EMU_API aclError aclrtUnmapMem(void*) {
  EMU_ENTER();
  return synchronize_all(-1);  // the next map of the range replaces this one
}

// ---- copies

EMU_API aclError aclrtMemcpy(void* to, size_t capacity, const void* from, size_t size, aclrtMemcpyKind) {
  EMU_ENTER();
  if (int code = check_copy(__func__, to, capacity, from, size)) return code;
  if (int code = refuse_if_capturing(__func__)) return code;
  if (int code = synchronize(stream_of(nullptr))) return code;
  memcpy(to, from, size);
  return ACL_SUCCESS;
}
EMU_API aclError aclrtMemset(void* to, size_t capacity, int32_t value, size_t size) {
  EMU_ENTER();
  if (int code = check_copy(__func__, to, capacity, nullptr, size)) return code;
  if (int code = refuse_if_capturing(__func__)) return code;
  memset(to, value, size);
  return ACL_SUCCESS;
}

namespace {

const char* kind_name(aclrtMemcpyKind kind) {
  switch (kind) {
    case ACL_MEMCPY_HOST_TO_DEVICE: return "memcpy host to device";
    case ACL_MEMCPY_DEVICE_TO_HOST: return "memcpy device to host";
    default: return "memcpy device to device";
  }
}

// A copy from or to pageable memory is synchronous on hardware, and not possible in a capture.
int copy_async(void* to, size_t capacity, const void* from, size_t size, aclrtMemcpyKind kind, aclrtStream handle) {
  if (int code = check_copy("aclrtMemcpyAsync", to, capacity, from, size)) return code;
  const bool pageable = (kind == ACL_MEMCPY_HOST_TO_DEVICE && is_pageable(from)) ||
                        (kind == ACL_MEMCPY_DEVICE_TO_HOST && is_pageable(to));
  Stream* stream = stream_of(handle);
  {
    RuntimeLock lock(runtime_lock());
    if (pageable && stream->graph) {
      const std::string reason = std::string(kind_name(kind)) + " with pageable host memory during a capture";
      invalidate(stream->graph, ACL_ERROR_RT_STREAM_CAPTURE_INVALIDATED, reason);
      return fail(ACL_ERROR_RT_CAPTURE_MODE_BLOCK_ASYNC, reason);
    }
  }
  if (int code = launch(handle, kind_name(kind), [=] { memmove(to, from, size); })) return code;
  return pageable ? synchronize(stream) : ACL_SUCCESS;
}

}  // namespace

EMU_API aclError aclrtMemcpyAsync(void* to, size_t capacity, const void* from, size_t size, aclrtMemcpyKind kind,
                                  aclrtStream stream) {
  EMU_ENTER();
  return copy_async(to, capacity, from, size, kind, stream);
}
EMU_API aclError aclrtMemcpyAsyncWithCondition(void* to, size_t capacity, const void* from, size_t size,
                                               aclrtMemcpyKind kind, aclrtStream stream) {
  EMU_ENTER();
  return copy_async(to, capacity, from, size, kind, stream);
}
EMU_API aclError aclrtMemsetAsync(void* to, size_t capacity, int32_t value, size_t size, aclrtStream stream) {
  EMU_ENTER();
  if (int code = check_copy(__func__, to, capacity, nullptr, size)) return code;
  return launch(stream, "memset", [=] { memset(to, value, size); });
}
