#include "kernel.h"

#include <set>
#include <utility>

namespace emu {
namespace {

thread_local std::string unsupported;  // set by view(), consumed by plan()

std::string operator_name(const char* function) {
  std::string name = function;
  const std::string suffix = "GetWorkspaceSize";
  if (name.size() > suffix.size() && name.compare(name.size() - suffix.size(), suffix.size(), suffix) == 0)
    name.resize(name.size() - suffix.size());
  return name;
}

}  // namespace

View view(const aclTensor* tensor) {
  if (!tensor) return {};
  if (!tensor->fault.empty()) unsupported = tensor->fault;
  if (!is_supported(tensor->dtype)) unsupported = "dtype " + std::to_string(tensor->dtype) + " is not emulated";
  return *tensor;
}

std::vector<View> views(const aclTensorList* list) {
  std::vector<View> result;
  if (list)
    for (const aclTensor* tensor : list->values) result.push_back(view(tensor));
  return result;
}

Dims values(const aclIntArray* array) { return array ? array->values : Dims(); }

std::vector<int> reduced_dims(const View& view, const aclIntArray* array) {
  std::vector<int> dims;
  for (int64_t d : values(array)) dims.push_back(view.dim(d));
  if (dims.empty())
    for (int d = 0; d < view.dims(); ++d) dims.push_back(d);
  std::sort(dims.begin(), dims.end());
  return dims;
}

// torch_npu looks for these names, or a macro makes them beside others, and no test compares what they compute with
// PyTorch. They refuse by name; a row in test_kernels.py takes one off the list.
const std::set<std::string> kUncompared = {
    "aclnnAddV3", "aclnnConvDepthwise2d", "aclnnDropoutGenMask", "aclnnFastGelu", "aclnnFastLayerNorm",
    "aclnnForeachAddList", "aclnnForeachAddScalar", "aclnnForeachAddcdivScalar", "aclnnForeachAddcmulScalar",
    "aclnnForeachDivScalar", "aclnnForeachMaximumScalar", "aclnnForeachMinimumScalar", "aclnnForeachMulScalar",
    "aclnnForeachPowScalar", "aclnnForeachSubList", "aclnnForeachSubScalar",
    "aclnnFusedInferAttentionScoreV2", "aclnnFusedInferAttentionScoreV5", "aclnnFusedSgd", "aclnnIndexAddV2",
    "aclnnIndexFillTensor", "aclnnInplaceAbs", "aclnnInplaceBitwiseOrScalar", "aclnnInplaceBitwiseOrTensor",
    "aclnnInplaceClampMin", "aclnnInplaceIndexFillTensor", "aclnnInplaceIsFinite", "aclnnInplaceIsNegInf",
    "aclnnInplaceIsPosInf", "aclnnInplaceLeftShift", "aclnnInplaceLeftShifts", "aclnnInplaceLogicalXor",
    "aclnnInplaceMaximum", "aclnnInplaceMinimum", "aclnnInplaceNeg", "aclnnInplaceRandomWithoutFromTo",
    "aclnnInplaceRandomWithoutFromToTensor", "aclnnInplaceRightShift", "aclnnInplaceRound",
    "aclnnInplaceScatterUpdate", "aclnnInplaceSign", "aclnnInplaceSignbit", "aclnnInplaceSilu", "aclnnInplaceTrunc",
    "aclnnLogSigmoid", "aclnnMaskedScale", "aclnnMaxPool2dWithIndices", "aclnnMaxPool2dWithIndicesBackward",
    "aclnnNorm", "aclnnNormalFloatFloat", "aclnnRepeatInterleave", "aclnnScatterPaKvCache", "aclnnSplitWithSize",
};

int plan(const char* function, uint64_t* workspace, aclOpExecutor** executor, Work (*make)(const void*), const void* maker) {
  if (kUncompared.count(operator_name(function))) return refuse(function, "no test compares it with PyTorch");
  if (int code = api_call(function).enter()) return code;
  Work work;
  try {
    work = make(maker);
    if (!unsupported.empty()) return refuse(function, std::exchange(unsupported, ""));
    rehearse(work);
  } catch (const Failure& failure) {
    unsupported.clear();
    return fail(failure.code, operator_name(function) + ": " + failure.message);
  } catch (const std::exception& error) {
    return refuse(function, error.what());
  }
  *workspace = 0;
  *executor = new aclOpExecutor{operator_name(function), std::move(work)};
  return ACL_SUCCESS;
}

int execute(aclOpExecutor* executor, aclrtStream stream) {
  const int code = launch(stream, executor->name, std::move(executor->work));
  delete executor;
  return code;
}

int refuse(const char* function, const std::string& why) {
  unsupported.clear();
  return fail(ACL_ERROR_FEATURE_UNSUPPORTED, operator_name(function) + ": " + why);
}

}  // namespace emu

EMU_API int aclDestroyAclOpExecutor(aclOpExecutor* executor) {
  delete executor;
  return ACL_SUCCESS;
}
