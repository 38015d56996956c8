// Activations, gated units, softmax, and their gradients.
#include "lanes.h"

using namespace emu;

namespace {

constexpr double kInvSqrt2 = 0.70710678118654752440, kSqrt2OverPi = 0.79788456080286535588, kTanhCubic = 0.044715;

constexpr auto sigmoid = [](auto x) { return 1 / (1 + std::exp(-x)); };
constexpr auto silu = [](auto x) { return x / (1 + std::exp(-x)); };
constexpr auto silu_grad = [](auto g, auto x) {
  const auto s = sigmoid(x);
  return g * s * (1 + x * (1 - s));
};
constexpr auto gelu_erf = [](auto x) { return x * 0.5 * (1 + std::erf(x * kInvSqrt2)); };
constexpr auto gelu_erf_grad = [](auto g, auto x) {
  const double density = std::exp(-0.5 * x * x) * kSqrt2OverPi * 0.5;
  return g * (0.5 * (1 + std::erf(x * kInvSqrt2)) + x * density);
};
constexpr auto gelu_tanh = [](auto x) { return 0.5 * x * (1 + std::tanh(kSqrt2OverPi * (x + kTanhCubic * x * x * x))); };
constexpr auto gelu_tanh_grad = [](auto g, auto x) {
  const double t = std::tanh(kSqrt2OverPi * (x + kTanhCubic * x * x * x));
  return g * (0.5 * (1 + t) + 0.5 * x * (1 - t * t) * kSqrt2OverPi * (1 + 3 * kTanhCubic * x * x));
};
constexpr auto softplus = [](auto x, double beta, double threshold) {
  return x * beta > threshold ? static_cast<double>(x) : std::log1p(std::exp(x * beta)) / beta;
};

template <class F>
Work unary(const aclTensor* out, const aclTensor* in, F f) {
  return [o = view(out), a = view(in), f] { map_floating(o, f, a); };
}
template <class F>
Work binary(const aclTensor* out, const aclTensor* first, const aclTensor* second, F f) {
  return [o = view(out), a = view(first), b = view(second), f] { map_floating(o, f, a, b); };
}

}  // namespace

#define ACTIVATION(Name, f)                                                                           \
  static Work do_##Name(const aclTensor* out, const aclTensor* in) { return unary(out, in, f); }      \
  ACLNN(aclnn##Name, const aclTensor* self, const aclTensor* out) { return PLAN(do_##Name(out, self)); } \
  ACLNN(aclnnInplace##Name, const aclTensor* self) { return PLAN(do_##Name(self, self)); }
ACTIVATION(Sigmoid, sigmoid)
ACTIVATION(Silu, silu)
ACTIVATION(Tanh, [](auto x) { return std::tanh(x); })
ACTIVATION(Hardsigmoid, [](auto x) { return std::clamp<double>(x + 3.0, 0, 6) / 6; })
ACTIVATION(Hardswish, [](auto x) { return x * std::clamp<double>(x + 3.0, 0, 6) / 6; })
ACTIVATION(Mish, [](auto x) { return x * std::tanh(softplus(x, 1, 20)); })

// Relu of integers stays an integer.
ACLNN(aclnnRelu, const aclTensor* self, const aclTensor* out) {
  return PLAN([a = view(self), o = view(out)] { map(o, [](auto x) { return x < 0 ? 0 : x; }, a); });
}
ACLNN(aclnnInplaceRelu, const aclTensor* self) {
  return PLAN([a = view(self)] { map(a, [](auto x) { return x < 0 ? 0 : x; }, a); });
}

ACLNN(aclnnGelu, const aclTensor* self, const aclTensor* out) { return PLAN(unary(out, self, gelu_erf)); }
ACLNN(aclnnGeluV2, const aclTensor* self, int64_t tanh, const aclTensor* out) {
  return PLAN(tanh ? unary(out, self, gelu_tanh) : unary(out, self, gelu_erf));
}
ACLNN(aclnnGeluBackward, const aclTensor* grad, const aclTensor* self, const aclTensor* out) {
  return PLAN(binary(out, grad, self, gelu_erf_grad));
}
ACLNN(aclnnGeluBackwardV2, const aclTensor* grad, const aclTensor* self, const char* approximate, const aclTensor* out) {
  const bool tanh = std::string(approximate) == "tanh";
  return PLAN(tanh ? binary(out, grad, self, gelu_tanh_grad) : binary(out, grad, self, gelu_erf_grad));
}
ACLNN(aclnnFastGelu, const aclTensor* self, const aclTensor* out) {
  return PLAN(unary(out, self, [](auto x) { return x / (1 + std::exp(-1.702 * x)); }));
}

ACLNN(aclnnSigmoidBackward, const aclTensor* grad, const aclTensor* output, const aclTensor* out) {
  return PLAN(binary(out, grad, output, [](auto g, auto y) { return g * y * (1 - y); }));
}
ACLNN(aclnnTanhBackward, const aclTensor* grad, const aclTensor* output, const aclTensor* out) {
  return PLAN(binary(out, grad, output, [](auto g, auto y) { return g * (1 - y * y); }));
}
ACLNN(aclnnSiluBackward, const aclTensor* grad, const aclTensor* self, const aclTensor* out) {
  return PLAN(binary(out, grad, self, silu_grad));
}
ACLNN(aclnnThresholdBackward, const aclTensor* grad, const aclTensor* self, const aclScalar* threshold, const aclTensor* out) {
  return PLAN(binary(out, grad, self, [t = threshold->number()](auto g, auto x) { return x <= t ? 0 : g; }));
}
ACLNN(aclnnThreshold, const aclTensor* self, const aclScalar* threshold, const aclScalar* value, const aclTensor* out) {
  return PLAN([t = threshold->number(), v = value->number(), a = view(self), o = view(out)] {
    map(o, [=](auto x) { return x <= t ? static_cast<decltype(x)>(v) : x; }, a);
  });
}
ACLNN(aclnnHardtanhBackward, const aclTensor* grad, const aclTensor* self, const aclScalar* low, const aclScalar* high,
      const aclTensor* out) {
  return PLAN(binary(out, grad, self, [l = low->number(), h = high->number()](auto g, auto x) { return x <= l || x >= h ? 0 : g; }));
}
ACLNN(aclnnHardswishBackward, const aclTensor* grad, const aclTensor* self, const aclTensor* out) {
  return PLAN(binary(out, grad, self, [](auto g, auto x) { return x < -3 ? 0.0 : x <= 3 ? g * (x / 3.0 + 0.5) : g; }));
}
ACLNN(aclnnHardsigmoidBackward, const aclTensor* grad, const aclTensor* self, const aclTensor* out) {
  return PLAN(binary(out, grad, self, [](auto g, auto x) { return x > -3 && x < 3 ? g / 6.0 : 0.0; }));
}
ACLNN(aclnnLeakyRelu, const aclTensor* self, const aclScalar* slope, const aclTensor* out) {
  return PLAN(unary(out, self, [s = slope->number()](auto x) { return x > 0 ? x : x * s; }));
}
ACLNN(aclnnInplaceLeakyRelu, const aclTensor* self, const aclScalar* slope) {
  return PLAN(unary(self, self, [s = slope->number()](auto x) { return x > 0 ? x : x * s; }));
}
ACLNN(aclnnLeakyReluBackward, const aclTensor* grad, const aclTensor* self, const aclScalar* slope, bool, const aclTensor* out) {
  return PLAN(binary(out, grad, self, [s = slope->number()](auto g, auto x) { return x > 0 ? g : g * s; }));
}
ACLNN(aclnnElu, const aclTensor* self, const aclScalar* alpha, const aclScalar* scale, const aclScalar* input_scale,
      const aclTensor* out) {
  return PLAN(unary(out, self, [a = alpha->number(), s = scale->number(), i = input_scale->number()](auto x) {
    return x > 0 ? s * x : s * a * std::expm1(x * i);
  }));
}
ACLNN(aclnnEluBackward, const aclTensor* grad, const aclScalar* alpha, const aclScalar* scale, const aclScalar* input_scale,
      bool is_result, const aclTensor* self, const aclTensor* out) {
  return PLAN(binary(out, grad, self, [=, a = alpha->number(), s = scale->number(), i = input_scale->number()](auto g, auto x) {
    if (x > 0) return g * s;
    return is_result ? g * i * (x + s * a) : g * i * s * a * std::exp(x * i);
  }));
}
ACLNN(aclnnSoftplus, const aclTensor* self, const aclScalar* beta, const aclScalar* threshold, const aclTensor* out) {
  return PLAN(unary(out, self, [b = beta->number(), t = threshold->number()](auto x) { return softplus(x, b, t); }));
}
ACLNN(aclnnSoftplusBackward, const aclTensor* grad, const aclTensor* self, const aclScalar* beta, const aclScalar* threshold,
      const aclTensor* out) {
  return PLAN(binary(out, grad, self, [b = beta->number(), t = threshold->number()](auto g, auto x) {
    return x * b > t ? static_cast<double>(g) : g * sigmoid(x * b);
  }));
}
ACLNN(aclnnLogSigmoidForward, const aclTensor* self, const aclTensor* out, const aclTensor*) {
  return PLAN(unary(out, self, [](auto x) { return std::min<double>(x, 0) - std::log1p(std::exp(-std::fabs(x))); }));
}
ACLNN(aclnnLogSigmoid, const aclTensor* self, const aclTensor* out) {
  return PLAN(unary(out, self, [](auto x) { return std::min<double>(x, 0) - std::log1p(std::exp(-std::fabs(x))); }));
}
namespace {
// One weight for all, or one a channel, which is dimension 1.
View per_channel(View weight, const View& x) {
  if (weight.dims() == 1 && weight.shape[0] > 1)
    for (int d = 2; d < x.dims(); ++d) weight = weight.unsqueeze(weight.dims());
  return weight;
}
}  // namespace
ACLNN(aclnnPrelu, const aclTensor* self, const aclTensor* weight, const aclTensor* out) {
  return PLAN([a = view(self), w = view(weight), o = view(out)] {
    map_floating(o, [](auto x, auto y) { return x > 0 ? x : x * y; }, a, per_channel(w, a));
  });
}

// The weight has one element for all channels, or one for each.
ACLNN(aclnnPreluBackward, const aclTensor* grad, const aclTensor* self, const aclTensor* weight, const aclTensor* grad_self,
      const aclTensor* grad_weight) {
  return PLAN([g = view(grad), x = view(self), w = view(weight), gx = view(grad_self), gw = view(grad_weight)] {
    const View each = per_channel(w, x);
    map_floating(gx, [](auto d, auto a, auto b) { return a > 0 ? d : d * b; }, g, x, each);
    const auto input = dense<double>(x), grads = dense<double>(g.expand(x.shape));
    Values<double> total(w.count());
    const int64_t inner = x.dims() > 2 ? product({x.shape.begin() + 2, x.shape.end()}) : 1;
    for (size_t i = 0; i < input.size(); ++i)
      if (input[i] <= 0) total[w.count() == 1 ? 0 : static_cast<int64_t>(i) / inner % w.count()] += grads[i] * input[i];
    assign(gw, total);
  });
}
ACLNN(aclnnMishBackward, const aclTensor* grad, const aclTensor* self, const aclTensor* out) {
  return PLAN(binary(out, grad, self, [](auto g, auto x) {
    const double t = std::tanh(softplus(x, 1, 20));
    return g * (t + x * sigmoid(static_cast<double>(x)) * (1 - t * t));
  }));
}
ACLNN(aclnnLogSigmoidBackward, const aclTensor* grad, const aclTensor* self, const aclTensor*, const aclTensor* out) {
  return PLAN(binary(out, grad, self, [](auto g, auto x) { return g * sigmoid(-static_cast<double>(x)); }));
}

// ---- gated linear units: the input is split in two along one dimension

namespace {
struct Halves {
  View first, second;
};
Halves halves(const View& view, int64_t dim) {
  const int d = view.dim(dim);
  const int64_t size = view.shape[d] / 2;
  if (view.shape[d] % 2) reject("a tensor of shape " + text(view.shape) + " has no halves along dimension " + std::to_string(d));
  return {view.narrow(d, 0, size), view.narrow(d, size, size)};
}
}  // namespace
ACLNN(aclnnGlu, const aclTensor* self, int64_t dim, const aclTensor* out) {
  return PLAN([h = halves(view(self), dim), o = view(out)] {
    map_floating(o, [](auto x, auto y) { return x * sigmoid(y); }, h.first, h.second);
  });
}
ACLNN(aclnnGluBackward, const aclTensor* grad, const aclTensor* self, int64_t dim, const aclTensor* out) {
  return PLAN([g = view(grad), h = halves(view(self), dim), o = halves(view(out), dim)] {
    map_floating(o.first, [](auto d, auto y) { return d * sigmoid(y); }, g, h.second);
    map_floating(o.second, [](auto d, auto x, auto y) { return d * x * sigmoid(y) * (1 - sigmoid(y)); }, g, h.first, h.second);
  });
}
ACLNN(aclnnSwiGlu, const aclTensor* self, int64_t dim, const aclTensor* out) {
  return PLAN([h = halves(view(self), dim), o = view(out)] {
    map_floating(o, [](auto x, auto y) { return silu(x) * y; }, h.first, h.second);
  });
}
ACLNN(aclnnSwiGluGrad, const aclTensor* grad, const aclTensor* self, int64_t dim, const aclTensor* out) {
  return PLAN([g = view(grad), h = halves(view(self), dim), o = halves(view(out), dim)] {
    map_floating(o.first, [](auto d, auto x, auto y) { return silu_grad(d * y, x); }, g, h.first, h.second);
    map_floating(o.second, [](auto d, auto x) { return d * silu(x); }, g, h.first);
  });
}

// ---- softmax

namespace {
template <bool Log, class C>
void softmax_lane(const C* from, int64_t size, C* to) {
  const double top = *std::max_element(from, from + size);
  double total = 0;
  for (int64_t i = 0; i < size; ++i) total += std::exp(from[i] - top);
  for (int64_t i = 0; i < size; ++i)
    to[i] = static_cast<C>(Log ? from[i] - top - std::log(total) : std::exp(from[i] - top) / total);
}
template <bool Log>
Work softmax(const aclTensor* out, const aclTensor* in, int64_t dim) {
  return [=, a = at_least_1d(view(in)), o = at_least_1d(view(out))] {
    compute_floating({&o, &a}, [&](auto zero) {
      using C = decltype(zero);
      transform_lanes<C>(o, a, a.dim(dim), [](const C* from, int64_t size, C* to, int64_t) { softmax_lane<Log>(from, size, to); });
    });
  };
}
template <bool Log>
Work softmax_grad(const aclTensor* out, const aclTensor* grad, const aclTensor* output, int64_t dim) {
  return [=, g = at_least_1d(view(grad)), y = at_least_1d(view(output)), o = at_least_1d(view(out))] {
    compute_floating({&o, &g, &y}, [&](auto zero) {
      using C = decltype(zero);
      const std::vector<int> dims{y.dim(dim)};
      const auto grads = dense<C>(g.move_last(dims)), outputs = dense<C>(y.move_last(dims));
      Values<C> result(grads.size());
      const int64_t size = y.shape[dims[0]];
      for (size_t start = 0; start < result.size(); start += size) {
        double total = 0;
        for (int64_t i = 0; i < size; ++i) total += Log ? grads[start + i] : grads[start + i] * outputs[start + i];
        for (int64_t i = 0; i < size; ++i) {
          const double p = outputs[start + i];
          result[start + i] = static_cast<C>(Log ? grads[start + i] - std::exp(p) * total : p * (grads[start + i] - total));
        }
      }
      assign(o.move_last(dims), result);
    });
  };
}
}  // namespace
ACLNN(aclnnSoftmax, const aclTensor* self, int64_t dim, const aclTensor* out) { return PLAN(softmax<false>(out, self, dim)); }
ACLNN(aclnnLogSoftmax, const aclTensor* self, int64_t dim, const aclTensor* out) { return PLAN(softmax<true>(out, self, dim)); }
ACLNN(aclnnSoftmaxBackward, const aclTensor* grad, const aclTensor* output, int64_t dim, const aclTensor* out) {
  return PLAN(softmax_grad<false>(out, grad, output, dim));
}
ACLNN(aclnnLogSoftmaxBackward, const aclTensor* grad, const aclTensor* output, int64_t dim, const aclTensor* out) {
  return PLAN(softmax_grad<true>(out, grad, output, dim));
}
