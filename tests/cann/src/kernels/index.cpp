// Reading and writing at positions that other tensors give.
#include <cstring>

#include "lanes.h"

using namespace emu;

namespace {

// A position along a dimension of that size; negative ones count from the end.
int64_t wrap(int64_t position, int64_t size) {
  const int64_t at = position < 0 ? position + size : position;
  if (at < 0 || at >= size)
    throw Failure{ACL_ERROR_INVALID_PARAM, "index " + std::to_string(position) + " is out of range for a dimension of " + std::to_string(size)};
  return at;
}
int64_t position(const View& index, const Dims& at, int64_t size) {
  return wrap(read<int64_t>(index.dtype, index.at(at)), size);
}

enum Reduction { kReplace = 0, kAdd = 1, kMultiply = 2, kMaximum = 3, kMinimum = 4, kMean = 5 };

// to = to (reduction) value
void combine(const View& target, char* to, const View& source, const char* from, int reduction, double factor = 1) {
  if (reduction == kReplace && target.dtype == source.dtype) {
    memcpy(to, from, target.item());
    return;
  }
  compute({&target, &source}, [&](auto zero) {
    using C = decltype(zero);
    const C old = read<C>(target.dtype, to), value = static_cast<C>(factor) * read<C>(source.dtype, from);
    C result = value;
    if (reduction == kAdd) result = old + value;
    if (reduction == kMultiply) result = old * value;
    if (reduction == kMaximum) result = std::max(old, value);
    if (reduction == kMinimum) result = std::min(old, value);
    write<C>(target.dtype, to, result);
  });
}

// Combined values of float16 and bfloat16 are kept in a wider tensor until all contributions are in.
class Accumulator {
 public:
  explicit Accumulator(const View& target) : target_(target), wide_(target) {
    if (target.dtype != ACL_FLOAT16 && target.dtype != ACL_BF16) return;
    storage_.resize(target.count());
    wide_ = View(ACL_FLOAT, target.shape, storage_.data());
    copy(wide_, target);
  }
  ~Accumulator() {
    if (!storage_.empty()) copy(target_, wide_);
  }
  const View& view() const { return wide_; }

 private:
  View target_, wide_;
  Values<float> storage_;
};

}  // namespace

// ---- whole slices: index_select, embedding, index_copy, index_add, index_fill

namespace {
void select_slices(const View& out, const View& in, int dim, const View& index) {
  const auto positions = dense<int64_t>(index);
  for (size_t i = 0; i < positions.size(); ++i)
    copy(out.select(dim, static_cast<int64_t>(i)), in.select(dim, wrap(positions[i], in.shape[dim])));
}
}  // namespace
ACLNN(aclnnIndexSelect, const aclTensor* self, int64_t dim, const aclTensor* index, const aclTensor* out) {
  return PLAN([=, a = at_least_1d(view(self)), i = view(index), o = at_least_1d(view(out))] { select_slices(o, a, a.dim(dim), i); });
}
ACLNN(aclnnEmbedding, const aclTensor* weight, const aclTensor* indices, const aclTensor* out) {
  return PLAN([w = view(weight), i = view(indices), o = view(out)] {
    each_index(i.shape, [&](const Dims& at) {
      View row = o;
      for (int64_t k : at) row = row.select(0, k);
      copy(row, w.select(0, position(i, at, w.shape[0])));
    });
  });
}
ACLNN(aclnnEmbeddingDenseBackward, const aclTensor* grad, const aclTensor* indices, uint64_t, int64_t padding, bool by_frequency,
      const aclTensor* out) {
  return PLAN([=, g = view(grad), i = view(indices), o = view(out)] {
    const auto positions = dense<int64_t>(i);
    const auto grads = dense<float>(g);
    const int64_t width = o.shape[1];
    Values<double> total(o.count()), frequency(o.shape[0]);
    for (int64_t p : positions) frequency[wrap(p, o.shape[0])] += 1;
    for (size_t k = 0; k < positions.size(); ++k) {
      if (positions[k] == padding) continue;
      const double scale = by_frequency ? 1 / frequency[positions[k]] : 1;
      for (int64_t j = 0; j < width; ++j) total[positions[k] * width + j] += scale * grads[k * width + j];
    }
    assign(o, total);
  });
}
// ---- bags: rows of the weight, summed, averaged or maximized over the indices of each bag

namespace {

enum BagMode { kBagSum = 0, kBagMean = 1, kBagMax = 2 };

struct Bags {
  Values<int64_t> indices, starts;
  int64_t count;
  Bags(const View& i, const View& offsets, bool include_last)
      : indices(dense<int64_t>(i)), starts(dense<int64_t>(offsets)), count(offsets.count() - (include_last ? 1 : 0)) {
    if (!include_last) starts.push_back(static_cast<int64_t>(indices.size()));
    for (int64_t b = 0; b < count; ++b)
      if (starts[b] < 0 || starts[b] > starts[b + 1] || starts[b + 1] > static_cast<int64_t>(indices.size()))
        reject("bag " + std::to_string(b) + " reaches from index " + std::to_string(starts[b]) + " to " + std::to_string(starts[b + 1]));
  }
};

// What the gradient needs: the bag of every index, the size of every bag, and where each maximum came from.
struct BagResults {
  View out, bag_of, sizes, maxima;
};

void embedding_bag(const View& weight, const Bags& bags, int64_t mode, const View& factors, int64_t padding, const BagResults& to) {
  const int64_t width = weight.size(1), rows = weight.size(0);
  const auto w = dense<double>(weight);
  const auto scale = factors.defined() ? dense<double>(factors) : Values<double>(bags.indices.size(), 1);
  Values<double> result(bags.count * width), sizes(bags.count);
  Values<int64_t> bag_of(bags.indices.size()), maxima(bags.count * width);
  for (int64_t b = 0; b < bags.count; ++b) {
    for (int64_t i = bags.starts[b]; i < bags.starts[b + 1]; ++i) {
      bag_of[i] = b;
      const int64_t row = wrap(bags.indices[i], rows);
      if (row == padding) continue;
      for (int64_t k = 0; k < width; ++k) {
        double& total = result[b * width + k];
        const double value = w[row * width + k] * scale[i];
        const bool better = sizes[b] == 0 || value > total;
        if (mode != kBagMax) total += value;
        else if (better) total = value;
        if (better) maxima[b * width + k] = row;
      }
      sizes[b] += 1;
    }
    for (int64_t k = 0; mode == kBagMean && k < width; ++k) result[b * width + k] /= std::max(sizes[b], 1.0);
  }
  assign(to.out, result);
  if (to.bag_of.count()) assign(to.bag_of, bag_of);
  assign(to.sizes, sizes);
  if (mode == kBagMax) assign(to.maxima, maxima);
}

}  // namespace
ACLNN(aclnnEmbeddingBag, const aclTensor* weight, const aclTensor* indices, const aclTensor* offsets, bool, int64_t mode, bool,
      const aclTensor* factors, bool include_last, int64_t padding, const aclTensor* out, const aclTensor* bag_of,
      const aclTensor* sizes, const aclTensor* maxima) {
  return PLAN([=, w = view(weight), i = view(indices), o = view(offsets), f = view(factors),
               to = BagResults{view(out), view(bag_of), view(sizes), view(maxima)}] {
    embedding_bag(w, Bags(i, o, include_last), mode, f, padding, to);
  });
}

namespace {
// One slice of the source for every position.
void check_slices(const View& source, int dim, const View& index) {
  if (source.size(dim) != index.count())
    reject(std::to_string(index.count()) + " positions for a source of shape " + text(source.shape));
}
Work index_copy(const View& out, const View& self, int64_t dim, const View& index, const View& source) {
  return [=] {
    if (!out.starts_where(self)) copy(out, self);
    const View target = at_least_1d(out), from = at_least_1d(source);
    const int d = target.dim(dim);
    check_slices(from, d, index);
    const auto positions = dense<int64_t>(index);
    for (size_t i = 0; i < positions.size(); ++i)
      copy(target.select(d, wrap(positions[i], target.shape[d])), from.select(d, static_cast<int64_t>(i)));
  };
}
Work index_add(const View& out, const View& self, int64_t dim, const View& index, const View& source, double alpha) {
  return [=] {
    if (!out.starts_where(self)) copy(out, self);
    const View from = at_least_1d(source);
    const int d = at_least_1d(out).dim(dim);
    check_slices(from, d, index);
    const Accumulator total(at_least_1d(out));
    const View target = total.view();
    const auto positions = dense<int64_t>(index);
    for (size_t i = 0; i < positions.size(); ++i) {
      const View to = target.select(d, wrap(positions[i], target.shape[d]));
      map(to, [=](auto x, auto y) { return x + static_cast<decltype(x)>(alpha) * y; }, to, from.select(d, static_cast<int64_t>(i)));
    }
  };
}
Work index_fill(const View& out, const View& self, int64_t dim, const std::function<std::vector<int64_t>()>& index, double value) {
  return [=] {
    if (!out.starts_where(self)) copy(out, self);
    const View target = at_least_1d(out);
    const int d = target.dim(dim);
    for (int64_t p : index()) fill(target.select(d, wrap(p, target.shape[d])), value);
  };
}
}  // namespace
ACLNN(aclnnIndexCopy, const aclTensor* self, int64_t dim, const aclTensor* index, const aclTensor* source, const aclTensor* out) {
  return PLAN(index_copy(view(out), view(self), dim, view(index), view(source)));
}
ACLNN(aclnnInplaceIndexCopy, const aclTensor* self, int64_t dim, const aclTensor* index, const aclTensor* source) {
  return PLAN(index_copy(view(self), view(self), dim, view(index), view(source)));
}
ACLNN(aclnnIndexAdd, const aclTensor* self, int64_t dim, const aclTensor* index, const aclTensor* source, const aclScalar* alpha,
      const aclTensor* out) {
  return PLAN(index_add(view(out), view(self), dim, view(index), view(source), alpha->number()));
}
ACLNN(aclnnIndexAddV2, const aclTensor* self, int64_t dim, const aclTensor* index, const aclTensor* source, const aclScalar* alpha,
      int64_t, const aclTensor* out) {
  return PLAN(index_add(view(out), view(self), dim, view(index), view(source), alpha->number()));
}
ACLNN(aclnnIndexFill, const aclTensor* self, int64_t dim, const aclTensor* index, const aclScalar* value, const aclTensor* out) {
  return PLAN(index_fill(view(out), view(self), dim, [i = view(index)] { return dense<int64_t>(i); }, value->number()));
}
ACLNN(aclnnInplaceIndexFill, const aclTensor* self, int64_t dim, const aclTensor* index, const aclScalar* value) {
  return PLAN(index_fill(view(self), view(self), dim, [i = view(index)] { return dense<int64_t>(i); }, value->number()));
}
ACLNN(aclnnIndexFillTensor, const aclTensor* self, int64_t dim, const aclIntArray* index, const aclScalar* value, const aclTensor* out) {
  return PLAN(index_fill(view(out), view(self), dim, [i = values(index)] { return i; }, value->number()));
}
ACLNN(aclnnInplaceIndexFillTensor, const aclTensor* self, int64_t dim, const aclIntArray* index, const aclScalar* value) {
  return PLAN(index_fill(view(self), view(self), dim, [i = values(index)] { return i; }, value->number()));
}

// ---- one element per index: gather and scatter

namespace {
// Positions along `dim`, inside of the tensor in all other dimensions.
void check_positions(const View& index, const View& tensor, int dim) {
  bool inside = index.dims() == tensor.dims();
  for (int d = 0; inside && d < index.dims(); ++d) inside = d == dim || index.shape[d] <= tensor.shape[d];
  if (!inside && index.count())
    reject("positions of shape " + text(index.shape) + " reach past a tensor of shape " + text(tensor.shape));
}
}  // namespace

ACLNN(aclnnGather, const aclTensor* self, int64_t dim, const aclTensor* index, const aclTensor* out) {
  return PLAN([=, a = at_least_1d(view(self)), i = at_least_1d(view(index)), o = at_least_1d(view(out))] {
    const int d = a.dim(dim);
    check_positions(i, a, d);
    if (o.shape != i.shape) reject("a result of shape " + text(o.shape) + " for positions of shape " + text(i.shape));
    each_index(i.shape, [&](const Dims& at) {
      Dims from = at;
      from[d] = position(i, at, a.shape[d]);
      memcpy(o.at(at), a.at(from), a.item());
    });
  });
}
namespace {
Work scatter(const View& out, const View& self, int64_t dim, const View& index, const View& source, int reduction) {
  return [=] {
    if (!out.starts_where(self)) copy(out, self);
    const View positions = at_least_1d(index);
    const View from = source.dims() ? source : source.expand(positions.shape);
    const int d = at_least_1d(out).dim(dim);
    check_positions(positions, at_least_1d(out), d);
    check_positions(positions, from, -1);
    const Accumulator total(at_least_1d(out));
    const View& target = total.view();
    each_index(positions.shape, [&](const Dims& at) {
      Dims to = at;
      to[d] = position(positions, at, target.shape[d]);
      combine(target, target.at(to), from, from.at(at), reduction);
    });
  };
}
Work scatter_value(const View& out, const View& self, int64_t dim, const View& index, const aclScalar* value, int reduction) {
  aclScalar scalar = *value;
  return [=]() mutable { scatter(out, self, dim, index, View(scalar.dtype, {}, scalar.bytes), reduction)(); };
}
}  // namespace
ACLNN(aclnnScatter, const aclTensor* self, int64_t dim, const aclTensor* index, const aclTensor* source, int64_t reduction,
      const aclTensor* out) {
  return PLAN(scatter(view(out), view(self), dim, view(index), view(source), static_cast<int>(reduction)));
}
ACLNN(aclnnInplaceScatter, const aclTensor* self, int64_t dim, const aclTensor* index, const aclTensor* source, int64_t reduction) {
  return PLAN(scatter(view(self), view(self), dim, view(index), view(source), static_cast<int>(reduction)));
}
ACLNN(aclnnScatterValue, const aclTensor* self, int64_t dim, const aclTensor* index, const aclScalar* value, int64_t reduction,
      const aclTensor* out) {
  return PLAN(scatter_value(view(out), view(self), dim, view(index), value, static_cast<int>(reduction)));
}
ACLNN(aclnnInplaceScatterValue, const aclTensor* self, int64_t dim, const aclTensor* index, const aclScalar* value, int64_t reduction) {
  return PLAN(scatter_value(view(self), view(self), dim, view(index), value, static_cast<int>(reduction)));
}
ACLNN(aclnnScatterAdd, const aclTensor* self, int64_t dim, const aclTensor* index, const aclTensor* source, const aclTensor* out) {
  return PLAN(scatter(view(out), view(self), dim, view(index), view(source), kAdd));
}

// ---- advanced indexing: self[i, :, j], with tensors of positions or masks

namespace {

// The index tensors of a subscript, masks already turned into positions.
class Subscript {
 public:
  Subscript(const View& self, const std::vector<View>& indices) : self_(self) {
    for (const View& index : indices) add(index);
    if (dims_.size() > static_cast<size_t>(self.dims()))
      reject(std::to_string(dims_.size()) + " positions for a tensor of shape " + text(self.shape));
    while (dims_.size() < static_cast<size_t>(self.dims())) dims_.push_back({});
    bool gap = false, seen = false;
    for (size_t d = 0; d < dims_.size(); ++d) {
      if (!dims_[d].used) {
        gap |= seen;
        continue;
      }
      if (seen && gap) split_ = true;
      if (!seen) first_ = d;
      seen = true;
      broadcast(dims_[d].shape);
    }
    for (Dim& dim : dims_)
      if (dim.used) dim.view = View(ACL_INT64, dim.shape, dim.positions.data()).expand(shape_);
  }

  // Shape of self[subscript]: positions that are not neighbours go to the front.
  Dims result_shape() const {
    Dims result;
    if (split_) result = shape_;
    for (size_t d = 0; d < dims_.size(); ++d) {
      if (!split_ && d == first_) result.insert(result.end(), shape_.begin(), shape_.end());
      if (!dims_[d].used) result.push_back(self_.shape[d]);
    }
    return result;
  }

  // Address in `self` of an element of the result.
  char* address(const Dims& at) const {
    const size_t front = split_ ? 0 : first_;
    const Dims among(at.begin() + front, at.begin() + front + shape_.size());
    Dims index;
    size_t next = split_ ? shape_.size() : 0;
    for (size_t d = 0; d < dims_.size(); ++d) {
      if (!split_ && d == first_) next += shape_.size();
      if (dims_[d].used) index.push_back(position(dims_[d].view, among, self_.shape[d]));
      else index.push_back(at[next++]);
    }
    return self_.at(index);
  }

 private:
  struct Dim {
    bool used = false;
    Dims shape;
    std::vector<int64_t> positions;
    View view;
  };
  void add(const View& index) {
    const bool absent = !index.defined() || !index.has_memory() || (index.dims() == 1 && index.shape[0] == 0 && index.dtype != ACL_BOOL);
    if (absent) {
      dims_.push_back({});
    } else if (index.dtype == ACL_BOOL || index.dtype == ACL_UINT8) {
      std::vector<std::vector<int64_t>> found(index.dims());
      for (int d = 0; d < index.dims(); ++d) {
        const int64_t at = static_cast<int64_t>(dims_.size()) + d;
        if (at >= self_.dims() || index.shape[d] != self_.shape[at])
          reject("a mask of shape " + text(index.shape) + " for a tensor of shape " + text(self_.shape));
      }
      each_index(index.shape, [&](const Dims& at) {
        if (*index.at(at))
          for (size_t d = 0; d < at.size(); ++d) found[d].push_back(at[d]);
      });
      for (auto& positions : found) dims_.push_back({true, {static_cast<int64_t>(positions.size())}, std::move(positions), {}});
    } else {
      dims_.push_back({true, index.shape, dense<int64_t>(index), {}});
    }
  }
  void broadcast(const Dims& other) {
    if (other.size() > shape_.size()) shape_.insert(shape_.begin(), other.size() - shape_.size(), 1);
    for (size_t i = 0; i < other.size(); ++i) {
      int64_t& size = shape_[shape_.size() - other.size() + i];
      if (size != 1 && other[i] != 1 && size != other[i])
        reject("positions of shapes " + text(shape_) + " and " + text(other) + " do not broadcast");
      if (other[i] != 1) size = other[i];
    }
  }

  View self_;
  std::vector<Dim> dims_;
  Dims shape_;        // broadcast shape of the index tensors
  size_t first_ = 0;  // first indexed dimension
  bool split_ = false;
};

}  // namespace

ACLNN(aclnnIndex, const aclTensor* self, const aclTensorList* indices, const aclTensor* out) {
  return PLAN([a = view(self), list = views(indices), o = view(out)] {
    const Subscript subscript(a, list);
    if (o.count() == 0) return;  // an index without elements looks like one that is absent
    if (o.shape != subscript.result_shape())
      reject("a result of shape " + text(o.shape) + " where " + text(subscript.result_shape()) + " are selected");
    each_index(o.shape, [&](const Dims& at) { memcpy(o.at(at), subscript.address(at), a.item()); });
  });
}
ACLNN(aclnnIndexPutImpl, const aclTensor* self, const aclTensorList* indices, const aclTensor* values_, bool accumulate, bool) {
  return PLAN([=, a = view(self), list = views(indices), v = view(values_)] {
    const Accumulator total(a);
    const View& target = total.view();
    const Subscript subscript(target, list);
    const Dims shape = subscript.result_shape();
    const View from = v.expand(shape);
    each_index(shape, [&](const Dims& at) { combine(target, subscript.address(at), from, from.at(at), accumulate ? kAdd : kReplace); });
  });
}
ACLNN(aclnnTake, const aclTensor* self, const aclTensor* index, const aclTensor* out) {
  return PLAN([a = view(self), i = view(index), o = view(out)] {
    const int64_t count = a.count();
    each_index(i.shape, [&](const Dims& at) {
      int64_t rest = position(i, at, count);
      Dims from(a.dims());
      for (int d = a.dims() - 1; d >= 0; rest /= a.shape[d], --d) from[d] = rest % a.shape[d];
      memcpy(o.at(at), a.at(from), a.item());
    });
  });
}

// ---- results whose size depends on the data: the shape of the output tensor is rewritten for the host to read

namespace {
// torch_npu keeps the aclTensor alive until it has read the shape, except in a capture, where it never gets there.
void resize(const aclTensor* out, const Dims& shape) { const_cast<aclTensor*>(out)->shape = shape; }
}  // namespace
ACLNN(aclnnNonzero, const aclTensor* self, const aclTensor* out) {
  return PLAN([=, a = view(self), o = view(out)] {
    int64_t found = 0;
    each_index(a.shape, [&](const Dims& at) {
      if (read<double>(a.dtype, a.at(at)) == 0) return;
      for (int d = 0; d < a.dims(); ++d) write<int64_t>(o.dtype, o.at({found, d}), at[d]);
      ++found;
    });
    resize(out, {found, a.dims()});
  });
}
ACLNN(aclnnNonzeroV2, const aclTensor* self, const aclTensor* out) {
  return PLAN([=, a = view(self), o = view(out)] {
    std::vector<Dims> found;
    each_index(a.shape, [&](const Dims& at) {
      if (read<double>(a.dtype, a.at(at)) != 0) found.push_back(at);
    });
    const int64_t count = static_cast<int64_t>(found.size());  // rows are dimensions, packed for that count
    for (int d = 0; d < a.dims(); ++d)
      for (int64_t k = 0; k < count; ++k) write<int64_t>(o.dtype, o.flat().at({d * count + k}), found[k][d]);
    resize(out, {a.dims(), count});
  });
}
ACLNN(aclnnMaskedSelect, const aclTensor* self, const aclTensor* mask, const aclTensor* out) {
  return PLAN([=, a = view(self), m = view(mask), o = view(out)] {
    Dims shape = a.dims() >= m.dims() ? a.shape : m.shape;
    const Dims& other = a.dims() >= m.dims() ? m.shape : a.shape;
    for (size_t i = 0; i < other.size(); ++i) {
      int64_t& size = shape[shape.size() - other.size() + i];
      size = size == 1 ? other[i] : size;
    }
    const View from = a.expand(shape), keep = m.expand(shape), to = o.flat();
    int64_t found = 0;
    each_index(shape, [&](const Dims& at) {
      if (*keep.at(at)) memcpy(to.at({found++}), from.at(at), o.item());
    });
    resize(out, {found});
  });
}
ACLNN(aclnnInplaceMaskedScatter, const aclTensor* self, const aclTensor* mask, const aclTensor* source) {
  return PLAN([a = view(self), m = view(mask), s = view(source)] {
    const View keep = m.expand(a.shape);
    const auto from = dense<double>(s);
    size_t next = 0;
    each_index(a.shape, [&](const Dims& at) {
      if (*keep.at(at)) write<double>(a.dtype, a.at(at), from[next++]);
    });
  });
}

// ---- updates of rows, as KV caches use them

// self[indices[i]] = updates[i], where the last dimension of `indices` is a partial index into self.
ACLNN(aclnnScatterNdUpdate, const aclTensor* self, const aclTensor* indices, const aclTensor* updates) {
  return PLAN([a = view(self), i = view(indices), u = view(updates)] {
    const int depth = static_cast<int>(i.shape.back());
    const Dims outer(i.shape.begin(), i.shape.end() - 1);
    each_index(outer, [&](const Dims& at) {
      View row = a, from = u;
      for (int64_t k : at) from = from.select(0, k);
      for (int d = 0; d < depth; ++d) {
        Dims place = at;
        place.push_back(d);
        row = row.select(0, position(i, place, row.shape[0]));
      }
      copy(row, from);
    });
  });
}
// data[b, ..., indices[b] + k, ...] = updates[b, ..., k, ...] along `axis`.
ACLNN(aclnnInplaceScatterUpdate, const aclTensor* data, const aclTensor* indices, const aclTensor* updates, int64_t axis) {
  return PLAN([=, a = view(data), i = view(indices), u = view(updates)] {
    const int d = a.dim(axis);
    for (int64_t b = 0; b < u.shape[0]; ++b) {
      const int64_t start = i.dims() == 1 ? read<int64_t>(i.dtype, i.at({b})) : read<int64_t>(i.dtype, i.at({b, 1}));
      const int64_t batch = i.dims() == 1 ? b : read<int64_t>(i.dtype, i.at({b, 0}));
      copy(a.select(0, wrap(batch, a.shape[0])).narrow(d - 1, start, u.shape[d]), u.select(0, b));
    }
  });
}
ACLNN(aclnnBincount, const aclTensor* self, const aclTensor* weights, int64_t, const aclTensor* out) {
  return PLAN([a = view(self), w = view(weights), o = view(out)] {
    const auto bins = dense<int64_t>(a);
    const auto amount = w.defined() ? dense<double>(w) : Values<double>(bins.size(), 1);
    Values<double> total(o.count());
    for (size_t i = 0; i < bins.size(); ++i) total[wrap(bins[i], o.shape[0])] += amount[i];
    assign(o, total);
  });
}
