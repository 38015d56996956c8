// Operators that move or generate elements without looking at their values: cat, repeat, pad, arange, ...
#include <cstring>

#include "kernel.h"

using namespace emu;

// ---- joining and splitting

ACLNN(aclnnCat, const aclTensorList* tensors, int64_t dim, const aclTensor* out) {
  return PLAN([=, parts = views(tensors), o = view(out)] {
    const int d = o.dim(dim);
    int64_t start = 0;
    for (const View& part : parts) {
      if (part.dims() == 1 && part.count() == 0) continue;  // PyTorch skips empty 1-d tensors
      Dims shape = o.shape;
      shape[d] = part.size(d);
      if (part.shape != shape) reject("a part of shape " + text(part.shape) + " does not fit into " + text(o.shape));
      copy(o.narrow(d, start, shape[d]), part);
      start += shape[d];
    }
    if (start != o.shape[d]) reject("the parts do not fill a tensor of shape " + text(o.shape));
  });
}
ACLNN(aclnnStack, const aclTensorList* tensors, int64_t dim, const aclTensor* out) {
  return PLAN([=, parts = views(tensors), o = view(out)] {
    for (size_t i = 0; i < parts.size(); ++i) {
      const View slot = o.select(o.dim(dim), static_cast<int64_t>(i));
      if (parts[i].shape != slot.shape) reject("a part of shape " + text(parts[i].shape) + " does not fit into " + text(o.shape));
      copy(slot, parts[i]);
    }
  });
}
ACLNN(aclnnSplitWithSize, const aclTensor* self, const aclIntArray*, int64_t dim, const aclTensorList* out) {
  return PLAN([=, a = view(self), parts = views(out)] {
    int64_t start = 0;
    for (const View& part : parts) {
      copy(part, a.narrow(a.dim(dim), start, part.shape[part.dim(dim)]));
      start += part.shape[part.dim(dim)];
    }
  });
}

// ---- repeating and reordering

ACLNN(aclnnRepeat, const aclTensor* self, const aclIntArray* repeats, const aclTensor* out) {
  return PLAN([times = values(repeats), a = view(self), o = view(out)] {
    View source = a;
    while (source.dims() < o.dims()) source = source.unsqueeze(0);
    each_index(times, [&](const Dims& tile) {
      View target = o;
      for (int d = 0; d < o.dims(); ++d) target = target.narrow(d, tile[d] * source.shape[d], source.shape[d]);
      copy(target, source);
    });
  });
}
namespace {
// Repeats every slice along `dim`: counts[i] copies of slice i.
Work repeat_interleave(const View& in, const View& out, int dim, const View& counts, int64_t count) {
  return [=] {
    const std::vector<int64_t> times = counts.defined() ? dense<int64_t>(counts) : std::vector<int64_t>{count};
    int64_t to = 0;
    for (int64_t i = 0; i < in.shape[dim]; ++i)
      for (int64_t k = 0; k < times[times.size() == 1 ? 0 : i]; ++k) copy(out.select(dim, to++), in.select(dim, i));
  };
}
}  // namespace
ACLNN(aclnnRepeatInterleaveInt, const aclTensor* self, int64_t repeats, int64_t, const aclTensor* out) {
  return PLAN(repeat_interleave(view(self).flat(), view(out), 0, {}, repeats));
}
ACLNN(aclnnRepeatInterleaveIntWithDim, const aclTensor* self, int64_t repeats, int64_t dim, int64_t, const aclTensor* out) {
  const View a = view(self);
  return PLAN(repeat_interleave(a, view(out), a.dim(dim), {}, repeats));
}
ACLNN(aclnnRepeatInterleave, const aclTensor* self, const aclTensor* repeats, int64_t, const aclTensor* out) {
  return PLAN(repeat_interleave(view(self).flat(), view(out), 0, view(repeats), 0));
}
ACLNN(aclnnRepeatInterleaveWithDim, const aclTensor* self, const aclTensor* repeats, int64_t dim, int64_t, const aclTensor* out) {
  const View a = view(self);
  return PLAN(repeat_interleave(a, view(out), a.dim(dim), view(repeats), 0));
}
ACLNN(aclnnFlip, const aclTensor* self, const aclIntArray* dims, const aclTensor* out) {
  return PLAN([flipped = values(dims), a = view(self), o = view(out)] {
    View reversed = a;
    for (int64_t d : flipped) reversed = reversed.narrow(a.dim(d), a.shape[a.dim(d)] - 1, a.shape[a.dim(d)], -1);
    copy(o, reversed);
  });
}
ACLNN(aclnnRoll, const aclTensor* self, const aclIntArray* shifts, const aclIntArray* dims, const aclTensor* out) {
  return PLAN([by = values(shifts), along = values(dims), a = view(self), o = view(out)] {
    View from = along.empty() ? a.flat() : a, to = along.empty() ? o.flat() : o;
    each_index(from.shape, [&](const Dims& index) {
      Dims target = index;
      for (size_t i = 0; i < by.size(); ++i) {
        const int d = along.empty() ? 0 : from.dim(along[i]);
        target[d] = ((target[d] + by[i]) % from.shape[d] + from.shape[d]) % from.shape[d];
      }
      memcpy(to.at(target), from.at(index), from.item());
    });
  });
}
namespace {
template <bool Upper>
Work triangle(const View& out, const View& in, int64_t diagonal) {
  return [=] {
    copy(out, in);
    each_index(out.shape, [&](const Dims& index) {
      const int64_t above = index[index.size() - 1] - index[index.size() - 2];
      if (Upper ? above < diagonal : above > diagonal) write<int64_t>(out.dtype, out.at(index), 0);
    });
  };
}
}  // namespace
ACLNN(aclnnTril, const aclTensor* self, int64_t diagonal, const aclTensor* out) {
  return PLAN(triangle<false>(view(out), view(self), diagonal));
}
ACLNN(aclnnTriu, const aclTensor* self, int64_t diagonal, const aclTensor* out) {
  return PLAN(triangle<true>(view(out), view(self), diagonal));
}
ACLNN(aclnnInplaceTril, const aclTensor* self, int64_t diagonal) {
  return PLAN(triangle<false>(view(self), view(self), diagonal));
}
ACLNN(aclnnInplaceTriu, const aclTensor* self, int64_t diagonal) {
  return PLAN(triangle<true>(view(self), view(self), diagonal));
}
// `pad` counts from the last dimension: before, after, before, after, ...; negative values crop.
ACLNN(aclnnConstantPadNd, const aclTensor* self, const aclIntArray* pad, const aclScalar* value, const aclTensor* out) {
  return PLAN([by = values(pad), number = value->number(), a = view(self), o = view(out)] {
    fill(o, number);
    View from = a, to = o;
    for (size_t i = 0; i < by.size() / 2; ++i) {
      const int d = a.dims() - 1 - static_cast<int>(i);
      const int64_t before = by[2 * i], after = by[2 * i + 1];
      const int64_t skip = std::max<int64_t>(-before, 0);
      const int64_t length = a.shape[d] - skip - std::max<int64_t>(-after, 0);
      from = from.narrow(d, skip, length);
      to = to.narrow(d, std::max<int64_t>(before, 0), length);
    }
    copy(to, from);
  });
}

// ---- generated values

namespace {
Work sequence(const View& out, const aclScalar* start, const aclScalar* step) {
  const double from = start->number(), by = step->number();
  const int64_t integer_from = start->integer(), integer_by = step->integer();
  return [=] {
    if (!is_floating(out.dtype)) {
      int64_t i = 0;
      map_as<int64_t>(out, [&] { return integer_from + integer_by * i++; });
    } else {
      int64_t i = 0;
      map_as<double>(out, [&] { return from + by * i++; });
    }
  };
}
}  // namespace
ACLNN(aclnnArange, const aclScalar* start, const aclScalar*, const aclScalar* step, const aclTensor* out) {
  return PLAN(sequence(view(out), start, step));
}
ACLNN(aclnnRange, const aclScalar* start, const aclScalar*, const aclScalar* step, const aclTensor* out) {
  return PLAN(sequence(view(out), start, step));
}
// As PyTorch: from both ends to the middle.
ACLNN(aclnnLinspace, const aclScalar* start, const aclScalar* end, int64_t steps, const aclTensor* out) {
  return PLAN([=, first = start->number(), last = end->number(), o = view(out)] {
    const double step = steps > 1 ? (last - first) / (steps - 1) : 0;
    int64_t i = 0;
    map_as<double>(o, [&] {
      const double value = i < steps / 2 ? first + step * i : last - step * (steps - 1 - i);
      ++i;
      return steps == 1 ? first : value;
    });
  });
}
ACLNN(aclnnEye, int64_t n, int64_t m, const aclTensor* out) {
  return PLAN([=, o = view(out)] {
    fill(o, 0);
    for (int64_t i = 0; i < std::min(n, m); ++i) write<int64_t>(o.dtype, o.at({i, i}), 1);
  });
}
ACLNN(aclnnOneHot, const aclTensor* self, int depth, const aclTensor* on, const aclTensor* off, int64_t axis, const aclTensor* out) {
  return PLAN([=, a = view(self), hot = view(on), cold = view(off), o = view(out)] {
    const int d = axis < 0 ? o.dims() - 1 : static_cast<int>(axis);
    const View classes = a.unsqueeze(d);
    for (int64_t k = 0; k < depth; ++k) {
      const View slice = o.narrow(d, k, 1);
      const double yes = read<double>(hot), no = read<double>(cold);
      map_as<double>(slice, [=](double c) { return c == k ? yes : no; }, classes);
    }
  });
}
