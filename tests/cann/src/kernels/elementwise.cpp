// Elementwise operators with a factor or a third input: add, addcmul, where, clamp, fills and copies.
#include "arithmetic.h"

using namespace emu;

// ---- two inputs and a factor: self + alpha * other

namespace {
template <int Sign>
Work add_tensor(const View& out, const View& x, const View& y, const aclScalar* alpha) {
  const double number = alpha ? alpha->number() : 1;
  const int64_t integer = alpha ? alpha->integer() : 1;
  return [=] {
    compute({&out, &x, &y}, [&](auto zero) {
      using C = decltype(zero);
      const C factor = Sign * (is_integer<C> ? static_cast<C>(integer) : static_cast<C>(number));
      map_as<C>(out, [=](C a, C b) { return a + factor * b; }, x, y);
    });
  };
}
template <int Sign>
Work add_scalar(const View& out, const View& x, const aclScalar* other, const aclScalar* alpha) {
  const double number = alpha ? alpha->number() : 1;
  const int64_t integer = alpha ? alpha->integer() : 1;
  return with_scalar(out, x, other, [=](auto a, auto b) {
    using C = decltype(a);
    return a + Sign * (is_integer<C> ? static_cast<C>(integer) : static_cast<C>(number)) * b;
  });
}
}  // namespace

#define ADDITIVE(Name, sign)                                                                                          \
  ACLNN(aclnn##Name, const aclTensor* self, const aclTensor* other, const aclScalar* alpha, const aclTensor* out) {   \
    return PLAN(add_tensor<sign>(view(out), view(self), view(other), alpha));                                         \
  }                                                                                                                   \
  ACLNN(aclnnInplace##Name, const aclTensor* self, const aclTensor* other, const aclScalar* alpha) {                  \
    return PLAN(add_tensor<sign>(view(self), view(self), view(other), alpha));                                        \
  }                                                                                                                   \
  ACLNN(aclnn##Name##s, const aclTensor* self, const aclScalar* other, const aclScalar* alpha, const aclTensor* out) { \
    return PLAN(add_scalar<sign>(view(out), view(self), other, alpha));                                               \
  }                                                                                                                   \
  ACLNN(aclnnInplace##Name##s, const aclTensor* self, const aclScalar* other, const aclScalar* alpha) {               \
    return PLAN(add_scalar<sign>(view(self), view(self), other, alpha));                                              \
  }
ADDITIVE(Add, 1)
ADDITIVE(Sub, -1)

ACLNN(aclnnRsub, const aclTensor* self, const aclTensor* other, const aclScalar* alpha, const aclTensor* out) {
  return PLAN(add_tensor<-1>(view(out), view(other), view(self), alpha));
}
ACLNN(aclnnRsubs, const aclTensor* self, const aclScalar* other, const aclScalar* alpha, const aclTensor* out) {
  const double number = alpha->number();
  return PLAN(with_scalar(view(out), view(self), other, [=](auto x, auto y) { return y - static_cast<decltype(x)>(number) * x; }));
}
// scalar + alpha * tensor
ACLNN(aclnnAddV3, const aclScalar* self, const aclTensor* other, const aclScalar* alpha, const aclTensor* out) {
  const double number = alpha->number();
  return PLAN(with_scalar(view(out), view(other), self, [=](auto x, auto y) { return y + static_cast<decltype(x)>(number) * x; }));
}

// ---- three inputs

namespace {
template <class F>
Work ternary(const View& out, const View& a, const View& b, const View& c, const aclScalar* scalar, F f) {
  const double number = scalar->number();
  return [=] {
    compute({&out, &a, &b, &c}, [&](auto zero) {
      using C = decltype(zero);
      map_as<C>(out, [&](C x, C y, C z) { return f(x, y, z, static_cast<C>(number)); }, a, b, c);
    });
  };
}
constexpr auto addcmul = [](auto x, auto y, auto z, auto k) { return x + k * y * z; };
constexpr auto addcdiv = [](auto x, auto y, auto z, auto k) { return x + k * y / z; };
}  // namespace

ACLNN(aclnnAddcmul, const aclTensor* self, const aclTensor* a, const aclTensor* b, const aclScalar* value, const aclTensor* out) {
  return PLAN(ternary(view(out), view(self), view(a), view(b), value, addcmul));
}
ACLNN(aclnnInplaceAddcmul, const aclTensor* self, const aclTensor* a, const aclTensor* b, const aclScalar* value) {
  return PLAN(ternary(view(self), view(self), view(a), view(b), value, addcmul));
}
ACLNN(aclnnAddcdiv, const aclTensor* self, const aclTensor* a, const aclTensor* b, const aclScalar* value, const aclTensor* out) {
  return PLAN(ternary(view(out), view(self), view(a), view(b), value, addcdiv));
}
ACLNN(aclnnInplaceAddcdiv, const aclTensor* self, const aclTensor* a, const aclTensor* b, const aclScalar* value) {
  return PLAN(ternary(view(self), view(self), view(a), view(b), value, addcdiv));
}
namespace {
constexpr auto lerp = [](auto x, auto y, auto w) {
  return std::abs(static_cast<double>(w)) < 0.5 ? x + w * (y - x) : y - (y - x) * (1 - w);
};
}
ACLNN(aclnnLerp, const aclTensor* self, const aclTensor* end, const aclTensor* weight, const aclTensor* out) {
  return PLAN([a = view(self), b = view(end), w = view(weight), o = view(out)] { map(o, lerp, a, b, w); });
}
ACLNN(aclnnInplaceLerp, const aclTensor* self, const aclTensor* end, const aclTensor* weight) {
  return PLAN([a = view(self), b = view(end), w = view(weight)] { map(a, lerp, a, b, w); });
}
ACLNN(aclnnLerps, const aclTensor* self, const aclTensor* end, const aclScalar* weight, const aclTensor* out) {
  const double number = weight->number();
  return PLAN([=, a = view(self), b = view(end), o = view(out)] {
    map(o, [=](auto x, auto y) { return lerp(x, y, static_cast<decltype(x)>(number)); }, a, b);
  });
}
ACLNN(aclnnInplaceLerps, const aclTensor* self, const aclTensor* end, const aclScalar* weight) {
  const double number = weight->number();
  return PLAN([=, a = view(self), b = view(end)] {
    map(a, [=](auto x, auto y) { return lerp(x, y, static_cast<decltype(x)>(number)); }, a, b);
  });
}
ACLNN(aclnnSWhere, const aclTensor* condition, const aclTensor* self, const aclTensor* other, const aclTensor* out) {
  return PLAN([c = view(condition), a = view(self), b = view(other), o = view(out)] {
    map(o, [](auto keep, auto x, auto y) { return keep != 0 ? x : y; }, c, a, b);
  });
}
ACLNN(aclnnIsClose, const aclTensor* self, const aclTensor* other, double rtol, double atol, bool equal_nan, const aclTensor* out) {
  return PLAN([=, a = view(self), b = view(other), o = view(out)] {
    map_as<double>(o, [=](double x, double y) {
      return x == y || (equal_nan && x != x && y != y) || (std::isfinite(x - y) && std::fabs(x - y) <= atol + rtol * std::fabs(y));
    }, a, b);
  });
}

// ---- clamp

namespace {
Work clamp(const View& out, const View& x, const aclScalar* low, const aclScalar* high) {
  const bool has_low = low, has_high = high;
  const double lowest = low ? low->number() : 0, highest = high ? high->number() : 0;
  return [=] {
    map(out, [=](auto v) {
      using C = decltype(v);
      if (has_low) v = maximum(v, static_cast<C>(lowest));
      return has_high ? minimum(v, static_cast<C>(highest)) : v;
    }, x);
  };
}
}  // namespace
ACLNN(aclnnClamp, const aclTensor* self, const aclScalar* low, const aclScalar* high, const aclTensor* out) {
  return PLAN(clamp(view(out), view(self), low, high));
}
ACLNN(aclnnHardtanh, const aclTensor* self, const aclScalar* low, const aclScalar* high, const aclTensor* out) {
  return PLAN(clamp(view(out), view(self), low, high));
}
ACLNN(aclnnInplaceHardtanh, const aclTensor* self, const aclScalar* low, const aclScalar* high) {
  return PLAN(clamp(view(self), view(self), low, high));
}
ACLNN(aclnnClampTensor, const aclTensor* self, const aclTensor* low, const aclTensor* high, const aclTensor* out) {
  return PLAN([a = view(self), l = view(low), h = view(high), o = view(out)] {
    copy(o, a);
    if (l.defined()) map(o, [](auto x, auto y) { return maximum(x, y); }, o, l);
    if (h.defined()) map(o, [](auto x, auto y) { return minimum(x, y); }, o, h);
  });
}
namespace {
Work nan_to_num(const View& out, const View& x, float nan, float positive, float negative) {
  return [=] {
    map(out, [=](auto v) {
      using C = decltype(v);
      const double d = static_cast<double>(v);
      if (d != d) return static_cast<C>(nan);
      if (std::isinf(d)) return static_cast<C>(d > 0 ? positive : negative);
      return v;
    }, x);
  };
}
}  // namespace
ACLNN(aclnnNanToNum, const aclTensor* self, float nan, float positive, float negative, const aclTensor* out) {
  return PLAN(nan_to_num(view(out), view(self), nan, positive, negative));
}
ACLNN(aclnnInplaceNanToNum, const aclTensor* self, float nan, float positive, float negative) {
  return PLAN(nan_to_num(view(self), view(self), nan, positive, negative));
}

// ---- fills and copies

ACLNN(aclnnInplaceZero, const aclTensor* self) {
  return PLAN([a = view(self)] { fill(a, 0); });
}
ACLNN(aclnnInplaceOne, const aclTensor* self) {
  return PLAN([a = view(self)] { fill(a, 1); });
}
ACLNN(aclnnInplaceFillScalar, const aclTensor* self, const aclScalar* value) {
  const View a = view(self);
  if (is_floating(a.dtype) || is_floating(value->dtype)) return PLAN([a, number = value->number()] { fill(a, number); });
  return PLAN([a, integer = value->integer()] { map_as<int64_t>(a, [integer] { return integer; }); });
}
ACLNN(aclnnInplaceFillTensor, const aclTensor* self, const aclTensor* value) {
  return PLAN([a = view(self), v = view(value)] { copy(a, v.count() == 1 && v.dims() ? v.select(0, 0) : v); });
}
ACLNN(aclnnInplaceCopy, const aclTensor* self, const aclTensor* source) {
  return PLAN([a = view(self), s = view(source)] { copy(a, s); });
}
ACLNN(aclnnCast, const aclTensor* self, aclDataType, const aclTensor* out) {
  return PLAN([a = view(self), o = view(out)] { copy(o, a); });
}
namespace {
Work masked_fill(const View& self, const View& mask, double number) {
  return [=] {
    map(self, [=](auto x, auto keep) { return keep != 0 ? static_cast<decltype(x)>(number) : x; }, self, mask);
  };
}
}  // namespace
ACLNN(aclnnInplaceMaskedFillScalar, const aclTensor* self, const aclTensor* mask, const aclScalar* value) {
  return PLAN(masked_fill(view(self), view(mask), value->number()));
}
ACLNN(aclnnInplaceMaskedFillTensor, const aclTensor* self, const aclTensor* mask, const aclTensor* value) {
  return PLAN([a = view(self), m = view(mask), v = view(value)] {
    map(a, [](auto x, auto keep, auto y) { return keep != 0 ? y : x; }, a, m, v.count() == 1 && v.dims() ? v.select(0, 0) : v);
  });
}
ACLNN(aclnnMaskedScale, const aclTensor* self, const aclTensor* mask, float scale, const aclTensor* out) {
  return PLAN([=, a = view(self), m = view(mask), o = view(out)] {
    map(o, [=](auto x, auto keep) { return x * keep * static_cast<decltype(x)>(scale); }, a, m);
  });
}
