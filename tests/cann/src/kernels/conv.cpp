// Convolution and pooling over 1 or 2 spatial dimensions.
#include <limits>

#include "kernel.h"

using namespace emu;

namespace {

// One spatial geometry, rows and columns; 1-d data has one row.
struct Window {
  int64_t kernel[2], stride[2], pad[2], dilation[2];
};

// An attribute given for every spatial dimension, for one (all dimensions) or not at all.
void spread(const Dims& given, int64_t otherwise, int spatial, int64_t (&to)[2]) {
  to[0] = to[1] = otherwise;
  if (spatial == 1) {
    to[1] = given.empty() ? otherwise : given[0];
    return;
  }
  if (!given.empty()) {
    to[0] = given[0];
    to[1] = given.size() > 1 ? given[1] : given[0];
  }
}

// NCL becomes NC1L, CHW becomes 1CHW: kernels see four dimensions.
View as_image(const View& view, int spatial) {
  View image = view;
  if (image.dims() == spatial + 1) image = image.unsqueeze(0);
  if (spatial == 1) image = image.unsqueeze(2);
  return image;
}

struct Shape {
  int64_t n, c, h, w;
  explicit Shape(const View& image) : n(image.size(0)), c(image.size(1)), h(image.size(2)), w(image.size(3)) {}
};

// Calls f(kernel offset, input row, input column) for the taps of one output position inside the input.
template <class F>
void each_tap(const Window& window, const Shape& in, int64_t row, int64_t column, F f) {
  for (int64_t i = 0; i < window.kernel[0]; ++i) {
    const int64_t y = row * window.stride[0] - window.pad[0] + i * window.dilation[0];
    if (y < 0 || y >= in.h) continue;
    for (int64_t j = 0; j < window.kernel[1]; ++j) {
      const int64_t x = column * window.stride[1] - window.pad[1] + j * window.dilation[1];
      if (x >= 0 && x < in.w) f(i * window.kernel[1] + j, y, x);
    }
  }
}

// Calls f(input offset, weight offset, output offset) for every product of a convolution whose input and output
// are dense; a transposed convolution is the same with input and output exchanged.
template <class F>
void each_product(const Window& window, const Shape& in, const Shape& out, int64_t groups, F f) {
  const int64_t in_group = in.c / groups, out_group = out.c / groups, taps = window.kernel[0] * window.kernel[1];
  for (int64_t n = 0; n < in.n; ++n)
    for (int64_t oc = 0; oc < out.c; ++oc)
      for (int64_t ic = 0; ic < in_group; ++ic) {
        const int64_t plane = (n * in.c + oc / out_group * in_group + ic) * in.h * in.w;
        const int64_t weight = (oc * in_group + ic) * taps;
        for (int64_t y = 0; y < out.h; ++y)
          for (int64_t x = 0; x < out.w; ++x) {
            const int64_t to = ((n * out.c + oc) * out.h + y) * out.w + x;
            each_tap(window, in, y, x, [&](int64_t tap, int64_t row, int64_t column) {
              f(plane + row * in.w + column, weight + tap, to);
            });
          }
      }
}

struct Convolution {
  Window window;
  int64_t groups;
  bool transposed;
  int spatial;
};

Convolution convolution(const View& weight, const aclIntArray* stride, const aclIntArray* padding, const aclIntArray* dilation,
                        bool transposed, int64_t groups) {
  Convolution conv{{}, groups, transposed, weight.dims() - 2};
  const View image = as_image(weight, conv.spatial);
  conv.window.kernel[0] = image.shape[2];
  conv.window.kernel[1] = image.shape[3];
  spread(values(stride), 1, conv.spatial, conv.window.stride);
  spread(values(padding), 0, conv.spatial, conv.window.pad);
  spread(values(dilation), 1, conv.spatial, conv.window.dilation);
  return conv;
}

// Channels and kernel of input, weight and output must fit; `out` is the gradient in a backward operator.
void check(const Convolution& conv, const Shape& in, const View& weight, const View& bias, const Shape& out) {
  const int64_t from = conv.transposed ? out.c : in.c, to = conv.transposed ? in.c : out.c;
  if (conv.groups < 1 || weight.size(0) != to || weight.size(1) * conv.groups != from || to % conv.groups || in.n != out.n)
    reject("a weight of shape " + text(weight.shape) + " with " + std::to_string(conv.groups) + " groups does not lead from " +
           std::to_string(in.c) + " to " + std::to_string(out.c) + " channels");
  if (bias.defined() && bias.count() != out.c)
    reject("a bias of shape " + text(bias.shape) + " for " + std::to_string(out.c) + " channels");
}

// The input of one group as columns [channel of the group * taps, n * out.h * out.w], zero where a tap lies outside.
template <class C>
Values<C> as_columns(const Window& window, const Values<C>& from, const Shape& in, const Shape& out, int64_t group,
                          int64_t channels) {
  const int64_t taps = window.kernel[0] * window.kernel[1], positions = out.n * out.h * out.w;
  Values<C> columns(channels * taps * positions);
  for (int64_t n = 0; n < out.n; ++n)
    for (int64_t y = 0; y < out.h; ++y)
      for (int64_t x = 0; x < out.w; ++x)
        each_tap(window, in, y, x, [&](int64_t tap, int64_t row, int64_t column) {
          const int64_t to = tap * positions + (n * out.h + y) * out.w + x;
          const int64_t at = (n * in.c + group * channels) * in.h * in.w + row * in.w + column;
          for (int64_t c = 0; c < channels; ++c) columns[c * taps * positions + to] = from[at + c * in.h * in.w];
        });
  return columns;
}

// A convolution as a matrix product, whose innermost loop runs over all output positions of a channel.
template <class C>
void convolve_columns(const Convolution& conv, const Values<C>& from, const Shape& in, const Values<C>& w,
                      Values<C>& to, const Shape& out) {
  const int64_t channels = in.c / conv.groups, outputs = out.c / conv.groups, image = out.h * out.w;
  const int64_t terms = channels * conv.window.kernel[0] * conv.window.kernel[1], positions = out.n * image;
  Values<C> sums(positions);
  for (int64_t group = 0; group < conv.groups; ++group) {
    const auto columns = as_columns(conv.window, from, in, out, group, channels);
    for (int64_t oc = group * outputs; oc < (group + 1) * outputs; ++oc) {
      std::fill(sums.begin(), sums.end(), 0);
      for (int64_t term = 0; term < terms; ++term) {
        const C weight = w[oc * terms + term];
        const C* column = columns.span(term * positions, positions);
        C* sum = sums.data();
        for (int64_t i = 0; i < positions; ++i) sum[i] += weight * column[i];
      }
      for (int64_t i = 0; i < positions; ++i) to[(i / image * out.c + oc) * image + i % image] += sums[i];
    }
  }
}

void convolve(const Convolution& conv, const View& input, const View& weight, const View& bias, const View& output) {
  const View x = as_image(input, conv.spatial), y = as_image(output, conv.spatial);
  check(conv, Shape(x), weight, bias, Shape(y));
  compute_floating({&x, &y}, [&](auto zero) {
    using C = decltype(zero);
    const auto from = dense<C>(x), w = dense<C>(weight);
    Values<C> to(y.count());
    const Shape in(x), out(y);
    if (bias.defined()) {
      const auto b = dense<C>(bias);
      for (size_t i = 0; i < to.size(); ++i) to[i] = b[i / (out.h * out.w) % out.c];
    }
    if (conv.transposed)
      each_product(conv.window, out, in, conv.groups, [&](int64_t o, int64_t k, int64_t i) { to[o] += from[i] * w[k]; });
    else
      convolve_columns(conv, from, in, w, to, out);
    assign(y, to);
  });
}

void convolve_grad(const Convolution& conv, const View& grad, const View& input, const View& weight, const View& grad_input,
                   const View& grad_weight, const View& grad_bias) {
  const View x = as_image(input, conv.spatial), y = as_image(grad, conv.spatial);
  check(conv, Shape(x), weight, {}, Shape(y));
  compute_floating({&x, &y}, [&](auto zero) {
    using C = decltype(zero);
    const auto from = dense<C>(x), w = dense<C>(weight), g = dense<C>(y);
    const Shape in(x), out(y);
    Values<C> gx(from.size()), gw(w.size());
    Values<double> gb(out.c);
    auto product = [&](int64_t i, int64_t k, int64_t o) {
      gx[i] += g[o] * w[k];
      gw[k] += g[o] * from[i];
    };
    if (conv.transposed)
      each_product(conv.window, out, in, conv.groups, [&](int64_t o, int64_t k, int64_t i) { product(i, k, o); });
    else
      each_product(conv.window, in, out, conv.groups, product);
    for (size_t i = 0; i < g.size(); ++i) gb[i / (out.h * out.w) % out.c] += g[i];
    if (grad_input.has_memory()) assign(as_image(grad_input, conv.spatial), gx);
    if (grad_weight.has_memory()) assign(grad_weight, gw);
    if (grad_bias.has_memory()) assign(grad_bias, gb);
  });
}

}  // namespace

ACLNN(aclnnConvolution, const aclTensor* input, const aclTensor* weight, const aclTensor* bias, const aclIntArray* stride,
      const aclIntArray* padding, const aclIntArray* dilation, bool transposed, const aclIntArray*, int64_t groups,
      const aclTensor* out, int8_t) {
  const View w = view(weight);
  if (w.dims() > 4) return REFUSE("more than two spatial dimensions are not emulated");
  return PLAN([conv = convolution(w, stride, padding, dilation, transposed, groups), x = view(input), w, b = view(bias),
               o = view(out)] { convolve(conv, x, w, b, o); });
}
ACLNN(aclnnConvDepthwise2d, const aclTensor* input, const aclTensor* weight, const aclIntArray*, const aclTensor* bias,
      const aclIntArray* stride, const aclIntArray* padding, const aclIntArray* dilation, const aclTensor* out, int8_t) {
  const View x = view(input), w = view(weight);
  return PLAN([conv = convolution(w, stride, padding, dilation, false, x.shape[x.dims() - 3]), x, w, b = view(bias),
               o = view(out)] { convolve(conv, x, w, b, o); });
}
ACLNN(aclnnConvolutionBackward, const aclTensor* grad, const aclTensor* input, const aclTensor* weight, const aclIntArray*,
      const aclIntArray* stride, const aclIntArray* padding, const aclIntArray* dilation, bool transposed, const aclIntArray*,
      int64_t groups, const aclBoolArray*, int8_t, const aclTensor* grad_input, const aclTensor* grad_weight,
      const aclTensor* grad_bias) {
  const View w = view(weight);
  if (w.dims() > 4) return REFUSE("more than two spatial dimensions are not emulated");
  return PLAN([conv = convolution(w, stride, padding, dilation, transposed, groups), g = view(grad), x = view(input), w,
               gx = view(grad_input), gw = view(grad_weight), gb = view(grad_bias)] { convolve_grad(conv, g, x, w, gx, gw, gb); });
}

// ---- pooling

namespace {

Window pool_window(const aclIntArray* kernel, const aclIntArray* stride, const aclIntArray* padding, const aclIntArray* dilation) {
  Window window{};
  spread(values(kernel), 1, 2, window.kernel);
  spread(values(values(stride).empty() ? kernel : stride), 1, 2, window.stride);
  spread(values(padding), 0, 2, window.pad);
  spread(values(dilation), 1, 2, window.dilation);
  return window;
}

// Calls f(plane, output offset in the plane, row, column) for every output position.
template <class F>
void each_position(const Shape& out, F f) {
  for (int64_t plane = 0; plane < out.n * out.c; ++plane)
    for (int64_t y = 0; y < out.h; ++y)
      for (int64_t x = 0; x < out.w; ++x) f(plane, y * out.w + x, y, x);
}

// Where in its plane the largest tap lies; the first of equals, NaN first of all.
template <class C>
int64_t largest_tap(const Window& window, const Shape& in, const C* plane, int64_t row, int64_t column) {
  int64_t best = -1;
  each_tap(window, in, row, column, [&](int64_t, int64_t y, int64_t x) {
    const int64_t at = y * in.w + x;
    if (best < 0 || plane[at] > plane[best] || (plane[at] != plane[at] && plane[best] == plane[best])) best = at;
  });
  return best;
}

void max_pool(const Window& window, const View& input, const View& output, const View& indices) {
  const View x = as_image(input, 2), y = as_image(output, 2);
  compute({&x}, [&](auto zero) {
    using C = decltype(zero);
    const Shape in(x), out(y);
    const auto from = dense<C>(x);
    Values<C> to(y.count());
    std::vector<int64_t> at(y.count());
    each_position(out, [&](int64_t plane, int64_t offset, int64_t row, int64_t column) {
      const C* values = from.span(plane * in.h * in.w, in.h * in.w);
      const int64_t best = largest_tap(window, in, values, row, column);
      to[plane * out.h * out.w + offset] = values[best];
      at[plane * out.h * out.w + offset] = best;
    });
    assign(y, to);
    if (indices.defined()) assign(as_image(indices, 2), at);
  });
}

void max_pool_grad(const Window& window, const View& grad, const View& input, const View& grad_input) {
  const View x = as_image(input, 2), y = as_image(grad, 2);
  compute_floating({&x}, [&](auto zero) {
    using C = decltype(zero);
    const Shape in(x), out(y);
    const auto from = dense<C>(x), g = dense<C>(y);
    Values<C> gx(from.size());
    each_position(out, [&](int64_t plane, int64_t offset, int64_t row, int64_t column) {
      const int64_t start = plane * in.h * in.w;
      gx[start + largest_tap(window, in, from.span(start, in.h * in.w), row, column)] += g[plane * out.h * out.w + offset];
    });
    assign(as_image(grad_input, 2), gx);
  });
}

// What one average divides by. With ceil_mode a window may hang over the padded edge; what hangs over never counts.
int64_t divisor(const Window& window, const Shape& in, int64_t row, int64_t column, bool include_pad, int64_t override_) {
  if (override_) return override_;
  int64_t count = 1;
  const int64_t start[2] = {row * window.stride[0] - window.pad[0], column * window.stride[1] - window.pad[1]};
  const int64_t size[2] = {in.h, in.w};
  for (int d = 0; d < 2; ++d) {
    const int64_t end = std::min(start[d] + window.kernel[d], size[d] + window.pad[d]);
    count *= include_pad ? end - start[d] : std::min(end, size[d]) - std::max<int64_t>(start[d], 0);
  }
  return count;
}

// Calls f(input offset, output offset, weight) for every contribution to an average.
template <class F>
void each_average(const Window& window, const Shape& in, const Shape& out, bool include_pad, int64_t override_, F f) {
  each_position(out, [&](int64_t plane, int64_t offset, int64_t row, int64_t column) {
    const double weight = 1.0 / divisor(window, in, row, column, include_pad, override_);
    each_tap(window, in, row, column, [&](int64_t, int64_t y, int64_t x) {
      f(plane * in.h * in.w + y * in.w + x, plane * out.h * out.w + offset, weight);
    });
  });
}
// The same for adaptive pooling, whose windows cover the input evenly.
template <class F>
void each_adaptive_average(const Shape& in, const Shape& out, F f) {
  each_position(out, [&](int64_t plane, int64_t offset, int64_t row, int64_t column) {
    const int64_t top = row * in.h / out.h, bottom = ((row + 1) * in.h + out.h - 1) / out.h;
    const int64_t left = column * in.w / out.w, right = ((column + 1) * in.w + out.w - 1) / out.w;
    for (int64_t y = top; y < bottom; ++y)
      for (int64_t x = left; x < right; ++x)
        f(plane * in.h * in.w + y * in.w + x, plane * out.h * out.w + offset, 1.0 / ((bottom - top) * (right - left)));
  });
}

// Sums contributions from `from` to `to`, in the direction that f tells: each(add(from offset, to offset, weight)).
template <class Each>
void accumulate(const View& from, const View& to, Each each) {
  Values<double> total(to.count());
  const auto values = dense<double>(from);
  each([&](int64_t source, int64_t target, double weight) { total[target] += values[source] * weight; });
  assign(to, total);
}

}  // namespace

// The mask of MaxPool2dWithMask is opaque to torch_npu; the backward operator is given the input and finds the
// largest again, so the mask is left as it is.
ACLNN(aclnnMaxPool2dWithMask, const aclTensor* self, const aclIntArray* kernel, const aclIntArray* stride,
      const aclIntArray* padding, const aclIntArray* dilation, bool, const aclTensor* out, const aclTensor*) {
  return PLAN([w = pool_window(kernel, stride, padding, dilation), x = view(self), o = view(out)] { max_pool(w, x, o, {}); });
}
ACLNN(aclnnMaxPool2dWithMaskBackward, const aclTensor* grad, const aclTensor* self, const aclTensor*, const aclIntArray* kernel,
      const aclIntArray* stride, const aclIntArray* padding, const aclIntArray* dilation, bool, const aclTensor* grad_input) {
  return PLAN([w = pool_window(kernel, stride, padding, dilation), g = view(grad), x = view(self), gx = view(grad_input)] {
    max_pool_grad(w, g, x, gx);
  });
}
ACLNN(aclnnMaxPool2dWithIndices, const aclTensor* self, const aclIntArray* kernel, const aclIntArray* stride,
      const aclIntArray* padding, const aclIntArray* dilation, bool, const aclTensor* out, const aclTensor* indices) {
  return PLAN([w = pool_window(kernel, stride, padding, dilation), x = view(self), o = view(out), i = view(indices)] {
    max_pool(w, x, o, i);
  });
}
ACLNN(aclnnMaxPool2dWithIndicesBackward, const aclTensor* grad, const aclTensor* self, const aclTensor*, const aclIntArray* kernel,
      const aclIntArray* stride, const aclIntArray* padding, const aclIntArray* dilation, bool, const aclTensor* grad_input) {
  return PLAN([w = pool_window(kernel, stride, padding, dilation), g = view(grad), x = view(self), gx = view(grad_input)] {
    max_pool_grad(w, g, x, gx);
  });
}
ACLNN(aclnnAvgPool2d, const aclTensor* self, const aclIntArray* kernel, const aclIntArray* stride, const aclIntArray* padding, bool,
      bool include_pad, int64_t divisor_override, int8_t, const aclTensor* out) {
  return PLAN([=, w = pool_window(kernel, stride, padding, nullptr), x = as_image(view(self), 2), o = as_image(view(out), 2)] {
    accumulate(x, o, [&](auto add) {
      each_average(w, Shape(x), Shape(o), include_pad, divisor_override, add);
    });
  });
}
ACLNN(aclnnAvgPool2dBackward, const aclTensor* grad, const aclTensor*, const aclIntArray* kernel, const aclIntArray* stride,
      const aclIntArray* padding, bool, bool include_pad, int64_t divisor_override, int8_t, const aclTensor* grad_input) {
  return PLAN([=, w = pool_window(kernel, stride, padding, nullptr), g = as_image(view(grad), 2), gx = as_image(view(grad_input), 2)] {
    accumulate(g, gx, [&](auto add) {
      each_average(w, Shape(gx), Shape(g), include_pad, divisor_override,
                   [&](int64_t in, int64_t out, double weight) { add(out, in, weight); });
    });
  });
}
ACLNN(aclnnAdaptiveAvgPool2d, const aclTensor* self, const aclIntArray*, const aclTensor* out) {
  return PLAN([x = as_image(view(self), 2), o = as_image(view(out), 2)] {
    accumulate(x, o, [&](auto add) { each_adaptive_average(Shape(x), Shape(o), add); });
  });
}
ACLNN(aclnnAdaptiveAvgPool2dBackward, const aclTensor* grad, const aclTensor*, const aclTensor* out) {
  return PLAN([g = as_image(view(grad), 2), gx = as_image(view(out), 2)] {
    accumulate(g, gx, [&](auto add) {
      each_adaptive_average(Shape(gx), Shape(g), [&](int64_t in, int64_t to, double weight) { add(to, in, weight); });
    });
  });
}
