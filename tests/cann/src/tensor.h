// The objects aclnn operators take: tensors, scalars and arrays.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "emu.h"

namespace emu {

using Dims = std::vector<int64_t>;

size_t element_size(aclDataType dtype);
bool is_floating(aclDataType dtype);

// A strided view of device memory. Strides count elements. Kernels keep copies: torch_npu destroys the
// aclTensor right after the second phase of the call, long before the work runs or replays.
// A view that aclCreateTensor accepts lies within its storage, and what is derived from a view lies within that view:
// the functions here throw Failure otherwise.
class View {
 public:
  aclDataType dtype = ACL_DT_UNDEFINED;
  Dims shape, strides;

  View() = default;
  View(aclDataType dtype, const Dims& shape, const Dims& strides, void* memory)
      : dtype(dtype), shape(shape), strides(strides), memory_(static_cast<char*>(memory)) {}
  // Contiguous.
  View(aclDataType dtype, const Dims& shape, void* memory);

  bool defined() const { return dtype != ACL_DT_UNDEFINED; }
  bool has_memory() const { return memory_; }
  bool starts_where(const View& other) const { return memory_ == other.memory_; }
  int dims() const { return static_cast<int>(shape.size()); }
  int64_t count() const;
  size_t item() const { return element_size(dtype); }
  // The dimension counted from the front.
  int dim(int64_t index) const;
  int64_t size(int64_t index) const { return shape[dim(index)]; }
  // Address of the element at `index`, one coordinate per dimension, and of the first. The only ways to memory:
  // they end a rehearsal.
  char* at(const Dims& index) const;
  char* first() const;

  View select(int dim, int64_t index) const;                       // drops the dimension
  View narrow(int dim, int64_t start, int64_t length, int64_t step = 1) const;
  View permute(const std::vector<int>& order) const;
  View move_last(const std::vector<int>& moved) const;             // those dimensions last, the others in order
  View expand(const Dims& to) const;                               // broadcast, stride 0
  View unsqueeze(int dim) const;
  View flat() const;                                               // one dimension; only for contiguous views

 private:
  char* memory_ = nullptr;
};

// CANN checks shapes when an operator is called, not when it runs. So work is rehearsed when it is planned: it runs up
// to the first value it needs, and what it says of shapes on the way is checked. Throws Failure.
void rehearse(const Work& work);
bool is_rehearsal();
// Ends a rehearsal, if one is under way.
void need_data();

// What an operator says to arguments it cannot take: throws Failure.
[[noreturn]] void reject(const std::string& why);
// "[2, 3]".
std::string text(const Dims& shape);

// Row-major strides of a shape.
Dims contiguous_strides(const Dims& shape);
int64_t product(const Dims& shape);

}  // namespace emu

struct aclTensor : emu::View {
  using View::View;
  std::string fault;  // why it does not lie within its storage, empty when it does
};

struct aclScalar {
  aclDataType dtype;
  unsigned char bytes[16];
  double number() const;
  int64_t integer() const;
};

struct aclIntArray {
  std::vector<int64_t> values;
};
struct aclBoolArray {
  std::vector<uint8_t> values;
};
struct aclFloatArray {
  std::vector<float> values;
};
struct aclTensorList {
  std::vector<const aclTensor*> values;
};
struct aclScalarList {
  std::vector<const aclScalar*> values;
};
