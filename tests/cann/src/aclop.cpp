// The legacy single-operator path (aclop).
//
// torch_npu silently takes it when an aclnn symbol is missing. It has no kernels here: every execution fails with
// the operator's name, which is how an operator that a graph cannot capture looks. The descriptors that torch_npu
// builds on the way are real, so that it gets as far as naming the operator.
#include "acl/acl_op_compiler.h"
#include "graph.h"

using namespace emu;

struct aclTensorDesc {
  aclDataType dtype;
  std::vector<int64_t> shape;
  aclFormat format;
};
struct aclDataBuffer {
  void* data;
  size_t size;
};
struct aclopAttr {};

EMU_API aclTensorDesc* aclCreateTensorDesc(aclDataType dtype, int dims, const int64_t* shape, aclFormat format) {
  return new aclTensorDesc{dtype, std::vector<int64_t>(shape, shape + dims), format};
}
EMU_API void aclDestroyTensorDesc(const aclTensorDesc* desc) { delete desc; }
EMU_API aclDataType aclGetTensorDescType(const aclTensorDesc* desc) { return desc->dtype; }
EMU_API aclFormat aclGetTensorDescFormat(const aclTensorDesc* desc) { return desc->format; }
EMU_API size_t aclGetTensorDescNumDims(const aclTensorDesc* desc) { return desc->shape.size(); }
EMU_API aclError aclGetTensorDescDimV2(const aclTensorDesc* desc, size_t index, int64_t* size) {
  if (index >= desc->shape.size()) return fail(ACL_ERROR_INVALID_PARAM, "aclGetTensorDescDimV2: no such dimension");
  *size = desc->shape[index];
  return ACL_SUCCESS;
}
EMU_API aclDataBuffer* aclCreateDataBuffer(void* data, size_t size) { return new aclDataBuffer{data, size}; }
EMU_API aclError aclDestroyDataBuffer(const aclDataBuffer* buffer) {
  delete buffer;
  return ACL_SUCCESS;
}
EMU_API aclopAttr* aclopCreateAttr() { return new aclopAttr; }
EMU_API void aclopDestroyAttr(const aclopAttr* attributes) { delete attributes; }

// Parameters of an execution that never happens.
EMU_API void aclSetTensorDescName(aclTensorDesc*, const char*) {}
EMU_API aclError aclSetTensorFormat(aclTensorDesc*, aclFormat) { return ACL_SUCCESS; }
EMU_API aclError aclSetTensorShape(aclTensorDesc*, int, const int64_t*) { return ACL_SUCCESS; }
EMU_API aclError aclSetTensorPlaceMent(aclTensorDesc*, aclMemType) { return ACL_SUCCESS; }
EMU_API aclError aclopSetAttrBool(aclopAttr*, const char*, uint8_t) { return ACL_SUCCESS; }
EMU_API aclError aclopSetAttrInt(aclopAttr*, const char*, int64_t) { return ACL_SUCCESS; }
EMU_API aclError aclopSetAttrFloat(aclopAttr*, const char*, float) { return ACL_SUCCESS; }
EMU_API aclError aclopSetAttrString(aclopAttr*, const char*, const char*) { return ACL_SUCCESS; }
EMU_API aclError aclopSetAttrDataType(aclopAttr*, const char*, aclDataType) { return ACL_SUCCESS; }
EMU_API aclError aclopSetAttrListBool(aclopAttr*, const char*, int, const uint8_t*) { return ACL_SUCCESS; }
EMU_API aclError aclopSetAttrListInt(aclopAttr*, const char*, int, const int64_t*) { return ACL_SUCCESS; }
EMU_API aclError aclopSetAttrListFloat(aclopAttr*, const char*, int, const float*) { return ACL_SUCCESS; }
EMU_API aclError aclopSetAttrListListInt(aclopAttr*, const char*, int, const int*, const int64_t* const[]) {
  return ACL_SUCCESS;
}

namespace {

int refuse(const std::string& op, aclrtStream handle) {
  RuntimeLock lock(runtime_lock());
  Stream* stream = stream_of(handle);
  const std::string message = "operator " + op + " fell back to aclop";
  if (!stream->graph) return fail(ACL_ERROR_OP_NOT_FOUND, message + ", which has no kernels in the emulator");
  const std::string reason = message + ": aclop operators cannot be captured";
  invalidate(stream->graph, ACL_ERROR_RT_STREAM_CAPTURE_INVALIDATED, reason);
  return fail(ACL_ERROR_RT_CAPTURE_MODE_NOT_SUPPORT, reason);
}

}  // namespace

EMU_API aclError aclopCompileAndExecute(const char* op, int, const aclTensorDesc* const[], const aclDataBuffer* const[],
                                        int, const aclTensorDesc* const[], aclDataBuffer* const[], const aclopAttr*,
                                        aclopEngineType, aclopCompileType, const char*, aclrtStream stream) {
  EMU_ENTER();
  return refuse(op, stream);
}
EMU_API aclError aclopCompileAndExecuteV2(const char* op, int, aclTensorDesc*[], aclDataBuffer*[], int, aclTensorDesc*[],
                                          aclDataBuffer*[], aclopAttr*, aclopEngineType, aclopCompileType, const char*,
                                          aclrtStream stream) {
  EMU_ENTER();
  return refuse(op, stream);
}
