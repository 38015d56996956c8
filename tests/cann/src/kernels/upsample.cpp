// Resampling of images: nearest, linear and cubic, forward and backward, over one or two spatial dimensions.
#include "kernel.h"

using namespace emu;

namespace {

enum class Mode { kNearest, kNearestExact, kLinear, kCubic };

// The inputs that make one output along a dimension, and their shares.
struct Taps {
  int count;
  int64_t at[4];
  double share[4];
};

// The step in the input for a step in the output. Positions are computed in float, as PyTorch does: which element is
// the nearest depends on it.
float step_of(int64_t in, int64_t out, bool align_corners, double scale) {
  if (align_corners) return out > 1 ? static_cast<float>(in - 1) / static_cast<float>(out - 1) : 0;
  return scale > 0 ? static_cast<float>(1 / scale) : static_cast<float>(in) / static_cast<float>(out);
}

Taps taps_of(Mode mode, int64_t position, int64_t in, float step, bool align_corners) {
  const float place = static_cast<float>(position);
  auto inside = [&](int64_t at) { return std::clamp<int64_t>(at, 0, in - 1); };
  if (mode == Mode::kNearest) return {1, {inside(static_cast<int64_t>(std::floor(place * step)))}, {1}};
  if (mode == Mode::kNearestExact) return {1, {inside(static_cast<int64_t>(std::floor((place + 0.5f) * step)))}, {1}};
  float source = align_corners ? place * step : (place + 0.5f) * step - 0.5f;
  if (mode == Mode::kLinear) source = std::max(source, 0.0f);
  const int64_t first = static_cast<int64_t>(std::floor(source));
  const double t = source - static_cast<float>(first);
  if (mode == Mode::kLinear) return {2, {inside(first), inside(first + 1)}, {1 - t, t}};
  constexpr double a = -0.75;
  auto near = [](double x) { return ((a + 2) * x - (a + 3)) * x * x + 1; };
  auto far = [](double x) { return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a; };
  return {4, {inside(first - 1), inside(first), inside(first + 1), inside(first + 2)}, {far(t + 1), near(t), near(1 - t), far(2 - t)}};
}

std::vector<Taps> all_taps(Mode mode, int64_t in, int64_t out, bool align_corners, double scale) {
  if (in < 1) reject("an image without pixels has no other size");
  const float step = step_of(in, out, align_corners, scale);
  std::vector<Taps> result;
  for (int64_t i = 0; i < out; ++i) result.push_back(taps_of(mode, i, in, step, align_corners));
  return result;
}

struct Resampling {
  Mode mode;
  bool align_corners;
  double row_scale, column_scale;
};

// NCL as NC1L.
View as_image(const View& view) {
  if (view.dims() != 3 && view.dims() != 4) reject("a tensor of shape " + text(view.shape) + " is no batch of images");
  return view.dims() == 3 ? view.unsqueeze(2) : view;
}

// Calls f(input place, output place, share) for all that make up the output.
template <class F>
void each_share(const Resampling& r, const View& in, const View& out, F f) {
  const int64_t in_rows = in.size(2), in_columns = in.size(3), out_rows = out.size(2), out_columns = out.size(3);
  const auto rows = all_taps(r.mode, in_rows, out_rows, r.align_corners, r.row_scale);
  const auto columns = all_taps(r.mode, in_columns, out_columns, r.align_corners, r.column_scale);
  for (int64_t plane = 0; plane < in.size(0) * in.size(1); ++plane)
    for (int64_t y = 0; y < out_rows; ++y)
      for (int64_t x = 0; x < out_columns; ++x)
        for (int i = 0; i < rows[y].count; ++i)
          for (int j = 0; j < columns[x].count; ++j)
            f((plane * in_rows + rows[y].at[i]) * in_columns + columns[x].at[j], (plane * out_rows + y) * out_columns + x,
              rows[y].share[i] * columns[x].share[j]);
}

void check_planes(const View& in, const View& out) {
  if (in.size(0) != out.size(0) || in.size(1) != out.size(1))
    reject("images of shapes " + text(in.shape) + " and " + text(out.shape));
}

Work resample(const Resampling& r, const View& self, const View& result) {
  return [=] {
    const View in = as_image(self), out = as_image(result);
    check_planes(in, out);
    const auto from = dense<double>(in);
    Values<double> to(out.count());
    each_share(r, in, out, [&](int64_t source, int64_t target, double share) { to[target] += share * from[source]; });
    assign(out, to);
  };
}
Work resample_grad(const Resampling& r, const View& grad, const View& grad_self) {
  return [=] {
    const View in = as_image(grad_self), out = as_image(grad);
    check_planes(in, out);
    const auto from = dense<double>(out);
    Values<double> to(in.count());
    each_share(r, in, out, [&](int64_t source, int64_t target, double share) { to[source] += share * from[target]; });
    assign(in, to);
  };
}

}  // namespace

// A scale that the caller did not give is zero or negative. Forms differ in the type of the scales.
#define NEAREST_1D(name, mode, Scale)                                                                             \
  ACLNN(name, const aclTensor* self, const aclIntArray*, Scale scale, const aclTensor* out) {                     \
    return PLAN(resample({mode, false, 0, scale}, view(self), view(out)));                                        \
  }
#define NEAREST_2D(name, mode, Scale)                                                                             \
  ACLNN(name, const aclTensor* self, const aclIntArray*, Scale rows, Scale columns, const aclTensor* out) {       \
    return PLAN(resample({mode, false, rows, columns}, view(self), view(out)));                                   \
  }
#define NEAREST_1D_GRAD(name, mode)                                                                               \
  ACLNN(name, const aclTensor* grad, const aclIntArray*, const aclIntArray*, double scale, const aclTensor* out) { \
    return PLAN(resample_grad({mode, false, 0, scale}, view(grad), view(out)));                                   \
  }
#define NEAREST_2D_GRAD(name, mode)                                                                               \
  ACLNN(name, const aclTensor* grad, const aclIntArray*, const aclIntArray*, double rows, double columns,         \
        const aclTensor* out) {                                                                                   \
    return PLAN(resample_grad({mode, false, rows, columns}, view(grad), view(out)));                              \
  }
NEAREST_1D(aclnnUpsampleNearest1dV2, Mode::kNearest, float)
NEAREST_1D(aclnnUpsampleNearestExact1d, Mode::kNearestExact, double)
NEAREST_2D(aclnnUpsampleNearest2dV2, Mode::kNearest, float)
NEAREST_2D(aclnnUpsampleNearestExact2d, Mode::kNearestExact, double)
NEAREST_1D_GRAD(aclnnUpsampleNearest1dBackward, Mode::kNearest)
NEAREST_1D_GRAD(aclnnUpsampleNearestExact1dBackward, Mode::kNearestExact)
NEAREST_2D_GRAD(aclnnUpsampleNearest2dBackward, Mode::kNearest)
NEAREST_2D_GRAD(aclnnUpsampleNearestExact2dBackward, Mode::kNearestExact)

ACLNN(aclnnUpsampleLinear1d, const aclTensor* self, const aclIntArray*, bool align_corners, double scale, const aclTensor* out) {
  return PLAN(resample({Mode::kLinear, align_corners, 0, scale}, view(self), view(out)));
}
ACLNN(aclnnUpsampleLinear1dBackward, const aclTensor* grad, const aclIntArray*, const aclIntArray*, bool align_corners,
      double scale, const aclTensor* out) {
  return PLAN(resample_grad({Mode::kLinear, align_corners, 0, scale}, view(grad), view(out)));
}
#define SMOOTH_2D(forward, backward, mode)                                                                             \
  ACLNN(forward, const aclTensor* self, const aclIntArray*, bool align_corners, double rows, double columns,           \
        const aclTensor* out) {                                                                                        \
    return PLAN(resample({mode, align_corners, rows, columns}, view(self), view(out)));                                \
  }                                                                                                                    \
  ACLNN(backward, const aclTensor* grad, const aclIntArray*, const aclIntArray*, bool align_corners, double rows,      \
        double columns, const aclTensor* out) {                                                                        \
    return PLAN(resample_grad({mode, align_corners, rows, columns}, view(grad), view(out)));                           \
  }
SMOOTH_2D(aclnnUpsampleBilinear2d, aclnnUpsampleBilinear2dBackwardV2, Mode::kLinear)
SMOOTH_2D(aclnnUpsampleBicubic2d, aclnnUpsampleBicubic2dBackward, Mode::kCubic)
