// Reductions, scans and sorting.
#include <limits>
#include <numeric>

#include "lanes.h"

using namespace emu;

namespace {

// Sums of floating values are kept in double: the result is then the rounded exact sum, close to any order of adding.
template <class C>
using Sum = std::conditional_t<std::is_same_v<C, int64_t>, int64_t, double>;

constexpr auto sum = [](auto* lane, int64_t size) {
  Sum<std::decay_t<decltype(*lane)>> total = 0;
  for (int64_t i = 0; i < size; ++i) total += lane[i];
  return total;
};
constexpr auto mean = [](auto* lane, int64_t size) { return sum(lane, size) / static_cast<double>(size); };
constexpr auto prod = [](auto* lane, int64_t size) {
  Sum<std::decay_t<decltype(*lane)>> total = 1;
  for (int64_t i = 0; i < size; ++i) total *= lane[i];
  return total;
};
// Position of the largest or smallest; NaN wins, the first of equals wins.
template <bool Largest>
constexpr auto best = [](auto* lane, int64_t size) {
  int64_t at = 0;
  for (int64_t i = 1; i < size; ++i) {
    if (lane[at] != lane[at]) break;
    if (lane[i] != lane[i] || (Largest ? lane[i] > lane[at] : lane[i] < lane[at])) at = i;
  }
  return at;
};
template <bool Largest>
constexpr auto extreme = [](auto* lane, int64_t size) { return lane[best<Largest>(lane, size)]; };
constexpr auto all = [](auto* lane, int64_t size) { return std::all_of(lane, lane + size, [](auto x) { return x != 0; }); };
constexpr auto any = [](auto* lane, int64_t size) { return std::any_of(lane, lane + size, [](auto x) { return x != 0; }); };

template <class F>
Work reduction(const View& out, const View& in, const std::vector<int>& dims, F f) {
  return [=] { compute({&out, &in}, [&](auto zero) { reduce<decltype(zero)>(out, in, dims, f); }); };
}

// The variance of a lane, in double: the two-pass formula.
template <class C>
double variance(const C* lane, int64_t size, double correction) {
  const double average = mean(lane, size);
  double total = 0;
  for (int64_t i = 0; i < size; ++i) total += (lane[i] - average) * (lane[i] - average);
  return total / std::max(0.0, size - correction);
}

}  // namespace

#define REDUCE_DTYPE(name, f)                                                                                     \
  ACLNN(name, const aclTensor* self, const aclIntArray* dims, bool, aclDataType, const aclTensor* out) {          \
    const View a = view(self);                                                                                    \
    return PLAN(reduction(view(out), a, reduced_dims(a, dims), f));                                               \
  }
REDUCE_DTYPE(aclnnReduceSum, sum)
REDUCE_DTYPE(aclnnMean, mean)

#define REDUCE(name, f)                                                                          \
  ACLNN(name, const aclTensor* self, const aclIntArray* dims, bool, const aclTensor* out) {      \
    const View a = view(self);                                                                   \
    return PLAN(reduction(view(out), a, reduced_dims(a, dims), f));                              \
  }
REDUCE(aclnnAmax, extreme<true>)
REDUCE(aclnnAmin, extreme<false>)
REDUCE(aclnnAll, all)
REDUCE(aclnnAny, any)

#define REDUCE_ALL(name, f)                                               \
  ACLNN(name, const aclTensor* self, const aclTensor* out) {              \
    const View a = view(self);                                            \
    return PLAN(reduction(view(out), a, reduced_dims(a, nullptr), f));    \
  }
REDUCE_ALL(aclnnMax, extreme<true>)
REDUCE_ALL(aclnnMin, extreme<false>)

ACLNN(aclnnProd, const aclTensor* self, aclDataType, const aclTensor* out) {
  const View a = view(self);
  return PLAN(reduction(view(out), a, reduced_dims(a, nullptr), prod));
}
ACLNN(aclnnProdDim, const aclTensor* self, int64_t dim, bool, aclDataType, const aclTensor* out) {
  const View a = at_least_1d(view(self));
  return PLAN(reduction(view(out), a, {a.dim(dim)}, prod));
}

#define ARG(name, largest)                                                              \
  ACLNN(name, const aclTensor* self, int64_t dim, bool, const aclTensor* out) {         \
    return PLAN([=, a = at_least_1d(view(self)), o = view(out)] {                       \
      compute({&a}, [&](auto zero) {                                                    \
        std::vector<int64_t> result(o.count());                                         \
        each_lane<decltype(zero)>(a, {a.dim(dim)}, [&](auto* lane, int64_t i) {         \
          result[i] = best<largest>(lane, a.shape[a.dim(dim)]);                         \
        });                                                                             \
        assign(o, result);                                                              \
      });                                                                               \
    });                                                                                 \
  }
ARG(aclnnArgMax, true)
ARG(aclnnArgMin, false)

#define EXTREME_DIM(name, largest)                                                                                   \
  ACLNN(name, const aclTensor* self, int64_t dim, bool, const aclTensor* out, const aclTensor* indices) {            \
    return PLAN([=, a = at_least_1d(view(self)), o = view(out), at = view(indices)] {                                \
      compute({&a}, [&](auto zero) {                                                                                 \
        using C = decltype(zero);                                                                                    \
        Values<C> result(o.count());                                                                            \
        std::vector<int64_t> position(o.count());                                                                    \
        each_lane<C>(a, {a.dim(dim)}, [&](const C* lane, int64_t i) {                                                \
          position[i] = best<largest>(lane, a.shape[a.dim(dim)]);                                                    \
          result[i] = lane[position[i]];                                                                             \
        });                                                                                                          \
        assign(o, result);                                                                                           \
        assign(at, position);                                                                                        \
      });                                                                                                            \
    });                                                                                                              \
  }
EXTREME_DIM(aclnnMaxDim, true)
EXTREME_DIM(aclnnMinDim, false)

ACLNN(aclnnAminmax, const aclTensor* self, const aclIntArray* dims, bool, const aclTensor* low, const aclTensor* high) {
  const View a = view(self);
  return PLAN([a, d = reduced_dims(a, dims), l = view(low), h = view(high)] {
    reduction(l, a, d, extreme<false>)();
    reduction(h, a, d, extreme<true>)();
  });
}
ACLNN(aclnnEqual, const aclTensor* self, const aclTensor* other, const aclTensor* out) {
  return PLAN([a = view(self), b = view(other), o = view(out)] {
    bool equal = a.shape == b.shape;
    if (equal)
      compute({&a, &b}, [&](auto zero) {
        const auto x = dense<decltype(zero)>(a), y = dense<decltype(zero)>(b);
        equal = x == y;
      });
    write<int64_t>(o, equal);
  });
}

// ---- variance and norms

#define VARIANCE(name, expression)                                                                                      \
  ACLNN(name, const aclTensor* self, const aclIntArray* dims, int64_t correction, bool, const aclTensor* out) {         \
    const View a = view(self);                                                                                          \
    return PLAN(reduction(view(out), a, reduced_dims(a, dims), [=](auto* lane, int64_t size) {                          \
      const double v = variance(lane, size, static_cast<double>(correction));                                           \
      return expression;                                                                                                \
    }));                                                                                                                \
  }
VARIANCE(aclnnVarCorrection, v)
VARIANCE(aclnnStd, std::sqrt(v))

#define VARIANCE_MEAN(name, expression)                                                                                 \
  ACLNN(name, const aclTensor* self, const aclIntArray* dims, int64_t correction, bool, const aclTensor* out,           \
        const aclTensor* average) {                                                                                     \
    const View a = view(self);                                                                                          \
    return PLAN([=, d = reduced_dims(a, dims), o = view(out), m = view(average)] {                                      \
      reduction(m, a, d, mean)();                                                                                       \
      reduction(o, a, d, [=](auto* lane, int64_t size) {                                                                \
        const double v = variance(lane, size, static_cast<double>(correction));                                         \
        return expression;                                                                                              \
      })();                                                                                                             \
    });                                                                                                                 \
  }
VARIANCE_MEAN(aclnnVarMean, v)
VARIANCE_MEAN(aclnnStdMeanCorrection, std::sqrt(v))

namespace {
Work norm(const View& out, const View& in, const std::vector<int>& dims, double order) {
  return reduction(out, in, dims, [=](auto* lane, int64_t size) {
    double total = order == -INFINITY ? INFINITY : 0;
    for (int64_t i = 0; i < size; ++i) {
      const double x = std::fabs(static_cast<double>(lane[i]));
      if (order == INFINITY) total = std::max(total, x);
      else if (order == -INFINITY) total = std::min(total, x);
      else if (order == 0) total += x != 0;
      else if (order == 2) total += x * x;
      else total += std::pow(x, order);
    }
    if (order == 2) return std::sqrt(total);
    return std::isinf(order) || order == 0 ? total : std::pow(total, 1 / order);
  });
}
}  // namespace
ACLNN(aclnnLinalgVectorNorm, const aclTensor* self, const aclScalar* order, const aclIntArray* dims, bool, aclDataType,
      const aclTensor* out) {
  const View a = view(self);
  return PLAN(norm(view(out), a, reduced_dims(a, dims), order->number()));
}
ACLNN(aclnnNorm, const aclTensor* self, const aclScalar* order, const aclIntArray* dims, bool, const aclTensor* out) {
  const View a = view(self);
  return PLAN(norm(view(out), a, reduced_dims(a, dims), order->number()));
}
ACLNN(aclnnLogSumExp, const aclTensor* self, const aclIntArray* dims, bool, const aclTensor* out) {
  const View a = view(self);
  return PLAN(reduction(view(out), a, reduced_dims(a, dims), [](auto* lane, int64_t size) {
    const double top = static_cast<double>(extreme<true>(lane, size));
    if (std::isinf(top)) return top;
    double total = 0;
    for (int64_t i = 0; i < size; ++i) total += std::exp(lane[i] - top);
    return top + std::log(total);
  }));
}

// ---- scans

namespace {
template <class F>
Work scan(const View& out, const View& in, int64_t dim, F f) {
  return [=] {
    const View a = at_least_1d(in), o = at_least_1d(out);
    compute({&o, &a}, [&](auto zero) {
      using C = decltype(zero);
      transform_lanes<C>(o, a, a.dim(dim), [&](const C* from, int64_t size, C* to, int64_t) {
        Sum<C> total = 0;
        for (int64_t i = 0; i < size; ++i) to[i] = static_cast<C>(total = i ? f(total, from[i]) : from[i]);
      });
    });
  };
}
}  // namespace
ACLNN(aclnnCumsum, const aclTensor* self, int64_t dim, aclDataType, const aclTensor* out) {
  return PLAN(scan(view(out), view(self), dim, [](auto total, auto x) { return total + x; }));
}
ACLNN(aclnnCumprod, const aclTensor* self, const aclScalar* dim, aclDataType, const aclTensor* out) {
  return PLAN(scan(view(out), view(self), dim->integer(), [](auto total, auto x) { return total * x; }));
}

// ---- sorting

namespace {
// The first `keep` positions of the sorted lane; NaN counts as the largest. Stable.
template <class C>
std::vector<int64_t> order(const C* lane, int64_t size, bool descending, int64_t keep) {
  std::vector<int64_t> at(size);
  std::iota(at.begin(), at.end(), 0);
  auto less = [&](int64_t i, int64_t j) {
    const bool nan_i = lane[i] != lane[i], nan_j = lane[j] != lane[j];
    if (nan_i || nan_j) return descending ? nan_i && !nan_j : !nan_i && nan_j;
    return descending ? lane[i] > lane[j] : lane[i] < lane[j];
  };
  std::stable_sort(at.begin(), at.end(), less);
  at.resize(keep);
  return at;
}
Work sort(const View& in, int64_t dim, bool descending, int64_t keep, const View& out, const View& indices) {
  return [=] {
    const View a = at_least_1d(in), o = at_least_1d(out), positions = at_least_1d(indices);
    const int d = a.dim(dim);
    if (keep < 0 || keep > a.shape[d]) reject(std::to_string(keep) + " of " + std::to_string(a.shape[d]) + " elements are asked for");
    compute({&a}, [&](auto zero) {
      using C = decltype(zero);
      Values<C> sorted;
      std::vector<int64_t> at;
      each_lane<C>(a, {d}, [&](const C* lane, int64_t) {
        for (int64_t i : order(lane, a.shape[d], descending, keep)) {
          sorted.push_back(lane[i]);
          at.push_back(i);
        }
      });
      assign(o.move_last({d}), sorted);
      assign(positions.move_last({d}), at);
    });
  };
}
}  // namespace
ACLNN(aclnnSort, const aclTensor* self, bool, int64_t dim, bool descending, const aclTensor* out, const aclTensor* indices) {
  const View a = at_least_1d(view(self));
  return PLAN(sort(a, dim, descending, a.shape[a.dim(dim)], view(out), view(indices)));
}
ACLNN(aclnnTopk, const aclTensor* self, int64_t k, int64_t dim, bool largest, bool, const aclTensor* out,
      const aclTensor* indices) {
  return PLAN(sort(view(self), dim, largest, k, view(out), view(indices)));
}
