// How an aclnn operator is written here.
//
//     ACLNN(aclnnAbs, const aclTensor* self, const aclTensor* out) {
//       return PLAN([a = view(self), o = view(out)] { map(o, [](auto x) { return x < 0 ? -x : x; }, a); });
//     }
//
// ACLNN defines both phases of the operator: aclnnAbsGetWorkspaceSize, whose body follows, checks the arguments
// and keeps what the kernel needs; aclnnAbs launches it, or records it when the stream is capturing. The
// parameters must be those torch_npu passes: nothing checks them, hence each kernel's test against CPU PyTorch.
#pragma once
#include <cmath>

#include "strided.h"

struct aclOpExecutor {
  std::string name;
  emu::Work work;
};

namespace emu {

using aclnnStatus = int;

// A copy of a tensor's metadata; an undefined View for an absent tensor.
// A dtype that kernels cannot read makes the PLAN of this operator fail.
View view(const aclTensor* tensor);
std::vector<View> views(const aclTensorList* list);
// The array's values, empty when absent.
Dims values(const aclIntArray* array);
// Dimensions counted from the front; all of them when the array is absent or empty.
std::vector<int> reduced_dims(const View& view, const aclIntArray* array);

// The first phase: makes the work, rehearses it (see tensor.h) and keeps it for the second.
// `make` is called with `maker`; a std::function would be compiled anew for every operator.
int plan(const char* function, uint64_t* workspace, aclOpExecutor** executor, Work (*make)(const void*), const void* maker);
template <class Make>
int plan(const char* function, uint64_t* workspace, aclOpExecutor** executor, const Make& maker) {
  return plan(function, workspace, executor, [](const void* m) -> Work { return (*static_cast<const Make*>(m))(); }, &maker);
}
int execute(aclOpExecutor* executor, aclrtStream stream);
// For arguments this emulation does not know: fails the first phase by name.
int refuse(const char* function, const std::string& why);

}  // namespace emu

#define ACLNN(name, ...)                                                                         \
  EMU_API int name(void*, uint64_t, aclOpExecutor* executor_, const aclrtStream stream_) {       \
    EMU_ENTER();                                                                                 \
    return emu::execute(executor_, stream_);                                                     \
  }                                                                                              \
  EMU_API int name##GetWorkspaceSize(__VA_ARGS__, uint64_t* workspace_, aclOpExecutor** executor_)

#define PLAN(...) emu::plan(__func__, workspace_, executor_, [&]() -> emu::Work { return __VA_ARGS__; })
#define REFUSE(why) emu::refuse(__func__, why)
