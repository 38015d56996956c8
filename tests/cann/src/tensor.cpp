// Creation and destruction of aclnn's argument objects, and views.
#include "tensor.h"

#include <cstring>

#include "emu.h"
#include "kernels/strided.h"

namespace emu {

size_t element_size(aclDataType dtype) {
  switch (dtype) {
    case ACL_FLOAT: case ACL_INT32: case ACL_UINT32: return 4;
    case ACL_FLOAT16: case ACL_BF16: case ACL_INT16: case ACL_UINT16: return 2;
    case ACL_INT64: case ACL_UINT64: case ACL_DOUBLE: case ACL_COMPLEX64: return 8;
    case ACL_COMPLEX128: return 16;
    default: return 1;
  }
}

bool is_floating(aclDataType dtype) {
  return dtype == ACL_FLOAT || dtype == ACL_DOUBLE || dtype == ACL_FLOAT16 || dtype == ACL_BF16;
}

int64_t product(const Dims& shape) {
  int64_t count = 1;
  for (int64_t size : shape) count *= size;
  return count;
}

Dims contiguous_strides(const Dims& shape) {
  Dims strides(shape.size());
  int64_t stride = 1;
  for (size_t i = shape.size(); i-- > 0; stride *= shape[i]) strides[i] = stride;
  return strides;
}

void reject(const std::string& why) { throw Failure{kInvalidParameter, why}; }

std::string text(const Dims& shape) {
  std::string result = "[";
  for (size_t i = 0; i < shape.size(); ++i) result += (i ? ", " : "") + std::to_string(shape[i]);
  return result + "]";
}

namespace {
thread_local bool rehearsing = false;
struct Rehearsed {};  // thrown where data is needed
}  // namespace

void rehearse(const Work& work) {
  struct Scope {
    Scope() { rehearsing = true; }
    ~Scope() { rehearsing = false; }
  } scope;
  try {
    work();
  } catch (const Rehearsed&) {
  }
}
bool is_rehearsal() { return rehearsing; }
void need_data() {
  if (rehearsing) throw Rehearsed{};
}

View::View(aclDataType dtype, const Dims& shape, void* memory) : View(dtype, shape, contiguous_strides(shape), memory) {}

int64_t View::count() const { return product(shape); }

int View::dim(int64_t index) const {
  const int64_t at = index < 0 ? index + dims() : index;
  if (at < 0 || at >= dims()) reject("a tensor of shape " + text(shape) + " has no dimension " + std::to_string(index));
  return static_cast<int>(at);
}

char* View::at(const Dims& index) const {
  need_data();
  int64_t offset = 0;
  bool inside = index.size() == shape.size();
  for (size_t i = 0; inside && i < index.size(); ++i) {
    inside = index[i] >= 0 && index[i] < shape[i];
    offset += index[i] * strides[i];
  }
  if (!inside || !memory_) reject("element " + text(index) + " lies outside of a tensor of shape " + text(shape));
  return memory_ + offset * static_cast<int64_t>(item());
}

char* View::first() const {
  need_data();
  if (!memory_ || count() == 0) reject("a tensor without memory is read or written");
  return memory_;
}

View View::select(int dim, int64_t index) const {
  if (index < 0 || index >= shape[this->dim(dim)])
    reject("slice " + std::to_string(index) + " of dimension " + std::to_string(dim) + " lies outside of a tensor of shape " + text(shape));
  View view = *this;
  view.memory_ += index * strides[dim] * static_cast<int64_t>(item());
  view.shape.erase(view.shape.begin() + dim);
  view.strides.erase(view.strides.begin() + dim);
  return view;
}

View View::narrow(int dim, int64_t start, int64_t length, int64_t step) const {
  const int64_t last = start + (length - 1) * step, size = shape[this->dim(dim)];
  if (length < 0 || (length > 0 && (std::min(start, last) < 0 || std::max(start, last) >= size)))
    reject(std::to_string(length) + " elements from " + std::to_string(start) + " of dimension " + std::to_string(dim) +
           " lie outside of a tensor of shape " + text(shape));
  View view = *this;
  if (length == 0) start = 0;
  view.memory_ += start * strides[dim] * static_cast<int64_t>(item());
  view.shape[dim] = length;
  view.strides[dim] *= step;
  return view;
}

View View::permute(const std::vector<int>& order) const {
  if (static_cast<int>(order.size()) != dims())
    reject("a tensor of shape " + text(shape) + " where " + std::to_string(order.size()) + " dimensions are needed");
  View view = *this;
  for (size_t i = 0; i < order.size(); ++i) {
    view.shape[i] = shape[order[i]];
    view.strides[i] = strides[order[i]];
  }
  return view;
}

View View::move_last(const std::vector<int>& moved) const {
  std::vector<bool> is_moved(dims(), false);
  for (int d : moved) is_moved[d] = true;
  std::vector<int> order;
  for (int d = 0; d < dims(); ++d)
    if (!is_moved[d]) order.push_back(d);
  order.insert(order.end(), moved.begin(), moved.end());
  return permute(order);
}

View View::expand(const Dims& to) const {
  View view = *this;
  const size_t added = to.size() - shape.size();
  view.shape = to;
  view.strides.assign(to.size(), 0);
  bool fits = to.size() >= shape.size();
  for (size_t i = 0; fits && i < shape.size(); ++i) {
    fits = shape[i] == 1 || shape[i] == to[i + added];
    if (shape[i] != 1) view.strides[i + added] = strides[i];
  }
  if (!fits) reject("a tensor of shape " + text(shape) + " does not broadcast to " + text(to));
  return view;
}

View View::unsqueeze(int dim) const {
  if (dim < 0 || dim > dims()) reject("a tensor of shape " + text(shape) + " has no place for dimension " + std::to_string(dim));
  View view = *this;
  view.shape.insert(view.shape.begin() + dim, 1);
  view.strides.insert(view.strides.begin() + dim, 0);
  return view;
}

View View::flat() const {
  int64_t stride = 1;
  for (int d = dims() - 1; d >= 0; stride *= shape[d--])
    if (shape[d] != 1 && strides[d] != stride && count()) reject("a tensor that is not contiguous is not emulated here");
  View view = *this;
  view.shape = {count()};
  view.strides = {1};
  return view;
}

}  // namespace emu

double aclScalar::number() const { return emu::read<double>(dtype, reinterpret_cast<const char*>(bytes)); }
int64_t aclScalar::integer() const { return emu::read<int64_t>(dtype, reinterpret_cast<const char*>(bytes)); }

namespace {
// Why the view reaches past the storage that torch_npu names, empty if it does not.
std::string storage_fault(const aclTensor& tensor, int64_t offset, const int64_t* storage, uint64_t dims) {
  const int64_t size = emu::product({storage, storage + dims});
  int64_t low = offset, high = offset;
  for (size_t d = 0; d < tensor.shape.size(); ++d) {
    const int64_t reach = (tensor.shape[d] - 1) * tensor.strides[d];
    (reach < 0 ? low : high) += reach;
  }
  if (tensor.count() == 0 || (low >= 0 && high < size)) return "";
  return "a tensor of shape " + emu::text(tensor.shape) + ", strides " + emu::text(tensor.strides) + " and offset " +
         std::to_string(offset) + " reaches past its storage of " + std::to_string(size) + " elements";
}
}  // namespace

EMU_API aclTensor* aclCreateTensor(const int64_t* shape, uint64_t dims, aclDataType dtype, const int64_t* strides,
                                   int64_t offset, aclFormat, const int64_t* storage, uint64_t storage_dims, void* data) {
  const emu::Dims sizes(shape, shape + dims), steps = strides ? emu::Dims(strides, strides + dims) : emu::contiguous_strides(sizes);
  if (!data) return new aclTensor(dtype, sizes, steps, nullptr);
  char* first = static_cast<char*>(data) + offset * static_cast<int64_t>(emu::element_size(dtype));
  auto* tensor = new aclTensor(dtype, sizes, steps, first);
  tensor->fault = storage_fault(*tensor, offset, storage, storage_dims);
  return tensor;
}
EMU_API aclScalar* aclCreateScalar(void* value, aclDataType dtype) {
  auto* scalar = new aclScalar{dtype, {}};
  memcpy(scalar->bytes, value, emu::element_size(dtype));
  return scalar;
}
EMU_API aclIntArray* aclCreateIntArray(const int64_t* values, uint64_t size) { return new aclIntArray{{values, values + size}}; }
EMU_API aclFloatArray* aclCreateFloatArray(const float* values, uint64_t size) {
  return new aclFloatArray{{values, values + size}};
}
EMU_API aclBoolArray* aclCreateBoolArray(const bool* values, uint64_t size) {
  return new aclBoolArray{{values, values + size}};
}
EMU_API aclTensorList* aclCreateTensorList(const aclTensor* const* values, uint64_t size) {
  return new aclTensorList{{values, values + size}};
}
EMU_API aclScalarList* aclCreateScalarList(const aclScalar* const* values, uint64_t size) {
  return new aclScalarList{{values, values + size}};
}

EMU_API int aclDestroyTensor(const aclTensor* tensor) {
  delete tensor;
  return ACL_SUCCESS;
}
EMU_API int aclDestroyScalar(const aclScalar* scalar) {
  delete scalar;
  return ACL_SUCCESS;
}
EMU_API int aclDestroyIntArray(const aclIntArray* array) {
  delete array;
  return ACL_SUCCESS;
}
EMU_API int aclDestroyFloatArray(const aclFloatArray* array) {
  delete array;
  return ACL_SUCCESS;
}
EMU_API int aclDestroyBoolArray(const aclBoolArray* array) {
  delete array;
  return ACL_SUCCESS;
}
// A list owns its members.
EMU_API int aclDestroyTensorList(const aclTensorList* list) {
  if (list)
    for (const aclTensor* tensor : list->values) delete tensor;
  delete list;
  return ACL_SUCCESS;
}
EMU_API int aclDestroyScalarList(const aclScalarList* list) {
  if (list)
    for (const aclScalar* scalar : list->values) delete scalar;
  delete list;
  return ACL_SUCCESS;
}

// The caller frees the array with delete[].
EMU_API int aclGetViewShape(const aclTensor* tensor, int64_t** shape, uint64_t* dims) {
  *dims = tensor->shape.size();
  *shape = new int64_t[std::max<uint64_t>(*dims, 1)];
  std::copy(tensor->shape.begin(), tensor->shape.end(), *shape);
  return ACL_SUCCESS;
}
