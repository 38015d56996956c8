// Losses and their gradients.
#include "kernel.h"

using namespace emu;

namespace {

enum Reduction { kNone = 0, kMean = 1, kSum = 2 };

// out = f(inputs...) elementwise, then reduced as the loss asks.
template <class F>
Work elementwise_loss(const View& out, const View& input, const View& target, int64_t reduction, F f) {
  return [=] {
    if (reduction == kNone) return map_floating(out, f, input, target);
    const View wanted = target.expand(input.shape);
    const auto x = dense<double>(input), y = dense<double>(wanted);
    double total = 0;
    for (size_t i = 0; i < x.size(); ++i) total += f(x[i], y[i]);
    fill(out, reduction == kMean ? total / static_cast<double>(x.size()) : total);
  };
}
// out = grad * f(inputs...), divided by the count for a mean.
template <class F>
Work elementwise_loss_grad(const View& out, const View& grad, const View& input, const View& target, int64_t reduction, F f) {
  return [=] {
    const double scale = reduction == kMean ? 1.0 / static_cast<double>(input.count()) : 1.0;
    map_floating(out, [=](auto g, auto x, auto y) { return scale * g * f(x, y); }, grad, input, target);
  };
}

constexpr auto square = [](auto x, auto y) { return (x - y) * (x - y); };
constexpr auto square_grad = [](auto x, auto y) { return 2 * (x - y); };
constexpr auto distance = [](auto x, auto y) { return std::fabs(static_cast<double>(x - y)); };
constexpr auto distance_grad = [](auto x, auto y) { return (x > y) - (x < y); };

}  // namespace

ACLNN(aclnnMseLoss, const aclTensor* self, const aclTensor* target, int64_t reduction, const aclTensor* out) {
  return PLAN(elementwise_loss(view(out), view(self), view(target), reduction, square));
}
ACLNN(aclnnMseLossBackward, const aclTensor* grad, const aclTensor* self, const aclTensor* target, int64_t reduction, const aclTensor* out) {
  return PLAN(elementwise_loss_grad(view(out), view(grad), view(self), view(target), reduction, square_grad));
}
ACLNN(aclnnL1Loss, const aclTensor* self, const aclTensor* target, int64_t reduction, const aclTensor* out) {
  return PLAN(elementwise_loss(view(out), view(self), view(target), reduction, distance));
}
ACLNN(aclnnL1LossBackward, const aclTensor* grad, const aclTensor* self, const aclTensor* target, int64_t reduction, const aclTensor* out) {
  return PLAN(elementwise_loss_grad(view(out), view(grad), view(self), view(target), reduction, distance_grad));
}
ACLNN(aclnnSmoothL1Loss, const aclTensor* self, const aclTensor* target, int64_t reduction, float beta, const aclTensor* out) {
  return PLAN(elementwise_loss(view(out), view(self), view(target), reduction, [beta](auto x, auto y) {
    const double d = std::fabs(static_cast<double>(x - y));
    return d < beta ? 0.5 * d * d / beta : d - 0.5 * beta;
  }));
}
ACLNN(aclnnSmoothL1LossBackward, const aclTensor* grad, const aclTensor* self, const aclTensor* target, int64_t reduction, float beta,
      const aclTensor* out) {
  return PLAN(elementwise_loss_grad(view(out), view(grad), view(self), view(target), reduction, [beta](auto x, auto y) {
    const double d = static_cast<double>(x - y);
    return std::fabs(d) < beta ? d / beta : static_cast<double>((d > 0) - (d < 0));
  }));
}

// ---- negative log likelihood: self [N, C], or [C] with one target; NLLLoss2d has [N, C, H, W]

namespace {

struct Nll {
  View self, target, weight;  // self with the classes last, target without them
  int64_t ignore_index;
  void check() const {
    Dims rows = self.shape;
    rows.pop_back();
    if (rows != target.shape) reject("labels of shape " + text(target.shape) + " for " + text(rows) + " rows");
    if (weight.defined() && weight.count() != self.shape.back())
      reject("weights of shape " + text(weight.shape) + " for " + std::to_string(self.shape.back()) + " classes");
  }
  // Weight of row i, 0 when it is ignored.
  double weight_of(int64_t label) const {
    if (label == ignore_index) return 0;
    if (label < 0 || label >= self.shape.back())
      throw Failure{ACL_ERROR_INVALID_PARAM, "target " + std::to_string(label) + " is not one of " + std::to_string(self.shape.back()) + " classes"};
    return weight.defined() ? read<double>(weight.dtype, weight.at({label})) : 1;
  }
};

View classes_last(const View& view) { return view.dims() == 1 ? view.unsqueeze(0) : view.move_last({1}); }

Nll nll(const aclTensor* self, const aclTensor* target, const aclTensor* weight, int64_t ignore_index) {
  const View t = view(target);
  return {classes_last(view(self)), t.dims() ? t : t.unsqueeze(0), view(weight), ignore_index};
}

Work nll_loss(const Nll& loss, int64_t reduction, const View& out, const View& total_weight) {
  return [=] {
    loss.check();
    const auto x = dense<double>(loss.self);
    const auto labels = dense<int64_t>(loss.target);
    const int64_t classes = loss.self.shape.back();
    Values<double> each(labels.size());
    double total = 0, weights = 0;
    for (size_t i = 0; i < labels.size(); ++i) {
      const double w = loss.weight_of(labels[i]);
      each[i] = w ? -w * x[i * classes + labels[i]] : 0;
      total += each[i];
      weights += w;
    }
    if (reduction == kNone) assign(out, each);
    else fill(out, reduction == kMean ? total / weights : total);
    fill(total_weight, weights);
  };
}

Work nll_loss_grad(const Nll& loss, int64_t reduction, const View& grad, const View& total_weight, const View& grad_input) {
  return [=] {
    loss.check();
    const auto labels = dense<int64_t>(loss.target);
    const auto g = dense<double>(grad);
    const double scale = reduction == kMean ? 1 / read<double>(total_weight) : 1;
    const int64_t classes = loss.self.shape.back();
    Values<double> result(loss.self.count());
    for (size_t i = 0; i < labels.size(); ++i) {
      const double w = loss.weight_of(labels[i]);
      if (w) result[i * classes + labels[i]] = -w * scale * g[reduction == kNone ? i : 0];
    }
    assign(classes_last(grad_input), result);
  };
}

}  // namespace

#define NLL(forward, backward)                                                                                          \
  ACLNN(forward, const aclTensor* self, const aclTensor* target, const aclTensor* weight, int64_t reduction,            \
        int64_t ignore_index, const aclTensor* out, const aclTensor* total_weight) {                                    \
    return PLAN(nll_loss(nll(self, target, weight, ignore_index), reduction, view(out), view(total_weight)));           \
  }                                                                                                                     \
  ACLNN(backward, const aclTensor* grad, const aclTensor* self, const aclTensor* target, const aclTensor* weight,       \
        int64_t reduction, int64_t ignore_index, const aclTensor* total_weight, const aclTensor* grad_input) {          \
    return PLAN(nll_loss_grad(nll(self, target, weight, ignore_index), reduction, view(grad), view(total_weight),       \
                              view(grad_input)));                                                                       \
  }
NLL(aclnnNLLLoss, aclnnNLLLossBackward)
NLL(aclnnNLLLoss2d, aclnnNLLLoss2dBackward)

// ---- binary cross entropy

namespace {
constexpr auto bce = [](auto x, auto y) {
  return -(y * std::max(std::log(static_cast<double>(x)), -100.0) + (1 - y) * std::max(std::log1p(static_cast<double>(-x)), -100.0));
};
constexpr auto bce_grad = [](auto x, auto y) { return (x - y) / std::max(static_cast<double>((1 - x) * x), 1e-12); };
}  // namespace
ACLNN(aclnnBinaryCrossEntropy, const aclTensor* self, const aclTensor* target, const aclTensor* weight, int64_t reduction,
      const aclTensor* out) {
  if (weight) return REFUSE("weights are not emulated");
  return PLAN(elementwise_loss(view(out), view(self), view(target), reduction, bce));
}
ACLNN(aclnnBinaryCrossEntropyBackward, const aclTensor* grad, const aclTensor* self, const aclTensor* target, const aclTensor* weight,
      int64_t reduction, const aclTensor* out) {
  if (weight) return REFUSE("weights are not emulated");
  return PLAN(elementwise_loss_grad(view(out), view(grad), view(self), view(target), reduction, bce_grad));
}
ACLNN(aclnnBinaryCrossEntropyWithLogits, const aclTensor* self, const aclTensor* target, const aclTensor* weight,
      const aclTensor* pos_weight, int64_t reduction, const aclTensor* out) {
  // torch_npu passes ones for absent weights, so only their values can tell; they are applied.
  return PLAN([=, x = view(self), y = view(target), w = view(weight), p = view(pos_weight), o = view(out)] {
    const auto input = dense<double>(x), label = dense<double>(y.expand(x.shape));
    const auto scale = w.defined() ? dense<double>(w.expand(x.shape)) : Values<double>(input.size(), 1);
    const auto positive = p.defined() ? dense<double>(p.expand(x.shape)) : Values<double>(input.size(), 1);
    Values<double> each(input.size());
    double total = 0;
    for (size_t i = 0; i < each.size(); ++i) {
      const double v = input[i], softplus = std::max(-v, 0.0) + std::log1p(std::exp(-std::fabs(v)));
      each[i] = scale[i] * ((1 - label[i]) * v + (1 + (positive[i] - 1) * label[i]) * softplus);
      total += each[i];
    }
    if (reduction == kNone) assign(o, each);
    else fill(o, reduction == kMean ? total / static_cast<double>(each.size()) : total);
  });
}
