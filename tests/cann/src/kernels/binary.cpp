// Operators with two inputs that compute every element on its own: arithmetic, comparison, logic.
#include "arithmetic.h"

using namespace emu;

#define BINARY_TENSORS(name, inplace, expression)                                                            \
  static Work do_##name(const View& out, const View& a, const View& b) {                                     \
    return [=] { map(out, [](auto x, auto y) { return expression; }, a, b); };                               \
  }                                                                                                          \
  ACLNN(name, const aclTensor* self, const aclTensor* other, const aclTensor* out) {                         \
    return PLAN(do_##name(view(out), view(self), view(other)));                                              \
  }                                                                                                          \
  ACLNN(inplace, const aclTensor* self, const aclTensor* other) {                                            \
    return PLAN(do_##name(view(self), view(self), view(other)));                                             \
  }
#define BINARY_SCALAR(name, inplace, expression)                                                             \
  static Work do_##name(const View& out, const View& a, const aclScalar* b) {                                \
    return with_scalar(out, a, b, [](auto x, auto y) { return expression; });                                \
  }                                                                                                          \
  ACLNN(name, const aclTensor* self, const aclScalar* other, const aclTensor* out) {                         \
    return PLAN(do_##name(view(out), view(self), other));                                                    \
  }                                                                                                          \
  ACLNN(inplace, const aclTensor* self, const aclScalar* other) {                                            \
    return PLAN(do_##name(view(self), view(self), other));                                                   \
  }
// Tensor and Scalar forms with their in-place siblings, under the names CANN gives them.
#define BINARY(tensor, tensor_inplace, scalar, scalar_inplace, expression) \
  BINARY_TENSORS(tensor, tensor_inplace, expression)                       \
  BINARY_SCALAR(scalar, scalar_inplace, expression)

BINARY(aclnnMul, aclnnInplaceMul, aclnnMuls, aclnnInplaceMuls, x * y)
BINARY(aclnnFloorDivide, aclnnInplaceFloorDivide, aclnnFloorDivides, aclnnInplaceFloorDivides, floor_divide(x, y))
BINARY(aclnnRemainderTensorTensor, aclnnInplaceRemainderTensorTensor, aclnnRemainderTensorScalar,
       aclnnInplaceRemainderTensorScalar, remainder(x, y))
BINARY(aclnnFmodTensor, aclnnInplaceFmodTensor, aclnnFmodScalar, aclnnInplaceFmodScalar, fmod(x, y))
BINARY(aclnnPowTensorTensor, aclnnInplacePowTensorTensor, aclnnPowTensorScalar, aclnnInplacePowTensorScalar, power(x, y))

#define COMPARE(Name, op) \
  BINARY(aclnn##Name##Tensor, aclnnInplace##Name##Tensor, aclnn##Name##Scalar, aclnnInplace##Name##Scalar, x op y)
COMPARE(Eq, ==)
COMPARE(Ne, !=)
COMPARE(Gt, >)
COMPARE(Ge, >=)
COMPARE(Lt, <)
COMPARE(Le, <=)

#define LOGICAL(Name, expression) BINARY_TENSORS(aclnnLogical##Name, aclnnInplaceLogical##Name, expression)
LOGICAL(And, x != 0 && y != 0)
LOGICAL(Or, x != 0 || y != 0)
LOGICAL(Xor, (x != 0) != (y != 0))

#define BITWISE(Name, op)                                                                          \
  BINARY(aclnnBitwise##Name##Tensor, aclnnInplaceBitwise##Name##Tensor, aclnnBitwise##Name##Scalar, \
         aclnnInplaceBitwise##Name##Scalar, static_cast<int64_t>(x) op static_cast<int64_t>(y))
BITWISE(And, &)
BITWISE(Or, |)
BITWISE(Xor, ^)
BINARY_TENSORS(aclnnLeftShift, aclnnInplaceLeftShift, static_cast<int64_t>(x) << static_cast<int64_t>(y))
BINARY_SCALAR(aclnnLeftShifts, aclnnInplaceLeftShifts, static_cast<int64_t>(x) << static_cast<int64_t>(y))
BINARY_TENSORS(aclnnRightShift, aclnnInplaceRightShift, static_cast<int64_t>(x) >> static_cast<int64_t>(y))

BINARY_TENSORS(aclnnMaximum, aclnnInplaceMaximum, maximum(x, y))
BINARY_TENSORS(aclnnMinimum, aclnnInplaceMinimum, minimum(x, y))
BINARY(aclnnClampMinTensor, aclnnInplaceClampMinTensor, aclnnClampMin, aclnnInplaceClampMin, maximum(x, y))
BINARY(aclnnClampMaxTensor, aclnnInplaceClampMaxTensor, aclnnClampMax, aclnnInplaceClampMax, minimum(x, y))

// True division: integers are divided as float.
namespace {
constexpr auto divide = [](auto x, auto y) { return x / y; };
Work divide_by_scalar(const View& out, const View& x, const aclScalar* scalar) {
  const double y = scalar->number();
  return [=] {
    compute_floating({&out, &x}, [&](auto zero) {
      using C = decltype(zero);
      map_as<C>(out, [d = static_cast<C>(y)](C a) { return a / d; }, x);
    });
  };
}
enum Rounding { kNone = 0, kTrunc = 1, kFloor = 2 };  // torch_npu's numbers for rounding_mode
template <class C>
C rounded(C x, C y, int mode) {
  if (mode == kFloor) return floor_divide(x, y);
  if constexpr (is_integer<C>) return y == 0 ? 0 : x / y;
  else return mode == kTrunc ? std::trunc(x / y) : x / y;
}
}  // namespace
ACLNN(aclnnDiv, const aclTensor* self, const aclTensor* other, const aclTensor* out) {
  return PLAN([a = view(self), b = view(other), o = view(out)] { map_floating(o, divide, a, b); });
}
ACLNN(aclnnInplaceDiv, const aclTensor* self, const aclTensor* other) {
  return PLAN([a = view(self), b = view(other)] { map_floating(a, divide, a, b); });
}
ACLNN(aclnnDivs, const aclTensor* self, const aclScalar* other, const aclTensor* out) {
  return PLAN(divide_by_scalar(view(out), view(self), other));
}
ACLNN(aclnnInplaceDivs, const aclTensor* self, const aclScalar* other) {
  return PLAN(divide_by_scalar(view(self), view(self), other));
}
ACLNN(aclnnDivMod, const aclTensor* self, const aclTensor* other, int mode, const aclTensor* out) {
  return PLAN([=, a = view(self), b = view(other), o = view(out)] {
    map(o, [=](auto x, auto y) { return rounded(x, y, mode); }, a, b);
  });
}
ACLNN(aclnnInplaceDivMod, const aclTensor* self, const aclTensor* other, int mode) {
  return PLAN([=, a = view(self), b = view(other)] { map(a, [=](auto x, auto y) { return rounded(x, y, mode); }, a, b); });
}
ACLNN(aclnnDivMods, const aclTensor* self, const aclScalar* other, int mode, const aclTensor* out) {
  return PLAN(with_scalar(view(out), view(self), other, [=](auto x, auto y) { return rounded(x, y, mode); }));
}
ACLNN(aclnnInplaceDivMods, const aclTensor* self, const aclScalar* other, int mode) {
  return PLAN(with_scalar(view(self), view(self), other, [=](auto x, auto y) { return rounded(x, y, mode); }));
}

ACLNN(aclnnPowScalarTensor, const aclScalar* self, const aclTensor* exponent, const aclTensor* out) {
  return PLAN(with_scalar(view(out), view(exponent), self, [](auto y, auto x) { return power(x, y); }));
}
ACLNN(aclnnRemainderScalarTensor, const aclScalar* self, const aclTensor* other, const aclTensor* out) {
  return PLAN(with_scalar(view(out), view(other), self, [](auto y, auto x) { return remainder(x, y); }));
}
