// Random numbers and dropout. Every operator has two forms: seed and offset as numbers, and, for captures,
// as tensors plus the offset inside of the graph.
#include "random.h"

#include <numeric>

#include "kernel.h"

using namespace emu;

namespace {

// Where an operator takes seed and offset from; read when the work runs.
struct Source {
  uint64_t seed = 0, offset = 0;
  View seed_tensor, offset_tensor;

  static Source numbers(uint64_t seed, uint64_t offset) { return {seed, offset, {}, {}}; }
  static Source tensors(const aclTensor* seed, const aclTensor* offset, uint64_t in_graph) {
    return {0, in_graph, view(seed), view(offset)};
  }
  // A generator for one run.
  auto start() const {
    uint64_t s = seed, o = offset, k = 0;
    if (seed_tensor.defined()) {
      s += static_cast<uint64_t>(read<int64_t>(seed_tensor));
      o += static_cast<uint64_t>(read<int64_t>(offset_tensor));
    }
    return [=]() mutable { return uniform(s, o, k++); };
  }
};

// out[i] = f(next), where next() gives the next uniform number.
template <class F>
Work generate(const View& out, const Source& source, F f) {
  return [=] {
    auto next = source.start();
    map_as<double>(out, [&] { return f(next); });
  };
}

Work uniform_between(const View& out, double from, double to, const Source& source) {
  return generate(out, source, [=](auto& next) { return from + (to - from) * next(); });
}
template <class Next>
double standard_normal(Next& next) {  // Box-Muller
  const double u = 1 - next(), v = next();
  return std::sqrt(-2 * std::log(u)) * std::cos(2 * M_PI * v);
}
Work normal(const View& out, double mean, double deviation, const Source& source) {
  return generate(out, source, [=](auto& next) { return mean + deviation * standard_normal(next); });
}
Work integers_between(const View& out, int64_t from, int64_t to, const Source& source) {
  return generate(out, source, [=](auto& next) { return std::floor(from + static_cast<double>(to - from) * next()); });
}
// What random_() without bounds draws from: all integers the dtype holds exactly.
int64_t bound(aclDataType dtype) {
  switch (dtype) {
    case ACL_FLOAT: return 1 << 24;
    case ACL_FLOAT16: return 2048;
    case ACL_BF16: return 256;
    case ACL_INT8: return 127;
    case ACL_UINT8: return 255;
    case ACL_INT16: return 32767;
    case ACL_BOOL: return 2;
    default: return 2147483647;
  }
}

}  // namespace

ACLNN(aclnnInplaceUniform, const aclTensor* self, double from, double to, uint64_t seed, uint64_t offset) {
  return PLAN(uniform_between(view(self), from, to, Source::numbers(seed, offset)));
}
ACLNN(aclnnInplaceUniformTensor, const aclTensor* self, double from, double to, const aclTensor* seed, const aclTensor* offset,
      uint64_t in_graph) {
  return PLAN(uniform_between(view(self), from, to, Source::tensors(seed, offset, in_graph)));
}
ACLNN(aclnnInplaceNormal, const aclTensor* self, float mean, float deviation, int64_t seed, int64_t offset) {
  return PLAN(normal(view(self), mean, deviation, Source::numbers(seed, offset)));
}
ACLNN(aclnnInplaceNormalTensor, const aclTensor* self, float mean, float deviation, const aclTensor* seed, const aclTensor* offset,
      uint64_t in_graph) {
  return PLAN(normal(view(self), mean, deviation, Source::tensors(seed, offset, in_graph)));
}
ACLNN(aclnnNormalFloatFloat, float mean, float deviation, int64_t seed, int64_t offset, const aclTensor* out) {
  return PLAN(normal(view(out), mean, deviation, Source::numbers(seed, offset)));
}
ACLNN(aclnnInplaceRandom, const aclTensor* self, int64_t from, int64_t to, uint64_t seed, uint64_t offset) {
  return PLAN(integers_between(view(self), from, to, Source::numbers(seed, offset)));
}
ACLNN(aclnnInplaceRandomTensor, const aclTensor* self, int64_t from, int64_t to, const aclTensor* seed, const aclTensor* offset,
      uint64_t in_graph) {
  return PLAN(integers_between(view(self), from, to, Source::tensors(seed, offset, in_graph)));
}
ACLNN(aclnnInplaceRandomWithoutFromTo, const aclTensor* self, uint64_t seed, uint64_t offset) {
  return PLAN(integers_between(view(self), 0, bound(self->dtype), Source::numbers(seed, offset)));
}
ACLNN(aclnnInplaceRandomWithoutFromToTensor, const aclTensor* self, const aclTensor* seed, const aclTensor* offset, uint64_t in_graph) {
  return PLAN(integers_between(view(self), 0, bound(self->dtype), Source::tensors(seed, offset, in_graph)));
}
ACLNN(aclnnInplaceBernoulli, const aclTensor* self, const aclScalar* p, int64_t seed, int64_t offset) {
  return PLAN(generate(view(self), Source::numbers(seed, offset), [p = p->number()](auto& next) { return next() < p; }));
}
ACLNN(aclnnInplaceBernoulliTensor, const aclTensor* self, const aclTensor* p, int64_t seed, int64_t offset) {
  return PLAN([a = view(self), probability = view(p), source = Source::numbers(seed, offset)] {
    auto next = source.start();
    map_as<double>(a, [&](double threshold) { return next() < threshold; }, probability);
  });
}
ACLNN(aclnnRandperm, int64_t n, int64_t seed, int64_t offset, const aclTensor* out) {
  return PLAN([=, o = view(out), source = Source::numbers(seed, offset)] {
    auto next = source.start();
    std::vector<int64_t> order(n);
    std::iota(order.begin(), order.end(), 0);
    for (int64_t i = n - 1; i > 0; --i) std::swap(order[i], order[static_cast<int64_t>(next() * (i + 1))]);
    assign(o, order);
  });
}

namespace {
Work multinomial(const View& weights, int64_t count, bool replacement, const Source& source, const View& out) {
  return [=] {
    auto next = source.start();
    const View rows = weights.dims() == 1 ? weights.unsqueeze(0) : weights, to = out.dims() == 1 ? out.unsqueeze(0) : out;
    for (int64_t r = 0; r < rows.shape[0]; ++r) {
      auto weight = dense<double>(rows.select(0, r));
      for (int64_t j = 0; j < count; ++j) {
        double left = next() * std::accumulate(weight.begin(), weight.end(), 0.0);
        size_t drawn = 0;
        while (drawn + 1 < weight.size() && left >= weight[drawn]) left -= weight[drawn++];
        write<int64_t>(to.dtype, to.at({r, j}), static_cast<int64_t>(drawn));
        if (!replacement) weight[drawn] = 0;
      }
    }
  };
}
}  // namespace
ACLNN(aclnnMultinomial, const aclTensor* self, int64_t count, bool replacement, int64_t seed, int64_t offset, const aclTensor* out) {
  return PLAN(multinomial(view(self), count, replacement, Source::numbers(seed, offset), view(out)));
}
ACLNN(aclnnMultinomialTensor, const aclTensor* self, int64_t count, bool replacement, const aclTensor* seed, const aclTensor* offset,
      uint64_t in_graph, const aclTensor* out) {
  return PLAN(multinomial(view(self), count, replacement, Source::tensors(seed, offset, in_graph), view(out)));
}

// ---- dropout: a mask of bits, 1 keeps; p is the probability to drop

namespace {
Work keep_mask(int64_t count, double p, const View& mask, const Source& source) {
  return [=] {
    const View bits = mask.flat();
    auto next = source.start();
    Values<int64_t> bytes(bits.count());
    for (int64_t i = 0; i < count; ++i)
      if (next() >= p) bytes[i / 8] |= 1 << (i % 8);
    assign(bits, bytes);
  };
}
}  // namespace
ACLNN(aclnnDropoutGenMask, const aclIntArray* shape, double p, int64_t seed, int64_t offset, const aclTensor* mask) {
  return PLAN(keep_mask(product(values(shape)), p, view(mask), Source::numbers(seed, offset)));
}
ACLNN(aclnnDropoutGenMaskV2, const aclIntArray* shape, double p, int64_t seed, int64_t offset, aclDataType, const aclTensor* mask) {
  return PLAN(keep_mask(product(values(shape)), p, view(mask), Source::numbers(seed, offset)));
}
ACLNN(aclnnDropoutGenMaskV2Tensor, const aclIntArray* shape, double p, const aclTensor* seed, const aclTensor* offset,
      int64_t in_graph, aclDataType, const aclTensor* mask) {
  return PLAN(keep_mask(product(values(shape)), p, view(mask), Source::tensors(seed, offset, in_graph)));
}
ACLNN(aclnnDropoutDoMask, const aclTensor* self, const aclTensor* mask, double p, const aclTensor* out) {
  return PLAN([=, a = view(self), m = view(mask), o = view(out)] {
    const double scale = p < 1 ? 1 / (1 - p) : 0;
    const auto bytes = dense<int64_t>(m);
    int64_t i = 0;
    map_as<double>(o, [&](double x) {
      const bool keep = bytes[i / 8] >> (i % 8) & 1;
      ++i;
      return keep ? x * scale : 0;
    }, a);
  });
}
