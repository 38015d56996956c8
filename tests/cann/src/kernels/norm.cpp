// Normalization: layer, RMS, batch and group norm, forward and backward.
#include "lanes.h"

using namespace emu;

namespace {

// The elements of one row: the last dimensions of x, which must have that shape.
int64_t row_size(const View& x, const Dims& shape) {
  if (shape.size() > x.shape.size() || !std::equal(shape.rbegin(), shape.rend(), x.shape.rbegin()))
    reject("a tensor of shape " + text(x.shape) + " does not end with " + text(shape));
  return product(shape);
}

template <class C>
Values<C> optional_dense(const View& view, int64_t size, C otherwise) {
  return view.defined() ? dense<C>(view) : Values<C>(size, otherwise);
}
// Weights, biases and statistics hold one element for each of `size`.
void check_sizes(int64_t size, std::initializer_list<const View*> parameters) {
  for (const View* view : parameters)
    if (view->defined() && view->count() != size)
      reject("a parameter of shape " + text(view->shape) + " where " + std::to_string(size) + " elements are needed");
}

template <class C>
void optional_assign(const View& view, const Values<C>& values) {
  if (view.has_memory()) assign(view, values);
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

void layer_norm(const View& x, const Dims& shape, const View& weight, const View& bias, double eps, const View& out,
                const View& mean, const View& rstd) {
  const int64_t size = row_size(x, shape), rows = size ? x.count() / size : 0;
  check_sizes(size, {&weight, &bias});
  compute_floating({&x}, [&](auto zero) {
    using C = decltype(zero);
    const auto input = dense<C>(x), w = optional_dense<C>(weight, size, 1), b = optional_dense<C>(bias, size, 0);
    Values<C> result(input.size()), means(rows), rstds(rows);
    for (int64_t r = 0; r < rows; ++r) {
      const Moments m = moments(input.span(r * size, size), size, eps);
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

void layer_norm_grad(const View& grad, const View& x, const Dims& shape, const View& mean, const View& rstd,
                     const View& weight, const View& grad_x, const View& grad_weight, const View& grad_bias) {
  const int64_t size = row_size(x, shape), rows = size ? x.count() / size : 0;
  check_sizes(size, {&weight});
  check_sizes(rows, {&mean, &rstd});
  check_sizes(x.count(), {&grad});
  compute_floating({&x}, [&](auto zero) {
    using C = decltype(zero);
    const auto g = dense<C>(grad), input = dense<C>(x), w = optional_dense<C>(weight, size, 1);
    const auto means = dense<C>(mean), rstds = dense<C>(rstd);
    Values<C> gx(input.size());
    Values<double> gw(size), gb(size);
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
  const int64_t size = row_size(x, gamma.shape), rows = size ? x.count() / size : 0;
  compute_floating({&x}, [&](auto zero) {
    using C = decltype(zero);
    const auto input = dense<C>(x), w = dense<C>(gamma);
    Values<C> result(input.size()), rstds(rows);
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
void assign_channels(const View& out, const Values<C>& values) {
  assign(out.move_last(all_but_channel(out)), values);
}

void batch_norm(const View& x, const View& weight, const View& bias, const View& running_mean, const View& running_var,
                bool training, double momentum, double eps, const View& out, const View& save_mean, const View& save_rstd) {
  const int64_t channels = x.size(1), size = channels ? x.count() / channels : 0;
  check_sizes(channels, {&weight, &bias, &running_mean, &running_var});
  compute_floating({&x, &out}, [&](auto zero) {
    using C = decltype(zero);
    const auto w = optional_dense<C>(weight, channels, 1), b = optional_dense<C>(bias, channels, 0);
    auto mean = optional_dense<C>(running_mean, channels, 0), var = optional_dense<C>(running_var, channels, 1);
    Values<C> result(x.count()), means(channels), rstds(channels);
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
  const int64_t channels = x.size(1), size = channels ? x.count() / channels : 0;
  check_sizes(channels, {&weight, &running_mean, &running_var, &save_mean, &save_rstd});
  check_sizes(x.count(), {&grad});
  compute_floating({&x, &grad}, [&](auto zero) {
    using C = decltype(zero);
    const auto w = optional_dense<C>(weight, channels, 1);
    const auto g = dense<C>(grad.move_last(all_but_channel(grad)));
    const auto mean = dense<C>(training ? save_mean : running_mean), spread = dense<C>(training ? save_rstd : running_var);
    Values<C> gx(x.count()), gw(channels), gb(channels);
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
    if (grad_x.has_memory()) assign_channels(grad_x, gx);
    optional_assign(grad_weight, gw);
    optional_assign(grad_bias, gb);
  });
}

}  // namespace

#define LAYER_NORM(name)                                                                                             \
  ACLNN(name, const aclTensor* self, const aclIntArray* shape, const aclTensor* weight, const aclTensor* bias,       \
        double eps, const aclTensor* out, const aclTensor* mean, const aclTensor* rstd) {                            \
    return PLAN([=, x = view(self), w = view(weight), b = view(bias), o = view(out), m = view(mean), r = view(rstd), \
                 last = values(shape)] { layer_norm(x, last, w, b, eps, o, m, r); });                                \
  }
LAYER_NORM(aclnnLayerNorm)
LAYER_NORM(aclnnFastLayerNorm)

ACLNN(aclnnLayerNormBackward, const aclTensor* grad, const aclTensor* self, const aclIntArray* shape, const aclTensor* mean,
      const aclTensor* rstd, const aclTensor* weight, const aclTensor*, const aclBoolArray*, const aclTensor* grad_x,
      const aclTensor* grad_weight, const aclTensor* grad_bias) {
  return PLAN([g = view(grad), x = view(self), last = values(shape), m = view(mean), r = view(rstd),
               w = view(weight), gx = view(grad_x), gw = view(grad_weight), gb = view(grad_bias)] {
    layer_norm_grad(g, x, last, m, r, w, gx, gw, gb);
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
    const int64_t size = row_size(x, w.shape), rows = size ? x.count() / size : 0;
    check_sizes(x.count(), {&g});
    check_sizes(rows, {&r});
    compute_floating({&x}, [&](auto zero) {
      using C = decltype(zero);
      const auto grads = dense<C>(g), input = dense<C>(x), scale = dense<C>(r), weight = dense<C>(w);
      Values<C> dx(input.size());
      Values<double> dw(size);
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

// ---- group norm: rows of x are the channels of one group of one sample

namespace {
struct Groups {
  int64_t n, channels, image, groups;
  int64_t rows() const { return n * groups; }
  int64_t size() const { return channels / groups * image; }
  int64_t channel(int64_t row, int64_t i) const { return row % groups * (channels / groups) + i / image; }
  void check(const View& x, std::initializer_list<const View*> parameters) const {
    if (groups < 1 || channels % groups || x.count() != n * channels * image)
      reject("a tensor of shape " + text(x.shape) + " is not " + std::to_string(n) + " times " + std::to_string(channels) +
             " channels in " + std::to_string(groups) + " groups");
    check_sizes(channels, parameters);
  }
};

void group_norm(const Groups& g, const View& x, const View& weight, const View& bias, double eps, const View& out,
                const View& mean, const View& rstd) {
  g.check(x, {&weight, &bias});
  compute_floating({&x}, [&](auto zero) {
    using C = decltype(zero);
    const auto input = dense<C>(x), gamma = optional_dense<C>(weight, g.channels, 1), beta = optional_dense<C>(bias, g.channels, 0);
    const int64_t size = g.size();
    Values<C> result(input.size()), means(g.rows()), rstds(g.rows());
    for (int64_t row = 0; row < g.rows(); ++row) {
      const Moments moment = moments(input.span(row * size, size), size, eps);
      means[row] = static_cast<C>(moment.mean);
      rstds[row] = static_cast<C>(moment.rstd);
      for (int64_t i = 0; i < size; ++i) {
        const int64_t at = row * size + i, channel = g.channel(row, i);
        result[at] = static_cast<C>((input[at] - moment.mean) * moment.rstd * gamma[channel] + beta[channel]);
      }
    }
    assign(out, result);
    optional_assign(mean, means);
    optional_assign(rstd, rstds);
  });
}

void group_norm_grad(const Groups& g, const View& grad, const View& x, const View& mean, const View& rstd, const View& weight,
                     const View& grad_x, const View& grad_weight, const View& grad_bias) {
  g.check(x, {&weight});
  check_sizes(x.count(), {&grad});
  check_sizes(g.rows(), {&mean, &rstd});
  compute_floating({&x}, [&](auto zero) {
    using C = decltype(zero);
    const auto grads = dense<C>(grad), input = dense<C>(x), gamma = optional_dense<C>(weight, g.channels, 1);
    const auto means = dense<C>(mean), rstds = dense<C>(rstd);
    const int64_t size = g.size();
    Values<C> gx(input.size());
    Values<double> gw(g.channels), gb(g.channels);
    for (int64_t row = 0; row < g.rows(); ++row) {
      auto hat = [&](int64_t at) { return (input[at] - static_cast<double>(means[row])) * rstds[row]; };
      double sum_g = 0, sum_gx = 0;
      for (int64_t i = 0; i < size; ++i) {
        const int64_t at = row * size + i, channel = g.channel(row, i);
        const double given = grads[at], weighted = given * gamma[channel];
        gw[channel] += given * hat(at);
        gb[channel] += given;
        sum_g += weighted;
        sum_gx += weighted * hat(at);
      }
      for (int64_t i = 0; i < size; ++i) {
        const int64_t at = row * size + i;
        const double weighted = static_cast<double>(grads[at]) * gamma[g.channel(row, i)];
        gx[at] = static_cast<C>(rstds[row] * (weighted - (sum_g + hat(at) * sum_gx) / size));
      }
    }
    optional_assign(grad_x, gx);
    optional_assign(grad_weight, gw);
    optional_assign(grad_bias, gb);
  });
}
}  // namespace
ACLNN(aclnnGroupNorm, const aclTensor* self, const aclTensor* weight, const aclTensor* bias, int64_t n, int64_t c, int64_t hw,
      int64_t groups, double eps, const aclTensor* out, const aclTensor* mean, const aclTensor* rstd) {
  return PLAN([=, x = view(self), w = view(weight), b = view(bias), o = view(out), m = view(mean), r = view(rstd)] {
    group_norm({n, c, hw, groups}, x, w, b, eps, o, m, r);
  });
}
ACLNN(aclnnGroupNormBackward, const aclTensor* grad, const aclTensor* self, const aclTensor* mean, const aclTensor* rstd,
      const aclTensor* weight, int64_t n, int64_t c, int64_t hw, int64_t groups, const aclBoolArray*, const aclTensor* grad_x,
      const aclTensor* grad_weight, const aclTensor* grad_bias) {
  return PLAN([=, g = view(grad), x = view(self), m = view(mean), r = view(rstd), w = view(weight), gx = view(grad_x),
               gw = view(grad_weight), gb = view(grad_bias)] {
    group_norm_grad({n, c, hw, groups}, g, x, m, r, w, gx, gw, gb);
  });
}
