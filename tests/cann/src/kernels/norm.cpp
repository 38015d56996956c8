// Normalization: layer, RMS, batch and group norm, forward and backward.
#include "lanes.h"

using namespace emu;

namespace {

// The last `count` dimensions.
std::vector<int> last_dims(const View& view, int count) {
  std::vector<int> dims;
  for (int d = view.dims() - count; d < view.dims(); ++d) dims.push_back(d);
  return dims;
}

template <class C>
std::vector<C> optional_dense(const View& view, int64_t size, C otherwise) {
  return view.defined() ? dense<C>(view) : std::vector<C>(size, otherwise);
}

template <class C>
void optional_assign(const View& view, const std::vector<C>& values) {
  if (view.defined() && view.data) assign(view, values);
}

struct Moments {
  double mean, rstd;
};
template <class C>
Moments moments(const C* x, int64_t size, double eps) {
  double total = 0, squares = 0;
  for (int64_t i = 0; i < size; ++i) total += x[i];
  const double mean = total / size;
  for (int64_t i = 0; i < size; ++i) squares += (x[i] - mean) * (x[i] - mean);
  return {mean, 1 / std::sqrt(squares / size + eps)};
}

// ---- layer norm: x is rows of `size` elements

void layer_norm(const View& x, int size_dims, const View& weight, const View& bias, double eps, const View& out,
                const View& mean, const View& rstd) {
  compute_floating({&x}, [&](auto zero) {
    using C = decltype(zero);
    const int64_t size = extent(x, last_dims(x, size_dims)), rows = size ? x.count() / size : 0;
    const auto input = dense<C>(x), w = optional_dense<C>(weight, size, 1), b = optional_dense<C>(bias, size, 0);
    std::vector<C> result(input.size()), means(rows), rstds(rows);
    for (int64_t r = 0; r < rows; ++r) {
      const Moments m = moments(&input[r * size], size, eps);
      means[r] = static_cast<C>(m.mean);
      rstds[r] = static_cast<C>(m.rstd);
      for (int64_t i = 0; i < size; ++i)
        result[r * size + i] = static_cast<C>((input[r * size + i] - m.mean) * m.rstd * w[i] + b[i]);
    }
    assign(out, result);
    optional_assign(mean, means);
    optional_assign(rstd, rstds);
  });
}

void layer_norm_grad(const View& grad, const View& x, int size_dims, const View& mean, const View& rstd,
                     const View& weight, const View& grad_x, const View& grad_weight, const View& grad_bias) {
  compute_floating({&x}, [&](auto zero) {
    using C = decltype(zero);
    const int64_t size = extent(x, last_dims(x, size_dims)), rows = size ? x.count() / size : 0;
    const auto g = dense<C>(grad), input = dense<C>(x), w = optional_dense<C>(weight, size, 1);
    const auto means = dense<C>(mean), rstds = dense<C>(rstd);
    std::vector<C> gx(input.size());
    std::vector<double> gw(size), gb(size);
    for (int64_t r = 0; r < rows; ++r) {
      double sum_g = 0, sum_gx = 0;
      for (int64_t i = 0; i < size; ++i) {
        const double hat = (input[r * size + i] - means[r]) * rstds[r], gi = g[r * size + i];
        gw[i] += gi * hat;
        gb[i] += gi;
        sum_g += gi * w[i];
        sum_gx += gi * w[i] * hat;
      }
      for (int64_t i = 0; i < size; ++i) {
        const double hat = (input[r * size + i] - means[r]) * rstds[r];
        gx[r * size + i] = static_cast<C>(rstds[r] * (g[r * size + i] * w[i] - (sum_g + hat * sum_gx) / size));
      }
    }
    optional_assign(grad_x, gx);
    optional_assign(grad_weight, gw);
    optional_assign(grad_bias, gb);
  });
}

// ---- rms norm

void rms_norm(const View& x, const View& gamma, double eps, const View& out, const View& rstd) {
  compute_floating({&x}, [&](auto zero) {
    using C = decltype(zero);
    const auto input = dense<C>(x), w = dense<C>(gamma);
    const int64_t size = static_cast<int64_t>(w.size()), rows = x.count() / size;
    std::vector<C> result(input.size()), rstds(rows);
    for (int64_t r = 0; r < rows; ++r) {
      double squares = 0;
      for (int64_t i = 0; i < size; ++i) squares += static_cast<double>(input[r * size + i]) * input[r * size + i];
      const double scale = 1 / std::sqrt(squares / size + eps);
      rstds[r] = static_cast<C>(scale);
      for (int64_t i = 0; i < size; ++i) result[r * size + i] = static_cast<C>(input[r * size + i] * scale * w[i]);
    }
    assign(out, result);
    optional_assign(rstd, rstds);
  });
}

// ---- batch norm: lanes are channels (dimension 1)

std::vector<int> all_but_channel(const View& x) {
  std::vector<int> dims;
  for (int d = 0; d < x.dims(); ++d)
    if (d != 1) dims.push_back(d);
  return dims;
}

// Assigns values given channel by channel, as each_lane visits them.
template <class C>
void assign_channels(const View& out, const std::vector<C>& values) {
  assign(out.move_last(all_but_channel(out)), values);
}

void batch_norm(const View& x, const View& weight, const View& bias, const View& running_mean, const View& running_var,
                bool training, double momentum, double eps, const View& out, const View& save_mean, const View& save_rstd) {
  compute_floating({&x, &out}, [&](auto zero) {
    using C = decltype(zero);
    const int64_t channels = x.shape[1], size = channels ? x.count() / channels : 0;
    const auto w = optional_dense<C>(weight, channels, 1), b = optional_dense<C>(bias, channels, 0);
    auto mean = optional_dense<C>(running_mean, channels, 0), var = optional_dense<C>(running_var, channels, 1);
    std::vector<C> result(x.count()), means(channels), rstds(channels);
    each_lane<C>(x, all_but_channel(x), [&](const C* lane, int64_t c) {
      Moments m{mean[c], 1 / std::sqrt(var[c] + eps)};
      if (training) {
        m = moments(lane, size, eps);
        const double biased = 1 / (m.rstd * m.rstd) - eps;
        mean[c] = static_cast<C>((1 - momentum) * mean[c] + momentum * m.mean);
        var[c] = static_cast<C>((1 - momentum) * var[c] + momentum * biased * size / std::max<int64_t>(size - 1, 1));
      }
      means[c] = static_cast<C>(m.mean);
      rstds[c] = static_cast<C>(m.rstd);
      for (int64_t i = 0; i < size; ++i) result[c * size + i] = static_cast<C>((lane[i] - m.mean) * m.rstd * w[c] + b[c]);
    });
    assign_channels(out, result);
    if (!training) return;
    optional_assign(save_mean, means);
    optional_assign(save_rstd, rstds);
    optional_assign(running_mean, mean);
    optional_assign(running_var, var);
  });
}

void batch_norm_grad(const View& grad, const View& x, const View& weight, const View& running_mean, const View& running_var,
                     const View& save_mean, const View& save_rstd, bool training, double eps, const View& grad_x,
                     const View& grad_weight, const View& grad_bias) {
  compute_floating({&x, &grad}, [&](auto zero) {
    using C = decltype(zero);
    const int64_t channels = x.shape[1], size = channels ? x.count() / channels : 0;
    const auto w = optional_dense<C>(weight, channels, 1);
    const auto g = dense<C>(grad.move_last(all_but_channel(grad)));
    const auto mean = dense<C>(training ? save_mean : running_mean), spread = dense<C>(training ? save_rstd : running_var);
    std::vector<C> gx(x.count()), gw(channels), gb(channels);
    each_lane<C>(x, all_but_channel(x), [&](const C* lane, int64_t c) {
      const double rstd = training ? spread[c] : 1 / std::sqrt(spread[c] + eps);
      double sum_g = 0, sum_gx = 0;
      for (int64_t i = 0; i < size; ++i) {
        sum_g += g[c * size + i];
        sum_gx += g[c * size + i] * (lane[i] - mean[c]) * rstd;
      }
      gw[c] = static_cast<C>(sum_gx);
      gb[c] = static_cast<C>(sum_g);
      for (int64_t i = 0; i < size; ++i) {
        const double hat = (lane[i] - mean[c]) * rstd;
        const double centred = training ? g[c * size + i] - (sum_g + hat * sum_gx) / size : g[c * size + i];
        gx[c * size + i] = static_cast<C>(centred * rstd * w[c]);
      }
    });
    if (grad_x.defined() && grad_x.data) assign_channels(grad_x, gx);
    optional_assign(grad_weight, gw);
    optional_assign(grad_bias, gb);
  });
}

}  // namespace

#define LAYER_NORM(name)                                                                                             \
  ACLNN(name, const aclTensor* self, const aclIntArray* shape, const aclTensor* weight, const aclTensor* bias,       \
        double eps, const aclTensor* out, const aclTensor* mean, const aclTensor* rstd) {                            \
    return PLAN([=, x = view(self), w = view(weight), b = view(bias), o = view(out), m = view(mean), r = view(rstd), \
                 dims = static_cast<int>(values(shape).size())] { layer_norm(x, dims, w, b, eps, o, m, r); });       \
  }
LAYER_NORM(aclnnLayerNorm)
LAYER_NORM(aclnnFastLayerNorm)

ACLNN(aclnnLayerNormBackward, const aclTensor* grad, const aclTensor* self, const aclIntArray* shape, const aclTensor* mean,
      const aclTensor* rstd, const aclTensor* weight, const aclTensor*, const aclBoolArray*, const aclTensor* grad_x,
      const aclTensor* grad_weight, const aclTensor* grad_bias) {
  return PLAN([g = view(grad), x = view(self), dims = static_cast<int>(values(shape).size()), m = view(mean), r = view(rstd),
               w = view(weight), gx = view(grad_x), gw = view(grad_weight), gb = view(grad_bias)] {
    layer_norm_grad(g, x, dims, m, r, w, gx, gw, gb);
  });
}

ACLNN(aclnnRmsNorm, const aclTensor* self, const aclTensor* gamma, double eps, const aclTensor* out, const aclTensor* rstd) {
  return PLAN([=, x = view(self), w = view(gamma), o = view(out), r = view(rstd)] { rms_norm(x, w, eps, o, r); });
}
// Adds first; the sum is the third result.
ACLNN(aclnnAddRmsNorm, const aclTensor* self, const aclTensor* other, const aclTensor* gamma, double eps, const aclTensor* out,
      const aclTensor* rstd, const aclTensor* sum) {
  return PLAN([=, x = view(self), y = view(other), w = view(gamma), o = view(out), r = view(rstd), s = view(sum)] {
    map(s, [](auto a, auto b) { return a + b; }, x, y);
    rms_norm(s, w, eps, o, r);
  });
}
ACLNN(aclnnRmsNormGrad, const aclTensor* grad, const aclTensor* self, const aclTensor* rstd, const aclTensor* gamma,
      const aclTensor* grad_x, const aclTensor* grad_gamma) {
  return PLAN([g = view(grad), x = view(self), r = view(rstd), w = view(gamma), gx = view(grad_x), gw = view(grad_gamma)] {
    compute_floating({&x}, [&](auto zero) {
      using C = decltype(zero);
      const auto grads = dense<C>(g), input = dense<C>(x), scale = dense<C>(r), weight = dense<C>(w);
      const int64_t size = static_cast<int64_t>(weight.size()), rows = x.count() / size;
      std::vector<C> dx(input.size());
      std::vector<double> dw(size);
      for (int64_t row = 0; row < rows; ++row) {
        double total = 0;
        for (int64_t i = 0; i < size; ++i) {
          const double gi = grads[row * size + i], hat = input[row * size + i] * scale[row];
          dw[i] += gi * hat;
          total += gi * weight[i] * hat;
        }
        for (int64_t i = 0; i < size; ++i) {
          const double hat = input[row * size + i] * scale[row];
          dx[row * size + i] = static_cast<C>(scale[row] * (grads[row * size + i] * weight[i] - hat * total / size));
        }
      }
      assign(gx, dx);
      assign(gw, dw);
    });
  });
}

ACLNN(aclnnBatchNorm, const aclTensor* self, const aclTensor* weight, const aclTensor* bias, const aclTensor* running_mean,
      const aclTensor* running_var, bool training, double momentum, double eps, const aclTensor* out,
      const aclTensor* save_mean, const aclTensor* save_rstd) {
  return PLAN([=, x = view(self), w = view(weight), b = view(bias), rm = view(running_mean), rv = view(running_var),
               o = view(out), sm = view(save_mean), sr = view(save_rstd)] {
    batch_norm(x, w, b, rm, rv, training, momentum, eps, o, sm, sr);
  });
}
ACLNN(aclnnBatchNormBackward, const aclTensor* grad, const aclTensor* self, const aclTensor* weight,
      const aclTensor* running_mean, const aclTensor* running_var, const aclTensor* save_mean, const aclTensor* save_rstd,
      bool training, double eps, const aclBoolArray*, const aclTensor* grad_x, const aclTensor* grad_weight,
      const aclTensor* grad_bias) {
  return PLAN([=, g = view(grad), x = view(self), w = view(weight), rm = view(running_mean), rv = view(running_var),
               sm = view(save_mean), sr = view(save_rstd), gx = view(grad_x), gw = view(grad_weight), gb = view(grad_bias)] {
    batch_norm_grad(g, x, w, rm, rv, sm, sr, training, eps, gx, gw, gb);
  });
}
ACLNN(aclnnGroupNorm, const aclTensor* self, const aclTensor* weight, const aclTensor* bias, int64_t n, int64_t c, int64_t hw,
      int64_t groups, double eps, const aclTensor* out, const aclTensor* mean, const aclTensor* rstd) {
  return PLAN([=, x = view(self), w = view(weight), b = view(bias), o = view(out), m = view(mean), r = view(rstd)] {
    compute_floating({&x}, [&](auto zero) {
      using C = decltype(zero);
      const auto input = dense<C>(x), gamma = optional_dense<C>(w, c, 1), beta = optional_dense<C>(b, c, 0);
      const int64_t size = c / groups * hw;
      std::vector<C> result(input.size()), means(n * groups), rstds(n * groups);
      for (int64_t row = 0; row < n * groups; ++row) {
        const Moments moment = moments(&input[row * size], size, eps);
        means[row] = static_cast<C>(moment.mean);
        rstds[row] = static_cast<C>(moment.rstd);
        for (int64_t i = 0; i < size; ++i) {
          const int64_t channel = row % groups * (c / groups) + i / hw;
          result[row * size + i] = static_cast<C>((input[row * size + i] - moment.mean) * moment.rstd * gamma[channel] + beta[channel]);
        }
      }
      assign(o, result);
      optional_assign(m, means);
      optional_assign(r, rstds);
    });
  });
}
