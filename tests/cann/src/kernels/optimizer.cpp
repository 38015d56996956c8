// Optimizer steps and the foreach operators they are made of. Lists are updated tensor by tensor.
#include "arithmetic.h"

using namespace emu;

namespace {

// A factor given as a scalar, as a tensor of one element, or as one number a tensor.
struct Factor {
  Values<double> numbers;
  View tensor;
  static Factor of(const aclScalar* scalar) { return {{scalar->number()}, {}}; }
  static Factor of(const aclTensor* tensor) { return {{}, view(tensor)}; }
  static Factor of(const aclScalarList* list) {
    Factor factor;
    for (const aclScalar* scalar : list->values) factor.numbers.push_back(scalar->number());
    return factor;
  }
  // Of the i-th tensor of the list; read when the work runs.
  double at(size_t i) const {
    if (!tensor.defined()) return numbers[numbers.size() == 1 ? 0 : static_cast<int64_t>(i)];
    return tensor.count() == 1 ? read<double>(tensor) : read<double>(tensor.dtype, tensor.at({static_cast<int64_t>(i)}));
  }
};

// The length of lists that belong together: as many tensors in each, and of the same shapes.
size_t length(std::initializer_list<const std::vector<View>*> lists) {
  const std::vector<View>& first = **lists.begin();
  for (const auto* list : lists) {
    if (list->size() != first.size())
      reject("lists of " + std::to_string(first.size()) + " and of " + std::to_string(list->size()) + " tensors");
    for (size_t i = 0; i < first.size(); ++i)
      if ((*list)[i].shape != first[i].shape)
        reject("tensors " + std::to_string(i) + " of two lists have the shapes " + text(first[i].shape) + " and " + text((*list)[i].shape));
  }
  return first.size();
}

template <class F>
Work each_unary(const aclTensorList* out, const aclTensorList* in, F f) {
  return [o = views(out), a = views(in), f] {
    for (size_t i = 0, count = length({&o, &a}); i < count; ++i) map(o[i], f, a[i]);
  };
}
template <class F>
Work each_factor(const aclTensorList* out, const aclTensorList* in, const Factor& factor, F f) {
  return [o = views(out), a = views(in), factor, f] {
    for (size_t i = 0, count = length({&o, &a}); i < count; ++i) {
      const double number = factor.at(i);
      map(o[i], [&](auto x) { return f(x, static_cast<decltype(x)>(number)); }, a[i]);
    }
  };
}
template <class F>
Work each_pair(const aclTensorList* out, const aclTensorList* first, const aclTensorList* second, const Factor& factor, F f) {
  return [o = views(out), a = views(first), b = views(second), factor, f] {
    for (size_t i = 0, count = length({&o, &a, &b}); i < count; ++i) {
      const double number = factor.at(i);
      map(o[i], [&](auto x, auto y) { return f(x, y, static_cast<decltype(x)>(number)); }, a[i], b[i]);
    }
  };
}
template <class F>
Work each_triple(const aclTensorList* out, const aclTensorList* first, const aclTensorList* second, const aclTensorList* third,
                 const Factor& factor, F f) {
  return [o = views(out), a = views(first), b = views(second), c = views(third), factor, f] {
    for (size_t i = 0, count = length({&o, &a, &b, &c}); i < count; ++i) {
      const double number = factor.at(i);
      map(o[i], [&](auto x, auto y, auto z) { return f(x, y, z, static_cast<decltype(x)>(number)); }, a[i], b[i], c[i]);
    }
  };
}
const Factor kOne{{1}, {}};

}  // namespace

// ---- foreach with one list

#define FOREACH_UNARY(Name, expression)                                                        \
  ACLNN(aclnnForeach##Name, const aclTensorList* self, const aclTensorList* out) {             \
    return PLAN(each_unary(out, self, [](auto x) { return expression; }));                     \
  }
FOREACH_UNARY(Sqrt, std::sqrt(x))
FOREACH_UNARY(Reciprocal, 1 / x)
FOREACH_UNARY(Neg, -x)
FOREACH_UNARY(Abs, x < 0 ? -x : x)
FOREACH_UNARY(Exp, std::exp(x))
FOREACH_UNARY(Log, std::log(x))
FOREACH_UNARY(Sigmoid, 1 / (1 + std::exp(-x)))
FOREACH_UNARY(Tanh, std::tanh(x))
FOREACH_UNARY(Sign, (x > 0) - (x < 0))

namespace {
enum RoundMode { kRound = 1, kFloor = 2, kCeil = 3, kTrunc = 5, kFrac = 7 };
double round_off(double x, int64_t mode) {
  switch (mode) {
    case kRound: return std::nearbyint(x);
    case kFloor: return std::floor(x);
    case kCeil: return std::ceil(x);
    case kTrunc: return std::trunc(x);
    case kFrac: return x - std::trunc(x);
    default: reject("round mode " + std::to_string(mode) + " is not emulated");
  }
}
}  // namespace
ACLNN(aclnnForeachRoundOffNumberV2, const aclTensorList* self, const aclScalar* mode, const aclTensorList* out) {
  return PLAN(each_unary(out, self, [m = mode->integer()](auto x) { return static_cast<decltype(x)>(round_off(x, m)); }));
}

ACLNN(aclnnForeachZeroInplace, const aclTensorList* self) {
  return PLAN([a = views(self)] {
    for (const View& view : a) fill(view, 0);
  });
}
ACLNN(aclnnForeachCopy, const aclTensorList* source, const aclTensorList* target) {
  return PLAN([from = views(source), to = views(target)] {
    for (size_t i = 0, count = length({&to, &from}); i < count; ++i) copy(to[i], from[i]);
  });
}
ACLNN(aclnnForeachNorm, const aclTensorList* self, const aclScalar* order, const aclTensorList* out) {
  return PLAN([a = views(self), p = order->number(), o = views(out)] {
    for (size_t i = 0; i < a.size(); ++i) {
      double total = 0;
      for (double x : dense<double>(a[i])) {
        if (p == INFINITY) total = std::max(total, std::fabs(x));
        else total += p == 2 ? x * x : std::pow(std::fabs(x), p);
      }
      fill(o[i], p == INFINITY ? total : p == 2 ? std::sqrt(total) : std::pow(total, 1 / p));
    }
  });
}

// ---- foreach with a list and factors: as a tensor (first form), a scalar (V2) or one scalar a tensor

#define FOREACH_FACTOR(Name, expression)                                                                              \
  static Work foreach_##Name(const aclTensorList* out, const aclTensorList* self, const Factor& factor) {             \
    return each_factor(out, self, factor, [](auto x, auto k) { return expression; });                                 \
  }                                                                                                                   \
  ACLNN(aclnnForeach##Name##Scalar, const aclTensorList* self, const aclTensor* scalar, const aclTensorList* out) {   \
    return PLAN(foreach_##Name(out, self, Factor::of(scalar)));                                                       \
  }                                                                                                                   \
  ACLNN(aclnnForeach##Name##ScalarV2, const aclTensorList* self, const aclScalar* scalar, const aclTensorList* out) { \
    return PLAN(foreach_##Name(out, self, Factor::of(scalar)));                                                       \
  }                                                                                                                   \
  ACLNN(aclnnForeach##Name##ScalarList, const aclTensorList* self, const aclScalarList* scalars, const aclTensorList* out) { \
    return PLAN(foreach_##Name(out, self, Factor::of(scalars)));                                                      \
  }
FOREACH_FACTOR(Add, x + k)
FOREACH_FACTOR(Sub, x - k)
FOREACH_FACTOR(Mul, x * k)
FOREACH_FACTOR(Div, x / k)
FOREACH_FACTOR(Pow, power(x, k))
FOREACH_FACTOR(Maximum, maximum(x, k))
FOREACH_FACTOR(Minimum, minimum(x, k))

// ---- foreach with two lists

#define FOREACH_PAIR(name, expression)                                                                              \
  ACLNN(name, const aclTensorList* self, const aclTensorList* other, const aclTensorList* out) {                    \
    return PLAN(each_pair(out, self, other, kOne, [](auto x, auto y, auto) { return expression; }));                \
  }
FOREACH_PAIR(aclnnForeachMulList, x * y)
FOREACH_PAIR(aclnnForeachDivList, x / y)
FOREACH_PAIR(aclnnForeachPowList, power(x, y))
FOREACH_PAIR(aclnnForeachMaximumList, maximum(x, y))
FOREACH_PAIR(aclnnForeachMinimumList, minimum(x, y))

#define FOREACH_ALPHA(Name, expression)                                                                                  \
  static Work foreach_##Name(const aclTensorList* out, const aclTensorList* a, const aclTensorList* b, const Factor& f) { \
    return each_pair(out, a, b, f, [](auto x, auto y, auto k) { return expression; });                                   \
  }                                                                                                                      \
  ACLNN(aclnnForeach##Name, const aclTensorList* self, const aclTensorList* other, const aclTensor* alpha,               \
        const aclTensorList* out) {                                                                                      \
    return PLAN(foreach_##Name(out, self, other, Factor::of(alpha)));                                                    \
  }                                                                                                                      \
  ACLNN(aclnnForeach##Name##V2, const aclTensorList* self, const aclTensorList* other, const aclScalar* alpha,           \
        const aclTensorList* out) {                                                                                      \
    return PLAN(foreach_##Name(out, self, other, Factor::of(alpha)));                                                    \
  }
FOREACH_ALPHA(AddList, x + k * y)
FOREACH_ALPHA(SubList, x - k * y)

ACLNN(aclnnForeachLerpScalar, const aclTensorList* self, const aclTensorList* end, const aclScalar* weight, const aclTensorList* out) {
  return PLAN(each_pair(out, self, end, Factor::of(weight), [](auto x, auto y, auto w) {
    return std::abs(static_cast<double>(w)) < 0.5 ? x + w * (y - x) : y - (y - x) * (1 - w);
  }));
}

// ---- foreach with three lists

#define FOREACH_TRIPLE(Name, expression)                                                                                 \
  static Work foreach_##Name(const aclTensorList* out, const aclTensorList* a, const aclTensorList* b,                   \
                             const aclTensorList* c, const Factor& f) {                                                  \
    return each_triple(out, a, b, c, f, [](auto x, auto y, auto z, auto k) { return expression; });                      \
  }                                                                                                                      \
  ACLNN(aclnnForeach##Name##Scalar, const aclTensorList* self, const aclTensorList* a, const aclTensorList* b,           \
        const aclTensor* value, const aclTensorList* out) {                                                              \
    return PLAN(foreach_##Name(out, self, a, b, Factor::of(value)));                                                     \
  }                                                                                                                      \
  ACLNN(aclnnForeach##Name##ScalarV2, const aclTensorList* self, const aclTensorList* a, const aclTensorList* b,         \
        const aclScalar* value, const aclTensorList* out) {                                                              \
    return PLAN(foreach_##Name(out, self, a, b, Factor::of(value)));                                                     \
  }
FOREACH_TRIPLE(Addcmul, x + k * y * z)
FOREACH_TRIPLE(Addcdiv, x + k * y / z)

// ---- scaling of gradients

ACLNN(aclnnForeachNonFiniteCheckAndUnscale, const aclTensorList* grads, const aclTensor* found, const aclTensor* scale) {
  return PLAN([g = views(grads), f = view(found), s = view(scale)] {
    const double factor = read<double>(s);
    for (const View& grad : g)
      map_floating(grad, [&](auto x) {
        if (!std::isfinite(x)) write<double>(f, 1);
        return static_cast<decltype(x)>(x * factor);
      }, grad);
  });
}

ACLNN(aclnnAmpUpdateScale, const aclTensor* scale, const aclTensor* tracker, const aclTensor* found, double growth, double backoff,
      int64_t interval, const aclTensor* new_scale, const aclTensor* new_tracker) {
  return PLAN([=, s = view(scale), t = view(tracker), f = view(found), to_scale = view(new_scale), to_tracker = view(new_tracker)] {
    const double old = read<double>(s), larger = static_cast<float>(old * growth);
    const int64_t good = read<double>(f) ? 0 : read<int64_t>(t) + 1;
    const bool grows = good == interval;
    write<double>(to_scale, good == 0 ? old * backoff : grows && std::isfinite(larger) ? larger : old);
    write<int64_t>(to_tracker, grows ? 0 : good);
  });
}

// ---- whole steps

// `step` is what has been taken before this one.
ACLNN(aclnnApplyAdamWV2, const aclTensor* parameter, const aclTensor* mean, const aclTensor* square, const aclTensor* max_square,
      const aclTensor* grad, const aclTensor* step, float lr, float beta1, float beta2, float decay, float eps, bool amsgrad,
      bool maximize) {
  return PLAN([=, p = view(parameter), m = view(mean), v = view(square), top = view(max_square), g = view(grad), t = view(step)] {
    const double taken = read<double>(t) + 1;
    const double correction1 = 1 - std::pow(beta1, taken), correction2 = 1 - std::pow(beta2, taken);
    const double sign = maximize ? -1 : 1;
    map_floating(m, [=](auto x, auto y) { return x + (1 - beta1) * (sign * y - x); }, m, g);
    map_floating(v, [=](auto x, auto y) { return beta2 * x + (1 - beta2) * y * y; }, v, g);
    if (amsgrad) map_floating(top, [](auto x, auto y) { return std::max(x, y); }, top, v);
    map_floating(p, [=](auto x, auto first, auto second) {
      const double denominator = std::sqrt(second / correction2) + eps;
      return x * (1 - lr * decay) - lr / correction1 * first / denominator;
    }, p, m, amsgrad ? top : v);
  });
}
ACLNN(aclnnFusedSgd, const aclTensorList* parameters, const aclTensorList* grads, const aclTensorList* buffers,
      const aclTensor* grad_scale, float decay, float momentum, float lr, float dampening, bool nesterov, bool maximize,
      bool first_step) {
  return PLAN([=, p = views(parameters), g = views(grads), b = views(buffers), scale = view(grad_scale)] {
    const double unscale = scale.defined() ? 1 / read<double>(scale) : 1;
    for (size_t i = 0; i < p.size(); ++i) {
      auto gradient = [=](auto x, auto y) { return (maximize ? -1 : 1) * y * unscale + decay * x; };
      if (b.empty()) {
        map_floating(p[i], [=](auto x, auto y) { return x - lr * gradient(x, y); }, p[i], g[i]);
        continue;
      }
      map_floating(b[i], [=](auto buffer, auto x, auto y) {
        return first_step ? gradient(x, y) : momentum * buffer + (1 - dampening) * gradient(x, y);
      }, b[i], p[i], g[i]);
      map_floating(p[i], [=](auto x, auto y, auto buffer) {
        return x - lr * (nesterov ? gradient(x, y) + momentum * buffer : buffer);
      }, p[i], g[i], b[i]);
    }
  });
}
