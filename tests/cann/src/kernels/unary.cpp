// Operators with one input that compute every element on its own.
#include "arithmetic.h"

using namespace emu;

// Both forms of an operator share one function, so that its loops are compiled once.
#define UNARY(Name, expression)                                                                                 \
  static Work do_##Name(const View& out, const View& a) {                                                       \
    return [=] { map(out, [](auto x) { return expression; }, a); };                                             \
  }                                                                                                             \
  ACLNN(aclnn##Name, const aclTensor* self, const aclTensor* out) { return PLAN(do_##Name(view(out), view(self))); } \
  ACLNN(aclnnInplace##Name, const aclTensor* self) { return PLAN(do_##Name(view(self), view(self))); }

UNARY(Abs, x < 0 ? -x : x)
UNARY(Neg, -x)
UNARY(Exp, std::exp(x))
UNARY(Exp2, std::exp2(x))
UNARY(Expm1, std::expm1(x))
UNARY(Log, std::log(x))
UNARY(Log2, std::log2(x))
UNARY(Log10, std::log10(x))
UNARY(Log1p, std::log1p(x))
UNARY(Sqrt, std::sqrt(x))
UNARY(Rsqrt, 1 / std::sqrt(x))
UNARY(Reciprocal, 1 / x)
UNARY(Sin, std::sin(x))
UNARY(Cos, std::cos(x))
UNARY(Tan, std::tan(x))
UNARY(Sinh, std::sinh(x))
UNARY(Cosh, std::cosh(x))
UNARY(Asin, std::asin(x))
UNARY(Acos, std::acos(x))
UNARY(Atan, std::atan(x))
UNARY(Erf, std::erf(x))
UNARY(Erfc, std::erfc(x))
UNARY(Floor, std::floor(x))
UNARY(Ceil, std::ceil(x))
UNARY(Round, std::nearbyint(x))
UNARY(Trunc, std::trunc(x))
UNARY(Frac, x - std::trunc(x))
UNARY(Sign, (x > 0) - (x < 0))
UNARY(LogicalNot, x == 0)
UNARY(IsFinite, std::isfinite(static_cast<double>(x)))
UNARY(IsPosInf, std::isinf(static_cast<double>(x)) && x > 0)
UNARY(IsNegInf, std::isinf(static_cast<double>(x)) && x < 0)
UNARY(Signbit, std::signbit(static_cast<double>(x)))

ACLNN(aclnnBitwiseNot, const aclTensor* self, const aclTensor* out) {
  return PLAN([a = view(self), o = view(out)] {
    const bool logical = a.dtype == ACL_BOOL;
    map_as<int64_t>(o, [=](int64_t x) { return logical ? !x : ~x; }, a);
  });
}
