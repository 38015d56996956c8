// Operators along one or several dimensions: what is reduced or scanned becomes a dense lane.
#pragma once
#include "kernel.h"

namespace emu {

// The element count of the given dimensions.
inline int64_t extent(const View& view, const std::vector<int>& dims) {
  int64_t count = 1;
  for (int d : dims) count *= view.shape[d];
  return count;
}

// Calls f(lane, i) for the i-th lane of `in` along `dims`, in row-major order of the other dimensions.
template <class C, class F>
void each_lane(const View& in, const std::vector<int>& dims, F f) {
  const auto data = dense<C>(in.move_last(dims));
  const int64_t size = extent(in, dims);
  int64_t lanes = 1;
  for (int d = 0; d < in.dims(); ++d)
    if (std::find(dims.begin(), dims.end(), d) == dims.end()) lanes *= in.shape[d];
  for (int64_t i = 0; i < lanes; ++i) f(data.data() + i * size, i);
}

// out[i] = f(lane i, size): a reduction. `out` holds one element a lane, with or without kept dimensions.
template <class C, class F>
void reduce(const View& out, const View& in, const std::vector<int>& dims, F f) {
  const int64_t size = extent(in, dims);
  Values<C> result(out.count());
  each_lane<C>(in, dims, [&](const C* lane, int64_t i) { result[i] = static_cast<C>(f(lane, size)); });
  assign(out, result);
}

// Lane by lane from `in` to `out`, which may be longer or shorter along `dim`: f(from, size, to, size).
template <class C, class F>
void transform_lanes(const View& out, const View& in, int dim, F f) {
  const std::vector<int> dims{dim};
  const View target = out.move_last(dims);
  const int64_t from_size = in.shape[dim], to_size = out.shape[dim];
  Values<C> result(out.count());
  each_lane<C>(in, dims, [&](const C* lane, int64_t i) { f(lane, from_size, result.data() + i * to_size, to_size); });
  assign(target, result);
}

// A 0-d tensor is a lane of one element.
inline View at_least_1d(const View& view) { return view.dims() ? view : view.unsqueeze(0); }

}  // namespace emu
